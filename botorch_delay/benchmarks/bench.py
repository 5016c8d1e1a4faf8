"""Compare the methods of a suite: measurements, paired differences, ratios, and a report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from botorch_delay.benchmarks.functions import PROBLEMS, SHIPPED, split_of
from botorch_delay.benchmarks.methods import METHODS
from botorch_delay.benchmarks.simulator import DELAYS
from botorch_delay.benchmarks.suites import Cell, Suite, read_run, run_suite
from botorch_delay.exceptions import InputError

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Results", "bench"]

REFERENCE = "bpe-delay"
LEVEL = 0.90
RESAMPLES = 10_000
# What is compared: its name in reports, and its column in ``Results.runs``.
MEASURES = {
    "cumulative regret": "cumulative_regret",
    "regret of the recommended point": "recommended_regret",
    "regret of the best point evaluated": "best_regret",
}
SMALLEST = 1e-3  # ratios of regrets are clipped to the range from this to its reciprocal
ENOUGH_SEEDS = 5  # a cell with fewer common seeds counts as undecided

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Results:
    """Measurements of the runs in a folder; as text, methods side by side.

    Attributes:
        folder: the folder of the runs, their table ``cells.csv``, and the report ``report.md``.
        runs: a row per run, in the order of the registries: problem, delay, method and seed; the
            measures; the share of asks that repeat a pending point; seconds per ask and tell.
        made: dates and versions of packages with which the runs were made.
        missing: how many runs of the suite failed or lack a package; the report says why.
    """

    folder: Path
    runs: pd.DataFrame = field(repr=False)
    made: list[str] = field(repr=False)
    missing: int = 0

    @property
    def report(self) -> Path:
        """The file of the report."""
        return self.folder / "report.md"

    def __str__(self) -> str:
        counted = f"{len(self.runs):,} runs"
        if self.missing:
            counted += f"; {self.missing:,} of the suite are missing, the report says why"
        return "\n".join(["", *comparison(self.runs), "", counted, str(self.report)])


def bench(
    suite: Suite, folder: str | Path, *, workers: int | None = None, progress: bool = True
) -> Results:
    """Simulate a suite, or resume an earlier call, and write a table and a report.

    Each finished run has a file of its own; delete it to repeat the run. The report names runs that
    failed or lack a package, which the next call tries again. It covers all runs in the folder,
    also those of earlier calls with other problems, delays, methods or seeds, or copied there.

    Args:
        suite: the runs to simulate and compare.
        folder: where to write; made if it does not exist.
        workers: number of processes, 1 for this one alone; one per core if None.
        progress: whether to show a progress bar.

    Raises:
        MissingExtraError: without pandas, or if every run needs a package that is not installed.
        InputError: if no method can be used on any of the problems, the folder cannot be written
            or holds something else, all runs failed, or a registered object cannot be pickled.
        RunError: if a worker process dies; finished runs are kept.
    """
    folder = Path(folder)
    wanted, lacking = run_suite(suite, folder, workers=workers, progress=progress)
    results = read_results(folder)
    done = results.runs[[*Cell._fields]].itertuples(index=False, name=None)
    results = replace(results, missing=len(set(wanted) - set(done)))
    results.report.write_text("\n".join(_report(results, suite, lacking)))
    return results


def read_results(folder: Path) -> Results:
    """Measure the complete runs in a folder, and write the table; InputError if there is none."""
    import pandas as pd

    found = [read_run(path) for path in (folder / "runs").glob("*.json")]
    registries: tuple[Mapping[str, object], ...] = (PROBLEMS, DELAYS, METHODS)
    runs = sorted(
        (run for run in found if run is not None),
        key=lambda run: [*map(_place, run["cell"], registries), *run["cell"]],
    )
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


def _place(name: str, registry: Mapping[str, object]) -> int:
    """The place of a name in a registry; unknown ones come last."""
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
    """A method's regret minus the reference's on common seeds; None if there are none."""
    ours, theirs = paired(final, method, REFERENCE)
    return bootstrap(ours - theirs) if len(ours) and method != REFERENCE else None


def comparison(runs: pd.DataFrame) -> list[str]:
    """A table of the reference against each method, by kind of problem.

    For each measure: the numbers of cells where the reference has less regret, more, or neither is
    decided; and the ratio of its regret to the other's, as geometric mean over cells, and median.
    """
    if REFERENCE not in set(runs["method"]):
        return [f"No run of {REFERENCE} is here, to which the others could be compared."]
    rows = []
    for kind, here in runs.groupby(runs["problem"].map(_kind_of), sort=False):
        finals = [final_regrets(here, measure).values() for measure in MEASURES]
        for method in methods_of(here):
            row: list[str] = []
            for cells in finals:
                pairs = [(cell, found) for cell in cells if (found := compare(cell, method))]
                below = Counter(  # True where the reference has more
                    found.below if found.seeds >= ENOUGH_SEEDS else None for _, found in pairs
                )
                counts = " / ".join(str(below[word]) for word in (False, True, None))
                row += [counts, _ratio([cell for cell, _ in pairs], method)] if pairs else ["", ""]
            if any(row):
                rows.append([kind, method, *row])
    titles = (word for measure in MEASURES for word in (f"{measure}: less / more / open", "ratio"))
    return markdown_table(["problems", "against", *titles], rows)


def _kind_of(problem: str) -> str:
    """The last word of the name if it is "exact" or "box", else the first, the family."""
    kind = problem.rpartition("-")[2]
    return kind if kind in ("exact", "box") else problem.partition("-")[0]


def _ratio(cells: Sequence[pd.DataFrame], method: str) -> str:
    """The geometric mean over cells of ratios of means, with its interval, and the median cell.

    The interval is a bootstrap over seeds; all cells share these, so they are resampled together.
    """
    logs, fewest = [], 2
    for final in cells:
        ours, theirs = paired(final, REFERENCE, method)
        n, fewest = len(ours), min(fewest, len(ours))
        drawn = np.random.default_rng(0).integers(n, size=(RESAMPLES, n))  # the same for the same n
        rows = np.vstack([np.arange(n), drawn])
        means = np.stack([values[rows].mean(axis=1) for values in (ours, theirs)])
        least = np.maximum(SMALLEST * means.max(axis=0), np.finfo(float).tiny)
        logs.append(np.subtract(*np.log(np.maximum(means, least))))
    mean = np.mean(logs, axis=0)
    median = number(float(np.exp(np.median([log[0] for log in logs]))))
    center, low, high = (number(float(np.exp(end))) for end in (mean[0], *_ends(mean[1:])))
    interval = f" [{low}, {high}]" if fewest > 1 else ""
    return f"{center}{interval}, median {median}"


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


def _report(results: Results, suite: Suite, lacking: Sequence[str]) -> list[str]:
    """The lines of the report, in Markdown."""
    runs, missing, kinds = results.runs, results.missing, ""
    if any(name.endswith(("-exact", "-box")) and name in SHIPPED for name in runs["problem"]):
        kinds = " `-exact` boxes have no noise, `-box` ones noise of 5 % of the spread of values."
    done = f"{len(runs):,} runs"
    if missing:
        done += f"; **{missing:,} runs of the suite are missing**, what follows is from the others"
    lines = [
        f"# Benchmark: {suite.name}",
        "",
        f"{done}. {suite.steps} asks in each; seeds {runs['seed'].min()} to {runs['seed'].max()}.",
        "",
        *(f"* {line}" for line in results.made),
        *(f"* {words}" for words in lacking),
        "",
        "Within a seed every method sees the same random numbers for noise and delays. Brackets "
        f"hold the {LEVEL:.0%} bootstrap interval of the paired difference to `{REFERENCE}`: "
        f"**below 0 the method has less regret than `{REFERENCE}`, above 0 more**. With three "
        "seeds or so such intervals are too narrow; n is stated where some seeds are missing. "
        "Cumulative regret is charged when a point is asked. Methods of this library recommend as "
        "`recommend()` does: on boxes with noise mostly a point that was not tried. `botorch` "
        "recommends the asked point with the best mean of its own model, other libraries the best "
        "noisy answer, and with `-by-model` what this library's model recommends from the same "
        "asks. An oracle is told every answer at once.",
        "",
        f"## {REFERENCE} against the others",
        "",
        f"The number of cells (problem and delay) in which `{REFERENCE}` has less regret, more, or "
        f"neither is decided (open, as with fewer than {ENOUGH_SEEDS} seeds), and the geometric "
        "mean over cells of the ratio of its mean regret to the other's on common seeds, with a "
        f"{LEVEL:.0%} bootstrap interval over seeds, and the median cell: **below 1 it has less "
        f"regret**. A cell counts as a ratio of at least {SMALLEST:g}.{kinds}",
        "",
        *comparison(runs),
        "",
    ]
    for problem, here in runs.groupby("problem", sort=False):
        lines += [f"## {problem} ({split_of(problem)})", ""]
        for measure in MEASURES:
            lines += [*_regrets(here, measure), ""]
    return [*lines, "## Methods and what they cost", "", *_costs(runs), ""]


def _regrets(runs: pd.DataFrame, measure: str) -> list[str]:
    """A table of a measure on one problem: a row per method, a column per delay."""
    finals = {delay: final for (_, delay), final in final_regrets(runs, measure).items()}

    def regret(final: pd.DataFrame, method: str) -> str:
        if method not in final:
            return ""
        difference, seeds = compare(final, method), final[method].count()
        text = number(final[method].mean()) + (difference.interval if difference else "")
        return text + (f" (n = {seeds})" if seeds < final.count().max() else "")

    return markdown_table(
        [measure, *finals],
        ([name, *(regret(final, name) for final in finals.values())] for name in methods_of(runs)),
    )


def _costs(runs: pd.DataFrame) -> list[str]:
    rows = []
    for name in methods_of(runs):
        method, mine = METHODS.get(name), runs[runs["method"] == name].mean(numeric_only=True)
        repeats = "" if method and method.instant else f"{mine['repeat']:.0%}"
        times = (number(1e3 * mine[f"seconds_{call}"]) for call in ("ask", "tell"))
        rows.append([name, method.label if method else "", repeats, *times])
    header = "method | what it is | asks that repeat a pending point | ms per ask | ms per tell"
    return [
        "Means over all runs of a method, on one thread; not every method was used everywhere.",
        "",
        *markdown_table(header.split(" | "), rows),
    ]
