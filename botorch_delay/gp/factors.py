"""Lower Cholesky factors ``L L' = K + D``: made, solved with, and extended by further points.

Nothing here is ever changed once it is made: what follows from a factor shares its memory.
"""

from __future__ import annotations

import copy
import threading
from dataclasses import dataclass

import torch
from torch import Tensor

from botorch_delay.exceptions import NumericsError
from botorch_delay.gp.accuracy import warn_lost_accuracy

SOLVED_AT_ONCE = 128  # rows of a factor inside a larger matrix


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
    scale = K.diagonal(dim1=-2, dim2=-1).amax().item()
    jitter = 0.0
    step = K.shape[-1] * torch.finfo(K.dtype).eps * max(scale, torch.finfo(K.dtype).tiny)
    while True:
        factor, info = torch.linalg.cholesky_ex(K + torch.diag_embed(diagonal + jitter))
        if not info.any():
            break
        jitter = step if jitter == 0.0 else 10.0 * jitter
        if not jitter <= max(scale, 1.0):  # also where the matrix is not finite
            raise NumericsError(
                "The covariance matrix is not positive definite: the kernel is none, or its "
                "hyperparameters are not finite."
            )
    if jitter:
        warn_lost_accuracy(
            f"The covariance of {K.shape[-1]} points with noise variance "
            f"{noise_var.min().item():.1e} is indefinite in {K.dtype}; noise was raised by "
            f"{jitter:.1e}. Use double precision, or a larger noise_var."
        )
    return factor, diagonal + jitter


def solve_lower(factor: Tensor, right: Tensor) -> Tensor:
    """``L^-1 B`` for a lower factor that may be part of a larger matrix; differentiable in B.

    PyTorch's solver copies such a factor at every call. Here its blocks are used in place.

    Args:
        factor: ``n x n``, rows contiguous.
        right: ``n x m``.
    """
    n = len(factor)
    if n <= 2 * SOLVED_AT_ONCE or factor.is_contiguous():
        return torch.linalg.solve_triangular(factor, right, upper=False)
    differentiable = torch.is_grad_enabled() and (right.requires_grad or factor.requires_grad)
    if differentiable:
        parts: list[Tensor] = []
        for start in range(0, n, SOLVED_AT_ONCE):
            stop = min(start + SOLVED_AT_ONCE, n)
            left = right[start:stop]
            if parts:
                left = left - factor[start:stop, :start] @ torch.cat(parts)
            parts.append(
                torch.linalg.solve_triangular(factor[start:stop, start:stop], left, upper=False)
            )
        return torch.cat(parts)
    solution = right.clone()
    for start in range(0, n, SOLVED_AT_ONCE):
        part = solution[start : start + SOLVED_AT_ONCE]
        rows = factor[start : start + SOLVED_AT_ONCE]
        if start and right.shape[1] == 1:
            part[:, 0].addmv_(rows[:, :start], solution[:start, 0], alpha=-1.0)
        elif start:
            part.addmm_(rows[:, :start], solution[:start], alpha=-1.0)
        corner = rows[:, start : start + len(part)]
        part.copy_(torch.linalg.solve_triangular(corner, part, upper=False))
    return solution


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
        """``L^-1 B``: ``n x m`` to ``n x m``."""
        return solve_lower(self.matrix, right)


@dataclass(frozen=True)
class Extension:
    """Points P that may follow the points X of a factor, and what they would add to it.

    Attributes:
        cross: ``W = L^-1 K(X, P)``, ``n x p``.
        schur: ``S = K(P, P) + D - W'W``, ``p x p``, of which the lower right block is a factor.
    """

    cross: Tensor
    schur: Tensor

    def __len__(self) -> int:
        return len(self.schur)

    def joined(self, other: Extension, K: Tensor) -> Extension:
        """Both of the same factor, with the covariances ``K`` (``p x q``) between their points."""
        beside = K - self.cross.mT @ other.cross
        rows = [torch.cat([self.schur, beside], dim=1), torch.cat([beside.mT, other.schur], dim=1)]
        return Extension(torch.cat([self.cross, other.cross], dim=1), torch.cat(rows))

    def after(self, position: int, pivot: Tensor) -> Extension:
        """The other points beside the factor that one of them has followed.

        Args:
            position: of that one.
            pivot: the root of its entry in ``S``.
        """
        rest = [i for i in range(len(self)) if i != position]
        row = self.schur[position, rest] / pivot
        cross = torch.cat([self.cross[:, rest], row.unsqueeze(0)])
        return Extension(cross, self.schur[rest][:, rest] - row.unsqueeze(-1) * row)


class JointFactor:
    """The factor ``[[L, 0], [W', C]]`` of points and an extension, without a copy of L.

    Args:
        observed: L, ``n x n``.
        extension: of that factor, by ``p`` points; ``C C' = S``.
    """

    def __init__(self, observed: Factor | JointFactor, extension: Extension) -> None:
        # Flat, so that an extension of an extension of ... costs no more.
        self._observed = Factor(observed.matrix) if isinstance(observed, JointFactor) else observed
        self._cross = extension.cross
        self._corner, _ = factorize(extension.schur, extension.schur.new_zeros(len(extension)))

    @property
    def matrix(self) -> Tensor:
        """All of it, ``(n + p) x (n + p)``."""
        n, p = self._cross.shape
        block = self._cross.new_zeros(n + p, n + p)
        block[:n, :n] = self._observed.matrix
        block[n:, :n] = self._cross.mT
        block[n:, n:] = self._corner
        return block

    def extended(self, row: Tensor, pivot: Tensor) -> Factor:
        """As for ``Factor``; the result is one."""
        return Factor(self.matrix).extended(row, pivot)

    def solve(self, right: Tensor) -> Tensor:
        """As for ``Factor``."""
        n = len(self._cross)
        top = self._observed.solve(right[:n])
        below = right[n:] - self._cross.mT @ top
        return torch.cat([top, torch.linalg.solve_triangular(self._corner, below, upper=False)])
