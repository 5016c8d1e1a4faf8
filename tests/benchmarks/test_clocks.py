import math

import numpy as np
import pytest

from botorch_delay import NoDelay, PoissonDelay
from botorch_delay.benchmarks.clocks import (
    GrowingClock,
    ParetoDelay,
    StepClock,
    WorkerClock,
    generator_of,
)
from botorch_delay.exceptions import InputError

N = 20_000


def outcomes(clock, seed=0, height=0.5, duration=None):
    found = clock.outcomes(N, seed)
    return [found(number, height, duration) for number in range(N)]


def test_steps_are_the_law_s():
    waits = [wait for wait, _ in outcomes(StepClock(PoissonDelay(10.0)), seed=3)]
    assert waits == PoissonDelay(10.0).sample(N, generator_of(3)).tolist()
    assert {state for _, state in outcomes(StepClock(NoDelay()))} == {"answered"}


def test_shares_are_lost_and_fail():
    states = [state for _, state in outcomes(StepClock(NoDelay(), lost=0.1, failed=0.05))]
    assert states.count("lost") / N == pytest.approx(0.1, abs=0.01)
    assert states.count("failed") / N == pytest.approx(0.05, abs=0.01)


def test_delays_grow_with_f():
    for height in (0.0, 0.25, 1.0):
        waits = [wait for wait, _ in outcomes(GrowingClock(40.0), height=height)]
        assert np.mean(waits) == pytest.approx(40 * height, rel=0.03)
        if height:  # geometric: the chance of none at all
            assert waits.count(0) / N == pytest.approx(1 / (1 + 40 * height), rel=0.1)


def test_workers_take_the_problem_s_time_or_log_normal_time():
    assert {wait for wait, _ in outcomes(WorkerClock(4), duration=12.5)} == {12.5}
    logs = np.log([wait for wait, _ in outcomes(WorkerClock(4, spread=0.5))])
    assert logs.mean() == pytest.approx(0.0, abs=0.02)
    assert logs.std() == pytest.approx(0.5, rel=0.03)


def test_pareto_delays():
    law = ParetoDelay(2.5, 10.0)
    drawn = law.sample(200_000, generator_of(0)).double()
    assert drawn.mean().item() == pytest.approx(law.mean, rel=0.03)
    for p in (0.1, 0.5, 0.9, 0.999):
        u = law.quantile(p)
        assert (1 + (u + 1) / 10) ** -2.5 <= 1 - p + 1e-12
        assert u == 0 or (1 + u / 10) ** -2.5 > 1 - p
        assert (drawn <= u).double().mean().item() >= p - 0.01
    assert ParetoDelay(1.5, 10.0).mean == pytest.approx(
        sum((1 + k / 10) ** -1.5 for k in range(1, 200_000)) + 2 * 10**1.5 / 200_010**0.5, rel=1e-3
    )
    assert math.isfinite(law.upper_bound(100, 0.1))


@pytest.mark.parametrize(
    "make",
    [
        lambda: StepClock(NoDelay(), lost=-0.1),
        lambda: StepClock(NoDelay(), lost=0.6, failed=0.6),
        lambda: WorkerClock(0),
        lambda: WorkerClock(2, spread=-1.0),
    ],
)
def test_bad_arguments(make):
    with pytest.raises(InputError):
        make()
