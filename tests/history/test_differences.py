"""What is said of a state that another optimizer refuses."""

import pytest
import torch
from cases import scattered, se
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel

import botorch_delay as bd
from botorch_delay.exceptions import StorageError
from botorch_delay.history.differences import Difference, difference

POINTS = scattered(8)
NAMES = ["lr", "batch", "layer"]
BOUNDS = torch.tensor([[1.0, 16.0, 0.0], [2.0, 256.0, 1.0]], dtype=torch.double)


def agree(own, stored):
    return difference(own, stored) is None


def test_numbers_agree_up_to_rounding():
    assert agree({"a": [1.0, {"b": "x"}]}, {"a": [1.0 + 1e-12, {"b": "x"}]})
    assert not agree([1.0], [1.0 + 1e-6])
    assert not agree([1.0], [1.0, 2.0])
    assert not agree({"a": 1}, {"b": 1})
    assert not agree("a", None)
    assert agree({"a": None}, {})


def test_the_innermost_difference_is_found():
    own = {"a": 1, "b": {"class": "B", "arguments": {"c": [0.5, 2.0], "d": 3}}}
    found = difference(own, {"a": 1, "b": {"class": "B", "arguments": {"c": [0.5, 2.0], "d": 4}}})
    assert (found.option, found.own, found.stored) == ("b.d", 3, 4)
    assert difference(own, own) is None


def test_long_values_are_cut_around_what_differs():
    start, end = "x" * 80, "y" * 80
    texts = Difference(("a",), f"{start}1{end}", f"{start}2{end}").texts()
    assert [len(text) for text in texts] == [66, 66]
    assert "x1y" in texts[0]
    assert "x2y" in texts[1]


def finite(points=POINTS, **options):
    return bd.RandomOptimizer(bd.FiniteDomain(points, **options))


def box(bounds=BOUNDS, **options):
    return bd.RandomOptimizer(bd.BoxDomain(bounds, **({"names": NAMES} | options)))


def bpe(**options):
    given = {"covar_module": se(), "noise_var": 0.1} | options
    return bd.BPEDelayOptimizer(bd.FiniteDomain(POINTS), 40, **given)


def moved(value):
    points = POINTS.clone()
    points[3, 1] = value
    return points


def narrower():
    bounds = BOUNDS.clone()
    bounds[1, 1] = 128.0
    return bounds


def matern(nu):
    return MaternKernel(nu=nu).double()


def constraint(rhs):
    return (torch.tensor([0, 1]), torch.tensor([1.0, 1.0], dtype=torch.double), rhs)


@pytest.mark.filterwarnings("ignore:.*Double precision")
@pytest.mark.parametrize(
    ("stored", "own", "message"),
    [
        (
            lambda: finite(moved(0.25), names=["lr", "momentum"]),
            lambda: finite(moved(0.5), names=["lr", "momentum"]),
            "Row 3 of points has 0.25 in column 1 ('momentum') in the state, and 0.5 in this "
            "optimizer (1 of 8 rows differ)",
        ),
        (lambda: finite(POINTS.flip(0)), finite, "the same points in another order, from row 0 on"),
        (lambda: finite(POINTS[:5]), finite, "have shape 5 x 2, this optimizer's 8 x 2"),
        (
            lambda: finite(POINTS.float()),
            finite,
            "have dtype torch.float32, this optimizer's torch.float64",
        ),
        (finite, box, "of a finite set of points, this optimizer of a box"),
        (
            box,
            lambda: box(narrower()),
            "Column 1 ('batch') has bounds [16.0, 256.0] in the state, and [16.0, 128.0] in this",
        ),
        (lambda: finite(cat_dims=[1]), finite, "cat_dims=[1], this optimizer has cat_dims=None"),
        (box, lambda: box(names=list("abc")), "names=['lr', 'batch', 'layer'], this optimizer has"),
        (
            lambda: box(log_dims=[0, 1]),
            lambda: box(log_dims=[0]),
            "log_dims=[0, 1], this optimizer has log_dims=[0] (column 1 is 'batch')",
        ),
        (
            lambda: box(discrete_dims={1: range(16, 56)}),
            lambda: box(discrete_dims={1: range(16, 57)}),
            "discrete_dims[1][40]=nothing, this optimizer has discrete_dims[1][40]=56.0 (column 1 "
            "is 'batch')",
        ),
        (
            lambda: box(cat_dims={2: [0, 1]}),
            box,
            "cat_dims[2]=[0.0, 1.0], this optimizer has cat_dims[2]=None (column 2 is 'layer')",
        ),
        (
            lambda: box(constraints=[constraint(1.0)]),
            lambda: box(constraints=[constraint(2.0)]),
            "constraints[0].rhs=1.0, this optimizer has constraints[0].rhs=2.0",
        ),
        (
            lambda: box(constraints=[constraint(1.0)]),
            box,
            "constraints[0]=[[0, 1], [1.0, 1.0], 1.0], this optimizer has constraints[0]=nothing",
        ),
        (
            lambda: box(feasible=lambda X: X[:, 0] > 1.2),
            lambda: box(feasible=lambda X: X[:, 0] > 1.5),
            "of the 64 points by which it is known, this optimizer's feasible says otherwise of 19",
        ),
        (lambda: box(feasible=lambda X: X[:, 0] > 1.2), box, "feasible=a function, this optimizer"),
        (
            lambda: bpe(covar_module=matern(1.5)),
            lambda: bpe(covar_module=matern(2.5)),
            "covar_module.nu=1.5, this optimizer has covar_module.nu=2.5",
        ),
        (
            lambda: bpe(covar_module=ScaleKernel(RBFKernel()).double()),
            lambda: bpe(covar_module=ScaleKernel(matern(2.5)).double()),
            "covar_module.parts[0]=RBFKernel(), this optimizer has "
            "covar_module.parts[0]=MaternKernel(nu=2.5)",
        ),
        (
            lambda: bpe(exploit=bd.UCB(2.0)),
            lambda: bpe(exploit=bd.UCB(3.0)),
            "exploit.beta=2.0, this optimizer has exploit.beta=3.0",
        ),
        (
            lambda: bpe(exploit=None, delay=bd.ConstantDelay(3)),
            lambda: bpe(exploit=None, delay=bd.PoissonDelay(3)),
            "delay=ConstantDelay(steps=3), this optimizer has delay=PoissonDelay(mean=3.0)",
        ),
        (
            lambda: bd.QueuedOptimizer(bpe(covar_module=matern(1.5))),
            lambda: bd.QueuedOptimizer(bpe(covar_module=matern(2.5))),
            "base.covar_module.nu=1.5, this optimizer has base.covar_module.nu=2.5",
        ),
        (
            lambda: bd.QueuedOptimizer(finite()),
            lambda: bd.QueuedOptimizer(bpe()),
            "base.optimizer='RandomOptimizer', this optimizer has base.optimizer='BPEDelay",
        ),
    ],
)
def test_a_refusal_names_what_differs_and_both_values(stored, own, message):
    with pytest.raises(StorageError) as refused:
        own().load_state_dict(stored().state_dict())
    assert message in str(refused.value)
