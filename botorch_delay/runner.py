"""Drive an optimizer on an executor: keep its workers busy, tell results as they come."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, CancelledError, Executor, Future, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from typing import Any

from tqdm import tqdm

from botorch_delay import validation
from botorch_delay.exceptions import InputError, InputTypeError, RunError, StorageError
from botorch_delay.history import sqlite
from botorch_delay.history.trials import Trial, TrialState
from botorch_delay.optimizers.base import Optimizer
from botorch_delay.workers import Interrupts, Objective, Outcome, Pool, make_pool, words

__all__ = ["Callback", "Evaluation", "RunReport", "run"]

logger = logging.getLogger(__name__)

# A pool that breaks this often without one result in between will not recover by itself.
MAX_BREAKS_IN_A_ROW = 5

# Settings of GPyTorch, filters of warnings and random generators are the whole program's: of
# several runs in threads one at a time works on its optimizer, while their workers go on.
_turn = threading.RLock()

Callback = Callable[[Optimizer, Trial], None]


@dataclass(frozen=True)
class Evaluation:
    """One evaluation that returned: when and where it ran.

    Attributes:
        trial_id: the trial.
        worker: process and thread that ran it.
        started: seconds since the epoch.
        finished: seconds since the epoch.
        error: why it failed, empty if it did not.
        order: position among all evaluations by the time of their return, from 0.
    """

    trial_id: int
    worker: str
    started: float
    finished: float
    error: str
    order: int


@dataclass
class RunReport:
    """What a call of :func:`run` did.

    Attributes:
        evaluations: those that returned, in the order of their return.
        resumed: trials that were in the store already.
        abandoned: ids of trials that were given up: running when an earlier run died, cancelled,
            or late and still out when everything else was done.
        late: ids of trials that ran for longer than ``timeout`` and could not be stopped.
        started: when the call began, seconds since the epoch.
        finished: when it ended.
    """

    evaluations: list[Evaluation] = field(default_factory=list)
    resumed: int = 0
    abandoned: list[int] = field(default_factory=list)
    late: list[int] = field(default_factory=list)
    started: float = field(default_factory=time.time)
    finished: float = 0.0

    @property
    def out_of_order(self) -> int:
        """How many evaluations ended after one that was asked later."""
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
        workers = len({e.worker for e in self.evaluations})
        busy = sum(e.finished - e.started for e in self.evaluations)
        return busy / (workers * (end - begin)) if end > begin else 1.0


def run(
    optimizer: Optimizer,
    objective: Objective,
    executor: Executor | Any,
    n_trials: int,
    max_in_flight: int,
    store: str | os.PathLike[str] | None = None,
    timeout: float | None = None,
    callbacks: Iterable[Callback] = (),
    progress: bool = True,
) -> RunReport:
    """Ask, evaluate and tell until ``n_trials`` trials have been asked and settled.

    The objective gets the point as a CPU tensor of shape ``d`` and returns one finite number.
    What it raises, and anything else that it returns, becomes a failed trial with its message.
    Failed points are asked again as the optimizer decides, within ``n_trials``. Several
    optimizers can share one executor: call this in a thread for each.

    Args:
        optimizer: whose points are asked.
        objective: called in the workers; for processes it must be picklable.
        executor: any ``concurrent.futures.Executor``, that of a Dask client
            (``client.get_executor()``) among them, or a ``pebble.ProcessPool``. A broken
            ``ProcessPoolExecutor`` is replaced by a like one, which this call shuts down.
        n_trials: how many trials the optimizer shall have in the end, those already asked
            included; at most its horizon.
        max_in_flight: how many trials run at once.
        store: a file in which every ask and every answer is committed as it happens. If it
            exists the run goes on from there: trials that were running are abandoned. Trials
            that were asked by hand before are left alone, and count.
        timeout: seconds that an evaluation may take, counted from when it runs. A Pebble pool
            kills it, and the trial has failed. Another executor cannot: the trial is reported
            and its place counts as taken until it returns, when its answer is told. The run
            does not wait for late trials at its end; it abandons them. Where durations depend on
            the values a timeout voids the guarantee of BPE-Delay's rounds.
        callbacks: called with the optimizer and each trial that is settled.
        progress: whether to show a progress bar.

    Returns:
        When and where the evaluations ran.

    Raises:
        InputError: if an argument is out of its range, or the objective is not picklable.
        StorageError: if the store cannot be used.
        RunError: if a pool keeps breaking, takes no work, or loses its cluster.
        KeyboardInterrupt: on Ctrl-C, after waiting trials were cancelled and every open one
            abandoned and committed.
    """
    n_trials = validation.whole(n_trials, "n_trials", 1)
    if optimizer.horizon is not None and n_trials > optimizer.horizon:
        raise InputError(
            f"n_trials must be at most the optimizer's horizon of {optimizer.horizon}, got "
            f"{n_trials}."
        )
    max_in_flight = validation.whole(max_in_flight, "max_in_flight", 1)
    if timeout is not None:
        timeout = validation.positive(timeout, "timeout")
    if not callable(objective):
        raise InputTypeError(f"objective must be callable, got {type(objective).__name__}.")
    callbacks = tuple(callbacks) if isinstance(callbacks, Iterable) else (callbacks,)
    if not all(map(callable, callbacks)):
        raise InputTypeError("callbacks must be functions of the optimizer and a trial.")
    pool = make_pool(executor, timeout)
    pool.check(objective)
    loop = _Loop(optimizer, objective, pool, n_trials, max_in_flight, store, timeout, callbacks)
    with _turn:
        loop.resume()
    bar = _Bar(optimizer, n_trials, show=progress)
    try:
        with loop.interrupts:
            loop.play(bar)
    except BaseException:
        with _turn:
            loop.give_up()
        raise
    finally:
        bar.close()
        pool.release()
        loop.report.finished = time.time()
    return loop.report


class _Loop:
    """The state of one call of :func:`run`."""

    def __init__(
        self,
        optimizer: Optimizer,
        objective: Objective,
        pool: Pool,
        n_trials: int,
        max_in_flight: int,
        store: str | os.PathLike[str] | None,
        timeout: float | None,
        callbacks: Iterable[Callback],
    ) -> None:
        self.report = RunReport()
        self.interrupts = Interrupts()
        self._optimizer = optimizer
        self._objective = objective
        self._pool = pool
        self._n_trials = n_trials
        self._max_in_flight = max_in_flight
        self._store = store
        self._timeout = timeout
        self._callbacks = tuple(callbacks)
        self._in_flight: dict[Future[Outcome], Trial] = {}
        self._deadlines: dict[Future[Outcome], float] = {}
        self._late: set[Future[Outcome]] = set()
        self._breaks = 0

    def resume(self) -> None:
        """Go on from the store, and give up what no worker runs any more."""
        optimizer = self._optimizer
        if self._store is not None and not optimizer.trials and sqlite.holds_study(self._store):
            if optimizer.attached or optimizer.notes:
                raise StorageError(
                    f"{os.fspath(self._store)} holds a study, which would replace what was "
                    "attached or noted before; do that after botorch_delay.load, or in callbacks."
                )
            optimizer.load_state_dict(sqlite.read(self._store))
            for trial in optimizer.pending:
                logger.warning("trial %d was running when the last run ended; abandoned", trial.id)
                self._abandon(trial)
        self.report.resumed = len(optimizer.trials)
        self._commit()

    def play(self, bar: _Bar) -> None:
        """Until all trials are asked, and all of them settled or late."""
        bar.update()
        while True:
            with _turn:
                self._fill()
            if len(self._optimizer.trials) >= self._n_trials and len(self._late) == len(
                self._in_flight
            ):
                break
            with self.interrupts.allowed():
                done, _ = wait(self._in_flight, self._patience(), return_when=FIRST_COMPLETED)
            with _turn:
                for future in sorted(done, key=lambda future: self._in_flight[future].id):
                    if future in self._in_flight:  # else it was settled when its pool broke
                        self._collect(future)
            if not self._pool.alive():
                raise RunError(
                    "The connection to the cluster was lost. Everything told so far is kept; with "
                    "a store, the same call goes on from there."
                )
            self._report_late()
            bar.update()
        with _turn:
            for future in list(self._in_flight):  # late, and not waited for any longer
                self._abandon(self._forget(future))
            self._commit()

    def give_up(self) -> None:
        """Cancel what waits, abandon what is open, commit."""
        for future in list(self._in_flight):
            future.cancel()
            self._abandon(self._forget(future))
        try:
            self._commit()
        except StorageError as error:  # what led here may be this very failure
            logger.warning("the last state could not be stored: %s", error)

    def _fill(self) -> None:
        optimizer = self._optimizer
        while len(self._in_flight) < self._max_in_flight and len(optimizer.trials) < self._n_trials:
            trial = optimizer.ask()
            try:
                self._commit()  # before a worker knows: an answer in the store always has its ask
                future = self._pool.submit(self._objective, trial)
            except BrokenProcessPool as error:
                self._fail(trial, str(error))
                self._repair(str(error))
                continue
            except BaseException as error:
                self._abandon(trial)  # no worker has it
                if isinstance(error, StorageError) or not isinstance(error, Exception):
                    raise
                raise RunError(
                    f"The executor takes no work ({type(error).__name__}: {error}). Everything "
                    "told so far is kept; with a store, the same call goes on from there."
                ) from error
            self._in_flight[future] = trial

    def _patience(self) -> float | None:
        """Seconds until the next evaluation may be late, or have begun, or the pool be gone."""
        if self._timeout is None or self._pool.kills:
            return self._pool.look_every
        now = time.monotonic()
        for future in self._in_flight:
            if self._pool.running(future) and future not in self._late:
                self._deadlines.setdefault(future, now + self._timeout)
        waiting = len(self._in_flight) > len(self._deadlines) + len(self._late)
        next_look = self._timeout / 10.0 if waiting else self._pool.look_every or float("inf")
        patience = min([next_look, *(d - now for d in self._deadlines.values())])
        return None if patience == float("inf") else max(patience, 0.0)

    def _collect(self, future: Future[Outcome]) -> None:
        trial = self._forget(future)
        try:
            outcome = future.result()
        except BrokenProcessPool as error:
            self._fail(trial, f"a worker process died: {error}")
            self._repair(str(error))
            return
        except CancelledError:  # a cluster that was lost, for instance: no fault of the point
            self._abandon(trial)
            self._settled(trial)
            return
        except Exception as error:  # the executor's own: lost workers, results that do not pickle
            killed = isinstance(error, TimeoutError) and self._pool.kills
            if killed and self._timeout is not None:
                self._fail(trial, f"timed out after {self._timeout:g} seconds")
            else:
                self._fail(trial, words(error))
            return
        self._breaks = 0
        evaluation = Evaluation(
            trial_id=trial.id,
            worker=outcome.worker,
            started=outcome.started,
            finished=outcome.finished,
            error=outcome.error,
            order=len(self.report.evaluations),
        )
        self.report.evaluations.append(evaluation)
        if outcome.value is None:
            self._fail(trial, outcome.error)
            return
        if trial.state not in (TrialState.RUNNING, TrialState.ABANDONED):
            logger.warning("trial %d was settled elsewhere; its result is not used", trial.id)
            return
        try:
            self._optimizer.tell(trial, outcome.value)
        except InputError as error:
            self._fail(trial, str(error))
            return
        self._settled(trial)

    def _repair(self, message: str) -> None:
        """Replace a broken pool; what was in flight there has failed, unless it was done."""
        for future in list(self._in_flight):
            if future.done() and not future.cancelled() and future.exception() is None:
                self._collect(future)
            else:
                self._fail(self._forget(future), f"a worker process died: {message}")
        self._breaks += 1
        logger.warning("the process pool broke (%s); %d in a row", message, self._breaks)
        if self._breaks >= MAX_BREAKS_IN_A_ROW or not self._pool.repair():
            raise RunError(
                f"The process pool broke {self._breaks} times without a result in between: "
                f"{message} The objective may crash the interpreter or run out of memory; try it "
                "in a process of its own. Everything told so far is kept."
            )

    def _report_late(self) -> None:
        now = time.monotonic()
        for future in [f for f, deadline in self._deadlines.items() if deadline <= now]:
            del self._deadlines[future]
            self._late.add(future)
            trial_id = self._in_flight[future].id
            self.report.late.append(trial_id)
            logger.warning(
                "trial %d runs for more than %g seconds and cannot be stopped; its place is taken "
                "until it returns (%d of %d places)",
                trial_id,
                self._timeout,
                len(self._late),
                self._max_in_flight,
            )

    def _forget(self, future: Future[Outcome]) -> Trial:
        self._deadlines.pop(future, None)
        self._late.discard(future)
        return self._in_flight.pop(future)

    def _fail(self, trial: Trial, reason: str) -> None:
        if trial.state is not TrialState.RUNNING:  # a callback has abandoned it, for instance
            logger.warning("trial %d, settled elsewhere, failed: %s", trial.id, reason)
            return
        logger.warning("trial %d failed: %s", trial.id, reason)
        self._optimizer.mark_failed(trial, reason)
        self._settled(trial)

    def _abandon(self, trial: Trial) -> None:
        if trial.state is not TrialState.RUNNING:
            return
        self._optimizer.mark_abandoned(trial)
        self.report.abandoned.append(trial.id)

    def _settled(self, trial: Trial) -> None:
        self._commit()
        for callback in self._callbacks:
            callback(self._optimizer, trial)

    def _commit(self) -> None:
        if self._store is not None:
            self._optimizer.save(self._store)


class _Bar:
    """The progress bar: trials done, pending, failed, and the best value so far."""

    def __init__(self, optimizer: Optimizer, n_trials: int, *, show: bool) -> None:
        self._optimizer = optimizer
        self._bar = tqdm(total=n_trials, unit="trial", disable=not show)
        self._seen = self._failed = 0
        self._open: list[Trial] = []  # that may still be answered
        self._best: float | None = None

    def update(self) -> None:
        if self._bar.disable:
            return
        trials = self._optimizer.trials
        candidates = self._open + trials[self._seen :]
        self._seen, self._open = len(trials), []
        for trial in candidates:
            if trial.value is not None:
                choose = max if self._optimizer.maximize else min
                self._best = choose(trial.value, trial.value if self._best is None else self._best)
            elif trial.state is TrialState.FAILED:
                self._failed += 1
            else:
                self._open.append(trial)
        pending = sum(trial.state is TrialState.RUNNING for trial in self._open)
        best = "-" if self._best is None else format(self._best, ".4g")
        self._bar.set_postfix_str(
            f"pending={pending} failed={self._failed} best={best}", refresh=False
        )
        self._bar.update(len(trials) - pending - self._bar.n)

    def close(self) -> None:
        self._bar.close()
