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

import torch
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
from botorch_delay.history.differences import difference
from botorch_delay.history.events import results
from botorch_delay.history.trials import Trial, TrialState
from botorch_delay.optimizers import BPEDelayOptimizer, Optimizer

try:
    from ray.tune.result import DEFAULT_METRIC
    from ray.tune.search import Searcher
except ImportError as error:
    raise MissingExtraError(
        "The searcher for Ray Tune needs Ray: pip install 'botorch-delay[ray]'."
    ) from error

from botorch_delay.integrations.options import engine_options
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
        self._space: TuneSpace | None = None
        self._horizon: int | None = None
        self._evaluated: list[tuple[Mapping[str, Any], float]] = []
        self._earlier: dict[str, Any] | None = None
        self._surviving: frozenset[str] | None = None  # trials that Tune knows after a restore
        self._lost: list[str] = []  # trials that run by the optimizer's account only
        self._lost_first: list[str] = []  # likewise, of points_to_evaluate
        self._optimizer: Optimizer | None = None
        # Trials asked in this process: of restored ones Tune may have dropped any.
        self._asked: set[int] = set()

    @property
    def optimizer(self) -> Optimizer:
        """The optimizer underneath: its trials, rounds, guarantee and recommendation.

        It does not know which trials a scheduler stopped early, and nothing is guaranteed if it
        did so because of their values.

        Raises:
            InputError: if metric, mode or space are not known yet.
            StorageError: if what was restored does not fit them.
        """
        if self._optimizer is None:
            self._optimizer = self._begin()
        return self._optimizer

    def recommend(self) -> dict[str, Any]:
        """The configuration with the best posterior mean, from all answers.

        Raises:
            NoAnswerError: before any answer.
        """
        best = self.optimizer.recommend()
        return self._known_space().fill(best.x)

    def set_search_properties(
        self, metric: str | None, mode: str | None, config: dict[str, Any], **spec: Any
    ) -> bool:
        """Take metric, mode, space and number of samples from Tune.

        Args:
            metric: None to keep the one given before.
            mode: likewise.
            config: Tune's ``param_space``.
            spec: ``num_samples`` is the horizon; anything else is ignored.

        Returns:
            False if there is a space already; then nothing is changed.

        Raises:
            InputError: if a parameter is of no kind that can be searched.
            NotSupportedError: for ``grid_search``, ``sample_from``, and spaces inside a ``choice``.
        """
        if self._space is not None:
            return False
        _check_metric(metric, mode)
        space = TuneSpace(config)
        for values in self._first:
            space.encode(values)
        samples = spec.get("num_samples") or sys.maxsize
        self._metric, self._mode = metric or self._metric, mode or self._mode
        if self._metric is None and self._mode:
            self._metric = DEFAULT_METRIC  # of trainables that return a single number
        if 0 < samples < sys.maxsize:
            self._horizon = max(samples - len(self._first), 1)
        self._space = space
        return True

    def suggest(self, trial_id: str) -> dict[str, Any] | None:
        """The configuration of a trial.

        Returns:
            The configuration; None if all points that are left crashed and are being run again, so
            that Tune asks later; or "FINISHED" if nothing is left to ask.

        Raises:
            InputError: if metric, mode or space are not known yet.
        """
        optimizer, space = self.optimizer, self._known_space()
        book = optimizer.notes[NOTES]
        if trial_id in book["trials"]:
            return space.fill(optimizer.trials[book["trials"][trial_id]].x)
        if trial_id not in book["first"] and self._lost_first:
            book["first"][trial_id] = book["first"].pop(self._lost_first.pop(0))
        elif trial_id not in book["first"] and len(book["first"]) < len(self._first):
            book["first"][trial_id] = len(book["first"])
        if trial_id in book["first"]:
            return space.fill(space.encode(self._first[book["first"][trial_id]]))
        if self._lost:
            number = book["trials"].pop(self._lost.pop(0))
            book["trials"][trial_id] = number
            self._asked.add(number)
            return space.fill(optimizer.trials[number].x)
        try:
            trial = optimizer.ask()
        except HorizonError:
            return FINISHED
        except EmptyDomainError as error:
            if any(trial.id in self._asked for trial in optimizer.pending):
                return None  # whether points stay out is for these trials to say
            logger.warning("no further suggestions: %s", error)
            return FINISHED
        self._asked.add(trial.id)
        book["trials"][trial_id] = trial.id
        return space.fill(trial.x)

    def on_trial_complete(
        self, trial_id: str, result: Mapping[str, Any] | None = None, error: bool = False
    ) -> None:
        """How a trial ended: with a result, with an error, or neither.

        The result of a trial that failed before and was run again is used, and so is that of a
        trial that was not suggested here if it carries its configuration. Anything else about
        trials that are unknown or have ended is ignored.
        """
        optimizer = self.optimizer
        book = optimizer.notes[NOTES]
        value = None if error or not result else result.get(str(self._metric))
        number = book["trials"].get(trial_id)
        trial = None if number is None else optimizer.trials[number]
        if trial_id in book["attached"] or (trial and trial.state is TrialState.COMPLETED):
            logger.info("trial %s has its result already", trial_id)
        elif trial is None or (trial.state is TrialState.FAILED and value is not None):
            x = self._whereabouts(trial_id, trial, result)
            self._attach(trial_id, x, value)
        elif value is not None:
            self._tell(trial_id, trial, value)
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
        if self._space is None:
            self._evaluated.append((parameters, value))
        else:
            self.optimizer.attach(self._space.encode(parameters), value)

    def save(self, checkpoint_path: str) -> None:
        """Write everything to an SQLite file, which replaces what was there in one step.

        The file is a study like any other: ``botorch_delay.load`` reads it.

        Raises:
            InputError: if metric, mode or space are not known yet.
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
        searcher that is restored and then given to a new ``Tuner`` with a space goes on likewise
        where ``num_samples`` is the same and asks are left; otherwise a new run begins, with the
        earlier answers as results obtained elsewhere.

        Tune writes its own state beside this file, one after the other: a trial that was suggested
        shortly before a run was killed may be unknown to Tune afterwards. The next trial takes its
        place: else a round would wait for it for ever.

        Raises:
            StorageError: if the file cannot be read, was not written by this searcher, or is of
                another space, metric or optimizer; then nothing is changed.
        """
        state = sqlite.read(checkpoint_path)
        _check_book(state, checkpoint_path)
        self._surviving = _trials_of_tune(Path(checkpoint_path).parent)
        if self._space is not None:
            self._optimizer = self._resume(state)
            return
        # Tuner.restore hands over a space only if its user does: then it comes before this call.
        # What was handed over before a run began, Tuner.restore hands over again: the file has it.
        self._earlier, self._evaluated = state, []
        book = state["notes"][NOTES]
        self._metric, self._mode = self._metric or book["metric"], self._mode or book["mode"]

    def _begin(self) -> Optimizer:
        """The optimizer of a run that begins, or that goes on from what was restored."""
        state = self._earlier
        if state is not None and self._goes_on(state):
            optimizer = self._resume(state)
        else:
            optimizer = self._renew(state)
        for parameters, value in self._evaluated:
            optimizer.attach(self._known_space().encode(parameters), value)
        return optimizer

    def _goes_on(self, state: Mapping[str, Any]) -> bool:
        """Whether a run that was restored goes on; otherwise a new one begins."""
        if self._space is None:
            self._space = _stored_space(state)
            return True
        asked = sum(event["kind"] == "asked" for event in state["events"])
        left = self._horizon is None or asked < self._horizon
        return left and state["config"].get("horizon") == self._horizon

    def _renew(self, state: Mapping[str, Any] | None) -> Optimizer:
        """The optimizer of a new run that knows an earlier one's answers."""
        optimizer = self._make(self._horizon)
        optimizer.notes[NOTES] = {
            "space": self._known_space().describe(),
            "metric": self._metric,
            "mode": self._mode,
            "trials": {},
            "first": {},
            "attached": [],
        }
        if state is None:
            return optimizer
        self._check_origin(state)
        for point, value in results(state["events"]):
            optimizer.attach(optimizer.domain.like.new_tensor(point), value)
        return optimizer

    def _resume(self, state: Mapping[str, Any]) -> Optimizer:
        """The optimizer of a state, as it was."""
        self._check_origin(state)
        optimizer = self._make(state["config"].get("horizon"))
        optimizer.load_state_dict(state)
        if self._surviving is not None:
            running = {trial.id for trial in optimizer.pending}
            book = optimizer.notes[NOTES]
            lost = [trial_id for trial_id, number in book["trials"].items() if number in running]
            first = [trial_id for trial_id in book["first"] if trial_id not in book["attached"]]
            self._lost = [trial_id for trial_id in lost if trial_id not in self._surviving]
            self._lost_first = [trial_id for trial_id in first if trial_id not in self._surviving]
        return optimizer

    def _make(self, horizon: int | None) -> Optimizer:
        options: dict[str, Any] = {"horizon": horizon, "seed": self._seed}
        factory = self._factory
        if factory is None:
            factory = BPEDelayOptimizer
            options |= engine_options({}, horizon)
        space = self._known_space()
        optimizer = factory(space.domain, maximize=self._mode == "max", **options)
        if not isinstance(optimizer, Optimizer):
            raise InputTypeError(
                f"optimizer must make an optimizer of botorch_delay, got a "
                f"{type(optimizer).__name__}."
            )
        return optimizer

    def _check_origin(self, state: Mapping[str, Any]) -> None:
        """Refuse a state of another space or metric."""
        domain = self._known_space().domain
        own, config = domain.describe(), state["config"]
        same = torch.equal(state.get("bounds", domain.bounds[:0]), domain.bounds)
        if not same or any(difference(own[key], config.get(key)) is not None for key in own):
            raise StorageError(
                f"The stored run searched {list(config['names'])} in another space than this one, "
                f"which has {list(domain.names)}; give the Tuner the same param_space."
            )
        book = state["notes"][NOTES]
        if any(number >= len(self._first) for number in book["first"].values()):
            raise StorageError(
                f"The stored run had more points_to_evaluate than this one ({len(self._first)}); "
                "give the same ones."
            )
        if (book["metric"], book["mode"]) != (self._metric, self._mode):
            raise StorageError(
                f"The stored run had metric {book['metric']!r} and mode {book['mode']!r}, this one "
                f"has {self._metric!r} and {self._mode!r}; give the same metric and mode."
            )

    def _known_space(self) -> TuneSpace:
        if self._space is None:
            raise InputError(
                "DelaySearch has no search space; give Tuner a param_space with at least one "
                "tune.uniform, tune.choice or the like."
            )
        if not self._metric or not self._mode:
            raise InputError(
                f"metric and mode must be given, to DelaySearch or to TuneConfig; got "
                f"metric={self._metric!r} and mode={self._mode!r}."
            )
        return self._space

    def _whereabouts(
        self, trial_id: str, trial: Trial | None, result: Mapping[str, Any] | None
    ) -> Tensor | None:
        """Where a trial was run that is not running by the optimizer's account."""
        if trial is not None:
            return trial.x
        first = self.optimizer.notes[NOTES]["first"].get(trial_id)
        if first is not None:
            return self._known_space().encode(self._first[first])
        prefix = "config/"
        config = {k.removeprefix(prefix): v for k, v in (result or {}).items() if prefix in k}
        try:
            return self._known_space().encode(config)
        except InputError:
            return None

    def _attach(self, trial_id: str, x: Tensor | None, value: Any) -> None:
        if x is None or value is None:
            logger.info("nothing to learn from the end of trial %s", trial_id)
            return
        try:
            self.optimizer.attach(x, value)
        except InputError as error:
            logger.warning("trial %s: %s", trial_id, error)
            return
        self.optimizer.notes[NOTES]["attached"].append(trial_id)

    def _tell(self, trial_id: str, trial: Trial, value: Any) -> None:
        try:
            self.optimizer.tell(trial, value)
        except InputError as error:
            logger.warning("trial %s counts as failed: %s", trial_id, error)
            if trial.state is TrialState.RUNNING:
                self.optimizer.mark_failed(trial, str(error))


def _trials_of_tune(folder: Path) -> frozenset[str] | None:
    """The ids of the trials that Tune restores from a folder; None if that cannot be told."""
    found = sorted(folder.glob("experiment_state-*.json"))
    try:
        trials = json.loads(found[-1].read_text())["trial_data"]
        return frozenset(json.loads(trial)["trial_id"] for trial, _ in trials)
    except (IndexError, KeyError, OSError, TypeError, ValueError):
        return None


def _check_metric(metric: Any, mode: Any) -> None:
    if isinstance(metric, list | tuple) or isinstance(mode, list | tuple):
        raise NotSupportedError(f"DelaySearch has one objective; got {metric!r} and {mode!r}.")
    if metric is not None and not isinstance(metric, str):
        raise InputTypeError(f"metric must be a name, got {type(metric).__name__}.")
    if mode not in (None, "min", "max"):
        raise InputError(f"mode must be 'min' or 'max', got {mode!r}.")


def _check_book(state: Mapping[str, Any], path: str) -> None:
    """Refuse a state whose notes were not written here, or were tampered with."""
    book = state["notes"].get(NOTES) if isinstance(state["notes"], dict) else None
    kinds = {"metric": str, "mode": str, "trials": dict, "first": dict, "attached": list}
    if not isinstance(book, dict) or any(not isinstance(book.get(k), v) for k, v in kinds.items()):
        raise StorageError(f"{path} was not written by DelaySearch, or is damaged.")
    numbers = [*book["trials"].values()]
    asked = sum(event.get("kind") == "asked" for event in state["events"])
    if not all(type(n) is int and 0 <= n < asked for n in numbers):
        raise StorageError(f"{path} is damaged: it names a trial that it does not hold.")
    if not all(type(n) is int and n >= 0 for n in book["first"].values()):
        raise StorageError(f"{path} is damaged: its first points are not numbered.")


def _stored_space(state: Mapping[str, Any]) -> TuneSpace:
    described = state["notes"][NOTES].get("space")
    if described is None:
        raise StorageError(
            "The space of the stored run was not stored, because it holds values that are no plain "
            "ones; give the Tuner the same param_space."
        )
    return TuneSpace.revive(described)
