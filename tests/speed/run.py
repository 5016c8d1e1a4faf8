"""Measure the hot loops against their peers in one run, and check that results agree.

    python tests/speed/run.py --case index --case ask --threads 1

Options:
    --case NAME   only this one, and may be given repeatedly; without it all of ``suite.CASES``
    --threads N   of torch, for ours and the peers alike; without it torch's own choice
    --quick       small sizes, in a minute, for which nothing is judged
    --out FOLDER  where ``speed.csv`` and ``speed.md`` are written (default: ``speed``)

The package beside this folder is measured, and ``botorch``, ``gpytorch`` and ``torch`` are all
that it needs; the case ``optuna`` is skipped where there is no Optuna, ``cuda`` where there is no
device. The exit code is 1 if a result is wrong, and 2 if an option is or a case fails.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path


def main(argv: Sequence[str] | None = None) -> int:
    """Run what the options say, print the table, and return the exit code."""
    arguments = _parser().parse_args(argv)
    from botorch_delay.exceptions import BotorchDelayError
    from speed.suite import measure_speed

    try:
        report = measure_speed(
            arguments.out,
            quick=arguments.quick,
            cases=arguments.case,
            threads=arguments.threads,
            progress=lambda line: print(line, file=sys.stderr, flush=True),
        )
    except BotorchDelayError as error:
        print(f"speed: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    print(report.text)
    if not report.correct:
        print("speed: some results are wrong, see the table", file=sys.stderr)
    return 0 if report.correct else 1


def _parser() -> argparse.ArgumentParser:
    text = "our hot loops against their peers, in one run"
    parser = argparse.ArgumentParser(prog="tests/speed/run.py", description=text)
    parser.add_argument("--out", type=Path, default=Path("speed"), help="a folder")
    parser.add_argument("--quick", action="store_true", help="small sizes, in a minute")
    parser.add_argument(
        "--case", action="append", metavar="NAME", help="only this one; may be given repeatedly"
    )
    parser.add_argument("--threads", type=int, help="of torch, for all (default: torch's)")
    return parser


if __name__ == "__main__":
    tests = Path(__file__).resolve().parents[1]
    sys.path[:1] = [str(tests), str(tests.parent)]
    sys.exit(main())
