"""BPE-Delay as a searcher for Ray Tune, for trials on one machine or on a cluster."""

from __future__ import annotations

import copy
import logging
import math
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

from torch import Tensor

from botorch_delay import validation
from botorch_delay.domains.parameters import Choice, Float, Int
from botorch_delay.domains.space import Space
from botorch_delay.exceptions import (
    EmptyDomainError,
    HorizonError,
    InputError,
    NotSupportedError,
    StorageError,
)
from botorch_delay.history.events import truncated
from botorch_delay.history.trials import TrialState
from botorch_delay.integrations.engine_run import EngineRun, Readable, Settings
from botorch_delay.integrations.ray_state import SearchState, tune_trials
from botorch_delay.optimizers.replica import PastTrial

try:
    from ray.tune.result import DEFAULT_METRIC
    from ray.tune.search import Searcher, sample
    from ray.tune.search.variant_generator import assign_value, parse_spec_vars
except ImportError as error:
    raise validation.missing("ray", "The searcher for Ray Tune needs Ray") from error

__all__ = ["DelaySearch"]

logger = logging.getLogger(__name__)

FINISHED: Any = Searcher.FINISHED
_ENDED = ("TERMINATED", "ERROR")  # Tune's final states of a trial
_FUNCTION = "__fn_ph"  # Tune's placeholder for sample_from

Keys = tuple[Any, ...]  # the path of a parameter in a nested configuration


class DelaySearch(Readable, Searcher):
    """Suggests what :class:`botorch_delay.BPEDelayOptimizer` asks next.

    The space comes from ``Tuner(param_space=...)``: ``uniform``, ``loguniform``, ``quniform``,
    ``qloguniform``, ``randint``, ``lograndint``, ``qrandint``, ``qlograndint`` and ``choice``,
    at any depth; everything else in it is passed on to the trials. The horizon is
    ``TuneConfig(num_samples=...)``; with ``num_samples=-1`` no end is planned.

    The last reported metric is a trial's answer; if it is not a finite number, or the trial raised,
    the trial has failed, and its point may be suggested again, at most twice. A trial that Tune
    dropped before it reported is abandoned. A scheduler that stops trials early voids the
    guarantee, which a searcher cannot notice.

    To resume after a crash, give ``Tuner.restore`` the same ``param_space``. Limit the trials in
    flight with ``TuneConfig(max_concurrent_trials=...)``.

    Args:
        metric: name of the result that trials report; that of ``TuneConfig`` if None.
        mode: "min" or "max"; that of ``TuneConfig`` if None.
        points_to_evaluate: configurations to suggest first; they count as samples for Tune, but not
            as asks.
        seed: seed of everything random.
        options: of :class:`botorch_delay.BPEDelayOptimizer`: ``exploit``, ``confidence``, ....
            A rule does not repeat pending points unless it is given as ``Exploit(rule)``.

    Raises:
        InputError: for invalid arguments; from methods that need the space, before it is known.

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

    CKPT_FILE_TMPL = "searcher-state-{}.json"  # JSON, where Tune's own is a pickle

    def __init__(
        self,
        metric: str | None = None,
        mode: str | None = None,
        *,
        points_to_evaluate: Sequence[Mapping[str, Any]] = (),
        seed: int = 0,
        **options: Any,
    ) -> None:
        _check_objective(metric, mode)
        Settings(1, seed, options, DelaySearch)  # raises for options that no horizon allows
        super().__init__(metric=metric, mode=mode)
        self._state = SearchState(metric, mode, seed, first=list(points_to_evaluate))
        self._options = options
        self._config: dict[str, Any] | None = None  # Tune's param_space
        # Results that were added before the space is known.
        self._evaluated: list[tuple[Mapping[str, Any], float]] = []
        # Status and last result of each trial, from Tune's own state beside a restored file.
        self._known: Mapping[str, tuple[str, Mapping[str, Any]]] = {}
        self._lost: list[str] = []  # running trials that Tune did not restore
        self._run: _TuneRun | None = None

    @property
    def metric(self) -> Any:
        return self._state.metric

    @property
    def mode(self) -> Any:
        return self._state.mode

    def set_search_properties(
        self, metric: str | None, mode: str | None, config: dict[str, Any], **spec: Any
    ) -> bool:
        """Take metric, mode, ``param_space`` and number of samples from Tune; False if it has them.

        Args:
            metric: its name, or None for the one given before; a restored file's takes precedence.
            mode: likewise.
            config: Tune's ``param_space``.
            spec: ``num_samples`` is the horizon; anything else is ignored.

        Raises:
            InputError: if metric or mode are missing, or a parameter cannot be searched.
            NotSupportedError: for ``grid_search``, ``sample_from``, and spaces inside a ``choice``.
            StorageError: if the restored file was written for another space.
        """
        if self._config is not None:
            return False
        _check_objective(metric, mode)
        begun = copy.copy(self)  # nothing is changed if the space is refused
        begun._state = replace(self._state)
        if self._state.key is None:
            metric, mode = metric or self.metric, mode or self.mode
            if metric is None and mode:
                metric = DEFAULT_METRIC  # for trainables that return a single number
            if not metric or not mode:
                raise InputError(
                    "metric and mode must be given, to DelaySearch or to TuneConfig; got "
                    f"metric={metric!r} and mode={mode!r}."
                )
            begun._state.metric, begun._state.mode = metric, mode
            samples = spec.get("num_samples") or sys.maxsize
            if 0 < samples < sys.maxsize:
                begun._state.horizon = max(int(samples) - len(self._state.first), 1)
        begun._begin(config)
        self.__dict__.update(begun.__dict__)
        return True

    def suggest(self, trial_id: str) -> dict[str, Any] | None:
        """The configuration of a trial, or "FINISHED" if nothing is left to ask.

        None, for Tune to ask later, if all points left have failed and are running again.
        """
        run, trials, first = self._synced(), self._state.trials, self._state.first
        if trial_id not in trials:
            if self._lost:
                trials[trial_id] = trials.pop(self._lost.pop(0))
            elif first:
                trials[trial_id] = PastTrial(len(trials), first.pop(0), TrialState.RUNNING)
            else:
                try:
                    record = run.ask(len(trials))
                except HorizonError:
                    return FINISHED
                except EmptyDomainError as error:
                    if run.optimizer.pending:
                        return None
                    logger.warning("no further suggestions: %s", error)
                    return FINISHED
                trials[trial_id] = run.past_ask(record, TrialState.RUNNING)
        return run.params(trials[trial_id].x)

    def on_trial_complete(
        self, trial_id: str, result: Mapping[str, Any] | None = None, error: bool = False
    ) -> None:
        """Take in how a trial ended: with a result, with an error, or neither.

        The result of an unknown trial, or of a failed one that was run again, is attached; anything
        else about unknown and ended trials is ignored.
        """
        run, trials = self._synced(), self._state.trials
        past, number = trials.get(trial_id), len(trials)
        value = None if error or not result else result.get(str(self.metric))
        if past is None and result and value is not None:
            config = {key.removeprefix("config/"): found for key, found in result.items()}
            past = run.past_result(number, run.named(config), value)
        elif past is not None and past.state is TrialState.FAILED and value is not None:
            trials[f"{trial_id} failed"] = past
            again = PastTrial(number, past.x, TrialState.RUNNING)
            past = run.with_end(again, TrialState.COMPLETED, value)
        elif past is None or past.state in (TrialState.COMPLETED, TrialState.FAILED):
            logger.info("trial %s is unknown, or has ended already", trial_id)
            return
        elif error:
            reason = "The trial raised an error; see Tune's error.txt."
            past = run.with_end(past, TrialState.FAILED, reason=reason)
        elif value is not None:
            past = run.with_end(past, TrialState.COMPLETED, value)
        else:
            if result:
                logger.warning("trial %s ended without reporting %r", trial_id, self.metric)
            past = run.with_end(past, TrialState.ABANDONED)
        self._take_in(trial_id, past)

    def add_evaluated_point(
        self,
        parameters: Mapping[str, Any],
        value: float,
        error: bool = False,
        pruned: bool = False,
        intermediate_values: Sequence[float] | None = None,
    ) -> None:
        """Attach a result obtained elsewhere; ``add_evaluated_trials`` takes many.

        It is ignored if it is not finite, if the space cannot express its parameters, or if its
        trial raised (``error``) or was pruned. ``intermediate_values`` are not used.
        """
        if error or pruned or value is None:
            return
        if self._config is None:
            self._evaluated.append((parameters, value))
            return
        run, number = self._synced(), len(self._state.trials)
        past = run.past_result(number, run.named(parameters), value)
        self._take_in(f"evaluated {number}", past)

    def _take_in(self, trial_id: str, past: PastTrial | None) -> None:
        if past is not None:
            self._state.trials[trial_id] = past
            self._synced().take_in([past])

    def save(self, checkpoint_path: str) -> None:
        """Write everything but space and options to a JSON file, which is replaced atomically.

        Raises:
            InputError: before the space is known.
            StorageError: if the file cannot be written.
        """
        if self._state.key is None:
            self._synced()  # raises, and says what is missing
        self._state.write(Path(checkpoint_path))

    def restore(self, checkpoint_path: str) -> None:
        """Go on from a file that :meth:`save` wrote, as if there had been no interruption.

        Space and options are this searcher's, and must be those of the file. If the space is not
        known yet, trials wait for :meth:`set_search_properties`. To begin a new run with earlier
        answers, use :meth:`add_evaluated_trials` instead.

        Tune writes its own state beside this file, but not at the same moment. After a kill, it may
        lack the last trial, whose point the next one takes, or alone know how trials ended.

        Raises:
            StorageError: if the file cannot be read, is malformed, or is of another space, metric
                or mode, or of other options; then nothing is changed.
        """
        path = Path(checkpoint_path)
        state = SearchState.read(path)
        for name in ("metric", "mode"):
            own, stored = getattr(self, name), getattr(state, name)
            if own not in (None, stored):
                raise StorageError(
                    f"{path} was written for {name}={stored!r}, this searcher has {name}={own!r}."
                )
        restored = copy.copy(self)
        restored._state, restored._evaluated, restored._known = state, [], tune_trials(path.parent)
        if self._config is not None:
            restored._begin(self._config)
        self.__dict__.update(restored.__dict__)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_run": None}  # made again from the trials

    def _make_run(self, config: Mapping[str, Any]) -> _TuneRun:
        settings = Settings(self._state.horizon, self._state.seed, self._options)
        return _TuneRun(config, settings, self.mode == "max")

    def _begin(self, config: dict[str, Any]) -> None:
        """Make the optimizer of a space, and take in what came before the space was known."""
        run, state = self._make_run(config), self._state
        if state.key is None:
            state.first = [run.domain.point(run.named(first)) for first in state.first]
        elif run.key != state.key:
            raise StorageError(
                "The file was written for another search space or with other options; give this "
                "searcher the same ones, or hand it the results by add_evaluated_trials."
            )
        try:
            for x in (*state.first, *(past.x for past in state.trials.values())):
                if x.shape != (run.domain.dim,):
                    raise ValueError(f"a point has {len(x)} columns, not {run.domain.dim}")
            run.take_in(state.trials.values())
        except (AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
            raise StorageError(
                f"The trials of the file are malformed: {truncated(error)}"
            ) from error
        self._config, self._run, state.key = config, run, run.key
        evaluated, self._evaluated = self._evaluated, []
        for parameters, value in evaluated:
            self.add_evaluated_point(parameters, value)
        known, self._known = self._known, {}
        running = [i for i, past in state.trials.items() if past.state is TrialState.RUNNING]
        self._lost = [i for i in running if known and i not in known]
        for trial_id in running:
            status, result = known.get(trial_id, ("", {}))
            if status in _ENDED:
                self.on_trial_complete(trial_id, result, error=status == _ENDED[1])

    def _synced(self) -> _TuneRun:
        if self._run is None:
            if self._config is None:
                raise InputError(
                    "DelaySearch has no search space; give Tuner a param_space with at least one "
                    "tune.uniform, tune.choice or the like, and Tuner.restore the same one."
                )
            self._run = self._make_run(self._config)
            self._run.take_in(self._state.trials.values())
        return self._run


class _TuneRun(EngineRun):
    """The optimizer of a ``param_space``: parameters to search, at any depth, among fixed values.

    Columns are named by the keys of the parameters, joined by slashes.
    """

    def __init__(self, config: Mapping[str, Any], settings: Settings, maximize: bool) -> None:
        self._config = config
        self._keys: dict[str, Keys] = {}
        parameters = {}
        for keys, domain in _searched(config):
            name = _name(keys)
            if name in self._keys:
                raise InputError(f"Two parameters are called {name}; rename one.")
            self._keys[name] = keys
            try:
                parameters[name] = _parameter(domain)
            except (InputError, NotSupportedError) as error:
                raise type(error)(f"{name}: {error}") from error
        super().__init__("Ray Tune", Space(parameters), settings, maximize)

    def params(self, x: Tensor) -> dict[str, Any]:
        """The configuration at a point (``d``)."""
        config = copy.deepcopy(dict(self._config))
        for name, value in self.domain.params(x).items():
            assign_value(config, self._keys[name], copy.deepcopy(value))
        return config

    def named(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """The parameters of a configuration, nested or with its keys joined by slashes."""
        found = dict(config)
        for name, keys in self._keys.items():
            with suppress(LookupError, TypeError):
                found[name] = reduce(getitem, keys, config)
        return {name: found[name] for name in self._keys if name in found}


def _searched(config: Mapping[str, Any]) -> list[tuple[Keys, sample.Domain]]:
    """The parameters of a ``param_space``, with their keys."""
    fixed, searched, grids = parse_spec_vars(dict(config))
    if grids:
        raise NotSupportedError(
            f"{_name(grids[0][0])}: grid_search cannot be searched here; use tune.choice, or "
            "leave out search_alg."
        )
    functions = [k[:-1] for k, value in fixed if isinstance(value, str) and value == _FUNCTION]
    functions += [keys for keys, domain in searched if domain.is_function()]
    if functions:
        raise NotSupportedError(
            f"{_name(functions[0])}: what sample_from draws is not known to the searcher; compute "
            "it from the other parameters in the trainable, or use tune.uniform or the like."
        )
    return list(searched)


def _parameter(domain: sample.Domain) -> Float | Int | Choice:
    step, sampler = None, domain.get_sampler()
    if isinstance(sampler, sample.Quantized):
        step, sampler = sampler.q, sampler.sampler
    log = isinstance(sampler, sample.LogUniform)
    if not log and not isinstance(sampler, sample.Uniform):
        raise NotSupportedError(
            f"a distribution without bounds ({type(sampler).__name__.strip('_')}) cannot be "
            "searched; use tune.uniform or tune.loguniform."
        )
    if isinstance(domain, sample.Categorical):
        if any(parse_spec_vars({"value": value})[1] for value in domain.categories):
            raise NotSupportedError(
                "spaces inside a choice are not supported; move their parameters out of it."
            )
        return Choice(domain.categories)
    if not isinstance(domain, sample.Float | sample.Integer):
        raise NotSupportedError(f"parameters of type {type(domain).__name__} are not supported.")
    low, high = domain.lower, domain.upper
    whole = isinstance(domain, sample.Integer)
    if whole and step in (None, 1):
        high -= 1  # upper ends are exclusive
    elif step is not None and math.isfinite(low) and math.isfinite(high):
        # Multiples of the step; rounding must not lose the ones at the ends.
        low, high = math.ceil(low / step - 1e-9) * step, math.floor(high / step + 1e-9) * step
    if whole:
        return Int(low, high, log=log, step=int(step or 1))
    return Float(low, high, log=log, step=step)


def _name(keys: Keys) -> str:
    return "/".join(map(str, keys))


def _check_objective(metric: Any, mode: Any) -> None:
    if not isinstance(metric, str | None) or mode not in (None, "min", "max"):
        raise InputError(
            "DelaySearch has one objective: metric must be a name, and mode 'min' or 'max'; got "
            f"{metric!r} and {mode!r}."
        )
