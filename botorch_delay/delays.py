"""Delay laws: how many further asks pass before an answer arrives.

Delays are whole numbers of steps; one ask is one step. The answer of the point asked at
step ``s`` with delay ``tau`` can be used by every decision taken after step ``s + tau``.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from scipy.special import pdtr, pdtrc
from torch import Generator, Tensor

from botorch_delay import validation
from botorch_delay.exceptions import InputError, InputTypeError, NotSupportedError

MOST_STEPS = 2.0**53  # in steps; beyond this, floats skip whole numbers


class DelayLaw:
    """A distribution of delays in steps, the base of every law.

    A law of your own needs ``mean``, ``sample`` and ``quantile``; ``upper_bound`` follows from
    these. A law that has only an ``upper_bound``, such as a family of laws, cannot be simulated.

    Attributes:
        mean: the expected delay E[tau], in steps.
    """

    mean: float

    def sample(self, n: int, generator: Generator) -> Tensor:
        """Draw independent delays: an int64 tensor ``n``, in steps, on the generator's device.

        Raises:
            NotSupportedError: if the law is not known well enough.
        """
        raise NotSupportedError(
            f"{self!r} is a family of laws and cannot be sampled; "
            "simulate with one law of it, for instance PoissonDelay."
        )

    def quantile(self, p: float) -> float:
        """The smallest whole ``u`` with ``P(tau <= u) >= p``, in steps.

        Raises:
            NotSupportedError: if the law is not known well enough.
        """
        has_bound = type(self).upper_bound is not DelayLaw.upper_bound
        use = "use upper_bound(horizon, delta)" if has_bound else "define quantile, or upper_bound"
        raise NotSupportedError(f"{self!r} has no quantile; {use}.")

    def upper_bound(self, horizon: int, delta: float) -> float:
        """The bound ``u_T(delta)`` in steps, which no delay exceeds with probability 1 - delta / 2.

        For ``horizon`` delays it is the smallest ``u`` with ``horizon * P(tau > u) <= delta / 2``,
        a union bound; the other half of ``delta`` is for the confidence bounds.
        """
        horizon = validation.whole(horizon, "horizon", 1)
        delta = validation.probability(delta, "delta")
        bound = self._upper_quantile(delta / (2.0 * horizon))
        return validation.nonnegative(bound, f"{self!r}.quantile")

    def _upper_quantile(self, tail: float) -> float:
        """The smallest whole ``u`` with ``P(tau > u) <= tail``."""
        if 1.0 - tail == 1.0:
            raise InputError(
                f"quantile cannot tell a probability of {tail:.0e} from 0; give {self!r} an "
                "upper_bound of its own, or use a larger delta."
            )
        return self.quantile(1.0 - tail)


@dataclass(frozen=True)
class ConstantDelay(DelayLaw):
    """Every answer takes the same number of steps.

    Args:
        steps: a whole number of at least 0.

    Example:
        >>> ConstantDelay(5).upper_bound(horizon=100, delta=0.1)
        5.0
    """

    steps: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "steps", validation.whole(self.steps, "steps", 0))
        object.__setattr__(self, "mean", float(self.steps))

    def sample(self, n: int, generator: Generator) -> Tensor:
        return torch.full((_checked(n, generator),), self.steps, device=generator.device)

    def quantile(self, p: float) -> float:
        validation.probability(p, "p")
        return self.mean

    def _upper_quantile(self, tail: float) -> float:
        return self.mean


class NoDelay(ConstantDelay):
    """Every answer is there before the next ask."""

    def __init__(self) -> None:
        super().__init__(0)

    def __repr__(self) -> str:
        return "NoDelay()"


@dataclass(frozen=True)
class PoissonDelay(DelayLaw):
    """Poisson delays, the law of the paper's experiments.

    Its u_T is the exact quantile, not the paper's psi; for that see :class:`SubExponentialDelay`.

    Args:
        mean: the expected delay, in steps, from 0 to 2^53.

    Example:
        >>> PoissonDelay(50.0).upper_bound(horizon=1000, delta=0.1)
        80.0
    """

    mean: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "mean", _steps(self.mean, "mean"))

    def sample(self, n: int, generator: Generator) -> Tensor:
        n = _checked(n, generator)
        rates = torch.full((n,), self.mean, dtype=torch.double, device=generator.device)
        return torch.poisson(rates, generator=generator).long()

    def quantile(self, p: float) -> float:
        p = validation.probability(p, "p")
        return self._least(lambda u: pdtr(u, self.mean) >= p)

    def _upper_quantile(self, tail: float) -> float:
        # The survival function pdtrc stays accurate where 1 - tail rounds to 1.
        return self._least(lambda u: pdtrc(u, self.mean) <= tail)

    def _least(self, holds: Callable[[int], bool]) -> float:
        """The smallest ``u`` with ``holds(u)``; beyond the range, tails are below 1e-324."""
        return float(bisect_left(range(int(2.0 * self.mean) + 2_500), True, key=holds))


@dataclass(frozen=True)
class GeometricDelay(DelayLaw):
    """Geometric delays on 0, 1, 2, ...: ``P(tau > u) = (1 - p)^(u + 1)``, ``p = 1 / (1 + mean)``.

    Args:
        mean: the expected delay, in steps, from 0 to 2^53.

    Example:
        >>> GeometricDelay(mean=1.0).quantile(0.9)
        3.0
    """

    mean: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "mean", _steps(self.mean, "mean"))

    def sample(self, n: int, generator: Generator) -> Tensor:
        n = _checked(n, generator)
        uniform = torch.rand(n, generator=generator, dtype=torch.double, device=generator.device)
        # By the inverse cdf, as P(tau >= u) = (1 - p)^u; log1p is accurate near 0.
        return (torch.log1p(-uniform) / self._log_survival).floor().long()

    def quantile(self, p: float) -> float:
        return self._upper_quantile(1.0 - validation.probability(p, "p"))

    def _upper_quantile(self, tail: float) -> float:
        # P(tau > u) <= tail  <=>  u + 1 >= log(tail) / log(1 - p); the factor allows for rounding.
        steps = math.log(tail) / self._log_survival
        return float(max(math.ceil(steps * (1.0 - 1e-14)) - 1, 0))

    @property
    def _log_survival(self) -> float:
        """``log(1 - p)``."""
        return -math.log1p(1.0 / self.mean) if self.mean else -math.inf


@dataclass(frozen=True)
class SubExponentialDelay(DelayLaw):
    """The paper's Assumption 3.3: ``tau - E[tau]`` is sub-exponential with ``(xi, b)``.

    It is a family of laws: it bounds delays and cannot be sampled.

    Args:
        mean: the expected delay E[tau], in steps, from 0 to 2^53.
        xi: the scale xi, in steps, above 0, at most 2^53.
        b: the tail parameter b, in steps, above 0, at most 2^53.
        paper_min: use the minimum that the paper prints for psi, to reproduce its figures. It is a
            misprint: inverting the tail ``exp(-min(x^2 / (2 xi^2), x / (2 b)))`` gives the maximum.
            With the minimum, delays exceed the bound far more often than promised.

    Example:
        >>> law = SubExponentialDelay(mean=10.0, xi=9.0, b=1.0)
        >>> round(law.upper_bound(horizon=300, delta=0.1), 6)
        48.405816
    """

    mean: float
    xi: float
    b: float
    paper_min: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "mean", _steps(self.mean, "mean"))
        for name in ("xi", "b"):
            steps = _steps(getattr(self, name), name)
            object.__setattr__(self, name, validation.positive(steps, name))
        validation.flag(self.paper_min, "paper_min")

    def upper_bound(self, horizon: int, delta: float) -> float:
        """``u_T(delta) = E[tau] + psi_T(delta / 2)`` of Section 5, in steps."""
        horizon = validation.whole(horizon, "horizon", 1)
        delta = validation.probability(delta, "delta")
        log_term = math.log(3.0 * horizon / delta)  # log(3 t / (2 d)), d = delta / 2
        gaussian = math.sqrt(2.0 * self.xi**2 * log_term)
        exponential = 2.0 * self.b * log_term
        psi = min(gaussian, exponential) if self.paper_min else max(gaussian, exponential)
        return self.mean + psi


def _steps(value: Any, name: str) -> float:
    """``value`` as a number of steps, whole or not, from 0 to 2^53."""
    steps = validation.nonnegative(value, name)
    if steps > MOST_STEPS:
        raise InputError(f"{name} must be at most 2^53 steps, got {steps:g}.")
    return steps


def _checked(n: Any, generator: Any) -> int:
    """Check both arguments of ``sample``; returns ``n``, how many delays to draw."""
    validation.instance(generator, Generator, "generator", "a torch.Generator")
    return validation.whole(n, "n", 0)


def check_delays(delays: Tensor, n: int, name: str = "delays") -> Tensor:
    """``delays`` as an int64 tensor ``n``; InputError unless all are whole and at least 0."""
    if not isinstance(delays, Tensor) or delays.is_complex():
        kind = delays.dtype if isinstance(delays, Tensor) else type(delays).__name__
        raise InputTypeError(f"{name} must be a tensor of real numbers, got {kind}.")
    if delays.shape != (n,):
        raise InputError(f"{name} must have shape {(n,)}, got {tuple(delays.shape)}.")
    whole = torch.isfinite(delays) & (delays >= 0) & (delays == delays.long())
    if not whole.all():
        step = int(whole.int().argmin())
        raise InputError(
            f"{name} must be whole numbers of steps, each at least 0; "
            f"number {step + 1} is {delays[step].item()}."
        )
    return delays.long()
