"""Record the traces, or compare them with what was recorded.

From the root of the repository::

    PYTHONPATH=.:tests python -m golden.record           # write tests/data/golden.json
    PYTHONPATH=.:tests python -m golden.record --check   # print each difference; exit code 1 if any

``--only WORD`` plays the cases whose names contain the word, ``--threads N`` plays on N threads.
``--check --nudge 1e-12`` changes answers and noise variances by this relative amount: where that
makes a difference, a change of the code may do so by rounding alone. ``--device cuda`` plays on a
GPU, a simulated one where there is no other.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from golden import traces

FILE = Path(__file__).parents[1] / "data" / "golden.json"
SMALL = 1e-3  # smaller numbers are compared with the absolute tolerance of this one


def differences(
    stored: Any, played: Any, tolerance: float, place: Sequence[str] = ()
) -> Iterator[str]:
    """A line for each difference, in the order of the calls.

    Args:
        stored: the recorded trace, or a part of it.
        played: the same part of the trace played now.
        tolerance: largest difference of two numbers, relative to the larger one. Whole numbers
            and everything else must be the same.
        place: keys that lead to the part in the trace.
    """
    if isinstance(stored, Mapping) and isinstance(played, Mapping):
        for key in [*stored, *(key for key in played if key not in stored)]:
            yield from differences(
                stored.get(key, "nothing"), played.get(key, "nothing"), tolerance, [*place, key]
            )
    elif isinstance(stored, list) and isinstance(played, list):
        if len(stored) != len(played):
            yield f"{' '.join(place)}: {len(stored)} entries recorded, {len(played)} now"
        for number, (one, other) in enumerate(zip(stored, played, strict=False)):
            yield from differences(one, other, tolerance, [*place, str(number)])
    elif not _same(stored, played, tolerance):
        yield f"{' '.join(place)}: {stored!r} recorded, {played!r} now"


def _same(stored: Any, played: Any, tolerance: float) -> bool:
    numbers = all(isinstance(n, int | float) and not isinstance(n, bool) for n in (stored, played))
    if not numbers or not (isinstance(stored, float) or isinstance(played, float)):
        return type(stored) is type(played) and stored == played
    return abs(stored - played) <= tolerance * max(abs(stored), abs(played), SMALL)


def compared(name: str, stored: Mapping[str, Any], nudge: float = 0.0) -> list[str]:
    """How a case played now differs from its recorded trace; one line per difference."""
    if name not in stored:
        return [f"{name}: was not recorded"]
    case = traces.CASES[name]
    text = json.dumps(traces.play(case, nudge))
    played = json.loads(text.replace(traces.DEVICE + ":0", "cpu"))
    return list(differences(stored[name], played, case.tolerance, [f"{name}:"]))


def read() -> dict[str, Any]:
    """The recorded traces, by the name of the case."""
    return json.loads(FILE.read_text())


def write(recorded: Mapping[str, Any]) -> None:
    """Write the traces to the file, one line per case."""
    lines = (
        f"{json.dumps(name)}:{json.dumps(trace, separators=(',', ':'))}"
        for name, trace in recorded.items()
    )
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Play the cases; 1 if ``--check`` found a difference."""
    parser = argparse.ArgumentParser(prog="python -m golden.record", description="Golden traces.")
    parser.add_argument("--check", action="store_true", help="compare, and write nothing")
    parser.add_argument("--only", default="", metavar="WORD", help="cases with it in their names")
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="of torch")
    parser.add_argument("--nudge", type=float, default=0.0, metavar="SHARE", help="with --check")
    parser.add_argument("--times", action="store_true", help="print how long each case takes")
    parser.add_argument("--device", default="cpu", help="with --check")
    given = parser.parse_args(arguments)
    torch.set_num_threads(given.threads)
    if given.device == "cpu" or torch.cuda.is_available():
        return _main(given)
    from simulated_cuda import simulated_cuda

    with simulated_cuda():
        return _main(given)


def _main(given: argparse.Namespace) -> int:
    traces.DEVICE = given.device
    traces.NOISE_VAR *= 1.0 + given.nudge
    names = [name for name in traces.CASES if given.only in name]
    stored = read() if FILE.exists() and (given.check or given.only) else {}
    failed = 0
    for name in names:
        begun = time.perf_counter()
        if given.check:
            try:
                found = compared(name, stored, given.nudge)
            except Exception as error:
                found = [f"{name}: {type(error).__name__}: {error}"]
            failed += bool(found)
            print("\n".join(found), end="\n" if found else "")
        else:
            stored[name] = traces.play(traces.CASES[name])
        if given.times:
            print(f"{time.perf_counter() - begun:6.2f} s  {name}", flush=True)
    if not given.check:
        write({name: stored[name] for name in traces.CASES if name in stored})
        print(f"{len(names)} cases recorded in {FILE.name}, {FILE.stat().st_size / 1e3:.0f} kB.")
        return 0
    gone = [name for name in stored if name not in traces.CASES]
    for name in gone:
        print(f"{name}: was recorded, and is not a case now")
    print(f"{failed + len(gone)} of {len(names) + len(gone)} cases differ.")
    return 1 if failed or gone else 0


if __name__ == "__main__":
    sys.exit(main())
