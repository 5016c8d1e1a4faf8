"""How often the long tests repeat what they do; ``pytest --scale small`` for a short pass."""

from collections.abc import Iterable
from typing import Any

import pytest

small = False  # set by conftest before any test is collected


def repeats(full: int, few: int) -> int:
    """How many repeats: ``full``, or ``few`` with ``--scale small``."""
    return few if small else full


def some(values: Iterable[Any], few: int) -> list[Any]:
    """Parameters: the first few for every run, the others for ``-m heavy`` on the full scale."""
    first = list(values)
    others = [] if small else first[few:]
    return first[:few] + [pytest.param(value, marks=pytest.mark.heavy) for value in others]
