from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from cases import KERNELS, generator, scattered, se, with_values
from gpytorch.kernels import LinearKernel, MaternKernel, RBFKernel, ScaleKernel

from botorch_delay.exceptions import NotSupportedError
from botorch_delay.gp import sample_paths
from botorch_delay.gp.kernels import covariance, matern_sum
from botorch_delay.gp.sample_paths import PriorPaths


@pytest.mark.parametrize("kernel", KERNELS)
def test_exact_paths_have_the_kernel_as_covariance(kernel):
    kernel, points = KERNELS[kernel]().requires_grad_(False), scattered(30)
    root = PriorPaths(kernel, points, seed=0, exact=True)._matrix
    torch.testing.assert_close(
        root @ root.T, covariance(kernel, points, points), rtol=1e-11, atol=1e-11
    )


def test_a_smooth_kernel_needs_few_columns():
    axis = torch.linspace(-5, 5, 30, dtype=torch.double)
    points = torch.cartesian_prod(axis, axis)
    root = PriorPaths(se(3.0).requires_grad_(False), points, seed=0, exact=True)._matrix
    assert root.shape[1] < 300
    K = covariance(se(3.0), points, points)
    torch.testing.assert_close(root @ root.T, K, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize(
    "kernel",
    [
        with_values(RBFKernel(), lengthscale=0.3),
        with_values(MaternKernel(nu=1.5), lengthscale=0.4),
        with_values(
            ScaleKernel(with_values(RBFKernel(ard_num_dims=2), lengthscale=[0.3, 0.5])),
            outputscale=2.0,
        ),
        matern_sum(torch.tensor([0.4, 0.6], dtype=torch.double), 0.6, [[0], [1]]),
    ],
)
def test_features_approximate_the_kernel(kernel, monkeypatch):
    monkeypatch.setattr(sample_paths, "FEATURES", 2048)
    kernel, points = kernel.requires_grad_(False), scattered(20)
    paths = PriorPaths(kernel, points, seed=0, exact=False)
    draws = generator(0)
    sample = torch.stack([paths.draw(draws) for _ in range(2000)])
    error = sample.T @ sample / len(sample) - covariance(kernel, points, points)
    assert error.abs().max() < 0.15 * covariance(kernel, points, points).max()


def test_paths_depend_on_the_generator_alone():
    points = scattered(20)
    kernel = se().requires_grad_(False)
    one, other = (PriorPaths(kernel, points, seed=0, exact=True) for _ in range(2))
    assert torch.equal(one.draw(generator(3)), other.draw(generator(3)))
    assert not torch.equal(one.draw(generator(3)), one.draw(generator(4)))


def test_features_leave_the_random_numbers_of_other_threads_alone(monkeypatch):
    def interrupted(*arguments):
        with ThreadPoolExecutor(1) as other:
            seen.append(other.submit(torch.rand, 3).result())
        return real(*arguments)

    real, seen = sample_paths.gen_kernel_features, []
    monkeypatch.setattr(sample_paths, "gen_kernel_features", interrupted)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        expected = torch.rand(3)
        torch.manual_seed(0)
        PriorPaths(se().requires_grad_(False), scattered(20), seed=1, exact=False)
    assert torch.equal(seen[0], expected)


def test_a_kernel_without_features_is_refused():
    kernel = with_values(LinearKernel(), variance=1.0).requires_grad_(False)
    with pytest.raises(NotSupportedError, match="RBF or a Matern kernel"):
        PriorPaths(kernel, scattered(20), seed=0, exact=False)


def test_main_effects_need_few_features():
    points = scattered(20, 4)
    kernel = matern_sum(torch.ones(4, dtype=torch.double), 0.5, [[0], [1], [2], [3]])
    paths = PriorPaths(kernel, points, seed=0, exact=False)
    assert paths._features(points).shape == (20, 2 * sample_paths.FEATURES)
