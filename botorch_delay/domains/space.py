"""Named parameters as a box: logarithms, steps, whole numbers, categories, and back."""

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
from botorch_delay.exceptions import InputError, InputTypeError, NotSupportedError

# A parameter with more values than this has a continuous column, and is rounded.
MAX_LISTED = 1_000
_EXACT = 2**53  # whole numbers up to here are exact in double precision


@dataclass(frozen=True)
class _Number:
    """What floats and whole numbers have in common."""

    low: float
    high: float
    log: bool = False
    step: float | None = None

    def __post_init__(self) -> None:
        for name in ("low", "high", "step"):
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, self._check(value, name))
        if self.low > self.high:
            raise InputError(f"low must not be above high, got {self.low} and {self.high}.")
        if self.log and self.low <= 0:
            raise InputError(f"low must be above 0 on a logarithmic scale, got {self.low}.")
        if self.step is not None and self.step <= 0:
            raise InputError(f"step must be above 0, got {self.step}.")

    @staticmethod
    def _check(value: Any, name: str) -> float:
        return validation.real(value, name)

    @property
    def count(self) -> float:
        """How many values it has, ``inf`` without steps."""
        if self.low == self.high:
            return 1
        if self.step is None:
            return math.inf
        # Ends and step are decimal fractions: rounding must not lose the last value.
        return math.floor((self.high - self.low) / self.step * (1.0 + 1e-12) + 1e-9) + 1

    @property
    def column(self) -> list[float] | None:
        """The column's numbers; None where the column is continuous."""
        if self.count > MAX_LISTED:
            return None
        return [float(self._at(place)) for place in range(int(self.count))]

    @property
    def bounds(self) -> tuple[float, float]:
        """The ends of a continuous column."""
        if self.step is None:
            return self.low, self.high
        # Half a step more at each end: rounding then gives every value the same share.
        low, high = self.low - self.step / 2, self._at(int(self.count) - 1) + self.step / 2
        return (self.low if self.log and low <= 0 else low), high

    def decode(self, number: float) -> Any:
        """The allowed value that is nearest to a column's number."""
        if self.step is None:
            return min(max(float(number), self.low), self.high)
        place = round((number - self.low) / self.step)
        return self._at(min(max(place, 0), int(self.count) - 1))

    def encode(self, value: Any, name: str, outside: bool = False) -> float:
        """The column's number for a value, which may lie anywhere if ``outside``."""
        number = validation.real(value, name)
        nearest = self.decode(number)
        if math.isclose(number, nearest, rel_tol=1e-9, abs_tol=1e-9 * (self.step or 0)):
            return float(nearest)
        if outside and (number > 0 or not self.log):
            return number
        raise InputError(
            f"{name} must be a number from {self.low} to {self.high}"
            f"{'' if self.step is None else f' in steps of {self.step}'}, got {value!r}."
        )

    def _at(self, place: int) -> float:
        """The value that many steps above the lower end."""
        if not place or self.step is None:
            return self.low
        # As it would be written down: 0.3 and not 0.30000000000000004.
        return min(float(f"{self.low + place * self.step:.15g}"), self.high)


@dataclass(frozen=True)
class Float(_Number):
    """A number from an interval.

    Args:
        low: the lower end, included.
        high: the upper end, included, not below ``low``.
        log: whether it is drawn and modelled by its logarithm; then ``low`` is above 0.
        step: only ``low``, ``low + step``, ... up to ``high`` are allowed; any number if None.

    Raises:
        InputError: if ends or step are out of order.
    """


@dataclass(frozen=True)
class Int(_Number):
    """A whole number from an interval.

    Args:
        low: the lower end, included.
        high: the upper end, included, not below ``low``.
        log: whether it is drawn and modelled by its logarithm; then ``low`` is above 0.
        step: only ``low``, ``low + step``, ... up to ``high`` are allowed.

    Raises:
        InputError: if ends or step are out of order, or too large to be exact.
    """

    step: int = 1

    @staticmethod
    def _check(value: Any, name: str) -> int:
        number = validation.whole(value, name, -_EXACT)
        if number > _EXACT:
            raise InputError(f"{name} must be at most 2^53, got {number}.")
        return number

    def _at(self, place: int) -> float:
        return self.low + place * self.step


@dataclass(frozen=True)
class Choice:
    """One of several values of any kind; equal ones count once.

    Args:
        values: what there is to choose from.
        ordered: whether neighbours in the list are alike. Ordered numbers are modelled as they
            are, other ordered values by their places; without order all are equally far apart.
        log: whether ordered numbers are drawn and modelled by their logarithms.

    Raises:
        InputError: if there is nothing to choose from.
    """

    values: Sequence[Any]
    ordered: bool = False
    log: bool = False

    def __post_init__(self) -> None:
        distinct: list[Any] = []
        for value in self.values:
            if not any(_is_same(value, other) for other in distinct):
                distinct.append(value)
        if not distinct:
            raise InputError("A choice needs at least one value, got none.")
        object.__setattr__(self, "values", tuple(distinct))

    @property
    def count(self) -> int:
        """How many values it has."""
        return len(self.values)

    @property
    def column(self) -> list[float]:
        """The column's numbers, one for each value."""
        plain = [isinstance(v, numbers.Real) and not isinstance(v, bool) for v in self.values]
        if self.ordered and all(plain):
            return [float(value) for value in self.values]
        return [float(place) for place in range(len(self.values))]

    def decode(self, number: float) -> Any:
        """The value whose number is nearest to a column's."""
        distances = [abs(own - number) for own in self.column]
        return self.values[distances.index(min(distances))]

    def encode(self, value: Any, name: str, outside: bool = False) -> float:
        """The column's number for a value; there is none for other values."""
        # First the value itself, then what equals it in another type, such as NumPy's.
        for is_alike in (_is_same, _is_equal):
            for own, number in zip(self.values, self.column, strict=True):
                if is_alike(value, own):
                    return number
        raise InputError(f"{name} must be one of {list(self.values)}, got {value!r}.")


class Space:
    """Named parameters as a box in double precision, and its points as their values.

    A parameter that has only one value takes no column: it is the same in every point.

    Args:
        parameters: by name, in the order of the columns.
        constraints: known linear constraints, each a factor for every name that takes part and
            a right-hand side, for ``sum factors[name] * value >= rhs``.

    Attributes:
        parameters: what was passed.
        domain: the box, one column for each parameter that can vary.

    Raises:
        InputTypeError: if a parameter is of another type.
        InputError: if no parameter can vary, a constraint names one that cannot or an unordered
            choice, or no point satisfies the constraints.
        NotSupportedError: if a constraint names a parameter with steps that are too many to be
            searched one by one.

    Example:
        >>> space = Space({"lr": Float(1e-4, 1.0, log=True), "act": Choice(["relu", "tanh"])})
        >>> space.domain.names, space.domain.log_dims, space.domain.cat_dims
        (('lr', 'act'), (0,), {1: [0.0, 1.0]})
        >>> space.decode(space.encode({"act": "tanh", "lr": 0.01}))
        {'lr': 0.01, 'act': 'tanh'}
    """

    def __init__(
        self,
        parameters: Mapping[str, Float | Int | Choice],
        constraints: Sequence[tuple[Mapping[str, float], float]] = (),
    ) -> None:
        self.parameters = dict(parameters)
        for name, parameter in self.parameters.items():
            if not isinstance(parameter, Float | Int | Choice):
                raise InputTypeError(
                    f"Parameter {name!r} must be a Float, an Int or a Choice, got "
                    f"{type(parameter).__name__}."
                )
        varying = {name: p for name, p in self.parameters.items() if p.count > 1}
        if not varying:
            raise InputError(
                "There is nothing to search: at least one parameter must have two values or more."
            )
        ends: list[tuple[float, float]] = []
        discrete: dict[int, list[float]] = {}
        categories: dict[int, list[float]] = {}
        for dim, parameter in enumerate(varying.values()):
            values = parameter.column
            if values is None:
                assert not isinstance(parameter, Choice)
                ends.append(parameter.bounds)
                continue
            ends.append((min(values), max(values)))
            unordered = isinstance(parameter, Choice) and not parameter.ordered
            (categories if unordered else discrete)[dim] = values
        self.domain = BoxDomain(
            torch.tensor(ends, dtype=torch.double).T,
            discrete,
            categories,
            constraints=[_linear(varying, factors, rhs) for factors, rhs in constraints],
            names=list(varying),
            log_dims=[dim for dim, p in enumerate(varying.values()) if p.log],
        )

    def decode(self, x: Tensor) -> dict[str, Any]:
        """The value of every parameter at a point of the box, ``d``."""
        found = dict(zip(self.domain.names, x.tolist(), strict=True))
        return {name: p.decode(found.get(name, 0.0)) for name, p in self.parameters.items()}

    def encode(self, values: Mapping[str, Any], *, outside: bool = False) -> Tensor:
        """The point, ``d``, for a value of every parameter.

        Args:
            values: by name.
            outside: whether numbers may lie outside of their intervals or between their steps,
                as those of results obtained elsewhere may; then the point can be outside the box.

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
        found = {n: p.encode(values[n], n, outside) for n, p in self.parameters.items()}
        return self.domain.bounds.new_tensor([found[name] for name in self.domain.names])


def _linear(
    varying: Mapping[str, Float | Int | Choice], factors: Mapping[str, float], rhs: float
) -> tuple[Tensor, Tensor, float]:
    """A constraint between named parameters as one between columns."""
    names = list(varying)
    for name in factors:
        parameter = varying.get(name)
        if parameter is None or (isinstance(parameter, Choice) and not parameter.ordered):
            raise InputError(
                f"A constraint is about {name!r}; it must be about numbers that can vary: {names}."
            )
        if parameter.column is None and parameter.step is not None:
            raise NotSupportedError(
                f"A constraint is about {name!r}, which has too many values to be searched one by "
                "one; make it a float without steps."
            )
    columns = torch.tensor([names.index(name) for name in factors], dtype=torch.long)
    return columns, torch.tensor([*factors.values()], dtype=torch.double), float(rhs)


def _is_same(one: Any, other: Any) -> bool:
    """Whether two values are the same choice; True and 1 are not, nor are 1 and 1.0."""
    return one is other or (type(one) is type(other) and bool(one == other))


def _is_equal(one: Any, other: Any) -> bool:
    """Whether two values are equal, if of different types."""
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)
