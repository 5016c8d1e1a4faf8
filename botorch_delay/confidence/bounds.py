"""Confidence bounds, and what is guaranteed with them.

Half of the failure probability delta is spent on the confidence bounds, half on the delays
(Theorem 1). On finitely many points :func:`side_delta` divides the bounds' half by rounds,
points and sides; on a box :meth:`Confidence.on_box` divides it by rounds, and bounds every
point and both sides at once.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from botorch_delay import validation
from botorch_delay.confidence.box_bounds import BoxBounds, by_net, by_theorem_2, by_trace
from botorch_delay.exceptions import InputError
from botorch_delay.gp.data import Data
from botorch_delay.gp.kernels import check_kernel, covariance
from botorch_delay.gp.posterior import Moments, Posterior


def side_delta(delta: float, rounds: int, points: int) -> float:
    """``delta / (4 R N)``, the share of one side of one bound at one point in one round.

    Two sides, N points and R rounds use delta / 2; the other half is for the delays.
    """
    return delta / (4.0 * rounds * points)


class Confidence(ABC):
    """How wide the bounds of a round are."""

    @abstractmethod
    def multiplier(self, noise_ratio: float, delta: float) -> float:
        """The factor on sigma in the half-width.

        Args:
            noise_ratio: 1 / lambda, the largest over the answers.
            delta: failure probability of one side at one point.
        """

    @abstractmethod
    def half_width(self, posterior: Moments, noise_ratio: float, delta: float) -> Tensor:
        """Half-width at each point of the posterior, ``n``, in units of the values.

        Args:
            posterior: mu and sigma from points chosen independently of the noise.
            noise_ratio: 1 / lambda, the largest over the answers.
            delta: failure probability of one side at one point.
        """

    @abstractmethod
    def all_data(
        self, posterior: Moments, noise_ratio: float, gain: float, delta: float
    ) -> tuple[Tensor, str]:
        """Half-width where points may depend on earlier noise, and what it is, in words.

        Args:
            posterior: mu and sigma from all answers.
            noise_ratio: 1 / lambda.
            gain: information gain of the answers, in nats.
            delta: failure probability, uniformly over points, sides and time.
        """

    @abstractmethod
    def on_box(
        self,
        covar_module: Kernel,
        evidence: Data,
        bounds: Tensor,
        discrete: Mapping[int, int],
        rounds: int,
        delta: float,
    ) -> BoxBounds:
        """Half-widths at every point of a box.

        They hold for all points, both sides and all rounds with probability ``1 - delta / 2``.

        Args:
            covar_module: the kernel.
            evidence: answers at points chosen independently of their noise.
            bounds: ``2 x d``, the box.
            discrete: number of values of the columns that only take some.
            rounds: R, over how many rounds ``delta`` is spread.
            delta: failure probability, of which half is for the delays.
        """

    @property
    @abstractmethod
    def needs_weights(self) -> bool:
        """Whether ``half_width`` uses the weights of the answers."""

    @property
    @abstractmethod
    def missing(self) -> tuple[str, ...]:
        """Why bounds of this kind prove nothing; empty if they do."""

    @property
    @abstractmethod
    def assumptions(self) -> tuple[str, ...]:
        """What the bounds rest on."""

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash((type(self), tuple(sorted(vars(self).items()))))


class FixedBeta(Confidence):
    """Bounds ``mu +- sqrt(beta) * sigma``, as in the paper's experiments: a heuristic.

    With beta = 6 some bound fails in about half of all runs.

    Args:
        beta: BoTorch's convention, the square of the factor on sigma; above 0.

    Raises:
        InputError: if ``beta`` is not above 0.
    """

    def __init__(self, beta: float) -> None:
        self.beta = validation.positive(beta, "beta")

    def multiplier(self, noise_ratio: float, delta: float) -> float:
        """sqrt(beta)."""
        return math.sqrt(self.beta)

    def half_width(self, posterior: Moments, noise_ratio: float, delta: float) -> Tensor:
        """sqrt(beta) * sigma."""
        return math.sqrt(self.beta) * posterior.deviation

    def all_data(
        self, posterior: Moments, noise_ratio: float, gain: float, delta: float
    ) -> tuple[Tensor, str]:
        """sqrt(beta) * sigma."""
        label = f"mean +- sqrt({self.beta:g}) posterior deviations: a heuristic"
        return math.sqrt(self.beta) * posterior.deviation, label

    def on_box(
        self,
        covar_module: Kernel,
        evidence: Data,
        bounds: Tensor,
        discrete: Mapping[int, int],
        rounds: int,
        delta: float,
    ) -> BoxBounds:
        """sqrt(beta) * sigma."""
        return BoxBounds(math.sqrt(self.beta))

    @property
    def needs_weights(self) -> bool:
        """No."""
        return False

    @property
    def missing(self) -> tuple[str, ...]:
        """A fixed multiplier is no confidence bound."""
        return (
            f"{self!r} is a heuristic multiplier, under which some bound fails in about half of "
            "all runs; use RKHSConfidence(norm_bound, noise_std).",
        )

    @property
    def assumptions(self) -> tuple[str, ...]:
        """None: nothing is claimed."""
        return ()

    def __repr__(self) -> str:
        return f"FixedBeta({self.beta:g})"


class RKHSConfidence(Confidence):
    """Valid bounds for a function of bounded RKHS norm (Lemma 1 and Theorem 1).

    Args:
        norm_bound: C_k, a bound on the RKHS norm of f; above 0, in units of the values.
        noise_std: sigma, the sub-Gaussian scale of the noise; above 0, in units of the values.
        tight: use ``C_k b(x) + noise_std ||z(x)|| sqrt(2 log(1 / delta))`` with
            ``b(x)^2 = sigma(x)^2 - z'Dz``, which splits the error into bias and noise; for z and D
            see :mod:`botorch_delay.gp.posterior`. It holds with the same probability as Theorem
            1's ``(C_k + (noise_std / lambda) sqrt(2 log(1 / delta))) sigma(x)``, which
            ``tight=False`` gives, and is never wider.
        uniform: how bounds come to hold at every point of a box; without effect on finitely
            many points. "net": on a net in the kernel's distance, and between its points by
            continuity. "trace": no net, for any kernel; best where the effective dimension is
            small, as with a linear kernel. "theorem2": the paper's Theorem 2, much wider.
        c: for "theorem2", the constant of the paper's continuity assumption: functions of norm
            C are approximated to 1 / t on ``c C^d t^d`` points. Needed unless the kernel is a
            squared exponential or a multiple of one.

    Raises:
        InputError: if a number is not above 0, ``uniform`` is none of the three, or ``c`` is
            given where it has no meaning.
    """

    def __init__(
        self,
        norm_bound: float,
        noise_std: float,
        tight: bool = True,
        *,
        uniform: str = "net",
        c: float | None = None,
    ) -> None:
        self.norm_bound = validation.positive(norm_bound, "norm_bound")
        self.noise_std = validation.positive(noise_std, "noise_std")
        self.tight = bool(tight)
        if uniform not in ("net", "trace", "theorem2"):
            raise InputError(f"uniform must be 'net', 'trace' or 'theorem2', got {uniform!r}.")
        if c is not None and uniform != "theorem2":
            raise InputError(f"c is for uniform='theorem2' only, got uniform={uniform!r}.")
        self.uniform = uniform
        self.c = None if c is None else validation.positive(c, "c")

    def multiplier(self, noise_ratio: float, delta: float) -> float:
        """``C_k + (sigma / lambda) sqrt(2 log(1 / delta))`` (Lemma 1)."""
        return self.norm_bound + self.noise_std * noise_ratio * _tail(delta)

    def half_width(self, posterior: Moments, noise_ratio: float, delta: float) -> Tensor:
        """The half-width of Lemma 1, or the tight one where that is asked for."""
        width = self.multiplier(noise_ratio, delta) * posterior.deviation_at_most
        if self.tight:
            noise = self.noise_std * posterior.noise_norm * _tail(delta)
            width = torch.minimum(width, self.norm_bound * posterior.bias + noise)
        return width + posterior.mean_rounding

    def all_data(
        self, posterior: Moments, noise_ratio: float, gain: float, delta: float
    ) -> tuple[Tensor, str]:
        """The self-normalised bound, uniform over points and time.

        ``(C_k + (sigma / lambda) sqrt(2 (gain + log(1 / delta)))) sigma(x)``, with ``gain``
        0.5 logdet(I + K / lambda^2); it allows points that depend on earlier noise, but not that
        noise decides which answers are there.
        """
        radius = math.sqrt(2.0 * (gain + math.log(1.0 / delta)))
        factor = self.norm_bound + self.noise_std * noise_ratio * radius
        label = (
            f"self-normalised confidence interval, level {1.0 - delta:g}, uniform over points, if "
            "delays and failures do not depend on the noise"
        )
        return factor * posterior.deviation_at_most + posterior.mean_rounding, label

    def on_box(
        self,
        covar_module: Kernel,
        evidence: Data,
        bounds: Tensor,
        discrete: Mapping[int, int],
        rounds: int,
        delta: float,
    ) -> BoxBounds:
        """The half-width of the way that ``uniform`` names.

        Without answers it is ``C_k sqrt(k(x, x))``, which needs no probability.

        Raises:
            InputError: if Theorem 2 lacks its constant ``c``.
            NotSupportedError: if the kernel does not allow this way.
        """
        with torch.no_grad():
            if self.uniform == "trace":
                return by_trace(self, covar_module, evidence, rounds, delta)
            if self.uniform == "theorem2":
                return by_theorem_2(self, covar_module, evidence, bounds, rounds, delta)
            return by_net(self, covar_module, evidence, bounds, discrete, rounds, delta)

    @property
    def needs_weights(self) -> bool:
        """Only in the tight form."""
        return self.tight

    @property
    def missing(self) -> tuple[str, ...]:
        """Nothing."""
        return ()

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Norm bound and noise scale."""
        lines = (
            f"the RKHS norm of f under the given kernel is at most {self.norm_bound:g}",
            f"the noise is sub-Gaussian with scale {self.noise_std:g}, has mean zero, and is "
            "drawn afresh at every evaluation (a seeded objective asked twice is not)",
        )
        if self.c is None:
            return lines
        return (*lines, f"the kernel is as continuous as Theorem 2 wants it, with c = {self.c:g}")

    def __repr__(self) -> str:
        extra = "" if self.uniform == "net" else f", uniform={self.uniform!r}"
        extra += "" if self.c is None else f", c={self.c:g}"
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
    was chosen independently of the noise. For bounds on all of n points at once, divide
    ``delta`` by ``2 n``.

    Args:
        covar_module: the kernel.
        train_X: ``m x d``, the points that were evaluated; m may be 0.
        train_Y: ``m`` or ``m x 1``, their values.
        X: ``n x d``, where the bounds are wanted.
        noise_var: lambda^2, the regularizer, above 0.
        norm_bound: C_k, a bound on the RKHS norm, above 0.
        noise_std: sigma, the sub-Gaussian scale of the noise, above 0.
        delta: failure probability of one side at one point.
        tight: split bias and noise; never wider, equally valid.

    Returns:
        ``(lower, upper)``, each of shape ``n``.

    Raises:
        InputError: if an argument is malformed.
    """
    train_X = validation.matrix(train_X, "train_X", empty=True)
    X = validation.matrix(X, "X", empty=True)
    validation.matches(train_X, "train_X", X)
    train_Y = validation.column(train_Y, "train_Y", train_X)
    probe = X if len(X) else train_X
    if len(probe):
        check_kernel(covar_module, probe)
    noise = validation.noise_variance(noise_var, "noise_var", X)
    delta = validation.probability(delta, "delta")
    confidence = RKHSConfidence(norm_bound, noise_std, tight=tight)
    evidence = Data.single(train_X, train_Y, torch.full_like(train_Y, noise))
    if not len(X):
        return X.new_empty(0), X.new_empty(0)
    posterior = Posterior(covar_module, evidence).at(X, weights=tight)
    half = confidence.half_width(posterior, 1.0 / math.sqrt(noise), delta)
    return posterior.mean - half, posterior.mean + half


def scaled_gain(covar_module: Kernel, evidence: Data) -> float:
    """Information gain ``0.5 logdet(I + D^-1/2 K D^-1/2)`` of the evidence, in nats."""
    if not len(evidence.y):
        return 0.0
    with torch.no_grad():
        weight = evidence.noise_var.rsqrt()
        K = covariance(covar_module, evidence.X, evidence.X)
        # In single precision rounding could take more nats than the small eigenvalues have.
        eigenvalues = torch.linalg.eigvalsh((weight.unsqueeze(-1) * K * weight).double())
    return 0.5 * torch.log1p(eigenvalues.clamp_min(0.0)).sum().item()


def _tail(delta: float) -> float:
    return math.sqrt(2.0 * math.log(1.0 / delta))
