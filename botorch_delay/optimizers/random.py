"""Random search: what every method has to beat."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from botorch_delay.confidence.bounds import DEFAULT_DELTA
from botorch_delay.confidence.guarantee import Guarantee
from botorch_delay.domains.devices import generator_for
from botorch_delay.domains.domain import Domain
from botorch_delay.domains.space import Space, as_domain
from botorch_delay.elimination.box_active_set import quasi_random
from botorch_delay.gp.surrogate import Learned
from botorch_delay.history.point_status import Feasibility
from botorch_delay.history.trials import Suggestion, Trial, TrialObserver, TrialState
from botorch_delay.optimizers.base import Optimizer
from botorch_delay.optimizers.config import Config

# On a box: points of the sequence per batch, and batches to search for one that may be asked.
BATCH, MOST_BATCHES = 64, 64
# Where none is found, a box with at most this many points is searched through.
MOST_LISTED = 100_000


class RandomOptimizer(Optimizer):
    """Random search: without replacement on a set, scrambled Sobol points on a box.

    With constraints the points are spread over the feasible part of the box. On a set each pass
    asks all points in a new random order (there is one pass if evaluations are exact); the point of
    an abandoned trial is asked again in the same pass. Asks do not depend on the answers.

    The arguments are those of :class:`AcquisitionOptimizer`, except ``rule``, ``pending`` and
    ``repeat_pending``.
    """

    def __init__(
        self,
        domain: Domain | Space,
        horizon: int | None = None,
        *,
        covar_module: Kernel | Learned | None = None,
        noise_var: float | None = None,
        exact: bool = False,
        seed: int = 0,
        maximize: bool = True,
    ) -> None:
        parts = covar_module, noise_var, exact, seed, maximize
        super().__init__(Config(as_domain(domain), horizon, *parts))
        self._start()

    def _start(self) -> None:
        super()._start()
        self._asks = _Asks(self._feasibility, self._domain.count or 0)
        self._observers = [self._feasibility, self._asks]
        self._batches: dict[int, Tensor] = {}  # of the sequence on a box, by number

    @property
    def guarantee(self) -> Guarantee:
        return Guarantee(False, DEFAULT_DELTA, (), ("random search does not use the answers.",))

    def _choose(self) -> Suggestion:
        if self._domain.count is None:
            return self._next_on_box()
        allowed = torch.ones(self._domain.count, dtype=torch.bool)
        allowed[self._feasibility.unavailable()] = False
        if not bool(allowed.any()):
            raise self._feasibility.nothing_to_ask()
        asks, trials = self._asks.counts, self._ledger.trials
        number = max(trials[-1].round - 1 if trials else 0, int(asks[allowed].min()))
        generator = generator_for(self._config.seed, number)
        order = torch.randperm(len(allowed), generator=generator)
        left = allowed[order] & (asks[order] <= number)
        index = int(order[int(left.nonzero()[0])])
        return Suggestion(index, round=number + 1, slot=len(self._ledger))

    def _next_on_box(self) -> Suggestion:
        """The next point of the sequence that may be asked; its slot is its position there."""
        trials, asked = self._ledger.trials, len(self._ledger)
        first, start = divmod(max(trials[-1].slot + 1, asked) if trials else 0, BATCH)
        self._batches = {batch: kept for batch, kept in self._batches.items() if batch >= first}
        for batch in range(first, first + MOST_BATCHES):
            if batch not in self._batches:
                points = quasi_random(self._domain, BATCH, self._config.seed, batch)
                self._batches[batch] = self._domain.columns.rounded(points).cpu()
            for place in range(start, BATCH):
                x = self._batches[batch][place]
                if self._feasibility.is_open(x):
                    return Suggestion(x, round=1, slot=batch * BATCH + place)
            start = 0
        for x in self._every_point():
            if self._feasibility.is_open(x):
                return Suggestion(x, round=1, slot=first * BATCH + start)
        raise self._feasibility.nothing_to_ask()

    def _every_point(self) -> Tensor:
        """All points of a box, ``n x d``; none if they are too many."""
        domain, parameters = self._domain, self._domain.columns.varying.values()
        lists = [domain.allowed(dim) for dim in range(domain.dim)]
        counts = [
            p.count if values is None else len(values)
            for values, p in zip(lists, parameters, strict=True)
        ]
        if math.prod(counts) > MOST_LISTED:
            return domain.like[:0]
        axes = [
            domain.like.new_tensor(p.listed()) if values is None else values
            for values, p in zip(lists, parameters, strict=True)
        ]
        points = torch.cartesian_prod(*axes).reshape(-1, domain.dim)
        return points[domain.contains(points)].cpu()


class _Asks(TrialObserver):
    """How often each point of a set was asked, not counting abandoned trials."""

    def __init__(self, feasibility: Feasibility, count: int) -> None:
        self.counts, self._feasibility = torch.zeros(count, dtype=torch.long), feasibility

    def asked(self, trial: Trial, data: Mapping[str, Any]) -> None:
        self.settled(trial)

    def settled(self, trial: Trial) -> None:
        if trial.index is not None:
            tried = self._feasibility.trials(trial.index)
            self.counts[trial.index] = sum(t.state is not TrialState.ABANDONED for t in tried)
