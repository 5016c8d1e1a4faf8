import math

import numpy as np
import pytest
import torch
from cases import KERNELS, generator, normal, scattered, se
from oracle import kernel_function
from rivals import threds

import botorch_delay as bd
from botorch_delay.benchmarks import FiniteProblem, paper_problem, simulate
from botorch_delay.exceptions import (
    EmptyDomainError,
    InputError,
    InputTypeError,
)

NOISE = 0.02


def make(n=40, **options):
    options = {
        "covar_module": se(),
        "noise_var": NOISE,
        "confidence": bd.FixedBeta(4.0),
        "interval": (-2.0, 2.0),
    } | options
    return bd.ThreDSOptimizer(bd.FiniteDomain(scattered(n)), **options)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("mean_delay", [0, 5])
def test_asks_equal_a_dense_transcription(seed, mean_delay):
    kernel = KERNELS[sorted(KERNELS)[seed % len(KERNELS)]]().requires_grad_(False)
    asks, sign = 120, -1.0 if seed % 3 == 2 else 1.0
    points, f = scattered(40, seed=seed), normal(40, seed=seed)
    noise = 0.1 * normal(asks, seed=100 + seed)
    delays = torch.poisson(torch.full((asks,), float(mean_delay)), generator=generator(seed))
    k = kernel_function(kernel)
    if seed % 2:
        confidence = bd.FixedBeta(4.0)

        def half_width(X, sigma):
            return 2.0 * sigma
    else:
        confidence = bd.RKHSConfidence(1.2, 0.1)

        def half_width(X, sigma):
            gain = 0.5 * np.linalg.slogdet(np.eye(len(X)) + k(X, X) / NOISE)[1]
            return (1.2 + 0.1 / math.sqrt(NOISE) * math.sqrt(2 * (gain + math.log(10)))) * sigma

    interval = (-1.0, 2.5)
    opt = bd.ThreDSOptimizer(
        bd.FiniteDomain(points),
        covar_module=kernel,
        noise_var=NOISE,
        confidence=confidence,
        interval=tuple(sorted(sign * end for end in interval)),
        patience=8,
        maximize=sign > 0,
    )
    problem = FiniteProblem(points, sign * f, 0.1)
    played = simulate(opt, problem, None, asks, delays=delays.long(), noise=sign * noise)
    expected = threds(
        k,
        points.numpy(),
        f.numpy(),
        asks=asks,
        delays=delays.numpy(),
        noise=noise.numpy(),
        noise_var=NOISE,
        half_width=half_width,
        interval=interval,
        patience=8,
    )
    assert played.index.tolist() == expected
    if not mean_delay:
        assert opt.epochs  # decisions were made, not only asks


def test_the_domain_shrinks_towards_the_maximiser():
    problem = paper_problem(1.0, seed=1, side=25)
    opt = bd.ThreDSOptimizer(
        problem.domain,
        covar_module=problem.covar_module,
        noise_var=4e-4,
        confidence=bd.FixedBeta(6.0),
        interval=(-3.0, 3.0),
    )
    history = simulate(opt, problem, bd.NoDelay(), steps=1000, seed=0)
    rows = torch.cat(opt.regions)
    assert len(rows) < 10
    assert problem.regret()[rows].min() < 0.05
    low, high = opt.interval
    assert low - 0.05 <= problem.values.max().item() <= high + 0.05
    assert history.regret[-1] - history.regret[700] < 0.1 * history.regret[700]
    assert sum(epoch.asks for epoch in opt.epochs) <= 1000
    assert [epoch.number for epoch in opt.epochs] == list(range(1, len(opt.epochs) + 1))
    assert not opt.guarantee.holds


def test_the_norm_bound_gives_the_first_interval():
    opt = make(interval=None, confidence=bd.RKHSConfidence(3.0, 0.1))
    assert opt.interval == (-3.0, 3.0)


def test_failures_do_not_stop_it():
    opt = make(n=6, patience=3)
    for number in range(60):
        try:
            trial = opt.ask()
        except EmptyDomainError:
            break
        if trial.index == 2:
            opt.tell(trial, 0.3 + 0.01 * number)
        else:
            opt.mark_failed(trial)
    assert opt.trials[-1].index == 2
    only = make(n=2)
    for _ in range(6):
        only.mark_failed(only.ask())
    with pytest.raises(EmptyDomainError, match="None of the 2 points"):
        only.ask()


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"covar_module": None}, InputError, "needs covar_module and noise_var"),
        ({"confidence": 2.0}, InputTypeError, "FixedBeta"),
        ({"interval": None}, InputError, "interval must be given"),
        ({"interval": 3.0}, InputTypeError, "two numbers"),
        ({"interval": (1.0, 1.0)}, InputError, "must increase"),
        ({"interval": (0.0, math.inf)}, InputError, "finite"),
        ({"patience": 0}, InputError, "at least 1"),
        ({"delta": 1.0}, InputError, "between 0 and 1"),
    ],
)
def test_bad_arguments(change, error, message):
    with pytest.raises(error, match=message):
        make(**change)
