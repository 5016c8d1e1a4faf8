"""Every case asks, eliminates, recommends and certifies as recorded."""

import copy

import pytest
from golden import record, traces
from golden.traces import CASES, CLOSE, play
from scale import some

NAMES = list(CASES)
QUICK = [name for name in NAMES if CASES[name].tolerance == CLOSE][::6]
QUICK += ["box, design only", "index, box, learned"]


@pytest.fixture(scope="module")
def recorded():
    return record.read()


def check(name, recorded):
    found = record.compared(name, recorded)
    assert not found, "\n".join(found[:20])


@pytest.mark.parametrize("name", QUICK)
def test_some_cases_give_what_was_recorded(name, recorded):
    check(name, recorded)


@pytest.mark.cuda
@pytest.mark.heavy
@pytest.mark.parametrize("name", some(sorted(NAMES, key=lambda name: NAMES.index(name) % 16), 4))
def test_a_device_gives_what_was_recorded_on_the_cpu(name, recorded, monkeypatch):
    monkeypatch.setattr(traces, "DEVICE", "cuda")
    check(name, recorded)


@pytest.mark.heavy
@pytest.mark.parametrize("name", [name for name in NAMES if name not in QUICK])
def test_every_other_case_gives_what_was_recorded(name, recorded):
    check(name, recorded)


def test_what_is_recorded_is_what_is_played(recorded):
    assert list(recorded) == NAMES


def test_a_difference_is_told_by_case_step_and_field(recorded):
    name = "arrival, ties"
    forged = copy.deepcopy(recorded)
    forged[name]["asked"][3][0] += 1
    forged[name]["looks"][1]["rounds"][0]["multiplier"] *= 1.00001
    forged[name]["looks"][1]["recommend"]["mean"] *= 1.0000001  # within the tolerance
    forged[name]["looks"][1]["pending"].append(7)
    del forged[name]["looks"][1]["stopping_gap"]
    places = [line.partition(": ")[2].partition(":")[0] for line in record.compared(name, forged)]
    assert places == [
        "asked 3 0",
        "looks 1 pending",
        "looks 1 rounds 0 multiplier",
        "looks 1 stopping_gap",
    ]
    assert record.compared("another", forged) == ["another: was not recorded"]


def test_answers_that_differ_by_rounding_give_the_same():
    case = CASES["UCB, valid, all"]
    changed = play(case, nudge=1e-12)
    assert not list(record.differences(play(case), changed, case.tolerance))
    assert list(record.differences(play(case), play(case, nudge=1e-3), case.tolerance))
