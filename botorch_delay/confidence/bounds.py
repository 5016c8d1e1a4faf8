"""Confidence bounds: how far f can be from the posterior mean, and with what probability.

With ``tight=False`` the half-width is Theorem 1's,
``(C_k + (sigma / lambda) sqrt(2 log(4 R N / delta))) sigma~(x)``: ``RKHSConfidence._lemma_1``
gives the multiplier of the deviation, ``HalfWidth.at`` the product. By default the smaller of that
and its ``Parts`` is used. ``RoundSequence.bounds`` chooses the N points and splits a run's failure
probability: half for the delays, half for the bounds, which R rounds share equally
(``RoundRule.delta_divisor``) after bounds from all answers, if used, have taken half of it. In this
module ``delta`` is the probability that any of the bounds made at once fails, on either side.
"""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar, NamedTuple

import torch
from gpytorch.kernels import Kernel, LinearKernel, ScaleKernel
from torch import Tensor

from botorch_delay import validation
from botorch_delay.confidence.information import gain, shares, spectrum
from botorch_delay.confidence.nets import Net, largest_prior_deviation, nets
from botorch_delay.exceptions import InputError
from botorch_delay.gp.kernels import check_kernel, covariance
from botorch_delay.gp.posterior import Data, Moments, Posterior
from botorch_delay.gp.surrogate import Surrogate
from botorch_delay.history.answers import Answers


@dataclass(frozen=True)
class Evidence:
    """What bounds are made from, and where they have to hold.

    Attributes:
        kernel: the kernel of the values divided by ``scale``.
        data: the answers, averaged per point, in units of the values.
        inverse_noise_std: the largest ``sqrt(spread / noise_var)`` over the answered points, for
            adaptive bounds ``1 / sqrt(noise_var)`` over all single answers; 1 / lambda if all
            answers have the same noise variance.
        delta: the probability that any of the bounds fails, on either side.
        count: the number of points of a finite set at which bounds must hold at once; None on a
            box and in ``adaptive``, whose bounds need no union over points.
        box: ``2 x d``, if bounds must hold at every point of a box; else None.
        counts: the number of values of each column of the box that has a list of them, by column.
        scale: the size of one unit of ``kernel`` in units of the values.
    """

    kernel: Kernel
    data: Data
    inverse_noise_std: float
    delta: float
    count: int | None = None
    box: Tensor | None = None
    counts: Mapping[int, int] = field(default_factory=dict)
    scale: float = 1.0

    @cached_property
    def covar_module(self) -> Kernel:
        """The kernel in units of the values."""
        if self.scale == 1.0:
            return self.kernel
        # Only where it is needed: the first ScaleKernel of a process takes half a second.
        kernel = ScaleKernel(copy.deepcopy(self.kernel)).to(self.data.y)
        kernel.outputscale = self.scale**2
        return kernel.requires_grad_(False)

    @classmethod
    def under(
        cls, surrogate: Surrogate, data: Data, delta: float, count: int | None = None
    ) -> Evidence:
        """Evidence in units of the values, from data in a surrogate's units."""
        scale, ratio = surrogate.scale, surrogate.noise_var**-0.5
        if len(data):
            ratio = data.spread_ratio**0.5
        if scale != 1.0:
            data = replace(data, y=scale * data.y, noise_var=scale**2 * data.noise_var)
        return cls(surrogate.covar_module, data, ratio / scale, delta, count, scale=scale)

    @classmethod
    def of_all(cls, surrogate: Surrogate, answers: Answers, data: Data, delta: float) -> Evidence:
        """Evidence for ``adaptive`` bounds from ``answers``, whose averages are ``data``.

        The noise of each single answer counts there, as the number of answers that are averaged at
        a point may depend on their noise.
        """
        evidence = cls.under(surrogate, data, delta)
        if len(answers) == 0:
            return evidence
        _, noise = surrogate.singles(answers)
        ratio = noise.min().item() ** -0.5
        return replace(evidence, inverse_noise_std=ratio / surrogate.scale)


@dataclass(frozen=True)
class Parts:
    """A half-width that bounds bias and noise separately, by factors on the posterior's moments."""

    bias: float  # factor on the largest bias per unit of norm
    noise_norm: float = 0.0  # factor on the norm of the answers' weights
    deviation: float = 0.0  # factor on sigma
    slack: float = 0.0  # added, in units of the values

    def __post_init__(self) -> None:
        for name in ("bias", "noise_norm", "deviation", "slack"):
            object.__setattr__(self, name, validation.nonnegative(getattr(self, name), name))


@dataclass(frozen=True)
class HalfWidth:
    """Half-width of bounds around the posterior mean, as a function of the posterior.

    Attributes:
        multiplier: factor on sigma.
        slack: added, in units of the values.
        parts: another half-width that holds on the same event: the smaller is used at each point.
        rounded_up: whether bounds on rounding errors are added; if not, ``parts`` is ignored.
        words: a description of the bounds, shown with recommendations.
    """

    multiplier: float
    slack: float = 0.0
    parts: Parts | None = None
    rounded_up: bool = True
    words: str = ""

    def __post_init__(self) -> None:
        for name in ("multiplier", "slack"):
            object.__setattr__(self, name, validation.nonnegative(getattr(self, name), name))
        validation.instance(self.parts, Parts | None, "parts", "a Parts, or None")

    @property
    def needs_weights(self) -> bool:
        """Whether the posterior must be evaluated with ``weights=True``, as ``parts`` needs."""
        return self.parts is not None

    def at(self, posterior: Moments) -> Tensor:
        """The half-width at each point of the moments, ``n``, in units of the values."""
        if not self.rounded_up:
            return self.multiplier * posterior.deviation + self.slack
        deviation = posterior.deviation_at_most
        width = self.multiplier * deviation + self.slack
        if (parts := self.parts) is not None:
            noise = parts.noise_norm * posterior.noise_norm + parts.deviation * deviation
            width = torch.minimum(width, parts.bias * posterior.bias + noise + parts.slack)
        return width + posterior.mean_rounding

    def interval(self, posterior: Moments) -> tuple[Tensor, Tensor]:
        """Lower and upper bounds at each point of the moments, ``n`` each."""
        half = self.at(posterior)
        return posterior.mean - half, posterior.mean + half

    def around(self, posterior: Posterior, X: Tensor) -> tuple[Tensor, Tensor]:
        """Lower and upper bounds at ``n x d`` points, ``n`` each."""
        return self.interval(posterior.at(X, weights=self.needs_weights))


class Constants(NamedTuple):
    """What bounds assume about f and the noise, in units of the values.

    They are C_k, a bound on the RKHS norm of f, and sigma, the sub-Gaussian scale of the noise.
    """

    norm_bound: float
    noise_std: float


class Confidence(ABC):
    """How wide confidence bounds are; immutable. Methods must also work before the first answer.

    Attributes:
        holds_on_box: whether bounds are proved to hold at every point of ``Evidence.box`` at once.
    """

    holds_on_box: ClassVar[bool] = False

    @property
    def constants(self) -> Constants | None:
        """The assumed constants, which the answers may refute; None if bounds do not rest on them.

        :class:`WithinBudget` makes its own bounds from all answers with them.
        """
        return None

    @property
    @abstractmethod
    def missing(self) -> tuple[str, ...]:
        """Why these bounds prove nothing; empty if ``fixed_design`` and ``adaptive`` are proved."""

    @property
    @abstractmethod
    def assumptions(self) -> tuple[str, ...]:
        """What the bounds assume, in words."""

    @abstractmethod
    def fixed_design(self, evidence: Evidence) -> HalfWidth:
        """Bounds from points that were chosen independently of the noise.

        If ``missing`` is not empty, points may also depend on the noise: a round then uses all
        answers. If ``constants`` is not None, the half-width must not depend on ``data.y``, since a
        regret budget computes it before any answer.
        """

    @abstractmethod
    def adaptive(self, evidence: Evidence) -> HalfWidth:
        """Bounds at all points and times at once, from points that may depend on earlier noise.

        ``evidence.count`` is None, so a union bound over points is not possible. Recommendations
        show these bounds; with the optimizer's option ``evidence="all"`` they eliminate as well.
        """

    def missing_on_box(self, covar_module: Kernel) -> str | None:
        """Why Theorem 2's regret bound does not follow from bounds that hold on a box.

        As a phrase; None if it does follow.
        """
        return None


@dataclass(frozen=True, repr=False)
class FixedBeta(Confidence):
    """Bounds ``mu +- sqrt(beta) * sigma``, as in the paper's experiments: a heuristic.

    With beta = 6 some bound fails in most runs (benchmarks/REPORT.md, "Claims").
    Beta is BoTorch's, the square of the factor on sigma; above 0.
    """

    beta: float
    assumptions: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "beta", validation.positive(self.beta, "beta"))

    @property
    def missing(self) -> tuple[str, ...]:
        return (
            f"{self!r} is a heuristic multiplier (with the paper's beta = 6 some bound fails in "
            "most runs); use RKHSConfidence(norm_bound, noise_std).",
        )

    def fixed_design(self, evidence: Evidence) -> HalfWidth:
        words = f"mean +- sqrt({self.beta:g}) posterior deviations: a heuristic"
        return HalfWidth(math.sqrt(self.beta), rounded_up=False, words=words)

    def adaptive(self, evidence: Evidence) -> HalfWidth:
        return self.fixed_design(evidence)

    def __repr__(self) -> str:
        return f"FixedBeta({self.beta:g})"


# The defaults are those of the paper's experiments and of Algorithm 1.
DEFAULT_CONFIDENCE = FixedBeta(6.0)
DEFAULT_DELTA = 0.1


@dataclass(frozen=True, repr=False)
class RKHSConfidence(Confidence):
    """Valid bounds for a function of bounded RKHS norm (Lemma 1 and Theorem 1).

    Args:
        norm_bound: C_k, a bound on the RKHS norm of f; above 0, in units of the values.
        noise_std: sigma, the sub-Gaussian scale of the noise; above 0, in units of the values.
        tight: use ``C_k b(x) + noise_std ||z(x)|| sqrt(2 log(2 N / delta))`` with
            ``b(x)^2 = sigma(x)^2 - z'Dz``, which splits the error into bias and noise; for z and D
            see :mod:`botorch_delay.gp.posterior`. It holds with the same probability as Theorem
            1's ``(C_k + (noise_std / lambda) sqrt(2 log(2 N / delta))) sigma(x)``, which
            ``tight=False`` gives, and is never wider.
        uniform: how bounds are made to hold at every point of a box; ignored on finite sets.
            "net": Lemma 1 on a net in the kernel's distance, extended between its points by
            Lipschitz continuity. "trace": without a net, for any kernel; best where the effective
            dimension is small, as with a linear kernel.
    """

    norm_bound: float
    noise_std: float
    tight: bool = True
    uniform: str = field(default="net", kw_only=True)
    missing: ClassVar[tuple[str, ...]] = ()
    holds_on_box: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for name in ("norm_bound", "noise_std"):
            object.__setattr__(self, name, validation.positive(getattr(self, name), name))
        validation.flag(self.tight, "tight")
        if self.uniform not in ("net", "trace"):
            raise InputError(f"uniform must be 'net' or 'trace', got {self.uniform!r}.")

    @property
    def assumptions(self) -> tuple[str, ...]:
        return (
            f"the RKHS norm of f under the given kernel is at most {self.norm_bound:g}",
            f"the noise is sub-Gaussian with scale {self.noise_std:g}, has mean zero, and is "
            "drawn afresh at every evaluation (a seeded objective asked twice is not)",
        )

    @property
    def constants(self) -> Constants:
        return Constants(self.norm_bound, self.noise_std)

    def missing_on_box(self, covar_module: Kernel) -> str | None:
        """With ``uniform="trace"`` a linear kernel is needed."""
        while type(covar_module) is ScaleKernel:
            covar_module = covar_module.base_kernel
        if self.uniform == "net" or type(covar_module) is LinearKernel:
            return None
        return (
            'the multiplier of uniform="trace" grows with the root of the information gain, so '
            "that regret grows faster than in Theorem 2 unless the kernel is linear; use "
            'uniform="net"'
        )

    @torch.no_grad()
    def fixed_design(self, evidence: Evidence) -> HalfWidth:
        """Lemma 1 at ``evidence.count`` points, or on a box the method that ``uniform`` names.

        On a box without answers the half-width is ``C_k sqrt(k(x, x))``, which always holds.
        Raises :class:`NotSupportedError` if the kernel does not allow the method.
        """
        if evidence.count is not None:
            return self._lemma_1(evidence, math.log(evidence.count))
        return self._by_net(evidence) if self.uniform == "net" else self._by_trace(evidence)

    def adaptive(self, evidence: Evidence) -> HalfWidth:
        """The self-normalised bound, uniform over points and time.

        ``(C_k + (sigma / lambda) sqrt(2 (gain + log(1 / delta)))) sigma(x)``, with ``gain``
        0.5 logdet(I + K / lambda^2) (after Abbasi-Yadkori 2013; Chowdhury & Gopalan 2017 have
        ``gain + 1``). Points may depend on earlier noise, but which answers are available must not
        depend on the noise.
        """
        gained = gain(spectrum(evidence.covar_module, evidence.data))
        radius = math.sqrt(2.0 * (gained + math.log(1.0 / evidence.delta)))
        words = (
            f"self-normalised confidence interval, level {1.0 - evidence.delta:g}, uniform over "
            "points, if delays and failures do not depend on the noise"
        )
        factor = self.norm_bound + self.noise_std * evidence.inverse_noise_std * radius
        return HalfWidth(factor, words=words)

    def _lemma_1(
        self, evidence: Evidence, log_points: float, mean_norm: float = 0.0, eps: float = 0.0
    ) -> HalfWidth:
        """Two-sided bounds at N points, and up to ``eps`` from them in the kernel's distance.

        ``log_points`` is log N, ``mean_norm`` the RKHS norm of mu. The noise term has the factor
        ``sqrt(2 log(2 N / delta))``: with delta / (2 R) for delta, Theorem 1's 4 R N / delta.
        """
        tail = math.sqrt(2.0 * (log_points + math.log(2.0 / evidence.delta)))
        noise = self.noise_std * evidence.inverse_noise_std * tail
        slopes = 2.0 * self.norm_bound + mean_norm
        slack = (slopes + 0.5 * noise) * eps
        parts = Parts(self.norm_bound, noise_norm=self.noise_std * tail, slack=slack)
        return HalfWidth(
            self.norm_bound + noise, (slopes + noise) * eps, parts if self.tight else None
        )

    def _by_net(self, evidence: Evidence) -> HalfWidth:
        """Lemma 1 on a net of n points and radius eps, carried over to the box by continuity.

        With rho^2 the largest spread / noise variance (1 / lambda^2) and
        ``tail = sqrt(2 log(2 n / delta))``, all in the kernel's distance:

        * f is C_k-Lipschitz and mu is ||mu||-Lipschitz, so that a half-width w that holds on
          the net and is L-Lipschitz gives ``w(x) + (C_k + ||mu|| + L) eps`` everywhere.
        * Let F map a function to its values at the answered points divided by the roots of
          their noise variances. The squared deviation is ``<k_x, (I + F'F)^-1 k_x>`` and the
          bias is ``||(I + F'F)^-1 k_x||`` per unit norm: both are 1-Lipschitz. Hence
          L = C_k + sigma rho tail in the plain form.
        * The weights, in units of the noise, are ``(I + F F')^-1 F k_x``, whose singular values
          s / (1 + s^2) are at most 1 / 2: ``noise_norm`` is rho / 2-Lipschitz. Hence
          L = C_k + sigma rho tail / 2 where bias and noise are bounded separately.
        """
        kernel, data, box = evidence.covar_module, evidence.data, evidence.box
        assert box is not None
        top = largest_prior_deviation(kernel, box)
        if not len(data):
            return HalfWidth(self.norm_bound)
        posterior = Posterior(kernel, data)
        smallest = posterior.variance(data.X).min().sqrt().item()
        net = self._net(evidence, box, top, smallest)
        return self._lemma_1(evidence, net.log_size, _mean_norm(posterior, kernel), net.eps)

    def _net(self, evidence: Evidence, box: Tensor, top: float, smallest: float) -> Net:
        """The net whose radius makes bounds narrowest.

        It must not depend on the values of answers. Its radius eps minimises
        ``(C_k + sigma rho tail) s + (3 C_k + sigma rho tail) eps`` over ``top``, the largest
        ``sqrt(k(x, x))``, divided by powers of sqrt(2), with s the ``smallest`` posterior deviation
        at the answered points.
        """

        def cost(net: Net) -> float:
            tail = math.sqrt(2.0 * (net.log_size + math.log(2.0 / evidence.delta)))
            noise = self.noise_std * evidence.inverse_noise_std * tail
            return (self.norm_bound + noise) * smallest + (3 * self.norm_bound + noise) * net.eps

        radii = [top * 2 ** (-j / 2) for j in range(81)]
        return min(nets(evidence.covar_module, box, evidence.counts, radii), key=cost)

    def _by_trace(self, evidence: Evidence) -> HalfWidth:
        """Bounds at all points from a single event: a quadratic form of the noise is small.

        The noise in the mean is ``<k_x, v>`` with ``v = F' (I + F F')^-1 e``, e the noise in
        units of lambda. It is at most sigma(x) times the root of ``<v, (I + F'F) v> = e' A e``,
        where ``A = F F' (I + F F')^-1 = K (K + D)^-1``, up to similarity. With probability
        1 - exp(-L) that form is at most ``sigma^2 rho^2 (tr A + 2 sqrt(L tr A^2) + 2 L)``
        (Hsu, Kakade, Zhang 2012). This event covers both sides, so L = log(1 / delta).

        With a linear kernel ``tr A <= d``: the multiplier grows as sqrt(d), which is what the
        paper's Corollary 1 has for that kernel.
        """
        if not len(evidence.data):
            return HalfWidth(self.norm_bound)
        kept = shares(spectrum(evidence.covar_module, evidence.data))
        level = math.log(1.0 / evidence.delta)
        square = kept.sum() + 2.0 * (level * kept.square().sum()).sqrt() + 2.0 * level
        noise = self.noise_std * evidence.inverse_noise_std * math.sqrt(square.item())
        parts = Parts(self.norm_bound, deviation=noise) if self.tight else None
        return HalfWidth(self.norm_bound + noise, parts=parts)

    def __repr__(self) -> str:
        extra = "" if self.uniform == "net" else f", uniform={self.uniform!r}"
        return f"RKHSConfidence({self.norm_bound:g}, {self.noise_std:g}, tight={self.tight}{extra})"


def rkhs_bounds(
    covar_module: Kernel,
    train_X: Tensor,
    train_Y: Tensor,
    X: Tensor,
    *,
    noise_var: float,
    norm_bound: float,
    noise_std: float,
    delta: float,
    tight: bool = False,
) -> tuple[Tensor, Tensor]:
    """Bounds on a function of bounded RKHS norm at single points (Lemma 1).

    Each side holds with probability ``1 - delta`` at each point, provided that ``train_X``
    was chosen independently of the noise. For two-sided bounds at n points at once, divide
    ``delta`` by ``2 n``.

    Args:
        covar_module: the kernel.
        train_X: ``m x d``, the points that were evaluated; m may be 0.
        train_Y: ``m`` or ``m x 1``, their values.
        X: ``n x d``, the points at which to bound f.
        noise_var: lambda^2, the regularizer, above 0.
        norm_bound: C_k, a bound on the RKHS norm, above 0.
        noise_std: sigma, the sub-Gaussian scale of the noise, above 0.
        delta: failure probability of one side at one point.
        tight: bound bias and noise separately; never wider, equally valid.

    Returns:
        ``(lower, upper)``, each of shape ``n``.

    Raises:
        InputError: if an argument cannot be used, or shapes do not fit.
    """
    train_X = validation.matrix(train_X, "train_X", empty=True)
    X = validation.points(X, "X", train_X)
    train_Y = validation.column(train_Y, "train_Y", train_X)
    probe = X if len(X) else train_X
    if len(probe):
        check_kernel(covar_module, probe)
    noise = validation.noise_variance(noise_var, "noise_var", X)
    both_sides = 2.0 * validation.probability(delta, "delta")
    confidence = RKHSConfidence(norm_bound, noise_std, tight=tight)
    data = Data.single(train_X, train_Y, torch.full_like(train_Y, noise))
    evidence = Evidence(covar_module, data, 1.0 / math.sqrt(noise), both_sides, count=1)
    return confidence.fixed_design(evidence).around(Posterior(covar_module, data), X)


def _mean_norm(posterior: Posterior, covar_module: Kernel) -> float:
    """The RKHS norm of mu, rounded up."""
    X, alpha = posterior.data.X, posterior.weights
    K = covariance(covar_module, X, X)
    # As in ``Posterior``, rounding perturbs the system that alpha solves by up to m eps max k.
    m = len(alpha)
    backward = (m + 1) * torch.finfo(K.dtype).eps * K.diagonal().max()
    square = (alpha @ K @ alpha).clamp_min(0.0) + m * backward * alpha.square().sum()
    norm = square.sqrt() + 0.5 * backward * alpha.norm() * posterior.noise_var.min().rsqrt()
    return norm.item()
