import pytest
import torch
from cases import normal, scattered, se

import botorch_delay as bd
from botorch_delay.benchmarks import FiniteProblem, paper_problem, simulate
from botorch_delay.exceptions import HorizonError, InputError, InputTypeError

PROBLEM = FiniteProblem(scattered(30), normal(30), 0.1)


def make(horizon=50, **options):
    options = {"covar_module": se(), "noise_var": 0.01} | options
    return bd.BPEDelayOptimizer(PROBLEM.domain, horizon, **options)


class Spy:
    """Records what an optimizer is told and when."""

    def __init__(self, optimizer):
        self._optimizer = optimizer
        self.known = []  # ids told before each ask
        self._told = set()

    def __getattr__(self, name):
        return getattr(self._optimizer, name)

    def ask(self):
        self.known.append(set(self._told))
        return self._optimizer.ask()

    def tell(self, trial, y):
        self._told.add(trial)
        self._optimizer.tell(trial, y)


def test_answers_are_told_when_they_are_due():
    delays = bd.GeometricDelay(mean=3.0).sample(40, torch.Generator().manual_seed(0))
    spy = Spy(make())
    history = simulate(spy, PROBLEM, None, 40, delays=delays)
    for step, known in enumerate(spy.known, start=1):
        # Step s with delay tau can be used by every decision after step s + tau.
        assert known == {s - 1 for s in range(1, step) if s + delays[s - 1] < step}
    assert history.told == sum(s + int(delays[s - 1]) <= 40 for s in range(1, 41))


def test_no_delay_means_before_the_next_ask():
    spy = Spy(make())
    simulate(spy, PROBLEM, bd.NoDelay(), 10)
    assert spy.known == [set(range(n)) for n in range(10)]


def test_regret_is_charged_at_the_ask_without_noise():
    history = simulate(make(), PROBLEM, bd.PoissonDelay(3.0), 50, seed=4)
    expected = (PROBLEM.values.max() - PROBLEM.values)[history.index].cumsum(0)
    assert torch.equal(history.regret, expected)
    assert history.regret.shape == (50,)
    assert (history.value - PROBLEM.values[history.index]).std() == pytest.approx(0.1, rel=0.4)


def test_the_same_seed_means_the_same_noise_and_delays_for_everyone():
    one = simulate(make(), PROBLEM, bd.PoissonDelay(3.0), 50, seed=4)
    two = simulate(make(covar_module=se(0.1)), PROBLEM, bd.PoissonDelay(3.0), 50, seed=4)
    other_law = simulate(make(), PROBLEM, bd.NoDelay(), 50, seed=4)
    other_seed = simulate(make(), PROBLEM, bd.PoissonDelay(3.0), 50, seed=5)
    assert not torch.equal(one.index, two.index)
    assert torch.equal(one.delay, two.delay)

    def noise(history):
        return history.value - PROBLEM.values[history.index]

    torch.testing.assert_close(noise(one), noise(two))
    torch.testing.assert_close(noise(one), noise(other_law))
    assert not torch.equal(one.delay, other_seed.delay)
    assert (noise(one) - noise(other_seed)).abs().max() > 0.01
    assert torch.equal(one.index, simulate(make(), PROBLEM, bd.PoissonDelay(3.0), 50, 4).index)


def test_the_run_is_finished_with_the_horizon_and_not_before():
    opt = make(50)
    simulate(opt, PROBLEM, bd.ConstantDelay(100), 50)
    assert sum(r.length for r in opt.rounds) == 50
    opt = make(50)
    simulate(opt, PROBLEM, bd.NoDelay(), 20)
    assert len(opt.ask(30)) == 30


def test_what_a_law_samples_is_checked():
    class Odd(bd.DelayLaw):
        mean = 1.0

        def sample(self, n, generator):
            return torch.full((n,), -2)

        def quantile(self, p):
            return -3.0

    with pytest.raises(InputError, match="at least 0"):
        simulate(make(), PROBLEM, Odd(), 10)
    with pytest.raises(InputError, match=r"quantile must give steps"):
        make(delay=Odd())


def test_minimising_counts_from_the_smallest():
    history = simulate(make(maximize=False), PROBLEM, bd.NoDelay(), 50)
    expected = (PROBLEM.values - PROBLEM.values.min())[history.index].cumsum(0)
    assert torch.equal(history.regret, expected)


def test_a_thousand_steps_of_the_paper_s_problem():
    problem = paper_problem(0.8)
    opt = bd.BPEDelayOptimizer.as_published(
        problem.domain,
        1000,
        covar_module=problem.covar_module,
        noise_var=problem.noise_var,
        confidence=bd.FixedBeta(6.0),
        delay=bd.PoissonDelay(50.0),
    )
    history = simulate(opt, problem, bd.PoissonDelay(50.0), 1000)
    # Far below uniform asking, and most of it paid in the first round.
    assert history.regret[-1] < 0.5 * 1000 * problem.regret().mean()
    assert opt.recommend().index == int(problem.values.argmax())


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"steps": 0}, InputError),
        ({"delay": 5}, InputTypeError),
        ({"delay": None}, InputTypeError),
        ({"delays": torch.zeros(3)}, InputError),
        ({"delays": -torch.ones(20)}, InputError),
        ({"delays": torch.full((20,), torch.inf)}, InputError),
        ({"noise": torch.zeros(3)}, InputError),
        ({"noise": [0.0] * 20}, InputError),
        ({"delays": "soon"}, InputTypeError),
        ({"seed": 2**64}, InputError),
        ({"noise": torch.full((20,), torch.nan)}, InputError),
        ({"seed": -1}, InputError),
        ({"steps": 51}, HorizonError),
        ({"problem": FiniteProblem(scattered(30, seed=1), normal(30), 0.1)}, InputError),
    ],
)
def test_bad_arguments(change, error):
    arguments = {"problem": PROBLEM, "delay": bd.NoDelay(), "steps": 20} | change
    opt = make()
    with pytest.raises(error):
        simulate(opt, **arguments)
    assert opt.trials == []
