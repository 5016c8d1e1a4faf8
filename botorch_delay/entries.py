"""What people write: numbers and settings in words, and results in CSV files."""

from __future__ import annotations

import csv
import math
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from botorch_delay.domains.finite import Domain
from botorch_delay.exceptions import InputError, OutsideWarning
from botorch_delay.optimizers import Optimizer
from botorch_delay.optimizers.run import in_words, table_columns

# How many values, and lines with errors, are listed.
MAX_LISTED = 8
_WITHOUT_VALUE = ("running", "failed", "abandoned")


def read_text(file: Path) -> str:
    """The text in a file.

    Raises:
        InputError: if it cannot be read, or is not in UTF-8.
    """
    try:
        return file.read_text(encoding="utf-8-sig")  # spreadsheets write a byte order mark
    except OSError as error:
        raise InputError(f"Cannot read {file}: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{file} is not text in UTF-8: {error}.") from error


def as_number(text: str) -> float | None:
    """The number in a text; None if there is none."""
    try:
        return float(text)
    except ValueError:
        return None


def read_number(text: str, what: str) -> float:
    """The finite number in a text.

    Raises:
        InputError: if there is none; with a hint where the decimal point is a comma.
    """
    number = as_number(text)
    if number is None and (point := as_number(text.replace(",", "."))) is not None:
        raise InputError(f"{what} is written with a decimal point: {point:.12g}, not {text}.")
    if number is None:
        raise InputError(f"{what} must be a number, got {text!r}.")
    if not math.isfinite(number):
        raise InputError(f"{what} must be finite, got {text}; without a usable one use fail.")
    return number


def point_of(domain: Domain, settings: Sequence[str]) -> Tensor:
    """The point (``d``) with the given settings, each NAME=NUMBER, all of them once.

    Raises:
        InputError: if a name is unknown, missing or given twice, or a value is no number.
    """
    pairs = [setting.partition("=") for setting in settings]
    texts = {name.strip(): text for name, _, text in pairs}
    if len(texts) < len(pairs) or texts.keys() != set(domain.names):
        raise InputError(
            f"Each of {', '.join(domain.names)} needs one NAME=NUMBER, and nothing else does; got "
            f"{' '.join(settings)}."
        )
    return _point(domain, texts)


def _point(domain: Domain, texts: Mapping[str, str]) -> Tensor:
    values = [read_number(texts[name], name) for name in domain.names]
    point = domain.like.new_tensor(values)
    domain.check_logarithms(point.unsqueeze(0), "settings")
    return point


def warn_outside(domain: Domain, x: Tensor) -> None:
    """Warn where a point (``d``) cannot be asked, with the values that can."""
    if bool(domain.contains(x.unsqueeze(0))):
        return
    found = [
        words
        for column, (name, value) in enumerate(zip(domain.names, x.tolist(), strict=True))
        if (words := _outside(domain, column, name, value))
    ]
    reason = "; ".join(found) or f"these settings together cannot: {in_words(domain, x)}"
    warnings.warn(
        f"The result counts, although its settings cannot be asked: {reason}.",
        OutsideWarning,
        stacklevel=2,
    )


def _outside(domain: Domain, column: int, name: str, value: float) -> str:
    """Why a value cannot be asked; empty if it can."""
    allowed = domain.allowed(column)
    if allowed is None:
        low, high = domain.bounds[:, column].tolist()
        return (
            "" if low <= value <= high else f"{name} = {value:.12g} is not in {low:g} to {high:g}"
        )
    if value in (numbers := allowed.tolist()):
        return ""
    nearest = min(numbers, key=lambda number: abs(number - value))
    words = [f"{number:.12g}" for number in numbers]
    if len(words) > MAX_LISTED:
        words = [*words[:3], "...", words[-1]]
    return f"{name} = {value:.12g} is none of {', '.join(words)}; the nearest is {nearest:.12g}"


def write_results(optimizer: Optimizer, path: Path) -> int:
    """Write every trial and attached result to a CSV file; how many there are.

    Raises:
        InputError: if it cannot be written, or is no .csv file.
    """
    if path.suffix.lower() != ".csv":
        raise InputError(f"The table must be a .csv file, got {path}.")
    rows = optimizer.table()
    columns = list(rows[0]) if rows else ["trial", *table_columns(optimizer.domain).values()]
    try:
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, columns)
            writer.writeheader()
            for row in rows:
                writer.writerow({name: _cell(value) for name, value in row.items()})
    except OSError as error:
        raise InputError(f"Cannot write {path}: {error.strerror}.") from error
    return len(rows)


def _cell(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat(" ", "seconds")
    return value


def import_results(optimizer: Optimizer, path: Path) -> tuple[int, int]:
    """Attach the results in a CSV file, all of them or none.

    It has a header with a column for each parameter and one for the value; other columns are not
    read. Cells are between commas, semicolons or tabs; where they are not between commas, numbers
    may have decimal commas. What ``write_results`` wrote can be read: trials without a value are
    left out. So are results that the study has already, as often as it has them.

    Returns:
        How many were attached, and how many the study has already.

    Raises:
        InputError: if the file cannot be read; with what is wrong in each line.
    """
    domain, columns = optimizer.domain, table_columns(optimizer.domain)
    results: list[tuple[Tensor, float]] = []
    wrong: list[str] = []
    for line, cells in _rows(path, [*columns.values(), "value"]):
        if not cells["value"] and cells.get("state") in _WITHOUT_VALUE:
            continue
        try:
            x = _point(domain, {name: cells[column] for name, column in columns.items()})
            results.append((x, read_number(cells["value"], "value")))
        except InputError as error:
            wrong.append(f"line {line}: {error}")
    if wrong:
        more = f" and {len(wrong) - MAX_LISTED} more" if len(wrong) > MAX_LISTED else ""
        raise InputError(f"{path}, nothing was attached. {' '.join(wrong[:MAX_LISTED])}{more}")
    there = Counter((*r.x.tolist(), r.value) for r in (*optimizer.trials, *optimizer.attached))
    new = []
    for x, value in results:
        key = (*x.tolist(), value)
        if there[key] > 0:
            there[key] -= 1
        else:
            new.append((x, value))
    if new:
        X = torch.stack([x for x, _ in new])
        optimizer.attach(X, X.new_tensor([value for _, value in new]))
        for x in X:
            warn_outside(domain, x)
    return len(new), len(results) - len(new)


def _rows(path: Path, needed: Sequence[str]) -> Iterator[tuple[int, dict[str, str]]]:
    """The rows of a CSV file by their line and, for each, its cells by their columns."""
    lines = read_text(path).splitlines()
    separator = max(",;\t", key=(lines or [""])[0].count)
    reader = csv.reader(lines, delimiter=separator)
    header = [name.strip() for name in next(reader, [])]
    for name in needed:
        if header.count(name) != 1:
            raise InputError(
                f"{path} must begin with a line of column names, among them once {name!r}; got "
                f"{', '.join(header) or 'nothing'}."
            )
    for row in reader:
        if len(row) > len(header):
            raise InputError(
                f"{path}, line {reader.line_num}: expected {len(header)} cells, got {len(row)}."
            )
        cells = [cell.strip() for cell in row]
        if separator != ",":
            cells = [cell.replace(",", ".") for cell in cells]
        if any(cells):
            yield reader.line_num, dict(zip_longest(header, cells, fillvalue=""))
