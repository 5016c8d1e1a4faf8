"""The Gaussian process model of an optimizer, given by the user or learned from the answers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from botorch_delay import validation
from botorch_delay.domains.domain import Domain, Encoding
from botorch_delay.exceptions import InputError, StorageError
from botorch_delay.gp.kernels import (
    WithRoughness,
    hyperparameters,
    matern_sum,
)
from botorch_delay.gp.posterior import Data, Posterior
from botorch_delay.gp.subset import MOST_POINTS, means_of_all, representative
from botorch_delay.gp.warping import WARPINGS, Warping
from botorch_delay.history.answers import Answers

MIN_ANSWERS_TO_FIT = 3  # with fewer answers the priors' modes are used
# With more answers, fits use a random subset of this size, and samples of a box have fewer points,
# so that asks do not get ever slower.
MANY_ANSWERS = 300


def exact_noise(like: Tensor) -> float:
    """The noise variance assumed for exact evaluations, as a share of the prior variance.

    It is a jitter, as large as BoTorch's least noise variance of standardised values.
    """
    return 1e-6 if like.dtype is torch.float64 else 1e-4


# What conversions of a record's entries may raise.
_MALFORMED = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)


@dataclass(frozen=True)
class Hyperparameters:
    """Hyperparameters that a study has learned, in units in which another study can start.

    They become the modes of the other study's log-normal priors of lengthscales and noise, and its
    own answers move the fit away from them. Until there are three answers its points are asked at
    random all the same.

    Args:
        lengthscale: one per column of the encoded inputs, as a share of the side of the domain's
            bounding box; kept as a tuple.
        noise_var: the noise variance, as a share of the variance of the values.
    """

    lengthscale: Sequence[float]
    noise_var: float

    def __post_init__(self) -> None:
        expected = "a list with one number per encoded column"
        validation.instance(self.lengthscale, Iterable, "lengthscale", expected)
        scales = tuple(validation.positive(value, "lengthscale") for value in self.lengthscale)
        object.__setattr__(self, "lengthscale", scales)
        object.__setattr__(self, "noise_var", validation.positive(self.noise_var, "noise_var"))


@dataclass(frozen=True)
class Learned:
    """A Matern 5/2 kernel and noise, learned from the answers.

    Where that is likelier (on boxes with noise, also where it is a little less likely), the kernel
    has main effects as well, functions of one parameter each
    (:class:`~botorch_delay.gp.kernels.MaternSum`). Kernel and noise are fitted by maximum a
    posteriori, anew whenever the number of answers has grown by a fifth, to values mapped by a
    monotone warping, which is fitted as well. For the warping and the scale of the values, answers
    whose inputs differ by less than about a tenth of a side count as one. Means and interval ends
    that users see are mapped back, as quantiles are.

    Args:
        warm_start: another study's ``hyperparameters``, used as modes of the priors. By default the
            mode of lengthscales is that of BoTorch's prior, and the prior of noise reaches from
            exact evaluations to noise as large as the values.
        warp: "half-rank" for values that may span decades: below the median only ranks count, and
            near the best a logarithm tells values apart (Song et al. 2024). If evaluations seem
            exact, the base of the logarithm is the one, of four, that predicts the better half
            best. If the logarithms of values of one sign predict it better, they are warped
            instead, with noise as well; noise then counts as relative. "yeo-johnson" for that power
            transform; "none" for values as they are. Bounds in units of the values
            (``RKHSConfidence``) are always computed from unwarped values.
    """

    warm_start: Hyperparameters | None = None
    warp: str = "half-rank"

    def __post_init__(self) -> None:
        if self.warp not in WARPINGS:
            known = ", ".join(map(repr, WARPINGS))
            raise InputError(f"warp must be one of {known}, got {self.warp!r}.")
        expected = "Hyperparameters, such as another study's opt.hyperparameters"
        validation.instance(self.warm_start, Hyperparameters | None, "warm_start", expected)

    def check(self, domain: Domain) -> None:
        """Raise :class:`InputError` if ``warm_start`` is not for the domain's encoded columns."""
        columns = len(domain.encoding.width)
        if self.warm_start is not None and len(self.warm_start.lengthscale) != columns:
            raise InputError(
                f"warm_start has {len(self.warm_start.lengthscale)} lengthscales, and the domain "
                f"has {columns} encoded columns."
            )


@dataclass(frozen=True)
class Surrogate:
    """A zero-mean Gaussian process g with w(f(x)) = offset + scale * g(inputs(x)).

    If the kernel is learned, w is a monotone warping, and "values" inside the package means warped
    values. With a given kernel, w and ``inputs`` are identities.
    """

    covar_module: Kernel  # of g
    noise_var: float  # lambda^2, in units of g
    like: Tensor  # has the points' dtype and device
    inputs: Encoding = field(default_factory=Encoding)  # maps points to the inputs of g
    offset: float = 0.0
    scale: float = 1.0
    learned: bool = False  # whether the hyperparameters come from the answers
    # Whether offset and scale are known: not with too few answers, or if all are equal.
    scaled: bool = True
    warping: Warping = field(default_factory=Warping)
    roughness: float = 0.0  # variance of a part of g that is independent at every point

    def standardized(self, y: Tensor) -> Surrogate:
        """This surrogate, with offset and scale of the values ``y`` (``m``) if not yet known."""
        if self.scaled or len(y) < MIN_ANSWERS_TO_FIT:
            return self
        offset, scale = standardization(self.warping(y), torch.ones_like(y), y)
        return self if scale is None else replace(self, offset=offset, scale=scale, scaled=True)

    @property
    def is_exact(self) -> bool:
        """Whether the noise was learned and is at most that of exact evaluations."""
        return self.learned and self.noise_var <= exact_noise(self.like)

    @property
    def noise_std(self) -> float:
        """The noise's standard deviation, in units of the values; 0 if :attr:`is_exact`."""
        return 0.0 if self.is_exact else self.noise_var**0.5 * self.scale

    def data(self, answers: Answers) -> Data:
        """Averaged answers in units of g; unknown noise is the surrogate's own.

        With a learned kernel and very many points, those of a representative subset.
        """
        data, means = self._averaged(answers)
        if means is None:
            return data
        return data.at(representative(data.X / self.covar_module.lengthscale, means))

    def means_of_many(self, answers: Answers) -> Tensor | None:
        """The posterior mean given all answers, at the point of each answer, ``n``, in units of g.

        None if :meth:`data` keeps all points.
        """
        _, means = self._averaged(answers)
        if means is None:
            return None
        _, row = torch.unique(answers.group, return_inverse=True)
        return means.cpu()[row]

    def _averaged(self, answers: Answers) -> tuple[Data, Tensor | None]:
        """Averaged answers and, if their points are very many, the posterior mean at each point."""
        y, noise = self.singles(answers)
        data = Data.averaged(answers.X, y, noise, answers.group).to(self.like, self.inputs)
        many = self.learned and len(data) > MOST_POINTS
        return data, means_of_all(self.covar_module, data) if many else None

    def singles(self, answers: Answers) -> tuple[Tensor, Tensor]:
        """Single answers and their noise variances in units of g; unknown noise is its own."""
        y, known = self.in_own_units(answers.y, answers.noise_var)
        return y, torch.where(known.isnan(), self.noise_var, known)

    def in_own_units(self, y: Tensor, noise_var: Tensor) -> tuple[Tensor, Tensor]:
        """Answers and their noise variances in units of g, ``m`` each; NaN noise stays NaN."""
        # Clamped, since in these units noise may overflow (tiny values) or vanish (huge ones).
        noise = noise_var.to(y) * self.warping.slope(y).square() / self.scale / self.scale
        most = validation.largest_value(self.like)
        return (self.warping(y) - self.offset) / self.scale, noise.clamp(1.0 / most, most)

    def warped(self, value: float) -> float:
        """The warped value of one value in the user's units, to be maximised."""
        return self.warping(torch.tensor(value, dtype=torch.double)).item()

    def unwarped(self, value: float) -> float:
        """The inverse of :meth:`warped`."""
        return self.warping.inverse(torch.tensor(value, dtype=torch.double)).item()

    def standard(self, value: float | None, noise_var: float | None) -> tuple[float, float]:
        """One answer and its noise variance in units of g.

        A value of None becomes 0, the prior mean of g; noise of None becomes the surrogate's own.
        """
        noise = self.noise_var if noise_var is None else noise_var / self.scale / self.scale
        if value is None:
            return 0.0, noise
        if not self.warping.is_identity:
            if noise_var is not None:
                slope = self.warping.slope(torch.tensor(value, dtype=torch.double)).item()
                noise *= slope * slope
            value = self.warped(value)
        most = validation.largest_value(self.like)
        value = min(max((value - self.offset) / self.scale, -most), most)
        return value, min(max(noise, 1.0 / most), most)

    def posterior(self, data: Data) -> Posterior:
        """The posterior of the values at any points of the domain, from data in units of g."""
        kernel = self.covar_module
        kernel = WithRoughness(kernel, self.roughness) if self.roughness else kernel
        return Posterior(kernel, data, inputs=self.inputs, offset=self.offset, scale=self.scale)

    def hyperparameters(self) -> dict[str, Any]:
        """Every hyperparameter by name, as numbers and lists of numbers."""
        return {
            "covar_module": hyperparameters(self.covar_module),
            "noise_var": self.noise_var,
            "offset": self.offset,
            "scale": self.scale,
        }

    def describe(self) -> dict[str, Any]:
        """A JSON-ready record of a learned surrogate."""
        return self.hyperparameters() | {
            "scaled": self.scaled,
            "warping": self.warping.describe(),
        }

    @classmethod
    def rebuild(cls, record: Mapping[str, Any], domain: Domain) -> Surrogate:
        """The learned surrogate that a record describes; StorageError if it is malformed."""
        try:
            numbers: dict[str, Any] = {
                key: float(record[key]) for key in ("noise_var", "offset", "scale")
            }
            points = domain.like
            found, columns = record["covar_module"], len(domain.encoding.width)
            share = float(found.get("share", 0.0))
            scales = torch.atleast_1d(points.new_tensor(found["lengthscale"]))
            limits = {"noise_var": 1e6, "scale": validation.largest_value(points)}
            if scales.shape != (columns,) or not ((scales > 0.0) & scales.isfinite()).all():
                raise ValueError(f"there are not {columns} lengthscales above 0")
            if not 0.0 <= share < 1.0:
                raise ValueError(f"the share of main effects is {share}")
            kernel = matern_sum(scales, share, domain.encoding.groups)
            warping = Warping.rebuild(record["warping"])
            positive = all(0.0 < numbers[key] <= limit for key, limit in limits.items())
            if not positive or not math.isfinite(numbers["offset"]):
                raise ValueError(f"{numbers} are out of range")
        except _MALFORMED as error:
            raise StorageError(f"The stored hyperparameters are malformed: {error}.") from error
        return cls(
            kernel,
            like=points,
            inputs=domain.encoding,
            learned=True,
            scaled=record["scaled"] is True,
            warping=warping,
            **numbers,
        )


def standardization(y: Tensor, weight: Tensor, like: Tensor) -> tuple[float, float | None]:
    """Mean and deviation of weighted values; no deviation if they are equal up to rounding."""
    if len(y) == 0:
        return 0.0, None
    share = weight / weight.sum()
    offset = float(share @ y)
    free = 1.0 - float(share @ share)  # Bessel's correction: 1 - 1/n for n equal weights
    scale = 0.0
    if len(y) > 1:
        # Squares of tiny values would be 0. Scaling by a power of 2 is exact.
        exponent = math.frexp(float((y - offset).abs().max()))[1]
        away = torch.ldexp((y - offset).double(), torch.tensor(-exponent))
        scale = math.ldexp(math.sqrt(float(share.double() @ away**2) / free), exponent)
    rounding = 16 * torch.finfo(like.dtype).eps * y.abs().max().item()
    return offset, scale if scale > rounding else None
