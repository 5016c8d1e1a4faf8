"""Fields of many records, packed.

An object for each number of each of many trials would take several times the memory, and Python's
garbage collector would look at every one of them.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from botorch_delay.exceptions import InputTypeError

# Fields that are whole numbers, and real ones; any of them may be None.
WHOLE = ("id", "index", "round", "slot", "answered_step")
REAL = ("value", "noise_var", "asked_at", "answered_at")
FIELDS = (*WHOLE, *REAL, "state", "late", "reason")
NONE = -(2**63)  # in a column of whole numbers


class Columns:
    """What trials consist of, by field, one row per trial.

    Attributes:
        source: where the points are.
        state: codes below 256.
        late: 0 or 1.
        reason: by row, where there is one.
        whole: by name, ``NONE`` for None.
        real: by name, NaN for None.
    """

    def __init__(self) -> None:
        self.source: list[Tensor] = []
        self.reason: dict[int, str] = {}
        self.state, self.late = bytearray(), bytearray()
        self.whole = {name: array("q") for name in WHOLE}
        self.real = {name: array("d") for name in REAL}

    def append(self, source: Tensor, **fields: Any) -> int:
        """Add a row; returns its number. Where that fails there is no new row.

        Raises:
            OverflowError: if a whole number is beyond 64 bits.
            InputTypeError: if there is no such field.
        """
        row = len(self.source)
        try:
            self.source.append(source)
            self.state.append(0)
            self.late.append(0)
            for whole in self.whole.values():
                whole.append(NONE)
            for real in self.real.values():
                real.append(math.nan)
            self.change(row, **fields)
        except BaseException:
            self.truncate(row)
            raise
        return row

    def truncate(self, length: int) -> None:
        """Drop the rows from some number on."""
        if len(self.source) <= length:
            return
        del self.source[length:], self.state[length:], self.late[length:]
        for whole in self.whole.values():
            del whole[length:]
        for real in self.real.values():
            del real[length:]
        for row in [row for row in self.reason if row >= length]:
            del self.reason[row]

    def change(self, row: int, **fields: Any) -> None:
        """Put values in some fields of a row.

        Raises:
            InputTypeError: if there is no such field; then nothing is changed.
        """
        unknown = fields.keys() - FIELDS
        if unknown:
            raise InputTypeError(f"A row has the fields {', '.join(FIELDS)}; got {min(unknown)!r}.")
        for name, value in fields.items():
            if name in self.whole:
                self.whole[name][row] = NONE if value is None else value
            elif name in self.real:
                self.real[name][row] = math.nan if value is None else value
            elif name == "state":
                self.state[row] = value
            elif name == "late":
                self.late[row] = value
            elif value:
                self.reason[row] = value
            else:
                self.reason.pop(row, None)

    def whole_or_none(self, name: str, row: int) -> int | None:
        """A whole number."""
        number = self.whole[name][row]
        return None if number == NONE else number

    def real_or_none(self, name: str, row: int) -> float | None:
        """A real number."""
        number = self.real[name][row]
        return None if math.isnan(number) else number

    def rows_in(self, state: int, end: int) -> list[int]:
        """The rows below ``end`` with a state, increasing."""
        # The view of the bytes ends with this line: while there is one they can't be added to.
        found: list[int] = np.flatnonzero(
            np.frombuffer(self.state, np.uint8)[:end] == state
        ).tolist()
        return found

    def count_in(self, state: int, end: int) -> int:
        """How many rows below ``end`` have a state."""
        return self.state.count(state, 0, end)

    def gather_whole(self, name: str, rows: Sequence[int]) -> Tensor:
        """Whole numbers of some rows, a LongTensor; ``NONE`` where there is none."""
        return torch.from_numpy(np.asarray(self.whole[name])[np.asarray(rows, dtype=np.int64)])

    def gather_real(self, name: str, rows: Sequence[int]) -> Tensor:
        """Real numbers of some rows, in double precision; NaN where there is none."""
        return torch.from_numpy(np.asarray(self.real[name])[np.asarray(rows, dtype=np.int64)])
