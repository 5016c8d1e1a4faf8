"""Monte Carlo acquisition functions on tens of thousands of arms."""

from __future__ import annotations

import torch
from botorch.acquisition.acquisition import AcquisitionFunction
from botorch.acquisition.analytic import LogExpectedImprovement
from botorch.acquisition.logei import qLogExpectedImprovement, qLogNoisyExpectedImprovement
from torch import Tensor

from botorch_delay.gp.delayed_gp import DelayedGP

SHARE = 1 / 32


class Screened(AcquisitionFunction):
    """A costly acquisition function on the 1/32 of each block of points with the largest LogEI.

    Elsewhere it is minus infinity. LogEI is that of the fantasy model, over the best answer.

    Args:
        model: with the answers and the pending points.
        costly: what is maximised.
    """

    def __init__(self, model: DelayedGP, costly: AcquisitionFunction) -> None:
        super().__init__(model=model)
        self.costly = costly
        self.cheap = LogExpectedImprovement(model.fantasy_model(), best_f=model.train_targets.max())

    def forward(self, X: Tensor) -> Tensor:
        """``b x 1 x d`` to ``b``."""
        kept = self.cheap(X).topk(max(int(SHARE * len(X)), 1)).indices
        scores = X.new_full((len(X),), -torch.inf)
        scores[kept] = self.costly(X[kept])
        return scores


def screened_qlognei(model: DelayedGP, X_pending: Tensor | None = None) -> AcquisitionFunction:
    """QLogNEI after a screening."""
    costly = qLogNoisyExpectedImprovement(model, model.train_inputs[0], X_pending=X_pending)
    return Screened(model, costly)


def screened_qlogei(model: DelayedGP, X_pending: Tensor | None = None) -> AcquisitionFunction:
    """QLogEI after a screening."""
    best = model.train_targets.max()
    return Screened(model, qLogExpectedImprovement(model, best, X_pending=X_pending))
