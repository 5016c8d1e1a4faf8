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
from dataclasses import dataclass
from typing import Any

import torch
from gpytorch.kernels import Kernel, MaternKernel, RBFKernel, ScaleKernel
from torch import Tensor

from botorch_delay import validation
from botorch_delay.confidence.nets import Net, largest_deviation, nets
from botorch_delay.exceptions import InputError, NotSupportedError
from botorch_delay.gp.data import Data
from botorch_delay.gp.kernels import check_kernel, covariance
from botorch_delay.gp.posterior import Moments, Posterior, factorize


def side_delta(delta: float, rounds: int, points: int) -> float:
    """``delta / (4 R N)``, the share of one side of one bound at one point in one round.

    Two sides, N points and R rounds use delta / 2; the other half is for the delays.
    """
    return delta / (4.0 * rounds * points)


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
        # The differences under the roots cancel; what rounding may have taken is given back.
        deviation = (posterior.variance + posterior.rounding).sqrt()
        width = self.multiplier * deviation + self.slack
        if self.norm_bound is not None:
            if self.tight_tail is None:
                noise = (self.multiplier - self.norm_bound) * deviation
            else:
                noise = self.tight_tail * posterior.noise_norm
            bias = self.norm_bound * _bias(posterior)
            width = torch.minimum(width, bias + noise + self.tight_slack)
        return width + posterior.mean_rounding


@dataclass(frozen=True)
class BudgetTerms:
    """What a regret budget claims: regret of at most ``max(F B, B') + W + E``.

    All but F in units of the values; W and E are of the run so far.

    Attributes:
        factor: F.
        plan: B, what BPE-Delay's own regret bound is for its plan on the whole set, no wait in it.
        bound: ``max(F B, B')``, where B' is B with the bounds' smaller share of delta.
        waits: W, the bills of asks while a round waited, or of points again, as priced when asked.
        excess: E, what rounds on the active set have come to beyond the plan.
        trivial: D T, what any asks can cost at most.
    """

    factor: float
    plan: float
    bound: float
    waits: float
    excess: float
    trivial: float

    @property
    def vacuous_from(self) -> float:
        """D T / B: from this factor on any asks whatever keep the bound."""
        return self.trivial / self.plan


@dataclass(frozen=True)
class Guarantee:
    """What is claimed for a configuration and its run so far.

    Once a claim has ended it stays so, whatever comes later, in the optimizer and in what is saved
    of it from then on.

    Attributes:
        holds: whether a regret bound is claimed, with probability 1 - delta: ``factor`` times that
            of Theorem 1 plus what waits cost, or with a budget ``budget.bound`` plus its W and E.
        delta: that probability's complement.
        assumptions: what it rests on; to be judged by the user.
        missing: why not more is claimed; empty if and only if ``holds``.
        factor: how many times the bound of Theorem 1 the claimed regret bound is, without waits.
        waits: without a delay law, how many asks so far were made while a round waited for its last
            design points, or of design points again. They come on top of Theorem 1's bound.
        waits_cost: what these can have cost at most, in units of the values; None where no valid
            bounds say so.
        norm_at_least: the largest RKHS norm that the answers have called for so far, with
            probability 1 - delta, in units of the values; None without valid bounds.
        budget: the terms of a regret budget, where there is one.
    """

    holds: bool
    delta: float
    assumptions: tuple[str, ...]
    missing: tuple[str, ...]
    factor: float = 1.0
    waits: int = 0
    waits_cost: float | None = None
    norm_at_least: float | None = None
    budget: BudgetTerms | None = None

    def __str__(self) -> str:
        times = "" if self.factor == 1.0 else f", at {self.factor:.3g} times the regret bound"
        if self.budget is not None:
            total = self.budget.bound + self.budget.waits + self.budget.excess
            times += f", {total:.6g} for the run so far"
        elif self.waits and self.waits_cost is not None:
            times += (
                f", plus at most {self.waits_cost:.4g} for the {self.waits} asks while rounds "
                "waited"
            )
        head = (
            f"Guaranteed with probability {1.0 - self.delta:g}{times}, assuming:"
            if self.holds
            else "No guarantee of the regret bound:"
        )
        lines = self.assumptions if self.holds else self.missing
        return "\n".join([head, *(f"- {line}" for line in lines)])


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
        tight: use ``C_k sqrt(sigma^2 - z'Dz) + sigma ||z|| sqrt(2 log(1 / delta))``, which
            splits the error into bias and noise. It holds with the same probability as
            ``(C_k + (sigma / lambda) sqrt(2 log(1 / delta))) sigma(x)`` and is never wider.
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
        # The differences under the roots cancel; what rounding may have taken is given back.
        deviation = (posterior.variance + posterior.rounding).sqrt()
        width = self.multiplier(noise_ratio, delta) * deviation
        if self.tight:
            noise = self.noise_std * posterior.noise_norm * _tail(delta)
            width = torch.minimum(width, self.norm_bound * _bias(posterior) + noise)
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
        # As in half_width: what rounding may have taken is given back.
        deviation = (posterior.variance + posterior.rounding).sqrt()
        return factor * deviation + posterior.mean_rounding, label

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
                return self._on_box_by_trace(covar_module, evidence, rounds, delta)
            if self.uniform == "theorem2":
                return self._on_box_by_theorem_2(covar_module, evidence, bounds, rounds, delta)
            return self._on_box_by_net(covar_module, evidence, bounds, discrete, rounds, delta)

    def _on_box_by_net(
        self,
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
        top = largest_deviation(covar_module, bounds)
        if not len(evidence.y):
            return BoxBounds(self.norm_bound)
        mean_norm, smallest = _norm_and_deviation(covar_module, evidence)
        noise = self.noise_std * evidence.spread_ratio**0.5
        level = math.log(4.0 * rounds / delta)

        def tail(net: Net) -> float:
            return math.sqrt(2.0 * (net.log_size + level))

        def cost(net: Net) -> float:
            scaled = noise * tail(net)
            return (self.norm_bound + scaled) * smallest + (3 * self.norm_bound + scaled) * net.eps

        choices = nets(covar_module, bounds, discrete, [top * 2 ** (-j / 2) for j in range(81)])
        net = min(choices, key=cost)
        slopes = 2.0 * self.norm_bound + mean_norm
        return BoxBounds(
            multiplier=self.norm_bound + noise * tail(net),
            slack=(slopes + noise * tail(net)) * net.eps,
            norm_bound=self.norm_bound if self.tight else None,
            tight_tail=self.noise_std * tail(net),
            tight_slack=(slopes + 0.5 * noise * tail(net)) * net.eps,
            net=net,
        )

    def _on_box_by_trace(
        self, covar_module: Kernel, evidence: Data, rounds: int, delta: float
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
            return BoxBounds(self.norm_bound)
        K = covariance(covar_module, evidence.X, evidence.X)
        _, variance = factorize(K, evidence.noise_var)  # as the posterior has it
        weight = variance.rsqrt()
        scaled = torch.linalg.eigvalsh((weight.unsqueeze(-1) * K * weight).double()).clamp_min(0.0)
        shares = scaled / (1.0 + scaled)
        level = math.log(2.0 * rounds / delta)
        square = shares.sum() + 2.0 * (level * shares.square().sum()).sqrt() + 2.0 * level
        noise = self.noise_std * evidence.spread_ratio**0.5
        return BoxBounds(
            multiplier=self.norm_bound + noise * math.sqrt(square.item()),
            norm_bound=self.norm_bound if self.tight else None,
        )

    def _on_box_by_theorem_2(
        self, covar_module: Kernel, evidence: Data, bounds: Tensor, rounds: int, delta: float
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
        root = _continuity(covar_module, bounds) if self.c is None else self.c ** (1.0 / d)
        top = largest_deviation(covar_module, bounds)
        if not len(evidence.y):
            return BoxBounds(self.norm_bound)
        t = (1.0 / evidence.spread).sum().item()
        side = delta / (4.0 * rounds)
        ratio = evidence.spread_ratio**0.5
        largest = max(self.noise_std, top**2) * math.sqrt(t) * ratio
        norm = self.norm_bound + largest * math.sqrt(2.0 * math.log(4.0 * t / side))
        points = d * math.log(math.ceil(root * max(norm, top) * t))
        tail = math.sqrt(2.0 * (points + math.log(2.0 / side)))
        beta = self.norm_bound + self.noise_std * ratio * tail
        return BoxBounds(multiplier=beta, slack=2.0 / t + 2.0 * beta / math.sqrt(t))

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


def _bias(posterior: Moments) -> Tensor:
    """The largest bias per unit norm, ``n``, with what rounding may have taken."""
    square = (posterior.variance - posterior.penalty).clamp_min(0.0) + posterior.rounding
    return square.sqrt()


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
