"""Warpings of the values: monotone, invertible, and what they do to heavy tails."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from botorch.models.transforms.outcome import Standardize
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from botorch_delay.gp.warping import MAX_KNOTS, WARPINGS, Warping, half_rank, yeo_johnson

values = st.lists(st.floats(-1e9, 1e9, allow_nan=False, width=32), min_size=1, max_size=40).map(
    lambda numbers: torch.tensor(numbers, dtype=torch.double)
)


@pytest.mark.parametrize("kind", WARPINGS)
@given(y=values)
def test_the_order_of_values_stays(kind, y):
    warped = WARPINGS[kind](y)(y)
    order = y.argsort()
    assert bool(torch.isfinite(warped).all())
    assert bool((warped[order].diff() >= 0.0).all())


@pytest.mark.parametrize("kind", WARPINGS)
def test_values_come_back(kind):
    y = torch.randn(60, generator=torch.Generator().manual_seed(0), dtype=torch.double).exp()
    warping = WARPINGS[kind](y)
    beyond = torch.cat([y, torch.tensor([y.min() - 3.0, y.max() + 3.0], dtype=torch.double)])
    torch.testing.assert_close(warping.inverse(warping(beyond)), beyond, rtol=1e-9, atol=1e-9)


def test_half_rank_by_hand():
    """Five values: the median 2, the better half 2, 3, 5, the worse half of ranks 1 and 2."""
    y = torch.tensor([-1e6, -7.0, 2.0, 3.0, 5.0], dtype=torch.double)
    spread = np.sqrt((0.0 + 1.0 + 9.0) / 3.0)
    lowest, lower = (2.0 + spread * stats.norm.ppf(share) for share in (0.1, 0.3))
    ranked = np.array([lowest, lower, 2.0, 3.0, 5.0])
    distance = (5.0 - ranked) / (5.0 - lowest)
    expected = 0.5 - np.log(1.0 + 0.5 * distance) / np.log(1.5)
    np.testing.assert_allclose(half_rank(y)(y).numpy(), expected, rtol=1e-12)


def test_how_bad_the_worst_value_is_does_not_count():
    y = torch.tensor([-1e3, -7.0, 2.0, 3.0, 5.0], dtype=torch.double)
    worse = y.clone()
    worse[0] = -1e12
    torch.testing.assert_close(half_rank(y)(y), half_rank(worse)(worse))


def test_yeo_johnson_makes_a_skewed_sample_symmetric():
    y = torch.randn(400, generator=torch.Generator().manual_seed(1), dtype=torch.double).exp()
    warped = yeo_johnson(y)(y)
    assert abs(stats.skew(warped.numpy())) < 0.5 < 1.5 < stats.skew(y.numpy())
    # scipy's own map of the same standardised values.
    standard = Standardize(1)(y.unsqueeze(-1))[0].squeeze(-1).numpy() * np.sqrt(400 / 399)
    expected, _ = stats.yeojohnson(standard)
    np.testing.assert_allclose(warped.numpy(), expected, rtol=1e-6, atol=1e-6)


def test_slopes_are_those_of_the_segments():
    warping = Warping((0.0, 1.0, 3.0), (0.0, 2.0, 3.0))
    at = torch.tensor([-5.0, 0.5, 2.0, 9.0], dtype=torch.double)
    assert warping.slope(at).tolist() == [2.0, 2.0, 0.5, 0.5]
    assert warping(at).tolist() == [-10.0, 1.0, 2.5, 6.0]
    assert warping.inverse(warping(at)).tolist() == at.tolist()


def test_the_identity_without_values_to_tell_from():
    y = torch.tensor([1.0, 1.0, 4.0], dtype=torch.double)
    for kind in WARPINGS.values():
        assert kind(y) == kind(y[:0]) == Warping()
    assert Warping()(y) is y
    assert Warping().slope(y).tolist() == [1.0, 1.0, 1.0]


def test_of_many_values_some_are_knots():
    y = torch.randn(3000, generator=torch.Generator().manual_seed(2), dtype=torch.double)
    warping = half_rank(y)
    assert len(warping.values) <= MAX_KNOTS
    assert warping.values[0] == y.min()
    assert warping.values[-1] == y.max()


@given(y=values)
def test_a_record_gives_the_same_map(y):
    warping = half_rank(y)
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
