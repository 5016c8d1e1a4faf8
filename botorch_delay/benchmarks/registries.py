"""Problems, clocks and methods by name, to which you can add your own."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from functools import lru_cache, partial
from importlib import resources

from botorch_delay.benchmarks.clocks import (
    Clock,
    GrowingClock,
    ParetoDelay,
    StepClock,
    WorkerClock,
)
from botorch_delay.benchmarks.functions import (
    KERNELS,
    TEST_FUNCTIONS,
    function_on_arms,
    function_on_box,
    gp_draw,
)
from botorch_delay.benchmarks.methods import (
    ABLATIONS,
    GUARANTEED,
    LIBRARY_METHODS,
    PAPER_METHODS,
    Method,
)
from botorch_delay.benchmarks.optuna_samplers import OPTUNA_METHODS
from botorch_delay.benchmarks.problems import Problem, paper_problem
from botorch_delay.benchmarks.tables import DATASETS, tuning_table
from botorch_delay.delays import GeometricDelay, NoDelay, PoissonDelay

MakeProblem = Callable[[int], Problem]


# Made from the seed of a run. Add your own to these; several processes need what can be pickled.
PROBLEMS: dict[str, MakeProblem] = {}
DELAYS: dict[str, Clock] = {}
METHODS: dict[str, Method] = {
    **LIBRARY_METHODS,
    **PAPER_METHODS,
    **GUARANTEED,
    **ABLATIONS,
    **OPTUNA_METHODS,
}


def mean_delays() -> dict[str, float]:
    """The registered delays that differ in their mean alone, in steps: Poisson ones, and none."""
    return {
        name: clock.law.mean
        for name, clock in DELAYS.items()
        if isinstance(clock, StepClock)
        and isinstance(clock.law, PoissonDelay | NoDelay)
        and not (clock.lost or clock.failed)
    }


def split_of(problem: str) -> str:
    """Whether a problem may be used to choose defaults: "development", "testing", "not listed"."""
    text = resources.files("botorch_delay.benchmarks").joinpath("splits.toml").read_text()
    for split, entries in tomllib.loads(text).items():
        if problem in entries["problems"]:
            return split
    return "not listed"


@lru_cache(maxsize=2)
def made_problem(factory: MakeProblem, seed: int) -> Problem:
    """A problem, kept while one method after another is simulated on it."""
    return factory(seed)


def _gp(kernel: str, noise_std: float, factor: float, seed: int, dim: int = 2) -> Problem:
    return gp_draw(kernel, noise_std, seed, learner_factor=factor, dim=dim)


def _paper_function(lengthscale: float, seed: int) -> Problem:
    """One function for all seeds, as in the paper."""
    return paper_problem(lengthscale, 0)


for _kernel in KERNELS:
    for _noise in (0.02, 0.2):
        PROBLEMS[f"{_kernel}-{_noise}"] = partial(_gp, _kernel, _noise, 1.0)
for _kernel in ("se", "matern52"):
    for _word, _factor in (("wide", 2.0), ("narrow", 0.5)):
        PROBLEMS[f"{_kernel}-0.02-{_word}"] = partial(_gp, _kernel, 0.02, _factor)
for _name, _lengthscale in (("f1", 0.8), ("f2", 1.0)):
    PROBLEMS[_name] = partial(_paper_function, _lengthscale)
    PROBLEMS[f"paper-{_lengthscale}"] = partial(paper_problem, _lengthscale)
PROBLEMS["se-0.02-d4"] = partial(_gp, "se", 0.02, 1.0, dim=4)
for _name in TEST_FUNCTIONS:
    PROBLEMS[f"{_name}-arms"] = partial(function_on_arms, _name)
    PROBLEMS[f"{_name}-box"] = partial(function_on_box, _name)
for _family, _datasets in DATASETS.items():
    for _name in _datasets:
        PROBLEMS[f"{_family}-{_name}"] = partial(tuning_table, _family, _name)

DELAYS["none"] = StepClock(NoDelay())
for _mean in (10, 25, 50, 100, 200):
    DELAYS[f"poisson-{_mean}"] = StepClock(PoissonDelay(float(_mean)))
DELAYS["geometric-20"] = StepClock(GeometricDelay(20.0))
DELAYS["pareto-1.5"] = StepClock(ParetoDelay(1.5, 10.0))
DELAYS["grows-with-f"] = GrowingClock(40.0)
DELAYS["lost-10"] = StepClock(PoissonDelay(10.0), lost=0.1)
DELAYS["failed-5"] = StepClock(PoissonDelay(10.0), failed=0.05)
DELAYS["workers-4"] = WorkerClock(4)
DELAYS["workers-16"] = WorkerClock(16)
