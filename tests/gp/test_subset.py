"""Which points, of very many, a posterior is conditioned on."""

import pytest
import torch
from cases import generator, se

from botorch_delay.gp import subset
from botorch_delay.gp.posterior import Data, Posterior
from botorch_delay.gp.subset import CENTRES, means_of_all, representative


@pytest.fixture
def points():
    X = torch.rand(200, 2, generator=generator(0), dtype=torch.double)
    return X, -(X - 0.2).square().sum(dim=1)


def test_few_points_are_all_kept(points):
    X, y = points
    assert representative(X, y, 200).tolist() == list(range(200))


def test_the_best_their_neighbours_and_points_far_from_all_are_kept(points):
    X, y = points
    kept = representative(X, y, 30)
    assert kept.tolist() == sorted(set(kept.tolist()))
    assert len(kept) == 30
    order = y.argsort(descending=True)
    assert set(order[:10].tolist()) <= set(kept.tolist())
    near = torch.cdist(X, X[order[:CENTRES]]).amin(dim=1)
    near[order[:10]] = torch.inf
    assert set(near.argsort()[:10].tolist()) <= set(kept.tolist())
    reach = torch.cdist(X, X[kept]).amin(dim=1).max()
    assert reach < 0.6 * torch.cdist(X, X[order[:30]]).amin(dim=1).max()


def test_it_depends_on_the_values_not_on_the_rows(points):
    X, y = points
    shuffled = torch.randperm(200, generator=generator(1))
    kept = set(representative(X, y, 30).tolist())
    assert {int(shuffled[row]) for row in representative(X[shuffled], y[shuffled], 30)} == kept


def noisy(points, noise_var):
    X, y = points
    noise = noise_var**0.5 * torch.randn(200, generator=generator(2), dtype=torch.double)
    return Data.single(X, y + noise, torch.full_like(y, noise_var))


def test_means_given_all_answers_are_exact_for_few_points(points):
    data = noisy(points, 0.01)
    expected = Posterior(se(0.3), data).mean(data.X)
    torch.testing.assert_close(means_of_all(se(0.3), data), expected, atol=1e-4, rtol=0.0)


def test_means_given_all_answers_are_the_answers_where_these_are_exact(points, monkeypatch):
    monkeypatch.setattr(subset, "MOST_POINTS", 30)
    data = noisy(points, 1e-9)
    torch.testing.assert_close(means_of_all(se(0.1), data), data.y, atol=1e-4, rtol=0.0)


def test_means_given_all_answers_are_not_those_of_the_luckiest(points, monkeypatch):
    """Conditioning on the largest answers and their neighbours overestimates the function."""
    data, truth = noisy(points, 0.25), points[1]
    lucky = data.at(representative(data.X, data.y, 30))
    monkeypatch.setattr(subset, "MOST_POINTS", 30)
    means = means_of_all(se(0.3), data)
    top = means.topk(20).indices
    assert (Posterior(se(0.3), lucky).mean(data.X) - truth)[top].mean() > 0.2
    assert (means - truth)[top].mean().abs() < 0.1
    whole = Posterior(se(0.3), data).mean(data.X)
    torch.testing.assert_close(means, whole, atol=0.1, rtol=0.0)
