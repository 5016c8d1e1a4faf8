"""Rounds and active set of BPE-Delay as plain values, and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from botorch_delay import checks
from botorch_delay.exceptions import InputError, StorageError
from botorch_delay.optimizers.open_round import OpenRound
from botorch_delay.rounds import RoundRecord, RoundRule
from botorch_delay.trials import Trial

# Makes the open round from its number, its design size, the record of a learned surrogate and
# the active rows.
MakeRound = Callable[[int, int, Any, Tensor], OpenRound]


@dataclass(frozen=True)
class Progress:
    """What cannot be derived from the trials alone.

    Attributes:
        eliminated: for each point the round that eliminated it, 0 while it is active: ``N``.
        records: the closed rounds.
        resets: how often all active points turned out to be infeasible.
        open: the open round, if there is one.
    """

    eliminated: Tensor
    records: list[RoundRecord]
    resets: int
    open: OpenRound | None


def write_progress(progress: Progress, *, learned: bool) -> dict[str, Any]:
    """The progress as plain values; see ``Optimizer._progress``."""
    opened = None
    if progress.open is not None:
        opened = {
            "number": progress.open.number,
            "design_size": progress.open.design_size,
            "surrogate": progress.open.surrogate.describe() if learned else None,
        }
    return {
        "rounds": [asdict(r) | {"trial_ids": list(r.trial_ids)} for r in progress.records],
        "arrays": {"eliminated": progress.eliminated.clone()},
        "arrays_version": len(progress.records) + progress.resets,
        "values": {"open": opened, "resets": progress.resets},
    }


def read_progress(
    stored: Mapping[str, Any],
    trials: list[Trial],
    points: Tensor,
    rule: RoundRule,
    horizon: int,
    make_round: MakeRound,
) -> Progress:
    """The progress of plain values, each of them checked.

    Raises:
        StorageError: if they are malformed or do not fit the trials.
    """
    try:
        return _read(stored, trials, points, rule, horizon, make_round)
    except StorageError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, InputError) as error:
        raise StorageError(f"The stored rounds are malformed: {error!r}.") from error


def _read(
    stored: Mapping[str, Any],
    trials: list[Trial],
    points: Tensor,
    rule: RoundRule,
    horizon: int,
    make_round: MakeRound,
) -> Progress:
    if len(trials) > horizon:
        raise StorageError(f"{len(trials)} trials are stored for a horizon of {horizon}.")
    eliminated = _read_eliminated(stored["arrays"]["eliminated"], points, len(stored["rounds"]))
    records = []
    for number, record in enumerate(stored["rounds"], start=1):
        ids = tuple(record["trial_ids"])
        if record["number"] != number or any(not 0 <= i < len(trials) for i in ids):
            raise StorageError(f"Stored round {number} is malformed.")
        records.append(RoundRecord(**{**record, "trial_ids": ids}))
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
        current = make_round(last, size, opened["surrogate"], active_rows(eliminated))
    if any(trial.round > last for trial in trials):
        raise StorageError(f"A stored trial belongs to a round after the last, {last}.")
    resets = checks.whole(stored["values"]["resets"], "resets", 0)
    return Progress(eliminated, records, resets, current)


def active_rows(eliminated: Tensor) -> Tensor:
    """The rows that are active: a LongTensor, increasing."""
    return (eliminated == 0).nonzero().flatten()


def _read_eliminated(eliminated: Any, points: Tensor, rounds: int) -> Tensor:
    if (
        not isinstance(eliminated, Tensor)
        or eliminated.dtype != torch.int64
        or eliminated.shape != (len(points),)
        or eliminated.min() != 0
        or eliminated.max() > rounds + 1
    ):
        raise StorageError("The stored active set is not a set of points of the domain.")
    return eliminated.to(points.device, copy=True)
