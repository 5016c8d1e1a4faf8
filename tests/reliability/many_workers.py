"""Engines with many workers, some of which are killed: what is lost, asked twice, and waited for.

    PYTHONPATH=tests:tests/reliability python -m many_workers optuna --workers 32 --killed 10
    PYTHONPATH=tests:tests/reliability python -m many_workers ray --workers 64
    PYTHONPATH=tests:tests/reliability python -m many_workers dask --workers 64

``optuna`` takes ``--storage``, a URL of a database or the path of a journal file. Evaluations only
sleep, so that many of them fit on a laptop.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

COLUMNS = ("x", "y", "z")


def duration(seconds: float, point: dict[str, float]) -> float:
    """A log-normal time with mean ``seconds``, always the same for a point."""
    normal = random.Random(repr(sorted(point.items()))).gauss(0.0, 0.5)
    return seconds * math.exp(normal - 0.125)


def evaluate(
    point: dict[str, float], seconds: float, folder: str, trial: str | None = None
) -> float:
    """Sleep, and write a line when it begins and one when it ends.

    ``trial`` is the trial's name, for an engine that restarts trials whose worker was killed.
    """
    value = sum((place - 0.3) ** 2 for place in point.values())
    name = f"{os.getpid()}-{threading.get_ident()}"
    _note(folder, name, {"point": sorted(point.items()), "trial": trial, "began": time.time()})
    time.sleep(duration(seconds, point))
    _note(folder, name, {"ended": time.time(), "value": value})
    return value


def _note(folder: str, name: str, what: dict[str, Any]) -> None:
    with Path(folder, f"notes-{name}").open("a") as file:
        file.write(json.dumps(what) + "\n")


def evaluations(folder: str) -> list[dict[str, Any]]:
    """What was noted, one entry per evaluation; one that was killed has no end.

    Of a trial that was restarted, the last evaluation counts: an earlier one may have ended
    before its result was fetched, and a process may outlive its node for some seconds.
    """
    found = []
    for path in Path(folder).glob("notes-*"):
        for line in path.read_text().splitlines():
            said = json.loads(line)
            if "began" in said:
                found.append(said)
            else:
                found[-1] |= said
    found.sort(key=lambda evaluation: evaluation["began"])
    last = {evaluation["trial"] or number: evaluation for number, evaluation in enumerate(found)}
    return sorted(last.values(), key=lambda evaluation: evaluation["began"])


def figures(
    folder: str, workers: int, values: Iterable[float], *, told: str = "ended"
) -> dict[str, Any]:
    """Results lost, points in two places at once, and how busy the workers were.

    Args:
        folder: where the evaluations' notes are.
        workers: how many there were.
        values: what the engine has kept.
        told: the note after which the engine must have a result.
    """
    noted = evaluations(folder)
    ended = [e for e in noted if "ended" in e]
    begin, last = noted[0]["began"], max(e["began"] for e in noted)
    busy = sum(min(e["ended"], last) - min(e["began"], last) for e in ended)
    lost = Counter(e["value"] for e in noted if told in e) - Counter(values)
    twins = sum(
        a["point"] == b["point"]
        for number, a in enumerate(ended)
        for b in noted[number + 1 :]
        if a["began"] <= b["began"] < a["ended"] and a is not b
    )
    return {
        "evaluated": len(ended),
        "cut off": len(noted) - len(ended),
        "lost": lost.total(),
        "twice at once": twins,
        "evaluating": round(busy / (workers * (last - begin)), 3),
        "seconds": round(last - begin, 1),
    }


# ------------------------------------------------------------------------------ Optuna


def optuna_storage(url: str) -> Any:
    """A journal file, unless ``url`` is a URL."""
    import optuna

    if "://" in url:
        return optuna.storages.RDBStorage(url, engine_kwargs={"pool_pre_ping": True})
    backend = optuna.storages.journal.JournalFileBackend(url)
    return optuna.storages.JournalStorage(backend)


def optuna_worker(url: str, trials: int, seconds: float, folder: str) -> None:
    """One process of a study, until ``trials`` have ended; notes what its asks cost."""
    import optuna
    import torch

    from botorch_delay.integrations.optuna import DelaySampler
    from botorch_delay.optimizers.run import Fitting

    torch.set_num_threads(1)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    fits = [0]
    fit = Fitting._fit

    def counted(self: Fitting, previous: Any) -> Any:
        fits[0] += previous is not None
        return fit(self, previous)

    Fitting._fit = counted
    # Given, so that processes that begin at the same moment know it as well as later ones.
    space = {name: optuna.distributions.FloatDistribution(0.0, 1.0) for name in COLUMNS}
    options = {"seed": 1, "search_space": space, "stale_after": 3600.0}
    sampler = DelaySampler(horizon=100 * trials, **options)
    study = optuna.load_study(study_name="many", storage=optuna_storage(url), sampler=sampler)
    costs = Path(folder, f"costs-{os.getpid()}")
    while sum(t.state.is_finished() for t in study.get_trials(deepcopy=False)) < trials:
        wall, cpu, before = time.perf_counter(), time.process_time(), fits[0]
        trial = study.ask(space)
        point = dict(trial.params)
        spent = [time.perf_counter() - wall, time.process_time() - cpu, fits[0] - before]
        with costs.open("a") as file:
            file.write(json.dumps(spent) + "\n")
        study.tell(trial, evaluate(point, seconds, folder))
        _note(folder, f"{os.getpid()}-{threading.get_ident()}", {"told": True})


def optuna_study(url: str, workers: int, killed: int, trials: int, seconds: float) -> dict:
    """Many processes on one storage; some are killed at random moments and not replaced."""
    import optuna

    import botorch_delay.integrations.optuna  # imported once, before the fork

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with tempfile.TemporaryDirectory() as folder:
        place = url or str(Path(folder, "study.log"))
        sampler = botorch_delay.integrations.optuna.DelaySampler(seed=1)
        study = optuna.create_study(
            study_name="many", storage=optuna_storage(place), sampler=sampler
        )
        context = multiprocessing.get_context("fork")
        if "://" in place:
            study._storage._backend.engine.dispose()  # a fork must not share connections
        arguments = place, trials, seconds, folder
        processes = [context.Process(target=optuna_worker, args=arguments) for _ in range(workers)]
        for process in processes:
            process.start()
        draw = random.Random(0)
        half = seconds * trials / (2.0 * workers)
        for victim in draw.sample(processes, killed):
            time.sleep(draw.uniform(0.0, 2.0 * half / killed))
            os.kill(victim.pid, signal.SIGKILL)
        for process in processes:
            process.join()
        told = [t for t in study.get_trials() if t.value is not None]
        lines = [line for p in Path(folder).glob("costs-*") for line in p.read_text().splitlines()]
        costs = [json.loads(line) for line in lines]
        wall, cpu, fits = zip(*costs, strict=True)
        found = figures(folder, workers, [trial.value for trial in told], told="told")
        codes = [process.exitcode for process in processes]
        return found | {
            "killed": codes.count(-signal.SIGKILL),
            "failed workers": sum(code not in (0, -signal.SIGKILL) for code in codes),
            "ask, seconds": round(sum(wall) / len(wall), 3),
            "ask, processor seconds": round(sum(cpu) / len(cpu), 3),
            "worst, processor seconds": round(max(cpu), 2),
            "fits": sum(fits),
        }


# ------------------------------------------------------------------------------ Ray


def ray_cluster(workers: int, trials: int, seconds: float, nodes: int = 4) -> dict[str, Any]:
    """Ray Tune on a cluster of several nodes, one of which is killed in the middle."""
    import ray
    from ray import tune
    from ray.cluster_utils import Cluster

    from botorch_delay.integrations.ray import DelaySearch

    # No more than are at once, so that every node has work, also the doomed one.
    share = {"num_cpus": math.ceil(workers / (nodes + 1))}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    doomed = [cluster.add_node(**share) for _ in range(nodes + 1)][-1]
    here = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}  # workers import this module
    ray.init(address=cluster.address, log_to_driver=False, runtime_env={"env_vars": here})
    with tempfile.TemporaryDirectory() as folder:

        def train(config: dict[str, float]) -> None:
            from ray import tune

            trial = tune.get_context().get_trial_id()
            tune.report({"loss": evaluate(config, seconds, folder, trial)})

        def kill() -> None:
            while len(evaluations(folder)) < trials // 2:
                time.sleep(0.5)
            cluster.remove_node(doomed, allow_graceful=False)

        search = DelaySearch(metric="loss", mode="min", seed=1)
        plan = {"num_samples": trials, "max_concurrent_trials": workers}
        tuner = tune.Tuner(
            train,
            param_space={name: tune.uniform(0.0, 1.0) for name in COLUMNS},
            tune_config=tune.TuneConfig(search_alg=search, **plan),
            run_config=tune.RunConfig(
                storage_path=folder,
                verbose=0,
                failure_config=tune.FailureConfig(max_failures=3),
            ),
        )
        killer = threading.Thread(target=kill, daemon=True)
        killer.start()
        begin = time.perf_counter()
        results = tuner.fit()
        wall = time.perf_counter() - begin
        told = [r.metrics["loss"] for r in results if r.metrics and "loss" in r.metrics]
        found = figures(folder, workers, told)
        known = sum(t.value is not None for t in search.optimizer.trials)
        found |= {"known to the searcher": known, "errors": len(results.errors)}
        found |= {"seconds": round(wall, 1)}
    ray.shutdown()
    cluster.shutdown()
    return found


# ------------------------------------------------------------------------------ Dask


class Sleeper:
    """An objective that can be pickled: sleeps and notes."""

    def __init__(self, seconds: float, folder: str) -> None:
        self.seconds, self.folder = seconds, folder

    def __call__(self, x: float, y: float, z: float) -> float:
        return evaluate({"x": x, "y": y, "z": z}, self.seconds, self.folder)


def dask_workers(workers: int, trials: int, seconds: float, processes: int = 8) -> dict[str, Any]:
    """The library's runner on Dask; one of the processes that hold the workers is killed."""
    import dask
    from distributed import Client, LocalCluster

    import botorch_delay as bd
    from botorch_delay.runner import run

    dask.config.set({"distributed.worker.daemon": False})
    space = bd.Space({name: bd.Float(0.0, 1.0) for name in COLUMNS})
    # Exact, so that no point is asked again and a point in flight twice is a fault. With repeats,
    # Dask might evaluate an answered point anew while a repeat of it runs.
    opt = bd.BPEDelayOptimizer(space, trials, exact=True, seed=1, maximize=False)
    with (
        tempfile.TemporaryDirectory() as folder,
        LocalCluster(
            n_workers=processes,
            threads_per_worker=workers // processes,
            dashboard_address=None,
        ) as cluster,
        Client(cluster) as client,
    ):
        doomed = next(iter(client.run(os.getpid).values()))

        def kill() -> None:
            while len(evaluations(folder)) < trials // 2:
                time.sleep(0.2)
            os.kill(doomed, signal.SIGKILL)

        killer = threading.Thread(target=kill, daemon=True)
        killer.start()
        begin, cpu = time.perf_counter(), time.thread_time()
        report = run(
            opt,
            Sleeper(seconds, folder),
            client.get_executor(),
            trials,
            workers,
            progress=False,
        )
        wall, cpu = time.perf_counter() - begin, time.thread_time() - cpu
        found = figures(folder, workers, [t.value for t in opt.trials if t.value is not None])
        # An evaluation whose worker is killed after it ended and before Dask fetched its result is
        # made again: more may have been evaluated than trials.
        found["lost"] = trials - sum(t.value is not None for t in opt.trials)
        reported = len(report.evaluations)
        return found | {"reported": reported, "seconds": round(wall, 1), "runner": round(cpu, 1)}


def main() -> None:
    """Play one engine and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("engine", choices=("optuna", "ray", "dask"))
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--killed", type=int, default=2)
    parser.add_argument("--trials", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=1.0, help="mean of an evaluation")
    parser.add_argument("--storage", default="")
    chosen = parser.parse_args()
    sizes = chosen.workers, chosen.trials, chosen.seconds
    if chosen.engine == "optuna":
        found = optuna_study(
            chosen.storage, chosen.workers, chosen.killed, chosen.trials, chosen.seconds
        )
    else:
        found = (ray_cluster if chosen.engine == "ray" else dask_workers)(*sizes)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
