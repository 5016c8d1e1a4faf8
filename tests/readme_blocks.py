"""The README's code, by language, and which of it needs an engine."""

from __future__ import annotations

import re
from pathlib import Path

README = (Path(__file__).parent.parent / "README.md").read_text()
# Not among what the tests need: sections that import one run where it is installed.
ENGINES = ("ax", "ray")


def blocks(language: str, text: str = README) -> list[str]:
    """Every block of a language, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def python_blocks(engine: str | None = None) -> list[str]:
    """The Python blocks of the sections that need an engine, or none of them."""
    found = []
    for section in re.split(r"^(?=## )", README, flags=re.MULTILINE):
        python = blocks("python", section)
        imports = re.findall(r"^(?:from|import) (\w+)", "".join(python), re.MULTILINE)
        if next((name for name in imports if name in ENGINES), None) == engine:
            found += python
    return found
