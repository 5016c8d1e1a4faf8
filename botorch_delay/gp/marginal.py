"""Posterior deviations that include the uncertainty of learned hyperparameters.

A few noisy answers may fit a model without noise as well as one with much. Deviations under the
best fit alone can be a thousand times too small: intervals would claim more than the answers show.
"""

from __future__ import annotations

import copy

import numpy as np
import torch
from torch import Tensor

from botorch_delay.domains.devices import sent
from botorch_delay.domains.domain import Domain
from botorch_delay.gp.fitting import priors
from botorch_delay.gp.kernels import covariance
from botorch_delay.gp.posterior import Moments
from botorch_delay.gp.surrogate import Hyperparameters, Surrogate
from botorch_delay.history.answers import Answers

# The grid of the average: noise variances of standardised values (where noise is learned), and
# factors by which all fitted lengthscales are multiplied.
NOISES = np.geomspace(1e-7, 3.0, 12)
FACTORS = np.geomspace(0.35, 1.0 / 0.35, 5)
# Known noise variances count up to this: eigenvalues of more would hide those of the kernel, while
# an answer with this much noise already tells nothing. In units where the kernel has variance 1.
MOST_NOISE = 1e6
CHUNK = 4096  # points at a time, to bound memory


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

    The mean square is over the GP and over a grid of noises and lengthscales, weighted by the
    posterior density of their logarithms; without ``warm_start`` the prior of the log noise is
    flat. ``posterior`` has the moments at X in the result's units; no result is below its
    deviation. Known noise stays as it is. The cost is O(m^3) for m answers, times 5, or times 60 if
    the noise of some answers is known and that of others is not.
    """
    kernel = copy.deepcopy(surrogate.covar_module).cpu().double()
    scales = kernel.lengthscale.flatten().numpy()
    points, places = (
        surrogate.inputs(sent(rows, surrogate.like)).cpu().double() for rows in (answers.X, X)
    )
    y, known = surrogate.in_own_units(answers.y.double(), answers.noise_var)
    middle = (posterior.mean.cpu().double() - surrogate.offset) / surrogate.scale
    unknown = known.isnan()
    same, learns_noise = bool(unknown.all()), bool(unknown.any()) and not exact
    own = known.nan_to_num(0.0 if learns_noise else surrogate.noise_var).clamp_max(MOST_NOISE)
    noises = torch.from_numpy(NOISES) if learns_noise else torch.zeros(1, dtype=torch.double)
    logs, squares, (scale_prior, noise_prior) = [], [], priors(domain, warm_start)
    for factor in FACTORS:
        Z = points / factor
        K = covariance(kernel, Z, Z) + own.diag()
        away = (np.log(factor * scales) - scale_prior.loc) / scale_prior.scale
        # If all answers share one unknown noise, one eigendecomposition serves all its levels.
        for levels in [noises] if same else noises.split(1):
            eigenvalues, basis = torch.linalg.eigh(K if same else K + (levels * unknown).diag())
            shift = same * levels.unsqueeze(1)
            precision = 1.0 / (eigenvalues.clamp_min(1e-12) + shift)  # levels x m
            values, ones = basis.mT @ y, basis.sum(dim=0)
            unit = (precision * ones.square()).sum(dim=1, keepdim=True)
            mean = (precision * values * ones).sum(dim=1, keepdim=True) / unit  # GLS prior mean
            rest = values - mean * ones
            loss = 0.5 * (precision * rest.square() - precision.log()).sum(dim=1)
            loss += 0.5 * float(away @ away)
            if learns_noise and warm_start is not None:
                loss += 0.5 * ((levels.log() - noise_prior.loc[0]) / noise_prior.scale).square()
            logs.append(-loss)
            found = []
            for some, at in zip(places.split(CHUNK), middle.split(CHUNK), strict=True):
                cross = basis.mT @ covariance(kernel, Z, some / factor)
                moved = mean + (precision * rest) @ cross - at
                variance = (1.0 - precision @ cross.square()).clamp_min(0.0)
                variance += (1.0 - (precision * ones) @ cross).square() / unit
                found.append(moved.square() + variance)
            squares.append(torch.cat(found, dim=1))
    share = torch.cat(logs).softmax(dim=0)
    deviation = surrogate.scale * (share @ torch.cat(squares)).sqrt()
    return torch.maximum(sent(deviation, posterior.deviation), posterior.deviation)
