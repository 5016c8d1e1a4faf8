import copy
import pickle

import pytest
from cases import line

import botorch_delay as bd
from botorch_delay.exceptions import InputTypeError, TrialError
from botorch_delay.history.trials import Attached, Ledger, TrialState


@pytest.fixture
def ledger():
    ledger = Ledger("test")
    for index in range(4):
        ledger.open(source=line(5), index=index, round=1, slot=index)
    return ledger


def test_trials_are_numbered_and_live(ledger):
    trial = ledger[2]
    assert trial.id == 2
    assert trial.state is TrialState.RUNNING
    assert trial.answered_at is None
    ledger.settle(trial, TrialState.COMPLETED, value=0.5)
    assert trial.value == 0.5
    assert trial.answered_at >= trial.asked_at
    assert [t.id for t in ledger.running()] == [0, 1, 3]
    assert ledger.answered() == [2]
    assert "value=0.5" in repr(trial)


def test_trials_are_read_only(ledger):
    with pytest.raises(AttributeError):
        ledger[0].value = 1.0


def test_trials_are_found_by_object_and_by_id(ledger):
    assert ledger.find(ledger[1]) is ledger[1]
    assert ledger.find(1) is ledger[1]
    for unknown in (4, -1):
        with pytest.raises(TrialError, match="0 to 3"):
            ledger.find(unknown)
    for wrong in (True, "1", 1.0, None):
        with pytest.raises(TrialError, match="Expected a Trial"):
            ledger.find(wrong)
    with pytest.raises(TrialError, match="none yet"):
        Ledger("empty").find(0)
    other = Ledger("other").open(source=line(5), index=3, round=1, slot=0)
    with pytest.raises(TrialError, match="another optimizer"):
        ledger.find(other)


def test_changes_are_known_since_any_revision(ledger):
    assert ledger.revision == 4
    before = ledger.digest
    ledger.settle(ledger[1], TrialState.FAILED, reason="x")
    ledger.attach([Attached(x=line(5)[0], index=0, value=1.0)])
    ledger.settle(ledger[0], TrialState.ABANDONED)
    assert [t.id for t in ledger.changed_since(4)] == [0, 1]
    assert [t.id for t in ledger.changed_since(6)] == [0]
    assert [t.id for t in ledger.changed_since(7)] == []
    assert [t.id for t in ledger.changed_since(0)] == [0, 1, 2, 3]
    assert ledger.continues(4, before)
    assert not ledger.continues(5, before)
    assert not ledger.continues(99, before)


def test_what_a_holder_does_to_a_point_changes_nothing(ledger):
    ledger[2].x.mul_(7.0)
    assert ledger[2].x.tolist() == [0.5]


def test_copies_take_their_point_along_and_not_the_domain(ledger):
    ledger.settle(ledger[3], TrialState.COMPLETED, value=0.5)
    for copied in (copy.deepcopy(ledger[3]), pickle.loads(pickle.dumps(ledger[3]))):
        assert copied.record() == ledger[3].record()
        assert copied.source.shape == (1,)
        assert ledger.find(copied) is ledger[3]


def test_states_have_names():
    assert {state.value for state in bd.TrialState} == {
        "running",
        "completed",
        "failed",
        "abandoned",
    }


@pytest.mark.parametrize("field", ["slot", "round"])
def test_an_ask_that_cannot_be_noted_leaves_nothing_behind(ledger, field):
    with pytest.raises(OverflowError):
        ledger.open(**({"source": line(5), "index": 4, "round": 1, "slot": 4} | {field: 2**70}))
    trial = ledger.open(source=line(5), index=4, round=1, slot=4)
    ledger.settle(trial, TrialState.COMPLETED, value=2.0)
    assert (trial.id, trial.state, trial.value) == (4, TrialState.COMPLETED, 2.0)
    assert [t.id for t in ledger.running()] == [0, 1, 2, 3]


def test_an_unknown_field_is_refused_and_nothing_is_changed(ledger):
    with pytest.raises(InputTypeError, match=r"fields id, .*late, reason; got 'answer'"):
        ledger.settle(ledger[0], TrialState.COMPLETED, value=1.0, answer=2.0)
    assert (ledger[0].state, ledger[0].value, ledger[0].reason) == (TrialState.RUNNING, None, "")
    with pytest.raises(InputTypeError, match="got 'place'"):
        ledger.open(source=line(5), index=4, round=1, slot=4, place="left")
    assert ledger.open(source=line(5), index=4, round=1, slot=4).id == 4


def test_an_interrupted_ask_leaves_nothing_behind(ledger):
    ledger._columns.append(line(5), id=4, index=4, round=1, slot=4, reason="x")  # and then Ctrl-C
    assert [t.id for t in ledger.running()] == [0, 1, 2, 3]
    trial = ledger.open(source=line(5), index=3, round=1, slot=4)
    assert (trial.id, trial.index, trial.reason) == (4, 3, "")
    assert len(list(ledger.running())) == 5


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
def test_trials_of_a_copied_ledger_are_its_own(ledger, copied):
    other = copied(ledger)
    ledger.settle(ledger[1], TrialState.COMPLETED, value=1.0)
    other.settle(other[2], TrialState.FAILED, reason="x")
    assert [t.id for t in ledger.running()] == [0, 2, 3]
    assert [t.id for t in other.running()] == [0, 1, 3]
    assert (ledger[1].value, other[1].value, other[2].reason) == (1.0, None, "x")
