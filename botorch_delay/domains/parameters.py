"""Kinds of parameters: their values, and the numbers in a column that stand for these."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Sequence
from copy import deepcopy
from dataclasses import KW_ONLY, dataclass, field, fields
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np

from botorch_delay import validation
from botorch_delay.domains.values import (
    is_equal,
    is_kept_by_files,
    is_number,
    key_of,
    stored,
    text_of,
)
from botorch_delay.exceptions import InputError, InputTypeError

# A parameter with more values than this has a continuous column, which is rounded to its values.
MAX_LISTED = 1_000
MAX_TABLE = 100_000  # most values for which a table is kept, to round many numbers at once
WIDE = 1e3  # where high is this many times low, logarithms usually matter
ROUNDING = 1e-9  # numbers whose relative difference is no larger count as equal


@dataclass(frozen=True)
class Parameter:
    """A column of numbers that stand for themselves; the base of other kinds of parameters."""

    @property
    def unit(self) -> str | None:
        """The unit of its values, shown in tables and plots; None if it has none."""
        return None

    @property
    def log(self) -> bool | None:
        """Whether points are drawn uniformly in its logarithm, which a learned kernel sees."""
        return False

    @property
    def count(self) -> float:
        """The number of its values, ``inf`` for an interval without steps."""
        return math.inf

    @property
    def column(self) -> list[float] | None:
        """The column's numbers, one for each value; None where the column is continuous."""
        return None

    def listed(self) -> list[float]:
        """The numbers of all values, if these are finitely many, even for a continuous column."""
        assert self.column is not None
        return self.column

    @property
    def summary(self) -> str:
        """The allowed values in words."""
        return "a number"

    def decode(self, number: float) -> Any:
        """The value for a column's number; the number itself if it stands for no value."""
        return number

    def encode(self, value: Any, name: str, *, outside: bool = False) -> float:
        """The column's number for a value; InputError, with the name, if it is not allowed.

        With ``outside`` a number may lie between steps or outside the interval.
        """
        return validation.real(value, name)

    def describe(self) -> dict[str, Any]:
        """Its kind and arguments, JSON-ready."""
        given = {each.name: getattr(self, each.name) for each in fields(self) if each.init}
        return {"kind": type(self).__name__, **given}


@dataclass(frozen=True)
class _Number(Parameter):
    """The base of Float and Int: an interval, or values in it at places 0, 1, ..."""

    low: float
    high: float
    _: KW_ONLY
    log: bool | None = None
    step: float | None = None
    unit: str | None = None
    # Whether its logarithm probably matters, and ``log`` says neither yes nor no.
    lacks_scale: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        names = ("low", "high") if self.step is None else ("low", "high", "step")
        for name in names:
            object.__setattr__(self, name, self._check(getattr(self, name), name))
        lacks_scale = (
            self.log is None and self.step in (None, 1) and 0 < WIDE * self.low <= self.high
        )
        object.__setattr__(self, "lacks_scale", lacks_scale)
        object.__setattr__(self, "log", validation.flag(self.log is not None and self.log, "log"))
        _check_unit(self.unit)
        if self.low > self.high:
            raise InputError(f"low must not be above high, got {self.low} and {self.high}.")
        if self.log and self.low <= 0:
            raise InputError(f"low must be above 0 on a logarithmic scale, got {self.low}.")
        if self.step is not None and self.step <= 0:
            raise InputError(f"step must be above 0, got {self.step}.")
        width = self.high - self.low
        if width == math.inf:
            raise InputError(
                f"high - low must be finite, got {self.low} and {self.high}; use other units."
            )
        if self.step is not None and math.isinf(width / self.step):
            raise InputError(f"step must be larger for high - low = {width}, got {self.step}.")
        if self.step is not None and width > 0 and self._steps < 1:
            raise InputError(f"step must fit into high - low = {width}, got {self.step}.")

    @staticmethod
    def _check(value: Any, name: str) -> float:
        return validation.real(value, name)

    @cached_property
    def count(self) -> float:
        if self.low == self.high:
            return 1
        return math.inf if self.step is None else self._steps + 1

    @cached_property
    def column(self) -> list[float] | None:
        return None if self.count > MAX_LISTED else self.listed()

    def listed(self) -> list[float]:
        return [float(self._at(place)) for place in range(int(self.count))]

    @cached_property
    def bounds(self) -> tuple[float, float]:
        """The ends of a continuous column."""
        if self.step is None:
            return self.low, self.high
        # Half a step more at each end, so that rounding gives every value the same share.
        low, high = self.low - self.step / 2, self._at(self._steps) + self.step / 2
        return (self.low if self.log and low <= 0 else low), high

    @property
    def summary(self) -> str:
        steps = "" if self.step is None else f" in steps of {text_of(self.step)}"
        last = self.high if self.step is None else self._at(self._steps)
        return f"a number from {text_of(self.low)} to {text_of(last)}{steps}"

    def decode(self, number: float) -> Any:
        nearest = self._nearest(number)
        low, high = self.bounds
        within = self.count > MAX_LISTED and low <= number <= high
        return nearest if within or self._is_close(number, nearest) else number

    def rounded(self, numbers: np.ndarray) -> np.ndarray:
        """Numbers ``n`` of a continuous column, each rounded to that of the nearest value.

        Numbers outside the column's range, which stand for no value, stay as they are.
        """
        if self.count > MAX_TABLE:
            return np.array([self.decode(number) for number in numbers.tolist()], dtype=float)
        values, middles = self._table
        low, high = self.bounds
        nearest = values[np.searchsorted(middles, numbers)]
        return np.where((numbers >= low) & (numbers <= high), nearest, numbers)

    @cached_property
    def _table(self) -> tuple[np.ndarray, np.ndarray]:
        """All values, and the midpoints between them."""
        values = np.array(self.listed())
        return values, (values[1:] + values[:-1]) / 2.0

    def encode(self, value: Any, name: str, *, outside: bool = False) -> float:
        number = self._check(value, name)
        nearest = self._nearest(number)
        if self._is_close(number, nearest):
            return float(nearest)
        if outside:
            return (validation.positive if self.log else validation.real)(number, name)
        raise InputError(f"{name} must be {self.summary}, got {value!r}.")

    def _nearest(self, number: float) -> float:
        if number <= self.low or self.low == self.high:
            return self.low
        if math.isinf(self.count):
            return min(float(number), self.high)
        return self._at(int(min(self._place(number), self.count - 1)))

    @property
    def _steps(self) -> int:
        """How many steps lead from the first value to the last."""
        # Ends and step are decimal fractions: rounding must not lose the last value.
        low, high, step = (Fraction(str(number)) for number in (self.low, self.high, self.step))
        steps = (high - low) / step
        return math.floor(steps + min(steps / 10**12 + Fraction(1, 10**9), Fraction(1, 100)))

    def _place(self, number: float) -> int:
        """The place of the value that is nearest to a number."""
        assert self.step is not None
        return round((number - self.low) / self.step)

    def _at(self, place: int) -> float:
        if not place or self.step is None:
            return self.low
        value = self.low + place * self.step
        # As one would write it, 0.3 not 0.30000000000000004: 15 digits of the larger of low and it.
        size = max(abs(self.low), abs(value))
        return min(round(value, 14 - math.floor(math.log10(size))), self.high) + 0.0

    def _is_close(self, number: float, value: float) -> bool:
        return math.isclose(number, value, rel_tol=ROUNDING, abs_tol=ROUNDING * (self.step or 0))


@dataclass(frozen=True)
class Float(_Number):
    """A number from an interval.

    Args:
        low: the lower end, included.
        high: the upper end, included, not below ``low``.
        log: whether points are drawn uniformly in its logarithm, which a learned kernel sees (a
            given kernel sees the numbers as they are); then ``low`` must be above 0. None means no,
            and a :class:`Space` warns if ``high`` is a thousand times ``low`` or more.
        step: only ``low``, ``low + step``, ... are allowed, and ``high`` where a step ends there;
            any number if None.
        round: only numbers with at most this many significant digits, up to 15, are allowed, as on
            a dial. Needs ``log``, and ends with no more digits; without ``log`` use ``step``.
        unit: the unit of the values, shown in tables and plots.

    Example:
        >>> dose = Float(0.1, 10.0, log=True, round=2, unit="mg/ml")
        >>> dose.count, dose.decode(dose.encode(0.47, "dose"))
        (181, 0.47)
    """

    _: KW_ONLY
    round: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.step is not None and self.low < self.high:
            largest = max(abs(self.low), abs(self.high))
            if self.step < (least := float(f"1e{math.floor(math.log10(largest)) - 14}")):
                raise InputError(
                    f"step must be at least {least:g}, as values of size {largest:g} are kept to "
                    f"15 digits; got {self.step}."
                )
        if self.round is None:
            return
        object.__setattr__(self, "round", validation.whole(self.round, "round", 1))
        if not self.log or self.step is not None or self.round > 15:
            raise InputError(
                "round counts significant digits, at most 15, and needs log=True without step; "
                "otherwise use step, such as step=0.01 for two decimals."
            )
        for name in ("low", "high"):
            if float(f"{(end := getattr(self, name)):.{self.round - 1}e}") != end:
                raise InputError(
                    f"{name} must have at most the {self.round} significant digits that round "
                    f"allows, got {end}."
                )

    @property
    def summary(self) -> str:
        digits = "" if self.round is None else f" with at most {self.round} significant digits"
        return super().summary + digits

    @cached_property
    def count(self) -> float:
        return super().count if self.round is None else self._place(self.high) + 1

    def _place(self, number: float) -> int:
        if self.round is None:
            return super()._place(number)
        return self._from_one(number) - self._first

    def _at(self, place: int) -> float:
        if self.round is None:
            return super()._at(place)
        least = 10 ** (self.round - 1)
        exponent, above = divmod(place + self._first, 9 * least)
        return float(f"{least + above}e{exponent - self.round + 1}")

    @cached_property
    def _first(self) -> int:
        return self._from_one(self.low)

    def _from_one(self, number: float) -> int:
        """How many numbers with ``round`` digits lead from 1.0 to this one: -1 to 0.99 with two."""
        assert self.round is not None
        digits, exponent = f"{number:.{self.round - 1}e}".split("e")
        least = 10 ** (self.round - 1)
        return int(exponent) * 9 * least + int(digits.replace(".", "")) - least


@dataclass(frozen=True)
class Int(_Number):
    """A whole number from an interval.

    Args:
        low: the lower end, included.
        high: the upper end, included, not below ``low``.
        log: whether points are drawn uniformly in its logarithm, which a learned kernel sees (a
            given kernel sees the numbers as they are); then ``low`` must be above 0. None means no,
            and a :class:`Space` warns if ``high`` is a thousand times ``low`` or more.
        step: only ``low``, ``low + step``, ... are allowed, and ``high`` where a step ends there.
        unit: the unit of the values, shown in tables and plots.
    """

    _: KW_ONLY
    step: int = 1

    def __post_init__(self) -> None:
        if self.step is None:
            raise InputTypeError("step must be a whole number, 1 to allow all numbers; got None.")
        super().__post_init__()

    @staticmethod
    def _check(value: Any, name: str) -> int:
        return validation.whole(value, name, -(2**53))

    @property
    def summary(self) -> str:
        return super().summary.replace("number", "whole number", 1).removesuffix(" in steps of 1")

    def decode(self, number: float) -> Any:
        value = super().decode(number)
        return int(value) if value == int(value) else value

    @property
    def _steps(self) -> int:
        return int((self.high - self.low) // self.step)  # exact for integers of any size

    def _at(self, place: int) -> float:
        return self.low + place * self.step


@dataclass(frozen=True)
class Choice(Parameter):
    """One of several values: strings, numbers, bools, None.

    Args:
        values: the values, no two equal (1, 1.0 and True are equal): strings, numbers, bools and
            None, or lists, tuples and dicts (with strings as keys) of them, so that files can hold
            them.
        ordered: whether neighbours in the list are similar. Ordered numbers are modelled as they
            are, other ordered values by their places; unordered values are equally far apart.
        log: whether a learned kernel sees the values, ordered numbers above 0, as logarithms.
        unit: the unit of the values, shown in tables and plots.
    """

    values: Sequence[Any]
    _: KW_ONLY
    ordered: bool = False
    log: bool = False
    unit: str | None = None

    def __post_init__(self) -> None:
        expected = "a list of the values to choose from"
        validation.instance(self.values, Iterable, "values", expected, but=str)
        if isinstance(self.values, set | frozenset):
            raise InputTypeError(
                "values must be a list: a set has no order, so a seed would not give the same "
                f"asks again; got {self.values!r}."
            )
        validation.flag(self.ordered, "ordered")
        validation.flag(self.log, "log")
        _check_unit(self.unit)
        values = [v.item() if isinstance(v, np.generic) else deepcopy(v) for v in self.values]
        object.__setattr__(self, "values", tuple(values))
        if not values:
            raise InputError("A choice needs at least one value, got none.")
        if any(isinstance(value, float) and math.isnan(value) for value in values):
            raise InputError(f"values must not contain NaN, got {values}.")
        if self.log and not (self._numeric and min(values) > 0):
            need = "numbers above 0" if self.ordered else "ordered=True, and numbers above 0"
            raise InputError(f"log=True needs {need}, got {values}.")
        if self._numeric:
            for value in values:
                validation.real(value, "each of values")
        first: dict[Any, Any] = {}
        for value in values:
            # Ordered numbers become floats, in which large whole numbers may be equal.
            if (key := float(value) if self._numeric else key_of(value)) in first:
                raise InputError(f"values must differ; {first[key]!r} and {value!r} are equal.")
            first[key] = value
            if not is_kept_by_files(value):
                raise InputTypeError(
                    "values must be strings, numbers, bools or None, or lists, tuples and dicts "
                    f"(with strings as keys) of them, so that files can hold them; got {value!r}. "
                    "Choose among names instead, and look the value up by its name."
                )

    @property
    def count(self) -> int:
        return len(self.values)

    @cached_property
    def column(self) -> list[float]:
        if self._numeric:
            return [float(value) for value in self.values]
        return [float(place) for place in range(len(self.values))]

    @cached_property
    def _value_of(self) -> dict[float, Any]:
        return dict(zip(self.column, self.values, strict=True))

    @cached_property
    def _numeric(self) -> bool:
        """Whether the column holds the values themselves, not their places."""
        return self.ordered and all(map(is_number, self.values))

    @property
    def summary(self) -> str:
        return f"one of {list(self.values)}"

    def decode(self, number: float) -> Any:
        if number not in self._value_of:
            nearest = self._nearest(number)
            if self._numeric and not math.isclose(number, nearest, rel_tol=ROUNDING):
                return number
            number = nearest
        return deepcopy(self._value_of[number])  # a copy: users may change a list in place

    def _nearest(self, number: float) -> float:
        return min(self.column, key=lambda own: abs(own - number))

    def encode(self, value: Any, name: str, *, outside: bool = False) -> float:
        value = value.item() if isinstance(value, np.generic) else value
        if None in self.values and not is_equal(value, value) and np.ndim(value) == 0:
            value = None  # which pandas turns into NaN or NA
        for own, number in zip(self.values, self.column, strict=True):
            if is_equal(value, own):
                return number
        if self._numeric and is_number(value) and abs(value) <= sys.float_info.max:
            nearest = self._nearest(float(value))
            if math.isclose(value, nearest, rel_tol=ROUNDING):
                return nearest
        if outside and self._numeric:
            return (validation.positive if self.log else validation.real)(value, name)
        raise InputError(f"{name} must be {self.summary}, got {value!r}.")

    def describe(self) -> dict[str, Any]:
        return super().describe() | {"values": stored(list(self.values))}


def _check_unit(unit: Any) -> None:
    if unit is not None and not (isinstance(unit, str) and unit.strip()):
        raise InputTypeError(f"unit must be a string such as 'mg/ml', got {unit!r}.")
