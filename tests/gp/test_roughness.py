"""Noise and roughness: what repeats tell apart, and what follows for recommendations."""

import math
from dataclasses import replace

import pytest
import torch
from cases import generator, scattered
from gpytorch.kernels import MaternKernel
from torch.distributions import MultivariateNormal

import botorch_delay as bd
from botorch_delay.gp import roughness
from botorch_delay.gp.kernels import covariance
from botorch_delay.gp.posterior import Data
from botorch_delay.gp.roughness import EVIDENCE, SHARES, with_roughness
from botorch_delay.gp.surrogate import Surrogate
from botorch_delay.history.answers import Answers, same_points
from botorch_delay.optimizers import reading
from botorch_delay.optimizers.recommendation import COUNTED

SQUARE = bd.BoxDomain(torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.double))


def learned(noise_var=0.3):
    kernel = MaternKernel(nu=2.5, ard_num_dims=2).double()
    kernel.lengthscale = torch.tensor([0.3, 0.6])
    like = torch.zeros(0, dtype=torch.double)
    return Surrogate(
        kernel.requires_grad_(False), noise_var, like, offset=1.0, scale=2.0, learned=True
    )


def drawn(seed, rough, noise, known=False):
    """Answers at 14 points, four of them with two to four answers."""
    X = scattered(14, 2, seed=seed)
    X = torch.cat([X, X[:4], X[:2], X[:1]])
    f = covariance(learned().covar_module, X, X) + 1e-9 * torch.eye(len(X))
    same = same_points(X)
    f = f + rough * (same.unsqueeze(0) == same.unsqueeze(1)).double()
    g = generator(seed)
    f = torch.linalg.cholesky(f + 1e-9 * torch.eye(len(X))) @ torch.randn(
        len(X), dtype=torch.double, generator=g
    )
    y = 1.0 + 2.0 * (f + noise**0.5 * torch.randn(len(X), dtype=torch.double, generator=g))
    told = torch.full_like(y, math.nan)
    if known:
        told[::5] = 4.0 * noise
    return Answers(X, y, told, same)


def log_likelihood(answers, share, noise_var=0.3):
    """Of all single answers, from the dense covariance of the model."""
    surrogate = learned(noise_var)
    same = (answers.group.unsqueeze(0) == answers.group.unsqueeze(1)).double()
    K = covariance(surrogate.covar_module, answers.X, answers.X)
    K = K + (1.0 - share) * noise_var * same
    K = K + torch.where(answers.noise_var.isnan(), share * noise_var, answers.noise_var / 4).diag()
    y = (answers.y - 1.0) / 2.0
    return float(MultivariateNormal(torch.zeros_like(y), K).log_prob(y))


@pytest.mark.parametrize("known", [False, True], ids=["fitted", "some known"])
def test_the_share_of_noise_is_the_likeliest_if_the_evidence_is_strong(known):
    split = 0
    for seed in range(40):
        answers = drawn(seed, *[(0.3, 1e-3), (0.2, 0.1), (0.0, 0.3)][seed % 3], known)
        base = log_likelihood(answers, 1.0)
        gains = {share: log_likelihood(answers, share) - base for share in SHARES}
        best = max(gains, key=gains.get)
        found = with_roughness(learned(), answers)
        if gains[best] > EVIDENCE:
            split += 1
            assert found.noise_var == pytest.approx(best * 0.3)
            assert found.roughness == pytest.approx((1.0 - best) * 0.3)
        else:
            assert (found.noise_var, found.roughness) == (0.3, 0.0)
    assert 10 <= split <= 25  # both outcomes are met


def test_the_posterior_of_a_rough_function_equals_the_dense_one():
    answers = drawn(0, 0.3, 1e-3)
    surrogate = replace(learned(), noise_var=0.03, roughness=0.27)
    at = torch.cat([answers.X[:3], scattered(4, 2, seed=9)])
    got = surrogate.posterior(surrogate.data(answers)).at(at)

    def prior(A, B):
        same = (A.unsqueeze(1) == B.unsqueeze(0)).all(dim=-1).double()
        return covariance(surrogate.covar_module, A, B) + 0.27 * same

    K = prior(answers.X, answers.X) + 0.03 * torch.eye(len(answers.X), dtype=torch.double)
    cross = prior(answers.X, at)
    mean = 1.0 + 2.0 * (cross.mT @ torch.linalg.solve(K, (answers.y - 1.0) / 2.0))
    variance = 4.0 * (prior(at, at) - cross.mT @ torch.linalg.solve(K, cross)).diagonal()
    torch.testing.assert_close(got.mean, mean, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(got.variance, variance, rtol=1e-11, atol=1e-11)


def test_where_nothing_can_be_told_apart_the_surrogate_is_the_same():
    answers, model = drawn(0, 0.3, 1e-4), learned()
    assert with_roughness(model, answers).roughness > 0.0
    given = replace(model, learned=False)
    exact = replace(model, noise_var=1e-7)
    unscaled = replace(model, scaled=False)
    for surrogate in (given, exact, unscaled):
        assert with_roughness(surrogate, answers) is surrogate
    told = replace(answers, noise_var=torch.full_like(answers.y, 0.1))
    assert with_roughness(model, told) is model
    once = answers.at(torch.arange(14))
    assert with_roughness(model, once) is model
    none = answers.at(torch.arange(0))
    assert with_roughness(model, none) is model


def waves(x):
    """A smooth hill with waves far shorter than the distance between points."""
    hill = -(x - 0.4).square().sum(-1)
    return hill + 0.04 * torch.sin(1e5 * (x[..., 0] + 1.7 * x[..., 1]))


def told(noise_std, value=waves, seed=0):
    opt = bd.BPEDelayOptimizer(SQUARE, 60)
    X = scattered(60, 2, seed=seed)
    noise = noise_std * torch.randn(63, dtype=torch.double, generator=generator(seed))
    for x, e in zip(torch.cat([X, X[value(X).topk(3).indices]]), noise, strict=True):
        opt.attach(x, float(value(x) + e))
    return opt, X


def test_answers_that_repeat_are_not_noise():
    opt, X = told(0.002)
    best = opt.recommend()
    assert torch.equal(best.x, X[waves(X).argmax()])
    assert best.count == 2
    assert 0.0005 < best.noise_std < 0.005
    truth = float(waves(best.x))
    assert best.lower < truth < best.upper
    assert best.upper - best.lower < 0.05
    assert COUNTED in best.interval
    untried = opt.predict(scattered(50, 2, seed=1))
    inside = (untried.lower < waves(scattered(50, 2, seed=1))) & (
        waves(scattered(50, 2, seed=1)) < untried.upper
    )
    assert inside.double().mean() >= 0.85


def test_noise_stays_noise():
    def hill(x):
        return -(x - 0.4).square().sum(-1)

    opt, _ = told(0.2, hill)
    surrogate = opt._fitting.upcoming()
    assert opt._judged("test").surrogate is surrogate
    assert opt.recommend().noise_std == pytest.approx(0.2, rel=0.5)


def test_with_a_bound_the_fitted_kernel_is_taken_as_it_is():
    bounds = bd.RKHSConfidence(3.0, 0.1)
    opt = bd.BPEDelayOptimizer(SQUARE, 60, confidence=bounds)
    reference, _ = told(0.002)
    assert reference._judged("test").surrogate.roughness > 0.0
    for result in reference._ledger.results():
        opt.attach(result.x, result.value)
    assert opt._judged("test").surrogate.roughness == 0.0


def test_averages_keep_their_own_noise_and_the_rough_part_is_added_for_the_smooth_one():
    opt, _ = told(0.002)
    judged = opt._judged("test")
    data, smooth = judged.data, judged.smooth.data
    torch.testing.assert_close(smooth.noise_var, data.noise_var + judged.surrogate.roughness)
    assert isinstance(data, Data)
    at = torch.cat([data.X[:2], scattered(2, 2, seed=5)])
    found, _ = judged.intervals(at, lambda X, moments: 2.0 * moments.deviation)
    # At an answered point only a share of g is left in f: the rest comes from its answers.
    noise = data.noise_var[:2]
    share = torch.cat([noise / (noise + judged.surrogate.roughness), torch.ones(2)]).square()
    smooth = judged.smooth.at(at).variance
    expected = judged.posterior.at(at).variance + share * 3.0 * smooth
    torch.testing.assert_close(found.variance, expected)
    rough = judged.surrogate.roughness * judged.surrogate.scale**2
    whole = share * smooth + torch.cat(
        [rough * noise / (noise + judged.surrogate.roughness), rough * torch.ones(2)]
    )
    torch.testing.assert_close(judged.posterior.at(at).variance, whole)


@pytest.mark.filterwarnings("ignore:The points have dtype torch.float32")
def test_single_precision_under_a_double_default():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        box = bd.BoxDomain(torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float32))
        opt = bd.BPEDelayOptimizer(box, 60)
        for result in told(0.002)[0]._ledger.results():
            opt.attach(result.x.float(), result.value)
        assert opt._judged("test").surrogate.roughness > 0.0
        assert opt.recommend().count == 2
    finally:
        torch.set_default_dtype(before)


def test_a_space_is_split_as_its_encoded_box():
    space = bd.Space({"a": bd.Float(1e-3, 1.0, log=True), "b": bd.Float(0.0, 4.0)})
    opt, reference = bd.BPEDelayOptimizer(space, 60), told(0.002)[0]
    for result in reference._ledger.results():
        a, b = result.x.tolist()
        opt.attach({"a": 10.0 ** (3.0 * a - 3.0), "b": 4.0 * b}, result.value)
    split = [study._judged("test").surrogate.roughness for study in (opt, reference)]
    assert split[0] == pytest.approx(split[1], rel=1e-6)
    assert split[0] > 0.0


def test_lists_and_a_single_repeat_are_not_split():
    reference, X = told(0.002)
    opt = bd.BPEDelayOptimizer(bd.FiniteDomain(X), 60)
    box = bd.BPEDelayOptimizer(SQUARE, 60)
    results = reference._ledger.results()
    for number, result in enumerate(results):
        opt.attach(result.x, result.value)
        if number < 60:
            box.attach(result.x, result.value)
    box.attach(results[7].x, results[7].value)  # the same result twice
    assert opt._judged("test").surrogate.roughness == 0.0
    assert box._judged("test").surrogate.roughness == 0.0


def test_too_many_points_are_not_split(monkeypatch):
    answers = drawn(0, 0.3, 1e-4)
    monkeypatch.setattr(roughness, "MOST_POINTS", 13)
    assert with_roughness(learned(), answers).roughness == 0.0


def test_noise_that_is_left_is_more_than_that_of_exact_evaluations():
    found = with_roughness(learned(5e-4), drawn(3, 5e-4, 1e-10))
    assert found.roughness > 0.0
    assert not found.is_exact


def test_certificates_take_the_fitted_noise_as_right(monkeypatch):
    opt, _ = told(0.002)
    assert opt._judged("test").surrogate.roughness > 0.0
    given = []

    def plausible(surrogate, data, *rest):
        given.append((surrogate, data))
        return original(surrogate, data, *rest)

    original = reading.plausible
    monkeypatch.setattr(reading, "plausible", plausible)
    assert opt.certificate.gap > 0.0
    fitted, data = given[0]
    assert fitted is opt._surrogate
    torch.testing.assert_close(data.noise_var.max(), torch.tensor(fitted.noise_var).double())
