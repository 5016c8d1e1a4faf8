"""What a rule sees: posteriors from all trials so far, with pending points counted in some way."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from botorch_delay import validation
from botorch_delay.domains.devices import generator_for, sent, sent_rows
from botorch_delay.domains.finite import Domain
from botorch_delay.gp import sample_paths
from botorch_delay.gp.averages import Averages
from botorch_delay.gp.candidate_covariance import MAX_FOLDED
from botorch_delay.gp.kernels import prior_variance, rows_per_chunk
from botorch_delay.gp.sample_paths import PriorPaths
from botorch_delay.gp.subset import MOST_POINTS, representative
from botorch_delay.gp.surrogate import Surrogate
from botorch_delay.gp.warping import CROWD
from botorch_delay.history.answers import Answers
from botorch_delay.history.point_status import Feasibility
from botorch_delay.history.trials import (
    Attached,
    Ledger,
    Suggestion,
    Trial,
    TrialObserver,
    TrialState,
)
from botorch_delay.optimizers.pending import Pending

# How many answers are added to the points in use before they are chosen anew.
RENEWED_EVERY = 256
# Of so many arms of a larger set, those whose bounds were largest when points were last chosen, the
# posteriors are kept up to date from then on: mean plus this many deviations.
TABLE_POOL, POOL_FACTOR = 4096, 2.0
# So many pending points near each other, and more than are answered there, are a crowd.
CROWDED = 16
# By how much failures nearby must outweigh answers: one alone rules out what is around it.
LONE_FAILURE = 0.5
_ABANDONED = TrialState.ABANDONED


@dataclass(eq=False)
class View:
    """All trials as one surrogate sees them.

    ``answers`` give the mean, and ``asked_points``, where pending ones have no value, the
    deviation. It is None where no pending point counts.
    """

    answers: Averages
    asked_points: Averages | None

    @property
    def with_pending(self) -> Averages:
        """What gives the deviation: with pending points, where there are any to count."""
        if self.asked_points is None or self.asked_points.size == self.answers.size:
            return self.answers
        return self.asked_points

    @property
    def mean(self) -> Tensor:
        """At every candidate, in units of the surrogate: ``N``."""
        return self.answers.at_candidates.mean

    @property
    def deviation(self) -> Tensor:
        """At every candidate, with pending points counted: ``N``."""
        return self.with_pending.at_candidates.variance.sqrt()

    def mean_at(self, X: Tensor) -> Tensor:
        """At points in the columns of the domain, ``n x d``, in units of the surrogate: ``n``."""
        return self.answers.anywhere.mean(self.answers.surrogate.inputs(X))

    def deviation_at(self, X: Tensor) -> Tensor:
        """At points in the columns of the domain, ``n x d``, with pending points counted: ``n``."""
        return self.with_pending.anywhere.variance(self.answers.surrogate.inputs(X)).sqrt()


class RuleModel(View, TrialObserver):
    """The posteriors of all trials so far, at candidates and at any points.

    Each point has a key: a candidate's row on a finite set, or a number below 0.

    Attributes:
        surrogate: kernel, noise and units of the posteriors.
        candidates: ``N x d``: all points of a set, or where climbs on a box begin.
        pool: the candidates that posteriors are kept up to date at, a LongTensor; None for all.
        prior_deviation: the largest at the candidates.
        is_blind: whether there are too few answers to learn a kernel from.
        views: what each of the rule's surrogates sees; this model is the first one's.
        feasibility: which points may be asked.
        pending: how pending points enter.
        seed: of what is random in a rule.
        widths: sigma at the last points, when they were asked, where ``pending`` inflates.
    """

    surrogate: Surrogate
    candidates: Tensor
    _left_out: set[int]  # keys of points that posteriors go without

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
        self.behind = True  # all trials are to be counted by restart() before anything is read

    def restart(self, surrogates: Sequence[Surrogate], candidates: Tensor) -> None:
        """Count all trials anew, with other surrogates, of one kernel, or other candidates."""
        surrogate = surrogates[0]
        self.surrogate, self.candidates = surrogate, candidates
        self.is_blind = surrogate.learned and not surrogate.scaled
        with torch.no_grad():
            prior = prior_variance(surrogate.covar_module, surrogate.inputs(candidates))
        self.prior_deviation = prior.max().sqrt().item()
        self._paths: PriorPaths | None = None
        self._paths_at = 0
        self.renewals = self.renewals_due  # if they differ they are chosen by restart() again
        self._left_out, self.pool = self._renewed() if self.renewals else (set(), None)
        self.views = []
        for each in surrogates:
            answers = Averages(each, candidates, self.pool)
            both = self.pending.hallucinates
            asked_points = Averages(each, candidates, self.pool) if both else None
            self.views.append(View(answers, asked_points))
        self.answers, self.asked_points = self.views[0].answers, self.views[0].asked_points
        results: list[Trial | Attached] = [*self._ledger.trials, *self._ledger.attached]
        for result in results:
            self._count(result)
        self.behind = False

    @property
    def asks(self) -> int:
        """How many there are."""
        return len(self._ledger)

    @property
    def renewals_due(self) -> int:
        """How many times points are to have been chosen that are left out; 0 while none are.

        Only where the kernel is learned, which nothing is claimed with, and unless posteriors cost
        no more with more answers anyway.
        """
        if not self.surrogate.learned or (self.finite and len(self.candidates) <= MAX_FOLDED):
            return 0
        answers = len(self._ledger.values)
        return answers // RENEWED_EVERY if answers > MOST_POINTS else 0

    def _renewed(self) -> tuple[set[int], Tensor | None]:
        """The keys of the points that are left out, and the pool, functions of the trials so far.

        Points that are left out are of those all of whose trials were settled when the last
        multiple of ``RENEWED_EVERY`` answers was reached: between two renewals points are only
        added, and a run that was resumed knows the same ones. The pool is of a large set what may
        be best given the points that were kept then.
        """
        results: list[Trial | Attached] = [*self._ledger.attached, *self._ledger.trials]
        answered = (r.answered_step for r in results if r.value is not None)
        steps = sorted(step for step in answered if step is not None)
        last = steps[self.renewals * RENEWED_EVERY - 1]
        values: dict[int, list[float]] = {}
        later = set()
        for result in results:
            key, step = self.key(result), result.answered_step
            if step is None or step > last or getattr(result, "state", None) is _ABANDONED:
                later.add(key)
            else:
                value = self._sign * result.value if result.value is not None else -torch.inf
                values.setdefault(key, []).append(value)
        keys = [key for key in values if key not in later]
        if not keys:
            return set(), None
        points = torch.stack([self.point(key) for key in keys])
        X = self.surrogate.inputs(sent(points, self.candidates))
        y = sent([sum(values[key]) / len(values[key]) for key in keys], X)
        kept = representative(X / self.surrogate.covar_module.lengthscale, y)
        in_use = {keys[row] for row in kept.tolist()}
        left_out = set(keys) - in_use
        if not self.finite or len(self.candidates) <= TABLE_POOL:
            return left_out, None
        told = [r for r in results if r.value is not None and self.key(r) in in_use]
        data = self.surrogate.data(Answers.of(self._domain, self._sign, told))
        moments = self.surrogate.posterior(data).at(self.candidates)
        upper = moments.mean + POOL_FACTOR * moments.deviation
        if self.surrogate.is_exact:  # nothing is learned there any more
            upper[sent_rows([key for key in keys if key >= 0], upper)] = -torch.inf
        return left_out, upper.topk(TABLE_POOL).indices.sort().values

    def running(self) -> set[int]:
        """The keys of points with a running trial."""
        return {self.key(trial) for trial in self._ledger.running()}

    def point(self, key: int) -> Tensor:
        """The point with a key, ``d``, on the CPU."""
        return self._domain.on_cpu[key] if key >= 0 else self.feasibility.keys.point(key)

    def generator(self) -> torch.Generator:
        """A fresh one, of the present ask."""
        return generator_for(self.seed, len(self._ledger))

    def paths(self) -> PriorPaths:
        """Paths of the prior: exact ones on small sets, at points from elsewhere as well."""
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
        """Points that count as pending, ``p x e`` in inputs of the surrogate; None without any."""
        asked = self.asked_points
        if asked is None:
            return None
        points = [trial.point for trial in self._ledger.running()]
        points += [asked.point(key) for key in self.feasibility.fruitless()]
        if not points:
            return None
        return self.surrogate.inputs(sent(torch.stack(points), self.candidates))

    @property
    def tells_all_at_once(self) -> bool:
        """Whether a point's second answer tells nothing, as far as answers show.

        The learned noise has to be that of exact evaluations, and repeats must agree.
        """
        return self.surrogate.is_exact and self.feasibility.repeats_agree()

    @property
    def is_crowded(self) -> bool:
        """Whether on a box, with a learned kernel, pending points crowd where the mean is largest.

        That is around the best answered point, or the pending one with the largest mean: there at
        least ``CROWDED`` are pending, and at least as many as are answered.
        """
        if self.finite or self.is_blind:
            return False
        if not (self.surrogate.learned and self.pending.hallucinates):
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

    def where_trials_fail(self) -> Callable[[Tensor], Tensor] | None:
        """Whether near points, ``n x d``, more failed than was answered: bool ``n``.

        Weights fall with the distance, to 0.6 at ``CROWD``, and a point counts as failed while all
        its trials are. None where nothing failed, and where the kernel is given: claims know of no
        places that are left out.
        """
        fruitless = self.feasibility.fruitless()
        if not fruitless or not self.surrogate.learned:
            return None
        points = sent(torch.stack([self.point(key) for key in fruitless]), self.candidates)
        failed, answered = self.surrogate.inputs(points), self.answers.anywhere.data.X
        radius = CROWD * failed.shape[1] ** 0.5

        def weigh(inputs: Tensor, others: Tensor) -> Tensor:
            parts = inputs.split(rows_per_chunk(len(others), inputs))
            away = [torch.cdist(part, others) / radius for part in parts]
            return torch.cat([torch.exp(-0.5 * part.square()).sum(dim=1) for part in away])

        def fails(X: Tensor) -> Tensor:
            inputs = self.surrogate.inputs(X)
            lead = weigh(inputs, failed) - LONE_FAILURE
            near = (lead > 0.0).nonzero().flatten()  # few of very many
            lead[near] -= weigh(inputs[near], answered)
            return lead > 0.0

        return fails

    def with_drawn_answers(self) -> RuleModel:
        """The model with values drawn for pending points, fresh ones in every ask."""
        made = copy.copy(self)
        made.views = []
        for view in self.views:
            drawn = view.answers
            if view.with_pending is not view.answers:
                generator = generator_for(self.seed, -1 - self.asks)
                drawn = view.with_pending.with_drawn_answers(view.answers, generator)
            made.views.append(View(drawn, None))
        made.answers, made.asked_points = made.views[0].answers, None
        return made

    def width_at(self, choice: Suggestion) -> float | None:
        """Sigma at the point that is about to be asked, where the rule adds it up; else None."""
        if not self.pending.inflate:
            return None
        if choice.x is None:
            return self.deviation[choice.index].item()
        inputs = self.surrogate.inputs(sent(choice.x.unsqueeze(0), self.candidates))
        return self.with_pending.anywhere.at(inputs).deviation.item()

    def asked(self, trial: Trial, data: Mapping[str, Any]) -> None:
        if (width := data.get("width")) is not None:  # what width_at() said
            assert self.pending.max_delay is not None
            self.widths = [*self.widths, validation.real(width, "width")][-self.pending.max_delay :]
        key = self.key(trial)
        if not self.behind and key in self._left_out:
            self._left_out.discard(key)
            there = [result for result in self._ledger.attached if self.key(result) == key]
            results: list[Trial | Attached] = [*self.feasibility.trials(key), *there]
            for result in results:
                self._count(result)
        elif not self.behind:
            self._count(trial)

    def settled(self, trial: Trial) -> None:
        if not self.behind:
            self._count(trial)

    def attached(self, result: Attached) -> None:
        if not self.behind:
            self._count(result)

    def detached(self, result: Attached) -> None:
        if not self.behind:
            self._count(result, gone=True)

    def _count(self, result: Trial | Attached, *, gone: bool = False) -> None:
        """Enter what a trial or an attached result says, or take it out where it does not count."""
        key, x, noise_var = self.key(result), result.point, result.noise_var
        source, value = result.id - 2**62, None if gone else result.value  # before all trials
        if key in self._left_out:
            return
        order = source
        if isinstance(result, Trial):
            source, gone = result.id, result.state is _ABANDONED
            order = result.answered_step or source
            limit = self.pending.max_delay
            late = limit is not None and result.delay is not None and result.delay > limit
            if late or (value is None and not gone):
                value = self.pending.value_of_missing
        for view in self.views:
            if value is None:
                view.answers.drop(key, source)
            else:
                view.answers.put(key, source, x, self._sign * value, noise_var, order)
            if view.asked_points is None:
                continue
            if gone:
                view.asked_points.drop(key, source)
            else:
                view.asked_points.put(key, source, x, None, noise_var)
