"""How a run went: regret, rounds, workers, answers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from botorch_delay import validation
from botorch_delay.benchmarks import SimulationResult
from botorch_delay.benchmarks.paper import draw_mean
from botorch_delay.domains.box import points_of_grid
from botorch_delay.exceptions import InputError, InputTypeError, NoAnswerError
from botorch_delay.gp.delayed_gp import DelayedGP
from botorch_delay.history.trials import TrialState
from botorch_delay.optimizers.base import Optimizer
from botorch_delay.optimizers.bpe import BPEDelayOptimizer
from botorch_delay.plotting.axes import (
    BLUE,
    GREEN,
    ORANGE,
    VERMILION,
    Column,
    answers,
    best_so_far,
    legend_below,
    new_axes,
    pyplot,
    several_axes,
)
from botorch_delay.runner import RunReport

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LOOKS = 40  # points of each line in plot_certificates


def plot_regret(
    histories: Mapping[str, SimulationResult | Sequence[SimulationResult]], ax: Axes | None = None
) -> Axes:
    """Cumulative regret against asks, with a line for each name.

    Several histories of one name are drawn as their mean with a band of half a standard deviation.
    """
    named = _simulated(histories)
    ax = new_axes(ax)
    for name, runs in named.items():
        if len({len(run.regret) for run in runs}) != 1:
            raise InputError(f"{name!r} must have at least one history, and all of equal length.")
        draw_mean(ax, name, torch.stack([run.regret for run in runs]).numpy())
    ax.set(xlabel="asks", ylabel="cumulative regret")
    ax.legend(frameon=False)
    return ax


def _simulated(histories: Any) -> dict[str, list[SimulationResult]]:
    """Histories by name, one or more of each, checked."""
    given = histories if isinstance(histories, Mapping) else {}
    named = {
        name: list(runs) if isinstance(runs, Iterable) else [runs] for name, runs in given.items()
    }
    every = itertools.chain(*named.values())
    wrong = [run for run in every if not isinstance(run, SimulationResult)]
    if wrong or not isinstance(histories, Mapping):
        raise InputTypeError(
            "plot_regret draws what simulate() returns, by name, as in {'BPE-Delay': result}; got "
            f"{type(wrong[0] if wrong else histories).__name__}. Where regret is not known, "
            "plot_best draws the best answer over time."
        )
    if not named:
        raise InputError("histories must hold at least one history.")
    return named


def plot_active_set(optimizer: BPEDelayOptimizer, ax: Axes | None = None) -> Axes:
    """Where each round eliminated points, what is still active, and all points with results.

    The domain must have one or two columns.
    """
    validation.instance(optimizer, BPEDelayOptimizer, "optimizer", "a BPEDelayOptimizer")
    domain = optimizer.domain
    if domain.dim > 2:
        raise InputError(
            f"plot_active_set draws domains with one or two columns, this one has {domain.dim}; "
            "plot_rounds draws any."
        )
    ax = new_axes(ax)
    columns = [Column(domain, place) for place in range(domain.dim)]
    handles = _draw_rounds(optimizer, ax, columns)
    with suppress(NoAnswerError):
        at = _plane(columns, answers(optimizer)[0])
        handles.append(ax.scatter(*at, s=10, color="black", label="answered"))
        at = _plane(columns, optimizer.recommend().x.unsqueeze(0))
        star: dict[str, Any] = {"s": 160, "marker": "*", "edgecolor": "black"}
        handles.append(ax.scatter(*at, color=ORANGE, label="recommended", **star))
    columns[0].label(ax.xaxis)
    if domain.dim == 2:
        columns[1].label(ax.yaxis)
    else:
        ax.set_yticks([])
    legend_below(ax, columns=3, handles=handles)
    return ax


def plot_rounds(optimizer: BPEDelayOptimizer, ax: Axes | None = None) -> Axes:
    """The size of the active set at each ask; shaded are as many as were made while a round waited.

    Repeated asks of failed design points count among these, see ``RoundRecord.extra_asks``.
    """
    validation.instance(optimizer, BPEDelayOptimizer, "optimizer", "a BPEDelayOptimizer")
    ax = new_axes(ax)
    domain = optimizer.domain
    finite = domain.count is not None
    begin, steps = 0, [0]
    counts = [float(domain.count or 1)]
    for record in optimizer.rounds:
        end = begin + record.length
        ax.axvline(end, color="0.8", linewidth=1, zorder=0)
        if record.extra_asks:
            ax.axvspan(end - record.extra_asks, end, color="0.93", zorder=0)
        text = f"round {record.number}" if record.number == 1 else f"{record.number}"
        middle, above = (begin + end) / 2, ax.get_xaxis_transform()
        ax.text(middle, 1.01, text, transform=above, color="0.4", ha="center", va="bottom")
        steps += [end, end]
        counts += [record.active_before, record.active_after]
        begin = end
    steps.append(max(len(optimizer.trials), begin))
    counts.append(counts[-1])
    ax.plot(steps, counts, color=BLUE)
    ax.set(xlabel="asks (shaded: made while a round waited)")
    what = "active points" if finite else "active share of the box"
    ax.set(ylabel=f"{what} (logarithmic)", yscale="log")
    ticks = [counts[0]]
    apart = max(0.08 * math.log(counts[0] / min(filter(None, counts))), 0.05)
    for count in filter(None, counts):  # a logarithmic axis has no 0
        if math.log(ticks[-1] / count) > apart:  # else the labels would overlap
            ticks.append(count)
    ax.set_yticks(ticks, [f"{tick:.{6 if finite else 2}g}" for tick in ticks])
    ax.set_yticks([], minor=True)
    ax.margins(x=0.03, y=0.1)
    return ax


def plot_timeline(report: RunReport, ax: Axes | None = None, *, start: float | None = None) -> Axes:
    """When each evaluation of ``runner.run`` ran, with one lane per worker.

    ``start`` is time 0, in seconds since the epoch; by default the start of the first evaluation.
    """
    validation.instance(report, RunReport, "report", "the RunReport of a run")
    ax = new_axes(ax)
    evaluations = report.evaluations
    if start is None:
        start = min((e.started for e in evaluations), default=0.0)
    start = validation.real(start, "start")
    unit, size = _time_unit(max((e.finished for e in evaluations), default=start) - start)
    lanes = list(dict.fromkeys(e.worker for e in evaluations))
    style: dict[str, Any] = {"height": 0.7, "edgecolor": "white", "linewidth": 0.5}
    for label, colour in (("completed", BLUE), ("failed", VERMILION)):
        if drawn := [e for e in evaluations if bool(e.error) == (label == "failed")]:
            begins = [(e.started - start) / size for e in drawn]
            widths = [(e.finished - e.started) / size for e in drawn]
            rows = [lanes.index(e.worker) for e in drawn]
            ax.barh(rows, widths, left=begins, color=colour, label=label, **style)
    labelled = range(0, len(lanes), max(-(-len(lanes) // 12), 1))  # at most 12 labels
    ax.set_yticks(labelled, [f"worker {number + 1}" for number in labelled])
    ax.set(xlabel=unit)
    ax.set_xlim(left=min(0.0, ax.get_xlim()[0]))
    ax.invert_yaxis()
    if evaluations:
        legend_below(ax, columns=4)
    return ax


def plot_best(optimizer: Optimizer, ax: Axes | None = None, *, start: float | None = None) -> Axes:
    """Every answer, and the best so far, against time.

    ``start`` is time 0, in seconds since the epoch; by default the first ask.
    """
    validation.instance(optimizer, Optimizer, "optimizer", "an optimizer")
    told = sorted(
        (t.known_at, t.value)
        for t in optimizer.trials
        if t.known_at is not None and t.value is not None
    )
    if not told:
        raise NoAnswerError("There is no answer yet to draw against time; tell() one.")
    ax = new_axes(ax)
    start = optimizer.trials[0].asked_at if start is None else validation.real(start, "start")
    unit, size = _time_unit(told[-1][0] - start)
    times = [(end - start) / size for end, _ in told]
    values = torch.tensor([value for _, value in told], dtype=torch.double)
    best = best_so_far(optimizer, values)
    ax.scatter(times, values, s=14, color=BLUE, label="answer")
    ax.step(times, best, where="post", color=GREEN, label="best answer so far")
    ax.set(xlabel=unit, ylabel="value")
    ax.set_xlim(left=min(0.0, ax.get_xlim()[0]))
    legend_below(ax, columns=2)
    return ax


def plot_history(optimizer: Optimizer, axes: Sequence[Axes] | None = None) -> list[Axes]:
    """Answers and the best so far, and below them the trials in flight, against the asks.

    Answers and attached results are drawn at the number of asks before them.
    """
    validation.instance(optimizer, Optimizer, "optimizer", "an optimizer")
    values, plt = answers(optimizer)[1], pyplot()
    if axes is None:
        axes = plt.subplots(2, sharex=True, layout="constrained", height_ratios=[2, 1])[1]
    top, bottom = several_axes(axes, 2)
    trials, count = optimizer.trials, len(optimizer.trials)
    came = [t.known_step or 0 for t in trials if t.value is not None]
    steps = torch.tensor(came + [result.told_step for result in optimizer.attached])
    order = torch.argsort(steps, stable=True)
    best = best_so_far(optimizer, values[order])
    if came:
        top.scatter(steps[: len(came)], values[: len(came)], s=14, color=BLUE, label="answer")
    if optimizer.attached:
        attached: dict[str, Any] = {"s": 24, "marker": "D", "facecolor": "none", "clip_on": False}
        at = steps[len(came) :], values[len(came) :]
        top.scatter(*at, edgecolor=ORANGE, label="attached", **attached)
    ends = torch.cat([steps[order], torch.tensor([max(count, 1)])])
    top.step(ends, torch.cat([best, best[-1:]]), where="post", color=GREEN, label="best so far")
    low = top.get_ylim()[0]
    for state, marker, color in (
        (TrialState.FAILED, "x", VERMILION),
        (TrialState.ABANDONED, "+", "0.4"),
    ):
        ends_at = [t.told_step or 0 for t in trials if t.state is state]
        if ends_at:
            style: dict[str, Any] = {"marker": marker, "s": 24, "color": color}
            top.scatter(ends_at, [low] * len(ends_at), label=f"{state.value} (no value)", **style)
    top.set(ylabel="value", title=f"{count} trials asked, {len(optimizer.pending)} running")
    top.legend(frameon=False, ncol=5, fontsize="small")
    # In flight after each ask; the last step shows what is still running.
    ended = [count + 1 if t.told_step is None else t.told_step for t in trials]
    ends = torch.bincount(torch.tensor(ended, dtype=torch.long), minlength=count + 2)
    asked = torch.arange(count + 2).clamp_max(count)
    in_flight = asked - torch.cat([torch.zeros(1), ends[: count + 1].cumsum(0)])
    bottom.fill_between(range(count + 2), in_flight, step="mid", color=BLUE, alpha=0.5)
    most = max(float(in_flight.max()), 1.0)
    bottom.set(xlabel="asks", ylabel="in flight", ylim=(0, 1.05 * most))
    for axis in (bottom.xaxis, bottom.yaxis):
        axis.set_major_locator(plt.MaxNLocator(integer=True))
    return [top, bottom]


def plot_certificates(
    optimizer: Optimizer,
    norm_bound: float,
    noise_std: float,
    factors: Sequence[float] = (1.0, 1.5, 2.0),
    *,
    ax: Axes | None = None,
) -> Axes:
    """Certified regret against asks, at multiples of a norm bound.

    A line ends where the answers first refute its norm bound; the legend has the least one that
    they never refute.

    Args:
        optimizer: with at least one ask.
        norm_bound: a supposed bound on the RKHS norm of f.
        noise_std: the sub-Gaussian scale of the noise.
        factors: multiples of ``norm_bound``, with a line for each.
        ax: where to draw.

    Raises:
        InputError: if an argument cannot be used.
        NotSupportedError: if the optimizer has no certificate.
    """
    validation.instance(optimizer, Optimizer, "optimizer", "an optimizer")
    norm_bound = validation.positive(norm_bound, "norm_bound")
    if not len(factors):
        raise InputError("factors must have at least one multiple of norm_bound, got none.")
    ax = new_axes(ax)
    count, least = len(optimizer.trials), 0.0
    steps = sorted({max(round(count * share / LOOKS), 1) for share in range(1, LOOKS + 1)})
    steps = [step for step in steps if step <= count]
    for factor, colour in zip(factors, itertools.cycle((BLUE, GREEN, ORANGE, VERMILION))):
        found = [optimizer.certify(factor * norm_bound, noise_std, asks=step) for step in steps]
        least = max((certificate.norm_at_least for certificate in found), default=0.0)
        regret = [c.regret for c in itertools.takewhile(lambda c: not c.refuted, found)]
        ax.plot(steps[: len(regret)], regret, color=colour, label=f"norm {factor * norm_bound:.3g}")
    ax.set(xlabel="asks", ylabel="certified regret", xlim=(0, max(count, 1)), ylim=(0, None))
    ax.legend(frameon=False, title=f"least norm not refuted: {least:.3g}")
    return ax


def plot_posteriors(model: DelayedGP, X: Tensor, ax: Axes | None = None) -> Axes:
    """Observed and fantasy posterior of a model with one column: mean and two deviations each.

    ``X`` (``n x 1``, increasing) is where to draw.
    """
    validation.instance(model, DelayedGP, "model", "a DelayedGP")
    model.eval()
    (answered, values), pending = model.answered, model.X_pending
    if answered.shape[-1] != 1:
        raise InputError(
            f"plot_posteriors draws models with one column, this has {answered.shape[-1]}."
        )
    ax = new_axes(ax)
    x = X.flatten().cpu()
    bands = {
        "observed: $\\tilde\\mu \\pm 2\\tilde\\sigma$": (model, "#56B4E9", 0.35),
        "fantasy: $\\tilde\\mu \\pm 2\\sigma$": (model.fantasy_model(), BLUE, 0.55),
    }
    with torch.no_grad():
        mean = model.posterior(X).mean.flatten().cpu()
        for label, (gp, colour, alpha) in bands.items():
            half = 2.0 * gp.posterior(X).variance.flatten().sqrt().cpu()
            style: dict[str, Any] = {"color": colour, "alpha": alpha, "linewidth": 0}
            ax.fill_between(x, mean - half, mean + half, label=label, **style)
        ax.plot(x, mean, color="black", linewidth=1)
        if len(pending):
            at = pending.flatten().cpu(), model.posterior(pending).mean.flatten().cpu()
            style = {"facecolor": "white", "edgecolor": VERMILION, "zorder": 3}
            ax.scatter(*at, label="pending", **style)
        if len(answered):
            at = answered.flatten().cpu(), values.flatten().cpu()
            ax.scatter(*at, s=18, color="black", zorder=3, label="answered")
    ax.set(xlabel="x", ylabel="f(x)")
    ax.legend(frameon=False)
    return ax


def _time_unit(seconds: float) -> tuple[str, float]:
    """A readable unit for a span, and its length in seconds."""
    for unit, size in (("days", 86400.0), ("hours", 3600.0), ("minutes", 60.0)):
        if seconds >= 2 * size:
            return unit, size
    return "seconds", 1.0


def _draw_rounds(optimizer: BPEDelayOptimizer, ax: Axes, columns: Sequence[Column]) -> list[Any]:
    """Colour each point by the round that eliminated it; returns handles for the legend."""
    from matplotlib.patches import Patch

    points = points_of_grid(optimizer.domain, 100 if len(columns) == 2 else 1000)
    eliminated = optimizer.active_set.round_that_eliminated(points).cpu()  # 0 if active
    at = torch.stack(_plane(columns, points))
    numbers = eliminated.unique().tolist()
    # Markers so large that neighbours on the grid touch.
    pitch = 1.1 * ax.bbox.width * 72 / ax.figure.dpi / len(points) ** (1 / len(columns))
    style: dict[str, Any] = {"marker": "s", "s": pitch**2, "linewidths": 0.0, "zorder": 0}
    if len(columns) == 1:
        style |= {"marker": "|", "s": 900.0, "linewidths": pitch}
    handles = []
    for number in numbers:
        # Active points are green, eliminated ones grey, the earlier the lighter.
        colour = str(0.92 - 0.5 * (number - 1) / max(numbers)) if number else "#8FD5B6"
        ax.scatter(*at[:, eliminated == number], color=colour, **style)
        label = f"out in round {number}" if number else "active"
        handles.append(Patch(color=colour, label=label))
    return handles


def _plane(columns: Sequence[Column], X: Tensor) -> tuple[Tensor, Tensor]:
    """Both coordinates of points; the second is 0 if there is only one column."""
    at = [column.at(X[:, place]) for place, column in enumerate(columns)]
    return at[0], at[1] if len(at) == 2 else torch.zeros(len(X), dtype=torch.double)
