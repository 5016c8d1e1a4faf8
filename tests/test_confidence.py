import math
import warnings

import numpy as np
import pytest
import torch
from cases import KERNELS, generator, normal, scattered, se
from gpytorch.kernels import RBFKernel
from hypothesis import given
from hypothesis import strategies as st
from oracle import bounds, kernel_function

import botorch_delay as bd
from botorch_delay.confidence import scaled_gain, side_delta
from botorch_delay.exceptions import InputError, InputTypeError, NumericsWarning
from botorch_delay.kernels import covariance
from botorch_delay.posterior import Evidence, posterior_at


@pytest.fixture
def reference(finite):
    X = torch.tensor(finite["points"], dtype=torch.double).reshape(-1, 2)
    design = torch.tensor(finite["design"])[finite["observed"]]
    y = torch.tensor(finite["y"], dtype=torch.double)[finite["observed"]]
    return X, X[design], y


@pytest.mark.parametrize(("tight", "key"), [(False, "half_width"), (True, "tight_half_width")])
def test_bounds_of_the_reference(finite, reference, tight, key):
    X, train_X, train_Y = reference
    lower, upper = bd.rkhs_bounds(
        se(1.0),
        train_X,
        train_Y,
        X,
        noise_var=4e-4,
        norm_bound=finite["norm"],
        noise_std=0.02,
        delta=finite["lemma1"]["delta"],
        tight=tight,
    )
    np.testing.assert_allclose((upper - lower) / 2, finite["lemma1"][key], rtol=1e-8)
    np.testing.assert_allclose((upper + lower) / 2, finite["mean"], rtol=1e-8, atol=1e-11)


def test_posterior_of_the_reference(finite, reference):
    X, train_X, train_Y = reference
    got = posterior_at(
        se(1.0), Evidence.single(train_X, train_Y, torch.full_like(train_Y, 4e-4)), X
    )
    np.testing.assert_allclose(got.deviation, finite["std"], rtol=1e-8)
    np.testing.assert_allclose(got.noise_norm, finite["z_norm"], rtol=1e-8)


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("tight", [False, True])
@pytest.mark.parametrize("column", [False, True])
def test_bounds_equal_the_written_out_formula(name, tight, column):
    kernel, X, y, at = KERNELS[name](), scattered(20), normal(20), scattered(30, seed=1)
    arguments = {
        "noise_var": 1e-3,
        "norm_bound": 2.0,
        "noise_std": 0.05,
        "delta": 1e-3,
        "tight": tight,
    }
    got = bd.rkhs_bounds(kernel, X, y.unsqueeze(-1) if column else y, at, **arguments)
    expected = bounds(kernel_function(kernel), X.numpy(), y.numpy(), at.numpy(), **arguments)
    for ours, theirs in zip(got, expected, strict=True):
        assert ours.shape == (30,)
        np.testing.assert_allclose(ours, theirs, rtol=1e-8, atol=1e-8)


def test_bounds_at_no_point_are_empty():
    X = scattered(4)
    arguments = {"noise_var": 1e-2, "norm_bound": 2.0, "noise_std": 0.1, "delta": 0.1}
    for train_X in (X, X[:0]):
        lower, upper = bd.rkhs_bounds(se(), train_X, train_X[:, 0], X[:0], **arguments)
        assert lower.shape == upper.shape == (0,)


def test_bounds_without_answers_are_the_prior_s():
    X = scattered(4)
    arguments = {"noise_var": 1e-2, "norm_bound": 2.0, "noise_std": 0.1, "delta": 0.1}
    lower, upper = bd.rkhs_bounds(se(), X[:0], X[:0, 0], X, **arguments)
    expected = 2.0 + math.sqrt(2 * math.log(10))
    torch.testing.assert_close(upper, torch.full((4,), expected).double())
    torch.testing.assert_close(lower, -upper)


@given(
    seed=st.integers(0, 10_000),
    noise_var=st.floats(1e-8, 1.0),
    lengthscale=st.floats(0.05, 5.0),
    delta=st.floats(1e-9, 0.9),
    single=st.booleans(),
)
def test_the_tight_form_is_never_wider(seed, noise_var, lengthscale, delta, single):
    X, y, at = scattered(15, seed=seed), normal(15, seed), scattered(20, seed=seed + 1)
    kernel = se(lengthscale)
    if single:
        X, y, at, kernel = X.float(), y.float(), at.float(), kernel.float()
        noise_var = max(noise_var, 1e-4)
    arguments = {"noise_var": noise_var, "norm_bound": 1.5, "noise_std": 0.1, "delta": delta}
    plain = bd.rkhs_bounds(kernel, X, y, at, **arguments)
    tight = bd.rkhs_bounds(kernel, X, y, at, tight=True, **arguments)
    assert (tight[0] >= plain[0] - 1e-6).all()
    assert (tight[1] <= plain[1] + 1e-6).all()


def test_rounding_never_narrows_the_tight_form_below_the_truth():
    # Without noise in the data the bias bound alone must hold: f lies between the bounds.
    X, at = scattered(30), scattered(50, seed=1)
    weights = 0.1 * normal(30, 5)
    kernel = se(0.8)
    norm = (weights @ covariance(kernel, X, X) @ weights).sqrt().item()
    for dtype, noise_var in ((torch.double, 1e-8), (torch.double, 1e-10), (torch.float32, 1e-5)):
        f_train = covariance(kernel, X, X) @ weights
        f_at = covariance(kernel, at, X) @ weights
        for tight in (False, True):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                lower, upper = bd.rkhs_bounds(
                    se(0.8).to(dtype),
                    X.to(dtype),
                    f_train.to(dtype),
                    at.to(dtype),
                    noise_var=noise_var,
                    norm_bound=norm,
                    noise_std=1e-30,
                    delta=0.5,
                    tight=tight,
                )
            assert (f_at.to(dtype) >= lower).all()
            assert (f_at.to(dtype) <= upper).all()
            # It says so where accuracy is lost, and only there.
            assert bool(caught) == (dtype is torch.float32)
            assert all(w.category is NumericsWarning for w in caught)


def test_bounds_never_collapse_in_single_precision():
    # An element of norm 1 of the space, without noise, and a regularizer far below rounding.
    kernel = RBFKernel()
    kernel.lengthscale = 0.5
    X, at = scattered(60, 1).float(), torch.linspace(0, 1, 200).unsqueeze(-1)
    centre = torch.tensor([[0.3]])

    def f(x):
        return covariance(kernel, x, centre).squeeze(-1).detach()

    for noise_var in (1e-4, 1e-5, 1e-6):
        for tight in (False, True):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", NumericsWarning)
                lower, upper = bd.rkhs_bounds(
                    kernel,
                    X,
                    f(X),
                    at,
                    noise_var=noise_var,
                    norm_bound=1.0,
                    noise_std=1e-3,
                    delta=0.01,
                    tight=tight,
                )
            assert (upper > lower).all()
            assert ((f(at) >= lower) & (f(at) <= upper)).all()


def test_lemma_1_holds_at_single_points_and_fails_with_small_constants():
    # One side at one point fails with probability at most delta.
    # At the answered points noise outweighs bias, so that small constants show.
    kernel, X, at, delta, repeats = se(0.5), scattered(25), scattered(25), 0.1, 300
    K, cross = covariance(kernel, X, X), covariance(kernel, at, X)
    for divide, promised in ((1.0, True), (5.0, False)):
        misses = torch.zeros(2, 2)  # tight, side
        for repeat in range(repeats):
            g = generator(repeat)
            weights = torch.randn(25, dtype=torch.double, generator=g)
            norm = (weights @ K @ weights).sqrt().item()
            y = K @ weights + 0.1 * torch.randn(25, dtype=torch.double, generator=g)
            f = cross @ weights
            for tight in (False, True):
                lower, upper = bd.rkhs_bounds(
                    kernel,
                    X,
                    y,
                    at,
                    noise_var=1e-2,
                    norm_bound=norm / divide,
                    noise_std=0.1 / divide,
                    delta=delta,
                    tight=tight,
                )
                misses[int(tight), 0] += (f < lower).double().mean()
                misses[int(tight), 1] += (f > upper).double().mean()
        shares = misses / repeats
        assert (shares.max().item() <= delta) == promised


def test_the_multiplier_is_theorem_1_s():
    confidence = bd.RKHSConfidence(norm_bound=4.33, noise_std=0.02)
    delta = side_delta(0.1, rounds=3, points=400)
    assert delta == pytest.approx(0.1 / (4 * 3 * 400))
    expected = 4.33 + math.sqrt(2 * math.log(4 * 3 * 400 / 0.1))
    assert confidence.multiplier(1 / 0.02, delta) == pytest.approx(expected, rel=1e-12)
    assert bd.FixedBeta(6.0).multiplier(50.0, delta) == math.sqrt(6.0)


def test_unequal_noise_uses_the_smallest_regularizer():
    X, y, at = scattered(10), normal(10), scattered(8, seed=1)
    noise = torch.linspace(0.01, 0.5, 10, dtype=torch.double)
    evidence = Evidence.single(X, y, noise)
    got = posterior_at(se(), evidence, at)
    plain = bd.RKHSConfidence(1.0, 0.3, tight=False)
    ratio = evidence.spread_ratio**0.5
    assert ratio == pytest.approx(10.0)
    # The noise term is at most sigma ||z||, and the plain form must cover it.
    cover = plain.half_width(got, ratio, 0.05) - 0.3 * got.noise_norm * math.sqrt(2 * math.log(20))
    assert (cover >= got.deviation * (1.0 - 1e-9)).all()


def test_the_gain_of_the_evidence():
    X, y = scattered(12), normal(12)
    noise = torch.linspace(0.1, 1.0, 12, dtype=torch.double)
    K = covariance(se(), X, X)
    expected = 0.5 * (torch.logdet(K + torch.diag(noise)) - noise.log().sum())
    assert scaled_gain(se(), Evidence.single(X, y, noise)) == pytest.approx(expected.item())
    assert scaled_gain(se(), Evidence.single(X[:0], y[:0], noise[:0])) == 0.0


def test_guarantees_read_well():
    holds = bd.Guarantee(True, 0.1, ("the kernel is right",), ())
    assert str(holds) == "Guaranteed with probability 0.9, assuming:\n- the kernel is right"
    assert str(bd.Guarantee(False, 0.1, (), ("why",))) == "No guarantee:\n- why"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"noise_var": 0.0}, "noise_var"),
        ({"norm_bound": -1.0}, "norm_bound"),
        ({"norm_bound": math.inf}, "norm_bound"),
        ({"noise_std": 0.0}, "noise_std"),
        ({"delta": 0.0}, "delta"),
        ({"delta": 1.0}, "delta"),
        ({"train_Y": torch.zeros(4).double()}, "shape 5"),
        ({"train_Y": torch.full((5,), torch.nan).double()}, "finite"),
        ({"train_Y": torch.zeros(5)}, "float32"),
        ({"X": torch.zeros(2, 3).double()}, "3 columns"),
        ({"train_X": scattered(5).float()}, "float32"),
    ],
)
def test_bad_arguments(change, message):
    arguments = {
        "train_X": scattered(5),
        "train_Y": normal(5),
        "X": scattered(3, seed=1),
        "noise_var": 1e-2,
        "norm_bound": 1.0,
        "noise_std": 0.1,
        "delta": 0.1,
    }
    arguments |= change
    positional = [arguments.pop(name) for name in ("train_X", "train_Y", "X")]
    with pytest.raises(InputError, match=message):
        bd.rkhs_bounds(se(), *positional, **arguments)


def test_bad_confidences():
    with pytest.raises(InputError):
        bd.FixedBeta(0.0)
    with pytest.raises(InputError):
        bd.RKHSConfidence(0.0, 1.0)
    with pytest.raises(InputTypeError):
        bd.RKHSConfidence("1", 1.0)
