"""Where points may be asked. Dtype and device of everything come from the domain's tensors."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

from botorch_delay import checks
from botorch_delay.exceptions import InputError


class FiniteDomain:
    """A finite action set X.

    Args:
        points: ``N x d``, distinct finite rows, floating; double is recommended.

    Raises:
        InputTypeError: if ``points`` is no floating tensor.
        InputError: if it is empty, not 2-dimensional, not finite, or has equal rows.

    Example:
        >>> domain = FiniteDomain(torch.linspace(0, 1, 5, dtype=torch.double).unsqueeze(-1))
        >>> len(domain), domain.bounds.tolist()
        (5, [[0.0], [1.0]])
    """

    def __init__(self, points: Tensor) -> None:
        points = checks.matrix(points, "points").clone(memory_format=torch.contiguous_format)
        _check_distinct(points)
        checks.warn_single_precision(points, stacklevel=2)
        self._points = points

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
