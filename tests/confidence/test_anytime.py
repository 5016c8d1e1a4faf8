"""Bounds from all answers: against the dense formula, and on functions of known norm."""

import math

import numpy as np
import pytest
import torch
from cases import generator, normal, scattered, se
from oracle import kernel_function
from scipy import stats

from botorch_delay.confidence import anytime
from botorch_delay.confidence.anytime import (
    KEPT_RIDGES,
    CandidateEllipsoids,
    Ellipsoids,
    noise_energy,
)
from botorch_delay.gp.kernels import covariance
from botorch_delay.history.answers import Answers

POINTS = scattered(150, seed=5)
KERNEL = se(0.3)
STD, DELTA = 0.2, 0.1


def test_the_energy_of_the_noise_stays_below_its_bound():
    squares = torch.randn(4000, 300, generator=generator(1), dtype=torch.double).square()
    sums = squares.cumsum(dim=1)
    bound = torch.tensor([noise_energy(m, 0.05) for m in range(1, 301)], dtype=torch.double)
    exceeded = (sums > bound).any(dim=1).double().mean().item()
    assert exceeded <= 0.05
    assert (sums > bound / 1.5).any(dim=1).double().mean().item() > 0.05
    # Above the quantile for one number of asks; holding for all numbers costs less than ``price``.
    for n, price in [(30, 16), (300, 35), (3000, 125), (100_000, 1200)]:
        least = stats.chi2.ppf(0.95, n)
        assert least < noise_energy(n, 0.05) < least + price


@pytest.mark.parametrize("delta", [0.3, 0.05, 1e-6])
@pytest.mark.parametrize("n", [0, 1, 40, 1000, 10**6])
def test_the_bound_on_the_energy_solves_the_equation_of_its_proof(n, delta):
    u = np.geomspace(0.01, 0.45, 24)
    p = np.exp(-0.5 * (np.log(u / 0.12) / 0.9) ** 2)
    exponents = np.log(p / p.sum()) + 0.5 * n * np.log1p(-2 * u) + u * noise_energy(n, delta)
    reached = np.logaddexp.reduce(exponents) + np.log(delta)
    assert 0.0 <= reached < 1e-8 * (n + 100)


def test_the_energy_of_groups_stays_below_its_bound():
    """Points are chosen adversarially: asked again where the noise so far is large."""
    exceeded = {1.0: 0, 1.5: 0}
    for seed in range(100):
        g = generator(seed)
        noise = torch.randn(200, generator=g, dtype=torch.double).tolist()
        sums, counts, energies, begun = [0.0] * 10, [0] * 10, [], []
        groups = {}
        for e in noise:
            point = max(range(10), key=lambda i: abs(sums[i]) / max(counts[i], 1) ** 0.5)
            if abs(sums[point]) < counts[point] ** 0.5:
                point = counts.index(min(counts))
            key = point, counts[point].bit_length()
            groups.setdefault(key, []).append(e)
            sums[point] += e
            counts[point] += 1
            whole = [v for (_, n), v in groups.items() if len(v) == max(2 ** (n - 1), 1)]
            energies.append(sum(sum(v) ** 2 / len(v) for v in whole))
            begun.append(len(groups))
        for divide in exceeded:
            limits = [noise_energy(n, 0.05) / divide for n in begun]
            exceeded[divide] += any(a > b for a, b in zip(energies, limits, strict=True))
    assert exceeded[1.0] <= 5
    assert exceeded[1.5] > 0


def test_groups_of_asks_double():
    points = torch.tensor([5, 2, 5, 5, 2, 5, 5, 5, 9, 5, 5, 5])
    groups, sizes = anytime.doubling_groups(points)
    seen, first = {}, []
    for point in points.tolist():
        number = seen.get(point, 0)
        seen[point] = number + 1
        first.append((point, number.bit_length()))
    assert sizes.tolist() == [1, 1, 1, 2, 1, 2, 4, 4, 1, 4, 4, 8]
    same = groups.unsqueeze(0) == groups.unsqueeze(1)
    assert same.tolist() == [[a == b for b in first] for a in first]
    assert len(groups.unique()) == sum(map(anytime.group_count, seen.values())) == 5 + 2 + 1
    assert [len(part) for part in anytime.doubling_groups(points[:0])] == [0, 0]


def test_what_answers_scatter_within_groups_is_known(monkeypatch):
    kernel, group = se(0.3), torch.arange(30).repeat_interleave(4)
    X = scattered(30)[group]
    y = X.sum(dim=1) + 0.1 * torch.randn(120, generator=generator(3), dtype=torch.double)
    answers = Answers(X, y, torch.full_like(y, torch.nan), group)
    means = torch.stack([y[group == n].mean() for n in range(30)])
    energy = noise_energy(30, 0.1) * 0.01 + float((y - means[group]).square().sum())
    found = Ellipsoids(kernel, answers, 0.1, 30, 0.1, group).bounds(POINTS, 3.0)
    monkeypatch.setattr(anytime, "noise_energy", lambda begun, delta: energy / 0.01)
    plain = Ellipsoids(kernel, answers, 0.1, 120, 0.1)
    for bound, expected in zip(found, plain.bounds(POINTS, 3.0), strict=True):
        torch.testing.assert_close(bound, expected)


def test_it_is_the_dense_formula():
    k, X = kernel_function(KERNEL), POINTS.numpy()
    rows = [3, 40, 3, 77, 12, 3, 40, 140]
    values = (1.0 + 0.3 * normal(8)).tolist()
    bounds = CandidateEllipsoids(KERNEL, POINTS, 2.0, STD, DELTA)
    lower, upper = -2.0 * np.ones(150), 2.0 * np.ones(150)
    for number, (row, y) in enumerate(zip(rows, values, strict=True)):
        bounds.tell(row, y, asks=2 * number + 1)  # every second ask has no answer
        S, told = X[rows[: number + 1]], np.array(values[: number + 1])
        energy = noise_energy(2 * number + 1, DELTA)
        for ridge in KEPT_RIDGES:
            a = (ridge * STD) ** 2
            inverse = np.linalg.inv(k(S, S) + a * np.eye(len(S)))
            cross = k(S, X)
            mean = cross.T @ inverse @ told
            deviation = np.sqrt(1.0 - np.einsum("ij,ik,kj->j", cross, inverse, cross))
            b = math.sqrt(4.0 + energy * STD**2 / a - told @ inverse @ told)
            lower = np.maximum(lower, mean - b * deviation)
            upper = np.minimum(upper, mean + b * deviation)
        np.testing.assert_allclose(bounds.lower.numpy(), lower, atol=1e-9)
        np.testing.assert_allclose(bounds.upper.numpy(), upper, atol=1e-9)
    assert not bounds.refuted


def play(seed, divide, asks=120):
    """Points are chosen by the bounds; answers whose noise is above a threshold never come."""
    g = generator(seed)
    centres = POINTS[torch.randperm(150, generator=g)[:15]]
    weights = torch.randn(15, generator=g, dtype=torch.double)
    f = covariance(KERNEL, POINTS, centres) @ weights
    norm = (weights @ covariance(KERNEL, centres, centres) @ weights).sqrt().item()
    bounds = CandidateEllipsoids(KERNEL, POINTS, norm / divide, STD / divide, DELTA)
    for ask in range(1, asks + 1):
        row = int(bounds.upper.argmax())
        noise = STD * torch.randn((), generator=g, dtype=torch.double).item()
        if noise < STD:  # which answers are missing depends on their noise
            bounds.tell(row, f[row].item() + noise, ask)
    slack = 1e-9
    holds = bool((bounds.lower <= f + slack).all() and (f <= bounds.upper + slack).all())
    return holds, (bounds.upper - bounds.lower).mean().item() / (2.0 * norm)


def test_bounds_hold_for_points_and_missing_answers_chosen_against_them():
    right = [play(seed, 1.0) for seed in range(5)]
    assert all(holds for holds, _ in right)
    assert sum(width for _, width in right) / 5 < 0.5  # and the bounds are not trivial
    assert sum(holds for holds, _ in (play(seed, 5.0) for seed in range(5))) < 3


def test_answers_that_no_such_function_could_give_are_noticed():
    bounds = CandidateEllipsoids(KERNEL, POINTS, 0.1, 0.01, DELTA)
    before = bounds.upper.clone()
    bounds.tell(0, 50.0, 1)
    assert bounds.refuted
    assert torch.equal(bounds.upper, before)


@pytest.mark.parametrize("dtype", [torch.double, torch.float])
def test_nearly_exact_answers_never_give_an_empty_interval(dtype):
    X = POINTS.to(dtype)
    kernel = se(0.3).to(dtype)
    f = covariance(KERNEL, POINTS, POINTS[:1]).squeeze(1)
    std = 1e-3 if dtype is torch.float else 1e-6
    bounds = CandidateEllipsoids(kernel, X, 1.0, std, DELTA)
    for ask in range(60):
        bounds.tell(ask, f[ask].item(), ask + 1)
    assert not bounds.refuted
    assert (bounds.lower <= f.to(dtype)).all()
    assert (bounds.upper >= f.to(dtype)).all()


@pytest.mark.parametrize("repeats", [1, 4], ids=["once", "repeated"])
def test_the_least_norm_is_below_the_norm_whatever_the_noise(repeats):
    """Rademacher noise that outweighs the function must not count as norm."""
    kernel, X = se(0.3), scattered(40)
    group = torch.arange(40).repeat(repeats)
    for seed in range(10):
        g = generator(seed)
        weights = torch.randn(40, dtype=torch.double, generator=g)
        K = covariance(kernel, X, X)
        f = K @ weights / (weights @ K @ weights).sqrt()  # of norm 1
        for scale, least in ((0.5, 0.0), (1e-3, 0.9)):
            signs = 2.0 * torch.randint(2, (40 * repeats,), generator=g).double() - 1.0
            y = f.repeat(repeats) + scale * signs
            answers = Answers(X[group], y, torch.full_like(y, torch.nan), group)
            found = Ellipsoids(kernel, answers, scale, len(y), 0.1).norm_at_least
            assert least <= found <= 1.0
            assert Ellipsoids(kernel, answers, 0.3 * scale, len(y), 0.1).norm_at_least > found


def test_the_least_norm_is_of_the_most_answered_points_where_there_are_many(monkeypatch):
    kernel, X = se(0.3), scattered(60)
    y, unknown = X.sum(dim=1), torch.full((60,), torch.nan, dtype=torch.double)
    group = torch.arange(60)
    few = Answers(X[:20], y[:20], unknown[:20], group[:20])
    monkeypatch.setattr(anytime, "MAX_POINTS", 20)
    capped = Ellipsoids(kernel, Answers(X, y, unknown, group), 0.01, 20, 0.1).norm_at_least
    assert capped == pytest.approx(Ellipsoids(kernel, few, 0.01, 20, 0.1).norm_at_least)
