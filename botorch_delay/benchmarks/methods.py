"""The methods of this library, and BoTorch's acquisition functions, as the benchmark plays them."""

from __future__ import annotations

from functools import partial
from typing import Any

from botorch.acquisition.analytic import LogExpectedImprovement
from botorch.acquisition.logei import qLogExpectedImprovement, qLogNoisyExpectedImprovement

from botorch_delay.benchmarks.clocks import Clock
from botorch_delay.benchmarks.players import LibraryPlayer, Method, Player
from botorch_delay.benchmarks.problems import FiniteProblem, Problem
from botorch_delay.benchmarks.screening import screened_qlogei, screened_qlognei
from botorch_delay.confidence.bounds import FixedBeta, RKHSConfidence
from botorch_delay.delays import NoDelay
from botorch_delay.domains.finite import FiniteDomain
from botorch_delay.optimizers import (
    AcquisitionOptimizer,
    BPEDelayOptimizer,
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
    ThompsonSampling,
)

BETA = 6.0
# On larger sets Monte Carlo acquisition functions are evaluated after a screening.
MAX_UNSCREENED = 5000


def bpe_delay(problem: Problem, clock: Clock, steps: int, seed: int) -> Player:
    """The constructor's defaults: no law is needed."""
    return LibraryPlayer(BPEDelayOptimizer(problem.domain, steps, **problem.given, seed=seed))


def bpe_delay_with(problem: Problem, clock: Clock, steps: int, seed: int, **options: Any) -> Player:
    """The constructor's defaults but for some options."""
    return LibraryPlayer(
        BPEDelayOptimizer(problem.domain, steps, **problem.given, seed=seed, **options)
    )


def guaranteed(problem: Problem, clock: Clock, steps: int, seed: int, **options: Any) -> Player:
    """Bounds that hold, from the norm of f."""
    assert isinstance(problem, FiniteProblem)
    assert problem.norm is not None
    bounds = RKHSConfidence(norm_bound=problem.norm, noise_std=problem.noise_std)
    return bpe_delay_with(problem, clock, steps, seed, confidence=bounds, **options)


def bpe_delay_published(problem: Problem, clock: Clock, steps: int, seed: int) -> Player:
    """Algorithm 1 as printed, told the law of the delays."""
    return _published(problem, clock.law, steps, seed)


def bpe(problem: Problem, clock: Clock, steps: int, seed: int) -> Player:
    """BPE as published, which takes answers not to be delayed."""
    return _published(problem, NoDelay(), steps, seed)


def _published(problem: Problem, law: Any, steps: int, seed: int) -> Player:
    assert isinstance(problem.domain, FiniteDomain)
    optimizer = BPEDelayOptimizer.as_published(
        problem.domain,
        steps,
        **problem.given,
        confidence=FixedBeta(BETA),
        delay=law,
        seed=seed,
    )
    return LibraryPlayer(optimizer)


def gp_bucb(problem: Problem, clock: Clock, steps: int, seed: int) -> Player:
    """UCB with hallucinated answers."""
    return _index(problem, steps, seed, UCB(BETA), Hallucinate())


def gp_ucb(problem: Problem, clock: Clock, steps: int, seed: int) -> Player:
    """UCB on what has arrived."""
    return _index(problem, steps, seed, UCB(BETA), Ignore())


def gp_ucb_sdf(problem: Problem, clock: Clock, steps: int, seed: int) -> Player:
    """UCB with missing answers counted as the worst value, which it is told."""
    return _index(problem, steps, seed, UCB(BETA), Censor(problem.lowest))


def async_ts(problem: Problem, clock: Clock, steps: int, seed: int) -> Player:
    """Thompson samples on what has arrived."""
    return _index(problem, steps, seed, ThompsonSampling(), Ignore())


def gp_bts(problem: Problem, clock: Clock, steps: int, seed: int) -> Player:
    """Thompson samples with hallucinated answers."""
    return _index(problem, steps, seed, ThompsonSampling(), Hallucinate())


def qlognei(problem: Problem, clock: Clock, steps: int, seed: int) -> Player:
    """Log noisy expected improvement with pending points."""
    rule = screened_qlognei if _is_large(problem) else qLogNoisyExpectedImprovement
    return _index(problem, steps, seed, rule, Hallucinate())


def qlognei_learned(problem: Problem, clock: Clock, steps: int, seed: int) -> Player:
    """The same with a learned kernel, also where one is given."""
    rule = screened_qlognei if _is_large(problem) else qLogNoisyExpectedImprovement
    return LibraryPlayer(AcquisitionOptimizer(problem.domain, horizon=steps, rule=rule, seed=seed))


def qlogei(problem: Problem, clock: Clock, steps: int, seed: int) -> Player:
    """Log expected improvement over the best answer, with pending points."""
    rule = screened_qlogei if _is_large(problem) else qLogExpectedImprovement
    return _index(problem, steps, seed, rule, Hallucinate())


def logei(problem: Problem, clock: Clock, steps: int, seed: int) -> Player:
    """Log expected improvement on what has arrived."""
    return _index(problem, steps, seed, BotorchRule(LogExpectedImprovement), Ignore())


def gp_threds(problem: Problem, clock: Clock, steps: int, seed: int) -> Player:
    """GP-ThreDS, told the range of f."""
    optimizer = ThreDSOptimizer(
        problem.domain,
        horizon=steps,
        **problem.given,
        confidence=FixedBeta(BETA),
        interval=(problem.lowest, problem.highest),
        seed=seed,
    )
    return LibraryPlayer(optimizer)


def queued_gp_ucb(problem: Problem, clock: Clock, steps: int, seed: int) -> Player:
    """GP-UCB behind a queue for every arm."""
    base = AcquisitionOptimizer(
        problem.domain,
        horizon=steps,
        **problem.given,
        rule=UCB(BETA),
        pending=Ignore(),
        seed=seed,
    )
    return LibraryPlayer(QueuedOptimizer(base))


def random_search(problem: Problem, clock: Clock, steps: int, seed: int) -> Player:
    """Random search; the recommendation is by the model."""
    return LibraryPlayer(RandomOptimizer(problem.domain, horizon=steps, **problem.given, seed=seed))


def _index(problem: Problem, steps: int, seed: int, rule: Any, pending: Any) -> Player:
    return LibraryPlayer(
        AcquisitionOptimizer(
            problem.domain,
            horizon=steps,
            **problem.given,
            rule=rule,
            pending=pending,
            seed=seed,
        )
    )


def _is_large(problem: Problem) -> bool:
    domain = problem.domain
    return isinstance(domain, FiniteDomain) and len(domain) > MAX_UNSCREENED


LIBRARY_METHODS = {
    "bpe-delay": Method(bpe_delay, "BPE-Delay, the constructor's defaults"),
    "bpe-delay-published": Method(
        bpe_delay_published,
        "BPE-Delay as published, told the delay law",
        needs_kernel=True,
        needs_law=True,
        needs_set=True,
    ),
    "bpe": Method(bpe, "BPE as published (no delay)", needs_kernel=True, needs_set=True),
    "gp-bucb": Method(gp_bucb, "GP-BUCB"),
    "gp-ucb": Method(gp_ucb, "GP-UCB on what has arrived"),
    "gp-ucb-sdf": Method(gp_ucb_sdf, "GP-UCB-SDF, told the worst value of f"),
    "async-ts": Method(async_ts, "asynchronous Thompson sampling"),
    "gp-bts": Method(gp_bts, "GP-BTS"),
    "qlognei": Method(qlognei, "qLogNEI with pending points"),
    "qlognei-learned": Method(qlognei_learned, "qLogNEI with pending points, kernel learned"),
    "qlogei": Method(qlogei, "qLogEI with pending points"),
    "logei": Method(logei, "LogEI on what has arrived"),
    "gp-threds": Method(
        gp_threds, "GP-ThreDS, told the range of f", needs_kernel=True, needs_set=True
    ),
    "queued-gp-ucb": Method(queued_gp_ucb, "GP-UCB behind queues (QPM-D)", needs_set=True),
    "random": Method(random_search, "random search"),
    "gp-ucb-oracle": Method(gp_ucb, "GP-UCB, every answer at once: an oracle", instant=True),
    "bpe-delay-oracle": Method(
        bpe_delay, "BPE-Delay, every answer at once: an oracle", instant=True
    ),
}

_GUARANTEES: list[tuple[str, dict[str, Any], tuple[str, float]]] = [
    ("valid", {"exploit": None}, ("explore_fraction", 1.0))
]
for _rho in (0.1, 0.01):
    _options = {"explore_fraction": _rho}
    _GUARANTEES.append((f"valid-rho-{_rho}", _options, ("explore_fraction", _rho**-0.5)))
for _F in (1.05, 1.25, 2.0):
    _budget = {"exploit": WithinBudget(factor=_F)}
    _GUARANTEES.append((f"budget-{_F:g}", _budget, ("WithinBudget", _F)))
# With a guarantee, told the norm of f.
GUARANTEED = {
    f"bpe-delay-{name}": Method(
        partial(guaranteed, **options),
        "BPE-Delay with valid bounds, " + ", ".join(f"{k}={v}" for k, v in options.items()),
        needs_kernel=True,
        needs_norm=True,
        needs_set=True,
        guarantee=guarantee,
    )
    for name, options, guarantee in _GUARANTEES
}
# The defaults with one ingredient switched off or put back to another value.
ABLATIONS = {
    "bpe-delay-design-only": Method(
        partial(bpe_delay_with, exploit=None), "BPE-Delay that never exploits"
    ),
    "bpe-delay-rho-0.1": Method(
        partial(bpe_delay_with, explore_fraction=0.1), "BPE-Delay, a tenth of the asks explores"
    ),
    "bpe-delay-rho-1": Method(
        partial(bpe_delay_with, explore_fraction=1.0), "BPE-Delay, exploiting only while it waits"
    ),
    "bpe-delay-own-round": Method(
        partial(bpe_delay_with, evidence="round"), "BPE-Delay, bounds from a round's own answers"
    ),
    "bpe-delay-no-confirm": Method(
        partial(bpe_delay_with, exploit=Exploit(confirm_fraction=0.0)),
        "BPE-Delay that confirms nothing at the end",
    ),
    "bpe-delay-ucb-4.5": Method(
        partial(bpe_delay_with, exploit=UCB(4.5)), "BPE-Delay exploiting by UCB with beta = 4.5"
    ),
}
