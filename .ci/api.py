"""Build the API pages with pdoc: warnings are errors, and no public name is missing.

Usage: python .ci/api.py FOLDER
"""

import importlib
import pkgutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import botorch_delay
from botorch_delay import integrations

# What users import; everything else is found under the names that these give it.
MODULES = [
    "botorch_delay",
    "botorch_delay.benchmarks",
    "botorch_delay.benchmarks.bench",
    "botorch_delay.benchmarks.suites",
    "botorch_delay.exceptions",
    "botorch_delay.plotting",
    "botorch_delay.reproduction",
    "botorch_delay.runner",
    "botorch_delay.study",
]


class Identifiers(HTMLParser):
    """Ids of a page's elements, which are the names that it describes."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note an element's id."""
        self.found |= {value for name, value in attrs if name == "id" and value}


def public_names(name: str) -> list[str]:
    """What a module offers: its ``__all__``, or what it defines without an underscore."""
    module = importlib.import_module(name)
    if hasattr(module, "__all__"):
        return list(module.__all__)
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__
    ]


def main(folder: Path) -> int:
    """0 if the pages were built without a warning and are complete."""
    found = [
        f"{integrations.__name__}.{module.name}"
        for module in pkgutil.iter_modules(integrations.__path__)
        if not module.name.startswith("_")
    ]
    modules = [*MODULES, *found]
    command = ["-W", "error::UserWarning", "-m", "pdoc", "-d", "google", "--math"]
    built = subprocess.run([sys.executable, *command, "-o", str(folder), *modules], check=False)
    if built.returncode:
        return built.returncode
    missing = []
    for name in modules:
        page = Identifiers()
        page.feed((folder / f"{name.replace('.', '/')}.html").read_text(encoding="utf-8"))
        submodules = {child for child in modules if child.rpartition(".")[0] == name}
        missing += [
            f"{name}.{public}"
            for public in public_names(name)
            if public not in page.found and f"{name}.{public}" not in submodules
        ]
    if missing:
        print(f"not on the pages: {', '.join(missing)}", file=sys.stderr)
    else:
        print(f"{len(modules)} pages of {botorch_delay.__version__} in {folder}")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
