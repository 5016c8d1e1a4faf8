"""Active sets: the points that can still be the maximiser.

Finite sets and boxes share one interface; that of a box is implemented in ``box_active_set``.
Active sets are immutable: closing a round makes a new one. Points are identified by keys, see
:class:`botorch_delay.domains.domain.PointKeys`.
"""

from __future__ import annotations

import copy
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from botorch_delay import validation
from botorch_delay.confidence.bounds import Confidence, Evidence, HalfWidth
from botorch_delay.design.greedy import GreedyDesign
from botorch_delay.domains.devices import moved, sent_rows
from botorch_delay.domains.domain import Domain, PointKeys
from botorch_delay.domains.finite import FiniteDomain
from botorch_delay.elimination.rounds import RoundRecord
from botorch_delay.exceptions import InputError, InputTypeError, NumericsError, StorageError
from botorch_delay.gp.kernels import prior_variance
from botorch_delay.gp.posterior import Data
from botorch_delay.gp.surrogate import Surrogate
from botorch_delay.history.answers import Answers

logger = logging.getLogger(__name__)

# Up to this many answered points, bounds are computed from a new Cholesky factor and not from the
# design's covariance: they are then the same to the last bit wherever they are computed again.
MAX_FACTORIZED = 512


@dataclass(frozen=True)
class RoundBounds:
    """What determines the bounds of a round: how wide they are, and how likely to fail."""

    number: int  # of the round, from 1
    confidence: Confidence
    delta: float  # probability that some bound from the round's own answers fails
    delta_of_all: float  # probability that some bound from all answers fails, in any round
    count: int | None  # N, the number of points at which bounds hold at once; None on a box
    valid: bool  # whether they are proved; if not they are a heuristic
    sign: float  # -1 where the user minimises, else 1

    def check_finite(self, *ends: Tensor) -> None:
        """Raise :class:`NumericsError` if a bound is not finite."""
        if not all(torch.isfinite(end).all() for end in ends):
            raise NumericsError(
                f"The bounds of round {self.number} are not finite; check the scale of values and "
                "noise against the kernel's."
            )


@dataclass(frozen=True)
class RoundAnswers:
    """The answers from which a round's bounds are made."""

    trial_ids: tuple[int, ...]  # for ``RoundRecord.trial_ids``, increasing
    fixed: Answers  # those for the bounds of ``Confidence.fixed_design``
    adaptive: Answers | None = None  # all answers, if ``Confidence.adaptive`` bounds are used too
    design: Design | None = None  # the round's, if it exists and ``fixed`` has only its points


@dataclass(frozen=True)
class Elimination:
    """The result of closing a round."""

    active: ActiveSet  # the points that survive
    cutoff: float  # the largest lower bound, in units of the values, to be maximised
    multiplier: float  # the factor on sigma in the bounds
    half_width: float | None = None  # the largest of the bounds; None on a box or if contradicted
    contradicted: bool = False  # whether no upper bound reaches the cut-off


# Gives, when called, the surrogate, answers and bounds by which a stored round was judged.
Judged = Callable[[], tuple[Surrogate, Answers, RoundBounds]]


class Design(Protocol):
    """A maximum-variance design that grows one pick at a time."""

    def next(self) -> int:
        """The key of the point to pick next; ExhaustedDesignError if all are excluded."""

    def add(self, key: int) -> None:
        """Add a point to the picks; one that was picked before counts once more."""

    def exclude(self, key: int, excluded: bool = True) -> None:
        """Keep a point from being picked, or allow it again; its past picks still count."""


class ActiveSet(ABC):
    """The points that may still be the maximiser, on a finite set or a box.

    Attributes:
        domain: the whole domain.
        keys: the keys of points of a box, shared by all active sets of a run.
        rows: the active rows of a finite set, a LongTensor, increasing; None on a box.
        is_cut: whether closed rounds have eliminated part of a box.
    """

    rows: Tensor | None = None
    is_cut: bool = False

    def __init__(self, domain: Domain, keys: PointKeys) -> None:
        self.domain, self.keys = domain, keys

    @abstractmethod
    def contains(self, X: Tensor) -> Tensor:
        """Whether each row of ``X`` (``n x d``) is active: a bool tensor ``n``."""

    @abstractmethod
    def round_that_eliminated(self, X: Tensor) -> Tensor:
        """For each point (``n x d``) the round that eliminated it, 0 for none: ``n``."""

    @property
    @abstractmethod
    def size(self) -> float:
        """The number of active points; on a box, the active share of it."""

    @property
    def rough_size(self) -> float:
        """:attr:`size`; on a box an estimate from 4,096 points, at least one counted inside."""
        return self.size

    @property
    def is_empty(self) -> bool:
        return not self.size

    def key_of(self, x: Tensor) -> int:
        row = int(self.domain.find(x.unsqueeze(0)))
        return row if row >= 0 else self.keys.of(x)

    def has(self, key: int) -> bool:
        """Whether the point with a key can be asked in a round on this set."""
        return True  # on a box the points of a round were inside when they were asked

    @abstractmethod
    def without(self, keys: Sequence[int]) -> ActiveSet:
        """The same set without the points with these keys."""

    def after(self, number: int) -> ActiveSet:
        """The same set after round ``number``, which eliminated nothing but infeasible points."""
        return self

    @abstractmethod
    def restored(self, infeasible: Sequence[int], number: int) -> ActiveSet:
        """The domain without the keys ``infeasible``, which count as eliminated in a round."""

    @property
    def inside(self) -> Callable[[Tensor], Tensor] | None:
        """A test for active points, ``n x d`` to bool ``n``; None unless rounds have cut a box."""
        return None

    @property
    def points_inside(self) -> Tensor | None:
        """Points spread over the active set, ``n x d``; None unless rounds have cut a box."""
        return None

    @abstractmethod
    def candidates(self, tried: Tensor) -> Tensor:
        """Points over which to maximise, ``n x d``; on a box a sample and the points ``tried``."""

    @abstractmethod
    def evaluated(self, rows: Iterable[int | None], X: Tensor) -> tuple[list[int] | None, Tensor]:
        """Rows and points, ``n x d``, that may be recommended: the evaluated ones in the domain.

        If there are none, all points of a finite set, or a sample of the active part of a box.
        """

    @abstractmethod
    def design(self, surrogate: Surrogate, number: int, picks: Iterable[int]) -> Design:
        """A maximum-variance design for round ``number``, which already has these picks."""

    def check(self, surrogate: Surrogate, bounds: RoundBounds) -> None:
        """Raise before the first ask the errors that would later stop a round from closing.

        The causes are a kernel without known bounds on a box, a box without a feasible point, and a
        user's own :class:`Confidence` whose methods return the wrong type.
        """
        nothing = surrogate.data(Answers.of(self.domain, 1.0, []))
        evidence = Evidence.under(surrogate, nothing, bounds.delta)
        widths = {
            "fixed_design": self.half_width(surrogate, nothing, bounds),
            "adaptive": bounds.confidence.adaptive(evidence),
        }
        for name, width in widths.items():
            if not isinstance(width, HalfWidth):
                raise InputTypeError(
                    f"{name} of {type(bounds.confidence).__name__} must return a HalfWidth, "
                    f"got {width!r}."
                )

    @abstractmethod
    def half_width(self, surrogate: Surrogate, data: Data, bounds: RoundBounds) -> HalfWidth:
        """How wide a round's bounds are, from its answers in the surrogate's units."""

    @abstractmethod
    def eliminate(
        self, surrogate: Surrogate, answers: RoundAnswers, bounds: RoundBounds
    ) -> Elimination:
        """What survives a round; NumericsError if a bound is not finite."""

    @abstractmethod
    def difference_from(self, before: ActiveSet) -> list[Any]:
        """What a round changed, JSON-ready: the rows eliminated; on a box a point that is left."""

    @abstractmethod
    def after_record(self, record: RoundRecord, difference: Any, judged: Judged) -> ActiveSet:
        """This set after a stored round, for which :meth:`difference_from` gave ``difference``.

        ``judged`` is called only where the round's bounds have to be computed again.
        """

    @abstractmethod
    def largest_prior_deviation(self, kernel: Kernel) -> float:
        """The largest ``sqrt(k(x, x))`` on the whole domain, or an upper bound on it."""


def surviving(lower: Tensor, upper: Tensor) -> Tensor:
    """The rule of Algorithm 1: keep x where ``U(x) >= max over z of L(z)``; bool, ``n``.

    It is all false only where bounds from two sources contradict each other: max L > max U.
    """
    return upper >= lower.max()


class FiniteActiveSet(ActiveSet):
    """The active points of a finite set.

    Args:
        domain: the set.
        indices: rows of the active points, a LongTensor, increasing; all if None.
    """

    domain: FiniteDomain
    rows: Tensor

    def __init__(self, domain: FiniteDomain, indices: Tensor | None = None) -> None:
        validation.instance(domain, FiniteDomain, "domain", "a FiniteDomain")
        super().__init__(domain, PointKeys())
        every = torch.arange(len(domain), device=domain.device)
        rows = every if indices is None else indices
        last = len(domain) - 1
        is_long = isinstance(rows, Tensor) and rows.dtype == torch.long
        if not is_long or not torch.equal(rows, rows.clamp(0, last).unique()):
            raise InputError(
                f"indices must be a LongTensor of rows from 0 to {last}, increasing and without "
                f"repeats, got {rows!r}; indices.unique() gives that."
            )
        self.rows, self._eliminated = rows.clone(), torch.zeros_like(every)

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
        """For each point the round that eliminated it, 0 for none: ``N``."""
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
        return self.only(self.rows[~torch.isin(self.rows, sent_rows(keys, self.rows))])

    def only(self, rows: Tensor) -> FiniteActiveSet:
        """This set reduced to some of its active rows, a LongTensor, increasing."""
        left = copy.copy(self)
        left.rows = rows
        return left

    def after(self, number: int) -> FiniteActiveSet:
        return self._left(number, self.rows)

    def restored(self, infeasible: Sequence[int], number: int) -> FiniteActiveSet:
        left = FiniteActiveSet(self.domain).without(infeasible)
        return self._left(number, left.rows)

    def _left(self, number: int, rows: Tensor) -> FiniteActiveSet:
        """These rows are active; all others not eliminated yet are eliminated in this round."""
        left = self.only(rows)
        left._eliminated = self._eliminated.masked_fill(self._eliminated == 0, number)
        left._eliminated[rows] = 0
        return left

    def candidates(self, tried: Tensor) -> Tensor:
        return self.points if len(self.rows) else self.domain.points[self._eliminated == 0]

    def evaluated(self, rows: Iterable[int | None], X: Tensor) -> tuple[list[int], Tensor]:
        found = sorted({row for row in rows if row is not None}) or [*range(len(self.domain))]
        return found, self.domain.points[found]

    def design(self, surrogate: Surrogate, number: int, picks: Iterable[int]) -> GreedyDesign:
        candidates, noise_var = surrogate.inputs(self.points), surrogate.noise_var
        return GreedyDesign(surrogate.covar_module, candidates, noise_var, picks, rows=self.rows)

    def eliminate(
        self, surrogate: Surrogate, answers: RoundAnswers, bounds: RoundBounds
    ) -> Elimination:
        """Keep rows whose upper bound reaches the largest lower bound (Algorithm 1, last line)."""
        data = surrogate.data(answers.fixed)
        width = self.half_width(surrogate, data, bounds)
        found, weights = None, width.needs_weights
        if isinstance(answers.design, GreedyDesign) and len(data) > MAX_FACTORIZED:
            answered = moved(answers.fixed.group.unique(), self.rows.device)
            found = answers.design.moments(data, answered, self.rows, weights=weights)
        if found is None:
            lower, upper = width.around(surrogate.posterior(data), self.points)
        else:
            lower, upper = width.interval(found.rescaled(surrogate.offset, surrogate.scale))
        if answers.adaptive is not None:
            others = surrogate.data(answers.adaptive)
            evidence = Evidence.of_all(surrogate, answers.adaptive, others, bounds.delta_of_all)
            of_all = bounds.confidence.adaptive(evidence)
            low, high = of_all.around(surrogate.posterior(others), self.points)
            lower, upper = torch.maximum(lower, low), torch.minimum(upper, high)
        bounds.check_finite(lower, upper)
        kept = surviving(lower, upper)
        contradicted = not bool(kept.any())
        if contradicted:  # bounds of the round and from all answers contradict each other
            logger.warning(
                "round %d: the largest lower bound, %.6g, is above every upper bound, the largest "
                "of which is %.6g: norm_bound or noise_std is too small, or the kernel is wrong; "
                "the points with the largest bounds stay",
                bounds.number,
                lower.max().item(),
                upper.max().item(),
            )
            kept = (upper == upper.max()) | (lower == lower.max())
        return Elimination(
            self._left(bounds.number, self.rows[kept]),
            lower.max().item(),
            width.multiplier,
            None if contradicted else 0.5 * (upper - lower).max().item(),
            contradicted,
        )

    def half_width(self, surrogate: Surrogate, data: Data, bounds: RoundBounds) -> HalfWidth:
        evidence = Evidence.under(surrogate, data, bounds.delta, bounds.count)
        return bounds.confidence.fixed_design(evidence)

    def difference_from(self, before: ActiveSet) -> list[Any]:
        assert before.rows is not None
        return before.rows[~torch.isin(before.rows, self.rows)].tolist()

    def after_record(self, record: RoundRecord, difference: Any, judged: Judged) -> FiniteActiveSet:
        rows = self.without([validation.whole(row, "row", 0) for row in difference]).rows
        if not len(rows) or len(rows) + len(difference) != len(self.rows):
            raise StorageError(f"round {record.number} eliminates points that were not active.")
        return self._left(record.number, rows)

    def largest_prior_deviation(self, kernel: Kernel) -> float:
        return float(prior_variance(kernel, self.domain.points).max()) ** 0.5
