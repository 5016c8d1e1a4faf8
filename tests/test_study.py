import contextlib
import csv
import json
import math
import re
import shutil
import sqlite3
import warnings
from contextlib import closing
from datetime import datetime

import pytest
import torch
from forked import forked

import botorch_delay as bd
from botorch_delay import cli
from botorch_delay.exceptions import InputError, OutsideWarning
from botorch_delay.history import sqlite
from botorch_delay.results import import_results, write_results
from botorch_delay.study import read_space

GRID = """
[parameters.temperature]
values = [20, 30, 40]

[parameters.dose]
low = 0.01
high = 10.0
steps = 4
log = true
unit = "mg/ml"
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


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """A folder with a study of the grid."""
    folder = tmp_path_factory.mktemp("begun")
    (folder / "space.toml").write_text(GRID)
    space = ["--space", str(folder / "space.toml")]
    assert cli.main(["init", str(folder / "study.db"), *space, "--horizon", "16"]) == 0
    return folder


@pytest.fixture
def study(command, begun, tmp_path):
    for name in ("space.toml", "study.db"):
        shutil.copy(begun / name, tmp_path)
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
    assert "all closed; " in study("show", "study.db")[1]
    assert shown["active"] <= shown["arms"] == 12


def test_what_people_read(study):
    code, out, _ = study("ask", "study.db", "-n", 2)
    assert code == 0
    assert out.splitlines()[0].split() == ["id", "temperature", "dose", "(mg/ml)"]
    assert "not begun" not in out
    code, out, _ = study("show", "study.db")
    assert "2 of 16 trials asked (2 running)" in out
    assert "round 1 of about 2; 12 of 12 points can still be the best" in out
    assert "a round tries settings" in out
    assert "nothing yet" in out
    assert "0:0" in out  # since when
    assert " ago" in out
    second = bd.load("study.db").trials[1].x.tolist()
    words = f"temperature = {second[0]:g}, dose = {second[1]:g}"
    told = f"trial 1: result 0.5 at {words} mg/ml; 1 trial is still running\n"
    assert study("tell", "study.db", 1, 0.5)[1] == told
    failed = study("fail", "study.db", 0, "--reason", "spilled")[1]
    assert "0 trials are still running\nits settings may be asked again" in failed
    assert (
        f"attached result 0: -1 at {words} mg/ml (1 attached"
        in study("attach", "study.db", -1, f"temperature={second[0]}", f"dose={second[1]}")[1]
    )
    assert "noted (1" in study("note", "study.db", "a new batch\nof reagent")[1]
    _, out, _ = study("show", "study.db")
    assert "attached (results that were obtained elsewhere):" in out
    assert f"recommended settings (to maximize the result):\n{words} mg/ml\nexpected result" in out
    assert "probably between" not in out
    assert "interval: unbounded until there are three answers" in out
    assert out.endswith("a new batch of reagent\n")
    recommendation = json.loads(study("show", "study.db", "--json")[1])["recommendation"]
    assert (recommendation["lower"], recommendation["upper"]) == (None, None)
    study("attach", "study.db", -3, f"temperature={second[0]}", f"dose={second[1]}")
    assert "probably between" in study("show", "study.db")[1]


def test_fail_says_whether_the_settings_come_back(study):
    with bd.editing("study.db") as opt:
        opt.ask(2)  # a design point, and one that is none
    assert "may be asked again" in study("fail", "study.db", 1)[1]
    for trial, left in ((0, "at most twice more in a row"), (2, "at most once more in a row")):
        assert f"may be asked again, {left} without a result" in study("fail", "study.db", trial)[1]
        with bd.editing("study.db") as opt:
            assert torch.equal(opt.ask().x, opt.trials[0].x)
    assert "failed 3 times and are not asked any more" in study("fail", "study.db", 3)[1]


def test_the_end_of_a_study(study):
    study("ask", "study.db", "-n", 2)
    assert "finished after 2 trials" in study("finish", "study.db")[1]
    code, _, err = study("ask", "study.db")
    assert (code, len(err)) == (2, 1)
    assert err[0].endswith("To go on as planned, run botorch-delay extend study.db.")
    assert study("tell", "study.db", 0, 0.5)[0] == 0
    assert "may be asked again" in study("fail", "study.db", 1)[1]


def test_results_go_out_to_a_table_and_come_in_from_one(study, command, tmp_path):
    study("ask", "study.db", "-n", 3)
    study("tell", "study.db", 1, 0.25)
    study("fail", "study.db", 2, "--reason", "spilled; all of it")
    study("attach", "study.db", -0.5, "temperature=20", "dose=10")
    assert study("export", "study.db", "out.csv")[1] == "out.csv: 4 trials and attached results\n"
    rows = list(csv.DictReader((tmp_path / "out.csv").read_text().splitlines()))
    assert [row["trial"] for row in rows] == ["0", "1", "2", ""]
    assert [row["state"] for row in rows] == ["running", "completed", "failed", "attached"]
    assert [row["value"] for row in rows] == ["", "0.25", "", "-0.5"]
    assert rows[2]["reason"] == "spilled; all of it"
    assert (float(rows[3]["temperature"]), float(rows[3]["dose"])) == (20.0, 10.0)
    assert datetime.fromisoformat(rows[1]["told_at"]).tzinfo is not None
    out = study("import", "study.db", "out.csv")[1]
    assert out == "0 results attached; left out, as the study has them already: 2\n"
    command("init", "other.db", "--space", "space.toml", "--horizon", 4)
    assert command("import", "other.db", "out.csv")[1] == "2 results attached\n"
    loaded = bd.load("other.db")
    assert [result.value for result in loaded.attached] == [0.25, -0.5]
    assert loaded.attached[0].index == bd.load("study.db").trials[1].index


def test_tables_of_spreadsheets_are_read(study, tmp_path):
    text = "\ufeffdose;operator;temperature;value\n0,1;Ana;20;-1,5\n;;;\n1;Bo;30;2\n1;Bo;30;2\n"
    (tmp_path / "in.csv").write_text(text, encoding="utf-8")
    assert json.loads(study("import", "study.db", "in.csv", "--json")[1]) == {
        "told": 0,
        "attached": 3,
        "known": 0,
    }
    found = [(*result.x.tolist(), result.value) for result in bd.load("study.db").attached]
    assert found == [(20.0, 0.1, -1.5), (30.0, 1.0, 2.0), (30.0, 1.0, 2.0)]


@pytest.mark.parametrize(
    ("text", "messages"),
    [
        ("", ["'temperature'", "got nothing"]),
        ("temperature,value\n20,1", ["'dose'", "temperature, value"]),
        ("temperature,dose,dose,value\n20,1,1,1", ["'dose' once"]),
        ("temperature,dose,value\n20,1,1,1", ["line 2: expected 3 cells, got 4"]),
        (
            "temperature,dose,value\n20,1,1\n30,x,2\n30,1,y\n30,-1,2",
            [
                *("nothing was taken", "line 3: dose must be a number, got 'x'"),
                *("line 4: value", "line 5", "above 0"),
            ],
        ),
        ("temperature,dose,value\n20,1,inf", ["line 2: value must be finite"]),
        (f'temperature,dose,value\n20,1,"{"9" * 140_000}"', ["line 2, is not CSV"]),
        ("temperature,dose,value\n" + "20,1,x\n" * 11, ["line 9:", "and 3 more"]),
    ],
)
def test_a_table_with_mistakes_attaches_nothing(study, tmp_path, text, messages):
    (tmp_path / "in.csv").write_text(text)
    code, out, err = study("import", "study.db", "in.csv")
    assert (code, out, len(err)) == (2, "", 1)
    for message in messages:
        assert message in err[0]
    assert bd.load("study.db").attached == []


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (("temperature=25", "dose=1"), "temperature = 25 is none of 20, 30, 40; the nearest is"),
        (("temperature=20", "dose=0.3"), "dose = 0.3 is none of 0.01, 0.1, 1, 10; the nearest is"),
    ],
)
def test_settings_that_cannot_be_asked_are_warned_of(study, settings, message):
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        code, _, err = study("attach", "study.db", 1.0, *settings)
    assert (code, len(err)) == (0, 1)
    assert err[0].startswith("botorch-delay: warning: The result counts, although")
    assert message in err[0]
    assert len(bd.load("study.db").attached) == 1


def test_files_in_another_encoding_and_folders_that_are_closed(study, tmp_path, monkeypatch):
    (tmp_path / "in.csv").write_bytes("temperature,dose,value,°C\n".encode("latin-1"))
    code, _, (message,) = study("import", "study.db", "in.csv")
    assert code == 2
    assert "CSV UTF-8" in message

    def refuse(*_):
        raise PermissionError(13, "Permission denied", "study.db")

    monkeypatch.setattr(cli, "_show", refuse)
    assert study("show", "study.db") == (1, "", ["botorch-delay: Permission denied: study.db"])


def test_settings_outside_of_a_box_and_combinations_are_warned_of():
    bounds = torch.tensor([[0.0, 1.0], [1.0, 9.0]], dtype=torch.double)
    box = bd.BoxDomain(bounds, {1: list(range(1, 10))}, names=["heat", "steps"])
    with pytest.warns(OutsideWarning, match=r"heat = 2 is not in 0 to 1; steps = 3.5 is none of 1"):
        bd.RandomOptimizer(box).attach({"heat": 2.0, "steps": 3.5}, 1.0)
    arms = bd.FiniteDomain(torch.eye(2, dtype=torch.double), names=["heat", "steps"])
    with pytest.warns(OutsideWarning, match="or feasible: heat = 1, steps = 1"):
        bd.RandomOptimizer(arms).attach({"heat": 1.0, "steps": 1.0}, 1.0)
    bd.RandomOptimizer(arms).attach({"heat": 1.0, "steps": 0.0}, 1.0)
    bd.RandomOptimizer(arms).attach(torch.ones(2, dtype=torch.double), 1.0)  # tensors: no warning


def test_plot_leaves_pictures_of_others_as_they_are(study, tmp_path):
    study("attach", "study.db", -0.5, "temperature=20", "dose=10", "--noise-var", 0.01)
    picture = tmp_path / "study.png"
    picture.write_bytes(b"my own")
    code, _, err = study("plot", "study.db")
    assert (code, len(err)) == (2, 1)
    assert "study.png exists and was not drawn by this command" in err[0]
    assert picture.read_bytes() == b"my own"
    assert study("plot", "study.db", "study.png")[0] == 0  # named: it is meant
    assert study("plot", "study.db")[0] == 0  # its own


def test_plot_draws_a_page(study, tmp_path):
    code, _, err = study("plot", "study.db")
    assert (code, len(err)) == (2, 1)
    assert "no answer yet" in err[0]
    study("attach", "study.db", -0.5, "temperature=20", "dose=10")
    assert study("plot", "study.db")[1].startswith("study.png")
    assert (tmp_path / "study.png").read_bytes().startswith(b"\x89PNG")


def test_failures_abandonment_and_late_answers(study):
    study("ask", "study.db", "-n", 4)
    study("abandon", "study.db", 2, "--reason", "courier lost it")
    assert "trial 2 was abandoned (courier lost it)" in study("show", "study.db")[1]
    study("fail", "study.db", 1, "--reason", "dropped")
    for trial_id in (0, 3):
        study("tell", "study.db", trial_id, 1.0)
    code, out, _ = study("tell", "study.db", 2, "0.42", "--json", "--noise-var", "0.1")
    assert code == 0
    assert json.loads(out)["value"] == 0.42
    trials = bd.load("study.db").trials
    assert [t.state.value for t in trials] == ["completed", "failed", "completed", "completed"]
    assert trials[1].reason == "dropped"
    assert trials[2].came_back
    assert (trials[2].noise_var, trials[2].reason) == (0.1, "")
    assert "abandoned" not in study("show", "study.db")[1]


def test_slips_are_corrected_and_taken_back(study):
    study("ask", "study.db", "-n", 2)
    study("tell", "study.db", 0, 42)
    study("fail", "study.db", 1, "--reason", "spilled")
    out = study("correct", "study.db", 0, "0.42", "--reason", "a comma")[1]
    assert out.startswith("trial 0: result 0.42 (before: 42.0) at temperature = ")
    assert study("correct", "study.db", 1, "-1e-3")[0] == 0
    assert study("correct", "study.db", 1, "none", "--reason", "mixed up")[0] == 0
    out = study("attach", "study.db", 7, "dose=0.1", "temperature=20")[1]
    assert out == "attached result 0: 7 at temperature = 20, dose = 0.1 mg/ml (1 attached in all)\n"
    study("attach", "study.db", 8, "dose=0.1", "temperature=20")
    out = study("detach", "study.db", 0, "--reason", "not ours")[1]
    assert out == "attached result 0 is taken back (1 attached in all)\n"
    code, _, err = study("detach", "study.db", 0)
    assert (code, len(err)) == (2, 1)
    _, out, _ = study("show", "study.db")
    assert "trial 0 had result 42 before it was corrected (a comma)" in out
    assert "trial 1 had failed (spilled) before it was corrected" in out
    assert "trial 1 failed (mixed up)" in out
    assert "trial 1 had result -0.001 before it was corrected (mixed up)" in out
    assert ["1", "20", "0.1", "8"] in [line.split() for line in out.splitlines()]
    assert "attached result 0, 7, was taken back (not ours)" in out
    shown = json.loads(study("show", "study.db", "--json")[1])
    assert shown["trials"][0]["corrections"][0]["value"] == 42.0
    assert [result["id"] for result in shown["detached"]] == [0]
    with closing(sqlite3.connect("study.db")) as db:
        rows = db.execute("SELECT state, value, first_value, reason FROM trials").fetchall()
    assert rows == [("completed", 0.42, 42.0, None), ("failed", None, None, "mixed up")]


def test_show_says_how_many_failures_it_leaves_out(study):
    with bd.editing("study.db") as opt:
        for trial in opt.ask(11)[:8]:
            opt.mark_failed(trial, "spilled")
    assert "earlier trials failed" not in study("show", "study.db")[1]
    with bd.editing("study.db") as opt:
        for trial in opt.pending:
            opt.mark_failed(trial)
    out = study("show", "study.db")[1]
    assert "\n3 earlier trials failed or were abandoned; export lists them\ntrial 3 failed" in out


def test_more_trials_are_planned(study):
    assert study("extend", "study.db", 20)[1].startswith("20 trials are planned now")
    assert bd.load("study.db").horizon == 20
    code, _, err = study("extend", "study.db", 20)
    assert (code, len(err)) == (2, 1)


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
    assert "temperature = 30, dose = 1 mg/ml\n" in out


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
    assert shown["forecast"] is None  # no delays to forecast from
    assert shown["overdue"] == []
    with bd.editing("study.db") as opt:
        for _ in range(14):
            opt.tell(opt.ask(), 0.1)
    _, out, _ = study("show", "study.db")
    assert "closes" not in out.replace("it closes", "")  # not before the last ask
    shown = json.loads(study("show", "study.db", "--json")[1])
    assert shown["forecast"] is None
    assert shown["recommendation"]["count"] >= 1
    assert f"results at these very settings: {shown['recommendation']['count']}" in out
    with bd.editing("study.db") as opt:
        assert [found.trial.id for found in opt.overdue(0.9)] == [0]
        opt.tell(0, 0.2)
    assert "round 1 closes inside the next ask" in study("show", "study.db")[1]


def test_show_forecasts_no_round_that_closes_in_asks_after_the_last(study):
    with bd.editing("study.db") as opt:
        for trial in opt.ask(15):
            opt.tell(trial, 0.1 * trial.id)
        opt.ask()
        assert opt.forecast().asks_left == 0  # its words would count asks
    assert json.loads(study("show", "study.db", "--json")[1])["forecast"] is None


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
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        code, out, err = command("ask", "study.db", "-n", 15, "--json")
    assert (code, len(err)) == (0, 1)
    assert "botorch-delay: warning: 12 of 15 trials were asked" in err[0]
    assert "and no more: No point" in err[0]
    assert [trial["id"] for trial in json.loads(out)] == list(range(12))
    assert len(bd.load("study.db").pending) == 12


def test_a_list_of_arms(command, tmp_path):
    # As spreadsheets write it: with a byte order mark.
    (tmp_path / "arms.csv").write_text("\ufeffa, b\n1,2\n3,4.5\n\n5,6e-1\n")
    (tmp_path / "space.toml").write_text('arms = "arms.csv"')
    init = "init", "s.db", "--space", "space.toml", "--horizon", 5
    assert command(*init, "--minimize")[0] == 0
    opt = bd.load("s.db")
    assert opt.domain.points.tolist() == [[1, 2], [3, 4.5], [5, 0.6]]
    assert not opt.maximize
    assert read_space("space.toml").domain.names == ("a", "b")
    assert opt.domain.names == ("a", "b")


MIXED = """
[parameters.temperature]
low = 20
high = 80
unit = "°C"

[parameters.dose]
low = 0.1
high = 10.0
log = true
round = 2

[parameters.time]
low = 0.5
high = 2.0
step = 0.25

[parameters."stir rate"]
values = [100, 200, 400]

[parameters.acid]
values = ["citric", "malic"]

[parameters.wet]
values = [true, false]
"""


def test_ranges_words_and_switches(command, tmp_path):
    (tmp_path / "space.toml").write_text(MIXED, encoding="utf-8")
    code, out, _ = command("init", "s.db", "--space", "space.toml", "--horizon", 8, "--json")
    assert json.loads(out)["units"] == {"temperature": "°C"}
    assert json.loads(out)["arms"] is None
    trials = json.loads(command("ask", "s.db", "-n", 5, "--json")[1])
    for trial in trials:
        given = trial["parameters"]
        assert type(given["temperature"]) is int
        assert 20 <= given["temperature"] <= 80
        assert given["dose"] == float(f"{given['dose']:.1e}")
        assert given["time"] in (0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0)
        assert given["stir rate"] in (100, 200, 400)
        assert given["acid"] in ("citric", "malic")
        assert type(given["wet"]) is bool
        assert trial["units"] == {"temperature": "°C"}
    settings = ["temperature=90", "dose=0.47", "time=1", "stir rate=250", "acid=malic", "wet=true"]
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        code, _, (warned,) = command("attach", "s.db", "1.5", *settings)
    assert code == 0
    assert "temperature = 90 is none of 20, 21, 22, ..., 80; the nearest is 80" in warned
    assert "stir rate = 250 is none of 100, 200, 400; the nearest is 200" in warned
    opt = bd.load("s.db")
    attached = opt.domain.params(opt.attached[0].x)
    assert attached == {
        "temperature": 90,
        "dose": 0.47,
        "time": 1.0,
        "stir rate": 250,
        "acid": "malic",
        "wet": True,
    }
    assert command("tell", "s.db", 0, 2.0)[0] == 0
    _, out, _ = command("show", "s.db")
    assert f"temperature = {trials[0]['parameters']['temperature']} °C, dose = " in out
    assert f"wet = {str(trials[0]['parameters']['wet']).lower()}" in out
    for wrong, message in {
        "acid=lemon": "acid must be one of ['citric', 'malic'], got 'lemon'",
        "temperature=21.5": "temperature must be a whole number",
        "wet=1": "wet must be one of",
    }.items():
        name = wrong.partition("=")[0]
        mixed = [wrong if setting.startswith(f"{name}=") else setting for setting in settings]
        code, _, err = command("attach", "s.db", "1.5", *mixed)
        assert (code, len(err)) == (2, 1)
        assert message in err[0]


def test_a_name_may_have_an_equals_sign(command, tmp_path):
    (tmp_path / "s.toml").write_text(
        '[parameters."a=b"]\nvalues = [1, 2]\n[parameters.a]\nvalues=[3]'
    )
    command("init", "s.db", "--space", "s.toml", "--horizon", 8)
    assert "7 at a=b = 2, a = 3" in command("attach", "s.db", 7, "a=3", "a=b=2")[1]


def test_words_and_switches_go_out_and_come_in(command, tmp_path):
    (tmp_path / "space.toml").write_text(MIXED, encoding="utf-8")
    for name in ("one.db", "other.db"):
        command("init", name, "--space", "space.toml", "--horizon", 8)
    with bd.editing("one.db") as opt:
        for trial in opt.ask(3):
            opt.tell(trial, 0.1 + trial.id)
    command("export", "one.db", "out.csv")
    assert command("import", "other.db", "out.csv")[1] == "3 results attached\n"
    told, read = bd.load("one.db"), bd.load("other.db")
    assert [read.domain.params(r.x) for r in read.attached] == [t.params for t in told.trials]
    assert [r.value for r in read.attached] == [t.value for t in told.trials]


def test_init_says_what_it_understood(command, tmp_path):
    (tmp_path / "space.toml").write_text(MIXED, encoding="utf-8")
    _, out, _ = command("init", "s.db", "--space", "space.toml", "--horizon", 8)
    assert out.splitlines()[:3] == [
        "s.db: a box of temperature, dose, time, stir rate, acid, wet",
        "  temperature: a whole number from 20 to 80 (°C)",
        "  dose: a number from 0.1 to 10 with at most 2 significant digits, by its logarithm",
    ]


def test_arms_may_be_words_and_have_units(command, tmp_path):
    (tmp_path / "arms.csv").write_text("acid,dose\ncitric,1\nmalic,10\ncitric,10\n")
    table = 'arms = "arms.csv"\n[parameters.dose]\nlow = 1\nhigh = 10\nlog = true\nunit = "mg"'
    (tmp_path / "space.toml").write_text(table)
    _, out, _ = command("init", "s.db", "--space", "space.toml", "--horizon", 5)
    assert "3 arms of acid, dose" in out
    domain = bd.load("s.db").domain
    assert domain.log_dims == (1,)
    assert domain.columns.units == {"dose": "mg"}
    assert domain.params(domain.points[1]) == {"acid": "malic", "dose": 10}
    # What the table of arms says need not be repeated.
    table = '[parameters.dose]\nlog = true\nunit = "mg"\n[parameters.acid]\nunit = "-"'
    (tmp_path / "space.toml").write_text(f'arms = "arms.csv"\n{table}')
    again = read_space(tmp_path / "space.toml")
    assert again.parameters["dose"] == domain.columns.parameters["dose"]
    assert again.parameters["acid"] == bd.Choice(["citric", "malic"], unit="-")
    # A column of mixed cells is reported.
    (tmp_path / "arms.csv").write_text("acid,dose\ncitric,1\nmalic,10\ncitric,full\n")
    with pytest.raises(InputError, match=r"arms.csv, line 4 has dose = 'full', where most"):
        read_space(tmp_path / "space.toml")
    table = 'arms = "arms.csv"\n[parameters.dose]\nvalues = [1, 10, "full"]'
    (tmp_path / "space.toml").write_text(f"{table}\n[parameters.acid]\nunit = '-'")
    mixed = read_space(tmp_path / "space.toml")
    assert mixed.domain.params(mixed.domain.points[2]) == {"acid": "citric", "dose": "full"}


BAD_SPACES = {
    "no column to complete": (
        'arms = "a.csv"\n[parameters.z]\nunit = "x"',
        "The arms have no column 'z'",
    ),
    "nothing": ("", "at least one"),
    "both": ('arms = "x.csv"\n[parameters.a]\nvalues=[1]', "No such file"),
    "other": ("[params.a]\nlow = 0\nhigh = 1", "'params' is unknown; expected at least one"),
    "not toml": ("= 3", "not TOML"),
    "no file": ('arms = "none.csv"', "No such file"),
    "no table": ("[parameters]\na = 3", "parameter a: expected a table"),
    "empty": ("[parameters]", "at least one"),
    "unknown key": (
        "[parameters.a]\nlow = 0\nhigh = 1\nstpe = 1",
        "parameter a: 'stpe' does not belong here; expected values",
    ),
    "key of a range": ("[parameters.a]\nvalues = [1, 2]\nstep = 1", "'step' does not belong here"),
    "word": ('[parameters.a]\nvalues = "x"', "parameter a: values must be a list"),
    "no column": (
        'arms = "a.csv"\n[parameters.c]\nvalues = ["x"]',
        "arms have no column 'c'; they",
    ),
    "binary": ("\xff", "not text in UTF-8; save it as that"),
    "no values": ("[parameters.a]\nvalues = []", "parameter a: A choice needs at least one value"),
    "nan": ("[parameters.a]\nvalues = [nan]", "parameter a: values must not contain NaN"),
    "one value": ("[parameters.a]\nvalues = [1]", "two values or more"),
    "same value": (
        "[parameters.a]\nvalues = [1, 1.0]",
        "parameter a: values must differ; 1 and 1.0",
    ),
    "missing": ("[parameters.a]\nlow = 1", "parameter a: 'high' is missing; expected values"),
    "mixed": ("[parameters.a]\nlow = 1\nvalues = [1]", "'low' does not belong here"),
    "crossed": ("[parameters.a]\nlow = 2\nhigh = 1\nsteps = 3", "parameter a: low must be below"),
    "too wide": ("[parameters.a]\nlow=-1.7e308\nhigh=1.7e308\nsteps=3", "difference finite"),
    "crossed range": ("[parameters.a]\nlow = 2\nhigh = 1", "parameter a: low must not be above"),
    "one step": ("[parameters.a]\nlow = 1\nhigh = 2\nsteps = 1", "at least 2"),
    "log of zero": ("[parameters.a]\nlow = 0\nhigh = 2\nsteps = 3\nlog = true", "above 0"),
    "log of words": ('[parameters.a]\nvalues = ["x", "y"]\nlog = true', "needs ordered=True"),
    "log": ('[parameters.a]\nlow = 1\nhigh = 2\nlog = "yes"', "True or False"),
    "unit": ("[parameters.a]\nlow = 1\nhigh = 2\nunit = 3", "unit must be a string"),
    "round": ("[parameters.a]\nlow = 0.5\nhigh = 2\nround = 1", "round counts significant digits"),
    "file name": ("arms = 3", "name of a CSV file"),
    "no name": ('[parameters.""]\nvalues = [1, 2]', "not empty"),
    "too many": (
        "\n".join(f"[parameters.a{i}]\nlow=0\nhigh=1\nsteps=1000" for i in range(3)),
        "at most 1000000",
    ),
}


def test_steps_are_numbers_that_people_write(tmp_path):
    path = tmp_path / "space.toml"
    path.write_text(
        "[parameters]\na = {low = -0.3, high = 0.7, steps = 11}\n"
        "b = {low = 0, high = 1, steps = 4}\nc = {low = 1e-4, high = 1, steps = 5, log = true}"
    )
    a, b, c = read_space(path).parameters.values()
    assert a.values == (-0.3, -0.2, -0.1, 0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7)
    assert math.copysign(1.0, a.values[3]) == 1.0
    assert b.values == (0, 0.333333333333, 0.666666666667, 1)
    assert c.values == (1e-4, 1e-3, 1e-2, 0.1, 1)


@pytest.mark.parametrize("name", BAD_SPACES)
def test_bad_spaces_give_one_line(command, tmp_path, name):
    text, message = BAD_SPACES[name]
    (tmp_path / "space.toml").write_bytes(text.encode("latin-1"))
    (tmp_path / "a.csv").write_text("a,b\n1,2\n3,4")
    code, out, err = command("init", "s.db", "--space", "space.toml", "--horizon", 5)
    assert (code, out, len(err)) == (2, "", 1)
    assert err[0].startswith("botorch-delay: ")
    assert "space.toml" in err[0] or "csv" in err[0]
    assert message in err[0]
    assert not (tmp_path / "s.db").exists()


def test_bad_arms_give_one_line(command, tmp_path):
    (tmp_path / "arms.csv").write_text("a,b\n1,2\n3,4\n1,2")
    (tmp_path / "space.toml").write_text('arms = "arms.csv"')
    code, _, err = command("init", "s.db", "--space", "space.toml", "--horizon", 5)
    assert (code, len(err)) == (2, 1)
    assert "space.toml: Arms must be distinct; arms.csv, line 2 and arms.csv, line 4" in err[0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("init", "study.db", "--space", "space.toml", "--horizon", 5), "exists already"),
        (("init", "new.db", "--space", "none.toml", "--horizon", 5), "No such file"),
        (("init", "new.db", "--space", "space.toml", "--horizon", 0), "at least 1"),
        (("init", "new.db", "--space", "space.toml"), "--horizon"),
        (("init", "no/new.db", "--space", "space.toml", "--horizon", 5), "does not exist"),
        (("ask", "none.db"), "no such file"),
        (("ask", "space.toml"), "study; make one with botorch-delay init STUDY --space space"),
        (("ask", "study.db", "-n", 0), "at least 1"),
        (("ask", "study.db", "-n", 17), "asks requested: 17"),
        (("ask", "study.db", "-n", "x"), "expected a whole number, got 'x'"),
        (("tell", "study.db", 7, 0.5), "no trial 7"),
        (("tell", "study.db", 0, "nan"), "finite"),
        (("tell", "study.db", 0, "much"), "must be a number, got 'much'"),
        (("tell", "study.db", 0, "-0,5"), "no commas, such as -0.5; got -0,5"),
        (("tell", "study.db", 0.5, 0), "the whole number that ask printed"),
        (("ask", "study.db", 3), "unrecognized arguments: 3 (usage: botorch-delay ask"),
        (("note", "study.db", " "), "not be empty"),
        (("note", "study.db", ""), "not be empty, got"),
        (("export", "study.db", "study.db"), ".csv file"),
        (("import", "study.db", "none.csv"), "No such file"),
        (("plot", "study.db", "out.jpg"), ".png file"),
        (("attach", "study.db", 1.0, "temperature=20", "dose=0,1"), "such as 0.1; got 0,1"),
        (("tell", "study.db", 0, 0.5, "--noise-var", "-1"), "above 0"),
        (("tell", "study.db", 0, 0.5, "--noise-var", "x"), "expected a number, got 'x'"),
        (("tell", "study.db", 0, 0.5, "--noise", "0.1"), "unrecognized arguments: --noise"),
        (("tell", "study.db", 0, "-inf"), "finite"),
        (("attach", "study.db", 1.0, "temperature=20"), "['dose'] missing"),
        (("attach", "study.db", 1.0, "temperature=20", "dose=x"), "dose must be a number"),
        (("attach", "study.db", 1.0, "temperature=20", "dose=1", "x=1"), "['x'] unknown"),
        (("attach", "study.db", 1.0, "temperature=20", "dose"), "NAME=VALUE"),
        (("attach", "study.db", 1.0, "dose=1", "dose=2", "temperature=20"), "NAME=VALUE"),
        (("attach", "study.db", 1.0, "temperature=20", "dose=-1"), "above 0"),
        (("ask", "."), "not a file"),
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


def test_messages_name_commands_and_no_calls(study):
    study("ask", "study.db", "-n", 2)
    study("tell", "study.db", 0, 0.5)
    _, _, (told_twice,) = study("tell", "study.db", 0, 0.6)
    assert "botorch-delay correct study.db 0 VALUE" in told_twice
    assert "botorch-delay attach study.db VALUE NAME=VALUE ..." in told_twice
    _, _, (too_many,) = study("ask", "study.db", "-n", 15)
    assert "botorch-delay extend study.db HORIZON" in too_many
    assert "botorch-delay show study.db" in too_many
    assert "(" not in too_many


def test_a_warning_names_the_command_that_takes_back(study):
    for number in range(9):
        study("attach", "study.db", number / 10, "temperature=20", "dose=0.1")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        _, _, (warned,) = study("attach", "study.db", 1e6, "temperature=20", "dose=0.1")
    assert "if it is a mistake, run botorch-delay detach study.db 9." in warned


def test_names_with_spaces_are_quoted_where_they_can_be_copied(study):
    out = study("init", "my study.db", "--space", "space.toml", "--horizon", 2)[1]
    assert out.startswith("my study.db: 12 arms")
    assert "next: botorch-delay ask 'my study.db'\n" in out
    assert "botorch-delay tell 'my study.db' ID RESULT" in study("ask", "my study.db")[1]
    study("tell", "my study.db", 0, 1)
    assert "botorch-delay correct 'my study.db' 0" in study("tell", "my study.db", 0, 1)[2][0]
    assert "--space 'my space.toml' --horizon N" in study("ask", "my space.toml")[2][0]


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
        "box.db": (bd.BPEDelayOptimizer(box, 10), "of the box can still be the best"),
        "random.db": (
            bd.RandomOptimizer(box),
            "RandomOptimizer looks for the largest value on a box",
        ),
        "bucb.db": (
            bd.AcquisitionOptimizer(bd.FiniteDomain(torch.arange(5).double().unsqueeze(-1))),
            "AcquisitionOptimizer looks for the largest value on 5 points",
        ),
    }
    for name, (opt, expected) in made.items():
        for trial in opt.ask(4)[:3]:
            opt.tell(trial, trial.x.item())
        opt.save(tmp_path / name)
        assert cli.main(["show", str(tmp_path / name)]) == 0
        shown = capsys.readouterr().out
        assert expected in shown
        assert "recommended settings (to maximize the result)" in shown
        assert cli.main(["ask", str(tmp_path / name), "--json"]) == 0
        assert json.loads(capsys.readouterr().out)[0]["id"] == 4
        assert cli.main(["tell", str(tmp_path / name), "4", "0.5"]) == 0
        capsys.readouterr()


def test_a_table_with_a_choice_of_none_is_read_again(tmp_path):
    opt = bd.RandomOptimizer(bd.Space(c=bd.Choice([None, "x", (1, 2), "auto", 3, 0.5, {"a": 1}])))
    for trial in opt.ask(20):
        opt.tell(trial, float(trial.id))
    assert len({str(trial.params) for trial in opt.trials}) == 7
    write_results(opt, tmp_path / "results.csv")
    fresh = bd.RandomOptimizer(opt.domain)
    assert import_results(fresh, tmp_path / "results.csv") == (0, 20, 0)
    assert [opt.domain.params(own.x) for own in fresh.attached] == [t.params for t in opt.trials]


def test_a_table_with_names_that_end_in_spaces_or_are_columns_is_read_again(tmp_path):
    space = bd.Space({" a": bd.Int(1, 9), "a": bd.Int(1, 9), "state ": bd.Int(1, 9)})
    opt = bd.RandomOptimizer(space)
    for trial in opt.ask(5):
        opt.tell(trial, float(trial.id))
    write_results(opt, tmp_path / "results.csv")
    fresh = bd.RandomOptimizer(space)
    assert import_results(fresh, tmp_path / "results.csv") == (0, 5, 0)
    assert [space.domain.params(own.x) for own in fresh.attached] == [t.params for t in opt.trials]


def test_a_value_too_large_to_compute_with_takes_no_other_row_along(tmp_path):
    opt = bd.RandomOptimizer(bd.Space(t=bd.Choice([20, 30])))
    path = tmp_path / "results.csv"
    trial = opt.ask()
    settings = opt.domain.params(trial.x)["t"]
    path.write_text(f"trial,t,state,value\n,20,,1.0\n0,{settings},running,1e200\n")
    with pytest.raises(
        InputError, match=r"nothing was taken. line 3: value must be at most 1e\+150"
    ):
        import_results(opt, path)
    assert opt.attached == []
    assert trial.value is None


def test_values_that_look_like_numbers_or_end_in_spaces_are_read_again(tmp_path):
    isomers = bd.Choice(["1,2", "1.2", "1,3", "007", "7", 7.5])
    spaced = bd.Choice(["a ", "b", "c", " c", "d "])
    opt = bd.RandomOptimizer(bd.Space(isomer=isomers, label=spaced))
    for trial in opt.ask(60):
        opt.tell(trial, float(trial.id))
    path = tmp_path / "results.csv"
    write_results(opt, path)
    rows = list(csv.reader(path.read_text().splitlines()))
    with path.open("w", newline="") as file:  # as spreadsheets with decimal commas do
        csv.writer(file, delimiter=";").writerows(rows)
    fresh = bd.RandomOptimizer(opt.domain)
    assert import_results(fresh, path) == (0, 60, 0)
    assert [opt.domain.params(own.x) for own in fresh.attached] == [t.params for t in opt.trials]
    path.write_text("isomer;label;value\n7,5;a;0,5\n1.3;b;1\n")
    with pytest.raises(InputError, match=r"nothing was taken. line 3: isomer must be one of"):
        import_results(fresh, path)
    path.write_text("isomer;label;value\n7,5;a;0,5\n")
    assert import_results(fresh, path) == (0, 1, 0)
    assert fresh.domain.params(fresh.attached[-1].x) == {"isomer": 7.5, "label": "a "}
    ambiguous = bd.RandomOptimizer(bd.Space(label=bd.Choice(["a ", " a"])))
    path.write_text("label,value\na,1\n")
    with pytest.raises(InputError, match="label must be one of"):
        import_results(ambiguous, path)


def test_results_filled_in_for_running_trials_are_told(study, tmp_path):
    dose = "[parameters.dose]\nlow = 1e-3\nhigh = 1.0\nlog = true"
    heat = "[parameters.heat]\nlow = 0.0\nhigh = 1.0"
    (tmp_path / "box.toml").write_text(f"{heat}\n{dose}")
    for name in ("one.db", "other.db"):
        study("init", name, "--space", "box.toml", "--horizon", 9, "--seed", len(name))
    with bd.editing("one.db") as opt:
        opt.ask(4)
        opt.tell(3, 3.0)
    with bd.editing("other.db") as opt:
        opt.attach({"heat": 0.5, "dose": 0.5}, 1.0)
        opt.ask(4)
        for trial in (0, 1):
            opt.tell(trial, 0.0)
    study("export", "one.db", "out.csv")
    rows = list(csv.DictReader((tmp_path / "out.csv").read_text().splitlines()))
    rows[0]["value"], rows[1]["value"], rows[2]["value"] = "0.5", "1.5", "2.5"
    rows[1]["heat"] = f"{float(rows[1]['heat']):.6g}"  # as spreadsheets show it
    rows[2]["heat"] = "0.123"  # another setting was tried

    def write(rows):
        with (tmp_path / "filled.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, rows[0].keys())
            writer.writeheader()
            writer.writerows(rows)

    write([rows[0], rows[1], {**rows[2], "value": "x"}])
    code, _, (message,) = study("import", "one.db", "filled.csv")
    assert code == 2
    assert "nothing was taken. line 4" in message
    assert len(bd.load("one.db").pending) == 3
    write(rows)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        _, out, (said,) = study("import", "one.db", "filled.csv")
    moved = (
        r"warning: line 4: trial 2 still runs, with heat = .*; this row has heat = 0.123, .*, so "
    )
    assert re.search(f"{moved}it counts as another result", said)
    left_out = "; left out, as the study has them already: 1\n"
    assert out == f"2 results of running trials told, 1 result attached{left_out}"
    opt = bd.load("one.db")
    assert [trial.value for trial in opt.trials] == [0.5, 1.5, None, 3.0]
    assert [result.value for result in opt.attached] == [2.5]
    # Again: all is known, the one with rounded settings, too.
    again = json.loads(study("import", "one.db", "filled.csv", "--json")[1])
    assert again == {"told": 0, "attached": 0, "known": 4}
    # The finished trials of another study that asked the same are results from elsewhere.
    study("init", "twin.db", "--space", "box.toml", "--horizon", 9, "--seed", len("one.db"))
    with bd.editing("twin.db") as opt:
        opt.ask(4)
    study("export", "one.db", "done.csv")
    assert json.loads(study("import", "twin.db", "done.csv", "--json")[1])["told"] == 0
    assert len(bd.load("twin.db").pending) == 4
    # In another study trials 2 and 3 run with other settings.
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        _, out, said = study("import", "other.db", "filled.csv")
    assert out == "4 results attached\n"
    assert len(said) == 1
    assert [trial.id for trial in bd.load("other.db").pending] == [2, 3]


@pytest.mark.parametrize(
    "change",
    [
        lambda row: row | {"trial": f"{row['trial']}.0"},  # as pandas writes it beside a gap
        lambda row: row | {"state": "done" if row["value"] else "running"},
        lambda row: {k: v for k, v in row.items() if k in ("trial", "dose", "value")},
    ],
)
def test_filled_in_rows_are_told_in_whatever_form_they_come_back(tmp_path, change):
    opt = bd.RandomOptimizer(bd.Space(dose=bd.Float(0, 1)))
    opt.ask(2)
    opt.attach({"dose": 0.5}, 9.0)
    path, filled = tmp_path / "out.csv", tmp_path / "filled.csv"
    write_results(opt, path)
    rows = list(csv.DictReader(path.read_text().splitlines()))
    rows[1] = rows[1] | {"value": "2.5", "noise_var": "0.25"}
    rows = [change(row) if row["trial"] else row for row in rows[:2]]
    lines = [",".join(rows[0]), *(",".join(row.values()) for row in rows)]
    filled.write_text("\n".join(lines))
    expected = "Lines without a value were left out: 2" if len(rows[0]) == 3 else None
    with pytest.warns(UserWarning, match=expected) if expected else contextlib.nullcontext():
        assert import_results(opt, filled) == (1, 0, 0)
    assert [trial.value for trial in opt.trials] == [None, 2.5]
    assert opt.trials[1].noise_var == (None if expected else 0.25)


def test_a_row_that_may_be_meant_as_a_correction_is_warned_of(tmp_path):
    opt = bd.RandomOptimizer(bd.Space(dose=bd.Float(0, 1)))
    opt.ask(2)
    opt.tell(0, 1.25, 0.5)
    opt.mark_failed(1)
    path = tmp_path / "out.csv"
    write_results(opt, path)
    rows = list(csv.DictReader(path.read_text().splitlines()))
    rows[0]["value"], rows[1]["value"] = "1.5", "7"
    path.write_text("\n".join([",".join(rows[0]), *(",".join(row.values()) for row in rows)]))
    with pytest.warns(UserWarning, match="result") as caught:
        assert import_results(opt, path) == (0, 2, 0)
    said = [str(each.message) for each in caught]
    assert said[0].startswith("line 2: trial 0 has 1.25 already, so 1.5 counts as another result")
    assert said[1].startswith("line 3: trial 1 failed, so 7.0 counts as another result")
    assert [result.noise_var for result in opt.attached] == [0.5, None]
    assert import_results(opt, path) == (0, 0, 2)  # once is enough


def test_an_abandoned_trial_takes_a_late_answer_by_tell(tmp_path):
    opt = bd.RandomOptimizer(bd.Space(dose=bd.Choice([None, 1])))
    opt.mark_abandoned(opt.ask())
    path = tmp_path / "out.csv"
    write_results(opt, path)
    row = next(csv.DictReader(path.read_text().splitlines())) | {"value": "0.5", "dose": ""}
    row["told_at"] = row["told_at"].removesuffix("+00:00")  # None and times as pandas writes them
    row["dose"] = "" if opt.trials[0].params["dose"] is None else "1"
    path.write_text("\n".join([",".join(row), ",".join(row.values())]))
    with pytest.warns(UserWarning, match=r"was abandoned, .* run botorch-delay tell STUDY 0 0.5"):
        assert import_results(opt, path) == (0, 1, 0)


@pytest.mark.parametrize(
    ("exact", "message"),
    [
        (False, "line 2: noise_var must be above 0"),
        (True, "line 2: evaluations are exact; leave out noise_var"),
    ],
)
def test_noise_variances_that_cannot_be_used_stop_the_import(tmp_path, exact, message):
    opt = bd.BPEDelayOptimizer(bd.Space(dose=bd.Float(0, 1)), horizon=9, exact=exact)
    (tmp_path / "in.csv").write_text("dose,value,noise_var\n0.25,1.0,0\n0.5,2.0,NA\n")
    with pytest.raises(InputError, match=message):
        import_results(opt, tmp_path / "in.csv")
    assert opt.attached == []


def test_a_comma_in_a_quoted_column_name_is_no_separator(tmp_path):
    opt = bd.RandomOptimizer(bd.Space({"dose, mg": bd.Float(0, 1)}))
    (tmp_path / "in.csv").write_text('"dose, mg";value\n0,5;1,25\n')
    assert import_results(opt, tmp_path / "in.csv") == (0, 1, 0)
    assert [(result.x.item(), result.value) for result in opt.attached] == [(0.5, 1.25)]


def test_a_row_that_someone_has_typed_is_not_overwritten(tmp_path):
    opt = bd.RandomOptimizer(bd.Space(dose=bd.Float(0, 1)))
    opt.tell(opt.ask(), 1.0)
    path = tmp_path / "out.csv"
    write_results(opt, path)
    before = path.read_text() + ",0.5,,,,,planned,,,\n"
    path.write_text(before)
    with pytest.raises(InputError, match="holds a row that the study does not have, in line 3"):
        write_results(opt, path)
    assert path.read_text() == before


def test_what_was_taken_back_or_corrected_is_not_imported_again(tmp_path):
    opt = bd.RandomOptimizer(bd.Space(dose=bd.Float(0, 1)))
    for trial in opt.ask(3):
        opt.tell(trial, float(trial.id))
    opt.attach({"dose": 0.5}, 9.0)
    write_results(opt, tmp_path / "results.csv")
    opt.detach(0)
    opt.correct(1, 1.5)
    opt.correct(2, None)
    assert import_results(opt, tmp_path / "results.csv") == (0, 0, 4)
    assert opt.attached == []


def test_no_table_of_somebody_else_is_replaced(tmp_path):
    opt = bd.BPEDelayOptimizer(bd.Space(dose=bd.Float(0, 1), c=bd.Choice(["a\nb", "d"])), 10)
    path = tmp_path / "results.csv"
    write_results(opt, path)
    for _ in range(4):
        opt.tell(opt.ask(), 1.0)
    assert write_results(opt, str(path)) == 4  # it may replace its own table
    other = tmp_path / "other.csv"
    other.write_text("dose,value\n0.5,1_5\n")
    with pytest.raises(InputError, match="not a table of this study's results"):
        write_results(opt, other)
    assert other.read_text() == "dose,value\n0.5,1_5\n"
    header, *rows = path.read_text().splitlines()
    annotated = "\n".join([f"{header},remark", *(f"{row},seen" for row in rows)])
    other.write_text(annotated)
    with pytest.raises(InputError, match="its column 'remark' would be lost; it was left as it is"):
        write_results(opt, other)
    assert other.read_text() == annotated
    fresh = bd.BPEDelayOptimizer(opt.domain, 10)
    assert import_results(fresh, path) == (0, 4, 0)
    other.write_text("dose,c,value\n0.5,d,1_5\n")
    with pytest.raises(InputError, match="value must be a number, got '1_5'"):
        import_results(fresh, other)


def test_a_table_with_results_that_the_study_does_not_have_is_not_replaced(tmp_path):
    opt = bd.RandomOptimizer(bd.Space(dose=bd.Float(0, 1)))
    opt.ask(2)
    path = tmp_path / "results.csv"
    write_results(opt, path)
    header, first, second = path.read_text().splitlines()
    place = header.split(",").index("value")
    cells = first.split(",")
    cells[place] = "0.77"
    filled = "\n".join([header, ",".join(cells), second])
    path.write_text(filled)
    with pytest.raises(InputError, match="does not have, in line 2; it was left"):
        write_results(opt, path)
    assert path.read_text() == filled
    assert import_results(opt, path) == (1, 0, 0)
    assert write_results(opt, path) == 2
    assert "0.77" in path.read_text()


def test_a_table_that_a_spreadsheet_has_rounded_holds_nothing_new(tmp_path):
    opt = bd.RandomOptimizer(bd.Space(dose=bd.Choice([1, 2])))
    for trial, value in zip(opt.ask(2), (1 / 3, 2 / 3), strict=True):
        opt.tell(trial, value)
    opt.correct(1, 1 / 7)
    path = tmp_path / "results.csv"
    write_results(opt, path)
    path.write_text(path.read_text().replace(str(1 / 3), "0.3333333333"))
    path.chmod(0o600)
    assert import_results(opt, path) == (0, 0, 2)
    assert write_results(opt, path) == 2
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(InputError, match=r"Cannot write .*Not a directory"):
        write_results(opt, path / "inside.csv")


def test_an_export_that_fails_leaves_the_table_as_it_was(tmp_path, monkeypatch):
    opt = bd.RandomOptimizer(bd.Space(dose=bd.Float(0, 1)))
    opt.tell(opt.ask(), 1.0)
    path = tmp_path / "results.csv"
    write_results(opt, path)
    before = path.read_text()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(csv.DictWriter, "writeheader", full)
    with pytest.raises(InputError, match="No space left on device"):
        write_results(opt, path)
    assert path.read_text() == before
    assert list(tmp_path.iterdir()) == [path]


def test_words_of_others_steer_neither_terminals_nor_spreadsheets(study):
    study("ask", "study.db", "-n", 2)
    study("fail", "study.db", 0, "--reason", "=cmd|' /C calc'!A0")
    study("fail", "study.db", 1, "--reason", "\x1b]0;title\x07 gone")
    study("note", "study.db", "half a character: \udc80")
    code, out, _ = study("show", "study.db")
    assert code == 0
    assert "(?]0;title? gone)" in out
    assert "half a character: \\udc80" in out
    study("export", "study.db", "results.csv")
    with open("results.csv", newline="") as file:
        assert next(csv.DictReader(file))["reason"] == "'=cmd|' /C calc'!A0"


def test_reasons_are_kept_in_part_if_they_are_as_long_as_books():
    opt = bd.RandomOptimizer(bd.Space(dose=bd.Float(0, 1)))
    opt.mark_failed(opt.ask(), RuntimeError("x" * 10**6))
    assert len(opt.trials[0].reason) == 10_000


def test_arms_with_columns_of_results_are_refused(command, tmp_path):
    (tmp_path / "arms.csv").write_text("heat,value\n1,0.2\n3,0.5\n")
    (tmp_path / "space.toml").write_text('arms = "arms.csv"')
    code, _, err = command(
        "init", "--space", tmp_path / "space.toml", "--horizon", 5, tmp_path / "a.db"
    )
    assert code == 2
    assert "arms.csv has a column 'value', as tables of results have" in err[0]
    (tmp_path / "space.toml").write_text('arms = "arms.csv"\n[parameters.value]\nlog = true\n')
    assert (
        command("init", "--space", tmp_path / "space.toml", "--horizon", 5, tmp_path / "a.db")[0]
        == 0
    )
