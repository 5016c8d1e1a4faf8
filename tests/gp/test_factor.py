"""Factors that grow: the same numbers as from the whole matrix, and most of it shared."""

import pytest
import torch
from torch import Tensor

from botorch_delay.gp.factor import MOST_LAST, Factor


def lower(n: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    matrix = torch.randn(n, n, generator=generator, dtype=torch.double).tril()
    matrix.diagonal().add_(40.0)
    return matrix


def grown(matrix: Tensor, *sizes: int) -> Factor:
    """The factor of the leading block of the matrix, grown through the given sizes."""
    factor = Factor.of(matrix[: sizes[0], : sizes[0]].clone())
    for n in sizes[1:]:
        had = len(factor)
        factor = factor.extended(matrix[had:n, :had], matrix[had:n, had:n])
    return factor


@pytest.mark.parametrize(
    "sizes",
    [(300,), (200, 300), (0, 300), (299, 300), (200, 201, 210, 300), (100, 180, 190, 300)],
)
def test_a_factor_that_grew_is_the_whole_one(sizes):
    matrix, factor = lower(300), grown(lower(300), *sizes)
    right = lower(300)[:, :3].clone().requires_grad_(True)
    assert len(factor) == 300
    assert torch.equal(factor.matrix, matrix)
    v = right[:, 0].detach()
    torch.testing.assert_close(factor.times(v), matrix @ v)
    torch.testing.assert_close(factor.transposed_times(v), matrix.mT @ v)
    torch.testing.assert_close(factor.weights(v), torch.linalg.solve(matrix @ matrix.mT, v))
    for solution, whole in (
        (factor.solve(right), matrix),
        (factor.solve_transposed(right), matrix.mT),
    ):
        torch.testing.assert_close(whole @ solution, right)
        (slope,) = torch.autograd.grad(solution.sum(), right)
        ones = torch.ones(300, 3, dtype=torch.double)
        torch.testing.assert_close(slope, torch.linalg.solve(whole.mT, ones))


def test_rows_are_added_without_copying_the_others():
    matrix = lower(300)
    factor = one = grown(matrix, 100)
    for n in range(101, 101 + MOST_LAST):
        factor = grown_by_one(factor, matrix, n)
        assert factor.first is one.first
    assert len(grown_by_one(factor, matrix, 101 + MOST_LAST).first) == 100 + MOST_LAST
    assert torch.equal(one.matrix, matrix[:100, :100])


def grown_by_one(factor: Factor, matrix: Tensor, n: int) -> Factor:
    return factor.extended(matrix[n - 1 : n, : n - 1], matrix[n - 1 : n, n - 1 : n])
