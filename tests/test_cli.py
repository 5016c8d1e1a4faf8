import subprocess
import sys

import pytest

from botorch_delay import BPEDelayOptimizer, cli, demo
from botorch_delay.demo import CrossValidation, demo_domain, held_out_accuracy, run_demo


def call(*arguments, capsys):
    """Exit code, standard output and the lines on standard error."""
    try:
        code = cli.main(list(arguments))
    except SystemExit as exit_:
        code = exit_.code
    shown = capsys.readouterr()
    return code, shown.out, shown.err.splitlines()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "required"),
        (["dance"], "invalid choice"),
        (["demo", "--trials", "many"], "invalid int"),
        (["demo", "--trials", "1"], "at least 2"),
        (["demo", "--trials", "5000"], "at most the 1600 points"),
        (["demo", "--workers", "0"], "at least 1"),
        (["demo", "--seed", "-1"], "at least 0"),
        (["demo", "--store", "/nowhere/study.db", "--trials", "4"], "folder /nowhere does not"),
        (["demo", "--colour"], "unrecognized"),
        (["demo", "--out", "picture.jpg"], ".png"),
        (["demo", "--out", "/nowhere/picture.png"], "/nowhere is no folder"),
    ],
)
def test_wrong_options_give_one_line_and_exit_code_2(arguments, message, capsys):
    code, out, err = call(*arguments, capsys=capsys)
    assert code == 2
    assert out == ""
    assert len(err) == 1
    assert message in err[0]


def test_help_is_there(capsys):
    code, out, _ = call("--help", capsys=capsys)
    assert code == 0
    assert "demo" in out


def test_the_demo_runs_resumes_and_reports(tmp_path):
    picture = tmp_path / "demo.png"
    arguments = ["--trials", "8", "--store", str(tmp_path / "study.db"), "--seed", "3"]
    arguments += ["--out", str(picture)]
    command = [sys.executable, "-m", "botorch_delay", "demo", *arguments]
    shown = subprocess.run(command, capture_output=True, text=True, check=True)
    for word in ("recommended", "held-out", "random search", "out of order", "busy", "active"):
        assert word in shown.stdout, shown
    assert picture.read_bytes().startswith(b"\x89PNG")
    again = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "8 trials were in the store already" in again.stdout


def test_a_store_of_another_study_is_refused_in_one_line(tmp_path, capsys):
    store = str(tmp_path / "study.db")
    BPEDelayOptimizer(demo_domain(), horizon=5).save(store)
    code, _, err = call("demo", "--trials", "4", "--store", store, capsys=capsys)
    assert code == 2
    assert len(err) == 1
    assert "horizon" in err[0]


def test_evaluations_are_noisy_and_fresh():
    objective = CrossValidation(seed=0)
    x = demo_domain().points[800]
    assert objective(x) != objective(x)


def test_held_out_digits_are_the_same_for_everyone():
    assert held_out_accuracy(None, 0) == held_out_accuracy(None, 0)
    assert 0.9 < held_out_accuracy(None, 0) <= 1.0


def test_the_demo_without_a_rival():
    result = run_demo(workers=1, trials=3, random_search=False, progress=False)
    assert result.random_accuracy is None
    assert len(result.optimizer.trials) == 3
    assert "random search" not in demo.describe(result)
