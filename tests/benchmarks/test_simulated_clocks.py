import math

import numpy as np
import pytest
import torch

from botorch_delay import NoDelay, PoissonDelay
from botorch_delay.benchmarks import DELAYS, Clock
from botorch_delay.benchmarks.simulator import ParetoDelay
from botorch_delay.exceptions import InputError

N = 20_000


def generator_of(seed):
    return torch.Generator().manual_seed(seed)


def test_steps_are_the_law_s():
    waits = Clock(PoissonDelay(10.0)).draw(N, 3)
    assert waits == PoissonDelay(10.0).sample(N, generator_of(3)).tolist()


def test_workers_take_log_normal_time():
    logs = np.log(Clock(workers=4).draw(N, 0))
    assert logs.mean() == pytest.approx(0.0, abs=0.02)
    assert logs.std() == pytest.approx(1.0, rel=0.03)


def test_only_workers_wait_for_each_other():
    assert DELAYS["batches-4"] == Clock(workers=4, together=True)
    with pytest.raises(InputError, match="give their number"):
        Clock(NoDelay(), together=True)


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
    "options",
    [
        {},
        {"law": NoDelay(), "workers": 2},
        {"workers": 0},
    ],
)
def test_bad_arguments(options):
    with pytest.raises(InputError):
        Clock(**options)


def test_the_clocks():
    poisson = [f"poisson-{mean}" for mean in (10, 25, 50, 100, 200)]
    assert list(DELAYS) == [
        *("none", *poisson, "geometric-20", "pareto-1.5"),
        *("workers-4", "workers-16", "workers-64", "batches-4"),
    ]
    assert DELAYS["geometric-20"].law.mean == 20.0
    assert (DELAYS["workers-4"].workers, DELAYS["workers-16"].workers) == (4, 16)
