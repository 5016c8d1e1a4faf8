"""Optuna's samplers as they ship, on the problems of the benchmark.

On a full grid of arms, such as a tuning table, every column is one integer parameter, the number
of its value, or a categorical one: Optuna's trials are exactly the arms. On any other set it
searches the bounding box, and the arm nearest to what it suggests is evaluated; it is told the
value and does not know of the move. On a box it gets the box.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from botorch_delay.benchmarks.clocks import Clock
from botorch_delay.benchmarks.players import OURS, OWN, Method, Player
from botorch_delay.benchmarks.problems import Point, Problem
from botorch_delay.domains.box import BoxDomain
from botorch_delay.domains.finite import Domain, FiniteDomain
from botorch_delay.exceptions import MissingExtraError, NotSupportedError
from botorch_delay.optimizers import RandomOptimizer


class OptunaPlayer(Player):
    """A study of Optuna's.

    Args:
        problem: what is played.
        sampler: "TPESampler" or "GPSampler", made with nothing but the seed.
        seed: of the sampler.

    Raises:
        MissingExtraError: without Optuna.
    """

    def __init__(self, problem: Problem, sampler: str, seed: int) -> None:
        self._optuna = _require_optuna()
        self._space = _space_of(problem.domain)
        self._domain = problem.domain
        self._given = problem.given
        self._seed = seed
        self._trials: list[Any] = []
        self._asked: list[Point] = []
        self._answers: dict[int, float] = {}
        with self._quietly():
            made = getattr(self._optuna.samplers, sampler)(seed=seed % 2**32)
            self._study = self._optuna.create_study(sampler=made, direction="maximize")

    def ask(self) -> Point:
        """A trial of the study, moved to the arm that it stands for."""
        with self._quietly():
            trial = self._study.ask()
            x, index = self._space.suggest(trial)
        self._trials.append(trial)
        self._asked.append(Point(x, index))
        return self._asked[-1]

    def tell(self, number: int, value: float) -> None:
        """The answer of a trial."""
        with self._quietly():
            self._study.tell(self._trials[number], value)
        self._answers[number] = value

    def fail(self, number: int) -> None:
        """Tell the study that a trial failed."""
        with self._quietly():
            self._study.tell(self._trials[number], state=self._optuna.trial.TrialState.FAIL)

    def recommend(self) -> dict[str, Point]:
        """Optuna's best trial, by its noisy value; and ours, by a posterior mean."""
        if not self._answers:
            return {}
        ours = RandomOptimizer(self._domain, **self._given, seed=self._seed)
        X = torch.stack([self._asked[number].x for number in self._answers])
        ours.attach(X, X.new_tensor(list(self._answers.values())))
        best = ours.recommend()
        return {
            OWN: self._asked[self._study.best_trial.number],
            OURS: Point(best.x, best.index),
        }

    @contextmanager
    def _quietly(self) -> Iterator[None]:
        """Without Optuna's log, notes on experimental parts, and use of the global generator."""
        logging = self._optuna.logging
        verbosity = logging.get_verbosity()
        logging.set_verbosity(logging.ERROR)
        try:
            with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                torch.default_generator.manual_seed(self._seed + len(self._trials))
                yield
        finally:
            logging.set_verbosity(verbosity)


class _GridSpace:
    """Every column a number of one of its values: a trial is an arm."""

    def __init__(self, domain: FiniteDomain, values: list[Tensor], rows: dict[Any, int]) -> None:
        self._domain = domain
        self._values = values
        self._rows = rows

    def suggest(self, trial: Any) -> tuple[Tensor, int]:
        places = []
        for dim, (name, values) in enumerate(zip(self._domain.names, self._values, strict=True)):
            if dim in self._domain.cat_dims:
                places.append(trial.suggest_categorical(name, list(range(len(values)))))
            else:
                places.append(trial.suggest_int(name, 0, len(values) - 1))
        index = self._rows[tuple(places)]
        return self._domain.points[index], index


class _SnappedSpace:
    """The bounding box; the arm nearest to a suggestion is what is asked."""

    def __init__(self, domain: FiniteDomain) -> None:
        self._domain = domain
        self._low, high = domain.bounds
        self._width = (high - self._low).clamp_min(torch.finfo(high.dtype).tiny)
        self._unit = (domain.points - self._low) / self._width

    def suggest(self, trial: Any) -> tuple[Tensor, int]:
        unit = [trial.suggest_float(name, 0.0, 1.0) for name in self._domain.names]
        index = int((self._unit - self._unit.new_tensor(unit)).square().sum(dim=1).argmin())
        return self._domain.points[index], index


class _BoxSpace:
    """The box itself."""

    def __init__(self, domain: BoxDomain) -> None:
        self._domain = domain

    def suggest(self, trial: Any) -> tuple[Tensor, None]:
        domain, x = self._domain, []
        lower, upper = domain.bounds.tolist()
        for dim, name in enumerate(domain.names):
            if dim in domain.cat_dims:
                x.append(trial.suggest_categorical(name, list(domain.cat_dims[dim])))
            elif dim in domain.discrete_dims:
                values = list(domain.discrete_dims[dim])
                x.append(values[trial.suggest_int(name, 0, len(values) - 1)])
            else:
                log = dim in domain.log_dims
                x.append(trial.suggest_float(name, lower[dim], upper[dim], log=log))
        return domain.bounds.new_tensor(x), None


def _space_of(domain: Domain) -> _GridSpace | _SnappedSpace | _BoxSpace:
    if isinstance(domain, BoxDomain):
        if domain.constraints or domain.feasible is not None:
            raise NotSupportedError("Optuna's samplers are not given constraints of a box.")
        return _BoxSpace(domain)
    assert isinstance(domain, FiniteDomain)
    found = [torch.unique(column, return_inverse=True) for column in domain.points.unbind(dim=1)]
    values = [distinct for distinct, _ in found]
    if math.prod(map(len, values)) != len(domain):
        return _SnappedSpace(domain)
    places = torch.stack([inverse for _, inverse in found], dim=1).tolist()
    return _GridSpace(domain, values, {tuple(place): row for row, place in enumerate(places)})


def _require_optuna() -> Any:
    try:
        import optuna
    except ImportError as error:
        raise MissingExtraError(
            "Optuna's methods need Optuna: pip install 'botorch-delay[bench]'."
        ) from error
    return optuna


def tpe(problem: Problem, clock: Clock, steps: int, seed: int) -> Player:
    """Optuna's default sampler."""
    return OptunaPlayer(problem, "TPESampler", seed)


def optuna_gp(problem: Problem, clock: Clock, steps: int, seed: int) -> Player:
    """Optuna's Gaussian process sampler."""
    return OptunaPlayer(problem, "GPSampler", seed)


OPTUNA_METHODS = {
    "tpe": Method(tpe, "Optuna's TPESampler as it ships", package="optuna"),
    "optuna-gp": Method(optuna_gp, "Optuna's GPSampler as it ships", package="optuna"),
}
