"""The covariance of fixed candidates, as answers at candidates come in and are taken out.

An answer of noise d at candidate i changes the covariance C of all N candidates by one row,

    C <- C - w w',      w = C e_i / sqrt(C_ii + d),

and an answer that is taken out has d below 0 and turns the signs around. Rows are kept as a block
W, so that the column of a candidate is one of C less the block's share. Of few candidates C itself
is kept, and a full block is folded into it: a change then costs O(N) times the rows of one block,
however many went before. Folding costs m N^2 multiplications for m rows, too many for a single
change. So it is spread: each change folds the block into a stripe of C's rows, the one that it asks
for if that lacks the block, so that numbers do not depend on how far folding has come. C comes from
the kernel in the same way, with the first block.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from botorch_delay.gp.kernels import covariance, prior_variance, rows_per_chunk

# Up to this many candidates their covariance is kept: N^2 numbers, 128 MiB in double.
MAX_FOLDED = 4096
# Rows of a block; in how many stripes it is folded at most, before the next one is full; and the
# fewest rows of a stripe.
BLOCK = 192
STRIPES = 128
LEAST_HEIGHT = 16


class CandidateCovariance:
    """Posterior covariance of ``N`` candidates, of which any column can be had.

    On CUDA, where folding takes a moment and a look at its progress would wait for the device,
    blocks are folded at once, and nothing here waits. ``prior`` and ``variance`` are ``N``, the
    second never negative, and not to be written to; ``folded`` counts the blocks that are folded
    in full.
    """

    def __init__(self, covar_module: Kernel, points: Tensor) -> None:
        self.folded = 0
        self._kernel, self._points = covar_module, points
        with torch.no_grad():
            self.variance = prior_variance(covar_module, points).clone()
        self.prior = self.variance
        self._blocks: list[tuple[Tensor, Tensor]] = []  # rows and their signs; the last is open
        self._used = BLOCK  # rows of the last block
        self._matrix: Tensor | None = None
        self._is_new = True  # whether the matrix still has to come from the kernel
        self._height = max(-(-len(points) // STRIPES), LEAST_HEIGHT)
        self._unfolded: dict[int, None] = {}  # stripes that lack the block being folded, in order
        self._folding = points.new_empty(0, len(points)), points.new_empty(0)
        self._is_scratch = False

    @torch.no_grad()
    def column(self, index: Tensor) -> Tensor:
        """Covariances of a candidate (LongTensor of shape 1) with all of them, ``N``."""
        blocks = self._rows()
        if self._unfolded:
            stripe = int(index) // self._height
            if self._is_scratch and not self._is_new:
                blocks += [self._folding] if stripe in self._unfolded else []
            else:
                self._fold(stripe if stripe in self._unfolded else next(iter(self._unfolded)))
        if self._matrix is None:
            point = self._points.index_select(0, index)
            column = covariance(self._kernel, point, self._points).squeeze(0)
        else:
            column = self._matrix.index_select(0, index).squeeze(0)
        for rows, signs in blocks:
            at = rows.index_select(1, index).squeeze(1)
            column.addmv_(rows.mT, signs * at, alpha=-1.0)
        return column

    def add_precision(
        self, row: int, precision: float, largest_error: float
    ) -> tuple[Tensor, Tensor] | None:
        """Change the precision of a candidate's answers: below 0 where some are taken out.

        Its column before, ``N``, and by what factor the inverse of its variance grows; None, and
        nothing is changed, where rounding may be a larger share of that than ``largest_error``.
        """
        device = self.variance.device
        column = self.column(torch.full((1,), row, dtype=torch.long, device=device))
        growth = 1.0 + precision * column[row].clamp_min(0.0)
        if precision < 0.0:  # only then can it be: nothing else waits for a device
            rounding = torch.finfo(column.dtype).eps * self.prior[row]
            if bool(-precision * rounding > largest_error * growth):
                return None
        if precision:
            sign = 1.0 if precision > 0.0 else -1.0
            self.take_off(column * (abs(precision) / growth).sqrt(), sign)
        return column, growth

    @torch.no_grad()
    def take_off(self, row: Tensor, sign: float = 1.0) -> None:
        """``C <- C - sign row row'``."""
        if self._used == BLOCK:
            self._begin_block()
        rows, signs = self._blocks[-1]
        rows[self._used] = row
        signs[self._used].fill_(sign)
        self._used += 1
        self.variance = self.variance.addcmul(row, row, value=-sign).clamp_min_(0.0)

    @torch.no_grad()
    def times(self, weights: Tensor) -> Tensor:
        """``C weights``, ``N``."""
        while self._unfolded and self._is_new:
            self._fold(next(iter(self._unfolded)))
        if self._matrix is None:
            at = weights.nonzero().flatten()
            product = covariance(self._kernel, self._points, self._points[at]) @ weights[at]
        else:
            product = self._matrix @ weights
            rows, signs = self._folding
            moments = signs * (rows @ weights)
            for stripe in self._unfolded:
                part = slice(stripe * self._height, (stripe + 1) * self._height)
                product[part] -= moments @ rows[:, part]
        for rows, signs in self._rows():
            product = product - (signs * (rows @ weights)) @ rows
        return product

    @torch.no_grad()
    def times_squares(self, weights: Tensor) -> Tensor:
        """Squares of the entries of C, times ``N x k``; once a block has been folded."""
        assert self._matrix is not None
        assert not self._is_new
        product, height = torch.zeros_like(weights), self._height
        # Of several stripes at a time, as many as stay in the cache.
        size = max(rows_per_chunk(len(weights), weights) // height, 1) * height
        for start in range(0, len(weights), size):
            end = start + size
            part, rest = slice(start, end), slice(start, None)  # C is symmetric
            C = self._matrix[part, rest].clone()
            for rows, signs in self._rows():
                C.addmm_((signs.unsqueeze(1) * rows[:, part]).mT, rows[:, rest], alpha=-1.0)
            rows, signs = self._folding
            for first in range(start, min(end, len(weights)), height):
                if first // height in self._unfolded:
                    left = signs.unsqueeze(1) * rows[:, first : first + height]
                    lines = C[first - start : first - start + height]
                    lines.addmm_(left.mT, rows[:, rest], alpha=-1.0)
            C.square_()
            product[part] += C @ weights[rest]
            product[end:] += C[:, size:].mT @ weights[part]
        return product

    @contextmanager
    def scratch(self) -> Iterator[None]:
        """Up to ``BLOCK`` rows that are taken off inside are taken back at the end."""
        before = self._blocks, self._used, self.variance
        self._blocks, self._used, self._is_scratch = self._rows(), BLOCK, True
        self._add_block()
        try:
            yield
        finally:
            (self._blocks, self._used, self.variance), self._is_scratch = before, False

    def _rows(self) -> list[tuple[Tensor, Tensor]]:
        """The blocks that are not being folded, as far as they are filled."""
        if not self._blocks:
            return []
        rows, signs = self._blocks[-1]
        return [*self._blocks[:-1], (rows[: self._used], signs[: self._used])]

    def _begin_block(self) -> None:
        n = len(self._points)
        if n <= MAX_FOLDED and self._blocks:
            while self._unfolded:
                self._fold(next(iter(self._unfolded)))
            if self._matrix is None:
                self._matrix = self._points.new_empty(n, n)
            self._folding = self._blocks.pop()
            self._unfolded = dict.fromkeys(range(-(-n // self._height)))
            while self._unfolded and self._points.is_cuda:
                self._fold(next(iter(self._unfolded)))
        self._add_block()

    def _add_block(self) -> None:
        rows = self._points.new_empty(BLOCK, len(self._points))
        self._blocks.append((rows, rows.new_empty(BLOCK)))
        self._used = 0

    @torch.no_grad()
    def _fold(self, stripe: int) -> None:
        assert self._matrix is not None
        rows, signs = self._folding
        part = slice(stripe * self._height, (stripe + 1) * self._height)
        target = self._matrix[part]
        if self._is_new:
            target.copy_(covariance(self._kernel, self._points[part], self._points))
        target.addmm_((signs.unsqueeze(1) * rows[:, part]).mT, rows, alpha=-1.0)
        del self._unfolded[stripe]
        if not self._unfolded:
            self._is_new = False
            self.folded += 1
