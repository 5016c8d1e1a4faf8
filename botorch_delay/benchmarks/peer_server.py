"""An optimizer of another library, served over standard input and output, in JSON lines.

It is run by its path with the Python of an environment that has the library, and imports nothing
of this package. A request is a call with its arguments: first ``open``, then ``suggest`` and
``report``; every one is answered by ``{"answer": ...}`` or ``{"error": traceback}``. Values are to
be maximised. A parameter is a tuple of its lower and upper end, whether to search its logarithm,
and "category" or "integer" if its numbers count values, else "".
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import random
import sys
import tempfile
import traceback
import warnings
from collections.abc import Mapping
from typing import Any, Protocol

RETRIES = 5  # suggestions to ask for until one is finite
Parameters = Mapping[str, tuple[float, float, bool, str]]
Values = Mapping[str, Any]


class Peer(Protocol):
    """An optimizer of a library; told the number of ``steps``, and if answers are ``exact``."""

    def __init__(self, parameters: Parameters, *, seed: int, steps: int, exact: bool) -> None: ...

    def suggest(self) -> Values:
        """The values of the parameters to try next."""

    def report(self, number: int, y: float) -> None:
        """Tell the value of suggestion ``number``, counted from 0."""


class Smac(Peer):
    """SMAC's ``facade``, which does not repeat running trials; its model does not count them."""

    facade = "HyperparameterOptimizationFacade"

    def __init__(self, parameters: Parameters, *, seed: int, steps: int, exact: bool) -> None:
        import smac
        from ConfigSpace import Categorical, ConfigurationSpace, Float, Integer

        space = ConfigurationSpace(seed=seed)
        for name, (low, high, log, levels) in parameters.items():
            if levels == "category":
                space.add(Categorical(name, list(range(int(high) + 1))))
            elif levels:
                space.add(Integer(name, (int(low), int(high))))
            else:
                space.add(Float(name, (low, high), log=log))
        self.folder = tempfile.TemporaryDirectory()
        options = {"deterministic": exact, "n_trials": steps, "seed": seed}
        scenario = smac.Scenario(space, output_directory=self.folder.name, **options)
        facade = getattr(smac, self.facade)
        self.optimizer = facade(scenario, _never_called, overwrite=True, logging_level=False)
        self.trials: list[Any] = []

    def suggest(self) -> Values:
        self.trials.append(self.optimizer.ask())
        return dict(self.trials[-1].config)

    def report(self, number: int, y: float) -> None:
        from smac.runhistory.dataclasses import TrialValue

        self.optimizer.tell(self.trials[number], TrialValue(cost=-y))


class SmacBlackBox(Smac):
    """Its facade for few evaluations, with a Gaussian process."""

    facade = "BlackBoxFacade"


class Hebo(Peer):
    """HEBO, which cannot be told about pending points."""

    def __init__(self, parameters: Parameters, *, seed: int, steps: int, exact: bool) -> None:
        from hebo.design_space.design_space import DesignSpace
        from hebo.optimizers.hebo import HEBO

        space: list[dict[str, Any]] = []
        for name, (low, high, log, levels) in parameters.items():
            if levels == "category":
                counts = list(range(int(high) + 1))
                space.append({"name": name, "type": "cat", "categories": counts})
                continue
            kind = "int" if levels else "pow" if log else "num"
            space.append({"name": name, "type": kind, "lb": low, "ub": high})
            if log:
                space[-1]["base"] = 10
        self.optimizer = HEBO(DesignSpace().parse(space), scramble_seed=seed)
        self.trials: list[Any] = []

    def suggest(self) -> Values:
        self.trials.append(self.optimizer.suggest(n_suggestions=1))
        return self.trials[-1].iloc[0].to_dict()

    def report(self, number: int, y: float) -> None:
        import numpy

        self.optimizer.observe(self.trials[number], numpy.array([[-y]]))


class DeepHyper(Peer):
    """DeepHyper's CBO, which keeps track of its pending suggestions."""

    def __init__(self, parameters: Parameters, *, seed: int, steps: int, exact: bool) -> None:
        from deephyper.hpo import CBO, HpProblem

        problem = HpProblem()
        for name, (low, high, log, levels) in parameters.items():
            if levels == "category":
                problem.add_hyperparameter(list(range(int(high) + 1)), name)
            elif levels:
                problem.add_hyperparameter((int(low), int(high)), name)
            else:
                kind = "log-uniform" if log else "uniform"
                problem.add_hyperparameter((float(low), float(high), kind), name)
        self.folder = tempfile.TemporaryDirectory()
        self.optimizer = CBO(problem, log_dir=self.folder.name, random_state=seed, verbose=0)
        self.trials: list[Any] = []

    def suggest(self) -> Values:
        self.trials += self.optimizer.ask(1)
        return self.trials[-1]

    def report(self, number: int, y: float) -> None:
        self.optimizer.tell([(self.trials[number], y)])


class Vizier(Peer):
    """Vizier's GP-UCB-PE, told at every ask which trials are active."""

    def __init__(self, parameters: Parameters, *, seed: int, steps: int, exact: bool) -> None:
        import jax
        from vizier import pyvizier as vz
        from vizier._src.algorithms.designers.gp_ucb_pe import VizierGPUCBPEBandit

        self.vz, self.names = vz, set(parameters)
        problem = vz.ProblemStatement()
        root = problem.search_space.root
        for name, (low, high, log, levels) in parameters.items():
            if levels == "category":
                root.add_categorical_param(name, [str(n) for n in range(int(high) + 1)])
            elif levels:
                root.add_int_param(name, int(low), int(high))
            else:
                scale = vz.ScaleType.LOG if log else vz.ScaleType.LINEAR
                root.add_float_param(name, low, high, scale_type=scale)
        goal = vz.ObjectiveMetricGoal.MAXIMIZE
        problem.metric_information.append(vz.MetricInformation("y", goal=goal))
        self.optimizer = VizierGPUCBPEBandit(problem, rng=jax.random.PRNGKey(seed))
        self.active: dict[int, Any] = {}
        self.completed: list[Any] = []
        self.asked = 0

    def suggest(self) -> Values:
        from vizier.algorithms import ActiveTrials, CompletedTrials

        completed, self.completed = CompletedTrials(self.completed), []
        self.optimizer.update(completed, ActiveTrials(list(self.active.values())))
        for _ in range(RETRIES):
            (suggestion,) = self.optimizer.suggest(1)
            if set(suggestion.parameters) == self.names:  # it leaves out values that are not finite
                break
            sys.stderr.write(f"no finite suggestion: {suggestion.parameters}\n")
        else:
            raise ArithmeticError(f"Vizier suggests {suggestion.parameters}.")
        self.active[self.asked] = suggestion.to_trial(self.asked + 1)
        self.asked += 1
        return {name: float(value.value) for name, value in suggestion.parameters.items()}

    def report(self, number: int, y: float) -> None:
        trial = self.active.pop(number)
        trial.complete(self.vz.Measurement({"y": y}))
        self.completed.append(trial)


PEERS: dict[str, type[Peer]] = {
    "smac": Smac,
    "smac-black-box": SmacBlackBox,
    "hebo": Hebo,
    "deephyper": DeepHyper,
    "vizier": Vizier,
}


def _never_called(config: Any, seed: int = 0) -> float:
    raise AssertionError("evaluations are made elsewhere")


def _seed(seed: int) -> None:
    """Seed the global generators that libraries draw from."""
    random.seed(seed)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(seed % 2**32)
    if torch := sys.modules.get("torch"):
        torch.manual_seed(seed)


def serve() -> None:
    """Answer until the input ends; what libraries print goes to standard error."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    for line in sys.stdin:
        call, arguments = json.loads(line)
        try:
            if call == "open":
                seeds = itertools.count(arguments["seed"])
                _seed(next(seeds))
                peer = PEERS[arguments.pop("peer")](**arguments)
                answer: dict[str, Any] = {"answer": None}
            else:
                if call == "suggest":
                    _seed(next(seeds))
                answer = {"answer": getattr(peer, call)(**arguments)}
        except Exception:
            answer = {"error": traceback.format_exc()}
        answers.write(json.dumps(answer, default=lambda number: number.item()) + "\n")  # NumPy's
        answers.flush()


if __name__ == "__main__":
    serve()
