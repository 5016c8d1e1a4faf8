"""The paper's experiments (section 6): its figures, and which of its sentences hold."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy import stats

from botorch_delay.benchmarks.figures import draw_functions, draw_regrets
from botorch_delay.benchmarks.folders import file_of, read_run, run_suite, write_whole
from botorch_delay.benchmarks.methods import BETA, XI, B
from botorch_delay.benchmarks.registries import DELAYS, PROBLEMS
from botorch_delay.benchmarks.report import markdown_table
from botorch_delay.benchmarks.results import Array, read_results
from botorch_delay.benchmarks.suites import PAPER, Cell, Suite

__all__ = ["Reproduction", "Verdict", "describe", "reproduce"]

DELTA = 0.1  # the default of Algorithm 1
LEVEL = 0.90
MARGIN = 0.25
FUNCTIONS = ("f1", "f2")

BPE_DELAY, BPE_DELAY_PRINTED, BPE = "bpe-delay-psi-max", "bpe-delay-psi-min", "bpe"
SDF, SDF_SHIFTED = "gp-ucb-sdf", "gp-ucb-sdf-from-worst"
BUCB, UCB_ARRIVED = "gp-bucb", "gp-ucb"
LABELS = {
    BPE_DELAY: "BPE-Delay",
    BPE_DELAY_PRINTED: "BPE-Delay (psi as printed)",
    BPE: "BPE",
    SDF: "GP-UCB-SDF",
    SDF_SHIFTED: "GP-UCB-SDF (values from the worst)",
    BUCB: "GP-BUCB",
    UCB_ARRIVED: "GP-UCB on what has arrived",
}

AS_PUBLISHED = (BPE_DELAY, BPE_DELAY_PRINTED)
# That each of some methods has less regret than each of some rivals.
COMPARED = (
    (
        "Figure 2: a significant improvement of {} over {} on both functions",
        AS_PUBLISHED,
        (SDF, SDF_SHIFTED),
    ),
    ("Figure 5: {} performs better than {} in a delayed setting", AS_PUBLISHED, (BPE,)),
    ("Not in the paper: {} has less regret than {}", (BPE_DELAY,), (BUCB, UCB_ARRIVED)),
)

AUTHORS_SCRIPTS = (
    "delta is 0.01 and is not halved for the delay bound; here it is 0.1, and u_T takes delta / 2.",
    "psi is evaluated at the running t; Algorithm 1, and this reproduction, use psi_T.",
    "The last round is not cut, so that 1,571 steps are made for T = 1000; here the lengths sum "
    "to T.",
    "Ties for the largest deviation are broken at random; here the lowest index wins.",
)

# Cumulative regret, a run per row; by function, method and mean delay in steps.
Regrets = Mapping[tuple[str, str, int], Array]
# What was measured on one function, and whether a sentence holds there; None if not decided.
Finding = tuple[str, bool | None]


@dataclass(frozen=True)
class Verdict:
    """A sentence, how it is tested, and what was measured.

    Attributes:
        sentence: what is said.
        criterion: when it holds.
        measured: the figures.
        holds: whether it does; None where the interval does not decide.
    """

    sentence: str
    criterion: str
    measured: str
    holds: bool | None

    @property
    def word(self) -> str:
        """The verdict in words."""
        return {True: "holds", False: "does not hold", None: "not decided"}[self.holds]


@dataclass(frozen=True)
class Reproduction:
    """What was found, and where it was written.

    Attributes:
        report: Markdown.
        figures: PNG files, one per figure of the paper.
        verdicts: on each sentence.
    """

    report: Path
    figures: list[Path]
    verdicts: list[Verdict]


def reproduce(
    folder: Path, suite: Suite = PAPER, *, workers: int | None = None, progress: bool = True
) -> Reproduction:
    """Simulate, or go on where an earlier call was stopped, and write table, figures and report.

    Args:
        folder: where to write; made if it does not exist. Every run that is done is kept there.
        suite: the paper's, or the same with other seeds, steps or draws of the two functions.
        workers: processes; as many as there are cores if None.
        progress: whether to show a progress bar.

    Raises:
        MissingExtraError: without Matplotlib or pandas.
        InputError: if the folder cannot be written, or holds another suite.
        RunError: if a worker process dies.
    """
    cells = run_suite(suite, folder, workers=workers, progress=progress)
    results = read_results(folder, suite.steps)
    regrets = _read_regrets(folder, suite, cells)
    figures = _draw(folder, suite, regrets)
    verdicts = verdicts_on(regrets)
    _write_report(results.report, suite, regrets, verdicts, results.made)
    return Reproduction(results.report, figures, verdicts)


def describe(result: Reproduction) -> str:
    """The verdicts in short, as the command line prints them."""
    lines = [f"{verdict.word:<14}{verdict.sentence}" for verdict in result.verdicts]
    return "\n".join(["", *lines, "", str(result.report)])


def _read_regrets(folder: Path, suite: Suite, cells: Iterable[Cell]) -> Regrets:
    names = {problem: f"f{number}" for number, problem in enumerate(suite.problems, 1)}
    found: dict[tuple[str, str, int], list[Array]] = {}
    for cell in cells:
        run = read_run(file_of(folder, cell), suite.steps)
        assert run is not None
        key = (names[cell.problem], cell.method, _mean(cell.delay))
        found.setdefault(key, []).append(run.history.regret.numpy())
    return {key: np.stack(runs) for key, runs in found.items()}


def _mean(delay: str) -> int:
    law = DELAYS[delay].law
    assert law is not None
    return round(law.mean)


def _draw(folder: Path, suite: Suite, regrets: Regrets) -> list[Path]:
    """Figures 1 to 5."""
    *_, longest = delays = [_mean(delay) for delay in suite.delays]
    over_delays = {
        method: {f"mean delay {delay}{label}": (method, delay) for delay in delays}
        for method, label in ((BPE_DELAY, ""), (SDF, ""), (BPE_DELAY_PRINTED, ", psi as printed"))
    }
    at_longest = f"Mean delay {longest}"
    rivals = (BPE_DELAY, SDF, BUCB, UCB_ARRIVED)
    panels: list[tuple[str, dict[str, tuple[str, int]]]] = [
        (at_longest, {LABELS[method]: (method, longest) for method in rivals}),
        (LABELS[BPE_DELAY], over_delays[BPE_DELAY] | over_delays[BPE_DELAY_PRINTED]),
        (LABELS[SDF], over_delays[SDF]),
        (at_longest, {LABELS[method]: (method, longest) for method in (BPE_DELAY, BPE)}),
    ]
    figures = [folder / f"figure{number}.png" for number in range(1, 6)]
    draw_functions(figures[0], [PROBLEMS[name](suite.seeds[0]) for name in suite.problems])
    for path, (title, lines) in zip(figures[1:], panels, strict=True):
        draw_regrets(
            path,
            {
                f"{f}: {title}": {label: regrets[f, *of] for label, of in lines.items()}
                for f in FUNCTIONS
            },
        )
    return figures


def verdicts_on(regrets: Regrets) -> list[Verdict]:
    """A verdict on each sentence of section 6 that can fail, and two on what it leaves out.

    Args:
        regrets: of every method under three mean delays, the first of them 0.
    """
    _, middle, longest = delays = sorted({delay for _, _, delay in regrets})
    final = {key: runs[:, -1] for key, runs in regrets.items()}
    verdicts = [
        _verdict(
            f"{sentence.format(LABELS[method], LABELS[rival])} (mean delay {longest}).",
            f"the {LEVEL:.0%} interval of the paired difference is above 0",
            [_less(final[f, method, longest], final[f, rival, longest]) for f in FUNCTIONS],
        )
        for sentence, methods, rivals in COMPARED
        for method in methods
        for rival in rivals
    ]
    verdicts += [
        _verdict(
            f"Figure 3: {LABELS[method]} shows an excess in regret linear in the expected delay.",
            f"excess({longest}) is more than {longest / middle:g} excess({middle}) by at most "
            f"{MARGIN:.0%} of itself: the {LEVEL:.0%} interval lies below that, or above",
            [_linear([final[f, method, delay] for delay in delays], delays) for f in FUNCTIONS],
        )
        for method in AS_PUBLISHED
    ]
    verdicts += [
        _verdict(
            f"Figure 4: {LABELS[method]} shows a dramatic jump in regret even with a moderate "
            "delay.",
            f"from no delay to mean delay {middle} regret at least doubles, and grows by a larger "
            f"factor than {LABELS[BPE_DELAY]}'s",
            [
                _jumps(*(final[f, m, delay] for m in (method, BPE_DELAY) for delay in (0, middle)))
                for f in FUNCTIONS
            ],
        )
        for method in (SDF, SDF_SHIFTED)
    ]
    return sorted(verdicts, key=lambda verdict: verdict.sentence[:8])


def _verdict(sentence: str, criterion: str, found: Sequence[Finding]) -> Verdict:
    """On both functions together."""
    measured = "; ".join(f"{f}: {text}" for f, (text, _) in zip(FUNCTIONS, found, strict=True))
    outcomes = [outcome for _, outcome in found]
    holds = False if False in outcomes else None if None in outcomes else True
    return Verdict(sentence, criterion, measured, holds)


def _less(ours: Array, theirs: Array) -> Finding:
    """That a method has less final regret than a rival."""
    mean, low, high = interval(theirs - ours)
    text = f"{ours.mean():.0f} against {theirs.mean():.0f}, difference {mean:+.0f} "
    return f"{text}[{low:+.0f}, {high:+.0f}]", True if low > 0 else False if high < 0 else None


def _linear(regrets: Sequence[Array], delays: Sequence[int]) -> Finding:
    """That the excess over no delay grows about in proportion to the delay, or less."""
    first, last = regrets[1] - regrets[0], regrets[2] - regrets[0]
    mean, low, high = interval(last - first * delays[2] / delays[1])
    margin = MARGIN * max(float(last.mean()), 0.0)
    return (
        f"excess {first.mean():.0f}, then {last.mean():.0f}; above proportion by {mean:+.0f} "
        f"[{low:+.0f}, {high:+.0f}]",
        True if high <= margin else False if low > margin else None,
    )


def _jumps(before: Array, after: Array, ours_before: Array, ours_after: Array) -> Finding:
    """That regret jumps with a delay, and more than BPE-Delay's."""
    factor, ours = after.mean() / before.mean(), ours_after.mean() / ours_before.mean()
    text = f"{before.mean():.0f} to {after.mean():.0f}, a factor of {factor:.1f}"
    return f"{text} ({LABELS[BPE_DELAY]}: {ours:.1f})", bool(factor >= 2 and factor > ours)


def interval(differences: Array) -> tuple[float, float, float]:
    """Mean of paired differences and its t interval; one alone decides nothing."""
    mean = float(differences.mean())
    if len(differences) < 2:
        return mean, -np.inf, np.inf
    error = float(differences.std(ddof=1)) / len(differences) ** 0.5
    half = error * float(stats.t.ppf((1 + LEVEL) / 2, len(differences) - 1))
    return mean, mean - half, mean + half


def _write_report(
    path: Path, suite: Suite, regrets: Regrets, verdicts: Sequence[Verdict], made: Sequence[str]
) -> None:
    same = "the paper's" if suite == PAPER else "not the paper's"
    delays = [_mean(delay) for delay in suite.delays]
    columns = [(f, delay) for f in FUNCTIONS for delay in delays]
    header = ["method", *(f"{f}, delay {delay}" for f, delay in columns)]
    rows = [
        [label, *(_spread(regrets[f, method, delay][:, -1]) for f, delay in columns)]
        for method, label in LABELS.items()
    ]
    lines = [
        "# The paper's experiments, reproduced",
        "",
        f"Setting ({same}): f1 and f2 by the recipe of section 6, here {', '.join(suite.problems)} "
        f"of `botorch-delay bench list`, 2,500 points, noise 0.02; T = {suite.steps}, "
        f"{len(suite.seeds)} repeats, Poisson delays with means {', '.join(map(str, delays))}; "
        f"xi = {XI:g}, b = {B:g}, beta = {BETA:g}, delta = {DELTA}. Every method sees the same "
        "noise and delays in a repeat.",
        "",
        *(f"* {line}" for line in made),
        "",
        "Final cumulative regret, mean and half a standard deviation:",
        "",
        *markdown_table(header, rows),
        "",
        f"{LABELS[SDF_SHIFTED]}: all values are counted from the worst one, which is then 0 as in "
        "Verma et al.; otherwise values are as they are, and missing ones count as the worst.",
        "",
        "## Does it hold?",
        "",
        f"Intervals are paired t intervals at level {LEVEL:.0%}.",
        "",
        *markdown_table(
            ["sentence", "criterion", "measured", "verdict"],
            ([v.sentence, v.criterion, v.measured, f"**{v.word}**"] for v in verdicts),
        ),
        "",
        "## Known differences of the authors' scripts",
        "",
        *(f"* {difference}" for difference in AUTHORS_SCRIPTS),
        "",
        *(f"![Figure {number}](figure{number}.png)" for number in range(1, 6)),
        "",
    ]
    write_whole(path, "\n".join(lines))


def _spread(final: Array) -> str:
    half = 0.5 * np.std(final, ddof=1) if len(final) > 1 else 0.0
    return f"{final.mean():.0f} +- {half:.0f}"
