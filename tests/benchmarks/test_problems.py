from types import SimpleNamespace

import pytest
import torch
from cases import normal, scattered

from botorch_delay import FiniteDomain, Float, Space
from botorch_delay.benchmarks import BoxProblem, FiniteProblem, paper_problem
from botorch_delay.benchmarks.problems import TableProblem
from botorch_delay.exceptions import InputError

nan = float("nan")
SPACE, GRID = Space(a=Float(0, 1)), Space.grid(a=Float(0, 1, step=0.5))


def squares(X):
    return -X.square().sum(dim=1)


def row(index):
    return SimpleNamespace(index=index)


def small():
    domain = FiniteDomain(torch.tensor([[0.0], [1.0], [2.0]]).double())
    stored = torch.tensor([[1.0, 3.0, 5.0], [2.0, nan, nan], [0.0, 1.0, nan]]).double()
    return TableProblem(domain, stored, stored + 10.0)


def test_a_stored_evaluation_is_the_noise_and_their_mean_the_truth():
    problem = small()
    assert problem.values.tolist() == [3.0, 2.0, 0.5]
    assert (problem.highest, problem.lowest) == (3.0, 0.5)
    seen = [problem.observe(row(0), 0.0, u) for u in (0.0, 0.34, 0.999)]
    assert seen == [(1.0, 11.0), (3.0, 13.0), (5.0, 15.0)]
    # Missing evaluations are never drawn.
    assert problem.observe(row(1), 9.0, 0.999)[0] == 2.0
    assert problem.observe(row(2), 9.0, 0.999)[0] == 1.0
    squares = [(1 - 3) ** 2, 0, (5 - 3) ** 2, 0, 0.25, 0.25]
    assert problem.noise_std == pytest.approx((sum(squares) / 6) ** 0.5)


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


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FiniteProblem(SPACE, normal(5), 0.1), "a space made by grid or arms, got BoxD"),
        (lambda: BoxProblem(GRID, squares, 1.0, 0.0), "a space that is one; FiniteProblem takes"),
        (lambda: BoxProblem(SPACE, lambda X: X.sum(), 1.0, 0.0), r"n x 1 to n; got \(\) for n ="),
        (lambda: BoxProblem(SPACE, lambda X: X, 1.0, 0.0), r"got \(4096, 1\) for n = 4096"),
        (lambda: BoxProblem(SPACE, lambda X: X[:, 0] * nan, 1.0, 0.0), "got nan or inf"),
        (lambda: BoxProblem(SPACE, squares, 1.0, 0.0, spread=3), "must be two numbers, .* got 3"),
    ],
)
def test_what_a_user_may_get_wrong(make, message):
    with pytest.raises(InputError, match=message):
        make()


def test_spaces_are_domains_of_problems():
    assert FiniteProblem(GRID, normal(3), 0.1).domain is GRID.domain
    assert BoxProblem(SPACE, squares, 0.0, 0.1, spread=(-1.0, 0.5)).noise_std == 0.05


def test_the_range_and_the_noise():
    problem = FiniteProblem(scattered(5), torch.tensor([1.0, 4, 2, 0, 3]).double(), 0.1)
    assert (problem.highest, problem.lowest) == (4.0, 0.0)
    assert problem.noise_var == pytest.approx(0.01)
