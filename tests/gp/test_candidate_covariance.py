"""The covariance of candidates, whose blocks are folded in one stripe at a time."""

import pytest
import torch
from cases import generator, scattered, se

from botorch_delay.gp import candidate_covariance as module
from botorch_delay.gp.candidate_covariance import CandidateCovariance


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(module, "BLOCK", 9)
    monkeypatch.setattr(module, "HEIGHT", 10)
    monkeypatch.setattr(module, "rows_per_chunk", lambda columns, like: 13)


def dense(points):
    return se()(points).to_dense()


def drawn(n, count, seed=0):
    g = generator(seed)
    rows = 0.05 * torch.randn(count, n, generator=g, dtype=torch.double)
    return zip(rows, (torch.randint(2, (count,), generator=g) * 2.0 - 1.0).tolist(), strict=True)


@pytest.mark.parametrize("most", [0, 4096])
@pytest.mark.parametrize("n", [1, 6, 40])
def test_columns_are_those_of_the_covariance_however_far_folding_has_come(n, most, monkeypatch):
    monkeypatch.setattr(module, "MAX_FOLDED", most)
    points = scattered(n, 2)
    found, looked_at = CandidateCovariance(se(), points), CandidateCovariance(se(), points)
    C = dense(points)
    for step, (row, sign) in enumerate(drawn(n, 40)):
        found.downdate(row, sign)
        looked_at.downdate(row, sign)
        C = C - sign * row.unsqueeze(1) * row
        for index in ([n - 1], [0], [n // 2])[: step % 4]:
            column = looked_at.column(torch.tensor(index))
            torch.testing.assert_close(column, C[index[0]], rtol=0.0, atol=1e-10)
        torch.testing.assert_close(found.variance, C.diagonal().clamp_min(0.0))
        if step % 11 == 10:
            last = torch.tensor([n - 1])
            assert torch.equal(found.column(last), looked_at.column(last))
    weights = torch.linspace(-1.0, 1.0, n, dtype=torch.double)
    torch.testing.assert_close(found.times(weights), C @ weights, rtol=0.0, atol=1e-9)
    assert found.folded == (3 if most else 0)  # the fourth is only folded on demand


def test_each_column_folds_one_stripe():
    points = scattered(70, 2)
    found = CandidateCovariance(se(), points)
    for row, sign in drawn(70, 10):
        found.downdate(row, sign)
    for number in range(7):  # of seven stripes of ten rows, whichever columns are asked for
        assert found.folded == 0
        found.column(torch.tensor([60 if number % 2 else 0]))
    assert found.folded == 1


@pytest.mark.parametrize("looks", [0, 3])
def test_products_with_squares_are_those_of_the_covariance_in_scratch_as_well(looks):
    points = scattered(40, 2)
    found, C = CandidateCovariance(se(), points), dense(points).detach()
    for row, sign in drawn(40, 30):
        found.downdate(row, sign)
        C = C - sign * row.unsqueeze(1) * row
    for index in range(looks):  # so that some stripes lack the block that is being folded
        found.column(torch.tensor([index * 13]))
    weights = torch.randn(40, 3, dtype=torch.double, generator=generator(5))
    for _ in range(2):
        with found.scratch():
            row = torch.linspace(0.0, 0.1, 40, dtype=torch.double)
            found.downdate(row)
            within = C - row.unsqueeze(1) * row
            torch.testing.assert_close(found.times_squares(weights), within.square() @ weights)
        torch.testing.assert_close(found.times_squares(weights), C.square() @ weights)


def test_precisions_are_answers_and_their_inverse():
    points = scattered(20, 2)
    found, C = CandidateCovariance(se(), points), dense(points)
    before, growth = found.add_precision(3, 50.0, 1e-3)
    torch.testing.assert_close(before, C[3])
    assert growth == pytest.approx(1.0 + 50.0)
    C = C - torch.outer(C[3], C[3]) / (C[3, 3] + 1 / 50.0)
    torch.testing.assert_close(found.column(torch.tensor([7])), C[7])
    assert found.add_precision(3, -50.0, 1e-18) is None  # 1e-18 is less than rounding
    torch.testing.assert_close(found.column(torch.tensor([7])), C[7])
    found.add_precision(3, -50.0, 1e-3)
    torch.testing.assert_close(found.column(torch.tensor([7])), dense(points)[7])
