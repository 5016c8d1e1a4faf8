"""Executors behind one interface for the runner."""

from __future__ import annotations

import inspect
import itertools
import multiprocessing
import pickle
import signal
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TextIO

from tqdm import tqdm

from botorch_delay import validation
from botorch_delay.domains.columns import Columns
from botorch_delay.exceptions import InputError, InputTypeError
from botorch_delay.history.trials import Trial
from botorch_delay.workers import Evaluation, Objective, evaluate, evaluate_noted, start_worker


def takes_names(objective: Objective, columns: Columns) -> bool:
    """Whether an objective takes the parameters of a space as keywords, else as one dict."""
    names = columns.parameters
    try:
        signature = inspect.signature(objective)
    except (TypeError, ValueError):  # not written in Python
        return False
    with suppress(TypeError):
        signature.bind(**dict.fromkeys(names))
        return True
    with suppress(TypeError):
        (first,) = signature.bind(None).arguments
        if first not in names:
            return False
    raise InputTypeError(
        f"objective must take {', '.join(names)} as keywords, or a dict of them as an argument "
        f"with another name; its arguments are {signature}."
    )


def check_takes_trials(on_result: Callable[..., Any]) -> None:
    """Refuse a callback that cannot be called with an optimizer and a trial."""
    try:
        with suppress(ValueError):  # not written in Python
            inspect.signature(on_result).bind(None, None)
    except TypeError as error:
        raise InputTypeError(
            "on_result must be a function that is called with the optimizer and a trial, "
            f"got {on_result!r}."
        ) from error


def most_at_once(evaluations: Sequence[Evaluation]) -> int:
    """The most that ran at once; a process that replaces one that died does not add to it."""
    ends = [(e.started, 1) for e in evaluations] + [(e.finished, -1) for e in evaluations]
    running = itertools.accumulate(change for _, change in sorted(ends))
    return max(1, *running) if evaluations else 0  # some may take no time


def check_sendable(
    value: Any, what: str, instead: str, dumps: Callable[[Any], bytes] = pickle.dumps
) -> None:
    """Raise InputTypeError if a value cannot be sent to another process."""
    try:
        dumps(value)
    except Exception as error:
        raise InputTypeError(
            f"{what} cannot be sent to another process ({error}); define it at the top level of a "
            f"module, or use {instead}."
        ) from error


class Pool:
    """One objective on any executor of ``concurrent.futures``; ``timeout`` is in seconds."""

    dumps: Callable[[Any], bytes] | None = None  # checks that the objective can be sent

    def __init__(self, executor: Any, timeout: float | None = None) -> None:
        self._executor = executor
        self.timeout = timeout

    def take(self, objective: Objective, columns: Columns) -> None:
        """Take the objective; InputTypeError if it cannot take points or reach the workers."""
        if inspect.iscoroutinefunction(objective):
            raise InputTypeError(
                f"objective must return a number, got {objective!r}, which is async; let it call "
                "asyncio.run(...)."
            )
        self._objective = objective
        self._by_name = columns.named and takes_names(objective, columns)
        if self.dumps is not None:
            check_sendable(objective, "The objective", "a ThreadPoolExecutor", self.dumps)

    def submit(self, trial: Trial) -> Future[Evaluation]:
        """Let a worker evaluate the objective at the trial's point."""
        return self._executor.submit(evaluate, *self._arguments(trial))

    def _arguments(self, trial: Trial) -> tuple[Objective, int, Any, str]:
        """The arguments of ``evaluate``.

        The point is in plain values, as tensors would be sent through shared memory.
        """
        if trial.columns.named:
            return self._objective, trial.id, trial.params, "names" if self._by_name else "dict"
        form = str(trial.x.dtype).removeprefix("torch.")
        return self._objective, trial.id, trial.x.tolist(), form

    def alive(self) -> bool:
        """Whether results can still come."""
        return True

    def broken_by(self, trials: Sequence[Trial]) -> list[Trial] | None:
        """The trials whose worker process died by itself; None if that is not known."""
        return None

    def repair(self) -> bool:
        """Replace a broken executor; False if that is not possible."""
        return False

    def release(self) -> None:
        """Shut down what this object has started; the user's executor goes on."""


class BreakableProcessPool(Pool):
    """A ``ProcessPoolExecutor``, which breaks when a worker dies.

    A file for each trial records which process evaluates it, to know which trials broke the pool.
    """

    dumps = staticmethod(pickle.dumps)
    _replacement: ProcessPoolExecutor | None = None

    def __init__(self, executor: ProcessPoolExecutor) -> None:
        super().__init__(executor)
        self._folder = _new_folder()

    def submit(self, trial: Trial) -> Future[Evaluation]:
        return self._executor.submit(evaluate_noted, self._note(trial), *self._arguments(trial))

    def _note(self, trial: Trial) -> Path:
        return Path(self._folder.name, str(trial.id))

    def broken_by(self, trials: Sequence[Trial]) -> list[Trial] | None:
        processes = list((self._executor._processes or {}).values())
        # Polled, not joined: the executor joins them, too, and only one learns how each ended.
        deadline = time.monotonic() + 1.0
        while any(each.exitcode is None for each in processes) and time.monotonic() < deadline:
            time.sleep(0.01)
        # Once one has died, the executor sends SIGTERM to the others; with a fork server, 255 may
        # stand for any exit code.
        untold = None, -signal.SIGTERM, 255
        dead = {str(each.pid) for each in processes if each.exitcode not in untold}
        if not dead:
            return None
        notes = [(trial, self._note(trial)) for trial in trials]
        return [trial for trial, note in notes if note.exists() and note.read_text() in dead]

    def repair(self) -> bool:
        broken = self._executor
        self.release()
        self._folder = _new_folder()
        # The arguments are only kept in private attributes.
        self._executor = self._replacement = ProcessPoolExecutor(
            max_workers=broken._max_workers,
            mp_context=broken._mp_context,
            initializer=broken._initializer,
            initargs=broken._initargs,
            max_tasks_per_child=broken._max_tasks_per_child,
        )
        return True

    def release(self) -> None:
        if self._replacement is not None:
            self._replacement.shutdown(wait=False, cancel_futures=True)
        self._folder.cleanup()


def _new_folder() -> TemporaryDirectory[str]:
    return TemporaryDirectory(prefix="botorch-delay-", ignore_cleanup_errors=True)


class PebblePool(Pool):
    """A ``pebble.ProcessPool``, which kills a worker that takes too long and replaces it."""

    dumps = staticmethod(pickle.dumps)

    def submit(self, trial: Trial) -> Future[Evaluation]:
        return self._executor.schedule(evaluate, args=self._arguments(trial), timeout=self.timeout)


class DaskPool(Pool):
    """Dask's ``Client.get_executor()``.

    Dask would reuse the value of an earlier call with the same arguments, noise included; unique
    keys prevent that. Some futures never end once the client has lost its scheduler, see ``alive``.
    """

    def __init__(self, executor: Any) -> None:
        import cloudpickle  # comes with Dask, which sends functions with it

        super().__init__(executor)
        self.dumps = cloudpickle.dumps
        self._client = executor._client
        self._run = f"botorch-delay-{uuid.uuid4().hex}"

    def submit(self, trial: Trial) -> Future[Evaluation]:
        key = f"{self._run}-{trial.id}"
        return self._executor.submit(evaluate, *self._arguments(trial), key=key)

    def alive(self) -> bool:
        return self._client.status in ("running", "connecting")


def make_pool(executor: Any, timeout: float | None) -> Pool:
    """The pool for an executor of ``concurrent.futures``, Pebble or Dask."""
    if timeout is not None:
        timeout = validation.positive(timeout, "timeout")
    if inspect.isclass(executor):
        raise InputTypeError(
            f"executor is the class {executor.__name__}; pass an instance, such as "
            f"{executor.__name__}(4)."
        )
    if hasattr(executor, "get_executor"):
        raise InputTypeError("executor is a Dask client; pass client.get_executor().")
    schedule = getattr(executor, "schedule", None)
    if schedule is not None and "timeout" in inspect.signature(schedule).parameters:
        return PebblePool(executor, timeout)
    if not hasattr(executor, "submit"):
        raise InputTypeError(
            "executor must be a concurrent.futures.Executor or a pebble.ProcessPool, got "
            f"{type(executor).__name__}."
        )
    if timeout is not None:
        raise InputError(
            f"A {type(executor).__name__} cannot stop an evaluation, so it takes no timeout; use a "
            "pebble.ProcessPool."
        )
    if isinstance(executor, ProcessPoolExecutor):
        return BreakableProcessPool(executor)
    if type(executor).__module__ == "distributed.cfexecutor":  # without importing Dask
        return DaskPool(executor)
    return Pool(executor)


@contextmanager
def spawned_pool(workers: int) -> Iterator[ProcessPoolExecutor]:
    """Worker processes that leave Ctrl-C to their parent and use one thread each."""
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=start_worker)
    try:
        with _interrupts_blocked():  # inherited by workers that start here, while they import
            for _ in range(workers):
                pool.submit(int)
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def progress_bar(total: int, unit: str, *, shown: bool, initial: int = 0) -> tqdm[None]:
    """A progress bar on standard error, silent where that is missing or nobody reads it."""
    hidden = not shown or sys.stderr is None  # as in programs without a console
    file = None if hidden else _Unfailing(sys.stderr)
    return tqdm(total=total, initial=initial, unit=unit, disable=hidden, file=file)


class _Unfailing:
    """A stream that ignores failures to write, so that a bar cannot end the run that it shows."""

    def __init__(self, stream: TextIO):
        self._stream = stream

    def __eq__(self, other: object) -> bool:  # tqdm compares it with sys.stderr
        return self._stream == getattr(other, "_stream", other)

    def __hash__(self) -> int:
        return hash(self._stream)

    def write(self, text: str) -> None:
        with suppress(OSError, ValueError):
            self._stream.write(text)

    def flush(self) -> None:
        with suppress(OSError, ValueError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def interrupts_noted() -> Iterator[list[int]]:
    """Note each Ctrl-C in a list; raise at the third, or at the end. Own handlers are kept."""
    noted: list[int] = []

    def handle(number: int, _: object) -> None:
        noted.append(number)
        if len(noted) > 2:
            raise KeyboardInterrupt

    in_main = threading.current_thread() is threading.main_thread()
    if not in_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield noted
        return
    signal.signal(signal.SIGINT, handle)
    try:
        yield noted
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if noted:
        raise KeyboardInterrupt


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Hold back Ctrl-C until the end of the block, on systems with signal masks."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
