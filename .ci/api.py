"""Build the API pages with pdoc: warnings are errors, and no public name is missing.

Usage: python .ci/api.py [--complete] FOLDER

The start page is api.md. A name imported from ``botorch_delay`` stands on the page of its room.
Integrations whose packages are not installed are left out; with --complete that is an error.
"""

import importlib
import re
import sys
import warnings
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType

import pdoc.doc_pyi
from jinja2 import pass_context
from jinja2.runtime import Context
from markupsafe import Markup
from pdoc.render_helpers import linkify, relative_link

import botorch_delay
from botorch_delay.exceptions import MissingExtraError

ROOMS = "optimizers domains history gp design confidence elimination benchmarks integrations"
BESIDE = "acquisition delays"  # modules whose names are imported from botorch_delay as well
# Modules from which users import directly.
MODULES = "runner study plotting exceptions benchmarks.bench benchmarks.paper benchmarks.suites"
INTEGRATIONS = ("optuna", "ray", "ax")


class Identifiers(HTMLParser):
    """Collects the ids of a page's elements, which are the names that the page documents."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note an element's id."""
        self.found |= {value for name, value in attrs if name == "id" and value}


def installed_integrations(complete: bool) -> list[str]:
    """The integrations that can be imported; a missing one is named on stderr, or an error."""
    found = []
    for engine in INTEGRATIONS:
        try:
            importlib.import_module(f"botorch_delay.integrations.{engine}")
        except MissingExtraError as error:
            if complete:
                raise
            print(f"left out: {engine}: {error}", file=sys.stderr)
        else:
            found.append(engine)
    return found


def names_of(module: ModuleType) -> list[str]:
    """The public names of a module: its ``__all__``, or what it defines without an underscore."""
    if hasattr(module, "__all__"):
        return list(module.__all__)
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__
    ]


def arrange(engines: list[str]) -> dict[str, list[str]]:
    """List the names on every page, the optimizer first, and state in each where to import from."""
    rooms, beside, others = (
        [f"botorch_delay.{name}" for name in names.split()] for names in (ROOMS, BESIDE, MODULES)
    )
    modules = {name: importlib.import_module(name) for name in [*rooms, *beside, *others]}
    pages = {name: [] if name in beside else names_of(modules[name]) for name in modules}
    for name, home in botorch_delay._HOME.items():
        if home != "botorch_delay":
            page = home if home in pages else ".".join(home.split(".")[:2])
            pages[page] = list(dict.fromkeys([*pages[page], name]))
            setattr(modules[page], name, getattr(botorch_delay, name))
    for page in [*rooms, *beside]:
        pages[page].sort(key=lambda name: (name != "BPEDelayOptimizer", name.lower()))
        here = [f"`{name}`" for name in pages[page] if name not in botorch_delay._HOME]
        away = len(here) < len(pages[page])
        found = [*(["`botorch_delay`"] if away else []), *([f"`{page}`"] if here else [])]
        which = f" ({', '.join(here)})" if here and away else ""
        about = modules[page].__doc__ or ""
        if page in rooms:
            about = about.partition("\n\n")[0]  # the rest is for maintainers
        origin = f"\n\nImported from {' and '.join(found)}{which}." if found else ""
        modules[page].__doc__ = about + origin
    pages["botorch_delay.integrations"] = engines
    pages["botorch_delay.benchmarks"] += ["bench", "paper", "suites"]
    for page, names in pages.items():
        modules[page].__all__ = names
    botorch_delay.__doc__ = Path(__file__).with_suffix(".md").read_text(encoding="utf-8")
    names = f"{ROOMS} {BESIDE} {MODULES}".split()
    botorch_delay.__all__ = [name for name in names if "." not in name]
    for engine in engines:
        module = importlib.import_module(f"botorch_delay.integrations.{engine}")
        pages[module.__name__] = names_of(module)
    return pages


def linked(pages: dict[str, list[str]]):
    """Pdoc's filter that turns names into links, for the names of every page."""
    home = {name: page for page, names in pages.items() for name in names if name[0].isupper()}
    home |= dict.fromkeys(["load", "editing"], "botorch_delay.optimizers")
    home |= {"greedy_max_variance": "botorch_delay.design", "simulate": "botorch_delay.benchmarks"}

    @pass_context
    def replaced(context: Context, code: str, namespace: str = "", shorten: bool = True) -> Markup:
        here = context["module"].modulename

        def link(found: re.Match[str]) -> str:
            name, rest = found.groups()
            if name not in home:
                return found.group()
            target = f"{relative_link(here, home[name])}#{name}{rest or ''}"
            return f'<code><a href="{target}">{name}{rest or ""}</a></code>'

        text = linkify(context, code, namespace, shorten)
        return Markup(re.sub(r"<code>(\w+)(\.\w+)?</code>", link, text))

    return replaced


def main(folder: Path, complete: bool) -> int:
    """Returns 0 if the pages were built without a warning and are complete."""
    warnings.simplefilter("error", UserWarning)
    pages = arrange(installed_integrations(complete))
    pdoc.render.configure(docformat="google", math=True)
    pdoc.doc_pyi.include_typeinfo_from_stub_files = lambda module: None  # stubs document no page
    pdoc.render.env.filters["linkify"] = linked(pages)
    pdoc.pdoc("botorch_delay", output_directory=folder)
    missing = []
    for page, names in pages.items():
        parser = Identifiers()
        parser.feed((folder / f"{page.replace('.', '/')}.html").read_text(encoding="utf-8"))
        missing += [
            f"{page}.{name}"
            for name in names
            if name not in parser.found and f"{page}.{name}" not in pages
        ]
    if missing:
        print(f"not on the pages: {', '.join(missing)}", file=sys.stderr)
    else:
        print(f"{len(pages) + 1} pages of {botorch_delay.__version__} in {folder}")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[-1]), "--complete" in sys.argv[1:-1]))
