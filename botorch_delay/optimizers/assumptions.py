"""What the regret bound of BPE-Delay is claimed under, in words, for users to judge."""

from __future__ import annotations

import math

from botorch_delay.confidence.guarantee import BudgetTerms
from botorch_delay.history.point_status import MAX_FAILURES
from botorch_delay.optimizers.config import BPEConfig

_NO_STRAGGLERS = (
    "rounds close without stragglers once deviations are at most {:g} times the intended ones: at "
    "which steps a round's design points are answered or fail does not depend on their noise, "
    "jointly, given all that was known when the round opened; delays may depend on the points, but "
    "where asks wait for free workers while a rule plays, durations may not; no design point is "
    "given up before its round closes"
)


def assumed(
    config: BPEConfig, *, failed: int, abandoned: int, amended: int, own_noise: bool
) -> list[str]:
    """What the claim rests on, but for the terms of a budget; counts are those of the audit."""
    again = ""
    if failed or abandoned:
        again = (
            f" (so far {failed} failed, and {abandoned} design points were "
            "abandoned before they were answered: a timeout that depends on the value voids "
            "the claim)"
        )
    assumptions = [
        "the kernel is right",
        *config.confidence.assumptions,
        "whether a trial fails or is abandoned does not depend on noise, its own or that of "
        f"others, given the points{again}; the maximiser never fails {MAX_FAILURES} times "
        "without an answer in between, after which a point counts as infeasible; asks that "
        "fail or are given up, and those that are made while their points are asked again, "
        "come on top of the regret bound",
    ]
    if amended:
        assumptions.append(
            f"every correction (so far {amended}) says what the evaluation gave: a result "
            "that is withdrawn, or replaced by another evaluation, because of its value voids "
            "the claim"
        )
    if own_noise:
        assumptions.append("the noise variances that answers were told with do not depend on them")
    if not config.finite:
        assumptions.append(
            "the search for the largest deviation on the box finds at least a constant share "
            "of it, which enters the regret bound as a factor; elimination does not rest on it"
        )
    if config.exploit is not None and not config.exact:
        assumptions.append(
            "no trial fails: with a rule outside the design, failures could change which "
            "design points follow"
        )
    assumptions += [*_of_delays(config), *_of_rounds(config)]
    if config.proves and config.confidence.constants is None:
        assumptions.append(
            f"the bounds of {config.confidence!r} hold as they say: they have no norm bound "
            "and no noise scale that could be held against the answers"
        )
    return assumptions


def _of_rounds(config: BPEConfig) -> list[str]:
    """What the regret bound counts of asks while rounds wait, and of the first ones."""
    assumptions = []
    if config.delay is None:
        assumptions.append(
            "asks that are made while a round waits for its last design points come on top of "
            "Theorem 1's bound: it is waited for every one of them, for as long as it takes"
            if config.rounds.straggler_factor is None
            else "asks that are made while a round waits come on top of the regret bound"
        )
    if config.geometric is not None:
        first = math.ceil(config.geometric.first / config.fraction)
        first = min(first, config.horizon or first)
        assumptions.append(
            f"rounds grow by the factor {config.geometric.growth:g}: each has its own share "
            f"of delta in the regret bound, and the first {first} asks come on top of it, at "
            "the most that an ask can cost"
        )
    if config.rounds.straggler_factor is not None and not config.exact:
        assumptions.append(_NO_STRAGGLERS.format(config.rounds.straggler_factor))
    return assumptions


def _of_delays(config: BPEConfig) -> list[str]:
    """What delays may depend on, which the answers that bounds use decide."""
    found = []
    if config.exact:
        found.append(
            "evaluations are exact, so that bounds from all answers hold whatever points, delays "
            "and failures depend on; a point that has been asked is not asked again, the best "
            "included"
        )
    elif config.evidence == "all":
        found.append(
            "half of the bounds' share of delta is for the self-normalised bound from all answers, "
            "so that Theorem 1's bound is that for delta / 2: delays, failures and attached "
            "results do not depend on the noise given the point, and "
            "every attached result is an evaluation of its own, attached once"
        )
    elif config.delay is None and config.rounds.straggler_factor is None:
        found.append(
            "delays may depend on the points; on the values too as long as no trial fails or is "
            "abandoned"
        )
    if config.delay is not None:
        given = "" if config.exact else ", and do not depend on the noise given the point"
        found.append(f"delays are independent, with the law {config.delay!r}{given}")
    return found


def of_budget(budget: BudgetTerms) -> str:
    """What the regret bound consists of, where there is a budget."""
    return (
        f"the regret bound is {budget.bound:.6g} (B = {budget.plan:.6g}, BPE-Delay's plan on "
        "the whole set), plus W, what asks cost while a round waits or a point is asked again "
        f"({budget.waits_cost:.6g} so far), plus E, what rounds on the active set come to beyond "
        f"the plan ({budget.excess:.6g} so far). Any asks cost at most {budget.trivial:.6g}: a "
        f"factor of {budget.vacuous_from:.3g} or more says nothing. certificate needs "
        "none of B, W and E, and holds whatever delays, failures and missing answers depend on"
    )
