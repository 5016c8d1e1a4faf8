"""What a case of the benchmark measured, row by row, and the targets to reach."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

VALUES_WITHIN = 1e-8

SECONDS, BYTES, NUMBER = "s", "bytes", "1"


@dataclass(frozen=True)
class Reach:
    """The target of a row.

    Attributes:
        ratio: the least peer / ours; None where there is no peer.
        most: the largest allowed value of ours, in the row's unit; None where a ratio is wanted.
        stretch: a ratio that would be better still.
    """

    ratio: float | None = None
    most: float | None = None
    stretch: float | None = None


@dataclass(frozen=True)
class Check:
    """A comparison of results, made in the same run.

    Attributes:
        what: what was compared.
        error: the number of differing picks, or the largest difference of values.
        within: the largest allowed error.
    """

    what: str
    error: float
    within: float = 0.0

    @property
    def right(self) -> bool:
        """Whether the error is allowed; one that is not a number never is."""
        return self.error <= self.within

    def __str__(self) -> str:
        if not self.within:
            return f"{self.what}: " + ("equal" if self.right else f"{self.error:g} differ")
        return f"{self.what}: within {self.error:.1e}"


@dataclass(frozen=True)
class Row:
    """One measured quantity.

    Attributes:
        work: what was done.
        ours: in ``unit``; None where nothing could be measured.
        unit: seconds, bytes, or a plain number.
        peer: the peer's, in the same unit, if there is one.
        cpu: the same in processor time of all threads, where it was measured; on a machine that
            is shared, the fairer comparison.
        peer_cpu: the peer's, measured in the same way.
        against: the peer, and the settings at which it was best.
        reach: the target at full size, if there is one.
        checks: what was found right or wrong.
        note: anything else to know.
    """

    work: str
    ours: float | None
    unit: str = SECONDS
    peer: float | None = None
    against: str = ""
    cpu: float | None = None
    peer_cpu: float | None = None
    reach: Reach | None = None
    checks: tuple[Check, ...] = ()
    note: str = ""

    @property
    def ratio(self) -> float | None:
        """Peer / ours: above 1 where ours takes less."""
        return _ratio(self.ours, self.peer)

    @property
    def cpu_ratio(self) -> float | None:
        """Peer / ours in processor time."""
        return _ratio(self.cpu, self.peer_cpu)

    @property
    def correct(self) -> bool | None:
        """Whether every check passes; None without checks."""
        return all(check.right for check in self.checks) if self.checks else None

    @property
    def met(self) -> bool | None:
        """Whether the target is reached with correct results; None if nothing is judged."""
        if self.reach is None or self.ours is None:
            return None
        if self.correct is False:
            return False
        if self.reach.most is not None:
            return self.ours <= self.reach.most
        assert self.reach.ratio is not None
        return self.ratio is not None and self.ratio >= self.reach.ratio


def _ratio(ours: float | None, peer: float | None) -> float | None:
    return None if ours is None or peer is None else peer / max(ours, 1e-300)


def same_picks(what: str, ours: Sequence[int], theirs: Sequence[int]) -> Check:
    """How many picks differ, pick by pick."""
    differ = sum(a != b for a, b in zip(ours, theirs, strict=False))
    return Check(what, float(differ + abs(len(ours) - len(theirs))))


def same_values(what: str, ours: Tensor, theirs: Tensor, within: float = VALUES_WITHIN) -> Check:
    """The largest absolute difference."""
    return Check(what, (ours.detach() - theirs.detach().to(ours)).abs().max().item(), within)


def nothing_wrong(what: str, wrong: Tensor) -> Check:
    """How many entries of a bool tensor are true."""
    return Check(what, float(torch.count_nonzero(wrong)))


@dataclass(frozen=True)
class Machine:
    """Where and when the rows were measured: table header, and columns of the CSV file.

    Attributes:
        date: in UTC, ISO 8601.
        platform: operating system and processor.
        cores: number of cores of the machine.
        threads: torch's threads, the same for ours and the peers.
        device: of the CUDA case; empty without one.
        python: version of Python.
        torch: version of torch.
        botorch: version of BoTorch.
        gpytorch: version of GPyTorch.
    """

    date: str
    platform: str
    cores: int
    threads: int
    device: str
    python: str
    torch: str
    botorch: str
    gpytorch: str

    def __str__(self) -> str:
        device = f", {self.device}" if self.device else ""
        return (
            f"{self.date}, {self.platform}, {self.cores} cores, {self.threads} threads{device}; "
            f"Python {self.python}, torch {self.torch}, botorch {self.botorch}, gpytorch "
            f"{self.gpytorch}"
        )


COLUMNS = (
    "case",
    "work",
    "unit",
    "ours",
    "peer",
    "against",
    "ratio",
    "cpu",
    "peer_cpu",
    "cpu_ratio",
    "reach",
    "met",
    "correct",
    "checks",
    "size",
    "note",
    *(field.name for field in fields(Machine)),
)


def csv_row(case: str, size: str, row: Row, machine: Machine, judged: bool) -> dict[str, Any]:
    """A row of the CSV file, by column; what is unknown is left empty."""
    return {
        "case": case,
        "work": row.work,
        "unit": row.unit,
        "ours": _number(row.ours),
        "peer": _number(row.peer),
        "against": row.against,
        "ratio": _number(row.ratio),
        "cpu": _number(row.cpu),
        "peer_cpu": _number(row.peer_cpu),
        "cpu_ratio": _number(row.cpu_ratio),
        "reach": _reach(row),
        "met": _yes(row.met) if judged else "",
        "correct": _yes(row.correct),
        "checks": "; ".join(map(str, row.checks)),
        "size": size,
        "note": row.note,
        **vars(machine),
    }


def table(rows: Sequence[dict[str, Any]], machine: Machine, judged: bool) -> str:
    """Rows of the CSV file as Markdown, below a line on the machine."""
    lines = [
        "# Speed",
        "",
        f"{machine}.",
        "",
        "Medians of interleaved repeats. Ratio is peer / ours, so that more is better. A reach "
        "with an x is a least ratio; the others are upper limits of ours, by the wall clock. Cpu "
        "is processor time of all threads, which other work on the machine does not lengthen.",
        *([] if judged else ["Small sizes: reaches are not judged."]),
        "",
        "| case | work | ours | peer | ratio | ours, cpu | ratio, cpu | reach | met | correct |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        cells = [
            row["case"],
            row["work"],
            _amount(row["ours"], row["unit"]),
            _amount(row["peer"], row["unit"]),
            _times(row["ratio"]),
            _amount(row["cpu"], row["unit"]),
            _times(row["cpu_ratio"]),
            row["reach"],
            row["met"],
            row["correct"],
        ]
        lines.append("| " + " | ".join(cells) + " |")
    lines.append("")
    checked = ""
    for row in rows:
        checks = row["checks"] if row["checks"] != checked else ""  # else said just above
        checked = row["checks"]
        peer = f"against {row['against']}" if row["against"] else ""
        text = "; ".join(part for part in (peer, row["note"], checks) if part)
        if text:
            lines.append(f"* {row['case']}, {row['work']}: {text}.")
    sizes = dict.fromkeys((row["case"], row["size"]) for row in rows)
    lines += ["", *(f"* {case}: {size}." for case, size in sizes if size), ""]
    return "\n".join(lines)


def _reach(row: Row) -> str:
    reach = row.reach
    if reach is None:
        return ""
    if reach.most is not None:
        return _amount(repr(reach.most), row.unit)
    stretch = f" ({reach.stretch:g}x)" if reach.stretch else ""
    return f"{reach.ratio:g}x{stretch}"


def _number(value: float | None) -> str:
    return "" if value is None else repr(float(value))


def _times(ratio: str) -> str:
    return f"{float(ratio):.3g}x" if ratio else ""


def _yes(value: bool | None) -> str:
    return "" if value is None else "yes" if value else "no"


def _amount(value: str, unit: str) -> str:
    """A number of the CSV file for people."""
    if not value:
        return ""
    number = float(value)
    steps = {
        SECONDS: ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")),
        BYTES: ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B")),
    }.get(unit)
    if steps is None:
        return f"{number:.3g}"
    scale, name = next((step for step in steps if abs(number) >= step[0]), steps[-1])
    return f"{number / scale:.3g} {name}"
