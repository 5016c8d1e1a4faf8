import math

import numpy as np
import pytest
import torch
from cases import KERNELS, generator, se, with_values
from gpytorch.kernels import (
    ConstantKernel,
    LinearKernel,
    MaternKernel,
    RBFKernel,
    RQKernel,
    ScaleKernel,
)
from oracle import kernel_function

import botorch_delay as bd
from botorch_delay.confidence.nets import _measure, largest_prior_deviation, nets
from botorch_delay.exceptions import NotSupportedError
from botorch_delay.gp.kernels import matern_sum

BOX = torch.tensor([[-0.5, 0.0], [1.0, 2.0]], dtype=torch.double)

SCALES = torch.tensor([0.4, 0.9], dtype=torch.double)
CASES = KERNELS | {"main-effects": lambda: matern_sum(SCALES, 0.3, [[0], [1]])}

# Kernels for which the bound on distances is tight: some pair of points attains it.
EXACT = (
    *("se", "se-ard", "matern12", "matern32", "matern52-ard"),
    *("scaled", "linear", "one-column", "main-effects"),
)


def net(kernel, box, counts, eps):
    """The net of one radius."""
    return nets(kernel, box, counts, [eps])[0]


def distances(kernel, a, b):
    """The kernel's distance between rows, from its written out formula."""
    k = kernel_function(kernel)
    square = [
        k(x[None], x[None]) - 2 * k(x[None], z[None]) + k(z[None], z[None])
        for x, z in zip(a.numpy(), b.numpy(), strict=True)
    ]
    return np.sqrt(np.clip(np.concatenate(square).ravel(), 0, None))


def distance_bound(kernel, half, box):
    """The bound on the distance of points that differ by no more than ``half`` in each column."""
    return _measure(kernel, half, box)[0].item()


def uniform(box, n, seed=0):
    draws = torch.rand(n, box.shape[1], dtype=torch.double, generator=generator(seed))
    return box[0] + draws * (box[1] - box[0])


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("share", [0.02, 0.3, 1.0])
def test_no_two_points_are_farther_apart_than_the_bound(name, share):
    kernel = CASES[name]()
    half = share * torch.tensor([0.4, 0.7], dtype=torch.double)
    a = uniform(BOX, 400)
    steps = 2 * torch.rand(400, 2, dtype=torch.double, generator=generator(1)) - 1
    steps[:100] = steps[:100].sign()  # corners, where the distance is largest
    b = torch.minimum(torch.maximum(a + steps * half, BOX[0]), BOX[1])
    seen = distances(kernel, a, b).max()
    bound = distance_bound(kernel, half, BOX)
    # The reference formula subtracts numbers near 1.
    assert seen <= bound + 1e-8
    if name in EXACT:
        assert seen >= bound * (1 - 1e-6)


@pytest.mark.parametrize("name", CASES)
def test_the_largest_deviation(name):
    kernel = CASES[name]()
    corners = torch.cartesian_prod(BOX[:, 0], BOX[:, 1])
    X = torch.cat([corners, uniform(BOX, 50)]).numpy()
    seen = math.sqrt(max(kernel_function(kernel)(x[None], x[None]).item() for x in X))
    bound = largest_prior_deviation(kernel, BOX)
    assert seen <= bound * (1 + 1e-12)
    assert bound == pytest.approx(seen, rel=1e-9)


def test_tiny_distances_do_not_cancel():
    # k falls by less than an ulp near 1; the bound must see the distance all the same.
    half = torch.tensor([1e-10, 0.0], dtype=torch.double)
    for nu, slope in ((1.5, math.sqrt(3.0)), (2.5, math.sqrt(5.0 / 3.0))):
        kernel = with_values(MaternKernel(nu=nu), lengthscale=1.0)
        got = distance_bound(kernel, half, BOX)
        assert got == pytest.approx(slope * 1e-10, rel=1e-9)
    assert distance_bound(se(1.0), half, BOX) == pytest.approx(1e-10, rel=1e-9)
    rough = with_values(MaternKernel(nu=0.5), lengthscale=1.0)
    assert distance_bound(rough, half, BOX) == pytest.approx(math.sqrt(2e-10), rel=1e-9)


def test_ard_and_columns_of_linear_kernels():
    kernel = with_values(LinearKernel(ard_num_dims=2), variance=[[0.5, 2.0]])
    half = torch.tensor([0.1, 0.2], dtype=torch.double)
    got = distance_bound(kernel, half, BOX)
    variance = kernel.variance.detach().flatten()
    assert got == pytest.approx((variance * half.square()).sum().sqrt().item(), rel=1e-9)
    scaled = with_values(
        ScaleKernel(with_values(LinearKernel(active_dims=(1,)), variance=2.0)), outputscale=3.0
    )
    assert distance_bound(scaled, half, BOX) == pytest.approx(0.2 * math.sqrt(6), rel=1e-6)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("eps", [0.6, 0.2])
def test_every_point_is_near_the_net(name, eps):
    # Make the net explicit, with the cells per column that its size implies.
    kernel = CASES[name]()
    for box in (BOX, BOX[:, :1]):
        of_two = "one-column", "se-ard", "matern52-ard", "main-effects"
        if name in of_two and box.shape[1] == 1:
            continue
        made = net(kernel, box, {}, eps)
        assert made.eps <= eps
        counts = explicit(kernel, box, made)
        half = (box[1] - box[0]) / (2 * torch.tensor(counts, dtype=torch.double))
        X = torch.cat([uniform(box, 300), box])
        cell = torch.floor((X - box[0]) / (2 * half))
        cell = torch.minimum(cell, torch.tensor(counts, dtype=torch.double) - 1)
        centre = box[0] + (2 * cell + 1) * half
        assert distances(kernel, X, centre).max() <= made.eps + 1e-8


def explicit(kernel, box, made):
    """Cells per column: the factorisation of the net's size that has the stated radius."""
    size = round(math.exp(made.log_size))
    assert math.log(size) == pytest.approx(made.log_size, abs=1e-9)
    options = (
        [[size]]
        if box.shape[1] == 1
        else [[first, size // first] for first in range(1, size + 1) if size % first == 0]
    )
    for counts in options:
        half = (box[1] - box[0]) / (2 * torch.tensor(counts, dtype=torch.double))
        if distance_bound(kernel, half, box) == pytest.approx(made.eps, rel=1e-9):
            return counts
    raise AssertionError("no grid has this size and radius")


def test_the_net_of_a_line_is_the_smallest_grid():
    box = torch.tensor([[0.0], [1.0]], dtype=torch.double)
    for eps in (0.7, 0.1, 0.003):
        size = round(math.exp(net(se(), box, {}, eps).log_size))
        fewer = torch.tensor([0.5 / (size - 1)], dtype=torch.double)
        assert distance_bound(se(), fewer, box) > eps


def test_columns_that_do_not_matter_are_not_cut():
    kernel = KERNELS["one-column"]()
    box = torch.tensor([[0.0] * 2, [1.0] * 2], dtype=torch.double)
    alone = net(se(), box[:, :1], {}, 0.01)
    assert net(kernel, box, {}, 0.01).log_size == pytest.approx(alone.log_size)


def test_columns_with_few_values_keep_them():
    box = torch.tensor([[0.0] * 2, [1.0] * 2], dtype=torch.double)
    both = net(se(), box, {0: 3, 1: 2}, 0.01)
    assert both.eps == 0.0
    assert both.log_size == pytest.approx(math.log(6))
    one = net(se(), box, {0: 3}, 0.01)
    assert one.log_size == pytest.approx(
        math.log(3) + net(se(), box[:, :1], {}, 0.01).log_size, rel=1e-9
    )
    many = net(se(), box, {0: 10**9}, 0.01)
    assert many == net(se(), box, {}, 0.01)


def test_large_nets_do_not_overflow():
    box = torch.tensor([[0.0] * 60, [1e3] * 60], dtype=torch.double)
    made = net(se(1e-3), box, {}, 1e-9)
    assert 0.0 < made.eps <= 1e-9
    assert 1000 < made.log_size < math.inf


def test_smaller_radii_make_larger_nets():
    made = nets(KERNELS["sum"](), BOX, {}, [0.5, 0.05, 0.005])
    assert made[0].log_size < made[1].log_size < made[2].log_size
    assert made[1] == net(KERNELS["sum"](), BOX, {}, 0.05)


def test_a_constant_moves_no_points_apart():
    half = torch.tensor([0.2, 0.1], dtype=torch.double)
    raised = se() + with_values(ConstantKernel(), constant=2.0)
    apart = distance_bound(se(), half, BOX)
    assert distance_bound(raised, half, BOX) == pytest.approx(apart, rel=1e-9)
    assert largest_prior_deviation(raised, BOX) == pytest.approx(math.sqrt(3.0), rel=1e-9)
    opt = bd.AcquisitionOptimizer(bd.BoxDomain(BOX), covar_module=raised, noise_var=1e-2)
    opt.tell(opt.ask(), 1.0)
    assert 0.0 < opt.certify(3.0, 0.1).gap < 2 * 3.0 * math.sqrt(3.0)
    flat = bd.AcquisitionOptimizer(
        bd.BoxDomain(BOX), covar_module=ConstantKernel().double(), noise_var=1e-2
    )
    flat.tell(flat.ask(), 1.0)
    assert flat.certify(3.0, 0.1).gap >= 0.0


def test_other_kernels_and_bad_radii_are_refused():
    rational = RQKernel().double()
    for kernel in (rational, rational + se(), ScaleKernel(rational), se() * rational):
        with pytest.raises(NotSupportedError, match=r'RQKernel.*uniform="trace"'):
            net(kernel.double(), BOX, {}, 0.1)
    with pytest.raises(NotSupportedError, match="RBFKernel"):
        largest_prior_deviation(RBFKernel(batch_shape=torch.Size([2])).double(), BOX)
