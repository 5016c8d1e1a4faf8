"""Posterior covariance of fixed candidates, updated as answers at candidates come and go.

An answer with noise variance d at candidate i changes the covariance C of the N candidates by a
rank-one term,

    C <- C - w w',      w = C e_i / sqrt(C_ii + d);

removing one is the same update with a negative d and reversed signs. The rows w are collected in
blocks. For few candidates C itself is stored, and full blocks are folded into it (subtracted), so a
change costs O(N) times the rows of one block, however many changes came before. Folding a whole
block within one change would take too long, so it is spread out: each request for a column folds
one stripe of C's rows, the column's own if that is due, so that results do not depend on how far
folding has come. C is computed from the kernel in the same way, with the first block.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from botorch_delay.gp.kernels import covariance, prior_variance, rows_per_chunk

# C is stored for at most this many candidates: N^2 numbers, 128 MiB in double.
MAX_FOLDED = 4096
# Rows w per block, and rows of C per stripe. MAX_FOLDED / HEIGHT is below BLOCK: at one stripe per
# change a block is completely folded before the next one is full.
BLOCK = 192
HEIGHT = 22


class CandidateCovariance:
    """Posterior covariance C of ``N`` candidates, read by columns.

    On CUDA a full block is folded at once, which is fast there and does not wait for the device.

    Attributes:
        prior: k(x, x), ``N``; not to be written to.
        variance: the diagonal of C, ``N``, never negative; not to be written to.
        folded: how many blocks have been folded completely.
    """

    def __init__(self, covar_module: Kernel, points: Tensor) -> None:
        self.folded = 0
        self._kernel, self._points = covar_module, points
        with torch.no_grad():
            self.variance = prior_variance(covar_module, points).clone()
        self.prior = self.variance
        self._blocks: list[tuple[Tensor, Tensor]] = []  # rows, signs; the last is filling
        self._used = BLOCK  # rows used in the last block; full, so that the first row begins one
        self._matrix: Tensor | None = None
        self._folding = points.new_empty(0, len(points)), points.new_empty(0)
        self._unfolded: dict[int, None] = {}  # ordered stripes that lack the block being folded

    @torch.no_grad()
    def column(self, index: Tensor) -> Tensor:
        """Covariances of one candidate (its row, a LongTensor of shape 1) with all, ``N``."""
        if self._unfolded:
            stripe = int(index) // HEIGHT
            self._fold(stripe if stripe in self._unfolded else next(iter(self._unfolded)))
        if self._matrix is None:
            point = self._points.index_select(0, index)
            column = covariance(self._kernel, point, self._points).squeeze(0)
        else:
            column = self._matrix.index_select(0, index).squeeze(0)
        for rows, signs in self._filled():
            at = rows.index_select(1, index).squeeze(1)
            column.addmv_(rows.mT, signs * at, alpha=-1.0)
        return column

    def add_precision(
        self, row: int, precision: float, largest_error: float
    ) -> tuple[Tensor, Tensor] | None:
        """Add to the precision of a candidate's answers; a negative amount removes answers.

        Returns the candidate's column before the change, ``N``, and the factor by which its
        variance is divided. Returns None, with nothing changed, if rounding may change that factor
        by a share of more than ``largest_error``.
        """
        device = self.variance.device
        column = self.column(torch.full((1,), row, dtype=torch.long, device=device))
        growth = 1.0 + precision * column[row].clamp_min(0.0)
        if precision < 0.0:  # only then can digits cancel; the check waits for the device
            rounding = torch.finfo(column.dtype).eps * self.prior[row]
            if bool(-precision * rounding > largest_error * growth):
                return None
        if precision:
            sign = 1.0 if precision > 0.0 else -1.0
            self.downdate(column * (abs(precision) / growth).sqrt(), sign)
        return column, growth

    @torch.no_grad()
    def downdate(self, row: Tensor, sign: float = 1.0) -> None:
        """``C <- C - sign row row'``."""
        if self._used == BLOCK:
            self._begin_block()
        rows, signs = self._blocks[-1]
        rows[self._used] = row
        signs[self._used].fill_(sign)
        self._used += 1
        self.variance = self.variance.addcmul(row, row, value=-sign).clamp_min_(0.0)

    @torch.no_grad()
    def prior_times(self, weights: Tensor) -> Tensor:
        """``K weights`` for the prior covariance K, ``N``; cheap if most weights are 0."""
        at = weights.nonzero().flatten()
        parts = self._points.split(rows_per_chunk(len(at), self._points))
        return torch.cat(
            [covariance(self._kernel, part, self._points[at]) @ weights[at] for part in parts]
        )

    @torch.no_grad()
    def times(self, weights: Tensor) -> Tensor:
        """``C weights``, ``N``."""
        if not self.folded:  # C has still to be computed from the kernel
            self._fold(*self._unfolded)
        if self._matrix is None:
            product = self.prior_times(weights)
        else:
            product = self._matrix @ weights
            rows, signs = self._folding
            moments = signs * (rows @ weights)
            for stripe in self._unfolded:
                part = slice(stripe * HEIGHT, (stripe + 1) * HEIGHT)
                product[part] -= moments @ rows[:, part]
        for rows, signs in self._filled():
            product = product - (signs * (rows @ weights)) @ rows
        return product

    @torch.no_grad()
    def times_squares(self, weights: Tensor) -> Tensor:
        """``(C * C) weights``, with C squared by entry, ``N x k``; needs ``folded`` above 0."""
        assert self._matrix is not None
        assert self.folded
        product = torch.zeros_like(weights)
        for stripe, start in enumerate(range(0, len(weights), HEIGHT)):
            end = start + HEIGHT
            part, rest = slice(start, end), slice(start, None)  # C is symmetric
            C = self._matrix[part, rest].clone()
            missing = [self._folding] if stripe in self._unfolded else []
            for rows, signs in [*self._filled(), *missing]:
                C.addmm_((signs.unsqueeze(1) * rows[:, part]).mT, rows[:, rest], alpha=-1.0)
            C.square_()
            product[part] += C @ weights[rest]
            product[end:] += C[:, HEIGHT:].mT @ weights[part]
        return product

    @contextmanager
    def scratch(self) -> Iterator[None]:
        """A context that undoes, at its end, every :meth:`downdate` inside it: up to ``BLOCK``."""
        before = self._blocks, self._used, self.variance
        self._blocks = self._filled()
        self._add_block()
        try:
            yield
        finally:
            self._blocks, self._used, self.variance = before

    def _filled(self) -> list[tuple[Tensor, Tensor]]:
        """Rows and signs of the blocks not yet being folded, the last as far as it is used."""
        if not self._blocks:
            return []
        rows, signs = self._blocks[-1]
        return [*self._blocks[:-1], (rows[: self._used], signs[: self._used])]

    def _begin_block(self) -> None:
        n = len(self._points)
        if n <= MAX_FOLDED and self._blocks:
            self._fold(*self._unfolded)
            if self._matrix is None:
                self._matrix = self._points.new_empty(n, n)
            self._folding = self._blocks.pop()
            self._unfolded = dict.fromkeys(range(-(-n // HEIGHT)))
            if self._points.is_cuda:
                self._fold(*self._unfolded)
        self._add_block()

    def _add_block(self) -> None:
        rows = self._points.new_empty(BLOCK, len(self._points))
        self._blocks.append((rows, rows.new_empty(BLOCK)))
        self._used = 0

    @torch.no_grad()
    def _fold(self, *stripes: int) -> None:
        rows, signs = self._folding
        for stripe in stripes:
            assert self._matrix is not None
            part = slice(stripe * HEIGHT, (stripe + 1) * HEIGHT)
            target = self._matrix[part]
            if not self.folded:
                target.copy_(covariance(self._kernel, self._points[part], self._points))
            target.addmm_((signs.unsqueeze(1) * rows[:, part]).mT, rows, alpha=-1.0)
            del self._unfolded[stripe]
        if stripes and not self._unfolded:
            self.folded += 1
