"""Checks of stored states: of their form, and that they belong to an optimizer."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from botorch_delay.exceptions import StorageError
from botorch_delay.history.events import MOST_SHOWN, excerpt

FORMAT = 10  # version of the format of states and files
_TYPES: dict[str, type] = {"optimizer": str, "config": Mapping, "notes": Mapping, "events": list}
# Levels of a stored configuration that are no arguments of the user's: left out of messages.
_LAYERS = re.compile(r"\.(arguments|hyperparameters|options|structure)\b")
_FIRST = ("names", "space")  # compared first: users know parameters better than bounds


def check_format(version: Any, what: str) -> None:
    """Raise StorageError for any format but the present one."""
    if isinstance(version, int) and version == FORMAT:
        return
    advice = ""
    if isinstance(version, int) and version > FORMAT:
        advice = " It was saved by a newer version of the library; read it with that one."
    raise StorageError(
        f"{what} has format {excerpt(version)}; this version of botorch_delay reads "
        f"{FORMAT}.{advice}"
    )


def check_state(state: Mapping[str, Any]) -> None:
    """Raise StorageError for a state that lacks entries, or has another format."""
    if not isinstance(state, Mapping) or "format" not in state:
        what = "a dict without a format" if isinstance(state, Mapping) else type(state).__name__
        raise StorageError(f"A state must be what state_dict() returned, got {what}.")
    check_format(state.get("format"), "The state")
    if not isinstance(state.get("points", state.get("bounds")), Tensor):
        raise StorageError("The state is malformed: it has neither points nor bounds.")
    for key, kind in _TYPES.items():
        if not isinstance(state.get(key), kind):
            raise StorageError(f"The state is malformed: {key} is {excerpt(state.get(key))}.")


def difference(
    own: Any, stored: Any, tolerance: float = 1e-9, place: str = ""
) -> tuple[str, Any, Any] | None:
    """The first place where two configurations differ, and both values; None if they agree.

    They consist of tensors and JSON-ready values; floats agree up to a relative tolerance.
    """
    here = place.removeprefix("."), own, stored
    if isinstance(own, Tensor) and isinstance(stored, Tensor):
        own, stored = own.cpu(), stored.cpu()
        if own.dtype != stored.dtype or own.shape != stored.shape:
            return here
        if torch.equal(own, stored):
            return None
        own, stored, tolerance = own.tolist(), stored.tolist(), 0.0
    if isinstance(own, Mapping) and isinstance(stored, Mapping):
        keys = sorted({**own, **stored}, key=lambda key: key not in _FIRST)
        entries = [(f".{key}", own.get(key), stored.get(key)) for key in keys]
    elif place.endswith(".names") and max(map(len, (repr(own), repr(stored)))) <= MOST_SHOWN:
        return None if own == stored else here  # they may only be in another order
    elif isinstance(own, list) and isinstance(stored, list) and len(own) == len(stored):
        pairs = enumerate(zip(own, stored, strict=True))
        entries = [(f"[{_name_in(one) or number}]", one, other) for number, (one, other) in pairs]
    elif isinstance(own, float) and isinstance(stored, int | float):
        same = math.isclose(own, stored, rel_tol=tolerance, abs_tol=1e-300)
        return None if same else here
    else:
        return None if own == stored else here
    found = (difference(one, other, tolerance, place + key) for key, one, other in entries)
    return next(filter(None, found), None)


def _name_in(entry: Any) -> str:
    """The name, in quotes, of an entry of a list, such as a parameter; empty if it has none."""
    return repr(entry["name"]) if isinstance(entry, Mapping) and "name" in entry else ""


def check_same(own: Mapping[str, Any], stored: Mapping[str, Any], tolerance: float) -> None:
    """Raise StorageError if a stored configuration is not ``own``, and name what differs."""
    found = difference(own, stored, tolerance)
    if found is None:
        return
    place, here, there = found
    option = _LAYERS.sub("", place)
    if option.startswith("feasible"):  # stored as its results at some points
        raise StorageError(
            "The saved study was made with another test of feasibility, or with none; make the "
            "optimizer with the same feasible."
        )
    raise StorageError(
        f"The saved study was made with {option}={_text(there)}, this optimizer has "
        f"{option}={_text(here)}. To resume it, make the optimizer, and rules or laws of your own, "
        "with the same arguments, or, without such parts, call botorch_delay.load(path). To change "
        "an argument, begin another file and attach the results of this one."
    )


def _text(value: Any) -> str:
    is_tensor = isinstance(value, Tensor)
    return f"<{tuple(value.shape)} of {value.dtype}>" if is_tensor else excerpt(value)
