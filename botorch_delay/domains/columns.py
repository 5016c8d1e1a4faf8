"""The columns of a domain as named parameters: the translation between points and values."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from botorch_delay.domains.parameters import Choice, Float, Int, Parameter
from botorch_delay.domains.values import restored, text_of
from botorch_delay.exceptions import InputError, InputTypeError

_KINDS: dict[str, type[Parameter]] = {kind.__name__: kind for kind in (Float, Int, Choice)}


@dataclass(frozen=True)
class Columns:
    """Named parameters, in order, and the columns of numbers that stand for their values.

    A parameter with a single value takes no column.
    """

    parameters: Mapping[str, Parameter]

    @classmethod
    def build(cls, records: Iterable[Mapping[str, Any]]) -> Columns:
        """From the result of :meth:`describe`; errors of any type if that is malformed."""
        made = {}
        for record in records:
            given = dict(record)
            kind, name = given.pop("kind"), given.pop("name")
            if "values" in given:
                given["values"] = restored(given["values"])
            made[name] = _KINDS[kind](**given)
        return cls(made)

    def describe(self) -> list[dict[str, Any]]:
        """The name, kind and arguments of every parameter, in order."""
        return [{"name": name, **p.describe()} for name, p in self.parameters.items()]

    @cached_property
    def varying(self) -> dict[str, Parameter]:
        """The parameters that have a column, in order."""
        return {name: p for name, p in self.parameters.items() if p.count > 1}

    @cached_property
    def named(self) -> bool:
        """Whether they are of a :class:`Space`, so that values may differ from the numbers."""
        return not any(type(p) is Parameter for p in self.parameters.values())

    @cached_property
    def units(self) -> dict[str, str]:
        """The units, by name, of the parameters that have one."""
        return {name: p.unit for name, p in self.parameters.items() if p.unit is not None}

    def params(self, x: Tensor) -> dict[str, Any]:
        """The value of every parameter at a point, ``d``."""
        return self.table(x.unsqueeze(0))[0]

    def table(self, X: Tensor) -> list[dict[str, Any]]:
        """The values of every parameter at each point, ``n x d``: a dict for each."""
        own = dict(zip(self.varying, X.T.tolist(), strict=True))
        values = {}
        for name, p in self.parameters.items():
            numbers = own[name] if name in own else p.listed() * len(X)
            values[name] = [p.decode(number) for number in numbers]
        return [dict(zip(values, row, strict=True)) for row in zip(*values.values(), strict=True)]

    def words(self, params: Mapping[str, Any]) -> str:
        """Values of all parameters as text: ``heat = 25 °C, dose = 0.1``."""
        texts = []
        for name, value in params.items():
            rough = isinstance(value, float) and math.isinf(self.parameters[name].count)
            text = f"{value:.6g}" if rough and value % 1 else text_of(value)
            texts.append(f"{name} = {text} {self.units.get(name, '')}".rstrip())
        return ", ".join(texts)

    def numbers(self, params: Mapping[str, Any], *, outside: bool = False) -> list[float]:
        """The columns' numbers for values of all parameters; ``outside`` as in ``Parameter``."""
        if not isinstance(params, Mapping):
            raise InputTypeError(
                f"params must map each of {list(self.parameters)} to its value, got "
                f"{type(params).__name__}."
            )
        missing = [name for name in self.parameters if name not in params]
        unknown = [name for name in params if name not in self.parameters]
        if missing or unknown:
            both = {"missing": missing, "unknown": unknown}
            what = ", ".join(f"{names} {word}" for word, names in both.items() if names)
            raise InputError(
                f"Give a value for each of {list(self.parameters)}, and for nothing else: {what}."
            )
        found = {
            name: p.encode(params[name], name, outside=outside)
            for name, p in self.parameters.items()
        }
        return [found[name] for name in self.varying]

    @cached_property
    def stepped(self) -> dict[int, Float | Int]:
        """Parameters with finitely many values, but too many to be listed, by column."""
        return {
            dim: p
            for dim, p in enumerate(self.varying.values())
            if isinstance(p, Float | Int) and p.column is None and math.isfinite(p.count)
        }

    def rounded(self, X: Tensor) -> Tensor:
        """Points, ``n x d``, with stepped columns rounded to their values; gradients are kept."""
        for dim, p in self.stepped.items():
            values = X.new_tensor(p.rounded(X[:, dim].detach().cpu().double().numpy()))
            X = X.clone()
            X[:, dim] = values + (X[:, dim] - X[:, dim].detach())
        return X


def are_feasible(columns: Columns, feasible: Callable[[dict[str, Any]], bool], X: Tensor) -> Tensor:
    """A user's test of parameters, made for each point, ``n x d`` to a bool tensor ``n``."""
    said = [feasible(params) for params in columns.table(X)]
    for answer in said:
        if not isinstance(answer, bool | np.bool_):
            raise InputTypeError(
                f"feasible must return True or False for a dict of parameters, got {answer!r}."
            )
    return torch.tensor(said, dtype=torch.bool, device=X.device)
