"""The exact posterior of a zero-mean Gaussian process at given points.

mu(x)      = k_X(x)' (K_X + D)^-1 y
sigma^2(x) = k(x, x) - k_X(x)' (K_X + D)^-1 k_X(x)        (paper, equation GP_reg; D = lambda^2 I)

With z(x) = (K_X + D)^-1 k_X(x) the mean is z'y, and its error against a function f of RKHS
norm at most C splits into a bias of at most C sqrt(sigma^2 - z'Dz) and a noise term z'eps.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from botorch_delay.exceptions import NumericsError
from botorch_delay.gp.accuracy import warn_lost_accuracy
from botorch_delay.gp.kernels import covariance, prior_variance, rows_per_chunk

_BLOCK = 128  # rows of a factor that is solved in parts


@dataclass(frozen=True)
class Evidence:
    """Answers, one row per distinct point.

    Attributes:
        X: ``m x d``.
        y: mean answer of each point, ``m``, weighted by precision.
        noise_var: variance of that mean under the surrogate, ``m``.
        spread: sum of the squared weights with which the answers of a point enter its mean,
            ``m``: 1 / n_i for n_i answers of equal noise.
    """

    X: Tensor
    y: Tensor
    noise_var: Tensor
    spread: Tensor

    @classmethod
    def single(cls, X: Tensor, y: Tensor, noise_var: Tensor) -> Evidence:
        """Answers as they are, one row each."""
        return cls(X, y, noise_var, torch.ones_like(y))

    @classmethod
    def grouped(cls, X: Tensor, y: Tensor, noise_var: Tensor, group: Tensor) -> Evidence:
        """Answers with the same entry in ``group`` averaged: the same posterior, fewer rows.

        Averaging loses nothing: the mean of n answers of noise lambda^2 at one point is an
        answer of noise lambda^2 / n, and it keeps ``K + D`` well conditioned.
        """
        # On the CPU, where sums are added in a fixed order: the vectors are small.
        values, noise = y.cpu(), noise_var.cpu()
        _, inverse = torch.unique(group.cpu(), return_inverse=True)
        m = int(inverse.max()) + 1 if len(inverse) else 0
        first = inverse.new_full((m,), len(inverse)).scatter_reduce(
            0, inverse, torch.arange(len(inverse)), "amin"
        )
        zeros = values.new_zeros(m)
        precision = zeros.index_add(0, inverse, 1.0 / noise)
        weights = 1.0 / (noise * precision[inverse])
        return cls(
            X=X[first.to(X.device)],
            y=zeros.index_add(0, inverse, weights * values).to(y),
            noise_var=(1.0 / precision).to(y),
            spread=zeros.index_add(0, inverse, weights.square()).to(y),
        )

    @property
    def spread_ratio(self) -> float:
        """The largest spread / noise_var: 1 / lambda^2 where all answers share one noise."""
        return (self.spread / self.noise_var).max().item() if len(self.y) else 0.0


@dataclass(frozen=True)
class PointwisePosterior:
    """Posterior at ``n`` points, each field of shape ``n``.

    Attributes:
        mean: mu.
        variance: sigma^2, never negative.
        prior: k(x, x).
        noise_norm: sqrt(sum of squared weights of single answers), the factor by which
            independent noise of scale 1 enters the mean.
        penalty: z'Dz, so that ``variance - penalty`` bounds the squared bias per unit norm.
        rounding: what rounding may have taken from ``variance``, and from ``variance - penalty``.
        mean_rounding: what rounding may have done to ``mean``.
    """

    mean: Tensor
    variance: Tensor
    prior: Tensor
    noise_norm: Tensor
    penalty: Tensor
    rounding: Tensor
    mean_rounding: Tensor

    @property
    def deviation(self) -> Tensor:
        """Sigma."""
        return self.variance.sqrt()

    def rescaled(self, offset: float, scale: float) -> PointwisePosterior:
        """The posterior of ``offset + scale * g`` where this is the posterior of g."""
        if offset == 0.0 and scale == 1.0:
            return self
        square = scale * scale
        return PointwisePosterior(
            mean=offset + scale * self.mean,
            variance=square * self.variance,
            prior=square * self.prior,
            noise_norm=self.noise_norm,
            penalty=square * self.penalty,
            rounding=square * self.rounding,
            mean_rounding=abs(scale) * self.mean_rounding,
        )


def factorize(K: Tensor, noise_var: Tensor) -> tuple[Tensor, Tensor]:
    """Lower Cholesky factor of ``K + diag(noise_var)``, and the diagonal that was added.

    Where rounding makes the matrix indefinite, the noise is raised until it is not and a
    :class:`NumericsWarning` is given. The raised noise is returned, so that bounds which use
    it stay valid: they hold for any positive regularizer.

    Args:
        K: ``batch_shape x n x n``.
        noise_var: ``n`` or broadcastable to ``batch_shape x n``.
    """
    diagonal = noise_var.expand(K.shape[:-1])
    if K.shape[-1] == 0:
        return K, diagonal
    scale = K.diagonal(dim1=-2, dim2=-1).amax().item()
    jitter = 0.0
    step = K.shape[-1] * torch.finfo(K.dtype).eps * max(scale, torch.finfo(K.dtype).tiny)
    while True:
        factor, info = torch.linalg.cholesky_ex(K + torch.diag_embed(diagonal + jitter))
        if not info.any():
            break
        jitter = step if jitter == 0.0 else 10.0 * jitter
        if not jitter <= max(scale, 1.0):  # also where the matrix is not finite
            raise NumericsError(
                "The covariance matrix is not positive definite: the kernel is none, or its "
                "hyperparameters are not finite."
            )
    if jitter:
        warn_lost_accuracy(
            f"The covariance of {K.shape[-1]} points with noise variance "
            f"{noise_var.min().item():.1e} is indefinite in {K.dtype}; noise was raised by "
            f"{jitter:.1e}. Use double precision, or a larger noise_var."
        )
    return factor, diagonal + jitter


@dataclass(frozen=True)
class Factored:
    """What the posterior takes from the evidence alone, whatever points are asked about.

    Attributes:
        factor: ``L`` with ``L L' = K + D``, ``m x m``.
        noise: the diagonal of D, raised where rounding asks for it, ``m``.
        white: ``L^-1 y``, ``m x 1``.
        alpha_norm: of ``(K + D)^-1 y``.
        largest: the largest ``k(x, x)``; 0 without evidence.
    """

    factor: Tensor
    noise: Tensor
    white: Tensor
    alpha_norm: Tensor
    largest: float

    @classmethod
    def of(cls, covar_module: Kernel, evidence: Evidence) -> Factored:
        """Costs ``O(m^3)``."""
        K = covariance(covar_module, evidence.X, evidence.X)
        factor, noise = factorize(K, evidence.noise_var)
        white = _solve(factor, evidence.y.unsqueeze(-1))
        alpha_norm = _solve(factor, white, transpose=True).norm()
        largest = K.diagonal().max().item() if len(evidence.y) else 0.0
        return cls(factor, noise, white, alpha_norm, largest)


def posterior_at(
    covar_module: Kernel,
    evidence: Evidence,
    X: Tensor,
    *,
    weights: bool = True,
    factored: Factored | None = None,
) -> PointwisePosterior:
    """The posterior given the evidence, at the rows of ``X`` (``n x d``).

    Costs ``O(m^3 + n m^2)``; memory beyond the result stays bounded, whatever ``n``. Without
    ``weights`` the fields ``noise_norm`` and ``penalty`` are zero and half the work is saved; with
    ``factored``, made of the same evidence before, the first term is. Differentiable in ``X``
    where it requires gradients.
    """
    with torch.set_grad_enabled(torch.is_grad_enabled() and X.requires_grad):
        known = Factored.of(covar_module, evidence) if factored is None else factored
        factor, noise, white, alpha_norm = known.factor, known.noise, known.white, known.alpha_norm
        m = len(evidence.y)
        # Backward error: the factor is that of K + D + E with ||E|| of order m eps max k.
        relative = (m + 1) * torch.finfo(X.dtype).eps
        backward = relative * known.largest
        if m and backward > 0.1 * noise.min().item():
            _warn_coarse(noise.min().item(), X.dtype)
        fields = 7
        grad = torch.is_grad_enabled() and X.requires_grad
        # One result to write into: small pieces between large ones would scatter the memory.
        whole = X.new_empty(fields, 0 if grad else len(X))
        parts = []
        start = 0
        for chunk in X.split(rows_per_chunk(m, X)):
            prior = prior_variance(covar_module, chunk)
            V = _solve(factor, covariance(covar_module, evidence.X, chunk))  # L^-1 k_X(x)
            mean = (V * white).sum(dim=0)
            variance = (prior - V.square().sum(dim=0)).clamp_min(0.0)
            noise_norm = penalty = torch.zeros_like(mean)
            # ||z||^2 <= sigma^2 / min D; exactly where the weights are computed.
            z_norm = ((variance + relative * prior) / noise.min()).sqrt() if m else noise_norm
            if weights:
                z2 = _solve(factor, V, transpose=True).square()
                noise_norm = (z2 * evidence.spread.unsqueeze(-1)).sum(dim=0).sqrt()
                penalty = (z2 * noise.unsqueeze(-1)).sum(dim=0)
                z_norm = z2.sum(dim=0).sqrt()
            mean_rounding = backward * alpha_norm * z_norm
            values = (mean, variance, prior, noise_norm, penalty, relative * prior, mean_rounding)
            if len(chunk) == len(X):
                return PointwisePosterior(*values)
            if grad:
                parts.append(torch.stack(values))
                continue
            for row, value in zip(whole, values, strict=True):
                row[start : start + len(chunk)] = value
            start += len(chunk)
        if grad:
            whole = torch.cat(parts, dim=1)
    return PointwisePosterior(*whole)


def _warn_coarse(noise_var: float, dtype: torch.dtype) -> None:
    warn_lost_accuracy(
        f"A noise variance of {noise_var:.1e} is within rounding in {dtype}; bounds are widened by "
        "what rounding may do. Use double precision, or a larger noise_var.",
        stacklevel=3,
    )


def solve_lower(factor: Tensor, right: Tensor) -> Tensor:
    """``L^-1 B`` for a lower factor that may be part of a larger matrix; differentiable in B.

    PyTorch's solver copies such a factor at every call. Here its blocks are used in place.

    Args:
        factor: ``n x n``, rows contiguous.
        right: ``n x m``.
    """
    n = len(factor)
    if n <= 2 * _BLOCK or factor.is_contiguous():
        return _solve(factor, right)
    if torch.is_grad_enabled() and (right.requires_grad or factor.requires_grad):
        parts: list[Tensor] = []
        for start in range(0, n, _BLOCK):
            stop = min(start + _BLOCK, n)
            left = right[start:stop]
            if parts:
                left = left - factor[start:stop, :start] @ torch.cat(parts)
            parts.append(_solve(factor[start:stop, start:stop], left))
        return torch.cat(parts)
    solution = right.clone()
    for start in range(0, n, _BLOCK):
        part = solution[start : start + _BLOCK]
        rows = factor[start : start + _BLOCK]
        if start and right.shape[1] == 1:
            part[:, 0].addmv_(rows[:, :start], solution[:start, 0], alpha=-1.0)
        elif start:
            part.addmm_(rows[:, :start], solution[:start], alpha=-1.0)
        part.copy_(_solve(rows[:, start : start + len(part)], part))
    return solution


def _solve(factor: Tensor, right: Tensor, *, transpose: bool = False) -> Tensor:
    if factor.shape[-1] == 0:
        return right
    if transpose:
        return torch.linalg.solve_triangular(factor.mT, right, upper=True)
    return torch.linalg.solve_triangular(factor, right, upper=False)
