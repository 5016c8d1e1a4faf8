"""Maximisation of a rule, given all answers and the pending points."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property, partial

import torch
from torch import Tensor

from botorch_delay.design.ascent import (
    LEADERS,
    LOCAL_POINTS,
    LOCAL_REACH,
    lowest_of_largest,
    lowest_tied,
    maximize,
    nearby,
    new_options,
    tie_tolerance,
    with_other_options,
)
from botorch_delay.domains.columns import Columns
from botorch_delay.domains.devices import generator_for, moved, sent_rows
from botorch_delay.domains.domain import hashes
from botorch_delay.elimination.active_set import ActiveSet
from botorch_delay.elimination.box_active_set import quasi_random, spread_points
from botorch_delay.exceptions import EmptyDomainError, InputError, InputTypeError, NumericsError
from botorch_delay.gp.surrogate import MANY_ANSWERS, MIN_ANSWERS_TO_FIT, Surrogate
from botorch_delay.history.point_status import REPEATS, Feasibility
from botorch_delay.history.trials import Attached, Ledger, Trial
from botorch_delay.optimizers.config import AcquisitionConfig, BPEConfig
from botorch_delay.optimizers.knowledge_gradient import knowledge_gradient
from botorch_delay.optimizers.rule_model import RuleModel, failing_places, with_new_option
from botorch_delay.optimizers.rules import UCB, Rule
from botorch_delay.optimizers.run import Fitting

PointTest = Callable[[Tensor], Tensor]  # n x d to bool n

# Points spread over a box that are scored to choose where climbs begin.
BOX_POOL = 2048
# The share of a column at each of its ends that is left out before the first fit.
MARGIN = 0.1
MOST_BATCHES = 64  # batches of BOX_POOL points to try before giving up on one that may be asked
# Climbs per ask: the most up to this many answered points, then fewer in inverse proportion.
MOST_CLIMBS, ANSWERS_FOR_MOST, FEWEST_CLIMBS = 64, 100, 8
# Steps of a climb; twice as many while there are many climbs and the rule is not costly.
STEPS = 8
# Starts of climbs drawn around each of the best answered points.
AROUND = 4
# One repeat of the best answered point is due per this many answers, until there are ``REPEATS``.
ANSWERS_PER_REPEAT = 12
# The last asks on a box maximise the expected rise of the largest mean - END_FACTOR * deviation.
# They compare the answered points, AROUND_AT_END points drawn around each of the best of these, and
# the TOP_OF_POOL points of the pool with the largest mean + END_FACTOR * deviation.
AROUND_AT_END, TOP_OF_POOL, END_FACTOR = 24, 64, math.sqrt(2.0)
# On a box, only this many answered points, those with the largest mean, compete to be repeated.
MOST_CONFIRMED = 256
# Climbs end when no step promises to beat the best value by this share of the prior deviation.
ENOUGH = 1e-3
# Once the rule has converged, one ask in EXPLORED_EVERY goes where a value that exceeds the best
# answer by WORTH_FINDING prior deviations is likeliest. Far from all answers the deviation is that
# of the prior, and the best answer is about two of those above the mean: UCB(2) would never leave
# it. After OFTEN such asks since an answer came that close to the best one, their number grows like
# the logarithm of the asks, so that their share vanishes in a long run.
EXPLORED_EVERY, WORTH_FINDING, OFTEN = 4, 0.1, 16
# Of choices with more options, one that was not asked yet comes first then, converged or not.
# UCB(2) gives them up once the best answer is 1.4 prior deviations above the mean: after about ten.
FEW_OPTIONS = 8


class Maximizer:
    """Maximises a rule to choose the next point: over all points of a set, by climbs on a box."""

    def __init__(
        self,
        config: AcquisitionConfig | BPEConfig,
        ledger: Ledger,
        fitting: Fitting,
        feasibility: Feasibility,
    ) -> None:
        assert config.rule is not None
        self.rule, self._config, self._domain = config.rule, config, config.domain
        self._ledger, self._fitting = ledger, fitting
        self._order: Tensor | None = None  # random ranks of the candidates, until there is a fit
        # What the model was built with: a surrogate, and the active set of a box that is cut.
        self._fitted: Surrogate | None = None
        self._cut: ActiveSet | None = None
        self._within: Tensor | None = None  # which candidates lie in that active set: bool N
        parts = ledger, feasibility, config.domain, config.pending
        self.model = RuleModel(*parts, sign=config.sign, seed=config.seed)

    def check(self) -> None:
        """Prepare the first ask; refuse a rule that cannot be used."""
        kind, needed = type(self.rule), ("score",) if self.model.finite else ("score", "function")
        if kind.value is Rule.value and any(
            getattr(kind, name) is getattr(Rule, name) for name in needed
        ):
            raise InputTypeError(f"{kind.__name__} must define value, or score and function.")
        self.update()
        self.rule.check(self.model)

    def update(self, active: ActiveSet | None = None) -> None:
        """Rebuild the model if the surrogate, the candidates or the points in use have changed."""
        fitted, model = self._fitting.surrogate, self.model
        cut = active if active is not None and active.is_cut else None
        same = self._fitted is fitted and self._cut is cut
        if model.views and same and model.renewals == model.renewals_due:
            return
        self._fitted, self._cut = fitted, cut
        left = None if cut is None else cut.points_inside
        candidates = self._spread if left is None else left[:: max(len(left) // BOX_POOL, 1)]
        if self._domain.count is None and self._fitting.fitted_to > MANY_ANSWERS:
            candidates = candidates[::2]
        model.restart(self.rule.surrogates(fitted), candidates)
        self._order = self._within = None

    def choose(
        self, active: ActiveSet | None = None, *, plan_repeats: bool = False, final: bool = False
    ) -> int | Tensor:
        """The next point, a row or a point of a box; from the whole domain if ``active`` is None.

        With ``plan_repeats``, points are repeated and untried ones preferred as :class:`Exploit`
        describes; with ``final``, the ask is one of the last that it describes. EmptyDomainError if
        no point may be asked, NumericsError if the rule is nan or inf at one, or -inf at all.
        """
        self.update(active)
        model = self.model
        key = self.repeat(active) if plan_repeats else None
        if key is None and final and self._domain.is_discrete:
            key = self.confirm(active)
            final = False
        if key is not None:
            return model.feasibility.place(key)
        try:
            if model.is_blind:
                return self._first(active)
            if final and not model.seems_exact:
                return self._most_telling(active)
            point = self._new_option()
            return self._largest(active, new_first=plan_repeats) if point is None else point
        except EmptyDomainError as error:
            return self._any_open(error)

    def _any_open(self, error: EmptyDomainError) -> Tensor:
        """A point of a countable box that may be asked, where no candidate may; else the error.

        On a box that rounds have cut the error is raised at once: no claim covers other points.
        """
        if self.model.finite or self._cut is not None or not self._domain.is_countable:
            raise error
        closed = hashes(self.model.points(self.model.feasibility.unavailable()))
        for batch in range(MOST_BATCHES):
            drawn = quasi_random(self._domain, BOX_POOL, self._config.seed, batch)
            X = self._domain.columns.rounded(drawn)
            free = (~torch.isin(hashes(X), closed)).nonzero()
            if len(free):
                return X[int(free[0])]
        raise error

    def _largest(self, active: ActiveSet | None, *, new_first: bool) -> int | Tensor:
        """Where the rule is largest: a row of a finite set, a point (``d``) of a box."""
        model = self.model
        if model.pending.draws or (self.rule.draws_where_crowded and model.is_crowded):
            model = model.with_drawn_answers()
        scores = self.rule.score(model)
        count, is_tensor = len(model.candidates), isinstance(scores, Tensor)
        if not is_tensor or scores.shape != (count,) or not scores.is_floating_point():
            got = type(scores).__name__
            if is_tensor:
                got = f"{scores.dtype} of shape {tuple(scores.shape)}"
            raise InputError(
                f"The score of {self.rule!r} must be a floating tensor of shape {(count,)}, a "
                f"number for each candidate; got {got}."
            )
        new_first &= self._domain.is_discrete and model.surrogate.learned
        point = None
        # A repeat tells about the noise, and little about where better points are.
        if new_first and self.rule.scores_are_values and (tried := model.feasibility.tried()):
            point = self._best(model, scores, active, tried, self._best_tried_mean(tried))
        if point is None:
            point = self._best(model, scores, active)
        if point is None:
            name = self.rule.method(model.pending)
            raise NumericsError(f"{name} is -inf at every point that may be asked.")
        return point

    def _new_option(self) -> Tensor | None:
        """A point with an option that was not asked yet, ``d``; None if none is due.

        Inside the active set or not, since a learned kernel claims nothing.
        """
        turn, later = divmod(len(self._ledger), EXPLORED_EVERY)
        categories = self._domain.encoding.categories if self._config.keep_exploring else {}
        many = [dim for dim, options in categories.items() if len(options) > FEW_OPTIONS]
        if later or not many or explored_of(turn) == explored_of(turn - 1):
            return None
        places = [*self._ledger.trials, *self._ledger.attached]
        new = new_options(self._domain, torch.stack([place.point for place in places]), many)
        return with_new_option(self.model, self._domain, new, self._spread) if new else None

    def _most_telling(self, active: ActiveSet | None) -> Tensor:
        """The point of a box, ``d``, with the largest knowledge gradient.

        The candidates are answered points, others around the best of these, and the points of the
        pool with the largest upper bounds, as far as they may be asked.
        """
        model, pool = self.model, self.model.candidates
        may_ask, allowed = self._allowed(active)
        bound = (model.mean + END_FACTOR * model.deviation).masked_fill(~allowed, -torch.inf)
        top = bound.topk(min(TOP_OF_POOL, int(allowed.sum()))).indices
        keys, mean = self._answered(active)
        answered, generator = model.points(keys), model.generator()
        leaders = answered[mean.topk(min(LEADERS, len(keys))).indices]
        near = nearby(self._domain, leaders, AROUND_AT_END, LOCAL_REACH, generator)
        if self._domain.encoding.categories:
            near = with_other_options(self._domain, near, generator)
        X = torch.cat([answered, near, pool[top]])
        X = X if may_ask is None else X[may_ask(X)]
        return X[lowest_of_largest(knowledge_gradient(model, X, END_FACTOR))]

    def _best_tried_mean(self, tried: Sequence[int]) -> Tensor:
        """The largest posterior mean at the points with these keys, at least one; a scalar."""
        model = self.model
        if model.finite:
            return model.mean[sent_rows(tried, model.mean)].max()
        return model.mean_at(model.points(tried)).max()

    def _best(
        self,
        model: RuleModel,
        scores: Tensor,
        active: ActiveSet | None,
        avoided: Sequence[int] = (),
        least: Tensor | None = None,
    ) -> int | Tensor | None:
        """Where the rule is largest; points with keys in ``avoided`` only if no others are left.

        None if the rule is -inf everywhere, or below ``least`` at its maximum.
        """
        unit = model.prior_deviation if self.rule.scores_are_values else 0.0
        may_ask, allowed = self._allowed(active, avoided)
        scores = scores.masked_fill(~allowed, -torch.inf)
        least = torch.full_like(scores[0], -torch.inf) if least is None else least
        found = scores.max(), lowest_tied(scores, unit).squeeze(0), least
        # One transfer from the device.
        top, row, low = torch.stack([number.double() for number in found]).tolist()
        if math.isnan(top) or top == math.inf:
            raise NumericsError(
                f"{self.rule.method(model.pending)} is {top} at some point; a score must be "
                "finite, or -inf where a point must not be asked."
            )
        if top == -math.inf or (model.finite and top < low):
            return None
        if model.finite:
            return int(row)
        point, score = self._climb(self.rule, model, scores, may_ask, allowed)
        due = self._config.keep_exploring and len(self._ledger) % EXPLORED_EVERY == 0
        if due and (explorer := self._explorer(model, score, allowed)):
            scores = explorer.score(model).masked_fill(~allowed, -torch.inf)
            point, score = self._climb(explorer, model, scores, may_ask, allowed)
        return point if low == -math.inf or score.item() >= low else None

    def repeat(self, active: ActiveSet | None) -> int | None:
        """The key of the best answered point if it is due to be asked again, to measure noise."""
        model, feasibility = self.model, self.model.feasibility
        if self._config.exact or not model.surrogate.learned or model.is_blind:
            return None
        due = min(model.answers.size // ANSWERS_PER_REPEAT, REPEATS)
        if feasibility.repeats >= due:
            return None
        # Repeats that differ still tell noise from roughness.
        if feasibility.repeats_differ and not self._config.tells_roughness:
            return None
        keys, mean = self._answered(active)
        best = keys[int(mean.argmax())] if keys else None
        return None if best in model.running() else best

    def confirm(self, active: ActiveSet | None = None) -> int | None:
        """The key of an answered point to repeat, if several may be best; see :class:`Exploit`."""
        if self.model.is_blind or self.model.tells_all_at_once:
            return None
        keys, mean = self._answered(active)
        if len(keys) < 2:
            return None
        if self.model.finite:
            deviation = self.model.deviation[sent_rows(keys, mean)]
        else:
            deviation = self.model.deviation_at(self.model.points(keys))
        best, upper = int(mean.argmax()), mean + deviation
        contested = upper >= mean[best] - deviation[best]
        has_running = self.model.running()
        running = moved(torch.tensor([key in has_running for key in keys]), upper.device)
        free = contested & ~running
        if int(contested.sum()) < 2 or not bool(free.any()):
            return None
        upper = upper.masked_fill(~free, -torch.inf)
        return keys[lowest_of_largest(upper, self.model.prior_deviation)]

    @cached_property
    def _spread(self) -> Tensor:
        """All points of a set, or points spread over a box, some on its edge for a given kernel."""
        generator = generator_for(self._config.seed, 0)
        edge = 0 if self._config.learned else BOX_POOL // 4
        return spread_points(self._domain, BOX_POOL, generator, edge=edge)

    def _first(self, active: ActiveSet | None) -> int | Tensor:
        """The next candidate in a random order, asked ones last; a row or a point, ``d``.

        Before the first fit a rule would ask the corners, far from each other and rarely good. Any
        few hundred candidates of a box cover it evenly (benchmarks/REPORT.md, "Many workers"). They
        are moved away from the ends of intervals, where values are seldom good and often extreme,
        until three answers are known, and are all equal (benchmarks/CHOICES.md, "First asks").
        """
        pool = self.model.candidates
        if self._order is None:
            generator = generator_for(self._config.seed, 0)
            self._order = moved(torch.randperm(len(pool), generator=generator), pool.device)
            self._taken, self._seen = torch.zeros_like(self._order), 0
            self._inner = self._domain.moved_inwards(pool, MARGIN) if self._cut is None else pool
        asked = [self.model.key(trial) for trial in self._ledger.trials[self._seen :]]
        if self.model.finite:
            self._taken[sent_rows(asked, pool)] = 1
        else:
            for points in (pool, self._inner):
                self._taken |= torch.isin(hashes(points), hashes(self.model.points(asked)))
        self._seen = len(self._ledger)
        turn = (self._order - len(self._ledger)) % len(pool) + len(pool) * self._taken
        _, allowed = self._allowed(active)
        row = int(turn.masked_fill(~allowed, 2 * len(pool)).argmin())
        if self.model.finite:
            return row
        return (self._inner if self.model.answers.size < MIN_ANSWERS_TO_FIT else pool)[row]

    def _allowed(
        self, active: ActiveSet | None, avoided: Sequence[int] = ()
    ) -> tuple[PointTest | None, Tensor]:
        """A test whether points may be asked (None if all may), and which candidates may: bool N.

        If none does, the test admits, one after the other, points with keys in ``avoided``, points
        with running trials, and places where trials fail.
        """
        model, pool = self.model, self.model.candidates
        inside = None if self._cut is None else self._cut.inside
        if self._within is None:
            everywhere = torch.ones(len(pool), dtype=torch.bool, device=pool.device)
            self._within = everywhere if inside is None else inside(pool)
        within = self._within
        if active is not None and active.rows is not None:
            within = torch.zeros_like(within).index_fill(0, active.rows, True)
        closed, fails = model.feasibility.unavailable(), None
        # With a given kernel, claims allow no places to be left out.
        if model.surrogate.learned and model.feasibility.suspects:
            answered = model.answers.anywhere.data.X
            fails = failing_places(model.surrogate, model.feasibility, answered)
        running = [] if self._config.repeat_pending else list(model.running())
        avoided = [*avoided, *running]
        if self._domain.is_countable and model.tells_all_at_once:
            avoided = model.feasibility.tried()
        stages = [(closed + keys, fails) for keys in (avoided, running, [])]
        for keys, left_out in (*stages, (closed, None)):
            if not keys and inside is None and left_out is None and model.pool is None:
                return None, within
            taken = hashes(model.points([key for key in keys if key < 0]))
            out = [] if left_out is None else [left_out]
            if len(taken):
                out.append(partial(_are_among, taken, self._domain.columns))
            allowed = within & _none_of(out, pool)
            allowed[sent_rows([key for key in keys if key >= 0], allowed)] = False
            if model.pool is not None:
                pooled = torch.zeros_like(allowed).index_copy(0, model.pool, allowed[model.pool])
                allowed = pooled if bool(pooled.any()) else allowed
            if bool(allowed.any()):
                if inside is not None:
                    out.append(lambda X: ~inside(X))
                return partial(_none_of, out) if out else None, allowed
        raise model.feasibility.nothing_to_ask()

    def _explorer(self, model: RuleModel, score: Tensor, allowed: Tensor) -> UCB | None:
        """The rule of an ask that explores: the probability of improvement (Kushner 1964).

        Its maximum is that of the upper bound with the factor at which the bound just reaches the
        value worth finding at one candidate. None unless evaluations seem exact, no answer at the
        usual rule's best point, with this ``score``, may be much better, and it is not too soon.
        """
        unit, best = model.prior_deviation, model.answers.anywhere.data.y.max()
        if not model.seems_exact or bool(score - best > ENOUGH * unit):
            return None
        surrogate, sign, asked = model.surrogate, self._config.sign, len(self._ledger)
        near = surrogate.offset + surrogate.scale * float(best - WORTH_FINDING * unit)
        least = surrogate.unwarped(near)
        results = self._ledger.results()
        came = [came_at(r) for r in results if r.value is not None and sign * r.value >= least]
        turn = (asked - min(came, default=asked)) // EXPLORED_EVERY
        if explored_of(turn) == explored_of(turn - 1):
            return None
        missing = best + WORTH_FINDING * unit - model.mean
        factors = missing / model.deviation.clamp_min(ENOUGH**2 * unit)
        return UCB(factors[allowed].min().clamp_min(ENOUGH).item() ** 2)

    def _climb(
        self,
        rule: Rule,
        model: RuleModel,
        scores: Tensor,
        may_ask: PointTest | None,
        allowed: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """The best point that climbs from the best candidates reach, and its score, a scalar."""
        pool, costly = model.candidates, rule.costly
        # Fewer climbs with many points or a costly function, to bound the time of an ask.
        points, asked = len(model.answers.anywhere), len(model.with_pending.anywhere)
        share = ANSWERS_FOR_MOST / max(points, asked - LOCAL_POINTS, ANSWERS_FOR_MOST)
        climbs = FEWEST_CLIMBS if costly else max(int(MOST_CLIMBS * share), FEWEST_CLIMBS)
        climbs = min(climbs, len(scores))
        # Scores are rounded, since a loaded run may differ in the last bits, and sorted, since topk
        # orders ties differently on CUDA: climbs begin at the same points in the same order.
        rounding = tie_tolerance(scores.dtype) * model.prior_deviation
        ranked = (scores / rounding).round() if rule.scores_are_values else scores
        best, reach = ranked.argsort(descending=True, stable=True)[:climbs], 1.0
        if model.surrogate.learned:
            # Climbs stay near the largest means. The best-scoring start explores; no corner is one.
            mean = model.mean.masked_fill(~allowed, -torch.inf)
            order = (mean / rounding).round().argsort(descending=True, stable=True)
            best = torch.cat([best[:1], order[:climbs]])
            reach = LOCAL_REACH
        best = best[allowed[best]]  # never empty: the first has the largest score
        starts, reached = pool[best], scores[best]
        if model.surrogate.learned:
            # With many columns no point of the pool is near the best answered ones.
            leaders, generator = torch.stack(model.answers.best(LEADERS)), model.generator()
            near = nearby(self._domain, leaders, AROUND, LOCAL_REACH, generator)
            near = (near if may_ask is None else near[may_ask(near)])[:climbs]
            if self._domain.encoding.categories:
                near = with_other_options(self._domain, near, generator)
                near = near if may_ask is None else near[may_ask(near)]
            nowhere = near.new_full((len(near),), -torch.inf)
            starts = torch.cat([starts[: climbs // 2 + 1], near])
            reached = torch.cat([reached[: climbs // 2 + 1], nowhere])
        X, found = maximize(
            rule.function(model, starts),
            self._domain,
            starts,
            generator=model.generator(),
            steps=STEPS if costly or len(best) < MOST_CLIMBS // 4 else 2 * STEPS,
            inside=may_ask,
            reach=reach,
            enough=ENOUGH * model.prior_deviation if rule.scores_are_values else 0.0,
        )
        found = torch.where(torch.isfinite(found), found, reached)
        return X.index_select(0, lowest_tied(found)).squeeze(0), found.max()

    def _answered(self, active: ActiveSet | None) -> tuple[list[int], Tensor]:
        """Keys of answered points that may be asked (on a box the best), and the mean at each."""
        model = self.model
        keys = sorted(set(model.answers.keys).difference(model.feasibility.unavailable()))
        if model.finite:
            rows = sent_rows([key for key in keys if key >= 0], model.mean)
            if active is not None and active.rows is not None:
                rows = rows[torch.isin(rows, active.rows)]
            if model.pool is not None:
                rows = rows[torch.isin(rows, model.pool)]
            return rows.tolist(), model.mean[rows]
        X = model.points(keys)
        allowed = self._domain.contains(X)
        if active is not None and active.inside is not None:
            allowed &= active.inside(X)
        rows, mean = allowed.nonzero().flatten(), model.mean_at(X)
        if len(rows) > MOST_CONFIRMED:
            rows = rows[mean[rows].topk(MOST_CONFIRMED).indices.sort().values]
        return [keys[row] for row in rows.tolist()], mean[rows]


def came_at(result: Trial | Attached) -> int:
    """How many asks had been made when the value of a result came or was last corrected."""
    corrections = result.corrections if isinstance(result, Trial) else ()
    return (corrections[-1].corrected_step if corrections else result.told_step) or 0


def explored_of(turns: int) -> int:
    """How many of ``turns`` asks that may explore do: all of few, ever fewer of many."""
    return turns if turns <= OFTEN else int(OFTEN * (1.0 + math.log(turns / OFTEN)))


def _none_of(tests: Sequence[PointTest], X: Tensor) -> Tensor:
    """Whether points, ``n x d``, pass none of some tests: bool ``n``."""
    found = torch.ones(len(X), dtype=torch.bool, device=X.device)
    for test in tests:
        found &= ~test(X)
    return found


def _are_among(taken: Tensor, columns: Columns, X: Tensor) -> Tensor:
    return torch.isin(hashes(columns.rounded(X)), taken)
