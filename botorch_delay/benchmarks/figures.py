"""Figures of the benchmark, and those of the paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from botorch_delay.benchmarks.clocks import DELAYS
from botorch_delay.benchmarks.methods import FACTORS
from botorch_delay.benchmarks.problems import FiniteProblem, Problem
from botorch_delay.benchmarks.results import (
    MEASURES,
    REFERENCE,
    Array,
    Estimate,
    Results,
    bootstrap,
    final_regrets,
    methods_of,
    paired,
)
from botorch_delay.delays import NoDelay, PoissonDelay

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = 3
BASELINE = "gp-bucb"  # for guaranteed methods
LEAST_DELAYS = 4  # of which something is said about growth
# Eight colours that stay apart for colour-blind readers (Okabe and Ito), then other dashes.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C564B", "#7F7F7F")
_STYLES = [{"color": c, "linestyle": dashes} for dashes in ("-", "--", ":") for c in _COLOURS]

Lines = Mapping[str, Sequence[tuple[float, Estimate]]]  # by label


def draw_figures(folder: Path, results: Results) -> list[Path]:
    """PNG files in ``folder``: means over seeds, the reference in black.

    Above, cumulative regret against asks; below, regret of the recommended point, on an axis that
    is logarithmic down to the smallest mean above 0, and holds 0. Where there are several mean
    delays, one more figure shows cumulative regret against them; where there are guaranteed methods
    and GP-BUCB, one more shows what a guarantee costs.
    """
    folder.mkdir(exist_ok=True)
    drawn = []
    methods = [method for method in methods_of(results.runs) if method != REFERENCE]
    styles = dict(zip(methods, cycle(_STYLES), strict=False)) | {
        REFERENCE: {"color": "black", "linewidth": 2.4}
    }
    for problem, runs in results.runs.groupby("problem", sort=False):
        curves = results.curves[results.curves["problem"] == problem]
        delays = list(runs["delay"].unique())
        for part in range(0, len(delays), COLUMNS):
            drawn.append(folder / f"{problem}-{part // COLUMNS + 1}.png")
            _draw_curves(drawn[-1], problem, delays[part : part + COLUMNS], curves, styles)
        if lines := against_mean_delay(runs):
            drawn.append(folder / f"{problem}-delays.png")
            x, y = "mean delay, in steps", "cumulative regret"
            _draw_against(drawn[-1], lines, title=problem, xlabel=x, ylabel=y)
        if lines := _against_factor(runs):
            drawn.append(folder / f"{problem}-frontier.png")
            x, y = "factor on BPE-Delay's regret bound", f"cumulative regret / that of {BASELINE}"
            title = f"{problem}: what a guarantee costs"
            _draw_against(drawn[-1], lines, title=title, xlabel=x, ylabel=y, xscale="log")
    return drawn


def _draw_curves(
    path: Path,
    problem: str,
    delays: Sequence[str],
    curves: pd.DataFrame,
    styles: Mapping[str, Mapping[str, Any]],
) -> None:
    figure, axes = _canvas(4.3 * len(delays) + 3.0, 7.0, (2, len(delays)))
    lines: dict[str, Any] = {}
    for row, (label, column) in zip(axes, MEASURES.items(), strict=True):
        row[0].set_ylabel(label)
        for ax, delay in zip(row, delays, strict=True):
            here = curves[curves["delay"] == delay]
            means = here.pivot_table(column, index="asks", columns="method")
            for method in methods_of(here):
                (lines[method],) = ax.plot(means.index, means[method], **styles[method])
            ax.set(title=delay, xlabel="asks", ylim=(0, None))
            if column == "recommended_regret":
                smallest = means[means > 0.0].min(axis=None)
                ax.set_yscale("symlog", linthresh=smallest if smallest > 0.0 else 1.0)
    figure.legend(lines.values(), lines.keys(), frameon=False, loc="outside right center")
    figure.suptitle(f"{problem}: means over seeds")
    figure.savefig(path, dpi=100)


def against_mean_delay(runs: pd.DataFrame) -> Lines:
    """Cumulative regret on one problem by mean delay, with its slope by least squares.

    Over the delays that differ in their mean alone, Poisson ones and none; only of methods with at
    least four of them, and of seeds that have all.
    """
    means = {
        name: clock.law.mean
        for name, clock in DELAYS.items()
        if isinstance(clock.law, PoissonDelay | NoDelay) and not (clock.lost or clock.failed)
    }
    found = {}
    chosen = runs.assign(mean_delay=runs["delay"].map(means)).dropna(subset="mean_delay")
    for method in methods_of(chosen):
        mine = chosen[chosen["method"] == method]
        table = mine.pivot(index="seed", columns="mean_delay", values="cumulative_regret").dropna()
        if len(table) and len(table.columns) >= LEAST_DELAYS:
            away = table.columns.to_numpy(dtype=float) - table.columns.to_numpy(dtype=float).mean()
            slope = bootstrap(table.to_numpy() @ away / (away @ away))
            found[f"{method}: {slope} per step"] = [
                (delay, bootstrap(table[delay].to_numpy())) for delay in table.columns
            ]
    return found


def _against_factor(runs: pd.DataFrame) -> Lines:
    """Cumulative regret on one problem as a ratio to a baseline, by the factor of a guarantee."""
    found: dict[str, list[tuple[float, Estimate]]] = {}
    for (_, delay), final in final_regrets(runs, "cumulative regret").items():
        for source, methods in FACTORS.items():
            for method, factor in methods.items():
                ours, theirs = paired(final, method, BASELINE)
                if len(ours):
                    points = found.setdefault(f"{delay}, {source}", [])
                    points.append((factor, bootstrap(ours, theirs)))
    return found


def _draw_against(path: Path, lines: Lines, *, xscale: str = "linear", **words: str) -> None:
    """Estimates with their intervals against a number."""
    figure, ((ax,),) = _canvas(8.5, 4.5, (1, 1))
    for (label, points), style in zip(lines.items(), cycle(_STYLES), strict=False):
        x, found = zip(*points, strict=True)
        bars = [(e.mean - e.low, e.high - e.mean) if e.seeds > 1 else (0.0, 0.0) for e in found]
        means = [estimate.mean for estimate in found]
        ax.errorbar(x, means, np.transpose(bars), marker="o", capsize=2, label=label, **style)
    ax.set(**words)
    if xscale == "log":
        ax.axhline(1.0, color="black", linewidth=1.0)
        ax.set(xscale="log", yscale="log")
        for axis in (ax.xaxis, ax.yaxis):
            axis.set_major_formatter("{x:g}")
            axis.set_minor_formatter("{x:g}")
    else:
        ax.set(xlim=(0, None), ylim=(0, None))
    figure.legend(frameon=False, loc="outside right center")
    figure.savefig(path, dpi=100)


def draw_functions(path: Path, functions: Sequence[Problem]) -> None:
    """The paper's figure 1: f1 and f2 on their grid, and their maximisers."""
    figure, axes = _canvas(11.0, 4.2, (1, len(functions)))
    for name, ax, problem in zip(("f1", "f2"), axes[0], functions, strict=True):
        assert isinstance(problem, FiniteProblem)
        side = round(len(problem.points) ** 0.5)
        values = problem.values.reshape(side, side).T
        image = ax.imshow(values, origin="lower", extent=(-5, 5, -5, 5), cmap="viridis")
        best = problem.points[int(problem.values.argmax())]
        ax.plot(*best.tolist(), "r+", markersize=12, label="maximiser")
        ax.legend(frameon=True, loc="lower right")
        figure.colorbar(image, ax=ax)
        ax.set(title=name, xlabel="x0", ylabel="x1")
    figure.savefig(path, dpi=110)


def draw_regrets(path: Path, panels: Mapping[str, Mapping[str, Array]]) -> None:
    """The paper's figures 2 to 5: mean cumulative regret, with half a standard deviation.

    ``panels``: by title and label, cumulative regret with a run per row, ``n x steps``.
    """
    figure, axes = _canvas(11.0, 4.2, (1, len(panels)))
    for ax, (title, lines) in zip(axes[0], panels.items(), strict=True):
        for label, runs in lines.items():
            draw_mean(ax, label, runs, "--" if "printed" in label else "-")
        ax.set(title=title, xlabel="asks", ylabel="cumulative regret", ylim=(0, None))
    axes[0, 0].legend(frameon=False)
    figure.savefig(path, dpi=110)


def draw_mean(ax: Any, label: str, runs: Array, style: str = "-") -> None:
    """The mean of runs, ``n x steps``, and of several a band of half a standard deviation."""
    asks, mean = np.arange(1, runs.shape[1] + 1), runs.mean(axis=0)
    (line,) = ax.plot(asks, mean, style, label=label)
    if len(runs) > 1:
        half = 0.5 * runs.std(axis=0, ddof=1)
        ax.fill_between(asks, mean - half, mean + half, color=line.get_color(), alpha=0.2)


def _canvas(width: float, height: float, shape: tuple[int, int]) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(*shape, squeeze=False)
