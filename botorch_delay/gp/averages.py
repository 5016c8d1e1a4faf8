"""Averages of the answers at each point as answers come and go, and the posteriors given them."""

from __future__ import annotations

import copy
from functools import cached_property, lru_cache

import numpy as np
import torch
from torch import Tensor

from botorch_delay.domains.devices import sent, sent_rows
from botorch_delay.gp.candidates import CandidatePosterior
from botorch_delay.gp.posterior import Data, Posterior, shared_prefix
from botorch_delay.gp.surrogate import Surrogate

LEAST_NOISE_VAR = 1e-150  # the square of its inverse is still a finite double
# The number of units in 1: sums count units of 2^-1074, of which every finite double is a multiple.
_UNITS = 1 << 1074
_UNITS_SQUARED = _UNITS**2

# A value, its noise variance, and its place in the order of answers (None: the source's number).
_Answer = tuple[float, float, int | None]


class _Point:
    """One point, its answers by source, and their average.

    Sums are exact, as integers: the average depends neither on the order in which answers came nor
    on answers that were removed again. Nothing is summed while a point has a single answer.
    """

    def __init__(self, x: Tensor) -> None:
        self.x = x
        self.answers: dict[int, _Answer] = {}
        # Sums over the answers of precision, precision times value, and squared precision. They
        # lack the ``_changes``: answers added (sign 1) or removed (-1) since they were computed.
        self._sums = [0] * 3
        self._changes: list[tuple[int, _Answer]] = []

    def place(self, source: int, answer: _Answer | None) -> None:
        """Set the answer of a source, or remove it (None)."""
        before = self.answers.pop(source, None)
        if answer is not None:
            self.answers[source] = answer
        self._changes += [(sign, a) for sign, a in ((1, answer), (-1, before)) if a is not None]
        for name in ("first", "row"):
            vars(self).pop(name, None)

    @cached_property
    def first(self) -> tuple[int, int]:
        """Place and source of the point's first answer, by which points are sorted."""
        places = ((s if a[2] is None else a[2], s) for s, a in self.answers.items())
        return min(places)

    @cached_property
    def row(self) -> tuple[float, float, float]:
        """Mean answer, its noise variance, and its spread, as defined in :class:`Data`."""
        if len(self.answers) == 1:
            ((value, noise_var, _),) = self.answers.values()
            return value, noise_var, 1.0
        for sign, (value, noise_var, _) in self._changes:
            precision, square = _precision(noise_var)
            numerator, denominator = value.as_integer_ratio()  # the denominator is a power of 2
            product = precision * numerator * (_UNITS // denominator)
            terms = zip(self._sums, (precision, product, square), strict=True)
            self._sums = [total + x if sign > 0 else total - x for total, x in terms]
        self._changes.clear()
        scales = zip(self._sums, (_UNITS, _UNITS_SQUARED, _UNITS_SQUARED), strict=True)
        total, weighted, squares = (part / scale for part, scale in scales)
        return weighted / total, 1.0 / total, squares / total / total


@lru_cache(maxsize=1024)  # many answers share the same noise variance
def _precision(noise_var: float) -> tuple[int, int]:
    """The precision of an answer, counted in units, and its square, in squared units."""
    numerator, denominator = (1.0 / max(noise_var, LEAST_NOISE_VAR)).as_integer_ratio()
    precision = numerator * (_UNITS // denominator)
    return precision, precision**2


class Averages:
    """Answers averaged per point, in units of a surrogate, and the posteriors given them.

    Posteriors are updated when they are read. The one at the candidates (``N x d``) takes changed
    points in the order of their keys, so that the order of answers between two asks does not
    matter. With a ``pool`` (a LongTensor of rows) only those candidates are kept up to date. If
    ``values`` is False only variances change: each answer is taken to be the posterior mean.
    """

    def __init__(
        self,
        surrogate: Surrogate,
        candidates: Tensor,
        pool: Tensor | None = None,
        *,
        values: bool = True,
    ) -> None:
        self.surrogate, self._nothing = surrogate, candidates[:0].cpu()
        self._has_values = values
        self._without_value = *surrogate.standard(None, None), None  # shared by many trials
        self._at_candidates = CandidatePosterior(
            surrogate.covar_module, surrogate.inputs(candidates), pool=pool
        )
        self._anywhere: Posterior | None = None
        self._points: dict[int, _Point] = {}
        self._changed: set[int] = set()  # keys whose answers the candidates' posterior lacks
        self._is_current = False  # whether ``_anywhere`` includes all answers
        self.size = 0

    @property
    def keys(self) -> list[int]:
        """Keys of the points that have answers."""
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
        """Enter an answer at ``x`` (``d``), or replace the earlier one from the same source.

        A source is a trial's id, or a negative number for an attached result. Points are sorted by
        the ``order`` of their first answers (the source if None): a new point that comes last is
        the cheapest to add. ``value`` is in the user's units, to be maximised; None counts as 0,
        the posterior mean where no answer has a value. ``noise_var`` None means the surrogate's.
        """
        if key not in self._points:
            self._points[key] = _Point(x)
        answer: _Answer = self._without_value
        counts = value is not None and self._has_values
        if counts or (noise_var, order) != (None, None):
            # The warping's slope at the value scales the noise, even where the value is ignored.
            mean, noise_var = self.surrogate.standard(value, noise_var)
            answer = mean if counts else 0.0, noise_var, order
        self._set(key, source, answer)

    def drop(self, key: int, source: int) -> None:
        """Remove an answer, if it is there."""
        if key in self._points:
            self._set(key, source, None)

    def _set(self, key: int, source: int, answer: _Answer | None) -> None:
        point = self._points[key]
        before = point.answers.get(source)
        if before == answer:
            return
        point.place(source, answer)
        self.size += (answer is not None) - (before is not None)
        self._changed.add(key)
        self._is_current = False

    def best(self, n: int) -> list[Tensor]:
        """Up to ``n`` points, ``d`` each, with the largest average answers, the best first."""
        posterior = self.anywhere
        rows = posterior.data.y.argsort(descending=True, stable=True)[:n].tolist()
        return [self._points[posterior.labels[row][0]].x for row in rows]

    @property
    def at_candidates(self) -> CandidatePosterior:
        """The posterior at the candidates."""
        if self._changed:
            points = {key: self._points[key] for key in sorted(self._changed)}
            X = torch.stack([point.x for point in points.values()])
            X = self.surrogate.inputs(sent(X, self.surrogate.like))
            self._at_candidates.update(
                {
                    key: (x, *point.row[:2]) if point.answers else None
                    for (key, point), x in zip(points.items(), X, strict=True)
                }
            )
            self._changed.clear()
        return self._at_candidates

    def with_drawn_answers(self, answers: Averages, generator: torch.Generator) -> Averages:
        """A copy with the averages of ``answers``, and drawn ones at points with pending answers.

        All points of ``answers`` must be here. The copy must not be changed, and is valid only
        until this object changes.
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
        """The posterior at any points, in the surrogate's inputs and units.

        Its data are in the order of the answers, not of the calls to :meth:`put`. So a resumed run
        has the same numbers to the last bit, on which climbs depend, and new points come last.
        """
        if self._anywhere is None or not self._is_current:
            order = sorted((p.first, key) for key, p in self._points.items() if p.answers)
            points = [self._points[key] for _, key in order]
            labels = [(key, p.row[1]) for (_, key), p in zip(order, points, strict=True)]
            before, same = self._anywhere, 0
            if before is not None:  # with hundreds of points in flight most have not changed
                same = shared_prefix(labels, before.labels)
            X = torch.cat([self._nothing, *(p.x.unsqueeze(0) for p in points[same:])])
            X = self.surrogate.inputs(sent(X, self.surrogate.like))
            if before is not None:
                X = torch.cat([before.data.X[:same], X])
            # Through NumPy, by column: ten times faster for hundreds of points.
            columns = np.array([*zip(*(p.row for p in points), strict=True)]).reshape(3, -1)
            data = Data(X, *sent(torch.from_numpy(columns), X))
            kernel = self.surrogate.covar_module
            self._anywhere = Posterior(kernel, data, labels=labels, before=before)
            self._is_current = True
        return self._anywhere
