"""Trials, and the ledger in which asks and answers are kept."""

from __future__ import annotations

import enum
import hashlib
import itertools
import operator
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from botorch_delay.exceptions import StorageError, TrialError
from botorch_delay.history.columns import FIELDS, Columns
from botorch_delay.history.events import KINDS, Event, brief, chained, finite, whole

LINKS = 8  # of a chain of digests that are kept


class TrialState(enum.Enum):
    """Where a trial stands."""

    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    ABANDONED = "abandoned"


_STATES = tuple(TrialState)
_CODES = {state: code for code, state in enumerate(_STATES)}


class Trial:
    """One ask and what became of it; optimizers make them.

    It is read-only to its holder and kept up to date by the optimizer that handed it out.

    Args:
        columns: the fields of all trials of a run.
        row: of this one.
    """

    __slots__ = ("_columns", "_row")

    def __init__(self, columns: Columns, row: int) -> None:
        self._columns, self._row = columns, row

    def _move(self, columns: Columns) -> None:
        """Become the next row of other columns."""
        self._row = columns.append(self.source, **self._fields())
        self._columns = columns

    def _fields(self) -> dict[str, Any]:
        """As columns take them."""
        return {name: getattr(self, name) for name in FIELDS} | {"state": _CODES[self.state]}

    @property
    def id(self) -> int:
        """Counted from 0."""
        return self._columns.whole["id"][self._row]

    @property
    def source(self) -> Tensor:
        """Where the point is: ``N x d``, of which it is row ``index``, or the point itself, ``d``.

        Kept in place of a tensor for each of many trials.
        """
        return self._columns.source[self._row]

    @property
    def index(self) -> int | None:
        """Row of the point in a finite domain; None on a box."""
        return self._columns.whole_or_none("index", self._row)

    @property
    def round(self) -> int:
        """Counted from 1."""
        return self._columns.whole["round"][self._row]

    @property
    def slot(self) -> int:
        """Which design point of the round it serves, counted from 0; below 0 for none."""
        return self._columns.whole["slot"][self._row]

    @property
    def state(self) -> TrialState:
        """Where it stands."""
        return _STATES[self._columns.state[self._row]]

    @property
    def value(self) -> float | None:
        """The answer as it was told, or None."""
        return self._columns.real_or_none("value", self._row)

    @property
    def noise_var(self) -> float | None:
        """The known noise variance of the answer, or None."""
        return self._columns.real_or_none("noise_var", self._row)

    @property
    def late(self) -> bool:
        """Whether it was answered after it had been abandoned."""
        return bool(self._columns.late[self._row])

    @property
    def reason(self) -> str:
        """Why it failed."""
        return self._columns.reason.get(self._row, "")

    @property
    def asked_at(self) -> float:
        """Seconds since the epoch (UTC)."""
        return self._columns.real["asked_at"][self._row]

    @property
    def answered_at(self) -> float | None:
        """When it was answered, failed or was abandoned; None while it runs."""
        return self._columns.real_or_none("answered_at", self._row)

    @property
    def answered_step(self) -> int | None:
        """How many asks had been made by then, in steps.

        None while it runs.
        """
        return self._columns.whole_or_none("answered_step", self._row)

    @property
    def delay(self) -> int | None:
        """The asks between its own and its answer, in steps; None without an answer."""
        step = self.answered_step
        if self.state is not TrialState.COMPLETED or step is None:
            return None
        return step - 1 - self.id

    @property
    def x(self) -> Tensor:
        """The point, a tensor of shape ``d``; a new one each time, free to be changed."""
        return self._own.clone()

    @property
    def _own(self) -> Tensor:
        return self.source if self.source.dim() == 1 else self.source[self.index]

    def __getstate__(self) -> dict[str, Any]:
        """What copies and other processes get: the point alone, not the domain it is in."""
        return {"source": self.x, **self._fields()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._columns = Columns()
        self._row = self._columns.append(**state)

    def record(self) -> dict[str, Any]:
        """Every field as plain numbers and strings, and the point as ``x``."""
        fields = {name: getattr(self, name) for name in FIELDS}
        return fields | {"x": self._own.tolist(), "state": self.state.value}

    def __repr__(self) -> str:
        value = "" if self.value is None else f", value={self.value:g}"
        return (
            f"Trial(id={self.id}, index={self.index}, round={self.round}, "
            f"{self.state.value}{value})"
        )


@dataclass(frozen=True, eq=False, slots=True)
class Attached:
    """A result that was obtained elsewhere.

    Attributes:
        x: the point, a tensor of shape ``d``; it need not lie in the domain.
        index: its row in a finite domain, or None.
        value: its value, in the user's sign.
    """

    x: Tensor
    index: int | None
    value: float


@dataclass(frozen=True)
class Choice:
    """A point to ask and what it is asked for.

    Attributes:
        index: its row in a finite domain; None on a box.
        round: counted from 1.
        slot: which design point of the round it serves.
        x: the point on a box, ``d``.
        data: what else is to be known of the ask, JSON-ready.
    """

    index: int | None
    round: int
    slot: int
    x: Tensor | None = None
    data: Mapping[str, Any] = field(default_factory=dict)


class Ledger:
    """The events of a run in order, and the trials and attached results that they made.

    Events are packed: what the columns of the trials say of one is not kept twice.

    Args:
        origin: what the run is of; with the events it makes their chain of digests.
    """

    def __init__(self, origin: str) -> None:
        self._columns = Columns()
        self.trials: list[Trial] = []
        self.attached: list[Attached] = []
        self._kinds = bytearray()
        self._subjects = array("q")  # the trial, or the attached result, that an event is of
        self._whole: dict[int, Event] = {}  # events that the columns do not tell
        self._origin = hashlib.blake2b(origin.encode(), digest_size=16).digest()
        self._chain: dict[int, bytes] = {}  # digests by the number of events, of the last uses
        self._seen: tuple[int, set[tuple[float, ...]]] = (0, set())  # of so many attached results

    def __getitem__(self, trial_id: int) -> Trial:
        return self.trials[trial_id]

    def __len__(self) -> int:
        return len(self.trials)

    @property
    def event_count(self) -> int:
        """How many events there are."""
        return len(self._kinds)

    def events(self, start: int = 0) -> Iterator[Event]:
        """The events from some number on."""
        for number in range(start, len(self._kinds)):
            yield self._whole.get(number) or self._unpacked(number)

    def digest(self, count: int) -> str:
        """The digest of the first so many events."""
        if count and count not in self._chain:
            known = max((number for number in self._chain if number <= count), default=0)
            for _ in itertools.islice(self.linked(known), count - known):
                pass
        return (self._chain[count] if count else self._origin).hex()

    def linked(self, start: int) -> Iterator[tuple[Event, str]]:
        """The events from some number on, each with the digest of all up to it."""
        link = bytes.fromhex(self.digest(start))
        for number, event in enumerate(self.events(start), start + 1):
            link = chained(link, event)
            self._know(number, link)
            yield event, link.hex()

    def know_digest(self, digest: str) -> None:
        """Take the digest of all events from where they were stored; ValueError if it is none."""
        link = bytes.fromhex(digest)
        if len(link) != len(self._origin):
            raise ValueError(f"the digest is {brief(digest)}")
        self._know(len(self._kinds), link)

    def _know(self, count: int, link: bytes) -> None:
        self._chain.pop(count, None)
        self._chain[count] = link
        if len(self._chain) > LINKS:
            del self._chain[next(iter(self._chain))]

    def ask(self, event: Event, like: Tensor) -> Trial:
        """Append a trial that was asked.

        Args:
            event: of the ask.
            like: the points of a finite domain, or a tensor of a box's kind.

        Raises:
            StorageError: if its id is not the next one.
        """
        if event.trial != len(self.trials):
            raise StorageError(f"trial {event.trial} was asked after {len(self.trials)} others.")
        data = event.data
        index, round_number, slot = data["point"], data["round"], data["slot"]
        self._columns.truncate(len(self.trials))  # what an interrupt left of an ask
        row = self._columns.append(
            like.new_tensor(data["x"]) if index is None else like,
            id=event.trial,
            index=index,
            round=whole(round_number, 1),
            slot=whole(slot, -2),
            asked_at=event.time,
        )
        trial = Trial(self._columns, row)
        self.trials.append(trial)
        self._append(event, event.trial, packed=len(data) == 4)
        return trial

    def settle(self, event: Event) -> Trial:
        """Enter what became of a trial.

        Raises:
            StorageError: if the trial is unknown, or cannot be settled so.
        """
        if event.trial is None or event.trial >= len(self.trials):
            raise StorageError(f"trial {event.trial} is {event.kind} and was never asked.")
        trial, before, data = self.trials[event.trial], self.trials[event.trial].state, event.data
        late = before is TrialState.ABANDONED and event.kind == "completed"
        if before is not TrialState.RUNNING and not late:
            raise StorageError(f"trial {trial.id} is {event.kind} after it was {before.value}.")
        noise_var, reason = data.get("noise_var"), data.get("reason", "")
        if not isinstance(reason, str) or not (noise_var is None or finite(noise_var) > 0.0):
            raise ValueError(f"noise_var is {brief(noise_var)}, reason is {brief(reason)}")
        self._columns.change(
            trial._row,
            state=_CODES[TrialState(event.kind)],
            value=event.value,
            noise_var=noise_var,
            late=late,
            reason=reason,
            answered_at=event.time,
            answered_step=len(self.trials),
        )
        self._append(event, trial.id, packed=event.kind != "abandoned")  # its time may be replaced
        return trial

    def attach(self, event: Event, like: Tensor) -> Attached:
        """Append a result obtained elsewhere."""
        assert event.value is not None
        x = like.new_tensor(event.data["x"])
        self.attached.append(Attached(x, event.data["point"], event.value))
        self._append(event, len(self.attached) - 1, packed=False)
        return self.attached[-1]

    def append(self, event: Event) -> None:
        """Append an event that is of no trial."""
        self._append(event, 0, packed=False)

    def repeated(self, last: int) -> int:
        """How many of the last so many attached results had been attached before."""
        count, seen = self._seen
        repeats, first = 0, len(self.attached) - last
        for number, result in enumerate(self.attached[count:], count):
            before = len(seen)
            seen.add((*result.x.tolist(), result.value))
            repeats += number >= first and len(seen) == before
        self._seen = (len(self.attached), seen)
        return repeats

    def find(self, trial: Trial | int) -> Trial:
        """The trial that is meant by a trial or its id.

        Raises:
            TrialError: if there is none, or if it belongs to another optimizer.
        """
        trial_id = trial.id if isinstance(trial, Trial) else _as_id(trial)
        if not 0 <= trial_id < len(self.trials):
            known = f"0 to {len(self.trials) - 1}" if self.trials else "none yet"
            raise TrialError(f"There is no trial {trial_id} here; known ids: {known}.")
        own = self.trials[trial_id]
        if isinstance(trial, Trial) and not _same_ask(own, trial):
            raise TrialError(
                f"Trial {trial_id} was asked by another optimizer; tell it there, or use "
                "attach(x, y) to hand over its result."
            )
        return own

    def running(self) -> Iterator[Trial]:
        """Trials without an answer, failure or abandonment, in the order of their ids."""
        return map(self.trials.__getitem__, self._rows_in(TrialState.RUNNING))

    def answered(self) -> list[int]:
        """Ids of the trials with an answer, increasing."""
        return self._rows_in(TrialState.COMPLETED)

    @property
    def answer_count(self) -> int:
        """How many trials have an answer."""
        return self._columns.count_in(_CODES[TrialState.COMPLETED], len(self.trials))

    def values(self, ids: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Answers of some trials and their known noise variances, in double precision.

        NaN where there is none.
        """
        gather = self._columns.gather_real
        return gather("value", ids), gather("noise_var", ids)

    def indices(self, ids: Sequence[int]) -> Tensor:
        """Rows of the points of some trials in their finite domain, a LongTensor."""
        return self._columns.gather_whole("index", ids)

    def _rows_in(self, state: TrialState) -> list[int]:
        return self._columns.rows_in(_CODES[state], len(self.trials))

    def _append(self, event: Event, subject: int, *, packed: bool) -> None:
        if not packed:
            self._whole[len(self._kinds)] = event
        self._subjects.append(subject)
        self._kinds.append(KINDS.index(event.kind))

    def _unpacked(self, number: int) -> Event:
        """An event that the columns tell."""
        kind, trial = KINDS[self._kinds[number]], self.trials[self._subjects[number]]
        if kind == "asked":
            place: dict[str, Any] = {"x": trial._own.tolist(), "point": trial.index}
            place |= {"round": trial.round, "slot": trial.slot}
            return Event(kind, trial.asked_at, trial.id, data=place)
        said = {"noise_var": trial.noise_var, "reason": trial.reason}
        assert trial.answered_at is not None
        data = {name: value for name, value in said.items() if value}  # a variance is above 0
        return Event(kind, trial.answered_at, trial.id, trial.value, data)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_columns"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._columns = Columns()  # a copied trial has some of its own
        for trial in self.trials:
            trial._move(self._columns)


def _as_id(value: Any) -> int:
    try:
        if isinstance(value, bool):
            raise TypeError
        return operator.index(value)
    except TypeError:
        raise TrialError(
            f"Expected a Trial or its id, got {type(value).__name__}; ask() returns trials."
        ) from None


def _same_ask(own: Trial, other: Trial) -> bool:
    return own is other or (
        (own.index, own.round, own.asked_at) == (other.index, other.round, other.asked_at)
        and torch.equal(own._own.cpu(), other._own.cpu())
    )
