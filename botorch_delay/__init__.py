"""Bayesian optimisation when results come back late (BPE-Delay, ICML 2023)."""

from importlib.metadata import PackageNotFoundError, version

from botorch_delay import benchmarks, exceptions
from botorch_delay.acquisition import FantasyUpperConfidenceBound, MaxVariance
from botorch_delay.boxes import BoxDomain
from botorch_delay.confidence import (
    Confidence,
    FixedBeta,
    Guarantee,
    RKHSConfidence,
    rkhs_bounds,
)
from botorch_delay.delays import (
    ConstantDelay,
    DelayLaw,
    GeometricDelay,
    NoDelay,
    PoissonDelay,
    SubExponentialDelay,
)
from botorch_delay.design import greedy_max_variance
from botorch_delay.domains import FiniteDomain
from botorch_delay.elimination import ActiveSet
from botorch_delay.empirical_delay import EmpiricalDelay
from botorch_delay.information import effective_dimension, information_gain
from botorch_delay.models import DelayedGP
from botorch_delay.optimizers import (
    AcquisitionOptimizer,
    BPEDelayOptimizer,
    Epoch,
    Forecast,
    Optimizer,
    QueuedOptimizer,
    RandomOptimizer,
    Recommendation,
    Replicates,
    Straggler,
    ThreDSOptimizer,
    editing,
    load,
)
from botorch_delay.rounds import GeometricRounds, HorizonRounds, RoundRecord, round_lengths
from botorch_delay.rules import (
    UCB,
    BotorchRule,
    Censor,
    Hallucinate,
    Ignore,
    Pending,
    Rule,
    ThompsonSampling,
)
from botorch_delay.surrogate import Hyperparameters
from botorch_delay.trials import Trial, TrialState

try:
    __version__ = version("botorch-delay")
except PackageNotFoundError:  # run from a source tree that is not installed
    __version__ = "0+unknown"

__all__ = [
    "UCB",
    "AcquisitionOptimizer",
    "ActiveSet",
    "BPEDelayOptimizer",
    "BotorchRule",
    "BoxDomain",
    "Censor",
    "Confidence",
    "ConstantDelay",
    "DelayLaw",
    "DelayedGP",
    "EmpiricalDelay",
    "Epoch",
    "FantasyUpperConfidenceBound",
    "FiniteDomain",
    "FixedBeta",
    "Forecast",
    "GeometricDelay",
    "GeometricRounds",
    "Guarantee",
    "Hallucinate",
    "HorizonRounds",
    "Hyperparameters",
    "Ignore",
    "MaxVariance",
    "NoDelay",
    "Optimizer",
    "Pending",
    "PoissonDelay",
    "QueuedOptimizer",
    "RKHSConfidence",
    "RandomOptimizer",
    "Recommendation",
    "Replicates",
    "RoundRecord",
    "Rule",
    "Straggler",
    "SubExponentialDelay",
    "ThompsonSampling",
    "ThreDSOptimizer",
    "Trial",
    "TrialState",
    "benchmarks",
    "editing",
    "effective_dimension",
    "exceptions",
    "greedy_max_variance",
    "information_gain",
    "load",
    "rkhs_bounds",
    "round_lengths",
]
