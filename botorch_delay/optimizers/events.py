"""What an ask brought about besides its point: enough to make the same ask again elsewhere.

Rounds open and kernels are learned inside asks, from the answers that happen to be there. Which
those were cannot be told from the trials afterwards, so an ask leaves a note of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from botorch_delay.elimination.rounds import Departure
from botorch_delay.exceptions import StorageError, TrialError
from botorch_delay.gp.surrogate import Surrogate
from botorch_delay.history.states import brief, is_whole
from botorch_delay.history.trials import Trial

LARGEST = 2**53  # of a whole number in a note


@dataclass(frozen=True)
class Opening:
    """The end of a round and the beginning of the next, as one ask brought it about.

    Attributes:
        number: of the round that opened.
        used: ids of the trials whose answers the bounds of the closed round use.
        pool: ids of all trials answered by then, where all answers count.
        attached: positions of the attached results there were, where they count.
        infeasible: for each infeasible point the id of a trial there.
        surrogate: record of the learned kernel that judged the closed round; None for a given one.
        departures: of the closed round.
    """

    number: int
    used: tuple[int, ...] = ()
    pool: tuple[int, ...] = ()
    attached: tuple[int, ...] = ()
    infeasible: tuple[int, ...] = ()
    surrogate: Mapping[str, Any] | None = None
    departures: tuple[Departure, ...] = ()

    def renamed(self, trial: Callable[[int], int], attached: Callable[[int], int]) -> Opening:
        """The same with other names for trials and attached results."""
        return replace(
            self,
            used=tuple(map(trial, self.used)),
            pool=tuple(map(trial, self.pool)),
            attached=tuple(map(attached, self.attached)),
            infeasible=tuple(map(trial, self.infeasible)),
        )

    def record(self) -> dict[str, Any]:
        """As plain values; what is empty is left out."""
        record: dict[str, Any] = {"number": self.number}
        lists = {"used": self.used, "attached": self.attached, "infeasible": self.infeasible}
        record |= {name: list(ids) for name, ids in lists.items() if ids}
        if self.pool:
            record["pool"] = "used" if self.pool == self.used else list(self.pool)
        if self.surrogate is not None:
            record["surrogate"] = self.surrogate
        if self.departures:
            record["departures"] = [str(departure) for departure in self.departures]
        return record

    @classmethod
    def read(cls, record: Mapping[str, Any]) -> Opening:
        """From plain values."""
        used = _ids(record.get("used", ()))
        pool = record.get("pool", ())
        return cls(
            number=_whole(record["number"], 1),
            used=used,
            pool=used if pool == "used" else _ids(pool),
            attached=_ids(record.get("attached", ())),
            infeasible=_ids(record.get("infeasible", ())),
            surrogate=record.get("surrogate"),
            departures=tuple(map(Departure, record.get("departures", ()))),
        )


@dataclass(frozen=True)
class Fit:
    """Kernel and noise that were learned in an ask.

    Attributes:
        answers: to how many answers.
        surrogate: their record.
    """

    answers: int
    surrogate: Mapping[str, Any]


@dataclass(frozen=True)
class Note:
    """What an ask brought about.

    Attributes:
        round: that the trial belongs to.
        slot: which design point it serves; below 0 for none.
        resets: how often all active points had turned out to be infeasible by then.
        openings: rounds that opened since the ask before.
        fit: what was learned for this ask; None where nothing new was.
    """

    round: int
    slot: int
    resets: int = 0
    openings: tuple[Opening, ...] = ()
    fit: Fit | None = None

    def renamed(self, trial: Callable[[int], int], attached: Callable[[int], int]) -> Note:
        """The same with other names for trials and attached results."""
        openings = tuple(opening.renamed(trial, attached) for opening in self.openings)
        return replace(self, openings=openings)

    def record(self) -> dict[str, Any]:
        """As plain values, JSON-ready; what is empty is left out."""
        record: dict[str, Any] = {"round": self.round, "slot": self.slot}
        if self.resets:
            record["resets"] = self.resets
        if self.openings:
            record["openings"] = [opening.record() for opening in self.openings]
        if self.fit is not None:
            record["fit"] = {"answers": self.fit.answers, "surrogate": self.fit.surrogate}
        return record

    @classmethod
    def read(cls, record: Any) -> Note:
        """From plain values.

        Raises:
            StorageError: if they are malformed.
        """
        try:
            fit = record.get("fit")
            return cls(
                round=_whole(record["round"], 1),
                slot=_whole(record["slot"], -2),
                resets=_whole(record.get("resets", 0), 0),
                openings=tuple(map(Opening.read, record.get("openings", ()))),
                fit=None if fit is None else Fit(_whole(fit["answers"], 0), fit["surrogate"]),
            )
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise StorageError(f"The note of an ask is malformed: {brief(record)}.") from error


class Notebook:
    """What the asks of a run brought about, from some ask on.

    Args:
        first: id of the first trial that is noted.
        surrogate: in use so far.
    """

    def __init__(self, surrogate: Surrogate, first: int = 0) -> None:
        self._first = first
        self._notes: dict[int, Note] = {}  # of asks that brought about more than their point
        self._openings: list[Opening] = []  # since the last ask
        self._surrogate = surrogate

    def opened(self, view: Opening, surrogate: Surrogate) -> None:
        """Note that a round opened, by what was known, under a surrogate."""
        learned = surrogate.describe() if surrogate.learned else None
        self._openings.append(replace(view, surrogate=learned))

    def write(self, trial: Trial, resets: int, surrogate: Surrogate, answers: int) -> None:
        """Keep what an ask brought about, where that is more than its point.

        Args:
            trial: that was asked.
            resets: how often all active points had turned out to be infeasible.
            surrogate: in use now.
            answers: how many it was fitted to.
        """
        fit = None
        if surrogate is not self._surrogate:
            self._surrogate = surrogate
            if surrogate.learned:
                fit = Fit(answers, surrogate.describe())
        note = Note(trial.round, trial.slot, resets, tuple(self._openings), fit)
        if note != Note(trial.round, trial.slot):
            self._notes[trial.id] = note
        self._openings = []

    def read(self, trial: Trial) -> Note:
        """The note of an ask.

        Raises:
            TrialError: if it was made before the first one that is noted.
        """
        if trial.id < self._first:
            raise TrialError(f"There is no note of trial {trial.id}: a state was loaded since.")
        return self._notes.get(trial.id, Note(trial.round, trial.slot))


def merged(notes: Sequence[Note]) -> Note:
    """The last of some notes, with what the asks before it brought about."""
    openings = [opening for note in notes for opening in note.openings]
    fits = [note.fit for note in notes if note.fit is not None]
    return replace(notes[-1], openings=tuple(openings), fit=fits[-1] if fits else None)


def _ids(values: Any) -> tuple[int, ...]:
    return tuple(_whole(value, 0) for value in values)


def _whole(value: Any, minimum: int) -> int:
    if not is_whole(value, minimum) or value > LARGEST:
        raise ValueError(f"{value!r} is no whole number from {minimum} to {LARGEST}")
    return int(value)
