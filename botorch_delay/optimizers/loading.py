"""Load optimizers from files, and edit the files in place."""

from __future__ import annotations

import copy
import inspect
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from botorch_delay import validation
from botorch_delay.confidence.bounds import Confidence
from botorch_delay.delays import DelayLaw
from botorch_delay.domains.box import BoxDomain
from botorch_delay.domains.columns import Columns
from botorch_delay.domains.domain import Domain
from botorch_delay.domains.finite import FiniteDomain
from botorch_delay.exceptions import InputError, StorageError
from botorch_delay.history import sqlite
from botorch_delay.history.events import excerpt, truncated
from botorch_delay.optimizers.acquisition_optimizer import AcquisitionOptimizer
from botorch_delay.optimizers.base import Optimizer
from botorch_delay.optimizers.bpe import BPEDelayOptimizer
from botorch_delay.optimizers.part_records import build_part
from botorch_delay.optimizers.queued import QueuedOptimizer
from botorch_delay.optimizers.random import RandomOptimizer
from botorch_delay.optimizers.rules import Rule
from botorch_delay.optimizers.threds import ThreDSOptimizer


def load(
    path: str | os.PathLike[str],
    *,
    covar_module: Kernel | None = None,
    confidence: Confidence | None = None,
    delay: DelayLaw | None = None,
    rule: Rule | Callable[..., Any] | None = None,
    feasible: Callable[[Any], Any] | None = None,
    device: torch.device | str | None = None,
) -> Optimizer:
    """The optimizer in a file, ready to go on with the same asks, rounds and pending trials.

    Args:
        path: a file that ``save`` wrote.
        covar_module: the kernel, if it is not one of GPyTorch's.
        confidence: the confidence bounds, if they are of your own class.
        delay: the delay law, if it is of your own class.
        rule: the rule, if it is of your own class or wraps your own acquisition function.
        feasible: the feasibility test of the box or :class:`Space`, if it has one; not for a grid,
            whose points are stored.
        device: where the tensors are put; the CPU by default.

    Raises:
        InputError: if the device cannot be used.
        StorageError: if the file cannot be read, or a part is missing, differs from the stored one
            or is not used by the study.
    """
    parts = {"covar_module": covar_module, "confidence": confidence, "delay": delay, "rule": rule}
    return _make(path, sqlite.read(path), parts | {"feasible": feasible, "device": device})


@contextmanager
def editing(path: str | os.PathLike[str], **parts: Any) -> Iterator[Optimizer]:
    """Load, change and save a file while every other process waits.

    The changes are committed when the block ends, unless it raises; the block must not save to the
    file itself. So two processes that ask at once get different trials. Arguments and errors are
    those of :func:`load`.

    Raises:
        StorageError: also if another process holds the file for too long.
    """
    inspect.signature(load).bind(path, **parts)
    with sqlite.editing(path) as (state, write):
        optimizer = _make(path, state, parts)
        yield optimizer
        with optimizer._lock.held:
            optimizer._take_notes()
            write(optimizer._header(), optimizer._ledger)


def resume(optimizer: Optimizer, path: str | os.PathLike[str]) -> bool:
    """Continue the study in a file with an optimizer made the same way; False if there is none.

    Raises:
        StorageError: as ``load_state_dict``, or if the optimizer has attached results or notes that
            the study lacks; then nothing is changed.
    """
    if not sqlite.holds_study(path):
        return False
    state = sqlite.read(path)
    if optimizer.attached or optimizer.notes:
        stored = copy.deepcopy(optimizer)
        stored.load_state_dict(state)
        own, there = (
            Counter((*result.x.tolist(), result.value) for result in results)
            for results in (optimizer.attached, [*stored.attached, *stored.detached])
        )
        if not (own <= there and optimizer.notes.items() <= stored.notes.items()):
            raise StorageError(
                f"{os.fspath(path)} holds a study that lacks some of what was attached or noted "
                "before this call, and loading it would lose that; attach and note after "
                "botorch_delay.load, or in on_result."
            )
    optimizer.load_state_dict(state)
    return True


def _make(
    path: str | os.PathLike[str], state: Mapping[str, Any], parts: Mapping[str, Any]
) -> Optimizer:
    validation.instance(parts.get("feasible"), Callable | None, "feasible", "a function")
    key = "points" if "points" in state else "bounds"
    device = parts.get("device")
    try:
        array = state[key].to(device or "cpu")
    except (RuntimeError, AssertionError, TypeError) as error:
        raise InputError(f"device={device!r} cannot be used: {error}") from error
    if isinstance(kernel := parts.get("covar_module"), Kernel):
        for parameter in kernel.parameters():
            if parameter.device != array.device:
                raise InputError(
                    f"covar_module is on {parameter.device} and the study would be on "
                    f"{array.device}: pass device={str(parameter.device)!r}, or move the kernel."
                )
    try:
        _check_used(parts, state["config"])
        domain = _domain(key, array, state["config"], parts.get("feasible"))
        optimizer = _build(state["optimizer"], state["config"], domain, parts)
        optimizer.load_state_dict(state)
    except StorageError as error:
        raise StorageError(f"{path}: {truncated(error)}") from error
    except Warning:  # the user has turned warnings into errors
        raise
    except Exception as error:  # whatever a forged file leads to
        given = [name for name, part in parts.items() if part is not None and name != "device"]
        used = f"used with {', '.join(given)} as given" if given else "used"
        said = f"{path}: what is stored cannot be {used}: {truncated(error)}"
        raise StorageError(said) from error
    return optimizer


def _check_used(parts: Mapping[str, Any], config: Mapping[str, Any]) -> None:
    """Refuse a part for which the stored configuration has no argument at any depth."""
    known, nested = {"device"}, [config]
    while nested:
        record = nested.pop()
        known.update(record)
        nested += [value for value in record.values() if isinstance(value, Mapping)]
    for name, part in parts.items():
        if part is not None and name not in known:
            raise StorageError(f"The study has no {name}; do not pass {name} to load.")


def _domain(
    key: str, array: Tensor, config: Mapping[str, Any], feasible: Callable[[Any], Any] | None
) -> Domain:
    given = {name: config[name] for name in ("names", "log_dims")}
    if "space" in config:
        given["names"] = Columns.build(config["space"])
    if key == "points":
        if feasible is not None:
            raise StorageError(
                "The stored points are all that may be asked; do not pass feasible to load."
            )
        return FiniteDomain(array, cat_dims=config.get("cat_dims", ()), **given)
    if config["feasible"] is not None and feasible is None:
        raise StorageError(
            "The stored space has a test of feasibility, a function that no file can hold: open "
            "the file in Python with bd.load(path, feasible=...)."
        )
    for name in ("discrete_dims", "cat_dims"):
        given[name] = {int(dim): allowed for dim, allowed in config[name].items()}
    return BoxDomain(array, constraints=config["constraints"], feasible=feasible, **given)


def _build(
    name: str, config: Mapping[str, Any], domain: Domain, parts: Mapping[str, Any]
) -> Optimizer:
    """A fresh optimizer from a stored configuration, which has its constructor's arguments."""
    if name == QueuedOptimizer.__name__:
        return QueuedOptimizer(_build(config["base"], config, domain, parts))
    if name not in _KINDS:
        raise StorageError(f"It holds an unknown optimizer, {excerpt(name)}.")
    make = _KINDS[name]
    if config.get("as_published"):
        make = BPEDelayOptimizer.as_published
    names = [name for name in inspect.signature(make).parameters if name != "domain"]
    return make(domain, **{n: build_part(config[n], n, domain.like, parts) for n in names})


_KINDS: dict[str, Callable[..., Optimizer]] = {
    kind.__name__: kind
    for kind in (AcquisitionOptimizer, BPEDelayOptimizer, RandomOptimizer, ThreDSOptimizer)
}
