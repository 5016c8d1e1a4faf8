"""The state of the searcher for Ray Tune, as a JSON file."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from botorch_delay import validation
from botorch_delay.exceptions import StorageError
from botorch_delay.history.events import truncated
from botorch_delay.history.states import FORMAT, check_format
from botorch_delay.history.trials import TrialState
from botorch_delay.optimizers.replica import PastTrial


@dataclass
class SearchState:
    """Everything that a searcher needs to continue, except for its space and options."""

    metric: str | None  # what trials report; None while unknown
    mode: str | None  # "min" or "max"; None while unknown
    seed: int  # of everything random
    horizon: int | None = None  # how many asks are planned
    key: str | None = None  # that of the EngineRun; None while the space is unknown
    trials: dict[str, PastTrial] = field(default_factory=dict)  # by Tune's ids
    # The ``points_to_evaluate`` left: configurations while the space is unknown, then points.
    first: list[Any] = field(default_factory=list)

    def write(self, path: Path) -> None:
        """Write or replace a file atomically; StorageError if it cannot be written."""
        file = {
            "format": FORMAT,
            **vars(self),
            "trials": {trial_id: _stored(past) for trial_id, past in self.trials.items()},
            "first": [x.tolist() for x in self.first],
        }
        beside = path.with_name(f"{path.name}.tmp")
        try:
            beside.write_text(json.dumps(file, allow_nan=False), "utf-8")
            os.replace(beside, path)
        except (OSError, TypeError, ValueError) as error:
            raise StorageError(f"{path} cannot be written: {truncated(error)}") from error

    @classmethod
    def read(cls, path: Path) -> SearchState:
        """Read a file, checked as far as possible without its space."""
        try:
            file = json.loads(path.read_bytes())
            check_format(file.pop("format"), str(path))
            state = cls(**file)
            if not isinstance(state.metric, str) or state.mode not in ("min", "max"):
                raise ValueError("its metric or mode is missing or invalid")
            if not isinstance(state.key, str):
                raise ValueError("it has no key")
            state.seed = validation.seed(state.seed)
            if state.horizon is not None:
                state.horizon = validation.whole(state.horizon, "horizon", 1)
            state.trials = {trial_id: _past(kept) for trial_id, kept in file["trials"].items()}
            if sorted(past.number for past in state.trials.values()) != [*range(len(state.trials))]:
                raise ValueError("its trials are not numbered one by one")
            state.first = [torch.tensor(x, dtype=torch.double) for x in state.first]
            return state
        except StorageError:
            raise
        except OSError as error:
            raise StorageError(f"{path} cannot be read: {error}") from error
        except (AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
            raise StorageError(f"{path} is malformed: {truncated(error)}") from error


def tune_trials(folder: Path) -> dict[str, tuple[str, dict[str, Any]]]:
    """Status and last result of each trial, from Tune's own state if a folder has one."""
    found = sorted(folder.glob("experiment_state-*.json"))
    try:
        pairs = json.loads(found[-1].read_text())["trial_data"]
        read = [(json.loads(trial), json.loads(metadata)) for trial, metadata in pairs]
        return {
            trial["trial_id"]: (str(trial["status"]), dict(metadata["last_result"]))
            for trial, metadata in read
        }
    except (IndexError, KeyError, OSError, TypeError, ValueError):
        return {}


def _stored(past: PastTrial) -> dict[str, Any]:
    return {**vars(past), "x": past.x.tolist(), "state": past.state.value}


def _past(stored: Mapping[str, Any]) -> PastTrial:
    kept = PastTrial(**stored)
    x, state = torch.tensor(stored["x"], dtype=torch.double), TrialState(stored["state"])
    value = validation.real(kept.value, "value") if state is TrialState.COMPLETED else None
    return replace(kept, x=x, state=state, value=value)
