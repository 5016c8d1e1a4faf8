from functools import partial

import pytest
import torch

from botorch_delay import BoxDomain, FiniteDomain
from botorch_delay.benchmarks import BoxProblem, FiniteProblem, StepClock, WorkerClock
from botorch_delay.benchmarks.functions import gp_draw
from botorch_delay.benchmarks.methods import ABLATIONS, GUARANTEED, LIBRARY_METHODS
from botorch_delay.benchmarks.optuna_players import OPTUNA_METHODS, OptunaPlayer
from botorch_delay.benchmarks.play import play
from botorch_delay.benchmarks.problems import Point, paper_problem
from botorch_delay.delays import PoissonDelay
from botorch_delay.exceptions import MissingExtraError, NotSupportedError

STEPS = 8
CLOCK = StepClock(PoissonDelay(3.0), lost=0.1, failed=0.1)


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
ALL = LIBRARY_METHODS | GUARANTEED | ABLATIONS


@pytest.mark.parametrize("kind", PROBLEMS)
@pytest.mark.parametrize("name", [*ALL, "tpe", "optuna-gp"])
def test_every_method_plays(name, kind):
    if name in OPTUNA_METHODS:
        pytest.importorskip("optuna")
    method = (ALL | OPTUNA_METHODS)[name]
    problem = PROBLEMS[kind]()
    if not method.applies(problem, CLOCK):
        assert (
            (method.needs_kernel and kind in ("arms", "box"))
            or (method.needs_set and kind == "box")
            or (method.needs_norm and kind != "norm")
        )
        return
    records = [
        play(
            method.make(problem, CLOCK, STEPS, 1),
            problem,
            CLOCK,
            STEPS,
            1,
            every=4,
            instant=method.instant,
        )
        for _ in range(2 if kind == "arms" else 1)
    ]
    asked = [[ask.point for ask in record.asks] for record in records]
    assert asked[0] == asked[-1]  # nothing comes from a global generator
    assert len(asked[0]) == STEPS
    assert all(advice.regret >= 0 for advice in records[0].advice)
    assert {advice.by for advice in records[0].advice} <= {"own", "ours"}
    assert ("ours" in {a.by for a in records[0].advice}) == (name in OPTUNA_METHODS)


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
    player = OptunaPlayer(problem, "TPESampler", 0)
    for number in range(30):
        point = player.ask()
        trial = player._trials[number]
        assert torch.equal(problem.points[point.index], point.x)
        a, b, c = (trial.params[name] for name in "abc")
        assert point.x.tolist() == [a, [1, 10, 100][b], c]
        player.tell(number, problem.truth(point))
    best = max(range(30), key=lambda n: problem.truth(player._asked[n]))
    own = player.recommend()["own"]
    assert problem.truth(own) == problem.truth(player._asked[best])


def test_elsewhere_the_nearest_arm_is_asked():
    pytest.importorskip("optuna")
    points = torch.rand(40, 2, generator=torch.Generator().manual_seed(0)).double()
    points = points * torch.tensor([10.0, 0.1])
    problem = FiniteProblem(points, points[:, 0], 0.1)
    player = OptunaPlayer(problem, "TPESampler", 0)
    low, high = problem.domain.bounds
    for number in range(20):
        point = player.ask()
        suggested = torch.tensor([player._trials[number].params[n] for n in ("x0", "x1")])
        distance = ((points - low) / (high - low) - suggested).norm(dim=1)
        assert int(distance.argmin()) == point.index


def test_optuna_gets_no_constraints():
    pytest.importorskip("optuna")
    domain = BoxDomain(
        torch.tensor([[0.0], [1.0]]).double(), constraints=[([0], [1.0], 0.5)], names=["x"]
    )
    problem = BoxProblem(domain, lambda X: X[:, 0], 1.0, 0.1)
    with pytest.raises(NotSupportedError):
        OptunaPlayer(problem, "TPESampler", 0)


def test_without_optuna_a_hint(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "optuna", None)
    with pytest.raises(MissingExtraError, match="botorch-delay\\[bench\\]"):
        OptunaPlayer(arms(), "TPESampler", 0)


def test_optuna_s_log_is_left_as_it_was():
    optuna = pytest.importorskip("optuna")
    before = optuna.logging.get_verbosity()
    player = OptunaPlayer(arms(), "TPESampler", 0)
    assert player.recommend() == {}
    point = player.ask()
    player.fail(0)
    assert player.recommend() == {}
    assert isinstance(point, Point)
    assert optuna.logging.get_verbosity() == before
