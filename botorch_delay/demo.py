"""The main job on real data: tune a support vector machine with late, out-of-order results.

Every evaluation is a cross-validation on a random subset of scikit-learn's digits, drawn
afresh: it is noisy, takes as long as it takes, and comes back out of order.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from botorch_delay import validation
from botorch_delay.domains.finite import FiniteDomain
from botorch_delay.exceptions import InputError, MissingExtraError, StorageError
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


@dataclass(frozen=True)
class DemoResult:
    """What the demo found.

    Attributes:
        C: recommended penalty.
        gamma: recommended kernel width.
        accuracy: on held-out digits, trained on all others.
        default_accuracy: the same with the default parameters of scikit-learn.
        random_accuracy: the same with the best of a random search with as many evaluations.
        report: when and where the evaluations ran.
        optimizer: with every trial.
    """

    C: float
    gamma: float
    accuracy: float
    default_accuracy: float
    random_accuracy: float
    report: RunReport
    optimizer: BPEDelayOptimizer


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
    store: str | os.PathLike[str] | None = None,
) -> DemoResult:
    """Tune with ``workers`` processes and compare on held-out digits.

    Args:
        workers: processes, at least 1.
        trials: evaluations, at least 2.
        seed: of the split, the optimizer and the random search.
        store: a file that every ask and answer is committed to; an existing one is resumed.

    Raises:
        MissingExtraError: if scikit-learn is not installed.
        InputError: if an argument is out of its range.
        StorageError: if the store cannot be used.
    """
    _require("sklearn", "The demo needs scikit-learn")
    workers = validation.whole(workers, "workers", 1)
    trials = validation.whole(trials, "trials", 2)
    seed = validation.whole(seed, "seed", 0)
    if trials > SIDE**2:
        raise InputError(f"trials must be at most the {SIDE**2} points of the grid, got {trials}.")
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
    return DemoResult(
        C=10.0 ** best[0].item(),
        gamma=10.0 ** best[1].item(),
        accuracy=held_out_accuracy(best, seed),
        default_accuracy=held_out_accuracy(None, seed),
        random_accuracy=held_out_accuracy(luckiest.x, seed),
        report=report,
        optimizer=optimizer,
    )


def held_out_accuracy(x: Tensor | None, seed: int) -> float:
    """Accuracy on the held-out digits after training on all others; None: the defaults."""
    images, labels, held_images, held_labels = _digits(seed)
    return float(_machine(x).fit(images, labels).score(held_images, held_labels))


def check_picture(path: Path) -> None:
    """Find out before the work starts whether a picture can be drawn to ``path``.

    Raises:
        MissingExtraError: without Matplotlib.
        InputError: if the folder does not exist, or the name does not end in .png.
    """
    _require("matplotlib", "A picture needs Matplotlib")
    if path.suffix != ".png":
        raise InputError(f"The picture must be a .png file, got {path}.")
    if not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        raise InputError(f"Cannot write {path}: {path.parent} is no folder that can be written.")


def draw(result: DemoResult, path: Path) -> None:
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


def describe(result: DemoResult, picture: Path | None = None) -> str:
    """The result in words, as the command line prints it."""
    report, rounds = result.report, result.optimizer.rounds
    rivals = {
        "the default": result.default_accuracy,
        f"random search ({len(result.optimizer.trials)} trials)": result.random_accuracy,
    }
    lines = [
        "",
        f"recommended   C = {result.C:.4g}, gamma = {result.gamma:.4g}",
        "accuracy on held-out digits",
        f"  {'recommended':<28}{result.accuracy:.4f}",
        *(f"  {name:<28}{accuracy:.4f}" for name, accuracy in rivals.items()),
    ]
    for name, accuracy in rivals.items():
        if result.accuracy <= accuracy:
            relation = "equals" if result.accuracy == accuracy else "does not beat"
            lines.append(f"The recommendation {relation} {name} here.")
    if report.resumed:
        lines.append(f"resumed       {report.resumed} trials were in the store already")
    if report.evaluations:
        lines += [
            f"answers       {len(report.evaluations)}, of which {report.out_of_order} came out of "
            "order",
            f"workers       busy {report.utilization:.0%} of the time",
        ]
    closed = ", ".join(f"{r.active_before} -> {r.active_after}" for r in rounds)
    lines.append(f"active points {closed or 'no round closed'}")
    if picture is not None:
        lines.append(f"picture       {picture}")
    return "\n".join(lines)


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


def _require(package: str, need: str) -> None:
    if find_spec(package) is None:
        raise MissingExtraError(f"{need}: pip install 'botorch-delay[demo]'.")
