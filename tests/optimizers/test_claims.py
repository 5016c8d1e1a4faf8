"""What ends the guarantee of a run and what does not, and whether valid bounds hold."""

import contextlib
import copy
import itertools
import math
import random
import warnings
from dataclasses import replace

import pytest
import torch
from bpe_cases import make
from cases import generator, scattered, se, with_values
from gpytorch.kernels import LinearKernel, MaternKernel, ScaleKernel
from scale import repeats

import botorch_delay as bd
from botorch_delay.benchmarks import paper_problem
from botorch_delay.confidence.bounds import HalfWidth
from botorch_delay.elimination.rounds import Departure
from botorch_delay.exceptions import RefutedWarning, RepeatedResultWarning
from botorch_delay.history.trials import TrialState
from botorch_delay.optimizers.replica import PastTrial, Replica

NOISE = 0.01
VALID = bd.RKHSConfidence(2.0, 0.2)  # noise variances up to 0.2**2 may be told with answers
PLAYING = {"confidence": VALID, "exploit": bd.UCB(4.0), "explore_fraction": 0.5}
NO_REPEATS = {"exploit": bd.Exploit(bd.UCB(4.0), repeat_pending=False)}
DESIGN = {"confidence": VALID, "exploit": None}
UCB = bd.UCB(6.0)
GIVEN_UP = "a design point was given up"


def optimizer(horizon=60, **options):
    options = {"covar_module": se(), "noise_var": NOISE} | options
    return bd.BPEDelayOptimizer(bd.FiniteDomain(scattered(30)), horizon, **options)


def answer(opt, trial, **options):
    opt.tell(trial, 0.01 * trial.index, **options)


def design_point(opt):
    """Ask until a design point comes; points of the rule on the way are answered."""
    while True:
        trial = opt.ask()
        if trial.slot >= 0:
            return trial
        answer(opt, trial)


@pytest.mark.parametrize("options", [DESIGN, PLAYING], ids=["design", "playing"])
def test_a_design_point_that_is_given_up_ends_the_claim_of_the_regret_bound(options):
    opt = optimizer(**options)
    answer(opt, design_point(opt))
    slots = set()
    for _ in range(3):
        assert opt.guarantee.holds
        lost = design_point(opt)
        slots.add((lost.round, lost.slot))
        opt.mark_abandoned(lost)
    assert len(slots) == 1
    assert [line.split(":")[0] for line in opt.guarantee.missing] == [GIVEN_UP]
    assert "the maximiser is still never eliminated, if it was" in str(opt.guarantee)
    copy = optimizer(**options)
    copy.load_state_dict(opt.state_dict())
    assert copy.guarantee == opt.guarantee


@pytest.mark.parametrize("options", [DESIGN, PLAYING], ids=["design", "playing"])
def test_lost_workers_cost_asks_and_no_claim(options):
    """Though every fourth trial is lost, each design point is answered, as without losses."""
    lossy, whole = optimizer(400, **options), optimizer(400, **options)
    played = (lossy, whole) if options is DESIGN else (lossy,)
    for _ in range(180):
        for opt in played:
            trial = opt.ask()
            if opt is lossy and trial.id % 4 == 1:
                opt.mark_abandoned(trial)
            else:
                answer(opt, trial)
    assert len(lossy.rounds) >= 2
    assert all(record.observed == record.design_size for record in lossy.rounds)
    assert lossy.guarantee.holds
    assert any(
        "made while their points are asked again, come on top" in line
        for line in lossy.guarantee.assumptions
    )
    if options is DESIGN:  # the points that a rule chooses have no part in the design either
        for one, other in zip(lossy.rounds, whole.rounds, strict=False):
            designs = [
                [opt.trials[i].index for i in sorted(r.trial_ids, key=lambda i: opt.trials[i].slot)]
                for opt, r in ((lossy, one), (whole, other))
            ]
            assert designs[0] == designs[1]
            assert one.active_after == other.active_after


def test_another_trial_may_be_given_up():
    opt = optimizer(**PLAYING | {"explore_fraction": 0.1})
    trial = next(t for t in iter(opt.ask, None) if t.slot < 0)
    opt.mark_abandoned(trial)
    assert opt.guarantee.holds


def test_a_design_point_that_fails_and_is_then_answered_is_not_given_up():
    opt = optimizer(**DESIGN)
    first = opt.ask()
    opt.mark_failed(first)
    again = opt.ask()
    assert (again.index, again.slot) == (first.index, first.slot)
    answer(opt, again)
    while opt.round == 1:
        answer(opt, opt.ask())
    assert opt.guarantee.holds
    assert any(
        "made while their points are asked again, come on top" in line
        for line in opt.guarantee.assumptions
    )
    for _ in range(3):
        opt.mark_failed(opt.ask())
    assert [line.split(":")[0] for line in opt.guarantee.missing] == [GIVEN_UP]
    while opt.round == 2:
        answer(opt, opt.ask())
    assert [line.split(":")[0] for line in opt.guarantee.missing] == [GIVEN_UP]


def test_where_rounds_have_fixed_lengths_a_failure_takes_an_ask_from_them():
    opt = optimizer(**DESIGN, delay=bd.NoDelay())
    opt.mark_failed(opt.ask())
    assert [line.split(",")[0] for line in opt.guarantee.missing] == [
        "a failure took an ask from a round of fixed length: its round may leave more regret than "
        "the bound charges; the maximiser is still never eliminated."
    ]


def test_a_straggler_may_be_given_up_once_its_round_has_closed():
    opt = optimizer(**DESIGN, rounds=bd.HorizonRounds(5.0))
    trials = opt.ask(8)  # q_1 = 8
    for trial in trials[1:]:
        answer(opt, trial)
    opt.ask()
    assert opt.rounds[0].observed == 7
    opt.mark_abandoned(trials[0])
    assert opt.guarantee.holds
    assert any("before its round closes" in line for line in opt.guarantee.assumptions)
    opt = optimizer(**DESIGN, rounds=bd.HorizonRounds(5.0))
    trials = opt.ask(8)
    opt.mark_abandoned(trials[0])
    for trial in trials[1:]:
        answer(opt, trial)
    for _ in range(2):  # before and after the round closes
        assert [line.split(":")[0] for line in opt.guarantee.missing] == [GIVEN_UP]
        opt.ask()


def test_a_copy_made_from_the_trials_knows_of_a_missing_answer():
    """An answer that came after its round had closed does not hide that the round lacked it."""
    kept, store = Replica(lambda: optimizer(**DESIGN)), {}
    done = {"state": TrialState.COMPLETED, "value": 0.1}
    for number in range(12):
        kept.sync(store.values())
        asked = kept.ask(number)
        store[number] = PastTrial(number, asked.trial.x, TrialState.RUNNING, record=asked.record)
        if number == 7:  # q_1 = 8
            store = {i: replace(past, **done) for i, past in store.items()}
        if number in (7, 8, 9):  # the last design point, and both its repeats
            store[number] = replace(store[number], state=TrialState.ABANDONED, value=None)
    assert {asked.trial.round, kept.trial(9).slot} == {2, 7}
    store[9] = replace(store[9], **done)
    anew = Replica(lambda: optimizer(**DESIGN))
    anew.sync(store.values())
    assert anew.optimizer.rounds[0].observed == 7
    for one in (kept, anew):
        missing = one.optimizer.guarantee.missing
        assert [line.split(":")[0] for line in missing] == [GIVEN_UP]


def test_the_end_of_a_run_takes_nothing_back():
    opt = optimizer(8, **DESIGN)
    trials = opt.ask(8)
    for trial in trials[2:]:
        answer(opt, trial)
    opt.mark_abandoned(trials[0])  # of a design, but no ask follows on its round
    assert opt.guarantee.holds
    opt.finish()
    opt.mark_abandoned(trials[1])
    assert opt.guarantee.holds
    opt = optimizer(20, **PLAYING)
    for trial in (opt.ask() for _ in range(19)):
        answer(opt, trial)
    opt.mark_failed(opt.ask())
    assert opt.guarantee.holds


def test_failures_while_a_rule_plays_end_the_claim():
    opt = optimizer(**PLAYING)
    assert any(line.startswith("no trial fails") for line in opt.guarantee.assumptions)
    assert not any(line.startswith("whether a trial fails") for line in opt.guarantee.assumptions)
    opt.mark_failed(opt.ask())
    assert any("a trial failed while a rule chooses asks" in line for line in opt.guarantee.missing)
    alone = optimizer(**DESIGN)
    alone.mark_failed(alone.ask())
    assert alone.guarantee.holds


def test_crashes_that_take_a_point_out_are_an_assumption():
    text = str(optimizer(**DESIGN).guarantee)
    assert "the maximiser never fails 3 times without an answer in between" in text


@pytest.mark.parametrize("noise_var", [NOISE / 2, 0.2**2], ids=["less", "more"])
def test_noise_variances_that_were_told(noise_var):
    opt = optimizer(**DESIGN)
    answer(opt, opt.ask(), noise_var=NOISE * (1 + 1e-7))  # differs by rounding to single precision
    assert opt.guarantee.holds
    answer(opt, opt.ask(), noise_var=noise_var)
    assert ["other than noise_var: its round" in line for line in opt.guarantee.missing] == [True]
    assert any("told with do not depend" in line for line in opt.guarantee.assumptions)
    opt = optimizer(**PLAYING | {"explore_fraction": 0.1})
    trial = next(t for t in iter(opt.ask, None) if t.slot < 0)
    answer(opt, trial, noise_var=0.2**2)
    assert opt.guarantee.holds
    answer(opt, opt.ask(), noise_var=0.05)
    assert any("above noise_std squared" in line for line in opt.guarantee.missing)
    opt = optimizer(**DESIGN, evidence="all")
    answer(opt, opt.ask(), noise_var=NOISE / 2)
    assert any('use evidence="round"' in line for line in opt.guarantee.missing)


def test_where_nothing_is_claimed_a_run_adds_no_reasons():
    opt = make()
    trial = opt.ask()
    before = opt.guarantee
    opt.mark_failed(trial)
    assert opt.guarantee == before


def test_rounds_that_grow_by_a_factor_say_what_they_are_charged():
    def guarantee(**options):
        return optimizer(**PLAYING | options).guarantee

    claimed = guarantee(rounds=bd.GeometricRounds(10, 4.0), explore_fraction=0.25)
    assert claimed.holds
    assert claimed.factor == pytest.approx((2 * 4 * 2 / (2 - 1) / 0.25) ** 0.5)
    assert any("the first 40 asks" in line for line in claimed.assumptions)
    claimed = guarantee(rounds=bd.GeometricRounds(20, 4.0), explore_fraction=0.25)
    assert any("the first 60 asks" in line for line in claimed.assumptions)
    total = 0.0  # a round costs c sqrt(g q_r), one of Theorem 1 c sqrt(T)
    sizes = [4**r for r in range(9)]
    for last in range(1, 4**9, 997):
        asks = sum(sizes) + last
        total = sum(n / (n / 4) ** 0.5 for n in sizes[1:]) + last / sizes[-1] ** 0.5
        assert total <= 4.0 * asks**0.5
    assert guarantee().factor == pytest.approx(0.5**-0.5)


@pytest.mark.filterwarnings("ignore::botorch_delay.exceptions.OutlierWarning")
def test_a_share_of_design_points_costs_a_factor_on_the_worst_case_of_the_bound():
    """32 design points cover this set, and the 10 of the smaller share do not."""
    n, horizon, norm, noise = 32, 1000, 50.0, 1e-3
    points = 100.0 * torch.arange(n, dtype=torch.double).unsqueeze(-1)
    f = [4.0, *[0.0] * (n - 2), math.sqrt(norm**2 - 16.0)]

    def optimizer(**options):
        confidence = bd.RKHSConfidence(norm, noise)
        options |= {"covar_module": se(1.0), "noise_var": noise**2, "confidence": confidence}
        return bd.BPEDelayOptimizer(bd.FiniteDomain(points), horizon, **options)

    opt, regret = optimizer(explore_fraction=0.1), 0.0
    for _ in range(400):
        trial = opt.ask()
        opt.tell(trial, f[trial.index])
        regret += max(f) - f[trial.index]
    claimed = opt.guarantee
    assert claimed.holds
    assert "at 3.16 times the regret bound in its worst-case form" in str(claimed)
    assert any("the deviations themselves, times" in line for line in claimed.assumptions)
    own = optimizer(exploit=bd.WithinBudget(factor=1.0)).guarantee
    assert regret > claimed.factor * own.budget.plan
    assert "worst-case" not in str(own)
    # Theorem 1, with Gamma(q) of independent arms, all of which an optimal design asks.
    sizes = [32, 179, 424, 365]
    multiplier = norm + math.sqrt(2.0 * math.log(4 * 4 * n / 0.1))
    worst = sizes[0] * norm * math.sqrt(2.0)
    for before, size in itertools.pairwise(sizes):
        gain = 0.5 * n * math.log1p(before / n / noise**2)
        deviation = math.sqrt(2.0 * gain / (before * math.log1p(1.0 / noise**2)))
        worst += size * min(norm * math.sqrt(2.0), 4.0 * multiplier * deviation)
    assert regret <= claimed.factor * worst


def test_values_may_not_decide_on_designs_of_fixed_length():
    for repeat in (True, False):
        exploit = bd.Exploit(repeat_pending=repeat)
        opt = optimizer(delay=bd.NoDelay(), exploit=exploit, confidence=VALID)
        assert opt.guarantee.holds == repeat


def test_the_longest_wait_is_that_of_the_horizon_when_the_run_began():
    law = bd.PoissonDelay(5.0)
    least, most = (law.upper_bound(horizon, 0.1) for horizon in (20, 2000))
    assert least < most - 1
    opt = optimizer(20, **DESIGN, delay=law)
    opt.extend(2000)
    first = opt.ask(int(least) + 2)[0]
    assert opt.guarantee.holds  # the trial runs longer than u_20 already
    answer(opt, first)
    assert opt.guarantee.holds
    opt.ask(int(most))
    assert any("longer than u_T" in line for line in opt.guarantee.missing)


def test_design_sizes_limit_what_counts_as_given_up():
    opt = optimizer(**DESIGN)
    trials = opt.ask(20)
    opt.mark_abandoned(trials[8])  # q_1 = 8: the design goes on while the round waits
    assert opt.guarantee.holds
    lost = trials[7]
    for _ in range(2):
        opt.mark_abandoned(lost)
        lost = opt.ask()
        assert (lost.index, lost.slot) == (trials[7].index, 7)
    opt.mark_abandoned(lost)
    assert not opt.guarantee.holds


def test_that_the_maximiser_stays_does_not_need_every_answer():
    opt = optimizer(**DESIGN)
    opt.ask()
    opt._rounds.open.departures.add(Departure.GIVEN_UP)
    assert "the maximiser is still never eliminated" in str(opt.guarantee)
    assert not opt.guarantee.holds


# The last round


def steep(horizon, asks, **options):
    """Ask ``asks`` times with a steep objective, each answer told at once."""
    opt = optimizer(horizon, **options)
    for _ in range(asks):
        trial = opt.ask()
        opt.tell(trial, 4.0 * trial.x.sum().item())
    return opt


def test_a_run_that_is_ended_early_judges_complete_designs_only():
    opt = steep(60, 12, **DESIGN)
    assert len(opt.rounds) == 1
    before = opt.active_set.indices
    opt.finish()
    assert opt.rounds[-1].observed == 0
    assert torch.equal(opt.active_set.indices, before)
    complete = steep(60, 8, **DESIGN)  # q_1 = 8, all answered
    complete.finish()
    assert complete.rounds[-1].observed == 8
    endless = steep(None, 12, **DESIGN, rounds=bd.GeometricRounds(8, 2.0))
    endless.finish()
    assert [r.observed for r in endless.rounds] == [8, 0]


@pytest.mark.parametrize(
    ("options", "judged"),
    [
        (DESIGN, True),
        (PLAYING, True),
        (PLAYING | NO_REPEATS, False),
        (PLAYING | {"explore_fraction": None, "exploit": bd.WithinBudget(factor=1.25)}, False),
    ],
    ids=["design", "playing", "no repeats", "budget"],
)
def test_at_the_horizon_the_last_round_is_judged_where_values_had_no_say(options, judged):
    opt = steep(60, 60, **options)
    last = opt.rounds[-1]
    started = sum(t.round == last.number and t.slot >= 0 for t in opt.trials)
    assert last.design_size == started > 0
    assert last.observed == (started if judged else 0)


def test_answers_that_are_missing_at_the_end_may_be_missing_because_of_their_noise():
    opt = optimizer(60, **DESIGN)
    trials = opt.ask(60)
    for trial in trials[:5]:
        answer(opt, trial)
    opt.finish()
    assert [(r.observed, r.cutoff) for r in opt.rounds] == [(0, None)]
    for asks, observed in ((60, 1), (59, 0)):  # by a delay law answers are left out as planned
        law = optimizer(60, **DESIGN, delay=bd.ConstantDelay(3))
        answer(law, law.ask(asks)[-1])
        law.finish()
        assert law.rounds[-1].observed == observed


def test_a_heuristic_run_judges_whatever_has_arrived():
    opt = steep(60, 12, exploit=None)
    opt.finish()
    assert opt.rounds[-1].observed > 0


# Bounds from all answers


@pytest.mark.filterwarnings("ignore")  # warnings of single precision and of rounding
def test_bounds_from_all_answers_give_back_what_rounding_took():
    """In single precision variances cancel: without the allowance maximisers are lost here."""
    X = torch.linspace(0, 1, 300, dtype=torch.double).unsqueeze(-1)
    K = se(0.3)(X, X).to_dense().detach()
    kernel = se(0.3).float()
    for seed in range(2):
        g = generator(seed)
        rows = torch.randperm(300, generator=g)[:8]
        weights = torch.randn(8, dtype=torch.double, generator=g)
        f = K[:, rows] @ weights / (weights @ K[rows][:, rows] @ weights).sqrt()
        opt = bd.BPEDelayOptimizer(
            bd.FiniteDomain(X.float()),
            150,
            covar_module=kernel,
            noise_var=1e-6,
            confidence=bd.RKHSConfidence(1.0, 1e-3),
            evidence="all",
            exploit=None,
        )
        for _ in range(150):
            trial = opt.ask()
            noise = 1e-3 * torch.randn((), dtype=torch.double, generator=g)
            opt.tell(trial, (f[trial.index] + noise).item())
        assert int(f.argmax()) in opt.active_set.indices


def test_intervals_say_what_they_rest_on():
    opt = optimizer(confidence=VALID)
    answer(opt, opt.ask())
    assert "if delays and failures do not depend on the noise" in opt.recommend().interval
    learned = bd.BPEDelayOptimizer(bd.FiniteDomain(scattered(30)), 20, confidence=VALID)
    for _ in range(4):
        answer(learned, learned.ask())
    assert learned.recommend().interval.startswith("under the learned kernel, a heuristic")
    plain = bd.BPEDelayOptimizer(bd.FiniteDomain(scattered(30)), 20)
    for _ in range(4):
        answer(plain, plain.ask())
    assert plain.recommend().interval.count("heuristic") == 1


# What ends a claim for good

MODES = {
    "design": DESIGN,
    "rule": PLAYING,
    "no repeats": PLAYING | NO_REPEATS,
    "all": DESIGN | {"evidence": "all"},
    "law": DESIGN | {"delay": bd.ConstantDelay(4)},
    "law, rule": {"confidence": VALID, "delay": bd.ConstantDelay(4), "exploit": bd.UCB(4.0)},
    "stragglers": DESIGN | {"rounds": bd.HorizonRounds(2.0)},
    "geometric": DESIGN | {"rounds": bd.GeometricRounds(3, 1.5)},
    "budget": {"confidence": VALID, "exploit": bd.WithinBudget(factor=1.25)},
    "exact": DESIGN | {"exact": True, "noise_var": None},
    "exact, law": DESIGN | {"exact": True, "noise_var": None, "delay": bd.ConstantDelay(4)},
}


def act(opt, rng):
    """One random call; answers are small, and rarely tell of a large norm or of other noise."""
    kind = rng.choices(
        ["ask", "tell", "abandon", "fail", "late", "attach", "correct", "detach", "extend"],
        [10, 9, 1.5, 0.7, 1.5, 0.3, 0.5, 0.1, 0.05],
    )[0]
    running = opt.pending
    lost = [t for t in opt.trials if t.state is TrialState.ABANDONED]
    if kind == "ask":
        with contextlib.suppress(bd.exceptions.EmptyDomainError):
            opt.ask()
    elif kind == "attach":
        opt.attach(opt.domain.points[rng.randrange(30)], rng.random())
    elif kind == "correct":
        told = [t for t in opt.trials if t.state in (TrialState.COMPLETED, TrialState.FAILED)]
        if told and (found := rng.choice(told)).state is TrialState.COMPLETED:
            opt.correct(found, None if rng.random() < 0.2 else 0.01 * found.index)
        elif told:
            opt.correct(found, 0.01 * found.index)
    elif kind == "detach" and opt.attached:
        opt.detach(rng.choice(opt.attached))
    elif kind == "extend":
        opt.extend(opt.horizon + rng.randrange(1, 9))
    elif kind == "late" and lost:
        answer(opt, rng.choice(lost))
    elif kind in ("abandon", "fail") and running:
        settle = opt.mark_abandoned if kind == "abandon" else opt.mark_failed
        settle(rng.choice(running))
    elif kind == "tell" and running:
        trial, odd = rng.choice(running), rng.random()
        if odd < 0.005:
            opt.tell(trial, 30.0)
        elif odd < 0.01 and not opt.exact:
            answer(opt, trial, noise_var=NOISE / 2)
        else:
            answer(opt, trial)


@pytest.mark.filterwarnings("ignore::botorch_delay.exceptions.OutlierWarning")
# The modes left out are played together with others.
@pytest.mark.parametrize("mode", [mode for mode in MODES if mode not in ("rule", "law", "exact")])
def test_no_sequence_of_calls_brings_an_ended_claim_back(mode):
    ended = 0
    for seed in range(8):
        if ended:  # further seeds only where the first ended no claim
            break
        rng = random.Random(seed)
        horizon = rng.choice([20, 60])
        opt = optimizer(horizon, **MODES[mode])
        held, calls = opt.guarantee.holds, 0
        assert held
        while len(opt.trials) < horizon and calls < 100:
            calls += 1
            act(opt, rng)
            claimed = opt.guarantee
            assert held or not claimed.holds, (seed, calls)
            held = claimed.holds
            if rng.random() < 0.05:
                again = optimizer(horizon, **MODES[mode])
                again.load_state_dict(opt.state_dict())
                opt = copy.deepcopy(again) if rng.random() < 0.5 else again
                assert opt.guarantee == claimed, (seed, calls)
        opt.finish()
        for trial in [None, *opt.pending]:
            if trial is not None:
                answer(opt, trial)
            assert held or not opt.guarantee.holds, (seed, "end")
            held = opt.guarantee.holds
        ended += not held
    assert ended  # otherwise the sequences were too tame to test anything


@pytest.mark.parametrize(
    "options",
    [{"delay": bd.ConstantDelay(2)}, {"rounds": bd.HorizonRounds(5.0)}],
    ids=["law", "stragglers"],
)
def test_a_late_answer_does_not_bring_back_what_a_round_went_without(options):
    opt = optimizer(**DESIGN | options)
    lost = opt.ask()
    opt.mark_abandoned(lost)
    while opt.round == 1:
        answer(opt, opt.ask())
    assert opt.rounds[0].departures == (Departure.GIVEN_UP,)
    assert not opt.guarantee.holds
    answer(opt, lost)
    assert not opt.guarantee.holds


def shared(asks, options, horizon=60, before=0, skip=0):
    """Yield a replica and the store of its trials, kept by another system, after each ask."""
    kept, store = Replica(lambda: optimizer(horizon, **options)), {}
    for number in range(asks):
        kept.sync(store.values())
        asked = kept.ask(number, before=before, skip=skip)
        store[number] = PastTrial(number, asked.trial.x, TrialState.RUNNING, record=asked.record)
        yield kept, store


def done(past, **options):
    return replace(past, **{"state": TrialState.COMPLETED, "value": 0.1} | options)


def test_what_a_round_went_without_is_known_to_a_copy_made_from_the_trials():
    """Trial 0 was abandoned before its round closed, and answered late."""
    for pair in shared(10, DESIGN | {"rounds": bd.HorizonRounds(5.0)}):
        kept, store = pair
        if len(store) == 8:  # q_1 = 8
            store |= {i: done(past) for i, past in store.items() if i}
            store[0] = replace(store[0], state=TrialState.ABANDONED)
    store[0] = done(store[0])
    kept.sync(store.values())
    anew = Replica(lambda: optimizer(**DESIGN | {"rounds": bd.HorizonRounds(5.0)}))
    anew.sync(store.values())
    for one in (kept, anew):
        assert one.optimizer.rounds[0].observed == 7
        assert not one.optimizer.guarantee.holds


def test_a_replica_that_begins_anew_forgets_no_end_of_a_claim():
    law = DESIGN | {"delay": bd.PoissonDelay(2.0)}  # u_T = 7
    for pair in shared(12, law):
        kept, store = pair
        store |= {i: done(past) for i, past in store.items() if i}
    store[0] = done(store[0])
    kept.sync(store.values())
    assert not kept.optimizer.guarantee.holds
    kept.ask(12)
    before = kept.optimizer
    kept.forget(12)
    assert kept.optimizer is not before
    assert not kept.optimizer.guarantee.holds


@pytest.mark.parametrize("skip", [1, 3])
def test_asks_of_several_processes_are_design_points_or_extra(skip):
    """Asks that skip points which others may be about to ask count as extra asks."""
    for pair in shared(40, DESIGN, skip=skip):
        kept, store = pair
        store |= {i: done(past) for i, past in store.items()}
    opt = kept.optimizer
    designed = {(t.round, t.slot) for t in opt.trials if t.slot >= 0}
    beyond = len(opt.trials) - len(designed)
    assert beyond > 12
    assert opt.guarantee.holds
    assert opt.guarantee.extra_asks >= beyond
    assert opt.guarantee.extra_cost > 0.0


# What the library can see


def box(kernel, **options):
    domain = bd.BoxDomain(torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.double))
    return bd.BPEDelayOptimizer(
        domain, 100, covar_module=kernel, noise_var=NOISE, exploit=None, **options
    )


def test_by_the_trace_regret_is_claimed_for_linear_kernels_alone():
    trace = {"confidence": bd.RKHSConfidence(1.0, 0.1, uniform="trace")}
    linear = with_values(LinearKernel(), variance=0.8)
    assert box(linear, **trace).guarantee.holds
    assert box(with_values(ScaleKernel(linear), outputscale=2.0), **trace).guarantee.holds
    for kernel in (with_values(MaternKernel(nu=0.5), lengthscale=0.5), se(), se() + linear):
        claimed = box(kernel, **trace).guarantee
        assert not claimed.holds
        assert 'use uniform="net"; the maximiser is still never eliminated' in str(claimed)
        assert box(kernel, confidence=bd.RKHSConfidence(1.0, 0.1)).guarantee.holds


@pytest.mark.parametrize("horizon", [64, 144])
def test_asks_while_a_round_waits_are_said_and_priced(horizon):
    opt = optimizer(horizon, **DESIGN)
    never = opt.ask()
    for _ in range(horizon - 1):
        answer(opt, opt.ask())
    claimed = opt.guarantee
    assert claimed.holds
    asks, cost = claimed.extra_asks, claimed.extra_cost
    assert asks == horizon - math.isqrt(horizon)  # q_1 = sqrt(T)
    assert cost == pytest.approx(2 * VALID.norm_bound * asks)  # k(x, x) = 1
    assert f"plus at most {cost:.4g} for the {asks} asks" in str(claimed)
    assert any("come on top of Theorem 1's bound" in line for line in claimed.assumptions)
    again = optimizer(horizon, **DESIGN)
    again.load_state_dict(opt.state_dict())
    assert again.guarantee == claimed
    answer(opt, never)


def test_later_rounds_wait_at_the_price_of_their_bounds():
    opt = optimizer(100, **DESIGN | {"confidence": bd.RKHSConfidence(1.0, 0.02)})
    while opt.round in (None, 1):
        answer(opt, opt.ask())
    first = opt.rounds[0]
    assert first.extra_asks == 0
    assert 0.0 < 4.0 * first.half_width < 2.0
    trials = opt.ask(first.active_after + 100 - len(opt.trials) - first.active_after)
    extra = opt.guarantee.extra_asks
    assert extra == max(len(trials) + 1 - opt._rounds.open.design_size, 0) > 0
    assert opt.guarantee.extra_cost == pytest.approx(4.0 * first.half_width * extra)


def test_no_extra_asks_are_counted_where_every_answer_is_in_time():
    opt = optimizer(100, **PLAYING)
    for _ in range(100):
        answer(opt, opt.ask())
    assert len(opt.rounds) > 1
    assert opt.guarantee.extra_asks == 0
    assert "plus at most" not in str(opt.guarantee)


def test_a_design_point_that_has_to_wait_for_another_trial_of_its_point_is_a_wait():
    points = bd.FiniteDomain(scattered(3))
    options = PLAYING | NO_REPEATS | {"covar_module": se(), "noise_var": NOISE}
    opt = bd.BPEDelayOptimizer(points, 100, **options | {"explore_fraction": 1.0})
    opt.ask(6)  # three design points; then every point has a running trial
    assert [t.slot for t in opt.trials[:3]] == [0, 1, 2]
    assert all(t.slot < 0 for t in opt.trials[3:])
    assert opt.guarantee.extra_asks == 3


def late_by(opt, steps, asks):
    """Ask ``asks`` times, each answer ``steps`` asks late."""
    for _ in range(asks):
        opt.ask()
        if len(opt.trials) > steps:
            answer(opt, opt.trials[len(opt.trials) - 1 - steps])


def test_delays_that_the_law_does_not_allow_end_the_claim():
    law = {"delay": bd.PoissonDelay(2.0)}
    limit = bd.PoissonDelay(2.0).upper_bound(300, 0.1)
    kept, broken = optimizer(300, **DESIGN | law), optimizer(300, **DESIGN | law)
    late_by(kept, int(limit), 200)
    assert len(kept.rounds) == 2
    assert kept.guarantee.holds
    late_by(broken, 60, 100)
    assert broken.rounds[0].observed == 0
    assert broken.rounds[0].departures == (Departure.UNANSWERED,)
    missing = broken.guarantee.missing
    assert any("closed before all its design points were answered" in line for line in missing)
    assert any("trials took longer than u_T" in line for line in missing)
    # A single trial beyond u_T counts too, running or given up, though no bound needs it.
    single = optimizer(300, **DESIGN | law)
    for _ in range(20):  # q_1 = 18
        answer(single, single.ask())
    straggler = single.ask()
    for _ in range(int(limit)):
        answer(single, single.ask())
    assert single.guarantee.holds
    answer(single, single.ask())
    assert not single.guarantee.holds
    single.mark_abandoned(straggler)
    assert not single.guarantee.holds


def test_the_end_of_the_last_round_is_not_overdue():
    opt = optimizer(40, **DESIGN | {"delay": bd.ConstantDelay(6)})
    late_by(opt, 6, 40)
    opt.finish()
    assert opt.guarantee.holds


@pytest.mark.usefixtures("small_searches")
@pytest.mark.parametrize("mode", [*MODES, "box"])
def test_answers_that_contradict_the_constants_end_the_claim(mode):
    tiny = {"confidence": bd.RKHSConfidence(0.05, 0.01)}
    opt = box(se(), **tiny) if mode == "box" else optimizer(40, **MODES[mode] | tiny)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", RefutedWarning)
        for number in range(14):
            opt.tell(opt.ask(), 40.0 if number % 2 else -40.0)
            assert not opt.guarantee.holds
    assert len(caught) == 1
    assert "subtract a typical value" in str(caught[0].message)
    claimed = opt.guarantee
    assert claimed.norm_at_least > 100.0
    assert f"need a norm of at least {claimed.norm_at_least:.4g}" in str(claimed)
    certificate = opt.certificate
    assert certificate.refuted
    assert certificate.regret == certificate.gap == math.inf
    assert "Nothing is certified: norm_bound is 0.05, and the answers need" in str(certificate)


@pytest.mark.filterwarnings("error:The answers contradict norm_bound")
def test_a_warning_of_a_refuted_claim_comes_last_and_again_after_a_correction():
    opt = optimizer(3, **DESIGN | {"confidence": bd.RKHSConfidence(1.0, 0.01)})
    asked = opt.ask(3)
    opt.tell(asked[0], 0.0)
    opt.tell(asked[1], 0.0)
    with pytest.raises(RefutedWarning):
        opt.tell(asked[2], 99.0)
    assert len(opt.rounds) == 1  # the last round is closed all the same
    opt.correct(asked[2], 0.0)
    with pytest.raises(RefutedWarning):
        opt.correct(asked[1], 99.0)


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_half_the_norm_is_found_out_and_the_norm_is_not(share):
    problem = paper_problem(lengthscale=0.8, seed=0)
    g = generator(0)
    opt = bd.BPEDelayOptimizer(
        problem.domain,
        100,
        covar_module=problem.covar_module,
        noise_var=4e-4,
        confidence=bd.RKHSConfidence(share * problem.norm, problem.noise_std),
        exploit=None,
    )
    for number in range(1, 101):
        trial = opt.ask()
        noise = problem.noise_std * torch.randn((), dtype=torch.double, generator=g).item()
        opt.tell(trial, problem.values[trial.index].item() + noise)
        assert opt.guarantee.norm_at_least <= problem.norm
        if share < 1.0 and number == 30:
            assert not opt.guarantee.holds
    assert opt.guarantee.holds == (share == 1.0)
    assert opt.guarantee.norm_at_least > 0.8 * problem.norm
    void = "void, as the answers contradict norm_bound and noise_std"
    for text in (str(opt), opt.recommend().interval, opt.predict(trial.x[None]).interval):
        assert (void in text) == (share < 1.0)


@pytest.mark.heavy
@pytest.mark.parametrize("mode", ["design", "rule", "guaranteed"])
def test_a_norm_that_is_too_small_is_found_out_or_not(capsys, mode):
    """Print how soon, by the share of the norm that is given (figures in REPORT.md).

    The guaranteed preset often goes on with half the norm: it asks where the wrong bounds allow the
    maximiser, and need not come near what contradicts them.
    """
    n = repeats(20, 1)
    for share in (1.0, 0.9, 0.75, 0.5):
        asks = []
        for lengthscale, seed in itertools.product((0.8, 1.0), range(n)):
            problem, g = paper_problem(lengthscale=lengthscale, seed=seed), generator(seed)
            known = {"covar_module": problem.covar_module, "noise_var": 4e-4}
            claimed = bd.RKHSConfidence(share * problem.norm, problem.noise_std)
            if mode == "guaranteed":
                constants = {"norm_bound": share * problem.norm, "noise_std": problem.noise_std}
                opt = bd.BPEDelayOptimizer.guaranteed(problem.domain, 200, **known, **constants)
            else:
                exploit = UCB if mode == "rule" else None
                opt = bd.BPEDelayOptimizer(
                    problem.domain, 1000, **known, confidence=claimed, exploit=exploit
                )
            while len(opt.trials) < 200 and opt.guarantee.holds:
                trial = opt.ask()
                noise = problem.noise_std * torch.randn((), dtype=torch.double, generator=g).item()
                opt.tell(trial, problem.values[trial.index].item() + noise)
            if not opt.guarantee.holds:
                asks.append(len(opt.trials))
        with capsys.disabled():
            print(f"\n{mode}, {share:g} of the norm: refuted in {len(asks)} of {2 * n}, at {asks}")
        assert share < 1.0 or not asks
        if mode != "guaranteed":
            assert share > 0.5 or (len(asks) == 2 * n and max(asks) <= 40)


def test_contradictions_of_noise_are_found_out_as_well():
    opt = optimizer(**DESIGN | {"confidence": bd.RKHSConfidence(100.0, 0.05)}, horizon=400)
    for number in range(200):
        trial = opt.ask()
        opt.tell(trial, 1.0 if number % 2 else -1.0)
    assert not opt.guarantee.holds


def test_answers_told_with_more_noise_say_nothing_of_the_norm():
    budget = {"confidence": bd.RKHSConfidence(2.0, 0.01), "exploit": bd.WithinBudget(factor=1.25)}
    for options in (DESIGN | {"confidence": bd.RKHSConfidence(2.0, 0.01)}, budget):
        opt = optimizer(**options)
        for number in range(20):
            opt.tell(
                opt.ask(), 14.0 if number == 5 else 0.1, noise_var=200.0 if number == 5 else None
            )
        assert opt.guarantee.norm_at_least <= 2.0
        assert next(iter(opt.guarantee.missing)).startswith(
            "an answer was told with a noise variance above noise_std squared"
        )
    opt.mark_failed(opt.ask())
    assert "certificate still holds" not in str(opt.guarantee)
    assert not opt.certificate.refuted  # the certificate leaves that answer out, and says so
    assert opt.certificate.answers == 19
    assert "1 so far, left out" in str(opt.certificate)


@pytest.mark.parametrize("evidence", ["all", "round"])
def test_noise_of_attached_results_ends_claims_that_rest_on_them(evidence):
    options = DESIGN | {"evidence": evidence, "confidence": bd.RKHSConfidence(2.0, 1.0)}
    opt, again = optimizer(**options), optimizer(**options)
    opt.attach(opt.domain.points[0], 0.1, NOISE)
    assert not any("noise variance" in line for line in opt.guarantee.missing)
    opt.attach(opt.domain.points[0], 0.2, 200.0)
    again.load_state_dict(opt.state_dict())
    for run in (opt, again):
        told = [line for line in run.guarantee.missing if "noise variance" in line]
        assert len(told) == (2 if evidence == "all" else 0)


def test_results_attached_again_are_warned_about():
    opt = optimizer(**DESIGN | {"evidence": "all"})
    x = opt.domain.points
    opt.attach(x[:3], torch.tensor([0.1, 0.2, 0.3], dtype=torch.double))
    opt.attach(x[0], 0.15)
    with pytest.warns(RepeatedResultWarning, match="2 of the attached results"):
        opt.attach(x[:4], torch.tensor([0.1, 0.25, 0.3, 0.4], dtype=torch.double))
    assert any("attached once" in line for line in opt.guarantee.assumptions)
    again = optimizer(**DESIGN | {"evidence": "all"})
    again.load_state_dict(opt.state_dict())
    with pytest.warns(RepeatedResultWarning, match="1 of"):
        again.attach(x[3], 0.4)
    for options in ({"exact": True, "noise_var": None}, {"evidence": "round"}):
        other = optimizer(**DESIGN | options)  # no bound depends on how often it is attached
        other.attach(x[0], 0.1)
        other.attach(x[0], 0.1)


@pytest.mark.parametrize(
    ("options", "named"),
    [({"evidence": "all"}, True), ({"exact": True, "noise_var": None}, True), ({}, False)],
    ids=["all", "exact", "round"],
)
def test_attached_results_outside_the_domain_need_a_norm_bound_there(options, named):
    opt = optimizer(**DESIGN | options)
    opt.attach(opt.domain.points[0], 0.0)
    assert not any("outside the domain" in line for line in opt.guarantee.assumptions)
    opt.attach(opt.domain.points[0] + 5.0, 0.1)
    assert any("outside the domain" in line for line in opt.guarantee.assumptions) == named
    opt.detach(1)
    assert not any("outside the domain" in line for line in opt.guarantee.assumptions)


def test_what_was_asked_again_is_named_with_its_number():
    opt = optimizer(**DESIGN)
    for number in range(30):
        trial = opt.ask()
        if number % 5:
            answer(opt, trial)
        else:
            opt.mark_abandoned(trial)
    claimed = opt.guarantee
    assert claimed.holds
    assert any("6 design points were abandoned before" in line for line in claimed.assumptions)
    assert any("timeout that depends on the value" in line for line in claimed.assumptions)
    assert claimed.extra_asks == 6


class Guess(bd.RKHSConfidence):
    """A user's own bounds that prove nothing."""

    @property
    def missing(self):
        return ("the norm is a guess.",)


class Sure(bd.Confidence):
    """A user's own bounds that claim to be valid."""

    missing, assumptions = (), ()

    def fixed_design(self, evidence):
        return HalfWidth(1e-6)

    def adaptive(self, evidence):
        return HalfWidth(1e-6, words="sure")


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("missing", "a guess.", "missing of Unfinished must be a tuple of sentences, got 'a guess"),
        ("missing", None, "missing of Unfinished must be a tuple of sentences, got None"),
        ("assumptions", (3,), r"assumptions of Unfinished must be a tuple of sentences, got \(3"),
        ("constants", (2.0, 0.1), r"constants of Unfinished must be Constants\(norm_bound, noise"),
        ("constants", bd.Constants(2.0, "x"), "noise_std in constants of Unfinished must be a num"),
        ("constants", bd.Constants(-2.0, 1.0), "norm_bound in constants of Unfinished must be abo"),
        ("fixed_design", lambda *_: (1, 2), r"fixed_design of Unfinished .* HalfWidth, got \(1"),
        ("adaptive", lambda *_: (1, 2), r"adaptive of Unfinished must return a HalfWidth, got \(1"),
    ],
)
def test_slips_in_bounds_of_a_user_s_own_are_named_before_the_first_ask(name, value, message):
    confidence = type("Unfinished", (Sure,), {name: value})()
    with pytest.raises(bd.exceptions.InputError, match=message):
        optimizer(confidence=confidence, exploit=None)


class ListsOnly(Sure):
    missing = ("heuristic.",)

    def fixed_design(self, evidence):
        if evidence.count is None:
            raise bd.exceptions.NotSupportedError("lists only")
        return HalfWidth(2.0)


def test_bounds_that_refuse_a_domain_are_refused_before_the_first_ask_with_a_learned_kernel():
    box = bd.BoxDomain(torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.double))
    with pytest.raises(bd.exceptions.NotSupportedError, match="lists only"):
        bd.BPEDelayOptimizer(box, 25, confidence=ListsOnly())


def test_half_widths_are_checked():
    assert type(HalfWidth(torch.tensor(3.0)).multiplier) is float  # else no file could hold it
    with pytest.raises(bd.exceptions.InputError, match="multiplier"):
        HalfWidth(float("nan"))


def test_nothing_is_certified_with_bounds_that_prove_nothing():
    with pytest.raises(bd.exceptions.InputError, match="WithinBudget needs valid bounds"):
        optimizer(confidence=Guess(2.0, 0.2), exploit=bd.WithinBudget())


def test_a_confidence_of_a_user_s_own_is_an_assumption():
    opt = optimizer(confidence=Sure(), exploit=None)
    for _ in range(20):
        answer(opt, opt.ask())
    guarantee = opt.guarantee
    assert guarantee.norm_at_least is None
    assert any("no norm bound" in line for line in guarantee.assumptions)
    assert not any("no norm bound" in line for line in optimizer(**DESIGN).guarantee.assumptions)


def test_of_bounds_of_a_user_s_own_nothing_is_said_of_the_maximiser_on_a_box():
    claimed = str(box(se(), confidence=Sure()).guarantee)
    assert "does not say that its bounds hold at every point of a box" in claimed
    assert "never eliminated" not in claimed


def test_on_a_box_a_bound_that_does_not_hold_there_claims_nothing():
    class Box(Sure):
        holds_on_box = True

    assert box(se(), confidence=Box()).guarantee.holds
    claimed = box(se(), confidence=Sure()).guarantee
    assert not claimed.holds
    assert "Sure does not say that its bounds hold at every point of a box" in str(claimed)


def test_the_law_of_delays_is_an_assumption_whatever_bounds_use():
    for options in (DESIGN, {"evidence": "all", "exploit": None}):
        opt = optimizer(**{**options, "delay": bd.PoissonDelay(2.0)})
        assert any("with the law PoissonDelay" in line for line in opt.guarantee.assumptions)


def test_what_a_guarantee_lacks_is_said_in_the_words_of_the_call():
    given = {"covar_module": se(), "noise_var": 0.04, "norm_bound": 2.0, "noise_std": 0.2}
    domain = bd.FiniteDomain(scattered(8))
    for name in ("covar_module", "noise_var", "horizon"):
        with pytest.raises(bd.exceptions.InputError, match=f"A guarantee needs {name}"):
            bd.BPEDelayOptimizer.guaranteed(domain, **{"horizon": 10, **given, name: None})
    for delta in (2, "0.1"):
        with pytest.raises(
            bd.exceptions.InputError, match=r"delta must .*(got 2\.0|got str '0\.1')"
        ):
            bd.BPEDelayOptimizer.guaranteed(domain, 10, **given, delta=delta)
    with pytest.raises(bd.exceptions.InputError, match="Wrap points with FiniteDomain"):
        bd.BPEDelayOptimizer.guaranteed(scattered(8), 10, **given)


def test_a_set_of_one_point_has_a_claim_of_no_regret():
    opt = bd.BPEDelayOptimizer.guaranteed(
        bd.FiniteDomain(torch.zeros(1, 1, dtype=torch.double)),
        8,
        covar_module=se(),
        noise_var=1e-2,
        norm_bound=3.0,
        noise_std=0.1,
    )
    opt.tell(opt.ask(), 1.0)
    assert opt.guarantee.holds
    assert "Any asks cost at most 0. certificate" in str(opt.guarantee)
