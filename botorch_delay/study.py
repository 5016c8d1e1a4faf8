"""Studies in files, for experiments that are not programs.

The space is described by a TOML file with a table for each parameter:

    [parameters.temperature]
    low = 20                     # both ends without a decimal point: whole numbers
    high = 80
    unit = "°C"

    [parameters.dose]
    low = 0.01
    high = 10.0
    log = true
    round = 2                    # significant digits; or step = 0.5, or steps = 13

    [parameters.acid]
    values = ["citric", "malic"]

If any range has neither ``step`` nor ``steps`` the space is a box, else it is the grid of all
combinations. Or the arms are the rows of a CSV file; parameters may then describe its columns:

    arms = "arms.csv"            # a header with the names, one row of values per arm
"""

from __future__ import annotations

import inspect
import math
import os
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from botorch_delay import validation
from botorch_delay.domains.parameters import Choice, Float, Int, Parameter
from botorch_delay.domains.space import MAX_ARMS, Space
from botorch_delay.domains.tables import read_text
from botorch_delay.domains.values import text_of
from botorch_delay.exceptions import InputError, NoAnswerError
from botorch_delay.history.point_status import MAX_FAILURES
from botorch_delay.history.trials import Attached, Trial, TrialState
from botorch_delay.optimizers.base import Optimizer
from botorch_delay.optimizers.bpe import BPEDelayOptimizer
from botorch_delay.optimizers.reading import TABLE_COLUMNS

__all__ = [
    *("add_note", "describe_study", "describe_trial", "format_settled", "format_space"),
    *("format_study", "format_trials", "read_space"),
]

MAX_LISTED = 8  # failed trials that are listed

_ROUND = (
    "  (a round tries settings of which little is known; when their results are in it closes, and\n"
    "  settings that can hardly be the best any more are left out)"
)


def read_space(path: str | os.PathLike[str]) -> Space:
    """The space in a TOML file; an InputError names the file and the parameter."""
    file = Path(path)
    try:
        described = tomllib.loads(read_text(file))
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{file} is not TOML: {error}.") from error
    tables, arms = described.pop("parameters", {}), described.pop("arms", None)
    try:
        if described or not isinstance(tables, dict) or not (tables or arms is not None):
            unknown = "".join(f"{key!r} is unknown; " for key in described)
            raise InputError(
                f'{unknown}expected at least one [parameters.NAME] table, or arms = "file.csv", '
                "the name of a CSV file, and nothing else."
            )
        if arms is not None:
            return _space_of_arms(file.parent, arms, tables)
        parameters = {name: _parameter(name, table) for name, table in tables.items()}
        is_box = any("low" in t and not {"step", "steps"} & t.keys() for t in tables.values())
        return Space(parameters) if is_box else Space.grid(parameters)
    except InputError as error:
        raise InputError(f"{file}: {error}") from error


def _space_of_arms(folder: Path, arms: Any, tables: Mapping[str, Any]) -> Space:
    """The arms of a CSV file; a table without values or ends gets those of its column."""
    if not isinstance(arms, str):
        raise InputError(f"arms must be the name of a CSV file, got {arms!r}.")
    told = {"values", "low", "high"}
    complete = {
        name: _parameter(name, table)
        for name, table in tables.items()
        if not isinstance(table, dict) or told & table.keys()
    }
    parameters, rest = dict(complete), [name for name in tables if name not in complete]
    listed = Space.arms(folder / arms, complete).parameters if rest else {}
    for name in rest:
        if name not in listed:
            raise InputError(f"The arms have no column {name!r}; they have {list(listed)}.")
        own = listed[name].describe()
        both = {key: own[key] for key in told & own.keys()} | tables[name]
        parameters[name] = _parameter(name, both)
    space = Space.arms(folder / arms, parameters)
    for name in TABLE_COLUMNS:
        if name in space.parameters and name not in tables:
            raise InputError(
                f"{arms} has a column {name!r}, as tables of results have, and every column is a "
                "setting that is varied. Leave it out; if it is a setting, add a table "
                f"[parameters.{name}]."
            )
    return space


def _parameter(name: str, table: Any) -> Parameter:
    """The parameter that a table describes: values, steps between two ends, or a range."""
    if not isinstance(table, dict):
        raise InputError(f"parameter {name}: expected a table, got {table!r}.")
    make: Callable[..., Parameter] = _steps
    if (values := table.get("values")) is not None:
        numeric = isinstance(values, list) and all(type(v) in (int, float) for v in values)
        make = partial(Choice, ordered=numeric)
    elif "steps" not in table:
        numbers = table.get("low"), table.get("high"), table.get("step", 1)
        whole = all(type(number) is int for number in numbers)
        make = Int if whole and "round" not in table else Float
    keys = inspect.signature(make).parameters
    needed = [key for key, parameter in keys.items() if parameter.default is parameter.empty]
    wrong = [f"{key!r} is missing" for key in needed if key not in table]
    wrong += [f"{key!r} does not belong here" for key in table if key not in keys]
    try:
        if wrong:
            raise InputError(
                f"{', '.join(wrong)}; expected values, and perhaps ordered, log and unit; or low "
                "and high, and perhaps log, unit, and one of step, steps and round."
            )
        return make(**table)
    except InputError as error:
        raise InputError(f"parameter {name}: {error}") from error


def _steps(low: Any, high: Any, steps: Any, log: Any = False, unit: Any = None) -> Choice:
    """``steps`` numbers from one end to the other, evenly spaced, or in equal ratios if ``log``."""
    check = validation.positive if log else validation.real
    ends = check(low, "low"), check(high, "high")
    steps = validation.whole(steps, "steps", 2, MAX_ARMS)
    width = ends[1] - ends[0]
    if not 0.0 < width < math.inf:
        raise InputError(
            f"low must be below high, and their difference finite, got {low} and {high}."
        )
    spaced = (np.geomspace if log else np.linspace)(*ends, steps)[1:-1].tolist()
    # Readable numbers: 12 digits, no -0.0, and the ends exactly.
    place = 12 - math.ceil(math.log10(width))
    inner = (float(f"{value:.12g}") if log else round(value, place) + 0.0 for value in spaced)
    numbers = [ends[0], *inner, ends[1]]
    return Choice(numbers, ordered=True, log=log, unit=unit)


def format_space(space: Space) -> str:
    """A description of a space with one line per parameter."""
    count = space.domain.count
    kind = "a box" if count is None else f"{count} arms"
    lines = [
        f"{name}: {parameter.summary}"
        + (f" ({parameter.unit})" if parameter.unit else "")
        + (", by its logarithm" if parameter.log else "")
        for name, parameter in space.parameters.items()
    ]
    return "\n  ".join([f"{kind} of {', '.join(space.parameters)}", *lines])


def describe_trial(trial: Trial) -> dict[str, Any]:
    """A trial as plain values, ready for JSON."""
    kept = "id", "round", "value", "reason", "asked_at", "told_at"
    return {name: getattr(trial, name) for name in kept} | {
        "parameters": trial.params,
        "units": trial.columns.units,
        "state": trial.state.value,
        "corrections": [asdict(correction) for correction in trial.corrections],
    }


def describe_study(optimizer: Optimizer) -> dict[str, Any]:
    """The state of a study as plain values, ready for JSON: trials, round, recommendation."""
    domain = optimizer.domain

    def describe(result: Attached) -> dict[str, Any]:
        kept = {name: getattr(result, name) for name in ("id", "value", "detached_at", "reason")}
        return {"parameters": domain.params(result.x), **kept, "attached_at": result.told_at}

    study: dict[str, Any] = {
        "horizon": optimizer.horizon,
        "asked": len(optimizer.trials),
        "direction": "maximize" if optimizer.maximize else "minimize",
        "units": domain.columns.units,
        "arms": domain.count,
        **dict.fromkeys(("active", "round", "forecast", "recommendation")),
        "waiting_for": [],
        "overdue": [
            {"id": found.trial.id, "asks": found.asks, "sooner": found.sooner}
            for found in optimizer.overdue()
        ],
        "summary": str(optimizer),
        "notes": optimizer.notes.get("lines", []),
        "pending": [describe_trial(trial) for trial in optimizer.pending],
        "trials": [describe_trial(trial) for trial in optimizer.trials],
        "attached": [describe(result) for result in optimizer.attached],
        "detached": [describe(result) for result in optimizer.detached],
    }
    if isinstance(optimizer, BPEDelayOptimizer):
        study |= {"active": optimizer.active_set.size, "round": optimizer.round}
        study["waiting_for"] = [straggler.trial.id for straggler in optimizer.stragglers]
        with suppress(NoAnswerError):
            if forecast := optimizer.forecast():
                left = math.inf if forecast.asks_left is None else forecast.asks_left
                study["forecast"] = str(forecast) if forecast.quantile(0.5) <= left else None
    with suppress(NoAnswerError):
        best = optimizer.recommend()
        bounded = math.isfinite(best.upper)
        study["recommendation"] = {
            "parameters": best.params,
            "words": domain.columns.words(best.params),
            "mean": best.mean,
            "lower": best.lower if bounded else None,  # JSON has no infinity
            "upper": best.upper if bounded else None,
            "interval": best.interval,
            "count": best.count,
        }
    return study


def add_note(optimizer: Optimizer, text: str) -> list[str]:
    """Add a dated line to the study's notes, and return all of them."""
    lines = optimizer.notes.setdefault("lines", [])
    if not text.strip():
        raise InputError("A note must not be empty, got nothing or only spaces.")
    if not isinstance(lines, list):
        raise InputError(f"notes['lines'] must be a list to add a note to, got {lines!r}.")
    words = " ".join(text.encode("utf-8", "backslashreplace").decode().split())
    lines.append(f"{datetime.now():%Y-%m-%d %H:%M}  {words}")
    return lines


def format_settled(optimizer: Optimizer, trial: Trial) -> str:
    """How a trial was settled, and what follows from it."""
    words = optimizer.domain.words(trial.x)
    running = len(optimizer.pending)
    out = f"{running} {'trial is' if running == 1 else 'trials are'} still running"
    if trial.state is TrialState.COMPLETED:
        before = [said.value for said in trial.corrections]
        was = f" (before: {'failed' if before[-1] is None else before[-1]})" if before else ""
        return f"trial {trial.id}: result {trial.value:.12g}{was} at {words}; {out}"
    if trial.state is TrialState.ABANDONED:
        return (
            f"trial {trial.id} is given up, at {words}; {out}\n"
            "its settings may be asked again; if its result comes after all, tell it"
        )
    feasibility = optimizer._feasibility
    left = MAX_FAILURES - feasibility.failures(feasibility.key(trial))[0]
    back = f"its settings have failed {MAX_FAILURES} times and are not asked any more"
    if left > 0:
        often = {1: "once more", 2: "twice more"}.get(left, f"{left} times")
        back = f"its settings may be asked again, at most {often} in a row without a result"
    return f"trial {trial.id} failed, at {words}; {out}\n{back}"


def format_trials(
    trials: Sequence[Mapping[str, Any]], last: str = "", units: Mapping[str, str] | None = None
) -> str:
    """A table of described trials or attached results, with a column per parameter.

    The ``last`` column is "asked" (how long ago), "value", or none; ``units`` are by parameter.
    """
    if not trials:
        return "none"
    units = units or {}
    names = [f"{n} ({units[n]})" if n in units else n for n in trials[0]["parameters"]]
    rows = [["id", *names, *([last] if last else [])]]
    for trial in trials:
        cells = [trial["id"], *trial["parameters"].values()]
        if last == "asked":
            seconds = round(max(time.time() - trial["asked_at"], 0.0))
            cells.append(f"{timedelta(seconds=seconds)} ago")
        elif last:
            cells.append(trial[last])
        rows.append([text_of(cell) for cell in cells])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    )


def format_study(study: Mapping[str, Any]) -> str:
    """The result of :func:`describe_study` as text."""
    lines = [study["summary"]]
    if study["round"] is not None:
        lines.append(_ROUND)
    if study["waiting_for"]:
        ids = ", ".join(map(str, study["waiting_for"]))
        lines.append(f"the round waits for trial {ids}; if one will not come back, use abandon")
    if study["forecast"]:
        lines.append(study["forecast"])
    lines += [
        f"trial {found['id']} is overdue: {found['sooner']:.0%} of answers are estimated to take "
        f"fewer than the {found['asks']} asks since it was asked"
        for found in study["overdue"]
    ]
    lines += _format_amendments(study)
    running = format_trials(study["pending"], "asked", study["units"])
    lines += ["", "running (no result yet):", running]
    if study["attached"]:
        attached = format_trials(study["attached"], "value", study["units"])
        lines += ["", "attached (results that were obtained elsewhere):", attached]
    lines += ["", f"recommended settings (to {study['direction']} the result):"]
    if best := study["recommendation"]:
        expected = f"expected result {best['mean']:.6g}"
        if best["lower"] is not None and best["lower"] < best["upper"]:
            expected += f", probably between {best['lower']:.6g} and {best['upper']:.6g}"
        advice = "" if best["count"] else " (try them once before you rely on them)"
        lines += [
            best["words"],
            expected,
            f"(by all results together; interval: {best['interval']})",
            f"results at these very settings: {best['count']}{advice}",
        ]
    else:
        lines.append("nothing yet: there is no result")
    if study["notes"]:
        lines += ["", "notes:", *study["notes"]]
    return "\n".join(lines)


def _format_amendments(study: Mapping[str, Any]) -> list[str]:
    """Lines for trials without a result, corrected ones, and attached results taken back."""
    ends = {"failed": "failed", "abandoned": "was abandoned"}
    lost = [trial for trial in study["trials"] if trial["state"] in ends]
    more, amended = len(lost) - MAX_LISTED, []
    if more > 0:
        amended.append((f"{more} earlier trials failed or were abandoned; export lists them", ""))
    for trial in lost[-MAX_LISTED:]:
        amended.append((f"trial {trial['id']} {ends[trial['state']]}", trial["reason"]))
    for trial in study["trials"]:
        for said in trial["corrections"]:
            why = said["failure"] and f" ({said['failure']})"
            was = f"had failed{why}" if said["value"] is None else f"had result {said['value']:.6g}"
            amended.append((f"trial {trial['id']} {was} before it was corrected", said["reason"]))
    for result in study["detached"]:
        what = f"attached result {result['id']}, {result['value']:.6g}, was taken back"
        amended.append((what, result["reason"]))
    return [f"{what} ({reason})" if reason else what for what, reason in amended]
