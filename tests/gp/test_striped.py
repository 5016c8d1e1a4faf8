"""Blocks taken off a covariance a stripe at a time, against all at once."""

import pytest
import torch
from cases import generator, scattered, se

from botorch_delay.gp.striped import STRIPES, StripedCovariance


def blocks(n, count):
    g = generator(0)
    for size in (9, 30, 4)[:count]:
        signs = torch.randint(2, (size,), generator=g).double() * 2.0 - 1.0
        yield 0.1 * torch.randn(size, n, generator=g, dtype=torch.double), signs


@pytest.mark.parametrize("n", [1, 40, STRIPES, 300])
@pytest.mark.parametrize("steps", [0, 3, STRIPES, 1000])
def test_rows_are_right_however_far_the_steps_have_come(n, steps):
    points = scattered(n, 2)
    striped, whole = StripedCovariance(se(), points), StripedCovariance(se(), points)
    C = se()(points).to_dense()
    assert not striped.begun
    for rows, signs in blocks(n, 3):
        striped.take(rows, signs)
        whole.take(rows, signs)
        whole.finish()
        C = C - (signs.unsqueeze(1) * rows).T @ rows
        for _ in range(steps):
            striped.step()
        for index in (n - 1, 0, n // 2):
            row = striped.row(torch.tensor([index]))
            torch.testing.assert_close(row, C[index], rtol=0.0, atol=1e-10)
            assert torch.equal(row, whole.row(torch.tensor([index])))
    assert striped.begun
    weights = torch.linspace(-1.0, 1.0, n, dtype=torch.double)
    torch.testing.assert_close(striped.times(weights), C @ weights, rtol=0.0, atol=1e-9)


def test_a_block_takes_so_many_steps():
    striped = StripedCovariance(se(), scattered(300, 2))
    striped.step()
    ((rows, signs),) = blocks(300, 1)
    striped.take(rows, signs)
    left = []
    while striped.left:
        left.append(striped.left)
        striped.step()
    assert left == list(range(100, 0, -1))
    assert len(left) <= STRIPES
