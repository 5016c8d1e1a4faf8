"""The demo: tune a classifier of images on real data with late, out-of-order results.

An evaluation cross-validates the classifier on half of scikit-learn's digits, and takes up to seven
times longer with some settings than with others. The other half is held out to judge the result.

The race against other methods runs the same evaluations on a simulated clock with four workers,
where each takes its processor time.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from botorch_delay import validation
from botorch_delay.benchmarks.bench import bootstrap, markdown_table
from botorch_delay.benchmarks.methods import METHODS, Method
from botorch_delay.benchmarks.peers import OptunaSampler
from botorch_delay.benchmarks.problems import Point, Problem
from botorch_delay.benchmarks.simulator import DELAYS, Recommended
from botorch_delay.benchmarks.suites import simulate_cell
from botorch_delay.domains.parameters import Float
from botorch_delay.domains.space import Space
from botorch_delay.exceptions import StorageError
from botorch_delay.optimizers.bpe import BPEDelayOptimizer
from botorch_delay.optimizers.random import RandomOptimizer
from botorch_delay.plotting import plot_best, plot_parallel, plot_timeline
from botorch_delay.plotting.axes import BLUE, VERMILION, check_picture
from botorch_delay.runner import RunReport, run
from botorch_delay.workers import spawned_pool

HELD_OUT = 0.5
FOLDS = 2
LANDMARKS = 200  # components of the Nystroem approximation of the RBF kernel
TOLERANCE, STEPS = 1e-6, 2000  # where the solver of the ridge regression stops
GUESSING = 0.9  # the error of predicting 0.1 for every digit; larger ones are cut to this
# An evaluation is made to last this many times its computing time, long compared with an ask.
SLOWNESS = 5.0

Array = NDArray[Any]

# By label, each method in the race, and its clock.
RACERS = {
    "this library": (METHODS["bpe-delay"], "workers-4"),
    "random search": (
        Method(partial(OptunaSampler, "RandomSampler"), "random search", package="optuna"),
        "workers-4",
    ),
    "Optuna's TPE": (METHODS["tpe"], "workers-4"),
    "BoTorch's qLogNEI, batches of four": (METHODS["botorch"], "batches-4"),
}


@dataclass(frozen=True)
class DemoResult:
    """What the demo found; its text is what the command prints."""

    best: Mapping[str, float]  # the recommended settings
    loss: float  # the error of these settings on held-out digits
    rival: float  # the same for the best of equally many random settings
    report: RunReport
    optimizer: BPEDelayOptimizer

    def __str__(self) -> str:
        trials = len(self.optimizer.trials)
        lines = [
            "",
            "recommended",
            *(f"  {name:<28}{value:.4g}" for name, value in self.best.items()),
            "squared error on held-out digits, the smaller the better",
            f"  {'recommended':<28}{self.loss:.4f}",
            f"  {f'random search ({trials} trials)':<28}{self.rival:.4f}",
        ]
        if self.loss >= self.rival:
            lines.append("The recommendation does not beat random search here.")
        stored = f"all {trials} trials were in the store already"
        lines.append(f"\n{self.report}" if self.report.evaluations else stored)
        return "\n".join(lines)


def demo_space() -> Space:
    """Five settings of the classifier."""
    return Space(
        power=Float(0.1, 4.0, log=True),
        blur=Float(0.1, 3.0, log=True, unit="pixels"),
        whitening=Float(0.0, 1.0),
        lengthscale=Float(0.01, 100.0, log=True),
        penalty=Float(1e-5, 1e3, log=True),
    )


@dataclass(frozen=True)
class Classifier:
    """Squared error of kernel ridge regression, cross-validated on half of the digits.

    Ten outputs say which digit an image is. Grey values are raised to a power, images are blurred,
    and their principal components partly whitened and scaled to a spread of 1. An RBF kernel and
    ridge regression follow; the smaller the penalty, the longer it takes. Nothing is random.
    """

    seed: int  # of the split into digits for tuning and held-out digits
    slowness: float = 1.0  # duration of a call as a multiple of its computing time, at least 1

    def __call__(self, **settings: float) -> float:
        """Mean loss over the folds, after a pause: the call takes ``slowness`` times as long."""
        begin = time.perf_counter()
        loss, seconds = self.evaluate(settings)
        time.sleep(max(self.slowness * seconds - (time.perf_counter() - begin), 0.0))
        return loss

    def evaluate(self, settings: Mapping[str, float]) -> tuple[float, float]:
        """Mean loss over the folds, and the processor time that it took, in seconds."""
        images, labels, _, _ = _digits(self.seed)
        begin = time.thread_time()
        losses = [
            _loss(settings, images[fold], labels[fold], images[rest], labels[rest])
            for fold, rest in _folds(len(images))
        ]
        return float(np.mean(losses)), time.thread_time() - begin

    def held_out(self, settings: Mapping[str, float]) -> float:
        """Mean loss on the held-out digits, over classifiers trained on one fold each."""
        images, labels, *held = _digits(self.seed)
        folds = _folds(len(images))
        return float(np.mean([_loss(settings, images[i], labels[i], *held) for i, _ in folds]))


def run_demo(
    *,
    workers: int = 2,
    trials: int = 60,
    seed: int = 0,
    store: Path | None = None,
    picture: Path | None = None,
) -> DemoResult:
    """Tune the classifier, and compare the result with random search's on held-out digits.

    ``workers`` processes evaluate ``trials`` settings, at least 2. Asks and answers are committed
    to the file ``store``, from which the run resumes; ``picture`` is a PNG file to draw to.
    """
    validation.installed("sklearn", "The demo needs scikit-learn")
    workers = validation.whole(workers, "workers", 1)
    trials = validation.whole(trials, "trials", 2)
    if picture is not None:
        check_picture(picture)
    classifier, space = Classifier(seed), demo_space()
    optimizer = BPEDelayOptimizer(space, horizon=trials, seed=seed, maximize=False)
    rival = RandomOptimizer(space, horizon=trials, seed=seed, maximize=False)
    with spawned_pool(workers) as pool:
        slow = Classifier(seed, SLOWNESS)
        try:
            report = run(optimizer, slow, pool, trials, workers, store=store)
        except StorageError as error:
            raise StorageError(
                f"{error} (In the demo horizon is --trials, and seed is --seed.)"
            ) from error
        run(rival, classifier, pool, trials, workers, progress=False)
    best = optimizer.recommend().params
    luckiest = min(rival.trials, key=lambda t: GUESSING if t.value is None else t.value).params
    losses = classifier.held_out(best), classifier.held_out(luckiest)
    result = DemoResult(best, *losses, report, optimizer)
    if picture is not None:
        _draw(result, picture)
    return result


@dataclass(frozen=True)
class RaceResult:
    """The result of the race; its text says who won."""

    # By racer, then by seed: the recommendation after each ask, with its time in seconds, and its
    # cross-validated loss as regret.
    lines: dict[str, list[list[Recommended]]]
    held_out: dict[str, Array]  # by seed, held-out loss of the last recommendation
    target: float  # the cross-validated loss to reach: the final median of random search

    def seconds(self, racer: str) -> Array:
        """Seconds until the recommendation reaches the target for good, by seed; inf if never."""
        found = []
        for line in self.lines[racer]:
            missed = [step.time for step in line if step.regret > self.target]
            after = [step.time for step in line if step.time > max(missed, default=-1.0)]
            found.append(min(after, default=np.inf))
        return np.array(found)

    def __str__(self) -> str:
        ours, *rivals = self.lines
        medians, against = [], []
        for racer, lines in self.lines.items():
            losses = self.held_out[racer], [line[-1].regret for line in lines]
            cells = [f"{np.median(found):.4f}" for found in losses]
            medians.append([racer, *cells, f"{np.median(self.seconds(racer)):.2f}"])
        for rival in rivals:
            less = np.sum(self.held_out[ours] < self.held_out[rival])
            earlier = np.sum(self.seconds(ours) < self.seconds(rival))
            ratio = bootstrap(self.held_out[ours], self.held_out[rival])
            between = (
                f" [{ratio.low:.2f}, {ratio.high:.2f}]" if len(self.held_out[ours]) > 1 else ""
            )
            against.append([rival, less, earlier, f"{ratio.mean:.2f}{between}"])
        return "\n".join(
            [
                f"Error of a classifier, four workers, {len(self.lines[ours])} seeds, medians;",
                f"seconds until what is recommended has {self.target:.4f} in cross-validation:",
                *markdown_table(["", "held out", "cross-validated", "seconds"], medians),
                f"In how many seeds {ours} has less loss on held-out digits, and in how many it",
                "reaches the target earlier; ratio of the mean held-out losses, 90 % interval:",
                *markdown_table(["against", "less", "earlier", "ratio"], against),
            ]
        )


def run_race(
    *, seeds: int = 10, trials: int = 60, workers: int = 2, picture: Path | None = None
) -> RaceResult:
    """Race this library, random search, TPE and a loop of batches, each on four simulated workers.

    Each of the ``seeds`` has its own split of the digits. ``workers`` processes do the simulations.
    """
    validation.installed("sklearn", "The demo needs scikit-learn")
    seeds = validation.whole(seeds, "seeds", 1)
    trials = validation.whole(trials, "trials", 2)
    workers = validation.whole(workers, "workers", 1)
    if picture is not None:
        check_picture(picture)
    METHODS["tpe"].check_installed()
    with spawned_pool(workers) as pool:
        running = {
            racer: [pool.submit(_raced, racer, seed, trials) for seed in range(seeds)]
            for racer in RACERS
        }
        races = {racer: [race.result() for race in found] for racer, found in running.items()}
    lines = {racer: [line for line, _ in found] for racer, found in races.items()}
    held_out = {racer: np.array([loss for _, loss in found]) for racer, found in races.items()}
    target = float(np.median([line[-1].regret for line in lines["random search"]]))
    result = RaceResult(lines, held_out, target)
    if picture is not None:
        _draw_race(result, picture)
    return result


class _Classification(Problem):
    """The loss, negated so that regret is the loss; durations are its processor times."""

    noise_std = 0.0
    highest = 0.0
    lowest = -GUESSING

    def __init__(self, seed: int) -> None:
        self.domain = demo_space().domain
        self.classifier = Classifier(seed)
        self._known: dict[tuple[float, ...], tuple[float, float]] = {}

    def evaluate_true(self, point: Point) -> float:
        return self.observe(point, 0.0, 0.0)[0]

    def observe(self, point: Point, normal: float, uniform: float) -> tuple[float, float]:
        place = tuple(point.x.tolist())
        if place not in self._known:
            loss, seconds = self.classifier.evaluate(self.domain.params(point.x))
            self._known[place] = -loss, seconds
        return self._known[place]


def _raced(racer: str, seed: int, trials: int) -> tuple[list[Recommended], float]:
    """A racer's recommendations, and the loss of the last one on held-out digits."""
    method, clock = RACERS[racer]
    line = simulate_cell(_Classification, DELAYS[clock], method, seed, trials, 1).recommendations
    problem = _Classification(seed)
    x = problem.domain.like.new_tensor(line[-1].point)
    return line, problem.classifier.held_out(problem.domain.params(x))


def _draw_race(result: RaceResult, path: Path) -> None:
    """Draw the median loss over the seeds, with quartiles, against time."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 5), layout="constrained")
    ax = figure.subplots()
    ends = {racer: [line[-1].time for line in lines] for racer, lines in result.lines.items()}
    clock = np.linspace(0.0, np.max(list(ends.values())), 400)
    colours = "black", "0.5", VERMILION, BLUE
    for (racer, lines), colour in zip(result.lines.items(), colours, strict=False):
        shown = []
        for line in lines:
            rows = np.searchsorted([step.time for step in line], clock, side="right")
            shown.append(np.array([np.nan, *(step.regret for step in line)])[rows])
        low, middle, high = np.quantile(shown, [0.25, 0.5, 0.75], axis=0)
        ax.plot(clock, middle, color=colour, linewidth=2.2, label=racer)
        ax.fill_between(clock, low, high, color=colour, alpha=0.12, linewidth=0)
        ax.axvline(np.median(ends[racer]), color=colour, linestyle=":", linewidth=1.2)
    ax.axhline(result.target, color="black", linewidth=0.8, linestyle="--")
    ax.set(
        xlabel="seconds on four workers (dotted: all trials done, median)",
        ylabel="cross-validated error of the recommended settings",
        yscale="log",
        title=f"A classifier of digits: medians and quartiles of {len(lines)} seeds",
        xlim=(0, None),
    )
    ax.legend(edgecolor="none", framealpha=0.9)
    figure.savefig(path, dpi=110)


def _draw(result: DemoResult, path: Path) -> None:
    """Draw all settings as lines, the loss over time, and each worker's timeline."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 7.5), layout="constrained")
    axes = figure.subplot_mosaic("AB;AC", width_ratios=[1.25, 1])
    plot_parallel(result.optimizer, axes["A"])
    axes["A"].set_title("Every evaluation, coloured by its error", loc="left")
    start = result.optimizer.trials[0].asked_at
    plot_best(result.optimizer, axes["B"], start=start)
    axes["B"].set(title="Error of each cross-validation", ylabel="squared error", yscale="log")
    plot_timeline(result.report, axes["C"], start=start)
    axes["C"].set_title(f"Workers, busy {result.report.utilization:.0%} of the time")
    axes["B"].sharex(axes["C"])
    figure.savefig(path, dpi=110)


def _loss(settings: Mapping[str, float], images: Array, labels: Array, *test: Array) -> float:
    """Mean squared error on test images and labels after training, at most ``GUESSING``."""
    from sklearn.kernel_approximation import Nystroem
    from sklearn.linear_model import Ridge
    from sklearn.pipeline import make_pipeline
    from threadpoolctl import threadpool_limits

    gamma = 0.5 / settings["lengthscale"] ** 2
    classifier = make_pipeline(
        Nystroem(gamma=gamma, n_components=LANDMARKS, random_state=0),
        Ridge(alpha=settings["penalty"], solver="lsqr", tol=TOLERANCE, max_iter=STEPS),
    )
    outputs = np.eye(10)
    with warnings.catch_warnings(), threadpool_limits(1):
        warnings.simplefilter("ignore")  # warnings about nearly equal landmarks
        images, shown = _components(settings, images, test[0])
        found = classifier.fit(images, outputs[labels]).predict(shown)
    return min(float(np.square(found - outputs[test[1]]).sum(axis=1).mean()), GUESSING)


def _components(settings: Mapping[str, float], *images: Array) -> list[Array]:
    """Each set in the principal components of the first, where that has total variance 1."""
    from scipy.ndimage import gaussian_filter

    blur, whitening = settings["blur"], settings["whitening"]
    seen = [
        gaussian_filter(pixels.reshape(-1, 8, 8) ** settings["power"], (0, blur, blur)).reshape(
            len(pixels), -1
        )
        for pixels in images
    ]
    mean = seen[0].mean(axis=0)
    variances, directions = np.linalg.eigh(np.cov(seen[0].T))
    variances = variances.clip(min=1e-6 * variances.max())
    scales = variances ** (-whitening / 2) / np.sqrt((variances ** (1 - whitening)).sum())
    return [(pixels - mean) @ directions * scales for pixels in seen]


def _folds(count: int) -> list[tuple[Array, Array]]:
    from sklearn.model_selection import KFold

    return list(KFold(FOLDS, shuffle=True, random_state=0).split(np.arange(count)))


@lru_cache(maxsize=2)
def _digits(seed: int) -> tuple[Array, Array, Array, Array]:
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    images, labels = load_digits(return_X_y=True)
    train, held, train_labels, held_labels = train_test_split(
        images / 16.0, labels, test_size=HELD_OUT, random_state=seed, stratify=labels
    )
    return train, train_labels, held, held_labels
