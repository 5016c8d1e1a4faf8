"""The knowledge gradient: what one more answer is expected to add to the largest posterior mean."""

from __future__ import annotations

import torch
from torch import Tensor

from botorch_delay.gp.kernels import covariance
from botorch_delay.optimizers.rule_model import RuleModel

# The trapezoidal rule over the answer, in deviations: what is integrated has kinks.
_NODES = torch.linspace(-6.0, 6.0, 25, dtype=torch.double)
_WEIGHTS = (-0.5 * _NODES.square()).softmax(dim=0).tolist()


@torch.no_grad()
def knowledge_gradient(model: RuleModel, X: Tensor) -> Tensor:
    """The expected rise of the largest mean over ``X`` by an answer at each of its points.

    An answer at x moves the mean at x' by ``s(x', x) Z``, with Z a standard normal variable,
    ``s(x', x) = k(x', x) / sqrt(k(x, x) + lambda^2)``, and k the posterior covariance with pending
    points counted. The result is ``E max (mu + s(., x) Z) - max mu`` (Frazier, Powell and Dayanik
    2009). ``X`` is ``n x d``, in the columns of the domain; the result, ``n``, is in units of the
    surrogate. Memory is O(n^2).
    """
    surrogate, design = model.surrogate, model.with_pending.anywhere
    kernel, inputs = surrogate.covar_module, surrogate.inputs(X)
    white = design.factor.solve(covariance(kernel, design.data.X, inputs))
    left = covariance(kernel, inputs, inputs) - white.mT @ white
    variance = left.diagonal().clamp_min(torch.finfo(left.dtype).tiny)
    moves = left / (variance + surrogate.noise_var).sqrt()
    mean = model.mean_at(X).unsqueeze(1)
    mean = mean - mean.max()
    found = torch.zeros_like(variance)
    for node, weight in zip(_NODES.tolist(), _WEIGHTS, strict=True):
        found += weight * (mean + node * moves).amax(dim=0)
    return found
