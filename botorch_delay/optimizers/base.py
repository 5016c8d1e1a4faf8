"""The shell around every optimizer: asks, answers, and what is kept of them."""

from __future__ import annotations

import logging
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, overload

import torch
from torch import Tensor

from botorch_delay import validation
from botorch_delay.confidence.bounds import Confidence
from botorch_delay.confidence.guarantee import Guarantee
from botorch_delay.elimination.active_set import ActiveSet
from botorch_delay.elimination.box_active_set import whole_set
from botorch_delay.exceptions import (
    FewerTrialsWarning,
    HorizonError,
    InputError,
    InputTypeError,
    NoAnswerError,
    NotSupportedError,
    TrialError,
)
from botorch_delay.gp.surrogate import Hyperparameters, Surrogate
from botorch_delay.history.empirical_delay import EmpiricalDelay
from botorch_delay.history.events import Event
from botorch_delay.history.trials import Answers, Attached, Suggestion, Trial, TrialState
from botorch_delay.optimizers.forecasts import Straggler, describe_running
from botorch_delay.optimizers.recommendation import (
    Recommendation,
    Replicates,
    best_of,
    intervals,
    replicates,
)
from botorch_delay.optimizers.run import Run, exclusive

logger = logging.getLogger(__name__)


class Optimizer(Run, ABC):
    """Ask and tell; the base of every optimizer.

    Threads may share an optimizer: each call has it to itself, and what is asked depends on the
    order of the calls alone. Copies (``copy.deepcopy``) and changes of ``notes`` are not guarded.
    Processes do not share one; they share a file, see :func:`botorch_delay.editing`.

    Args:
        config: what it is made with.
    """

    def delays(self) -> EmpiricalDelay:
        """The law of delays that the answers so far suggest, trials that are out counted in.

        Delays are in steps: the asks between a trial's own and its answer. Where no further ask is
        planned, what was answered after the last one is only known to have taken so long at least.

        Raises:
            NoAnswerError: before any answer.
        """
        ended = self._finished or len(self._ledger) == self._horizon
        return EmpiricalDelay.from_trials(self._ledger.trials, ended=ended)

    @exclusive
    def overdue(self, share: float = 0.95) -> list[Straggler]:
        """The running trials that are overdue, longest wait first; none before any answer.

        Args:
            share: a trial is overdue if it has been out so long that at least such a share of
                answers is estimated to come sooner, in (0, 1).

        Raises:
            InputError: if ``share`` is out of its range.
        """
        share = validation.probability(share, "share")
        law = self._estimated_law()
        if law is None:
            return []
        running = describe_running(self._ledger.running(), len(self._ledger), law)
        return [straggler for straggler in running if (straggler.sooner or 0.0) >= share]

    @exclusive
    def replicates(self) -> list[Replicates]:
        """Every distinct point with an answer or a running trial, the most answered first."""
        return replicates(self._ledger.trials, self._ledger.attached)

    @property
    @abstractmethod
    def guarantee(self) -> Guarantee:
        """What is claimed for this configuration and its run so far, and why not more."""

    @property
    @exclusive
    def hyperparameters(self) -> Hyperparameters:
        """What the answers say of lengthscales and noise; another study's ``warm_start``.

        Raises:
            NotSupportedError: if kernel and noise are given; pass them on as they are.
        """
        surrogate = self._judgement()[0]
        if not surrogate.learned:
            raise NotSupportedError(
                "Kernel and noise were given, not learned; pass the same covar_module and "
                "noise_var to the other study."
            )
        scales = surrogate.covar_module.lengthscale.flatten().tolist()
        return Hyperparameters(scales, surrogate.noise_var)

    @overload
    def ask(self, n: None = None) -> Trial: ...

    @overload
    def ask(self, n: int) -> list[Trial]: ...

    @exclusive
    def ask(self, n: int | None = None) -> Trial | list[Trial]:
        """The next trial, or with ``n`` a list of the next ``n``.

        ``ask(n)`` equals ``n`` single asks with no answer between them. Where one of these fails
        after the first, the list holds the trials that were asked before, and a
        :class:`~botorch_delay.exceptions.FewerTrialsWarning` says why it is shorter; the next ask
        raises the error itself, if its cause is still there.

        Raises:
            InputError: if ``n < 1``.
            HorizonError: if fewer asks are left; then nothing is asked.
            EmptyDomainError: if no feasible point is left.
        """
        count = 1 if n is None else validation.whole(n, "n", 1)
        left = None if self._horizon is None else self._horizon - len(self._ledger)
        if self._finished and left != 0:
            planned = "" if self._horizon is None else f" of {self._horizon}"
            raise HorizonError(
                f"The run was finished after {len(self._ledger)}{planned} asks; answers "
                "may still be told, and recommend() uses them."
            )
        if left is not None and count > left:
            raise HorizonError(
                f"asks requested: {count}, left: {left} of the horizon's {self._horizon}. Answers "
                "may still be told; recommend() uses all of them. To go on, make a "
                "new optimizer with its own horizon and attach(x, y) these results."
            )
        asked: list[Trial] = []
        for _ in range(count):
            try:
                asked.append(self._ask_for(self._choose()))
            except Exception as error:
                if not asked:
                    raise
                warnings.warn(
                    f"{len(asked)} of {count} trials were asked, ids {asked[0].id} to "
                    f"{asked[-1].id}, and no more: {type(error).__name__}: {error}",
                    FewerTrialsWarning,
                    stacklevel=3,  # past the lock
                )
                break
        return asked[0] if n is None else asked

    @exclusive
    def tell(self, trial: Trial | int, y: float | Tensor, noise_var: float | None = None) -> None:
        """The answer of a trial, in any order, also after the horizon.

        Args:
            trial: the trial or its id.
            y: its value, a float or a 0-dim tensor, finite.
            noise_var: noise variance of this value, if known; it must not depend on the value.

        Raises:
            TrialError: if the trial is unknown, foreign, answered already or failed.
            InputError: if ``y`` is not one finite number, or ``noise_var`` not above 0.
        """
        found = self._ledger.find(trial)
        if found.state is TrialState.COMPLETED:
            raise TrialError(
                f"Trial {found.id} has its answer already ({found.value}); a further evaluation "
                "of the point is handed over with attach(x, y)."
            )
        if found.state is TrialState.FAILED:
            raise TrialError(
                f"Trial {found.id} was marked failed; hand over a later result with attach(x, y)."
            )
        value = validation.answer(y, self._domain.like)
        if noise_var is not None and self._exact:
            raise InputError("Evaluations are exact, so that an answer has no noise_var.")
        if noise_var is not None:
            noise_var = validation.noise_variance(noise_var, "noise_var", self._domain.like)
        data = {} if noise_var is None else {"noise_var": noise_var}
        self._settle(found, "completed", value, data)

    @exclusive
    def mark_failed(self, trial: Trial | int, reason: str = "") -> None:
        """The trial crashed: no answer will come, and the point may be at fault.

        The point stays counted in sigma and is asked again at most twice, then it is taken
        out of the domain.

        Raises:
            TrialError: if the trial is unknown, foreign or not running.
        """
        found = self._running(trial, "failed")
        if not isinstance(reason, str):
            raise InputTypeError(f"reason must be a str, got {type(reason).__name__}.")
        reason = reason.encode("utf-8", "backslashreplace").decode()  # or no file could keep it
        self._settle(found, "failed", None, {"reason": reason} if reason else {})

    @exclusive
    def mark_abandoned(self, trial: Trial | int) -> None:
        """The trial will not come back, through no fault of its point.

        The point may be asked again. A late answer is still accepted and used where all data
        are used; a round of BPE-Delay does not wait for it.

        Raises:
            TrialError: if the trial is unknown, foreign or not running.
        """
        self._settle(self._running(trial, "abandoned"), "abandoned", None, {})

    @exclusive
    def attach(self, x: Tensor, y: float | Tensor) -> None:
        """Results obtained elsewhere: used where all data are used, no part of the horizon.

        Each counts as an evaluation of its own, with noise of its own. Where a guarantee rests on
        attached results (``evidence="all"`` with valid bounds), one with the same point and value
        as an earlier one is taken in with a :class:`RepeatedResultWarning`.

        Args:
            x: ``d`` or ``n x d``, in the domain or not.
            y: a float for one point, else ``n`` or ``n x 1``.

        Raises:
            InputError: if the tensors are malformed or do not fit.
        """
        if not isinstance(x, Tensor):
            raise InputTypeError(f"x must be a torch.Tensor, got {type(x).__name__}.")
        single = x.dim() == 1
        X = validation.matrix(x.unsqueeze(0) if single else x, "x")
        validation.matches(X, "x", self._domain.like)
        self._domain.check_logarithms(X, "x")
        if isinstance(y, Tensor) and y.dim() > 0:
            values = validation.column(y, "y", X)
        elif single:
            values = X.new_tensor([validation.answer(y, X)])
        else:
            raise InputTypeError(
                f"y must be a tensor of shape {len(X)} or {len(X)} x 1 for {len(X)} points, got "
                f"{type(y).__name__}."
            )
        numbers = [validation.answer(number, X) for number in values.tolist()]
        rows = self._domain.find(X).tolist()
        for point, row, value in zip(X.tolist(), rows, numbers, strict=True):
            self._happen("attached", value, {"x": point, "point": None if row < 0 else row})
        self._after_attached(len(X))

    @exclusive
    def finish(self) -> None:
        """End the run: the open round closes with what has arrived, and no ask follows.

        Where BPE-Delay's bounds are valid, a round that is cut short is not judged by its own
        answers, for when a run is ended may depend on them.
        """
        if not self._finished:
            self._close_last()
            self._happen("finished")

    @exclusive
    def recommend(self, among: str = "answered") -> Recommendation:
        """The point with the best posterior mean, from all answers.

        Args:
            among: "answered" for the answered points of the domain (attached results count; if
                nothing was answered inside, all points are compared), or "active" for every
                point that may still be the maximiser: the active set of BPE-Delay, the whole
                domain otherwise. An answered point may lie outside the active set, where all
                answers together contradict the round that took it out.

        Raises:
            InputError: if ``among`` is neither.
            NoAnswerError: before any answer.
        """
        if among not in ("answered", "active"):
            raise InputError(f"among must be 'answered' or 'active', got {among!r}.")
        data = self._all_data()
        if not len(data):
            raise NoAnswerError("There is no answer yet to base a recommendation on.")
        surrogate, confidence, delta = self._judgement()
        evidence = surrogate.data(data)
        if among == "active":
            active = self._active_points()
            rows, candidates = active.candidates()
            candidates = active.climbed(surrogate.posterior(evidence).mean, candidates)
        else:
            evaluated = [trial.index for trial in self._ledger.trials if trial.value is not None]
            evaluated += [result.index for result in self._ledger.attached]
            rows, candidates = self._active_points().evaluated(evaluated, data.X)
        best = best_of(rows, candidates, surrogate, evidence, confidence, delta, sign=self._sign)
        return replace(best, count=int((best.x == data.X).all(dim=1).sum()))

    @exclusive
    def stopping_gap(self) -> float:
        """What further search can still gain: max U - max L over the active set, from all answers.

        In units of the values. With a given kernel and ``RKHSConfidence`` the bounds are the
        self-normalised ones, valid uniformly over points and time if delays and failures do not
        depend on the noise; otherwise they are a heuristic. On a box the maxima are searched for,
        so that the gap may be too small by what the search missed.

        Raises:
            NoAnswerError: before any answer.
        """
        data = self._all_data()
        if not len(data):
            raise NoAnswerError("There is no answer yet to bound what can be gained.")
        surrogate, confidence, delta = self._judgement()
        evidence = surrogate.data(data)
        _, candidates = self._active_points().candidates(tried=data.X)
        posterior, half, _ = intervals(candidates, surrogate, evidence, confidence, delta)
        ends = torch.stack([(posterior.mean + half).max(), (posterior.mean - half).max()])
        upper, lower = surrogate.warping.inverse(ends)
        gap = upper - lower
        return max(gap.item(), 0.0)

    def _ask_for(self, choice: Suggestion) -> Trial:
        point = self._domain.like[choice.index] if choice.x is None else choice.x
        data = {"x": point.tolist(), "point": choice.index}
        data |= {"round": choice.round, "slot": choice.slot, **choice.data}
        self._apply(Event("asked", time.time(), len(self._ledger), data=data))
        return self._ledger.trials[-1]

    def _settle(self, trial: Trial, kind: str, value: float | None, data: dict[str, Any]) -> None:
        self._apply(Event(kind, time.time(), trial.id, value, data))
        self._after_settled(trial)

    @abstractmethod
    def _choose(self) -> Suggestion:
        """The next point. Rounds close here and nowhere else, but for the last."""

    def _after_settled(self, trial: Trial) -> None:
        """Decide what follows from a trial's end."""

    def _after_attached(self, count: int) -> None:
        """Say what there is to be said of the last so many attached results."""

    def _close_last(self) -> None:
        """Close what is open, at the end of the run."""

    @abstractmethod
    def _judgement(self) -> tuple[Surrogate, Confidence, float]:
        """Surrogate, confidence and delta of a recommendation."""

    def _estimated_law(self) -> EmpiricalDelay | None:
        """The law of delays, if there is an answer to estimate it from."""
        try:
            return self.delays()
        except NoAnswerError:
            return None

    def _all_data(self) -> Answers:
        """Every answer and attached result."""
        return self._data(self._ledger.results())

    def _data(self, results: Sequence[Trial | Attached]) -> Answers:
        return Answers.of(self._domain, self._sign, results)

    def _active_points(self) -> ActiveSet:
        """The points that may still be the maximiser."""
        return whole_set(self._domain, self._seed)

    def _running(self, trial: Trial | int, verb: str) -> Trial:
        found = self._ledger.find(trial)
        if found.state is not TrialState.RUNNING:
            raise TrialError(
                f"Trial {found.id} is {found.state.value}; only a running trial can be {verb}."
            )
        return found
