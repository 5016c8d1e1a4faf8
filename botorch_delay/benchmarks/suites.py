"""What is played: cells of a problem, a delay, a method and a seed."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

from botorch_delay import validation
from botorch_delay.benchmarks.clocks import Clock
from botorch_delay.benchmarks.methods import ABLATIONS, GUARANTEED
from botorch_delay.benchmarks.play import Record, play
from botorch_delay.benchmarks.players import Method
from botorch_delay.benchmarks.registries import (
    DELAYS,
    METHODS,
    PROBLEMS,
    MakeProblem,
    made_problem,
)
from botorch_delay.benchmarks.tables import DATASETS
from botorch_delay.exceptions import InputError


@dataclass(frozen=True)
class Cell:
    """One run."""

    problem: str
    delay: str
    method: str
    seed: int

    @property
    def name(self) -> str:
        """The stem of its file's name."""
        return f"{self.problem}__{self.delay}__{self.method}__{self.seed}"

    @classmethod
    def of(cls, name: str) -> Cell:
        """The cell of a name.

        Raises:
            InputError: if it is not a cell's.
        """
        parts = name.split("__")
        if len(parts) != 4 or not parts[3].isdecimal():
            raise InputError(f"{name!r} is not the name of a cell.")
        return cls(parts[0], parts[1], parts[2], int(parts[3]))


@dataclass(frozen=True)
class Suite:
    """A choice of cells.

    Attributes:
        name: of the suite.
        problems: by name.
        delays: by name.
        methods: by name.
        seeds: of draws, delays, noise and methods.
        steps: asks in a run.
        every: asks between two recommendations.
        extra: methods that refit a model and are slow, with the one problem and delay each
            is played on.
    """

    name: str
    problems: tuple[str, ...]
    delays: tuple[str, ...]
    methods: tuple[str, ...]
    seeds: tuple[int, ...]
    steps: int
    every: int
    extra: tuple[tuple[str, str, str], ...] = ()

    def narrowed(
        self,
        *,
        problems: Sequence[str] | None = None,
        delays: Sequence[str] | None = None,
        methods: Sequence[str] | None = None,
        seeds: Sequence[int] | None = None,
        steps: int | None = None,
    ) -> Suite:
        """The suite with other choices; None leaves one as it is.

        The extra cells stay as far as they agree with the choices.

        Raises:
            InputError: if a name is unknown, a choice empty, or a number out of its range.
        """
        if problems is not None:
            PROBLEMS.check(problems)
        if delays is not None:
            DELAYS.check(delays)
        if methods is not None:
            METHODS.check(methods)
        if any(len(c) == 0 for c in (problems, delays, methods, seeds) if c is not None):
            raise InputError("Choose at least one problem, delay, method and seed.")
        count = self.steps if steps is None else validation.whole(steps, "steps", 1)
        every = self.every if steps is None else max(self.every * count // self.steps, 1)
        return replace(
            self,
            problems=self.problems if problems is None else _distinct(problems),
            delays=self.delays if delays is None else _distinct(delays),
            methods=self.methods if methods is None else _distinct(methods),
            seeds=self.seeds
            if seeds is None
            else tuple(sorted({validation.seed(seed) for seed in seeds})),
            steps=count,
            every=every,
            extra=tuple(
                (problem, delay, method)
                for problem, delay, method in self.extra
                if (problems is None or problem in problems)
                and (delays is None or delay in delays)
                and methods is None
            ),
        )

    def cells(self) -> list[Cell]:
        """Every run that applies, seed by seed, so that an early stop leaves whole pairs."""
        places = []
        for problem in self.problems:
            sample = made_problem(PROBLEMS[problem], self.seeds[0])
            for delay in self.delays:
                methods = [m for m in self.methods if METHODS[m].applies(sample, DELAYS[delay])]
                methods += [m for p, d, m in self.extra if (p, d) == (problem, delay)]
                places += [(problem, delay, method) for method in dict.fromkeys(methods)]
        return [Cell(*place, seed) for seed in self.seeds for place in places]


def _distinct(names: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))


@dataclass(frozen=True)
class Task:
    """All that a process needs to play a cell: registered objects, not their names.

    Attributes:
        problem: makes the problem of a seed.
        clock: when answers come.
        method: plays.
        seed: of everything random.
        steps: asks.
        every: asks between two recommendations.
    """

    problem: MakeProblem
    clock: Clock
    method: Method
    seed: int
    steps: int
    every: int

    @classmethod
    def of(cls, suite: Suite, cell: Cell) -> Task:
        """What a cell of a suite stands for."""
        return cls(
            PROBLEMS[cell.problem],
            DELAYS[cell.delay],
            METHODS[cell.method],
            cell.seed,
            suite.steps,
            suite.every,
        )

    def play(self) -> Record:
        """Play it, without what optimizers log of stragglers."""
        problem = made_problem(self.problem, self.seed)
        logger = logging.getLogger("botorch_delay.optimizers")
        level = logger.level
        logger.setLevel(logging.ERROR)
        try:
            return play(
                self.method.make(problem, self.clock, self.steps, self.seed),
                problem,
                self.clock,
                self.steps,
                self.seed,
                every=self.every,
                instant=self.method.instant,
            )
        finally:
            logger.setLevel(level)


QUICK = Suite(
    name="quick",
    problems=("se-0.02", "matern52-0.2", "matern12-0.02", "se-0.02-wide"),
    delays=("poisson-10", "workers-4"),
    methods=("bpe-delay", "gp-bucb", "gp-ucb", "async-ts", "random", "gp-ucb-oracle"),
    seeds=(0, 1, 2),
    steps=100,
    every=5,
    extra=(("se-0.02", "poisson-10", "qlognei-learned"),),
)
_METHODS_APART = {"qlognei-learned", *ABLATIONS, *GUARANTEED}
_APART = ("paper-0.8", "paper-1.0", "se-0.02-d4")
_SYNTHETIC = tuple(
    name for name in PROBLEMS if name.partition("-")[0] not in DATASETS and name not in _APART
)
_SWEEP = ("poisson-25", "poisson-100", "poisson-200")  # of the mean delay, for one problem
FULL = Suite(
    name="full",
    problems=_SYNTHETIC
    + tuple(f"hpobench-{name}" for name in ("vehicle", "segment", "credit_g"))
    + ("hpolib-protein_structure", "nasbench201-cifar100"),
    delays=tuple(name for name in DELAYS if name not in _SWEEP),
    methods=tuple(name for name in METHODS if name not in _METHODS_APART),
    seeds=tuple(range(10)),
    steps=200,
    every=10,
)
HPO = Suite(
    name="hpo",
    problems=("hpobench-vehicle", "hpobench-segment", "hpobench-credit_g"),
    delays=("workers-4", "workers-16"),
    methods=(
        "bpe-delay",
        "gp-bucb",
        "gp-ucb",
        "gp-ucb-sdf",
        "async-ts",
        "qlognei",
        "qlogei",
        "logei",
        "tpe",
        "optuna-gp",
        "random",
        "gp-ucb-oracle",
    ),
    seeds=tuple(range(10)),
    steps=80,
    every=8,
)
SUITES = {suite.name: suite for suite in (QUICK, FULL, HPO)}
