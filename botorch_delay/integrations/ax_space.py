"""Ax's search spaces as boxes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from ax.core.parameter import ChoiceParameter, FixedParameter, Parameter, RangeParameter
from ax.core.parameter import ParameterType as Type
from ax.core.parameter_constraint import ParameterConstraint
from ax.core.search_space import SearchSpace
from torch import Tensor

from botorch_delay.domains.box import BoxDomain
from botorch_delay.exceptions import NotSupportedError
from botorch_delay.integrations.spaces import Choice, Number, Space


class AxSpace:
    """A search space of Ax as a box, and back.

    Ranges on a linear or logarithmic scale, whole numbers, ordered and unordered choices, fixed
    parameters, and linear inequalities between numbers.

    Args:
        search_space: Ax's.

    Attributes:
        domain: the box, one column for each parameter that can vary.

    Raises:
        NotSupportedError: for any other kind of parameter or constraint.
        InputError: if no parameter can vary, or no point satisfies the constraints.
    """

    def __init__(self, search_space: SearchSpace) -> None:
        self._parameters = dict(search_space.parameters)
        self._space = Space({name: _translate(p) for name, p in self._parameters.items()})
        plain = self._space.domain
        logs = {n for n, p in self._parameters.items() if getattr(p, "log_scale", False)}
        self.domain = BoxDomain(
            plain.bounds,
            plain.discrete_dims,
            plain.cat_dims,
            constraints=[self._constrain(c) for c in search_space.parameter_constraints],
            names=plain.names,
            log_dims=[i for i, name in enumerate(plain.names) if name in logs],
        )

    def decode(self, x: Tensor) -> dict[str, Any]:
        """The parameters at a point of the box (``d``), as Ax's arms have them."""
        values = self._space.decode(x)
        return {name: self._parameters[name].cast(value) for name, value in values.items()}

    def encode(self, values: Mapping[str, Any]) -> Tensor:
        """The point of the box (``d``) for the parameters of an arm.

        Raises:
            InputError: if a parameter is missing or unknown, or a value is not allowed.
        """
        return self._space.encode(values)

    def _constrain(self, constraint: ParameterConstraint) -> tuple[Tensor, Tensor, float]:
        """A constraint in BoTorch's form."""
        if constraint.is_equality:
            raise NotSupportedError(f"{constraint} is an equality; inequalities can be searched.")
        names = self._space.domain.names
        for name in constraint.constraint_dict:
            whole = self._parameters[name].parameter_type is Type.INT
            if whole and self._space.parameters[name].column() is None:
                raise NotSupportedError(
                    f"{constraint} is about {name!r}, a whole number with too many values to be "
                    "searched one by one; make it a float."
                )
        columns = [names.index(name) for name in constraint.constraint_dict]
        weights = [-float(weight) for weight in constraint.constraint_dict.values()]
        like = self._space.domain.bounds
        return (
            torch.tensor(columns, dtype=torch.long),
            like.new_tensor(weights),
            -float(constraint.bound),
        )


def _translate(parameter: Parameter) -> Number | Choice:
    kinds = {
        "a fidelity": "is_fidelity",
        "hierarchical": "is_hierarchical",
        "disabled": "is_disabled",
        "a task": "is_task",
        "on a logit scale": "logit_scale",
    }
    for kind, attribute in kinds.items():
        if getattr(parameter, attribute, False):
            raise NotSupportedError(f"Parameter {parameter.name!r} is {kind}, which has no column.")
    if isinstance(parameter, RangeParameter):
        return Number(
            parameter.lower,
            parameter.upper,
            log=parameter.log_scale,
            whole=parameter.parameter_type is Type.INT,
        )
    if isinstance(parameter, ChoiceParameter):
        return Choice(parameter.values, ordered=parameter.is_ordered)
    if isinstance(parameter, FixedParameter):
        return Choice([parameter.value])
    raise NotSupportedError(
        f"Parameter {parameter.name!r} is a {type(parameter).__name__}; ranges, choices and fixed "
        "parameters can be searched."
    )
