"""Ray Tune's search spaces as boxes, and configurations as their points."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from botorch_delay.boxes import BoxDomain
from botorch_delay.exceptions import (
    InputError,
    InputTypeError,
    MissingExtraError,
    NotSupportedError,
)
from botorch_delay.integrations.spaces import Choice, Number, Space

try:
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
except ImportError as error:
    raise MissingExtraError(
        "Search spaces of Ray Tune need Ray: pip install 'botorch-delay[ray]'."
    ) from error

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
        self._config = dict(config)
        fixed, searched, grids = parse_spec_vars(self._config)
        _refuse(fixed, searched, grids)
        parameters: dict[str, Number | Choice] = {}
        self._keys: dict[str, Keys] = {}
        for keys, domain in searched:
            name = _name(keys)
            if name in parameters:
                raise InputError(f"Two parameters are called {name}; rename one.")
            try:
                parameters[name] = _convert(domain)
            except (InputError, NotSupportedError) as error:
                raise type(error)(f"{name}: {error}") from error
            self._keys[name] = keys
        self._space = Space(parameters)
        self._names = {*self._keys, *(_name(keys) for keys, _ in _leaves(self._config))}

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
