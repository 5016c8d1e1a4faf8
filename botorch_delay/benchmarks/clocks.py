"""When answers come, in simulated time: by steps or from workers."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from scipy.special import zeta
from torch import Generator, Tensor

from botorch_delay import validation
from botorch_delay.delays import DelayLaw, GeometricDelay, NoDelay, PoissonDelay, check_delays
from botorch_delay.exceptions import InputError


@dataclass(frozen=True)
class Clock:
    """When answers come: by steps with a law of delays, or from workers. Either is given.

    What is random depends on the seed alone, so that it is the same for every method.

    Attributes:
        law: of the delays in steps, where there is one ask per step.
        workers: how many evaluations run at once, each worker asking again as soon as it is done.
            An evaluation takes as long as the problem says; where it says nothing, a log-normal
            time with median 1 and a logarithm of standard deviation 1.
        mean: of log-normal times, in seconds, whatever the problem says; with workers.
        together: workers wait until all of them are done, as a loop of batches does.
    """

    law: DelayLaw | None = None
    workers: int | None = None
    together: bool = False
    mean: float | None = None

    def __post_init__(self) -> None:
        if (self.law is None) == (self.workers is None):
            raise InputError("A clock needs either a law of delays or a number of workers.")
        if self.together and self.workers is None:
            raise InputError("Only workers can wait for each other; give their number.")
        if self.workers is not None:
            validation.whole(self.workers, "workers", 1)
        if self.mean is not None:
            validation.positive(self.mean, "mean")

    def draw(self, steps: int, seed: int) -> list[float]:
        """How long each of ``steps`` asks takes, in steps or in time."""
        generator = torch.Generator().manual_seed(seed)
        if self.law is not None:
            waits = check_delays(self.law.sample(steps, generator), steps)
        else:
            waits = torch.randn(steps, dtype=torch.double, generator=generator).exp()
            if self.mean is not None:
                waits *= self.mean / math.exp(0.5)
        drawn: list[float] = waits.tolist()
        return drawn


class ParetoDelay(DelayLaw):
    """Delays with a heavy tail: ``P(tau >= k) = (1 + k / scale)^-shape`` (Lomax, rounded down).

    ``shape`` is above 1, up to 2 the variance is infinite; ``scale`` is in steps.
    """

    def __init__(self, shape: float, scale: float) -> None:
        self.shape = shape
        self.scale = scale
        # The sum over k >= 1 of P(tau >= k).
        self.mean = float(scale**shape * zeta(shape, scale + 1.0))

    def sample(self, n: int, generator: Generator) -> Tensor:
        uniform = torch.rand(n, dtype=torch.double, generator=generator, device=generator.device)
        return (self.scale * ((1.0 - uniform) ** (-1.0 / self.shape) - 1.0)).floor().long()

    def quantile(self, p: float) -> float:
        tail = 1.0 - validation.probability(p, "p")
        return float(max(math.ceil(self.scale * (tail ** (-1.0 / self.shape) - 1.0)) - 1, 0))

    def __repr__(self) -> str:
        return f"ParetoDelay({self.shape:g}, {self.scale:g})"


DELAYS: dict[str, Clock] = {
    "none": Clock(NoDelay()),
    **{f"poisson-{mean}": Clock(PoissonDelay(float(mean))) for mean in (10, 25, 50, 100, 200)},
    "geometric-20": Clock(GeometricDelay(20.0)),
    "pareto-1.5": Clock(ParetoDelay(1.5, 10.0)),
    **{f"workers-{count}": Clock(workers=count) for count in (4, 16, 64)},
    "batches-4": Clock(workers=4, together=True),
}
