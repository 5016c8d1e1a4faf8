"""Answers that were told wrongly, results that are taken back, and runs that go on."""

import copy
import warnings

import pytest
import torch
from cases import line, scattered, se

import botorch_delay as bd
from botorch_delay.exceptions import HorizonError, InputError, OutlierWarning, TrialError
from botorch_delay.history.trials import TrialState

pytestmark = pytest.mark.usefixtures("small_searches")

VALID = bd.RKHSConfidence(2.0, 0.2)
PARTS = {"covar_module": se(), "noise_var": 0.04, "confidence": VALID}
DESIGN = PARTS | {"exploit": None}
BUDGET = PARTS | {"exploit": bd.WithinBudget()}
ALL = DESIGN | {"evidence": "all"}


def optimizer(horizon=40, **options):
    return bd.BPEDelayOptimizer(bd.FiniteDomain(scattered(30)), horizon, **options)


def play(opt, asks, wrong=()):
    """Ask and answer; trials in ``wrong`` get an answer 0.5 too high, too little to be suspect."""
    for _ in range(asks):
        trial = opt.ask()
        opt.tell(trial, 0.01 * trial.index + (0.5 if trial.id in wrong else 0.0))
    return opt


def right(trial):
    return 0.01 * trial.index


def best(opt):
    found = opt.recommend()
    return found.index, found.mean, found.lower, found.upper


def reopened(opt, path):
    opt.save(path)
    return bd.load(path)


# Corrections


def test_a_corrected_run_computes_what_one_that_was_told_right_does():
    wrong, told = (optimizer(covar_module=se(), noise_var=0.04) for _ in range(2))
    for opt, slips in ((wrong, {3}), (told, set())):
        for trial in opt.ask(8):
            opt.tell(trial, right(trial) + (0.5 if trial.id in slips else 0.0))
    wrong.correct(3, right(wrong.trials[3]), "two digits swapped")
    assert best(wrong) == best(told)
    assert wrong.ask(4)[-1].index == told.ask(4)[-1].index
    (said,) = wrong.trials[3].corrections
    assert said.value == right(wrong.trials[3]) + 0.5
    assert said.reason == "two digits swapped"


def test_what_was_learned_from_a_wrong_answer_is_learned_anew():
    opt, told = (bd.BPEDelayOptimizer(bd.FiniteDomain(line(9)), 30) for _ in range(2))
    for trial, other in zip(opt.ask(7), told.ask(7), strict=True):
        told.tell(other, (6.0 * other.x).sin().item())
        opt.tell(trial, told.trials[trial.id].value * (-1.0 if trial.id % 2 else 1.0))
    opt.ask()  # fits the kernel to the wrong answers
    stale = opt.hyperparameters
    for trial in opt.trials[1:7:2]:
        opt.correct(trial, told.trials[trial.id].value)
    assert opt.hyperparameters != stale
    fresh, right = opt.hyperparameters.lengthscale, told.hyperparameters.lengthscale
    assert fresh == pytest.approx(right, rel=0.05)


def test_an_answer_may_become_a_failure_and_a_failure_an_answer(tmp_path):
    opt = optimizer(**DESIGN)
    first, second = opt.ask(2)
    opt.tell(first, 1.0)
    opt.mark_failed(second, "no power")
    opt.correct(first, None, "of another sample")
    opt.correct(second, 0.3, "found in the notebook")
    assert (first.state, first.value, first.reason) == (
        TrialState.FAILED,
        None,
        "of another sample",
    )
    assert (second.state, second.value, second.reason) == (TrialState.COMPLETED, 0.3, "")
    assert (second.corrections[0].value, second.corrections[0].failure) == (None, "no power")
    assert opt.ask().index == first.index  # a failed point is asked again
    again = reopened(opt, tmp_path / "study.db")
    assert [t.corrections for t in again.trials] == [t.corrections for t in opt.trials]


@pytest.mark.parametrize("asks", [2, 6])
def test_an_answer_in_the_place_of_a_failure_is_late_as_that_of_a_running_trial(asks):
    for fails in (False, True):
        opt = bd.AcquisitionOptimizer(
            bd.FiniteDomain(line(21)),
            covar_module=se(),
            noise_var=0.01,
            rule=bd.UCB(0.1),
            pending=bd.Censor(-1.0, max_delay=4),
        )
        out = opt.ask()
        if fails:
            opt.mark_failed(out)
        for _ in range(asks):
            opt.tell(opt.ask(), 0.0)
        (opt.correct if fails else opt.tell)(out, 5.0)
        again = copy.deepcopy(opt)
        again.load_state_dict(opt.state_dict())
        for each in (opt, again):
            each.ask()
            there = [*each._maximizer.model.answers._points[out.index].answers.values()]
            assert (5.0 in [value for value, _, _ in there]) is (asks == 2)


def test_what_cannot_be_corrected_says_what_to_do():
    opt = optimizer()
    running, lost, failed = opt.ask(3)
    opt.mark_abandoned(lost)
    opt.mark_failed(failed)
    for trial in (running, lost):
        with pytest.raises(TrialError, match=rf"tell\({trial.id}, value\)"):
            opt.correct(trial, 1.0)
    with pytest.raises(TrialError, match="failed already"):
        opt.correct(failed, None)
    with pytest.raises(InputError, match="Pass None if the evaluation gave no usable value"):
        opt.correct(failed, float("nan"))
    with pytest.raises(TrialError, match=r"correct\(2, value\)"):
        opt.tell(failed, 1.0)


def test_an_exact_answer_that_is_withdrawn_may_be_asked_again():
    opt = bd.RandomOptimizer(bd.FiniteDomain(line(2)), exact=True)
    for trial in opt.ask(2):
        opt.tell(trial, 1.0)
    opt.correct(1, None)
    assert opt.ask().index == opt.trials[1].index


def test_a_queue_corrects_what_it_has_told_and_tells_what_it_has_corrected():
    opt = bd.QueuedOptimizer(bd.RandomOptimizer(bd.FiniteDomain(line(3)), seed=1))
    first, second = opt.ask(2)
    opt.tell(first, 1.0)
    opt.tell(second, 2.0)
    opt.correct(second, 3.0)
    opt.ask()
    assert [trial.value for trial in opt.base.trials if trial.value is not None] == [1.0]
    opt.correct(first, 4.0)
    assert opt.base.trials[0].value == 4.0
    copied = bd.QueuedOptimizer(bd.RandomOptimizer(bd.FiniteDomain(line(3)), seed=1))
    copied.load_state_dict(opt.state_dict())
    assert copied.base.trials[0].value == 4.0


@pytest.mark.parametrize("options", [DESIGN, BUDGET], ids=["design", "budget"])
def test_a_correction_in_time_ends_no_claim_and_is_assumed_to_be_right(options):
    opt = optimizer(**options)
    trials = opt.ask(3)
    for trial in trials:
        opt.tell(trial, right(trial) + 0.5 * (trial.id == 2))
    opt.correct(2, right(trials[2]))
    opt = play(opt, 5)
    assert opt.guarantee.holds
    assert any("every correction (so far 1)" in line for line in opt.guarantee.assumptions)


@pytest.mark.parametrize("options", [DESIGN, ALL], ids=["round", "all"])
def test_a_round_that_was_judged_by_a_wrong_answer_ends_the_claim_for_good(options, tmp_path):
    opt = play(optimizer(**options), 20, wrong={1})
    assert opt.rounds
    assert opt.guarantee.holds
    opt.correct(1, right(opt.trials[1]))
    assert "rests on false evidence" in opt.guarantee.missing[0]
    opt.correct(1, 0.4)
    again = reopened(opt, tmp_path / "study.db")
    assert again.guarantee == opt.guarantee
    assert not play(again, 3).guarantee.holds


def test_a_failure_that_was_none_ends_the_claim_of_rounds_closed_without_its_answer():
    opt = optimizer(**DESIGN)
    first = opt.ask()
    opt.mark_failed(first)
    play(opt, 20)
    assert opt.rounds
    assert opt.guarantee.holds
    opt.correct(first, 0.1)
    assert not opt.guarantee.holds


def test_prices_of_a_wrong_answer_end_the_claim_of_a_budget_and_the_certificate_goes_on():
    opt = optimizer(**BUDGET)
    play(opt, 2, wrong={0})
    assert not opt.rounds
    opt.ask()  # priced with the wrong answer
    opt.correct(0, right(opt.trials[0]))
    (reason,) = opt.guarantee.missing
    assert "asks were priced" in reason
    assert reason.endswith("certificate still holds.")
    certified = opt.certificate.regret
    opt.correct(0, right(opt.trials[0]))  # corrected to the same value again
    assert opt.certificate.regret == certified


def test_the_certificate_after_a_correction_is_that_of_the_right_answers():
    opt, told = optimizer(**BUDGET), optimizer(**BUDGET)
    for trial, other in zip(opt.ask(6), told.ask(6), strict=True):
        told.tell(other, right(other))
        opt.tell(trial, right(trial) + 0.5 * (trial.id == 4))
    opt.correct(4, right(opt.trials[4]))
    assert opt.certificate.regret == pytest.approx(told.certificate.regret, rel=1e-9)


@pytest.mark.filterwarnings("ignore::botorch_delay.exceptions.OutlierWarning")
def test_a_contradiction_that_is_corrected_ends_the_claim_and_not_the_certificate():
    opt = optimizer(**BUDGET)
    play(opt, 2)
    trial = opt.ask()
    opt.tell(trial, 30.0)
    assert opt.certificate.refuted
    opt.correct(trial, right(trial))
    assert opt.certificate.regret > 0.0
    assert any("does not come back" in line for line in opt.guarantee.missing)
    assert opt.guarantee.norm_at_least < 2.0


# Suspect answers


def test_an_answer_far_from_all_others_is_taken_with_a_warning():
    opt = bd.RandomOptimizer(bd.FiniteDomain(line(30)))
    trials = opt.ask(12)
    for trial in trials[:9]:
        opt.tell(trial, float(trial.x))
    with pytest.warns(OutlierWarning, match=r"call correct\(9, value\)") as caught:
        opt.tell(9, 71.0)
    assert caught[0].filename == __file__
    assert trials[9].value == 71.0
    opt.correct(9, 0.71)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        opt.tell(10, -0.6)  # outside the range of the others, but not far from it
    with pytest.warns(OutlierWarning):
        opt.correct(10, 60.0)


def test_a_first_answer_far_better_than_others_is_named_once_there_are_enough():
    opt = bd.RandomOptimizer(bd.FiniteDomain(line(30)), maximize=False)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for trial in opt.ask(14):
            opt.tell(trial, float(trial.x) if trial.id else -1e6)
    (warning,) = caught
    assert warning.category is OutlierWarning
    assert "The answer of trial 0, -1e+06, lies far from all 8 other" in str(warning.message)
    assert warning.filename == __file__


@pytest.mark.parametrize("how", ["attached first", "all attached", "ninth attached"])
def test_a_first_result_far_better_than_others_is_named_wherever_it_came_from(how):
    opt = bd.RandomOptimizer(bd.FiniteDomain(line(30)), maximize=False)
    values = [-1e6, *(0.1 * k for k in range(8))]
    attached = {"attached first": [0], "all attached": range(9), "ninth attached": [8]}[how]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for k, trial in enumerate(opt.ask(9)):
            if k in attached:
                opt.attach(opt.domain.points[k], values[k])
            else:
                opt.tell(trial, values[k])
    assert len(caught) == 1
    named = "trial 0" if how == "ninth attached" else "attached result 0"
    assert named in str(caught[0].message)
    assert caught[0].filename == __file__


def test_values_that_crowd_near_the_best_make_none_suspect():
    opt = bd.RandomOptimizer(bd.FiniteDomain(line(60)))
    values = [100.0, 30.0, 10.0, *(1.0 + 0.001 * k for k in range(30)), 150.0, -50.0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for trial, y in zip(opt.ask(len(values)), values, strict=True):
            opt.tell(trial, y)


# Results that are taken back


def test_a_detached_result_counts_no_more_and_is_kept(tmp_path):
    opt, never = optimizer(**PARTS), optimizer(**PARTS)
    points = scattered(30)
    opt.attach(points[:2], torch.tensor([0.2, 9.0], dtype=torch.double))
    never.attach(points[:1], torch.tensor([0.2], dtype=torch.double))
    opt.detach(1, "of another batch")
    assert best(opt) == best(never)
    opt.attach(points[2], 0.1)
    assert [result.id for result in opt.attached] == [0, 2]
    (gone,) = reopened(opt, tmp_path / "study.db").detached
    assert (gone.id, gone.value, gone.reason) == (1, 9.0, "of another batch")
    assert gone.detached_at is not None
    with pytest.raises(InputError, match="known ids: 0, 2"):
        opt.detach(1)
    with pytest.raises(InputError, match="no attached result 2"):
        optimizer().detach(opt.attached[1])


@pytest.mark.parametrize(("options", "holds"), [(DESIGN, True), (ALL, False)], ids=["round", "all"])
def test_a_claim_ends_where_rounds_were_judged_with_what_is_detached(options, holds):
    opt = optimizer(**options)
    opt.attach(scattered(30)[3], 0.1)
    play(opt, 20)
    assert opt.rounds
    opt.detach(0)
    assert opt.guarantee.holds is holds


# Longer horizons


@pytest.mark.parametrize(
    "options",
    [DESIGN, BUDGET, DESIGN | {"delay": bd.ConstantDelay(3)}, {"delay": bd.NoDelay()}],
    ids=["arrival", "budget", "law", "learned"],
)
@pytest.mark.parametrize("asked", [7, 12])
def test_a_run_goes_on_with_rounds_of_the_new_horizon(options, asked, tmp_path):
    opt = play(optimizer(12, **options), asked)
    opt.extend(40)
    closed = len(opt.rounds)
    begun = closed + (opt.round is not None)
    opt = play(reopened(opt, tmp_path / "study.db"), 40 - asked)
    assert len(opt.trials) == opt.horizon == 40
    sizes = [record.design_size for record in opt.rounds]
    for number in range(max(begun, 1), len(sizes) - (options.get("delay") is None)):
        assert sizes[number] == bd.HorizonRounds().design_size(number, sizes[number - 1], 40, 1.0)
    if "delay" in options:
        assert sum(record.length for record in opt.rounds) == 40
    if options.get("confidence") is VALID:
        assert f"extended after {asked} asks" in opt.guarantee.missing[0]
        assert not opt.guarantee.holds
    if options is BUDGET:
        assert opt.certificate.regret > 0.0


def test_a_run_that_is_extended_before_it_begins_is_one_of_the_new_horizon():
    extended, longer = optimizer(12, **BUDGET), optimizer(30, **BUDGET)
    extended.extend(30)
    for opt in (extended, longer):
        play(opt, 30)
    assert [t.index for t in extended.trials] == [t.index for t in longer.trials]
    assert [r.describe() for r in extended.rounds] == [r.describe() for r in longer.rounds]
    assert extended.guarantee == longer.guarantee
    assert extended.guarantee.holds


def test_a_finished_run_goes_on_and_a_longer_optimizer_takes_a_shorter_state():
    opt = play(optimizer(12, **DESIGN), 6)
    opt.finish()
    opt.extend(14)
    play(opt, 8)
    longer = optimizer(20, **DESIGN)
    longer.load_state_dict(opt.state_dict())
    assert (longer.horizon, len(longer.trials)) == (20, 14)
    assert not longer.guarantee.holds
    play(longer, 6)


@pytest.mark.parametrize(
    "make",
    [
        lambda: optimizer(9, **DESIGN),
        lambda: optimizer(None, rounds=bd.GeometricRounds(first=4, growth=2.0)),
        lambda: bd.QueuedOptimizer(bd.RandomOptimizer(bd.FiniteDomain(line(9)))),
    ],
)
def test_a_finished_run_goes_on_as_it_was_planned(make, tmp_path):
    opt = play(make(), 3)
    planned = opt.horizon
    opt.finish()
    with pytest.raises(HorizonError, match=r"To go on as planned, call extend\(\)"):
        opt.ask()
    with pytest.raises(InputError, match="at least 9, got 8" if planned else "nothing to extend"):
        opt.extend(8)
    opt.extend()
    assert opt.horizon == planned
    assert len(play(reopened(opt, tmp_path / "study.db"), 2).trials) == 5
    if planned:
        assert "was finished after 3 asks and went on" in " ".join(opt.guarantee.missing)


@pytest.mark.parametrize(
    "make",
    [
        lambda d: bd.RandomOptimizer(d, horizon=3),
        lambda d: bd.AcquisitionOptimizer(d, horizon=3, covar_module=se(), noise_var=0.01),
        lambda d: bd.QueuedOptimizer(bd.RandomOptimizer(d, horizon=3)),
    ],
)
def test_every_optimizer_can_be_extended(make, tmp_path):
    opt = play(make(bd.FiniteDomain(line(9))), 3)
    opt.extend(5)
    assert len(play(reopened(opt, tmp_path / "study.db"), 2).trials) == 5


def test_a_horizon_only_grows():
    with pytest.raises(InputError, match="at least 13, got 12"):
        optimizer(12).extend(12)
    with pytest.raises(InputError, match="nothing to extend"):
        bd.RandomOptimizer(bd.FiniteDomain(line(3))).extend(5)
    with pytest.raises(InputError, match="resumes a run that was finished"):
        optimizer(12).extend()
    ended = play(optimizer(4, **DESIGN), 4)
    for horizon in (None, 4):  # nothing is left to ask
        with pytest.raises(InputError, match=r"larger horizon|at least 5"):
            ended.extend(horizon)


def test_exact_answers_that_contradict_each_other_are_warned_of():
    box = bd.BoxDomain(torch.tensor([[0.0], [1.0]], dtype=torch.double))
    opt = bd.BPEDelayOptimizer(box, 12, exact=True, maximize=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for trial in opt.ask(4):
            opt.tell(trial, float(trial.x))
        opt.attach(trial.x, trial.value * (1.0 + 1e-9))  # rounding
    with pytest.warns(OutlierWarning, match=r"gave .* and 5, though .*exact=True"):
        opt.attach(trial.x, 5.0)
    noisy = bd.BPEDelayOptimizer(box, 12)
    noisy.tell(trial := noisy.ask(), 1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        noisy.attach(trial.x, 2.0)
