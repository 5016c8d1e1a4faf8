"""Problems with a known answer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from gpytorch.kernels import Kernel
from torch import Tensor
from torch.quasirandom import SobolEngine

from botorch_delay import validation
from botorch_delay.domains.box import BoxDomain
from botorch_delay.domains.domain import Domain
from botorch_delay.domains.finite import FiniteDomain
from botorch_delay.domains.space import Space, as_domain
from botorch_delay.exceptions import InputError, InputTypeError

SPREAD_POINTS = 4096  # points of a box, to estimate the spread of values


class Point(Protocol):
    """Where f is evaluated, such as a trial: ``x`` (``d``), and the row in a finite domain."""

    @property
    def x(self) -> Tensor: ...

    @property
    def index(self) -> int | None: ...


class Problem(ABC):
    """A function f to be maximised, whose value without noise is known wherever it is asked.

    Attributes:
        domain: where it may be asked.
        covar_module: the kernel that methods are told; None where they learn one.
        norm: the RKHS norm of f under that kernel; None if unknown.
        noise_std: standard deviation of the noise.
        highest: the largest value of f without noise.
        lowest: the smallest value, or an upper bound of it.
    """

    domain: Domain
    covar_module: Kernel | None = None
    norm: float | None = None
    noise_std: float
    highest: float
    lowest: float

    @property
    def noise_var(self) -> float:
        """Variance of the noise, in squared units of the values."""
        return self.noise_std**2

    @property
    def model_options(self) -> dict[str, Any]:
        """Kernel and noise as the arguments of an optimizer; empty where they are learned."""
        if self.covar_module is None:
            return {}
        return {"covar_module": self.covar_module, "noise_var": self.noise_var}

    @abstractmethod
    def evaluate_true(self, point: Point) -> float:
        """The value without noise at a point."""

    def observe(self, point: Point, normal: float, uniform: float) -> tuple[float, float | None]:
        """The noisy value of an evaluation, and its duration or None.

        All its randomness is ``normal`` (standard normal) and ``uniform`` (in [0, 1)).
        """
        return self.evaluate_true(point) + self.noise_std * normal, None


class FiniteProblem(Problem):
    """A function known at every point of a finite set, observed with Gaussian noise.

    Args:
        points: ``N x d``, or a finite domain or space with names, logarithms and categories.
        values: f without noise at every point, ``N`` or ``N x 1``.
        noise_std: standard deviation of the noise, at least 0, in units of the values.
        covar_module: a kernel that fits f, if known.
        norm: the RKHS norm of f under that kernel, if known.
    """

    domain: FiniteDomain

    def __init__(
        self,
        points: Tensor | FiniteDomain | Space,
        values: Tensor,
        noise_std: float,
        *,
        covar_module: Kernel | None = None,
        norm: float | None = None,
    ) -> None:
        domain = FiniteDomain(points) if isinstance(points, Tensor) else as_domain(points)
        expected = "N x d numbers, a FiniteDomain, or a space made by grid or arms"
        validation.instance(domain, FiniteDomain, "points", expected)
        assert isinstance(domain, FiniteDomain)
        self.domain = domain
        self.values = validation.column(values, "values", self.points)
        self.noise_std = validation.nonnegative(noise_std, "noise_std")
        self.covar_module = covar_module
        self.norm = norm
        self.highest = self.values.max().item()
        self.lowest = self.values.min().item()

    def evaluate_true(self, point: Point) -> float:
        assert point.index is not None
        return self.values[point.index].item()

    @property
    def points(self) -> Tensor:
        """All points, ``N x d``."""
        return self.domain.points


class TableProblem(FiniteProblem):
    """A table with stored evaluations of every arm; kernels are learned.

    ``stored`` has their values (``N x s``, at least one per arm, padded with nan), ``durations``
    how long each took. An evaluation is one of them, drawn at random; f is their mean.
    """

    def __init__(self, domain: FiniteDomain, stored: Tensor, durations: Tensor) -> None:
        mean = stored.nanmean(dim=1)
        spread = (stored - mean.unsqueeze(1)).square().nanmean().sqrt()
        super().__init__(domain, mean, spread.item())
        self.counts = torch.isfinite(stored).sum(dim=1)
        self.stored = stored
        self.durations = durations

    def observe(self, point: Point, normal: float, uniform: float) -> tuple[float, float | None]:
        assert point.index is not None
        column = int(uniform * int(self.counts[point.index]))
        at = point.index, column
        return self.stored[at].item(), self.durations[at].item()


class BoxProblem(Problem):
    """A function on a box with a known maximum, observed with Gaussian noise; kernels are learned.

    Args:
        domain: the box, or a space that is one.
        function: f without noise, ``n x d`` to ``n``, to be maximised.
        highest: its maximum.
        noise_share: the noise's standard deviation as a share of that of f over the box, at
            least 0.
        spread: the smallest value of f over the box, or an upper bound of it, and the standard
            deviation of f; estimated from 4,096 points if None.
    """

    domain: BoxDomain

    def __init__(
        self,
        domain: BoxDomain | Space,
        function: Callable[[Tensor], Tensor],
        highest: float,
        noise_share: float,
        *,
        spread: tuple[float, float] | None = None,
    ) -> None:
        box = as_domain(domain)
        expected = "a BoxDomain, or a space that is one; FiniteProblem takes lists of points"
        validation.instance(box, BoxDomain, "domain", expected)
        assert isinstance(box, BoxDomain)
        self.domain = box
        self.function = function
        self.highest = validation.real(highest, "highest")
        if spread is None:
            spread = self._spread()
        elif not isinstance(spread, Sequence) or len(spread) != 2:
            raise InputTypeError(
                f"spread must be two numbers, the smallest value of f and its standard deviation, "
                f"got {spread!r}."
            )
        self.lowest, std = (validation.real(number, "each of spread") for number in spread)
        self.noise_std = validation.nonnegative(noise_share, "noise_share") * std

    def _spread(self) -> tuple[float, float]:
        sobol = SobolEngine(self.domain.dim, scramble=True, seed=0)
        unit = sobol.draw(SPREAD_POINTS, dtype=torch.double).to(self.domain.like)
        values = self.function(self.domain.from_unit(unit))
        shape = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
        if shape != (len(unit),) or not bool(values.isfinite().all()):
            got = f"{shape}" if shape != (len(unit),) else "nan or inf"
            raise InputError(
                f"function must return a finite value for each point, n x {self.domain.dim} to n; "
                f"got {got} for n = {len(unit)}."
            )
        if values.max() > self.highest + 1e-6 * values.std():
            raise InputError(
                f"highest must be the maximum of f, got {self.highest}; f reaches "
                f"{values.max().item()}."
            )
        return values.min().item(), values.std().item()

    def evaluate_true(self, point: Point) -> float:
        return self.function(point.x.unsqueeze(0)).item()
