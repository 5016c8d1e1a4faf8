"""Measurements of runs, and comparisons: paired differences, ratios and their intervals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from botorch_delay.benchmarks.clocks import DELAYS
from botorch_delay.benchmarks.functions import PROBLEMS
from botorch_delay.benchmarks.methods import METHODS
from botorch_delay.benchmarks.runs import read_run
from botorch_delay.benchmarks.suites import Cell
from botorch_delay.exceptions import InputError

if TYPE_CHECKING:
    import pandas as pd

REFERENCE = "bpe-delay"
LEVEL = 0.90
RESAMPLES = 10_000
# The columns that are compared.
MEASURES = {
    "cumulative regret": "cumulative_regret",
    "regret of the recommended point": "recommended_regret",
    "regret of the best point evaluated": "best_regret",
}
SMALLEST = 1e-6  # smallest mean regret in a ratio, as a share of the largest one in the cell

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Results:
    """Measurements of the runs in a folder; as text, methods side by side.

    Attributes:
        folder: with the runs, their table ``cells.csv``, and the report ``report.md``.
        runs: a row per run, in the order of the registries: problem, delay, method and seed; the
            measures; the share of asks that repeat a pending point; seconds per ask and tell.
        made: dates and versions of packages with which the runs were made.
    """

    folder: Path
    runs: pd.DataFrame = field(repr=False)
    made: list[str] = field(repr=False)

    @property
    def report(self) -> Path:
        """The file of the report."""
        return self.folder / "report.md"

    def __str__(self) -> str:
        lines = [*comparison(self.runs), "", f"{len(self.runs):,} runs", str(self.report)]
        return "\n".join(["", *lines])


def read_results(folder: Path) -> Results:
    """Measure the complete runs in a folder, and write the table; InputError if there is none."""
    import pandas as pd

    found = [read_run(path) for path in sorted((folder / "runs").glob("*.json"))]
    runs = sorted((run for run in found if run is not None), key=lambda run: _rank(run["cell"]))
    if not runs:
        raise InputError(f"{folder} holds no run that is done.")
    rows = []
    for run in runs:
        asks = pd.DataFrame(run["asks"])
        costs = asks[["repeat", "seconds_ask", "seconds_tell"]].astype(float).mean()
        regrets = {
            "cumulative_regret": asks["regret"].sum(),
            "recommended_regret": run["recommended"]["regret"],
            "best_regret": asks["regret"].min(),
        }
        rows.append(Cell(*run["cell"])._asdict() | regrets | costs.to_dict())
    results = Results(folder, pd.DataFrame(rows), sorted({run["made"] for run in runs}))
    results.runs.to_csv(folder / "cells.csv", index=False)
    return results


def _rank(cell: list[Any]) -> list[Any]:
    """Sorts by the order of the registries, with unknown names last."""
    registries: tuple[Mapping[str, object], ...] = (PROBLEMS, DELAYS, METHODS)
    return [*map(_place, cell[:3], registries), *cell]


def _place(name: str, registry: Mapping[str, object]) -> int:
    return [*registry, name].index(name)


def methods_of(runs: pd.DataFrame) -> list[str]:
    """Methods in the order of the registry, then unknown ones."""
    return sorted(runs["method"].unique(), key=lambda name: (_place(name, METHODS), name))


def final_regrets(runs: pd.DataFrame, measure: str) -> dict[tuple[str, str], pd.DataFrame]:
    """A measure by problem and delay: a row per seed and a column per method."""
    return {
        key: part.pivot(index="seed", columns="method", values=MEASURES[measure])
        for key, part in runs.groupby(["problem", "delay"], sort=False)
    }


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds and its interval at level 90 %."""

    mean: float
    low: float
    high: float
    seeds: int

    def __str__(self) -> str:
        return f"{number(self.mean)}{self.interval}"

    @property
    def interval(self) -> str:
        """The interval in brackets; empty with fewer than two seeds."""
        if self.seeds < 2:
            return ""
        return f" [{number(self.low, sign=True)}, {number(self.high, sign=True)}]"

    @property
    def below(self) -> bool | None:
        """Whether it is below 0; None if undecided."""
        return True if self.high < 0.0 else False if self.low > 0.0 else None


def bootstrap(values: Array, divided_by: Array | None = None) -> Estimate:
    """A mean over seeds, or the ratio of two, with its percentile bootstrap interval."""
    n = len(values)
    base = np.ones(n) if divided_by is None else divided_by
    mean = float(values.mean() / base.mean())
    if n < 2:
        return Estimate(mean, -np.inf, np.inf, n)
    rows = np.random.default_rng(0).integers(n, size=(RESAMPLES, n))
    return Estimate(mean, *_ends(values[rows].mean(axis=1) / base[rows].mean(axis=1)), n)


def _ends(drawn: Array) -> tuple[float, float]:
    low, high = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2]).tolist()
    return low, high


def paired(final: pd.DataFrame, *methods: str) -> tuple[Array, ...]:
    """Regrets of methods on their common seeds."""
    common = final.reindex(columns=list(methods)).dropna()
    return tuple(common[method].to_numpy() for method in methods)


def compare(final: pd.DataFrame, method: str) -> Estimate | None:
    """A method minus the reference on common seeds; None if there are none."""
    ours, theirs = paired(final, method, REFERENCE)
    return bootstrap(ours - theirs) if len(ours) and method != REFERENCE else None


def comparison(runs: pd.DataFrame) -> list[str]:
    """A table of the reference against each method, by kind of problem.

    It has the number of cells with less regret, more, or neither decided, and the geometric mean
    over cells of the ratio of its regret to the other's.
    """
    rows = []
    for kind, here in runs.groupby(runs["problem"].map(_kind_of), sort=False):
        finals = [final_regrets(here, measure).values() for measure in MEASURES]
        for method in methods_of(here):
            common = [[final for final in found if compare(final, method)] for found in finals]
            if common[0]:
                both = (text(cells, method) for cells in common for text in (_counts, _ratio))
                rows.append([kind, method, *both])
    titles = (word for measure in MEASURES for word in (f"{measure}: less / more / open", "ratio"))
    return markdown_table(["problems", "against", *titles], rows)


def _kind_of(problem: str) -> str:
    """The last word of the name if it says how a function is asked, else the family."""
    kind = problem.rpartition("-")[2]
    return kind if kind in ("exact", "box", "arms") else problem.partition("-")[0]


def _counts(cells: Sequence[pd.DataFrame], method: str) -> str:
    pairs = (paired(final, REFERENCE, method) for final in cells)
    below = Counter(bootstrap(ours - theirs).below for ours, theirs in pairs)
    return " / ".join(str(below[word]) for word in (True, False, None))


def _ratio(cells: Sequence[pd.DataFrame], method: str) -> str:
    """The geometric mean over cells of ratios of means, with a bootstrap interval over seeds."""
    rng, logs = np.random.default_rng(0), np.zeros(1 + RESAMPLES)
    for final in cells:
        least = max(SMALLEST * float(final.mean().max()), np.finfo(float).tiny)
        ours, theirs = paired(final, REFERENCE, method)
        n = len(ours)
        rows = np.vstack([np.arange(n), rng.integers(n, size=(RESAMPLES, n))])
        means = (np.maximum(values[rows].mean(axis=1), least) for values in (ours, theirs))
        logs += np.subtract(*map(np.log, means)) / len(cells)
    mean, low, high = (number(float(np.exp(end))) for end in (logs[0], *_ends(logs[1:])))
    return f"{mean} [{low}, {high}]"


def markdown_table(header: Iterable[object], rows: Iterable[Iterable[object]]) -> list[str]:
    """The lines of a table."""
    cells = [[str(cell) for cell in row] for row in (header, *rows)]
    lines = ["| " + " | ".join(row) + " |" for row in cells]
    return [lines[0], "|" + "---|" * len(cells[0]), *lines[1:]]


def number(value: float, *, sign: bool = False) -> str:
    """A number with three significant digits."""
    if value == 0.0 or not np.isfinite(value):
        return f"{value:.0f}"
    digits = max(2 - int(np.floor(np.log10(abs(value)))), 0)
    style = ".1e" if digits > 5 else f",.{digits}f"
    return f"{value:{'+' if sign else ''}{style}}"
