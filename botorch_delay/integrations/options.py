"""Options of the optimizer underneath an engine, which keeps the trials."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from botorch_delay.elimination.rounds import OPEN_ENDED
from botorch_delay.exceptions import InputTypeError, NotSupportedError
from botorch_delay.optimizers import BPEDelayOptimizer
from botorch_delay.optimizers.exploit import Exploit, WithinBudget
from botorch_delay.optimizers.rules import as_rule

_OWN = {"domain", "horizon", "seed", "maximize"}


def engine_options(options: Mapping[str, Any], horizon: int | None) -> dict[str, Any]:
    """Options of :class:`BPEDelayOptimizer` with an engine's defaults filled in.

    A rule does not repeat pending points unless ``Exploit`` says so: to an engine an equal trial
    looks like a mistake. Without a horizon rounds grow by a factor of 2.

    Args:
        options: as the user gave them.
        horizon: T, or None.

    Raises:
        InputTypeError: if there is no such option.
        NotSupportedError: for a regret budget, which depends on when answers came; engines do not
            tell.
    """
    known = inspect.signature(BPEDelayOptimizer).parameters.keys() - _OWN
    unknown = sorted(options.keys() - known)
    if unknown:
        raise InputTypeError(
            f"BPEDelayOptimizer has no option {unknown[0]!r}; there are {', '.join(sorted(known))}."
        )
    exploit = options.get("exploit", Exploit(repeat_pending=False))
    if isinstance(exploit, WithinBudget):
        raise NotSupportedError("WithinBudget needs ask and tell; leave it out here.")
    if not isinstance(exploit, Exploit | None):
        exploit = Exploit(as_rule(exploit, "exploit"), repeat_pending=False)
    rounds = OPEN_ENDED if horizon is None else None
    return {"rounds": rounds, **options, "exploit": exploit}
