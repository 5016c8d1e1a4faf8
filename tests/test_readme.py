"""The README's Python runs, in order, in one namespace; engines have tests of their own."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import torch
from readme_blocks import ENGINES, README, blocks, python_blocks

import botorch_delay as bd
from botorch_delay import cli
from botorch_delay.benchmarks import PROBLEMS


@pytest.mark.filterwarnings("ignore::botorch.exceptions.warnings.BotorchWarning")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_the_python_blocks_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    python = python_blocks()
    assert len(python) >= 3
    elsewhere = sum(len(python_blocks(engine)) for engine in ENGINES)
    assert len(python) + elsewhere == len(blocks("python"))
    namespace = {"__name__": "readme"}
    # Taken out again afterwards: the benchmark's own tests may come later.
    monkeypatch.setitem(PROBLEMS, "ridge", None)
    with torch.random.fork_rng():  # BoTorch's loop draws from the global generator
        for number, block in enumerate(python, start=1):
            exec(compile(block, f"README.md, block {number}", "exec"), namespace)


def test_the_defaults_are_those_that_are_shown():
    (shown,) = (block for block in python_blocks() if "# the share of asks" in block)
    namespace = {"bd": bd, "candidates": torch.linspace(0, 1, 9).double().unsqueeze(-1)}
    exec(shown, namespace)
    silent = bd.BPEDelayOptimizer(namespace["opt"].domain, horizon=200)
    assert silent.state_dict()["config"] == namespace["opt"].state_dict()["config"]


def test_the_commands_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (space,) = blocks("toml")
    (tmp_path / "space.toml").write_text(space)
    ours = [line for line in commands() if line.startswith("botorch-delay ")]
    assert len(ours) >= 5
    for line in ours:
        assert cli.main(shlex.split(line)[1:]) == 0, capsys.readouterr().err
    assert "recommended (maximize)" in capsys.readouterr().out
    # The two set-up commands are run by the checks that build everything anew.
    assert len(commands()) == len(ours) + 2


def commands():
    return [line for block in blocks("sh") for line in block.splitlines()]


def test_there_are_two_set_up_commands():
    set_up = [line for line in commands() if "venv" in line]
    assert len(set_up) == 2
    assert set_up[0].endswith("botorch-delay demo")
    assert set_up[1].endswith("-m pytest -n auto")


def test_links_to_files_lead_somewhere():
    for target in re.findall(r"\]\((?!http|#)([^)]+)\)", README):
        assert (Path(__file__).parent.parent / target).exists(), target
