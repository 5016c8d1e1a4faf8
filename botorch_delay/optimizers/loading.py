"""Optimizers from files."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from botorch_delay.confidence.bounds import Confidence
from botorch_delay.delays import DelayLaw
from botorch_delay.domains.box import BoxDomain
from botorch_delay.domains.finite import Domain, FiniteDomain
from botorch_delay.exceptions import InputError, StorageError
from botorch_delay.gp.kernels import build_kernel
from botorch_delay.history import sqlite
from botorch_delay.history.events import brief, truncated
from botorch_delay.optimizers.acquisition import AcquisitionOptimizer
from botorch_delay.optimizers.base import Optimizer
from botorch_delay.optimizers.bpe import BPEDelayOptimizer
from botorch_delay.optimizers.queued import QueuedOptimizer
from botorch_delay.optimizers.random import RandomOptimizer
from botorch_delay.optimizers.rules import Rule
from botorch_delay.optimizers.specs import build_part
from botorch_delay.optimizers.threds import ThreDSOptimizer


def load(
    path: str | os.PathLike[str],
    *,
    covar_module: Kernel | None = None,
    confidence: Confidence | None = None,
    delay: DelayLaw | None = None,
    rule: Rule | Callable[..., Any] | None = None,
    feasible: Callable[[Tensor], Tensor] | None = None,
    device: torch.device | str | None = None,
) -> Optimizer:
    """The optimizer in a file, ready to go on: same asks, same rounds, whatever was pending.

    Args:
        path: a file that ``save`` wrote.
        covar_module: the kernel, needed if it is none of GPyTorch's own; checked against what
            was stored.
        confidence: likewise.
        delay: likewise.
        rule: likewise, for rules around functions of the user's own.
        feasible: a box's test of feasibility, if it has one.
        device: where the tensors are put; the CPU by default.

    Raises:
        InputError: if the device cannot be used.
        StorageError: if the file does not exist, is damaged, is no study, is of a newer
            version, or if a part is missing or differs from the stored one.
    """
    parts = _Parts(covar_module, confidence, delay, rule, feasible, device)
    return _make(path, sqlite.read(path), parts)


@contextmanager
def editing(
    path: str | os.PathLike[str],
    *,
    covar_module: Kernel | None = None,
    confidence: Confidence | None = None,
    delay: DelayLaw | None = None,
    rule: Rule | Callable[..., Any] | None = None,
    feasible: Callable[[Tensor], Tensor] | None = None,
    device: torch.device | str | None = None,
) -> Iterator[Optimizer]:
    """Load, change and save a file while every other process waits.

    What the block does to the optimizer is committed when it ends, and not if it raises; it
    must not save to the file itself. Two processes that ask at once therefore get different
    trials.

    Args:
        path: as in :func:`load`.
        covar_module: likewise.
        confidence: likewise.
        delay: likewise.
        rule: likewise.
        feasible: likewise.
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
    parts = _Parts(covar_module, confidence, delay, rule, feasible, device)
    with sqlite.editing(path) as lock:
        optimizer = _make(path, lock.state, parts)
        yield optimizer
        optimizer._write(lock.write)


@dataclass(frozen=True)
class _Parts:
    """What the user hands over again, because it cannot be rebuilt."""

    covar_module: Kernel | None
    confidence: Confidence | None
    delay: DelayLaw | None
    rule: Rule | Callable[..., Any] | None
    feasible: Callable[[Tensor], Tensor] | None
    device: torch.device | str | None


def _make(path: str | os.PathLike[str], state: Mapping[str, Any], parts: _Parts) -> Optimizer:
    key = "points" if "points" in state else "bounds"
    try:
        array = state[key].to(parts.device or "cpu")
    except (RuntimeError, AssertionError, TypeError) as error:
        raise InputError(f"device={parts.device!r} cannot be used: {error}") from error
    try:
        optimizer = _build(state, _domain(key, array, state["config"], parts.feasible), parts)
        optimizer.load_state_dict(state)
    except StorageError as error:
        raise StorageError(f"{path}: {truncated(error)}") from error
    except Warning:  # where the user has made errors of them
        raise
    except Exception as error:  # whatever a forged file leads to
        raise StorageError(f"{path}: what is stored cannot be used: {truncated(error)}") from error
    return optimizer


def _domain(
    key: str,
    array: Tensor,
    config: Mapping[str, Any],
    feasible: Callable[[Tensor], Tensor] | None,
) -> Domain:
    names, log_dims = config["names"], config["log_dims"]
    if key == "points":
        return FiniteDomain(
            array, names=names, log_dims=log_dims, cat_dims=config.get("cat_dims", ())
        )
    if config["feasible"] is not None and feasible is None:
        raise StorageError("The stored box has a test of feasibility; pass feasible to load.")
    values = [
        {int(dim): allowed for dim, allowed in config[name].items()}
        for name in ("discrete_dims", "cat_dims")
    ]
    return BoxDomain(
        array,
        *values,
        constraints=config["constraints"],
        feasible=feasible,
        names=names,
        log_dims=log_dims,
    )


def _build(state: Mapping[str, Any], domain: Domain, parts: _Parts) -> Optimizer:
    """A fresh optimizer of a stored configuration."""
    config, name = state["config"], state["optimizer"]
    finite = cast(FiniteDomain, domain)  # of what needs one; others refuse a box themselves
    if name == QueuedOptimizer.__name__:
        inner = config["base"]
        return QueuedOptimizer(_build(inner | {"recipes": state["recipes"]["base"]}, domain, parts))
    exact = config.get("exact") is True
    common: dict[str, Any] = {
        "covar_module": _kernel(state, domain, parts.covar_module),
        "noise_var": None if exact else config.get("noise_var"),
        "seed": config.get("seed"),
        "maximize": config.get("maximize"),
    }
    if name != ThreDSOptimizer.__name__:
        common["exact"] = exact
    if name == BPEDelayOptimizer.__name__:
        make: Callable[..., BPEDelayOptimizer] = BPEDelayOptimizer.as_published
        if not config["as_published"]:
            make = BPEDelayOptimizer
            common["warm_start"] = build_part(config.get("warm_start"), "warm_start")
            common["rounds"] = build_part(config["rounds"], "rounds")
            common["exploit"] = parts.rule or build_part(config["exploit"], "rule")
            common["explore_fraction"] = config["explore_fraction"]
            common["evidence"] = config["evidence"]
            common["regret_factor"] = config.get("regret_factor")
            common["straggler_factor"] = config.get("straggler_factor")
            common["repeat_pending"] = config.get("repeat_pending") is not False
            common["confirm_fraction"] = config.get("confirm_fraction") or 0.0
        else:
            del common["exact"]
        return make(
            finite,
            config["horizon"],
            confidence=parts.confidence or build_part(config["confidence"], "confidence"),
            delay=parts.delay or build_part(config["delay"], "delay"),
            delta=config["delta"],
            **common,
        )
    common["horizon"] = config["horizon"]
    if name == RandomOptimizer.__name__:
        return RandomOptimizer(domain, **common)
    if name == AcquisitionOptimizer.__name__:
        return AcquisitionOptimizer(
            finite,
            rule=parts.rule or build_part(config["rule"], "rule"),
            pending=build_part(config["pending"], "pending"),
            warm_start=build_part(config.get("warm_start"), "warm_start"),
            repeat_pending=config.get("repeat_pending") is not False,
            **common,
        )
    if name == ThreDSOptimizer.__name__:
        return ThreDSOptimizer(
            finite,
            confidence=parts.confidence or build_part(config["confidence"], "confidence"),
            interval=tuple(config["interval"]),
            patience=config["patience"],
            delta=config["delta"],
            **common,
        )
    raise StorageError(f"It holds an unknown optimizer, {brief(name)}.")


def _kernel(state: Mapping[str, Any], domain: Domain, given: Kernel | None) -> Kernel | None:
    stored = state["config"].get("covar_module")
    if given is not None or stored is None:
        return given
    recipe = state["recipes"].get("covar_module")
    if recipe is None:
        raise StorageError(
            f"The stored kernel is a {stored.get('class')}, which cannot be rebuilt; pass "
            "covar_module to load."
        )
    return build_kernel(recipe, domain.like)
