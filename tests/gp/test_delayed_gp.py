import copy
import warnings

import numpy as np
import pytest
import torch
from botorch.acquisition import (
    UpperConfidenceBound,
    qKnowledgeGradient,
    qLogNoisyExpectedImprovement,
)
from botorch.exceptions.warnings import InputDataWarning
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.models.transforms import Log, Normalize, Standardize
from botorch.models.transforms.input import InputTransform, Round
from botorch.optim import optimize_acqf
from botorch.sampling import SobolQMCNormalSampler
from botorch.settings import propagate_grads
from cases import KERNELS, normal, scattered, se
from gpytorch.kernels import RBFKernel
from gpytorch.means import ConstantMean, LinearMean, Mean, ZeroMean
from gpytorch.mlls import ExactMarginalLogLikelihood
from oracle import kernel_function, posterior

import botorch_delay as bd
from botorch_delay.exceptions import InputError, InputTypeError, NotSupportedError

# numbers in a model: 20 answers, 6 pending, 9 test points
X, Y = scattered(20), normal(20).unsqueeze(-1)
P, T = scattered(6, seed=1), scattered(9, seed=2)
NOISE = 1e-3


def make(name="se", n=20, pending=P, noise_var=NOISE, **options):
    return bd.DelayedGP(
        X[:n],
        Y[:n],
        noise_var=noise_var,
        X_pending=pending,
        covar_module=KERNELS[name](),
        **options,
    )


def dense(name, train_X, train_Y, at, noise_var):
    k = kernel_function(KERNELS[name]())
    return posterior(k, train_X.numpy(), train_Y.flatten().numpy(), noise_var, at.numpy())[:2]


def assert_moments(got, mean, variance, tolerance=1e-8):
    np.testing.assert_allclose(got.mean.detach().flatten(), mean, rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(
        got.variance.detach().flatten(), variance, rtol=tolerance, atol=tolerance * 1e-2
    )


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("noise_var", [1e-1, 4e-4, 1e-8])
def test_both_posteriors_equal_the_written_out_formula(name, noise_var):
    if noise_var < 1e-6 and name in ("linear", "one-column", "sum"):
        pytest.skip("singular up to 1e-16: the dense reference itself is off by more")
    model = make(name, noise_var=noise_var)
    tolerance = 1e-8 + 1e-14 / noise_var
    mean, variance = dense(name, X, Y, T, noise_var)
    assert_moments(model.posterior(T), mean, variance, tolerance)
    at_pending, _ = dense(name, X, Y, P, noise_var)
    joint = torch.cat([X, P]), torch.cat([Y.flatten(), torch.from_numpy(at_pending)])
    _, reduced = dense(name, *joint, T, noise_var)
    assert_moments(model.fantasy_posterior(T), mean, reduced, tolerance)
    assert (reduced <= variance + 1e-9).all()


def test_the_fantasy_mean_is_the_observed_mean():
    model = make()
    gap = model.fantasy_posterior(T).mean - model.posterior(T).mean
    assert gap.abs().max() < 1e-12


def test_no_pending_point_means_one_posterior():
    model = make(pending=None)
    assert model.fantasy_model() is model
    assert model.X_pending.shape == (0, 2)


def test_without_answers_it_is_the_prior():
    model = make(n=0, pending=None)
    got = model.posterior(T)
    assert got.mean.flatten().tolist() == [0.0] * 9
    torch.testing.assert_close(got.variance.flatten(), torch.ones(9).double())
    _, variance = dense("se", P, torch.zeros(6), T, NOISE)
    assert_moments(model.with_pending(P).fantasy_posterior(T), np.zeros(9), variance)
    first = model.with_answer(X[0], 2.0)
    assert_moments(first.posterior(T), *dense("se", X[:1], torch.tensor([2.0]), T, NOISE))


@pytest.mark.filterwarnings("ignore::botorch.exceptions.warnings.BadInitialCandidatesWarning")
def test_the_prior_serves_botorch_too():
    empty = make(n=0, pending=None)
    bounds = torch.tensor([[0.0, 0.0], [1.0, 1.0]]).double()
    for model in (empty, empty.with_pending(P), empty.with_pending(P).fantasy_model()):
        for acquisition in (UpperConfidenceBound(model, beta=4.0), bd.MaxVariance(model)):
            with torch.random.fork_rng():
                point, _ = optimize_acqf(acquisition, bounds, q=1, num_restarts=2, raw_samples=8)
            assert ((point >= 0) & (point <= 1)).all()
        sampler = SobolQMCNormalSampler(torch.Size([4]), seed=0)
        sample = sampler(model.posterior(T))
        assert sample.dtype == torch.double
        noisy = model.posterior(T, observation_noise=True).variance
        torch.testing.assert_close(noisy, model.posterior(T).variance + NOISE)
    with pytest.raises(InputError, match="give it bounds"):
        make(n=0, input_transform=Normalize(2))
    box = Normalize(2, bounds=bounds)
    torch.testing.assert_close(
        make(n=0, input_transform=box).posterior(T).variance, empty.posterior(T).variance
    )


def test_covariances_and_batches_agree():
    model = make()
    joint = model.posterior(T)
    K = joint.distribution.covariance_matrix
    torch.testing.assert_close(K.diagonal(), joint.variance.flatten())
    batch = model.posterior(T.reshape(3, 3, 2))
    torch.testing.assert_close(batch.mean.reshape(-1), joint.mean.flatten())
    torch.testing.assert_close(batch.distribution.covariance_matrix[1], K[3:6, 3:6])
    one = model.posterior(T.unsqueeze(1))  # b x 1 x d
    torch.testing.assert_close(one.variance.flatten(), joint.variance.flatten())


def test_it_is_botorch_s_model_with_the_same_ingredients():
    model = make(pending=None, mean_module=ConstantMean())
    theirs = SingleTaskGP(
        X, Y, torch.full_like(Y, NOISE), covar_module=se(), outcome_transform=None
    )
    ours, reference = model.posterior(T), theirs.posterior(T)
    torch.testing.assert_close(ours.mean, reference.mean, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(ours.variance, reference.variance, rtol=1e-5, atol=1e-6)
    noisy = model.posterior(T, observation_noise=True)
    torch.testing.assert_close(noisy.variance, ours.variance + NOISE)


@pytest.mark.parametrize("evaluate_before", [True, False])
@pytest.mark.parametrize("name", ["se", "matern12", "sum"])
def test_updates_equal_a_rebuilt_model(name, evaluate_before):
    model, values = make(name), [0.3, -1.2, 0.8, 0.1]
    order = [4, 0, 5, 2]  # out of order
    for i, value in zip(order, values, strict=True):
        if evaluate_before:
            model.posterior(T)
            model.fantasy_posterior(T)
        model = model.with_answer(P[i], value)
    train_X = torch.cat([X, P[order]])
    train_Y = torch.cat([Y, torch.tensor(values, dtype=torch.double).unsqueeze(-1)])
    rest = P[[1, 3]]
    assert torch.equal(model.X_pending, rest)
    rebuilt = bd.DelayedGP(
        train_X, train_Y, noise_var=NOISE, X_pending=rest, covar_module=KERNELS[name]()
    )
    for ours, theirs in (
        (model.posterior(T), rebuilt.posterior(T)),
        (model.fantasy_posterior(T), rebuilt.fantasy_posterior(T)),
    ):
        assert_moments(ours, theirs.mean.detach().flatten(), theirs.variance.detach().flatten())


def test_pending_points_are_added_and_the_old_model_stays():
    model = make(pending=P[:2])
    model.posterior(T)
    more = model.with_pending(P[2])
    assert torch.equal(more.X_pending, P[:3])
    assert torch.equal(model.X_pending, P[:2])
    more = more.with_pending(P[3:])
    assert_moments(
        more.fantasy_posterior(T),
        make().fantasy_posterior(T).mean.detach().flatten(),
        make().fantasy_posterior(T).variance.detach().flatten(),
    )


def assert_equals_rebuilt(model, rows, out, points, values):
    rebuilt = bd.DelayedGP(
        points[rows],
        values[rows].unsqueeze(-1),
        noise_var=NOISE,
        X_pending=points[out],
        covar_module=se(),
    )
    assert torch.equal(model.X_pending, rebuilt.X_pending)
    for ours, theirs in (
        (model.posterior(T), rebuilt.posterior(T)),
        (model.fantasy_posterior(T), rebuilt.fantasy_posterior(T)),
    ):
        assert_moments(ours, theirs.mean.detach().flatten(), theirs.variance.detach().flatten())


def test_any_order_of_asks_and_answers_equals_a_rebuilt_model():
    points, values = scattered(24, seed=5), normal(24, seed=6)
    draw = torch.Generator().manual_seed(7)
    model = bd.DelayedGP(points[:0], values[:0, None], noise_var=NOISE, covar_module=se())
    rows, out = [], []
    for new in range(24):
        if new % 7 == 3:  # told without ever being pending
            model = model.with_answer(points[new], values[new].item())
            rows.append(new)
        else:
            model = model.with_pending(points[new])
            out.append(new)
        while len(out) > 4:
            told = out.pop(int(torch.randint(5, (), generator=draw)))
            model = model.with_answer(points[told], values[told].item())
            rows.append(told)
        assert_equals_rebuilt(model, rows, out, points, values)


def test_fantasies_of_fantasies():
    model = make(pending=P[:1])
    for i in range(1, 6):
        model = model.fantasy_model().with_pending(P[i])
    _, expected = dense("se", torch.cat([X, P]), torch.zeros(26), T, NOISE)
    variance = model.fantasy_posterior(T).variance.detach().flatten()
    np.testing.assert_allclose(variance, expected, atol=1e-10)


def test_the_fantasy_model_can_be_told_more():
    fantasy = make().fantasy_model()
    values = torch.cat([Y, make().posterior(P).mean.detach()])
    expected = dense(
        "se",
        torch.cat([X, P, T[:1]]),
        torch.cat([values, torch.tensor([[0.4]]).double()]),
        T,
        NOISE,
    )
    assert_moments(fantasy.with_answer(T[0], 0.4).posterior(T), *expected)


def test_a_model_that_follows_has_hyperparameters_of_its_own():
    model = make()
    before = model.posterior(T).variance
    for after in (model.with_answer(P[0], 0.3), model.with_pending(T[:1])):
        assert not after.training
        after.covar_module.lengthscale = 0.01
    assert torch.equal(model.posterior(T).variance, before)


def test_the_pending_points_are_a_copy():
    given = P.clone()
    model = make(pending=given)
    given.zero_()
    assert torch.equal(model.X_pending, P)


def test_one_of_two_equal_pending_points_stays():
    model = make(pending=P[[0, 0, 1]]).with_answer(P[0], torch.tensor([0.5]))
    assert torch.equal(model.X_pending, P[[0, 1]])


def test_an_answer_that_was_not_pending_leaves_the_pending_alone():
    model = make().with_answer(T[0], 0.5)
    assert len(model.X_pending) == 6
    assert len(model.train_targets) == 21


def test_known_noise_of_each_answer():
    Yvar = torch.linspace(0.01, 0.3, 20).double().unsqueeze(-1)
    model = bd.DelayedGP(X, Y, Yvar, noise_var=0.05, X_pending=P, covar_module=se())
    mean, variance = dense("se", X, Y, T, Yvar.flatten().numpy())
    assert_moments(model.posterior(T), mean, variance)
    noise = np.concatenate([Yvar.flatten().numpy(), np.full(6, 0.05)])
    _, reduced = dense("se", torch.cat([X, P]), torch.zeros(26), T, noise)
    assert_moments(model.fantasy_posterior(T), mean, reduced)
    shared = bd.DelayedGP(X, Y, Yvar, X_pending=P, covar_module=se())
    noise[20:] = Yvar.mean().item()
    _, reduced = dense("se", torch.cat([X, P]), torch.zeros(26), T, noise)
    assert_moments(shared.fantasy_posterior(T), mean, reduced)


def test_fantasised_answers_have_the_noise_of_pending_points():
    known = torch.ones_like(Y)
    model = bd.DelayedGP(X, Y, known, noise_var=NOISE, covar_module=se())
    fantasies = model.fantasize(T[:1], SobolQMCNormalSampler(torch.Size([2]), seed=0))
    expected = model.with_pending(T[:1]).fantasy_posterior(T[:1]).variance
    torch.testing.assert_close(fantasies.posterior(T[:1]).variance[0], expected)
    scaled = {"covar_module": se(), "outcome_transform": Standardize(1)}
    theirs = SingleTaskGP(X, Y, NOISE * known, mean_module=ZeroMean(), **copy.deepcopy(scaled))
    drawn = [
        model.fantasize(T[:1], SobolQMCNormalSampler(torch.Size([2]), seed=0)).posterior(T)
        for model in (bd.DelayedGP(X, Y, noise_var=NOISE, **scaled), theirs)
    ]
    torch.testing.assert_close(drawn[0].mean, drawn[1].mean)
    nothing = bd.DelayedGP(X[:0], Y[:0], noise_var=NOISE, covar_module=se())
    with pytest.raises(NotSupportedError, match="at least one answered point"):
        nothing.fantasize(T[:1], SobolQMCNormalSampler(torch.Size([2]), seed=0))


def test_a_fantasy_model_has_gradients_of_its_own_hyperparameters():
    def variance(step):
        model = make()
        with torch.no_grad():
            model.covar_module.raw_lengthscale += step
        model.posterior(T)  # must leave no cache without gradients
        with propagate_grads(True):
            fantasy = model.fantasy_model()
            return fantasy.posterior(T).variance.sum(), fantasy.covar_module.raw_lengthscale

    total, raw = variance(0.0)
    total.backward()
    quotient = (variance(1e-5)[0] - variance(-1e-5)[0]).item() / 2e-5
    assert raw.grad.item() == pytest.approx(quotient, rel=1e-6)


def test_small_noise_is_kept():
    model = make(noise_var=1e-9, pending=None)
    assert model.likelihood.noise.max().item() == 1e-9


@pytest.mark.parametrize("noise_var", [1e-2, 1e-8])
@pytest.mark.parametrize("name", ["se", "matern12"])
def test_conditioning_by_botorch_is_the_written_out_formula(name, noise_var):
    fresh, more = make(name, 8, None, noise_var), torch.tensor([[0.3], [-1.2]], dtype=torch.double)
    noise = torch.full_like(more, noise_var)
    after = fresh.condition_on_observations(P[:2], more, noise=noise)
    data = torch.cat([X[:8], P[:2]]), torch.cat([Y[:8], more])
    expected = dense(name, *data, T, noise_var)
    assert_moments(after.posterior(T), *expected, 1e-10)
    own = fresh.condition_on_observations(P[:2], more)
    assert_moments(own.posterior(T), *expected, 1e-10)
    assert_moments(
        fresh.with_answer(P[0], 0.3).with_answer(P[1], -1.2).posterior(T), *expected, 1e-10
    )
    sampler = SobolQMCNormalSampler(torch.Size([2]), seed=0)
    fantasies = make(name, 8, None, noise_var).fantasize(P[:2], sampler)
    assert fantasies.likelihood.noise.unique().tolist() == [noise_var]
    np.testing.assert_allclose(
        fantasies.posterior(T).variance[1].detach().flatten(), expected[1], atol=1e-10
    )


def test_fantasies_have_a_posterior_each_and_take_no_pending_points():
    sampler = SobolQMCNormalSampler(torch.Size([2]), seed=0)
    model = make()
    batch = model.fantasize(T[:1], sampler)
    for call in (
        lambda: batch.fantasy_posterior(T),
        lambda: batch.with_pending(P),
        lambda: batch.with_answer(P[0], 0.3),
        lambda: bd.MaxVariance(batch),
    ):
        with pytest.raises(NotSupportedError, match=r"\(2,\); include pending points first"):
            call()
    counted = model.fantasy_model().fantasize(T[:1], sampler)
    expected = make(pending=torch.cat([P, T[:1]])).fantasy_posterior(T).variance
    torch.testing.assert_close(counted.fantasy_posterior(T).variance[1], expected)
    at = T.reshape(9, 1, 1, 2)
    for acquisition in (bd.MaxVariance(counted), bd.FantasyUpperConfidenceBound(counted, 4.0)):
        assert acquisition(at).shape == (9, 2)
        with pytest.raises(InputError, match=r"broadcast with \(2,\).*unsqueeze"):
            acquisition(T.unsqueeze(1))
    torch.testing.assert_close(bd.MaxVariance(counted)(at)[:, 1], expected.sqrt().flatten())


def test_conditioning_a_fresh_model_keeps_what_transforms_have_learned():
    model = bd.DelayedGP(100 * X, Y, noise_var=NOISE, input_transform=Normalize(2))
    expected = model.input_transform.eval().bounds.clone()
    after = model.condition_on_observations(500 * P, Y[:6], noise=torch.full_like(Y[:6], NOISE))
    assert torch.equal(after.input_transform.bounds, expected)
    assert torch.equal(after.answered[0], torch.cat([100 * X, 500 * P]))


def test_transforms_when_asked_for():
    scaled_X, scaled_Y = 100 * X - 30, 50 + 1e3 * Y
    options = {
        "outcome_transform": Standardize(m=1),
        "input_transform": Normalize(d=2, bounds=torch.tensor([[-30.0, -30], [70, 70]]).double()),
    }
    model = bd.DelayedGP(
        scaled_X,
        scaled_Y,
        noise_var=NOISE * 1e6,
        X_pending=100 * P - 30,
        covar_module=se(),
        **options,
    )
    std, mean_Y = Y.std().item(), Y.mean().item()
    mean, variance = dense("se", X, (Y - mean_Y) / std, T, NOISE / std**2)
    expected = 50 + 1e3 * (mean_Y + std * mean), 1e6 * std**2 * variance
    assert_moments(model.posterior(100 * T - 30), *expected)
    assert (model.fantasy_posterior(100 * T - 30).variance < expected[1].max()).all()
    gap = model.fantasy_posterior(100 * T - 30).mean - model.posterior(100 * T - 30).mean
    assert gap.abs().max() < 1e-9
    # Updates keep the statistics that the transforms have learned.
    after = model.with_answer(100 * P[0] - 30, 50 + 1e3 * 0.5)
    value = torch.cat(
        [(Y - mean_Y) / std, torch.tensor([[(0.5 - mean_Y) / std]], dtype=torch.double)]
    )
    mean, variance = dense("se", torch.cat([X, P[:1]]), value, T, NOISE / std**2)
    expected = 50 + 1e3 * (mean_Y + std * mean), 1e6 * std**2 * variance
    assert_moments(after.posterior(100 * T - 30), *expected)


def test_hyperparameters_are_fitted_and_caches_follow():
    values = torch.sin(6 * X).sum(dim=1, keepdim=True)
    model = bd.DelayedGP(X, values, X_pending=P)
    before = model.posterior(T).mean
    model.train()
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    after = model.posterior(T).mean
    assert (after - before).abs().max() > 1e-4
    truth = torch.sin(6 * T).sum(dim=1, keepdim=True)
    assert (after - truth).abs().median() < 0.05
    assert (model.fantasy_posterior(P).variance < model.posterior(P).variance).all()
    answered = model.with_answer(P[0], 0.3)
    assert answered.likelihood.noise.item() == model.likelihood.noise.item()


def test_hyperparameters_changed_in_place_take_effect_at_once():
    model = make()
    model.posterior(T)
    model.fantasy_posterior(T)
    model.covar_module.lengthscale = torch.tensor(0.7, dtype=torch.double)
    expected = bd.DelayedGP(X, Y, noise_var=NOISE, X_pending=P, covar_module=se(0.7))
    for ours, theirs in (
        (model.posterior(T), expected.posterior(T)),
        (model.fantasy_posterior(T), expected.fantasy_posterior(T)),
    ):
        assert_moments(ours, theirs.mean.detach().flatten(), theirs.variance.detach().flatten())


def test_models_are_copied_without_their_caches():
    model = make()
    with propagate_grads(True):
        model.posterior(T)
    twin = copy.deepcopy(model)
    assert_moments(
        twin.fantasy_posterior(T),
        model.fantasy_posterior(T).mean.detach().flatten(),
        model.fantasy_posterior(T).variance.detach().flatten(),
    )


def test_caches_follow_every_way_of_changing_a_model():
    model = make(pending=None)
    model.posterior(T)
    model.set_train_data(targets=-Y.flatten())
    assert_moments(model.posterior(T), *dense("se", X, -Y, T, NOISE))
    other = make("matern12", pending=None)
    other.posterior(T)
    state = make("matern12", pending=None).state_dict()
    state["covar_module.raw_lengthscale"] += 1.0
    other.load_state_dict(state)
    assert (other.posterior(T).mean - make("matern12").posterior(T).mean).abs().max() > 1e-3
    single = make(pending=P)
    single.posterior(T)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", InputDataWarning)
        single = single.float()
        assert single.posterior(T.float()).mean.dtype == torch.float32
        assert single.X_pending.dtype == torch.float32
        assert single.fantasy_posterior(T.float()).mean.dtype == torch.float32


@pytest.mark.filterwarnings("ignore::botorch.exceptions.warnings.InputDataWarning")
@pytest.mark.parametrize("looked_at", [True, False])
def test_points_before_a_transform_move_with_the_model(looked_at):
    model = bd.DelayedGP(
        X, Y, noise_var=NOISE, X_pending=P, covar_module=se(), input_transform=Normalize(2)
    )
    expected = copy.deepcopy(model).fantasy_posterior(T)
    if looked_at:
        model.posterior(T)
    model = model.float()
    got = model.fantasy_posterior(T.float())
    assert model.answered[0].dtype == got.mean.dtype == torch.float32
    torch.testing.assert_close(got.variance.double(), expected.variance, rtol=0, atol=1e-3)
    assert model.train().train_inputs[0].dtype == torch.float32


def test_in_botorch_s_acquisition_functions():
    model = make()
    bounds = torch.tensor([[0.0, 0.0], [1.0, 1.0]]).double()
    options = {"bounds": bounds, "q": 1, "num_restarts": 2, "raw_samples": 16}
    options["options"] = {"seed": 1}
    sampler = SobolQMCNormalSampler(torch.Size([16]), seed=1)
    fantasies = SobolQMCNormalSampler(torch.Size([2]), seed=1)
    with torch.random.fork_rng():  # BoTorch draws from the global generator
        for acquisition in (
            UpperConfidenceBound(model, beta=6.0),
            UpperConfidenceBound(model.fantasy_model(), beta=6.0),
            qLogNoisyExpectedImprovement(model, X_baseline=X, X_pending=P, sampler=sampler),
        ):
            point, value = optimize_acqf(acquisition, **options)
            assert ((point >= 0) & (point <= 1)).all()
            assert torch.isfinite(value).all()
        look_ahead = qKnowledgeGradient(model, num_fantasies=2, sampler=fantasies)
        assert torch.isfinite(look_ahead(scattered(3).unsqueeze(0))).all()


def test_the_gradient_is_the_difference_quotient():
    model = make("matern52-ard").fantasy_model()
    x = T[:2].clone().requires_grad_()
    model.posterior(x).variance.sum().backward()
    step = 1e-6
    for i in range(2):
        for j in range(2):
            moved = T[:2].clone()
            moved[i, j] += step
            difference = model.posterior(moved).variance - model.posterior(T[:2]).variance
            assert difference.sum().item() / step == pytest.approx(x.grad[i, j].item(), abs=1e-4)


def test_single_precision_warns_once_and_works():
    with pytest.warns(InputDataWarning) as caught:
        model = bd.DelayedGP(X.float(), Y.float(), noise_var=1e-2, covar_module=se().float())
    assert len(caught) == 1
    assert caught[0].filename == __file__
    mean, _ = dense("se", X, Y, T, 1e-2)
    np.testing.assert_allclose(model.posterior(T.float()).mean.detach().flatten(), mean, atol=1e-3)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"train_X": X[:, 0]}, InputError, "n x d"),
        ({"train_X": torch.zeros(20, 2).long()}, InputTypeError, "int64"),
        ({"train_Y": Y.flatten()}, InputError, "unsqueeze"),
        ({"train_Y": Y[:5]}, InputError, "20 x 1"),
        ({"train_Y": Y * torch.nan}, InputError, "finite"),
        ({"train_Y": Y.float()}, InputTypeError, "float32"),
        ({"train_Yvar": -Y.abs()}, InputError, "above 0"),
        ({"noise_var": 0.0}, InputError, "above 0"),
        ({"X_pending": P[0]}, InputError, "n x d"),
        ({"X_pending": P[:, :1]}, InputError, "2 columns"),
        ({"X_pending": P * torch.inf}, InputError, "finite"),
        ({"covar_module": se().float()}, InputTypeError, "float32"),
        ({"mean_module": 5}, InputTypeError, "a GPyTorch mean or None, got int"),
        ({"outcome_transform": "a"}, InputTypeError, "outcome_transform must be a BoTorch transf"),
        ({"input_transform": 5}, InputTypeError, "input_transform must be a BoTorch transform"),
        (
            {"input_transform": Round(integer_indices=[0], transform_on_train=False)},
            NotSupportedError,
            "transform_on_train=True",
        ),
        (
            {"train_X": X[:0], "train_Y": Y[:0], "outcome_transform": Standardize(1)},
            InputError,
            "answered",
        ),
    ],
)
def test_bad_arguments(change, error, message):
    arguments = {"train_X": X, "train_Y": Y, "noise_var": NOISE, "covar_module": se()}
    arguments |= change
    data = [arguments.pop("train_X"), arguments.pop("train_Y")]
    with pytest.raises(error, match=message):
        bd.DelayedGP(*data, **arguments)


def test_bad_updates():
    model = make()
    for x, message in (
        (T[0], r"row for each point and 2 columns, got shape \(2,\)"),
        ([0.5], "list"),
    ):
        with pytest.raises(InputError, match=message):
            model.posterior(x)
    for x, y in (
        ([0.5, 0.5], 1.0),
        (None, 1.0),
        (T, 1.0),
        (T[0], torch.nan),
        (T[0], torch.zeros(2)),
        (T[0, :1], 1.0),
    ):
        with pytest.raises(InputError):
            model.with_answer(x, y)
    with pytest.raises(InputError):
        model.with_pending(T[:, :1])
    with pytest.raises(InputTypeError, match="list"):
        model.with_pending([0.5, 0.5])
    with pytest.raises(InputError, match="noise_var"):
        bd.DelayedGP(X[:0], Y[:0], Y[:0], X_pending=P).fantasy_posterior(T)
    with pytest.raises(NotSupportedError, match="at least one"):
        make(n=0).condition_on_observations(X[:1], Y[:1])


@pytest.mark.cuda
def test_on_cuda():
    model = bd.DelayedGP(
        X.cuda(), Y.cuda(), noise_var=NOISE, X_pending=P.cuda(), covar_module=se().cuda()
    )
    for ours, theirs in (
        (model.posterior(T.cuda()), make().posterior(T)),
        (
            model.with_answer(P[1].cuda(), 0.4).posterior(T.cuda()),
            make().with_answer(P[1], 0.4).posterior(T),
        ),
    ):
        torch.testing.assert_close(ours.mean.cpu(), theirs.mean, rtol=1e-8, atol=1e-8)


def test_models_that_follow_from_one_another_share_a_factor_and_never_change():
    points, values = scattered(700, seed=4), normal(700)
    kernel = se(0.2)
    start = bd.DelayedGP(
        points[:600], values[:600].unsqueeze(-1), noise_var=NOISE, covar_module=kernel
    ).eval()
    start.posterior(T)
    one = start.with_answer(points[600], values[600].item())
    before = one.posterior(T).mean
    other = start.with_answer(points[650], values[650].item())  # from the same start
    two = one.with_answer(points[601], values[601].item())
    first, second = one._cache["observed"][0], two._cache["observed"][0]
    assert first.first is second.first
    for model, rows in (
        (start, [*range(600)]),
        (one, [*range(601)]),
        (other, [*range(600), 650]),
        (two, [*range(602)]),
    ):
        anew = bd.DelayedGP(
            points[rows], values[rows].unsqueeze(-1), noise_var=NOISE, covar_module=kernel
        )
        torch.testing.assert_close(
            model.posterior(T).mean, anew.posterior(T).mean, atol=1e-9, rtol=0
        )
        torch.testing.assert_close(
            model.posterior(T).variance, anew.posterior(T).variance, atol=1e-9, rtol=0
        )
    assert torch.equal(before, one.posterior(T).mean)


@pytest.mark.parametrize("transform", [None, Normalize(2)])
@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"covar_module": RBFKernel(ard_num_dims=5).double()}, "covar_module .*2 columns"),
        ({"covar_module": torch}, "covar_module must be a gpytorch.kernels.Kernel, got module"),
        ({"mean_module": LinearMean(5)}, "mean_module .*2 columns"),
        ({"mean_module": ConstantMean(batch_shape=torch.Size([2]))}, "each of 20 points"),
    ],
)
def test_kernels_and_means_that_do_not_fit_are_refused_when_the_model_is_made(
    parts, message, transform
):
    with pytest.raises((InputError, InputTypeError), match=message):
        bd.DelayedGP(X, Y, noise_var=NOISE, input_transform=transform, **parts)


class Summed(InputTransform):
    """Sums of columns, with a buffer in single precision."""

    is_one_to_many = False
    transform_on_train = transform_on_eval = transform_on_fantasize = True

    def __init__(self):
        super().__init__()
        self.register_buffer("weights", torch.tensor([[1.0], [2.0]]))

    def transform(self, X):
        return X @ self.weights


class Flat(Mean):
    def forward(self, x):
        return x.new_ones(())


def test_parts_are_checked_as_they_will_be_used():
    kernel = RBFKernel()  # in single precision, and with dropout in training mode
    kernel.register_module("features", torch.nn.Dropout(0.5))
    parts = {"covar_module": kernel, "mean_module": Flat()}
    model = bd.DelayedGP(X, Y, noise_var=NOISE, input_transform=Summed(), **parts)
    assert model.posterior(X).mean.isfinite().all()
    assert bd.DelayedGP(X, Y, noise_var=NOISE, input_transform=Summed()).posterior(X)


def test_conditioning_on_what_is_no_answer_is_one_clear_error():
    X, Y = scattered(6), normal(6)[:, None]
    model = bd.DelayedGP(X[:4], Y[:4], noise_var=0.1)
    for points, values, message in [
        (X[4:], Y[4:, 0], r"Y must have shape batch x 2 x 1, .*got \(2,\)"),
        (X[4:], Y[3:], "Y must have shape"),
        (X[4:, :1], Y[4:], "X must have a row for each point and 2 columns"),
        (X[4:], Y[4:] * torch.nan, "X and Y must be finite"),
    ]:
        with pytest.raises(InputError, match=message):
            model.condition_on_observations(points, values)


def test_values_that_a_transform_cannot_take_are_refused():
    X, Y = scattered(5), torch.linspace(1.0, 2.0, 5).double()[:, None]
    with pytest.raises(InputError, match="outcome_transform gives values that are not finite"):
        bd.DelayedGP(X, -Y, noise_var=0.1, outcome_transform=Log())
    model = bd.DelayedGP(X, Y, noise_var=0.1, outcome_transform=Log())
    with pytest.raises(InputError, match="outcome_transform gives values that are not finite"):
        model.with_answer(X[0], -1.0)
