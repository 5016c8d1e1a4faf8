"""The unit cube in which samples of a box are drawn."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Generator, Tensor
from torch.quasirandom import SobolEngine

from botorch_delay.domains.box import BoxDomain
from botorch_delay.exceptions import InputError


class UnitCube:
    """The unit cube that ``domain.from_unit`` maps to a box, and random numbers on its device.

    Args:
        domain: the box.
        margin: of points of the box, ``k x d`` to ``k``.
        generator: source of all random numbers, on the CPU.
    """

    def __init__(
        self, domain: BoxDomain, margin: Callable[[Tensor], Tensor], generator: Generator
    ) -> None:
        self.domain = domain
        self.dim = domain.dim
        self._margin = margin
        self.generator = generator
        self.lists = sorted(domain.discrete_dims.keys() | domain.cat_dims.keys())

    def points(self, unit: Tensor) -> Tensor:
        """Points of the domain, in its dtype: ``k x d`` to ``k x d``."""
        return self.domain.from_unit(unit.to(self.domain.bounds.dtype))

    def margin(self, X: Tensor) -> Tensor:
        """The margin at points of the domain, ``k``, in double, with no ``nan``."""
        if len(X) == 0:
            return X.new_zeros(0, dtype=torch.double)
        value = self._margin(X)
        if value.shape != X.shape[:1]:
            raise InputError(
                f"margin must return one number for each of {len(X)} points, got shape "
                f"{tuple(value.shape)}."
            )
        value = value.detach().double()
        return torch.where(value.isnan(), -math.inf, value)

    def value(self, unit: Tensor) -> Tensor:
        """The margin at points of the unit cube, ``k``."""
        return self.margin(self.points(unit))

    def rand(self, *shape: int) -> Tensor:
        """Uniform random numbers in double."""
        drawn = torch.rand(*shape, dtype=torch.double, generator=self.generator)
        return drawn.to(self.domain.bounds.device)

    def randn(self, *shape: int) -> Tensor:
        """Normal random numbers in double."""
        drawn = torch.randn(*shape, dtype=torch.double, generator=self.generator)
        return drawn.to(self.domain.bounds.device)

    def randint(self, high: int, *shape: int) -> Tensor:
        """Random whole numbers below ``high``."""
        drawn = torch.randint(high, shape, generator=self.generator)
        return drawn.to(self.domain.bounds.device)

    def shuffle(self, n: int) -> Tensor:
        """The numbers below ``n`` in random order."""
        return torch.randperm(n, generator=self.generator).to(self.domain.bounds.device)

    def cycle(self, rows: Tensor, n: int) -> Tensor:
        """``n`` of the rows in random order, none more than once more often than another."""
        order = rows[self.shuffle(len(rows))]
        return order.repeat(-(-n // len(rows)))[:n]

    def from_domain(self, X: Tensor) -> Tensor:
        """Where points of the domain come from, ``k x d``; random within the cell of a list."""
        low, high = self.domain.bounds.double()
        X = X.double()
        unit = (X - low) / (high - low)
        for dim in self.domain.log_dims:
            unit[:, dim] = (X[:, dim] / low[dim]).log() / (high[dim] / low[dim]).log()
        for dim, values in (self.domain.discrete_dims | self.domain.cat_dims).items():
            cell = (X[:, dim, None] - X.new_tensor(values)).abs().argmin(dim=1)
            unit[:, dim] = (cell + self.rand(len(X))) / len(values)
        return unit.clamp(0.0, 1.0)


class SobolBatches:
    """Scrambled Sobol points of the cube: a sequence for each batch, so that batches differ."""

    def __init__(self, cube: UnitCube, batches: int, size: int) -> None:
        self._cube = cube
        self.size = size
        seeds = torch.randint(2**31, (batches,), generator=cube.generator).tolist()
        self._engines = [SobolEngine(cube.dim, scramble=True, seed=seed) for seed in seeds]

    def draw(self) -> tuple[Tensor, Tensor]:
        """The next points of all batches, one batch after the other, and their margins."""
        drawn = [engine.draw(self.size, dtype=torch.double) for engine in self._engines]
        unit = torch.cat(drawn).to(self._cube.domain.bounds.device)
        return unit, self._cube.value(unit)
