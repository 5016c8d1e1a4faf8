"""Rules: what is maximised to choose the next point.

To use your own, subclass :class:`Rule`, or pass an acquisition function of BoTorch.
"""

from __future__ import annotations

import copy
import inspect
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import torch
from botorch.acquisition.acquisition import AcquisitionFunction, OneShotAcquisitionFunction
from botorch.acquisition.analytic import AnalyticAcquisitionFunction
from botorch.exceptions.warnings import InputDataWarning, NumericsWarning
from botorch.models.model import Model
from botorch.utils.datasets import SupervisedDataset
from gpytorch.settings import min_variance
from linear_operator.utils.warnings import NumericalWarning
from torch import Tensor

from botorch_delay import validation
from botorch_delay.confidence.bounds import DEFAULT_CONFIDENCE, DEFAULT_DELTA, Confidence, FixedBeta
from botorch_delay.design.ascent import BoundClimb
from botorch_delay.domains.devices import Seeded, sent, sent_rows
from botorch_delay.exceptions import BotorchDelayError, InputError, InputTypeError
from botorch_delay.gp.delayed_gp import DelayedGP
from botorch_delay.gp.kernels import CHUNK_ELEMENTS, covariance
from botorch_delay.gp.sample_paths import FEATURES
from botorch_delay.gp.surrogate import Surrogate
from botorch_delay.optimizers.pending import Pending
from botorch_delay.optimizers.rule_model import RuleModel

# BoTorch clamps variances to a floor; the prior variance must be at least this many times that.
LEAST_VARIANCE = 1e4

Score = Callable[[Tensor], Tensor]


class Rule:
    """What is maximised to choose the next point, given a :class:`RuleModel`.

    A rule that is a formula in mean and deviation defines :meth:`value`; any other defines
    :meth:`score` and :meth:`function`.

    Attributes:
        published: the published names of its combinations, by the class name of ``pending``.
        costly: whether it takes long to evaluate; then climbs on a box are few and short.
        scores_are_values: whether a score is a value that f may take at the point (a bound, a
            sample), and not, say, an improvement. Then scores that differ by rounding tie, climbs
            end once gains are negligible, and ``Exploit`` prefers untried points on lists.
        draws_where_crowded: whether, where pending points crowd (:meth:`RuleModel.is_crowded`), it
            is maximised given values drawn for them.
        inflates: whether it uses the widths of ``Censor(inflate=True)``.
    """

    published: ClassVar[Mapping[str, str]] = {}
    costly: ClassVar[bool] = False
    scores_are_values: ClassVar[bool] = False
    draws_where_crowded: ClassVar[bool] = False
    inflates: ClassVar[bool] = False

    @property
    def name(self) -> str:
        """Its name in reports."""
        return repr(self)

    def surrogates(self, surrogate: Surrogate) -> Sequence[Surrogate]:
        """The surrogates that it is evaluated under, one for each view of the model."""
        return (surrogate,)

    @property
    def interval_confidence(self) -> tuple[Confidence, float]:
        """The confidence, and its delta, of the interval of a recommendation."""
        return DEFAULT_CONFIDENCE, DEFAULT_DELTA

    def value(self, model: RuleModel, mean: Tensor, deviation: Tensor) -> Tensor:
        """Its value at some points from the mean and deviation there, ``n`` each: ``n``.

        These are in units of the surrogate, whose values are to be maximised; a deviation may be 0.
        With a given kernel it is also called before any answer. -inf keeps a point from being
        asked; inf and NaN are a NumericsError of ``ask``, but NaN of a BoTorch acquisition function
        counts as -inf.
        """
        raise NotImplementedError

    def score(self, model: RuleModel) -> Tensor:
        """Its value at every candidate of the model, ``N``: the largest is asked."""
        return self.value(model, model.mean, model.deviation)

    def function(self, model: RuleModel, starts: Tensor) -> Score:
        """The function that climbs on a box maximise, ``n x d`` to ``n``; ``starts`` are ``n x d``.

        It is differentiable, and takes points as :meth:`RuleModel.mean_at` does. Row i of its
        argument is the point that the climb from start i has reached.
        """
        return lambda X: self.value(model, model.mean_at(X), model.deviation_at(X))

    def check_pending(self, pending: Pending) -> None:
        """Refuse a treatment of pending points that it cannot use."""
        if pending.inflate and not self.inflates:
            raise InputError(f"inflate widens an upper confidence bound; {self!r} has none.")

    def check(self, model: RuleModel) -> None:
        """Raise a BotorchDelayError before the first ask if the model does not suit it."""

    def method(self, pending: Pending) -> str:
        """The published name of the combination, or a description."""
        known = self.published.get(type(pending).__name__)
        if known is None:
            return f"{self.name}, {pending!r}"
        return f"{known} with width inflation" if pending.inflate else known

    def approximates(self, model: RuleModel) -> str | None:
        """What is approximate about it, in words; None if nothing is."""
        return None


@dataclass(frozen=True)
class UCB(Rule):
    """The upper confidence bound ``mu + sqrt(beta) sigma`` (Srinivas 2010).

    On a box with a learned kernel hallucinated points would crowd where mu is largest, since they
    do not change it. So once 16 or more are pending within a tenth of the sides (root mean square)
    of the best answered point, or of the pending one with the largest mu, and no more are answered
    there, the bound is maximised given values drawn for all pending points, new ones in every ask,
    as with :class:`KrigingBeliever`.

    Args:
        beta: BoTorch's convention, the square of the factor on sigma; above 0.
    """

    beta: float

    published: ClassVar[Mapping[str, str]] = {
        "Ignore": "GP-UCB on what has arrived",
        "Hallucinate": "GP-BUCB",
        "Censor": "GP-UCB-SDF",
    }
    scores_are_values = draws_where_crowded = inflates = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "beta", validation.positive(self.beta, "beta"))

    @property
    def interval_confidence(self) -> tuple[Confidence, float]:
        return FixedBeta(self.beta), DEFAULT_DELTA

    def value(self, model: RuleModel, mean: Tensor, deviation: Tensor) -> Tensor:
        return mean + (math.sqrt(self.beta) + sum(model.widths)) * deviation

    def function(self, model: RuleModel, starts: Tensor) -> Score:
        """The bound; with a learned kernel sigma is capped at its value at the start of the climb.

        Without the cap every climb would lead to the edge of the box.
        """
        if not model.surrogate.learned:
            return super().function(model, starts)
        answers, design = model.answers.anywhere, model.with_pending.anywhere
        factor = math.sqrt(self.beta) + sum(model.widths)
        return BoundClimb(model.surrogate, answers, design, factor, starts)


@dataclass(frozen=True)
class ThompsonSampling(Rule):
    """A sample path of the posterior, maximised: a fresh one for every ask.

    On up to 5,000 points paths are exact. Above, and on boxes, the prior part is a random Fourier
    feature expansion and the update by answers is exact (decoupled sampling, Wilson et al. 2020);
    this needs an RBF or a Matern kernel, possibly scaled. Random numbers are drawn on the CPU: up
    to rounding a seed gives the same samples on every device.

    Args:
        beta: the posterior covariance is multiplied by it; 1 is plain Thompson sampling,
            larger values are the widening of Chowdhury & Gopalan (2017). Above 0.
    """

    beta: float = 1.0

    published: ClassVar[Mapping[str, str]] = {
        "Ignore": "asynchronous TS",
        "Hallucinate": "GP-BTS",
        "Censor": "GP-TS-SDF",
    }
    scores_are_values = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "beta", validation.positive(self.beta, "beta"))

    def check_pending(self, pending: Pending) -> None:
        """Refuse drawn answers: given those, samples have the same law as with ``Ignore``."""
        super().check_pending(pending)
        if pending.draws:
            raise InputError(f"{self!r} draws samples itself: use pending=Ignore() instead.")

    def check(self, model: RuleModel) -> None:
        """NotSupportedError if paths cannot be exact and BoTorch has no features for the kernel."""
        model.paths()

    def approximates(self, model: RuleModel) -> str | None:
        if model.paths().exact:
            return None
        return (
            f"the prior part of a Thompson sample is approximate: {FEATURES} random Fourier "
            "features."
        )

    def score(self, model: RuleModel) -> Tensor:
        if not model.finite:
            with torch.no_grad():
                return self.function(model, model.candidates)(model.candidates)
        posterior, generator = model.with_pending.at_candidates, model.generator()
        path = model.paths().draw(generator)
        count = len(model.candidates)
        places = [key if key >= 0 else count - 1 - key for key in posterior.keys]
        # Noise by place, so that the order in which points were entered does not matter.
        noise = sent(torch.randn(len(path), generator=generator, dtype=path.dtype), path)
        rows = sent_rows(places, path)
        residual = path[rows] + sent(posterior.noise_var, path).sqrt() * noise[rows]
        centred = path[:count] - posterior.correction(residual)
        return model.mean + math.sqrt(self.beta) * centred

    def function(self, model: RuleModel, starts: Tensor) -> Score:
        answers, design = model.answers.anywhere, model.with_pending.anywhere
        surrogate, generator = model.surrogate, model.generator()
        prior = model.paths().draw_function(generator)
        noise = sent(torch.randn(len(design), generator=generator, dtype=torch.double), starts)
        with torch.no_grad():
            residual = prior(design.data.X) + design.data.noise_var.sqrt() * noise
            weights = design.factor.weights(residual)

        def sample(X: Tensor) -> Tensor:
            inputs = surrogate.inputs(X)
            cross = covariance(surrogate.covar_module, design.data.X, inputs)
            centred = prior(inputs) - weights @ cross
            return answers.mean(inputs) + math.sqrt(self.beta) * centred

        return sample


class BotorchRule(Rule):
    """An acquisition function of BoTorch that scores single points.

    A class is built with BoTorch's own input constructor, so that ``best_f``, ``X_baseline``
    and the like come from the answers. A function is called as ``factory(model)`` or, if it
    has that parameter, ``factory(model, X_pending=X)``, and returns the acquisition function.
    Models are :class:`DelayedGP`, of values to be maximised; where the kernel is learned, of
    normalised inputs and standardised values, and options must be in those units. Pending points
    are passed as ``X_pending`` alone, so that none counts twice; analytic classes, which have no
    ``X_pending``, get the fantasy model.

    Random numbers that PyTorch draws in it follow from the optimizer's seed, and neither use nor
    change the global generator, which other threads draw from. Some samplers of BoTorch
    (``IIDNormalSampler``, ``ForkedRNGSampler``, ``IndexSampler``) still seed the global generator
    for a moment, but they, too, get their numbers from the optimizer's seed instead of their own.

    Args:
        factory: a class with a registered input constructor, or a function.
        options: keyword arguments for ``factory``, for instance ``beta=2.0``.

    Raises:
        InputTypeError: if ``factory`` is not callable, has no signature, or is an acquisition
            function that was made already.
        InputError: if BoTorch has no input constructor for the class, or it is one-shot, as
            ``qKnowledgeGradient`` is, and cannot score single points.

    Example:
        >>> from botorch.acquisition.logei import qLogNoisyExpectedImprovement
        >>> BotorchRule(qLogNoisyExpectedImprovement).takes_pending
        True
    """

    costly = True

    def __init__(self, factory: Callable[..., AcquisitionFunction], **options: Any) -> None:
        expected = "a class or function that makes an acquisition function"
        validation.instance(factory, Callable, "factory", expected)
        if isinstance(factory, AcquisitionFunction):  # whose model would never change
            raise InputTypeError(
                f"factory must be {expected}, got a {type(factory).__name__} that was made "
                f"already; pass the class, BotorchRule({type(factory).__name__}, ...)."
            )
        self.factory = factory
        self.options = options
        kind = factory if isinstance(factory, type) else object
        self.analytic = issubclass(kind, AnalyticAcquisitionFunction)
        # The constructor itself is looked up when it is called, since it cannot be pickled.
        self._has_constructor = issubclass(kind, AcquisitionFunction)
        if self._has_constructor:
            # Imported here because it imports every acquisition function, and scipy.stats.
            from botorch.acquisition.input_constructors import ACQF_INPUT_CONSTRUCTOR_REGISTRY

            if kind not in ACQF_INPUT_CONSTRUCTOR_REGISTRY:
                raise InputError(
                    f"BoTorch has no input constructor for {factory.__name__}; pass a function of "
                    "model and X_pending that returns the acquisition function."
                )
            if issubclass(kind, OneShotAcquisitionFunction):
                raise InputError(
                    f"{factory.__name__} is a one-shot acquisition function, which optimises "
                    "fantasy points together with the candidate; it cannot rank single points."
                )
        try:
            parameters = inspect.signature(factory).parameters
        except (TypeError, ValueError) as error:
            raise InputTypeError(f"{self.name} does not make an acquisition function.") from error
        known = parameters.get("X_pending")
        # Whether X_pending is passed even when nothing is pending.
        self._needs_pending = known is not None and known.default is inspect.Parameter.empty
        self.takes_pending = not self.analytic if self._has_constructor else known is not None

    @property
    def name(self) -> str:
        return getattr(self.factory, "__name__", type(self.factory).__name__)

    def check_pending(self, pending: Pending) -> None:
        """Refuse pending points if it has no way to take them into account."""
        super().check_pending(pending)
        if pending.counts_in_deviation and not (self.takes_pending or self.analytic):
            raise InputError(
                f"{self.name} cannot use pending points: it has no parameter X_pending. Add one, "
                "or use AcquisitionOptimizer with pending=Ignore()."
            )

    def check(self, model: RuleModel) -> None:
        """Build and evaluate it once, with two made-up answers."""
        variance, floor = model.prior_deviation**2, min_variance.value(model.candidates.dtype)
        if variance < LEAST_VARIANCE * floor:
            raise InputError(
                f"{self.name} would see variances below {floor:.0e} as {floor:.0e}, and the prior "
                f"variance is {variance:.1e}: give values, kernel and noise_var in a unit in which "
                "it is about 1, and points in double precision."
            )
        X = model.surrogate.inputs(model.candidates[:2])
        y = sent([[0.0], [1.0]], X)[: len(X)]
        pending = X[:1] if model.pending.counts_in_deviation else None
        kernel, noise_var = copy.deepcopy(model.surrogate.covar_module), model.surrogate.noise_var
        try:
            with _quietly(0, advice=True), torch.no_grad():
                gp = DelayedGP(X, y, noise_var=noise_var, covar_module=kernel)
                scores = self.build(gp, X, y, pending)(X.unsqueeze(-2))
        except BotorchDelayError:
            raise
        except Exception as error:
            raise InputError(f"{self!r} cannot be built and evaluated: {error}") from error
        if scores.shape != (len(X),):
            raise InputError(
                f"{self!r} must give one number per point, got {tuple(scores.shape)} for "
                f"{tuple(X.unsqueeze(-2).shape)}."
            )

    def score(self, model: RuleModel) -> Tensor:
        """The acquisition function at every candidate, ``N``; without answers the deviation."""
        answers, candidates = model.answers.anywhere, model.candidates
        if not len(answers):
            return model.deviation
        function = self.function(model, candidates)
        rows = max(CHUNK_ELEMENTS // (64 * (len(answers) + len(model.running()) + 64)), 64)
        with torch.no_grad():
            scores = torch.cat([function(part) for part in candidates.split(rows)])
        return scores.to(candidates).nan_to_num(-torch.inf, torch.inf, -torch.inf)

    def function(self, model: RuleModel, starts: Tensor) -> Score:
        """The acquisition function, ``n x d`` to ``n``; without answers the deviation."""
        answers, surrogate = model.answers.anywhere, model.surrogate
        if not len(answers):
            return model.deviation_at
        X, y, pending = answers.data.X, answers.data.y.unsqueeze(-1), model.pending_points()
        seed = int(torch.randint(2**31, (), generator=model.generator()))
        with _quietly(seed), torch.no_grad():
            gp = DelayedGP(
                X,
                y,
                answers.data.noise_var.unsqueeze(-1),
                noise_var=surrogate.noise_var,  # of answers that are still to come
                X_pending=pending if self.analytic else None,  # others get it from build()
                covar_module=copy.deepcopy(surrogate.covar_module),
            )
            acquisition = self.build(gp.fantasy_model(), X, y, pending)

        def at(points: Tensor) -> Tensor:
            with _quietly(None if self.analytic else seed):
                return acquisition(surrogate.inputs(points).unsqueeze(-2))

        return at

    def build(
        self, model: Model, train_X: Tensor, train_Y: Tensor, X_pending: Tensor | None
    ) -> AcquisitionFunction:
        """The acquisition function for a model trained on ``m x d`` points, ``p x d`` pending."""
        options = dict(self.options)
        if self._has_constructor:
            from botorch.acquisition.input_constructors import get_acqf_input_constructor

            construct = get_acqf_input_constructor(cast("type[AcquisitionFunction]", self.factory))
            options["training_data"] = SupervisedDataset(
                train_X,
                train_Y,
                feature_names=[f"x{i}" for i in range(train_X.shape[-1])],
                outcome_names=["y"],
            )
            made = self.factory(**construct(model=model, **options))
            if X_pending is not None and self.takes_pending:
                made.set_X_pending(X_pending)
            return made
        if self.takes_pending and (X_pending is not None or self._needs_pending):
            options["X_pending"] = X_pending
        made = self.factory(model, **options)
        result = f"what {self.name} returns"
        validation.instance(made, AcquisitionFunction, result, "an AcquisitionFunction")
        return made

    def __repr__(self) -> str:
        options = ""
        for key, value in self.options.items():
            is_tensor = isinstance(value, Tensor)
            options += f", {key}={f'<{tuple(value.shape)}>' if is_tensor else repr(value)}"
        return f"BotorchRule({self.name}{options})"


def as_rule(rule: Any, name: str = "rule") -> Rule:
    """A rule as it is, or a :class:`BotorchRule` of a factory of acquisition functions."""
    if isinstance(rule, Rule):
        return rule
    if not callable(rule) or (isinstance(rule, type) and issubclass(rule, Rule)):
        raise InputTypeError(
            f"{name} must be a rule such as UCB(6.0) or ThompsonSampling(), or an acquisition "
            f"function's factory, got {rule!r}."
        )
    return BotorchRule(rule)


@contextmanager
def _quietly(seed: int | None, *, advice: bool = False) -> Iterator[None]:
    """Run with random numbers from ``seed``, if given, and without warnings that do not apply."""
    with nullcontext() if seed is None else Seeded(seed), warnings.catch_warnings():
        # A candidate that is already pending makes the joint covariance singular, and the user's
        # units need not be those that BoTorch expects. Its ``advice`` on functions is shown once.
        warnings.simplefilter("ignore", NumericalWarning)
        warnings.simplefilter("ignore", InputDataWarning)
        if not advice:
            warnings.simplefilter("ignore", NumericsWarning)
        yield
