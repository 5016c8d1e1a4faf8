import json

import numpy as np
import pytest
import torch
from cases import KERNELS, scattered, se, with_values
from gpytorch.constraints import GreaterThan, Interval, LessThan
from gpytorch.kernels import (
    AdditiveStructureKernel,
    ConstantKernel,
    CosineKernel,
    Kernel,
    MaternKernel,
    PeriodicKernel,
    PolynomialKernel,
    RBFKernel,
    RQKernel,
    ScaleKernel,
)
from oracle import kernel_function

import botorch_delay as bd
from botorch_delay.design.greedy import greedy_max_variance
from botorch_delay.exceptions import InputError, InputTypeError, StorageError
from botorch_delay.gp import kernels
from botorch_delay.gp.kernels import (
    build_kernel,
    check_kernel,
    covariance,
    describe_kernel,
    hyperparameters,
    matern_sum,
    prior_variance,
)

EXACT = 1e-14


@pytest.mark.parametrize("name", KERNELS)
def test_covariance_equals_the_written_out_kernel(name):
    kernel, X, Z = KERNELS[name](), scattered(30), scattered(17, seed=1)
    expected = kernel_function(kernel)(X.numpy(), Z.numpy())
    np.testing.assert_allclose(covariance(kernel, X, Z).detach(), expected, rtol=EXACT, atol=EXACT)
    diagonal = np.diag(kernel_function(kernel)(X.numpy(), X.numpy()))
    np.testing.assert_allclose(prior_variance(kernel, X).detach(), diagonal, rtol=EXACT)


@pytest.mark.parametrize("name", KERNELS)
def test_covariance_is_exact_between_a_point_and_itself_far_from_the_origin(name):
    # A matrix product would leave an error of 1e-16 * ||x||^2 under the root.
    kernel, X = KERNELS[name](), 1e4 + scattered(40)
    own = covariance(kernel, X, X).diagonal()
    torch.testing.assert_close(own, prior_variance(kernel, X), rtol=1e-15, atol=0)


@pytest.mark.parametrize("name", KERNELS)
def test_covariance_agrees_with_gpytorch_and_broadcasts_over_batches(name):
    kernel, X, Z = KERNELS[name](), scattered(12).reshape(3, 4, 2), scattered(5, seed=1)
    ours = covariance(kernel, X, Z.expand(3, 5, 2))
    torch.testing.assert_close(ours, kernel(X, Z.expand(3, 5, 2)).to_dense(), rtol=1e-6, atol=1e-6)


@pytest.mark.cuda
@pytest.mark.parametrize("most", [kernels.MOST_DIFFERENCES, 0])
@pytest.mark.parametrize("name", KERNELS)
def test_covariance_on_a_device_is_that_on_the_cpu(name, most, monkeypatch):
    monkeypatch.setattr(kernels, "MOST_DIFFERENCES", most)
    X, Z = scattered(24).reshape(3, 8, 2), scattered(5, seed=1)
    X[0, 0] = Z[0]
    found = []
    for device in ("cpu", "cuda"):
        kernel, near = KERNELS[name]().to(device), X.to(device).requires_grad_()
        values = covariance(kernel, near, Z.to(device))
        (slope,) = torch.autograd.grad(values.sum(), near)
        found.append((values.detach().cpu(), slope.cpu()))
    torch.testing.assert_close(found[1], found[0], rtol=1e-13, atol=1e-13)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_kernel_that_fails_at_as_many_points_as_columns_is_refused_at_once():
    additive = AdditiveStructureKernel(RBFKernel(), num_dims=3).double()
    with pytest.raises(InputError, match=r"has an AdditiveStructureKernel, .* active_dims"):
        check_kernel(additive, torch.zeros(7, 3, dtype=torch.double))


def test_covariance_has_the_gradient_of_gpytorch():
    X = scattered(3).requires_grad_()
    Z = scattered(5, seed=1)
    for kernel in (se(), with_values(MaternKernel(nu=2.5), lengthscale=0.3)):
        ours = torch.autograd.grad(covariance(kernel, X, Z).sum(), X)[0]
        theirs = torch.autograd.grad(kernel(X, Z).to_dense().sum(), X)[0]
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)


OTHERS = {
    "rq": lambda: RQKernel(),
    "periodic": lambda: PeriodicKernel(),
    "polynomial": lambda: PolynomialKernel(power=3),
    "constant": lambda: ConstantKernel(),
    "greater-than": lambda: RBFKernel(
        lengthscale_constraint=GreaterThan(0.025, transform=None, initial_value=0.3)
    ),
    "exponential": lambda: RBFKernel(
        lengthscale_constraint=GreaterThan(0.1, torch.exp, torch.log, initial_value=0.3)
    ),
    "interval": lambda: MaternKernel(lengthscale_constraint=Interval(0.05, 3.0)),
    "less-than": lambda: ScaleKernel(RBFKernel(), outputscale_constraint=LessThan(4.0)),
}


@pytest.mark.parametrize("name", [*KERNELS, *OTHERS])
def test_a_described_kernel_is_rebuilt_bit_for_bit(name):
    kernel, X = (KERNELS | OTHERS)[name]().double(), scattered(20)
    record = json.loads(json.dumps(describe_kernel(kernel)))
    rebuilt = build_kernel(record, X)
    assert torch.equal(covariance(rebuilt, X, X), covariance(kernel, X, X))


SCALES, GROUPS = torch.tensor([0.3, 0.7, 1.1], dtype=torch.double), [[0], [1, 2]]


def test_main_effects_see_the_columns_of_a_group_alone():
    X = scattered(20, 3)
    matern = kernel_function(with_values(MaternKernel(nu=2.5), lengthscale=1.0))
    expected = 0.6 * matern(*2 * [(X / SCALES).numpy()])
    for group in GROUPS:
        expected += 0.2 * matern(*2 * [(X[:, group] * 2.0**0.5 / SCALES[group]).numpy()])
    kernel = matern_sum(SCALES, 0.4, GROUPS)
    torch.testing.assert_close(covariance(kernel, X, X), torch.from_numpy(expected))
    assert prior_variance(kernel, X).tolist() == pytest.approx([1.0] * 20)
    torch.testing.assert_close(kernel.lengthscale, SCALES.unsqueeze(0))
    torch.testing.assert_close(kernel(X, X).to_dense(), torch.from_numpy(expected))
    assert kernel(X, diag=True).tolist() == pytest.approx([1.0] * 20)
    assert hyperparameters(kernel) == {"lengthscale": SCALES.tolist(), "share": 0.4}
    assert type(matern_sum(SCALES, 0.0, GROUPS)) is MaternKernel


def test_a_kernel_that_is_not_on_the_list_is_not_described():
    assert describe_kernel(CosineKernel()) is None
    assert describe_kernel(CosineKernel() + RBFKernel()) is None
    assert describe_kernel(ScaleKernel(CosineKernel())) is None

    class Own(RBFKernel):
        pass

    assert describe_kernel(Own()) is None


@pytest.mark.parametrize(
    "change",
    [
        {"class": "ScaleKernel"},
        {"class": "CosineKernel"},
        {"class": "os.system"},
        {"arguments": {"nu": "x"}, "class": "MaternKernel"},
        {"parameters": {}},
        {"parameters": {"lengthscale": [[1.0, 2.0]]}},
        {"parameters": {"lengthscale": [[-1.0]]}},
        {"parameters": {"lengthscale": [[float("inf")]]}},
        {"arguments": {"active_dims": "all"}},
    ],
)
def test_a_malformed_record_is_refused(change):
    record = describe_kernel(se()) | change
    with pytest.raises(StorageError):
        build_kernel(record, scattered(3))


def test_kernels_that_cannot_be_used_are_refused():
    X = scattered(4)
    with pytest.raises(InputTypeError, match="Kernel, got str"):
        check_kernel("rbf", X)
    with pytest.raises(InputTypeError, match="float32"):
        check_kernel(RBFKernel(), X)
    with pytest.raises(InputError, match="batch"):
        check_kernel(RBFKernel(batch_shape=torch.Size([2])).double(), X)
    with pytest.raises(InputError, match="2 columns"):
        check_kernel(RBFKernel(ard_num_dims=3).double(), X)
    with pytest.raises(InputError, match="2 columns"):
        check_kernel(RBFKernel(active_dims=(2,)).double(), X)
    with pytest.raises(InputError, match="1 columns"):  # would broadcast
        check_kernel(RBFKernel(ard_num_dims=2).double(), X[:, :1])
    broken = se()
    broken.raw_lengthscale.data.fill_(torch.nan)
    with pytest.raises(InputError, match="finite"):
        check_kernel(broken, X)


class Returning(Kernel):
    """A kernel that returns given values, and given values for ``diag=True``."""

    def __init__(self, values, diagonal=None):
        super().__init__()
        self.values, self.diagonal = values, diagonal or (lambda x: x.new_ones(len(x)))

    def forward(self, x1, x2, diag=False, **params):
        return self.diagonal(x1) if diag else self.values(x1, x2)


def ones(x1, x2):
    return x1.new_ones(len(x1), len(x2))


@pytest.mark.parametrize(
    ("kernel", "error", "message"),
    [
        (Returning(lambda x1, x2: 7 * ones(x1, x2)), InputError, r"\[1.0\] at the first.* is 7.0"),
        (Returning(ones, lambda x: x.new_ones(1)), InputError, r"shape \(1,\) for 4 points"),
        (Returning(ones, lambda x: x.new_ones(())), InputError, r"shape \(\) for 4 points"),
        (Returning(lambda x1, x2: ones(x1, x2).float()), InputTypeError, "torch.float32, torch"),
        (Returning(lambda x1: 1.0), InputError, r"diag=False|TypeError"),
        (Returning(lambda x1, x2: {}["lengthscale"]), InputError, "KeyError: 'lengthscale'"),
    ],
)
def test_kernels_with_mistakes_are_refused(kernel, error, message):
    with pytest.raises(error, match=message):
        check_kernel(kernel, scattered(4))


def test_a_kernel_whose_values_change_from_call_to_call_is_refused():
    kernel = se()
    kernel.features = torch.nn.Sequential(torch.nn.Dropout(0.5))
    with pytest.raises(InputError, match=r"Dropout in training mode.*call covar_module.eval"):
        check_kernel(kernel, scattered(4))
    assert check_kernel(kernel.eval(), scattered(4)) is kernel
    opt = bd.RandomOptimizer(
        bd.FiniteDomain(scattered(4)), covar_module=kernel.train(), noise_var=1.0
    )  # the optimizer sets a copy of its own to evaluation mode
    opt.tell(opt.ask(), 1.0)
    assert kernel.training


def test_what_a_kernel_keeps_is_not_written_to():
    kept = {}

    def values(x1, x2):
        key = x1.numpy().tobytes() + x2.numpy().tobytes()
        if key not in kept:
            kept[key] = covariance(se(), x1, x2)
        return kept[key]

    X = scattered(25)
    picks = [greedy_max_variance(Returning(values), X, 1e-3, 6).tolist() for _ in range(2)]
    assert picks == [greedy_max_variance(se(), X, 1e-3, 6).tolist()] * 2
    kept_prior = torch.ones(25, dtype=torch.double)
    greedy_max_variance(Returning(values, lambda x: kept_prior[: len(x)]), X, 1e-3, 3)
    assert (kept_prior == 1.0).all()
    constant = with_values(ConstantKernel(), constant=2.0)  # its values are one number, expanded
    assert len(greedy_max_variance(constant, X, 1e-3, 3)) == 3


def test_no_point_needs_no_kernel():
    kernel = Returning(lambda x1, x2: 1 / 0)
    assert covariance(kernel, scattered(0), scattered(3)).shape == (0, 3)
    assert covariance(kernel, scattered(3), scattered(0)).shape == (3, 0)
