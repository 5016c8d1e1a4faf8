"""The notebooks as they are stored; .ci/tutorials.py executes them."""

import ast
import json
import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "tutorials").glob("*.ipynb"))
CELL_KEYS = {
    "markdown": {"cell_type", "id", "metadata", "source"},
    "code": {"cell_type", "id", "metadata", "source", "execution_count", "outputs"},
}

every_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def cells(path):
    return json.loads(path.read_text(encoding="utf-8"))["cells"]


def text(cell):
    return "".join(cell["source"])


def python(cell):
    """A code cell as Python, without the files that some write."""
    return "" if text(cell).startswith("%%writefile") else text(cell)


def test_there_are_eight_and_the_readme_lists_them():
    assert len(NOTEBOOKS) == 8
    readme = (ROOT / "README.md").read_text()
    for path in NOTEBOOKS:
        assert f"(tutorials/{path.name})" in readme


@every_notebook
def test_they_are_valid(path):
    notebook = json.loads(path.read_text(encoding="utf-8"))
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert notebook["metadata"] == {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    ids = [cell["id"] for cell in notebook["cells"]]
    assert len(set(ids)) == len(ids)
    for cell in notebook["cells"]:
        assert cell.keys() == CELL_KEYS[cell["cell_type"]]
        assert cell["metadata"] == {}
        assert text(cell).strip()
        if cell["cell_type"] == "code":
            ast.parse(python(cell))


@every_notebook
def test_they_hold_what_they_print_and_draw(path):
    """Outputs come from a run in order, stored by ``.ci/tutorials.py --store``, and are small."""
    assert path.stat().st_size < 400_000
    code = [cell for cell in cells(path) if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell["outputs"]]
    pictures = [o["data"]["image/png"] for o in outputs if "image/png" in o.get("data", {})]
    assert pictures
    assert max(map(len, pictures)) < 80_000  # 60 kB each, in base 64
    for output in outputs:
        assert output["output_type"] in ("display_data", "execute_result", "stream")
        assert output.get("name") != "stderr"
        shown = "".join(output.get("text", "")) + "".join(
            output.get("data", {}).get("text/plain", "")
        )
        assert not re.search(r"Warning|Traceback|(?<![\w.<])/(\w+/)+\w", shown), shown


@every_notebook
def test_they_begin_with_two_sentences_on_who_they_are_for(path):
    first = cells(path)[0]
    assert first["cell_type"] == "markdown"
    title, empty, *lines = text(first).splitlines()
    assert title.startswith("# ")
    assert empty == ""
    assert lines[0].startswith("This is for you if ")
    assert len(re.findall(r"\.(?= |$)", " ".join(lines))) == 2


@every_notebook
def test_they_end_in_assertions(path):
    last = cells(path)[-1]
    assert last["cell_type"] == "code"
    statements = ast.parse(python(last)).body
    assert any(isinstance(statement, ast.Assert) for statement in statements)
    assert isinstance(statements[-1], ast.Assert | ast.If)


@every_notebook
def test_links_lead_somewhere(path):
    for cell in cells(path):
        if cell["cell_type"] != "markdown":
            continue
        for target in re.findall(r"\]\((?!http|#)([^)#]+)", text(cell)):
            assert (path.parent / target).exists(), target


def test_the_picture_on_the_front_page_shows_what_its_caption_says(tmp_path):
    pytest.importorskip("matplotlib")
    script = runpy.run_path(str(ROOT / "tutorials" / "idle_workers.py"))
    script["main"](tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > 10_000
    hours = script["durations"]()
    busy = [script["busy_share"](script[way](hours)) for way in ("in_batches", "one_by_one")]
    readme = (ROOT / "README.md").read_text()
    (caption,) = re.findall(r"!\[(.*)\]\(tutorials/idle_workers.png\)", readme)
    assert [int(share) for share in re.findall(r"(\d+) %", caption)] == [
        round(100 * share) for share in busy
    ]
