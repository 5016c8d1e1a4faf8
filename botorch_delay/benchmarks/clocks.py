"""When answers come: by steps or from workers, in simulated time."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from scipy.special import zeta
from torch import Generator, Tensor

from botorch_delay import validation
from botorch_delay.delays import DelayLaw, check_delays
from botorch_delay.exceptions import InputError

# Streams of one seed, so that none depends on how much of another was drawn. The delays' own is
# the seed itself.
NOISE_STREAM = 0x5EED << 32
UNIFORM_STREAM = 0x7AB1E << 32
_OUTCOME_STREAM = 0xFA7E << 32

State = Literal["pending", "answered", "failed", "lost"]


# What becomes of one ask: how long it takes (steps, or time with a clock of workers), and how it
# ends. From its number, counted from 0, its f as a share of the problem's range, and the duration
# that the problem states or None.
Outcomes = Callable[[int, float, float | None], tuple[float, State]]


class Clock(ABC):
    """When answers come. What is random is the same for every method.

    Attributes:
        workers: how many evaluations run at once; None where asks come step by step.
        law: the delay law, if there is one that methods may be told.
    """

    workers: int | None = None
    law: DelayLaw | None = None

    @abstractmethod
    def outcomes(self, steps: int, seed: int) -> Outcomes:
        """What becomes of each of ``steps`` asks."""


@dataclass(frozen=True)
class StepClock(Clock):
    """One ask per step, answered after a random number of further steps.

    Attributes:
        law: of the delays.
        lost: share of the asks that are never answered.
        failed: share of the asks that fail, when their answer would have come.

    Raises:
        InputError: if a share is not in [0, 1], or their sum above 1.
    """

    law: DelayLaw
    lost: float = 0.0
    failed: float = 0.0

    def __post_init__(self) -> None:
        total = validation.nonnegative(self.lost, "lost")
        total += validation.nonnegative(self.failed, "failed")
        if total > 1.0:
            raise InputError(f"lost and failed must sum to at most 1, got {total}.")

    def outcomes(self, steps: int, seed: int) -> Outcomes:
        """Delays of the law; failures and losses by their shares."""
        delays = check_delays(self.law.sample(steps, generator_of(seed)), steps).tolist()
        drawn = uniforms(steps, seed ^ _OUTCOME_STREAM)

        def outcome(number: int, height: float, duration: float | None) -> tuple[float, State]:
            if drawn[number] < self.lost:
                return delays[number], "lost"
            failed = drawn[number] < self.lost + self.failed
            return delays[number], "failed" if failed else "answered"

        return outcome


@dataclass(frozen=True)
class GrowingClock(Clock):
    """One ask per step; the better a point, the longer its answer takes.

    The delay is geometric with mean ``largest_mean`` times the share of the problem's range
    that f reaches there.

    Attributes:
        largest_mean: the mean delay of the best point, in steps, above 0.
    """

    largest_mean: float

    def outcomes(self, steps: int, seed: int) -> Outcomes:
        """Geometric delays, by inversion of one uniform number per ask."""
        drawn = uniforms(steps, seed)

        def outcome(number: int, height: float, duration: float | None) -> tuple[float, State]:
            mean = self.largest_mean * height
            if mean <= 0.0:
                return 0, "answered"
            stay = mean / (1.0 + mean)  # P(tau >= k) = stay^k
            return math.floor(math.log1p(-drawn[number]) / math.log(stay)), "answered"

        return outcome


@dataclass(frozen=True)
class WorkerClock(Clock):
    """A number of workers, each of which asks again as soon as it is done.

    Evaluations take as long as the problem says; where it says nothing, log-normal times with
    median 1.

    Attributes:
        workers: how many, at least 1.
        spread: standard deviation of the logarithm of such times, at least 0.

    Raises:
        InputError: if a number is out of its range.
    """

    workers: int
    spread: float = 1.0

    def __post_init__(self) -> None:
        validation.whole(self.workers, "workers", 1)
        validation.nonnegative(self.spread, "spread")

    def outcomes(self, steps: int, seed: int) -> Outcomes:
        """Durations."""
        normal = torch.randn(steps, dtype=torch.double, generator=generator_of(seed))
        drawn = (self.spread * normal).exp().tolist()

        def outcome(number: int, height: float, duration: float | None) -> tuple[float, State]:
            return drawn[number] if duration is None else duration, "answered"

        return outcome


class ParetoDelay(DelayLaw):
    """Delays with a heavy tail: ``P(tau >= k) = (1 + k / scale)^-shape`` (Lomax, rounded down).

    Args:
        shape: of the tail, above 1; up to 2 the variance is infinite.
        scale: in steps, above 0.
    """

    def __init__(self, shape: float, scale: float) -> None:
        self.shape = shape
        self.scale = scale
        # The sum over k >= 1 of P(tau >= k).
        self.mean = float(scale**shape * zeta(shape, scale + 1.0))

    def sample(self, n: int, generator: Generator) -> Tensor:
        """By inversion."""
        uniform = torch.rand(n, dtype=torch.double, generator=generator, device=generator.device)
        return (self.scale * ((1.0 - uniform) ** (-1.0 / self.shape) - 1.0)).floor().long()

    def quantile(self, p: float) -> float:
        """The smallest whole ``u`` with ``P(tau > u) <= 1 - p``."""
        tail = 1.0 - validation.probability(p, "p")
        return float(max(math.ceil(self.scale * (tail ** (-1.0 / self.shape) - 1.0)) - 1, 0))

    def __repr__(self) -> str:
        return f"ParetoDelay({self.shape:g}, {self.scale:g})"


def generator_of(seed: int) -> Generator:
    """A generator of its own."""
    return torch.Generator().manual_seed(seed)


def uniforms(n: int, seed: int) -> list[float]:
    """Numbers in [0, 1)."""
    drawn: list[float] = torch.rand(n, dtype=torch.double, generator=generator_of(seed)).tolist()
    return drawn
