"""What a rule sees: posteriors from all trials so far, pending ones included."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from botorch_delay import validation
from botorch_delay.design.ascent import LEADERS, with_options
from botorch_delay.domains.devices import generator_for, sent, sent_rows
from botorch_delay.domains.domain import Domain
from botorch_delay.gp import sample_paths
from botorch_delay.gp.averages import Averages
from botorch_delay.gp.candidate_covariance import MAX_FOLDED
from botorch_delay.gp.kernels import prior_variance, rows_per_chunk
from botorch_delay.gp.posterior import Posterior
from botorch_delay.gp.sample_paths import PriorPaths
from botorch_delay.gp.subset import MOST_POINTS, representative
from botorch_delay.gp.surrogate import Surrogate
from botorch_delay.gp.warping import CROWD
from botorch_delay.history.answers import Answers
from botorch_delay.history.point_status import Feasibility
from botorch_delay.history.trials import Attached, Ledger, Trial, TrialObserver, TrialState
from botorch_delay.optimizers.pending import Pending

# The subset of answered points that posteriors use is chosen anew after this many answers.
RENEWED_EVERY = 256
# On sets with more points than this, posteriors are then kept up to date only at those with the
# largest mean + POOL_FACTOR * deviation, TABLE_POOL of them.
TABLE_POOL, POOL_FACTOR = 4096, 2.0
# This many pending points near each other are a crowd, unless more points are answered there.
CROWDED = 16
# The weight of failures nearby must exceed that of answers by this: even one failure alone does.
LONE_FAILURE = 0.5
_ABANDONED = TrialState.ABANDONED


@dataclass(eq=False)
class View:
    """All trials as one surrogate sees them.

    The mean is that given ``answers``. The deviation is that given ``asked_points``, which include
    pending ones, without values; None if pending points do not count in it.
    """

    answers: Averages
    asked_points: Averages | None

    @property
    def with_pending(self) -> Averages:
        """The points that the deviation is conditioned on, pending ones included if they count."""
        if self.asked_points is None or self.asked_points.size == self.answers.size:
            return self.answers
        return self.asked_points

    @property
    def mean(self) -> Tensor:
        """The posterior mean at every candidate, ``N``, in units of the surrogate."""
        return self.answers.at_candidates.mean.clone()  # rules may work in place

    @property
    def deviation(self) -> Tensor:
        """The posterior deviation at every candidate, ``N``, with pending points counted."""
        return self.with_pending.at_candidates.variance.sqrt()

    def mean_at(self, X: Tensor) -> Tensor:
        """The mean at points in the domain's columns, ``n x d`` to ``n``, in surrogate units."""
        return self.answers.anywhere.mean(self.answers.surrogate.inputs(X))

    def deviation_at(self, X: Tensor) -> Tensor:
        """The deviation at points in the domain's columns, ``n x d`` to ``n``, pending counted."""
        return self.with_pending.anywhere.variance(self.answers.surrogate.inputs(X)).sqrt()


class RuleModel(View, TrialObserver):
    """The posteriors given all trials so far, at candidates and at any points.

    Each point has a key: its row in a finite set, or a number below 0.

    Attributes:
        surrogate: kernel, noise and units of the posteriors.
        candidates: ``N x d``: all points of a set, or where climbs on a box begin.
        pool: the candidates whose posterior is kept up to date, a LongTensor; None for all.
        prior_deviation: the largest prior deviation at the candidates.
        is_blind: whether a kernel cannot be learned yet: answers are too few, or all equal.
        views: one for each of the rule's surrogates; the model itself is the view of the first.
        feasibility: which points may be asked.
        pending: how pending points enter the posterior.
        seed: the seed of random rules.
        widths: sigma at each of the last points as it was when asked, if ``pending`` inflates.
    """

    def __init__(
        self,
        ledger: Ledger,
        feasibility: Feasibility,
        domain: Domain,
        pending: Pending,
        *,
        sign: float,
        seed: int,
    ) -> None:
        self.finite, self.pending, self.seed = domain.count is not None, pending, seed
        self.feasibility, self.key = feasibility, feasibility.key
        self._domain, self._ledger, self._sign = domain, ledger, sign
        self.widths: list[float] = []
        self._best_mean: tuple[Posterior | None, float] = (None, 0.0)
        self.views: list[View] = []  # none until restart() has counted all trials
        self._left_out: set[int] = set()  # keys of points that posteriors do not use

    def restart(self, surrogates: Sequence[Surrogate], candidates: Tensor) -> None:
        """Rebuild the posteriors, with other surrogates (of one kernel) or other candidates."""
        surrogate = surrogates[0]
        self.surrogate, self.candidates = surrogate, candidates
        self.is_blind = surrogate.learned and not surrogate.scaled
        with torch.no_grad():
            prior = prior_variance(surrogate.covar_module, surrogate.inputs(candidates))
        self.prior_deviation = prior.max().sqrt().item()
        self._paths: PriorPaths | None = None
        self._paths_at = 0
        self.renewals = self.renewals_due
        self._left_out, self.pool = self._renewed() if self.renewals else (set(), None)
        self.views = []
        for each in surrogates:
            answers = Averages(each, candidates, self.pool)
            both = self.pending.counts_in_deviation
            asked_points = Averages(each, candidates, self.pool, values=False) if both else None
            self.views.append(View(answers, asked_points))
        self.answers, self.asked_points = self.views[0].answers, self.views[0].asked_points
        results: list[Trial | Attached] = [*self._ledger.trials, *self._ledger.attached]
        for result in results:
            self._count(result)

    @property
    def best_mean(self) -> float | None:
        """The incumbent, the largest posterior mean at an answered point; None without answers.

        Once there is an answer, points that :class:`Censor` gives a value count as answered, too.
        """
        if not self._ledger.values:
            return None
        posterior = self.answers.anywhere
        if posterior is not self._best_mean[0]:
            self._best_mean = posterior, posterior.mean(posterior.data.X).max().item()
        return self._best_mean[1]

    @property
    def renewals_due(self) -> int:
        """How often the points in use should have been chosen by now; 0 while all are in use.

        All stay in use with a given kernel, as claims require, and on small sets, where it is free.
        """
        if not self.surrogate.learned or (self.finite and len(self.candidates) <= MAX_FOLDED):
            return 0
        answers = len(self._ledger.values)
        return answers // RENEWED_EVERY if answers > MOST_POINTS else 0

    def _renewed(self) -> tuple[set[int], Tensor | None]:
        """The keys of the points to leave out, and the pool; both follow from the trials so far.

        Only points whose trials had all been settled at the last multiple of ``RENEWED_EVERY``
        answers are left out. So between renewals points are only added, and a resumed run finds the
        same ones. The pool is the part of a large set that may be best, given the points kept.
        """
        results: list[Trial | Attached] = [*self._ledger.attached, *self._ledger.trials]
        steps = sorted(r.told_step or 0 for r in results if r.value is not None)
        last = steps[self.renewals * RENEWED_EVERY - 1]
        values: dict[int, list[float]] = {}
        later, since, before = set(), set(), []
        for result in results:
            key, step = self.key(result), result.told_step
            if (result.id if isinstance(result, Trial) else (step or 0) - 1) >= last:
                since.add(key)  # asked or attached after the renewal
                continue
            before.append(result)
            if step is None or step > last or getattr(result, "state", None) is _ABANDONED:
                later.add(key)
            else:
                value = self._sign * result.value if result.value is not None else -torch.inf
                values.setdefault(key, []).append(value)
        keys = [key for key in values if key not in later]
        if not keys:
            return set(), None
        X = self.surrogate.inputs(self.points(keys))
        y = sent([sum(values[key]) / len(values[key]) for key in keys], X)
        kept = representative(X / self.surrogate.covar_module.lengthscale, y)
        in_use = {keys[row] for row in kept.tolist()}
        left_out = set(keys) - in_use - since
        if not self.finite or len(self.candidates) <= TABLE_POOL:
            return left_out, None
        told = [r for r in before if r.value is not None and self.key(r) in in_use]
        data = self.surrogate.data(Answers.of(self._domain, self._sign, told))
        moments = self.surrogate.posterior(data).at(self.candidates)
        upper = moments.mean + POOL_FACTOR * moments.deviation
        if self.surrogate.is_exact:  # another answer there would teach nothing
            upper[sent_rows([key for key in keys if key >= 0], upper)] = -torch.inf
        return left_out, upper.topk(TABLE_POOL).indices.sort().values

    def running(self) -> set[int]:
        """The keys of points with a running trial."""
        return {self.key(trial) for trial in self._ledger.running()}

    def points(self, keys: Sequence[int]) -> Tensor:
        """The points with these keys, ``n x d``, on the device of the candidates."""
        if not keys:
            return self.candidates[:0]
        return sent(torch.stack([self.feasibility.point(key) for key in keys]), self.candidates)

    def generator(self) -> torch.Generator:
        """A fresh generator for the present ask."""
        return generator_for(self.seed, len(self._ledger))

    def paths(self) -> PriorPaths:
        """Sample paths of the prior, exact on small sets; for sets, at attached points as well."""
        points = self.candidates
        if self.finite and (elsewhere := self.feasibility.keys.points):
            points = torch.cat([points, sent(torch.stack(elsewhere), points)])
        if self._paths is None or self._paths_at != len(points):
            kernel, inputs = self.surrogate.covar_module, self.surrogate.inputs(points)
            exact = self.finite and len(self.candidates) <= sample_paths.MAX_EXACT_POINTS
            self._paths = PriorPaths(kernel, inputs, self.seed, exact=exact)
            self._paths_at = len(points)
        return self._paths

    def pending_points(self) -> Tensor | None:
        """Points that count as pending, as inputs of the surrogate, ``p x e``; None without any."""
        if self.asked_points is None:
            return None
        keys = [self.key(trial) for trial in self._ledger.running()]
        keys += self.feasibility.fruitless()
        return self.surrogate.inputs(self.points(keys)) if keys else None

    @property
    def seems_exact(self) -> bool:
        """Whether evaluations seem exact: the learned noise says so, or repeats agree."""
        return self.surrogate.is_exact or self.feasibility.repeats_agree()

    @property
    def tells_all_at_once(self) -> bool:
        """Whether one answer tells all about a point: the learned noise says so, and repeats agree.

        That is more than :attr:`seems_exact`.
        """
        return self.surrogate.is_exact and self.feasibility.repeats_agree()

    @property
    def is_crowded(self) -> bool:
        """Whether on a box, with a learned kernel, pending points crowd where the mean is largest.

        That is, there are at least ``CROWDED`` of them, and no fewer than answered points, around
        the best answered point or around the pending one with the largest mean.
        """
        counts = self.surrogate.learned and self.pending.counts_in_deviation
        if self.finite or self.is_blind or not counts:
            return False
        points = [trial.point for trial in self._ledger.running()]
        if len(points) < CROWDED:
            return False
        posterior = self.answers.anywhere
        both = sent(torch.stack([*self.answers.best(1), *points]), self.candidates)
        best, pending = self.surrogate.inputs(both).tensor_split([1])

        def crowd_around(x: Tensor) -> bool:
            near = [
                ((X - x).square().mean(dim=1).sqrt() < CROWD).sum()
                for X in (pending, posterior.data.X)
            ]
            asked, answered = torch.stack(near).tolist()
            return bool(asked >= max(CROWDED, answered))

        return crowd_around(best) or crowd_around(pending[posterior.mean(pending).argmax()])

    def with_drawn_answers(self) -> RuleModel:
        """A copy of the model with values drawn for pending points, new ones in every ask."""
        made = copy.copy(self)
        made.views = []
        for view in self.views:
            drawn = view.answers
            if view.with_pending is not view.answers:
                generator = generator_for(self.seed, -1 - len(self._ledger))
                drawn = view.with_pending.with_drawn_answers(view.answers, generator)
            made.views.append(View(drawn, None))
        made.answers, made.asked_points = made.views[0].answers, None
        return made

    def width_at(self, point: int | Tensor) -> float:
        """Sigma at a row of a finite set, or a point of a box, ``d``."""
        if isinstance(point, int):
            return self.deviation[point].item()
        return self.deviation_at(sent(point.unsqueeze(0), self.candidates)).item()

    def asked(self, trial: Trial, data: Mapping[str, Any]) -> None:
        if (width := data.get("width")) is not None:  # width_at() of the ask
            assert self.pending.max_delay is not None
            kept = (*self.widths, validation.real(width, "width"))
            self.widths = [*kept[max(len(kept) - self.pending.max_delay, 0) :]]
        key, results = self.key(trial), list[Trial | Attached]([trial])
        if key in self._left_out:  # the point counts again, with all its answers
            self._left_out.discard(key)
            there = [result for result in self._ledger.attached if self.key(result) == key]
            results = [*self.feasibility.trials(key), *there]
        for result in results:
            self._count(result)

    def settled(self, trial: Trial) -> None:
        self._count(trial)

    def detached(self, result: Attached) -> None:
        self._count(result, gone=True)

    def _count(self, result: Trial | Attached, *, gone: bool = False) -> None:
        """Enter a trial or an attached result in the posteriors, or take it out."""
        key, x, noise_var = self.key(result), result.point, result.noise_var
        if key in self._left_out:
            return
        source = order = result.id - 2**62  # attached results come before all trials
        value = None if gone else result.value
        if isinstance(result, Trial):
            source, gone = result.id, result.state is _ABANDONED
            order = result.told_step or source
            limit = self.pending.max_delay
            late = limit is not None and result.delay is not None and result.delay > limit
            if late or (value is None and not gone):
                value, noise_var = self.pending.value_of_missing, None
        told = None if value is None else self._sign * value
        for view in self.views:
            if told is None:
                view.answers.drop(key, source)
            else:
                view.answers.put(key, source, x, told, noise_var, order)
            if view.asked_points is not None and gone:
                view.asked_points.drop(key, source)
            elif view.asked_points is not None:
                view.asked_points.put(key, source, x, told, noise_var)

    attached = _count


def failing_places(
    surrogate: Surrogate, feasibility: Feasibility, answered: Tensor
) -> Callable[[Tensor], Tensor] | None:
    """A test whether failures outweigh answers near points: ``n x d`` to bool ``n``.

    Each failure and answer has a Gaussian weight in the distance, 0.6 at ``CROWD``. The surrogate
    is a learned one, and ``answered`` are its inputs, ``a x e``. None without failures.
    """
    keys = feasibility.fruitless()
    if not keys:
        return None
    failed = torch.stack([feasibility.point(key) for key in keys])
    fruitless = surrogate.inputs(sent(failed, surrogate.like))
    radius = CROWD * fruitless.shape[1] ** 0.5

    def weigh(inputs: Tensor, others: Tensor) -> Tensor:
        parts = inputs.split(rows_per_chunk(len(others), inputs))
        away = [torch.cdist(part, others) / radius for part in parts]
        return torch.cat([torch.exp(-0.5 * part.square()).sum(dim=1) for part in away])

    def fails(X: Tensor) -> Tensor:
        inputs = surrogate.inputs(X)
        lead = weigh(inputs, fruitless) - LONE_FAILURE
        near = (lead > 0.0).nonzero().flatten()  # few: elsewhere answers need not be weighed
        lead[near] -= weigh(inputs[near], answered)
        return lead > 0.0

    return fails


def with_new_option(
    model: RuleModel, domain: Domain, new: Mapping[int, Tensor], spread: Tensor
) -> Tensor | None:
    """A good point of a box with one of the options ``new`` (by column), ``d``, if any is allowed.

    It is one of the best answered points with a random one of these options in the place of its
    own. Where none of them may be asked there, it is the one with the largest mean among the points
    ``spread`` over the box, ``n x d``.
    """
    answered = model.answers.anywhere.data.X
    fails = failing_places(model.surrogate, model.feasibility, answered)
    for leader in model.answers.best(LEADERS):
        X = with_options(domain, sent(leader, spread), new)
        X = X if fails is None else X[~fails(X)]
        if len(X):
            return X[int(torch.randint(len(X), (1,), generator=model.generator()))]
    X = spread[torch.stack([torch.isin(spread[:, d], new[d]) for d in new]).any(dim=0)]
    X = X if fails is None else X[~fails(X)]
    return X[int(model.mean_at(X).argmax())] if len(X) else None
