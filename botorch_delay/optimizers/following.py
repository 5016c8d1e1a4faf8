"""What an ask made elsewhere is here: the part of its round that its maker did not see.

Processes that share a study each decide when rounds open and close; an ask comes with the events
that it brought about there (:mod:`botorch_delay.optimizers.replica`). By the time they are taken in
here the round may have closed, or the slot may be another trial's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from botorch_delay.domains.devices import sent
from botorch_delay.elimination.open_round import NO_SLOT, WAITING_SLOT
from botorch_delay.exceptions import ExhaustedDesignError, StorageError
from botorch_delay.history.events import Event
from botorch_delay.optimizers.round_sequence import RoundSequence

# How many slots may be missing below one that was served elsewhere.
FURTHEST_SLOT = 10_000


def is_news(rounds: RoundSequence, event: Event, *, finished: bool) -> bool:
    """Whether what an ask elsewhere decided of the rounds has yet to happen in those here."""
    if event.kind == "opened":
        return rounds.open is None and not finished
    return rounds.open is not None and (
        event.kind != "closed" or event.data["record"]["number"] == rounds.open.number
    )


def design_point_before(rounds: RoundSequence, asked: Mapping[str, Any]) -> dict[str, Any] | None:
    """A design point that comes before the one asked elsewhere, as the data of an event, or None.

    It waits to be asked: its trial is not known yet, or never came to be. For a slot further away
    than any run leaves them there is none: a damaged event must not cost hours.
    """
    current, slot = rounds.open, asked["slot"]
    if current is None or asked["round"] != current.number:
        return None
    if not len(current.slots) < slot <= len(current.slots) + FURTHEST_SLOT:
        return None
    try:
        found = rounds.active.suggestion(current.next_key(), current.number, slot)
    except ExhaustedDesignError:
        return None
    point = rounds.active.domain.like[found.index] if found.x is None else found.x
    return {"x": point.tolist(), "point": found.index}


def placed(rounds: RoundSequence, asked: Mapping[str, Any], *, finished: bool) -> dict[str, Any]:
    """The data of an ask made elsewhere, with the round and slot that it has here."""
    current, number, slot = rounds.open, asked["round"], asked["slot"]
    key = rounds.active.key_of(sent(asked["x"], rounds.active.domain.like))
    data = dict(asked) | {"point": rounds.active.suggestion(key, 1, 0).index}
    if current is None:
        if not finished:
            raise StorageError("The ask that opened the first round is missing.")
        # It was asked elsewhere while the last ask was out.
        return data | {"round": len(rounds.records), "slot": NO_SLOT}
    if number < current.number or (number == current.number and slot < 0):
        return data
    fits = number == current.number and slot <= len(current.slots)
    fits = fits and current.admits(slot, key)
    # One that does not fit comes on top of the design, as while a round waits.
    return data | {"round": current.number, "slot": slot if fits else WAITING_SLOT}
