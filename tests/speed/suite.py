"""The cases, and what runs them: Markdown and CSV tables, brought up to date after each case."""

from __future__ import annotations

import csv
import os
import platform
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from botorch_delay import validation
from botorch_delay.exceptions import InputError
from speed.bounds import elimination
from speed.boxes import against_optimize_acqf
from speed.cuda import cuda
from speed.designs import against_botorch, against_plain
from speed.engines import optuna_trials
from speed.loops import index_method, long_horizon, ready_ask
from speed.rows import COLUMNS, Machine, Row, csv_row, table
from speed.updates import answers

TABLE = "speed.csv"
REPORT = "speed.md"


@dataclass(frozen=True)
class Case:
    """One piece of work and its peers.

    Attributes:
        measure: takes the sizes by name, returns the rows.
        full: the sizes at which targets are judged.
        quick: small sizes.
    """

    measure: Callable[..., list[Row]]
    full: Mapping[str, int]
    quick: Mapping[str, int]


CASES: dict[str, Case] = {
    "design-20k": Case(
        against_botorch,
        {"n_candidates": 20_000, "n_picks": 300, "every": 10, "repeats": 3},
        {"n_candidates": 2000, "n_picks": 40, "every": 10, "repeats": 3},
    ),
    "design-1m": Case(
        against_plain,
        {"n_candidates": 1_000_000, "n_picks": 500, "repeats": 3},
        {"n_candidates": 20_000, "n_picks": 60, "repeats": 1},
    ),
    "design-box": Case(
        against_optimize_acqf,
        {"n_picks": 200, "every": 10, "repeats": 3},
        {"n_picks": 30, "every": 10, "repeats": 1},
    ),
    "horizon-100k": Case(
        long_horizon,
        {"side": 50, "horizon": 100_000, "delay": 50, "checked": 1000, "repeats": 2},
        {"side": 20, "horizon": 2000, "delay": 50, "checked": 200, "repeats": 1},
    ),
    "answers": Case(
        answers,
        {"answered": 2000, "pending": 50, "updates": 15, "told": 2000},
        {"answered": 300, "pending": 10, "updates": 5, "told": 100},
    ),
    "index": Case(
        index_method,
        {"side": 50, "answered": 1000, "steps": 15},
        {"side": 20, "answered": 100, "steps": 5},
    ),
    "elimination": Case(
        elimination,
        {"n_candidates": 1_000_000, "answered": 500, "repeats": 3},
        {"n_candidates": 20_000, "answered": 100, "repeats": 3},
    ),
    "ask": Case(
        ready_ask,
        {"side": 50, "steps": 2000, "delay": 50},
        {"side": 20, "steps": 300, "delay": 50},
    ),
    "optuna": Case(
        optuna_trials,
        {"finished": 500, "steps": 40, "running": 3},
        {"finished": 50, "steps": 10, "running": 3},
    ),
    "cuda": Case(
        cuda,
        {
            "n_candidates": 1_000_000,
            "n_middle": 20_000,
            "n_small": 2500,
            "n_picks": 1000,
            "answered": 500,
            "steps": 30,
            "repeats": 3,
        },
        {
            "n_candidates": 20_000,
            "n_middle": 5000,
            "n_small": 500,
            "n_picks": 100,
            "answered": 50,
            "steps": 5,
            "repeats": 3,
        },
    ),
}


@dataclass(frozen=True)
class SpeedReport:
    """Where everything was written, and what was found.

    Attributes:
        table: CSV, one row per measured quantity.
        report: the same in Markdown.
        text: what the report says.
        correct: whether every result that was compared with its peer's is right.
    """

    table: Path
    report: Path
    text: str
    correct: bool


def measure_speed(
    folder: Path,
    *,
    quick: bool = False,
    cases: Sequence[str] | None = None,
    threads: int | None = None,
    progress: Callable[[str], None] | None = None,
) -> SpeedReport:
    """Run cases one after the other; results are written after each case.

    Args:
        folder: where to write; made if it does not exist. A table of an earlier run is replaced.
        quick: small sizes, for which nothing is judged.
        cases: names of :data:`CASES`; all if None.
        threads: of torch, for ours and the peers alike; torch's own choice if None.
        progress: takes a line about each case as it begins.

    Raises:
        InputError: if a case is unknown, or the folder cannot be written.
        RunError: if a case fails in a process of its own.
    """
    names = _known(cases)
    if threads is not None:
        threads = validation.whole(threads, "threads", 1)
    _prepare(folder)
    found: list[dict[str, Any]] = []
    right = True
    with _threads(threads):
        machine = this_machine()
        for name in names:
            if progress is not None:
                progress(name)
            case = CASES[name]
            sizes = case.quick if quick else case.full
            size = ", ".join(f"{what.replace('_', ' ')} {n:,}" for what, n in sizes.items())
            for row in case.measure(**sizes):
                found.append(csv_row(name, size, row, machine, judged=not quick))
                right &= row.correct is not False
                if progress is not None and row.ours is None:
                    progress(f"{name}: {row.work}")
            text = table(found, machine, judged=not quick)
            _write(folder, found, text)
    return SpeedReport(folder / TABLE, folder / REPORT, text, right)


def this_machine() -> Machine:
    """The machine and the versions, now."""
    name = torch.cuda.get_device_name() if torch.cuda.is_available() else ""
    return Machine(
        date=datetime.now(UTC).strftime("%Y-%m-%dT%H:%MZ"),
        platform=f"{platform.system()} {platform.machine()}",
        cores=os.cpu_count() or 1,
        threads=torch.get_num_threads(),
        device=f"{name}, CUDA {torch.version.cuda}" if name else "",
        python=platform.python_version(),
        torch=torch.__version__,
        botorch=version("botorch"),
        gpytorch=version("gpytorch"),
    )


def _known(cases: Sequence[str] | None) -> list[str]:
    """The cases to run, each once."""
    wanted = list(CASES) if cases is None else list(dict.fromkeys(cases))
    unknown = [name for name in wanted if name not in CASES]
    if unknown:
        raise InputError(
            f"There is no case {', '.join(map(repr, unknown))}; there are {', '.join(CASES)}."
        )
    return wanted


def _prepare(folder: Path) -> None:
    """Find out before any work whether the folder can be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
        for name in (TABLE, REPORT):
            if (folder / name).is_dir():
                raise InputError(f"Cannot write to {folder / name}: it is a folder.")
    except OSError as error:
        raise InputError(f"Cannot write to {folder}: {error.strerror}.") from error


@contextmanager
def _threads(threads: int | None) -> Iterator[None]:
    before = torch.get_num_threads()
    if threads is not None:
        torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _write(folder: Path, rows: Sequence[Mapping[str, Any]], text: str) -> None:
    """Both files, each in full or not at all."""
    part = folder / f"{TABLE}.part"
    with part.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)
    part.replace(folder / TABLE)
    part = folder / f"{REPORT}.part"
    part.write_text(text, encoding="utf-8")
    part.replace(folder / REPORT)
