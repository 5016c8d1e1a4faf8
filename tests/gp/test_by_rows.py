import random

import pytest
import torch
from cases import KERNELS, normal, scattered, se
from oracle import kernel_function, posterior

from botorch_delay.gp.candidates import CandidatePosterior


def dense(kernel, state, points):
    """Mean and variance from the answers as they stand, solved anew."""
    X = torch.stack([x for x, _, _ in state.values()]).numpy()
    y = torch.tensor([value for _, value, _ in state.values()], dtype=torch.double).numpy()
    noise = torch.tensor([noise for _, _, noise in state.values()], dtype=torch.double).numpy()
    mean, variance, _ = posterior(kernel_function(kernel), X, y, noise, points.numpy())
    return torch.from_numpy(mean), torch.from_numpy(variance)


def agrees(tracked, kernel, state, points, tolerance):
    mean, variance = dense(kernel, state, points)
    torch.testing.assert_close(tracked.mean, mean, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(tracked.variance, variance, rtol=tolerance, atol=tolerance)


def some_change(rng, points, state, noise):
    """Set, change or take out a candidate or a point from elsewhere."""
    key = rng.randrange(15) if rng.random() < 0.8 else -rng.randrange(1, 5)
    if key in state and rng.random() < 0.3:
        del state[key]
        return {key: None}
    x = points[key] if key >= 0 else torch.full((2,), 1.0 - 0.1 * key, dtype=torch.double)
    state[key] = (x, rng.gauss(0, 1), noise / rng.choice([1, 1, 2, 7]))
    return {key: state[key]}


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("noise", [1e-4, 1e-2, 1.0])
def test_any_sequence_of_changes_equals_a_posterior_solved_anew(kernel, noise):
    kernel, points, rng = KERNELS[kernel]().requires_grad_(False), scattered(40), random.Random(1)
    tracked, state = CandidatePosterior(kernel, points), {}
    for _ in range(80):
        tracked.update(some_change(rng, points, state, noise))
        assert len(tracked) == len(state)
        if state:
            agrees(tracked, kernel, state, points, 1e-8)
        else:
            assert tracked.mean.abs().max() < 1e-8
    assert set(tracked.keys) == set(state)


def test_many_changes_at_once_equal_one_by_one():
    kernel, points, rng = se(), scattered(40), random.Random(2)
    one, batch, state = CandidatePosterior(kernel, points), CandidatePosterior(kernel, points), {}
    for _ in range(10):
        changes = {}
        for _ in range(12):
            change = some_change(rng, points, state, 1e-2)
            one.update(change)
            changes |= change
        batch.update(changes)
        torch.testing.assert_close(one.mean, batch.mean, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(one.variance, batch.variance, rtol=1e-9, atol=1e-9)


def test_memory_counts_distinct_points():
    kernel, points = se(), scattered(30)
    tracked = CandidatePosterior(kernel, points)
    for n in range(1, 400):
        tracked.update({n % 7: (points[n % 7], 0.1 * (n % 3), 1e-2 / n)})
    assert len(tracked) == 7
    assert len(tracked._rows) == 8


def test_thousands_of_changes_leave_rounding_only():
    kernel, points, rng = se(), scattered(30), random.Random(3)
    tracked, state = CandidatePosterior(kernel, points), {}
    for n in range(1, 4000):
        key = rng.randrange(12)
        state[key] = (points[key], rng.gauss(0, 1), 1e-2 / (1 + n // 12))
        tracked.update({key: state[key]})
    agrees(tracked, kernel, state, points, 1e-8)


def test_the_correction_is_that_of_a_path():
    kernel, points = se(), scattered(25)
    tracked = CandidatePosterior(kernel, points)
    for key in (3, 9, 14):
        tracked.update({key: (points[key], 1.0, 1e-2)})
    residual = normal(3)
    at = points[tracked.keys].numpy()
    expected, _, _ = posterior(kernel_function(kernel), at, residual.numpy(), 1e-2, points.numpy())
    torch.testing.assert_close(tracked.correction(residual), torch.from_numpy(expected))


@pytest.mark.parametrize("noise", [1e-10, 1e-7])
def test_tiny_noise_gives_no_negative_variance_and_no_nan(noise):
    kernel, points, rng = se(2.0), scattered(60), random.Random(4)
    tracked = CandidatePosterior(kernel, points)
    for _ in range(150):
        key = rng.randrange(30)
        tracked.update({key: (points[key], 1.0, noise / rng.choice([1, 3]))})
        assert bool(torch.isfinite(tracked.mean).all())
        assert bool((tracked.variance >= 0).all())
        assert bool((tracked.variance <= 1.0 + 1e-9).all())


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_cuda_equals_the_cpu():
    kernel, points, rng = se(), scattered(200), random.Random(5)
    here = CandidatePosterior(kernel, points)
    there = CandidatePosterior(se().cuda(), points.cuda())
    state = {}
    for _ in range(60):
        change = some_change(rng, points, state, 1e-2)
        here.update(change)
        there.update(
            {key: None if c is None else (c[0].cuda(), *c[1:]) for key, c in change.items()}
        )
        torch.testing.assert_close(there.mean.cpu(), here.mean, rtol=1e-8, atol=1e-8)
        torch.testing.assert_close(there.variance.cpu(), here.variance, rtol=1e-8, atol=1e-8)
