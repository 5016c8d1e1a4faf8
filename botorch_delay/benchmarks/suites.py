"""Suites of runs, each of a problem, a delay, a method and a seed."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

from botorch_delay import validation
from botorch_delay.benchmarks.clocks import DELAYS
from botorch_delay.benchmarks.functions import (
    DEVELOPMENT_BOXES,
    PROBLEMS,
    TESTING_BOXES,
    TESTING_COCO,
    TESTING_TABLES,
    MakeProblem,
)
from botorch_delay.benchmarks.methods import METHODS
from botorch_delay.benchmarks.problems import Problem
from botorch_delay.exceptions import InputError, MissingExtraError


class Cell(NamedTuple):
    """One run of a suite."""

    problem: str
    delay: str
    method: str
    seed: int


@dataclass(frozen=True)
class Suite:
    """A choice of runs by the names of their parts; ``dataclasses.replace`` makes variants."""

    name: str
    problems: tuple[str, ...]
    delays: tuple[str, ...]
    methods: tuple[str, ...]
    seeds: tuple[int, ...]  # of draws, delays, noise and methods
    steps: int  # asks in a run

    def __post_init__(self) -> None:
        _check_names("problem", self.problems, PROBLEMS)
        _check_names("delay", self.delays, DELAYS)
        _check_names("method", self.methods, METHODS)
        validation.whole(len(self.seeds), "The number of seeds", 1)
        for seed in self.seeds:
            validation.seed(seed)
        validation.whole(self.steps, "steps", 1)

    def plan(self) -> tuple[list[Cell], list[str]]:
        """All runs, seed by seed, and a line for whatever is left out for lack of a package.

        Raises:
            MissingExtraError: if every run is left out.
            InputError: if no method can be used on any of the problems, or a Python that was named
                for one does not have it.
        """
        lacking: dict[str, list[str]] = {}  # names by error

        def installed(names: Collection[str], check: Callable[[str], Any]) -> dict[str, Any]:
            found = {}
            for name in dict.fromkeys(names):
                try:
                    found[name] = check(name)
                except MissingExtraError as error:
                    lacking.setdefault(str(error), []).append(name)
            return found

        methods = installed(self.methods, lambda name: METHODS[name].check_installed())
        samples = installed(self.problems, lambda name: made_problem(PROBLEMS[name], self.seeds[0]))
        places = [
            (problem, delay, method)
            for problem, sample in samples.items()
            for delay in dict.fromkeys(self.delays)
            for method in methods
            if METHODS[method].applies(sample, DELAYS[delay])
        ]
        if not places and lacking:
            raise MissingExtraError(" ".join(lacking))
        if not places:
            raise InputError(
                f"None of {', '.join(self.methods)} can be used on {', '.join(self.problems)} with "
                f"{', '.join(self.delays)}. Some methods need a known kernel, the norm of f, the "
                "law of the delays, or a finite set; choose others."
            )
        cells = [Cell(*place, seed) for seed in sorted(set(self.seeds)) for place in places]
        return cells, [f"{', '.join(names)}: {error}" for error, names in lacking.items()]


def _check_names(noun: str, names: Collection[str], known: Collection[str]) -> None:
    for name in names:
        if name not in known:
            raise InputError(f"There is no {noun} {name!r}; there are {', '.join(known)}.")
    if not names:
        raise InputError(f"Choose at least one {noun}.")


@lru_cache(maxsize=2)
def made_problem(make: MakeProblem, seed: int) -> Problem:
    """A problem, cached while one method after another is simulated on it."""
    return make(seed)


QUICK = Suite(
    name="quick",
    problems=("se-0.02", "matern52-0.2", "matern12-0.02", "se-0.02-wide"),
    delays=("poisson-10", "workers-4"),
    methods=("bpe-delay", "gp-bucb", "gp-ucb", "async-ts", "random", "gp-ucb-oracle"),
    seeds=(0, 1, 2),
    steps=100,
)
HPO = Suite(
    name="hpo",
    problems=TESTING_TABLES,
    delays=("workers-4", "workers-16", "workers-64"),
    methods=(
        *("bpe-delay", "gp-bucb", "gp-ucb", "gp-ucb-sdf", "async-ts", "qlognei", "qlogei"),
        *("logei", "tpe", "tpe-by-model", "optuna-gp", "optuna-gp-by-model", "random"),
        "gp-ucb-oracle",
    ),
    seeds=tuple(range(10)),
    steps=80,
)
# Problems on which nothing was tuned, and the methods that a user would take instead.
BOXES = Suite(
    name="boxes",
    problems=TESTING_BOXES,
    delays=("workers-4", "workers-16", "workers-64"),
    methods=("bpe-delay", "tpe", "optuna-gp", "botorch", "random"),
    seeds=tuple(range(30)),
    steps=64,
)
DEVELOPMENT = replace(BOXES, name="boxes-development", problems=DEVELOPMENT_BOXES)
COCO_FUNCTIONS = replace(BOXES, name="coco", problems=TESTING_COCO)
# The experiments of section 6 of the paper.
PAPER = Suite(
    name="paper",
    problems=("f1", "f2"),
    delays=("none", "poisson-25", "poisson-50"),
    methods=("bpe-delay-psi-max", "bpe-delay-psi-min", "bpe", "gp-ucb-sdf", "gp-bucb", "gp-ucb"),
    seeds=tuple(range(10)),
    steps=1000,
)
PAPER_QUICK = replace(PAPER, steps=300, seeds=(0, 1, 2))
SUITES = {suite.name: suite for suite in (QUICK, BOXES, DEVELOPMENT, COCO_FUNCTIONS, HPO, PAPER)}
