import contextlib
import importlib
import os
import signal
import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from types import SimpleNamespace

import numpy as np
import pytest
from scale import repeats

from botorch_delay import BPEDelayOptimizer, __version__, cli, load
from botorch_delay.benchmarks.methods import METHODS
from botorch_delay.benchmarks.simulator import Recommended
from botorch_delay.demo import digits, race, tuning
from botorch_delay.demo.digits import GUESSING, Classifier
from botorch_delay.demo.tuning import demo_space

# Where rich is installed this import draws from a global generator, once.
importlib.import_module("sklearn.model_selection")


def call(*arguments, capsys):
    """Exit code, standard output and the lines on standard error."""
    try:
        code = cli.main(list(arguments))
    except SystemExit as exit_:
        code = exit_.code
    shown = capsys.readouterr()
    return code, shown.out, shown.err.splitlines()


def test_help_and_an_early_interrupt_do_not_wait_for_pytorch():
    code = "import sys; from botorch_delay import cli; cli._parser(); print('torch' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"


def test_an_interrupt_before_a_command_begins_is_one_line(monkeypatch, capsys):
    def press(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "_parser", press)
    assert call("show", "study.db", capsys=capsys) == (130, "", ["botorch-delay: interrupted"])


def test_closed_streams_lose_what_they_would_show_alone(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(sys, "stdout", None)
    assert cli.main(["bench", "list"]) == 0
    monkeypatch.undo()
    monkeypatch.setattr(sys, "stderr", None)
    assert cli.main(["show", str(tmp_path / "none.db")]) == 2
    monkeypatch.undo()
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["dance"], "invalid choice"),
        (["demo", "--trials", "many"], "expected a whole number, got 'many'"),
        (["demo", "--trials", "1"], "at least 2"),
        (["demo", "--workers", "0"], "at least 1"),
        (["demo", "--seed", "-1"], "at least 0"),
        (["demo", "--store", "/nowhere/study.db", "--trials", "4"], "folder /nowhere does not"),
        (["demo", "--colour"], "unrecognized"),
        (["demo", "--out", "picture.jpg"], ".png"),
        (["demo", "--out", "/nowhere/picture.png"], "a writable folder"),
    ],
)
def test_wrong_options_give_one_line_and_exit_code_2(arguments, message, capsys, monkeypatch):
    monkeypatch.setattr(tuning, "spawned_pool", ThreadPoolExecutor)
    code, out, err = call(*arguments, capsys=capsys)
    assert code == 2
    assert out == ""
    assert len(err) == 1
    assert message in err[0]


def test_without_a_command_its_help_is_shown(capsys):
    code, out, err = call(capsys=capsys)
    assert (code, out) == (2, "")
    assert any("demo" in line for line in err)


def test_help_and_version_are_there(capsys):
    code, out, _ = call("--help", capsys=capsys)
    assert code == 0
    assert "demo" in out
    assert call("--version", capsys=capsys)[:2] == (0, f"botorch-delay {__version__}\n")


def test_a_reader_that_has_read_enough_is_no_error(capsys, monkeypatch):
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w", encoding="utf-8") as closed:
        monkeypatch.setattr(sys, "stdout", closed)
        assert cli.main(["bench", "list"]) == 1
    assert capsys.readouterr().err == ""


def test_whatever_goes_wrong_is_one_line_and_exit_code_1(capsys, monkeypatch):
    def fall_over(*_):
        raise ZeroDivisionError("one\ntwo")

    monkeypatch.setattr(cli, "_demo", fall_over)
    code, out, err = call("demo", capsys=capsys)
    assert (code, out, len(err)) == (1, "", 1)
    assert "ZeroDivisionError: one two" in err[0]


def test_the_demo_runs_resumes_and_reports(tmp_path, capsys, monkeypatch):
    """In this process; the heavy tests run the command as a user does."""
    monkeypatch.setattr(tuning, "spawned_pool", ThreadPoolExecutor)
    monkeypatch.setattr(digits, "LANDMARKS", 30)
    monkeypatch.setattr(tuning, "SLOWNESS", 1.0)
    picture = tmp_path / "demo.png"
    arguments = ["--trials", "4", "--store", str(tmp_path / "study.db"), "--seed", "3"]
    code, shown, _ = call("demo", *arguments, "--out", str(picture), capsys=capsys)
    assert code == 0
    for word in ("recommended", "lengthscale", "held-out", "random search", "out of order", "busy"):
        assert word in shown
    assert picture.read_bytes().startswith(b"\x89PNG")
    code, again, _ = call("demo", *arguments, capsys=capsys)
    assert code == 0
    assert "4 trials were in the store already" in again
    assert "out of order" not in again  # nothing was left to evaluate


def test_the_race_counts_who_has_less_loss_and_is_earlier(tmp_path, capsys, monkeypatch):
    pytest.importorskip("optuna")
    monkeypatch.setattr(race, "spawned_pool", ThreadPoolExecutor)
    monkeypatch.setattr(digits, "LANDMARKS", 30)
    random, tpe = race.RACERS["random search"], (METHODS["tpe"], "batches-4")
    ours = {"this library": race.RACERS["this library"]}
    monkeypatch.setattr(race, "RACERS", ours | {"random search": random, "batches": tpe})
    picture = tmp_path / "race.png"
    arguments = ["--race", "2", "--trials", "4", "--workers", "1", "--out", str(picture)]
    code, shown, _ = call("demo", *arguments, capsys=capsys)
    assert code == 0
    assert "random search" in shown
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_who_won_the_race():
    def line(*steps):
        return [Recommended(n, time, (0.0,), loss) for n, (time, loss) in enumerate(steps)]

    ours = [line((1, 0.5), (2, 0.1), (3, 0.1)), line((1, 0.1), (2, 0.5), (3, 0.5))]
    theirs = [line((1, 0.5), (4, 0.2)), line((1, 0.5), (4, 0.2))]
    held_out = {"ours": np.array([0.2, 0.3]), "theirs": np.array([0.1, 0.4])}
    result = race.RaceResult({"ours": ours, "theirs": theirs}, held_out, target=0.2)
    assert result.seconds("ours").tolist() == [2.0, float("inf")]
    shown = str(result).splitlines()
    assert "| ours | 0.2500 | 0.3000 | inf |" in shown
    assert shown[-1] == "| theirs | 1 | 1 | 1.00 [0.75, 2.00] |"


@pytest.mark.heavy
def test_the_demo_survives_being_killed(tmp_path):
    store, told = tmp_path / "study.db", {}
    trials = repeats(40, 6)
    command = [sys.executable, "-m", "botorch_delay", "demo", "--trials", str(trials)]
    command += ["--store", str(store), "--workers", str(repeats(2, 1))]

    def answers():
        if not store.exists():
            return {}
        with closing(sqlite3.connect(store)) as db:
            query = "SELECT id, value FROM trials WHERE state = 'completed'"
            try:
                return dict(db.execute(query).fetchall())
            except sqlite3.OperationalError:  # missing, or being written
                return {}

    kills = [(4, signal.SIGINT), (1, signal.SIGKILL), (9, signal.SIGINT), (15, signal.SIGKILL)]
    for stop_after, how in kills[: repeats(4, 1)]:
        with subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            # A shell that runs the tests in the background makes them ignore SIGINT.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        ) as process:
            # Wait for a new answer: an interrupt while the process imports may be lost.
            enough = max(stop_after, len(told) + 1)
            while len(answers()) < enough and process.poll() is None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(0.02)
            if process.poll() is None:
                os.killpg(process.pid, how)
            out, err = process.communicate()
        if process.returncode == 0:  # it finished before the interrupt
            assert b"recommended" in out
        elif how is signal.SIGINT:
            assert process.returncode == cli.INTERRUPTED
            assert err.decode().splitlines()[-1] == "botorch-delay: interrupted"
            assert b"Traceback" not in err
        else:
            assert process.returncode == -how
        assert told.items() <= answers().items()
        told = answers()
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "recommended" in done.stdout
    assert told.items() <= answers().items()
    opt = load(store)
    assert len(opt.trials) == trials
    assert opt.pending == []


def test_a_store_of_another_study_is_refused_in_one_line(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(tuning, "spawned_pool", ThreadPoolExecutor)
    store = str(tmp_path / "study.db")
    BPEDelayOptimizer(demo_space(), horizon=5, maximize=False).save(store)
    code, _, err = call("demo", "--trials", "4", "--store", store, capsys=capsys)
    assert code == 2
    assert len(err) == 1
    assert "horizon" in err[0]
    assert "begin another file" in err[0]


SETTINGS = {"power": 0.7, "blur": 0.3, "whitening": 0.0, "lengthscale": 0.7, "penalty": 3e-3}


def test_the_settings_matter_and_nothing_is_random(monkeypatch):
    monkeypatch.setattr(digits, "LANDMARKS", 60)
    first, second = Classifier(0), Classifier(1)
    loss = first(**SETTINGS)
    assert first.evaluate(SETTINGS)[0] == loss
    assert second(**SETTINGS) != loss
    assert loss < 0.25 < 0.8 < first(**SETTINGS | {"lengthscale": 0.01}) <= GUESSING
    assert first.held_out(SETTINGS) == pytest.approx(loss, rel=0.3)
    assert first.held_out(SETTINGS) != loss


def test_an_evaluation_waits_as_if_it_were_slower(monkeypatch):
    waits = []
    clock = SimpleNamespace(sleep=waits.append, perf_counter=lambda: 0.0)
    monkeypatch.setattr(digits, "time", clock)
    monkeypatch.setattr(Classifier, "evaluate", lambda *_: (0.5, 2.0))
    assert Classifier(0, slowness=3.0)(**SETTINGS) == 0.5
    assert waits == [6.0]


def test_whitening_and_units_are_of_the_images_that_are_learned_from():
    rng = np.random.default_rng(0)
    images, test = rng.random((80, 64)), 2.0 * rng.random((30, 64))
    settings = {"power": 1.0, "blur": 0.1, "whitening": 1.0}
    seen, shown = digits._components(settings, images, test)
    np.testing.assert_allclose(np.cov(seen.T), np.eye(64) / 64, atol=1e-9)
    assert shown.var() > 2.0 * seen.var()
