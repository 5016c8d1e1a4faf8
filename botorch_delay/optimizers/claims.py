"""What BPE-Delay claims for a configuration, and why not more."""

from __future__ import annotations

from dataclasses import dataclass

from botorch_delay.confidence import Confidence, Guarantee
from botorch_delay.delays import DelayLaw, SubExponentialDelay

_NO_STRAGGLERS = (
    "rounds close without stragglers once deviations are at most {:g} times the intended ones: at "
    "which steps a round's design points are answered or fail does not depend on their noise, "
    "jointly, given all that was known when the round opened; delays may depend on the points, but "
    "where asks wait for free workers while a rule plays, durations may not"
)


@dataclass(frozen=True)
class BudgetTerms:
    """What a budget claims.

    Attributes:
        factor: F.
        bound: max(F B, B'), where B is BPE-Delay's own regret bound without waiting.
        trivial: what any sequence of asks may cost.
        refuted: whether the answers contradict the assumptions.
        unplanned: whether a design point was given up or answered with a noise of its own.
    """

    factor: float
    bound: float
    trivial: float
    refuted: bool
    unplanned: bool


def claim(
    confidence: Confidence,
    delay: DelayLaw | None,
    delta: float,
    *,
    learned: bool,
    resets: int,
    on_box: bool = False,
    fraction: float = 1.0,
    geometric: bool = False,
    pooled: bool = False,
    exploits: bool = False,
    exact: bool = False,
    straggler_factor: float | None = None,
    budget: BudgetTerms | None = None,
) -> Guarantee:
    """The regret bound of Theorem 1, or what is missing for it.

    Args:
        confidence: the bounds.
        delay: the law that gives the rounds their lengths, or None if they close on arrival.
        delta: failure probability.
        learned: whether kernel and noise are learned.
        resets: how often all active points turned out to be infeasible.
        on_box: whether points are searched for on a box.
        fraction: rho, the share of asks that are design points.
        geometric: whether rounds grow by a constant factor.
        pooled: whether bounds from all answers are intersected with the round's own.
        exploits: whether a rule is played outside the design.
        exact: whether evaluations have no noise.
        straggler_factor: kappa of a rule by which rounds close without stragglers, if there is one.
        budget: for asks that are not BPE-Delay's own; None without one.
    """
    missing = list(confidence.missing)
    if learned:
        missing.append(
            "kernel and noise are learned from the answers, and a learned kernel proves nothing; "
            "pass covar_module and noise_var."
        )
    if isinstance(delay, SubExponentialDelay) and delay.paper_min:
        missing.append(
            "the delay bound with the paper's minimum is exceeded far more often than promised; "
            "use paper_min=False."
        )
    if resets:
        missing.append(
            "every active point has its exact value already or is infeasible, so that points are "
            "asked that bounds had eliminated."
            if exact
            else "every active point turned out to be infeasible, so that points had to be taken "
            "back that bounds had eliminated."
        )
    assumptions = [
        "the kernel is right",
        *confidence.assumptions,
        "whether a trial fails or is abandoned does not depend on its noise, given the point, and "
        "the maximiser can be evaluated",
    ]
    if on_box:
        assumptions.append(
            "the search for the largest deviation on the box finds at least a constant share of "
            "it, which enters the regret bound as a factor; elimination does not rest on it"
        )
    if exploits:
        assumptions.append("no trial outside the design fails")
    if exact:
        assumptions.append(
            "evaluations are exact, so that bounds from all answers hold whatever points, delays "
            "and failures depend on; a point that has been asked is not asked again, the best "
            "included"
        )
    elif pooled:
        assumptions.append(
            "half of the bounds' share of delta is for the self-normalised bound from all answers: "
            "delays, failures and attached results do not depend on the noise given the point"
        )
    elif delay is None and straggler_factor is None:
        assumptions.append(
            "delays may depend on the points; on the values too as long as no trial fails or is "
            "abandoned and finish() is not called before the last round's answers are there"
        )
    elif delay is not None:
        assumptions.append(
            f"delays are independent, with the law {delay!r}, and do not depend on the noise given "
            "the point"
        )
    if geometric:
        assumptions.append(
            "rounds grow by a constant factor, of which the regret bound has one for each"
        )
    factor = fraction**-0.5
    if straggler_factor is not None:
        factor *= straggler_factor
        if not exact:
            assumptions.append(_NO_STRAGGLERS.format(straggler_factor))
    if budget is not None:
        factor = budget.factor
        if budget.refuted:
            missing.append(
                "the answers contradict norm_bound and noise_std: no function of that norm fits."
            )
        if budget.unplanned:
            missing.append(
                "a design point was given up, or answered with a noise variance of its own: rounds "
                "may be wider than the budget planned for; certified_regret holds all the same."
            )
        assumptions.append(
            f"the regret bound is {budget.bound:.6g}, plus what asks cost while a round waits or a "
            "point is asked again, plus what rounds on the active set come to beyond their plan on "
            f"the whole set (any asks cost at most {budget.trivial:.6g}); certified_regret needs "
            "none of that, and holds whatever delays, failures and missing answers depend on"
        )
    return Guarantee(not missing, delta, tuple(assumptions), tuple(missing), factor)
