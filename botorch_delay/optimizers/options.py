"""How BPE-Delay divides its asks: options beyond Algorithm 1, defaults, what excludes what."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from botorch.acquisition.acquisition import AcquisitionFunction

from botorch_delay import validation
from botorch_delay.confidence.bounds import Confidence, RKHSConfidence
from botorch_delay.delays import DelayLaw
from botorch_delay.domains.finite import Domain, FiniteDomain
from botorch_delay.elimination.rounds import (
    ArrivalRounds,
    GeometricRounds,
    HorizonRounds,
    RoundRule,
    RoundSchedule,
    ScheduledRounds,
)
from botorch_delay.exceptions import InputError, InputTypeError, NotSupportedError
from botorch_delay.optimizers.fixed_model import describe_replicates
from botorch_delay.optimizers.rules import UCB, Rule, as_rule
from botorch_delay.optimizers.specs import describe_part

# Chosen on draws with seeds from 1000 on, of the paper's problem and of others: a smaller beta has
# a little less regret under long delays, and gets stuck far more often without any.
DEFAULT_EXPLOIT = UCB(6.0)
DEFAULT_FRACTION = 0.005
# Chosen on tuning tables for development, with learned kernels: recommendations are better in
# every cell, and regret less. On boxes it made no difference that shows, and with given kernels
# and many asks it is soon clear which point is best.
DEFAULT_CONFIRM = 0.2


@dataclass(frozen=True)
class Options:
    """What was asked for, with defaults filled in.

    Attributes:
        schedule: how many design points each round has.
        exploit: the rule of the asks that are no design points; None to continue the design.
        fraction: rho, the share of asks that are design points.
        evidence: "round" or "all".
        regret_factor: F of a budget, or None.
        straggler_factor: kappa, or None.
        exact: whether evaluations have no noise.
        repeat_pending: whether the rule may ask a pending point again.
        confirm_fraction: the share of the horizon, at its end, in which the rule's asks go to
            answered points.
    """

    schedule: RoundSchedule
    exploit: Rule | None
    fraction: float
    evidence: str
    regret_factor: float | None
    straggler_factor: float | None
    exact: bool
    repeat_pending: bool
    confirm_fraction: float

    @property
    def geometric(self) -> GeometricRounds | None:
        """The schedule, if rounds grow by a constant factor."""
        return self.schedule if isinstance(self.schedule, GeometricRounds) else None

    def rule(self, horizon: int | None, delay: DelayLaw | None, delta: float) -> RoundRule:
        """When rounds close."""
        if delay is None:
            return ArrivalRounds(horizon, self.schedule, self.fraction)
        assert horizon is not None
        return ScheduledRounds(horizon, delay.upper_bound(horizon, delta))

    def describe(self) -> dict[str, Any]:
        """As arguments of a configuration, JSON-ready."""
        return {
            "rounds": describe_part(self.schedule),
            "exploit": describe_part(self.exploit),
            "explore_fraction": self.fraction,
            "evidence": self.evidence,
            "regret_factor": self.regret_factor,
            "straggler_factor": self.straggler_factor,
            **describe_replicates(self.exact, self.repeat_pending),
            "confirm_fraction": self.confirm_fraction or None,  # None in files of before
        }


def choose_options(
    rounds: RoundSchedule | None,
    exploit: Rule | Callable[..., AcquisitionFunction] | None,
    explore_fraction: float | None,
    evidence: str | None,
    regret_factor: float | None,
    straggler_factor: float | None,
    exact: bool,
    repeat_pending: bool,
    confirm_fraction: float | None,
    *,
    domain: Domain,
    horizon: int | None,
    given: bool,
    confidence: Confidence,
    delay: DelayLaw | None,
) -> Options:
    """Fill in defaults, and refuse what contradicts itself.

    Args:
        rounds: as the user gave it, like the next eight.
        exploit: likewise.
        explore_fraction: likewise.
        evidence: likewise.
        regret_factor: likewise.
        straggler_factor: likewise.
        exact: likewise.
        repeat_pending: likewise.
        confirm_fraction: likewise.
        domain: of the study.
        horizon: T, or None.
        given: whether kernel and noise are.
        confidence: the bounds.
        delay: a delay law, or None.

    Raises:
        InputError: if an option is out of its range, or two contradict each other.
        NotSupportedError: for an option that needs a finite set, on a box.
    """
    rule = None if exploit is None else as_rule(exploit, "exploit")
    if evidence not in (None, "round", "all"):
        raise InputError(f"evidence must be 'round' or 'all', got {evidence!r}.")
    if regret_factor is not None and (evidence == "all" or explore_fraction not in (None, 1.0)):
        raise InputError(
            "With regret_factor bounds from all answers are used anyway, and the budget decides "
            "how many asks are design points; leave out evidence and explore_fraction."
        )
    budgeted = regret_factor is not None
    if exact and evidence == "round":
        raise InputError(
            "Exact evaluations are all used, for none of them is asked again; leave out evidence, "
            "or exact."
        )
    if exact and not budgeted:
        evidence = "all"
    if evidence is None:
        heuristic = bool(confidence.missing) and rule is not None and delay is None
        evidence = "all" if heuristic and not budgeted else "round"
    if explore_fraction is None:
        first = rule is None or delay is not None or budgeted
        explore_fraction = 1.0 if first else DEFAULT_FRACTION
    regret_factor = _factor(regret_factor, "regret_factor")
    options = Options(
        schedule=HorizonRounds() if rounds is None else rounds,
        exploit=rule,
        fraction=validation.real(explore_fraction, "explore_fraction"),
        evidence=evidence,
        regret_factor=regret_factor,
        straggler_factor=_factor(straggler_factor, "straggler_factor"),
        exact=exact,
        repeat_pending=validation.flag(repeat_pending, "repeat_pending"),
        confirm_fraction=_confirm_fraction(
            confirm_fraction, rule, exact, horizon, isinstance(domain, FiniteDomain) and not given
        ),
    )
    _check_rounds(options, horizon, delay)
    finite = isinstance(domain, FiniteDomain)
    if evidence == "all" and not confidence.missing and not (finite or exact):
        raise NotSupportedError(
            "evidence='all' with RKHSConfidence needs a FiniteDomain; on a box use 'round'."
        )
    if options.regret_factor is not None:
        _check_budget(options, finite, given, confidence, delay)
    if options.straggler_factor is not None:
        _check_stragglers(options, finite, delay)
    return options


def _factor(value: float | None, name: str) -> float | None:
    """A factor on a bound, at least 1; None if it is not given."""
    if value is None:
        return None
    factor = validation.real(value, name)
    if factor < 1.0:
        raise InputError(f"{name} must be at least 1, got {factor:g}.")
    return factor


def _confirm_fraction(
    value: float | None, rule: Rule | None, exact: bool, horizon: int | None, default: bool
) -> float:
    """The share as it was given; if it was not, ``DEFAULT_CONFIRM`` where that is the default."""
    if value is None:
        may = not exact and rule is not None and horizon is not None
        return DEFAULT_CONFIRM if default and may else 0.0
    fraction = validation.real(value, "confirm_fraction")
    if not 0.0 <= fraction <= 1.0:
        raise InputError(f"confirm_fraction must lie between 0 and 1, got {fraction:g}.")
    if fraction and exact:
        raise InputError(
            "Exact evaluations are not asked again; leave out confirm_fraction, or exact."
        )
    if fraction and rule is None:
        raise InputError(
            "confirm_fraction is a share of the asks of a rule; leave it out, or pass "
            f"exploit={DEFAULT_EXPLOIT!r}."
        )
    if fraction and horizon is None:
        raise InputError(
            "confirm_fraction is a share of the horizon; leave it out, or pass a horizon."
        )
    return fraction


def _check_rounds(options: Options, horizon: int | None, delay: DelayLaw | None) -> None:
    if not isinstance(options.schedule, RoundSchedule):
        raise InputTypeError(
            "rounds must be HorizonRounds() or GeometricRounds(first, growth), got "
            f"{type(options.schedule).__name__}."
        )
    if not 0.0 < options.fraction <= 1.0:
        raise InputError(
            f"explore_fraction must be above 0 and at most 1, got {options.fraction:g}."
        )
    if options.fraction < 1.0 and options.exploit is None:
        raise InputError(
            "An explore_fraction below 1 needs a rule for the other asks; pass "
            f"exploit={DEFAULT_EXPLOIT!r}."
        )
    if horizon is None and options.geometric is None:
        raise InputError(
            "Without a horizon rounds cannot follow from it; pass "
            "rounds=GeometricRounds(first, growth), or a horizon."
        )
    if delay is not None and (options.geometric is not None or options.fraction < 1.0):
        raise InputError(
            "With a delay law rounds have the lengths of Algorithm 1; leave out delay to use "
            "GeometricRounds or an explore_fraction below 1."
        )


def _check_budget(
    options: Options,
    finite: bool,
    given: bool,
    confidence: Confidence,
    delay: DelayLaw | None,
) -> None:
    if options.exact:
        raise InputError(
            "regret_factor bills asks that may come again, and exact evaluations do not; leave out "
            "either."
        )
    if not finite:
        raise NotSupportedError("regret_factor needs a FiniteDomain; leave it out on a box.")
    if not given or not isinstance(confidence, RKHSConfidence):
        raise InputError(
            "regret_factor needs bounds that are valid; pass covar_module, noise_var and "
            "confidence=RKHSConfidence(norm_bound, noise_std)."
        )
    if options.exploit is None or delay is not None or options.geometric is not None:
        raise InputError(
            "regret_factor needs a rule to play, and the rounds of the horizon that close on "
            "arrival; leave out exploit, delay and rounds."
        )


def _check_stragglers(options: Options, finite: bool, delay: DelayLaw | None) -> None:
    if not finite:
        raise NotSupportedError(
            "straggler_factor compares deviations over a finite active set; leave it out on a box."
        )
    if delay is not None:
        raise InputError(
            "With a delay law rounds have fixed lengths and wait for nobody; leave out delay to "
            "use straggler_factor."
        )
    if options.regret_factor is not None:
        raise InputError(
            "With regret_factor values decide when design points are asked, and then which of them "
            "straggle must not decide what a round's bounds use; leave out straggler_factor, or "
            "regret_factor."
        )
    if not options.repeat_pending:
        raise InputError(
            "With repeat_pending=False design points wait for trials that values may have led to, "
            "and then which of them straggle must not decide what a round's bounds use; leave out "
            "straggler_factor, or repeat_pending."
        )
