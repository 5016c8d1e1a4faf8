"""How often the long tests repeat what they do; ``pytest --scale small`` for a short pass."""

small = False  # set by conftest before any test is collected


def repeats(full: int, few: int) -> int:
    """A number of repeats."""
    return few if small else full
