"""The end of a round: bounds from its evidence, and what survives them or is left to ask."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, TypeVar

from botorch_delay.elimination.open_round import OpenRound
from botorch_delay.elimination.rounds import Departure, RoundRecord, RoundRule
from botorch_delay.elimination.search_space import Arena
from botorch_delay.exceptions import EmptyDomainError
from botorch_delay.history.answers import Answers
from botorch_delay.history.point_status import MAX_FAILURES, Feasibility, nothing_to_ask

logger = logging.getLogger(__name__)

State = TypeVar("State")


def judge_round(
    arena: Arena[State],
    current: OpenRound,
    ids: tuple[int, ...],
    own: Answers,
    state: State,
    infeasible: Sequence[int],
    rule: RoundRule,
    delta: float,
    *,
    sign: float,
    union: int,
    proves: bool,
    merged: bool = False,
    pooled: Answers | None = None,
    departures: Sequence[Departure] = (),
) -> tuple[RoundRecord, State]:
    """The record of a round and the state that it leaves.

    Args:
        arena: set or box.
        current: the round; nothing in it is changed.
        ids: of the answered trials that its bounds use.
        own: their answers.
        state: when the round opened.
        infeasible: keys of points that cannot be asked: they eliminate nobody and are out.
        rule: gives the number of rounds.
        delta: failure probability of the guarantee.
        sign: -1 where the user minimises.
        union: over how many points of a finite set the bounds have to hold at once.
        proves: whether anything is promised of the bounds.
        merged: whether ``pooled`` is the evidence, and not further evidence of its own: where
            nothing is promised, or answers without noise cannot mislead.
        pooled: all answers there are, if bounds are to use them too.
        departures: how the round departed from what the regret bound is proved for.

    Raises:
        NumericsError: if a bound is not finite.
    """
    surrogate = current.surrogate.standardized(own.y)
    others = None
    if pooled is None:
        evidence = surrogate.data(own)
    else:
        surrogate = surrogate.standardized(pooled.y)
        others = surrogate.data(pooled)
        evidence, others = (others, None) if merged else (surrogate.data(own), others)
    rounds = rule.share(current.number)
    stay = arena.without(state, infeasible)
    cutoff = half_width = None
    if arena.is_empty(stay):  # all failed: the next ask goes on with every feasible point
        stay = state
        multiplier = arena.multiplier(surrogate, evidence, rounds, union)
    elif surrogate.scaled and (len(evidence.y) or others is not None):
        found = arena.judge(current.number, stay, surrogate, evidence, rounds, union, own.X, others)
        stay, cutoff, multiplier = found.state, found.cutoff, found.multiplier
        half_width = found.half_width
        if found.contradicted and proves:
            departures = (*departures, Departure.CONTRADICTED)
    else:  # without a scale nothing is known of the width of the bounds, nor without answers
        multiplier = arena.multiplier(surrogate, evidence, rounds, union)
    size = current.design_size
    record = RoundRecord(
        number=current.number,
        design_size=min(size, len(current.slots)) if rule.on_arrival else size,
        length=current.asks,
        observed=len(own),
        active_before=arena.size(state),
        active_after=arena.size(stay),
        trial_ids=ids,
        multiplier=multiplier,
        delta=delta / (2.0 * rounds) if proves else None,
        hyperparameters=surrogate.hyperparameters(),
        cutoff=None if cutoff is None else sign * cutoff,
        surrogate=surrogate.describe() if surrogate.learned else None,
        waits=current.waits,
        departures=tuple(sorted(departures)),
        half_width=half_width,
    )
    return record, stay


def everything_left(arena: Arena[Any], feasibility: Feasibility, number: int, count: int) -> Any:
    """Every feasible point, for a round none of whose active points may be asked.

    Args:
        arena: set or box.
        feasibility: of its points.
        number: of the round.
        count: of the points of a finite set; 0 on a box.

    Raises:
        EmptyDomainError: if there is none.
    """
    infeasible = feasibility.infeasible()
    state, known = arena.without(arena.everything(), infeasible), feasibility.known()
    domain = f"the {count} points" if count else "the box"
    if arena.is_empty(state):
        which = f"All {count} points" if count else "Every point of the box"
        raise EmptyDomainError(
            f"{which} failed {MAX_FAILURES} times and can be asked no more; see the "
            "reasons in opt.trials."
        )
    if known and arena.is_empty(arena.without(state, sorted(known))):
        raise nothing_to_ask(count, exact=True)
    why = "has been asked, and evaluations are exact" if known else "is infeasible"
    level = logging.INFO if known else logging.WARNING
    message = "round %d: every active point %s; going on with what is feasible of %s"
    logger.log(level, message, number, why, domain)
    return state
