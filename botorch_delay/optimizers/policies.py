"""A rule played on all data: posteriors of answered and pending points, and the best point."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from botorch_delay.design.ascent import maximize, snapped
from botorch_delay.design.climbing import BoundClimb
from botorch_delay.design.ties import lowest_of_largest
from botorch_delay.domains.box import BoxDomain
from botorch_delay.domains.finite import Domain, FiniteDomain, PointKeys
from botorch_delay.domains.generators import generator_for
from botorch_delay.elimination.active_set import ActiveSet
from botorch_delay.elimination.box_active_set import BoxActiveSet
from botorch_delay.exceptions import NumericsError
from botorch_delay.gp import sample_paths
from botorch_delay.gp.averages import Averages
from botorch_delay.gp.kernels import covariance, prior_variance
from botorch_delay.gp.sample_paths import PriorPaths
from botorch_delay.history.point_status import Feasibility, nothing_to_ask
from botorch_delay.history.trials import Attached, Ledger, Trial, TrialState
from botorch_delay.optimizers.botorch_scores import build, score
from botorch_delay.optimizers.fitting import Fitting
from botorch_delay.optimizers.rules import (
    UCB,
    BotorchRule,
    Censor,
    Hallucinate,
    Pending,
    Rule,
    ThompsonSampling,
    method_name,
)

# Points of a box from which climbs begin, beside some moved to its boundary.
BOX_POOL = 2048
# How many of them: all with up to so many answers, fewer and fewer with more.
CLIMBS, FULL_CLIMBS, FEW_CLIMBS = 64, 100, 8
# How far climbs get from where the mean is best, as a share of each side.
LOCAL_REACH = 0.1
# Of how many answered points of a box it is looked at which is best.
MOST_CONFIRMED = 256
# Climbs end when the best of them stands to gain less, as a share of the prior deviation.
ENOUGH = 1e-3


@dataclass
class _FirstPoints:
    """The order of the asks that nothing has been learned for.

    Attributes:
        pool: the candidates.
        order: the place of each, a LongTensor.
        taken: which have been asked, for whatever reason.
        looked_at: of so many trials.
    """

    pool: Tensor
    order: Tensor
    taken: Tensor
    looked_at: int = 0


class IndexMethod:
    """Where a rule is largest, given what has arrived and what is pending.

    Args:
        domain: where points may be asked.
        ledger: the trials; read, never written.
        rule: what is maximised.
        pending: how pending points enter.
        seed: of everything random.
        sign: -1 where the user minimises.
        fitting: kernel and noise.
        exact: whether evaluations are, so that no point is asked twice.
        repeat_pending: whether a point with a running trial may be asked again; if not, only
            where every point that may be asked has one.

    Attributes:
        surrogate: of the present posteriors.
        pool: the candidates, ``N x d``.
        widths: sigma at the last points, when they were asked.
    """

    def __init__(
        self,
        domain: Domain,
        ledger: Ledger,
        rule: Rule,
        pending: Pending,
        *,
        seed: int,
        sign: float,
        fitting: Fitting,
        exact: bool = False,
        repeat_pending: bool = True,
    ) -> None:
        self._domain, self._ledger, self._rule, self._pending = domain, ledger, rule, pending
        self.seed, self._sign = seed, sign
        self._fitting, self._exact, self._repeat_pending = fitting, exact, repeat_pending
        self.surrogate = fitting.surrogate
        self._own_pool = self.pool = self._make_pool()
        self._active: ActiveSet | None = None  # what rounds have left of a box
        self._stale = True  # whether the ledger is to be read from its beginning
        self.widths: list[float] = []
        self._keys = PointKeys()  # of points that are no candidates
        self._first: _FirstPoints | None = None
        self._paths_elsewhere = 0
        self._paths: PriorPaths | None = None
        self._drawn: Callable[[Tensor], Tensor] | None = None  # a path on a box
        self._acquisition: Callable[[Tensor], Tensor] | None = None

    @property
    def name(self) -> str:
        """The name under which this combination was published, or what it is made of."""
        name = method_name(self._rule, self._pending)
        return f"{name} (approximate samples)" if self.approximate else name

    @property
    def approximate(self) -> bool:
        """Whether Thompson samples are."""
        return isinstance(self._rule, ThompsonSampling) and not self._samples_exactly

    @property
    def mean(self) -> Tensor:
        """Of the surrogate at every candidate, as of the last :meth:`flush`: ``N``."""
        return self._values.posterior.mean

    @property
    def deviation(self) -> Tensor:
        """Likewise, with pending points counted as the rule does: ``N``."""
        return self._spreading.posterior.deviation

    @property
    def _spreading(self) -> Averages:
        """What gives the deviation: with pending points, where there are any to count."""
        if self._design is None or self._design.sources == self._values.sources:
            return self._values
        return self._design

    def choose(
        self, among: Tensor | None = None, inside: Callable[[Tensor], Tensor] | None = None
    ) -> int | Tensor:
        """The next point: its row on a finite set, the point itself (``d``) on a box.

        Args:
            among: rows of a finite set to choose from; all if None.
            inside: where points of a box may lie, ``n x d`` to bool ``n``; anywhere if None.

        Raises:
            EmptyDomainError: if nothing may be asked.
            NumericsError: if the rule is finite nowhere.
        """
        self.flush()
        scores = self._first_order() if self._is_blind else self.scores()
        if isinstance(self._domain, BoxDomain):
            return self._choose_on_box(self._domain, scores, inside)
        if among is not None:
            masked = torch.full_like(scores, -torch.inf)
            masked[among] = scores[among]
            scores = masked
        shut = self._shut_rows(among, scores)
        if shut is not None:
            scores = scores.index_fill(0, shut, -torch.inf)
        if not bool(torch.isfinite(scores.max())):
            raise NumericsError(f"{self.name} is not finite at any point that may be asked.")
        # An acquisition function has a scale of its own, which may be tiny.
        own = isinstance(self._rule, BotorchRule) or self._is_blind
        return lowest_of_largest(scores, 0.0 if own else self._tie_scale)

    def confirm(
        self, among: Tensor | None = None, inside: Callable[[Tensor], Tensor] | None = None
    ) -> int | Tensor | None:
        """The answered point to ask again, while it is open which of them is best; else None.

        It is open while the mean plus deviation of another reaches the best one's mean less its
        deviation, pending points counted. Of all these the one with the largest mean plus
        deviation is asked, unless a trial of it is running.

        Args:
            among: rows of a finite set to choose from; all if None.
            inside: where points of a box may lie, ``n x d`` to bool ``n``; anywhere if None.
        """
        self.flush()
        if self._is_blind:
            return None
        keys = sorted(set(self._values.keys) - set(self._feasibility.closed()))
        if isinstance(self._domain, BoxDomain):
            keys, X = self._answered_on_box(keys, inside)
        else:
            keys = self._answered_rows(keys, among)
        if len(keys) < 2:
            return None
        if isinstance(self._domain, BoxDomain):
            mean, deviation = self._mean_at(X), self._spread(X)
        else:
            mean, deviation = self.mean[keys], self.deviation[keys]
        best = int(mean.argmax())
        upper = mean + deviation
        contested = upper >= mean[best] - deviation[best]
        if int(contested.sum()) < 2:
            return None
        running = torch.tensor([self._running[key] > 0 for key in keys], device=upper.device)
        upper = upper.masked_fill(running | ~contested, -torch.inf)
        if not bool(torch.isfinite(upper.max())):
            return None
        pick = lowest_of_largest(upper, self._tie_scale)
        return X[pick].clone() if isinstance(self._domain, BoxDomain) else keys[pick]

    def _answered_rows(self, keys: list[int], among: Tensor | None) -> list[int]:
        """Which of some points are candidates to choose from."""
        rows = torch.tensor([key for key in keys if key >= 0], device=self.pool.device).long()
        if among is not None:
            allowed = torch.zeros(len(self.pool), dtype=torch.bool, device=self.pool.device)
            allowed[among] = True
            rows = rows[allowed[rows]]
        found: list[int] = rows.tolist()
        return found

    def _answered_on_box(
        self, keys: list[int], inside: Callable[[Tensor], Tensor] | None
    ) -> tuple[list[int], Tensor]:
        """Likewise on a box, with the points: of many those with the largest means."""
        if not keys:
            return [], self.pool[:0]
        X = torch.stack([self._keys.points[-1 - key] for key in keys])
        allowed = self._domain.contains(X)
        if inside is not None:
            allowed &= inside(X)
        rows = allowed.nonzero().flatten()
        if len(rows) > MOST_CONFIRMED:
            rows = rows[self._mean_at(X[rows]).topk(MOST_CONFIRMED).indices.sort().values]
        return [keys[row] for row in rows.tolist()], X[rows]

    @property
    def _is_blind(self) -> bool:
        """Whether there are too few answers to learn a kernel from."""
        return self.surrogate.learned and not self.surrogate.scaled

    def _first_order(self) -> Tensor:
        """Scores by which the candidates come one after the other in a random order.

        Before there is anything to learn from, a rule knows only which points are far from each
        other. Those are the corners, where it is rarely worth to begin.
        """
        count = len(self.pool)
        if self._first is None or self._first.pool is not self.pool:
            generator = generator_for(self.seed, 0, torch.device("cpu"))
            order = torch.randperm(count, generator=generator).to(self.pool.device)
            self._first = _FirstPoints(self.pool, order, torch.zeros_like(order, dtype=torch.bool))
        first = self._first
        for trial in self._ledger.trials[first.looked_at :]:
            at = (self.pool == trial.x).all(dim=1) if trial.index is None else trial.index
            first.taken[at] = True
        first.looked_at = len(self._ledger)
        turn = (first.order - len(self._ledger)) % count
        return -(turn + count * first.taken).to(self.pool)

    def _shut_rows(self, among: Tensor | None, scores: Tensor) -> Tensor | None:
        """The rows that are not to be asked now, of those to choose from and elsewhere."""
        closed, left = self._feasibility.closed(), len(scores) if among is None else len(among)
        for keys in (closed + self._avoided(), closed):
            if not keys:
                return None
            shut = torch.tensor(sorted(set(keys)), dtype=torch.long, device=scores.device)
            inside = shut if among is None else shut[torch.isin(shut, among)]
            if len(inside) < left:
                return shut
        raise nothing_to_ask(left, exact=self._exact)

    def _avoided(self) -> list[int]:
        """Points with a running trial, where those are asked only if nothing else is left."""
        return [] if self._repeat_pending else list(+self._running)

    def _choose_on_box(
        self, domain: BoxDomain, scores: Tensor, inside: Callable[[Tensor], Tensor] | None
    ) -> Tensor:
        """The best of the pool's best points after a climb."""
        shut = [self._keys.points[-1 - key] for key in self._feasibility.closed()]
        avoided = [self._keys.points[-1 - key] for key in self._avoided()]

        def may_ask(X: Tensor) -> Tensor:
            allowed = torch.ones(len(X), dtype=torch.bool, device=X.device)
            if inside is not None:
                allowed = inside(X)
            for x in shut + avoided:
                allowed &= ~(x == X).all(dim=1)
            return allowed

        allowed = may_ask(self.pool)
        if avoided and not bool(allowed.any()):
            avoided = []
            allowed = may_ask(self.pool)
        if not bool(allowed.any()):
            raise nothing_to_ask(len(self.pool), exact=self._exact)
        scores = scores.masked_fill(~allowed, -torch.inf)
        if not bool(torch.isfinite(scores.max())):
            raise NumericsError(f"{self.name} is not finite at any point that may be asked.")
        if self._is_blind:
            return self.pool[scores.argmax()].clone()
        costly = isinstance(self._rule, BotorchRule)
        count = min(8 if costly else self._climbs(), len(scores))
        best, reach = scores.topk(count).indices, 1.0
        if self.surrogate.learned:
            # Not into the corners: new places are spread points, climbs stay near the best ones.
            mean = self._values.posterior.mean.masked_fill(~allowed, -torch.inf)
            best = torch.cat([best[:1], mean.topk(count).indices])
            reach = LOCAL_REACH
        best = best[allowed[best]]  # of which there is at least the first
        function = self._function(self.pool[best] if self.surrogate.learned else None)
        generator = generator_for(self.seed, len(self._ledger), torch.device("cpu"))
        X, found = maximize(
            function,
            domain,
            self.pool[best],
            generator=generator,
            steps=8 if costly or len(best) < CLIMBS // 4 else 16,
            inside=may_ask,
            reach=reach,
            enough=0.0 if costly else ENOUGH * self._tie_scale,
        )
        found = torch.where(torch.isfinite(found), found, scores[best])
        return X[lowest_of_largest(found)].clone()

    def _climbs(self) -> int:
        """How many climbs: fewer where there are many answers, so that they take no longer."""
        answers = max(len(self._values.posterior), 1)
        return min(max(CLIMBS * FULL_CLIMBS // answers, FEW_CLIMBS), CLIMBS)

    def _function(self, starts: Tensor | None = None) -> Callable[[Tensor], Tensor]:
        """What is climbed, at any points: ``n x d`` to ``n``, differentiable.

        With ``starts``, one per row, a confidence bound gains nothing from a deviation above
        that of the start: else every climb would lead to the edge of the box.
        """
        if isinstance(self._rule, BotorchRule):
            return self._acquisition or self._spread
        if isinstance(self._rule, UCB):
            factor = self._rule.factor + sum(self.widths)
            if starts is not None:
                answers, design = self._values.ordered, self._spreading.ordered
                if BoundClimb.fits(self.surrogate, answers):
                    design.share(answers)
                    return BoundClimb.above(self.surrogate, answers, design, factor, starts)
                cap = self._spread(starts)
                return lambda X: self._mean_at(X) + factor * torch.minimum(self._spread(X), cap)
            return lambda X: self._mean_at(X) + factor * self._spread(X)
        assert isinstance(self._rule, ThompsonSampling)
        assert self._drawn is not None
        drawn, factor = self._drawn, self._rule.beta**0.5
        return lambda X: self._mean_at(X) + factor * drawn(X)

    def _mean_at(self, X: Tensor) -> Tensor:
        answers, inputs = self._values.ordered, self.surrogate.inputs(X)
        if not len(answers):
            return 0.0 * inputs.sum(dim=-1)
        return answers.weights @ covariance(self.surrogate.covar_module, answers.points, inputs)

    def _spread(self, X: Tensor) -> Tensor:
        design, inputs = self._spreading.ordered, self.surrogate.inputs(X)
        prior = prior_variance(self.surrogate.covar_module, inputs) + 0.0 * inputs.sum(dim=-1)
        if not len(design):
            return prior.sqrt()
        cross = covariance(self.surrogate.covar_module, design.points, inputs)
        variance = prior - design.whiten(cross).square().sum(dim=0)
        return variance.clamp_min(1e-12 * float(prior.detach().max())).sqrt()

    def width_at(self, point: int | Tensor) -> float | None:
        """Sigma at the point that is about to be asked, where the rule adds it up; else None."""
        if not (isinstance(self._pending, Censor) and self._pending.inflate):
            return None
        if isinstance(point, Tensor):
            return self._spread(point.unsqueeze(0)).item()
        return self.deviation[point].item()

    def asked(self, trial: Trial, width: float | None = None) -> None:
        """Take in a new trial, with what :meth:`width_at` said of it."""
        if width is not None:
            assert isinstance(self._pending, Censor)
            assert self._pending.max_delay is not None
            self.widths = [*self.widths, width][-self._pending.max_delay :]
        if not self._stale:
            self._feasibility.add(trial)
            self._running[self._key(trial)] += 1
            self._count(trial)

    def settled(self, trial: Trial) -> None:
        """Take in that a trial was answered, failed or abandoned."""
        if not self._stale:
            self._feasibility.note(trial)
            self._running[self._key(trial)] -= not trial.late
            self._count(trial)

    def attached(self) -> None:
        """Take in the last result from elsewhere, which the ledger holds already."""
        if not self._stale:
            number = len(self._ledger.attached) - 1
            self._count_attached(number, self._ledger.attached[number])

    def scores(self) -> Tensor:
        """The rule at every candidate, ``N``."""
        if isinstance(self._rule, BotorchRule):
            return self._evaluate(self._rule)
        deviation = self.deviation
        if isinstance(self._rule, UCB):
            factor = self._rule.factor + sum(self.widths)
            return self._values.posterior.mean + factor * deviation
        assert isinstance(self._rule, ThompsonSampling)
        return self._values.posterior.mean + self._rule.beta**0.5 * self._path()

    def _path(self) -> Tensor:
        """A path of the centred posterior at every candidate."""
        posterior = self._spreading.posterior
        generator = generator_for(self.seed, len(self._ledger), torch.device("cpu"))
        if self._paths is None or len(self._keys.points) != self._paths_elsewhere:
            self._paths = self._make_paths()
        if isinstance(self._domain, BoxDomain):
            self._drawn = self._draw_on_box(self._paths, generator)
            with torch.no_grad():
                return self._drawn(self.pool)
        path = self._paths.draw(generator)
        places = [key if key >= 0 else len(self.pool) - 1 - key for key in posterior.keys]
        # One number per place, so that the order in which points were entered does not matter.
        noise = torch.randn(len(path), generator=generator, dtype=path.dtype).to(path)
        rows = torch.tensor(places, dtype=torch.long, device=path.device)
        residual = path[rows] + posterior.noise_var.sqrt() * noise[rows]
        return path[: len(self.pool)] - posterior.correction(residual)

    def _draw_on_box(
        self, paths: PriorPaths, generator: torch.Generator
    ) -> Callable[[Tensor], Tensor]:
        """A path of the centred posterior, at any points."""
        design, kernel = self._spreading.ordered, self.surrogate.covar_module
        prior = paths.draw_function(generator)
        noise = torch.randn(len(design), generator=generator, dtype=torch.double).to(self.pool)
        with torch.no_grad():
            residual = prior(design.points) + design.noise_var.sqrt() * noise
            weights = design.solve(residual)

        def path(X: Tensor) -> Tensor:
            inputs = self.surrogate.inputs(X)
            if not len(design):
                return prior(inputs)
            return prior(inputs) - weights @ covariance(kernel, design.points, inputs)

        return path

    def _make_paths(self) -> PriorPaths:
        assert isinstance(self._rule, ThompsonSampling)
        finite = isinstance(self._domain, FiniteDomain)
        points = self.surrogate.inputs(self.pool)
        self._paths_elsewhere = len(self._keys.points)
        if finite and self._keys.points:
            others = self.surrogate.inputs(torch.stack(self._keys.points))
            points = torch.cat([points, others])
        return PriorPaths(
            self.surrogate.covar_module,
            points,
            self._rule.n_features,
            self.seed,
            exact=self._samples_exactly,
        )

    @property
    def _samples_exactly(self) -> bool:
        few = len(self.pool) <= sample_paths.MAX_EXACT_POINTS
        return few and isinstance(self._domain, FiniteDomain)

    def _evaluate(self, rule: BotorchRule) -> Tensor:
        """A BoTorch acquisition function at every candidate."""
        posterior = self._values.posterior
        self._acquisition = None
        if not len(posterior):
            return self._spreading.posterior.deviation
        generator = generator_for(self.seed, len(self._ledger), torch.device("cpu"))
        seed = int(torch.randint(2**31, (), generator=generator))
        function = build(rule, self.surrogate, self._values.ordered, self._waiting(), seed)
        self._acquisition = function
        return score(function, self.pool, len(posterior) + sum(1 for _ in self._ledger.running()))

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
        return self.surrogate.inputs(torch.stack(waiting))

    def _make_pool(self) -> Tensor:
        """The candidates: all points of a set; on a box spread points, some on its boundary."""
        if isinstance(self._domain, FiniteDomain):
            return self._domain.points
        assert isinstance(self._domain, BoxDomain)
        generator = generator_for(self.seed, 0, torch.device("cpu"))
        spread = BoxActiveSet(self._domain, seed=self.seed).draw(BOX_POOL, generator).points
        if self.surrogate.learned:
            return spread
        edge = snapped(self._domain, spread[: BOX_POOL // 4], generator)
        return torch.unique(torch.cat([spread, edge[self._domain.contains(edge)]]), dim=0)

    def flush(self) -> None:
        """Bring the posteriors up to date with what happened since the last ask."""
        if self._stale or self.surrogate is not self._fitting.surrogate:
            self._restart()
        self._values.flush()
        self._spreading.flush()

    def use_active(self, active: ActiveSet) -> None:
        """Choose among points of what rounds have left of a box; of the whole if all is left."""
        narrowed = active if active.inside is not None else None
        if narrowed is not None or self._active is not None:
            self._active, self._stale = narrowed, True

    def _restart(self) -> None:
        """Posteriors of the present surrogate from all trials."""
        self.pool = self._own_pool
        pool = None if self._active is None else self._active.spread
        if pool is not None:
            self.pool = pool[:: max(len(pool) // BOX_POOL, 1)]
        surrogate = self.surrogate = self._fitting.surrogate
        self._values = Averages(surrogate, self.pool)
        self._design: Averages | None = None
        if isinstance(self._pending, Hallucinate):
            self._design = Averages(surrogate, self.pool)
        self._tie_scale = self._values.posterior.deviation.max().item()
        self._acquisition = self._drawn = None
        self._first = None
        self._keys = PointKeys()
        self._feasibility = Feasibility(self._ledger.trials, self._key, exact=self._exact)
        self._running = Counter(self._key(trial) for trial in self._ledger.running())
        for trial in self._ledger.trials:
            self._count(trial)
        for number, result in enumerate(self._ledger.attached):
            self._count_attached(number, result)
        if isinstance(self._rule, ThompsonSampling):
            self._paths = self._make_paths()
        self._stale = False

    def _count(self, trial: Trial) -> None:
        """Enter a trial where its state says that it counts, and take it out elsewhere."""
        key, x, value = self._key(trial), trial.x, trial.value
        counted = trial.state is not TrialState.ABANDONED
        if isinstance(self._pending, Censor) and counted:
            limit, delay = self._pending.max_delay, trial.delay
            if value is None or (limit is not None and delay is not None and delay > limit):
                value = self._pending.worst_value
        if value is not None:
            self._values.put(key, trial.id, x, self._sign * value, trial.noise_var)
        else:
            self._values.drop(key, trial.id)
        if self._design is not None:
            if counted:
                self._design.put(key, trial.id, x, None, trial.noise_var)
            else:
                self._design.drop(key, trial.id)

    def _count_attached(self, number: int, result: Attached) -> None:
        key = -1 - self._keys.of(result.x) if result.index is None else result.index
        self._feasibility.know(key)
        source = -1 - number
        self._values.put(key, source, result.x, self._sign * result.value, None)
        if self._design is not None:
            self._design.put(key, source, result.x, None, None)

    def _key(self, trial: Trial) -> int:
        """A candidate's row, or a number below 0 for a point of a box."""
        return -1 - self._keys.of(trial.x) if trial.index is None else trial.index
