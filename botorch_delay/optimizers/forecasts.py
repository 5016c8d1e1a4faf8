"""Overdue trials, and when the open round will close."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass

from botorch_delay import validation
from botorch_delay.history.empirical_delay import EmpiricalDelay
from botorch_delay.history.trials import Trial


@dataclass(frozen=True)
class Straggler:
    """A running trial, and how overdue it is.

    Attributes:
        trial: the running trial.
        asks: how many asks have been made since its own.
        sooner: the estimated share of answers that take fewer asks; None before any answer.
    """

    trial: Trial
    asks: int
    sooner: float | None = None


def describe_running(
    trials: Iterable[Trial], asks: int, law: EmpiricalDelay | None
) -> list[Straggler]:
    """How overdue running trials are after ``asks`` asks; ``law`` is None before any answer."""
    found = []
    for trial in trials:
        age = asks - 1 - trial.id
        sooner = None if law is None else 1.0 - float(law.survival(age - 1))
        found.append(Straggler(trial, age, sooner))
    return found


@dataclass(frozen=True)
class Forecast:
    """When the open round will close: inside which of the next asks.

    Delays are assumed independent, with the law estimated from the answers so far, and no further
    trial is assumed to fail. With ``straggler_factor`` the round may close sooner.

    Attributes:
        round: the number of the round.
        waiting_for: the running trials that it waits for, longest wait first.
        to_ask: for each design point still to be asked, inside which of the next asks (from 1).
        asks_left: how many asks are left in the run; None without a horizon.
        law: the estimated law of delays; None where nothing depends on it.
        earliest: whether a budget may delay design points beyond ``to_ask``.
    """

    round: int
    waiting_for: tuple[Straggler, ...]
    to_ask: tuple[int, ...]
    asks_left: int | None
    law: EmpiricalDelay | None
    earliest: bool = False

    def probability(self, asks: int) -> float:
        """The probability that the round closes inside one of the next ``asks`` asks."""
        k = validation.whole(asks, "asks", 0)
        if k == 0:
            return 0.0
        total, law = 1.0, self.law
        if law is not None:
            for waited in self.waiting_for:
                # After age a, an answer with delay tau can be used by the ask tau - a + 1 from now.
                total *= 1.0 - law.survival(waited.asks + k - 1, waited.asks)
            for step in self.to_ask:
                total *= 1.0 - law.survival(k - 1 - step)
        return total

    def quantile(self, p: float) -> float:
        """The least number of asks within which the round closes with probability ``p``.

        At least 1; ``inf`` if the law, known up to the longest delay so far, does not reach ``p``.
        """
        p = validation.probability(p, "p")
        limit = 0 if self.law is None else self.law.limit
        last = [limit - waited.asks for waited in self.waiting_for]
        asks = range(1, 2 + max([0, *last, *(step + limit for step in self.to_ask)]))
        place = bisect_left(asks, p - 1e-12, key=self.probability)  # it never falls
        return float(asks[place]) if place < len(asks) else math.inf

    def __str__(self) -> str:
        half, most = self.quantile(0.5), self.quantile(0.9)
        when = _asks(half)
        if math.isfinite(half) and most != half:
            then = f"{_asks(most)} with" if math.isfinite(most) else "not known yet for"
            when = f"{when} with probability 0.5, {then} probability 0.9"
        words = f"round {self.round} closes {when}"
        if self.earliest:
            words += ", if its design points are asked at once"
        if self.asks_left is not None and most > self.asks_left:
            asks = "1 ask is" if self.asks_left == 1 else f"{self.asks_left} asks are"
            words += f"; {asks} left"
        return words


def _asks(count: float) -> str:
    if not math.isfinite(count):
        return "after more asks than any answer has taken so far"
    return "inside the next ask" if count <= 1 else f"within {count:g} asks"


def planned_asks(retries: int, new: int, designed: int, asks: int, fraction: float) -> list[int]:
    """Inside which of the next asks, counted from 1, design points will be asked.

    First come the ``retries``, then ``new`` ones, each due once ``designed <= fraction * asks``.
    """
    steps = list(range(1, retries + 1))
    last = retries
    for number in range(new):
        due = math.ceil((designed + number) / fraction) - asks + 1
        if designed + number <= fraction * (asks + due - 2):  # the quotient was rounded up
            due -= 1
        last = max(last + 1, due)
        steps.append(last)
    return steps
