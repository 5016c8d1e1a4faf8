"""The paper's five figures, from the table of regrets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from botorch_delay.reproduction.cells import (
    BPE,
    BPE_DELAY,
    BPE_DELAY_PRINTED,
    BUCB,
    FUNCTIONS,
    SDF,
    UCB_ARRIVED,
    Setting,
    problem_of,
)
from botorch_delay.reproduction.verdicts import Curves

_WIDTH = 11.0


def draw_figures(folder: Path, setting: Setting, steps: list[int], curves: Curves) -> list[Path]:
    """Figures 1 to 5 as PNG files; means with half a standard deviation, as in the paper."""
    delays = setting.delays
    longest = delays[-1]
    drawn = [_draw_functions(folder / "figure1.png", setting)]
    lines: dict[str, tuple[str, list[tuple[str, int, str]]]] = {
        "figure2.png": (
            f"Mean delay {longest}",
            [(method, longest, method) for method in (BPE_DELAY, SDF, BUCB, UCB_ARRIVED)],
        ),
        "figure3.png": (
            BPE_DELAY,
            [(BPE_DELAY, delay, f"mean delay {delay}") for delay in delays]
            + [
                (BPE_DELAY_PRINTED, delay, f"mean delay {delay}, psi as printed")
                for delay in delays[1:]
            ],
        ),
        "figure4.png": (SDF, [(SDF, delay, f"mean delay {delay}") for delay in delays]),
        "figure5.png": (
            f"Mean delay {longest}",
            [(BPE_DELAY, longest, BPE_DELAY), (BPE, longest, f"{BPE}, which ignores the delay")],
        ),
    }
    for name, (title, shown) in lines.items():
        drawn.append(_draw_curves(folder / name, title, shown, steps, curves))
    return drawn


def _draw_functions(path: Path, setting: Setting) -> Path:
    figure, axes = _canvas()
    for ax, (function, lengthscale) in zip(axes, FUNCTIONS.items(), strict=True):
        problem = problem_of(setting, function, 0)
        values = problem.values.reshape(setting.side, setting.side).T
        image = ax.imshow(values, origin="lower", extent=(-5, 5, -5, 5), cmap="viridis")
        best = problem.points[int(problem.values.argmax())]
        ax.plot(*best.tolist(), "r+", markersize=12, label="maximiser")
        ax.legend(frameon=True, loc="lower right")
        figure.colorbar(image, ax=ax)
        ax.set(title=f"{function} (lengthscale {lengthscale})", xlabel="x0", ylabel="x1")
    figure.savefig(path, dpi=110)
    return path


def _draw_curves(
    path: Path,
    title: str,
    shown: list[tuple[str, int, str]],
    steps: list[int],
    curves: Curves,
) -> Path:
    figure, axes = _canvas()
    for ax, function in zip(axes, FUNCTIONS, strict=True):
        for method, delay, label in shown:
            runs = curves[function, method, delay]
            mean, half = runs.mean(axis=0), 0.5 * runs.std(axis=0, ddof=1)
            style = "--" if method == BPE_DELAY_PRINTED else "-"
            (line,) = ax.plot(steps, mean, style, label=label)
            ax.fill_between(steps, mean - half, mean + half, color=line.get_color(), alpha=0.2)
        ax.set(
            title=f"{function}: {title}", xlabel="asks", ylabel="cumulative regret", ylim=(0, None)
        )
    axes[0].legend(frameon=False)
    figure.savefig(path, dpi=110)
    return path


def _canvas() -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(_WIDTH, 4.2), layout="constrained")
    return figure, figure.subplots(1, 2)
