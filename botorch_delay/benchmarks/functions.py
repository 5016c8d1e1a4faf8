"""Draws of Gaussian processes, and BoTorch's test functions on arms and on boxes."""

from __future__ import annotations

from collections.abc import Callable

import torch
from botorch.test_functions.synthetic import Ackley, Branin, Hartmann, Michalewicz
from gpytorch.kernels import MaternKernel, RBFKernel
from torch import Tensor
from torch.quasirandom import SobolEngine

from botorch_delay import validation
from botorch_delay.benchmarks.problems import BoxProblem, FiniteProblem, with_lengthscale
from botorch_delay.domains.box import BoxDomain
from botorch_delay.exceptions import InputError
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
        kernel: "se", "matern52" or "matern12", of variance 1; its lengthscale is 0.15 in two
            columns and 0.3 in four.
        noise_std: standard deviation of the noise, above 0.
        seed: of the draw.
        learner_factor: the lengthscale of the kernel that methods are told, as a multiple of
            the true one.
        dim: columns, 2 or 4.

    Raises:
        InputError: if the kernel is not known, or a number out of its range.
    """
    if dim not in SIDES:
        raise InputError(f"dim must be one of {', '.join(map(str, SIDES))}, got {dim!r}.")
    if kernel not in KERNELS:
        raise InputError(f"kernel must be one of {', '.join(KERNELS)}, got {kernel!r}.")
    noise_std = validation.positive(noise_std, "noise_std")
    factor = validation.positive(learner_factor, "learner_factor")
    generator = torch.Generator().manual_seed(validation.seed(seed))
    points = torch.cartesian_prod(*[torch.linspace(0.0, 1.0, SIDES[dim], dtype=torch.double)] * dim)
    lengthscale = LENGTHSCALE * dim / 2
    normal = torch.randn(len(points), dtype=torch.double, generator=generator)
    matrix = covariance(with_lengthscale(KERNELS[kernel](), lengthscale), points, points)
    values = torch.linalg.cholesky(matrix + JITTER * torch.eye(len(points)).to(matrix)) @ normal
    learner = with_lengthscale(KERNELS[kernel](), factor * lengthscale)
    return FiniteProblem(points, values, noise_std, covar_module=learner)


def function_on_arms(name: str, seed: int = 0) -> FiniteProblem:
    """A test function, negated, on 2,048 Sobol points of its box; kernels are learned.

    Args:
        name: a key of :data:`TEST_FUNCTIONS`.
        seed: takes no part: the points are the same for every seed.

    Raises:
        InputError: if the name is not known.
    """
    function, domain, _ = _test_function(name)
    unit = SobolEngine(domain.dim, scramble=True, seed=0).draw(ARMS, dtype=torch.double)
    points = domain.from_unit(unit)
    values = function(points)
    return FiniteProblem(points, values, NOISE_SHARE * values.std().item())


def function_on_box(name: str, seed: int = 0) -> BoxProblem:
    """A test function, negated, on its whole box; kernels are learned.

    Args:
        name: a key of :data:`TEST_FUNCTIONS`.
        seed: takes no part: the function is the same for every seed.

    Raises:
        InputError: if the name is not known.
    """
    function, domain, highest = _test_function(name)
    return BoxProblem(domain, function, highest, NOISE_SHARE)


def _test_function(name: str) -> tuple[Callable[[Tensor], Tensor], BoxDomain, float]:
    """The function to be maximised, where, and its maximum."""
    if name not in TEST_FUNCTIONS:
        raise InputError(f"name must be one of {', '.join(TEST_FUNCTIONS)}, got {name!r}.")
    function = TEST_FUNCTIONS[name]()
    bounds = function.bounds
    assert isinstance(bounds, Tensor)

    def value(X: Tensor) -> Tensor:
        with torch.no_grad():
            return function(X)

    return value, BoxDomain(bounds), function.optimal_value
