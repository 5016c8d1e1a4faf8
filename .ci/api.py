"""Build the API pages with pdoc: warnings are errors, and no public name is missing.

Usage: python .ci/api.py [--complete] FOLDER

Integrations whose packages are not installed are left out; with --complete that is an error.
"""

import importlib
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import botorch_delay
from botorch_delay.exceptions import MissingExtraError

# What users import; everything else is found under the names that these give it.
MODULES = [
    "botorch_delay",
    "botorch_delay.benchmarks",
    "botorch_delay.benchmarks.bench",
    "botorch_delay.benchmarks.paper",
    "botorch_delay.benchmarks.suites",
    "botorch_delay.exceptions",
    "botorch_delay.plotting",
    "botorch_delay.runner",
    "botorch_delay.study",
]
INTEGRATIONS = [
    "botorch_delay.integrations.ax",
    "botorch_delay.integrations.optuna",
    "botorch_delay.integrations.ray",
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


def identifiers(folder: Path, module: str) -> set[str]:
    """The names that a module's page describes."""
    page = Identifiers()
    page.feed((folder / f"{module.replace('.', '/')}.html").read_text(encoding="utf-8"))
    return page.found


def installed_integrations(complete: bool) -> list[str]:
    """The integrations whose packages are there; the others are named on stderr, or an error."""
    found = []
    for name in INTEGRATIONS:
        try:
            importlib.import_module(name)
        except MissingExtraError as error:
            if complete:
                raise
            print(f"left out: {name}: {error}", file=sys.stderr)
        else:
            found.append(name)
    return found


def main(folder: Path, complete: bool) -> int:
    """0 if the pages were built without a warning and are complete."""
    modules = [*MODULES, *installed_integrations(complete)]
    names = {f"{module}.{name}": module for module in modules for name in public_names(module)}
    given = [module for module in modules if module not in names]  # the others follow of themselves
    command = ["-W", "error::UserWarning", "-m", "pdoc", "-d", "google", "--math"]
    built = subprocess.run([sys.executable, *command, "-o", str(folder), *given], check=False)
    if built.returncode:
        return built.returncode
    found = {module: identifiers(folder, module) for module in modules}
    missing = [
        name
        for name, module in names.items()
        if name.rpartition(".")[2] not in found[module] and name not in modules
    ]
    if missing:
        print(f"not on the pages: {', '.join(missing)}", file=sys.stderr)
    else:
        print(f"{len(modules)} pages of {botorch_delay.__version__} in {folder}")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[-1]), "--complete" in sys.argv[1:-1]))
