"""A study in a file, for experiments that are no programs: named parameters in, tables out.

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
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from botorch_delay import validation
from botorch_delay.domains.finite import Domain, FiniteDomain
from botorch_delay.exceptions import InputError, NoAnswerError, StorageError
from botorch_delay.history import sqlite
from botorch_delay.history.trials import Trial
from botorch_delay.optimizers import BPEDelayOptimizer, Optimizer

__all__ = [
    "create_study",
    "describe_study",
    "describe_trial",
    "format_study",
    "format_trials",
    "point_of",
    "read_space",
]

MAX_ARMS = 1_000_000
_SCALES = ("linear", "log")


def read_space(path: str | os.PathLike[str]) -> FiniteDomain:
    """The arms that a TOML file describes, in their own units.

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
    if "arms" not in described:
        return _make_grid(file, described["parameters"])
    if not isinstance(described["arms"], str):
        raise InputError(f"{file}: arms must be the name of a CSV file, got {described['arms']!r}.")
    return _read_arms(file.parent / described["arms"])


def create_study(
    path: str | os.PathLike[str],
    domain: FiniteDomain,
    horizon: int,
    *,
    seed: int,
    maximize: bool,
    exact: bool = False,
) -> BPEDelayOptimizer:
    """A study in a new file; the kernel is learned from the answers, and the noise unless exact.

    Raises:
        InputError: if an argument is out of its range.
        StorageError: if the file exists or cannot be written.
    """
    if sqlite.holds_study(path):
        raise StorageError(f"{path} exists already; choose another file, or go on with ask.")
    optimizer = BPEDelayOptimizer(domain, horizon, exact=exact, seed=seed, maximize=maximize)
    optimizer.save(path)
    return optimizer


def point_of(domain: Domain, settings: Sequence[str]) -> Tensor:
    """The point with the given settings, each NAME=VALUE, all of them once.

    Raises:
        InputError: if a name is unknown, missing or given twice, or a value is no number.
    """
    values: dict[str, float] = {}
    for setting in settings:
        name, _, text = setting.partition("=")
        try:
            value = float(text)
        except ValueError:
            raise InputError(f"Expected NAME=NUMBER, got {setting!r}.") from None
        if name not in domain.names or name in values:
            raise InputError(
                f"{setting!r}: each of {', '.join(domain.names)} is to be given once, and no other."
            )
        values[name] = value
    missing = [name for name in domain.names if name not in values]
    if missing:
        raise InputError(f"{', '.join(missing)} missing; each parameter needs a NAME=NUMBER.")
    return domain.like.new_tensor([values[name] for name in domain.names])


def _parameters(domain: Domain, x: Tensor) -> dict[str, float]:
    return dict(zip(domain.names, x.tolist(), strict=True))


def describe_trial(trial: Trial, domain: Domain) -> dict[str, Any]:
    """A trial as plain values."""
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


def _forecast(optimizer: BPEDelayOptimizer) -> dict[str, Any] | None:
    """When the open round will close; None if there is no round, or no answer to tell from.

    ``asks`` are quantiles, in asks from now; None beyond what answers so far tell.
    """
    try:
        forecast = optimizer.forecast()
    except NoAnswerError:
        return None
    if forecast is None:
        return None
    quantiles = {str(p): forecast.quantile(p) for p in (0.5, 0.9)}
    return {
        "round": forecast.round,
        "asks": {p: q if math.isfinite(q) else None for p, q in quantiles.items()},
        "text": str(forecast),
    }


def describe_study(optimizer: Optimizer) -> dict[str, Any]:
    """Where a study stands, as plain values: pending trials, round, recommendation."""
    domain = optimizer.domain
    try:
        best = optimizer.recommend()
    except NoAnswerError:
        recommendation = None
    else:
        recommendation = {
            "parameters": _parameters(domain, best.x),
            "mean": best.mean,
            "lower": best.lower,
            "upper": best.upper,
            "interval": best.interval,
            "count": best.count,
        }
    rounds = optimizer if isinstance(optimizer, BPEDelayOptimizer) else None
    return {
        "optimizer": type(optimizer).__name__,
        "horizon": optimizer.horizon,
        "asked": len(optimizer.trials),
        "direction": "maximize" if optimizer.maximize else "minimize",
        "arms": len(domain) if isinstance(domain, FiniteDomain) else None,
        "active": None if rounds is None else rounds.active_set.size,
        "round": None if rounds is None else rounds.round,
        "waiting_for": [] if rounds is None else [s.trial.id for s in rounds.stragglers],
        "forecast": None if rounds is None else _forecast(rounds),
        "late": [
            {"id": found.trial.id, "asks": found.asks, "sooner": found.sooner}
            for found in optimizer.late()
        ],
        "pending": [describe_trial(trial, domain) for trial in optimizer.pending],
        "recommendation": recommendation,
        "trials": [describe_trial(trial, domain) for trial in optimizer.trials],
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
            *(f"{trial['parameters'][name]:.12g}" for name in names),
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
    planned = "" if study["horizon"] is None else f" of {study['horizon']}"
    arms = "a box" if study["arms"] is None else f"{study['arms']} arms"
    where = f"{study['optimizer']} on {arms}"
    if study["active"] is not None:
        stage = "not begun" if not study["asked"] else "finished"
        if study["round"] is not None:
            stage = f"round {study['round']}"
        where = f"{stage}, {study['active']} of {study['arms']} arms active"
        if study["arms"] is None:
            where = f"{stage}, {study['active']:.3g} of the box active"
    lines = [
        f"{study['asked']}{planned} trials asked" + (f" ({counts})" if counts else ""),
        where,
        "",
        "pending:",
        format_trials(study["pending"], since=True),
    ]
    if study["waiting_for"]:
        ids = ", ".join(map(str, study["waiting_for"]))
        lines.append(f"the round waits for trial {ids}; if one will not come back, use abandon")
    lines += [
        f"trial {late['id']} is late: {late['sooner']:.0%} of answers are estimated to take fewer "
        f"than the {late['asks']} asks since it was asked"
        for late in study["late"]
    ]
    if study["forecast"] is not None:
        lines.append(study["forecast"]["text"])
    best = study["recommendation"]
    lines += ["", f"recommended ({study['direction']}):"]
    if best is None:
        lines.append("nothing yet: there is no answer")
    else:
        lines += [
            ", ".join(f"{name} = {value:.12g}" for name, value in best["parameters"].items()),
            f"{best['mean']:.6g}, between {best['lower']:.6g} and {best['upper']:.6g}",
            f"({best['interval']})",
            f"answers at this very point: {best['count']}",
        ]
    return "\n".join(lines)


def _read_arms(file: Path) -> FiniteDomain:
    try:
        with file.open(newline="", encoding="utf-8-sig") as stream:
            reader = csv.reader(stream)
            rows = [(reader.line_num, row) for row in reader if any(cell.strip() for cell in row)]
    except OSError as error:
        raise InputError(f"Cannot read {file}: {error.strerror}.") from error
    except (csv.Error, UnicodeDecodeError) as error:
        raise InputError(f"{file} is not CSV: {error}.") from error
    if len(rows) < 2:
        raise InputError(f"{file} must have a header with names and at least one arm.")
    names = [cell.strip() for cell in rows[0][1]]
    if all(_number(name) is not None for name in names):
        raise InputError(f"{file} must begin with a header of names, got {', '.join(names)}.")
    lines: dict[tuple[float, ...], int] = {}
    for line, row in rows[1:]:
        numbers = [_number(cell) for cell in row]
        arm = tuple(n for n in numbers if n is not None and math.isfinite(n))
        if len(row) != len(names) or len(arm) != len(names):
            raise InputError(
                f"{file}, line {line}: expected {len(names)} finite numbers, got "
                f"{', '.join(row)!r}."
            )
        if arm in lines:
            raise InputError(
                f"{file}, line {line}: arms must be distinct; this is that of line {lines[arm]}."
            )
        lines[arm] = line
    return _domain(file, torch.tensor(list(lines), dtype=torch.double), names, ())


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _domain(
    file: Path, points: Tensor, names: Sequence[str], log_dims: Sequence[int]
) -> FiniteDomain:
    try:
        return FiniteDomain(points, names=names, log_dims=log_dims)
    except InputError as error:
        raise InputError(f"{file}: {error}") from error


def _make_grid(file: Path, parameters: Any) -> FiniteDomain:
    if not isinstance(parameters, Mapping) or not parameters:
        raise InputError(f"{file} must have at least one [parameters.NAME] table.")
    axes, log_dims = [], []
    for number, (name, described) in enumerate(parameters.items()):
        values, log = _read_axis(file, name, described)
        axes.append(values)
        if log:
            log_dims.append(number)
    count = math.prod(len(axis) for axis in axes)
    if count > MAX_ARMS:
        raise InputError(f"{file} describes {count} arms; at most {MAX_ARMS} can be listed.")
    mesh = torch.meshgrid(*axes, indexing="ij")
    points = torch.stack([column.flatten() for column in mesh], dim=-1)
    return _domain(file, points, list(parameters), log_dims)


def _read_axis(file: Path, name: str, described: Any) -> tuple[Tensor, bool]:
    """The values of a parameter, and whether it is modelled by its logarithm."""
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
        values = _axis_values(described, log=scale == "log")
    except InputError as error:
        raise InputError(f"{where}: {error}") from error
    if len(values.unique()) < len(values):
        raise InputError(f"{where}: its values must be distinct.")
    return values, scale == "log"


def _axis_values(described: Mapping[str, Any], *, log: bool) -> Tensor:
    check = validation.positive if log else validation.real
    if "values" in described:
        if len(described.keys() & {"low", "high", "steps"}):
            raise InputError("give either values, or low, high and steps.")
        if not isinstance(described["values"], list) or not described["values"]:
            raise InputError("values must be a list of numbers.")
        numbers = [check(value, "each of values") for value in described["values"]]
        return torch.tensor(numbers, dtype=torch.double)
    missing = sorted({"low", "high", "steps"} - described.keys())
    if missing:
        raise InputError(f"{', '.join(missing)} missing; give values, or low, high and steps.")
    low, high = check(described["low"], "low"), check(described["high"], "high")
    steps = validation.whole(described["steps"], "steps", 2)
    if not low < high:
        raise InputError(f"low must be below high, got {low:g} and {high:g}.")
    if steps > MAX_ARMS:
        raise InputError(f"steps must be at most {MAX_ARMS}, got {steps}.")
    ends = (math.log10(low), math.log10(high)) if log else (low, high)
    values = torch.linspace(*ends, steps, dtype=torch.double)
    # People set dials: 12 digits, and the ends as they were given.
    inner = [float(f"{10.0**v if log else v:.12g}") for v in values.tolist()[1:-1]]
    return torch.tensor([low, *inner, high], dtype=torch.double)


def _ago(asked_at: float) -> str:
    seconds = max(time.time() - asked_at, 0.0)
    for unit, size in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} seconds"
