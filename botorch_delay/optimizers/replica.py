"""An optimizer kept in step with trials that another system keeps.

Trial databases of other systems know points, states and values. When rounds closed, and with
which answers, follows from none of them, so the events of every ask made here are for the other
system to keep with the trial. From trials and these events the optimizer is made again, anywhere,
as if every call had been made there; newer trials are taken in for what they cost.

Several processes may ask at once. What each of them decides is made consistent by rules that
depend on the events alone: asks are taken in an order in which each comes after those its maker
knew, and after the ends of trials that its maker was the first to know; where two open the same
round, the trial with the lower number counts, and a design point asked under the other's round is
one outside the design.
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
from botorch_delay.exceptions import BotorchDelayError, InputError, OutlierWarning, StorageError
from botorch_delay.history.events import Event, truncated
from botorch_delay.history.trials import Trial, TrialState
from botorch_delay.optimizers.bpe import BPEDelayOptimizer


@dataclass(frozen=True, eq=False)
class PastTrial:
    """A trial as another system keeps it.

    Attributes:
        number: that system's name for it; of each trial another one, in the order of creation.
        x: the point, ``d``.
        state: where it stands.
        value: its answer, where it is completed.
        record: what :meth:`Replica.ask` gave with the point; None if it was obtained elsewhere. A
            result without one is attached, and anything else without one is passed over.
        noise_var: the known noise variance of the answer, or None; not of one without a record.
        reason: why it failed.
    """

    number: int
    x: Tensor
    state: TrialState
    value: float | None = None
    record: Mapping[str, Any] | None = None
    noise_var: float | None = None
    reason: str = ""


class Asked(NamedTuple):
    """The optimizer's trial, and what the ask decided, JSON-ready, for the other system to keep."""

    trial: Trial
    record: dict[str, Any]


@dataclass(frozen=True)
class _Ask:
    """What the record of an ask says, trials named as the other system does."""

    events: tuple[Event, ...]  # what it decided, and the ask itself at the end
    after: int  # one more than the highest of the asks that its maker knew, 0 if it knew none
    # Trials that had ended by then, as the record of no trial that had ended says, too: one that
    # runs may still take its record back.
    told: tuple[int, ...]
    opened: tuple[int, ...]  # the rounds that it opened
    opener: int | None  # the trial that opened its round, as its maker knew
    parent: int | None  # the trial that opened the round before its events

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
            told = tuple(validation.whole(number, "told", 0) for number in record["told"])
            after = validation.whole(record["after"], "after", 0)
            opened = tuple(n for event in events if (n := _opens(event)) is not None)
            return cls(events, after, told, opened, opener, parent)
        except (BotorchDelayError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise StorageError(
                f"The record of trial {past.number} is malformed: {truncated(error)}"
            ) from error


class Replica:
    """An optimizer kept in step with trials that another system keeps.

    Args:
        make: makes the optimizer as it is before any ask.

    Attributes:
        optimizer: to be read; it is asked and told through the replica alone. Its certificates are
            proved where its trials stand in the order in which they were asked. A trial of another
            process that is taken in late may come to stand before some that had answers by then,
            and nothing is proved of the order that results.
    """

    def __init__(self, make: Callable[[], BPEDelayOptimizer]) -> None:
        self._make = make
        self._unrecorded: list[int] = []  # trials that ended; see _Ask.told
        self._past: dict[int, PastTrial] = {}
        self._asks: dict[int, _Ask] = {}  # of trials that have a record
        self._openers: list[int] = []  # the trial that opened each round, from the first
        self._restart()

    def sync(self, trials: Iterable[PastTrial]) -> None:
        """Take in trials that are new or have changed, in any order; others do no harm.

        Together with those of earlier calls they must be all that the asks recorded with them rest
        on.

        Raises:
            StorageError: if a record is malformed, or rests on trials that are missing.
        """
        changed, rewritten = [], False
        for past in trials:
            known = self._past.get(past.number, past)
            other = known.record != past.record or not torch.equal(known.x, past.x)
            if other or known.state is not past.state or past.number not in self._past:
                changed.append(past)
                rewritten |= other
        if not changed:
            return
        asks = {
            past.number: _Ask.read(past)
            for past in changed
            if past.record is not None and (rewritten or past.number not in self._asks)
        }
        self._past.update({past.number: past for past in changed})
        self._asks.update(asks)
        before, self._openers = self._openers, self._find_openers()
        if rewritten or self._openers[: len(before)] != before:
            self._rebuild()
        else:
            self._take(changed)

    def ask(
        self, number: int, before: int = 0, skip: int = 0, uncertain: Sequence[int] = ()
    ) -> Asked:
        """The point for a trial that the other system has opened.

        Args:
            number: of the trial.
            before: how many other trials are about to ask and come first. They get what this
                optimizer would ask for them, and this trial what comes next: so workers that
                ask at the same moment get different points.
            skip: how many more points to pass over, which nobody else may come to ask. A point
                behind these serves no slot of the design, so that none is left out.
            uncertain: numbers of the last asks, increasing, of which no trial may come to be: the
                record says what they decided, too.

        Raises:
            HorizonError: if no asks are left.
            EmptyDomainError: if no feasible point is left.
        """
        number = validation.whole(number, "number", 0)
        if number in self._trials:
            raise InputError(f"Trial {number} has its point already; ask for another trial.")
        after, told, numbers = self._after, list(self._unrecorded), list(self._trials)
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
        self._know(number, trial)
        self._openers += [number] * opened
        return Asked(trial, record)

    def _ask_next(self) -> tuple[Trial, list[Event]]:
        optimizer, start = self.optimizer, self.optimizer._ledger.event_count
        try:
            trial = optimizer.ask()
        except BaseException:
            if optimizer._ledger.event_count > start:  # of what was decided no other process knows
                self._rebuild()
            raise
        return trial, optimizer.events(start)

    def _ask_ahead(self, before: int, skip: int) -> tuple[Trial, list[Event]]:
        """What the optimizer would ask after the asks of others."""
        optimizer, start = self.optimizer, self.optimizer._ledger.event_count
        ahead = copy.deepcopy(optimizer, {id(optimizer.domain): optimizer.domain})
        # One by one: an ask for several gives fewer where one fails, and this has to raise.
        for _ in range(before + skip + 1):
            ahead.ask()
        *decided, asked = ahead.events(start)
        if skip:
            asked = replace(asked, data={**asked.data, "slot": WAITING_SLOT})
        events = [*(event for event in decided if event.kind != "asked"), asked]
        return optimizer.follow(events), events

    def forget(self, number: int) -> None:
        """Take back an ask that no other process has seen: its trial can ask again."""
        del self._past[number], self._asks[number]
        self._rebuild()

    def trial(self, number: int) -> Trial | None:
        """The optimizer's trial; None if it has no such one."""
        return self._trials.get(number)

    def _rebuild(self) -> None:
        self._restart()
        self._openers = self._find_openers()
        self._take(self._past.values())

    def _restart(self) -> None:
        self.optimizer = self._make()
        self._trials: dict[int, Trial] = {}  # by the other system's number, in the order of ids
        self._attached: set[int] = set()
        self._unrecorded = []
        self._after = 0  # of the next ask
        self._decided: set[tuple[str, float]] = set()  # kinds and times of events of asks

    def _know(self, number: int, trial: Trial) -> None:
        self._trials[number] = trial
        self._after = max(self._after, self._asks[number].after + 1)

    def _find_openers(self) -> list[int]:
        """For each round the trial that opened it: the lowest number of those that did so.

        Only those count that closed the round before as the trial that counts had opened it.
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
        """Take in results from elsewhere, asks after those their makers knew, then their ends."""

        def order(past: PastTrial) -> tuple[int, int]:
            return -1 if past.record is None else self._asks[past.number].after, past.number

        changed = sorted(changed, key=order)
        for past in changed:
            if past.record is not None and past.number not in self._trials:
                ask = self._asks[past.number]
                for number in ask.told:
                    self._settle(number)
                events = self._events_that_count(past, ask)
                self._know(past.number, self.optimizer.follow(events))
            elif past.value is not None and past.record is None:
                if past.state is not TrialState.COMPLETED or past.number in self._attached:
                    continue
                self._attached.add(past.number)
                self.optimizer.attach(past.x, past.value)
        for past in changed:
            self._settle(past.number)

    def _events_that_count(self, past: PastTrial, ask: _Ask) -> list[Event]:
        """What an ask decided, as far as it counts, with the ids of the trials here."""
        events = []
        for event in ask.events[:-1]:
            opened = _opens(event)
            if opened is None:
                # An ask that came to nothing is told of by the next one of its process, too.
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

    def _settle(self, number: int) -> None:
        """Take in what became of a trial, if that is news and its ask is known."""
        past, trial, optimizer = self._past.get(number), self._trials.get(number), self.optimizer
        if past is None or trial is None:
            return
        before = trial.state
        running = before is TrialState.RUNNING
        if running and past.state is TrialState.ABANDONED:
            optimizer.mark_abandoned(trial)
        if past.state is TrialState.COMPLETED and trial.state is not TrialState.COMPLETED:
            assert past.value is not None
            with warnings.catch_warnings():  # a result can be corrected in the engine alone
                warnings.simplefilter("ignore", OutlierWarning)
                optimizer.tell(trial, past.value, past.noise_var)
        elif past.state is TrialState.FAILED and running:
            optimizer.mark_failed(trial, past.reason)
        if trial.state is not before:
            told = self._asks[number].told
            self._unrecorded = [n for n in self._unrecorded if n not in told] + [number]


def _with_decisions(record: dict[str, Any], last: Mapping[str, Any] | None) -> dict[str, Any]:
    """The record of an ask with what the one before decided."""
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
    """An event with the other system's numbers of trials; it keeps the point itself."""
    record = event.record()
    if event.kind == "asked":
        kept = {name: event.data[name] for name in ("round", "slot")}
        return record | {"trial": number, "data": kept}
    return record | {"data": _renamed(event.data, numbers.__getitem__)}


def _opens(event: Event) -> int | None:
    """The number of the round that begins with an event."""
    if event.kind == "opened":
        return 1
    if event.kind != "closed":
        return None
    return validation.whole(event.data["record"]["number"], "number", 0) + 1


def _renamed(data: Mapping[str, Any], name: Callable[[int], int]) -> Mapping[str, Any]:
    """The data of an event with other names for the trials of a closed round."""
    if "record" not in data:
        return data
    ids = [name(trial) for trial in data["record"]["trial_ids"]]
    return {**data, "record": {**data["record"], "trial_ids": ids}}
