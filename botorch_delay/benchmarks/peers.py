"""Optimizers of other libraries as they ship, made into samplers that can be simulated.

On a full grid of arms, such as a tuning table, every column is one integer parameter, the number
of its value, or a categorical one: what a peer suggests is exactly an arm. On any other set it
searches the unit cube, which stands for the bounding box, and the nearest arm is evaluated; it is
told the value and does not know of the move. On a box it gets the box.
"""

from __future__ import annotations

import atexit
import itertools
import json
import math
import os
import subprocess
import sys
import tempfile
import warnings
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
from botorch.acquisition.logei import qLogNoisyExpectedImprovement
from botorch.exceptions.errors import ModelFittingError
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.optim.optimize import optimize_acqf, optimize_acqf_discrete
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor
from torch.quasirandom import SobolEngine

from botorch_delay import validation
from botorch_delay.benchmarks.clocks import Clock
from botorch_delay.benchmarks.problems import Point, Problem
from botorch_delay.domains.box import BoxDomain
from botorch_delay.domains.finite import Domain, FiniteDomain
from botorch_delay.exceptions import (
    InputError,
    MissingExtraError,
    NoAnswerError,
    NotSupportedError,
    RunError,
)
from botorch_delay.optimizers import RandomOptimizer

MOST_ERRORS = 2000  # characters of what a process wrote before it died
SERVER = Path(__file__).with_name("peer_server.py")
PYTHON = "BOTORCH_DELAY_PYTHON_"  # and a module in capitals: the variable that names its Python


class Parameter(NamedTuple):
    """A column as others describe one; ``levels`` is "integer", "category" or, in a range, ""."""

    low: float
    high: float
    log: bool = False
    levels: str = ""


@dataclass(frozen=True, eq=False)
class Suggestion:
    """A point that a peer suggested: its number from 0, ``x`` (``d``), its row or None."""

    id: int
    x: Tensor
    index: int | None


# From values by parameter: the point that they stand for, its row in a finite domain.
PointOf = Callable[[Mapping[str, float]], tuple[Tensor, int | None]]


def search_space(domain: Domain) -> tuple[dict[str, Parameter], PointOf]:
    """The parameters of a domain by name, and the point that values of these stand for."""
    low, high = domain.bounds
    if isinstance(domain, BoxDomain):
        if domain.constraints or domain.feasible is not None:
            raise NotSupportedError("Optimizers of other libraries are not told constraints.")
        lists = {dim: values.tolist() for dim, values in domain.lists.items()}
        logs, categories, unit = domain.log_dims, tuple(domain.cat_dims), False
    else:
        assert isinstance(domain, FiniteDomain)
        columns = [column.unique().tolist() for column in domain.points.unbind(dim=1)]
        grid = math.prod(map(len, columns)) == len(domain)
        lists = dict(enumerate(columns)) if grid else {}
        logs, categories, unit = (), domain.cat_dims, True
    parameters = {}
    for dim, name in enumerate(domain.names):
        if dim in lists:
            levels = "category" if dim in categories else "integer"
            parameters[name] = Parameter(0, len(lists[dim]) - 1, levels=levels)
        elif unit:
            parameters[name] = Parameter(0.0, 1.0)
        else:
            parameters[name] = Parameter(low[dim].item(), high[dim].item(), dim in logs)

    def point_of(values: Mapping[str, float]) -> tuple[Tensor, int | None]:
        named = [values[name] for name in domain.names]
        x = low.new_tensor([lists[d][int(v)] if d in lists else v for d, v in enumerate(named)])
        if not isinstance(domain, FiniteDomain):
            return x, None
        if lists:
            index = int(domain.find(x.unsqueeze(0)))
        else:
            scaled = (domain.points - low) / (high - low).clamp_min(torch.finfo(x.dtype).tiny)
            index = int((scaled - x).square().sum(dim=1).argmin())
        return domain.points[index], index

    return parameters, point_of


class PeerSampler(ABC):
    """An optimizer of another library. A subclass says how it suggests and how it is told.

    It recommends the point with the best noisy answer, as these libraries do, or ``by_model`` by
    this library's posterior mean of the same answers.
    """

    def __init__(self, problem: Problem, seed: int, *, by_model: bool = False) -> None:
        self.parameters, self._point_of = search_space(problem.domain)
        self._problem, self._seed, self._by_model = problem, seed, by_model
        self._asked: list[Suggestion] = []
        self._answers: dict[int, float] = {}

    @abstractmethod
    def suggest(self) -> Mapping[str, float]:
        """The values of the parameters that come next."""

    @abstractmethod
    def report(self, number: int, y: float | None) -> None:
        """Take in the answer of a suggestion, counted from 0, to be maximised; None: it failed."""

    def ask(self) -> Suggestion:
        """What the peer suggests, moved to the arm that it stands for."""
        with self.quiet():
            x, index = self._point_of(self.suggest())
        self._asked.append(Suggestion(len(self._asked), x, index))
        return self._asked[-1]

    def tell(self, trial: int, y: float, /) -> None:
        """The answer of a suggestion."""
        with self.quiet():
            self.report(trial, y)
        self._answers[trial] = y

    def mark_failed(self, trial: int, /) -> None:
        """A suggestion failed."""
        with self.quiet():
            self.report(trial, None)

    def recommend(self) -> Point:
        """The point with the best noisy answer, or by a posterior mean."""
        if not self._answers:
            raise NoAnswerError("Nothing was answered yet.")
        if not self._by_model:
            return self._asked[max(self._answers, key=self._answers.__getitem__)]
        problem = self._problem
        model = RandomOptimizer(problem.domain, **problem.model_options, seed=self._seed)
        X = torch.stack([self._asked[number].x for number in self._answers])
        model.attach(X, X.new_tensor(list(self._answers.values())))
        return model.recommend()

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """Without warnings of experimental parts, and with the global generator left as it is."""
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.default_generator.manual_seed(self._seed + len(self._asked))
            yield


class OptunaSampler(PeerSampler):
    """A study of Optuna's with a sampler of that name, made with nothing but the seed."""

    def __init__(
        self, sampler: str, problem: Problem, clock: Clock, steps: int, seed: int, **options: Any
    ) -> None:
        validation.installed("optuna", "Optuna's methods need Optuna")
        import optuna

        super().__init__(problem, seed, **options)
        self._optuna = optuna
        kinds = optuna.distributions
        self._distributions: dict[str, Any] = {
            name: kinds.CategoricalDistribution(range(int(high) + 1))
            if levels == "category"
            else kinds.IntDistribution(int(low), int(high))
            if levels
            else kinds.FloatDistribution(low, high, log=log)
            for name, (low, high, log, levels) in self.parameters.items()
        }
        self._trials: list[Any] = []
        with self.quiet():
            made = getattr(optuna.samplers, sampler)(seed=seed % 2**32)
            self._study = optuna.create_study(sampler=made, direction="maximize")

    def suggest(self) -> Mapping[str, float]:
        self._trials.append(self._study.ask(self._distributions))
        params: dict[str, float] = self._trials[-1].params
        return params

    def report(self, number: int, y: float | None) -> None:
        state = self._optuna.trial.TrialState.FAIL if y is None else None
        self._study.tell(self._trials[number], y, state=state)

    @contextmanager
    def quiet(self) -> Iterator[None]:
        logging = self._optuna.logging
        verbosity = logging.get_verbosity()
        logging.set_verbosity(logging.ERROR)
        try:
            with super().quiet():
                yield
        finally:
            logging.set_verbosity(verbosity)


class BotorchLoop(PeerSampler):
    """BoTorch's parts with their defaults, as its users put them together.

    After 2 (d + 1) Sobol points each ask fits a ``SingleTaskGP`` to the standardised answers and
    maximises ``qLogNoisyExpectedImprovement``, given the pending points. Columns are in the unit
    cube, logarithms first; of an integer or a category it is the number of the value, rounded. It
    recommends the evaluated point with the best posterior mean.
    """

    def __init__(self, problem: Problem, clock: Clock, steps: int, seed: int) -> None:
        super().__init__(problem, seed)
        count = len(self.parameters)
        self._sobol = SobolEngine(count, scramble=True, seed=seed % 2**31)
        self._design = 2 * (count + 1)
        self._points: list[Tensor] = []  # in the unit cube, in double
        self._failed: set[int] = set()
        self._model: tuple[int, SingleTaskGP] | None = None  # and how many answers it knows
        self._choices = self._arms(problem.domain)

    def suggest(self) -> Mapping[str, float]:
        known = len(self._answers)
        if len(self._points) < self._design or not known:
            u = self._sobol.draw(dtype=torch.double)
            if self._choices is not None:
                u = self._choices[(self._choices - u).square().sum(dim=1).argmin()].unsqueeze(0)
        else:
            u = self._best_by_rule()
        self._points.append(u[0])
        return {
            name: self._value(parameter, share)
            for (name, parameter), share in zip(self.parameters.items(), u[0].tolist(), strict=True)
        }

    def report(self, number: int, y: float | None) -> None:
        if y is None:
            self._failed.add(number)

    def recommend(self) -> Point:
        """The evaluated point with the best posterior mean."""
        if not self._answers:
            raise NoAnswerError("Nothing was answered yet.")
        with self.quiet():
            X = torch.stack([self._points[number] for number in self._answers])
            best = int(self._fitted().posterior(X).mean.argmax())
        return self._asked[list(self._answers)[best]]

    def _best_by_rule(self) -> Tensor:
        known = torch.stack([self._points[number] for number in self._answers])
        running = self._running()
        rule = qLogNoisyExpectedImprovement(
            self._fitted(), known, X_pending=torch.stack(running) if running else None
        )
        if self._choices is not None:
            return optimize_acqf_discrete(rule, q=1, choices=self._choices)[0]
        sides = torch.stack([torch.zeros_like(known[0]), torch.ones_like(known[0])])
        return optimize_acqf(rule, sides, q=1, num_restarts=10, raw_samples=512)[0]

    def _running(self) -> list[Tensor]:
        settled = self._answers.keys() | self._failed
        return [u for number, u in enumerate(self._points) if number not in settled]

    def _fitted(self) -> SingleTaskGP:
        if self._model is None or self._model[0] != len(self._answers):
            X = torch.stack([self._points[number] for number in self._answers])
            y = X.new_tensor(list(self._answers.values())).unsqueeze(1)
            model = SingleTaskGP(X, y)
            with suppress(ModelFittingError):
                fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
            self._model = len(self._answers), model
        return self._model[1]

    def _arms(self, domain: Domain) -> Tensor | None:
        """The points of a finite domain in the unit cube, ``N x d``."""
        if not isinstance(domain, FiniteDomain):
            return None
        low, high = domain.bounds
        shares = ((domain.points - low) / (high - low).clamp_min(torch.finfo(low.dtype).tiny)).T
        columns = [
            column.unique(return_inverse=True)[1] / max(parameter.high, 1)
            if parameter.levels
            else share
            for column, share, parameter in zip(
                domain.points.T, shares, self.parameters.values(), strict=True
            )
        ]
        return torch.stack(columns, dim=1).double()

    @staticmethod
    def _value(parameter: Parameter, share: float) -> float:
        low, high, log, levels = parameter
        if log:
            return min(max(low * (high / low) ** share, low), high)
        value = low + (high - low) * share
        return round(value) if levels else value


def python_of(module: str, need: str) -> str:
    """The Python that has a module: by ``BOTORCH_DELAY_PYTHON_MODULE``, else this one.

    MissingExtraError if this one has it not and no other is named; ``need`` is what needs it.
    """
    variable = f"{PYTHON}{module.upper()}"
    if python := os.environ.get(variable):
        code = f"from importlib.util import find_spec as f; raise SystemExit(not f({module!r}))"
        try:
            found = subprocess.run([python, "-I", "-c", code], check=False).returncode == 0  # noqa: S603
        except OSError:
            found = False
        if not found:
            raise InputError(f"{variable} must name a Python that has {module}, got {python}.")
        return python
    try:
        validation.installed(module, need)
    except MissingExtraError as error:
        raise MissingExtraError(
            f"{error} Or name the Python of another environment in {variable}."
        ) from None
    return sys.executable


class _Server:
    """A process that serves runs of other libraries; it ends when its input does."""

    of: ClassVar[dict[str, _Server]] = {}  # by Python; libraries take long to import

    def __init__(self, python: str) -> None:
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115  # closed at the end
        threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        self.process = subprocess.Popen(  # noqa: S603
            [python, "-I", str(SERVER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            env=os.environ | threads,
        )
        self.numbers = itertools.count()
        atexit.register(self.end)

    @classmethod
    def running(cls, python: str) -> _Server:
        """The process of a Python; a new one if there is none or it died."""
        if python not in cls.of or cls.of[python].process.poll() is not None:
            cls.of[python] = cls(python)
        return cls.of[python]

    def call(self, run: int, call: str, **arguments: Any) -> Any:
        """The answer of a call; RunError if the library raises one, or the process died."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        line = ""
        with suppress(BrokenPipeError):
            request = {"run": run, "call": call, "arguments": arguments}
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        if not line:
            self.errors.seek(0)
            last = self.errors.read().decode(errors="replace")[-MOST_ERRORS:]
            self.end()
            raise RunError(f"The process that serves another library died: {last}")
        answer = json.loads(line)
        if "error" in answer:
            raise RunError(f"Another library raised an error:\n{answer['error']}")
        return answer["answer"]

    def close(self, run: int) -> None:
        """A run is over."""
        with suppress(RunError, ValueError):  # of a process that ended
            self.call(run, "close")

    def end(self) -> None:
        """End the process."""
        atexit.unregister(self.end)
        with suppress(BrokenPipeError):
            self.process.communicate()
        self.errors.close()


class ServedSampler(PeerSampler):
    """An optimizer of another library, ``peer_server.PEERS[peer]``, in a process of its own.

    It is told how many asks there will be and whether values are exact, not the clock.
    """

    def __init__(
        self,
        peer: str,
        module: str,
        problem: Problem,
        clock: Clock,
        steps: int,
        seed: int,
        **options: Any,
    ) -> None:
        super().__init__(problem, seed, **options)
        self._server = _Server.running(python_of(module, f"The method {peer} needs {module}"))
        self._run = next(self._server.numbers)
        self._constant = {n: 0.0 for n, p in self.parameters.items() if p.low == p.high}
        searched = {n: p for n, p in self.parameters.items() if n not in self._constant}
        told = {"seed": seed % 2**31, "steps": steps, "exact": problem.noise_std == 0.0}
        self._server.call(self._run, "open", peer=peer, parameters=searched, **told)
        weakref.finalize(self, self._server.close, self._run)

    def suggest(self) -> Mapping[str, float]:
        suggested: dict[str, float] = self._server.call(self._run, "suggest")
        return self._constant | suggested

    def report(self, number: int, y: float | None) -> None:
        self._server.call(self._run, "report", number=number, y=y)
