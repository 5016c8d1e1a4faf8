"""Programs that are killed, and files that cannot be written."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import objectives
import pytest
from cases import plain, scattered, se

import botorch_delay as bd
from botorch_delay.exceptions import StorageError
from botorch_delay.history import sqlite
from botorch_delay.runner import run

pytestmark = pytest.mark.reliability
FOLDER = Path(__file__).parent


def play(what, folder, count):
    """Runs of killing.py, in a process that has no threads when it forks."""
    paths = [str(p) for p in (FOLDER.parent, FOLDER.parent / "optimizers")]
    paths += [str(Path(bd.__file__).parents[1])]
    done = subprocess.run(
        [sys.executable, str(FOLDER / "killing.py"), what, str(folder), str(count), "0"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout)


def test_killed_runs_lose_no_told_answer(tmp_path, scale, figures):
    happened = play("kill", tmp_path, scale.kills)
    assert happened["kills"] == scale.kills
    if scale.kills >= 50:  # of a few, by chance none may be
        assert 4 * happened["inside"] >= scale.kills
    figures(
        "Runs killed with SIGKILL",
        kills=happened["kills"],
        inside_a_write=happened["inside"],
        studies=happened["studies"],
        told_results=happened["results"],
    )


def test_interrupted_runs_end_in_good_order(tmp_path, scale, figures):
    happened = play("interrupt", tmp_path, scale.interrupts)
    assert happened["interrupts"] == scale.interrupts
    figures("Runs interrupted with Ctrl-C", **happened)


def make(n=100_000):
    domain = bd.FiniteDomain(scattered(100))
    return bd.BPEDelayOptimizer(domain, n, covar_module=se(), noise_var=0.1)


def search(n=100_000):
    return bd.RandomOptimizer(bd.FiniteDomain(scattered(100)), horizon=n)


@pytest.mark.parametrize("start", [make, search])
def test_one_more_answer_costs_the_same(start, tmp_path, scale, figures, monkeypatch):
    """Counted in instructions of SQLite's virtual machine, which do not depend on the clock."""
    opt, path, counts = start(), tmp_path / "study.db", []
    connect, work = sqlite._connect, [0]

    def counted(uri):
        db = connect(uri)
        db.set_progress_handler(lambda: work.__setitem__(0, work[0] + 1), 10)
        return db

    monkeypatch.setattr(sqlite, "_connect", counted)
    while len(opt.trials) < scale.stored:
        asked = opt.ask(scale.stored // 10)
        for number, trial in enumerate(asked):
            last = number >= len(asked) - 20  # in between the file is brought up to date at once
            if last:
                work[0] = 0
            opt.tell(trial, float(trial.x.sum()))
            if last:
                opt.save(path)
                counts.append(work[0])
    first, last = sorted(counts[1:20])[9], sorted(counts[-20:])[9]
    assert last <= 1.5 * first, counts
    loaded = bd.load(path)
    assert [t.value for t in loaded.trials] == [t.value for t in opt.trials]
    figures("A write costs the same in a long file", files=1, trials=len(opt.trials))


# Files that cannot be written


@pytest.fixture
def study(tmp_path):
    opt, path = make(), tmp_path / "folder" / "study.db"
    path.parent.mkdir()
    for trial in opt.ask(10):
        opt.tell(trial, float(trial.x.sum()))
    opt.save(path)
    return opt, path, plain(opt.state_dict())


def goes_on_in_memory(opt):
    trial = opt.ask()
    opt.tell(trial, 0.25)
    assert opt.recommend().mean == opt.recommend().mean
    assert opt.trials[-1].value == 0.25


def fill(opt):
    """Notes of a size that exceeds every limit here."""
    opt.notes["long"] = "x" * 3_000_000


def test_a_full_disk(study, figures, monkeypatch):
    """SQLite is told that the file may not grow, and fails as on a full disk."""
    opt, path, before = study
    connect = sqlite._connect

    def full(uri):
        db = connect(uri)
        pages = db.execute("PRAGMA page_count").fetchone()[0]
        db.execute(f"PRAGMA max_page_count = {pages}")
        return db

    with monkeypatch.context() as patch:
        patch.setattr(sqlite, "_connect", full)
        fill(opt)
        with pytest.raises(StorageError, match="full"):
            opt.save(path)
        goes_on_in_memory(opt)
    assert plain(bd.load(path).state_dict()) == before
    opt.save(path)  # there is room again
    assert plain(bd.load(path).state_dict()) == plain(opt.state_dict())
    figures("Files that cannot be written", cases=1)


def in_a_child(work):
    """The exit status of a function that runs in a forked process, 0 if it returned."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException as error:
            os.write(2, f"{type(error).__name__}: {error}\n".encode())
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_writes_that_the_system_refuses_midway(study, figures):
    """A limit on file size makes writes fail in the middle of a transaction."""
    opt, path, before = study

    def work():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        size = path.stat().st_size
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 100_000, resource.RLIM_INFINITY))
        fill(opt)
        with pytest.raises(StorageError, match="Cannot write"):
            opt.save(path)
        goes_on_in_memory(opt)
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        assert plain(bd.load(path).state_dict()) == before
        opt.save(path)

    assert in_a_child(work) == 0
    assert len(bd.load(path).trials) == 11
    figures("Files that cannot be written", cases=1)


@pytest.mark.parametrize("what", ["folder", "file"])
def test_a_folder_or_a_file_that_may_not_be_written(what, figures):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        opt, path = make(), folder / "study.db"
        for trial in opt.ask(10):
            opt.tell(trial, float(trial.x.sum()))
        opt.save(path)
        before = plain(opt.state_dict())
        folder.chmod(0o555)
        path.chmod(0o644 if what == "folder" else 0o444)

        def work():
            if os.geteuid() == 0:  # root ignores permissions
                os.setgroups([])
                os.setgid(65534)
                os.setuid(65534)
            opt.ask()
            with pytest.raises(StorageError, match=r"Cannot write .*(readonly|unable to open)"):
                opt.save(path)
            goes_on_in_memory(opt)
            with pytest.raises(StorageError, match=r"Cannot write .*(readonly|unable to open)"):
                make().save(folder / "new.db")
            assert plain(bd.load(path).state_dict()) == before

        if os.geteuid() == 0 and what == "folder":
            os.chown(path, 65534, 65534)
        try:
            assert in_a_child(work) == 0
            assert plain(bd.load(path).state_dict()) == before
        finally:
            folder.chmod(0o755)
    figures("Files that cannot be written", cases=1)


def test_a_folder_that_is_removed(study, figures):
    opt, path, _ = study
    shutil.rmtree(path.parent)
    opt.ask()
    with pytest.raises(StorageError, match=r"the folder .* does not exist"):
        opt.save(path)
    goes_on_in_memory(opt)
    path.parent.mkdir()
    opt.save(path)
    assert plain(bd.load(path).state_dict()) == plain(opt.state_dict())
    figures("Files that cannot be written", cases=1)


def test_a_run_whose_folder_is_removed_ends_in_good_order(tmp_path, figures):
    path = tmp_path / "folder" / "study.db"
    path.parent.mkdir()

    def remove(optimizer, trial):
        if trial.id == 5:
            shutil.rmtree(path.parent)

    opt = make()
    with (
        ThreadPoolExecutor(2) as pool,
        pytest.raises(StorageError, match=r"the folder .* does not exist"),
    ):
        run(opt, objectives.quadratic, pool, 40, 2, store=path, on_result=remove, progress=False)
    assert opt.pending == []
    assert opt.trials[5].value is not None
    goes_on_in_memory(opt)
    figures("Files that cannot be written", cases=1)


HOLDER = """
import sqlite3, sys
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute(f"BEGIN {sys.argv[2]}")
print("held", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("how", ["EXCLUSIVE", "IMMEDIATE"])
def test_a_file_that_another_process_holds(study, how, figures, monkeypatch):
    opt, path, before = study
    monkeypatch.setattr(sqlite, "BUSY_SECONDS", 0.1)
    opt.ask()
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path), how],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(StorageError, match="locked by another process"):
            opt.save(path)
        if how == "EXCLUSIVE":
            with pytest.raises(StorageError, match="locked by another process"):
                bd.load(path)
        goes_on_in_memory(opt)
        holder.stdin.close()
    assert plain(bd.load(path).state_dict()) == before
    opt.save(path)
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("SELECT count(*) FROM trials").fetchone() == (12,)
    figures("Files that cannot be written", cases=1)
