"""Monotone maps of the answers, under which values that span decades look like draws of a GP."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

MIN_VALUES = 3  # fewer distinct values are not warped
MAX_KNOTS = 512  # more are thinned to this many, evenly by rank
# Bases of the logarithm that stretches the better half: that of Song et al. (2024, appendix,
# section 4.1), and larger ones, which separate values near the best more.
BASES = (1.5, 16.0, 256.0, 4096.0)
MIN_TO_COMPARE = 24  # with fewer answers noise, which larger bases stretch, is hardly recognised
MIN_FOR_LOGARITHMS = 12  # with fewer answers logarithms of the values are not compared
ROUNDING = 1e-9  # cumulative shares that differ by less count as equal
CROWD = 0.1  # root mean square difference per column, in sides, below which answers crowd


@dataclass(frozen=True)
class Warping:
    """A strictly increasing, piecewise linear map of values, linear beyond its outer knots.

    Args:
        values: knots, increasing, in the user's units, to be maximised; empty for the identity.
        warped: the knots' warped values, increasing.
    """

    values: tuple[float, ...] = ()
    warped: tuple[float, ...] = ()

    @property
    def is_identity(self) -> bool:
        """Whether values stay as they are."""
        return not self.values

    def __call__(self, y: Tensor) -> Tensor:
        """The warped values of ``y``, of any shape."""
        return _interpolated(y, *self._knots)

    def inverse(self, warped: Tensor) -> Tensor:
        """The values whose warped values are given, of any shape; maps quantiles to quantiles."""
        return _interpolated(warped, *reversed(self._knots))

    def slope(self, y: Tensor) -> Tensor:
        """The derivative at ``y``, of any shape; at a knot, that of the segment above it."""
        if self.is_identity:
            return torch.ones_like(y)
        at, images = (knots.to(y.device) for knots in self._knots)
        low, high = _segments(y, at)
        return ((images[high] - images[low]) / (at[high] - at[low])).to(y)

    @cached_property
    def _knots(self) -> tuple[Tensor, Tensor]:
        """Knots' values and warped values, in double precision, so that they stay distinct."""
        values, warped = (torch.tensor(k, dtype=torch.double) for k in (self.values, self.warped))
        return values, warped

    def describe(self) -> dict[str, list[float]]:
        """A JSON-ready record."""
        return {"values": list(self.values), "warped": list(self.warped)}

    @classmethod
    def rebuild(cls, record: Mapping[str, Any]) -> Warping:
        """The map that a record describes; ValueError if it is not increasing."""
        values, warped = (tuple(map(float, record[key])) for key in ("values", "warped"))
        rising = all(bool((np.diff(knots) > 0.0).all()) for knots in (values, warped))
        if len(values) != len(warped) or len(values) == 1 or not rising:
            raise ValueError("the knots of a warping must increase")
        return cls(values, warped)

    @classmethod
    def through(cls, values: np.ndarray, warped: np.ndarray) -> Warping:
        """The map through these knots, less those that rounding makes equal."""
        if len(values) > MAX_KNOTS:
            rows = np.unique(np.linspace(0, len(values) - 1, MAX_KNOTS).round().astype(int))
            values, warped = values[rows], warped[rows]
        kept = [0]
        for row in range(1, len(values)):
            if values[row] > values[kept[-1]] and warped[row] > warped[kept[-1]]:
                kept.append(row)
        if len(kept) < MIN_VALUES:
            return cls()
        return cls(tuple(values[kept].tolist()), tuple(warped[kept].tolist()))


def _interpolated(x: Tensor, at: Tensor, to: Tensor) -> Tensor:
    if not len(at):
        return x
    at, to = at.to(x.device), to.to(x.device)
    low, high = _segments(x, at)
    share = (x.double() - at[low]) / (at[high] - at[low])
    return torch.lerp(to[low], to[high], share).to(x)


def _segments(x: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
    """The indices of the knots below and above each number."""
    high = torch.searchsorted(at, x.double().contiguous(), right=True).clamp(1, len(at) - 1)
    return high - 1, high


def spread_weights(X: Tensor) -> Tensor:
    """Weights of answers in the distribution of values: a crowd counts about as much as one point.

    Answers crowd where values are good. With equal weights the median would soon lie among them,
    and of all other values only ranks would remain. Inputs, ``n x d``, are in units of the sides.
    """
    others = X[:: max(len(X) // MAX_KNOTS, 1)]
    exact = "donot_use_mm_for_euclid_dist"
    distance = torch.cdist(X, others, compute_mode=exact) / (CROWD * X.shape[-1] ** 0.5)
    crowd = torch.exp(-0.5 * distance**2).sum(dim=1) * (len(X) / max(len(others), 1))
    return 1.0 / crowd.clamp_min(1.0)


def _shares(y: Tensor, weight: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """The distinct values, increasing, and each one's share of the total weight."""
    values, place = np.unique(y.detach().cpu().double().numpy(), return_inverse=True)
    counted = np.bincount(place, weight.cpu().double().numpy())
    return values, counted / counted.sum()


def _median(values: np.ndarray, share: np.ndarray) -> float:
    return float(values[np.searchsorted(np.cumsum(share), 0.5 - ROUNDING)])


def _scale(values: np.ndarray) -> int:
    """The exponent of the power of 2 that brings half the range of sorted values to [1/2, 1).

    Squares of the scaled values are then finite, and the scaling (``ldexp``) is exact.
    """
    return -int(np.frexp(values[-1] / 2.0 - values[0] / 2.0)[1])


def better_half(y: Tensor, weight: Tensor) -> Tensor:
    """Which of the values, ``n``, are at least their weighted median: bool ``n``."""
    return y >= _median(*_shares(y, weight))


def half_rank(
    y: Tensor, weight: Tensor, base: float = BASES[0], *, logarithms: bool = False
) -> Warping:
    """Half-rank, then logarithm: Vizier's output warping (Song et al. 2024), of weighted values.

    Values, ``n``, below the median are replaced by normal quantiles of their ranks, scaled to the
    spread of the better half: how bad a bad value is does not count. Then a logarithm of the
    distance from the best value stretches small distances, up to ``base`` times as much as large.
    With ``logarithms`` this is done to the logarithms of the values' sizes; all have one sign.
    """
    values, share = _shares(y, weight)
    if len(values) < MIN_VALUES:
        return Warping()
    scaled = _logarithms(values) if logarithms else np.ldexp(values, _scale(values))
    upto = np.cumsum(share)
    median = _median(scaled, share)
    better = scaled >= median
    spread = float(np.sqrt(np.average((scaled[better] - median) ** 2, weights=share[better])))
    if spread == 0.0:  # the best value is the median
        spread = float(np.sqrt(np.average((scaled - median) ** 2, weights=share)))
    # Quantile levels are the share of values below, ties counted half: about 1/2 at the median.
    quantiles = median + spread * torch.special.ndtri(torch.from_numpy(upto - share / 2)).numpy()
    ranked = np.where(better, scaled, np.minimum(quantiles, median))
    distance = (ranked[-1] - ranked) / (ranked[-1] - ranked[0])
    warped = 0.5 - np.log1p(distance * (base - 1.0)) / np.log(base)
    return _extended_below(Warping.through(values, warped))


def _extended_below(warping: Warping) -> Warping:
    """The map with a further knot below all others, unless it is no steeper there than on average.

    Between ranks slopes are arbitrary. Where the two worst values nearly tie, their slope would
    give values below them no room, and so intervals no width on that side.
    """
    if warping.is_identity:
        return warping
    (low, high), (first, last) = ((k[0], k[-1]) for k in (warping.values, warping.warped))
    rise = (warping.warped[1] - first) / (last - first)
    if rise <= (warping.values[1] - low) / (high - low):
        return warping
    values, warped = (
        (low - (high - low), *warping.values),
        (first - (last - first), *warping.warped),
    )
    return Warping(values, warped)


def _logarithms(values: np.ndarray) -> np.ndarray:
    """Increasing logarithms of the sizes of sorted values of one sign, in units of the largest."""
    share, exponent = np.frexp(np.abs(values))  # so that powers of 2 cancel exactly
    return np.sign(values[0]) * (np.log2(share) + (exponent - exponent.max()))


class Candidates(NamedTuple):
    """Warpings to compare.

    Attributes:
        first: the simplest, taken unless another one predicts decidedly better.
        if_exact: those that stretch the best values, and so any noise of single answers.
        others: those that may also be better with noise.
    """

    first: Warping
    if_exact: Sequence[Warping] = ()
    others: Sequence[Warping] = ()


def half_ranks(y: Tensor, weight: Tensor) -> Candidates:
    """:func:`half_rank` with every base, and of logarithms, as far as there are enough answers.

    Logarithms suit values of one sign that span decades where they are good, such as losses with a
    relative noise.
    """
    bases = BASES[1:] if len(y) >= MIN_TO_COMPARE else ()
    one_sign = bool((y > 0.0).all()) or bool((y < 0.0).all())
    logarithms = one_sign and len(y) >= MIN_FOR_LOGARITHMS
    return Candidates(
        half_rank(y, weight),
        [half_rank(y, weight, base) for base in bases],
        [half_rank(y, weight, logarithms=True)] if logarithms else [],
    )


def yeo_johnson(y: Tensor, weight: Tensor) -> Warping:
    """Yeo and Johnson's transform of the standardised values, with the most likely power."""
    # Imported here, since the import takes long.
    from scipy import stats

    every = y.detach().cpu().double().numpy()
    values = np.unique(every)
    if len(values) < MIN_VALUES:
        return Warping()
    exponent = _scale(values)
    every = np.ldexp(every, exponent)
    mean, scale = every.mean(), every.std()
    _, power = stats.yeojohnson((every - mean) / scale)
    standard = (np.ldexp(values, exponent) - mean) / scale
    warped = stats.yeojohnson(standard, lmbda=float(np.clip(power, -4, 6)))
    return Warping.through(values, warped)


# By name, functions of values, to be maximised, and their weights.
WARPINGS: dict[str, Callable[[Tensor, Tensor], Candidates]] = {
    "half-rank": half_ranks,
    "yeo-johnson": lambda y, weight: Candidates(yeo_johnson(y, weight)),
    "none": lambda y, weight: Candidates(Warping()),
}
