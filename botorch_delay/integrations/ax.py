"""BPE-Delay as a generation node for Ax.

Importing this module registers the node, and :class:`botorch_delay.MaxVariance` and
:class:`botorch_delay.FantasyUpperConfidenceBound` as ``botorch_acqf_class``, with Ax's JSON store.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from botorch_delay import validation
from botorch_delay.acquisition import FantasyUpperConfidenceBound, MaxVariance
from botorch_delay.domains.parameters import Choice, Float, Int
from botorch_delay.domains.space import Space
from botorch_delay.exceptions import (
    EmptyDomainError,
    HorizonError,
    InputError,
    NotSupportedError,
    StorageError,
)
from botorch_delay.history.point_status import PRUNED
from botorch_delay.history.trials import TrialState
from botorch_delay.integrations.engine_run import EngineRun, Readable, Settings
from botorch_delay.optimizers.part_records import build_part, describe_part
from botorch_delay.optimizers.replica import PastTrial

try:
    from ax.core.arm import Arm
    from ax.core.data import Data
    from ax.core.experiment import Experiment
    from ax.core.generator_run import GeneratorRun
    from ax.core.parameter import ChoiceParameter, FixedParameter, Parameter, RangeParameter
    from ax.core.parameter import ParameterType as Type
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
    raise validation.missing("ax", "The generation node for Ax needs Ax") from error

__all__ = ["DelayGenerationNode"]

KEY = "botorch_delay"  # of the record of an ask, in the metadata of its generator run
_MAX_ARMS = 10_000  # per trial; an arm's number is its trial's index times this, plus its place
_LIKE = torch.empty(0, dtype=torch.double)  # dtype and device of the optimizer's tensors

logger = logging.getLogger(__name__)

# Any other status counts as running, abandoned included: Ax does not suggest such arms again.
_STATES = {
    TrialStatus.COMPLETED: TrialState.COMPLETED,
    TrialStatus.FAILED: TrialState.FAILED,
    TrialStatus.EARLY_STOPPED: TrialState.FAILED,  # its point is not worth another trial
    TrialStatus.STALE: TrialState.ABANDONED,  # the point is freed
}
# Attributes of Ax's parameters that columns cannot have, as named in messages.
_UNSUPPORTED = {
    "is_fidelity": "a fidelity",
    "is_hierarchical": "hierarchical",
    "is_disabled": "disabled",
    "is_task": "a task",
    "logit_scale": "on a logit scale",
}


class DelayGenerationNode(Readable, ExternalGenerationNode):
    """Generates what :class:`botorch_delay.BPEDelayOptimizer` asks next.

    Running trials are pending and, as everywhere in Ax, so are abandoned ones: their arms are not
    suggested again, and a round waits for design points among them. Mark a trial that will never
    come back as failed: its arm may then be suggested again, at most twice. A trial that completes
    without data for the objective stays pending until these come, and its round waits. Data of
    trials that were stopped early are not used. Regions where more trials failed or were stopped
    early than completed are avoided while there are others. Arms of other nodes, or attached by
    hand, are used once their trials are complete, and until then are not pending; they do not count
    towards the horizon.

    The record of each ask is kept in the metadata of its generator run, so that a node of this name
    can continue from an experiment alone. Ax's JSON rounds data to ten decimals, so after a reload
    arms may differ by about as much.

    Args:
        name: the node's name.
        horizon: how many arms it generates; None if no end is planned.
        seed: seed of everything random.
        transition_criteria: Ax's criteria for when another node takes over.
        options: of :class:`botorch_delay.BPEDelayOptimizer`: ``exploit``, ``confidence``, ....
            A rule does not repeat pending points unless it is given as ``Exploit(rule)``. A kernel
            sees parameters in the order of the search space, and non-numeric choices as positions.

    Raises:
        InputError: for unknown options; from methods that need an experiment, if there is none.

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
        >>> [trial.id for trial in node.optimizer.pending]
        [0, 1]
    """

    def __init__(
        self,
        name: str = "BPE-Delay",
        *,
        horizon: int | None = None,
        seed: int = 0,
        transition_criteria: Sequence[TransitionCriterion] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(
            name=name,
            should_deduplicate=False,  # points may have to be asked again
            transition_criteria=transition_criteria,
        )
        self._settings = Settings(horizon, seed, options, DelayGenerationNode)
        self._run: _ExperimentRun | None = None

    def new_trial_limit(self, raise_generation_errors: bool = False) -> int:
        """How many trials the node can generate now, -1 for any number."""
        limit = int(super().new_trial_limit(raise_generation_errors=raise_generation_errors))
        if self._settings.horizon is None:
            return limit
        strategy, asked = self._generation_strategy, 0
        if strategy is not None and strategy._experiment is not None:
            run = self._synced()  # another node of this name may have had another horizon
            asked = len(run.optimizer.trials) - len(run.open)
        left = max(self._settings.horizon - asked, 0)
        return left if limit == -1 else min(limit, left)

    def update_generator_state(self, experiment: Experiment, data: Data) -> None:
        """Take in what is new in the experiment.

        Raises:
            NotSupportedError: for several objectives, outcome constraints, and parameters that
                are neither ranges, choices nor fixed.
        """
        run = self._update(experiment, data)
        for number in reversed(run.open):  # each depends on those before it
            run.replica.forget(number)  # its generator run never became a trial
        run.open.clear()

    def get_next_candidate(self, pending_parameters: list[TParameterization]) -> TParameterization:
        """The next arm; pending arms are known from the experiment, not from the argument.

        Raises:
            GenerationStrategyCompleted: if the horizon is reached, or no feasible point is left.
            DataRequiredError: if all points left have failed and are running again.
        """
        run = self._run
        assert run is not None  # Ax fits before it generates
        try:
            record = run.ask(run.next_number, uncertain=run.open)
        except HorizonError as error:
            raise GenerationStrategyCompleted(
                f"All arms of the horizon, {self._settings.horizon}, have been generated. To go "
                "on, set a generation strategy whose node has another horizon, which counts "
                "further arms only, or none; it uses the results so far."
            ) from error
        except EmptyDomainError as error:
            if run.optimizer.pending:
                raise DataRequiredError(str(error)) from error
            raise GenerationStrategyCompleted(str(error)) from error
        run.open.append(run.next_number)
        run.next_number += 2
        run.record = record
        return run.params(run.point(record))

    def _gen(self, experiment: Experiment, n: int | None = None, **options: Any) -> GeneratorRun:
        if n is not None and n > 1:
            raise NotSupportedError(f"A trial has one arm here, got n={n}; ask for more trials.")
        if getattr(options.get("fixed_features"), "parameters", None):
            raise NotSupportedError(
                "Parameters cannot be fixed for one trial; make them FixedParameters."
            )
        generated = super()._gen(experiment=experiment, n=n, **options)
        if self._run is not None and self._run.record is not None:
            generated._gen_metadata = {**(generated.gen_metadata or {}), KEY: self._run.record}
            self._run.record = None
        return generated

    def _update(self, experiment: Experiment, data: Data) -> _ExperimentRun:
        run = self._run
        is_other = run is None or run.experiment is not experiment or run.goal != _goal(experiment)
        if run is None or is_other:
            run = _ExperimentRun(self.name, experiment, self._settings)
        elif run.was_corrected(data):  # a run's values must not change
            corrected = _ExperimentRun(self.name, experiment, self._settings)
            try:
                corrected.take_in(corrected.past(data))
                run = corrected
            except StorageError as error:  # what was decided with the old values cannot be repeated
                logger.warning("the corrected data are not used: %s", error)
                run.keep_values(data)
        self._run = run
        run.take_in(run.past(data))
        return run

    def _synced(self) -> _ExperimentRun:
        strategy = self._generation_strategy
        experiment = None if strategy is None else strategy._experiment
        if experiment is None:
            raise InputError("The node has no experiment yet; generate a trial first.")
        return self._update(experiment, experiment.lookup_data())

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_run": None}  # a copy may be for another experiment


def _goal(experiment: Experiment) -> tuple[str, bool, str]:
    """The metric, whether it is maximised, and the space as text, as Ax may change it in place."""
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
    return objective.metric_names[0], not objective.minimize, repr(experiment.search_space)


class _ExperimentRun(EngineRun):
    """The optimizer for one goal of an experiment."""

    def __init__(self, node: str, experiment: Experiment, settings: Settings) -> None:
        self.experiment = experiment
        self.goal = _goal(experiment)
        self._metric, maximize, _ = self.goal
        self._kinds = dict(experiment.search_space.parameters)
        space = _translate(experiment.search_space)
        super().__init__(f"{node} {self._metric}", space, settings, maximize)
        self.next_number = 0  # of the next ask; asks have even numbers, other arms odd ones
        self.open: list[int] = []  # numbers of asks that have no trial yet, increasing
        # The record of the last ask, until it is put into its generator run.
        self.record: dict[str, Any] | None = None
        self._used: dict[tuple[int, str], tuple[float, float]] = {}

    def params(self, x: Tensor) -> dict[str, Any]:
        return {name: self._kinds[name].cast(v) for name, v in self.domain.params(x).items()}

    def was_corrected(self, data: Data) -> bool:
        """Whether data that were used have changed since, to a value that can be used."""
        rows = self._rows(data)
        # As text, since NaN, for an unknown standard error, does not equal itself.
        return any(
            str(rows[place]) != str(row) and math.isfinite(rows[place][0])
            for place, row in self._used.items()
            if place in rows
        )

    def keep_values(self, data: Data) -> None:
        """Take changed data as known, and go on with the values that were used."""
        rows = self._rows(data)
        self._used = {place: rows.get(place, row) for place, row in self._used.items()}

    def _rows(self, data: Data) -> dict[tuple[int, str], tuple[float, float]]:
        """Mean and standard error of the metric, by the numbers of trials and names of arms."""
        frame = data.df[data.df["metric_name"] == self._metric]
        columns = (frame[name].tolist() for name in ("trial_index", "arm_name", "mean", "sem"))
        return {(index, arm): (mean, sem) for index, arm, mean, sem in zip(*columns, strict=True)}

    def past(self, data: Data) -> Iterator[PastTrial | None]:
        """All arms of the experiment that are new or may have changed."""
        rows = self._rows(data)
        for trial, place, arm, generated in _arms(self.experiment):
            state = _STATES.get(trial.status, TrialState.RUNNING)
            stopped = trial.status is TrialStatus.EARLY_STOPPED
            self.stopped_early |= stopped
            kept = (generated.gen_metadata or {}).get(KEY)
            record = self.record_of(kept, running=state is TrialState.RUNNING)
            number = 2 * place + 1 if record is None else record["number"]
            if record is not None:
                self.next_number = max(self.next_number, number + 2)
                self.open = [other for other in self.open if other != number]
            if number in self.ended:
                continue
            value, noise_var = None, None
            if state is TrialState.COMPLETED:
                row = rows.get((trial.index, arm.name))
                if row is None:
                    state = TrialState.RUNNING
                else:
                    value, sem = self._used[trial.index, arm.name] = row
                    noise_var = sem**2 if math.isfinite(sem) and sem > 0.0 else None
            if record is not None:
                reason = PRUNED if stopped else trial.status_reason or ""
                more = {"noise_var": noise_var, "reason": reason}
                yield self.past_ask(record, state, value, **more)
            elif state is TrialState.COMPLETED:
                yield self.past_result(number, arm.parameters, value, noise_var)


def _arms(experiment: Experiment) -> Iterator[tuple[Any, int, Arm, GeneratorRun]]:
    """For every arm its trial, its number, itself, and its generator run."""
    for trial in experiment.trials.values():
        place = trial.index * _MAX_ARMS
        for generated in trial.generator_runs:
            for arm in generated.arms:
                yield trial, place, arm, generated
                place += 1


def _translate(search_space: SearchSpace) -> Space:
    constraints = []
    for constraint in search_space.parameter_constraints:
        if constraint.is_equality:
            raise NotSupportedError(f"{constraint} is an equality; only inequalities can be used.")
        factors = {name: -float(weight) for name, weight in constraint.constraint_dict.items()}
        constraints.append((factors, -float(constraint.bound)))
    parameters = {n: _parameter(p) for n, p in search_space.parameters.items()}
    return Space(parameters, constraints=constraints)


def _parameter(parameter: Parameter) -> Float | Int | Choice:
    for attribute, kind in _UNSUPPORTED.items():
        if getattr(parameter, attribute, False):
            raise NotSupportedError(f"Parameter {parameter.name!r} is {kind}: not supported.")
    if isinstance(parameter, RangeParameter):
        low, high, log = parameter.lower, parameter.upper, parameter.log_scale
        whole = parameter.parameter_type is Type.INT
        return (Int if whole else Float)(low, high, log=log)
    if isinstance(parameter, ChoiceParameter):
        log = bool(parameter.log_scale)
        return Choice(parameter.values, ordered=parameter.is_ordered, log=log)
    if isinstance(parameter, FixedParameter):
        return Choice([parameter.value])
    raise NotSupportedError(
        f"Parameter {parameter.name!r} is a {type(parameter).__name__}; only ranges, choices and "
        "fixed parameters are supported."
    )


def _node_to_json(node: DelayGenerationNode) -> dict[str, Any]:
    settings = node._settings
    return {
        "__type": type(node).__name__,
        "name": node.name,
        "horizon": settings.horizon,
        "seed": settings.seed,
        "options": {name: _describe(name, value) for name, value in settings.options.items()},
        "transition_criteria": node._transition_criteria,
    }


def _node_from_json(options: Mapping[str, Any], **arguments: Any) -> DelayGenerationNode:
    parts = {name: build_part(record, name, _LIKE) for name, record in options.items()}
    return DelayGenerationNode(**arguments, **parts)


def _describe(name: str, value: Any) -> Any:
    """An option as JSON; StorageError if it could not be restored from it."""
    record = describe_part(value)
    try:
        build_part(record, name, _LIKE)
    except StorageError as error:
        raise StorageError(
            f"{name}, a {type(value).__name__}, cannot be saved: this library cannot make it "
            "again from a file."
        ) from error
    return record


register_acquisition_function(MaxVariance)
register_acquisition_function(FantasyUpperConfidenceBound)
CORE_ENCODER_REGISTRY[DelayGenerationNode] = _node_to_json
CORE_DECODER_REGISTRY[DelayGenerationNode.__name__] = _node_from_json
