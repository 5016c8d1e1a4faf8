"""Index methods with delayed answers: upper confidence bounds, Thompson samples, BoTorch's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from botorch.acquisition.acquisition import AcquisitionFunction
from gpytorch.kernels import Kernel
from torch import Tensor

from botorch_delay import validation
from botorch_delay.confidence.bounds import Confidence, FixedBeta, Guarantee
from botorch_delay.domains.finite import Domain
from botorch_delay.gp.surrogate import (
    Hyperparameters,
    Surrogate,
    check_warm_start,
)
from botorch_delay.history.events import finite
from botorch_delay.history.trials import Attached, Choice, Trial
from botorch_delay.optimizers.base import Optimizer
from botorch_delay.optimizers.botorch_scores import try_out
from botorch_delay.optimizers.fitting import Fitting
from botorch_delay.optimizers.fixed_model import (
    describe_given,
    describe_replicates,
    given_surrogate,
    recipe_of,
)
from botorch_delay.optimizers.policies import IndexMethod
from botorch_delay.optimizers.rules import (
    UCB,
    BotorchRule,
    Censor,
    Hallucinate,
    Pending,
    Rule,
    ThompsonSampling,
    as_rule,
    check_combination,
)
from botorch_delay.optimizers.specs import describe_part


class AcquisitionOptimizer(Optimizer):
    """Ask where a rule is largest, given what has arrived and what is pending.

    | rule | `Ignore` | `Hallucinate` | `Censor` |
    |---|---|---|---|
    | UCB | GP-UCB on what has arrived | GP-BUCB | GP-UCB-SDF |
    | ThompsonSampling | asynchronous TS | GP-BTS | GP-TS-SDF |
    | BoTorch acquisition | answers only | `X_pending` | worst values as answers |

    UCB and Thompson sampling keep the posterior of every candidate up to date: an ask and a
    tell cost at most O(N n) for N candidates and n distinct points asked, in whatever order
    answers come. A Thompson sample adds one product with a root of the prior covariance.
    On a box the candidates are a quasi-random pool, and the best of them climb along the
    gradient; where the kernel is learned, those with the best mean, and not far: what is largest
    on a box lies in its corners, which tell least about the rest. Thompson samples are
    approximate there, as above 5,000 points.
    A BoTorch acquisition is evaluated at every candidate; analytic ones, which have no
    ``X_pending``, are given the fantasy model instead. Before the first answer they ask where
    the deviation is largest. Ties go to the lowest index.

    Without new answers ``Ignore`` with a rule that is not random asks the same point again.
    An abandoned trial is not pending any more. One that failed stays counted, except under
    ``Ignore``; its point is asked again at most twice.

    Args:
        domain: a finite action set, or a box.
        horizon: how many asks are planned; None where no end is planned.
        covar_module: the kernel, fixed; None to learn a Matern 5/2 kernel and noise, again
            whenever the answers have grown by a fifth. Until three are in, points come in a
            random order.
        noise_var: lambda^2, given if and only if the kernel is; not with ``exact``.
        warm_start: what another study has learned, ``other.hyperparameters``: where learning
            begins; None for BoTorch's priors.
        rule: :class:`UCB`, :class:`ThompsonSampling`, :class:`BotorchRule`, or what the latter
            takes: a BoTorch acquisition class, or a function of ``model`` and ``X_pending``.
        pending: how pending points enter; :class:`Hallucinate` if None.
        exact: evaluations have no noise: a kernel is given without a noise variance, a jitter
            stands for it, and no point is asked twice.
        repeat_pending: whether a point may be asked again while a trial of it is running. If not,
            it is only where every point that may be asked has one.
        seed: of Thompson samples, of BoTorch's samplers, and of restarts of a fit.
        maximize: False minimises; all public values keep the user's sign.

    Raises:
        InputError: if an argument is out of its range, only one of kernel and noise is given,
            or the rule cannot use pending points in this way.
        NotSupportedError: if Thompson sampling on a box or on more than 5,000 points knows no
            features of the kernel.

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel
        >>> from botorch_delay.domains.finite import FiniteDomain
        >>> domain = FiniteDomain(torch.linspace(0, 1, 50, dtype=torch.double).unsqueeze(-1))
        >>> opt = AcquisitionOptimizer(
        ...     domain, covar_module=RBFKernel().double(), noise_var=1e-4, rule=UCB(6.0)
        ... )
        >>> opt.method
        'GP-BUCB'
        >>> [trial.index for trial in opt.ask(3)]      # three workers, three points
        [0, 49, 24]
    """

    def __init__(
        self,
        domain: Domain,
        *,
        horizon: int | None = None,
        covar_module: Kernel | None = None,
        noise_var: float | None = None,
        rule: Rule | Callable[..., AcquisitionFunction] | None = None,
        pending: Pending | None = None,
        warm_start: Hyperparameters | None = None,
        exact: bool = False,
        repeat_pending: bool = True,
        seed: int = 0,
        maximize: bool = True,
    ) -> None:
        super().__init__(domain, horizon, seed=seed, maximize=maximize)
        self._fixed = given_surrogate(covar_module, noise_var, domain.like, exact=exact)
        self._exact, self._repeat_pending = exact, validation.flag(repeat_pending, "repeat_pending")
        check_warm_start(warm_start, domain, self._fixed is not None)
        self._warm_start = warm_start
        self._rule = UCB(6.0) if rule is None else as_rule(rule)
        self._pending = check_combination(self._rule, Hallucinate() if pending is None else pending)
        if isinstance(self._pending, Censor):
            validation.answer(self._pending.worst_value, domain.like)
        self._start()
        self._played.flush()
        if isinstance(self._rule, BotorchRule):
            hallucinate = isinstance(self._pending, Hallucinate)
            try_out(self._rule, self._played.surrogate, self._played.pool, hallucinate)

    def _start(self) -> None:
        super()._start()
        worst = self._pending.worst_value if isinstance(self._pending, Censor) else None
        self._fitting = Fitting(
            self._domain,
            self._ledger,
            seed=self._seed,
            sign=self._sign,
            fixed=self._fixed,
            warm_start=self._warm_start,
            exact=self._exact,
            worst_value=worst,
        )
        self._played = IndexMethod(
            self._domain,
            self._ledger,
            self._rule,
            self._pending,
            seed=self._seed,
            sign=self._sign,
            fitting=self._fitting,
            exact=self._exact,
            repeat_pending=self._repeat_pending,
        )

    @property
    def rule(self) -> Rule:
        """What is maximised."""
        return self._rule

    @property
    def method(self) -> str:
        """The name under which this combination was published, or what it is made of."""
        return self._played.name

    @property
    def guarantee(self) -> Guarantee:
        """Nothing is claimed; the reasons."""
        missing = [
            f"{self.method} with a fixed multiplier is a heuristic; for a regret bound use "
            "BPEDelayOptimizer with RKHSConfidence."
        ]
        if self._played.approximate:
            assert isinstance(self._rule, ThompsonSampling)
            missing.append(
                f"on {self._domain!r} the prior part of a Thompson sample is approximate: "
                f"{self._rule.n_features} random Fourier features."
            )
        return Guarantee(False, 0.1, (), tuple(missing))

    def posterior(self) -> tuple[Tensor, Tensor]:
        """Mean and deviation at every point, as the rule sees them now: ``N`` each.

        In the user's units and sign; pending points enter as ``pending`` says. On a box the
        points are those of ``pool``.
        """
        self._played.flush()
        scale, offset = self._played.surrogate.scale, self._played.surrogate.offset
        mean = self._sign * (offset + scale * self._played.mean)
        return mean, scale * self._played.deviation

    @property
    def pool(self) -> Tensor:
        """The candidates, ``N x d``: all points of a set, or where climbs on a box begin."""
        return self._played.pool

    def _choose(self) -> Choice:
        self._fit_if_due()
        point = self._played.choose()
        slot, width = len(self._ledger), self._played.width_at(point)
        data = {} if width is None else {"width": width}
        if isinstance(point, int):
            return Choice(point, round=1, slot=slot, data=data)
        return Choice(None, round=1, slot=slot, x=point, data=data)

    def _asked(self, trial: Trial, data: Mapping[str, Any]) -> None:
        width = data.get("width")
        self._played.asked(trial, None if width is None else finite(width))

    def _settled(self, trial: Trial) -> None:
        self._played.settled(trial)

    def _attached(self, result: Attached) -> None:
        self._played.attached()

    def _judgement(self) -> tuple[Surrogate, Confidence, float]:
        beta = self._rule.beta if isinstance(self._rule, UCB) else 6.0
        return self._fitting.current(), FixedBeta(beta), 0.1

    def _config(self) -> dict[str, Any]:
        return {
            "horizon": self._horizon,
            **describe_given(self._fixed, self._domain.like),
            "rule": describe_part(self._rule),
            "pending": describe_part(self._pending),
            "warm_start": describe_part(self._warm_start),
            **describe_replicates(self._exact, self._repeat_pending),
            "seed": self._seed,
            "maximize": self._maximize,
        }

    def _recipes(self) -> dict[str, Any]:
        return recipe_of(self._fixed)
