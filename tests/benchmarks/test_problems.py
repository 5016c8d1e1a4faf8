from types import SimpleNamespace

import pytest
import torch
from cases import normal, scattered

from botorch_delay import FiniteDomain
from botorch_delay.benchmarks import FiniteProblem, paper_problem
from botorch_delay.benchmarks.problems import TableProblem
from botorch_delay.exceptions import InputError

nan = float("nan")


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


def test_the_range_and_the_noise():
    problem = FiniteProblem(scattered(5), torch.tensor([1.0, 4, 2, 0, 3]).double(), 0.1)
    assert (problem.highest, problem.lowest) == (4.0, 0.0)
    assert problem.noise_var == pytest.approx(0.01)
