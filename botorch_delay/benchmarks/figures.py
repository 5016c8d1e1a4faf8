"""Figures of the benchmark, and those of the paper."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from botorch_delay.benchmarks.methods import FACTORS
from botorch_delay.benchmarks.problems import FiniteProblem, Problem
from botorch_delay.benchmarks.registries import mean_delays
from botorch_delay.benchmarks.results import (
    BY_MODEL,
    Array,
    Points,
    Results,
    against_factor,
    against_mean_delay,
    recommended,
)

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = 3
BASELINE = "gp-bucb"  # for guaranteed methods
# Eight colours that stay apart for colour-blind readers (Okabe and Ito), then other dashes.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C564B", "#7F7F7F")
_DASHES = ("-", "--", ":")
_GRID = 80

Style = dict[str, Any]


def draw_figures(folder: Path, results: Results, reference: str) -> list[Path]:
    """PNG files in ``folder``: means over seeds, the reference in black.

    Above, cumulative regret against asks; below, regret of the recommended point against time,
    on an axis that is logarithmic down to the smallest mean above 0, and holds 0. Time is
    logarithmic unless it is counted in steps. Where there are several mean delays, one more
    figure shows cumulative regret against them; where there are guaranteed methods and GP-BUCB,
    one more shows what a guarantee costs.
    """
    folder.mkdir(exist_ok=True)
    drawn = []
    styles = _styles(results.runs["method"].unique(), reference)
    for problem, runs in results.runs.groupby("problem", sort=False):
        curves = results.curves[results.curves["problem"] == problem]
        delays = list(runs["delay"].unique())
        for part in range(0, len(delays), COLUMNS):
            drawn.append(folder / f"{problem}-{part // COLUMNS + 1}.png")
            _draw_curves(drawn[-1], problem, delays[part : part + COLUMNS], curves, styles)
        if lines := against_mean_delay(runs, mean_delays()):
            drawn.append(folder / f"{problem}-delays.png")
            x, y = "mean delay, in steps", "cumulative regret"
            _draw_against(drawn[-1], lines, problem, x, y, log=False)
        if lines := against_factor(runs, FACTORS, BASELINE):
            drawn.append(folder / f"{problem}-frontier.png")
            x, y = "factor on BPE-Delay's regret bound", f"cumulative regret / that of {BASELINE}"
            _draw_against(drawn[-1], lines, f"{problem}: what a guarantee costs", x, y, log=True)
    return drawn


def _styles(methods: Iterable[str], reference: str) -> dict[str, Style]:
    """The same line for a method in every figure."""
    styles: dict[str, Style] = {
        method: {
            "color": _COLOURS[place % len(_COLOURS)],
            "linestyle": _DASHES[place // len(_COLOURS) % len(_DASHES)],
            "linewidth": 1.5,
        }
        for place, method in enumerate(method for method in methods if method != reference)
    }
    styles[reference] = {"color": "black", "linewidth": 2.4}
    thin = {"linestyle": "-.", "linewidth": 1.0}
    return styles | {method + BY_MODEL: style | thin for method, style in styles.items()}


def _draw_curves(
    path: Path, problem: str, delays: Sequence[str], curves: pd.DataFrame, styles: dict[str, Style]
) -> None:
    figure, axes = _canvas(4.3 * len(delays) + 3.0, 7.0, (2, len(delays)))
    lines: dict[str, Any] = {}
    for (upper, lower), delay in zip(axes.T, delays, strict=True):
        here = curves[curves["delay"] == delay]
        for method, mean in (
            here.groupby(["method", "asks"])["cumulative_regret"]
            .mean()
            .groupby("method", sort=False)
        ):
            upper.plot(mean.index.get_level_values("asks"), mean, **styles[method])
        upper.set(title=delay, xlabel="asks", ylim=(0, None))
        lines |= _draw_recommended(lower, here, styles)
    axes[0, 0].set_ylabel("cumulative regret")
    axes[1, 0].set_ylabel("regret of the recommended point")
    figure.legend(lines.values(), lines.keys(), frameon=False, loc="outside right center")
    figure.suptitle(f"{problem}: means over seeds")
    figure.savefig(path, dpi=100)


def _draw_recommended(ax: Any, curves: pd.DataFrame, styles: dict[str, Style]) -> dict[str, Any]:
    time = curves["time"]
    begin, end = time[time > 0.0].min(), time.max()
    in_steps = bool((time == time.round()).all())  # durations are spread over orders of magnitude
    grid = np.linspace(begin, end, _GRID) if in_steps else np.geomspace(begin, end, _GRID)
    means = {
        method: np.mean([_at(grid, run) for _, run in mine.groupby("seed")], axis=0)
        for method, mine in recommended(curves).groupby("method", sort=False)
    }
    positive = [regret for mean in means.values() for regret in mean if regret > 0.0]
    smallest = min(positive, default=1.0)
    ax.set_xscale("linear" if in_steps else "log")
    ax.set_xlabel("time, in steps" if in_steps else "time, in the problem's unit")
    ax.set_yscale("symlog", linthresh=smallest, linscale=0.3)
    ax.set_ylim(-0.1 * smallest, 1.3 * max(positive, default=1.0))
    return {method: ax.plot(grid, mean, **styles[method])[0] for method, mean in means.items()}


def _at(grid: Array, run: pd.DataFrame) -> Array:
    """What was recommended last at each time; before the first recommendation, the first one."""
    last = np.searchsorted(run["time"], grid, side="right") - 1
    values: Array = run["regret"].to_numpy()[np.maximum(last, 0)]
    return values


def _draw_against(
    path: Path, lines: Mapping[str, Points], title: str, xlabel: str, ylabel: str, *, log: bool
) -> None:
    """Estimates with their intervals against a number."""
    figure, ((ax,),) = _canvas(8.5, 4.5, (1, 1))
    for place, (label, points) in enumerate(lines.items()):
        x, found = zip(*points, strict=True)
        bars = [(e.mean - e.low, e.high - e.mean) if e.seeds > 1 else (0.0, 0.0) for e in found]
        ax.errorbar(
            x,
            [estimate.mean for estimate in found],
            yerr=np.transpose(bars),
            color=_COLOURS[place % len(_COLOURS)],
            linestyle=_DASHES[place // len(_COLOURS) % len(_DASHES)],
            marker="o",
            capsize=2,
            label=label,
        )
    ax.set(title=title, xlabel=xlabel, ylabel=ylabel)
    if log:
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

    Args:
        path: a PNG file.
        panels: by title and label, cumulative regret with a run per row, ``n x steps``.
    """
    figure, axes = _canvas(11.0, 4.2, (1, len(panels)))
    for ax, (title, lines) in zip(axes[0], panels.items(), strict=True):
        for label, runs in lines.items():
            asks, mean = np.arange(1, runs.shape[1] + 1), runs.mean(axis=0)
            half = 0.5 * runs.std(axis=0, ddof=1) if len(runs) > 1 else 0.0 * mean
            style = "--" if "printed" in label else "-"
            (line,) = ax.plot(asks, mean, style, label=label)
            ax.fill_between(asks, mean - half, mean + half, color=line.get_color(), alpha=0.2)
        ax.set(title=title, xlabel="asks", ylabel="cumulative regret", ylim=(0, None))
    axes[0, 0].legend(frameon=False)
    figure.savefig(path, dpi=110)


def _canvas(width: float, height: float, shape: tuple[int, int]) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(*shape, squeeze=False)
