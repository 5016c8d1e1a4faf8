"""Copies to a device that do not wait, random numbers, and threads of the CPU.

Memory that is not pinned is copied to the driver before a call returns, so that the original may
change at once. A copy from a device to the CPU always waits.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from typing import Any

import torch
from threadpoolctl import ThreadpoolController
from torch import Tensor


def moved(X: Tensor, device: torch.device) -> Tensor:
    """A tensor on a device."""
    return X.to(device, non_blocking=X.device.type == "cpu")


def sent(X: Any, like: Tensor) -> Tensor:
    """A tensor, or numbers or lists of them, in the precision and on the device of another."""
    X = X if isinstance(X, Tensor) else torch.tensor(X, dtype=like.dtype)
    return X.to(like, non_blocking=X.device.type == "cpu")


def sent_rows(rows: Sequence[int], like: Tensor) -> Tensor:
    """Rows as a LongTensor on the device of a tensor."""
    return moved(torch.tensor(rows, dtype=torch.long), like.device)


def generator_for(seed: int, number: int) -> torch.Generator:
    """A generator for one ask, which depends on the seed and the number alone."""
    mixed = (seed * 0x9E3779B97F4A7C15 + number * 0xBF58476D1CE4E5B9 + 1) % 2**63
    return torch.Generator().manual_seed(mixed)


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Seeds the global generators of the CPU and a device, and restores them at the end."""
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        torch.default_generator.manual_seed(seed)
        if devices:
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        yield


def one_thread() -> AbstractContextManager[object]:
    """Limits torch to one thread of the CPU, in calls from this thread.

    An ask has many small operations, at each of which threads wait for each other; where workers
    compute on the same cores, that would take most of the time.
    """
    if torch.get_num_threads() == 1:
        return nullcontext()
    return _libraries("openmp").limit(limits=1)


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Limits SciPy to one thread in the whole process; held by one thread at a time."""
    with _BLAS, _libraries("blas").limit(limits=1):
        yield


@cache
def _libraries(kind: str) -> ThreadpoolController:
    return ThreadpoolController().select(user_api=kind)


_BLAS = threading.Lock()
