"""Greedy maximum-variance design: each point is where the points so far leave most variance.

The k-th point maximises the fantasy deviation sigma_{k-1} (paper, Algorithm 1, the argmax). No
value enters: a round can be designed before any answer arrives. This is a pivoted Cholesky
factorization of K + lambda^2 I in which a pivot may come again, since a point that is evaluated
twice has two independent noises.

Of few candidates, and on CUDA, the covariance is kept up to date; see
:mod:`botorch_delay.gp.candidate_covariance`. Of many only upper bounds on their variances are:
variances only fall as points are added, so that every variance computed earlier is one, and only
candidates whose bound reaches the largest variance need to be looked at. Those are computed anew;
the ones within a hair of the largest go on a shortlist, whose posterior is kept up to date until
its largest variance falls to the threshold below which everything else is known to lie.

Ties go to the lowest index whose variance is at least (1 - 1e-8) times the largest, in either
form.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Sequence
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
from botorch_delay.gp.kernels import check_kernel, covariance, prior_variance, rows_per_chunk
from botorch_delay.gp.posterior import Data, Moments, Posterior

# Precisions that differ by less, as a share of the largest, are the same but for rounding; and what
# rounding may do where picks without an answer are taken out.
SAME, LARGEST_ERROR = 1e-12, 1e-8
# The shortlist holds what is within this share of the largest variance, and at most this many.
SHORTLIST_SHARE = 0.02
SHORTLIST_MIN = 64
SHORTLIST_MAX = 65_536


class GreedyDesign:
    """A greedy design that grows one pick at a time.

    On CUDA :meth:`extend` makes all its picks without waiting for the device, and the rows of n
    picks are kept in tensors of ``BLOCK`` rows each: n N numbers, rounded up to a block, 9.2 GB
    for 1,000 picks among 1,000,000 candidates in double. Elsewhere the shortlist has at most
    ``SHORTLIST_MAX`` columns. All else is vectors of N numbers.

    Candidates are ``N x d``. What follows ``picks`` is as if they had been made here, by the rule
    or not. Indices are those of ``rows``, a LongTensor ``N``, increasing; 0 to N - 1 if None.
    """

    def __init__(
        self,
        covar_module: Kernel,
        candidates: Tensor,
        noise_var: float,
        picks: Iterable[int] = (),
        rows: Tensor | None = None,
    ) -> None:
        tracked = len(candidates) <= MAX_FOLDED or candidates.is_cuda
        self._form: _Tracked | _Lazy = (_Tracked if tracked else _Lazy)(
            covar_module, candidates, noise_var
        )
        self._candidates = candidates
        self._rows = torch.arange(len(candidates)) if rows is None else rows.cpu()
        # All by their places among the candidates.
        self._excluded: set[int] = set()
        self._picks = array("q")
        for index in picks:
            self.add(index)

    @property
    def picks(self) -> list[int]:
        """The indices picked so far, in order."""
        return self._indices(self._picks)

    @property
    def variance(self) -> Tensor:
        """Posterior variance of every candidate given the picks, ``N``."""
        return self._form.variance

    def exclude(self, index: int, excluded: bool = True) -> None:
        place = self._place(index)
        if excluded:
            self._excluded.add(place)
        else:
            self._excluded.discard(place)
        self._form.mask = self._mask()

    def next(self) -> int:
        if len(self._excluded) == len(self._candidates):
            raise ExhaustedDesignError("Every candidate of the design is excluded.")
        return int(self._rows[self._form.next()])

    def add(self, index: int) -> None:
        place = self._place(index)
        self._form.add(place)
        self._picks.append(place)

    @torch.no_grad()
    def moments(
        self, data: Data, answered: Tensor, at: Tensor, *, weights: bool = False
    ) -> Moments | None:
        """The posterior at some candidates, from the covariance that the design keeps.

        Nothing is factorized: what answers of the design's noise say of candidates is changed
        where picks have none, or answers are not of picks. With C the covariance given the answers
        the mean is ``C D^-1 y``, and the weights of the answers are ``D^-1 C``.

        Answers are at the indices ``answered``, ``m``, the posterior is wanted ``at`` others,
        ``n``, both LongTensors. None where no covariance is kept, or not one close enough, or
        where answers are at points that are not candidates.
        """
        own = self._rows.to(at.device)
        if not isinstance(self._form, _Tracked) or not bool(torch.isin(answered, own).all()):
            return None
        places, rows = torch.searchsorted(own, answered), torch.searchsorted(own, at)
        kept = self._form.covariance
        precision = torch.zeros_like(kept.prior)
        precision[places] = 1.0 / data.noise_var
        picked = sent_rows(self._picks, at).bincount(minlength=len(precision))
        change = precision - picked.to(precision) / self._form.noise
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
                # Rounding counts as often as the answers are larger than what is left of them:
                # once refined, the mean has that of a backward stable solve.
                alpha = precision * (y - mean)
                by_kernel = self._form.times_kernel(alpha)
                mean = by_kernel + kept.times(precision * (mean - by_kernel))
                factors = torch.stack([spread * precision.square(), precision, precision.square()])
                squares = kept.times_squares(factors.mT)[rows]
                noise_norm, penalty = squares[:, 0].sqrt(), squares[:, 1]
                mean_rounding = backward * alpha.norm() * squares[:, 2].sqrt()
        prior = kept.prior[rows]
        return Moments(
            mean[rows], variance, prior, noise_norm, penalty, relative * prior, mean_rounding
        )

    def extend(self, n: int) -> list[int]:
        """Pick ``n`` more points by the rule and return their indices."""
        if isinstance(self._form, _Tracked) and len(self._excluded) < len(self._candidates):
            made = self._form.extend(n)
            self._picks.extend(made)
            return self._indices(made)
        for _ in range(n):
            self.add(self.next())
        return self._indices(self._picks[len(self._picks) - n :])

    def _place(self, index: int) -> int:
        return int(torch.searchsorted(self._rows, index))

    def _indices(self, places: Sequence[int]) -> list[int]:
        return self._rows[torch.tensor(places, dtype=torch.long)].tolist()

    def _mask(self) -> Tensor | None:
        if not self._excluded:
            return None
        mask = torch.zeros(len(self._candidates), dtype=torch.bool, device=self._candidates.device)
        mask[sent_rows(sorted(self._excluded), mask)] = True
        return mask


class _Tracked:
    """The covariance of all candidates, kept up to date."""

    def __init__(self, kernel: Kernel, points: Tensor, noise: float) -> None:
        self.mask: Tensor | None = None
        self._kernel, self._points, self.noise = kernel, points, noise
        self.covariance = CandidateCovariance(kernel, points)

    @property
    def variance(self) -> Tensor:
        return self.covariance.variance

    def add(self, index: int) -> None:
        self._add(sent_rows([index], self.variance))

    def extend(self, n: int) -> list[int]:
        """This many picks by the rule; the host looks at them only when all are made."""
        made = []
        for _ in range(n):
            made.append(lowest_tied(self._open_variance()))
            self._add(made[-1])
        picks: list[int] = torch.cat(made).tolist() if made else []
        _check_finite(self.variance.max())
        return picks

    def times_kernel(self, weights: Tensor) -> Tensor:
        """``K weights``, ``N``."""
        at = weights.nonzero().flatten()
        parts = self._points.split(rows_per_chunk(len(at), self._points))
        return torch.cat(
            [covariance(self._kernel, part, self._points[at]) @ weights[at] for part in parts]
        )

    def next(self) -> int:
        variance = self._open_variance()
        _check_finite(variance.max())
        return lowest_of_largest(variance)

    def _add(self, index: Tensor) -> None:
        """Count a pick, a LongTensor of shape 1."""
        column = self.covariance.column(index)
        self.covariance.take_off(
            column.div_((self.variance.index_select(0, index) + self.noise).sqrt())
        )

    def _open_variance(self) -> Tensor:
        if self.mask is None:
            return self.variance
        return self.variance.masked_fill(self.mask, -torch.inf)


class _Lazy:
    """Upper bounds on the variance of every candidate, and exact ones on a shortlist."""

    def __init__(self, kernel: Kernel, points: Tensor, noise: float) -> None:
        self._kernel, self._points, self._noise = kernel, points, noise
        with torch.no_grad():
            self._upper = prior_variance(kernel, points).clone()
        self._mask: Tensor | None = None
        self._adds = 0
        self._fresh = torch.zeros(len(points), dtype=torch.int32)  # picks that a bound counts
        self._counts: dict[int, int] = {}  # how often each candidate was picked
        self._shortlist: _Shortlist | None = None
        self._given_picks: Posterior | None = None
        self._given = 0  # how many picks that posterior counts

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
        self._refresh((self._fresh < self._adds).nonzero().flatten())
        return self._upper

    def next(self) -> int:
        if not self._adds:
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

    def add(self, index: int) -> None:
        self._counts[index] = self._counts.get(index, 0) + 1
        self._adds += 1
        if self._shortlist is not None:
            self._shortlist.add(index, self._pick(index))

    def _pick(self, index: int) -> Answer:
        """A pick as an answer: n of them are one of noise lambda^2 / n."""
        return self._points[index], 0.0, self._noise / self._counts[index]

    @property
    def _posterior(self) -> Posterior:
        """Given the picks, whose values do not matter."""
        if self._given_picks is None or self._given < self._adds:
            indices = sent_rows(list(self._counts), self._points)
            noise = self._noise / sent(list(self._counts.values()), self._upper)
            data = Data.single(self._points[indices], torch.zeros_like(noise), noise)
            labels, before = list(self._counts.items()), self._given_picks
            self._given_picks = Posterior(self._kernel, data, labels=labels, before=before)
            self._given = self._adds
        return self._given_picks

    def _screen(self) -> _Shortlist:
        """A shortlist of everything whose variance is within a share of the largest."""
        bounds = self._open_bounds()
        top = threshold = bounds.max()
        _check_finite(top)
        least, share = min(SHORTLIST_MIN, int((bounds > 0.0).sum())), SHORTLIST_SHARE
        while True:
            # Where bounds fell by more than the share, the largest is further down.
            threshold = torch.minimum(threshold, top) * (1.0 - share)
            share = min(1.25 * share, 0.5)  # every step computes some variances anew
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
        posterior = CandidatePosterior(self._kernel, self._points[kept], as_rows=True)
        shortlist = _Shortlist(kept, posterior, float(ceiling), beyond)
        keys = shortlist.keys(list(self._counts))
        posterior.update(dict(zip(keys, map(self._pick, self._counts), strict=True)))
        return shortlist

    def _refresh(self, indices: Tensor) -> None:
        """Present variances of some candidates."""
        if len(indices):
            self._upper[indices] = self._posterior.variance(self._points[indices])
            self._fresh[indices] = self._adds

    def _drop_shortlist(self) -> None:
        if self._shortlist is not None:
            members = self._shortlist.members
            self._upper[members] = self._shortlist.posterior.variance
            self._fresh[members] = self._adds
            self._shortlist = None

    def _open_bounds(self) -> Tensor:
        if self._mask is None:
            return self._upper.clone()
        return self._upper.masked_fill(self._mask, -torch.inf)


@dataclass(frozen=True)
class _Shortlist:
    """Candidates with exact variances, and what is known of the rest."""

    members: Tensor  # indices, ``n``, increasing
    posterior: CandidatePosterior  # at the members, given the picks
    ceiling: float  # no other candidate has more, but those counted on by ``beyond``
    beyond: int  # others from this index on may have as much as the ceiling; 0 for all

    def next(self) -> int | None:
        """The index that the rule picks; None where it may be elsewhere."""
        variance = self.posterior.variance
        top = float(variance.max())
        floor = (1.0 - tie_tolerance(variance.dtype)) * max(top, self.ceiling)
        if top < floor or (self.ceiling >= floor and not self.beyond):
            return None
        index = int(self.members[(variance >= floor).byte().argmax()])
        return index if self.ceiling < floor or index < self.beyond else None

    def keys(self, indices: list[int]) -> list[int]:
        """Of candidates in the posterior: the places of members, numbers below 0 for others."""
        at = torch.tensor(indices)
        places = torch.searchsorted(self.members, at).clamp_max_(len(self.members) - 1)
        found: list[int] = torch.where(self.members[places] == at, places, -1 - at).tolist()
        return found

    def add(self, index: int, pick: Answer) -> None:
        self.posterior.update({self.keys([index])[0]: pick})


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
    if not math.isfinite(largest):
        raise NumericsError("The variance of some candidate is not finite.")
