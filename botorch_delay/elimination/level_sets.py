"""Uniform samples from a small part of a box, and its volume.

The part is ``{x : margin(x) >= 0}``; it may be a millionth of the box and in several pieces. Where
it is large, points of the box are drawn and those inside are kept. Otherwise the level of the
margin is raised step by step to 0, each step keeping about half of the particles (subset
simulation, Au and Beck 2001; adaptive multilevel splitting, Cerou et al. 2012), and the volume is
the product of the shares that were kept.

* Everything happens in the unit cube that ``BoxDomain.from_unit`` maps to the box. So logarithms
  and lists of values need no care of their own, and "uniform" means uniform under that map.
* Particles live in batches that never exchange any weight. Each batch estimates the volume
  without bias, and the spread between batches says how far off their mean is, including what a
  formula for independent particles leaves out: particles with common ancestors.
* At each level a mixture of local Gaussians is fitted to the survivors. Walks take their steps
  from it, and jumps draw a new place from it, accepted by the ratio of Metropolis and Hastings.
  Jumps carry particles between pieces that lie far apart, so that chance does not decide how
  many stay in each. One half of the batches is moved by what was fitted to the other half, so
  that no particle shapes its own proposals.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from botorch_delay.domains.box import BoxDomain
from botorch_delay.elimination.unit_cube import SobolBatches, UnitCube
from botorch_delay.exceptions import EmptyDomainError

# Independent estimates of the volume; the reported error is itself uncertain by a sixth or so.
_BATCHES = 16

# From this share of the box on, drawing points and keeping those inside costs less.
_LARGE = 0.02

# How many points inside a large set give its volume, however few are asked for.
_HITS = 400

# Above a plateau there may be few particles: go on until this share of the cloud is above it, for
# at most so many rounds.
_ENOUGH = 1 / 8
_ROUNDS = 64

# A set below this share of the box is given up.
_SMALLEST = 1e-30

# The margin has a maximum below 0 if, over so many levels, the best particle is so many times
# nearer to the level than to 0.
_FLAT = 1e3
_FLAT_LEVELS = 8

# Acceptance that the steps of walks are scaled to.
_ACCEPTANCE = 0.3

# Walks per level, and how many more per dimension; jumps per level. With these the volume varies
# hardly more than with independent particles, in the tests and up to 20 columns.
_WALKS = 4
_WALKS_DIM = 0.5
_JUMPS = 3

# Deviation of the logarithm of a walk's stride.
_STRIDES = 0.7

# Components of the mixture that is fitted to the survivors.
_COMPONENTS = 128

# Of the walks, the share that redraws a single coordinate instead: without and with lists.
_REDRAWS = 0.1
_REDRAWS_LISTS = 0.3

# Moves before the first sample around anchors, moves between samples, and cuts of a line.
_ANCHOR_MOVES = 30
_ANCHOR_THINNING = 6
_ANCHOR_CUTS = 100


@dataclass(frozen=True)
class SetSample:
    """A sample of a set, and how large the set is.

    Attributes:
        points: ``n x d``, uniform on the set.
        volume: share of the domain, in (0, 1].
        volume_error: standard error of ``volume``. As large as ``volume`` itself where the set
            was only found around anchors; both numbers then say no more than "tiny".
    """

    points: Tensor
    volume: float
    volume_error: float


def sample_set(
    domain: BoxDomain,
    margin: Callable[[Tensor], Tensor],
    n: int,
    generator: Generator,
    *,
    anchors: Tensor | None = None,
    particles: int = 4096,
) -> SetSample:
    """Uniform points of ``{x in domain : margin(x) >= 0}``, and its volume.

    Uniform means under ``domain.from_unit``: in the logarithm for columns of ``log_dims``, over
    the values where there is a list of them. Points are drawn by moves that leave this
    distribution as it is; a few may be repeated where a small set was hard to move in.

    Args:
        domain: the box.
        margin: maps ``k x d`` points to ``k`` numbers, at least 0 inside of the set and larger
            the deeper inside or the nearer to it; ``nan`` counts as minus infinity. It is called
            on up to ``particles`` points at a time, about 8 + d/2 times per halving of the volume,
            and up to 64 times more where a plateau hides the way.
        n: how many points, at least 1.
        generator: source of all random numbers, on the CPU.
        anchors: ``a x d``, points known to be inside, used only where the particles never reach
            the set. The sample then consists of moves around them and covers no piece without
            one; volume and error are an upper bound, from the highest level that was reached.
        particles: how many at a time, at least 256. The relative error of the volume is about
            ``(-log2(volume) / particles) ** 0.5``, somewhat more above ten columns and where a
            plateau has to be crossed. A piece that only few particles would be in may be missed.

    Returns:
        The sample, on the domain's device and of its dtype.

    Raises:
        EmptyDomainError: if no point of the set was found.
        InputError: if ``margin`` returns another shape.

    Example:
        >>> box = BoxDomain(torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.double))
        >>> sample = sample_set(box, lambda X: 0.25 - X[:, 0], 3, torch.Generator().manual_seed(0))
        >>> sample.points.shape, round(sample.volume, 2)
        (torch.Size([3, 2]), 0.25)
    """
    cube = UnitCube(domain, margin, generator)
    with torch.no_grad():
        source = SobolBatches(cube, _BATCHES, -(-particles // _BATCHES))
        unit, value = source.draw()
        if (value >= 0.0).double().mean() >= _LARGE:
            return _reject(cube, source, unit, value, n)
        descent = _Descent(cube, source, unit, value)
        if descent.run():
            return descent.sample(n)
        highest = descent.summary()
        if anchors is None or len(anchors) == 0:
            raise EmptyDomainError(
                f"No point with a margin of at least 0 was found: {highest}. The set is empty, or "
                "too small to be found; anchors (points known to be inside) would help."
            )
        points = _around(cube, anchors, n, particles, highest)
        return SetSample(points, descent.bound(), descent.bound())


def _reject(cube: UnitCube, source: SobolBatches, unit: Tensor, value: Tensor, n: int) -> SetSample:
    found = [unit[value >= 0.0]]
    hits, tried = len(found[0]), len(unit)
    while hits < max(n, _HITS):
        unit, value = source.draw()
        found.append(unit[value >= 0.0])
        hits, tried = hits + len(found[-1]), tried + len(unit)
    inside = torch.cat(found)
    # Only the error is drawn towards one half: it must not vanish when all points are inside.
    share = (hits + 1) / (tried + 2)
    error = math.sqrt(share * (1.0 - share) / tried)
    points = cube.points(inside[cube.shuffle(hits)[:n]])
    return SetSample(points, hits / tried, error)


class _Mixture:
    """Gaussians around survivors, each with the covariance of its neighbours.

    Args:
        cube: the source of random numbers.
        places: ``m x d``, survivors, in the unit cube.
        floor: ``d``, deviations below which no component goes; zero where survivors abound.
    """

    def __init__(self, cube: UnitCube, places: Tensor, floor: Tensor) -> None:
        self._cube = cube
        places = torch.unique(places, dim=0)
        m, d = places.shape
        spread = places.std(dim=0, correction=0).clamp_min(1e-15)
        centres = cube.shuffle(m)[:_COMPONENTS]
        near = min(m, _neighbours(d))
        scaled = places / spread
        distances = torch.cdist(
            scaled[centres], scaled, compute_mode="donot_use_mm_for_euclid_dist"
        )
        around = places[distances.topk(near, dim=1, largest=False).indices]  # c x near x d
        self._mean = around.mean(dim=1)
        # In units of the neighbourhood, lest a tiny one be lost in rounding.
        scale = around.std(dim=1, correction=0)
        scale = (scale.square() + floor.square()).sqrt()
        scale = torch.maximum(scale, scale.amax(dim=1, keepdim=True) * 1e-9).clamp_min(1e-15)
        offsets = (around - self._mean.unsqueeze(1)) / scale.unsqueeze(1)
        correlation = offsets.mT @ offsets / near
        added = (floor / scale).square() + 1e-6
        correlation.diagonal(dim1=1, dim2=2).add_(added)
        root = torch.linalg.cholesky(correlation)
        self._root = scale.unsqueeze(2) * root
        eye = torch.eye(d, dtype=places.dtype, device=places.device).expand_as(root)
        self._whiten = torch.linalg.solve_triangular(root, eye, upper=False) / scale.unsqueeze(1)
        self._log_scale = -self._root.diagonal(dim1=1, dim2=2).log().sum(dim=1)

    def steps(self, n: int) -> Tensor:
        """Steps from nowhere in particular, ``n x d``, symmetric around zero."""
        return self._drawn(n)[1]

    def draw(self, n: int) -> Tensor:
        """Places, ``n x d``; some outside of the cube."""
        which, steps = self._drawn(n)
        return self._mean[which] + steps

    def _drawn(self, n: int) -> tuple[Tensor, Tensor]:
        """Components and steps from their means."""
        which = self._cube.randint(len(self._root), n)
        return which, (self._root[which] @ self._cube.randn(n, self._cube.dim, 1)).squeeze(-1)

    def log_density(self, unit: Tensor) -> Tensor:
        """Up to a constant, ``k``."""
        # The origin moves into the cloud before anything is multiplied, or differences of a tiny
        # cloud would be differences of large numbers.
        origin = self._mean.mean(dim=0)
        shift = (self._whiten @ (self._mean - origin).unsqueeze(-1)).squeeze(-1)
        moved = unit - origin
        squares = moved.new_zeros(len(unit), len(shift))
        for dim in range(self._cube.dim):  # one k x c matrix at a time stays in the cache
            white = torch.addmm(shift[:, dim], moved, self._whiten[:, dim].T, beta=-1.0)
            squares.addcmul_(white, white)
        return (self._log_scale - 0.5 * squares).logsumexp(dim=1)


class _Descent:
    """Particles on their way to the set.

    Attributes:
        log_shares: logarithm of each batch's estimate of the volume above ``level``.
        level: of the margin; the particles are uniform on the part of the cube above it.
    """

    def __init__(self, cube: UnitCube, source: SobolBatches, unit: Tensor, value: Tensor) -> None:
        self._cube = cube
        self._source = source
        self._size = source.size
        self._unit = unit
        self._value = value
        self.level = -math.inf
        self.log_shares = torch.zeros(_BATCHES, dtype=torch.double, device=unit.device)
        self._owner = torch.arange(_BATCHES, device=unit.device).repeat_interleave(self._size)
        self._squared_error = 0.0  # relative, of what the batches had in common
        self._tried = len(unit)
        self._mixtures: list[_Mixture] = []
        self._stride = 1.0
        self._walks = _WALKS + int(_WALKS_DIM * cube.dim)

    def run(self) -> bool:
        """Go down to the set: whether it was reached."""
        flat = 0
        while True:
            if not self._raise_level():
                return False
            if self.level >= 0.0:
                self._sweep()  # twice as many moves, so that few points remain repeated
                return True
            best = self._value.max().item()
            gap = best - self.level
            flat = flat + 1 if 0.0 < gap < -best / _FLAT else 0
            if flat == _FLAT_LEVELS or self._log_volume() < math.log(_SMALLEST):
                return False

    def summary(self) -> str:
        """How far it came, for an error."""
        best = self._value.max().item()
        return (
            f"the largest margin of {self._tried} particles at the last level, a share of "
            f"{math.exp(self._log_volume()):.1e} of the domain, was {best:.3g}"
        )

    def bound(self) -> float:
        """Less than about this share can be inside: no particle was, at the last level."""
        return max(math.exp(self._log_volume()) / self._tried, 1e-300)

    def sample(self, n: int) -> SetSample:
        """Points of the set, and its volume."""
        shares = (self.log_shares - self.log_shares.max()).exp()
        error = math.sqrt(self._squared_error + self._relative_error() ** 2)
        # Each batch stands for as much of the sample as of the volume.
        ends = (shares.cumsum(dim=0) / shares.sum() * n + self._cube.rand(1)).floor().long()
        ends[-1] = n
        counts = ends.diff(prepend=ends.new_zeros(1)).tolist()
        clouds = [self._unit]
        while len(clouds) * self._size < max(counts):
            self._sweep()
            clouds.append(self._unit)
        stack = torch.stack([cloud.reshape(_BATCHES, self._size, -1) for cloud in clouds], dim=1)
        chosen = torch.cat(
            [
                batch.flatten(end_dim=1)[self._cube.shuffle(len(clouds) * self._size)[:count]]
                for batch, count in zip(stack, counts, strict=True)
            ]
        )
        points = self._cube.points(chosen[self._cube.shuffle(n)])
        volume = min(math.exp(self._log_volume()), 1.0)
        return SetSample(points, volume, volume * error)

    def _relative_error(self) -> float:
        shares = (self.log_shares - self.log_shares.max()).exp()
        return (shares.std() / shares.mean()).item() / math.sqrt(_BATCHES)

    def _log_volume(self) -> float:
        return self.log_shares.logsumexp(dim=0).item() - math.log(_BATCHES)

    def _raise_level(self) -> bool:
        level = _next_level(self._value)
        before = self._unit
        survivors, owners = [], []
        rounds = hits = 0
        while rounds < _ROUNDS and hits < _ENOUGH * len(self._value):
            if rounds > 0:
                self._again()
            keep = self._value >= level
            survivors.append(torch.cat([self._unit[keep], self._value[keep, None]], dim=1))
            owners.append(self._owner[keep])
            rounds, hits = rounds + 1, hits + len(owners[-1])
        self._tried = rounds * len(self._value)
        if hits == 0:
            return False
        kept, owner = torch.cat(survivors), torch.cat(owners)
        per_batch = torch.bincount(owner, minlength=_BATCHES)
        self.log_shares = self.log_shares + (per_batch / (rounds * self._size)).log()
        if bool((per_batch == 0).any()):
            # A batch has died. Start all of them anew from their mean, whose error is noted.
            self._squared_error += self._relative_error() ** 2
            self.log_shares = torch.full_like(self.log_shares, self._log_volume())
        self.level = level
        chosen = kept[torch.cat([self._heirs(owner, batch) for batch in range(_BATCHES)])]
        self._unit, self._value = chosen[:, :-1].contiguous(), chosen[:, -1].clone()
        few = hits < 4 * _neighbours(self._cube.dim)
        floor = torch.zeros(self._cube.dim, dtype=kept.dtype, device=kept.device)
        if few:
            # Too few for a covariance: as large as a part of the last cloud of that volume.
            share = hits / (rounds * len(before))
            floor = before.std(dim=0) * (0.5 * share ** (1.0 / self._cube.dim))
        self._fit(kept[:, :-1], owner, floor)
        self._sweep()
        for _ in range(3 if few else 0):
            self._fit(self._unit, self._owner, 0.0 * floor)
            self._sweep()
        return True

    def _heirs(self, owner: Tensor, batch: int) -> Tensor:
        """Rows of survivors that a batch goes on with: its own, or any if it has none."""
        rows = (owner == batch).nonzero().squeeze(1)
        if len(rows) == 0:
            rows = torch.arange(len(owner), device=owner.device)
        return self._cube.cycle(rows, self._size)

    def _again(self) -> None:
        """Other particles above the same level."""
        if self._mixtures:
            self._jump()
            self._walk()
        else:
            self._unit, self._value = self._source.draw()

    def _fit(self, places: Tensor, owner: Tensor, floor: Tensor) -> None:
        first = owner < _BATCHES // 2
        # What moves one half of the batches is fitted to the other.
        others = [places[~first], places[first]]
        self._mixtures = [
            _Mixture(self._cube, other if len(other) > 1 else places, floor) for other in others
        ]

    def _sweep(self) -> None:
        for step in range(self._walks):
            if step * _JUMPS % self._walks < _JUMPS:
                self._jump()
            self._walk()

    def _walk(self) -> None:
        """A step from the mixture, or one coordinate drawn anew."""
        n, cube = len(self._unit), self._cube
        steps = torch.cat([mixture.steps(n // 2) for mixture in self._mixtures])
        # Pieces differ in size and a mixture of strides fits them all.
        stride = self._stride * (_STRIDES * cube.randn(n, 1)).exp()
        # Refused at the walls, not reflected: a reflected step is as likely forth as back only if
        # its coordinates are uncorrelated.
        proposal = self._unit + stride * steps
        redrawn = cube.rand(n) < (_REDRAWS_LISTS if cube.lists else _REDRAWS)
        rows = redrawn.nonzero().squeeze(1)
        column = cube.randint(cube.dim, len(rows))
        if cube.lists:
            lists = torch.tensor(cube.lists, device=column.device)
            listed = lists[cube.randint(len(lists), len(rows))]
            column = torch.where(cube.rand(len(rows)) < 0.75, listed, column)
        proposal[rows] = self._unit[rows]
        proposal[rows, column] = cube.rand(len(rows))
        accepted = self._move(proposal, _in_cube(proposal))
        share = accepted[~redrawn].double().mean().item()
        self._stride *= math.exp(share - _ACCEPTANCE)
        self._stride = min(max(self._stride, 1e-3), 1e3)

    def _jump(self) -> None:
        """A new place from the mixture, wherever it is."""
        n = len(self._unit) // 2
        proposals, passing = [], []
        for mixture, unit in zip(self._mixtures, self._unit.split(n), strict=True):
            place = mixture.draw(n)
            ratio = mixture.log_density(unit) - mixture.log_density(place)
            proposals.append(place)
            passing.append(_in_cube(place) & (self._cube.rand(n).log() < ratio))
        self._move(torch.cat(proposals), torch.cat(passing))

    def _move(self, proposal: Tensor, passing: Tensor) -> Tensor:
        """Accept what passes and is above the level; asks for the margin only where it matters."""
        rows = passing.nonzero().squeeze(1)
        value = self._cube.value(proposal[rows])
        above = value >= self.level
        rows, value = rows[above], value[above]
        self._unit = self._unit.index_copy(0, rows, proposal[rows])
        self._value = self._value.index_copy(0, rows, value)
        accepted = torch.zeros_like(passing)
        accepted[rows] = True
        return accepted


def _in_cube(unit: Tensor) -> Tensor:
    return ((unit >= 0.0) & (unit <= 1.0)).all(dim=1)


def _neighbours(dim: int) -> int:
    """How many points give a covariance: enough for that, few enough to be of one piece."""
    return 2 * dim + 16


def _next_level(value: Tensor) -> float:
    """Just above the median, but no more than 0."""
    median = value.sort(descending=True).values[(len(value) - 1) // 2].item()
    # The next number, not the next value seen: without the particle that sets the level, the share
    # of those above it is unbiased, and what lies above a plateau is a fixed set.
    return 0.0 if median >= 0.0 else math.nextafter(median, math.inf)


def _around(cube: UnitCube, anchors: Tensor, n: int, particles: int, highest: str) -> Tensor:
    """Points around anchors, ``n x d``: slices along random lines (Neal 2003, section 4)."""
    inside = cube.margin(anchors) >= 0.0
    if not inside.any():
        raise EmptyDomainError(
            f"No point with a margin of at least 0 was found: {highest}, and no anchor has one."
        )
    anchors = anchors[inside]
    chains = min(n, particles)
    rows = cube.cycle(torch.arange(len(anchors), device=anchors.device), chains)
    # Points beside their coordinates in the cube: an anchor may be inside by less than rounding.
    X, unit = anchors[rows], cube.from_domain(anchors)[rows]
    collected: list[Tensor] = []
    moves = 0
    while len(collected) * chains < n:
        X, unit = _slice(cube, X, unit)
        moves += 1
        if moves >= _ANCHOR_MOVES and (moves - _ANCHOR_MOVES) % _ANCHOR_THINNING == 0:
            collected.append(X)
    return torch.cat(collected)[:n]


def _slice(cube: UnitCube, X: Tensor, unit: Tensor) -> tuple[Tensor, Tensor]:
    k, d = unit.shape
    spread = unit.std(dim=0, correction=0)
    spread = spread / spread.max() if bool(spread.max() > 0.0) else torch.ones_like(spread)
    line = cube.randn(k, d) * spread.clamp_min(1e-9)
    axis = torch.nn.functional.one_hot(cube.randint(d, k), d).to(line)
    line = torch.where(cube.rand(k, 1) < 0.5, axis, line / line.norm(dim=1, keepdim=True))
    walls = torch.stack([-unit / line, (1.0 - unit) / line])
    walls = torch.where(line == 0.0, math.inf, walls)
    high = torch.where(line == 0.0, math.inf, walls.amax(dim=0)).amin(dim=1)
    low = torch.where(line == 0.0, -math.inf, walls.amin(dim=0)).amax(dim=1)
    X, start, unit = X.clone(), unit, unit.clone()
    left = torch.arange(k, device=unit.device)
    for _ in range(_ANCHOR_CUTS):
        if len(left) == 0:
            break
        at = low[left] + (high[left] - low[left]) * cube.rand(len(left))
        place = (start[left] + at.unsqueeze(1) * line[left]).clamp(0.0, 1.0)
        points = cube.points(place)
        inside = cube.margin(points) >= 0.0
        X[left[inside]], unit[left[inside]] = points[inside], place[inside]
        left, at = left[~inside], at[~inside]
        low[left] = torch.where(at < 0.0, at, low[left])
        high[left] = torch.where(at < 0.0, high[left], at)
    return X, unit
