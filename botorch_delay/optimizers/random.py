"""Random search: what every method has to beat."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch
from gpytorch.kernels import Kernel
from torch import Tensor
from torch.quasirandom import SobolEngine

from botorch_delay.confidence.bounds import Confidence, FixedBeta
from botorch_delay.confidence.guarantee import Guarantee
from botorch_delay.domains.box import BoxDomain
from botorch_delay.domains.finite import Domain, FiniteDomain
from botorch_delay.domains.generators import generator_for
from botorch_delay.elimination.box_active_set import BoxActiveSet
from botorch_delay.gp.surrogate import Learned, Surrogate
from botorch_delay.history.point_status import Feasibility, PointStatus, nothing_to_ask
from botorch_delay.history.trials import Attached, Choice, Trial, TrialState
from botorch_delay.optimizers.base import Optimizer
from botorch_delay.optimizers.config import Config
from botorch_delay.optimizers.fitting import Fitting

BATCH = 64
# Points of the sequence that are tried for one that satisfies the constraints.
MAX_DRAWS = 8192


class RandomOptimizer(Optimizer):
    """Random search: scrambled Sobol points on a box, without replacement on a set.

    On a set the points are asked in a random order, then in another one, and so on; an
    abandoned trial's point comes again in the same pass. On a box a point that failed is not
    asked again, unless the sequence meets it again by itself. Only ``recommend`` uses the
    answers, through the surrogate.

    Args:
        domain: a finite set or a box.
        horizon: how many asks are planned; None where no end is planned.
        covar_module: the kernel for ``recommend``; :class:`Learned`, or None, to learn it.
        noise_var: lambda^2, given if and only if the kernel is; not with ``exact``.
        exact: evaluations have no noise: one pass over a set is all, and ``recommend`` takes
            answers as they are, up to a jitter.
        seed: of the order, or of the scrambling; below 2^63.
        maximize: False minimises; all public values keep the user's sign.

    Raises:
        InputError: if an argument is out of its range, or only one of kernel and noise given.

    Example:
        >>> box = BoxDomain(torch.tensor([[0.0, 0.0], [1.0, 5.0]], dtype=torch.double))
        >>> opt = RandomOptimizer(box, seed=1)
        >>> bool(box.contains(torch.stack([t.x for t in opt.ask(4)])).all())
        True
    """

    def __init__(
        self,
        domain: Domain,
        *,
        horizon: int | None = None,
        covar_module: Kernel | Learned | None = None,
        noise_var: float | None = None,
        exact: bool = False,
        seed: int = 0,
        maximize: bool = True,
    ) -> None:
        config = Config(domain, horizon, covar_module, noise_var, exact, seed, maximize)
        super().__init__(config)
        self._start()

    def _start(self) -> None:
        super()._start()
        self._fitting: Fitting = Fitting(self._config, self._ledger)
        self._asks: Counter[int] = Counter()  # of each point, but for abandoned trials
        self._feasibility = Feasibility(exact=self._exact)
        self._number = self._cursor = 0  # the pass, and the places done in its order
        self._pass: tuple[int, list[int]] | None = None  # its number and order
        self._engine: SobolEngine | None = None
        self._found: list[Tensor] = []  # points of the sequence that may be asked
        self._thin_from: int | None = None  # how many of them, where the rest are uniform
        self._uniform: tuple[int, Tensor] | None = None  # a batch of those, and its number

    @property
    def guarantee(self) -> Guarantee:
        """Nothing is claimed."""
        return Guarantee(False, 0.1, (), ("random search does not use the answers.",))

    def _choose(self) -> Choice:
        if isinstance(self._domain, BoxDomain):
            return Choice(None, round=1, slot=len(self._ledger), x=self._sobol_point())
        assert isinstance(self._domain, FiniteDomain)
        index = self._next_of_pass()
        if index is None:
            if not any(map(self._may_ask, range(len(self._domain)))):
                raise nothing_to_ask(len(self._domain), exact=self._exact)
            while index is None:
                self._number, self._cursor = self._number + 1, 0
                index = self._next_of_pass()
        return Choice(index, round=self._number + 1, slot=len(self._ledger))

    def _next_of_pass(self) -> int | None:
        """The first point of this pass's order that it has not asked yet."""
        order = self._order(self._number)
        for place in range(self._cursor, len(order)):
            index = order[place]
            if self._asks[index] <= self._number and self._may_ask(index):
                self._cursor = place
                return index
        return None

    def _may_ask(self, index: int) -> bool:
        return self._feasibility.status(index) is PointStatus.OPEN

    def _order(self, number: int) -> list[int]:
        """The order of a pass, counted from 0."""
        if self._pass is None or self._pass[0] != number:
            assert isinstance(self._domain, FiniteDomain)
            generator = generator_for(self._seed, number, torch.device("cpu"))
            self._pass = (number, torch.randperm(len(self._domain), generator=generator).tolist())
        return self._pass[1]

    def _sobol_point(self) -> Tensor:
        """The next point of the scrambled Sobol sequence that satisfies the constraints.

        Where hardly any point of the sequence does: a uniform one.
        """
        assert isinstance(self._domain, BoxDomain)
        number = len(self._ledger)
        if self._engine is None:
            self._engine = SobolEngine(self._domain.dim, scramble=True, seed=self._seed)
        while self._thin_from is None and len(self._found) <= number:
            unit = self._engine.draw(BATCH, dtype=torch.double).to(self._domain.like)
            X = self._domain.from_unit(unit)
            self._found += X[self._domain.contains(X)].unbind()
            if self._engine.num_generated > MAX_DRAWS * (len(self._found) + 1):
                self._thin_from = len(self._found)
        if self._thin_from is None or number < self._thin_from:
            return self._found[number]
        turn, place = divmod(number - self._thin_from, BATCH)
        if self._uniform is None or self._uniform[0] != turn:
            generator = generator_for(self._seed, turn, torch.device("cpu"))
            region = BoxActiveSet(self._domain, seed=self._seed)
            self._uniform = (turn, region.draw(BATCH, generator).points)
        return self._uniform[1][place]

    def _asked(self, trial: Trial, data: Mapping[str, Any]) -> None:
        if trial.index is not None:
            if trial.round - 1 != self._number:
                self._number, self._cursor = trial.round - 1, 0
            self._asks[trial.index] += 1
            self._feasibility.add(trial)

    def _settled(self, trial: Trial) -> None:
        if trial.index is not None:
            if trial.state is TrialState.ABANDONED:
                self._asks[trial.index] -= 1
            elif trial.late:
                self._asks[trial.index] += 1
            self._feasibility.note(trial)
            if trial.state is TrialState.ABANDONED or trial.index in self._feasibility.suspects:
                self._cursor = 0  # the point may come again in this pass

    def _attached(self, result: Attached) -> None:
        if result.index is not None:
            self._feasibility.know(result.index)

    def _judgement(self) -> tuple[Surrogate, Confidence, float]:
        return self._fitting.current(), FixedBeta(6.0), 0.1
