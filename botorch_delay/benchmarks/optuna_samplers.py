"""Optuna's samplers as they ship, on the problems of the benchmark.

On a full grid of arms, such as a tuning table, every column is one integer parameter, the number
of its value, or a categorical one: Optuna's trials are exactly the arms. On any other set it
searches the bounding box, and the arm nearest to what it suggests is evaluated; it is told the
value and does not know of the move. On a box it gets the box.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from botorch_delay.benchmarks.clocks import Clock
from botorch_delay.benchmarks.methods import Method
from botorch_delay.benchmarks.problems import Point, Problem
from botorch_delay.domains.box import BoxDomain
from botorch_delay.domains.finite import Domain, FiniteDomain
from botorch_delay.exceptions import MissingExtraError, NoAnswerError, NotSupportedError
from botorch_delay.optimizers import RandomOptimizer

# From values of Optuna's parameters: the point that they stand for, its row in a finite domain.
PointOf = Callable[[dict[str, Any]], tuple[Tensor, int | None]]


@dataclass(frozen=True, eq=False)
class Suggestion:
    """A point that Optuna suggested.

    Attributes:
        id: number of Optuna's trial, from 0.
        x: the point, ``d``.
        index: its row in a finite domain; None on a box.
    """

    id: int
    x: Tensor
    index: int | None


class OptunaSampler:
    """A study of Optuna's.

    Args:
        problem: to be searched.
        clock: takes no part.
        steps: takes no part.
        seed: of the sampler.
        sampler: "TPESampler" or "GPSampler", made with nothing but the seed.

    Raises:
        MissingExtraError: without Optuna.
        NotSupportedError: on a box with constraints.
    """

    def __init__(
        self, problem: Problem, clock: Clock, steps: int, seed: int, *, sampler: str
    ) -> None:
        try:
            import optuna
        except ImportError as error:
            raise MissingExtraError(
                "Optuna's methods need Optuna: pip install 'botorch-delay[bench]'."
            ) from error
        self._optuna = optuna
        self._problem = problem
        self._distributions, self._point_of = _translated(problem.domain, optuna.distributions)
        self._seed = seed
        self._trials: list[Any] = []
        self._asked: list[Suggestion] = []
        self._answers: dict[int, float] = {}
        with self._quiet():
            made = getattr(optuna.samplers, sampler)(seed=seed % 2**32)
            self._study = optuna.create_study(sampler=made, direction="maximize")

    def ask(self) -> Suggestion:
        """A trial of the study, moved to the arm that it stands for."""
        with self._quiet():
            trial = self._study.ask(self._distributions)
        x, index = self._point_of(trial.params)
        self._trials.append(trial)
        self._asked.append(Suggestion(len(self._asked), x, index))
        return self._asked[-1]

    def tell(self, trial: int, y: float, /) -> None:
        """The answer of a trial."""
        with self._quiet():
            self._study.tell(self._trials[trial], y)
        self._answers[trial] = y

    def mark_failed(self, trial: int, /) -> None:
        """Tell the study that a trial failed."""
        with self._quiet():
            self._study.tell(self._trials[trial], state=self._optuna.trial.TrialState.FAIL)

    def recommend(self) -> Point:
        """Optuna's best trial, by its noisy value.

        Raises:
            NoAnswerError: before the first answer.
        """
        if not self._answers:
            raise NoAnswerError("Nothing was answered yet.")
        return self._asked[self._study.best_trial.number]

    def recommend_by_model(self) -> Point:
        """What this library recommends from the same answers, by a posterior mean."""
        model = RandomOptimizer(
            self._problem.domain, **self._problem.model_options, seed=self._seed
        )
        X = torch.stack([self._asked[number].x for number in self._answers])
        model.attach(X, X.new_tensor(list(self._answers.values())))
        return model.recommend()

    @contextmanager
    def _quiet(self) -> Iterator[None]:
        """Without Optuna's log, its warnings of experimental parts, and the global generator."""
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


def _translated(domain: Domain, kinds: Any) -> tuple[dict[str, Any], PointOf]:
    """Optuna's distributions by parameter, and the point that values of these stand for."""
    names = domain.names
    if isinstance(domain, BoxDomain):
        return _box(domain, kinds)
    assert isinstance(domain, FiniteDomain)
    found = [torch.unique(column, return_inverse=True) for column in domain.points.unbind(dim=1)]
    counts = [len(distinct) for distinct, _ in found]
    if math.prod(counts) == len(domain):
        places = torch.stack([inverse for _, inverse in found], dim=1).tolist()
        rows = {tuple(place): row for row, place in enumerate(places)}

        def arm(params: dict[str, Any]) -> tuple[Tensor, int]:
            index = rows[tuple(params[name] for name in names)]
            return domain.points[index], index

        distributions = {
            name: kinds.CategoricalDistribution(range(count))
            if dim in domain.cat_dims
            else kinds.IntDistribution(0, count - 1)
            for dim, (name, count) in enumerate(zip(names, counts, strict=True))
        }
        return distributions, arm
    low, high = domain.bounds
    unit = (domain.points - low) / (high - low).clamp_min(torch.finfo(high.dtype).tiny)

    def nearest(params: dict[str, Any]) -> tuple[Tensor, int]:
        point = unit.new_tensor([params[name] for name in names])
        index = int((unit - point).square().sum(dim=1).argmin())
        return domain.points[index], index

    return {name: kinds.FloatDistribution(0.0, 1.0) for name in names}, nearest


def _box(domain: BoxDomain, kinds: Any) -> tuple[dict[str, Any], PointOf]:
    if domain.constraints or domain.feasible is not None:
        raise NotSupportedError("Optuna's samplers are not told constraints of a box.")
    distributions = {}
    for dim, (name, (low, high)) in enumerate(zip(domain.names, domain.bounds.T, strict=True)):
        if dim in domain.cat_dims:
            distributions[name] = kinds.CategoricalDistribution(domain.cat_dims[dim])
        elif dim in domain.discrete_dims:
            distributions[name] = kinds.IntDistribution(0, len(domain.discrete_dims[dim]) - 1)
        else:
            log = dim in domain.log_dims
            distributions[name] = kinds.FloatDistribution(low.item(), high.item(), log=log)

    def point(params: dict[str, Any]) -> tuple[Tensor, None]:
        x = [params[name] for name in domain.names]
        for dim, values in domain.discrete_dims.items():
            x[dim] = values[x[dim]]
        return domain.bounds.new_tensor(x), None

    return distributions, point


OPTUNA_METHODS = {
    name: Method(
        partial(OptunaSampler, sampler=sampler), f"Optuna's {sampler} as it ships", package="optuna"
    )
    for name, sampler in {"tpe": "TPESampler", "optuna-gp": "GPSampler"}.items()
}
