import csv
import json
import subprocess
import sys

import numpy as np
import pytest
from interrupted import kill_once

from botorch_delay.cli import main
from botorch_delay.exceptions import InputError, MissingExtraError
from botorch_delay.reproduction import describe, reproduce
from botorch_delay.reproduction.cells import FUNCTIONS, METHODS, Cell, Setting, cells, play
from botorch_delay.reproduction.verdicts import interval, judge, read_curves

TINY = Setting(side=8, horizon=40, repeats=2, delays=(0, 3, 6))


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reproduction") / "new" / "folder"
    return folder, reproduce(folder, TINY, workers=1, progress=False)


def test_every_cell_is_in_the_table(made):
    _, result = made
    with result.table.open() as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == 2 * len(METHODS) * 3 * 2 * 4
    assert {row["method"] for row in rows} == set(METHODS)
    assert {(row["function"], row["lengthscale"]) for row in rows} == {("f1", "0.8"), ("f2", "1.0")}
    _, curves = read_curves(result.table)
    played = play(TINY, Cell("f2", "GP-BUCB", 6, 1))
    np.testing.assert_allclose(curves["f2", "GP-BUCB", 6][1], played[9::10], atol=1e-6)
    assert all((np.diff(runs, axis=1) >= 0).all() for runs in curves.values())


def test_there_are_five_figures_and_a_report(made):
    _, result = made
    assert [path.name for path in result.figures] == [f"figure{i}.png" for i in range(1, 6)]
    assert all(path.stat().st_size > 10_000 for path in result.figures)
    report = result.report.read_text()
    for verdict in result.verdicts:
        assert verdict.sentence in report
        assert f"**{verdict.word}**" in report
    assert "1,571" in report
    assert "not the paper's" in report
    assert "GP-BUCB" in describe(result)


def test_verdicts_follow_the_table(made, tmp_path):
    _, result = made

    def word(factor, method, beginning):
        with result.table.open() as stream:
            rows = list(csv.DictReader(stream))
        for row in rows:
            if row["method"] == method:
                row["regret"] = float(row["regret"]) * factor
        with (tmp_path / "changed.csv").open("w", newline="") as stream:
            writer = csv.DictWriter(stream, rows[0].keys())
            writer.writeheader()
            writer.writerows(rows)
        found = [v for v in judge(tmp_path / "changed.csv") if v.sentence.startswith(beginning)]
        return found[0].word

    improvement = "Figure 2: a significant improvement of BPE-Delay over GP-UCB-SDF on both"
    assert word(100.0, "GP-UCB-SDF", improvement) == "holds"
    assert word(100.0, "BPE-Delay", improvement) == "does not hold"
    better = "Figure 5: BPE-Delay performs better"
    assert word(100.0, "BPE", better) == "holds"
    assert word(0.01, "BPE", better) == "does not hold"


def test_the_set_up_is_read_from_the_table(made):
    _, result = made
    words = {v.sentence: v.word for v in result.verdicts[:7]}
    assert words["The noise has standard deviation 0.02."] == "holds"
    assert words["psi uses xi = 9."] == "holds"
    assert words["The learner can choose from 2500 points."] == "does not hold"
    assert words["The curves are the average of 10 independent experiments."] == "does not hold"


def test_excess_and_jump_are_judged_by_the_figures(tmp_path):
    def table(regret):
        with (tmp_path / "made.csv").open("w", newline="") as stream:
            writer = csv.writer(stream)
            writer.writerow(
                ("function", "lengthscale", "method", "delay", "repeat", "step", "regret")
            )
            for function in FUNCTIONS:
                for method in METHODS:
                    for delay in (0, 25, 50):
                        for repeat in range(4):
                            value = regret(method, delay) + repeat
                            writer.writerow((function, 1.0, method, delay, repeat, 10, value))
        return {v.sentence[:8]: v for v in judge(tmp_path / "made.csv")}

    linear = table(lambda method, delay: 100 + delay)
    assert linear["Figure 3"].holds
    assert not linear["Figure 4"].holds
    assert linear["Figure 2"].holds is None  # no difference at all
    steep = table(lambda method, delay: 100 + delay**2 * (1 if "BPE" in method else 9))
    assert not steep["Figure 3"].holds
    assert steep["Figure 4"].holds


def test_intervals_are_student_s():
    mean, low, high = interval(np.array([1.0, 2.0, 3.0]))
    assert mean == 2.0
    assert high - mean == pytest.approx(2.919986 / 3**0.5, abs=1e-5)
    assert interval(np.array([1.0]))[1:] == (-np.inf, np.inf)
    assert mean - low == pytest.approx(high - mean)


def test_what_is_done_is_not_played_again(made):
    folder, _ = made
    files = sorted((folder / "runs").iterdir())
    before = {path: path.stat().st_mtime_ns for path in files}
    contents = files[3].read_text()
    files[3].unlink()
    damaged = files[5].read_text()
    files[5].write_text(damaged[:40])
    result = reproduce(folder, TINY, workers=1, progress=False)
    assert files[3].read_text() == contents
    assert files[5].read_text() == damaged
    kept = [path for path in files if path not in (files[3], files[5])]
    assert all(path.stat().st_mtime_ns == before[path] for path in kept)
    assert len(result.verdicts) == 19


def test_every_method_sees_the_same_noise_and_delays():
    """At mean delay 0 the three upper confidence bounds are one method."""
    curves = [play(TINY, Cell("f1", m, 0, 1)) for m in ("GP-UCB-SDF", "GP-BUCB")]
    assert curves[0] == curves[1]


def test_functions_are_redrawn_on_demand():
    again = Setting(side=8, horizon=20, repeats=2, delays=(0, 3), redraw=True)
    assert play(again, Cell("f1", "BPE", 3, 1)) != play(
        Setting(side=8, horizon=20, repeats=2, delays=(0, 3)), Cell("f1", "BPE", 3, 1)
    )


def test_the_paper_s_setting():
    setting = Setting()
    assert (setting.side**2, setting.horizon, setting.repeats) == (2500, 1000, 10)
    assert len(cells(setting)) == 2 * 3 * 10 * len(METHODS)
    assert len({cell.name for cell in cells(setting)}) == len(cells(setting))


def test_a_folder_with_something_else_is_left_alone(made, tmp_path):
    folder, _ = made
    with pytest.raises(InputError, match="another setting"):
        reproduce(folder, Setting.quick(), workers=1)
    (tmp_path / "thesis.txt").write_text("precious")
    with pytest.raises(InputError, match="is not empty"):
        reproduce(tmp_path, TINY, workers=1)
    with pytest.raises(InputError, match="Cannot write"):
        reproduce(tmp_path / "thesis.txt", TINY, workers=1)
    with pytest.raises(InputError, match="at least 1"):
        reproduce(tmp_path / "new", TINY, workers=0)


def test_tables_that_are_none(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(InputError, match="no table"):
        judge(path)
    path.write_text("function,method,delay,repeat,step,regret\nf1,BPE,0,0,10,1\nf1,BPE,0,1,20,1\n")
    with pytest.raises(InputError, match="not complete"):
        judge(path)


def test_without_matplotlib_nothing_begins(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtraError, match="botorch-delay\\[plots\\]"):
        reproduce(tmp_path / "new", TINY, workers=1)
    assert not (tmp_path / "new").exists()


def test_the_command_refuses_in_one_line(tmp_path, capsys):
    (tmp_path / "notes.txt").write_text("x")
    assert main(["reproduce", "--quick", "--out", str(tmp_path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.heavy
def test_the_quick_command_survives_being_killed(tmp_path):
    command = [sys.executable, "-m", "botorch_delay", "reproduce", "--quick"]
    command += ["--out", str(tmp_path / "out")]
    runs = tmp_path / "out" / "runs"
    for enough in (5, 40):
        kill_once(command, lambda enough=enough: len(list(runs.glob("*.json"))) >= enough)
        assert all(len(json.loads(path.read_text())) == 300 for path in runs.glob("*.json"))
    done = {path: path.stat().st_mtime_ns for path in runs.glob("*.json")}
    finished = subprocess.run(command, capture_output=True, text=True, check=True)
    assert all(path.stat().st_mtime_ns == when for path, when in done.items())
    assert "report" in finished.stdout
    assert (tmp_path / "out" / "report.md").exists()
