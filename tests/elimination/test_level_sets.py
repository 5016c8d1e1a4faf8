"""Samples and volumes of small sets, against sets whose volume and shape are known."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from cases import generator
from scale import some
from torch import Tensor

from botorch_delay.domains.box import BoxDomain
from botorch_delay.elimination.level_sets import SetSample, sample_set
from botorch_delay.exceptions import EmptyDomainError

Margin = Callable[[Tensor], Tensor]


def box(d: int, **options: object) -> BoxDomain:
    bounds = torch.stack([torch.zeros(d), torch.ones(d)]).double()
    return BoxDomain(bounds, **options)  # type: ignore[arg-type]


class Balls:
    """Two balls in the unit cube with a given total volume, divided in given shares."""

    def __init__(self, d: int, volume: float, shares: tuple[float, float] = (0.3, 0.7)) -> None:
        unit = math.pi ** (d / 2) / math.gamma(d / 2 + 1)
        radii = [(volume * share / unit) ** (1 / d) for share in shares]
        self.radii = torch.tensor(radii, dtype=torch.double)
        self.centres = torch.tensor([[0.25] * d, [0.7] * d], dtype=torch.double)
        self.volume, self.shares, self.d = volume, shares, d
        self.calls = self.evaluations = 0

    def __call__(self, X: Tensor) -> Tensor:
        self.calls, self.evaluations = self.calls + 1, self.evaluations + len(X)
        return (self.radii - torch.cdist(X, self.centres)).amax(dim=1)

    def first(self, X: Tensor) -> Tensor:
        """Which points are in the first ball."""
        return (X - self.centres[0]).norm(dim=1) <= self.radii[0]

    def layers(self, X: Tensor) -> Tensor:
        """Share of the ball's volume that lies further in: uniform if the points are."""
        near = (X.unsqueeze(1) - self.centres).norm(dim=2) / self.radii
        return near.amin(dim=1) ** self.d


# Largest z-score allowed: errors come from 16 batches that share levels, so tails are heavy.
WIDE = 4.0


def z_score(sample: SetSample, volume: float) -> float:
    return math.log(sample.volume / volume) * sample.volume / sample.volume_error


def assert_uniform(numbers: Tensor, effective: int) -> None:
    """Kolmogorov-Smirnov test at 1 %, as if ``effective`` of the numbers were independent."""
    n = len(numbers)
    ranks = torch.arange(1, n + 1, dtype=torch.double) / n
    assert (numbers.sort().values - ranks).abs().max().item() < 1.63 / math.sqrt(effective)


def terraces(margin: Margin) -> Margin:
    """The margin in steps: -0.1 and below in steps of 0.1, then -0.02, and 0 inside."""

    def stepped(X: Tensor) -> Tensor:
        value = margin(X)
        step = torch.where(value < -0.02, (value * 10).floor() / 10, -0.02)
        return torch.where(value >= 0.0, torch.zeros_like(value), step)

    return stepped


@pytest.mark.parametrize("seed", some(range(5), 1))
def test_two_balls_of_a_millionth(seed: int) -> None:
    balls = Balls(4, 1e-6)
    sample = sample_set(box(4), balls, 4096, generator(seed))
    assert sample.points.shape == (4096, 4)
    assert (balls(sample.points) >= 0.0).all()
    assert abs(sample.volume / 1e-6 - 1.0) < 0.2
    assert abs(z_score(sample, 1e-6)) < WIDE
    first = balls.first(sample.points)
    assert abs(first.double().mean().item() - 0.3) < 3 * 0.007
    for piece in (first, ~first):
        assert_uniform(balls.layers(sample.points[piece]), int(piece.sum()) // 2)
        centre = balls.centres[0 if piece is first else 1]
        direction = torch.nn.functional.normalize(sample.points[piece] - centre)
        spread = 1.0 / math.sqrt(4 * int(piece.sum()) / 2)
        assert direction.mean(dim=0).abs().max().item() < 3.5 * spread
    assert len(torch.unique(sample.points, dim=0)) > 0.95 * 4096
    assert balls.evaluations < 1_000_000


def test_shares_of_pieces_vary_as_between_independent_points() -> None:
    balls = Balls(4, 1e-6)
    shares = torch.tensor(
        [
            balls.first(sample_set(box(4), balls, 512, generator(seed), particles=512).points)
            .double()
            .mean()
            .item()
            for seed in range(3)
        ]
    )
    error = math.sqrt(0.3 * 0.7 / 512)
    assert abs(shares.mean().item() - 0.3) < 3 * error / math.sqrt(3)
    assert shares.std().item() < 1.7 * error


def test_reported_errors_are_calibrated() -> None:
    balls = Balls(3, 1e-4)
    scores = torch.tensor(
        [
            z_score(sample_set(box(3), balls, 10, generator(seed), particles=512), 1e-4)
            for seed in range(6)
        ]
    )
    assert 0.5 < scores.square().mean().sqrt().item() < 2.0
    assert scores.abs().max().item() < 4.0


@pytest.mark.parametrize("seed", some(range(5), 1))
def test_plateaus(seed: int) -> None:
    balls = Balls(4, 1e-6)
    sample = sample_set(box(4), terraces(balls), 2048, generator(seed), particles=2048)
    assert (balls(sample.points) >= 0.0).all()
    assert abs(z_score(sample, 1e-6)) < WIDE
    assert sample.volume_error < 0.35 * sample.volume
    assert abs(balls.first(sample.points).double().mean().item() - 0.3) < 0.1


def test_nothing_to_go_by_in_most_of_the_box() -> None:
    # Hard constraints: the margin is -inf, or nan, which counts as -inf, in 99.6 % of the box.
    balls = Balls(2, 1e-5)

    def margin(X: Tensor) -> Tensor:
        value = balls(X)
        return torch.where(value >= -0.02, value, torch.where(X[:, 0] < 0.5, -math.inf, math.nan))

    sample = sample_set(box(2), margin, 1000, generator(0), particles=1024)
    assert abs(z_score(sample, 1e-5)) < WIDE
    assert abs(balls.first(sample.points).double().mean().item() - 0.3) < 0.1


def test_lists_of_values_and_logarithms() -> None:
    # Some of the 5 x 4 cells hold a disc in (log x0, x2); their radii give the exact volume.
    bounds = torch.tensor([[1e-4, 1.0, -2.0, 0.0], [1e0, 9.0, 2.0, 3.0]], dtype=torch.double)
    domain = BoxDomain(
        bounds, {1: [1, 2, 4, 8, 9]}, {3: [0, 1, 2, 3]}, log_dims=[0]
    )  # x2 alone is an ordinary continuous column
    radii = torch.zeros(10, 4, dtype=torch.double) - 0.1
    radii[1, 0], radii[4, 2], radii[8, 2], radii[9, 3] = 0.006, 0.012, 0.006, 0.009

    def margin(X: Tensor) -> Tensor:
        u = X[:, 0].log10() / 4 + 1.0
        w = (X[:, 2] + 2.0) / 4
        cell = X[:, 1].long(), X[:, 3].long()
        centre = 0.2 + 0.06 * X[:, 1]
        return radii[cell] - ((u - centre).square() + (w - 0.5).square()).sqrt()

    inside = radii.clamp_min(0.0).square() * math.pi / 20
    sample = sample_set(domain, margin, 2000, generator(1), particles=2048)
    assert domain.contains(sample.points).all()
    assert (margin(sample.points) >= 0.0).all()
    assert abs(z_score(sample, inside.sum().item())) < WIDE
    assert abs(sample.volume / inside.sum().item() - 1.0) < 0.2
    expected = inside / inside.sum()
    for a, c in inside.nonzero().tolist():
        share = ((sample.points[:, 1] == a) & (sample.points[:, 3] == c)).double().mean().item()
        error = math.sqrt(expected[a, c].item() * (1 - expected[a, c].item()) / 2000)
        assert abs(share - expected[a, c].item()) < 4 * error


def test_all_columns_are_lists() -> None:
    values = list(range(32))
    bounds = torch.tensor([[0.0] * 4, [31.0] * 4], dtype=torch.double)
    domain = BoxDomain(bounds, dict.fromkeys(range(4), values))
    target = torch.tensor([[3.0, 20.0, 8.0, 30.0], [25.0, 5.0, 16.0, 2.0]], dtype=torch.double)

    def margin(X: Tensor) -> Tensor:
        return 1.0 - torch.cdist(X, target, p=1.0).amin(dim=1)

    # The set is each target and its eight neighbours.
    sample = sample_set(domain, margin, 1000, generator(0), particles=1024)
    assert abs(z_score(sample, 18 / 32**4)) < WIDE
    assert len(torch.unique(sample.points, dim=0)) == 18


@pytest.mark.parametrize("seed", some(range(3), 1))
def test_one_column(seed: int) -> None:
    def margin(X: Tensor) -> Tensor:
        x = X[:, 0]
        return torch.maximum(3e-7 - (x - 0.3).abs(), 2e-7 - (x - 0.9).abs())

    sample = sample_set(box(1), margin, 1024, generator(seed), particles=1024)
    assert abs(z_score(sample, 1e-6)) < WIDE
    assert abs((sample.points < 0.5).double().mean().item() - 0.6) < 0.06
    left = sample.points[sample.points < 0.5]
    assert_uniform((left - 0.3 + 3e-7) / 6e-7, len(left) // 2)


def test_ten_columns() -> None:
    balls = Balls(10, 1e-8)
    sample = sample_set(box(10), balls, 1024, generator(0), particles=1024)
    assert abs(z_score(sample, 1e-8)) < WIDE
    assert abs(balls.first(sample.points).double().mean().item() - 0.3) < 0.07
    assert_uniform(balls.layers(sample.points), 1024 // 3)


@pytest.mark.parametrize("share", [0.03, 0.4, 1.0])
def test_large_sets(share: float) -> None:
    calls = []

    def margin(X: Tensor) -> Tensor:
        calls.append(len(X))
        return share - X[:, 0]

    sample = sample_set(box(2), margin, 500, generator(0), particles=1024)
    assert sample.points.shape == (500, 2)
    assert abs(sample.volume - share) <= 3 * sample.volume_error
    assert 0.0 < sample.volume_error < 0.1 * share
    assert sum(calls) < 500 / 0.02 + 1024
    assert_uniform(sample.points[:, 0] / share, 500)


@pytest.mark.parametrize("d", [3, 7])
def test_corners_and_walls(d: int) -> None:
    # A simplex in a corner: most particles are near a wall, and one face is oblique.
    side = 0.01 if d == 3 else 0.3
    volume = side**d / math.factorial(d)
    sample = sample_set(box(d), lambda X: side - X.sum(dim=1), 2048, generator(0), particles=2048)
    assert abs(z_score(sample, volume)) < WIDE
    mean = torch.full((d,), 1.0 / (d + 1), dtype=torch.double)
    assert torch.allclose(sample.points.mean(dim=0) / side, mean, atol=0.015)
    assert_uniform((sample.points.sum(dim=1) / side) ** d, 2048 // 3)


def test_the_volume_of_a_corner_varies_little() -> None:
    # Steps in all columns at once would mostly leave the box, so particles would hardly move.
    volume, found = 0.3**7 / math.factorial(7), []
    for seed in range(8):
        sample = sample_set(
            box(7), lambda X: 0.3 - X.sum(dim=1), 256, generator(seed), particles=1024
        )
        found.append(sample.volume)
    logs = torch.tensor(found).div(volume).log()
    assert logs.std().item() < 0.37
    assert abs(logs.mean().item()) < 0.2


def test_a_sliver() -> None:
    # Narrow across a diagonal, long along it.
    def margin(X: Tensor) -> Tensor:
        along, across = (X - 0.5).sum(dim=1) / 2**0.5, (X[:, 0] - X[:, 1]) / 2**0.5
        return 1.0 - ((along / 0.4).square() + (across / 1e-5).square()).sqrt()

    sample = sample_set(box(2), margin, 2048, generator(0), particles=2048)
    assert abs(z_score(sample, math.pi * 0.4e-5)) < WIDE
    along = (sample.points - 0.5).sum(dim=1) / 2**0.5 / 0.4
    assert abs(along.mean().item()) < 0.04
    assert abs(along.square().mean().item() - 0.25) < 0.03


def test_more_and_fewer_points_than_particles() -> None:
    balls = Balls(2, 1e-4)
    few = sample_set(box(2), balls, 1, generator(0), particles=512)
    calls, balls.calls = balls.calls, 0
    many = sample_set(box(2), balls, 3000, generator(0), particles=512)
    assert balls.calls - calls == 5 * 2 * 4  # 3000 points need five more clouds of particles
    assert many.points.shape == (3000, 2)
    assert few.points.shape == (1, 2)
    assert few.volume == many.volume
    assert len(torch.unique(many.points, dim=0)) > 0.9 * 3000
    assert (balls(many.points) >= 0.0).all()


@pytest.mark.parametrize("margin", [lambda X: -0.1 - X.square().sum(1), lambda X: -1 + 0 * X[:, 0]])
def test_an_empty_set_is_refused(margin: Margin) -> None:
    with pytest.raises(EmptyDomainError, match="No point of the box was found"):
        sample_set(box(3), margin, 10, generator(0), particles=256)


def test_an_anchor_stands_for_a_set_that_is_not_found() -> None:
    # Nothing leads to the ball: the margin is -1 right up to it.
    anchor = torch.tensor([[0.1, 0.7, 0.3, 0.4]], dtype=torch.double)

    def margin(X: Tensor) -> Tensor:
        return torch.where((X - anchor).norm(dim=1) <= 1e-4, 1.0, -1.0).double()

    sample = sample_set(box(4), margin, 7, generator(0), anchor=anchor, particles=256)
    assert torch.equal(sample.points, anchor.expand(7, 4))
    assert 0.0 < sample.volume < 1e-4
    assert sample.volume_error == sample.volume


@pytest.mark.parametrize("volume", [1e-4, 0.2])
def test_same_seed_same_sample(volume: float) -> None:
    # A fixture checks after every test that no global random state has changed.
    def margin(X: Tensor) -> Tensor:
        return volume**0.5 - X.amax(dim=1)

    first, second, other = (
        sample_set(box(2), margin, 100, generator(seed), particles=256) for seed in (0, 0, 1)
    )
    assert torch.equal(first.points, second.points)
    assert (first.volume, first.volume_error) == (second.volume, second.volume_error)
    assert not torch.equal(first.points, other.points)


@pytest.mark.filterwarnings("ignore:The points have dtype")
def test_single_precision() -> None:
    domain = BoxDomain(torch.tensor([[0.0, 0.0], [1.0, 2.0]]))
    sample = sample_set(domain, lambda X: 1e-3 - X[:, 0], 300, generator(0), particles=512)
    assert sample.points.dtype == torch.float32
    assert domain.contains(sample.points).all()
    assert abs(z_score(sample, 1e-3)) < 3.5


@pytest.mark.cuda
def test_on_a_gpu() -> None:
    domain = BoxDomain(torch.tensor([[0.0] * 3, [1.0] * 3], dtype=torch.double, device="cuda"))
    for side in (0.02, 0.5):

        def margin(X: Tensor, side: float = side) -> Tensor:
            return side - X.amax(dim=1)

        sample = sample_set(domain, margin, 500, generator(0), particles=512)
        assert sample.points.device.type == "cuda"
        assert abs(z_score(sample, side**3)) < 4.0
