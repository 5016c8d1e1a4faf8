"""The posterior on fixed candidates, kept up to date answer by answer.

It is kept in one of two ways. Where there are few candidates, only they have answers and many of
them have, their covariance C is: with p the precisions of the candidates (the inverse of the noise
variances of their mean answers) and w = p times the mean answers, the mean is C w. An answer at
candidate i changes p_i by dp and w_i by dw; with c = C e_i and g = 1 + dp c_i,

    mean <- mean + c (dw - dp mean_i) / g,      C <- C - (dp / g) c c'.

Nothing grows with the number of answers, or of distinct points; see
:mod:`botorch_delay.gp.candidate_covariance`.

Else rows are kept, which is the more accurate. For m distinct points X with answers of noise D, any
square root L of K(X, X) + D (L L' = K + D) gives, with R = L^-1 and W = R K(X, candidates),

    variance = k(x, x) - sum of squares of W's columns,      mean = W' R y.

Every change acts on the common rows of R and W, O((N + m) m) at most:

* A new point appends a row, as in a Cholesky factorization.
* A changed noise d_i is a rank-one change: with r = R e_i and e = 1 / (1 + (d_i' - d_i) |r|^2),
  every row moves along r by a multiple of q = r' W, and variance += (d_i' - d_i) e q^2.
* A changed value moves the mean, which is then computed anew from W.

Where a point is taken out, or many change at once, all is made anew by one factorization.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from botorch_delay.domains.devices import sent, sent_rows
from botorch_delay.gp.candidate_covariance import MAX_FOLDED, CandidateCovariance
from botorch_delay.gp.factor import factorize
from botorch_delay.gp.kernels import covariance, prior_variance, rows_per_chunk

# From this many changes at once, as a share of the points, one factorization is cheaper.
REBUILD_SHARE = 0.25
# From this many distinct points, as a share of the candidates, a covariance is cheaper.
SHARE_TO_FOLD = 1.0 / 16.0
# A covariance is kept for noise variances above this share of the prior variance: their inverses
# magnify its rounding.
SMALLEST_NOISE = 1e-9
# Where an answer is taken out g cancels. Rounding may be such a share of it, which in double it is
# not while noise variances are above 5e-7 of the prior variance.
LARGEST_ERROR = 1e-3

# A point (``d``), its mean answer and the noise variance of that mean.
Answer = tuple[Tensor, float, float]


class CandidatePosterior:
    """Zero-mean posterior of a Gaussian process at fixed candidates, ``N x d``.

    With m distinct points rows are one tensor of m N to 2 m N numbers, and while it grows there is
    one of half its size beside it: 8 to 16 GB for 1,000 points and 1,000,000 candidates in double,
    24 GB while it grows. All else is vectors of N numbers, and pieces of ``rows_per_chunk``. A
    covariance is at most ``MAX_FOLDED`` squared, and never kept with ``as_rows``.

    Args:
        covar_module: the kernel.
        candidates: ``N x d``.
        as_rows: whether rows are kept whatever is cheaper.
        pool: the candidates that count, a LongTensor; at the others it stays the prior. All count
            where it is None.
    """

    def __init__(
        self,
        covar_module: Kernel,
        candidates: Tensor,
        *,
        as_rows: bool = False,
        pool: Tensor | None = None,
    ) -> None:
        self._kernel, self._candidates, self._pool = covar_module, candidates, pool
        self._answers: dict[int, Answer] = {}
        self._folds = len(candidates) <= MAX_FOLDED and not as_rows and pool is None
        self._kept: _Covariance | _Rows = _Rows(covar_module, candidates, pool)
        self._smallest = SMALLEST_NOISE * self._kept.variance.max().item()

    def __len__(self) -> int:
        return len(self._answers)

    @property
    def mean(self) -> Tensor:
        """Mu at every candidate, ``N``; not to be written to."""
        return self._at_all(self._kept.mean)

    @property
    def variance(self) -> Tensor:
        """Sigma^2 at every candidate, ``N``, never negative; not to be written to."""
        if self._pool is None:
            return self._kept.variance
        prior = prior_variance(self._kernel, self._candidates)
        return prior.index_copy(0, self._pool, self._kept.variance)

    def _at_all(self, values: Tensor) -> Tensor:
        """Values at the pool (all candidates if there is none) at all candidates, ``N``."""
        if self._pool is None:
            return values
        return values.new_zeros(len(self._candidates)).index_copy(0, self._pool, values)

    @property
    def keys(self) -> list[int]:
        """Of the points that have answers, ``m``."""
        return list(self._answers)

    @property
    def noise_var(self) -> Tensor:
        """Noise variances of their mean answers, ``m``."""
        return sent([noise for _, _, noise in self._answers.values()], self._candidates)

    @property
    def least_noise(self) -> float:
        """The least of them."""
        return min(noise for _, _, noise in self._answers.values())

    @property
    def explained(self) -> Tensor:
        """``y' (K + D)^-1 y`` of the mean answers y, a number."""
        return self._kept.explained()

    def correction(self, residual: Tensor) -> Tensor:
        """``K(candidates, X) (K + D)^-1 residual``, ``N``, for one residual per key."""
        return self._at_all(self._kept.correction(residual))

    def with_values(self, values: Tensor) -> CandidatePosterior:
        """One with other mean answers, one per key, that is not to be updated."""
        made = copy.copy(self)
        made._kept = copy.copy(self._kept)
        made._kept.mean = self._kept.correction(values)
        return made

    @torch.no_grad()
    def update(self, changes: Mapping[int, Answer | None]) -> None:
        """Set or change points, or take them out (None).

        A key is the candidate's row, or negative for a point that is not a candidate.
        """
        for key, change in changes.items():
            if change is None:
                self._answers.pop(key, None)
            else:
                self._answers[key] = change
        noise = (change[2] for change in changes.values() if change is not None)
        self._folds &= (
            min(changes, default=0) >= 0 and min(noise, default=torch.inf) >= self._smallest
        )
        if isinstance(self._kept, _Covariance):
            if self._folds and self._kept.update(changes):
                return
            self._kept, changes = _Rows(self._kernel, self._candidates), {}
        self._kept.update(changes, self._answers)
        if self._folds and len(self) > SHARE_TO_FOLD * len(self._candidates):
            covariance = CandidateCovariance(self._kernel, self._candidates)
            for row in self._kept.parts[1]:
                covariance.take_off(row)
            self._kept = _Covariance(covariance, self._kept.mean, self._answers)


class _Covariance:
    """The posterior by the covariance of the candidates, which are the only points with answers."""

    def __init__(
        self, covariance: CandidateCovariance, mean: Tensor, answers: Mapping[int, Answer]
    ) -> None:
        self._covariance, self.mean = covariance, mean
        self._precision, self._weighted = torch.zeros_like(mean), torch.zeros_like(mean)
        # The same two numbers by candidate, in the order of the answers: what the host knows is not
        # read from a device.
        self._sums = {
            key: (1.0 / noise, value / noise) for key, (_, value, noise) in answers.items()
        }
        if answers:
            sums = sent(list(self._sums.values()), mean).T
            rows = sent_rows([*answers], mean)
            self._precision[rows], self._weighted[rows] = sums
        self._folded = 0  # blocks when the mean was last made anew for that

    @property
    def variance(self) -> Tensor:
        return self._covariance.variance

    def explained(self) -> Tensor:
        at = sent_rows(sorted(self._sums), self.mean)
        y = self._weighted[at] / self._precision[at]
        return (self._weighted[at] * (y - self.mean[at])).sum()

    def correction(self, residual: Tensor) -> Tensor:
        rows = sent_rows([*self._sums], residual)
        weights = torch.zeros_like(self._precision)
        weights[rows] = residual * self._precision[rows]
        return self._covariance.times(weights)

    def update(self, changes: Mapping[int, Answer | None]) -> bool:
        """Whether all could be done; not where an answer is taken out that rounding keeps in."""
        replaced = False
        for key, change in changes.items():
            precision = weighted = 0.0
            if change is not None:
                _, value, noise_var = change
                precision, weighted = 1.0 / noise_var, value / noise_var
            before, weighted_before = self._sums.get(key, (0.0, 0.0))
            more, moved = precision - before, weighted - weighted_before
            if more or moved:
                found = self._covariance.add_precision(key, more, LARGEST_ERROR)
                if found is None:
                    return False
                column, growth = found
                self.mean = self.mean + (moved - more * self.mean[key]) / growth * column
            replaced |= precision <= before
            if change is None:
                self._sums.pop(key, None)
            else:
                self._sums[key] = precision, weighted
            self._precision[key].fill_(precision)
            self._weighted[key].fill_(weighted)
        # Differences of values may be far larger than what is left of them; and what rounding did
        # to many small changes ends with every block.
        if replaced or self._folded != self._covariance.folded:
            self._folded = self._covariance.folded
            self.mean = self._covariance.times(self._weighted)
        return True


class _Rows:
    """The posterior by R and W, for answers anywhere."""

    def __init__(
        self, covar_module: Kernel, candidates: Tensor, pool: Tensor | None = None
    ) -> None:
        self._kernel = covar_module
        self._candidates = candidates if pool is None else candidates[pool]
        # Where the candidates are among those of the pool.
        self._places = None if pool is None else {r: i for i, r in enumerate(pool.tolist())}
        with torch.no_grad():
            self._prior = prior_variance(covar_module, self._candidates).clone()
        self._rebuild({})

    def _rebuild(self, answers: Mapping[int, Answer]) -> None:
        """All anew, by one factorization."""
        self.variance = self._prior.clone()
        self.mean = torch.zeros_like(self._prior)
        self._position: dict[int, int] = {}  # the column of R by key, in order
        # Values and noise variances as they were told: what the host knows is not read from a
        # device.
        self._told: dict[int, tuple[float, float]] = {}
        self._points = self._candidates[:0]
        self._values = self._noise = self._white = self._prior[:0]  # the last is R times values
        self._w = self._prior.new_empty(0, len(self._prior))  # with room for more rows
        self._r = self._prior.new_empty(0, 0)
        if not answers:
            return
        m = len(answers)
        self._position = {key: i for i, key in enumerate(answers)}
        points, values, noise = zip(*answers.values(), strict=True)
        self._told = dict(zip(answers, zip(values, noise, strict=True), strict=True))
        self._points = torch.stack(points)
        self._values = sent(values, self._prior)
        K = covariance(self._kernel, self._points, self._points)
        factor, self._noise = factorize(K, sent(noise, self._prior))
        self._reserve(m)
        R, W = self.parts
        eye = torch.eye(m, dtype=K.dtype, device=K.device)
        R.copy_(torch.linalg.solve_triangular(factor, eye, upper=False))
        # In pieces: whole, W would be there three times.
        size = rows_per_chunk(m, W)
        for start in range(0, W.shape[1], size):
            part = slice(start, start + size)
            cross = covariance(self._kernel, self._points, self._candidates[part])
            W[:, part] = torch.linalg.solve_triangular(factor, cross, upper=False)
            self.variance[part] -= W[:, part].square().sum(dim=0)
        self._white = R @ self._values
        self.mean = self._white @ W
        self.variance.clamp_min_(0.0)

    @property
    def parts(self) -> tuple[Tensor, Tensor]:
        """R, ``m x m``, and W, ``m x N``."""
        m = len(self._position)
        return self._r[:m, :m], self._w[:m]

    def explained(self) -> Tensor:
        return self._white.square().sum()

    def correction(self, residual: Tensor) -> Tensor:
        R, W = self.parts
        return (R @ residual) @ W

    def update(self, changes: Mapping[int, Answer | None], answers: Mapping[int, Answer]) -> None:
        """The answers are those after the changes; all is made anew without any changes."""
        many = len(changes) > max(REBUILD_SHARE * len(self._position), 8)
        gone = any(change is None and key in self._position for key, change in changes.items())
        if many or gone or not changes:
            self._rebuild(answers)
            return
        revised = False
        for key, change in changes.items():
            if change is None:  # nor was it there
                continue
            if key in self._position:
                revised |= change[1] != self._told[key][0]
                self._revise(key, change[1], change[2])
            else:
                self._insert(key, *change)
        self.variance.clamp_min_(0.0)
        if revised:  # differences of values may be far larger than what is left of them
            R, W = self.parts
            self._white = R @ self._values
            self.mean = self._white @ W

    def _insert(self, key: int, x: Tensor, value: float, noise_var: float) -> None:
        m = len(self._position)
        self._reserve(m + 1)
        R, W = self.parts
        point = x.unsqueeze(0)
        place = key if self._places is None else self._places.get(key, -1)
        if place >= 0:
            column, prior = W[:, place], self._prior[place]
        else:
            column = R @ covariance(self._kernel, self._points, point).squeeze(-1)
            prior = prior_variance(self._kernel, point).squeeze(0)
        left = (prior - column.square().sum()).clamp_min(0.0)
        scale = (left + noise_var).sqrt()
        row = covariance(self._kernel, point, self._candidates).squeeze(0)
        row = (row - column @ W) / scale
        self._w[m] = row
        self._r[m, :m] = -(column @ R) / scale
        self._r[:m, m] = 0.0
        self._r[m, m] = 1.0 / scale
        missed = (value - column @ self._white) / scale
        self.mean += row * missed
        self._white = torch.cat([self._white, missed.reshape(1)])
        self.variance -= row.square()
        self._position[key] = m
        self._points = torch.cat([self._points, point])
        self._values = torch.cat([self._values, self._values.new_full((1,), value)])
        self._noise = torch.cat([self._noise, self._noise.new_full((1,), noise_var)])
        self._told[key] = value, noise_var

    def _revise(self, key: int, value: float, noise_var: float) -> None:
        i = self._position[key]
        R, W = self.parts
        along = R[:, i].clone()
        moved = along @ W  # row i of (K + D)^-1 K(X, candidates)
        self._values[i].fill_(value)
        _, before = self._told[key]
        self._told[key] = value, noise_var
        if noise_var == before:
            return
        change = noise_var - self._noise[i]
        square = along.square().sum()
        # Between 1 and the ratio of the noises, whatever rounding says.
        ratio = noise_var / self._noise[i]
        inner = (1.0 + change * square).clamp(ratio.clamp_max(1.0), ratio.clamp_min(1.0))
        shrink = change / inner
        weight = along @ self._white
        self.mean -= shrink * weight * moved
        self.variance += shrink * moved.square()
        # (I + change r r')^-1/2 = I + factor r r'
        factor = (inner.rsqrt() - 1.0) / square
        W.addr_(factor * along, moved)
        R.addr_(factor * along, along @ R)
        self._white = self._white + factor * weight * along
        self._noise[i].fill_(noise_var)

    def _reserve(self, size: int) -> None:
        have, n = self._w.shape
        if size <= have:
            return
        room = max(2 * have, size, 8)
        w, r = self._w.new_empty(room, n), self._r.new_zeros(room, room)
        w[:have], r[:have, :have] = self._w, self._r
        self._w, self._r = w, r
