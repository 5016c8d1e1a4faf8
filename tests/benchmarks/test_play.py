import numpy as np
import pytest
import torch

from botorch_delay import (
    AcquisitionOptimizer,
    BoxDomain,
    ConstantDelay,
    NoDelay,
    PoissonDelay,
    RandomOptimizer,
)
from botorch_delay.benchmarks import (
    BoxProblem,
    FiniteProblem,
    LibraryPlayer,
    Player,
    StepClock,
    WorkerClock,
    simulate,
)
from botorch_delay.benchmarks.clocks import Clock, Fate, Outcome
from botorch_delay.benchmarks.functions import gp_draw
from botorch_delay.benchmarks.play import play
from botorch_delay.benchmarks.problems import Point
from botorch_delay.exceptions import InputError


def line(n=6):
    x = torch.arange(n, dtype=torch.double)
    return FiniteProblem(x.unsqueeze(-1), x, 0.0)


class Scripted(Player):
    """Asks given rows, keeps what it is told, recommends the last answered row."""

    def __init__(self, problem, rows):
        self.problem, self.rows = problem, list(rows)
        self.asked, self.log = 0, []

    def ask(self):
        row = self.rows[self.asked]
        self.log.append(("ask", self.asked))
        self.asked += 1
        return Point(self.problem.points[row], row)

    def tell(self, number, value):
        self.log.append(("tell", number))

    def fail(self, number):
        self.log.append(("fail", number))

    def recommend(self):
        told = [number for what, number in self.log if what == "tell"]
        if not told:
            return {}
        row = self.rows[told[-1]]
        return {"own": Point(self.problem.points[row], row)}


class Given(Clock):
    """Waits and fates as they are given."""

    def __init__(self, waits, workers=None, fates=None):
        self.waits, self.workers = waits, workers
        self.fates = fates or [Fate.ANSWERED] * len(waits)

    def outcomes(self, steps, seed):
        return lambda number, height, duration: Outcome(self.waits[number], self.fates[number])


@pytest.mark.parametrize("law", [NoDelay(), PoissonDelay(6.0)])
def test_steps_are_those_of_simulate(law):
    problem = gp_draw("se", 0.2, 1)

    def optimizer():
        return AcquisitionOptimizer(problem.domain, horizon=40, **problem.given)

    history = simulate(optimizer(), problem, law, 40, seed=5)
    record = play(LibraryPlayer(optimizer()), problem, StepClock(law), 40, 5)
    assert [int(ask.point) for ask in record.asks] == history.index.tolist()
    assert [ask.value for ask in record.asks] == history.value.tolist()
    np.testing.assert_allclose(np.cumsum([ask.regret for ask in record.asks]), history.regret)
    assert sum(ask.state == "answered" for ask in record.asks) == history.told


def test_workers_ask_when_one_is_free():
    problem = line()
    player = Scripted(problem, [0, 1, 2, 3, 4])
    record = play(player, problem, Given([5.0, 2.0, 1.0, 9.0, 1.0], workers=2), 5, 0)
    # 0 runs 0-5, 1 runs 0-2, 2 runs 2-3, 3 runs 3-12, 4 runs 5-6
    assert [ask.time for ask in record.asks] == [0.0, 0.0, 2.0, 3.0, 5.0]
    assert [ask.ended for ask in record.asks] == [5.0, 2.0, 3.0, 12.0, 6.0]
    assert player.log == [
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
    assert record.advice[-1].time == 12.0
    assert record.advice[-1].answers == 5
    assert record.advice[-1].regret == 2.0  # row 3 of 0 to 5


def test_workers_that_end_together_are_told_before_the_next_ask():
    player = Scripted(line(), [0, 1, 2, 3])
    play(player, line(), Given([1.0] * 4, workers=2), 4, 0)
    assert [what for what, _ in player.log] == ["ask", "ask", "tell", "tell"] * 2


def test_at_most_so_many_are_out_as_there_are_workers():
    problem = gp_draw("se", 0.2, 1)
    record = play(LibraryPlayer(RandomOptimizer(problem.domain)), problem, WorkerClock(3), 30, 0)
    for ask in record.asks:
        running = [a for a in record.asks if a.time <= ask.time < a.ended]
        assert len(running) <= 3
    assert max(ask.time for ask in record.asks) < max(ask.ended for ask in record.asks)


def test_what_is_lost_is_never_told_and_what_fails_is_told_so():
    fates = [Fate.LOST, Fate.FAILED, Fate.ANSWERED, Fate.ANSWERED]
    player = Scripted(line(), [0, 1, 2, 3])
    record = play(player, line(), Given([0, 0, 0, 9], fates=fates), 4, 0)
    assert [(w, n) for w, n in player.log if w != "ask"] == [("fail", 1), ("tell", 2)]
    assert [ask.state for ask in record.asks] == ["lost", "failed", "answered", "pending"]
    assert [ask.ended for ask in record.asks] == [None, 2.0, 3.0, None]
    assert record.asks[0].seconds_tell is None


def test_repeats_of_pending_points_are_counted():
    record = play(Scripted(line(), [0, 0, 1, 0, 0]), line(), StepClock(ConstantDelay(2)), 5, 0)
    # Row 0 is told before the asks 4 (from 1) and 5; the fourth ask is pending at the fifth.
    assert [ask.repeat for ask in record.asks] == [False, True, False, True, True]
    record = play(Scripted(line(), [0, 0, 1]), line(), StepClock(NoDelay()), 3, 0)
    assert not any(ask.repeat for ask in record.asks)


def test_an_oracle_waits_for_nothing():
    fates = [Fate.LOST, Fate.FAILED, Fate.ANSWERED]
    player = Scripted(line(), [0, 0, 0])
    record = play(player, line(), Given([50, 50, 50], fates=fates), 3, 0, instant=True)
    assert player.log == [
        ("ask", 0),
        ("tell", 0),
        ("ask", 1),
        ("fail", 1),
        ("ask", 2),
        ("tell", 2),
    ]
    assert not any(ask.repeat for ask in record.asks)
    # Its workers stay busy: time passes as for the others.
    record = play(
        Scripted(line(), [0, 1, 2]), line(), Given([4.0, 2.0, 1.0], workers=1), 3, 0, instant=True
    )
    assert [ask.time for ask in record.asks] == [0.0, 4.0, 6.0]


def test_when_points_are_recommended():
    player = Scripted(line(), [1, 2, 3, 4, 5])
    record = play(player, line(), StepClock(ConstantDelay(1)), 5, 0, every=2)
    # Before any answer the first point that was asked counts.
    shown = [(advice.asks, advice.time, advice.point) for advice in record.advice]
    assert shown == [(2, 1.0, "1"), (4, 3.0, "2"), (5, 5.0, "4")]
    assert [advice.regret for advice in record.advice] == [4.0, 3.0, 1.0]


def test_points_of_a_box_are_written_in_full():
    box = BoxDomain(torch.tensor([[0.0, 0.0], [1.0, 1.0]]).double())
    problem = BoxProblem(box, lambda X: X.sum(dim=1), 2.0, 0.1)
    record = play(LibraryPlayer(RandomOptimizer(box, seed=2)), problem, WorkerClock(2), 4, 0)
    again = RandomOptimizer(box, seed=2).ask(4)
    for ask, trial in zip(record.asks, again, strict=True):
        assert [float(number) for number in ask.point.split()] == trial.x.tolist()
        assert ask.regret == pytest.approx(2.0 - trial.x.sum().item())


def test_bad_arguments():
    for change in ({"steps": 0}, {"every": 0}, {"seed": -1}):
        arguments = {"steps": 3, "every": 1, "seed": 0} | change
        with pytest.raises(InputError):
            play(Scripted(line(), [0] * 3), line(), StepClock(NoDelay()), **arguments)
