"""Optimizers of other libraries, with their defaults, as samplers for ``simulate``.

On a full grid of arms, such as a tuning table, each column is an integer or categorical parameter
that counts its values, so that every suggestion is an arm. On any other finite set a peer searches
the bounding box; the arm nearest to its point is evaluated instead, without the peer knowing.
"""

from __future__ import annotations

import json
import logging
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
from typing import IO, Any, NamedTuple

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
from botorch_delay.benchmarks.problems import Point, Problem
from botorch_delay.benchmarks.simulator import Clock
from botorch_delay.domains.box import BoxDomain
from botorch_delay.domains.domain import Domain
from botorch_delay.exceptions import (
    InputError,
    MissingExtraError,
    NoAnswerError,
    NotSupportedError,
    RunError,
)
from botorch_delay.optimizers.random import RandomOptimizer

MAX_STDERR = 2000  # characters shown of the standard error of a process that died
SERVER = Path(__file__).with_name("peer_server.py")
PYTHON = "BOTORCH_DELAY_PYTHON_"  # environment variable, followed by the module's name in capitals


class Parameter(NamedTuple):
    """A column as other libraries describe it; ``levels`` is "integer", "category" or ""."""

    low: float
    high: float
    log: bool = False
    levels: str = ""


@dataclass(frozen=True, eq=False)
class Suggestion:
    """A point that a peer suggested: its number, from 0; ``x`` (``d``); its row, None on a box."""

    id: int
    x: Tensor
    index: int | None


# From values by parameter to the point (``d``) and its row in a finite domain.
PointOf = Callable[[Mapping[str, float]], tuple[Tensor, int | None]]


def search_space(domain: Domain) -> tuple[dict[str, Parameter], PointOf]:
    """The parameters of a domain by name, and the function from their values to a point."""
    if isinstance(domain, BoxDomain) and domain.is_constrained:
        raise NotSupportedError("Optimizers of other libraries cannot be given constraints.")
    low, high = domain.bounds
    allowed = [domain.allowed(dim) for dim in range(domain.dim)]
    lists = {dim: values.tolist() for dim, values in enumerate(allowed) if values is not None}
    if domain.count is not None and math.prod(map(len, lists.values())) > domain.count:
        lists = {}  # not a full grid
    logs = domain.log_dims if domain.count is None else ()
    parameters = {}
    for dim, name in enumerate(domain.names):
        if dim in lists:
            levels = "category" if dim in domain.encoding.categories else "integer"
            parameters[name] = Parameter(0, len(lists[dim]) - 1, levels=levels)
        else:
            parameters[name] = Parameter(low[dim].item(), high[dim].item(), dim in logs)

    def point_of(values: Mapping[str, float]) -> tuple[Tensor, int | None]:
        named = [values[name] for name in domain.names]
        x = low.new_tensor([lists[d][int(v)] if d in lists else v for d, v in enumerate(named)])
        if domain.count is None:
            return x, None
        if lists:
            index = int(domain.find(x.unsqueeze(0)))
        else:
            scaled = (domain.like - x) / (high - low).clamp_min(torch.finfo(x.dtype).tiny)
            index = int(scaled.square().sum(dim=1).argmin())
        return domain.like[index], index

    return parameters, point_of


class PeerSampler(ABC):
    """An optimizer of another library; subclasses implement :meth:`suggest` and :meth:`report`.

    It recommends the point with the best noisy answer, as these libraries do; if ``by_model``, the
    one that this library recommends given the same answers.
    """

    def __init__(self, problem: Problem, seed: int, *, by_model: bool = False) -> None:
        self.parameters, self._point_of = search_space(problem.domain)
        self._problem, self._seed, self._by_model = problem, seed, by_model
        self._asked: list[Suggestion] = []
        self._answers: dict[int, float] = {}

    @abstractmethod
    def suggest(self) -> tuple[Tensor, int | None]:
        """The point (``d``) to try next, and its row in a finite domain."""

    @abstractmethod
    def report(self, number: int, y: float) -> None:
        """Tell the value, to be maximised, of suggestion ``number``, counted from 0."""

    def ask(self) -> Suggestion:
        with self.quiet():
            x, index = self.suggest()
        self._asked.append(Suggestion(len(self._asked), x, index))
        return self._asked[-1]

    def tell(self, trial: int, y: float, /) -> None:
        with self.quiet():
            self.report(trial, y)
        self._answers[trial] = y

    def recommend(self) -> Point:
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
        """A block without warnings and logs, where torch's global generator has its own seed."""
        disabled = logging.root.manager.disable
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            logging.disable(logging.WARNING)
            torch.default_generator.manual_seed(self._seed + len(self._asked))
            try:
                yield
            finally:
                logging.disable(disabled)


class OptunaSampler(PeerSampler):
    """An Optuna study with the sampler of that name, given nothing but the seed."""

    def __init__(
        self, sampler: str, problem: Problem, clock: Clock, steps: int, seed: int, **options: Any
    ) -> None:
        validation.installed("optuna", "Optuna's methods need Optuna")
        import optuna

        super().__init__(problem, seed, **options)
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

    def suggest(self) -> tuple[Tensor, int | None]:
        self._trials.append(self._study.ask(self._distributions))
        return self._point_of(self._trials[-1].params)

    def report(self, number: int, y: float) -> None:
        self._study.tell(self._trials[number], y)


class BotorchLoop(PeerSampler):
    """BoTorch's parts with their defaults, as its users put them together.

    After 2 (d + 1) Sobol points each ask fits a ``SingleTaskGP`` to the standardised answers and
    maximises ``qLogNoisyExpectedImprovement``, given the pending points. Columns are scaled to the
    unit cube, logarithmic ones after taking logarithms, and lists by positions of their values. It
    recommends the evaluated point with the best posterior mean.
    """

    def __init__(self, problem: Problem, clock: Clock, steps: int, seed: int) -> None:
        super().__init__(problem, seed)
        count = len(self.parameters)
        self._sobol = SobolEngine(count, scramble=True, seed=seed % 2**31)
        self._design = 2 * (count + 1)
        self._points: list[Tensor] = []  # in the unit cube, in double
        self._model: tuple[int, SingleTaskGP] | None = None  # after its number of answers
        finite = problem.domain.count is not None
        self._choices = self._in_cube(problem.domain.like) if finite else None

    def suggest(self) -> tuple[Tensor, int | None]:
        is_design = len(self._points) < self._design or not self._answers
        u = self._sobol.draw(dtype=torch.double) if is_design else self._best_by_rule()
        domain = self._problem.domain
        if self._choices is None:
            assert isinstance(domain, BoxDomain)
            self._points.append(u[0])
            return domain.from_unit(u.to(domain.like))[0], None
        index = int((self._choices - u).square().sum(dim=1).argmin())
        self._points.append(self._choices[index])
        return domain.like[index], index

    def report(self, number: int, y: float) -> None:
        """Nothing to do: the next fit reads all answers."""

    def recommend(self) -> Point:
        if not self._answers:
            raise NoAnswerError("Nothing was answered yet.")
        with self.quiet():
            best = int(self._fitted().posterior(self._known()).mean.argmax())
        return self._asked[list(self._answers)[best]]

    def _known(self) -> Tensor:
        """The points with answers, ``n x d``."""
        return torch.stack([self._points[number] for number in self._answers])

    def _best_by_rule(self) -> Tensor:
        known = self._known()
        running = [u for number, u in enumerate(self._points) if number not in self._answers]
        rule = qLogNoisyExpectedImprovement(
            self._fitted(), known, X_pending=torch.stack(running) if running else None
        )
        if self._choices is not None:
            return optimize_acqf_discrete(rule, q=1, choices=self._choices)[0]
        sides = torch.stack([torch.zeros_like(known[0]), torch.ones_like(known[0])])
        return optimize_acqf(rule, sides, q=1, num_restarts=10, raw_samples=512)[0]

    def _fitted(self) -> SingleTaskGP:
        if self._model is None or self._model[0] != len(self._answers):
            X = self._known()
            y = X.new_tensor(list(self._answers.values())).unsqueeze(1)
            model = SingleTaskGP(X, y)
            with suppress(ModelFittingError):
                fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
            self._model = len(self._answers), model
        return self._model[1]

    def _in_cube(self, points: Tensor) -> Tensor:
        """The points of a finite domain in the unit cube, ``N x d``."""
        columns = []
        for column, parameter in zip(points.T, self.parameters.values(), strict=True):
            values = column.unique(return_inverse=True)[1] if parameter.levels else column
            above = values.double() - values.min()
            columns.append(above / above.max().clamp_min(torch.finfo(above.dtype).tiny))
        return torch.stack(columns, dim=1)


def python_of(module: str, need: str) -> str:
    """A Python that has a module: ``BOTORCH_DELAY_PYTHON_<MODULE>`` if that is set, else this one.

    Raises :class:`MissingExtraError` if this one lacks it; ``need`` says what needs the module.
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


class ServedSampler(PeerSampler):
    """The peer ``peer_server.PEERS[peer]``, in a process of its own, which ends with its input.

    The peer is told how many asks there will be and whether values are exact.
    """

    def __init__(
        self, peer: str, module: str, problem: Problem, clock: Clock, steps: int, seed: int
    ) -> None:
        super().__init__(problem, seed)
        python = python_of(module, f"The method {peer} needs {module}")
        threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # closed at the end
        self._process = subprocess.Popen(  # noqa: S603
            [python, "-I", str(SERVER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=os.environ | threads,
        )
        weakref.finalize(self, _end, self._process, self._errors)
        self._constant = {n: 0.0 for n, p in self.parameters.items() if p.low == p.high}
        searched = {n: p for n, p in self.parameters.items() if n not in self._constant}
        told = {"seed": seed % 2**31, "steps": steps, "exact": problem.noise_std == 0.0}
        self._call("open", peer=peer, parameters=searched, **told)

    def suggest(self) -> tuple[Tensor, int | None]:
        return self._point_of(self._constant | self._call("suggest"))

    def report(self, number: int, y: float) -> None:
        self._call("report", number=number, y=y)

    def _call(self, call: str, **arguments: Any) -> Any:
        """The answer to a call; RunError if the library raises, or the process has died."""
        requests, answers = self._process.stdin, self._process.stdout
        assert requests is not None
        assert answers is not None
        line = ""
        with suppress(BrokenPipeError):
            requests.write(json.dumps([call, arguments]) + "\n")
            requests.flush()
            line = answers.readline()
        if not line:
            self._errors.seek(0)
            last = self._errors.read().decode(errors="replace")[-MAX_STDERR:]
            raise RunError(f"The process that serves another library died: {last}")
        answer = json.loads(line)
        if "error" in answer:
            raise RunError(f"Another library raised an error:\n{answer['error']}")
        return answer["answer"]


def _end(process: subprocess.Popen[str], errors: IO[bytes]) -> None:
    with suppress(BrokenPipeError):
        process.communicate()
    errors.close()
