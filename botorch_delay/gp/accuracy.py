"""One warning where accuracy is lost, however many computations lose it."""

from __future__ import annotations

import warnings
from contextvars import ContextVar

from botorch_delay.exceptions import NumericsWarning

# What the object has warned of whose call is under way; None outside of such a call.
warned: ContextVar[list[str] | None] = ContextVar("warned", default=None)


def warn_lost_accuracy(message: str, stacklevel: int = 2) -> None:
    """A :class:`NumericsWarning`, unless this optimizer has given one before."""
    known = warned.get()
    if known is not None:
        if known:
            return
        known.append(message)
    warnings.warn(message, NumericsWarning, stacklevel=stacklevel + 1)
