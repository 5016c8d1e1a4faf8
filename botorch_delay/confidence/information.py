"""Information gain and effective dimension of a set of points (paper, Section 2)."""

from __future__ import annotations

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from botorch_delay import validation
from botorch_delay.gp.kernels import check_kernel, covariance


def information_gain(covar_module: Kernel, X: Tensor, noise_var: float) -> float:
    """Mutual information ``I(y; f) = 0.5 logdet(I + K / lambda^2)`` in nats.

    Args:
        covar_module: the kernel.
        X: ``n x d`` points; a point that is evaluated twice stands in it twice.
        noise_var: lambda^2, above 0.

    Raises:
        InputError: if an argument is malformed.
    """
    eigenvalues, noise = _spectrum(covar_module, X, noise_var)
    return 0.5 * torch.log1p(eigenvalues / noise).sum().item()


def effective_dimension(covar_module: Kernel, X: Tensor, noise_var: float) -> float:
    """Effective dimension ``tr(K (K + lambda^2 I)^-1)``, at most twice the information gain.

    The paper states that it is at most the information gain itself, which is false: one
    point with ``k(x, x) / lambda^2 = 1`` has dimension 0.5 and gain 0.35.

    Args:
        covar_module: the kernel.
        X: ``n x d`` points.
        noise_var: lambda^2, above 0.

    Raises:
        InputError: if an argument is malformed.
    """
    eigenvalues, noise = _spectrum(covar_module, X, noise_var)
    return (eigenvalues / (eigenvalues + noise)).sum().item()


def _spectrum(covar_module: Kernel, X: Tensor, noise_var: float) -> tuple[Tensor, float]:
    X = validation.matrix(X, "X")
    noise = validation.noise_variance(noise_var, "noise_var", X)
    check_kernel(covar_module, X)
    with torch.no_grad():
        eigenvalues = torch.linalg.eigvalsh(covariance(covar_module, X, X))
    return eigenvalues.clamp_min(0.0), noise
