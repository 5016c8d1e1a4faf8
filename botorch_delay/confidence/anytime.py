"""Bounds from all answers, however their points were chosen and whichever are still missing.

*Assumptions.* ``||f||_k <= C``, and each noise e is sub-Gaussian of scale s given all that came
before it, its own point included: ``E[exp(l e) | before] <= exp(l^2 s^2 / 2)`` for every number l.
Whether and when an answer is told may depend on its own noise; its point may not. Asks of the same
point are put in groups whose sizes are fixed at their first asks; a group is complete when all of
it has been answered. For a failure probability d let rho_n be the number with

    sum over u of p_u (1 - 2 u)^(n/2) exp(u rho_n) = 1 / d

for weights p_u, of sum 1, of 24 numbers u between 0.01 and 0.45: about ``n + 2 sqrt(n log(2 / d)) +
2 log(2 / d)`` where n is tens to hundreds, 1.03 n at 30,000 and 1.01 n in the limit.

*Claim.* With probability ``1 - d``, at all times, for the number n of groups begun by then, all
sets S of answers that are complete groups of these, all ridges a > 0 and all points x at once,

    |f(x) - mu(x)| <= b sigma(x),      b^2 = C^2 + (rho_n s^2 + w) / a - y' (K_S + a I)^-1 y,

with mu, sigma the posterior from the answers in S under the noise variance a, and w the sum of
their squared distances from the means of their groups.

*Proof.* (i) Let each group have a normal g of mean 0 and variance v = 1 / (1 - 2 u), independent of
all else. With k the planned size of its group a noise e has, given all before it and g,
``E exp(sqrt(2 u / k) g e / s - u g^2 / k) <= 1``. So the product over all noises is a
supermartingale, as is its mean over the g, which starts at 1. In that mean a group with j noises
drawn, of sum z sqrt(k) s, has the factor
``(1 + 2 u v j / k)^(-1/2) exp(u v z^2 / (1 + 2 u v j / k))``: at least (1 - 2 u)^(1/2) always, and
``(1 - 2 u)^(1/2) exp(u z^2)`` once all k are drawn. The sum over u of p_u times these means starts
at 1, too; so by Ville's inequality it stays below 1 / d at all times with probability 1 - d, and
with it the sum of z^2 over groups all of whose noises are drawn at most rho_n. The rest holds on
that event.
(ii) A sum over some groups is no larger, whichever answers are missing and why. The squared noises
of a complete group are s^2 z^2, those of their mean, plus, f being the same for all, the scatter of
its answers: ``||y_S - f_S||^2 <= rho_n s^2 + w``.
(iii) ``||f||^2 + ||y_S - f_S||^2 / a`` is quadratic in f, with the least value
y'(K_S + a I)^-1 y at mu: so ``||f - mu||_V <= b`` where ``||g||_V^2 = ||g||_k^2 + ||g_S||^2 / a``.
(iv) sigma^2(x, x') is the reproducing kernel of that norm: ``|g(x)| <= ||g||_V sigma(x)``. QED

*Groups.* Two ways to group share d. With each ask alone n is the number m of asks, w is 0 and S any
set of answers. With groups of 1, 1, 2, 4, 8, ... asks of a point n is the sum of
1 + ceil(log2(m_i)) over points asked m_i times, but a missing answer costs the rest of its group.
Without groups the noise may add a term like sqrt(m) to b^2 where one point is asked repeatedly.

*Order.* "Before" means the order of the asks, as holds for independent noises in any order. Where
noises are sub-Gaussian only in the order in which they are drawn, the claim holds for n the number
of groups begun when the last answer of S came: by then those of S had been drawn and none of a
later group, and rho_n grows with n. That n is used everywhere.

b falls as the norm is explained, and a ridge far above s^2 takes away most of what the noise costs
while sigma hardly changes where little is known: 2.7 instead of 12 after 100 answers on the paper's
problem, where the self-normalised bound has 30. Points, rounds and times cost no union bound.

Where b^2 would be negative no function of norm C explains the answers: on the same event
``C^2 >= y' (K_S + a I)^-1 y - (rho_n s^2 + w) / a`` for every ridge and every set.
``Ellipsoids.norm_at_least`` is the largest of these over ``RIDGES``, for its own set.
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

# The numbers u of the proof and the logarithms of their weights, which favour those that are best
# for tens to hundreds of groups.
_RATES = np.geomspace(0.01, 0.45, 24)
_LOG_WEIGHTS = -0.5 * (np.log(_RATES / 0.12) / 0.9) ** 2
_LOG_WEIGHTS -= np.logaddexp.reduce(_LOG_WEIGHTS)
# Roots of the ridges in units of the noise's scale: the first is best for points that were asked
# often, the second elsewhere.
KEPT_RIDGES = (1.0, 10.0)
# The same for the upper bound that a rule follows, chosen on draws with seeds from 1000 on.
PLAYED_RIDGES = (2.5, 12.0)
# The same where one eigendecomposition serves all ridges: with at most so many distinct points.
RIDGES = tuple(2.0**power for power in range(-2, 8))
MAX_POINTS = 1000
# A ridge is at least this share of the largest prior variance: any ridge is valid, and less is lost
# than rounding would take.
SMALLEST_RIDGE = 1e-6


@lru_cache(maxsize=1024)
def noise_energy(groups: int, delta: float) -> float:
    """rho_n for n groups of asks, in units of the squared scale of the noise."""
    heights = _LOG_WEIGHTS + 0.5 * groups * np.log1p(-2.0 * _RATES)
    target = -math.log(delta)
    # Newton's method from above: the left hand side's logarithm is convex and increasing.
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
    """How many groups of 1, 1, 2, 4, 8, ... have begun after so many asks of a point, 1 or more."""
    return 1 + (asks - 1).bit_length()


def doubling_groups(points: Tensor) -> tuple[Tensor, Tensor]:
    """The group of each ask and its planned size, both ``n``.

    ``points`` numbers the point of each ask, in their order: a LongTensor ``n``.
    """
    order = points.argsort(stable=True)
    _, counts = torch.unique_consecutive(points[order], return_counts=True)
    first = torch.repeat_interleave(counts.cumsum(0) - counts, counts)
    earlier = torch.empty_like(points)  # asks of the same point before
    earlier[order] = torch.arange(len(points)) - first
    _, number = torch.frexp(earlier.double())  # 0, 1, 2, 2, 3, 3, 3, 3, ...
    sizes = 2 ** (number - 1).clamp_min(0).long()
    return torch.unique(64 * points + number, return_inverse=True)[1], sizes


class Ellipsoids:
    """What a set of answers says of f, for every ridge at once.

    With R^2 the numbers of answers at the m distinct points X, one eigendecomposition
    ``R K(X, X) R = Q diag(v) Q'`` gives the posterior for all ridges a: with ``z(x) = Q' R k_X(x)``
    and ``t = Q' R y`` the mean is ``z(x)' t / (v + a)``, the covariance
    ``k(x, x') - z(x)' z(x') / (v + a)``. O(m^3) once, O(m) for a point and a ridge.

    Args:
        covar_module: the kernel.
        answers: to be maximised. Of more than ``MAX_POINTS`` points the most answered ones count:
            any set of answers will do. ``noise_std`` has to cover the rounding of single precision.
        noise_std: the scale of the noise.
        begun: how many groups had begun when the last answer came, or more.
        delta: failure probability of all that is said, at all times.
        groups: number of each answer's group, all of them complete; each alone if None.
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
        place = torch.searchsorted(group.unique(), group)
        self._around = (y - data.y[place]).square().sum().item()
        self._X, self._root = data.X, data.noise_var.rsqrt()
        K = covariance(self._kernel, self._X, self._X)
        values, self._vectors = torch.linalg.eigh(self._root.unsqueeze(-1) * K * self._root)
        self._weights = self._vectors.T @ (self._root * data.y)
        self._eps = (len(values) + 1) * torch.finfo(values.dtype).eps
        # The decomposition is that of a matrix whose distance from R K R is at most this.
        self._error = float(self._eps * values.max().clamp_min(0.0)) if len(values) else 0.0
        self._values = values.clamp_min(0.0)
        self._energy = noise_energy(begun, delta) * noise_std**2
        if groups is not None:
            self._energy += _scatter(y, groups[rows])
        self._noise_std, self._largest = noise_std, float(K.diagonal().max()) if len(K) else 0.0

    def _ridges(self) -> list[float]:
        """As variances; none where the square of the scale underflows."""
        smallest = SMALLEST_RIDGE * self._largest
        variances = [max((ridge * self._noise_std) ** 2, smallest) for ridge in RIDGES]
        return [ridge for ridge in dict.fromkeys(variances) if ridge > 0.0]

    def _called_for(self, ridge: float) -> float:
        """C^2 less b^2, rounded down."""
        # An eigenvalue that is too small by the error would make the sum too large.
        terms = self._weights.square() / (self._values + self._error + ridge)
        explained = terms.sum().item()
        slack = 16.0 * self._error / ridge * explained
        found = explained + (self._around - self._energy) / ridge - slack
        return math.inf if math.isnan(found) else found  # beyond what numbers can hold

    @property
    def norm_at_least(self) -> float:
        """A lower bound on the RKHS norm of f, with probability 1 - delta."""
        found = max([0.0, *map(self._called_for, self._ridges())])
        return math.sqrt(min(found, sys.float_info.max))

    @torch.no_grad()
    def bounds(
        self,
        X: Tensor,
        norm_bound: float,
        asked: Tensor | None = None,
        counts: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """On f at ``n x d`` points, lower and upper, ``n`` each; meaningless where refuted.

        With asked points (``p x d``) and how often each was asked (``p``), on
        ``sum_i counts_i (f(x) - f(asked_i))``.
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
        for ridge in self._ridges():
            square = norm_bound**2 - self._called_for(ridge)
            if square < 0.0:
                continue
            scale = 1.0 / (self._values + ridge)
            scaled, weights = z * scale, scale * self._weights
            # Rounding: to first order the error of the decomposition between the two vectors that
            # a moment is made of.
            length = scaled.square().sum(dim=1)
            variance = (prior - (z * scaled).sum(dim=1)).clamp_min(0.0)
            variance = variance + 4.0 * self._error * length + 64.0 * self._eps * size
            mean = z @ weights
            lost = 4.0 * self._error * float(weights.norm()) * length.sqrt()
            half = math.sqrt(square) * variance.sqrt() + lost
            lower, upper = torch.maximum(lower, mean - half), torch.minimum(upper, mean + half)
        return lower, upper

    def _features(self, X: Tensor) -> Tensor:
        """Z at ``n x d`` points, ``n x m``."""
        return (covariance(self._kernel, X, self._X) * self._root) @ self._vectors


def _most_answered(answers: Answers) -> Tensor:
    """The rows of the answers at so many points: bool, one for each."""
    seen, first, counts = np.unique(answers.group, return_index=True, return_counts=True)
    order = np.lexsort((first, -counts))[:MAX_POINTS]
    return torch.isin(answers.group, torch.from_numpy(seen[order]))


def _scatter(y: Tensor, groups: Tensor) -> float:
    """The sum of squared distances of some values (``n``) from the means of their groups."""
    _, place, counts = torch.unique(groups, return_inverse=True, return_counts=True)
    means = y.new_zeros(len(counts)).index_add_(0, place, y) / counts
    return (y - means[place]).square().sum().item()


class Ellipsoid:
    """Bounds on f, to be maximised, at fixed candidates, ``N x d``, that only ever get tighter.

    With probability ``1 - delta`` all hold at all times. ``refuted``, whether the answers
    contradict ``norm_bound`` and ``noise_std``, is a bool tensor, not to wait for a device.
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
        self._means: dict[int, tuple[int, float]] = {}  # number and mean of answers, by row
        self._squares = 0.0  # of answers around the mean at their point

    def tell(self, row: int, y: float, asks: int) -> None:
        """Take in an answer at candidate ``row``, told after so many asks."""
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
        # What rounding may have done: to a variance, and to what is solved for.
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
