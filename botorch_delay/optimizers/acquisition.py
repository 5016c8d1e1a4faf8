"""Index methods with delayed answers: upper confidence bounds, Thompson samples, BoTorch's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from botorch.acquisition.acquisition import AcquisitionFunction
from gpytorch.kernels import Kernel
from torch import Tensor

from botorch_delay import checks, sampling
from botorch_delay.box_search import maximize, snapped
from botorch_delay.boxes import BoxDomain
from botorch_delay.confidence import Confidence, FixedBeta, Guarantee
from botorch_delay.domains import Domain, FiniteDomain, PointKeys
from botorch_delay.exceptions import NumericsError, StorageError
from botorch_delay.kernels import covariance, prior_variance
from botorch_delay.optimizers.averages import Averages
from botorch_delay.optimizers.base import Choice, Optimizer
from botorch_delay.optimizers.botorch_scores import build, score, try_out
from botorch_delay.optimizers.feasibility import Feasibility, nothing_to_ask
from botorch_delay.optimizers.given import describe_given, given_surrogate, recipe_of
from botorch_delay.records import describe_part
from botorch_delay.regions import Region
from botorch_delay.rules import (
    UCB,
    BotorchRule,
    Censor,
    Hallucinate,
    Pending,
    Rule,
    ThompsonSampling,
    as_rule,
    check_combination,
    generator_for,
    method_name,
)
from botorch_delay.sampling import PriorPaths
from botorch_delay.states import brief, is_whole
from botorch_delay.surrogate import (
    MIN_ANSWERS_TO_FIT,
    Hyperparameters,
    Surrogate,
    check_warm_start,
    fit_surrogate,
)
from botorch_delay.ties import lowest_of_largest
from botorch_delay.trials import Attached, Trial, TrialState

# A learned kernel is fitted again when there are this many times the answers of the last fit.
GROWTH_TO_REFIT = 1.2

# Points of a box from which climbs begin, beside some moved to its boundary.
BOX_POOL = 2048
# How far climbs get from where the mean is best, as a share of each side.
LOCAL_REACH = 0.1


class AcquisitionOptimizer(Optimizer):
    """Ask where a rule is largest, given what has arrived and what is pending.

    ====================  ==========================  ===============  =======================
    rule                  Ignore                      Hallucinate      Censor
    ====================  ==========================  ===============  =======================
    UCB                   GP-UCB on what has arrived  GP-BUCB          GP-UCB-SDF
    ThompsonSampling      asynchronous TS             GP-BTS           GP-TS-SDF
    BoTorch acquisition   answers only                ``X_pending``    worst values as answers
    ====================  ==========================  ===============  =======================

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
        covar_module: the kernel, fixed; None to learn kernel and noise, again whenever the
            answers have grown by a fifth.
        noise_var: lambda^2, given if and only if the kernel is.
        warm_start: what another study has learned, ``other.hyperparameters``: where learning
            begins; None for BoTorch's priors.
        rule: :class:`UCB`, :class:`ThompsonSampling`, :class:`BotorchRule`, or what the latter
            takes: a BoTorch acquisition class, or a function of ``model`` and ``X_pending``.
        pending: how pending points enter; :class:`Hallucinate` if None.
        seed: of Thompson samples, of BoTorch's samplers, and of restarts of a fit.
        maximize: False minimises; all public values keep the user's sign.

    Raises:
        InputError: if an argument is out of its range, only one of kernel and noise is given,
            or the rule cannot use pending points in this way.
        NotSupportedError: if Thompson sampling on a box or on more than 5,000 points knows no
            features of the kernel.

    Example:
        >>> from gpytorch.kernels import RBFKernel
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
        seed: int = 0,
        maximize: bool = True,
    ) -> None:
        super().__init__(domain, horizon, seed=seed, maximize=maximize)
        self._fixed = given_surrogate(covar_module, noise_var, domain.like)
        check_warm_start(warm_start, domain, self._fixed is not None)
        self._warm_start = warm_start
        self._rule = UCB(6.0) if rule is None else as_rule(rule)
        self._pending = check_combination(self._rule, Hallucinate() if pending is None else pending)
        if isinstance(self._pending, Censor):
            checks.answer(self._pending.worst_value, domain.like)
        self._pool = self._make_pool()
        self._surrogate = self._fixed or self._fit(None)
        if isinstance(self._rule, BotorchRule):
            try_out(self._rule, self._surrogate, self._pool, isinstance(self._pending, Hallucinate))
        self._fitted_to = 0  # answers
        self._censored: set[int] = set()  # trials whose answers came too late
        self._widths: list[float] = []  # sigma at the last points, when they were asked
        self._recommender: tuple[int, Surrogate] | None = None
        self._keys = PointKeys()  # of points that are no candidates
        self._paths_elsewhere = 0
        self._paths: PriorPaths | None = None
        self._drawn: Callable[[Tensor], Tensor] | None = None  # a path on a box
        self._acquisition: Callable[[Tensor], Tensor] | None = None
        self._restart()

    @property
    def rule(self) -> Rule:
        """What is maximised."""
        return self._rule

    @property
    def pending_points(self) -> Pending:
        """How pending points enter the posterior."""
        return self._pending

    @property
    def method(self) -> str:
        """The name under which this combination was published, or what it is made of."""
        name = method_name(self._rule, self._pending)
        approximate = self._paths is not None and not self._paths.exact
        return f"{name} (approximate samples)" if approximate else name

    @property
    def guarantee(self) -> Guarantee:
        """Nothing is claimed; the reasons."""
        missing = [
            f"{self.method} with a fixed multiplier is a heuristic; for a regret bound use "
            "BPEDelayOptimizer with RKHSConfidence."
        ]
        if self._paths is not None and not self._paths.exact:
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
        self._flush()
        scale, offset = self._surrogate.scale, self._surrogate.offset
        mean = self._sign * (offset + scale * self._values.posterior.mean)
        return mean, scale * self._deviation()

    def _choose(self) -> Choice:
        self._refit()
        self._flush()
        scores = self._scores()
        if isinstance(self._domain, BoxDomain):
            return self._choose_on_box(self._domain, scores)
        closed = self._feasibility.closed()
        if closed:
            if len(closed) == len(self._pool):
                raise nothing_to_ask(len(closed))
            rows = torch.tensor(closed, device=scores.device)
            scores = scores.index_fill(0, rows, -torch.inf)
        if not bool(torch.isfinite(scores.max())):
            raise NumericsError(f"{self.method} is not finite at any point that may be asked.")
        # An acquisition function has a scale of its own, which may be tiny.
        scale = 0.0 if isinstance(self._rule, BotorchRule) else self._tie_scale
        return Choice(lowest_of_largest(scores, scale), round=1, slot=len(self._ledger))

    def _choose_on_box(self, domain: BoxDomain, scores: Tensor) -> Choice:
        """The best of the pool's best points after a climb."""
        closed = [self._keys.points[-1 - key] for key in self._feasibility.closed()]

        def may_ask(X: Tensor) -> Tensor:
            allowed = torch.ones(len(X), dtype=torch.bool, device=X.device)
            for x in closed:
                allowed &= ~(x == X).all(dim=1)
            return allowed

        allowed = may_ask(self._pool)
        if not bool(allowed.any()):
            raise nothing_to_ask(len(self._pool))
        scores = scores.masked_fill(~allowed, -torch.inf)
        if not bool(torch.isfinite(scores.max())):
            raise NumericsError(f"{self.method} is not finite at any point that may be asked.")
        costly = isinstance(self._rule, BotorchRule)
        count = min(8 if costly else 64, len(scores))
        best, reach, function = scores.topk(count).indices, 1.0, self._function()
        if self._surrogate.learned:
            # Not into the corners: new places are spread points, climbs stay near the best ones.
            best = torch.cat([best[:1], self._values.posterior.mean.topk(count).indices])
            reach = LOCAL_REACH
            function = self._function(self._pool[best])
        generator = generator_for(self._seed, len(self._ledger), torch.device("cpu"))
        X, found = maximize(
            function,
            domain,
            self._pool[best],
            generator=generator,
            steps=12 if costly else 24,
            inside=may_ask,
            reach=reach,
        )
        found = torch.where(torch.isfinite(found), found, scores[best])
        x = X[lowest_of_largest(found)].clone()
        return Choice(None, round=1, slot=len(self._ledger), x=x)

    def _function(self, starts: Tensor | None = None) -> Callable[[Tensor], Tensor]:
        """What is climbed, at any points: ``n x d`` to ``n``, differentiable.

        With ``starts``, one per row, a confidence bound gains nothing from a deviation above
        that of the start: else every climb would lead to the edge of the box.
        """
        if isinstance(self._rule, BotorchRule):
            return self._acquisition or self._spread
        if isinstance(self._rule, UCB):
            factor = self._rule.factor + sum(self._widths)
            if starts is not None:
                cap = self._spread(starts)
                return lambda X: self._mean_at(X) + factor * torch.minimum(self._spread(X), cap)
            return lambda X: self._mean_at(X) + factor * self._spread(X)
        assert isinstance(self._rule, ThompsonSampling)
        assert self._drawn is not None
        drawn, factor = self._drawn, self._rule.beta**0.5
        return lambda X: self._mean_at(X) + factor * drawn(X)

    def _mean_at(self, X: Tensor) -> Tensor:
        answers, inputs = self._values.ordered, self._surrogate.inputs(X)
        if not len(answers):
            return 0.0 * inputs.sum(dim=-1)
        weights = answers.solve(answers.values)
        return weights @ covariance(self._surrogate.covar_module, answers.points, inputs)

    def _spread(self, X: Tensor) -> Tensor:
        design, inputs = (self._design or self._values).ordered, self._surrogate.inputs(X)
        prior = prior_variance(self._surrogate.covar_module, inputs) + 0.0 * inputs.sum(dim=-1)
        if not len(design):
            return prior.sqrt()
        cross = covariance(self._surrogate.covar_module, design.points, inputs)
        variance = prior - design.whiten(cross).square().sum(dim=0)
        return variance.clamp_min(1e-12 * float(prior.detach().max())).sqrt()

    def _make_pool(self) -> Tensor:
        """The candidates: all points of a set; on a box spread points, some on its boundary."""
        if isinstance(self._domain, FiniteDomain):
            return self._domain.points
        assert isinstance(self._domain, BoxDomain)
        generator = generator_for(self._seed, 0, torch.device("cpu"))
        spread = Region(self._domain, seed=self._seed).sample(BOX_POOL, generator).points
        if self._fixed is None:
            return spread
        edge = snapped(self._domain, spread[: BOX_POOL // 4], generator)
        return torch.unique(torch.cat([spread, edge[self._domain.contains(edge)]]), dim=0)

    @property
    def pool(self) -> Tensor:
        """The candidates, ``N x d``: all points of a set, or where climbs on a box begin."""
        return self._pool

    def _asked(self, trial: Trial) -> None:
        if isinstance(self._pending, Censor) and self._pending.inflate:
            assert self._pending.max_delay is not None
            if trial.index is None:
                self._widths.append(self._spread(trial.x.unsqueeze(0)).item())
            else:
                self._widths.append(self._deviation()[trial.index].item())
            excess = max(len(self._widths) - self._pending.max_delay, 0)
            self._widths = self._widths[excess:]
        self._feasibility.add(trial)
        self._count(trial)

    def _settled(self, trial: Trial) -> None:
        limit = self._pending.max_delay if isinstance(self._pending, Censor) else None
        taken = len(self._ledger) - 1 - trial.id  # asks since it was asked
        if trial.state is TrialState.COMPLETED and limit is not None and taken > limit:
            self._censored.add(trial.id)
        self._feasibility.note(trial)
        self._count(trial)

    def _attached(self, results: list[Attached]) -> None:
        for number, result in enumerate(results, len(self._ledger.attached) - len(results)):
            self._count_attached(number, result)

    def _scores(self) -> Tensor:
        if isinstance(self._rule, BotorchRule):
            return self._evaluate(self._rule)
        deviation = self._deviation()
        if isinstance(self._rule, UCB):
            factor = self._rule.factor + sum(self._widths)
            return self._values.posterior.mean + factor * deviation
        assert isinstance(self._rule, ThompsonSampling)
        return self._values.posterior.mean + self._rule.beta**0.5 * self._path()

    def _deviation(self) -> Tensor:
        return (self._design or self._values).posterior.deviation

    def _path(self) -> Tensor:
        """A path of the centred posterior at every candidate."""
        posterior = (self._design or self._values).posterior
        generator = generator_for(self._seed, len(self._ledger), torch.device("cpu"))
        if self._paths is None or len(self._keys.points) != self._paths_elsewhere:
            self._paths = self._make_paths()
        if isinstance(self._domain, BoxDomain):
            self._drawn = self._draw_on_box(self._paths, generator)
            with torch.no_grad():
                return self._drawn(self._pool)
        path = self._paths.draw(generator)
        places = [key if key >= 0 else len(self._pool) - 1 - key for key in posterior.keys]
        # One number per place, so that the order in which points were entered does not matter.
        noise = torch.randn(len(path), generator=generator, dtype=path.dtype).to(path)
        rows = torch.tensor(places, dtype=torch.long, device=path.device)
        residual = path[rows] + posterior.noise_var.sqrt() * noise[rows]
        return path[: len(self._pool)] - posterior.correction(residual)

    def _draw_on_box(
        self, paths: PriorPaths, generator: torch.Generator
    ) -> Callable[[Tensor], Tensor]:
        """A path of the centred posterior, at any points."""
        design, kernel = (self._design or self._values).ordered, self._surrogate.covar_module
        prior = paths.draw_function(generator)
        noise = torch.randn(len(design), generator=generator, dtype=torch.double).to(self._pool)
        with torch.no_grad():
            residual = prior(design.points) + design.noise_var.sqrt() * noise
            weights = design.solve(residual)

        def path(X: Tensor) -> Tensor:
            inputs = self._surrogate.inputs(X)
            if not len(design):
                return prior(inputs)
            return prior(inputs) - weights @ covariance(kernel, design.points, inputs)

        return path

    def _make_paths(self) -> PriorPaths:
        assert isinstance(self._rule, ThompsonSampling)
        finite = isinstance(self._domain, FiniteDomain)
        points = self._surrogate.inputs(self._pool)
        self._paths_elsewhere = len(self._keys.points)
        if finite and self._keys.points:
            others = self._surrogate.inputs(torch.stack(self._keys.points))
            points = torch.cat([points, others])
        exact = finite and len(self._pool) <= sampling.MAX_EXACT_POINTS
        return PriorPaths(
            self._surrogate.covar_module, points, self._rule.n_features, self._seed, exact=exact
        )

    def _evaluate(self, rule: BotorchRule) -> Tensor:
        """A BoTorch acquisition function at every candidate."""
        posterior = self._values.posterior
        self._acquisition = None
        if not len(posterior):
            return (self._design or self._values).posterior.deviation
        generator = generator_for(self._seed, len(self._ledger), torch.device("cpu"))
        seed = int(torch.randint(2**31, (), generator=generator))
        function = build(rule, self._surrogate, self._values.ordered, self._waiting(), seed)
        self._acquisition = function
        return score(function, self._pool, len(posterior) + len(self.pending))

    def _waiting(self) -> Tensor | None:
        """Points that count as pending, in the inputs of the model; None if there are none."""
        if not isinstance(self._pending, Hallucinate):
            return None
        waiting = [t.x for t in self._ledger.running()]
        known = {self._key(t) for t in self._ledger.trials if t.state is not TrialState.FAILED}
        failed = sorted(key for key in self._feasibility.suspects if key not in known)
        waiting += [self._design.point(k) for k in failed] if self._design is not None else []
        if not waiting:
            return None
        return self._surrogate.inputs(torch.stack(waiting))

    def _refit(self) -> None:
        """Learn kernel, noise and scale again where the answers have grown enough."""
        answers = len(self._ledger.attached) + self._answers
        if self._fixed is not None or answers == self._fitted_to:
            return
        # Before there can be a fit, every answer tells something about the scale of values.
        if answers < MIN_ANSWERS_TO_FIT or answers >= GROWTH_TO_REFIT * self._fitted_to:
            self._surrogate = self._fit(self._surrogate)
            self._fitted_to = answers
            self._restart()

    def _flush(self) -> None:
        """Bring the posteriors up to date with what happened since the last ask."""
        self._values.flush()
        if self._design is not None:
            self._design.flush()

    def _restart(self) -> None:
        """Posteriors of the present surrogate from all trials."""
        surrogate = self._surrogate
        self._values = Averages(surrogate, self._pool)
        self._design: Averages | None = None
        if isinstance(self._pending, Hallucinate):
            self._design = Averages(surrogate, self._pool)
        self._tie_scale = self._values.posterior.deviation.max().item()
        self._acquisition = self._drawn = None
        self._keys = PointKeys()
        self._answers = 0
        self._feasibility = Feasibility(self._ledger.trials, self._key)
        for trial in self._ledger.trials:
            self._count(trial)
        for number, result in enumerate(self._ledger.attached):
            self._count_attached(number, result)
        if isinstance(self._rule, ThompsonSampling):
            self._paths = self._make_paths()

    def _count(self, trial: Trial) -> None:
        """Enter a trial where its state says that it counts, and take it out elsewhere."""
        key, x, state = self._key(trial), trial.x, trial.state
        value = trial.value
        if state is TrialState.COMPLETED:
            self._answers += 1
        counted = state is not TrialState.ABANDONED
        missing = value is None or trial.id in self._censored
        if isinstance(self._pending, Censor) and counted and missing:
            value = self._pending.worst_value
        if value is not None:
            self._values.put(key, trial.id, x, self._sign * value, trial.noise_var)
        elif trial.id in self._values:
            self._values.drop(trial.id)
        if self._design is not None:
            if counted:
                self._design.put(key, trial.id, x, None, trial.noise_var)
            elif trial.id in self._design:
                self._design.drop(trial.id)

    def _count_attached(self, number: int, result: Attached) -> None:
        key = -1 - self._keys.of(result.x) if result.index is None else result.index
        source = -1 - number
        self._values.put(key, source, result.x, self._sign * result.value, None)
        if self._design is not None:
            self._design.put(key, source, result.x, None, None)

    def _key(self, trial: Trial) -> int:
        """A candidate's row, or a number below 0 for a point of a box."""
        return -1 - self._keys.of(trial.x) if trial.index is None else trial.index

    def _fit(self, previous: Surrogate | None) -> Surrogate:
        X, y, noise_var = self._all_data()
        if isinstance(self._pending, Censor) and 0 < len(y) < MIN_ANSWERS_TO_FIT:
            # The worst value tells about the scale as long as answers do not.
            worst = y.new_tensor([self._sign * self._pending.worst_value])
            X, y, noise_var = X[:0], torch.cat([y[:1], worst]), [None, None]
        return fit_surrogate(
            self._domain,
            X,
            y,
            noise_var,
            seed=self._seed,
            previous=previous,
            warm_start=self._warm_start,
        )

    def _judgement(self) -> tuple[Surrogate, Confidence, float]:
        beta = self._rule.beta if isinstance(self._rule, UCB) else 6.0
        if self._fixed is not None:
            return self._fixed, FixedBeta(beta), 0.1
        revision = self._ledger.revision
        if self._recommender is None or self._recommender[0] != revision:
            self._recommender = (revision, self._fit(self._surrogate))
        return self._recommender[1], FixedBeta(beta), 0.1

    def _config(self) -> dict[str, Any]:
        return {
            "horizon": self._horizon,
            **describe_given(self._fixed, self._domain.like),
            "rule": describe_part(self._rule),
            "pending": describe_part(self._pending),
            "warm_start": describe_part(self._warm_start),
            "seed": self._seed,
            "maximize": self._maximize,
        }

    def _recipes(self) -> dict[str, Any]:
        return recipe_of(self._fixed)

    def _progress(self) -> dict[str, Any]:
        learned = self._fixed is None
        values = {
            "censored": sorted(self._censored),
            "widths": list(self._widths),
            "surrogate": self._surrogate.describe() if learned else None,
            "fitted_to": self._fitted_to,
        }
        return {"rounds": [], "arrays": {}, "arrays_version": 0, "values": values}

    def _check_progress(
        self, progress: Mapping[str, Any], trials: list[Trial], attached: list[Attached]
    ) -> _Progress:
        values = progress["values"]
        censored, widths = values.get("censored"), values.get("widths")
        answered = {t.id for t in trials if t.state is TrialState.COMPLETED}
        if not isinstance(censored, list) or any(i not in answered for i in map(_whole, censored)):
            raise StorageError("The stored censored trials are not answered trials.")
        if not isinstance(widths, list) or not all(isinstance(w, float) for w in widths):
            raise StorageError("The stored widths are no numbers.")
        fitted_to, record = values.get("fitted_to"), values.get("surrogate")
        if not is_whole(fitted_to, 0) or fitted_to > len(answered) + len(attached):
            raise StorageError(f"The last fit was to {brief(fitted_to)} answers, it says.")
        if self._fixed is not None and (record is not None or fitted_to):
            raise StorageError("A fit is stored, and the kernel is not learned.")
        surrogate = self._fixed or Surrogate.rebuild(record, self._domain)
        return _Progress(set(censored), widths, surrogate, fitted_to)

    def _restore(self, progress: _Progress) -> None:
        self._censored = progress.censored
        self._widths = list(progress.widths)
        self._surrogate = progress.surrogate
        self._fitted_to = progress.fitted_to
        self._recommender = None
        self._restart()


def _whole(value: Any) -> int:
    """A stored trial's id, or -1, which is none."""
    return value if is_whole(value, 0) else -1


@dataclass(frozen=True)
class _Progress:
    """What cannot be derived from the trials."""

    censored: set[int]
    widths: list[float]
    surrogate: Surrogate
    fitted_to: int
