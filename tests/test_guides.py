"""The README and the guides do what they show.

The blocks of a page run in order, in one namespace and a folder of their own. A text block that
follows Python is what that prints. A block whose fence names a file is written to it. Lines of
``sh`` are run; those of ``console`` only have to name commands that exist.
"""

from __future__ import annotations

import pkgutil
import re
import shlex

import pytest
import torch
from readme_blocks import ENGINES, GUIDES, PAGES, ROOT, blocks, fenced, python_blocks

import botorch_delay as bd
from botorch_delay import cli
from botorch_delay.benchmarks import PROBLEMS

every_page = pytest.mark.parametrize("page", PAGES)


# Their code takes as long as that of all others together.
LONGEST = ("guarantees", "lab_studies", "norms")


def is_set_up(line):
    """Whether it is one of the two set-up commands, which ``.ci/run`` runs from nothing."""
    return "venv" in line


@pytest.mark.filterwarnings("ignore::botorch.exceptions.warnings.BotorchWarning")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=pytest.mark.heavy) if page in LONGEST else page
        for page in PAGES
        if page not in ENGINES
    ],
)
def test_the_code_of_a_page_runs(page, tmp_path, monkeypatch, capsys):
    if page in ("many_workers", "optuna"):
        pytest.importorskip("optuna")
    monkeypatch.chdir(tmp_path)
    # Removed again afterwards: the benchmark's own tests may run later.
    monkeypatch.setitem(PROBLEMS, "ridge", None)
    namespace = {"__name__": page}
    printed = ""
    with torch.random.fork_rng():  # BoTorch's loop draws from the global generator
        for number, (kind, text) in enumerate(fenced(page), start=1):
            language, _, file = kind.partition(" ")
            if file:
                (tmp_path / file).write_text(text, encoding="utf-8")
            elif language == "python":
                capsys.readouterr()  # output of commands
                exec(compile(text, f"{page}, block {number}", "exec"), namespace)
                printed = capsys.readouterr().out
            elif language == "text":
                assert printed == text, f"{page}, block {number}"
            elif language == "sh":
                capsys.readouterr()
                for line in filter(lambda line: not is_set_up(line), text.splitlines()):
                    program, *arguments = shlex.split(line)
                    assert program == "botorch-delay"
                    assert cli.main(arguments) == 0, capsys.readouterr().err
                printed = capsys.readouterr().out
            elif language == "console":
                for line in text.splitlines():
                    prompt, program, *arguments = shlex.split(line)
                    assert (prompt, program) == ("$", "botorch-delay")
                    cli._parser().parse_args(arguments)
            else:
                assert language == "bibtex", kind


def test_every_page_has_code_that_runs():
    for page in PAGES:
        assert python_blocks(page)
    for engine in ENGINES:
        assert (ROOT / "tests" / "integrations" / f"test_{engine}.py").exists()
    # Its test is in test_executors.py.
    assert len(blocks("python tune.py")) == 1


def test_the_readme_is_a_front_page():
    readme = PAGES["README"].read_text(encoding="utf-8")
    assert len(readme.splitlines()) <= 220
    for page in GUIDES:
        assert f"(tutorials/guides/{page}.md)" in readme
    shown = "".join(text for language, text in fenced("README") if language == "sh")
    first, second = shown.splitlines()
    assert is_set_up(first)
    assert first.endswith("botorch-delay demo")
    assert is_set_up(second)
    assert second.endswith("-m pytest -n auto")


def test_the_defaults_are_those_that_are_shown():
    (shown,) = (block for block in python_blocks("methods") if "# the share of asks" in block)
    namespace = {}
    exec(shown, namespace)
    silent = bd.BPEDelayOptimizer(namespace["opt"].domain, horizon=200)
    assert silent.state_dict()["config"] == namespace["opt"].state_dict()["config"]


REPORTS = sorted((ROOT / "botorch_delay" / "benchmarks").glob("*.md"))


@pytest.mark.parametrize("path", [*PAGES.values(), *REPORTS], ids=lambda path: path.stem)
def test_links_lead_somewhere(path):
    for target, anchor in re.findall(r"\]\((?!http)([^)#]*)#?([^)]*)\)", path.read_text()):
        file = path.parent / target if target else path
        assert file.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.*)$", file.read_text(), re.MULTILINE)
            assert anchor in map(anchor_of, headings), f"{target}#{anchor}"


@pytest.mark.parametrize("page", PAGES)
def test_names_in_the_text_can_be_imported(page):
    names = re.findall(r"`(botorch_delay(?:\.\w+)+)", PAGES[page].read_text(encoding="utf-8"))
    for name in names:
        if not any(f"integrations.{engine}" in name for engine in ENGINES):
            pkgutil.resolve_name(name)  # raises if there is no such thing


def anchor_of(heading):
    """The anchor that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def test_nothing_says_that_the_library_is_on_an_index():
    kinds = {".ipynb", ".md", ".py", ".pyi"}
    for folder in ("botorch_delay", "tests", "tutorials", ".ci", "."):
        for path in (ROOT / folder).glob("*" if folder == "." else "**/*"):
            if path.suffix in kinds:
                text = path.read_text(encoding="utf-8")
                assert not re.search(r"pip install (-\S+ )*['\"]?botorch.delay", text), path


def test_reports_stay_out_of_the_package():
    text = (ROOT / "pyproject.toml").read_text()
    assert 'botorch_delay = ["benchmarks/*.md"]' in text.partition("exclude-package-data")[2]
