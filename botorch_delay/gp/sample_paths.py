"""Sample paths of a Gaussian process at fixed points, for Thompson sampling.

A path of the posterior is a path f of the prior corrected by the answers (Matheron's rule,
Wilson et al. 2020): f + K(., X) (K + D)^-1 (y - f(X) - noise). The correction is exact. So is f,
up to rounding, for few enough points to factorize their covariance; otherwise it is approximate.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from botorch.exceptions.errors import UnsupportedError
from botorch.sampling.pathwise.features.generators import gen_kernel_features
from gpytorch.kernels import Kernel
from scipy.linalg.lapack import dpstrf
from torch import Tensor

from botorch_delay.domains.devices import Seeded, sent
from botorch_delay.exceptions import NotSupportedError
from botorch_delay.gp.kernels import covariance, matern_parts, prior_variance, rows_per_chunk

MAX_EXACT_POINTS = 5_000  # with more, paths are approximate
MAX_KEPT_ELEMENTS = 2**26  # features of all points are stored up to this size: 512 MiB in double
FEATURES = 1024  # random Fourier features of an approximate path
LEAST_FEATURES = 64  # of a main effect; all main effects together have about FEATURES


class PriorPaths:
    """Sample paths of a zero-mean Gaussian process at fixed points, ``n x d``.

    They are ``exact``, from a factorization of the covariance, or approximate, from random Fourier
    features; then a kernel without these in BoTorch raises :class:`NotSupportedError`.
    """

    def __init__(self, covar_module: Kernel, points: Tensor, seed: int, *, exact: bool) -> None:
        self.exact, self._points = exact, points
        # A root of the covariance, or the features of all points if they are small enough to store.
        self._matrix: Tensor | None = None
        with torch.no_grad():
            if exact:
                self._matrix = _square_root(covar_module, points)
                self._size = self._matrix.shape[1]
                return
            parts = matern_parts(copy.deepcopy(covar_module).cpu())
            effects = len(parts) - 1
            of_effect = max(2 * (FEATURES // max(2 * effects, 2)), LEAST_FEATURES)
            counts = [FEATURES, *effects * [of_effect]]
            try:
                # Drawn on the CPU, so that they are the same on every device.
                with Seeded(seed):
                    maps = [
                        (weight**0.5, gen_kernel_features(part, points.shape[-1], count))
                        for count, (weight, part) in zip(counts, parts, strict=True)
                    ]
                self._maps = [(root, each.to(points.device)) for root, each in maps]
            except (UnsupportedError, NotImplementedError) as error:
                raise NotSupportedError(
                    f"On a box, and above {MAX_EXACT_POINTS} points, sample paths need an RBF or a "
                    f"Matern kernel, possibly scaled, got {type(covar_module).__name__}: {error}"
                ) from error
            self._size = self._features(points[:1]).shape[-1]
            if len(points) * self._size <= MAX_KEPT_ELEMENTS:
                self._matrix = self._features(points)

    def _features(self, X: Tensor) -> Tensor:
        """Features of points, ``n x d`` to ``n x F``: those of all parts of the kernel."""
        return torch.cat([root * each(X) for root, each in self._maps], dim=-1)

    def draw_function(self, generator: torch.Generator) -> Callable[[Tensor], Tensor]:
        """One approximate path, at any points: ``n x d`` to ``n``, differentiable."""
        weights = self._weights(generator)
        return lambda X: self._features(X) @ weights

    def draw(self, generator: torch.Generator) -> Tensor:
        """The values of one path at all points, ``n``."""
        with torch.no_grad():
            weights = self._weights(generator)
            if self._matrix is not None:
                return self._matrix @ weights
            rows = rows_per_chunk(len(weights), self._points)
            return torch.cat([self._features(part) @ weights for part in self._points.split(rows)])

    def _weights(self, generator: torch.Generator) -> Tensor:
        """Standard normal numbers, drawn on the CPU."""
        drawn = torch.randn(self._size, generator=generator, dtype=self._points.dtype)
        return sent(drawn, self._points)


def _square_root(covar_module: Kernel, points: Tensor) -> Tensor:
    """A root of the covariance of ``points``: ``n x r``, with r its numerical rank.

    Covariances of smooth kernels at many points are singular up to rounding. A pivoted Cholesky
    factorization stops at that rank, with an error of rounding size; each path is cheaper then.
    """
    K = covariance(covar_module, points, points)
    n = len(points)
    largest = prior_variance(covar_module, points).max().item()
    factor, pivots, rank, _ = dpstrf(
        K.double().cpu().numpy(), tol=n * torch.finfo(K.dtype).eps * largest, lower=1
    )
    lower = torch.from_numpy(factor).tril()[:, :rank]
    root = torch.empty_like(lower)
    root[torch.from_numpy(pivots).long() - 1] = lower
    return sent(root, points)
