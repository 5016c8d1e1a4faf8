"""The speed benchmark: that it runs, and that it notices what is wrong."""

import csv
import gc
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from forked import forked

from botorch_delay.design.greedy import GreedyDesign
from botorch_delay.exceptions import InputError, RunError
from botorch_delay.gp.delayed_gp import DelayedGP
from botorch_delay.optimizers.rules import UCB
from speed import bounds, clocks, cuda, designs, engines, loops, run, suite, updates
from speed.isolation import isolated
from speed.rows import (
    BYTES,
    COLUMNS,
    Check,
    Reach,
    Row,
    csv_row,
    same_picks,
    same_values,
    table,
)

TESTS = Path(__file__).parents[1]

TINY = {
    "design-20k": {"n_candidates": 300, "n_picks": 12, "every": 4, "repeats": 1},
    "design-1m": {"n_candidates": 6000, "n_picks": 12, "repeats": 1},
    "design-box": {"n_picks": 12, "every": 6, "repeats": 1},
    "horizon-100k": {"side": 8, "horizon": 80, "delay": 5, "checked": 20, "repeats": 2},
    "answers": {"answered": 20, "pending": 5, "updates": 2, "told": 12},
    "index": {"side": 8, "answered": 10, "steps": 2},
    "elimination": {"n_candidates": 2000, "answered": 20, "repeats": 1},
    "ask": {"side": 8, "steps": 40, "delay": 5},
    "optuna": {"finished": 5, "steps": 2, "running": 2},
    "cuda": {
        "n_candidates": 5000,
        "n_middle": 400,
        "n_small": 60,
        "n_picks": 8,
        "answered": 12,
        "steps": 2,
        "repeats": 1,
    },
}


@pytest.fixture
def one_process(monkeypatch):
    """A new process takes seconds to start; one heavy test below starts one."""

    def here(function, **arguments):
        return function(**arguments)

    for module in (designs, engines, loops, bounds):
        monkeypatch.setattr(module, "isolated", here)


@pytest.fixture
def tiny(monkeypatch, one_process):
    """The registered cases at the smallest sizes."""
    for name, case in list(suite.CASES.items()):
        monkeypatch.setitem(suite.CASES, name, suite.Case(case.measure, TINY[name], TINY[name]))


def measure(name):
    return suite.CASES[name].measure(**TINY[name])


def device_rows(dtype=torch.double):
    """The rows of the CUDA case, on the CPU."""
    return cuda.design_on(torch.device("cpu"), dtype, 1e11, 5000, 10, 400, 1)


@pytest.mark.parametrize("name", sorted(set(TINY) - {"cuda"}))
def test_every_case_measures_and_finds_results_right(name, one_process):
    rows = measure(name)
    assert rows
    for row in rows:
        assert row.correct is True, row
        if not row.work.endswith("prediction"):  # shown for comparison only
            assert row.reach is not None
            assert row.met is not None
        assert math.isfinite(row.ours)
        assert row.ours >= 0.0
        assert row.peer is None or row.peer >= 0.0


@pytest.mark.filterwarnings("ignore::botorch.exceptions.warnings.InputDataWarning")
@pytest.mark.parametrize("dtype", [torch.double, torch.float32])
def test_the_device_case_on_the_cpu(dtype):
    rows = device_rows(dtype)
    assert [row.correct for row in rows] == [True, True]
    assert rows[0].unit != rows[1].unit == BYTES


def test_without_optuna_its_case_is_skipped(monkeypatch):
    monkeypatch.setattr(engines.importlib.util, "find_spec", lambda name: None)
    (row,) = measure("optuna")
    assert "Optuna is not installed" in row.work
    assert (row.ours, row.met, row.correct) == (None, None, None)


def test_a_lost_trial_is_noticed(monkeypatch, one_process):
    monkeypatch.setattr(engines._Study, "lost", lambda self: 1)
    assert [row.correct for row in measure("optuna")] == [False, False]


def test_without_a_device_the_case_is_skipped(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    (row,) = measure("cuda")
    assert "skipped" in row.work
    assert (row.ours, row.met, row.correct) == (None, None, None)


@pytest.mark.cuda
@pytest.mark.filterwarnings("ignore::botorch.exceptions.warnings.InputDataWarning")
def test_the_command_measures_on_the_device(tiny, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(cuda, "RATE_BYTES", 2**16)
    monkeypatch.setattr(cuda, "SAMPLE", 50)
    assert run.main(["--quick", "--out", str(tmp_path), "--case", "cuda"]) == 0
    with (tmp_path / "speed.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == 34
    assert all(float(row["ours"]) >= 0.0 for row in rows)
    assert {row["correct"] for row in rows[:-15]} == {"yes"}
    assert "BoTorch's loop on the device" in capsys.readouterr().out


def test_a_wrong_pick_of_the_design_is_noticed(monkeypatch):
    right = designs.greedy_max_variance

    def wrong(*arguments):
        picks = right(*arguments)
        picks[6] = (picks[6] + 1) % 300
        return picks

    monkeypatch.setattr(designs, "greedy_max_variance", wrong)
    assert [row.correct for row in measure("design-20k")] == [False]


def test_a_wrong_pick_of_a_large_design_is_noticed(monkeypatch):
    def isolated_wrong(function, **arguments):
        result = function(**arguments)
        if not arguments["plain"]:
            result["picks"][3] += 1
        return result

    monkeypatch.setattr(designs, "isolated", isolated_wrong)
    rows = measure("design-1m")
    assert [row.correct for row in rows] == [False, False]
    assert [row.met for row in rows] == [False, False]


def test_a_wrong_variance_is_noticed(monkeypatch, one_process):
    right = GreedyDesign.variance.fget
    monkeypatch.setattr(GreedyDesign, "variance", property(lambda self: right(self) + 1e-7))
    assert not any(row.correct for row in measure("design-20k"))
    assert not any(row.correct for row in measure("design-1m"))
    assert not any(row.correct for row in device_rows())


def test_a_wrong_ask_is_noticed(monkeypatch, one_process):
    right = GreedyDesign.next
    monkeypatch.setattr(
        GreedyDesign, "next", lambda self: 5 if len(self._picks) == 7 else right(self)
    )
    # Where other asks are played a design of this length has fewer points.
    rows = [row for row in measure("horizon-100k") if not row.work.startswith("exploiting")]
    assert not any(row.correct for row in rows)
    assert not any(row.correct for row in measure("ask"))


def test_of_each_ask_the_quickest_run_counts():
    one = [[1.0, 5.0, 3.0], [1.0, 5.0, 2.0], [0.0, 0.5, 0.0]]
    two = [[2.0, 4.0, 9.0], [0.5, 4.0, 3.0], [0.1, 0.2, 0.3]]
    asks = loops.Asks.quickest([one, two])
    assert asks.wall.tolist() == [2.0, 4.0, 3.0]
    assert asks.cpu.tolist() == [0.5, 4.0, 2.0]
    assert asks.collected.tolist() == [0.1, 0.2, 0.0]


def test_a_wrong_last_ask_is_noticed():
    """Beyond the first picks of a round only the variance at its last pick is checked."""
    problem = loops.paper_problem(0.8, side=8)
    opt = loops._optimizer(problem, 400, loops.KEEPS_ALL, exploit=False)
    asks = loops.Asks.empty(60)
    assert list(loops.play(opt, problem, 60, 5, asks))[-1] == 60
    assert loops.wrong_picks(opt, problem, 1) == (0, pytest.approx(0.0, abs=1e-8))
    last = opt.trials[-1]
    last._become(index=opt.trials[-2].index)
    _, short = loops.wrong_picks(opt, problem, 1)
    assert short > 1e-6


def test_a_wrong_update_is_noticed(monkeypatch):
    right = DelayedGP.with_answer
    monkeypatch.setattr(DelayedGP, "with_answer", lambda self, x, y: right(self, x, y + 1e-5))
    assert not any(row.correct for row in updates.answers(**TINY["answers"]))


def test_a_wrong_index_is_noticed(monkeypatch):
    right = UCB.score
    monkeypatch.setattr(UCB, "score", lambda self, model: -right(self, model))
    (row,) = measure("index")
    assert row.correct is False
    assert "picks: 2 differ" in str(row.checks[0])


def test_a_wrong_elimination_is_noticed(monkeypatch, one_process):
    monkeypatch.setattr(bounds, "surviving", lambda lower, upper: upper >= lower.max() + 0.1)
    assert not any(row.correct for row in measure("elimination"))


def test_the_command_writes_a_table_and_a_csv_file(tiny, tmp_path, capsys):
    threads = torch.get_num_threads()
    out = tmp_path / "new" / "folder"
    chosen = ["--case", "ask", "--case", "index", "--case", "ask", "--case", "cuda"]
    assert run.main(["--quick", "--out", str(out), *chosen]) == 0
    assert torch.get_num_threads() == threads
    shown = capsys.readouterr()
    assert (out / "speed.md").read_text().strip() == shown.out.strip()
    for text in ("| ask |", "| index |", torch.__version__, "not judged", "cores"):
        assert text in shown.out
    assert shown.err.splitlines()[:2] == ["ask", "index"]
    if not torch.cuda.is_available():
        assert "skipped" in shown.err
    with (out / "speed.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert tuple(rows[0]) == COLUMNS
    assert list(dict.fromkeys(row["case"] for row in rows)) == ["ask", "index", "cuda"]
    assert float(rows[0]["ours"]) > 0.0
    assert float(rows[1]["cpu_ratio"]) > 0.0
    assert all(row["correct"] == "yes" and row["met"] == "" for row in rows[:2])
    assert sorted(path.name for path in out.iterdir()) == ["speed.csv", "speed.md"]


def test_full_sizes_are_judged_and_threads_are_set(tiny, tmp_path, capsys, monkeypatch):
    seen = []

    def measured():
        seen.append(torch.get_num_threads())
        return [Row("fast", 1.0, peer=3.0, reach=Reach(ratio=2.0), checks=(Check("picks", 0.0),))]

    monkeypatch.setitem(suite.CASES, "ask", suite.Case(measured, {}, {}))
    arguments = ["--out", str(tmp_path), "--case", "ask", "--threads", "2"]
    assert run.main(arguments) == 0
    assert seen == [2]
    assert torch.get_num_threads() == 1
    assert "| 3x |  |  | 2x | yes | yes |" in capsys.readouterr().out


def test_wrong_results_end_with_exit_code_1(tiny, tmp_path, capsys, monkeypatch):
    rows = [Row("wrong", 1.0, checks=(Check("picks", 2.0),))]
    monkeypatch.setitem(suite.CASES, "ask", suite.Case(lambda: rows, {}, {}))
    assert run.main(["--out", str(tmp_path), "--case", "ask"]) == 1
    shown = capsys.readouterr()
    assert "some results are wrong" in shown.err
    assert "2 differ" in shown.out


def test_what_is_done_is_kept_when_a_later_case_fails(tiny, tmp_path, monkeypatch):
    def failing(**sizes):
        raise RunError("no memory")

    monkeypatch.setitem(suite.CASES, "index", suite.Case(failing, {}, {}))
    with pytest.raises(RunError):
        suite.measure_speed(tmp_path, quick=True, cases=["ask", "index"])
    assert "| ask |" in (tmp_path / "speed.md").read_text()
    assert torch.get_num_threads() == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--case", "warp"], "'warp'"),
        (["--threads", "0"], "threads must be at least 1"),
        (["--threads", "many"], "invalid int"),
        (["--speed"], "unrecognized"),
    ],
)
def test_wrong_options_give_one_line_and_exit_code_2(arguments, message, tmp_path, capsys):
    out = tmp_path / "out"
    try:
        code = run.main(["--quick", "--out", str(out), *arguments])
    except SystemExit as stopped:
        code = stopped.code
    err = capsys.readouterr().err
    assert code == 2
    assert "Traceback" not in err
    assert message in err.splitlines()[-1]
    assert not out.exists()


def test_unknown_names_list_the_known_ones(tmp_path):
    with pytest.raises(InputError, match=r"design-20k.*elimination") as caught:
        suite.measure_speed(tmp_path, cases=["ask", "warp"])
    assert all(name in str(caught.value) for name in suite.CASES)


def test_a_folder_that_cannot_be_written_is_found_before_the_work(tmp_path, monkeypatch):
    def never(**sizes):
        raise AssertionError("it has begun")

    monkeypatch.setitem(suite.CASES, "ask", suite.Case(never, {}, {}))
    taken = tmp_path / "taken"
    taken.write_text("a file")
    table_folder = tmp_path / "other"
    (table_folder / "speed.csv").mkdir(parents=True)
    for folder in (taken, taken / "inside", table_folder):
        with pytest.raises(InputError, match="Cannot write"):
            suite.measure_speed(folder, cases=["ask"])


def test_the_sizes_are_those_of_the_reaches():
    assert set(suite.CASES) == set(TINY)
    assert suite.CASES["design-20k"].full["n_candidates"] == 20_000
    assert suite.CASES["design-1m"].full["n_picks"] == 500
    assert suite.CASES["horizon-100k"].full["horizon"] == 100_000
    for name, case in suite.CASES.items():
        assert set(case.full) == set(case.quick) == set(TINY[name])


@pytest.mark.heavy
def test_work_in_a_process_of_its_own():
    # More memory than earlier designs took, which could be reused.
    sizes = {"n_candidates": 100_000, "n_picks": 3}
    found = isolated(designs.design_alone, plain=True, **sizes)
    here = designs.design_alone(plain=False, **sizes)
    assert found["picks"] == here["picks"]
    assert found["seconds"] > 0.0
    assert found["bytes"] > 0


def test_a_process_that_fails_says_why(tmp_path, monkeypatch):
    failing = tmp_path / "failing"
    failing.write_text("#!/bin/sh\necho TypeError: no colour >&2\nexit 1\n")
    failing.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(failing))
    with pytest.raises(RunError, match=r"design_alone failed.*TypeError: no colour"):
        isolated(designs.design_alone, colour="blue")


def test_ratios_reaches_and_checks():
    right, wrong = Check("values", 1e-9, 1e-8), Check("values", math.nan, 1e-8)
    assert right.right
    assert not wrong.right
    row = Row("x", 2.0, peer=10.0, reach=Reach(ratio=5.0), checks=(right,))
    assert (row.ratio, row.met, row.correct) == (5.0, True, True)
    assert Row("x", 2.0, peer=10.0, reach=Reach(ratio=5.1)).met is False
    assert Row("x", 2.0, peer=10.0, reach=Reach(ratio=5.0), checks=(right, wrong)).met is False
    assert Row("x", 2.0, reach=Reach(most=2.0)).met is True
    assert Row("x", 2.0, reach=Reach(most=1.9)).met is False
    assert Row("x", 2.0).met is None
    assert Row("x", 2.0).correct is None
    assert same_picks("picks", [1, 2, 3], [1, 5]).error == 2.0
    assert same_values("values", torch.zeros(2), torch.tensor([0.0, 0.5])).error == 0.5


def test_tables_say_units():
    machine = suite.this_machine()
    rows = [
        Row("a", 2.5e-3, peer=1.0, cpu=2e-3, peer_cpu=0.2, reach=Reach(5.0, stretch=10.0)),
        Row("b", 3e6, unit=BYTES, reach=Reach(most=2e9), note="above the points"),
    ]
    text = table([csv_row("case", "N 10", row, machine, True) for row in rows], machine, True)
    assert "| case | a | 2.5 ms | 1 s | 400x | 2 ms | 100x | 5x (10x) | yes |  |" in text
    assert "| case | b | 3 MB |  |  |  |  | 2 GB | yes |  |" in text
    assert "* case, b: above the points." in text
    assert "* case: N 10." in text


def test_clocks():
    calls = []
    found = clocks.interleaved({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, 2)
    assert calls == ["a", "b", "b", "a"]
    assert len(found["a"].seconds) == len(found["b"].cpu) == 2
    assert clocks.Timed([1.0, 2.0, 6.0], [1.0, 0.5, 0.75]).median == 2.0
    assert clocks.Timed([1.0, 2.0, 6.0], [1.0, 0.5, 0.75]).median_cpu == 0.75
    assert clocks.percentile([3.0, 1.0, 2.0, 4.0], 0.5) == 2.0
    assert clocks.percentile([1.0], 0.99) == 1.0
    assert clocks.fastest({1: lambda: None}) == 1


def test_memory_is_the_most_that_a_process_ever_held():
    """In a process of its own: this one has held more before."""

    def hold():
        with clocks.PeakMemory() as memory:
            # Far more than is asked for: meanwhile the system may take back what was held before.
            torch.ones(32_000_000, dtype=torch.double).sum()
        print(memory.bytes)

    with forked(hold) as (_, printed):
        assert int(printed.read()) > 4e7


def test_the_collector_s_share_is_known():
    with loops.collector() as collected:
        gc.collect()
    assert collected[0] > 0.0
    asks = loops.Asks.empty(4)
    asks.wall[2], asks.collected[2] = 0.5, 0.25
    found = loops.summary(asks, slice(1, 4))
    assert found["worst"] == (0.5, 0.0)
    assert found["slowest"].startswith("ask 3, 250 ms")


@pytest.mark.heavy
def test_the_script_runs_from_anywhere_and_needs_no_optional_package(tmp_path):
    """From the source tree, with torch, gpytorch and botorch."""
    code = """
import runpy, sys
for name in ("tqdm", "matplotlib", "pandas", "sklearn", "pebble", "optuna", "psutil"):
    sys.modules[name] = None
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
    script = str(TESTS / "speed" / "run.py")
    command = [sys.executable, "-c", code, script, "--case", "warp"]
    found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert found.returncode == 2
    assert found.stderr.startswith("speed: There is no case 'warp'; there are design-20k")
    assert not list(tmp_path.iterdir())
