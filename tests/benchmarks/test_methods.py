from functools import cache, partial

import pytest
import torch
from small_problems import arms, box

from botorch_delay.benchmarks import METHODS, Clock, paper_problem, simulate
from botorch_delay.benchmarks.functions import gp_draw
from botorch_delay.delays import PoissonDelay
from botorch_delay.exceptions import MissingExtraError

pytestmark = pytest.mark.usefixtures("small_searches")

STEPS = 6  # enough answers for what learns a kernel to fit it
CLOCK = Clock(PoissonDelay(1.0))


PROBLEMS = {"kernel": partial(paper_problem, 1.0, 0, side=8), "arms": arms, "box": box}
made = cache(lambda kind: PROBLEMS[kind]())


@pytest.mark.parametrize("kind", PROBLEMS)
@pytest.mark.parametrize("name", METHODS)
def test_every_method_can_be_simulated(name, kind):
    method = METHODS[name]
    try:
        method.check_installed()
    except MissingExtraError as error:
        pytest.skip(str(error))
    problem = made(kind)
    if not method.applies(problem, CLOCK):
        assert ({"kernel", "norm"} & set(method.needs) and kind in ("arms", "box")) or (
            "set" in method.needs and kind == "box"
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
    assert asked[0] == asked[-1]  # the seed alone decides, no global generator
    assert len(asked[0]) == STEPS
    assert all(found.regret >= 0 for found in runs[0].recommendations)


def test_the_factor_is_the_one_that_the_guarantee_claims():
    problem = paper_problem(1.0, side=8)
    optimizer = METHODS["bpe-delay-budget-1.25"].make(problem, CLOCK, 12, 0)
    assert "1.25" in str(optimizer.guarantee)


def test_methods_that_need_a_law():
    published = METHODS["bpe-delay-published"]
    assert published.applies(PROBLEMS["kernel"](), CLOCK)
    assert not published.applies(PROBLEMS["kernel"](), Clock(workers=4))


@pytest.mark.filterwarnings("ignore::linear_operator.utils.warnings.NumericalWarning")
def test_the_screened_acquisition_finds_the_largest_value():
    from botorch.acquisition.logei import qLogNoisyExpectedImprovement

    from botorch_delay import DelayedGP
    from botorch_delay.benchmarks.methods import screened_qlognei

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


def test_labels_are_their_own():
    assert len({method.label for method in METHODS.values()}) == len(METHODS)
