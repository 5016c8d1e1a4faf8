"""The covariance of few points, from which blocks of rows are taken a stripe at a time.

With C the covariance of N points and W a block of m rows with signs S, C <- C - W' S W costs
m N^2 multiplications, too many for a single ask. So they are spread: each step carries the change
out for a stripe of C's rows, and a row that is asked for brings its stripe forward, so that numbers
do not depend on how far the steps have come. C itself comes from the kernel in the same way, with
the first block.
"""

from __future__ import annotations

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from botorch_delay.gp.kernels import covariance

# Rows of a block; and in how many stripes it is taken off, before the next one is full.
BLOCK = 192
STRIPES = 128


class StripedCovariance:
    """``C = K - W1' S1 W1 - W2' S2 W2 - ...`` of ``N`` points.

    On CUDA, where a block takes a moment and a look at the progress would wait for the device,
    blocks are taken off at once.

    Args:
        covar_module: the kernel.
        points: ``N x d``.
    """

    def __init__(self, covar_module: Kernel, points: Tensor) -> None:
        self._kernel, self._points = covar_module, points
        self._matrix: Tensor | None = None
        self._is_new = True  # whether its rows still have to come from the kernel
        self._rows, self._signs = points.new_empty(0, len(points)), points.new_empty(0)
        self._height = -(-len(points) // STRIPES)
        self._left: dict[int, None] = {}  # stripes that lack the block, in order

    @property
    def begun(self) -> bool:
        """Whether any block was taken."""
        return self._matrix is not None

    @property
    def left(self) -> int:
        """How many stripes lack the last block."""
        return len(self._left)

    @torch.no_grad()
    def take(self, rows: Tensor, signs: Tensor) -> None:
        """Begin to take off a block.

        Args:
            rows: W, ``m x N``; not to be changed afterwards.
            signs: the diagonal of S, ``m``.
        """
        self.finish()
        n = len(self._points)
        if self._matrix is None:
            self._matrix = self._points.new_empty(n, n)
        self._rows, self._signs = rows, signs
        self._left = dict.fromkeys(range(-(-n // self._height)))
        if rows.is_cuda:
            self.finish()

    def step(self) -> None:
        """Take the block off one more stripe, if there is one that lacks it."""
        if self._left:
            self._take_off(next(iter(self._left)))

    def finish(self) -> None:
        """Take the block off all that is left."""
        while self._left:
            self.step()

    def row(self, index: Tensor) -> Tensor:
        """One row of C, ``N``, for a LongTensor of shape 1."""
        assert self._matrix is not None
        if self._left and (stripe := int(index) // self._height) in self._left:
            self._take_off(stripe)
        return self._matrix.index_select(0, index).squeeze(0)

    @torch.no_grad()
    def _take_off(self, stripe: int) -> None:
        assert self._matrix is not None
        part = slice(stripe * self._height, (stripe + 1) * self._height)
        target, rows = self._matrix[part], self._rows
        if self._is_new:
            target.copy_(covariance(self._kernel, self._points[part], self._points))
        target.addmm_((self._signs.unsqueeze(1) * rows[:, part]).mT, rows, alpha=-1.0)
        del self._left[stripe]
        if not self._left:
            self._is_new = False
            self._rows, self._signs = rows[:0], self._signs[:0]

    def times(self, weights: Tensor) -> Tensor:
        """``C weights``, ``N``."""
        self.finish()
        assert self._matrix is not None
        return self._matrix @ weights
