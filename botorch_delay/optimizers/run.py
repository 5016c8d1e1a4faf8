"""A run as the events that happened in it, and the kernel and noise fitted to its answers."""

from __future__ import annotations

import copy
import functools
import json
import math
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Self, TypeVar, cast

import torch
from torch import Tensor

from botorch_delay import validation
from botorch_delay.domains.devices import torch_settings
from botorch_delay.domains.domain import Domain
from botorch_delay.exceptions import StorageError
from botorch_delay.gp.factor import warned
from botorch_delay.gp.fitting import fit_surrogate
from botorch_delay.gp.surrogate import MIN_ANSWERS_TO_FIT, Learned, Surrogate
from botorch_delay.history import sqlite, states
from botorch_delay.history.events import SETTLED, Event, read_events, truncated
from botorch_delay.history.point_status import Feasibility
from botorch_delay.history.trials import Ledger, TrialObserver
from botorch_delay.optimizers.config import Config

# A learned kernel is fitted again once answers have grown by this factor since the last fit.
GROWTH_TO_REFIT = 1.2
# Or once an answer lies outside the fitted ones by more than their range: the warping ranks these,
# but a loss that has exploded since would count by its size. With fewer fitted answers than this,
# when the next fit is near anyway, it must lie outside by more, in inverse proportion.
ANSWERS_FOR_SPREAD = 20
# A refit waits for one answer per this many running trials: 1,000 workers would need one every 2 s.
PENDING_PER_ANSWER = 32


class Fitting:
    """Kernel and noise: fixed, or learned and fitted again as answers come in.

    A fit depends on the answers alone, so reading the :meth:`upcoming` one changes no later ask.
    """

    def __init__(self, config: Config, ledger: Ledger) -> None:
        self._config, self._ledger = config, ledger
        self.surrogate = config.fixed or self._fit(None)  # the one in use
        self.fitted_to = 0  # how many answers and attached results; -1 to fit again
        self._range = -math.inf, math.inf  # of the answers fitted to
        self._ahead: tuple[int, Surrogate] | None = None  # number of answers, and the fit to them

    def upcoming(self) -> Surrogate:
        """The surrogate that the next ask would use."""
        answers = len(self._ledger.values)
        if not self._config.learned or answers == self.fitted_to:
            return self.surrogate
        # Before there is a fit, every answer counts: it tells the scale of the values.
        due = GROWTH_TO_REFIT * self.fitted_to
        if self.fitted_to >= MIN_ANSWERS_TO_FIT:
            due = max(due, self.fitted_to + len(self._ledger.running()) / PENDING_PER_ANSWER)
        (low, high), values = self._range, self._ledger.values
        away = max(low - values[0], values[-1] - high) if values else 0.0
        far = away * min(self.fitted_to / ANSWERS_FOR_SPREAD, 1.0) > high - low
        if MIN_ANSWERS_TO_FIT <= answers < due and self.surrogate.scaled and not far:
            return self.surrogate
        if self._ahead is None or self._ahead[0] != answers:
            self._ahead = (answers, self._fit(self.surrogate))
        return self._ahead[1]

    def take(self, fitted: Mapping[str, Any]) -> None:
        """Use a surrogate that was fitted here or elsewhere, given the data of its event."""
        answers = validation.whole(fitted["answers"], "answers", 0)
        if not self._config.learned or answers > len(self._ledger.values):
            raise StorageError(f"a fit to {answers} of {len(self._ledger.values)} answers.")
        self.surrogate = Surrogate.rebuild(fitted["surrogate"], self._config.domain)
        # The range of the answers then: this process may know of more by now.
        ends = [validation.real(value, "range") for value in fitted["range"]]
        self._range = (ends[0], ends[-1]) if ends else (-math.inf, math.inf)
        self.fitted_to, self._ahead = answers, None

    def forget(self) -> None:
        """An answer that was fitted has changed: the next ask fits again."""
        self.fitted_to, self._ahead = -1, None  # not 0: fit again even if no answer is left

    def _fit(self, previous: Surrogate | None) -> Surrogate:
        config, learned = self._config, self._config.covar_module
        assert isinstance(learned, Learned)
        return fit_surrogate(
            config.domain,
            config.answers(self._ledger.results()),
            seed=config.seed,
            previous=previous,
            warm_start=learned.warm_start,
            exact=config.exact,
            warp=learned.warp,
        )


F = TypeVar("F", bound=Callable[..., Any])


class Lock:
    """A reentrant lock; a copy of its owner gets a new one."""

    def __init__(self) -> None:
        self.held = threading.RLock()
        self.warned: list[str] = []  # warnings of lost accuracy that calls have given

    def __reduce__(self) -> tuple[type[Lock], tuple[()]]:
        return Lock, ()


def exclusive(method: F) -> F:
    """Make a method hold its object's lock (``_lock``), and warn only once of lost accuracy."""

    @functools.wraps(method)
    def alone(self: Any, *arguments: Any, **options: Any) -> Any:
        with self._lock.held, torch_settings(many_threads=self._domain.uses_threads):
            before = warned.set(self._lock.warned)
            try:
                return method(self, *arguments, **options)
            finally:
                warned.reset(before)

    return cast(F, alone)


def _has_text_keys(value: Any) -> bool:
    """Whether all dicts in a JSON-ready value have strings as keys."""
    if isinstance(value, dict):
        return all(isinstance(k, str) and _has_text_keys(v) for k, v in value.items())
    return not isinstance(value, list | tuple) or all(map(_has_text_keys, value))


class Run:
    """What every optimizer keeps, saves and loads: a configuration, and events replayed on it.

    Attributes:
        notes: the user's own JSON-ready values, kept with the state.
    """

    _observers: Sequence[TrialObserver]  # told of each change of a trial, in this order

    def __init_subclass__(cls, **options: Any) -> None:
        """Make constructors compute under the same PyTorch settings as calls."""
        super().__init_subclass__(**options)
        if "__init__" in vars(cls):
            usual = torch_settings(many_threads=True)
            cls.__init__ = usual(cls.__init__)  # type: ignore[method-assign]

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        with torch_settings(many_threads=True):  # tensors of inference mode could not be changed
            reduced = self.__reduce_ex__(4)
            return copy._reconstruct(self, memo, *reduced)  # type: ignore[attr-defined]

    def __init__(self, config: Config) -> None:
        if config.domain.like.is_inference():  # its tensors could not take part in gradients
            feasible = getattr(config.domain, "feasible", None)
            config.domain = copy.deepcopy(config.domain, {id(feasible): feasible})
        config.warn_of_raw_columns()
        self._config, self._domain, self._planned = config, config.domain, config.horizon
        self._lock = Lock()

    def _start(self) -> None:
        """Make the state of a run before its first event, sharing nothing with an earlier one."""
        self._config = copy.copy(self._config)  # since its horizon may be extended
        self._config.horizon = self._planned
        self._finished = False
        self.notes: dict[str, Any] = {}
        self._noted = "{}"
        self._ledger = Ledger()
        self._fitting = Fitting(self._config, self._ledger)
        self._feasibility = Feasibility(self._domain, exact=self.exact)
        self._observers = [self._feasibility]

    @property
    def domain(self) -> Domain:
        """Where points may be asked."""
        return self._domain

    @property
    def horizon(self) -> int | None:
        """How many asks are planned; None if no end is planned."""
        return self._config.horizon

    @property
    def maximize(self) -> bool:
        """Whether large values are good."""
        return self._config.maximize

    @property
    def exact(self) -> bool:
        """Whether evaluations have no noise; then no point with an answer is asked again."""
        return self._config.exact

    @exclusive
    def state_dict(self) -> dict[str, Any]:
        """Everything needed to resume the run, as plain values and tensors."""
        self._take_notes()
        header = self._header()
        copied = {name: array.clone() for name, array in self._array().items()}
        return header | copied | {"events": [event.record() for event in self._ledger.events()]}

    @exclusive
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Replace this optimizer's state by one of an optimizer made the same way.

        If this one was made with a longer horizon, the loaded run is extended to it.

        Raises:
            StorageError: if the state is malformed, or of another optimizer, domain or
                configuration; then nothing is changed.
        """
        states.check_state(state)
        if state["optimizer"] != type(self).__name__:
            raise StorageError(
                f"The state is of a {state['optimizer']}, this is a {type(self).__name__}."
            )
        stored = {key: state[key] for key in ("points", "bounds") if key in state}
        loaded, stored_horizon = copy.copy(self), state["config"].get("horizon")
        # Only an int: a float would be compared with every number of the range.
        if isinstance(stored_horizon, int) and stored_horizon in range(1, self._planned or 0):
            loaded._planned = stored_horizon
        loaded._start()
        states.check_same(
            self._array() | loaded._described(),
            stored | state["config"],
            # Hyperparameters in single precision are transformed when they are stored.
            tolerance=1e-9 if self._domain.like.dtype is torch.float64 else 1e-5,
        )
        loaded._replay(read_events(state["events"], self._domain))
        horizon = loaded.horizon
        if horizon is not None and len(loaded._ledger) > horizon:
            raise StorageError(
                f"{len(loaded._ledger)} trials are stored for a horizon of {horizon}."
            )
        loaded._noted = json.dumps(state["notes"])
        loaded.notes = json.loads(loaded._noted)
        if horizon is not None and self._planned is not None and horizon < self._planned:
            loaded._happen("extended", data={"horizon": self._planned})
        self.__dict__.update(loaded.__dict__)

    @exclusive
    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the state, or its changes since the last save, to an SQLite file: one transaction.

        Args:
            path: the file; it is made if it does not exist.
            overwrite: replace a file that holds another study, or another continuation of this one.

        Raises:
            StorageError: if the file cannot be written, is not a study, holds another one, or is
                used by ``run`` with another optimizer; also if ``notes`` cannot be written, once
                all else is.
        """
        try:
            self._take_notes()
        finally:
            sqlite.save(path, self._header(), self._ledger, overwrite=overwrite, user=self)

    def _take_notes(self) -> None:
        """Make an event of changed notes; StorageError if they are not JSON-ready."""
        try:
            if not isinstance(self.notes, dict):
                raise TypeError(f"they are a {type(self.notes).__name__}, not a dict")
            notes = json.dumps(self.notes, allow_nan=False)
            if not _has_text_keys(self.notes):
                raise TypeError("keys must be strings, since a file turns others into strings")
        except (TypeError, ValueError, RecursionError) as error:
            raise StorageError(f"notes must be JSON-ready: {error}.") from error
        if notes != self._noted:  # an event, so that another copy's notes do not replace them
            self._happen("noted")
            self._noted = notes

    def _header(self) -> dict[str, Any]:
        """The state without its events."""
        return {
            "format": states.FORMAT,
            "optimizer": type(self).__name__,
            **self._array(),
            "config": self._described(),
            "notes": json.loads(self._noted),
        }

    def _array(self) -> dict[str, Tensor]:
        """The tensor of the domain, under its name in a state."""
        return {"points" if self._domain.count is not None else "bounds": self._domain.like}

    def _happen(
        self,
        kind: str,
        value: float | None = None,
        data: Mapping[str, Any] | None = None,
        trial: int | None = None,
    ) -> None:
        self._apply(Event(kind, time.time(), trial, value, data or {}))

    def _apply(self, event: Event) -> None:
        """Apply an event, as it happens or when it is replayed: nothing is decided here."""
        ledger, kind = self._ledger, event.kind
        if kind in ("corrected", "detached"):
            self._fitting.forget()
        news: tuple[Any, ...]
        if kind == "asked":
            news = ledger.ask(event, self._domain), event.data
        elif kind in SETTLED:
            kind, news = "settled", (ledger.settle(event),)
        elif kind == "corrected":
            news = ledger.correct(event)
        elif kind == "attached":
            news = (ledger.attach(event, self._domain),)
        elif kind == "detached":
            news = (ledger.detach(event),)
        else:
            self._apply_decided(event)
            ledger.append(event)
            return
        for observer in self._observers:  # their methods have the names of the kinds
            getattr(observer, kind)(*news)

    def _replay(self, events: Iterable[Event]) -> None:
        """Apply stored events in order; StorageError if one does not fit the state."""
        for number, event in enumerate(events):
            try:
                self._apply(event)
            except Warning:  # the user has turned warnings into errors
                raise
            except Exception as error:  # whatever a forged event leads to
                raise StorageError(
                    f"Stored event {number}, {event.kind}, cannot be applied: {truncated(error)}"
                ) from error

    def _apply_decided(self, event: Event) -> None:
        """Apply an event that concerns neither a trial nor an attached result."""
        if event.kind == "finished":
            self._finished = True
        elif event.kind == "extended":
            horizon, before, finished = event.data["horizon"], self.horizon, self._finished
            if horizon is not None:
                horizon = validation.whole(horizon, "horizon", 1)
            goes_on = finished and horizon == before  # as it was planned
            if not (goes_on or (before and horizon and horizon > before)):
                raise StorageError(f"a horizon of {before} cannot be extended to {horizon}.")
            self._config.horizon, self._finished = horizon, False
            try:  # the last first: only that one can fail, and then no observer has changed
                for observer in reversed(self._observers):
                    observer.extended(before)
            except BaseException:
                self._config.horizon, self._finished = before, finished
                raise
        elif event.kind == "fitted":
            self._fitting.take(event.data)
        elif event.kind != "noted":
            raise StorageError(f"A {type(self).__name__} has no such event.")

    def _fit_if_due(self) -> None:
        """Fit kernel and noise again, if that is due."""
        surrogate = self._fitting.upcoming()
        if surrogate is not self._fitting.surrogate:
            values = self._ledger.values
            fitted = {"surrogate": surrogate.describe(), "answers": len(values)}
            self._happen("fitted", data={**fitted, "range": [*values[:1], *values[-1:]]})

    def _described(self) -> dict[str, Any]:
        """What it was made with, JSON-ready."""
        return self._config.describe() | {"horizon": self._planned} | self._domain.describe()
