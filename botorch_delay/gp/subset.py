"""Very many points: choosing those that a learned posterior uses, and the mean at all of them.

An exact posterior given n points costs ``O(n^2)`` per ask. An ask needs an accurate mean only where
the mean is large, for which the best points and their neighbours suffice; elsewhere a rough one
will do, for which points far from each other suffice. Neighbours follow the local subsets of
Gramacy and Apley (2015); spread points come from farthest-point traversal (Gonzalez 1985).

The largest noisy answers are partly lucky. So the best points are chosen by a posterior mean that
uses all answers, under a sparse approximation (FITC, Snelson and Ghahramani 2006).
"""

from __future__ import annotations

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from botorch_delay.gp.factor import factorize
from botorch_delay.gp.kernels import covariance, prior_variance
from botorch_delay.gp.posterior import Data

MOST_POINTS = 512  # of more points, a posterior uses this many
JITTER = 1e-6  # as a share of the prior variance: some points may be equal up to rounding
CENTRES = 8  # best points whose nearest neighbours are kept


@torch.no_grad()
def means_of_all(kernel: Kernel, data: Data) -> Tensor:
    """The posterior mean at every point of ``data``, ``m``, given all its answers.

    Points are correlated through ``MOST_POINTS`` inducing points only; the variance that these
    leave is taken as independent. The mean is exact for up to that many points, and at answers
    without noise. Units are those of the data; the cost is ``O(m)``.
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
    """The rows of the points that a posterior uses, increasing: a LongTensor of at most ``n``.

    A third of them have the largest values, a third are nearest to the ``CENTRES`` best ones, and
    each other one is as far as possible from all chosen before. ``X`` (``m x d``) are distinct
    points in units of the lengthscales, ``y`` (``m``) their values, to be maximised.
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
