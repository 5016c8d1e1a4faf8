"""Optimizers: ask and tell."""

from botorch_delay.optimizers.acquisition_optimizer import AcquisitionOptimizer
from botorch_delay.optimizers.base import Optimizer
from botorch_delay.optimizers.bpe import BPEDelayOptimizer
from botorch_delay.optimizers.forecasts import Forecast, Straggler
from botorch_delay.optimizers.loading import editing, load
from botorch_delay.optimizers.queued import QueuedOptimizer
from botorch_delay.optimizers.random import RandomOptimizer
from botorch_delay.optimizers.recommendation import Prediction, Recommendation, Replicates
from botorch_delay.optimizers.replica import PastTrial, Replica
from botorch_delay.optimizers.threds import ThreDSOptimizer

__all__ = [
    "AcquisitionOptimizer",
    "BPEDelayOptimizer",
    "Forecast",
    "Optimizer",
    "PastTrial",
    "Prediction",
    "QueuedOptimizer",
    "RandomOptimizer",
    "Recommendation",
    "Replica",
    "Replicates",
    "Straggler",
    "ThreDSOptimizer",
    "editing",
    "load",
]
