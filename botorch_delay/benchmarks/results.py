"""What was measured, and methods side by side: paired differences and their intervals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
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
# The columns that hold what is compared.
MEASURES = {
    "cumulative regret": "cumulative_regret",
    "regret of the recommended point": "recommended_regret",
}
# What is summed up over cells: the mean regret of all asks has the ratio of the cumulative one.
SUMMARIES = {
    "recommended point": "recommended_regret",
    "best point evaluated": "best_regret",
    "mean of all asks": "cumulative_regret",
}
LEAST = 1e-6  # of the largest mean regret in a cell: a smaller one counts as that much

Array = NDArray[np.float64]
# By problem and delay: a table with a row per seed and a column per method.
Finals = Mapping[tuple[str, str], "pd.DataFrame"]


@dataclass(frozen=True, eq=False)
class Results:
    """What was measured in the runs of a folder; as text, methods side by side.

    Attributes:
        folder: that holds the runs; their tables as ``cells.csv`` and ``curves.csv``; a report in
            Markdown as ``report.md``; and figures as PNG files in ``figures``.
        runs: a row per run, in the order of the registries: problem, delay, method and seed; what
            regret came to; shares, times and counts.
        curves: a row per recommendation: problem, delay, method and seed; asks and time before
            it; cumulative regret of these asks, and regret of the recommended point.
        made: when and with which versions of packages the runs were made.
    """

    folder: Path
    runs: pd.DataFrame = field(repr=False)
    curves: pd.DataFrame = field(repr=False)
    made: list[str] = field(repr=False)

    @property
    def report(self) -> Path:
        """The report."""
        return self.folder / "report.md"

    def __str__(self) -> str:
        return "\n".join(["", *wins(self.runs), "", f"{len(self.runs):,} runs", str(self.report)])


def read_results(folder: Path) -> Results:
    """Measure every whole run in a folder, and write the tables; InputError if none is done."""
    import pandas as pd

    found = [read_run(path) for path in sorted((folder / "runs").glob("*.json"))]
    runs = sorted((run for run in found if run is not None), key=lambda run: _rank(run["cell"]))
    if not runs:
        raise InputError(f"{folder} holds no run that is done.")
    rows, curves = [], []
    for run in runs:
        cell = Cell(*run["cell"])._asdict()
        asks, shown = pd.DataFrame(run["asks"]), pd.DataFrame(run["recommendations"])
        cumulative = asks["regret"].cumsum().to_numpy()
        shown = shown.drop(columns="point").rename(columns={"regret": "recommended_regret"})
        curve = shown.assign(**cell, cumulative_regret=cumulative[shown["asks"] - 1])
        curves.append(curve[[*cell, "asks", "time", "cumulative_regret", "recommended_regret"]])
        best = {"best_regret": asks["regret"].min()}
        rows.append(curves[-1].iloc[-1].to_dict() | best | _costs(asks))
    results = Results(
        folder,
        pd.DataFrame(rows),
        pd.concat(curves, ignore_index=True),
        sorted({run["made"] for run in runs}),
    )
    results.runs.to_csv(folder / "cells.csv", index=False)
    results.curves.to_csv(folder / "curves.csv", index=False)
    return results


def _rank(cell: list[Any]) -> list[Any]:
    """By the order of the registries; what is not registered comes last."""
    registries: tuple[Mapping[str, object], ...] = (PROBLEMS, DELAYS, METHODS)
    return [*map(place, cell[:3], registries), *cell]


def place(name: str, registry: Mapping[str, object]) -> int:
    """The place of a name in a registry; the end if it is not there."""
    return [*registry, name].index(name)


def _costs(asks: pd.DataFrame) -> dict[str, Any]:
    tells = asks["seconds_tell"].astype(float)
    return {
        "repeat_share": asks["repeat"].mean(),
        "seconds_per_ask": asks["seconds_ask"].mean(),
        "seconds_per_tell": tells.mean() if tells.count() else 0.0,
        **{end: sum(asks["state"] == end) for end in ("answered", "failed", "lost", "pending")},
    }


def final_regrets(runs: pd.DataFrame, measure: str) -> Finals:
    """What every run came to in the end."""
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
        """The interval in brackets; nothing where one seed decides nothing."""
        if self.seeds < 2:
            return ""
        return f" [{number(self.low, sign=True)}, {number(self.high, sign=True)}]"

    @property
    def below(self) -> bool | None:
        """Whether it is below 0; None if that is not decided."""
        return True if self.high < 0.0 else False if self.low > 0.0 else None


def bootstrap(values: Array, divided_by: Array | None = None) -> Estimate:
    """A mean over seeds, or the ratio of two, with its percentile bootstrap interval.

    With few seeds such an interval is too narrow; a single one decides nothing.
    """
    n = len(values)
    base = np.ones(n) if divided_by is None else divided_by
    mean = float(values.mean() / base.mean())
    if n < 2:
        return Estimate(mean, -np.inf, np.inf, n)
    rows = np.random.default_rng(0).integers(n, size=(RESAMPLES, n))
    means = values[rows].mean(axis=1) / base[rows].mean(axis=1)
    low, high = np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Estimate(mean, float(low), float(high), n)


def paired(final: pd.DataFrame, *methods: str) -> tuple[Array, ...]:
    """Regrets of methods on the seeds that all of them have; empty where there are none."""
    common = final.reindex(columns=list(methods)).dropna()
    return tuple(common[method].to_numpy() for method in methods)


def compare(final: pd.DataFrame, method: str) -> Estimate | None:
    """A method less the reference on common seeds; None if they have none."""
    if method == REFERENCE:
        return None
    ours, theirs = paired(final, method, REFERENCE)
    return bootstrap(ours - theirs) if len(ours) else None


def wins(runs: pd.DataFrame) -> list[str]:
    """In how many cells of two pairs or more the reference has less regret, as a table."""
    finals = [final_regrets(runs, measure) for measure in MEASURES]
    rows = []
    for method in methods_of(runs):
        row: list[object] = []
        for final in finals:
            found = [compare(table, method) for table in final.values() if method in table]
            below = Counter(one.below for one in found if one and one.seeds > 1)
            # What is less for the method is more for the reference.
            row += [below[word] if below else "" for word in (False, True, None)]
        if any(row):
            rows.append([method, *row])
    header = [text for measure in MEASURES for text in (f"{measure}: less", "more", "not decided")]
    return markdown_table(["against", *header], rows)


def ratios(runs: pd.DataFrame) -> list[str]:
    """By kind of problem and method: geometric means over cells of the reference's share."""
    rows = []
    for kind, here in runs.groupby(runs["problem"].map(kind_of), sort=False):
        for method in methods_of(here):
            found = [_pairs(here, column, method) for column in SUMMARIES.values()]
            if found[0]:
                means = map(geometric_mean, found)
                shown = (f"{number(e.mean)} [{number(e.low)}, {number(e.high)}]" for e in means)
                rows.append([kind, method, len(found[0]), *shown])
    return markdown_table(["problems", "against", "cells", *SUMMARIES], rows)


def lost_cells(runs: pd.DataFrame) -> list[str]:
    """A row per method and measure: the cells in which the reference decidedly has more regret."""
    rows = []
    for method in methods_of(runs):
        for label, column in SUMMARIES.items():
            pairs = _pairs(runs, column, method)
            lost = [
                f"{' '.join(cell)} {number(float(_ratio(ours.mean(), theirs.mean(), least)))}"
                for cell, (ours, theirs, least) in pairs.items()
                if bootstrap(theirs - ours).below
            ]
            if lost:
                rows.append([method, label, f"{len(lost)} of {len(pairs)}", ", ".join(lost)])
    return markdown_table(["against", "measure", "cells", "which"], rows) if rows else ["None."]


def kind_of(problem: str) -> str:
    """The words after the last dash where they say how a function is asked; else the family."""
    kind = problem.rpartition("-")[2]
    return kind if kind in ("exact", "box", "arms") else problem.partition("-")[0]


# By problem and delay: regrets of the reference and of another method on common seeds, and the
# smallest mean that counts.
Pairs = Mapping[tuple[str, str], tuple[Array, Array, float]]


def _pairs(runs: pd.DataFrame, column: str, method: str) -> Pairs:
    found = {}
    if method != REFERENCE:
        for cell, part in runs.groupby(["problem", "delay"], sort=False):
            final = part.pivot(index="seed", columns="method", values=column)
            ours, theirs = paired(final, REFERENCE, method)
            if len(ours):
                found[cell] = ours, theirs, LEAST * float(final.mean().max())
    return found


def _ratio(ours: Array | float, theirs: Array | float, least: float) -> Array:
    """Of two means, which are at least so much; 1 where both are 0."""
    tiny = max(least, np.finfo(float).tiny)
    return np.maximum(ours, tiny) / np.maximum(theirs, tiny)


def geometric_mean(pairs: Pairs) -> Estimate:
    """Over cells, of ratios of means, with an interval from seeds drawn anew in each cell."""
    rng = np.random.default_rng(0)
    logs, drawn, fewest = [], [], min(len(ours) for ours, *_ in pairs.values())
    for ours, theirs, least in pairs.values():
        rows = rng.integers(len(ours), size=(RESAMPLES, len(ours)))
        logs.append(np.log(_ratio(ours.mean(), theirs.mean(), least)))
        drawn.append(np.log(_ratio(ours[rows].mean(axis=1), theirs[rows].mean(axis=1), least)))
    low, high = np.quantile(np.mean(drawn, axis=0), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    mean, low, high = np.exp([np.mean(logs), low, high]).tolist()
    return Estimate(mean, low, high, fewest)


def methods_of(runs: pd.DataFrame) -> list[str]:
    """Methods in the order of the registry, then those it does not know."""
    return sorted(runs["method"].unique(), key=lambda name: (place(name, METHODS), name))


def markdown_table(header: Iterable[object], rows: Iterable[Iterable[object]]) -> list[str]:
    """The lines of a table."""
    cells = [[str(cell) for cell in row] for row in (header, *rows)]
    lines = ["| " + " | ".join(row) + " |" for row in cells]
    return [lines[0], "|" + "---|" * len(cells[0]), *lines[1:]]


def number(value: float, *, sign: bool = False) -> str:
    """Three digits, as people write them."""
    if value == 0.0:
        return "0"
    digits = max(2 - int(np.floor(np.log10(abs(value)))), 0)
    style = ".1e" if digits > 5 else f",.{digits}f"
    return f"{value:{'+' if sign else ''}{style}}"
