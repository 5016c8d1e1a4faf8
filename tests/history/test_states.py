"""The messages when an optimizer refuses the state of another."""

import pytest
import torch
from cases import scattered, se
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel

import botorch_delay as bd
from botorch_delay.exceptions import StorageError
from botorch_delay.history.states import difference

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
    assert found == ("b.arguments.d", 3, 4)
    assert difference(own, own) is None


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
            "made with points[3][1]=0.25, this optimizer has points[3][1]=0.5. To resume it, make",
        ),
        (lambda: finite(POINTS[:5]), finite, "points=<(5, 2) of torch.float64>, this"),
        (lambda: finite(POINTS.float()), finite, "(8, 2) of torch.float32>, this optimizer has"),
        (finite, box, "names=['x0', 'x1'], this optimizer has names=['lr', 'batch', 'layer']"),
        (
            box,
            lambda: box(narrower()),
            "bounds[1][1]=256.0, this optimizer has bounds[1][1]=128.0",
        ),
        (lambda: finite(cat_dims=[1]), finite, "cat_dims=[1], this optimizer has cat_dims=None"),
        (
            box,
            lambda: box(names=list("abc")),
            "names=['lr', 'batch', 'layer'], this optimizer has names=['a', 'b', 'c']",
        ),
        (
            lambda: box(log_dims=[0, 1]),
            lambda: box(log_dims=[0]),
            "log_dims=[0, 1], this optimizer has log_dims=[0].",
        ),
        (
            lambda: box(discrete_dims={1: range(16, 56)}),
            lambda: box(discrete_dims={1: range(16, 57)}),
            "discrete_dims.1=[16.0, 17.0,",
        ),
        (
            lambda: box(cat_dims={2: [0, 1]}),
            box,
            "cat_dims.2=[0.0, 1.0], this optimizer has cat_dims.2=None.",
        ),
        (
            lambda: box(constraints=[constraint(1.0)]),
            lambda: box(constraints=[constraint(2.0)]),
            "constraints[0][2]=1.0, this optimizer has constraints[0][2]=2.0",
        ),
        (
            lambda: box(constraints=[constraint(1.0)]),
            box,
            "constraints=[[[0, 1], [1.0, 1.0], 1.0]], this optimizer has constraints=[]",
        ),
        (
            lambda: box(feasible=lambda X: X[:, 0] > 1.2),
            lambda: box(feasible=lambda X: X[:, 0] > 1.5),
            "another test of feasibility",
        ),
        (
            lambda: box(feasible=lambda X: X[:, 0] > 1.2),
            box,
            "another test of feasibility, or with none",
        ),
        (
            lambda: bpe(covar_module=matern(1.5)),
            lambda: bpe(covar_module=matern(2.5)),
            "covar_module.nu=1.5, this optimizer has covar_module.nu=2.5",
        ),
        (
            lambda: bpe(covar_module=ScaleKernel(RBFKernel()).double()),
            lambda: bpe(covar_module=ScaleKernel(matern(2.5)).double()),
            "covar_module.parts[0].class='RBFKernel', this optimizer has "
            "covar_module.parts[0].class='MaternKernel'",
        ),
        (
            lambda: bpe(exploit=bd.UCB(2.0)),
            lambda: bpe(exploit=bd.UCB(3.0)),
            "exploit.rule.beta=2.0, this optimizer has exploit.rule.beta=3.0",
        ),
        (
            lambda: bpe(exploit=None, delay=bd.ConstantDelay(3)),
            lambda: bpe(exploit=None, delay=bd.PoissonDelay(3)),
            "delay.class='ConstantDelay', this optimizer has delay.class='PoissonDelay'",
        ),
        (
            lambda: bd.QueuedOptimizer(bpe(covar_module=matern(1.5))),
            lambda: bd.QueuedOptimizer(bpe(covar_module=matern(2.5))),
            "covar_module.nu=1.5, this optimizer has covar_module.nu=2.5",
        ),
        (
            lambda: bd.QueuedOptimizer(finite()),
            lambda: bd.QueuedOptimizer(bpe()),
            "base='RandomOptimizer', this optimizer has base='BPEDelay",
        ),
    ],
)
def test_a_refusal_names_what_differs_and_both_values(stored, own, message):
    with pytest.raises(StorageError) as refused:
        own().load_state_dict(stored().state_dict())
    assert message in str(refused.value)
