"""Bayesian optimisation when results come back late (BPE-Delay, ICML 2023).

A name is imported with its module when it is first used, as BoTorch's are: importing the package
takes no longer than importing BoTorch.
"""

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

if TYPE_CHECKING:
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

# Where they are: submodules, and names by module.
_MODULES = ("benchmarks", "exceptions")
_NAMES = {
    "acquisition": "FantasyUpperConfidenceBound MaxVariance",
    "boxes": "BoxDomain",
    "confidence": "Confidence FixedBeta Guarantee RKHSConfidence rkhs_bounds",
    "delays": """
        ConstantDelay DelayLaw GeometricDelay NoDelay PoissonDelay SubExponentialDelay
    """,
    "design": "greedy_max_variance",
    "domains": "FiniteDomain",
    "elimination": "ActiveSet",
    "empirical_delay": "EmpiricalDelay",
    "information": "effective_dimension information_gain",
    "models": "DelayedGP",
    "optimizers": """
        AcquisitionOptimizer BPEDelayOptimizer Epoch Forecast Optimizer QueuedOptimizer
        RandomOptimizer Recommendation Replicates Straggler ThreDSOptimizer editing load
    """,
    "rounds": "GeometricRounds HorizonRounds RoundRecord round_lengths",
    "rules": """
        UCB BotorchRule Censor Hallucinate Ignore Pending Rule ThompsonSampling
    """,
    "surrogate": "Hyperparameters",
    "trials": "Trial TrialState",
}
_HOME = {name: module for module, names in _NAMES.items() for name in names.split()}

if not TYPE_CHECKING:  # a checker must not take every name for one of ours

    def __getattr__(name):
        if name in _MODULES:
            return import_module(f"{__name__}.{name}")
        if name not in _HOME:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
        globals()[name] = value
        return value

    def __dir__():
        return sorted({*globals(), *__all__})
