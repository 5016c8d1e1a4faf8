"""Active sets: the points that can still be the maximiser.

Finite sets and boxes have the same interface. Active sets are immutable: closing a round makes
another one. Points are known by their keys, see :class:`botorch_delay.domains.domain.PointKeys`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from gpytorch.kernels import Kernel
from torch import Tensor

from botorch_delay.confidence.bounds import Confidence, HalfWidth
from botorch_delay.domains.domain import Domain, PointKeys
from botorch_delay.elimination.rounds import RoundRecord
from botorch_delay.exceptions import InputTypeError, NumericsError
from botorch_delay.gp.posterior import Data
from botorch_delay.gp.surrogate import Surrogate
from botorch_delay.history.answers import Answers
from botorch_delay.history.trials import Suggestion


@dataclass(frozen=True)
class RoundBounds:
    """How wide the bounds of a round are, and what may go wrong with them."""

    confidence: Confidence
    delta: float  # probability with which some bound from the round's own answers may fail
    delta_of_all: float  # the same of the bounds from all answers, in all rounds together
    points: int | None  # N, over which bounds hold at once; None on a box
    valid: bool  # whether they are proved; if not they are a heuristic
    sign: float  # -1 where the user minimises


@dataclass(frozen=True)
class RoundAnswers:
    """The answers by which a round is judged."""

    trial_ids: tuple[int, ...]  # of the trials that its record names, increasing
    fixed: Answers  # from which ``Confidence.fixed_design`` makes bounds
    adaptive: Answers | None = None  # all, if what ``Confidence.adaptive`` makes counts as well
    of_design: bool = True  # whether ``fixed`` are of design points only


@dataclass(frozen=True)
class Elimination:
    """The result of closing a round."""

    active: ActiveSet  # what survives
    cutoff: float  # the largest lower bound, in units of the values, to be maximised
    multiplier: float  # the factor on sigma in the bounds
    half_width: float | None = None  # the largest one; None on a box, and where contradicted
    contradicted: bool = False  # whether no upper bound reaches the cut-off


class Design(Protocol):
    """A maximum-variance design that grows one pick at a time."""

    def next(self) -> int:
        """The point that the rule picks now; ExhaustedDesignError if all are excluded."""

    def add(self, key: int) -> None:
        """Count a point as picked, once more if it was already."""

    def exclude(self, key: int, excluded: bool = True) -> None:
        """Keep a point from being picked, or allow it again; its past picks still count."""


class ActiveSet(ABC):
    """The points that may still be the maximiser, on a finite set or a box.

    Attributes:
        domain: the whole domain.
        keys: of points of a box, shared by the active sets of a run.
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
        """The number of points, or the share of the box."""

    @property
    def is_empty(self) -> bool:
        return not self.size

    def key_of(self, x: Tensor) -> int:
        row = int(self.domain.find(x.unsqueeze(0)))
        return row if row >= 0 else self.keys.of(x)

    def suggestion(self, key: int, number: int, slot: int) -> Suggestion:
        if key >= 0:
            return Suggestion(index=key, round=number, slot=slot)
        return Suggestion(index=None, round=number, slot=slot, x=self.keys.point(key))

    def has(self, key: int) -> bool:
        """Whether the point with a key can be asked in a round on this set."""
        return True  # on a box every point of a round was asked inside

    @abstractmethod
    def without(self, keys: Sequence[int]) -> ActiveSet:
        """The same set without the points with some keys."""

    def after(self, number: int) -> ActiveSet:
        """The same set after round ``number``, which eliminated nothing but infeasible points."""
        return self

    @abstractmethod
    def restored(self, infeasible: Sequence[int], number: int) -> ActiveSet:
        """All feasible points of the domain, where no active point is feasible any more."""

    @property
    def inside(self) -> Callable[[Tensor], Tensor] | None:
        """Whether points are active, ``n x d`` to bool ``n``; None unless rounds have cut a box."""
        return None

    @property
    def points_inside(self) -> Tensor | None:
        """Points spread over the active set, ``n x d``; None unless rounds have cut a box."""
        return None

    @abstractmethod
    def candidates(self, tried: Tensor) -> tuple[list[int] | None, Tensor]:
        """Rows and points to compare; on a box a sample and the points tried, ``n x d``."""

    @abstractmethod
    def evaluated(self, rows: Iterable[int | None], X: Tensor) -> tuple[list[int] | None, Tensor]:
        """Rows and points that may be recommended: those evaluated (``n x d``), else all."""

    @abstractmethod
    def design(self, surrogate: Surrogate, number: int, picks: Iterable[int]) -> Design:
        """A maximum-variance design for a round that has some picks already, in order."""

    def check(self, surrogate: Surrogate | None, bounds: RoundBounds) -> None:
        """Raise before the first ask what would stop a round from closing.

        That is a kernel without such bounds on a box, a box with nothing feasible, or bounds of the
        user's own that are of the wrong type.
        """
        if surrogate is not None:
            nothing = surrogate.data(Answers.of(self.domain, 1.0, []))
            width = self.half_width(surrogate, nothing, bounds)
            if not isinstance(width, HalfWidth):
                raise InputTypeError(
                    f"fixed_design of {type(bounds.confidence).__name__} must return a HalfWidth, "
                    f"got {width!r}."
                )

    @abstractmethod
    def half_width(self, surrogate: Surrogate, data: Data, bounds: RoundBounds) -> HalfWidth:
        """How wide a round's bounds are, from its answers in units of the surrogate."""

    @abstractmethod
    def eliminate(
        self,
        number: int,
        surrogate: Surrogate,
        answers: RoundAnswers,
        bounds: RoundBounds,
        design: Design | None = None,
    ) -> Elimination:
        """What survives a round.

        Args:
            number: of the round.
            surrogate: that the round is judged with.
            answers: that its bounds are made from.
            bounds: how wide these are.
            design: the round's, if it was made.

        Raises:
            NumericsError: if a bound is not finite.
        """

    @abstractmethod
    def difference_from(self, before: ActiveSet) -> list[Any]:
        """What a round changed, beside its record, JSON-ready: see :meth:`after_record`."""

    @abstractmethod
    def after_record(
        self,
        record: RoundRecord,
        left: Any,
        judged: Callable[[], tuple[Surrogate, Answers, RoundBounds]],
    ) -> ActiveSet:
        """This set after a stored round, whose bounds are not computed before they are needed.

        ``left`` is what :meth:`difference_from` gave; ``judged`` gives what made the bounds.
        """

    @abstractmethod
    def largest_deviation(self, kernel: Kernel) -> float:
        """The largest root of ``k(x, x)`` on the domain, or a bound on it."""


def not_finite(number: int) -> NumericsError:
    """The error of a round whose bounds are not finite."""
    return NumericsError(
        f"The bounds of round {number} are not finite; check the scale of values and noise "
        "against the kernel's."
    )
