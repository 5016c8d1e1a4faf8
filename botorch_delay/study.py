"""Studies in files, for experiments that are no programs: named parameters in, tables out.

The space is a TOML file. Either a list of arms:

    arms = "arms.csv"            # a header with the names, one row of numbers per arm

or a grid, the product of its parameters:

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
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from botorch_delay import validation
from botorch_delay.domains.finite import Domain, FiniteDomain
from botorch_delay.domains.space import Choice, Space
from botorch_delay.exceptions import InputError, NoAnswerError
from botorch_delay.history.trials import Trial
from botorch_delay.optimizers import BPEDelayOptimizer, Optimizer

__all__ = [
    "describe_study",
    "describe_trial",
    "format_study",
    "format_trials",
    "point_of",
    "read_space",
]

MAX_ARMS = 1_000_000


def read_space(path: str | os.PathLike[str]) -> FiniteDomain:
    """The arms that a TOML file describes, in their own units.

    Raises:
        InputError: if the file cannot be read, or does not describe a space.
    """
    file = Path(path)
    text = _read_text(file)
    try:
        match tomllib.loads(text):
            case {"arms": str(name), **others} if not others:
                file = file.parent / name
                return _read_arms(_read_text(file))
            case {"parameters": dict(parameters), **others} if parameters and not others:
                return _grid({name: _choice(name, parameters[name]) for name in parameters})
        raise InputError(
            'expected either arms = "file.csv", the name of a CSV file, or at least one '
            "[parameters.NAME] table, and nothing else."
        )
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{file} is not TOML: {error}.") from error
    except InputError as error:
        raise InputError(f"{file}: {error}") from error


def _read_text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8-sig")  # spreadsheets write a byte order mark
    except OSError as error:
        raise InputError(f"Cannot read {file}: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{file} is not text in UTF-8: {error}.") from error


def _read_arms(text: str) -> FiniteDomain:
    """The arms of a table: a header of names, then one row of numbers for each arm."""
    header, *rows = [line for line in text.splitlines() if line.strip()] or [""]
    names = [cell.strip() for cell in next(csv.reader([header]), [])]
    if not rows or not all(_number(name) is None for name in names):
        raise InputError("expected a header of names, and at least one arm.")
    try:
        points = np.loadtxt(rows, delimiter=",", ndmin=2)
    except ValueError as error:
        raise InputError(f"expected {len(names)} numbers for each arm: {error}.") from error
    if points.shape[1] != len(names):
        raise InputError(f"expected {len(names)} numbers for each arm, got {points.shape[1]}.")
    return FiniteDomain(torch.from_numpy(points), names=names)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _choice(name: str, described: Any) -> Choice:
    """The values of one parameter: those listed, or steps from low to high."""
    match described:
        case {"values": list(values), **rest} if values and rest.keys() <= {"scale"}:
            steps = None
        case {"low": low, "high": high, "steps": count, **rest} if rest.keys() <= {"scale"}:
            values, steps = [low, high], validation.whole(count, f"{name}: steps", 2)
        case _:
            raise InputError(
                f"parameter {name}: expected a table with values, a list of numbers, or with low, "
                f"high and steps, and perhaps scale; got {described!r}."
            )
    scale = rest.get("scale", "linear")
    if scale not in ("linear", "log"):
        raise InputError(f'parameter {name}: scale must be "linear" or "log", got {scale!r}.')
    check = validation.positive if scale == "log" else validation.real
    values = [check(value, f"each number of parameter {name}") for value in values]
    if steps is not None:
        values = _steps(values[0], values[1], steps, log=scale == "log")
    return Choice(values, ordered=True, log=scale == "log")


def _grid(parameters: Mapping[str, Choice]) -> FiniteDomain:
    """All combinations; a parameter with one value takes no column."""
    count = math.prod(parameter.count for parameter in parameters.values())
    if count > MAX_ARMS:
        raise InputError(f"{count} arms are described; at most {MAX_ARMS} can be listed.")
    box = Space(parameters).domain
    axes = [box.bounds.new_tensor(values) for values in box.discrete_dims.values()]
    points = torch.cartesian_prod(*axes).reshape(count, len(axes))
    return FiniteDomain(points, names=box.names, log_dims=box.log_dims)


def _steps(low: float, high: float, steps: int, *, log: bool) -> list[float]:
    if not low < high:
        raise InputError(f"low must be below high, got {low:g} and {high:g}.")
    if steps > MAX_ARMS:
        raise InputError(f"steps must be at most {MAX_ARMS}, got {steps}.")
    ends = (math.log10(low), math.log10(high)) if log else (low, high)
    inner = torch.linspace(*ends, steps, dtype=torch.double)[1:-1].tolist()
    # People set dials: 12 digits, and the ends as they were written.
    return [low, *(float(f"{10.0**value if log else value:.12g}") for value in inner), high]


def point_of(domain: Domain, settings: Sequence[str]) -> Tensor:
    """The point (``d``) with the given settings, each NAME=NUMBER, all of them once.

    Raises:
        InputError: if a name is unknown, missing or given twice, or a value is no number.
    """
    values = {name: _number(text) for name, _, text in (s.partition("=") for s in settings)}
    if len(values) < len(settings) or values.keys() != set(domain.names) or None in values.values():
        raise InputError(
            f"Each of {', '.join(domain.names)} needs one NAME=NUMBER, and nothing else does; got "
            f"{' '.join(settings)}."
        )
    return domain.like.new_tensor([values[name] for name in domain.names])


def describe_trial(trial: Trial, domain: Domain) -> dict[str, Any]:
    """A trial as plain values, ready for JSON."""
    return {
        "id": trial.id,
        "parameters": _parameters(domain, trial.x),
        "round": trial.round,
        "state": trial.state.value,
        "value": trial.value,
        "reason": trial.reason,
        "asked_at": trial.asked_at,
        "answered_at": trial.answered_at,
    }


def describe_study(optimizer: Optimizer) -> dict[str, Any]:
    """The state of a study as plain values: trials, round, recommendation."""
    domain = optimizer.domain
    study: dict[str, Any] = {
        "optimizer": type(optimizer).__name__,
        "horizon": optimizer.horizon,
        "asked": len(optimizer.trials),
        "direction": "maximize" if optimizer.maximize else "minimize",
        "arms": domain.count,
        "active": None,
        "round": None,
        "forecast": None,
        "waiting_for": [],
        "overdue": [
            {"id": found.trial.id, "asks": found.asks, "sooner": found.sooner}
            for found in optimizer.overdue()
        ],
        "pending": [describe_trial(trial, domain) for trial in optimizer.pending],
        "recommendation": None,
        "trials": [describe_trial(trial, domain) for trial in optimizer.trials],
    }
    if isinstance(optimizer, BPEDelayOptimizer):
        study["active"] = optimizer.active_set.size
        study["round"] = optimizer.round
        study["waiting_for"] = [straggler.trial.id for straggler in optimizer.stragglers]
        with suppress(NoAnswerError):
            forecast = optimizer.forecast()
            study["forecast"] = None if forecast is None else str(forecast)
    with suppress(NoAnswerError):
        best = optimizer.recommend()
        study["recommendation"] = {
            "parameters": _parameters(domain, best.x),
            "mean": best.mean,
            "lower": best.lower,
            "upper": best.upper,
            "interval": best.interval,
            "count": best.count,
        }
    return study


def _parameters(domain: Domain, x: Tensor) -> dict[str, float]:
    return dict(zip(domain.names, x.tolist(), strict=True))


def format_trials(trials: Sequence[Mapping[str, Any]], *, since: bool = False) -> str:
    """Trials as a table with one column per parameter.

    Args:
        trials: of :func:`describe_trial`.
        since: whether to say how long ago each was asked.
    """
    if not trials:
        return "none"
    rows = [["id", *trials[0]["parameters"], *(["asked"] if since else [])]]
    for trial in trials:
        numbers = [f"{value:.12g}" for value in trial["parameters"].values()]
        seconds = round(max(time.time() - trial["asked_at"], 0.0))
        ago = [f"{timedelta(seconds=seconds)} ago"] if since else []
        rows.append([str(trial["id"]), *numbers, *ago])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    )


def format_study(study: Mapping[str, Any]) -> str:
    """What :func:`describe_study` gave, for people."""
    states = [trial["state"] for trial in study["trials"]]
    counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    planned = "" if study["horizon"] is None else f" of {study['horizon']}"
    lines = [
        f"{study['asked']}{planned} trials asked" + (f" ({counts})" if counts else ""),
        _format_progress(study),
        "",
        "pending:",
        format_trials(study["pending"], since=True),
    ]
    if study["waiting_for"]:
        ids = ", ".join(map(str, study["waiting_for"]))
        lines.append(f"the round waits for trial {ids}; if one will not come back, use abandon")
    lines += [
        f"trial {found['id']} is overdue: {found['sooner']:.0%} of answers are estimated to take "
        f"fewer than the {found['asks']} asks since it was asked"
        for found in study["overdue"]
    ]
    lines += [study["forecast"]] if study["forecast"] else []
    lines += ["", f"recommended ({study['direction']}):"]
    best = study["recommendation"]
    if best is None:
        return "\n".join([*lines, "nothing yet: there is no answer"])
    lines += [
        ", ".join(f"{name} = {value:.12g}" for name, value in best["parameters"].items()),
        f"{best['mean']:.6g}, between {best['lower']:.6g} and {best['upper']:.6g}",
        f"({best['interval']})",
        f"answers at this very point: {best['count']}",
    ]
    return "\n".join(lines)


def _format_progress(study: Mapping[str, Any]) -> str:
    """The round and the share of arms, or of the box, that is still active."""
    arms = study["arms"]
    if study["active"] is None:
        return f"{study['optimizer']} on {'a box' if arms is None else f'{arms} arms'}"
    stage = "finished" if study["asked"] else "not begun"
    if study["round"] is not None:
        stage = f"round {study['round']}"
    if arms is None:
        return f"{stage}, {study['active']:.3g} of the box active"
    return f"{stage}, {study['active']} of {arms} arms active"
