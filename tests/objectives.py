"""Objectives that worker processes can import."""

from __future__ import annotations

import itertools
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

PATIENCE = 120.0  # seconds to wait for something that is sure to come


def quadratic(x: Tensor) -> float:
    """Largest at 0.3 in every coordinate."""
    return -float((x - 0.3).square().sum())


def uneven(x: Tensor) -> float:
    """Takes longer on the left."""
    deadline = time.monotonic() + 0.03 * (1.0 - float(x[0]))
    while time.monotonic() < deadline:
        pass
    return quadratic(x)


def raises_right_of_the_middle(x: Tensor) -> float:
    """Crashes on half of the domain."""
    if float(x[0]) > 0.5:
        raise RuntimeError("out of memory")
    return quadratic(x)


def kills_its_worker_at_the_end(x: Tensor) -> float:
    """Takes the worker process down at one point."""
    if float(x[0]) == 1.0:
        os.kill(os.getpid(), signal.SIGKILL)
    return quadratic(x)


def always_kills_its_worker(x: Tensor) -> float:
    """Takes the worker process down everywhere."""
    os.kill(os.getpid(), signal.SIGKILL)
    return 0.0


def interrupts(x: Tensor) -> float:
    """Raises what Ctrl-C raises."""
    raise KeyboardInterrupt


def hangs_at_zero(x: Tensor) -> float:
    """Never returns at one point."""
    while float(x[0]) == 0.0:
        signal.pause()
    return quadratic(x)


class Unspeakable(Exception):  # noqa: N818  # not named an error
    """An exception whose message cannot be formatted."""

    def __str__(self) -> str:
        raise ValueError("no words")


class Leaves(BaseException):
    """An exception that ``except Exception`` does not catch."""


class Faulty:
    """Fails in a given way right of the middle."""

    RAISED: ClassVar[dict[str, BaseException]] = {
        "raises": RuntimeError("out of memory"),
        "raises what is no Exception": Leaves("enough"),
        "raises GeneratorExit": GeneratorExit(),
        "raises SystemExit": SystemExit(3),
        "raises without words": Unspeakable(),
        "raises half a character": RuntimeError("\ud800 and a NUL \0"),
        "raises a long message": RuntimeError("x" * 1_000_000),
    }
    RETURNED: ClassVar[dict[str, Any]] = {
        "returns None": None,
        "returns a string": "0.5",
        "returns two values": torch.tensor([1.0, 2.0]),
        "returns NaN": float("nan"),
        "returns infinity": float("inf"),
        "returns a complex number": 1j,
        "returns what does not pickle": lambda: 0,
    }

    def __init__(self, fault: str) -> None:
        self.fault = fault

    def __call__(self, x: Tensor) -> Any:
        if float(x[0]) <= 0.5:
            return quadratic(x)
        if self.fault in self.RAISED:
            raise self.RAISED[self.fault]
        if self.fault == "kills its process":
            os.kill(os.getpid(), signal.SIGKILL)
        while self.fault == "hangs":
            signal.pause()
        return self.RETURNED[self.fault]


class DiesWhenTold:
    """Waits for a word at one point, then kills its worker; elsewhere it answers at once."""

    WORD = b"die"

    def __init__(self, at: float, folder: Path) -> None:
        self.at = at
        self.pipe = folder / "pipe"
        os.mkfifo(self.pipe)

    def __call__(self, x: Tensor) -> float:
        if float(x[0]) == self.at:
            # Read one word, not to the end: where words are written in a loop, it may never show.
            with self.pipe.open("rb", buffering=0) as pipe:
                pipe.read(len(self.WORD))
            os.kill(os.getpid(), signal.SIGKILL)
        return quadratic(x)

    def let_it_die(self, ready: Callable[[], bool] = lambda: True) -> None:
        """For the parent: when the worker waits at its point and ``ready`` holds, let it die."""
        with self.pipe.open("wb") as pipe:
            while not ready():
                threading.Event().wait(0.01)
            pipe.write(self.WORD)


class ReturnsOnce:
    """The first call returns; the others wait for ``released``. For threads of this process.

    Copies share the state of the instance that was made last.
    """

    calls: ClassVar[Iterator[int]]
    released: ClassVar[threading.Event]

    def __init__(self) -> None:
        type(self).calls, type(self).released = itertools.count(), threading.Event()

    def __call__(self, x: Tensor) -> float:
        if next(self.calls):
            self.released.wait(PATIENCE)
        return quadratic(x)


class Counted:
    """Leaves a file for every evaluation that was begun."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, x: Tensor) -> float:
        os.close(tempfile.mkstemp(dir=self.folder)[0])
        return quadratic(x)


class KillsOneWorker:
    """Kills the first worker that comes to its right half, and never another."""

    def __init__(self, folder: Path) -> None:
        self.signal = folder / "killed"

    def __call__(self, x: Tensor) -> float:
        if float(x[0]) > 0.5 and not self.signal.exists():
            self.signal.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return quadratic(x)
