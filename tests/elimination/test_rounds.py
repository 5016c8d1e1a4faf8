import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

import botorch_delay as bd
from botorch_delay.elimination.rounds import RoundRule, next_design_size
from botorch_delay.exceptions import InputError


def test_lengths_of_the_reference(finite):
    given_ = finite["round_lengths"]
    assert bd.round_lengths(given_["horizon"], given_["wait"]) == (given_["q"], given_["t"])


@given(horizon=st.integers(1, 200_000), wait=st.floats(0, 5_000))
def test_lengths_follow_the_recursion_and_sum_to_the_horizon(horizon, wait):
    q, t = bd.round_lengths(horizon, wait)
    assert sum(t) == horizon
    assert len(q) == len(t)
    previous = 1
    for number, (size, length) in enumerate(zip(q, t, strict=True)):
        assert (size - 1) ** 2 < horizon * previous <= size**2
        if number < len(q) - 1:
            assert length == math.ceil(size + wait)
        else:
            assert 1 <= length <= math.ceil(size + wait)
        previous = size


@given(horizon=st.integers(1, 10**12), previous=st.integers(1, 10**12))
def test_design_sizes_have_no_rounding_error(horizon, previous):
    size = next_design_size(horizon, previous)
    assert (size - 1) ** 2 < horizon * previous <= size**2


def test_sizes_that_are_whole_numbers_are_not_rounded_up():
    assert RoundRule(100, bd.HorizonRounds(), 0.07).design_size(2, 7) == 7  # 0.07 * 700 > 49
    assert RoundRule(100, bd.HorizonRounds(), 0.07).design_size(2, 8) == 8
    assert RoundRule(None, bd.GeometricRounds(10, 1.1)).design_size(2, 10) == 11  # 1.1 * 10 > 11


def test_arrival_rounds_use_the_schedule_without_delay():
    rule = RoundRule(1000, bd.HorizonRounds())
    assert rule.delta_divisor(1) == rule.delta_divisor(3) == len(bd.round_lengths(1000, 0.0)[0])
    assert rule.design_size(1, 1) == 32
    assert rule.length(32, 0) is None


@pytest.mark.parametrize(
    ("horizon", "wait"), [(0, 1.0), (2.5, 1.0), (10, -1.0), (10, math.inf), (10, math.nan)]
)
def test_bad_arguments(horizon, wait):
    with pytest.raises(InputError):
        bd.round_lengths(horizon, wait)
