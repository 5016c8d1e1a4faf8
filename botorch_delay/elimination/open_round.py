"""The open round: its design, and what became of each design point."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from math import inf

from botorch_delay.elimination.active_set import ActiveSet, Design
from botorch_delay.elimination.rounds import Departure
from botorch_delay.exceptions import ExhaustedDesignError
from botorch_delay.gp.surrogate import Surrogate
from botorch_delay.history.point_status import MAX_FAILURES, PointStatus
from botorch_delay.history.trials import Trial, TrialState

# ``Trial.slot`` of trials that serve no design point. WAITING_SLOT marks asks made while the next
# design point had to wait, or that cost more than a regret budget had left.
NO_SLOT, WAITING_SLOT = -1, -2


class SlotState(enum.Enum):
    """The state of a design point."""

    WAITING = "waiting"  # a trial is running
    RETRY = "retry"  # its trial failed or was abandoned, and it is asked again
    ANSWERED = "answered"
    KNOWN = "known"  # evaluations are exact, and another trial has its value
    DROPPED = "dropped"  # no answer will be used: given up, or failed too often


@dataclass(slots=True)
class Slot:
    """A design point of the round: one pick of the design, served by one or more trials."""

    key: int
    trial: int = -1  # id of the last trial that served it, whose answer counts
    tries: int = 0  # how many trials have served it
    outcome: TrialState = TrialState.RUNNING  # of the last trial; not changed by late answers
    state: SlotState = SlotState.WAITING


@dataclass(frozen=True)
class Outstanding:
    """What a round waits for among its first q_r design points."""

    trials: tuple[int, ...]  # ids of their running trials, increasing
    again: int  # how many points are to be asked again now
    held: tuple[int, ...]  # keys of points to be asked again once other trials of them have ended


@dataclass(eq=False, repr=False)
class OpenRound:
    """Design and bookkeeping of the open round, number r, which has q_r design points.

    Its length is t_r, or None if it closes once its first q_r design points are settled. With
    ``needs_all`` a design point whose trial was abandoned is asked again, at most twice, because a
    regret bound needs its answer; else the round does without it.
    """

    number: int
    design_size: int
    length: int | None
    surrogate: Surrogate
    active: ActiveSet
    statuses: dict[int, PointStatus]  # by key, of points that may not be asked
    needs_all: bool
    # Keys of points with attached results: they count in the design although they have no slot.
    attached: tuple[int, ...]
    slots: list[Slot] = field(default_factory=list, init=False)
    asks: int = field(default=0, init=False)
    # Asks made after the first q_r design points had been asked, or while the next one had to wait,
    # and asks of a design point again.
    extra_asks: int = field(default=0, init=False)
    departures: set[Departure] = field(default_factory=set, init=False)
    design: Design | None = field(default=None, init=False)  # made when it is first needed

    def __post_init__(self) -> None:
        followed = SlotState.WAITING, SlotState.RETRY, SlotState.DROPPED
        self._slots_in: dict[SlotState, set[int]] = {state: set() for state in followed}

    def next_retry(self) -> int | None:
        """The first slot whose point is to be asked again now, or None."""
        retries = self._slots_in[SlotState.RETRY]
        free = (n for n in retries if self._status(self.slots[n].key) is PointStatus.OPEN)
        return min(free, default=None)

    def next_key(self) -> int | None:
        """The key of the next design point; None if no point may be asked."""
        design = self._current_design()
        try:
            return design.next()
        except ExhaustedDesignError:
            # A held point is better than none.
            held = [key for key, status in self.statuses.items() if status is PointStatus.HELD]
            held = list(filter(self.active.has, held))
            if not held:
                return None
            for key in held:
                design.exclude(key, excluded=False)
            pick = design.next()
            for key in held:
                design.exclude(key)
            return pick

    def reserve(self, key: int) -> None:
        """Give the next slot to a point whose trial elsewhere is not known, or was never made."""
        self._append(Slot(key, outcome=TrialState.FAILED))
        self._refresh(len(self.slots) - 1)

    def admits(self, slot: int, key: int) -> bool:
        """Whether a trial at the point with this key can serve a slot."""
        if slot >= len(self.slots):
            return slot == len(self.slots)
        found = self.slots[slot]
        return not found.tries or (found.key == key and found.state is SlotState.RETRY)

    def is_served(self, slot: int) -> bool:
        """Whether a slot has a trial."""
        return slot < len(self.slots) and self.slots[slot].tries > 0

    def take(self, trial: Trial, key: int) -> None:
        """Record a new trial at the point with this key."""
        self.asks += 1
        again = trial.slot >= 0 and self.is_served(trial.slot)
        self.extra_asks += again or trial.slot == WAITING_SLOT or self.design_is_asked()
        if trial.slot < 0:
            return
        if trial.slot == len(self.slots):
            self._append(Slot(key))
        slot = self.slots[trial.slot]
        if slot.key != key:  # reserved before failures that change the design were known
            slot.key = key
            self.design = None
        slot.trial = trial.id
        slot.tries += 1
        slot.outcome = TrialState.RUNNING
        self._refresh(trial.slot)

    def settle(self, trial: Trial) -> None:
        """Record that a trial of this round was answered, failed or abandoned."""
        if trial.slot < 0:
            return
        slot = self.slots[trial.slot]
        if trial.id != slot.trial or slot.outcome is TrialState.ABANDONED:
            return
        # A late answer never serves its slot: whether it comes before the point is asked again may
        # depend on its value.
        slot.outcome = TrialState.ABANDONED if trial.came_back else trial.state
        if self.is_given_up(slot):
            self.design = None  # made anew without the point
        self._refresh(trial.slot)

    def set_status(self, key: int, status: PointStatus) -> None:
        """Record whether a point may be asked, in the design and in the slots that wait for it.

        A point whose value is known exactly counts in the design even if it has no slot.
        """
        before = self._status(key)
        if status is before:
            return
        self.statuses[key] = status
        for number, slot in enumerate(self.slots):
            if slot.key == key:
                self._refresh(number)
        if self.design is None or not self.active.has(key):
            return
        if before is PointStatus.KNOWN:
            self.design = None  # made anew without the point
            return
        if status is PointStatus.KNOWN and all(slot.key != key for slot in self.slots):
            self.design.add(key)
        self.design.exclude(key, status is not PointStatus.OPEN)

    def use(self, surrogate: Surrogate) -> None:
        """Continue with a surrogate that was fitted again; picks made so far stay."""
        if surrogate is not self.surrogate:
            self.surrogate = surrogate
            self.design = None

    def restart(self, active: ActiveSet) -> None:
        """Continue with another active set; picks outside it no longer count."""
        self.active = active
        self.design = None

    def design_is_asked(self) -> bool:
        """Whether the first q_r design points have been asked."""
        return len(self.slots) >= self.design_size

    def design_is_settled(self) -> bool:
        """Whether the first q_r design points have been asked and none is outstanding."""
        unsettled = self._slots_in[SlotState.WAITING] | self._slots_in[SlotState.RETRY]
        return self.design_is_asked() and min(unsettled, default=inf) >= self.design_size

    def gave_up(self) -> bool:
        """Whether the answer of one of the first q_r design points will not be used."""
        return any(number < self.design_size for number in self._slots_in[SlotState.DROPPED])

    def is_given_up(self, slot: Slot) -> bool:
        """Whether the design goes on as if an abandoned point had never been asked."""
        last = not self.needs_all or slot.tries >= MAX_FAILURES
        return slot.outcome is TrialState.ABANDONED and last

    def is_counted(self, trial: Trial) -> bool:
        """Whether the answer of a trial with a slot serves its design point."""
        slot = self.slots[trial.slot]
        return slot.state is SlotState.ANSWERED and slot.trial == trial.id

    def outstanding(self) -> Outstanding:
        """What keeps the round from closing once all its design points have been asked."""
        waiting, retries = (
            [self.slots[n] for n in self._slots_in[state] if n < self.design_size]
            for state in (SlotState.WAITING, SlotState.RETRY)
        )
        statuses = [(self._status(slot.key), slot.key) for slot in retries]
        return Outstanding(
            trials=tuple(sorted(slot.trial for slot in waiting)),
            again=sum(status is PointStatus.OPEN for status, _ in statuses),
            held=tuple(sorted({key for status, key in statuses if status is PointStatus.HELD})),
        )

    def answered(self, first: int | None) -> list[int]:
        """Ids, increasing, of trials whose answers count, in the ``first`` slots (None: in all)."""
        slots = self.slots if first is None else self.slots[:first]
        return sorted(s.trial for s in slots if s.state is SlotState.ANSWERED)

    def _append(self, slot: Slot) -> None:
        self.slots.append(slot)
        # As in sigma_{k-1,r} of Algorithm 1, a point counts in the design once it is asked.
        if self.design is not None:
            self.design.add(slot.key)

    def _refresh(self, number: int) -> None:
        """Derive the state of a slot from its last trial and the status of its point."""
        slot = self.slots[number]
        status, failed_often = self._status(slot.key), slot.tries >= MAX_FAILURES
        if slot.outcome is TrialState.RUNNING:
            slot.state = SlotState.WAITING
        elif slot.outcome is TrialState.COMPLETED:
            slot.state = SlotState.ANSWERED
        elif status is PointStatus.KNOWN:
            slot.state = SlotState.KNOWN
        elif failed_often or status is PointStatus.INFEASIBLE or self.is_given_up(slot):
            slot.state = SlotState.DROPPED
        else:
            slot.state = SlotState.RETRY
        for state, numbers in self._slots_in.items():
            (numbers.add if state is slot.state else numbers.discard)(number)

    def _current_design(self) -> Design:
        if self.design is None:
            inside = self.active.has
            picks = [slot.key for slot in self.slots if not self.is_given_up(slot)]
            known = {k for k, status in self.statuses.items() if status is PointStatus.KNOWN}
            # A point with attached results counts once more for each slot that asks it.
            without_slot = known.difference(picks) | set(self.attached)
            picks = sorted(without_slot, key=abs) + picks  # keys of a box in the order met
            in_set = filter(inside, picks)
            self.design = self.active.design(self.surrogate, self.number, in_set)
            for key, status in self.statuses.items():
                if status is not PointStatus.OPEN and inside(key):
                    self.design.exclude(key)
        return self.design

    def _status(self, key: int) -> PointStatus:
        return self.statuses.get(key, PointStatus.OPEN)
