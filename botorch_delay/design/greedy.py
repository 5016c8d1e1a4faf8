"""Greedy maximum-variance design: each pick is the point where earlier picks leave most variance.

The k-th pick maximises the fantasy deviation sigma_{k-1} (paper, Algorithm 1, the argmax), which
depends on no value: a round can be designed before any answer arrives. A point may be picked again,
since two evaluations of it have independent noise.

For few candidates, and on CUDA, their covariance is kept up to date. For many, only upper bounds
on variances are kept. Variances fall as picks are added, so any variance computed earlier is a
bound, and only candidates whose bound reaches the largest variance need a new one. Those close to
the largest form a shortlist, whose posterior is kept up to date until its largest variance falls to
the threshold that bounds all others.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from botorch_delay import validation
from botorch_delay.design.ascent import lowest_of_largest, lowest_tied, tie_tolerance
from botorch_delay.domains.devices import sent, sent_rows
from botorch_delay.exceptions import ExhaustedDesignError, NumericsError
from botorch_delay.gp.candidate_covariance import BLOCK, MAX_FOLDED, CandidateCovariance
from botorch_delay.gp.candidates import Answer, CandidatePosterior
from botorch_delay.gp.kernels import check_kernel, prior_variance
from botorch_delay.gp.posterior import Data, Moments, Posterior

# Precisions that differ by less, as a share of the largest, count as equal.
SAME = 1e-12
# Largest relative rounding error allowed when picks without an answer are removed.
LARGEST_ERROR = 1e-8
# The shortlist has the candidates within this share of the largest variance.
SHORTLIST_SHARE = 0.02
SHORTLIST_MIN = 64  # the share grows until there are this many
SHORTLIST_MAX = 65_536  # of more, those with the largest variances are kept


class GreedyDesign:
    """A greedy design that grows one pick at a time.

    On CUDA :meth:`extend` makes all its picks without waiting for the device, and stores one row
    of N numbers per pick: 8 GB for 1,000 picks among 1,000,000 candidates in double. On the CPU
    memory is bounded, since a shortlist has at most ``SHORTLIST_MAX`` columns.

    ``candidates`` are ``N x d``; earlier ``picks``, made by the rule or not, are replayed. ``rows``
    (an increasing LongTensor) has the index that names each candidate; 0 to N - 1 if None.
    """

    def __init__(
        self,
        covar_module: Kernel,
        candidates: Tensor,
        noise_var: float,
        picks: Iterable[int] = (),
        rows: Tensor | None = None,
    ) -> None:
        self._mask = torch.zeros(len(candidates), dtype=torch.bool, device=candidates.device)
        tracked = len(candidates) <= MAX_FOLDED or candidates.is_cuda
        self._form: _Tracked | _Lazy = (_Tracked if tracked else _Lazy)(
            covar_module, candidates, noise_var, self._mask
        )
        self._rows = torch.arange(len(candidates)) if rows is None else rows.cpu()
        self._picks = array("q")  # positions among the candidates
        for index in picks:
            self.add(index)

    @property
    def variance(self) -> Tensor:
        """Posterior variance of every candidate given the picks, ``N``."""
        return self._form.variance

    def exclude(self, index: int, excluded: bool = True) -> None:
        self._mask[self._place(index)].fill_(excluded)
        if isinstance(self._form, _Lazy):
            self._form.drop_shortlist()

    def next(self) -> int:
        return int(self._rows[self._form.next()])

    def add(self, index: int) -> None:
        place = self._place(index)
        self._form.add(place)
        self._picks.append(place)

    @torch.no_grad()
    def moments(
        self, data: Data, answered: Tensor, at: Tensor, *, weights: bool = False
    ) -> Moments | None:
        """The posterior at the indices ``at``, ``n``, given answers at ``answered``, ``m``.

        Nothing is factorized: the covariance given the picks is changed where picks have no answer
        or answers are not at picks. With C the covariance given the answers, the mean is
        ``C D^-1 y``, and the answers' weights are ``D^-1 C``. None if no covariance is stored, if
        C takes too many changes or loses too many digits, or if an answer is not at a candidate.
        """
        own = self._rows.to(at.device)
        if not isinstance(self._form, _Tracked) or not bool(torch.isin(answered, own).all()):
            return None
        places, rows = torch.searchsorted(own, answered), torch.searchsorted(own, at)
        kept = self._form
        precision = torch.zeros_like(kept.prior)
        precision[places] = 1.0 / data.noise_var
        picked = sent_rows(self._picks, at).bincount(minlength=len(precision))
        change = precision - picked.to(precision) / kept.noise
        changed = (change.abs() > SAME * precision.max()).nonzero().flatten().tolist()
        if not kept.folded or len(changed) > BLOCK:
            return None
        with kept.scratch():
            for row in changed:
                if kept.add_precision(row, change[row].item(), LARGEST_ERROR) is None:
                    return None
            y, spread = torch.zeros_like(precision), torch.zeros_like(precision)
            y[places], spread[places] = data.y, data.spread
            mean, variance = kept.times(precision * y), kept.variance[rows]
            relative = (len(self._picks) + 1) * torch.finfo(mean.dtype).eps
            backward = relative * kept.prior.max()
            noise_norm = penalty = torch.zeros_like(variance)
            mean_rounding = (backward * (precision * y).norm()).expand_as(variance)
            if weights:
                # One step of refinement, after which errors are those of a backward stable solve:
                # without it they are relative to the answers, which may be far larger than alpha.
                alpha = precision * (y - mean)
                by_kernel = kept.prior_times(alpha)
                mean = by_kernel + kept.times(precision * (mean - by_kernel))
                factors = torch.stack([spread * precision.square(), precision, precision.square()])
                squares = kept.times_squares(factors.mT)[rows]
                noise_norm, penalty = squares[:, 0].sqrt(), squares[:, 1]
                mean_rounding = backward * alpha.norm() * squares[:, 2].sqrt()
        rounding = relative * kept.prior[rows]
        return Moments(mean[rows], variance, noise_norm, penalty, rounding, mean_rounding)

    def extend(self, n: int) -> list[int]:
        """Pick ``n`` more points by the rule and return their indices."""
        made = self._form.extend(n)
        self._picks.extend(made)
        return self._rows[made].tolist()

    def _place(self, index: int) -> int:
        return int(torch.searchsorted(self._rows, index))


class _Tracked(CandidateCovariance):
    """The covariance of all candidates given the picks; ``mask``, ``N``, marks excluded ones."""

    def __init__(self, kernel: Kernel, points: Tensor, noise: float, mask: Tensor) -> None:
        super().__init__(kernel, points)
        self.noise, self._mask = noise, mask

    def add(self, index: int) -> None:
        self._add(sent_rows([index], self.variance))

    def extend(self, n: int) -> list[int]:
        """Make ``n`` picks by the rule; the host reads them only after the last one."""
        made = []
        for _ in range(n):
            made.append(lowest_tied(self._open_variance()))
            self._add(made[-1])
        _check_largest(self._open_variance().max())
        picks: list[int] = torch.cat(made).tolist()
        return picks

    def next(self) -> int:
        variance = self._open_variance()
        top = _check_largest(variance.max())
        # As lowest_of_largest, but without a second search for the largest.
        return int((variance >= top - tie_tolerance(variance.dtype) * top).byte().argmax())

    def _open_variance(self) -> Tensor:
        return self.variance.masked_fill(self._mask, -torch.inf)

    @torch.no_grad()
    def _add(self, index: Tensor) -> None:
        """Condition on a pick, a LongTensor of shape 1."""
        column = self.column(index)
        self.downdate(column.div_((self.variance.index_select(0, index) + self.noise).sqrt()))


class _Lazy:
    """Upper bounds on the variance of every candidate, and exact variances on a shortlist.

    ``mask``, ``N``, marks excluded candidates; the shortlist must be dropped when it changes.
    """

    def __init__(self, kernel: Kernel, points: Tensor, noise: float, mask: Tensor) -> None:
        self._kernel, self._points, self._noise, self._mask = kernel, points, noise, mask
        with torch.no_grad():
            self._upper = prior_variance(kernel, points).clone()
        self._adds = 0
        self._fresh = torch.zeros(len(points), dtype=torch.int32)  # picks counted in each bound
        self._counts: Counter[int] = Counter()  # how often each candidate was picked
        self._shortlist: _Shortlist | None = None
        self._posterior: Posterior | None = None  # given the picks at the last refresh

    @property
    def variance(self) -> Tensor:
        """Exact variances of all candidates, ``N``; outdated ones are recomputed."""
        self.drop_shortlist()
        self._refresh((self._fresh < self._adds).nonzero().flatten())
        return self._upper

    def next(self) -> int:
        if not self._adds:
            bounds = self._open_bounds()
            _check_largest(bounds.max())
            return lowest_of_largest(bounds)
        index = None if self._shortlist is None else self._shortlist.next()
        if index is None:
            self.drop_shortlist()
            self._shortlist = self._screen()
            index = self._shortlist.next()
        if index is None:  # all variances are 0, or tied
            return lowest_of_largest(self.variance.masked_fill(self._mask, -torch.inf))
        return index

    def add(self, index: int) -> None:
        self._counts[index] += 1
        self._adds += 1
        if self._shortlist is not None:
            self._shortlist.posterior.update({index: self._pick(index)})

    def extend(self, n: int) -> list[int]:
        made = []
        for _ in range(n):
            made.append(self.next())
            self.add(made[-1])
        return made

    def _pick(self, index: int) -> Answer:
        """All picks of a candidate as one answer; n picks have noise variance lambda^2 / n."""
        return self._points[index], 0.0, self._noise / self._counts[index]

    def _screen(self) -> _Shortlist:
        """A shortlist of the candidates whose variance is within a share of the largest."""
        bounds = self._open_bounds()
        top = threshold = bounds.max()
        _check_largest(top)
        least, share = min(SHORTLIST_MIN, int((bounds > 0.0).sum())), SHORTLIST_SHARE
        while True:
            # Lowered in each pass: refreshed bounds may all have fallen below the last threshold.
            threshold = torch.minimum(threshold, top) * (1.0 - share)
            share = min(1.25 * share, 0.5)  # growing, since each pass computes some variances
            reach = (bounds >= threshold).nonzero().flatten()
            stale = reach[self._fresh[reach] < self._adds]
            self._refresh(stale)
            bounds[stale] = self._upper[stale]
            kept = reach[bounds[reach] >= threshold]
            if len(kept) >= least or float(threshold) <= torch.finfo(bounds.dtype).tiny:
                break
            top = bounds.max()
        ceiling, beyond = threshold, 0
        if len(kept) > SHORTLIST_MAX:
            # Of those tied at the smallest variance kept, the lowest indices stay.
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
        posterior = CandidatePosterior(self._kernel, self._points, pool=kept)
        posterior.update({index: self._pick(index) for index in self._counts})
        return _Shortlist(kept, posterior, float(ceiling), beyond)

    def _refresh(self, indices: Tensor) -> None:
        """Compute the exact variances of some candidates, given all picks."""
        if not len(indices):
            return
        labels = [*self._counts.items()]
        if self._posterior is None or self._posterior.labels != labels:
            picks = sent_rows([*self._counts], self._points)
            noise = self._noise / sent([*self._counts.values()], self._upper)
            data = Data.single(self._points[picks], torch.zeros_like(noise), noise)
            self._posterior = Posterior(self._kernel, data, labels=labels, before=self._posterior)
        self._upper[indices] = self._posterior.variance(self._points[indices])
        self._fresh[indices] = self._adds

    def drop_shortlist(self) -> None:
        if self._shortlist is not None:
            members = self._shortlist.members
            self._upper[members] = self._shortlist.posterior.variance_in_pool
            self._fresh[members] = self._adds
            self._shortlist = None

    def _open_bounds(self) -> Tensor:
        return self._upper.masked_fill(self._mask, -torch.inf)


@dataclass(frozen=True)
class _Shortlist:
    """Candidates whose variances are exact, and a bound on the variances of all others."""

    members: Tensor  # indices, ``n``, increasing
    posterior: CandidatePosterior  # given the picks; the members are its pool
    ceiling: float  # upper bound on the variance of every other candidate
    beyond: int  # of the others only those from this index on may reach it; 0 if any may

    def next(self) -> int | None:
        """The index that the rule picks; None if that may be a candidate outside the shortlist."""
        variance = self.posterior.variance_in_pool
        top = float(variance.max())
        floor = (1.0 - tie_tolerance(variance.dtype)) * max(top, self.ceiling)
        if top < floor or (self.ceiling >= floor and not self.beyond):
            return None
        index = int(self.members[(variance >= floor).byte().argmax()])
        return index if self.ceiling < floor or index < self.beyond else None


def greedy_max_variance(
    covar_module: Kernel, candidates: Tensor, noise_var: float, n: int
) -> Tensor:
    """The greedy maximum-variance design of ``n`` points; a point may be picked more than once.

    Args:
        covar_module: the kernel.
        candidates: ``N x d``.
        noise_var: lambda^2, above 0.
        n: the number of picks, at least 1.

    Returns:
        A LongTensor of shape ``n``, indices into ``candidates``, in the order of picks. Ties go to
        the lowest index whose variance is at least ``1 - 1e-8`` times the largest.

    Raises:
        InputError: if an argument cannot be used.
        NumericsError: if a variance is not finite.

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


def _check_largest(variance: Tensor) -> float:
    """The largest variance, as a float; an error if it is not finite (-inf: all are excluded)."""
    largest = float(variance)
    if largest == -math.inf:
        raise ExhaustedDesignError("Every candidate of the design is excluded.")
    if not math.isfinite(largest):
        raise NumericsError("The variance of some candidate is not finite.")
    return largest
