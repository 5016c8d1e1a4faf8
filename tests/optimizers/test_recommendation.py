"""Predictions agree with recommendations, and with the formula where the kernel is given."""

import math

import pytest
import torch
from cases import normal, scattered, se

import botorch_delay as bd
from botorch_delay.exceptions import InputError, InputTypeError, NoAnswerError

POINTS = scattered(12)


def told(maximize=True, **options):
    domain = bd.FiniteDomain(POINTS)
    opt = bd.BPEDelayOptimizer(domain, 20, maximize=maximize, **options)
    for trial in opt.ask(8):
        opt.tell(trial, math.exp(3 * trial.x[0].item()))
    return opt


@pytest.mark.parametrize("maximize", [True, False])
@pytest.mark.parametrize("options", [{}, {"covar_module": se(), "noise_var": 0.01}])
def test_predictions_agree_with_the_recommendation(maximize, options):
    opt = told(maximize, **options)
    best, found = opt.recommend(), opt.predict(POINTS)
    at = best.index
    ends = [float(end[at]) for end in (found.lower, found.mean, found.upper)]
    assert ends == pytest.approx([best.lower, best.mean, best.upper], rel=1e-9)
    assert found.interval == best.interval
    assert bool((found.lower <= found.mean).all() and (found.mean <= found.upper).all())
    answered = found.mean[[trial.index for trial in opt.trials]]
    assert best.mean == pytest.approx(float(answered.max() if maximize else answered.min()))


@pytest.mark.parametrize("maximize", [True, False])
def test_with_a_learned_kernel_the_safest_point_is_recommended(maximize):
    """Points near others and answered often, and not a better answer far from all others."""
    sign = 1.0 if maximize else -1.0
    domain = bd.FiniteDomain(torch.linspace(0, 1, 41, dtype=torch.double).unsqueeze(1))
    opt = bd.BPEDelayOptimizer(domain, 40, maximize=maximize, seed=0)
    noise = 0.3 * torch.randn(41, dtype=torch.double, generator=torch.Generator().manual_seed(11))
    rows = [*range(16), *range(8, 13), *range(8, 13), 40]
    X = domain.points[rows]
    y = -4.0 * (X[:, 0] - 0.25) ** 2 + noise[: len(rows)]
    y[-1] = 0.15
    opt.attach(X, sign * y)
    best, found = opt.recommend(), opt.predict(X)
    worse = sign * (found.lower if maximize else found.upper)
    assert best.index == rows[int(worse.argmax())]
    assert best.index != rows[int((sign * found.mean).argmax())]


@pytest.mark.parametrize("values", [(3.0, 500.0), (7.0, 7.0, 7.0, 7.0)], ids=["few", "equal"])
def test_intervals_are_unbounded_while_values_have_no_scale(values):
    opt = bd.BPEDelayOptimizer(bd.FiniteDomain(POINTS), 20)
    for value in values:
        opt.tell(opt.ask(), value)
    best, found = opt.recommend(), opt.predict(POINTS)
    assert (best.lower, best.upper) == (-math.inf, math.inf)
    assert best.mean == pytest.approx(max(values), rel=1e-3)
    assert "three answers" in best.interval
    assert bool(found.lower.isinf().all() and found.upper.isinf().all())
    assert opt.stopping_gap() == opt.certificate.gap == math.inf
    while opt.recommend().upper == math.inf:
        opt.tell(opt.ask(), 20.0)
    assert len(opt.trials) == max(3, len(values) + 1)
    assert opt.stopping_gap() < math.inf
    assert "heuristic" in opt.recommend().interval


def test_predictions_are_the_posterior():
    opt = told(covar_module=se(), noise_var=0.01)
    X = torch.stack([trial.x for trial in opt.trials])
    y = torch.tensor([trial.value for trial in opt.trials], dtype=torch.double)
    new = scattered(5, seed=1) + 1.0  # outside as well
    K = se()(X).to_dense() + 0.01 * torch.eye(len(X), dtype=torch.double)
    cross = se()(new, X).to_dense()
    mean = cross @ torch.linalg.solve(K, y)
    half = math.sqrt(6.0) * (1.0 - (cross * torch.linalg.solve(K, cross.T).T).sum(dim=1)).sqrt()
    found = opt.predict(new)
    assert torch.allclose(found.mean, mean)
    assert torch.allclose(found.upper, mean + half)
    assert torch.allclose(found.lower, mean - half)


def test_points_are_predicted_by_their_values_too():
    space = bd.Space(rate=bd.Float(1e-3, 1.0, log=True), depth=bd.Int(1, 5))
    opt = bd.BPEDelayOptimizer(space, 10, seed=0)
    for _ in range(5):
        trial = opt.ask()
        opt.tell(trial, trial.params["depth"] * trial.params["rate"])
    named = [{"rate": 0.5, "depth": 2}, {"rate": 2.0, "depth": 3}]  # the second one outside
    X = torch.tensor([[0.5, 2.0], [2.0, 3.0]], dtype=torch.double)
    expected = opt.predict(X)
    assert torch.equal(opt.predict(named).mean, expected.mean)
    torch.testing.assert_close(opt.predict(named[1]).upper, expected.upper[1:])
    with pytest.raises(InputError, match=r"'depth'\] missing"):
        opt.predict({"rate": 0.5})
    for wrong in ([], [X[0]], "rate", 0.5):
        with pytest.raises((InputError, InputTypeError), match="X must"):
            opt.predict(wrong)


def test_what_cannot_be_predicted():
    opt = bd.BPEDelayOptimizer(bd.FiniteDomain(POINTS + 0.1, log_dims=[0]), 20)
    with pytest.raises(NoAnswerError, match=r"tell\(\) or attach\(\)"):
        opt.predict(POINTS + 0.1)
    opt.tell(opt.ask(), 1.0)
    for X, message in ((POINTS[:, :1], "2 columns"), (POINTS - 1.0, "above 0 in column 0")):
        with pytest.raises(InputError, match=message):
            opt.predict(X)
    with pytest.raises(InputTypeError, match="Tensor"):
        opt.predict([[0.0, 0.0]])


@pytest.mark.parametrize("maximize", [True, False])
def test_the_noise_of_an_answer_is_told_in_the_units_of_the_user(maximize):
    sign = 1.0 if maximize else -1.0
    opt = bd.BPEDelayOptimizer(bd.FiniteDomain(POINTS), 60, seed=0, maximize=maximize)
    opt.tell(opt.ask(), 7.0)
    assert math.isnan(opt.recommend().noise_std)  # the scale is not known yet
    noise = 3.0 * normal(60)
    for _ in range(59):
        trial = opt.ask()
        opt.tell(trial, sign * (40.0 * trial.x.sum().item() + noise[trial.id].item()))
    best = opt.recommend()
    assert 1.5 < best.noise_std < 6.0
    assert opt.predict(best.x.unsqueeze(0)).noise_std.item() == pytest.approx(best.noise_std)


def test_exact_evaluations_have_no_noise():
    opt = bd.BPEDelayOptimizer(bd.FiniteDomain(POINTS), 30, seed=0)
    for _ in range(30):
        trial = opt.ask()
        opt.tell(trial, 40.0 * trial.x.sum().item())
    assert opt.recommend().noise_std == 0.0


def test_given_noise_is_told_as_it_was_given():
    opt = bd.BPEDelayOptimizer(bd.FiniteDomain(POINTS), 9, covar_module=se(), noise_var=0.04)
    opt.tell(opt.ask(), 7.0)
    assert opt.recommend().noise_std == pytest.approx(0.2)
    opt = bd.BPEDelayOptimizer(bd.FiniteDomain(POINTS), 9, covar_module=se(), exact=True)
    opt.tell(opt.ask(), 7.0)
    assert opt.recommend().noise_std == opt.predict(POINTS).noise_std.max() == 0.0
