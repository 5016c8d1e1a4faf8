"""Distinct points and how often each has been evaluated."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

import torch
from torch import Tensor

from botorch_delay.history.answers import same_points
from botorch_delay.history.trials import Attached, Trial, TrialState


@dataclass(frozen=True, eq=False)
class Replicates:
    """What came of one point.

    Attributes:
        x: the point, shape ``d``.
        index: its row in a finite domain, or None.
        count: its answers, attached results included.
        pending: its running trials.
        mean: of its answers, in the user's units and sign; None without one.
        standard_error: of that mean, from how its answers differ: their standard deviation over
            sqrt(count); None with fewer than two.
    """

    x: Tensor
    index: int | None
    count: int
    pending: int
    mean: float | None
    standard_error: float | None


def replicates(trials: Iterable[Trial], attached: Sequence[Attached]) -> list[Replicates]:
    """One entry for each distinct point with an answer or a running trial.

    The most answered come first; those with as many answers in the order in which they were first
    asked or attached, trials before attached results.
    """
    counted = [t for t in trials if t.state in (TrialState.COMPLETED, TrialState.RUNNING)]
    places: list[Trial | Attached] = [*counted, *attached]
    if not places:
        return []
    members: dict[int, list[Trial | Attached]] = {}
    groups = same_points(torch.stack([place.x for place in places])).tolist()
    for group, place in zip(groups, places, strict=True):
        members.setdefault(group, []).append(place)
    found = [_summary(group) for group in members.values()]
    return sorted(found, key=lambda point: -point.count)


def _summary(members: Sequence[Trial | Attached]) -> Replicates:
    values = [member.value for member in members if member.value is not None]
    n, first = len(values), members[0]
    mean = fmean(values) if n else None
    error = stdev(values) / math.sqrt(n) if n > 1 else None
    return Replicates(first.x.clone(), first.index, n, len(members) - n, mean, error)
