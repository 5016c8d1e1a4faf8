"""Problems with known answers, a simulator of delays, and comparisons of methods.

``simulate`` runs a method (``METHODS``) on a problem (``PROBLEMS``, made from a seed) with delays
(``DELAYS``, clocks). ``bench.bench`` and ``paper.reproduce`` run whole suites of simulations, keep
them in a folder, and report on them.

For maintainers, from the bottom up: ``problems`` (types), ``trainings`` (real losses),
``functions`` (problems by name), ``simulator`` (and its clocks), ``peers`` (optimizers of other
libraries; those that need an environment of their own run in ``peer_server``), ``methods``,
``suites`` (and the folder of their runs), ``bench`` (tables and intervals) and ``paper``.

* To add a problem: in ``functions`` a function of the seed that returns a ``FiniteProblem`` or a
  ``BoxProblem``, and a line in ``PROBLEMS`` (for a test function of BoTorch's, a line in
  ``TEST_FUNCTIONS`` alone). List it in ``TESTING`` if no default may be chosen on it.
* To add a method: in ``methods`` a function of problem, clock, number of asks and seed that returns
  an optimizer, and a line in ``METHODS``. For one of another library write a ``PeerSampler`` in
  ``peers``, or a ``Peer`` in ``peer_server`` with a line in ``methods._SERVED``.
* To add a delay, or a number of workers: a line in ``DELAYS``.
"""

from botorch_delay.benchmarks.functions import PROBLEMS, paper_problem
from botorch_delay.benchmarks.methods import METHODS, Method
from botorch_delay.benchmarks.problems import BoxProblem, FiniteProblem, Problem
from botorch_delay.benchmarks.simulator import DELAYS, Clock, Sampler, SimulationResult, simulate

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
