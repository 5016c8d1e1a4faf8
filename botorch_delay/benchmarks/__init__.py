"""Problems with a known answer, a simulator of delays, and methods side by side."""

from botorch_delay.benchmarks.clocks import Clock, StepClock, WorkerClock
from botorch_delay.benchmarks.players import LibraryPlayer, Method, Player
from botorch_delay.benchmarks.problems import BoxProblem, FiniteProblem, Problem, paper_problem
from botorch_delay.benchmarks.registries import (
    register_delay,
    register_method,
    register_problem,
)
from botorch_delay.benchmarks.simulator import History, simulate

__all__ = [
    "BoxProblem",
    "Clock",
    "FiniteProblem",
    "History",
    "LibraryPlayer",
    "Method",
    "Player",
    "Problem",
    "StepClock",
    "WorkerClock",
    "paper_problem",
    "register_delay",
    "register_method",
    "register_problem",
    "simulate",
]
