"""What a trial costs in Optuna, above what its random sampler takes."""

from __future__ import annotations

import importlib.util
import statistics
import tempfile
from collections import deque
from pathlib import Path
from typing import Any

from speed.clocks import Timed, timed
from speed.isolation import isolated
from speed.rows import Check, Reach, Row

MOST = 20e-3
COLUMNS = 3


def optuna_trials(*, finished: int, steps: int, running: int) -> list[Row]:
    """A trial of three floats in a journal file: ask, suggest and tell.

    Args:
        finished: trials that are in the file beforehand.
        steps: trials that are timed, with each of the two samplers in turns.
        running: trials in flight meanwhile in the second of two measurements; none in the first.
    """
    if importlib.util.find_spec("optuna") is None:
        return [Row("skipped: Optuna is not installed", None)]
    rows = []
    for beside in dict.fromkeys((0, running)):
        what = f"a trial, {finished} finished, {beside} running beside: above random"
        found = isolated(play_alone, finished=finished, steps=steps, running=beside)
        ours, random = Timed(**found["ours"]), Timed(**found["random"])
        rows.append(
            Row(
                what,
                ours.median - random.median,
                cpu=ours.median_cpu - random.median_cpu,
                reach=Reach(most=MOST),
                checks=(Check("trials without a result", found["lost"]),),
                note=f"medians of {steps}: {1e3 * ours.median_cpu:.1f} ms against "
                f"{1e3 * random.median_cpu:.1f} ms of processor time; longest "
                f"{1e3 * max(ours.cpu):.0f} ms",
            )
        )
    return rows


def play_alone(*, finished: int, steps: int, running: int) -> dict[str, Any]:
    """Times of trials with both samplers, in turns."""
    sampler = importlib.import_module("botorch_delay.integrations.optuna").DelaySampler(seed=1)
    optuna = importlib.import_module("optuna")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    random = optuna.samplers.RandomSampler(seed=1)
    with tempfile.TemporaryDirectory() as folder:
        studies = [
            _Study(optuna, Path(folder, name), chosen, finished, running)
            for name, chosen in (("ours", sampler), ("random", random))
        ]
        parts: tuple[list[Timed], list[Timed]] = ([], [])
        for study in studies * 3:
            study.step()  # the first ones open the round and fit
        for _ in range(steps):
            for study, times in zip(studies, parts, strict=True):
                times.append(timed(study.step))
        lost = sum(study.lost() for study in studies)
    ours, theirs = (Timed.joined(times) for times in parts)
    return {
        "ours": {"seconds": ours.seconds, "cpu": ours.cpu},
        "random": {"seconds": theirs.seconds, "cpu": theirs.cpu},
        "lost": lost,
    }


class _Study:
    """A study in a journal file, with trials finished and running."""

    def __init__(self, optuna: Any, path: Path, sampler: Any, finished: int, running: int) -> None:
        backend = optuna.storages.journal.JournalFileBackend(str(path))
        storage = optuna.storages.JournalStorage(backend)
        before = optuna.create_study(storage=storage, sampler=optuna.samplers.RandomSampler(seed=0))
        before.optimize(_objective, n_trials=finished)
        name = before.study_name
        self._study = optuna.load_study(study_name=name, storage=storage, sampler=sampler)
        self._expected = finished
        self._waiting: deque[tuple[Any, float]] = deque()
        for _ in range(running):
            self._begin()

    def step(self) -> None:
        """Begin one more trial, and tell the result of the one that has run longest."""
        self._begin()
        self._study.tell(*self._waiting.popleft())
        self._expected += 1

    def lost(self) -> int:
        """How many told trials have no result in the study."""
        return self._expected - sum(t.value is not None for t in self._study.get_trials())

    def _begin(self) -> None:
        trial = self._study.ask()
        self._waiting.append((trial, _objective(trial)))


def _objective(trial: Any) -> float:
    x = [trial.suggest_float(f"x{number}", 0.0, 1.0) for number in range(COLUMNS)]
    return statistics.fmean((value - 0.3) ** 2 for value in x)
