"""An optimizer kept in step with trials that another system keeps.

Trial databases of other systems know points, states and values. When rounds closed, and with
which answers, follows from none of them, so every ask made here comes with a note for the
other system to keep with the trial. From trials and notes the optimizer is made again,
anywhere, as if every call had been made there; newer trials are taken in for what they cost.

Several processes may ask at once. What each of them notes is made consistent by rules that
depend on the notes alone: asks are taken in an order in which each comes after those its maker
knew; where two open the same round, the trial with the lower number counts, and a design point
asked under the other's round is one outside the design.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, Self, TypeVar

import torch
from torch import Tensor

from botorch_delay.domains.finite import Domain
from botorch_delay.elimination.open_round import WAITING_SLOT
from botorch_delay.exceptions import InputError, StorageError
from botorch_delay.history.states import brief, is_whole
from botorch_delay.history.trials import Trial, TrialState
from botorch_delay.optimizers.events import Note, merged


@dataclass(frozen=True, eq=False)
class PastTrial:
    """A trial as another system keeps it.

    Attributes:
        number: that system's name for it; of each trial another one, in the order of creation.
        x: the point, ``d``.
        state: where it stands.
        value: its answer, where it is completed.
        note: what :meth:`Replica.ask` gave with the point; None if it was obtained elsewhere. A
            result without a note is attached, and anything else without one is passed over.
        noise_var: the known noise variance of the answer, or None.
        late: whether it was answered after it had been abandoned.
        reason: why it failed.
    """

    number: int
    x: Tensor
    state: TrialState
    value: float | None = None
    note: Mapping[str, Any] | None = None
    noise_var: float | None = None
    late: bool = False
    reason: str = ""


@dataclass(frozen=True, eq=False)
class Asked:
    """A point to evaluate.

    Attributes:
        trial: of the optimizer.
        note: JSON-ready, to be kept with the other system's trial.
    """

    trial: Trial
    note: dict[str, Any]


class Replayable(Protocol):
    """An optimizer whose asks leave notes, and can be made again from them."""

    @property
    def domain(self) -> Domain:
        """Where points may be asked."""

    def ask(self) -> Trial:
        """The next trial."""

    def tell(self, trial: Trial | int, y: float, noise_var: float | None = None) -> None:
        """The answer of a trial."""

    def mark_failed(self, trial: Trial | int, reason: str = "") -> None:
        """The trial crashed."""

    def mark_abandoned(self, trial: Trial | int) -> None:
        """The trial will not come back."""

    def attach(self, x: Tensor, y: float) -> None:
        """A result obtained elsewhere."""

    def note(self, trial: Trial) -> Note:
        """What the ask of a trial brought about."""

    def ask_again(self, x: Tensor, note: Note) -> Trial:
        """An ask that was made before, elsewhere."""

    def inherit(self, other: Self) -> None:
        """Take over what another one knows of the same run that ends a claim."""


Played = TypeVar("Played", bound=Replayable)


class Replica(Generic[Played]):
    """An optimizer kept in step with trials that another system keeps.

    Args:
        make: makes the optimizer as it is before any ask.

    Attributes:
        optimizer: to be read; it is asked and told through the replica alone.
        rebuilds: how often everything was taken in again, because two processes had opened a
            round at once or a trial's point was changed.
    """

    def __init__(self, make: Callable[[], Played]) -> None:
        self._make = make
        self.rebuilds = 0
        self._past: dict[int, PastTrial] = {}
        self._openers: list[int] = []  # the trial that opened each round, from the first
        self._applied: list[int] = []  # likewise, of the rounds that have opened here
        self._restart()

    def is_settled(self, number: int) -> bool:
        """Whether a trial is known with its answer or failure, so that it need not be told again.

        An abandoned trial may still be answered.
        """
        past = self._past.get(number)
        return past is not None and past.state in (TrialState.COMPLETED, TrialState.FAILED)

    def sync(self, trials: Iterable[PastTrial]) -> None:
        """Take in trials that are new or have changed; others do no harm.

        Args:
            trials: in any order. Together with those of earlier calls they must be all that the
                asks noted with them rest on.

        Raises:
            InputError: if a point does not fit the domain.
            StorageError: if a note is malformed, or rests on trials that are missing.
        """
        changed = [past for past in trials if self._is_news(past)]
        if not changed:
            return
        rewritten = any(self._is_rewritten(past) for past in changed)
        self._past.update({past.number: past for past in changed})
        self._openers = self._find_openers()
        if rewritten or self._openers[: len(self._applied)] != self._applied:
            self._rebuild()
            return
        for past in sorted(changed, key=_order):
            self._take(past)

    def ask(self, number: int, before: int = 0, skip: int = 0) -> Asked:
        """The point for a trial that the other system has opened.

        Args:
            number: of the trial.
            before: how many other trials are about to ask and come first. They get what this
                optimizer would ask for them, and this trial what comes next: so workers that
                ask at the same moment get different points.
            skip: how many more points to pass over, which nobody else may come to ask. A point
                behind these serves no slot of the design, so that none is left out.

        Raises:
            InputError: if the trial has its point already.
            HorizonError: if no asks are left.
            EmptyDomainError: if no feasible point is left.
        """
        if number in self._ids:
            raise InputError(f"Trial {number} has its point already; ask for another trial.")
        optimizer, after = self.optimizer, len(self._numbers)
        if before or skip:
            ahead = copy.deepcopy(optimizer, {id(optimizer.domain): optimizer.domain})
            # One by one: an ask for several gives fewer where one fails, and this has to raise.
            asked = [ahead.ask() for _ in range(before + skip + 1)]
            note = merged([ahead.note(trial) for trial in asked])
            if skip:
                note = replace(note, slot=WAITING_SLOT)
            trial = optimizer.ask_again(asked[-1].x, note)
        else:
            trial = optimizer.ask()
            note = optimizer.note(trial)
        parent = self._openers[-1] if self._openers else None
        self._know(number, trial)
        names = [*self._attached]
        opened = bool(note.openings)
        record = {
            **note.renamed(self._numbers.__getitem__, names.__getitem__).record(),
            "after": after,
            "opener": number if opened else parent,
        }
        if opened:
            record["parent"] = parent
            self._openers = self._openers + [number] * len(note.openings)
            self._applied = list(self._openers)
        self._past[number] = PastTrial(number, trial.x, TrialState.RUNNING, note=record)
        return Asked(trial, record)

    def forget(self, number: int) -> None:
        """Take back an ask that no other process has seen: its trial can ask again."""
        del self._past[number]
        self._rebuild()

    def trial(self, number: int) -> Trial | None:
        """The optimizer's trial; None if it has no such one."""
        found = self._ids.get(number)
        return None if found is None else self._trials[found]

    def _rebuild(self) -> None:
        self.rebuilds += 1
        before = self.optimizer
        self._restart()
        self._openers = self._find_openers()
        for past in sorted(self._past.values(), key=_order):
            self._take(past)
        self.optimizer.inherit(before)  # when answers came is not in the notes

    def _restart(self) -> None:
        self.optimizer = self._make()
        self._ids: dict[int, int] = {}  # of the optimizer's trials, by the other system's number
        self._numbers: list[int] = []
        self._trials: list[Trial] = []
        self._attached: dict[int, int] = {}
        self._applied = []

    def _know(self, number: int, trial: Trial) -> None:
        self._ids[number] = trial.id
        self._numbers.append(number)
        self._trials.append(trial)

    def _is_news(self, past: PastTrial) -> bool:
        known = self._past.get(past.number)
        return known is None or known.state is not past.state or self._is_rewritten(past)

    def _is_rewritten(self, past: PastTrial) -> bool:
        known = self._past.get(past.number)
        if known is None:
            return False
        return known.note != past.note or not torch.equal(known.x, past.x)

    def _find_openers(self) -> list[int]:
        """For each round the trial that opened it: the lowest number of those that did so.

        Only those count that closed the round before as the trial that counts had opened it.
        """
        claims: dict[tuple[int, int | None], list[tuple[int, int]]] = {}
        for past in self._past.values():
            if past.note is None or "openings" not in past.note:
                continue
            parent = past.note.get("parent")
            for record in past.note["openings"]:
                round_number = record["number"]
                claims.setdefault((round_number, parent), []).append((past.number, round_number))
                parent = past.number
        openers: list[int] = []
        while True:
            found = claims.get((len(openers) + 1, openers[-1] if openers else None))
            if not found:
                return openers
            openers.append(min(found)[0])

    def _take(self, past: PastTrial) -> None:
        optimizer = self.optimizer
        if past.note is None:
            if past.state is TrialState.COMPLETED and past.number not in self._attached:
                assert past.value is not None
                self._attached[past.number] = len(self._attached)
                optimizer.attach(past.x, past.value)
            return
        if past.number not in self._ids:
            self._know(past.number, optimizer.ask_again(past.x, self._read(past)))
        self._settle(self._trials[self._ids[past.number]], past)

    def _read(self, past: PastTrial) -> Note:
        """The note of a trial, as far as it counts."""
        assert past.note is not None
        note = Note.read(past.note)
        if not is_whole(past.note.get("after"), 0):
            raise StorageError(f"The note of trial {past.number} is malformed: {brief(past.note)}.")
        mine = [o for o in note.openings if self._opener(o.number) == past.number]
        # Rounds open one after the other: of a chain the part that counts is its beginning.
        self._applied += [past.number] * len(mine)
        note = replace(note, openings=tuple(mine))
        if past.note.get("opener") != self._opener(note.round):
            note = replace(note, slot=WAITING_SLOT)
        try:
            return note.renamed(self._ids.__getitem__, self._attached.__getitem__)
        except KeyError as error:
            raise StorageError(
                f"Trial {past.number} opened a round with the answer of trial {error}, which is "
                "missing; hand over every trial."
            ) from error

    def _opener(self, round_number: int) -> int | None:
        return self._openers[round_number - 1] if round_number <= len(self._openers) else None

    def _settle(self, trial: Trial, past: PastTrial) -> None:
        optimizer = self.optimizer
        running = trial.state is TrialState.RUNNING
        if running and (past.state is TrialState.ABANDONED or past.late):
            optimizer.mark_abandoned(trial)
        if past.state is TrialState.COMPLETED and trial.state is not TrialState.COMPLETED:
            assert past.value is not None
            optimizer.tell(trial, past.value, past.noise_var)
        elif past.state is TrialState.FAILED and running:
            optimizer.mark_failed(trial, past.reason)


def _order(past: PastTrial) -> tuple[int, int]:
    """Asks come after those that their makers knew; attached results before all that use them."""
    after = -1 if past.note is None else past.note.get("after", 0)
    return after, past.number
