"""Posterior deviations that count how uncertain learned hyperparameters are.

A few noisy answers are explained by no noise at all as well as by much of it, and the best
explanation alone, whose deviations can be a thousand times too small, would promise what the
answers do not show.
"""

from __future__ import annotations

import copy

import numpy as np
import torch
from torch import Tensor

from botorch_delay.domains.devices import sent
from botorch_delay.domains.domain import Domain
from botorch_delay.gp.kernels import covariance
from botorch_delay.gp.posterior import Moments
from botorch_delay.gp.surrogate import MANY_ANSWERS, Hyperparameters, Surrogate, priors
from botorch_delay.history.answers import Answers

# The average is over these noise variances of standardised values, where noise is learned, and over
# lengthscales that are this many times as long as the fitted ones.
NOISES = np.geomspace(1e-7, 3.0, 12)
FACTORS = np.geomspace(0.35, 1.0 / 0.35, 5)


@torch.no_grad()
def marginal_deviation(
    surrogate: Surrogate,
    domain: Domain,
    answers: Answers,
    X: Tensor,
    posterior: Moments,
    *,
    warm_start: Hyperparameters | None = None,
    exact: bool = False,
) -> Tensor:
    """Root mean square distance of f from the posterior mean, at ``X`` (``n x d``): ``n``.

    The mean is over the GP and over noise and lengthscales, weighted by the posterior density of
    their logarithms, where without ``warm_start`` no noise is more likely beforehand than another.
    ``posterior`` has the moments at X, and the result their units; it is nowhere below their
    deviation, which is returned as it is with more than 300 answers.
    """
    fitted = posterior.deviation
    if len(answers) > MANY_ANSWERS:
        return fitted
    kernel = copy.deepcopy(surrogate.covar_module).cpu().double()
    scales = kernel.lengthscale.flatten().numpy()
    points, places = (
        surrogate.inputs(sent(rows, surrogate.like)).cpu().double() for rows in (answers.X, X)
    )
    told = answers.y.double()
    y = (surrogate.warping(told) - surrogate.offset) / surrogate.scale
    middle = (posterior.mean.cpu().double() - surrogate.offset) / surrogate.scale
    known = answers.noise_var * surrogate.warping.slope(told).square() / surrogate.scale**2
    learns_noise = bool(known.isnan().any()) and not exact
    noise = torch.from_numpy(NOISES) if learns_noise else torch.zeros(1, dtype=torch.double)
    own = torch.zeros_like(y) if learns_noise else known.nan_to_num(surrogate.noise_var)
    weights, squares, (prior, likely) = [], [], priors(domain, warm_start)
    for factor in FACTORS:
        Z = points / factor
        eigenvalues, basis = torch.linalg.eigh(covariance(kernel, Z, Z) + own.diag())
        precision = 1.0 / (eigenvalues.clamp_min(1e-12) + noise.unsqueeze(1))  # noises x n
        values, ones = basis.mT @ y, basis.sum(dim=0)
        unit = (precision * ones.square()).sum(dim=1, keepdim=True)
        mean = (precision * values * ones).sum(dim=1, keepdim=True) / unit
        rest = values - mean * ones
        loss = 0.5 * (precision * rest.square() - precision.log()).sum(dim=1)
        away = (np.log(factor * scales) - prior.loc) / prior.scale
        loss += 0.5 * float(away @ away)
        if learns_noise and warm_start is not None:
            loss += 0.5 * torch.from_numpy((np.log(NOISES) - likely.loc) / likely.scale).square()
        cross = basis.mT @ covariance(kernel, Z, places / factor)
        moved = mean + (precision * rest) @ cross - middle
        variance = (1.0 - precision @ cross.square()).clamp_min(0.0)
        # The constant mean is estimated as well.
        variance += (1.0 - (precision * ones) @ cross).square() / unit
        weights.append(-loss)
        squares.append(moved.square() + variance)
    share = torch.cat(weights).softmax(dim=0)
    found = surrogate.scale * (share @ torch.cat(squares)).sqrt()
    return torch.maximum(sent(found, fitted), fitted)
