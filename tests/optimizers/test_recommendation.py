"""Predictions agree with recommendations, and with the formula where the kernel is given."""

import math
from dataclasses import replace

import pytest
import torch
from cases import normal, scattered, se

import botorch_delay as bd
from botorch_delay.confidence.bounds import FixedBeta
from botorch_delay.exceptions import InputError, InputTypeError, NoAnswerError
from botorch_delay.optimizers import reading, recommendation

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
    """A point near others and answered often beats a better answer far from all others."""
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
    new = scattered(5, seed=1) + 1.0  # outside the domain works as well
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
    opt = bd.BPEDelayOptimizer(bd.FiniteDomain(POINTS), 36, seed=0, maximize=maximize)
    opt.tell(opt.ask(), 7.0)
    assert math.isnan(opt.recommend().noise_std)  # the scale is not known yet
    noise = 3.0 * normal(36)
    for _ in range(35):
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


def noisy_bowl(maximize=True, top=(0.37, 0.61), covar_module=None, **options):
    """A study with noisy answers of a bowl, none of them at its top, and the answered points."""
    sign = 1.0 if maximize else -1.0
    box = bd.BoxDomain(torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.double), **options)
    learned = {"covar_module": covar_module, "maximize": maximize}
    opt = bd.BPEDelayOptimizer(box, 40, seed=0, **learned)
    X = torch.rand(40, 2, dtype=torch.double, generator=torch.Generator().manual_seed(5))
    X = X[box.holds(X)]
    X = torch.cat([X, X[:3]])  # repeats show that there is noise
    noise = 0.05 * normal(len(X), seed=7)
    y = -4.0 * (X - torch.tensor(top, dtype=torch.double)).square().sum(dim=1) + noise
    opt.attach(X, sign * y)
    return opt, X


def worst_end(opt, x):
    found = opt.predict(x if x.ndim == 2 else x.unsqueeze(0))
    return float((found.lower if opt.maximize else -found.upper).max())


@pytest.mark.parametrize("maximize", [True, False])
def test_with_noise_a_point_between_answers_may_be_safer_than_all_of_them(maximize):
    opt, X = noisy_bowl(maximize)
    best, tried = opt.recommend(), opt.recommend(tried=True)
    assert best.count == 0
    assert best.index is None
    assert bool((tried.x == X).all(dim=1).any())
    assert tried.count >= 1
    assert worst_end(opt, tried.x) == pytest.approx(worst_end(opt, X))
    assert worst_end(opt, best.x) > worst_end(opt, X)
    top = torch.tensor([0.37, 0.61], dtype=torch.double)
    assert torch.dist(best.x, top) < 0.7 * torch.dist(tried.x, top)
    # No point of a fine grid nearby is safer by more than a step of the grid explains.
    offsets = torch.cartesian_prod(*[torch.linspace(-0.05, 0.05, 41, dtype=torch.double)] * 2)
    assert worst_end(opt, best.x + offsets) < worst_end(opt, best.x) + 1e-4
    again = opt.recommend()
    assert again.x.equal(best.x)
    assert again.lower == best.lower


@pytest.mark.parametrize("maximize", [True, False])
def test_an_untried_point_must_be_safer_under_all_fits_that_explain_the_answers(
    maximize, monkeypatch
):
    opt, X = noisy_bowl(maximize)
    assert opt.recommend().count == 0

    def unsure_between(surrogate, domain, answers, at, posterior, **options):
        return posterior.deviation + torch.cdist(at, X).amin(dim=1)

    monkeypatch.setattr(reading, "marginal_deviation", unsure_between)
    assert opt.recommend().x.equal(opt.recommend(tried=True).x)


def test_a_point_that_was_searched_for_has_a_wider_interval_than_a_prediction_there():
    for warp in ("half-rank", "none"):
        opt, _ = noisy_bowl(covar_module=bd.Learned(warp=warp))
        best = opt.recommend()
        found = opt.predict(best.x.unsqueeze(0))
        assert best.count == 0
        assert best.lower < float(found.lower) < best.mean < float(found.upper) < best.upper
        assert (
            best.interval == f"{found.interval}; wider, as the point was searched for in 2 columns"
        )
    width = float(found.upper - found.lower)  # without warping: linear in the deviation
    assert best.upper - best.lower == pytest.approx((8 / 6) ** 0.5 * width)
    assert "wider" not in opt.recommend(tried=True).interval


def test_a_point_that_was_never_tried_satisfies_the_constraints(monkeypatch):
    monkeypatch.setattr(recommendation, "LEAST_GAIN", 0.0)
    opt, _ = noisy_bowl(constraints=[([0, 1], [-1.0, -1.0], -0.9)])
    best = opt.recommend()
    assert best.count == 0
    assert 0.8 < float(best.x.sum()) <= 0.9
    opt, _ = noisy_bowl(feasible=lambda X: X[:, 0] > 0.45)
    best = opt.recommend()
    assert float(best.x[0]) > 0.45


def test_a_point_that_was_never_tried_has_values_that_can_be_asked():
    steps = torch.linspace(0, 1, 11, dtype=torch.double)
    space = bd.Space({"a": bd.Float(0.0, 1.0), "k": bd.Int(0, 10)})
    opt = bd.BPEDelayOptimizer(space, 60, seed=0)
    noise = 0.05 * normal(40, seed=3)
    for number, trial in enumerate(opt.ask(40)):
        a, k = trial.params["a"], trial.params["k"] / 10
        opt.tell(trial, -4 * (a - 0.33) ** 2 - 4 * (k - 0.6) ** 2 + float(noise[number]))
    best = opt.recommend()
    assert best.count == 0
    assert isinstance(best.params["k"], int)
    assert bool(opt.domain.contains(best.x.unsqueeze(0)))
    assert abs(best.params["a"] - 0.33) < 0.1
    assert best.params["k"] / 10 in steps.tolist()


@pytest.mark.usefixtures("small_searches")
def test_a_point_that_was_never_tried_is_not_where_trials_fail():
    box = bd.BoxDomain(torch.tensor([[0.0], [1.0]], dtype=torch.double))
    opt = bd.BPEDelayOptimizer(box, 60, seed=0)
    noise = 0.02 * normal(60, seed=3)
    for number in range(28):
        trial = opt.ask()
        x = float(trial.x)
        if x > 0.5:
            opt.mark_failed(trial, "it breaks")
        else:
            opt.tell(trial, x + float(noise[number]))
    assert sum(trial.value is None for trial in opt.trials) >= 3
    assert float(opt.recommend().x) <= 0.5


@pytest.mark.usefixtures("small_searches")
def test_exact_answers_are_recommended_themselves():
    box = bd.BoxDomain(torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.double))
    opt = bd.BPEDelayOptimizer(box, 40, seed=0, exact=True)
    for _ in range(20):
        trial = opt.ask()
        opt.tell(trial, -float((trial.x - 0.3).square().sum()))
    best = opt.recommend()
    assert best.x.equal(max(opt.trials, key=lambda trial: trial.value).x)


def test_settings_that_are_equal_to_the_user_count_as_tried():
    """An integer with very many steps is searched as a real number and rounded for the user."""
    opt = bd.BPEDelayOptimizer(bd.Space({"k": bd.Int(0, 2000)}), 60, seed=1)
    X = torch.cat([2000.0 * scattered(30, 1), 800.0 + torch.tensor([[-0.4], [0.1], [0.3]])])
    y = -4.0 * (X[:, 0] / 2000.0 - 0.4) ** 2 + 0.05 * normal(len(X), seed=3)
    opt.attach(X, y)
    k = opt.recommend(tried=True).params["k"]
    more = torch.tensor([[k - 0.3], [k + 0.2]], dtype=torch.double)
    opt.attach(more, torch.tensor([0.0, 0.01], dtype=torch.double))
    best = opt.recommend(tried=True)
    alike = [round(x) == best.params["k"] for x in torch.cat([X, more])[:, 0].tolist()]
    assert best.count == sum(alike) > 1


def test_a_point_has_to_be_clearly_safer_than_all_that_were_tried(monkeypatch):
    opt, X = noisy_bowl()
    gain = worst_end(opt, opt.recommend().x) - worst_end(opt, X)
    tried = opt.recommend(tried=True)
    share = gain / (tried.mean - tried.lower)  # approximate, as values are warped
    monkeypatch.setattr(recommendation, "LEAST_GAIN", 0.5 * share)
    assert opt.recommend().count == 0
    monkeypatch.setattr(recommendation, "LEAST_GAIN", 2.0 * share)
    assert opt.recommend().x.equal(tried.x)


def test_a_constant_share_of_the_interval_moves_no_recommendation(monkeypatch):
    monkeypatch.setattr(recommendation, "LEAST_GAIN", 0.0)
    best = noisy_bowl()[0].recommend().x

    def wider(self, evidence, known=FixedBeta.adaptive):
        return replace(known(self, evidence), slack=3.0)

    monkeypatch.setattr(FixedBeta, "adaptive", wider)
    assert torch.allclose(noisy_bowl()[0].recommend().x, best, atol=1e-6)


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("kind", ["list", "box"])
def test_where_no_point_of_the_domain_was_answered_one_of_its_points_is_recommended(kind, exact):
    points = torch.linspace(0.0, 1.0, 41, dtype=torch.double).unsqueeze(-1)
    box = bd.BoxDomain(torch.tensor([[0.0], [1.0]], dtype=torch.double))
    domain = bd.FiniteDomain(points) if kind == "list" else box
    opt = bd.BPEDelayOptimizer(domain, horizon=60, exact=exact)
    # Between the points of the list, or around the box.
    X = torch.linspace(-0.21, 1.21, 30, dtype=torch.double)
    X = X[(X < 0.0) | (X > 1.0)] if kind == "box" else X
    opt.attach(X.unsqueeze(-1), -((X - 0.6) ** 2))
    found = opt.recommend()
    assert bool(domain.contains(found.x.unsqueeze(0)))
    assert abs(float(found.x) - 0.6) < (0.02 if kind == "list" else 0.4)
    assert found.count == 0
    with pytest.raises(NoAnswerError, match="No point of the domain has an answer yet"):
        opt.recommend(tried=True)


class _Wide(bd.Confidence):
    """A user's own bounds that do not describe their interval."""

    missing = ("a proof",)
    assumptions = ()

    def __repr__(self):
        return "Wide()"

    def fixed_design(self, evidence):
        return bd.HalfWidth(3.0)

    adaptive = fixed_design


def test_an_interval_of_bounds_of_one_s_own_is_named_after_them():
    opt = bd.BPEDelayOptimizer(
        bd.FiniteDomain(scattered(20)),
        20,
        covar_module=se(),
        noise_var=0.1,
        confidence=_Wide(),
    )
    opt.tell(opt.ask(), 1.0)
    assert opt.recommend().interval == "Wide()"


def test_no_noise_is_learned_where_every_answer_was_told_its_own():
    opt = bd.BPEDelayOptimizer(bd.FiniteDomain(POINTS), 20)
    for trial in opt.ask(8):
        opt.tell(trial, trial.x.sum().item(), noise_var=0.04)
    assert math.isnan(opt.recommend().noise_std)
    assert bool(opt.predict(POINTS).noise_std.isnan().all())
    opt.tell(opt.ask(), 0.5)
    assert opt.recommend().noise_std > 0.0
