"""An exact Gaussian process that knows which points are pending."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, cast

import torch
from botorch.exceptions.warnings import InputDataWarning
from botorch.models import SingleTaskGP
from botorch.models.transforms.input import InputTransform
from botorch.models.transforms.outcome import OutcomeTransform
from botorch.posteriors.gpytorch import GPyTorchPosterior
from botorch.posteriors.transformed import TransformedPosterior
from botorch.sampling.base import MCSampler
from botorch.settings import propagate_grads, validate_input_scaling
from gpytorch import settings as gpytorch_settings
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import Kernel
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood
from gpytorch.means import Mean, ZeroMean
from gpytorch.models import ExactGP
from linear_operator.operators import KernelLinearOperator, LinearOperator, MatmulLinearOperator
from torch import Tensor

from botorch_delay import validation
from botorch_delay.domains.devices import sent
from botorch_delay.exceptions import InputError, NotSupportedError
from botorch_delay.gp.factor import Factor, factorize
from botorch_delay.gp.kernels import check_prior, covariance


class DelayedGP(SingleTaskGP):
    r"""A ``SingleTaskGP`` with an observed and a fantasy posterior.

    The observed posterior (:math:`\tilde\mu, \tilde\sigma`) conditions on the answers. The
    fantasy posterior has the same mean, but its variance also conditions on the pending points,
    as if each had been answered by its own posterior mean (*hallucination*, as in GP-BUCB).

    Two things differ from BoTorch's model. First, there is no prior mean and no transform unless
    asked for, and known noise below GPyTorch's floor of 1e-6 is kept: confidence bounds need this.
    Second, posteriors of any size come from one Cholesky factor, never from an iterative solver;
    updates extend that factor.

    Gradients with respect to X are first-order only, since PyTorch's ``cdist`` has no others; for a
    Hessian take finite differences. Training points are detached. Hyperparameters have gradients
    under ``botorch.settings.propagate_grads``; a fantasy model has its own copies of them.

    A model from a batched ``fantasize`` has posteriors, but takes no pending points or answers.

    Args:
        train_X: ``n x d``, answered points; ``n = 0`` gives the prior.
        train_Y: ``n x 1``, their values.
        train_Yvar: ``n x 1``, noise variances of the values, in their squared units, before any
            transform; pending points default to their mean.
        noise_var: lambda^2, the noise variance of pending points and, without ``train_Yvar``, of
            all values, in the same units. If neither is given the noise is learned
            (``fit_gpytorch_mll``), with BoTorch's likelihood unless ``model.likelihood`` is set.
        X_pending: ``p x d``, points asked and not answered.
        covar_module: the kernel; BoTorch's default if None.
        mean_module: the prior mean; zero if None.
        outcome_transform: a BoTorch transform of the values; none by default.
        input_transform: a BoTorch transform of the points, which must also apply in training; none
            by default.

    Example:
        >>> X = torch.tensor([[0.2], [0.8]], dtype=torch.double)
        >>> Y = torch.tensor([[1.0], [0.5]], dtype=torch.double)
        >>> model = DelayedGP(X, Y, noise_var=1e-2, X_pending=torch.full_like(X[:1], 0.5))
        >>> x = torch.tensor([[0.5]], dtype=torch.double)
        >>> bool(model.fantasy_posterior(x).variance < model.posterior(x).variance)
        True
    """

    _X_pending: Tensor
    _noise_var: float | None
    _original_train_inputs: Tensor
    outcome_transform: OutcomeTransform

    def __init__(
        self,
        train_X: Tensor,
        train_Y: Tensor,
        train_Yvar: Tensor | None = None,
        *,
        noise_var: float | None = None,
        X_pending: Tensor | None = None,
        covar_module: Kernel | None = None,
        mean_module: Mean | None = None,
        outcome_transform: OutcomeTransform | None = None,
        input_transform: InputTransform | None = None,
    ) -> None:
        train_X = validation.matrix(train_X, "train_X", empty=True)
        validation.instance(mean_module, Mean | None, "mean_module", "a GPyTorch mean or None")
        kind = "a BoTorch transform or None"
        validation.instance(outcome_transform, OutcomeTransform | None, "outcome_transform", kind)
        validation.instance(input_transform, InputTransform | None, "input_transform", kind)
        train_Y = validation.outputs(train_Y, "train_Y", train_X)
        if noise_var is not None:
            noise_var = validation.noise_variance(noise_var, "noise_var", train_X)
        if train_Yvar is not None:
            train_Yvar = validation.outputs(train_Yvar, "train_Yvar", train_X)
            if (train_Yvar <= 0).any():
                raise InputError("train_Yvar must be above 0 everywhere.")
        elif noise_var is not None:
            train_Yvar = torch.full_like(train_Y, noise_var)
        parts = [] if input_transform is None else [*input_transform.modules()]
        if not all(getattr(part, "transform_on_train", True) for part in parts):
            raise NotSupportedError("input_transform must have transform_on_train=True throughout.")
        learns = any(getattr(part, "learn_coefficients", False) for part in parts)
        if len(train_X) == 0 and (outcome_transform is not None or learns):
            raise InputError(
                "There is no answered point yet that a transform could learn from. Leave out "
                "outcome_transform until there is one; leave out input_transform too, or give it "
                "bounds, for instance Normalize(d, bounds=bounds)."
            )
        if len(train_X) or input_transform is None:
            at = train_X if len(train_X) else train_X.new_zeros(1, train_X.shape[1])
            check_prior(covar_module, mean_module, at, input_transform)
        validation.warn_single_precision(train_X)
        with warnings.catch_warnings(), validate_input_scaling(False), _small_noise_is_kept():
            warnings.simplefilter("ignore", InputDataWarning)
            super().__init__(
                train_X,
                train_Y,
                train_Yvar,
                covar_module=covar_module,
                mean_module=ZeroMean() if mean_module is None else mean_module,
                outcome_transform=outcome_transform,
                input_transform=input_transform,
            )
        if outcome_transform is not None:
            validation.transformed(self.train_targets)
        self._noise_var = noise_var
        pending = train_X[:0] if X_pending is None else X_pending
        self._X_pending = validation.points(pending, "X_pending", train_X).clone()

    @property
    def X_pending(self) -> Tensor:
        """The points asked and not answered, ``p x d``."""
        return self._X_pending

    @property
    def answered(self) -> tuple[Tensor, Tensor]:
        """Answered points ``n x d`` and their values ``n x 1``, both in raw units."""
        values = self.train_targets.unsqueeze(-1)
        if hasattr(self, "outcome_transform"):
            self.outcome_transform.eval()
            values, _ = self.outcome_transform.untransform(values)
        return self._raw_X, values

    @property
    def prediction_strategy(self) -> Any:
        """GPyTorch's cache. GPyTorch sets it to None on every change; this empties ours as well."""
        return self.__dict__.get("_strategy")

    @prediction_strategy.setter
    def prediction_strategy(self, strategy: Any) -> None:
        self.__dict__["_strategy"] = strategy
        if strategy is None:
            self.__dict__["_stored"] = (None, {})

    @property
    def _cache(self) -> dict[str, Any]:
        """Our cache, emptied when hyperparameters or the tracking of their gradients change.

        "observed" holds L and L^-1 (y - m) of the answers, "fantasy" the fantasy model, "pending"
        the result of :meth:`_given_answers` for the first few of the pending points, perhaps none.
        """
        values, cache = self.__dict__["_stored"]
        # Compared as one tensor, so that a device is waited for only once.
        parts = [parameter.detach().flatten() for parameter in self.parameters()]
        current = torch.cat([self.train_targets.flatten()[:0], *parts])
        tracked = torch.is_grad_enabled() and propagate_grads.on()
        if values is None or cache["tracked"] is not tracked or not torch.equal(values, current):
            empty = self.train_targets.new_empty
            nothing = empty(0, len(self.train_targets)), empty(0, 0)
            cache = {"tracked": tracked, "pending": nothing}
            self.__dict__["_stored"] = (current, cache)
        return cache

    def __getstate__(self) -> dict[str, Any]:
        """The state for copies and pickles: everything but the caches."""
        return {**self.__dict__, "_stored": (None, {}), "_strategy": None}

    def __call__(self, *args: Tensor, **kwargs: Any) -> MultivariateNormal:
        """The prior at the training points in training mode, else the observed posterior."""
        if self.training or gpytorch_settings.prior_mode.on():
            return super().__call__(*args, **kwargs)
        (X,) = args
        validation.matches(X, "X", self.train_inputs[0])
        mean = self.mean_module(X)
        prior = KernelLinearOperator(X, X, partial(covariance, self.covar_module))
        if self.train_inputs[0].shape[-2] == 0:
            return MultivariateNormal(mean, prior)
        factor, white = self._observed()
        V = self._whitened_cross(factor, X)
        mean = mean + (V * white.unsqueeze(-1)).sum(dim=-2)
        reduction: LinearOperator = MatmulLinearOperator(V.mT, V)
        return MultivariateNormal(mean.expand(V.shape[:-2] + V.shape[-1:]), prior - reduction)

    @torch.no_grad()
    def fantasy_model(self) -> DelayedGP:
        """A model without pending points whose ``posterior`` is this model's fantasy posterior.

        It is conditioned on ``y = mu~(X_pending)``, which does not change the mean. The same object
        is returned until this model changes: copy it before changing it.

        Raises:
            NotSupportedError: if points are pending and this model is from a batched ``fantasize``.
        """
        if len(self._X_pending) == 0:
            return self
        self._check_no_batch()
        self.eval()
        cache = self._cache
        if "fantasy" not in cache:
            factor, white = self._observed()
            P = self.transform_inputs(self._X_pending)
            rows, schur = self._given_answers(self._X_pending, factor, cache)
            corner, _ = factorize(schur, self._pending_noise())
            mean = self.mean_module(P) + rows @ white
            fantasy = self._with_more(self._X_pending, mean, self._X_pending[:0])
            # Pending points are answered by the mean: their whitened residuals are 0.
            white = torch.cat([white, white.new_zeros(len(mean))])
            fantasy._cache["observed"] = (factor.extended(rows, corner), white)
            cache.update(pending=(rows, schur), fantasy=fantasy)
        return cast("DelayedGP", cache["fantasy"])

    def fantasy_posterior(
        self, X: Tensor, **kwargs: Any
    ) -> GPyTorchPosterior | TransformedPosterior:
        """Mean mu~ and variance sigma^2, which counts pending points; X is ``batch x q x d``."""
        return self.fantasy_model().posterior(X, **kwargs)

    def with_pending(self, X: Tensor) -> DelayedGP:
        """A new model in which the points ``X`` (``p x d`` or ``d``) are pending as well.

        Raises:
            NotSupportedError: if this model is from a batched ``fantasize``.
        """
        self._check_no_batch()
        X = validation.points(_as_rows(X), "X", self._raw_X)
        self.eval()
        together = torch.cat([self._X_pending, X])
        model = self._with_more(X[:0], self.train_targets[:0], together)
        model._cache.update({name: v for name, v in self._cache.items() if name != "fantasy"})
        return model

    def with_answer(self, x: Tensor, y: float | Tensor) -> DelayedGP:
        """A new model with one more answer, and ``x`` no longer pending.

        The factor grows by one row, which costs ``O(n^2)`` for n answers, or ``O(n p)`` if x is one
        of p pending points that a fantasy posterior has counted. Transforms keep the statistics
        that they have learned. ``x`` is ``d`` or ``1 x d``, and ``y`` one value in raw units with
        the noise of pending points.

        Raises:
            NotSupportedError: if this model is from a batched ``fantasize``.
        """
        self._check_no_batch()
        x = validation.points(_as_rows(x), "x", self._raw_X)
        if len(x) != 1:
            raise InputError(f"x must be one point, got {len(x)}; call with_answer once for each.")
        value = validation.real(y, "y")
        self.eval()
        target = sent([[value]], self.train_targets)
        if hasattr(self, "outcome_transform"):
            target, _ = self.outcome_transform(target, X=self.transform_inputs(x))
            validation.transformed(target)
        matches = (self._X_pending == x).all(dim=-1).nonzero()
        place = int(matches[0]) if len(matches) else len(self._X_pending)
        pending = torch.cat([self._X_pending[:place], self._X_pending[place + 1 :]])
        model = self._with_more(x, target.reshape(1), pending)
        if "observed" in self._cache:
            self._extend(model, x, place)
        return model

    def _apply_noise(
        self, X: Tensor, mvn: MultivariateNormal, observation_noise: bool | Tensor = False
    ) -> MultivariateNormal:
        """As BoTorch's, but if noise is known, future answers have the noise of pending points."""
        if observation_noise is not True or not self._noise_is_known:
            return super()._apply_noise(X, mvn, observation_noise)
        noise = self._pending_noise().expand(mvn.batch_shape + mvn.event_shape)
        return self.likelihood(mvn, X, noise=noise)

    def condition_on_observations(
        self, X: Tensor, Y: Tensor, noise: Tensor | None = None, **kwargs: Any
    ) -> DelayedGP:
        """As in BoTorch: a model with more answers, ``batch x n x 1``, at X, ``batch x n x d``.

        ``noise`` has the shape of Y and the units of the targets. If it is None and noise is known,
        answers have that of pending points. Transforms keep the statistics that they have learned.
        Pending points stay pending: use :meth:`with_answer` for their answers.

        Raises:
            InputError: if shapes do not fit, or a number is not finite.
            NotSupportedError: if this model has no answered point.
        """
        self.eval()
        validation.observations(X, Y, self._raw_X)
        if noise is None and self._noise_is_known and self.train_targets.numel():
            noise = self._pending_noise().expand(Y.shape)
        return cast("DelayedGP", super().condition_on_observations(X, Y, noise=noise, **kwargs))

    def fantasize(
        self,
        X: Tensor,
        sampler: MCSampler,
        observation_noise: Tensor | None = None,
        **kwargs: Any,
    ) -> DelayedGP:
        """As in BoTorch; known noise is that of pending points if ``observation_noise`` is None."""
        self.eval()  # first: in training mode the transforms used below would learn
        if observation_noise is None and self._noise_is_known:
            observation_noise = self._pending_noise().reshape(1, 1)
        return super().fantasize(X, sampler, observation_noise, **kwargs)

    def get_fantasy_model(self, inputs: Tensor, targets: Tensor, **kwargs: Any) -> DelayedGP:
        """GPyTorch's fantasy update, as BoTorch's look-ahead acquisition functions use it.

        Raises:
            NotSupportedError: if this model has no answered point.
        """
        if self.train_inputs[0].shape[-2] == 0:
            raise NotSupportedError(
                "Conditioning needs at least one answered point; build a DelayedGP with it, or "
                "use with_answer."
            )
        with _small_noise_is_kept():
            if self.prediction_strategy is None:
                ExactGP.__call__(self, self.train_inputs[0][..., :1, :])
            return super().get_fantasy_model(inputs, targets, **kwargs)

    def _apply(  # type: ignore[override]  # GPyTorch's signature
        self, fn: Callable[[Tensor], Tensor]
    ) -> DelayedGP:
        """Move to another dtype or device, as ``model.to`` does."""
        self.prediction_strategy = None
        for name in ("_X_pending", "_original_train_inputs"):
            if name in self.__dict__:  # not yet set during construction
                setattr(self, name, fn(getattr(self, name)))
        return super()._apply(fn)

    @torch.no_grad()
    def _extend(self, model: DelayedGP, x: Tensor, place: int) -> None:
        """Fill the cache of ``model``, which is this model with one more answer, at x (``1 x d``).

        ``place`` is the position of x among the pending points, or their number if it is not there.
        """
        factor, white = self._observed()
        cache = self._cache
        rows, schur = cache["pending"]
        if place >= len(schur):
            place = len(schur)
            P = torch.cat([self._X_pending[:place], x])
            rows, schur = self._given_answers(P, factor, cache)
        row, square = rows[place], schur[place, place] + self._pending_noise()
        if square.item() <= 0.0:  # lost to rounding: let the new model factorize, with a warning
            return
        pivot = square.sqrt()
        residual = model.train_targets[-1:] - self.mean_module(self.transform_inputs(x))
        white = torch.cat([white, (residual - row @ white) / pivot])
        others = [i for i in range(len(schur)) if i != place]
        beside = schur[others, place] / pivot
        rows = torch.cat([rows[others], beside.unsqueeze(1)], dim=1)
        model._cache.update(
            observed=(factor.extended(row.unsqueeze(0), pivot.unsqueeze(0)), white),
            pending=(rows, schur[others][:, others] - beside.outer(beside)),
        )

    def _given_answers(
        self, P: Tensor, factor: Factor, cache: Mapping[str, Any]
    ) -> tuple[Tensor, Tensor]:
        """``K(P, train) L'^-1``, ``p x n``, and the covariance of P given the answers, ``p x p``.

        P, ``p x d``, are raw points, beginning with the pending points whose result is cached.
        """
        rows, schur = cache["pending"]
        known, points = len(schur), self.transform_inputs(P)
        if known < len(P):
            new = self._whitened_cross(factor, points[known:]).mT
            rows = torch.cat([rows, new])
            below = covariance(self.covar_module, points[known:], points) - new @ rows.mT
            schur = torch.cat([torch.cat([schur, below[:, :known].mT], dim=1), below])
        return rows, schur

    def _observed(self) -> tuple[Factor, Tensor]:
        """``L`` and ``L^-1 (y - m)`` of the answers."""
        cache = self._cache
        if "observed" not in cache:
            X = self.train_inputs[0]
            with torch.set_grad_enabled(cache["tracked"]):
                K = covariance(self.covar_module, X, X)
                noise = self.likelihood.noise.expand(self.train_targets.shape)
                factor, _ = factorize(K, noise)
                residual = (self.train_targets - self.mean_module(X)).unsqueeze(-1)
                white = torch.linalg.solve_triangular(factor, residual, upper=False)
            cache["observed"] = (Factor.of(factor), white.squeeze(-1))
        return cast("tuple[Factor, Tensor]", cache["observed"])

    def _whitened_cross(self, factor: Factor, X: Tensor) -> Tensor:
        """``L^-1 K(train, X)``: ``batch_shape x n x q``."""
        train = self.train_inputs[0]
        if train.dim() > 2:  # a batch of fantasies, each with its own answers
            try:
                torch.broadcast_shapes(train.shape[:-2], X.shape[:-2])
            except RuntimeError:
                raise InputError(
                    f"X must have batch dimensions that broadcast with {tuple(train.shape[:-2])}, "
                    f"those of the fantasies, got {tuple(X.shape[:-2])}; X.unsqueeze(-3) evaluates "
                    "all fantasies at each point."
                ) from None
            cross = covariance(self.covar_module, train, X)
            return torch.linalg.solve_triangular(factor.matrix, cross, upper=False)
        # One solve for the whole batch.
        flat = factor.solve(covariance(self.covar_module, train, X.reshape(-1, X.shape[-1])))
        return flat.reshape(len(train), *X.shape[:-1]).movedim(0, -2)

    @property
    def _raw_X(self) -> Tensor:
        """The answered points before the input transform."""
        if hasattr(self, "input_transform") and not self.training:
            return self._original_train_inputs
        return self.train_inputs[0]

    @property
    def _noise_is_known(self) -> bool:
        return isinstance(self.likelihood, FixedNoiseGaussianLikelihood)

    def _pending_noise(self) -> Tensor:
        """Noise variance of pending and future answers, shape 1, in the units of the targets."""
        if self._noise_var is not None:
            noise = sent([[self._noise_var]], self.train_targets)
            if hasattr(self, "outcome_transform"):
                origin = self.transform_inputs(self._raw_X[:1])
                _, noise = self.outcome_transform(torch.zeros_like(noise), noise, X=origin)
            return noise.reshape(1)
        noise = self.likelihood.noise.detach()
        if noise.numel() == 0:
            raise InputError(
                "Pending points need a noise variance: pass noise_var, since there is no answer "
                "whose variance they could share."
            )
        return noise.mean().reshape(1)

    def _check_no_batch(self) -> None:
        if self.train_targets.dim() > 1:
            raise NotSupportedError(
                "Pending points and with_answer need one set of answers, got a batch of fantasies, "
                f"{tuple(self.train_targets.shape[:-1])}; include pending points first, with "
                "model.fantasy_model().fantasize(X, sampler)."
            )

    def _with_more(self, X: Tensor, targets: Tensor, X_pending: Tensor) -> DelayedGP:
        """A copy with more answers, in evaluation mode, which shares no parameter with this model.

        Points are raw, targets transformed; ``X_pending`` replaces the pending points.
        """
        noise = self.likelihood.noise.expand(self.train_targets.shape)
        if len(X):
            noise = torch.cat([noise, self._pending_noise().expand(len(X))])
        # Copied, since the constructor would check and convert everything again.
        shared = [self.train_inputs, self._train_targets, self._X_pending]
        if self._noise_is_known:
            shared.append(self.likelihood)
        if type(self.mean_module) is ZeroMean:  # nothing to learn in it
            shared.append(self.mean_module)
        model = copy.deepcopy(self, {id(part): part for part in shared})
        if self._noise_is_known:
            with _small_noise_is_kept():
                model.likelihood = FixedNoiseGaussianLikelihood(noise.detach()).eval()
        model.train_inputs = (torch.cat([self._raw_X, X]),)
        model.train_targets = torch.cat([self.train_targets, targets]).detach()
        model._X_pending = X_pending
        if hasattr(model, "input_transform"):
            model._has_transformed_inputs = False
            model._set_transformed_inputs()
        return model


def _small_noise_is_kept() -> Any:
    """A context in which GPyTorch does not raise known noise to its floor."""
    return gpytorch_settings.min_fixed_noise(float_value=0.0, double_value=0.0, half_value=0.0)


def _as_rows(value: Any) -> Any:
    """A single point ``d`` as ``1 x d``; anything else is left to the check that follows."""
    return value.unsqueeze(0) if isinstance(value, Tensor) and value.dim() == 1 else value
