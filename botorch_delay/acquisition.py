"""Acquisition functions for BoTorch that count pending points.

They use the fantasy posterior: the mean given the answers so far, and the deviation that will be
left once the pending points are answered, too. The model is a :class:`DelayedGP`, or any other
exact BoTorch GP with one output, such as ``SingleTaskGP``.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from botorch.acquisition.acquisition import AcquisitionFunction
from botorch.acquisition.input_constructors import acqf_input_constructor
from botorch.acquisition.objective import PosteriorTransform
from botorch.models.gpytorch import GPyTorchModel
from botorch.models.model import Model, ModelList
from botorch.posteriors.gpytorch import GPyTorchPosterior
from botorch.utils.transforms import t_batch_mode_transform
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood
from gpytorch.models import ExactGP
from torch import Tensor

from botorch_delay import validation
from botorch_delay.exceptions import InputTypeError, NotSupportedError
from botorch_delay.gp.delayed_gp import DelayedGP


class PointSet(Protocol):
    """A set of points, such as an ``ActiveSet``."""

    def contains(self, X: Tensor) -> Tensor:
        """``n x d`` to a bool tensor ``n``."""


class _FantasyAcquisition(AcquisitionFunction):
    """Base of the acquisition functions that score single points by the fantasy posterior."""

    def __init__(
        self,
        model: Model,
        X_pending: Tensor | None,
        posterior_transform: PosteriorTransform | None = None,
    ) -> None:
        validation.instance(model, Model, "model", "a BoTorch model")
        if posterior_transform is None and model.num_outputs != 1:
            raise NotSupportedError(
                f"{type(self).__name__} needs a model of one output, got {model.num_outputs}; pass "
                "model.subset_output([0]), for instance."
            )
        super().__init__(model=model)
        self.posterior_transform = posterior_transform
        self.set_X_pending(X_pending)

    def set_X_pending(self, X_pending: Tensor | None = None) -> None:
        """Replace the pending points (``p x d``) that count in addition to the model's own."""
        validation.instance(X_pending, Tensor | None, "X_pending", "a tensor, p x d, or None")
        if X_pending is not None:
            like = X_pending
            if isinstance(self.model, ExactGP) and not hasattr(self.model, "input_transform"):
                like = self.model.train_inputs[0]
            validation.points(X_pending, "X_pending", like)
        super().set_X_pending(X_pending)
        self._fantasy = _fantasy_model(self.model, self.X_pending)


class MaxVariance(_FantasyAcquisition):
    """The fantasy posterior's standard deviation sigma, where pending points count as answered.

    Algorithm 1 maximises it. Use it in a BoTorch loop of your own; BPEDelayOptimizer itself uses
    the designs of :mod:`botorch_delay.design`.

    With pending points sigma comes from a copy of the model: call ``set_X_pending`` again after the
    model's hyperparameters have changed.

    Args:
        model: a BoTorch model with one output.
        active_set: the points that may be asked; None for all. Elsewhere the value is ``-inf``,
            which suits ``optimize_acqf_discrete``. For ``optimize_acqf`` leave it out, and pass
            ``(opt.active_set.margin, True)`` as a nonlinear inequality constraint.
        X_pending: ``p x d``, pending points in addition to the model's own.

    Raises:
        InputTypeError: if ``model`` is not a model, or ``active_set`` has no ``contains``.
        NotSupportedError: if the model has several outputs, or cannot be conditioned on pending
            points.

    Example:
        >>> X = torch.tensor([[0.1]], dtype=torch.double)
        >>> model = DelayedGP(X, torch.zeros_like(X), noise_var=1e-2)
        >>> sigma = MaxVariance(model, X_pending=torch.ones_like(X))
        >>> x = torch.tensor([[[0.5]], [[0.9]]], dtype=torch.double)  # b x 1 x d
        >>> sigma(x).argmax().item()
        0
    """

    def __init__(
        self, model: Model, active_set: PointSet | None = None, X_pending: Tensor | None = None
    ) -> None:
        super().__init__(model, X_pending)
        if active_set is not None and not hasattr(active_set, "contains"):
            raise InputTypeError(
                "active_set must have a method contains(X), as opt.active_set does, got "
                f"{type(active_set).__name__}."
            )
        self.active_set = active_set

    @t_batch_mode_transform(expected_q=1)  # type: ignore[arg-type]  # typed for the base class
    def forward(self, X: Tensor) -> Tensor:
        """Sigma, ``b x 1 x d`` to ``b``; with m fantasies, ``b x 1 x 1 x d`` to ``b x m``."""
        deviation = _deviation(self._fantasy.posterior(X)).squeeze(-1).squeeze(-1)
        if self.active_set is None:
            return deviation
        with torch.no_grad():
            inside = self.active_set.contains(X.reshape(-1, X.shape[-1])).reshape(X.shape[:-2])
        return deviation.masked_fill(~inside, -torch.inf)


@acqf_input_constructor(MaxVariance)
def _max_variance_inputs(
    model: Model, active_set: PointSet | None = None, X_pending: Tensor | None = None
) -> dict[str, Any]:
    """Keyword arguments of :class:`MaxVariance`, for BoTorch's and Ax's factories."""
    return {"model": model, "active_set": active_set, "X_pending": X_pending}


class FantasyUpperConfidenceBound(_FantasyAcquisition):
    """The upper confidence bound mu~ + sqrt(beta) sigma, where pending points count in sigma only.

    BoTorch's ``UpperConfidenceBound`` on the fantasy posterior (GP-BUCB, Desautels 2014). Unlike
    that class it takes ``X_pending``, so ``optimize_acqf`` can use it with ``sequential=True``. As
    with :class:`MaxVariance`, sigma then comes from a copy of the model.

    Args:
        model: a BoTorch model; several outputs must be made one by ``posterior_transform``.
        beta: the square of the factor on sigma, as in BoTorch; above 0.
        X_pending: ``p x d``, pending points in addition to the model's own.
        posterior_transform: applied to the posterior, for instance to minimise.

    Raises:
        NotSupportedError: if the model has several outputs, or cannot be conditioned on pending
            points.

    Example:
        >>> X = torch.tensor([[0.1], [0.9]], dtype=torch.double)
        >>> model = DelayedGP(X, torch.tensor([[0.0], [1.0]]).double(), noise_var=1e-2)
        >>> ucb = FantasyUpperConfidenceBound(model, beta=4.0)
        >>> x = X[1:].unsqueeze(0)  # b x 1 x d
        >>> before = ucb(x)
        >>> ucb.set_X_pending(X[1:])
        >>> bool(ucb(x) < before)
        True
    """

    def __init__(
        self,
        model: Model,
        beta: float,
        X_pending: Tensor | None = None,
        posterior_transform: PosteriorTransform | None = None,
    ) -> None:
        super().__init__(model, X_pending, posterior_transform)
        self.beta = validation.positive(beta, "beta")

    @t_batch_mode_transform(expected_q=1)  # type: ignore[arg-type]  # typed for the base class
    def forward(self, X: Tensor) -> Tensor:
        """The bound at each point; shapes as in :meth:`MaxVariance.forward`."""
        posterior = self._fantasy.posterior(X, posterior_transform=self.posterior_transform)
        bound = posterior.mean + self.beta**0.5 * _deviation(posterior)
        return bound.squeeze(-1).squeeze(-1)


@acqf_input_constructor(FantasyUpperConfidenceBound)
def _fantasy_ucb_inputs(
    model: Model,
    beta: float = 6.0,
    X_pending: Tensor | None = None,
    posterior_transform: PosteriorTransform | None = None,
) -> dict[str, Any]:
    """Keyword arguments of :class:`FantasyUpperConfidenceBound`, for the same factories."""
    options = {"X_pending": X_pending, "posterior_transform": posterior_transform}
    return {"model": model, "beta": beta, **options}


def _deviation(posterior: Any) -> Tensor:
    """Sigma at each point, without GPyTorch's floor, so that values may have any scale."""
    if isinstance(posterior, GPyTorchPosterior):
        # Not by changing the floor: it is a setting of the whole process, and other threads use it.
        covariance = posterior.distribution.lazy_covariance_matrix
        variance = covariance.diagonal(dim1=-1, dim2=-2).unsqueeze(-1)
    else:
        variance = posterior.variance
    # Kept above 0, where the root has no finite gradient.
    return variance.clamp_min(torch.finfo(variance.dtype).tiny).sqrt()


def _fantasy_model(model: Any, X_pending: Tensor | None) -> Any:
    """The model conditioned on its own mean at its pending points and at ``X_pending``."""
    if X_pending is not None and len(X_pending) == 0:
        X_pending = None
    if isinstance(model, ModelList) and len(model.models) == 1:
        model = model.models[0]
    if isinstance(model, DelayedGP):
        return (model if X_pending is None else model.with_pending(X_pending)).fantasy_model()
    if X_pending is None:
        return model
    exact = isinstance(model, GPyTorchModel) and isinstance(model, ExactGP)
    if not exact or model.num_outputs != 1:
        raise NotSupportedError(
            "X_pending needs a DelayedGP, or an exact GP of one output such as SingleTaskGP, got "
            f"{type(model).__name__}; leave X_pending out, or pass such a model."
        )
    validation.matches(X_pending, "X_pending", model.train_inputs[0])
    # The variance depends on no value, and conditioning on the mean leaves the mean unchanged.
    mean = model.posterior(X_pending).mean.detach()
    noise = {}
    if isinstance(model.likelihood, FixedNoiseGaussianLikelihood):
        noise["noise"] = model.likelihood.noise.mean().expand_as(mean)
    return model.condition_on_observations(X_pending, mean, **noise)
