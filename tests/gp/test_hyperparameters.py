"""Maximum a posteriori fits: gradients, several starts, and matrices without a factor."""

import numpy as np
import pytest
import torch
from gpytorch.kernels import MaternKernel
from scipy import stats
from scipy.optimize import check_grad

from botorch_delay.gp import hyperparameters
from botorch_delay.gp.hyperparameters import LogNormal, Objective, fit
from botorch_delay.gp.kernels import covariance, matern_sum

rng = np.random.default_rng(0)
X = rng.random((12, 2))
Y = np.sin(5 * X).sum(axis=1) + 0.1 * rng.standard_normal(12)
SCALES = LogNormal(np.full(2, 1.8), 1.7)
NOISE = LogNormal(np.array([-8.0]), 3.0)
ODDS = LogNormal(np.array([0.5]), 1.2)


def objective(y=Y, known=None, odds=None):
    return Objective(X, y, known, SCALES, NOISE, odds=odds)


@pytest.mark.parametrize("odds", [None, ODDS])
@pytest.mark.parametrize("known", [None, np.full(12, 0.01)])
def test_slopes_are_those_of_differences(known, odds):
    function = objective(known=known, odds=odds)
    for theta in ([-1.0, 0.5, -3.0], [0.2, -1.3, -9.0], [1.0, 1.0, 0.3]):
        at = np.array(theta[:2] if known is not None else theta)
        at = at if odds is None else np.append(at, theta[0])
        error = check_grad(lambda t: function(t)[0], lambda t: function(t)[1], at)
        assert error < 1e-4 * np.linalg.norm(function(at)[1])


def mean(of, theta):
    of(theta)
    return of.mean


def test_the_mean_is_the_likeliest():
    theta = np.array([-1.0, 0.5, -3.0])
    at = mean(objective(), theta)
    best = objective(Y - at)(theta)[0]
    assert mean(objective(Y - at), theta) == pytest.approx(0.0, abs=1e-12)
    assert best == pytest.approx(objective()(theta)[0])


def test_values_left_out_are_predicted_as_by_the_others_alone():
    theta = np.array([-1.0, 0.5, -3.0])
    function = objective()
    function(theta)
    kernel = MaternKernel(nu=2.5, ard_num_dims=2).double()
    kernel.lengthscale = torch.from_numpy(np.exp(theta[:2]))
    with torch.no_grad():
        K = kernel(torch.from_numpy(X)).to_dense().numpy() + np.exp(theta[2]) * np.eye(12)
    densities = []
    for row in range(12):
        others = np.arange(12) != row
        weights = np.linalg.solve(K[others][:, others], K[others, row])
        middle = function.mean + weights @ (Y[others] - function.mean)
        variance = K[row, row] - weights @ K[others, row]
        densities.append(stats.norm.logpdf(Y[row], middle, np.sqrt(variance)))
    expected = np.array(densities) + 0.5 * np.log(2.0 * np.pi)
    np.testing.assert_allclose(function.left_out(), expected, rtol=1e-9)
    found = fit(objective(), [theta], 1e-7, 200)
    best = np.log([*found.lengthscale, found.noise_var])
    function(best)
    np.testing.assert_allclose(found.left_out, function.left_out(), rtol=1e-6)


def test_the_best_of_several_starts_wins():
    """One start explains everything by noise, the other hardly anything: their optima differ."""
    y = np.sin(40 * X[:, 0])
    starts = [np.array(start) for start in ([4.0, 4.0, 0.0], [-3.0, 0.0, -14.0])]
    alone = [fit(objective(y), [start], 1e-7, 200) for start in starts]
    assert abs(alone[0].loss - alone[1].loss) > 0.1
    both = fit(objective(y), starts, 1e-7, 200)
    assert both.loss == min(found.loss for found in alone)


def test_without_a_factor_there_is_nothing():
    bad = objective(known=np.full(12, np.nan))
    assert fit(bad, [np.zeros(2)], 1e-7, 200) is None
    assert fit(objective(known=np.full(12, -2.0)), [np.zeros(2)], 1e-7, 200) is None


def test_a_prior_around_a_mode_has_it():
    prior = LogNormal.around(np.array([0.3, 2.0]), 0.5)
    np.testing.assert_allclose(prior.mode, [0.3, 2.0])
    _, slope = prior.loss(np.log([0.3, 2.0]))
    np.testing.assert_allclose(slope, 0.0, atol=1e-12)


def test_main_effects_are_those_of_the_kernel():
    """Numbers and a category: the likelihood is that of a sum of GPyTorch's kernels."""
    option = rng.integers(0, 3, 12)
    encoded = np.hstack([X, np.eye(3)[option]])
    priors = LogNormal(np.full(5, 1.8), 1.7), NOISE
    theta = rng.normal(size=7)
    function = Objective(encoded, Y, None, *priors, (3,), ODDS)
    loss, slope = function(theta)
    error = check_grad(lambda t: function(t)[0], lambda t: function(t)[1], theta)
    assert error < 1e-4 * np.linalg.norm(slope)
    share, scales = 1.0 / (1.0 + np.exp(-theta[-1])), torch.from_numpy(np.exp(theta[:5]))
    kernel = matern_sum(scales, share, [[0], [1], [2, 3, 4]])
    inputs = torch.from_numpy(encoded)
    K = covariance(kernel, inputs, inputs).numpy() + np.exp(theta[5]) * np.eye(12)
    function(theta)
    density = stats.multivariate_normal.logpdf(Y, np.full(12, function.mean), K)
    priors = [(*priors, ODDS)[i].loss(part)[0] for i, part in enumerate(np.split(theta, [5, 6]))]
    assert loss == pytest.approx(sum(priors) - density - 6.0 * np.log(2.0 * np.pi))


def test_a_fit_finds_the_share_of_main_effects():
    points = rng.random((40, 3))
    start = [np.append(np.log([0.3] * 3), [-6.0, 0.0])]
    shares = []
    for y in (np.sin(7.0 * points).sum(axis=1), np.sin(7.0 * points.sum(axis=1))):
        scales = LogNormal.around(np.full(3, 0.35), 0.6)
        function = Objective(points, y / y.std(), None, scales, NOISE, odds=ODDS)
        shares.append(fit(function, start, 1e-7, 200).share)
    assert shares[0] > 0.8
    assert shares[1] < 0.4


def test_options_of_categories_are_as_the_columns_that_they_stand_for():
    numbers = rng.random((12, 1))
    options = [rng.integers(0, count, 12) for count in (3, 4)]
    encoded = np.hstack([numbers, np.eye(3)[options[0]], np.eye(4)[options[1]]])
    encoded[5, 1:4] = 0.0  # an encoding that matches no option
    priors = LogNormal(np.full(8, 1.8), 1.7), NOISE
    theta = rng.normal(size=9)
    plain, quick = (Objective(encoded, Y, None, *priors, counts) for counts in ((), (3, 4)))
    (loss, slope), (expected, expected_slope) = quick(theta), plain(theta)
    assert loss == pytest.approx(expected, rel=1e-12)
    np.testing.assert_allclose(slope, expected_slope, rtol=1e-10)
    assert quick.mean == pytest.approx(plain.mean, rel=1e-10)
    np.testing.assert_allclose(quick.left_out(), plain.left_out(), rtol=1e-10)


def test_models_are_compared_by_one_density_whatever_chose_among_starts(monkeypatch):
    monkeypatch.setattr(hyperparameters, "ENOUGH_ANSWERS", 12)
    for odds in (None, ODDS):
        function, start = objective(odds=odds), [-1.0, 0.5, -3.0, *([0.0] if odds else [])]
        found = fit(function, [np.array(start)], 1e-7, 200)
        theta = np.log([*found.lengthscale, found.noise_var])
        if odds:
            theta = np.append(theta, np.log(found.share / (1.0 - found.share)))
        assert function(theta)[0] == pytest.approx(found.loss)
