"""Greedy maximum-variance design: each point is where the points so far leave most variance.

The k-th point maximises sigma_{k-1} (paper, equation maxvar). The design keeps, for every
candidate, its variance and one row per pick of W = L^-1 K(picks, candidates), where L is the
Cholesky factor of K(picks, picks) + lambda^2 I. Picking p appends

    w = (k(p, .) - W[:, p]' W) / sqrt(v_p + lambda^2),      v <- v - w^2,

one kernel row and one product with W: O(N k) work and N numbers of memory for pick k. This is
a pivoted Cholesky factorization of K + lambda^2 I in which a pivot may come again, since a
point that is evaluated twice has two independent noises. No value enters: a round can be
designed before any answer arrives.

Ties go to the lowest index whose variance is at least (1 - 1e-8) times the largest.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from botorch_delay import checks
from botorch_delay.exceptions import ExhaustedDesignError, NumericsError
from botorch_delay.kernels import check_kernel, covariance, prior_variance
from botorch_delay.ties import lowest_of_largest


class GreedyDesign:
    """A greedy design that grows one pick at a time.

    Args:
        covar_module: the kernel.
        candidates: ``N x d``.
        noise_var: lambda^2.
        picks: indices to begin with, in this order, chosen by the rule or not.
    """

    def __init__(
        self, covar_module: Kernel, candidates: Tensor, noise_var: float, picks: Iterable[int] = ()
    ) -> None:
        self._kernel = covar_module
        self._candidates = candidates
        self._noise = noise_var
        with torch.no_grad():
            self._variance = prior_variance(covar_module, candidates).clone()
        self._excluded = torch.zeros(len(candidates), dtype=torch.bool, device=candidates.device)
        self._rows = candidates.new_empty(0, len(candidates))
        self._picks: list[int] = []
        for index in picks:
            self.add(index)

    @property
    def picks(self) -> list[int]:
        """The indices picked so far, in order."""
        return list(self._picks)

    @property
    def variance(self) -> Tensor:
        """Posterior variance of every candidate given the picks, ``N``."""
        return self._variance

    def exclude(self, index: int, excluded: bool = True) -> None:
        """Keep a candidate from being picked, or allow it again; its past picks still count."""
        self._excluded[index] = excluded

    def next(self) -> int:
        """The index that the rule picks now.

        Raises:
            ExhaustedDesignError: if every candidate is excluded.
        """
        variance = self._variance.masked_fill(self._excluded, -torch.inf)
        largest = variance.max()
        if not torch.isfinite(largest):
            if self._excluded.all():
                raise ExhaustedDesignError("Every candidate of the design is excluded.")
            raise NumericsError("The variance of some candidate is not finite.")
        return lowest_of_largest(variance)

    def add(self, index: int) -> None:
        """Count ``index`` as picked: one more row, every variance reduced."""
        k = len(self._picks)
        self._reserve(k + 1)
        rows = self._rows[:k]
        with torch.no_grad():
            point = self._candidates[index : index + 1]
            row = covariance(self._kernel, point, self._candidates).squeeze(0)
            row = row - rows[:, index] @ rows
            row = row / (self._variance[index] + self._noise).sqrt()
            self._rows[k] = row
            self._variance.sub_(row.square()).clamp_min_(0.0)
        self._picks.append(index)

    def extend(self, n: int) -> list[int]:
        """Pick ``n`` more points by the rule and return their indices."""
        for _ in range(n):
            self.add(self.next())
        return self._picks[len(self._picks) - n :]

    def _reserve(self, rows: int) -> None:
        if rows <= len(self._rows):
            return
        grown = self._rows.new_empty(max(2 * len(self._rows), rows, 8), self._rows.shape[1])
        grown[: len(self._rows)] = self._rows
        self._rows = grown


def greedy_max_variance(
    covar_module: Kernel, candidates: Tensor, noise_var: float, n: int
) -> Tensor:
    """The greedy maximum-variance design of ``n`` points; a point may be picked more than once.

    Args:
        covar_module: the kernel.
        candidates: ``N x d``.
        noise_var: lambda^2, above 0.
        n: how many points, at least 1.

    Returns:
        A LongTensor of shape ``n``, indices into ``candidates``, in order. Ties go to the
        lowest index whose variance is at least ``1 - 1e-8`` times the largest.

    Raises:
        InputError: if an argument is malformed.

    Example:
        >>> from gpytorch.kernels import RBFKernel
        >>> line = torch.linspace(0, 1, 5, dtype=torch.double).unsqueeze(-1)
        >>> greedy_max_variance(RBFKernel().double(), line, noise_var=1e-2, n=3)
        tensor([0, 4, 2])
    """
    candidates = checks.matrix(candidates, "candidates")
    check_kernel(covar_module, candidates)
    noise = checks.noise_variance(noise_var, "noise_var", candidates)
    design = GreedyDesign(covar_module, candidates, noise)
    picks = design.extend(checks.whole(n, "n", 1))
    return torch.tensor(picks, dtype=torch.long, device=candidates.device)
