"""Kernels, confidences and delay laws as plain records, and back.

What is on the fixed lists is rebuilt from its record. Anything else is stored by name and by
what it does, must be passed to ``load`` again, and is checked against what was stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from botorch_delay.confidence.bounds import FixedBeta, RKHSConfidence
from botorch_delay.delays import (
    ConstantDelay,
    DelayLaw,
    GeometricDelay,
    NoDelay,
    PoissonDelay,
    SubExponentialDelay,
)
from botorch_delay.elimination.rounds import GeometricRounds, HorizonRounds
from botorch_delay.exceptions import BotorchDelayError, StorageError
from botorch_delay.gp.kernels import covariance, describe_kernel, hyperparameters
from botorch_delay.gp.surrogate import Hyperparameters
from botorch_delay.optimizers.rules import (
    UCB,
    BotorchRule,
    Censor,
    Hallucinate,
    Ignore,
    ThompsonSampling,
)

_PROBES = 8

_PARTS: dict[type, tuple[str, ...]] = {
    FixedBeta: ("beta",),
    RKHSConfidence: ("norm_bound", "noise_std", "tight", "uniform", "c"),
    NoDelay: (),
    ConstantDelay: ("steps",),
    PoissonDelay: ("mean",),
    GeometricDelay: ("mean",),
    SubExponentialDelay: ("mean", "xi", "b", "paper_min"),
    UCB: ("beta",),
    ThompsonSampling: ("beta", "n_features"),
    Ignore: (),
    Hallucinate: (),
    Censor: ("worst_value", "max_delay", "inflate"),
    Hyperparameters: ("lengthscale", "noise_var"),
    HorizonRounds: (),
    GeometricRounds: ("first", "growth"),
}


def describe_part(part: Any, points: Tensor | None = None) -> dict[str, Any] | None:
    """A JSON-ready record of a kernel, a confidence or a delay law; None of None.

    Args:
        part: the object.
        points: ``N x d``; a kernel that cannot be rebuilt is also known by its values between
            some of them.
    """
    if part is None:
        return None
    if isinstance(part, Kernel):
        assert points is not None
        record = {"class": type(part).__name__, "hyperparameters": hyperparameters(part)}
        recipe = describe_kernel(part)
        if recipe is not None:
            return record | {"structure": _structure(recipe)}
        spread = torch.linspace(0, len(points) - 1, min(_PROBES, len(points))).long()
        probe = points[spread]
        with torch.no_grad():
            values = covariance(part, probe, probe)
        return record | {"values": values.tolist()}
    if isinstance(part, BotorchRule):
        options = {key: _plain(value) for key, value in part.options.items()}
        return {"class": BotorchRule.__name__, "factory": part.name, "options": options}
    fields = _PARTS.get(type(part))
    if fields is None:
        return {"class": type(part).__name__, **_traits(part)}
    return {
        "class": type(part).__name__,
        "arguments": {name: _as_in_json(getattr(part, name)) for name in fields},
    }


def _as_in_json(value: Any) -> Any:
    """A value as it is read back from JSON, which knows lists alone."""
    return list(value) if isinstance(value, tuple) else value


def _plain(value: Any) -> Any:
    """An option as it is if it is a plain value, else a name for it in a list."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return [type(value).__name__]


def _structure(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """A kernel's recipe without its parameters, which are compared up to rounding."""
    kept = {key: value for key, value in recipe.items() if key not in ("parameters", "parts")}
    return kept | {"parts": [_structure(part) for part in recipe.get("parts", [])]}


def _traits(part: Any) -> dict[str, Any]:
    """What a part that is not on the list is known by."""
    traits: dict[str, Any] = {
        f"has {name}": value
        for name, value in vars(part).items()
        if isinstance(value, bool | int | float | str)
    }
    if "object at 0x" not in repr(part):  # the default names an address
        traits["repr"] = repr(part)
    if isinstance(part, DelayLaw):
        traits["mean"] = float(part.mean)
    return traits


def build_part(record: Mapping[str, Any] | None, name: str) -> Any:
    """The confidence, delay law, rule or way of pending points of a record; None of None.

    Args:
        record: what :func:`describe_part` gave.
        name: the argument that it is for.

    Raises:
        StorageError: if it is malformed, or not on the list and has to be passed by the user.
    """
    if record is None:
        return None
    try:
        kind, arguments = record["class"], record.get("arguments")
        if kind == BotorchRule.__name__:
            return _build_rule(record, name)
        known = {part.__name__: part for part in _PARTS}
        if kind not in known or arguments is None:
            raise StorageError(
                f"The stored {name} is {str(record.get('repr', kind))[:80]}, which cannot be "
                f"rebuilt; pass {name} to load."
            )
        return known[kind](**arguments)
    except (AttributeError, KeyError, TypeError, ValueError, BotorchDelayError) as error:
        if isinstance(error, StorageError):
            raise
        raise StorageError(f"The stored {name} is malformed: {error}.") from error


def _build_rule(record: Mapping[str, Any], name: str) -> BotorchRule:
    """A rule around one of BoTorch's own acquisition classes, with plain options."""
    from botorch.acquisition.input_constructors import ACQF_INPUT_CONSTRUCTOR_REGISTRY

    known = {factory.__name__: factory for factory in ACQF_INPUT_CONSTRUCTOR_REGISTRY}
    factory, options = record["factory"], record["options"]
    own = factory in known and known[factory].__module__.startswith("botorch.")
    if not own or any(isinstance(value, list) for value in options.values()):
        raise StorageError(
            f"The stored {name} is a BotorchRule of {str(factory)[:60]!r}, which cannot be "
            f"rebuilt; pass {name} to load."
        )
    return BotorchRule(known[factory], **options)
