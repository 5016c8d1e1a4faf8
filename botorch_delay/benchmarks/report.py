"""The report in Markdown: losses as plain as wins."""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path

import numpy as np

from botorch_delay.benchmarks.comparison import (
    CUMULATIVE,
    LEVEL,
    MEASURES,
    RECOMMENDED,
    Difference,
    Finals,
    Sweep,
    compare,
    decided,
    finals,
)
from botorch_delay.benchmarks.players import Method
from botorch_delay.benchmarks.results import Result

REFERENCE = "bpe-delay"


def split_of(problem: str) -> str:
    """Whether a problem may be used to choose defaults: "development", "testing", "not listed"."""
    listed = tomllib.loads(
        resources.files("botorch_delay.benchmarks").joinpath("splits.toml").read_text()
    )
    for split, entries in listed.items():
        if problem in entries["problems"]:
            return split
    return "not listed"


def write_report(
    results: Sequence[Result],
    methods: Mapping[str, Method],
    *,
    suite: str,
    steps: int,
    missing: int,
    begun: str,
    versions: Sequence[str],
    figures: Sequence[Path],
    swept: Mapping[str, Mapping[str, Sweep]],
) -> str:
    """The report on a folder of runs.

    Args:
        results: all of them, at least one.
        methods: for their labels; a method that is not there is called by its name.
        suite: its name.
        steps: asks in each run.
        missing: runs of the suite that are not there.
        begun: the date of the first run.
        versions: of the packages, a line for each combination that played.
        figures: relative to the report.
        swept: regret against the mean delay, by problem and method.
    """
    values = finals(results)
    problems = list(dict.fromkeys(result.cell.problem for result in results))
    names = _names(values[RECOMMENDED], methods)
    seeds = sorted({result.cell.seed for result in results})
    done = f"{len(results):,} runs"
    if missing:
        done += f"; **{missing:,} runs of the suite are missing**, what follows is from the others"
    shown = f"{seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else f"{seeds[0]}"
    lines = [
        f"# Benchmark: {suite}",
        "",
        f"{done}. {steps} asks in each; seeds {shown}. Begun {begun}.",
        "",
        *(f"* {line}" for line in versions),
        "",
        "Within a seed every method sees the same noise and delays. Brackets hold the "
        f"{LEVEL:.0%} bootstrap interval of the paired difference to `{REFERENCE}`: **below 0 the "
        f"method has less regret than `{REFERENCE}`, above 0 more**. With three seeds or so such "
        "intervals are too narrow; n is given where some seeds are missing. Cumulative regret is "
        "charged when a point is asked. A point is recommended by the posterior mean of all "
        "answers; `tpe` and `optuna-gp` recommend the best noisy answer, and with `our "
        "recommendation` the same runs are judged by the posterior mean. An oracle is told every "
        "answer at once.",
        "",
        *_verdicts(values, names),
        "",
    ]
    for problem in problems:
        lines += [f"## {problem} ({split_of(problem)})", ""]
        for measure in MEASURES:
            lines += [*_table(values, measure, problem, names), ""]
        if problem in swept:
            lines += [*_growth(swept[problem]), ""]
        lines += [f"![{path.stem}]({path.as_posix()})" for path in _of(figures, problem)]
        lines += [""]
    lines += ["## Methods and what they cost", "", *_costs(results, methods)]
    return "\n".join(lines) + "\n"


def _of(figures: Sequence[Path], problem: str) -> list[Path]:
    return [path for path in figures if path.stem.rpartition("-")[0] == problem]


def _names(
    values: Mapping[tuple[str, str], Mapping[str, object]], methods: Mapping[str, Method]
) -> list[str]:
    """Methods in the order of the registry, then those it does not know."""
    found = {name for here in values.values() for name in here}
    order = list(methods)

    def place(name: str) -> tuple[int, str]:
        method = name.partition(",")[0]
        return (order.index(method) if method in methods else len(order), name)

    return sorted(found, key=place)


def _verdicts(values: Finals, names: Sequence[str]) -> list[str]:
    lines = [
        f"## {REFERENCE} against the others",
        "",
        f"In how many cells (problem and delay) `{REFERENCE}` has less regret, more, or it is not "
        "decided; cells with a single common seed are left out.",
        "",
        "| against | "
        + " | ".join(f"{measure}: less | more | not decided" for measure in MEASURES)
        + " |",
        "|---|" + "---|" * (3 * len(MEASURES)),
    ]
    for name in names:
        row: list[str] = []
        for measure in MEASURES:
            counted = Counter(decided(values[measure], name, REFERENCE))
            # What is less for the method is more for the reference.
            row += [str(counted[word]) if counted else "" for word in (False, True, None)]
        if any(row):
            lines.append(f"| {name} | " + " | ".join(row) + " |")
    return lines


def _table(values: Finals, measure: str, problem: str, names: Sequence[str]) -> list[str]:
    delays = [delay for known, delay in values[measure] if known == problem]
    lines = [f"| {measure} | " + " | ".join(delays) + " |", "|---|" + "---|" * len(delays)]
    for name in names:
        row = []
        for delay in delays:
            here = values[measure][problem, delay]
            if name not in here:
                row.append("")
                continue
            text = number(float(np.mean(list(here[name].values()))))
            difference = compare(here, name, REFERENCE)
            if difference is not None and np.isfinite(difference.low):
                text += f" [{number(difference.low, sign=True)}, "
                text += f"{number(difference.high, sign=True)}]"
            if len(here[name]) < max(map(len, here.values())):
                text += f" (n = {len(here[name])})"
            row.append(text)
        if any(row):
            lines.append(f"| {name} | " + " | ".join(row) + " |")
    return lines


def _growth(swept: Mapping[str, Sweep]) -> list[str]:
    """How cumulative regret grows with the mean delay."""
    lines = [
        "Cumulative regret per step of mean delay, by least squares, and its slope over the upper "
        "half of the delays less that over the lower half: where that is not above 0, regret "
        "grows at most linearly.",
        "",
        "| method | mean delays | slope | upper less lower half |",
        "|---|---|---|---|",
    ]
    for method, sweep in swept.items():
        delays = ", ".join(f"{delay:g}" for delay in sweep.delays)
        slopes = f"{_interval(sweep.slope)} | {_interval(sweep.bend)}"
        lines.append(f"| {method} | {delays} | {slopes} |")
    return lines


def _interval(found: Difference) -> str:
    text = number(found.mean, sign=True)
    if not np.isfinite(found.low):
        return text
    return f"{text} [{number(found.low, sign=True)}, {number(found.high, sign=True)}]"


def _costs(results: Sequence[Result], methods: Mapping[str, Method]) -> list[str]:
    lines = [
        "Means over all runs of a method, on one thread; not every method has played everywhere.",
        "",
        "| method | what it is | asks that repeat a pending point | ms per ask | ms per tell |",
        "|---|---|---|---|---|",
    ]
    played = {result.cell.method for result in results}
    for name in _names({("", ""): dict.fromkeys(played)}, methods):
        mine = [result for result in results if result.cell.method == name]
        label = methods[name].label if name in methods else ""
        oracle = name in methods and methods[name].instant
        repeats = "" if oracle else f"{np.mean([r.repeats for r in mine]):.0%}"
        ask, tell = (
            number(1e3 * float(np.mean(seconds)))
            for seconds in ([r.seconds_ask for r in mine], [r.seconds_tell for r in mine])
        )
        lines.append(f"| {name} | {label} | {repeats} | {ask} | {tell} |")
    return lines


def number(value: float, *, sign: bool = False) -> str:
    """Three digits, as people write them."""
    if value == 0.0:
        return "0"
    digits = max(2 - int(np.floor(np.log10(abs(value)))), 0)
    if digits > 5:
        return f"{value:{'+' if sign else ''}.1e}"
    return f"{value:{'+' if sign else ''},.{digits}f}"


__all__ = ["CUMULATIVE", "RECOMMENDED", "REFERENCE", "number", "split_of", "write_report"]
