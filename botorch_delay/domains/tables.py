"""Text and CSV files written by people and spreadsheets."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path

from botorch_delay.domains.values import as_number
from botorch_delay.exceptions import InputError


def read_text(file: Path) -> str:
    """The text in a file; InputError if it cannot be read, or is not in UTF-8."""
    try:
        return file.read_text(encoding="utf-8-sig")  # spreadsheets write a byte order mark
    except OSError as error:
        raise InputError(f"Cannot read {file}: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise InputError(
            f"{file} is not text in UTF-8; save it so, from a spreadsheet as 'CSV UTF-8'."
        ) from error


def read_rows(file: Path) -> Iterator[tuple[int, list[str]]]:
    """Line numbers and stripped cells of the rows of a CSV file that are not empty.

    The separator is the comma, semicolon or tab, whichever the first line has most of; without
    commas numbers may have a decimal comma. :class:`InputError` if it is not a table.
    """
    text = read_text(file)
    separator = max(",;\t", key=text.partition("\n")[0].count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator)
    try:
        for row in reader:
            cells = [cell.strip() for cell in row]
            if separator != ",":
                cells = [_with_point(cell) for cell in cells]
            if any(cells):
                yield reader.line_num, cells
    except csv.Error as error:
        raise InputError(f"{file}, line {reader.line_num}, is not CSV: {error}.") from error


def _with_point(cell: str) -> str:
    pointed = cell.replace(",", ".")
    return cell if as_number(pointed) is None else pointed
