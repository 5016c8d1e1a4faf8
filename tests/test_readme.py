"""Every Python block of the README runs, in order, in one namespace."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

README = (Path(__file__).parent.parent / "README.md").read_text()


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


@pytest.mark.filterwarnings("ignore::botorch.exceptions.warnings.BotorchWarning")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_the_python_blocks_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    python = blocks("python")
    assert len(python) >= 3
    namespace = {"__name__": "readme"}
    with torch.random.fork_rng():  # BoTorch's loop draws from the global generator
        for number, block in enumerate(python, start=1):
            exec(compile(block, f"README.md, block {number}", "exec"), namespace)


def test_there_are_two_set_up_commands():
    commands = [line for block in blocks("sh") for line in block.splitlines()]
    set_up = [line for line in commands if "venv" in line]
    assert len(set_up) == 2
    assert set_up[0].endswith("botorch-delay demo")
    assert set_up[1].endswith("-m pytest")


def test_links_to_files_lead_somewhere():
    for target in re.findall(r"\]\((?!http|#)([^)]+)\)", README):
        assert (Path(__file__).parent.parent / target).exists(), target
