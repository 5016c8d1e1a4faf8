"""Pictures of runs: each function draws on the Matplotlib axes that it is given, or on new ones.

It returns the axes, as a list if there are several; ``plot_summary`` returns a figure. It raises
``MissingExtraError`` without Matplotlib, ``InputTypeError`` for objects of another type, and
``NoAnswerError`` if there is nothing to draw before the first answer.
"""

from botorch_delay.plotting.columns import plot_parallel, plot_slices, plot_summary
from botorch_delay.plotting.runs import (
    plot_active_set,
    plot_best,
    plot_certificates,
    plot_history,
    plot_posteriors,
    plot_regret,
    plot_rounds,
    plot_timeline,
)

__all__ = [
    "plot_active_set",
    "plot_best",
    "plot_certificates",
    "plot_history",
    "plot_parallel",
    "plot_posteriors",
    "plot_regret",
    "plot_rounds",
    "plot_slices",
    "plot_summary",
    "plot_timeline",
]
