"""Sample paths of a Gaussian process at fixed points, for Thompson sampling.

A path of the posterior is a path of the prior corrected by the answers (Matheron's rule,
Wilson et al. 2020): f + K(., X) (K + D)^-1 (y - f(X) - noise). The correction is exact; the
path of the prior is exact up to rounding where its covariance can be factorized.
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

from botorch_delay.domains.devices import moved, seeded, sent
from botorch_delay.exceptions import NotSupportedError
from botorch_delay.gp.kernels import covariance, prior_variance, rows_per_chunk

MAX_EXACT_POINTS = 5_000
MAX_KEPT_ELEMENTS = 2**26
FEATURES = 1024  # random ones, where paths are approximate


class PriorPaths:
    """Sample paths of a zero-mean Gaussian process at fixed points, ``n x d``.

    They are ``exact``, from a factorization, or approximate, from random Fourier features, with a
    :class:`NotSupportedError` if BoTorch has none for the kernel. If None, exact for up to 5,000
    points.
    """

    def __init__(
        self,
        covar_module: Kernel,
        points: Tensor,
        seed: int,
        *,
        exact: bool | None = None,
    ) -> None:
        self.exact = len(points) <= MAX_EXACT_POINTS if exact is None else exact
        self._points = points
        self._matrix: Tensor | None = None  # features at the points, unless too large
        with torch.no_grad():
            if self.exact:
                self._root = _square_root(covar_module, points)
                return
            try:
                # Drawn on the CPU, so that they are the same on every device.
                with seeded(seed, torch.device("cpu")):
                    features = gen_kernel_features(
                        copy.deepcopy(covar_module).cpu(), points.shape[-1], FEATURES
                    )
                self._features = features.to(points.device)
            except (UnsupportedError, NotImplementedError) as error:
                raise NotSupportedError(
                    f"On a box, and above {MAX_EXACT_POINTS} points, sample paths need an RBF or a "
                    f"Matern kernel, possibly scaled, got {type(covar_module).__name__}: {error}"
                ) from error
            self._n_features = self._features(points[:1]).shape[-1]
            if len(points) * self._n_features <= MAX_KEPT_ELEMENTS:
                self._matrix = self._features(points)

    def draw_function(self, generator: torch.Generator) -> Callable[[Tensor], Tensor]:
        """One approximate path, at any points: ``n x d`` to ``n``, differentiable."""
        weights = _normal(self._n_features, generator, self._points)
        return lambda X: self._features(X) @ weights

    def draw(self, generator: torch.Generator) -> Tensor:
        """One path, its values at all points: ``n``."""
        with torch.no_grad():
            if self.exact:
                return self._root @ _normal(self._root.shape[1], generator, self._points)
            weights = _normal(self._n_features, generator, self._points)
            if self._matrix is not None:
                return self._matrix @ weights
            rows = rows_per_chunk(len(weights), self._points)
            return torch.cat([self._features(part) @ weights for part in self._points.split(rows)])


def _square_root(covar_module: Kernel, points: Tensor) -> Tensor:
    """A root of the covariance of ``points``: ``n x r``, with r its numerical rank.

    Smooth kernels on many points are singular up to rounding; a pivoted Cholesky factorization
    stops there, with an error of rounding size, and makes every path cheaper.
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


def _normal(n: int, generator: torch.Generator, like: Tensor) -> Tensor:
    """Standard normal numbers, drawn where the generator lives."""
    drawn = torch.randn(n, generator=generator, dtype=like.dtype, device=generator.device)
    return moved(drawn, like.device)
