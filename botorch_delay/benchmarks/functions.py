"""Draws of Gaussian processes, and BoTorch's test functions on arms and on boxes."""

from __future__ import annotations

import torch
from botorch.test_functions.synthetic import Ackley, Branin, Hartmann, Michalewicz
from gpytorch.kernels import MaternKernel, RBFKernel
from torch import Tensor
from torch.quasirandom import SobolEngine

from botorch_delay.benchmarks.problems import BoxProblem, FiniteProblem, with_lengthscale
from botorch_delay.domains.box import BoxDomain
from botorch_delay.gp.kernels import covariance

SIDES = {2: 30, 4: 6}  # points of a grid along each column, by their number
LENGTHSCALE = 0.15  # in two columns; in more it grows in proportion
ARMS = 2048
# Noise of the test functions, as a share of the standard deviation of their values.
NOISE_SHARE = 0.05
# Added to the diagonal of the covariance that is drawn from: its root is else not defined.
JITTER = 1e-9

KERNELS = {
    "se": RBFKernel,
    "matern52": lambda: MaternKernel(nu=2.5),
    "matern12": lambda: MaternKernel(nu=0.5),
}
TEST_FUNCTIONS = {
    "branin": lambda: Branin(negate=True, dtype=torch.double),
    "hartmann6": lambda: Hartmann(dim=6, negate=True, dtype=torch.double),
    "ackley5": lambda: Ackley(dim=5, negate=True, dtype=torch.double),
    "michalewicz5": lambda: Michalewicz(dim=5, negate=True, dtype=torch.double),
}


def gp_draw(
    kernel: str, noise_std: float, seed: int, *, learner_factor: float = 1.0, dim: int = 2
) -> FiniteProblem:
    """A function drawn from a Gaussian process on a grid: 30 x 30 of the unit square, or 6^4.

    Args:
        kernel: a key of :data:`KERNELS`, of variance 1; its lengthscale is 0.15 in two columns and
            0.3 in four.
        noise_std: standard deviation of the noise.
        seed: of the draw.
        learner_factor: the lengthscale of the kernel that methods are told, as a multiple of
            the true one.
        dim: columns, 2 or 4.
    """
    points = torch.cartesian_prod(*[torch.linspace(0.0, 1.0, SIDES[dim], dtype=torch.double)] * dim)
    lengthscale = LENGTHSCALE * dim / 2
    generator = torch.Generator().manual_seed(seed)
    normal = torch.randn(len(points), dtype=torch.double, generator=generator)
    matrix = covariance(with_lengthscale(KERNELS[kernel](), lengthscale), points, points)
    values = torch.linalg.cholesky(matrix + JITTER * torch.eye(len(points)).to(matrix)) @ normal
    learner = with_lengthscale(KERNELS[kernel](), learner_factor * lengthscale)
    return FiniteProblem(points, values, noise_std, covar_module=learner)


def function_on_arms(name: str, seed: int = 0) -> FiniteProblem:
    """A test function, negated, on 2,048 Sobol points of its box, the same for every seed."""
    box = function_on_box(name)
    unit = SobolEngine(box.domain.dim, scramble=True, seed=0).draw(ARMS, dtype=torch.double)
    points = box.domain.from_unit(unit)
    values = box.function(points)
    return FiniteProblem(points, values, NOISE_SHARE * values.std().item())


def function_on_box(name: str, seed: int = 0) -> BoxProblem:
    """A test function, negated, on its whole box, the same for every seed; kernels are learned."""
    function = TEST_FUNCTIONS[name]()
    assert isinstance(function.bounds, Tensor)

    def value(X: Tensor) -> Tensor:
        with torch.no_grad():
            return function(X)

    return BoxProblem(BoxDomain(function.bounds), value, function.optimal_value, NOISE_SHARE)
