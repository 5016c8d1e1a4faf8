import itertools
import math
import warnings

import numpy as np
import pytest
import torch
from cases import KERNELS, generator, line, normal, scattered, se, with_values
from gpytorch.kernels import LinearKernel, RBFKernel, RQKernel, ScaleKernel
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import bounds, kernel_function, posterior

import botorch_delay as bd
from botorch_delay.confidence.bounds import Evidence, HalfWidth, Parts
from botorch_delay.confidence.information import spectrum
from botorch_delay.confidence.nets import largest_prior_deviation, nets
from botorch_delay.exceptions import InputError, InputTypeError, NumericsWarning
from botorch_delay.gp.kernels import covariance
from botorch_delay.gp.posterior import Data, Posterior
from botorch_delay.history.answers import Answers
from botorch_delay.optimizers.recommendation import Judgement


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
    got = Posterior(se(1.0), Data.single(train_X, train_Y, torch.full_like(train_Y, 4e-4))).at(
        X, weights=True
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


@pytest.mark.parametrize("parts", [{"bias": -5.0}, {"bias": 1.0, "slack": math.nan}])
def test_negative_parts_of_a_half_width_are_refused(parts):
    with pytest.raises(InputError, match=r"bias must be at least 0|slack must be finite"):
        HalfWidth(2.0, parts=Parts(**parts))
    with pytest.raises(InputTypeError, match="parts must be a Parts, or None, got int"):
        HalfWidth(2.0, parts=3)


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


@settings(max_examples=25)
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
    # Noiseless data: the bias bound alone must hold, so f lies between the bounds.
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
            # A warning is given where accuracy is lost, and only there.
            assert bool(caught) == (dtype is torch.float32)
            assert all(w.category is NumericsWarning for w in caught)


def test_bounds_never_collapse_in_single_precision():
    # An RKHS function of norm 1, no noise, and a regularizer far below rounding.
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
    # Noise outweighs bias at the answered points, so constants that are too small show.
    kernel, X, at, delta, repeats = se(0.5), scattered(25), scattered(25), 0.1, 50
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
    data = Data.single(scattered(2), normal(2), torch.full((2,), 0.02**2).double())
    evidence = Evidence(se(), data, 1 / 0.02, delta=0.1 / (2 * 3), count=400)
    expected = 4.33 + math.sqrt(2 * math.log(4 * 3 * 400 / 0.1))
    assert confidence.fixed_design(evidence).multiplier == pytest.approx(expected, rel=1e-12)
    assert bd.FixedBeta(6.0).fixed_design(evidence).multiplier == math.sqrt(6.0)


def test_the_bounds_for_adaptive_points_are_the_self_normalised_ones():
    data = grouped_evidence()
    ratio = data.spread_ratio**0.5
    got = bd.RKHSConfidence(2.0, 0.3).adaptive(Evidence(se(), data, ratio, delta=0.05))
    K = covariance(se(), data.X, data.X).detach()
    gain = 0.5 * (torch.logdet(K + torch.diag(data.noise_var)) - data.noise_var.log().sum()).item()
    expected = 2.0 + 0.3 * ratio * math.sqrt(2 * (gain + math.log(1 / 0.05)))
    assert got.multiplier == pytest.approx(expected)
    assert "level 0.95" in got.words
    assert not got.needs_weights


def test_unequal_noise_uses_the_smallest_regularizer():
    X, y, at = scattered(10), normal(10), scattered(8, seed=1)
    noise = torch.linspace(0.01, 0.5, 10, dtype=torch.double)
    evidence = Data.single(X, y, noise)
    got = Posterior(se(), evidence).at(at, weights=True)
    plain = bd.RKHSConfidence(1.0, 0.3, tight=False)
    ratio = evidence.spread_ratio**0.5
    assert ratio == pytest.approx(10.0)
    # The noise term is at most sigma ||z||, and the plain form must cover it.
    width = plain.fixed_design(Evidence(se(), evidence, ratio, delta=0.1, count=1)).at(got)
    cover = width - 0.3 * got.noise_norm * math.sqrt(2 * math.log(20))
    assert (cover >= got.deviation * (1.0 - 1e-9)).all()


def test_the_spectrum_gives_the_gain_of_the_evidence():
    X, y = scattered(12), normal(12)
    noise = torch.linspace(0.1, 1.0, 12, dtype=torch.double)
    K = covariance(se(), X, X)
    expected = torch.logdet(K + torch.diag(noise)) - noise.log().sum()
    got = torch.log1p(spectrum(se(), Data.single(X, y, noise))).sum()
    assert got.item() == pytest.approx(expected.item())
    assert len(spectrum(se(), Data.single(X[:0], y[:0], noise[:0]))) == 0


def test_guarantees_read_well():
    holds = bd.Guarantee(True, 0.1, ("the kernel is right",), ())
    assert str(holds) == "Guaranteed with probability 0.9, assuming:\n- the kernel is right"
    assert str(bd.Guarantee(False, 0.1, (), ("why",))) == "No guarantee of the regret bound:\n- why"


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
        ({"X": torch.zeros(2, 3).double()}, "^X must have a row for each point and 2 columns"),
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


WAYS = ("net", "trace")


def on_box(confidence, kernel, data, box, counts, rounds, delta):
    """Bounds of one of ``rounds`` rounds, in a run that may fail with probability ``delta``."""
    ratio, of_round = data.spread_ratio**0.5, delta / (2 * rounds)
    evidence = Evidence(kernel, data, ratio, of_round, box=box, counts=counts)
    return confidence.fixed_design(evidence)


def net_of(confidence, kernel, data, box, counts, rounds, delta):
    """The net underlying these bounds."""
    ratio, of_round = data.spread_ratio**0.5, delta / (2 * rounds)
    evidence = Evidence(kernel, data, ratio, of_round, box=box, counts=counts)
    smallest = Posterior(kernel, data).variance(data.X).min().sqrt().item()
    return confidence._net(evidence, box, largest_prior_deviation(kernel, box), smallest)


def unit_box(d):
    return torch.tensor([[0.0] * d, [1.0] * d], dtype=torch.double)


def grid(n, d):
    return torch.cartesian_prod(*[line(n).flatten()] * d).reshape(-1, d)


def grouped_evidence(seed=0, noise=None):
    """Answers at 12 points of the square, one to four at each."""
    X = scattered(12, seed=seed)
    rows = torch.arange(12).repeat_interleave(torch.arange(12) % 4 + 1)
    if noise is None:
        noise = 0.01 + 0.5 * torch.rand(len(rows), dtype=torch.double, generator=generator(seed))
    return Data.averaged(X[rows], normal(len(rows), seed), noise, rows)


class Box:
    """Random functions of norm 0.5 on the unit box, 50 noisy answers at 30 designed points."""

    norm, noise_std, noise_var, repeats = 0.5, 0.5, 2.25, 50

    def __init__(self, d):
        self.d, self.box = d, unit_box(d)
        self.kernel = se(0.15 if d == 1 else 0.4)
        candidates = grid(60 if d == 1 else 12, d)
        self.X = candidates[bd.greedy_max_variance(self.kernel, candidates, 1e-2, 30)]
        self.at = grid(400 if d == 1 else 26, d)  # faces and corners included

    def draw(self, seed):
        """Data, and the function at the points of a dense grid."""
        g = generator(seed)
        centres = torch.rand(20, self.d, dtype=torch.double, generator=g)
        weights = torch.randn(20, dtype=torch.double, generator=g)
        K = covariance(self.kernel, centres, centres).detach()
        weights *= self.norm / (weights @ K @ weights).sqrt()
        rows = torch.arange(len(self.X)).repeat(self.repeats)
        noise = torch.randn(len(rows), dtype=torch.double, generator=g)
        values = covariance(self.kernel, self.X, centres).detach() @ weights
        y = values[rows] + self.noise_std * noise
        evidence = Data.averaged(self.X[rows], y, torch.full_like(y, self.noise_var), rows)
        return evidence, covariance(self.kernel, self.at, centres).detach() @ weights

    def posterior(self, evidence):
        """The posterior on the grid."""
        return Posterior(self.kernel, evidence).at(self.at, weights=True)

    def half_width(self, evidence, divide=1.0, posterior=None, **options):
        """The half-width on the grid, with norm and noise bounds divided by ``divide``."""
        confidence = bd.RKHSConfidence(self.norm / divide, self.noise_std / divide, **options)
        bounds = on_box(confidence, self.kernel, evidence, self.box, {}, 1, 0.1)
        return bounds.at(posterior or self.posterior(evidence))


@pytest.mark.parametrize("d", [1, 2])
def test_bounds_hold_on_the_whole_box_and_fail_with_small_constants(d):
    problem, runs, delta = Box(d), 6, 0.1
    ways = list(itertools.product(WAYS, (True, False)))
    misses = dict.fromkeys(itertools.product(ways, (1.0, 5.0)), 0)
    for seed in range(runs):
        evidence, f = problem.draw(seed)
        posterior = problem.posterior(evidence)
        error = (f - posterior.mean).abs()
        for (uniform, tight), divide in misses:
            half = problem.half_width(evidence, divide, posterior, uniform=uniform, tight=tight)
            misses[(uniform, tight), divide] += bool((error > half).any())
    for way in ways:
        assert misses[way, 1.0] <= delta / 2 * runs, way
        assert misses[way, 5.0] > delta * runs, way


def test_the_net_costs_little_over_its_own_points():
    # Lemma 1 on the net's number of points, without the slack between them.
    problem = Box(1)
    evidence, _ = problem.draw(0)
    confidence = bd.RKHSConfidence(problem.norm, problem.noise_std)
    made = confidence, problem.kernel, evidence, problem.box, {}, 1, 0.1
    got = on_box(*made)
    at = Posterior(problem.kernel, evidence).at(problem.at, weights=True)
    ratio, points = evidence.spread_ratio**0.5, math.exp(net_of(*made).log_size)
    alone = confidence.fixed_design(Evidence(problem.kernel, evidence, ratio, 0.05, points)).at(at)
    assert (got.at(at) >= alone).all()
    assert (got.at(at) <= 1.1 * alone).all()


@pytest.mark.parametrize("name", ["se", "matern12", "sum", "product"])
def test_the_slopes_of_the_net(name):
    # What the slack rests on: no part of the width changes faster than its slope bound.
    kernel, evidence = KERNELS[name](), grouped_evidence()
    a, b = scattered(300, seed=1), scattered(300, seed=2)
    b[:200] = a[:200] + 0.01 * b[:200]
    one, two = (Posterior(kernel, evidence).at(X, weights=True) for X in (a, b))
    k = kernel_function(kernel)
    pairs = zip(a.numpy()[:, None], b.numpy()[:, None], strict=True)
    distance = np.sqrt([(k(x, x) - 2 * k(x, z) + k(z, z)).item() for x, z in pairs])
    bias = [(p.variance - p.penalty).clamp_min(0).sqrt() for p in (one, two)]
    ratio = evidence.spread_ratio**0.5
    K = k(evidence.X.numpy(), evidence.X.numpy())
    alpha = np.linalg.solve(K + np.diag(evidence.noise_var), evidence.y.numpy())
    slopes = {
        "deviation": ((one.deviation - two.deviation).abs(), 1.0),
        "bias": ((bias[0] - bias[1]).abs(), 1.0),
        "noise": ((one.noise_norm - two.noise_norm).abs(), 0.5 * ratio),
        "mean": ((one.mean - two.mean).abs(), np.sqrt(alpha @ K @ alpha)),
    }
    for what, (change, slope) in slopes.items():
        assert (change.numpy() <= slope * distance + 1e-9).all(), what


@pytest.mark.parametrize("tight", [False, True])
def test_the_net_s_half_width_is_the_written_out_one(tight):
    kernel, evidence, at = se(), grouped_evidence(), scattered(30, seed=1)
    confidence = bd.RKHSConfidence(2.0, 0.3, tight=tight)
    made = confidence, kernel, evidence, unit_box(2), {}, 3, 0.2
    got, net = on_box(*made), net_of(*made)
    k, X, y = kernel_function(kernel), evidence.X.numpy(), evidence.y.numpy()
    D, spread = evidence.noise_var.numpy(), evidence.spread.numpy()
    _, variance, z = posterior(k, X, y, np.diag(D), at.numpy())
    alpha = np.linalg.solve(k(X, X) + np.diag(D), y)
    norm, ratio = np.sqrt(alpha @ k(X, X) @ alpha), np.sqrt((spread / D).max())
    tail = np.sqrt(2 * (net.log_size + np.log(4 * 3 / 0.2)))
    beta = 2.0 + 0.3 * ratio * tail
    expected = beta * np.sqrt(variance) + (2.0 + norm + beta) * net.eps
    if tight:
        bias = np.sqrt(variance - (z**2 * D[:, None]).sum(axis=0))
        noise = 0.3 * np.sqrt((z**2 * spread[:, None]).sum(axis=0)) * tail
        slack = (2.0 + norm + 2.0 + 0.3 * ratio * tail / 2) * net.eps
        expected = np.minimum(expected, 2.0 * bias + noise + slack)
    np.testing.assert_allclose(
        got.at(Posterior(kernel, evidence).at(at, weights=True)), expected, 1e-8
    )
    assert got.multiplier == pytest.approx(beta, rel=1e-12)


def test_the_net_depends_on_no_answer():
    evidence = grouped_evidence()
    other = Data(evidence.X, 100 * evidence.y, evidence.noise_var, evidence.spread)
    made = [
        (bd.RKHSConfidence(2.0, 0.3), se(), e, unit_box(2), {}, 3, 0.1) for e in (evidence, other)
    ]
    assert net_of(*made[0]) == net_of(*made[1])
    one, two = (on_box(*case) for case in made)
    assert one.multiplier == two.multiplier
    assert one.slack < two.slack


def test_the_net_uses_the_values_of_discrete_columns():
    evidence, confidence = grouped_evidence(), bd.RKHSConfidence(2.0, 0.3)
    box = unit_box(2)
    made = [(confidence, se(), evidence, box, counts, 3, 0.1) for counts in ({}, {0: 3, 1: 4})]
    free, few = (on_box(*case) for case in made)
    assert few.multiplier < free.multiplier
    assert few.slack == 0.0
    of_free, of_few = (net_of(*case) for case in made)
    assert [of_few] == nets(se(), box, {0: 3, 1: 4}, [of_free.eps])


def test_the_trace_s_multiplier_is_the_written_out_one():
    kernel, evidence = KERNELS["sum"](), grouped_evidence()
    confidence = bd.RKHSConfidence(2.0, 0.3, tight=False, uniform="trace")
    got = on_box(confidence, kernel, evidence, unit_box(2), {}, 3, 0.2)
    K = kernel_function(kernel)(evidence.X.numpy(), evidence.X.numpy())
    A = K @ np.linalg.inv(K + np.diag(evidence.noise_var))
    L = np.log(2 * 3 / 0.2)
    square = np.trace(A) + 2 * np.sqrt(L * np.trace(A @ A)) + 2 * L
    ratio = evidence.spread_ratio**0.5
    assert got.multiplier == pytest.approx(2.0 + 0.3 * ratio * np.sqrt(square), rel=1e-9)
    at = Posterior(kernel, evidence).at(scattered(20, seed=1), weights=True)
    np.testing.assert_allclose(got.at(at), got.multiplier * at.deviation, 1e-9)
    tight = bd.RKHSConfidence(2.0, 0.3, uniform="trace")
    apart = on_box(tight, kernel, evidence, unit_box(2), {}, 3, 0.2)
    bias = (at.variance - at.penalty).sqrt()
    expected = 2.0 * bias + (got.multiplier - 2.0) * at.deviation
    np.testing.assert_allclose(apart.at(at), expected, 1e-9)


def test_the_trace_needs_no_known_kernel():
    evidence = grouped_evidence()
    trace = bd.RKHSConfidence(2.0, 0.3, uniform="trace")
    assert on_box(trace, RQKernel().double(), evidence, unit_box(2), {}, 3, 0.1).multiplier > 2.0


def test_with_a_linear_kernel_the_trace_s_multiplier_grows_as_the_root_of_the_dimension():
    kernel, level = with_values(LinearKernel(), variance=1.0), math.log(2 * 3 / 0.1)
    for d in (1, 4, 16, 64):
        noise_multiplier = []
        for m in (100, 400):
            X = 2 * scattered(m, d) - 1
            evidence = Data.single(X, normal(m), torch.full((m,), 0.01, dtype=torch.double))
            confidence = bd.RKHSConfidence(1.0, 0.1, uniform="trace")
            got = on_box(confidence, kernel, evidence, unit_box(d), {}, 3, 0.1)
            noise_multiplier.append(got.multiplier - 1.0)
        bound = math.sqrt(d + 2 * math.sqrt(level * d) + 2 * level)
        assert max(noise_multiplier) <= bound <= math.sqrt(d) + math.sqrt(2 * level)
        # At least about sqrt(d), and hardly more with four times the answers.
        assert min(noise_multiplier) >= 0.9 * math.sqrt(d)
        assert noise_multiplier[1] == pytest.approx(noise_multiplier[0], rel=0.05)


def test_without_answers_the_box_has_the_prior_s_bound():
    X = scattered(4)
    evidence, at = Data.single(X[:0], X[:0, 0], X[:0, 0]), scattered(5)
    kernel = with_values(ScaleKernel(se()), outputscale=4.0)
    expected = torch.full((5,), 6.0, dtype=torch.double)
    for uniform in WAYS:
        confidence = bd.RKHSConfidence(3.0, 0.1, uniform=uniform)
        got = on_box(confidence, kernel, evidence, unit_box(2), {}, 3, 0.1)
        torch.testing.assert_close(
            got.at(Posterior(kernel, evidence).at(at, weights=True)), expected
        )


def test_a_fixed_beta_on_a_box_is_the_same_as_elsewhere():
    evidence = grouped_evidence()
    got = on_box(bd.FixedBeta(6.0), RQKernel().double(), evidence, unit_box(2), {}, 3, 0.1)
    at = Posterior(se(), evidence).at(scattered(20, seed=1))
    np.testing.assert_allclose(got.at(at), math.sqrt(6) * at.deviation, 1e-9)


def test_bounds_on_a_box_in_single_precision_are_no_narrower():
    X, y = scattered(40), normal(40)
    at, noise = scattered(30, seed=1), torch.full((40,), 1e-3, dtype=torch.double)
    for uniform in WAYS:
        confidence, half = bd.RKHSConfidence(2.0, 0.03, uniform=uniform), []
        for dtype in (torch.double, torch.float32):
            evidence = Data.single(X.to(dtype), y.to(dtype), noise.to(dtype))
            got = on_box(confidence, se().to(dtype), evidence, unit_box(2).to(dtype), {}, 3, 0.1)
            half.append(got.at(Posterior(se().to(dtype), evidence).at(at.to(dtype), weights=True)))
        assert half[1].dtype is torch.float32
        assert (half[1] >= half[0] * (1 - 1e-3)).all()


def test_confidences_on_a_box_compare_and_print():
    plain = bd.RKHSConfidence(1.0, 0.1)
    trace = bd.RKHSConfidence(1.0, 0.1, uniform="trace")
    assert plain == bd.RKHSConfidence(1.0, 0.1, uniform="net")
    assert len({plain, trace, bd.RKHSConfidence(1.0, 0.1)}) == 2
    assert repr(plain) == "RKHSConfidence(1, 0.1, tight=True)"
    assert repr(trace) == "RKHSConfidence(1, 0.1, tight=True, uniform='trace')"


def test_bad_confidences():
    for uniform in ("grid", None, ["net"], "theorem2"):
        with pytest.raises(InputError, match="uniform"):
            bd.RKHSConfidence(1.0, 0.1, uniform=uniform)
    with pytest.raises(InputError):
        bd.FixedBeta(0.0)
    with pytest.raises(InputError):
        bd.RKHSConfidence(0.0, 1.0)
    with pytest.raises(InputTypeError, match="tight must be True or False"):
        bd.RKHSConfidence(1.0, 1.0, tight="False")
    with pytest.raises(InputTypeError):
        bd.RKHSConfidence("1", 1.0)


def test_bounds_from_all_answers_count_the_noise_of_each_answer():
    """How many answers are averaged at a point may depend on their noise."""
    opt = bd.AcquisitionOptimizer(
        bd.FiniteDomain(torch.zeros(1, 1, dtype=torch.double)),
        covar_module=se(),
        noise_var=0.01,
    )
    confidence = bd.RKHSConfidence(2.0, 0.1)
    opt.tell(opt.ask(), 0.0)
    opt.tell(opt.ask(), 0.0, noise_var=0.04)
    answers = Answers.of(opt.domain, 1.0, opt.trials)
    surrogate = opt._fitting.surrogate
    width = Judgement(surrogate, answers, confidence, 0.1).width
    precision = 1 / 0.01 + 1 / 0.04
    gain = 0.5 * math.log(1.0 + precision)
    expected = 2.0 + 0.1 / math.sqrt(0.01) * math.sqrt(2.0 * (gain + math.log(1 / 0.1)))
    assert width.multiplier == pytest.approx(expected)
