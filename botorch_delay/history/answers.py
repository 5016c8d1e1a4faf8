"""Answers as tensors, with one row each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from botorch_delay.domains.domain import Domain
from botorch_delay.history.trials import Attached, Trial


@dataclass(frozen=True)
class Answers:
    """Answers to be maximised, on the CPU."""

    X: Tensor  # the points, ``n x d``
    y: Tensor  # their values, ``n``; NaN for a trial that has none
    noise_var: Tensor  # known noise variances, NaN where unknown, ``n``; in double precision
    group: Tensor  # a number for each point, the same where points are equal: LongTensor ``n``

    def __len__(self) -> int:
        return len(self.y)

    def at(self, rows: Tensor) -> Answers:
        """The answers in ``rows``, a LongTensor or a bool tensor ``n``."""
        return Answers(self.X[rows], self.y[rows], self.noise_var[rows], self.group[rows])

    @classmethod
    def without_values(cls, domain: Domain, rows: Tensor) -> Answers:
        """Answers of 0 at rows of a finite set (LongTensor ``n``), where only points matter."""
        X, unknown = domain.on_cpu[rows], torch.full((len(rows),), torch.nan, dtype=torch.double)
        return cls(X, X.new_zeros(len(rows)), unknown, rows)

    @classmethod
    def of(cls, domain: Domain, sign: float, results: Sequence[Trial | Attached]) -> Answers:
        """The answers of trials and attached results; ``sign`` is -1 if the user minimises."""
        values, noise_var = (
            torch.tensor([torch.nan if v is None else v for v in column], dtype=torch.double)
            for column in ([r.value for r in results], [r.noise_var for r in results])
        )
        rows = [result.index for result in results]
        if None in rows:  # on a box, or attached outside the finite set
            X = torch.stack([result.point for result in results])
            group = same_points(X)
        else:
            group = torch.tensor(rows, dtype=torch.long)
            X = domain.on_cpu[group]
        return cls(X, sign * values.to(domain.like.dtype), noise_var, group)


def same_points(X: Tensor) -> Tensor:
    """A number for each row of ``X`` (``n x d``), the same where points are equal: ``n``."""
    return torch.unique(X, dim=0, return_inverse=True)[1]
