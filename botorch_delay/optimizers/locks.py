"""One thread at a time in an object."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any, TypeVar, cast

from botorch_delay.gp.accuracy import heard

F = TypeVar("F", bound=Callable[..., Any])


class Lock:
    """A reentrant lock that objects with copies can own: each copy gets one of its own.

    Attributes:
        heard: warnings of lost accuracy that calls of the object have given.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self.heard: list[str] = []

    def __deepcopy__(self, memo: dict[int, Any]) -> Lock:
        return Lock()

    def __reduce__(self) -> tuple[type[Lock], tuple[()]]:
        return Lock, ()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def exclusive(method: F) -> F:
    """A method during which no other thread is in any such method of the same object.

    The object has its :class:`Lock` as ``_lock``. Where accuracy is lost it warns once in all.
    """

    @functools.wraps(method)
    def alone(self: Any, *arguments: Any, **options: Any) -> Any:
        with self._lock:
            before = heard.set(self._lock.heard)
            try:
                return method(self, *arguments, **options)
            finally:
                heard.reset(before)

    return cast(F, alone)
