"""Answers as the columns of a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from botorch_delay.domains.finite import Domain
from botorch_delay.history.trials import Attached, Ledger, Trial


@dataclass(frozen=True)
class Answers:
    """Answers to be maximised.

    Attributes:
        X: the points, ``n x d``.
        y: their values, ``n``.
        noise_var: of each the known noise variance, NaN where none is known, ``n``; in double
            precision, on the CPU.
        group: a number for each, the same where points are equal: a LongTensor ``n``.
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
    def gathered(
        cls,
        domain: Domain,
        sign: float,
        ledger: Ledger,
        ids: Sequence[int],
        attached: Sequence[Attached] = (),
    ) -> Answers:
        """Some answers, and results from elsewhere.

        Column by column: a long run has very many, and this happens inside an ask.

        Args:
            domain: of the points.
            sign: -1 where the user minimises.
            ledger: that has the answers.
            ids: of the trials.
            attached: the results.
        """
        like = domain.like
        values, noise_var = ledger.values(ids)
        others = values.new_tensor([result.value for result in attached])
        y = sign * torch.cat([values, others]).to(like)
        noise_var = torch.cat([noise_var, torch.full_like(others, torch.nan)])
        rows = [result.index for result in attached if result.index is not None]
        if domain.count is not None and len(rows) == len(attached):
            group = torch.cat([ledger.indices(ids), torch.tensor(rows, dtype=torch.long)])
            group = group.to(like.device)
            return cls(like[group], y, noise_var, group)
        X = _stacked([*map(ledger.__getitem__, ids), *attached], like)
        return cls(X, y, noise_var, same_points(X))

    @classmethod
    def of(cls, trials: Sequence[Trial], sign: float, like: Tensor) -> Answers:
        """The answers of some trials, whose ledger is not at hand; NaN for one that has none."""
        X = _stacked(trials, like)
        values, noise_var = (
            torch.tensor([torch.nan if v is None else v for v in column], dtype=torch.double)
            for column in ([t.value for t in trials], [t.noise_var for t in trials])
        )
        return cls(X, sign * values.to(like), noise_var, same_points(X))


def same_points(X: Tensor) -> Tensor:
    """A number for each row of ``X`` (``n x d``), the same where points are equal: ``n``."""
    _, inverse = torch.unique(X, dim=0, return_inverse=True)
    return inverse


def _stacked(results: Sequence[Trial | Attached], like: Tensor) -> Tensor:
    return torch.stack([result.x for result in results]) if results else like[:0]
