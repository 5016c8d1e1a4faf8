"""Finite sets of points."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from botorch_delay import validation
from botorch_delay.domains.columns import Columns
from botorch_delay.domains.domain import Domain
from botorch_delay.exceptions import InputError

MOST_ON_ONE_THREAD = 100_000  # points; asks on larger sets use several CPU threads
FEW = 50  # up to this many points are looked up one by one; more are sorted together with the set


class FiniteDomain(Domain):
    """A finite action set X.

    Args:
        points: ``N x d``, distinct finite rows, floating; double is recommended.
        names: of the columns, for tables and plots; x0, x1, ... if None. A :class:`Space` passes
            its :class:`Columns`.
        log_dims: columns, of positive numbers, that a learned kernel sees as logarithms. A given
            kernel always sees the points as they are.
        cat_dims: columns whose numbers only name categories; in a learned kernel all categories of
            a column are equally far apart.

    Attributes:
        points: all points, ``N x d``.
        count: N.

    Example:
        >>> domain = FiniteDomain(torch.linspace(0, 1, 5, dtype=torch.double).unsqueeze(-1))
        >>> len(domain), domain.bounds.tolist()
        (5, [[0.0], [1.0]])
    """

    def __init__(
        self,
        points: Tensor,
        *,
        names: Sequence[str] | Columns | None = None,
        log_dims: Sequence[int] = (),
        cat_dims: Sequence[int] = (),
    ) -> None:
        points = validation.matrix(points, "points").clone(memory_format=torch.contiguous_format)
        _check_distinct(points)
        bounds = torch.stack([points.amin(dim=0), points.amax(dim=0)])
        super().__init__(points, bounds, names=names, log_dims=log_dims)
        self.check_logarithms(points, "points")
        self.points = points
        self.count: int = len(points)
        self.uses_threads = self.count > MOST_ON_ONE_THREAD
        self.cat_dims = self._check_columns(cat_dims, "cat_dims")
        self.encoding = self._encode({dim: self.allowed(dim) for dim in self.cat_dims})

    def __len__(self) -> int:
        return self.count

    def contains(self, X: Tensor) -> Tensor:
        return self.find(X) >= 0

    def allowed(self, column: int) -> Tensor:
        return self.points[:, column].unique()

    def find(self, X: Tensor) -> Tensor:
        validation.rows(X, "X", self.points)
        found = super().find(X)
        if len(X) > FEW:
            _, label = torch.unique(torch.cat([self.points, X]), dim=0, return_inverse=True)
            row_of = torch.full_like(label, -1)
            row_of[label[: self.count]] = torch.arange(self.count, device=X.device)
            return row_of[label[self.count :]]
        for row, x in enumerate(X):
            hit = (self.points == x).all(dim=1).nonzero()
            if len(hit):
                found[row] = hit[0, 0]
        return found

    def nearest(self, X: Tensor) -> Tensor:
        low, high = self.bounds
        sides = torch.where(high > low, high - low, 1.0)
        exact = "donot_use_mm_for_euclid_dist"
        distance = torch.cdist(X / sides, self.points / sides, compute_mode=exact)
        return self.points[distance.argmin(dim=1)]

    def describe(self) -> dict[str, Any]:
        categories = {"cat_dims": list(self.cat_dims)} if self.cat_dims else {}
        return super().describe() | categories

    def __repr__(self) -> str:
        n, d = self.points.shape
        return f"FiniteDomain({n} x {d}, {self.points.dtype}, {self.points.device})"


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
