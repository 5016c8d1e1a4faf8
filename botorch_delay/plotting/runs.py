"""How a run went: regret, rounds, workers, answers."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from botorch_delay.benchmarks import SimulationResult
from botorch_delay.benchmarks.paper import draw_mean
from botorch_delay.domains.box import BoxDomain
from botorch_delay.domains.finite import Domain
from botorch_delay.domains.parameters import Choice, text_of
from botorch_delay.elimination.finite_active_set import FiniteActiveSet
from botorch_delay.exceptions import InputError
from botorch_delay.gp.delayed_gp import DelayedGP
from botorch_delay.history.trials import TrialState
from botorch_delay.optimizers import BPEDelayOptimizer, Optimizer
from botorch_delay.plotting.axes import (
    BLUE,
    GREEN,
    ORANGE,
    VERMILION,
    answers,
    axis_name,
    best_so_far,
    check,
    legend_below,
    new_axes,
    pyplot,
)
from botorch_delay.runner import RunReport

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_PIXELS = 240
_MAX_TICKS = 12  # of a choice's values
LOOKS = 40  # at how many numbers of asks there are certificates


def plot_regret(
    histories: Mapping[str, SimulationResult | Sequence[SimulationResult]], ax: Axes | None = None
) -> Axes:
    """Cumulative regret against steps, of histories by name.

    Several of one name are drawn as their mean with a band of half a standard deviation, as in the
    paper.
    """
    ax = new_axes(ax)
    check(histories, Mapping, "plot_regret")
    if not histories:
        raise InputError("histories must hold at least one history.")
    for name, repeats in histories.items():
        runs = [repeats] if isinstance(repeats, SimulationResult) else repeats
        for run in runs:
            check(run, SimulationResult, "plot_regret")
        if len({len(run.regret) for run in runs}) != 1:
            raise InputError(f"The histories of {name!r} must be one or more of equal length.")
        draw_mean(ax, name, torch.stack([run.regret for run in runs]).numpy())
    ax.set(xlabel="asks", ylabel="cumulative regret")
    ax.legend(frameon=False)
    return ax


def plot_active_set(optimizer: BPEDelayOptimizer, ax: Axes | None = None) -> Axes:
    """Which round eliminated which point, what is still active, and where answers came from.

    Of a domain with one or two columns.
    """
    check(optimizer, BPEDelayOptimizer, "plot_active_set")
    domain = optimizer.domain
    if domain.dim > 2:
        raise InputError(
            f"plot_active_set draws domains with one or two columns, this one has {domain.dim}; "
            "plot_rounds draws any."
        )
    ax = new_axes(ax)
    handles = _draw_rounds(optimizer, ax)
    answered = [t.x for t in optimizer.trials if t.value is not None]
    if answered:
        at = _plane(_shown(domain, torch.stack(answered)))
        handles.append(ax.scatter(*at, s=10, color="black", label="answered"))
        at = _plane(_shown(domain, optimizer.recommend().x.unsqueeze(0)))
        star: dict[str, Any] = {"s": 240, "marker": "*", "edgecolor": "black"}
        handles.append(ax.scatter(*at, color=ORANGE, label="recommended", **star))
    legend_below(ax, columns=3, handles=handles)
    _label_axis(ax.xaxis, domain, 0)
    if domain.dim == 2:
        _label_axis(ax.yaxis, domain, 1)
    else:
        ax.set_yticks([])
    return ax


def plot_rounds(optimizer: BPEDelayOptimizer, ax: Axes | None = None) -> Axes:
    """How much was active during each ask; shaded where a round only waited for answers."""
    check(optimizer, BPEDelayOptimizer, "plot_rounds")
    ax = new_axes(ax)
    domain = optimizer.domain
    finite = domain.count is not None
    begin, steps = 0, [0]
    counts = [float(domain.count or 1)]
    for record in optimizer.rounds:
        end = begin + record.length
        ax.axvline(end, color="0.8", linewidth=1, zorder=0)
        if record.length > record.design_size:
            ax.axvspan(begin + record.design_size, end, color="0.93", zorder=0)
        text = f"round {record.number}" if record.number == 1 else f"{record.number}"
        above = {"transform": ax.get_xaxis_transform(), "ha": "center", "va": "bottom"}
        ax.text((begin + end) / 2, 1.01, text, color="0.4", **above)
        steps += [end, end]
        counts += [record.active_before, record.active_after]
        begin = end
    steps.append(max(len(optimizer.trials), begin))
    counts.append(counts[-1])
    ax.plot(steps, counts, color=BLUE)
    ax.set(xlabel="asks (shaded: beyond the design)")
    ax.set(ylabel="active points" if finite else "active share of the box", yscale="log")
    ticks = [counts[0]]
    if 0.0 < counts[-1] < 0.95 * counts[0]:  # else the labels would overlap
        ticks.append(counts[-1])
    ax.set_yticks(ticks, [f"{tick:.{6 if finite else 2}g}" for tick in ticks])
    ax.set_yticks([], minor=True)
    ax.margins(x=0.03, y=0.1)
    return ax


def plot_timeline(report: RunReport, ax: Axes | None = None, *, start: float | None = None) -> Axes:
    """When each evaluation of ``runner.run`` ran, with one lane per worker.

    ``start`` is the time that counts as 0, in seconds since the epoch; by default the first.
    """
    check(report, RunReport, "plot_timeline")
    ax = new_axes(ax)
    evaluations = report.evaluations
    if start is None:
        start = min((e.started for e in evaluations), default=0.0)
    unit, size = _time_unit(max((e.finished for e in evaluations), default=start) - start)
    lanes = list(dict.fromkeys(e.worker for e in evaluations))
    style: dict[str, Any] = {"height": 0.7, "edgecolor": "white", "linewidth": 0.5}
    for label, colour in (("completed", BLUE), ("failed", VERMILION)):
        if drawn := [e for e in evaluations if bool(e.error) == (label == "failed")]:
            begins = [(e.started - start) / size for e in drawn]
            widths = [(e.finished - e.started) / size for e in drawn]
            rows = [lanes.index(e.worker) for e in drawn]
            ax.barh(rows, widths, left=begins, color=colour, label=label, **style)
    labelled = range(0, len(lanes), max(-(-len(lanes) // 12), 1))  # no more than can be read
    ax.set_yticks(labelled, [f"worker {number + 1}" for number in labelled])
    ax.set(xlabel=unit)
    ax.set_xlim(left=min(0.0, ax.get_xlim()[0]))
    ax.invert_yaxis()
    if evaluations:
        legend_below(ax, columns=4)
    return ax


def plot_best(optimizer: Optimizer, ax: Axes | None = None, *, start: float | None = None) -> Axes:
    """Every answer, and the best so far, against the time since the first ask.

    ``start`` is the time that counts as 0, in seconds since the epoch.
    """
    check(optimizer, Optimizer, "plot_best")
    ax = new_axes(ax)
    ax.set(xlabel="seconds", ylabel="value")
    answers = sorted(
        (t.answered_at, t.value)
        for t in optimizer.trials
        if t.answered_at is not None and t.value is not None
    )
    if not answers:
        return ax
    start = optimizer.trials[0].asked_at if start is None else start
    unit, size = _time_unit(answers[-1][0] - start)
    times = [(end - start) / size for end, _ in answers]
    values = torch.tensor([value for _, value in answers], dtype=torch.double)
    best = best_so_far(optimizer, values)
    ax.scatter(times, values, s=14, color=BLUE, label="answer")
    ax.step(times, best, where="post", color=GREEN, label="best answer so far")
    ax.set(xlabel=unit)
    ax.set_xlim(left=min(0.0, ax.get_xlim()[0]))
    legend_below(ax, columns=2)
    return ax


def plot_history(optimizer: Optimizer, axes: Sequence[Axes] | None = None) -> list[Axes]:
    """Answers and the best so far, and below them how many trials ran, over the asks, on two axes.

    An answer stands where it came, and an attached result where it was attached: after how many
    asks.
    """
    check(optimizer, Optimizer, "plot_history")
    values, plt = answers(optimizer)[1], pyplot()
    if axes is None:
        axes = plt.subplots(2, sharex=True, layout="constrained", height_ratios=[2, 1])[1]
    top, bottom = axes
    trials = optimizer.trials
    came = [t.answered_step or 0 for t in trials if t.value is not None]
    steps = torch.tensor(came + [result.answered_step for result in optimizer.attached])
    order = torch.argsort(steps, stable=True)
    best = best_so_far(optimizer, values[order])
    top.scatter(steps[: len(came)], values[: len(came)], s=14, color=BLUE, label="answer")
    if optimizer.attached:
        attached: dict[str, Any] = {"s": 24, "marker": "D", "facecolor": "none", "clip_on": False}
        at = steps[len(came) :], values[len(came) :]
        top.scatter(*at, edgecolor=ORANGE, label="attached", **attached)
    ends = torch.cat([steps[order], torch.tensor([max(len(trials), 1)])])
    top.step(ends, torch.cat([best, best[-1:]]), where="post", color=GREEN, label="best so far")
    failed = [t.answered_step or 0 for t in trials if t.state is TrialState.FAILED]
    if failed:
        low = top.get_ylim()[0]
        top.scatter(failed, [low] * len(failed), marker="x", s=24, color=VERMILION, label="failed")
    top.set(ylabel="value", title=f"{len(trials)} trials asked, {len(optimizer.pending)} running")
    top.legend(frameon=False, ncol=4, fontsize="small")
    # Each runs from its own ask until it ends, or to this day.
    spans = [(t.id, len(trials) if t.answered_step is None else t.answered_step) for t in trials]
    change = torch.zeros(len(trials) + 2, dtype=torch.long)
    for begin, end in spans:
        change[begin + 1] += 1
        change[end + 1] -= 1
    in_flight = change.cumsum(0)[: len(trials) + 1]
    bottom.fill_between(range(len(trials) + 1), in_flight, step="mid", color=BLUE, alpha=0.5)
    bottom.set(xlabel="asks", ylabel="in flight", ylim=(0, None))
    for axis in (bottom.xaxis, bottom.yaxis):
        axis.set_major_locator(plt.MaxNLocator(integer=True))
    return [top, bottom]


def plot_certificates(
    optimizer: Optimizer,
    norm_bound: float,
    noise_std: float,
    factors: Sequence[float] = (1.0, 1.5, 2.0),
    *,
    covar_module: Kernel | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Certified regret over the asks, at multiples of a norm.

    A line ends where the answers refute its norm; the legend has the least norm that they do not.

    Args:
        optimizer: with at least one ask; certificates are those of ``optimizer.certify``.
        norm_bound: the RKHS norm of f that is supposed.
        noise_std: the sub-Gaussian scale of the noise.
        factors: what the norm is multiplied by, one line for each.
        covar_module: the kernel, where it is another one than the optimizer's.
        ax: where to draw.

    Raises:
        NotSupportedError: where the optimizer has no certificate.
    """
    check(optimizer, Optimizer, "plot_certificates")
    ax = new_axes(ax)
    count, least = len(optimizer.trials), 0.0
    steps = sorted({max(round(count * share / LOOKS), 1) for share in range(1, LOOKS + 1)})
    steps = [step for step in steps if step <= count]
    for factor, colour in zip(factors, itertools.cycle((BLUE, GREEN, ORANGE, VERMILION))):
        found = [
            optimizer.certify(factor * norm_bound, noise_std, covar_module=covar_module, asks=step)
            for step in steps
        ]
        least = max((certificate.norm_at_least for certificate in found), default=0.0)
        regret = [certificate.regret for certificate in found]
        ax.plot(steps, regret, color=colour, label=f"norm {factor * norm_bound:.3g}")
    ax.set(xlabel="asks", ylabel="certified regret", ylim=(0, None))
    ax.legend(frameon=False, title=f"least norm not refuted: {least:.3g}")
    return ax


def plot_posteriors(model: DelayedGP, X: Tensor, ax: Axes | None = None) -> Axes:
    """Observed and fantasy posterior of a model with one column: mean and two deviations each.

    ``X`` (``n x 1``, in increasing order) is where to draw.
    """
    check(model, DelayedGP, "plot_posteriors")
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
    """The unit in which a span reads well, and its length in seconds."""
    for unit, size in (("days", 86400.0), ("hours", 3600.0), ("minutes", 60.0)):
        if seconds >= 2 * size:
            return unit, size
    return "seconds", 1.0


def _label_axis(axis: Any, domain: Domain, column: int) -> None:
    """Name and unit, and the user's own values: those of a choice, and no logarithms."""
    parameter = domain.columns.varying[domain.names[column]]
    axis.set_label_text(axis_name(domain, column))
    log = column in domain.log_dims
    if isinstance(parameter, Choice) and parameter.count <= _MAX_TICKS:
        places = torch.tensor(parameter.column, dtype=torch.double)
        texts = [text_of(value) for value in parameter.values]
        axis.set_ticks((places.log10() if log else places).tolist(), texts)
    elif log:
        axis.set_major_formatter(lambda place, _: f"{10.0**place:.3g}")


def _draw_rounds(optimizer: BPEDelayOptimizer, ax: Axes) -> list[Any]:
    """Colour each point by the round that eliminated it; handles for the legend."""
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Patch

    points, eliminated = _points_and_rounds(optimizer)
    cells, extent = _nearest_cells(_shown(optimizer.domain, points), eliminated)
    numbers = sorted(set(eliminated[eliminated >= 0].tolist()))
    rounds = max(numbers, default=0)
    # Blank where nothing may be asked, green for what is active, greys for what was eliminated,
    # the earlier the lighter.
    greys = [str(0.92 - 0.5 * r / max(rounds, 1)) for r in range(rounds)]
    colours = ["white", "#8FD5B6", *greys]
    style: dict[str, Any] = {"cmap": ListedColormap(colours), "vmin": -1.5, "vmax": rounds + 0.5}
    style |= {"origin": "lower", "aspect": "auto", "interpolation": "nearest"}
    ax.imshow(cells, extent=extent, **style)
    return [
        Patch(color=colours[1 + n], label=f"out in round {n}" if n else "active") for n in numbers
    ]


def _points_and_rounds(optimizer: BPEDelayOptimizer) -> tuple[Tensor, Tensor]:
    """Points of the domain, ``n x d``, and the round that eliminated each, ``n``.

    0 for points that are active, -1 for those of a box that may not be asked.
    """
    domain, active = optimizer.domain, optimizer.active_set
    if isinstance(active, FiniteActiveSet):
        return domain.like, active.eliminated.cpu()
    assert isinstance(domain, BoxDomain)
    side = 100 if domain.dim == 2 else 1000
    steps = (torch.arange(side, dtype=torch.double) + 0.5) / side
    unit = torch.cartesian_prod(*[steps] * domain.dim).reshape(-1, domain.dim)
    points = torch.unique(domain.from_unit(unit.to(domain.bounds)), dim=0)
    inside = domain.contains(points)
    eliminated = torch.full((len(points),), -1)
    eliminated[inside.cpu()] = optimizer.active_set.round_that_eliminated(points[inside]).cpu()
    return points, eliminated


def _shown(domain: Domain, X: Tensor) -> Tensor:
    """Points as they are drawn: logarithms where the domain is modelled by them."""
    X = X.detach().cpu().clone()
    for column in domain.log_dims:
        X[:, column] = X[:, column].log10()
    return X


def _plane(X: Tensor) -> tuple[Tensor, Tensor]:
    """Both coordinates; the second is 0 where there is only one."""
    return X[:, 0], X[:, 1] if X.shape[1] == 2 else torch.zeros(len(X))


def _nearest_cells(X: Tensor, labels: Tensor) -> tuple[Tensor, tuple[float, float, float, float]]:
    """A picture in which every pixel has the label of the nearest point, and its extent."""
    from scipy.spatial import cKDTree

    dim = X.shape[1]
    low, high = X.amin(dim=0), X.amax(dim=0)
    width = torch.where(high > low, high - low, torch.ones_like(low))
    # A margin of half a cell, so that the outermost points have whole ones.
    margin = 0.5 / max(len(X) ** (1 / dim) - 1.0, 1.0)
    steps = torch.linspace(-margin, 1.0 + margin, _PIXELS, dtype=X.dtype)
    pixels = torch.cartesian_prod(*[steps] * dim).reshape(-1, dim)
    nearest = torch.from_numpy(cKDTree((X - low) / width).query(pixels)[1])
    ends = torch.stack([low - margin * width, high + margin * width], dim=1).tolist()
    (left, right), (bottom, top) = ends if dim == 2 else [*ends, (-1.0, 1.0)]
    return labels[nearest].reshape(_PIXELS, -1).T, (left, right, bottom, top)
