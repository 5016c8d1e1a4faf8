"""The end of a round: bounds from its answers, and what they leave of the active set.

``optimizers.round_sequence`` decides when a round closes, by its ``RoundRule``, and calls
``close_round`` before an ask, or after the last ask once no answer is missing.
"""

from __future__ import annotations

from collections.abc import Sequence

from botorch_delay.elimination.active_set import ActiveSet, RoundAnswers, RoundBounds
from botorch_delay.elimination.open_round import OpenRound
from botorch_delay.elimination.rounds import Departure, RoundRecord


def close_round(
    current: OpenRound,
    answers: RoundAnswers,
    active: ActiveSet,
    infeasible: Sequence[int],
    bounds: RoundBounds,
    *,
    last: bool,
) -> tuple[RoundRecord, ActiveSet]:
    """The record of a round, and the active set that it leaves; the arguments are not changed.

    A point stays if its upper bound is no smaller than the largest lower bound (Algorithm 1).
    Points with the keys ``infeasible`` are removed first, and their bounds do not count. After the
    ``last`` round with a learned kernel no search uses the set that is left, so a rough estimate
    of its size will do. :class:`NumericsError` if a bound is not finite.
    """
    surrogate = current.surrogate.standardized(answers.fixed.y)
    stay, departures = active.without(infeasible), set(current.departures)
    cutoff = half_width = None
    answered = len(answers.fixed) or answers.adaptive is not None
    if not stay.is_empty and surrogate.scaled and answered:
        found = stay.eliminate(surrogate, answers, bounds)
        stay, multiplier = found.active, found.multiplier
        cutoff = bounds.sign * surrogate.unwarped(found.cutoff)
        half_width = found.half_width if surrogate.warping.is_identity else None
        if found.contradicted and bounds.valid:
            departures.add(Departure.CONTRADICTED)
    else:  # without answers, or while all are equal, nothing can be eliminated
        multiplier = stay.half_width(surrogate, surrogate.data(answers.fixed), bounds).multiplier
        # If no point is left, the set stays as it was: the next ask restores all feasible points.
        stay = active if stay.is_empty else stay.after(current.number)
    size, rough = current.design_size, last and surrogate.learned
    record = RoundRecord(
        number=current.number,
        design_size=size if current.length is not None else min(size, len(current.slots)),
        length=current.asks,
        observed=len(answers.trial_ids),
        active_before=active.size,
        active_after=min(stay.rough_size, active.size) if rough else stay.size,
        trial_ids=answers.trial_ids,
        multiplier=multiplier,
        delta=bounds.delta if bounds.valid else None,
        hyperparameters=surrogate.hyperparameters(),
        cutoff=cutoff,
        surrogate=surrogate.describe() if surrogate.learned else None,
        extra_asks=current.extra_asks,
        departures=tuple(sorted(departures)),
        half_width=half_width,
    )
    return record, stay
