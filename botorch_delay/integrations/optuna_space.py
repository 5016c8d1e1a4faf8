"""Optuna's distributions as a box, and points as parameters."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
    distribution_to_json,
)
from torch import Tensor

from botorch_delay.boxes import BoxDomain
from botorch_delay.exceptions import NotSupportedError

# A column with more values than this is searched as a continuous one, and rounded.
MAX_LISTED = 1000


@dataclass(frozen=True)
class _Column:
    """One parameter.

    Attributes:
        low: lower end, in the numbers of the box.
        high: upper end.
        log: whether it is modelled by its logarithm.
        values: the numbers allowed, if they are listed.
        is_category: whether those only name choices.
        decode: a number of the box as the parameter's value.
    """

    low: float
    high: float
    log: bool
    values: list[float] | None
    is_category: bool
    decode: Callable[[float], Any]


class OptunaSpace:
    """A search space of Optuna's as a box, one column per parameter, in the order of the names.

    Args:
        distributions: by name; none of them with a single value.

    Attributes:
        domain: the box, in double precision.
        names: of its columns.

    Raises:
        NotSupportedError: for a distribution that is neither float, int nor categorical.
    """

    def __init__(self, distributions: Mapping[str, BaseDistribution]) -> None:
        self.names = tuple(sorted(distributions))
        self._distributions = {name: distributions[name] for name in self.names}
        columns = [_column(name, self._distributions[name]) for name in self.names]
        self._columns = columns
        ends = [[column.low for column in columns], [column.high for column in columns]]
        listed = {d: c.values for d, c in enumerate(columns) if c.values is not None}
        self.domain = BoxDomain(
            torch.tensor(ends, dtype=torch.double),
            {d: values for d, values in listed.items() if not columns[d].is_category},
            {d: values for d, values in listed.items() if columns[d].is_category},
            names=self.names,
            log_dims=[d for d, column in enumerate(columns) if column.log],
        )

    def describe(self) -> str:
        """The distributions as one line, equal where they are."""
        return json.dumps(
            {name: distribution_to_json(d) for name, d in self._distributions.items()}
        )

    def params(self, x: Tensor) -> dict[str, Any]:
        """The parameters of a point, ``d``."""
        numbers = zip(self.names, self._columns, x.tolist(), strict=True)
        return {name: column.decode(number) for name, column, number in numbers}

    def point(self, params: Mapping[str, Any]) -> Tensor | None:
        """The point of some parameters, ``d``; None if they are not all there, or do not fit."""
        x = []
        for name, column in zip(self.names, self._columns, strict=True):
            if name not in params:
                return None
            try:
                number = float(self._distributions[name].to_internal_repr(params[name]))
            except (ValueError, TypeError):
                return None
            if not math.isfinite(number) or (column.log and number <= 0.0):
                return None
            x.append(number)
        return torch.tensor(x, dtype=torch.double)


def single_value(distribution: BaseDistribution) -> Any:
    """The value of a distribution that has only one."""
    if isinstance(distribution, CategoricalDistribution):
        return distribution.choices[0]
    assert isinstance(distribution, FloatDistribution | IntDistribution)
    return distribution.low


def _column(name: str, distribution: BaseDistribution) -> _Column:
    if isinstance(distribution, CategoricalDistribution):
        choices = distribution.choices
        values = [float(number) for number in range(len(choices))]
        return _Column(0.0, values[-1], False, values, True, lambda v: choices[round(v)])
    if not isinstance(distribution, FloatDistribution | IntDistribution):
        raise NotSupportedError(
            f"Parameter {name!r} has a {type(distribution).__name__}; DelaySampler takes float, "
            "int and categorical distributions."
        )
    whole = isinstance(distribution, IntDistribution)
    low, high, log = distribution.low, distribution.high, distribution.log
    step = distribution.step
    if step is None:
        return _Column(low, high, log, None, False, lambda v: min(max(v, low), high))
    count = round((high - low) / step) + 1

    def nearest(number: float) -> Any:
        place = min(max(round((number - low) / step), 0), count - 1)
        value = min(low + place * step, high)
        return int(value) if whole else float(value)

    listed = None
    if count <= MAX_LISTED:
        listed = [float(nearest(low + place * step)) for place in range(count)]
    return _Column(float(low), float(high), log, listed, False, nearest)
