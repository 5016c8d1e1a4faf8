"""Information gain and effective dimension of a set of points (paper, Section 2)."""

from __future__ import annotations

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from botorch_delay import validation
from botorch_delay.gp.kernels import check_kernel, covariance
from botorch_delay.gp.posterior import Data


def information_gain(covar_module: Kernel, X: Tensor, noise_var: float) -> float:
    """Mutual information ``I(y; f) = 0.5 logdet(I + K / lambda^2)`` in nats.

    Args:
        covar_module: the kernel.
        X: ``n x d`` points, repeated as often as they are evaluated.
        noise_var: lambda^2, above 0.

    Raises:
        InputError: if an argument cannot be used.
    """
    return gain(_checked_spectrum(covar_module, X, noise_var))


def effective_dimension(covar_module: Kernel, X: Tensor, noise_var: float) -> float:
    """Effective dimension ``tr(K (K + lambda^2 I)^-1)``, at most twice the information gain.

    The paper states that it is at most the information gain itself, which is false: one
    point with ``k(x, x) / lambda^2 = 1`` has dimension 0.5 and gain 0.35.

    Args:
        covar_module: the kernel.
        X: ``n x d`` points.
        noise_var: lambda^2, above 0.

    Raises:
        InputError: if an argument cannot be used.
    """
    return shares(_checked_spectrum(covar_module, X, noise_var)).sum().item()


def gain(eigenvalues: Tensor) -> float:
    """``0.5 logdet(I + K / lambda^2)`` from a :func:`spectrum`."""
    return 0.5 * torch.log1p(eigenvalues).sum().item()


def shares(eigenvalues: Tensor) -> Tensor:
    """Eigenvalues of ``K (K + lambda^2 I)^-1`` from a :func:`spectrum`, ``m``."""
    return eigenvalues / (1.0 + eigenvalues)


@torch.no_grad()
def spectrum(covar_module: Kernel, data: Data) -> Tensor:
    """Eigenvalues of ``D^-1/2 K D^-1/2``, D the noise variances: ``m``, in double, on the CPU."""
    if not len(data):
        return data.y.double().cpu()
    weight = data.noise_var.rsqrt()
    K = covariance(covar_module, data.X, data.X)
    # In single precision rounding could outweigh the small eigenvalues.
    scaled = (weight.unsqueeze(-1) * K * weight).double().cpu()
    return torch.linalg.eigvalsh(scaled).clamp_min(0.0)


def _checked_spectrum(covar_module: Kernel, X: Tensor, noise_var: float) -> Tensor:
    X = validation.matrix(X, "X")
    noise = X.new_full((len(X),), validation.noise_variance(noise_var, "noise_var", X))
    check_kernel(covar_module, X)
    return spectrum(covar_module, Data.single(X, torch.zeros_like(noise), noise))
