"""Uniform samples from a small part of a box, and its volume.

The part is ``{x : margin(x) >= 0}``; it may be a millionth of the box and in several pieces. Where
it is large, points of the box are drawn and those inside are kept. Otherwise the level of the
margin is raised step by step to 0, each step keeping about a third of the particles (subset
simulation, Au and Beck 2001; adaptive multilevel splitting, Cerou et al. 2012), and the volume is
the product of the shares that were kept.

* Everything happens in the unit cube that ``BoxDomain.from_unit`` maps to the box, so logarithms
  and lists of values need no special treatment, and "uniform" means uniform under that map.
* Particles are divided into batches that never exchange weight. Each batch estimates the volume
  without bias, and the spread between batches gives the error of their mean. It includes the
  correlation of particles with common ancestors, which a formula for independent ones leaves out.
* Particles of one half of the batches move along differences of two particles of the other half,
  which reflect the size and shape of the set (differential evolution, ter Braak 2006; the halves
  are those of Goodman and Weare 2010). A full difference is a jump: it can carry a particle from
  one piece of the set to another.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from botorch_delay.domains.box import BoxDomain
from botorch_delay.domains.devices import moved, sent_rows, sobol_engine
from botorch_delay.exceptions import EmptyDomainError

_BATCHES = 16  # independent estimates of the volume
_LARGE = 0.02  # share of the box above which rejection sampling costs less
_HITS = 400  # points inside that rejection sampling collects at least, to estimate the volume

# Few particles may be above a plateau of the margin: collect them until they are this share of the
# cloud, in at most this many rounds.
_ENOUGH = 1 / 8
_ROUNDS = 64

_KEPT = 1 / 3  # share of the particles that survive when the level is raised

_SMALLEST = 1e-30  # share of the box below which the search for the set is given up

_ACCEPTANCE = 0.3  # strides are adapted so that this share of walks is accepted
_STRIDES = 0.7  # standard deviation of the logarithm of a stride

# Walks per sweep, with as many jumps, and one more of each per 2 dimensions: the volume then varies
# hardly more than with independent particles. At the last level this many more sweeps follow, so
# that few points remain repeated and jumps settle how many are in each piece.
_MOVES = 3
_LAST_SWEEPS = 4

_FEW = 8  # with fewer survivors per dimension, their differences may not span the set

# Share of walks that redraw a single coordinate instead: in boxes without and with lists of values.
_REDRAWS = 0.1
_REDRAWS_LISTS = 0.3

# Share of walks that change one column, and each other one with probability _COLUMNS: where a
# corner of the box bounds the set in many columns, a step in all of them hardly ever stays inside.
_PARTIAL = 0.8
_COLUMNS = 0.3


@dataclass(frozen=True)
class SetSample:
    """A sample of a set, and how large the set is."""

    points: Tensor  # ``n x d``, uniform on the set
    volume: float  # share of the domain, in (0, 1]
    # Standard error of ``volume``. As large as ``volume`` itself where the set was not found and
    # the anchor stands for it; both numbers then say no more than "tiny".
    volume_error: float


def sample_set(
    domain: BoxDomain,
    margin: Callable[[Tensor], Tensor],
    n: int,
    generator: Generator,
    *,
    anchor: Tensor | None = None,
    particles: int = 4096,
) -> SetSample:
    """Uniform points of ``{x in domain : margin(x) >= 0}``, and its volume.

    A few points may be repeated where a small set was hard to move in.

    The margin maps ``k x d`` to ``k``: it is larger the deeper inside or the nearer to the set a
    point is; ``nan`` counts as minus infinity. It is called on up to ``particles`` points (at least
    256) at a time: about 6 + d times for each factor of 3 by which the set is smaller than the box,
    and up to 64 times as often where a plateau of the margin hides the set. The relative error of
    the volume is about ``(-1.3 log2(volume) / particles) ** 0.5``, somewhat more above ten columns.
    A piece of the set may be missed if few particles would fall into it.

    If the particles never reach the set, because it is below about 1e-30 of the box or hidden by a
    plateau, the sample repeats the anchor, a point of the set (``1 x d``), and volume and error are
    an upper bound on the volume. :class:`EmptyDomainError` without an anchor.
    """
    cube = _Cube(domain, margin, generator, -(-particles // _BATCHES))
    with torch.no_grad():
        unit, value = cube.draw()
        if (value >= 0.0).double().mean() >= _LARGE:
            return _reject(cube, unit, value, n)
        descent = _Descent(cube, unit, value)
        if descent.run():
            return descent.sample(n)
        if anchor is None:
            raise EmptyDomainError(
                "No point of the box was found that satisfies its constraints and feasible(X): "
                "relax them, or narrow the bounds to where they hold. A yes-or-no test gives the "
                "search no direction to follow where hardly any point passes."
            )
        return SetSample(anchor.repeat(n, 1), descent.bound(), descent.bound())


def _reject(cube: _Cube, unit: Tensor, value: Tensor, n: int) -> SetSample:
    found = [unit[value >= 0.0]]
    hits, tried = len(found[0]), len(unit)
    while hits < max(n, _HITS):
        unit, value = cube.draw()
        found.append(unit[value >= 0.0])
        hits, tried = hits + len(found[-1]), tried + len(unit)
    inside = torch.cat(found)
    # The error alone uses a share moved towards one half, so as not to vanish if all are inside.
    share = (hits + 1) / (tried + 2)
    error = math.sqrt(share * (1.0 - share) / tried)
    points = cube.points(inside[cube.shuffle(hits)[:n]])
    return SetSample(points, hits / tried, error)


class _Cube:
    """The unit cube that ``domain.from_unit`` maps to a box, and random numbers on its device."""

    def __init__(
        self, domain: BoxDomain, margin: Callable[[Tensor], Tensor], generator: Generator, size: int
    ) -> None:
        self.domain, self.dim, self.size = domain, domain.dim, size
        self._device = domain.bounds.device
        self.lists = sorted(domain.lists)
        self._margin, self._generator = margin, generator
        seeds = torch.randint(2**31, (_BATCHES,), generator=generator).tolist()
        self._engines = [sobol_engine(self.dim, seed) for seed in seeds]

    def draw(self) -> tuple[Tensor, Tensor]:
        """The next Sobol points of all batches, one batch after the other, and their margins.

        Each batch has ``size`` points and a sequence of its own.
        """
        drawn = [engine.draw(self.size, dtype=torch.double) for engine in self._engines]
        unit = moved(torch.cat(drawn), self._device)
        return unit, self.value(unit)

    def points(self, unit: Tensor) -> Tensor:
        return self.domain.from_unit(unit.to(self.domain.bounds.dtype))

    def value(self, unit: Tensor) -> Tensor:
        """The margin at points of the unit cube, ``k``, in double, with no ``nan``."""
        if len(unit) == 0:
            return unit.new_zeros(0)
        margin = self._margin(self.points(unit)).detach().double()
        return margin.nan_to_num(-math.inf, math.inf, -math.inf)

    def rand(self, *shape: int) -> Tensor:
        drawn = torch.rand(*shape, dtype=torch.double, generator=self._generator)
        return moved(drawn, self._device)

    def randn(self, *shape: int) -> Tensor:
        drawn = torch.randn(*shape, dtype=torch.double, generator=self._generator)
        return moved(drawn, self._device)

    def randint(self, high: int, *shape: int) -> Tensor:
        return moved(torch.randint(high, shape, generator=self._generator), self._device)

    def shuffle(self, n: int) -> Tensor:
        return moved(torch.randperm(n, generator=self._generator), self._device)


class _Descent:
    """Particles on their way to the set, uniform where the margin is above ``level``."""

    def __init__(self, cube: _Cube, unit: Tensor, value: Tensor) -> None:
        self._cube, self._size = cube, cube.size
        self._unit, self._value = unit, value
        self.level = -math.inf
        # Logarithms of each batch's estimate of the volume above the level.
        self._log_shares = torch.zeros(_BATCHES, dtype=torch.double, device=unit.device)
        self._owner = torch.arange(_BATCHES, device=unit.device).repeat_interleave(self._size)
        self._squared_error = 0.0  # squared relative error from before batches were restarted
        self._tried = len(unit)
        self._strides = [1.0, 1.0]  # of walks in all columns, and in some
        self._origin = unit  # particles whose differences are the directions of moves
        self._floor = torch.zeros_like(unit[0])  # deviation of noise added to differences

    def run(self) -> bool:
        """Raise the level until the set is reached; False if it is not."""
        while self._raise_level():
            if self.level >= 0.0:
                for _ in range(_LAST_SWEEPS):
                    self._sweep()
                return True
            if self._log_volume() < math.log(_SMALLEST):
                break
        return False

    def bound(self) -> float:
        """An upper bound, likely but not proved, on the set's share of the domain."""
        return max(math.exp(self._log_volume()) / self._tried, 1e-300)

    def sample(self, n: int) -> SetSample:
        """Points of the set, and its volume."""
        error = math.sqrt(self._squared_error + self._relative_error() ** 2)
        # Batches count equally: jumps have mixed them. Weights by volume, when tried, brought no
        # sample nearer to uniform, and the heaviest of few batches would need many more moves.
        clouds = [self._unit]
        while len(clouds) * len(self._unit) < n:
            self._sweep()
            clouds.append(self._unit)
        cloud = torch.cat(clouds)
        points = self._cube.points(cloud[self._cube.shuffle(len(cloud))[:n]])
        volume = min(math.exp(self._log_volume()), 1.0)
        return SetSample(points, volume, volume * error)

    def _relative_error(self) -> float:
        shares = (self._log_shares - self._log_shares.max()).exp()
        return (shares.std() / shares.mean()).item() / math.sqrt(_BATCHES)

    def _log_volume(self) -> float:
        return self._log_shares.logsumexp(dim=0).item() - math.log(_BATCHES)

    def _raise_level(self) -> bool:
        level = _next_level(self._value)
        before = self._unit
        survivors, owners = [], []
        rounds = hits = 0
        while rounds < _ROUNDS and hits < _ENOUGH * len(self._value):
            if rounds and self.level == -math.inf:
                self._unit, self._value = self._cube.draw()
            elif rounds:  # move to other points above the current level
                self._sweep()
            keep = self._value >= level
            survivors.append(torch.cat([self._unit[keep], self._value[keep, None]], dim=1))
            owners.append(self._owner[keep])
            rounds, hits = rounds + 1, hits + len(owners[-1])
        self._tried = rounds * len(self._value)
        if hits == 0:
            return False
        kept, owner = torch.cat(survivors), torch.cat(owners)
        per_batch = torch.bincount(owner, minlength=_BATCHES)
        self._log_shares = self._log_shares + (per_batch / (rounds * self._size)).log()
        if bool((per_batch == 0).any()):
            # A batch has no survivors. Restart all from their mean volume, and keep its error.
            self._squared_error += self._relative_error() ** 2
            self._log_shares = torch.full_like(self._log_shares, self._log_volume())
        self.level = level
        chosen = kept[torch.cat([self._heirs(owner, batch) for batch in range(_BATCHES)])]
        self._unit, self._value = chosen[:, :-1].contiguous(), chosen[:, -1].clone()
        few = hits < _FEW * self._cube.dim
        if few:
            # Their differences may vanish or span no volume: add noise scaled to the last cloud.
            share = hits / (rounds * len(before))
            self._floor = before.std(dim=0) * (0.5 * share ** (1.0 / self._cube.dim))
        self._sweep()
        self._floor = torch.zeros_like(self._floor)
        for _ in range(3 if few else 0):
            self._sweep()
        return True

    def _heirs(self, owner: Tensor, batch: int) -> Tensor:
        """Rows of survivors to continue a batch: its own, else any, each about equally often."""
        rows = (owner == batch).nonzero().squeeze(1)
        if len(rows) == 0:
            rows = torch.arange(len(owner), device=owner.device)
        order = rows[self._cube.shuffle(len(rows))]
        return order.repeat(-(-self._size // len(rows)))[: self._size]

    def _sweep(self) -> None:
        self._origin = self._unit
        for _ in range(_MOVES + self._cube.dim // 2):
            self._walk()
            self._move(self._unit + self._differences())

    def _differences(self) -> Tensor:
        """For every particle the difference of two particles of the other half of the batches."""
        cube, half = self._cube, len(self._unit) // 2
        others = half * (torch.arange(2 * half, device=self._unit.device) < half)
        first, second = self._origin[others + cube.randint(half, 2, 2 * half)]
        return first - second + self._floor * cube.randn(2 * half, cube.dim)

    def _walk(self) -> None:
        """Move every particle by a step along a difference, or redraw one of its coordinates."""
        n, cube = len(self._unit), self._cube
        # Pieces differ in size and a mixture of strides fits them all.
        whole = cube.rand(n) >= _PARTIAL
        stride = torch.where(whole, self._strides[0], self._strides[1]).unsqueeze(1)
        stride = stride * (_STRIDES * cube.randn(n, 1)).exp()
        change = (cube.rand(n, cube.dim) < _COLUMNS) | whole.unsqueeze(1)
        change.scatter_(1, cube.randint(cube.dim, n, 1), True)
        proposal = self._unit + stride * self._differences() * change
        redrawn = cube.rand(n) < (_REDRAWS_LISTS if cube.lists else _REDRAWS)
        rows = redrawn.nonzero().squeeze(1)
        column = cube.randint(cube.dim, len(rows))
        if cube.lists:
            lists = sent_rows(cube.lists, column)
            listed = lists[cube.randint(len(lists), len(rows))]
            column = torch.where(cube.rand(len(rows)) < 0.75, listed, column)
        proposal[rows] = self._unit[rows]
        proposal[rows, column] = cube.rand(len(rows))
        accepted = self._move(proposal).double()
        kinds = torch.stack([whole & ~redrawn, ~(whole | redrawn)]).double()
        shares = (kinds @ accepted) / kinds.sum(dim=1).clamp_min(1.0)
        self._strides = [
            min(max(own * math.exp(share - _ACCEPTANCE), 1e-3), 1e3)
            for own, share in zip(self._strides, shares.tolist(), strict=True)
        ]

    def _move(self, proposal: Tensor) -> Tensor:
        """Accept proposals that are in the cube and above the level; returns which: bool."""
        # Steps through a wall are refused, not reflected: a reflected step is as likely as its
        # reverse only if its coordinates are uncorrelated.
        rows = ((proposal >= 0.0) & (proposal <= 1.0)).all(dim=1).nonzero().squeeze(1)
        value = self._cube.value(proposal[rows])
        above = value >= self.level
        rows, value = rows[above], value[above]
        self._unit = self._unit.index_copy(0, rows, proposal[rows])
        self._value = self._value.index_copy(0, rows, value)
        accepted = torch.zeros(len(proposal), dtype=torch.bool, device=proposal.device)
        accepted[rows] = True
        return accepted


def _next_level(value: Tensor) -> float:
    """Just above the margin that the best third of the particles reach, but at most 0."""
    reached = value.sort(descending=True).values[int(_KEPT * (len(value) - 1))].item()
    # The next floating-point number, not the next margin seen: without the particle that sets the
    # level the share of those above it is unbiased, and what lies above a plateau is a fixed set.
    return 0.0 if reached >= 0.0 else math.nextafter(reached, math.inf)
