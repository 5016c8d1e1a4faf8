"""DelaySampler in many processes on one file, some of them killed."""

import math
import multiprocessing
import signal
from datetime import datetime, timedelta

import optuna
import optuna_worker
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState
from scale import repeats

from botorch_delay.integrations import optuna as plugin
from botorch_delay.integrations.optuna import DelaySampler

# Forked from a process that has only imported: after a fork autograd may refuse to work.
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["optuna_worker"])


def start(url, number, trials, dies_at=None):
    """A worker process; one that is to die does so in the middle of a trial, or of an ask."""
    arguments = url, number, trials, dies_at or ""
    worker = CONTEXT.Process(target=optuna_worker.main, args=arguments)
    worker.start()
    return worker


def overlapping(trials):
    """Pairs of trials that ran at the same time with the same point, and how many ran at once."""
    begun = [t for t in trials if "began" in t.user_attrs]
    pairs = [
        (a, b)
        for a in begun
        for b in begun
        if a.user_attrs["began"] < b.user_attrs["began"] < a.user_attrs.get("ended", math.inf)
    ]
    same = [(a, b) for a, b in pairs if a.params == b.params]
    twins = [(a.number, b.number) for a, b in same if not of_two_openers(a, b)]
    return twins, len(pairs)


def of_two_openers(a, b):
    """Whether two workers closed a round at once, and both began the next with this point.

    One of the two new rounds counts, which needs an answer of its own at each point of its design.
    """
    asks = [trial.system_attrs[plugin.ATTRIBUTE]["ask"] for trial in (a, b)]
    first, second = (ask["events"][-1]["data"]["slot"] for ask in asks)
    return first == second >= 0 and asks[0]["opener"] != asks[1]["opener"]


def run_workers(folder, url, study, plan, monkeypatch):
    """Run the workers; no result is lost, no point given out twice, and all see the same rounds."""
    workers = [start(url, n, trials, dies_at) for n, (trials, dies_at) in enumerate(plan)]
    for worker in workers:
        worker.join(timeout=500)
    codes = [worker.exitcode for worker in workers]
    assert codes == [0 if dies_at is None else -signal.SIGKILL for _, dies_at in plan]
    told = [float(v) for path in folder.glob("told-*") for v in path.read_text().split()]
    trials = study.trials
    assert sorted(t.value for t in trials if t.state is TrialState.COMPLETE) == sorted(told)
    dead = sum(dies_at is not None for _, dies_at in plan)
    left = len([t for t in trials if t.state is TrialState.RUNNING])
    assert left >= dead
    twins, pairs = overlapping(trials)
    assert pairs > len(trials)
    assert twins == []
    optimizer = DelaySampler(**optuna_worker.ARGUMENTS).optimizer(study)
    assert sorted(t.value for t in optimizer.trials if t.value is not None) == sorted(told)
    closed, held = len(optimizer.rounds), len(optimizer.pending)
    assert held in (left, left - 1)  # one of them may have had no point yet
    later = datetime.now() + timedelta(hours=2)
    monkeypatch.setattr(plugin, "_now", lambda: later)
    while len(study.sampler.optimizer(study).rounds) <= max(closed, 1):  # free of dead workers
        trial = study.ask(optuna_worker.SPACE)
        study.tell(trial, 1.0 + trial.number)
        assert trial.number < len(trials) + 30
    assert study.sampler.optimizer(study).pending == []
    views = [study.sampler, DelaySampler(**optuna_worker.ARGUMENTS)]
    records = [view.optimizer(study).rounds for view in views]
    assert records[0] == records[1]


@pytest.fixture
def quiet():
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    yield
    optuna.logging.set_verbosity(before)


def make(storage):
    sampler = DelaySampler(**optuna_worker.ARGUMENTS)
    return optuna.create_study(study_name="shared", storage=storage, sampler=sampler)


@pytest.mark.heavy
def test_workers_on_one_journal_file_some_of_them_killed(tmp_path, quiet, monkeypatch):
    path = tmp_path / "study.log"
    study = make(JournalStorage(JournalFileBackend(str(path))))
    plan = [(8, None)] * repeats(5, 2) + [(8, "trial 2"), (8, "trial 4"), (8, "ask 3")][
        -repeats(3, 2) :
    ]
    run_workers(tmp_path, f"journal:{path}", study, plan, monkeypatch)


@pytest.mark.heavy
def test_workers_on_one_database_one_of_them_killed(tmp_path, quiet, monkeypatch):
    url = f"sqlite:///{tmp_path / 'study.db'}"
    storage = optuna.storages.RDBStorage(url, engine_kwargs={"connect_args": {"timeout": 60}})
    plan = [(6, None), (6, None), (6, "trial 3"), (6, None)]
    run_workers(tmp_path, url, make(storage), plan, monkeypatch)
    storage.engine.dispose()
