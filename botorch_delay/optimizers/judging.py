"""The end of a round: bounds from its evidence, and the points that survive them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from botorch_delay.confidence import Confidence, side_delta
from botorch_delay.elimination import surviving
from botorch_delay.exceptions import NumericsError
from botorch_delay.optimizers.open_round import OpenRound
from botorch_delay.rounds import RoundRecord, RoundRule
from botorch_delay.trials import Trial


def judge_round(
    current: OpenRound,
    trials: Sequence[Trial],
    points: Tensor,
    active: Tensor,
    feasible: Tensor,
    rule: RoundRule,
    confidence: Confidence,
    delta: float,
    *,
    sign: float,
    union: int,
    proves: bool,
) -> tuple[RoundRecord, Tensor]:
    """The record of a round and the rows that stay active (Algorithm 1, the last line).

    Args:
        current: the round; nothing in it is changed.
        trials: the answered trials that its bounds use.
        points: ``N x d``, the domain.
        active: rows that were active when it opened, LongTensor.
        feasible: those of them that can be asked; the others eliminate nobody and are out.
        rule: gives the number of rounds.
        confidence: the bounds.
        delta: failure probability of the guarantee.
        sign: -1 where the user minimises.
        union: over how many points the bounds have to hold at once.
        proves: whether anything is promised of the bounds.

    Raises:
        NumericsError: if a bound is not finite.
    """
    rows = torch.tensor([t.index for t in trials], dtype=torch.long, device=points.device)
    y = sign * points.new_tensor([t.value for t in trials])
    surrogate = current.surrogate.standardized(y)
    evidence = surrogate.evidence(points[rows], y, [t.noise_var for t in trials], group=rows)
    ratio = surrogate.noise_ratio(evidence)
    side = side_delta(delta, rule.max_rounds, union)
    stay = feasible
    if not len(feasible):  # all failed: the next ask goes on with every feasible point
        stay = active
    elif surrogate.scaled:  # without a scale nothing is known of the width of the bounds
        posterior = surrogate.posterior(
            evidence, points[feasible], weights=confidence.needs_weights
        )
        half = confidence.half_width(posterior, ratio, side)
        if not torch.isfinite(posterior.mean + half).all():
            raise NumericsError(
                f"The bounds of round {current.number} are not finite; check the scale of values "
                "and noise against the kernel's."
            )
        stay = feasible[surviving(posterior.mean - half, posterior.mean + half)]
    size = current.design_size
    record = RoundRecord(
        number=current.number,
        design_size=min(size, len(current.slots)) if rule.on_arrival else size,
        length=current.asks,
        observed=len(trials),
        active_before=len(active),
        active_after=len(stay),
        trial_ids=tuple(t.id for t in trials),
        multiplier=confidence.multiplier(ratio, side),
        delta=delta / (2.0 * rule.max_rounds) if proves else None,
        hyperparameters=surrogate.hyperparameters(),
    )
    return record, stay
