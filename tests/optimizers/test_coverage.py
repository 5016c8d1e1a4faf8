"""Theorem 1 by simulation: bounds fail, and the maximiser is lost, in at most delta of runs."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch
from cases import generator, scattered, se
from scale import repeats

import botorch_delay as bd
from botorch_delay.benchmarks import FiniteProblem, simulate
from botorch_delay.confidence.bounds import Evidence
from botorch_delay.elimination.rounds import RoundRule
from botorch_delay.gp.kernels import covariance
from botorch_delay.gp.posterior import Data, Posterior

N, HORIZON, DELTA, NOISE_STD = 400, 150, 0.1, 0.2
FEW = 2  # functions per test; the heavy tests play many
POINTS = scattered(N, seed=11)
KERNEL = se(0.25)


@dataclass
class Coverage:
    """Shares of runs where a bound failed or the maximiser was lost; the bounds' mean width."""

    failed: float
    lost: float
    width: float


def random_problem(seed):
    """A random function of known RKHS norm: a combination of kernels at 30 of the points."""
    g = generator(seed)
    centres = POINTS[torch.randperm(N, generator=g)[:30]]
    weights = torch.randn(30, dtype=torch.double, generator=g)
    f = covariance(KERNEL, POINTS, centres) @ weights
    norm = (weights @ covariance(KERNEL, centres, centres) @ weights).sqrt().item()
    return FiniteProblem(POINTS, f, NOISE_STD), norm


def play(opt, problem, seed):
    simulate(opt, problem, bd.PoissonDelay(10.0), HORIZON, seed=seed)


def coverage(repeats, *, tight, divide=1.0, delay=None, run=play, **options):
    """Play ``repeats`` functions; bounds are computed anew from the audit of each round."""
    failed = lost = 0
    widths = []
    for seed in range(repeats):
        problem, norm = random_problem(seed)
        confidence = bd.RKHSConfidence(norm / divide, NOISE_STD / divide, tight=tight)
        opt = bd.BPEDelayOptimizer(
            problem.domain,
            HORIZON,
            covar_module=KERNEL,
            noise_var=NOISE_STD**2,
            confidence=confidence,
            delay=delay,
            delta=DELTA,
            **({"exploit": None} | options),
        )
        run(opt, problem, seed)
        any_failure = False
        for record in opt.rounds:
            trials = [opt.trials[i] for i in record.trial_ids]
            y = torch.tensor([t.value for t in trials], dtype=torch.double)
            X = POINTS[[t.index for t in trials]]
            evidence = Data.single(X, y, torch.full_like(y, NOISE_STD**2))
            posterior = Posterior(KERNEL, evidence).at(POINTS, weights=True)
            rounds = RoundRule(HORIZON, bd.HorizonRounds(), opt._config.fraction).delta_divisor(
                record.number
            )
            if delay is not None:
                rounds = len(bd.round_lengths(HORIZON, delay.upper_bound(HORIZON, DELTA))[0])
            under = Evidence(KERNEL, evidence, 1 / NOISE_STD, DELTA / (2 * rounds), N)
            half = confidence.fixed_design(under).at(posterior)
            any_failure |= bool(((problem.values - posterior.mean).abs() > half).any())
            widths.append(half.mean().item())
        failed += any_failure
        lost += int(problem.values.argmax()) not in opt.active_set.indices
    return Coverage(failed / repeats, lost / repeats, sum(widths) / len(widths))


def upper_limit(n):
    """Three standard errors above delta, for n runs."""
    return DELTA + 3 * math.sqrt(DELTA * (1 - DELTA) / n)


@pytest.mark.parametrize("delay", [None, bd.PoissonDelay(10.0)], ids=["arrival", "scheduled"])
def test_bounds_hold_and_the_maximiser_stays(delay):
    results = {tight: coverage(FEW, tight=tight, delay=delay) for tight in (False, True)}
    for result in results.values():
        assert result.failed <= DELTA
        assert result.lost <= DELTA
    assert results[True].width < results[False].width


@pytest.mark.parametrize("evidence", ["round", "all"])
def test_asks_outside_the_design_break_no_promise(evidence):
    options = {"exploit": bd.UCB(4.0), "explore_fraction": 0.3, "evidence": evidence}
    result = coverage(FEW, tight=True, **options)
    assert result.failed <= DELTA
    assert result.lost <= DELTA
    if evidence == "round":
        assert coverage(FEW, tight=True, divide=5.0, **options).failed > upper_limit(FEW)


def test_with_constants_five_times_too_small_the_promise_is_broken():
    result = coverage(FEW, tight=True, divide=5.0)
    assert result.failed > upper_limit(FEW)


@pytest.mark.heavy
@pytest.mark.parametrize("delay", [None, bd.PoissonDelay(10.0)], ids=["arrival", "scheduled"])
def test_two_hundred_functions(delay, capsys):
    lines, n = [], repeats(200, 3)
    for tight in (False, True):
        right = coverage(n, tight=tight, delay=delay)
        wrong = coverage(n, tight=tight, divide=5.0, delay=delay)
        name = "tight" if tight else "plain"
        lines.append(f"{name}: {right}; constants / 5: {wrong}")
        assert right.failed <= DELTA
        assert right.lost <= DELTA
        assert wrong.failed > upper_limit(n)
    with capsys.disabled():
        print("\n" + "\n".join(lines))
