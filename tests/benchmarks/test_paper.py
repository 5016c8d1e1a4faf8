from dataclasses import replace

import numpy as np
import pytest
from cases import rows_of

from botorch_delay import SubExponentialDelay, round_lengths
from botorch_delay.benchmarks import DELAYS, METHODS, PROBLEMS, paper, simulate
from botorch_delay.benchmarks.paper import (
    FUNCTIONS,
    LABELS,
    reproduce,
    t_interval,
    verdicts_on,
)
from botorch_delay.benchmarks.suites import PAPER, PAPER_QUICK
from botorch_delay.cli import main
from botorch_delay.exceptions import InputError

TINY = replace(PAPER, steps=16, seeds=(0, 1))


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("paper") / "new" / "folder"
    return folder, reproduce(folder, TINY, workers=1, progress=False)


def test_there_are_five_figures_and_a_report(made):
    folder, result = made
    assert [path.name for path in result.figures] == [f"figure{i}.png" for i in range(1, 6)]
    assert all(path.stat().st_size > 10_000 for path in result.figures)
    report = result.report.read_text()
    for verdict in result.verdicts:
        assert verdict.sentence in report
        assert f"**{verdict.word}**" in report
    assert "not the paper's" in report
    assert "GP-BUCB" in str(result)
    assert len((folder / "cells.csv").read_text().splitlines()) == 1 + 2 * 3 * 6 * 2


def test_the_report_holds_the_final_regrets(made):
    problem = PROBLEMS["f2"](0)
    final = []
    for seed in (0, 1):
        clock = DELAYS["poisson-50"]
        optimizer = METHODS["gp-bucb"].make(problem, clock, TINY.steps, seed)
        final.append(simulate(optimizer, problem, clock, TINY.steps, seed).regret[-1].item())
    _, result = made
    row = next(line for line in result.report.read_text().splitlines() if "| GP-BUCB |" in line)
    assert row.endswith(f"| {np.mean(final):.0f} +- {0.5 * np.std(final, ddof=1):.0f} |")


def regrets(value):
    """Runs of one step with regrets that depend on method and delay."""
    return {
        (f, method, delay): np.array([[value(method, delay) + repeat] for repeat in range(4)])
        for f in FUNCTIONS
        for method in LABELS
        for delay in (0, 25, 50)
    }


def words(value):
    return {v.sentence: v.word for v in verdicts_on(regrets(value))}


def test_differences_are_tested_by_the_figures():
    better = "Figure 5: BPE-Delay performs better than BPE under delay."
    for factor, word in ((100, "holds"), (0.01, "does not hold"), (1, "not decided")):
        found = words(lambda method, delay, factor=factor: 100 * (factor if method == "bpe" else 1))
        assert found[better] == word
    assert len(found) == 9
    found = words(lambda method, delay: 100 * (9 if method == "gp-ucb-sdf" else 1))
    assert found["Figure 2: BPE-Delay has less regret than GP-UCB-SDF."] == "holds"


def test_a_sentence_holds_on_both_functions_or_not_at_all():
    table = regrets(lambda method, delay: 100 * (9 if method == "bpe" else 1))
    table["f2", "bpe", 50] = table["f2", "bpe", 50] / 100
    found = {v.word for v in verdicts_on(table) if v.sentence.startswith("Figure 5")}
    assert found == {"does not hold"}


def test_excess_and_jump_are_tested_by_the_figures():
    linear = words(lambda method, delay: 100 + delay)
    steep = words(lambda method, delay: 100 + delay**2 * (1 if "bpe" in method else 9))
    for method in ("BPE-Delay", "BPE-Delay (psi as printed)"):
        sentence = f"Figure 3: the excess in regret of {method} is linear in the delay."
        assert (linear[sentence], steep[sentence]) == ("holds", "does not hold")
    jump = "Figure 4: the regret of GP-UCB-SDF jumps even with a moderate delay."
    assert (linear[jump], steep[jump]) == ("does not hold", "holds")


def test_intervals_are_student_s():
    found = t_interval(np.array([1.0, 2.0, 3.0]))
    assert found.mean == 2.0
    assert found.high - 2.0 == pytest.approx(2.919986 / 3**0.5, abs=1e-5)
    assert 2.0 - found.low == pytest.approx(found.high - 2.0)
    assert t_interval(np.array([1.0])).below is None
    assert t_interval(np.array([-1.0, -1.0])).below is True


def test_what_is_done_is_not_simulated_again(made, monkeypatch):
    folder, _ = made
    files = sorted((folder / "runs").glob("*.json"))
    before = {path: path.stat().st_mtime_ns for path in files}
    files[3].unlink()
    files[5].write_text(files[5].read_text()[:40])
    monkeypatch.setattr(paper, "_draw", lambda *_: [])  # five drawings cost more than the runs
    result = reproduce(folder, TINY, workers=1, progress=False)
    changed = [path for path in files if path.stat().st_mtime_ns != before[path]]
    assert changed == [files[3], files[5]]
    assert len(result.verdicts) == 9


def test_without_delay_the_upper_confidence_bounds_are_one_method():
    problem, clock = PROBLEMS["f1"](0), DELAYS["none"]
    asked = [
        rows_of(simulate(METHODS[name].make(problem, clock, 20, 0), problem, clock, 20)).tolist()
        for name in ("gp-ucb-sdf", "gp-bucb", "gp-ucb")
    ]
    assert asked[0] == asked[1] == asked[2]


def test_the_paper_s_setting():
    assert (PAPER.steps, len(PAPER.seeds)) == (1000, 10)
    problems = [PROBLEMS[name](0) for name in PAPER.problems]
    assert [len(problem.points) for problem in problems] == [2500, 2500]
    assert [p.covar_module.lengthscale.item() for p in problems] == pytest.approx([0.8, 1.0])
    assert {problem.noise_std for problem in problems} == {0.02}
    assert [DELAYS[name].law.mean for name in PAPER.delays] == [0, 25, 50]
    for name, paper_min in (("bpe-delay-psi-max", False), ("bpe-delay-psi-min", True)):
        optimizer = METHODS[name].make(problems[0], DELAYS["poisson-25"], 100, 0)
        told = SubExponentialDelay(25.0, xi=9.0, b=1.0, paper_min=paper_min)
        while not optimizer.rounds:
            optimizer.tell(optimizer.ask(), 0.0)
        assert optimizer.rounds[0].length == round_lengths(100, told.upper_bound(100, 0.1))[1][0]
    assert (PAPER_QUICK.steps, len(PAPER_QUICK.seeds)) == (300, 3)


def test_a_folder_with_something_else_is_left_alone(made, tmp_path):
    folder, _ = made
    with pytest.raises(InputError, match=r"another benchmark \(paper, 16 steps"):
        reproduce(folder, PAPER_QUICK, workers=1)
    (tmp_path / "thesis.txt").write_text("precious")
    with pytest.raises(InputError, match="is not empty"):
        reproduce(tmp_path, TINY, workers=1)
    with pytest.raises(InputError, match="at least 1"):
        reproduce(tmp_path / "new", TINY, workers=0)


def test_the_command_refuses_in_one_line(tmp_path, capsys):
    (tmp_path / "notes.txt").write_text("x")
    assert main(["reproduce", "--quick", "--out", str(tmp_path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1
