"""The posterior once every pick of a design has been answered, from what the design keeps.

With S the posterior covariance of all N candidates given the picks, n_i answers of noise lambda^2
at candidate i, s_i their sum and D_i = lambda^2 / n_i,

    mean = S s / lambda^2,      (K + D)^-1 k_X(x) = D^-1 S(X, x),

so that nothing is factorized: the mean costs N^2 multiplications, the norms of the weights as many
again. S is there as C - W'W; see :mod:`botorch_delay.design`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from botorch_delay.kernels import rows_per_chunk
from botorch_delay.posterior import Evidence, PointwisePosterior

# Precisions that differ by less are the same but for rounding.
_SAME = 1e-12


@dataclass(frozen=True)
class EvaluatedDesign:
    """What the picks of a design tell, once each is answered with the design's noise.

    Attributes:
        covariance: C, ``N x N``; never written to.
        rows: W, ``u x N``.
        variance: of every candidate, ``N``.
        counts: how often each candidate was picked, a LongTensor ``N``.
        noise_var: lambda^2.
    """

    covariance: Tensor
    rows: Tensor
    variance: Tensor
    counts: Tensor
    noise_var: float

    def posterior(
        self, evidence: Evidence, at: Tensor, prior: Tensor, *, weights: bool
    ) -> PointwisePosterior | None:
        """What :func:`~botorch_delay.posterior.posterior_at` gives at all candidates.

        Args:
            evidence: the answers, one row per distinct point.
            at: which candidate each row is, a LongTensor ``m``.
            prior: variance of every candidate, ``N``.
            weights: whether ``noise_norm`` and ``penalty`` are needed.

        Returns:
            None if the answers are not those of the picks, one each, with the design's noise.
        """
        counts = self.counts.to(prior)
        if not torch.equal(at.sort().values, self.counts.nonzero().flatten()):
            return None
        precision = counts[at] / self.noise_var
        own = 1.0 / evidence.noise_var
        if bool(((own - precision).abs() > _SAME * precision).any()):
            return None
        sums = torch.zeros_like(prior)
        sums[at] = precision * evidence.y
        mean = self.covariance @ sums - self.rows.mT @ (self.rows @ sums)
        noise_norm = penalty = torch.zeros_like(mean)
        picks = int(self.counts.sum())
        relative = (picks + 1) * torch.finfo(mean.dtype).eps
        z_norm = ((self.variance + relative * prior) * precision.max()).sqrt()
        if weights:
            spread, noise = torch.zeros_like(prior), torch.zeros_like(prior)
            spread[at], noise[at] = evidence.spread, evidence.noise_var
            factors = torch.stack([spread, noise, torch.ones_like(noise)])
            factors = factors * (counts / self.noise_var).square()
            norms = self._squares_times(factors.mT)
            noise_norm, penalty, z_norm = norms[:, 0].sqrt(), norms[:, 1], norms[:, 2].sqrt()
        residual = (evidence.y - mean[at]) * precision
        return PointwisePosterior(
            mean=mean,
            variance=self.variance,
            prior=prior,
            noise_norm=noise_norm,
            penalty=penalty,
            rounding=relative * prior,
            mean_rounding=relative * prior.max() * residual.norm() * z_norm,
        )

    def _squares_times(self, right: Tensor) -> Tensor:
        """Squares of the entries of S, times ``N x k``."""
        product = torch.empty_like(right)
        for start in range(0, len(right), stripe := rows_per_chunk(len(right), right)):
            part = slice(start, start + stripe)
            block = self.covariance[part] - self.rows[:, part].mT @ self.rows
            product[part] = block.square_() @ right
        return product
