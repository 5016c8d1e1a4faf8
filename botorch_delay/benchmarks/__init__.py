"""Problems with a known answer, and a simulator of delays."""

from botorch_delay.benchmarks.problems import FiniteProblem, paper_problem
from botorch_delay.benchmarks.simulator import History, simulate

__all__ = ["FiniteProblem", "History", "paper_problem", "simulate"]
