"""The posterior on few candidates, kept up to date whatever the number of answers.

With C the posterior covariance of all N candidates, p their precisions (the sum of 1 / noise over
their answers) and w the sums of answer / noise, the mean is C w. An answer at candidate i changes
p_i by dp and w_i by dw; with c = C e_i and g = 1 + dp c_i,

    mean <- mean + c (dw - dp mean_i) / g,      C <- C - (dp / g) c c'.

The rank-one terms are kept as rows, and folded into C a block at a time (see
:mod:`botorch_delay.gp.striped`): an update costs O(N) times the rows that are not folded in yet,
and its share of folding N^2. Nothing grows with the number of answers, or of distinct points.
"""

from __future__ import annotations

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from botorch_delay.gp.by_rows import CandidatePosterior
from botorch_delay.gp.kernels import prior_variance
from botorch_delay.gp.striped import BLOCK, StripedCovariance

# Up to so many candidates their covariance is kept: 134 MB in double.
MAX_CANDIDATES = 4096
# Where an answer is taken out g cancels. Rounding may be such a share of it, which in double it is
# not while noise variances are above 5e-7 of the prior variance.
LARGEST_ERROR = 1e-3


class FoldedPosterior:
    """Zero-mean posterior of a Gaussian process at candidates that are the only points asked.

    Args:
        covar_module: the kernel.
        candidates: ``N x d``.
        before: the same posterior so far, as rows.

    Attributes:
        mean: at every candidate, ``N``; not to be written to.
        variance: likewise, never negative.
        lost: whether an answer was taken out that rounding does not allow to be: all is to be made
            anew from the answers.
    """

    def __init__(
        self, covar_module: Kernel, candidates: Tensor, before: CandidatePosterior
    ) -> None:
        n = len(candidates)
        self._precision = candidates.new_zeros(n)
        self._weighted = candidates.new_zeros(n)
        self._asked: dict[int, None] = {}
        self._is_fresh = False  # whether the mean was made anew since the last block began
        self.lost = False
        self._covariance = StripedCovariance(covar_module, candidates)
        self._begin_block(candidates)
        with torch.no_grad():
            rows = before.rows
            self._covariance.take(rows, torch.ones_like(rows[:, 0]))
            self._prior = prior_variance(covar_module, candidates)
            self.variance = (self._prior - rows.square().sum(dim=0)).clamp_min_(0.0)
        self.mean = before.mean.clone()
        if len(before):
            keys = torch.tensor(before.keys, device=candidates.device)
            self._precision[keys] = 1.0 / before.noise_var
            self._weighted[keys] = before.values / before.noise_var
            self._asked = dict.fromkeys(before.keys)

    def __len__(self) -> int:
        """How many distinct points have been evaluated."""
        return len(self._asked)

    def __contains__(self, key: int) -> bool:
        return key in self._asked

    @property
    def deviation(self) -> Tensor:
        """Sigma, ``N``."""
        return self.variance.sqrt()

    @property
    def keys(self) -> list[int]:
        """Rows of the evaluated candidates."""
        return list(self._asked)

    @property
    def noise_var(self) -> Tensor:
        """Noise variances of their mean answers, ``m``."""
        return 1.0 / self._precision[self._evaluated()]

    def correction(self, residual: Tensor) -> Tensor:
        """``K(candidates, X) (K + D)^-1 residual``, ``N``, for one residual per key."""
        rows = self._evaluated()
        weights = torch.zeros_like(self._precision)
        weights[rows] = residual * self._precision[rows]
        return self._times(weights)

    @torch.no_grad()
    def update(self, changes: dict[int, tuple[Tensor, float, float] | None]) -> None:
        """Set, change or take out points; see :meth:`CandidatePosterior.update`.

        No key may be negative: every point is a candidate.
        """
        replaced = False
        for key, change in changes.items():
            precision = weighted = 0.0
            if change is None:
                self._asked.pop(key, None)
            else:
                _, value, noise_var = change
                self._asked[key] = None
                precision, weighted = 1.0 / noise_var, value / noise_var
            self._change(
                key,
                precision - self._precision[key].item(),
                weighted - self._weighted[key].item(),
            )
            replaced |= precision <= self._precision[key].item()
            self._precision[key], self._weighted[key] = precision, weighted
        self.variance.clamp_min_(0.0)
        if replaced:  # differences of values may be far larger than what is left of them
            self.mean = self._times(self._weighted)

    def _change(self, row: int, precision: float, weighted: float) -> None:
        if precision == 0.0 and weighted == 0.0:
            return
        if self._used == BLOCK:
            self._covariance.take(self._rows, self._signs)
            self._begin_block(self._rows)
        self._covariance.step()
        rows, signs = self._rows[: self._used], self._signs[: self._used]
        index = torch.tensor([row], device=rows.device)
        column = self._covariance.row(index) - (signs * rows[:, row]) @ rows
        if not self._is_fresh and not self._covariance.left:
            # What rounding did to many small changes of the mean ends here.
            self.mean, self._is_fresh = self._times(self._weighted), True
        growth = 1.0 + precision * max(column[row].item(), 0.0)
        rounding = torch.finfo(column.dtype).eps * self._prior[row].item()
        if -precision * rounding > LARGEST_ERROR * growth:
            self.lost = True
            return
        self.mean += column * ((weighted - precision * self.mean[row].item()) / growth)
        if precision == 0.0:
            return
        scaled = column * (abs(precision) / growth) ** 0.5
        sign = 1.0 if precision > 0.0 else -1.0
        self.variance.addcmul_(scaled, scaled, value=-sign)
        self._rows[self._used], self._signs[self._used] = scaled, sign
        self._used += 1

    def _begin_block(self, like: Tensor) -> None:
        self._rows = like.new_empty(BLOCK, len(self._precision))
        self._signs = like.new_empty(BLOCK)
        self._used, self._is_fresh = 0, False

    def _times(self, weights: Tensor) -> Tensor:
        rows, signs = self._rows[: self._used], self._signs[: self._used]
        return self._covariance.times(weights) - (signs * (rows @ weights)) @ rows

    def _evaluated(self) -> Tensor:
        return torch.tensor(list(self._asked), dtype=torch.long, device=self.mean.device)
