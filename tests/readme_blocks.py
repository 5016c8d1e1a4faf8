"""The code in the README and in the guides, by page and by language."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
GUIDES = {path.stem: path for path in sorted((ROOT / "tutorials" / "guides").glob("*.md"))}
PAGES = {"README": ROOT / "README.md", **GUIDES}
# Their packages are not test requirements: each integration's own tests run its page.
ENGINES = ("ax", "ray")


def fenced(page: str) -> list[tuple[str, str]]:
    """Every block of a page, in order: what follows its opening fence, and its text."""
    text = PAGES[page].read_text(encoding="utf-8")
    return re.findall(r"^```([^\n]+)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def blocks(language: str) -> list[str]:
    """Every block of a language, on all pages."""
    return [text for page in PAGES for found, text in fenced(page) if found == language]


def python_blocks(page: str) -> list[str]:
    """The Python blocks of a page."""
    return [text for found, text in fenced(page) if found == "python"]
