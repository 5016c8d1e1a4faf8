"""Regret against asks, a figure for every problem and up to three delays."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from botorch_delay.benchmarks.results import Result

COLUMNS = 3
# Eight colours that stay apart for colour-blind readers (Okabe and Ito), then dashed.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C564B", "#7F7F7F")
_STYLES = ("-", "--", ":")


def draw_figures(folder: Path, results: Sequence[Result], reference: str) -> list[Path]:
    """PNG files in ``folder``: means over seeds, the reference in black.

    Above, cumulative regret; below, regret of the recommended point on a logarithmic axis. The
    methods of a legend are ordered by their last value in the last column.
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
    return drawn


def _styles(results: Sequence[Result], reference: str) -> dict[str, dict[str, Any]]:
    """The same colour for a method in every figure."""
    names = sorted({name for result in results for name in result.players} - {reference})
    styles: dict[str, dict[str, Any]] = {
        name: {
            "color": _COLOURS[place % len(_COLOURS)],
            "linestyle": _STYLES[place // len(_COLOURS) % len(_STYLES)],
            "linewidth": 1.4,
        }
        for place, name in enumerate(names)
    }
    styles[reference] = {"color": "black", "linewidth": 2.4}
    return styles


def _draw(
    path: Path,
    problem: str,
    delays: Sequence[str],
    results: Sequence[Result],
    styles: dict[str, dict[str, Any]],
) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.2 * len(delays) + 3.2, 7.0), layout="constrained")
    axes = figure.subplots(2, len(delays), squeeze=False, sharex=True)
    for column, delay in enumerate(delays):
        here = [result for result in results if result.cell.delay == delay]
        upper, lower = axes[0][column], axes[1][column]
        floor = _draw_recommended(lower, here, styles)
        _draw_cumulative(upper, here, styles)
        upper.set(title=delay, ylim=(0, None))
        lower.set(xlabel="asks")
        lower.set_yscale("log")
        if floor is not None:
            lower.annotate(
                "0",
                (0.0, floor),
                xycoords=("axes fraction", "data"),
                xytext=(-4, 0),
                textcoords="offset points",
                ha="right",
                va="center",
            )
    axes[0][0].set_ylabel("cumulative regret")
    axes[1][0].set_ylabel("regret of the recommended point")
    for row in axes:
        row[-1].legend(
            *_ordered(row[-1]), frameon=False, loc="center left", bbox_to_anchor=(1.02, 0.5)
        )
    figure.suptitle(f"{problem}: mean over seeds, best in the last column first")
    figure.savefig(path, dpi=100)


def _draw_cumulative(ax: Any, results: Sequence[Result], styles: dict[str, dict[str, Any]]) -> None:
    for method in dict.fromkeys(result.cell.method for result in results):
        runs = [result for result in results if result.cell.method == method]
        name = method if method in styles else next(iter(runs[0].players))
        ax.plot(
            runs[0].asks,
            np.mean([r.cumulative for r in runs], axis=0),
            label=method,
            **styles[name],
        )


def _draw_recommended(
    ax: Any, results: Sequence[Result], styles: dict[str, dict[str, Any]]
) -> float | None:
    """Draw means; where one is 0 it is drawn on a floor below all others, which is returned."""
    means: dict[str, Any] = {}
    for result in results:
        for name, regret in result.players.items():
            means.setdefault(name, []).append((result.asks, regret))
    curves = {
        name: (runs[0][0], np.mean([r for _, r in runs], axis=0)) for name, runs in means.items()
    }
    positive = [v for _, curve in curves.values() for v in curve if v > 0]
    smallest = min(positive, default=1.0)
    floor = smallest / 3
    touched = any((curve <= 0).any() for _, curve in curves.values())
    for name, (asks, curve) in curves.items():
        ax.plot(asks, np.maximum(curve, floor), label=name, **styles[name])
    return floor if touched else None


def _ordered(ax: Any) -> tuple[list[Any], list[str]]:
    lines = sorted(ax.get_lines(), key=lambda line: -line.get_ydata()[-1])
    lines.reverse()
    return lines, [line.get_label() for line in lines]
