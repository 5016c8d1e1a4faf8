"""What is guaranteed about a run, and under which assumptions."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class BudgetTerms:
    """The terms of a regret budget's claim: the regret is at most ``max(F B, B') + W + E``.

    All but F are in units of the values; W and E are those of the run so far.
    """

    factor: float  # F
    plan: float  # B, BPE-Delay's own regret bound for its plan on the whole set
    bound: float  # ``max(F B, B')``, B' being B with the smaller share of delta that bounds have
    extra_cost: float  # W, the summed prices of ``Guarantee.extra_asks``, as of when each was asked
    excess: float  # E, by how much rounds on the active set have exceeded the plan
    trivial: float  # D T, the most that any T asks can cost


@dataclass(frozen=True)
class Guarantee:
    """What is claimed for a configuration and its run so far.

    A claim that has been lost is never regained, not even by saving and loading.

    Attributes:
        holds: whether a regret bound is claimed, with probability 1 - delta: that of Theorem 1, or
            ``factor`` times its worst-case form if ``factor`` is not 1, plus the cost of extra
            asks; with a regret budget, ``budget.bound`` plus its W and E.
        delta: the failure probability.
        assumptions: what the claim assumes; the user has to judge whether it is true.
        missing: why no bound is claimed; empty if and only if ``holds``.
        factor: the claimed regret bound, without extra asks, as a multiple of the worst-case form
            of Theorem 1's bound. That form has the maximal information gain in place of the
            deviations that designs leave; with these deviations the bound is smaller, and regret
            may exceed ``factor`` times it. With a budget, the multiple of ``budget.plan``.
        extra_asks: without a delay law, the number of asks so far that were made while a round
            waited for its last answers or could not yet ask its next design point, or that asked a
            design point again. Their cost comes on top of Theorem 1's bound. With a regret budget,
            only those that it did not allow, or that asked a design point again.
        extra_cost: a bound on the regret of these asks, in units of the values; None without
            valid bounds.
        norm_at_least: a lower bound on the RKHS norm of f, with probability 1 - delta, in units of
            the values: the largest that the answers have required since one was last corrected.
            None without valid bounds.
        budget: the terms of a regret budget, if there is one.
        in_practice: the rule that chooses all asks but one, in words, if the horizon has room for
            only one design point; else empty.
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
    in_practice: str = ""

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
        rule = [self.in_practice] if self.in_practice else []
        return "\n".join([head, *(f"- {line}" for line in lines), *rule])
