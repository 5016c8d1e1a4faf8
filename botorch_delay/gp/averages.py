"""Answers that come and go, averaged per point, and the posteriors that they give."""

from __future__ import annotations

import copy
from bisect import bisect_left
from fractions import Fraction

import torch
from torch import Tensor

from botorch_delay.domains.devices import sent, sent_rows
from botorch_delay.gp.candidates import CandidatePosterior
from botorch_delay.gp.posterior import Data, Posterior
from botorch_delay.gp.surrogate import Surrogate

_Answer = tuple[float, float, int | None]


class _Point:
    """One point, its answers by source, and their average.

    Of an answer it has the value, the noise variance, and its order; None if that is its source.

    Sums are exact, so that the average depends neither on the order of the answers nor on those
    that were taken out again. They take time, and most points have one answer, which needs none.
    """

    def __init__(self, x: Tensor) -> None:
        self.x = x
        self.answers: dict[int, _Answer] = {}
        # Of precisions, their products with values, and their squares; empty with fewer than two
        # answers.
        self._sums: list[Fraction] = []
        self._row: tuple[float, float, float] | None = None
        # The order and the source of the first one, by which points are put in order.
        self.first: tuple[int, int] | None = None

    def place(self, source: int, answer: _Answer | None) -> None:
        """Set the answer of a source; None to take it out."""
        before = self.answers.pop(source, None)
        changes = [(answer, 1), (before, -1)]
        if not self._sums:
            changes = [(answer, 1), *((other, 1) for other in self.answers.values())]
        if len(self.answers) + (answer is not None) < 2:
            self._sums = []
        else:
            for entry, sign in changes:
                if entry is not None:
                    value, precision = Fraction(entry[0]), Fraction(1.0 / entry[1])
                    terms = precision, precision * value, precision**2
                    pairs = zip(self._sums or [Fraction(0)] * 3, terms, strict=True)
                    self._sums = [total + sign * term for total, term in pairs]
        self._row = None
        if answer is not None:
            self.answers[source] = answer
        if self.first is not None and self.first[1] == source:
            places = (_place(source, answer) for source, answer in self.answers.items())
            self.first = min(places, default=None)
        elif answer is not None:  # not looked for again among very many
            place = _place(source, answer)
            self.first = min(self.first or place, place)

    @property
    def row(self) -> tuple[float, float, float]:
        """As in :class:`Data`: mean answer, its noise variance, and its spread."""
        if self._row is None and not self._sums:
            self._row = *next(iter(self.answers.values()))[:2], 1.0
        elif self._row is None:
            precision, weighted, squares = map(float, self._sums)
            self._row = weighted / precision, 1.0 / precision, squares / precision / precision
        return self._row


def _place(source: int, answer: _Answer) -> tuple[int, int]:
    """By which answers are put in order."""
    return source if answer[2] is None else answer[2], source


class Averages:
    """Answers averaged per point, in units of a surrogate, and their posteriors.

    Posteriors, also those at the candidates (``N x d``), are brought up to date when they are
    asked for, in the order of the points' keys: results do not depend on the order of answers
    between two asks. Where there is a ``pool`` (a LongTensor), it alone counts of the candidates.
    """

    def __init__(
        self, surrogate: Surrogate, candidates: Tensor, pool: Tensor | None = None
    ) -> None:
        self.surrogate, self._nothing = surrogate, candidates[:0].cpu()
        self._without_value = *surrogate.standard(None, None), None  # one for very many trials
        self._at_candidates = CandidatePosterior(
            surrogate.covar_module, surrogate.inputs(candidates), pool=pool
        )
        self._anywhere: Posterior | None = None
        # Of its rows, in order: the points' first answers and keys, their labels and averages.
        self._order: list[tuple[tuple[int, int], int]] = []
        self._labels: list[tuple[int, float]] = []
        self._rows: list[tuple[float, float, float]] = []
        self._first: dict[int, tuple[int, int]] = {}  # the points' first answers there, by key
        self._moved: set[int] = set()  # keys whose answers it lacks
        self._points: dict[int, _Point] = {}
        self._changed: set[int] = set()  # keys whose answers the candidates' posterior lacks
        self.size = 0

    @property
    def keys(self) -> list[int]:
        """The points that have answers."""
        return [key for key, point in self._points.items() if point.answers]

    def put(
        self,
        key: int,
        source: int,
        x: Tensor,
        value: float | None,
        noise_var: float | None,
        order: int | None = None,
    ) -> None:
        """Enter one answer at ``x``, ``d``, or put it in place of an earlier one of its source.

        A source is a trial's id, or a number below 0 for results from elsewhere. Points are in the
        order of their first answers, which is the source where none is told: a point that comes
        last is what costs least. Values are the user's, to be maximised; None stands for the
        posterior mean's own, whose variance alone counts. Noise that is None is the surrogate's.
        """
        if key not in self._points:
            self._points[key] = _Point(x)
        answer: _Answer = self._without_value
        if (value, noise_var, order) != (None, None, None):
            answer = *self.surrogate.standard(value, noise_var), order
        self._set(key, source, answer)

    def drop(self, key: int, source: int) -> None:
        """Take an answer out, if it is there."""
        if key in self._points:
            self._set(key, source, None)

    def _set(self, key: int, source: int, answer: _Answer | None) -> None:
        point = self._points[key]
        before = point.answers.get(source)
        if before is answer is None or (before and answer and before[:2] == answer[:2]):
            return
        point.place(source, answer)
        self.size += (answer is not None) - (before is not None)
        self._changed.add(key)
        self._moved.add(key)

    def best(self, n: int) -> list[Tensor]:
        """The points with the largest averages, ``d`` each, the best first; ``n`` at most."""
        posterior = self.anywhere
        rows = posterior.data.y.argsort(descending=True, stable=True)[:n].tolist()
        return [self._points[posterior.labels[row][0]].x for row in rows]

    def point(self, key: int) -> Tensor:
        """The point with a key, ``d``."""
        return self._points[key].x

    @property
    def at_candidates(self) -> CandidatePosterior:
        """The posterior at the candidates."""
        if self._changed:
            points = {key: self._points[key] for key in sorted(self._changed)}
            X = torch.stack([point.x for point in points.values()])
            X = self.surrogate.inputs(sent(X, self.surrogate.origin))
            self._at_candidates.update(
                {
                    key: (x, *point.row[:2]) if point.answers else None
                    for (key, point), x in zip(points.items(), X, strict=True)
                }
            )
            self._changed.clear()
        return self._at_candidates

    def with_drawn_answers(self, answers: Averages, generator: torch.Generator) -> Averages:
        """The same points with values drawn where ``answers`` lack some, until this changes.

        It is not to be changed itself, and all points of ``answers`` are here.
        """
        posterior = self.anywhere
        y = posterior.drawn_answers(answers.anywhere, generator)
        row = {key: row for row, (key, _) in enumerate(posterior.labels)}
        rows = sent_rows([row[key] for key in self.at_candidates.keys], y)
        made = copy.copy(self)
        made._anywhere = posterior.with_values(y)
        made._at_candidates = self.at_candidates.with_values(y[rows])
        return made

    @property
    def anywhere(self) -> Posterior:
        """The posterior at any points, of the surrogate's inputs, in its units.

        Its data are in the order of the answers, not in that of the calls: after a run was resumed
        the numbers are the same to the last bit, which a search that climbs would otherwise
        magnify, and what is new comes last.
        """
        if self._anywhere is None or self._moved:
            same = self._put_in_order()  # with hundreds in flight most of the rows
            points = (self._points[key].x.unsqueeze(0) for _, key in self._order[same:])
            X = torch.cat([self._nothing, *points])
            rows = X.new_tensor(self._rows).reshape(-1, 3)
            first = None if self._anywhere is None else self._anywhere.data.X[:same]
            data = Data(X, *rows.T.contiguous())
            data = data.to(self.surrogate.origin, self.surrogate.inputs, first)
            kernel, labels = self.surrogate.covar_module, [*self._labels]
            self._anywhere = Posterior(kernel, data, labels=labels, before=self._anywhere)
        return self._anywhere

    def _put_in_order(self) -> int:
        """Bring the rows of :attr:`anywhere` up to date; how many points are where they were."""
        same = len(self._order)
        for key in self._moved:
            point, before = self._points[key], self._first.pop(key, None)
            first = point.first
            if before is not None:
                row = bisect_left(self._order, (before, key))
                if first != before:
                    same = min(same, row)
                    for rows in (self._order, self._labels, self._rows):
                        del rows[row]
            if first is None:
                continue
            self._first[key] = first
            row = bisect_left(self._order, (first, key))
            if first != before:
                same = min(same, row)
                self._order.insert(row, (first, key))
                self._labels.insert(row, (key, 0.0))
                self._rows.insert(row, (0.0, 0.0, 0.0))
            self._rows[row] = point.row
            self._labels[row] = key, point.row[1]
        self._moved.clear()
        return same
