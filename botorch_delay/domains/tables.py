"""Text and CSV files written by people and spreadsheets."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path
from typing import NamedTuple

from botorch_delay.exceptions import InputError


def read_text(file: Path) -> str:
    """The text in a file; InputError if it cannot be read, or is not in UTF-8."""
    try:
        return file.read_text(encoding="utf-8-sig")  # spreadsheets write a byte order mark
    except OSError as error:
        raise InputError(f"Cannot read {file}: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise InputError(
            f"{file} is not text in UTF-8; save it as that, in a spreadsheet as 'CSV UTF-8'."
        ) from error


class Table(NamedTuple):
    """A CSV file.

    Attributes:
        header: the cells of the first row, without spaces at their ends.
        rows: line number and cells of each other row.
        comma: whether numbers may have decimal commas.
    """

    header: list[str]
    rows: list[tuple[int, list[str]]]
    comma: bool


def read_table(file: Path) -> Table:
    """The rows of a CSV file that are not empty; :class:`InputError` if it is not a table.

    The separator is the comma, semicolon or tab, whichever the first line has most of; unless it
    is the comma, numbers may have decimal commas.
    """
    text = read_text(file)
    unquoted = re.sub(r'"[^"]*"', "", text.partition("\n")[0])
    separator = max(",;\t", key=unquoted.count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator)
    try:
        rows = [(reader.line_num, row) for row in reader if any(map(str.strip, row))]
    except csv.Error as error:
        raise InputError(f"{file}, line {reader.line_num}, is not CSV: {error}.") from error
    header = [cell.strip() for cell in rows[0][1]] if rows else []
    return Table(header, rows[1:], separator != ",")
