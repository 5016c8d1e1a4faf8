"""Answers averaged per point: the data of every posterior.

Averaging loses nothing: the mean of n answers of noise lambda^2 at one point is an answer of noise
lambda^2 / n, and it keeps ``K + D`` well conditioned. Averages are weighted by precision, the
inverse of the noise variance.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Data:
    """Answers, one row per distinct point.

    Attributes:
        X: ``m x d``.
        y: mean answer of each point, ``m``, weighted by precision.
        noise_var: variance of that mean under the surrogate, ``m``.
        spread: sum of the squared weights with which the answers of a point enter its mean,
            ``m``: 1 / n_i for n_i answers of equal noise.
    """

    X: Tensor
    y: Tensor
    noise_var: Tensor
    spread: Tensor

    @classmethod
    def single(cls, X: Tensor, y: Tensor, noise_var: Tensor) -> Data:
        """Answers as they are, one row each."""
        return cls(X, y, noise_var, torch.ones_like(y))

    @classmethod
    def averaged(cls, X: Tensor, y: Tensor, noise_var: Tensor, group: Tensor) -> Data:
        """Answers (``n`` rows) with the same entry in ``group`` averaged."""
        # On the CPU, where sums are added in a fixed order: the vectors are small.
        values, noise = y.cpu(), noise_var.cpu()
        _, inverse = torch.unique(group.cpu(), return_inverse=True)
        m = int(inverse.max()) + 1 if len(inverse) else 0
        first = inverse.new_full((m,), len(inverse)).scatter_reduce(
            0, inverse, torch.arange(len(inverse)), "amin"
        )
        zeros = values.new_zeros(m)
        precision = zeros.index_add(0, inverse, 1.0 / noise)
        weights = 1.0 / (noise * precision[inverse])
        return cls(
            X=X[first.to(X.device)],
            y=zeros.index_add(0, inverse, weights * values).to(y),
            noise_var=(1.0 / precision).to(y),
            spread=zeros.index_add(0, inverse, weights.square()).to(y),
        )

    def __len__(self) -> int:
        """How many distinct points."""
        return len(self.y)

    @property
    def spread_ratio(self) -> float:
        """The largest spread / noise_var: 1 / lambda^2 where all answers share one noise."""
        return (self.spread / self.noise_var).max().item() if len(self) else 0.0
