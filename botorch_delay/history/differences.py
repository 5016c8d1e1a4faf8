"""Where two configurations differ, and how to say it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from botorch_delay.domains.finite import Domain
from botorch_delay.exceptions import StorageError

_LONGEST = 60  # of a value in a message
# Parts of a record that are no arguments of what it records.
_LAYERS = frozenset({"arguments", "config", "hyperparameters", "options", "structure"})


class Difference(NamedTuple):
    """The innermost place where two JSON-ready values differ.

    Attributes:
        option: the place as a user writes it, such as ``covar_module.lengthscale``.
        own: what is there in the one.
        stored: what is there in the other.
    """

    option: str
    own: Any
    stored: Any


def difference(
    own: Any, stored: Any, tolerance: float = 1e-9, option: str = ""
) -> Difference | None:
    """The first place where two JSON-ready values differ; None where they agree.

    Args:
        own: one value.
        stored: another.
        tolerance: up to which numbers agree, relative to the larger one.
        option: the place of both.
    """
    here = Difference(option, own, stored)
    if isinstance(own, Mapping) and isinstance(stored, Mapping):
        if own.get("class") != stored.get("class"):
            return here
        # What a kernel is made of says more than that a hyperparameter is missing; its raw
        # parameters say what hyperparameters say.
        keys = sorted({**own, **stored}, key=lambda key: key != "structure")
        entries = [(key, own.get(key), stored.get(key)) for key in keys if key != "parameters"]
    elif isinstance(own, list) and isinstance(stored, list) and len(own) == len(stored):
        entries = [(f"[{i}]", *pair) for i, pair in enumerate(zip(own, stored, strict=True))]
    elif isinstance(own, float) and isinstance(stored, int | float):
        same = math.isclose(own, stored, rel_tol=tolerance, abs_tol=1e-300)
        return None if same else here
    else:
        return None if own == stored else here
    for key, one, other in entries:
        dot = "." if option and not key.startswith("[") else ""
        place = option if key in _LAYERS else f"{option}{dot}{key}"
        found = difference(one, other, tolerance, place)
        if found is not None:
            return found
    return None


def check_array(domain: Domain, state: Mapping[str, Any]) -> None:
    """Refuse a state of other points or bounds.

    Raises:
        StorageError: if they differ.
    """
    own, stored = domain.like, state.get("points", state.get("bounds"))
    key = "points" if domain.count is not None else "bounds"
    if key not in state or not isinstance(stored, Tensor):
        kinds = ("a finite set of points", "a box")
        here, there = kinds if key == "points" else kinds[::-1]
        problem = f"The state is of {there}, this optimizer of {here}"
    elif stored.dtype != own.dtype or stored.shape != own.shape:
        problem = (
            f"The state's {key} are {tuple(stored.shape)} of {stored.dtype}, this optimizer's "
            f"{tuple(own.shape)} of {own.dtype}"
        )
    elif not torch.equal(stored.cpu(), own.cpu()):
        row, column = (stored.cpu() != own.cpu()).nonzero()[0].tolist()
        problem = (
            f"The state's {key} have {stored[row, column].item()} in row {row} and column {column} "
            f"({domain.names[column]!r}), this optimizer's {own[row, column].item()}"
        )
    else:
        return
    raise StorageError(
        f"{problem}; make the optimizer with the same {key}, or use botorch_delay.load(path)."
    )


def check_options(own: Mapping[str, Any], stored: Mapping[str, Any], tolerance: float) -> None:
    """Refuse a state of another configuration.

    Args:
        own: the configuration of the optimizer, JSON-ready.
        stored: that of the state.
        tolerance: up to which numbers agree.

    Raises:
        StorageError: if they differ; it names the innermost option that does.
    """
    for key in {**own, **stored}:
        found = difference(own.get(key), stored.get(key), tolerance, key)
        if found is None:
            continue
        if key == "feasible":  # known by what it says of some points
            raise StorageError(
                "The state was made with another test of feasibility, or with none; make the "
                "optimizer with the same feasible."
            )
        raise StorageError(
            f"The state was made with {found.option}={_text(found.stored)}, this optimizer has "
            f"{found.option}={_text(found.own)}; make it with the same arguments."
        )


def _text(value: Any) -> str:
    """A value for a message; a recorded part as it is made."""
    if isinstance(value, Mapping) and isinstance(value.get("arguments"), Mapping):
        given = ", ".join(f"{name}={_text(entry)}" for name, entry in value["arguments"].items())
        text = f"{value['class']}({given})"
    elif isinstance(value, Mapping) and "class" in value:
        text = str(value.get("factory", value["class"]))
    else:
        text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
