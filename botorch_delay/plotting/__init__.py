"""Pictures of runs: each function draws on Matplotlib axes, on new ones if it is given none.

Each returns the axes, a list where there are several, but for ``plot_summary``, which returns the
figure. Without Matplotlib it raises a ``MissingExtraError``, an ``InputTypeError``
if it is given something else than it draws, and a ``NoAnswerError`` where there is nothing to draw
before the first answer.
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
