"""Answers that come late, in any order, all at once, never, or from nowhere."""

from __future__ import annotations

import copy

import pytest
import torch
from cases import plain
from test_every_optimizer import HORIZON, OPTIMIZERS, value

import botorch_delay as bd
from botorch_delay.exceptions import HorizonError, NoAnswerError, TrialError

pytestmark = pytest.mark.reliability


@pytest.fixture(params=OPTIMIZERS)
def opt(request, scale):
    if list(OPTIMIZERS).index(request.param) % scale.every:
        pytest.skip("on the full scale only")
    return OPTIMIZERS[request.param](horizon=12)


def refused(opt, call):
    before = plain(opt.state_dict())
    with pytest.raises(TrialError):
        call()
    assert plain(opt.state_dict()) == before


def test_after_the_horizon(opt, figures):
    trials = opt.ask(12)
    with pytest.raises(HorizonError):
        opt.ask()
    for trial in trials:
        opt.tell(trial, value(trial))
    assert [t.value for t in opt.trials] == [value(t) for t in trials]
    with pytest.raises(HorizonError):
        opt.ask()
    assert opt.recommend().mean == opt.recommend().mean
    figures("Late, lost and forged answers", answers=12)


def test_in_reverse_and_all_at_once(opt, figures):
    trials = opt.ask(8)
    twin = copy.deepcopy(opt)
    for trial in reversed(trials):
        opt.tell(trial, value(trial))
    for trial in trials:
        twin.tell(trial.id, value(trial))
    ours, theirs = opt.ask(), twin.ask()
    assert torch.equal(ours.x, theirs.x)
    assert (ours.round, ours.slot) == (theirs.round, theirs.slot)
    assert opt.recommend().mean == twin.recommend().mean
    figures("Late, lost and forged answers", answers=16)


def test_never(opt, figures):
    trials = opt.ask(12)
    with pytest.raises(NoAnswerError):
        opt.recommend()
    opt.finish()
    assert opt.pending == trials
    opt.tell(trials[3], 0.25)
    assert opt.trials[3].value == 0.25
    assert opt.recommend().mean == opt.recommend().mean
    figures("Late, lost and forged answers", answers=12)


def test_of_failed_and_abandoned_trials(opt, figures):
    failed, abandoned, told, running = opt.ask(4)
    opt.mark_failed(failed, "crash")
    opt.mark_abandoned(abandoned)
    opt.tell(told, 0.5)
    refused(opt, lambda: opt.tell(failed, 1.0))
    refused(opt, lambda: opt.mark_failed(abandoned))
    opt.tell(abandoned, 0.75)
    assert opt.trials[abandoned.id].came_back
    refused(opt, lambda: opt.tell(abandoned, 0.75))
    assert opt.pending == [running]
    assert opt.ask().id == 4
    figures("Late, lost and forged answers", answers=5)


def test_forged(opt, figures):
    other = OPTIMIZERS["random set"](horizon=HORIZON)
    foreign = other.ask(3)[2]
    mine = opt.ask(3)
    opt.tell(mine[0], 0.5)
    for forged in (foreign, 3, -1, 10**30, "0", 0.0, True, None, object()):
        refused(opt, lambda forged=forged: opt.tell(forged, 1.0))
        refused(opt, lambda forged=forged: opt.mark_failed(forged))
        refused(opt, lambda forged=forged: opt.mark_abandoned(forged))
    refused(opt, lambda: opt.tell(mine[0], 0.5))
    assert [t.state for t in opt.trials[1:]] == [bd.TrialState.RUNNING] * 2
    figures("Late, lost and forged answers", answers=28)
