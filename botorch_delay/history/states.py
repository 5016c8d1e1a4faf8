"""States as plain values: what one must look like."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from botorch_delay.domains.finite import Domain
from botorch_delay.exceptions import StorageError
from botorch_delay.history.events import brief

FORMAT = 4
_PARTS: dict[str, type] = {
    "format": int,
    "optimizer": str,
    "config": Mapping,
    "notes": Mapping,
    "events": list,
}


def domain_array(domain: Domain) -> tuple[str, Tensor]:
    """The tensor that defines a domain, and the name it is stored under."""
    return ("points" if domain.count is not None else "bounds"), domain.like


def check_format(version: Any, what: str) -> None:
    """Refuse another version than the present one.

    Raises:
        StorageError: if it is older or newer, or none.
    """
    if version == FORMAT and isinstance(version, int):
        return
    if isinstance(version, int) and version > FORMAT:
        raise StorageError(
            f"{what} has format {version}, newer than the {FORMAT} that this version of "
            "botorch_delay reads; upgrade it with pip install -U botorch-delay."
        )
    if version in range(1, FORMAT):
        raise StorageError(
            f"{what} has format {version}, of a version before the first release. Its results are "
            "in its trials: hand them to a new optimizer with attach(x, y)."
        )
    raise StorageError(f"{what} is malformed: format is {brief(version)}.")


def check_state(state: Mapping[str, Any]) -> None:
    """Refuse what has not the outermost layer of a state.

    Raises:
        StorageError: if it has not, or if it is of another version.
    """
    if not isinstance(state, Mapping):
        raise StorageError(f"A state is a dict, got {type(state).__name__}; use state_dict().")
    check_format(state.get("format"), "The state")
    if not isinstance(state.get("points", state.get("bounds")), Tensor):
        raise StorageError("The state is malformed: it has neither points nor bounds.")
    for key, kind in _PARTS.items():
        if not isinstance(state.get(key), kind):
            raise StorageError(f"The state is malformed: {key} is {brief(state.get(key))}.")


def notes_text(notes: Any) -> str:
    """A user's notes as JSON.

    Raises:
        StorageError: if they are no dict of JSON-ready values.
    """
    try:
        if not isinstance(notes, dict):
            raise TypeError(f"they are a {type(notes).__name__}, not a dict")
        return json.dumps(notes, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise StorageError(f"notes must be JSON-ready: {error}.") from error
