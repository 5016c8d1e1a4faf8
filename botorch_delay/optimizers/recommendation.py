"""What all answers together speak for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from botorch_delay.confidence.bounds import Confidence, Evidence
from botorch_delay.gp.data import Data
from botorch_delay.gp.posterior import Moments
from botorch_delay.gp.surrogate import Surrogate


@dataclass(frozen=True, eq=False)
class Recommendation:
    """The point that all answers speak for.

    Attributes:
        x: the point, shape ``d``.
        index: its row in a finite domain; None on a box.
        mean: posterior mean of f there; the median where values are warped.
        lower: lower end of the interval for f there.
        upper: upper end.
        interval: what the interval is, in words.
        count: how many answers there are at this very point; other points' answers count too in
            ``mean``.
        params: the point's values by name: a space's own, else the numbers of the columns.
    """

    x: Tensor
    index: int | None
    mean: float
    lower: float
    upper: float
    interval: str
    count: int = 0
    params: Mapping[str, Any] = field(default_factory=dict)


def intervals(
    candidates: Tensor,
    surrogate: Surrogate,
    evidence: Data,
    confidence: Confidence,
    delta: float,
) -> tuple[Moments, Tensor, str]:
    """The posterior, half-widths of intervals around its mean, and what these are, in words."""
    width = confidence.adaptive(Evidence.under(surrogate, evidence, delta))
    posterior = surrogate.posterior(evidence).at(candidates, weights=width.needs_weights)
    return posterior, width.at(posterior), width.words


def best_of(
    rows: Sequence[int] | None,
    candidates: Tensor,
    surrogate: Surrogate,
    evidence: Data,
    confidence: Confidence,
    delta: float,
    *,
    sign: float,
) -> Recommendation:
    """The candidate with the best posterior mean.

    Args:
        rows: of the candidates in a finite domain; None on a box.
        candidates: ``n x d``.
        surrogate: that judges.
        evidence: all answers, to be maximised.
        confidence: gives the interval.
        delta: its failure probability.
        sign: -1 where the user minimises.
    """
    posterior, half, interval = intervals(candidates, surrogate, evidence, confidence, delta)
    if surrogate.learned and not confidence.missing:
        interval = f"under the learned kernel, a heuristic: {interval}"
    best = int(posterior.mean.argmax())
    middle, width = posterior.mean[best], half[best]
    ends = surrogate.warping.inverse(torch.stack([middle - width, middle, middle + width]))
    lower, mean, upper = sorted((sign * ends).tolist())
    return Recommendation(
        x=candidates[best].clone(),
        index=None if rows is None else rows[best],
        mean=mean,
        lower=lower,
        upper=upper,
        interval=interval,
    )
