"""What runs in a worker process: one evaluation of the objective.

PyTorch is imported only where a point or a result needs it, so that a worker process loads what the
objective imports, and little else.
"""

from __future__ import annotations

import math
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, SupportsFloat

Objective = Callable[..., SupportsFloat]
MAX_CALLS = 20  # the innermost calls, which a traceback keeps


@dataclass(frozen=True)
class Evaluation:
    """One evaluation that returned.

    Attributes:
        trial_id: id of the trial.
        worker: process and thread that ran it.
        started: seconds since the epoch.
        finished: seconds since the epoch.
        error: why it failed; empty if it did not.
        value: the finite number that the objective returned; None if it failed.
        traceback: the last calls before the objective raised; empty if it did not.
    """

    trial_id: int
    worker: str
    started: float
    finished: float
    error: str = ""
    value: float | None = None
    traceback: str = ""


def evaluate(objective: Objective, trial_id: int, point: Any, form: str) -> Evaluation:
    """Evaluate the objective at one point, and catch whatever it raises.

    ``form`` says how the objective takes the point: "names", "dict" or the dtype of a tensor.
    """
    worker = f"{os.getpid()}-{threading.get_ident()}"
    if form not in ("names", "dict"):
        import torch

        point = torch.tensor(point, dtype=getattr(torch, form))
    value, error, calls = None, "", ""
    started = time.time()
    try:
        returned = objective(**point) if form == "names" else objective(point)
    except KeyboardInterrupt:
        raise
    except BaseException as raised:
        finished = time.time()
        error, calls = one_line(raised), _calls(raised)
    else:
        finished = time.time()
        value, error = _number(returned)
    return Evaluation(trial_id, worker, started, finished, error, value, calls)


def evaluate_noted(note: Path, *arguments: Any) -> Evaluation:
    """Run in a worker process: write its process id to ``note``, then evaluate."""
    with suppress(OSError):
        note.write_text(str(os.getpid()))
    return evaluate(*arguments)


def _number(returned: Any) -> tuple[float | None, str]:
    """What an objective returned as a finite number, or None and an error."""
    if isinstance(returned, float) and math.isfinite(returned):
        return float(returned), ""
    from botorch_delay import validation
    from botorch_delay.exceptions import InputError

    try:
        return validation.real(returned, "value"), ""
    except InputError as invalid:
        return None, f"the objective returned no finite number: {invalid}"


def one_line(raised: BaseException) -> str:
    """An exception in one line; only its name if it has no message, or writing that fails."""
    name = type(raised).__name__
    try:
        return f"{name}: {raised}".removesuffix(": ")
    except Exception:
        return name


def _calls(raised: BaseException) -> str:
    """The traceback of what the objective raised."""
    own = raised.__traceback__
    inside = None if own is None else own.tb_next  # without the frame of evaluate
    lines = traceback.format_exception(type(raised), raised, inside, limit=-MAX_CALLS)
    return "".join(lines).encode("utf-8", "backslashreplace").decode()


def start_worker() -> None:
    """Leave Ctrl-C to the parent, and compute in one thread; runs first in a worker process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # for its own subprocesses
    os.environ["OMP_NUM_THREADS"] = "1"  # read by libraries that are imported later
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
