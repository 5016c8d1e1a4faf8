"""What a run has found, column by column."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from botorch_delay import validation
from botorch_delay.exceptions import InputError
from botorch_delay.optimizers.base import Optimizer
from botorch_delay.plotting.axes import (
    BLUE,
    ORANGE,
    Column,
    answers,
    new_axes,
    pyplot,
    several_axes,
)
from botorch_delay.plotting.runs import plot_history

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_COLUMNS = 4  # slices side by side
MIN_PARALLEL = 3  # columns from which a summary has parallel coordinates
SLICES = "along each column through the recommended point (orange); answers in grey"
MARGIN = 0.5  # of the range of the answers: intervals are cut this far beyond it
ENDS = (-0.05, 1.05)  # where lines are cut that leave a column's range, 0 to 1


def plot_slices(optimizer: Optimizer, axes: Sequence[Axes] | None = None) -> list[Axes]:
    """Predicted mean and interval along each column, the others fixed at the recommended point.

    They come from :meth:`~botorch_delay.Optimizer.predict`. Dots are answers, whatever their other
    columns; the vertical line is the recommended value. There is one Axes for each column.
    Intervals are cut half the range of the answers beyond their ends.
    """
    validation.instance(optimizer, Optimizer, "optimizer", "an optimizer")
    X, values = answers(optimizer)
    domain, best = optimizer.domain, optimizer.recommend()
    if axes is None:
        rows, wide = -(-domain.dim // MAX_COLUMNS), min(domain.dim, MAX_COLUMNS)
        size = (3.2 * wide, 2.8 * rows)
        figure = pyplot().figure(figsize=size, layout="constrained")
        figure.suptitle(SLICES, fontsize="medium", wrap=True)
        axes = _slice_axes(figure, domain.dim)
    axes = several_axes(axes, domain.dim)
    for place, ax in enumerate(axes):
        column = Column(domain, place)
        points = best.x.repeat(len(column.values), 1)
        points[:, place] = column.values.to(points)
        found = optimizer.predict(points)
        at = column.at(column.values)
        mean = found.mean.cpu().double()
        ends = torch.stack([found.lower, found.upper]).cpu().double()
        lower, upper = ends.masked_fill(ends.isinf(), torch.nan)  # unknown ends are not drawn
        if column.texts:
            style: dict[str, Any] = {"fmt": "o", "markersize": 5, "capsize": 3, "color": BLUE}
            ax.errorbar(at, mean, torch.stack([mean - lower, upper - mean]).clamp_min(0), **style)
        else:
            ax.fill_between(at, lower, upper, color=BLUE, alpha=0.25, linewidth=0)
            ax.plot(at, mean, color=BLUE)
        ax.scatter(column.at(X[:, place]), values, s=8, color="0.5", zorder=1)
        ax.axvline(float(column.at(best.x[place : place + 1])), color=ORANGE, zorder=0)
        if bool(ends.isinf().any()):
            style = {"xycoords": "axes fraction", "fontsize": "small", "color": "0.4"}
            ax.annotate("interval unbounded so far", (0.02, 0.98), va="top", **style)
        column.label(ax.xaxis)
        if place % MAX_COLUMNS == 0:
            ax.set_ylabel("value")
    # Wide intervals are cut, since answers and means would lie on one line beside them.
    low, high = float(values.min()), float(values.max())
    for ax in axes if high > low else ():
        bottom, top = ax.get_ylim()
        ax.set_ylim(
            max(bottom, low - MARGIN * (high - low)), min(top, high + MARGIN * (high - low))
        )
    return axes


def _slice_axes(figure: Any, count: int) -> list[Any]:
    """Axes for ``count`` slices, with a shared vertical axis."""
    wide = min(count, MAX_COLUMNS)
    grid = figure.subplots(-(-count // wide), wide, sharey=True, squeeze=False).flatten().tolist()
    for ax in grid[count:]:
        ax.remove()
    return grid[:count]


def plot_parallel(optimizer: Optimizer, ax: Axes | None = None) -> Axes:
    """Every answer in parallel coordinates, coloured by its value, for two columns or more.

    The best are on top; the dashed line is the recommendation. A line that leaves the range of
    a column by more than a twentieth of it is cut there, with a triangle that points outwards.
    """
    validation.instance(optimizer, Optimizer, "optimizer", "an optimizer")
    if optimizer.domain.dim == 1:
        raise InputError("plot_parallel needs two columns or more; plot_slices draws one.")
    X, values = answers(optimizer)
    domain, best = optimizer.domain, optimizer.recommend().x
    ax = new_axes(ax)
    from matplotlib.collections import LineCollection

    columns = [Column(domain, place) for place in range(domain.dim)]
    places = torch.arange(domain.dim, dtype=torch.double)
    shares = torch.stack([column.share(X[:, j]) for j, column in enumerate(columns)], dim=1)
    heights = shares.clamp(*ENDS)
    order = torch.argsort(values, descending=not optimizer.maximize)
    lines = torch.stack([places.expand_as(heights), heights], dim=-1)[order]
    shades = "viridis" if optimizer.maximize else "viridis_r"
    drawn = LineCollection(list(lines.numpy()), cmap=shades, linewidths=1.2, alpha=0.8)
    drawn.set_array(values[order].numpy())
    ax.add_collection(drawn)
    ax.figure.colorbar(drawn, ax=ax, label="value")
    for end, marker in zip(ENDS, "v^", strict=True):
        left = places[(heights == end).any(dim=0)]
        ax.scatter(left, [end] * len(left), marker=marker, color="0.4", clip_on=False, zorder=3)
    at = torch.cat([column.share(best[j : j + 1]) for j, column in enumerate(columns)])
    ax.plot(places, at.clamp(*ENDS), "--", color=ORANGE, linewidth=2.5, label="recommended")
    for place, column in enumerate(columns):
        ax.plot([place, place], [0, 1], color="0.6", linewidth=1, zorder=0)
        texts = column.texts or [f"{column.values[end]:.4g}" for end in (0, -1)]
        marks = column.values if column.texts else column.values[[0, -1]]
        for text, height in zip(texts, column.share(marks).tolist(), strict=True):
            style: dict[str, Any] = {"xytext": (4, 0), "textcoords": "offset points"}
            style["bbox"] = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.5}
            ax.annotate(text, (place, height), va="center", fontsize="small", **style)
    ax.set_xticks(places, [column.name for column in columns], fontsize="small")
    ax.set_yticks([])
    ax.set_xlim(-0.1, domain.dim - 0.6)
    ax.set_ylim(*ENDS)
    ax.legend(frameon=False, loc="lower right", bbox_to_anchor=(1, 1))
    ax.spines[["left", "right", "top", "bottom"]].set_visible(False)
    return ax


def plot_summary(optimizer: Optimizer) -> Figure:
    """A page with history and slices, and for three columns or more, parallel coordinates."""
    validation.instance(optimizer, Optimizer, "optimizer", "an optimizer")
    answers(optimizer)
    dim = optimizer.domain.dim
    heights = [4.2, 2.6 * -(-dim // MAX_COLUMNS), 3.6][: 3 if dim >= MIN_PARALLEL else 2]
    figure = pyplot().figure(figsize=(12, sum(heights)), layout="constrained")
    parts = figure.subfigures(len(heights), 1, height_ratios=heights)
    plot_history(optimizer, parts[0].subplots(2, sharex=True, height_ratios=[2, 1]))
    plot_slices(optimizer, _slice_axes(parts[1], dim))
    parts[1].suptitle(SLICES)
    if dim >= MIN_PARALLEL:
        plot_parallel(optimizer, parts[2].subplots())
    return figure
