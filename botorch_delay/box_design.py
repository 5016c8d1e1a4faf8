"""Greedy maximum-variance design on a box: a pool, and each pick refined along the gradient.

The pool is a quasi-random sample of where points may be asked, and the same points moved to
the box's boundary in some of their columns, where deviations are often largest. The posterior
variance of the pool is kept up to date pick by pick; the best few pool points of every pick
climb to the nearby maxima, and the best of these is the pick.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from botorch_delay.box_search import maximize
from botorch_delay.domains import BoxDomain
from botorch_delay.exceptions import EmptyDomainError
from botorch_delay.incremental import CandidatePosterior
from botorch_delay.kernels import covariance, prior_variance
from botorch_delay.rules import generator_for
from botorch_delay.surrogate import Surrogate
from botorch_delay.ties import lowest_of_largest

STARTS = 160
STEPS = 20
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
    """

    def __init__(
        self,
        surrogate: Surrogate,
        domain: BoxDomain,
        pool: Tensor,
        inside: Callable[[Tensor], Tensor] | None,
        seed: int,
    ) -> None:
        self._surrogate = surrogate
        self._domain = domain
        self._pool = pool
        self._inside = inside
        self._seed = seed
        self._tracked = CandidatePosterior(surrogate.covar_module, surrogate.inputs(pool))
        self._counts: dict[int, int] = {}
        self._closed: dict[int, Tensor] = {}
        self._adds = 0

    def next(self) -> Tensor:
        """The point that the rule picks now, ``d``.

        Raises:
            EmptyDomainError: if nothing is left to pick from.
        """
        variance = self._tracked.variance
        if not len(variance):
            raise EmptyDomainError("There is no point that may be asked.")
        best = lowest_of_largest(variance)
        top = variance.topk(min(STARTS, len(variance))).indices
        top[-1] = best  # the tie rule's own choice is always among the starts
        X, values = maximize(
            self.variance,
            self._domain,
            self._pool[top],
            generator=generator_for(self._seed, self._adds, torch.device("cpu")),
            steps=STEPS,
            inside=self._may_ask,
        )
        allowed = self._may_ask(X)
        if not bool(allowed.any()):
            X, allowed = self._pool, self._may_ask(self._pool)
            values = variance
            if not bool(allowed.any()):
                raise EmptyDomainError("Every point of the design's pool is excluded.")
        return X[lowest_of_largest(values.masked_fill(~allowed, -torch.inf))].clone()

    def variance(self, X: Tensor) -> Tensor:
        """Posterior variance given the picks, ``n x d`` to ``n``; differentiable."""
        inputs = self._surrogate.inputs(X)
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

    def exclude(self, key: int, x: Tensor, excluded: bool = True) -> None:
        """Keep a point from being picked, or allow it again; its past picks still count."""
        if excluded:
            self._closed[key] = x
        else:
            self._closed.pop(key, None)

    def _may_ask(self, X: Tensor) -> Tensor:
        allowed = torch.ones(len(X), dtype=torch.bool, device=X.device)
        for x in self._closed.values():
            allowed &= ~(x == X).all(dim=1)
        return allowed if self._inside is None else allowed & self._inside(X)
