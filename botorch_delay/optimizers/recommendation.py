"""Recommended points, predictions, and repeated evaluations."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import fmean, stdev
from typing import Any

import torch
from torch import Tensor

from botorch_delay.confidence.bounds import Confidence, Evidence, HalfWidth
from botorch_delay.design.ascent import LEADERS, LOCAL_REACH, BoundClimb, maximize, nearby
from botorch_delay.domains.domain import Domain
from botorch_delay.gp.kernels import rows_per_chunk
from botorch_delay.gp.posterior import Data, Moments, Posterior
from botorch_delay.gp.surrogate import Surrogate
from botorch_delay.history.answers import Answers
from botorch_delay.history.trials import Attached, Trial, TrialState

# Says what the interval is while the scale of the values is unknown to a learned kernel.
UNBOUNDED = "unbounded until there are three answers that are not all equal"
# Added where the learned noise is that of exact evaluations, but repeats have not confirmed it yet.
UNCHECKED = "the learned noise is negligible, which too few repeats have confirmed yet"
# Added where the interval accounts for the uncertainty of learned hyperparameters.
COUNTED = "deviations include the uncertainty of the learned hyperparameters"
# Added where the answers contradict the constants on which the bounds rest.
REFUTED = "void, as the answers contradict norm_bound and noise_std (see guarantee)"
# Starts drawn around each of the best answered points, for climbs to a safer point.
AROUND = 8
# An untried point must raise the best answered lower end by this share of the half-width there.
LEAST_GAIN = 0.05
# Says what the interval of a recommended point is where repeats agree, whatever noise was learned.
ANSWER_ITSELF = "the answer itself: repeats agree, so evaluations seem exact"


@dataclass(frozen=True, eq=False)
class Recommendation:
    """The point that all answers together favour; on a box it may be one that was never tried.

    Attributes:
        x: the point, shape ``d``.
        index: its row in a finite domain; None on a box.
        mean: posterior mean of f there; the median where values are warped. If their logarithms
            are, f is what half the answers at a point exceed: less than their average if noise is
            skewed upwards, as that of squares is.
        lower: lower end of the interval for f there; with a learned kernel -inf until there are
            three answers that are not all equal, as the scale of the values is unknown until then.
        upper: upper end; inf where ``lower`` is -inf.
        interval: what the interval is, in words.
        count: how many answers there are at exactly this point, 0 if it was never tried.
        params: the point's values by name.
        noise_std: the model's standard deviation of the noise of one answer there, in the user's
            units; where values are warped, half the span from one deviation below the mean to one
            above. 0 if evaluations are or seem exact. nan while the scale of the values is unknown,
            and with a learned kernel if every answer was told its own noise: then none is learned.
    """

    x: Tensor
    index: int | None
    mean: float
    lower: float
    upper: float
    interval: str
    count: int = 0
    params: Mapping[str, Any] = field(default_factory=dict)
    noise_std: float = math.nan


@dataclass(frozen=True, eq=False)
class Prediction:
    """The posterior of f at some points, in the user's units and sign.

    Attributes:
        mean: posterior mean of f, ``n``; the median where values are warped.
        lower: lower ends of the intervals for f, ``n``; -inf and inf as in :class:`Recommendation`.
        upper: upper ends, ``n``.
        interval: what the intervals are, in words.
        noise_std: deviations of the noise of one answer, ``n``, as in :class:`Recommendation`.
    """

    mean: Tensor
    lower: Tensor
    upper: Tensor
    interval: str
    noise_std: Tensor


# Maps points ``n x d`` and the posterior moments there to deviations of f: ``n``.
Deviation = Callable[[Tensor, Moments], Tensor]


@dataclass(frozen=True, eq=False)
class Judgement:
    """The posterior of f, and intervals for it, from some answers."""

    surrogate: Surrogate
    answers: Answers
    confidence: Confidence
    delta: float

    @cached_property
    def data(self) -> Data:
        return self.surrogate.data(self.answers)

    @cached_property
    def width(self) -> HalfWidth:
        evidence = Evidence.of_all(self.surrogate, self.answers, self.data, self.delta)
        return self.confidence.adaptive(evidence)

    @cached_property
    def posterior(self) -> Posterior:
        return self.surrogate.posterior(self.data)

    @cached_property
    def smooth_data(self) -> Data:
        """The data of g without its rough part, which counts as noise of the means."""
        data = self.data
        return replace(data, noise_var=data.noise_var + self.surrogate.roughness)

    @cached_property
    def smooth(self) -> Posterior:
        """The posterior of f without its rough part."""
        return replace(self.surrogate, roughness=0.0).posterior(self.smooth_data)

    def intervals(self, X: Tensor, deviation: Deviation | None = None) -> tuple[Moments, Tensor]:
        """Posterior moments and half-widths of intervals at ``X``.

        ``deviation`` replaces sigma; where f is rough, that of its smooth part.
        """
        found = self.posterior.at(X, weights=self.width.needs_weights)
        if deviation is not None:
            rough = self.surrogate.roughness > 0.0
            smooth = self.smooth.at(X) if rough else found
            more = deviation(X, smooth).square() - smooth.variance
            more = self._share_of_smooth(X) * more if rough else more
            found = replace(found, variance=found.variance + more)
        return found, self.width.at(found)

    def _share_of_smooth(self, X: Tensor) -> Tensor:
        """The share of the variance of g's smooth part that is left in f at ``X``, ``n``.

        It is 1 at new points. Given g, the mean of f at an answered point is (1 - w) g + w y with
        w = roughness / (roughness + noise), so (1 - w)^2 is left there.
        """
        data, rough, inputs = self.data, self.surrogate.roughness, self.surrogate.inputs(X)
        left = (data.noise_var / (data.noise_var + rough)).square()
        found = []
        for some in inputs.split(rows_per_chunk(data.X.numel(), inputs)):
            same = (some.unsqueeze(1) == data.X).all(dim=-1)
            found.append(torch.where(same.any(dim=1), same.to(left) @ left, 1.0))
        return torch.cat(found)

    def predict(
        self, X: Tensor, sign: float, deviation: Deviation | None = None, searched: int = 0
    ) -> Prediction:
        """The prediction at points, ``n x d``; see :meth:`intervals`.

        ``searched`` is the number of columns in which points were searched for by their intervals.
        Unless the intervals hold for all points at once, that many variances are added to the
        squared half-width, as in Scheffe's simultaneous intervals.
        """
        surrogate = self.surrogate
        posterior, half = self.intervals(X, deviation)
        interval = self.width.words or repr(self.confidence)
        interval = interval if deviation is None else f"{interval}; {COUNTED}"
        if searched and self.confidence.missing:
            half = (half.square() + searched * posterior.variance).sqrt()
            interval = f"{interval}; wider, as the point was searched for in {searched} columns"
        if surrogate.learned and not self.confidence.missing:
            interval = f"under the learned kernel, a heuristic: {interval}"
        middle, noise = posterior.mean, surrogate.noise_std
        if not surrogate.scaled:
            half, interval, noise = torch.full_like(half, torch.inf), UNBOUNDED, math.nan
        elif surrogate.learned and not bool(self.answers.noise_var.isnan().any()):
            noise = math.nan
        ends = torch.stack([middle - half, middle, middle + half, middle - noise, middle + noise])
        worst, mean, best, low, high = sign * surrogate.warping.inverse(ends)
        lower, upper = (worst, best) if sign > 0 else (best, worst)
        return Prediction(mean, lower, upper, interval, (high - low).abs() / 2.0)

    def safest_nearby(
        self,
        answered: Tensor,
        lower: Tensor,
        half: Tensor,
        domain: Domain,
        generator: torch.Generator,
    ) -> Tensor | None:
        """A point of a box, ``d``, near the best answered ones and with a better lower end.

        With noise, a learned kernel knows f between answered points as well as at them. Climbs of
        the lower end start at and around the best of ``answered`` (``n x d``, whose intervals have
        ends ``lower`` and half-widths ``half``, ``n``). None if they find no such point.
        """
        leaders = answered[lower.topk(min(LEADERS, len(lower))).indices]
        starts = torch.cat([leaders, nearby(domain, leaders, AROUND, LOCAL_REACH, generator)])
        model = Posterior(self.surrogate.covar_module, self.smooth_data)
        climb = BoundClimb(
            self.surrogate, model, model, -self.width.multiplier, starts, capped=False
        )
        X, _ = maximize(climb, domain, starts, generator=generator, reach=LOCAL_REACH)
        X = domain.columns.rounded(X)
        posterior, wide = self.intervals(X)
        found = posterior.mean - wide
        gain = found.max() - lower.max() - LEAST_GAIN * half[lower.argmax()]
        return X[found.argmax()].clone() if bool(gain > 0.0) else None


@dataclass(frozen=True, eq=False)
class Replicates:
    """The evaluations of one point.

    Attributes:
        x: the point, shape ``d``.
        index: its row in a finite domain, or None.
        count: the number of its answers, attached results included.
        pending: the number of its running trials.
        mean: the mean answer, in the user's units and sign; None without an answer.
        standard_error: the answers' standard deviation over sqrt(count); None with fewer than two.
    """

    x: Tensor
    index: int | None
    count: int
    pending: int
    mean: float | None
    standard_error: float | None


def replicates(
    trials: Iterable[Trial], attached: Sequence[Attached], key: Callable[[Any], int]
) -> list[Replicates]:
    """One entry per point with an answer or a running trial: most answers first, ties in order."""
    counted = [t for t in trials if t.state in (TrialState.COMPLETED, TrialState.RUNNING)]
    places: list[Trial | Attached] = [*counted, *attached]
    members: dict[int, list[Trial | Attached]] = {}
    for place in places:
        members.setdefault(key(place), []).append(place)
    found = []
    for group in members.values():
        values = [member.value for member in group if member.value is not None]
        mean = fmean(values) if values else None
        error = stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
        n, pending, first = len(values), len(group) - len(values), group[0]
        found.append(Replicates(first.x, first.index, n, pending, mean, error))
    return sorted(found, key=lambda point: -point.count)
