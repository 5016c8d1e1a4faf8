"""The command line: ``botorch-delay``."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from botorch_delay.exceptions import BotorchDelayError

# A command that Ctrl-C stopped, as shells count it.
INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; failing input gives one line on stderr and exit code 2."""
    arguments = _parser().parse_args(argv)
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    try:
        return int(arguments.command(arguments))
    except BotorchDelayError as error:
        print(f"botorch-delay: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("botorch-delay: interrupted", file=sys.stderr)
        return INTERRUPTED


class _Parser(argparse.ArgumentParser):
    """One line for a wrong option, and where to read on."""

    def error(self, message: str) -> None:  # type: ignore[override]  # exits, as the base does
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="botorch-delay", description="Bayesian optimisation with late results.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_demo(commands)
    return parser


def _add_demo(commands: argparse._SubParsersAction[_Parser]) -> None:
    demo = commands.add_parser(
        "demo", help="tune an SVM on real data with late, out-of-order results"
    )
    demo.add_argument("--workers", type=int, default=2, help="worker processes (default 2)")
    demo.add_argument("--trials", type=int, default=60, help="evaluations (default 60)")
    demo.add_argument("--seed", type=int, default=0, help="of split and search (default 0)")
    demo.add_argument("--store", type=Path, help="a file to commit to, and to resume from")
    demo.add_argument("--out", type=Path, help="a PNG file to draw to")
    demo.set_defaults(command=_demo)


def _demo(arguments: argparse.Namespace) -> int:
    from botorch_delay.demo import describe, run_demo

    result = run_demo(
        workers=arguments.workers,
        trials=arguments.trials,
        seed=arguments.seed,
        store=arguments.store,
    )
    print(describe(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
