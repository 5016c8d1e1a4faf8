"""An optimizer kept in step with trials that another system stores.

Points, states and values alone do not tell when rounds closed and with which answers. So the other
system stores, with each trial, the events of its ask. From trials and events the optimizer can be
rebuilt in any process, as if every call had been made there.

Several processes may ask at once. Their decisions are made consistent by rules that depend on the
events alone. Asks are applied in an order in which each comes after those that its process knew,
and after the ends of trials that its process was the first to record. If two asks open the same
round, the one with the lower trial number counts, and design points asked for the other's round
serve no slot. A trial counts as lost before it ended if the record of any ask says so.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from botorch_delay import validation
from botorch_delay.elimination.open_round import WAITING_SLOT
from botorch_delay.exceptions import InputError, OutlierWarning, RefutedWarning, StorageError
from botorch_delay.history.events import Event, truncated
from botorch_delay.history.trials import Trial, TrialState
from botorch_delay.optimizers.bpe import BPEDelayOptimizer


@dataclass(frozen=True, eq=False)
class PastTrial:
    """A trial as another system stores it.

    Attributes:
        number: its number there, unique and increasing in the order of creation.
        x: the point, ``d``.
        state: its state.
        value: its answer, if it is completed; it must not change afterwards.
        record: the record that :meth:`Replica.ask` returned with the point; None for a trial that
            was not asked here, whose result is attached once it is completed.
        noise_var: the known noise variance of the answer, or None.
        reason: why it failed or was abandoned.
    """

    number: int
    x: Tensor
    state: TrialState
    value: float | None = None
    record: Mapping[str, Any] | None = None
    noise_var: float | None = None
    reason: str = ""


_ENDS = TrialState.COMPLETED, TrialState.FAILED


class Asked(NamedTuple):
    """The optimizer's trial, and a JSON-ready record for the other system to store with it."""

    trial: Trial
    record: dict[str, Any]


@dataclass(frozen=True)
class _Ask:
    """The record of an ask, in which trials have the other system's numbers."""

    events: tuple[Event, ...]  # the decisions that it made, then the ask itself
    after: int  # one more than the largest ``after`` of the asks that its process knew, or 0
    # Trials that had ended by then, and how, unless an ended trial's record lists that already (a
    # running one's may still be taken back). A trial that was lost and came back is listed twice.
    told: tuple[tuple[int, TrialState], ...]
    opened: tuple[int, ...]  # the rounds that it opened
    opener: int | None  # the trial that opened its round, as far as its process knew
    parent: int | None  # the trial that opened the round that was open before its events

    @classmethod
    def read(cls, past: PastTrial) -> _Ask:
        record = past.record
        assert record is not None
        try:
            events = tuple(map(Event.read, record["events"]))
            if [event.kind for event in events].index("asked") != len(events) - 1:
                raise ValueError("its events are not those of one ask")
            opener, parent = (
                None if record[name] is None else validation.whole(record[name], name, 0)
                for name in ("opener", "parent")
            )
            told = tuple(
                (validation.whole(other, "told", 0), TrialState(state))
                for other, state in record["told"]
            )
            after = validation.whole(record["after"], "after", 0)
            opened = tuple(n for event in events if (n := _opens(event)) is not None)
            for event in events:
                _renamed(event.data, lambda number: validation.whole(number, "trial_ids", 0))
            return cls(events, after, told, opened, opener, parent)
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise StorageError(
                f"The record of trial {past.number} is malformed: {truncated(error)}"
            ) from error


class Replica:
    """An optimizer kept in step with trials that another system stores.

    Args:
        make: returns a new optimizer, without asks, each time it is called.

    Attributes:
        optimizer: for reading only; asks and answers go through the replica. Its certificates are
            proved as long as its trials are in the order in which they were asked; a trial of
            another process that is added late may break that order.
    """

    def __init__(self, make: Callable[[], BPEDelayOptimizer]) -> None:
        self._make = make
        self._behind = False  # whether the optimizer lacks some of the trials
        self._past: dict[int, PastTrial] = {}
        self._asks: dict[int, _Ask] = {}  # of trials that have a record
        self._openers: list[int] = []  # the trial that opened each round, from the first
        self._lost: set[int] = set()  # trials lost before they ended, as records of asks say
        self._restart()

    def sync(self, trials: Iterable[PastTrial]) -> None:
        """Take in new and changed trials, in any order; unchanged ones are ignored.

        Together with those of earlier calls they must include all trials that records refer to.

        Raises:
            StorageError: if a record is malformed, or refers to a missing trial.
        """
        changed, back, rewritten = [], set(), False  # back: trials that are lost no longer
        for past in trials:
            known = self._past.get(past.number, past)
            other = known.record != past.record or not torch.equal(known.x, past.x)
            if other or known.state is not past.state or past.number not in self._past:
                changed.append(past)
                rewritten |= other
                if known.state is TrialState.ABANDONED and known.state is not past.state:
                    back.add(past.number)
        if not changed and not self._behind:
            return
        asks = {
            past.number: _Ask.read(past)
            for past in changed
            if past.record is not None and (rewritten or past.number not in self._asks)
        }
        self._past.update({past.number: past for past in changed})
        self._asks.update(asks)
        before, self._openers = self._openers, self._find_openers()
        rewritten |= self._behind or self._openers[: len(before)] != before
        # Records decide whether a trial was lost first, not what this process happened to see.
        lost = _lost(asks.values())
        self._lost |= lost
        rewritten |= any(map(self._has_missed_loss, lost)) or not back <= self._lost
        self._behind = True  # until all are applied: after an error the next call rebuilds
        if rewritten:
            self._rebuild()
        else:
            self._take(changed)
        self._behind = False

    def ask(
        self, number: int, before: int = 0, skip: int = 0, uncertain: Sequence[int] = ()
    ) -> Asked:
        """The point for a trial that the other system has opened.

        Args:
            number: the other system's number of the trial.
            before: how many other trials are about to ask first: this one gets the point after
                theirs, so that workers that ask at the same moment get different points.
            skip: how many further points to pass over. As these may never be asked, the point then
                serves no slot of the design.
            uncertain: the numbers of the latest asks, increasing, whose trials may never be
                created: the record repeats their decisions.

        Raises:
            HorizonError: if no asks are left.
            EmptyDomainError: if no feasible point is left.
        """
        number = validation.whole(number, "number", 0)
        if number in self._trials:
            raise InputError(f"Trial {number} has its point already; ask for another trial.")
        after, numbers = self._after, list(self._trials)
        told = [[other, state.value] for other, state in self._unrecorded]
        trial, events = self._ask_ahead(before, skip) if before or skip else self._ask_next()
        parent = self._openers[-1] if self._openers else None
        opened = sum(_opens(event) is not None for event in events)
        record = {
            "events": [_as_stored(event, number, numbers) for event in events],
            "after": after,
            "told": told,
            "opener": number if opened else parent,
            "parent": parent,
        }
        if uncertain:
            record = _with_decisions(record, self._past[uncertain[-1]].record)
        past = PastTrial(number, trial.x, TrialState.RUNNING, record=record)
        self._past[number], self._asks[number] = past, _Ask.read(past)
        self._lost |= _lost([self._asks[number]])
        self._know(number, trial)
        self._openers += [number] * opened
        return Asked(trial, record)

    def _ask_next(self) -> tuple[Trial, list[Event]]:
        optimizer, start = self.optimizer, self.optimizer._ledger.event_count
        try:
            trial = optimizer.ask()
        except BaseException:
            if optimizer._ledger.event_count > start:  # no other process knows these decisions
                self._rebuild()
            raise
        return trial, list(optimizer._ledger.events(start))

    def _ask_ahead(self, before: int, skip: int) -> tuple[Trial, list[Event]]:
        """The trial after ``before + skip`` asks that are not made here, and its events."""
        optimizer, start = self.optimizer, self.optimizer._ledger.event_count
        ahead = copy.deepcopy(optimizer, {id(optimizer.domain): optimizer.domain})
        # One by one: ask(n) would return fewer trials if one fails, instead of raising.
        for _ in range(before + skip + 1):
            ahead.ask()
        *decided, asked = ahead._ledger.events(start)
        if skip:
            asked = replace(asked, data={**asked.data, "slot": WAITING_SLOT})
        events = [*(event for event in decided if event.kind != "asked"), asked]
        return optimizer.follow(events), events

    def forget(self, number: int) -> None:
        """Take back an ask that no other process has seen; its trial can ask again."""
        del self._past[number], self._asks[number]
        self._rebuild()

    def trial(self, number: int) -> Trial | None:
        """The optimizer's trial of the other system's ``number``, or None."""
        return self._trials.get(number)

    def _has_missed_loss(self, number: int) -> bool:
        """Whether a trial has ended here without having been lost first."""
        trial = self._trials.get(number)
        return trial is not None and (
            trial.state is TrialState.FAILED
            or (trial.state is TrialState.COMPLETED and not trial.came_back)
        )

    def _rebuild(self) -> None:
        self._restart()
        self._openers, self._lost = self._find_openers(), _lost(self._asks.values())
        self._take(self._past.values())

    def _restart(self) -> None:
        self.optimizer = self._make()
        self.optimizer._rounds.is_shared = True
        self._trials: dict[int, Trial] = {}  # by the other system's number, in the order of ids
        self._attached: set[int] = set()
        self._unrecorded: list[tuple[int, TrialState]] = []  # ``told`` of the next _Ask
        self._after = 0  # ``after`` of the next _Ask
        self._decided: set[tuple[str, float]] = set()  # kind and time of each decision applied

    def _know(self, number: int, trial: Trial) -> None:
        self._trials[number] = trial
        self._after = max(self._after, self._asks[number].after + 1)

    def _find_openers(self) -> list[int]:
        """The trial that counts as the opener of each round: the lowest number of the valid ones.

        A trial is valid if the round that it closed had been opened by the one that counts there.
        """
        found: dict[tuple[int, int | None], list[int]] = {}
        for number, ask in self._asks.items():
            parent = ask.parent
            for opened in ask.opened:
                found.setdefault((opened, parent), []).append(number)
                parent = number
        openers: list[int] = []
        while numbers := found.get((len(openers) + 1, openers[-1] if openers else None)):
            openers.append(min(numbers))
        return openers

    def _take(self, changed: Iterable[PastTrial]) -> None:
        """Apply results from elsewhere, then asks in order, then the ends of their trials."""

        def order(past: PastTrial) -> tuple[int, int]:
            return -1 if past.record is None else self._asks[past.number].after, past.number

        changed = sorted(changed, key=order)
        with warnings.catch_warnings():  # wrong results are corrected in the other system
            warnings.simplefilter("ignore", OutlierWarning)
            warnings.simplefilter("ignore", RefutedWarning)  # once for every rebuild, else
            for past in changed:
                if past.record is None:
                    value = past.value if past.state is TrialState.COMPLETED else None
                    if value is not None and past.number not in self._attached:
                        self._attached.add(past.number)
                        noise_var = None if self.optimizer.exact else past.noise_var
                        self.optimizer.attach(past.x, value, noise_var)
                elif past.number not in self._trials:
                    ask = self._asks[past.number]
                    for number, state in ask.told:
                        self._settle(number, state)
                    events = self._events_that_count(past, ask)
                    self._know(past.number, self.optimizer.follow(events))
            for past in changed:
                self._settle(past.number, past.state)

    def _events_that_count(self, past: PastTrial, ask: _Ask) -> list[Event]:
        """The events of an ask that count, with the trial ids of this optimizer."""
        events = []
        for event in ask.events[:-1]:
            opened = _opens(event)
            if opened is None:
                # Applied once: the ask after an uncertain one repeats its decisions.
                counts = (event.kind, event.time) not in self._decided
            else:
                counts = self._opener(opened) == past.number
            if counts:
                self._decided.add((event.kind, event.time))
                events.append(replace(event, data=_renamed(event.data, self._id_of)))
        data = {**ask.events[-1].data, "x": past.x.tolist()}
        if ask.opener != self._opener(data["round"]):
            data["slot"] = WAITING_SLOT
        return [*events, replace(ask.events[-1], data=data)]

    def _opener(self, round_number: int) -> int | None:
        return self._openers[round_number - 1] if round_number <= len(self._openers) else None

    def _id_of(self, number: int) -> int:
        if number not in self._trials:
            raise StorageError(
                f"A round was closed with the answer of trial {number}, which is missing; hand "
                "over every trial."
            )
        return self._trials[number].id

    def _settle(self, number: int, state: TrialState) -> None:
        """Apply the end of a trial, if its ask is known and the end is new.

        A trial that any record lists as lost is abandoned first: a late answer serves no slot.
        """
        past, trial, optimizer = self._past.get(number), self._trials.get(number), self.optimizer
        if past is None or trial is None:
            return
        if state is not TrialState.ABANDONED:
            state = past.state
        lost = state is TrialState.ABANDONED or (number in self._lost and state in _ENDS)
        if lost and trial.state is TrialState.RUNNING:
            optimizer.mark_abandoned(trial, past.reason if state is TrialState.ABANDONED else "")
            self._note_end(number)
        if state is TrialState.COMPLETED and trial.state is not TrialState.COMPLETED:
            assert past.value is not None
            optimizer.tell(trial, past.value, past.noise_var)
            self._note_end(number)
        elif state is TrialState.FAILED and trial.state is TrialState.RUNNING:
            optimizer.mark_failed(trial, past.reason)
            self._note_end(number)

    def _note_end(self, number: int) -> None:
        """List an end in the next record, but no longer those that the trial's own record lists."""
        told = self._asks[number].told
        self._unrecorded = [end for end in self._unrecorded if end not in told]
        self._unrecorded.append((number, self._trials[number].state))


def _lost(asks: Iterable[_Ask]) -> set[int]:
    """The trials that were lost according to records of asks."""
    return {n for ask in asks for n, state in ask.told if state is TrialState.ABANDONED}


def _with_decisions(record: dict[str, Any], last: Mapping[str, Any] | None) -> dict[str, Any]:
    """The record of an ask, with the decisions of the ask before, which is uncertain, put first."""
    assert last is not None
    decided = [event for event in last["events"] if event["kind"] != "asked"]
    opened = any(event["kind"] in ("opened", "closed") for event in decided)
    return record | {
        "events": [*decided, *record["events"]],
        "after": last["after"],
        "told": [*last["told"], *record["told"]],
        "parent": (last if opened else record)["parent"],
    }


def _as_stored(event: Event, number: int, numbers: Sequence[int]) -> dict[str, Any]:
    """The record of an event with the other system's trial numbers; an ask's omits the point."""
    record = event.record()
    if event.kind == "asked":
        kept = {name: event.data[name] for name in ("round", "slot")}
        return record | {"trial": number, "data": kept}
    return record | {"data": _renamed(event.data, numbers.__getitem__)}


def _opens(event: Event) -> int | None:
    """The number of the round that an event opens; None if it opens none."""
    if event.kind == "opened":
        return 1
    if event.kind != "closed":
        return None
    return validation.whole(event.data["record"]["number"], "number", 0) + 1


def _renamed(data: Mapping[str, Any], name: Callable[[int], int]) -> Mapping[str, Any]:
    """The data of an event, with the trial ids of a closed round mapped by ``name``."""
    if "record" not in data:
        return data
    ids = [name(trial) for trial in data["record"]["trial_ids"]]
    return {**data, "record": {**data["record"], "trial_ids": ids}}
