import warnings

import numpy as np
import pytest
import torch
from cases import KERNELS, normal, scattered, se
from gpytorch.kernels import ScaleKernel
from oracle import kernel_function, posterior

from botorch_delay.exceptions import NumericsError, NumericsWarning
from botorch_delay.gp import kernels
from botorch_delay.gp.factor import factorize
from botorch_delay.gp.kernels import covariance
from botorch_delay.gp.posterior import Data, Posterior


def single(X, y, noise_var):
    return Data.single(X, y, torch.full_like(y, noise_var))


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("noise_var", [1e-1, 4e-4, 1e-8])
def test_every_field_equals_the_written_out_formula(name, noise_var):
    kernel, X, y, at = KERNELS[name](), scattered(25), normal(25), scattered(40, seed=1)
    got = Posterior(kernel, single(X, y, noise_var)).at(at, weights=True)
    mean, variance, z = posterior(
        kernel_function(kernel), X.numpy(), y.numpy(), noise_var, at.numpy()
    )
    # Both solve a system whose condition number is up to k / noise_var.
    tolerance = 1e-8 + 1e-14 / noise_var
    np.testing.assert_allclose(got.mean, mean, rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(got.variance, variance, atol=tolerance)
    np.testing.assert_allclose(got.noise_norm, np.linalg.norm(z, axis=0), rtol=1e-5)
    np.testing.assert_allclose(got.penalty, noise_var * (z**2).sum(axis=0), rtol=1e-5)


def test_the_prior_without_answers():
    at = scattered(5)
    got = Posterior(se(), single(at[:0], torch.empty(0).double(), 1.0)).at(at, weights=True)
    assert got.mean.tolist() == [0.0] * 5
    assert got.variance.tolist() == [1.0] * 5
    assert got.noise_norm.tolist() == [0.0] * 5


def test_chunks_make_no_difference(monkeypatch):
    X, y, at = scattered(20), normal(20), scattered(101, seed=1)
    whole = Posterior(se(), single(X, y, 1e-3)).at(at, weights=True)
    monkeypatch.setattr(kernels, "CACHE_ELEMENTS", 20 * 7)
    parts = Posterior(se(), single(X, y, 1e-3)).at(at, weights=True)
    torch.testing.assert_close(parts.mean, whole.mean, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(parts.variance, whole.variance, rtol=1e-12, atol=1e-12)


def test_grouped_answers_give_the_same_posterior():
    rows = torch.tensor([4, 0, 4, 2, 4, 0, 7])
    X, y, at = scattered(8), normal(7), scattered(30, seed=1)
    noise = torch.tensor([0.1, 0.2, 0.3, 0.1, 0.05, 0.2, 0.1], dtype=torch.double)
    apart = Posterior(se(), Data.single(X[rows], y, noise)).at(at, weights=True)
    evidence = Data.averaged(X[rows], y, noise, rows)
    together = Posterior(se(), evidence).at(at, weights=True)
    assert len(evidence.y) == 4
    for field in ("mean", "variance", "noise_norm", "penalty"):
        torch.testing.assert_close(
            getattr(together, field), getattr(apart, field), rtol=1e-10, atol=1e-12
        )


def test_the_mean_alone_and_slopes_are_those_of_all_moments():
    X, y, at = scattered(10), normal(10), scattered(6, seed=1).requires_grad_(True)
    for n in (10, 0):
        posterior = Posterior(
            se(), single(X[:n], y[:n], 1e-2), inputs=lambda X: X / 2, offset=3.0, scale=2.0
        )
        alone, moments = posterior.mean(at), posterior.at(at)
        torch.testing.assert_close(alone, moments.mean)
        (one,) = torch.autograd.grad(alone.sum(), at)
        (other,) = torch.autograd.grad(moments.mean.sum(), at, retain_graph=True)
        torch.testing.assert_close(one, other)
        (slope,) = torch.autograd.grad(moments.variance.sum(), at)
        step = torch.zeros_like(at)
        step[:, 0] = 1e-5
        found = [posterior.at(at.detach() + s * step).variance for s in (1, -1)]
        torch.testing.assert_close(slope[:, 0], (found[0] - found[1]) / 2e-5, rtol=1e-5, atol=1e-7)


def test_a_rescaled_posterior_is_the_posterior_of_the_rescaled_function():
    X, y, at, scale = scattered(10), normal(10), scattered(6, seed=1), 30.0
    unit = Posterior(se(), single(X, y, 1e-2)).at(at, weights=True).rescaled(5.0, scale)
    kernel = ScaleKernel(se()).double()
    kernel.outputscale = scale**2
    direct = Posterior(kernel, single(X, scale * y, 1e-2 * scale**2)).at(at, weights=True)
    torch.testing.assert_close(unit.mean, direct.mean + 5.0)
    for field in ("variance", "noise_norm", "penalty"):
        torch.testing.assert_close(getattr(unit, field), getattr(direct, field))


def test_the_spread_counts_answers():
    X, y = scattered(3), normal(3)
    rows = torch.tensor([0, 2, 2, 0, 2])
    noise = torch.full((5,), 0.25, dtype=torch.double)
    assert Data.single(X, y, noise[:3]).spread_ratio == pytest.approx(4.0)
    data = Data.averaged(X[rows], normal(5), noise, rows)
    assert data.spread_ratio == pytest.approx(4.0)
    torch.testing.assert_close(data.spread, torch.tensor([1 / 2, 1 / 3]).double())
    torch.testing.assert_close(data.noise_var, torch.tensor([0.25 / 2, 0.25 / 3]).double())
    assert torch.equal(data.X, X[[0, 2]])
    empty = torch.empty(0, dtype=torch.long)
    none = Data.averaged(X[:0], y[:0], noise[:0], empty)
    assert len(none) == 0
    assert none.spread_ratio == 0.0


def test_answers_are_drawn_from_the_posterior(monkeypatch):
    """Exact check: answers are linear in the normal draws, so unit vectors give both moments."""
    X, y, noise = scattered(9), normal(4), torch.full((9,), 0.05, dtype=torch.double)
    known, again = [0, 2, 3, 5], 3  # the answered points; the fourth row is asked again
    told = [(row, 0.05) for row in known]
    answers = Posterior(se(), single(X[known], y, 0.05), labels=told)
    noise[again] = 1.0 / (1.0 / 0.05 + 1.0 / 0.02)  # averaged with one of noise 0.02
    labels = list(enumerate(noise.tolist()))
    asked = Posterior(se(), Data.single(X, torch.zeros(9).double(), noise), labels=labels)
    unit = torch.eye(18).double().view(18, 2, 9)
    drawn = iter([torch.zeros(2, 9).double(), *unit])
    with monkeypatch.context() as patched:
        patched.setattr(torch, "randn", lambda *shape, **options: next(drawn))
        mean, *moved = (asked.drawn_answers(answers, None) for _ in range(19))
    B = torch.stack(moved) - mean
    # Weights of the drawn answers: each is averaged with the answer that is known there.
    fresh = torch.ones(9, dtype=torch.double)
    fresh[known] = torch.tensor([0.0, 0.0, 0.05 / 0.07, 0.0], dtype=torch.double)
    K, at = covariance(se(), X, X), torch.zeros(9).double()
    at[known] = y
    solved = torch.linalg.solve(K[known][:, known] + 0.05 * torch.eye(4).double(), K[known])
    expected = fresh * (solved.T @ y) + (1.0 - fresh) * at
    alone = torch.full((9,), 0.05, dtype=torch.double)
    alone[again] = 0.02
    left = fresh.outer(fresh) * (K - K[known].T @ solved + alone.diag())
    torch.testing.assert_close(mean, expected, rtol=0.0, atol=1e-10)
    torch.testing.assert_close(B.T @ B, left, rtol=0.0, atol=1e-10)


def test_the_variance_alone_is_that_of_all_moments(monkeypatch):
    monkeypatch.setattr(kernels, "CACHE_ELEMENTS", 100)  # in several chunks
    X, y, at = scattered(9), normal(9), scattered(30, seed=1)
    data = single(X, y, 0.1)
    scaled = Posterior(
        ScaleKernel(se()).double(), data, inputs=lambda X: 2.0 * X, offset=1.0, scale=3.0
    )
    found = scaled.variance(at)
    assert torch.equal(found, scaled.at(at).variance)
    assert not found.requires_grad  # no graph is kept for the kernel's hyperparameters
    assert scaled.variance(at.requires_grad_(True)).requires_grad


def test_an_indefinite_matrix_is_mended_with_a_warning():
    noise = torch.full((40,), 1e-300, dtype=torch.double)
    K = torch.ones(40, 40, dtype=torch.double) - 1e-15 * torch.eye(40)
    with pytest.warns(NumericsWarning, match="raised"):
        factor, raised = factorize(K, noise)
    assert (raised > noise).all()
    torch.testing.assert_close(factor @ factor.T, K + torch.diag(raised))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        factorize(torch.eye(3).double(), torch.full((3,), 1e-10).double())


def test_a_matrix_that_cannot_be_mended_is_an_error():
    with pytest.raises(NumericsError, match="positive definite"):
        factorize(torch.full((2, 2), torch.nan).double(), torch.ones(2).double())
