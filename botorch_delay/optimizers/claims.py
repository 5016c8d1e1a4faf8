"""What BPE-Delay claims for a configuration and its run so far, and why not more."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from gpytorch.kernels import Kernel, LinearKernel, ScaleKernel

from botorch_delay.confidence.bounds import Confidence, RKHSConfidence
from botorch_delay.confidence.guarantee import BudgetTerms, Guarantee
from botorch_delay.delays import SubExponentialDelay
from botorch_delay.elimination.rounds import Departure
from botorch_delay.history.point_status import MAX_FAILURES
from botorch_delay.optimizers.config import BPEConfig

_NO_STRAGGLERS = (
    "rounds close without stragglers once deviations are at most {:g} times the intended ones: at "
    "which steps a round's design points are answered or fail does not depend on their noise, "
    "jointly, given all that was known when the round opened; delays may depend on the points, but "
    "where asks wait for free workers while a rule plays, durations may not; no design point is "
    "given up before its round closes"
)
_KEPT = "the maximiser is never eliminated all the same"


@dataclass(frozen=True)
class Incidents:
    """What happened in a run that a claim may not survive; it only ever grows.

    What concerns one round is in its record: see
    :class:`botorch_delay.elimination.rounds.Departure`.

    Attributes:
        failed: trials that failed, but for the last one of a run.
        abandoned: design points that were abandoned before they were answered, where a regret
            bound needs their answers: they are asked again.
        own_noise: whether an answer was told with a noise variance other than the surrogate's.
        noisier: whether one was above the square of the noise scale that the bounds rest on.
        beyond_bound: trials that took longer than u_T, in asks.
        out_of_round: asks that were made elsewhere for a round that had closed here.
        norm: the largest norm that the answers have called for.
        tested: to how many answers it was last computed.
    """

    failed: int = 0
    abandoned: int = 0
    own_noise: bool = False
    noisier: bool = False
    beyond_bound: int = 0
    out_of_round: int = 0
    norm: float = 0.0
    tested: int = 0


def claim(
    config: BPEConfig,
    *,
    resets: int = 0,
    incidents: Incidents | None = None,
    departed: Iterable[Departure] = (),
    waits: tuple[int, float] | None = None,
    budget: BudgetTerms | None = None,
    refuted: bool = False,
) -> Guarantee:
    """The regret bound of Theorem 1 and what comes on top of it, or what is missing for it.

    Args:
        config: what the optimizer was made with.
        resets: how often all active points turned out to be infeasible.
        incidents: of the run; None before it.
        departed: how its rounds departed from what is proved.
        waits: asks while rounds waited and what they can have cost; None where none are counted.
        budget: for asks that are not BPE-Delay's own; None without one.
        refuted: whether its bounds contradict each other.
    """
    incidents = incidents or Incidents()
    missing = [*config.confidence.missing, *_configuration(config, resets)]
    departed = set(departed)
    told: list[str] = []
    if config.proves:
        contradicted = refuted or Departure.CONTRADICTED in departed
        told = _refutation(config.confidence, incidents, contradicted and not incidents.noisier)
    if not missing:
        told += _what_happened(
            incidents,
            departed,
            config.delta,
            refuted=bool(told),
            exploits=config.exploit is not None and not config.exact,
            pooled=config.evidence == "all",
            budgeted=budget is not None,
        )
    missing += told
    assumptions = _assumptions(config, incidents)
    factor = config.fraction**-0.5 * (config.straggler_factor or 1.0)
    if config.geometric is not None:
        factor *= _geometric_factor(config.geometric.growth)
    if budget is not None:
        factor = budget.factor
        assumptions.append(_budget_bound(budget))
    return Guarantee(
        holds=not missing,
        delta=config.delta,
        assumptions=tuple(assumptions),
        missing=tuple(missing),
        factor=factor,
        waits=0 if waits is None else waits[0],
        waits_cost=None if waits is None else waits[1],
        norm_at_least=incidents.norm if config.proves and _is_tested(config) else None,
        budget=budget,
    )


def _is_tested(config: BPEConfig) -> bool:
    """Whether answers are held against the constants of the bounds."""
    return isinstance(config.confidence, RKHSConfidence)


def _configuration(config: BPEConfig, resets: int) -> list[str]:
    """What a configuration lacks for the claim."""
    confidence, delay, missing = config.confidence, config.delay, []
    if config.learned:
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
            if config.exact
            else "every active point turned out to be infeasible, so that points had to be taken "
            "back that bounds had eliminated."
        )
    if delay is not None and config.exploit is not None and not config.repeat_pending:
        missing.append(
            "with repeat_pending=False values may decide how many design points a round of fixed "
            "length has; leave out delay, or repeat_pending."
        )
    by_trace = isinstance(confidence, RKHSConfidence) and confidence.uniform == "trace"
    kernel = config.covar_module
    if not config.finite and by_trace and isinstance(kernel, Kernel) and not _is_linear(kernel):
        missing.append(
            'the multiplier of uniform="trace" grows with the root of the information gain, so '
            "that regret grows faster than in Theorem 2 unless the kernel is linear; use "
            f'uniform="net"; {_KEPT}.'
        )
    return missing


def _refutation(confidence: Confidence, incidents: Incidents, contradicted: bool) -> list[str]:
    """What the answers say against the constants of the bounds."""
    if isinstance(confidence, RKHSConfidence) and incidents.norm > confidence.norm_bound:
        return [
            f"these answers need a norm of at least {incidents.norm:.4g} at noise of scale "
            f"{confidence.noise_std:g}, and contradict norm_bound = {confidence.norm_bound:g}: it "
            "or noise_std is too small, or the kernel is wrong."
        ]
    if contradicted:
        return ["the answers contradict norm_bound and noise_std: no function of that norm fits."]
    return []


def _assumptions(config: BPEConfig, incidents: Incidents) -> list[str]:
    """What the claim rests on, for the user to judge."""
    confidence, delay = config.confidence, config.delay
    exact, straggler_factor = config.exact, config.straggler_factor
    again = ""
    if incidents.failed or incidents.abandoned:
        again = (
            f" (so far {incidents.failed} failed, and {incidents.abandoned} design points were "
            "abandoned before they were answered: a timeout that depends on the value voids the "
            "claim)"
        )
    assumptions = [
        "the kernel is right",
        *confidence.assumptions,
        "whether a trial fails or is abandoned does not depend on noise, its own or that of "
        f"others, given the points{again}; the "
        f"maximiser never fails {MAX_FAILURES} times without an answer in between, after which a "
        "point counts as infeasible; asks that fail or are given up, and those that are made "
        "while their points are asked again, come on top of the regret bound",
    ]
    if incidents.own_noise:
        assumptions.append("the noise variances that answers were told with do not depend on them")
    if not config.finite:
        assumptions.append(
            "the search for the largest deviation on the box finds at least a constant share of "
            "it, which enters the regret bound as a factor; elimination does not rest on it"
        )
    if config.exploit is not None and not exact:
        assumptions.append(
            "no trial fails: with a rule outside the design, failures could change which design "
            "points follow"
        )
    assumptions += _of_delays(config)
    if delay is None:
        assumptions.append(
            "asks that are made while a round waits for its last design points come on top of "
            "Theorem 1's bound: it is waited for every one of them, for as long as it takes"
            if straggler_factor is None
            else "asks that are made while a round waits come on top of the regret bound"
        )
    if config.geometric is not None:
        first = math.ceil(config.geometric.first / config.fraction)
        first = min(first, config.horizon or first)
        assumptions.append(
            f"rounds grow by the factor {config.geometric.growth:g}: each has its own share of "
            f"delta in the regret bound, and the first {first} asks come on top of it, at the most "
            "that an ask can cost"
        )
    if straggler_factor is not None and not exact:
        assumptions.append(_NO_STRAGGLERS.format(straggler_factor))
    if config.proves and not _is_tested(config):
        assumptions.append(
            f"the bounds of {config.confidence!r} hold as they say: it is a class of your own, and "
            "neither its constants nor the noise of answers are held against the answers"
        )
    return assumptions


def _of_delays(config: BPEConfig) -> list[str]:
    """What delays may depend on, which the answers that bounds use decide."""
    if config.exact:
        return [
            "evaluations are exact, so that bounds from all answers hold whatever points, delays "
            "and failures depend on; a point that has been asked is not asked again, the best "
            "included"
        ]
    if config.evidence == "all":
        return [
            "half of the bounds' share of delta is for the self-normalised bound from all answers, "
            "so that Theorem 1's bound is that for delta / 2: delays, failures and attached "
            "results do not depend on the noise given the point, and "
            "every attached result is an evaluation of its own, attached once"
        ]
    if config.delay is not None:
        return [
            f"delays are independent, with the law {config.delay!r}, and do not depend on the "
            "noise given the point"
        ]
    if config.straggler_factor is None:
        return [
            "delays may depend on the points; on the values too as long as no trial fails or is "
            "abandoned"
        ]
    return []


def _budget_bound(budget: BudgetTerms) -> str:
    """What the regret bound consists of, where there is a budget."""
    return (
        f"the regret bound is {budget.bound:.6g} (B = {budget.plan:.6g}, BPE-Delay's plan on "
        "the whole set), plus W, what asks cost while a round waits or a point is asked again "
        f"({budget.waits:.6g} so far), plus E, what rounds on the active set come to beyond "
        f"the plan ({budget.excess:.6g} so far). Any asks cost at most {budget.trivial:.6g}: a "
        f"factor of {budget.vacuous_from:.3g} or more says nothing. certified_regret needs "
        "none of B, W and E, and holds whatever delays, failures and missing answers depend on"
    )


def _is_linear(kernel: Kernel) -> bool:
    """Whether a kernel is linear, or a multiple of a linear one."""
    while type(kernel) is ScaleKernel:
        kernel = kernel.base_kernel
    return type(kernel) is LinearKernel


def _geometric_factor(growth: float) -> float:
    """Against Theorem 1 where all asks are design points, q_r = g q_{r-1}, after the first round.

    Theorem 1 charges a round q_r c / sqrt(q_{r-1}) = c sqrt(T). Here that is c sqrt(g q_r), and
    sum sqrt(q_r) <= sqrt(T) sqrt(2 sqrt(g) / (sqrt(g) - 1)) by Cauchy-Schwarz: the last round,
    cut anywhere, and the geometric series before it.
    """
    root = math.sqrt(growth)
    return math.sqrt(2.0 * growth * root / (root - 1.0))


def _what_happened(
    incidents: Incidents,
    departed: set[Departure],
    delta: float,
    *,
    refuted: bool,
    exploits: bool,
    pooled: bool,
    budgeted: bool,
) -> list[str]:
    """Why valid bounds do not carry the claim any more."""
    kept = budgeted and not refuted and not incidents.noisier
    certified = "; certified_regret holds all the same" if kept else ""
    missing = []
    if incidents.noisier:
        missing.append(
            "an answer was told with a noise variance above noise_std squared, on which the bounds "
            "rest; make the optimizer with the largest scale of the noise."
        )
    if incidents.own_noise and pooled:
        missing.append(
            "an answer was told with a noise variance other than noise_var, and bounds from all "
            'answers are proved for one that all of them share; use evidence="round".'
        )
    if incidents.failed and exploits:
        missing.append(
            "a trial failed while a rule plays outside the design: where the rule asked may have "
            f"changed which design points followed; use exploit=None where trials fail{certified}."
        )
    also = ""
    if not missing and not refuted:
        also = certified or f"; {_KEPT}"
    wide = f"its round may leave more regret than the bound charges{also}"
    if Departure.GIVEN_UP in departed:
        unless = ", if it was not given up because of its value" if also and not budgeted else ""
        missing.append(f"a design point was given up: {wide}{unless}.")
    if Departure.UNEVEN in departed:
        missing.append(f"a design point has a noise variance other than noise_var: {wide}.")
    if Departure.SHORTENED in departed:
        missing.append(f"a failure took an ask from a round of fixed length: {wide}.")
    if Departure.UNANSWERED in departed:
        missing.append(f"a round closed before all its design points were answered: {wide}.")
    if incidents.beyond_bound:
        missing.append(
            f"{incidents.beyond_bound} trials took longer than u_T, and by the delay law even one "
            f"does so with probability at most {delta / 2.0:g}: {wide}."
        )
    return missing
