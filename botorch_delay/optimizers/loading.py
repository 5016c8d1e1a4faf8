"""Optimizers from files."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from botorch_delay import storage
from botorch_delay.confidence import Confidence
from botorch_delay.delays import DelayLaw
from botorch_delay.domains import FiniteDomain
from botorch_delay.exceptions import InputError, StorageError
from botorch_delay.kernels import build_kernel
from botorch_delay.optimizers.bpe import BPEDelayOptimizer
from botorch_delay.records import build_part


def load(
    path: str | os.PathLike[str],
    *,
    covar_module: Kernel | None = None,
    confidence: Confidence | None = None,
    delay: DelayLaw | None = None,
    device: torch.device | str | None = None,
) -> BPEDelayOptimizer:
    """The optimizer in a file, ready to go on: same asks, same rounds, whatever was pending.

    Args:
        path: a file that ``save`` wrote.
        covar_module: the kernel, needed if it is none of GPyTorch's own; checked against what
            was stored.
        confidence: likewise.
        delay: likewise.
        device: where the tensors are put; the CPU by default.

    Raises:
        InputError: if the device cannot be used.
        StorageError: if the file does not exist, is damaged, is no study, is of a newer
            version, or if a part is missing or differs from the stored one.
    """
    return _make(path, storage.read(path), covar_module, confidence, delay, device)


@contextmanager
def editing(
    path: str | os.PathLike[str],
    *,
    covar_module: Kernel | None = None,
    confidence: Confidence | None = None,
    delay: DelayLaw | None = None,
    device: torch.device | str | None = None,
) -> Iterator[BPEDelayOptimizer]:
    """Load, change and save a file while every other process waits.

    What the block does to the optimizer is committed when it ends, and not if it raises; it
    must not save to the file itself. Two processes that ask at once therefore get different
    trials.

    Args:
        path: as in :func:`load`.
        covar_module: likewise.
        confidence: likewise.
        delay: likewise.
        device: likewise.

    Raises:
        InputError: if the device cannot be used.
        StorageError: as :func:`load` does, or if another process holds the file for long.

    Example:
        >>> import tempfile, pathlib
        >>> folder = tempfile.TemporaryDirectory()
        >>> path = pathlib.Path(folder.name) / "study.db"
        >>> points = torch.linspace(0, 1, 9, dtype=torch.double).unsqueeze(-1)
        >>> BPEDelayOptimizer(FiniteDomain(points), horizon=5).save(path)
        >>> with editing(path) as opt:
        ...     trial = opt.ask()
        >>> load(path).pending
        [Trial(id=0, index=0, round=1, running)]
        >>> folder.cleanup()
    """
    with storage.editing(path) as lock:
        optimizer = _make(path, lock.state, covar_module, confidence, delay, device)
        yield optimizer
        optimizer._write(lock.write)


def _make(
    path: str | os.PathLike[str],
    state: Mapping[str, Any],
    covar_module: Kernel | None,
    confidence: Confidence | None,
    delay: DelayLaw | None,
    device: torch.device | str | None,
) -> BPEDelayOptimizer:
    if state["optimizer"] != BPEDelayOptimizer.__name__:
        raise StorageError(f"{path} holds an unknown optimizer, {state['optimizer']!r}.")
    try:
        points = state["points"].to(device or "cpu")
    except (RuntimeError, AssertionError, TypeError) as error:
        raise InputError(f"device={device!r} cannot be used: {error}") from error
    try:
        optimizer = _build(state, points, covar_module, confidence, delay)
    except StorageError:
        raise
    except (LookupError, AttributeError, TypeError, InputError) as error:
        raise StorageError(f"{path}: the stored configuration cannot be used: {error}") from error
    optimizer.load_state_dict(state)
    return optimizer


def _build(
    state: Mapping[str, Any],
    points: Tensor,
    covar_module: Kernel | None,
    confidence: Confidence | None,
    delay: DelayLaw | None,
) -> BPEDelayOptimizer:
    config = state["config"]
    domain = FiniteDomain(points, names=config["names"], log_dims=config["log_dims"])
    if covar_module is None and config["covar_module"] is not None:
        recipe = state["recipes"].get("covar_module")
        if recipe is None:
            raise StorageError(
                f"The stored kernel is a {config['covar_module'].get('class')}, which cannot be "
                "rebuilt; pass covar_module to load."
            )
        covar_module = build_kernel(recipe, points)
    parts: dict[str, Any] = {
        "covar_module": covar_module,
        "noise_var": config["noise_var"],
        "confidence": confidence or build_part(config["confidence"], "confidence"),
        "delay": delay or build_part(config["delay"], "delay"),
        "delta": config["delta"],
        "seed": config["seed"],
        "maximize": config["maximize"],
    }
    make = BPEDelayOptimizer.as_published if config["as_published"] else BPEDelayOptimizer
    return make(domain, config["horizon"], **parts)
