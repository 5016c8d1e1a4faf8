"""The end of a round: bounds from its answers, and what they leave of the active set."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from botorch_delay.elimination.active_set import ActiveSet, RoundBounds
from botorch_delay.elimination.open_round import OpenRound
from botorch_delay.elimination.rounds import Departure, RoundRecord
from botorch_delay.exceptions import EmptyDomainError
from botorch_delay.history.answers import Answers
from botorch_delay.history.point_status import MAX_FAILURES, Feasibility, nothing_to_ask

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RoundAnswers:
    """The answers by which a round is judged."""

    ids: tuple[int, ...]  # of the trials of ``own``, increasing
    own: Answers  # of the round; of all trials where merged
    pooled: Answers | None = None  # all answers, if bounds from them count as well
    # Whether ``pooled`` replaces ``own``: where nothing is claimed, or evaluations are exact.
    merged: bool = False


def close_round(
    current: OpenRound,
    answers: RoundAnswers,
    active: ActiveSet,
    infeasible: Sequence[int],
    bounds: RoundBounds,
) -> tuple[RoundRecord, ActiveSet]:
    """The record of a round, and the active set that it leaves; nothing is changed.

    A point stays if its upper bound is no smaller than the largest lower bound (Algorithm 1).
    Points with the keys ``infeasible`` are out and their bounds do not count.
    :class:`NumericsError` if a bound is not finite.
    """
    own, pooled = answers.own, answers.pooled
    surrogate = current.surrogate.standardized((own if pooled is None else pooled).y)
    others = None if pooled is None else surrogate.data(pooled)
    if answers.merged and others is not None:
        data, others, design = others, None, None
    else:
        data, design = surrogate.data(own), current.design
    stay, departures = active.without(infeasible), set(current.departures)
    cutoff = half_width = None
    if not stay.is_empty and surrogate.scaled and (len(data.y) or others is not None):
        found = stay.eliminate(current.number, surrogate, data, bounds, own, others, design)
        stay, multiplier = found.active, found.multiplier
        cutoff = bounds.sign * surrogate.unwarped(found.cutoff)
        half_width = found.half_width if surrogate.warping.is_identity else None
        if found.contradicted and bounds.valid:
            departures.add(Departure.CONTRADICTED)
    else:  # without answers, or while all are equal, nothing can be eliminated
        multiplier = stay.half_width(surrogate, data, bounds).multiplier
        # With no point left the next ask goes on with every feasible point.
        stay = active if stay.is_empty else stay.after(current.number)
    size = current.design_size
    record = RoundRecord(
        number=current.number,
        design_size=size if current.length is not None else min(size, len(current.slots)),
        length=current.asks,
        observed=len(own),
        active_before=active.size,
        active_after=stay.size,
        trial_ids=answers.ids,
        multiplier=multiplier,
        delta=bounds.delta if bounds.valid else None,
        hyperparameters=surrogate.hyperparameters(),
        cutoff=cutoff,
        surrogate=surrogate.describe() if surrogate.learned else None,
        waits=current.waits,
        departures=tuple(sorted(departures)),
        half_width=half_width,
    )
    return record, stay


def check_anything_left(active: ActiveSet, feasibility: Feasibility, number: int) -> None:
    """Log that no active point may be asked; EmptyDomainError if no point of the domain may."""
    left, known = active.restored(feasibility.infeasible(), number), feasibility.known()
    if left.is_empty:
        raise EmptyDomainError(
            f"Every point of the domain failed {MAX_FAILURES} times and can be asked no more; see "
            "the reasons in opt.trials."
        )
    if known and left.without(sorted(known)).is_empty:
        raise nothing_to_ask(len(known), exact=True)
    logger.log(
        logging.INFO if known else logging.WARNING,
        "round %d: every active point %s; going on with what is feasible of the domain",
        number,
        "has been asked, and evaluations are exact" if known else "is infeasible",
    )
