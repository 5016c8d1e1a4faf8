import json
import math
import sqlite3
from contextlib import closing

import pytest
import torch
from forked import forked

import botorch_delay as bd
from botorch_delay import cli
from botorch_delay.exceptions import FewerTrialsWarning
from botorch_delay.history import sqlite
from botorch_delay.study import read_space

GRID = """
[parameters.temperature]
values = [20, 30, 40]

[parameters.dose]
low = 0.01
high = 10.0
steps = 4
scale = "log"
"""


@pytest.fixture
def command(tmp_path, capsys, monkeypatch):
    """Runs the command line in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments):
        try:
            code = cli.main([str(argument) for argument in arguments])
        except SystemExit as exit_:
            code = exit_.code
        shown = capsys.readouterr()
        return code, shown.out, shown.err.splitlines()

    return call


@pytest.fixture
def study(command, tmp_path):
    (tmp_path / "space.toml").write_text(GRID)
    assert command("init", "study.db", "--space", "space.toml", "--horizon", 16)[0] == 0
    return command


def test_an_experiment_from_start_to_recommendation(study):
    results = []
    for _ in range(4):
        _, out, _ = study("ask", "study.db", "-n", 4, "--json")
        for trial in reversed(json.loads(out)):
            parameters = trial["parameters"]
            assert parameters["temperature"] in (20, 30, 40)
            assert parameters["dose"] in (0.01, 0.1, 1.0, 10.0)
            distance = ((parameters["temperature"] - 30) / 10, math.log10(parameters["dose"]))
            result = -math.hypot(*distance)
            results.append((result, parameters))
            assert study("tell", "study.db", trial["id"], result)[0] == 0
    _, out, _ = study("show", "study.db", "--json")
    shown = json.loads(out)
    best = max(result for result, _ in results)
    assert (best, shown["recommendation"]["parameters"]) in results
    assert shown["asked"] == 16
    assert shown["pending"] == []
    assert shown["round"] is None  # all is settled
    assert "finished, " in study("show", "study.db")[1]
    assert shown["active"] <= shown["arms"] == 12


def test_what_people_read(study):
    code, out, _ = study("ask", "study.db", "-n", 2)
    assert code == 0
    assert out.splitlines()[0].split() == ["id", "temperature", "dose"]
    assert "not begun" not in out
    code, out, _ = study("show", "study.db")
    assert "2 of 16 trials asked (2 running)" in out
    assert "nothing yet" in out
    assert "0:0" in out  # since when
    assert " ago" in out
    assert study("tell", "study.db", 1, 0.5)[1] == "trial 1 is completed; 1 pending\n"
    assert (
        study("fail", "study.db", 0, "--reason", "spilled")[1] == "trial 0 is failed; 0 pending\n"
    )
    _, out, _ = study("show", "study.db")
    assert "recommended (maximize):" in out
    assert "temperature = " in out
    assert "between" in out


def test_failures_abandonment_and_late_answers(study):
    study("ask", "study.db", "-n", 4)
    study("abandon", "study.db", 2)
    study("fail", "study.db", 1, "--reason", "dropped")
    for trial_id in (0, 3):
        study("tell", "study.db", trial_id, 1.0)
    code, out, _ = study("tell", "study.db", 2, "0.42", "--json", "--noise-var", "0.1")
    assert code == 0
    assert json.loads(out)["value"] == 0.42
    trials = bd.load("study.db").trials
    assert [t.state.value for t in trials] == ["completed", "failed", "completed", "completed"]
    assert trials[1].reason == "dropped"
    assert trials[2].late
    assert trials[2].noise_var == 0.1


def test_units_are_the_user_s_everywhere(study):
    study("ask", "study.db", "-n", 8)
    with bd.editing("study.db") as opt:
        doses = {round(t.x[1].item(), 9) for t in opt.trials}
        assert doses <= {0.01, 0.1, 1.0, 10.0}
        opt.attach(torch.tensor([30.0, 1.0], dtype=torch.double), 5.0)
    opt = bd.load("study.db")
    assert opt.attached[0].index is not None
    assert opt.domain.names == ("temperature", "dose")
    with closing(sqlite3.connect("study.db")) as db:
        stored = {json.loads(row[0])[1] for row in db.execute("SELECT x FROM trials")}
    assert stored == {t.x[1].item() for t in opt.trials}
    assert study("attach", "study.db", "-1e-3", "dose=0.1", "temperature=20")[0] == 0
    assert bd.load("study.db").attached[1].value == -1e-3
    assert study("tell", "study.db", 0, "-2.5e-3")[0] == 0
    _, out, _ = study("show", "study.db")
    assert "temperature = 30, dose = 1" in out


def test_arms_that_differ_in_the_last_digit_look_different(command, tmp_path):
    (tmp_path / "space.toml").write_text("[parameters.t]\nvalues = [1234567, 1234568]")
    command("init", "s.db", "--space", "space.toml", "--horizon", 2)
    _, out, _ = command("ask", "s.db", "-n", 2)
    assert "1234567" in out
    assert "1234568" in out


def test_the_round_names_whom_it_waits_for(study):
    study("ask", "study.db", "-n", 6)  # the first is the round's design point
    for trial_id in (1, 2, 3, 4, 5):
        study("tell", "study.db", trial_id, 0.1 * trial_id)
    assert "waits for trial 0" in study("show", "study.db")[1]


def test_show_forecasts_the_round_and_names_late_trials(study):
    study("ask", "study.db", "-n", 1)
    shown = json.loads(study("show", "study.db", "--json")[1])
    assert shown["forecast"] is None  # nothing to tell from
    assert shown["late"] == []
    with bd.editing("study.db") as opt:
        for _ in range(14):
            opt.tell(opt.ask(), 0.1)
    _, out, _ = study("show", "study.db")
    assert "round 1 closes after more asks than any answer has taken so far; 1 ask is left" in out
    shown = json.loads(study("show", "study.db", "--json")[1])
    assert shown["forecast"] in out
    assert shown["recommendation"]["count"] >= 1
    assert f"answers at this very point: {shown['recommendation']['count']}" in out
    with bd.editing("study.db") as opt:
        assert [late.trial.id for late in opt.late(0.9)] == [0]
        opt.tell(0, 0.2)
    assert "round 1 closes inside the next ask" in study("show", "study.db")[1]


def test_an_exact_study_asks_no_arm_twice(command, tmp_path):
    (tmp_path / "space.toml").write_text(GRID)
    command("init", "study.db", "--space", "space.toml", "--horizon", 16, "--exact")
    with bd.editing("study.db") as opt:
        for number in range(12):
            opt.tell(opt.ask(), 0.1 * number)
    code, _, err = command("ask", "study.db")
    assert code == 2
    assert len(err) == 1
    assert "exact" in err[0]


def test_where_fewer_can_be_asked_those_are_stored_and_shown(command, tmp_path):
    (tmp_path / "space.toml").write_text(GRID)
    command("init", "study.db", "--space", "space.toml", "--horizon", 16, "--exact")
    with pytest.warns(FewerTrialsWarning, match="12 of 15 trials were asked"):
        code, out, _ = command("ask", "study.db", "-n", 15, "--json")
    assert code == 0
    assert [trial["id"] for trial in json.loads(out)] == list(range(12))
    assert len(bd.load("study.db").pending) == 12


def test_a_list_of_arms(command, tmp_path):
    # As spreadsheets write it: with a byte order mark.
    (tmp_path / "arms.csv").write_text("\ufeffa, b\n1,2\n3,4.5\n\n5,6e-1\n")
    (tmp_path / "space.toml").write_text('arms = "arms.csv"')
    assert command("init", "s.db", "--space", "space.toml", "--horizon", 5, "--minimize")[0] == 0
    opt = bd.load("s.db")
    assert opt.domain.points.tolist() == [[1, 2], [3, 4.5], [5, 0.6]]
    assert not opt.maximize
    assert read_space("space.toml").names == ("a", "b")
    assert opt.domain.names == ("a", "b")


BAD_SPACES = {
    "nothing": ("", "either"),
    "both": ('arms = "x.csv"\n[parameters.a]\nvalues=[1]', "either"),
    "other": ("[stuff]", "either"),
    "not toml": ("= 3", "not TOML"),
    "no file": ('arms = "none.csv"', "No such file"),
    "no table": ("[parameters]\na = 3", "expected a table"),
    "empty": ("[parameters]", "at least one"),
    "unknown key": ("[parameters.a]\nvalue = 3", "expected a table with values"),
    "no values": ("[parameters.a]\nvalues = []", "expected a table with values"),
    "text": ('[parameters.a]\nvalues = ["x"]', "each number of parameter a must be a number"),
    "nan": ("[parameters.a]\nvalues = [nan]", "finite"),
    "one value": ("[parameters.a]\nvalues = [1, 1.0]", "two values or more"),
    "missing": ("[parameters.a]\nlow = 1", "expected a table"),
    "mixed": ("[parameters.a]\nlow = 1\nvalues = [1]", "expected a table"),
    "crossed": ("[parameters.a]\nlow = 2\nhigh = 1\nsteps = 3", "below"),
    "one step": ("[parameters.a]\nlow = 1\nhigh = 2\nsteps = 1", "at least 2"),
    "log of zero": ('[parameters.a]\nlow = 0\nhigh = 2\nsteps = 3\nscale = "log"', "above 0"),
    "scale": ('[parameters.a]\nvalues = [1]\nscale = "cubic"', "linear"),
    "file name": ("arms = 3", "name of a CSV file"),
    "no name": ('[parameters.""]\nvalues = [1, 2]', "not empty"),
    "too many": (
        "\n".join(f"[parameters.a{i}]\nlow=0\nhigh=1\nsteps=1000" for i in range(3)),
        "at most 1000000",
    ),
}


@pytest.mark.parametrize("name", BAD_SPACES)
def test_bad_spaces_give_one_line(command, tmp_path, name):
    text, message = BAD_SPACES[name]
    (tmp_path / "space.toml").write_text(text)
    code, out, err = command("init", "s.db", "--space", "space.toml", "--horizon", 5)
    assert (code, out, len(err)) == (2, "", 1)
    assert message in err[0]
    assert not (tmp_path / "s.db").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n", "at least one arm"),
        ("a,a\n1,2", "distinct strings"),
        ("a,b\n1", "expected 2 numbers"),
        ("a,b\n1,x", "expected 2 numbers"),
        ("a,b\n1,2\n\n1,2", "distinct; rows 0 and 1"),
        ("a,b\n1,nan", "finite"),
        ("1,2\n3,4", "header"),
        ("a,\n1,2", "not empty"),
    ],
)
def test_bad_arms_give_one_line(command, tmp_path, text, message):
    (tmp_path / "arms.csv").write_text(text)
    (tmp_path / "space.toml").write_text('arms = "arms.csv"')
    code, _, err = command("init", "s.db", "--space", "space.toml", "--horizon", 5)
    assert (code, len(err)) == (2, 1)
    assert message in err[0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("init", "study.db", "--space", "space.toml", "--horizon", 5), "exists already"),
        (("init", "new.db", "--space", "none.toml", "--horizon", 5), "No such file"),
        (("init", "new.db", "--space", "space.toml", "--horizon", 0), "at least 1"),
        (("init", "new.db", "--space", "space.toml"), "--horizon"),
        (("init", "no/new.db", "--space", "space.toml", "--horizon", 5), "does not exist"),
        (("ask", "none.db"), "no such file"),
        (("ask", "space.toml"), "no study"),
        (("ask", "study.db", "-n", 0), "at least 1"),
        (("ask", "study.db", "-n", 17), "asks requested: 17"),
        (("ask", "study.db", "-n", "x"), "invalid int"),
        (("tell", "study.db", 7, 0.5), "no trial 7"),
        (("tell", "study.db", 0, "nan"), "finite"),
        (("tell", "study.db", 0, "much"), "invalid float"),
        (("tell", "study.db", 0, 0.5, "--noise-var", "-1"), "above 0"),
        (("tell", "study.db", 0, "-inf"), "finite"),
        (("attach", "study.db", 1.0, "temperature=20"), "needs one NAME=NUMBER"),
        (("attach", "study.db", 1.0, "temperature=20", "dose=x"), "NAME=NUMBER"),
        (("attach", "study.db", 1.0, "temperature=20", "dose=1", "x=1"), "nothing else"),
        (("attach", "study.db", 1.0, "temperature=20", "dose=-1"), "above 0"),
        (("ask", "."), "no file"),
        (("fail", "study.db", 7), "no trial 7"),
        (("abandon", "study.db", -1), "no trial -1"),
        (("show", "none.db"), "no such file"),
        (("dance",), "invalid choice"),
    ],
)
def test_wrong_input_gives_one_line_and_changes_nothing(study, tmp_path, arguments, message):
    study("ask", "study.db")
    before = str(bd.load("study.db").state_dict())
    code, out, err = study(*arguments)
    assert (code, out, len(err)) == (2, "", 1)
    assert message in err[0]
    assert str(bd.load("study.db").state_dict()) == before
    assert not (tmp_path / "new.db").exists()


def test_a_locked_or_read_only_file_says_so(study, tmp_path, monkeypatch):
    monkeypatch.setattr(sqlite, "BUSY_SECONDS", 0.05)
    with closing(sqlite3.connect("study.db", isolation_level=None)) as db:
        db.execute("BEGIN EXCLUSIVE")
        code, _, err = study("ask", "study.db")
    assert (code, len(err)) == (2, 1)
    assert "locked by another process" in err[0]

    connect = sqlite._connect
    monkeypatch.setattr(sqlite, "_connect", lambda uri: connect(uri.replace("mode=rw", "mode=ro")))
    code, _, err = study("ask", "study.db")
    assert (code, len(err)) == (2, 1)
    assert "readonly" in err[0]


def test_two_processes_at_once_lose_and_duplicate_nothing(study, monkeypatch):
    monkeypatch.setattr(sqlite, "BUSY_SECONDS", 120.0)
    # A fit may fail in a forked process: autograd has threads.
    bd.RandomOptimizer(bd.load("study.db").domain, horizon=16).save("random.db")

    def program():
        for _ in range(8):
            with bd.editing("random.db") as opt:
                trial = opt.ask()
            with bd.editing("random.db") as opt:
                opt.tell(trial.id, float(trial.id))
            print(trial.id)

    with forked(program) as (first, one), forked(program) as (second, other):
        asked = [int(text) for printed in (one, other) for text in printed.read().split()]
    assert (first.exitcode, second.exitcode) == (0, 0)
    assert sorted(asked) == list(range(16))
    trials = bd.load("random.db").trials
    assert [t.value for t in trials] == [float(t.id) for t in trials]


def test_what_raises_while_editing_is_not_stored(study):
    class Mine(Exception):  # noqa: N818  # no error of the library's
        pass

    def change():
        with bd.editing("study.db") as opt:
            opt.ask()
            raise Mine

    with pytest.raises(Mine):
        change()
    assert bd.load("study.db").trials == []


def test_a_study_without_names_is_shown_too(command):
    points = torch.rand(5, 2, dtype=torch.double, generator=torch.Generator().manual_seed(0))
    bd.BPEDelayOptimizer(bd.FiniteDomain(points), 5).save("plain.db")
    code, out, _ = command("ask", "plain.db")
    assert code == 0
    assert out.split()[:3] == ["id", "x0", "x1"]


def test_show_tells_of_other_optimizers_too(tmp_path, capsys):
    box = bd.BoxDomain(torch.tensor([[0.0], [1.0]], dtype=torch.double), names=["dose"])
    made = {
        "box.db": (bd.BPEDelayOptimizer(box, 10), "of the box active"),
        "random.db": (bd.RandomOptimizer(box), "RandomOptimizer on a box"),
        "bucb.db": (
            bd.AcquisitionOptimizer(bd.FiniteDomain(torch.arange(5).double().unsqueeze(-1))),
            "AcquisitionOptimizer on 5 arms",
        ),
    }
    for name, (opt, expected) in made.items():
        for trial in opt.ask(4)[:3]:
            opt.tell(trial, trial.x.item())
        opt.save(tmp_path / name)
        assert cli.main(["show", str(tmp_path / name)]) == 0
        shown = capsys.readouterr().out
        assert expected in shown
        assert "recommended (maximize)" in shown
        assert cli.main(["ask", str(tmp_path / name), "--json"]) == 0
        assert json.loads(capsys.readouterr().out)[0]["id"] == 4
        assert cli.main(["tell", str(tmp_path / name), "4", "0.5"]) == 0
        capsys.readouterr()
