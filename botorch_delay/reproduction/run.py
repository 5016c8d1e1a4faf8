"""Play every cell on all cores, keep what is done, and write table, figures and report."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from botorch_delay import validation
from botorch_delay.benchmarks.folders import (
    play_all,
    require_matplotlib,
    runs_folder,
    versions,
    write_whole,
)
from botorch_delay.elimination.rounds import round_lengths
from botorch_delay.exceptions import InputError
from botorch_delay.reproduction.cells import (
    DELTA,
    FUNCTIONS,
    METHODS,
    NOISE_STD,
    SDF_SHIFTED,
    XI,
    B,
    Cell,
    Setting,
    cells,
    law_for,
    play,
)
from botorch_delay.reproduction.figures import draw_figures
from botorch_delay.reproduction.verdicts import (
    COLUMNS,
    LEVEL,
    Curves,
    Verdict,
    judge,
    judge_setup,
    read_curves,
)

EVERY = 10  # steps between rows of the table
TABLE = "regret.csv"
REPORT = "report.md"

AUTHORS_SCRIPTS = (
    "delta is 0.01 and is not halved for the delay bound; here it is 0.1, and u_T takes delta / 2.",
    "psi is evaluated at the running t; Algorithm 1, and this reproduction, use psi_T.",
    "The last round is not cut, so that 1,571 steps are played for T = 1000; here the lengths sum "
    "to T.",
    "Ties for the largest deviation are broken at random; here the lowest index wins.",
)


@dataclass(frozen=True)
class Reproduction:
    """Where everything was written, and what was found.

    Attributes:
        table: tidy CSV of cumulative regrets.
        figures: PNG files, one per figure.
        report: Markdown.
        verdicts: on each sentence.
    """

    table: Path
    figures: list[Path]
    report: Path
    verdicts: list[Verdict]


def reproduce(
    folder: Path, setting: Setting, *, workers: int | None = None, progress: bool = True
) -> Reproduction:
    """Play, or go on where an earlier call was stopped, and write table, figures and report.

    Args:
        folder: where to write; made if it does not exist. Every run that is done is kept there.
        setting: the size of the experiment.
        workers: processes; as many as there are cores if None.
        progress: whether to show a progress bar.

    Raises:
        MissingExtraError: without Matplotlib.
        InputError: if the folder cannot be written, or holds another experiment.
        RunError: if a worker process dies.
    """
    workers = (os.cpu_count() or 1) if workers is None else workers
    workers = validation.whole(workers, "workers", 1)
    require_matplotlib()
    runs = _prepare(folder, setting)
    wanted = cells(setting)
    missing = [cell for cell in wanted if _read_run(runs, cell, setting) is None]
    play_all(
        {_file(runs, cell): (play, (setting, cell)) for cell in missing},
        lambda _, regret: json.dumps(regret),
        total=len(wanted),
        workers=workers,
        progress=progress,
    )
    table = folder / TABLE
    _write_table(table, runs, wanted, setting)
    steps, curves = read_curves(table)
    figures = draw_figures(folder, setting, steps, curves)
    verdicts = [*judge_setup(table), *judge(table)]
    report = folder / REPORT
    write_whole(report, _report(setting, curves, verdicts))
    return Reproduction(table, figures, report, verdicts)


def describe(result: Reproduction) -> str:
    """The verdicts in short, as the command line prints them."""
    width = max(len(verdict.word) for verdict in result.verdicts)
    lines = [f"{verdict.word.ljust(width)}  {verdict.sentence}" for verdict in result.verdicts]
    return "\n".join(["", *lines, "", f"report   {result.report}", f"table    {result.table}"])


def _prepare(folder: Path, setting: Setting) -> Path:
    """The folder of the runs, in a folder that holds this experiment or nothing."""
    described = json.dumps(asdict(setting), sort_keys=True)
    note = folder / "setting.json"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not note.exists():
            if any(folder.iterdir()):
                raise InputError(
                    f"{folder} is not empty and holds no reproduction; choose another."
                )
            write_whole(note, described)
        elif note.read_text() != described:
            raise InputError(
                f"{folder} holds a reproduction with another setting ({note.read_text()}); choose "
                "another folder, or delete it."
            )
    except OSError as error:
        raise InputError(f"Cannot write to {folder}: {error.strerror}.") from error
    return runs_folder(folder)


def _file(runs: Path, cell: Cell) -> Path:
    return runs / f"{cell.name}.json"


def _read_run(runs: Path, cell: Cell, setting: Setting) -> list[float] | None:
    """Cumulative regret of a run that is done; None of one that is not, or is damaged."""
    try:
        regret = json.loads(_file(runs, cell).read_text())
    except (OSError, ValueError):
        return None
    whole = isinstance(regret, list) and len(regret) == setting.horizon
    return regret if whole and all(isinstance(r, float) for r in regret) else None


def _write_table(path: Path, runs: Path, wanted: Iterable[Cell], setting: Setting) -> None:
    part = path.with_name(path.name + ".part")
    with part.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(COLUMNS)
        for cell in wanted:
            regret = _read_run(runs, cell, setting)
            assert regret is not None
            for step in range(EVERY, len(regret) + 1, EVERY):
                writer.writerow(
                    (
                        cell.function,
                        FUNCTIONS[cell.function],
                        setting.side**2,
                        NOISE_STD,
                        XI,
                        B,
                        cell.method,
                        cell.delay,
                        cell.repeat,
                        step,
                        f"{regret[step - 1]:.6f}",
                    )
                )
    part.replace(path)


def _report(setting: Setting, curves: Curves, verdicts: list[Verdict]) -> str:
    paper = Setting()
    drawn = "drawn anew in every repeat" if setting.redraw else "one of each, as in the paper"
    same = "the paper's" if setting == paper else "not the paper's"
    lines = [
        "# The paper's experiments, reproduced",
        "",
        f"Setting ({same}): f1 and f2 by the recipe of section 6 ({drawn}), {setting.side**2:,} "
        f"points, noise {NOISE_STD}, T = {setting.horizon}, {setting.repeats} repeats, Poisson "
        f"delays with means {', '.join(map(str, setting.delays))}; every method sees the same "
        "noise and delays in a repeat. xi = 9, b = 1, beta = 6, delta = "
        f"{DELTA}. {versions()}.",
        "",
        "## Final cumulative regret",
        "",
        "Mean and half a standard deviation.",
        "",
        *_regret_table(setting, curves),
        "",
        f"{SDF_SHIFTED}: all values are counted from the worst one, which is then 0 as in Verma et "
        "al.; otherwise values are as they are, and missing ones count as the worst.",
        "",
        "## Does it hold?",
        "",
        f"Intervals are paired t intervals at level {LEVEL:.0%}.",
        "",
        "| sentence | criterion | measured | verdict |",
        "|---|---|---|---|",
        *(f"| {v.sentence} | {v.criterion} | {v.measured} | **{v.word}** |" for v in verdicts),
        "",
        "## The delay bound",
        "",
        "u_T(delta) with psi as printed (a minimum) and corrected (a maximum), and the rounds that "
        "follow.",
        "",
        "| mean delay | psi | u_T | round lengths |",
        "|---|---|---|---|",
        *_bound_rows(setting),
        "",
        "## Known differences of the authors' scripts",
        "",
        *(f"* {difference}" for difference in AUTHORS_SCRIPTS),
        "",
        "## Figures",
        "",
        *(f"![Figure {number}](figure{number}.png)" for number in range(1, 6)),
        "",
    ]
    return "\n".join(lines)


def _regret_table(setting: Setting, curves: Curves) -> list[str]:
    columns = [(function, delay) for function in FUNCTIONS for delay in setting.delays]
    lines = [
        "| method | " + " | ".join(f"{f}, delay {delay}" for f, delay in columns) + " |",
        "|---|" + "---|" * len(columns),
    ]
    for method in METHODS:
        row = []
        for function, delay in columns:
            final = curves[function, method, delay][:, -1]
            half = 0.5 * np.std(final, ddof=1) if len(final) > 1 else 0.0
            row.append(f"{final.mean():.0f} +- {half:.0f}")
        lines.append(f"| {method} | " + " | ".join(row) + " |")
    return lines


def _bound_rows(setting: Setting) -> list[str]:
    rows = []
    for delay in setting.delays[1:]:
        for printed in (True, False):
            bound = law_for(delay, printed=printed).upper_bound(setting.horizon, DELTA)
            _, lengths = round_lengths(setting.horizon, bound)
            form = "as printed" if printed else "corrected"
            rows.append(f"| {delay} | {form} | {bound:.1f} | {', '.join(map(str, lengths))} |")
    return rows
