"""The paper's experiments (section 6): its figures, and which of its statements hold."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import stdtrit

from botorch_delay import validation
from botorch_delay.benchmarks.bench import LEVEL, Array, Estimate, markdown_table, read_results
from botorch_delay.benchmarks.functions import PROBLEMS
from botorch_delay.benchmarks.methods import BETA, XI, B
from botorch_delay.benchmarks.problems import FiniteProblem
from botorch_delay.benchmarks.suites import PAPER, Cell, Suite, read_run, run_file, run_suite
from botorch_delay.exceptions import RunError

__all__ = ["Reproduction", "Verdict", "reproduce"]

DELTA = 0.1  # the default of Algorithm 1
FUNCTIONS = ("f1", "f2")
MEANS = {"none": 0, "poisson-25": 25, "poisson-50": 50}  # mean delays, in steps
MIDDLE, LONGEST = 25, 50

BPE_DELAY, BPE_DELAY_PRINTED, BPE = "bpe-delay-psi-max", "bpe-delay-psi-min", "bpe"
SDF, BUCB, UCB_ARRIVED = "gp-ucb-sdf", "gp-bucb", "gp-ucb"
LABELS = {
    BPE_DELAY: "BPE-Delay",
    BPE_DELAY_PRINTED: "BPE-Delay (psi as printed)",
    BPE: "BPE",
    SDF: "GP-UCB-SDF",
    BUCB: "GP-BUCB",
    UCB_ARRIVED: "GP-UCB on what has arrived",
}
# Cumulative regrets (runs x steps) by function, method and mean delay in steps.
Regrets = Mapping[tuple[str, str, int], Array]
# Weights of final regrets by method and mean delay; the sum is below 0 if a statement holds.
Contrast = Mapping[tuple[str, int], float]


def _less(method: str, rival: str) -> Contrast:
    return {(method, LONGEST): 1.0, (rival, LONGEST): -1.0}


PUBLISHED = (BPE_DELAY, BPE_DELAY_PRINTED)
# If regret is linear, the excess at the longest delay is twice that at the middle; 25 % margin.
LINEAR = {LONGEST: 0.75, MIDDLE: -2.0, 0: 1.25}
STATEMENTS: dict[str, Contrast] = {
    **{f"Figure 2: {LABELS[m]} has less regret than GP-UCB-SDF.": _less(m, SDF) for m in PUBLISHED},
    **{
        f"Figure 3: the excess in regret of {LABELS[m]} is linear in the delay.": {
            (m, delay): weight for delay, weight in LINEAR.items()
        }
        for m in PUBLISHED
    },
    "Figure 4: the regret of GP-UCB-SDF jumps even with a moderate delay.": {
        (SDF, 0): 2.0,
        (SDF, MIDDLE): -1.0,
    },
    **{
        f"Figure 5: {LABELS[m]} performs better than BPE under delay.": _less(m, BPE)
        for m in PUBLISHED
    },
    **{
        f"Not in the paper: BPE-Delay has less regret than {LABELS[m]}.": _less(BPE_DELAY, m)
        for m in (BUCB, UCB_ARRIVED)
    },
}


@dataclass(frozen=True)
class Verdict:
    """A statement, and a contrast of regrets on each function, which is below 0 if it holds."""

    sentence: str
    contrast: str
    measured: Mapping[str, Estimate]

    @property
    def word(self) -> str:
        """Whether it holds on both functions."""
        below = {estimate.below for estimate in self.measured.values()}
        return "does not hold" if False in below else "not decided" if None in below else "holds"


@dataclass(frozen=True)
class Reproduction:
    """The files that were written, and the verdicts; as text, the verdicts in short."""

    report: Path
    figures: list[Path]  # PNG files, one per figure of the paper
    verdicts: list[Verdict]

    def __str__(self) -> str:
        lines = [f"{verdict.word:<14}{verdict.sentence}" for verdict in self.verdicts]
        return "\n".join(["", *lines, "", str(self.report)])


def reproduce(
    folder: Path, suite: Suite = PAPER, *, workers: int | None = None, progress: bool = True
) -> Reproduction:
    """Simulate, or resume an earlier call, and write table, figures and report.

    Args:
        folder: where to write; made if it does not exist.
        suite: the paper's, or the same with other seeds or steps.
        workers: processes; one per core if None.
        progress: whether to show a progress bar.

    Raises:
        MissingExtraError: without Matplotlib or pandas.
        InputError: if the folder cannot be written, or holds another suite.
        RunError: if a worker process dies, or a run fails.
    """
    validation.installed("matplotlib", "Figures need Matplotlib")
    cells, failed = run_suite(suite, folder, workers=workers, progress=progress)
    if failed:
        raise RunError("; ".join(failed))
    results = read_results(folder)
    regrets = _read_regrets(folder, cells)
    found = Reproduction(results.report, _draw(folder, regrets), verdicts_on(regrets))
    found.report.write_text("\n".join(_report(suite, regrets, found.verdicts, results.made)))
    return found


def _read_regrets(folder: Path, cells: Iterable[Cell]) -> Regrets:
    found: dict[tuple[str, str, int], list[Array]] = {}
    for cell in cells:
        run = read_run(run_file(folder, cell))
        assert run is not None
        key = cell.problem, cell.method, MEANS[cell.delay]
        found.setdefault(key, []).append(np.cumsum(run["asks"]["regret"]))
    return {key: np.stack(runs) for key, runs in found.items()}


def _draw(folder: Path, regrets: Regrets) -> list[Path]:
    """Figures 1 to 5: the functions, and mean regrets of methods with mean delays."""
    panels = [
        [(method, LONGEST) for method in (BPE_DELAY, SDF, BUCB, UCB_ARRIVED)],
        [(method, delay) for method in PUBLISHED for delay in MEANS.values()],
        [(SDF, delay) for delay in MEANS.values()],
        [(BPE_DELAY, LONGEST), (BPE, LONGEST)],
    ]
    figures = [folder / f"figure{number}.png" for number in range(1, 6)]
    _draw_functions(figures[0])
    for path, lines in zip(figures[1:], panels, strict=True):
        figure, axes = _canvas()
        for f, ax in zip(FUNCTIONS, axes, strict=True):
            for method, delay in lines:
                label = f"{LABELS[method]}, mean delay {delay}"
                style = "--" if method == BPE_DELAY_PRINTED else "-"
                draw_mean(ax, label, regrets[f, method, delay], style)
            ax.set(title=f, xlabel="asks", ylabel="cumulative regret", ylim=(0, None))
        axes[0].legend(frameon=False)
        figure.savefig(path, dpi=110)
    return figures


def _draw_functions(path: Path) -> None:
    """The two functions on their grid, and their maximisers."""
    figure, axes = _canvas()
    for name, ax in zip(FUNCTIONS, axes, strict=True):
        problem = PROBLEMS[name](0)
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


def draw_mean(ax: Any, label: str, runs: Array, style: str = "-") -> None:
    """The mean of runs (``n x steps``) with a band of half a standard deviation."""
    asks, mean = np.arange(1, runs.shape[1] + 1), runs.mean(axis=0)
    (line,) = ax.plot(asks, mean, style, label=label)
    if len(runs) > 1:
        half = 0.5 * runs.std(axis=0, ddof=1)
        ax.fill_between(asks, mean - half, mean + half, color=line.get_color(), alpha=0.2)


def _canvas() -> tuple[Any, Any]:
    """A figure, and its axes, one for each function."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11.0, 4.2), layout="constrained")
    return figure, figure.subplots(1, len(FUNCTIONS))


def verdicts_on(regrets: Regrets) -> list[Verdict]:
    """A verdict on each testable statement of section 6, and on two that are not in the paper."""
    verdicts = []
    for sentence, contrast in STATEMENTS.items():
        measured = {}
        for f in FUNCTIONS:
            terms = [w * regrets[f, *at][:, -1] for at, w in contrast.items()]
            measured[f] = t_interval(np.sum(terms, axis=0))
        words = (f"{w:+.3g} {LABELS[method]}({delay})" for (method, delay), w in contrast.items())
        verdicts.append(Verdict(sentence, " ".join(words), measured))
    return verdicts


def t_interval(differences: Array) -> Estimate:
    """Mean of paired differences and Student's interval."""
    n, mean = len(differences), float(differences.mean())
    if n < 2:
        return Estimate(mean, -np.inf, np.inf, n)
    half = float(differences.std(ddof=1) / n**0.5 * stdtrit(n - 1, (1 + LEVEL) / 2))
    return Estimate(mean, mean - half, mean + half, n)


def _report(
    suite: Suite, regrets: Regrets, verdicts: Sequence[Verdict], made: Sequence[str]
) -> list[str]:
    same = "the paper's" if suite == PAPER else "not the paper's"
    columns = [(f, delay) for f in FUNCTIONS for delay in MEANS.values()]
    header = ["method", *(f"{f}, delay {delay}" for f, delay in columns)]
    rows = [
        [label, *(_spread(regrets[f, method, delay][:, -1]) for f, delay in columns)]
        for method, label in LABELS.items()
    ]
    return [
        "# The paper's experiments, reproduced",
        "",
        f"Setting ({same}): f1 and f2 by the recipe of section 6, 2,500 points, noise 0.02; "
        f"T = {suite.steps}, {len(suite.seeds)} repeats, Poisson delays with means "
        f"{', '.join(map(str, MEANS.values()))}; xi = {XI:g}, b = {B:g}, beta = {BETA:g}, "
        f"delta = {DELTA}. Every method sees the same noise and delays in a repeat.",
        "",
        *(f"* {line}" for line in made),
        "",
        "Final cumulative regret, mean and half a standard deviation:",
        "",
        *markdown_table(header, rows),
        "",
        f"To {LABELS[SDF]} missing values count as the worst one.",
        "",
        "## Does it hold?",
        "",
        "A sentence holds where a contrast of final regrets, each at a mean delay, is below 0 on "
        f"both functions; intervals are paired t intervals at level {LEVEL:.0%}.",
        "",
        *markdown_table(
            ["sentence", "contrast", *FUNCTIONS, "verdict"],
            ([v.sentence, v.contrast, *v.measured.values(), f"**{v.word}**"] for v in verdicts),
        ),
        "",
        *(f"![Figure {number}](figure{number}.png)" for number in range(1, 6)),
        "",
    ]


def _spread(final: Array) -> str:
    half = 0.5 * np.std(final, ddof=1) if len(final) > 1 else 0.0
    return f"{final.mean():.0f} +- {half:.0f}"
