"""The active set of a box: where no closed round has shown f to be below its maximum.

It is implicit: { x : U_s(x) >= cut-off of round s, for every closed round s }, the cut-off being
the largest lower bound that was found on the active points of the round. It is found by a
search, so that it may be too small, never too large: points are kept rather than lost.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
from gpytorch.kernels import Kernel
from torch import Tensor
from torch.quasirandom import SobolEngine

from botorch_delay import validation
from botorch_delay.confidence.bounds import Evidence, HalfWidth
from botorch_delay.confidence.nets import largest_deviation
from botorch_delay.design.ascent import maximize, snapped, stretched
from botorch_delay.design.box import BoxDesign, corners
from botorch_delay.domains.box import BoxDomain
from botorch_delay.domains.devices import generator_for, sent
from botorch_delay.domains.finite import Domain, FiniteDomain, PointKeys
from botorch_delay.elimination.active_set import (
    ActiveSet,
    Design,
    Elimination,
    RoundBounds,
    not_finite,
)
from botorch_delay.elimination.finite_active_set import FiniteActiveSet
from botorch_delay.elimination.level_sets import SetSample, sample_set
from botorch_delay.elimination.rounds import RoundRecord
from botorch_delay.exceptions import EmptyDomainError, StorageError
from botorch_delay.gp.posterior import Data, Posterior
from botorch_delay.gp.subset import representative
from botorch_delay.gp.surrogate import MANY_ANSWERS, Surrogate
from botorch_delay.history.answers import Answers

# Of the sample that a closed round's search and the next round's pool begin with.
POOL = 4096
STARTS = 64
# Whether a point is active takes time as the square of the answers. With many, in all rounds that
# cut the box, a sample has half the points and is made of this many particles.
FEW_PARTICLES = 512
# With a learned kernel nothing is claimed: bounds are made of this many answered points.
MOST_EVIDENCE = 128


@dataclass(eq=False)
class Condition:
    """The bounds of one round from its answers, made when they are first needed."""

    number: int
    posterior: Posterior  # in units of the values
    make_width: Callable[[], HalfWidth]  # takes long
    # the largest lower bound, in units of the (warped) values, to be maximised
    cutoff: float = -torch.inf
    is_rough: bool = False  # whether they are of some of the answers only

    @cached_property
    def width(self) -> HalfWidth:
        """How wide the bounds are."""
        return self.make_width()

    def interval(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Lower and upper bounds at points, ``n x d`` to ``n`` each."""
        return self.width.interval(self.posterior.at(X, weights=self.width.needs_weights))

    def plain_lower(self, X: Tensor) -> Tensor:
        """The lower bound in its plain form, ``n x d`` to ``n``: where to look for its maximum."""
        posterior = self.posterior.at(X)
        return posterior.mean - self.width.multiplier * posterior.deviation

    def margin(self, X: Tensor) -> Tensor:
        """By how much the upper bound reaches above the cut-off, ``n``."""
        return self.interval(X)[1] - self.cutoff


class BoxActiveSet(ActiveSet):
    """The active points of a box.

    There is one condition for each closed round that eliminated. Anchors, ``a x d``, are known to
    be inside, and excluded points, ``e x d``, are out. Active sets of a run share the keys of
    points.
    """

    domain: BoxDomain

    def __init__(
        self,
        domain: BoxDomain,
        conditions: tuple[Condition, ...] = (),
        anchors: Tensor | None = None,
        seed: int = 0,
        excluded: Tensor | None = None,
        keys: PointKeys | None = None,
    ) -> None:
        super().__init__(domain, PointKeys() if keys is None else keys)
        self.conditions, self.anchors = conditions, anchors
        self.is_cut = bool(conditions)
        self._excluded = domain.bounds[:0] if excluded is None else excluded
        self._seed = seed
        self._pool: SetSample | None = None

    def contains(self, X: Tensor) -> Tensor:
        X = validation.matrix(X, "X", empty=True)
        validation.matches(X, "X", self.domain.bounds)
        return self._holds(X)

    def margin(self, X: Tensor) -> Tensor:
        """At least 0 where a point is active, below elsewhere; differentiable.

        ``(active_set.margin, True)`` is what ``nonlinear_inequality_constraints`` of
        ``optimize_acqf`` take, with starts from ``sample``. Bounds and lists of values are not
        part of it. ``n x d`` to ``n``, or a single point, ``d``, to a number; ``inf`` while there
        is neither a closed round nor a constraint.
        """
        if isinstance(X, Tensor) and X.dim() == 1:
            return self.margin(X.unsqueeze(0)).squeeze(0)
        checked = validation.matrix(X.detach() if isinstance(X, Tensor) else X, "X", empty=True)
        validation.matches(checked, "X", self.domain.bounds)
        return self._margin(X)

    def sample(self, n: int, seed: int = 0) -> Tensor:
        """``n`` points spread uniformly over the active set, ``n x d``; at least 1.

        Uniformly as the domain counts: in the logarithm for its ``log_dims``, over the values
        where it has a list of them.
        """
        n = validation.whole(n, "n", 1)
        return self.draw(n, generator_for(validation.seed(seed), 0)).points

    def volume(self) -> tuple[float, float]:
        """Its share of the domain, and the standard error of this estimate."""
        return self.pool.volume, self.pool.volume_error

    def __repr__(self) -> str:
        return f"BoxActiveSet({self.size:.3g} of the box, {len(self.conditions)} rounds closed)"

    def round_that_eliminated(self, X: Tensor) -> Tensor:
        result = torch.zeros(len(X), dtype=torch.long, device=X.device)
        for condition in self.conditions:
            result[(result == 0) & (condition.margin(X) < 0.0)] = condition.number
        return result

    @property
    def size(self) -> float:
        return self.pool.volume

    @property
    def is_empty(self) -> bool:
        """Whether nothing of its pool is left: only where all columns have lists of values."""
        return not bool(self._holds(self.pool.points).any())

    def without(self, keys: Sequence[int]) -> BoxActiveSet:
        points = [self.keys.point(key) for key in keys]
        excluded = self.domain.bounds[:0]
        if points:
            excluded = sent(torch.stack(points), excluded)
        if torch.equal(excluded, self._excluded):
            return self
        active = self._with(self.conditions, self.anchors, excluded)
        active._pool = self._pool
        return active

    def _with(
        self, conditions: tuple[Condition, ...], anchors: Tensor | None, excluded: Tensor
    ) -> BoxActiveSet:
        return BoxActiveSet(self.domain, conditions, anchors, self._seed, excluded, self.keys)

    def restored(self, infeasible: Sequence[int], number: int) -> BoxActiveSet:
        return self._with((), None, self.domain.bounds[:0]).without(infeasible)

    @property
    def inside(self) -> Callable[[Tensor], Tensor] | None:
        return self._holds if self.conditions else None

    @property
    def spread(self) -> Tensor | None:
        return self.pool.points if self.conditions else None

    def candidates(self, tried: Tensor | None = None) -> tuple[None, Tensor]:
        X = self.pool.points
        return None, X if tried is None else torch.cat([X, tried[self.domain.contains(tried)]])

    def evaluated(self, rows: Iterable[int | None], X: Tensor) -> tuple[None, Tensor]:
        inside = X[self.domain.contains(X)]
        return None, torch.unique(inside if len(inside) else X, dim=0)

    def design(
        self, surrogate: Surrogate, number: int, picks: Iterable[int], closed: Iterable[int]
    ) -> Design:
        pool = self.pool.points[self._holds(self.pool.points)]
        # Of a learned kernel nothing is claimed, and a box has most of its deviation in its
        # corners, which tell least about the rest: spread points serve better than the largest.
        if not surrogate.learned:
            sample, generator = pool, generator_for(self._seed, number)
            edge = torch.cat([corners(self.domain), snapped(self.domain, sample, generator)])
            pool = torch.cat([sample, edge[self._holds(edge)]])
            if self.conditions or self.domain.constraints or self.domain.feasible:
                pool = torch.cat([pool, stretched(sample, self._holds, generator)])
        design = BoxDesign(
            *(surrogate, self.domain, self.keys, pool, self.inside, self._seed + number),
            refine=not surrogate.learned,
            picks=picks,
        )
        for key in closed:
            design.exclude(key)
        return design

    def check(self, surrogate: Surrogate | None, bounds: RoundBounds) -> None:
        super().check(surrogate, bounds)
        if self.domain.constraints or self.domain.feasible is not None:
            _ = self.pool

    def eliminate(
        self,
        number: int,
        surrogate: Surrogate,
        data: Data,
        bounds: RoundBounds,
        own: Answers,
        others: Data | None = None,
        design: Design | None = None,
    ) -> Elimination:
        """Where the round's upper bound reaches its largest lower bound, which is searched for."""
        condition = self._condition(number, surrogate, data, bounds)
        X = torch.cat([sent(own.X, self.domain.bounds), self.pool.points])
        X = X[self._holds(X)]
        lower, _ = condition.interval(X)
        starts = X[lower.topk(min(STARTS, len(X))).indices]
        generator = generator_for(self._seed, 1000 + len(self.conditions))
        climbed, _ = maximize(
            condition.plain_lower, self.domain, starts, generator=generator, inside=self._holds
        )
        X = torch.cat([starts, climbed])
        lower, upper = condition.interval(X)
        best = int(lower.argmax())
        # The upper bound there is above it by rounding at least: the set is not empty.
        cutoff = min(lower[best].item(), upper[best].item())
        if not math.isfinite(cutoff):  # not as a tensor, which would be in single precision
            raise not_finite(number)
        condition.cutoff = cutoff
        active = self._with((*self.conditions, condition), X[best : best + 1], self._excluded)
        return Elimination(active, cutoff, condition.width.multiplier)

    def half_width(self, surrogate: Surrogate, data: Data, bounds: RoundBounds) -> HalfWidth:
        box, counts = self.domain.bounds, {dim: len(v) for dim, v in self.domain.lists.items()}
        if surrogate.learned:  # encoded and normalised columns; nothing is promised there
            counts, width = {}, surrogate.width
            box = torch.stack([torch.zeros_like(width), torch.ones_like(width)])
        everywhere = Evidence.under(surrogate, data, bounds.delta, box=box, counts=counts)
        return bounds.confidence.fixed_design(everywhere)

    def _condition(
        self,
        number: int,
        surrogate: Surrogate,
        data: Data,
        bounds: RoundBounds,
        cutoff: float = -torch.inf,
    ) -> Condition:
        is_rough = surrogate.learned and len(data) > MOST_EVIDENCE
        if is_rough:
            X = data.X / surrogate.covar_module.lengthscale
            data = data.at(representative(X, data.y, MOST_EVIDENCE))
        make_width = partial(self.half_width, surrogate, data, bounds)
        return Condition(number, surrogate.posterior(data), make_width, cutoff, is_rough)

    def difference_from(self, before: ActiveSet) -> list[list[float]]:
        return [] if self.anchors is None else self.anchors.tolist()

    def after_record(
        self,
        record: RoundRecord,
        left: Any,
        judged: Callable[[], tuple[Surrogate, Answers, RoundBounds]],
    ) -> BoxActiveSet:
        if record.cutoff is None:
            return self
        anchor = sent(
            [[validation.real(value, "x") for value in x] for x in left], self.domain.bounds
        )
        if anchor.shape != (1, self.domain.dim) or not bool(self.domain.contains(anchor)[0]):
            raise StorageError("the active set has no point that is known to be in it.")
        surrogate, answers, bounds = judged()
        if bool(answers.y.isnan().any()):
            raise StorageError(f"round {record.number} uses trials without answer.")
        data = surrogate.data(answers)
        cutoff = surrogate.warped(bounds.sign * validation.real(record.cutoff, "cutoff"))
        condition = self._condition(record.number, surrogate, data, bounds, cutoff)
        return self._with((*self.conditions, condition), anchor, self._excluded)

    def largest_deviation(self, kernel: Kernel) -> float:
        return largest_deviation(kernel, self.domain.bounds)

    def draw(self, n: int, generator: torch.Generator) -> SetSample:
        """Points spread uniformly over the active set; EmptyDomainError if none was found."""
        # Moves in many columns are costly, and a pool there is thin in any case.
        particles = 4096 if self.domain.dim <= 10 else 1024
        particles = FEW_PARTICLES if self._is_costly else particles
        try:
            return sample_set(
                self.domain, self._margin, n, generator, anchors=self.anchors, particles=particles
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
            generator = generator_for(self._seed, len(self.conditions))
            self._pool = self.draw(POOL // 2 if self._is_costly else POOL, generator)
        return self._pool

    @property
    def _is_costly(self) -> bool:
        """Whether its conditions are of too many answers for samples of full size."""
        rough = any(condition.is_rough for condition in self.conditions)
        return rough or sum(len(each.posterior) for each in self.conditions) > MANY_ANSWERS

    def _margin(self, X: Tensor) -> Tensor:
        result = self.domain.slack(X)
        for condition in self.conditions:
            result = torch.minimum(result, condition.margin(X))
        return result

    def _holds(self, X: Tensor) -> Tensor:
        inside = self.domain.holds(X)
        if self.conditions and X.is_cuda:  # to look which are inside would wait for the device
            inside &= self._margin(X) >= 0.0
        elif self.conditions and bool(inside.any()):
            rows = inside.nonzero().flatten()
            inside[rows] = self._margin(X[rows]) >= 0.0
        for x in self._excluded:
            inside &= ~(x == X).all(dim=1)
        return inside


def spread_points(domain: Domain, n: int, generator: torch.Generator, *, edge: int = 0) -> Tensor:
    """``n`` points spread over a box, ``n x d``; all points of a finite set.

    With ``edge`` also that many of them, moved to the boundary of the box where it allows them.
    """
    whole = whole_set(domain)
    if isinstance(whole, FiniteActiveSet):
        return whole.points
    points = whole.draw(n, generator).points
    if not edge:
        return points
    edges = snapped(whole.domain, points[:edge], generator)
    return torch.unique(torch.cat([points, edges[domain.contains(edges)]]), dim=0)


def quasi_random(domain: Domain, batch: int, size: int, seed: int) -> Tensor:
    """Batch number ``batch``, from 0, of a scrambled Sobol sequence on a box, ``size x d``.

    Where the box has constraints the points are spread over what they leave.
    """
    assert isinstance(domain, BoxDomain)
    if domain.constraints or domain.feasible is not None:
        return spread_points(domain, size, generator_for(seed, batch))
    engine = SobolEngine(domain.dim, scramble=True, seed=seed).fast_forward(batch * size)
    return domain.from_unit(sent(engine.draw(size, dtype=torch.double), domain.like))


def whole_set(
    domain: Domain, seed: int = 0, keys: PointKeys | None = None
) -> FiniteActiveSet | BoxActiveSet:
    """The active set before any round: all of the domain.

    Samples of a box have a seed, and points of a run on it have keys.
    """
    if isinstance(domain, FiniteDomain):
        return FiniteActiveSet(domain)
    assert isinstance(domain, BoxDomain)
    return BoxActiveSet(domain, seed=seed, keys=keys)
