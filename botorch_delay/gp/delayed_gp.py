"""An exact Gaussian process that knows which of its points are still unanswered."""

from __future__ import annotations

import copy
import threading
import warnings
from collections.abc import Callable
from typing import Any

import torch
from botorch import settings as botorch_settings
from botorch.exceptions.errors import BotorchError
from botorch.exceptions.warnings import InputDataWarning
from botorch.models import SingleTaskGP
from botorch.models.transforms.input import InputTransform
from botorch.models.transforms.outcome import OutcomeTransform
from botorch.posteriors.gpytorch import GPyTorchPosterior
from botorch.posteriors.transformed import TransformedPosterior
from gpytorch import settings as gpytorch_settings
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import Kernel
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood
from gpytorch.means import Mean, ZeroMean
from gpytorch.models import ExactGP
from linear_operator.operators import LinearOperator, MatmulLinearOperator
from torch import Tensor

from botorch_delay import validation
from botorch_delay.exceptions import InputError, NotSupportedError
from botorch_delay.gp.kernels import ExactKernel, check_kernel, covariance
from botorch_delay.gp.posterior import factorize, solve_lower


class DelayedGP(SingleTaskGP):
    r"""A ``SingleTaskGP`` with an observed and a fantasy posterior.

    The observed posterior (:math:`\tilde\mu, \tilde\sigma`) conditions on the answers; the
    fantasy posterior has the same mean and counts the pending points in its variance, as if
    each had been answered by its own posterior mean (*hallucination*, as in GP-BUCB).

    Two things differ from BoTorch's model. There is no prior mean and no transform unless
    asked for, and noise below GPyTorch's floor of 1e-6 is kept, so that confidence bounds
    refer to the formula in raw units. And posteriors come from one Cholesky factor at every
    size, never from an iterative solver; updates extend that factor.

    Args:
        train_X: ``n x d``, answered points; ``n = 0`` gives the prior.
        train_Y: ``n x 1``, their values.
        train_Yvar: ``n x 1``, noise variance of each value.
        noise_var: lambda^2 of every value without a variance of its own, pending ones
            included. If neither is given the noise is learned (``fit_gpytorch_mll``).
        X_pending: ``p x d``, points asked and not answered.
        covar_module: the kernel; BoTorch's default if None.
        mean_module: the prior mean; zero if None.
        outcome_transform: a BoTorch transform of the values; none by default.
        input_transform: a BoTorch transform of the points; none by default.

    Raises:
        InputError: if a tensor is malformed, or ``noise_var`` is not above 0.

    Example:
        >>> X = torch.tensor([[0.2], [0.8]], dtype=torch.double)
        >>> Y = torch.tensor([[1.0], [0.5]], dtype=torch.double)
        >>> model = DelayedGP(X, Y, noise_var=1e-2, X_pending=torch.full_like(X[:1], 0.5))
        >>> x = torch.tensor([[0.5]], dtype=torch.double)
        >>> bool(model.fantasy_posterior(x).variance < model.posterior(x).variance)
        True
    """

    # In the cache: "observed": (L, L^-1 (y - m)); "pending": (W, Schur complement of the
    # pending points); "fantasy": the fantasy model.
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
        train_Y = _as_column(train_Y, "train_Y", train_X)
        if noise_var is not None:
            noise_var = validation.noise_variance(noise_var, "noise_var", train_X)
        if train_Yvar is not None:
            train_Yvar = _as_column(train_Yvar, "train_Yvar", train_X)
            if (train_Yvar <= 0).any():
                raise InputError("train_Yvar must be above 0 everywhere.")
        elif noise_var is not None:
            train_Yvar = torch.full_like(train_Y, noise_var)
        if len(train_X) == 0:
            _refuse_learned_transforms(train_X, outcome_transform, input_transform)
        if covar_module is not None and input_transform is None:
            check_kernel(covar_module, train_X if len(train_X) else _probe(train_X))
        validation.warn_single_precision(train_X, stacklevel=2)
        with (
            warnings.catch_warnings(),
            botorch_settings.validate_input_scaling(False),
            gpytorch_settings.min_fixed_noise(float_value=0.0, double_value=0.0, half_value=0.0),
        ):
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
        self._noise_var = noise_var
        if X_pending is None:
            self._X_pending = train_X[:0]
        else:
            self._X_pending = self._check_points(X_pending, "X_pending")

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
        """GPyTorch's cache. Resetting it, which GPyTorch does on every change, resets ours."""
        return self.__dict__.get("_strategy")

    @prediction_strategy.setter
    def prediction_strategy(self, strategy: Any) -> None:
        self.__dict__["_strategy"] = strategy
        if strategy is None:
            self.__dict__["_stored"] = ([], {})

    @property
    def _cache(self) -> dict[str, Any]:
        """Factors by name, dropped as soon as a hyperparameter has another value."""
        values, cache = self.__dict__["_stored"]
        current = [parameter.detach() for parameter in self.parameters()]
        if len(values) != len(current) or not all(map(torch.equal, values, current)):
            cache = {}
            self.__dict__["_stored"] = ([value.clone() for value in current], cache)
        return cache

    def __getstate__(self) -> dict[str, Any]:
        """What is copied: everything but what can be computed again."""
        return {**self.__dict__, "_stored": ([], {}), "_strategy": None}

    def __call__(self, *args: Tensor, **kwargs: Any) -> MultivariateNormal:
        """The prior at the training points in training mode, else the observed posterior."""
        if self.training or gpytorch_settings.prior_mode.on():
            return super().__call__(*args, **kwargs)
        (X,) = args
        mean = self.mean_module(X)
        prior = ExactKernel(self.covar_module, X.dtype)(X)
        if self.train_inputs[0].shape[-2] == 0:
            return MultivariateNormal(mean, prior)
        factor, white = self._observed()
        V = self._whitened_cross(factor, X)
        mean = mean + (V * white.unsqueeze(-1)).sum(dim=-2)
        reduction: LinearOperator = MatmulLinearOperator(V.mT, V)
        return MultivariateNormal(mean.expand(V.shape[:-2] + V.shape[-1:]), prior - reduction)

    def fantasy_model(self) -> DelayedGP:
        """The model whose ``posterior`` is the fantasy one, with nothing pending.

        It is conditioned on ``y = mu~(X_pending)``, which leaves the mean as it is; the mean
        is therefore computed from the answers alone, and equals ``posterior(X).mean`` to the
        last digits. The same object comes until this model changes: copy it before changing it.
        """
        if len(self._X_pending) == 0:
            return self
        self.eval()
        if "fantasy" not in self._cache:
            factor, white = self._observed()
            cross, schur = self._pending_block()
            schur_factor, _ = factorize(schur, schur.new_zeros(len(schur)))
            with torch.no_grad():
                mean = self.mean_module(self._transformed(self._X_pending)) + cross.mT @ white
            targets = torch.cat([self.train_targets, mean])
            white = torch.cat([white, white.new_zeros(len(mean))])
            noise = self._pending_noise().expand(len(mean))
            fantasy = self._with_data(
                torch.cat([self._raw_X, self._X_pending]),
                targets,
                torch.cat([self._noise_diagonal(), noise]),
                self._X_pending[:0],
            )
            fantasy._cache["observed"] = (_JointFactor(factor, cross, schur_factor), white)
            self._cache["fantasy"] = fantasy
        return self._cache["fantasy"]

    def fantasy_posterior(
        self, X: Tensor, **kwargs: Any
    ) -> GPyTorchPosterior | TransformedPosterior:
        """Mean mu~, variance sigma^2 with the pending points counted in.

        Args:
            X: ``batch_shape x q x d``.
            kwargs: as in BoTorch's ``posterior``.
        """
        return self.fantasy_model().posterior(X, **kwargs)

    def with_pending(self, X: Tensor) -> DelayedGP:
        """A new model in which the rows of ``X`` (``p x d`` or ``d``) are pending as well.

        Raises:
            InputError: if ``X`` is malformed.
        """
        X = self._check_points(_as_rows(X), "X")
        self.eval()
        model = self._with_data(
            self._raw_X,
            self.train_targets,
            self._noise_diagonal(),
            torch.cat([self._X_pending, X]),
        )
        if "observed" in self._cache:
            model._cache["observed"] = self._cache["observed"]
        if "pending" in self._cache:
            model._cache["pending"] = self._with_more_pending(self._transformed(X))
        return model

    def with_answer(self, x: Tensor, y: float | Tensor) -> DelayedGP:
        """A new model with one more answer; if ``x`` is pending it is pending no more.

        The factor grows by one row: ``O(n^2)`` for n answers, and ``O(n p + p^2)`` for p pending
        points whose covariances are there already, as after a fantasy posterior.
        Transforms keep the statistics that they have learned.

        Args:
            x: ``d`` or ``1 x d``.
            y: a float or a tensor with one value, in raw units.

        Raises:
            InputError: if ``x`` or ``y`` is malformed.
        """
        x = self._check_points(_as_rows(x), "x")
        if len(x) != 1:
            raise InputError(f"x must be one point, got {len(x)}; call with_answer for each.")
        single = y.reshape(()) if isinstance(y, Tensor) and y.numel() == 1 else y
        value = validation.real(single, "y")
        if self.training:
            self.eval()
        noise = self._pending_noise()
        target = self.train_targets.new_tensor([[value]])
        if hasattr(self, "outcome_transform"):
            target, _ = self.outcome_transform(target, X=self._transformed(x))
        match = (self._X_pending == x).all(dim=-1).nonzero()
        # As many as were pending: then x was not one of them.
        position = int(match[0]) if len(match) else len(self._X_pending)
        model = self._with_data(
            torch.cat([self._raw_X, x]),
            torch.cat([self.train_targets, target.reshape(1)]),
            torch.cat([self._noise_diagonal(), noise]),
            _without(self._X_pending, position),
        )
        if "observed" in self._cache:
            self._hand_on(model, self._transformed(x), noise, position)
        return model

    def _apply_noise(
        self,
        X: Tensor,
        mvn: MultivariateNormal,
        observation_noise: bool | Tensor = False,
    ) -> MultivariateNormal:
        """Observation noise of an answer to come is that of a pending point."""
        if observation_noise is not True or not isinstance(
            self.likelihood, FixedNoiseGaussianLikelihood
        ):
            return super()._apply_noise(X, mvn, observation_noise)
        noise = self._pending_noise().expand(mvn.batch_shape + mvn.event_shape)
        return self.likelihood(mvn, X, noise=noise)

    def get_fantasy_model(self, inputs: Tensor, targets: Tensor, **kwargs: Any) -> DelayedGP:
        """GPyTorch's fantasy update, as BoTorch's look-ahead acquisition functions use it.

        Raises:
            NotSupportedError: without any answered point.
        """
        if self.train_inputs[0].shape[-2] == 0:
            raise NotSupportedError(
                "Conditioning needs at least one answered point; build a DelayedGP with it, or "
                "use with_answer."
            )
        if self.prediction_strategy is None:
            ExactGP.__call__(self, self.train_inputs[0][..., :1, :])
        return super().get_fantasy_model(inputs, targets, **kwargs)

    def _apply(  # type: ignore[override]  # GPyTorch's signature
        self, fn: Callable[[Tensor], Tensor]
    ) -> DelayedGP:
        """Move to another dtype or device, as ``model.to`` does."""
        self.prediction_strategy = None
        if "_X_pending" in self.__dict__:  # not yet there while the base class is set up
            self._X_pending = fn(self._X_pending)
        return super()._apply(fn)

    def _hand_on(self, model: DelayedGP, x: Tensor, noise: Tensor, position: int) -> None:
        """Give ``model``, which has one more answer at ``x``, what is known of its factors.

        Args:
            model: the new model.
            x: ``1 x d``, transformed.
            noise: its noise variance, shape 1.
            position: where x is among the pending points, or how many there are.
        """
        known, handed = self._cache, model._cache
        factor, white = known["observed"]
        cross, schur = known.get("pending", (None, None))
        with torch.no_grad():
            if cross is not None and position < len(schur):  # what its row would be is known
                row, pivot = cross[:, position], schur[position, position]
                beside = _without(schur[position], position)
            else:
                column = covariance(self.covar_module, model.train_inputs[0], x).squeeze(-1)
                row = factor.solve(column[:-1].unsqueeze(-1)).squeeze(-1)
                pivot = (column[-1] + noise - row @ row).squeeze()
                if cross is not None:
                    pending = self._transformed(self._X_pending)
                    beside = covariance(self.covar_module, x, pending).squeeze(0) - row @ cross
            if pivot.item() <= 0.0:  # lost to rounding: let the new model factorize, with a warning
                return
            pivot = pivot.sqrt()
            residual = model.train_targets[-1:] - self.mean_module(x)
            tail = (residual - row @ white) / pivot
            handed["observed"] = (factor.extended(row, pivot), torch.cat([white, tail]))
            if cross is not None and len(model._X_pending):
                new = beside / pivot
                left = _without(_without(schur, position).mT, position)
                handed["pending"] = (
                    torch.cat([_without(cross.mT, position).mT, new.unsqueeze(0)]),
                    left - new.unsqueeze(-1) * new,
                )

    def _observed(self) -> tuple[_Factor | _JointFactor, Tensor]:
        """``L`` and ``L^-1 (y - m)`` of the answers."""
        if "observed" not in self._cache:
            X = self.train_inputs[0]
            with torch.set_grad_enabled(
                torch.is_grad_enabled() and botorch_settings.propagate_grads.on()
            ):
                K = covariance(self.covar_module, X, X)
                factor, _ = factorize(K, self._noise_diagonal())
                residual = (self.train_targets - self.mean_module(X)).unsqueeze(-1)
                white = residual
                if X.shape[-2]:
                    white = torch.linalg.solve_triangular(factor, residual, upper=False)
            self._cache["observed"] = (_Factor(factor), white.squeeze(-1))
        return self._cache["observed"]

    def _pending_block(self) -> tuple[Tensor, Tensor]:
        """``W = L^-1 K(X, X_pending)`` and the Schur complement ``K + D - W'W`` of the pending."""
        if "pending" not in self._cache:
            X = self._transformed(self._X_pending)
            self._cache["pending"] = self._covariances_of_pending(X)
        return self._cache["pending"]

    def _covariances_of_pending(self, X: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            cross = self._whitened_cross(self._observed()[0], X)
            noise = self._pending_noise().expand(len(X))
            schur = covariance(self.covar_module, X, X) - cross.mT @ cross
            return cross, schur + torch.diag(noise)

    def _with_more_pending(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """The pending block with the points ``X`` (transformed) in it as well."""
        cross, schur = self._pending_block()
        more, corner = self._covariances_of_pending(X)
        with torch.no_grad():
            before = self._transformed(self._X_pending)
            beside = covariance(self.covar_module, before, X) - cross.mT @ more
        rows = [torch.cat([schur, beside], dim=1), torch.cat([beside.mT, corner], dim=1)]
        return torch.cat([cross, more], dim=1), torch.cat(rows)

    def _whitened_cross(self, factor: _Factor | _JointFactor, X: Tensor) -> Tensor:
        """``L^-1 K(train, X)``: ``batch_shape x n x q``."""
        train = self.train_inputs[0]
        if train.shape[-2] == 0:
            return X.new_zeros(*X.shape[:-2], 0, X.shape[-2])
        if train.dim() == 2:  # one solve for the whole batch
            flat = covariance(self.covar_module, train, X.reshape(-1, X.shape[-1]))
            V = factor.solve(flat)
            return V.reshape(len(train), *X.shape[:-1]).movedim(0, -2)
        batch = torch.broadcast_shapes(train.shape[:-2], X.shape[:-2])
        cross = covariance(
            self.covar_module,
            train.expand(*batch, *train.shape[-2:]),
            X.expand(*batch, *X.shape[-2:]),
        )
        return torch.linalg.solve_triangular(factor.matrix, cross, upper=False)

    @property
    def _raw_X(self) -> Tensor:
        """The answered points before the input transform."""
        if hasattr(self, "input_transform") and not self.training:
            return self._original_train_inputs
        return self.train_inputs[0]

    def _transformed(self, X: Tensor) -> Tensor:
        return self.transform_inputs(X)

    def _noise_diagonal(self) -> Tensor:
        """Noise variance of each answer, in the units of the targets."""
        return self.likelihood.noise.expand(self.train_targets.shape)

    def _pending_noise(self) -> Tensor:
        """Noise variance of an answer to come, shape 1, in the units of the targets."""
        if self._noise_var is not None:
            noise = self.train_targets.new_tensor([[self._noise_var]])
            if hasattr(self, "outcome_transform"):
                origin = self._transformed(self._raw_X[:1])
                _, noise = self.outcome_transform(torch.zeros_like(noise), noise, X=origin)
            return noise.reshape(1)
        noise = self.likelihood.noise.detach()
        if noise.numel() == 0:
            raise InputError(
                "Pending points need a noise variance: pass noise_var, since there is no answer "
                "whose variance they could share."
            )
        return noise.mean().reshape(1)

    def _check_points(self, X: Tensor, name: str) -> Tensor:
        X = validation.matrix(X, name, empty=True)
        validation.matches(X, name, self._raw_X)
        return X

    def _with_data(self, X: Tensor, targets: Tensor, noise: Tensor, X_pending: Tensor) -> DelayedGP:
        """This model, in evaluation mode, on other data; it shares no parameter with this one.

        Args:
            X: ``n x d``, raw.
            targets: ``n``, transformed.
            noise: ``n``, in the units of the targets.
            X_pending: ``p x d``, raw.
        """
        # The constructor would check and convert all over again what this model has checked.
        shared = [self.train_inputs, self._train_targets, self._X_pending]
        fixed = isinstance(self.likelihood, FixedNoiseGaussianLikelihood)
        if fixed:
            shared.append(self.likelihood)
        if type(self.mean_module) is ZeroMean:  # nothing to learn in it
            shared.append(self.mean_module)
        model = copy.deepcopy(self, {id(part): part for part in shared})
        if fixed:
            # Set afterwards, since the constructor would raise it to GPyTorch's floor.
            model.likelihood = FixedNoiseGaussianLikelihood(torch.ones_like(noise)).eval()
            model.likelihood.noise_covar.noise = noise.detach()
        model.train_inputs = (X,)
        model.train_targets = targets.detach()
        model._X_pending = X_pending
        if hasattr(model, "input_transform"):
            model._has_transformed_inputs = False
            model._set_transformed_inputs()
        return model


class _Factor:
    """A lower Cholesky factor which grows by a row without being copied.

    Models that follow from each other share a buffer with room to spare. A row is written once,
    by the first model that needs it; a second one that starts from the same answers gets a
    buffer of its own. So no model ever changes.

    Args:
        matrix: ``n x n``.
    """

    def __init__(self, matrix: Tensor) -> None:
        self.matrix = matrix
        self._buffer = matrix
        self._used = [len(matrix)]  # rows of the buffer, the same list for all who share it
        self._lock = threading.Lock()

    def extended(self, row: Tensor, pivot: Tensor) -> _Factor:
        """The factor with one row more: ``n`` entries left of the diagonal, and the diagonal."""
        n = len(self.matrix)
        grown = copy.copy(self)
        with self._lock:
            if self._used[0] != n or len(self._buffer) == n:
                room = n + max(n // 8, 64)
                grown._buffer = self.matrix.new_zeros(room, room)
                grown._buffer[:n, :n] = self.matrix
                grown._used = [n]
                grown._lock = threading.Lock()
            grown._buffer[n, :n] = row
            grown._buffer[n, n] = pivot
            grown._used[0] = n + 1
        grown.matrix = grown._buffer[: n + 1, : n + 1]
        return grown

    def solve(self, right: Tensor) -> Tensor:
        """``L^-1 B``: ``n x m`` to ``n x m``."""
        return solve_lower(self.matrix, right)


class _JointFactor:
    """The factor ``[[L, 0], [W', S]]`` of answers and pending points, without a copy of L.

    Args:
        observed: L, ``n x n``.
        cross: W, ``n x p``.
        schur_factor: S, ``p x p``.
    """

    def __init__(
        self, observed: _Factor | _JointFactor, cross: Tensor, schur_factor: Tensor
    ) -> None:
        # Flat, so that a fantasy of a fantasy of ... costs no more.
        self._observed = (
            _Factor(observed.matrix) if isinstance(observed, _JointFactor) else observed
        )
        self._cross = cross
        self._schur_factor = schur_factor

    @property
    def matrix(self) -> Tensor:
        n, p = self._cross.shape
        block = self._cross.new_zeros(n + p, n + p)
        block[:n, :n] = self._observed.matrix
        block[n:, :n] = self._cross.mT
        block[n:, n:] = self._schur_factor
        return block

    def extended(self, row: Tensor, pivot: Tensor) -> _Factor:
        """As for ``_Factor``; the result is one."""
        return _Factor(self.matrix).extended(row, pivot)

    def solve(self, right: Tensor) -> Tensor:
        """As for ``_Factor``."""
        n = len(self._cross)
        top = self._observed.solve(right[:n])
        below = right[n:] - self._cross.mT @ top
        bottom = torch.linalg.solve_triangular(self._schur_factor, below, upper=False)
        return torch.cat([top, bottom])


def _without(rows: Tensor, position: int) -> Tensor:
    """All rows but that one; all of them if there is none of that number."""
    return torch.cat([rows[:position], rows[position + 1 :]])


def _as_rows(value: Any) -> Any:
    """One point as a set of one; anything else is left to the check that follows."""
    return value.unsqueeze(0) if isinstance(value, Tensor) and value.dim() == 1 else value


def _as_column(value: Tensor, name: str, like: Tensor) -> Tensor:
    column = validation.column(value, name, like)
    if value.dim() != 2:
        raise InputError(
            f"{name} must have shape {len(like)} x 1, got {tuple(value.shape)}; "
            "add the output dimension with .unsqueeze(-1)."
        )
    return column.unsqueeze(-1)


def _refuse_learned_transforms(
    train_X: Tensor,
    outcome_transform: OutcomeTransform | None,
    input_transform: InputTransform | None,
) -> None:
    """Without an answered point there is nothing that a transform could learn from."""
    if outcome_transform is not None:
        raise InputError(
            "outcome_transform needs at least one answered point; leave it out until then."
        )
    if input_transform is None:
        return
    try:
        copy.deepcopy(input_transform)(train_X)
    except (RuntimeError, LookupError, ValueError, BotorchError) as error:
        raise InputError(
            "input_transform learns from the points, and there is none yet; give it bounds, for "
            "instance Normalize(d, bounds=bounds)."
        ) from error


def _probe(like: Tensor) -> Tensor:
    return like.new_zeros(1, like.shape[-1])
