"""Optimizers rebuilt from trials and their records, and processes that ask at once."""

import dataclasses
import json
import math
import random
from dataclasses import replace

import pytest
import torch
from cases import record, scattered, se
from scale import some

import botorch_delay as bd
from botorch_delay.exceptions import (
    EmptyDomainError,
    HorizonError,
    InputError,
    NotSupportedError,
    StorageError,
)
from botorch_delay.optimizers import bpe, run
from botorch_delay.optimizers.replica import PastTrial, Replica

HORIZON = 24
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
            "confidence": bd.RKHSConfidence(20.0, 0.04),
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
    """A trial as another system stores it: through JSON."""
    x = torch.tensor(json.loads(json.dumps(past.x.tolist())), dtype=torch.double)
    record = None if past.record is None else json.loads(json.dumps(past.record))
    return replace(past, x=x, record=record)


def kinds(record):
    """The kinds of the events that an ask recorded."""
    return [event["kind"] for event in record["events"]]


class Workers:
    """Four workers, whose trials end in any order and in every way; lost ones may come back."""

    def __init__(self, seed=0):
        self.rng = random.Random(seed)
        self.store = {}
        self.running = []
        self.lost = []

    def begin(self, number, asked):
        past = PastTrial(number, asked.trial.x, RUNNING, record=asked.record)
        self.store[number] = stored(past)
        self.running.append(number)

    def some_end(self):
        """End some trials; returns their numbers."""
        ended = [n for n in self.lost if self.rng.random() < 0.3]
        for number in ended:
            past = self.store[number]
            self.store[number] = replace(past, state=DONE, value=value(past.x))
            self.lost.remove(number)
        while len(self.running) > 3 or (self.running and self.rng.random() < 0.3):
            number = self.running.pop(self.rng.randrange(len(self.running)))
            past, chance = self.store[number], self.rng.random()
            if chance < 0.1:
                past = replace(past, state=FAILED, reason="crashed")
            elif chance < 0.2:
                past = replace(past, state=ABANDONED)
                self.lost.append(number)
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
    """The trials and decisions of an optimizer, without the times."""
    when = ("asked_at", "told_at")
    trials = [
        {name: value for name, value in record(t).items() if name not in when}
        for t in optimizer.trials
    ]
    decided = [
        event.record() | {"time": 0.0}
        for event in optimizer._ledger.events()
        if event.kind in ("fitted", "opened", "closed", "reset")
    ]
    claimed = dataclasses.asdict(optimizer.guarantee)
    return json.dumps([trials, decided, claimed], default=str)


def timeless(record):
    events = [event | {"time": 0.0} for event in record["events"]]
    return json.dumps(record | {"events": events})


LONGEST = "box, learned, mixed"  # takes as long as all others together


@pytest.mark.parametrize(
    "plan",
    [pytest.param(p, marks=pytest.mark.heavy) if p == LONGEST else p for p in PLANS],
)
def test_an_optimizer_made_again_asks_what_the_live_one_asks(plan):
    make = maker(plan)
    live, kept, workers = make(), Replica(make), Workers()
    first = kept.optimizer
    for number in range(HORIZON):
        kept.sync(workers.store.values())
        asked = kept.ask(number)
        if number in (3, 11, HORIZON - 1):
            again = Replica(make)
            again.sync(workers.store.values())
            other = again.ask(number)
            assert torch.equal(other.trial.x, asked.trial.x)
            assert timeless(other.record) == timeless(asked.record)
            assert summary(again.optimizer) == summary(kept.optimizer)
        assert torch.equal(live.ask().x, asked.trial.x)
        workers.begin(number, asked)
        for ended in workers.some_end():
            carry_over(live, workers.store[ended])
    kept.sync(workers.store.values())
    assert summary(live) == summary(kept.optimizer)
    assert len(live.rounds) >= 1
    assert kept.optimizer is first  # it was never built anew


def test_a_late_answer_serves_no_slot_in_a_process_that_never_saw_its_trial_lost():
    make = maker("finite, design")
    first, second, store = Replica(make), Replica(make), {}

    def ask(number):
        first.sync(store.values())
        asked = first.ask(number)
        store[number] = stored(PastTrial(number, asked.trial.x, RUNNING, record=asked.record))

    ask(0)
    ask(1)
    second.sync(store.values())
    store[0] = replace(store[0], state=ABANDONED)
    ask(2)  # whose record says that 0 was lost
    for number in (0, 1):
        store[number] = replace(store[number], state=DONE, value=value(store[number].x))
    ask(3)
    anew = Replica(make)
    for replica in (first, second, anew):
        replica.sync(store.values())
        assert replica.trial(0).came_back
        assert replica.optimizer._rounds.open.slots[0].state.value == "dropped"
    assert summary(first.optimizer) == summary(second.optimizer) == summary(anew.optimizer)


@pytest.mark.parametrize("end", [{"state": DONE, "value": 0.3}, {"state": FAILED}])
def test_a_trial_was_lost_if_any_record_says_so(end):
    """One process asks after the loss; the other asks, with a lower number, after the end."""
    make = maker("finite, design")
    first, second, store = Replica(make), Replica(make), {}

    def put(number, asked):
        store[number] = stored(PastTrial(number, asked.trial.x, RUNNING, record=asked.record))

    put(0, first.ask(0))
    second.sync(store.values())
    store[0] = replace(store[0], state=ABANDONED)
    first.sync(store.values())
    late = first.ask(2)  # its record is stored last
    store[0] = replace(store[0], **end)
    second.sync(store.values())
    put(1, second.ask(1))
    put(2, late)
    came_back = "value" in end
    for replica in (first, second, Replica(make)):
        replica.sync(store.values())
        trial = replica.trial(0)
        assert (trial.state, trial.came_back) == (DONE if came_back else ABANDONED, came_back)
        assert replica.optimizer._rounds.open.slots[0].state.value == "dropped"


@pytest.mark.usefixtures("small_searches")
@pytest.mark.parametrize("plan", ["finite, given", "finite, bounds that hold", "box, given"])
@pytest.mark.parametrize("seed", some([2, 6], 1))
def test_processes_that_look_at_different_times_come_to_the_same(plan, seed):
    """One may see a trial lost, or ended, where others do not, or not yet."""
    make, rng, workers = maker(plan), random.Random(seed), Workers(seed)
    replicas = [Replica(make) for _ in range(3)]
    for number in range(HORIZON - 2):
        asking = rng.choice(replicas)
        asking.sync(workers.store.values())
        asked = asking.ask(number)
        if rng.random() < 0.4:  # before the record is stored
            workers.some_end()
            rng.choice([each for each in replicas if each is not asking]).sync(
                workers.store.values()
            )
        workers.begin(number, asked)
        for replica in replicas:
            workers.some_end()
            if rng.random() < 0.3:
                replica.sync(workers.store.values())
    found = []
    for replica in (*replicas, Replica(make)):
        replica.sync(workers.store.values())
        found.append(
            [(t.x.tolist(), t.state, t.came_back, t.slot) for t in replica.optimizer.trials]
        )
    assert all(each == found[0] for each in found)
    assert any(came_back for _, _, came_back, _ in found[0])


def test_the_order_of_what_is_handed_over_makes_no_difference():
    kept, workers = Replica(maker("finite, learned")), Workers()
    for number in range(12):
        kept.sync(workers.store.values())
        workers.begin(number, kept.ask(number))
        workers.some_end()
    made = Replica(maker("finite, learned"))
    made.sync(reversed(workers.store.values()))
    kept.sync(workers.store.values())
    assert [t.x.tolist() for t in made.optimizer.ask(3)] == [
        t.x.tolist() for t in kept.optimizer.ask(3)
    ]


@pytest.mark.usefixtures("small_searches")
def test_what_is_known_is_not_taken_in_again(monkeypatch):
    """Work grows with what is new: no fit is repeated, no trial entered twice."""
    make, workers = maker("box, learned"), Workers()
    fits, entered = [], []
    fit, enter = run.fit_surrogate, bpe.BPEDelayOptimizer.follow
    monkeypatch.setattr(run, "fit_surrogate", lambda *a, **k: fits.append(1) or fit(*a, **k))
    monkeypatch.setattr(bpe.BPEDelayOptimizer, "follow", lambda *a: entered.append(1) or enter(*a))
    first, second = Replica(make), Replica(make)
    for number in range(16):
        for replica in (first, second):
            replica.sync(workers.store.values())
        asking = first if number % 2 else second
        before = len(fits)
        workers.begin(number, asking.ask(number))
        if "fitted" not in kinds(workers.store[number].record) and number:
            assert len(fits) == before
        workers.some_end()
    assert len(entered) == 15  # by the process that did not ask; nobody saw the last one
    made = len(fits)
    Replica(make).sync(workers.store.values())
    assert len(fits) == made + 1  # a fresh optimizer's first surrogate


@pytest.mark.usefixtures("small_searches")
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
        store[number] = stored(PastTrial(number, asked.trial.x, RUNNING, record=asked.record))
        return asked.trial.x.tolist()

    assert ask(3, before=3) == alone[3]  # this worker is the fastest
    assert ask(1, before=1) == alone[1]
    assert ask(4, before=2) == alone[4]
    assert ask(0, before=0) == alone[0]
    # The process of trial 2 died before it had a point; the next one gets that point.
    assert ask(5, before=0) == alone[2]
    replica = Replica(make)
    replica.sync(store.values())
    for number in store:
        replica.sync([replace(store[number], state=DONE, value=value(store[number].x))])
    assert sorted(t.slot for t in replica.optimizer.trials) == [0, 1, 2, 3, 4]
    assert replica.optimizer.round == 1


def slot_of(record):
    return record["events"][-1]["data"]["slot"]


def closing_of(record):
    (closed,) = (event["data"] for event in record["events"] if event["kind"] == "closed")
    return closed


def two_that_close_at_once(make):
    """A store and two replicas, each of which closes round 1 next, with different answers."""
    kept, store = Replica(make), {}
    q = None
    number = 0
    while True:
        kept.sync(store.values())
        asked = kept.ask(number)
        if "closed" in kinds(asked.record):
            break
        store[number] = stored(PastTrial(number, asked.trial.x, RUNNING, record=asked.record))
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
    second.sync(early.values())  # has fewer answers
    first.sync(store.values())
    return q, store, first, second


@pytest.mark.usefixtures("small_searches")
@pytest.mark.parametrize("plan", ["finite, learned", "box, learned", "box, learned, mixed"])
def test_where_two_open_a_round_at_once_the_lower_number_counts(plan):
    make = maker(plan)
    q, store, first, second = two_that_close_at_once(make)
    higher = second.ask(q + 1)
    lower = first.ask(q)
    assert closing_of(higher.record) != closing_of(lower.record)
    store[q + 1] = stored(PastTrial(q + 1, higher.trial.x, RUNNING, record=higher.record))
    others = range(q + 2, q + 5)  # asked in the round that will not count
    asked = [second.ask(number) for number in others]
    for number, one in zip(others, asked, strict=True):
        store[number] = stored(PastTrial(number, one.trial.x, RUNNING, record=one.record))
    if "mixed" in plan:
        assert any(slot_of(one.record) >= 0 for one in asked)
    both = {**store, q: stored(PastTrial(q, lower.trial.x, RUNNING, record=lower.record))}
    onlooker, late = Replica(make), Replica(make)
    onlooker.sync(both.values())
    late.sync(store.values())  # sees the higher number first
    before = late.optimizer, first.optimizer
    late.sync(both.values())
    second.sync(both.values())
    first.sync(both.values())
    assert late.optimizer is not before[0]  # everything was taken in again
    assert first.optimizer is before[1]
    records = {json.dumps(summary_of_rounds(r)) for r in (first, second, onlooker, late)}
    assert len(records) == 1
    for replica in (first, second, onlooker, late):
        for number in (q + 1, *others):
            assert replica.trial(number).slot < 0  # asked in the round that does not count
        assert replica.trial(q).round == replica.optimizer.round == 2


def summary_of_rounds(replica):
    return [record.describe() for record in replica.optimizer.rounds]


def test_a_point_that_is_changed_is_taken_in_anew():
    make = maker("finite, learned")
    kept = Replica(make)
    asked = [kept.ask(n) for n in range(3)]
    store = {n: PastTrial(n, a.trial.x, RUNNING, record=a.record) for n, a in enumerate(asked)}
    other = Replica(make)
    other.sync(store.values())
    free = next(x for x in FINITE.points if not any(torch.equal(x, p.x) for p in store.values()))
    store[2] = replace(store[2], x=free)
    other.sync(store.values())
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


def test_what_was_asked_after_an_ask_that_is_taken_back_still_counts():
    """The second process fits to answers first recorded by the ask that is taken back."""
    make = maker("finite, learned")
    first, second, store = Replica(make), Replica(make), {}

    def ask(replica, number):
        replica.sync(past for past in store.values() if past.number != number)
        asked = replica.ask(number)
        store[number] = stored(PastTrial(number, asked.trial.x, RUNNING, record=asked.record))

    def end(*numbers):
        for number in numbers:
            past = store[number]
            store[number] = replace(past, state=DONE, value=value(past.x))

    for number in range(10):
        ask(first, number)
    end(*range(8))
    ask(first, 10)
    end(8, 9)
    ask(second, 11)
    assert all("fitted" in kinds(store[number].record) for number in (10, 11))
    first.forget(10)
    end(11)
    ask(first, 10)
    anew = Replica(make)
    for replica in (first, second, anew):
        replica.sync(store.values())
    assert summary(first.optimizer) == summary(second.optimizer) == summary(anew.optimizer)


def test_results_without_a_note_are_attached_and_others_passed_over():
    kept = Replica(maker("finite, learned"))
    points = FINITE.points
    kept.sync(
        [
            PastTrial(0, points[3], DONE, 1.5),
            PastTrial(1, points[4], FAILED),
            PastTrial(2, points[5], RUNNING, 0.3),  # still running: no final value
        ]
    )
    assert [a.index for a in kept.optimizer.attached] == [3]
    asked = [kept.ask(number) for number in (3, 4)]
    assert kinds(asked[0].record) == ["fitted", "opened", "asked"]
    kept.sync([PastTrial(2, points[5], DONE, 0.5)])
    assert [(a.index, a.value) for a in kept.optimizer.attached] == [(3, 1.5), (5, 0.5)]


def test_the_noise_of_results_from_elsewhere_is_used_unless_evaluations_are_exact():
    for exact, noise_var in ((False, 0.25), (True, None)):
        kept = Replica(lambda exact=exact: bd.BPEDelayOptimizer(FINITE, 20, exact=exact))
        kept.sync([PastTrial(0, FINITE.points[3], DONE, 1.5, noise_var=0.25)])
        assert [a.noise_var for a in kept.optimizer.attached] == [noise_var]


@pytest.mark.parametrize("field", ["round", "slot"])
def test_records_of_what_no_run_comes_to_are_refused(field):
    make = maker("finite, design")
    kept = Replica(make)
    first, second = kept.ask(0), kept.ask(1)
    store = [
        PastTrial(n, a.trial.x, RUNNING, record=a.record) for n, a in enumerate((first, second))
    ]
    asked = second.record["events"][-1]

    def with_field(value):
        data = asked["data"] | {field: value}
        return replace(store[1], record=second.record | {"events": [asked | {"data": data}]})

    with pytest.raises(StorageError, match="malformed"):
        Replica(make).sync([store[0], with_field(2**70)])
    far = Replica(make)
    far.sync([store[0], with_field(2**50)])  # without going through all numbers before
    assert far.trial(1).slot < 0
    far.sync([replace(with_field(2**50), state=DONE, value=0.5)])
    assert far.trial(1).value == 0.5


def test_what_does_not_fit_is_refused():
    make = maker("finite, learned")
    kept = Replica(make)
    asked = kept.ask(0)
    past = PastTrial(0, asked.trial.x, RUNNING, record=asked.record)
    with pytest.raises(InputError, match="must be a point of the domain"):
        Replica(make).sync([replace(past, x=past.x + 0.5)])
    for wrong in ({"events": 7}, {"events": [{}]}, {"events": []}, {"parent": []}, {"after": "x"}):
        with pytest.raises(StorageError, match="malformed"):
            Replica(make).sync([replace(past, record=past.record | wrong)])
    *decided, ask = past.record["events"]
    with pytest.raises(StorageError, match="opened the first round is missing"):
        Replica(make).sync([replace(past, record=past.record | {"events": [ask]})])
    closed = {"record": {"number": 1, "trial_ids": [7]}, "left": [], "last": False}
    events = [*decided, decided[0] | {"kind": "closed", "data": closed}, ask]
    with pytest.raises(StorageError, match="answer of trial 7, which is missing"):
        Replica(make).sync([replace(past, record=past.record | {"events": events})])
    for ids in (None, 7, [[]]):
        closed["record"]["trial_ids"] = ids
        with pytest.raises(StorageError, match="malformed"):
            Replica(make).sync([replace(past, record=past.record | {"events": events})])
    few = Replica(lambda: bd.BPEDelayOptimizer(FINITE, 2))
    with pytest.raises(HorizonError):
        few.ask(2, before=2)
    domain = bd.FiniteDomain(scattered(10))
    options = GIVEN | {
        "confidence": bd.RKHSConfidence(20.0, 0.04),
        "exploit": bd.WithinBudget(factor=2.0),
    }
    with pytest.raises(NotSupportedError, match="use save and load"):
        Replica(lambda: bd.BPEDelayOptimizer(domain, 20, **options)).sync([past])


def test_what_was_made_from_trials_can_be_stored_and_goes_on():
    """Also where slots of the design are reserved for trials that are not known yet."""
    make, store = maker("finite, design"), {}
    for number, before in ((2, 2), (0, 0)):
        asking = Replica(make)
        asking.sync(store.values())
        asked = asking.ask(number, before)
        store[number] = stored(PastTrial(number, asked.trial.x, RUNNING, record=asked.record))
    kept, other = Replica(make), make()
    kept.sync(store.values())
    assert "reserved" in [event.kind for event in kept.optimizer._ledger.events()]
    other.load_state_dict(kept.optimizer.state_dict())
    assert [t.x.tolist() for t in other.ask(3)] == [t.x.tolist() for t in kept.optimizer.ask(3)]


def test_a_copy_made_from_the_trials_knows_when_answers_came():
    """The state of a trial does not say that its answer was overdue; the records do."""
    make = maker("finite, a delay law")
    kept, store = Replica(make), {}
    for number in range(12):
        kept.sync(store.values())
        asked = kept.ask(number)
        store[number] = stored(PastTrial(number, asked.trial.x, RUNNING, record=asked.record))
        if number == 9:
            store[0] = replace(store[0], state=DONE, value=0.3)
        if number == 10:
            store[10] = replace(store[10], state=DONE, value=0.1)
    anew = Replica(make)
    anew.sync(store.values())
    assert kept.trial(0).delay == anew.trial(0).delay == 9
    assert kept.trial(10).delay == anew.trial(10).delay == 0


@pytest.mark.parametrize("plan", ["finite, design", "box, learned, mixed"])
def test_workers_that_ask_for_the_last_point_at_once_go_beyond_the_horizon(plan):
    """Whether trials are taken in as they are made, or all of them after they have ended."""
    domain, options = PLANS[plan]

    def make():
        return bd.BPEDelayOptimizer(domain, 6, **options)

    one, other, store = Replica(make), Replica(make), {}
    for number in range(5):
        one.sync(store.values())
        asked = one.ask(number)
        store[number] = stored(PastTrial(number, asked.trial.x, RUNNING, record=asked.record))
    other.sync(store.values())
    for number, replica in ((5, one), (6, other)):
        asked = replica.ask(number)
        store[number] = stored(PastTrial(number, asked.trial.x, RUNNING, record=asked.record))
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
        store[number] = stored(PastTrial(number, asked.trial.x, RUNNING, record=asked.record))

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
    store[9] = stored(PastTrial(9, late.trial.x, RUNNING, record=late.record))
    assert slot_of(store[9].record) == slot_of(store[8].record) == 0
    anew = Replica(make)
    for replica in (one, anew):
        replica.sync(store.values())
        assert replica.optimizer.rounds[0].trial_ids == tuple(range(1, 9))
        assert "a noise variance other than noise_var" in str(replica.optimizer.guarantee)


@pytest.mark.parametrize("number", ["7", -1, 1.5])
def test_a_trial_needs_a_number(number):
    replica = Replica(maker("finite, given"))
    with pytest.raises(InputError, match="number"):
        replica.ask(number)
    assert not replica.optimizer.trials  # and nothing has happened
    assert replica.ask(0).trial.id == 0


def test_an_interrupted_sync_loses_nothing(monkeypatch):
    make = maker("finite, given")
    first = Replica(make)
    done = []
    for number in range(8):
        trial, record = first.ask(number)
        done.append(PastTrial(number, trial.x, DONE, value(trial.x), record))
        first.sync(done)
    other, told = Replica(make), bd.BPEDelayOptimizer.tell

    def interrupted(opt, trial, *args):
        if trial.id == 3:
            raise KeyboardInterrupt
        return told(opt, trial, *args)

    with monkeypatch.context() as patch:
        patch.setattr(bd.BPEDelayOptimizer, "tell", interrupted)
        with pytest.raises(KeyboardInterrupt):
            other.sync(done)
    other.sync(done)
    assert [trial.value for trial in other.optimizer.trials] == [past.value for past in done]


@pytest.mark.usefixtures("small_searches")
def test_a_result_that_explodes_is_fitted_by_new_processes_as_well():
    def make():
        return bd.BPEDelayOptimizer(bd.FiniteDomain(scattered(80)), 200)

    def elsewhere(number, value):
        return PastTrial(number, scattered(80)[number], DONE, value=value)

    store = {n: elsewhere(n, -float((scattered(80)[n] - 0.3).square().sum())) for n in range(50)}
    old = Replica(make)
    old.sync(store.values())
    asked = old.ask(50)
    store[50] = stored(PastTrial(50, asked.trial.x, RUNNING, record=asked.record))
    store[51] = elsewhere(51, -1e4)
    old.sync(store.values())
    new = Replica(make)
    new.sync(store.values())
    assert new.optimizer.recommend().mean == old.optimizer.recommend().mean
    assert torch.equal(new.ask(52).trial.x, old.ask(52).trial.x)
