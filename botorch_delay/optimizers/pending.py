"""How pending points enter the posterior that a rule sees."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from botorch_delay import validation
from botorch_delay.exceptions import InputError


class Pending:
    """How pending points enter the posterior.

    Attributes:
        counts_in_deviation: whether the deviation is conditioned on them, which needs no values.
        draws: whether every ask draws values for them from the posterior.
        value_of_missing: the value of a missing answer, in the user's sign; None to leave it out.
        max_delay: in asks; an answer with a longer delay counts as missing; None for no limit.
        inflate: whether a rule's factor on sigma is increased by sigma at the last points.
    """

    counts_in_deviation: ClassVar[bool] = False
    draws: ClassVar[bool] = False
    value_of_missing: float | None = None
    max_delay: int | None = None
    inflate: bool = False


@dataclass(frozen=True)
class Ignore(Pending):
    """Pending points do not enter: mean and deviation are those given the answers, mu~ and sigma~.

    Until a new answer arrives, a rule that is not random asks the same point again.
    """


@dataclass(frozen=True)
class Hallucinate(Pending):
    """The mean comes from the answers, the deviation from all asks (Desautels 2014).

    As if each pending point were answered by its posterior mean. Failed trials count as pending.
    """

    counts_in_deviation = True


@dataclass(frozen=True)
class KrigingBeliever(Pending):
    """Pending points get answers drawn from the posterior, new ones in every ask.

    The randomized kriging believer of Sugiura, Takeuchi and Takeno (arXiv 2603.01470); the plain
    one (Ginsbourger 2010) takes the mean, as :class:`Hallucinate` does. If f is a draw of the
    surrogate's Gaussian process, noise is Gaussian, and delays do not depend on the answers, then
    each ask has the distribution that it would have if no answer were missing. The paper's bounds
    on expected regret need an initial design, which is not made here: nothing is claimed.

    A failed trial counts as pending. Random numbers are drawn on the CPU, from the optimizer's seed
    and the number of the ask.
    """

    counts_in_deviation = draws = True


@dataclass(frozen=True)
class Censor(Pending):
    """Missing answers count as the worst value of f (Verma et al. 2022).

    Mean and deviation are those given all asks. A running or failed trial has the worst value; one
    that was answered after more than ``max_delay`` asks keeps it for ever.

    Args:
        worst_value: the worst value of f, in the user's units and sign. Verma et al. have it as
            their prior mean, 0: to do so, subtract it from your values.
        max_delay: the longest delay, in asks, of an answer that counts; None if all count.
        inflate: add to UCB's factor on sigma the sum of sigma at the last ``max_delay`` points,
            each as it was when the point was asked (theorem 1 of Verma et al.).
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
