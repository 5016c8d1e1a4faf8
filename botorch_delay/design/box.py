"""Greedy maximum-variance design on a box: a pool, and its best points refined by gradient.

The pool is a quasi-random sample of where points may be asked, and points on the boundary,
where deviations are often largest. Its posterior variance is kept up to date pick by pick. Every
few picks the best points of the pool climb to the nearby maxima, which join the pool until the
next climb: a pick changes the variance around it only, so that the other maxima stay good. For
each pick the best few points take some steps more. What is picked is a function of the picks so
far.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from botorch_delay.design.ascent import maximize
from botorch_delay.design.ties import lowest_of_largest
from botorch_delay.domains.box import BoxDomain
from botorch_delay.domains.generators import generator_for
from botorch_delay.exceptions import ExhaustedDesignError
from botorch_delay.gp.by_rows import CandidatePosterior
from botorch_delay.gp.kernels import covariance, prior_variance
from botorch_delay.gp.surrogate import Surrogate

STARTS = 224
STEPS = 20
PICKS_PER_CLIMB = 8
POLISHED = 24
POLISHING_STEPS = 2
MAX_CORNER_DIM = 10


def corners(domain: BoxDomain) -> Tensor:
    """The corners of a box, ``n x d``; none where there are too many."""
    if domain.dim > MAX_CORNER_DIM:
        return domain.bounds[:0]
    unit = torch.cartesian_prod(*[torch.tensor([0.0, 1.0], dtype=torch.double)] * domain.dim)
    return domain.from_unit(unit.reshape(-1, domain.dim).to(domain.bounds))


class BoxDesign:
    """A greedy design on a box that grows one pick at a time.

    Args:
        surrogate: whose kernel and noise count.
        domain: the box.
        pool: ``n x d``, where picks start from.
        inside: where points may be asked beside the domain's own limits, ``n x d`` to bool ``n``.
        seed: of the search in columns with lists of values.
        refine: whether picks are refined; otherwise they are points of the pool.
    """

    def __init__(
        self,
        surrogate: Surrogate,
        domain: BoxDomain,
        pool: Tensor,
        inside: Callable[[Tensor], Tensor] | None,
        seed: int,
        *,
        refine: bool = True,
    ) -> None:
        self._surrogate = surrogate
        self._domain = domain
        self._inside = inside
        self._seed = seed
        self._refines = refine
        # The last rows are for what the climbs reach.
        self._spread = len(pool)
        self._pool = torch.cat([pool, pool[:1].expand(min(STARTS, len(pool)), -1)])
        self._tracked = CandidatePosterior(
            surrogate.covar_module, surrogate.inputs(self._pool).clone()
        )
        first = self._tracked.variance[:1]
        stationary = bool((self._tracked.variance == first).all())
        self._constant: Tensor | None = first.clone() if stationary else None
        self._counts: dict[int, int] = {}
        self._closed: dict[int, Tensor] = {}
        self._adds = 0
        self._climbed_at = -1

    def next(self) -> Tensor:
        """The point that the rule picks now, ``d``.

        Raises:
            ExhaustedDesignError: if nothing is left to pick from.
        """
        self._climb()
        allowed = torch.ones(len(self._pool), dtype=torch.bool, device=self._pool.device)
        for x in self._closed.values():
            allowed &= ~(x == self._pool).all(dim=1)
        if not bool(allowed.any()):
            raise ExhaustedDesignError("Every point of the design's pool is excluded.")
        variance = self._tracked.variance.masked_fill(~allowed, -torch.inf)
        best = self._pool[lowest_of_largest(variance)].clone()
        if not self._adds or not self._refines:
            return best
        top = variance.topk(min(POLISHED, len(variance))).indices
        X, values = self._refine(self._pool[top], POLISHING_STEPS, self._adds)
        for x in self._closed.values():
            values = values.masked_fill((x == X).all(dim=1), -torch.inf)
        row = lowest_of_largest(values)
        return X[row].clone() if bool(values[row] > variance.max()) else best

    def variance(self, X: Tensor) -> Tensor:
        """Posterior variance given the picks, ``n x d`` to ``n``; differentiable."""
        inputs = self._surrogate.inputs(X)
        prior = self._constant  # of a stationary kernel, whose evaluation would be for nothing
        if prior is None:
            prior = prior_variance(self._surrogate.covar_module, inputs)
        if not len(self._tracked):
            return prior + 0.0 * inputs.sum(dim=-1)
        cross = covariance(self._surrogate.covar_module, self._tracked.points, inputs)
        return prior - (self._tracked.root @ cross).square().sum(dim=0)

    def add(self, key: int, x: Tensor) -> None:
        """Count a point (``d``) as picked, once more if it was already."""
        self._adds += 1
        self._counts[key] = count = self._counts.get(key, 0) + 1
        inputs = self._surrogate.inputs(x.unsqueeze(0)).squeeze(0)
        # Points of the box are no rows of the pool: keys below 0.
        self._tracked.update({-1 - key: (inputs, 0.0, self._surrogate.noise_var / count)})

    def extend(self, picks: list[tuple[int, Tensor]]) -> None:
        """Count picks that were made before: what follows is as if they had been made here."""
        last = max(len(picks) // PICKS_PER_CLIMB * PICKS_PER_CLIMB, 1)  # before the first: none
        for number, (key, x) in enumerate(picks):
            if number == last:
                self._climb()
            self.add(key, x)

    def exclude(self, key: int, x: Tensor, excluded: bool = True) -> None:
        """Keep a point from being picked, or allow it again; its past picks still count."""
        if excluded:
            self._closed[key] = x
        else:
            self._closed.pop(key, None)

    def _climb(self) -> None:
        """Bring the pool's last rows up to date, once every few picks."""
        turn = self._adds // PICKS_PER_CLIMB
        if not (self._adds and self._refines and self._spread) or turn == self._climbed_at:
            return
        self._climbed_at = turn
        room = len(self._pool) - self._spread
        top = self._tracked.variance[: self._spread].topk(room).indices
        X, _ = self._refine(self._pool[top], STEPS, -turn)
        rows = torch.arange(self._spread, len(self._pool), device=X.device)
        self._pool[rows] = X
        self._tracked.replace_candidates(rows, self._surrogate.inputs(X))

    def _refine(self, starts: Tensor, steps: int, number: int) -> tuple[Tensor, Tensor]:
        generator = generator_for(self._seed, abs(2 * number) + (number < 0), torch.device("cpu"))
        return maximize(
            self.variance,
            self._domain,
            starts,
            generator=generator,
            steps=steps,
            inside=self._inside,
        )
