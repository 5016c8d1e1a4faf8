"""How pending points enter the posterior that a rule sees."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from botorch_delay import validation
from botorch_delay.exceptions import InputError


class Pending:
    """How pending points enter the posterior.

    Attributes:
        hallucinates: whether they count in the deviation without a value.
        draws: whether values are drawn for those without one in every ask.
        value_of_missing: what a missing answer counts as, in the user's sign; None if it does not.
        max_delay: in asks; an answer that took longer counts as missing. None if none does.
        inflate: whether a rule's factor on sigma grows by sigma at the last points.
    """

    hallucinates: ClassVar[bool] = False
    draws: ClassVar[bool] = False
    value_of_missing: float | None = None
    max_delay: int | None = None
    inflate: bool = False


@dataclass(frozen=True)
class Ignore(Pending):
    """Not at all: mu~ and sigma~ from what has arrived.

    Without new answers a rule that is not random asks the same point again.
    """


@dataclass(frozen=True)
class Hallucinate(Pending):
    """The mean from what has arrived, the deviation from everything asked (Desautels 2014).

    Equivalent to answers equal to the posterior mean at the pending points. A trial that has
    failed stays counted.
    """

    hallucinates = True


@dataclass(frozen=True)
class KrigingBeliever(Pending):
    """Pending points count with answers drawn from the posterior, others at every ask.

    The randomized kriging believer of Sugiura, Takeuchi and Takeno (arXiv 2603.01470), where the
    plain one (Ginsbourger 2010) takes the mean, as :class:`Hallucinate` does. If f is a draw of the
    surrogate's Gaussian process, noise is Gaussian, and delays do not depend on the answers, then
    given what has arrived the drawn answers have the law of the missing ones. So each single ask
    has the law of what the rule would ask if no answer of these points were missing. Regret bounds,
    of the mean over such f, are given there under conditions on the rule and after an initial
    design, which is not made here: nothing is claimed.

    A trial that has failed counts as pending. What is random is drawn on the CPU, and follows from
    the optimizer's seed and the number of the ask.
    """

    hallucinates = draws = True


@dataclass(frozen=True)
class Censor(Pending):
    """Missing values counted as the worst value of f (Verma et al. 2022).

    The posterior is of everything asked. A trial that is running or has failed has the worst
    value; an answer that took more than ``max_delay`` asks has it for ever.

    Args:
        worst_value: the worst value of f, in the user's units and sign. Verma et al. measure
            values from the worst one, so that theirs is 0; subtract it from your values for
            their prior.
        max_delay: in asks; None if answers count however late they are.
        inflate: add to UCB's factor the sum of sigma at the last ``max_delay`` points, each
            as it was when the point was asked (theorem 1 of Verma et al.).
    """

    worst_value: float
    max_delay: int | None = None
    inflate: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "worst_value", validation.real(self.worst_value, "worst_value"))
        validation.flag(self.inflate, "inflate")
        if self.max_delay is not None:
            delay = validation.whole(self.max_delay, "max_delay", 0)
            object.__setattr__(self, "max_delay", delay)
        elif self.inflate:
            raise InputError(
                "inflate sums sigma over the last max_delay points; give max_delay, in asks."
            )
        object.__setattr__(self, "value_of_missing", self.worst_value)

    def __repr__(self) -> str:
        limit = "" if self.max_delay is None else f", max_delay={self.max_delay}"
        wide = ", inflate=True" if self.inflate else ""
        return f"Censor({self.worst_value:g}{limit}{wide})"
