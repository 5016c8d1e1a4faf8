"""Numbers and settings that people type, and results in CSV files."""

from __future__ import annotations

import csv
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from botorch_delay.domains.domain import Domain
from botorch_delay.domains.parameters import Choice, text_of, value_of
from botorch_delay.domains.tables import as_number, read_rows
from botorch_delay.exceptions import InputError
from botorch_delay.history.trials import Attached, Trial
from botorch_delay.optimizers import Optimizer
from botorch_delay.optimizers.reading import TABLE_COLUMNS, table_columns

MAX_LISTED = 8  # lines with errors
_WITHOUT_VALUE = ("running", "failed", "abandoned")


def read_number(text: str, what: str) -> float:
    """The finite number in a text; InputError, with a hint if it has a decimal comma."""
    number = as_number(text)
    if number is not None and math.isfinite(number):
        return number
    if number is not None:
        must = f"be finite, got {text}. A trial without a result is reported by fail"
    elif (point := as_number(text.replace(",", "."))) is not None:
        must = f"have a decimal point and no commas, such as {point:.12g}; got {text}"
    else:
        must = f"be a number, got {text!r}"
    raise InputError(f"{what} must {must}.")


def params_of(domain: Domain, settings: Sequence[str]) -> dict[str, Any]:
    """The parameters in settings of the form NAME=VALUE, each name at most once."""
    values: dict[str, Any] = {}
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals or name in values:
            raise InputError(
                f"Each of {', '.join(domain.columns.parameters)} needs one NAME=VALUE; got "
                f"{' '.join(settings)}."
            )
        values[name] = _value(domain, name, text)
    return values


def _value(domain: Domain, name: str, text: str) -> Any:
    """The value of a parameter from its text, allowed or not."""
    parameter = domain.columns.parameters.get(name)
    listed = parameter.values if isinstance(parameter, Choice) else ()
    value = next((v for v in listed if text_of(v) == text), value_of(text))
    numeric = not isinstance(parameter, Choice) or any(type(v) in (int, float) for v in listed)
    if isinstance(value, str) and parameter is not None and numeric:
        return read_number(text, name)  # raises, and says what is wrong
    return value


def write_results(optimizer: Optimizer, path: Path) -> int:
    """Write every trial and attached result to a CSV file, and return their number.

    An existing file is replaced only if it is empty or has the columns of such a table.
    """
    path = Path(path)
    if path.suffix.lower() != ".csv":
        raise InputError(f"The table must be a .csv file, got {path}.")
    rows = optimizer.table()
    parameters = table_columns(optimizer.domain).values()
    columns = ["trial", *parameters, *TABLE_COLUMNS[1:]]
    if path.exists():
        _, header = next(read_rows(path), (0, []))
        if header and not set(columns).issubset(header):
            raise InputError(
                f"{path} exists and is not a table of this study's results; it was left as it is. "
                "Choose another name."
            )
    try:
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, columns)
            writer.writeheader()
            for row in rows:
                cells = {name: text_of(None) for name in parameters if row[name] is None}
                writer.writerow({name: _cell(value) for name, value in row.items()} | cells)
    except OSError as error:
        raise InputError(f"Cannot write {path}: {error.strerror}.") from error
    return len(rows)


def _cell(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat(" ", "seconds")
    return str(value).lower() if isinstance(value, bool) else value


def import_results(optimizer: Optimizer, path: Path) -> tuple[int, int]:
    """Attach the results in a CSV file, all or none; the numbers of new and of known results.

    Its header must have a column for each parameter and one for the value; others are ignored.
    Separators are commas, semicolons or tabs; with the latter two, numbers may have decimal commas.
    Trials without a value, as ``write_results`` writes them, are skipped, and so are results that
    the study has already, as often as it has them.
    """
    path = Path(path)
    domain, columns = optimizer.domain, table_columns(optimizer.domain)
    results: list[tuple[Tensor, float]] = []
    wrong: list[str] = []
    for line, cells in _rows(path, [*columns.values(), "value"]):
        if not cells["value"] and cells.get("state") in _WITHOUT_VALUE:
            continue
        try:
            params = {name: _value(domain, name, cells[c]) for name, c in columns.items()}
            x = domain.point(params, outside=True)
            domain.check_logarithms(x.unsqueeze(0), "settings")
            results.append((x, read_number(cells["value"], "value")))
        except InputError as error:
            wrong.append(f"line {line}: {error}")
    if wrong:
        more = f" and {len(wrong) - MAX_LISTED} more" if len(wrong) > MAX_LISTED else ""
        raise InputError(f"{path}, nothing was attached. {' '.join(wrong[:MAX_LISTED])}{more}")
    has: list[Trial | Attached] = [*optimizer.trials, *optimizer.attached]
    there = Counter((*result.x.tolist(), result.value) for result in has)
    new = []
    for x, value in results:
        there[key := (*x.tolist(), value)] -= 1
        if there[key] < 0:
            new.append((x, value))
    if new:
        X = torch.stack([x for x, _ in new])
        optimizer.attach(X, X.new_tensor([value for _, value in new]))
        for x in X:
            domain.warn_outside(x)
    return len(new), len(results) - len(new)


def _rows(path: Path, needed: Sequence[str]) -> Iterator[tuple[int, dict[str, str]]]:
    """Line numbers and cells by column of the rows of a CSV file."""
    rows = read_rows(path)
    _, header = next(rows, (0, []))
    for name in needed:
        if header.count(name) != 1:
            raise InputError(
                f"{path} must begin with a line of column names, among them once {name!r}; got "
                f"{', '.join(header) or 'nothing'}."
            )
    for line, cells in rows:
        if len(cells) > len(header):
            raise InputError(
                f"{path}, line {line}: expected {len(header)} cells, got {len(cells)}."
            )
        yield line, dict(zip_longest(header, cells, fillvalue=""))
