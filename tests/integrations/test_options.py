"""Options of the optimizer underneath an engine."""

import pytest

import botorch_delay as bd
from botorch_delay.exceptions import InputTypeError, NotSupportedError
from botorch_delay.integrations.options import engine_options


def test_a_rule_repeats_no_pending_points_unless_that_is_said():
    quiet = bd.Exploit(bd.UCB(2.0), repeat_pending=False)
    assert engine_options({}, 10)["exploit"] == bd.Exploit(repeat_pending=False)
    assert engine_options({"exploit": quiet.rule}, 10)["exploit"] == quiet
    assert engine_options({"exploit": bd.Exploit()}, 10)["exploit"] == bd.Exploit()
    assert engine_options({"exploit": None}, 10)["exploit"] is None


def test_without_a_horizon_rounds_grow():
    rounds = bd.GeometricRounds(3, 1.5)
    assert isinstance(engine_options({}, None)["rounds"], bd.GeometricRounds)
    assert engine_options({}, 10)["rounds"] is None
    assert engine_options({"rounds": rounds}, None)["rounds"] is rounds


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"beta": 6.0}, InputTypeError, "no option 'beta'"),
        ({"seed": 1}, InputTypeError, "no option 'seed'"),
        ({"exploit": bd.WithinBudget()}, NotSupportedError, "WithinBudget"),
        ({"exploit": 3}, InputTypeError, "exploit"),
    ],
)
def test_bad_options(options, error, message):
    with pytest.raises(error, match=message):
        engine_options(options, 10)
