"""The surrogate that a user gives, kernel and noise, both or neither; and how it is stored."""

from __future__ import annotations

import copy
from typing import Any

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from botorch_delay import validation
from botorch_delay.exceptions import InputError
from botorch_delay.gp.kernels import check_kernel, describe_kernel, prior_variance
from botorch_delay.gp.surrogate import Surrogate, exact_noise
from botorch_delay.optimizers.specs import describe_part


def given_surrogate(
    covar_module: Kernel | None, noise_var: float | None, like: Tensor, *, exact: bool = False
) -> Surrogate | None:
    """Kernel and noise as a fixed surrogate, or None where both are to be learned.

    Args:
        covar_module: the kernel; a copy is kept.
        noise_var: lambda^2, above 0.
        like: points that the kernel must be able to take, ``n x d``.
        exact: whether evaluations are: no noise variance is to be given then, and a jitter is used.

    Raises:
        InputError: if only one is given, one is out of its range, or exact evaluations have noise.
    """
    if validation.flag(exact, "exact"):
        if noise_var is not None:
            raise InputError(
                f"Evaluations are exact, so that they have no noise; got noise_var={noise_var!r}. "
                "Leave out noise_var, or exact."
            )
        if covar_module is None:
            return None
        kernel = copy.deepcopy(check_kernel(covar_module, like)).requires_grad_(False).eval()
        with torch.no_grad():
            jitter = exact_noise(like) * prior_variance(kernel, like).max().item()
        return Surrogate.fixed(kernel, jitter, like)
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
    noise = validation.noise_variance(noise_var, "noise_var", like)
    return Surrogate.fixed(kernel.requires_grad_(False).eval(), noise, like)


def describe_given(surrogate: Surrogate | None, like: Tensor) -> dict[str, Any]:
    """Kernel and noise as arguments of a configuration, JSON-ready.

    Args:
        surrogate: what was given; None where it is learned.
        like: points, ``n x d``, by which a kernel that cannot be rebuilt is known.
    """
    kernel = None if surrogate is None else surrogate.covar_module
    noise_var = None if surrogate is None else surrogate.noise_var
    return {"covar_module": describe_part(kernel, like), "noise_var": noise_var}


def describe_replicates(exact: bool, repeat_pending: bool = True) -> dict[str, Any]:
    """What is said of repeated evaluations, JSON-ready.

    None stands for what holds if nothing is said, as in files of versions without a word of it.
    """
    return {"exact": exact or None, "repeat_pending": None if repeat_pending else False}


def recipe_of(surrogate: Surrogate | None) -> dict[str, Any]:
    """What it takes to make the given kernel anew; None for one that cannot be."""
    return {"covar_module": None if surrogate is None else describe_kernel(surrogate.covar_module)}
