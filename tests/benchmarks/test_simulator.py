from types import SimpleNamespace

import pytest
import torch
from cases import normal, rows_of, scattered, se

import botorch_delay as bd
from botorch_delay import BoxDomain, ConstantDelay, NoDelay, RandomOptimizer
from botorch_delay.benchmarks import (
    BoxProblem,
    Clock,
    FiniteProblem,
    paper_problem,
    simulate,
)
from botorch_delay.benchmarks.functions import gp_draw
from botorch_delay.exceptions import HorizonError, InputError, InputTypeError, NoAnswerError

PROBLEM = FiniteProblem(scattered(30), normal(30), 0.1)


def make(horizon=50, **options):
    options = {"covar_module": se(), "noise_var": 0.01} | options
    return bd.BPEDelayOptimizer(PROBLEM.domain, horizon, **options)


def values_of(history):
    return torch.tensor([ask.value for ask in history.asks], dtype=torch.double)


def told(history):
    return sum(ask.seconds_tell is not None for ask in history.asks)


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


def waits_of(history):
    return history.delay.tolist()


def test_answers_are_told_when_they_are_due():
    delays = bd.GeometricDelay(mean=3.0).sample(40, torch.Generator().manual_seed(0))
    spy = Spy(make())
    history = simulate(spy, PROBLEM, None, 40, delays=delays)
    for step, known in enumerate(spy.known, start=1):
        # Step s with delay tau can be used by every decision after step s + tau.
        assert known == {s - 1 for s in range(1, step) if s + delays[s - 1] < step}
    assert told(history) == sum(s + int(delays[s - 1]) <= 40 for s in range(1, 41))


def test_no_delay_means_before_the_next_ask():
    spy = Spy(make())
    simulate(spy, PROBLEM, bd.NoDelay(), 10)
    assert spy.known == [set(range(n)) for n in range(10)]


def test_regret_is_charged_at_the_ask_without_noise():
    history = simulate(make(), PROBLEM, bd.PoissonDelay(3.0), 50, seed=4)
    expected = (PROBLEM.values.max() - PROBLEM.values)[rows_of(history)].cumsum(0)
    assert torch.equal(history.regret, expected)
    assert history.regret.shape == (50,)
    assert (values_of(history) - PROBLEM.values[rows_of(history)]).std() == pytest.approx(
        0.1, rel=0.4
    )


def test_the_same_seed_means_the_same_noise_and_delays_for_everyone():
    one = simulate(make(), PROBLEM, bd.PoissonDelay(3.0), 50, seed=4)
    two = simulate(make(covar_module=se(0.1)), PROBLEM, bd.PoissonDelay(3.0), 50, seed=4)
    other_law = simulate(make(), PROBLEM, bd.NoDelay(), 50, seed=4)
    other_seed = simulate(make(), PROBLEM, bd.PoissonDelay(3.0), 50, seed=5)
    assert not torch.equal(rows_of(one), rows_of(two))
    assert waits_of(one) == waits_of(two)

    def noise(history):
        return values_of(history) - PROBLEM.values[rows_of(history)]

    torch.testing.assert_close(noise(one), noise(two))
    torch.testing.assert_close(noise(one), noise(other_law))
    assert waits_of(one) != waits_of(other_seed)
    assert (noise(one) - noise(other_seed)).abs().max() > 0.01
    assert torch.equal(
        rows_of(one), rows_of(simulate(make(), PROBLEM, bd.PoissonDelay(3.0), 50, 4))
    )


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
    with pytest.raises(InputError, match=r"quantile must be at least 0, got -3.0"):
        make(delay=Odd())


def test_minimising_counts_from_the_smallest():
    history = simulate(make(maximize=False), PROBLEM, bd.NoDelay(), 50)
    expected = (PROBLEM.values - PROBLEM.values.min())[rows_of(history)].cumsum(0)
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
    # Far below the regret of uniform asking, and most of it is from the first round.
    assert history.regret[-1] < 0.5 * 1000 * (problem.highest - problem.values).mean()
    assert opt.recommend().index == int(problem.values.argmax())


def line(n=6):
    x = torch.arange(n, dtype=torch.double)
    return FiniteProblem(x.unsqueeze(-1), x, 0.0)


class Scripted:
    """Asks planned rows, keeps what it is told, recommends the last answered row."""

    def __init__(self, problem, rows):
        self.problem, self.rows = problem, list(rows)
        self.log = []

    def ask(self):
        number = len([what for what, _ in self.log if what == "ask"])
        self.log.append(("ask", number))
        return self._point(number)

    def tell(self, trial, y):
        self.log.append(("tell", trial))

    def recommend(self):
        told = [number for what, number in self.log if what == "tell"]
        if not told:
            raise NoAnswerError
        return self._point(told[-1])

    def _point(self, number):
        row = self.rows[number]
        return SimpleNamespace(id=number, x=self.problem.points[row], index=row)


class Planned(Clock):
    """Waits as they are planned."""

    def __init__(self, waits, workers=None, together=False):
        super().__init__(NoDelay() if workers is None else None, workers, together)
        object.__setattr__(self, "plan", waits)

    def draw(self, steps, seed):
        return self.plan


def test_workers_ask_when_one_is_free():
    problem = line()
    sampler = Scripted(problem, [0, 1, 2, 3, 4])
    run = simulate(
        sampler, problem, Planned([5.0, 2.0, 1.0, 9.0, 1.0], workers=2), 5, recommend_every=5
    )
    # 0 runs 0-5, 1 runs 0-2, 2 runs 2-3, 3 runs 3-12, 4 runs 5-6
    assert [ask.time for ask in run.asks] == [0.0, 0.0, 2.0, 3.0, 5.0]
    assert [ask.time + ask.wait for ask in run.asks] == [5.0, 2.0, 3.0, 12.0, 6.0]
    assert sampler.log == [
        ("ask", 0),
        ("ask", 1),
        ("tell", 1),
        ("ask", 2),
        ("tell", 2),
        ("ask", 3),
        ("tell", 0),
        ("ask", 4),
        ("tell", 4),
        ("tell", 3),
    ]
    assert told(run) == 5
    assert run.recommendations[-1].time == 12.0
    assert run.recommendations[-1].regret == 2.0  # row 3 of 0 to 5


def test_workers_that_wait_for_each_other_ask_in_batches():
    sampler = Scripted(line(), [0, 1, 2, 3])
    clock = Planned([5.0, 2.0, 1.0, 9.0], workers=2, together=True)
    run = simulate(sampler, line(), clock, 4, recommend_every=4)
    assert [ask.time for ask in run.asks] == [0.0, 0.0, 5.0, 5.0]
    assert [what for what, _ in sampler.log] == ["ask", "ask", "tell", "tell"] * 2
    assert run.recommendations[-1].time == 14.0


def test_workers_that_end_together_are_told_before_the_next_ask():
    sampler = Scripted(line(), [0, 1, 2, 3])
    simulate(sampler, line(), Planned([1.0] * 4, workers=2), 4, 0)
    assert [what for what, _ in sampler.log] == ["ask", "ask", "tell", "tell"] * 2


def test_at_most_so_many_are_out_as_there_are_workers():
    problem = gp_draw("se", 0.2, 1)
    run = simulate(RandomOptimizer(problem.domain), problem, Clock(workers=3), 30, 0)
    for ask in run.asks:
        running = [a for a in run.asks if a.time <= ask.time < a.time + a.wait]
        assert len(running) <= 3
    assert max(ask.time for ask in run.asks) < max(ask.time + ask.wait for ask in run.asks)


def test_workers_take_the_problem_s_time():
    class Timed(FiniteProblem):
        def observe(self, point, normal, uniform):
            return self.evaluate_true(point), 12.5

    problem = Timed(line().points, line().values, 0.0)
    run = simulate(Scripted(problem, [0, 1]), problem, Clock(workers=1), 2)
    assert waits_of(run) == [12.5, 12.5]
    assert [ask.time for ask in run.asks] == [0.0, 12.5]
    steps = simulate(Scripted(problem, [0, 1]), problem, ConstantDelay(3), 2)
    assert waits_of(steps) == [3, 3]


def test_repeats_of_pending_points_are_counted():
    run = simulate(Scripted(line(), [0, 0, 1, 0, 0]), line(), ConstantDelay(2), 5, 0)
    # Row 0 is told before the asks 4 (from 1) and 5; the fourth ask is pending at the fifth.
    assert [ask.repeat for ask in run.asks] == [False, True, False, True, True]
    run = simulate(Scripted(line(), [0, 0, 1]), line(), NoDelay(), 3, 0)
    assert not any(ask.repeat for ask in run.asks)


def test_an_oracle_waits_for_nothing():
    sampler = Scripted(line(), [0, 0])
    run = simulate(sampler, line(), Planned([50, 50]), 2, 0, instant=True)
    assert sampler.log == [("ask", 0), ("tell", 0), ("ask", 1), ("tell", 1)]
    assert not any(ask.repeat for ask in run.asks)
    # Its workers stay busy all the same: time passes as for other methods.
    run = simulate(
        Scripted(line(), [0, 1, 2]), line(), Planned([4.0, 2.0, 1.0], workers=1), 3, 0, instant=True
    )
    assert [ask.time for ask in run.asks] == [0.0, 4.0, 6.0]


def test_when_points_are_recommended():
    sampler = Scripted(line(), [1, 2, 3, 4, 5])
    run = simulate(sampler, line(), ConstantDelay(1), 5, 0, recommend_every=2)
    # Before any answer the first point that was asked counts.
    shown = [(found.asks, found.time, found.point) for found in run.recommendations]
    assert shown == [(2, 1.0, 1), (4, 3.0, 2), (5, 5.0, 4)]
    assert [found.regret for found in run.recommendations] == [4.0, 3.0, 1.0]
    assert simulate(Scripted(line(), [1]), line(), NoDelay(), 1).recommendations == []


def test_points_of_a_box_are_written_in_full():
    box = BoxDomain(torch.tensor([[0.0, 0.0], [1.0, 1.0]]).double())
    problem = BoxProblem(box, lambda X: X.sum(dim=1), 2.0, 0.1)
    run = simulate(RandomOptimizer(box, seed=2), problem, Clock(workers=2), 4, 0)
    again = RandomOptimizer(box, seed=2).ask(4)
    for ask, trial in zip(run.asks, again, strict=True):
        assert list(ask.point) == trial.x.tolist()
        assert ask.regret == pytest.approx(2.0 - trial.x.sum().item())


def test_what_beats_the_best_known_value_has_no_regret():
    """Trainings only know the smallest loss that a search has found, which a run may beat."""
    box = BoxDomain(torch.tensor([[0.0, 0.0], [1.0, 1.0]]).double())
    problem = BoxProblem(box, lambda X: X.sum(dim=1), 1.0, 0.1, spread=(0.0, 0.4))
    run = simulate(RandomOptimizer(box, seed=2), problem, Clock(workers=2), 12, recommend_every=12)
    sums = [sum(ask.point) for ask in run.asks]
    assert min(sums) < 1.0 < max(sums)
    assert [ask.regret for ask in run.asks] == pytest.approx([max(1.0 - s, 0.0) for s in sums])
    assert run.recommendations[-1].regret == 0.0


def test_a_law_is_a_clock_of_steps():
    one = simulate(make(), PROBLEM, bd.PoissonDelay(6.0), 30, seed=5)
    two = simulate(make(), PROBLEM, Clock(bd.PoissonDelay(6.0)), 30, seed=5)
    assert rows_of(one).tolist() == rows_of(two).tolist()
    assert told(one) == told(two) < 30


def test_the_minimum_of_a_box_is_not_known():
    box = BoxDomain(torch.tensor([[0.0], [1.0]]).double())
    problem = BoxProblem(box, lambda X: X.sum(dim=1), 1.0, 0.1)
    with pytest.raises(InputError, match="negate it"):
        simulate(RandomOptimizer(box, maximize=False), problem, NoDelay(), 3)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"steps": 0}, InputError),
        ({"delay": 5}, InputTypeError),
        ({"recommend_every": 0}, InputError),
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


def test_a_value_far_from_all_others_is_no_slip():
    values = torch.cat([0.01 * normal(29), torch.tensor([90.0], dtype=torch.double)])
    problem = FiniteProblem(scattered(30), values, 0.0)
    history = simulate(RandomOptimizer(problem.domain, exact=True), problem, NoDelay(), 30)
    assert values_of(history).max() == 90.0  # a warning would be an error here


def test_own_processor_time_passes_on_the_clock(monkeypatch):
    ticks = iter(range(10**6))
    monkeypatch.setattr("botorch_delay.benchmarks.simulator.time.process_time", lambda: next(ticks))
    clock = Clock(workers=2, mean=10.0)
    made = RandomOptimizer(PROBLEM.domain, horizon=8)
    history = simulate(made, PROBLEM, clock, 8, own_time=True)
    asks = history.asks
    assert [ask.seconds_ask for ask in asks] == [asks[0].seconds_ask] * 8
    took = asks[0].seconds_ask
    assert took >= 1.0
    assert asks[1].time == asks[0].time + took  # the optimizer makes one ask at a time
    free = min(ask.time + ask.wait for ask in asks[:2])
    assert asks[2].time >= free + 2 * took  # after a tell and an ask
    assert 0.0 < history.utilization(2) < 1.0
    free_of_charge = simulate(RandomOptimizer(PROBLEM.domain, horizon=8), PROBLEM, clock, 8)
    assert free_of_charge.utilization(2) == pytest.approx(1.0)
    assert free_of_charge.asks[0].wait == asks[0].wait


def test_a_simulation_ends_where_processor_time_does(monkeypatch):
    ticks = iter(range(10**6))
    monkeypatch.setattr("botorch_delay.benchmarks.simulator.time.process_time", lambda: next(ticks))
    options = {"own_time": True, "most_seconds": 40.0, "recommend_every": 100}
    made = RandomOptimizer(PROBLEM.domain, horizon=100)
    history = simulate(made, PROBLEM, Clock(workers=2), 100, **options)
    assert 2 < len(history.asks) < 40
    assert told(history) == len(history.asks)
    made = RandomOptimizer(PROBLEM.domain, horizon=100)
    history = simulate(made, PROBLEM, ConstantDelay(3), 100, **options)
    assert 3 < len(history.asks) < 40
    assert told(history) == len(history.asks) - 3  # no step passes once nothing is asked
    assert history.recommendations[-1].time == len(history.asks)


def test_durations_have_the_mean_that_is_asked_for():
    waits = Clock(workers=2, mean=60.0).draw(20_000, 0)
    assert sum(waits) / len(waits) == pytest.approx(60.0, rel=0.05)
    with pytest.raises(InputError):
        Clock(workers=2, mean=0.0)
    with pytest.raises(InputError, match="a law has its own mean"):
        Clock(bd.PoissonDelay(6.0), mean=60.0)
