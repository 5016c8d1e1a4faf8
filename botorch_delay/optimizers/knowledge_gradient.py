"""The knowledge gradient: what one more answer is expected to add to a recommendation."""

from __future__ import annotations

import torch
from torch import Tensor

from botorch_delay.optimizers.rule_model import RuleModel

# Nodes and weights of the trapezoidal rule for an expectation over Z: the integrand has kinks.
_NODES = torch.linspace(-6.0, 6.0, 25, dtype=torch.double)
_WEIGHTS = (-0.5 * _NODES.square()).softmax(dim=0).tolist()


@torch.no_grad()
def knowledge_gradient(model: RuleModel, X: Tensor, factor: float) -> Tensor:
    """How much an answer at each point of ``X`` is expected to raise the best lower end over ``X``.

    The lower end is the mean less ``factor`` deviations; with 0 this is the knowledge gradient of
    Frazier, Powell and Dayanik (2009). An answer at x moves the mean at x' by ``s(x', x) Z`` and
    lowers the variance there by ``s(x', x)^2``: Z is standard normal, k the posterior covariance
    with pending points counted, and ``s(x', x) = k(x', x) / sqrt(k(x, x) + lambda^2)``.
    ``X`` is ``n x d``, in the columns of the domain; the result, ``n``, is in units of the
    surrogate. Memory is O(n^2).
    """
    surrogate = model.surrogate
    joint = model.with_pending.anywhere.joint(surrogate.inputs(X))
    variance = joint.diagonal().clamp_min(torch.finfo(joint.dtype).tiny)
    moves = joint / (variance + surrogate.noise_var).sqrt()  # s, a column for each answer
    left = (variance.unsqueeze(1) - moves.square()).clamp_min(0.0).sqrt()
    mean = model.mean_at(X)
    now = (mean - factor * variance.sqrt()).max()
    ends = mean.unsqueeze(1) - now - factor * left
    found = torch.zeros_like(variance)
    for node, weight in zip(_NODES.tolist(), _WEIGHTS, strict=True):
        found += weight * (ends + node * moves).amax(dim=0)
    return found
