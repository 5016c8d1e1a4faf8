import math

import numpy as np
import pandas as pd
import pytest
import torch
from cases import generator, line, scattered, se

import botorch_delay as bd
from botorch_delay.exceptions import InputError, InputTypeError, NoAnswerError, NotSupportedError
from botorch_delay.history.trials import TrialState

# Remission times under 6-MP of Freireich et al. (1963), the textbooks' example; a patient who is
# censored after c weeks is one whose delay is at least c + 1 here.
WEEKS = [6, 6, 6, 7, 10, 13, 16, 22, 23]
CENSORED = [6, 9, 10, 11, 17, 19, 20, 25, 32, 32, 34, 35]
TEXTBOOK = {6: 0.857, 7: 0.807, 10: 0.753, 13: 0.690, 16: 0.627, 22: 0.538, 23: 0.448}


def leukemia():
    return bd.EmpiricalDelay(WEEKS, ages=[c + 1 for c in CENSORED])


def product_limit(delays, ages, u):
    """P(tau > u), term by term."""
    left = 1.0
    for v in range(u + 1):
        known = sum(d >= v for d in delays) + sum(a > v for a in ages)
        left *= 1.0 - (sum(d == v for d in delays) / known if known else 0.0)
    return left


def test_the_textbook_s_example():
    law = leukemia()
    for week, share in TEXTBOOK.items():
        assert law.survival(week) == pytest.approx(share, abs=5e-4)
    assert law.limit == 36


@pytest.mark.parametrize("seed", range(20))
def test_it_is_the_product_limit_estimate(seed):
    g = generator(seed)
    delays = torch.randint(9, (1 + seed,), generator=g).tolist()
    ages = torch.randint(12, (seed // 2,), generator=g).tolist()
    law = bd.EmpiricalDelay(delays, torch.tensor(ages, dtype=torch.long))
    survival = [product_limit(delays, ages, u) for u in range(15)]
    assert law.survival(np.arange(15)) == pytest.approx(survival)
    assert law.survival(-1) == 1.0
    assert law.mean == pytest.approx(sum(survival[: law.limit]))
    for age in range(max([0, *ages]) + 1):
        left = product_limit(delays, ages, age - 1)
        for u in range(age, 14):
            assert law.survival(u, age) == pytest.approx(survival[u] / left)


def test_without_trials_that_are_out_it_is_the_empirical_law():
    law = bd.EmpiricalDelay([0, 4, 4, 10])
    assert law.mean == pytest.approx(4.5)
    assert [law.quantile(p) for p in (0.25, 0.26, 0.75, 0.76, 0.999)] == [0, 4, 4, 10, 10]


def test_a_trial_that_has_just_been_asked_tells_nothing():
    assert bd.EmpiricalDelay([0, 2], [0, 0, 0]).survival(0) == 0.5


def test_it_is_unbiased_with_trials_still_out():
    law, u = bd.GeometricDelay(mean=2.0), 3
    estimates = []
    for seed in range(600):
        tau = law.sample(25, generator(seed)).tolist()
        delays = [d for i, d in enumerate(tau) if i + d < 24]  # asked at i, seen after 25 asks
        ages = [24 - i for i, d in enumerate(tau) if i + d >= 24]
        if delays:
            estimates.append(bd.EmpiricalDelay(delays, ages).survival(u))
    error = np.std(estimates) / math.sqrt(len(estimates))
    assert abs(np.mean(estimates) - (2 / 3) ** (u + 1)) < 3 * error
    # Small enough to reveal the bias of using answers alone, which are the quick ones.
    assert error < 0.01


def test_a_quantile_beyond_what_is_known_says_so():
    law = bd.EmpiricalDelay([1, 2, 3], ages=[9])
    assert law.quantile(0.75) == 3
    with pytest.raises(NotSupportedError, match=r"3 answers, with 1 .* ends at 0\.75"):
        law.quantile(0.9)
    with pytest.raises(NotSupportedError, match="out for 5 asks"):
        law.quantile(0.5, age=5)
    assert law.survival(100) == pytest.approx(0.25)
    with pytest.raises(InputError, match="beyond the longest delay"):
        bd.EmpiricalDelay([1, 2]).survival(5, age=3)


def test_it_promises_nothing():
    law = leukemia()
    with pytest.raises(InputTypeError, match="an estimate bounds no delay"):
        bd.BPEDelayOptimizer(
            bd.FiniteDomain(line(9)), 30, covar_module=se(), noise_var=0.1, delay=law
        )


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: bd.EmpiricalDelay([]), NoAnswerError),
        (lambda: bd.EmpiricalDelay([], ages=[3]), NoAnswerError),
        (lambda: bd.EmpiricalDelay([-1]), InputError),
        (lambda: bd.EmpiricalDelay([1.5]), InputError),
        (lambda: bd.EmpiricalDelay([1], ages=[-2]), InputError),
        (lambda: bd.EmpiricalDelay("ab"), InputTypeError),
        (lambda: bd.EmpiricalDelay([2, None]), InputTypeError),
        (lambda: leukemia().quantile(1.0), InputError),
        (lambda: leukemia().quantile(0.5, age=-1), InputError),
        (lambda: leukemia().survival(None), InputError),
        (lambda: leukemia().survival(math.nan), InputError),
        (lambda: leukemia().survival([1, "a"]), InputError),
    ],
)
def test_bad_arguments(make, error):
    with pytest.raises(error):
        make()


def test_delays_may_come_in_any_list():
    there = pd.Series([2, 3, 7], index=[5, 6, 7])
    for delays in (there, there.to_numpy(), iter([2, 3, 7]), torch.tensor([2, 3, 7])):
        assert made(bd.EmpiricalDelay(delays)) == made(bd.EmpiricalDelay([2, 3, 7]))


# From trials


def optimizer(horizon=40):
    return bd.RandomOptimizer(bd.FiniteDomain(scattered(40)), horizon=horizon)


def estimate(delays, ages):
    law = bd.EmpiricalDelay(delays, ages)
    return law.answers, law.out, law.limit, law.survival(np.arange(12)).tolist()


def made(law):
    return law.answers, law.out, law.limit, law.survival(np.arange(12)).tolist()


def test_an_optimizer_knows_delays_and_ages():
    opt = optimizer()
    with pytest.raises(NoAnswerError):
        opt.delays()
    a, b, c, d, e = opt.ask(5)
    opt.tell(e, 0.1)
    opt.tell(a, 0.1)
    assert (e.delay, a.delay, b.delay) == (0, 4, None)
    opt.mark_failed(b)
    opt.mark_abandoned(c)
    opt.ask(3)
    assert made(opt.delays()) == estimate([0, 4], [3, 2, 4, 2, 1, 0])
    opt.tell(c, 0.3)  # a late answer after all
    assert (c.delay, c.told_step) == (5, 8)
    assert d.state is TrialState.RUNNING
    assert made(opt.delays()) == estimate([0, 4, 5], [3, 4, 2, 1, 0])


def test_an_answer_in_the_place_of_a_failure_took_until_it_was_told():
    opt = optimizer(horizon=6)
    first, second, third = opt.ask(3)
    opt.mark_failed(first)
    opt.tell(second, 0.1)
    opt.mark_failed(third)
    opt.ask(2)
    opt.correct(first, 0.2)
    opt.correct(second, 0.3)
    assert (first.delay, first.known_at) == (4, first.corrections[0].corrected_at)
    assert (second.delay, second.known_at) == (1, second.told_at)
    assert made(opt.delays()) == estimate([4, 1], [0, 1, 0])
    opt.ask()
    opt.correct(third, 0.2)  # after the last ask
    assert made(opt.delays()) == estimate([4, 1], [3, 2, 1, 0])
    opt.correct(first, None)
    opt.correct(first, 0.1)
    assert (first.delay, third.delay) == (4, 3)


def test_what_is_answered_after_the_last_ask_took_so_long_at_least():
    opt = optimizer(horizon=6)
    trials = opt.ask(4)
    opt.tell(trials[0], 0.0)
    trials += opt.ask(2)
    for trial in trials[1:]:
        opt.tell(trial, 0.0)
    assert made(opt.delays()) == estimate([3], [4, 3, 2, 1, 0])
    assert made(bd.EmpiricalDelay.from_trials(opt.trials)) == estimate([3, 4, 3, 2, 1, 0], [])


def test_steps_survive_a_file(tmp_path):
    opt = optimizer()
    trials = opt.ask(5)
    for trial in trials[:3]:
        opt.tell(trial, 0.0)
    opt.save(tmp_path / "study.db")
    again = bd.load(tmp_path / "study.db")
    assert [t.told_step for t in again.trials] == [5, 5, 5, None, None]
    assert made(again.delays()) == made(opt.delays())


def test_late_trials_are_named():
    opt = optimizer()
    assert opt.overdue() == []
    lost, *others = opt.ask(20)
    for trial in others:
        opt.tell(trial, 0.0)
    for _ in range(15):
        opt.tell(opt.ask(), 0.0)
    (found,) = opt.overdue()
    assert (found.trial, found.asks) == (lost, 34)
    assert found.sooner == pytest.approx(1.0 - opt.delays().survival(33))
    assert opt.overdue(share=0.999) == [] or found.sooner >= 0.999
    with pytest.raises(InputError):
        opt.overdue(share=1.0)
