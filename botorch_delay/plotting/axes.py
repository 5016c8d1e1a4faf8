"""What all pictures share: axes, colours, and the answers of a run."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from botorch_delay import validation
from botorch_delay.domains.finite import Domain
from botorch_delay.exceptions import InputTypeError, NoAnswerError
from botorch_delay.history.trials import Attached, Trial
from botorch_delay.optimizers import Optimizer

# Colours that stay apart for colour-blind readers (Okabe and Ito).
BLUE, VERMILION, ORANGE, GREEN = "#0072B2", "#D55E00", "#E69F00", "#009E73"


def check(value: Any, kind: type, name: str) -> None:
    """Refuse to draw anything else than a kind of object."""
    if not isinstance(value, kind):
        raise InputTypeError(f"{name} draws a {kind.__name__}, got {type(value).__name__}.")


def pyplot() -> Any:
    """Matplotlib's ``pyplot``; a MissingExtraError without it."""
    validation.installed("matplotlib", "Plots need Matplotlib")
    import matplotlib.pyplot as plt

    return plt


def new_axes(ax: Any) -> Any:
    """The given axes, or new ones."""
    plt = pyplot()
    return plt.subplots(layout="constrained")[1] if ax is None else ax


def answers(optimizer: Optimizer) -> tuple[Tensor, Tensor]:
    """The points of all answers, ``n x d``, then of all attached results, and their values, ``n``.

    In double precision on the CPU.
    """
    told = [trial for trial in optimizer.trials if trial.value is not None]
    results: list[Trial | Attached] = [*told, *optimizer.attached]
    if not results:
        raise NoAnswerError("There is no answer yet to draw; tell() or attach() one.")
    X = torch.stack([result.x for result in results]).cpu().double()
    return X, torch.tensor([result.value for result in results], dtype=torch.double)


def axis_name(domain: Domain, column: int) -> str:
    """The name of a column, and its unit."""
    name = domain.names[column]
    unit = domain.columns.units.get(name)
    return name if unit is None else f"{name} ({unit})"


def best_so_far(optimizer: Optimizer, values: Tensor) -> Tensor:
    """The best of the values up to each, ``n``."""
    return values.cummax(0).values if optimizer.maximize else values.cummin(0).values


def legend_below(ax: Any, columns: int, **options: Any) -> None:
    """A legend under the axes."""
    options |= {"loc": "upper center", "bbox_to_anchor": (0.5, -0.14)}
    ax.legend(ncol=columns, frameon=False, **options)
