"""Index methods as two choices: how pending points enter the posterior, and the index.

With mu~ and sigma~ from the answers, and sigma from everything asked:

=============  =============================  ==========================  ======================
               Ignore                         Hallucinate                 Censor
=============  =============================  ==========================  ======================
posterior      mu~, sigma~                    mu~, sigma                  missing values counted
                                                                          as the worst; sigma
UCB            GP-UCB on what has arrived     GP-BUCB                     GP-UCB-SDF
TS             asynchronous TS                GP-BTS                      GP-TS-SDF
=============  =============================  ==========================  ======================
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from botorch.acquisition.acquisition import AcquisitionFunction, OneShotAcquisitionFunction
from botorch.acquisition.analytic import AnalyticAcquisitionFunction
from botorch.models.model import Model
from botorch.utils.datasets import SupervisedDataset
from torch import Tensor

from botorch_delay import validation
from botorch_delay.exceptions import InputError, InputTypeError


class Rule:
    """What is maximised to choose the next point."""


@dataclass(frozen=True)
class UCB(Rule):
    """The upper confidence bound ``mu + sqrt(beta) sigma`` (Srinivas 2010).

    Args:
        beta: BoTorch's convention, the square of the factor on sigma; above 0.

    Raises:
        InputError: if ``beta`` is not above 0.
    """

    beta: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "beta", validation.positive(self.beta, "beta"))

    @cached_property
    def factor(self) -> float:
        """sqrt(beta)."""
        return math.sqrt(self.beta)


@dataclass(frozen=True)
class ThompsonSampling(Rule):
    """A sample path of the posterior, maximised: a fresh one for every ask.

    On up to 5,000 points paths are exact. Above, the prior part is a random Fourier feature
    expansion and the update by answers is exact (decoupled sampling, Wilson et al. 2020);
    this needs an RBF or a Matern kernel, possibly scaled.

    Args:
        beta: the posterior covariance is multiplied by it; 1 is plain Thompson sampling,
            larger values are the widening of Chowdhury & Gopalan (2017). Above 0.
        n_features: random features where sampling is approximate, even.

    Raises:
        InputError: if ``beta`` is not above 0, or ``n_features`` not even and above 0.
    """

    beta: float = 1.0
    n_features: int = 1024

    def __post_init__(self) -> None:
        object.__setattr__(self, "beta", validation.positive(self.beta, "beta"))
        object.__setattr__(self, "n_features", validation.whole(self.n_features, "n_features", 2))
        if self.n_features % 2:
            raise InputError(f"n_features must be even, got {self.n_features}.")


class BotorchRule(Rule):
    """Any acquisition function of BoTorch.

    A class is built with BoTorch's own input constructor, so that ``best_f``, ``X_baseline``
    and the like come from the answers. A function is called as ``factory(model)`` or, if it
    has such a parameter, ``factory(model, X_pending=X)`` and returns the acquisition function.
    Models are :class:`DelayedGP`. The acquisition sees values to be maximised (with the sign
    changed where the user minimises); where the kernel is learned it also sees normalised
    inputs and standardised values, and options must be in those units. One-shot functions such
    as ``qKnowledgeGradient``, which optimise fantasy points together with the candidate, cannot
    be compared point by point and are refused.

    Args:
        factory: a class with a registered input constructor, or a function.
        options: passed on by name, for instance ``beta=2.0``.

    Raises:
        InputTypeError: if ``factory`` is not callable, or its parameters cannot be told.
        InputError: if BoTorch has no input constructor for the class, or it is one-shot.

    Example:
        >>> from botorch.acquisition.logei import qLogNoisyExpectedImprovement
        >>> BotorchRule(qLogNoisyExpectedImprovement).takes_pending
        True
    """

    def __init__(self, factory: Callable[..., AcquisitionFunction], **options: Any) -> None:
        if not callable(factory):
            raise InputTypeError(
                f"factory must make an acquisition function, got {type(factory).__name__}."
            )
        self.factory = factory
        self.options = options
        self._constructor: Callable[..., dict[str, Any]] | None = None
        if isinstance(factory, type) and issubclass(factory, AcquisitionFunction):
            # Not above: it imports every acquisition function of BoTorch, and scipy.stats.
            from botorch.acquisition.input_constructors import (
                ACQF_INPUT_CONSTRUCTOR_REGISTRY,
                get_acqf_input_constructor,
            )

            if factory not in ACQF_INPUT_CONSTRUCTOR_REGISTRY:
                raise InputError(
                    f"BoTorch has no input constructor for {factory.__name__}; pass a function of "
                    "model and X_pending that returns the acquisition function."
                )
            if issubclass(factory, OneShotAcquisitionFunction):
                raise InputError(
                    f"{factory.__name__} is a one-shot acquisition function, which optimises "
                    "fantasy points together with the candidate; it cannot rank single points."
                )
            self._constructor = get_acqf_input_constructor(factory)
        self.analytic = isinstance(factory, type) and issubclass(
            factory, AnalyticAcquisitionFunction
        )
        try:
            parameters = inspect.signature(factory).parameters
        except (TypeError, ValueError) as error:
            raise InputTypeError(f"{self.name} is no acquisition function's factory.") from error
        known = "X_pending" in parameters
        self.takes_pending = known if self._constructor is None else not self.analytic

    @property
    def name(self) -> str:
        """Name of the class or function."""
        return getattr(self.factory, "__name__", type(self.factory).__name__)

    def build(
        self, model: Model, train_X: Tensor, train_Y: Tensor, X_pending: Tensor | None
    ) -> AcquisitionFunction:
        """The acquisition function for a model.

        Args:
            model: of values to be maximised.
            train_X: ``m x d``.
            train_Y: ``m x 1``.
            X_pending: ``p x d``, or None.

        Raises:
            InputTypeError: if the factory returns something else.
        """
        options = dict(self.options)
        if self._constructor is not None:
            options["training_data"] = SupervisedDataset(
                train_X,
                train_Y,
                feature_names=[f"x{i}" for i in range(train_X.shape[-1])],
                outcome_names=["y"],
            )
            made = self.factory(**self._constructor(model=model, **options))
            if X_pending is not None and self.takes_pending:
                made.set_X_pending(X_pending)
            return made
        if X_pending is not None and self.takes_pending:
            options["X_pending"] = X_pending
        made = self.factory(model, **options)
        if not isinstance(made, AcquisitionFunction):
            raise InputTypeError(
                f"{self.name} must return an AcquisitionFunction, got {type(made).__name__}."
            )
        return made

    def __repr__(self) -> str:
        options = "".join(f", {key}={value!r}" for key, value in self.options.items())
        return f"BotorchRule({self.name}{options})"


def as_rule(rule: Any, name: str = "rule") -> Rule:
    """The rule itself, or one around a factory of BoTorch acquisition functions.

    Raises:
        InputTypeError: if it is neither a rule nor callable.
    """
    if isinstance(rule, UCB | ThompsonSampling | BotorchRule):
        return rule
    if isinstance(rule, Rule):
        raise InputTypeError(
            f"{name} is a {type(rule).__name__}, which nothing here can play: the rules are UCB, "
            "ThompsonSampling and BotorchRule. Write a rule of your own as a BoTorch acquisition "
            "function, and pass its class or a function that makes it."
        )
    if not callable(rule) or (isinstance(rule, type) and issubclass(rule, Rule)):
        raise InputTypeError(
            f"{name} must be a rule such as UCB(6.0) or ThompsonSampling(), or an acquisition "
            f"function's factory, got {rule!r}."
        )
    return BotorchRule(rule)


class Pending:
    """How pending points enter the posterior."""


@dataclass(frozen=True)
class Ignore(Pending):
    """Not at all: mu~ and sigma~ from what has arrived.

    Without new answers a rule that is not random asks the same point again.
    """


@dataclass(frozen=True)
class Hallucinate(Pending):
    """The mean from what has arrived, the deviation from everything asked (Desautels 2014).

    Equivalent to answers equal to the posterior mean at the pending points. A trial that has
    failed stays counted.
    """


@dataclass(frozen=True)
class Censor(Pending):
    """Missing values counted as the worst value of f (Verma et al. 2022).

    The posterior is of everything asked. A trial that is running or has failed has the worst
    value; an answer that took more than ``max_delay`` asks has it for ever.

    Args:
        worst_value: the worst value of f, in the user's units and sign. Verma et al. measure
            values from the worst one, so that theirs is 0; subtract it from your values for
            their prior.
        max_delay: in asks; None if answers count however late they are.
        inflate: add to UCB's factor the sum of sigma at the last ``max_delay`` points, each
            as it was when the point was asked (theorem 1 of Verma et al.).

    Raises:
        InputTypeError: if ``worst_value`` is no number.
        InputError: if it is not finite, or ``inflate`` is asked for without ``max_delay``.
    """

    worst_value: float
    max_delay: int | None = None
    inflate: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "worst_value", validation.real(self.worst_value, "worst_value"))
        validation.flag(self.inflate, "inflate")
        if self.max_delay is not None:
            delay = validation.whole(self.max_delay, "max_delay", 0)
            object.__setattr__(self, "max_delay", delay)
        elif self.inflate:
            raise InputError(
                "inflate sums sigma over the last max_delay points; give max_delay, in asks."
            )

    def __repr__(self) -> str:
        late = "" if self.max_delay is None else f", max_delay={self.max_delay}"
        wide = ", inflate=True" if self.inflate else ""
        return f"Censor({self.worst_value:g}{late}{wide})"


_METHODS = {
    (UCB, Ignore): "GP-UCB on what has arrived",
    (UCB, Hallucinate): "GP-BUCB",
    (UCB, Censor): "GP-UCB-SDF",
    (ThompsonSampling, Ignore): "asynchronous TS",
    (ThompsonSampling, Hallucinate): "GP-BTS",
    (ThompsonSampling, Censor): "GP-TS-SDF",
}


def method_name(rule: Rule, pending: Pending) -> str:
    """The name under which a combination was published, or what it is made of."""
    known = _METHODS.get((type(rule), type(pending)))
    if known is not None:
        wide = isinstance(pending, Censor) and pending.inflate
        return f"{known} with width inflation" if wide else known
    label = rule.name if isinstance(rule, BotorchRule) else repr(rule)
    return f"{label}, {pending!r}"


def check_combination(rule: Rule, pending: Any) -> None:
    """Refuse a way for pending points to enter that the rule cannot use.

    Raises:
        InputTypeError: if ``pending`` is no :class:`Pending`.
        InputError: if the rule cannot use it.
    """
    if not isinstance(pending, Ignore | Hallucinate | Censor):
        raise InputTypeError(
            "pending must be Ignore(), Hallucinate() or Censor(worst_value), the worst value that "
            f"f can take; got {pending!r}."
        )
    if isinstance(pending, Censor) and pending.inflate and not isinstance(rule, UCB):
        raise InputError(f"inflate widens an upper confidence bound; {rule!r} has none.")
    if (
        isinstance(rule, BotorchRule)
        and isinstance(pending, Hallucinate)
        and not (rule.takes_pending or rule.analytic)
    ):
        raise InputError(
            f"{rule.name} cannot use pending points: it has no parameter X_pending. Add one, or "
            "use pending=Ignore()."
        )
