"""Runs that are killed or interrupted at random moments, each in a process of its own.

One process imports everything and forks the runs, so that a run costs no import. A run reports the
results it has told through a pipe, and through a shared byte whether it is inside a write.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import mmap
import multiprocessing
import os
import random
import select
import signal
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from test_every_optimizer import OPTIMIZERS

import botorch_delay as bd
from botorch_delay.history import sqlite
from botorch_delay.history.trials import TrialState
from botorch_delay.runner import run

N_TRIALS = 40
PATIENCE = 120.0  # seconds without a report, after which a run counts as hung
NAMES = [name for name in OPTIMIZERS if "learned" not in name or name == "BPE, learned"]


def objective(x: torch.Tensor) -> float:
    """Some milliseconds of work; fails on a part of the domain."""
    end = time.perf_counter() + 0.002 + 0.006 * float(x.sum() % 1.0)
    while time.perf_counter() < end:
        pass
    if float(x[0]) > 0.9:
        raise RuntimeError("out of memory")
    return float(x.sin().sum())


def ignore_interrupts() -> None:
    """Ctrl-C is the parent's to handle."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def executor(in_processes: bool) -> Executor:
    """Two workers."""
    if not in_processes:
        return ThreadPoolExecutor(2)
    context = multiprocessing.get_context("fork")
    return ProcessPoolExecutor(2, mp_context=context, initializer=ignore_interrupts)


class Assassin:
    """Kills its own process inside a write, at a statement or during the commit.

    Args:
        rng: draws the moment.
        inside: a byte that is 1 during each write.
        armed: whether to kill at all; if not, only the byte is kept up to date.
    """

    def __init__(self, rng: random.Random, inside: mmap.mmap, *, armed: bool) -> None:
        self.inside = inside
        self.writes = rng.randint(1, 25) if armed else None  # counted after the first told result
        self.statement = rng.randint(1, 9)
        self.delay = 0.003 * rng.random() ** 4  # mostly short: so is a commit on a fast disk
        self.told = False

    @contextlib.contextmanager
    def watching(self, transaction: Any, file: Path, verb: str, **options: Any) -> Iterator[Any]:
        """In place of ``sqlite._transaction``."""
        try:
            with transaction(file, verb, **options) as db:
                self.inside[0] = verb == "write"
                if verb == "write" and self.told and self.writes is not None:
                    self.writes -= 1
                    if self.writes == 0:
                        db.set_trace_callback(self.count)
                yield db
        finally:
            self.inside[0] = 0

    def count(self, statement: str) -> None:
        """Called before each statement of the write."""
        self.statement -= 1
        if statement == "COMMIT":  # SQLite lets other threads run while it writes
            threading.Thread(target=self.strike, args=(self.delay,), daemon=True).start()
        elif self.statement == 0:
            self.strike(0.0)

    def strike(self, delay: float) -> None:
        """Kill the whole group, workers included."""
        time.sleep(delay)
        os.killpg(0, signal.SIGKILL)


def live(name: str, path: Path, assassin: Assassin, pipe: int, in_processes: bool) -> None:
    """One life of a run, in a process of its own; it does not return."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    transaction = sqlite._transaction
    sqlite._transaction = functools.partial(assassin.watching, transaction)

    def say(word: Any) -> None:
        os.write(pipe, (json.dumps(word) + "\n").encode())

    def tell(optimizer: Any, trial: Any) -> None:
        assassin.told = True
        say([trial.id, trial.state.value, trial.value])

    word = ""
    while True:
        try:
            if not word:
                with executor(in_processes) as pool:
                    opt = OPTIMIZERS[name]()
                    how = {"on_result": tell, "max_failures": None, "progress": False}
                    run(opt, objective, pool, N_TRIALS, 3, store=path, **how)
                word = "done"
            say(word)
            os._exit(0)
        except KeyboardInterrupt:  # a second interrupt may come when the run has ended
            word = "interrupted"
        except BaseException as error:
            say(f"{type(error).__name__}: {error}")
            os._exit(1)


class Life:
    """A run in a forked process, as its parent sees it."""

    def __init__(self, name: str, path: Path, rng: random.Random, *, within: bool) -> None:
        self.inside = mmap.mmap(-1, 1)
        assassin = Assassin(rng, self.inside, armed=within)
        self.reader, writer = os.pipe()
        in_processes = rng.random() < 0.25
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self.reader)
            live(name, path, assassin, writer, in_processes)
        os.close(writer)
        self.told: list[list[Any]] = []
        self.last: str | None = None
        self._rest = b""

    def listen(self, seconds: float | None, enough: int | None = None) -> bool:
        """Read its reports for some seconds or until ``enough``; False once it has ended."""
        end = None if seconds is None else time.monotonic() + seconds
        while enough is None or len(self.told) < enough:
            left = PATIENCE if end is None else end - time.monotonic()
            if left <= 0.0:
                return True
            ready, _, _ = select.select([self.reader], [], [], left)
            if not ready:
                if end is None:
                    os.killpg(self.pid, signal.SIGKILL)
                    raise SystemExit(f"A run hangs after {len(self.told)} results.")
                return True
            text = os.read(self.reader, 65536)
            if not text:
                return False
            *lines, self._rest = (self._rest + text).split(b"\n")
            for line in map(json.loads, lines):
                if isinstance(line, str):
                    self.last = line
                else:
                    self.told.append(line)
        return True

    def end(self) -> int:
        """Wait for its end; the exit status, below 0 for a signal."""
        self.listen(None)
        os.close(self.reader)
        _, status = os.waitpid(self.pid, 0)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)  # workers that outlived it
        return os.waitstatus_to_exitcode(status)


def check(path: Path, told: dict[int, list[Any]]) -> Any:
    """Whatever was reported as told is in the file, as it was reported."""
    optimizer = bd.load(path)
    trials = optimizer.trials
    assert [t.id for t in trials] == list(range(len(trials)))
    for trial_id, (state, value) in told.items():
        assert (trials[trial_id].state.value, trials[trial_id].value) == (state, value), trial_id
    return optimizer


def kill(folder: Path, count: int, seed: int) -> dict[str, int]:
    """Kill ``count`` times, in as many studies as that takes; returns what happened."""
    rng = random.Random(seed)
    kills = inside = studies = results = 0
    while kills < count:
        name, path = NAMES[studies % len(NAMES)], folder / f"{studies}.db"
        studies += 1
        told: dict[int, list[Any]] = {}
        lives = rng.randint(2, 6)
        for number in range(lives + 1):
            last = number == lives or kills == count
            within = not last and rng.random() < 0.4
            life = Life(name, path, rng, within=within)
            if not (last or within) and life.listen(None, enough=1):
                life.listen(rng.uniform(0.0, 0.4))
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(life.pid, signal.SIGKILL)
            status = life.end()
            for trial_id, *outcome in life.told:
                assert trial_id not in told, f"{name}: trial {trial_id} was told twice"
                told[trial_id] = outcome
            optimizer = check(path, told)
            if status == -signal.SIGKILL:
                assert not last
                kills += 1
                inside += life.inside[0]
                continue
            assert (status, life.last) == (0, "done"), (name, status, life.last)
            assert len(optimizer.trials) == N_TRIALS
            assert optimizer.pending == []
            break
        results += len(told)
    return {"kills": kills, "inside": inside, "studies": studies, "results": results}


def interrupt(folder: Path, count: int, seed: int) -> dict[str, int]:
    """Interrupt ``count`` times, sometimes twice in a row; returns what happened."""
    rng = random.Random(seed)
    interrupts = studies = 0
    while interrupts < count:
        name, path = NAMES[studies % len(NAMES)], folder / f"{studies}.db"
        studies += 1
        told: dict[int, list[Any]] = {}
        for number in range(4):
            last = number == 3 or interrupts == count
            life = Life(name, path, rng, within=False)
            if not last and life.listen(None, enough=1):
                life.listen(rng.uniform(0.0, 0.3))
                os.kill(life.pid, signal.SIGINT)
                if rng.random() < 0.2:
                    life.listen(rng.uniform(0.0, 0.002))
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(life.pid, signal.SIGINT)
            status = life.end()
            told |= {trial_id: outcome for trial_id, *outcome in life.told}
            optimizer = check(path, told)
            assert status == 0, (name, status, life.last)
            if life.last == "interrupted":
                assert not last
                interrupts += 1
                assert optimizer.pending == [], "what was open is abandoned and committed"
                states = [t.state for t in optimizer.trials]
                assert states.count(TrialState.ABANDONED) <= 3 * 4
                continue
            assert life.last == "done"
            assert len(optimizer.trials) == N_TRIALS
            break
    return {"interrupts": interrupts, "studies": studies}


if __name__ == "__main__":
    torch.set_num_threads(1)
    logging.getLogger("botorch_delay").setLevel(logging.ERROR)
    play = {"kill": kill, "interrupt": interrupt}[sys.argv[1]]
    print(json.dumps(play(Path(sys.argv[2]), int(sys.argv[3]), seed=int(sys.argv[4]))))
