from functools import cache, partial

import pytest
import torch

from botorch_delay import BoxDomain, FiniteDomain
from botorch_delay.benchmarks import (
    BoxProblem,
    FiniteProblem,
    StepClock,
    WorkerClock,
    simulate,
)
from botorch_delay.benchmarks.functions import gp_draw
from botorch_delay.benchmarks.methods import (
    ABLATIONS,
    FACTORS,
    GUARANTEED,
    LIBRARY_METHODS,
    PAPER_METHODS,
)
from botorch_delay.benchmarks.optuna_samplers import OPTUNA_METHODS, OptunaSampler
from botorch_delay.benchmarks.problems import paper_problem
from botorch_delay.delays import PoissonDelay
from botorch_delay.exceptions import MissingExtraError, NoAnswerError, NotSupportedError

STEPS = 6
CLOCK = StepClock(PoissonDelay(1.0), lost=0.1, failed=0.1)


def arms():
    """A full grid with a category: the kernel is learned."""
    axes = torch.tensor([0.0, 1.0, 2.0]), torch.tensor([1.0, 10.0, 100.0]), torch.tensor([0.0, 1.0])
    points = torch.cartesian_prod(*axes).double()
    domain = FiniteDomain(points, names=["a", "b", "c"], log_dims=[1], cat_dims=[2])
    return FiniteProblem(domain, points[:, 0] - points[:, 1].log() + points[:, 2], 0.1)


def box():
    domain = BoxDomain(
        torch.tensor([[0.0, 1.0, 0.0, 0.0], [1.0, 9.0, 2.0, 3.0]]).double(),
        discrete_dims={1: [1, 3, 9]},
        cat_dims={2: [0, 1, 2]},
        names=["x", "n", "kind", "y"],
    )
    return BoxProblem(domain, lambda X: -(X - 0.5).square().sum(dim=1), 0.0, 0.1)


PROBLEMS = {"kernel": partial(gp_draw, "se", 0.1, 0), "arms": arms, "box": box}
PROBLEMS["norm"] = partial(paper_problem, 1.0, 0, side=8)
made = cache(lambda kind: PROBLEMS[kind]())
ALL = LIBRARY_METHODS | PAPER_METHODS | GUARANTEED | ABLATIONS


@pytest.mark.parametrize("kind", PROBLEMS)
@pytest.mark.parametrize("name", [*ALL, "tpe", "optuna-gp"])
def test_every_method_can_be_simulated(name, kind):
    if name in OPTUNA_METHODS:
        pytest.importorskip("optuna")
    method = (ALL | OPTUNA_METHODS)[name]
    problem = made(kind)
    if not method.applies(problem, CLOCK):
        assert (
            ("kernel" in method.needs and kind in ("arms", "box"))
            or ("set" in method.needs and kind == "box")
            or ("norm" in method.needs and kind != "norm")
        )
        return
    runs = [
        simulate(
            method.make(problem, CLOCK, STEPS, 1),
            problem,
            CLOCK,
            STEPS,
            1,
            recommend_every=3,
            instant=method.instant,
        )
        for _ in range(2 if kind == "kernel" else 1)
    ]
    asked = [[ask.point for ask in run.asks] for run in runs]
    assert asked[0] == asked[-1]  # nothing comes from a global generator
    assert len(asked[0]) == STEPS
    assert all(found.regret >= 0 for found in runs[0].recommendations)
    by_model = [found.by_model is not None for found in runs[0].recommendations]
    assert any(by_model) == (name in OPTUNA_METHODS)


def tpe(problem):
    return OptunaSampler(problem, CLOCK, STEPS, 0, sampler="TPESampler")


def test_the_factors_are_those_that_the_guarantee_claims():
    problem = paper_problem(1.0, side=8)
    for factors in FACTORS.values():
        for name, factor in factors.items():
            optimizer = GUARANTEED[name].make(problem, CLOCK, 12, 0)
            assert f"{factor:.3g}" in str(optimizer.guarantee) or factor == 1.0
    assert sum(map(len, FACTORS.values())) == len(GUARANTEED)


def test_values_counted_from_the_worst_are_told_and_observed_as_they_are():
    """The same points as on the problem moved to a worst value of 0."""
    problem = PROBLEMS["kernel"]()
    moved = FiniteProblem(
        problem.points,
        problem.values - problem.values.min(),
        problem.noise_std,
        covar_module=problem.covar_module,
    )
    clock = StepClock(PoissonDelay(3.0))
    from_worst, plain = (
        simulate(method.make(of, clock, 20, 0), of, clock, 20)
        for of, method in (
            (problem, PAPER_METHODS["gp-ucb-sdf-from-worst"]),
            (moved, LIBRARY_METHODS["gp-ucb-sdf"]),
        )
    )
    assert from_worst.index.tolist() == plain.index.tolist()
    assert from_worst.value.min() < 0.0


def test_methods_that_need_a_law():
    published = LIBRARY_METHODS["bpe-delay-published"]
    assert published.applies(PROBLEMS["kernel"](), CLOCK)
    assert not published.applies(PROBLEMS["kernel"](), WorkerClock(4))


@pytest.mark.filterwarnings("ignore::linear_operator.utils.warnings.NumericalWarning")
def test_the_screened_acquisition_finds_the_largest_value():
    from botorch.acquisition.logei import qLogNoisyExpectedImprovement

    from botorch_delay import DelayedGP
    from botorch_delay.benchmarks.screening import screened_qlognei

    problem = gp_draw("se", 0.1, 0)
    X, Y = problem.points[::90], problem.values[::90].unsqueeze(-1)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        pending = problem.points[:3]
        kernel = problem.covar_module
        model = DelayedGP(X, Y, noise_var=0.01, X_pending=pending, covar_module=kernel)
        screened = screened_qlognei(model, X_pending=pending)(problem.points.unsqueeze(1))
        torch.manual_seed(0)
        plain = qLogNoisyExpectedImprovement(model, X, X_pending=pending)
        full = plain(problem.points.unsqueeze(1))
    kept = screened.isfinite()
    assert int(kept.sum()) == len(problem.points) // 32
    assert bool(kept[full.nan_to_num(-torch.inf).argmax()])


def test_optuna_s_trials_on_a_grid_are_the_arms():
    pytest.importorskip("optuna")
    problem = arms()
    sampler = tpe(problem)
    for number in range(30):
        point = sampler.ask()
        trial = sampler._trials[number]
        assert torch.equal(problem.points[point.index], point.x)
        a, b, c = (trial.params[name] for name in "abc")
        assert point.x.tolist() == [a, [1, 10, 100][b], c]
        sampler.tell(number, problem.evaluate_true(point))
    best = max(range(30), key=lambda n: problem.evaluate_true(sampler._asked[n]))
    own = sampler.recommend()
    assert problem.evaluate_true(own) == problem.evaluate_true(sampler._asked[best])


def test_elsewhere_the_nearest_arm_is_asked():
    pytest.importorskip("optuna")
    points = torch.rand(40, 2, generator=torch.Generator().manual_seed(0)).double()
    points = points * torch.tensor([10.0, 0.1])
    problem = FiniteProblem(points, points[:, 0], 0.1)
    sampler = tpe(problem)
    low, high = problem.domain.bounds
    for number in range(20):
        point = sampler.ask()
        suggested = torch.tensor([sampler._trials[number].params[n] for n in ("x0", "x1")])
        distance = ((points - low) / (high - low) - suggested).norm(dim=1)
        assert int(distance.argmin()) == point.index


def test_optuna_gets_no_constraints():
    pytest.importorskip("optuna")
    domain = BoxDomain(
        torch.tensor([[0.0], [1.0]]).double(), constraints=[([0], [1.0], 0.5)], names=["x"]
    )
    problem = BoxProblem(domain, lambda X: X[:, 0], 1.0, 0.1)
    with pytest.raises(NotSupportedError):
        tpe(problem)


def test_without_optuna_a_hint(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "optuna", None)
    with pytest.raises(MissingExtraError, match="botorch-delay\\[bench\\]"):
        tpe(arms())


def test_optuna_s_log_is_left_as_it_was():
    optuna = pytest.importorskip("optuna")
    before = optuna.logging.get_verbosity()
    sampler = tpe(arms())
    for _ in range(2):
        with pytest.raises(NoAnswerError):
            sampler.recommend()
        if not sampler._trials:
            sampler.mark_failed(sampler.ask().id)
    assert optuna.logging.get_verbosity() == before
