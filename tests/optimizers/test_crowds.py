"""Many pending asks on a box with a learned kernel do not all go to one place."""

import pytest
import torch
from cases import generator

import botorch_delay as bd
from botorch_delay.gp.averages import Averages
from botorch_delay.gp.warping import CROWD
from botorch_delay.optimizers import rule_model

BOX = torch.tensor([[0.0] * 5, [1.0] * 5], dtype=torch.double)
MOST = 3


@pytest.fixture(autouse=True)
def few(monkeypatch):
    monkeypatch.setattr(rule_model, "CROWDED", MOST)


def wave(n, side=1.0):
    """The points (``n x 5``) of ``n`` asks after 20 answers."""
    opt = bd.BPEDelayOptimizer(bd.BoxDomain(BOX), 100, explore_fraction=0.01)
    opt.attach(*answers(side))
    return torch.stack([trial.x for trial in opt.ask(n)])


def answers(side=1.0):
    """20 answers, too few for a function of 5 columns, in a cube with the given side."""
    X = 0.5 + side * (torch.rand(20, 5, generator=generator(0), dtype=torch.double) - 0.5)
    return X, (4.0 * X).sin().prod(dim=1)


def largest_crowd(X):
    return int((torch.cdist(X, X) / X.shape[1] ** 0.5 < CROWD).sum(dim=1).max())


def test_a_wave_goes_to_more_than_one_place(monkeypatch):
    spread = wave(15)  # one of them repeats the best point
    monkeypatch.setattr(rule_model, "CROWDED", 100)
    crowded = wave(15)
    assert largest_crowd(crowded) > 10
    assert largest_crowd(spread) < 10


def test_a_crowd_away_from_the_best_answer_counts_as_well(monkeypatch):
    monkeypatch.setattr(Averages, "best", lambda averages, n: [BOX[0]])
    assert largest_crowd(wave(14)) < 10


def test_nothing_changes_while_few_are_pending(monkeypatch):
    begin = wave(MOST)
    monkeypatch.setattr(rule_model, "CROWDED", 100)
    assert torch.equal(wave(MOST), begin)


def test_nothing_changes_where_more_are_answered(monkeypatch):
    around = wave(8, side=0.05)
    assert largest_crowd(around) >= MOST + 2
    monkeypatch.setattr(rule_model, "CROWDED", 100)
    assert torch.equal(wave(8, side=0.05), around)


def test_pending_points_that_are_ignored_crowd_as_before(monkeypatch):
    def points():
        rule = {"rule": bd.UCB(2.0), "pending": bd.Ignore()}
        opt = bd.AcquisitionOptimizer(bd.BoxDomain(BOX), **rule)
        opt.attach(*answers())
        return torch.stack([trial.x for trial in opt.ask(6)])

    ignored = points()
    monkeypatch.setattr(rule_model, "CROWDED", 100)
    assert torch.equal(points(), ignored)
