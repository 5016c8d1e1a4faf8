"""Greedy maximum-variance design on a box: a pool, and its best points refined by gradient.

The pool is a quasi-random sample of where points may be asked, and points on the boundary,
where deviations are often largest. Its posterior variance is kept up to date pick by pick. Every
few picks the best points of the pool climb to the nearby maxima, which count beside it until the
next climb: a pick changes the variance around it only, so that the other maxima stay good. For
each pick the best few points take some steps more. What is picked is a function of the picks so
far.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from botorch_delay.design.ascent import lowest_of_largest, maximize
from botorch_delay.domains.box import BoxDomain
from botorch_delay.domains.devices import generator_for, moved, sent
from botorch_delay.domains.finite import PointKeys
from botorch_delay.exceptions import ExhaustedDesignError
from botorch_delay.gp.candidates import Answer, CandidatePosterior
from botorch_delay.gp.posterior import Data, Posterior
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
    """A greedy design on a box that grows one pick at a time; points go by their keys.

    Picks start from a pool, ``n x d``, and stay where ``inside`` (``n x d`` to bool ``n``) holds
    beside the domain's own limits. Without ``refine`` they are points of the pool. What follows
    ``picks`` is as if they had been made here, in this order.
    """

    def __init__(
        self,
        surrogate: Surrogate,
        domain: BoxDomain,
        keys: PointKeys,
        pool: Tensor,
        inside: Callable[[Tensor], Tensor] | None,
        seed: int,
        *,
        refine: bool = True,
        picks: Iterable[int] = (),
    ) -> None:
        self._surrogate = surrogate
        self._domain, self._keys = domain, keys
        self._inside = inside
        self._seed = seed
        self._refines = refine
        self._points = pool
        self._pool = CandidatePosterior(
            surrogate.covar_module, surrogate.inputs(pool), as_rows=True
        )
        self._maxima = pool[:0]  # what the last climbs reached
        self._picks: dict[int, Answer] = {}
        self._counts: dict[int, int] = {}
        self._closed: set[int] = set()
        self._adds = 0
        self._climbed_at = -1
        self._posterior = self._given_picks()
        picks = list(picks)
        last = max(len(picks) // PICKS_PER_CLIMB * PICKS_PER_CLIMB, 1)  # before the first: none
        for number, key in enumerate(picks):
            if number == last:
                self._climb()
            self.add(key)

    def next(self) -> int:
        self._climb()
        points = torch.cat([self._points, self._maxima])
        variance = torch.cat([self._pool.variance, self.variance(self._maxima)])
        closed = self._is_closed(points)
        if bool(closed.all()):
            raise ExhaustedDesignError("Every point of the design's pool is excluded.")
        variance = variance.masked_fill(closed, -torch.inf)
        best = points[lowest_of_largest(variance)]
        if self._adds and self._refines:
            top = variance.topk(min(POLISHED, len(variance))).indices
            X, values = self._refine(points[top], POLISHING_STEPS, self._adds)
            values = values.masked_fill(self._is_closed(X), -torch.inf)
            row = lowest_of_largest(values)
            best = X[row] if bool(values[row] > variance.max()) else best
        return self._keys.of(best)

    def _is_closed(self, X: Tensor) -> Tensor:
        closed = torch.zeros(len(X), dtype=torch.bool, device=X.device)
        if self._closed:
            points = torch.stack([self._keys.point(key) for key in self._closed])
            for point in moved(points, X.device):
                closed |= (point == X).all(dim=1)
        return closed

    def variance(self, X: Tensor) -> Tensor:
        """Posterior variance given the picks, ``n x d`` to ``n``; differentiable."""
        return self._posterior.variance(X, often=True)

    def add(self, key: int) -> None:
        self._adds += 1
        self._counts[key] = count = self._counts.get(key, 0) + 1
        point = sent(self._keys.point(key), self._surrogate.origin)
        inputs = self._surrogate.inputs(point.unsqueeze(0)).squeeze(0)
        pick = {key: (inputs, 0.0, self._surrogate.noise_var / count)}
        self._picks |= pick
        self._pool.update(pick)
        self._posterior = self._given_picks(self._posterior)

    def _given_picks(self, before: Posterior | None = None) -> Posterior:
        """The posterior anywhere, whose values do not matter."""
        surrogate = self._surrogate
        like = surrogate.origin
        points = [x for x, _, _ in self._picks.values()]
        noise = sent([noise_var for _, _, noise_var in self._picks.values()], like)
        X = torch.stack(points) if points else like.new_empty(0, len(like))
        data = Data.single(X, torch.zeros_like(noise), noise)
        labels = [(key, noise_var) for key, (_, _, noise_var) in self._picks.items()]
        return Posterior(
            surrogate.covar_module, data, inputs=surrogate.inputs, labels=labels, before=before
        )

    def exclude(self, key: int, excluded: bool = True) -> None:
        if excluded:
            self._closed.add(key)
        else:
            self._closed.discard(key)

    def _climb(self) -> None:
        """Look for the nearby maxima anew, once every few picks."""
        turn = self._adds // PICKS_PER_CLIMB
        if not (self._adds and self._refines and len(self._points)) or turn == self._climbed_at:
            return
        self._climbed_at = turn
        top = self._pool.variance.topk(min(STARTS, len(self._points))).indices
        self._maxima, _ = self._refine(self._points[top], STEPS, -turn)

    def _refine(self, starts: Tensor, steps: int, number: int) -> tuple[Tensor, Tensor]:
        generator = generator_for(self._seed, abs(2 * number) + (number < 0))
        return maximize(
            self.variance,
            self._domain,
            starts,
            generator=generator,
            steps=steps,
            inside=self._inside,
        )
