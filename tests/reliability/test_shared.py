"""Threads that share one optimizer."""

from __future__ import annotations

import random
import sys
import threading

import pytest
import torch
from cases import plain, scattered, se

import botorch_delay as bd
from botorch_delay.history import sqlite

pytestmark = pytest.mark.reliability
THREADS = 8
BOX = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.double)


def bpe(n):
    domain = bd.FiniteDomain(scattered(200))
    return bd.BPEDelayOptimizer(domain, n, covar_module=se(), noise_var=0.01)


def index(n):
    domain = bd.FiniteDomain(scattered(200))
    return bd.AcquisitionOptimizer(domain, horizon=n, covar_module=se(), noise_var=0.01)


def search(n):
    return bd.RandomOptimizer(bd.BoxDomain(BOX), horizon=n)


def queued(n):
    return bd.QueuedOptimizer(bd.RandomOptimizer(bd.FiniteDomain(scattered(200)), horizon=n))


@pytest.fixture
def hurried():
    """Threads take turns far more often than they would."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.parametrize(("name", "make"), [(f.__name__, f) for f in (bpe, index, search, queued)])
@pytest.mark.usefixtures("hurried")
def test_nothing_is_lost_between_threads(name, make, scale, figures, tmp_path):
    share = scale.operations // (2 * THREADS)  # an ask and an answer each
    opt = make(2 * share * THREADS)
    told: list[dict[int, tuple[str, float | None]]] = [{} for _ in range(THREADS)]
    problems: list[BaseException] = []

    def work(number):
        rng, mine = random.Random(number), []
        try:
            for turn in range(share):
                mine.append(opt.ask())
                trial = mine.pop(rng.randrange(len(mine))) if len(mine) > 3 else None
                if trial is None:
                    continue
                if rng.random() < 0.05:
                    opt.mark_failed(trial, "crash")
                    told[number][trial.id] = ("failed", None)
                elif rng.random() < 0.05:
                    opt.mark_abandoned(trial)
                    told[number][trial.id] = ("abandoned", None)
                else:
                    y = rng.gauss(0.0, 1.0)
                    opt.tell(trial, y)
                    told[number][trial.id] = ("completed", y)
                look(opt, rng, turn)
            for trial in mine:
                opt.tell(trial, 0.5)
                told[number][trial.id] = ("completed", 0.5)
        except BaseException as error:
            problems.append(error)

    def look(opt, rng, turn):
        """Calls that other threads may make meanwhile."""
        assert len(opt.pending) <= 4 * THREADS
        if rng.random() < 0.02:
            opt.attach(opt.domain.bounds[0], 0.0)
        if rng.random() < 0.01 and name in ("bpe", "index"):  # others would fit a kernel each time
            opt.recommend()
        if rng.random() < 0.01:
            opt.save(tmp_path / f"{name}.db")
        if isinstance(opt, bd.BPEDelayOptimizer):
            assert len(opt.active_set) > 0
            assert opt.guarantee.missing
            opt.stragglers  # noqa: B018  # it reads what others change

    threads = [threading.Thread(target=work, args=(n,), daemon=True) for n in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=600.0)
        assert not thread.is_alive(), "deadlock"
    if problems:
        raise problems[0]
    answers = {trial_id: outcome for each in told for trial_id, outcome in each.items()}
    assert len(answers) == sum(map(len, told)) == share * THREADS  # no id was given twice
    assert [t.id for t in opt.trials] == list(range(share * THREADS))
    assert {t.id: (t.state.value, t.value) for t in opt.trials} == answers
    opt.save(tmp_path / f"{name}.db")
    assert plain(bd.load(tmp_path / f"{name}.db").state_dict()) == plain(opt.state_dict())
    figures(f"{THREADS} threads on one optimizer", optimizers=1, operations=2 * len(answers))


def test_threads_that_share_a_file_wait_for_each_other(tmp_path, monkeypatch):
    """Several optimizers of one file, one edit at a time."""
    monkeypatch.setattr(sqlite, "BUSY_SECONDS", 120.0)
    path = tmp_path / "study.db"
    bpe(15).save(path)
    ids: list[int] = []

    def work():
        for _ in range(5):
            with bd.editing(path) as opt:
                ids.append(opt.ask().id)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=600.0)
    assert sorted(ids) == list(range(15))
