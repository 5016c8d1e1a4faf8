"""Figures of the paper's experiments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from botorch_delay.benchmarks.problems import FiniteProblem, Problem
from botorch_delay.benchmarks.results import Array


def draw_functions(path: Path, functions: Sequence[Problem]) -> None:
    """The paper's figure 1: f1 and f2 on their grid, and their maximisers."""
    figure, axes = _canvas(len(functions))
    for name, ax, problem in zip(("f1", "f2"), axes, functions, strict=True):
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
    figure, axes = _canvas(len(panels))
    for ax, (title, lines) in zip(axes, panels.items(), strict=True):
        for label, runs in lines.items():
            draw_mean(ax, label, runs, "--" if "printed" in label else "-")
        ax.set(title=title, xlabel="asks", ylabel="cumulative regret", ylim=(0, None))
    axes[0].legend(frameon=False)
    figure.savefig(path, dpi=110)


def draw_mean(ax: Any, label: str, runs: Array, style: str = "-") -> None:
    """The mean of runs, ``n x steps``, and of several a band of half a standard deviation."""
    asks, mean = np.arange(1, runs.shape[1] + 1), runs.mean(axis=0)
    (line,) = ax.plot(asks, mean, style, label=label)
    if len(runs) > 1:
        half = 0.5 * runs.std(axis=0, ddof=1)
        ax.fill_between(asks, mean - half, mean + half, color=line.get_color(), alpha=0.2)


def _canvas(panels: int) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11.0, 4.2), layout="constrained")
    return figure, figure.subplots(1, panels)
