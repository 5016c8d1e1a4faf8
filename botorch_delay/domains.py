"""Where points may be asked. Dtype and device of everything come from the domain's tensors."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor

from botorch_delay import checks
from botorch_delay.exceptions import InputError


class FiniteDomain:
    """A finite action set X.

    Args:
        points: ``N x d``, distinct finite rows, floating; double is recommended.
        names: of the columns, for tables and plots; x0, x1, ... if None.
        log_dims: columns whose logarithm is what a learned kernel sees; all positive. A given
            kernel always sees the points as they are.

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
    ) -> None:
        points = checks.matrix(points, "points").clone(memory_format=torch.contiguous_format)
        _check_distinct(points)
        checks.warn_single_precision(points, stacklevel=2)
        self._points = points
        self._names = _check_names(names, points.shape[1])
        self._log_dims = tuple(
            sorted({checks.whole(dim, "each of log_dims", 0) for dim in log_dims})
        )
        if any(dim >= points.shape[1] for dim in self._log_dims):
            raise InputError(f"log_dims must be below {points.shape[1]}, got {list(log_dims)}.")
        self.check_logarithms(points, "points")

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns."""
        return self._names

    @property
    def log_dims(self) -> tuple[int, ...]:
        """Columns whose logarithm is what a learned kernel sees, increasing."""
        return self._log_dims

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
    def dim(self) -> int:
        """The number of columns ``d``."""
        return self._points.shape[1]

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

    def fingerprint(self) -> str:
        """A digest of shape, dtype and coordinates, by which a stored state knows its domain."""
        points = self._points.cpu()
        head = f"{tuple(points.shape)} {points.dtype}".encode()
        return hashlib.sha256(head + points.numpy().tobytes()).hexdigest()

    def __repr__(self) -> str:
        n, d = self._points.shape
        return f"FiniteDomain({n} x {d}, {self._points.dtype}, {self._points.device})"


def _check_names(names: Sequence[str] | None, dim: int) -> tuple[str, ...]:
    if names is None:
        return tuple(f"x{i}" for i in range(dim))
    given = tuple(names)
    if len(given) != dim or len(set(given)) != dim:
        raise InputError(f"names must be {dim} distinct strings, got {list(given)}.")
    if not all(isinstance(name, str) and name.strip() for name in given):
        raise InputError(f"names must be strings that are not empty, got {list(given)}.")
    return given


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
