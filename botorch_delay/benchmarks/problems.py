"""Problems with a known answer."""

from __future__ import annotations

import torch
from gpytorch.kernels import Kernel, RBFKernel
from torch import Tensor

from botorch_delay import checks
from botorch_delay.domains import FiniteDomain
from botorch_delay.kernels import covariance


class FiniteProblem:
    """A function known at every point of a finite set, observed with Gaussian noise.

    Args:
        points: ``N x d``.
        values: f without noise at every point, ``N`` or ``N x 1``.
        noise_std: standard deviation of the noise, at least 0, in units of the values.
        covar_module: a kernel that fits f, if one is known.
        norm: the RKHS norm of f under that kernel, if it is known.

    Raises:
        InputError: if an argument is malformed.
    """

    def __init__(
        self,
        points: Tensor,
        values: Tensor,
        noise_std: float,
        *,
        covar_module: Kernel | None = None,
        norm: float | None = None,
    ) -> None:
        self.domain = FiniteDomain(points)
        self.values = checks.column(values, "values", self.domain.points)
        self.noise_std = checks.nonnegative(noise_std, "noise_std")
        self.covar_module = covar_module
        self.norm = norm

    @property
    def points(self) -> Tensor:
        """All points, ``N x d``."""
        return self.domain.points

    @property
    def noise_var(self) -> float:
        """Variance of the noise, in squared units of the values."""
        return self.noise_std**2

    def regret(self, maximize: bool = True) -> Tensor:
        """How far each point is from the best one, ``N``, at least 0."""
        if maximize:
            return self.values.max() - self.values
        return self.values - self.values.min()


def paper_problem(
    lengthscale: float = 0.8, seed: int = 0, *, side: int = 50, noise_std: float = 0.02
) -> FiniteProblem:
    """The paper's recipe for f1 (lengthscale 0.8) and f2 (lengthscale 1.0).

    A Gaussian process with a squared exponential kernel is drawn on a 5 x 5 grid over
    [-5, 5]^2 and interpolated, which gives a function of known RKHS norm; it is played on a
    uniform ``side x side`` grid.

    Args:
        lengthscale: of the kernel.
        seed: of the draw.
        side: points per axis of the action set, at least 2.
        noise_std: standard deviation of the noise.

    Raises:
        InputError: if an argument is out of its range.
    """
    lengthscale = checks.positive(lengthscale, "lengthscale")
    side = checks.whole(side, "side", 2)
    generator = torch.Generator().manual_seed(checks.seed(seed))
    kernel = RBFKernel().double()
    kernel.lengthscale = torch.tensor(lengthscale, dtype=torch.double)
    kernel.requires_grad_(False)
    knots, points = _grid(5), _grid(side)
    factor = torch.linalg.cholesky(covariance(kernel, knots, knots))
    normal = torch.randn(len(knots), 1, dtype=torch.double, generator=generator)
    # The draw is v = L u; its interpolant k(x, Z) K^-1 v = k(x, Z) L^-T u has norm ||u||.
    weights = torch.linalg.solve_triangular(factor.mT, normal, upper=True)
    values = (covariance(kernel, points, knots) @ weights).squeeze(-1)
    return FiniteProblem(points, values, noise_std, covar_module=kernel, norm=normal.norm().item())


def _grid(side: int) -> Tensor:
    axis = torch.linspace(-5.0, 5.0, side, dtype=torch.double)
    return torch.cartesian_prod(axis, axis)
