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
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from botorch_delay import validation
from botorch_delay.domains.finite import Domain, FiniteDomain
from botorch_delay.domains.space import Choice, Space
from botorch_delay.entries import as_number, read_text
from botorch_delay.exceptions import InputError, NoAnswerError
from botorch_delay.history.point_status import MAX_FAILURES, Feasibility, PointStatus
from botorch_delay.history.trials import Trial, TrialState
from botorch_delay.optimizers import BPEDelayOptimizer, Optimizer
from botorch_delay.optimizers.run import in_words

__all__ = [
    "add_note",
    "describe_study",
    "describe_trial",
    "format_settled",
    "format_study",
    "format_trials",
    "read_space",
]

MAX_ARMS = 1_000_000
_ROUND = (
    "  (a round tries settings of which little is known; when their results are in it closes, and\n"
    "  settings that can hardly be the best any more are not asked again)"
)


def read_space(path: str | os.PathLike[str]) -> FiniteDomain:
    """The arms that a TOML file describes, in their own units.

    Raises:
        InputError: if the file cannot be read, or does not describe a space.
    """
    file = Path(path)
    text = read_text(file)
    try:
        match tomllib.loads(text):
            case {"arms": str(name), **others} if not others:
                file = file.parent / name
                return _read_arms(read_text(file))
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


def _read_arms(text: str) -> FiniteDomain:
    """The arms of a table: a header of names, then one row of numbers for each arm."""
    header, *rows = [line for line in text.splitlines() if line.strip()] or [""]
    names = [cell.strip() for cell in next(csv.reader([header]), [])]
    if not rows or not all(as_number(name) is None for name in names):
        raise InputError("expected a header of names, and at least one arm.")
    try:
        points = np.loadtxt(rows, delimiter=",", ndmin=2)
    except ValueError as error:
        raise InputError(f"expected {len(names)} numbers for each arm: {error}.") from error
    if points.shape[1] != len(names):
        raise InputError(f"expected {len(names)} numbers for each arm, got {points.shape[1]}.")
    return FiniteDomain(torch.from_numpy(points), names=names)


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
        "late": [
            {"id": found.trial.id, "asks": found.asks, "sooner": found.sooner}
            for found in optimizer.late()
        ],
        "summary": str(optimizer),
        "notes": optimizer.notes.get("lines", []),
        "attached": [
            {"parameters": _parameters(domain, result.x), "value": result.value}
            for result in optimizer.attached
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
            if forecast is not None and forecast.quantile(0.5) <= (forecast.asks_left or math.inf):
                study["forecast"] = str(forecast)
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


def add_note(optimizer: Optimizer, text: str) -> list[str]:
    """Add a line with its date to the study's notes; all lines."""
    lines = optimizer.notes.setdefault("lines", [])
    if not isinstance(lines, list) or not text.strip():
        raise InputError("A note must be a text that is not empty, and notes['lines'] a list.")
    lines.append(f"{datetime.now():%Y-%m-%d %H:%M}  {' '.join(text.split())}")
    return lines


def format_settled(optimizer: Optimizer, trial: Trial) -> str:
    """What was said of a trial, and what follows from it, for people."""
    words = in_words(optimizer.domain, trial.x)
    running = len(optimizer.pending)
    out = f"{running} {'trial is' if running == 1 else 'trials are'} still running"
    if trial.state is TrialState.COMPLETED:
        return f"trial {trial.id}: result {trial.value:.12g} at {words}; {out}"
    if trial.state is TrialState.ABANDONED:
        return (
            f"trial {trial.id} is given up, at {words}; {out}\n"
            "its settings may be asked again; if its result comes after all, tell it"
        )
    same = [other for other in optimizer.trials if torch.equal(other.x, trial.x)]
    status = Feasibility(same, key=lambda _: 0).status(0)
    back = "its settings may be asked again, at most twice more in a row without a result"
    if status is PointStatus.INFEASIBLE:
        back = f"its settings have failed {MAX_FAILURES} times and are not asked any more"
    elif len(optimizer.trials) == optimizer.horizon:
        back = "every planned trial has been asked, so that its settings do not come back"
    elif status is PointStatus.HELD:
        back = "its settings come back once the other trials there have their results"
    elif trial.slot >= 0 and trial.round == getattr(optimizer, "round", None):
        back = "its settings come back with the next ask"
    return f"trial {trial.id} failed, at {words}; {out}\n{back}"


def format_trials(trials: Sequence[Mapping[str, Any]], last: str = "") -> str:
    """Trials or attached results as a table with one column per parameter.

    Args:
        trials: of :func:`describe_trial`, or what :func:`describe_study` says of those attached.
        last: of the last column: "asked", how long ago each was asked; "value"; or none.
    """
    if not trials:
        return "none"
    first = ["id"] if "id" in trials[0] else []
    rows = [[*first, *trials[0]["parameters"], *([last] if last else [])]]
    for trial in trials:
        cells = [trial[name] for name in first] + [*trial["parameters"].values()]
        if last == "asked":
            seconds = round(max(time.time() - trial["asked_at"], 0.0))
            cells.append(f"{timedelta(seconds=seconds)} ago")
        elif last:
            cells.append(trial[last])
        rows.append([_text(cell) for cell in cells])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    )


def format_study(study: Mapping[str, Any]) -> str:
    """What :func:`describe_study` gave, for people."""
    lines = [study["summary"]]
    if study["round"] is not None:
        lines += [_ROUND]
    if study["waiting_for"]:
        ids = ", ".join(map(str, study["waiting_for"]))
        lines.append(f"the round waits for trial {ids}; if one will not come back, use abandon")
    lines += [study["forecast"]] if study["forecast"] else []
    lines += [
        f"trial {late['id']} is late: {late['sooner']:.0%} of answers are estimated to take fewer "
        f"than the {late['asks']} asks since it was asked"
        for late in study["late"]
    ]
    lines += ["", "running (no result yet):", format_trials(study["pending"], "asked")]
    if study["attached"]:
        lines += ["", "attached (results that were obtained elsewhere):"]
        lines += [format_trials(study["attached"], "value")]
    lines += ["", f"recommended settings (to {study['direction']} the result):"]
    best = study["recommendation"]
    if best is None:
        lines += ["nothing yet: there is no result"]
    else:
        lines += [
            ", ".join(f"{name} = {_text(value)}" for name, value in best["parameters"].items()),
            f"expected result {best['mean']:.6g}, probably between {best['lower']:.6g} and "
            f"{best['upper']:.6g}",
            f"(by all results together; {best['interval']})",
            f"results at these very settings: {best['count']}",
        ]
    if study["notes"]:
        lines += ["", "notes:", *study["notes"]]
    return "\n".join(lines)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else f"{value:.12g}"
