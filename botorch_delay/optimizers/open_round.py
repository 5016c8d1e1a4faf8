"""The round that is being played: its design, and what became of each design point."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from botorch_delay.design import GreedyDesign
from botorch_delay.exceptions import EmptyDomainError, StorageError
from botorch_delay.optimizers.feasibility import MAX_FAILURES, Standing
from botorch_delay.surrogate import Surrogate
from botorch_delay.trials import Trial, TrialState


class SlotState(enum.Enum):
    """Where a design point stands."""

    WAITING = "waiting"  # a trial is running
    RETRY = "retry"  # its trial failed, and it is asked again
    ANSWERED = "answered"
    STRUCK = "struck"  # no answer will be used: abandoned, or failed too often


_AFTER = {
    TrialState.RUNNING: SlotState.WAITING,
    TrialState.COMPLETED: SlotState.ANSWERED,
    TrialState.FAILED: SlotState.RETRY,
    TrialState.ABANDONED: SlotState.STRUCK,
}


@dataclass
class Slot:
    """A design point of the round: one pick of the design, served by one or more trials.

    Attributes:
        index: row of the point in the domain.
        trials: ids of the trials that served it; the last one counts.
        outcome: state of the last trial; abandoned once and for all, whatever comes late.
        state: where the slot stands.
    """

    index: int
    trials: list[int] = field(default_factory=list)
    outcome: TrialState = TrialState.RUNNING
    state: SlotState = SlotState.WAITING


class OpenRound:
    """Design and bookkeeping of the open round.

    Args:
        number: r, from 1.
        design_size: q_r.
        surrogate: fixed within the round.
        points: ``N x d``, the domain.
        active: LongTensor of the active rows, increasing.
        standings: of the points that are not open.
    """

    def __init__(
        self,
        number: int,
        design_size: int,
        surrogate: Surrogate,
        points: Tensor,
        active: Tensor,
        standings: Mapping[int, Standing],
    ) -> None:
        self.number = number
        self.design_size = design_size
        self.surrogate = surrogate
        self.slots: list[Slot] = []
        self.asks = 0
        self._points = points
        self._active = active
        self._standings = dict(standings)
        self._design: GreedyDesign | None = None
        self._retries: set[int] = set()
        self._unsettled: set[int] = set()  # of the first q_r slots
        self._running: set[int] = set()  # trial ids

    def next_retry(self) -> int | None:
        """The first slot whose point is to be asked again now."""
        free = (n for n in self._retries if self._standing(self.slots[n].index) is Standing.OPEN)
        return min(free, default=None)

    def next_index(self) -> int:
        """The row of the domain that the design picks next.

        Raises:
            EmptyDomainError: if every active point is infeasible.
        """
        design = self._current_design()
        try:
            return int(self._active[design.next()])
        except EmptyDomainError:
            held = [
                self._position(index)
                for index, standing in self._standings.items()
                if standing is Standing.HELD and self._contains(index)
            ]
            if not held:
                raise
            # Nothing else is left to ask: rather a held point than none.
            for position in held:
                design.exclude(position, excluded=False)
            pick = design.next()
            for position in held:
                design.exclude(position)
            return int(self._active[pick])

    def take(self, trial: Trial) -> None:
        """A trial was opened for a slot, a new one or one that is tried again."""
        assert trial.index is not None
        self.asks += 1
        self._running.add(trial.id)
        if trial.slot == len(self.slots):
            self.slots.append(Slot(trial.index))
            if self._design is not None:
                self._design.add(self._position(trial.index))
        slot = self.slots[trial.slot]
        slot.trials.append(trial.id)
        slot.outcome = TrialState.RUNNING
        self._refresh(trial.slot)

    def settle(self, trial: Trial) -> None:
        """A trial of this round was answered, failed or abandoned."""
        self._running.discard(trial.id)
        slot = self.slots[trial.slot]
        if trial.id != slot.trials[-1] or slot.outcome is TrialState.ABANDONED:
            return
        slot.outcome = TrialState.ABANDONED if trial.late else trial.state
        if slot.outcome is TrialState.ABANDONED:
            self._design = None  # sigma forgets the point: the design is made anew without it
        self._refresh(trial.slot)

    def set_standing(self, index: int, standing: Standing) -> None:
        """Whether a point may be asked; decides on the slots that wait to be asked again there."""
        if standing is self._standing(index):
            return
        self._standings[index] = standing
        for number, slot in enumerate(self.slots):
            if slot.index == index:
                self._refresh(number)
        if self._design is not None and self._contains(index):
            self._design.exclude(self._position(index), standing is not Standing.OPEN)

    def restart(self, active: Tensor) -> None:
        """Go on with other active points; picks outside them no longer count."""
        self._active = active
        self._design = None

    def design_is_settled(self) -> bool:
        """Whether the first q_r design points have been asked and none is outstanding."""
        return len(self.slots) >= self.design_size and not self._unsettled

    def all_settled(self) -> bool:
        """Whether no trial of the round is running."""
        return not self._running

    def holding(self) -> list[int]:
        """Running trials of the first q_r slots, once all of those have been asked."""
        if len(self.slots) < self.design_size:
            return []
        waiting = (self.slots[number] for number in self._unsettled)
        return sorted(s.trials[-1] for s in waiting if s.state is SlotState.WAITING)

    def held_points(self) -> list[int]:
        """Points of the first q_r slots that are asked again once other trials of them end."""
        if len(self.slots) < self.design_size:
            return []
        waiting = (self.slots[number] for number in self._unsettled & self._retries)
        return sorted({s.index for s in waiting if self._standing(s.index) is Standing.HELD})

    def answered(self, first: int | None) -> list[int]:
        """Trials whose answers count, of the first so many slots or of all, increasing."""
        slots = self.slots if first is None else self.slots[:first]
        return sorted(s.trials[-1] for s in slots if s.state is SlotState.ANSWERED)

    def replay(self, trials: list[Trial]) -> None:
        """Take over stored trials of this round, in the order of their ids.

        Raises:
            StorageError: if they are not a possible history.
        """
        for trial in trials:
            fits = trial.slot < len(self.slots) and self.slots[trial.slot].index == trial.index
            if not (fits or trial.slot == len(self.slots)):
                raise StorageError(f"Stored trial {trial.id} has an impossible slot {trial.slot}.")
            self.take(trial)
        for trial in trials:
            if trial.state is not TrialState.RUNNING:
                self.settle(trial)

    def _refresh(self, number: int) -> None:
        """Where a slot stands follows from its last trial and the feasibility of its point."""
        slot = self.slots[number]
        slot.state = _AFTER[slot.outcome]
        if slot.state is SlotState.RETRY and (
            len(slot.trials) >= MAX_FAILURES or self._standing(slot.index) is Standing.INFEASIBLE
        ):
            slot.state = SlotState.STRUCK
        _put(self._retries, number, slot.state is SlotState.RETRY)
        settled = slot.state in (SlotState.ANSWERED, SlotState.STRUCK)
        _put(self._unsettled, number, number < self.design_size and not settled)

    def _current_design(self) -> GreedyDesign:
        if self._design is None:
            candidates = self.surrogate.inputs(self._points[self._active])
            picks = [
                self._position(slot.index)
                for slot in self.slots
                if slot.outcome is not TrialState.ABANDONED and self._contains(slot.index)
            ]
            self._design = GreedyDesign(
                self.surrogate.covar_module, candidates, self.surrogate.noise_var, picks
            )
            for index, standing in self._standings.items():
                if standing is not Standing.OPEN and self._contains(index):
                    self._design.exclude(self._position(index))
        return self._design

    def _standing(self, index: int) -> Standing:
        return self._standings.get(index, Standing.OPEN)

    def _position(self, index: int) -> int:
        return int(torch.searchsorted(self._active, index))

    def _contains(self, index: int) -> bool:
        position = self._position(index)
        return position < len(self._active) and int(self._active[position]) == index


def _put(members: set[int], number: int, inside: bool) -> None:
    if inside:
        members.add(number)
    else:
        members.discard(number)
