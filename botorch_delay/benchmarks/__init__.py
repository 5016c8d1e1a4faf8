"""Problems with a known answer, a simulator of delays, and methods side by side.

A problem (``PROBLEMS``, from a seed) with a delay (``DELAYS``, a clock) and a method (``METHODS``)
is simulated by ``simulate``. A suite of such runs is kept in a folder, measured, compared and
drawn, by ``bench.bench`` or ``paper.reproduce``.

For maintainers, from the bottom up: ``problems`` (types), ``trainings`` (real losses), ``clocks``
(steps and workers), ``functions`` (problems by name), ``simulator``, ``peers`` (optimizers of other
libraries; ``peer_server``, run by path in another environment, serves those that need one),
``methods``, ``suites``, ``runs`` (the folder), ``results`` (tables and intervals); ``bench``
and ``paper``.

* To add a problem: in ``functions`` a function of the seed that returns a ``FiniteProblem`` or a
  ``BoxProblem``, and a line in ``PROBLEMS`` (for a test function of BoTorch's, a line in
  ``TEST_FUNCTIONS`` alone). Its name goes into ``TESTING`` if no default may be chosen on it.
* To add a method: in ``methods`` a function of problem, clock, number of asks and seed that returns
  an optimizer, and a line in ``METHODS``. One of another library is a ``PeerSampler`` in ``peers``
  that says how it suggests and how it is told, and that line names its package. One that may not
  be installed beside torch is a ``Peer`` in ``peer_server``, and a line in ``methods._SERVED``.
* To add a delay, or a number of workers: a line in ``DELAYS``.
"""

from botorch_delay.benchmarks.clocks import DELAYS, Clock
from botorch_delay.benchmarks.functions import PROBLEMS, paper_problem
from botorch_delay.benchmarks.methods import METHODS, Method
from botorch_delay.benchmarks.problems import BoxProblem, FiniteProblem, Problem
from botorch_delay.benchmarks.simulator import Sampler, SimulationResult, simulate

__all__ = [
    "DELAYS",
    "METHODS",
    "PROBLEMS",
    "BoxProblem",
    "Clock",
    "FiniteProblem",
    "Method",
    "Problem",
    "Sampler",
    "SimulationResult",
    "paper_problem",
    "simulate",
]
