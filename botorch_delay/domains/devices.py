"""Copies to a device that do not wait, random numbers, and CPU threads.

Memory that is not pinned is copied to the driver before the call returns, so the original may be
changed at once. A copy from a device to the CPU always waits.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import cache
from typing import Any

import torch
from threadpoolctl import ThreadpoolController
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.quasirandom import SobolEngine


def moved(X: Tensor, device: torch.device) -> Tensor:
    """A tensor on a device, copied there if needed; from the CPU without waiting."""
    return X.to(device, non_blocking=X.device.type == "cpu")


def sent(X: Any, like: Tensor) -> Tensor:
    """A tensor, a number or lists of numbers, with the dtype and on the device of ``like``."""
    X = X if isinstance(X, Tensor) else torch.tensor(X, dtype=like.dtype)
    return X.to(like, non_blocking=X.device.type == "cpu")


def sent_rows(rows: Sequence[int], like: Tensor) -> Tensor:
    """Row numbers as a LongTensor on the device of ``like``."""
    return moved(torch.tensor(rows, dtype=torch.long), like.device)


def generator_for(seed: int, number: int) -> torch.Generator:
    """A CPU generator that depends only on the seed and a number, such as that of an ask."""
    mixed = (seed * 0x9E3779B97F4A7C15 + number * 0xBF58476D1CE4E5B9 + 1) % 2**63
    return torch.Generator().manual_seed(mixed)


def sobol_engine(dim: int, seed: int) -> SobolEngine:
    """A scrambled Sobol sequence that does not depend on torch's default dtype.

    Its first point otherwise has that precision, whatever is drawn.
    """
    engine = SobolEngine(dim, scramble=True, seed=seed)
    engine._first_point = engine._first_point.float()
    return engine


class Seeded(TorchFunctionMode):
    """In this block, PyTorch functions that are given no generator draw from one seeded here.

    Other libraries thus draw the same numbers as after ``torch.manual_seed(seed)``, without
    touching the global generator, from which other threads may draw.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._seed = seed
        self._generators: dict[torch.device, torch.Generator] = {}  # made when first drawn from

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _DRAWING and kwargs.get("generator") is None:
            if func in _DRAWN_LIKE:
                args, kwargs = (torch.empty_like(*args, **kwargs),), {}
                func = _DRAWN_LIKE[func]
            there = next((given.device for given in args if isinstance(given, Tensor)), None)
            device = there or kwargs.get("device") or torch.get_default_device()
            kwargs = {**kwargs, "generator": self._of(torch.device(device))}
        return func(*args, **kwargs)

    def _of(self, device: torch.device) -> torch.Generator:
        if device not in self._generators:
            self._generators[device] = torch.Generator(device).manual_seed(self._seed)
        return self._generators[device]


@contextmanager
def torch_settings(*, many_threads: bool) -> Iterator[None]:
    """The PyTorch settings with which this package computes, in this thread, whatever callers set.

    Tensors are made on the CPU unless a device is named, inference mode is off, so that they can
    take part in gradients, and operations use one CPU thread unless ``many_threads``.
    """
    with ExitStack() as stack:
        if not many_threads and torch.get_num_threads() > 1:
            stack.enter_context(one_thread())
        if torch.is_inference_mode_enabled():
            stack.enter_context(torch.inference_mode(False))
        if not torch.empty(0).is_cpu:
            stack.enter_context(torch.device("cpu"))
        yield


def one_thread() -> AbstractContextManager[object]:
    """Limits PyTorch to one CPU thread in calls from this thread.

    An ask has many small operations, at each of which threads wait for each other; where workers
    compute on the same cores, this waiting would take most of the time.
    """
    return _libraries("openmp").limit(limits=1)


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Limits the BLAS of SciPy to one thread in the whole process; one such block at a time."""
    with _BLAS, _libraries("blas").limit(limits=1):
        yield


@cache
def _libraries(kind: str) -> ThreadpoolController:
    return ThreadpoolController().select(user_api=kind)


_BLAS = threading.Lock()
_DRAWN_LIKE = {torch.rand_like: Tensor.uniform_, torch.randn_like: Tensor.normal_}
_DRAWING = {
    *_DRAWN_LIKE,
    *(torch.rand, torch.randn, torch.randint, torch.randperm, torch.normal, torch.bernoulli),
    *(torch.multinomial, torch.poisson, torch.binomial),
    *(torch._standard_gamma, torch._sample_dirichlet, Tensor.bernoulli, Tensor.multinomial),
    *(Tensor.uniform_, Tensor.normal_, Tensor.random_, Tensor.exponential_, Tensor.bernoulli_),
    *(Tensor.log_normal_, Tensor.cauchy_, Tensor.geometric_),
}
