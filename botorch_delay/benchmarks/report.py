"""The report in Markdown: losses as plain as wins."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from botorch_delay.benchmarks.folders import write_whole
from botorch_delay.benchmarks.registries import METHODS, split_of
from botorch_delay.benchmarks.results import (
    LEVEL,
    MEASURES,
    Finals,
    Results,
    compare,
    decided,
    final_regrets,
    number,
)

if TYPE_CHECKING:
    import pandas as pd

REFERENCE = "bpe-delay"


def write_report(results: Results, suite: str, missing: int, figures: Sequence[Path]) -> None:
    """Write the report on a folder of runs.

    Args:
        results: of all of them.
        suite: its name.
        missing: runs of the suite that are not there.
        figures: in the folder.
    """
    runs = results.runs
    finals = {measure: final_regrets(runs, measure) for measure in MEASURES}
    done = f"{len(runs):,} runs"
    if missing:
        done += f"; **{missing:,} runs of the suite are missing**, what follows is from the others"
    lines = [
        f"# Benchmark: {suite}",
        "",
        f"{done}. {runs['asks'].iloc[0]} asks in each; seeds {runs['seed'].min()} to "
        f"{runs['seed'].max()}.",
        "",
        *(f"* {line}" for line in results.made),
        "",
        "Within a seed every method sees the same noise and delays. Brackets hold the "
        f"{LEVEL:.0%} bootstrap interval of the paired difference to `{REFERENCE}`: **below 0 the "
        f"method has less regret than `{REFERENCE}`, above 0 more**. With three seeds or so such "
        "intervals are too narrow; n is stated where some seeds are missing. Cumulative regret is "
        "charged when a point is asked. A point is recommended by the posterior mean of all "
        "answers; `tpe` and `optuna-gp` recommend the best noisy answer, and with `our "
        "recommendation` the posterior mean chooses from the same runs. An oracle is told every "
        "answer at once.",
        "",
        f"## {REFERENCE} against the others",
        "",
        f"In how many cells (problem and delay) `{REFERENCE}` has less regret, more, or it is not "
        "decided; cells with a single common seed are left out.",
        "",
        *wins(runs),
        "",
    ]
    for problem in runs["problem"].unique():
        lines += [f"## {problem} ({split_of(problem)})", ""]
        for measure in MEASURES:
            lines += [*_regrets(finals[measure], measure, problem), ""]
        mine = [path for path in figures if path.stem.rpartition("-")[0] == problem]
        lines += [f"![{path.stem}]({path.relative_to(results.folder).as_posix()})" for path in mine]
        lines += [""]
    lines += ["## Methods and what they cost", "", *_costs(runs), ""]
    write_whole(results.report, "\n".join(lines))


def markdown_table(header: Iterable[object], rows: Iterable[Iterable[object]]) -> list[str]:
    """The lines of a table."""
    cells = [[str(cell) for cell in row] for row in (header, *rows)]
    lines = ["| " + " | ".join(row) + " |" for row in cells]
    return [lines[0], "|" + "---|" * len(cells[0]), *lines[1:]]


def methods_of(finals: Finals) -> list[str]:
    """Columns in the order of the registry, then those it does not know."""
    order = list(METHODS)

    def place(name: str) -> tuple[int, str]:
        method = name.partition(",")[0]
        return (order.index(method) if method in METHODS else len(order), name)

    return sorted({name for final in finals.values() for name in final.columns}, key=place)


def wins(runs: pd.DataFrame) -> list[str]:
    """How often the reference has less regret than the others, as a table."""
    finals = [final_regrets(runs, measure) for measure in MEASURES]
    rows = []
    for name in methods_of(finals[-1]):
        found = [Counter(decided(final, name, REFERENCE)) for final in finals]
        # What is less for the method is more for the reference.
        row = [
            counted[word] if counted else "" for counted in found for word in (False, True, None)
        ]
        if any(found):
            rows.append([name, *row])
    header = [f"{measure}: less" for measure in MEASURES]
    return markdown_table(
        ["against", *(h for word in header for h in (word, "more", "not decided"))], rows
    )


def _regrets(finals: Finals, measure: str, problem: str) -> list[str]:
    here = {delay: final for (known, delay), final in finals.items() if known == problem}
    rows = [
        [name, *(_regret(final, name) for final in here.values())]
        for name in methods_of({(problem, delay): final for delay, final in here.items()})
    ]
    return markdown_table([measure, *here], rows)


def _regret(final: pd.DataFrame, method: str) -> str:
    if method not in final:
        return ""
    text = number(final[method].mean())
    difference = compare(final, method, REFERENCE)
    if difference is not None:
        text += difference.interval
    seeds = final[method].count()
    return text + (f" (n = {seeds})" if seeds < final.count().max() else "")


def _costs(runs: pd.DataFrame) -> list[str]:
    rows = []
    for name, mine in runs.groupby("method", sort=False):
        method = METHODS.get(name)
        repeats = "" if method and method.instant else f"{mine['repeat_share'].mean():.0%}"
        times = (number(1e3 * mine[f"seconds_per_{call}"].mean()) for call in ("ask", "tell"))
        rows.append([name, method.label if method else "", repeats, *times])
    header = "method | what it is | asks that repeat a pending point | ms per ask | ms per tell"
    return [
        "Means over all runs of a method, on one thread; not every method was used everywhere.",
        "",
        *markdown_table(header.split(" | "), rows),
    ]
