"""Wall-clock time, processor time and memory of work, ours and the peers' alike."""

from __future__ import annotations

import contextlib
import math
import statistics
import sys
import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from botorch_delay.exceptions import NotSupportedError

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class Timed:
    """Repeats of one piece of work.

    Attributes:
        seconds: by the wall clock, one per repeat.
        cpu: seconds of processor time of all threads, one per repeat.
        result: what the last repeat returned.
    """

    seconds: list[float]
    cpu: list[float]
    result: Any = None

    @property
    def median(self) -> float:
        """Median seconds by the wall clock."""
        return statistics.median(self.seconds)

    @property
    def median_cpu(self) -> float:
        """Median seconds of processor time."""
        return statistics.median(self.cpu)

    @classmethod
    def joined(cls, parts: Iterable[Timed]) -> Timed:
        """The repeats of several pieces of work, joined."""
        known = list(parts)
        seconds = [s for part in known for s in part.seconds]
        return cls(seconds, [s for part in known for s in part.cpu], known[-1].result)


def timed(work: Callable[[], Any]) -> Timed:
    """One repeat."""
    begin, cpu = time.perf_counter(), time.process_time()
    result = work()
    cpu = time.process_time() - cpu
    return Timed([time.perf_counter() - begin], [cpu], result)


def interleaved(work: Mapping[str, Callable[[], Any]], repeats: int) -> dict[str, Timed]:
    """Time each piece of work ``repeats`` times, in turns, so that all meet the same machine.

    Args:
        work: functions by name; every second turn goes through them backwards.
        repeats: turns, at least 1.
    """
    found: dict[str, list[Timed]] = {name: [] for name in work}
    for turn in range(repeats):
        for name in list(work) if turn % 2 == 0 else reversed(list(work)):
            found[name].append(timed(work[name]))
    return {name: Timed.joined(parts) for name, parts in found.items()}


def fastest(work: Mapping[Key, Callable[[], Any]], repeats: int = 3) -> Key:
    """The setting at which a peer is fastest: its least time of ``repeats``, after a warm-up."""

    def least(function: Callable[[], Any]) -> float:
        function()
        return min(timed(function).median for _ in range(repeats))

    measured = {setting: least(function) for setting, function in work.items()}
    return min(measured, key=lambda setting: measured[setting])


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that is not below this share of all of them."""
    return sorted(values)[max(math.ceil(share * len(values)) - 1, 0)]


class PeakMemory:
    """The most memory that this process held inside a ``with`` block, above what it held before.

    Only what is resident counts. ``bytes`` is set when the block ends.
    """

    bytes = 0

    def __enter__(self) -> PeakMemory:
        if _CLEAR.exists():
            # Some containers do not allow it: then the earlier peak is kept.
            with contextlib.suppress(OSError):
                _CLEAR.write_text("5")  # resets the peak to what is resident now
        self._before = resident()
        return self

    def __exit__(self, *exception: object) -> None:
        self.bytes = max(peak() - self._before, 0)


def resident() -> int:
    """Bytes that are resident now; without ``/proc``, the most so far."""
    return _status("VmRSS") or peak()


def peak() -> int:
    """The most bytes that were resident at once.

    Raises:
        NotSupportedError: on a system that does not tell.
    """
    # Preferred to ru_maxrss: on Linux that begins with the parent's in a new process.
    found = _status("VmHWM")
    if found is not None:
        return found
    if sys.platform == "win32":
        raise NotSupportedError("The memory of a process is only known on Linux and macOS.")
    import resource

    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else 1024 * most


def _status(name: str) -> int | None:
    """A field of the process's status, in bytes; None where there is no such thing."""
    try:
        lines = _STATUS.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith(f"{name}:"):
            return 1024 * int(line.split()[1])
    return None
