"""The posterior once every pick of a design has been answered, from what the design keeps.

With S the posterior covariance of all N candidates given the picks, n_i answers of noise lambda^2
at candidate i, s_i their sum and D_i = lambda^2 / n_i,

    mean = S s / lambda^2,      (K + D)^-1 k_X(x) = D^-1 S(X, x),

so that nothing is factorized: the mean costs N^2 multiplications, the norms of the weights as many
again. S is there as C - W'W; see :mod:`botorch_delay.design.greedy`.

Sums may be far larger than the mean, and rounding in S counts as often. Where valid bounds rest
on it, the mean is refined once: with a = D^-1 (y - mean), the weights of the kernel functions,
mean <- K a + S D^-1 (mean - K a), which leaves the rounding of a backward stable solve.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from botorch_delay.gp.kernels import covariance, rows_per_chunk
from botorch_delay.gp.posterior import Evidence, PointwisePosterior

# Precisions that differ by less are the same but for rounding.
_SAME = 1e-12


@dataclass(frozen=True)
class EvaluatedDesign:
    """What the picks of a design tell, once each is answered with the design's noise.

    Attributes:
        kernel: the kernel.
        points: the candidates, ``N x d``.
        prior: variance of every candidate, ``N``.
        covariance: C, ``N x N``; never written to.
        rows: W, ``u x N``.
        variance: of every candidate given the picks, ``N``.
        counts: how often each candidate was picked, a LongTensor ``N``.
        noise_var: lambda^2.
    """

    kernel: Kernel
    points: Tensor
    prior: Tensor
    covariance: Tensor
    rows: Tensor
    variance: Tensor
    counts: Tensor
    noise_var: float

    def posterior(self, evidence: Evidence, *, weights: bool) -> PointwisePosterior | None:
        """What :func:`~botorch_delay.gp.posterior.posterior_at` gives at all candidates.

        Args:
            evidence: the answers, one row per distinct point, in the order of the candidates.
            weights: whether ``noise_norm`` and ``penalty`` are needed.

        Returns:
            None if the answers are not those of the picks, one each, with the design's noise.
        """
        prior, counts = self.prior, self.counts.to(self.prior)
        at = self.counts.nonzero().flatten()
        if not torch.equal(evidence.X, self.points[at]):
            return None
        precision = counts[at] / self.noise_var
        own = 1.0 / evidence.noise_var
        if bool(((own - precision).abs() > _SAME * precision).any()):
            return None
        sums = torch.zeros_like(prior)
        sums[at] = precision * evidence.y
        mean = self._times(sums)
        noise_norm = penalty = torch.zeros_like(mean)
        picks = int(self.counts.sum())
        relative = (picks + 1) * torch.finfo(mean.dtype).eps
        backward = relative * prior.max()
        mean_rounding = (backward * sums.norm()).expand_as(mean)
        if weights:
            mean, alpha_norm = self._refined(mean, evidence.y, precision, at)
            spread, noise = torch.zeros_like(prior), torch.zeros_like(prior)
            spread[at], noise[at] = evidence.spread, evidence.noise_var
            factors = torch.stack([spread, noise, torch.ones_like(noise)])
            factors = factors * (counts / self.noise_var).square()
            norms = self._squares_times(factors.mT)
            noise_norm, penalty = norms[:, 0].sqrt(), norms[:, 1]
            mean_rounding = backward * alpha_norm * norms[:, 2].sqrt()
        return PointwisePosterior(
            mean=mean,
            variance=self.variance,
            prior=prior,
            noise_norm=noise_norm,
            penalty=penalty,
            rounding=relative * prior,
            mean_rounding=mean_rounding,
        )

    def _refined(
        self, mean: Tensor, y: Tensor, precision: Tensor, at: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The mean with less rounding, and the norm of the kernel functions' weights."""
        alpha, residual = torch.zeros_like(mean), torch.zeros_like(mean)
        alpha[at] = precision * (y - mean[at])
        expanded = torch.empty_like(mean)
        for part in _stripes(self.points):
            expanded[part] = covariance(self.kernel, self.points[part], self.points) @ alpha
        residual[at] = precision * (mean - expanded)[at]
        return expanded + self._times(residual), alpha.norm()

    def _times(self, right: Tensor) -> Tensor:
        """S times ``N``."""
        return self.covariance @ right - self.rows.mT @ (self.rows @ right)

    def _squares_times(self, right: Tensor) -> Tensor:
        """Squares of the entries of S, times ``N x k``."""
        product = torch.empty_like(right)
        for part in _stripes(right):
            block = self.covariance[part] - self.rows[:, part].mT @ self.rows
            product[part] = block.square_() @ right
        return product


def _stripes(rows: Tensor) -> Iterator[slice]:
    """Parts of N rows, so that as many rows of an N x N matrix are worked on at once."""
    stripe = rows_per_chunk(len(rows), rows)
    return (slice(start, start + stripe) for start in range(0, len(rows), stripe))
