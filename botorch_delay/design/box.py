"""Greedy maximum-variance design on a box: a pool of points, the best refined by gradient.

The pool is a quasi-random sample and points on the boundary, where deviations are often largest.
Its posterior variance is updated after each pick. Every few picks, the best points of the pool
climb to nearby maxima, which join the pool until the next climb: a pick changes the variance only
around it, so most maxima stay good. For each pick the best few points climb some more steps. Each
pick is a function of the picks before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from botorch_delay.design.ascent import lowest_of_largest, maximize
from botorch_delay.domains.box import BoxDomain
from botorch_delay.domains.devices import generator_for, moved
from botorch_delay.domains.domain import PointKeys
from botorch_delay.exceptions import ExhaustedDesignError
from botorch_delay.gp.averages import Averages
from botorch_delay.gp.surrogate import Surrogate

STARTS = 224  # points of the pool that climb
STEPS = 20  # of each climb
PICKS_PER_CLIMB = 8  # picks between climbs
POLISHED = 24  # points that climb some more steps for a single pick
POLISHING_STEPS = 2  # how many more
MAX_CORNER_DIM = 10  # with more columns corners are too many to use


def corners(domain: BoxDomain) -> Tensor:
    """The corners of a box, ``n x d``; none if there are too many."""
    if domain.dim > MAX_CORNER_DIM:
        return domain.bounds[:0]
    unit = torch.cartesian_prod(*[torch.tensor([0.0, 1.0], dtype=torch.double)] * domain.dim)
    return domain.from_unit(unit.reshape(-1, domain.dim).to(domain.bounds))


class BoxDesign:
    """A greedy design on a box that grows one pick at a time; points are named by their keys.

    Climbs start from points of ``pool``, ``n x d``, and stay where ``inside`` (``n x d`` to bool
    ``n``) and the domain's limits hold. With a learned kernel picks are points of the pool itself:
    no claim then needs the largest deviation on the box. Earlier ``picks`` are replayed in order.
    """

    def __init__(
        self,
        surrogate: Surrogate,
        domain: BoxDomain,
        keys: PointKeys,
        pool: Tensor,
        inside: Callable[[Tensor], Tensor] | None,
        seed: int,
        picks: Iterable[int] = (),
    ) -> None:
        self._surrogate, self._domain, self._keys = surrogate, domain, keys
        self._inside, self._seed, self._refines = inside, seed, not surrogate.learned
        # The last ``room`` rows are for the maxima that climbs reach.
        pool = domain.columns.rounded(pool)
        self._spread, room = len(pool), min(STARTS, len(pool)) if self._refines else 0
        self._pool = torch.cat([pool, pool[:1].expand(room, -1)])
        self._picks = Averages(surrogate, self._pool, values=False)
        self._excluded: set[int] = set()
        self._climbed_at = -1
        picks = list(picks)
        last = max(len(picks) // PICKS_PER_CLIMB * PICKS_PER_CLIMB, 1)  # no climb before a pick
        for number, key in enumerate(picks):
            if number == last:
                self._climb()
            self.add(key)

    def next(self) -> int:
        self._climb()
        excluded = self._is_excluded(self._pool)
        if bool(excluded.all()):
            raise ExhaustedDesignError("Every point of the design's pool is excluded.")
        variance = self._picks.at_candidates.variance.masked_fill(excluded, -torch.inf)
        best = self._pool[lowest_of_largest(variance)]
        if self._picks.size and self._refines:
            top = variance.topk(min(POLISHED, len(variance))).indices
            X, values = self._refine(self._pool[top], POLISHING_STEPS, self._picks.size)
            values = values.masked_fill(self._is_excluded(X), -torch.inf)
            row = lowest_of_largest(values)
            best = X[row] if bool(values[row] > variance.max()) else best
        return self._keys.of(best)

    def _is_excluded(self, X: Tensor) -> Tensor:
        found = torch.zeros(len(X), dtype=torch.bool, device=X.device)
        if self._excluded:
            points = torch.stack([self._keys.point(key) for key in self._excluded])
            for point in moved(points, X.device):  # all pairs at once would need much memory
                found |= (point == X).all(dim=1)
        return found

    def variance(self, X: Tensor) -> Tensor:
        """Posterior variance at ``X`` given the picks, ``n x d`` to ``n``; differentiable."""
        return self._picks.at_candidates.variance_at(self._surrogate.inputs(X))

    def add(self, key: int) -> None:
        self._picks.put(key, self._picks.size, self._keys.point(key), None, None)
        _ = self._picks.at_candidates  # one by one, so that a replay gives the same numbers

    def exclude(self, key: int, excluded: bool = True) -> None:
        if excluded:
            self._excluded.add(key)
        else:
            self._excluded.discard(key)

    def _climb(self) -> None:
        """Every ``PICKS_PER_CLIMB`` picks, climb to nearby maxima from the best of the pool."""
        turn = self._picks.size // PICKS_PER_CLIMB
        if not (self._picks.size and self._refines) or turn == self._climbed_at:
            return
        self._climbed_at = turn
        known = self._picks.at_candidates
        top = known.variance[: self._spread].topk(len(self._pool) - self._spread).indices
        maxima, _ = self._refine(self._pool[top], STEPS, -turn)
        rows = torch.arange(self._spread, len(self._pool), device=maxima.device)
        self._pool = self._pool.index_copy(0, rows, maxima)
        known.move(rows, self._surrogate.inputs(maxima))

    def _refine(self, starts: Tensor, steps: int, number: int) -> tuple[Tensor, Tensor]:
        generator = generator_for(self._seed, abs(2 * number) + (number < 0))
        X, values = maximize(
            self.variance,
            self._domain,
            starts,
            generator=generator,
            steps=steps,
            inside=self._inside,
        )
        return self._domain.columns.rounded(X), values
