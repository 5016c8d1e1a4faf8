"""Kernels and domains that many tests run over."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

import numpy as np
import torch
from gpytorch.kernels import Kernel, LinearKernel, MaternKernel, RBFKernel, ScaleKernel
from torch import Generator, Tensor
from torch.quasirandom import SobolEngine

from botorch_delay import BoxDomain, Trial
from botorch_delay.benchmarks import SimulationResult


def rows_of(history: SimulationResult) -> Tensor:
    """The row asked at each step of a simulated run."""
    return torch.tensor([ask.point for ask in history.asks])


def record(trial: Trial) -> dict[str, Any]:
    """Every field of a trial, its point included, for comparisons."""
    names = [field.name for field in fields(trial) if field.name != "source"]
    return {name: getattr(trial, name) for name in names} | {"x": trial.x.tolist()}


def se(lengthscale: float = 0.4) -> Kernel:
    """A squared exponential kernel."""
    return with_values(RBFKernel(), lengthscale=lengthscale)


def with_values(kernel: Kernel, **values: float | list[float]) -> Kernel:
    """A kernel in double with the given hyperparameters."""
    kernel = kernel.double()
    for name, value in values.items():
        setattr(kernel, name, torch.tensor(value, dtype=torch.double))
    return kernel


def _sum() -> Kernel:
    return se(0.5) + with_values(LinearKernel(), variance=0.3)


def _product() -> Kernel:
    return se(0.7) * with_values(MaternKernel(nu=1.5), lengthscale=1.1)


def _scaled() -> Kernel:
    base = with_values(MaternKernel(nu=2.5), lengthscale=0.6)
    return with_values(ScaleKernel(base), outputscale=3.7)


KERNELS: dict[str, Callable[[], Kernel]] = {
    "se": se,
    "se-ard": lambda: with_values(RBFKernel(ard_num_dims=2), lengthscale=[0.3, 0.8]),
    "matern12": lambda: with_values(MaternKernel(nu=0.5), lengthscale=0.5),
    "matern32": lambda: with_values(MaternKernel(nu=1.5), lengthscale=0.5),
    "matern52-ard": lambda: with_values(
        MaternKernel(nu=2.5, ard_num_dims=2), lengthscale=[0.3, 0.8]
    ),
    "linear": lambda: with_values(LinearKernel(), variance=0.8),
    "scaled": _scaled,
    "sum": _sum,
    "product": _product,
    "one-column": lambda: with_values(RBFKernel(active_dims=(1,)), lengthscale=0.4),
}


def generator(seed: int) -> Generator:
    """A seeded generator on the CPU."""
    return torch.Generator().manual_seed(seed)


def scattered(n: int, d: int = 2, seed: int = 0) -> Tensor:
    """Random points in the unit cube, ``n x d``."""
    return torch.rand(n, d, dtype=torch.double, generator=generator(seed))


def normal(n: int, seed: int = 0) -> Tensor:
    """Standard normal numbers, ``n``."""
    return torch.randn(n, dtype=torch.double, generator=generator(seed))


def line(n: int) -> Tensor:
    """A grid on [0, 1], ``n x 1``."""
    return torch.linspace(0, 1, n, dtype=torch.double).unsqueeze(-1)


def sobol_points(domain: BoxDomain, n: int, seed: int) -> Tensor:
    """Scrambled Sobol points of a box that satisfy its constraints, at most ``n x d``."""
    unit = SobolEngine(domain.dim, scramble=True, seed=seed).draw(n, dtype=torch.double)
    X = domain.from_unit(unit.to(domain.bounds))
    return X[domain.contains(X)]


def plain(state: Any) -> Any:
    """A state with every tensor replaced by its bytes, for comparisons to the last bit."""
    if isinstance(state, Tensor):
        return str(state.dtype), tuple(state.shape), state.cpu().numpy().tobytes()
    if isinstance(state, Mapping):
        return {key: plain(value) for key, value in state.items()}
    if isinstance(state, list | tuple):
        return [plain(value) for value in state]
    return state


def global_random_state() -> tuple[Any, ...]:
    """The state of every random generator that a whole program shares."""
    name, keys, *place = np.random.get_state()
    device = torch.cuda.get_rng_state() if torch.cuda.is_available() else torch.empty(0)
    own = [state.numpy().tobytes() for state in (torch.get_rng_state(), device)]
    return *own, name, keys.tobytes(), place, random.getstate()
