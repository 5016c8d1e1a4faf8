"""Bounds from all answers, whatever made their points, and whichever of them are still missing.

Assume ``||f||_k <= C``, and noises that are sub-Gaussian of scale s given everything before them:
points, values told or not, delays. For a failure probability d let

    rho_m = min over u in (0, 1/2) of [ log(|grid| / d) - (m / 2) log(1 - 2 u) ] / u,

about ``m + 2 sqrt(m log(1 / d)) + 2 log(1 / d)``. Then with probability ``1 - d``, for all numbers
of asks m, all sets S of answers among the first m asks, all ridges a > 0 and all points x at once,

    |f(x) - mu(x)| <= b sigma(x),      b^2 = C^2 + rho_m s^2 / a - y' (K_S + a I)^-1 y,

with mu, sigma the posterior from the answers in S under the noise variance a.

*Proof.* (i) For a noise e of scale s, exp(u e^2 / s^2) is the mean of exp(sqrt(2 u) g e / s) over a
standard normal g; taking the mean over e first leaves at most E exp(u g^2) = (1 - 2 u)^(-1/2). So
exp(u sum of e_i^2 / s^2 + (m / 2) log(1 - 2 u)) is a supermartingale in m that starts at 1, and by
Ville's inequality and a union over the grid sum_{i <= m} e_i^2 <= rho_m s^2 for all m, with
probability 1 - d. All that follows is about that event. (ii) A sum over S is no larger than the
sum over all m: ``||f||^2 + ||y_S - f_S||^2 / a <= C^2 + rho_m s^2 / a``, whichever answers are
missing and why. (iii) The left side is quadratic in f, with the least value
y'(K_S + a I)^-1 y at mu: so ``||f - mu||_V <= b`` where ``||g||_V^2 = ||g||_k^2 + ||g_S||^2 / a``.
(iv) sigma^2(x, x') is the reproducing kernel of that norm: ``|g(x)| <= ||g||_V sigma(x)``. QED

b falls as the norm is explained, and a ridge far above s^2 takes away most of what the noise costs
while sigma hardly changes where little is known: 2.5 instead of 12 after 100 answers on the paper's
problem, where the self-normalised bound has 30. No union over points, rounds or times is taken.

Where b^2 would be negative no function of norm C explains the answers: on the same event
``C^2 >= y' (K_S + a I)^-1 y - rho_m s^2 / a`` for every ridge and every set, which
:func:`norm_at_least` makes the most of.
"""

from __future__ import annotations

import copy
import math
import sys

import numpy as np
import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from botorch_delay.gp.candidates import CandidatePosterior
from botorch_delay.gp.kernels import covariance
from botorch_delay.gp.posterior import Data
from botorch_delay.history.answers import Answers

_GRID = (0.02, 0.04, 0.08, 0.13, 0.2, 0.3, 0.4)
# The deviations of the noise that serve as ridges, in units of its scale: the first is best for
# points that were asked often, the second everywhere else.
RIDGES = (1.0, 10.0)
# The same for the least norm that answers allow, which takes one factorization for all of them.
NORM_RIDGES = tuple(2.0**power for power in range(-2, 8))
# Of how many distinct points that norm is computed at most: those that were asked first.
MAX_NORM_POINTS = 1000
# A ridge is at least this share of the largest prior variance, whatever the noise: any ridge is
# valid, and what is lost is less than what rounding would take.
SMALLEST_RIDGE = 1e-6


def noise_energy(asks: int, delta: float) -> float:
    """rho_m: with probability ``1 - delta`` a bound on m squared noises, for all m at once.

    Args:
        asks: m.
        delta: failure probability.

    Returns:
        In units of the squared scale of the noise.
    """
    tail = math.log(len(_GRID) / delta)
    return min((tail - 0.5 * asks * math.log1p(-2.0 * u)) / u for u in _GRID)


@torch.no_grad()
def norm_at_least(
    covar_module: Kernel, answers: Answers, noise_std: float, asks: int, delta: float
) -> float:
    """The least RKHS norm that a function with such answers can have.

    It holds with probability ``1 - delta`` at all times at once, for any subset of the answers.

    Args:
        covar_module: the kernel.
        answers: ``n`` of them, to be maximised or not.
        noise_std: s.
        asks: how many asks have been made, m; at least up to the last one answered.
        delta: failure probability.

    Returns:
        In units of the values; 0 where any norm will do.
    """
    # On the CPU: an eigenvalue problem of a few hundred points, and sums for several ridges.
    group, X, y = answers.group.cpu(), answers.X.cpu().double(), answers.y.cpu().double()
    seen, first = np.unique(group, return_index=True)
    if len(seen) > MAX_NORM_POINTS:
        kept = torch.isin(group, torch.from_numpy(seen[first.argsort()[:MAX_NORM_POINTS]]))
        group, X, y = group[kept], X[kept], y[kept]
    evidence = Data.averaged(X, y, torch.ones_like(y), group)
    place = torch.searchsorted(group.unique(), group)
    within = (y - evidence.y[place]).square().sum().item()
    K = covariance(copy.deepcopy(covar_module).double().cpu(), evidence.X, evidence.X)
    root = evidence.noise_var.rsqrt()  # of the number of answers at each point
    values, vectors = torch.linalg.eigh(root.unsqueeze(-1) * K * root)
    squares = (vectors.T @ (root * evidence.y)).square()
    # An eigenvalue may be too small by so much, for which the sum below would be too large.
    error = (len(values) + 1) * torch.finfo(values.dtype).eps * values.max().clamp_min(0.0)
    largest = float(K.diagonal().max())
    found = 0.0
    for ridge in NORM_RIDGES:
        noise_var = max((ridge * noise_std) ** 2, SMALLEST_RIDGE * largest)
        if noise_var == 0.0:  # no kernel, and a scale whose square is too small for a number
            continue
        explained = (squares / (values.clamp_min(0.0) + error + noise_var)).sum().item()
        energy = noise_energy(asks, delta) * noise_std**2 / noise_var
        slack = 16.0 * float(error) / noise_var * explained
        found = max(found, explained + within / noise_var - energy - slack)
    return math.sqrt(min(found, sys.float_info.max))


class Ellipsoid:
    """Bounds on f at fixed candidates that only ever get tighter.

    Args:
        covar_module: the kernel.
        candidates: ``N x d``; all is computed in double precision.
        norm_bound: C.
        noise_std: s.
        delta: failure probability of all bounds at all times.

    Attributes:
        lower: of f, to be maximised, ``N``.
        upper: of f, ``N``.
        refuted: whether the answers contradict ``norm_bound`` and ``noise_std``.
    """

    def __init__(
        self,
        covar_module: Kernel,
        candidates: Tensor,
        norm_bound: float,
        noise_std: float,
        delta: float,
    ) -> None:
        self._norm_bound, self._noise_std, self._delta = norm_bound, noise_std, delta
        kernel, candidates = copy.deepcopy(covar_module).double(), candidates.double()
        self._posteriors = [CandidatePosterior(kernel, candidates, as_rows=True) for _ in RIDGES]
        self._candidates = candidates
        self._largest = float(self._posteriors[0].variance.max())
        self.upper = norm_bound * self._posteriors[0].variance.sqrt()
        self.lower = -self.upper
        self.refuted = False
        self._asks = 0
        self._means: dict[int, tuple[int, float]] = {}  # number and mean of answers, by row
        self._squares = 0.0  # of answers around the mean at their point

    def tell(self, row: int, y: float, asks: int) -> None:
        """Take in an answer at a candidate, to be maximised, that is of the first so many asks."""
        count, mean = self._means.get(row, (0, 0.0))
        count, step = count + 1, y - mean
        mean += step / count
        self._means[row] = count, mean
        self._squares += step * (y - mean)
        self._asks = max(self._asks, asks)
        for ridge, posterior in zip(RIDGES, self._posteriors, strict=True):
            noise_var = max((ridge * self._noise_std) ** 2, SMALLEST_RIDGE * self._largest)
            posterior.update({row: (self._candidates[row], mean, noise_var / count)})
            self._tighten(posterior, noise_var)

    def _tighten(self, posterior: CandidatePosterior, noise_var: float) -> None:
        energy = noise_energy(self._asks, self._delta) * self._noise_std**2 / noise_var
        explained = posterior.explained + self._squares / noise_var
        size = self._norm_bound**2 + energy
        # What rounding may have done: to a variance, and to what is solved for.
        eps = (len(posterior) + 1) * torch.finfo(posterior.mean.dtype).eps
        solved = 16.0 * eps * max(self._largest / float(posterior.noise_var.min()), 1.0)
        square = size - explained + solved * (size + explained)
        if square < 0.0:
            self.refuted = True
            return
        deviation = (posterior.variance + 64.0 * eps * self._largest).sqrt()
        half = math.sqrt(square) * deviation + solved * posterior.mean.abs().max()
        upper, lower = posterior.mean + half, posterior.mean - half
        if not (math.isfinite(square) and upper.isfinite().all() and lower.isfinite().all()):
            return
        self.upper = torch.minimum(self.upper, upper)
        self.lower = torch.maximum(self.lower, lower)
        self.refuted |= bool((self.lower > self.upper).any())
