"""Where a rule is largest, given all answers and what is pending."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from botorch_delay.design.ties import lowest_of_largest
from botorch_delay.domains.generators import generator_for
from botorch_delay.elimination.active_set import ActiveSet
from botorch_delay.exceptions import NumericsError
from botorch_delay.gp.kernels import prior_variance
from botorch_delay.gp.sample_paths import PriorPaths
from botorch_delay.history.trials import Ledger
from botorch_delay.optimizers.botorch_scores import Score, build, score, try_out
from botorch_delay.optimizers.config import AcquisitionConfig, BPEConfig
from botorch_delay.optimizers.fitting import Fitting
from botorch_delay.optimizers.policy_data import PolicyData
from botorch_delay.optimizers.rules import (
    UCB,
    BotorchRule,
    Hallucinate,
    ThompsonSampling,
    method_name,
)

# Points of a box from which climbs begin, beside some moved to its boundary.
BOX_POOL = 2048


class Policy(ABC):
    """The next point by a rule, given what has arrived and what is pending.

    Args:
        config: of the optimizer; it has a rule.
        ledger: the trials; read, never written.
        fitting: kernel and noise.

    Attributes:
        pool: the candidates, ``N x d``.
        surrogate: of the present posteriors.
        data: what the trials mean; told of everything that happens to one.
    """

    def __init__(
        self, config: AcquisitionConfig | BPEConfig, ledger: Ledger, fitting: Fitting
    ) -> None:
        assert config.rule is not None
        self._domain, self._rule, self._pending = config.domain, config.rule, config.pending
        self.seed, self._exact = config.seed, config.exact
        self._repeat_pending = config.repeat_pending
        self._ledger, self._fitting = ledger, fitting
        self._paths: PriorPaths | None = None
        self.surrogate = fitting.surrogate
        self.pool: Tensor  # made with the first update
        self._own_pool: Tensor | None = None
        self._active: ActiveSet | None = None  # what rounds have left of a box
        self.data = PolicyData(ledger, self._pending, sign=config.sign, exact=self._exact)

    def check(self) -> None:
        """Make ready for the first ask; refuse a BoTorch rule that cannot be evaluated."""
        self.update()
        if isinstance(self._rule, BotorchRule):
            hallucinate = isinstance(self._pending, Hallucinate)
            try_out(self._rule, self.surrogate, self.pool, hallucinate)

    @property
    def name(self) -> str:
        """The name under which this combination was published, or what it is made of."""
        name = method_name(self._rule, self._pending)
        return f"{name} (approximate samples)" if self.approximate else name

    @property
    def approximate(self) -> bool:
        """Whether Thompson samples are."""
        self.update()
        return self._paths is not None and not self._paths.exact

    @property
    def mean(self) -> Tensor:
        """Of the surrogate at every candidate, in its units: ``N``."""
        return self.data.answers.at_candidates.mean

    @property
    def deviation(self) -> Tensor:
        """As the mean, with pending points counted as the rule does: ``N``."""
        return self.data.with_pending.at_candidates.deviation

    def choose(self, active: ActiveSet | None = None) -> int | Tensor:
        """The next point: its row on a finite set, the point itself (``d``) on a box.

        Args:
            active: where it may be; anywhere if None.

        Raises:
            EmptyDomainError: if nothing may be asked.
            NumericsError: if the rule is finite nowhere.
        """
        self.update()
        scores = self._first_order() if self._is_blind else self.scores()
        return self._best(scores, active)

    def confirm(self, active: ActiveSet | None = None) -> int | Tensor | None:
        """The answered point to ask again, while it is open which of them is best; else None.

        It is open while the mean plus deviation of another reaches the best one's mean less its
        deviation, pending points counted. Of all these the one with the largest mean plus
        deviation is asked, unless a trial of it is running.

        Args:
            active: where it may be; anywhere if None.
        """
        self.update()
        if self._is_blind:
            return None
        closed = self.data.feasibility.closed()
        keys, mean, deviation = self._answered(
            sorted(set(self.data.answers.keys).difference(closed)), active
        )
        if len(keys) < 2:
            return None
        best = int(mean.argmax())
        upper = mean + deviation
        contested = upper >= mean[best] - deviation[best]
        if int(contested.sum()) < 2:
            return None
        running = torch.tensor([self.data.running[key] > 0 for key in keys], device=upper.device)
        upper = upper.masked_fill(running | ~contested, -torch.inf)
        if not bool(torch.isfinite(upper.max())):
            return None
        return self._point(keys[lowest_of_largest(upper, self._tie_scale)])

    def scores(self) -> Tensor:
        """The rule at every candidate, ``N``."""
        if isinstance(self._rule, BotorchRule):
            return self._botorch_scores(self._rule)
        if isinstance(self._rule, UCB):
            return self.mean + self._factor * self.deviation
        return self.mean + self._factor * self._path()

    def use_active(self, active: ActiveSet) -> None:
        """Take candidates on a box from what rounds have left of it."""
        narrowed = active if active.inside is not None else None
        if narrowed is not None or self._active is not None:
            self._active, self.data.behind = narrowed, True

    def update(self) -> None:
        """Count all trials, with the present surrogate and candidates, where that is not done."""
        if not self.data.behind and self.surrogate is self._fitting.surrogate:
            return
        if self._own_pool is None:
            self._own_pool = self._make_pool()
        self.surrogate, self.pool = self._fitting.surrogate, self._own_pool
        left = None if self._active is None else self._active.spread
        if left is not None:
            self.pool = left[:: max(len(left) // BOX_POOL, 1)]
        self.data.restart(self.surrogate, self.pool)
        self._prepare()

    @abstractmethod
    def _make_pool(self) -> Tensor:
        """The candidates of the beginning, ``N x d``."""

    @abstractmethod
    def _best(self, scores: Tensor, active: ActiveSet | None) -> int | Tensor:
        """Where the rule is largest, given its values at the candidates."""

    @abstractmethod
    def _answered(
        self, keys: list[int], active: ActiveSet | None
    ) -> tuple[list[int], Tensor, Tensor]:
        """Which of some points may be asked; mean and deviation there."""

    @abstractmethod
    def _point(self, key: int) -> int | Tensor:
        """The point with a key."""

    @abstractmethod
    def _make_paths(self, rule: ThompsonSampling) -> PriorPaths:
        """Paths of the prior at all points that count."""

    @abstractmethod
    def _path(self) -> Tensor:
        """A path of the centred posterior at every candidate."""

    def _prepare(self) -> None:
        with torch.no_grad():
            prior = prior_variance(self.surrogate.covar_module, self.surrogate.inputs(self.pool))
        self._tie_scale = prior.max().sqrt().item()
        self._order: Tensor | None = None  # of the asks that nothing has been learned for
        if isinstance(self._rule, ThompsonSampling):
            self._paths = self._make_paths(self._rule)

    @property
    def _factor(self) -> float:
        """On the deviation, or on the path."""
        if isinstance(self._rule, UCB):
            return self._rule.factor + sum(self.data.widths)
        assert isinstance(self._rule, ThompsonSampling)
        return float(self._rule.beta**0.5)

    @property
    def _is_blind(self) -> bool:
        """Whether there are too few answers to learn a kernel from."""
        return self.surrogate.learned and not self.surrogate.scaled

    @property
    def _generator(self) -> torch.Generator:
        """Of the present ask."""
        return generator_for(self.seed, len(self._ledger), torch.device("cpu"))

    def _first_order(self) -> Tensor:
        """Scores by which the candidates come one after the other in a random order.

        Before there is anything to learn from, a rule knows only which points are far from each
        other. Those are the corners, where it is rarely worth to begin.
        """
        count = len(self.pool)
        if self._order is None:
            generator = generator_for(self.seed, 0, torch.device("cpu"))
            self._order = torch.randperm(count, generator=generator).to(self.pool.device)
        taken = torch.zeros_like(self._order)
        for trial in self._ledger.trials:
            at = (self.pool == trial.x).all(dim=1) if trial.index is None else trial.index
            taken[at] = 1
        turn = (self._order - len(self._ledger)) % count
        return -(turn + count * taken).to(self.pool)

    def _closed_keys(self) -> tuple[list[int], list[int]]:
        """Points that may not be asked now, and those that only are if nothing else is left."""
        avoided = [] if self._repeat_pending else list(+self.data.running)
        return self.data.feasibility.closed(), avoided

    def _check_finite(self, scores: Tensor) -> None:
        if not bool(torch.isfinite(scores.max())):
            raise NumericsError(f"{self.name} is not finite at any point that may be asked.")

    def _acquisition(self, rule: BotorchRule) -> Score | None:
        """A BoTorch acquisition function; None without answers."""
        answers = self.data.answers.anywhere
        if not len(answers):
            return None
        seed = int(torch.randint(2**31, (), generator=self._generator))
        return build(rule, self.surrogate, answers.data, self.data.pending_points(), seed)

    def _botorch_scores(self, rule: BotorchRule) -> Tensor:
        function = self._acquisition(rule)
        if function is None:
            return self.deviation
        joint = len(self.data.answers.anywhere) + len(self._ledger.running())
        return score(function, self.pool, joint)
