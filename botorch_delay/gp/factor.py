"""Cholesky factors that grow, and what is done where rounding makes a matrix indefinite."""

from __future__ import annotations

import warnings
from contextvars import ContextVar

import torch
from torch import Tensor

from botorch_delay.exceptions import NumericsError, NumericsWarning

MOST_LAST = 64  # rows that are added before all are copied into one matrix

# What the object has warned of whose call is under way; None outside of such a call.
warned: ContextVar[list[str] | None] = ContextVar("warned", default=None)


def warn_lost_accuracy(message: str, stacklevel: int = 2) -> None:
    """A :class:`NumericsWarning`, unless this optimizer has given one before."""
    known = warned.get()
    if known is not None:
        if known:
            return
        known.append(message)
    warnings.warn(message, NumericsWarning, stacklevel=stacklevel + 1)


def factorize(K: Tensor, noise_var: Tensor) -> tuple[Tensor, Tensor]:
    """Lower Cholesky factor of ``K + diag(noise_var)``, and the diagonal that was added.

    Where rounding makes the matrix indefinite, the noise is raised until it is not and a
    :class:`NumericsWarning` is given. The raised noise is returned, so that bounds which use it
    stay valid: they hold for any positive regularizer. K is ``batch_shape x n x n``.
    """
    diagonal = noise_var.expand(K.shape[:-1])
    if K.shape[-1] == 0:
        return K, diagonal
    factor, info = torch.linalg.cholesky_ex(K + torch.diag_embed(diagonal))
    if not info.any():
        return factor, diagonal
    scale = K.diagonal(dim1=-2, dim2=-1).amax().item()
    jitter = K.shape[-1] * torch.finfo(K.dtype).eps * max(scale, torch.finfo(K.dtype).tiny)
    while jitter <= max(scale, 1.0):  # not where the matrix is not finite
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
        "The covariance matrix is not positive definite: the kernel is none, or its "
        "hyperparameters are not finite."
    )


class Factor:
    """A lower Cholesky factor ``L``, ``n x n``, that grows at its end for the cost of what is new.

    It is held as ``[[first, 0], [left, corner]]``: factors that grow from each other share
    ``first``, which is contiguous, since PyTorch's solver copies a part of a larger matrix at every
    call. No factor ever changes.
    """

    def __init__(self, first: Tensor) -> None:
        self.first = first.contiguous()
        self._left, self._corner = first.new_zeros(0, len(first)), first.new_zeros(0, 0)

    def __len__(self) -> int:
        return len(self.first) + len(self._corner)

    @property
    def matrix(self) -> Tensor:
        """``L`` as one tensor, ``n x n``."""
        if not len(self._corner):
            return self.first
        above = self.first.new_zeros(len(self.first), len(self._corner))
        top = torch.cat([self.first, above], dim=1)
        return torch.cat([top, torch.cat([self._left, self._corner], dim=1)])

    def extended(self, left: Tensor, corner: Tensor) -> Factor:
        """The factor with ``m`` rows more: ``m x n`` left of the corner, ``m x m``."""
        last = len(self._corner)
        grown = Factor(self.matrix if last >= MOST_LAST else self.first)
        before, between = left.tensor_split([len(grown.first)], dim=1)
        if between.shape[1]:
            before = torch.cat([self._left, before])
            top = torch.cat([self._corner, corner.new_zeros(last, len(corner))], dim=1)
            corner = torch.cat([top, torch.cat([between, corner], dim=1)])
        grown._left, grown._corner = before, corner
        return grown

    def solve(self, right: Tensor) -> Tensor:
        """``L^-1 B`` for B ``n x m``, differentiable in B."""
        top, rest = right.tensor_split([len(self.first)])
        top = torch.linalg.solve_triangular(self.first, top, upper=False)
        if not len(rest):
            return top
        rest = rest - self._left @ top
        return torch.cat([top, torch.linalg.solve_triangular(self._corner, rest, upper=False)])

    def solve_transposed(self, right: Tensor) -> Tensor:
        """``L^-T B`` for B ``n x m``, differentiable in B."""
        top, rest = right.tensor_split([len(self.first)])
        if len(rest):
            rest = torch.linalg.solve_triangular(self._corner.mT, rest, upper=True)
            top = top - self._left.mT @ rest
        top = torch.linalg.solve_triangular(self.first.mT, top, upper=True)
        return torch.cat([top, rest]) if len(rest) else top

    def times(self, vector: Tensor) -> Tensor:
        """``L v`` for v of shape ``n``."""
        top, rest = vector.tensor_split([len(self.first)])
        return torch.cat([self.first @ top, self._left @ top + self._corner @ rest])

    def transposed_times(self, vector: Tensor) -> Tensor:
        """``L' v`` for v of shape ``n``."""
        top, rest = vector.tensor_split([len(self.first)])
        return torch.cat([top @ self.first + rest @ self._left, rest @ self._corner])
