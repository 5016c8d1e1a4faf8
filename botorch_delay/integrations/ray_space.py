"""Ray Tune's search spaces as boxes, and configurations as their points."""

from __future__ import annotations

import copy
import math
import numbers
from collections.abc import Iterator, Mapping
from typing import Any

from ray.tune.search.sample import (
    Categorical,
    Domain,
    Float,
    Integer,
    LogUniform,
    Quantized,
    Uniform,
)
from ray.tune.search.variant_generator import assign_value, parse_spec_vars
from torch import Tensor

from botorch_delay.domains.box import BoxDomain
from botorch_delay.exceptions import InputError, InputTypeError, NotSupportedError, StorageError
from botorch_delay.integrations.spaces import Choice, Number, Space

_FUNCTION = "__fn_ph"  # what Tune puts in the place of sample_from before it calls a searcher

Keys = tuple[Any, ...]


class TuneSpace:
    """What Tune calls ``param_space``: parameters to search, at any depth, among fixed values.

    Args:
        config: Tune's ``param_space``.

    Attributes:
        domain: the box, one column for each parameter that can vary, named by its keys joined by
            slashes.

    Raises:
        InputError: if a parameter is of no kind that can be searched, or none is.
        NotSupportedError: for ``grid_search``, ``sample_from``, and spaces inside a ``choice``.

    Example:
        >>> from ray import tune
        >>> space = TuneSpace({"net": {"width": tune.randint(1, 4)}, "epochs": 5})
        >>> x = space.encode({"net": {"width": 3}})
        >>> x.tolist(), space.fill(x)
        ([3.0], {'net': {'width': 3}, 'epochs': 5})
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        fixed, searched, grids = parse_spec_vars(dict(config))
        _refuse(fixed, searched, grids)
        parameters: dict[Keys, Number | Choice] = {}
        for keys, domain in searched:
            try:
                parameters[keys] = _convert(domain)
            except (InputError, NotSupportedError) as error:
                raise type(error)(f"{_name(keys)}: {error}") from error
        self._set(config, parameters)

    def _set(self, config: Mapping[str, Any], parameters: Mapping[Keys, Number | Choice]) -> None:
        self._config = dict(config)
        self._keys: dict[str, Keys] = {}
        for keys in parameters:
            name = _name(keys)
            if name in self._keys:
                raise InputError(f"Two parameters are called {name}; rename one.")
            self._keys[name] = keys
        self._space = Space({_name(keys): p for keys, p in parameters.items()})
        self._names = {*self._keys, *(_name(keys) for keys, _ in _leaves(self._config))}

    def describe(self) -> dict[str, Any] | None:
        """The space as plain values; None if it holds fixed values of other kinds.

        ``Tuner`` puts placeholders for such values before a searcher sees them.
        """
        parameters = [
            {"keys": list(self._keys[name]), "kind": type(parameter).__name__, **vars(parameter)}
            for name, parameter in self._space.parameters.items()
        ]
        try:
            return {"config": _pack(self._config), "parameters": _pack(parameters)}
        except TypeError:
            return None

    @classmethod
    def revive(cls, record: Mapping[str, Any]) -> TuneSpace:
        """The space that :meth:`describe` gave.

        Raises:
            StorageError: if the record is malformed.
        """
        space = cls.__new__(cls)
        kinds = {"Number": Number, "Choice": Choice}
        try:
            parameters = {}
            for described in _unpack(record["parameters"]):
                keys = tuple(described.pop("keys"))
                parameters[keys] = kinds[described.pop("kind")](**described)
            space._set(_unpack(record["config"]), parameters)
        except (AttributeError, LookupError, TypeError, ValueError, InputError) as error:
            raise StorageError(f"The stored search space is malformed: {error!r}.") from error
        return space

    @property
    def domain(self) -> BoxDomain:
        """The box."""
        return self._space.domain

    def fill(self, x: Tensor) -> dict[str, Any]:
        """The configuration at a point (``d``): Tune's own, with a value for every parameter."""
        config = copy.deepcopy(self._config)
        for name, value in self._space.decode(x).items():
            assign_value(config, self._keys[name], copy.deepcopy(value))
        return config

    def encode(self, config: Mapping[str, Any]) -> Tensor:
        """The point (``d``) of a configuration, nested or with its keys joined by slashes.

        Fixed values may be left out.

        Raises:
            InputError: if a parameter is missing or unknown, or a value is not allowed.
        """
        if not isinstance(config, Mapping):
            raise InputTypeError(f"A configuration must be a dict, got {type(config).__name__}.")
        values: dict[str, Any] = {}
        for keys, value in _branches(config):
            name = _name(keys)
            if name in self._keys:
                values[name] = value
        for keys, _ in _leaves(config):
            name = _name(keys)
            if name not in self._names and not any(name.startswith(f"{n}/") for n in values):
                raise InputError(f"The configuration has {name!r}, which the space does not have.")
        return self._space.encode(values)


def _refuse(
    fixed: list[tuple[Keys, Any]], searched: list[tuple[Keys, Domain]], grids: list[Any]
) -> None:
    """Refuse what Tune draws or goes through by itself."""
    if grids:
        raise NotSupportedError(
            f"{_name(grids[0][0])}: grid_search is no space to search; use tune.choice, or leave "
            "out search_alg."
        )
    functions = [keys[:-1] for keys, value in fixed if _is_function(value)]
    functions += [keys for keys, domain in searched if domain.is_function()]
    if functions:
        raise NotSupportedError(
            f"{_name(functions[0])}: what sample_from draws is not known to the searcher; compute "
            "it from the other parameters in the trainable, or use tune.uniform or the like."
        )


def _convert(domain: Domain) -> Number | Choice:
    sampler = domain.get_sampler()
    step = None
    if isinstance(sampler, Quantized):
        step, sampler = sampler.q, sampler.sampler
    log = isinstance(sampler, LogUniform)
    if not log and not isinstance(sampler, Uniform):
        raise NotSupportedError(
            f"a distribution without bounds ({type(sampler).__name__.strip('_')}) cannot be "
            "searched; use tune.uniform or tune.loguniform."
        )
    if isinstance(domain, Categorical):
        if any(_holds_space(value) for value in domain.categories):
            raise NotSupportedError(
                "spaces inside a choice are not supported; put their parameters beside it."
            )
        return Choice(domain.categories)
    if not isinstance(domain, Float | Integer):
        raise NotSupportedError(f"parameters of type {type(domain).__name__} are not supported.")
    low, high = domain.lower, domain.upper
    whole = isinstance(domain, Integer)
    if whole and step in (None, 1):
        high -= 1  # Tune's upper ends are exclusive here
    elif step is not None and math.isfinite(low) and math.isfinite(high):
        # Multiples of the step; rounding must not lose the ones at the ends.
        low, high = math.ceil(low / step - 1e-9) * step, math.floor(high / step + 1e-9) * step
    return Number(low, high, log=log, step=step, whole=whole)


def _branches(config: Any, keys: Keys = ()) -> Iterator[tuple[Keys, Any]]:
    """Everything in a nested configuration by its keys, branches before what is in them."""
    if keys:
        yield keys, config
    items: Any = ()
    if isinstance(config, Mapping):
        items = config.items()
    elif isinstance(config, list | tuple):
        items = enumerate(config)
    for key, value in items:
        yield from _branches(value, (*keys, key))


def _leaves(config: Any) -> Iterator[tuple[Keys, Any]]:
    """What a nested configuration holds, without its branches."""
    for keys, value in _branches(config):
        if not isinstance(value, Mapping | list | tuple):
            yield keys, value


def _is_function(value: Any) -> bool:
    return isinstance(value, str) and value == _FUNCTION


def _holds_space(value: Any) -> bool:
    return any(
        isinstance(leaf, Domain) or _is_function(leaf) for _, leaf in _leaves({"value": value})
    )


def _name(keys: Keys) -> str:
    return "/".join(map(str, keys))


def _pack(value: Any) -> Any:
    """A nested configuration as JSON; searched parameters, whose values come later, as None.

    Raises:
        TypeError: if it holds anything but plain values.
    """
    if isinstance(value, Domain):
        return None
    if isinstance(value, Mapping):
        return {"dict": [[_pack(key), _pack(item)] for key, item in value.items()]}
    if isinstance(value, tuple):
        return {"tuple": [_pack(item) for item in value]}
    if isinstance(value, list):
        return [_pack(item) for item in value]
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value) if math.isfinite(value) else {"float": str(float(value))}
    raise TypeError(f"a {type(value).__name__} is no plain value")


def _unpack(record: Any) -> Any:
    """What :func:`_pack` was given."""
    if isinstance(record, list):
        return [_unpack(item) for item in record]
    if not isinstance(record, dict):
        return record
    ((kind, held),) = record.items()
    if kind == "float":
        return float(held)
    if kind == "tuple":
        return tuple(_unpack(held))
    if kind != "dict":
        raise ValueError(f"unknown kind {kind!r}")
    return {_unpack(key): _unpack(item) for key, item in held}
