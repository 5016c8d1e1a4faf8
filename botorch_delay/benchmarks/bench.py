"""Compare the methods of a suite: simulate it, go on where it was stopped, and report."""

from __future__ import annotations

from pathlib import Path

from botorch_delay.benchmarks.figures import draw_figures
from botorch_delay.benchmarks.folders import run_suite
from botorch_delay.benchmarks.report import REFERENCE, wins, write_report
from botorch_delay.benchmarks.results import Results, read_results
from botorch_delay.benchmarks.suites import Cell, Suite

__all__ = ["bench", "describe"]


def bench(
    suite: Suite,
    folder: Path,
    *,
    workers: int | None = None,
    again: bool = False,
    progress: bool = True,
) -> Results:
    """Simulate a suite, or go on where an earlier call was stopped, and write tables and report.

    Every run that is done is kept in a file of its own. The report covers all runs in the folder,
    also those of other choices of problems, delays, methods and seeds, and those that were copied
    there from a folder of the same suite.

    Args:
        suite: what is compared.
        folder: where to write; made if it does not exist.
        workers: processes, 1 for this one alone; as many as there are cores if None.
        again: simulate the chosen runs anew, also those that are done.
        progress: whether to show a progress bar.

    Raises:
        MissingExtraError: without Matplotlib or pandas, or where a problem or method needs a
            package that is not installed.
        InputError: if no method can be used on any of the problems, the folder cannot be
            written or holds another benchmark, or a registered object cannot be sent to a worker
            process.
        RunError: if a worker process dies; every run that was done is kept.
    """
    wanted = run_suite(suite, folder, workers=workers, again=again, progress=progress)
    results = read_results(folder, suite.steps)
    figures = draw_figures(folder / "figures", results, REFERENCE)
    columns = results.runs[["problem", "delay", "method", "seed"]]
    done = {Cell(*row) for row in columns.itertuples(index=False)}
    write_report(results, suite.name, len(set(wanted) - done), figures)
    return results


def describe(results: Results) -> str:
    """The results in short, as the command line prints them."""
    return "\n".join(
        ["", *wins(results.runs), "", f"{len(results.runs):,} runs", str(results.report)]
    )
