"""Named parameters as a box: logarithms, steps, whole numbers and categories, and back.

Tuning engines speak of named parameters of many kinds, optimizers of points of a box. A
:class:`Space` translates both ways; each engine only says what its own parameters are.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from botorch_delay import validation
from botorch_delay.domains.box import BoxDomain
from botorch_delay.exceptions import InputError, InputTypeError

# A column with more values than this varies freely, and what is asked is the value next to it.
MAX_LISTED = 1_000
_EXACT = 2**53  # whole numbers up to here are exact in double precision


@dataclass(frozen=True)
class Number:
    """A number between two ends, both included.

    Attributes:
        low: the lower end.
        high: the upper end, not below it.
        log: whether its logarithm is what matters; then ``low`` is above 0.
        step: only ``low``, ``low + step``, ... up to ``high`` are allowed; 1 for whole numbers
            if None, which must have a whole step.
        whole: whether it is a whole number.

    Raises:
        InputError: if the ends are crossed, or do not go with the rest.
    """

    low: float
    high: float
    log: bool = False
    step: float | None = None
    whole: bool = False

    def __post_init__(self) -> None:
        read = _whole if self.whole else validation.real
        for name in ("low", "high", "step"):
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, read(value, name))
        if self.whole and self.step is None:
            object.__setattr__(self, "step", 1)
        if self.low > self.high:
            raise InputError(f"low must not be above high, got {self.low} and {self.high}.")
        if self.log and self.low <= 0:
            raise InputError(f"low must be above 0 on a logarithmic scale, got {self.low}.")
        if self.step is not None and self.step <= 0:
            raise InputError(f"step must be above 0, got {self.step}.")

    @property
    def count(self) -> float:
        """How many values it has, ``inf`` without steps."""
        if self.low == self.high:
            return 1
        if self.step is None:
            return math.inf
        # Ends and step are decimal fractions: rounding must not lose the last value.
        return math.floor((self.high - self.low) / self.step * (1.0 + 1e-12) + 1e-9) + 1

    def at(self, place: int) -> float:
        """The value that many steps above the lower end."""
        if not place or self.step is None:
            return self.low
        value = self.low + place * self.step
        # As it would be written down: 0.3 and not 0.30000000000000004.
        return value if self.whole else min(float(f"{value:.15g}"), self.high)

    def nearest(self, number: float) -> float:
        """The allowed value next to any number."""
        if self.step is None:
            return min(max(float(number), self.low), self.high)
        place = round((number - self.low) / self.step)
        return self.at(min(max(place, 0), int(self.count) - 1))

    def ends(self) -> tuple[float, float]:
        """Between what a column may vary, so that each value has its share."""
        if self.step is None:
            return self.low, self.high
        last = self.at(int(self.count) - 1)
        if self.count <= MAX_LISTED:
            return self.low, last
        low = self.low - self.step / 2
        return (self.low if self.log and low <= 0 else low), last + self.step / 2

    def column(self) -> list[float] | None:
        """The values of a column; None where it varies freely."""
        if self.count > MAX_LISTED:
            return None
        return [float(self.at(place)) for place in range(int(self.count))]

    def decode(self, number: float) -> Any:
        """The value that a column's number stands for."""
        return self.nearest(number)

    def encode(self, value: Any, name: str) -> float:
        """The column's number for a value."""
        number = validation.real(value, name)
        nearest = self.nearest(number)
        if not math.isclose(number, nearest, rel_tol=1e-9, abs_tol=1e-9 * (self.step or 0)):
            what = "" if self.step is None else f" in steps of {self.step}"
            raise InputError(
                f"{name} must be a number from {self.low} to {self.high}{what}, got {value!r}."
            )
        return float(nearest)


@dataclass(frozen=True)
class Choice:
    """One of several values of any kind; equal ones count once.

    Attributes:
        values: what there is to choose from.
        ordered: whether neighbours in the list are alike. Ordered numbers are modelled as they
            are, other ordered values by their places; without order all are equally far apart.

    Raises:
        InputError: if there is nothing to choose from.
    """

    values: Sequence[Any]
    ordered: bool = False

    def __post_init__(self) -> None:
        distinct: list[Any] = []
        for value in self.values:
            if not any(_same(value, other) for other in distinct):
                distinct.append(value)
        if not distinct:
            raise InputError("A choice needs at least one value, got none.")
        object.__setattr__(self, "values", tuple(distinct))

    @property
    def count(self) -> int:
        """How many values it has."""
        return len(self.values)

    def column(self) -> list[float]:
        """The numbers of a column, one for each value."""
        plain = [isinstance(v, numbers.Real) and not isinstance(v, bool) for v in self.values]
        if self.ordered and all(plain):
            return [float(value) for value in self.values]
        return [float(place) for place in range(len(self.values))]

    def ends(self) -> tuple[float, float]:
        """The smallest and the largest number of the column."""
        return min(self.column()), max(self.column())

    def decode(self, number: float) -> Any:
        """The value that a column's number stands for."""
        column = self.column()
        return self.values[min(range(len(column)), key=lambda place: abs(column[place] - number))]

    def encode(self, value: Any, name: str) -> float:
        """The column's number for a value."""
        places = range(len(self.values))
        same = [place for place in places if _same(value, self.values[place])]
        same = same or [place for place in places if _equal(value, self.values[place])]
        if same:
            return self.column()[same[0]]
        raise InputError(f"{name} must be one of {list(self.values)}, got {value!r}.")


class Space:
    """Named parameters as a box, in double precision.

    A parameter that has only one value takes no column: it is the same in every point.

    Args:
        parameters: by name, in the order of the columns.

    Attributes:
        domain: the box, one column for each parameter that can vary.

    Raises:
        InputTypeError: if a parameter is neither a :class:`Number` nor a :class:`Choice`.
        InputError: if no parameter can vary.

    Example:
        >>> space = Space({"lr": Number(1e-4, 1.0, log=True), "act": Choice(["relu", "tanh"])})
        >>> space.domain.names, space.domain.log_dims, space.domain.cat_dims
        (('lr', 'act'), (0,), {1: [0.0, 1.0]})
        >>> space.decode(space.encode({"act": "tanh", "lr": 0.01}))
        {'lr': 0.01, 'act': 'tanh'}
    """

    def __init__(self, parameters: Mapping[str, Number | Choice]) -> None:
        self.parameters = dict(parameters)
        for name, parameter in self.parameters.items():
            if not isinstance(parameter, Number | Choice):
                raise InputTypeError(
                    f"Parameter {name!r} must be a Number or a Choice, got "
                    f"{type(parameter).__name__}."
                )
        varying = {name: p for name, p in self.parameters.items() if p.count > 1}
        if not varying:
            raise InputError(
                "There is nothing to search: at least one parameter must have two values or more."
            )
        columns = list(varying.values())
        listed = {i: values for i, p in enumerate(columns) if (values := p.column()) is not None}
        unordered = {i for i, p in enumerate(columns) if isinstance(p, Choice) and not p.ordered}
        self.domain = BoxDomain(
            torch.tensor([p.ends() for p in columns], dtype=torch.double).T,
            {i: values for i, values in listed.items() if i not in unordered},
            {i: values for i, values in listed.items() if i in unordered},
            names=list(varying),
            log_dims=[i for i, p in enumerate(columns) if isinstance(p, Number) and p.log],
        )

    def decode(self, x: Tensor) -> dict[str, Any]:
        """The parameters at a point of the box (``d``), as plain values."""
        found = dict(zip(self.domain.names, x.tolist(), strict=True))
        return {
            name: parameter.decode(found.get(name, parameter.ends()[0]))
            for name, parameter in self.parameters.items()
        }

    def encode(self, values: Mapping[str, Any]) -> Tensor:
        """The point of the box (``d``) for a value of every parameter.

        Raises:
            InputError: if a parameter is missing or unknown, or a value is not allowed.
        """
        missing = [name for name in self.parameters if name not in values]
        unknown = [name for name in values if name not in self.parameters]
        if missing or unknown:
            what = f"{missing} missing" if missing else f"{unknown} unknown"
            raise InputError(
                f"Each of {list(self.parameters)} needs a value and nothing else does: {what}."
            )
        numbers = {name: p.encode(values[name], name) for name, p in self.parameters.items()}
        return self.domain.bounds.new_tensor([numbers[name] for name in self.domain.names])


def _whole(value: Any, name: str) -> int:
    number = validation.whole(value, name, -_EXACT)
    if number > _EXACT:
        raise InputError(f"{name} must be at most 2^53, got {number}.")
    return number


def _same(one: Any, other: Any) -> bool:
    """Whether two values are the same choice; True and 1 are not, nor are 1 and 1.0."""
    return one is other or (type(one) is type(other) and bool(one == other))


def _equal(one: Any, other: Any) -> bool:
    """Whether two values are equal though of different types, such as NumPy's and Python's."""
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)
