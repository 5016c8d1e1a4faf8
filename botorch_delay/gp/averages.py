"""Answers that come and go, averaged per point, and the posteriors that they give."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable

import torch
from torch import Tensor

from botorch_delay.gp.candidates import Answer, CandidatePosterior
from botorch_delay.gp.data import Data, RunningAverage
from botorch_delay.gp.posterior import Posterior
from botorch_delay.gp.surrogate import Surrogate


class Averages:
    """Answers averaged per point, in units of a surrogate, and their posteriors.

    Posteriors are brought up to date when they are asked for, in the order of the points' keys:
    results do not depend on the order of answers between two asks.

    Args:
        surrogate: whose units, kernel and noise count.
        candidates: ``N x d``.

    Attributes:
        size: how many answers there are.
    """

    def __init__(self, surrogate: Surrogate, candidates: Tensor) -> None:
        self._surrogate = surrogate
        self._at_candidates = CandidatePosterior(
            surrogate.covar_module, surrogate.inputs(candidates)
        )
        self._anywhere: Posterior | None = None
        self._is_ordered = False  # whether that is of the present answers
        self._x: dict[int, Tensor] = {}
        self._answers: dict[int, dict[int, tuple[float, float]]] = {}  # by key and source
        self._averages: dict[int, RunningAverage] = {}
        self._changed: set[int] = set()
        self._first: dict[int, tuple[bool, int]] = {}  # by key, the first of its sources
        self._order: list[tuple[tuple[bool, int], int]] = []  # the same, sorted, with keys
        self._inputs: dict[int, Tensor] = {}  # by key
        self.size = 0

    @property
    def keys(self) -> Iterable[int]:
        """The points that have answers, in no order."""
        return self._first.keys()

    def put(
        self, key: int, source: int, x: Tensor, value: float | None, noise_var: float | None
    ) -> None:
        """Enter one answer, or put it in place of an earlier one of the same source.

        Args:
            key: of the point: a candidate's row, or a number below 0.
            source: of the answer: a trial's id, or a number below 0 for results from elsewhere.
            x: the point, ``d``.
            value: in the user's units, to be maximised; None for the posterior mean's own, whose
                variance alone counts.
            noise_var: of the value; None for the surrogate's.
        """
        surrogate = self._surrogate
        standard, noise = surrogate.standard(value, noise_var)
        entry, before = (standard, noise), self._answers.get(key, {}).get(source)
        if before == entry:
            return
        if before is not None:
            self.drop(key, source)
        self._x.setdefault(key, x)
        self._answers.setdefault(key, {})[source] = entry
        self._averages.setdefault(key, RunningAverage()).add(*entry)
        first = _attached_first(source)
        if key not in self._first or first < self._first[key]:
            self._place(key, first)
        self._touch(key, 1)

    def drop(self, key: int, source: int) -> None:
        """Take an answer out, if it is there."""
        answers = self._answers.get(key, {})
        entry = answers.pop(source, None)
        if entry is None:
            return
        self._averages[key].add(*entry, count=-1)
        if self._first[key] == _attached_first(source):
            self._place(key, min(map(_attached_first, answers), default=None))
        self._touch(key, -1)

    def point(self, key: int) -> Tensor:
        """The point with a key, ``d``."""
        return self._x[key]

    @property
    def at_candidates(self) -> CandidatePosterior:
        """The posterior at the candidates."""
        changes: dict[int, Answer | None] = {}
        for key in sorted(self._changed):
            changes[key] = None
            if self._answers[key]:
                value, noise_var, _ = self._averages[key].row
                changes[key] = (self._input(key), value, noise_var)
        self._changed.clear()
        if changes:
            self._at_candidates.update(changes)
        return self._at_candidates

    @property
    def anywhere(self) -> Posterior:
        """The posterior at any points, of the surrogate's inputs, in its units.

        Its data are in an order that does not depend on when each answer came, attached results
        first, then trials by their ids: after a run was resumed the numbers are the same to the
        last bit, which a search that climbs would otherwise magnify, and a new trial comes last.
        """
        if self._anywhere is None or not self._is_ordered:
            keys = [key for _, key in self._order]
            like = self._surrogate.origin
            rows = like.new_tensor([self._averages[key].row for key in keys]).reshape(-1, 3)
            points = [self._input(key) for key in keys]
            X = torch.stack(points) if keys else like.new_empty(0, len(like))
            data = Data(X, *rows.T.contiguous())
            kernel = self._surrogate.covar_module
            self._anywhere = Posterior(kernel, data, before=self._anywhere)
            self._is_ordered = True
        return self._anywhere

    def _input(self, key: int) -> Tensor:
        if key not in self._inputs:
            self._inputs[key] = self._surrogate.inputs(self._x[key].unsqueeze(0)).squeeze(0)
        return self._inputs[key]

    def _touch(self, key: int, added: int) -> None:
        self.size += added
        self._changed.add(key)
        self._is_ordered = False

    def _place(self, key: int, first: tuple[bool, int] | None) -> None:
        """Put a point in the order by the first of its sources, or take it out."""
        before = self._first.pop(key, None)
        if before is not None:
            del self._order[bisect_left(self._order, (before, key))]
        if first is not None:
            self._first[key] = first
            insort(self._order, (first, key))


def _attached_first(source: int) -> tuple[bool, int]:
    """Attached results, which have numbers below 0 and mostly come first; then trials by id."""
    return source >= 0, abs(source)
