"""Ray Tune's search spaces as boxes, and configurations as their points."""

from __future__ import annotations

import ast
import copy
import math
from collections.abc import Iterator, Mapping
from typing import Any

from ray.tune.search import sample
from ray.tune.search.variant_generator import assign_value, parse_spec_vars
from torch import Tensor

from botorch_delay.domains.space import Choice, Float, Int, Space
from botorch_delay.exceptions import InputError, InputTypeError, NotSupportedError, StorageError

_FUNCTION = "__fn_ph"  # what Tune puts in the place of sample_from before it calls a searcher
_KINDS: dict[str, Any] = {kind.__name__: kind for kind in (Float, Int, Choice)}

Keys = tuple[Any, ...]


class TuneSpace(Space):
    """What Tune calls ``param_space``: parameters to search, at any depth, among fixed values.

    Its columns are named by the keys of the parameters, joined by slashes.

    Args:
        config: the configuration, with anything in the places of the parameters.
        searched: the parameters by their keys in the configuration, from the outermost.

    Raises:
        InputError: if two parameters have the same name, or none can vary.

    Example:
        >>> from ray import tune
        >>> space = TuneSpace.from_tune({"net": {"width": tune.randint(1, 4)}, "epochs": 5})
        >>> x = space.encode({"net": {"width": 3}})
        >>> x.tolist(), space.decode(x)
        ([3.0], {'net': {'width': 3}, 'epochs': 5})
    """

    def __init__(
        self, config: Mapping[str, Any], searched: Mapping[Keys, Float | Int | Choice]
    ) -> None:
        self._config = dict(config)
        self._keys: dict[str, Keys] = {}
        for keys in searched:
            name = _name(keys)
            if name in self._keys:
                raise InputError(f"Two parameters are called {name}; rename one.")
            self._keys[name] = keys
        super().__init__({name: searched[keys] for name, keys in self._keys.items()})

    @classmethod
    def from_tune(cls, config: Mapping[str, Any]) -> TuneSpace:
        """The space of a ``param_space``.

        Raises:
            InputError: if a parameter has no bounds or values, or none can vary.
            NotSupportedError: for ``grid_search``, ``sample_from``, and spaces in a ``choice``.
        """
        fixed, searched, grids = parse_spec_vars(dict(config))
        if grids:
            raise NotSupportedError(
                f"{_name(grids[0][0])}: grid_search cannot be searched here; use tune.choice, or "
                "leave out search_alg."
            )
        functions = [keys[:-1] for keys, value in fixed if _is_function(value)]
        functions += [keys for keys, domain in searched if domain.is_function()]
        if functions:
            raise NotSupportedError(
                f"{_name(functions[0])}: what sample_from draws is not known to the searcher; "
                "compute it from the other parameters in the trainable, or use tune.uniform or "
                "the like."
            )
        parameters = {}
        for keys, domain in searched:
            try:
                parameters[keys] = _parameter(domain)
            except (InputError, NotSupportedError) as error:
                raise type(error)(f"{_name(keys)}: {error}") from error
        return cls(config, parameters)

    @classmethod
    def from_literal(cls, text: str) -> TuneSpace:
        """The space that :meth:`to_literal` described.

        Raises:
            StorageError: if the text is malformed.
        """
        try:
            config, described = ast.literal_eval(text)
            return cls(config, {keys: _KINDS[k](**args) for keys, (k, args) in described.items()})
        except Exception as error:  # whatever a malformed text leads to
            raise StorageError(f"The stored search space is malformed: {error!r}.") from error

    def to_literal(self) -> str | None:
        """The space as a Python literal; None if it holds values that have none.

        ``Tuner`` puts placeholders for such values before a searcher sees them.
        """
        config = copy.deepcopy(self._config)
        for keys in self._keys.values():
            assign_value(config, keys, None)
        kinds = {self._keys[n]: (type(p).__name__, vars(p)) for n, p in self.parameters.items()}
        text = repr((config, kinds))
        try:
            ast.literal_eval(text)
        except (SyntaxError, ValueError):
            return None
        return text

    def decode(self, x: Tensor) -> dict[str, Any]:
        """The configuration at a point (``d``): Tune's own, with a value for every parameter."""
        config = copy.deepcopy(self._config)
        for name, value in super().decode(x).items():
            assign_value(config, self._keys[name], copy.deepcopy(value))
        return config

    def encode(self, config: Mapping[str, Any], *, outside: bool = False) -> Tensor:
        """The point (``d``) of a configuration, nested or with its keys joined by slashes.

        Fixed values may be left out; the rest is as in :meth:`Space.encode`.
        """
        if not isinstance(config, Mapping):
            raise InputTypeError(f"A configuration must be a dict, got {type(config).__name__}.")
        found = {_name(keys): value for keys, value in _nodes(config)}
        known = {*self._keys, *(_name(keys) for keys, _ in _nodes(self._config))}
        for name in found:  # a choice may have values with keys of their own
            if name not in known and not any(name.startswith(f"{n}/") for n in self._keys):
                raise InputError(f"The configuration has {name!r}, which the space does not have.")
        values = {name: found[name] for name in self._keys if name in found}
        return super().encode(values, outside=outside)


def _parameter(domain: sample.Domain) -> Float | Int | Choice:
    sampler = domain.get_sampler()
    step = None
    if isinstance(sampler, sample.Quantized):
        step, sampler = sampler.q, sampler.sampler
    log = isinstance(sampler, sample.LogUniform)
    if not log and not isinstance(sampler, sample.Uniform):
        raise NotSupportedError(
            f"a distribution without bounds ({type(sampler).__name__.strip('_')}) cannot be "
            "searched; use tune.uniform or tune.loguniform."
        )
    if isinstance(domain, sample.Categorical):
        leaves = [leaf for _, leaf in _nodes({"values": domain.categories})]
        if any(isinstance(leaf, sample.Domain) or _is_function(leaf) for leaf in leaves):
            raise NotSupportedError(
                "spaces inside a choice are not supported; put their parameters beside it."
            )
        return Choice(domain.categories)
    if not isinstance(domain, sample.Float | sample.Integer):
        raise NotSupportedError(f"parameters of type {type(domain).__name__} are not supported.")
    low, high = domain.lower, domain.upper
    whole = isinstance(domain, sample.Integer)
    if whole and step in (None, 1):
        high -= 1  # Tune's upper ends are exclusive here
    elif step is not None and math.isfinite(low) and math.isfinite(high):
        # Multiples of the step; rounding must not lose the ones at the ends.
        low, high = math.ceil(low / step - 1e-9) * step, math.floor(high / step + 1e-9) * step
    return Int(low, high, log, int(step or 1)) if whole else Float(low, high, log, step)


def _nodes(config: Any, keys: Keys = ()) -> Iterator[tuple[Keys, Any]]:
    """Everything in a nested configuration by its keys: mappings, sequences, what they hold."""
    items: Any = ()
    if isinstance(config, Mapping):
        items = config.items()
    elif isinstance(config, list | tuple):
        items = enumerate(config)
    for key, value in items:
        yield (*keys, key), value
        yield from _nodes(value, (*keys, key))


def _is_function(value: Any) -> bool:
    return isinstance(value, str) and value == _FUNCTION


def _name(keys: Keys) -> str:
    return "/".join(map(str, keys))
