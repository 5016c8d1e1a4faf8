"""Policies on a finite set and on a box."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from botorch_delay.design.ascent import maximize, snapped
from botorch_delay.design.climbing import BoundClimb
from botorch_delay.design.ties import lowest_of_largest
from botorch_delay.domains.box import BoxDomain
from botorch_delay.domains.finite import FiniteDomain
from botorch_delay.domains.generators import generator_for
from botorch_delay.elimination.active_set import ActiveSet
from botorch_delay.elimination.box_active_set import BoxActiveSet
from botorch_delay.gp import sample_paths
from botorch_delay.gp.kernels import covariance
from botorch_delay.gp.sample_paths import PriorPaths
from botorch_delay.history.point_status import nothing_to_ask
from botorch_delay.history.trials import Ledger
from botorch_delay.optimizers.botorch_scores import Score
from botorch_delay.optimizers.config import AcquisitionConfig, BPEConfig
from botorch_delay.optimizers.fitting import Fitting
from botorch_delay.optimizers.policy import BOX_POOL, Policy
from botorch_delay.optimizers.rules import BotorchRule, ThompsonSampling

# How many of them: all with up to so many answers, fewer and fewer with more.
CLIMBS, FULL_CLIMBS, FEW_CLIMBS = 64, 100, 8
# Of a function of BoTorch, which is costly.
BOTORCH_CLIMBS, BOTORCH_STEPS = 8, 8
# How far climbs get from where the mean is best, as a share of each side.
LOCAL_REACH = 0.1
# Of how many answered points of a box it is looked at which is best.
MOST_CONFIRMED = 256
# Climbs end when the best of them stands to gain less, as a share of the prior deviation.
ENOUGH = 1e-3


class SetPolicy(Policy):
    """A policy on a finite set, whose candidates are all points."""

    _domain: FiniteDomain

    def _make_pool(self) -> Tensor:
        return self._domain.points

    def _best(self, scores: Tensor, active: ActiveSet | None) -> int:
        """The lowest row of the largest score."""
        among = None if active is None else active.rows
        if among is not None:
            masked = torch.full_like(scores, -torch.inf)
            masked[among] = scores[among]
            scores = masked
        closed = self._closed_rows(among, scores)
        if closed is not None:
            scores = scores.index_fill(0, closed, -torch.inf)
        self._check_finite(scores)
        # An acquisition function has a scale of its own, which may be tiny.
        own = isinstance(self._rule, BotorchRule) or self._is_blind
        return lowest_of_largest(scores, 0.0 if own else self._tie_scale)

    def _closed_rows(self, among: Tensor | None, scores: Tensor) -> Tensor | None:
        """The rows that are not to be asked now, of those to choose from and elsewhere."""
        closed, avoided = self._closed_keys()
        left = len(scores) if among is None else len(among)
        for keys in (closed + avoided, closed):
            if not keys:
                return None
            rows = torch.tensor(sorted(set(keys)), dtype=torch.long, device=scores.device)
            inside = rows if among is None else rows[torch.isin(rows, among)]
            if len(inside) < left:
                return rows
        raise nothing_to_ask(left, exact=self._exact)

    def _answered(
        self, keys: list[int], active: ActiveSet | None
    ) -> tuple[list[int], Tensor, Tensor]:
        rows = torch.tensor([key for key in keys if key >= 0], device=self.pool.device).long()
        if active is not None and active.rows is not None:
            rows = rows[torch.isin(rows, active.rows)]
        return rows.tolist(), self.mean[rows], self.deviation[rows]

    def _point(self, key: int) -> int:
        return key

    def _make_paths(self, rule: ThompsonSampling) -> PriorPaths:
        points = torch.cat([self.pool, *(x.unsqueeze(0) for x in self.data.elsewhere)])
        self._with_paths = len(points)
        return PriorPaths(
            self.surrogate.covar_module,
            self.surrogate.inputs(points),
            rule.n_features,
            self.seed,
            exact=len(self.pool) <= sample_paths.MAX_EXACT_POINTS,
        )

    def _path(self) -> Tensor:
        assert isinstance(self._rule, ThompsonSampling)
        count = len(self.pool)
        if self._paths is None or self._with_paths != count + len(self.data.elsewhere):
            self._paths = self._make_paths(self._rule)
        posterior, generator = self.data.with_pending.at_candidates, self._generator
        path = self._paths.draw(generator)
        places = [key if key >= 0 else count - 1 - key for key in posterior.keys]
        # One number per place, so that the order in which points were entered does not matter.
        noise = torch.randn(len(path), generator=generator, dtype=path.dtype).to(path)
        rows = torch.tensor(places, dtype=torch.long, device=path.device)
        residual = path[rows] + posterior.noise_var.sqrt() * noise[rows]
        return path[:count] - posterior.correction(residual)


class BoxPolicy(Policy):
    """A policy on a box, whose candidates are where climbs begin."""

    _domain: BoxDomain
    _drawn: Score | None = None  # the path of the present ask

    def _make_pool(self) -> Tensor:
        """Spread points, and some on the boundary of the box where the kernel is given."""
        generator = generator_for(self.seed, 0, torch.device("cpu"))
        spread = BoxActiveSet(self._domain, seed=self.seed).draw(BOX_POOL, generator).points
        if self.surrogate.learned:
            return spread
        edge = snapped(self._domain, spread[: BOX_POOL // 4], generator)
        return torch.unique(torch.cat([spread, edge[self._domain.contains(edge)]]), dim=0)

    def _best(self, scores: Tensor, active: ActiveSet | None) -> Tensor:
        """The best of the pool's best points after a climb."""
        may_ask, allowed = self._allowed(active)
        scores = scores.masked_fill(~allowed, -torch.inf)
        self._check_finite(scores)
        if self._is_blind:
            return self.pool[scores.argmax()].clone()
        costly = isinstance(self._rule, BotorchRule)
        # Fewer where there are many answers, so that an ask takes no longer.
        many = CLIMBS * FULL_CLIMBS // max(len(self.data.answers.anywhere), 1)
        climbs = BOTORCH_CLIMBS if costly else min(max(many, FEW_CLIMBS), CLIMBS)
        climbs = min(climbs, len(scores))
        best, reach = scores.topk(climbs).indices, 1.0
        if self.surrogate.learned:
            # Not into the corners: new places are spread points, climbs stay near the best ones.
            mean = self.mean.masked_fill(~allowed, -torch.inf)
            best = torch.cat([best[:1], mean.topk(climbs).indices])
            reach = LOCAL_REACH
        best = best[allowed[best]]  # of which there is at least the first
        X, found = maximize(
            self._function(self.pool[best]),
            self._domain,
            self.pool[best],
            generator=self._generator,
            steps=BOTORCH_STEPS if costly or len(best) < CLIMBS // 4 else 2 * BOTORCH_STEPS,
            inside=may_ask,
            reach=reach,
            enough=0.0 if costly else ENOUGH * self._tie_scale,
        )
        found = torch.where(torch.isfinite(found), found, scores[best])
        return X[lowest_of_largest(found)].clone()

    def _allowed(self, active: ActiveSet | None) -> tuple[Score, Tensor]:
        """Where points may be asked, and which of the pool may be."""
        inside = None if active is None else active.inside
        closed, avoided = self._closed_keys()
        for keys in (closed + avoided, closed):
            points = [self._point(key) for key in keys]

            def may_ask(X: Tensor, points: Sequence[Tensor] = points) -> Tensor:
                allowed = torch.ones(len(X), dtype=torch.bool, device=X.device)
                if inside is not None:
                    allowed = inside(X)
                for x in points:
                    allowed &= ~(x == X).all(dim=1)
                return allowed

            allowed = may_ask(self.pool)
            if bool(allowed.any()):
                return may_ask, allowed
        raise nothing_to_ask(len(self.pool), exact=self._exact)

    def _function(self, starts: Tensor) -> Score:
        """What is climbed from ``starts``, one per row: ``n x d`` to ``n``, differentiable.

        With a learned kernel a confidence bound gains nothing from a deviation above that of the
        start: else every climb would lead to the edge of the box.
        """
        answers, inputs = self.data.answers.anywhere, self.surrogate.inputs
        design = (
            answers
            if self.data.with_pending is self.data.answers
            else self.data.with_pending.anywhere
        )

        def deviation(X: Tensor) -> Tensor:
            return design.at(inputs(X)).deviation

        if isinstance(self._rule, BotorchRule):
            return self._acquisition(self._rule) or deviation
        factor = self._factor
        if isinstance(self._rule, ThompsonSampling):
            drawn = self._drawn
            assert drawn is not None
            return lambda X: answers.mean(inputs(X)) + factor * drawn(X)
        if not self.surrogate.learned:
            return lambda X: answers.mean(inputs(X)) + factor * deviation(X)
        if BoundClimb.fits(self.surrogate, answers):
            return BoundClimb.above(self.surrogate, answers, design, factor, starts)
        cap = deviation(starts)
        return lambda X: answers.mean(inputs(X)) + factor * torch.minimum(deviation(X), cap)

    def _answered(
        self, keys: list[int], active: ActiveSet | None
    ) -> tuple[list[int], Tensor, Tensor]:
        """Of many those with the largest means."""
        if not keys:
            return [], self.mean[:0], self.mean[:0]
        X = torch.stack([self._point(key) for key in keys])
        allowed = self._domain.contains(X)
        if active is not None and active.inside is not None:
            allowed &= active.inside(X)
        rows = allowed.nonzero().flatten()
        inputs = self.surrogate.inputs(X)
        mean = self.data.answers.anywhere.mean(inputs)
        if len(rows) > MOST_CONFIRMED:
            rows = rows[mean[rows].topk(MOST_CONFIRMED).indices.sort().values]
        deviation = self.data.with_pending.anywhere.at(inputs[rows]).deviation
        return [keys[row] for row in rows.tolist()], mean[rows], deviation

    def _point(self, key: int) -> Tensor:
        return self.data.elsewhere[-1 - key].clone()

    def _make_paths(self, rule: ThompsonSampling) -> PriorPaths:
        kernel, points = self.surrogate.covar_module, self.surrogate.inputs(self.pool)
        return PriorPaths(kernel, points, rule.n_features, self.seed, exact=False)

    def _path(self) -> Tensor:
        assert self._paths is not None
        self._drawn = self._draw(self._paths, self._generator)
        with torch.no_grad():
            return self._drawn(self.pool)

    def _draw(self, paths: PriorPaths, generator: torch.Generator) -> Score:
        """A path of the centred posterior, at any points."""
        design, kernel = self.data.with_pending.anywhere, self.surrogate.covar_module
        prior = paths.draw_function(generator)
        noise = torch.randn(len(design), generator=generator, dtype=torch.double).to(self.pool)
        with torch.no_grad():
            residual = prior(design.data.X) + design.data.noise_var.sqrt() * noise
            weights = design.unwhiten(design.whiten(residual.unsqueeze(-1))).squeeze(-1)

        def path(X: Tensor) -> Tensor:
            inputs = self.surrogate.inputs(X)
            if not len(design):
                return prior(inputs)
            return prior(inputs) - weights @ covariance(kernel, design.data.X, inputs)

        return path


def make_policy(
    config: AcquisitionConfig | BPEConfig, ledger: Ledger, fitting: Fitting
) -> SetPolicy | BoxPolicy:
    """The policy of a domain; the arguments are those of :class:`Policy`."""
    kind = SetPolicy if config.finite else BoxPolicy
    return kind(config, ledger, fitting)
