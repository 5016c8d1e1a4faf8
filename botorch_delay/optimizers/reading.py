"""Reading a run: its trials, what follows from all answers, a table, a summary."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from botorch_delay import validation
from botorch_delay.confidence.bounds import Constants
from botorch_delay.confidence.guarantee import Guarantee
from botorch_delay.domains.devices import generator_for, moved, sent
from botorch_delay.domains.domain import Domain, Points
from botorch_delay.elimination.active_set import ActiveSet
from botorch_delay.elimination.box_active_set import whole_set
from botorch_delay.exceptions import NoAnswerError, NotSupportedError
from botorch_delay.gp.kernels import check_kernel
from botorch_delay.gp.marginal import marginal_deviation
from botorch_delay.gp.roughness import with_roughness
from botorch_delay.gp.surrogate import MANY_ANSWERS, Hyperparameters, Learned, Surrogate
from botorch_delay.history.answers import Answers
from botorch_delay.history.empirical_delay import EmpiricalDelay
from botorch_delay.history.trials import Attached, Trial, TrialState
from botorch_delay.optimizers.certificate import Certificate, certify, plausible
from botorch_delay.optimizers.forecasts import Straggler, describe_running
from botorch_delay.optimizers.recommendation import (
    ANSWER_ITSELF,
    REFUTED,
    UNCHECKED,
    Judgement,
    Prediction,
    Recommendation,
    Replicates,
    replicates,
)
from botorch_delay.optimizers.run import Run, exclusive

if TYPE_CHECKING:
    import pandas as pd

# The columns of a table of results, in addition to those of the parameters.
TABLE_COLUMNS = (
    *("trial", "state", "value", "corrected_from", "noise_var", "reason"),
    *("round", "asked_at", "told_at"),
)


class ReadableRun(Run, ABC):
    """The part of an optimizer that reads a run: nothing here changes it."""

    @property
    def trials(self) -> list[Trial]:
        """Every trial, in the order of the asks."""
        return list(self._ledger.trials)

    @property
    @exclusive
    def pending(self) -> list[Trial]:
        """The running trials, in the order of the asks."""
        return self._ledger.running()

    @property
    def attached(self) -> list[Attached]:
        """The results that were obtained elsewhere and attached, without those taken back."""
        return list(self._ledger.attached)

    @property
    def detached(self) -> list[Attached]:
        """The attached results that were taken back, each with the time and the reason."""
        return list(self._ledger.detached)

    @exclusive
    def delays(self) -> EmpiricalDelay:
        """The empirical law of delays, in steps; trials without an answer count as censored.

        Raises:
            NoAnswerError: before any answer.
        """
        ended = self._finished or len(self._ledger) == self._config.horizon
        return EmpiricalDelay.from_trials(self._ledger.trials, ended=ended)

    @exclusive
    def overdue(self, share: float = 0.95) -> list[Straggler]:
        """The running trials that are overdue, longest wait first; none before any answer.

        Args:
            share: in (0, 1); overdue trials wait longer than this estimated share of answers.
        """
        share, law = validation.probability(share, "share"), self._estimated_law()
        running = describe_running(self._ledger.running(), len(self._ledger), law)
        return [straggler for straggler in running if (straggler.sooner or 0.0) >= share]

    @exclusive
    def replicates(self) -> list[Replicates]:
        """Every distinct point with an answer or a running trial, the most answered first."""
        return replicates(self._ledger.trials, self._ledger.attached, self._feasibility.key)

    @property
    @abstractmethod
    def guarantee(self) -> Guarantee:
        """What is claimed for this configuration and its run so far, and why not more."""

    @property
    @exclusive
    def hyperparameters(self) -> Hyperparameters:
        """The learned lengthscales and noise (at first the prior's), for a ``warm_start``.

        Main effects are left out: the other study finds out by itself whether it has any.

        Raises:
            NotSupportedError: if kernel and noise are given.
        """
        surrogate = self._surrogate
        if not surrogate.learned:
            raise NotSupportedError(
                "Kernel and noise were given, not learned; pass the same covar_module and "
                "noise_var to the other study."
            )
        scales = surrogate.covar_module.lengthscale.flatten().tolist()
        return Hyperparameters(scales, surrogate.noise_var)

    @exclusive
    def recommend(self, *, tried: bool = False) -> Recommendation:
        """The point of the domain that all answers together favour.

        With a given kernel, the answered point with the best posterior mean. With a learned kernel:

        * The point with the best answer, if evaluations seem exact: no point of the domain has two
          different answers, and the learned noise is that of exact evaluations, or three trials
          repeated a point and none told its noise (then the answer is the mean and both ends).
        * Else, with more than 512 answered points, the one with the best posterior mean.
        * Else the point whose interval under the fitted kernel has the best worst end (the largest
          lower end when maximising), so that one lucky answer does not decide. On a box it may be
          an untried point near answered ones, if its worst end is no worse once the uncertainty
          of the fit counts; its reported interval is wider, for the search.
          If two or more repeats differ by far less than the fitted noise, the rest of it counts
          as roughness of f, which only answers at a point itself reveal (``gp.roughness``); but
          not on lists, and not with bounds that are proved.

        Reported intervals also count that the kernel is fitted. Attached results are used. If no
        point of the domain has an answer, all are compared, or points spread over a box. The point
        may be outside the active set, if later answers contradict the round that eliminated it.

        Args:
            tried: whether to recommend only points with an answer.

        Raises:
            NoAnswerError: before any answer; with ``tried``, before one in the domain.
        """
        tried = validation.flag(tried, "tried")
        judged = self._judged("base a recommendation on")
        surrogate, answers = judged.surrogate, judged.answers
        answered = sent(answers.X, self._domain.like)
        if tried and not bool(self._domain.contains(answered).any()):
            raise NoAnswerError(
                "No point of the domain has an answer yet, only others have; leave out tried."
            )
        evaluated = [result.index for result in self._ledger.results()]
        rows, candidates = self._active_points().evaluated(evaluated, answered)
        agree = surrogate.learned and self._feasibility.answers_agree()
        trusted = agree or (surrogate.is_exact and not self._feasibility.repeats_differ)
        scores = answers.y if trusted else surrogate.means_of_many(answers)
        at, safer = None, None
        if scores is not None:
            order = scores.argsort(descending=True)
            at = _first_among(answered[moved(order, answered.device)], candidates)
        if at is None:
            at, safer = self._safest(judged, candidates, beyond=not tried)
        x, index = candidates[at].clone(), None if rows is None else rows[at]
        x = x if safer is None else safer
        searched = 0 if safer is None else self._domain.dim
        found = self._predicted(x.unsqueeze(0), judged, searched)
        ends = found.mean, found.lower, found.upper, found.noise_std
        mean, lower, upper, noise_std = map(float, ends)
        # Points that are equal to the user may differ in stepped columns until they are rounded.
        same = self._domain.columns.rounded(torch.cat([x.unsqueeze(0), answered]))
        interval, here = found.interval, (same[0] == same[1:]).all(dim=1).nonzero().flatten()
        if agree and len(here):
            mean = lower = upper = self._config.sign * float(answers.y[here[0]])
            interval, noise_std = ANSWER_ITSELF, 0.0
        params = self._domain.params(x)
        return Recommendation(x, index, mean, lower, upper, interval, len(here), params, noise_std)

    def _safest(
        self, judged: Judgement, candidates: Tensor, *, beyond: bool
    ) -> tuple[int, Tensor | None]:
        """The candidate with the best worst end, and an untried point that is better, if any.

        Untried points, ``d``, are searched on boxes with learned noise, if ``beyond``, unless a
        point has failed: an untried one may fail as well, and is better by little.
        """
        surrogate = judged.surrogate
        posterior, half = judged.intervals(candidates)
        safest = posterior.mean - half if surrogate.learned else posterior.mean
        at = int(safest.argmax())
        noisy = surrogate.learned and surrogate.scaled and not surrogate.is_exact
        if not (noisy and beyond) or self._domain.is_discrete or self._feasibility.fruitless():
            return at, None
        draws = generator_for(self._config.seed, self._ledger.answer_count)
        safer = judged.safest_nearby(candidates, safest, half, self._domain, draws)
        if safer is None:
            return at, None
        # Beside a cliff the fitted kernel may promise what others that explain the answers do not.
        both = self._predicted(torch.stack([candidates[at], safer]), judged)
        worst = both.lower if self._config.sign > 0 else -both.upper
        return at, safer if bool(worst[1] >= worst[0]) else None

    @exclusive
    def predict(self, X: Points) -> Prediction:
        """The posterior of f at some points, from all answers.

        Args:
            X: points, ``n x d``, in the domain or not; or a dict of one point's values by name, a
                list of such dicts, or a ``pandas.DataFrame``. There numbers may lie outside their
                intervals and between their steps, but an Int must be whole.

        Raises:
            NoAnswerError: before any answer.
            InputError: if points or values by name do not fit the domain's columns.
        """
        X = self._domain.points_of([X] if isinstance(X, Mapping) else X, "X")
        X = self._domain.check_points(X, "X")
        return self._predicted(X, self._judged("predict from"))

    @exclusive
    def stopping_gap(self) -> float:
        """What further search can still gain: max U - max L over the active set, from all answers.

        In units of the values; inf until a learned kernel knows their scale (three answers that are
        not all equal). Once asks may leave the active set of a learned kernel, the maxima are over
        the whole domain. With a given kernel and ``RKHSConfidence`` the bounds hold uniformly over
        points and time if delays and failures do not depend on the noise; else they are a
        heuristic. The gap may be too small on a box, where the maxima are over a sample, and with a
        learned kernel and few noisy answers, because fitted kernel and noise are taken as right.

        Raises:
            NoAnswerError: before any answer.
        """
        judged = self._judged("bound what can be gained")
        if not judged.surrogate.scaled:
            return torch.inf
        candidates = self._searched_points().candidates(sent(judged.answers.X, self._domain.like))
        posterior, half = judged.intervals(candidates)
        ends = torch.stack([(posterior.mean + half).max(), (posterior.mean - half).max()])
        upper, lower = judged.surrogate.warping.inverse(ends).tolist()
        return max(upper - lower, 0.0)

    @property
    @exclusive
    def certificate(self) -> Certificate:
        """A bound on the regret so far, and on how far the recommended point is from the best.

        It uses the norm bound and noise scale of ``confidence=``, or of the
        :class:`CertifyingUCB` of an :class:`AcquisitionOptimizer`; :meth:`certify` takes others.
        With a learned kernel its ``gap`` is a heuristic, and marked as one: it takes the fitted
        kernel and noise as right, and is too small with few noisy answers.

        Raises:
            NotSupportedError: with a given kernel, if there is no norm bound, or on a box of more
                than three columns.
            NoAnswerError: with a learned kernel, before any answer.
        """
        confidence, delta = self._config.interval_confidence
        if self._config.learned:
            judged = self._judged("judge a recommendation by")
            tried = sent(judged.answers.X, self._domain.like)
            candidates = self._searched_points().candidates(tried)
            counts = len(self._ledger), self._ledger.answer_count
            fitted = self._surrogate  # its kernel and noise are taken as right
            told = fitted, fitted.data(judged.answers)
            return plausible(*told, candidates, self.recommend().x, delta, counts)
        if confidence.constants is None:
            raise NotSupportedError(
                f"A certificate rests on a norm bound and a noise scale, and {confidence!r} has "
                "none; call certify(norm_bound, noise_std), or pass "
                "confidence=RKHSConfidence(norm_bound, noise_std)."
            )
        return self.certify(*confidence.constants)

    @exclusive
    def certify(
        self,
        norm_bound: float,
        noise_std: float,
        delta: float | None = None,
        *,
        covar_module: Kernel | None = None,
        asks: int | None = None,
    ) -> Certificate:
        """The certificate under other constants; proof in ``optimizers.certificate``.

        It is ``refuted`` if the answers as they are now contradict the constants. A contradiction
        after fewer asks, which is evidence as well, is not remembered; ``asks`` reveals it.

        Certificates with the same ``noise_std`` and ``delta`` rest on the same event, which
        concerns the noise alone. So if one of several pairs of kernel and norm bound is right, the
        largest of their certificates that are not refuted holds with probability ``1 - delta``.

        Args:
            norm_bound: C, a bound on the RKHS norm of f, above 0.
            noise_std: s, the sub-Gaussian scale of the noise, above 0.
            delta: failure probability; that of :attr:`certificate` if None (half of the delta of
                a :class:`BPEDelayOptimizer`, as the bounds of its rounds have the other half).
            covar_module: the kernel, which takes points untransformed; the optimizer's if None.
            asks: how many asks to certify, from the first on, with the answers known after these
                and a ``gap`` of inf. If None, or at least the number made, all asks as of now.

        Raises:
            InputError: if a number or the kernel cannot be used.
            NotSupportedError: with a learned kernel unless one is passed; on boxes above 3 columns.
        """
        norm_bound = validation.positive(norm_bound, "norm_bound")
        constants = Constants(norm_bound, validation.positive(noise_std, "noise_std"))
        if delta is None:
            delta = self._config.interval_confidence[1] * self._config.certified_share
        delta = validation.probability(delta, "delta")
        kernel = self._config.covar_module
        if covar_module is not None:
            kernel = check_kernel(covar_module, self._domain.like)
        if not isinstance(kernel, Kernel):
            raise NotSupportedError(
                "The kernel is learned, and a norm bound needs a kernel that does not change; "
                "pass covar_module=, the kernel to which norm_bound refers."
            )
        trials: Sequence[Trial] = self._ledger.trials
        recommended = None
        if asks is not None and validation.whole(asks, "asks", 0) < len(trials):
            trials = [_as_of(trial, asks) for trial in trials[:asks]]
        elif self._ledger.results():
            recommended = self.recommend().x
        parts = self._domain, kernel, trials, recommended
        return certify(*parts, constants, delta, sign=self._config.sign)

    @exclusive
    def table(self) -> list[dict[str, Any]]:
        """Every trial and attached result as a row of plain values.

        The columns are ``trial`` (its id, None for attached results), the parameters (as
        ``"parameter NAME"`` if a column has that name), ``state`` (of the trial, or "attached"),
        ``value`` in the user's sign, ``corrected_from`` (the value before the last correction),
        ``noise_var``, ``reason`` of an end without a value, also if corrected, ``round``, and the
        times ``asked_at`` and ``told_at`` (or when it was attached), in UTC.
        """
        named = table_columns(self._domain)
        rows = []
        results: list[Trial | Attached] = [*self._ledger.trials, *self._ledger.attached]
        for result in results:
            trial = result if isinstance(result, Trial) else None
            before = trial.corrections[-1] if trial and trial.corrections else None
            values = self._domain.params(result.point)
            row: dict[str, Any] = {"trial": trial and trial.id}
            row |= {column: values[name] for name, column in named.items()}
            cells = (
                trial.state.value if trial else "attached",
                result.value,
                before.value if before else None,
                result.noise_var,
                result.reason or (before.failure if before else ""),
                trial and trial.round,
                trial and datetime.fromtimestamp(trial.asked_at, UTC),
                result.told_at and datetime.fromtimestamp(result.told_at, UTC),
            )
            rows.append(row | dict(zip(TABLE_COLUMNS[1:], cells, strict=True)))
        return rows

    def to_dataframe(self) -> pd.DataFrame:
        """:meth:`table` as a pandas data frame.

        Raises:
            MissingExtraError: without pandas.
        """
        validation.installed("pandas", "A data frame needs pandas")
        import pandas as pd  # here because it takes half a second

        columns = [TABLE_COLUMNS[0], *table_columns(self._domain).values(), *TABLE_COLUMNS[1:]]
        # Nullable integers, since attached results have neither.
        return pd.DataFrame(self.table(), columns=columns).astype(
            {"trial": "Int64", "round": "Int64"}
        )

    def __repr__(self) -> str:
        asked, planned = len(self._ledger), "" if self.horizon is None else f"/{self.horizon}"
        running = len(self._ledger.running())
        return f"{type(self).__name__}({self._domain!r}, {asked}{planned} asked, {running} running)"

    @exclusive
    def __str__(self) -> str:
        """A summary in a few lines: the goal, the trials, the best answer."""
        domain, ledger = self._domain, self._ledger
        where = "a box" if domain.count is None else f"{domain.count} points"
        goal, best_of = ("largest", max) if self.maximize else ("smallest", min)
        planned = "" if self.horizon is None else f" of {self.horizon}"
        asked = f"{len(ledger)}{planned} trials asked"
        states = Counter(trial.state.value for trial in ledger.trials)
        if states:
            asked += f" ({', '.join(f'{count} {state}' for state, count in states.items())})"
        if ledger.attached:
            asked += f", {len(ledger.attached)} attached"
        names, who = ", ".join(domain.columns.parameters), type(self).__name__
        lines = [f"{who} looks for the {goal} value on {where} of {names}", asked]
        if results := ledger.results():
            best = best_of(results, key=lambda result: result.value or 0.0)
            who = f"trial {best.id}" if isinstance(best, Trial) else "attached"
            lines.append(f"best result so far: {best.value:g} ({who}), {domain.words(best.point)}")
        return "\n".join(lines)

    @property
    def _surrogate(self) -> Surrogate:
        """The surrogate of recommendations and predictions."""
        return self._fitting.upcoming()

    def _judgement(self, answers: Answers) -> Judgement:
        surrogate, (confidence, delta) = self._surrogate, self._config.interval_confidence
        if self._config.tells_roughness:
            surrogate = with_roughness(surrogate, answers)
        return Judgement(surrogate, answers, confidence, delta)

    def _estimated_law(self) -> EmpiricalDelay | None:
        try:
            return self.delays()
        except NoAnswerError:
            return None

    def _judged(self, purpose: str) -> Judgement:
        """The judgement of f that all results give; NoAnswerError if there is none."""
        if not self._ledger.values:
            raise NoAnswerError(f"There is no answer yet to {purpose}; tell() or attach() one.")
        return self._judgement(self._config.answers(self._ledger.results()))

    def _predicted(self, X: Tensor, judged: Judgement, searched: int = 0) -> Prediction:
        surrogate, learned = judged.surrogate, self._config.covar_module
        answers, deviation = judged.answers, None
        few = surrogate.scaled and len(answers) <= MANY_ANSWERS  # with more it makes no difference
        if isinstance(learned, Learned) and few:
            deviation = partial(
                marginal_deviation,
                *(surrogate, self._domain, answers),
                warm_start=learned.warm_start,
                exact=self._config.exact,
            )
        found = judged.predict(X, self._config.sign, deviation, searched)
        if self._config.exact:  # the surrogate's noise is only a jitter
            found = replace(found, noise_std=torch.zeros_like(found.noise_std))
        unchecked = surrogate.is_exact and surrogate.scaled and not self._config.exact
        if unchecked and not self._feasibility.answers_agree():
            return replace(found, interval=f"{found.interval}; {UNCHECKED}")
        if self._bounds_are_refuted:
            return replace(found, interval=f"{found.interval}; {REFUTED}")
        return found

    @property
    def _bounds_are_refuted(self) -> bool:
        """Whether the answers contradict the constants on which confidence bounds rest."""
        return False

    def _searched_points(self) -> ActiveSet:
        """The points where the maximum is still looked for; elsewhere nothing can be gained."""
        return self._active_points()

    def _active_points(self) -> ActiveSet:
        """The points that may still be the maximiser."""
        return whole_set(self._domain, self._config.seed, self._feasibility.keys)


def _as_of(trial: Trial, asks: int) -> Trial:
    """A trial as it was after ``asks`` asks, but with later corrections of an answer known then."""
    step = trial.known_step
    if step is None or step <= asks:
        return trial
    return replace(trial, state=TrialState.RUNNING, value=None)


def _first_among(X: Tensor, candidates: Tensor) -> int | None:
    """The row in candidates (``N x d``) of the first point of ``X`` (``n x d``) found there."""
    for x in X:
        if len(at := (candidates == x).all(dim=1).nonzero()):
            return int(at[0])
    return None


def table_columns(domain: Domain) -> dict[str, str]:
    """The column of each parameter in a table of results, by the parameter's name."""
    taken = {*TABLE_COLUMNS, *domain.columns.parameters}
    found = {}
    for name in domain.columns.parameters:
        column = name.strip()  # as the header of a table is read
        if column != name or name in TABLE_COLUMNS:
            while column in taken:
                column = f"parameter {column}"
            taken.add(column)
        found[name] = column
    return found
