"""The demo itself: tune the classifier with worker processes, and compare with random search."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from botorch_delay import validation
from botorch_delay.demo.digits import GUESSING, Classifier
from botorch_delay.domains.parameters import Float
from botorch_delay.domains.space import Space
from botorch_delay.exceptions import StorageError
from botorch_delay.executors import spawned_pool
from botorch_delay.optimizers.bpe import BPEDelayOptimizer
from botorch_delay.optimizers.random import RandomOptimizer
from botorch_delay.plotting import plot_best, plot_parallel, plot_timeline
from botorch_delay.plotting.axes import check_picture
from botorch_delay.runner import RunReport, run

# An evaluation is made to last this many times its computing time, long compared with an ask.
SLOWNESS = 5.0


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


def _draw(result: DemoResult, path: Path) -> None:
    """Draw all settings as lines, the loss over time, and each worker's timeline."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 7.5), layout="constrained")
    axes = figure.subplot_mosaic("AB;AC", width_ratios=[1.25, 1])
    plot_parallel(result.optimizer, axes["A"])
    axes["A"].set_title("Every evaluation, coloured by its error", loc="left")
    bar = axes["A"].collections[0].colorbar
    assert bar is not None
    bar.set_label("squared error")
    start = result.optimizer.trials[0].asked_at
    plot_best(result.optimizer, axes["B"], start=start)
    axes["B"].set(title="Error of each cross-validation", ylabel="squared error", yscale="log")
    axes["B"].yaxis.set_major_formatter("{x:g}")
    axes["B"].yaxis.set_minor_formatter("{x:g}")
    plot_timeline(result.report, axes["C"], start=start)
    axes["C"].set_title(f"Workers, busy {result.report.utilization:.0%} of the time")
    axes["B"].sharex(axes["C"])
    figure.savefig(path, dpi=110)
