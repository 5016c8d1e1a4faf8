"""Where points may be asked. Dtype and device of everything come from the domain's tensors."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from botorch_delay import validation
from botorch_delay.exceptions import InputError, InputTypeError


@dataclass(frozen=True)
class Encoding:
    """How a learned kernel sees points: logarithms, and one column per category.

    One column for each category, 1 where it is the point's own and 0 elsewhere, puts all
    categories at the same distance: no order is imposed.

    Attributes:
        log_dims: columns replaced by their logarithm.
        categories: columns that name categories, and the values there.
    """

    log_dims: tuple[int, ...] = ()
    categories: tuple[tuple[int, tuple[float, ...]], ...] = ()

    def __call__(self, X: Tensor) -> Tensor:
        """Encoded points, ``n x d`` to ``n x e``: the plain columns, then the categories."""
        if self.log_dims:
            logs = list(self.log_dims)
            columns = [X[..., i].log() if i in logs else X[..., i] for i in range(X.shape[-1])]
            X = torch.stack(columns, dim=-1)
        if not self.categories:
            return X
        plain = self._plain(X.shape[-1])
        parts = [X[..., plain]]
        for dim, values in self.categories:
            parts.append((X[..., dim : dim + 1] == X.new_tensor(values)).to(X))
        return torch.cat(parts, dim=-1)

    def bounds(self, bounds: Tensor) -> Tensor:
        """The bounding box ``2 x d`` in encoded columns, ``2 x e``."""
        if not self.categories:
            return self(bounds)
        ends = replace(self, categories=())(bounds)[:, self._plain(bounds.shape[-1])]
        count = sum(len(values) for _, values in self.categories)
        unit = torch.stack([bounds.new_zeros(count), bounds.new_ones(count)])
        return torch.cat([ends, unit], dim=-1)

    def _plain(self, dim: int) -> list[int]:
        named = {dim for dim, _ in self.categories}
        return [i for i in range(dim) if i not in named]


class Domain(ABC):
    """Where points may be asked; the base of sets and boxes.

    Attributes:
        names: names of the columns.
        log_dims: columns whose logarithm is what a learned kernel sees, increasing.
    """

    def __init__(
        self, like: Tensor, *, names: Sequence[str] | None, log_dims: Sequence[int]
    ) -> None:
        self._names = _check_names(names, like.shape[1])
        self._log_dims = _check_columns(log_dims, "log_dims")
        if any(dim >= like.shape[1] for dim in self._log_dims):
            raise InputError(f"log_dims must be below {like.shape[1]}, got {list(log_dims)}.")

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns."""
        return self._names

    @property
    def log_dims(self) -> tuple[int, ...]:
        """Columns whose logarithm is what a learned kernel sees, increasing."""
        return self._log_dims

    @property
    @abstractmethod
    def bounds(self) -> Tensor:
        """The bounding box, ``2 x d``: lower ends, upper ends."""

    @property
    def like(self) -> Tensor:
        """A tensor with ``d`` columns, of the domain's dtype and device."""
        return self.bounds

    @property
    @abstractmethod
    def count(self) -> int | None:
        """The number of points of a finite set; None on a box."""

    @property
    def dim(self) -> int:
        """The number of columns ``d``."""
        return self.like.shape[1]

    @property
    @abstractmethod
    def encoding(self) -> Encoding:
        """How a learned kernel sees points."""

    @abstractmethod
    def contains(self, X: Tensor) -> Tensor:
        """Whether each point of ``X`` (``n x d``) is in the domain, exactly: bool ``n``."""

    @abstractmethod
    def find(self, X: Tensor) -> Tensor:
        """The row of each point of ``X`` among the domain's points, -1 where there is none."""

    def describe(self) -> dict[str, Any]:
        """What defines it beside its tensor, JSON-ready."""
        return {"names": list(self._names), "log_dims": list(self._log_dims)}

    def fingerprint(self) -> str:
        """A digest of all that defines it, by which a stored state knows its domain."""
        like = self.like.cpu()
        head = [type(self).__name__, str(like.dtype), list(like.shape), self.describe()]
        return hashlib.sha256(json.dumps(head).encode() + like.numpy().tobytes()).hexdigest()

    def check_logarithms(self, X: Tensor, name: str) -> None:
        """Refuse points (``n x d``) that have no logarithm where one is needed.

        Raises:
            InputError: if an entry in a column of ``log_dims`` is not above 0.
        """
        for dim in self._log_dims:
            if (X[:, dim] <= 0).any():
                raise InputError(
                    f"{name} must be above 0 in column {dim} ({self._names[dim]}), which is "
                    f"modelled by its logarithm; got {X[:, dim].min().item()}."
                )


class Located(Protocol):
    """What is at a point: a trial, or a result from elsewhere."""

    @property
    def x(self) -> Tensor:
        """The point, ``d``."""

    @property
    def index(self) -> int | None:
        """Its row in a finite domain, or None."""


class PointKeys:
    """Whole numbers for points: rows of a finite domain, and -1, -2, ... as others are first met.

    Attributes:
        points: those of keys -1, -2, and so on, each ``d``.
    """

    def __init__(self) -> None:
        self.points: list[Tensor] = []
        self._keys: dict[bytes, int] = {}

    def of(self, located: Located) -> int:
        """The key of a point, a new one if it has no row and is met for the first time."""
        return self.of_point(located.x) if located.index is None else located.index

    def of_point(self, x: Tensor) -> int:
        """The same for a point (``d``) without a row."""
        name = x.detach().cpu().numpy().tobytes()
        if name not in self._keys:
            self.points.append(x.clone())
            self._keys[name] = -len(self.points)
        return self._keys[name]

    def point(self, key: int) -> Tensor:
        """The point with a key below 0, ``d``."""
        return self.points[-1 - key]


class FiniteDomain(Domain):
    """A finite action set X.

    Args:
        points: ``N x d``, distinct finite rows, floating; double is recommended.
        names: of the columns, for tables and plots; x0, x1, ... if None.
        log_dims: columns whose logarithm is what a learned kernel sees; all positive. A given
            kernel always sees the points as they are.
        cat_dims: columns whose numbers only name categories; a learned kernel puts all of them
            at the same distance.

    Raises:
        InputTypeError: if ``points`` is no floating tensor.
        InputError: if it is empty, not 2-dimensional, not finite, or has equal rows, or if
            names or logarithms do not fit it.

    Example:
        >>> domain = FiniteDomain(torch.linspace(0, 1, 5, dtype=torch.double).unsqueeze(-1))
        >>> len(domain), domain.bounds.tolist()
        (5, [[0.0], [1.0]])
    """

    def __init__(
        self,
        points: Tensor,
        *,
        names: Sequence[str] | None = None,
        log_dims: Sequence[int] = (),
        cat_dims: Sequence[int] = (),
    ) -> None:
        points = validation.matrix(points, "points").clone(memory_format=torch.contiguous_format)
        _check_distinct(points)
        validation.warn_single_precision(points, stacklevel=2)
        super().__init__(points, names=names, log_dims=log_dims)
        self._points = points
        self.check_logarithms(points, "points")
        self._cat_dims = _check_columns(cat_dims, "cat_dims")
        for dim in self._cat_dims:
            if dim >= points.shape[1] or dim in self._log_dims:
                raise InputError(
                    f"cat_dims must be below {points.shape[1]} and not in log_dims, got {dim}."
                )

    @property
    def points(self) -> Tensor:
        """All points, ``N x d``; not to be written to."""
        return self._points

    @property
    def bounds(self) -> Tensor:
        """The bounding box, ``2 x d``: lower ends, upper ends."""
        return torch.stack([self._points.amin(dim=0), self._points.amax(dim=0)])

    def __len__(self) -> int:
        return self._points.shape[0]

    @property
    def count(self) -> int:
        """N."""
        return len(self)

    @property
    def like(self) -> Tensor:
        """The points."""
        return self._points

    @property
    def cat_dims(self) -> tuple[int, ...]:
        """Columns whose numbers name categories, increasing."""
        return self._cat_dims

    @property
    def encoding(self) -> Encoding:
        """How a learned kernel sees points."""
        values = [(dim, self._points[:, dim].unique().tolist()) for dim in self._cat_dims]
        return Encoding(self._log_dims, tuple((dim, tuple(found)) for dim, found in values))

    def contains(self, X: Tensor) -> Tensor:
        """Whether each point of ``X`` (``n x d``) is in the domain, exactly: bool ``n``."""
        return self.find(X) >= 0

    def find(self, X: Tensor) -> Tensor:
        """The row of each point of ``X`` in the domain, -1 where there is none.

        Points are compared exactly: ``n x d`` to a LongTensor ``n``.
        """
        found = torch.full((X.shape[0],), -1, dtype=torch.long, device=X.device)
        for row, x in enumerate(X):
            hit = (self._points == x).all(dim=1).nonzero()
            if len(hit):
                found[row] = hit[0, 0]
        return found

    def describe(self) -> dict[str, Any]:
        """Names, logarithms and categories."""
        categories = {"cat_dims": list(self._cat_dims)} if self._cat_dims else {}
        return super().describe() | categories

    def __repr__(self) -> str:
        n, d = self._points.shape
        return f"FiniteDomain({n} x {d}, {self._points.dtype}, {self._points.device})"


def _check_columns(columns: Any, name: str) -> tuple[int, ...]:
    if isinstance(columns, str) or not isinstance(columns, Iterable):
        raise InputTypeError(
            f"{name} must be a list of columns, such as [0], got {type(columns).__name__}."
        )
    return tuple(sorted({validation.whole(dim, f"each of {name}", 0) for dim in columns}))


def _check_names(names: Sequence[str] | None, dim: int) -> tuple[str, ...]:
    if names is None:
        return tuple(f"x{i}" for i in range(dim))
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise InputTypeError(f"names must be a list of strings, got {type(names).__name__}.")
    names = tuple(names)
    if len(names) != dim or len(set(names)) != dim:
        raise InputError(f"names must be {dim} distinct strings, got {list(names)}.")
    if not all(isinstance(name, str) and name.strip() for name in names):
        raise InputError(f"names must be strings that are not empty, got {list(names)}.")
    return names


def _check_distinct(points: Tensor) -> None:
    _, inverse, counts = torch.unique(points, dim=0, return_inverse=True, return_counts=True)
    if len(counts) == len(points):
        return
    twice = int((counts > 1).nonzero()[0])
    first, second = (inverse == twice).nonzero().flatten()[:2].tolist()
    raise InputError(
        f"points must be distinct; rows {first} and {second} are both {points[first].tolist()}. "
        "Remove repeated rows, for instance with torch.unique(points, dim=0)."
    )
