import numpy as np
import pytest
import torch
from cases import normal, scattered
from oracle import kernel_function

from botorch_delay.benchmarks import FiniteProblem, paper_problem
from botorch_delay.exceptions import InputError


@pytest.mark.parametrize("lengthscale", [0.8, 1.0])
def test_the_paper_s_recipe(lengthscale):
    problem = paper_problem(lengthscale, seed=3)
    assert problem.points.shape == (2500, 2)
    assert problem.points.min() == -5.0
    assert problem.points.max() == 5.0
    assert problem.noise_std == 0.02
    # f is the interpolant of 25 values: an RKHS function that is found again from them.
    k = kernel_function(problem.covar_module)
    axis = np.linspace(-5, 5, 5)
    knots = np.array([[a, b] for a in axis for b in axis])
    fine = paper_problem(lengthscale, seed=3, side=41)  # every tenth point is a knot
    rows = [(fine.points.numpy() == knot).all(axis=1).argmax() for knot in knots]
    values = fine.values.numpy()[rows]
    weights = np.linalg.solve(k(knots, knots), values)
    np.testing.assert_allclose(k(problem.points.numpy(), knots) @ weights, problem.values)
    assert problem.norm == pytest.approx(np.sqrt(weights @ values), rel=1e-9)


def test_the_knots_are_drawn_from_the_kernel():
    values = torch.stack([paper_problem(1.0, seed=s, side=5).values for s in range(300)])
    assert values.mean().abs() < 0.05
    assert values.var() == pytest.approx(1.0, abs=0.05)
    assert not torch.equal(values[0], values[1])


def test_regret_is_counted_from_the_best_point():
    problem = FiniteProblem(scattered(5), torch.tensor([1.0, 4, 2, 0, 3]).double(), 0.1)
    assert problem.regret().tolist() == [3, 0, 2, 4, 1]
    assert problem.noise_var == pytest.approx(0.01)


@pytest.mark.parametrize(
    "make",
    [
        lambda: FiniteProblem(scattered(5), normal(4), 0.1),
        lambda: FiniteProblem(scattered(5), normal(5), -0.1),
        lambda: FiniteProblem(scattered(5), normal(5) * torch.nan, 0.1),
        lambda: paper_problem(0.0),
        lambda: paper_problem(seed=-1),
        lambda: paper_problem(side=1),
    ],
)
def test_bad_arguments(make):
    with pytest.raises(InputError):
        make()
