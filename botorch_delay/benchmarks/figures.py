"""Regret against asks and time, and against the mean delay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from botorch_delay.benchmarks.comparison import Sweep, bootstrap, ratio
from botorch_delay.benchmarks.results import Result

COLUMNS = 3
BASELINE = "gp-bucb"  # for guaranteed methods
# Eight colours that stay apart for colour-blind readers (Okabe and Ito), then other dashes.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C564B", "#7F7F7F")
_DASHES = ("-", "--", ":")
_GRID = 80

Style = dict[str, Any]


def draw_figures(
    folder: Path,
    results: Sequence[Result],
    reference: str,
    swept: Mapping[str, Mapping[str, Sweep]],
    guarantees: Mapping[str, tuple[str, float]],
) -> list[Path]:
    """PNG files in ``folder``: means over seeds, the reference in black.

    Above, cumulative regret against asks; below, regret of the recommended point against time,
    on an axis that is logarithmic down to the smallest mean above 0, and holds 0. Time is
    logarithmic unless it is counted in steps. Where several mean delays were played, one more
    figure shows cumulative regret against them; where all guaranteed methods and GP-BUCB were
    played, one more shows what a guarantee costs.

    Args:
        folder: where to write.
        results: of the runs.
        reference: the method in black.
        swept: regret against the mean delay, by problem and method.
        guarantees: of methods that have one, the option that sets it and the factor on
            BPE-Delay's regret bound.
    """
    drawn = []
    styles = _styles(results, reference)
    for problem in dict.fromkeys(result.cell.problem for result in results):
        mine = [result for result in results if result.cell.problem == problem]
        delays = list(dict.fromkeys(result.cell.delay for result in mine))
        for part in range(0, len(delays), COLUMNS):
            path = folder / f"{problem}-{part // COLUMNS + 1}.png"
            _draw(path, problem, delays[part : part + COLUMNS], mine, styles)
            drawn.append(path)
        if problem in swept:
            path = folder / f"{problem}-delays.png"
            _draw_sweep(path, problem, swept[problem], styles)
            drawn.append(path)
        if {result.cell.method for result in mine} >= {BASELINE, *guarantees}:
            path = folder / f"{problem}-frontier.png"
            _draw_frontier(path, problem, mine, guarantees)
            drawn.append(path)
    return drawn


def _styles(results: Sequence[Result], reference: str) -> dict[str, Style]:
    """The same line for a method in every figure."""
    names = list(dict.fromkeys(name for result in results for name in result.players))
    methods = dict.fromkeys(result.cell.method for result in results)
    others = [method for method in methods if method != reference]
    styles: dict[str, Style] = {
        method: {
            "color": _COLOURS[place % len(_COLOURS)],
            "linestyle": _DASHES[place // len(_COLOURS) % len(_DASHES)],
            "linewidth": 1.5,
        }
        for place, method in enumerate(others)
    }
    for name in names:  # another recommendation from the same runs
        if name not in styles and name != reference:
            styles[name] = styles[name.partition(",")[0]] | {"linestyle": "-.", "linewidth": 1.0}
    if reference in names:
        styles[reference] = {"color": "black", "linewidth": 2.4}
    return styles


def _draw(
    path: Path,
    problem: str,
    delays: Sequence[str],
    results: Sequence[Result],
    styles: Mapping[str, Style],
) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.3 * len(delays) + 3.0, 7.0), layout="constrained")
    axes = figure.subplots(2, len(delays), squeeze=False)
    lines: dict[str, Any] = {}
    for column, delay in enumerate(delays):
        here = [result for result in results if result.cell.delay == delay]
        upper, lower = axes[0][column], axes[1][column]
        lines |= _draw_recommended(lower, here, styles)
        _draw_cumulative(upper, here, styles)
        upper.set(title=delay, xlabel="asks", ylim=(0, None))
    axes[0][0].set_ylabel("cumulative regret")
    axes[1][0].set_ylabel("regret of the recommended point")
    shown = [name for name in styles if name in lines]
    figure.legend([lines[name] for name in shown], shown, frameon=False, loc="outside right center")
    figure.suptitle(f"{problem}: means over seeds")
    figure.savefig(path, dpi=100)


def _draw_sweep(
    path: Path, problem: str, swept: Mapping[str, Sweep], styles: Mapping[str, Style]
) -> None:
    """Means over seeds, in a band of their 90 % bootstrap intervals."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.5, 4.5), layout="constrained")
    ax = figure.subplots()
    for method, sweep in swept.items():
        found = [bootstrap(column) for column in sweep.regrets.T]
        means = [one.mean for one in found]
        ax.plot(sweep.delays, means, marker="o", markersize=4, label=method, **styles[method])
        if len(sweep.regrets) > 1:
            low, high = [one.low for one in found], [one.high for one in found]
            ax.fill_between(
                sweep.delays, low, high, color=styles[method]["color"], alpha=0.2, linewidth=0
            )
    ax.set(xlabel="mean delay, in steps", ylabel="cumulative regret", title=problem)
    ax.set(xlim=(0, None), ylim=(0, None))
    figure.legend(frameon=False, loc="outside right center")
    figure.savefig(path, dpi=100)


def _draw_frontier(
    path: Path,
    problem: str,
    results: Sequence[Result],
    guarantees: Mapping[str, tuple[str, float]],
) -> None:
    """Regret of guaranteed methods, as a ratio to that of GP-BUCB, which promises nothing."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.5, 4.8), layout="constrained")
    ax = figure.subplots()
    options = list(dict.fromkeys(option for option, _ in guarantees.values()))
    delays = dict.fromkeys(result.cell.delay for result in results)
    for place, delay in enumerate(delays):
        final: dict[str, dict[int, float]] = {}
        for result in results:
            if result.cell.delay == delay:
                runs = final.setdefault(result.cell.method, {})
                runs[result.cell.seed] = float(result.cumulative[-1])
        for option in options:
            points = []
            for method, (sets, factor) in guarantees.items():
                seeds = sorted(final.get(method, {}).keys() & final.get(BASELINE, {}).keys())
                if sets == option and seeds:
                    ours, theirs = (
                        np.array([final[m][s] for s in seeds]) for m in (method, BASELINE)
                    )
                    points.append((factor, *ratio(ours, theirs)))
            if not points:
                continue
            along, mean, low, high = np.array(sorted(points)).T
            ax.errorbar(
                along,
                mean,
                yerr=np.stack([mean - low, high - mean]),
                color=_COLOURS[place % len(_COLOURS)],
                marker="os^"[options.index(option)],
                linestyle=_DASHES[options.index(option)],
                capsize=2,
                label=f"{delay}, {option}",
            )
    ax.axhline(1.0, color="black", linewidth=1.0)
    ax.set(xscale="log", yscale="log", title=f"{problem}: what a guarantee costs")
    ax.set(xlabel="factor on BPE-Delay's regret bound", ylabel="cumulative regret / GP-BUCB's")
    for axis, ticks in (
        (ax.xaxis, (1, 1.25, 2, 3.2, 5, 10)),
        (ax.yaxis, (0.7, 1, 1.5, 2, 3, 5, 8)),
    ):
        axis.set_ticks(ticks, [f"{tick:g}" for tick in ticks])
        axis.set_ticks([], minor=True)
    figure.legend(frameon=False, loc="outside right center")
    figure.savefig(path, dpi=100)


def _draw_cumulative(ax: Any, results: Sequence[Result], styles: Mapping[str, Style]) -> None:
    for method in dict.fromkeys(result.cell.method for result in results):
        runs = [result for result in results if result.cell.method == method]
        mean = np.mean([run.cumulative for run in runs], axis=0)
        ax.plot(runs[0].asks, mean, **styles[method])


def _draw_recommended(
    ax: Any, results: Sequence[Result], styles: Mapping[str, Style]
) -> dict[str, Any]:
    runs: dict[str, list[tuple[Result, NDArray[np.float64]]]] = {}
    for result in results:
        for name, regret in result.players.items():
            runs.setdefault(name, []).append((result, regret))
    end = max(result.time[-1] for result in results)
    begin = min(result.time[result.time > 0.0].min(initial=end) for result in results)
    in_steps = all((result.time == result.time.round()).all() for result in results)
    grid = np.linspace(begin, end, _GRID) if in_steps else np.geomspace(begin, end, _GRID)
    # Durations are spread over orders of magnitude.
    ax.set_xscale("linear" if in_steps else "log")
    ax.set_xlabel("time, in steps" if in_steps else "time, in the problem's unit")
    curves = {
        name: np.mean([_at(grid, result.time, regret) for result, regret in played], axis=0)
        for name, played in runs.items()
    }
    positive = [value for curve in curves.values() for value in curve if value > 0.0]
    smallest = min(positive, default=1.0)
    ax.set_yscale("symlog", linthresh=smallest, linscale=0.3)
    ax.set_ylim(-0.1 * smallest, 1.3 * max(positive, default=1.0))
    return {name: ax.plot(grid, curve, **styles[name])[0] for name, curve in curves.items()}


def _at(
    grid: NDArray[np.float64], time: NDArray[np.float64], values: NDArray[np.float64]
) -> NDArray[np.float64]:
    """What was recommended last at each time; before the first recommendation, the first one."""
    return values[np.maximum(np.searchsorted(time, grid, side="right") - 1, 0)]
