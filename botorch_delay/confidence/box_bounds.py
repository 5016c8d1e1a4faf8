"""Half-widths that hold at every point of a box at once, in three ways."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from gpytorch.kernels import Kernel, MaternKernel, RBFKernel, ScaleKernel
from torch import Tensor

from botorch_delay.confidence.nets import Net, largest_deviation, nets
from botorch_delay.exceptions import InputError, NotSupportedError
from botorch_delay.gp.data import Data
from botorch_delay.gp.factors import factorize
from botorch_delay.gp.kernels import covariance
from botorch_delay.gp.posterior import Moments


class NormAndNoise(Protocol):
    """What bounds in a reproducing kernel Hilbert space rest on.

    Attributes:
        norm_bound: C_k.
        noise_std: sigma.
        tight: whether bias and noise are also bounded apart.
        c: of the paper's continuity assumption, or None.
    """

    norm_bound: float
    noise_std: float
    tight: bool
    c: float | None


@dataclass(frozen=True)
class BoxBounds:
    """Half-widths that hold at every point of a box at once, from one round's evidence.

    Attributes:
        multiplier: factor on sigma.
        slack: what is added, in units of the values.
        norm_bound: C_k where bias and noise are also bounded apart; None where they are not.
        tight_tail: factor on ``noise_norm`` for the noise apart; None where the noise is
            bounded by ``(multiplier - norm_bound) sigma`` there too.
        tight_slack: what is added to bias and noise, in units of the values.
        net: the net over which the bounds were taken, if there is one.
    """

    multiplier: float
    slack: float = 0.0
    norm_bound: float | None = None
    tight_tail: float | None = None
    tight_slack: float = 0.0
    net: Net | None = None

    def half_width(self, posterior: Moments) -> Tensor:
        """Half-width at each point of the posterior, ``n``, in units of the values.

        Args:
            posterior: of the evidence from which these bounds were made.
        """
        deviation = posterior.deviation_at_most
        width = self.multiplier * deviation + self.slack
        if self.norm_bound is not None:
            if self.tight_tail is None:
                noise = (self.multiplier - self.norm_bound) * deviation
            else:
                noise = self.tight_tail * posterior.noise_norm
            bias = self.norm_bound * posterior.bias
            width = torch.minimum(width, bias + noise + self.tight_slack)
        return width + posterior.mean_rounding


def by_net(
    confidence: NormAndNoise,
    covar_module: Kernel,
    evidence: Data,
    bounds: Tensor,
    discrete: Mapping[int, int],
    rounds: int,
    delta: float,
) -> BoxBounds:
    """Lemma 1 on a net of n points and radius eps, carried over to the box by continuity.

    With rho^2 the largest spread / noise variance (1 / lambda^2) and
    ``tail = sqrt(2 log(4 n R / delta))``, all in the kernel's distance:

    * f is C_k-Lipschitz and mu is ||mu||-Lipschitz, so that a half-width w that holds on
      the net and is L-Lipschitz gives ``w(x) + (C_k + ||mu|| + L) eps`` everywhere.
    * Let F map a function to its values at the answered points divided by the roots of
      their noise variances. The squared deviation is ``<k_x, (I + F'F)^-1 k_x>`` and the
      bias is ``||(I + F'F)^-1 k_x||`` per unit norm: both are 1-Lipschitz. Hence
      L = C_k + sigma rho tail in the plain form.
    * The weights, in units of the noise, are ``(I + F F')^-1 F k_x``, whose singular values
      s / (1 + s^2) are at most 1 / 2: ``noise_norm`` is rho / 2-Lipschitz. Hence
      L = C_k + sigma rho tail / 2 where bias and noise are apart.

    The radius is chosen from the points and noise variances alone, for if it depended on
    answers the net would: it minimises
    ``(C_k + sigma rho tail) s + (3 C_k + sigma rho tail) eps`` over powers of sqrt(2), with s
    the smallest posterior deviation at the answered points.
    """
    norm_bound = confidence.norm_bound
    top = largest_deviation(covar_module, bounds)
    if not len(evidence.y):
        return BoxBounds(norm_bound)
    mean_norm, smallest = _norm_and_deviation(covar_module, evidence)
    noise = confidence.noise_std * evidence.spread_ratio**0.5
    level = math.log(4.0 * rounds / delta)

    def tail(net: Net) -> float:
        return math.sqrt(2.0 * (net.log_size + level))

    def cost(net: Net) -> float:
        scaled = noise * tail(net)
        return (norm_bound + scaled) * smallest + (3 * norm_bound + scaled) * net.eps

    choices = nets(covar_module, bounds, discrete, [top * 2 ** (-j / 2) for j in range(81)])
    net = min(choices, key=cost)
    slopes = 2.0 * norm_bound + mean_norm
    return BoxBounds(
        multiplier=norm_bound + noise * tail(net),
        slack=(slopes + noise * tail(net)) * net.eps,
        norm_bound=norm_bound if confidence.tight else None,
        tight_tail=confidence.noise_std * tail(net),
        tight_slack=(slopes + 0.5 * noise * tail(net)) * net.eps,
        net=net,
    )


def by_trace(
    confidence: NormAndNoise, covar_module: Kernel, evidence: Data, rounds: int, delta: float
) -> BoxBounds:
    """One event for all points: the noise as a whole is small, seen through the kernel.

    The noise in the mean is ``<k_x, v>`` with ``v = F' (I + F F')^-1 e``, e the noise in
    units of lambda. It is at most sigma(x) times the root of ``<v, (I + F'F) v> = e' A e``,
    where ``A = F F' (I + F F')^-1 = K (K + D)^-1``, up to similarity. With probability
    1 - exp(-L) that form is at most ``sigma^2 rho^2 (tr A + 2 sqrt(L tr A^2) + 2 L)``
    (Hsu, Kakade, Zhang 2012). The event has no sides, so L = log(2 R / delta).

    With a linear kernel ``tr A <= d``: the multiplier grows as sqrt(d), which is what the
    paper's Corollary 1 has for that kernel.
    """
    if not len(evidence.y):
        return BoxBounds(confidence.norm_bound)
    K = covariance(covar_module, evidence.X, evidence.X)
    _, variance = factorize(K, evidence.noise_var)  # as the posterior has it
    weight = variance.rsqrt()
    scaled = torch.linalg.eigvalsh((weight.unsqueeze(-1) * K * weight).double()).clamp_min(0.0)
    shares = scaled / (1.0 + scaled)
    level = math.log(2.0 * rounds / delta)
    square = shares.sum() + 2.0 * (level * shares.square().sum()).sqrt() + 2.0 * level
    noise = confidence.noise_std * evidence.spread_ratio**0.5
    return BoxBounds(
        multiplier=confidence.norm_bound + noise * math.sqrt(square.item()),
        norm_bound=confidence.norm_bound if confidence.tight else None,
    )


def by_theorem_2(
    confidence: NormAndNoise,
    covar_module: Kernel,
    evidence: Data,
    bounds: Tensor,
    rounds: int,
    delta: float,
) -> BoxBounds:
    """``2 / t + beta' (sigma(x) + 2 / sqrt(t))`` with t answers (Lemma 2 and Theorem 2).

    beta' is Lemma 1's multiplier at ``side / (2 Gamma)``, ``side = delta / (4 R)``, with
    ``Gamma = c (C t)^d`` and ``C`` the paper's bound at ``side / 2`` on the norm of mu:
    ``C_k + max(sigma, max k) (sqrt(t) / lambda) sqrt(2 log(4 t / side))``. Where the paper
    takes c for granted and a fraction of a point, the root of Gamma is rounded up, and C is
    at least the root of the largest k(x, x), which the proof needs for sigma.
    """
    for part in covar_module.modules():
        if isinstance(part, MaternKernel) and part.nu <= 1.0:
            raise NotSupportedError(
                f"Theorem 2 assumes functions that are continuous enough, Matern kernels "
                f"with nu > 1; this one has nu = {part.nu}. Use "
                'RKHSConfidence(..., uniform="net") or uniform="trace".'
            )
    d = bounds.shape[-1]
    root = _continuity(covar_module, bounds) if confidence.c is None else confidence.c ** (1.0 / d)
    top = largest_deviation(covar_module, bounds)
    if not len(evidence.y):
        return BoxBounds(confidence.norm_bound)
    t = (1.0 / evidence.spread).sum().item()
    side = delta / (4.0 * rounds)
    ratio = evidence.spread_ratio**0.5
    largest = max(confidence.noise_std, top**2) * math.sqrt(t) * ratio
    norm = confidence.norm_bound + largest * math.sqrt(2.0 * math.log(4.0 * t / side))
    points = d * math.log(math.ceil(root * max(norm, top) * t))
    tail = math.sqrt(2.0 * (points + math.log(2.0 / side)))
    beta = confidence.norm_bound + confidence.noise_std * ratio * tail
    return BoxBounds(multiplier=beta, slack=2.0 / t + 2.0 * beta / math.sqrt(t))


def _norm_and_deviation(covar_module: Kernel, evidence: Data) -> tuple[float, float]:
    """The RKHS norm of mu, rounded up, and the smallest sigma at the answered points."""
    K = covariance(covar_module, evidence.X, evidence.X)
    factor, noise = factorize(K, evidence.noise_var)
    alpha = torch.cholesky_solve(evidence.y.unsqueeze(-1), factor).squeeze(-1)
    white = torch.linalg.solve_triangular(factor, K, upper=False)
    variance = K.diagonal() - white.square().sum(dim=0)
    # As for the posterior: alpha solves a system that is off by m eps max k.
    m = len(alpha)
    backward = (m + 1) * torch.finfo(K.dtype).eps * K.diagonal().max()
    square = (alpha @ K @ alpha).clamp_min(0.0) + m * backward * alpha.square().sum()
    norm = square.sqrt() + 0.5 * backward * alpha.norm() * noise.min().rsqrt()
    return norm.item(), variance.min().clamp_min(0.0).sqrt().item()


def _continuity(kernel: Any, bounds: Tensor) -> float:
    """``c^(1/d)`` of a squared exponential kernel: a function of norm C is C s / l-Lipschitz.

    s^2 is the output scale, l the shortest lengthscale; a grid with spacing h on each side is
    within ``h sqrt(d) / 2`` of every point.
    """
    scale = 1.0
    while type(kernel) is ScaleKernel:
        scale *= math.sqrt(kernel.outputscale.item())
        kernel = kernel.base_kernel
    if type(kernel) is not RBFKernel:
        raise InputError(
            f"Theorem 2 needs its constant for a {type(kernel).__name__}: pass c to "
            "RKHSConfidence, or leave it out with another uniform."
        )
    side = (bounds[1] - bounds[0]).max().item()
    shortest = kernel.lengthscale.min().item()
    return scale * side * math.sqrt(bounds.shape[-1]) / (2.0 * shortest)
