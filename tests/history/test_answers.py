import math

import pytest
import torch
from cases import scattered

from botorch_delay import BoxDomain, FiniteDomain
from botorch_delay.history.answers import Answers
from botorch_delay.history.events import Event
from botorch_delay.history.trials import Attached, Ledger

POINTS = scattered(6)
BOX = BoxDomain(torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.double))


def ledger_of(rows, source=None):
    """Trials at the given rows of the points; trial 1 is still running."""
    ledger = Ledger()
    for number, row in enumerate(rows):
        index = row if source is None else None
        data = {"x": POINTS[row].tolist(), "point": index, "round": 1, "slot": number}
        ledger.ask(Event("asked", 1.0, number, data=data), FiniteDomain(POINTS))
        if number != 1:
            known = {"noise_var": 0.25} if number == 2 else {}
            ledger.settle(Event("completed", 2.0, number, 10.0 + number, known))
    return ledger


def test_columns_of_a_finite_set():
    ledger = ledger_of([3, 0, 5, 3])
    attached = [Attached(POINTS[5].clone(), POINTS.device, index=5, value=7.0)]
    answers = Answers.of(FiniteDomain(POINTS), -1.0, [*ledger.answered(), *attached])
    assert [trial.id for trial in ledger.answered()] == [0, 2, 3]
    assert len(answers) == 4
    assert answers.group.tolist() == [3, 5, 3, 5]
    assert torch.equal(answers.X, POINTS[[3, 5, 3, 5]])
    assert answers.y.tolist() == [-10.0, -12.0, -13.0, -7.0]
    noise = answers.noise_var.tolist()
    assert noise[1] == 0.25
    assert all(math.isnan(noise[i]) for i in (0, 2, 3))


def test_results_outside_of_the_set_are_grouped_by_their_points():
    ledger = ledger_of([3, 0, 3])
    elsewhere = torch.tensor([2.0, 2.0], dtype=torch.double)
    attached = [Attached(elsewhere, elsewhere.device, index=None, value=1.0)]
    answers = Answers.of(FiniteDomain(POINTS), 1.0, [*ledger.answered(), *attached])
    assert torch.equal(answers.X, torch.stack([POINTS[3], POINTS[3], elsewhere]))
    assert answers.group[0] == answers.group[1] != answers.group[2]


def test_on_a_box_answers_are_grouped_by_their_points():
    ledger = ledger_of([4, 1, 2, 4], source="box")
    answers = Answers.of(BOX, 1.0, ledger.answered())
    assert torch.equal(answers.X, POINTS[[4, 2, 4]])
    assert answers.y.tolist() == [10.0, 12.0, 13.0]
    assert answers.group[0] == answers.group[2] != answers.group[1]
    assert Answers.of(BOX, 1.0, [ledger[1]]).y.isnan().all()


def test_nothing():
    ledger = ledger_of([])
    for domain in (FiniteDomain(POINTS), BOX):
        answers = Answers.of(domain, 1.0, ledger.answered())
        assert len(answers) == 0
        assert answers.X.shape == (0, 2)
        assert answers.group.dtype is torch.long


@pytest.mark.filterwarnings("ignore:The points have dtype")
def test_the_precision_is_the_domain_s():
    ledger = ledger_of([3, 0, 5])
    answers = Answers.of(FiniteDomain(POINTS.float()), 1.0, ledger.answered())
    assert answers.y.dtype is torch.float32
    assert answers.noise_var.dtype is torch.double
