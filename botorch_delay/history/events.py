"""The events of a run: the state of an optimizer is their replay.

An event records what was decided, so that applying it decides nothing: the same events give the
same state in this process, in one that loads a file, and in several that share an engine's trials.

| kind | what happened | data |
|---|---|---|
| asked | a trial was asked | ``x``, ``point`` (row of a set), ``round``, ``slot``; see below |
| completed, failed, abandoned | what became of a trial | ``noise_var``, ``reason`` |
| corrected | a trial's value was replaced, or it failed after all | ``reason`` |
| attached | a result came from elsewhere | ``x``, ``point``, ``noise_var`` if known |
| detached | an attached result was withdrawn | its ``id``, ``reason`` |
| extended | more asks were planned | ``horizon`` |
| finished | the run was ended | |
| noted | the user's notes changed | |
| fitted | kernel and noise were learned | ``surrogate``, ``answers``, ``range`` |
| opened | the first round began, or one after an extension | |
| closed | a round ended | ``record``, ``last``, ``left`` and ``attached`` (see below) |
| reset | no active point could be asked | ``whole`` (the domain became active again) |
| reserved | a design point is left to another process | ``x``, ``point`` |
| tested | a lower bound on the RKHS norm was computed | ``norm``, ``answers`` |
| accepted, searched | a step of GP-ThreDS | ``node`` |
| base | a call of a wrapped optimizer | its ``events``, ``fed`` (trial that it was told of) |

``left`` has the rows that a round eliminated, or on a box a point that is left; ``attached`` tells
whether attached results were used. With a regret budget an ask has a ``price`` and whether it is
``extra``, too; if :class:`~botorch_delay.optimizers.pending.Censor` adds up widths, a ``width``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from botorch_delay import validation
from botorch_delay.domains.domain import Domain
from botorch_delay.exceptions import StorageError

KINDS = (
    *("asked", "completed", "failed", "abandoned", "corrected", "attached", "detached"),
    *("extended", "finished", "noted", "fitted"),
    *("opened", "closed", "reset", "reserved", "tested", "accepted", "searched", "base"),
)
SETTLED = ("completed", "failed", "abandoned")
MOST_SHOWN = 60  # most characters of a stored value in a message


@dataclass(frozen=True, slots=True)
class Event:
    """One event, of a kind above."""

    kind: str
    time: float  # seconds since the epoch (UTC)
    trial: int | None = None  # id of the trial that it concerns
    value: float | None = None  # of a completed or corrected trial or an attached result
    data: Mapping[str, Any] = field(default_factory=dict)  # everything else, JSON-ready

    def record(self) -> dict[str, Any]:
        """The event as plain values, JSON-ready."""
        kind, time, trial, value = self.kind, self.time, self.trial, self.value
        data = dict(self.data)
        return {"kind": kind, "time": time, "trial": trial, "value": value, "data": data}

    def row(self) -> tuple[str, float, int | None, float | None, str]:
        """The event as a row of a table, its data as JSON."""
        return self.kind, self.time, self.trial, self.value, json.dumps(self.data)

    @classmethod
    def read(cls, record: Any) -> Event:
        """An event from plain values; StorageError if they are malformed."""
        try:
            kind, trial, value, data = (record[key] for key in ("kind", "trial", "value", "data"))
            time = validation.real(record["time"], "time")
            if kind not in KINDS or not isinstance(data, Mapping):
                raise ValueError("its kind or its data are unknown")
            if (trial is not None) != (kind in ("asked", "corrected", *SETTLED)):
                raise ValueError(f"trial is {excerpt(trial)}")
            if kind != "corrected" and (value is not None) != (kind in ("completed", "attached")):
                raise ValueError(f"value is {excerpt(value)}")
            if not isinstance(data.get("reason", ""), str):
                raise ValueError(f"reason is {excerpt(data['reason'])}")
            if data.get("noise_var") is not None:
                validation.positive(data["noise_var"], "noise_var")
            if kind == "asked":
                validation.whole(data["round"], "round", 1)
                validation.whole(data["slot"], "slot", -2)
            trial = None if trial is None else validation.whole(trial, "trial", 0)
            value = None if value is None else validation.real(value, "value")
        except (LookupError, TypeError, ValueError) as error:
            raise StorageError(f"A stored event is malformed: {truncated(error)}.") from error
        return cls(kind, time, trial, value, data)


def read_events(records: Sequence[Any], domain: Domain) -> list[Event]:
    """Events from plain values; StorageError if one is malformed or its point does not fit."""
    events = [Event.read(record) for record in records]
    placed = [event for event in events if event.kind in ("asked", "attached", "reserved")]
    if not placed:
        return events
    try:
        points = [[validation.real(number, "x") for number in event.data["x"]] for event in placed]
        X = domain.like.new_tensor(points)
        if X.shape != (len(placed), domain.dim):
            raise ValueError(f"points have {domain.dim} columns")
        given = [event.data["point"] for event in placed]
        if domain.count is None and any(row is not None for row in given):
            raise ValueError("points of a box have no row")
        last = (domain.count or 0) - 1
        rows = torch.tensor(
            [-1 if n is None else validation.whole(n, "point", 0, last) for n in given]
        )
        is_row, asked = rows >= 0, torch.tensor([event.kind != "attached" for event in placed])
        fits = torch.equal(X[is_row], domain.like[rows[is_row]])
        fits = fits and bool((domain.find(X[~is_row]) < 0).all())
        fits = fits and bool(domain.contains(X[asked & ~is_row]).all())
        if not fits:
            raise ValueError("x is not the point of the domain that is named")
    except (LookupError, TypeError, ValueError, RuntimeError) as error:
        raise StorageError(f"A stored point is malformed: {truncated(error)}.") from error
    return events


def excerpt(value: Any) -> str:
    """A stored value for a message, of at most MOST_SHOWN characters."""
    text = repr(" ".join(value.split()) if isinstance(value, str) else value)
    return text if len(text) <= MOST_SHOWN else f"{text[: MOST_SHOWN - 3]}..."


def truncated(error: BaseException) -> str:
    """An error's message, cut to 500 characters, since it may quote stored data."""
    text = str(error)
    return text if len(text) <= 500 else f"{text[:497]}..."
