"""Greedy maximum-variance design: each point is where the points so far leave most variance.

The k-th point maximises sigma_{k-1} (paper, equation maxvar). With L the Cholesky factor of
K(picks, picks) + lambda^2 I and W = L^-1 K(picks, candidates), picking p appends to W the row

    w = (k(p, .) - W[:, p]' W) / sqrt(v_p + lambda^2),      v <- v - w^2,

and w at p together with the root is the new row of L. This is a pivoted Cholesky factorization
of K + lambda^2 I in which a pivot may come again, since a point that is evaluated twice has two
independent noises. No value enters: a round can be designed before any answer arrives.

Kept in full, W has one row of N numbers per pick, and pick k reads all k of them. Two forms
avoid that. `_Rows` keeps W, and where there are few candidates folds it, a block of rows at a
time and that in small steps, into their covariance C <- C - W'W: an ask then costs the same however
many went before, also when picks outnumber candidates. `_Lazy` keeps no W for all candidates.
Variances only fall as points are added, so that every variance computed earlier is an upper bound:
only candidates whose bound reaches the largest variance need to be looked at. It computes those
anew, by a triangular solve with L, keeps the ones within a hair of the largest on a shortlist whose
W does grow pick by pick, and goes back to the others when the shortlist's largest falls to the
threshold below which everything else is known to lie.

Ties go to the lowest index whose variance is at least (1 - 1e-8) times the largest, in every
form.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from botorch_delay import validation
from botorch_delay.design.ties import largest_and_tied, lowest_of_largest, tie_tolerance
from botorch_delay.exceptions import ExhaustedDesignError, NumericsError
from botorch_delay.gp.kernels import check_kernel, covariance, prior_variance, rows_per_chunk
from botorch_delay.gp.posterior import factorize
from botorch_delay.gp.striped import BLOCK, StripedCovariance

# Up to so many candidates their covariance is kept: 134 MB in double.
MAX_FOLDED = 4096
# Picks made at once where one is asked for: the others are there when they are needed.
AHEAD = 8
# Stripes of the covariance that a block is folded into meanwhile: where picks are made by the rule,
# all of them before the next block is full.
FOLDED_AHEAD = 6
# The shortlist holds what is within this share of the largest variance, and at most so many.
SHORTLIST_SHARE = 0.02
SHORTLIST_MIN = 64
SHORTLIST_MAX = 65_536
# Repeated picks are merged when there are so many more rows of L than distinct picks.
SPARE_ROWS = 256


class GreedyDesign:
    """A greedy design that grows one pick at a time.

    Up to 4,096 candidates, and on CUDA, W is kept; see the module. On CUDA :meth:`extend` makes
    all its picks without waiting for the device.

    Args:
        covar_module: the kernel.
        candidates: ``N x d``.
        noise_var: lambda^2.
        picks: indices to begin with, in this order, chosen by the rule or not.
    """

    def __init__(
        self, covar_module: Kernel, candidates: Tensor, noise_var: float, picks: Iterable[int] = ()
    ) -> None:
        few = len(candidates) <= MAX_FOLDED
        self._form: _Rows | _Lazy
        if few or candidates.is_cuda:
            self._form = _Rows(covar_module, candidates, noise_var, fold=few)
        else:
            self._form = _Lazy(covar_module, candidates, noise_var)
        self._excluded: set[int] = set()
        self._ahead: deque[int] = deque()
        self._candidates = candidates
        self._picks: list[int] = []
        for index in picks:
            self.add(index)

    @property
    def picks(self) -> list[int]:
        """The indices picked so far, in order."""
        return list(self._picks)

    @property
    def variance(self) -> Tensor:
        """Posterior variance of every candidate given the picks, ``N``."""
        self._rewind()
        return self._form.variance

    @property
    def largest(self) -> float:
        """The largest posterior variance given the picks, of the candidates that are not excluded.

        Raises:
            ExhaustedDesignError: if every candidate is excluded.
        """
        if len(self._excluded) == len(self._candidates):
            raise ExhaustedDesignError("Every candidate of the design is excluded.")
        self._rewind()
        return self._form.largest()

    def exclude(self, index: int, excluded: bool = True) -> None:
        """Keep a candidate from being picked, or allow it again; its past picks still count."""
        self._rewind()
        if excluded:
            self._excluded.add(index)
        else:
            self._excluded.discard(index)
        self._form.mask = self._mask()

    def next(self) -> int:
        """The index that the rule picks now.

        Raises:
            ExhaustedDesignError: if every candidate is excluded.
        """
        if len(self._excluded) == len(self._candidates):
            raise ExhaustedDesignError("Every candidate of the design is excluded.")
        if not isinstance(self._form, _Rows):
            return self._form.next()
        if not self._ahead:
            self._ahead.extend(self._form.look_ahead(AHEAD))
        return self._ahead[0]

    def add(self, index: int) -> None:
        """Count ``index`` as picked."""
        if self._ahead and self._ahead[0] == index:
            self._ahead.popleft()
        else:
            self._rewind()
            self._form.add(index)
        self._picks.append(index)

    def extend(self, n: int) -> list[int]:
        """Pick ``n`` more points by the rule and return their indices."""
        if isinstance(self._form, _Rows) and len(self._excluded) < len(self._candidates):
            self._rewind()
            made = self._form.extend(n)
            self._picks += made
            return made
        for _ in range(n):
            self.add(self.next())
        return self._picks[len(self._picks) - n :]

    def _rewind(self) -> None:
        """Forget the picks that were made ahead and not taken."""
        if self._ahead:
            assert isinstance(self._form, _Rows)
            self._form.rewind(len(self._ahead))
            self._ahead.clear()

    def _mask(self) -> Tensor | None:
        if not self._excluded:
            return None
        mask = torch.zeros(len(self._candidates), dtype=torch.bool, device=self._candidates.device)
        mask[torch.tensor(sorted(self._excluded), device=mask.device)] = True
        return mask


class _Rows:
    """The variance of every candidate, and W in blocks of rows.

    Args:
        kernel: the kernel.
        points: ``N x d``.
        noise: lambda^2.
        fold: whether full blocks are folded into the covariance of the candidates.
    """

    def __init__(self, kernel: Kernel, points: Tensor, noise: float, fold: bool) -> None:
        self.mask: Tensor | None = None
        self._kernel, self._points, self._noise = kernel, points, noise
        with torch.no_grad():
            self.variance = prior_variance(kernel, points).clone()
        self._blocks: list[Tensor] = []
        self._used = BLOCK  # rows of the last block
        self._before = self.variance, 0  # when it was last looked ahead, and the rows then
        self._covariance = StripedCovariance(kernel, points) if fold else None

    def add(self, index: int) -> None:
        self._add(torch.tensor([index], device=self._points.device))

    def extend(self, n: int) -> list[int]:
        """So many picks by the rule; the host looks at them only when all are made."""
        made = []
        for _ in range(n):
            variance = self.variance
            if self.mask is not None:
                variance = variance.masked_fill(self.mask, -torch.inf)
            _, tied = largest_and_tied(variance)
            made.append(tied.byte().argmax().unsqueeze(0))
            self._add(made[-1])
        picks: list[int] = torch.cat(made).tolist() if made else []
        _check_finite(self.variance.max())
        return picks

    def largest(self) -> float:
        if self.mask is None:
            return self.variance.max().item()
        return self.variance.masked_fill(self.mask, -torch.inf).max().item()

    def look_ahead(self, n: int) -> list[int]:
        """At least one pick and at most ``n``, which :meth:`rewind` can take back."""
        if self._used == BLOCK:
            self._begin_block()  # what is folded cannot be taken back
        self._before = self.variance.clone(), self._used
        if self._covariance is None:
            return self.extend(min(n, BLOCK - self._used))
        goal = self._covariance.left - FOLDED_AHEAD
        made = self.extend(min(n, BLOCK - self._used))
        while self._covariance.left > max(goal, 0):
            self._covariance.step()
        return made

    def rewind(self, n: int) -> None:
        """Take back the last ``n`` picks of those made ahead, to the last bit."""
        variance, start = self._before
        self._used -= n
        for row in self._blocks[-1][start : self._used]:
            variance.addcmul_(row, row, value=-1.0).clamp_min_(0.0)
        self.variance = variance

    @torch.no_grad()
    def _add(self, index: Tensor) -> None:
        """Count a pick, a LongTensor of shape 1."""
        if self._used == BLOCK:
            self._begin_block()
        row = self._blocks[-1][self._used]
        if self._covariance is None or not self._covariance.begun:
            point = self._points.index_select(0, index)
            row.copy_(covariance(self._kernel, point, self._points).squeeze(0))
        else:
            row.copy_(self._covariance.row(index))
        for number, block in enumerate(self._blocks):
            last = number == len(self._blocks) - 1
            rows = block[: self._used] if last else block
            row.addmv_(rows.mT, rows.index_select(1, index).squeeze(1), alpha=-1.0)
        row.div_((self.variance.index_select(0, index) + self._noise).sqrt())
        self.variance.addcmul_(row, row, value=-1.0).clamp_min_(0.0)
        self._used += 1

    def _begin_block(self) -> None:
        self._used = 0
        if self._covariance is not None and self._blocks:
            full = self._blocks.pop()
            self._covariance.take(full, torch.ones_like(full[:, 0]))
        self._blocks.append(self._points.new_empty(BLOCK, len(self._points)))


class _Lazy:
    """Upper bounds on the variance of every candidate, and exact ones on a shortlist.

    Args:
        kernel: the kernel.
        points: ``N x d``.
        noise: lambda^2.
    """

    def __init__(self, kernel: Kernel, points: Tensor, noise: float) -> None:
        self._kernel, self._points, self._noise = kernel, points, noise
        with torch.no_grad():
            self._prior = prior_variance(kernel, points)
            self._upper = self._prior.clone()
        self._mask: Tensor | None = None
        self._fresh = torch.zeros(len(points), dtype=torch.int32)  # picks that a bound counts
        self._rows: dict[int, int] = {}  # how often each candidate was picked
        self._picked = points.new_empty(0, points.shape[1])
        self._factor = points.new_empty(0, 0)
        self._size = 0
        self._shortlist: _Shortlist | None = None

    @property
    def mask(self) -> Tensor | None:
        """The excluded candidates, ``N``; None if there are none."""
        return self._mask

    @mask.setter
    def mask(self, mask: Tensor | None) -> None:
        self._drop_shortlist()
        self._mask = mask

    @property
    def variance(self) -> Tensor:
        """Every candidate's, computed anew where it is out of date."""
        self._drop_shortlist()
        self._refresh((self._fresh < self._size).nonzero().flatten())
        return self._upper

    def next(self) -> int:
        if not self._size:
            bounds = self._open_bounds()
            _check_finite(bounds.max())
            return lowest_of_largest(bounds)
        index = None if self._shortlist is None else self._shortlist.next()
        if index is None:
            self._drop_shortlist()
            self._shortlist = self._screen()
            index = self._shortlist.next()
        if index is None:  # nothing stands out: every variance is 0, or tied
            _ = self.variance
            return lowest_of_largest(self._open_bounds())
        return index

    def largest(self) -> float:
        return self._column(self.next())[1].item()

    @torch.no_grad()
    def _column(self, index: int) -> tuple[Tensor, Tensor]:
        """A candidate's column of W, and its variance."""
        row = None if self._shortlist is None else self._shortlist.column(index)
        if row is None:
            row = self._solve(self._points[index : index + 1]).squeeze(1)
        return row, (self._prior[index] - row.square().sum()).clamp_min(0.0)

    @torch.no_grad()
    def add(self, index: int) -> None:
        if self._size >= 2 * len(self._rows) + SPARE_ROWS:
            self._merge()
        k, shortlist = self._size, self._shortlist
        row, variance = self._column(index)
        root = (variance + self._noise).sqrt()
        self._reserve(k + 1)
        self._factor[k, :k], self._factor[k, k] = row, root
        self._picked[k] = self._points[index]
        if shortlist is not None:
            shortlist.add(
                covariance(self._kernel, self._picked[k : k + 1], shortlist.points), row, root
            )
        self._size += 1
        self._rows[index] = self._rows.get(index, 0) + 1

    def _screen(self) -> _Shortlist:
        """A shortlist of everything whose variance is within a share of the largest."""
        bounds = self._open_bounds()
        top = threshold = bounds.max()
        _check_finite(top)
        least = min(SHORTLIST_MIN, int((bounds > 0.0).sum()))
        while True:
            # Where bounds fell by more than the share, the largest is further down.
            threshold = torch.minimum(threshold, top) * (1.0 - SHORTLIST_SHARE)
            reach = (bounds >= threshold).nonzero().flatten()
            stale = reach[self._fresh[reach] < self._size]
            self._refresh(stale)
            bounds[stale] = self._upper[stale]
            kept = reach[bounds[reach] >= threshold]
            if len(kept) >= least or float(threshold) <= torch.finfo(bounds.dtype).tiny:
                break
            top = bounds.max()
        ceiling, beyond = threshold, 0
        if len(kept) > SHORTLIST_MAX:
            # Of many that share the least variance, those of the lowest index come first.
            values, tolerance = bounds[kept], tie_tolerance(bounds.dtype)
            lowest = values.topk(SHORTLIST_MAX).values[-1]
            above = (values > lowest * (1.0 + tolerance)).nonzero().flatten()
            tied = (values >= lowest * (1.0 - tolerance)).nonzero().flatten()
            tied = tied[values[tied] <= lowest * (1.0 + tolerance)]
            tied, left = tied.tensor_split((SHORTLIST_MAX - len(above),))
            ceiling = lowest * (1.0 - tolerance)
            if len(left):
                ceiling, beyond = values[left].max(), int(kept[left[0]])
            kept = kept[torch.cat([above, tied]).sort().values]
        rows = self._solve(self._points[kept])
        return _Shortlist(kept, self._points[kept], rows, bounds[kept], ceiling, beyond)

    def _refresh(self, indices: Tensor) -> None:
        """Present variances of some candidates."""
        if not len(indices):
            return
        for part in indices.split(rows_per_chunk(self._size, self._points)):
            explained = self._solve(self._points[part]).square_().sum(dim=0)
            self._upper[part] = (self._prior[part] - explained).clamp_min_(0.0)
        self._fresh[indices] = self._size

    @torch.no_grad()
    def _solve(self, X: Tensor) -> Tensor:
        """``L^-1 K(picks, X)``, ``k x n``."""
        k = self._size
        out = X.new_empty(k, len(X))
        if not k:
            return out
        size = rows_per_chunk(k, X)
        for start in range(0, len(X), size):
            cross = covariance(self._kernel, self._picked[:k], X[start : start + size])
            out[:, start : start + size] = torch.linalg.solve_triangular(
                self._factor[:k, :k], cross, upper=False
            )
        return out

    def _drop_shortlist(self) -> None:
        if self._shortlist is not None:
            members = self._shortlist.members
            self._upper[members] = self._shortlist.variance
            self._fresh[members] = self._size
            self._shortlist = None

    def _open_bounds(self) -> Tensor:
        if self._mask is None:
            return self._upper.clone()
        return self._upper.masked_fill(self._mask, -torch.inf)

    def _merge(self) -> None:
        """One row of L per distinct pick: n picks of noise lambda^2 are one of lambda^2 / n."""
        self._drop_shortlist()
        indices = torch.tensor(list(self._rows))
        counts = self._prior.new_tensor(list(self._rows.values()))
        self._size = len(indices)
        self._picked = self._points[indices]
        K = covariance(self._kernel, self._picked, self._picked)
        self._factor, _ = factorize(K, self._noise / counts)
        self._fresh.clamp_max_(self._size - 1)  # valid bounds still

    def _reserve(self, rows: int) -> None:
        if rows <= len(self._picked):
            return
        size, k = max(2 * len(self._picked), rows, 64), self._size
        picked, factor = self._picked[:k], self._factor[:k, :k]
        self._picked = picked.new_empty(size, picked.shape[1])
        self._factor = factor.new_zeros(size, size)
        self._picked[:k], self._factor[:k, :k] = picked, factor


class _Shortlist:
    """Candidates with exact variances, and what is known of the rest.

    Args:
        members: indices, ``n``, increasing.
        points: ``n x d``.
        rows: W at them, ``k x n``.
        variance: ``n``.
        ceiling: no other candidate has more, but those counted on by ``beyond``.
        beyond: others from this index on may have as much as the ceiling; 0 for all.
    """

    def __init__(
        self,
        members: Tensor,
        points: Tensor,
        rows: Tensor,
        variance: Tensor,
        ceiling: Tensor,
        beyond: int,
    ) -> None:
        self.members, self.points, self.variance = members, points, variance
        self._ceiling, self._beyond = float(ceiling), beyond
        self._rows, self._size = rows, len(rows)

    def next(self) -> int | None:
        """The index that the rule picks; None where it may be elsewhere."""
        top = float(self.variance.max())
        floor = (1.0 - tie_tolerance(self.variance.dtype)) * max(top, self._ceiling)
        if top < floor or (self._ceiling >= floor and not self._beyond):
            return None
        index = int(self.members[(self.variance >= floor).byte().argmax()])
        return index if self._ceiling < floor or index < self._beyond else None

    def column(self, index: int) -> Tensor | None:
        """W at a candidate, ``k``; None if it is no member."""
        position = int(torch.searchsorted(self.members, index))
        if position == len(self.members) or int(self.members[position]) != index:
            return None
        return self._rows[: self._size, position].clone()

    def add(self, cross: Tensor, row: Tensor, root: Tensor) -> None:
        """One pick more: its kernel values ``1 x n``, W at it, and the new diagonal of L."""
        if self._size == len(self._rows):
            grown = self._rows.new_empty(self._size + 64, len(self.members))
            grown[: self._size] = self._rows
            self._rows = grown
        new = (cross.squeeze(0) - row @ self._rows[: self._size]) / root
        self._rows[self._size] = new
        self._size += 1
        self.variance.sub_(new.square()).clamp_min_(0.0)


def greedy_max_variance(
    covar_module: Kernel, candidates: Tensor, noise_var: float, n: int
) -> Tensor:
    """The greedy maximum-variance design of ``n`` points; a point may be picked more than once.

    Args:
        covar_module: the kernel.
        candidates: ``N x d``.
        noise_var: lambda^2, above 0.
        n: how many points, at least 1.

    Returns:
        A LongTensor of shape ``n``, indices into ``candidates``, in order. Ties go to the
        lowest index whose variance is at least ``1 - 1e-8`` times the largest.

    Raises:
        InputError: if an argument is malformed.

    Example:
        >>> from gpytorch.kernels import RBFKernel
        >>> line = torch.linspace(0, 1, 5, dtype=torch.double).unsqueeze(-1)
        >>> greedy_max_variance(RBFKernel().double(), line, noise_var=1e-2, n=3)
        tensor([0, 4, 2])
    """
    candidates = validation.matrix(candidates, "candidates")
    check_kernel(covar_module, candidates)
    noise = validation.noise_variance(noise_var, "noise_var", candidates)
    design = GreedyDesign(covar_module, candidates, noise)
    picks = design.extend(validation.whole(n, "n", 1))
    return torch.tensor(picks, dtype=torch.long, device=candidates.device)


def _check_finite(largest: Tensor) -> None:
    if not torch.isfinite(largest):
        raise NumericsError("The variance of some candidate is not finite.")
