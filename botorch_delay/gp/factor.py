"""Cholesky factors that grow, and factorization of matrices that rounding makes indefinite."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass

import torch
from torch import Tensor

from botorch_delay.exceptions import NumericsError, NumericsWarning, warn

MOST_LAST = 64  # rows in ``corner`` at which the whole factor is copied into a new ``first``

# Accuracy warnings given so far by the optimizer whose call is running; None outside such a call.
warned: ContextVar[list[str] | None] = ContextVar("warned", default=None)


def warn_lost_accuracy(message: str) -> None:
    """Give a :class:`NumericsWarning`, unless this optimizer has given one before."""
    known = warned.get()
    if known is not None:
        if known:
            return
        known.append(message)
    warn(message, NumericsWarning)


def factorize(K: Tensor, noise_var: Tensor) -> tuple[Tensor, Tensor]:
    """Lower Cholesky factor of ``K + diag(noise_var)``, and the diagonal that was added to K.

    If rounding makes the matrix indefinite, the noise is raised until it is not, with a
    :class:`NumericsWarning`. The raised noise is returned, so that bounds which use it stay valid:
    they hold for any positive regularizer. K is ``batch_shape x n x n``.
    """
    diagonal = noise_var.expand(K.shape[:-1])
    factor, info = torch.linalg.cholesky_ex(K + torch.diag_embed(diagonal))
    if not info.any():
        return factor, diagonal
    scale = K.diagonal(dim1=-2, dim2=-1).amax().item()
    jitter = K.shape[-1] * torch.finfo(K.dtype).eps * max(scale, torch.finfo(K.dtype).tiny)
    while jitter <= max(scale, 1.0):  # False if the matrix is not finite
        factor, info = torch.linalg.cholesky_ex(K + torch.diag_embed(diagonal + jitter))
        if not info.any():
            warn_lost_accuracy(
                f"The covariance of {K.shape[-1]} points with noise variance "
                f"{noise_var.min().item():.1e} is indefinite in {K.dtype}; noise was raised by "
                f"{jitter:.1e}. Use double precision, or a larger noise_var."
            )
            return factor, diagonal + jitter
        jitter *= 10.0
    raise NumericsError(
        "The covariance matrix is not positive definite: covar_module is not a valid kernel, or "
        "its hyperparameters are not finite."
    )


@dataclass(frozen=True)
class Factor:
    """A lower Cholesky factor ``L``, ``n x n``, that grows by rows without copying all old ones.

    It is ``[[first, 0], [left, corner]]``. Factors that grow from each other share ``first``, which
    is contiguous: PyTorch's solver would copy a slice of a larger matrix at every call.
    """

    first: Tensor
    left: Tensor
    corner: Tensor

    @classmethod
    def of(cls, matrix: Tensor) -> Factor:
        """The factor stored in a lower triangular matrix, ``n x n``."""
        return cls(matrix.contiguous(), matrix.new_zeros(0, len(matrix)), matrix.new_zeros(0, 0))

    def __len__(self) -> int:
        return len(self.first) + len(self.corner)

    @property
    def matrix(self) -> Tensor:
        """``L`` as one tensor, ``n x n``."""
        return _lower(self.first, self.left, self.corner) if len(self.corner) else self.first

    def extended(self, left: Tensor, corner: Tensor) -> Factor:
        """The factor with ``m`` more rows ``[left, corner]``, of ``m x n`` and ``m x m``."""
        if len(self.corner) >= MOST_LAST:
            return Factor(self.matrix, left, corner)
        before, between = left.tensor_split([len(self.first)], dim=1)
        left = torch.cat([self.left, before])
        return Factor(self.first, left, _lower(self.corner, between, corner))

    def solve(self, right: Tensor) -> Tensor:
        """``L^-1 B`` for B ``n x m``, differentiable in B."""
        top, rest = right.tensor_split([len(self.first)])
        top = torch.linalg.solve_triangular(self.first, top, upper=False)
        if not len(rest):
            return top
        rest = rest - self.left @ top
        return torch.cat([top, torch.linalg.solve_triangular(self.corner, rest, upper=False)])

    def solve_transposed(self, right: Tensor) -> Tensor:
        """``L^-T B`` for B ``n x m``, differentiable in B."""
        top, rest = right.tensor_split([len(self.first)])
        if len(rest):
            rest = torch.linalg.solve_triangular(self.corner.mT, rest, upper=True)
            top = top - self.left.mT @ rest
        top = torch.linalg.solve_triangular(self.first.mT, top, upper=True)
        return torch.cat([top, rest]) if len(rest) else top

    def weights(self, vector: Tensor) -> Tensor:
        """``(L L')^-1 v`` for v of shape ``n``."""
        return self.solve_transposed(self.solve(vector.unsqueeze(-1))).squeeze(-1)

    def times(self, vector: Tensor) -> Tensor:
        """``L v`` for v of shape ``n``."""
        top, rest = vector.tensor_split([len(self.first)])
        return torch.cat([self.first @ top, self.left @ top + self.corner @ rest])

    def transposed_times(self, vector: Tensor) -> Tensor:
        """``L' v`` for v of shape ``n``."""
        top, rest = vector.tensor_split([len(self.first)])
        return torch.cat([top @ self.first + rest @ self.left, rest @ self.corner])


def _lower(first: Tensor, left: Tensor, corner: Tensor) -> Tensor:
    """``[[first, 0], [left, corner]]``."""
    above = first.new_zeros(len(first), len(corner))
    return torch.cat([torch.cat([first, above], dim=1), torch.cat([left, corner], dim=1)])
