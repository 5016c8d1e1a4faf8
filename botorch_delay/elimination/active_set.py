"""Active sets: the points that can still be the maximiser.

What differs between a finite set and a box is hidden here. An active set is never changed: closing
a round makes another one, so that a round is judged in full before anything moves.

Points go by their keys, see :class:`botorch_delay.domains.finite.PointKeys`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from gpytorch.kernels import Kernel
from torch import Tensor

from botorch_delay.confidence.bounds import Confidence, HalfWidth
from botorch_delay.domains.finite import Domain, PointKeys
from botorch_delay.elimination.rounds import RoundRecord
from botorch_delay.exceptions import NumericsError
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
    points: int  # N, over which the bounds of a finite set hold at once
    valid: bool  # whether they are proved; if not they are a heuristic
    sign: float  # -1 where the user minimises


@dataclass(frozen=True)
class Elimination:
    """What the bounds of a round do."""

    active: ActiveSet  # what survives
    cutoff: float  # the largest lower bound, in units of the values, to be maximised
    multiplier: float  # the factor on sigma in the bounds
    # The largest one over what may be asked; None on a box, and where bounds contradict each
    # other.
    half_width: float | None = None
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
        domain: of which it is a part.
        keys: of points, shared by the active sets of a box's run.
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
        """For each point (``n x d``) the round that took it out, 0 for none: ``n``."""

    @property
    @abstractmethod
    def size(self) -> float:
        """How many points, or which share of the box."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing may be asked."""
        return not self.size

    def key_of(self, x: Tensor) -> int:
        """The key of a point of the domain, ``d``."""
        row = int(self.domain.find(x.unsqueeze(0)))
        return row if row >= 0 else self.keys.of(x)

    def suggestion(self, key: int, number: int, slot: int) -> Suggestion:
        """The point with a key, to be asked in round ``number`` for a slot."""
        if key >= 0:
            return Suggestion(index=key, round=number, slot=slot)
        return Suggestion(index=None, round=number, slot=slot, x=self.keys.point(key))

    def has(self, key: int) -> bool:
        """Whether the point with a key can be asked in a round on this set."""
        return True  # on a box every point of a round was asked inside

    @abstractmethod
    def without(self, keys: Sequence[int]) -> ActiveSet:
        """The same set but for the points with some keys, which cannot be asked."""

    def after(self, number: int) -> ActiveSet:
        """What a round leaves that eliminates nothing: points that cannot be asked are out."""
        return self

    @abstractmethod
    def restored(self, infeasible: Sequence[int], number: int) -> ActiveSet:
        """Every point of the domain that is feasible, for a round none of whose points are."""

    @property
    def inside(self) -> Callable[[Tensor], Tensor] | None:
        """On a box that rounds have cut, whether points are active: ``n x d`` to bool ``n``."""
        return None

    @property
    def spread(self) -> Tensor | None:
        """Points spread over what rounds have left of a box, ``n x d``; None where all is left."""
        return None

    @abstractmethod
    def candidates(self, tried: Tensor | None = None) -> tuple[list[int] | None, Tensor]:
        """Rows and points to compare; on a box a sample, and what was tried, ``n x d``."""

    @abstractmethod
    def evaluated(self, rows: Iterable[int | None], X: Tensor) -> tuple[list[int] | None, Tensor]:
        """Rows and points to recommend, of those that were evaluated (``n x d``), or of all."""

    @abstractmethod
    def design(
        self, surrogate: Surrogate, number: int, picks: Iterable[int], closed: Iterable[int]
    ) -> Design:
        """A maximum-variance design for a round that has some picks already, in order.

        Points with the keys in ``closed`` may not be picked.
        """

    def check(self, surrogate: Surrogate | None, bounds: RoundBounds) -> None:
        """Find out before the first ask what would stop a round from being judged.

        That is a kernel that allows no such bounds on a box, or a box of which nothing may be
        asked.
        """
        if surrogate is not None:
            nothing = surrogate.data(Answers.of(self.domain, 1.0, []))
            self.half_width(surrogate, nothing, bounds)

    @abstractmethod
    def half_width(self, surrogate: Surrogate, data: Data, bounds: RoundBounds) -> HalfWidth:
        """How wide the bounds of a round are, from its answers in units of the surrogate."""

    @abstractmethod
    def eliminate(
        self,
        number: int,
        surrogate: Surrogate,
        data: Data,
        bounds: RoundBounds,
        own: Answers,
        others: Data | None = None,
        design: Design | None = None,
    ) -> Elimination:
        """What survives a round, whose answers are ``data``, and in full ``own``.

        A search on a box begins where these are. ``others`` are all answers there are, asked with
        earlier values in view, whose own bounds count as well, with as much of delta. ``design``
        is the round's, where the answers are of design points. :class:`NumericsError` if a bound
        is not finite.
        """

    @abstractmethod
    def difference_from(self, before: ActiveSet) -> list[Any]:
        """How it differs from the set when a round opened, beside its record, JSON-ready."""

    @abstractmethod
    def after_record(
        self,
        record: RoundRecord,
        left: Any,
        judged: Callable[[], tuple[Surrogate, Answers, RoundBounds]],
    ) -> ActiveSet:
        """What a round left of this set; no bounds are computed before they are needed.

        ``left`` is what :meth:`difference_from` gave, and ``judged`` gives what the round was
        judged with.
        """

    @abstractmethod
    def largest_deviation(self, kernel: Kernel) -> float:
        """The largest root of ``k(x, x)`` on the domain, or a bound on it."""


def not_finite(number: int) -> NumericsError:
    """The error where the bounds of a round are not finite."""
    return NumericsError(
        f"The bounds of round {number} are not finite; check the scale of values and noise "
        "against the kernel's."
    )
