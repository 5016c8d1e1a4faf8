import json
import math
import warnings

import pytest
import torch
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.models.transforms import Normalize, Standardize
from botorch.models.utils.gpytorch_modules import get_covar_module_with_dim_scaled_prior
from cases import generator, normal, scattered, se
from gpytorch.constraints import GreaterThan
from gpytorch.kernels import MaternKernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.mlls import ExactMarginalLogLikelihood
from gpytorch.priors import LogNormalPrior
from scipy.stats import spearmanr

from botorch_delay import BoxDomain, BPEDelayOptimizer, FiniteDomain
from botorch_delay.exceptions import FitWarning, InputError, StorageError
from botorch_delay.gp import fitting as module
from botorch_delay.gp.fitting import fit_surrogate
from botorch_delay.gp.kernels import MaternSum, covariance, matern_parts
from botorch_delay.gp.surrogate import Hyperparameters, Learned, Surrogate, standardization
from botorch_delay.gp.warping import BASES, half_rank, spread_weights
from botorch_delay.history.answers import Answers

POINTS = 10 * scattered(60) - 4
X = POINTS[:25]
Y = 3.0 + 20 * torch.sin(1.5 * X[:, 0] + 0.5 * X[:, 1]) + 0.1 * normal(25)
NONE = torch.full((25,), torch.nan, dtype=torch.double)


def answers(X, y, noise_var=None):
    if noise_var is None:
        noise_var = torch.full_like(y, torch.nan, dtype=torch.double)
    return Answers(X, y, noise_var, torch.arange(len(y)))


def fit(X=X, y=Y, noise_var=None, **options):
    return fit_surrogate(FiniteDomain(POINTS), answers(X, y, noise_var), seed=0, **options)


def predict(surrogate, X, y, noise_var, at):
    return surrogate.posterior(surrogate.data(answers(X, y, noise_var))).at(at)


@pytest.fixture
def alike(monkeypatch):
    """Every answer has the same weight, crowded or not."""
    monkeypatch.setattr(module, "spread_weights", lambda X: X.new_ones(len(X)))


@pytest.mark.usefixtures("alike")
def test_it_is_botorch_s_model_with_a_matern_kernel_and_a_narrower_prior():
    ours = predict(fit(), X, Y, NONE, POINTS)
    bounds = torch.stack([POINTS.amin(dim=0), POINTS.amax(dim=0)])
    # BoTorch's prior of lengthscales, made narrower around the same mode.
    mode = get_covar_module_with_dim_scaled_prior(2).lengthscale_prior.mode.item()
    kernel = MaternKernel(
        nu=2.5,
        ard_num_dims=2,
        lengthscale_prior=LogNormalPrior(math.log(mode) + 0.6**2, 0.6),
        lengthscale_constraint=GreaterThan(2.5e-2, transform=None, initial_value=mode),
    )
    theirs = SingleTaskGP(
        X,
        Y.unsqueeze(-1),
        likelihood=GaussianLikelihood(
            noise_prior=LogNormalPrior(-8.0, 3.0),
            noise_constraint=GreaterThan(1e-7, transform=None, initial_value=math.exp(-8.0)),
        ).double(),
        covar_module=kernel.double(),
        input_transform=Normalize(2, bounds=bounds),
        outcome_transform=Standardize(1),
    )
    fit_gpytorch_mll(ExactMarginalLogLikelihood(theirs.likelihood, theirs))
    expected = theirs.posterior(POINTS)
    torch.testing.assert_close(ours.mean, expected.mean.flatten().detach(), rtol=1e-3, atol=1e-2)
    torch.testing.assert_close(
        ours.variance, expected.variance.flatten().detach(), rtol=1e-2, atol=1e-2
    )


def test_the_scale_is_that_of_places_and_not_of_answers():
    """However many answers crowd at one place, they weigh as one."""
    crowd = X[Y.argsort()[12]] + 1e-3 * normal(80).reshape(40, 2)
    middle = Y.median().expand(40)
    few, many = (fit(torch.cat([X, crowd[:n]]), torch.cat([Y, middle[:n]])) for n in (5, 40))
    unweighted = [torch.cat([Y, middle[:n]]).std().item() for n in (5, 40)]
    assert unweighted[1] < 0.75 * unweighted[0]
    assert many.scale == pytest.approx(few.scale, rel=0.12)


def test_a_fixed_surrogate_changes_nothing():
    fixed = Surrogate(se(), 0.01, POINTS)
    assert fixed.inputs(X) is X
    evidence = fixed.data(answers(X, Y))
    assert torch.equal(evidence.y, Y)
    assert fixed.hyperparameters()["covar_module"] == {"lengthscale": pytest.approx(0.4)}


def test_known_noise_replaces_the_surrogate_s_own():
    surrogate = fit()
    noise = NONE.clone()
    noise[0] = 4.0
    evidence = surrogate.data(answers(X, Y, noise))
    assert evidence.noise_var[0] == pytest.approx(4.0 / surrogate.scale**2)
    assert evidence.noise_var[1] == surrogate.noise_var
    known = fit(noise_var=torch.full_like(NONE, 0.01))
    assert known.noise_var == pytest.approx(fit(y=Y[:0], X=X[:0]).noise_var)


def test_fits_are_repeatable_and_records_exact():
    first, second = fit(), fit()
    assert first.hyperparameters() == second.hyperparameters()
    record = json.loads(json.dumps(first.describe()))
    rebuilt = Surrogate.rebuild(record, FiniteDomain(POINTS))
    a, b = predict(first, X, Y, NONE, POINTS), predict(rebuilt, X, Y, NONE, POINTS)
    assert torch.equal(a.mean, b.mean)
    assert torch.equal(a.variance, b.variance)
    kernels = [None, [], {}, {"lengthscale": [1.0]}, {"lengthscale": [1.0, -1.0]}]
    kernels += [{"lengthscale": [1.0, value]} for value in ("x", math.nan, 1e999, 10**400, [1.0])]
    kernels += [{"lengthscale": [1.0, 1.0], "share": share} for share in (-0.1, 1.0, "x", None)]
    changes = [{"scale": "x"}, *({"covar_module": kernel} for kernel in kernels)]
    for broken in ({}, *(record | change for change in changes)):
        with pytest.raises(StorageError):
            Surrogate.rebuild(broken, FiniteDomain(POINTS))


@pytest.mark.parametrize("count", [0, 1, 2, 3])
def test_few_answers(count):
    surrogate = fit(X=X[:count], y=Y[:count], noise_var=NONE[:count])
    got = predict(surrogate, X[:count], Y[:count], NONE[:count], POINTS)
    assert torch.isfinite(got.mean).all()
    assert (got.variance >= 0).all()


@pytest.mark.parametrize(
    "values",
    [
        torch.full((25,), 7.0).double(),
        torch.zeros(25).double(),
        1e-9 * Y,
        1e9 * Y,
        1e9 + 1e-3 * Y,
        torch.cat([Y[:24], torch.tensor([1e6]).double()]),
    ],
    ids=["constant", "zero", "tiny", "huge", "offset", "outlier"],
)
def test_odd_values(values):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)
        surrogate = fit(y=values)
    got = predict(surrogate, X, values, NONE, POINTS)
    assert torch.isfinite(got.mean).all()
    assert torch.isfinite(got.variance).all()
    spread = (values.max() - values.min()).clamp_min(1e-300)
    assert (got.mean >= values.min() - 3 * spread).all()
    assert (got.mean <= values.max() + 3 * spread).all()


def test_logarithms_are_what_the_kernel_sees():
    exponent = POINTS / 10
    plain, logs = FiniteDomain(exponent), FiniteDomain(exponent.exp(), log_dims=[0, 1])
    one = fit_surrogate(plain, answers(exponent[:25], Y), seed=0)
    two = fit_surrogate(logs, answers(exponent[:25].exp(), Y), seed=0)
    torch.testing.assert_close(two.inputs(logs.points), one.inputs(plain.points))
    a = predict(one, exponent[:25], Y, NONE, exponent)
    b = predict(two, exponent[:25].exp(), Y, NONE, exponent.exp())
    torch.testing.assert_close(a.mean, b.mean, rtol=1e-4, atol=1e-4)


def test_a_constant_column_is_no_trouble():
    points = torch.cat([scattered(30, 1), torch.ones(30, 1).double()], dim=1)
    surrogate = fit_surrogate(FiniteDomain(points), answers(points, normal(30)), seed=0)
    assert torch.isfinite(surrogate.inputs(points)).all()


def test_fits_touch_no_global_generator(monkeypatch):
    def touched(*_):
        raise AssertionError("a global generator was seeded")

    monkeypatch.setattr(torch, "manual_seed", touched)
    monkeypatch.setattr(torch.random, "manual_seed", touched)
    monkeypatch.setattr(torch, "randn", guarded(torch.randn))
    fit()


def guarded(randn):
    def draw(*sizes, generator=None, **options):
        assert generator is not None
        return randn(*sizes, generator=generator, **options)

    return draw


@pytest.mark.usefixtures("alike")
def test_a_fit_that_fails_keeps_the_last_good_one(monkeypatch):
    previous = fit()

    monkeypatch.setattr(module, "fit", lambda *_: None)
    with pytest.warns(FitWarning, match="previous ones stay"):
        assert fit(previous=previous) is previous
    with pytest.warns(FitWarning, match="modes"):
        fallback = fit()
    assert fallback.scale == pytest.approx(Y.std().item())
    assert torch.isfinite(covariance(fallback.covar_module, X, X)).all()


@pytest.mark.usefixtures("alike")
def test_a_fit_to_many_answers_takes_a_subset(monkeypatch):
    monkeypatch.setattr(module, "MANY_ANSWERS", 40)
    domain = FiniteDomain(scattered(60))
    y = domain.points[:, 0].sin()
    many = fit_surrogate(domain, answers(domain.points, y), seed=1)
    again = fit_surrogate(domain, answers(domain.points, y), seed=1)
    other = fit_surrogate(domain, answers(domain.points, y), seed=2)
    assert many.hyperparameters() == again.hyperparameters()
    assert many.hyperparameters() != other.hyperparameters()
    # Values are scaled by the standard deviation of all of them.
    assert many.scale == pytest.approx(y.std().item())
    monkeypatch.setattr(module, "FEW_ITERATIONS", 1)
    cut_short = fit_surrogate(domain, answers(domain.points, y), seed=1)
    assert cut_short.hyperparameters() != many.hyperparameters()


def test_the_better_start_of_a_fit_to_many_is_found_with_half_of_them(monkeypatch):
    fits, search = [], module.fit

    def counted(objective, starts, *limits):
        fits.append((len(objective._sides), len(starts)))
        return search(objective, starts, *limits)

    monkeypatch.setattr(module, "fit", counted)
    whole = fit()
    monkeypatch.setattr(module, "MANY_ANSWERS", 24)
    again = fit()
    assert fits == [(25, 2), (25, 1), (12, 2), (24, 1), (24, 1)]  # each ends with main effects
    assert again.noise_var == pytest.approx(whole.noise_var, rel=0.5)


def test_categories_have_no_order():
    points = torch.cartesian_prod(
        torch.linspace(0, 1, 5, dtype=torch.double), torch.arange(4, dtype=torch.double)
    )
    relabelled = points.clone()
    relabelled[:, 1] = torch.tensor([2.0, 0.0, 3.0, 1.0])[points[:, 1].long()]
    y = points[:, 0] + (points[:, 1] == 2).double()
    one = fit_surrogate(FiniteDomain(points, cat_dims=[1]), answers(points, y), seed=0)
    domain = FiniteDomain(relabelled, cat_dims=[1])
    other = fit_surrogate(domain, answers(relabelled, y), seed=0)
    means = [
        s.posterior(s.data(answers(X[:15], y[:15]))).at(X).mean
        for s, X in ((one, points), (other, relabelled))
    ]
    torch.testing.assert_close(*means, atol=2e-3, rtol=2e-3)


def test_a_warm_start_is_where_learning_begins():
    learned = fit()
    scales = learned.covar_module.lengthscale.flatten().tolist()
    begin = Hyperparameters(scales, learned.noise_var)
    nothing = fit(X[:0], Y[:0], [], warm_start=begin)
    assert nothing.covar_module.lengthscale.flatten().tolist() == pytest.approx(scales)
    assert nothing.noise_var == pytest.approx(max(learned.noise_var, 1e-7), rel=0.02)
    # Few answers hardly move a warm start; without one the usual priors apply.
    warm = fit(X[:4], Y[:4], NONE[:4], warm_start=begin)
    cold = fit(X[:4], Y[:4], NONE[:4])

    def distance(surrogate):
        ratio = surrogate.covar_module.lengthscale / learned.covar_module.lengthscale
        return ratio.log().abs().max().item()

    assert distance(warm) < 0.25 < distance(cold)
    # Many answers outweigh a poor start.
    far = Hyperparameters([4.0 * s for s in scales], 4.0 * learned.noise_var)
    assert distance(fit(warm_start=far)) < 0.7
    assert distance(fit(X[:0], Y[:0], [], warm_start=far)) == pytest.approx(math.log(4.0))


def decades(X):
    """Values between -1 and -2e6, to be maximised, and exact."""
    return -torch.exp(1.5 * torch.cdist(X, POINTS[:1]).squeeze(1))


def test_values_that_span_decades_are_told_apart_after_warping():
    best = decades(POINTS).argsort(descending=True)[:20]
    ranks = {}
    for warp in ("half-rank", "yeo-johnson", "none"):
        mean = predict(fit(y=decades(X), warp=warp), X, decades(X), NONE, POINTS[best]).mean
        ranks[warp] = spearmanr(mean, decades(POINTS[best])).statistic
    assert ranks["half-rank"] > 0.8 > ranks["yeo-johnson"] > 0.6 > 0.2 > ranks["none"]


def chosen(y, noise_var=None, **options):
    """The base of the half-rank warping that a fit to y at X chooses, or "logarithms"."""
    weight = spread_weights(FiniteDomain(POINTS).encoding(X))
    warping = fit(y=y, noise_var=noise_var, warp="half-rank", **options).warping
    if warping == half_rank(y, weight, logarithms=True):
        return "logarithms"
    return next(base for base in BASES if half_rank(y, weight, base) == warping)


def test_the_base_that_predicts_the_better_half_is_taken():
    smooth = torch.sin(X / 2).sum(dim=1)
    assert chosen(smooth) == BASES[0]
    for options in ({}, {"exact": True}):
        assert chosen(-torch.exp(4.0 * smooth), **options) > BASES[0]
        assert chosen(7.0 - torch.exp(4.0 * smooth), **options) > BASES[0]


def test_noise_is_not_stretched():
    steep = torch.exp(4.0 * torch.sin(X / 2).sum(dim=1))
    assert chosen(7.0 - steep * torch.exp(0.5 * normal(len(X)))) == BASES[0]
    known = torch.full((len(X),), 0.01 * steep.var().item(), dtype=torch.double)
    assert chosen(-steep, known) == BASES[0]


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_logarithms_are_taken_where_noise_is_relative(sign):
    steep = torch.exp(4.0 * torch.sin(X / 2).sum(dim=1))
    noise = 0.5 * normal(len(X))
    assert chosen(sign * steep * torch.exp(noise)) == "logarithms"
    # The same noise of every answer, whatever its size, is no reason.
    assert chosen(sign * (2.0 + torch.sin(X / 2).sum(dim=1) + 0.1 * noise)) == BASES[0]


def test_logarithms_need_a_larger_gain_if_evaluations_seem_exact(monkeypatch):
    steep = torch.exp(4.0 * torch.sin(X / 2).sum(dim=1))
    noisy = steep * torch.exp(0.5 * normal(len(X)))
    for gain, exact in ((-1e9, "logarithms"), (1e9, BASES[-1])):
        monkeypatch.setattr(module, "LEAST_GAIN_IF_EXACT", gain)
        assert chosen(-steep) == exact
        assert chosen(-noisy) == "logarithms"


def test_a_warped_surrogate_comes_back_from_its_record():
    y = decades(X)
    fitted = fit(y=y, warp="half-rank")
    again = Surrogate.rebuild(json.loads(json.dumps(fitted.describe())), FiniteDomain(POINTS))
    assert again.warping == fitted.warping
    first, second = (predict(one, X, y, NONE, POINTS).mean for one in (fitted, again))
    assert torch.equal(first, second)
    assert fitted.unwarped(fitted.warped(-7.0)) == pytest.approx(-7.0)
    with pytest.raises(StorageError, match="warping"):
        Surrogate.rebuild(
            fitted.describe() | {"warping": {"values": [1.0, 0.0], "warped": [0.0, 1.0]}},
            FiniteDomain(X),
        )


def test_one_answer_has_the_units_of_all():
    y, noise = decades(X), torch.full_like(NONE, 0.5)
    fitted = fit(y=y, warp="half-rank")
    data = fitted.data(answers(X, y, noise))
    standard = [fitted.standard(value, 0.5) for value in y.tolist()]
    assert data.y.tolist() == pytest.approx([value for value, _ in standard])
    assert data.noise_var.tolist() == pytest.approx([variance for _, variance in standard])


def test_exact_values_are_fitted_exactly_and_noisy_ones_are_not():
    smooth = torch.sin(X / 2).sum(dim=1)
    assert fit(y=smooth).noise_var < 1e-5
    assert 0.01 < fit(y=smooth + 0.3 * smooth.std() * normal(25)).noise_var < 0.2


@pytest.mark.parametrize("warp", ["log", None, 3])
def test_a_warping_that_there_is_not_is_refused(warp):
    with pytest.raises(InputError, match="half-rank"):
        Learned(warp=warp)


@pytest.mark.parametrize(("count", "noise"), [(200, 0.3), (400, 0.3)])
def test_noise_as_large_as_the_signal_is_not_taken_for_a_function(count, noise):
    """A function that varies from point to point would explain such answers without noise."""
    X = torch.rand(count, 3, generator=generator(0), dtype=torch.double)
    drawn = torch.randn(count, generator=generator(1), dtype=torch.double)
    y = noise * drawn - (X - 0.4).square().sum(dim=1)
    fitted = fit_surrogate(FiniteDomain(X), answers(X, y), seed=0)
    assert fitted.noise_var > 0.05
    assert fitted.covar_module.lengthscale.min() > 0.2


def test_an_option_that_makes_no_difference_has_a_long_lengthscale():
    """Longer than the prior allows for a number that makes no difference."""
    X = torch.cat([scattered(60, 2), torch.arange(60).remainder(3).double().unsqueeze(1)], dim=1)
    domain = FiniteDomain(X, cat_dims=[2])
    opt = BPEDelayOptimizer(domain, 100, seed=0)
    opt.attach(X, torch.sin(6.0 * X[:, 0]))
    first, second, *options = opt.hyperparameters.lengthscale
    assert first < second < 10.0 < min(options)


def test_tiny_values_are_standardised():
    y = -1e-165 * torch.linspace(-0.3, 0.7, 9, dtype=torch.double).square()
    offset, scale = standardization(y, torch.ones_like(y), y)
    assert offset == pytest.approx(y.mean().item())
    assert scale == pytest.approx((y * 1e165).std().item() * 1e-165)


def of_columns(X):
    return (6.0 * X).sin().sum(dim=1)


def of_a_sum(X):
    return (4.0 * X.sum(dim=1)).sin()


@pytest.mark.parametrize(("function", "gains"), [(of_columns, True), (of_a_sum, False)])
def test_main_effects_are_learned_where_they_are_likelier(function, gains, monkeypatch):
    unit, X = FiniteDomain(scattered(200, 4)), scattered(200, 4)[:40]
    y, noise = function(X), torch.full((40,), torch.nan, dtype=torch.double)
    told = Answers(X, y, noise, torch.arange(40))
    learned = fit_surrogate(unit, told, seed=0)
    assert isinstance(learned.covar_module, MaternSum) == gains
    rebuilt = Surrogate.rebuild(json.loads(json.dumps(learned.describe())), unit)
    with pytest.raises(StorageError, match="not 43 lengthscales"):
        Surrogate.rebuild(learned.describe(), FiniteDomain(X, cat_dims=[3]))
    monkeypatch.setattr(module, "MIN_FOR_MAIN_EFFECTS", 41)
    plain = fit_surrogate(unit, told, seed=0)
    assert isinstance(plain.covar_module, MaternKernel)
    means = [each.posterior(each.data(told)).at(unit.points).mean for each in (learned, plain)]
    errors = [(mean - function(unit.points))[40:].square().mean().item() for mean in means]
    assert errors[0] < 0.5 * errors[1] if gains else errors[0] == errors[1]
    assert torch.equal(rebuilt.posterior(rebuilt.data(told)).at(unit.points).mean, means[0])


def test_with_noise_main_effects_may_be_a_little_less_likely(monkeypatch):
    X = scattered(40, 4)
    y = of_a_sum(X) + 0.3 * normal(40)
    box = BoxDomain(torch.tensor([[0.0] * 4, [1.0] * 4], dtype=torch.double))
    noisy, exact = answers(X, y, torch.full_like(y, 0.09)), answers(X, of_a_sum(X))

    def has_main_effects(domain, told, most_loss):
        monkeypatch.setattr(module, "MOST_LOSS_WITH_NOISE", most_loss)
        return isinstance(fit_surrogate(domain, told, seed=0).covar_module, MaternSum)

    assert not has_main_effects(box, noisy, -50.0)
    assert has_main_effects(box, noisy, 50.0)
    assert not has_main_effects(box, exact, 50.0)
    assert not has_main_effects(FiniteDomain(X), noisy, 50.0)


def test_one_parameter_alone_has_no_main_effect(monkeypatch):
    monkeypatch.setattr(module, "ODDS_PRIOR", "no prior")  # a fit of one would fail
    X = scattered(30, 1)
    options = torch.arange(4, dtype=torch.double).repeat(8).unsqueeze(1)
    for points, cats in ((X, []), (options, [0])):
        domain, y = FiniteDomain(points.unique(dim=0), cat_dims=cats), of_columns(points)
        told = Answers(points, y, torch.full_like(y, torch.nan), torch.arange(len(y)))
        assert isinstance(fit_surrogate(domain, told, seed=0).covar_module, MaternKernel)


def test_categories_alone_have_main_effects():
    points = torch.cartesian_prod(*3 * [torch.arange(4, dtype=torch.double)])
    domain = FiniteDomain(points, cat_dims=[0, 1, 2])
    y = (points == 1.0).double() @ torch.tensor([1.0, 2.0, 3.0], dtype=torch.double)
    rows = torch.randperm(64, generator=generator(0))[:24]
    noise = torch.full((24,), torch.nan, dtype=torch.double)
    told = Answers(points[rows], y[rows], noise, torch.arange(24))
    fitted = fit_surrogate(domain, told, seed=0)
    assert len(matern_parts(fitted.covar_module)) == 4
    mean = fitted.posterior(fitted.data(told)).at(points).mean
    assert (mean - y).abs().max() < 0.3


def test_options_beyond_eight_do_not_lengthen_the_prior():
    modes = []
    for count in (4, 8, 30):
        bounds = torch.tensor([[0.0, 0.0], [1.0, count - 1.0]], dtype=torch.double)
        domain = BoxDomain(bounds, cat_dims={1: list(range(count))})
        lengthscale, _ = module.priors(domain, None)
        assert len(lengthscale.mode) == 1 + count
        modes.append(lengthscale.mode[0])
    assert modes[0] < modes[1] == modes[2]
