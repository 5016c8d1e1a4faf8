"""Play a problem by a clock: events in order, nothing waits for real."""

from __future__ import annotations

import heapq
import time
from collections import Counter
from dataclasses import dataclass, field

import torch

from botorch_delay import validation
from botorch_delay.benchmarks.clocks import (
    NOISE_STREAM,
    UNIFORM_STREAM,
    Clock,
    Fate,
    generator_of,
    uniforms,
)
from botorch_delay.benchmarks.players import Player
from botorch_delay.benchmarks.problems import Draw, Point, Problem

PENDING = "pending"


@dataclass
class Ask:
    """One ask and what became of it.

    Attributes:
        number: counted from 1.
        time: when it was asked: steps or the durations' unit.
        point: the row, or on a box the coordinates.
        value: with noise.
        f: without.
        regret: the highest f less this one.
        repeat: whether the same point was pending.
        seconds_ask: that the method took to choose.
        state: "pending", or what became of it: "answered", "failed" or "lost".
        ended: when that was; None while it is pending, and where it is lost.
        seconds_tell: that the method took with the answer.
    """

    number: int
    time: float
    point: str
    value: float
    f: float
    regret: float
    repeat: bool
    seconds_ask: float
    state: str = PENDING
    ended: float | None = None
    seconds_tell: float | None = None


@dataclass
class Advice:
    """A recommended point.

    Attributes:
        by: "own" or "ours".
        asks: made before it.
        time: when.
        answers: told before it.
        point: the row, or on a box the coordinates.
        f: without noise.
        regret: the highest f less this one.
        seconds: that the recommendations took, all that were made then.
    """

    by: str
    asks: int
    time: float
    answers: int
    point: str
    f: float
    regret: float
    seconds: float


@dataclass
class Record:
    """What was played.

    Attributes:
        asks: in order.
        advice: in order; the last one is from everything that came.
    """

    asks: list[Ask] = field(default_factory=list)
    advice: list[Advice] = field(default_factory=list)


def play(
    player: Player,
    problem: Problem,
    clock: Clock,
    steps: int,
    seed: int,
    *,
    every: int = 1,
    instant: bool = False,
) -> Record:
    """Ask ``steps`` times and tell every answer when it is due.

    With a clock of steps the answer of ask s with delay tau is told before ask ``s + tau + 1``,
    as in :func:`simulate`, and what is due after the last step is not told. With workers, as
    many asks are out as there are workers, and after the last ask all of them finish.

    Args:
        player: fresh.
        problem: the truth.
        clock: when answers come.
        steps: how many asks, at least 1.
        seed: of delays and noise; the same for every player.
        every: asks between two recommendations; there is one at the end in any case.
        instant: tell every answer at once, though workers stay busy: an oracle.

    Raises:
        InputError: if a number is out of its range.
    """
    return _Game(player, problem, clock, steps, seed, every, instant).run()


class _Game:
    def __init__(
        self,
        player: Player,
        problem: Problem,
        clock: Clock,
        steps: int,
        seed: int,
        every: int,
        instant: bool,
    ) -> None:
        self.player, self.problem, self.clock = player, problem, clock
        self.steps = validation.whole(steps, "steps", 1)
        self.every = validation.whole(every, "every", 1)
        self.instant = instant
        seed = validation.seed(seed)
        self.outcomes = clock.outcomes(steps, seed)
        generator = generator_of(seed ^ NOISE_STREAM)
        normal = torch.randn(steps, dtype=torch.double, generator=generator).tolist()
        uniform = uniforms(steps, seed ^ UNIFORM_STREAM)
        self.draws = [Draw(*drawn) for drawn in zip(normal, uniform, strict=True)]
        self.record = Record()
        self.events: list[tuple[float, int, Fate]] = []  # when, which ask, how it ends
        self.pending: Counter[str] = Counter()
        self.answers = 0
        self.now = 0.0
        self.first: Point | None = None

    def run(self) -> Record:
        for number in range(self.steps):
            self._wait_for_turn(number)
            self._ask(number)
            if (number + 1) % self.every == 0 and number + 1 < self.steps:
                self._recommend()
        if self.clock.workers is None:
            self.now = float(self.steps)
            self._deliver()
        else:
            while self.events:
                self.now = self.events[0][0]
                self._deliver()
        self._recommend()
        return self.record

    def _wait_for_turn(self, number: int) -> None:
        """Let time pass until the next ask may be made, and tell what is due by then."""
        if self.clock.workers is None:
            self.now = float(number)
        elif len(self.events) >= self.clock.workers:
            self.now = self.events[0][0]
        self._deliver()

    def _deliver(self) -> None:
        while self.events and self.events[0][0] <= self.now:
            when, number, fate = heapq.heappop(self.events)
            ask = self.record.asks[number]
            self.pending[ask.point] -= 1
            if not self.instant:
                self._tell(ask, fate, when)

    def _tell(self, ask: Ask, fate: Fate, when: float) -> None:
        begin = time.perf_counter()
        if fate is Fate.FAILED:
            self.player.fail(ask.number - 1)
        else:
            self.player.tell(ask.number - 1, ask.value)
            self.answers += 1
        ask.seconds_tell = time.perf_counter() - begin
        ask.state, ask.ended = fate.value, when

    def _ask(self, number: int) -> None:
        begin = time.perf_counter()
        point = self.player.ask()
        seconds = time.perf_counter() - begin
        self.first = self.first or point
        f = self.problem.truth(point)
        seen = self.problem.observe(point, self.draws[number])
        problem = self.problem
        height = (f - problem.lowest) / max(problem.highest - problem.lowest, 1e-300)
        outcome = self.outcomes(number, min(max(height, 0.0), 1.0), seen.duration)
        name = name_of(point)
        ask = Ask(
            number=number + 1,
            time=self.now,
            point=name,
            value=seen.value,
            f=f,
            regret=problem.highest - f,
            repeat=self.pending[name] > 0 and not self.instant,
            seconds_ask=seconds,
        )
        self.record.asks.append(ask)
        self.pending[name] += 1
        step = 1 if self.clock.workers is None else 0  # an answer is told before an ask
        due = self.now + step + outcome.wait
        if outcome.fate is not Fate.LOST:
            heapq.heappush(self.events, (due, number, outcome.fate))
        elif not self.instant:
            ask.state = Fate.LOST.value
        if self.instant:  # nothing is lost where nothing is waited for
            fate = Fate.FAILED if outcome.fate is Fate.FAILED else Fate.ANSWERED
            self._tell(ask, fate, self.now)

    def _recommend(self) -> None:
        begin = time.perf_counter()
        advice = self.player.recommend()
        seconds = time.perf_counter() - begin
        if not advice:  # nothing was answered: the first point that was asked counts
            assert self.first is not None
            advice = {"own": self.first}
        for by, point in advice.items():
            f = self.problem.truth(point)
            self.record.advice.append(
                Advice(
                    by=by,
                    asks=len(self.record.asks),
                    time=self.now,
                    answers=self.answers,
                    point=name_of(point),
                    f=f,
                    regret=self.problem.highest - f,
                    seconds=seconds,
                )
            )


def name_of(point: Point) -> str:
    """The row of a point, or its coordinates on a box."""
    if point.index is not None:
        return str(point.index)
    return " ".join(f"{number!r}" for number in point.x.tolist())
