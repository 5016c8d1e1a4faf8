"""Confidence bounds from all answers, however points were chosen and whichever are still missing.

*Assumptions.* ``||f||_k <= C``, and the noise e of each ask is sub-Gaussian of scale s given
everything before it and the point asked: ``E[exp(l e) | before] <= exp(l^2 s^2 / 2)`` for every
real l. Whether and when an answer is told may depend on its own noise; its point may not. The asks
of a point are divided into groups, the size of each fixed at its first ask; a group is complete
when all its asks have been answered. For a failure probability d let rho_n be the number with

    sum over u of p_u (1 - 2 u)^(n/2) exp(u rho_n) = 1 / d

for weights p_u of sum 1 on 24 numbers u between 0.01 and 0.45: about ``n + 2 sqrt(n log(2 / d)) +
2 log(2 / d)`` for n from tens to hundreds, 1.03 n at n = 30,000 and 1.01 n in the limit.

*Claim.* With probability ``1 - d``, at all times, with n the number of groups begun by then, for
all sets S of answers that make up complete groups, all ridges a > 0 and all points x at once,

    |f(x) - mu(x)| <= b sigma(x),      b^2 = C^2 + (rho_n s^2 + w) / a - y' (K_S + a I)^-1 y,

where mu and sigma are the posterior mean and deviation given the answers in S with noise variance
a, and w is the sum of the squared distances of these answers from the means of their groups.

*Proof.* (i) Give each group a normal variable g of mean 0 and variance v = 1 / (1 - 2 u),
independent of everything else. A noise e in a group of planned size k satisfies, given g and
everything before e, ``E exp(sqrt(2 u / k) g e / s - u g^2 / k) <= 1``. So the product over all
noises is a supermartingale, and so is its expectation over the g, which starts at 1. To this
expectation a group with j noises drawn, whose sum is z sqrt(k) s, contributes the factor
``(1 + 2 u v j / k)^(-1/2) exp(u v z^2 / (1 + 2 u v j / k))``: at least (1 - 2 u)^(1/2) always, and
``(1 - 2 u)^(1/2) exp(u z^2)`` once all k are drawn. The mixture over u with weights p_u starts at
1, too, so by Ville's inequality it stays below 1 / d at all times with probability 1 - d. On that
event, on which all the rest holds, z^2 sums to at most rho_n over groups with all noises drawn.
(ii) Over only some of these groups the sum is no larger, whichever answers are missing and why. In
a complete group the squared noises sum to s^2 z^2, the part of their mean, plus the scatter of its
answers, since f is the same for all of them: ``||y_S - f_S||^2 <= rho_n s^2 + w``.
(iii) ``||f||^2 + ||y_S - f_S||^2 / a`` is quadratic in f, with the minimum y'(K_S + a I)^-1 y at
mu: so ``||f - mu||_V <= b`` where ``||g||_V^2 = ||g||_k^2 + ||g_S||^2 / a``.
(iv) sigma^2(x, x') is the reproducing kernel of that norm: ``|g(x)| <= ||g||_V sigma(x)``. QED

*Groups.* Two groupings are in use, each with half of d where both are. With every ask its own group
n is the number m of asks, w is 0, and S may be any set of answers. With groups of 1, 1, 2, 4, 8,
and so on asks of a point n is the sum of 1 + ceil(log2(m_i)) over points asked m_i times, but one
missing answer makes the rest of its group useless. Without groups the noise may add a term of order
sqrt(m) to b^2 where one point is asked repeatedly.

*Order.* "Before" refers to the order of the asks, which is no restriction for independent noises.
If noises are sub-Gaussian only in the order in which they are drawn, the claim holds with n the
number of groups begun when the last answer of S came: by then the noises of S had been drawn and
none of a later group, and rho_n grows with n. This n is used everywhere.

b falls as answers account for more of the norm, and a ridge far above s^2 removes most of the cost
of noise while sigma hardly changes where little is known: after 100 answers on the paper's problem
b is 2.7 instead of 12 (self-normalised: 30). No union over points, rounds or times is needed.

A negative b^2 means that no function of norm C explains the answers: on the same event
``C^2 >= y' (K_S + a I)^-1 y - (rho_n s^2 + w) / a`` for every ridge and every set, and
``Ellipsoids.norm_at_least`` is the root of the largest right side over ``RIDGES``, for its own set.
"""

from __future__ import annotations

import copy
import math
import sys
from functools import lru_cache

import numpy as np
import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from botorch_delay.gp.candidates import CandidatePosterior
from botorch_delay.gp.kernels import covariance, prior_variance, rows_per_chunk
from botorch_delay.gp.posterior import Data
from botorch_delay.history.answers import Answers

# The numbers u of the proof and the logarithms of their weights p_u, which are largest for the u
# that are best with tens to hundreds of groups.
_RATES = np.geomspace(0.01, 0.45, 24)
_LOG_WEIGHTS = -0.5 * (np.log(_RATES / 0.12) / 0.9) ** 2
_LOG_WEIGHTS -= np.logaddexp.reduce(_LOG_WEIGHTS)
# Square roots of the ridges of ``CandidateEllipsoids``, in units of noise_std: the first gives the
# tighter bounds at points that were asked often, the second elsewhere.
KEPT_RIDGES = (1.0, 10.0)
# The same for the upper bound that ``CertifyingUCB`` follows, tuned on draws with seeds from 1000.
PLAYED_RIDGES = (2.5, 12.0)
# The same for ``Ellipsoids``, where one eigendecomposition serves all ridges.
RIDGES = tuple(2.0**power for power in range(-2, 8))
MAX_POINTS = 1000  # distinct points in that eigendecomposition, which takes O(m^3)
# A ridge is at least this share of the largest prior variance. Bounds hold for every ridge, and
# raising a small one widens them less than rounding errors would.
SMALLEST_RIDGE = 1e-6


@lru_cache(maxsize=1024)
def noise_energy(groups: int, delta: float) -> float:
    """rho_n (see the proof above) for n groups of asks, in units of the squared noise scale."""
    heights = _LOG_WEIGHTS + 0.5 * groups * np.log1p(-2.0 * _RATES)
    target = -math.log(delta)
    # Newton's method from above the root: the logarithm of the sum is convex and increasing.
    energy = float(((target - heights) / _RATES).min())
    for _ in range(100):
        terms = heights + _RATES * energy
        log_sum = float(np.logaddexp.reduce(terms))
        step = (log_sum - target) / float(np.exp(terms - log_sum) @ _RATES)
        energy -= step
        if step <= 1e-12 * energy:
            break
    return max(energy, 0.0) * (1.0 + 1e-9)  # above the root, whatever rounding did


def group_count(asks: int) -> int:
    """How many groups of 1, 1, 2, 4, ... asks have begun after ``asks`` asks of a point (>= 1)."""
    return 1 + (asks - 1).bit_length()


def doubling_groups(points: Tensor) -> tuple[Tensor, Tensor]:
    """The group of each ask and its planned size, both ``n``.

    ``points`` has the number of each ask's point, in the order of the asks: a LongTensor ``n``.
    """
    order = points.argsort(stable=True)
    _, counts = torch.unique_consecutive(points[order], return_counts=True)
    first = torch.repeat_interleave(counts.cumsum(0) - counts, counts)
    earlier = torch.empty_like(points)  # how many asks of the same point came before
    earlier[order] = torch.arange(len(points)) - first
    _, number = torch.frexp(earlier.double())  # 0, 1, 2, 2, 3, 3, 3, 3, ...
    sizes = 2 ** (number - 1).clamp_min(0).long()
    return torch.unique(64 * points + number, return_inverse=True)[1], sizes


class Ellipsoids:
    """Bounds on f from a set of answers, the tightest over all ``RIDGES``.

    With R^2 the diagonal matrix of the numbers of answers at the m distinct points X, one
    eigendecomposition ``R K(X, X) R = Q diag(v) Q'`` gives the posterior for all ridges a: with
    ``z(x) = Q' R k_X(x)`` and ``t = Q' R y`` the mean is ``z(x)' t / (v + a)``, the covariance
    ``k(x, x') - z(x)' z(x') / (v + a)``. It takes O(m^3), and then O(m) for each point and ridge.

    Args:
        covar_module: the kernel.
        answers: values to be maximised. Beyond ``MAX_POINTS`` points those with most answers are
            used: any set is valid. ``noise_std`` must also cover rounding of single precision.
        noise_std: the sub-Gaussian scale of the noise.
        begun: how many groups had begun when the last answer came, or an upper bound on that.
        delta: the probability that any of these bounds fails, at any time.
        groups: number of each answer's group, all complete; None if each ask is its own group.

    Attributes:
        norm_at_least: a lower bound on the RKHS norm of f, with probability ``1 - delta``.
    """

    @torch.no_grad()
    def __init__(
        self,
        covar_module: Kernel,
        answers: Answers,
        noise_std: float,
        begun: int,
        delta: float,
        groups: Tensor | None = None,
    ) -> None:
        rows = _most_answered(answers)
        answers = answers.at(rows)
        group, X, y = answers.group, answers.X.double(), answers.y.double()
        self._kernel = copy.deepcopy(covar_module).double().cpu()
        data = Data.averaged(X, y, torch.ones_like(y), group)
        self._X, self._root = data.X, data.noise_var.rsqrt()
        K = covariance(self._kernel, self._X, self._X)
        values, self._vectors = torch.linalg.eigh(self._root.unsqueeze(-1) * K * self._root)
        self._weights = self._vectors.T @ (self._root * data.y)
        self._eps = (len(values) + 1) * torch.finfo(values.dtype).eps
        # The computed decomposition is exact for a matrix within this distance of R K R.
        self._error = float(self._eps * values.max().clamp_min(0.0)) if len(values) else 0.0
        self._values = values.clamp_min(0.0)
        place = torch.searchsorted(group.unique(), group)
        around = (y - data.y[place]).square().sum().item()
        energy = noise_energy(begun, delta) * noise_std**2
        if groups is not None:  # add the scatter of answers within their groups
            _, place, counts = torch.unique(groups[rows], return_inverse=True, return_counts=True)
            means = y.new_zeros(len(counts)).index_add_(0, place, y) / counts
            energy += (y - means[place]).square().sum().item()
        smallest = SMALLEST_RIDGE * float(K.diagonal().max()) if len(K) else 0.0
        # For each ridge ``C^2 - b^2``, rounded down: by the claim C^2 is at least this.
        self._required: dict[float, float] = {}
        for ridge in (max((root * noise_std) ** 2, smallest) for root in RIDGES):
            if ridge > 0.0:  # it may underflow
                # Eigenvalues too small would make the sum too large.
                terms = self._weights.square() / (self._values + self._error + ridge)
                explained = terms.sum().item()
                slack = 16.0 * self._error / ridge * explained
                found = explained + (around - energy) / ridge - slack
                # It is nan where an overflow led to inf - inf.
                self._required[ridge] = math.inf if math.isnan(found) else found
        largest = min(max([0.0, *self._required.values()]), sys.float_info.max)
        self.norm_at_least = math.sqrt(largest)

    @torch.no_grad()
    def bounds(
        self,
        X: Tensor,
        norm_bound: float,
        asked: Tensor | None = None,
        counts: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Lower and upper bounds on f at ``n x d`` points, ``n`` each.

        With ``asked`` points (``p x d``) and how often each was asked (``p``), bounds on ``sum_i
        counts_i (f(x) - f(asked_i))``. Meaningless if ``norm_bound`` is below ``norm_at_least``.
        """
        if asked is None or counts is None:
            asked, counts = self._X[:0], self._X.new_zeros(0)
        asked, counts = asked.cpu().double(), counts.cpu().double()
        chunks = X.cpu().split(rows_per_chunk(len(self._X) + len(asked), self._X))
        parts = [self._in_chunk(X.double(), asked, counts, norm_bound) for X in chunks]
        lower, upper = (torch.cat(ends) for ends in zip(*parts, strict=True))
        return lower, upper

    def _in_chunk(
        self, X: Tensor, asked: Tensor, counts: Tensor, norm_bound: float
    ) -> tuple[Tensor, Tensor]:
        total = float(counts.sum()) if len(counts) else 1.0
        prior = total**2 * prior_variance(self._kernel, X)
        size = prior.max() if len(X) else prior.sum()
        z = total * self._features(X)
        if len(counts):
            cross = covariance(self._kernel, asked, asked) @ counts
            prior = prior - 2.0 * total * (covariance(self._kernel, X, asked) @ counts)
            prior = prior + counts @ cross
            z = z - counts @ self._features(asked)
            size = size + (counts.abs() @ prior_variance(self._kernel, asked).sqrt()).square()
        upper = norm_bound * (prior.clamp_min(0.0) + 64.0 * self._eps * size).sqrt()
        lower = -upper
        for ridge, required in self._required.items():
            square = norm_bound**2 - required
            if square < 0.0:
                continue
            scale = 1.0 / (self._values + ridge)
            scaled, weights = z * scale, scale * self._weights
            # Rounding: what the decomposition's error changes, to first order, in the variance and
            # in the mean, each a bilinear form of two vectors.
            length = scaled.square().sum(dim=1)
            variance = (prior - (z * scaled).sum(dim=1)).clamp_min(0.0)
            variance = variance + 4.0 * self._error * length + 64.0 * self._eps * size
            mean = z @ weights
            lost = 4.0 * self._error * float(weights.norm()) * length.sqrt()
            half = math.sqrt(square) * variance.sqrt() + lost
            lower, upper = torch.maximum(lower, mean - half), torch.minimum(upper, mean + half)
        return lower, upper

    def _features(self, X: Tensor) -> Tensor:
        """z(x) at ``n x d`` points, ``n x m``."""
        return (covariance(self._kernel, X, self._X) * self._root) @ self._vectors


def _most_answered(answers: Answers) -> Tensor:
    """Which answers are at the ``MAX_POINTS`` points with most answers: bool, one per answer."""
    seen, first, counts = np.unique(answers.group, return_index=True, return_counts=True)
    order = np.lexsort((first, -counts))[:MAX_POINTS]
    return torch.isin(answers.group, torch.from_numpy(seen[order]))


class CandidateEllipsoids:
    """Bounds on f, to be maximised, at fixed candidates, ``N x d``; answers can only tighten them.

    With probability ``1 - delta`` all hold at all times. ``refuted`` says whether the answers
    contradict ``norm_bound`` or ``noise_std``: a bool tensor, so that no update waits for a device.
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
        self._posteriors = [
            CandidatePosterior(kernel, candidates, as_rows=True) for _ in KEPT_RIDGES
        ]
        self._candidates = candidates
        self._largest = float(self._posteriors[0].variance.max())
        self.upper = norm_bound * self._posteriors[0].variance.sqrt()
        self.lower = -self.upper
        self.refuted = torch.zeros((), dtype=torch.bool, device=candidates.device)
        self._asks = 0
        self._means: dict[int, tuple[int, float]] = {}  # by row: number of answers, their mean
        self._squares = 0.0  # sum of squared distances of answers from their point's mean

    def tell(self, row: int, y: float, asks: int) -> None:
        """Add an answer at candidate ``row``, told when ``asks`` asks had been made."""
        count, mean = self._means.get(row, (0, 0.0))
        count, step = count + 1, y - mean
        mean += step / count
        self._means[row] = count, mean
        self._squares += step * (y - mean)
        self._asks = max(self._asks, asks)
        for ridge, posterior in zip(KEPT_RIDGES, self._posteriors, strict=True):
            noise_var = max((ridge * self._noise_std) ** 2, SMALLEST_RIDGE * self._largest)
            posterior.update({row: (self._candidates[row], mean, noise_var / count)})
            self._tighten(posterior, noise_var)

    def _tighten(self, posterior: CandidatePosterior, noise_var: float) -> None:
        energy = noise_energy(self._asks, self._delta) * self._noise_std**2 / noise_var
        explained = posterior.explained + self._squares / noise_var
        size = self._norm_bound**2 + energy
        # Allowances for rounding: ``eps`` of a variance, ``solved`` of a solved linear system.
        eps = (len(posterior) + 1) * torch.finfo(posterior.mean.dtype).eps
        solved = 16.0 * eps * max(self._largest / min(posterior.noise_var), 1.0)
        square = size - explained + solved * (size + explained)
        deviation = (posterior.variance + 64.0 * eps * self._largest).sqrt()
        half = square.sqrt() * deviation + solved * posterior.mean.abs().max()
        upper, lower = posterior.mean + half, posterior.mean - half
        counts = (upper - lower).isfinite().all() & square.isfinite() & (square >= 0.0)
        self.upper = torch.where(counts, torch.minimum(self.upper, upper), self.upper)
        self.lower = torch.where(counts, torch.maximum(self.lower, lower), self.lower)
        self.refuted = self.refuted | (square < 0.0) | (self.lower > self.upper).any()
