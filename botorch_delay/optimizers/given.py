"""The surrogate that a user gives: kernel and noise, both or neither."""

from __future__ import annotations

import copy

from gpytorch.kernels import Kernel
from torch import Tensor

from botorch_delay import checks
from botorch_delay.exceptions import InputError
from botorch_delay.kernels import check_kernel
from botorch_delay.surrogate import Surrogate


def given_surrogate(
    covar_module: Kernel | None, noise_var: float | None, like: Tensor
) -> Surrogate | None:
    """Kernel and noise as a fixed surrogate, or None where both are to be learned.

    Args:
        covar_module: the kernel; a copy is kept.
        noise_var: lambda^2, above 0.
        like: points that the kernel must be able to take, ``n x d``.

    Raises:
        InputError: if only one is given, or one is out of its range.
    """
    if (covar_module is None) != (noise_var is None):
        given, missing = ("noise_var", "covar_module")
        if noise_var is None:
            given, missing = missing, given
        raise InputError(
            f"{given} was given without {missing}; pass both to keep them fixed, or neither to "
            "learn them from the answers."
        )
    if covar_module is None or noise_var is None:
        return None
    kernel = copy.deepcopy(check_kernel(covar_module, like))
    noise = checks.noise_variance(noise_var, "noise_var", like)
    return Surrogate.fixed(kernel.requires_grad_(False).eval(), noise, like)
