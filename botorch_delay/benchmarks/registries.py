"""Problems, clocks and methods by name; add your own with the three ``register`` functions."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache, partial
from typing import TypeVar

from botorch_delay.benchmarks.clocks import (
    Clock,
    GrowingClock,
    ParetoDelay,
    StepClock,
    WorkerClock,
)
from botorch_delay.benchmarks.functions import (
    SMOOTHNESS,
    TEST_FUNCTIONS,
    function_on_arms,
    function_on_box,
    gp_draw,
)
from botorch_delay.benchmarks.methods import ABLATIONS, GUARANTEED, LIBRARY_METHODS
from botorch_delay.benchmarks.optuna_players import OPTUNA_METHODS
from botorch_delay.benchmarks.players import Method
from botorch_delay.benchmarks.problems import Problem, paper_problem
from botorch_delay.benchmarks.tables import DATASETS, tuning_table
from botorch_delay.delays import GeometricDelay, NoDelay, PoissonDelay
from botorch_delay.exceptions import InputError, InputTypeError

MakeProblem = Callable[[int], Problem]
T = TypeVar("T")


class Registry(Mapping[str, T]):
    """Entries by name, in the order in which they were added.

    Args:
        noun: what an entry is, for messages.
    """

    def __init__(self, noun: str) -> None:
        self._noun = noun
        self._entries: dict[str, T] = {}

    def add(self, name: str, entry: T) -> None:
        """Add an entry.

        Raises:
            InputError: if the name is taken, or is not made of letters, digits, dots, dashes
                and underscores: it becomes part of the names of files.
        """
        if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
            raise InputError(
                f"The name of a {self._noun} must be made of letters, digits, dots, dashes and "
                f"single underscores, got {name!r}."
            )
        if "__" in name:  # separates the parts of a file's name
            raise InputError(f"The name of a {self._noun} must not hold '__', got {name!r}.")
        if name in self._entries:
            raise InputError(f"There is a {self._noun} {name!r} already; choose another name.")
        self._entries[name] = entry

    def remove(self, name: str) -> None:
        """Take an entry out.

        Raises:
            InputError: if there is none of this name.
        """
        self[name]
        del self._entries[name]

    def __getitem__(self, name: str) -> T:
        if name not in self._entries:
            raise InputError(
                f"There is no {self._noun} {name!r}; there are {', '.join(self._entries)}."
            )
        return self._entries[name]

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def check(self, names: Iterable[str]) -> None:
        """Refuse unknown names.

        Raises:
            InputError: if there is no entry of one of the names; it lists those there are.
        """
        for name in names:
            self[name]


PROBLEMS: Registry[MakeProblem] = Registry("problem")
DELAYS: Registry[Clock] = Registry("delay")
METHODS: Registry[Method] = Registry("method")


def register_problem(name: str, factory: MakeProblem) -> None:
    """Add a problem to the benchmark.

    Args:
        name: unique.
        factory: called with the seed of a cell, gives a problem. To be played by several
            processes it must be defined at the top level of a module.

    Raises:
        InputError: if the name cannot be used.

    Example:
        >>> import torch
        >>> from botorch_delay.benchmarks import FiniteProblem
        >>> def line(seed: int) -> FiniteProblem:
        ...     x = torch.linspace(0, 1, 11, dtype=torch.double).unsqueeze(-1)
        ...     return FiniteProblem(x, x.squeeze(-1), noise_std=0.1)
        >>> register_problem("line", line)
        >>> PROBLEMS["line"](0).highest
        1.0
        >>> PROBLEMS.remove("line")
    """
    if not callable(factory):
        raise InputTypeError(f"factory must be a function of a seed, got {factory!r}.")
    PROBLEMS.add(name, factory)


def register_delay(name: str, clock: Clock) -> None:
    """Add a clock to the benchmark.

    Raises:
        InputError: if the name cannot be used, or ``clock`` is none.
    """
    if not isinstance(clock, Clock):
        raise InputTypeError(f"clock must be a Clock, got {type(clock).__name__}.")
    DELAYS.add(name, clock)


def register_method(name: str, method: Method) -> None:
    """Add a method to the benchmark.

    Raises:
        InputError: if the name cannot be used, or ``method`` is none.
    """
    if not isinstance(method, Method):
        raise InputTypeError(f"method must be a Method, got {type(method).__name__}.")
    METHODS.add(name, method)


def mean_delays() -> dict[str, float]:
    """The registered delays that differ in their mean alone, in steps: Poisson ones, and none."""
    found = {}
    for name, clock in DELAYS.items():
        if isinstance(clock, StepClock) and not clock.lost and not clock.failed:
            if isinstance(clock.law, PoissonDelay):
                found[name] = clock.law.mean
            elif isinstance(clock.law, NoDelay):
                found[name] = 0.0
    return found


@lru_cache(maxsize=2)
def made_problem(factory: MakeProblem, seed: int) -> Problem:
    """A problem, kept while it is played by one method after another."""
    return factory(seed)


def _gp(kernel: str, noise_std: float, factor: float, seed: int, dim: int = 2) -> Problem:
    return gp_draw(kernel, noise_std, seed, learner_factor=factor, dim=dim)


for _kernel in SMOOTHNESS:
    for _noise in (0.02, 0.2):
        PROBLEMS.add(f"{_kernel}-{_noise}", partial(_gp, _kernel, _noise, 1.0))
for _kernel in ("se", "matern52"):
    for _word, _factor in (("wide", 2.0), ("narrow", 0.5)):
        PROBLEMS.add(f"{_kernel}-0.02-{_word}", partial(_gp, _kernel, 0.02, _factor))
for _lengthscale in (0.8, 1.0):
    PROBLEMS.add(f"paper-{_lengthscale}", partial(paper_problem, _lengthscale))
PROBLEMS.add("se-0.02-d4", partial(_gp, "se", 0.02, 1.0, dim=4))
for _name in TEST_FUNCTIONS:
    PROBLEMS.add(f"{_name}-arms", partial(function_on_arms, _name))
    PROBLEMS.add(f"{_name}-box", partial(function_on_box, _name))
for _family, _datasets in DATASETS.items():
    for _name in _datasets:
        PROBLEMS.add(f"{_family}-{_name}", partial(tuning_table, _family, _name))

DELAYS.add("none", StepClock(NoDelay()))
for _mean in (10, 25, 50, 100, 200):
    DELAYS.add(f"poisson-{_mean}", StepClock(PoissonDelay(float(_mean))))
DELAYS.add("geometric-20", StepClock(GeometricDelay(20.0)))
DELAYS.add("pareto-1.5", StepClock(ParetoDelay(1.5, 10.0)))
DELAYS.add("grows-with-f", GrowingClock(40.0))
DELAYS.add("lost-10", StepClock(PoissonDelay(10.0), lost=0.1))
DELAYS.add("failed-5", StepClock(PoissonDelay(10.0), failed=0.05))
DELAYS.add("workers-4", WorkerClock(4))
DELAYS.add("workers-16", WorkerClock(16))

for _name, _method in (LIBRARY_METHODS | GUARANTEED | ABLATIONS | OPTUNA_METHODS).items():
    METHODS.add(_name, _method)
