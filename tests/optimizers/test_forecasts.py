"""Forecasts of when a round closes."""

import itertools
import math

import pytest
import torch
from bpe_cases import NOISE, answer, make
from cases import generator, scattered, se

import botorch_delay as bd
from botorch_delay.exceptions import InputError, NoAnswerError
from botorch_delay.optimizers.forecasts import Forecast, Straggler, planned_asks


def play(opt, delays, steps, before=lambda opt: None):
    """Ask ``steps`` times; each answer comes after its delay."""
    due = []
    for step in range(steps):
        for trial_id in sorted(i for i, at in due if at <= step):
            opt.tell(trial_id, math.sin(trial_id))
        due = [(i, at) for i, at in due if at > step]
        before(opt)
        trial = opt.ask()
        due.append((trial.id, trial.id + 1 + delays[trial.id]))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"exploit": bd.UCB(4.0), "explore_fraction": 0.3},
        {"exploit": bd.UCB(4.0), "explore_fraction": 0.07, "horizon": 300},
    ],
    ids=["design", "exploit", "few"],
)
def test_with_constant_delays_the_forecast_is_right(options):
    opt = make(**options)
    forecasts = []

    def look(opt):
        if len(opt.trials) % 3 == 0 and any(t.delay is not None for t in opt.trials):
            forecasts.append((len(opt.trials), opt.forecast()))

    play(opt, [7] * 95, 95, before=look)
    ends = list(itertools.accumulate(record.length for record in opt.rounds))
    assert ends
    checked = 0
    for asked, forecast in forecasts:
        if forecast.round > len(ends):
            continue
        # The round closes inside the ask after its last one.
        expected = ends[forecast.round - 1] + 1 - asked
        assert forecast.quantile(0.01) == forecast.quantile(0.99) == expected
        assert forecast.probability(expected - 1) == 0.0
        assert forecast.probability(expected) == 1.0
        checked += 1
    assert checked > 10


def test_a_failed_point_is_asked_again_first():
    opt = make()
    trials = opt.ask(10)
    for trial in trials[:7]:  # asked at 1 to 7, answered after 10 asks
        opt.tell(trial, 0.1)
    opt.mark_failed(trials[8])
    forecast = opt.forecast()
    assert [s.trial for s in forecast.waiting_for] == [trials[7], trials[9]]
    assert forecast.to_ask == (1,)
    opt.ask()
    assert opt.forecast().to_ask == ()
    assert len(opt.forecast().waiting_for) == 3


def enumerated(law, waiting, to_ask, limit):
    """P(K <= k) by enumerating all delays, for a law whose survival function reaches zero."""
    mass = [law.survival(u - 1) - law.survival(u) for u in range(law.limit + 1)]
    laws = []
    for age in waiting:
        left = law.survival(age - 1)
        laws.append([(u - age + 1, mass[u] / left) for u in range(age, len(mass))])
    for step in to_ask:
        laws.append([(step + u + 1, share) for u, share in enumerate(mass)])
    result = [0.0] * limit
    for outcome in itertools.product(*laws):
        k = max(at for at, _ in outcome)
        for later in range(k, limit):
            result[later] += math.prod(share for _, share in outcome)
    return result


def test_the_latest_of_several_answers_decides():
    law = bd.EmpiricalDelay([1, 2, 2, 5, 6, 6], ages=[3, 1])
    waiting = (Straggler(None, 4), Straggler(None, 0), Straggler(None, 2))
    forecast = Forecast(3, waiting, (2,), None, law)
    expected = enumerated(law, [4, 0, 2], [2], 12)
    for k, probability in enumerate(expected):
        assert forecast.probability(k) == pytest.approx(probability)
    for p in (0.05, 0.3, 0.5, 0.9, 0.999):
        assert forecast.quantile(p) == next(k for k, q in enumerate(expected) if q >= p - 1e-12)


def test_beyond_what_answers_tell_it_is_infinite():
    law = bd.EmpiricalDelay([1, 2, 3], ages=[9])
    forecast = Forecast(1, (Straggler(None, 2),), (), 5, law)
    assert forecast.quantile(0.3) == 1  # delays 2, 3 and beyond 9 are left, equally likely
    assert forecast.quantile(0.6) == 2
    assert forecast.quantile(0.7) == math.inf
    assert str(forecast) == (
        "round 1 closes within 2 asks with probability 0.5, not known yet for probability 0.9; "
        "5 asks are left"
    )
    assert str(Forecast(2, (), (1,), None, law, earliest=True)).endswith("are asked at once")
    with pytest.raises(InputError):
        forecast.quantile(0.0)


def test_before_the_first_answer_and_without_a_round_there_is_no_forecast():
    opt = make()
    assert opt.forecast() is None
    opt.ask(3)
    with pytest.raises(NoAnswerError, match="forecast"):
        opt.forecast()
    answer(opt, opt.trials)
    assert opt.forecast().quantile(0.5) >= 8
    opt.finish()
    assert opt.forecast() is None
    fixed = make(delay=bd.ConstantDelay(7))
    fixed.ask()
    assert fixed.forecast() is None


def test_forecasts_are_calibrated():
    law, hits, count = bd.PoissonDelay(12.0), 0, 0
    for seed in range(8):
        delays = law.sample(100, generator(seed)).tolist()
        opt = make(exploit=bd.UCB(4.0), explore_fraction=0.5)
        made = []

        def look(opt, made=made):
            if len(opt.trials) in (25, 50, 75) and opt.forecast() is not None:
                made.append((len(opt.trials), opt.forecast()))

        play(opt, delays, 100, before=look)
        ends = list(itertools.accumulate(record.length for record in opt.rounds))
        for asked, forecast in made:
            if forecast.round <= len(ends):
                hits += asked + forecast.quantile(0.8) >= ends[forecast.round - 1] + 1
                count += 1
    assert count > 10
    assert 0.65 <= hits / count <= 0.97


def test_a_budget_may_ask_design_points_later():
    opt = bd.BPEDelayOptimizer(
        bd.FiniteDomain(scattered(30)),
        60,
        covar_module=se(),
        noise_var=NOISE,
        confidence=bd.RKHSConfidence(2.0, 0.1),
        exploit=bd.WithinBudget(factor=1.5),
    )
    opt.tell(opt.ask(), 0.0)
    forecast = opt.forecast()
    assert forecast.earliest == bool(forecast.to_ask)


@pytest.mark.parametrize("fraction", [1.0, 0.3, 0.1, 0.07, 0.01])
def test_design_points_are_asked_when_planned(fraction):
    opt = make(horizon=400, exploit=bd.UCB(4.0), explore_fraction=fraction)
    opt.ask(5)
    size = opt._rounds.open.design_size
    made = opt._rounds.designed
    planned = planned_asks(0, size - made, made, 5, fraction)
    planned = [step for step in planned if step <= 150]
    later = opt.ask(150)
    assert [step for step, t in enumerate(later, 1) if 0 <= t.slot < size] == planned


def test_stragglers_say_how_late_they_are():
    opt = make(horizon=400)  # q_1 = 20
    lost, *trials = opt.ask(20)
    answer(opt, trials)
    for _ in range(30):
        answer(opt, [opt.ask()])
    (straggler,) = opt.stragglers
    assert straggler.trial is lost
    assert straggler.sooner == pytest.approx(1.0 - opt.delays().survival(48))
    assert straggler.sooner > 0.9
    assert torch.equal(straggler.trial.x, lost.x)
