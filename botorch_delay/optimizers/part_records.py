"""Kernels, rules, delay laws and other parts as plain records, and back.

A part that this library defines is recorded by its class and constructor arguments, which are also
its attributes; a kernel of GPyTorch by its structure. Both are rebuilt from their records. Any
other part is recorded by its name and attributes (a kernel by some of its values): it must be
passed to ``load`` again, and is compared with its record.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cached_property
from typing import Any

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from botorch_delay.confidence.bounds import FixedBeta, RKHSConfidence
from botorch_delay.delays import (
    ConstantDelay,
    GeometricDelay,
    NoDelay,
    PoissonDelay,
    SubExponentialDelay,
)
from botorch_delay.elimination.rounds import GeometricRounds, HorizonRounds
from botorch_delay.exceptions import StorageError
from botorch_delay.gp.kernels import build_kernel, covariance, describe_kernel, hyperparameters
from botorch_delay.gp.surrogate import Hyperparameters, Learned
from botorch_delay.optimizers.certifying import CertifyingUCB
from botorch_delay.optimizers.exploit import Exploit, WithinBudget
from botorch_delay.optimizers.pending import Censor, Hallucinate, Ignore, KrigingBeliever
from botorch_delay.optimizers.rules import UCB, BotorchRule, ThompsonSampling

_PLAIN = (bool, int, float, str, type(None))
# A kernel that cannot be rebuilt is recognised by its covariance matrix of this many points.
_PROBES = 8
_REBUILT: dict[str, type] = {
    part.__name__: part
    for part in (
        *(FixedBeta, RKHSConfidence),
        *(NoDelay, ConstantDelay, PoissonDelay, GeometricDelay, SubExponentialDelay),
        *(UCB, CertifyingUCB, ThompsonSampling, Exploit, WithinBudget),
        *(Ignore, Hallucinate, KrigingBeliever, Censor),
        *(Hyperparameters, Learned),
        *(HorizonRounds, GeometricRounds),
    )
}
_ARGUMENTS = {name: tuple(inspect.signature(part).parameters) for name, part in _REBUILT.items()}


def describe_part(part: Any, points: Tensor | None = None) -> Any:
    """A JSON-ready record of a part; None, numbers, strings and lists of these stay as they are.

    A kernel that cannot be rebuilt is recorded by its values at some of ``points``, ``N x d``.
    """
    if isinstance(part, _PLAIN):
        return part
    if isinstance(part, tuple | list):
        return [describe_part(entry) for entry in part]
    kind = type(part)
    if isinstance(part, Kernel):
        record = {"class": kind.__name__, "hyperparameters": hyperparameters(part)}
        if (structure := describe_kernel(part)) is not None:
            return record | {"structure": structure}
        if points is not None:
            spread = torch.linspace(0, len(points) - 1, min(_PROBES, len(points))).long()
            with torch.no_grad():
                record["values"] = covariance(part, points[spread], points[spread]).tolist()
        return record
    if isinstance(part, BotorchRule):
        options = {key: _plain(value) for key, value in part.options.items()}
        return {"class": kind.__name__, "factory": part.name, "options": options}
    if _REBUILT.get(kind.__name__) is not kind:  # by its full name, no key of _REBUILT
        attributes = {name: _plain(getattr(part, name)) for name in _attributes(part)}
        return {"class": f"{kind.__module__}.{kind.__qualname__}", "arguments": attributes}
    arguments = {name: describe_part(getattr(part, name)) for name in _ARGUMENTS[kind.__name__]}
    return {"class": kind.__name__, "arguments": arguments}


def _attributes(part: Any) -> list[str]:
    """Attribute names of an object of a user's class, without properties and cached properties."""
    named = [entry.name for entry in fields(part)] if is_dataclass(part) else []
    kept = [name for name in getattr(part, "__dict__", {}) if name not in named]
    computed = (cached_property, property)
    return named + [n for n in kept if not isinstance(getattr(type(part), n, None), computed)]


def _plain(value: Any) -> Any:
    """A plain value as it is, a part of this library as its record, else ``[class name]``."""
    if _REBUILT.get(type(value).__name__) is type(value):
        return describe_part(value)
    return value if isinstance(value, _PLAIN) else [type(value).__name__]


def build_part(
    record: Any, name: str, like: Tensor, passed: Mapping[str, Any] | None = None
) -> Any:
    """The part that :func:`describe_part` recorded, for the argument ``name``.

    A kernel gets the dtype and device of ``like``. ``passed`` has parts by the names of the
    arguments; they replace recorded ones at any depth.
    """
    if passed and passed.get(name) is not None:
        is_given = isinstance(record, Mapping) and "hyperparameters" in record
        if isinstance(passed[name], Kernel) and not is_given:
            raise StorageError(f"The study learns its kernel; do not pass {name} to load.")
        if record is None:
            raise StorageError(f"The study was made without {name}; do not pass {name} to load.")
        return passed[name]
    if not isinstance(record, Mapping):
        return record
    try:
        kind = record["class"]
        if "structure" in record:
            return build_kernel(record["structure"], like)
        if kind == BotorchRule.__name__:
            return _build_rule(record, name)
        if kind not in _REBUILT:
            raise StorageError(
                f"The stored {name} is a {str(kind)[:80]}, which cannot be rebuilt; pass {name} to "
                "load."
            )
        parts = record["arguments"].items()
        return _REBUILT[kind](**{key: build_part(part, key, like, passed) for key, part in parts})
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        if isinstance(error, StorageError):
            raise
        text = str(error).rstrip(".")
        raise StorageError(f"The stored {name} is malformed: {text}.") from error


def _build_rule(record: Mapping[str, Any], name: str) -> BotorchRule:
    """The rule of an acquisition function class of BoTorch or this package, with plain options."""
    from botorch.acquisition.input_constructors import ACQF_INPUT_CONSTRUCTOR_REGISTRY

    known = {factory.__name__: factory for factory in ACQF_INPUT_CONSTRUCTOR_REGISTRY}
    factory, options = record["factory"], record["options"]
    own = factory in known and known[factory].__module__.startswith(("botorch.", "botorch_delay."))
    if not own or any(isinstance(value, list) for value in options.values()):
        raise StorageError(
            f"The stored {name} is a BotorchRule of {str(factory)[:60]!r}, which cannot be "
            f"rebuilt; pass {name} to load."
        )
    return BotorchRule(known[factory], **options)
