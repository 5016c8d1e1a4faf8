"""The closed form of a capped bound, against automatic differentiation."""

from functools import cache

import pytest
import torch
from cases import scattered

import botorch_delay as bd
from botorch_delay.design import ascent
from botorch_delay.design.ascent import BoundClimb
from botorch_delay.gp.averages import Averages
from botorch_delay.gp.fitting import fit_surrogate
from botorch_delay.gp.kernels import MaternSum, covariance
from botorch_delay.gp.posterior import Posterior
from botorch_delay.history.answers import Answers

BOUNDS = torch.tensor([[0.0, 1e-3, 0.0, -2.0], [1.0, 1.0, 2.0, 3.0]], dtype=torch.double)
BOX = bd.BoxDomain(BOUNDS, cat_dims={2: [0, 1, 2]}, log_dims=[1])


X = BOX.from_unit(scattered(30, 4))


@cache
def learned(main_effects):
    """A surrogate, and the values that it was fitted to."""
    parts = X[:, 0].sin(), X[:, 1].log() / 5, (X[:, 2] == 1).to(X), X[:, 3] / 4
    y = sum(parts) if main_effects else (3.0 * sum(parts)).sin()
    noise = torch.full_like(y, torch.nan)
    fitted = fit_surrogate(BOX, Answers(X, y, noise, torch.arange(len(X))), seed=0)
    assert isinstance(fitted.covar_module, MaternSum) == main_effects
    return fitted, y


def case(pending, main_effects=False):
    """A learned surrogate, its answers, and the design with this many pending points."""
    surrogate, y = learned(main_effects)
    values, design = (Averages(surrogate, X) for _ in range(2))
    for number, x in enumerate(X):
        if number < len(X) - pending:
            values.put(-1 - number, number, x, y[number].item(), None)
        design.put(-1 - number, number, x, None, None)
    return surrogate, values.anywhere, values.anywhere if not pending else design.anywhere


def bound(surrogate, answers, design, factor, X, cap):
    """The capped bound, computed from its definition."""
    kernel, inputs = surrogate.covar_module, surrogate.inputs(X)

    def cross(points):
        return kernel(points, inputs).to_dense()

    def gram(data):
        return kernel(data.X).to_dense() + data.noise_var.diag()

    seen, asked = answers.data, design.data
    mean = torch.linalg.solve(gram(seen), seen.y) @ cross(seen.X)
    explained = cross(asked.X) * torch.linalg.solve(gram(asked), cross(asked.X))
    deviation = (1.0 - explained.sum(dim=0)).sqrt()
    return mean + factor * torch.minimum(deviation, cap)


@pytest.mark.parametrize("pending", [0, 4])
@pytest.mark.parametrize("main_effects", [False, True])
def test_values_and_slopes_are_those_of_the_definition(pending, main_effects):
    surrogate, answers, design = case(pending, main_effects)
    starts = BOX.from_unit(scattered(12, 4, seed=5))
    climb = BoundClimb(surrogate, answers, design, 2.0, starts)
    X = BOX.from_unit(scattered(12, 4, seed=6)).requires_grad_(True)
    expected = bound(surrogate, answers, design, 2.0, X, climb.cap)
    (slope,) = torch.autograd.grad(expected.sum(), X)
    slope[:, 2] = 0.0  # a category has none
    values, found = climb.with_slope(X.detach())
    assert torch.allclose(values, expected.detach(), atol=1e-9)
    assert torch.allclose(found, slope, atol=1e-8)
    capped = climb.cap < design.variance(surrogate.inputs(X.detach())).sqrt()
    assert 0 < int(capped.sum()) < len(X)
    at_starts = bound(surrogate, answers, design, 2.0, starts, torch.full((12,), torch.inf))
    assert torch.allclose(climb(starts), at_starts.detach(), atol=1e-9)


def test_without_a_cap_the_deviation_counts_everywhere():
    surrogate, answers, design = case(0)
    starts, X = (BOX.from_unit(scattered(12, 4, seed=seed)) for seed in (5, 6))
    climb = BoundClimb(surrogate, answers, design, -2.0, starts, capped=False)
    whole = bound(surrogate, answers, design, -2.0, X, torch.full((12,), torch.inf))
    assert torch.allclose(climb(X), whole, atol=1e-9)
    capped = BoundClimb(surrogate, answers, design, -2.0, starts)
    assert float((capped(X) - whole).max()) > 1e-3


@pytest.mark.parametrize("pending", [0, 4])
def test_of_a_large_design_the_nearest_points_give_the_deviation_and_all_answers_the_mean(
    monkeypatch, pending
):
    monkeypatch.setattr(ascent, "LOCAL_ABOVE", 29)
    monkeypatch.setattr(ascent, "LOCAL_POINTS", 12)
    surrogate, answers, design = case(pending)
    starts = BOX.from_unit(scattered(12, 4, seed=5))
    K = covariance(surrogate.covar_module, design.data.X, surrogate.inputs(starts))
    near = Posterior(surrogate.covar_module, design.data.at(K.amax(dim=1).argsort()[-12:]))
    climb = BoundClimb(surrogate, answers, design, 2.0, starts)
    X = BOX.from_unit(scattered(12, 4, seed=6))
    expected = bound(surrogate, answers, near, 2.0, X, climb.cap)
    assert torch.allclose(climb(X), expected.detach(), atol=1e-9)
    monkeypatch.setattr(ascent, "LOCAL_ABOVE", 30)
    whole = BoundClimb(surrogate, answers, design, 2.0, starts)
    expected = bound(surrogate, answers, design, 2.0, X, whole.cap)
    assert torch.allclose(whole(X), expected.detach(), atol=1e-9)
