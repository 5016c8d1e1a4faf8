"""What people read of a run: a table, a summary, one line."""

import csv
import io
from datetime import UTC, datetime

import pytest
import torch
from cases import line, se

import botorch_delay as bd
from botorch_delay.gp.surrogate import Surrogate
from botorch_delay.optimizers.reading import TABLE_COLUMNS


def dishes(*names, **options):
    points = torch.tensor([[20.0, 0.1], [25.0, 0.2], [30.0, 0.1]], dtype=torch.double)
    options = {"covar_module": None} | options
    return bd.BPEDelayOptimizer(bd.FiniteDomain(points, names=names), 6, **options)


def test_a_table_has_every_trial_and_attached_result():
    opt = dishes("heat", "dose")
    assert opt.table() == []
    opt.ask(3)
    opt.tell(1, 0.5, noise_var=0.1)
    opt.mark_failed(2, "spilled")
    opt.attach(torch.tensor([28.0, 0.3], dtype=torch.double), -1.0)
    rows = opt.table()
    first = ["trial", "heat", "dose", *TABLE_COLUMNS[1:]]
    assert all(list(row) == first for row in rows)
    trials = opt.trials
    assert [row["trial"] for row in rows] == [0, 1, 2, None]
    assert [row["state"] for row in rows] == ["running", "completed", "failed", "attached"]
    assert [row["value"] for row in rows] == [None, 0.5, None, -1.0]
    assert [[row["heat"], row["dose"]] for row in rows[:3]] == [t.x.tolist() for t in trials]
    assert [row["round"] for row in rows] == [1, 1, 1, None]
    assert (rows[1]["noise_var"], rows[2]["reason"]) == (0.1, "spilled")
    assert rows[1]["told_at"] == datetime.fromtimestamp(trials[1].told_at, UTC)
    assert rows[0]["told_at"] is None
    assert rows[3]["told_at"] == datetime.fromtimestamp(opt.attached[0].told_at, UTC)
    opt.correct(1, 0.25)
    assert [opt.table()[1][name] for name in ("value", "corrected_from")] == [0.25, 0.5]
    opt.correct(2, 0.125)
    assert [opt.table()[2][name] for name in ("value", "reason")] == [0.125, "spilled"]
    frame = opt.to_dataframe()
    assert list(frame) == first
    assert frame.value.max() == 0.25
    csv.DictWriter(io.StringIO(), first).writerows(rows)


def test_a_data_frame_has_its_columns_before_the_first_trial():
    opt = dishes("heat", "dose")
    empty = opt.to_dataframe()
    opt.ask()
    one = opt.to_dataframe()
    assert (len(empty), len(one)) == (0, 1)
    assert list(empty) == list(one) == list(opt.table()[0])
    assert (empty.trial.dtype, empty["round"].dtype) == ("Int64", "Int64")


def test_parameters_with_the_name_of_a_column_keep_theirs():
    opt = dishes("value", "dose")
    opt.tell(opt.ask(), 0.5)
    (row,) = opt.table()
    assert row["value"] == 0.5
    assert row["parameter value"] == opt.trials[0].x[0]


@pytest.mark.parametrize("maximize", [True, False])
def test_a_run_in_a_few_lines(maximize):
    opt = dishes("heat", "dose", maximize=maximize)
    extreme = "largest" if maximize else "smallest"
    assert str(opt).splitlines() == [
        f"BPEDelayOptimizer looks for the {extreme} value on 3 points of heat, dose",
        "0 of 6 trials asked",
        "no round has begun; 3 of 3 points can still be the best",
    ]
    opt.ask(3)
    for trial, value in ((0, 1.0), (1, 3.0)):
        opt.tell(trial, value)
    opt.attach(opt.trials[2].x, 2.0)
    best = opt.trials[1 if maximize else 0]
    lines = str(opt).splitlines()
    assert lines[1] == "3 of 6 trials asked (2 completed, 1 running), 1 attached"
    heat, dose = best.x.tolist()
    words = f"(trial {best.id}), heat = {heat:g}, dose = {dose:g}"
    assert lines[2] == f"best result so far: {best.value:g} {words}"
    assert lines[3] == "round 1 of about 2; 3 of 3 points can still be the best"
    assert len(repr(opt).splitlines()) == 1
    assert repr(opt).startswith("BPEDelayOptimizer(FiniteDomain(3 x 2,")
    assert repr(opt).endswith("3/6 asked, 1 running)")
    opt.finish()
    assert str(opt).splitlines()[3].startswith("rounds: 1, all closed")


def test_points_that_failed_too_often_can_not_be_the_best():
    opt = dishes("heat", "dose")
    for _ in range(3):
        opt.mark_failed(opt.ask())
        assert opt.active_set.size == int(str(opt).splitlines()[-1].split("; ")[1].split()[0])
    opt.extend(9)
    for _ in range(6):
        opt.mark_failed(opt.ask())
    assert str(opt).endswith("; 0 of 3 points can still be the best")


def test_a_run_on_a_box_and_without_a_horizon():
    box = bd.BoxDomain(torch.tensor([[0.0], [1.0]], dtype=torch.double), names=["dose"])
    rounds = bd.GeometricRounds(2, 2.0)
    opt = bd.BPEDelayOptimizer(box, None, rounds=rounds, explore_fraction=1.0, exploit=None)
    opt.ask()
    assert str(opt).splitlines() == [
        "BPEDelayOptimizer looks for the largest value on a box of dose",
        "1 trials asked (1 running)",
        "round 1; 100.0% of the box can still be the best",
    ]
    assert repr(opt).endswith(" 1 asked, 1 running)")


@pytest.mark.usefixtures("small_searches")
def test_a_share_of_a_box_that_is_not_shown_in_percent():
    box = bd.BoxDomain(torch.tensor([[0.0] * 2, [1.0] * 2], dtype=torch.double))
    given = {"covar_module": se(), "noise_var": 1e-4, "confidence": bd.FixedBeta(1e-6)}
    opt = bd.BPEDelayOptimizer(box, 100, exploit=None, **given)
    while not opt.rounds:
        trial = opt.ask()
        opt.tell(trial, -float((trial.x - 0.4).square().sum()))
    assert 0.0 < opt.rounds[0].active_after < 0.001
    assert "; less than 0.1% of the box can still be the best" in str(opt)


def test_exact_answers_are_recommended_by_what_they_are(monkeypatch):
    opt = bd.BPEDelayOptimizer(bd.FiniteDomain(line(40)), horizon=30)
    for number, trial in enumerate(opt.ask(24)):
        lucky = 0.6 if number == 7 else 0.05 * (-1) ** number
        opt.tell(trial, lucky - float(4.0 * (trial.x - 0.4) ** 2))
    best = max(opt.trials, key=lambda trial: trial.value)
    assert opt.recommend().index != best.index  # the learned noise explains the lucky answer
    monkeypatch.setattr(Surrogate, "is_exact", True)
    assert opt.recommend().index == best.index
