"""Optimizers: ask and tell."""

from botorch_delay.optimizers.base import Optimizer
from botorch_delay.optimizers.bpe import BPEDelayOptimizer, Straggler
from botorch_delay.optimizers.loading import editing, load
from botorch_delay.optimizers.recommendation import Recommendation

__all__ = ["BPEDelayOptimizer", "Optimizer", "Recommendation", "Straggler", "editing", "load"]
