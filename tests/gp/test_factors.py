import warnings

import pytest
import torch
from cases import normal

from botorch_delay.exceptions import NumericsError, NumericsWarning
from botorch_delay.gp.factors import Factor, factorize


def test_an_indefinite_matrix_is_mended_with_a_warning():
    noise = torch.full((40,), 1e-300, dtype=torch.double)
    K = torch.ones(40, 40, dtype=torch.double) - 1e-15 * torch.eye(40)
    with pytest.warns(NumericsWarning, match="raised"):
        factor, raised = factorize(K, noise)
    assert (raised > noise).all()
    torch.testing.assert_close(factor @ factor.T, K + torch.diag(raised))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        factorize(torch.eye(3).double(), torch.full((3,), 1e-10).double())


def test_a_matrix_that_cannot_be_mended_is_an_error():
    with pytest.raises(NumericsError, match="positive definite"):
        factorize(torch.full((2, 2), torch.nan).double(), torch.ones(2).double())


def test_a_factor_with_room_for_more_is_solved_with_block_by_block():
    generator = torch.Generator().manual_seed(0)
    matrix = torch.randn(650, 650, generator=generator, dtype=torch.double).tril()
    matrix.diagonal().add_(40.0)
    grown = Factor(matrix[:649, :649].clone()).extended(matrix[649, :649], matrix[649, 649])
    factor, right = grown.matrix, normal(650 * 3).reshape(650, 3).requires_grad_(True)
    assert not factor.is_contiguous()
    assert torch.equal(factor, matrix)
    solution = grown.solve(right)
    torch.testing.assert_close(factor @ solution, right)
    (slope,) = torch.autograd.grad(solution.sum(), right)
    expected = torch.linalg.solve(factor.mT.contiguous(), torch.ones(650, 3, dtype=torch.double))
    torch.testing.assert_close(slope, expected)
