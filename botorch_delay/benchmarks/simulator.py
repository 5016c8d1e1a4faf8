"""Simulate an optimizer on a problem whose answers come late, without waiting for real."""

from __future__ import annotations

import heapq
import math
import time
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from scipy.special import zeta
from torch import Generator, Tensor

from botorch_delay import validation
from botorch_delay.benchmarks.problems import BoxProblem, Point, Problem
from botorch_delay.delays import DelayLaw, GeometricDelay, NoDelay, PoissonDelay, check_delays
from botorch_delay.exceptions import (
    HorizonError,
    InputError,
    InputTypeError,
    NoAnswerError,
    OutlierWarning,
)
from botorch_delay.optimizers.base import Optimizer

# XORed with the seed, so that noise, uniform numbers and delays come from different streams.
_NOISE_STREAM = 0x5EED << 32
_UNIFORM_STREAM = 0x7AB1E << 32

Place = int | tuple[float, ...]  # the row of a point in a finite domain; its coordinates on a box


@dataclass(frozen=True)
class Clock:
    """When answers come: by a law of delays with one ask per step, or from a number of workers.

    Attributes:
        law: the law of the delays, in steps.
        workers: how many evaluations run at once; a worker asks again as soon as it is done. If
            the problem has no durations, they are log-normal with median 1 and sigma 1.
        together: workers wait until all of them are done, as a loop of batches does.
        mean: the mean of log-normal durations that replace those of the problem, in their unit.
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
            if self.law is not None:
                raise InputError("mean is of the durations of workers; a law has its own mean.")

    def draw(self, steps: int, seed: int) -> list[float]:
        """The delay or duration of each of ``steps`` asks, which depends on the seed alone."""
        generator = torch.Generator().manual_seed(seed)
        if self.law is not None:
            waits = check_delays(self.law.sample(steps, generator), steps)
        else:
            waits = torch.randn(steps, dtype=torch.double, generator=generator).exp()
            if self.mean is not None:
                waits *= self.mean / math.exp(0.5)
        return waits.tolist()


@dataclass(frozen=True)
class ParetoDelay(DelayLaw):
    """Delays with a heavy tail: ``P(tau >= k) = (1 + k / scale)^-shape`` (Lomax, rounded down).

    ``shape`` is above 1, and the variance infinite if it is at most 2; ``scale`` is in steps.
    """

    shape: float
    scale: float

    def __post_init__(self) -> None:
        # The sum over k >= 1 of P(tau >= k).
        mean = float(self.scale**self.shape * zeta(self.shape, self.scale + 1.0))
        object.__setattr__(self, "mean", mean)

    def sample(self, n: int, generator: Generator) -> Tensor:
        uniform = torch.rand(n, dtype=torch.double, generator=generator, device=generator.device)
        return (self.scale * ((1.0 - uniform) ** (-1.0 / self.shape) - 1.0)).floor().long()

    def quantile(self, p: float) -> float:
        tail = 1.0 - validation.probability(p, "p")
        return float(max(math.ceil(self.scale * (tail ** (-1.0 / self.shape) - 1.0)) - 1, 0))


DELAYS: dict[str, Clock] = {
    "none": Clock(NoDelay()),
    **{f"poisson-{mean}": Clock(PoissonDelay(float(mean))) for mean in (10, 25, 50, 100, 200)},
    "geometric-20": Clock(GeometricDelay(20.0)),
    "pareto-1.5": Clock(ParetoDelay(1.5, 10.0)),
    **{f"workers-{count}": Clock(workers=count) for count in (4, 16, 64)},
    "batches-4": Clock(workers=4, together=True),
}


class Asked(Point, Protocol):
    """A point that was asked, with the id under which its answer is told."""

    @property
    def id(self) -> int: ...


class Sampler(Protocol):
    """What can be simulated; ``recommend`` raises ``NoAnswerError`` before the first answer."""

    def ask(self) -> Asked: ...

    def tell(self, trial: int, y: float, /) -> None: ...

    def recommend(self) -> Point: ...


@dataclass
class Ask:
    """One ask and its answer; times are in steps or in the unit of the durations."""

    time: float
    point: Place
    value: float  # with noise
    regret: float  # how far f without noise is from its best known value; 0 beyond it
    wait: float  # from the ask to its answer
    repeat: bool  # whether the same point was pending
    seconds_ask: float
    seconds_tell: float | None = None  # None if there was no answer


@dataclass
class Recommended:
    """A recommended point."""

    asks: int  # made before it
    time: float
    point: Place
    regret: float  # how far f without noise is from its best known value; 0 beyond it


@dataclass(frozen=True, eq=False)
class SimulationResult:
    """A simulated run: asks, and recommendations, the last one from all answers."""

    asks: list[Ask] = field(default_factory=list, repr=False)
    recommendations: list[Recommended] = field(default_factory=list, repr=False)

    @property
    def delay(self) -> Tensor:
        """Time from each ask to its answer, in steps or in the durations' unit; shape ``steps``."""
        return torch.tensor([ask.wait for ask in self.asks])

    @property
    def regret(self) -> Tensor:
        """Cumulative regret without noise, charged when a point is asked; shape ``steps``."""
        return torch.tensor([ask.regret for ask in self.asks], dtype=torch.double).cumsum(0)

    def utilization(self, workers: int) -> float:
        """Share of the workers' time until the last ask in which they evaluated something."""
        end = self.asks[-1].time
        busy = sum(min(ask.time + ask.wait, end) - ask.time for ask in self.asks)
        return busy / (workers * end) if end > 0.0 else 1.0


def simulate(
    optimizer: Sampler,
    problem: Problem,
    delay: DelayLaw | Clock | None,
    steps: int,
    seed: int = 0,
    delays: Tensor | None = None,
    noise: Tensor | None = None,
    *,
    recommend_every: int | None = None,
    instant: bool = False,
    own_time: bool = False,
    most_seconds: float | None = None,
) -> SimulationResult:
    """Ask ``steps`` times and tell every answer when it is due.

    With a law of delays the answer of step s with delay tau is told before the decision of step
    ``s + tau + 1``; what is due after the last step is not told. With workers, all finish after the
    last ask, and are told. If the optimizer's horizon is used up then, ``finish`` is called.

    Args:
        optimizer: a new one, on the problem's domain.
        problem: the function that is evaluated.
        delay: the law of the delays, or a clock; may be None if ``delays`` is given.
        steps: how many asks, at least 1.
        seed: seed of delays and noise: with the same seed these are the same for every optimizer.
        delays: delays of the steps, whole numbers, instead of drawn ones; shape ``steps``.
        noise: noise of the steps, added to f, instead of drawn noise; shape ``steps``.
        recommend_every: asks between recommendations, the last one at the end; None for none.
        instant: tell every answer at once, though workers stay busy: an oracle.
        own_time: with workers, the processor time of asks and tells passes on the clock, in
            seconds, while workers that are done wait for their next point.
        most_seconds: processor time, for asks and tells, after which nothing more is asked.

    Raises:
        HorizonError: if the optimizer's horizon is shorter than ``steps``.
    """
    steps = validation.whole(steps, "steps", 1)
    if recommend_every is not None:
        recommend_every = validation.whole(recommend_every, "recommend_every", 1)
    seed = validation.seed(seed)
    _check_optimizer(optimizer, problem, steps)
    law = delay if delays is None else NoDelay()
    clock = Clock(law) if isinstance(law, DelayLaw) else law
    if not isinstance(clock, Clock):
        raise InputTypeError(f"delay must be a delay law or a clock, got {type(delay).__name__}.")
    waits = check_delays(delays, steps).tolist() if delays is not None else clock.draw(steps, seed)
    if noise is not None:
        like = torch.empty(steps, dtype=torch.double)
        noise = validation.column(noise, "noise", like)
    left = math.inf if most_seconds is None else validation.positive(most_seconds, "most_seconds")
    own_time = own_time and clock.workers is not None
    run = _Simulation(optimizer, problem, clock, waits, seed, noise, instant, own_time, left)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OutlierWarning)  # simulated values have no typing errors
        return run.run(recommend_every)


def _check_optimizer(optimizer: Sampler, problem: Problem, steps: int) -> None:
    if not isinstance(optimizer, Optimizer):
        return
    horizon, asked = optimizer.horizon, len(optimizer.trials)
    if horizon is not None and steps > horizon - asked:
        raise HorizonError(
            f"{steps} steps were requested, but only {horizon - asked} of the optimizer's horizon "
            f"of {horizon} are left."
        )
    if not torch.equal(optimizer.domain.like.cpu(), problem.domain.like.cpu()):
        raise InputError("The optimizer must be made on the problem's domain, problem.domain.")
    if not optimizer.maximize and isinstance(problem, BoxProblem):
        raise InputError("The minimum of a BoxProblem is not known; negate it and maximise.")


@dataclass
class _Simulation:
    """The state of one run; random numbers for every ask are drawn first, from the seed alone."""

    optimizer: Sampler
    problem: Problem
    clock: Clock
    waits: list[float]
    seed: int
    noise: Tensor | None  # if given, used instead of the drawn noise
    instant: bool
    own_time: bool
    seconds_left: float
    result: SimulationResult = field(default_factory=SimulationResult)
    due: list[tuple[float, int, int]] = field(default_factory=list)  # when, number of ask, trial id
    pending: Counter[Place] = field(default_factory=Counter)
    now: float = 0.0

    def __post_init__(self) -> None:
        steps, generator = len(self.waits), torch.Generator()
        generator.manual_seed(self.seed ^ _NOISE_STREAM)
        self.normal = torch.randn(steps, dtype=torch.double, generator=generator).tolist()
        generator.manual_seed(self.seed ^ _UNIFORM_STREAM)
        self.uniform = torch.rand(steps, dtype=torch.double, generator=generator).tolist()

    def run(self, recommend_every: int | None) -> SimulationResult:
        steps, workers = len(self.waits), self.clock.workers
        for number in range(steps):
            if workers is None:
                self.now = float(number)
            elif len(self.due) >= workers:
                when = max if self.clock.together else min
                self.now = max(self.now, when(time for time, *_ in self.due))
            self.deliver()
            if self.seconds_left <= 0.0:
                break
            self.ask(number)
            if recommend_every and (number + 1) % recommend_every == 0 and number + 1 < steps:
                self.recommend()
        if workers is None:
            self.now = float(len(self.result.asks))
        else:
            self.now = max((when for when, *_ in self.due), default=self.now)
        self.deliver()
        if recommend_every:
            self.recommend()
        optimizer = self.optimizer
        if isinstance(optimizer, Optimizer) and len(optimizer.trials) == optimizer.horizon:
            optimizer.finish()
        return self.result

    def ask(self, number: int) -> None:
        trial, seconds = self.timed(self.optimizer.ask)
        f = self.problem.evaluate_true(trial)
        value, duration = self.problem.observe(trial, self.normal[number], self.uniform[number])
        if self.noise is not None:
            value = f + self.noise[number].item()
        wait = self.waits[number]
        if duration is not None and self.clock.workers is not None and self.clock.mean is None:
            wait = duration
        point = _place(trial)
        repeat = self.pending[point] > 0 and not self.instant
        self.result.asks.append(Ask(self.now, point, value, self.regret(f), wait, repeat, seconds))
        self.pending[point] += 1
        # With a law of delays, answers are told before an ask, at the earliest before the next one.
        when = self.now + wait + (1 if self.clock.workers is None else 0)
        heapq.heappush(self.due, (when, number, trial.id))
        if self.instant:
            self.tell(number, trial.id)

    def deliver(self) -> None:
        """Tell the answers that are due."""
        while self.due and self.due[0][0] <= self.now:  # more may come due while one is told
            _, number, trial_id = heapq.heappop(self.due)
            self.pending[self.result.asks[number].point] -= 1
            if not self.instant:
                self.tell(number, trial_id)

    def tell(self, number: int, trial_id: int) -> None:
        ask = self.result.asks[number]
        _, ask.seconds_tell = self.timed(self.optimizer.tell, trial_id, ask.value)

    def timed(self, call: Callable[..., Any], *arguments: Any) -> tuple[Any, float]:
        """What a call returns, and its seconds: processor time if ``own_time``, else real time."""
        clock = time.process_time if self.own_time else time.perf_counter
        processor, begin = time.process_time(), clock()
        returned = call(*arguments)
        spent = clock() - begin
        self.seconds_left -= time.process_time() - processor
        if self.own_time:
            self.now += spent
        return returned, spent

    def regret(self, f: float) -> float:
        """How far a value without noise is from the best one that is known; 0 beyond that."""
        if getattr(self.optimizer, "maximize", True):
            return max(self.problem.highest - f, 0.0)
        return max(f - self.problem.lowest, 0.0)

    def recommend(self) -> None:
        asks = self.result.asks
        try:
            best = self.optimizer.recommend()
        except NoAnswerError:  # before any answer the first point counts
            point, regret = asks[0].point, asks[0].regret
        else:
            point, regret = _place(best), self.regret(self.problem.evaluate_true(best))
        self.result.recommendations.append(Recommended(len(asks), self.now, point, regret))


def _place(point: Point) -> Place:
    return tuple(point.x.tolist()) if point.index is None else point.index
