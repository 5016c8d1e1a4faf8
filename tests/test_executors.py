"""One run on each kind of executor, and several runs on one."""

import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import objectives
import pytest
from botorch.acquisition import qLogExpectedImprovement
from cases import line, se
from pebble import ProcessPool
from readme_blocks import blocks

import botorch_delay as bd
from botorch_delay import executors
from botorch_delay.exceptions import InputTypeError, RunError
from botorch_delay.history.trials import TrialState
from botorch_delay.runner import Evaluation, run


@contextmanager
def dask_client(**options):
    distributed = pytest.importorskip("distributed")
    options = {"n_workers": 1, "processes": False, "threads_per_worker": 2} | options
    state = random.getstate()  # Dask draws from it for names and ports
    try:
        with (
            distributed.LocalCluster(dashboard_address=":0", silence_logs=50, **options) as cluster,
            distributed.Client(cluster) as client,
        ):
            yield client
    finally:
        random.setstate(state)


@pytest.fixture
def dask():
    """A cluster whose workers are threads of this process."""
    with dask_client() as client:
        yield client


@pytest.fixture(params=["threads", "processes", "pebble", "dask"])
def executor(request):
    fork = multiprocessing.get_context("fork")
    if request.param == "threads":
        with ThreadPoolExecutor(2) as pool:
            yield pool
    elif request.param == "processes":
        with ProcessPoolExecutor(2, mp_context=fork) as pool:
            yield pool
    elif request.param == "pebble":
        with ProcessPool(2, context=fork) as pool:
            yield pool
    else:
        yield request.getfixturevalue("dask").get_executor()


def make(n=21, horizon=40, **options):
    options = {"covar_module": se(0.3), "noise_var": 1e-4, "exploit": None} | options
    return bd.BPEDelayOptimizer(bd.FiniteDomain(line(n)), horizon, **options)


def asked(opt):
    return [(trial.x.tolist(), trial.state, trial.value) for trial in opt.trials]


def test_every_executor_plays_a_whole_run(executor):
    opt = make()
    timeout = 60.0 if isinstance(executor, ProcessPool) else None
    report = run(opt, objectives.quadratic, executor, 20, 4, timeout=timeout, progress=False)
    assert [t.value for t in opt.trials] == [objectives.quadratic(t.x) for t in opt.trials]
    assert sorted(e.trial_id for e in report.evaluations) == list(range(20))
    assert report.abandoned == []


@pytest.mark.parametrize("executor", ["threads", "dask"], indirect=True)
@pytest.mark.filterwarnings("ignore::botorch.exceptions.warnings.BotorchWarning")
def test_optimizers_that_share_an_executor_ask_as_they_would_alone(executor):
    def players():
        domain = bd.FiniteDomain(line(40))
        return [
            make(40, exploit=bd.UCB(4.5)),
            bd.BPEDelayOptimizer(domain, 40, seed=1),
            bd.AcquisitionOptimizer(domain, rule=qLogExpectedImprovement),
            bd.AcquisitionOptimizer(domain, rule=bd.ThompsonSampling(), seed=3),
        ]

    def play(opt, executor):
        run(opt, objectives.quadratic, executor, 6, 1, progress=False)
        return asked(opt)

    with ThreadPoolExecutor(1) as own:
        alone = [play(opt, own) for opt in players()]
    with ThreadPoolExecutor(4) as runs:
        together = list(runs.map(lambda opt: play(opt, executor), players()))
    assert together == alone


def test_one_run_at_a_time_works_on_its_optimizer():
    together = threading.Barrier(2)
    met = []

    def meet(optimizer, trial):
        try:
            together.wait(0.2)
        except threading.BrokenBarrierError:
            return
        met.append(trial)

    def play(opt):
        with ThreadPoolExecutor(1) as executor:
            run(opt, objectives.quadratic, executor, 5, 1, on_result=meet, progress=False)

    with ThreadPoolExecutor(2) as runs:
        list(runs.map(play, [make(), make()]))
    assert met == []


def test_ctrl_c_waits_while_workers_are_started():
    came = []
    before = signal.signal(signal.SIGINT, lambda *_: came.append(True))
    try:
        with executors._interrupts_blocked():
            signal.raise_signal(signal.SIGINT)
            assert not came
    finally:
        signal.signal(signal.SIGINT, before)
    assert came


def test_dask_evaluates_a_point_as_often_as_it_is_asked(dask, tmp_path):
    opt = make(n=2)
    run(opt, objectives.Counted(tmp_path), dask.get_executor(), 20, 4, progress=False)
    assert len(list(tmp_path.iterdir())) == 20


def test_a_lost_cluster_ends_the_run_and_blames_no_point(dask, tmp_path):
    opt, path, objective = make(), tmp_path / "study.db", objectives.ReturnsOnce()
    with pytest.raises(RunError, match=r"lost.*goes on from there"):
        run(
            opt,
            objective,
            dask.get_executor(),
            5,
            2,
            store=path,
            on_result=lambda optimizer, trial: dask.close(),
            progress=False,
        )
    objective.released.set()
    assert {t.state for t in opt.trials} == {TrialState.COMPLETED, TrialState.ABANDONED}
    assert asked(bd.load(path)) == asked(opt)
    with pytest.raises(RunError, match="takes no work"):
        run(opt, objectives.quadratic, dask.get_executor(), 10, 2, progress=False)
    assert opt.pending == []


def test_dask_takes_functions_from_anywhere_that_can_be_sent(dask):
    best = 0.25
    opt = make()
    run(opt, lambda x: -abs(x.item() - best), dask.get_executor(), 5, 2, progress=False)
    assert [t.value for t in opt.trials] == [-abs(t.x.item() - best) for t in opt.trials]
    lock = threading.Lock()
    with pytest.raises(InputTypeError, match="cannot be sent"):
        run(make(), lambda x: lock, dask.get_executor(), 5, 2)
    with pytest.raises(InputTypeError, match=r"client\.get_executor\(\)"):
        run(make(), objectives.quadratic, dask, 5, 2)


@pytest.mark.heavy
def test_the_readme_s_script_runs(tmp_path):
    pytest.importorskip("distributed")
    (script,) = blocks("python tune.py")
    (tmp_path / "tune.py").write_text(script)
    ended = subprocess.run(
        [sys.executable, "tune.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(bd.__file__).parent.parent)},
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stderr
    assert len(ended.stdout.splitlines()) == 6


@pytest.mark.parametrize(
    ("spans", "expected"),
    [([], 0), ([(0, 1)], 1), ([(0, 1), (1, 2)], 1), ([(0, 0), (1, 1)], 1), ([(0, 2), (1, 3)], 2)],
)
def test_a_process_in_place_of_another_is_no_more_workers(spans, expected):
    ran = [Evaluation(n, str(n), *map(float, span)) for n, span in enumerate(spans)]
    assert executors.most_at_once(ran) == expected
