"""Ax: a generation node that asks BPE-Delay, and this library's acquisition functions in its files.

Ax keeps the trials and runs the experiment; the node asks the optimizer of this library for the
next arm, and tells it what became of the others. Importing this module makes Ax's JSON know the
node, and :class:`botorch_delay.MaxVariance` and
:class:`botorch_delay.FantasyUpperConfidenceBound` as a ``botorch_acqf_class``.
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from botorch_delay import validation
from botorch_delay.acquisition import FantasyUpperConfidenceBound, MaxVariance
from botorch_delay.exceptions import (
    BotorchDelayError,
    EmptyDomainError,
    HorizonError,
    InputError,
    MissingExtraError,
    NotSupportedError,
    StorageError,
)
from botorch_delay.history.trials import TrialState
from botorch_delay.optimizers import BPEDelayOptimizer
from botorch_delay.optimizers.replica import PastTrial, Replica
from botorch_delay.optimizers.specs import build_part, describe_part

try:
    from ax.core.arm import Arm
    from ax.core.data import Data
    from ax.core.experiment import Experiment
    from ax.core.experiment_status import ExperimentStatus
    from ax.core.generator_run import GeneratorRun
    from ax.core.search_space import SearchSpace
    from ax.core.trial_status import TrialStatus
    from ax.core.types import TParameterization
    from ax.exceptions.core import DataRequiredError
    from ax.exceptions.generation_strategy import GenerationStrategyCompleted
    from ax.generation_strategy.external_generation_node import ExternalGenerationNode
    from ax.generation_strategy.transition_criterion import TransitionCriterion
    from ax.storage.botorch_modular_registry import register_acquisition_function
    from ax.storage.json_store.registry import CORE_DECODER_REGISTRY, CORE_ENCODER_REGISTRY
except ImportError as error:
    raise MissingExtraError(
        "The generation node for Ax needs Ax: pip install 'botorch-delay[ax]'."
    ) from error

from botorch_delay.integrations.ax_space import AxSpace
from botorch_delay.integrations.options import engine_options

__all__ = ["DelayGenerationNode"]

logger = logging.getLogger(__name__)

KEY = "botorch_delay"  # of what is kept in the metadata of a generator run
_MAX_ARMS = 10_000  # of one trial
_LIKE = torch.empty(0, dtype=torch.double)  # what the optimizer's tensors are like

# Abandoned trials are pending, as they are for Ax: their arms are not suggested again.
_STATES = {
    TrialStatus.CANDIDATE: TrialState.RUNNING,
    TrialStatus.STAGED: TrialState.RUNNING,
    TrialStatus.RUNNING: TrialState.RUNNING,
    TrialStatus.DISPATCHED: TrialState.RUNNING,
    TrialStatus.ABANDONED: TrialState.RUNNING,
    TrialStatus.COMPLETED: TrialState.COMPLETED,
    TrialStatus.FAILED: TrialState.FAILED,
    # Stopped for its values, or out of date: the point is free, the values are not used.
    TrialStatus.EARLY_STOPPED: TrialState.ABANDONED,
    TrialStatus.STALE: TrialState.ABANDONED,
}


class DelayGenerationNode(ExternalGenerationNode):
    """Generates what :class:`botorch_delay.BPEDelayOptimizer` asks next.

    Running trials are pending, and so are abandoned ones, as everywhere in Ax: their arms are not
    suggested again, and a round waits for a design point among them. Of one that will never come
    back mark the trial failed: it is not pending, and its arm is suggested again at most twice. A
    trial that is complete without data for the objective frees its arm; data that arrive later
    are used. So does one that was stopped early, whose data are not used.

    Arms of other nodes, or attached by hand, are results obtained elsewhere: used once their
    trials are complete, and no part of the horizon.

    What an ask brought about is kept in the metadata of its generator run, so that the node
    goes on from an experiment alone; several generation strategies in turn, each with a node of
    this name, carry on one run. Ax's JSON rounds data to ten decimals; the node's own part of it
    has the exact answers, so that a reloaded experiment goes on as it would have.

    Args:
        name: of the node.
        horizon: how many arms it shall generate; None where no end is planned.
        seed: of everything random.
        transition_criteria: when another node takes over; Ax's.
        suggested_experiment_status: Ax's.
        options: of :class:`botorch_delay.BPEDelayOptimizer`: ``exploit``, ``confidence``, ....
            A rule does not repeat pending points, unless it is given as ``Exploit(rule)``. A given
            kernel sees the parameters in the order of the search space, choices that are not
            numbers as places in their lists.

    Raises:
        InputTypeError: if there is no such option.

    Example:
        >>> from ax.api.client import Client
        >>> from ax.api.configs import RangeParameterConfig
        >>> from ax.generation_strategy.generation_strategy import GenerationStrategy
        >>> client = Client()
        >>> lr = RangeParameterConfig(name="lr", parameter_type="float", bounds=(0.0, 1.0))
        >>> client.configure_experiment(parameters=[lr])
        >>> client.configure_optimization(objective="-loss")
        >>> node = DelayGenerationNode(horizon=20)
        >>> client.set_generation_strategy(GenerationStrategy(nodes=[node]))
        >>> trials = client.get_next_trials(max_trials=3)  # three workers
        >>> sorted(trials)
        [0, 1, 2]
        >>> client.complete_trial(2, raw_data={"loss": 0.3}).name
        'COMPLETED'
        >>> node.optimizer.pending
        [Trial(id=0, index=None, round=1, running), Trial(id=1, index=None, round=1, running)]
    """

    def __init__(
        self,
        name: str = "BPE-Delay",
        *,
        horizon: int | None = None,
        seed: int = 0,
        transition_criteria: Sequence[TransitionCriterion] | None = None,
        suggested_experiment_status: ExperimentStatus | None = None,
        **options: Any,
    ) -> None:
        super().__init__(
            name=name,
            should_deduplicate=False,  # points may have to be asked again
            transition_criteria=transition_criteria,
            suggested_experiment_status=suggested_experiment_status,
        )
        self._horizon = None if horizon is None else validation.whole(horizon, "horizon", 1)
        self._seed = validation.seed(seed)
        self._options = engine_options(options, horizon)
        self._history = _History()
        self._play: _Play | None = None

    @property
    def optimizer(self) -> BPEDelayOptimizer:
        """The optimizer underneath, brought up to date: its rounds, guarantee, recommendation.

        It is to be read; asks and answers go through Ax. It does not know which trials were
        stopped early, and nothing is guaranteed if they were because of their values.

        Raises:
            InputError: if there is no experiment yet.
        """
        experiment = None if self._generation_strategy is None else self._experiment_or_none()
        if experiment is None:
            raise InputError("The node has no experiment yet; generate a trial first.")
        return self._update(experiment, experiment.lookup_data()).replica.optimizer

    def recommend(self) -> dict[str, Any]:
        """The parameters with the best posterior mean, from all answers.

        Raises:
            InputError: if there is no experiment yet.
            NoAnswerError: before any answer.
        """
        best = self.optimizer.recommend()
        assert self._play is not None
        return self._play.space.decode(best.x)

    def new_trial_limit(self, raise_generation_errors: bool = False) -> int:
        """How many trials the node can generate now, -1 for any number."""
        limit = int(super().new_trial_limit(raise_generation_errors=raise_generation_errors))
        if self._horizon is None:
            return limit
        left = max(self._horizon - len(self.trials_from_node), 0)
        return left if limit == -1 else min(limit, left)

    def update_generator_state(self, experiment: Experiment, data: Data) -> None:
        """Take in what is new in the experiment.

        Raises:
            InputError: if search space or objective have changed since the node began.
            NotSupportedError: for several objectives, outcome constraints, and parameters that
                are neither ranges, choices nor fixed.
        """
        play = self._update(experiment, data)
        for number in sorted(play.open, reverse=True):  # each rests on those before it
            play.replica.forget(number)  # of its generator run no trial was made
        play.open.clear()

    def get_next_candidate(self, pending_parameters: list[TParameterization]) -> TParameterization:
        """The next arm.

        Args:
            pending_parameters: not used; what is pending is known from the experiment.

        Raises:
            GenerationStrategyCompleted: if the horizon is reached, or no feasible point is left.
            DataRequiredError: if every point that is left has failed before and runs again.
        """
        play = self._play
        assert play is not None  # Ax fits before it generates
        number = play.next_number
        try:
            asked = play.replica.ask(number)
        except HorizonError as error:
            raise GenerationStrategyCompleted(str(error)) from error
        except EmptyDomainError as error:
            if play.replica.optimizer.pending:
                raise DataRequiredError(str(error)) from error
            raise GenerationStrategyCompleted(str(error)) from error
        play.next_number += 2
        record = _with_decisions(asked.record, play.open.values())
        play.open[number] = record
        play.record = {
            "node": self.name,
            "goal": play.digest,
            "number": number,
            "x": asked.trial.x.tolist(),
            "ask": record,
        }
        return play.space.decode(asked.trial.x)

    def _gen(self, experiment: Experiment, n: int | None = None, **options: Any) -> GeneratorRun:
        if n is not None and n > 1:
            raise NotSupportedError(f"A trial has one arm here, got n={n}; ask for more trials.")
        if getattr(options.get("fixed_features"), "parameters", None):
            raise NotSupportedError(
                "Parameters cannot be fixed for one trial; make them FixedParameters."
            )
        run = super()._gen(experiment=experiment, n=n, **options)
        if self._play is not None and self._play.record is not None:
            run._gen_metadata = {**(run.gen_metadata or {}), KEY: self._play.record}
            self._play.record = None
        return run

    def _update(self, experiment: Experiment, data: Data) -> _Play:
        goal = _Goal.of(experiment)
        play = self._play
        if play is None or play.experiment is not experiment or play.goal != goal:
            play = self._play = _Play(experiment, goal, self._make)
        play.replica.sync(self._history.past(self.name, play, data))
        return play

    def _make(self, space: AxSpace, maximize: bool) -> BPEDelayOptimizer:
        return BPEDelayOptimizer(
            space.domain, self._horizon, seed=self._seed, maximize=maximize, **self._options
        )

    def _experiment_or_none(self) -> Experiment | None:
        return self.generation_strategy._experiment

    def __getstate__(self) -> dict[str, Any]:
        # A copy may be for another experiment, and makes everything anew from the one it meets.
        return self.__dict__ | {"_play": None, "_history": _History()}


@dataclass(frozen=True)
class _Goal:
    """What is searched, and for what."""

    metric: str
    maximize: bool
    described: str  # the space, which Ax may change in place
    space: SearchSpace = field(compare=False)

    @classmethod
    def of(cls, experiment: Experiment) -> _Goal:
        """The goal of an experiment."""
        config = experiment.optimization_config
        if config is None:
            raise InputError("The experiment has no objective; configure the optimization first.")
        objective = config.objective
        if not objective.is_single_objective:
            raise NotSupportedError(f"One metric can be optimised, got {objective}.")
        if config.outcome_constraints:
            raise NotSupportedError(
                f"Outcome constraints are not supported, got {config.outcome_constraints}."
            )
        space = experiment.search_space
        return cls(objective.metric_names[0], not objective.minimize, repr(space), space)


class _Play:
    """A run on one experiment: the optimizer that is kept in step with its trials."""

    def __init__(
        self,
        experiment: Experiment,
        goal: _Goal,
        make: Callable[[AxSpace, bool], BPEDelayOptimizer],
    ) -> None:
        self.experiment = experiment
        self.goal = goal
        self.space = AxSpace(goal.space)
        direction = "max" if goal.maximize else "min"
        self.digest = f"{direction} {goal.metric} {self.space.domain.fingerprint()}"
        self.replica = Replica(partial(make, self.space, goal.maximize))
        self.next_number = 0
        self.open: dict[int, dict[str, Any]] = {}  # records of asks that have no trial yet
        self.record: dict[str, Any] | None = None  # of the last ask, for its generator run


class _History:
    """What the trials of an experiment say, and what they do not say for good.

    Args:
        record: what :meth:`describe` gave.
    """

    def __init__(self, record: Mapping[str, Any] | None = None) -> None:
        record = record or {"answers": {}, "lost": []}
        self._answers = {int(n): (v[0], v[1]) for n, v in record["answers"].items()}
        self._lost = set(map(int, record["lost"]))  # complete without data, at least for a while
        self._unusable: set[int] = set()

    def describe(self) -> dict[str, Any]:
        """JSON-ready."""
        answers = {str(number): list(answer) for number, answer in self._answers.items()}
        return {"answers": answers, "lost": sorted(self._lost)}

    def past(self, node: str, play: _Play, data: Data) -> Iterator[PastTrial]:
        """Every arm of the experiment as the optimizer should know it.

        Args:
            node: the name of the node whose asks these are.
            play: the run. Numbers of further asks begin after those that are met.
            data: the experiment's.

        Raises:
            InputError: if an ask was for another space or objective.
        """
        rows = _rows(data, play.goal.metric)
        for trial, place, arm, run in _arms(play.experiment):
            record = (run.gen_metadata or {}).get(KEY, {})
            own = record.get("node") == node
            number = record["number"] if own else 2 * (trial.index * _MAX_ARMS + place) + 1
            if own and record["goal"] != play.digest:
                raise InputError(
                    f"Search space or objective have changed since {node!r} suggested arm "
                    f"{arm.name}. Go on with a new generation strategy whose node has another "
                    "name; it uses the results so far."
                )
            if own:
                play.next_number = max(play.next_number, number + 2)
                play.open.pop(number, None)
            if play.replica.is_settled(number) or number in self._unusable:
                continue
            state = _STATES[trial.status]
            if state is TrialState.COMPLETED:
                state = self._look(number, rows.get((trial.index, arm.name)))
            reason = trial.status_reason or "" if state is TrialState.FAILED else ""
            value, noise_var = self._answers.get(number, (None, None))
            if state is TrialState.COMPLETED:
                try:
                    validation.answer(value, play.space.domain.like)
                except InputError as error:
                    state, reason = TrialState.FAILED, str(error)
            fields = {
                "value": value,
                "noise_var": noise_var,
                "late": number in self._lost,
                "reason": reason,
            }
            if own:
                x = play.space.domain.like.new_tensor(record["x"])
                yield PastTrial(number, x, state, record=record["ask"], **fields)
            elif state is TrialState.COMPLETED:
                try:
                    x = play.space.encode(arm.parameters)
                except InputError as error:
                    logger.warning("the result of arm %s is not used: %s", arm.name, error)
                    self._unusable.add(number)
                    continue
                yield PastTrial(number, x, state, **fields)

    def _look(self, number: int, row: tuple[float, float] | None) -> TrialState:
        """Note the data of a complete trial, the first time that there are any."""
        if number not in self._answers:
            if row is None:
                self._lost.add(number)
                return TrialState.ABANDONED
            mean, deviation = row
            known = math.isfinite(deviation) and deviation > 0.0
            self._answers[number] = (mean, deviation**2 if known else None)
        return TrialState.COMPLETED


def _with_decisions(record: dict[str, Any], before: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """A record that says what asks before it decided, of which no trial may be made."""
    earlier = [*before]
    if not earlier:
        return record
    last = earlier[-1]  # it tells of those before it already
    decided = [event for event in last["events"] if event["kind"] != "asked"]
    opened = any(event["kind"] in ("opened", "closed") for event in decided)
    return record | {
        "events": [*decided, *record["events"]],
        "told": [*last["told"], *record["told"]],
        "parent": (last if opened else record)["parent"],
    }


def _rows(data: Data, metric: str) -> dict[tuple[int, str], tuple[float, float]]:
    """Mean and standard error of a metric, by trial and arm."""
    frame = data.df
    frame = frame[frame["metric_name"] == metric]
    columns = (frame[name].tolist() for name in ("trial_index", "arm_name", "mean", "sem"))
    return {(index, arm): (mean, sem) for index, arm, mean, sem in zip(*columns, strict=True)}


def _arms(experiment: Experiment) -> Iterator[tuple[Any, int, Arm, GeneratorRun]]:
    """Every arm: its trial, its place there, and the generator run that it came with."""
    for trial in experiment.trials.values():
        place = 0
        for run in trial.generator_runs:
            for arm in run.arms:
                yield trial, place, arm, run
                place += 1


def _node_to_json(node: DelayGenerationNode) -> dict[str, Any]:
    experiment = None if node._generation_strategy is None else node._experiment_or_none()
    if experiment is not None:
        # Ax rounds what it writes of its data. What cannot be generated from can be saved.
        with contextlib.suppress(BotorchDelayError):
            node._update(experiment, experiment.lookup_data())
    return {
        "__type": type(node).__name__,
        "name": node.name,
        "horizon": node._horizon,
        "seed": node._seed,
        "options": {name: _describe(name, value) for name, value in node._options.items()},
        "transition_criteria": node._transition_criteria,
        "suggested_experiment_status": node.suggested_experiment_status,
        "history": node._history.describe(),
    }


def _node_from_json(
    options: Mapping[str, Any], history: Mapping[str, Any], **arguments: Any
) -> DelayGenerationNode:
    parts = {name: build_part(record, name, _LIKE) for name, record in options.items()}
    node = DelayGenerationNode(**arguments, **parts)
    node._history = _History(history)
    return node


def _describe(name: str, value: Any) -> Any:
    """An option as JSON, from which it can be made anew."""
    record = describe_part(value)
    try:
        build_part(record, name, _LIKE)
    except StorageError as error:
        raise StorageError(
            f"{name}, a {type(value).__name__}, cannot be saved: it is not among what this library "
            "makes anew from a file."
        ) from error
    return record


register_acquisition_function(MaxVariance)
register_acquisition_function(FantasyUpperConfidenceBound)
CORE_ENCODER_REGISTRY[DelayGenerationNode] = _node_to_json
CORE_DECODER_REGISTRY[DelayGenerationNode.__name__] = _node_from_json
