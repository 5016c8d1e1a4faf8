"""One of many worker processes; see test_optuna_processes."""

import os
import signal
import time
from pathlib import Path

import optuna
import torch
from cases import se
from optuna.distributions import FloatDistribution, IntDistribution
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

import botorch_delay as bd
from botorch_delay.integrations.optuna import ATTRIBUTE, DelaySampler

SPACE = {"n": IntDistribution(0, 9), "x": FloatDistribution(0.0, 1.0, step=0.125)}
# Small rounds, so that a dead worker holds them up; a space in which points can coincide, and no
# point asked again while it runs; an hour until a trial is stale, longer than any live one; a fixed
# kernel, as fits would cost most.
ARGUMENTS = {
    "covar_module": se(),
    "noise_var": 1e-2,
    "rounds": bd.GeometricRounds(3, 1.5),
    "explore_fraction": 0.5,
    "exploit": bd.Exploit(repeat_pending=False),
    "search_space": SPACE,
    "stale_after": 3600.0,
}


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def main(url, number, trials, dies_at):
    """One worker; it is named by its number."""
    torch.set_num_threads(1)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    if url.startswith("journal:"):
        path = Path(url.removeprefix("journal:"))
        storage = JournalStorage(JournalFileBackend(str(path)))
    else:
        path = Path(url.removeprefix("sqlite:///"))
        storage = optuna.storages.RDBStorage(url, engine_kwargs={"connect_args": {"timeout": 60}})
    told = path.with_name(f"told-{number}")
    sampler = DelaySampler(**ARGUMENTS)
    study = optuna.load_study(study_name="shared", storage=storage, sampler=sampler)
    asked, running = 0, []

    if dies_at.startswith("ask"):
        write = storage.set_trial_system_attr

        def write_or_die(trial_id, key, value):
            if key == ATTRIBUTE and asked == int(dies_at.split()[1]):
                die()  # the trial exists, and has no point
            write(trial_id, key, value)

        storage.set_trial_system_attr = write_or_die

    def finish(trial):
        n, x = trial.params["n"], trial.params["x"]
        value = (n - 3) ** 2 / 10 + (x - 0.5) ** 2 + trial.number * 1e-6
        trial.set_user_attr("ended", time.monotonic())
        study.tell(trial, value)
        with told.open("a") as file:
            file.write(f"{value!r}\n")

    for _ in range(trials):
        trial = study.ask(SPACE)
        trial.set_user_attr("began", time.monotonic())  # monotonic: one clock for all processes
        asked += 1
        running.append(trial)
        if dies_at == f"trial {asked}":
            die()
        if len(running) > 2:
            finish(running.pop(0))
    for trial in running:
        finish(trial)
