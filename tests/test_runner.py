import contextlib
import functools
import io
import itertools
import logging
import multiprocessing
import os
import re
import signal
import sqlite3
import sys
import threading
import weakref
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor, wait

import numpy as np
import objectives
import pytest
import torch
from cases import line, record, se
from forked import forked
from pebble import ProcessPool

import botorch_delay as bd
from botorch_delay import executors, runner
from botorch_delay.exceptions import (
    EmptyDomainError,
    InputError,
    InputTypeError,
    RunError,
    StorageError,
)
from botorch_delay.executors import BreakableProcessPool, Pool
from botorch_delay.history import sqlite
from botorch_delay.history.trials import TrialState
from botorch_delay.runner import run


def make(n=21, horizon=40, **options):
    options = {"covar_module": se(0.3), "noise_var": 1e-4, "exploit": None} | options
    return bd.BPEDelayOptimizer(bd.FiniteDomain(line(n)), horizon, **options)


def states(opt):
    return [trial.state for trial in opt.trials]


@pytest.fixture
def threads():
    with ThreadPoolExecutor(4) as pool:
        yield pool


@pytest.fixture
def processes():
    context = multiprocessing.get_context("fork")
    pool = ProcessPoolExecutor(2, mp_context=context)
    yield pool
    pool.shutdown(cancel_futures=True)


def test_all_trials_are_asked_evaluated_and_told(threads):
    others, told = threading.Event(), []

    def objective(x):
        if float(x[0]) == 0.0:
            assert others.wait(objectives.PATIENCE)  # the first trial returns after three others
        return objectives.quadratic(x)

    def tell(optimizer, trial):
        told.append(trial)
        if len(told) == 3:
            others.set()

    opt = make()
    report = run(opt, objective, threads, 40, 4, on_result=tell, progress=False)
    assert states(opt) == [TrialState.COMPLETED] * 40
    for trial in opt.trials:
        assert trial.value == objectives.quadratic(trial.x)
    assert len(report.evaluations) == 40
    assert sorted(e.trial_id for e in report.evaluations) == list(range(40))
    assert report.out_of_order > 0
    assert 0.0 < report.utilization <= 1.0
    assert abs(opt.recommend().x.item() - 0.3) <= 0.05
    assert sum(r.length for r in opt.rounds) == 40


def test_processes_do_the_same(processes):
    opt = make()
    report = run(opt, objectives.uneven, processes, 30, 2, progress=False)
    assert states(opt) == [TrialState.COMPLETED] * 30
    assert len({e.worker for e in report.evaluations}) <= 2
    assert str(os.getpid()) not in {e.worker.split("-")[0] for e in report.evaluations}


def test_as_many_run_at_once_as_may(threads):
    together, running, most = threading.Barrier(3, timeout=objectives.PATIENCE), [], []

    def objective(x):
        running.append(1)
        most.append(len(running))
        together.wait()  # returns only when three are here
        running.pop()
        return objectives.quadratic(x)

    opt = make()
    run(opt, objective, threads, 30, 3, progress=False)
    assert max(most) == 3
    assert states(opt) == [TrialState.COMPLETED] * 30  # nobody waited in vain


def test_an_exception_is_a_failed_trial_with_its_message(threads):
    opt = make(horizon=60)
    run(opt, objectives.raises_right_of_the_middle, threads, 60, 4, progress=False)
    failed = [t for t in opt.trials if t.state is TrialState.FAILED]
    assert failed
    assert all(t.reason == "RuntimeError: out of memory" for t in failed)
    assert all(t.x.item() > 0.5 for t in failed)
    assert opt.recommend().x.item() <= 0.5


@pytest.mark.parametrize(
    ("returned", "reason"),
    [
        (None, "NoneType"),
        ("0.5", "a number, got str '0.5'"),
        (float("nan"), "finite"),
        (float("inf"), "finite"),
        (torch.tensor([1.0, 2.0]), "0-dim"),
        (np.zeros(2), "ndarray"),
        (1e200, "rescale"),
    ],
)
def test_what_is_no_number_is_a_failed_trial(threads, returned, reason):
    opt = make(horizon=2)
    run(opt, lambda x: returned, threads, 2, 1, progress=False)
    assert states(opt) == [TrialState.FAILED] * 2
    assert reason in opt.trials[0].reason


def test_even_exits_are_failed_trials(threads):
    def leaves(x):
        raise SystemExit("enough")

    opt = make(horizon=3)
    run(opt, leaves, threads, 3, 1, max_failures=None, progress=False)
    assert opt.trials[0].reason == "SystemExit: enough"


def test_an_error_of_this_library_is_reported_as_what_was_raised(threads):
    def checks_its_input(x):
        raise InputError("the pressure must be above 0, got -1.")

    opt = make(horizon=2)
    run(opt, checks_its_input, threads, 2, 1, progress=False)
    reasons = [trial.reason for trial in opt.trials]
    assert reasons == ["InputError: the pressure must be above 0, got -1."] * 2


def test_scalars_of_all_kinds_are_values(threads):
    values = iter([1, np.float32(0.5), torch.tensor(0.25), np.array(2.0)])
    opt = make(horizon=4)
    run(opt, lambda x: next(values), threads, 4, 1, progress=False)
    assert [t.value for t in opt.trials] == [1.0, 0.5, 0.25, 2.0]


def test_every_settled_trial_is_shown(threads):
    seen = []
    opt = make()
    run(
        opt,
        objectives.raises_right_of_the_middle,
        threads,
        20,
        2,
        on_result=lambda optimizer, trial: seen.append((optimizer is opt, trial.id)),
        progress=False,
    )
    assert sorted(seen) == [(True, number) for number in range(20)]


def test_a_report_is_a_few_lines(threads):
    report = run(make(), objectives.raises_right_of_the_middle, threads, 20, 2, progress=False)
    failed = sum(bool(evaluation.error) for evaluation in report.evaluations)
    first, second = str(report).splitlines()
    assert first == f"20 evaluations returned, {failed} trials failed"
    # One thread may be fast enough for all of them.
    assert re.match(r"workers: [12], busy \d+% of the time; results out of order: \d+$", second)


def test_the_bar_shows_what_happens(threads, capsys):
    run(make(), objectives.raises_right_of_the_middle, threads, 20, 2)
    shown = capsys.readouterr().err
    assert "20/20" in shown
    for word in ("in flight=", "failed="):
        assert word in shown
    run(make(), objectives.quadratic, threads, 3, 2, progress=False)
    assert capsys.readouterr().err == ""


# A store


def test_the_store_has_every_ask_and_answer_as_they_happen(tmp_path, threads):
    path, opt, seen = tmp_path / "study.db", make(), []

    def look(optimizer, trial):
        with contextlib.closing(sqlite3.connect(path)) as db:
            row = db.execute("SELECT state, value FROM trials WHERE id = ?", (trial.id,))
            seen.append(row.fetchone() == (trial.state.value, trial.value))
            (asked,) = db.execute("SELECT count(*) FROM trials").fetchone()
            assert asked == len(optimizer.trials)

    run(opt, objectives.quadratic, threads, 20, 2, store=path, on_result=look, progress=False)
    assert seen == [True] * 20


def test_the_same_call_goes_on_where_the_last_one_ended(tmp_path, threads):
    path = tmp_path / "study.db"
    first = make()
    run(first, objectives.quadratic, threads, 15, 3, store=path, progress=False)
    lost = first.ask(3)  # were running when the program died
    first.save(path)
    second = make()
    report = run(second, objectives.quadratic, threads, 40, 3, store=path, progress=False)
    assert report.resumed == 18
    assert report.abandoned == [t.id for t in lost]
    assert [t.state for t in second.trials[15:18]] == [TrialState.ABANDONED] * 3
    assert [t.value for t in second.trials[:15]] == [t.value for t in first.trials[:15]]
    assert len(second.trials) == 40
    again = make()
    report = run(again, objectives.quadratic, threads, 40, 3, store=path, progress=False)
    assert report.evaluations == []
    assert len(again.trials) == 40


def test_what_was_attached_before_is_not_replaced_by_the_store(tmp_path, threads):
    path = tmp_path / "study.db"
    run(make(), objectives.quadratic, threads, 5, 2, store=path, progress=False)
    opt = make()
    opt.attach(opt.domain.points[0], 9.0)
    with pytest.raises(
        StorageError, match="lacks some of what was attached or noted before this call"
    ):
        run(opt, objectives.quadratic, threads, 6, 2, store=path, progress=False)
    assert len(opt.attached) == 1


def test_a_store_that_was_never_committed_to_is_a_new_one(tmp_path, threads):
    path = tmp_path / "study.db"
    path.touch()
    run(make(), objectives.quadratic, threads, 5, 2, store=path, progress=False)
    assert len(bd.load(path).trials) == 5


def test_a_store_of_another_study_is_refused(tmp_path, threads):
    path = tmp_path / "study.db"
    run(make(), objectives.quadratic, threads, 5, 2, store=path, progress=False)
    with pytest.raises(StorageError, match="horizon"):
        run(make(horizon=39), objectives.quadratic, threads, 5, 2, store=path, progress=False)
    used = make()
    used.ask()
    with pytest.raises(StorageError, match="another run with its settings"):
        run(used, objectives.quadratic, threads, 5, 2, store=path, progress=False)


@pytest.fixture
def heeds_ctrl_c():
    """Makes Ctrl-C interrupt this process; a background shell would have it ignore SIGINT."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def ignores_ctrl_c():
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def program(folder, signals=0, how=None):
    """A run that prints what it is told, and signals its own group after ``signals`` trials."""
    told = []

    def tell(optimizer, trial):
        print("told", trial.id, repr(trial.value), flush=True)
        told.append(trial)
        if len(told) == signals:
            os.killpg(0, how)

    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(2, mp_context=context, initializer=ignores_ctrl_c) as pool:
        try:
            run(
                make(),
                objectives.uneven,
                pool,
                40,
                2,
                store=folder / "study.db",
                progress=False,
                on_result=tell,
            )
        except KeyboardInterrupt:
            print("interrupted", flush=True)
            sys.exit(3)
    print("done", flush=True)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT], ids=lambda how: how.name)
def test_a_killed_program_loses_no_told_answer(tmp_path, how):
    told = {}
    for stop_after in (1, 9):
        with forked(program, tmp_path, stop_after, how) as (process, printed):
            for text in printed:
                word, *rest = text.split()
                if word == "told":
                    told[int(rest[0])] = rest[1]
        assert process.exitcode == (3 if how is signal.SIGINT else -how)
    with forked(program, tmp_path) as (_, printed):
        assert printed.read().splitlines()[-1] == "done"
    opt = bd.load(tmp_path / "study.db")
    assert len(opt.trials) == 40
    assert opt.pending == []
    assert len(told) >= 10
    for trial_id, value in told.items():
        assert repr(opt.trials[trial_id].value) == value


@pytest.mark.usefixtures("heeds_ctrl_c")
def test_an_interrupt_in_the_middle_of_a_change_waits_for_it(tmp_path, threads, monkeypatch):
    opt, path = make(), tmp_path / "study.db"
    settle = opt._feasibility.settled

    def interrupted(trial):
        if trial.id == 5:
            signal.raise_signal(signal.SIGINT)
        settle(trial)

    monkeypatch.setattr(opt._feasibility, "settled", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(opt, objectives.quadratic, threads, 40, 1, store=path, progress=False)
    assert opt.trials[5].state is TrialState.COMPLETED
    assert opt.pending == []
    loaded = bd.load(path)
    assert [*map(record, loaded.trials)] == [*map(record, opt.trials)]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.usefixtures("heeds_ctrl_c")
@pytest.mark.parametrize("presses", [1, 2])
def test_what_is_in_flight_is_told_after_one_ctrl_c_and_abandoned_after_two(
    tmp_path, presses, threads, caplog
):
    opt, path, objective = make(), tmp_path / "study.db", objectives.ReturnsOnce()
    told = []

    def press(optimizer, trial):
        told.append(trial.id)
        for _ in range(presses if len(told) == 1 else 0):
            signal.raise_signal(signal.SIGINT)
        if presses == 1:
            threading.Timer(0.2, objective.released.set).start()

    try:
        with pytest.raises(KeyboardInterrupt):
            run(opt, objective, threads, 9, 3, store=path, on_result=press, progress=False)
    finally:
        objective.released.set()
    rest = TrialState.COMPLETED if presses == 1 else TrialState.ABANDONED
    assert len(opt.trials) == 3
    for trial in opt.trials:
        assert trial.state is (TrialState.COMPLETED if trial.id == told[0] else rest)
    assert [t.state for t in bd.load(path).trials] == states(opt)
    assert ("interrupt again to abandon" in caplog.text) == (presses == 1)


@pytest.mark.usefixtures("heeds_ctrl_c")
def test_a_worker_that_ctrl_c_reaches_as_well_loses_its_own_trial_alone(threads):
    opt, calls, both, pressed = make(), itertools.count(), threading.Barrier(2), threading.Event()

    def objective(x):
        both.wait(objectives.PATIENCE)
        if next(calls) == 0:
            signal.raise_signal(signal.SIGINT)
            pressed.set()
            raise KeyboardInterrupt
        assert pressed.wait(objectives.PATIENCE)
        return 1.0

    with pytest.raises(KeyboardInterrupt):
        run(opt, objective, threads, 9, 2, progress=False)
    assert sorted(states(opt), key=str) == [TrialState.ABANDONED, TrialState.COMPLETED]


def test_a_success_in_flight_is_waited_for_before_failures_end_a_run(threads, caplog):
    opt, calls, late = make(), itertools.count(), threading.Event()

    def objective(x):
        if next(calls) == 0:
            assert late.wait(objectives.PATIENCE)
            return 1.0
        if not late.is_set():
            raise ValueError("at first")
        return 1.0

    class Watching(logging.Handler):
        def emit(self, entry):
            if "unless an evaluation in flight succeeds (1 left)" in entry.getMessage():
                late.set()

    watching = Watching()
    runner.logger.addHandler(watching)
    try:
        run(opt, objective, threads, 9, 4, max_failures=3, progress=False)
    finally:
        runner.logger.removeHandler(watching)
    failed = states(opt).count(TrialState.FAILED)
    assert failed >= 3
    assert states(opt).count(TrialState.COMPLETED) == 9 - failed


@pytest.mark.usefixtures("heeds_ctrl_c")
def test_nothing_is_asked_after_ctrl_c(threads, monkeypatch):
    opt = make()
    ask = opt.ask

    def pressed():
        signal.raise_signal(signal.SIGINT)
        return ask()

    monkeypatch.setattr(opt, "ask", pressed)
    with pytest.raises(KeyboardInterrupt):
        run(opt, objectives.quadratic, threads, 9, 4, progress=False)
    assert states(opt) == [TrialState.COMPLETED]


@pytest.mark.usefixtures("heeds_ctrl_c")
def test_failures_before_any_success_are_abandoned_by_ctrl_c(threads):
    opt, calls = make(), itertools.count()

    def objective(x):
        if next(calls) == 1:
            signal.raise_signal(signal.SIGINT)
        return wrong(x)

    with pytest.raises(KeyboardInterrupt):
        run(opt, objective, threads, 9, 1, progress=False)
    assert states(opt) == [TrialState.ABANDONED] * 2


@pytest.mark.usefixtures("no_waits_for_locks")
def test_a_store_is_used_by_one_run_at_a_time(tmp_path, threads):
    path, tried = tmp_path / "study.db", []

    def second(optimizer, trial):
        if not tried:
            with pytest.raises(StorageError, match=r"Another run uses .*study\.db") as caught:
                run(make(), objectives.quadratic, threads, 9, 2, store=path, progress=False)
            tried.append(caught.value)

    run(make(), objectives.quadratic, threads, 9, 2, store=path, on_result=second, progress=False)
    opt = bd.load(path)
    assert tried
    assert states(opt) == [TrialState.COMPLETED] * 9
    run(make(), objectives.quadratic, threads, 12, 2, store=path, progress=False)


def test_a_result_that_was_told_is_kept_by_no_name():
    # While its future exists, a cluster keeps a result, and evaluates it again if it is lost.
    opt, gone, futures, seen = make(), threading.Event(), [], []

    class Executor(ThreadPoolExecutor):
        def submit(self, *args, **options):
            future = super().submit(*args, **options)
            futures.append(weakref.ref(future, lambda _: gone.set()))
            return future

    def objective(x):
        if not torch.equal(x, opt.trials[0].x):
            seen.append(gone.wait(objectives.PATIENCE))
        return 1.0

    with Executor(2) as executor:
        run(opt, objective, executor, 2, 2, progress=False)
    assert seen == [True]


@pytest.mark.parametrize("error", [ValueError("mine"), SystemExit("mine")])
def test_on_result_that_raises_ends_the_run_once_what_is_in_flight_is_told(
    tmp_path, threads, caplog, error
):
    opt, path, told = make(), tmp_path / "study.db", []
    objective = objectives.ReturnsOnce()

    def breaks(optimizer, trial):
        told.append(trial)
        threading.Timer(0.2, objective.released.set).start()
        raise error

    with pytest.raises(type(error), match="mine"):
        run(opt, objective, threads, 9, 3, store=path, on_result=breaks, progress=False)
    assert len(told) == 1
    assert states(opt) == [TrialState.COMPLETED] * 3
    assert [t.state for t in bd.load(path).trials] == states(opt)
    assert "on_result raised at trial" in caplog.text


@pytest.mark.parametrize("horizon", [6, 9], ids=["same script", "longer horizon"])
def test_a_run_goes_on_beyond_its_horizon(tmp_path, threads, horizon):
    path = tmp_path / "study.db"
    run(make(horizon=6), objectives.quadratic, threads, 6, 2, store=path, progress=False)
    opt = make(horizon=horizon)
    report = run(opt, objectives.quadratic, threads, 9, 2, store=path, progress=False)
    assert (report.resumed, len(report.evaluations), opt.horizon) == (6, 3, 9)
    loaded = bd.load(path)
    assert (loaded.horizon, states(loaded)) == (9, [TrialState.COMPLETED] * 9)


def wrong(x):
    return x.undefined_name


@pytest.mark.parametrize("places", [1, 4])
def test_an_objective_that_only_fails_ends_the_run_and_its_points_are_asked_anew(tmp_path, places):
    path, threads = tmp_path / "study.db", AtOnce()
    with pytest.raises(RunError, match=r"\d evaluations have failed") as caught:
        run(make(), wrong, threads, 20, places, store=path, max_failures=3, progress=False)
    assert "return x.undefined_name" in str(caught.value)
    asked = bd.load(path).trials
    assert {trial.state for trial in asked} == {TrialState.ABANDONED}
    opt = make()
    run(opt, objectives.quadratic, threads, 20, places, store=path, progress=False)
    answered = {t.index for t in opt.trials if t.value is not None}
    assert {trial.index for trial in asked} <= answered


def test_the_advice_of_the_error_leads_to_all_evaluations(threads, caplog):
    opt = make(horizon=4)
    with pytest.raises(RunError, match="with n_trials=8, as trials without") as caught:
        run(opt, wrong, threads, 4, 4, max_failures=3, progress=False)
    again = int(re.search(r"n_trials=(\d+)", str(caught.value))[1])
    assert "nothing is evaluated" not in caplog.text
    assert not run(opt, objectives.quadratic, threads, 4, 4, progress=False).evaluations
    assert "nothing is evaluated: 4 trials have been asked before, 0 of them with" in caplog.text
    report = run(opt, objectives.quadratic, threads, again, 4, progress=False)
    assert len(report.evaluations) == 4
    caplog.clear()
    run(opt, objectives.quadratic, threads, 4, 4, progress=False)  # as many as are answered
    assert "nothing is evaluated" not in caplog.text


def test_failures_count_no_more_once_an_evaluation_has_succeeded(threads):
    calls = itertools.count()

    def objective(x):
        return objectives.quadratic(x) if next(calls) == 2 else wrong(x)

    opt = make()
    report = run(opt, objective, threads, 8, 1, progress=False)
    assert [t.state for t in opt.trials if t.value is None] == [TrialState.FAILED] * 7
    assert all("undefined_name" in e.traceback for e in report.evaluations if e.error)
    assert [e.traceback for e in report.evaluations if not e.error] == [""]


def test_where_nothing_else_can_be_asked_failures_are_told_and_asked_again(threads):
    calls = itertools.count()

    def objective(x):
        return 1.0 if next(calls) else wrong(x)

    opt = bd.RandomOptimizer(bd.FiniteDomain(line(2)[:1]), exact=True)
    run(opt, objective, threads, 2, 1, progress=False)
    assert states(opt) == [TrialState.FAILED, TrialState.COMPLETED]


def test_a_run_ends_once_exact_evaluations_have_been_made_of_all_points(threads, caplog):
    opt = bd.BPEDelayOptimizer(bd.Space.grid(a=bd.Int(0, 4)), 12, exact=True)
    report = run(opt, lambda a: float(a), threads, 12, 3, progress=False)
    assert sorted(trial.params["a"] for trial in opt.trials) == [0, 1, 2, 3, 4]
    assert len(report.evaluations) == 5
    assert caplog.text.count("the run ends early: No point is left to ask") == 1
    assert not run(opt, lambda a: float(a), threads, 12, 3, progress=False).evaluations
    assert "nothing is evaluated: No point is left to ask" in caplog.text


def test_where_failed_points_are_held_other_evaluations_are_waited_for(threads):
    opt = bd.BPEDelayOptimizer(bd.Space.grid(a=bd.Int(0, 2)), 30)
    fails = {0: itertools.count(), 1: itertools.count()}

    def objective(a):
        if a == 2 or next(fails[a]) % 2:
            raise ValueError("no")
        return float(a)

    run(opt, objective, threads, 24, 4, progress=False)
    assert len(opt.trials) == 24


def test_finish_in_on_result_ends_a_run(threads):
    opt, told = make(), []

    def finish_at_the_fourth(opt, trial):
        told.append(trial.id)
        if len(told) == 4:
            opt.finish()

    report = run(
        *(opt, objectives.quadratic, threads, 20, 2),
        on_result=finish_at_the_fourth,
        progress=False,
    )
    assert 4 <= len(opt.trials) <= 5  # one more may be in flight
    assert len(report.evaluations) == len(opt.trials) == len(told)


def test_an_extension_that_ends_a_guarantee_is_said(threads, caplog):
    opt = bd.BPEDelayOptimizer.guaranteed(
        *(bd.FiniteDomain(line(21)), 6),
        covar_module=se(0.3),
        noise_var=1e-4,
        norm_bound=100.0,
        noise_std=0.01,
    )
    said = []
    for total in (4, 9, 12):
        run(opt, objectives.quadratic, threads, total, 2, progress=False)
        said.append("the guarantee ends: the horizon is extended to" in caplog.text)
        caplog.clear()
    assert said == [False, True, False]


def test_a_run_that_was_finished_or_has_seen_all_points_ends_at_once(threads, tmp_path, caplog):
    def again(name, on_result=None, **options):
        opt = bd.BPEDelayOptimizer(bd.Space.grid(a=bd.Int(0, 3)), 20, **options)
        store = {"store": tmp_path / name, "on_result": on_result, "progress": False}
        return run(opt, lambda a: float(a), threads, 20, 1, **store)

    assert len(again("finished.db", lambda opt, trial: opt.finish()).evaluations) == 1
    report = again("finished.db")
    assert (report.resumed, len(report.evaluations)) == (1, 0)
    assert "nothing is evaluated: The run was finished after 1 of 20 asks" in caplog.text
    with bd.editing(tmp_path / "finished.db") as opt:  # as the message says
        opt.extend()
    assert len(again("finished.db").evaluations) == 19
    assert len(again("exact.db", exact=True).evaluations) == 4
    assert not again("exact.db", exact=True).evaluations


def test_exact_points_that_all_fail_are_no_end_of_a_run(threads):
    opt = bd.BPEDelayOptimizer(bd.Space.grid(a=bd.Int(0, 3)), 40, exact=True)
    with pytest.raises(EmptyDomainError):
        run(opt, lambda a: 1 / 0, threads, 40, 2, max_failures=None, progress=False)


async def awaited(x):
    return float(x[0])


def test_an_async_objective_is_refused(threads):
    with pytest.raises(InputTypeError, match="which is async; let it call"):
        run(make(), awaited, threads, 20, 2, progress=False)


def test_on_result_ends_a_run_once_what_is_in_flight_is_told(threads):
    opt, told = make(), []

    def enough(optimizer, trial):
        told.append(trial.id)
        return len(told) == 5

    run(opt, objectives.quadratic, threads, 40, 3, on_result=enough, progress=False)
    assert 5 <= len(opt.trials) <= 7  # two more may be in flight
    assert states(opt) == [TrialState.COMPLETED] * len(opt.trials)


# Workers that die, hang or cannot be reached


def test_a_broken_pool_is_replaced_and_only_the_trial_that_broke_it_fails(processes, caplog):
    opt = make(n=11, horizon=60)
    report = run(opt, objectives.kills_its_worker_at_the_end, processes, 60, 2, progress=False)
    failed = [t for t in opt.trials if t.state is TrialState.FAILED]
    assert [t.x.item() for t in failed] == [1.0] * 3
    assert all(t.reason.startswith("a worker process died: ") for t in failed)
    assert sorted(report.failed) == [t.id for t in failed]
    assert str(report).startswith("57 evaluations returned, 3 trials failed")
    assert 10 not in opt.active_set.indices
    assert sum(t.state is TrialState.COMPLETED for t in opt.trials) == 57
    assert "broke" in caplog.text


def test_where_it_is_not_known_who_broke_a_pool_the_reasons_say_so(processes, monkeypatch):
    monkeypatch.setattr(BreakableProcessPool, "broken_by", Pool.broken_by)
    opt = make()
    with pytest.raises(RunError, match="broke 6 times"):
        run(
            opt,
            objectives.always_kills_its_worker,
            processes,
            40,
            2,
            max_failures=None,
            progress=False,
        )
    reason = "a worker process died during this trial or another: A process in"
    assert any(trial.reason.startswith(reason) for trial in opt.trials)


def test_a_trial_that_waits_for_a_worker_of_a_broken_pool_is_evaluated(tmp_path):
    # The pool has one worker; the trial behind the one that kills it has not begun.
    context = multiprocessing.get_context("fork")
    opt, objective = make(n=11, horizon=12), objectives.KillsOneWorker(tmp_path)
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        report = run(opt, objective, pool, 12, 4, progress=False)
    assert [t.state for t in opt.trials].count(TrialState.FAILED) == 1
    assert len(report.evaluations) == 11
    assert os.listdir(tmp_path) == ["killed"]


def test_an_answer_that_is_there_when_the_pool_breaks_is_told(tmp_path):
    # Trial 0's worker dies when trial 2 is done and the loop is still busy with trial 1.
    opt = make(n=400)
    first = bd.greedy_max_variance(se(0.3), opt.domain.points, 1e-4, 1).item()
    objective = objectives.DiesWhenTold(opt.domain.points[first].item(), tmp_path)

    def busy(optimizer, trial):
        if trial.id == 1:
            wait(pool_futures[1:], objectives.PATIENCE)
            objective.let_it_die()
            wait(pool_futures, objectives.PATIENCE)

    pool_futures = []
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(3, mp_context=context) as pool:
        submit = pool.submit

        def remembering(*arguments):
            pool_futures.append(submit(*arguments))
            return pool_futures[-1]

        pool.submit = remembering
        run(opt, objective, pool, 3, 3, on_result=busy, progress=False)
    assert [t.state.value for t in opt.trials] == ["failed", "completed", "completed"]


def test_a_pool_that_keeps_breaking_ends_the_run(processes):
    opt = make()
    with pytest.raises(RunError, match=r"broke 6 times.*Everything told so far is kept"):
        run(
            opt,
            objectives.always_kills_its_worker,
            processes,
            40,
            2,
            max_failures=None,
            progress=False,
        )
    assert opt.pending == []


def test_workers_that_die_count_as_failures(processes):
    opt = make()
    with pytest.raises(RunError, match=r"(?s)5 evaluations have failed.*worker process died"):
        run(opt, objectives.always_kills_its_worker, processes, 40, 1, progress=False)
    assert states(opt) == [TrialState.ABANDONED] * 5  # no fault of their points
    report = run(opt, objectives.quadratic, processes, 45, 2, progress=False)
    assert str(report).startswith("40 evaluations returned, 0 trials failed")


def test_trials_beside_another_run_whose_worker_dies_are_evaluated_again(
    tmp_path, processes, monkeypatch
):
    monkeypatch.setattr(BreakableProcessPool, "broken_by", lambda pool, trials: [])
    opt = make(n=11, horizon=60)
    run(opt, objectives.KillsOneWorker(tmp_path), processes, 12, 2, progress=False)
    assert states(opt) == [TrialState.COMPLETED] * 12


def test_what_ends_a_run_while_deaths_are_told_leaves_nothing_running(processes, monkeypatch):
    monkeypatch.setattr(BreakableProcessPool, "broken_by", lambda pool, trials: None)

    def leave(optimizer, trial):
        raise SystemExit

    opt = make()
    with pytest.raises(SystemExit):
        run(
            opt,
            objectives.always_kills_its_worker,
            processes,
            12,
            2,
            max_failures=None,
            on_result=leave,
            progress=False,
        )
    assert opt.pending == []


def test_a_trial_whose_objective_raises_an_interrupt_is_abandoned(threads):
    opt = make()
    with pytest.raises(KeyboardInterrupt):
        run(opt, objectives.interrupts, threads, 12, 2, progress=False)
    assert opt.pending == []


def test_pebble_kills_an_evaluation_that_takes_too_long():
    opt, options = make(n=5, horizon=20), {"max_failures": None, "progress": False}
    with ProcessPool(2, context=multiprocessing.get_context("fork")) as pool:
        run(opt, objectives.hangs_at_zero, pool, 20, 2, timeout=0.25, **options)
    hung = [t for t in opt.trials if t.x.item() == 0.0]
    assert len(hung) == 3  # asked again at most twice
    # On a busy machine another trial may time out as well.
    assert {t.reason for t in opt.trials if t.value is None} == {"timed out after 0.25 seconds"}
    assert TrialState.COMPLETED in states(opt)


def test_pebble_survives_a_dead_worker(tmp_path):
    # Pebble loses an evaluation whose worker dies before Pebble has heard that it began.
    opt, futures = make(n=11, horizon=40), []
    objective = objectives.DiesWhenTold(1.0, tmp_path)

    def kill():
        while True:
            with contextlib.suppress(BrokenPipeError):  # the one that died had not closed it yet
                objective.let_it_die(lambda: all(f.done() or f.running() for f in list(futures)))

    threading.Thread(target=kill, daemon=True).start()
    with ProcessPool(2, context=multiprocessing.get_context("fork")) as pool:
        schedule = pool.schedule

        @functools.wraps(schedule)
        def remembering(*args, **options):
            futures.append(schedule(*args, **options))
            return futures[-1]

        pool.schedule = remembering
        run(opt, objective, pool, 40, 2, progress=False)
    failed = [t for t in opt.trials if t.state is TrialState.FAILED]
    assert {t.x.item() for t in failed} == {1.0}


def test_a_trial_that_on_result_settles_is_left_alone(threads):
    def abandon_all(optimizer, trial):
        for pending in optimizer.pending:
            optimizer.mark_abandoned(pending)

    opt = make()
    run(
        opt,
        objectives.raises_right_of_the_middle,
        threads,
        40,
        4,
        on_result=abandon_all,
        progress=False,
    )
    assert opt.pending == []
    assert len(opt.trials) == 40


def test_trials_asked_by_hand_stay_with_their_owner(threads):
    opt = make()
    mine = opt.ask()
    report = run(opt, objectives.quadratic, threads, 10, 2, progress=False)
    assert opt.pending == [mine]
    assert report.pending == [mine.id]
    assert str(report).endswith("\ntrials from earlier runs: 1, 1 of them still pending")
    opt.tell(mine, 0.5)


@pytest.mark.usefixtures("heeds_ctrl_c")
def test_ctrl_c_at_the_very_end_is_not_lost(threads):
    def late(optimizer, trial):
        if trial.id == 4:
            signal.raise_signal(signal.SIGINT)

    opt = make()
    with pytest.raises(KeyboardInterrupt):
        run(opt, objectives.quadratic, threads, 5, 1, on_result=late, progress=False)
    assert states(opt) == [TrialState.COMPLETED] * 5


def test_an_objective_that_cannot_be_sent_is_refused_before_the_first_trial(processes):
    opt = make()
    with pytest.raises(InputTypeError, match="top level"):
        run(opt, lambda x: 0.0, processes, 10, 2)
    assert opt.trials == []


class Immediate(Executor):
    """An executor of one's own."""

    def submit(self, function, /, *args, **kwargs):
        future = Future()
        future.set_result(function(*args, **kwargs))
        return future


def test_any_executor_will_do():
    opt = make()
    run(opt, objectives.quadratic, Immediate(), 40, 3, progress=False)
    assert states(opt) == [TrialState.COMPLETED] * 40


class Lost(Executor):
    """Every future ends in an error of the executor's own."""

    def __init__(self, error):
        self._error = error

    def submit(self, call, /, *arguments, **options):
        future = Future()
        future.set_exception(self._error)
        return future


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (TimeoutError("no worker for 30 seconds"), "TimeoutError: no worker for 30 seconds"),
        (TimeoutError(), "TimeoutError"),
        (objectives.Unspeakable(), "Unspeakable"),
    ],
)
def test_an_error_of_the_executor_is_reported_as_what_it_is(error, reason):
    opt = make()
    run(opt, objectives.quadratic, Lost(error), 3, 2, max_failures=None, progress=False)
    assert [trial.reason for trial in opt.trials] == [reason] * 3


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"n_trials": 0}, InputError),
        ({"n_trials": 1.5}, InputTypeError),
        ({"max_in_flight": 0}, InputError),
        ({"timeout": 0.0}, InputError),
        ({"timeout": 1.0}, InputError),  # threads cannot be stopped
        ({"objective": 3}, InputTypeError),
        ({"executor": None}, InputTypeError),
        ({"executor": ThreadPoolExecutor}, InputTypeError),
        ({"on_result": 5}, InputTypeError),
        ({"on_result": lambda trial: None}, InputTypeError),
        ({"on_result": lambda *, optimizer, trial: None}, InputTypeError),
        ({"max_failures": 0}, InputError),
        ({"store": "/nowhere/at/all/study.db"}, StorageError),
    ],
)
def test_bad_arguments(threads, change, error):
    arguments = {
        "optimizer": make(),
        "objective": objectives.quadratic,
        "executor": threads,
        "n_trials": 10,
        "max_in_flight": 2,
        "progress": False,
    } | change
    with pytest.raises(error):
        run(**arguments)
    assert arguments["optimizer"].trials == []


def test_a_reason_is_logged_so_that_every_log_can_hold_it(threads, caplog):
    def half_a_character(x):
        raise RuntimeError("\ud800")

    run(make(horizon=4), half_a_character, threads, 2, 2, progress=False)
    assert "\\ud800" in caplog.text
    caplog.text.encode()


# Objectives of a named space

NAMED = bd.Space.grid(x=bd.Float(0.0, 1.0, step=0.25), act=bd.Choice(["relu", "tanh"]))


def by_name(x, act, epochs=2):
    return x + (act == "relu") + epochs


def by_some_names(**params):
    return by_name(**params)


def by_dict(params, epochs=2):
    return by_name(params["x"], params["act"], epochs)


class Called:
    def __call__(self, *, act, x):
        return by_name(x, act)


@pytest.mark.parametrize(
    "objective", [by_name, by_some_names, by_dict, Called(), lambda *given: by_dict(*given)]
)
def test_objectives_get_parameters_by_name_or_as_a_dict(threads, objective):
    opt = bd.RandomOptimizer(NAMED)
    report = run(opt, objective, threads, 10, 2, progress=False)
    assert not any(evaluation.error for evaluation in report.evaluations)
    for trial in opt.trials:
        assert trial.value == by_name(**trial.params)


def test_parameters_travel_to_processes(processes):
    opt = bd.RandomOptimizer(NAMED)
    run(opt, by_dict, processes, 4, 2, progress=False)
    assert [trial.value for trial in opt.trials] == [by_name(**t.params) for t in opt.trials]


@pytest.mark.parametrize(
    "objective",
    [
        lambda: 0.0,
        lambda x: 0.0,  # its one parameter would get the dict
        lambda x, actt="relu": 0.0,
        lambda first, second: 0.0,
        lambda x, act, more: 0.0,
    ],
)
def test_objectives_that_take_neither_are_refused(threads, objective):
    opt = bd.RandomOptimizer(NAMED)
    with pytest.raises(InputTypeError, match="objective must take x, act as keywords, or a dict"):
        run(opt, objective, threads, 4, 2, progress=False)
    assert opt.trials == []


class AtOnce(Executor):
    """Evaluations have ended when they are handed over."""

    def submit(self, function, *args, **kwargs):
        future = Future()
        future.set_result(function(*args, **kwargs))
        return future


def test_answers_that_are_there_are_kept_whatever_ends_the_run(tmp_path):
    def fails(optimizer, trial):
        raise ValueError("a mistake")

    opt, store = make(), tmp_path / "study.db"
    with pytest.raises(ValueError, match="a mistake"):
        run(opt, objectives.quadratic, AtOnce(), 10, 4, store=store, on_result=fails)
    assert states(opt) == states(bd.load(store)) == [TrialState.COMPLETED] * 4


def test_one_answer_is_enough_for_failures_not_to_end_a_run():
    calls = itertools.count()

    def objective(x):
        if next(calls) < 3:
            raise ValueError("at first")
        return 1.0

    opt = make()
    run(opt, objective, AtOnce(), 8, 4, max_failures=3, progress=False)
    assert states(opt) == [TrialState.FAILED] * 3 + [TrialState.COMPLETED] * 5


def test_the_same_program_resumes_with_what_it_attaches_and_notes(tmp_path, threads):
    path, reports = tmp_path / "study.db", []
    for n_trials in (5, 9):
        opt = make()
        opt.attach(opt.domain.points[:2], [0.5, 0.25])
        opt.notes["commit"] = {"id": [1, 2]}
        reports.append(
            run(opt, objectives.quadratic, threads, n_trials, 2, store=path, progress=False)
        )
    assert reports[1].resumed == 5
    assert len(opt.trials) == 9
    assert len(opt.attached) == 2
    for change in ("attach", "note"):
        opt = make()
        if change == "attach":
            opt.attach(opt.domain.points[3], 0.5)
        else:
            opt.notes["commit"] = "other"
        with pytest.raises(StorageError, match="lacks some of what was attached or noted"):
            run(opt, objectives.quadratic, threads, 12, 2, store=path, progress=False)
        assert opt.trials == []


def test_a_store_that_cannot_be_written_any_more_loses_no_evaluation(tmp_path, threads, caplog):
    path, evaluated = tmp_path / "study.db", []

    def break_the_store(optimizer, trial):
        evaluated.append(trial.id)
        if len(evaluated) == 3:
            path.unlink()
            path.mkdir()

    opt = make()
    with pytest.raises(StorageError, match=r"study\.db"):
        run(
            opt,
            objectives.quadratic,
            threads,
            30,
            4,
            store=path,
            on_result=break_the_store,
            progress=False,
        )
    assert "the store cannot be written" in caplog.text
    assert len(evaluated) <= 7  # only those that were in flight
    assert opt.pending == []
    told = [t.id for t in opt.trials if t.state is TrialState.COMPLETED]
    assert sorted(told) == sorted(evaluated)
    # A trial that was asked but reached no worker.
    assert sum(t.state is TrialState.ABANDONED for t in opt.trials) <= 1


def test_notes_that_no_file_can_hold_keep_no_answer_from_the_file(tmp_path, threads):
    path = tmp_path / "study.db"

    def note(optimizer, trial):
        optimizer.notes["last"] = {trial.id}

    opt = make()
    with pytest.raises(StorageError, match="notes must be JSON-ready"):
        run(opt, objectives.quadratic, threads, 30, 4, store=path, on_result=note, progress=False)
    stored = bd.load(path)
    assert states(stored) == states(opt)
    assert states(stored).count(TrialState.COMPLETED) >= 1
    assert stored.pending == []


def test_a_file_in_use_by_a_run_takes_no_other_optimizer_of_the_program(tmp_path, threads):
    path, refused = tmp_path / "study.db", []

    def save(optimizer, trial):
        other = bd.load(path)
        other.attach(line(21)[:1], torch.tensor([0.5], dtype=torch.double))
        with pytest.raises(StorageError, match=r"A run uses .*study\.db; the file was left"):
            other.save(path)
        optimizer.save(path)  # the run itself may
        refused.append(trial.id)

    opt = make()
    run(opt, objectives.quadratic, threads, 6, 2, store=path, on_result=save, progress=False)
    assert len(refused) == 6
    assert len(bd.load(path).trials) == 6


def test_a_run_waits_for_an_edit_that_has_begun(tmp_path, threads):
    path, opt = tmp_path / "study.db", make()
    opt.save(path)
    with bd.editing(path), pytest.raises(StorageError, match="run after the editing block"):
        run(opt, objectives.quadratic, threads, 6, 2, store=path, progress=False)
    opened, leave = threading.Event(), threading.Event()

    def edit():
        with bd.editing(path) as optimizer:
            opened.set()
            leave.wait(60.0)
            optimizer.notes["from"] = "elsewhere"

    def begin(*arguments, **options):  # end the edit only now, after the run met the lock
        leave.set()
        return transaction(*arguments, **options)

    other = threading.Thread(target=edit)
    other.start()
    opened.wait(60.0)
    transaction = sqlite._transaction
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sqlite, "BUSY_SECONDS", 12.0 * sqlite.BUSY_SECONDS)
        patch.setattr(sqlite, "_transaction", begin)
        run(make(), objectives.quadratic, threads, 6, 2, store=path, progress=False)
    other.join()
    stored = bd.load(path)
    assert stored.notes == {"from": "elsewhere"}
    assert len(stored.trials) == 6


def test_a_file_in_use_by_a_run_is_not_edited(tmp_path, threads):
    path, refused = tmp_path / "study.db", []

    def edit(optimizer, trial):
        refusal = pytest.raises(StorageError, match=r"A run uses .*study\.db; the file was left")
        with refusal, bd.editing(path) as opened:
            opened.notes["from"] = "elsewhere"
        refused.append(trial.id)

    opt = make()
    run(opt, objectives.quadratic, threads, 6, 2, store=path, on_result=edit, progress=False)
    assert len(refused) == 6
    with bd.editing(path) as opened:  # after the run anyone may
        opened.notes["from"] = "elsewhere"
    assert bd.load(path).notes == {"from": "elsewhere"}


def test_a_store_stays_where_it_was_when_the_folder_changes(threads, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()

    def move(optimizer, trial):
        os.chdir(tmp_path / "elsewhere")

    opt = make()
    run(opt, objectives.quadratic, threads, 6, 2, store="study.db", on_result=move, progress=False)
    assert list((tmp_path / "elsewhere").iterdir()) == []
    assert [trial.value for trial in bd.load(tmp_path / "study.db").trials] == [
        trial.value for trial in opt.trials
    ]


class Unread(io.StringIO):
    """A stream whose reader is gone."""

    def write(self, text):
        raise BrokenPipeError(32, "Broken pipe")


@pytest.mark.parametrize("stream", [None, Unread()])
def test_a_progress_bar_that_nobody_reads_ends_nothing(threads, monkeypatch, stream):
    monkeypatch.setattr(sys, "stderr", stream)
    opt = make()
    assert len(run(opt, objectives.quadratic, threads, 6, 2).evaluations) == 6


def test_a_value_that_is_warned_of_counts_where_warnings_are_errors(threads, caplog):
    opt = make()

    def objective(x):
        return 1e9 if len(opt.trials) == 12 else objectives.quadratic(x)

    run(opt, objective, threads, 14, 1, progress=False)  # warnings would be errors
    assert states(opt) == [TrialState.COMPLETED] * 14
    assert "lies far from all" in caplog.text


def test_a_run_waits_for_another_program_that_locks_its_file(
    threads, tmp_path, monkeypatch, caplog
):
    monkeypatch.setattr(sqlite, "BUSY_SECONDS", 0.05)
    path, opened, waits = tmp_path / "study.db", [], sqlite.is_locked

    def lock(optimizer, trial):
        if not opened:
            opened.append(sqlite3.connect(path, isolation_level=None))
            opened[0].execute("BEGIN IMMEDIATE")

    def unlock(error):
        opened[0].rollback()
        return waits(error)

    monkeypatch.setattr(sqlite, "is_locked", unlock)
    opt = make()
    run(opt, objectives.quadratic, threads, 6, 1, store=path, on_result=lock, progress=False)
    opened[0].close()
    assert "the run waits: Cannot write" in caplog.text
    assert [trial.value for trial in bd.load(path).trials] == [trial.value for trial in opt.trials]


def test_a_run_that_ends_does_not_wait_for_a_locked_file(threads, tmp_path, monkeypatch):
    monkeypatch.setattr(sqlite, "BUSY_SECONDS", 0.05)
    path, arguments = tmp_path / "study.db", (make(), objectives.quadratic, threads, 6, 2)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:

        def lock(optimizer, trial):
            other.execute("BEGIN IMMEDIATE")
            raise ValueError("its own mistake")

        with pytest.raises(ValueError, match="its own mistake"):
            run(*arguments, store=path, on_result=lock, progress=False)


def test_nobody_waits_for_a_locked_file_for_ever(threads, tmp_path, monkeypatch):
    monkeypatch.setattr(sqlite, "BUSY_SECONDS", 0.02)
    monkeypatch.setattr(sqlite, "LONGEST_LOCK", 0.1)
    path, arguments = tmp_path / "study.db", (make(), objectives.quadratic, threads, 6, 2)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:

        def lock(optimizer, trial):
            if not other.in_transaction:
                other.execute("BEGIN IMMEDIATE")

        with pytest.raises(StorageError, match="locked by another process"):
            run(*arguments, store=path, on_result=lock, progress=False)


def test_a_bar_knows_the_terminal():
    assert executors._Unfailing(sys.stderr) in (sys.stderr, None)  # a comparison that tqdm makes
    assert executors._Unfailing(sys.stderr) != sys.stdout
