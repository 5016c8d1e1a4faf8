"""Options of the optimizer underneath an engine."""

import pytest

import botorch_delay as bd
from botorch_delay.exceptions import InputTypeError, NotSupportedError
from botorch_delay.integrations.engine_run import Settings


def test_a_rule_repeats_no_pending_points_unless_that_is_said():
    quiet = bd.Exploit(bd.UCB(2.0), repeat_pending=False)
    assert Settings(10, 0, {}).options["exploit"] == bd.Exploit(repeat_pending=False)
    assert Settings(10, 0, {"exploit": quiet.rule}).options["exploit"] == quiet
    assert Settings(10, 0, {"exploit": bd.Exploit()}).options["exploit"] == bd.Exploit()
    assert Settings(10, 0, {"exploit": None}).options["exploit"] is None


def test_without_a_horizon_rounds_grow():
    rounds = bd.GeometricRounds(3, 1.5)
    assert isinstance(Settings(None, 0, {}).options["rounds"], bd.GeometricRounds)
    assert Settings(10, 0, {}).options["rounds"] is None
    assert Settings(None, 0, {"rounds": rounds}).options["rounds"] is rounds


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
        Settings(10, 0, options)
