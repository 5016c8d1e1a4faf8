"""Random search: what every method has to beat."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from gpytorch.kernels import Kernel
from torch import Tensor
from torch.quasirandom import SobolEngine

from botorch_delay.confidence.guarantee import Guarantee
from botorch_delay.domains.box import BoxDomain
from botorch_delay.domains.devices import generator_for, sent
from botorch_delay.domains.finite import Domain
from botorch_delay.domains.space import Space, as_domain
from botorch_delay.elimination.box_active_set import spread_points
from botorch_delay.gp.surrogate import Learned
from botorch_delay.history.point_status import Feasibility, nothing_to_ask
from botorch_delay.history.trials import Suggestion, Trial, TrialObserver, TrialState
from botorch_delay.optimizers.base import Optimizer
from botorch_delay.optimizers.config import Config

BATCH = 64
# Points of the sequence that are tried for one that satisfies the constraints.
MAX_DRAWS = 8192


class RandomOptimizer(Optimizer):
    """Random search: scrambled Sobol points on a box, without replacement on a set.

    On a set the points are asked in a random order, then in another one, and so on; an
    abandoned trial's point comes again in the same pass. Only ``recommend`` uses the answers,
    through the surrogate. Where evaluations are exact one pass over a set is all.

    The arguments are those of :class:`AcquisitionOptimizer`.

    Example:
        >>> box = BoxDomain(torch.tensor([[0.0, 0.0], [1.0, 5.0]], dtype=torch.double))
        >>> opt = RandomOptimizer(box, seed=1)
        >>> bool(box.contains(torch.stack([t.x for t in opt.ask(4)])).all())
        True
    """

    def __init__(
        self,
        domain: Domain | Space,
        *,
        horizon: int | None = None,
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
        self._passes = _Passes(self._feasibility, self._domain.count or 0)
        self._observers = [self._feasibility, self._passes]
        self._engine: SobolEngine | None = None
        self._found: list[Tensor] = []  # points of the sequence that may be asked
        self._thin = False  # whether hardly any may, so that the rest are uniform
        self._uniform: tuple[int, Tensor] | None = None  # a batch of those, and its number

    @property
    def guarantee(self) -> Guarantee:
        return Guarantee(False, 0.1, (), ("random search does not use the answers.",))

    def _choose(self) -> Suggestion:
        if self._domain.count is None:
            return Suggestion(None, round=1, slot=len(self._ledger), x=self._sobol_point())
        allowed = torch.ones(self._domain.count, dtype=torch.bool)
        allowed[self._feasibility.closed()] = False
        if not bool(allowed.any()):
            raise nothing_to_ask(len(allowed), exact=self.exact)
        asks = self._passes.asks
        number = max(self._passes.number, int(asks[allowed].min()))
        generator = generator_for(self._config.seed, number)
        order = torch.randperm(len(allowed), generator=generator)
        left = allowed[order] & (asks[order] <= number)
        index = int(order[int(left.nonzero()[0])])
        return Suggestion(index, round=number + 1, slot=len(self._ledger))

    def _sobol_point(self) -> Tensor:
        """The next point of the sequence that satisfies the constraints; uniform if hardly any."""
        assert isinstance(self._domain, BoxDomain)
        number = len(self._ledger)
        if self._engine is None:
            self._engine = SobolEngine(self._domain.dim, scramble=True, seed=self._config.seed)
        while not self._thin and len(self._found) <= number:
            unit = sent(self._engine.draw(BATCH, dtype=torch.double), self._domain.like)
            X = self._domain.from_unit(unit)
            self._found += X[self._domain.contains(X)].unbind()
            self._thin = self._engine.num_generated > MAX_DRAWS * (len(self._found) + 1)
        if number < len(self._found):
            return self._found[number]
        turn, place = divmod(number - len(self._found), BATCH)
        if self._uniform is None or self._uniform[0] != turn:
            generator = generator_for(self._config.seed, turn)
            self._uniform = (turn, spread_points(self._domain, BATCH, generator))
        return self._uniform[1][place]


class _Passes(TrialObserver):
    """Passes over a set: their number, from 0, and each point's asks, abandoned trials left out."""

    def __init__(self, feasibility: Feasibility, count: int) -> None:
        self.number, self.asks = 0, torch.zeros(count, dtype=torch.long)
        self._feasibility = feasibility

    def asked(self, trial: Trial, data: Mapping[str, Any]) -> None:
        self.number = trial.round - 1
        self.settled(trial)

    def settled(self, trial: Trial) -> None:
        if trial.index is not None:
            tried = self._feasibility.trials(trial.index)
            self.asks[trial.index] = sum(t.state is not TrialState.ABANDONED for t in tried)
