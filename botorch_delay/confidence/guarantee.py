"""What is claimed of a run, and on which assumptions."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class BudgetTerms:
    """What a regret budget claims: regret of at most ``max(F B, B') + W + E``.

    All but F in units of the values; W and E are of the run so far.
    """

    factor: float  # F
    plan: float  # B, BPE-Delay's own regret bound for its plan on the whole set
    bound: float  # ``max(F B, B')``, where B' is B with the bounds' smaller share of delta
    extra_cost: float  # W, the prices of extra asks
    excess: float  # E, by how much rounds on the active set have exceeded the plan
    trivial: float  # D T, what any asks can cost at most


@dataclass(frozen=True)
class Guarantee:
    """What is claimed for a configuration and its run so far.

    A claim that has ended stays so, also in what is saved from then on.

    Attributes:
        holds: whether a regret bound is claimed, with probability 1 - delta: that of Theorem 1, or
            ``factor`` times its worst-case form where that is not 1, plus what extra asks cost;
            with a budget ``budget.bound`` plus its W and E.
        delta: the failure probability.
        assumptions: what it rests on; to be judged by the user.
        missing: why not more is claimed; empty if and only if ``holds``.
        factor: how many times the worst-case form of Theorem 1's bound the claimed regret bound is,
            without extra asks. That form has the maximal information gain in place of the
            deviations that designs leave; with these themselves the bound is smaller, and
            ``factor`` times it may be exceeded. With a budget, how many times ``budget.plan``.
        extra_asks: without a delay law, how many asks so far were made while a round waited for its
            last design points or had to wait with the next one, or of a design point again. They
            come on top of Theorem 1's bound.
        extra_cost: what these can have cost at most, in units of the values; None where no valid
            bounds say so.
        norm_at_least: the largest RKHS norm that the answers have required since one was last
            corrected, with probability 1 - delta, in units of the values; None without valid
            bounds.
        budget: the terms of a regret budget, where there is one.
        plays: the rule that decides the run, in words, where the horizon leaves room for no design
            point but the first; empty elsewhere.
    """

    holds: bool
    delta: float
    assumptions: tuple[str, ...]
    missing: tuple[str, ...]
    factor: float = 1.0
    extra_asks: int = 0
    extra_cost: float | None = None
    norm_at_least: float | None = None
    budget: BudgetTerms | None = None
    plays: str = ""

    def __str__(self) -> str:
        times = "" if self.factor == 1.0 else f", at {self.factor:.3g} times the regret bound"
        if times and self.budget is None:
            times += " in its worst-case form"
        if self.budget is not None:
            total = self.budget.bound + self.budget.extra_cost + self.budget.excess
            times += f", {total:.6g} for the whole horizon, with extra asks and rounds so far"
            if total >= self.budget.trivial:
                times += f" (vacuous: no asks can cost more than {self.budget.trivial:.6g})"
        elif self.extra_asks and self.extra_cost is not None:
            times += (
                f", plus at most {self.extra_cost:.4g} for the {self.extra_asks} asks while rounds "
                "waited"
            )
        head = (
            f"Guaranteed with probability {1.0 - self.delta:g}{times}, assuming:"
            if self.holds
            else "No guarantee of the regret bound:"
        )
        lines = self.assumptions if self.holds else self.missing
        played = [self.plays] if self.plays else []
        return "\n".join([head, *(f"- {line}" for line in lines), *played])
