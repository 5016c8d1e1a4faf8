"""Warpings of the values: monotone, invertible, and what they do to heavy tails."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from botorch.models.transforms.outcome import Standardize
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from botorch_delay.gp.warping import (
    BASES,
    MAX_KNOTS,
    MIN_FOR_LOGARITHMS,
    MIN_TO_COMPARE,
    WARPINGS,
    Warping,
    better_half,
    half_rank,
    half_ranks,
    spread_weights,
)

values = st.lists(st.floats(-1e9, 1e9, allow_nan=False, width=32), min_size=1, max_size=40).map(
    lambda numbers: torch.tensor(numbers, dtype=torch.double)
)


def fitted(kind, y):
    """The warping fitted to values of equal weight."""
    return WARPINGS[kind](y, torch.ones_like(y)).first


@pytest.mark.parametrize("kind", WARPINGS)
@given(y=values)
def test_the_order_of_values_stays(kind, y):
    warped = fitted(kind, y)(y)
    order = y.argsort()
    assert bool(torch.isfinite(warped).all())
    assert bool((warped[order].diff() >= 0.0).all())


@pytest.mark.parametrize("kind", WARPINGS)
def test_values_come_back(kind):
    y = torch.randn(60, generator=torch.Generator().manual_seed(0), dtype=torch.double).exp()
    warping = fitted(kind, y)
    beyond = torch.cat([y, torch.tensor([y.min() - 3.0, y.max() + 3.0], dtype=torch.double)])
    torch.testing.assert_close(warping.inverse(warping(beyond)), beyond, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("base", BASES)
def test_half_rank_by_hand(base):
    """Five values: the median 2, the better half 2, 3, 5, the worse half of ranks 1 and 2."""
    y = torch.tensor([-1e6, -7.0, 2.0, 3.0, 5.0], dtype=torch.double)
    spread = np.sqrt((0.0 + 1.0 + 9.0) / 3.0)
    lowest, lower = (2.0 + spread * stats.norm.ppf(share) for share in (0.1, 0.3))
    ranked = np.array([lowest, lower, 2.0, 3.0, 5.0])
    distance = (5.0 - ranked) / (5.0 - lowest)
    expected = 0.5 - np.log(1.0 + (base - 1.0) * distance) / np.log(base)
    found = half_rank(y, torch.ones_like(y), base)(y)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-12)


def test_few_values_have_the_first_base():
    y = torch.arange(1.0, 1.0 + MIN_TO_COMPARE, dtype=torch.double).sqrt()
    weight = torch.ones_like(y)
    assert half_ranks(y, weight).if_exact == [half_rank(y, weight, base) for base in BASES[1:]]
    assert half_ranks(y, weight).first == half_rank(y, weight)
    assert half_ranks(y[1:], weight[1:])[:2] == (half_rank(y[1:], weight[1:]), [])


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_logarithms_are_compared_where_all_values_have_one_sign(sign):
    y = sign * torch.arange(1.0, 1.0 + MIN_FOR_LOGARITHMS, dtype=torch.double).exp()
    weight = torch.ones_like(y)
    (found,) = half_ranks(y, weight).others
    expected = half_rank(sign * y.abs().log2(), weight)
    torch.testing.assert_close(found(y), expected(sign * y.abs().log2()))
    assert half_ranks(y[1:], weight[1:]).others == []
    for mixed in (torch.cat([y, -y[:1]]), torch.cat([y, 0.0 * y[:1]])):
        assert half_ranks(mixed, torch.ones_like(mixed)).others == []


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_unit_makes_no_difference_to_logarithms(sign):
    y = sign * torch.randn(40, generator=torch.Generator().manual_seed(1), dtype=torch.double).exp()
    weight = torch.ones_like(y)
    expected = half_rank(y, weight, logarithms=True)
    for power in (-1000, -500, 450, 1000):
        scaled = half_rank(y * 2.0**power, weight, logarithms=True)
        assert scaled.warped == expected.warped
        assert scaled.values[-40:] == tuple((y * 2.0**power).sort().values.tolist())


def test_the_better_half_begins_at_the_weighted_median():
    y = torch.tensor([3.0, -1.0, 2.0, 5.0, 2.0], dtype=torch.double)
    alike = better_half(y, torch.ones_like(y))
    assert alike.tolist() == [True, False, True, True, True]
    heavy = better_half(y, y.new_tensor([1.0, 1.0, 1.0, 9.0, 1.0]))
    assert heavy.tolist() == [False, False, False, True, False]


def test_an_answer_that_weighs_twice_is_two_of_its_value():
    y = torch.tensor([-7.0, 2.0, 3.0, 5.0, 8.0, 2.0], dtype=torch.double)
    weight = torch.tensor([1.0, 2.0, 1.0, 1.0, 1.0], dtype=torch.double)
    once, twice = half_rank(y[:5], weight), fitted("half-rank", y)
    torch.testing.assert_close(once(y), twice(y))


def test_a_crowd_counts_as_one_point():
    """Nine answers crowd at one place, three lie apart; also with very many answers."""
    apart = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]], dtype=torch.double)
    crowd = torch.tensor([[1.0, 1.0]], dtype=torch.double).repeat(9, 1)
    weight = spread_weights(torch.cat([apart, crowd]))
    np.testing.assert_allclose(weight, [1.0] * 3 + [1 / 9] * 9, rtol=1e-6)
    many = spread_weights(torch.cat([apart, crowd.repeat(300, 1)]))
    np.testing.assert_allclose(many[3:].sum(), 1.0, rtol=0.1)
    assert spread_weights(apart[:0]).tolist() == []


def test_answers_near_the_best_leave_the_rest_apart():
    """With equal weights, a crowd near the best leaves little range to all other values."""
    X = torch.linspace(0.0, 1.0, 11, dtype=torch.double).unsqueeze(-1)
    X = torch.cat([X, torch.linspace(0.49, 0.51, 40, dtype=torch.double).unsqueeze(-1)])
    y = -(X - 0.5).abs().squeeze(-1)
    alike, spread = (half_rank(y, w) for w in (torch.ones_like(y), spread_weights(X)))
    middle = y.new_tensor([-0.3, -0.1, 0.0])
    shares = [
        ((w(middle)[1] - w(middle)[0]) / (w(middle)[2] - w(middle)[0])).item()
        for w in (alike, spread)
    ]
    assert shares[0] < 0.2 < 0.4 < shares[1]


def test_how_bad_the_worst_value_is_does_not_count():
    y = torch.tensor([-1e3, -7.0, 2.0, 3.0, 5.0], dtype=torch.double)
    worse = y.clone()
    worse[0] = -1e12
    torch.testing.assert_close(fitted("half-rank", y)(y), fitted("half-rank", worse)(worse))


def test_yeo_johnson_makes_a_skewed_sample_symmetric():
    y = torch.randn(400, generator=torch.Generator().manual_seed(1), dtype=torch.double).exp()
    warped = fitted("yeo-johnson", y)(y)
    assert abs(stats.skew(warped.numpy())) < 0.5 < 1.5 < stats.skew(y.numpy())
    # scipy's own map of the same standardised values.
    standard = Standardize(1)(y.unsqueeze(-1))[0].squeeze(-1).numpy() * np.sqrt(400 / 399)
    expected, _ = stats.yeojohnson(standard)
    np.testing.assert_allclose(warped.numpy(), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kind", ["half-rank", "yeo-johnson"])
def test_the_unit_of_the_values_makes_no_difference(kind):
    y = torch.randn(40, generator=torch.Generator().manual_seed(1), dtype=torch.double).exp()
    expected = fitted(kind, y).warped
    for power in (-1000, -500, 450, 1000):
        scaled = fitted(kind, y * 2.0**power)
        assert scaled.warped == expected
        assert scaled.values[-40:] == tuple((y * 2.0**power).sort().values.tolist())


def test_slopes_are_those_of_the_segments():
    warping = Warping((0.0, 1.0, 3.0), (0.0, 2.0, 3.0))
    at = torch.tensor([-5.0, 0.5, 2.0, 9.0], dtype=torch.double)
    assert warping.slope(at).tolist() == [2.0, 2.0, 0.5, 0.5]
    assert warping(at).tolist() == [-10.0, 1.0, 2.5, 6.0]
    assert warping.inverse(warping(at)).tolist() == at.tolist()


def test_the_identity_without_values_to_tell_from():
    y = torch.tensor([1.0, 1.0, 4.0], dtype=torch.double)
    for kind in WARPINGS:
        assert fitted(kind, y) == fitted(kind, y[:0]) == Warping()
    assert Warping()(y) is y
    assert Warping().slope(y).tolist() == [1.0, 1.0, 1.0]


def test_of_many_values_some_are_knots():
    y = torch.randn(3000, generator=torch.Generator().manual_seed(2), dtype=torch.double)
    warping = fitted("half-rank", y)
    assert len(warping.values) <= MAX_KNOTS + 1
    assert y.min() in warping.values[:2]
    assert warping.values[-1] == y.max()


@pytest.mark.parametrize("gap", [1e-9, 1e-3, 0.3])
def test_values_below_the_worst_have_room_however_close_the_two_worst_are(gap):
    y = torch.tensor([-1.0, -1.0 + gap, -0.5, -0.2, -0.1, 0.0], dtype=torch.double)
    warping = fitted("half-rank", y)
    lower = warping.inverse(warping(y[:1]) - 0.1 * (warping.warped[-1] - warping(y[:1])))
    assert -1.7 < lower.item() < -1.09
    assert warping(warping.inverse(torch.tensor([-3.0]).double())).item() == pytest.approx(-3.0)


@given(y=values)
def test_a_record_gives_the_same_map(y):
    warping = fitted("half-rank", y)
    assert Warping.rebuild(warping.describe()) == warping


@pytest.mark.parametrize(
    "record",
    [
        {"values": [0.0, 1.0], "warped": [0.0]},
        {"values": [1.0, 0.0], "warped": [0.0, 1.0]},
        {"values": [0.0, 1.0], "warped": [1.0, 1.0]},
        {"values": [0.0], "warped": [0.0]},
        {"values": [0.0, float("nan")], "warped": [0.0, 1.0]},
    ],
)
def test_a_record_that_is_no_increasing_map_is_refused(record):
    with pytest.raises(ValueError, match="increase"):
        Warping.rebuild(record)
