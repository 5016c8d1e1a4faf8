import copy
import pickle

import numpy as np
import pytest
import torch
from cases import scattered

from botorch_delay import BoxDomain, FiniteDomain, RandomOptimizer
from botorch_delay.exceptions import InputError, InputTypeError

LIMITS = torch.tensor([[1e-5, 16.0, 0.0, -1.0], [1e-1, 256.0, 2.0, 1.0]], dtype=torch.double)


def box(**options):
    return BoxDomain(LIMITS, **options)


def test_points_of_the_unit_cube_respect_bounds_lists_and_logarithms():
    domain = box(discrete_dims={1: [256, 16, 32]}, cat_dims={2: [0, 2]}, log_dims=[0])
    unit = torch.cat([scattered(500, 4), torch.zeros(1, 4).double(), torch.ones(1, 4).double()])
    X = domain.from_unit(unit)
    assert bool(domain.contains(X).all())
    assert domain.discrete_dims == {1: [16.0, 32.0, 256.0]}
    assert domain.cat_dims == {2: [0.0, 2.0]}
    assert set(X[:, 1].tolist()) == {16.0, 32.0, 256.0}
    torch.testing.assert_close(X[:-2, 0].log().mean(), LIMITS[:, 0].log().mean(), atol=0.5, rtol=0)
    outside = X[:1].clone()
    outside[0, 1] = 17.0
    assert not bool(domain.contains(outside)[0])


def test_points_moved_inwards_leave_a_margin_in_columns_without_a_list():
    domain = box(discrete_dims={1: [256, 16, 32]}, cat_dims={2: [0, 2]}, log_dims=[0])
    X = domain.from_unit(torch.tensor([[0.0] * 4, [1.0] * 4, [0.5] * 4], dtype=torch.double))
    moved = domain.moved_inwards(X, 0.1)
    expected = [[10**-4.6, -0.8], [10**-1.4, 0.8], [1e-3, 0.0]]
    torch.testing.assert_close(moved[:, [0, 3]], torch.tensor(expected, dtype=torch.double))
    assert torch.equal(moved[:, 1:3], X[:, 1:3])
    edge = box(constraints=[(torch.tensor([3]), torch.ones(1).double(), 0.9)])  # x3 >= 0.9
    assert torch.equal(edge.moved_inwards(X[1:2], 0.1), X[1:2])
    points = FiniteDomain(scattered(5))
    assert torch.equal(points.moved_inwards(points.points, 0.1), points.points)
    assert domain.find(X[:3]).tolist() == [-1, -1, -1]


def test_lists_on_a_logarithmic_scale_are_drawn_by_their_logarithms():
    bounds = torch.tensor([[1.0, 16.0], [1024.0, 256.0]], dtype=torch.double)
    lists = {0: range(1, 1025), 1: [16, 32, 64, 128, 256]}
    X = BoxDomain(bounds, lists, log_dims=[0, 1]).from_unit(scattered(4000, 2))
    assert (X[:, 0] < 32).double().mean().item() == pytest.approx(0.5, abs=0.06)
    shares = torch.stack([(X[:, 1] == value).double().mean() for value in lists[1]])
    torch.testing.assert_close(shares, torch.full_like(shares, 0.2), atol=0.03, rtol=0)
    ends = BoxDomain(bounds, lists, log_dims=[0, 1]).from_unit(torch.eye(2).double())
    assert ends.tolist() == [[1024.0, 16.0], [1.0, 256.0]]
    single = BoxDomain(bounds, {1: [64]}, log_dims=[1]).from_unit(scattered(5, 2))
    assert set(single[:, 1].tolist()) == {64.0}


def test_constraints_are_botorch_s_inequalities():
    domain = box(constraints=[(torch.tensor([2, 3]), torch.tensor([1.0, 1.0]), 1.5)])
    X = domain.from_unit(scattered(400, 4))
    assert torch.equal(domain.contains(X), X[:, 2] + X[:, 3] >= 1.5)
    assert torch.equal(domain.slack(X) >= 0, domain.contains(X))
    _, factors, rhs = domain.constraints[0]
    assert (factors.dtype, rhs) == (torch.double, 1.5)


def test_a_test_of_feasibility_is_asked():
    domain = box(feasible=lambda X: X[:, 3] > 0)
    X = domain.from_unit(scattered(100, 4))
    assert torch.equal(domain.contains(X), X[:, 3] > 0)
    wrong = box(constraints=None, feasible=lambda X: True)
    with pytest.raises(InputTypeError, match="an entry per point"):
        wrong.contains(X)
    # A margin, which is above 0 and below it.
    wrong = box(constraints=None, feasible=lambda X: X[:, 3])
    with pytest.raises(InputTypeError, match=r"torch.float64. For a margin, return margin >= 0"):
        wrong.contains(X)


def right_half(X):
    return X[:, 0] > 0.5


def test_saving_does_not_ask_the_test_of_feasibility_again(tmp_path):
    calls = []

    def feasible(X):
        calls.append(len(X))
        return right_half(X)

    domain = BoxDomain(torch.tensor([[0.0], [1.0]], dtype=torch.double), feasible=feasible)
    opt = RandomOptimizer(domain)
    trial = opt.ask()
    opt.save(tmp_path / "study.db")  # which describes ``feasible`` by its results at some points
    made = len(calls)
    opt.tell(trial, 1.0)
    opt.save(tmp_path / "study.db")
    assert len(calls) == made
    described = domain.describe()
    assert copy.deepcopy(domain).describe() == described
    assert len(calls) == made
    described["feasible"].clear()  # the caller's own
    assert domain.describe() != described
    other = BoxDomain(domain.bounds, feasible=right_half)
    for again in (other, pickle.loads(pickle.dumps(other))):
        assert again.describe() == domain.describe()


def test_categories_are_encoded_at_one_distance():
    domain = box(cat_dims={2: [0, 1, 2]}, log_dims=[0])
    X = domain.from_unit(scattered(30, 4))
    encoded = domain.encoding(X)
    assert encoded.shape == (30, 6)
    low, high = domain.bounds[:, 0].log()
    torch.testing.assert_close(encoded[:, 0], (X[:, 0].log() - low) / (high - low))
    one = X[:1].repeat(3, 1)
    one[:, 2] = torch.tensor([0.0, 1.0, 2.0])
    distances = torch.cdist(domain.encoding(one), domain.encoding(one))
    off = distances[~torch.eye(3, dtype=torch.bool)]
    torch.testing.assert_close(off, torch.full_like(off, 2**0.5))
    assert bool(((encoded >= 0.0) & (encoded <= 1.0)).all())
    ends = torch.tensor([[0.0], [0.5], [1.0]]).double().expand(3, 4)
    finite = FiniteDomain(domain.from_unit(ends), cat_dims=[2], log_dims=[0])
    torch.testing.assert_close(finite.encoding(finite.points), domain.encoding(finite.points))


def test_fingerprints_tell_boxes_apart():
    plain, listed = box(), box(discrete_dims={1: [16, 32]})
    assert plain.fingerprint() == box().fingerprint()
    assert plain.fingerprint() != listed.fingerprint()
    assert (
        box(feasible=lambda X: X[:, 3] > 0).describe()
        != box(feasible=lambda X: X[:, 3] < 0).describe()
    )


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"discrete_dims": {1: [8, 16]}}, InputError, "within its bounds"),
        ({"discrete_dims": {7: [1]}}, InputError, "must be at most 3"),
        ({"discrete_dims": {1: []}}, InputError, "at least one value"),
        ({"discrete_dims": {1: 16}}, InputTypeError, "list of numbers"),
        ({"discrete_dims": [1]}, InputTypeError, "must be a dict of values by column"),
        ({"discrete_dims": {1: [16]}, "cat_dims": {1: [16]}}, InputError, "choose one"),
        ({"cat_dims": {2: [0, 3]}}, InputError, "within its bounds"),
        ({"cat_dims": {0: [1e-5]}, "log_dims": [0]}, InputError, "no logarithm"),
        ({"log_dims": [3]}, InputError, "above 0 in column 3"),
        ({"log_dims": 0}, InputTypeError, "list of columns"),
        ({"names": 5}, InputTypeError, "list of strings"),
        ({"constraints": [([0], [1.0], 5.0)]}, InputError, "leave nothing"),
        ({"constraints": [([0, 1], [1.0], 5.0)]}, InputError, "as many indices"),
        ({"constraints": [([9], [1.0], 5.0)]}, InputError, "outside 0 to 3"),
        ({"constraints": [([0], [0.0], 5.0)]}, InputError, "not all 0"),
        ({"constraints": [3]}, InputTypeError, "indices, coefficients"),
        ({"constraints": [([0.9], [1.0], 0.5)]}, InputTypeError, "must be a whole number, got 0.9"),
        ({"constraints": [([True], [1.0], 0.5)]}, InputTypeError, "whole number, got True"),
        ({"constraints": [([0], [1j], 0.5)]}, InputTypeError, "must be a number, got complex"),
        ({"constraints": 5}, InputTypeError, "must be a list"),
        ({"feasible": 3}, InputTypeError, "function of points"),
    ],
)
def test_bad_boxes(options, error, message):
    with pytest.raises(error, match=message):
        box(**options)


@pytest.mark.parametrize("points", [torch.zeros(3, 2).double(), np.zeros((3, 4)), torch.zeros(4)])
def test_the_slack_is_of_points_of_the_box(points):
    with pytest.raises(InputError, match="must"):
        box(constraints=[([1], [1.0], 5.0)]).slack(points)


@pytest.mark.parametrize(
    ("bounds", "error", "message"),
    [
        ([[0.0, 1.0], [1.0, 0.5]], InputError, "column 1"),
        ([[0.0], [0.0]], InputError, "below the upper"),
        ([[0.0], [torch.inf]], InputError, "finite"),
        ([[0.0, -1e308], [1.0, 1e308]], InputError, "width.*column 1.*other units"),
        ([[0.0], [1.0], [2.0]], InputError, "2 x d"),
    ],
)
def test_bad_bounds(bounds, error, message):
    with pytest.raises(error, match=message):
        BoxDomain(torch.tensor(bounds, dtype=torch.double))


def test_the_ends_of_the_unit_cube_are_the_ends_of_the_box():
    # exp(log(1e-6)) is 1.0000000000000004e-06.
    low, high = torch.tensor([1e-6, 0.1, -0.3]).double(), torch.tensor([7e-3, 0.7, 0.1]).double()
    domain = BoxDomain(torch.stack([low, high]), log_dims=[0, 1])
    unit = torch.stack([torch.zeros(3), torch.ones(3)]).double()
    assert domain.from_unit(unit).tolist() == [low.tolist(), high.tolist()]


def test_the_unit_cube_and_back():
    domain = box(discrete_dims={1: [16, 32]}, log_dims=[0])
    unit = scattered(50, 4)
    back = domain.to_unit(domain.from_unit(unit))
    free = [0, 2, 3]
    torch.testing.assert_close(back[:, free], unit[:, free])
    assert domain.to_unit(LIMITS).tolist() == [[0.0] * 4, [1.0] * 4]
