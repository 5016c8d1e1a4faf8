"""What BPE-Delay claims for a configuration, and why not more."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from botorch_delay.confidence import Confidence, Guarantee, RKHSConfidence
from botorch_delay.delays import DelayLaw, SubExponentialDelay
from botorch_delay.optimizers.budget import BudgetTerms
from botorch_delay.optimizers.feasibility import MAX_FAILURES
from botorch_delay.optimizers.open_round import OpenRound
from botorch_delay.rounds import GeometricRounds, RoundRecord
from botorch_delay.surrogate import Surrogate
from botorch_delay.trials import Trial, TrialState

_NO_STRAGGLERS = (
    "rounds close without stragglers once deviations are at most {:g} times the intended ones: at "
    "which steps a round's design points are answered or fail does not depend on their noise, "
    "jointly, given all that was known when the round opened; delays may depend on the points, but "
    "where asks wait for free workers while a rule plays, durations may not; no design point is "
    "given up before its round closes"
)
# Variances that differ by no more are the same: one may come from single precision.
ROUNDING = 1e-6


@dataclass(frozen=True)
class History:
    """What happened in a run that a claim may not survive.

    Attributes:
        failed: whether a trial failed.
        given_up: whether a round goes without the answer of a design point.
        shortened: whether a failure took an ask from a round of fixed length.
        own_noise: whether an answer was told with a noise variance other than the surrogate's.
        uneven: whether that of a design point was.
        noisier: whether one was above the square of the noise scale that the bounds rest on.
    """

    failed: bool = False
    given_up: bool = False
    shortened: bool = False
    own_noise: bool = False
    uneven: bool = False
    noisier: bool = False


def look_back(
    trials: Sequence[Trial],
    records: Sequence[RoundRecord],
    current: OpenRound | None,
    surrogate: Surrogate,
    confidence: Confidence,
    *,
    on_arrival: bool,
    complete: bool,
    exact: bool,
    over: bool,
) -> History:
    """What happened in a run.

    Args:
        trials: in the order of their ids.
        records: of the closed rounds.
        current: the open round.
        surrogate: as given.
        confidence: the bounds.
        on_arrival: whether a round closes when its design points are settled.
        complete: whether it then uses exactly their answers.
        exact: whether evaluations are, so that bounds use all answers.
        over: whether no ask can follow, so that nothing is asked on the last round's bounds.
    """
    counted = list(records)
    if over:
        counted, current = (counted if current is not None else counted[:-1]), None
    sizes = {record.number: record.design_size for record in counted}
    used = {i for record in counted for i in record.trial_ids}
    if current is not None:
        sizes[current.number] = current.design_size
        used.update(current.answered(current.design_size if on_arrival else None))
    known = {}
    if exact:
        known = {record.number: {_point(trials[i]) for i in record.trial_ids} for record in counted}
    opened = {trial.round: trial.id for trial in reversed(trials)}
    last = {(trial.round, trial.slot): trial.id for trial in trials}
    largest = math.inf
    if isinstance(confidence, RKHSConfidence):
        largest = confidence.noise_std**2 * (1.0 + ROUNDING)
    failed = given_up = shortened = own_noise = uneven = noisier = False
    for trial in trials:
        ends = over and trial.id == len(trials) - 1  # no ask followed
        failed |= trial.state is TrialState.FAILED and not ends
        told = trial.noise_var
        other = told is not None and abs(told / surrogate.noise_var - 1.0) > ROUNDING
        own_noise |= other
        noisier |= told is not None and told > largest
        size = sizes.get(trial.round, 0)
        if not size or not (trial.slot >= 0 and (trial.slot < size or not on_arrival)):
            continue
        uneven |= other and trial.id in used
        # Before the round closed; old files do not say when a trial ended.
        before = (trial.answered_step or 0) <= opened.get(trial.round + 1, math.inf)
        shortened |= before and trial.state is TrialState.FAILED and not on_arrival
        if complete or (on_arrival and current is not None and trial.round == current.number):
            continue  # the rounds themselves tell what they go without
        if exact:
            given_up |= trial.round in known and _point(trial) not in known[trial.round]
            continue
        gone = trial.state is TrialState.ABANDONED or trial.late
        given_up |= before and gone and trial.id == last[trial.round, trial.slot]
    if complete:
        given_up |= any(record.observed < record.design_size for record in counted)
    if on_arrival and current is not None:
        given_up |= current.gave_up()
    return History(failed, given_up, shortened, own_noise, uneven, noisier)


def _point(trial: Trial) -> int | tuple[float, ...]:
    """The same where points are equal."""
    return tuple(trial.x.tolist()) if trial.index is None else trial.index


def claim(
    confidence: Confidence,
    delay: DelayLaw | None,
    delta: float,
    *,
    learned: bool,
    resets: int,
    horizon: int | None = None,
    on_box: bool = False,
    fraction: float = 1.0,
    geometric: GeometricRounds | None = None,
    pooled: bool = False,
    exploits: bool = False,
    repeats: bool = True,
    exact: bool = False,
    straggler_factor: float | None = None,
    budget: BudgetTerms | None = None,
    history: History | None = None,
) -> Guarantee:
    """The regret bound of Theorem 1, or what is missing for it.

    Args:
        confidence: the bounds.
        delay: the law that gives the rounds their lengths, or None if they close on arrival.
        delta: failure probability.
        learned: whether kernel and noise are learned.
        resets: how often all active points turned out to be infeasible.
        horizon: T, or None.
        on_box: whether points are searched for on a box.
        fraction: rho, the share of asks that are design points.
        geometric: the schedule, if rounds grow by a constant factor.
        pooled: whether bounds from all answers are intersected with the round's own.
        exploits: whether a rule is played outside the design.
        repeats: whether a pending point may be asked again.
        exact: whether evaluations have no noise.
        straggler_factor: kappa of a rule by which rounds close without stragglers, if there is one.
        budget: for asks that are not BPE-Delay's own; None without one.
        history: of the run; None before it.
    """
    history = history or History()
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
        "whether a trial fails or is abandoned does not depend on noise, its own or that of "
        "others, given the points; the "
        f"maximiser never fails {MAX_FAILURES} times without an answer in between, after which a "
        "point counts as infeasible; asks that fail or are given up, and those that are made "
        "while their points are asked again, come on top of the regret bound",
    ]
    if not missing:
        missing += _what_happened(
            history,
            exploits=exploits and not exact,
            pooled=pooled,
            budgeted=budget is not None,
        )
    if delay is not None and exploits and not repeats:
        missing.append(
            "with repeat_pending=False values may decide how many design points a round of fixed "
            "length has; leave out delay, or repeat_pending."
        )
    if history.own_noise:
        assumptions.append("the noise variances that answers were told with do not depend on them")
    if on_box:
        assumptions.append(
            "the search for the largest deviation on the box finds at least a constant share of "
            "it, which enters the regret bound as a factor; elimination does not rest on it"
        )
    if exploits and not exact:
        assumptions.append(
            "no trial fails: with a rule outside the design, failures could change which design "
            "points follow"
        )
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
            "abandoned"
        )
    elif delay is not None:
        assumptions.append(
            f"delays are independent, with the law {delay!r}, and do not depend on the noise given "
            "the point"
        )
    factor = fraction**-0.5
    if geometric is not None:
        factor *= _geometric_factor(geometric.growth)
        first = math.ceil(geometric.first / fraction)
        first = first if horizon is None else min(first, horizon)
        assumptions.append(
            f"rounds grow by the factor {geometric.growth:g}: each has its own share of delta in "
            f"the regret bound, and the first {first} asks come on top of it, at the most that an "
            "ask can cost"
        )
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
        assumptions.append(
            f"the regret bound is {budget.bound:.6g}, plus what asks cost while a round waits or a "
            "point is asked again, plus what rounds on the active set come to beyond their plan on "
            f"the whole set (any asks cost at most {budget.trivial:.6g}); certified_regret needs "
            "none of that, and holds whatever delays, failures and missing answers depend on"
        )
    return Guarantee(not missing, delta, tuple(assumptions), tuple(missing), factor)


def _geometric_factor(growth: float) -> float:
    """Against Theorem 1 where all asks are design points, q_r = g q_{r-1}, after the first round.

    Theorem 1 charges a round q_r c / sqrt(q_{r-1}) = c sqrt(T). Here that is c sqrt(g q_r), and
    sum sqrt(q_r) <= sqrt(T) sqrt(2 sqrt(g) / (sqrt(g) - 1)) by Cauchy-Schwarz: the last round,
    cut anywhere, and the geometric series before it.
    """
    root = math.sqrt(growth)
    return math.sqrt(2.0 * growth * root / (root - 1.0))


def _what_happened(history: History, *, exploits: bool, pooled: bool, budgeted: bool) -> list[str]:
    """Why valid bounds do not carry the claim any more."""
    certified = "; certified_regret holds all the same" if budgeted else ""
    missing = []
    if history.noisier:
        missing.append(
            "an answer was told with a noise variance above noise_std squared, on which the bounds "
            "rest; make the optimizer with the largest scale of the noise."
        )
    if history.own_noise and pooled:
        missing.append(
            "an answer was told with a noise variance other than noise_var, and bounds from all "
            'answers are proved for one that all of them share; use evidence="round".'
        )
    if history.failed and exploits:
        missing.append(
            "a trial failed while a rule plays outside the design: where the rule asked may have "
            f"changed which design points followed; use exploit=None where trials fail{certified}."
        )
    also = ""
    if not missing:
        also = certified or "; the maximiser is never eliminated all the same"
    wide = f"its round may leave more regret than the bound charges{also}"
    if history.given_up:
        unless = ", if it was not given up because of its value" if also and not budgeted else ""
        missing.append(f"a design point was given up: {wide}{unless}.")
    if history.uneven:
        missing.append(f"a design point has a noise variance other than noise_var: {wide}.")
    if history.shortened:
        missing.append(f"a failure took an ask from a round of fixed length: {wide}.")
    return missing
