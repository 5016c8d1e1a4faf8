"""Trials, and the ledger in which asks and answers are kept."""

from __future__ import annotations

import copy
import enum
import hashlib
import json
import operator
import time
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from botorch_delay.exceptions import StorageError, TrialError
from botorch_delay.history.columns import FIELDS, Columns

DIGEST_BYTES = 16
NO_TRIAL = -1  # of a change that is not of a trial


class TrialState(enum.Enum):
    """Where a trial stands."""

    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    ABANDONED = "abandoned"


_STATES = tuple(TrialState)
_CODES = {state: code for code, state in enumerate(_STATES)}


class Trial:
    """One ask and what became of it.

    It is read-only to its holder and kept up to date by the optimizer that handed it out.

    Args:
        id: counted from 0.
        source: where the point is: ``N x d``, of which it is row ``index``, or the point itself,
            ``d``. Kept in place of a tensor for each of many trials.
        index: row of the point in a finite domain; None on a box.
        round: counted from 1.
        slot: which design point of the round it serves, counted from 0; below 0 for none.
        state: where it stands.
        value: the answer, or None.
        noise_var: the known noise variance of the answer, or None.
        late: whether it was answered after it had been abandoned.
        reason: why it failed.
        asked_at: seconds since the epoch (UTC); now if None.
        answered_at: likewise, or None.
        answered_step: how many asks had been made when it was answered, or None.
    """

    __slots__ = ("_columns", "_row")

    def __init__(
        self,
        id: int,
        source: Tensor,
        index: int | None,
        round: int,
        slot: int,
        state: TrialState = TrialState.RUNNING,
        value: float | None = None,
        noise_var: float | None = None,
        late: bool = False,
        reason: str = "",
        asked_at: float | None = None,
        answered_at: float | None = None,
        answered_step: int | None = None,
    ) -> None:
        self._columns = Columns()
        self._row = self._columns.append(
            source,
            id=id,
            index=index,
            round=round,
            slot=slot,
            state=_CODES[state],
            value=value,
            noise_var=noise_var,
            late=late,
            reason=reason,
            asked_at=time.time() if asked_at is None else asked_at,
            answered_at=answered_at,
            answered_step=answered_step,
        )

    @classmethod
    def _at(cls, columns: Columns, row: int) -> Trial:
        """The trial of a row."""
        trial = cls.__new__(cls)
        trial._columns, trial._row = columns, row
        return trial

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
        """Where the point is: ``N x d``, of which it is row ``index``, or the point itself."""
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
        """The trial as plain numbers and strings."""
        return {
            "id": self.id,
            "x": self._own.tolist(),
            "point": self.index,
            "round": self.round,
            "slot": self.slot,
            "state": self.state.value,
            "value": self.value,
            "noise_var": self.noise_var,
            "late": self.late,
            "reason": self.reason,
            "asked_at": self.asked_at,
            "answered_at": self.answered_at,
            "answered_step": self.answered_step,
        }

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

    def record(self) -> dict[str, Any]:
        """The result as plain numbers."""
        return {"x": self.x.tolist(), "point": self.index, "value": self.value}


@dataclass(frozen=True)
class Choice:
    """A point to ask and what it is asked for.

    Attributes:
        index: its row in a finite domain; None on a box.
        round: counted from 1.
        slot: which design point of the round it serves.
        x: the point on a box, ``d``.
    """

    index: int | None
    round: int
    slot: int
    x: Tensor | None = None


class Ledger:
    """Every trial and every attached result, in order, and the number of changes so far.

    Each change extends a chain of digests. A file that holds the digest of an earlier change
    is thereby known to hold an earlier state of this very ledger, so that only what changed
    since needs to be written.
    """

    def __init__(self, origin: str) -> None:
        self._columns = Columns()
        self.trials: list[Trial] = []
        self.attached: list[Attached] = []
        # One entry for each revision since the first that is known, packed: there are many.
        self._digests = bytearray(_digest(origin))
        self._changed = array("q", [NO_TRIAL])
        self._first = self.revision = 0
        self._seen: tuple[int, set[tuple[float, ...]]] = (0, set())  # of so many attached results

    @property
    def digest(self) -> str:
        """Digest of everything up to the last change."""
        return self._digest_of(self.revision).hex()

    def __getitem__(self, trial_id: int) -> Trial:
        return self.trials[trial_id]

    def __len__(self) -> int:
        return len(self.trials)

    def open(self, **fields: Any) -> Trial:
        """Append a running trial."""
        fields.setdefault("asked_at", time.time())
        self._columns.cut(len(self.trials))  # what an interrupt left of an ask that was not made
        row = self._columns.append(id=len(self.trials), **fields)
        trial = Trial._at(self._columns, row)
        self.trials.append(trial)
        self._note(trial)
        return trial

    def settle(self, trial: Trial, state: TrialState, **fields: Any) -> None:
        """Change a trial's state and the given fields, and note the time and the step."""
        noted = {"answered_at": time.time(), "answered_step": len(self.trials)}
        self._columns.change(trial._row, **{**fields, "state": _CODES[state], **noted})
        self._note(trial)

    def attach(self, results: list[Attached]) -> None:
        """Append results obtained elsewhere."""
        self.attached.extend(results)
        self._advance(json.dumps([result.record() for result in results]))

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

    def note(self, change: str) -> None:
        """A change that is not of a trial."""
        self._advance(change)

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

    def changed_since(self, revision: int) -> list[Trial]:
        """Trials that changed after a revision, each once, in the order of their ids."""
        ids = set(self._changed[max(revision + 1 - self._first, 0) :]) - {NO_TRIAL}
        return [self.trials[trial_id] for trial_id in sorted(ids)]

    def continues(self, revision: int, digest: str) -> bool:
        """Whether a state with this revision and digest is an earlier state of this ledger."""
        known = self._first <= revision <= self.revision
        return known and self._digest_of(revision).hex() == digest

    def restore(
        self,
        trials: list[Trial],
        attached: list[Attached],
        revision: int,
        digest: str,
    ) -> None:
        """Replace everything by a stored state.

        Raises:
            StorageError: if it is malformed; then nothing is changed.
        """
        if [trial.id for trial in trials] != list(range(len(trials))):
            raise StorageError("The stored trials are not numbered 0, 1, 2, ...")
        try:
            packed = bytearray.fromhex(digest)
        except ValueError:
            packed = bytearray()
        if len(packed) != DIGEST_BYTES or packed.hex() != digest:
            raise StorageError(f"The stored digest is malformed: {digest[:40]!r}.")
        self._take(trials)
        self.attached = attached
        self._seen = (0, set())
        self.revision = self._first = revision
        self._digests = packed
        self._changed = array("q", [NO_TRIAL])

    def __copy__(self) -> Ledger:
        return copy.deepcopy(self)  # trials belong to one ledger

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_columns"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._take(self.trials)  # a copied trial has columns of its own

    def _take(self, trials: list[Trial]) -> None:
        """Make these the trials: from now on they are rows of one set of columns."""
        columns = Columns()
        for trial in trials:
            trial._move(columns)
        self._columns, self.trials = columns, trials

    def _note(self, trial: Trial) -> None:
        self._advance(json.dumps(trial.record()), trial.id)

    def _advance(self, change: str, trial_id: int = NO_TRIAL) -> None:
        digest = _digest(self.digest + change)
        self._digests += digest
        self._changed.append(trial_id)
        self.revision += 1

    def _digest_of(self, revision: int) -> bytes:
        start = DIGEST_BYTES * (revision - self._first)
        return bytes(self._digests[start : start + DIGEST_BYTES])


def _as_id(value: Any) -> int:
    try:
        if isinstance(value, bool):
            raise TypeError
        return operator.index(value)
    except TypeError:
        raise TrialError(
            f"Expected a Trial or its id, got {type(value).__name__}; ask() returns trials."
        ) from None


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=DIGEST_BYTES).digest()


def _same_ask(own: Trial, other: Trial) -> bool:
    return own is other or (
        (own.index, own.round, own.asked_at) == (other.index, other.round, other.asked_at)
        and torch.equal(own._own.cpu(), other._own.cpu())
    )
