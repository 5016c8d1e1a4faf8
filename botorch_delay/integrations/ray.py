"""Ray Tune: a searcher, for trials on one machine or on a cluster.

Tune places the trials and carries their results; what is asked next is an optimizer of this
library, on the box that Tune's search space becomes. Concurrency, resources, retries after a
crash and the place of files are Tune's own options.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import sys
import tempfile
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from botorch_delay.exceptions import (
    EmptyDomainError,
    HorizonError,
    InputError,
    InputTypeError,
    MissingExtraError,
    NotSupportedError,
    StorageError,
)
from botorch_delay.history import sqlite
from botorch_delay.history.trials import TrialState
from botorch_delay.integrations.engine_run import Settings
from botorch_delay.optimizers import Optimizer

try:
    from ray.tune.result import DEFAULT_METRIC
    from ray.tune.search import Searcher
except ImportError as error:
    raise MissingExtraError(
        "The searcher for Ray Tune needs Ray: pip install 'botorch-delay[ray]'."
    ) from error

from botorch_delay.integrations.ray_space import TuneSpace

__all__ = ["DelaySearch"]

logger = logging.getLogger(__name__)

FINISHED: Any = Searcher.FINISHED
NOTES = "ray"  # the key of what is kept in the optimizer's notes


class DelaySearch(Searcher):
    """Suggests what BPE-Delay, or another optimizer of this library, asks next.

    The space comes from ``Tuner(param_space=...)``: ``uniform``, ``loguniform``, ``quniform``,
    ``qloguniform``, ``randint``, ``lograndint``, ``qrandint``, ``qlograndint`` and ``choice``,
    at any depth; everything else in it is passed on to the trials. The horizon is
    ``TuneConfig(num_samples=...)``; with ``num_samples=-1`` no end is planned.

    A trial that ends with a result is an answer, one that raised has failed (its point is
    suggested again at most twice), and one that Tune dropped before it reported is abandoned. A
    metric that is no finite number counts as a failure. The answer is what was reported last: a
    scheduler that stops trials early makes it depend on the values so far, which the guarantee
    does not allow.

    Suggestions do not wait for results. Limit the trials in flight with
    ``TuneConfig(max_concurrent_trials=...)`` or Tune's ``ConcurrencyLimiter``.

    Args:
        metric: what trials report; ``TuneConfig``'s if None.
        mode: "min" or "max"; ``TuneConfig``'s if None.
        optimizer: makes the optimizer, called with the box as its first argument, and with
            ``horizon``, ``seed`` and ``maximize``: a class such as
            :class:`botorch_delay.AcquisitionOptimizer`, or a ``functools.partial`` of one.
            :class:`botorch_delay.BPEDelayOptimizer` with a learned kernel if None, which suggests
            no point that is being run while there is another.
        points_to_evaluate: configurations to suggest first. Their results are used like results
            obtained elsewhere; they count as samples of Tune's, not as asks.
        seed: of everything random.

    Raises:
        InputError: if an argument is out of its range.
        NotSupportedError: for several objectives.

    Example:
        >>> from ray import tune
        >>> search = DelaySearch(metric="loss", mode="min")
        >>> space = {"lr": tune.loguniform(1e-4, 1e-1), "layers": tune.randint(1, 4), "epochs": 5}
        >>> search.set_search_properties(None, None, space, num_samples=20)
        True
        >>> config = search.suggest("trial-0")
        >>> sorted(config)
        ['epochs', 'layers', 'lr']
        >>> search.on_trial_complete("trial-0", {"loss": 0.3})
        >>> search.recommend() == config
        True
    """

    CKPT_FILE_TMPL = "searcher-state-{}.db"

    def __init__(
        self,
        metric: str | None = None,
        mode: str | None = None,
        *,
        optimizer: Callable[..., Optimizer] | None = None,
        points_to_evaluate: Sequence[Mapping[str, Any]] | None = None,
        seed: int = 0,
    ) -> None:
        _check_metric(metric, mode)
        if optimizer is not None and not callable(optimizer):
            raise InputTypeError(
                "optimizer must be a class or a function that makes an optimizer, got "
                f"{type(optimizer).__name__}; the space is only known once Tune has started."
            )
        super().__init__(metric=metric, mode=mode)
        self._metric, self._mode = metric, mode
        self._factory = optimizer
        self._first = list(points_to_evaluate or [])
        self._seed = seed
        self._evaluated: list[tuple[Mapping[str, Any], float]] = []  # before the space is known
        self._optimizer: Optimizer | None = None
        self._space: TuneSpace  # where there is an optimizer
        self._restored = False  # and Tune told no space since
        self._lost: list[str] = []  # trials that run, but that Tune does not know after a restore
        # Trials asked in this process: of restored ones Tune may have dropped any.
        self._asked: set[int] = set()

    @property
    def optimizer(self) -> Optimizer:
        """The optimizer underneath: its trials, rounds, guarantee and recommendation.

        It does not know which trials a scheduler stopped early, and nothing is guaranteed if it
        did so because of their values.

        Raises:
            InputError: if the space is not known yet.
        """
        if self._optimizer is None:
            raise InputError(
                "DelaySearch has no search space; give Tuner a param_space with at least one "
                "tune.uniform, tune.choice or the like."
            )
        return self._optimizer

    def recommend(self) -> dict[str, Any]:
        """The configuration with the best posterior mean, from all answers.

        Raises:
            InputError: if the space is not known yet.
            NoAnswerError: before any answer.
        """
        return self._space.decode(self.optimizer.recommend().x)

    def set_search_properties(
        self, metric: str | None, mode: str | None, config: dict[str, Any], **spec: Any
    ) -> bool:
        """Take metric, mode, space and number of samples from Tune.

        Args:
            metric: None to keep the one given before.
            mode: None to keep the one given before.
            config: Tune's ``param_space``.
            spec: ``num_samples`` is the horizon; anything else is ignored.

        Returns:
            False if there is a space already; then nothing is changed.

        Raises:
            InputError: if metric or mode are missing, or a parameter cannot be searched.
            NotSupportedError: for ``grid_search``, ``sample_from``, and spaces inside a ``choice``.
            StorageError: if what was restored is of another space or metric.
        """
        if self._optimizer is not None and not self._restored:
            return False
        _check_metric(metric, mode)
        metric, mode = metric or self._metric, mode or self._mode
        if metric is None and mode:
            metric = DEFAULT_METRIC  # of trainables that return a single number
        if not metric or not mode:
            raise InputError(
                "metric and mode must be given, to DelaySearch or to TuneConfig; got "
                f"metric={metric!r} and mode={mode!r}."
            )
        space = TuneSpace.from_tune(config)
        for values in self._first:
            space.encode(values)
        samples = spec.get("num_samples") or sys.maxsize
        is_planned = 0 < samples < sys.maxsize
        horizon = max(samples - len(self._first), 1) if is_planned else None
        optimizer = self._make(space, horizon, mode)
        optimizer.notes[NOTES] = {
            "space": space.to_literal(),
            "horizon": horizon,
            "metric": metric,
            "mode": mode,
            "trials": {},
            "attached": [],
        }
        if self._restored:
            _hand_over(self.optimizer, optimizer)
        for parameters, value in self._evaluated:
            optimizer.attach(space.encode(parameters), value)
        self._space, self._metric, self._mode, self._optimizer = space, metric, mode, optimizer
        self._restored, self._evaluated, self._lost, self._asked = False, [], [], set()
        return True

    def suggest(self, trial_id: str) -> dict[str, Any] | None:
        """The configuration of a trial.

        Returns:
            The configuration; None if all points that are left crashed and are being run again, so
            that Tune asks later; or "FINISHED" if nothing is left to ask.

        Raises:
            InputError: if the space is not known yet.
        """
        optimizer = self.optimizer
        # Of each trial the number of its ask, or -1, -2, ... for those of points_to_evaluate.
        numbers = optimizer.notes[NOTES]["trials"]
        if trial_id not in numbers:
            first = sum(number < 0 for number in numbers.values())
            if self._lost:
                number = numbers.pop(self._lost.pop(0))
            elif first < len(self._first):
                number = -1 - first
            else:
                try:
                    number = optimizer.ask().id
                except HorizonError:
                    return FINISHED
                except EmptyDomainError as error:
                    if any(trial.id in self._asked for trial in optimizer.pending):
                        return None  # whether points stay out is for these trials to say
                    logger.warning("no further suggestions: %s", error)
                    return FINISHED
            numbers[trial_id] = number
            self._asked.add(number)
        return self._space.decode(self._point(numbers[trial_id]))

    def on_trial_complete(
        self, trial_id: str, result: Mapping[str, Any] | None = None, error: bool = False
    ) -> None:
        """How a trial ended: with a result, with an error, or neither.

        The result of a trial that failed before and was run again is used, and so is that of a
        trial that was not suggested here if it carries its configuration. Anything else about
        trials that are unknown or have ended is ignored.
        """
        optimizer = self.optimizer
        notes = optimizer.notes[NOTES]
        value = None if error or not result else result.get(str(self._metric))
        number = notes["trials"].get(trial_id, -1)
        trial = None if number < 0 else optimizer.trials[number]
        if trial_id in notes["attached"] or (trial and trial.state is TrialState.COMPLETED):
            logger.info("trial %s has its result already", trial_id)
        elif trial is None or (trial.state is TrialState.FAILED and value is not None):
            self._attach(trial_id, result, value)
        elif value is not None:
            try:
                optimizer.tell(trial, value)
            except InputError as refused:
                logger.warning("trial %s counts as failed: %s", trial_id, refused)
                if trial.state is TrialState.RUNNING:
                    optimizer.mark_failed(trial, str(refused))
        elif trial.state is not TrialState.RUNNING:
            logger.info("trial %s has ended already", trial_id)
        elif error:
            optimizer.mark_failed(trial, "The trial raised an error; see Tune's error.txt.")
        else:
            if result:
                logger.warning("trial %s ended without reporting %r", trial_id, self._metric)
            optimizer.mark_abandoned(trial)

    def add_evaluated_point(
        self,
        parameters: Mapping[str, Any],
        value: float,
        error: bool = False,
        pruned: bool = False,
        intermediate_values: Sequence[float] | None = None,
    ) -> None:
        """A result obtained elsewhere; ``add_evaluated_trials`` hands over many.

        Args:
            parameters: the configuration.
            value: its metric.
            error: whether there is no result, because the trial raised.
            pruned: whether it was stopped early, so that the value is not used.
            intermediate_values: not used.

        Raises:
            InputError: if the configuration is not in the space, or the value no finite number.
        """
        if error or pruned or value is None:
            return
        if self._optimizer is None:
            self._evaluated.append((parameters, value))
        else:
            self._optimizer.attach(self._space.encode(parameters), value)

    def save(self, checkpoint_path: str) -> None:
        """Write everything to an SQLite file, which replaces what was there in one step.

        The file is a study like any other: ``botorch_delay.load`` reads it.

        Raises:
            InputError: if the space is not known yet.
            StorageError: if the file cannot be written.
        """
        path = Path(checkpoint_path)
        part = path.with_name(f".{path.name}.{uuid.uuid4().hex}.part")
        try:
            # SQLite needs a local disk, and Tune copies the folder of `path` while runs go on.
            with tempfile.TemporaryDirectory() as folder:
                local = Path(folder) / "study.db"
                self.optimizer.save(local)
                shutil.copyfile(local, part)
            os.replace(part, path)
        except OSError as error:
            raise StorageError(f"Cannot write {path}: {error.strerror}.") from error
        finally:
            part.unlink(missing_ok=True)

    def restore(self, checkpoint_path: str) -> None:
        """Go on from a file that :meth:`save` wrote.

        The run goes on as if there had been no interruption, as it does with ``Tuner.restore``. A
        new ``Tuner`` with a space begins a new run, with the earlier answers as results obtained
        elsewhere.

        Tune writes its own state beside this file, one after the other: a trial that was suggested
        shortly before a run was killed may be unknown to Tune afterwards. The next trial takes its
        place: else a round would wait for it for ever.

        Raises:
            StorageError: if the file cannot be read, was not written by this searcher, or is of
                another space, metric or optimizer; then nothing is changed.
        """
        path = Path(checkpoint_path)
        state = sqlite.read(path)
        notes = _read_notes(path, state)
        # Tuner.restore tells the space, before this call, only if its user does.
        is_told = self._optimizer is not None and not self._restored
        space = self._space if is_told else _read_space(notes)
        metric, mode = self._metric or notes["metric"], self._mode or notes["mode"]
        if metric != notes["metric"]:
            raise StorageError(
                f"The stored run had metric {notes['metric']!r}, this one has {metric!r}; give the "
                "same metric."
            )
        optimizer = self._make(space, notes["horizon"], mode)
        try:
            optimizer.load_state_dict(state)
        except StorageError as error:
            raise StorageError(
                f"{path} is of another run; give the same param_space, mode, optimizer and seed. "
                f"{error}"
            ) from error
        numbers = notes["trials"]
        if not set(numbers.values()) <= {*range(-len(self._first), len(optimizer.trials))}:
            raise StorageError(
                f"{path} names trials that it does not hold, or had more points_to_evaluate than "
                f"this run ({len(self._first)}); give the same ones."
            )
        pending = {trial.id for trial in optimizer.pending}
        running = [
            trial_id
            for trial_id, number in numbers.items()
            if (number in pending if number >= 0 else trial_id not in notes["attached"])
        ]
        self._lost = _lost_trials(path.parent, running)
        self._space, self._metric, self._mode, self._optimizer = space, metric, mode, optimizer
        # What was handed over before a run began, Tuner.restore hands over again: the file has it.
        self._restored, self._evaluated = not is_told, []

    def _make(self, space: TuneSpace, horizon: int | None, mode: str | None) -> Optimizer:
        maximize = mode == "max"
        if self._factory is None:
            return Settings(horizon, self._seed).make(space.domain, maximize)
        options = {"horizon": horizon, "seed": self._seed, "maximize": maximize}
        optimizer = self._factory(space.domain, **options)
        if not isinstance(optimizer, Optimizer):
            raise InputTypeError(
                f"optimizer must make an optimizer of botorch_delay, got a "
                f"{type(optimizer).__name__}."
            )
        return optimizer

    def _point(self, number: int) -> Tensor:
        """Where the trial with a number is run, ``d``."""
        if number < 0:
            return self._space.encode(self._first[-1 - number])
        return self.optimizer.trials[number].x

    def _attach(self, trial_id: str, result: Mapping[str, Any] | None, value: Any) -> None:
        """Use the result of a trial that is not running by the optimizer's account."""
        notes, prefix = self.optimizer.notes[NOTES], "config/"
        number = notes["trials"].get(trial_id)
        if value is None:
            return
        try:
            if number is not None:
                x = self._point(number)
            else:
                config = {
                    k.removeprefix(prefix): v for k, v in (result or {}).items() if prefix in k
                }
                x = self._space.encode(config)
            self.optimizer.attach(x, value)
        except InputError as error:
            logger.warning("the result of trial %s is not used: %s", trial_id, error)
            return
        notes["attached"].append(trial_id)


def _hand_over(earlier: Optimizer, optimizer: Optimizer) -> None:
    """Attach the answers of an earlier run to a new one."""
    same = earlier.domain.fingerprint() == optimizer.domain.fingerprint()
    if not same or earlier.notes[NOTES]["metric"] != optimizer.notes[NOTES]["metric"]:
        raise StorageError(
            "The restored run had another space or metric; give the Tuner the same ones, or begin "
            "with another searcher."
        )
    for trial in earlier.trials:
        if trial.value is not None:
            optimizer.attach(trial.x, trial.value)
    for result in earlier.attached:
        optimizer.attach(result.x, result.value)


def _read_notes(path: Path, state: Mapping[str, Any]) -> dict[str, Any]:
    """What a searcher noted in a file."""
    kinds = {"metric": str, "mode": str, "trials": dict, "attached": list}
    try:
        notes: dict[str, Any] = state["notes"][NOTES]
        numbers = {"horizon": notes["horizon"] or 0, **notes["trials"]}
        fits = all(isinstance(notes[key], kind) for key, kind in kinds.items())
    except (KeyError, TypeError):
        fits = False
    if not fits or not all(isinstance(number, int) for number in numbers.values()):
        raise StorageError(f"{path} was not written by DelaySearch, or is damaged.")
    return notes


def _read_space(notes: Mapping[str, Any]) -> TuneSpace:
    if notes.get("space") is None:
        raise StorageError(
            "The space of the stored run was not stored, because it holds values that have no "
            "literal; give Tuner.restore the same param_space."
        )
    return TuneSpace.from_literal(notes["space"])


def _lost_trials(folder: Path, running: Sequence[str]) -> list[str]:
    """Which of the running trials Tune does not restore from a folder, as far as can be told."""
    found = sorted(folder.glob("experiment_state-*.json"))
    try:
        trials = json.loads(found[-1].read_text())["trial_data"]
        known = {json.loads(trial)["trial_id"] for trial, _ in trials}
    except (IndexError, KeyError, OSError, TypeError, ValueError):
        return []
    return [trial_id for trial_id in running if trial_id not in known]


def _check_metric(metric: Any, mode: Any) -> None:
    if isinstance(metric, list | tuple) or isinstance(mode, list | tuple):
        raise NotSupportedError(f"DelaySearch has one objective; got {metric!r} and {mode!r}.")
    if metric is not None and not isinstance(metric, str):
        raise InputTypeError(f"metric must be a name, got {type(metric).__name__}.")
    if mode not in (None, "min", "max"):
        raise InputError(f"mode must be 'min' or 'max', got {mode!r}.")
