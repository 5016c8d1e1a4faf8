"""Compare the methods of a suite."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from botorch_delay.benchmarks.functions import split_of
from botorch_delay.benchmarks.methods import METHODS
from botorch_delay.benchmarks.results import (
    LEVEL,
    MEASURES,
    REFERENCE,
    Results,
    compare,
    comparison,
    final_regrets,
    markdown_table,
    methods_of,
    number,
    read_results,
)
from botorch_delay.benchmarks.runs import run_suite
from botorch_delay.benchmarks.suites import Cell, Suite

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["bench"]


def bench(
    suite: Suite, folder: Path, *, workers: int | None = None, progress: bool = True
) -> Results:
    """Simulate a suite, or resume an earlier call, and write a table and a report.

    Each finished run has a file of its own; delete it to repeat the run. The report names runs that
    failed or lack a package, which the next call tries again. It covers all runs in the folder,
    also those of other problems, delays, methods and seeds of the suite, or copied there.

    Args:
        suite: what is compared.
        folder: where to write; made if it does not exist.
        workers: processes, 1 for this one alone; one per core if None.
        progress: whether to show a progress bar.

    Raises:
        MissingExtraError: without pandas, or if every run needs a package that is not installed.
        InputError: if no method can be used on any of the problems, the folder cannot be written
            or holds something else, all runs failed, or a registered object cannot be pickled.
        RunError: if a worker process dies; finished runs are kept.
    """
    wanted, lacking = run_suite(suite, folder, workers=workers, progress=progress)
    results = read_results(folder)
    done = results.runs[[*Cell._fields]].itertuples(index=False, name=None)
    missing = len(set(wanted) - set(done))
    results.report.write_text("\n".join(_report(results, suite, missing, lacking)))
    return results


def _report(results: Results, suite: Suite, missing: int, lacking: Sequence[str]) -> list[str]:
    """The lines of the report, in Markdown."""
    runs = results.runs
    done = f"{len(runs):,} runs"
    if missing:
        done += f"; **{missing:,} runs of the suite are missing**, what follows is from the others"
    lines = [
        f"# Benchmark: {suite.name}",
        "",
        f"{done}. {suite.steps} asks in each; seeds {runs['seed'].min()} to {runs['seed'].max()}.",
        "",
        *(f"* {line}" for line in results.made),
        *(f"* {words}" for words in lacking),
        "",
        "Within a seed every method sees the same noise and delays. Brackets hold the "
        f"{LEVEL:.0%} bootstrap interval of the paired difference to `{REFERENCE}`: **below 0 the "
        f"method has less regret than `{REFERENCE}`, above 0 more**. With three seeds or so such "
        "intervals are too narrow; n is stated where some seeds are missing. Cumulative regret is "
        "charged when a point is asked. A point is recommended by the posterior mean of all "
        "answers, as `botorch` does by its own model; other libraries recommend the best noisy "
        "answer, and with `-by-model` the posterior mean chooses from the same asks. An oracle is "
        "told every answer at once.",
        "",
        f"## {REFERENCE} against the others",
        "",
        f"The number of cells (problem and delay) in which `{REFERENCE}` has less regret, more, or "
        "neither is decided (open), and the geometric mean over cells of the ratio of its mean "
        f"regret to the other's on common seeds, with a {LEVEL:.0%} bootstrap interval over seeds: "
        "**below 1 it has less regret**. A mean below a millionth of the cell's "
        "largest counts as that much. `-exact` boxes have no noise, `-box` ones noise of 5 % of "
        "the spread of the values.",
        "",
        *comparison(runs),
        "",
    ]
    for problem, here in runs.groupby("problem", sort=False):
        lines += [f"## {problem} ({split_of(problem)})", ""]
        for measure in MEASURES:
            lines += [*_regrets(here, measure), ""]
    return [*lines, "## Methods and what they cost", "", *_costs(runs), ""]


def _regrets(runs: pd.DataFrame, measure: str) -> list[str]:
    """A table of a measure on one problem: a row per method, a column per delay."""
    finals = {delay: final for (_, delay), final in final_regrets(runs, measure).items()}

    def regret(final: pd.DataFrame, method: str) -> str:
        if method not in final:
            return ""
        difference, seeds = compare(final, method), final[method].count()
        text = number(final[method].mean()) + (difference.interval if difference else "")
        return text + (f" (n = {seeds})" if seeds < final.count().max() else "")

    return markdown_table(
        [measure, *finals],
        ([name, *(regret(final, name) for final in finals.values())] for name in methods_of(runs)),
    )


def _costs(runs: pd.DataFrame) -> list[str]:
    rows = []
    for name in methods_of(runs):
        method, mine = METHODS.get(name), runs[runs["method"] == name].mean(numeric_only=True)
        repeats = "" if method and method.instant else f"{mine['repeat']:.0%}"
        times = (number(1e3 * mine[f"seconds_{call}"]) for call in ("ask", "tell"))
        rows.append([name, method.label if method else "", repeats, *times])
    header = "method | what it is | asks that repeat a pending point | ms per ask | ms per tell"
    return [
        "Means over all runs of a method, on one thread; not every method was used everywhere.",
        "",
        *markdown_table(header.split(" | "), rows),
    ]
