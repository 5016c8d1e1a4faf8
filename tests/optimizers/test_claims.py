"""What a run may do to a claim, and bounds that keep what they promise."""

from dataclasses import replace

import pytest
import torch
from bpe_cases import make
from cases import generator, scattered, se

import botorch_delay as bd
from botorch_delay.optimizers.claims import History, claim
from botorch_delay.optimizers.replica import PastTrial, Replica
from botorch_delay.trials import TrialState

NOISE = 0.01
VALID = bd.RKHSConfidence(2.0, 0.2)  # told noise variances up to 0.04 do not contradict it
PLAYING = {"confidence": VALID, "exploit": bd.UCB(4.0), "explore_fraction": 0.5}
DESIGN = {"confidence": VALID, "exploit": None}
GIVEN_UP = "a design point was given up"


def optimizer(horizon=60, **options):
    options = {"covar_module": se(), "noise_var": NOISE} | options
    return bd.BPEDelayOptimizer(bd.FiniteDomain(scattered(30)), horizon, **options)


def answer(opt, trial, **options):
    opt.tell(trial, 0.1 * trial.index, **options)


def design_point(opt):
    """The next design point that is asked; the rule's points are answered on the way."""
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
    assert "the maximiser is never eliminated all the same, if it was" in str(opt.guarantee)
    copy = optimizer(**options)
    copy.load_state_dict(opt.state_dict())
    assert copy.guarantee == opt.guarantee


@pytest.mark.parametrize("options", [DESIGN, PLAYING], ids=["design", "playing"])
def test_lost_workers_cost_asks_and_no_claim(options):
    """Every fourth trial is lost: each design point gets its answer, as in a run without losses."""
    lossy, whole = optimizer(400, **options), optimizer(400, **options)
    for _ in range(320):
        for opt in (lossy, whole):
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
    if options is DESIGN:  # the points that a rule plays have no part in the design either
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
        "the bound charges; the maximiser is never eliminated all the same."
    ]


def test_a_straggler_may_be_given_up_once_its_round_has_closed():
    opt = optimizer(**DESIGN, straggler_factor=5.0)
    trials = opt.ask(8)  # q_1 = 8
    for trial in trials[1:]:
        answer(opt, trial)
    opt.ask()
    assert opt.rounds[0].observed == 7
    opt.mark_abandoned(trials[0])
    assert opt.guarantee.holds
    assert any("before its round closes" in line for line in opt.guarantee.assumptions)
    opt = optimizer(**DESIGN, straggler_factor=5.0)
    trials = opt.ask(8)
    opt.mark_abandoned(trials[0])
    for trial in trials[1:]:
        answer(opt, trial)
    for _ in range(2):  # the round is open, and closed
        assert [line.split(":")[0] for line in opt.guarantee.missing] == [GIVEN_UP]
        opt.ask()


def test_a_copy_made_from_the_trials_knows_of_a_missing_answer():
    """Trials were given up, and one answered when its round had closed: read anew it looks so."""
    kept, store = Replica(lambda: optimizer(**DESIGN)), {}
    done = {"state": TrialState.COMPLETED, "value": 0.1}
    for number in range(12):
        kept.sync(store.values())
        asked = kept.ask(number)
        store[number] = PastTrial(number, asked.trial.x, TrialState.RUNNING, note=asked.note)
        if number == 7:  # q_1 = 8
            store = {i: replace(past, **done) for i, past in store.items()}
        if number in (7, 8, 9):  # the last one, and twice its point again
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
    opt.mark_abandoned(trials[0])  # a design point, but no ask follows on its round
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
    assert any("no trial fails" in line for line in opt.guarantee.assumptions)
    opt.mark_failed(opt.ask())
    assert any("a trial failed while a rule plays" in line for line in opt.guarantee.missing)
    alone = optimizer(**DESIGN)
    alone.mark_failed(alone.ask())
    assert alone.guarantee.holds


def test_crashes_that_take_a_point_out_are_an_assumption():
    text = str(optimizer(**DESIGN).guarantee)
    assert "the maximiser never fails 3 times without an answer in between" in text


@pytest.mark.parametrize("noise_var", [NOISE / 2, 0.2**2], ids=["less", "more"])
def test_noise_variances_that_were_told(noise_var):
    opt = optimizer(**DESIGN)
    answer(opt, opt.ask(), noise_var=NOISE * (1 + 1e-7))  # as in single precision
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
    total = (
        0.0  # of sqrt(q_r) c sqrt(g), by the rounds of a long run; sqrt(T) c is one of Theorem 1
    )
    sizes = [4**r for r in range(9)]
    for last in range(1, 4**9, 997):
        asks = sum(sizes) + last
        total = sum(n / (n / 4) ** 0.5 for n in sizes[1:]) + last / sizes[-1] ** 0.5
        assert total <= 4.0 * asks**0.5
    assert guarantee().factor == pytest.approx(0.5**-0.5)


def test_values_may_not_decide_on_designs_of_fixed_length():
    options = {"delay": bd.NoDelay(), "exploit": bd.UCB(4.0), "confidence": VALID}
    assert optimizer(**options).guarantee.holds
    assert not optimizer(**options, repeat_pending=False).guarantee.holds


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
    history = History(given_up=True)
    found = claim(VALID, None, 0.1, learned=False, resets=0, history=history)
    assert "the maximiser is never eliminated all the same" in str(found)
    assert not found.holds


# The last round


def steep(horizon, asks, **options):
    """A run whose first points are judged as soon as their round closes."""
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
        (PLAYING | {"repeat_pending": False}, False),
        (DESIGN | {"repeat_pending": False}, True),
        (PLAYING | {"explore_fraction": None, "regret_factor": 1.25}, False),
    ],
    ids=["design", "playing", "no repeats", "design without repeats", "budget"],
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


@pytest.mark.filterwarnings("ignore")  # of single precision, and that rounding matters
def test_bounds_from_all_answers_give_back_what_rounding_took():
    """In single precision variances cancel: without the allowance maximisers are lost here."""
    X = torch.linspace(0, 1, 300, dtype=torch.double).unsqueeze(-1)
    K = se(0.3)(X, X).to_dense().detach()
    kernel = se(0.3).float()
    for seed in range(12):
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
    answer(plain, plain.ask())
    assert plain.recommend().interval.count("heuristic") == 1
