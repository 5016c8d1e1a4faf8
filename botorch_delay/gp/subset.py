"""Which of very many points a learned posterior is made of, so that asks cost no more and more.

Exact posteriors of n points cost ``O(n^2)`` per ask. What an ask needs of them is the mean where
it is large, and everywhere where nothing has been tried: the best points and those around them say
the first, points far from each other the second. Local subsets after Gramacy and Apley (2015),
their spread part by farthest-point traversal (Gonzalez 1985).
"""

from __future__ import annotations

import torch
from torch import Tensor

# A posterior is of all points while there are no more of them with answers.
MOST_POINTS = 512
# Around how many of the best points the nearest ones are kept.
CENTRES = 8


def representative(X: Tensor, y: Tensor, n: int = MOST_POINTS) -> Tensor:
    """The rows to make a posterior of, increasing: a LongTensor of ``n`` at most.

    A third have the largest values, a third are the nearest to the best of these, and the rest are
    each as far from all others as there are any. ``X`` (``m x d``) are distinct points in units of
    their lengthscales, ``y`` (``m``) their values, to be maximised.
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
