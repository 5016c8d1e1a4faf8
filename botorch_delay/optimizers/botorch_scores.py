"""BoTorch's acquisition functions on the answers of an optimizer."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from botorch.exceptions.warnings import InputDataWarning, NumericsWarning
from botorch.utils.sampling import manual_seed
from linear_operator.utils.warnings import NumericalWarning
from torch import Tensor

from botorch_delay.exceptions import BotorchDelayError, InputError
from botorch_delay.gp.data import Data
from botorch_delay.gp.delayed_gp import DelayedGP
from botorch_delay.gp.kernels import CHUNK_ELEMENTS
from botorch_delay.gp.surrogate import Surrogate
from botorch_delay.optimizers.rules import BotorchRule

Score = Callable[[Tensor], Tensor]


def build(
    rule: BotorchRule,
    surrogate: Surrogate,
    answers: Data,
    pending: Tensor | None,
    seed: int,
) -> Score:
    """The acquisition function of a rule, at any points: ``n x d`` to ``n``, differentiable.

    Args:
        rule: which function.
        surrogate: kernel and noise.
        answers: the answered points, at least one.
        pending: points in the surrogate's inputs, ``p x e``; None if there are none.
        seed: of BoTorch's samplers.
    """
    X, y = answers.X, answers.y.unsqueeze(-1)
    with _quietly(seed), torch.no_grad():
        model = DelayedGP(
            X,
            y,
            answers.noise_var.unsqueeze(-1),
            noise_var=surrogate.noise_var,  # of answers that are still out
            X_pending=pending,
            covar_module=copy.deepcopy(surrogate.covar_module),
        )
        used = model.fantasy_model() if rule.analytic and pending is not None else model
        function = rule.build(used, X, y, pending)

    def at(points: Tensor) -> Tensor:
        with _quietly(seed):
            return function(surrogate.inputs(points).unsqueeze(-2))

    return at


def score(function: Score, points: Tensor, joint: int) -> Tensor:
    """An acquisition function at many points (``n x d``), in bounded memory; ``-inf`` for nan.

    Args:
        function: what :func:`build` gave.
        points: where.
        joint: how many answered and pending points it considers.
    """
    rows = max(CHUNK_ELEMENTS // (64 * (joint + 64)), 64)
    with torch.no_grad():
        scores = torch.cat([function(part) for part in points.split(rows)])
    return scores.to(points).nan_to_num(nan=-torch.inf)


def try_out(rule: BotorchRule, surrogate: Surrogate, pool: Tensor, hallucinate: bool) -> None:
    """Build the acquisition function once, so that a mistake is found before the first ask.

    Args:
        rule: which function.
        surrogate: kernel and noise.
        pool: some points, ``n x d``.
        hallucinate: whether it will be given pending points.

    Raises:
        InputError: if it cannot be built, or does not give one number per point.
    """
    X = surrogate.inputs(pool[:2])
    y = X.new_tensor([[0.0], [1.0]])[: len(X)]
    kernel = copy.deepcopy(surrogate.covar_module)
    try:
        with _quietly(0, advice=True), torch.no_grad():
            model = DelayedGP(X, y, noise_var=surrogate.noise_var, covar_module=kernel)
            scores = rule.build(model, X, y, X[:1] if hallucinate else None)(X.unsqueeze(-2))
    except BotorchDelayError:
        raise
    except Exception as error:
        raise InputError(f"{rule!r} cannot be built and evaluated: {error}") from error
    if scores.shape != (len(X),):
        raise InputError(
            f"{rule!r} must give one number per point, got {tuple(scores.shape)} for "
            f"{tuple(X.unsqueeze(-2).shape)}."
        )


@contextmanager
def _quietly(seed: int, *, advice: bool = False) -> Iterator[None]:
    """Seeded, and without warnings about what is usual here.

    A candidate that is pending already makes the joint covariance singular, and BoTorch's
    checks of scaling do not apply to a model in the user's own units.
    """
    with manual_seed(seed), warnings.catch_warnings():
        warnings.simplefilter("ignore", NumericalWarning)
        warnings.simplefilter("ignore", InputDataWarning)
        if not advice:  # BoTorch's on the choice of a function: once is enough
            warnings.simplefilter("ignore", NumericsWarning)
        yield
