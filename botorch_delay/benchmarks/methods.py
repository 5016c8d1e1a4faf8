"""Methods that the benchmark compares: this library's, and BoTorch's acquisition functions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Any

from botorch.acquisition.analytic import LogExpectedImprovement
from botorch.acquisition.logei import qLogExpectedImprovement, qLogNoisyExpectedImprovement

from botorch_delay.benchmarks.clocks import Clock
from botorch_delay.benchmarks.problems import Point, Problem
from botorch_delay.benchmarks.screening import screened_qlogei, screened_qlognei
from botorch_delay.benchmarks.simulator import Asked, Sampler
from botorch_delay.confidence.bounds import FixedBeta, RKHSConfidence
from botorch_delay.delays import DelayLaw, NoDelay, SubExponentialDelay
from botorch_delay.domains.finite import FiniteDomain
from botorch_delay.exceptions import MissingExtraError
from botorch_delay.optimizers import (
    AcquisitionOptimizer,
    BPEDelayOptimizer,
    Optimizer,
    QueuedOptimizer,
    RandomOptimizer,
    ThreDSOptimizer,
)
from botorch_delay.optimizers.exploit import Exploit, WithinBudget
from botorch_delay.optimizers.rules import (
    UCB,
    BotorchRule,
    Censor,
    Hallucinate,
    Ignore,
    Pending,
    ThompsonSampling,
)

BETA = 6.0
XI, B = 9.0, 1.0  # of the paper's delay bound
# On larger sets Monte Carlo acquisition functions are evaluated after a screening.
MAX_UNSCREENED = 5000

MakeSampler = Callable[[Problem, Clock, int, int], Sampler]


@dataclass(frozen=True)
class Method:
    """A way to choose points.

    Attributes:
        make: a fresh sampler for a problem, a clock, a number of asks and a seed.
        label: what it is, in words, for reports.
        instant: it is told every answer at once, whatever the clock says: an oracle.
        needs_kernel: it cannot learn a kernel.
        needs_norm: it has to be told the RKHS norm of f.
        needs_law: it has to be told the law of the delays.
        needs_set: it cannot search a box.
        package: that has to be installed for it; empty if none.
    """

    make: MakeSampler
    label: str
    instant: bool = False
    needs_kernel: bool = False
    needs_norm: bool = False
    needs_law: bool = False
    needs_set: bool = False
    package: str = ""

    def require(self) -> None:
        """Find out before the work starts whether its package is installed.

        Raises:
            MissingExtraError: if it is not.
        """
        if self.package and find_spec(self.package) is None:
            raise MissingExtraError(
                f"{self.label} needs {self.package}: pip install 'botorch-delay[bench]'."
            )

    def applies(self, problem: Problem, clock: Clock) -> bool:
        """Whether it can be used on this problem with this clock."""
        return not (
            (self.needs_kernel and problem.covar_module is None)
            or (self.needs_norm and problem.norm is None)
            or (self.needs_law and clock.law is None)
            or (self.needs_set and not isinstance(problem.domain, FiniteDomain))
        )


def bpe_delay(problem: Problem, clock: Clock, steps: int, seed: int, **options: Any) -> Optimizer:
    """The constructor's defaults but for some options; no law of the delays is needed."""
    return BPEDelayOptimizer(problem.domain, steps, **problem.model_options, seed=seed, **options)


def guaranteed(problem: Problem, clock: Clock, steps: int, seed: int, **options: Any) -> Optimizer:
    """Bounds that hold, from the norm of f."""
    assert problem.norm is not None
    bounds = RKHSConfidence(norm_bound=problem.norm, noise_std=problem.noise_std)
    return bpe_delay(problem, clock, steps, seed, confidence=bounds, **options)


def published(
    problem: Problem, clock: Clock, steps: int, seed: int, *, told: Callable[[DelayLaw], DelayLaw]
) -> Optimizer:
    """Algorithm 1 as printed, told some law of the delays."""
    assert isinstance(problem.domain, FiniteDomain)
    return BPEDelayOptimizer.as_published(
        problem.domain,
        steps,
        **problem.model_options,
        confidence=FixedBeta(BETA),
        delay=told(clock.law or NoDelay()),
        seed=seed,
    )


def own_law(law: DelayLaw) -> DelayLaw:
    """The law of the delays itself, whose quantiles are exact."""
    return law


def no_law(law: DelayLaw) -> DelayLaw:
    """That there is no delay."""
    return NoDelay()


def paper_law(law: DelayLaw, *, paper_min: bool = False) -> DelayLaw:
    """What section 6 of the paper tells BPE-Delay of delays with this mean: xi = 9, b = 1."""
    if law.mean == 0.0:
        return NoDelay()
    return SubExponentialDelay(law.mean, XI, B, paper_min=paper_min)


def index_method(
    problem: Problem,
    clock: Clock,
    steps: int,
    seed: int,
    *,
    rule: Any,
    pending: Pending | None = None,
    screened: Any = None,
    learned: bool = False,
) -> Optimizer:
    """A rule and a treatment of pending points.

    Args:
        problem: to be searched.
        clock: takes no part.
        steps: the horizon.
        seed: of everything random.
        rule: what is maximised.
        pending: how pending points count; as the problem's worst value if None.
        screened: the rule on large sets, where it is another one.
        learned: learn the kernel also where one is known.
    """
    domain = problem.domain
    if screened and isinstance(domain, FiniteDomain) and len(domain) > MAX_UNSCREENED:
        rule = screened
    return AcquisitionOptimizer(
        domain,
        horizon=steps,
        **({} if learned else problem.model_options),
        rule=rule,
        pending=Censor(problem.lowest) if pending is None else pending,
        seed=seed,
    )


def gp_threds(problem: Problem, clock: Clock, steps: int, seed: int) -> Optimizer:
    """GP-ThreDS, told the range of f."""
    return ThreDSOptimizer(
        problem.domain,
        horizon=steps,
        **problem.model_options,
        confidence=FixedBeta(BETA),
        interval=(problem.lowest, problem.highest),
        seed=seed,
    )


def queued_gp_ucb(problem: Problem, clock: Clock, steps: int, seed: int) -> Optimizer:
    """GP-UCB behind a queue for every arm."""
    return QueuedOptimizer(
        index_method(problem, clock, steps, seed, rule=UCB(BETA), pending=Ignore())
    )


def random_search(problem: Problem, clock: Clock, steps: int, seed: int) -> Optimizer:
    """Random search; the recommendation is by the model."""
    return RandomOptimizer(problem.domain, horizon=steps, **problem.model_options, seed=seed)


class CountedFromWorst:
    """GP-UCB-SDF on values less the worst value of f, which is then 0 as in Verma et al."""

    def __init__(self, problem: Problem, clock: Clock, steps: int, seed: int) -> None:
        self._worst = problem.lowest
        self._optimizer = index_method(
            problem, clock, steps, seed, rule=UCB(BETA), pending=Censor(0.0)
        )

    def ask(self) -> Asked:
        """The next trial."""
        return self._optimizer.ask()

    def tell(self, trial: int, y: float, /) -> None:
        """The answer of a trial, as the problem has it."""
        self._optimizer.tell(trial, y - self._worst)

    def mark_failed(self, trial: int, /) -> None:
        """A trial failed."""
        self._optimizer.mark_failed(trial)

    def recommend(self) -> Point:
        """The point with the best posterior mean."""
        return self._optimizer.recommend()


_UCB = partial(index_method, rule=UCB(BETA))
_TS = partial(index_method, rule=ThompsonSampling())
_QLOGNEI = partial(
    index_method,
    rule=qLogNoisyExpectedImprovement,
    pending=Hallucinate(),
    screened=screened_qlognei,
)
_QLOGEI = partial(
    index_method, rule=qLogExpectedImprovement, pending=Hallucinate(), screened=screened_qlogei
)
_LOGEI = partial(index_method, rule=BotorchRule(LogExpectedImprovement), pending=Ignore())
_ALGORITHM_1 = partial(Method, needs_kernel=True, needs_set=True)

LIBRARY_METHODS = {
    "bpe-delay": Method(bpe_delay, "BPE-Delay, the constructor's defaults"),
    "bpe-delay-published": _ALGORITHM_1(
        partial(published, told=own_law),
        "BPE-Delay as published, told the delay law",
        needs_law=True,
    ),
    "bpe": _ALGORITHM_1(partial(published, told=no_law), "BPE as published (no delay)"),
    "gp-bucb": Method(partial(_UCB, pending=Hallucinate()), "GP-BUCB"),
    "gp-ucb": Method(partial(_UCB, pending=Ignore()), "GP-UCB on what has arrived"),
    "gp-ucb-sdf": Method(_UCB, "GP-UCB-SDF, told the worst value of f"),
    "async-ts": Method(partial(_TS, pending=Ignore()), "asynchronous Thompson sampling"),
    "gp-bts": Method(partial(_TS, pending=Hallucinate()), "GP-BTS"),
    "qlognei": Method(_QLOGNEI, "qLogNEI with pending points"),
    "qlognei-learned": Method(
        partial(_QLOGNEI, learned=True), "qLogNEI with pending points, kernel learned"
    ),
    "qlogei": Method(_QLOGEI, "qLogEI with pending points"),
    "logei": Method(_LOGEI, "LogEI on what has arrived"),
    "gp-threds": _ALGORITHM_1(gp_threds, "GP-ThreDS, told the range of f"),
    "queued-gp-ucb": Method(queued_gp_ucb, "GP-UCB behind queues (QPM-D)", needs_set=True),
    "random": Method(random_search, "random search"),
    "gp-ucb-oracle": Method(
        partial(_UCB, pending=Ignore()), "GP-UCB, every answer at once: an oracle", instant=True
    ),
    "bpe-delay-oracle": Method(
        bpe_delay, "BPE-Delay, every answer at once: an oracle", instant=True
    ),
}

# What the paper's experiments compare beside bpe, gp-ucb-sdf, gp-bucb and gp-ucb.
PAPER_METHODS = {
    "bpe-delay-psi-max": _ALGORITHM_1(
        partial(published, told=paper_law),
        "BPE-Delay as published, psi a maximum, xi = 9 and b = 1",
        needs_law=True,
    ),
    "bpe-delay-psi-min": _ALGORITHM_1(
        partial(published, told=partial(paper_law, paper_min=True)),
        "BPE-Delay as published, psi a minimum as printed, xi = 9 and b = 1",
        needs_law=True,
    ),
    "gp-ucb-sdf-from-worst": Method(
        CountedFromWorst, "GP-UCB-SDF, values counted from the worst value of f", needs_kernel=True
    ),
}

# With a guarantee, told the norm of f, by what sets the factor on BPE-Delay's own regret bound: the
# options of a method, and the factor.
_GUARANTEES: dict[str, dict[str, tuple[dict[str, Any], float]]] = {
    "share of design points": {
        "bpe-delay-valid": ({"exploit": None}, 1.0),
        "bpe-delay-valid-rho-0.1": ({"explore_fraction": 0.1}, 0.1**-0.5),
        "bpe-delay-valid-rho-0.01": ({"explore_fraction": 0.01}, 0.01**-0.5),
    },
    "budget": {
        f"bpe-delay-budget-{factor:g}": ({"exploit": WithinBudget(factor=factor)}, factor)
        for factor in (1.05, 1.25, 2.0)
    },
}
FACTORS = {
    option: {name: factor for name, (_, factor) in methods.items()}
    for option, methods in _GUARANTEES.items()
}
GUARANTEED = {
    name: Method(
        partial(guaranteed, **options),
        "BPE-Delay with valid bounds, " + ", ".join(f"{k}={v}" for k, v in options.items()),
        needs_kernel=True,
        needs_norm=True,
        needs_set=True,
    )
    for methods in _GUARANTEES.values()
    for name, (options, _) in methods.items()
}

# The defaults with one ingredient switched off or put back to another value.
_ABLATIONS: dict[str, tuple[dict[str, Any], str]] = {
    "design-only": ({"exploit": None}, "that never exploits"),
    "rho-0.1": ({"explore_fraction": 0.1}, "with a tenth of the asks exploring"),
    "rho-1": ({"explore_fraction": 1.0}, "exploiting only while it waits"),
    "own-round": ({"evidence": "round"}, "with bounds from a round's own answers"),
    "no-confirm": ({"exploit": Exploit(confirm_fraction=0.0)}, "that confirms nothing at the end"),
    "ucb-4.5": ({"exploit": UCB(4.5)}, "exploiting by UCB with beta = 4.5"),
}
ABLATIONS = {
    f"bpe-delay-{name}": Method(partial(bpe_delay, **options), f"BPE-Delay {label}")
    for name, (options, label) in _ABLATIONS.items()
}
