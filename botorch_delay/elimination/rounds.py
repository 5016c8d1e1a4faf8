"""Rounds: their sizes and lengths, and the record that each leaves."""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, ClassVar

from botorch_delay import validation
from botorch_delay.exceptions import InputError


def round_lengths(horizon: int, wait: float) -> tuple[list[int], list[int]]:
    """Design sizes and lengths of the rounds of Algorithm 1.

    ``q_0 = 1``, ``q_r = ceil(sqrt(T q_{r-1}))``, ``t_r = ceil(q_r + wait)``, the last length cut
    so that the lengths sum to ``T``. Design sizes are not cut, even above the length.

    Args:
        horizon: T, the number of asks, at least 1.
        wait: u_T(delta), in steps, at least 0; 0 for no delay.

    Returns:
        ``(q, t)``, two lists of the same length.

    Raises:
        InputError: if an argument is below its least value.

    Example:
        >>> round_lengths(300, 28.2)
        ([18, 74, 149], [47, 103, 150])
    """
    horizon, wait = validation.whole(horizon, "horizon", 1), validation.nonnegative(wait, "wait")
    q: list[int] = []
    t: list[int] = []
    while (left := horizon - sum(t)) > 0:
        q.append(next_design_size(horizon, q[-1] if q else 1))
        t.append(_length(q[-1], wait, left))
    return q, t


def _length(size: int, wait: float, left: int) -> int:
    """``ceil(q_r + wait)``, cut where fewer asks are left."""
    return min(math.ceil(size + wait), left)


def next_design_size(horizon: int, previous: int) -> int:
    """``ceil(sqrt(T q))`` in whole numbers, without rounding error."""
    return math.isqrt(horizon * previous - 1) + 1


class Departure(enum.StrEnum):
    """How a round departed, before the last ask, from what the regret bound is proved for."""

    GIVEN_UP = "given up"  # a design point was abandoned, or failed too often
    SHORTENED = "shortened"  # a failed trial used up an ask of a round of fixed length
    UNEVEN = "uneven"  # a design point's answer has another noise variance than the surrogate's
    UNANSWERED = "unanswered"  # a round of fixed length closed with answers to its design missing
    CONTRADICTED = "contradicted"  # no point's upper bound reached the largest lower bound


@dataclass(frozen=True)
class RoundRecord:
    """What a closed round did.

    With a given kernel, and bounds from the round's own answers, these bounds can be computed again
    from it. With ``evidence="all"`` they also use answers that ``trial_ids`` and ``observed`` leave
    out; on a box with a learned kernel, a representative subset of at most 128 answered points.

    Attributes:
        number: r, from 1.
        design_size: q_r, the number of design points of the round.
        length: t_r, the number of its asks.
        observed: how many answers its bounds are made from.
        active_before: the number of active points when it opened; on a box, their estimated share.
        active_after: the same when it closed; on a box after the last round with a learned kernel,
            a rough estimate from 4,096 points, at least one of them counted as active.
        trial_ids: ids of the trials whose answers its bounds use, increasing.
        multiplier: the factor on sigma~ in the half-width of its bounds (for a tight
            confidence: the factor that the tight form never exceeds).
        delta: probability that some bound from the round's own answers fails; ``None`` if the
            bounds are not proved.
        hyperparameters: kernel, noise and scaling that its bounds were made with.
        cutoff: the largest lower bound, in the user's units and sign: points whose upper bound
            does not reach it were eliminated. None if no elimination was possible.
        surrogate: what is needed to rebuild a learned surrogate; None with a given kernel.
        extra_asks: how many asks were made after its first q_r design points had been asked, or
            while the next one had to wait, or asked a design point again.
        departures: how it departed from what the regret bound is proved for, as of its end.
        half_width: the largest half-width of its bounds over the points that were active when it
            opened, in units of the values; None on a box, if values are warped, and if no
            elimination was possible.
    """

    number: int
    design_size: int
    length: int
    observed: int
    active_before: float
    active_after: float
    trial_ids: tuple[int, ...] = field(repr=False)  # may be tens of thousands
    multiplier: float
    delta: float | None
    hyperparameters: Mapping[str, Any]
    cutoff: float | None = None
    surrogate: Mapping[str, Any] | None = field(default=None, repr=False)
    extra_asks: int = 0
    departures: tuple[Departure, ...] = ()
    half_width: float | None = None

    def describe(self) -> dict[str, Any]:
        """The record as plain values, JSON-ready."""
        departures = list(map(str, self.departures))
        return asdict(self) | {"trial_ids": list(self.trial_ids), "departures": departures}

    @classmethod
    def read(cls, record: Mapping[str, Any]) -> RoundRecord:
        """The record from plain values; TypeError or ValueError if they are malformed."""
        ids = tuple(validation.whole(number, "trial_ids", 0) for number in record["trial_ids"])
        departures = tuple(map(Departure, record["departures"]))
        return cls(**{**record, "trial_ids": ids, "departures": departures})


@dataclass(frozen=True)
class RoundRule:
    """Sizes and lengths of rounds, and how rounds share delta.

    With a ``wait``, u_T(delta) of a delay law in steps, rounds have the lengths of Algorithm 1, and
    bounds use the answers that have arrived. Without one, a round closes on arrival: once its first
    q_r design points are settled, and bounds use exactly those. ``fraction`` is rho, the share of
    asks that are design points: the k-th design point of the run is not asked before ask
    ``1 + (k - 1) / rho``, which bounds the number of rounds. Without a horizon no end is planned.
    """

    horizon: int | None
    schedule: HorizonRounds | GeometricRounds
    fraction: float = 1.0
    wait: float | None = None

    @cached_property
    def count(self) -> int | None:
        """R, the most rounds that there can be; None without a horizon."""
        if self.horizon is None:
            return None
        if self.wait is not None:
            return len(round_lengths(self.horizon, self.wait)[1])
        return len(self.sizes())

    def sizes(self, played: Sequence[int] = ()) -> list[int]:
        """q_r of all rounds up to the horizon if they close on arrival, first those ``played``."""
        assert self.horizon is not None
        sizes = list(played)
        while sum(sizes) < self.fraction * (self.horizon - 1) + 1:
            before = max(sizes[-1], 1) if sizes else 1
            sizes.append(self.design_size(len(sizes) + 1, before))
        return sizes

    @property
    def on_arrival(self) -> bool:
        """Whether a round closes when its design points are settled."""
        return self.wait is None

    def delta_divisor(self, number: int) -> int:
        """What delta is divided by for round r: R, or ``r (r + 1)`` where no end is planned."""
        return number * (number + 1) if self.count is None else self.count

    def design_size(self, number: int, previous: int) -> int:
        """q_r of round ``number``, after a round with ``previous`` design points."""
        return self.schedule.design_size(number, previous, self.horizon, self.fraction)

    def length(self, size: int, asks: int) -> int | None:
        """t_r if a round of ``size`` design points opens after ``asks`` asks; None on arrival."""
        if self.wait is None or self.horizon is None:
            return None
        return _length(size, self.wait, self.horizon - asks)


def _ceil(size: float) -> int:
    """``size`` rounded up; a whole number stays, though floats may exceed it (0.07 * 700 does)."""
    return math.ceil(size * (1.0 - 1e-14))


@dataclass(frozen=True)
class HorizonRounds:
    """``q_0 = 1``, ``q_r = ceil(sqrt(rho T q_{r-1}))``: the paper's where rho is 1.

    Args:
        straggler_factor: kappa >= 1; a round closes without its last answers once the largest
            posterior deviation over the active set, given its answered design points, is at most
            kappa times what it is given all of them. That multiplies the regret bound by kappa and
            assumes more about delays; see :mod:`botorch_delay.optimizers.early_close`. Needs a
            finite domain, and no delay law. None waits for all answers.
    """

    straggler_factor: float | None = None

    def __post_init__(self) -> None:
        if self.straggler_factor is not None:
            kappa = validation.factor(self.straggler_factor, "straggler_factor")
            object.__setattr__(self, "straggler_factor", kappa)

    def design_size(self, number: int, previous: int, horizon: int | None, fraction: float) -> int:
        """q_r of round ``number``, after one with q_{r-1} design points; ``fraction`` is rho."""
        assert horizon is not None
        if fraction == 1.0:
            return next_design_size(horizon, previous)
        return _ceil(math.sqrt(fraction * horizon * previous))


@dataclass(frozen=True)
class GeometricRounds:
    """``q_1 = first``, ``q_r = ceil(growth * q_{r-1})``, for any horizon or none.

    Without a horizon round r has the share ``delta / (r (r + 1))`` of delta. Set ``first`` to about
    the delay in asks that you expect: each early round waits once, however small it is. The cost of
    these rounds relative to :class:`HorizonRounds` (``guarantee.factor``) refers to the worst-case
    form of the regret bound, in terms of the maximal information gain.

    Args:
        first: q_1, at least 1.
        growth: g, above 1.
    """

    first: int
    growth: float
    straggler_factor: ClassVar[None] = None  # an option of HorizonRounds only

    def __post_init__(self) -> None:
        object.__setattr__(self, "first", validation.whole(self.first, "first", 1))
        object.__setattr__(self, "growth", validation.positive(self.growth, "growth"))
        if self.growth <= 1.0:
            raise InputError(f"growth must be above 1, got {self.growth:g}.")

    def design_size(self, number: int, previous: int, horizon: int | None, fraction: float) -> int:
        """``ceil(growth * q_{r-1})``, at most the horizon; see :class:`HorizonRounds`."""
        size = self.first if number == 1 else _ceil(self.growth * previous)
        return size if horizon is None else min(size, horizon)


# For runs without a horizon: how long answers take is not known, so rounds begin small and double.
OPEN_ENDED = GeometricRounds(1, 2.0)
