from functools import cache

import numpy as np
import pytest
import torch
from cases import KERNELS, scattered, se
from gpytorch.kernels import LinearKernel, RBFKernel
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import greedy_design, kernel_function, posterior

import botorch_delay as bd
from botorch_delay.design import greedy as design_module
from botorch_delay.design.greedy import GreedyDesign
from botorch_delay.exceptions import EmptyDomainError, InputError
from botorch_delay.gp import candidate_covariance
from botorch_delay.gp.kernels import covariance
from botorch_delay.gp.posterior import Data, Posterior


@pytest.fixture(params=["few", "folded", "lazy", "on a device"])
def form(request, monkeypatch):
    """Each way of storing a design, forced for any number of candidates."""
    if request.param in ("folded", "on a device"):
        monkeypatch.setattr(candidate_covariance, "BLOCK", 7)
    if request.param == "on a device":  # where no covariance is kept
        monkeypatch.setattr(candidate_covariance, "MAX_FOLDED", 0)
    if request.param == "lazy":
        monkeypatch.setattr(design_module, "MAX_FOLDED", 0)
        monkeypatch.setattr(design_module, "SHORTLIST_MIN", 1)
        monkeypatch.setattr(design_module, "SHORTLIST_MAX", 9)
    return request.param


def test_the_design_of_the_reference(finite, form):
    X = torch.tensor(finite["points"], dtype=torch.double).reshape(-1, 2)
    design = bd.greedy_max_variance(se(1.0), X, 4e-4, len(finite["design"]))
    assert design.tolist() == finite["design"]
    assert design.dtype == torch.int64


@cache
def rebuilt_variance(name, noise_var, picks):
    """Oracle variances at the test's points; cached, as all forms usually make the same picks."""
    X = scattered(40, seed=3)
    k = kernel_function(KERNELS[name]())
    _, variance, _ = posterior(
        k, X[list(picks)].numpy(), np.zeros(len(picks)), noise_var, X.numpy()
    )
    return variance


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("noise_var", [1e-1, 1e-8])
def test_incremental_picks_equal_rebuilt_ones(name, noise_var, form):
    kernel, X = KERNELS[name](), scattered(40, seed=3)
    design = bd.greedy_max_variance(kernel, X, noise_var, 12).tolist()
    for n, pick in enumerate(design):
        variance = rebuilt_variance(name, noise_var, tuple(design[:n]))
        # Where rounding exceeds the variance, any of the largest will do.
        slack = 1e-8 + 1e-12 * variance[0].size / variance.max()
        assert variance[pick] >= (1 - slack) * variance.max()
        if variance.max() > 1e-6:
            assert pick == np.flatnonzero(variance >= (1 - 1e-8) * variance.max())[0]


def test_symmetric_grid_breaks_ties_as_a_rebuilt_posterior_does(form):
    axis = torch.linspace(-5, 5, 30, dtype=torch.double)
    grid = torch.cartesian_prod(axis, axis)
    kernel, noise_var, n = se(0.8), 4e-4, 80
    picks = bd.greedy_max_variance(kernel, grid, noise_var, n).tolist()
    K = covariance(kernel, grid, grid)
    rebuilt: list[int] = []
    for _ in range(n):  # the full system, factorized anew for every pick
        factor = torch.linalg.cholesky(K[rebuilt][:, rebuilt] + noise_var * torch.eye(len(rebuilt)))
        V = torch.linalg.solve_triangular(factor, K[rebuilt], upper=False)
        variance = 1.0 - V.square().sum(dim=0)
        rebuilt.append(int((variance >= (1 - 1e-8) * variance.max()).nonzero()[0]))
    assert picks == rebuilt


@pytest.mark.parametrize("few", [4096, 0])
@settings(max_examples=12)
@given(
    seed=st.integers(0, 10_000),
    n=st.integers(1, 25),
    noise_var=st.floats(1e-6, 10.0),
    lengthscale=st.floats(0.05, 3.0),
)
def test_laws_of_the_design(few, seed, n, noise_var, lengthscale):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(design_module, "MAX_FOLDED", few)
        laws(seed, n, noise_var, lengthscale)


def laws(seed, n, noise_var, lengthscale):
    X = scattered(30, seed=seed)
    design = GreedyDesign(se(lengthscale), X, noise_var)
    before = design.variance.clone()
    picks = []
    for _ in range(n):
        pick = design.next()
        picks.append(pick)
        assert design.variance[pick] >= (1 - 1e-8) * design.variance.max()
        design.add(pick)
        assert (design.variance >= 0).all()
        # More points never raise a variance, up to rounding in forms that recompute it.
        assert (design.variance <= before + 1e-12 / noise_var).all()
        before = design.variance.clone()
    assert torch.equal(
        torch.tensor(picks), bd.greedy_max_variance(se(lengthscale), X, noise_var, n)
    )


def test_more_picks_than_candidates(form):
    X, kernel, noise_var = scattered(16), se(), 0.05
    design = GreedyDesign(kernel, X, noise_var)
    picks = design.extend(200)
    assert max(torch.tensor(picks).bincount()) > 12
    K = covariance(kernel, X, X)
    counts = torch.tensor(picks).bincount(minlength=16).double()
    expected = torch.linalg.inv(
        torch.linalg.inv(K + 1e-10 * torch.eye(16)) + (counts / noise_var).diag()
    )
    torch.testing.assert_close(design.variance, expected.diagonal(), rtol=1e-4, atol=1e-8)
    assert sorted(picks[-16:]) != picks[-16:]  # the order is by variance, not by index


def test_the_lazy_form_takes_little_memory_and_looks_at_few(monkeypatch):
    X = scattered(20_000, seed=1)
    solved = []
    at = Posterior.at
    monkeypatch.setattr(Posterior, "at", lambda self, x: solved.append(len(x)) or at(self, x))
    kernel = se(0.1)
    lazy = GreedyDesign(kernel, X, 4e-4)
    picks = lazy.extend(120)
    full = design_module._Tracked(kernel, X, 4e-4, torch.zeros(len(X), dtype=torch.bool))
    assert picks == full.extend(120)
    assert sum(solved) < 0.2 * 120 * len(X)
    torch.testing.assert_close(lazy.variance, full.variance, rtol=0.0, atol=1e-10)


def test_a_design_replayed_is_the_same_to_the_last_bit():
    X = scattered(60)
    design = GreedyDesign(se(), X, 1e-3)
    picks = design.extend(20)
    replayed = GreedyDesign(se(), X, 1e-3, picks)
    assert torch.equal(design.variance, replayed.variance)


def test_a_point_may_be_picked_again_when_noise_is_large(form):
    X = scattered(2)
    assert sorted(bd.greedy_max_variance(se(), X, 1.0, 10).bincount().tolist()) == [5, 5]


def test_excluded_points_are_not_picked(form):
    X = scattered(4)
    design = GreedyDesign(se(), X, 1e-2)
    for index in (0, 1, 2):
        design.exclude(index)
    assert design.extend(3) == [3, 3, 3]
    design.exclude(1, excluded=False)
    assert design.next() == 1
    design.exclude(1)
    design.exclude(3)
    with pytest.raises(EmptyDomainError):
        design.next()


def test_single_precision_picks_are_sensible(form):
    X = scattered(200).float()
    kernel = RBFKernel()
    kernel.lengthscale = 0.4
    picks = bd.greedy_max_variance(kernel, X, 1e-2, 20)
    expected = greedy_design(kernel_function(kernel), X.double().numpy(), 1e-2, 20)
    assert picks[:5].tolist() == expected[:5]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"noise_var": 0.0}, "above 0"),
        ({"noise_var": float("nan")}, "finite"),
        ({"n": 0}, "at least 1"),
        ({"n": 2.5}, "whole"),
        ({"candidates": torch.zeros(3)}, "n x d"),
        ({"candidates": torch.tensor([[1, 2]])}, "int64"),
        ({"covar_module": RBFKernel()}, "float32"),
        ({"covar_module": None}, "Kernel"),
    ],
)
def test_bad_arguments(change, message):
    arguments = {"covar_module": se(), "candidates": scattered(5), "noise_var": 1e-2, "n": 3}
    with pytest.raises(InputError, match=message):
        bd.greedy_max_variance(**(arguments | change))


@pytest.mark.cuda
def test_cuda_picks_equal_the_cpu_s():
    X = scattered(500)
    on_device = bd.greedy_max_variance(se().cuda(), X.cuda(), 1e-3, 60)
    assert on_device.device.type == "cuda"
    assert on_device.tolist() == bd.greedy_max_variance(se(), X, 1e-3, 60).tolist()


def test_the_lazy_form_where_hardly_anything_varies():
    line = torch.linspace(1, 2, 5000, dtype=torch.double).unsqueeze(-1)
    kernel = LinearKernel().double()
    kernel.variance = 1.0
    kernel.requires_grad_(False)
    assert bd.greedy_max_variance(kernel, line, 1e-12, 6).tolist()[0] == 4999
    X = scattered(5000)
    design = GreedyDesign(se(), X, 1e-2)
    for index in range(4990):
        design.exclude(index)
    assert min(design.extend(5)) >= 4990


@pytest.mark.parametrize("weights", [False, True])
@pytest.mark.parametrize("n", [40, 60, 200])
def test_answers_of_a_design_give_the_posterior_of_a_factorization(n, weights, monkeypatch):
    """Some picks are unanswered, some answered points are no picks; the design stays unchanged."""
    monkeypatch.setattr(candidate_covariance, "BLOCK", 17)
    monkeypatch.setattr(candidate_covariance, "HEIGHT", 8)
    monkeypatch.setattr(design_module, "BLOCK", 17)
    X, noise_var = scattered(80), 4e-3
    design = GreedyDesign(se(), X, noise_var)
    picks = design.extend(n)
    before = design.variance.clone(), design._form.column(torch.tensor([5]))
    group = torch.tensor([*picks[:-6], 3, 3])
    y = torch.randn(len(group), dtype=torch.double, generator=torch.Generator().manual_seed(0))
    data = Data.averaged(X[group], y, torch.full_like(y, noise_var), group)
    rows = torch.arange(5, 70)
    found = design.moments(data, group.unique(), rows, weights=weights)
    expected = Posterior(se(), data).at(X[rows], weights=weights)
    for name in ("noise_norm", "penalty"):
        torch.testing.assert_close(
            getattr(found, name), getattr(expected, name), rtol=1e-9, atol=1e-11
        )
    torch.testing.assert_close(found.mean, expected.mean, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(found.variance, expected.variance, rtol=1e-9, atol=1e-11)
    assert ((found.mean - expected.mean).abs() <= found.mean_rounding + 1e-15).all()
    assert torch.equal(design.variance, before[0])
    assert torch.equal(design._form.column(torch.tensor([5])), before[1])
    few = group[:20]  # too far from the picks
    data = Data.averaged(X[few], y[:20], torch.full_like(y[:20], noise_var), few)
    assert n < 60 or design.moments(data, few.unique(), rows) is None


def test_without_a_covariance_there_are_no_moments(form):
    X = scattered(20)
    design = GreedyDesign(se(), X, 1e-2, [3])
    data = Data.single(X[3:4], torch.ones(1).double(), torch.full((1,), 1e-2).double())
    assert design.moments(data, torch.tensor([3]), torch.arange(20)) is None
