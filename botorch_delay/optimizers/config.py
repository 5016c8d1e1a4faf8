"""Configurations of optimizers: options, their defaults, and which exclude each other."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, ClassVar, cast

import torch
from gpytorch.kernels import Kernel

from botorch_delay import validation
from botorch_delay.confidence.bounds import DEFAULT_CONFIDENCE, DEFAULT_DELTA, Confidence, Constants
from botorch_delay.delays import DelayLaw
from botorch_delay.domains.domain import Domain
from botorch_delay.elimination.rounds import GeometricRounds, HorizonRounds, RoundRule
from botorch_delay.exceptions import (
    InputError,
    InputTypeError,
    KernelWarning,
    NotSupportedError,
    warn,
)
from botorch_delay.gp.kernels import check_kernel, prior_variance, sees_differences
from botorch_delay.gp.surrogate import Learned, Surrogate, exact_noise
from botorch_delay.history.answers import Answers
from botorch_delay.history.trials import Attached, Trial
from botorch_delay.optimizers.exploit import (
    DEFAULT_RULE,
    LEARNED_RULE_ON_BOXES,
    Exploit,
    WithinBudget,
)
from botorch_delay.optimizers.part_records import describe_part
from botorch_delay.optimizers.pending import Hallucinate, Pending
from botorch_delay.optimizers.rules import Rule

# Share of asks that are design points if a rule chooses the others; tuned jointly with its beta.
DEFAULT_FRACTION = 0.005
# Share of the horizon, at its end, in which asks serve the recommendation: with learned kernels and
# noise this improves it (tuned on development problems); given kernels soon show the best point.
FINAL_ON_LISTS, FINAL_ON_BOXES = 0.2, 0.25


@dataclass(eq=False)
class Config:
    """The options that every optimizer has, checked, and with defaults filled in.

    The fields are the arguments of the optimizer's constructor, so that it can be made again from
    :meth:`describe` and the domain. The user's kernel is copied.
    """

    certified_share: ClassVar[float] = 1.0  # the certificate's share of delta

    domain: Domain
    horizon: int | None
    covar_module: Kernel | Learned | None
    noise_var: float | None
    exact: bool
    seed: int
    maximize: bool

    def __post_init__(self) -> None:
        if self.horizon is not None:
            self.horizon = validation.whole(self.horizon, "horizon", 1)
        self.seed = validation.seed(self.seed)
        validation.flag(self.maximize, "maximize")
        validation.flag(self.exact, "exact")
        if self.covar_module is None:
            self.covar_module = Learned()
        if isinstance(self.covar_module, Learned):
            self.covar_module.check(self.domain)
        else:
            kernel = self.covar_module
            if isinstance(kernel, Kernel):
                kernel = copy.deepcopy(kernel).requires_grad_(False).eval()
            self.covar_module = check_kernel(kernel, self.domain.like)
        if self.exact and self.noise_var is not None:
            raise InputError(
                f"Evaluations are exact, without noise, but noise_var is given, "
                f"{self.noise_var!r}. Leave out noise_var, or exact."
            )
        if not self.exact and self.learned == (self.noise_var is not None):
            given, lacking = "covar_module", "noise_var"
            if self.learned:
                given, lacking = lacking, given
            raise InputError(
                f"{given} was given without {lacking}; pass both to keep them fixed, or neither to "
                "learn them from the answers."
            )
        if self.noise_var is not None:
            like = self.domain.like
            self.noise_var = validation.noise_variance(self.noise_var, "noise_var", like)

    def warn_of_raw_columns(self) -> None:
        """Warn if a given kernel misses logarithms or categories that the domain declares."""
        domain, kernel, said = self.domain, self.covar_module, []
        if not isinstance(kernel, Kernel):
            return
        for column in domain.log_dims:
            low, high = domain.bounds[:, column].tolist()
            step = (high - low) / 64.0  # so small that no usual lengthscale gives 0 everywhere
            numbers = domain.like.new_tensor([low, low + step, low + 2.0 * step])
            if sees_differences(kernel, domain.like, column, numbers):
                said.append(f"the numbers of {domain.names[column]} without their logarithm")
        for column, options in domain.encoding.categories.items():
            if sees_differences(kernel, domain.like, column, options[:3]):
                said.append(f"the options of {domain.names[column]} as numbers, in order")
        if said:
            warn(
                f"covar_module sees {' and '.join(said)}. Declare the exponent as the parameter "
                "instead of log=True or log_dims, compare categories with a kernel such as "
                "botorch.models.kernels.CategoricalKernel, or leave out covar_module to learn a "
                "kernel that sees both.",
                KernelWarning,
            )

    @cached_property
    def learned(self) -> bool:
        """Whether kernel and noise are learned."""
        return isinstance(self.covar_module, Learned)

    @property
    def sign(self) -> float:
        """1, or -1 where values are minimised: values times this are maximised."""
        return 1.0 if self.maximize else -1.0

    @property
    def interval_confidence(self) -> tuple[Confidence, float]:
        """The confidence that gives intervals around the posterior mean, and its delta."""
        return DEFAULT_CONFIDENCE, DEFAULT_DELTA

    @property
    def tells_roughness(self) -> bool:
        """Whether intervals tell noise from roughness of f (``gp.roughness``).

        Bounds that are proved hold for the fitted kernel, and on lists it was measured not to help.
        """
        return bool(self.interval_confidence[0].missing) and not self.domain.is_discrete

    @property
    def proves_from_all(self) -> bool:
        """Whether proved bounds use all answers, attached results included."""
        return False

    def answers(self, results: Sequence[Trial | Attached]) -> Answers:
        """The answers of some trials and attached results, with the sign for maximising."""
        return Answers.of(self.domain, self.sign, results)

    @cached_property
    def fixed(self) -> Surrogate | None:
        """The given kernel and noise (a jitter if exact) as a surrogate; None if learned."""
        kernel, like = self.covar_module, self.domain.like
        if not isinstance(kernel, Kernel):
            return None
        noise_var = self.noise_var
        if noise_var is None:
            with torch.no_grad():
                noise_var = exact_noise(like) * prior_variance(kernel, like).max().item()
            if noise_var == 0.0:
                raise InputError(
                    "covar_module has a variance of 0 at every point: no value could differ from "
                    "0; use another kernel, or scale it."
                )
        return Surrogate(kernel, noise_var, like)

    def describe(self) -> dict[str, Any]:
        """Every argument but the domain, JSON-ready."""
        like = self.domain.like
        names = [field.name for field in fields(self) if field.name != "domain"]
        return {name: describe_part(getattr(self, name), like) for name in names}


@dataclass(eq=False)
class AcquisitionConfig(Config):
    """The options of an :class:`AcquisitionOptimizer`."""

    rule: Rule
    pending: Pending
    repeat_pending: bool
    keep_exploring: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        validation.flag(self.repeat_pending, "repeat_pending")
        expected = "Ignore(), Hallucinate(), KrigingBeliever() or Censor(worst_value)"
        validation.instance(self.pending, Pending, "pending", expected)
        self.rule.check_pending(self.pending)
        if self.pending.value_of_missing is not None:
            validation.answer(self.pending.value_of_missing, self.domain.like)

    @property
    def interval_confidence(self) -> tuple[Confidence, float]:
        return self.rule.interval_confidence


@dataclass(eq=False)
class BoundsConfig(Config):
    """The options of an optimizer that decides by confidence bounds."""

    confidence: Confidence
    delta: float

    def __post_init__(self) -> None:
        super().__post_init__()
        expected = "a Confidence, such as FixedBeta or RKHSConfidence"
        validation.instance(self.confidence, Confidence, "confidence", expected)
        kind, constants = type(self.confidence).__name__, self.confidence.constants
        for name in ("missing", "assumptions"):
            sentences = getattr(self.confidence, name)
            listed = isinstance(sentences, tuple | list)
            if not listed or not all(isinstance(each, str) for each in sentences):
                raise InputTypeError(
                    f"{name} of {kind} must be a tuple of sentences, got {sentences!r}."
                )
        if constants is not None:
            expected = "Constants(norm_bound, noise_std), or None"
            validation.instance(constants, Constants, f"constants of {kind}", expected)
            for name, value in constants._asdict().items():
                validation.positive(value, f"{name} in constants of {kind}")
        self.delta = validation.probability(self.delta, "delta")

    @property
    def interval_confidence(self) -> tuple[Confidence, float]:
        return self.confidence, self.delta


@dataclass(eq=False)
class ThreDSConfig(BoundsConfig):
    """The options of a :class:`ThreDSOptimizer`."""

    interval: tuple[float, float] | None
    patience: int

    def __post_init__(self) -> None:
        if self.covar_module is None or self.learned or self.noise_var is None:
            raise InputError(
                "GP-ThreDS needs covar_module and noise_var; it has no way to learn them."
            )
        super().__post_init__()
        self.patience = validation.whole(self.patience, "patience", 1)
        if self.interval is None:
            if self.confidence.constants is None:
                raise InputError(
                    "interval must be given, the range in which the best value lies, unless it "
                    "follows from a norm bound, as with confidence=RKHSConfidence(...)."
                )
            return
        try:
            low, high = self.interval
        except (TypeError, ValueError):
            raise InputTypeError(f"interval must be two numbers, got {self.interval!r}.") from None
        ends = validation.real(low, "interval[0]"), validation.real(high, "interval[1]")
        if not ends[0] < ends[1]:
            raise InputError(f"interval must increase, got {ends}.")
        self.interval = ends


@dataclass(eq=False)
class BPEConfig(BoundsConfig):
    """The options of a :class:`BPEDelayOptimizer`, and whether it is Algorithm 1 as printed."""

    certified_share: ClassVar[float] = 0.5  # the bounds of rounds have the other half
    pending: ClassVar[Pending] = Hallucinate()  # how pending points enter the rule's posterior

    delay: DelayLaw | None
    rounds: HorizonRounds | GeometricRounds
    exploit: Exploit | WithinBudget | None
    explore_fraction: float | None
    evidence: str | None
    as_published: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        law = "a delay law such as PoissonDelay, or None (an estimate bounds no delay)"
        validation.instance(self.delay, DelayLaw | None, "delay", law)
        known = HorizonRounds | GeometricRounds
        validation.instance(self.rounds, known, "rounds", "HorizonRounds() or GeometricRounds(...)")
        self._fill_defaults()
        self._refuse_contradictions()
        if self.rule is not None:
            self.rule.check_pending(self.pending)
        for name, used in {
            "WithinBudget": isinstance(self.exploit, WithinBudget),
            "straggler_factor": self.rounds.straggler_factor is not None,
            "evidence='all' with proved bounds": self.proves_from_all,
        }.items():
            if used and self.domain.count is None:
                raise NotSupportedError(f"{name} needs a FiniteDomain; leave it out on a box.")

    def _fill_defaults(self) -> None:
        if isinstance(self.covar_module, Learned) and not self.confidence.missing:
            # Proved bounds are in units of the values as they are.
            self.covar_module = replace(self.covar_module, warp="none")
        exploit = self.exploit
        exploits = isinstance(exploit, Exploit) and self.delay is None
        if self.evidence is None:
            pooled = self.exact or (exploits and bool(self.confidence.missing))
            self.evidence = "all" if pooled else "round"
        if self.explore_fraction is None:
            self.explore_fraction = DEFAULT_FRACTION if exploits else 1.0
        self.explore_fraction = validation.real(self.explore_fraction, "explore_fraction")
        if isinstance(exploit, Exploit):
            discrete = self.domain.is_discrete
            on_box = self.learned and not discrete
            rule = exploit.rule or (LEARNED_RULE_ON_BOXES if on_box else DEFAULT_RULE)
            share = exploit.final_fraction
            if share is None:
                noisy = self.learned and not self.exact and self.horizon is not None
                share = FINAL_ON_LISTS if discrete else FINAL_ON_BOXES
                # On a box the last asks ignore the rule, and a user's own may exclude points.
                share = share if noisy and (discrete or exploit.rule is None) else 0.0
            explores = exploit.keep_exploring
            assert isinstance(rule, Rule)
            _refuse(
                bool(explores) and not (on_box and rule.scores_are_values),
                "keep_exploring needs a learned kernel, a box with a column that has no list of "
                "values, and a rule whose scores are values, such as UCB; leave it out.",
            )
            explores = exploit.rule is None if explores is None else explores
            self.exploit = replace(
                exploit, rule=rule, final_fraction=share, keep_exploring=explores and on_box
            )

    def _refuse_contradictions(self) -> None:
        rho, on_arrival = self.fraction, self.delay is None
        _refuse(
            self.evidence not in ("round", "all"),
            f"evidence must be 'round' or 'all', got {self.evidence!r}.",
        )
        _refuse(
            not 0.0 < rho <= 1.0, f"explore_fraction must be above 0 and at most 1, got {rho:g}."
        )
        _refuse(
            rho < 1.0 and self.exploit is None,
            "An explore_fraction below 1 needs a rule for the other asks; pass exploit=UCB(6.0).",
        )
        _refuse(
            self.horizon is None and self.geometric is None,
            "HorizonRounds need a horizon; pass one, or leave out rounds for GeometricRounds.",
        )
        straggling = self.rounds.straggler_factor is not None
        _refuse(
            not on_arrival and (self.geometric is not None or rho < 1.0 or straggling),
            "With a delay law rounds have the lengths of Algorithm 1 and do not wait; leave "
            "out delay to use GeometricRounds, straggler_factor or an explore_fraction below 1.",
        )
        _refuse(
            straggling and not self.repeat_pending,
            "With repeat_pending=False a design point may wait for a trial that was chosen by "
            "values, so values could decide which design points straggle and are left out; leave "
            "out straggler_factor, or repeat_pending.",
        )
        once = self.evidence == "all" and not self.final_fraction and self.budget_factor is None
        _refuse(
            self.exact and not once,
            "With exact evaluations bounds use all answers, and no point is asked again; leave "
            "out exact, or evidence, final_fraction and WithinBudget.",
        )
        _refuse(
            self.final_fraction > 0.0 and self.horizon is None,
            "final_fraction is a share of the horizon; leave it out, or pass a horizon.",
        )
        if self.budget_factor is not None:
            _refuse(
                not self.proves or self.confidence.constants is None,
                "WithinBudget needs valid bounds, from a norm bound and a noise scale; pass "
                "covar_module, noise_var and confidence=RKHSConfidence(norm_bound, noise_std).",
            )
            others = self.rounds != HorizonRounds() or self.evidence == "all"
            _refuse(
                not on_arrival or others or rho < 1.0,
                "WithinBudget needs rounds that follow from the horizon and close once all their "
                "design points are answered, and decides itself how many asks they are; leave out "
                "delay, rounds, evidence and explore_fraction.",
            )

    @property
    def merges(self) -> bool:
        """Whether bounds from all answers replace the round's own."""
        return self.evidence == "all" and not self.proves_by_rounds

    @property
    def proves_from_all(self) -> bool:
        return self.evidence == "all" and self.proves_by_rounds

    @property
    def rule(self) -> Rule | None:
        """The rule of the asks that are not design points."""
        return None if self.exploit is None else cast(Rule, self.exploit.rule)

    @cached_property
    def fraction(self) -> float:
        """Rho, the share of asks that are design points."""
        return cast(float, self.explore_fraction)

    @cached_property
    def repeat_pending(self) -> bool:
        """Whether a point with a running trial may be asked again."""
        return not isinstance(self.exploit, Exploit) or self.exploit.repeat_pending

    @cached_property
    def final_fraction(self) -> float:
        """The share of the horizon, at its end, in which asks serve the recommendation."""
        return (isinstance(self.exploit, Exploit) and self.exploit.final_fraction) or 0.0

    @cached_property
    def keep_exploring(self) -> bool:
        """Whether some asks explore once the rule has converged."""
        return isinstance(self.exploit, Exploit) and bool(self.exploit.keep_exploring)

    @property
    def budget_factor(self) -> float | None:
        """F, the factor of a regret budget; None without a budget."""
        return self.exploit.factor if isinstance(self.exploit, WithinBudget) else None

    @property
    def geometric(self) -> GeometricRounds | None:
        """The rounds, if they are geometric; None otherwise."""
        return self.rounds if isinstance(self.rounds, GeometricRounds) else None

    @cached_property
    def proves(self) -> bool:
        """Whether the bounds are proved under this configuration."""
        return not self.confidence.missing and not self.learned

    @property
    def proves_by_rounds(self) -> bool:
        """Whether proved bounds rest on a round's own answers: not if evaluations are exact."""
        return self.proves and not self.exact

    def round_rule(self) -> RoundRule:
        """The sizes and lengths of rounds, and when they close."""
        wait = None
        if self.delay is not None:
            assert self.horizon is not None
            name = f"{type(self.delay).__name__}.upper_bound"
            wait = validation.nonnegative(self.delay.upper_bound(self.horizon, self.delta), name)
        return RoundRule(self.horizon, self.rounds, self.fraction, wait)


def _refuse(contradicts: bool, message: str) -> None:
    if contradicts:
        raise InputError(message)
