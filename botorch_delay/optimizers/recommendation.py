"""What all answers together speak for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from botorch_delay.confidence import Confidence, scaled_gain
from botorch_delay.posterior import Evidence
from botorch_delay.surrogate import Surrogate


@dataclass(frozen=True, eq=False)
class Recommendation:
    """The point that all answers speak for.

    Attributes:
        x: the point, shape ``d``.
        index: its row in the domain.
        mean: posterior mean of f there.
        lower: lower end of the interval for f there.
        upper: upper end.
        interval: what the interval is, in words.
    """

    x: Tensor
    index: int
    mean: float
    lower: float
    upper: float
    interval: str


def best_of(
    rows: Sequence[int],
    points: Tensor,
    surrogate: Surrogate,
    evidence: Evidence,
    confidence: Confidence,
    delta: float,
    *,
    sign: float,
) -> Recommendation:
    """The point with the best posterior mean among some rows of a domain.

    Args:
        rows: to choose from.
        points: ``N x d``, the domain.
        surrogate: that judges.
        evidence: all answers, to be maximised.
        confidence: gives the interval.
        delta: its failure probability.
        sign: -1 where the user minimises.
    """
    candidates = torch.tensor(list(rows), dtype=torch.long, device=points.device)
    posterior = surrogate.posterior(evidence, points[candidates])
    half, interval = confidence.all_data(
        posterior,
        surrogate.noise_ratio(evidence),
        scaled_gain(surrogate.covar_module, evidence),
        delta,
    )
    best = int(posterior.mean.argmax())
    mean, half_width = sign * posterior.mean[best].item(), half[best].item()
    index = int(candidates[best])
    return Recommendation(
        x=points[index].clone(),
        index=index,
        mean=mean,
        lower=mean - half_width,
        upper=mean + half_width,
        interval=interval,
    )
