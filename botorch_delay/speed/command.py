"""The command ``bench speed``."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from botorch_delay.speed.suite import SpeedReport


def add_parser(subparsers: Any) -> Any:
    """Add ``speed`` to what ``add_subparsers`` of argparse has returned, and return its parser."""
    text = "our hot loops against their peers, in one run"
    parser: argparse.ArgumentParser = subparsers.add_parser("speed", help=text, description=text)
    parser.add_argument("--out", type=Path, default=Path("speed"), help="a folder")
    parser.add_argument("--quick", action="store_true", help="small sizes, in a minute")
    parser.add_argument(
        "--case", action="append", metavar="NAME", help="only this one; may be given repeatedly"
    )
    parser.add_argument("--threads", type=int, help="of torch, for all (default: torch's)")
    return parser


def run(arguments: argparse.Namespace, progress: Callable[[str], None]) -> SpeedReport:
    """Run what the parser has read.

    Args:
        arguments: of the parser that :func:`add_parser` has made.
        progress: takes a line about each case as it begins.

    Raises:
        InputError: if a case is unknown, or the folder cannot be written.
    """
    from botorch_delay.speed.suite import measure_speed

    return measure_speed(
        arguments.out,
        quick=arguments.quick,
        cases=arguments.case,
        threads=arguments.threads,
        progress=progress,
    )
