"""The active set of a finite domain: rows of its points."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from botorch_delay import validation
from botorch_delay.confidence.bounds import Evidence, HalfWidth
from botorch_delay.design.greedy import GreedyDesign
from botorch_delay.domains.devices import moved, sent_rows
from botorch_delay.domains.domain import PointKeys
from botorch_delay.domains.finite import FiniteDomain
from botorch_delay.elimination.active_set import (
    ActiveSet,
    Design,
    Elimination,
    RoundAnswers,
    RoundBounds,
    not_finite,
)
from botorch_delay.elimination.rounds import RoundRecord
from botorch_delay.exceptions import StorageError
from botorch_delay.gp.kernels import prior_variance
from botorch_delay.gp.posterior import Data
from botorch_delay.gp.surrogate import Surrogate
from botorch_delay.history.answers import Answers

logger = logging.getLogger(__name__)

# Up to this many answered points bounds rest on a factorization and not on the design: they are
# then the same to the last bit wherever they are computed again.
MAX_FACTORIZED = 512


def surviving(lower: Tensor, upper: Tensor) -> Tensor:
    """The rule of Algorithm 1: keep x where ``U(x) >= max over z of L(z)``; bool, ``n``.

    It is all false only where bounds of two sources contradict each other: max L > max U.
    """
    return upper >= lower.max()


class FiniteActiveSet(ActiveSet):
    """The active points of a finite set.

    Args:
        domain: the set.
        indices: rows of the active points, a LongTensor, increasing; all not eliminated if None.
        eliminated: for each point the round that eliminated it, a LongTensor ``N``, 0 for none;
            all zeros if None.
    """

    domain: FiniteDomain
    rows: Tensor

    def __init__(
        self, domain: FiniteDomain, indices: Tensor | None = None, eliminated: Tensor | None = None
    ) -> None:
        super().__init__(domain, PointKeys())
        if eliminated is None:
            eliminated = torch.zeros(len(domain), dtype=torch.long, device=domain.points.device)
        self._eliminated = eliminated
        self.rows = (eliminated == 0).nonzero().flatten() if indices is None else indices

    @property
    def indices(self) -> Tensor:
        """Rows of ``domain.points`` that are active: a LongTensor, increasing."""
        return self.rows.clone()

    @property
    def points(self) -> Tensor:
        """The active points, ``n x d``."""
        return self.domain.points[self.rows]

    def contains(self, X: Tensor) -> Tensor:
        """Whether each row of ``X`` (``n x d``) is an active point, exactly: bool ``n``."""
        return torch.isin(self.domain.find(validation.matrix(X, "X", empty=True)), self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        return f"FiniteActiveSet({len(self)} of {len(self.domain)} points)"

    def round_that_eliminated(self, X: Tensor) -> Tensor:
        rows = self.domain.find(X)
        return self._eliminated[rows].where(rows >= 0, 0)

    @property
    def eliminated(self) -> Tensor:
        """For each point the round that eliminated it, 0 while it is active: ``N``."""
        return self._eliminated.clone()

    @property
    def size(self) -> int:
        return len(self.rows)

    def has(self, key: int) -> bool:
        position = int(torch.searchsorted(self.rows, key))
        return position < len(self.rows) and int(self.rows[position]) == key

    def without(self, keys: Sequence[int]) -> FiniteActiveSet:
        if not keys:
            return self
        out = sent_rows(keys, self.rows)
        return self.only(self.rows[~torch.isin(self.rows, out)])

    def only(self, rows: Tensor) -> FiniteActiveSet:
        """Some of the active rows, a LongTensor, increasing."""
        return FiniteActiveSet(self.domain, rows, self._eliminated)

    def after(self, number: int) -> FiniteActiveSet:
        return self._left(number, self.rows)

    def restored(self, infeasible: Sequence[int], number: int) -> FiniteActiveSet:
        left = FiniteActiveSet(self.domain).without(infeasible)
        return self._left(number, left.rows)

    def _left(self, number: int, rows: Tensor) -> FiniteActiveSet:
        """These rows are active; others that were are eliminated in this round."""
        eliminated = self._eliminated.masked_fill(self._eliminated == 0, number)
        eliminated[rows] = 0
        return FiniteActiveSet(self.domain, rows, eliminated)

    def candidates(self, tried: Tensor) -> tuple[list[int], Tensor]:
        rows = self.rows if len(self.rows) else (self._eliminated == 0).nonzero().flatten()
        return rows.tolist(), self.domain.points[rows]

    def evaluated(self, rows: Iterable[int | None], X: Tensor) -> tuple[list[int], Tensor]:
        found = sorted({row for row in rows if row is not None}) or [*range(len(self.domain))]
        return found, self.domain.points[found]

    def design(self, surrogate: Surrogate, number: int, picks: Iterable[int]) -> GreedyDesign:
        candidates, noise_var = surrogate.inputs(self.points), surrogate.noise_var
        return GreedyDesign(surrogate.covar_module, candidates, noise_var, picks, rows=self.rows)

    def eliminate(
        self,
        number: int,
        surrogate: Surrogate,
        answers: RoundAnswers,
        bounds: RoundBounds,
        design: Design | None = None,
    ) -> Elimination:
        """Rows whose upper bound reaches the largest lower bound (Algorithm 1, the last line)."""
        data = surrogate.data(answers.fixed)
        width = self.half_width(surrogate, data, bounds)
        found, weights = None, width.needs_weights
        of_design = answers.of_design and len(data) > MAX_FACTORIZED
        if of_design and isinstance(design, GreedyDesign):
            answered = moved(answers.fixed.group.unique(), self.rows.device)
            found = design.moments(data, answered, self.rows, weights=weights)
        if found is None:
            found = surrogate.posterior(data).at(self.points, weights=weights)
        else:
            found = found.rescaled(surrogate.offset, surrogate.scale)
        lower, upper = width.interval(found)
        if answers.adaptive is not None:
            others = surrogate.data(answers.adaptive)
            known = Evidence.under(surrogate, others, bounds.delta_of_all)
            width_of_all = bounds.confidence.adaptive(known)
            weights = width_of_all.needs_weights
            found = surrogate.posterior(others).at(self.points, weights=weights)
            lower_of_all, upper_of_all = width_of_all.interval(found)
            lower = torch.maximum(lower, lower_of_all)
            upper = torch.minimum(upper, upper_of_all)
        if not (torch.isfinite(lower).all() and torch.isfinite(upper).all()):
            raise not_finite(number)
        kept = surviving(lower, upper)
        contradicted = not bool(kept.any())
        if contradicted:  # bounds of the round and from all answers contradict each other
            logger.warning(
                "round %d: the largest lower bound, %.6g, is above every upper bound, the largest "
                "of which is %.6g: norm_bound or noise_std is too small, or the kernel is wrong; "
                "the points with the largest bounds stay",
                number,
                lower.max().item(),
                upper.max().item(),
            )
            kept = (upper == upper.max()) | (lower == lower.max())
        return Elimination(
            self._left(number, self.rows[kept]),
            lower.max().item(),
            width.multiplier,
            None if contradicted else 0.5 * (upper - lower).max().item(),
            contradicted,
        )

    def half_width(self, surrogate: Surrogate, data: Data, bounds: RoundBounds) -> HalfWidth:
        within = Evidence.under(surrogate, data, bounds.delta, bounds.points)
        return bounds.confidence.fixed_design(within)

    def difference_from(self, before: ActiveSet) -> list[int]:
        assert before.rows is not None
        rows: list[int] = before.rows[~torch.isin(before.rows, self.rows)].tolist()
        return rows

    def after_record(
        self,
        record: RoundRecord,
        left: Any,
        judged: Callable[[], tuple[Surrogate, Answers, RoundBounds]],
    ) -> FiniteActiveSet:
        out = sent_rows([validation.whole(row, "row", 0) for row in left], self.rows)
        rows = self.rows[~torch.isin(self.rows, out)]
        if not len(rows) or len(rows) + len(out) != len(self.rows):
            raise StorageError(f"round {record.number} eliminates points that were not active.")
        return self._left(record.number, rows)

    def largest_deviation(self, kernel: Kernel) -> float:
        with torch.no_grad():
            return float(prior_variance(kernel, self.domain.points).max()) ** 0.5
