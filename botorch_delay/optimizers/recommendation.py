"""What all answers together speak for."""

from __future__ import annotations

from collections.abc import Mapping
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


@dataclass(frozen=True, eq=False)
class Prediction:
    """What all answers say of f at some points, in the user's units and sign.

    Attributes:
        mean: posterior mean of f, ``n``; the median where values are warped.
        lower: lower ends of the intervals for f, ``n``.
        upper: upper ends, ``n``.
        interval: what the intervals are, in words.
    """

    mean: Tensor
    lower: Tensor
    upper: Tensor
    interval: str


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


def predict(
    candidates: Tensor,
    surrogate: Surrogate,
    evidence: Data,
    confidence: Confidence,
    delta: float,
    *,
    sign: float,
    best: bool = False,
) -> tuple[Prediction, int]:
    """What the evidence says of candidates, and which of them has the best posterior mean.

    Args:
        candidates: ``n x d``.
        surrogate: that judges.
        evidence: all answers, to be maximised.
        confidence: gives the intervals.
        delta: their failure probability.
        sign: -1 where the user minimises.
        best: whether only the best one is to be predicted.
    """
    posterior, half, interval = intervals(candidates, surrogate, evidence, confidence, delta)
    if surrogate.learned and not confidence.missing:
        interval = f"under the learned kernel, a heuristic: {interval}"
    place = int(posterior.mean.argmax())
    rows = slice(place, place + 1) if best else slice(None)
    middle, half = posterior.mean[rows], half[rows]
    ends = sign * surrogate.warping.inverse(torch.stack([middle - half, middle, middle + half]))
    lower, mean, upper = ends if sign > 0 else ends.flip(0)
    return Prediction(mean, lower, upper, interval), place
