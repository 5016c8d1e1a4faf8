"""How much is tried, and the table of what was."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest


@dataclass(frozen=True)
class Scale:
    """How often what is repeated is repeated.

    Attributes:
        sequences: random sequences of calls.
        kills: of a running program.
        stored: trials in one file.
        operations: of threads that share an optimizer.
        interrupts: of a running program.
        mutations: of study files.
        problems: of random numbers, sizes and methods.
        asks: of one long run.
        attacks: on the certificates of each way to choose points.
        every: of so many optimizers one is tried, where each is tried on its own.
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
ROWS: dict[str, dict[str, float]] = {}  # for each subject the sums of its tests

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
