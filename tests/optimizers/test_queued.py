import pytest
import torch
from cases import generator, normal, rows_of, scattered, se
from rivals import queued

import botorch_delay as bd
from botorch_delay.benchmarks import FiniteProblem, simulate
from botorch_delay.exceptions import InputError, InputTypeError, NotSupportedError, StorageError
from botorch_delay.optimizers import round_sequence
from botorch_delay.study import format_settled

ARMS = 6
POINTS = scattered(ARMS)
FIXED = {"covar_module": se(), "noise_var": 0.02}


def index_base():
    return bd.AcquisitionOptimizer(bd.FiniteDomain(POINTS), pending=bd.Ignore(), **FIXED)


BASES = {
    "GP-UCB": index_base,
    "TS": lambda: bd.AcquisitionOptimizer(
        bd.FiniteDomain(POINTS), rule=bd.ThompsonSampling(), **FIXED
    ),
    "BPE": lambda: bd.BPEDelayOptimizer(bd.FiniteDomain(POINTS), 60, **FIXED),
    "ThreDS": lambda: bd.ThreDSOptimizer(
        bd.FiniteDomain(POINTS), confidence=bd.FixedBeta(4.0), interval=(-2, 2), **FIXED
    ),
    "random": lambda: bd.RandomOptimizer(bd.FiniteDomain(POINTS)),
}


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize(("seed", "mean_delay"), [(0, 0), (1, 4)])
def test_asks_equal_a_transcription(base, seed, mean_delay):
    asks = 30
    f, noise = normal(ARMS, seed=seed), 0.1 * normal(asks, seed=50 + seed)
    delays = torch.poisson(torch.full((asks,), float(mean_delay)), generator=generator(seed))
    problem = FiniteProblem(POINTS, f, 0.1)
    opt = bd.QueuedOptimizer(BASES[base]())
    played = simulate(opt, problem, None, asks, delays=delays.long(), noise=noise)
    plain = BASES[base]()
    expected = queued(
        lambda: plain.ask().index,
        lambda y: plain.tell(plain.pending[0], y),
        f.numpy(),
        asks=asks,
        delays=delays.numpy(),
        noise=noise.numpy(),
    )
    assert rows_of(played).tolist() == expected


def test_without_delay_it_is_the_base():
    wrapped, plain = bd.QueuedOptimizer(index_base()), index_base()
    for number in range(30):
        a, b = wrapped.ask(), plain.ask()
        assert a.index == b.index
        wrapped.tell(a, 0.1 * (number % 4) + a.x[0].item())
        plain.tell(b, 0.1 * (number % 4) + b.x[0].item())
    assert wrapped.recommend().index == plain.recommend().index
    assert wrapped.recommend().mean == pytest.approx(plain.recommend().mean)


def test_the_base_waits_while_the_queue_is_empty():
    opt = bd.QueuedOptimizer(index_base())
    waiting = opt.ask(5)
    assert len({t.index for t in waiting}) == 1
    opt.tell(waiting[3], 0.5)
    opt.tell(waiting[0], 0.4)
    assert sorted(t.id for queue in opt._queues.values() for t in queue) == [0, 3]
    opt.ask()
    assert len(opt.base.trials) >= 2
    assert opt.base.trials[0].value == 0.4  # of the trial that was asked first


def test_failures_are_passed_on_and_abandoned_trials_are_not():
    opt = bd.QueuedOptimizer(index_base())
    one, two = opt.ask(2)
    opt.mark_abandoned(one)
    assert opt.ask().index == two.index
    opt.mark_failed(two, "crashed")
    opt.ask()
    assert opt.base.trials[0].state is bd.TrialState.FAILED
    assert opt.base.trials[0].reason == "crashed"


def test_the_horizon_is_the_base_s():
    opt = bd.QueuedOptimizer(BASES["BPE"]())
    assert opt.horizon == 60
    for _ in range(60):
        trial = opt.ask()
        opt.tell(trial, trial.x[0].item())
    opt.finish()
    assert opt.base.rounds
    assert not opt.guarantee.holds
    assert "independent points" in opt.guarantee.missing[0]


def test_a_queue_that_does_not_match_is_refused():
    opt = bd.QueuedOptimizer(index_base())
    for _ in range(5):
        trial = opt.ask()
        opt.tell(trial, trial.x[0].item())
    opt.ask()
    state = opt.state_dict()

    def refused(number, change):
        events = list(state["events"])
        data = events[number]["data"] | change
        events[number] = events[number] | {"data": data}
        with pytest.raises(StorageError, match="Stored event"):
            bd.QueuedOptimizer(index_base()).load_state_dict(state | {"events": events})

    calls = [n for n, event in enumerate(state["events"]) if event["kind"] == "base"]
    fed = [n for n in calls if state["events"][n]["data"]["fed"] is not None]
    assert fed
    for change in (
        {"fed": 17},
        {"fed": "none"},
        {"fed": None},
        {"events": []},
        {"events": [{}]},
        {"events": "none"},
    ):
        refused(fed[1], change)
    bd.QueuedOptimizer(index_base()).load_state_dict(state)


def test_loading_plays_nothing_again(monkeypatch):
    """The base's decisions are in the state and are not made again."""
    opt = bd.QueuedOptimizer(BASES["BPE"]())
    for _ in range(20):
        trial = opt.ask()
        opt.tell(trial, trial.x[0].item())
    state, again = opt.state_dict(), bd.QueuedOptimizer(BASES["BPE"]())

    def never(*_):
        raise AssertionError("it decides anew")

    monkeypatch.setattr(bd.BPEDelayOptimizer, "_choose", never)
    monkeypatch.setattr(round_sequence, "close_round", never)
    again.load_state_dict(state)
    monkeypatch.undo()
    assert again.base.rounds == opt.base.rounds
    assert again.ask().index == opt.ask().index


def test_bad_bases():
    with pytest.raises(InputTypeError, match="must be an optimizer"):
        bd.QueuedOptimizer(POINTS)
    with pytest.raises(InputError, match="no second one"):
        bd.QueuedOptimizer(bd.QueuedOptimizer(index_base()))
    finished = index_base()
    finished.finish()
    with pytest.raises(InputError, match="or was finished"):
        bd.QueuedOptimizer(finished)
    used = index_base()
    used.ask()
    with pytest.raises(InputError, match="must be fresh; it has 1 trials"):
        bd.QueuedOptimizer(used)
    box = bd.BoxDomain(torch.tensor([[0.0], [1.0]], dtype=torch.double))
    with pytest.raises(NotSupportedError, match="few independent arms"):
        bd.QueuedOptimizer(bd.RandomOptimizer(box))


def test_the_order_of_answers_between_two_asks_makes_no_difference():
    told = []
    for order in (1, -1):
        opt = bd.QueuedOptimizer(index_base())
        trials = opt.ask(3)  # all of the same arm
        for trial in trials[::order]:
            opt.tell(trial, (-1.0, 2.0, 0.0)[trial.id])
        opt.ask()
        told.append([trial.value for trial in opt.base.trials[:1]])
    assert told == [[-1.0], [-1.0]]


def test_failures_are_counted_by_point():
    opt = bd.QueuedOptimizer(bd.RandomOptimizer(bd.FiniteDomain(POINTS[:1])))
    first, *others = opt.ask(3)
    for trial in (first, *others):
        opt.mark_failed(trial)
    assert "failed 3 times" in format_settled(opt, others[-1])
