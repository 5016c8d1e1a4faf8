"""Telling noise from roughness: what a smooth model leaves unexplained, and repeats reproduce.

A learned kernel is smooth. Where the function has cliffs or fast waves, the fitted noise explains
what the kernel cannot, and the best answers look lucky. Answers at one point then differ less than
the fitted noise says. So f may have a part that is independent at every point:

y_ij = g(x_i) + r_i + e_ij,   Var(r_i) = (1 - s) lambda^2,   Var(e_ij) = s lambda^2,

with the fitted noise variance lambda^2 and a share s, which is 1 unless the answers tell otherwise.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from botorch_delay.gp.factor import factorize
from botorch_delay.gp.kernels import covariance
from botorch_delay.gp.posterior import Data
from botorch_delay.gp.subset import MOST_POINTS
from botorch_delay.gp.surrogate import Surrogate, exact_noise
from botorch_delay.history.answers import Answers

# Shares of the fitted noise variance that may be noise, the rest being roughness.
SHARES = (0.5, 0.25, 0.12, 0.06, 0.03, 0.01, 0.003, 0.001)
# Such a share must raise the logarithm of the likelihood by this much: a factor of 20, which Kass
# and Raftery (1995) call strong evidence.
EVIDENCE = 3.0
# A single repeat may agree by chance, or be the same result attached twice.
LEAST_REPEATS = 2


@torch.no_grad()
def with_roughness(surrogate: Surrogate, answers: Answers) -> Surrogate:
    """The surrogate whose fitted noise is split into noise and roughness as the answers tell.

    It is the same one if its noise was not fitted or is that of exact evaluations, with fewer than
    ``LEAST_REPEATS``, and with too many points for an exact posterior. Known noise stays as it is.
    """
    noisy = surrogate.learned and surrogate.scaled and not surrogate.is_exact
    if not noisy or not bool(answers.noise_var.isnan().any()):
        return surrogate
    points, group = torch.unique(answers.group, return_inverse=True)
    if len(group) - len(points) < LEAST_REPEATS or len(points) > MOST_POINTS:
        return surrogate
    most = int(group.bincount().max())
    noise, least = surrogate.noise_var, exact_noise(surrogate.like)
    split = [surrogate] + [
        replace(surrogate, noise_var=share * noise, roughness=(1.0 - share) * noise)
        for share in SHARES
        if share * noise / most > least
    ]
    K, of_means, of_repeats = None, [], []
    for model in split:
        y, single = model.singles(answers)
        mean = Data.averaged(answers.X, y, single, group)
        data = mean.to(surrogate.like, surrogate.inputs)
        K = covariance(surrogate.covar_module, data.X, data.X) if K is None else K
        factor, _ = factorize(K, data.noise_var + model.roughness)
        of_means.append(_log_likelihood(factor, data.y))
        of_repeats.append(_log_likelihood_of_repeats(y, single, mean, group))
    found = torch.stack(of_means).cpu() + torch.stack(of_repeats)
    gain = found - found[0]
    best = int(gain.argmax())
    return split[best] if float(gain[best]) > EVIDENCE else surrogate


def _log_likelihood(factor: Tensor, y: Tensor) -> Tensor:
    """The log density of ``y`` (``m``) under N(0, L L') for ``factor`` L, without its constant."""
    white = torch.linalg.solve_triangular(factor, y.unsqueeze(-1), upper=False)
    return -0.5 * white.square().sum() - factor.diagonal().log().sum()


def _log_likelihood_of_repeats(y: Tensor, noise: Tensor, mean: Data, group: Tensor) -> Tensor:
    """The log density of single answers, ``n``, given their means, without its constant.

    It is a product of N(y_ij; mean_i, noise_ij), divided by N(mean_i; mean_i, noise of mean_i).
    """
    away = (y - mean.y[group]).square() / noise
    return 0.5 * (mean.noise_var.log().sum() - (away + noise.log()).sum())
