"""What every domain has: its columns, how a learned kernel sees its points, and their keys.

Dtype and device of everything come from the domain's tensors.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from botorch_delay import validation
from botorch_delay.domains.columns import Columns
from botorch_delay.domains.parameters import Choice, Parameter
from botorch_delay.domains.values import DataFrame, as_records, text_of
from botorch_delay.exceptions import InputError, InputTypeError, OutsideWarning, warn

MAX_LISTED = 8  # most numbers of a column that a message lists
MOST_COMPARED = 50  # points that are searched for in the domain
ROUNDING = 1e-9  # largest difference that passes for rounding, as a share of a column's range
# The multiplier of the hash: odd, with well-mixed bits (2^64 / golden ratio), as a signed int64.
_MIXING = -0x61C8864680B583EB
# The forms in which users may pass points, see ``Domain.points_of``.
Points = Tensor | np.ndarray | Mapping[str, Any] | Sequence[Mapping[str, Any]] | DataFrame


class Encoding:
    """How a kernel sees points: logarithms, one-hot columns for categories, and the unit cube.

    Args:
        log_dims: columns replaced by their logarithm.
        categories: the values of each categorical column, in the order of the columns.
        bounds: the box that becomes the unit cube, ``2 x d``; None for no scaling.

    Attributes:
        origin: lower ends of the encoded columns, ``e``.
        width: their ranges, ``e``.
    """

    def __init__(
        self,
        log_dims: tuple[int, ...] = (),
        categories: Mapping[int, Tensor] | None = None,
        bounds: Tensor | None = None,
    ) -> None:
        self.log_dims, self.categories, self._scales = log_dims, categories or {}, False
        if bounds is not None:
            self._plain = [dim for dim in range(bounds.shape[1]) if dim not in self.categories]
            self.origin, top = self(bounds)
            self.origin[len(self._plain) :], top[len(self._plain) :] = 0.0, 1.0
            width = top - self.origin
            self.width = torch.where(width > 0.0, width, torch.ones_like(width))
            self._scales = True

    def __call__(self, X: Tensor) -> Tensor:
        """Encoded points, ``n x d`` to ``n x e``: the plain columns, then the categories."""
        if self.log_dims:
            logs = list(self.log_dims)
            columns = [X[..., i].log() if i in logs else X[..., i] for i in range(X.shape[-1])]
            X = torch.stack(columns, dim=-1)
        if self.categories:
            options = [(X[..., dim : dim + 1] == v).to(X) for dim, v in self.categories.items()]
            X = torch.cat([X[..., self._plain], *options], dim=-1)
        return (X - self.origin) / self.width if self._scales else X

    @property
    def groups(self) -> list[list[int]]:
        """The encoded columns of each number, then those of each category."""
        first, groups = len(self._plain), [[column] for column in range(len(self._plain))]
        for values in self.categories.values():
            groups.append(list(range(first, first := first + len(values))))
        return groups

    def slope(self, inner: Tensor, X: Tensor) -> Tensor:
        """Gradients at points, ``n x d``, from those in encoded columns; 0 in categories."""
        slope = inner / self.width
        if self.categories:
            slope, inner = torch.zeros_like(X), slope
            for place, dim in enumerate(self._plain):  # indexing by a list copies it to the device
                slope[:, dim] = inner[:, place]
        for dim in self.log_dims:
            slope[:, dim] /= X[:, dim]
        return slope


class Domain(ABC):
    """Where points may be asked; the base class of finite sets and boxes. Read-only.

    Attributes:
        columns: what its columns stand for: named parameters, if a :class:`Space` made it.
        names: names of the columns.
        log_dims: columns that a learned kernel sees as logarithms, increasing.
        bounds: the bounding box, ``2 x d``: lower ends, upper ends.
        dim: the number of columns ``d``.
        like: a tensor with ``d`` columns, of the domain's dtype and device.
        count: the number of points of a finite set; None on a box.
        encoding: how a learned kernel sees points.
        uses_threads: whether an ask is large enough for several CPU threads to help.
    """

    count: int | None
    encoding: Encoding
    uses_threads: bool = False

    def __init__(
        self,
        points: Tensor,
        bounds: Tensor,
        *,
        names: Sequence[str] | Columns | None,
        log_dims: Any,
    ) -> None:
        validation.warn_single_precision(points)
        self.like, self.bounds, self.dim = points, bounds, bounds.shape[1]
        if not isinstance(names, Columns):
            names = Columns(dict.fromkeys(_check_names(names, self.dim), Parameter()))
        self.columns, self.names = names, _check_names(tuple(names.varying), self.dim)
        self.log_dims = self._check_columns(log_dims, "log_dims")
        width = bounds[1] - bounds[0]
        if not bool(width.isfinite().all()):
            dim = int(width.isinf().nonzero()[0])
            raise InputError(
                f"The width of a column must be finite in {bounds.dtype}; column {dim} "
                f"({self.names[dim]}) has {bounds[0, dim].item()} and {bounds[1, dim].item()}; use "
                "other units."
            )

    @cached_property
    def on_cpu(self) -> Tensor:
        """``like`` on the CPU, where trials and answers are kept."""
        return self.like.cpu()

    @cached_property
    def device(self) -> torch.device:
        """The device of ``like``: one object that all trials share."""
        return self.like.device

    @cached_property
    def is_discrete(self) -> bool:
        """Whether all columns have finitely many values."""
        # Finding the values in each column of a million points would take seconds.
        is_finite = self.count is not None
        return is_finite or all(self.allowed(dim) is not None for dim in range(self.dim))

    @cached_property
    def is_countable(self) -> bool:
        """Whether all columns have finitely many values or steps, so that points can recur."""
        stepped = self.columns.stepped
        return self.is_discrete or all(
            self.allowed(dim) is not None or dim in stepped for dim in range(self.dim)
        )

    @abstractmethod
    def contains(self, X: Tensor) -> Tensor:
        """Whether each point of ``X`` (``n x d``) is in the domain, exactly: bool ``n``."""

    @abstractmethod
    def allowed(self, column: int) -> Tensor | None:
        """The numbers allowed in a column, increasing; None if all between its ends are."""

    def find(self, X: Tensor) -> Tensor:
        """The row of each point (``n x d``) in a finite set, exactly; -1 for none: ``n``."""
        return torch.full((X.shape[0],), -1, dtype=torch.long, device=X.device)

    def params(self, x: Tensor) -> dict[str, Any]:
        """The values of a point, ``d``, by name: of a space's parameters, else the numbers."""
        validation.instance(x, Tensor, "x", "a torch.Tensor")
        if x.shape != (self.dim,):
            raise InputError(f"x must be one point, of shape {self.dim}, got {tuple(x.shape)}.")
        return self.columns.params(x)

    def words(self, x: Tensor) -> str:
        """The values of a point, ``d``, as text: ``heat = 25 °C, dose = 0.1``."""
        return self.columns.words(self.params(x))

    def table(self, X: Tensor) -> list[dict[str, Any]]:
        """The values of several points, ``n x d``: a list of dicts, as for ``pandas.DataFrame``."""
        validation.rows(X, "X", self.like)
        return self.columns.table(X)

    def point(self, params: Mapping[str, Any], *, outside: bool = False) -> Tensor:
        """The point, ``d``, with these values; the inverse of :meth:`params`.

        Args:
            params: a value for every name.
            outside: whether numbers may lie outside of their intervals or between their steps
                (but an Int stays whole), so that the point may be outside the domain.
        """
        return self.like.new_tensor(self.columns.numbers(params, outside=outside))

    def points_of(self, X: Points, name: str) -> Tensor:
        """A user's points as a tensor: ``d`` from one dict of values by name, else ``n x d``.

        Numbers may lie outside the domain, as in :meth:`point`. A tensor is returned as it is.
        """
        X = as_records(X)
        if isinstance(X, Tensor):
            return X
        if isinstance(X, Mapping):
            return self.point(X, outside=True)
        if isinstance(X, Sequence) and all(isinstance(x, Mapping) for x in X):
            points = []
            for row, x in enumerate(X):
                try:
                    points.append(self.point(x, outside=True))
                except InputError as error:
                    raise type(error)(f"{name}[{row}]: {error}") from error
            return torch.stack(points) if points else self.like[:0]
        if np.ma.is_masked(X):
            raise InputError(f"{name} has masked values; leave out points that have any.")
        if isinstance(X, np.ndarray) and X.dtype.kind in "fiu":
            return self.like.new_tensor(np.ascontiguousarray(X))
        raise InputTypeError(
            f"{name} must be a torch.Tensor, a NumPy array of numbers, a dict of values by name, a "
            f"list of such dicts or a pandas.DataFrame, got {type(X).__name__}."
        )

    def warn_outside(self, x: Tensor) -> None:
        """Warn if a result's point, ``d``, cannot be asked, and name the values that can be."""
        if bool(self.contains(x.unsqueeze(0))):
            return
        found = [self._why_outside(column, x[column].item()) for column in range(self.dim)]
        together = f"they violate a constraint or feasible: {self.words(x)}"
        warn(
            "The result counts, although its settings cannot be asked: "
            f"{'; '.join(filter(None, found)) or together}.",
            OutsideWarning,
        )

    @abstractmethod
    def nearest(self, X: Tensor) -> Tensor:
        """The point of the domain that is nearest to each of ``X``: ``n x d``."""

    def moved_inwards(self, X: Tensor, margin: float) -> Tensor:
        """Points, ``n x d``, with each interval squeezed so that ``margin`` is free at both ends.

        The margin is a share of the interval (in the logarithm for ``log_dims``). Values of lists
        stay as they are, and so do points that would no longer be feasible.
        """
        return X

    def warn_rounded(self, X: Tensor) -> None:
        """Warn of results at points outside of it, ``n x d``, that rounding alone keeps outside.

        Of very many points only the first few are looked at.
        """
        if len(X := X[:MOST_COMPARED]) == 0:
            return
        found, (low, high) = self.nearest(X), self.bounds
        near = ((found - X).abs() <= ROUNDING * (high - low)).all(dim=1) & self.contains(found)
        if bool(near.any()):
            warn(
                "Results count as outside of the domain, and cannot be recommended, although "
                f"rounding alone separates their points from it: {X[near][0].tolist()} is the "
                "first. Pass points of the domain itself, or values by name.",
                OutsideWarning,
            )

    def _why_outside(self, column: int, value: float) -> str:
        """Why a column's number cannot be asked; empty if it can."""
        name, allowed = self.names[column], self.allowed(column)
        said, parameter = f"{name} = {value:.12g}", self.columns.varying[name]
        if allowed is None:
            low, high = self.bounds[:, column].tolist()
            ends = " to ".join(text_of(parameter.decode(end)) for end in (low, high))
            return "" if low <= value <= high else f"{said} is not in {ends}"
        if value in (numbers := allowed.tolist()):
            return ""
        nearest = min(numbers, key=lambda number: abs(number - value))
        words = [text_of(parameter.decode(number)) for number in numbers]
        nearest_word = words[numbers.index(nearest)]
        if len(words) > MAX_LISTED:
            words = [*words[:3], "...", words[-1]]
        return f"{said} is none of {', '.join(words)}; the nearest is {nearest_word}"

    def describe(self) -> dict[str, Any]:
        """What defines the domain besides its tensor, JSON-ready."""
        plain = {"names": list(self.names), "log_dims": list(self.log_dims)}
        return plain | ({"space": self.columns.describe()} if self.columns.named else {})

    def fingerprint(self) -> str:
        """A digest of all that defines the domain."""
        like = self.like.cpu()
        head = [type(self).__name__, str(like.dtype), list(like.shape), self.describe()]
        return hashlib.sha256(
            json.dumps(head, default=repr).encode() + like.numpy().tobytes()
        ).hexdigest()

    def check_logarithms(self, X: Tensor, name: str) -> None:
        """Refuse points (``n x d``) that are not above 0 in a column of ``log_dims``."""
        for dim in self.log_dims:
            if (X[:, dim] <= 0).any():
                raise InputError(
                    f"{name} must be above 0 in column {dim} ({self.names[dim]}), which is "
                    f"modelled by its logarithm; got {X[:, dim].min().item()}."
                )

    def check_points(self, X: Any, name: str) -> Tensor:
        """Check a user's points, ``n x d``, in the domain or not; InputError if unusable."""
        X = validation.matrix(X, name)
        validation.matches(X, name, self.like)
        self.check_logarithms(X, name)
        low, high = self.bounds
        width = torch.where(high > low, high - low, 1.0)
        away = torch.maximum(low - X, X - high) / width
        if (away > validation.largest_value(X)).any():  # squares of distances would overflow
            at = int(away.argmax())
            where = f"{self.names[at % self.dim]} = {X.flatten()[at].item():g}"
            raise InputError(f"{name} lies too far outside of the domain: {where}.")
        for dim, values in self.encoding.categories.items():
            if not isinstance(self.columns.parameters.get(self.names[dim]), Choice):
                continue
            unknown = ~torch.isin(X[:, dim], values)
            if unknown.any():
                known = ", ".join(f"{value:g}" for value in values.tolist())
                raise InputError(
                    f"{name} must have one of the numbers {known} in column {dim} "
                    f"({self.names[dim]}), which stand for its options; got "
                    f"{X[unknown, dim][0].item():g}. Or pass a dict of values by name."
                )
        return X

    def _encode(self, categories: Mapping[int, Tensor]) -> Encoding:
        """The encoding, given the values of the categorical columns."""
        if both := categories.keys() & set(self.log_dims):
            raise InputError(
                f"Column {min(both)} is in cat_dims and in log_dims; categories have no logarithm."
            )
        return Encoding(self.log_dims, dict(sorted(categories.items())), self.bounds)

    def _check_columns(self, columns: Any, name: str) -> tuple[int, ...]:
        validation.instance(columns, Iterable, name, "a list of columns, such as [0]", but=str)
        each, last = f"each of {name}", self.dim - 1
        return tuple(sorted({validation.whole(dim, each, 0, last) for dim in columns}))


class PointKeys:
    """Keys of points: their rows in a finite set; for others -1, -2, ... in the order met."""

    def __init__(self) -> None:
        self.points: list[Tensor] = []  # those of keys -1, -2, ..., on the CPU
        self._keys: dict[bytes, int] = {}

    def of(self, x: Tensor) -> int:
        """The key of a point without a row (``d``), a new one for a new point."""
        here = x.detach().cpu() + 0.0  # turns -0.0 into 0.0, the same point
        name = here.numpy().tobytes()
        if name not in self._keys:
            self.points.append(here)
            self._keys[name] = -len(self.points)
        return self._keys[name]

    def known(self, x: Tensor) -> int | None:
        """The key of a point (``d``) that has been met; None for a new point."""
        return self._keys.get((x.detach().cpu() + 0.0).numpy().tobytes())

    def point(self, key: int) -> Tensor:
        """The point with a key below 0, ``d``, on the CPU."""
        return self.points[-1 - key]


def hashes(X: Tensor) -> Tensor:
    """A hash of each point, ``n x d`` to ``n``; two points may, rarely, have the same one."""
    bits = (X + 0.0).contiguous()  # turns -0.0 into 0.0, so that both hash alike
    bits = bits.view(torch.int64 if X.dtype is torch.float64 else torch.int32).long()
    found = bits.new_zeros(len(X))
    for column in bits.unbind(dim=1):  # products are modulo 2^64
        found = (found ^ column) * _MIXING
        found = found ^ (found >> 29)
    return found


def _check_names(names: Sequence[str] | None, dim: int) -> tuple[str, ...]:
    if names is None:
        return tuple(f"x{i}" for i in range(dim))
    validation.instance(names, Iterable, "names", "a list of strings", but=str)
    names = tuple(names)
    if len(names) != dim or len(set(names)) != dim:
        raise InputError(f"names must be {dim} distinct strings, got {list(names)}.")
    if not all(isinstance(name, str) and name.strip() for name in names):
        raise InputError(f"names must be strings that are not empty, got {list(names)}.")
    return names
