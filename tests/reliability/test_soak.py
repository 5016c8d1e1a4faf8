"""One long run: memory and times at its end against those of its beginning."""

from __future__ import annotations

import gc
import random
import time
from pathlib import Path

import pytest
import torch
from cases import se

import botorch_delay as bd

pytestmark = pytest.mark.reliability
PENDING = 200


def megabytes():
    """Memory of this process that is in use."""
    gc.collect()
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("VmRSS"))) / 1024


def percentile(times, share=0.99):
    return sorted(times)[int(share * (len(times) - 1))]


def test_a_long_run_stays_as_small_and_as_fast(scale, figures):
    """Times are of this thread's processor, which other programs on the machine do not change."""
    axis = torch.linspace(0, 1, 50, dtype=torch.double)
    domain = bd.FiniteDomain(torch.cartesian_prod(axis, axis))
    opt = bd.BPEDelayOptimizer(domain, scale.asks, covar_module=se(0.2), noise_var=0.01)
    rng, out, part = random.Random(0), [], scale.asks // 10
    asks, tells, memory = [], [], []
    for number in range(scale.asks):
        begun = time.thread_time()
        out.append(opt.ask())
        asks.append(time.thread_time() - begun)
        if len(out) > PENDING:
            trial = out.pop(rng.randrange(len(out)))
            y = -4.0 * float((trial.x - 0.4).square().sum()) + rng.gauss(0.0, 0.1)
            begun = time.thread_time()
            opt.tell(trial, y)
            tells.append(time.thread_time() - begun)
        if (number + 1) % part == 0:
            memory.append(megabytes())
    assert len(opt.pending) == PENDING
    grown = memory[-1] / memory[0]
    slower_ask = percentile(asks[-part:]) / percentile(asks[:part])
    slower_tell = percentile(tells[-part:]) / percentile(tells[:part])
    figures(
        "One long run, 2,500 points, 200 pending",
        asks=len(asks),
        megabytes_at_a_tenth=memory[0],
        megabytes_at_the_end=memory[-1],
        times_the_p99_of_ask=slower_ask,
        times_the_p99_of_tell=slower_tell,
    )
    assert grown <= 1.5
    if scale.asks >= 50_000:  # short runs are all start-up: tables, first rounds
        assert grown <= 1.2
        assert slower_ask <= 3.0
        assert slower_tell <= 3.0
