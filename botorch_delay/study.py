"""A study in a file, for experiments that are no programs: named parameters in, tables out.

The space is a TOML file. Either a list of arms::

    arms = "arms.csv"            # a header with the names, one row of numbers per arm

or a grid, the product of its parameters::

    [parameters.temperature]
    values = [20, 30, 40]

    [parameters.dose]
    low = 0.01
    high = 10.0
    steps = 13
    scale = "log"
"""

from __future__ import annotations

import csv
import math
import os
import time
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from botorch_delay import checks, storage
from botorch_delay.domains import FiniteDomain
from botorch_delay.exceptions import InputError, NoAnswerError, StorageError
from botorch_delay.optimizers import BPEDelayOptimizer
from botorch_delay.trials import Trial

MAX_ARMS = 1_000_000
_SCALES = ("linear", "log")


@dataclass(frozen=True)
class Space:
    """Named parameters and the arms to choose from.

    Attributes:
        names: of the parameters.
        scales: "linear" or "log", for each; a log parameter is modelled by its logarithm.
        points: ``N x d``, the arms as they are modelled.
    """

    names: tuple[str, ...]
    scales: tuple[str, ...]
    points: Tensor

    def values(self, x: Tensor) -> dict[str, float]:
        """The parameters of a point, in their own units."""
        return {
            name: _readable(math.exp(value) if scale == "log" else value)
            for name, scale, value in zip(self.names, self.scales, x.tolist(), strict=True)
        }


def read_space(path: str | os.PathLike[str]) -> Space:
    """The space in a TOML file.

    Raises:
        InputError: if the file cannot be read, or does not describe a space.
    """
    file = Path(path)
    try:
        described = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"Cannot read {file}: {error.strerror}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{file} is not TOML: {error}.") from error
    unknown = sorted(described.keys() - {"arms", "parameters"})
    if unknown or len(described) != 1:
        given = ", ".join(described) or "nothing"
        raise InputError(
            f'{file} must have either arms = "file.csv" or [parameters.NAME] tables, and nothing '
            f"else; it has {given}."
        )
    if "arms" in described:
        return _read_arms(file.parent / str(described["arms"]))
    return _make_grid(file, described["parameters"])


def create_study(
    path: str | os.PathLike[str], space: Space, horizon: int, *, seed: int, maximize: bool
) -> BPEDelayOptimizer:
    """A study in a new file; kernel and noise are learned from the answers.

    Raises:
        InputError: if an argument is out of its range.
        StorageError: if the file exists or cannot be written.
    """
    if storage.holds_study(path):
        raise StorageError(f"{path} exists already; choose another file, or go on with ask.")
    optimizer = BPEDelayOptimizer(FiniteDomain(space.points), horizon, seed=seed, maximize=maximize)
    optimizer.notes["space"] = {"names": list(space.names), "scales": list(space.scales)}
    optimizer.save(path)
    return optimizer


def space_of(optimizer: BPEDelayOptimizer) -> Space:
    """The space of a study; columns are named x0, x1, ... if it has no names."""
    dim = optimizer.domain.dim
    noted = optimizer.notes.get("space")
    names: Sequence[str] = [f"x{i}" for i in range(dim)]
    scales: Sequence[str] = ["linear"] * dim
    if isinstance(noted, Mapping):
        names, scales = noted.get("names", names), noted.get("scales", scales)
    if len(names) != dim or len(scales) != dim or any(s not in _SCALES for s in scales):
        raise StorageError("The space that the study notes does not fit its points.")
    return Space(tuple(map(str, names)), tuple(scales), optimizer.domain.points)


def describe_trial(trial: Trial, space: Space) -> dict[str, Any]:
    """A trial as plain values."""
    return {
        "id": trial.id,
        "parameters": space.values(trial.x),
        "round": trial.round,
        "state": trial.state.value,
        "value": trial.value,
        "reason": trial.reason,
        "asked_at": trial.asked_at,
        "answered_at": trial.answered_at,
    }


def describe_study(optimizer: BPEDelayOptimizer) -> dict[str, Any]:
    """Where a study stands, as plain values: pending trials, round, recommendation."""
    space = space_of(optimizer)
    try:
        best = optimizer.recommend()
    except NoAnswerError:
        recommendation = None
    else:
        recommendation = {
            "parameters": space.values(best.x),
            "mean": best.mean,
            "lower": best.lower,
            "upper": best.upper,
            "interval": best.interval,
        }
    return {
        "horizon": optimizer.horizon,
        "asked": len(optimizer.trials),
        "direction": "maximize" if optimizer.maximize else "minimize",
        "arms": len(optimizer.domain),
        "active": len(optimizer.active_set),
        "round": optimizer.round,
        "waiting_for": [straggler.trial.id for straggler in optimizer.stragglers],
        "pending": [describe_trial(trial, space) for trial in optimizer.pending],
        "recommendation": recommendation,
        "trials": [describe_trial(trial, space) for trial in optimizer.trials],
    }


def format_trials(trials: Sequence[Mapping[str, Any]], *, since: bool = False) -> str:
    """Trials as a table with one column per parameter."""
    if not trials:
        return "none"
    names = list(trials[0]["parameters"])
    header = ["id", *names, *(["asked"] if since else [])]
    rows = [
        [
            str(trial["id"]),
            *(f"{trial['parameters'][name]:g}" for name in names),
            *([f"{_ago(trial['asked_at'])} ago"] if since else []),
        ]
        for trial in trials
    ]
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    return "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        for row in [header, *rows]
    )


def format_study(study: Mapping[str, Any]) -> str:
    """``describe_study`` for people."""
    states = [trial["state"] for trial in study["trials"]]
    counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    where = "not begun" if not study["asked"] else "finished"
    if study["round"] is not None:
        where = f"round {study['round']}"
    lines = [
        f"{study['asked']} of {study['horizon']} trials asked" + (f" ({counts})" if counts else ""),
        f"{where}, {study['active']} of {study['arms']} arms active",
        "",
        "pending:",
        format_trials(study["pending"], since=True),
    ]
    if study["waiting_for"]:
        ids = ", ".join(map(str, study["waiting_for"]))
        lines.append(f"the round waits for trial {ids}; if one will not come back, use abandon")
    best = study["recommendation"]
    lines += ["", f"recommended ({study['direction']}):"]
    if best is None:
        lines.append("nothing yet: there is no answer")
    else:
        lines += [
            ", ".join(f"{name} = {value:g}" for name, value in best["parameters"].items()),
            f"{best['mean']:.6g}, between {best['lower']:.6g} and {best['upper']:.6g}",
            f"({best['interval']})",
        ]
    return "\n".join(lines)


def _read_arms(file: Path) -> Space:
    try:
        with file.open(newline="", encoding="utf-8-sig") as stream:
            rows = [row for row in csv.reader(stream) if any(cell.strip() for cell in row)]
    except OSError as error:
        raise InputError(f"Cannot read {file}: {error.strerror}.") from error
    except (csv.Error, UnicodeDecodeError) as error:
        raise InputError(f"{file} is not CSV: {error}.") from error
    if len(rows) < 2:
        raise InputError(f"{file} must have a header with names and at least one arm.")
    names = tuple(cell.strip() for cell in rows[0])
    if len(set(names)) < len(names) or not all(names):
        raise InputError(f"{file} must have distinct names in its header, got {', '.join(names)}.")
    points = []
    for number, row in enumerate(rows[1:], start=2):
        try:
            if len(row) != len(names):
                raise ValueError
            points.append([float(cell) for cell in row])
        except ValueError:
            raise InputError(
                f"{file}, row {number}: expected {len(names)} numbers, got {', '.join(row)!r}."
            ) from None
    return Space(names, ("linear",) * len(names), torch.tensor(points, dtype=torch.double))


def _make_grid(file: Path, parameters: Any) -> Space:
    if not isinstance(parameters, Mapping) or not parameters:
        raise InputError(f"{file} must have at least one [parameters.NAME] table.")
    axes, scales = [], []
    for name, described in parameters.items():
        values, scale = _read_axis(file, name, described)
        axes.append(values)
        scales.append(scale)
    count = math.prod(len(axis) for axis in axes)
    if count > MAX_ARMS:
        raise InputError(f"{file} describes {count} arms; at most {MAX_ARMS} can be listed.")
    mesh = torch.meshgrid(*axes, indexing="ij")
    points = torch.stack([column.flatten() for column in mesh], dim=-1)
    return Space(tuple(parameters), tuple(scales), points)


def _read_axis(file: Path, name: str, described: Any) -> tuple[Tensor, str]:
    where = f"{file}, parameter {name}"
    if not isinstance(described, Mapping):
        raise InputError(f"{where}: expected a table, got {described!r}.")
    unknown = sorted(described.keys() - {"values", "low", "high", "steps", "scale"})
    if unknown:
        raise InputError(
            f"{where}: unknown {', '.join(unknown)}; known: values, low, high, steps, scale."
        )
    scale = described.get("scale", "linear")
    if scale not in _SCALES:
        raise InputError(f'{where}: scale must be "linear" or "log", got {scale!r}.')
    try:
        values = _axis_values(described, scale)
    except InputError as error:
        raise InputError(f"{where}: {error}") from error
    if len(values.unique()) < len(values):
        raise InputError(f"{where}: its values must be distinct.")
    return values, scale


def _axis_values(described: Mapping[str, Any], scale: str) -> Tensor:
    log = scale == "log"
    if "values" in described:
        if len(described.keys() & {"low", "high", "steps"}):
            raise InputError("give either values, or low, high and steps.")
        if not isinstance(described["values"], list) or not described["values"]:
            raise InputError("values must be a list of numbers.")
        check = checks.positive if log else checks.real
        numbers = [check(value, "each value") for value in described["values"]]
        values = torch.tensor(numbers, dtype=torch.double)
        return values.log() if log else values
    missing = sorted({"low", "high", "steps"} - described.keys())
    if missing:
        raise InputError(f"{', '.join(missing)} missing; give values, or low, high and steps.")
    check = checks.positive if log else checks.real
    low, high = check(described["low"], "low"), check(described["high"], "high")
    steps = checks.whole(described["steps"], "steps", 2)
    if not low < high:
        raise InputError(f"low must be below high, got {low:g} and {high:g}.")
    if steps > MAX_ARMS:
        raise InputError(f"steps must be at most {MAX_ARMS}, got {steps}.")
    ends = (math.log(low), math.log(high)) if log else (low, high)
    return torch.linspace(*ends, steps, dtype=torch.double)


def _readable(value: float) -> float:
    """Without the last digits, which a logarithm there and back does not keep."""
    return float(f"{value:.12g}")


def _ago(asked_at: float) -> str:
    seconds = max(time.time() - asked_at, 0.0)
    for unit, size in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} seconds"
