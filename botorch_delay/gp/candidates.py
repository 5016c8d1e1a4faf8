"""The posterior at fixed candidates, updated answer by answer, in one of two forms.

If candidates are few, many of them have answers and no other point has one, their posterior
covariance C is stored, and an answer costs O(N). With p their precisions (inverse noise variances
of the mean answers) and w = p times the mean answers, the mean is C w. An answer at candidate i
changes p_i by dp and w_i by dw. With c = C e_i and g = 1 + dp c_i,

    mean <- mean + c (dw - dp mean_i) / g,      C <- C - (dp / g) c c'.

Otherwise the rows of two matrices R and W are stored, which is more accurate. An answer costs
O((N + m) m) for m points X with answers y of noise variance D. For any square root
L L' = K(X, X) + D, with R = L^-1 and W = R K(X, candidates),

    variance = k(x, x) - column sums of W squared,      mean = W' R y.

* A new point appends a row to R and W, as in a Cholesky factorization.
* A changed noise d_i is a rank-one change: with r = R e_i and e = 1 / (1 + (d_i' - d_i) |r|^2),
  every row moves along r by a multiple of q = r' W, and variance += (d_i' - d_i) e q^2.
* After a changed value the mean is computed anew from W.
* If a point is removed, or many change at once, everything is recomputed by one factorization.
* Rounding errors grow from row to row, the faster the less noise there is. Once a variance comes
  out negative, the noise is raised and everything recomputed by one factorization.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from botorch_delay.domains.devices import sent, sent_rows
from botorch_delay.gp.candidate_covariance import MAX_FOLDED, CandidateCovariance
from botorch_delay.gp.factor import factorize, warn_lost_accuracy
from botorch_delay.gp.kernels import covariance, prior_variance, rows_per_chunk

# With more changes at once than this share of the points, one factorization is cheaper.
REBUILD_SHARE = 0.25
# If a point's noise changes by more than this factor, a rank-one update keeps too few digits.
MOST_CHANGE = 1e8
# With answers at more than this share of the candidates, storing their covariance is cheaper.
SHARE_TO_FOLD = 1.0 / 16.0
# The covariance is stored only while all noise variances are at least this share of the prior
# variance, since their inverses magnify its rounding errors.
SMALLEST_NOISE = 1e-9
# Largest relative rounding error allowed in g, where digits cancel when an answer is removed. In
# double it stays below this while noise variances are above 5e-7 of the prior variance.
LARGEST_ERROR = 1e-3

# A point (``d``), its mean answer and the noise variance of that mean.
Answer = tuple[Tensor, float, float]
# By key, the answer before and after a change; None where there is none.
_Changes = Mapping[int, tuple[Answer | None, Answer | None]]


class CandidatePosterior:
    """Posterior of a zero-mean Gaussian process at fixed candidates, ``N x d``.

    Rows of m points take m N to 2 m N numbers, 8 to 16 GB for 1,000 points and 1,000,000 candidates
    in double, and half as many more while they grow.

    Args:
        covar_module: the kernel.
        candidates: ``N x d``.
        as_rows: store rows only, and never raise the noise, on which the caller's bounds rest.
        pool: rows of the candidates to keep up to date, a LongTensor; at all other candidates the
            posterior stays the prior. All candidates if None.
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
        rows = _Rows(covar_module, candidates, pool, may_raise=not as_rows)
        self._kept: _Covariance | _Rows = rows
        self._smallest = SMALLEST_NOISE * rows.largest

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

    @property
    def variance_in_pool(self) -> Tensor:
        """Sigma^2 at the candidates of the pool; not to be written to."""
        return self._kept.variance

    def variance_at(self, X: Tensor) -> Tensor:
        """Sigma^2 at any inputs, ``n x d`` to ``n``; differentiable, and fast for few inputs.

        Needs stored rows: answers only at points that are not candidates, or ``as_rows``.
        """
        assert isinstance(self._kept, _Rows)
        return self._kept.variance_at(X)

    def move(self, rows: Tensor, X: Tensor) -> None:
        """Move candidates, given by rows (a LongTensor), to ``X``, ``n x d``; needs stored rows."""
        assert isinstance(self._kept, _Rows)
        assert self._pool is None
        self._candidates = self._candidates.index_copy(0, rows, X)
        self._kept.move(rows, X)

    def _at_all(self, values: Tensor) -> Tensor:
        """Values at the pool, padded with 0 at all other candidates: ``N``."""
        if self._pool is None:
            return values
        return values.new_zeros(len(self._candidates)).index_copy(0, self._pool, values)

    @property
    def keys(self) -> list[int]:
        """Keys of the points that have answers, ``m``."""
        return list(self._answers)

    @property
    def noise_var(self) -> list[float]:
        """Noise variances of the mean answers, ``m``, in the order of :attr:`keys`."""
        return [noise for _, _, noise in self._answers.values()]

    @property
    def explained(self) -> Tensor:
        """``y' (K + D)^-1 y`` for the mean answers y, a scalar."""
        return self._kept.explained()

    def correction(self, residual: Tensor) -> Tensor:
        """``K(candidates, X) (K + D)^-1 residual``, ``N``, for one residual per key."""
        return self._at_all(self._kept.correction(residual))

    def with_values(self, values: Tensor) -> CandidatePosterior:
        """A copy whose mean is that of other answers, one per key; it must not be updated."""
        made = copy.copy(self)
        made._kept = copy.copy(self._kept)
        made._kept.mean = self._kept.correction(values)
        return made

    @torch.no_grad()
    def update(self, changes: Mapping[int, Answer | None]) -> None:
        """Set the answers at some points, or remove them (None).

        A key is a candidate's row, or a negative number for a point that is not a candidate.
        """
        pairs = {key: (self._answers.get(key), change) for key, change in changes.items()}
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
            if self._folds and self._kept.update(pairs):
                return
            self._kept = _Rows(self._kernel, self._candidates)
            self._kept.rebuild(self._answers)
        else:
            self._kept.update(pairs, self._answers)
        if self._folds and len(self) > SHARE_TO_FOLD * len(self._candidates):
            covariance = CandidateCovariance(self._kernel, self._candidates)
            for row in self._kept.parts[1]:
                covariance.downdate(row)
            self._kept = _Covariance(covariance, self._kept.mean, self._answers)


class _Covariance:
    """The posterior from the candidates' covariance; answers are at candidates only."""

    def __init__(
        self, covariance: CandidateCovariance, mean: Tensor, answers: Mapping[int, Answer]
    ) -> None:
        self._covariance, self.mean = covariance, mean
        self._answers = answers  # shared with the :class:`CandidatePosterior` that updates them
        # Precision p and weighted answer w of each candidate; 0 without an answer.
        self._precision, self._weighted = mean.new_zeros(2, len(mean)).index_copy_(
            1, sent_rows([*answers], mean), sent([*map(_weights, answers.values())], mean).T
        )
        self._folded = 0  # how many blocks were folded when the mean was last computed from w

    @property
    def variance(self) -> Tensor:
        return self._covariance.variance

    def explained(self) -> Tensor:
        y = torch.where(self._precision > 0.0, self._weighted / self._precision, 0.0)
        return (self._weighted * (y - self.mean)).sum()

    def correction(self, residual: Tensor) -> Tensor:
        rows = sent_rows([*self._answers], residual)
        weights = torch.zeros_like(self._precision)
        weights[rows] = residual * self._precision[rows]
        return self._covariance.times(weights)

    def update(self, changes: _Changes) -> bool:
        """Apply changes. False, and this object is invalid, if a removal would be inaccurate."""
        replaced = False
        for key, (old, new) in changes.items():
            # Floats on the host, so that nothing has to be read back from a device.
            (precision, weighted), (before, weighted_before) = _weights(new), _weights(old)
            more, moved = precision - before, weighted - weighted_before
            if more or moved:
                found = self._covariance.add_precision(key, more, LARGEST_ERROR)
                if found is None:
                    return False
                column, growth = found
                self.mean = self.mean + (moved - more * self.mean[key]) / growth * column
            replaced |= precision <= before
            self._precision[key].fill_(precision)
            self._weighted[key].fill_(weighted)
        # The mean is recomputed after an answer was replaced, since the old one may have been far
        # larger than those that remain, and with each folded block, so that errors do not add up.
        if replaced or self._folded != self._covariance.folded:
            self._folded = self._covariance.folded
            self.mean = self._covariance.times(self._weighted)
        return True


def _weights(answer: Answer | None) -> tuple[float, float]:
    """Precision p and weighted answer w."""
    return (0.0, 0.0) if answer is None else (1.0 / answer[2], answer[1] / answer[2])


def _is_far(old: Answer, new: Answer) -> bool:
    """Whether noise changes so much that digits would cancel in a rank-one update."""
    return not 1.0 / MOST_CHANGE < new[2] / old[2] < MOST_CHANGE


class _Rows:
    """The posterior from R and W; answers may be anywhere."""

    def __init__(
        self,
        covar_module: Kernel,
        candidates: Tensor,
        pool: Tensor | None = None,
        *,
        may_raise: bool = True,
    ) -> None:
        self._kernel, self._may_raise = covar_module, may_raise
        self._least_noise = 0.0  # smaller noise variances are raised to this
        self._candidates = candidates if pool is None else candidates[pool]
        # The position in the pool of each of its candidates, by row.
        self._places = None if pool is None else {r: i for i, r in enumerate(pool.tolist())}
        with torch.no_grad():
            self._prior = prior_variance(covar_module, self._candidates).clone()
        self.largest = self._prior.max().item()
        self.rebuild({})

    def rebuild(self, answers: Mapping[int, Answer]) -> None:
        """Recompute everything by one factorization."""
        self.variance = self._prior.clone()
        self.mean = torch.zeros_like(self._prior)
        self._position = {key: i for i, key in enumerate(answers)}  # each key's column of R
        self._points = self._candidates[:0]
        self._noise = self._white = self._prior[:0]  # D, and R y
        self._smallest_noise = torch.inf  # of all answers since the last rebuild
        self._w = self._prior.new_empty(0, len(self._prior))  # W, with room for more rows
        self._r = self._prior.new_empty(0, 0)
        if not answers:
            return
        m = len(answers)
        self._points = torch.stack([x for x, _, _ in answers.values()])
        K = covariance(self._kernel, self._points, self._points)
        noises = [max(a[2], self._least_noise) for a in answers.values()]
        self._smallest_noise = min(noises)
        factor, self._noise = factorize(K, sent(noises, self._prior))
        self._reserve(m)
        R, W = self.parts
        eye = torch.eye(m, dtype=K.dtype, device=K.device)
        R.copy_(torch.linalg.solve_triangular(factor, eye, upper=False))
        # In chunks: otherwise three tensors of the size of W would be in memory at once.
        size = rows_per_chunk(m, W)
        for start in range(0, W.shape[1], size):
            part = slice(start, start + size)
            cross = covariance(self._kernel, self._points, self._candidates[part])
            W[:, part] = torch.linalg.solve_triangular(factor, cross, upper=False)
            self.variance[part] -= W[:, part].square().sum(dim=0)
        self._solve_mean(answers)
        self.variance.clamp_min_(0.0)

    def _solve_mean(self, answers: Mapping[int, Answer]) -> None:
        R, W = self.parts
        self._white = R @ sent([value for _, value, _ in answers.values()], self._prior)
        self.mean = self._white @ W

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

    def variance_at(self, X: Tensor) -> Tensor:
        white = self.parts[0] @ covariance(self._kernel, self._points, X)
        return (prior_variance(self._kernel, X) - white.square().sum(dim=0)).clamp_min(0.0)

    @torch.no_grad()
    def move(self, rows: Tensor, X: Tensor) -> None:
        R, W = self.parts
        found = R @ covariance(self._kernel, self._points, X)
        W[:, rows] = found
        self._candidates = self._candidates.index_copy(0, rows, X)
        self._prior[rows] = prior_variance(self._kernel, X)
        self.mean[rows] = self._white @ found
        self.variance[rows] = (self._prior[rows] - found.square().sum(dim=0)).clamp_min(0.0)

    def update(self, changes: _Changes, answers: Mapping[int, Answer]) -> None:
        """Apply changes; ``answers`` are all answers after them."""
        many = len(changes) > max(REBUILD_SHARE * len(self._position), 8)
        if many or any(not new or _is_far(old, new) for old, new in changes.values() if old):
            self.rebuild(answers)
            return
        revised = False
        for key, (old, new) in changes.items():
            if new:
                self._smallest_noise = min(self._smallest_noise, new[2])
            if old and new:
                revised |= new[1] != old[1]
                if new[2] != old[2]:
                    self._revise(key, new[2])
            elif new:
                self._insert(key, *new)
        if self._lost_accuracy(answers):
            self.rebuild(answers)
            return
        self.variance.clamp_min_(0.0)
        if revised:  # recomputed, not updated: the old values may have been far larger
            self._solve_mean(answers)

    def _lost_accuracy(self, answers: Mapping[int, Answer]) -> bool:
        """Whether rounding made a variance negative; if so, raise the noise, with a warning."""
        noise = max(self._smallest_noise, self._least_noise)
        small = torch.finfo(self._prior.dtype).eps ** 0.5 * self.largest
        # Reading variances waits for a device, so only if noise is small enough for errors to grow.
        if not self._may_raise or noise >= small or bool(self.variance.min() >= -small):
            return False
        noise = max(min(a[2] for a in answers.values()), self._least_noise)
        self._least_noise = 10.0 * noise
        warn_lost_accuracy(
            f"Rounding errors in {self._prior.dtype} exceed a noise variance of {noise:.1e}, which "
            "was raised for the choice of points. Use double precision, or a larger noise_var."
        )
        return True

    def _insert(self, key: int, x: Tensor, value: float, noise_var: float) -> None:
        noise_var = max(noise_var, self._least_noise)
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
        self._noise = torch.cat([self._noise, self._noise.new_full((1,), noise_var)])

    def _revise(self, key: int, noise_var: float) -> None:
        noise_var = max(noise_var, self._least_noise)
        i = self._position[key]
        R, W = self.parts
        along = R[:, i].clone()
        moved = along @ W  # row i of (K + D)^-1 K(X, candidates)
        change = noise_var - self._noise[i]
        square = along.square().sum()
        # Without rounding this is between 1 and the ratio of the noises.
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
