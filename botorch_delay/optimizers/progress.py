"""Rounds and active set of BPE-Delay as plain values, and back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

from botorch_delay import validation
from botorch_delay.elimination.active_set import ActiveSet, RoundBounds
from botorch_delay.elimination.open_round import OpenRound
from botorch_delay.elimination.rounds import Departure, RoundRecord, RoundRule
from botorch_delay.exceptions import InputError, StorageError
from botorch_delay.gp.surrogate import Surrogate
from botorch_delay.history.answers import Answers
from botorch_delay.history.trials import Trial
from botorch_delay.optimizers.budget import Budget
from botorch_delay.optimizers.claims import History

# Makes the open round from its number, its design size, and the active set of the closed rounds.
MakeRound = Callable[[int, int, ActiveSet], OpenRound]


@dataclass(frozen=True)
class Progress:
    """What cannot be derived from the trials alone.

    Attributes:
        records: the closed rounds.
        resets: how often all active points turned out to be infeasible.
        open: the open round, if there is one.
        active: what the closed rounds left.
        fitted: the surrogate, and how many answers it was fitted to; as a record where it is
            written.
        history: of the run, for the claims.
        budget: for asks outside the design, if there is one.
    """

    records: list[RoundRecord]
    resets: int
    open: OpenRound | None
    active: ActiveSet
    fitted: Any = None
    history: History = field(default_factory=History)
    budget: Budget | None = None


def write_progress(progress: Progress) -> dict[str, Any]:
    """The progress as plain values; see ``Optimizer._progress``."""
    opened = None
    if progress.open is not None:
        opened = {
            "number": progress.open.number,
            "design_size": progress.open.design_size,
            "departures": [str(departure) for departure in sorted(progress.open.departures)],
        }
    return {
        "rounds": [_describe(record) for record in progress.records],
        "arrays": progress.active.arrays(),
        "arrays_version": len(progress.records) + progress.resets,
        "values": {
            "open": opened,
            "resets": progress.resets,
            "fit": progress.fitted,
            "history": progress.history.describe(),
        },
    }


@contextmanager
def _checked() -> Iterator[None]:
    """Any error of reading is one of what is stored."""
    try:
        yield
    except StorageError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, InputError) as error:
        raise StorageError(f"The stored rounds are malformed: {error!r}.") from error


@_checked()
def read_progress(
    stored: Mapping[str, Any],
    trials: list[Trial],
    whole: ActiveSet,
    rule: RoundRule,
    horizon: int | None,
    judged: Callable[[RoundRecord], tuple[Surrogate, Answers, RoundBounds]],
    make_round: MakeRound,
) -> Progress:
    """The progress of plain values, each of them checked.

    Raises:
        StorageError: if they are malformed or do not fit the trials.
    """
    if horizon is not None and len(trials) > horizon:
        raise StorageError(f"{len(trials)} trials are stored for a horizon of {horizon}.")
    records = []
    for number, record in enumerate(stored["rounds"], start=1):
        ids = tuple(record["trial_ids"])
        if record["number"] != number or any(not 0 <= i < len(trials) for i in ids):
            raise StorageError(f"Stored round {number} is malformed.")
        departures = tuple(map(Departure, record["departures"]))
        records.append(RoundRecord(**{**record, "trial_ids": ids, "departures": departures}))
    active = whole.rebuilt(stored["arrays"], records, judged)
    opened, last = stored["values"]["open"], len(records)
    current = None
    if opened is not None:
        last += 1
        if opened["number"] != last:
            raise StorageError(f"Round {opened['number']} is open after {last - 1} closed rounds.")
        size = 1
        for number in range(1, last + 1):
            size = rule.design_size(number, size)
        if opened["design_size"] != size:
            raise StorageError(f"Round {last} has {opened['design_size']} design points.")
        current = make_round(last, size, active)
        current.departures = set(map(Departure, opened["departures"]))
    if any(trial.round > last for trial in trials):
        raise StorageError(f"A stored trial belongs to a round after the last, {last}.")
    resets = validation.whole(stored["values"]["resets"], "resets", 0)
    history = History.read(stored["values"]["history"])
    return Progress(records, resets, current, active, history=history)


def _describe(record: RoundRecord) -> dict[str, Any]:
    departures = [str(departure) for departure in record.departures]
    return asdict(record) | {"trial_ids": list(record.trial_ids), "departures": departures}
