"""Naive dense references: formulas as they are written, with nothing reused or sped up.

Kernels are evaluated from coordinate differences in NumPy; posteriors solve the full system;
the design rebuilds the posterior for every pick; Algorithm 1 is transcribed line by line.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from gpytorch.kernels import (
    AdditiveKernel,
    Kernel,
    LinearKernel,
    MaternKernel,
    ProductKernel,
    RBFKernel,
    ScaleKernel,
)
from numpy.typing import NDArray

from botorch_delay.gp.kernels import MaternSum

Array = NDArray[np.float64]
KernelFunction = Callable[[Array, Array], Array]


def kernel_function(kernel: Kernel) -> KernelFunction:
    """The kernel written out, with the hyperparameters of a GPyTorch kernel."""
    if isinstance(kernel, ScaleKernel):
        scale, base = kernel.outputscale.item(), kernel_function(kernel.base_kernel)
        return lambda a, b: scale * base(a, b)
    if isinstance(kernel, MaternSum):
        whole, *effects = [kernel_function(part) for part in kernel.kernels]
        share, groups = kernel.share, len(effects)
        return lambda a, b: (
            (1.0 - share) * whole(a, b) + share / groups * sum(effect(a, b) for effect in effects)
        )
    if isinstance(kernel, AdditiveKernel):
        parts = [kernel_function(part) for part in kernel.kernels]
        return lambda a, b: sum(part(a, b) for part in parts)
    if isinstance(kernel, ProductKernel):
        factors = [kernel_function(part) for part in kernel.kernels]
        return lambda a, b: math.prod(factor(a, b) for factor in factors)
    columns = slice(None) if kernel.active_dims is None else kernel.active_dims.tolist()
    if isinstance(kernel, LinearKernel):
        variance = kernel.variance.item()
        return lambda a, b: variance * a[:, columns] @ b[:, columns].T
    lengthscale = kernel.lengthscale.detach().numpy().reshape(-1)

    def distance(a: Array, b: Array) -> Array:
        a, b = a[:, columns] / lengthscale, b[:, columns] / lengthscale
        return np.sqrt(((a[:, None, :] - b[None, :, :]) ** 2).sum(axis=-1))

    if isinstance(kernel, RBFKernel):
        return lambda a, b: np.exp(-0.5 * distance(a, b) ** 2)
    assert isinstance(kernel, MaternKernel)
    polynomial = {
        0.5: lambda r: np.ones_like(r),
        1.5: lambda r: 1 + math.sqrt(3) * r,
        2.5: lambda r: 1 + math.sqrt(5) * r + 5 / 3 * r**2,
    }[kernel.nu]
    root = math.sqrt(2 * kernel.nu)
    return lambda a, b: polynomial(distance(a, b)) * np.exp(-root * distance(a, b))


def posterior(
    k: KernelFunction, X: Array, y: Array, noise_var: float | Array, at: Array
) -> tuple[Array, Array, Array]:
    """mu, sigma^2 and the weights z (``m x n``) at the points ``at``."""
    prior = np.array([k(x[None], x[None])[0, 0] for x in at])
    if len(X) == 0:
        return np.zeros(len(at)), prior, np.zeros((0, len(at)))
    K = k(X, X) + noise_var * np.eye(len(X))
    cross = k(X, at)
    z = np.linalg.solve(K, cross)
    return z.T @ y, prior - (z * cross).sum(axis=0), z


def greedy_design(k: KernelFunction, candidates: Array, noise_var: float, n: int) -> list[int]:
    """Rebuild the posterior for every pick; the lowest index among the ties."""
    picks: list[int] = []
    for _ in range(n):
        X = candidates[picks]
        _, variance, _ = posterior(k, X, np.zeros(len(picks)), noise_var, candidates)
        picks.append(int(np.flatnonzero(variance >= (1 - 1e-8) * variance.max())[0]))
    return picks


def bounds(
    k: KernelFunction,
    X: Array,
    y: Array,
    at: Array,
    *,
    noise_var: float,
    norm_bound: float,
    noise_std: float,
    delta: float,
    tight: bool,
) -> tuple[Array, Array]:
    """The bounds of Lemma 1, or with bias and noise apart."""
    mean, variance, z = posterior(k, X, y, noise_var, at)
    tail = math.sqrt(2 * math.log(1 / delta))
    sigma = np.sqrt(variance.clip(0))
    half = (norm_bound + noise_std / math.sqrt(noise_var) * tail) * sigma
    if tight:
        norm = np.linalg.norm(z, axis=0)
        bias = np.sqrt((variance - noise_var * norm**2).clip(0))
        half = np.minimum(half, norm_bound * bias + noise_std * norm * tail)
    return mean - half, mean + half


def algorithm_1(
    k: KernelFunction,
    points: Array,
    f: Array,
    *,
    horizon: int,
    wait: float,
    delays: Array,
    noise: Array,
    noise_var: float,
    half_width: Callable[[Array, Array, Array, int], Array],
) -> tuple[list[int], list[dict[str, int]]]:
    """Algorithm 1 as printed. ``half_width(variance, z, sigma, R)`` gives the bounds' width."""
    q, t, previous, left = [], [], 1, horizon
    while left > 0:
        previous = math.ceil(math.sqrt(horizon * previous))
        q.append(previous)
        t.append(min(math.ceil(previous + wait), left))
        left -= t[-1]
    active = list(range(len(points)))
    asked: list[int] = []
    rounds = []
    for size, length in zip(q, t, strict=True):
        begin = len(asked)
        design = greedy_design(k, points[active], noise_var, length)
        asked += [active[i] for i in design]
        end = len(asked)
        # Step s (from 1) with delay tau is usable after step s + tau.
        seen = [s for s in range(begin, end) if (s + 1) + delays[s] <= end]
        X = points[[asked[s] for s in seen]]
        y = np.array([f[asked[s]] + noise[s] for s in seen])
        mean, variance, z = posterior(k, X, y, noise_var, points[active])
        half = half_width(variance, z, np.sqrt(variance.clip(0)), len(q))
        keep = (mean + half) >= (mean - half).max()
        after = [i for i, kept in zip(active, keep, strict=True) if kept]
        rounds.append(
            {
                "design_size": size,
                "length": length,
                "observed": len(seen),
                "active_before": len(active),
                "active_after": len(after),
            }
        )
        active = after
    return asked, rounds
