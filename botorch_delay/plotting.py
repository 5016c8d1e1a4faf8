"""Pictures of runs: each function draws on Matplotlib axes and returns them.

Matplotlib is optional; without it every function raises a one-line hint.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from botorch_delay.benchmarks import History
from botorch_delay.domains.box import BoxDomain
from botorch_delay.domains.finite import Domain, FiniteDomain
from botorch_delay.exceptions import InputError, InputTypeError, MissingExtraError
from botorch_delay.gp.delayed_gp import DelayedGP
from botorch_delay.history.trials import Trial, TrialState
from botorch_delay.optimizers import BPEDelayOptimizer, Optimizer
from botorch_delay.runner import RunReport

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Blue, orange and green that stay apart for colour-blind readers (Okabe and Ito).
_COLOURS = {
    TrialState.COMPLETED: "#0072B2",
    TrialState.FAILED: "#D55E00",
    TrialState.ABANDONED: "#999999",
    TrialState.RUNNING: "#E69F00",
}
_BEST = "#009E73"
_PIXELS = 240


def plot_regret(
    histories: History | Sequence[History] | Mapping[str, History | Sequence[History]],
    ax: Axes | None = None,
) -> Axes:
    """Cumulative regret against steps.

    Args:
        histories: one history, repeats of one, or either of them by name. Repeats are drawn as
            their mean with a band of half a standard deviation, as in the paper.
        ax: where to draw; new axes if None.

    Raises:
        MissingExtraError: without Matplotlib.
        InputError: if there is nothing to draw, or repeats differ in length.
    """
    ax = _axes(ax)
    named = dict(histories) if isinstance(histories, Mapping) else {"": histories}
    if not named:
        raise InputError("histories must hold at least one history.")
    for name, repeats in named.items():
        runs = [repeats] if isinstance(repeats, History) else repeats
        if not isinstance(runs, Sequence) or not all(isinstance(r, History) for r in runs):
            raise InputTypeError(
                "plot_regret draws histories of simulate, repeats of one in a list, several in a "
                f"dict by name; got {type(runs).__name__}."
            )
        if not runs or len({len(run.regret) for run in runs}) != 1:
            raise InputError(f"The histories of {name!r} must be one or more of equal length.")
        regret = torch.stack([run.regret for run in runs])
        steps = range(1, regret.shape[1] + 1)
        mean = regret.mean(dim=0)
        (drawn,) = ax.plot(steps, mean, label=name)
        if len(runs) > 1:
            half = 0.5 * regret.std(dim=0)
            ax.fill_between(steps, mean - half, mean + half, color=drawn.get_color(), alpha=0.2)
    ax.set(xlabel="asks", ylabel="cumulative regret")
    if any(named):
        ax.legend(frameon=False)
    return ax


def plot_active_set(
    optimizer: BPEDelayOptimizer,
    ax: Axes | None = None,
    names: Sequence[str] | None = None,
) -> Axes:
    """Which round took out which point, what is still active, and where answers came from.

    Args:
        optimizer: on a domain with one or two columns.
        ax: where to draw; new axes if None.
        names: of the columns; the domain's own if None.

    Raises:
        MissingExtraError: without Matplotlib.
        InputError: if the domain has more than two columns.
    """
    _check(optimizer, BPEDelayOptimizer, "plot_active_set")
    dim = optimizer.domain.dim
    if dim > 2:
        raise InputError(
            f"plot_active_set draws domains with one or two columns, this one has {dim}; "
            "plot_rounds draws any."
        )
    ax = _axes(ax)
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Patch

    domain = optimizer.domain
    cells, extent, eliminated = _round_cells(optimizer)
    rounds = int(eliminated.max())
    # Greys for what is out, the earlier the lighter; green for what is active.
    colours = ["#8FD5B6", *(str(0.92 - 0.5 * r / max(rounds, 1)) for r in range(rounds))]
    ax.imshow(
        cells,
        extent=extent,
        origin="lower",
        aspect="auto",
        cmap=ListedColormap(colours),
        vmin=-0.5,
        vmax=rounds + 0.5,
        interpolation="nearest",
    )
    shown = [number for number in range(rounds + 1) if (eliminated == number).any()]
    handles: list[Any] = [
        Patch(color=colours[n], label=f"out in round {n}" if n else "active") for n in shown
    ]
    answered = [t for t in optimizer.trials if t.value is not None]
    if answered:
        X = _shown(domain, torch.stack([t.x for t in answered]))
        at = _shown(domain, optimizer.recommend().x.unsqueeze(0))
        handles.append(ax.scatter(*_plane(X), s=10, color="black", label="answered"))
        star: dict[str, Any] = {
            "s": 240,
            "marker": "*",
            "edgecolor": "black",
            "label": "recommended",
        }
        handles.append(ax.scatter(*_plane(at), color=_COLOURS[TrialState.RUNNING], **star))
    ax.legend(
        handles=handles, loc="upper center", bbox_to_anchor=(0.5, -0.1), ncol=3, frameon=False
    )
    names = list(names or domain.names)
    if len(names) != dim:
        raise InputError(f"names must be {dim} strings, got {names}.")
    for column in domain.log_dims:
        names[column] = f"log10 {names[column]}"
    ax.set(xlabel=names[0])
    if dim == 2:
        ax.set(ylabel=names[1])
    else:
        ax.set_yticks([])
    return ax


def plot_rounds(optimizer: BPEDelayOptimizer, ax: Axes | None = None) -> Axes:
    """How many points were active during each ask; shaded where a round only waited.

    Args:
        optimizer: with or without closed rounds.
        ax: where to draw; new axes if None.

    Raises:
        MissingExtraError: without Matplotlib.
    """
    _check(optimizer, BPEDelayOptimizer, "plot_rounds")
    ax = _axes(ax)
    finite = isinstance(optimizer.domain, FiniteDomain)
    begin, steps = 0, [0]
    counts = [float(len(optimizer.domain)) if isinstance(optimizer.domain, FiniteDomain) else 1.0]
    for record in optimizer.rounds:
        end = begin + record.length
        ax.axvline(end, color="0.8", linewidth=1, zorder=0)
        if record.length > record.design_size:
            ax.axvspan(begin + record.design_size, end, color="0.93", zorder=0)
        middle = (begin + end) / 2
        ax.annotate(
            f"round {record.number}" if record.number == 1 else f"{record.number}",
            (middle, 1.0),
            xycoords=("data", "axes fraction"),
            xytext=(0, 4),
            textcoords="offset points",
            ha="center",
            color="0.4",
        )
        steps += [end, end]
        counts += [record.active_before, record.active_after]
        begin = end
    asked = len(optimizer.trials)
    if asked > begin:
        steps.append(asked)
        counts.append(counts[-1])
    ax.plot(steps, counts, color=_COLOURS[TrialState.COMPLETED])
    ax.set(xlabel="asks (shaded: beyond the design, waiting)", ylabel="active points")
    if not finite:
        ax.set_ylabel("active share of the box")
    ax.set_yscale("log")
    ticks: list[float] = []
    positive = sorted((count for count in set(counts) if count > 0), reverse=True)
    apart = max((positive[0] / positive[-1]) ** 0.08, 1.05)  # a label's height on a low axis
    for count in positive:  # those that would overlap with a larger one are left out
        if not ticks or apart * count < ticks[-1]:
            ticks.append(count)
    ax.set_yticks(ticks, [f"{tick:.{6 if finite else 2}g}" for tick in ticks])
    ax.set_yticks([], minor=True)
    ax.margins(x=0.03, y=0.1)
    return ax


def plot_timeline(
    run: RunReport | Optimizer, ax: Axes | None = None, *, start: float | None = None
) -> Axes:
    """When each evaluation ran.

    Args:
        run: the report of ``runner.run``, with one lane per worker; or an optimizer, with as
            many lanes as trials were in flight, from ask to answer.
        ax: where to draw; new axes if None.
        start: the time that counts as 0, in seconds since the epoch; by default the first.

    Raises:
        MissingExtraError: without Matplotlib.
        InputTypeError: if ``run`` is neither.
    """
    if isinstance(run, RunReport):
        bars, labels = _worker_bars(run)
    elif isinstance(run, Optimizer):
        bars, labels = _flight_bars(run.trials)
    else:
        raise InputTypeError(
            f"plot_timeline draws a RunReport or an optimizer, got {type(run).__name__}."
        )
    ax = _axes(ax)
    if start is None:
        start = min((begin for _, begin, _, _ in bars), default=0.0)
    unit, size = _time_unit(max((end for _, _, end, _ in bars), default=start) - start)
    seen: set[TrialState] = set()
    for lane, begin, end, state in bars:
        ax.barh(
            lane,
            (end - begin) / size,
            left=(begin - start) / size,
            height=0.7,
            color=_COLOURS[state],
            edgecolor="white",
            linewidth=0.5,
            label=state.value if state not in seen else None,
        )
        seen.add(state)
    step = max(-(-len(labels) // 12), 1)  # no more labels than can be read
    ax.set_yticks(range(0, len(labels), step), labels[::step])
    ax.set(xlabel=unit)
    ax.set_xlim(left=min(0.0, ax.get_xlim()[0]))
    ax.invert_yaxis()
    if seen:
        ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.18), ncol=4, frameon=False)
    return ax


def plot_best(optimizer: Optimizer, ax: Axes | None = None, *, start: float | None = None) -> Axes:
    """Every answer, and the best so far, against the time since the first ask.

    Args:
        optimizer: with or without answers.
        ax: where to draw; new axes if None.
        start: the time that counts as 0, in seconds since the epoch; by default the first ask.

    Raises:
        MissingExtraError: without Matplotlib.
    """
    _check(optimizer, Optimizer, "plot_best")
    ax = _axes(ax)
    unit = "seconds"
    answered = sorted(
        (t for t in optimizer.trials if t.value is not None), key=lambda t: t.answered_at or 0.0
    )
    if answered:
        start = optimizer.trials[0].asked_at if start is None else start
        ends = [t.answered_at or start for t in answered]
        unit, size = _time_unit(ends[-1] - start)
        times = [(end - start) / size for end in ends]
        values = torch.tensor([t.value for t in answered], dtype=torch.double)
        best = values.cummax(0).values if optimizer.maximize else values.cummin(0).values
        ax.scatter(times, values, s=14, color=_COLOURS[TrialState.COMPLETED], label="answer")
        ax.step(times, best, where="post", color=_BEST, label="best answer so far")
        ax.set_xlim(left=min(0.0, ax.get_xlim()[0]))
        ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.18), ncol=2, frameon=False)
    ax.set(xlabel=unit, ylabel="value")
    return ax


def plot_posteriors(model: DelayedGP, X: Tensor | None = None, ax: Axes | None = None) -> Axes:
    """Observed and fantasy posterior in one dimension: mean and two deviations each.

    Args:
        model: with one input column.
        X: ``n x 1``, where to draw; by default the span of the model's points and a bit more.
        ax: where to draw; new axes if None.

    Raises:
        MissingExtraError: without Matplotlib.
        InputTypeError: if ``model`` is no ``DelayedGP``.
        InputError: if it has more than one input column.
    """
    if not isinstance(model, DelayedGP):
        raise InputTypeError(f"plot_posteriors draws a DelayedGP, got {type(model).__name__}.")
    model.eval()
    (answered, values), pending = model.answered, model.X_pending
    if answered.shape[-1] != 1:
        raise InputError(
            f"plot_posteriors draws models with one column, this has {answered.shape[-1]}."
        )
    ax = _axes(ax)
    if X is None:
        both = torch.cat([answered, pending])
        low, high = (both.min(), both.max()) if len(both) else (0.0, 1.0)
        margin = 0.1 * max(float(high - low), 1e-6)
        ends = (float(low) - margin, float(high) + margin)
        X = torch.linspace(*ends, 300, dtype=answered.dtype, device=answered.device).unsqueeze(-1)
    x = X.flatten().cpu()
    bands = {
        "observed: $\\tilde\\mu \\pm 2\\tilde\\sigma$": (model, "#56B4E9", 0.35),
        "fantasy: $\\tilde\\mu \\pm 2\\sigma$": (model.fantasy_model(), "#0072B2", 0.55),
    }
    with torch.no_grad():
        mean = model.posterior(X).mean.flatten().cpu()
        for label, (gp, colour, alpha) in bands.items():
            half = 2.0 * gp.posterior(X).variance.flatten().sqrt().cpu()
            ax.fill_between(
                x, mean - half, mean + half, color=colour, alpha=alpha, label=label, linewidth=0
            )
        ax.plot(x, mean, color="black", linewidth=1)
        if len(pending):
            at = model.posterior(pending).mean.flatten().cpu()
            ax.scatter(
                pending.flatten().cpu(),
                at,
                marker="o",
                facecolor="white",
                edgecolor=_COLOURS[TrialState.FAILED],
                zorder=3,
                label="pending",
            )
        if len(answered):
            ax.scatter(
                answered.flatten().cpu(),
                values.flatten().cpu(),
                color="black",
                s=18,
                zorder=3,
                label="answered",
            )
    ax.set(xlabel="x", ylabel="f(x)")
    ax.legend(frameon=False)
    return ax


def _check(value: Any, kind: type, name: str) -> None:
    if not isinstance(value, kind):
        raise InputTypeError(f"{name} draws a {kind.__name__}, got {type(value).__name__}.")


def _time_unit(seconds: float) -> tuple[str, float]:
    """The unit in which a span reads well, and its length in seconds."""
    for unit, size in (("days", 86400.0), ("hours", 3600.0), ("minutes", 60.0)):
        if seconds >= 2 * size:
            return unit, size
    return "seconds", 1.0


def _round_cells(
    optimizer: BPEDelayOptimizer,
) -> tuple[Tensor, tuple[float, float, float, float], Tensor]:
    """A picture of which round took out what, its extent, and all its labels."""
    domain = optimizer.domain
    if isinstance(domain, FiniteDomain):
        labels = optimizer.eliminated.cpu()
        return *_nearest_cells(_shown(domain, domain.points), labels), labels
    assert isinstance(domain, BoxDomain)
    side = 100 if domain.dim == 2 else 1000
    steps = (torch.arange(side, dtype=torch.double) + 0.5) / side
    unit = torch.cartesian_prod(*[steps] * domain.dim).reshape(-1, domain.dim)
    grid = domain.from_unit(unit.to(domain.bounds))
    if domain.lists:
        points = torch.unique(grid, dim=0)
        points = points[domain.contains(points)]
        labels = optimizer.round_that_eliminated(points).cpu()
        return *_nearest_cells(_shown(domain, points), labels), labels
    inside = domain.contains(grid)
    labels = optimizer.round_that_eliminated(grid[inside]).cpu()
    cells = torch.full((len(grid),), torch.nan)  # blank where nothing may be asked
    cells[inside.cpu()] = labels.to(cells)
    low, high = _shown(domain, domain.bounds).tolist()
    if domain.dim == 1:
        return cells.reshape(1, side), (low[0], high[0], -1.0, 1.0), labels
    return cells.reshape(side, side).T, (low[0], high[0], low[1], high[1]), labels


def _shown(domain: Domain, X: Tensor) -> Tensor:
    """Points as they are drawn: logarithms where the domain is modelled by them."""
    X = X.detach().cpu().clone()
    for column in domain.log_dims:
        X[:, column] = X[:, column].log10()
    return X


def _plane(X: Tensor) -> tuple[Tensor, Tensor]:
    """Both coordinates; the second is 0 where there is only one."""
    return X[:, 0], X[:, 1] if X.shape[1] == 2 else torch.zeros(len(X))


def _nearest_cells(
    points: Tensor, labels: Tensor
) -> tuple[Tensor, tuple[float, float, float, float]]:
    """A picture in which every pixel has the label of the nearest point, and its extent."""
    dim = points.shape[1]
    low, high = points.amin(dim=0), points.amax(dim=0)
    width = torch.where(high > low, high - low, torch.ones_like(low))
    # A margin of half a cell, so that the outermost points have whole ones.
    margin = 0.5 / max(len(points) ** (1 / dim) - 1.0, 1.0)
    steps = torch.linspace(-margin, 1.0 + margin, _PIXELS, dtype=points.dtype)
    axes = [steps] if dim == 1 else [steps, steps]
    pixels = torch.cartesian_prod(*axes).reshape(-1, dim)
    scaled = (points - low) / width
    nearest = torch.cat([torch.cdist(chunk, scaled).argmin(dim=1) for chunk in pixels.split(4096)])
    shape = (_PIXELS, _PIXELS) if dim == 2 else (_PIXELS, 1)
    begin, end = low - margin * width, high + margin * width
    if dim == 1:
        return labels[nearest].reshape(shape).T, (begin.item(), end.item(), -1.0, 1.0)
    extent = (begin[0].item(), end[0].item(), begin[1].item(), end[1].item())
    return labels[nearest].reshape(shape).T, extent


def _axes(ax: Any) -> Any:
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise MissingExtraError(
            "Plots need Matplotlib: pip install 'botorch-delay[plots]'."
        ) from error
    return plt.subplots(layout="constrained")[1] if ax is None else ax


_Bar = tuple[int, float, float, TrialState]  # lane, begin, end, state


def _worker_bars(report: RunReport) -> tuple[list[_Bar], list[str]]:
    workers = list(dict.fromkeys(e.worker for e in report.evaluations))
    bars = [
        (
            workers.index(e.worker),
            e.started,
            e.finished,
            TrialState.FAILED if e.error else TrialState.COMPLETED,
        )
        for e in report.evaluations
    ]
    return bars, [f"worker {i + 1}" for i in range(len(workers))]


def _flight_bars(trials: Sequence[Trial]) -> tuple[list[_Bar], list[str]]:
    """Each trial in the first lane that is free when it is asked."""
    latest = max((t.answered_at or t.asked_at for t in trials), default=0.0)
    ends: list[float] = []
    bars = []
    for trial in trials:
        end = latest if trial.answered_at is None else trial.answered_at
        free = [lane for lane, until in enumerate(ends) if until <= trial.asked_at]
        if free:
            lane = free[0]
            ends[lane] = end
        else:
            lane = len(ends)
            ends.append(end)
        bars.append((lane, trial.asked_at, end, trial.state))
    return bars, [f"in flight {i + 1}" for i in range(len(ends))]
