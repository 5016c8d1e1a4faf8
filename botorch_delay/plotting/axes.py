"""Axes, colours, and the answers of a run, for all pictures."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np
import torch
from torch import Tensor

from botorch_delay import validation
from botorch_delay.domains.domain import Domain
from botorch_delay.domains.values import text_of
from botorch_delay.exceptions import InputError, InputTypeError, NoAnswerError
from botorch_delay.history.trials import Attached, Trial
from botorch_delay.optimizers.base import Optimizer

# Colours that stay apart for colour-blind readers (Okabe and Ito).
BLUE, VERMILION, ORANGE, GREEN = "#0072B2", "#D55E00", "#E69F00", "#009E73"
# A column with at most LISTED values is drawn value by value, one with more at STEPS points.
LISTED, STEPS = 12, 101
MAX_LABEL = 16  # characters; longer labels would leave no room for the picture
MAX_LINE = 20  # characters per line of a name with its unit, which is wrapped there


def pyplot() -> Any:
    """Matplotlib's ``pyplot``; a MissingExtraError without it."""
    validation.installed("matplotlib", "Plots need Matplotlib")
    import matplotlib.pyplot as plt

    return plt


def check_picture(path: Path) -> None:
    """Refuse a path to which no picture can be drawn."""
    validation.installed("matplotlib", "A picture needs Matplotlib")
    if path.suffix.lower() != ".png" or not os.access(path.parent, os.W_OK):
        raise InputError(f"The picture must be a .png file in a writable folder, got {path}.")


def new_axes(ax: Any) -> Any:
    """The given axes, or new ones."""
    plt = pyplot()
    validation.instance(ax, plt.Axes | None, "ax", "an Axes of Matplotlib, or None")
    return plt.subplots(layout="constrained")[1] if ax is None else ax


def several_axes(axes: Any, count: int) -> list[Any]:
    """The given axes, in any shape, which must be ``count``."""
    listed = np.ravel(axes).tolist()
    if len(listed) != count or not all(isinstance(ax, pyplot().Axes) for ax in listed):
        raise InputTypeError(f"axes must be {count} Axes of Matplotlib, got {axes!r}.")
    return listed


def answers(optimizer: Optimizer) -> tuple[Tensor, Tensor]:
    """Points (``n x d``) and values (``n``) of all answers, then of all attached results.

    In double precision on the CPU.
    """
    told = [trial for trial in optimizer.trials if trial.value is not None]
    results: list[Trial | Attached] = [*told, *optimizer.attached]
    if not results:
        raise NoAnswerError("There is no answer yet to draw; tell() or attach() one.")
    X = torch.stack([result.x for result in results]).cpu().double()
    return X, torch.tensor([result.value for result in results], dtype=torch.double)


class Column:
    """One column of a domain as an axis.

    Attributes:
        name: the column's name with its unit, in short lines.
        values: where to draw, ``n``, in increasing order.
        texts: labels of ``values`` if these are all values of the column, else empty.
        is_log: whether the column is modelled by its logarithm.
    """

    def __init__(self, domain: Domain, place: int) -> None:
        name = domain.names[place]
        unit = domain.columns.units.get(name)
        short = _labels(domain.names)[place]
        self.name = fill(short if unit is None else f"{short} ({_labels([unit])[0]})", MAX_LINE)
        parameter = domain.columns.varying[name]
        self.is_log = place in domain.log_dims
        self._is_category = place in domain.encoding.categories
        allowed = domain.allowed(place)
        ends = domain.bounds[:, place].cpu().double()
        self.texts: list[str] = []
        if allowed is not None and (self._is_category or len(allowed) <= LISTED):
            self.values = allowed.cpu().double()
            self.texts = _labels([parameter.decode(v) for v in self.values.tolist()])
        else:
            steps, (low, high) = torch.linspace(0, 1, STEPS, dtype=torch.double), ends
            self.values = low * (high / low) ** steps if self.is_log else low + (high - low) * steps

    def at(self, values: Tensor) -> Tensor:
        """Coordinates on the column's axis: positions of categories, else the values themselves."""
        values = values.detach().cpu().double().contiguous()
        return torch.searchsorted(self.values, values).double() if self._is_category else values

    def share(self, values: Tensor) -> Tensor:
        """Coordinates scaled so that the column's range is from 0 to 1."""
        at, ends = self.at(values), self.at(self.values[[0, -1]])
        if self.is_log:
            at, ends = at.log(), ends.log()
        return (at - ends[0]) / (ends[1] - ends[0]) if ends[1] > ends[0] else 0.5 + 0.0 * at

    def label(self, axis: Any) -> None:
        """Set name, scale and ticks of an axis."""
        axis.set_label_text(self.name)
        if self.is_log:
            axis.axes.set(**{f"{axis.axis_name}scale": "log"})
        if self.texts:
            axis.set_ticks(self.at(self.values).tolist(), self.texts)
            axis.set_ticks([], minor=True)
            if self._is_category:  # room for the first and last marker
                axis.axes.set(**{f"{axis.axis_name}lim": (-0.5, len(self.texts) - 0.5)})
            if axis.axis_name == "x" and sum(map(len, self.texts)) > 24:
                axis.set_tick_params(rotation=45)


def _labels(values: Sequence[Any]) -> list[str]:
    """Values as text, shortened unless two would look alike."""
    texts = [f"{v:.4g}" if isinstance(v, float) else text_of(v) for v in values]
    half = MAX_LABEL // 2
    short = [t if len(t) <= MAX_LABEL else f"{t[:half]}…{t[1 - half :]}" for t in texts]
    return short if len(set(short)) == len(texts) else texts


def best_so_far(optimizer: Optimizer, values: Tensor) -> Tensor:
    """The best value so far at each of the values, ``n``."""
    return values.cummax(0).values if optimizer.maximize else values.cummin(0).values


def legend_below(ax: Any, columns: int, **options: Any) -> None:
    """A legend under the axes and the labels below them, which must have been set.

    It is inside the axes of a figure without a layout engine, which makes no room below them.
    """
    from matplotlib.transforms import ScaledTranslation

    if ax.figure.get_layout_engine() is None:
        ax.legend(**options)
        return
    labels = ax.xaxis.get_tightbbox()  # None if the axis is not visible
    inches = 0.0 if labels is None else max(ax.bbox.y0 - labels.y0, 0.0) / ax.figure.dpi
    # A distance in inches, as a layout that makes room for the legend makes the axes smaller.
    below = ax.transAxes + ScaledTranslation(0.0, -inches, ax.figure.dpi_scale_trans)
    options |= {"loc": "upper center", "bbox_to_anchor": (0.5, 0.0), "bbox_transform": below}
    ax.legend(ncol=columns, frameon=False, **options)
