"""A confidence bound with its slope in closed form, for climbs on a box.

Automatic differentiation of something so small costs several times the computation itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from gpytorch.kernels import MaternKernel, RBFKernel
from torch import Tensor

from botorch_delay.gp.kernels import covariance, covariance_with_pull
from botorch_delay.gp.posterior import Posterior
from botorch_delay.gp.surrogate import Surrogate

# Of the prior variance: a variance that is not above it has no slope.
FLOOR = 1e-12


@dataclass(frozen=True)
class BoundClimb:
    """``mu + factor * min(sigma, cap)`` under a learned kernel, which has variance 1.

    Kernels are Matern with nu = 5/2, or RBF.

    Attributes:
        surrogate: whose units and kernel count.
        answers: gives mu, at least one answer.
        design: gives sigma.
        factor: on sigma.
        cap: the most that sigma counts for, ``n``, one for each row that is asked about.
    """

    surrogate: Surrogate
    answers: Posterior
    design: Posterior
    factor: float
    cap: Tensor

    @staticmethod
    def fits(surrogate: Surrogate, answers: Posterior) -> bool:
        """Whether this surrogate's bound has the closed form."""
        kernel = surrogate.covar_module
        known = type(kernel) is RBFKernel or (type(kernel) is MaternKernel and kernel.nu == 2.5)
        plain = known and kernel.active_dims is None
        return plain and not kernel.batch_shape and len(answers) > 0

    @classmethod
    def above(
        cls,
        surrogate: Surrogate,
        answers: Posterior,
        design: Posterior,
        factor: float,
        starts: Tensor,
    ) -> BoundClimb:
        """The bound in which sigma counts for no more than at the starts, ``n x d``."""
        free = starts.new_full((len(starts),), torch.inf)
        found = cls(surrogate, answers, design, factor, free)
        cross = covariance(surrogate.covar_module, design.data.X, surrogate.inputs(starts))
        return cls(surrogate, answers, design, factor, found._deviation(cross)[0])

    def __call__(self, X: Tensor) -> Tensor:
        """Its values at ``n x d``."""
        return self.with_slope(X)[0]

    def with_slope(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Values, ``n``, and slopes, ``n x d``; 0 in columns of categories."""
        kernel, inputs = self.surrogate.covar_module, self.surrogate.inputs(X)
        seen, pulled = covariance_with_pull(kernel, self.answers.data.X, inputs)  # m x n
        shared = self.design is self.answers
        asked, pushed = seen, pulled
        if not shared:
            asked, pushed = covariance_with_pull(kernel, self.design.data.X, inputs)
        deviation, white = self._deviation(asked)
        mean = self.answers.weights @ seen
        # Half of the slope where it begins to be capped, as torch.minimum has it.
        share = 0.5 * ((deviation < self.cap).to(X) + (deviation <= self.cap).to(X))
        share = share * (deviation.square() > FLOOR)
        pull = self.answers.weights.unsqueeze(-1) * pulled
        push = self.design.unwhiten(white).mul_(pushed).mul_(self.factor * share / deviation)
        if shared:
            slope = self._gather(pull.sub_(push), self.answers, inputs)
        else:
            slope = self._gather(pull, self.answers, inputs)
            slope = slope - self._gather(push, self.design, inputs)
        values = mean + self.factor * torch.minimum(deviation, self.cap)
        return values, self._in_columns(slope, X)

    def _deviation(self, cross: Tensor) -> tuple[Tensor, Tensor]:
        """Sigma where covariances with the design are ``m x n``, and these whitened."""
        white = self.design.whiten(cross)
        variance = 1.0 - white.square().sum(dim=0)
        return variance.clamp_min(FLOOR).sqrt(), white

    def _gather(self, pulls: Tensor, posterior: Posterior, inputs: Tensor) -> Tensor:
        """``sum_j pull_j (z_j - x)``, for pulls ``m x n``, by squared lengthscales: ``n x e``."""
        away = pulls.T @ posterior.data.X - pulls.sum(dim=0).unsqueeze(-1) * inputs
        return away / self.surrogate.covar_module.lengthscale.square()

    def _in_columns(self, slope: Tensor, X: Tensor) -> Tensor:
        """A slope in the surrogate's inputs, ``n x e``, as one in the columns of the box."""
        encoding = self.surrogate.encoding
        named = {dim for dim, _ in encoding.categories}
        plain = [dim for dim in range(X.shape[1]) if dim not in named]
        slope = slope / self.surrogate.width
        found = torch.zeros_like(X)
        found[:, plain] = slope[:, : len(plain)]
        for dim in encoding.log_dims:
            found[:, dim] /= X[:, dim]
        return found
