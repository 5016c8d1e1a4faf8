"""When answers come, in simulated time: after delays in steps, or from workers."""

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
    """When answers come: with a law of delays and one ask per step, or from a number of workers.

    Attributes:
        law: of the delays, in steps.
        workers: how many evaluations run at once; a worker asks again as soon as it is done. If
            the problem has no durations, they are log-normal with median 1 and sigma 1.
        together: workers wait until all of them are done, as a loop of batches does.
        mean: of log-normal durations, in seconds, that replace those of the problem.
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
        """The delay or duration of each of ``steps`` asks, which depends on the seed alone."""
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
