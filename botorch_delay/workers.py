"""Executors as the runner uses them, and what runs inside their workers."""

from __future__ import annotations

import inspect
import multiprocessing
import os
import pickle
import signal
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from botorch_delay import validation
from botorch_delay.exceptions import InputError, InputTypeError
from botorch_delay.history.trials import Trial

Objective = Callable[[Tensor], float]


class Pool:
    """An executor as given: submits, cannot kill, cannot be repaired.

    Attributes:
        kills: whether it ends what takes too long.
        look_every: seconds after which to see whether it is :meth:`alive`; None where its
            futures are settled even if it is not.
    """

    kills = False
    look_every: float | None = None

    def __init__(self, executor: Any) -> None:
        self._executor = executor

    def check(self, objective: Objective) -> None:
        """Refuse an objective that cannot reach the workers."""

    def submit(self, objective: Objective, trial: Trial) -> Future[Outcome]:
        """Have a worker evaluate the objective at the trial's point."""
        return self._executor.submit(_evaluate, objective, *_portable(trial))

    def running(self, future: Future[Outcome]) -> bool:
        """Whether a worker has begun with an evaluation."""
        return future.running()

    def alive(self) -> bool:
        """Whether answers can still come."""
        return True

    def repair(self) -> bool:
        """Replace a broken executor; False if that is not possible."""
        return False

    def release(self) -> None:
        """Shut down what this run has made itself."""


class BreakableProcessPool(Pool):
    """A ``ProcessPoolExecutor``, which breaks as a whole when one worker dies."""

    _own: ProcessPoolExecutor | None = None

    def check(self, objective: Objective) -> None:
        """Refuse an objective that cannot reach the workers."""
        _check_picklable(objective)

    def repair(self) -> bool:
        """Replace the broken executor by a like one."""
        broken = self._executor
        self.release()
        # The arguments of the pool are kept in private attributes and nowhere else.
        self._executor = self._own = ProcessPoolExecutor(
            max_workers=broken._max_workers,
            mp_context=broken._mp_context,
            initializer=broken._initializer,
            initargs=broken._initargs,
            max_tasks_per_child=broken._max_tasks_per_child,
        )
        return True

    def release(self) -> None:
        """Shut down the replacement, if there is one."""
        if self._own is not None:
            self._own.shutdown(wait=False, cancel_futures=True)
            self._own = None


class PebblePool(Pool):
    """A ``pebble.ProcessPool``, which kills a worker that takes too long and replaces it."""

    kills = True

    def __init__(self, executor: Any, timeout: float | None) -> None:
        super().__init__(executor)
        self._timeout = timeout

    def check(self, objective: Objective) -> None:
        """Refuse an objective that cannot reach the workers."""
        _check_picklable(objective)

    def submit(self, objective: Objective, trial: Trial) -> Future[Outcome]:
        """Have a worker evaluate the objective at the trial's point."""
        return self._executor.schedule(
            _evaluate, args=(objective, *_portable(trial)), timeout=self._timeout
        )


class DaskPool(Pool):
    """Dask's ``Client.get_executor()``: evaluations are kept apart, and their begin is reported.

    Dask takes calls with equal arguments for one, so that the second evaluation of a point would
    return the first one's value, noise included; names of their own prevent that. Its futures
    never say that they run, which a ``timeout`` has to know, so workers tell the client. And
    some futures are never settled once the client has lost its scheduler.
    """

    look_every = 2.0

    def __init__(self, executor: Any, timeout: float | None) -> None:
        super().__init__(executor)
        self._client = executor._client  # kept in a private attribute and nowhere else
        self._topic = f"botorch-delay-{uuid.uuid4().hex}" if timeout is not None else None
        self._names: weakref.WeakKeyDictionary[Future[Outcome], str] = weakref.WeakKeyDictionary()
        self._begun: set[str] = set()
        if self._topic is not None:
            self._client.subscribe_topic(self._topic, lambda event: self._begun.add(event[1]))

    def check(self, objective: Objective) -> None:
        """Refuse an objective that cannot reach the workers."""
        import cloudpickle  # comes with Dask, which uses it likewise

        _check_picklable(objective, cloudpickle.dumps)

    def submit(self, objective: Objective, trial: Trial) -> Future[Outcome]:
        """Have a worker evaluate the objective at the trial's point."""
        name = f"trial-{trial.id}-{uuid.uuid4().hex}"
        future = self._executor.submit(
            _evaluate_on_dask, self._topic, name, objective, *_portable(trial), key=name
        )
        self._names[future] = name
        return future

    def running(self, future: Future[Outcome]) -> bool:
        """Whether a worker has reported that it has begun with an evaluation."""
        return self._names[future] in self._begun

    def alive(self) -> bool:
        """Whether the client has a scheduler, or is about to have one again."""
        return self._client.status in ("running", "connecting")

    def release(self) -> None:
        """Listen to the workers no longer."""
        if self._topic is not None and self.alive():
            self._client.unsubscribe_topic(self._topic)


def make_pool(executor: Any, timeout: float | None) -> Pool:
    """The executor as the runner uses it.

    Raises:
        InputTypeError: if it is none.
    """
    if hasattr(executor, "get_executor"):
        raise InputTypeError("executor is a Dask client; hand over client.get_executor().")
    if isinstance(executor, ProcessPoolExecutor):
        return BreakableProcessPool(executor)
    schedule = getattr(executor, "schedule", None)
    if schedule is not None and "timeout" in inspect.signature(schedule).parameters:
        return PebblePool(executor, timeout)
    if type(executor).__module__ == "distributed.cfexecutor":  # without importing Dask
        return DaskPool(executor, timeout)
    if hasattr(executor, "submit"):
        return Pool(executor)
    raise InputTypeError(
        "executor must be a concurrent.futures.Executor or a pebble.ProcessPool, got "
        f"{type(executor).__name__}."
    )


def _check_picklable(
    objective: Objective, dumps: Callable[[Objective], bytes] = pickle.dumps
) -> None:
    try:
        dumps(objective)
    except Exception as error:
        raise InputTypeError(
            f"The objective cannot be sent to another process ({error}); define it at the top "
            "level of a module, or use a ThreadPoolExecutor."
        ) from error


@dataclass(frozen=True)
class Outcome:
    """What a worker sends back."""

    value: float | None
    error: str
    worker: str
    started: float
    finished: float


def _portable(trial: Trial) -> tuple[list[float], str]:
    """The point as plain numbers: tensors would travel through shared memory."""
    return trial.x.tolist(), str(trial.x.dtype).removeprefix("torch.")


def _evaluate(objective: Objective, x: list[float], dtype: str) -> Outcome:
    """Run in a worker: the objective at one point, and whatever went wrong with it."""
    worker = f"{os.getpid()}-{threading.get_ident()}"
    started = time.time()
    value, error = None, ""
    try:
        returned = objective(torch.tensor(x, dtype=getattr(torch, dtype)))
        value, error = _number(returned)
    except KeyboardInterrupt:
        raise
    except BaseException as raised:
        error = words(raised)
    return Outcome(value, error, worker, started, time.time())


def _number(returned: Any) -> tuple[float | None, str]:
    """What an objective returned as a finite float; without one, why it is none."""
    try:
        return validation.real(returned, "value"), ""
    except InputError as invalid:
        return None, f"the objective returned no finite number: {invalid}"


def words(raised: BaseException) -> str:
    """What was raised, in a line; its name alone where it has no message, or one that raises."""
    name = type(raised).__name__
    try:
        return f"{name}: {raised}".removesuffix(": ")
    except Exception:
        return name


def _evaluate_on_dask(
    topic: str | None, name: str, objective: Objective, x: list[float], dtype: str
) -> Outcome:
    """Run in a worker of Dask: the same, after a word to the client where it listens."""
    from distributed import get_worker

    if topic is not None:
        get_worker().log_event(topic, name)
    return _evaluate(objective, x, dtype)


class Interrupts:
    """Ctrl-C takes effect while the run waits, never between a change and its commit.

    A second Ctrl-C takes effect at once. Outside the main thread, or where the program has a
    handler of its own, nothing is changed.
    """

    def __init__(self) -> None:
        self._waiting = False
        self._asked = False
        self._installed = False

    def __enter__(self) -> None:
        if (
            threading.current_thread() is threading.main_thread()
            and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        ):
            signal.signal(signal.SIGINT, self._handle)
            self._installed = True

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._installed:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        if self._asked and kind is None:  # it came too late to stop anything, and was meant
            raise KeyboardInterrupt

    @contextmanager
    def allowed(self) -> Iterator[None]:
        """Let an interrupt through, also one that came before."""
        if self._asked:
            raise KeyboardInterrupt
        self._waiting = True
        try:
            yield
        finally:
            self._waiting = False

    def _handle(self, *_: object) -> None:
        if self._waiting or self._asked:
            self._waiting = False
            raise KeyboardInterrupt
        self._asked = True


@contextmanager
def spawned_pool(workers: int) -> Iterator[ProcessPoolExecutor]:
    """Worker processes that leave Ctrl-C to their parent and use one thread each."""
    pool = ProcessPoolExecutor(
        workers, mp_context=multiprocessing.get_context("spawn"), initializer=_start_worker
    )
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def _start_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
