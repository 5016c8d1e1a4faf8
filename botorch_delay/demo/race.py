"""A race of this library against others: the demo's evaluations on a simulated clock.

Four workers, where each evaluation takes its processor time.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from botorch_delay import validation
from botorch_delay.benchmarks.bench import bootstrap, markdown_table
from botorch_delay.benchmarks.methods import METHODS, Method
from botorch_delay.benchmarks.peers import OptunaSampler
from botorch_delay.benchmarks.problems import Point, Problem
from botorch_delay.benchmarks.simulator import DELAYS, Recommended
from botorch_delay.benchmarks.suites import simulate_cell
from botorch_delay.demo.digits import GUESSING, Array, Classifier
from botorch_delay.demo.tuning import demo_space
from botorch_delay.executors import spawned_pool
from botorch_delay.plotting.axes import BLUE, VERMILION, check_picture

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
