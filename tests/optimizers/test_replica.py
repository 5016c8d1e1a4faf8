"""Optimizers made again from trials and notes, and processes that ask at once."""

import json
import math
import random
from dataclasses import replace

import pytest
import torch
from cases import scattered, se

import botorch_delay as bd
from botorch_delay.exceptions import (
    EmptyDomainError,
    HorizonError,
    InputError,
    NotSupportedError,
    StorageError,
)
from botorch_delay.optimizers import bpe, fitting
from botorch_delay.optimizers.events import Note
from botorch_delay.optimizers.replica import PastTrial, Replica

HORIZON = 40
DONE, RUNNING = bd.TrialState.COMPLETED, bd.TrialState.RUNNING
FAILED, ABANDONED = bd.TrialState.FAILED, bd.TrialState.ABANDONED

FINITE = bd.FiniteDomain(scattered(80))
BOX = bd.BoxDomain(torch.tensor([[0.0, 0.0], [1.0, 1.0]]).double())
GIVEN = {"covar_module": se(), "noise_var": 1e-3}
PLANS = {
    "finite, given": (FINITE, GIVEN),
    "finite, learned": (FINITE, {"maximize": False}),
    "finite, design": (FINITE, GIVEN | {"exploit": None}),
    "finite, bounds that hold": (
        FINITE,
        GIVEN
        | {
            "confidence": bd.RKHSConfidence(2.0, 0.03),
            "evidence": "all",
            "explore_fraction": 0.5,
        },
    ),
    "finite, a delay law": (FINITE, GIVEN | {"exploit": None, "delay": bd.ConstantDelay(3)}),
    "finite, mixed": (FINITE, {"exploit": bd.ThompsonSampling(), "explore_fraction": 0.4}),
    "finite, no horizon": (
        FINITE,
        {"rounds": bd.GeometricRounds(3, 1.5), "explore_fraction": 0.4, "horizon": None},
    ),
    "box, given": (BOX, GIVEN | {"explore_fraction": 0.3, "evidence": "round"}),
    "box, learned": (BOX, {}),
    "box, learned design": (BOX, {"exploit": None}),
    "box, learned, mixed": (BOX, {"explore_fraction": 0.3}),
}


def maker(plan):
    domain, options = PLANS[plan]
    options = dict(options)
    horizon = options.pop("horizon", HORIZON)
    return lambda: bd.BPEDelayOptimizer(domain, horizon, **options)


def value(x):
    return math.sin(7 * x[0].item()) + x[1].item()


def stored(past):
    """As another system has it: through JSON."""
    x = torch.tensor(json.loads(json.dumps(past.x.tolist())), dtype=torch.double)
    note = None if past.note is None else json.loads(json.dumps(past.note))
    return replace(past, x=x, note=note)


class Workers:
    """Four workers, whose trials end in any order and in every way."""

    def __init__(self, seed=0):
        self.rng = random.Random(seed)
        self.store = {}
        self.running = []

    def begin(self, number, asked):
        past = PastTrial(number, asked.trial.x, RUNNING, note=asked.note)
        self.store[number] = stored(past)
        self.running.append(number)

    def some_end(self):
        """Numbers of those that did."""
        ended = []
        while len(self.running) > 3 or (self.running and self.rng.random() < 0.3):
            number = self.running.pop(self.rng.randrange(len(self.running)))
            past, chance = self.store[number], self.rng.random()
            if chance < 0.1:
                past = replace(past, state=FAILED, reason="crashed")
            elif chance < 0.2:
                past = replace(past, state=ABANDONED)
            else:
                noise_var = 1e-3 if chance < 0.5 else None
                past = replace(past, state=DONE, value=value(past.x), noise_var=noise_var)
            self.store[number] = past
            ended.append(number)
        return ended


def carry_over(optimizer, past):
    trial = optimizer.trials[past.number]
    if past.state is DONE:
        optimizer.tell(trial, past.value, past.noise_var)
    elif past.state is FAILED:
        optimizer.mark_failed(trial, past.reason)
    else:
        optimizer.mark_abandoned(trial)


def summary(optimizer):
    """What an optimizer has come to, apart from when it was told."""
    when = ("asked_at", "answered_at", "answered_step")
    trials = [
        {name: value for name, value in t.record().items() if name not in when}
        for t in optimizer.trials
    ]
    progress = optimizer.state_dict()["progress"]
    arrays = {name: array.tolist() for name, array in progress["arrays"].items()}
    return json.dumps([trials, progress["rounds"], progress["values"], arrays])


@pytest.mark.parametrize("plan", PLANS)
def test_an_optimizer_made_again_asks_what_the_live_one_asks(plan):
    make = maker(plan)
    live, kept, workers = make(), Replica(make), Workers()
    for number in range(HORIZON):
        kept.sync(workers.store.values())
        asked = kept.ask(number)
        if number in (3, 17, HORIZON - 1):
            again = Replica(make)
            again.sync(workers.store.values())
            other = again.ask(number)
            assert torch.equal(other.trial.x, asked.trial.x)
            assert json.dumps(other.note) == json.dumps(asked.note)
            assert summary(again.optimizer) == summary(kept.optimizer)
        assert torch.equal(live.ask().x, asked.trial.x)
        workers.begin(number, asked)
        for ended in workers.some_end():
            carry_over(live, workers.store[ended])
    kept.sync(workers.store.values())
    assert summary(live) == summary(kept.optimizer)
    assert len(live.rounds) >= 1
    assert kept.rebuilds == 0


def test_from_trials_goes_on_as_the_live_optimizer():
    kept, workers = Replica(maker("finite, learned")), Workers()
    for number in range(12):
        kept.sync(workers.store.values())
        workers.begin(number, kept.ask(number))
        workers.some_end()
    made = bd.BPEDelayOptimizer.from_trials(
        FINITE, HORIZON, reversed(workers.store.values()), maximize=False
    )
    kept.sync(workers.store.values())
    assert [t.x.tolist() for t in made.ask(3)] == [t.x.tolist() for t in kept.optimizer.ask(3)]


def test_what_is_known_is_not_taken_in_again(monkeypatch):
    """Work grows with what is new: no fit is repeated, no trial entered twice."""
    make, workers = maker("box, learned"), Workers()
    fits, entered = [], []
    fit, enter = fitting.fit_surrogate, bpe.BPEDelayOptimizer.ask_again
    monkeypatch.setattr(fitting, "fit_surrogate", lambda *a, **k: fits.append(1) or fit(*a, **k))
    monkeypatch.setattr(
        bpe.BPEDelayOptimizer, "ask_again", lambda *a: entered.append(1) or enter(*a)
    )
    first, second = Replica(make), Replica(make)
    for number in range(30):
        for replica in (first, second):
            replica.sync(workers.store.values())
        asking = first if number % 2 else second
        before = len(fits)
        workers.begin(number, asking.ask(number))
        if "fit" not in workers.store[number].note and number:
            assert len(fits) == before
        workers.some_end()
    assert len(entered) == 29  # each process what the other asked but the last
    assert sum(map(first.is_settled, range(30))) > 20
    made = len(fits)
    Replica(make).sync(workers.store.values())
    assert len(fits) == made + 1  # the priors of a fresh optimizer


def test_workers_that_ask_at_once_get_different_points():
    for plan in ("finite, design", "finite, learned", "box, learned design", "box, given"):
        make = maker(plan)
        alone = make()
        expected = [t.x.tolist() for t in alone.ask(5)]
        got = [Replica(make).ask(n, before=n).trial.x.tolist() for n in range(5)]
        assert got == expected  # trial n as if those before it had asked already


def test_where_no_point_is_left_for_a_worker_it_gets_the_error():
    few = bd.FiniteDomain(scattered(3))

    def make():
        return bd.BPEDelayOptimizer(few, 10, covar_module=se(), exact=True)

    assert torch.equal(Replica(make).ask(2, before=2).trial.x, make().ask(3)[2].x)
    replica = Replica(make)
    for before, skip in ((3, 0), (0, 3), (2, 2)):
        with pytest.raises(EmptyDomainError, match="exact"):
            replica.ask(0, before, skip)
    assert replica.optimizer.trials == []


def test_a_design_point_waits_for_the_trial_it_was_dealt_to():
    make = maker("finite, design")
    alone = [t.x.tolist() for t in make().ask(5)]
    store = {}

    def ask(number, before):
        replica = Replica(make)
        replica.sync(store.values())
        asked = replica.ask(number, before)
        store[number] = stored(PastTrial(number, asked.trial.x, RUNNING, note=asked.note))
        return asked.trial.x.tolist()

    assert ask(3, before=3) == alone[3]  # it is the fastest
    assert ask(1, before=1) == alone[1]
    assert ask(4, before=2) == alone[4]
    assert ask(0, before=0) == alone[0]
    # Trial 2 has died before it had a point; the next one gets it.
    assert ask(5, before=0) == alone[2]
    replica = Replica(make)
    replica.sync(store.values())
    for number in store:
        replica.sync([replace(store[number], state=DONE, value=value(store[number].x))])
    assert sorted(t.slot for t in replica.optimizer.trials) == [0, 1, 2, 3, 4]
    assert replica.optimizer.round == 1


def two_that_close_at_once(make):
    """A store in which trials 20 and 21 have closed round 1, each with other answers."""
    kept, store = Replica(make), {}
    q = None
    number = 0
    while True:
        kept.sync(store.values())
        asked = kept.ask(number)
        if "openings" in asked.note and number:
            break
        store[number] = stored(PastTrial(number, asked.trial.x, RUNNING, note=asked.note))
        if number > 4:
            store[number - 5] = replace(
                store[number - 5], state=DONE, value=value(store[number - 5].x)
            )
        number += 1
        q = number
    early = dict(store)
    for late in [n for n in store if store[n].state is RUNNING][:2]:
        store[late] = replace(store[late], state=DONE, value=value(store[late].x))
    first, second = Replica(make), Replica(make)
    second.sync(early.values())  # knows less
    first.sync(store.values())
    return q, store, first, second


@pytest.mark.parametrize("plan", ["finite, learned", "box, learned", "box, learned, mixed"])
def test_where_two_open_a_round_at_once_the_lower_number_counts(plan):
    make = maker(plan)
    q, store, first, second = two_that_close_at_once(make)
    higher = second.ask(q + 1)
    lower = first.ask(q)
    assert higher.note["openings"] != lower.note["openings"]
    store[q + 1] = stored(PastTrial(q + 1, higher.trial.x, RUNNING, note=higher.note))
    others = range(q + 2, q + 5)  # asked in the round that does not count
    asked = [second.ask(number) for number in others]
    for number, one in zip(others, asked, strict=True):
        store[number] = stored(PastTrial(number, one.trial.x, RUNNING, note=one.note))
    if "mixed" in plan:
        assert any(one.note["slot"] >= 0 for one in asked)
    both = {**store, q: stored(PastTrial(q, lower.trial.x, RUNNING, note=lower.note))}
    onlooker, late = Replica(make), Replica(make)
    onlooker.sync(both.values())
    late.sync(store.values())  # saw the higher one first
    late.sync(both.values())
    assert late.rebuilds == 1
    second.sync(both.values())
    first.sync(both.values())
    assert first.rebuilds == 0
    records = {json.dumps(summary_of_rounds(r)) for r in (first, second, onlooker, late)}
    assert len(records) == 1
    for replica in (first, second, onlooker, late):
        for number in (q + 1, *others):
            assert replica.trial(number).slot < 0  # its round was another one
        assert replica.trial(q).round == replica.optimizer.round == 2


def summary_of_rounds(replica):
    return replica.optimizer.state_dict()["progress"]["rounds"]


def test_a_point_that_is_changed_is_taken_in_anew():
    make = maker("finite, learned")
    kept = Replica(make)
    asked = [kept.ask(n) for n in range(3)]
    store = {n: PastTrial(n, a.trial.x, RUNNING, note=a.note) for n, a in enumerate(asked)}
    other = Replica(make)
    other.sync(store.values())
    free = next(x for x in FINITE.points if not any(torch.equal(x, p.x) for p in store.values()))
    store[2] = replace(store[2], x=free)
    other.sync(store.values())
    assert other.rebuilds == 1
    assert torch.equal(other.trial(2).x, free)


def test_an_ask_can_be_taken_back():
    kept = Replica(maker("finite, learned"))
    first = kept.ask(0)
    second = kept.ask(1)
    kept.forget(1)
    assert [t.id for t in kept.optimizer.trials] == [0]
    again = kept.ask(1)
    assert torch.equal(again.trial.x, second.trial.x)
    assert not torch.equal(again.trial.x, first.trial.x)
    with pytest.raises(InputError, match="Trial 1 has its point already"):
        kept.ask(1)


def test_results_without_a_note_are_attached_and_others_passed_over():
    kept = Replica(maker("finite, learned"))
    points = FINITE.points
    kept.sync(
        [
            PastTrial(0, points[3], DONE, 1.5),
            PastTrial(1, points[4], FAILED),
            PastTrial(2, points[5], RUNNING),
        ]
    )
    assert [a.index for a in kept.optimizer.attached] == [3]
    asked = [kept.ask(number) for number in (3, 4)]
    assert asked[0].note["openings"][0]["number"] == 1
    kept.sync([PastTrial(2, points[5], DONE, 0.5)])
    assert [a.index for a in kept.optimizer.attached] == [3, 5]


def test_late_answers_are_late_again():
    kept = Replica(maker("finite, design"))
    asked = kept.ask(0)
    past = PastTrial(0, asked.trial.x, ABANDONED, note=asked.note)
    kept.sync([past])
    past = replace(past, state=DONE, value=1.0, late=True)
    kept.sync([past])
    again = Replica(maker("finite, design"))
    again.sync([past])
    for replica in (kept, again):
        assert replica.trial(0).late
        assert replica.trial(0).state is DONE


@pytest.mark.parametrize("field", ["round", "slot"])
def test_notes_of_what_no_run_comes_to_are_refused(field):
    with pytest.raises(StorageError, match="malformed"):
        Note.read({"round": 1, "slot": 0} | {field: 2**70})
    opt = maker("finite, design")()
    opt.ask()
    far = opt.ask_again(FINITE.points[3], Note(1, 2**50))  # at once
    assert far.slot < 0
    opt.tell(far, 0.5)
    assert opt.trials[far.id].value == 0.5


def test_what_does_not_fit_is_refused():
    make = maker("finite, learned")
    kept = Replica(make)
    asked = kept.ask(0)
    past = PastTrial(0, asked.trial.x, RUNNING, note=asked.note)
    with pytest.raises(InputError, match="must be a point of the domain"):
        Replica(make).sync([replace(past, x=past.x + 0.5)])
    with pytest.raises(StorageError, match="note of an ask is malformed"):
        Replica(make).sync([replace(past, note={"round": "one"})])
    note = {k: v for k, v in past.note.items() if k != "openings"}
    with pytest.raises(StorageError, match="opened the first round is missing"):
        Replica(make).sync([replace(past, note=note)])
    opening = {"number": 1, "used": [7]}
    with pytest.raises(StorageError, match="answer of trial 7, which is missing"):
        Replica(make).sync([replace(past, note=past.note | {"openings": [opening]})])
    few = Replica(lambda: bd.BPEDelayOptimizer(FINITE, 2))
    with pytest.raises(HorizonError):
        few.ask(2, before=2)
    domain = bd.FiniteDomain(scattered(10))
    options = GIVEN | {
        "confidence": bd.RKHSConfidence(2.0, 0.03),
        "exploit": bd.WithinBudget(factor=2.0),
    }
    with pytest.raises(NotSupportedError, match="use save and load"):
        bd.BPEDelayOptimizer.from_trials(domain, 20, [past], **options)


def test_a_loaded_state_has_no_notes_of_earlier_asks():
    optimizer = bd.BPEDelayOptimizer(FINITE, 10)
    trial = optimizer.ask()
    other = bd.BPEDelayOptimizer(FINITE, 10)
    other.load_state_dict(optimizer.state_dict())
    with pytest.raises(bd.exceptions.TrialError, match="a state was loaded"):
        other.note(other.trials[0])
    assert optimizer.note(trial).round == 1


@pytest.mark.parametrize("plan", ["finite, design", "box, learned, mixed"])
def test_workers_that_ask_for_the_last_point_at_once_go_beyond_the_horizon(plan):
    """However the trials are taken in: as they were made, or all of them when they have ended."""
    domain, options = PLANS[plan]

    def make():
        return bd.BPEDelayOptimizer(domain, 6, **options)

    one, other, store = Replica(make), Replica(make), {}
    for number in range(5):
        one.sync(store.values())
        asked = one.ask(number)
        store[number] = stored(PastTrial(number, asked.trial.x, RUNNING, note=asked.note))
    other.sync(store.values())
    for number, replica in ((5, one), (6, other)):
        asked = replica.ask(number)
        store[number] = stored(PastTrial(number, asked.trial.x, RUNNING, note=asked.note))
    one.sync(store.values())
    store = {n: replace(past, state=DONE, value=value(past.x)) for n, past in store.items()}
    for replica in (one, Replica(make)):
        replica.sync(store.values())
        assert len(replica.optimizer.trials) == 7
        assert replica.optimizer.pending == []
        replica.optimizer.recommend()
        with pytest.raises(HorizonError):
            replica.ask(7)


def test_noise_variances_count_where_the_answer_is_used():
    """Two processes ask the same design point again at once; the answer of one of them is used."""

    def make():
        valid = {"confidence": bd.RKHSConfidence(2.0, 0.1), "exploit": None}
        return bd.BPEDelayOptimizer(FINITE, 64, **GIVEN, **valid)

    one, other, store = Replica(make), Replica(make), {}

    def ask(replica, number):
        asked = replica.ask(number)
        store[number] = stored(PastTrial(number, asked.trial.x, RUNNING, note=asked.note))

    for number in range(8):  # q_1 = 8
        ask(one, number)
        one.sync(store.values())
    store |= {n: replace(store[n], state=DONE, value=0.1) for n in range(1, 8)}
    store[0] = replace(store[0], state=ABANDONED)
    one.sync(store.values())
    other.sync(store.values())
    ask(one, 8)
    late = other.ask(9)
    store[8] = replace(store[8], state=DONE, value=0.1, noise_var=5e-4)
    one.sync(store.values())
    ask(one, 10)
    store[9] = stored(PastTrial(9, late.trial.x, RUNNING, note=late.note))
    assert store[9].note["slot"] == store[8].note["slot"] == 0
    anew = Replica(make)
    for replica in (one, anew):
        replica.sync(store.values())
        assert replica.optimizer.rounds[0].trial_ids == tuple(range(1, 9))
        assert "a noise variance other than noise_var" in str(replica.optimizer.guarantee)
