import random

import pytest
import torch
from cases import KERNELS, generator, normal, scattered, se
from oracle import kernel_function, posterior

from botorch_delay.exceptions import NumericsWarning
from botorch_delay.gp import candidate_covariance, candidates
from botorch_delay.gp.candidates import CandidatePosterior, _Covariance, _Rows
from botorch_delay.gp.kernels import covariance


@pytest.fixture(params=["covariance", "rows"])
def kept(request, monkeypatch):
    """Each way in which the posterior is kept."""
    monkeypatch.setattr(candidate_covariance, "BLOCK", 12)
    monkeypatch.setattr(candidates, "SHARE_TO_FOLD", 0.0)
    monkeypatch.setattr(candidates, "LARGEST_ERROR", 1e-9)
    return {"as_rows": request.param == "rows"}


def dense(kernel, state, points):
    """Mean and variance by the oracle, from the current answers."""
    X = torch.stack([x for x, _, _ in state.values()]).numpy()
    y = torch.tensor([value for _, value, _ in state.values()], dtype=torch.double).numpy()
    noise = torch.tensor([noise for _, _, noise in state.values()], dtype=torch.double).numpy()
    mean, variance, _ = posterior(kernel_function(kernel), X, y, noise, points.numpy())
    return torch.from_numpy(mean), torch.from_numpy(variance)


def agrees(tracked, kernel, state, points, tolerance):
    mean, variance = dense(kernel, state, points)
    torch.testing.assert_close(tracked.mean, mean, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(tracked.variance, variance, rtol=tolerance, atol=tolerance)


def some_change(rng, points, state, noise, elsewhere=True):
    """Set, change or remove the answer of a candidate, or of a point from elsewhere."""
    key = rng.randrange(15) if rng.random() < 0.8 or not elsewhere else -rng.randrange(1, 5)
    if key in state and rng.random() < 0.3:
        del state[key]
        return {key: None}
    x = points[key] if key >= 0 else torch.full((2,), 1.0 - 0.1 * key, dtype=torch.double)
    state[key] = (x, rng.gauss(0, 1), noise / rng.choice([1, 1, 2, 7]))
    return {key: state[key]}


@pytest.mark.parametrize("kernel", ["se", "matern12", "linear", "scaled"])
@pytest.mark.parametrize(("noise", "from_elsewhere"), [(1e-4, 0), (1e-2, 15), (1.0, 30)])
def test_any_sequence_of_changes_equals_a_posterior_solved_anew(
    kernel, noise, from_elsewhere, kept
):
    kernel, points, rng = KERNELS[kernel]().requires_grad_(False), scattered(40), random.Random(1)
    tracked, state = CandidatePosterior(kernel, points, **kept), {}
    for step in range(30):
        tracked.update(some_change(rng, points, state, noise, step >= from_elsewhere))
        assert len(tracked) == len(state)
        if state:
            agrees(tracked, kernel, state, points, 1e-8)
        else:
            assert tracked.mean.abs().max() < 1e-8
    assert tracked.keys == list(state)
    expected = [noise_var for _, _, noise_var in state.values()]
    assert tracked.noise_var == pytest.approx(expected)
    y = torch.tensor([value for _, value, _ in state.values()], dtype=torch.double)
    X = torch.stack([x for x, _, _ in state.values()])
    K = covariance(kernel, X, X) + torch.tensor(tracked.noise_var).double().diag()
    assert tracked.explained == pytest.approx(float(y @ torch.linalg.solve(K, y)), rel=1e-6)


def test_many_changes_at_once_equal_one_by_one(kept):
    kernel, points, rng = se(), scattered(40), random.Random(2)
    one, batch = (CandidatePosterior(kernel, points, **kept) for _ in range(2))
    state = {}
    for _ in range(10):
        changes = {}
        for _ in range(12):
            change = some_change(rng, points, state, 1e-2, elsewhere=kept["as_rows"])
            one.update(change)
            changes |= change
        batch.update(changes)
        torch.testing.assert_close(one.mean, batch.mean, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(one.variance, batch.variance, rtol=1e-9, atol=1e-9)


def test_with_a_pool_the_posterior_is_that_of_all_points_there_and_the_prior_elsewhere():
    """Points may be in the pool, among the other candidates, or elsewhere."""
    kernel, points, rng = se(), scattered(40), random.Random(4)
    pool = torch.tensor([0, 3, 7, 14, 22, 39])
    few, whole = CandidatePosterior(kernel, points, pool=pool), CandidatePosterior(kernel, points)
    state = {}
    for _ in range(40):
        change = some_change(rng, points, state, 1e-2)
        for tracked in (few, whole):
            tracked.update(change)
    y = normal(len(state))
    rest = torch.ones(40, dtype=torch.bool).index_fill(0, pool, False)
    for made, full in [(few, whole), (few.with_values(y), whole.with_values(y))]:
        torch.testing.assert_close(made.mean[pool], full.mean[pool], rtol=1e-8, atol=1e-8)
        torch.testing.assert_close(made.variance[pool], full.variance[pool], rtol=1e-8, atol=1e-8)
        assert made.mean[rest].tolist() == [0.0] * 34
        assert made.variance[rest].tolist() == [1.0] * 34
    torch.testing.assert_close(few.correction(y)[pool], whole.correction(y)[pool])


@pytest.mark.parametrize("kernel", ["se", "linear"])
def test_moved_candidates_have_the_posterior_of_where_they_are(kernel):
    kernel, points, rng = KERNELS[kernel]().requires_grad_(False), scattered(40), random.Random(5)
    elsewhere, rows, state = points + 0.05, torch.tensor([3, 38]), {}
    tracked = CandidatePosterior(kernel, points, as_rows=True)

    def change():
        key = -rng.randrange(1, 9)
        x = torch.full((2,), -0.1 * key, dtype=torch.double)
        state[key] = (x, rng.gauss(0, 1), 1e-2 / rng.choice([1, 2]))
        tracked.update({key: state[key]})

    for _ in range(12):
        change()
    tracked.move(rows, elsewhere[rows])
    now = points.index_copy(0, rows, elsewhere[rows])
    agrees(tracked, kernel, state, now, 1e-8)
    for _ in range(12):
        change()
    agrees(tracked, kernel, state, now, 1e-8)
    assert torch.equal(points, scattered(40))  # the caller's own


@pytest.mark.parametrize("kernel", ["se", "linear"])
def test_the_variance_anywhere_is_that_of_a_posterior_solved_anew(kernel):
    kernel, points = KERNELS[kernel]().requires_grad_(False), scattered(40)
    tracked = CandidatePosterior(kernel, points, as_rows=True)
    at = (points + 0.03).requires_grad_(True)
    torch.testing.assert_close(tracked.variance_at(at), kernel(at, diag=True))
    state = {-k: (torch.full((2,), 0.1 * k, dtype=torch.double), 0.0, 1e-2) for k in range(1, 9)}
    tracked.update(state)
    _, expected = dense(kernel, state, at.detach())
    found = tracked.variance_at(at)
    torch.testing.assert_close(found.detach(), expected, rtol=1e-8, atol=1e-8)
    assert found.requires_grad


def test_memory_counts_distinct_points():
    kernel, points = se(), scattered(30)
    tracked = CandidatePosterior(kernel, points, as_rows=True)
    for n in range(1, 400):
        tracked.update({n % 7: (points[n % 7], 0.1 * (n % 3), 1e-2 / n)})
    assert len(tracked) == 7
    assert len(tracked._kept._w) == 8


def test_thousands_of_changes_leave_rounding_only(kept):
    kernel, points, rng = se(), scattered(30), random.Random(3)
    tracked, state = CandidatePosterior(kernel, points, **kept), {}
    for n in range(1, 1000):
        key = rng.randrange(12)
        state[key] = (points[key], rng.gauss(0, 1), 1e-2 / (1 + n // 12))
        tracked.update({key: state[key]})
    agrees(tracked, kernel, state, points, 1e-8)


def test_the_correction_is_that_of_a_path(kept):
    kernel, points = se(), scattered(25)
    tracked = CandidatePosterior(kernel, points, **kept)
    for key in (3, 9, 14):
        tracked.update({key: (points[key], 1.0, 1e-2)})
    residual = normal(3)
    at = points[tracked.keys].numpy()
    expected, _, _ = posterior(kernel_function(kernel), at, residual.numpy(), 1e-2, points.numpy())
    torch.testing.assert_close(tracked.correction(residual), torch.from_numpy(expected))


@pytest.mark.parametrize("noise", [1e-10, 1e-7])
def test_tiny_noise_gives_no_negative_variance_and_no_nan(noise, kept):
    kernel, points, rng = se(2.0), scattered(60), random.Random(4)
    tracked = CandidatePosterior(kernel, points, **kept)
    for _ in range(150):
        key = rng.randrange(30)
        tracked.update({key: (points[key], 1.0, noise / rng.choice([1, 3]))})
        assert bool(torch.isfinite(tracked.mean).all())
        assert bool((tracked.variance >= 0).all())
        assert bool((tracked.variance <= 1.0 + 1e-9).all())


@pytest.mark.filterwarnings("always:Rounding:botorch_delay.exceptions.NumericsWarning")
@pytest.mark.parametrize("spread", [1e-6, 0.3])
def test_noise_is_raised_where_rounding_would_grow_beyond_all_bounds(spread, recwarn):
    kernel, grid = se(0.1), torch.linspace(0, 1, 101, dtype=torch.double).unsqueeze(-1)
    tracked, g = CandidatePosterior(kernel, grid), generator(0)
    points = 0.4 + spread * torch.randn(200, 1, dtype=torch.double, generator=g)
    f = torch.exp(-50.0 * (torch.cat([grid, points]) - 0.4).square()).squeeze(-1)
    for key, x in enumerate(points):
        tracked.update({-1 - key: (x, f[101 + key].item(), 1e-14)})
        assert bool(torch.isfinite(tracked.mean).all())
    assert "raised for the choice of points" in str(recwarn.pop(NumericsWarning).message)
    near = (grid - 0.4).abs().squeeze(-1) <= spread
    torch.testing.assert_close(tracked.mean[near], f[:101][near], rtol=0.0, atol=0.05)
    assert tracked.mean.abs().max() < 2.0
    assert bool((tracked.variance >= 0.0).all())
    assert tracked.variance[near].max() < 0.05


def test_rows_are_kept_where_a_covariance_would_not_do(monkeypatch):
    monkeypatch.setattr(candidates, "SHARE_TO_FOLD", 1.0 / 30.0)
    points = scattered(30)

    def tracked(changes):
        posterior = CandidatePosterior(se(), points)
        posterior.update({3: (points[3], 0.5, 1e-2)})
        assert isinstance(posterior._kept, _Rows)
        posterior.update({7: (points[7], 0.1, 1e-2)})
        assert isinstance(posterior._kept, _Covariance)
        posterior.update(changes)
        return posterior

    state = {3: (points[3], 0.5, 1e-2), 7: (points[7], 0.1, 1e-2)}
    for change in (
        {-1: (points[0] + 5.0, 1.0, 1e-2)},  # no candidate
        {4: (points[4], 1.0, 1e-10)},  # too little noise
    ):
        found = tracked(change)
        assert isinstance(found._kept, _Rows)
        agrees(found, se(), dict(state) | change, points, 1e-6)


def test_an_answer_that_rounding_would_keep_in_is_taken_out(kept):
    points = scattered(30)
    state = {key: (points[key], 0.1 * key, 1e-2) for key in range(6)}
    tracked = CandidatePosterior(se(), points, **kept)
    tracked.update({**state, 9: (points[9], 2.0, 1e-7)})
    tracked.update({9: None})
    agrees(tracked, se(), state, points, 1e-9)


@pytest.mark.cuda
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


def test_noise_that_changes_by_many_decades_leaves_no_rounding_errors():
    points, kernel = scattered(30), se()
    tracked = CandidatePosterior(kernel, points, as_rows=True)
    state = {}
    for key, noise in [(0, 1e-2), (0, 1e12), (1, 1e-2), (0, 1e-2)]:
        state[key] = (points[key], 1.0, noise)
        tracked.update({key: state[key]})
    agrees(tracked, kernel, state, points, 1e-9)
