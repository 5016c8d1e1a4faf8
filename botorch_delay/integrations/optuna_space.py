"""Which parameters of an Optuna study are chosen together, and what to warn of."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.search_space import IntersectionSearchSpace, intersection_search_space
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from botorch_delay.domains.parameters import Choice, Float, Int
from botorch_delay.exceptions import InputError, InputTypeError, NotSupportedError

ENOUGH_TRIALS = 10  # completed trials before a warning of a parameter that none of them has

NONE_SHARED = (
    "No parameter with more than one value is in all completed trials, so TPE chooses each on its "
    "own; if you do not want that, pass search_space to DelaySampler."
)
SEVERAL_RANGES = (
    "The completed trials have different ranges of {0}, each of which TPE chooses on its own from "
    "now on. To choose them with the others, pass search_space with the present ranges to "
    "DelaySampler; results outside of them still count."
)
NOT_IN_ALL = (
    "Not all completed trials have {0}; TPE chooses each of these on its own. To choose them "
    "together with the others, pass search_space to DelaySampler, which may name conditional "
    "parameters as well."
)
NEVER_SUGGESTED = (
    "No completed trial has {0} of search_space. If the objective suggests it only under "
    "conditions, it may still come; otherwise use the objective's names in search_space, as TPE "
    "chooses each parameter that is not in it on its own."
)
OTHER_RANGES = (
    "No completed trial has the range of {0} that search_space gives. Unless the range depends on "
    "other parameters, use the objective's in search_space, as values that the objective does not "
    "allow are replaced by TPE's."
)
CONSTRAINED = "Optuna's constraints are ignored: to keep trials from being used, prune them."


def checked_space(search_space: Any) -> dict[str, BaseDistribution]:
    """A user's ``search_space``, without the parameters that have a single value."""
    if not isinstance(search_space, Mapping) or not all(
        isinstance(name, str) and isinstance(distribution, BaseDistribution)
        for name, distribution in search_space.items()
    ):
        raise InputTypeError(
            "search_space must map names to distributions, as in "
            "{'x': optuna.distributions.FloatDistribution(0, 1)}."
        )
    return varying_in(search_space)


def shared_by_all(study: Study, shared: IntersectionSearchSpace) -> dict[str, BaseDistribution]:
    """The parameters that all trials with a usable value have; before any, that some trial has.

    ``shared`` is the study's own, which remembers the trials that it has seen.
    """
    found = shared.calculate(study)
    completed = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    if len(used := usable(study)) < len(completed):
        found = intersection_search_space(used)
    if not found:
        found = {} if used else _union(study.get_trials(deepcopy=False))
    return varying_in(found)


def space_warning(
    completed: Sequence[FrozenTrial], space: Mapping[str, BaseDistribution], *, given: bool
) -> str | None:
    """A warning about the search space once there are results; None if there is no need.

    Args:
        completed: the trials with a usable value.
        space: the parameters that are chosen together.
        given: whether the user has given ``search_space``.
    """
    if not completed:
        return None
    if given:
        seen = [item for trial in completed for item in trial.distributions.items()]
        unseen = sorted(space.keys() - {name for name, _ in seen})
        other = [item[0] for item in space.items() if item not in seen]
        if not other or len(completed) < ENOUGH_TRIALS:
            return None
        message, names = (NEVER_SUGGESTED, unseen) if unseen else (OTHER_RANGES, other)
        return message.format(", ".join(names))
    left_out = sorted(varying_in(completed[-1].distributions).keys() - space.keys())
    in_all = [name for name in left_out if all(name in t.distributions for t in completed)]
    if in_all:
        return SEVERAL_RANGES.format(", ".join(in_all))
    if not space:
        return NONE_SHARED
    return NOT_IN_ALL.format(", ".join(left_out)) if left_out else None


def has_constraints(completed: Iterable[FrozenTrial]) -> bool:
    """Whether a trial has values of constraints, all in one attribute or each in its own."""
    return any(
        key.split(":")[0] == "constraints" for trial in completed for key in trial.system_attrs
    )


def usable(study: Study) -> list[FrozenTrial]:
    """The completed trials whose value can be used: it must be finite."""
    completed = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    return [trial for trial in completed if math.isfinite(trial.values[0])]


def varying_in(search_space: Mapping[str, BaseDistribution]) -> dict[str, BaseDistribution]:
    """The parameters with more than one value, sorted by name."""
    return {name: d for name, d in sorted(search_space.items()) if not d.single()}


def _union(trials: Iterable[FrozenTrial]) -> dict[str, BaseDistribution]:
    """The parameters that some trial has, without those whose distributions differ."""
    found: dict[str, BaseDistribution] = {}
    disputed: set[str] = set()
    for trial in trials:
        for name, distribution in trial.distributions.items():
            if found.setdefault(name, distribution) != distribution:
                disputed.add(name)
    return {name: d for name, d in found.items() if name not in disputed}


def as_parameter(name: str, distribution: BaseDistribution) -> Float | Int | Choice:
    """The parameter of a :class:`Space` for a distribution."""
    if not isinstance(distribution, FloatDistribution | IntDistribution | CategoricalDistribution):
        raise NotSupportedError(
            f"Parameter {name!r} has a {type(distribution).__name__}; DelaySampler takes float, "
            "int and categorical distributions."
        )
    try:
        if isinstance(distribution, CategoricalDistribution):
            return Choice(distribution.choices)
        kind: Any = Int if isinstance(distribution, IntDistribution) else Float
        return kind(**{key: getattr(distribution, key) for key in ("low", "high", "log", "step")})
    except InputError as error:
        raise type(error)(f"Parameter {name!r}: {error}") from error
