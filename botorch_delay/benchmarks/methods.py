"""Methods that the benchmark compares, by name: this library's, BoTorch's and others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from botorch.acquisition.acquisition import AcquisitionFunction
from botorch.acquisition.analytic import LogExpectedImprovement
from botorch.acquisition.logei import qLogExpectedImprovement, qLogNoisyExpectedImprovement
from torch import Tensor

from botorch_delay import validation
from botorch_delay.benchmarks.peers import BotorchLoop, OptunaSampler, ServedSampler, python_of
from botorch_delay.benchmarks.problems import Problem
from botorch_delay.benchmarks.simulator import Clock, Sampler
from botorch_delay.confidence.bounds import FixedBeta, RKHSConfidence
from botorch_delay.delays import DelayLaw, NoDelay, SubExponentialDelay
from botorch_delay.gp.delayed_gp import DelayedGP
from botorch_delay.optimizers.acquisition_optimizer import AcquisitionOptimizer
from botorch_delay.optimizers.base import Optimizer
from botorch_delay.optimizers.bpe import BPEDelayOptimizer
from botorch_delay.optimizers.exploit import Exploit, WithinBudget
from botorch_delay.optimizers.pending import Censor, Hallucinate, Ignore, KrigingBeliever, Pending
from botorch_delay.optimizers.queued import QueuedOptimizer
from botorch_delay.optimizers.random import RandomOptimizer
from botorch_delay.optimizers.rules import UCB, BotorchRule, ThompsonSampling
from botorch_delay.optimizers.threds import ThreDSOptimizer

BETA = 6.0
XI, B = 9.0, 1.0  # xi and b in the paper's delay bound
# On larger sets Monte Carlo acquisition functions are screened by LogEI first.
MAX_UNSCREENED = 5000
SHARE = 1 / 32  # of the points, which the screening keeps

Need = Literal["kernel", "norm", "law", "set"]
MakeSampler = Callable[[Problem, Clock, int, int], Sampler]


@dataclass(frozen=True)
class Method:
    """A way to choose points.

    Attributes:
        make: makes a fresh sampler from a problem, a clock, a number of asks and a seed.
        label: what it is, in words, for reports.
        instant: whether it is an oracle, which is told every answer at once.
        needs: a known "kernel", the RKHS "norm" of f, the "law" of the delays, a finite "set".
        package: the package that it needs, if any.
        served: whether the package may be in another Python (``peers.python_of``).
    """

    make: MakeSampler
    label: str
    instant: bool = False
    needs: tuple[Need, ...] = ()
    package: str = ""
    served: bool = False

    def check_installed(self) -> None:
        """Raise MissingExtraError without its package, InputError if a named Python lacks it."""
        if self.package:
            check = python_of if self.served else validation.installed
            check(self.package, f"{self.label} needs {self.package}")

    def applies(self, problem: Problem, clock: Clock) -> bool:
        """Whether it can be used on this problem with this clock."""
        has = {
            "kernel": problem.covar_module is not None,
            "norm": problem.norm is not None,
            "law": clock.law is not None,
            "set": problem.domain.count is not None,
        }
        return all(has[need] for need in self.needs)


def made(
    make: Callable[..., Optimizer],
    problem: Problem,
    clock: Clock,
    steps: int,
    seed: int,
    **options: Any,
) -> Optimizer:
    """An optimizer of this library, told kernel and noise if the problem has a known kernel."""
    return make(problem.domain, horizon=steps, seed=seed, **problem.model_options | options)


# Here and below, ``setting`` stands for clock, number of asks and seed.
bpe_delay = partial(made, BPEDelayOptimizer)
random_search = partial(made, RandomOptimizer)


def guaranteed(problem: Problem, *setting: Any, **options: Any) -> Optimizer:
    """BPE-Delay with valid bounds, told the norm of f."""
    assert problem.norm is not None
    bounds = RKHSConfidence(norm_bound=problem.norm, noise_std=problem.noise_std)
    return bpe_delay(problem, *setting, confidence=bounds, **options)


def published(
    problem: Problem, clock: Clock, *setting: Any, law: DelayLaw | None = None
) -> Optimizer:
    """Algorithm 1 as printed, told ``law``, or else the clock's law."""
    told = law or clock.law or NoDelay()
    make = partial(BPEDelayOptimizer.as_published, confidence=FixedBeta(BETA), delay=told)
    return made(make, problem, clock, *setting)


def as_in_paper(problem: Problem, clock: Clock, *setting: Any, paper_min: bool) -> Optimizer:
    """Algorithm 1 told the delay bound of section 6: xi = 9 and b = 1."""
    assert clock.law is not None
    mean = clock.law.mean
    law = SubExponentialDelay(mean, XI, B, paper_min=paper_min) if mean else NoDelay()
    return published(problem, clock, *setting, law=law)


def index_method(
    problem: Problem,
    *setting: Any,
    rule: Any,
    pending: Pending | None = None,
    screened: Any = None,
    **options: Any,
) -> Optimizer:
    """A rule, or ``screened`` on large sets; by default pending points count as the worst f."""
    if screened and (problem.domain.count or 0) > MAX_UNSCREENED:
        rule = screened
    options |= {"rule": rule, "pending": pending or Censor(problem.lowest)}
    return made(AcquisitionOptimizer, problem, *setting, **options)


class Screened(AcquisitionFunction):
    """A costly acquisition function, computed only where the fantasy model's LogEI is largest.

    It is minus infinity on all but a share ``SHARE`` of each block of points.
    """

    def __init__(
        self, model: DelayedGP, X_pending: Tensor | None, costly: AcquisitionFunction
    ) -> None:
        super().__init__(model=model)
        self.costly, best = costly, model.train_targets.max()
        counted = model if X_pending is None else model.with_pending(X_pending)
        self.cheap = LogExpectedImprovement(counted.fantasy_model(), best_f=best)

    def forward(self, X: Tensor) -> Tensor:
        """``b x 1 x d`` to ``b``."""
        kept = self.cheap(X).topk(max(int(SHARE * len(X)), 1)).indices
        scores = X.new_full((len(X),), -torch.inf)
        scores[kept] = self.costly(X[kept])
        return scores


def screened_qlognei(model: DelayedGP, X_pending: Tensor | None = None) -> Screened:
    """Screened qLogNEI."""
    costly = qLogNoisyExpectedImprovement(model, model.train_inputs[0], X_pending=X_pending)
    return Screened(model, X_pending, costly)


def screened_qlogei(model: DelayedGP, X_pending: Tensor | None = None) -> Screened:
    """Screened qLogEI."""
    best = model.train_targets.max()
    costly = qLogExpectedImprovement(model, best, X_pending=X_pending)
    return Screened(model, X_pending, costly)


def gp_threds(problem: Problem, *setting: Any) -> Optimizer:
    """GP-ThreDS, told the range of f."""
    make = partial(ThreDSOptimizer, confidence=FixedBeta(BETA))
    return made(make, problem, *setting, interval=(problem.lowest, problem.highest))


def queued_gp_ucb(*setting: Any) -> Optimizer:
    """GP-UCB behind a queue for every arm."""
    return QueuedOptimizer(index_method(*setting, rule=UCB(BETA), pending=Ignore()))


_UCB = partial(index_method, rule=UCB(BETA))
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
_TPE = partial(OptunaSampler, "TPESampler")
_OPTUNA_GP = partial(OptunaSampler, "GPSampler")
# Methods run by peer_server.py: the package and label of each.
_SERVED = {
    "smac": ("smac", "SMAC's facade for hyperparameters, a random forest"),
    "smac-black-box": ("smac", "SMAC's black box facade, a Gaussian process"),
    "hebo": ("hebo", "HEBO as it ships"),
    "deephyper": ("deephyper", "DeepHyper's CBO as it ships"),
    "vizier": ("vizier", "Vizier's GP-UCB-PE"),
}

METHODS: dict[str, Method] = {
    "bpe-delay": Method(
        bpe_delay,
        "BPE-Delay, the constructor's defaults: GP-BUCB but for a few asks and the last ones",
    ),
    "bpe-delay-published": Method(
        published, "BPE-Delay as published, told the delay law", needs=("kernel", "law", "set")
    ),
    "bpe": Method(
        partial(published, law=NoDelay()), "BPE as published (no delay)", needs=("kernel", "set")
    ),
    "gp-bucb": Method(partial(_UCB, pending=Hallucinate()), "GP-BUCB"),
    "gp-ucb": Method(partial(_UCB, pending=Ignore()), "GP-UCB on what has arrived"),
    "gp-ucb-rkb": Method(
        partial(_UCB, pending=KrigingBeliever()), "GP-UCB, answers drawn for pending points"
    ),
    "gp-ucb-sdf": Method(_UCB, "GP-UCB-SDF, told the worst value of f"),
    "async-ts": Method(
        partial(index_method, rule=ThompsonSampling(), pending=Ignore()),
        "asynchronous Thompson sampling",
    ),
    "qlognei": Method(_QLOGNEI, "qLogNEI with pending points, our model"),
    "qlognei-learned": Method(
        partial(_QLOGNEI, covar_module=None, noise_var=None),
        "qLogNEI with pending points, kernel learned",
    ),
    "qlogei": Method(_QLOGEI, "qLogEI with pending points, our model"),
    "logei": Method(_LOGEI, "LogEI on what has arrived, our model"),
    "gp-threds": Method(gp_threds, "GP-ThreDS, told the range of f", needs=("kernel", "set")),
    "queued-gp-ucb": Method(queued_gp_ucb, "GP-UCB behind queues (QPM-D)", needs=("set",)),
    "random": Method(random_search, "random search"),
    "gp-ucb-oracle": Method(
        partial(_UCB, pending=Ignore()), "GP-UCB, every answer at once: an oracle", instant=True
    ),
    "botorch": Method(BotorchLoop, "BoTorch's own loop: SingleTaskGP and qLogNEI"),
    "tpe": Method(_TPE, "Optuna's TPESampler as it ships", package="optuna"),
    "tpe-by-model": Method(
        partial(_TPE, by_model=True), "Optuna's TPESampler, our recommendation", package="optuna"
    ),
    "optuna-gp": Method(_OPTUNA_GP, "Optuna's GPSampler as it ships", package="optuna"),
    "optuna-gp-by-model": Method(
        partial(_OPTUNA_GP, by_model=True),
        "Optuna's GPSampler, our recommendation",
        package="optuna",
    ),
    **{
        name: Method(partial(ServedSampler, name, package), label, package=package, served=True)
        for name, (package, label) in _SERVED.items()
    },
    # Variants of BPE-Delay, to see what a guarantee or an ingredient is worth.
    **{
        f"bpe-delay-psi-{name}": Method(
            partial(as_in_paper, paper_min=name == "min"),
            f"BPE-Delay as published, psi a {words}, xi = 9 and b = 1",
            needs=("kernel", "law", "set"),
        )
        for name, words in (("max", "maximum"), ("min", "minimum as printed"))
    },
    "bpe-delay-valid": Method(
        partial(guaranteed, exploit=None),
        "BPE-Delay with valid bounds that never exploits",
        needs=("kernel", "norm", "set"),
    ),
    "bpe-delay-budget-1.25": Method(
        partial(guaranteed, exploit=WithinBudget(factor=1.25)),
        "BPE-Delay with valid bounds that exploits within a regret budget",
        needs=("kernel", "norm", "set"),
    ),
    "bpe-delay-no-final": Method(
        partial(bpe_delay, exploit=Exploit(final_fraction=0.0)),
        "BPE-Delay whose rule plays to the end",
    ),
}
