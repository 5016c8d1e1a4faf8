import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from botorch_delay import BoxDomain
from botorch_delay.benchmarks import BoxProblem
from botorch_delay.benchmarks.functions import (
    LENGTHSCALE,
    TEST_FUNCTIONS,
    function_on_arms,
    function_on_box,
    gp_draw,
)
from botorch_delay.exceptions import InputError


def at(x, index=None):
    return SimpleNamespace(x=x, index=index)


CORRELATION = {  # one grid step apart
    "se": lambda r: math.exp(-(r**2) / 2),
    "matern52": lambda r: (1 + 5**0.5 * r + 5 * r**2 / 3) * math.exp(-(5**0.5) * r),
    "matern12": lambda r: math.exp(-r),
}


@pytest.mark.parametrize("kernel", CORRELATION)
def test_draws_have_the_kernel_s_moments(kernel):
    draws = torch.stack([gp_draw(kernel, 0.02, seed).values for seed in range(40)])
    grid = draws.reshape(40, 30, 30)
    step = 1 / 29 / LENGTHSCALE
    assert draws.square().mean() == pytest.approx(1.0, abs=0.15)
    difference = (grid[:, 1:] - grid[:, :-1]).square().mean() / 2
    assert difference == pytest.approx(1 - CORRELATION[kernel](step), rel=0.15)
    assert not torch.equal(draws[0], draws[1])


def test_the_learner_s_lengthscale_can_be_wrong():
    right, wide = gp_draw("se", 0.02, 4), gp_draw("se", 0.02, 4, learner_factor=2.0)
    assert torch.equal(right.values, wide.values)
    assert right.covar_module.lengthscale.item() == pytest.approx(LENGTHSCALE)
    assert wide.covar_module.lengthscale.item() == pytest.approx(2 * LENGTHSCALE)
    assert wide.model_options["noise_var"] == pytest.approx(4e-4)


@pytest.mark.parametrize("name", TEST_FUNCTIONS)
def test_functions_on_arms_and_boxes_are_the_same_function(name):
    arms, box = function_on_arms(name), function_on_box(name, 7)
    assert len(arms.domain) == 2048
    assert bool(box.domain.contains(arms.points).all())
    assert arms.model_options == box.model_options == {}
    rows = torch.tensor([0, 5, 2047])
    on_box = [box.evaluate_true(at(arms.points[row])) for row in rows]
    assert on_box == pytest.approx(arms.values[rows].tolist())
    assert arms.highest <= box.highest + 1e-9
    assert arms.noise_std == pytest.approx(0.05 * arms.values.std().item())
    assert box.noise_std == pytest.approx(arms.noise_std, rel=0.1)
    assert box.lowest < arms.values.mean() < box.highest


def test_the_maximum_is_where_it_is_known_to_be():
    zero = at(torch.zeros(5).double())
    assert function_on_box("ackley5").evaluate_true(zero) == pytest.approx(0.0, abs=1e-9)
    best = at(torch.tensor([math.pi, 2.275]).double())
    assert function_on_box("branin").evaluate_true(best) == pytest.approx(-0.397887, abs=1e-5)


def test_noise_is_added():
    problem = function_on_arms("branin")
    value, duration = problem.observe(at(problem.points[3], 3), normal=2.0, uniform=0.5)
    assert value == pytest.approx(problem.values[3].item() + 2 * problem.noise_std)
    assert duration is None
    np.testing.assert_allclose(problem.regret().min(), 0.0)


def test_draws_in_four_columns():
    problem = gp_draw("se", 0.02, 0, dim=4)
    assert problem.points.shape == (6**4, 4)
    assert problem.covar_module.lengthscale.item() == pytest.approx(0.3)
    assert gp_draw("se", 0.02, 0).covar_module.lengthscale.item() == pytest.approx(0.15)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: BoxProblem(unit_box(), lambda X: X.sum(1), 1.0, 0.1), "maximum of f"),
        (lambda: BoxProblem(unit_box(), lambda X: X.sum(1), 2.0, -0.1), "at least 0"),
    ],
)
def test_bad_arguments(make, message):
    with pytest.raises(InputError, match=message):
        make()


def unit_box():
    return BoxDomain(torch.tensor([[0.0, 0.0], [1.0, 1.0]]).double())
