"""Answers averaged per point, and the posterior that they give."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property

import torch
from torch import Tensor

from botorch_delay.gp.by_rows import CandidatePosterior
from botorch_delay.gp.folded import MAX_CANDIDATES, FoldedPosterior
from botorch_delay.gp.kernels import covariance
from botorch_delay.gp.posterior import factorize
from botorch_delay.gp.surrogate import Surrogate

# From so many distinct points, as a share of the candidates, an update of all pairs is cheaper.
SHARE_TO_FOLD = 1.0 / 16.0

# Rows of a factorization that are made at once.
BLOCK = 32


class Ordered:
    """Averaged answers in a fixed order, with a factorization of their covariance.

    It is made in blocks of rows, each from those above it in one way only: so what an earlier one
    has made of the same leading points can be taken over, and the numbers are those of a
    factorization from the beginning, to the last bit. Where a block is not positive definite the
    whole is factorized at once, with raised noise, and nothing is taken over.

    Args:
        surrogate: that judges.
        keys: of the points, ``m``.
        points: by key, each ``d``.
        values: in units of the surrogate, ``m``.
        noise_var: likewise.
        before: an earlier one by the same surrogate, with the same points by the same keys.

    Attributes:
        points: in the surrogate's inputs, ``m x e``.
        values: ``m``.
        noise_var: ``m``.
    """

    def __init__(
        self,
        surrogate: Surrogate,
        keys: Sequence[int],
        points: Mapping[int, Tensor],
        values: Sequence[float],
        noise_var: Sequence[float],
        before: Ordered | None = None,
    ) -> None:
        like = surrogate.origin
        self.values, self.noise_var = like.new_tensor(values), like.new_tensor(noise_var)
        self._kernel = surrogate.covar_module
        self._entries = list(zip(keys, noise_var, strict=True))
        same, self._known = 0, like.new_empty(0, 0)
        self.points = like.new_empty(0, len(like))
        if before is not None:
            same = _length_shared(self._entries, before._entries)
            self.points = before.points[:same]
            whole = min(same, len(before._known)) // BLOCK * BLOCK
            self._known = before._known[:whole, :whole]
        if same < len(keys):
            new = surrogate.inputs(torch.stack([points[key] for key in keys[same:]]))
            self.points = torch.cat([self.points, new])

    def __len__(self) -> int:
        return len(self.values)

    @cached_property
    def _factor(self) -> Tensor:
        with torch.no_grad():
            factor = self._by_blocks()
            if factor is not None:
                self._known = factor
                return factor
            # Rounding makes it indefinite: that is seen to as a whole.
            K = covariance(self._kernel, self.points, self.points)
            return factorize(K, self.noise_var)[0]

    def _by_blocks(self) -> Tensor | None:
        """The Cholesky factor; None if a block is not positive definite."""
        m, known = len(self), len(self._known)
        factor = self.values.new_zeros(m, m)
        factor[:known, :known] = self._known
        for start in range(known, m, BLOCK):
            rows = slice(start, start + BLOCK)
            K = covariance(self._kernel, self.points[rows], self.points[: start + BLOCK])
            corner = K[:, start:] + self.noise_var[rows].diag()
            if start:
                above = factor[:start, :start]
                left = torch.linalg.solve_triangular(above, K[:, :start].mT, upper=False).mT
                factor[rows, :start] = left
                corner = corner - left @ left.mT
            found, info = torch.linalg.cholesky_ex(corner)
            if bool(info.any()):
                return None
            factor[rows, rows] = found
        return factor

    @cached_property
    def weights(self) -> Tensor:
        """What the mean weighs covariances with answers by, ``m``."""
        return self.solve(self.values)

    def solve(self, right: Tensor) -> Tensor:
        """``(K + D)^-1 right``, for one number per point."""
        if not len(self):
            return right
        return self.back(self.whiten(right.unsqueeze(-1))).squeeze(-1)

    def whiten(self, right: Tensor) -> Tensor:
        """``L^-1 right``, ``m x n``."""
        return torch.linalg.solve_triangular(self._factor, right, upper=False)

    def back(self, right: Tensor) -> Tensor:
        """``L^-T right``, ``m x n``."""
        return torch.linalg.solve_triangular(self._factor.mT, right, upper=True)

    def share(self, other: Ordered) -> None:
        """Use the other's factorization, if it is of the same matrix."""
        if self._entries == other._entries:
            self.points, self._factor, self._known = other.points, other._factor, other._known


def _length_shared(one: Sequence[object], other: Sequence[object]) -> int:
    """How many leading entries are the same."""
    for number, (mine, theirs) in enumerate(zip(one, other, strict=False)):
        if mine != theirs:
            return number
    return min(len(one), len(other))


class Averages:
    """Answers averaged per point, and the posterior they give.

    Nothing is computed before ``flush``, which goes through the changed points in the order
    of their rows: results do not depend on the order of answers between two asks.

    Args:
        surrogate: that judges.
        points: ``N x d``, the candidates.

    Attributes:
        posterior: as of the last ``flush``.
    """

    def __init__(self, surrogate: Surrogate, points: Tensor) -> None:
        self._surrogate = surrogate
        self._noise = surrogate.noise_var
        self._candidates = surrogate.inputs(points)
        self.posterior: CandidatePosterior | FoldedPosterior = CandidatePosterior(
            surrogate.covar_module, self._candidates
        )
        self._x: dict[int, Tensor] = {}
        self._ordered: Ordered | None = None
        self._is_ordered = True  # whether `_ordered` is up to date
        self._first: dict[int, tuple[bool, int]] = {}  # by key, the first of its sources
        self._order: list[tuple[tuple[bool, int], int]] = []  # the same, sorted, with keys
        self.sources = 0
        self._members: dict[int, dict[int, tuple[float, float]]] = {}  # source: value, noise
        self._pending = (0.0, self._noise)  # one for the many that have no value of their own
        self._changed: set[int] = set()
        self._sums: dict[int, tuple[float, float]] = {}  # precision, precision times value
        self._averaged: dict[int, tuple[float, float]] = {}  # value, noise
        self._unaveraged: set[int] = set()  # keys whose average is to be made anew
        self._stale: set[int] = set()  # keys whose sums are to be made anew
        self._new: dict[int, list[int]] = {}  # sources to be added to the sums

    @property
    def keys(self) -> Iterable[int]:
        """The points that have anything entered, in no order."""
        return self._first.keys()

    def put(
        self, key: int, source: int, x: Tensor, value: float | None, noise_var: float | None
    ) -> None:
        """Enter one answer, or put it in place of an earlier one of the same source."""
        surrogate = self._surrogate
        standard = 0.0 if value is None else (value - surrogate.offset) / surrogate.scale
        noise = self._noise if noise_var is None else noise_var / surrogate.scale**2
        entry = (standard, noise)
        members = self._members.setdefault(key, {})
        before = members.get(source)
        if before == entry:
            return
        members[source] = self._pending if entry == self._pending else entry
        self._is_ordered = False
        self._x.setdefault(key, x)
        self._changed.add(key)
        self._unaveraged.add(key)
        if before is None:
            self.sources += 1
            first = _attached_first(source)
            if key not in self._first or first < self._first[key]:
                self._place(key, first)
            self._new.setdefault(key, []).append(source)
        else:
            self._stale.add(key)

    def point(self, key: int) -> Tensor:
        """The point with a key, ``d``."""
        return self._x[key]

    @property
    def ordered(self) -> Ordered:
        """The averages in an order that does not depend on when each of them came.

        Attached results, then trials by their ids: after a run was resumed the numbers are the
        same to the last bit, which a search that climbs would otherwise magnify, and a new trial
        comes last.
        """
        if not self._is_ordered or self._ordered is None:
            keys = [key for _, key in self._order]
            for key in self._unaveraged & self._first.keys():
                members = [entry for _, entry in sorted(self._members[key].items())]
                precision = sum(1.0 / noise for _, noise in members)
                weighted = sum(value / noise for value, noise in members)
                self._averaged[key] = (weighted / precision, 1.0 / precision)
            self._unaveraged.clear()
            values = [self._averaged[key][0] for key in keys]
            noises = [self._averaged[key][1] for key in keys]
            self._ordered = Ordered(
                self._surrogate, keys, self._x, values, noises, before=self._ordered
            )
            self._is_ordered = True
        return self._ordered

    def _place(self, key: int, first: tuple[bool, int] | None) -> None:
        """Put a point in the order by the first of its sources, or take it out."""
        before = self._first.pop(key, None)
        if before is not None:
            del self._order[bisect_left(self._order, (before, key))]
        if first is not None:
            self._first[key] = first
            insort(self._order, (first, key))

    def drop(self, key: int, source: int) -> None:
        """Take an answer out, if it is there."""
        if self._members.get(key, {}).pop(source, None) is None:
            return
        self.sources -= 1
        if self._first[key] == _attached_first(source):
            self._place(key, min(map(_attached_first, self._members[key]), default=None))
        self._is_ordered = False
        self._changed.add(key)
        self._unaveraged.add(key)
        self._stale.add(key)

    def flush(self) -> None:
        """Carry every change over to the posterior."""
        if not self._changed:
            return
        changes: dict[int, tuple[Tensor, float, float] | None] = {}
        for key in sorted(self._changed):
            members = self._members[key]
            if not members:
                self._sums.pop(key, None)
                changes[key] = None
                continue
            precision, weighted = self._sums.get(key, (0.0, 0.0))
            entering: Collection[int] = self._new.get(key, [])
            if key in self._stale:
                precision, weighted, entering = 0.0, 0.0, members
            for source in sorted(entering):
                value, noise = members[source]
                precision += 1.0 / noise
                weighted += value / noise
            self._sums[key] = (precision, weighted)
            point = self._surrogate.inputs(self._x[key].unsqueeze(0)).squeeze(0)
            changes[key] = (point, weighted / precision, 1.0 / precision)
        self._changed.clear()
        self._stale.clear()
        self._new.clear()
        if isinstance(self.posterior, FoldedPosterior) and min(changes) < 0:
            self.posterior = self._as_rows()  # a point that is no candidate
        self.posterior.update(changes)
        if isinstance(self.posterior, FoldedPosterior) and self.posterior.lost:
            self.posterior = self._as_rows()
        self._fold()

    def _fold(self) -> None:
        """Keep the candidates' covariance where there are few of them for so many points asked."""
        posterior = self.posterior
        few = len(self._candidates) <= MAX_CANDIDATES
        if few and isinstance(posterior, CandidatePosterior):
            many = len(posterior) > SHARE_TO_FOLD * len(self._candidates)
            if many and min(posterior.keys) >= 0:
                kernel = self._surrogate.covar_module
                self.posterior = FoldedPosterior(kernel, self._candidates, posterior)

    def _as_rows(self) -> CandidatePosterior:
        kernel = self._surrogate.covar_module
        posterior = CandidatePosterior(kernel, self._candidates)
        before: dict[int, tuple[Tensor, float, float] | None] = {}
        for key, (precision, weighted) in self._sums.items():
            if key in self.posterior:
                point = self._surrogate.inputs(self._x[key].unsqueeze(0)).squeeze(0)
                before[key] = (point, weighted / precision, 1.0 / precision)
        posterior.update(before)
        return posterior


def _attached_first(source: int) -> tuple[bool, int]:
    """Attached results, which have numbers below 0 and mostly come first; then trials by id."""
    return source >= 0, abs(source)
