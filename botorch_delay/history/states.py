"""States as plain values: what one must look like, and of which optimizer it is."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from botorch_delay.exceptions import StorageError
from botorch_delay.history.events import brief

FORMAT = 6
_TYPES: dict[str, type] = {
    "format": int,
    "optimizer": str,
    "config": Mapping,
    "notes": Mapping,
    "events": list,
}
# Parts of a record that are no arguments of what it records.
_LAYERS = frozenset({"arguments", "config", "hyperparameters", "options", "structure"})


def check_format(version: Any, what: str) -> None:
    """Refuse another version than the present one."""
    if isinstance(version, int) and version == FORMAT:
        return
    advice = ""
    if isinstance(version, int) and version > FORMAT:
        advice = " It is of a newer version of the library, with which it can be read."
    raise StorageError(
        f"{what} has format {brief(version)}; this version of botorch_delay reads {FORMAT}.{advice}"
    )


def check_state(state: Mapping[str, Any]) -> None:
    """Refuse what has not the outermost layer of a state, or is of another version."""
    if not isinstance(state, Mapping):
        raise StorageError(f"A state is a dict, got {type(state).__name__}; use state_dict().")
    check_format(state.get("format"), "The state")
    if not isinstance(state.get("points", state.get("bounds")), Tensor):
        raise StorageError("The state is malformed: it has neither points nor bounds.")
    for key, kind in _TYPES.items():
        if not isinstance(state.get(key), kind):
            raise StorageError(f"The state is malformed: {key} is {brief(state.get(key))}.")


def difference(
    own: Any, stored: Any, tolerance: float = 1e-9, option: str = ""
) -> tuple[str, Any, Any] | None:
    """The innermost place where two configurations first differ; None where they agree.

    Args:
        own: one of them: tensors, and JSON-ready values.
        stored: the other.
        tolerance: up to which numbers agree that are in no tensor, relative to the larger one.
        option: the place of both.

    Returns:
        The place as a user writes it, such as ``covar_module.lengthscale``, and both values.
    """
    here = (option, own, stored)
    if isinstance(own, Tensor) and isinstance(stored, Tensor):
        return _first_entry(own.cpu(), stored.cpu(), option)
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
        return None if own is stored or own == stored else here
    for key, one, other in entries:
        dot = "." if option and not key.startswith("[") else ""
        place = option if key in _LAYERS else f"{option}{dot}{key}"
        found = difference(one, other, tolerance, place)
        if found is not None:
            return found
    return None


def _first_entry(own: Tensor, stored: Tensor, option: str) -> tuple[str, Any, Any] | None:
    if own.dtype != stored.dtype or own.shape != stored.shape:
        return option, own, stored
    if torch.equal(own, stored):
        return None
    place = tuple((own != stored).nonzero()[0].tolist())
    return f"{option}{list(place)}", own[place].item(), stored[place].item()


def check_same(own: Mapping[str, Any], stored: Mapping[str, Any], tolerance: float) -> None:
    """Refuse a state of another configuration.

    Args:
        own: the configuration of the optimizer, with the tensor of its domain.
        stored: that of the state.
        tolerance: up to which numbers agree.

    Raises:
        StorageError: if they differ; it names the innermost option that does.
    """
    found = difference(own, stored, tolerance)
    if found is None:
        return
    option, here, there = found
    if option.startswith("feasible"):  # known by what it says of some points
        raise StorageError(
            "The state was made with another test of feasibility, or with none; make the "
            "optimizer with the same feasible."
        )
    raise StorageError(
        f"The state was made with {option}={_text(there)}, this optimizer has "
        f"{option}={_text(here)}; make it with the same arguments, or use "
        "botorch_delay.load(path)."
    )


def _text(value: Any) -> str:
    """A value for a message; a recorded part as it is made."""
    if isinstance(value, Tensor):
        return f"<{tuple(value.shape)} of {value.dtype}>"
    if isinstance(value, Mapping) and isinstance(value.get("arguments"), Mapping):
        given = ", ".join(f"{name}={_text(entry)}" for name, entry in value["arguments"].items())
        return f"{value['class']}({given})"
    if isinstance(value, Mapping) and "class" in value:
        return str(value.get("factory", value["class"]))
    return brief(value)
