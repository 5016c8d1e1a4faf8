"""The knowledge gradient: by how much one more answer is expected to improve a recommendation."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from botorch_delay import validation
from botorch_delay.confidence.bounds import DEFAULT_CONFIDENCE
from botorch_delay.gp.kernels import covariance, prior_variance
from botorch_delay.optimizers.rule_model import RuleModel
from botorch_delay.optimizers.rules import Rule, Score

# Points that may be recommended: of those asked, the ones with the best lower ends.
MOST_COMPARED = 64
# Candidates that are scored: those with the largest mean plus this many deviations.
MOST_CANDIDATES, FACTOR = 64, math.sqrt(2.0)
# Quadrature over the answer, by the trapezoidal rule: what is integrated has kinks.
_NODES = torch.linspace(-6.0, 6.0, 49, dtype=torch.double)
_WEIGHTS = (-0.5 * _NODES.square()).softmax(dim=0)


@dataclass(frozen=True)
class KnowledgeGradient(Rule):
    """The expected rise of the best lower end by one more answer (Frazier et al. 2009).

    The lower end at a point is ``mu - sqrt(beta) sigma``, by which ``recommend`` chooses under a
    learned kernel. An answer at x moves mu(x') by ``s(x', x) Z``, with Z a standard normal
    variable, ``s(x', x) = k(x', x) / sqrt(k(x, x) + lambda^2)`` and k the posterior covariance with
    pending points counted, and lowers sigma^2(x') by ``s(x', x)^2``. The best end is over x and the
    64 asked points with the best ends. So news of a new point counts as a second answer at a good
    one does: by what it is expected to do for the recommendation.

    Scored are the 64 candidates with the largest ``mu + sqrt(2) sigma``, and points near the best
    answers. With a learned kernel sigma^2(x) counts up to that of the start of a climb, as in
    :class:`UCB`.

    Args:
        beta: at least 0; with 0 it is the rise of the largest mean, as published.
    """

    beta: float = DEFAULT_CONFIDENCE.beta

    costly = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "beta", validation.nonnegative(self.beta, "beta"))

    def score(self, model: RuleModel) -> Tensor:
        with torch.no_grad():
            bound = model.mean + FACTOR * model.deviation
            rows = bound.topk(min(MOST_CANDIDATES, len(bound))).indices
            candidates = model.candidates[rows]
            gain = self.function(model, candidates)(candidates)
            # All others come after these, in the order of their bounds.
            return (bound - bound.max() - model.prior_deviation).index_copy(0, rows, gain)

    def function(self, model: RuleModel, starts: Tensor) -> Score:
        surrogate, kernel = model.surrogate, model.surrogate.covar_module
        answers, design = model.answers.anywhere, model.with_pending.anywhere
        factor = math.sqrt(self.beta)

        def condition(inputs: Tensor) -> tuple[Tensor, Tensor]:
            """Covariances with the asked points, whitened, and the variances that are left."""
            white = design.factor.solve(covariance(kernel, design.data.X, inputs))
            left = prior_variance(kernel, inputs) - white.square().sum(dim=0)
            return white, left.clamp_min(torch.finfo(left.dtype).tiny)

        with torch.no_grad():
            asked = design.data.X
            means, (_, variances) = answers.mean(asked), condition(asked)
            ends = means - factor * variances.sqrt()
            best, rows = ends.topk(min(MOST_COMPARED, len(ends)))
            places, means, variances = asked[rows], means[rows], variances[rows].unsqueeze(1)
            columns = condition(places)[0].mT
            cap = condition(surrogate.inputs(starts))[1] if surrogate.learned else torch.inf
            now = best.max() if len(best) else best.sum()
            nodes = _NODES.to(now)[:, None, None]
            weights = _WEIGHTS.to(now)

        def rise(X: Tensor) -> Tensor:
            inputs = surrogate.inputs(X)
            white, own = condition(inputs)
            own = own.clamp_max(cap).unsqueeze(0)
            shared = covariance(kernel, places, inputs) - columns @ white
            moves = torch.cat([shared, own]) / (own + surrogate.noise_var).sqrt()
            left = torch.cat([variances.expand_as(shared), own]) - moves.square()
            deviations = left.clamp_min(torch.finfo(left.dtype).tiny).sqrt()
            mean = torch.cat([means.unsqueeze(1).expand_as(shared), answers.mean(inputs)[None]])
            ends = mean - now - factor * deviations + nodes * moves
            return weights @ ends.amax(dim=1)

        return rise
