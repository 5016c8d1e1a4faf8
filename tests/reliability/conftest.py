"""Sizes of the reliability tests, and the table of their figures."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest


@dataclass(frozen=True)
class Scale:
    """How much each kind of reliability test repeats.

    Attributes:
        sequences: random sequences of calls.
        kills: kills of a running program.
        stored: trials in one file.
        operations: calls by threads that share an optimizer.
        interrupts: interrupts of a running program.
        mutations: damaged or forged study files.
        problems: problems with random numbers, sizes and methods.
        asks: length of the one long run.
        attacks: runs against the certificates, for each way to choose points.
        every: where each optimizer is tried on its own, one in ``every`` is.
    """

    sequences: int
    kills: int
    stored: int
    operations: int
    interrupts: int
    mutations: int
    problems: int
    asks: int
    attacks: int
    every: int


SCALES = {
    "full": Scale(2_000, 200, 10_000, 20_000, 100, 10_000, 1_000, 100_000, 400, 1),
    "small": Scale(8, 6, 500, 400, 2, 24, 8, 1_000, 1, 12),
}
ROWS: dict[str, dict[str, float]] = {}  # by subject, the sums of its tests' counts

Record = Callable[..., None]


@pytest.fixture
def scale(request: pytest.FixtureRequest) -> Scale:
    """The sizes of this run."""
    return SCALES[request.config.getoption("--scale")]


@pytest.fixture
def figures() -> Iterator[Record]:
    """Called with a subject and the counts of a test; the table has their sums over the tests."""
    recorded: list[tuple[str, dict[str, float]]] = []

    def record(subject: str, **counts: float) -> None:
        recorded.append((subject, counts))

    begun = time.perf_counter()
    yield record
    for subject, counts in recorded:
        row = ROWS.setdefault(subject, {"seconds": 0.0})
        row["seconds"] += (time.perf_counter() - begun) / len(recorded)
        for name, count in counts.items():
            row[name] = row.get(name, 0) + count


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The table of figures, in Markdown."""
    if not ROWS:
        return
    terminalreporter.section("reliability")
    terminalreporter.write_line("| what | figures | seconds |")
    terminalreporter.write_line("|---|---|---|")
    for subject, row in ROWS.items():
        shown = [
            f"{_number(count)} {name.replace('_', ' ')}"
            for name, count in row.items()
            if name != "seconds"
        ]
        line = f"| {subject} | {', '.join(shown)} | {row['seconds']:,.0f} |"
        terminalreporter.write_line(line)


def _number(count: float) -> str:
    return f"{count:,}" if isinstance(count, int) else f"{count:.3g}"
