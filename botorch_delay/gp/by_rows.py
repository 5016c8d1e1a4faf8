"""The posterior on fixed candidates, kept up to date answer by answer.

For m distinct evaluated points X with noise D = diag(d_1, ..., d_m), any square root L of
K(X, X) + D (L L' = K + D) gives, with R = L^-1 and W = R K(X, candidates),

    variance = k(x, x) - sum of squares of W's columns,      mean = W' R y.

Only R and W are stored, side by side: every change acts on their common rows, O((N + m) m) at
most, and nothing is ever factorized anew.

* A new point appends a row, as in a Cholesky factorization.
* A changed noise d_i (the same point answered again, an answer taken back) is a rank-one
  change: with r = R e_i and e = 1 / (1 + (d_i' - d_i) |r|^2), every row moves along r by a
  multiple of q = r' W, and variance += (d_i' - d_i) e q^2. Since answers at one point are
  averaged, rows count distinct points: memory does not grow with repeated answers.
* A point that is taken out is turned into the last row by a Householder reflection along r,
  and that row is dropped.
* A changed value moves the mean, which is then computed anew from W.

So answers may come in any order, be replaced or withdrawn, at the same cost.
"""

from __future__ import annotations

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from botorch_delay.gp.kernels import covariance, prior_variance
from botorch_delay.gp.posterior import factorize

# From this many changes at once, as a share of the points, one factorization is cheaper.
_REBUILD_SHARE = 0.25


class CandidatePosterior:
    """Zero-mean posterior of a Gaussian process at fixed candidates.

    Args:
        covar_module: the kernel.
        candidates: ``N x d``.

    Attributes:
        mean: at every candidate, ``N``; not to be written to.
        variance: likewise, never negative.
    """

    def __init__(self, covar_module: Kernel, candidates: Tensor) -> None:
        self._kernel = covar_module
        self._candidates = candidates
        with torch.no_grad():
            self._prior = prior_variance(covar_module, candidates).clone()
        self._clear()

    def _clear(self) -> None:
        self.variance = self._prior.clone()
        self.mean = torch.zeros_like(self._prior)
        self._position: dict[int, int] = {}  # key to column of R
        self._keys: list[int] = []
        self._points = self._candidates[:0]
        self._values = self._prior[:0]
        self._noise = self._prior[:0]
        self._rows = self._prior.new_empty(0, len(self._prior))
        self._root = self._prior.new_empty(0, 0)

    def __len__(self) -> int:
        """How many distinct points have been evaluated."""
        return len(self._keys)

    def __contains__(self, key: int) -> bool:
        return key in self._position

    @property
    def deviation(self) -> Tensor:
        """Sigma, ``N``."""
        return self.variance.sqrt()

    @property
    def points(self) -> Tensor:
        """The evaluated points, ``m x d``."""
        return self._points

    def update(self, changes: dict[int, tuple[Tensor, float, float] | None]) -> None:
        """Set, change or take out points.

        Args:
            changes: for each key the point (``d``), its mean answer and the noise variance of
                that mean; or None to take it out. A key is the candidate's row, or negative
                for a point that is no candidate.
        """
        if len(changes) > max(_REBUILD_SHARE * len(self), 8):
            self._rebuild(changes)
            return
        revised = False
        with torch.no_grad():
            for key, change in changes.items():
                if change is None:
                    if key in self._position:
                        self._remove(key)
                elif key in self._position:
                    revised |= bool(change[1] != self._values[self._position[key]])
                    self._revise(key, change[1], change[2])
                else:
                    self._insert(key, *change)
            self.variance.clamp_min_(0.0)
            if revised:  # differences of values may be far larger than what is left of them
                self.mean = self.correction(self._values)

    def replace_candidates(self, rows: Tensor, candidates: Tensor) -> None:
        """Put other candidates (``k x d``) in place of some rows (LongTensor ``k``).

        No key may name such a row as an evaluated point.
        """
        m = len(self)
        with torch.no_grad():
            self._candidates[rows] = candidates
            self._prior[rows] = prior_variance(self._kernel, candidates)
            self.mean[rows], self.variance[rows] = 0.0, self._prior[rows]
            if m:
                fresh = self._root[:m, :m] @ covariance(self._kernel, self._points, candidates)
                self._rows[:m, rows] = fresh
                self.mean[rows] = (self._root[:m, :m] @ self._values) @ fresh
                self.variance[rows] = (self._prior[rows] - fresh.square().sum(dim=0)).clamp_min(0)

    def correction(self, residual: Tensor) -> Tensor:
        """``K(candidates, X) (K + D)^-1 residual``, ``N``, for one residual per point."""
        m = len(self)
        return (self._root[:m, :m] @ residual) @ self._rows[:m]

    @property
    def root(self) -> Tensor:
        """R, with ``R' R = (K + D)^-1``: ``m x m``."""
        return self._root[: len(self), : len(self)]

    @property
    def rows(self) -> Tensor:
        """W, with ``W'W`` what the answers explain of the prior covariance: ``m x N``."""
        return self._rows[: len(self)]

    @property
    def values(self) -> Tensor:
        """Mean answers of the evaluated points, ``m``."""
        return self._values

    @property
    def noise_var(self) -> Tensor:
        """Noise variances of the mean answers, ``m``."""
        return self._noise

    @property
    def keys(self) -> list[int]:
        """Keys of the evaluated points."""
        return list(self._keys)

    def _insert(self, key: int, x: Tensor, value: float, noise_var: float) -> None:
        m = len(self)
        self._reserve(m + 1)
        rows, root = self._rows[:m], self._root[:m, :m]
        point = x.unsqueeze(0)
        if key >= 0:
            column, prior = rows[:, key], self._prior[key]
        else:
            column = root @ covariance(self._kernel, self._points, point).squeeze(-1)
            prior = prior_variance(self._kernel, point).squeeze(0)
        left = (prior - column.square().sum()).clamp_min(0.0)
        scale = (left + noise_var).sqrt()
        row = covariance(self._kernel, point, self._candidates).squeeze(0)
        row = (row - column @ rows) / scale
        self._rows[m] = row
        self._root[m, :m] = -(column @ root) / scale
        self._root[:m, m] = 0.0
        self._root[m, m] = 1.0 / scale
        expected = column @ (root @ self._values)
        self.mean += row * ((value - expected) / scale)
        self.variance -= row.square()
        self._position[key] = m
        self._keys.append(key)
        self._points = torch.cat([self._points, point])
        self._values = torch.cat([self._values, self._values.new_tensor([value])])
        self._noise = torch.cat([self._noise, self._noise.new_tensor([noise_var])])

    def _revise(self, key: int, value: float, noise_var: float) -> None:
        m, i = len(self), self._position[key]
        rows, root = self._rows[:m], self._root[:m, :m]
        along = root[:, i].clone()
        moved = along @ rows  # row i of (K + D)^-1 K(X, candidates)
        self._values[i] = value
        change = noise_var - self._noise[i]
        if bool(change == 0.0):
            return
        square = along.square().sum()
        # Between 1 and the ratio of the noises, whatever rounding says.
        ratio = (noise_var / self._noise[i]).item()
        inner = (1.0 + change * square).clamp(min(1.0, ratio), max(1.0, ratio))
        shrink = change / inner
        weight = along @ (root @ self._values)
        self.mean -= shrink * weight * moved
        self.variance += shrink * moved.square()
        # (I + change r r')^-1/2 = I + factor r r'
        factor = (inner.rsqrt() - 1.0) / square
        rows.addr_(along, moved, alpha=factor.item())
        root.addr_(along, along @ root, alpha=factor.item())
        self._noise[i] = noise_var

    def _remove(self, key: int) -> None:
        m, i = len(self), self._position.pop(key)
        rows, root = self._rows[:m], self._root[:m, :m]
        along = root[:, i] / root[:, i].norm()
        dropped = along @ rows
        self.mean -= dropped * (along @ (root @ self._values))
        self.variance += dropped.square()
        # Reflect so that the direction becomes the last axis, towards the far side.
        mirror = along.clone()
        mirror[-1] += 1.0 if bool(along[-1] >= 0.0) else -1.0
        scale = -2.0 / mirror.square().sum().item()
        rows.addr_(mirror, mirror @ rows, alpha=scale)
        root.addr_(mirror, mirror @ root, alpha=scale)
        last = m - 1
        if i != last:
            root[:, i] = root[:, last]
            moved = self._keys[last]
            self._keys[i] = moved
            self._position[moved] = i
            for vector in (self._points, self._values, self._noise):
                vector[i] = vector[last].clone()
        self._keys.pop()
        self._points, self._values = self._points[:last], self._values[:last]
        self._noise = self._noise[:last]

    def _rebuild(self, changes: dict[int, tuple[Tensor, float, float] | None]) -> None:
        """Many changes at once: one factorization."""
        merged: dict[int, tuple[Tensor, float, float]] = {
            key: (x, value, noise_var)
            for key, x, value, noise_var in zip(
                self._keys, self._points, self._values.tolist(), self._noise.tolist(), strict=True
            )
        }
        for key, change in changes.items():
            if change is None:
                merged.pop(key, None)
            else:
                merged[key] = change
        self._clear()
        if not merged:
            return
        m = len(merged)
        self._keys = list(merged)
        self._position = {key: i for i, key in enumerate(self._keys)}
        self._points = torch.stack([x for x, _, _ in merged.values()])
        self._values = self._prior.new_tensor([value for _, value, _ in merged.values()])
        noise = self._prior.new_tensor([noise_var for _, _, noise_var in merged.values()])
        with torch.no_grad():
            K = covariance(self._kernel, self._points, self._points)
            factor, self._noise = factorize(K, noise)
            self._reserve(m)
            root, rows = self._root[:m, :m], self._rows[:m]
            eye = torch.eye(m, dtype=K.dtype, device=K.device)
            root.copy_(torch.linalg.solve_triangular(factor, eye, upper=False))
            cross = covariance(self._kernel, self._points, self._candidates)
            rows.copy_(torch.linalg.solve_triangular(factor, cross, upper=False))
            self.mean += (root @ self._values) @ rows
            self.variance -= rows.square().sum(dim=0)
            self.variance.clamp_min_(0.0)

    def _reserve(self, size: int) -> None:
        have, n = self._rows.shape
        if size <= have:
            return
        room = max(2 * have, size, 8)
        rows, root = self._rows.new_empty(room, n), self._root.new_zeros(room, room)
        rows[:have] = self._rows
        root[:have, :have] = self._root
        self._rows, self._root = rows, root
