import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from cases import line

import botorch_delay as bd
from botorch_delay.gp import marginal
from botorch_delay.gp.fitting import fit_surrogate, priors
from botorch_delay.gp.kernels import covariance
from botorch_delay.gp.marginal import FACTORS, NOISES, marginal_deviation
from botorch_delay.gp.surrogate import Hyperparameters
from botorch_delay.history.answers import Answers, same_points
from botorch_delay.optimizers import reading
from botorch_delay.optimizers.recommendation import COUNTED

BOX = bd.BoxDomain(torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.double))


def answers(n, noise_std=0.3, known=None, seed=0):
    g = torch.Generator().manual_seed(seed)
    X = torch.rand(n, 2, dtype=torch.double, generator=g)
    X[1] = X[0]  # a repeat
    y = (3.0 * X[:, 0]).sin() + noise_std * torch.randn(n, dtype=torch.double, generator=g)
    noise = torch.full_like(y, math.nan if known is None else known)
    return Answers(X, y, noise, same_points(X))


def by_hand(surrogate, data, X, middle, learns_noise, warm_start):
    """The reference: one Cholesky factor for each pair of hyperparameters."""
    scales, noises = priors(BOX, warm_start)
    y = (surrogate.warping(data.y) - surrogate.offset) / surrogate.scale
    middle = (middle - surrogate.offset) / surrogate.scale
    inputs, places = surrogate.inputs(data.X), surrogate.inputs(X)
    lengths = surrogate.covar_module.lengthscale.flatten().numpy()
    known = data.noise_var * surrogate.warping.slope(data.y).square() / surrogate.scale**2
    ones, logs, squares = torch.ones_like(y), [], []
    for factor, noise in itertools.product(FACTORS, NOISES if learns_noise else [None]):
        K = covariance(surrogate.covar_module, inputs / factor, inputs / factor)
        K = K + torch.diag(known.nan_to_num(noise) if learns_noise else known)
        k = covariance(surrogate.covar_module, inputs / factor, places / factor)
        inverse = torch.linalg.inv(K)
        mean = ones @ inverse @ y / (ones @ inverse @ ones)
        rest = y - mean
        log = -0.5 * (rest @ inverse @ rest + torch.logdet(K))
        log -= 0.5 * (((np.log(factor * lengths) - scales.loc) / scales.scale) ** 2).sum()
        if learns_noise and warm_start:
            log -= 0.5 * float(((np.log(noise) - noises.loc[0]) / noises.scale) ** 2)
        variance = 1.0 - (k * (inverse @ k)).sum(dim=0)
        variance += (1.0 - ones @ inverse @ k) ** 2 / (ones @ inverse @ ones)
        logs.append(log)
        squares.append((mean + k.mT @ inverse @ rest - middle) ** 2 + variance)
    share = torch.stack(logs).softmax(dim=0)
    return surrogate.scale * (share @ torch.stack(squares)).sqrt()


def found(surrogate, data, X, **options):
    posterior = surrogate.posterior(surrogate.data(data)).at(X)
    return posterior, marginal_deviation(surrogate, BOX, data, X, posterior, **options)


@pytest.mark.parametrize("known", [None, 0.04])
@pytest.mark.parametrize("warm_start", [None, Hyperparameters([0.5, 0.8], 0.01)])
def test_the_average_is_that_of_a_computation_by_hand(known, warm_start):
    data = answers(12, known=known)
    surrogate = fit_surrogate(BOX, data, seed=0, warp="half-rank")
    X = torch.cat([data.X[:3], answers(4, seed=1).X])
    posterior, deviation = found(surrogate, data, X, warm_start=warm_start)
    expected = by_hand(surrogate, data, X, posterior.mean, known is None, warm_start)
    torch.testing.assert_close(deviation, torch.maximum(expected, posterior.deviation))
    assert bool((deviation > posterior.deviation).any())


def test_the_average_is_that_of_a_computation_by_hand_where_some_noise_is_known(monkeypatch):
    data = answers(12)
    data.noise_var[::2] = torch.logspace(-4, 1, 6, dtype=torch.double)
    surrogate = fit_surrogate(BOX, data, seed=0)
    X = answers(7, seed=1).X
    posterior, deviation = found(surrogate, data, X)
    expected = by_hand(surrogate, data, X, posterior.mean, True, None)
    torch.testing.assert_close(deviation, torch.maximum(expected, posterior.deviation))
    monkeypatch.setattr(marginal, "CHUNK", 3)
    torch.testing.assert_close(found(surrogate, data, X)[1], deviation)


def test_of_many_answers_the_fit_is_taken_as_it_is(monkeypatch):
    opt, data = bd.BPEDelayOptimizer(BOX, 40), answers(12)
    opt.attach(data.X, data.y)
    few = opt.recommend()
    monkeypatch.setattr(reading, "MANY_ANSWERS", 11)
    many = opt.recommend()
    assert many.upper - many.lower < few.upper - few.lower
    assert COUNTED in few.interval
    assert COUNTED not in many.interval


def test_exact_evaluations_are_known_where_they_were_made():
    data = answers(12, noise_std=0.0)
    surrogate = fit_surrogate(BOX, data, seed=0, exact=True)
    _, deviation = found(surrogate, data, data.X, exact=True)
    assert float(deviation.max()) < 0.01 * surrogate.scale


@pytest.mark.parametrize("count", [3, 8])
def test_intervals_of_a_few_noisy_answers_contain_the_value(count):
    hits = 0
    for seed in range(12):
        g = torch.Generator().manual_seed(seed)
        opt = bd.BPEDelayOptimizer(BOX, 40, seed=seed)
        for x in torch.rand(count, 2, dtype=torch.double, generator=g):
            noise = 0.05 * torch.randn((), dtype=torch.double, generator=g)
            opt.attach(x, float((3.0 * x[0]).sin() + noise))
        best = opt.recommend()
        hits += best.lower <= float((3.0 * best.x[0]).sin()) <= best.upper
    assert hits >= 10


def test_given_hyperparameters_are_certain():
    domain = bd.FiniteDomain(line(5))
    options = {"covar_module": bd.BPEDelayOptimizer(domain, 9)._fitting.surrogate.covar_module}
    opt = bd.BPEDelayOptimizer(domain, 9, noise_var=0.1, **options)
    opt.attach(domain.points[:3], torch.tensor([0.0, 1.0, 0.5], dtype=torch.double))
    best = opt.recommend()
    judged = opt._judged("")
    _, half = judged.intervals(best.x.unsqueeze(0))
    assert best.upper - best.lower == pytest.approx(2.0 * float(half))
    assert COUNTED not in best.interval


def test_huge_known_noise_leaves_intervals_as_they_are():
    """Where the worst values nearly tie, their noise is huge in the units of the model."""
    data = answers(16, known=1e-4)
    surrogate = fit_surrogate(BOX, data, seed=0)
    X = torch.rand(20, 2, dtype=torch.double, generator=torch.Generator().manual_seed(1))
    _, usual = found(surrogate, data, X)
    known = data.noise_var.clone()
    known[3] = 1e16  # an answer that should not count
    others = torch.arange(16) != 3
    without = Answers(data.X[others], data.y[others], data.noise_var[others], data.group[others])
    _, at = found(surrogate, replace(data, noise_var=known), X)
    _, expected = found(surrogate, without, X)
    assert at.max() < 3.0 * max(usual.max(), expected.max())
