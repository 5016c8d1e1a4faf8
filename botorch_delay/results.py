"""Results as people and spreadsheets write them: numbers, settings, and CSV tables of a study."""

from __future__ import annotations

import csv
import math
import shutil
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from botorch_delay import validation
from botorch_delay.domains.domain import Domain
from botorch_delay.domains.parameters import Choice
from botorch_delay.domains.tables import read_table
from botorch_delay.domains.values import as_number, text_of, value_of, with_point
from botorch_delay.exceptions import InputError, warn
from botorch_delay.history.trials import Attached, Trial, TrialState
from botorch_delay.optimizers.base import Optimizer
from botorch_delay.optimizers.reading import TABLE_COLUMNS, table_columns

__all__ = ["import_results", "params_of", "read_number", "write_results"]

MAX_LISTED = 8  # lines with errors that a message shows
_FORMULAS = ("=", "+", "-", "@")  # a cell that begins so is run as a formula by spreadsheets
_WITHOUT_VALUE = ("", "running", "failed", "abandoned")


def read_number(text: str, what: str, *, comma: bool = False) -> float:
    """The finite number in a text, with a decimal ``comma`` if that is allowed; else InputError."""
    number = as_number(with_point(text) if comma else text)
    if number is not None and math.isfinite(number):
        return number
    if number is not None:
        advice = (
            "If the evaluation failed, run botorch-delay fail STUDY ID, or botorch-delay correct "
            "STUDY ID none if it was told a result"
        )
        must = f"be finite, got {text}. {advice}"
    elif (point := as_number(with_point(text))) is not None:
        must = f"have a decimal point and no commas, such as {point:.12g}; got {text}"
    else:
        must = f"be a number, got {text!r}"
    raise InputError(f"{what} must {must}.")


def params_of(domain: Domain, settings: Sequence[str]) -> dict[str, Any]:
    """The parameters in settings of the form NAME=VALUE, each name at most once."""
    values: dict[str, Any] = {}
    for setting in settings:
        name, equals, text = setting.partition("=")
        for known in sorted(domain.columns.parameters):  # a name may itself contain a =
            if setting.startswith(f"{known}="):
                name, text = known, setting.removeprefix(f"{known}=")
        if not equals or name in values:
            raise InputError(
                f"Each of {', '.join(domain.columns.parameters)} needs one NAME=VALUE; got "
                f"{' '.join(settings)}."
            )
        values[name] = _value(domain, name, text)
    return values


def _value(domain: Domain, name: str, text: str, *, comma: bool = False) -> Any:
    """The value that a text means for a parameter, whether the parameter allows it or not."""
    parameter = domain.columns.parameters.get(name)
    listed = parameter.values if isinstance(parameter, Choice) else ()
    if None in listed and not text.strip():  # as pandas writes it
        return None
    value = value_of(text, listed, comma=comma)
    if isinstance(value, str) and parameter and all(type(v) in (int, float) for v in listed):
        return read_number(text, name)  # raises, and says what is wrong
    return value


def write_results(optimizer: Optimizer, path: Path) -> int:
    """Write every trial and attached result to a CSV file, and return their number.

    An existing file is replaced only if it is empty, or if it has the columns of such a table and
    no others, and no result that the study lacks.
    """
    path = Path(path)
    if path.suffix.lower() != ".csv":
        raise InputError(f"The table must be a .csv file, got {path}.")
    rows = optimizer.table()
    parameters = table_columns(optimizer.domain).values()
    columns = ["trial", *parameters, *TABLE_COLUMNS[1:]]
    header = read_table(path).header if path.exists() else []
    odd = [f"it has no {name!r}" for name in columns if name not in header]
    odd += [f"its column {name!r} would be lost" for name in header if name not in columns]
    if header and odd:
        raise InputError(
            f"{path} exists and is not a table of this study's results alone: {odd[0]}; it was "
            "left as it is. Choose another name."
        )
    found = _read_results(optimizer, path) if header else None
    if found is not None and (lines := sorted(found.lines + found.empty)):
        raise InputError(
            f"{path} holds a row that the study does not have, in line {lines[0]}; it was left "
            "as it is. Import its result first, or choose another name."
        )
    path = path.resolve()
    part = path.with_name(f".{uuid.uuid4().hex}.part")  # an error must not leave half a table
    try:
        with part.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, columns)
            writer.writeheader()
            for row in rows:
                cells = {name: text_of(None) for name in parameters if row[name] is None}
                if row["reason"].startswith(_FORMULAS):
                    cells["reason"] = f"'{row['reason']}"
                writer.writerow({name: _cell(value) for name, value in row.items()} | cells)
        if path.exists():
            shutil.copymode(path, part)
        part.replace(path)
    except OSError as error:
        with suppress(OSError):
            part.unlink()
        raise InputError(f"Cannot write {path}: {error.strerror}.") from error
    return len(rows)


def _cell(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat(" ", "seconds")
    return str(value).lower() if isinstance(value, bool) else value


def import_results(optimizer: Optimizer, path: Path) -> tuple[int, int, int]:
    """Take all results in a CSV file, or none; returns how many were told, attached, and known.

    Its header must have a column for each parameter and one for the value. Of others ``trial``,
    ``state``, ``told_at`` and ``noise_var`` are used, as ``write_results`` writes them.
    Separators are commas, semicolons or tabs; with the latter two, numbers may have decimal commas.
    A row with the number and the settings of a running trial is told as its answer, unless it shows
    (by its state or ``told_at``) that it is of another; all others are attached. Trials without a
    value are skipped. So are results that the study has, or had before they were detached or
    corrected, as often as they occur there.
    """
    found = _read_results(optimizer, Path(path))
    for said in found.warnings:
        warn(said, UserWarning)
    if found.attached:
        rows = found.attached
        noises = [math.nan if row.noise_var is None else row.noise_var for row in rows]
        known = None if all(map(math.isnan, noises)) else noises
        optimizer.attach([row.params for row in rows], [row.value for row in rows], known)
    for number, row in found.told.items():
        optimizer.tell(number, row.value, row.noise_var)
    return len(found.told), len(found.attached), found.known


class _Results(NamedTuple):
    """What was read from a table.

    Attributes:
        told: rows of running trials, by number.
        attached: rows of other results that the study does not have.
        known: how many results the study has already.
        lines: numbers of the lines with results that the study does not have.
        empty: numbers of the lines with neither a value nor a state.
        warnings: what the user may have meant otherwise.
    """

    told: dict[int, _Row]
    attached: list[_Row]
    known: int
    lines: list[int]
    empty: list[int]
    warnings: list[str]


class _Row(NamedTuple):
    """A row of a table with a value.

    Attributes:
        trial: the trial whose number the row has, if any.
        same: whether it has that trial's settings, too.
        answers: whether it is the running trial's answer, and not another result.
        noise_var: the noise variance, if given.
        told_at: when the result was told, as the row says; None if it does not.
    """

    line: int
    params: dict[str, Any]
    x: Tensor
    value: float
    trial: Trial | None
    same: bool
    answers: bool
    noise_var: float | None
    told_at: datetime | None


def _read_results(optimizer: Optimizer, path: Path) -> _Results:
    columns = table_columns(optimizer.domain)
    trials = optimizer.trials
    has: list[Trial | Attached] = [*trials, *optimizer.attached, *optimizer.detached]
    there = Counter((*own.x.tolist(), own.value) for own in has)
    there.update((*t.x.tolist(), said.value) for t in trials for said in t.corrections)
    told: dict[int, _Row] = {}
    new: list[_Row] = []
    known, lines, wrong, warnings, empty = 0, [], [], [], []
    rows, comma = _rows(path, [*columns.values(), "value"])
    for line, cells in rows:
        if not cells["value"].strip() and (state := _cell_of(cells, "state")) in _WITHOUT_VALUE:
            empty += [] if state else [line]
            continue
        try:
            row = _read_row(optimizer, trials, columns, line, cells, comma=comma)
        except InputError as error:
            wrong.append(f"line {line}: {error}")
            continue
        if row.trial and row.answers and row.same and row.trial.id not in told:
            told[row.trial.id] = row
            lines.append(line)
            continue
        there[key := (*row.x.tolist(), row.value)] -= 1
        if there[key] >= 0:
            known += 1
            continue
        new.append(row)
        lines.append(line)
        if said := _doubt(row, optimizer.domain):
            warnings.append(f"line {line}: {said}")
    if wrong:
        raise InputError(f"{path}, nothing was taken. {_listed(wrong, ' ')}")
    if empty:
        warnings.append(f"Lines without a value were left out: {_listed(empty, ', ')}.")
    return _Results(told, new, known, lines, empty, warnings)


def _read_row(
    optimizer: Optimizer,
    trials: Sequence[Trial],
    columns: Mapping[str, str],
    line: int,
    cells: Mapping[str, str],
    *,
    comma: bool,
) -> _Row:
    """A row with a value, checked; ``columns`` are those of the parameters."""
    domain = optimizer.domain
    params = {n: _value(domain, n, cells[c], comma=comma) for n, c in columns.items()}
    x = domain.point(params, outside=True)
    domain.check_logarithms(x.unsqueeze(0), "settings")
    value = read_number(cells["value"], "value", comma=comma)
    value = validation.answer(value, domain.like, "value")
    number = as_number(cells.get("trial", ""))  # pandas turns numbers beside gaps into 2.0
    trial = trials[int(number)] if number is not None and number in range(len(trials)) else None
    same = trial is not None and domain.words(trial.x) == domain.words(x)
    if trial and same:  # a spreadsheet may have rounded the settings, and the value
        own = [trial.value, *(said.value for said in trial.corrections)]
        alike = [v for v in own if v is not None and math.isclose(v, value, rel_tol=1e-6)]
        x, value = trial.x, alike[0] if alike else value
    noise, state, told_at = (_cell_of(cells, name) for name in ("noise_var", "state", "told_at"))
    # Another study with the same seed may have asked the same: its finished trials show when.
    was_open = not told_at and state not in ("attached", "failed", "abandoned")
    answers = trial is not None and trial.state is TrialState.RUNNING and was_open
    noise_var = None
    if noise:
        if optimizer.exact:
            raise InputError("evaluations are exact; leave out noise_var.")
        noise_var = read_number(noise, "noise_var", comma=comma)
        noise_var = validation.noise_variance(noise_var, "noise_var", domain.like)
    known = trial, same, answers, noise_var, _as_time(told_at)
    return _Row(line, params, x, value, *known)


def _cell_of(cells: Mapping[str, str], name: str) -> str:
    """A cell's text; empty for a missing cell, and for what pandas and R write for one."""
    text = cells.get(name, "").strip()
    return "" if text.lower() in ("na", "nan", "nat", "<na>") else text


def _as_time(text: str) -> datetime | None:
    """The time that a text stands for, in UTC if it names no zone; None for any other text."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return None
    return time if time.tzinfo else time.replace(tzinfo=UTC)


def _doubt(row: _Row, domain: Domain) -> str | None:
    """A warning about a row that is attached although it has a trial's number, if there is need."""
    trial = row.trial
    if trial is None:
        return None
    if row.answers and not row.same:
        return (
            f"trial {trial.id} still runs, with {domain.words(trial.x)}; this row has "
            f"{domain.words(row.x)}, so it counts as another result."
        )
    if not (row.same and trial.told_at and row.told_at):
        return None
    if abs(row.told_at.timestamp() - trial.told_at) > 1.0:  # of another study
        return None
    command = f"correct STUDY {trial.id} {row.value}"
    found = "failed" if trial.value is None else f"has {trial.value} already"
    if trial.state is TrialState.ABANDONED:
        command, found = f"tell STUDY {trial.id} {row.value}", "was abandoned"
    return (
        f"trial {trial.id} {found}, so {row.value} counts as another result; to replace it, detach "
        f"that, and run botorch-delay {command}."
    )


def _listed(found: Sequence[Any], between: str) -> str:
    """The first of several findings as text, and how many more there are."""
    more = f" and {len(found) - MAX_LISTED} more" if len(found) > MAX_LISTED else ""
    return between.join(map(str, found[:MAX_LISTED])) + more


def _rows(path: Path, needed: Sequence[str]) -> tuple[list[tuple[int, dict[str, str]]], bool]:
    """Rows of a CSV file (line number, cells by column); whether it may have decimal commas."""
    header, rows, comma = read_table(path)
    for name in needed:
        if header.count(name) != 1:
            raise InputError(
                f"{path} must begin with a line of column names that has {name!r} once; got "
                f"{', '.join(header) or 'nothing'}."
            )
    for line, cells in rows:
        if len(cells) > len(header):
            raise InputError(
                f"{path}, line {line}: expected {len(header)} cells, got {len(cells)}."
            )
    return [(line, dict(zip_longest(header, cells, fillvalue=""))) for line, cells in rows], comma
