"""What is compared: suites of runs, each on a problem, with a delay, a method and a seed."""

from __future__ import annotations

import logging
import re
from collections.abc import Collection
from dataclasses import dataclass, replace

import torch

from botorch_delay import validation
from botorch_delay.benchmarks.clocks import Clock
from botorch_delay.benchmarks.methods import ABLATIONS, GUARANTEED, PAPER_METHODS, Method
from botorch_delay.benchmarks.registries import (
    DELAYS,
    METHODS,
    PROBLEMS,
    MakeProblem,
    made_problem,
)
from botorch_delay.benchmarks.simulator import History, simulate
from botorch_delay.benchmarks.tables import DATASETS
from botorch_delay.exceptions import InputError


@dataclass(frozen=True)
class Cell:
    """One run of a suite."""

    problem: str
    delay: str
    method: str
    seed: int

    @property
    def name(self) -> str:
        """The stem of its file's name."""
        return f"{self.problem}__{self.delay}__{self.method}__{self.seed}"


@dataclass(frozen=True)
class Suite:
    """A choice of runs; ``dataclasses.replace`` makes another one of it.

    Attributes:
        name: of the suite.
        problems: by name.
        delays: by name.
        methods: by name.
        seeds: of draws, delays, noise and methods.
        steps: asks in a run.
        recommendations: how many times a run recommends a point, evenly spaced.

    Raises:
        InputError: if a name is unknown, a choice empty, or a number out of its range.
    """

    name: str
    problems: tuple[str, ...]
    delays: tuple[str, ...]
    methods: tuple[str, ...]
    seeds: tuple[int, ...]
    steps: int
    recommendations: int = 10

    def __post_init__(self) -> None:
        _check_names("problem", self.problems, PROBLEMS)
        _check_names("delay", self.delays, DELAYS)
        _check_names("method", self.methods, METHODS)
        if not self.seeds:
            raise InputError("Choose at least one seed.")
        for seed in self.seeds:
            validation.seed(seed)
        validation.whole(self.steps, "steps", 1)
        validation.whole(self.recommendations, "recommendations", 1)

    @property
    def recommend_every(self) -> int:
        """Asks between two recommendations."""
        return max(self.steps // self.recommendations, 1)

    def cells(self) -> list[Cell]:
        """Every run that applies, seed by seed, so that an early stop leaves whole pairs.

        Raises:
            InputError: if no method can be used on any of the problems.
        """
        places = []
        for problem in dict.fromkeys(self.problems):
            sample = made_problem(PROBLEMS[problem], self.seeds[0])
            for delay in dict.fromkeys(self.delays):
                for method in dict.fromkeys(self.methods):
                    if METHODS[method].applies(sample, DELAYS[delay]):
                        places.append((problem, delay, method))
        if not places:
            raise InputError(
                f"None of {', '.join(self.methods)} can be used on {', '.join(self.problems)} with "
                f"{', '.join(self.delays)}. Some methods need a known kernel, the norm of f, the "
                "law of the delays, or a finite set; choose others."
            )
        return [Cell(*place, seed) for seed in sorted(set(self.seeds)) for place in places]


def _check_names(noun: str, names: Collection[str], known: Collection[str]) -> None:
    for name in names:
        if name not in known:
            raise InputError(f"There is no {noun} {name!r}; there are {', '.join(known)}.")
        if not re.fullmatch(r"[A-Za-z0-9](?:[A-Za-z0-9.-]|_(?!_))*", name):  # part of a file's name
            raise InputError(
                f"The name of a {noun} must be made of letters, digits, dots, dashes and single "
                f"underscores, got {name!r}."
            )
    if not names:
        raise InputError(f"Choose at least one {noun}.")


def simulate_cell(
    problem: MakeProblem, clock: Clock, method: Method, seed: int, steps: int, recommend_every: int
) -> History:
    """Simulate one run on one thread, from registered objects that another process can be sent."""
    made = made_problem(problem, seed)
    logger = logging.getLogger("botorch_delay.optimizers")
    level, threads = logger.level, torch.get_num_threads()
    logger.setLevel(logging.ERROR)  # stragglers are part of the simulation
    torch.set_num_threads(1)  # so that times can be compared
    try:
        return simulate(
            method.make(made, clock, steps, seed),
            made,
            clock,
            steps,
            seed,
            recommend_every=recommend_every,
            instant=method.instant,
        )
    finally:
        logger.setLevel(level)
        torch.set_num_threads(threads)


QUICK = Suite(
    name="quick",
    problems=("se-0.02", "matern52-0.2", "matern12-0.02", "se-0.02-wide"),
    delays=("poisson-10", "workers-4"),
    methods=("bpe-delay", "gp-bucb", "gp-ucb", "async-ts", "random", "gp-ucb-oracle"),
    seeds=(0, 1, 2),
    steps=100,
    recommendations=20,
)
_APART = (*DATASETS, "f1", "f2", "paper", "se-0.02-d4")
FULL = Suite(
    name="full",
    problems=(
        *(name for name in PROBLEMS if not name.startswith(_APART)),
        *("hpobench-vehicle", "hpobench-segment", "hpobench-credit_g"),
        *("hpolib-protein_structure", "nasbench201-cifar100"),
    ),
    # The other means are for one problem, to see how regret grows with the delay.
    delays=tuple(d for d in DELAYS if d not in ("poisson-25", "poisson-100", "poisson-200")),
    methods=tuple(
        name
        for name in METHODS
        if name not in {"qlognei-learned", *ABLATIONS, *GUARANTEED, *PAPER_METHODS}
    ),
    seeds=tuple(range(10)),
    steps=200,
    recommendations=20,
)
HPO = Suite(
    name="hpo",
    problems=("hpobench-vehicle", "hpobench-segment", "hpobench-credit_g"),
    delays=("workers-4", "workers-16"),
    methods=(
        *("bpe-delay", "gp-bucb", "gp-ucb", "gp-ucb-sdf", "async-ts", "qlognei", "qlogei"),
        *("logei", "tpe", "optuna-gp", "random", "gp-ucb-oracle"),
    ),
    seeds=tuple(range(10)),
    steps=80,
)
# The experiments of section 6 of the paper.
PAPER = Suite(
    name="paper",
    problems=("f1", "f2"),
    delays=("none", "poisson-25", "poisson-50"),
    methods=(
        *("bpe-delay-psi-max", "bpe-delay-psi-min", "bpe", "gp-ucb-sdf"),
        *("gp-ucb-sdf-from-worst", "gp-bucb", "gp-ucb"),
    ),
    seeds=tuple(range(10)),
    steps=1000,
    recommendations=1,
)
PAPER_QUICK = replace(PAPER, steps=300, seeds=(0, 1, 2))
PAPER_REDRAWN = ("paper-0.8", "paper-1.0")  # f1 and f2 drawn anew with every seed
SUITES = {suite.name: suite for suite in (QUICK, FULL, HPO, PAPER)}
