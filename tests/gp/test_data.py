"""Averages of answers at one point."""

import pytest
import torch
from cases import normal, scattered

from botorch_delay.gp.data import Data


def test_the_spread_counts_answers():
    X, y = scattered(3), normal(3)
    rows = torch.tensor([0, 2, 2, 0, 2])
    noise = torch.full((5,), 0.25, dtype=torch.double)
    assert Data.single(X, y, noise[:3]).spread_ratio == pytest.approx(4.0)
    data = Data.averaged(X[rows], normal(5), noise, rows)
    assert data.spread_ratio == pytest.approx(4.0)
    torch.testing.assert_close(data.spread, torch.tensor([1 / 2, 1 / 3]).double())
    torch.testing.assert_close(data.noise_var, torch.tensor([0.25 / 2, 0.25 / 3]).double())
    assert torch.equal(data.X, X[[0, 2]])
    empty = torch.empty(0, dtype=torch.long)
    none = Data.averaged(X[:0], y[:0], noise[:0], empty)
    assert len(none) == 0
    assert none.spread_ratio == 0.0
