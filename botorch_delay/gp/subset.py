"""Very many points: which of them a learned posterior uses, and the mean at all of them.

Exact posteriors of n points cost ``O(n^2)`` per ask. An ask needs the mean where it is large, for
which the best points and those around them suffice, and roughly everywhere else, for which points
far from each other do. Local subsets after Gramacy and Apley (2015), spread points by
farthest-point traversal (Gonzalez 1985).

The largest noisy answers are the luckiest ones. So the best points are chosen by means that use
all answers, under a sparse approximation (FITC, Snelson and Ghahramani 2006).
"""

from __future__ import annotations

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from botorch_delay.gp.factor import factorize
from botorch_delay.gp.kernels import covariance, prior_variance
from botorch_delay.gp.posterior import Data

MOST_POINTS = 512  # of up to this many points a posterior uses all
JITTER = 1e-6  # of the variance, for points that are equal up to rounding
CENTRES = 8  # of the best points, around which the nearest ones are kept


@torch.no_grad()
def means_of_all(kernel: Kernel, data: Data) -> Tensor:
    """The posterior mean at every point of ``data``, ``m``, given all its answers.

    Points are correlated through ``MOST_POINTS`` of them only; the rest of the variance is taken
    as independent. It is exact for up to that many points, and at answers without noise. Units are
    those of the data; the cost is ``O(m)``.
    """
    rows = representative(data.X / kernel.lengthscale, data.y)
    cross = covariance(kernel, data.X[rows], data.X)
    factor, _ = factorize(cross[:, rows], cross.new_full((len(rows),), JITTER))
    white = torch.linalg.solve_triangular(factor, cross, upper=False)
    alone = (prior_variance(kernel, data.X) - white.square().sum(dim=0)).clamp_min(0.0)
    share = white / (alone + data.noise_var)
    inner = torch.eye(len(rows), dtype=white.dtype, device=white.device) + share @ white.mT
    shared = white.mT @ torch.linalg.solve(inner, share @ data.y)
    return shared + alone / (alone + data.noise_var) * (data.y - shared)


def representative(X: Tensor, y: Tensor, n: int = MOST_POINTS) -> Tensor:
    """The rows that a posterior uses, increasing: a LongTensor of at most ``n``.

    A third have the largest values, a third are nearest to the best of these, and the rest are each
    as far as possible from those before. ``X`` (``m x d``) are distinct points in units of the
    lengthscales, ``y`` (``m``) their values, to be maximised.
    """
    if len(X) <= n:
        return torch.arange(len(X), device=X.device)
    chosen = torch.zeros(len(X), dtype=torch.bool, device=X.device)
    order = y.argsort(descending=True, stable=True)
    chosen[order[: n // 3]] = True
    away = torch.cdist(X, X[order[:CENTRES]]).amin(dim=1)
    chosen[away.masked_fill(chosen, torch.inf).argsort(stable=True)[: n // 3]] = True
    squares = X.square().sum(dim=1)
    away = torch.cdist(X, X[chosen]).amin(dim=1).square()
    for _ in range(n - int(chosen.sum())):
        row = away.argmax()
        chosen[row] = True
        away = torch.minimum(away, squares + squares[row] - 2.0 * (X @ X[row]))
        away[row] = -torch.inf
    return chosen.nonzero().flatten()
