"""Drive an optimizer on an executor: keep its workers busy, and tell results as they come."""

from __future__ import annotations

import inspect
import logging
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, CancelledError, Executor, Future, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import nullcontext, suppress
from dataclasses import InitVar, dataclass, field
from typing import Any

from tqdm import tqdm

from botorch_delay import executors, validation
from botorch_delay.exceptions import (
    EmptyDomainError,
    HorizonError,
    InputError,
    NoAnswerError,
    RunError,
    StorageError,
)
from botorch_delay.executors import Pool, most_at_once
from botorch_delay.history import sqlite
from botorch_delay.history.trials import Trial, TrialState
from botorch_delay.optimizers.base import Optimizer
from botorch_delay.optimizers.certificate import Certificate
from botorch_delay.optimizers.loading import resume
from botorch_delay.workers import Evaluation, Objective, one_line

__all__ = ["Evaluation", "OnResult", "RunReport", "run"]

logger = logging.getLogger(__name__)

# A pool that breaks this often in a row, without a result in between, will not recover.
MAX_BREAKS_IN_A_ROW = 6
# Certificates are computed after each of the first answers, then at this growth of their number.
FIRST_LOOKS, GROWTH = 20, 1.05
# Seconds between checks for Ctrl-C and a lost cluster while nothing returns.
LOOK_EVERY = 0.1
_GOES_ON = "Everything told so far is kept; with a store, the same call goes on from there."

# GPyTorch's settings, warning filters and random generators are global. So if there are several
# runs in threads, only one at a time uses its optimizer, while the workers of all go on.
_turn = threading.RLock()

OnResult = Callable[[Optimizer, Trial], bool | None]


@dataclass
class RunReport:
    """What a call of :func:`run` did.

    Attributes:
        evaluations: those that returned, in the order in which they did.
        failed: ids of trials that failed, also of those whose worker died.
        resumed: how many trials had been asked before this call.
        abandoned: ids of trials that a dead run left running, or that were cancelled or given up.
        pending: ids of trials that were asked outside of this call and still run.
        certificate: the one that ended the run, if ``until_gap`` did.
    """

    evaluations: list[Evaluation] = field(default_factory=list)
    failed: list[int] = field(default_factory=list)
    resumed: int = 0
    abandoned: list[int] = field(default_factory=list)
    pending: list[int] = field(default_factory=list)
    certificate: Certificate | None = None

    @property
    def out_of_order(self) -> int:
        """How many evaluations finished after one that was asked later."""
        latest, count = -1, 0
        for evaluation in sorted(self.evaluations, key=lambda e: e.finished):
            count += evaluation.trial_id < latest
            latest = max(latest, evaluation.trial_id)
        return count

    @property
    def utilization(self) -> float:
        """Share of the time, from the first start to the last end, that workers were busy."""
        if not self.evaluations:
            return 0.0
        begin = min(e.started for e in self.evaluations)
        end = max(e.finished for e in self.evaluations)
        busy = sum(e.finished - e.started for e in self.evaluations)
        return busy / (most_at_once(self.evaluations) * (end - begin)) if end > begin else 1.0

    def __str__(self) -> str:
        lines = [
            f"{len(self.evaluations)} evaluations returned, {len(self.failed)} trials failed",
            f"workers: {most_at_once(self.evaluations)}, busy {self.utilization:.0%} of the time; "
            f"results out of order: {self.out_of_order}",
        ]
        if self.resumed:
            pending = f", {len(self.pending)} of them still pending" if self.pending else ""
            lines.append(f"trials from earlier runs: {self.resumed}{pending}")
        lines += [f"trials abandoned: {len(self.abandoned)}"] if self.abandoned else []
        lines += [f"ended by until_gap: {self.certificate}"] if self.certificate else []
        return "\n".join(lines)


def run(
    optimizer: Optimizer,
    objective: Objective,
    executor: Executor | Any,
    n_trials: int,
    max_in_flight: int,
    *,
    store: str | os.PathLike[str] | None = None,
    timeout: float | None = None,
    max_failures: int | None = 5,
    on_result: OnResult | None = None,
    progress: bool = True,
    until_gap: float | None = None,
) -> RunReport:
    """Ask, evaluate and tell until ``n_trials`` are asked, and those asked here are settled.

    With a :class:`~botorch_delay.Space` the objective gets the parameters, as keywords if its
    signature takes all of them by name, else as one dict; without one, a CPU tensor of shape ``d``.
    It returns a finite number; anything else, or an exception, makes a failed trial. If failures or
    Ctrl-C end the run before any success, failed trials are abandoned: they may be asked again.

    Args:
        optimizer: chooses the points.
        objective: called in the workers; for processes it must be picklable.
        executor: a ``concurrent.futures.Executor`` (for Dask ``client.get_executor()``) or a
            ``pebble.ProcessPool``; several runs may share it. A broken ``ProcessPoolExecutor`` is
            replaced; trials whose process died fail (all, if by SIGTERM), others are repeated.
        n_trials: the total, trials already asked included; extends a shorter horizon. The run ends
            earlier after ``finish()``, or once exact evaluations cover all points.
        max_in_flight: how many trials run at once.
        store: a file to which every ask and answer is committed, and from which the run resumes if
            it exists; trials that it left running are abandoned. Only one run at a time may use it.
        timeout: seconds after which the worker of an evaluation is killed and its trial fails;
            needs a ``pebble.ProcessPool``. It voids the guarantee if durations depend on values.
        max_failures: once this many evaluations have failed and none succeeded, nothing more is
            asked, and the run ends unless one in flight succeeds; None for no limit.
        on_result: called with the optimizer and each settled trial; True stops further asks. If it
            raises, it is not called again, no more is asked, and the error is raised at the end.
        progress: whether to show a progress bar.
        until_gap: stop asking once ``certificate.gap``, in units of the values, is at most this and
            stays so when all is told. With a learned kernel a heuristic, too small at first.

    Raises:
        InputError: if an argument cannot be used, or not with this executor.
        NotSupportedError: if ``until_gap`` needs a certificate that the optimizer has not.
        StorageError: if the store cannot be used, or another run uses it.
        HorizonError, EmptyDomainError: if nothing can be asked, and nothing was evaluated.
        RunError: after ``max_failures``, or if a pool keeps breaking or loses its cluster.
        KeyboardInterrupt: after Ctrl-C, once trials in flight are told; a second abandons these.
    """
    pool = executors.make_pool(executor, timeout)
    try:
        limits = n_trials, max_in_flight, max_failures, until_gap
        loop = _Loop(optimizer, objective, pool, *limits, store, on_result)
        with nullcontext() if store is None else sqlite.in_use(store, optimizer) as loop.store:
            with _turn:
                loop.resume()
            bar = executors.progress_bar(loop.n_trials, "trial", shown=progress)
            with bar as loop.bar, executors.interrupts_noted() as loop.interrupts:
                loop.work()
    finally:
        pool.release()
    return loop.report


@dataclass
class _Loop:
    """The state of one call of :func:`run`."""

    optimizer: Optimizer
    objective: InitVar[Objective]
    pool: Pool
    n_trials: int
    max_in_flight: int
    max_failures: int | None
    until_gap: float | None
    store: str | os.PathLike[str] | None
    on_result: OnResult | None
    report: RunReport = field(default_factory=RunReport)
    interrupts: list[int] = field(default_factory=list)  # one for each Ctrl-C
    in_flight: dict[Future[Evaluation], Trial] = field(default_factory=dict)
    held_back: list[tuple[Trial, str]] = field(default_factory=list)  # failures not yet told
    last_failure: str = ""  # with its traceback
    again: list[Trial] = field(default_factory=list)  # asked, and still to be handed to a worker
    failures: int = 0  # before the first success
    succeeded: bool = False  # whether an evaluation has succeeded
    stopped: bool = False  # by on_result or Ctrl-C
    mistake: BaseException | None = None  # raised by on_result or by the store
    good_enough: bool = False  # whether the gap was small enough at the last look
    last_look: int = 0  # number of answers when the certificate was last looked at
    breaks_in_a_row: int = 0
    bar: tqdm[None] = field(init=False)

    def __post_init__(self, objective: Objective) -> None:
        """Refuse arguments of :func:`run` that cannot be used."""
        validation.instance(self.optimizer, Optimizer, "optimizer", "an optimizer of this library")
        self.n_trials = validation.whole(self.n_trials, "n_trials", 1)
        self.max_in_flight = validation.whole(self.max_in_flight, "max_in_flight", 1)
        if self.max_failures is not None:
            self.max_failures = validation.whole(self.max_failures, "max_failures", 1)
        validation.instance(objective, Callable, "objective", "callable")
        self.pool.take(objective, self.optimizer.domain.columns)
        if self.until_gap is not None:
            self.until_gap = validation.positive(self.until_gap, "until_gap")
            with suppress(NoAnswerError):
                _ = self.optimizer.certificate  # raises here if there can be none
        if self.on_result is not None:
            executors.check_takes_trials(self.on_result)

    def resume(self) -> None:
        """Load the store, and abandon trials that no worker runs any more."""
        optimizer = self.optimizer
        if self.store is not None and not optimizer.trials and resume(optimizer, self.store):
            for trial in optimizer.pending:
                logger.warning("trial %d was running when the last run ended; abandoned", trial.id)
                self._abandon(trial)
        if optimizer.horizon is not None and self.n_trials > optimizer.horizon:
            claimed = optimizer.guarantee.holds
            optimizer.extend(self.n_trials)
            if claimed and not optimizer.guarantee.holds:
                logger.warning("the guarantee ends: the horizon is extended to %d", self.n_trials)
        self.report.resumed = asked = len(optimizer.trials)
        answered = sum(trial.value is not None for trial in optimizer.trials)
        self.succeeded = answered > 0
        self.good_enough = self.until_gap is not None and self.succeeded  # checked before any ask
        if answered < self.n_trials <= asked:
            logger.warning(
                "nothing is evaluated: %d trials have been asked before, %d of them with an "
                "answer; pass an n_trials above %d to go on",
                *(asked, answered, self.n_trials),
            )
        if self.store is not None:
            optimizer.save(self.store)

    def work(self) -> None:
        """Ask and collect until all trials are settled."""
        self.bar.update(sum(t.state is not TrialState.RUNNING for t in self.optimizer.trials))
        try:
            while True:
                with _turn:
                    self._fill()
                    if not self.in_flight:
                        if self._is_hopeless():
                            raise RunError(self._advice())
                        if self.interrupts and not self.succeeded:
                            break
                        self._tell_failures()
                        if not self._goes_on():
                            break
                        continue
                wait(self.in_flight, LOOK_EVERY, return_when=FIRST_COMPLETED)
                done = [future for future in self.in_flight if future.done()]
                with _turn:
                    while done:  # keep no reference: Dask would recompute a lost result
                        self._collect(done.pop(0))
                if len(self.interrupts) > 1:  # raised here, never between a change and its commit
                    raise KeyboardInterrupt
                if self.interrupts and not self.stopped:
                    self.stopped = True
                    logger.warning(
                        "interrupted: nothing more is asked, and the run ends after the %d "
                        "evaluations in flight; interrupt again to abandon them",
                        len(self.in_flight),
                    )
                if not self.pool.alive():
                    raise RunError(f"The connection to the cluster was lost. {_GOES_ON}")
            if self.mistake is not None:
                raise self.mistake
        finally:
            with _turn:
                self.on_result, self.stopped = None, True  # on_result may be what failed
                try:
                    self._collect_answers()
                finally:
                    self._let_go()

    def _let_go(self) -> None:
        """Abandon every trial that has not come back, and commit all changes."""
        for future in self.in_flight:
            future.cancel()
        for trial in [*self.in_flight.values(), *self.again, *(t for t, _ in self.held_back)]:
            self._abandon(trial)
        self.report.pending = [trial.id for trial in self.optimizer.pending]
        self._commit()

    def _fill(self) -> None:
        """Submit trials until ``max_in_flight`` are in flight, or no more are to be asked."""
        optimizer, places = self.optimizer, self.max_in_flight
        while len(self.in_flight) < places:
            if self.again and not self._is_hopeless():
                if (trial := self.again.pop(0)).state is TrialState.RUNNING:
                    self._submit(trial)
                continue
            enough = self.stopped or self.interrupts or self.good_enough or self._is_hopeless()
            if enough or len(optimizer.trials) >= self.n_trials:
                return
            try:
                trial = optimizer.ask()
            except (EmptyDomainError, HorizonError) as error:
                if self.held_back:
                    self._tell_failures()  # their points may be asked again
                    continue
                # All points are known, or finish() was called, perhaps before this call.
                ends = isinstance(error, HorizonError) or (optimizer.exact and self.succeeded)
                evaluated = self.in_flight or self.report.evaluations
                if not (self.in_flight or (ends and (evaluated or self.report.resumed))):
                    raise
                if not self.in_flight:
                    what = "the run ends early" if evaluated else "nothing is evaluated"
                    logger.warning("%s: %s", what, error)
                return
            self._submit(trial)

    def _submit(self, trial: Trial) -> None:
        """Commit a trial, and hand it to a worker."""
        if not self._commit():  # first, so that the store never has an answer without its ask
            self._abandon(trial)
            return
        self.again.append(trial)  # until a worker has it
        try:
            future = self.pool.submit(trial)
        except BrokenProcessPool as error:
            self._repair(str(error))
            return
        except Exception as error:
            raise RunError(f"The executor takes no work ({one_line(error)}). {_GOES_ON}") from error
        self.in_flight[future] = trial
        self.again.remove(trial)  # last: an interrupt must always find the trial in one of the two

    def _collect(self, future: Future[Evaluation]) -> None:
        """Take in how an evaluation ended."""
        if (trial := self.in_flight.pop(future, None)) is None:
            return  # settled already, when the pool broke
        try:
            evaluation = future.result()
        except BrokenProcessPool as error:
            self.in_flight[future] = trial
            self._repair(str(error))
        except CancelledError:  # a lost cluster, for instance: not the fault of the point
            self._abandon(trial)
            self._settled(trial)
        except Exception as error:  # from the executor: lost workers, results that do not pickle
            limit = self.pool.timeout if isinstance(error, TimeoutError) else None
            self._fail(trial, f"timed out after {limit:g} seconds" if limit else one_line(error))
        except BaseException:  # KeyboardInterrupt, raised by the objective
            if not self.interrupts:  # Ctrl-C reaches worker processes, too
                self.in_flight[future] = trial
                raise
            self._abandon(trial)
            self._settled(trial)
        else:
            self.breaks_in_a_row = 0
            self.report.evaluations.append(evaluation)
            self._tell(trial, evaluation)

    def _collect_answers(self, *, failures: bool = False) -> None:
        """Tell the answers that have come in meanwhile, with ``failures`` also the failures."""
        for future in list(self.in_flight):
            returned = future.done() and not future.cancelled() and future.exception() is None
            if returned and (failures or future.result().value is not None):
                self._collect(future)

    def _tell(self, trial: Trial, evaluation: Evaluation) -> None:
        if evaluation.value is None:
            self._fail(trial, evaluation.error, evaluation.traceback)
        elif trial.state not in (TrialState.RUNNING, TrialState.ABANDONED):
            logger.warning("trial %d was settled elsewhere; its result is not used", trial.id)
        else:
            try:
                self.optimizer.tell(trial, evaluation.value)
            except InputError as error:
                self._fail(trial, str(error))
                return
            except Warning as said:  # where warnings are errors; the value is taken all the same
                logger.warning("%s", said)
            self.succeeded = True
            self._settled(trial)
            self._tell_failures()

    def _repair(self, message: str) -> None:
        """Replace a broken pool; trials that broke it fail, others are evaluated again."""
        self._collect_answers(failures=True)
        if self.interrupts:  # Ctrl-C kills idle worker processes, which breaks the pool
            raise KeyboardInterrupt
        broke = self.pool.broken_by(list(self.in_flight.values()))
        beside = " during this trial or another" if broke is None else ""
        for future, trial in list(self.in_flight.items()):
            if broke is not None and trial not in broke:
                self.again.append(trial)
                del self.in_flight[future]
        while self.in_flight:  # one by one, as telling a failure may end the run
            self._fail(self.in_flight.popitem()[1], f"a worker process died{beside}: {message}")
        self.breaks_in_a_row += 1
        logger.warning("the process pool broke (%s); %d in a row", message, self.breaks_in_a_row)
        if self.breaks_in_a_row >= MAX_BREAKS_IN_A_ROW or not self.pool.repair():
            raise RunError(
                f"The process pool broke {self.breaks_in_a_row} times without a result in between: "
                f"{message} The objective may crash Python or run out of memory. {_GOES_ON}"
            )

    def _fail(self, trial: Trial, reason: str, calls: str = "") -> None:
        """Tell a failure, or hold it back until an evaluation has succeeded."""
        logger.info("trial %d: %s", trial.id, calls or reason)
        if self.succeeded or self.max_failures is None or trial.state is not TrialState.RUNNING:
            self._tell_failure(trial, reason)
            return
        self.held_back.append((trial, reason))
        self.failures += 1
        self.last_failure = f"trial {trial.id}:\n{calls or reason}"
        if self._is_hopeless() and self.in_flight:
            logger.warning(
                "%d evaluations have failed and none has succeeded: nothing more is asked, and the "
                "run ends unless an evaluation in flight succeeds (%d left)",
                *(self.failures, len(self.in_flight)),
            )

    def _is_hopeless(self) -> bool:
        """Whether the objective seems to be wrong, rather than some points."""
        limit = self.max_failures
        return limit is not None and not self.succeeded and self.failures >= limit

    def _advice(self) -> str:
        total = self.n_trials + len(self.held_back) + len(self.again)
        return (
            f"{self.failures} evaluations have failed and none has succeeded; the last was "
            f"{self.last_failure}\nFix the objective and repeat the call with n_trials={total}, "
            "as trials without an answer count, too. Or pass max_failures=None to go on."
        )

    def _tell_failures(self) -> None:
        while self.held_back:
            self._tell_failure(*self.held_back.pop(0))

    def _tell_failure(self, trial: Trial, reason: str) -> None:
        reason = reason.encode("utf-8", "backslashreplace").decode()  # or logging it would fail
        if trial.state is not TrialState.RUNNING:  # a callback has abandoned it, for instance
            logger.warning("trial %d, settled elsewhere, failed: %s", trial.id, reason)
            return
        logger.warning("trial %d failed: %s", trial.id, reason)
        self.optimizer.mark_failed(trial, reason)
        self.report.failed.append(trial.id)
        self._settled(trial)

    def _abandon(self, trial: Trial) -> None:
        if trial.state is TrialState.RUNNING:
            self.optimizer.mark_abandoned(trial)
            self.report.abandoned.append(trial.id)

    def _settled(self, trial: Trial) -> None:
        self._commit()
        shown = {"in flight": len(self.in_flight), "failed": len(self.report.failed)}
        self.bar.set_postfix(shown, refresh=False)
        self.bar.update()
        if self.until_gap is not None and not self.good_enough:
            answers = sum(t.state is TrialState.COMPLETED for t in self.optimizer.trials)
            if answers > (last := self.last_look) and not FIRST_LOOKS < answers < GROWTH * last:
                self.last_look = answers
                self.good_enough = self.optimizer.certificate.gap <= self.until_gap
        if self.on_result is not None:
            try:
                said = self.on_result(self.optimizer, trial)
                self.stopped |= bool(said) and not inspect.iscoroutine(said)
            except (Exception, SystemExit) as error:
                logger.exception("on_result raised at trial %d; running ones still count", trial.id)
                self.on_result, self.stopped, self.mistake = None, True, error

    def _goes_on(self) -> bool:
        """Whether asking continues after all, because the last answers have widened the gap."""
        if self.until_gap is None or not self.good_enough:
            return False
        self.good_enough = (certificate := self.optimizer.certificate).gap <= self.until_gap
        if self.good_enough:
            self.report.certificate = certificate
        return not (self.good_enough or self.stopped or len(self.optimizer.trials) >= self.n_trials)

    def _commit(self) -> bool:
        """Save what is new; False on failure: the run then ends once trials in flight are told."""
        if self.store is None:
            return True
        patience = time.monotonic() + sqlite.LONGEST_LOCK
        while True:
            try:
                self.optimizer.save(self.store)
                return True
            except StorageError as error:
                ends = self.stopped or self.interrupts or time.monotonic() > patience
                if sqlite.is_locked(error) and not ends:
                    logger.warning("the run waits: %s", error)
                    continue
                if self.mistake is None:
                    logger.error("nothing more is asked, as the store cannot be written: %s", error)
                self.stopped, self.mistake = True, self.mistake or error
                return False
