"""Whatever an objective does is a failed trial, and the run goes on."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import pytest
from cases import line, plain, se
from objectives import Faulty, quadratic
from pebble import ProcessPool

import botorch_delay as bd
from botorch_delay.exceptions import InputTypeError
from botorch_delay.history.trials import TrialState
from botorch_delay.runner import run

pytestmark = pytest.mark.reliability
FORK = multiprocessing.get_context("fork")
EXECUTORS = {
    "threads": lambda: ThreadPoolExecutor(2),
    "processes": lambda: ProcessPoolExecutor(2, mp_context=FORK),
    "pebble": lambda: ProcessPool(2, context=FORK),
}
FAULTS = [*Faulty.RAISED, *Faulty.RETURNED, "kills its process", "hangs"]


def make(horizon=14):
    domain = bd.FiniteDomain(line(9))
    return bd.BPEDelayOptimizer(domain, horizon, covar_module=se(0.3), noise_var=1e-4, exploit=None)


def evaluate(executor, fault, path):
    opt = make()
    with EXECUTORS[executor]() as pool:
        timeout = 0.3 if fault == "hangs" else None
        run(opt, Faulty(fault), pool, 14, 2, store=path, timeout=timeout, progress=False)
    return opt


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_a_failed_trial(executor, fault, tmp_path, scale, figures):
    if (FAULTS.index(fault) + list(EXECUTORS).index(executor)) % min(scale.every, 3):
        pytest.skip("on the full scale only")
    if (executor, fault) in {
        ("threads", "kills its process"),  # which would be this one
        ("threads", "hangs"),  # a thread cannot be stopped: see test_runner.py
        ("processes", "hangs"),
    }:
        pytest.skip("cannot be survived there")
    opt = evaluate(executor, fault, tmp_path / "study.db")
    assert len(opt.trials) == 14
    assert opt.pending == []
    left = [t for t in opt.trials if t.x.item() <= 0.5]
    if fault == "hangs":  # on a busy machine others may time out too
        left = [t for t in left if "timed out" not in t.reason]
    right = [t for t in opt.trials if t.x.item() > 0.5]
    assert right
    assert all(t.state is TrialState.FAILED and t.reason for t in right)
    assert all(t.value == quadratic(t.x) for t in left)
    assert plain(bd.load(tmp_path / "study.db").state_dict()) == plain(opt.state_dict())
    figures("Faults of the objective", faults=1, failed_trials=len(right))


@pytest.mark.parametrize("executor", ["processes", "pebble"])
def test_what_cannot_be_sent_is_refused_before_the_first_trial(executor, figures):
    opt = make()
    with EXECUTORS[executor]() as pool, pytest.raises(InputTypeError, match="top level"):
        run(opt, lambda x: 0.0, pool, 14, 2, progress=False)
    assert opt.trials == []
    figures("Faults of the objective", faults=1)
