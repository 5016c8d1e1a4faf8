"""A run as a CSV file of its own, and what is measured from it.

Columns of a run's file: an ``ask`` row for every ask, and a ``recommend`` row for every
recommendation. Numbers are written in full, so that everything can be computed from the files.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from botorch_delay.benchmarks.folders import write_whole
from botorch_delay.benchmarks.play import Record
from botorch_delay.benchmarks.players import OURS, OWN
from botorch_delay.benchmarks.registries import DELAYS, METHODS, PROBLEMS
from botorch_delay.benchmarks.suites import Cell
from botorch_delay.exceptions import InputError

COLUMNS = (
    "event",
    "ask",
    "time",
    "point",
    "f",
    "regret",
    "value",
    "repeat",
    "state",
    "ended",
    "seconds_ask",
    "seconds_tell",
    "by",
    "answers",
    "seconds_recommend",
)
END = "end"
RUNS = "runs"
CELLS = "cells.csv"
CURVES = "curves.csv"

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Result:
    """What is measured in a run.

    Attributes:
        cell: which run.
        asks: made before each recommendation of the method's own.
        time: when each of them was made.
        cumulative: cumulative regret of those asks.
        recommended: regret of the recommended point, by "own" and, where it is another one,
            "ours".
        repeats: share of the asks that repeat a pending point.
        seconds_ask: mean time of an ask.
        seconds_tell: mean time of a tell; 0 if there was none.
        counts: how many asks ended in each state.
    """

    cell: Cell
    asks: Array
    time: Array
    cumulative: Array
    recommended: Mapping[str, Array]
    repeats: float
    seconds_ask: float
    seconds_tell: float
    counts: Mapping[str, int]

    @property
    def players(self) -> dict[str, Array]:
        """Regrets of recommendations by the name under which they are compared."""
        method = self.cell.method
        named = {method: self.recommended[OWN]}
        if OURS in self.recommended:
            named[f"{method}, our recommendation"] = self.recommended[OURS]
        return named


def as_csv(record: Record) -> str:
    """A run as the text of its file."""
    stream = io.StringIO()
    writer = csv.DictWriter(stream, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for ask in record.asks:
        writer.writerow(
            {
                "event": "ask",
                "ask": ask.number,
                "time": ask.time,
                "point": ask.point,
                "f": ask.f,
                "regret": ask.regret,
                "value": ask.value,
                "repeat": int(ask.repeat),
                "state": ask.state,
                "ended": ask.ended,
                "seconds_ask": f"{ask.seconds_ask:.6f}",
                "seconds_tell": "" if ask.seconds_tell is None else f"{ask.seconds_tell:.6f}",
            }
        )
    for advice in record.advice:
        writer.writerow(
            {
                "event": "recommend",
                "ask": advice.asks,
                "time": advice.time,
                "point": advice.point,
                "f": advice.f,
                "regret": advice.regret,
                "by": advice.by,
                "answers": advice.answers,
                "seconds_recommend": f"{advice.seconds:.6f}",
            }
        )
    writer.writerow({"event": END})
    return stream.getvalue()


def file_of(runs: Path, cell: Cell) -> Path:
    """Where a run is kept."""
    return runs / f"{cell.name}.csv"


def is_done(path: Path, steps: int) -> bool:
    """Whether a file holds a whole run of so many asks."""
    try:
        rows = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError):
        return False
    whole = len(rows) > 2 and rows[0] == ",".join(COLUMNS) and rows[-1].startswith(f"{END},")
    return whole and sum(row.startswith("ask,") for row in rows) == steps


def read_result(path: Path) -> Result:
    """Measure a run from its file.

    Raises:
        InputError: if it is not a run's file.
    """
    try:
        with path.open(newline="") as stream:
            rows = list(csv.DictReader(stream))
        return _measure(Cell.of(path.stem), rows)
    except (OSError, KeyError, TypeError, ValueError, IndexError) as error:
        raise InputError(f"{path} is not the file of a run: {error!r}.") from error


def _measure(cell: Cell, rows: list[dict[str, str]]) -> Result:
    asks = [row for row in rows if row["event"] == "ask"]
    advice = [row for row in rows if row["event"] == "recommend"]
    regret = np.cumsum([float(row["regret"]) for row in asks])
    own = [row for row in advice if row["by"] == OWN]
    places = np.array([int(row["ask"]) for row in own])
    recommended = {OWN: np.array([float(row["regret"]) for row in own])}
    ours = {(row["ask"], row["time"]): float(row["regret"]) for row in advice if row["by"] == OURS}
    if ours:  # before the first answer there is only one
        recommended[OURS] = np.array(
            [ours.get((row["ask"], row["time"]), float(row["regret"])) for row in own]
        )
    tells = [float(row["seconds_tell"]) for row in asks if row["seconds_tell"]]
    states = [row["state"] for row in asks]
    return Result(
        cell=cell,
        asks=places.astype(np.float64),
        time=np.array([float(row["time"]) for row in own]),
        cumulative=regret[places - 1],
        recommended=recommended,
        repeats=float(np.mean([int(row["repeat"]) for row in asks])),
        seconds_ask=float(np.mean([float(row["seconds_ask"]) for row in asks])),
        seconds_tell=float(np.mean(tells)) if tells else 0.0,
        counts={state: states.count(state) for state in sorted(set(states))},
    )


def read_results(runs: Path, steps: int) -> list[Result]:
    """Every whole run in a folder of runs, in the order of the registries."""
    found = [Cell.of(path.stem) for path in runs.glob("*.csv") if is_done(path, steps)]

    def place(cell: Cell) -> tuple[object, ...]:
        names = (
            (PROBLEMS, cell.problem),
            (DELAYS, cell.delay),
            (METHODS, cell.method),
        )
        ranks = [list(known).index(n) if n in known else len(known) for known, n in names]
        return (*ranks, *cell.name.split("__")[:3], cell.seed)

    found.sort(key=place)
    return [read_result(file_of(runs, cell)) for cell in found]


def write_tables(folder: Path, results: list[Result]) -> tuple[Path, Path]:
    """Tidy tables: one row per run, and one row per recommendation."""
    cells, curves = folder / CELLS, folder / CURVES
    _write(
        cells,
        (
            "problem",
            "delay",
            "method",
            "seed",
            "asks",
            "end_time",
            "cumulative_regret",
            "recommended_regret",
            "recommended_regret_ours",
            "repeat_share",
            "seconds_per_ask",
            "seconds_per_tell",
            "answered",
            "failed",
            "lost",
            "pending",
        ),
        [
            (
                *_key(r),
                int(r.asks[-1]),
                float(r.time[-1]),
                float(r.cumulative[-1]),
                float(r.recommended[OWN][-1]),
                float(r.recommended[OURS][-1]) if OURS in r.recommended else "",
                r.repeats,
                r.seconds_ask,
                r.seconds_tell,
                *(r.counts.get(state, 0) for state in ("answered", "failed", "lost", "pending")),
            )
            for r in results
        ],
    )
    _write(
        curves,
        (
            "problem",
            "delay",
            "method",
            "seed",
            "ask",
            "time",
            "cumulative_regret",
            "recommended_regret",
            "recommended_regret_ours",
        ),
        [
            (
                *_key(r),
                int(r.asks[i]),
                float(r.time[i]),
                float(r.cumulative[i]),
                float(r.recommended[OWN][i]),
                float(r.recommended[OURS][i]) if OURS in r.recommended else "",
            )
            for r in results
            for i in range(len(r.asks))
        ],
    )
    return cells, curves


def _key(result: Result) -> tuple[str, str, str, int]:
    cell = result.cell
    return cell.problem, cell.delay, cell.method, cell.seed


def _write(path: Path, header: tuple[str, ...], rows: list[tuple[object, ...]]) -> None:
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    write_whole(path, stream.getvalue())
