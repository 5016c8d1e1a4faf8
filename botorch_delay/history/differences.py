"""Where two configurations differ, and how to say it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from botorch_delay.domains.finite import Domain, FiniteDomain
from botorch_delay.exceptions import StorageError

_LONGEST = 60  # of a value in a message
_BEFORE = 20  # of these characters, how many come before the first that differs
_OF_A_CONSTRAINT = ("indices", "coefficients", "rhs")
# Parts of a record that are no arguments of what it records.
_LAYERS = frozenset({"arguments", "config", "hyperparameters", "options", "structure"})


class _Nothing:
    """Stands for the entry of a list that is shorter than the other one."""

    def __repr__(self) -> str:
        return "nothing"


@dataclass(frozen=True)
class Difference:
    """The innermost place where two JSON-ready values differ.

    Attributes:
        path: keys and numbers of entries, from the outermost.
        own: what is there in the one.
        stored: what is there in the other.
    """

    path: tuple[str | int, ...]
    own: Any
    stored: Any

    @property
    def option(self) -> str:
        """The place as a user writes it, such as ``covar_module.lengthscale``."""
        name = ""
        for place, key in enumerate(self.path):
            of_a_constraint = place == 2 and self.path[0] == "constraints"
            if of_a_constraint and key in range(len(_OF_A_CONSTRAINT)):
                name += f".{_OF_A_CONSTRAINT[int(key)]}"
            elif isinstance(key, int) or key.isdigit():
                name += f"[{key}]"
            elif key not in _LAYERS:
                name += f".{key.removeprefix('has ')}"
        return name.removeprefix(".")

    def texts(self) -> tuple[str, str]:
        """What is there in the one and in the other, cut so that the difference is seen."""
        own, stored = _text(self.own), _text(self.stored)
        if max(len(own), len(stored)) <= _LONGEST:
            return own, stored
        pairs = enumerate(zip(own, stored, strict=False))
        first = next((i for i, (a, b) in pairs if a != b), min(len(own), len(stored)))
        return _around(own, first), _around(stored, first)


def difference(
    own: Any, stored: Any, tolerance: float = 1e-9, path: tuple[str | int, ...] = ()
) -> Difference | None:
    """The first place where two JSON-ready values differ; None where they agree.

    Numbers agree up to a relative tolerance. An option that is not there agrees with None, as in
    files from before it came.
    """
    here = Difference(path, own, stored)
    if isinstance(own, Mapping) and isinstance(stored, Mapping):
        if own.get("class") != stored.get("class"):
            return here
        # What a kernel is made of says more than that a hyperparameter is missing.
        for key in sorted({**own, **stored}, key=lambda key: key != "structure"):
            if key == "parameters":  # of a kernel, whose hyperparameters say the same
                continue
            found = difference(own.get(key), stored.get(key), tolerance, (*path, key))
            if found is not None:
                return found
        return None
    if isinstance(own, list) and isinstance(stored, list):
        found = _first_entry(own, stored, tolerance, path)
        return here if found is not None and _is_short(own) and _is_short(stored) else found
    if isinstance(own, float) and isinstance(stored, int | float):
        same = math.isclose(own, stored, rel_tol=tolerance, abs_tol=1e-300)
        return None if same else here
    return None if own == stored else here


def check_array(domain: Domain, state: Mapping[str, Any]) -> None:
    """Refuse a state of other points or bounds.

    Raises:
        StorageError: if they differ; it says in which column.
    """
    key = "points" if isinstance(domain, FiniteDomain) else "bounds"
    own, stored = domain.like, state.get(key)
    if not isinstance(stored, Tensor):
        kinds = ("a finite set of points", "a box")
        here, there = kinds if key == "points" else kinds[::-1]
        problem = f"The state is of {there}, this optimizer of {here}"
    elif stored.dtype != own.dtype:
        problem = f"The state's {key} have dtype {stored.dtype}, this optimizer's {own.dtype}"
    elif stored.shape != own.shape:
        problem = f"The state's {key} have shape {_shape(stored)}, this optimizer's {_shape(own)}"
    elif not torch.equal(stored.cpu(), own.cpu()):
        problem = _first_difference(key, own.cpu(), stored.cpu(), domain.names)
    else:
        return
    raise StorageError(
        f"{problem}; make the optimizer with the same {key}, or use botorch_delay.load(path)."
    )


def check_options(
    own: Mapping[str, Any], stored: Mapping[str, Any], names: Sequence[str], tolerance: float
) -> None:
    """Refuse a state of another configuration.

    Args:
        own: the configuration of the optimizer, JSON-ready.
        stored: that of the state.
        names: of the columns.
        tolerance: up to which numbers agree.

    Raises:
        StorageError: if they differ; it names the innermost option that does.
    """
    for key in {**own, **stored}:
        ours: Any = own.get(key)
        theirs: Any = stored.get(key)
        found = difference(ours, theirs, tolerance, (key,))
        if found is None:
            continue
        if key == "feasible" and len(found.path) > 1:
            pairs = list(zip(ours, theirs, strict=False))
            raise StorageError(
                "The state was made with another test of feasibility: of the "
                f"{len(pairs)} points by which it is known, this optimizer's feasible says "
                f"otherwise of {sum(a != b for a, b in pairs)}; make it with the same arguments."
            )
        here, there = found.texts()
        if key == "feasible":
            here, there = (text if text == "None" else "a function" for text in (here, there))
        column = _column(found.path, ours, theirs)
        name = f" (column {column} is {names[column]!r})" if column in range(len(names)) else ""
        raise StorageError(
            f"The state was made with {found.option}={there}, this optimizer has "
            f"{found.option}={here}{name}; make it with the same arguments."
        )


def _first_entry(
    own: list[Any], stored: list[Any], tolerance: float, path: tuple[str | int, ...]
) -> Difference | None:
    for place, (a, b) in enumerate(zip(own, stored, strict=False)):
        found = difference(a, b, tolerance, (*path, place))
        if found is not None:
            return found
    if len(own) == len(stored):
        return None
    end = min(len(own), len(stored))
    rests = [rest[0] if rest else _Nothing() for rest in (own[end:], stored[end:])]
    return Difference((*path, end), *rests)


def _is_short(values: list[Any]) -> bool:
    """Whether a list of plain values can be shown as a whole."""
    plain = not any(isinstance(value, Mapping | list) for value in values)
    return plain and len(repr(values)) <= _LONGEST


def _text(value: Any) -> str:
    """A value for a message; a recorded part as it is made."""
    if not isinstance(value, Mapping) or "class" not in value:
        return repr(value)
    arguments = value.get("arguments")
    if isinstance(arguments, Mapping):
        given = ", ".join(f"{name}={_text(argument)}" for name, argument in arguments.items())
        return f"{value['class']}({given})"
    return str(value.get("repr", value.get("factory", value["class"])))


def _around(text: str, place: int) -> str:
    """A text cut to what is around a place."""
    start = max(min(place - _BEFORE, len(text) - _LONGEST), 0)
    end = start + _LONGEST
    return f"{'...' if start else ''}{text[start:end]}{'...' if end < len(text) else ''}"


def _shape(array: Tensor) -> str:
    return " x ".join(map(str, array.shape)) or "()"


def _first_difference(key: str, own: Tensor, stored: Tensor, names: Sequence[str]) -> str:
    row, column = (stored != own).nonzero()[0].tolist()
    if key == "bounds":
        there, here = stored[:, column].tolist(), own[:, column].tolist()
        return (
            f"Column {column} ({names[column]!r}) has bounds {there} in the state, and {here} in "
            "this optimizer"
        )
    if torch.equal(torch.unique(own, dim=0), torch.unique(stored, dim=0)):
        return f"The state has the same points in another order, from row {row} on"
    rows = int((stored != own).any(dim=1).sum())
    return (
        f"Row {row} of points has {stored[row, column].item()} in column {column} "
        f"({names[column]!r}) in the state, and {own[row, column].item()} in this optimizer "
        f"({rows} of {len(own)} rows differ)"
    )


def _column(path: Sequence[str | int], own: Any, stored: Any) -> int:
    """The column that an option of a domain differs in; -1 where that is not to be told."""
    if path[0] in ("discrete_dims", "cat_dims") and len(path) > 1 and isinstance(path[1], str):
        return int(path[1]) if path[1].isdecimal() else -1
    if path[0] in ("log_dims", "cat_dims"):
        lists = [columns for columns in (own, stored) if isinstance(columns, list)]
        named = [column for columns in lists for column in columns if isinstance(column, int)]
        return min((column for column in named if named.count(column) == 1), default=-1)
    return -1
