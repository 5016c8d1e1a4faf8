"""Asking and telling, the same for every optimizer."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Self, SupportsFloat, overload

import numpy as np
import torch
from torch import Tensor

from botorch_delay import validation
from botorch_delay.domains.domain import Points
from botorch_delay.domains.values import Series, have_same_index, is_number
from botorch_delay.exceptions import (
    BotorchDelayError,
    FewerTrialsWarning,
    HorizonError,
    InputError,
    InputTypeError,
    OutlierWarning,
    RepeatedResultWarning,
    TrialError,
    warn,
)
from botorch_delay.history.trials import (
    ENOUGH_ANSWERS,
    Attached,
    Suggestion,
    Trial,
    TrialState,
)
from botorch_delay.optimizers.reading import ReadableRun
from botorch_delay.optimizers.run import exclusive

Numbers = float | Tensor | np.ndarray | Sequence[float] | Series  # of one point, or of each
ALIKE = 1e-6  # exact answers that differ by less, as a share of the range of values, are alike
MAX_REASON = 10_000  # characters; the rest is cut, since files keep all reasons


class Optimizer(ReadableRun):
    """Ask and tell; the base of every optimizer.

    Threads may share an optimizer: calls are serialised, and results depend only on their order.
    Only ``copy.deepcopy`` and changes of ``notes`` are not guarded. Processes share a file instead,
    see :func:`botorch_delay.editing`.
    """

    def __new__(cls, *_: Any, **options: Any) -> Self:
        """Refuse other libraries' names for ``maximize`` with an error that explains it."""
        if unknown := {"minimize", "direction", "minimise", "maximise"} & options.keys():
            raise InputTypeError(
                f"{cls.__name__} has no option {min(unknown)!r}; pass maximize=False to minimise. "
                "Values are maximised by default."
            )
        return super().__new__(cls)

    @overload
    def ask(self, n: None = None) -> Trial: ...

    @overload
    def ask(self, n: int) -> list[Trial]: ...

    @exclusive
    def ask(self, n: int | None = None) -> Trial | list[Trial]:
        """The next trial, or with ``n`` a list of the next ``n``.

        ``ask(n)`` equals ``n`` single asks with no answer between them. If an ask after the first
        fails, the list holds the trials made before it, and a
        :class:`~botorch_delay.exceptions.FewerTrialsWarning` is issued.

        Raises:
            HorizonError: if fewer asks are left, or the run is finished; then nothing is asked.
            EmptyDomainError: if no feasible point is left.
        """
        count = 1 if n is None else validation.whole(n, "n", 1)
        horizon = self._config.horizon
        left = None if horizon is None else horizon - len(self._ledger)
        if self._finished and left != 0:
            planned = f" of {horizon}" if horizon else ""
            raise HorizonError(
                f"The run was finished after {len(self._ledger)}{planned} asks; answers may still "
                "be told, and recommend() uses them. To go on as planned, call extend(); for a "
                "study in a file: with editing(file) as opt: opt.extend()."
            )
        if left is not None and count > left:
            raise HorizonError(
                f"asks requested: {count}, left: {left} of the horizon's {horizon}. Answers "
                "may still be told; recommend() uses all of them. To go on, extend the horizon "
                f"with extend(horizon), to {len(self._ledger) + count} at least."
            )
        asked: list[Trial] = []
        for _ in range(count):
            try:
                choice = self._choose()
                row, point = None, choice.place
                if not isinstance(point, Tensor):
                    row, point = point, self._domain.on_cpu[point]
                if self._domain.columns.stepped:  # as evaluated; a repeat is then the same point
                    point = self._domain.columns.rounded(point.unsqueeze(0)).squeeze(0)
                data = {"x": point.tolist(), "point": row}
                data |= {"round": choice.round, "slot": choice.slot, **choice.data}
                self._happen("asked", data=data, trial=len(self._ledger))
                asked.append(self._ledger.trials[-1])
            except Exception as error:
                if not asked:
                    raise
                kind = "" if isinstance(error, BotorchDelayError) else f"{type(error).__name__}: "
                warn(
                    f"{len(asked)} of {count} trials were asked, ids {asked[0].id} to "
                    f"{asked[-1].id}, and no more: {kind}{error}",
                    FewerTrialsWarning,
                )
                break
        return asked[0] if n is None else asked

    @exclusive
    def tell(
        self, trial: Trial | int, y: SupportsFloat, noise_var: SupportsFloat | None = None
    ) -> None:
        """Report the answer of a trial; answers may come in any order, also after the horizon.

        An answer that comes after its round has closed, or after its trial was abandoned, serves no
        design point, but rules, recommendations and certificates use it. For a failed trial use
        :meth:`correct`. An answer far from all others is accepted with an :class:`OutlierWarning`.

        Args:
            trial: the trial or its id.
            y: the observed value, a finite float or 0-dim tensor.
            noise_var: variance of this value's noise, if known, in squared units of the values; it
                must not depend on the value.

        Raises:
            TrialError: if the trial is unknown, foreign, answered already or failed.
            InputError: if ``y`` is not a finite number, or ``noise_var`` is not above 0 or is given
                with ``exact=True``.
        """
        found = self._ledger.find(trial)
        if found.state is TrialState.COMPLETED:
            raise TrialError(
                f"Trial {found.id} has its answer already ({found.value}); if that is wrong, call "
                f"correct({found.id}, value); a further evaluation of the point is handed over "
                "with attach(x, y)."
            )
        if found.state is TrialState.FAILED:
            raise TrialError(
                f"Trial {found.id} was marked failed; if it has not, call correct({found.id}, "
                "value); a later evaluation of its point is handed over with attach(x, y)."
            )
        value = validation.answer(y, self._domain.like)
        self._settle(found, "completed", value, self._known_noise(noise_var))

    @exclusive
    def correct(
        self, trial: Trial | int, y: SupportsFloat | None, reason: str | BaseException = ""
    ) -> None:
        """Replace a wrong answer or failure; the old one is kept in ``trial.corrections``.

        A noise variance told with the old answer is kept.

        Everything computed from now on uses the new value, ``certificate`` included. Decisions
        already made stay, such as what a round eliminated. So ``guarantee`` ends for good if a
        round was closed, or an ask priced against a regret budget, on the wrong report; otherwise
        it continues, with an additional assumption that it lists.

        Args:
            trial: an answered or failed trial, or its id.
            y: the value that the evaluation gave, a finite number; None if it failed.
            reason: why the trial is corrected; kept with it.

        Raises:
            TrialError: if the trial is unknown, foreign, running, abandoned (use ``tell``), or
                failed already with ``y`` None.
            InputError: if ``y`` is not a finite number, or ``reason`` is no text or exception.
        """
        found, said = self._ledger.find(trial), _said(reason)
        hint = "Pass None if the evaluation gave no usable value."
        answer = None
        if y is not None:
            answer = validation.answer(y, self._domain.like, hint=hint)
        if found.state in (TrialState.RUNNING, TrialState.ABANDONED):
            raise TrialError(
                f"Trial {found.id} is {found.state.value}, with nothing to correct; "
                f"tell({found.id}, value) takes its answer."
            )
        if answer is None and found.state is TrialState.FAILED:
            raise TrialError(
                f"Trial {found.id} has failed already; a correction needs the value that it has."
            )
        self._settle(found, "corrected", answer, said)

    @exclusive
    def mark_failed(self, trial: Trial | int, reason: str | BaseException = "") -> None:
        """The trial crashed, perhaps because of its point: no answer will come.

        The point still counts in sigma, and may be asked again at most twice: after three failures
        with no answer in between it is taken out of the domain. The reason, a text or the exception
        itself, is kept.

        Raises:
            TrialError: if the trial is unknown, foreign or not running.
            InputError: if ``reason`` is no text or exception.
        """
        self._settle(self._running(trial, "failed"), "failed", None, _said(reason))

    @exclusive
    def mark_abandoned(self, trial: Trial | int, reason: str | BaseException = "") -> None:
        """The trial will not come back, through no fault of its point, which may be asked again.

        A late answer is still accepted, and used wherever all data are used. A round of BPE-Delay
        does not wait for this trial. Where the regret bound needs its answer (valid bounds, noise,
        and neither a delay law nor ``straggler_factor``), the point is asked again, at most twice,
        and the round waits for the repeat. The reason is kept as by :meth:`mark_failed`.

        Raises:
            TrialError: if the trial is unknown, foreign or not running.
            InputError: if ``reason`` is no text or exception.
        """
        self._settle(self._running(trial, "abandoned"), "abandoned", None, _said(reason))

    @exclusive
    def attach(self, x: Points, y: Numbers, noise_var: Numbers | None = None) -> None:
        """Add results obtained elsewhere: used wherever all data are, not counted in the horizon.

        Each counts as a separate evaluation with its own noise. Where a guarantee rests on them
        (``evidence="all"`` with valid bounds), repeating both point and value of an earlier result
        issues a :class:`RepeatedResultWarning`; a point given by name that could not be asked, an
        :class:`OutsideWarning`.

        Args:
            x: points, ``d`` or ``n x d``, as a tensor or array, in the domain or not; or the values
                of one point as a dict by name, a list of such dicts, or a ``pandas.DataFrame``.
                There numbers may lie outside their intervals and between their steps, but an Int
                must be whole.
            y: a number for one point, else ``n`` or ``n x 1``, a list or a ``pandas.Series``, in
                the order of the points.
            noise_var: the noise variance of each, if known, as in :meth:`tell`: a number for one
                point or for all, or as ``y``, with NaN where unknown.

        Raises:
            InputError: if shapes, types, names or indices do not fit, a number is not finite, or
                one is not above 0 where it must be; or if ``noise_var`` is given with
                ``exact=True``. Nothing is added then.
        """
        for name, column in (("y", y), ("noise_var", noise_var)):
            if not have_same_index(x, column):
                raise InputError(
                    f"x and {name} must have the same index, in the same order; pass "
                    f"{name}.loc[x.index], or {name}.to_numpy() to pair them row by row."
                )
        by_name = not isinstance(x, Tensor | np.ndarray)
        x = self._domain.points_of(x, "x")
        single = x.dim() == 1
        X = self._domain.check_points(x.unsqueeze(0) if single else x, "x")
        hint, count = "Leave out a result without a usable value.", None if single else len(X)
        numbers = [
            validation.answer(value, X, "y" if single else f"y[{row}]", hint=hint)
            for row, value in enumerate(_listed(y, count, "y"))
        ]
        for_all = noise_var is None or is_number(noise_var)
        variances = [noise_var] * len(X) if for_all else _listed(noise_var, count, "noise_var")
        noises = [self._known_noise(None if var != var else var) for var in variances]
        found = self._domain.find(X)
        rows, known = found.tolist(), len(self._ledger.values)
        for point, row, value, noise in zip(X.tolist(), rows, numbers, noises, strict=True):
            self._happen("attached", value, {"x": point, "point": None if row < 0 else row} | noise)
        if by_name:  # perhaps mistyped
            for point in X:
                self._domain.warn_outside(point)
        else:
            inside = self._domain.contains(X) if self._domain.count is None else found >= 0
            self._domain.warn_rounded(X[~inside])
        self._warn_doubtful(self._ledger.attached[-len(X) :], known)
        repeats = self._ledger.repeated(len(X)) if self._config.proves_from_all else 0
        if repeats:
            warn(
                f"{repeats} of the attached results were attached before, with the same point and "
                "value. Each counts as a separate evaluation, and bounds rely on that; attach an "
                "evaluation once, and take a repeated one back with detach(id).",
                RepeatedResultWarning,
            )

    def _known_noise(self, noise_var: Any) -> dict[str, float]:
        """The noise variance of an answer, if known, as data of its event."""
        if noise_var is None:
            return {}
        if self.exact:
            raise InputError("Evaluations are exact, without noise; leave out noise_var.")
        return {"noise_var": validation.noise_variance(noise_var, "noise_var", self._domain.like)}

    @exclusive
    def detach(self, result: Attached | int, reason: str | BaseException = "") -> None:
        """Take back an attached result; it is kept in ``detached``.

        As with :meth:`correct`, decisions already made stay: the design of the open round still
        counts its point, and ``guarantee`` ends if a round whose bounds use attached results
        (``evidence="all"``, exact evaluations) was closed with it.

        Args:
            result: one of ``attached``, or its id.
            reason: why it is taken back; kept with it.

        Raises:
            InputError: if there is no such result, if it was taken back already, or if ``reason``
                is no text or exception.
        """
        meant = result if isinstance(result, Attached) else None
        number = meant.id if meant else validation.whole(result, "result", 0)
        known = [own for own in self._ledger.attached if own.id == number]
        if not known or (meant and not torch.equal(known[0].point, meant.point)):
            ids = ", ".join(str(own.id) for own in self._ledger.attached[:20]) or "none"
            raise InputError(f"There is no attached result {number} here; known ids: {ids}.")
        self._happen("detached", data={"id": number, **_said(reason)})

    @exclusive
    def extend(self, horizon: int | None = None) -> None:
        """Plan more asks; a run that has reached its end, or was finished, goes on.

        An open round keeps its length; later ones follow from the new horizon. The regret bound is
        proved for a horizon known from the first ask, so that an extension ends ``guarantee`` for
        good; what it claimed covers the asks until then. ``certificate`` continues to hold.

        Args:
            horizon: T, the total number of asks planned, including those already made; None, after
                :meth:`finish`, to resume with the old horizon.

        Raises:
            InputError: if ``horizon`` is not above the present one, or no end is planned, unless a
                run that was finished early resumes as it was planned.
        """
        before = self.horizon
        cut_short = self._finished and (before is None or len(self._ledger) < before)
        if horizon is None and not cut_short:
            raise InputError(
                "extend() without a horizon resumes a run that was finished early, and this one "
                "was not; pass a larger horizon to plan more asks."
            )
        if horizon is not None:
            if before is None:
                raise InputError(
                    "No end is planned, so there is nothing to extend; just ask on, after "
                    "extend() without a horizon if the run was finished."
                )
            least = before if cut_short else before + 1
            if validation.whole(horizon, "horizon", 1) < least:
                raise InputError(
                    f"A horizon can only be extended: expected at least {least}, got {horizon}."
                )
        planned = before if horizon is None else int(horizon)
        self._happen("extended", data={"horizon": planned})

    @exclusive
    def finish(self) -> None:
        """End the run: the open round closes with the answers so far, and no ask follows.

        With valid bounds, a round that is cut short eliminates nothing by its own answers, since
        the decision to end the run may depend on them. With a delay law, after the last ask, it
        does, as in Algorithm 1; then the moment of this call must not depend on values.
        """
        if not self._finished:
            self._close_last()
            self._happen("finished")

    def _settle(self, trial: Trial, kind: str, value: float | None, data: dict[str, Any]) -> None:
        known = len(self._ledger.values)
        self._happen(kind, value, data, trial.id)
        self._decide_after_settled(trial)
        self._warn_doubtful([trial], known)

    def _warn_doubtful(self, new: Sequence[Trial | Attached], known: int) -> None:
        """Warn of new results that others speak against; ``known`` results had come before them."""
        if self.exact:
            for result in new:
                self._warn_different(result)
        values = self._ledger.values
        if known <= ENOUGH_ANSWERS < len(values):
            # Earlier ones had too few others to compare with; an error in the best does most harm.
            best = values[-1 if self._config.sign > 0 else 0]
            added = {id(result) for result in new}
            first = [r for r in self._ledger.results() if r.value == best and id(r) not in added]
            new = [*new, *first]
        for result in new:
            if result.value is None or result.value not in (values[0], values[-1]):
                continue  # only an extreme value can be far from all others
            far = self._ledger.far(result.value, than=result)
            what, remedy = f"answer of trial {result.id}", f"correct({result.id}, value)"
            if isinstance(result, Attached):
                what, remedy = f"attached result {result.id}", f"detach({result.id})"
            if far:
                warn(
                    f"The {what}, {result.value:g}, {far}. It was accepted; if it is a mistake, "
                    f"call {remedy}.",
                    OutlierWarning,
                )

    def _warn_different(self, result: Trial | Attached) -> None:
        """Warn if an exact answer is not the one that its point gave before."""
        value, values = result.value, self._ledger.values
        first = self._feasibility.first_answer(result)
        if value is None or first is None:
            return
        if abs(value - first) > ALIKE * (values[-1] - values[0]):
            warn(
                f"The same point gave {first:g} and {value:g}, though evaluations are said to be "
                "exact (exact=True). Their average is taken as exact: take the wrong one back with "
                "correct or detach, or leave out exact if evaluations are noisy.",
                OutlierWarning,
            )

    @abstractmethod
    def _choose(self) -> Suggestion:
        """The next point. Rounds close only here, except the last one."""

    def _decide_after_settled(self, trial: Trial) -> None:
        """Decide what follows from a trial's end, or from its correction."""

    def _close_last(self) -> None:
        """Close the open round, if there is one, at the end of the run."""

    def _running(self, trial: Trial | int, verb: str) -> Trial:
        found = self._ledger.find(trial)
        if found.state is not TrialState.RUNNING:
            state, hint = found.state, ""
            if state is TrialState.COMPLETED:
                hint = (
                    f" A wrong answer is replaced by correct({found.id}, value), or by "
                    f"correct({found.id}, None) if the evaluation failed."
                )
            raise TrialError(
                f"Trial {found.id} is {state.value}; only a running trial can be {verb}.{hint}"
            )
        return found


def _said(reason: str | BaseException) -> dict[str, str]:
    """A reason as event data, in a form that any file can keep; empty without a reason."""
    if isinstance(reason, BaseException):
        reason = f"{type(reason).__name__}: {reason}"
    validation.instance(reason, str, "reason", "a str or an exception")
    reason = reason[:MAX_REASON].encode("utf-8", "backslashreplace").decode()
    return {"reason": reason} if reason else {}


def _listed(y: Any, count: int | None, name: str) -> list[Any]:
    """The values of ``count`` points as a list; with None of one, maybe given as a bare number."""
    if (to_numpy := getattr(y, "to_numpy", None)) is not None:  # a pandas object
        y = to_numpy()
    if isinstance(y, Tensor):
        validation.tensor(y, name)
    expected = count or 1
    if isinstance(y, np.ndarray | Tensor) and y.ndim:
        y = y.ravel() if y.shape == (expected, 1) else y
        y = [*y] if isinstance(y, np.ndarray) and y.dtype.kind in "mM" else y.tolist()  # mM: times
    listed = isinstance(y, Sequence) and not isinstance(y, str | bytes | bytearray)
    if listed and (isinstance(y, list | tuple) or count is not None):
        if len(y) != expected:
            shape = f"{expected} or {expected} x 1"
            raise InputError(f"{name} must have shape {shape}, got {len(y)} values.")
        return [*y]
    if count is None:
        return [y]
    raise InputTypeError(
        f"{name} must be a list, an array or a tensor of {count} values for {count} points, got "
        f"{type(y).__name__}."
    )
