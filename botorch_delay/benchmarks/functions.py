"""Draws of Gaussian processes, and test functions on arms and on boxes."""

from __future__ import annotations

from collections.abc import Callable

import torch
from botorch.test_functions.synthetic import (
    Ackley,
    Branin,
    Hartmann,
    Michalewicz,
    SyntheticTestFunction,
)
from gpytorch.kernels import Kernel, MaternKernel, RBFKernel
from torch import Tensor
from torch.quasirandom import SobolEngine

from botorch_delay import validation
from botorch_delay.benchmarks.problems import BoxProblem, FiniteProblem
from botorch_delay.domains.box import BoxDomain
from botorch_delay.domains.finite import FiniteDomain
from botorch_delay.exceptions import InputError
from botorch_delay.gp.kernels import covariance

SIDES = {2: 30, 4: 6}  # points of a grid along each column, by their number
LENGTHSCALE = 0.15  # in two columns; in more it grows in proportion
ARMS = 2048
# Noise of the test functions, as a share of the standard deviation of their values.
NOISE_SHARE = 0.05
# Added to the diagonal of the covariance that is drawn from: its root is else not defined.
JITTER = 1e-9

SMOOTHNESS = {"se": None, "matern52": 2.5, "matern12": 0.5}
TEST_FUNCTIONS = ("branin", "branin-mixed", "hartmann6", "ackley5", "michalewicz5")


def gp_draw(
    kernel: str, noise_std: float, seed: int, *, learner_factor: float = 1.0, dim: int = 2
) -> FiniteProblem:
    """A function drawn from a Gaussian process on a grid: 30 x 30 of the unit square, or 6^4.

    Args:
        kernel: "se", "matern52" or "matern12", of variance 1; its lengthscale is 0.15 in two
            columns and 0.3 in four.
        noise_std: standard deviation of the noise, above 0.
        seed: of the draw.
        learner_factor: the lengthscale of the kernel that methods are given, as a multiple of
            the true one.
        dim: columns, 2 or 4.

    Raises:
        InputError: if the kernel is not known, or a number out of its range.
    """
    if dim not in SIDES:
        raise InputError(f"dim must be one of {', '.join(map(str, SIDES))}, got {dim!r}.")
    if kernel not in SMOOTHNESS:
        raise InputError(f"kernel must be one of {', '.join(SMOOTHNESS)}, got {kernel!r}.")
    noise_std = validation.positive(noise_std, "noise_std")
    factor = validation.positive(learner_factor, "learner_factor")
    generator = torch.Generator().manual_seed(validation.seed(seed))
    points = torch.cartesian_prod(*[torch.linspace(0.0, 1.0, SIDES[dim], dtype=torch.double)] * dim)
    lengthscale = LENGTHSCALE * dim / 2
    normal = torch.randn(len(points), dtype=torch.double, generator=generator)
    matrix = covariance(_kernel(kernel, lengthscale), points, points)
    values = torch.linalg.cholesky(matrix + JITTER * torch.eye(len(points)).to(matrix)) @ normal
    learner = _kernel(kernel, factor * lengthscale)
    return FiniteProblem(points, values, noise_std, covar_module=learner)


def _kernel(name: str, lengthscale: float) -> Kernel:
    smoothness = SMOOTHNESS[name]
    kernel = RBFKernel() if smoothness is None else MaternKernel(nu=smoothness)
    kernel = kernel.double()
    kernel.lengthscale = torch.tensor(lengthscale, dtype=torch.double)
    return kernel.requires_grad_(False)


def function_on_arms(name: str, seed: int = 0) -> FiniteProblem:
    """A test function, negated, on up to 2,048 Sobol points of its box; kernels are learned.

    Args:
        name: one of :data:`TEST_FUNCTIONS`.
        seed: takes no part: the points are the same for every seed.

    Raises:
        InputError: if the name is not known.
    """
    function, domain, _ = _test_function(name)
    unit = SobolEngine(domain.dim, scramble=True, seed=0).draw(ARMS, dtype=torch.double)
    points = torch.unique(domain.from_unit(unit), dim=0) if domain.lists else domain.from_unit(unit)
    values = function(points)
    arms = FiniteDomain(points, cat_dims=sorted(domain.cat_dims))
    return FiniteProblem(arms, values, NOISE_SHARE * values.std().item())


def function_on_box(name: str, seed: int = 0) -> BoxProblem:
    """A test function, negated, on its whole box; kernels are learned.

    Args:
        name: one of :data:`TEST_FUNCTIONS`.
        seed: takes no part: the function is the same for every seed.

    Raises:
        InputError: if the name is not known.
    """
    function, domain, highest = _test_function(name)
    return BoxProblem(domain, function, highest, NOISE_SHARE)


def _test_function(name: str) -> tuple[Callable[[Tensor], Tensor], BoxDomain, float]:
    """The function to be maximised, where, and its maximum."""
    made: dict[str, Callable[[], SyntheticTestFunction]] = {
        "branin": lambda: Branin(negate=True, dtype=torch.double),
        "branin-mixed": lambda: Branin(negate=True, dtype=torch.double),
        "hartmann6": lambda: Hartmann(dim=6, negate=True, dtype=torch.double),
        "ackley5": lambda: Ackley(dim=5, negate=True, dtype=torch.double),
        "michalewicz5": lambda: Michalewicz(dim=5, negate=True, dtype=torch.double),
    }
    if name not in made:
        raise InputError(f"name must be one of {', '.join(TEST_FUNCTIONS)}, got {name!r}.")
    function = made[name]()
    bounds = function.bounds
    assert isinstance(bounds, Tensor)

    def value(X: Tensor) -> Tensor:
        with torch.no_grad():
            return function(X)

    if name != "branin-mixed":
        return value, BoxDomain(bounds), function.optimal_value
    # The first column on a grid, and a third one that names categories, each with a penalty.
    low, high = bounds[0, 0].item(), bounds[1, 0].item()
    grid = torch.linspace(low, high, 16, dtype=torch.double)
    penalty = torch.tensor([0.0, 1.0, 3.0], dtype=torch.double)
    box = BoxDomain(
        torch.cat([bounds, bounds.new_tensor([[0.0], [2.0]])], dim=1),
        discrete_dims={0: grid.tolist()},
        cat_dims={2: [0, 1, 2]},
    )
    # The maximum on the grid: the best second coordinate of each of its values, finely searched.
    fine = torch.linspace(bounds[0, 1].item(), bounds[1, 1].item(), 150_001, dtype=torch.double)
    highest = max(value(torch.stack([x.expand_as(fine), fine], dim=1)).max().item() for x in grid)

    def mixed(X: Tensor) -> Tensor:
        return value(X[:, :2]) - penalty[X[:, 2].long()]

    return mixed, box, highest
