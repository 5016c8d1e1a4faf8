"""Programs in forked processes, which need not import again what the tests have imported."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from typing import Any, TextIO

CONTEXT = multiprocessing.get_context("fork")


@contextmanager
def forked(program: Callable[..., Any], *arguments: Any) -> Iterator[tuple[BaseProcess, TextIO]]:
    """A process that calls a function, in a process group of its own, and what it prints."""
    reading, writing = os.pipe()
    process = CONTEXT.Process(target=_call, args=(writing, program, arguments))
    process.start()
    os.close(writing)
    try:
        with os.fdopen(reading) as printed:
            yield process, printed
    except BaseException:
        process.kill()  # or the tests would wait for it when they end
        raise
    finally:
        process.join()


def _call(writing: int, program: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    os.setsid()
    # A shell that runs the tests in the background makes them ignore SIGINT.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with os.fdopen(writing, "w", buffering=1) as sys.stdout:
        program(*arguments)
