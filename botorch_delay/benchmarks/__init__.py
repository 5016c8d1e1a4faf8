"""Problems with a known answer, a simulator of delays, and methods side by side."""

from botorch_delay.benchmarks.clocks import Clock, StepClock, WorkerClock
from botorch_delay.benchmarks.methods import Method
from botorch_delay.benchmarks.problems import BoxProblem, FiniteProblem, Problem, paper_problem
from botorch_delay.benchmarks.registries import DELAYS, METHODS, PROBLEMS
from botorch_delay.benchmarks.simulator import History, Sampler, simulate

__all__ = [
    "DELAYS",
    "METHODS",
    "PROBLEMS",
    "BoxProblem",
    "Clock",
    "FiniteProblem",
    "History",
    "Method",
    "Problem",
    "Sampler",
    "StepClock",
    "WorkerClock",
    "paper_problem",
    "simulate",
]
