"""The active set of a box: where no closed round has shown f to be below its maximum.

It is implicit: { x : U_s(x) >= cut-off of round s, for every closed round s }, the cut-off being
the largest lower bound that a search found on the active points of the round. If the search misses
the maximum, more points stay; none is lost wrongly.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from botorch_delay import validation
from botorch_delay.confidence.bounds import Evidence, HalfWidth
from botorch_delay.confidence.nets import largest_prior_deviation
from botorch_delay.design.ascent import maximize, snapped, stretched
from botorch_delay.design.box import BoxDesign, corners
from botorch_delay.domains.box import BoxDomain
from botorch_delay.domains.devices import generator_for, moved, sent, sobol_engine
from botorch_delay.domains.domain import Domain, PointKeys
from botorch_delay.domains.finite import FiniteDomain
from botorch_delay.elimination.active_set import (
    ActiveSet,
    Design,
    Elimination,
    FiniteActiveSet,
    Judged,
    RoundAnswers,
    RoundBounds,
)
from botorch_delay.elimination.level_sets import SetSample, sample_set
from botorch_delay.elimination.rounds import RoundRecord
from botorch_delay.exceptions import StorageError
from botorch_delay.gp.posterior import Data, Posterior
from botorch_delay.gp.subset import representative
from botorch_delay.gp.surrogate import MANY_ANSWERS, Surrogate

POOL = 4096  # points sampled from the set, from which searches and designs start
STARTS = 64  # starting points of the search for the cut-off
# Testing whether a point is active takes time quadratic in the number of answers. With many answers
# a sample has half as many points, and is drawn with this many particles.
FEW_PARTICLES = 256
MOST_EVIDENCE = 128  # most answered points that bounds use with a learned kernel


@dataclass(eq=False)
class Condition:
    """The bounds of one closed round, and the cut-off that their upper end must reach."""

    number: int
    posterior: Posterior  # in units of the values
    make_width: Callable[[], HalfWidth]  # slow: called when the bounds are first needed
    cutoff: float = -torch.inf  # the largest lower bound, of (warped) values to be maximised
    is_rough: bool = False  # whether the bounds use only a subset of the answers

    @cached_property
    def width(self) -> HalfWidth:
        return self.make_width()

    def interval(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Lower and upper bounds at points, ``n x d`` to ``n`` each."""
        return self.width.around(self.posterior, X)

    def plain_lower(self, X: Tensor) -> Tensor:
        """A simpler lower bound, ``n x d`` to ``n``, climbed to find the real one's maximum."""
        posterior = self.posterior.at(X)
        return posterior.mean - self.width.multiplier * posterior.deviation

    def margin(self, X: Tensor) -> Tensor:
        return self.interval(X)[1] - self.cutoff


class BoxActiveSet(ActiveSet):
    """The active points of a box.

    There is one condition per closed round that eliminated. The anchor, ``1 x d``, is a point known
    to be active; excluded points, ``e x d``, are the infeasible ones.
    """

    domain: BoxDomain

    def __init__(self, domain: BoxDomain, seed: int = 0, keys: PointKeys | None = None) -> None:
        super().__init__(domain, PointKeys() if keys is None else keys)
        self.conditions: tuple[Condition, ...] = ()
        self.anchor: Tensor | None = None
        self._excluded = domain.bounds[:0]
        self._seed = seed
        self._pool: SetSample | None = None

    def contains(self, X: Tensor) -> Tensor:
        return self._holds(validation.points(X, "X", self.domain.bounds))

    def margin(self, X: Tensor) -> Tensor:
        """At least 0 where a point is active, negative elsewhere; differentiable.

        For ``optimize_acqf`` pass ``nonlinear_inequality_constraints=[(active_set.margin, True)]``
        and initial conditions from ``sample``. The box's bounds and lists of values are not
        included. Maps ``n x d`` to ``n``, or a single point, ``d``, to a scalar; 1 while there is
        neither a closed round nor a constraint.
        """
        if isinstance(X, Tensor) and X.dim() == 1:
            return self.margin(X.unsqueeze(0)).squeeze(0)
        validation.points(X, "X", self.domain.bounds)
        found = self._margin(X)
        # Optimisers need a finite value and a gradient (of 0) also where nothing restricts.
        return torch.where(found == torch.inf, 1.0, found) + 0.0 * X.sum(dim=1)

    def sample(self, n: int, seed: int = 0) -> Tensor:
        """``n`` points, at least 1, spread uniformly over the active set: ``n x d``.

        Columns of the domain's ``log_dims`` are uniform in the logarithm, columns with a list of
        values uniform over these.
        """
        n = validation.whole(n, "n", 1)
        return self.draw(n, generator_for(validation.seed(seed), 0)).points

    def volume(self) -> tuple[float, float]:
        """The active share of the domain, and the standard error of this estimate."""
        return self.pool.volume, self.pool.volume_error

    def __repr__(self) -> str:
        return f"BoxActiveSet({self.size:.3g} of the box, {len(self.conditions)} rounds closed)"

    def round_that_eliminated(self, X: Tensor) -> Tensor:
        validation.rows(X, "X", self.domain.bounds)
        result = torch.zeros(len(X), dtype=torch.long, device=X.device)
        for condition in self.conditions:
            result[(result == 0) & (condition.margin(X) < 0.0)] = condition.number
        return result

    @property
    def size(self) -> float:
        return self.pool.volume

    @property
    def rough_size(self) -> float:
        unit = sobol_engine(self.domain.dim, self._seed).draw(POOL, dtype=torch.float32)
        inside = self._holds(self.domain.from_unit(sent(unit, self.domain.like)))
        return max(int(inside.sum()), 1) / POOL

    @property
    def is_empty(self) -> bool:
        """Whether no point of the pool is active; possible only if all columns have lists."""
        return not bool(self._holds(self.pool.points).any())

    def without(self, keys: Sequence[int]) -> BoxActiveSet:
        excluded = self.domain.bounds[:0]
        if keys:
            excluded = sent(torch.stack([self.keys.point(key) for key in keys]), excluded)
        if torch.equal(excluded, self._excluded):
            return self
        active = copy.copy(self)  # with the same pool
        active._excluded = excluded
        return active

    def restored(self, infeasible: Sequence[int], number: int) -> BoxActiveSet:
        return BoxActiveSet(self.domain, self._seed, self.keys).without(infeasible)

    @property
    def inside(self) -> Callable[[Tensor], Tensor] | None:
        return self._holds if self.conditions else None

    @property
    def points_inside(self) -> Tensor | None:
        return self.pool.points if self.conditions else None

    def candidates(self, tried: Tensor) -> Tensor:
        return torch.cat([self.pool.points, tried[self.domain.contains(tried)]])

    def evaluated(self, rows: Iterable[int | None], X: Tensor) -> tuple[None, Tensor]:
        inside = X[self.domain.contains(X)]
        return None, torch.unique(inside, dim=0) if len(inside) else self.pool.points

    def design(self, surrogate: Surrogate, number: int, picks: Iterable[int]) -> Design:
        pool = self.pool.points[self._holds(self.pool.points)]
        # Deviations are largest at the corners of a box, where answers tell least about the rest.
        # With a learned kernel no claim needs the largest deviation, and spread points tell more.
        if not surrogate.learned:
            sample, generator = pool, generator_for(self._seed, number)
            edge = torch.cat([corners(self.domain), snapped(self.domain, sample, generator)])
            pool = torch.cat([sample, edge[self._holds(edge)]])
            if self.conditions or self.domain.is_constrained:
                pool = torch.cat([pool, stretched(sample, self._holds, generator)])
        seed = self._seed + number
        return BoxDesign(surrogate, self.domain, self.keys, pool, self.inside, seed, picks)

    def check(self, surrogate: Surrogate, bounds: RoundBounds) -> None:
        super().check(surrogate, bounds)
        if self.domain.is_constrained:
            _ = self.pool

    def eliminate(
        self, surrogate: Surrogate, answers: RoundAnswers, bounds: RoundBounds
    ) -> Elimination:
        """Keep points whose upper bound reaches the largest lower bound that a search finds."""
        condition = self._condition(surrogate, surrogate.data(answers.fixed), bounds)
        X = torch.cat([sent(answers.fixed.X, self.domain.bounds), self.pool.points])
        X = X[self._holds(X)]
        starts = X[condition.interval(X)[0].topk(min(STARTS, len(X))).indices]
        generator = generator_for(self._seed, 1000 + len(self.conditions))
        climbed, _ = maximize(
            condition.plain_lower, self.domain, starts, generator=generator, inside=self._holds
        )
        X = torch.cat([starts, climbed])
        lower, upper = condition.interval(X)
        best = int(lower.argmax())
        # No larger than the upper bound there, whatever rounding did: the set is not empty.
        cutoff = torch.minimum(lower[best], upper[best])
        bounds.check_finite(cutoff)
        condition.cutoff = cutoff.item()
        active = self._cut(condition, X[best : best + 1])
        return Elimination(active, condition.cutoff, condition.width.multiplier)

    def half_width(self, surrogate: Surrogate, data: Data, bounds: RoundBounds) -> HalfWidth:
        box, counts = self.domain.bounds, {dim: len(v) for dim, v in self.domain.lists.items()}
        if surrogate.learned:  # encoded and normalised columns; nothing is claimed then
            counts, width = {}, surrogate.inputs.width
            box = torch.stack([torch.zeros_like(width), torch.ones_like(width)])
        evidence = Evidence.under(surrogate, data, bounds.delta)
        return bounds.confidence.fixed_design(replace(evidence, box=box, counts=counts))

    def _condition(
        self, surrogate: Surrogate, data: Data, bounds: RoundBounds, cutoff: float = -torch.inf
    ) -> Condition:
        is_rough = surrogate.learned and len(data) > MOST_EVIDENCE
        if is_rough:
            X = data.X / surrogate.covar_module.lengthscale
            data = data.at(representative(X, data.y, MOST_EVIDENCE))
        make_width = partial(self.half_width, surrogate, data, bounds)
        return Condition(bounds.number, surrogate.posterior(data), make_width, cutoff, is_rough)

    def difference_from(self, before: ActiveSet) -> list[list[float]]:
        return [] if self.anchor is None else self.anchor.tolist()

    def after_record(self, record: RoundRecord, difference: Any, judged: Judged) -> BoxActiveSet:
        if record.cutoff is None:
            return self
        anchor = sent(
            [[validation.real(value, "x") for value in x] for x in difference], self.domain.bounds
        )
        if anchor.shape != (1, self.domain.dim) or not bool(self.domain.contains(anchor)[0]):
            raise StorageError("no point is stored that is known to be in the active set.")
        surrogate, answers, bounds = judged()
        if bool(answers.y.isnan().any()):
            raise StorageError(f"round {record.number} uses trials without an answer.")
        data = surrogate.data(answers)
        cutoff = surrogate.warped(bounds.sign * validation.real(record.cutoff, "cutoff"))
        condition = self._condition(surrogate, data, bounds, cutoff)
        return self._cut(condition, anchor)

    def _cut(self, condition: Condition, anchor: Tensor) -> BoxActiveSet:
        active = copy.copy(self)
        active.conditions, active.anchor = (*self.conditions, condition), anchor
        active.is_cut = True
        active._pool = None
        return active

    def largest_prior_deviation(self, kernel: Kernel) -> float:
        return largest_prior_deviation(kernel, self.domain.bounds)

    def draw(self, n: int, generator: torch.Generator) -> SetSample:
        """Points spread uniformly over the active set; EmptyDomainError if none was found."""
        # Moves in many columns are costly, and a sample is sparse there in any case.
        particles = 4096 if self.domain.dim <= 10 else 1024
        particles = FEW_PARTICLES if self._is_costly else particles
        return sample_set(
            self.domain, self._margin, n, generator, anchor=self.anchor, particles=particles
        )

    @property
    def pool(self) -> SetSample:
        """A sample for searches, drawn once."""
        if self._pool is None:
            generator = generator_for(self._seed, len(self.conditions))
            self._pool = self.draw(POOL // 2 if self._is_costly else POOL, generator)
        return self._pool

    @property
    def _is_costly(self) -> bool:
        """Whether its conditions have too many answers for samples of full size."""
        rough = any(condition.is_rough for condition in self.conditions)
        return rough or sum(len(each.posterior) for each in self.conditions) > MANY_ANSWERS

    def _margin(self, X: Tensor) -> Tensor:
        result = self.domain.slack(X)
        for condition in self.conditions:
            result = torch.minimum(result, condition.margin(X))
        return result

    def _holds(self, X: Tensor) -> Tensor:
        inside = self.domain.holds(X)
        if self.conditions and X.is_cuda:  # selecting rows would wait for the device
            inside &= self._margin(X) >= 0.0
        elif self.conditions and bool(inside.any()):
            rows = inside.nonzero().flatten()
            inside[rows] = self._margin(X[rows]) >= 0.0
        for x in self._excluded:
            inside &= ~(x == X).all(dim=1)
        return inside


def spread_points(domain: Domain, n: int, generator: torch.Generator, *, edge: int = 0) -> Tensor:
    """``n`` points spread over a box, ``n x d``; all points of a finite set.

    With ``edge``, copies of that many of them are moved to the boundary of the box and added, and
    the order is shuffled, since of points with equal scores the first is asked.
    """
    if not isinstance(domain, BoxDomain):
        return domain.like
    points = BoxActiveSet(domain).draw(n, generator).points
    if not edge:
        return points
    edges = snapped(domain, points[:edge], generator)
    points = torch.unique(torch.cat([points, edges[domain.contains(edges)]]), dim=0)
    return points[moved(torch.randperm(len(points), generator=generator), points.device)]


def quasi_random(domain: Domain, n: int, seed: int, batch: int) -> Tensor:
    """Points that cover a box evenly, ``n x d``: batch 0, 1, ... of a scrambled Sobol sequence.

    If the box has constraints each batch is spread uniformly over the feasible part instead.
    """
    assert isinstance(domain, BoxDomain)
    if domain.is_constrained:
        return spread_points(domain, n, generator_for(seed, batch))
    engine = sobol_engine(domain.dim, seed).fast_forward(batch * n)
    return domain.from_unit(sent(engine.draw(n, dtype=torch.double), domain.like))


def whole_set(domain: Domain, seed: int, keys: PointKeys) -> FiniteActiveSet | BoxActiveSet:
    """The active set before any round: all of the domain."""
    if isinstance(domain, FiniteDomain):
        return FiniteActiveSet(domain)
    assert isinstance(domain, BoxDomain)
    return BoxActiveSet(domain, seed, keys)
