"""Optimizers: ask and tell."""

from botorch_delay.optimizers.base import Optimizer, Recommendation
from botorch_delay.optimizers.bpe import BPEDelayOptimizer, Straggler
from botorch_delay.optimizers.loading import editing, load

__all__ = ["BPEDelayOptimizer", "Optimizer", "Recommendation", "Straggler", "editing", "load"]
