"""Answers averaged per point, and the posterior that they give."""

from __future__ import annotations

from collections.abc import Collection
from functools import cached_property

import torch
from torch import Tensor

from botorch_delay.folded import MAX_CANDIDATES, FoldedPosterior
from botorch_delay.incremental import CandidatePosterior
from botorch_delay.kernels import covariance
from botorch_delay.posterior import factorize
from botorch_delay.surrogate import Surrogate

# From so many distinct points, as a share of the candidates, an update of all pairs is cheaper.
SHARE_TO_FOLD = 1.0 / 16.0


class Ordered:
    """Averaged answers with a factorization of their covariance.

    Args:
        surrogate: that judges.
        points: each ``d``.
        values: in units of the surrogate.
        noise_var: likewise.

    Attributes:
        points: in the surrogate's inputs, ``m x e``.
        values: ``m``.
        noise_var: ``m``.
    """

    def __init__(
        self,
        surrogate: Surrogate,
        points: list[Tensor],
        values: list[float],
        noise_var: list[float],
    ) -> None:
        like = surrogate.origin
        self.values, self.noise_var = like.new_tensor(values), like.new_tensor(noise_var)
        self.points = like.new_empty(0, len(like))
        if points:
            self.points = surrogate.inputs(torch.stack(points))
        self._kernel = surrogate.covar_module

    def __len__(self) -> int:
        return len(self.values)

    @cached_property
    def _factor(self) -> Tensor:
        with torch.no_grad():
            K = covariance(self._kernel, self.points, self.points)
            return factorize(K, self.noise_var)[0]

    @cached_property
    def weights(self) -> Tensor:
        """What the mean weighs covariances with answers by, ``m``."""
        return self.solve(self.values)

    def solve(self, right: Tensor) -> Tensor:
        """``(K + D)^-1 right``, for one number per point."""
        if not len(self):
            return right
        return torch.cholesky_solve(right.unsqueeze(-1), self._factor).squeeze(-1)

    def whiten(self, right: Tensor) -> Tensor:
        """``L^-1 right``, ``m x n``."""
        return torch.linalg.solve_triangular(self._factor, right, upper=False)

    def back(self, right: Tensor) -> Tensor:
        """``L^-T right``, ``m x n``."""
        return torch.linalg.solve_triangular(self._factor.mT, right, upper=True)

    def share(self, other: Ordered) -> None:
        """Use the other's factorization, if it is of the same matrix."""
        if torch.equal(self.points, other.points) and torch.equal(self.noise_var, other.noise_var):
            self.points, self._factor = other.points, other._factor


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
        self._members: dict[int, dict[int, tuple[float, float]]] = {}  # source: value, noise
        self._pending = (0.0, self._noise)  # one for the many that have no value of their own
        self._changed: set[int] = set()
        self._sums: dict[int, tuple[float, float]] = {}  # precision, precision times value
        self._averaged: dict[int, tuple[float, float]] = {}  # value, noise
        self._unaveraged: set[int] = set()  # keys whose average is to be made anew
        self._stale: set[int] = set()  # keys whose sums are to be made anew
        self._new: dict[int, list[int]] = {}  # sources to be added to the sums

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
        self._ordered = None
        self._x.setdefault(key, x)
        self._changed.add(key)
        self._unaveraged.add(key)
        if before is None:
            self._new.setdefault(key, []).append(source)
        else:
            self._stale.add(key)

    def point(self, key: int) -> Tensor:
        """The point with a key, ``d``."""
        return self._x[key]

    @property
    def ordered(self) -> Ordered:
        """The averages in an order that does not depend on when each of them came.

        Trials by their ids, then attached results: after a run was resumed the numbers are the
        same to the last bit, which a search that climbs would otherwise magnify.
        """
        if self._ordered is None:
            first = {
                key: min(map(_trials_first, members))
                for key, members in self._members.items()
                if members
            }
            keys = sorted(first, key=first.__getitem__)
            for key in self._unaveraged & first.keys():
                members = [entry for _, entry in sorted(self._members[key].items())]
                precision = sum(1.0 / noise for _, noise in members)
                weighted = sum(value / noise for value, noise in members)
                self._averaged[key] = (weighted / precision, 1.0 / precision)
            self._unaveraged.clear()
            values = [self._averaged[key][0] for key in keys]
            noises = [self._averaged[key][1] for key in keys]
            self._ordered = Ordered(self._surrogate, [self._x[key] for key in keys], values, noises)
        return self._ordered

    def drop(self, key: int, source: int) -> None:
        """Take an answer out, if it is there."""
        if self._members.get(key, {}).pop(source, None) is None:
            return
        self._ordered = None
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


def _trials_first(source: int) -> tuple[bool, int]:
    """Trials by their ids, then attached results, which have numbers below 0."""
    return source < 0, abs(source)
