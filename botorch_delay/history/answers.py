"""Answers as the columns of a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from botorch_delay.domains.finite import Domain
from botorch_delay.history.trials import Attached, Trial


@dataclass(frozen=True)
class Answers:
    """Answers to be maximised.

    Attributes:
        X: the points, ``n x d``.
        y: their values, ``n``; NaN for a trial that has none.
        noise_var: of each the known noise variance, NaN where none is known, ``n``; in double
            precision, on the CPU.
        group: a number for each, the same where points are equal: a LongTensor ``n``; of
            points of a box on the CPU.
    """

    X: Tensor
    y: Tensor
    noise_var: Tensor
    group: Tensor

    def __len__(self) -> int:
        return len(self.y)

    def at(self, rows: Tensor) -> Answers:
        """Some of the answers: a LongTensor, or a bool tensor ``n``."""
        cpu = rows.cpu()
        group = self.group[rows.to(self.group.device)]
        return Answers(self.X[rows], self.y[rows], self.noise_var[cpu], group)

    @classmethod
    def of(cls, domain: Domain, sign: float, results: Sequence[Trial | Attached]) -> Answers:
        """Those of some trials and results from elsewhere; ``sign`` is -1 to minimise."""
        like = domain.like
        values, noise_var = (
            torch.tensor([torch.nan if v is None else v for v in column], dtype=torch.double)
            for column in ([r.value for r in results], [r.noise_var for r in results])
        )
        rows = [result.index for result in results]
        if domain.count is not None and None not in rows:
            group = torch.tensor(rows, dtype=torch.long, device=like.device)
            X = like[group]
        else:
            X = torch.stack([result.point for result in results]) if results else like[:0]
            group, X = same_points(X), X.to(like.device)
        return cls(X, sign * values.to(like), noise_var, group)


def same_points(X: Tensor) -> Tensor:
    """A number for each row of ``X`` (``n x d``), the same where points are equal: ``n``."""
    return torch.unique(X, dim=0, return_inverse=True)[1]
