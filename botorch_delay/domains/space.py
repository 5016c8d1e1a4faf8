"""Spaces: named parameters as a box, as a grid, or as a list of arms."""

from __future__ import annotations

import inspect
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from botorch_delay import validation
from botorch_delay.domains.box import BoxDomain
from botorch_delay.domains.columns import Columns
from botorch_delay.domains.domain import Domain
from botorch_delay.domains.finite import FiniteDomain
from botorch_delay.domains.parameters import Choice, Float, Int, Parameter
from botorch_delay.domains.tables import read_table
from botorch_delay.domains.values import (
    as_number,
    as_records,
    distinct,
    is_equal,
    is_number,
    value_of,
)
from botorch_delay.exceptions import InputError, InputTypeError, ScaleWarning, warn

MAX_ARMS = 1_000_000  # most points of a grid

Constraint = tuple[Mapping[str, float], float]


class Space:
    """Named parameters; every optimizer takes a space where it takes a domain.

    Internally points are tensors; ``trial.params`` and ``recommend().params`` are dicts of the
    user's own values, and ``attach`` takes such dicts. The constructor makes a box, :meth:`grid`
    the set of all combinations, and :meth:`arms` a set from a table. Tensors are in double
    precision, on PyTorch's default device. A parameter with a single value takes no column.

    Args:
        parameters: parameters by name, in order, for names that cannot be keyword arguments.
        constraints: known linear constraints, each ``(factors, rhs)`` with a dict of factors by
            name, for ``sum factors[name] * value >= rhs``.
        feasible: a function that tells whether a dict of values by name may be asked; it has to be
            passed to :func:`botorch_delay.load` again.
        named: further parameters, as keyword arguments.

    Attributes:
        parameters: all of them, by name.
        domain: the box or the set, one column for each parameter that can vary.

    Example:
        >>> space = Space(lr=Float(1e-4, 1.0, log=True), act=Choice(["relu", "tanh"]))
        >>> space.domain.point({"act": "tanh", "lr": 0.01}).tolist()
        [0.01, 1.0]
        >>> space.domain.params(torch.tensor([0.01, 1.0], dtype=torch.double))
        {'lr': 0.01, 'act': 'tanh'}
    """

    parameters: dict[str, Parameter]
    domain: Domain

    def __init__(
        self,
        parameters: Mapping[str, Parameter] | None = None,
        /,
        *,
        constraints: Iterable[Constraint] = (),
        feasible: Callable[[dict[str, Any]], bool] | None = None,
        **named: Parameter,
    ) -> None:
        self.parameters = _merged(parameters, named)
        lacking = [
            name
            for name, each in self.parameters.items()
            if isinstance(each, Float | Int) and each.lacks_scale
        ]
        if lacking:
            warn(
                f"{', '.join(lacking)}: the numbers span decades. Pass log=True (in TOML "
                "log = true) if factors count, as for most rates and penalties, so that 0.001 and "
                "0.01 are as far apart as 0.1 and 1; pass log=False if differences count.",
                ScaleWarning,
            )
        if isinstance(constraints, Iterable):
            constraints = tuple(constraints)
        self._limits = {"constraints": constraints, "feasible": feasible}
        self.domain = _box(Columns(self.parameters), constraints, feasible)

    @classmethod
    def grid(
        cls,
        parameters: Mapping[str, Parameter] | None = None,
        /,
        *,
        constraints: Iterable[Constraint] = (),
        feasible: Callable[[dict[str, Any]], bool] | None = None,
        **named: Parameter,
    ) -> Space:
        """The finite set of all combinations that the constraints and ``feasible`` allow.

        Arguments are those of the constructor; all parameters need steps or lists of values. Called
        on a space, it begins with the parameters and constraints of that space.

        Example:
            >>> space = Space.grid(dose=Float(0.0, 1.0, step=0.25), act=Choice(["a", "b"]))
            >>> len(space.domain)
            10
        """
        space = cls(parameters, constraints=constraints, feasible=feasible, **named)
        for name, parameter in space.parameters.items():
            if math.isinf(parameter.count):
                raise InputError(
                    f"{name} is a Float without steps, and a grid needs them; give it step= or "
                    "round=, or list its values in a Choice."
                )
        count = math.prod(int(parameter.count) for parameter in space.parameters.values())
        if count > MAX_ARMS:
            raise InputError(
                f"{count} combinations are too many for a grid, which has at most {MAX_ARMS}; use "
                "fewer values, or a box."
            )
        box = space.domain
        assert isinstance(box, BoxDomain)
        axes = [box.like.new_tensor(p.listed()) for p in box.columns.varying.values()]
        points = torch.cartesian_prod(*axes).reshape(count, box.dim)
        space.domain = _set(points[box.contains(points)], box.columns)
        return space

    @classmethod
    def arms(
        cls,
        table: Any,
        parameters: Mapping[str, Parameter] | None = None,
        /,
        **named: Parameter,
    ) -> Space:
        """The finite set of the rows of a table; on a space, with the parameters of that space.

        Args:
            table: a list of dicts, all with the same names; a ``pandas.DataFrame``; or the path of
                a CSV file with a header of names.
            parameters: by name, for columns that should not get the default: a Float or Int
                between the smallest and the largest number for a column of numbers, an unordered
                Choice for a column of words, or of codes such as 007 and 1E5.
            named: further ones, as in ``dose=Float(0.1, 10, log=True, unit="mg/ml")``.

        Example:
            >>> space = Space.arms([{"acid": "citric", "pH": 3.5}, {"acid": "malic", "pH": 3.1}])
            >>> space.domain.params(space.domain.points[1])
            {'acid': 'malic', 'pH': 3.1}
        """
        given = _merged(parameters, named)
        rows = _rows(table, given)
        names = list(next(iter(rows.values())))
        if unknown := [name for name in given if name not in names]:
            raise InputError(f"The arms have no column {unknown[0]!r}; they have {names}.")
        kinds = {name: given.get(name) or _kind(name, rows) for name in names}
        columns = Columns(kinds)
        numbers: dict[tuple[float, ...], str] = {}
        for place, row in rows.items():
            try:
                found = tuple(columns.numbers(row))
            except InputError as error:
                raise type(error)(f"{place}: {error}") from error
            if found in numbers:
                raise InputError(
                    f"Arms must be distinct; {numbers[found]} and {place} are both {row}."
                )
            numbers[found] = place
        space = cls(kinds)
        space.domain = _set(space.domain.like.new_tensor(list(numbers)), columns)
        return space

    def __repr__(self) -> str:
        return f"Space({', '.join(self.parameters)}: {self.domain!r})"


class _OnSpaceToo(classmethod):  # type: ignore[type-arg]
    """A class method that, called on a space, begins with what that space was made of."""

    def __get__(self, space: Any, owner: Any = None) -> Any:
        make = super().__get__(space, owner)
        return make if space is None else partial(_with_own, make, space)


def _with_own(make: Callable[..., Space], space: Space, *arguments: Any, **named: Any) -> Space:
    """Call ``make`` with a space's parameters and, if it takes them, constraints as defaults."""
    call = inspect.signature(make).bind(*arguments, **named)
    for option, value in space._limits.items():
        if option in call.signature.parameters:
            call.arguments.setdefault(option, value)
    given = _merged(call.arguments.get("parameters"), call.arguments.pop("named", {}))
    call.arguments["parameters"] = space.parameters | given
    return make(*call.args, **call.kwargs)


# Not as decorators: type checkers and documentation know class methods.
for _name in ("grid", "arms"):
    setattr(Space, _name, _OnSpaceToo(vars(Space)[_name].__func__))


def as_domain(domain: Any) -> Domain:
    """The domain of a space, or the domain itself; InputTypeError for anything else."""
    domain = domain.domain if isinstance(domain, Space) else domain
    if not isinstance(domain, Domain):
        raise InputTypeError(
            "domain must be a Space, a FiniteDomain or a BoxDomain, got "
            f"{type(domain).__name__}. Wrap points with FiniteDomain(points), named "
            "parameters with Space(...)."
        )
    return domain


def _merged(
    parameters: Mapping[str, Parameter] | None, named: Mapping[str, Parameter]
) -> dict[str, Parameter]:
    """All parameters by name, checked."""
    validation.instance(parameters, Mapping | None, "parameters", "a dict of parameters by name")
    first = dict(parameters or {})
    if both := first.keys() & named.keys():
        raise InputError(f"Parameter {min(both)!r} is given twice; choose one.")
    merged = first | dict(named)
    for name, parameter in merged.items():
        if not isinstance(name, str) or not name.strip():
            raise InputError(f"names must be strings that are not empty, got {name!r}.")
        if not isinstance(parameter, Float | Int | Choice):
            raise InputTypeError(
                f"Parameter {name!r} must be a Float, an Int or a Choice, got "
                f"{type(parameter).__name__}; pass bd.Float(0, 1) or bd.Choice(['x', 'y']), say."
            )
    return merged


def _box(
    columns: Columns,
    constraints: Iterable[Constraint],
    feasible: Callable[[dict[str, Any]], bool] | None,
) -> BoxDomain:
    """A box with one column for each parameter that can vary."""
    varying = columns.varying
    if not varying:
        raise InputError(
            "There is nothing to search: at least one parameter must have two values or more."
        )
    validation.instance(feasible, Callable | None, "feasible", "a function of parameters")
    expected = "a list of (factors by name, rhs)"
    validation.instance(constraints, Iterable, "constraints", expected)
    ends: list[tuple[float, float]] = []
    discrete: dict[int, list[float]] = {}
    categories: dict[int, list[float]] = {}
    for dim, parameter in enumerate(varying.values()):
        values = parameter.column
        if values is None:
            assert isinstance(parameter, Float | Int)
            ends.append(parameter.bounds)
            continue
        ends.append((min(values), max(values)))
        (categories if _is_unordered(parameter) else discrete)[dim] = values
    return BoxDomain(
        torch.tensor(ends, dtype=torch.double).T,
        discrete,
        categories,
        constraints=[_linear(varying, constraint) for constraint in constraints],
        feasible=feasible,
        names=columns,
        log_dims=_log_dims(columns),
    )


def _set(points: Tensor, columns: Columns) -> FiniteDomain:
    """Points of a space, ``N x d``, as a finite domain."""
    if not len(points):
        raise InputError("constraints and feasible leave nothing of the grid; relax them.")
    dims = [dim for dim, p in enumerate(columns.varying.values()) if _is_unordered(p)]
    return FiniteDomain(points, names=columns, log_dims=_log_dims(columns), cat_dims=dims)


def _log_dims(columns: Columns) -> list[int]:
    return [dim for dim, p in enumerate(columns.varying.values()) if p.log]


def _is_unordered(parameter: Parameter | None) -> bool:
    return isinstance(parameter, Choice) and not parameter.ordered


def _linear(
    varying: Mapping[str, Parameter], constraint: Constraint
) -> tuple[Tensor, Tensor, float]:
    """A constraint on named parameters, translated to columns."""
    names = list(varying)
    try:
        factors, rhs = constraint
        factors = dict(factors)
    except (TypeError, ValueError):
        raise InputTypeError(
            "Each of constraints must be (factors by name, rhs), for sum factors[name] * value >= "
            f"rhs; got {constraint!r}."
        ) from None
    for name in factors:
        parameter = varying.get(name)
        if parameter is None or _is_unordered(parameter):
            numbers = [n for n, each in varying.items() if not _is_unordered(each)]
            raise InputError(
                f"A constraint must be about numbers that can vary, {numbers}; got {name!r}. "
                "For a choice use feasible=."
            )
    if not factors:
        raise InputError(f"A constraint needs a factor for at least one name, got {constraint!r}.")
    values = [validation.real(value, f"the factor of {name}") for name, value in factors.items()]
    columns = torch.tensor([names.index(name) for name in factors], dtype=torch.long)
    return columns, torch.tensor(values, dtype=torch.double), rhs


def _rows(table: Any, given: Mapping[str, Parameter]) -> dict[str, dict[str, Any]]:
    """The rows of a table as dicts with the same names, by their places, for messages."""
    if isinstance(table, str | os.PathLike):
        rows = _read_csv(Path(table), given)
    else:
        table = as_records(table)
        if not isinstance(table, Sequence) or not all(isinstance(row, Mapping) for row in table):
            raise InputTypeError(
                "A table of arms must be a list of dicts, a pandas.DataFrame or the path of a CSV "
                f"file, got {type(table).__name__}."
            )
        if not table:
            raise InputError("A table of arms must have at least one row, got none.")
        rows = {f"arm {number}": row for number, row in enumerate(table)}
    first = next(iter(rows.values()))
    for place, row in rows.items():
        if row.keys() != first.keys():
            raise InputError(
                f"All arms must have the same names, {list(first)}; {place} has {list(row)}."
            )
        rows[place] = {n: v.item() if isinstance(v, np.generic) else v for n, v in row.items()}
        gaps = [n for n, v in rows[place].items() if v is None or not is_equal(v, v)]
        if gaps := [n for n in gaps if None not in getattr(given.get(n), "values", ())]:
            raise InputError(
                f"Every arm needs a value for each name; {place} has no {gaps[0]}, got "
                f"{row[gaps[0]]}."
            )
    return rows


def _read_csv(file: Path, given: Mapping[str, Parameter]) -> dict[str, dict[str, Any]]:
    """The arms of a CSV file, a header of names and a row for each arm, by their places."""
    names, found, comma = read_table(file)
    if not found or not all(isinstance(value_of(name, comma=comma), str) for name in names):
        raise InputError(f"{file}: expected a header of names, and at least one arm.")
    if "" in names or len(set(names)) < len(names):
        raise InputError(f"{file}: names must be distinct and not empty, got {names}.")
    for line, row in found:
        if len(row) != len(names) or not all(map(str.strip, row)):
            raise InputError(
                f"{file}, line {line}: expected a value for each of {names}, got {row}."
            )
    columns: list[list[Any]] = []
    for name, column in zip(names, zip(*(row for _, row in found), strict=True), strict=True):
        listed = getattr(given.get(name), "values", ())
        values = [value_of(cell, listed, comma=comma) for cell in column]
        texts = [cell.strip() for cell in column]
        # Among words, or codes, numbers stay text; a word among numbers is reported by ``_kind``.
        has_words = any(isinstance(value, str) for value in values)
        mostly_words = has_words and 2 * sum(map(is_number, values)) <= len(values)
        stays = name not in given and (mostly_words or _are_codes(texts))
        columns.append(texts if stays else values)
    rows = (dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True))
    return {f"{file}, line {line}": row for (line, _), row in zip(found, rows, strict=True)}


def _kind(name: str, rows: Mapping[str, Mapping[str, Any]]) -> Parameter:
    """The parameter for a column of a table: Int, Float, or an unordered Choice."""
    values = {place: row[name] for place, row in rows.items()}
    words = [place for place, value in values.items() if not _is_number_like(value)]
    texts = [place for place, value in values.items() if isinstance(value, str)]
    are_codes = len(texts) == len(values) and _are_codes(list(values.values()))
    if 2 * len(words) < len(values) and not are_codes:  # most are numbers
        for place in words or texts:
            raise InputError(
                f"{place} has {name} = {values[place]!r}, "
                f"{'where most others are numbers' if words else 'a number as text'}. Correct it; "
                f"or, if {name} is categorical, describe it by its values, with Choice([...]) or "
                "in a TOML file with values = [...]."
            )
    try:
        if not all(map(is_number, values.values())):
            return Choice(distinct(values.values()))
        whole = all(isinstance(v, Integral) for v in values.values())
        return (Int if whole else Float)(min(values.values()), max(values.values()))
    except InputError as error:
        raise type(error)(f"{name}: {error}") from error


def _is_number_like(value: Any) -> bool:
    """Whether a cell is a number, perhaps as text; the texts 007 and nan are not."""
    if not isinstance(value, str):
        return is_number(value)
    number = as_number(value)
    return number is not None and math.isfinite(number) and not _is_code(value)


def _are_codes(texts: Sequence[str]) -> bool:
    """Whether some of these have leading zeros, as 007 has, or most look like 1E5 (not 1e-5)."""
    like_numbers = sum(re.fullmatch(r"\d+E\d+", text) is not None for text in texts)
    return any(map(_is_code, texts)) or 2 * like_numbers > len(texts)


def _is_code(text: str) -> bool:
    return re.fullmatch(r"0\d+", text) is not None
