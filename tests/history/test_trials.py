import copy
import json
import pickle

import pytest
import torch
from cases import line, record

import botorch_delay as bd
from botorch_delay.exceptions import StorageError, TrialError
from botorch_delay.history.events import Event, read_events
from botorch_delay.history.trials import Ledger, TrialState


def ask(ledger, index=0, **data):
    x = line(5)[index].tolist()
    placed = {"x": x, "point": index, "round": 1, "slot": len(ledger)}
    return ledger.ask(
        Event("asked", 1.0, len(ledger), data=placed | data), bd.FiniteDomain(line(5))
    )


def settle(ledger, trial_id, kind, value=None, **data):
    return ledger.settle(Event(kind, 2.0, trial_id, value, data))


@pytest.fixture
def ledger():
    ledger = Ledger()
    for index in range(4):
        ask(ledger, index)
    return ledger


def test_trials_are_numbered_and_live(ledger):
    trial = ledger[2]
    assert trial.id == 2
    assert trial.state is TrialState.RUNNING
    assert trial.told_at is None
    settle(ledger, 2, "completed", 0.5)
    assert trial.value == 0.5
    assert trial.told_at >= trial.asked_at
    assert [t.id for t in ledger.running()] == [0, 1, 3]
    assert ledger.answered() == [trial]
    assert ledger.answer_count == 1
    assert "value=0.5" in repr(trial)
    study = bd.RandomOptimizer(bd.Space(dose=bd.Float(0, 1), acid=bd.Choice(["a", "b"])))
    asked = study.ask()
    shown = f"dose={asked.params['dose']:.12g}, acid={asked.params['acid']}"
    assert repr(asked) == f"Trial(id=0, {shown}, round=1, running)"


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
        Ledger().find(0)
    other = ask(Ledger(), 3)
    with pytest.raises(TrialError, match="another optimizer"):
        ledger.find(other)


def everything(ledger):
    """Append one event of each kind that concerns trials, and others."""
    settle(ledger, 1, "failed", reason="x")
    attached = Event("attached", 3.0, value=1.0, data={"x": [0.0], "point": 0})
    ledger.attach(attached, bd.FiniteDomain(line(5)))
    settle(ledger, 0, "abandoned")
    ledger.append(Event("noted", 4.0, data={"more": "0"}))
    settle(ledger, 0, "completed", 0.25, noise_var=0.5)
    ask(ledger, 2, width=0.5)
    settle(ledger, 2, "completed", 2.0)


def test_events_are_given_back_as_they_came(ledger):
    everything(ledger)
    events = list(ledger.events())
    assert len(events) == ledger.event_count == 11
    again = Ledger()
    for event in map(Event.read, json.loads(json.dumps([event.record() for event in events]))):
        if event.kind == "asked":
            again.ask(event, bd.FiniteDomain(line(5)))
        elif event.kind in ("completed", "failed", "abandoned"):
            again.settle(event)
        elif event.kind == "attached":
            again.attach(event, bd.FiniteDomain(line(5)))
        else:
            again.append(event)
    assert list(again.events()) == events
    assert list(again.events(7)) == events[7:]
    assert [*map(record, again.trials)] == [*map(record, ledger.trials)]
    assert [(e.kind, e.time, e.trial) for e in events[6:9]] == [
        ("abandoned", 2.0, 0),
        ("noted", 4.0, None),
        ("completed", 2.0, 0),
    ]


@pytest.mark.parametrize(
    ("kind", "trial"),
    [("completed", 9), ("failed", 0), ("abandoned", 2), ("completed", 2), ("failed", 2)],
)
def test_what_cannot_have_happened_is_refused(ledger, kind, trial):
    settle(ledger, 2, "completed", 0.5)
    settle(ledger, 0, "abandoned")
    before = ledger.event_count
    with pytest.raises(StorageError, match=f"trial {trial} is {kind}"):
        settle(ledger, trial, kind, 1.0 if kind == "completed" else None)
    assert ledger.event_count == before
    with pytest.raises(StorageError, match="trial 7 was asked after 4 others"):
        ledger.ask(Event("asked", 1.0, 7), line(5))


def test_what_a_holder_does_to_a_point_changes_nothing(ledger):
    ledger[2].x.mul_(7.0)
    assert ledger[2].x.tolist() == [0.5]


def test_copies_take_their_point_along_and_not_the_domain(ledger):
    settle(ledger, 3, "completed", 0.5)
    for copied in (copy.deepcopy(ledger[3]), pickle.loads(pickle.dumps(ledger[3]))):
        assert record(copied) == record(ledger[3])
        assert copied.source.shape == (1,)
        assert ledger.find(copied) is ledger[3]


def test_a_trial_of_another_library_is_named_by_its_module(ledger):
    theirs = type("Trial", (), {"__module__": "optuna.trial"})()
    for other, name in ((theirs, "optuna.trial.Trial"), (1.5, "float")):
        with pytest.raises(TrialError, match=f"Expected a Trial or its id, got {name};"):
            ledger.find(other)


def test_states_have_names():
    assert {state.value for state in bd.TrialState} == {
        "running",
        "completed",
        "failed",
        "abandoned",
    }


@pytest.mark.parametrize(("field", "odd"), [("slot", -3), ("round", 0), ("reason", 1)])
def test_an_event_of_an_ask_that_cannot_be_is_refused(field, odd):
    data = {"x": [0.0], "point": 0, "round": 1, "slot": 0}
    stored = Event("asked", 1.0, 0, data=data).record()
    assert Event.read(stored).record() == stored
    for value in (odd, 2**70, "1.5", None):
        stored["data"] = data | {field: value}
        if field == "reason" and isinstance(value, str):
            continue
        with pytest.raises(StorageError, match="malformed"):
            Event.read(stored)


def test_a_point_of_a_box_that_names_a_row_is_refused():
    box = bd.BoxDomain(torch.tensor([[0.0], [1.0]], dtype=torch.double))
    data = {"x": [0.5], "point": 0, "round": 1, "slot": 0}
    with pytest.raises(StorageError, match="points of a box have no row"):
        read_events([Event("asked", 1.0, 0, data=data).record()], box)


def test_trials_of_a_copied_ledger_are_its_own(ledger):
    other = copy.deepcopy(ledger)
    settle(ledger, 1, "completed", 1.0)
    settle(other, 2, "failed", reason="x")
    assert [t.id for t in ledger.running()] == [0, 2, 3]
    assert [t.id for t in other.running()] == [0, 1, 3]
    assert (ledger[1].value, other[1].value, other[2].reason) == (1.0, None, "x")


def test_corrections_keep_what_was_said_in_trial_and_events(ledger):
    settle(ledger, 1, "completed", 0.5, noise_var=0.1)
    before = list(ledger.events())
    for time, value in ((3.0, 0.7), (4.0, None), (5.0, 0.6)):
        ledger.correct(Event("corrected", time, 1, value, {"reason": f"at {time}"}))
    assert list(ledger.events())[: len(before)] == before
    trial = ledger[1]
    assert (trial.value, trial.noise_var, trial.told_at) == (0.6, 0.1, 2.0)
    assert [c.value for c in trial.corrections] == [0.5, 0.7, None]
    assert [c.failure for c in trial.corrections] == ["", "", "at 4.0"]
    assert [c.reason for c in trial.corrections] == ["at 3.0", "at 4.0", "at 5.0"]
    assert ledger.answer_count == 1
    assert pickle.loads(pickle.dumps(trial)).corrections == trial.corrections


def test_what_has_no_end_cannot_be_corrected(ledger):
    settle(ledger, 0, "failed")
    settle(ledger, 1, "abandoned")
    for trial, value in ((0, None), (1, 1.0), (2, 1.0), (9, 1.0)):
        with pytest.raises(StorageError):
            ledger.correct(Event("corrected", 3.0, trial, value))


def test_only_answers_far_from_enough_others_are_suspect(ledger):
    for _ in range(8):
        ask(ledger)
    for trial in range(7):
        settle(ledger, trial, "completed", 0.1 * trial)
    assert ledger.far(50.0) == ""
    settle(ledger, 7, "completed", 0.7)
    assert "lies" in ledger.far(50.0)
    assert ledger.far(0.35) == ledger.far(-0.5) == ""
    settle(ledger, 8, "completed", 50.0)
    assert ledger.far(60.0) == ""  # no further away than trial 8
    assert "lies" in ledger.far(50.0, than=ledger[8])
    ledger.correct(Event("corrected", 3.0, 8, 0.5))
    assert "lies" in ledger.far(60.0)


def test_a_value_is_suspect_where_most_others_are_the_same(ledger):
    for _ in range(8):
        ask(ledger)
    for trial in range(9):
        settle(ledger, trial, "completed", 0.9 if trial else 0.85)
    assert ledger.far(0.99) == ""
    assert "far from all 9 other answers, which are between 0.85 and 0.9" in ledger.far(90.0)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_values_that_span_decades_are_not_suspect(ledger, sign):
    for _ in range(8):
        ask(ledger)
    for trial in range(9):
        settle(ledger, trial, "completed", sign * 10.0 ** (-trial / 2))
    assert ledger.far(50.0 * sign) == ledger.far(1e-7 * sign) == ""
    assert "lies" in ledger.far(2e4 * sign)
    assert "lies" in ledger.far(-50.0 * sign)
