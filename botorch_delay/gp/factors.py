"""Lower Cholesky factors ``L L' = K + D``: made, solved with, and extended by a point.

Nothing here is changed once it is made: what follows from a factor shares its memory.
"""

from __future__ import annotations

import copy
import threading
import warnings
from contextvars import ContextVar

import torch
from torch import Tensor

from botorch_delay.exceptions import NumericsError, NumericsWarning

SOLVED_AT_ONCE = 128  # rows of a factor inside a larger matrix

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
    :class:`NumericsWarning` is given. The raised noise is returned, so that bounds which use
    it stay valid: they hold for any positive regularizer.

    Args:
        K: ``batch_shape x n x n``.
        noise_var: ``n`` or broadcastable to ``batch_shape x n``.

    Raises:
        NumericsError: if no small amount of noise makes the matrix positive definite.
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
    """A lower Cholesky factor which grows by a row without being copied.

    Models that follow from each other share a buffer with room to spare. A row is written once,
    by the first model that needs it; a second one that starts from the same answers gets a
    buffer of its own. So no model ever changes.

    Args:
        matrix: ``n x n``.
    """

    def __init__(self, matrix: Tensor) -> None:
        self.matrix = matrix
        self._buffer = matrix
        self._used = [len(matrix)]  # rows of the buffer, the same list for all who share it
        self._lock = threading.Lock()

    def extended(self, row: Tensor, pivot: Tensor) -> Factor:
        """The factor with one row more: ``n`` entries left of the diagonal, and the diagonal."""
        n = len(self.matrix)
        grown = copy.copy(self)
        with self._lock:
            if self._used[0] != n or len(self._buffer) == n:
                room = n + max(n // 8, 64)
                grown._buffer = self.matrix.new_zeros(room, room)
                grown._buffer[:n, :n] = self.matrix
                grown._used = [n]
                grown._lock = threading.Lock()
            grown._buffer[n, :n] = row
            grown._buffer[n, n] = pivot
            grown._used[0] = n + 1
        grown.matrix = grown._buffer[: n + 1, : n + 1]
        return grown

    def solve(self, right: Tensor) -> Tensor:
        """``L^-1 B`` for B ``n x m``, differentiable in B.

        PyTorch's solver copies a part of a larger matrix at every call: it is given blocks of it.
        """
        factor, n = self.matrix, len(self.matrix)
        if n <= 2 * SOLVED_AT_ONCE or factor.is_contiguous():
            return torch.linalg.solve_triangular(factor, right, upper=False)
        parts: list[Tensor] = []
        for start in range(0, n, SOLVED_AT_ONCE):
            rows = slice(start, start + SOLVED_AT_ONCE)
            left = right[rows]
            if parts:
                left = left - factor[rows, :start] @ torch.cat(parts)
            parts.append(torch.linalg.solve_triangular(factor[rows, rows], left, upper=False))
        return torch.cat(parts)
