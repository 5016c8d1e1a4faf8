"""Index methods with delayed answers: UCB, Thompson sampling, BoTorch acquisition functions."""

from __future__ import annotations

from collections.abc import Callable

from botorch.acquisition.acquisition import AcquisitionFunction
from gpytorch.kernels import Kernel

from botorch_delay.confidence.bounds import DEFAULT_DELTA
from botorch_delay.confidence.guarantee import Guarantee
from botorch_delay.domains.domain import Domain
from botorch_delay.domains.space import Space, as_domain
from botorch_delay.gp.surrogate import Learned
from botorch_delay.history.trials import Suggestion
from botorch_delay.optimizers.base import Optimizer
from botorch_delay.optimizers.config import AcquisitionConfig
from botorch_delay.optimizers.exploit import DEFAULT_RULE
from botorch_delay.optimizers.maximizer import Maximizer
from botorch_delay.optimizers.pending import Hallucinate, Pending
from botorch_delay.optimizers.rules import Rule, as_rule
from botorch_delay.optimizers.run import exclusive


class AcquisitionOptimizer(Optimizer):
    """Ask the maximiser of a rule, given the answers so far and the pending points.

    The guide ``methods.md`` lists the published methods that this can run, with their sources. The
    arguments not listed here are those of :class:`BPEDelayOptimizer`.

    UCB and Thompson sampling keep the posterior at every candidate up to date: an ask and a tell
    cost at most O(N n) for N candidates and n distinct points asked, whatever the order of answers.
    On a box the candidates are a quasi-random pool, and gradient ascent starts from the best; with
    a learned kernel it starts from those with the best mean and stays near them. A BoTorch
    acquisition function is evaluated at every candidate (before any answer, the deviation is);
    analytic ones, which take no ``X_pending``, get the fantasy model. Ties go to the lowest index.

    An abandoned trial no longer counts as pending. A failed trial still counts as if it were,
    except under ``Ignore``; its point may be asked again, at most twice.

    Args:
        horizon: how many asks are planned; None if no end is planned.
        rule: a :class:`Rule`, or whatever :class:`BotorchRule` takes; ``UCB(6.0)`` if None (the
            rule of :class:`BPEDelayOptimizer` for learned kernels on boxes is ``UCB(2.0)``).
        pending: how pending points enter the posterior; :class:`Hallucinate` if None.
        repeat_pending: whether a point may be asked again while a trial of it is running. If False,
            this happens only once every point that may be asked has a running trial.

    Raises:
        NotSupportedError: for Thompson sampling on a box, or on more than 5,000 points, with a
            kernel for which no random Fourier features are known.

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel
        >>> from botorch_delay.domains.finite import FiniteDomain
        >>> from botorch_delay.optimizers.rules import UCB
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
        domain: Domain | Space,
        horizon: int | None = None,
        *,
        covar_module: Kernel | Learned | None = None,
        noise_var: float | None = None,
        rule: Rule | Callable[..., AcquisitionFunction] | None = None,
        pending: Pending | None = None,
        exact: bool = False,
        repeat_pending: bool = True,
        seed: int = 0,
        maximize: bool = True,
    ) -> None:
        config = AcquisitionConfig(
            *(as_domain(domain), horizon, covar_module, noise_var, exact, seed, maximize),
            rule=DEFAULT_RULE if rule is None else as_rule(rule),
            pending=Hallucinate() if pending is None else pending,
            repeat_pending=repeat_pending,
        )
        super().__init__(config)
        self._config: AcquisitionConfig = config
        self._start()
        self._maximizer.check()

    def _start(self) -> None:
        super()._start()
        shared = self._config, self._ledger, self._fitting, self._feasibility
        self._maximizer = Maximizer(*shared)
        self._observers = [self._feasibility, self._maximizer.model]

    @property
    @exclusive
    def method(self) -> str:
        """The published name of this rule and treatment of pending points, or a description."""
        self._maximizer.update()
        rule, model = self._config.rule, self._maximizer.model
        name = rule.method(model.pending)
        return f"{name} (approximate samples)" if rule.approximates(model) else name

    @property
    @exclusive
    def guarantee(self) -> Guarantee:
        missing = [
            f"no regret bound is claimed for {self.method}; for one use BPEDelayOptimizer with "
            "RKHSConfidence."
            if self._config.interval_confidence[0].constants is None
            else "no regret bound is known before the run; BPEDelayOptimizer.guaranteed gives "
            "one. opt.certificate bounds the regret so far."
        ]
        approximate = self._config.rule.approximates(self._maximizer.model)
        if approximate is not None:
            missing.append(f"on {self._domain!r} {approximate}")
        return Guarantee(False, DEFAULT_DELTA, (), tuple(missing))

    def _choose(self) -> Suggestion:
        self._fit_if_due()
        place, model = self._maximizer.choose(), self._maximizer.model
        data = {"width": model.width_at(place)} if model.pending.inflate else {}
        return Suggestion(place, 1, len(self._ledger), data)
