import math
import pickle
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from botorch.acquisition import (
    AcquisitionFunction,
    ExpectedImprovement,
    LogExpectedImprovement,
    PosteriorMean,
    UpperConfidenceBound,
    qKnowledgeGradient,
    qMaxValueEntropy,
    qUpperConfidenceBound,
)
from botorch.acquisition.logei import qLogExpectedImprovement, qLogNoisyExpectedImprovement
from botorch.exceptions.warnings import InputDataWarning, NumericsWarning
from botorch.models.kernels.categorical import CategoricalKernel
from botorch.optim import optimize_acqf_discrete
from botorch.sampling import SobolQMCNormalSampler
from cases import KERNELS, generator, normal, rows_of, scattered, se
from gpytorch.kernels import RBFKernel, ScaleKernel
from linear_operator.utils.warnings import NumericalWarning
from oracle import kernel_function, posterior
from rivals import index_method
from scale import some

import botorch_delay as bd
from botorch_delay.benchmarks import FiniteProblem, simulate
from botorch_delay.domains.devices import generator_for
from botorch_delay.exceptions import (
    EmptyDomainError,
    InputError,
    InputTypeError,
    NotSupportedError,
)
from botorch_delay.gp import sample_paths
from botorch_delay.gp.sample_paths import PriorPaths

WORST = -1.7
METHODS = {
    "GP-UCB on what has arrived": (bd.UCB(4.0), bd.Ignore()),
    "GP-BUCB": (bd.UCB(4.0), bd.Hallucinate()),
    "GP-UCB-SDF": (bd.UCB(4.0), bd.Censor(WORST)),
    "GP-UCB-SDF, late for ever": (bd.UCB(4.0), bd.Censor(WORST, max_delay=4)),
    "GP-UCB-SDF with width inflation": (bd.UCB(4.0), bd.Censor(WORST, 4, inflate=True)),
    "asynchronous TS": (bd.ThompsonSampling(), bd.Ignore()),
    "GP-BTS": (bd.ThompsonSampling(beta=2.0), bd.Hallucinate()),
    "GP-TS-SDF": (bd.ThompsonSampling(), bd.Censor(WORST)),
}
NOISE = 0.02


def make(rule=None, pending=None, n=40, kernel="se", **options):
    options = {"covar_module": KERNELS[kernel](), "noise_var": NOISE} | options
    domain = bd.FiniteDomain(scattered(n))
    return bd.AcquisitionOptimizer(domain, rule=rule, pending=pending, **options)


def played(opt):
    """The model as the rule sees it, with drawn answers where the pending policy draws them."""
    opt._maximizer.update()
    model = opt._maximizer.model
    return model.with_drawn_answers() if model.pending.draws else model


def seen(opt):
    """Mean and deviation at every point (``N`` each), as the rule sees them, in units of values."""
    model = played(opt)
    mean = model.surrogate.offset + model.surrogate.scale * model.mean
    return opt._config.sign * mean, model.surrogate.scale * model.deviation


def value(trial):
    return math.sin(7 * trial.x[0].item()) + trial.x[1].item()


# Equal to the formulas, ask for ask


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("seed", some(range(20), 2))
def test_asks_equal_a_dense_transcription(method, seed):
    rule, pending = METHODS[method]
    mean_delay = 0 if seed % 4 == 1 else 6
    kind = len(METHODS) * seed + list(METHODS).index(method)
    kernel = KERNELS[sorted(KERNELS)[kind % len(KERNELS)]]().requires_grad_(False)
    points, asks, sign = scattered(36, seed=seed), 30, -1.0 if seed % 3 == 2 else 1.0
    f = normal(36, seed=seed)
    noise = 0.1 * normal(asks, seed=100 + seed)
    delays = torch.poisson(torch.full((asks,), float(mean_delay)), generator=generator(seed))
    if isinstance(pending, bd.Censor):
        pending = bd.Censor(sign * WORST, pending.max_delay, pending.inflate)
    opt = bd.AcquisitionOptimizer(
        bd.FiniteDomain(points),
        covar_module=kernel,
        noise_var=NOISE,
        rule=rule,
        pending=pending,
        seed=seed,
        maximize=sign > 0,
    )
    problem = FiniteProblem(points, sign * f, 0.1)
    played = simulate(opt, problem, None, asks, delays=delays.long(), noise=sign * noise)
    path, factor = None, math.sqrt(rule.beta)
    if isinstance(rule, bd.ThompsonSampling):
        prior = PriorPaths(kernel, points, seed, exact=True)

        def path(ask):
            draws = generator_for(seed, ask)
            drawn = prior.draw(draws)
            numbers = torch.randn(len(points), generator=draws, dtype=torch.double)
            return drawn.numpy(), numbers.numpy()

    expected = index_method(
        kernel_function(kernel),
        points.numpy(),
        f.numpy(),
        asks=asks,
        delays=delays.numpy(),
        noise=noise.numpy(),
        noise_var=NOISE,
        pending={bd.Ignore: "ignore", bd.Hallucinate: "hallucinate", bd.Censor: "censor"}[
            type(pending)
        ],
        factor=factor,
        path=path,
        worst=WORST,
        max_delay=getattr(pending, "max_delay", None),
        inflate=getattr(pending, "inflate", False),
    )
    assert rows_of(played).tolist() == expected


def test_methods_are_named():
    for name, (rule, pending) in METHODS.items():
        assert name.startswith(make(rule, pending).method.split(",")[0])
    assert make(qLogExpectedImprovement).method == "qLogExpectedImprovement, Hallucinate()"


def test_a_thompson_sample_has_the_posterior_s_moments():
    """Under hallucination the mean uses the answers, the covariance all points asked."""
    opt = make(bd.ThompsonSampling(), bd.Hallucinate(), n=12)
    trials = opt.ask(8)
    for trial in trials[:5]:
        opt.tell(trial, value(trial))
    paths = []
    for number in range(2000):
        opt._maximizer.model.seed = number
        paths.append(opt._config.rule.score(opt._maximizer.model))
    sample = torch.stack(paths)
    X = np.stack([t.x.numpy() for t in trials])
    y = np.array([t.value for t in trials[:5]])
    k, at = kernel_function(se()), scattered(12).numpy()
    mean, _, _ = posterior(k, X[:5], y, NOISE, at)
    cross = k(X, at)
    covariance = k(at, at) - cross.T @ np.linalg.solve(k(X, X) + NOISE * np.eye(8), cross)
    torch.testing.assert_close(sample.mean(dim=0), torch.from_numpy(mean), atol=0.07, rtol=0)
    torch.testing.assert_close(sample.T.cov(), torch.from_numpy(covariance), atol=0.08, rtol=0)


def test_samples_of_large_sets_are_approximate_and_say_so(monkeypatch):
    assert make(bd.ThompsonSampling()).method == "GP-BTS"
    monkeypatch.setattr(sample_paths, "MAX_EXACT_POINTS", 20)
    opt = make(bd.ThompsonSampling())
    assert opt.method == "GP-BTS (approximate samples)"
    assert any("1024 random Fourier features" in line for line in opt.guarantee.missing)
    for trial in opt.ask(10):
        opt.tell(trial, value(trial))
    assert len({t.index for t in opt.ask(10)}) > 1
    with pytest.raises(NotSupportedError, match="RBF or a Matern"):
        make(bd.ThompsonSampling(), kernel="linear")


class LargestMean(bd.Rule):
    """A user's own rule."""

    scores_are_values = True

    def value(self, model, mean, deviation):
        return mean


class Improvement(bd.Rule):
    """Expected improvement on the best mean."""

    def __init__(self):
        self.best_means = []

    def value(self, model, mean, deviation):
        if model.best_mean is None:
            return deviation
        self.best_means.append(model.best_mean)
        deviation = deviation.clamp_min(1e-9)
        z = (mean - model.best_mean) / deviation
        normal = torch.distributions.Normal(0.0, 1.0)
        return deviation * (z * normal.cdf(z) + normal.log_prob(z).exp())


def test_improvement_rules_find_the_best_mean_of_answered_points():
    rule = Improvement()
    opt = make(rule)
    first, second, _ = opt.ask(3)
    opt.tell(first, 1.0)
    opt.tell(second, 2.0)
    opt.ask()
    means = opt.predict(torch.stack([first.x, second.x])).mean
    assert rule.best_means == [pytest.approx(means.max().item())]


def test_tiny_improvements_are_told_apart():
    """Rounding scores as if they were values of f would make them ties."""
    points = torch.rand(200, 2, dtype=torch.double, generator=torch.Generator().manual_seed(0))
    domain = bd.FiniteDomain(points)
    opt = bd.AcquisitionOptimizer(domain, rule=Improvement(), covar_module=se(0.3), exact=True)
    for _ in range(40):
        trial = opt.ask()
        opt.tell(trial, -3.0 * float((trial.x - 0.4).norm()))
    model, tried = opt._maximizer.model, [trial.index for trial in opt.trials]
    scores = opt._config.rule.score(model).index_fill(0, torch.tensor(tried), -1.0)
    assert float(scores.max()) < 1e-8
    assert opt.ask().index == int(scores.argmax())


class Nameless(bd.Rule):
    pass


def test_a_rule_without_a_formula_says_what_it_needs():
    box = bd.BoxDomain(torch.tensor([[0.0], [1.0]], dtype=torch.double))
    for domain in (bd.FiniteDomain(box.bounds), box):
        with pytest.raises(InputTypeError, match="Nameless must define value, or score and func"):
            bd.BPEDelayOptimizer(domain, 20, exploit=Nameless())


class InRows(LargestMean):
    def score(self, model):
        return model.mean.unsqueeze(0)


def test_a_score_that_is_no_number_for_each_candidate_is_refused():
    with pytest.raises(InputError, match=r"each candidate; got torch.float64 of shape \(1, "):
        make(InRows()).ask()


def test_a_rule_of_one_s_own_is_played():
    opt = make(LargestMean())
    for number in range(5):
        trial = opt.ask()
        opt.tell(trial, float(number))
    assert opt.ask().index == int(opt.predict(opt.domain.points).mean.argmax())
    assert opt.method.endswith("Hallucinate()")
    with pytest.raises(InputError, match="inflate widens"):
        make(LargestMean(), bd.Censor(0.0, 3, inflate=True))
    box = bd.BoxDomain(torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.double))
    on_box = bd.AcquisitionOptimizer(box, covar_module=se(), noise_var=NOISE, rule=LargestMean())
    on_box.attach(
        torch.tensor([[0.5, 0.5], [0.9, 0.1]]).double(), torch.tensor([0.0, 1.0]).double()
    )
    x, model = on_box.ask().x.unsqueeze(0), on_box._maximizer.model
    assert model.answers.anywhere.mean(x) > model.mean.max()  # at the points where climbs begin


class InPlace(LargestMean):
    def value(self, model, mean, deviation):
        return mean.add_(deviation.mul_(2.0))


class SumOf(LargestMean):
    def value(self, model, mean, deviation):
        return mean + 2.0 * deviation


def test_a_rule_may_work_in_place():
    asked = []
    for rule in (SumOf(), InPlace()):
        opt = make(rule)
        for trial in opt.ask(6):
            opt.tell(trial, float(trial.x.sum()))
        asked.append([trial.index for trial in opt.ask(6)])
        asked.append(opt._maximizer.model.mean.tolist())
    assert asked[:2] == asked[2:]


# BoTorch's acquisition functions


FACTORIES = {
    "qLogNEI": qLogNoisyExpectedImprovement,
    "qLogEI": qLogExpectedImprovement,
    "qUCB": bd.BotorchRule(qUpperConfidenceBound, beta=4.0),
    "UCB": bd.BotorchRule(UpperConfidenceBound, beta=4.0),
    "LogEI": LogExpectedImprovement,
    "PosteriorMean": PosteriorMean,
    "function": lambda model, X_pending=None: qUpperConfidenceBound(
        model, beta=4.0, X_pending=X_pending
    ),
}


@pytest.mark.parametrize("factory", FACTORIES)
@pytest.mark.parametrize(
    "pending",
    [bd.Ignore(), bd.Hallucinate(), bd.KrigingBeliever(), bd.Censor(-2.0)],
    ids=lambda p: type(p).__name__,
)
def test_botorch_acquisitions_run_with_pending_points(factory, pending):
    opt = make(FACTORIES[factory], pending)
    trials = opt.ask(5)
    for trial in trials[:3]:
        opt.tell(trial, value(trial))
    asked = [t.index for t in opt.ask(3)]
    assert len(asked) == 3
    if isinstance(pending, bd.Hallucinate) and factory not in ("PosteriorMean", "LogEI"):
        assert not {t.index for t in opt.pending[:2]} & set(asked[:1])


def test_a_factory_that_needs_pending_points_gets_none_where_there_are_none():
    def factory(model, X_pending):
        return qUpperConfidenceBound(model, beta=4.0, X_pending=X_pending)

    asked = []
    for rule in (factory, FACTORIES["function"]):
        opt = make(rule, bd.Hallucinate())
        for trial in opt.ask(3):
            opt.tell(trial, value(trial))  # so that nothing is pending
        asked.append(opt.ask().index)
    assert asked[0] == asked[1]


class NumPyScores(bd.Rule):
    def score(self, model):
        return np.zeros(len(model.candidates))


class Positive(bd.Rule):
    def value(self, model, mean, deviation):
        return mean > 0.0


@pytest.mark.parametrize(("rule", "got"), [(NumPyScores, "ndarray"), (Positive, "torch.bool")])
def test_scores_that_are_no_floats_of_a_tensor_are_refused(rule, got):
    opt = make(rule(), bd.Hallucinate())
    with pytest.raises(InputError, match=rf"must be a floating tensor of shape .* got .*{got}"):
        opt.ask()


class Constant(bd.Rule):
    def __init__(self):
        self.weight = torch.ones((), dtype=torch.double, requires_grad=True)

    def value(self, model, mean, deviation):
        return torch.ones_like(mean) * self.weight


@pytest.mark.usefixtures("small_searches")
@pytest.mark.parametrize(
    ("rule", "kernel"), [(Constant(), RBFKernel()), (bd.UCB(4.0), CategoricalKernel())]
)
def test_rules_and_kernels_without_a_slope_are_played_on_boxes(rule, kernel):
    space = bd.Space(a=bd.Choice(["x", "y", "z"]), b=bd.Int(0, 5))
    opt = bd.AcquisitionOptimizer(space, rule=rule, covar_module=kernel.double(), noise_var=1e-3)
    for trial in opt.ask(4):
        opt.tell(trial, float(trial.params["b"]))
    assert opt.ask().params["b"] in range(6)


def believing(seed, rule=None, **options):
    """Answers at five points, a second one at one of them, and five pending points."""
    opt = make(rule or bd.UCB(4.0), bd.KrigingBeliever(), seed=seed, **options)
    trials = opt.ask(5)
    for trial in trials:
        opt.tell(trial, value(trial))
    opt.attach(trials[0].x, 0.5)
    return opt, opt.ask(5)


@pytest.mark.parametrize("maximize", [True, False])
def test_drawn_answers_are_data_like_any_other(maximize):
    opt, pending = believing(0, maximize=maximize)
    X, sign = opt.domain.points, 1.0 if maximize else -1.0
    told = [(t.index, sign * t.value) for t in opt.trials[:5]] + [(opt.trials[0].index, sign * 0.5)]
    rows, y = torch.tensor([row for row, _ in told]), torch.tensor([v for _, v in told]).double()
    waiting = torch.tensor([t.index for t in pending])
    k = kernel_function(se())
    cross = torch.from_numpy(k(X.numpy(), X.numpy()))
    model = played(opt)
    value_of = dict(zip(model.answers.keys, model.answers.anywhere.data.y.tolist(), strict=True))
    drawn = torch.tensor([value_of[row] for row in waiting.tolist()]).double()
    both = torch.cat([rows, waiting])
    K = cross[both][:, both] + NOISE * torch.eye(len(both))
    mean = cross[:, both] @ torch.linalg.solve(K, torch.cat([y, drawn]))
    variance = 1.0 - (cross[:, both] * torch.linalg.solve(K, cross[both]).mT).sum(dim=1)
    found = seen(opt)
    assert torch.allclose(sign * found[0], mean, atol=1e-8)
    assert torch.allclose(found[1], variance.sqrt(), atol=1e-8)
    assert opt.ask().index == int((mean + 2.0 * found[1]).argmax())


def test_answers_are_drawn_anew_at_every_ask_by_the_seed():
    opt, _ = believing(1)
    same, other = believing(1)[0], believing(2)[0]
    first = seen(opt)[0]
    assert torch.equal(first, seen(same)[0])
    assert not torch.allclose(first, seen(other)[0])
    opt.mark_abandoned(opt.ask())  # which is not pending any more
    assert not torch.allclose(first, seen(opt)[0])
    loaded = make(bd.UCB(4.0), bd.KrigingBeliever(), seed=1)
    loaded.load_state_dict(opt.state_dict())
    assert [t.index for t in loaded.ask(4)] == [t.index for t in opt.ask(4)]
    for trial in opt.pending:
        opt.mark_abandoned(trial)
    plain = make(bd.UCB(4.0))
    for trial in opt.trials[:5]:
        plain.attach(trial.x, trial.value)
    plain.attach(opt.trials[0].x, 0.5)
    assert torch.allclose(seen(opt)[0], seen(plain)[0])


def test_a_botorch_rule_sees_drawn_answers_as_data():
    asked = []
    for rule in (bd.UCB(4.0), bd.BotorchRule(UpperConfidenceBound, beta=4.0)):
        opt = make(rule, bd.KrigingBeliever(), seed=3)
        opt.attach(opt.domain.points[:2], torch.tensor([0.5, 0.0]).double())
        asked.append([t.index for t in opt.ask(6)])
    assert asked[0] == asked[1]


class Chance(bd.UCB):
    """Tiny scores that are not in units of values, so that climbs gain little."""

    scores_are_values = False

    def value(self, model, mean, deviation):
        return 1e-9 * super().value(model, mean, deviation)


def test_climbs_do_not_depend_on_the_unit_of_scores_without_one():
    box = bd.BoxDomain(torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.double))
    asked = []
    for rule in (bd.UCB(2.0), Chance(2.0)):
        opt = bd.AcquisitionOptimizer(box, rule=rule, covar_module=se(0.3), noise_var=1e-4, seed=2)
        for _ in range(6):
            trial = opt.ask()
            opt.tell(trial, -float((trial.x - 0.37).square().sum()))
        asked.append(torch.stack([trial.x for trial in opt.trials]))
    torch.testing.assert_close(*asked, atol=2e-3, rtol=0.0)


def test_drawn_answers_on_a_box_with_a_learned_kernel():
    box = bd.BoxDomain(torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.double))
    opt = bd.AcquisitionOptimizer(box, rule=bd.UCB(2.0), pending=bd.KrigingBeliever())
    for trial in opt.ask(5)[:4]:
        opt.tell(trial, value(trial))
    first, second = (opt.ask().x for _ in range(2))
    assert not torch.equal(first, second)


@pytest.mark.parametrize("rule", [bd.ThompsonSampling(), bd.CertifyingUCB(1.0, 0.1)], ids=repr)
def test_rules_that_drawn_answers_make_no_sense_for(rule):
    with pytest.raises(InputError, match="use pending="):
        make(rule, bd.KrigingBeliever())


def test_the_analytic_ucb_of_botorch_is_gp_bucb():
    ours, theirs = make(bd.UCB(4.0)), make(bd.BotorchRule(UpperConfidenceBound, beta=4.0))
    first = ours.ask(), theirs.ask()
    assert first[0].index == first[1].index
    for opt, trial in zip((ours, theirs), first, strict=True):
        opt.tell(trial, value(trial))
    for _ in range(15):
        a, b = ours.ask(), theirs.ask()
        assert a.index == b.index
        if a.id % 3 == 0:
            ours.tell(a, value(a))
            theirs.tell(b, value(b))


def bound(model, X_pending=None):
    """A user's factory that passes on pending points which the model counts already."""
    return bd.FantasyUpperConfidenceBound(model, 4.0, X_pending=X_pending)


@pytest.mark.parametrize(
    ("rule", "same"),
    [
        (bd.BotorchRule(bd.FantasyUpperConfidenceBound, beta=4.0), bd.UCB(4.0)),
        (bound, bd.UCB(4.0)),
        (bd.MaxVariance, bd.UCB(1e12)),
    ],
    ids=["FantasyUCB", "function", "MaxVariance"],
)
def test_no_pending_point_counts_twice(rule, same):
    # With noise as large as the prior variance it may pay to ask a point again.
    opts = [make(each, noise_var=1.0) for each in (rule, same)]
    for opt in opts:
        opt.attach(opt.domain.points[:5], normal(5))
    asked = [[trial.index for trial in opt.ask(10)] for opt in opts]
    assert asked[0] == asked[1]


def test_a_botorch_rule_asks_what_botorch_would():
    def factory(model, X_pending=None):
        sampler = SobolQMCNormalSampler(torch.Size([64]), seed=0)
        return qUpperConfidenceBound(model, beta=4.0, X_pending=X_pending, sampler=sampler)

    opt = make(factory)
    trials = opt.ask(6)
    for trial in trials[:4]:
        opt.tell(trial, value(trial))
    model = bd.DelayedGP(
        torch.stack([t.x for t in trials[:4]]),
        torch.tensor([[t.value] for t in trials[:4]], dtype=torch.double),
        noise_var=NOISE,
        covar_module=se(),
    )
    waiting = torch.stack([t.x for t in trials[4:]])
    function = factory(model, X_pending=waiting)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NumericalWarning)
        best, _ = optimize_acqf_discrete(function, q=1, choices=opt.domain.points)
    assert torch.equal(opt.ask().x, best[0])


def test_repeated_answers_leave_the_noise_of_pending_points_alone():
    ours, theirs = make(bd.UCB(4.0)), make(bd.BotorchRule(UpperConfidenceBound, beta=4.0))
    for opt in (ours, theirs):
        opt.attach(opt.domain.points[:1].expand(20, 2), torch.linspace(0, 1, 20).double())
    assert [t.index for t in ours.ask(12)] == [t.index for t in theirs.ask(12)]


def test_acquisitions_with_tiny_values_are_told_apart():
    with pytest.warns(NumericsWarning, match="LogExpectedImprovement"):
        opt = make(ExpectedImprovement, bd.Censor(-1.0), n=30, noise_var=1e-3)
    for _ in range(8):
        trials = opt.ask(2)
        opt.tell(trials[1], value(trials[1]))
    assert [t.index for t in opt.trials].count(0) == 1


def test_a_point_that_has_only_failed_is_pending_until_it_is_answered():
    seen = []

    def factory(model, X_pending=None):
        seen.append(0 if X_pending is None else len(X_pending))
        return PosteriorMean(model)

    opt = make(bd.BotorchRule(factory), n=3)
    opt.attach(opt.domain.points[0], 1.0)
    first = opt.ask()
    opt.mark_failed(first)
    second = opt.ask()
    assert second.index == first.index
    opt.tell(second, 2.0)
    opt.ask()
    assert seen[-3:] == [0, 1, 0]


def test_botorch_s_functions_are_refused_where_they_could_not_tell_variances_from_0():
    kernel = ScaleKernel(se()).double()
    kernel.outputscale = 1e-12
    small = {"covar_module": kernel, "noise_var": 1e-16}
    domain, rule = bd.FiniteDomain(scattered(30)), bd.BotorchRule(LogExpectedImprovement)
    with pytest.raises(
        InputError, match=r"prior variance is .* give values, kernel and noise_var in a unit"
    ):
        bd.AcquisitionOptimizer(domain, rule=rule, **small)


@pytest.mark.usefixtures("small_searches")
@pytest.mark.parametrize("rule", [bd.UCB(4.0), bd.BotorchRule(UpperConfidenceBound, beta=4.0)])
def test_an_optimizer_is_pickled_after_a_climb_on_a_box(rule):
    box = bd.BoxDomain(torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.double))
    opt = bd.AcquisitionOptimizer(box, covar_module=se(), noise_var=NOISE, rule=rule)
    for trial in opt.ask(4)[:3]:
        opt.tell(trial, value(trial))
    opt.ask()
    again = pickle.loads(pickle.dumps(opt))
    assert torch.equal(again.ask().x, opt.ask().x)


def test_acquisitions_that_take_pending_points_only_afterwards():
    rule = bd.BotorchRule(qMaxValueEntropy, bounds=[(0.0, 1.0), (0.0, 1.0)])
    opt = make(rule, bd.Hallucinate())
    for trial in opt.ask(4)[:2]:
        opt.tell(trial, value(trial))
    assert opt.ask().index is not None


def test_one_point_is_a_domain_too():
    for rule in (bd.UCB(4.0), bd.ThompsonSampling(), qLogNoisyExpectedImprovement):
        opt = make(rule, n=1)
        for trial in opt.ask(3):
            opt.tell(trial, value(trial))
        assert opt.ask().index == 0


def test_a_worst_value_far_away_leaves_no_trace():
    opt, other = make(pending=bd.Censor(-1e9)), make(pending=bd.Ignore())
    for trial in opt.ask(10):
        opt.tell(trial, value(trial))
        other.attach(trial.x, value(trial))
    for ours, expected in zip(seen(opt), seen(other), strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-8, atol=1e-8)


def test_float32_asks_do_not_change_when_a_run_is_resumed():
    points = torch.cartesian_prod(*[torch.linspace(0, 1, 15)] * 2)
    with pytest.warns(InputDataWarning):
        domain = bd.FiniteDomain(points)

    def fresh():
        kernel = RBFKernel()
        kernel.lengthscale = 0.2
        return bd.AcquisitionOptimizer(domain, covar_module=kernel, noise_var=1e-2)

    whole, pieces = fresh(), fresh()
    for number in range(60):
        a, b = whole.ask(), pieces.ask()
        assert a.index == b.index, number
        whole.tell(a, value(a))
        pieces.tell(b, value(b))
        if number % 7 == 0:
            resumed = fresh()
            resumed.load_state_dict(pieces.state_dict())
            pieces = resumed


def test_only_the_library_s_own_randomness_is_used():
    def asks():
        opt = make(qLogNoisyExpectedImprovement, seed=3)
        for trial in opt.ask(4):
            opt.tell(trial, value(trial))
        return [t.index for t in opt.ask(3)]

    assert asks() == asks()


class Drawing(AcquisitionFunction):
    """Draws random numbers when made and when evaluated, while another thread draws too."""

    def __init__(self, model, others):
        super().__init__(model)
        self.others, self.start = others, torch.rand((), dtype=torch.double)

    def forward(self, X):
        if self.others is not None:
            with ThreadPoolExecutor(1) as other:
                self.others += other.submit(torch.rand, 3).result().tolist()
        noise = torch.randn_like(X[:, 0, 0]) + torch.rand(len(X), dtype=X.dtype)
        return (X[:, 0, 0] - self.start).square() + noise


def drawing(model, others=None):
    return Drawing(model, others)


def test_a_rule_and_other_threads_draw_random_numbers_of_their_own():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        expected, others, asked = torch.rand(60).tolist(), [], []
        for options in ({"others": others}, {}, {}):
            torch.manual_seed(len(asked))
            opt = make(bd.BotorchRule(drawing, **options), bd.Ignore())
            for _ in range(8):
                opt.tell(trial := opt.ask(), value(trial))
            asked.append([trial.index for trial in opt.trials])
    assert len(others) >= 21
    assert others == expected[: len(others)]
    assert asked[0] == asked[1] == asked[2]


def test_a_function_that_draws_at_every_evaluation_is_climbed():
    box = bd.BoxDomain(torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.double))
    rule, asked = bd.BotorchRule(drawing), []
    before = torch.get_rng_state()
    for _ in range(2):
        opt = bd.AcquisitionOptimizer(
            box, covar_module=se(), noise_var=NOISE, rule=rule, pending=bd.Ignore()
        )
        for _ in range(3):
            opt.tell(trial := opt.ask(), value(trial))
        asked.append([trial.x.tolist() for trial in opt.trials])
    assert torch.equal(torch.get_rng_state(), before)
    assert asked[0] == asked[1]


@pytest.mark.parametrize(
    ("rule", "pending"),
    [
        (qLogNoisyExpectedImprovement, bd.Hallucinate()),
        (bd.BotorchRule(qUpperConfidenceBound, beta=4.0), bd.Hallucinate()),
        (bd.BotorchRule(LogExpectedImprovement), bd.Ignore()),
    ],
)
@pytest.mark.filterwarnings("ignore")  # threads share the warning filters
def test_optimizers_in_threads_ask_what_they_ask_alone(rule, pending):
    def asked(_):
        opt = make(rule, pending)
        for trial in opt.ask(3):
            opt.tell(trial, value(trial))
        return [trial.index for trial in opt.ask(4)]

    before, alone = torch.get_rng_state(), asked(0)
    with ThreadPoolExecutor(3) as threads:
        assert list(threads.map(asked, range(3))) == [alone] * 3
    assert torch.equal(torch.get_rng_state(), before)


# Answers that fail, go missing or come from elsewhere


@pytest.mark.parametrize("method", METHODS)
def test_the_order_of_answers_between_two_asks_does_not_matter(method):
    def play(backwards):
        opt = make(*METHODS[method])
        trials = opt.ask(9)
        for trial in trials[::-1] if backwards else trials:
            opt.tell(trial, value(trial))
        return [t.index for t in opt.ask(5)], seen(opt)

    (asks, (mean, deviation)), (asks_back, (mean_back, deviation_back)) = play(False), play(True)
    assert asks == asks_back
    assert torch.equal(mean, mean_back)
    assert torch.equal(deviation, deviation_back)


def test_an_abandoned_trial_is_not_pending_and_its_late_answer_counts():
    opt, other = make(), make()
    trials = opt.ask(4)
    for trial in trials[1:]:
        opt.mark_abandoned(trial)
    other.ask()
    torch.testing.assert_close(seen(opt)[1], seen(other)[1])
    opt.tell(trials[2], 1.5)
    other.attach(trials[2].x, 1.5)
    for ours, expected in zip(seen(opt), seen(other), strict=True):
        torch.testing.assert_close(ours, expected)


def test_a_failed_trial_stays_counted_and_its_point_is_asked_at_most_twice_more():
    opt = make(bd.UCB(4.0), bd.Ignore(), n=3)
    asked = []
    for _ in range(9):
        trial = opt.ask()
        asked.append(trial.index)
        opt.mark_failed(trial, "crashed")
    assert sorted(asked) == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    with pytest.raises(EmptyDomainError, match="None of the 3 points"):
        opt.ask()
    hallucinated = make()
    before = seen(hallucinated)[1]
    trial = hallucinated.ask()
    hallucinated.mark_failed(trial)
    assert (seen(hallucinated)[1] < before).any()


def test_a_censored_failure_has_the_worst_value():
    opt, other = make(pending=bd.Censor(WORST)), make(pending=bd.Ignore())
    trial = opt.ask()
    opt.mark_failed(trial)
    other.attach(trial.x, WORST)
    for ours, expected in zip(seen(opt), seen(other), strict=True):
        torch.testing.assert_close(ours, expected)


def test_attached_results_and_noise_of_single_answers_enter():
    elsewhere = torch.tensor([[1.4, 1.4], [0.2, 1.2]], dtype=torch.double)
    opt = make()
    opt.attach(elsewhere, torch.tensor([0.5, -0.5], dtype=torch.double))
    opt.attach(opt.domain.points[4], 0.7)
    trial = opt.ask()
    opt.tell(trial, 1.0, noise_var=0.5)
    X = torch.cat([elsewhere, opt.domain.points[[4, trial.index]]]).numpy()
    noise = np.array([NOISE, NOISE, NOISE, 0.5])
    y = np.array([0.5, -0.5, 0.7, 1.0])
    mean, variance, _ = posterior(kernel_function(se()), X, y, noise, opt.domain.points.numpy())
    torch.testing.assert_close(seen(opt)[0], torch.from_numpy(mean))
    torch.testing.assert_close(seen(opt)[1] ** 2, torch.from_numpy(variance))


def test_thompson_sampling_knows_results_from_elsewhere():
    opt = make(bd.ThompsonSampling(), n=10)
    opt.attach(torch.tensor([2.0, 2.0], dtype=torch.double), 0.5)
    for trial in opt.ask(3):
        opt.tell(trial, value(trial))
    opt.attach(torch.tensor([3.0, 2.0], dtype=torch.double), 0.5)
    assert opt.ask().index < 10


# Learned kernels


@pytest.mark.parametrize("level", [1000.0, -1e6])
@pytest.mark.parametrize(
    "pending", [bd.Hallucinate(), bd.Censor(-2e6)], ids=["hallucinate", "censor"]
)
def test_a_first_answer_far_from_zero_does_not_end_exploration(level, pending):
    opt = make(covar_module=None, noise_var=None, pending=pending)
    opt.tell(opt.ask(), level)
    opt.tell(opt.ask(), level + 1.0)
    assert len({t.index for t in opt.ask(8)}) >= 6


def test_looking_at_the_posterior_does_not_change_the_asks():
    looked, plain = (make(covar_module=None, noise_var=None) for _ in range(2))
    for number in range(7):
        a, b = looked.ask(), plain.ask()
        assert a.index == b.index, number
        looked.tell(a, value(a))
        plain.tell(b, value(b))
        seen(looked)


@pytest.mark.parametrize(
    ("rule", "scale"),
    [
        (bd.UCB(6.0), 1e-9),
        (bd.ThompsonSampling(), 1.0),
        (qLogExpectedImprovement, 1.0),
    ],
)
def test_a_learned_kernel_is_fitted_again_as_the_answers_grow(rule, scale):
    opt = make(rule, covar_module=None, noise_var=None, maximize=False)
    fits = set()
    for _ in range(12):
        trial = opt.ask()
        opt.tell(trial, scale * (3.0 + value(trial)))
        fits.add(opt._fitting.fitted_to)
    assert fits == {0, 1, 2, 3, 4, 5, 6, 8, 10}
    best = opt.recommend()
    assert best.lower <= best.mean <= best.upper
    values = [t.value for t in opt.trials]
    assert best.mean <= min(values) + 0.1 * (max(values) - min(values))


LEARNED = {"covar_module": None, "noise_var": None}


@pytest.mark.parametrize("rule", [bd.UCB(6.0), bd.ThompsonSampling(), qLogExpectedImprovement])
def test_before_a_kernel_can_be_learned_points_come_in_a_random_order(rule):
    first = [trial.index for trial in make(rule, **LEARNED).ask(40)]
    assert sorted(first) == list(range(40))
    assert first != sorted(first)
    assert first == [trial.index for trial in make(rule, **LEARNED).ask(40)]
    assert first != [trial.index for trial in make(rule, seed=1, **LEARNED).ask(40)]
    opt = make(rule, **LEARNED)
    trials = [opt.ask() for _ in range(3)]
    for trial in trials[:2]:  # the first points do not depend on answers
        opt.tell(trial, value(trial))
    assert [t.index for t in (*trials, opt.ask())] == first[:4]


def test_first_points_are_none_that_the_design_has_asked():
    domain = bd.FiniteDomain(scattered(5))
    for seed in range(10):
        opt = bd.BPEDelayOptimizer(domain, horizon=200, seed=seed)
        assert len({t.index for t in opt.ask(5)}) == 5


def test_with_three_answers_the_rule_plays():
    opt = make(bd.UCB(1e-9), **LEARNED)
    for trial in opt.ask(3):
        opt.tell(trial, value(trial))
    assert opt.ask().index == int(opt.predict(opt.domain.points).mean.argmax())


def test_first_points_of_a_box_are_spread_over_its_middle():
    box = bd.BoxDomain(torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.double))
    opt = bd.AcquisitionOptimizer(box, rule=bd.UCB(6.0))
    X = torch.stack([trial.x for trial in opt.ask(30)])
    assert len(torch.unique(X, dim=0)) == 30
    assert bool(((X >= 0.1) & (X <= 0.9)).all())  # a design would begin in the corners
    assert float(X.min()) < 0.15
    assert float(X.max()) > 0.85
    for trial in opt.pending:
        opt.tell(trial, 1.0)
    # All answers are equal: what differs may be at the ends.
    X = torch.stack([trial.x for trial in opt.ask(60)])
    assert all(bool((opt._maximizer.model.candidates == x).all(dim=1).any()) for x in X)
    assert bool(((X < 0.1) | (X > 0.9)).any())


def test_first_points_that_may_not_be_asked_are_passed_over():
    first = [trial.index for trial in make(bd.UCB(6.0), **LEARNED).ask(4)]
    opt = make(bd.UCB(6.0), exact=True, covar_module=None, noise_var=None)
    opt.attach(opt.domain.points[first[1]], 0.0)
    assert [trial.index for trial in opt.ask(3)] == [first[0], first[2], first[3]]


@pytest.mark.parametrize("values", [[1.0] * 8, [0.0, 1e6, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]])
def test_constant_answers_and_outliers_are_survived(values):
    opt = make(covar_module=None, noise_var=None)
    for y in values:
        opt.tell(opt.ask(), y)
    assert torch.isfinite(seen(opt)[0]).all()
    assert opt.ask().index is not None


# Refusals


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"pending": bd.Censor}, InputTypeError, r"Censor\(worst_value\)"),
        ({"pending": "ignore"}, InputTypeError, "Ignore"),
        ({"pending": bd.Censor(1e300)}, InputError, "at most 1e.150"),
        ({"rule": bd.UCB}, InputTypeError, "a rule such as UCB"),
        ({"rule": bd.Rule}, InputTypeError, "a rule such as UCB"),
        ({"rule": int}, InputTypeError, "make an acquisition function"),
        ({"rule": qKnowledgeGradient}, InputError, "one-shot"),
        ({"rule": 6.0}, InputTypeError, "acquisition function.s factory"),
        ({"rule": lambda model: PosteriorMean(model)}, InputError, "cannot use pending points"),
        (
            {"rule": bd.ThompsonSampling(), "pending": bd.Censor(0.0, 3, inflate=True)},
            InputError,
            "inflate widens",
        ),
        ({"noise_var": None}, InputError, "covar_module was given without noise_var"),
        ({"rule": bd.BotorchRule(qUpperConfidenceBound, gamma=1)}, InputError, "gamma"),
        ({"rule": lambda model, X_pending=None: 3.0}, InputTypeError, "got float"),
        ({"rule": lambda model, X_pending=None: 1 / 0}, InputError, "division"),
        ({"horizon": 0}, InputError, "at least 1"),
        ({"seed": -1}, InputError, "at least 0"),
    ],
)
def test_bad_arguments(change, error, message):
    with pytest.raises(error, match=message):
        make(**change)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: bd.UCB(0.0), InputError, "above 0"),
        (lambda: bd.UCB("6"), InputTypeError, "number"),
        (lambda: bd.ThompsonSampling(-1.0), InputError, "above 0"),
        (lambda: bd.Censor(None), InputTypeError, "worst_value must be a number"),
        (lambda: bd.Censor(math.inf), InputError, "finite"),
        (lambda: bd.Censor(0.0, inflate=True), InputError, "give max_delay"),
        (lambda: bd.Censor(0.0, max_delay=-1), InputError, "at least 0"),
        (lambda: bd.BotorchRule(bd.MaxVariance.__mro__[1]), InputError, "no input constructor"),
        (lambda: bd.BotorchRule(3), InputTypeError, "factory"),
    ],
)
def test_bad_parts(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_nothing_is_claimed():
    guarantee = make().guarantee
    assert not guarantee.holds
    assert "GP-BUCB" in guarantee.missing[0]


@pytest.mark.cuda
@pytest.mark.parametrize("method", METHODS)
def test_cuda_asks_what_the_cpu_asks(method):
    here = make(*METHODS[method])
    there = bd.AcquisitionOptimizer(
        bd.FiniteDomain(scattered(40).cuda()),
        covar_module=se().cuda(),
        noise_var=NOISE,
        rule=METHODS[method][0],
        pending=METHODS[method][1],
    )
    for _ in range(20):
        a, b = here.ask(), there.ask()
        assert b.x.is_cuda
        assert a.index == b.index
        here.tell(a, value(a))
        there.tell(b, value(a))


def test_no_width_is_added_where_none_is_of_the_last_asks():
    pending = bd.Censor(-1.0, max_delay=0, inflate=True)
    opt = bd.AcquisitionOptimizer(bd.FiniteDomain(scattered(20)), rule=bd.UCB(4.0), pending=pending)
    opt.ask(6)
    assert opt._maximizer.model.widths == []


def test_a_running_point_is_asked_only_where_all_points_are_running():
    points = torch.linspace(0, 1, 4, dtype=torch.double).unsqueeze(-1)
    opt = bd.AcquisitionOptimizer(bd.FiniteDomain(points), rule=bd.UCB(0.5), repeat_pending=False)
    for trial in opt.ask(4):
        opt.tell(trial, -float((trial.x - 0.4) ** 2))
    assert sorted(trial.index for trial in opt.ask(4)) == [0, 1, 2, 3]
    assert opt.ask().index in range(4)


@pytest.mark.filterwarnings("ignore:A noise variance of")  # far below the huge values
@pytest.mark.parametrize("scale", [1e-300, 1e-160, 1e140])
def test_told_noise_in_units_of_tiny_and_huge_values(scale):
    points = torch.linspace(0, 1, 20, dtype=torch.double).unsqueeze(-1)
    opt = bd.AcquisitionOptimizer(bd.FiniteDomain(points))
    for number, trial in enumerate(opt.ask(6)):
        opt.tell(trial, scale * (number % 5 + 1), None if number else 1e-6)
    assert opt.ask().index in range(20)
    assert 0.0 < opt.recommend().mean < 6 * scale


def test_an_acquisition_function_that_was_made_already_is_refused():
    X = scattered(4)
    made = LogExpectedImprovement(bd.DelayedGP(X, normal(4)[:, None], noise_var=0.1), best_f=0.0)
    with pytest.raises(InputTypeError, match="made already; pass the class, BotorchRule"):
        bd.BPEDelayOptimizer(bd.FiniteDomain(X), 10, exploit=made)


@pytest.mark.parametrize("noise_var", [None, 0.3, 50.0])
def test_an_answer_later_than_max_delay_changes_nothing(noise_var):
    def asks(late):
        opt = bd.AcquisitionOptimizer(
            bd.FiniteDomain(torch.linspace(0, 1, 11, dtype=torch.double).unsqueeze(-1)),
            covar_module=se(),
            noise_var=0.01,
            rule=bd.UCB(1.0),
            pending=bd.Censor(-1.0, max_delay=2),
        )
        opt.ask(6)
        for trial in (4, 5):
            opt.tell(trial, 0.5)
        if late:
            opt.tell(0, 0.9, noise_var=noise_var)  # after five other asks
        return [opt.ask().index for _ in range(6)]

    assert asks(late=True) == asks(late=False)
