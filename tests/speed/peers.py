"""Inputs of the cases, and the peers: BoTorch's models, and the plain forms of our own work."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import botorch
import gpytorch
import torch
from botorch.models import SingleTaskGP
from gpytorch.kernels import Kernel, RBFKernel
from gpytorch.means import ZeroMean
from torch import Tensor

from botorch_delay.design.ascent import lowest_of_largest
from botorch_delay.gp.kernels import covariance, prior_variance

NOISE_VAR = 4e-4


def squared_exponential(lengthscale: float, like: Tensor) -> Kernel:
    """A fixed kernel with the dtype and device of ``like``."""
    kernel = RBFKernel().to(like)
    kernel.lengthscale = torch.as_tensor(lengthscale).to(like)
    return kernel.requires_grad_(False)


def uniform(n: int, d: int, seed: int = 0) -> Tensor:
    """Random points of the unit cube in double, ``n x d``."""
    return torch.rand(n, d, dtype=torch.double, generator=torch.Generator().manual_seed(seed))


def wave(X: Tensor) -> Tensor:
    """A smooth function with values of order 1: ``n x d`` to ``n``."""
    return (6.0 * X).sin().sum(dim=-1)


def single_task_gp(
    kernel: Kernel, X: Tensor, Y: Tensor, noise_var: float = NOISE_VAR
) -> SingleTaskGP:
    """BoTorch's model with fixed hyperparameters, no prior mean and no transform.

    Args:
        kernel: fixed.
        X: ``n x d``.
        Y: ``n``.
        noise_var: lambda^2.
    """
    values = Y.unsqueeze(-1)
    noise = torch.full_like(values, noise_var)
    model = SingleTaskGP(
        X, values, noise, covar_module=kernel, mean_module=ZeroMean(), outcome_transform=None
    )
    return model.eval()


@contextmanager
def botorch_at_its_best() -> Iterator[None]:
    """No gradients, no checks of inputs, and exact factors at every size of these cases."""
    with (
        torch.no_grad(),
        botorch.settings.validate_input_scaling(False),
        gpytorch.settings.max_cholesky_size(10_000),
    ):
        yield


def plain_design(
    kernel: Kernel, points: Tensor, noise_var: float, n: int
) -> tuple[list[int], Tensor]:
    """The incremental Cholesky factorization with one row of all candidates per pick.

    Returns:
        The picks, and the variance of every candidate given them, ``N``.
    """
    variance, W = prior_variance(kernel, points).clone(), points.new_empty(n, len(points))
    picks = []
    for k in range(n):
        pick = lowest_of_largest(variance)
        row = covariance(kernel, points[pick : pick + 1], points).squeeze(0)
        row.addmv_(W[:k].mT, W[:k, pick].clone(), alpha=-1.0)
        W[k] = row.div_((variance[pick] + noise_var).sqrt())
        variance.addcmul_(row, row, value=-1.0).clamp_min_(0.0)
        picks.append(pick)
    return picks, variance
