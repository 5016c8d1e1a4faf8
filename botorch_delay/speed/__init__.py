"""How fast the hot loops are, against their peers in the same run: ``bench speed``."""

from botorch_delay.speed.command import add_parser, run

__all__ = ["add_parser", "run"]
