"""The active set of a box: where no closed round has shown f to be below its maximum.

It is implicit: { x : U_s(x) >= cut-off of round s, for every closed round s }, the cut-off being
the largest lower bound that was found on the active points of the round. It is found by a
search, so that it may be too small, never too large: points are kept rather than lost.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from botorch_delay import validation
from botorch_delay.confidence.bounds import BoxBounds, Confidence
from botorch_delay.design.ascent import maximize
from botorch_delay.domains.box import BoxDomain
from botorch_delay.domains.generators import generator_for
from botorch_delay.elimination.level_sets import SetSample, sample_set
from botorch_delay.exceptions import EmptyDomainError
from botorch_delay.gp.kernels import covariance, prior_variance
from botorch_delay.gp.posterior import Evidence, Factored, factorize
from botorch_delay.gp.surrogate import Surrogate

# Of the sample that a closed round's search and the next round's pool begin with.
POOL = 4096
STARTS = 64


@dataclass(frozen=True)
class Condition:
    """The bounds of one round, made from its answers when they are first needed.

    Attributes:
        surrogate: that judges.
        evidence: the answers, in units of the surrogate.
        domain: the box.
        confidence: gives the bounds.
        rounds: R, over which delta is divided.
        delta: failure probability of the guarantee.
        cutoff: the largest lower bound, in units of the values, to be maximised.
    """

    surrogate: Surrogate
    evidence: Evidence
    domain: BoxDomain
    confidence: Confidence
    rounds: int
    delta: float
    cutoff: float = -torch.inf

    @cached_property
    def bounds(self) -> BoxBounds:
        """How wide they are."""
        kernel, in_values = self.surrogate.in_values(self.evidence)
        counts = {dim: len(values) for dim, values in self.domain.lists.items()}
        ends = self.domain.bounds
        if self.surrogate.learned:  # encoded and normalised columns; nothing is promised there
            counts, width = {}, self.surrogate.width
            ends = torch.stack([torch.zeros_like(width), torch.ones_like(width)])
        return self.confidence.on_box(kernel, in_values, ends, counts, self.rounds, self.delta)

    @cached_property
    def _factored(self) -> Factored:
        with torch.no_grad():
            return Factored.of(self.surrogate.covar_module, self.evidence)

    def interval(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Lower and upper bounds at points, ``n x d`` to ``n`` each."""
        posterior = self.surrogate.posterior(
            self.evidence, X, weights=self.confidence.needs_weights, factored=self._factored
        )
        half = self.bounds.half_width(posterior)
        return posterior.mean - half, posterior.mean + half

    def margin(self, X: Tensor) -> Tensor:
        """By how much the upper bound reaches above the cut-off, ``n``."""
        return self.interval(X)[1] - self.cutoff

    def at(self, cutoff: float) -> Condition:
        """The same with a cut-off."""
        condition = replace(self, cutoff=cutoff)
        condition.__dict__["bounds"] = self.bounds
        return condition


class Region:
    """A box with the conditions of closed rounds.

    Args:
        domain: the box.
        conditions: one for each closed round.
        anchors: points known to be inside, ``a x d``.
        seed: of samples.
        excluded: single points that are out, ``e x d``.
    """

    def __init__(
        self,
        domain: BoxDomain,
        conditions: tuple[Condition, ...] = (),
        anchors: Tensor | None = None,
        seed: int = 0,
        excluded: Tensor | None = None,
    ) -> None:
        self.domain = domain
        self.conditions = conditions
        self.anchors = anchors
        self.excluded = domain.bounds[:0] if excluded is None else excluded
        self._seed = seed
        self._pool: SetSample | None = None

    def without(self, excluded: Tensor) -> Region:
        """The same region but for some single points, ``e x d``."""
        if torch.equal(excluded, self.excluded):
            return self
        region = Region(self.domain, self.conditions, self.anchors, self._seed, excluded)
        region._pool = self._pool  # single points have no share in it
        return region

    def margin(self, X: Tensor) -> Tensor:
        """At least 0 where a point is active, below elsewhere: ``n x d`` to ``n``."""
        result = self.domain.slack(X)
        for condition in self.conditions:
            result = torch.minimum(result, condition.margin(X))
        return result

    def contains(self, X: Tensor) -> Tensor:
        """Whether points are active: ``n x d`` to a bool tensor ``n``."""
        inside = self.domain.contains(X)
        if self.conditions and bool(inside.any()):
            rows = inside.nonzero().flatten()
            inside[rows] = self.margin(X[rows]) >= 0.0
        for x in self.excluded:
            inside &= ~(x == X).all(dim=1)
        return inside

    def sample(self, n: int, generator: torch.Generator) -> SetSample:
        """Points spread uniformly over the active set."""
        # Moves in many columns are costly, and a pool there is thin in any case.
        particles = 4096 if self.domain.dim <= 10 else 1024
        try:
            return sample_set(
                self.domain, self.margin, n, generator, anchors=self.anchors, particles=particles
            )
        except EmptyDomainError as error:
            raise EmptyDomainError(
                "No point of the box was found that satisfies its constraints and feasible(X): "
                "relax them, or narrow the bounds to where they hold. A yes-or-no test that "
                f"hardly any point passes cannot be found its way through. ({error})"
            ) from error

    @property
    def pool(self) -> SetSample:
        """A sample for searches, the same whenever it is asked for."""
        if self._pool is None:
            generator = generator_for(self._seed, len(self.conditions), torch.device("cpu"))
            self._pool = self.sample(POOL, generator)
        return self._pool

    def cut(self, condition: Condition, tried: Tensor) -> tuple[Region, float]:
        """This region with one more condition, whose cut-off is searched for.

        Args:
            condition: without a cut-off yet.
            tried: points to start from beside the pool, ``n x d``: those that were answered.

        Returns:
            The region, and the cut-off.
        """
        X = torch.cat([tried, self.pool.points])
        X = X[self.contains(X)]
        lower, _ = condition.interval(X)
        starts = X[lower.topk(min(STARTS, len(X))).indices]
        generator = generator_for(self._seed, 1000 + len(self.conditions), torch.device("cpu"))
        climbed, _ = maximize(
            _lower_bound(condition),
            self.domain,
            starts,
            generator=generator,
            inside=self.contains,
        )
        X = torch.cat([starts, climbed])
        lower, upper = condition.interval(X)
        best = int(lower.argmax())
        # The upper bound there is above it by rounding at least: the region is not empty.
        cutoff = min(lower[best].item(), upper[best].item())
        judged = condition.at(cutoff)
        anchor = X[best : best + 1]
        conditions = (*self.conditions, judged)
        region = Region(self.domain, conditions, anchor, self._seed, self.excluded)
        return region, cutoff


def _lower_bound(condition: Condition) -> Callable[[Tensor], Tensor]:
    """The lower bound in its plain form, differentiable: where to look for its maximum."""
    surrogate, evidence = condition.surrogate, condition.evidence
    kernel = surrogate.covar_module
    with torch.no_grad():
        K = covariance(kernel, evidence.X, evidence.X)
        factor, _ = factorize(K, evidence.noise_var)
        weights = torch.cholesky_solve(evidence.y.unsqueeze(-1), factor).squeeze(-1)

    def lower(X: Tensor) -> Tensor:
        inputs = surrogate.inputs(X)
        prior = prior_variance(kernel, inputs)
        if not len(evidence.y):
            return -prior + 0.0 * inputs.sum(dim=-1)
        cross = covariance(kernel, evidence.X, inputs)
        mean = weights @ cross
        white = torch.linalg.solve_triangular(factor, cross, upper=False)
        floor = 1e-12 * float(prior.detach().max())
        variance = (prior - white.square().sum(dim=0)).clamp_min(floor)
        return surrogate.scale * (mean - condition.bounds.multiplier * variance.sqrt())

    return lower


class BoxActiveSet:
    """The active points of a box.

    Args:
        region: the box with the conditions of the closed rounds.
    """

    def __init__(self, region: Region) -> None:
        self._region = region

    def contains(self, X: Tensor) -> Tensor:
        """Whether each row of ``X`` (``n x d``) is active: a bool tensor ``n``.

        Raises:
            InputError: if ``X`` is malformed or does not fit the domain.
        """
        X = validation.matrix(X, "X", empty=True)
        validation.matches(X, "X", self._region.domain.bounds)
        return self._region.contains(X)

    def margin(self, X: Tensor) -> Tensor:
        """At least 0 where a point is active, below elsewhere; differentiable.

        ``(active_set.margin, True)`` is what ``nonlinear_inequality_constraints`` of
        ``optimize_acqf`` take, with starts from ``sample``. Bounds and lists of values are not
        part of it.

        Args:
            X: ``n x d``, or a single point ``d``.

        Returns:
            ``n``, or a number for a single point; ``inf`` while there is neither a closed round
            nor a constraint.

        Raises:
            InputError: if ``X`` is malformed or does not fit the domain.
        """
        if isinstance(X, Tensor) and X.dim() == 1:
            return self.margin(X.unsqueeze(0)).squeeze(0)
        checked = validation.matrix(X.detach() if isinstance(X, Tensor) else X, "X", empty=True)
        validation.matches(checked, "X", self._region.domain.bounds)
        return self._region.margin(X)

    def sample(self, n: int, seed: int = 0) -> Tensor:
        """``n`` points spread uniformly over the active set, ``n x d``.

        Uniformly as the domain counts: in the logarithm for its ``log_dims``, over the values
        where it has a list of them.

        Args:
            n: how many, at least 1.
            seed: of the sample.

        Raises:
            InputError: if an argument is out of its range.
        """
        n = validation.whole(n, "n", 1)
        generator = generator_for(validation.seed(seed), 0, torch.device("cpu"))
        return self._region.sample(n, generator).points

    def volume(self, seed: int = 0) -> tuple[float, float]:
        """Its share of the domain, and the standard error of this estimate."""
        generator = generator_for(validation.seed(seed), 1, torch.device("cpu"))
        sample = self._region.sample(POOL, generator)
        return sample.volume, sample.volume_error

    def __repr__(self) -> str:
        share = self._region.pool.volume
        return f"BoxActiveSet({share:.3g} of the box, {len(self._region.conditions)} rounds closed)"
