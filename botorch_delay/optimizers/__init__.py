"""The optimizers, each with ``ask`` and ``tell``."""

from botorch_delay.optimizers.replica import PastTrial, Replica

__all__ = ["PastTrial", "Replica"]
