"""Figures of the benchmark, and those of the paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from botorch_delay.benchmarks.problems import FiniteProblem, Problem
from botorch_delay.benchmarks.results import MEASURES, REFERENCE, Array, Results, methods_of

if TYPE_CHECKING:
    import pandas as pd

# Eight colours that stay apart for colour-blind readers (Okabe and Ito), then other dashes.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C564B", "#7F7F7F")
_STYLES = [{"color": c, "linestyle": dashes} for dashes in ("-", "--", ":") for c in _COLOURS]


def draw_figures(folder: Path, results: Results) -> dict[str, Path]:
    """A PNG file in ``folder`` per problem: means over seeds against asks, the reference in black.

    Regrets of single points are on an axis that is logarithmic down to the smallest mean above 0,
    and holds 0.
    """
    folder.mkdir(exist_ok=True)
    drawn = {}
    others = [method for method in methods_of(results.runs) if method != REFERENCE]
    styles: dict[str, Any] = {REFERENCE: {"color": "black", "linewidth": 2.4}}
    styles |= dict(zip(others, cycle(_STYLES), strict=False))
    for problem, curves in results.curves.groupby("problem", sort=False):
        drawn[problem] = folder / f"{problem}.png"
        _draw_curves(drawn[problem], curves, styles)
    return drawn


def _draw_curves(path: Path, curves: pd.DataFrame, styles: Mapping[str, Any]) -> None:
    delays = list(curves["delay"].unique())
    figure, axes = _canvas(4.3 * len(delays) + 3.0, 3.5 * len(MEASURES), len(MEASURES), len(delays))
    lines: dict[str, Any] = {}
    for row, (label, column) in zip(axes, MEASURES.items(), strict=True):
        row[0].set_ylabel(label)
        for ax, delay in zip(row, delays, strict=True):
            here = curves[curves["delay"] == delay]
            means = here.pivot_table(column, index="asks", columns="method")
            for method in methods_of(here):
                (lines[method],) = ax.plot(means.index, means[method], **styles[method])
            ax.set(title=delay, xlabel="asks", ylim=(0, None))
            if column != "cumulative_regret":
                smallest = means[means > 0.0].min(axis=None)
                ax.set_yscale("symlog", linthresh=smallest if smallest > 0.0 else 1.0)
    figure.legend(lines.values(), lines.keys(), frameon=False, loc="outside right center")
    figure.suptitle(f"{path.stem}: means over seeds")
    figure.savefig(path, dpi=100)


def draw_functions(path: Path, functions: Sequence[Problem]) -> None:
    """The paper's figure 1: f1 and f2 on their grid, and their maximisers."""
    figure, axes = _canvas(11.0, 4.2, 1, len(functions))
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
    figure, axes = _canvas(11.0, 4.2, 1, len(panels))
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


def _canvas(width: float, height: float, *shape: int) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(*shape, squeeze=False)
