"""Trials, and the ledger that keeps asks and answers."""

from __future__ import annotations

import bisect
import enum
import math
import operator
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch
from torch import Tensor

from botorch_delay.domains.columns import Columns
from botorch_delay.domains.domain import Domain
from botorch_delay.domains.values import text_of
from botorch_delay.exceptions import StorageError, TrialError
from botorch_delay.history.events import Event, excerpt

# With ENOUGH_ANSWERS others, an answer is suspect if it is FAR standard deviations away from all.
# If all have one sign, its logarithm must also be FAR_IN_LOGS deviations of their logarithms away:
# of 300 runs with 60 log-normal answers each, one had a suspect answer.
FAR, FAR_IN_LOGS, ENOUGH_ANSWERS = 8.0, 3.0, 8


class TrialState(enum.Enum):
    """The state of a trial."""

    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    ABANDONED = "abandoned"


@dataclass(frozen=True, slots=True)
class Correction:
    """What was reported for a trial before it was corrected.

    Attributes:
        value: its answer then, in the user's units and sign; None where it had failed.
        failure: why it had failed.
        reason: why it was corrected.
        corrected_at: when, in seconds since the epoch.
        corrected_step: how many asks had been made by then, in steps.
    """

    value: float | None
    failure: str
    reason: str
    corrected_at: float
    corrected_step: int


class _Placed:
    """A point that was asked, or evaluated elsewhere: trials and attached results."""

    __slots__ = ()
    source: Tensor
    index: int | None
    device: torch.device

    @property
    def x(self) -> Tensor:
        """The point, ``d``; a new tensor each time."""
        return self.point.to(self.device, copy=True)

    @property
    def point(self) -> Tensor:
        """The point, ``d``, on the CPU; it must not be written to."""
        return self.source if self.source.dim() == 1 else self.source[self.index]


@dataclass(frozen=True, eq=False, repr=False, slots=True)
class Trial(_Placed):
    """One ask and what became of it, kept up to date by the optimizer that made it.

    It is read-only. A copy keeps the state that the trial had when it was copied.

    Attributes:
        id: counted from 0.
        source: all points of a finite domain, ``N x d``, shared by its trials, of which row
            ``index`` is the point; or the point itself, ``d``.
        device: the device of ``x``.
        columns: what the point's numbers stand for.
        index: row of the point in a finite domain; None on a box.
        round: counted from 1.
        slot: which design point of the round it serves, counted from 0; below 0 for none. For an
            optimizer without design points, its own count.
        asked_at: seconds since the epoch (UTC).
        state: running, completed, failed or abandoned.
        value: the answer as told, or corrected last; None without one.
        noise_var: the known noise variance of the answer, or None.
        came_back: whether it was answered after it had been abandoned; such an answer serves no
            design point.
        reason: why it failed or was abandoned.
        told_at: when its answer, failure or abandonment was told; None while it runs.
        told_step: how many asks had been made by then, in steps; None while it runs.
        corrections: what was reported before each correction, oldest first.
    """

    id: int
    source: Tensor
    device: torch.device
    columns: Columns
    index: int | None
    round: int
    slot: int
    asked_at: float
    state: TrialState = TrialState.RUNNING
    value: float | None = None
    noise_var: float | None = None
    came_back: bool = False
    reason: str = ""
    told_at: float | None = None
    told_step: int | None = None
    corrections: tuple[Correction, ...] = ()

    @property
    def params(self) -> dict[str, Any]:
        """The point's values by name: of a space's parameters, else the columns' numbers."""
        return self.columns.params(self.point)

    @property
    def delay(self) -> int | None:
        """How many asks were made between its own and its first answer; None without an answer."""
        step = self.known_step
        return None if step is None else step - 1 - self.id

    @property
    def known_step(self) -> int | None:
        """How many asks had been made when a value was first told, in steps; None without one."""
        if self.value is None:
            return None
        return self.corrections[0].corrected_step if self._failed_first else self.told_step

    @property
    def known_at(self) -> float | None:
        """When a value was first told, in seconds since the epoch (UTC); None without one."""
        if self.value is None:
            return None
        return self.corrections[0].corrected_at if self._failed_first else self.told_at

    @property
    def _failed_first(self) -> bool:
        return bool(self.corrections) and self.corrections[0].value is None

    def _ask(self) -> tuple[Any, ...]:
        return self.index, self.round, self.asked_at, self.point.tolist()

    def _become(self, **values: Any) -> None:
        # The state changes last, or first if the value is removed, so that no other thread sees a
        # completed trial without a value.
        loses_value = self.value is not None and values.get("value", 0.0) is None
        for name in sorted(values, key=lambda name: (name == "state") is not loses_value):
            object.__setattr__(self, name, values[name])

    def __reduce__(self) -> tuple[Any, ...]:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return Trial, tuple((values | {"source": self.point.clone()}).values())

    def __repr__(self) -> str:
        value = "" if self.value is None else f", value={self.value:g}"
        place = f"index={self.index}"
        if self.columns.named or self.index is None:
            place = ", ".join(f"{name}={text_of(v)}" for name, v in self.params.items())
        return f"Trial(id={self.id}, {place}, round={self.round}, {self.state.value}{value})"


@dataclass(frozen=True, eq=False, slots=True)
class Attached(_Placed):
    """A result that was obtained elsewhere.

    Attributes:
        x: its point, shape ``d``, which need not lie in the domain; a copy each time.
        index: its row in a finite domain, or None.
        value: the result, in the user's units and sign.
        noise_var: the known noise variance of the result, or None.
        id: counted from 0, those that were detached included.
        told_at: when it was attached, in seconds since the epoch.
        told_step: how many asks had been made by then, in steps.
        detached_at: when it was detached, as ``told_at``; None while it counts.
        reason: why it was detached.
    """

    source: Tensor
    device: torch.device  # of ``x``
    index: int | None
    value: float
    noise_var: float | None = None
    id: int = 0
    told_at: float = 0.0
    told_step: int = 0
    detached_at: float | None = None
    reason: str = ""


@dataclass(frozen=True)
class Suggestion:
    """A point to ask, and the design point that it serves."""

    place: int | Tensor  # its row in a finite domain; on a box the point, ``d``
    round: int  # counted from 1
    slot: int  # as in ``Trial``
    data: Mapping[str, Any] = field(default_factory=dict)  # further data of the event, JSON-ready


class TrialObserver:
    """A part of an optimizer's state, told what happens to trials and to attached results.

    The ledger has entered it by then.
    """

    def asked(self, trial: Trial, data: Mapping[str, Any]) -> None:
        """A trial was asked, with the data of the event."""

    def settled(self, trial: Trial) -> None:
        """A trial was answered, failed or abandoned."""

    def corrected(self, trial: Trial, before: TrialState) -> None:
        """A trial's value or failure was corrected."""
        self.settled(trial)

    def attached(self, result: Attached) -> None:
        """A result came from elsewhere."""

    def detached(self, result: Attached) -> None:
        """A result from elsewhere was taken back."""

    def extended(self, before: int | None) -> None:
        """More asks are planned than ``before``, or the same number and a finished run goes on."""


class Ledger:
    """The events of a run in order, and the trials and attached results they made."""

    def __init__(self) -> None:
        self.trials: list[Trial] = []
        self.attached: list[Attached] = []
        self.detached: list[Attached] = []
        # The number of trials. Equal integers share one object, here and in ``ask``: separate ones
        # would be a tenth of the memory of a trial.
        self._count = 0
        self._running: dict[int, Trial] = {}
        self.values: list[float] = []  # of all answers and attached results, increasing
        # To save memory an ask is stored as its trial, an answer or failure as the trial's id.
        self._events: list[Event | Trial | int] = []

    def __getitem__(self, trial_id: int) -> Trial:
        return self.trials[trial_id]

    def __len__(self) -> int:
        return len(self.trials)

    @property
    def event_count(self) -> int:
        """The number of events."""
        return len(self._events)

    @property
    def answer_count(self) -> int:
        """The number of trials with an answer."""
        return len(self.values) - len(self.attached)

    def events(self, start: int = 0) -> Iterator[Event]:
        """The events from number ``start`` on."""
        for entry in self._events[start:]:
            if isinstance(entry, Event):
                yield entry
            elif isinstance(entry, Trial):
                x, row = entry.point.tolist(), entry.index
                place = {"x": x, "point": row, "round": entry.round, "slot": entry.slot}
                yield Event("asked", entry.asked_at, entry.id, data=place)
            else:
                trial = self.trials[entry]
                assert trial.told_at is not None
                said = {"noise_var": trial.noise_var, "reason": trial.reason}
                data = {name: told for name, told in said.items() if told}  # variances are above 0
                yield Event(trial.state.value, trial.told_at, entry, trial.value, data)

    def ask(self, event: Event, domain: Domain) -> Trial:
        """Append a trial that was asked; StorageError if its id is not the next one."""
        number, data = self._count, event.data
        if event.trial != number:
            raise StorageError(f"trial {event.trial} was asked after {number} others.")
        index = data["point"]
        if index is None:  # on the CPU: comparing it waits for no device
            source = torch.tensor(data["x"], dtype=domain.like.dtype)
        else:
            source = domain.on_cpu
        slot = data["slot"]
        if 0 <= slot < number:
            slot = self.trials[slot].id
        place = source, domain.device, domain.columns, index
        trial = Trial(number, *place, data["round"], slot, asked_at=event.time)
        self.trials.append(trial)
        self._count = number + 1
        self._running[number] = trial
        self._events.append(trial if len(data) == 4 else event)
        return trial

    def settle(self, event: Event) -> Trial:
        """Enter an answer, failure or abandonment; StorageError if its trial cannot have it."""
        trial = self._of(event)
        before, data = trial.state, event.data
        revised = before is TrialState.ABANDONED and event.kind == "completed"
        if before is not TrialState.RUNNING and not revised:
            raise StorageError(f"trial {trial.id} is {event.kind} after it was {before.value}.")
        trial._become(
            state=TrialState(event.kind),
            value=event.value,
            noise_var=data.get("noise_var"),
            came_back=revised,
            reason=data.get("reason", ""),
            told_at=event.time,
            told_step=self._count,
        )
        self._running.pop(trial.id, None)
        if trial.value is not None:
            bisect.insort(self.values, trial.value)
        # The event of an abandoned trial is kept: an answer may still change the trial.
        self._events.append(event if trial.state is TrialState.ABANDONED else trial.id)
        return trial

    def correct(self, event: Event) -> tuple[Trial, TrialState]:
        """Correct a trial; returns it and its old state. StorageError without answer or failure."""
        trial, reason = self._of(event), event.data.get("reason", "")
        before = trial.state
        answered, failed = event.value is not None, before is TrialState.FAILED
        if before is not TrialState.COMPLETED and not (failed and answered):
            raise StorageError(f"trial {trial.id} is corrected but was {before.value}.")
        if not trial.corrections:  # keep the first report: the trial will not have it
            place = self._events.index(trial.id)
            self._events[place] = next(self.events(place))
        said = Correction(trial.value, trial.reason, reason, event.time, len(self.trials))
        trial._become(
            state=TrialState.COMPLETED if answered else TrialState.FAILED,
            value=event.value,
            came_back=trial.came_back and answered,
            reason="" if answered else reason,
            corrections=(*trial.corrections, said),
        )
        if said.value is not None:
            self.values.remove(said.value)
        if event.value is not None:
            bisect.insort(self.values, event.value)
        self._events.append(event)
        return trial, before

    def _of(self, event: Event) -> Trial:
        if event.trial is None or event.trial >= len(self.trials):
            raise StorageError(f"trial {event.trial} is {event.kind} but was never asked.")
        return self.trials[event.trial]

    def attach(self, event: Event, domain: Domain) -> Attached:
        """Append a result obtained elsewhere."""
        assert event.value is not None
        x = torch.tensor(event.data["x"], dtype=domain.like.dtype)
        number, noise_var = len(self.attached) + len(self.detached), event.data.get("noise_var")
        told = x, domain.device, event.data["point"], event.value, noise_var
        self.attached.append(Attached(*told, number, event.time, len(self.trials)))
        self._events.append(event)
        bisect.insort(self.values, event.value)
        return self.attached[-1]

    def detach(self, event: Event) -> Attached:
        """Detach a result; StorageError if it is not attached."""
        number, reason = event.data["id"], event.data.get("reason", "")
        places = [place for place, result in enumerate(self.attached) if result.id == number]
        if not places:
            raise StorageError(f"result {excerpt(number)} is detached but was not attached.")
        result = self.attached.pop(places[0])
        self.detached.append(replace(result, detached_at=event.time, reason=reason))
        self._events.append(event)
        self.values.remove(result.value)
        return result

    def append(self, event: Event) -> None:
        """Append an event that concerns no trial."""
        self._events.append(event)

    def repeated(self, last: int) -> int:
        """How many of the ``last`` results attached most recently repeat earlier ones."""
        results = [(*result.point.tolist(), result.value) for result in self.attached]
        return last - len(set(results)) + len(set(results[:-last]))

    def find(self, trial: Trial | int) -> Trial:
        """This run's trial, from a trial or its id; TrialError if there is none."""
        trial_id = trial.id if isinstance(trial, Trial) else _as_id(trial)
        if not 0 <= trial_id < len(self.trials):
            known = f"0 to {len(self.trials) - 1}" if self.trials else "none yet"
            raise TrialError(f"There is no trial {trial_id} here; known ids: {known}.")
        own = self.trials[trial_id]
        if isinstance(trial, Trial) and own is not trial and own._ask() != trial._ask():
            raise TrialError(
                f"Trial {trial_id} was asked by another optimizer; tell it there, or use "
                "attach(x, y) to hand over its result."
            )
        return own

    def far(self, value: float, than: Trial | Attached | None = None) -> str:
        """Why a value, in the user's sign, is suspect; empty if it is not.

        A suspect value is more than ``FAR`` standard deviations away from all other answers
        (leaving out that of ``than``), and further away than they are from each other: near an
        optimum answers crowd, and one from elsewhere is many deviations away. Values of one sign
        may span decades, so then its logarithm must be far away, too.
        """
        values = self.values
        if than is not None and than.value is not None:
            values = list(values)
            values.remove(than.value)
        if len(values) < ENOUGH_ANSWERS:
            return ""
        beyond, spread = max(values[0] - value, value - values[-1]), values[-1] - values[0]
        if beyond <= spread:
            return ""
        deviation = statistics.pstdev(values)
        if not deviation > 0.0 or beyond <= FAR * deviation:
            return ""
        if values[0] * values[-1] > 0.0 and value * values[0] > 0.0:
            logs, here = [math.log(abs(other)) for other in values], math.log(abs(value))
            if min(abs(here - log) for log in logs) <= FAR_IN_LOGS * statistics.pstdev(logs):
                return ""
        return (
            f"lies far from all {len(values)} other answers, which are between {values[0]:g} and "
            f"{values[-1]:g}"
        )

    def running(self) -> list[Trial]:
        """Running trials in the order of their ids."""
        return list(self._running.values())

    def answered(self) -> list[Trial]:
        """Trials with an answer, in the order of their ids."""
        return [trial for trial in self.trials if trial.state is TrialState.COMPLETED]

    def results(self) -> list[Trial | Attached]:
        """Trials with an answer, and attached results."""
        return [*self.answered(), *self.attached]


def _as_id(value: Any) -> int:
    try:
        if isinstance(value, bool):
            raise TypeError
        return operator.index(value)
    except TypeError:
        kind = f"{type(value).__module__}.{type(value).__name__}".removeprefix("builtins.")
        raise TrialError(
            f"Expected a Trial or its id, got {kind}; ask() returns a trial, and ask(n) a list, "
            "whose trials are told one by one. A result that no trial asked for is handed over "
            "with attach(x, y)."
        ) from None
