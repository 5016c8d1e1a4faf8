"""The exact posterior of a zero-mean Gaussian process at any points.

mu(x)      = k_X(x)' (K_X + D)^-1 y
sigma^2(x) = k(x, x) - k_X(x)' (K_X + D)^-1 k_X(x)        (paper, equation GP_reg; D = lambda^2 I)

With z(x) = (K_X + D)^-1 k_X(x) the mean is z'y, and its error against a function f of RKHS
norm at most C splits into a bias of at most C sqrt(sigma^2 - z'Dz) and a noise term z'eps.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import compress, count
from operator import ne
from typing import Any

import numpy as np
import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from botorch_delay.domains.devices import sent, sent_rows
from botorch_delay.gp.factor import Factor, factorize, warn_lost_accuracy
from botorch_delay.gp.kernels import covariance, prior_variance, rows_per_chunk

BLOCK = 64  # rows of the factor that are computed, and taken over, together


def shared_prefix(first: Sequence[Any], second: Sequence[Any]) -> int:
    """The number of equal entries at the start of two sequences."""
    different = compress(count(), map(ne, first, second))
    return next(different, min(len(first), len(second)))


def unchanged(X: Tensor) -> Tensor:
    """The identity, as a named function so that optimizers can be pickled."""
    return X


@dataclass(frozen=True)
class Data:
    """Mean answers, one row per distinct point."""

    X: Tensor  # ``m x d``
    y: Tensor  # mean of each point's answers, weighted by precision, ``m``
    noise_var: Tensor  # noise variance of that mean under the surrogate, ``m``
    # Sum of the squared weights that a point's answers have in their mean, ``m``: 1 / n_i for n_i
    # answers of equal noise.
    spread: Tensor

    @classmethod
    def single(cls, X: Tensor, y: Tensor, noise_var: Tensor) -> Data:
        """One answer at each point."""
        return cls(X, y, noise_var, torch.ones_like(y))

    @classmethod
    def averaged(cls, X: Tensor, y: Tensor, noise_var: Tensor, group: Tensor) -> Data:
        """Averages of the answers (``n`` rows, on the CPU) that share an entry of ``group``."""
        # On the CPU ``index_add`` adds in a fixed order.
        found = np.unique(group.numpy(), return_index=True, return_inverse=True)
        _, first, inverse = map(torch.from_numpy, found)
        zeros = y.new_zeros(len(first))
        precision = zeros.index_add(0, inverse, 1.0 / noise_var)
        weights = 1.0 / (noise_var * precision[inverse])
        return cls(
            X=X[first],
            y=zeros.index_add(0, inverse, weights * y),
            noise_var=1.0 / precision,
            spread=zeros.index_add(0, inverse, weights.square()),
        )

    def __len__(self) -> int:
        return len(self.y)

    def at(self, rows: Tensor) -> Data:
        """The data of some points, given by a LongTensor of rows."""
        return Data(self.X[rows], self.y[rows], self.noise_var[rows], self.spread[rows])

    def to(self, like: Tensor, inputs: Callable[[Tensor], Tensor]) -> Data:
        """The same data on the device of ``like``, with points mapped by ``inputs``."""
        rows = sent(torch.stack([self.y, self.noise_var, self.spread]), like)
        found = Data(inputs(sent(self.X, like)), *rows)
        vars(found)["spread_ratio"] = self.spread_ratio  # from the CPU: no device is waited for
        return found

    @cached_property
    def spread_ratio(self) -> float:
        """The largest spread / noise_var: 1 / lambda^2 where all answers share one noise."""
        return (self.spread / self.noise_var).max().item() if len(self) else 0.0


@dataclass(frozen=True)
class Moments:
    """Posterior at ``n`` points, each field of shape ``n``."""

    mean: Tensor  # mu
    variance: Tensor  # sigma^2, never negative
    # Euclidean norm of the weights of all single answers in the mean: the scale of the mean's noise
    # if each answer has independent noise of scale 1; 0 unless computed with ``weights``.
    noise_norm: Tensor
    # z'Dz: ``variance - penalty`` bounds the squared bias for RKHS norm 1; 0 unless computed with
    # ``weights``.
    penalty: Tensor
    rounding: Tensor  # bounds the rounding error of ``variance``, and of ``variance - penalty``
    mean_rounding: Tensor  # bounds the rounding error of ``mean``

    @property
    def deviation(self) -> Tensor:
        """Sigma."""
        return self.variance.sqrt()

    @property
    def deviation_at_most(self) -> Tensor:
        """An upper bound on sigma that allows for rounding errors."""
        return (self.variance + self.rounding).sqrt()

    @property
    def bias(self) -> Tensor:
        """An upper bound on the bias per unit of RKHS norm that allows for rounding errors."""
        return ((self.variance - self.penalty).clamp_min(0.0) + self.rounding).sqrt()

    def rescaled(self, offset: float, scale: float) -> Moments:
        """The posterior of ``offset + scale * g`` if this is the posterior of g."""
        if offset == 0.0 and scale == 1.0:
            return self
        square = scale * scale
        return replace(
            self,
            mean=offset + scale * self.mean,
            variance=square * self.variance,
            penalty=square * self.penalty,
            rounding=square * self.rounding,
            mean_rounding=abs(scale) * self.mean_rounding,
        )


class Posterior:
    """The posterior of ``offset + scale * g``, at points that ``inputs`` maps to the inputs of g.

    The factor ``L L' = K + D`` is computed when it is first needed, in blocks of rows. Each block
    depends only on those above it: leading blocks are taken over from an earlier posterior
    ``before`` with the same kernel, and are equal, to the last bit, to those computed from scratch.
    Rows count as equal if their ``labels`` are, which stand for point and noise; comparing these
    does not wait for a device. If a block is not positive definite, the whole matrix is factorized
    with raised noise, and its blocks are never taken over.
    """

    def __init__(
        self,
        covar_module: Kernel,
        data: Data,
        *,
        inputs: Callable[[Tensor], Tensor] = unchanged,
        offset: float = 0.0,
        scale: float = 1.0,
        labels: Sequence[tuple[int, float]] = (),
        before: Posterior | None = None,
    ) -> None:
        self.data, self.labels = data, labels
        self._kernel, self._inputs = covar_module, inputs
        self._offset, self._scale = offset, scale
        self._whole_blocks = data.y.new_empty(0, 0)  # leading blocks of L that are known
        if before is not None:
            same = shared_prefix(labels, before.labels)
            known = min(same, len(before._whole_blocks)) // BLOCK * BLOCK
            self._whole_blocks = before._whole_blocks[:known, :known]

    def __len__(self) -> int:
        return len(self.data.y)

    def with_values(self, y: Tensor) -> Posterior:
        """The posterior given other mean answers, ``m``, at the same points with the same noise."""
        made = copy.copy(self)
        made.data = replace(self.data, y=y)
        for name in ("_white", "weights"):
            vars(made).pop(name, None)
        return made

    @torch.no_grad()
    def drawn_answers(self, known: Posterior, generator: torch.Generator) -> Tensor:
        """Mean answers, ``m``, sampled given those of ``known``, a posterior of some of the points.

        Matheron's rule (Wilson et al. 2020): with s a prior sample of all mean answers, and e what
        it implies for the known ones, y, the result is ``s + Cov(s, e) Var(e)^-1 (y - e)``.
        """
        X, noise = self.data.X, self.data.noise_var
        drawn = sent(torch.randn(2, len(self), generator=generator, dtype=torch.double), X)
        place = {key: row for row, (key, _) in enumerate(self.labels)}
        same = set(known.labels)
        at = sent_rows([place[key] for key, _ in known.labels], X)
        rows = sent_rows([row for row, label in enumerate(self.labels) if label not in same], X)
        factor = self.factor
        sample = factor.times(drawn[0])
        # An average of some answers at a point is that of all of them plus independent noise.
        more = (known.data.noise_var - noise[at]).clamp_min(0.0).sqrt()
        missed = known.data.y - sample[at] - more * drawn[1, : len(known)]
        weights = known.factor.weights(missed)
        weights = torch.zeros_like(noise).index_put((at,), weights)
        moved = factor.times(factor.transposed_times(weights))  # (K + D) w
        y = torch.zeros_like(noise).index_put((at,), known.data.y)
        return y.index_put((rows,), (sample + moved)[rows])

    @cached_property
    @torch.no_grad()
    def _factored(self) -> tuple[Factor, Tensor]:
        """L, and the diagonal of D, which is raised if rounding makes the matrix indefinite."""
        known, whole = len(self._whole_blocks), len(self) // BLOCK * BLOCK
        first, failed = self._whole_blocks.contiguous(), []
        if known < whole:
            first = self.data.y.new_zeros(whole, whole)
            first[:known, :known] = self._whole_blocks
            for start in range(known, whole, BLOCK):
                left, corner, info = self._rows(first[:start, :start])
                first[start : start + BLOCK, :start] = left
                first[start : start + BLOCK, start : start + BLOCK] = corner
                failed.append(info)
        left, corner, info = self._rows(first)
        # Checked once, since each check waits for a device; what follows a failure is discarded.
        if not bool(torch.stack([*failed, info]).any()):
            self._whole_blocks = first
            return Factor(first, left, corner), self.data.noise_var
        K = covariance(self._kernel, self.data.X, self.data.X)
        matrix, noise = factorize(K, self.data.noise_var)
        return Factor.of(matrix), noise

    @property
    def factor(self) -> Factor:
        """The Cholesky factor L of K + D."""
        return self._factored[0]

    @property
    def noise_var(self) -> Tensor:
        """The diagonal of D as L has it, raised if need be, ``m``."""
        return self._factored[1]

    @cached_property
    def _white(self) -> Tensor:
        """``L^-1 y``, ``m x 1``."""
        return self.factor.solve(self.data.y.unsqueeze(-1))

    @cached_property
    def weights(self) -> Tensor:
        """``(K + D)^-1 y``, the weights in the mean of the covariances with the data, ``m``."""
        return self.factor.solve_transposed(self._white).squeeze(-1)

    def mean(self, X: Tensor) -> Tensor:
        """Mu at ``n x d`` points, ``n``; differentiable, and cheaper than :meth:`at`."""
        cross = covariance(self._kernel, self.data.X, self._inputs(X))
        return self._offset + self._scale * (self.weights @ cross)

    @torch.no_grad()
    def joint(self, X: Tensor) -> Tensor:
        """The covariance of the values at ``n x d`` points, without noise: ``n x n``."""
        inputs = self._inputs(X)
        V = self.factor.solve(covariance(self._kernel, self.data.X, inputs))
        return self._scale**2 * (covariance(self._kernel, inputs, inputs) - V.mT @ V)

    @torch.no_grad()
    def samples(self, X: Tensor, count: int, generator: torch.Generator) -> Tensor:
        """Joint samples of the values at ``n x d`` points, without noise: ``count x n``."""
        values, vectors = torch.linalg.eigh(self.joint(X))
        # The symmetric root is unique, whatever signs the eigenvectors have.
        root = vectors * values.clamp_min(0.0).sqrt() @ vectors.mT
        normal = torch.randn(count, len(X), generator=generator, dtype=torch.double)
        return self.mean(X) + normal.to(root) @ root

    def variance(self, X: Tensor) -> Tensor:
        """Sigma^2 at ``n x d`` points, ``n``; differentiable, and cheaper than :meth:`at`."""
        _ = self._rounding  # warns if the noise is within rounding
        with torch.set_grad_enabled(torch.is_grad_enabled() and X.requires_grad):
            inputs = self._inputs(X)
            chunks = inputs.split(rows_per_chunk(len(self), inputs))
            return self._scale**2 * torch.cat([self._variance(chunk)[2] for chunk in chunks])

    def at(self, X: Tensor, *, weights: bool = False) -> Moments:
        """The posterior at ``n x d`` points, differentiable in ``X`` if it requires gradients.

        It costs ``O(n m^2)``, and twice that with ``weights``, needed for ``noise_norm`` and
        ``penalty``. The result has 6 n numbers, 48 MB for 1,000,000 points in double; memory beyond
        it and the factor is bounded (``rows_per_chunk``).
        """
        with torch.set_grad_enabled(torch.is_grad_enabled() and X.requires_grad):
            inputs = self._inputs(X)
            size = rows_per_chunk(len(self), inputs)
            if len(inputs) <= size:
                return Moments(*self._moments(inputs, weights)).rescaled(self._offset, self._scale)
            # Written into one tensor: keeping small ones between large ones fragments memory.
            whole = inputs.new_empty(6, len(inputs))
            for start in range(0, len(inputs), size):
                part = slice(start, start + size)
                whole[:, part] = torch.stack(self._moments(inputs[part], weights))
            return Moments(*whole).rescaled(self._offset, self._scale)

    def _moments(self, X: Tensor, weights: bool) -> tuple[Tensor, ...]:
        """The fields of :class:`Moments` for g, at inputs of g."""
        noise, (relative, backward) = self.noise_var, self._rounding
        V, prior, variance = self._variance(X)
        mean = (V * self._white).sum(dim=0)
        noise_norm = penalty = torch.zeros_like(mean)
        # A bound, ||z||^2 <= sigma^2 / min D; below, the norm itself if the weights are computed.
        z_norm = ((variance + relative * prior) / noise.min()).sqrt() if len(self) else noise_norm
        if weights:
            z2 = self.factor.solve_transposed(V).square()
            noise_norm = (z2 * self.data.spread.unsqueeze(-1)).sum(dim=0).sqrt()
            penalty = (z2 * noise.unsqueeze(-1)).sum(dim=0)
            z_norm = z2.sum(dim=0).sqrt()
        mean_rounding = backward * self.weights.norm() * z_norm
        return mean, variance, noise_norm, penalty, relative * prior, mean_rounding

    def _variance(self, X: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """``L^-1 k_X(x)``, ``k(x, x)``, and the variance of g, at inputs of g."""
        prior = prior_variance(self._kernel, X)
        V = self.factor.solve(covariance(self._kernel, self.data.X, X))
        return V, prior, (prior - V.square().sum(dim=0)).clamp_min(0.0)

    @cached_property
    def _rounding(self) -> tuple[float, float]:
        """Rounding error of variances as a share of k(x, x), and norm of E if L L' = K + D + E.

        Both are of order m eps; the second is the first times the largest k(x, x) of the data.
        """
        m, X = len(self), self.data.X
        relative = (m + 1) * torch.finfo(X.dtype).eps
        largest, least = 0.0, math.inf
        if m:
            prior = prior_variance(self._kernel, X)
            largest, least = torch.stack([prior.max(), self.noise_var.min()]).tolist()
        if relative * largest > 0.1 * least:
            warn_lost_accuracy(
                f"A noise variance of {least:.1e} is within rounding errors in {X.dtype}; "
                "variances are off by these, and bounds are widened. Use double precision, or a "
                "larger noise_var."
            )
        return relative, relative * largest

    def _rows(self, above: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The block of L below ``above``: its left part, its corner, whether the corner failed."""
        start, stop = len(above), min(len(above) + BLOCK, len(self))
        K = covariance(self._kernel, self.data.X[start:stop], self.data.X[:stop])
        left = torch.linalg.solve_triangular(above, K[:, :start].mT, upper=False).mT
        corner = K[:, start:] + self.data.noise_var[start:stop].diag() - left @ left.mT
        return left, *torch.linalg.cholesky_ex(corner)
