"""Tables of what was measured, and methods side by side: paired differences, their intervals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from botorch_delay.benchmarks.folders import RUNS, read_run, write_whole
from botorch_delay.benchmarks.registries import DELAYS, METHODS, PROBLEMS
from botorch_delay.benchmarks.simulator import History
from botorch_delay.exceptions import InputError

if TYPE_CHECKING:
    import pandas as pd

LEVEL = 0.90
RESAMPLES = 10_000
LEAST_DELAYS = 4  # of which something is said about growth

CUMULATIVE = "cumulative regret"
RECOMMENDED = "regret of the recommended point"
MEASURES = (CUMULATIVE, RECOMMENDED)
BY_MODEL = ", our recommendation"  # another recommendation from the same runs

Array = NDArray[np.float64]
# By problem and delay: a table with a row per seed and a column per method.
Finals = Mapping[tuple[str, str], "pd.DataFrame"]


@dataclass(frozen=True, eq=False)
class Results:
    """What was measured in the runs of a folder.

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


def read_results(folder: Path, steps: int) -> Results:
    """Measure every whole run in a folder, and write the tables.

    Args:
        folder: that holds the runs.
        steps: asks in each run.

    Raises:
        InputError: if no run is done.
    """
    import pandas as pd

    runs, curves, made = [], [], set()
    for path in sorted((folder / RUNS).glob("*.json")):
        found = read_run(path, steps)
        if found is not None:
            key = vars(found.cell)
            curve = _curve(found.history)
            curves += [key | row for row in curve]
            runs.append(key | curve[-1] | _costs(found.history))
            made.add(found.made)
    if not runs:
        raise InputError(f"{folder} holds no run that is done.")
    results = Results(
        folder, _ordered(pd.DataFrame(runs)), _ordered(pd.DataFrame(curves)), sorted(made)
    )
    write_whole(folder / "cells.csv", results.runs.to_csv(index=False))
    write_whole(folder / "curves.csv", results.curves.to_csv(index=False))
    return results


def _curve(history: History) -> list[dict[str, Any]]:
    cumulative = history.regret.tolist()
    return [
        {
            "asks": at.asks,
            "time": at.time,
            "cumulative_regret": cumulative[at.asks - 1],
            "recommended_regret": at.regret,
            "recommended_regret_by_model": at.by_model,
        }
        for at in history.recommendations
    ]


def _costs(history: History) -> dict[str, Any]:
    asks = history.asks
    tells = [ask.seconds_tell for ask in asks if ask.seconds_tell is not None]
    states = [ask.state for ask in asks]
    return {
        "repeat_share": float(np.mean([ask.repeat for ask in asks])),
        "seconds_per_ask": float(np.mean([ask.seconds_ask for ask in asks])),
        "seconds_per_tell": float(np.mean(tells)) if tells else 0.0,
        **{state: states.count(state) for state in ("answered", "failed", "lost", "pending")},
    }


def _ordered(table: pd.DataFrame) -> pd.DataFrame:
    """In the order of the registries; what is not registered comes last."""
    known = {"problem": list(PROBLEMS), "delay": list(DELAYS), "method": list(METHODS)}

    def rank(column: pd.Series) -> pd.Series:
        if column.name not in known:
            return column
        order = {name: place for place, name in enumerate(known[column.name])}
        return column.map(order).fillna(len(order))

    table = table.sort_values([*known, "seed"], key=rank, kind="stable", ignore_index=True)
    table["recommended_regret_by_model"] = table["recommended_regret_by_model"].astype(float)
    return table


def recommended(table: pd.DataFrame) -> pd.DataFrame:
    """Regret of the recommended points as a column ``regret``; Optuna's runs are there twice."""
    import pandas as pd

    run, by_model = ["problem", "delay", "method", "seed"], "recommended_regret_by_model"
    ours = table[table.groupby(run)[by_model].transform("count") > 0]
    # Before the first answer the model recommends nothing of its own.
    regret = ours[by_model].fillna(ours["recommended_regret"])
    ours = ours.assign(method=ours["method"] + BY_MODEL, regret=regret)
    return pd.concat([table.assign(regret=table["recommended_regret"]), ours])


def final_regrets(runs: pd.DataFrame, measure: str) -> Finals:
    """What every run came to in the end."""
    if measure == CUMULATIVE:
        table = runs.assign(regret=runs["cumulative_regret"])
    else:
        table = recommended(runs)
    return {
        place: part.pivot(index="seed", columns="method", values="regret")
        for place, part in table.groupby(["problem", "delay"], sort=False)
    }


@dataclass(frozen=True)
class Estimate:
    """A mean and its percentile bootstrap interval at level 90 %.

    Attributes:
        mean: over the seeds.
        low: lower end of the interval.
        high: upper end.
        seeds: how many.
    """

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


Points = list[tuple[float, Estimate]]  # of a curve


def bootstrap(values: Array, divided_by: Array | None = None) -> Estimate:
    """A mean over seeds, or the ratio of two, with its percentile bootstrap interval.

    With few seeds such an interval is too narrow; a single one decides nothing.

    Args:
        values: a number per seed, such as a paired difference.
        divided_by: numbers of the same seeds, by whose mean to divide.
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
    if not set(methods) <= set(final.columns):
        return tuple(np.empty(0) for _ in methods)
    common = final[list(methods)].dropna()
    return tuple(common[method].to_numpy() for method in methods)


def compare(final: pd.DataFrame, method: str, reference: str) -> Estimate | None:
    """A method less the reference on common seeds; None if they have none."""
    if method == reference:
        return None
    ours, theirs = paired(final, method, reference)
    return bootstrap(ours - theirs) if len(ours) else None


def decided(finals: Finals, method: str, reference: str) -> list[bool | None]:
    """With each problem and delay of two pairs or more: has a method less regret? None if open."""
    found = [compare(final, method, reference) for final in finals.values()]
    return [difference.below for difference in found if difference and difference.seeds > 1]


def against_mean_delay(runs: pd.DataFrame, means: Mapping[str, float]) -> dict[str, Points]:
    """Cumulative regret on one problem by mean delay, with its slope by least squares.

    Only of methods with at least four mean delays, and of seeds that have all of them.
    """
    found = {}
    chosen = runs[runs["delay"].isin(list(means))]
    chosen = chosen.assign(mean_delay=chosen["delay"].map(dict(means)))
    for method, part in chosen.groupby("method", sort=False):
        table = part.pivot(index="seed", columns="mean_delay", values="cumulative_regret").dropna()
        if len(table) and len(table.columns) >= LEAST_DELAYS:
            away = table.columns.to_numpy(dtype=float) - table.columns.to_numpy(dtype=float).mean()
            slope = bootstrap(table.to_numpy() @ away / (away @ away))
            found[f"{method}: {slope} per step"] = [
                (delay, bootstrap(table[delay].to_numpy())) for delay in table.columns
            ]
    return found


def against_factor(
    runs: pd.DataFrame, factors: Mapping[str, Mapping[str, float]], baseline: str
) -> dict[str, Points]:
    """Cumulative regret on one problem as a ratio to a baseline, by the factor of a guarantee."""
    found: dict[str, Points] = {}
    for (_, delay), final in final_regrets(runs, CUMULATIVE).items():
        for option, methods in factors.items():
            for method, factor in methods.items():
                ours, theirs = paired(final, method, baseline)
                if len(ours):
                    points = found.setdefault(f"{delay}, {option}", [])
                    points.append((factor, bootstrap(ours, theirs)))
    return found


def number(value: float, *, sign: bool = False) -> str:
    """Three digits, as people write them."""
    if value == 0.0:
        return "0"
    digits = max(2 - int(np.floor(np.log10(abs(value)))), 0)
    if digits > 5:
        return f"{value:{'+' if sign else ''}.1e}"
    return f"{value:{'+' if sign else ''},.{digits}f}"
