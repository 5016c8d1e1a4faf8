"""Active sets: the points that can still be the maximiser."""

from __future__ import annotations

import torch
from torch import Tensor

from botorch_delay import validation
from botorch_delay.domains.finite import FiniteDomain


def surviving(lower: Tensor, upper: Tensor) -> Tensor:
    """The rule of Algorithm 1: keep x where ``U(x) >= max over z of L(z)``.

    Args:
        lower: L on the active points, ``n``.
        upper: U on the active points, ``n``.

    Returns:
        A bool tensor ``n``. It is never all false: the point with the largest L stays.
    """
    return upper >= lower.max()


class ActiveSet:
    """The active points of a finite domain.

    Args:
        domain: the domain.
        indices: LongTensor of the active rows, increasing.
    """

    def __init__(self, domain: FiniteDomain, indices: Tensor) -> None:
        self._domain = domain
        self._indices = indices

    @property
    def indices(self) -> Tensor:
        """Rows of ``domain.points`` that are active: a LongTensor, increasing."""
        return self._indices.clone()

    @property
    def points(self) -> Tensor:
        """The active points, ``n x d``."""
        return self._domain.points[self._indices]

    def contains(self, X: Tensor) -> Tensor:
        """Whether each row of ``X`` (``n x d``) is an active point: a bool tensor ``n``.

        Points are compared exactly.

        Raises:
            InputError: if ``X`` is malformed or does not fit the domain.
        """
        X = validation.matrix(X, "X", empty=True)
        validation.matches(X, "X", self._domain.points)
        active = torch.zeros(len(self._domain), dtype=torch.bool, device=X.device)
        active[self._indices] = True
        rows = self._domain.find(X)
        return active[rows] & (rows >= 0)

    def __len__(self) -> int:
        return len(self._indices)

    def __repr__(self) -> str:
        return f"ActiveSet({len(self)} of {len(self._domain)} points)"
