"""Simulate an optimizer on a problem whose answers come late: events in order, nothing waits."""

from __future__ import annotations

import heapq
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from botorch_delay import validation
from botorch_delay.benchmarks.clocks import (
    NOISE_STREAM,
    UNIFORM_STREAM,
    Clock,
    State,
    StepClock,
    generator_of,
    uniforms,
)
from botorch_delay.benchmarks.problems import BoxProblem, Point, Problem
from botorch_delay.delays import DelayLaw, NoDelay, check_delays
from botorch_delay.exceptions import HorizonError, InputError, InputTypeError, NoAnswerError
from botorch_delay.optimizers.base import Optimizer


class Asked(Point, Protocol):
    """A point that was asked, with the id under which its answer is told."""

    @property
    def id(self) -> int: ...  # noqa: D102


class Sampler(Protocol):
    """What can be simulated: every optimizer of this library, and samplers of others."""

    def ask(self) -> Asked:
        """The next point; of a finite domain with its row as ``index``."""

    def tell(self, trial: int, y: float, /) -> None:
        """The answer of an ask."""

    def mark_failed(self, trial: int, /) -> None:
        """An ask failed."""

    def recommend(self) -> Point:
        """The point recommended; before the first answer a ``NoAnswerError``."""


@runtime_checkable
class ModelSampler(Protocol):
    """A sampler whose own recommendation is not that of this library."""

    def recommend_by_model(self) -> Point:
        """What this library recommends from the same answers."""


@dataclass
class Ask:
    """One ask and what became of it.

    Attributes:
        time: when it was asked: steps from 0, or the durations' unit.
        point: the row, or on a box the coordinates.
        value: with noise.
        regret: how far f without noise is from its best value.
        wait: from the ask to its end: the delay in steps, or a duration.
        repeat: whether the same point was pending.
        seconds_ask: that the method took to choose.
        state: what became of it by the end.
        seconds_tell: that the method took with the answer; None if there was none.
    """

    time: float
    point: int | tuple[float, ...]
    value: float
    regret: float
    wait: float
    repeat: bool
    seconds_ask: float
    state: State = "pending"
    seconds_tell: float | None = None


@dataclass
class Recommended:
    """A recommended point.

    Attributes:
        asks: made before it.
        time: when.
        point: the row, or on a box the coordinates.
        regret: how far f without noise is from its best value.
        by_model: the same of what this library recommends from the same answers; None where
            that is the same point.
    """

    asks: int
    time: float
    point: int | tuple[float, ...]
    regret: float
    by_model: float | None = None


@dataclass(frozen=True, eq=False)
class History:
    """A simulated run.

    Attributes:
        asks: in order.
        recommendations: in order; the last one is from everything that came.
    """

    asks: list[Ask] = field(repr=False)
    recommendations: list[Recommended] = field(repr=False)

    @property
    def index(self) -> Tensor:
        """Row asked at each step, LongTensor ``steps``; of a finite problem."""
        return torch.tensor([ask.point for ask in self.asks], dtype=torch.long)

    @property
    def value(self) -> Tensor:
        """The noisy value at each step, ``steps``."""
        return torch.tensor([ask.value for ask in self.asks], dtype=torch.double)

    @property
    def delay(self) -> Tensor:
        """From each ask to its end, in steps or in the durations' unit, ``steps``."""
        return torch.tensor([ask.wait for ask in self.asks])

    @property
    def regret(self) -> Tensor:
        """Cumulative regret without noise, charged when a point is asked, ``steps``."""
        return torch.tensor([ask.regret for ask in self.asks], dtype=torch.double).cumsum(0)

    @property
    def told(self) -> int:
        """How many answers arrived by the end."""
        return sum(ask.state == "answered" for ask in self.asks)


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
) -> History:
    """Ask ``steps`` times and tell every answer when it is due.

    With a law of delays, or a clock of steps, the answer of step s with delay tau is told before
    the decision of step ``s + tau + 1``; what is due after the last step is not told. With a clock
    of workers as many asks are pending as there are workers, and after the last ask all of them
    finish. Then, if the horizon of the optimizer is used up, its run is finished.

    Args:
        optimizer: fresh, on the problem's domain.
        problem: the truth.
        delay: the law of the delays, or a clock; may be None if ``delays`` is given.
        steps: how many asks, at least 1.
        seed: of delays and noise; the same for every optimizer.
        delays: delays step for step instead of drawn ones, whole, ``steps``.
        noise: noise step for step, added to f, instead of drawn noise, ``steps``.
        recommend_every: asks between two recommendations, with one at the end in any case; None
            for no recommendation at all.
        instant: tell every answer at once, though workers stay busy: an oracle.

    Raises:
        InputError: if an argument is malformed, or the optimizer's domain is another one.
        HorizonError: if the optimizer's horizon is shorter than ``steps``.
    """
    steps = validation.whole(steps, "steps", 1)
    if recommend_every is not None:
        recommend_every = validation.whole(recommend_every, "recommend_every", 1)
    seed = validation.seed(seed)
    _check_optimizer(optimizer, problem, steps)
    if delays is not None:
        delays, delay = check_delays(delays, steps), NoDelay()
    clock = StepClock(delay) if isinstance(delay, DelayLaw) else delay
    if not isinstance(clock, Clock):
        raise InputTypeError(f"delay must be a delay law or a clock, got {type(delay).__name__}.")
    if noise is not None:
        _check_noise(noise, steps)
    run = _Run(optimizer, problem, clock, steps, seed, delays, noise, instant)
    return run.simulate(recommend_every)


def _check_optimizer(optimizer: Sampler, problem: Problem, steps: int) -> None:
    if not isinstance(optimizer, Optimizer):
        return
    horizon = optimizer.horizon
    left = steps if horizon is None else horizon - len(optimizer.trials)
    if steps > left:
        raise HorizonError(
            f"{steps} steps were requested and {left} of the optimizer's horizon of {horizon} are "
            "left."
        )
    if not torch.equal(optimizer.domain.like.cpu(), problem.domain.like.cpu()):
        raise InputError("The optimizer must be made on the problem's domain, problem.domain.")
    if not optimizer.maximize and isinstance(problem, BoxProblem):
        raise InputError("The minimum of a BoxProblem is not known; negate it and maximise.")


def _check_noise(noise: Tensor, steps: int) -> None:
    if not isinstance(noise, Tensor) or noise.shape != (steps,):
        got = tuple(noise.shape) if isinstance(noise, Tensor) else type(noise).__name__
        raise InputError(f"noise must be a tensor of shape {steps}, one per step, got {got}.")
    if not torch.isfinite(noise).all():
        raise InputError("noise must be finite.")


class _Run:
    """The state of one run: its clock, the answers to come, and the history so far."""

    def __init__(
        self,
        optimizer: Sampler,
        problem: Problem,
        clock: Clock,
        steps: int,
        seed: int,
        delays: Tensor | None,
        noise: Tensor | None,
        instant: bool,
    ) -> None:
        self.optimizer, self.problem, self.clock = optimizer, problem, clock
        self.steps, self.instant = steps, instant
        self.outcomes = clock.outcomes(steps, seed)
        generator = generator_of(seed ^ NOISE_STREAM)
        self.normal = torch.randn(steps, dtype=torch.double, generator=generator).tolist()
        self.uniform = uniforms(steps, seed ^ UNIFORM_STREAM)
        self.delays = None if delays is None else delays.tolist()
        self.noise = None if noise is None else noise.tolist()
        maximize = getattr(optimizer, "maximize", True)
        self.best = problem.highest if maximize else problem.lowest
        self.history = History([], [])
        self.events: list[tuple[float, int, int, State]] = []  # when, which ask, its id, its end
        self.pending: Counter[int | tuple[float, ...]] = Counter()
        self.now = 0.0
        self.first: Point | None = None

    def simulate(self, recommend_every: int | None) -> History:
        by_steps = self.clock.workers is None
        for number in range(self.steps):
            if by_steps:
                self.now = float(number)
            elif len(self.events) >= (self.clock.workers or 1):
                self.now = self.events[0][0]
            self._deliver()
            self._ask(number)
            due = recommend_every is not None and (number + 1) % recommend_every == 0
            if due and number + 1 < self.steps:
                self._recommend()
        if by_steps:
            self.now = float(self.steps)
        else:
            self.now = max([when for when, *_ in self.events], default=self.now)
        self._deliver()
        if recommend_every is not None:
            self._recommend()
        optimizer = self.optimizer
        if isinstance(optimizer, Optimizer) and len(optimizer.trials) == optimizer.horizon:
            optimizer.finish()
        return self.history

    def _deliver(self) -> None:
        """Tell what is due."""
        while self.events and self.events[0][0] <= self.now:
            _, number, trial_id, state = heapq.heappop(self.events)
            self.pending[self.history.asks[number].point] -= 1
            if not self.instant:
                self._tell(number, trial_id, state)

    def _tell(self, number: int, trial_id: int, state: State) -> None:
        ask = self.history.asks[number]
        begin = time.perf_counter()
        if state == "failed":
            self.optimizer.mark_failed(trial_id)
        else:
            self.optimizer.tell(trial_id, ask.value)
        ask.seconds_tell = time.perf_counter() - begin
        ask.state = state

    def _ask(self, number: int) -> None:
        begin = time.perf_counter()
        trial = self.optimizer.ask()
        seconds = time.perf_counter() - begin
        self.first = self.first or trial
        f = self.problem.evaluate_true(trial)
        point = _name(trial)
        value, wait, state = self._outcome(number, trial, f)
        repeat = self.pending[point] > 0 and not self.instant
        regret = abs(self.best - f)
        self.history.asks.append(Ask(self.now, point, value, regret, wait, repeat, seconds))
        self.pending[point] += 1
        if state != "lost":
            # By steps an answer is told before an ask, so at the next one at the earliest.
            due = self.now + wait + (1 if self.clock.workers is None else 0)
            heapq.heappush(self.events, (due, number, trial.id, state))
        elif not self.instant:
            self.history.asks[-1].state = "lost"
        if self.instant:  # nothing is lost where nothing is waited for
            self._tell(number, trial.id, "failed" if state == "failed" else "answered")

    def _outcome(self, number: int, trial: Asked, f: float) -> tuple[float, float, State]:
        """What becomes of an ask: its value with noise, how long it takes, and how it ends."""
        problem = self.problem
        value, duration = problem.observe(trial, self.normal[number], self.uniform[number])
        if self.noise is not None:
            value = f + self.noise[number]
        height = (f - problem.lowest) / max(problem.highest - problem.lowest, 1e-300)
        wait, state = self.outcomes(number, min(max(height, 0.0), 1.0), duration)
        return value, wait if self.delays is None else self.delays[number], state

    def _recommend(self) -> None:
        by_model = None
        try:
            point = self.optimizer.recommend()
            if isinstance(self.optimizer, ModelSampler):
                by_model = self._regret(self.optimizer.recommend_by_model())
        except NoAnswerError:  # the first point that was asked counts
            assert self.first is not None
            point = self.first
        asks, name, regret = len(self.history.asks), _name(point), self._regret(point)
        self.history.recommendations.append(Recommended(asks, self.now, name, regret, by_model))

    def _regret(self, point: Point) -> float:
        return abs(self.best - self.problem.evaluate_true(point))


def _name(point: Point) -> int | tuple[float, ...]:
    """The row of a point, or its coordinates on a box."""
    return tuple(point.x.tolist()) if point.index is None else point.index
