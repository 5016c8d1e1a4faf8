from functools import partial
from types import SimpleNamespace

import pytest
import torch
from botorch.acquisition import UpperConfidenceBound
from botorch.acquisition.input_constructors import get_acqf_input_constructor
from botorch.acquisition.objective import ScalarizedPosteriorTransform
from botorch.models import ModelListGP, SingleTaskGP, SingleTaskVariationalGP
from botorch.models.deterministic import GenericDeterministicModel
from botorch.models.transforms import Normalize, Standardize
from botorch.optim import optimize_acqf, optimize_acqf_discrete
from botorch.utils import standardize
from cases import normal, scattered, se
from gpytorch.kernels import ScaleKernel

import botorch_delay as bd
from botorch_delay import acquisition
from botorch_delay.exceptions import InputError, InputTypeError, NotSupportedError

X, Y, P, T = scattered(12), normal(12).unsqueeze(-1), scattered(4, seed=1), scattered(9, seed=2)


def model(pending=None):
    return bd.DelayedGP(X, Y, noise_var=1e-3, X_pending=pending, covar_module=se())


def deviation(gp, x):
    return gp.posterior(x.unsqueeze(1)).variance.flatten().sqrt()


def test_it_is_the_fantasy_deviation():
    value = bd.MaxVariance(model(P))(T.unsqueeze(1))
    assert value.shape == (9,)
    torch.testing.assert_close(value, deviation(model(P).fantasy_model(), T))


def test_pending_points_add_to_the_model_s_own():
    expected = deviation(model(P).fantasy_model(), T)
    acquisition = bd.MaxVariance(model(P[:1]), X_pending=P[1:])
    torch.testing.assert_close(acquisition(T.unsqueeze(1)), expected)
    acquisition.set_X_pending(None)
    alone = deviation(model(P[:1]).fantasy_model(), T)
    torch.testing.assert_close(acquisition(T.unsqueeze(1)), alone)


def test_outside_the_active_set_it_is_minus_infinity():
    active = bd.FiniteActiveSet(bd.FiniteDomain(T), torch.tensor([1, 4]))
    value = bd.MaxVariance(model(), active_set=active)(T.unsqueeze(1))
    assert torch.isfinite(value).nonzero().flatten().tolist() == [1, 4]
    with pytest.raises(InputTypeError, match="contains"):
        bd.MaxVariance(model(), active_set=T)
    with pytest.raises(InputTypeError, match="BoTorch model"):
        bd.MaxVariance("model")
    with pytest.raises(InputTypeError, match="X_pending must be a tensor, p x d, or None, got int"):
        bd.MaxVariance(model(), X_pending=5)


def test_any_gpytorch_model_of_botorch_will_do():
    for options in ({}, {"train_Yvar": torch.full_like(Y, 1e-2)}):
        theirs = SingleTaskGP(X, Y, covar_module=se(), outcome_transform=None, **options)
        theirs.eval()
        plain = bd.MaxVariance(theirs)(T.unsqueeze(1))
        pending = bd.MaxVariance(theirs, X_pending=P)(T.unsqueeze(1))
        assert (pending < plain).all()
        noise = theirs.likelihood.noise.mean().item()
        ours = bd.DelayedGP(X, Y, noise_var=noise, X_pending=P, covar_module=se())
        torch.testing.assert_close(pending, deviation(ours.fantasy_model(), T), rtol=1e-4, atol=0)


def test_a_list_of_one_model_is_that_model():
    model = bd.DelayedGP(X, Y, noise_var=1e-2, X_pending=P, covar_module=se())
    sigma, listed = bd.MaxVariance(model), bd.MaxVariance(ModelListGP(model))
    assert torch.equal(sigma(T.unsqueeze(1)), listed(T.unsqueeze(1)))
    with pytest.raises(InputError, match=r"X_pending must have a row .* and 2 columns"):
        bd.MaxVariance(SingleTaskGP(X, Y), X_pending=P[:, :1])


def test_deviations_below_gpytorch_s_floor_are_kept():
    kernel = ScaleKernel(se()).double()
    kernel.outputscale = 1e-12
    model = bd.DelayedGP(X, 1e-6 * Y, noise_var=1e-14, covar_module=kernel)
    unit = bd.DelayedGP(X, Y, noise_var=1e-2, covar_module=se())
    expected = 1e-6 * bd.MaxVariance(unit)(T.unsqueeze(1))
    torch.testing.assert_close(bd.MaxVariance(model)(T.unsqueeze(1)), expected, rtol=1e-6, atol=0)


def test_the_slope_is_0_where_rounding_makes_variances_negative():
    variance = torch.tensor([-1e-9, 0.0, 0.25], requires_grad=True)
    acquisition._deviation(SimpleNamespace(variance=variance)).sum().backward()
    assert variance.grad.tolist() == [0.0, 0.0, 1.0]


@pytest.mark.parametrize(
    "acquisition", [bd.MaxVariance, partial(bd.FantasyUpperConfidenceBound, beta=4.0)]
)
def test_models_that_cannot_count_pending_points_are_refused_when_built(acquisition):
    values = standardize(Y)
    for wrong in (
        GenericDeterministicModel(lambda x: x),
        SingleTaskVariationalGP(X, values).eval(),
    ):
        acquisition(wrong)
        with pytest.raises(NotSupportedError, match=f"DelayedGP.*got {type(wrong).__name__}"):
            acquisition(wrong, X_pending=P)
        with pytest.raises(NotSupportedError, match="DelayedGP"):
            acquisition(wrong).set_X_pending(P)
    single = SingleTaskGP(X, Y).eval()
    for several in (SingleTaskGP(X, torch.cat([Y, Y], dim=1)), ModelListGP(single, single)):
        with pytest.raises(NotSupportedError, match="one output, got 2"):
            acquisition(several)


def test_one_of_several_outputs():
    several = SingleTaskGP(X, torch.cat([Y, -Y], dim=1)).eval()
    second = ScalarizedPosteriorTransform(torch.tensor([0.0, 1.0]).double())
    bound = bd.FantasyUpperConfidenceBound(several, 4.0, posterior_transform=second)
    expected = UpperConfidenceBound(several, 4.0, posterior_transform=second)
    torch.testing.assert_close(bound(T.unsqueeze(1)), expected(T.unsqueeze(1)))


def test_pending_points_are_counted_by_a_copy_of_the_model():
    theirs = SingleTaskGP(X, Y, torch.full_like(Y, 1e-2), covar_module=se()).eval()
    sigma = bd.MaxVariance(theirs, X_pending=P)
    before = sigma(T.unsqueeze(1))
    theirs.train()
    theirs.covar_module.lengthscale = 0.1
    theirs.eval()
    assert torch.equal(sigma(T.unsqueeze(1)), before)
    sigma.set_X_pending(P)
    assert (sigma(T.unsqueeze(1)) > before).all()


def test_greedy_picks_through_botorch_equal_the_design():
    candidates = scattered(40, seed=5)
    empty = bd.DelayedGP(X[:0], Y[:0], noise_var=1e-2, covar_module=se())
    picked, _ = optimize_acqf_discrete(bd.MaxVariance(empty), q=6, choices=candidates, unique=True)
    design = bd.greedy_max_variance(se(), candidates, 1e-2, 6)
    # The first pick is a tie: every prior variance is equal.
    torch.testing.assert_close(picked, candidates[design])


def test_it_is_optimised_on_a_box():
    bounds = torch.tensor([[0.0, 0.0], [1.0, 1.0]]).double()
    with torch.random.fork_rng():
        points, values = optimize_acqf(
            bd.MaxVariance(model(P)),
            bounds,
            q=2,
            num_restarts=4,
            raw_samples=32,
            sequential=True,
            options={"seed": 0},
        )
    assert points.shape == (2, 2)
    best = bd.MaxVariance(model(P))(scattered(500, seed=8).unsqueeze(1)).max()
    assert values[0] >= 0.99 * best


def test_the_input_constructor():
    construct = get_acqf_input_constructor(bd.MaxVariance)
    gp = model()
    arguments = construct(gp, X_pending=P)
    torch.testing.assert_close(
        bd.MaxVariance(**arguments)(T.unsqueeze(1)), deviation(model(P).fantasy_model(), T)
    )
    assert construct(gp)["X_pending"] is None


def test_the_fantasy_upper_confidence_bound_is_botorch_s_on_the_fantasy_model():
    expected = UpperConfidenceBound(model(P).fantasy_model(), beta=4.0)(T.unsqueeze(1))
    torch.testing.assert_close(
        bd.FantasyUpperConfidenceBound(model(P), 4.0)(T.unsqueeze(1)), expected
    )
    added = bd.FantasyUpperConfidenceBound(model(P[:1]), 4.0, X_pending=P[1:])
    torch.testing.assert_close(added(T.unsqueeze(1)), expected)
    added.set_X_pending(None)
    alone = UpperConfidenceBound(model(P[:1]).fantasy_model(), beta=4.0)(T.unsqueeze(1))
    torch.testing.assert_close(added(T.unsqueeze(1)), alone)


def test_a_posterior_transform_minimises():
    down = ScalarizedPosteriorTransform(torch.tensor([-1.0]).double())
    lowest = bd.FantasyUpperConfidenceBound(model(P), 4.0, posterior_transform=down)
    fantasy = model(P).fantasy_model().posterior(T.unsqueeze(1))
    expected = (-fantasy.mean + 2.0 * fantasy.variance.sqrt()).flatten()
    torch.testing.assert_close(lowest(T.unsqueeze(1)), expected)


@pytest.mark.parametrize("noise", [{}, {"train_Yvar": torch.full_like(Y, 1e-2)}])
def test_models_that_transform_points_and_values(noise):
    # As a tuning engine builds them: the mean stays, and pending points count in sigma.
    theirs = SingleTaskGP(
        10.0 * X,
        5.0 + 3.0 * Y,
        covar_module=se(),
        input_transform=Normalize(2, bounds=torch.tensor([[0.0, 0.0], [10.0, 10.0]]).double()),
        outcome_transform=Standardize(1),
        **{name: 9.0 * value for name, value in noise.items()},
    )
    theirs.eval()
    at = 10.0 * T.unsqueeze(1)
    plain, scale = theirs.posterior(at), Y.std().item()
    variance = theirs.likelihood.noise.mean().item()
    ours = bd.DelayedGP(X, (Y - Y.mean()) / scale, noise_var=variance, covar_module=se())
    ours = ours.with_pending(P).fantasy_model()
    expected = 3.0 * scale * deviation(ours, T)
    sigma = bd.MaxVariance(theirs, X_pending=10.0 * P)(at)
    torch.testing.assert_close(sigma, expected, rtol=1e-3, atol=0)
    bound = bd.FantasyUpperConfidenceBound(theirs, 4.0, X_pending=10.0 * P)(at)
    torch.testing.assert_close(bound, plain.mean.flatten() + 2.0 * sigma, rtol=1e-3, atol=0)


def test_a_sequential_batch_spreads():
    bounds = torch.tensor([[0.0, 0.0], [1.0, 1.0]]).double()
    ucb = bd.FantasyUpperConfidenceBound(model(), 100.0)
    with torch.random.fork_rng():
        points, _ = optimize_acqf(
            ucb, bounds, q=3, num_restarts=4, raw_samples=32, sequential=True, options={"seed": 0}
        )
    assert torch.pdist(points).min() > 0.1
    assert ucb.X_pending is None


def test_the_input_constructor_of_the_bound():
    construct = get_acqf_input_constructor(bd.FantasyUpperConfidenceBound)
    ucb = bd.FantasyUpperConfidenceBound(**construct(model(), X_pending=P, training_data=None))
    assert ucb.beta == 6.0
    torch.testing.assert_close(ucb.X_pending, P)
    with pytest.raises(InputError, match="beta"):
        bd.FantasyUpperConfidenceBound(**construct(model(), beta=0.0))
    with pytest.raises(InputTypeError, match="BoTorch model"):
        bd.FantasyUpperConfidenceBound("model", 1.0)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (scattered(1)[0], "X_pending must have shape n x d"),
        (scattered(2)[:, :1], "X_pending must have a row for each point and 2 columns"),
        (scattered(2) * torch.nan, "X_pending must be finite; row 0"),
        (scattered(2).float(), "X_pending"),
    ],
)
@pytest.mark.parametrize("model", [bd.DelayedGP, SingleTaskGP])
def test_pending_points_must_be_points_of_the_model(model, wrong, message):
    X = scattered(5)
    sigma = bd.MaxVariance(model(X, standardize(normal(5)[:, None]), torch.full((5, 1), 0.1).to(X)))
    with pytest.raises(InputError, match=message):
        sigma.set_X_pending(wrong)
