"""States as plain values: what one must look like, and trials from their records."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from botorch_delay.domains.finite import Domain, FiniteDomain
from botorch_delay.exceptions import StorageError
from botorch_delay.history.trials import Attached, Trial, TrialState

FORMAT = 3


def domain_array(domain: Domain) -> tuple[str, Tensor]:
    """The tensor that defines a domain, and the name it is stored under."""
    return ("points" if isinstance(domain, FiniteDomain) else "bounds"), domain.like


def check_state(state: Mapping[str, Any]) -> dict[str, Any]:
    """A state whose outermost layer has the right form.

    Raises:
        StorageError: if it has not, or if it is of another version.
    """
    expected: dict[str, type | tuple[type, ...]] = {
        "format": int,
        "optimizer": str,
        "config": Mapping,
        "notes": Mapping,
        "revision": int,
        "digest": str,
        "finished": bool,
        "trials": list,
        "attached": list,
        "progress": Mapping,
    }
    if not isinstance(state, Mapping):
        raise StorageError(f"A state is a dict, got {type(state).__name__}; use state_dict().")
    if isinstance(state.get("format"), int) and state["format"] > FORMAT:
        raise StorageError(
            f"The state has format {state['format']}, newer than the {FORMAT} that this version of "
            "botorch_delay reads; upgrade it with pip install -U botorch-delay."
        )
    if state.get("format") in range(1, FORMAT):
        raise StorageError(
            f"The state has format {state['format']}, of a version before the first release. Its "
            "results are in its table of trials: hand them to a new optimizer with attach(x, y)."
        )
    if not isinstance(state.get("points", state.get("bounds")), Tensor):
        raise StorageError("The state is malformed: it has neither points nor bounds.")
    for key, kind in expected.items():
        if not isinstance(state.get(key), kind):
            raise StorageError(f"The state is malformed: {key} is {brief(state.get(key))}.")
    if state["format"] != FORMAT or state["revision"] < 0:
        raise StorageError("The state is malformed: its format or revision is not a version.")
    progress = state["progress"]
    parts = {"rounds": list, "arrays": Mapping, "values": Mapping, "arrays_version": int}
    for key, kind in parts.items():
        if not isinstance(progress.get(key), kind):
            raise StorageError(f"The state is malformed: {key} is {brief(progress.get(key))}.")
    return dict(state)


def revive(state: Mapping[str, Any], domain: Domain) -> tuple[list[Trial], list[Attached]]:
    """Trials and attached results of a state, each checked against the domain.

    Raises:
        StorageError: at the first record that is malformed.
    """
    trials = []
    for number, record in enumerate(state["trials"]):
        try:
            trials.append(_revive_trial(record, number, domain))
        except (
            KeyError,
            TypeError,
            ValueError,
            AttributeError,
            RuntimeError,
            OverflowError,
        ) as error:
            raise StorageError(f"Stored trial {number} is malformed: {cut(error)}.") from error
    attached = []
    for number, record in enumerate(state["attached"]):
        try:
            x = _revive_point(record["x"], domain)
            row = int(domain.find(x.unsqueeze(0)))
            if record["point"] != (None if row < 0 else row):
                raise ValueError(f"point is {record['point']!r}")
            attached.append(Attached(x=x, index=record["point"], value=_number(record["value"])))
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise StorageError(f"Stored result {number} is malformed: {cut(error)}.") from error
    return trials, attached


def _revive_trial(record: Mapping[str, Any], number: int, domain: Domain) -> Trial:
    index, state = record["point"], TrialState(record["state"])
    x = _revive_point(record["x"], domain)
    if isinstance(domain, FiniteDomain):
        if not is_whole(index, 0) or index >= len(domain):
            raise ValueError(f"point {index!r}")
        inside = torch.equal(x, domain.points[index])
    else:
        inside = index is None and bool(domain.contains(x.unsqueeze(0)))
    if record["id"] != number or not inside:
        raise ValueError(f"id {record['id']!r}, or x is not point {index} of the domain")
    if not (is_whole(record["round"], 1) and is_whole(record["slot"], -2)):
        raise ValueError(f"round {record['round']!r}, slot {record['slot']!r}")
    value, noise_var = record["value"], record["noise_var"]
    if (value is not None) != (state is TrialState.COMPLETED):
        raise ValueError(f"a {state.value} trial with value {value!r}")
    if noise_var is not None and (value is None or _number(noise_var) <= 0):
        raise ValueError(f"noise_var is {noise_var!r}")
    late = record["late"]
    if not isinstance(late, bool) or (late and state is not TrialState.COMPLETED):
        raise ValueError(f"late is {late!r}")
    answered_at = record["answered_at"]
    if (answered_at is None) != (state is TrialState.RUNNING):
        raise ValueError(f"a {state.value} trial with answered_at {answered_at!r}")
    if not isinstance(record["reason"], str):
        raise ValueError("reason is no text")
    step = record["answered_step"]
    if (step is None) != (answered_at is None) or not (step is None or is_whole(step, number + 1)):
        raise ValueError(f"a {state.value} trial with answered_step {step!r}")
    return Trial(
        id=number,
        source=domain.points if isinstance(domain, FiniteDomain) else x,
        index=index,
        round=record["round"],
        slot=record["slot"],
        state=state,
        value=None if value is None else _number(value),
        noise_var=None if noise_var is None else _number(noise_var),
        late=late,
        reason=record["reason"],
        asked_at=_number(record["asked_at"]),
        answered_at=None if answered_at is None else _number(answered_at),
        answered_step=step,
    )


def _revive_point(values: Any, domain: Domain) -> Tensor:
    if not isinstance(values, list) or len(values) != domain.dim:
        raise ValueError(f"x is {brief(values)}")
    return domain.like.new_tensor([_number(value) for value in values])


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{brief(value)} is no number")
    try:
        number = float(value)
    except OverflowError:  # of a whole number
        number = math.inf
    if not math.isfinite(number):
        raise ValueError(f"{brief(value)} is no finite number")
    return number


def is_whole(value: Any, minimum: int) -> bool:
    """Whether a stored value is an int of at least ``minimum``."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= minimum


def brief(value: Any) -> str:
    """A stored value for a message, cut to 60 characters."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def cut(error: BaseException) -> str:
    """An error's message, which may quote what is stored, cut to 500 characters."""
    text = str(error)
    return text if len(text) <= 500 else f"{text[:497]}..."
