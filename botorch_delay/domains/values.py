"""Values of parameters: as text, in files, and when two are equal."""

from __future__ import annotations

import json
import numbers
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from botorch_delay.exceptions import InputError


class DataFrame(Protocol):
    """The part of a ``pandas.DataFrame`` that is used; pandas need not be imported for it."""

    @property
    def columns(self) -> Any:
        """The names of its columns."""

    def to_dict(self, orient: Any) -> Any:
        """With "records", a list of dicts."""


class Series(Protocol):
    """The part of a ``pandas.Series`` that is used."""

    def to_numpy(self) -> Any:
        """Its values as an array."""


def text_of(value: Any) -> str:
    """A value as text, as tables show it and as the command line and CSV files accept it."""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.12g}" if isinstance(value, float) else str(value)


def value_of(text: str, listed: Sequence[Any] = (), *, comma: bool = False) -> Any:
    """The value of a cell of a CSV file, or of an argument of the command line.

    That is the ``listed`` value with this text, if need be up to spaces at the ends; else a number,
    a bool or the text itself. If ``comma``, numbers may have decimal commas.
    """
    for value in listed:
        if text_of(value) == text:
            return value
    text = text.strip()
    alike = [value for value in listed if text_of(value).strip() == text]
    if len(alike) == 1:
        return alike[0]
    if comma and (pointed := with_point(text)) != text:
        return value_of(pointed, listed)
    number = as_number(text)
    if number is None:
        return {"true": True, "false": False}.get(text.lower(), text)
    try:
        return int(text)
    except ValueError:
        return number


def as_number(text: str) -> float | None:
    """The number that a text stands for; None if it is not one, as ``1_5`` is not."""
    try:
        return None if "_" in text else float(text)
    except ValueError:
        return None


def with_point(text: str) -> str:
    """A number with a decimal comma as one with a decimal point; any other text as it is."""
    pointed = text.replace(",", ".")
    return text if as_number(pointed) is None else pointed


def as_records(table: Any) -> Any:
    """A ``pandas.DataFrame`` as a list of dicts; anything else as it is."""
    if not hasattr(table, "columns") or not callable(getattr(table, "itertuples", None)):
        return table
    if len(set(names := [*table.columns])) < len(names):
        raise InputError(f"The columns of a table must have distinct names, got {names}.")
    return table.to_dict("records")


def have_same_index(one: Any, other: Any) -> bool:
    """Whether two objects of pandas have equal indices, in order; true unless both have one."""
    first: Any = getattr(one, "index", None)
    second: Any = getattr(other, "index", None)
    both = hasattr(first, "equals") and hasattr(second, "equals")
    return not both or bool(first.equals(second))


def is_number(value: Any) -> bool:
    """Whether a value is a number; True and False are not."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def stored(value: Any) -> Any:
    """A value made JSON-ready: a tuple becomes ``{"tuple": [...]}``."""
    if isinstance(value, tuple):
        return {"tuple": stored(list(value))}
    if isinstance(value, dict):
        return {key: stored(each) for key, each in value.items()}
    return [stored(each) for each in value] if isinstance(value, list) else value


def restored(value: Any) -> Any:
    """The inverse of :func:`stored`."""
    if isinstance(value, dict) and value.keys() == {"tuple"}:
        return tuple(restored(value["tuple"]))
    if isinstance(value, dict):
        return {key: restored(each) for key, each in value.items()}
    return [restored(each) for each in value] if isinstance(value, list) else value


def is_kept_by_files(value: Any) -> bool:
    """Whether a value is the same after being stored and restored."""
    try:
        return bool(restored(json.loads(json.dumps(stored(value)))) == value)
    except (TypeError, ValueError, RecursionError):
        return False


def is_equal(one: Any, other: Any) -> bool:
    """Whether two values are equal, even of different types; but True and 1 are not."""
    try:
        return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)
    except (TypeError, ValueError):  # neither true nor false, as for arrays and ``pandas.NA``
        return False


def distinct(values: Iterable[Any]) -> list[Any]:
    """The values without repetitions: of equal ones the first."""
    first: dict[Any, Any] = {}
    for value in values:
        first.setdefault(key_of(value), value)
    return list(first.values())


def key_of(value: Any) -> Any:
    """A hashable key that equal values share, such as 1, 1.0 and True."""
    if isinstance(value, list | tuple):
        return type(value), *map(key_of, value)
    if isinstance(value, dict):
        return dict, frozenset((key, key_of(each)) for key, each in value.items())
    try:
        hash(value)
    except TypeError:
        return type(value), repr(value)
    return value
