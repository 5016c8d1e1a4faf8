"""Optuna's distributions as a box, and points as parameters."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
    distribution_to_json,
)
from torch import Tensor

from botorch_delay.domains.box import BoxDomain
from botorch_delay.exceptions import InputError, NotSupportedError
from botorch_delay.integrations.spaces import Choice, Number, Space


class OptunaSpace:
    """A search space of Optuna's as a box, one column per parameter, in the order of the names.

    Args:
        distributions: by name; none of them with a single value.

    Raises:
        NotSupportedError: for a distribution that is neither float, int nor categorical.
    """

    def __init__(self, distributions: Mapping[str, BaseDistribution]) -> None:
        self._distributions = {name: distributions[name] for name in sorted(distributions)}
        self._space = Space({name: _parameter(name, d) for name, d in self._distributions.items()})

    @property
    def domain(self) -> BoxDomain:
        """The box."""
        return self._space.domain

    def describe(self) -> str:
        """The distributions as one line, equal where they are."""
        return json.dumps(
            {name: distribution_to_json(d) for name, d in self._distributions.items()}
        )

    def params(self, x: Tensor) -> dict[str, Any]:
        """The parameters of a point, ``d``."""
        return self._space.decode(x)

    def point(self, params: Mapping[str, Any]) -> Tensor | None:
        """The point of some parameters, ``d``; None if they are not all there, or have none.

        Numbers may lie outside of their distributions, which a study can change as it goes on.
        """
        x = []
        for name, parameter in self._space.parameters.items():
            if name not in params:
                return None
            value = params[name]
            try:
                number = parameter.encode(value, name)
            except InputError:
                if isinstance(parameter, Choice) or not isinstance(value, int | float):
                    return None
                number = float(value)
                if not math.isfinite(number) or (parameter.log and number <= 0.0):
                    return None
            x.append(number)
        return self.domain.bounds.new_tensor(x)


def single_value(distribution: BaseDistribution) -> Any:
    """The value of a distribution that has only one."""
    if isinstance(distribution, CategoricalDistribution):
        return distribution.choices[0]
    assert isinstance(distribution, FloatDistribution | IntDistribution)
    return distribution.low


def _parameter(name: str, distribution: BaseDistribution) -> Number | Choice:
    if isinstance(distribution, CategoricalDistribution):
        return Choice(distribution.choices)
    if not isinstance(distribution, FloatDistribution | IntDistribution):
        raise NotSupportedError(
            f"Parameter {name!r} has a {type(distribution).__name__}; DelaySampler takes float, "
            "int and categorical distributions."
        )
    d, whole = distribution, isinstance(distribution, IntDistribution)
    return Number(d.low, d.high, log=d.log, step=d.step, whole=whole)
