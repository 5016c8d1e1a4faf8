import logging

import pytest
import torch
from bpe_cases import answer, make, state_of, value
from cases import se

import botorch_delay as bd
from botorch_delay.exceptions import (
    EmptyDomainError,
)
from botorch_delay.history.trials import TrialState
from botorch_delay.optimizers import maximizer
from botorch_delay.optimizers.rule_model import failing_places

# Failures and abandonment


def test_a_failed_design_point_is_asked_again_and_its_answer_is_used():
    opt = make()
    trials = opt.ask(10)
    opt.mark_failed(trials[3], MemoryError("out of memory"))
    answer(opt, trials[:3] + trials[4:])
    again = opt.ask()
    assert (again.index, again.slot, again.round) == (trials[3].index, 3, 1)
    answer(opt, [again])
    opt.ask()
    assert opt.rounds[0].trial_ids == (0, 1, 2, 4, 5, 6, 7, 8, 9, 10)
    assert trials[3].state is TrialState.FAILED
    assert trials[3].reason == "MemoryError: out of memory"


def test_a_point_that_fails_three_times_is_out_of_the_domain():
    opt = make()
    trials = opt.ask(10)
    bad = trials[2].index
    answer(opt, trials[:2] + trials[3:])
    opt.mark_failed(trials[2])
    for _ in range(2):
        again = opt.ask()
        assert again.index == bad
        opt.mark_failed(again)
    assert bad not in opt.active_set.indices
    after = opt.ask()
    assert len(opt.rounds) == 1  # the round goes on without it
    assert 2 not in opt.rounds[0].trial_ids
    assert after.round == 2
    while len(opt.trials) < 100:
        trial = opt.ask()
        assert trial.index != bad
        answer(opt, [trial])


def test_a_point_that_has_answered_is_asked_again_at_most_twice_after_it_fails():
    opt = make(n=2, horizon=60)
    first = opt.ask()
    answer(opt, [first])
    bad, failures = first.index, 0
    while len(opt.trials) < 60:
        trial = opt.ask()
        if trial.index == bad:
            opt.mark_failed(trial)
            failures += 1
        else:
            answer(opt, [trial])
    assert failures == 3


def test_parallel_workers_do_not_pile_up_on_a_failed_point():
    opt = make(n=5, horizon=90)
    trial = opt.ask()
    opt.mark_failed(trial)
    asked = [t.index for t in opt.ask(20)]
    assert asked.count(trial.index) == 2
    alone = make(n=1, horizon=30)  # the only point is asked again all the same
    alone.mark_failed(alone.ask())
    assert len(alone.ask(10)) == 10


def test_infeasible_points_eliminate_nobody():
    points = torch.linspace(0, 1, 101).double().unsqueeze(-1)
    opt = bd.BPEDelayOptimizer(bd.FiniteDomain(points), 200, covar_module=se(0.3), noise_var=1e-4)
    for _ in range(200):
        trial = opt.ask()
        if trial.x.item() > 0.95:  # where f is largest
            opt.mark_failed(trial)
        else:
            opt.tell(trial, 2 * trial.x.item())
    assert len(opt.active_set) >= 1
    assert (opt.active_set.points <= 0.95).all()
    assert opt.domain.points[opt.active_set.indices].max() >= 0.9
    assert opt.rounds[-1].active_after == len(opt.active_set)
    assert not any("infeasible" in line for line in opt.guarantee.missing)


def test_a_point_that_mostly_answers_survives_crashes():
    opt = make(n=1, horizon=40)
    for number in range(40):
        trial = opt.ask()
        if number % 3 == 0:
            opt.mark_failed(trial)
        else:
            answer(opt, [trial])
    assert opt.active_set.indices.tolist() == [0]


def test_when_every_point_fails_it_says_so():
    opt = make(n=2, horizon=50)
    for _ in range(6):
        opt.mark_failed(opt.ask())
    with pytest.raises(EmptyDomainError, match=r"opt\.trials"):
        opt.ask()
    assert len(opt.trials) == 6
    assert len(opt.active_set) == 0


def test_an_interrupted_fit_leaves_the_optimizer_as_it_was(monkeypatch, tmp_path):
    opt = make(horizon=64, covar_module=None, noise_var=None)
    answer(opt, opt.ask(8))
    before = state_of(opt)

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("botorch_delay.optimizers.run.fit_surrogate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        opt.ask()
    assert state_of(opt) == before
    monkeypatch.undo()
    opt.ask()
    assert [r.number for r in opt.rounds] == [1]
    opt.save(tmp_path / "study.db")
    bd.load(tmp_path / "study.db")


def test_active_points_that_all_fail_bring_back_the_feasible_ones(caplog):
    opt = make(n=30, horizon=200, confidence=bd.FixedBeta(0.01), noise_var=1e-4)
    while len(opt.active_set) > 3:
        answer(opt, opt.ask(5))
        if len(opt.trials) > 150:
            pytest.fail("nothing was eliminated")
    doomed = set(opt.active_set.indices.tolist())
    with caplog.at_level(logging.WARNING):
        for _ in range(40):
            trial = opt.ask()
            if trial.index in doomed:
                opt.mark_failed(trial)
            else:
                answer(opt, [trial])
                break
        else:
            pytest.fail("the failing points were asked for ever")
    assert "infeasible" in caplog.text
    assert not opt.guarantee.holds
    assert any("infeasible" in line for line in opt.guarantee.missing)


def test_a_round_that_waits_for_other_trials_of_a_failed_point_names_them():
    opt = make(n=8, horizon=40)  # q_1 = 7
    trials = opt.ask(24)
    same = [t for t in trials if t.index == trials[0].index]
    assert len(same) == 3
    opt.mark_failed(same[0])  # the two others decide whether it is asked again
    answer(opt, [t for t in trials if t not in same])
    assert [s.trial for s in opt.stragglers] == same[1:]
    for trial in same[1:]:
        opt.mark_abandoned(trial)
    assert opt.stragglers == []
    again = opt.ask()
    assert again.index == same[0].index
    answer(opt, [again])
    opt.ask()
    assert len(opt.rounds) == 1


def test_an_abandoned_design_point_frees_the_round():
    opt = make()
    trials = opt.ask(10)
    answer(opt, trials[1:])
    opt.ask(3)
    assert opt.rounds == []
    (straggler,) = opt.stragglers
    assert straggler.trial is trials[0]
    assert straggler.asks == 12
    opt.mark_abandoned(trials[0])
    assert opt.stragglers == []
    opt.ask()
    assert opt.rounds[0].trial_ids == tuple(range(1, 10))
    opt.tell(trials[0], 5.0)  # a late answer
    assert trials[0].state is TrialState.COMPLETED
    assert trials[0].came_back
    assert opt.recommend().index == trials[0].index  # recommend() uses late answers


def test_a_late_answer_within_its_round_is_not_used_by_its_bounds():
    opt = make()
    trials = opt.ask(10)
    opt.mark_abandoned(trials[0])
    opt.tell(trials[0], 0.1)
    answer(opt, trials[1:])
    opt.ask()
    assert opt.rounds[0].trial_ids == tuple(range(1, 10))


def test_sigma_forgets_an_abandoned_point_and_keeps_a_failed_one():
    opt = make(n=8, horizon=900)  # q_1 = 30
    trials = opt.ask(8)
    assert sorted(t.index for t in trials) == list(range(8))
    opt.mark_abandoned(trials[2])
    assert opt.ask().index == trials[2].index
    others = make(n=8, horizon=900)
    trials = others.ask(8)
    for _ in range(3):
        failing = next(t for t in others.trials[::-1] if t.index == trials[2].index)
        others.mark_failed(failing)
        following = others.ask()
    assert following.index != trials[2].index


def test_where_regret_is_proved_an_abandoned_design_point_is_asked_again(tmp_path):
    opt = make(confidence=bd.RKHSConfidence(8.0, 0.1))
    trials = opt.ask(10)
    assert opt.ask().slot == 10  # the design goes on while the round waits
    answer(opt, trials[1:])
    opt.mark_abandoned(trials[0])
    assert opt.stragglers == []
    assert opt.forecast().earliest is False
    opt.tell(trials[0], 0.5)  # the late answer does not cancel asking again
    opt.save(tmp_path / "study.db")
    for one in (opt, bd.load(tmp_path / "study.db")):
        again = one.ask()
        assert (again.index, again.round, again.slot) == (trials[0].index, 1, 0)
        assert [s.trial for s in one.stragglers] == [again]
        answer(one, [again])
        assert one.ask().round == 2
        assert one.rounds[0].trial_ids == (*range(1, 10), 11)
        assert one.guarantee.holds
        assert len(one.trials) == 13


def test_the_design_goes_on_as_if_the_answer_were_still_to_come(tmp_path):
    options = {"n": 8, "horizon": 900, "confidence": bd.RKHSConfidence(8.0, 0.1)}  # q_1 = 30
    opt, whole = make(**options), make(**options)
    lost = opt.ask(8)[2]
    opt.mark_abandoned(lost)
    opt.save(tmp_path / "study.db")
    whole.ask(8)
    following = [t.index for t in whole.ask(9)]
    for one in (opt, bd.load(tmp_path / "study.db")):
        again, *others = one.ask(10)
        assert again.index == lost.index
        assert [t.index for t in others] == following


def test_under_a_delay_law_a_round_goes_without_what_was_abandoned():
    opt = make(confidence=bd.RKHSConfidence(8.0, 0.1), delay=bd.ConstantDelay(3))
    opt.mark_abandoned(opt.ask())
    assert opt.ask().slot == 1


@pytest.mark.parametrize("confidence", [None, bd.RKHSConfidence(8.0, 1e-4)])
@pytest.mark.parametrize("how", ["a late answer", "attached", "failed, and attached"])
def test_where_evaluations_are_exact_any_answer_at_the_point_will_do(how, confidence):
    opt = make(noise_var=None, exact=True, confidence=confidence)
    lost, *others = opt.ask(10)
    answer(opt, others)
    if how == "failed, and attached":
        opt.mark_failed(lost)
    else:
        opt.mark_abandoned(lost)
    if how == "a late answer":
        answer(opt, [lost])
    else:
        opt.attach(lost.x, value(lost))
    assert opt.stragglers == []
    proved = confidence is not None
    assert opt.guarantee.holds == proved
    assert opt.ask().round == 2
    assert opt.guarantee.holds == proved


@pytest.mark.parametrize(
    "options",
    [{"noise_var": None, "exact": True}, {"rounds": bd.HorizonRounds(1.0)}],
    ids=["exact", "stragglers"],
)
def test_elsewhere_a_round_goes_without_what_was_abandoned(options):
    opt = make(confidence=bd.RKHSConfidence(8.0, 1e-4), **options)
    lost, *others = opt.ask(10)
    answer(opt, others)
    opt.mark_abandoned(lost)
    # With exact evaluations another answer for the point may come until the round closes.
    assert opt.guarantee.holds == (options.get("exact") is True)
    assert opt.ask().round == 2
    assert any("given up:" in line for line in opt.guarantee.missing)


def test_with_a_delay_law_an_exact_round_tells_once_it_has_closed():
    valid = {"confidence": bd.RKHSConfidence(8.0, 1e-4), "delay": bd.ConstantDelay(3)}
    opt = make(horizon=400, noise_var=None, exact=True, **valid)
    lost = opt.ask()
    opt.mark_abandoned(lost)
    assert opt.guarantee.holds
    while opt.round == 1:
        trial = opt.ask()
        if trial.index == lost.index:
            opt.mark_abandoned(trial)
        else:
            answer(opt, [trial])
    assert any("given up:" in line for line in opt.guarantee.missing)


def test_a_design_point_that_is_being_evaluated_exactly_is_not_waited_for_twice():
    opt = make(n=12, noise_var=None, exact=True, exploit=bd.UCB(4.0), explore_fraction=1.0)
    lost, *others = opt.ask(10)
    answer(opt, others)
    opt.mark_failed(lost)
    again = opt.ask()
    assert (again.index, again.slot) == (lost.index, lost.slot)
    answer(opt, [again])
    assert opt.ask().round == 2


def test_of_what_was_given_up_three_times_sigma_knows_nothing(tmp_path):
    """Abandoned three times, here or before a load, a point no longer lowers sigma."""
    opt = make(n=8, horizon=900, confidence=bd.RKHSConfidence(8.0, 0.1))  # q_1 = 30
    lost = opt.ask(8)[2]
    for _ in range(3):
        opt.save(tmp_path / "study.db")
        loaded = bd.load(tmp_path / "study.db")
        for one in (opt, loaded):
            one.mark_abandoned(lost.id)
        assert [t.index for t in loaded.ask(4)] == [t.index for t in opt.ask(4)]
        lost = opt.trials[-4]
        assert lost.index == opt.trials[2].index
    assert lost.slot > 2  # a new design point: its deviation is the largest again


# Places where trials fail, with a learned kernel

BOX = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.double)


def bowl(x):
    """Best at 0.7, but trials fail (None) where the first column is above 0.5."""
    return None if x[0] > 0.5 else -float((x - 0.7).square().sum())


def played(domain, asks=32, **options):
    opt = bd.BPEDelayOptimizer(domain, 60, seed=0, **options)
    for _ in range(asks):
        trial = opt.ask()
        y = bowl(trial.x)
        opt.mark_failed(trial) if y is None else opt.tell(trial, y)
    return opt


@pytest.mark.parametrize("kind", ["box", "set"])
def test_places_where_trials_fail_are_left_out(kind, monkeypatch):
    grid = torch.linspace(0, 1, 25, dtype=torch.double)
    domain = bd.BoxDomain(BOX)
    if kind == "set":
        domain = bd.FiniteDomain(torch.cartesian_prod(grid, grid))

    def late_failures():
        return sum(trial.state is TrialState.FAILED for trial in played(domain).trials[16:])

    assert late_failures() <= 12
    if kind == "box":
        return
    monkeypatch.setattr(maximizer, "failing_places", lambda *_: None)
    assert late_failures() >= 14  # without that model asks stay near the best answers


def where_trials_fail(opt):
    model = opt._maximizer.model
    return failing_places(model.surrogate, model.feasibility, model.answers.anywhere.data.X)


def test_once_a_point_has_failed_only_tried_ones_are_recommended():
    generator = torch.Generator().manual_seed(0)
    opt = bd.BPEDelayOptimizer(bd.BoxDomain(BOX), 60, seed=0)
    noise = 0.05 * torch.randn(58, generator=generator, dtype=torch.double)
    running, *trials = opt.ask(59)
    for trial, e in zip(trials, noise.tolist(), strict=True):
        opt.tell(trial, -float((trial.x - 0.7).square().sum()) + e)
    assert opt.recommend().count == 0
    opt.mark_failed(running)
    found = opt.recommend()
    assert found.count >= 1
    assert torch.equal(found.x, opt.recommend(tried=True).x)


def test_one_failure_among_answers_is_an_accident():
    opt = bd.BPEDelayOptimizer(bd.BoxDomain(BOX), 60, seed=0)
    X = torch.tensor([[0.1, 0.1], [0.9, 0.1], [0.1, 0.9]], dtype=torch.double)
    opt.attach(X, torch.zeros(3).double())
    trial = opt.ask()
    assert where_trials_fail(opt) is None
    opt.mark_failed(trial)
    opt._maximizer.update()
    fails = where_trials_fail(opt)
    here, away = trial.x.unsqueeze(0), (trial.x + 0.3).unsqueeze(0)
    assert fails(torch.cat([here, away])).tolist() == [True, False]
    opt.attach(trial.x + 0.01, 0.0)
    fails = where_trials_fail(opt)
    assert fails(here).tolist() == [False]


def test_where_everything_fails_something_is_asked():
    domain = bd.FiniteDomain(torch.tensor([[0.0], [0.01], [0.02]], dtype=torch.double))
    opt = bd.BPEDelayOptimizer(domain, 20, seed=0)
    opt.mark_failed(opt.ask())
    opt.attach(torch.tensor([[0.9], [0.95], [1.0]], dtype=torch.double), torch.ones(3).double())
    assert opt.ask().index is not None


def test_with_a_kernel_of_the_user_s_no_place_is_left_out():
    opt = played(bd.BoxDomain(BOX), asks=6, covar_module=se(), noise_var=1e-3)
    assert where_trials_fail(opt) is not None
    _, allowed = opt._maximizer._allowed(None)
    assert torch.equal(allowed, opt._maximizer._within)
