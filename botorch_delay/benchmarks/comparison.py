"""Methods side by side: paired differences and their bootstrap intervals."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from botorch_delay.benchmarks.results import Result

LEVEL = 0.90
RESAMPLES = 10_000
LEAST_DELAYS = 4  # of which something is said about growth

CUMULATIVE = "cumulative regret"
RECOMMENDED = "regret of the recommended point"
MEASURES = (CUMULATIVE, RECOMMENDED)

Place = tuple[str, str]  # problem, delay
# Final values by measure, place, method and seed.
Finals = Mapping[str, Mapping[Place, Mapping[str, Mapping[int, float]]]]


@dataclass(frozen=True)
class Difference:
    """A method less the reference on the seeds that both have played.

    Attributes:
        mean: of the differences; below 0 the method has less regret than the reference.
        low: lower end of the interval.
        high: upper end.
        seeds: how many pairs.
    """

    mean: float
    low: float
    high: float
    seeds: int

    @property
    def less(self) -> bool | None:
        """Whether the method has less regret than the reference; None if not decided."""
        return True if self.high < 0.0 else False if self.low > 0.0 else None


def bootstrap(differences: NDArray[np.float64]) -> Difference:
    """The mean of paired differences and its percentile bootstrap interval at level 90 %.

    With few pairs such an interval is too narrow; a single pair decides nothing.
    """
    mean = float(differences.mean())
    n = len(differences)
    if n < 2:
        return Difference(mean, -np.inf, np.inf, n)
    rng = np.random.default_rng(0)
    means = differences[rng.integers(n, size=(RESAMPLES, n))].mean(axis=1)
    low, high = np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Difference(mean, float(low), float(high), n)


def ratio(ours: NDArray[np.float64], theirs: NDArray[np.float64]) -> tuple[float, float, float]:
    """Ratio of means over the same seeds, with its percentile bootstrap interval at 90 %."""
    rows = np.random.default_rng(0).integers(len(ours), size=(RESAMPLES, len(ours)))
    ratios = ours[rows].mean(axis=1) / theirs[rows].mean(axis=1)
    low, high = np.quantile(ratios, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(ours.mean() / theirs.mean()), float(low), float(high)


def finals(results: Iterable[Result]) -> dict[str, dict[Place, dict[str, dict[int, float]]]]:
    """What every run came to in the end.

    Optuna's runs count once in cumulative regret, and twice where a point is recommended.
    """
    found: dict[str, dict[Place, dict[str, dict[int, float]]]] = {m: {} for m in MEASURES}
    for result in results:
        place, seed = (result.cell.problem, result.cell.delay), result.cell.seed
        here = found[CUMULATIVE].setdefault(place, {}).setdefault(result.cell.method, {})
        here[seed] = float(result.cumulative[-1])
        for name, regret in result.players.items():
            found[RECOMMENDED].setdefault(place, {}).setdefault(name, {})[seed] = float(regret[-1])
    return found


def decided(
    values: Mapping[Place, Mapping[str, Mapping[int, float]]], method: str, reference: str
) -> list[bool | None]:
    """At each place with two pairs or more, whether a method has less regret; None if open."""
    found = [compare(here, method, reference) for here in values.values()]
    return [difference.less for difference in found if difference and difference.seeds > 1]


def compare(
    values: Mapping[str, Mapping[int, float]], method: str, reference: str
) -> Difference | None:
    """A method less the reference at one place; None if they have no seed in common."""
    mine, theirs = values.get(method, {}), values.get(reference, {})
    seeds = sorted(mine.keys() & theirs.keys())
    if not seeds or method == reference:
        return None
    return bootstrap(np.array([mine[seed] - theirs[seed] for seed in seeds]))


@dataclass(frozen=True)
class Sweep:
    """Cumulative regret of one method on one problem, against the mean delay.

    Attributes:
        delays: mean delays in steps, ascending, ``k``.
        regrets: of each seed that was played at all of them, ``n x k``.
        slope: regret per step of mean delay, by least squares.
        bend: the slope over the upper half of the delays less that over the lower half; where it is
            not above 0, regret grows at most linearly.
    """

    delays: NDArray[np.float64]
    regrets: NDArray[np.float64]
    slope: Difference
    bend: Difference


def sweeps(results: Iterable[Result], means: Mapping[str, float]) -> dict[str, dict[str, Sweep]]:
    """By problem and method, where at least four mean delays were played.

    Args:
        results: of the runs.
        means: mean delays in steps, by name; other delays are left out.
    """
    found: dict[str, dict[str, dict[float, dict[int, float]]]] = {}
    for result in results:
        cell = result.cell
        if cell.delay in means:
            by_delay = found.setdefault(cell.problem, {}).setdefault(cell.method, {})
            by_delay.setdefault(means[cell.delay], {})[cell.seed] = float(result.cumulative[-1])
    swept: dict[str, dict[str, Sweep]] = {}
    for problem, methods in found.items():
        for method, by_delay in methods.items():
            seeds = sorted(set.intersection(*(set(here) for here in by_delay.values())))
            if len(by_delay) < LEAST_DELAYS or not seeds:
                continue
            delays = np.array(sorted(by_delay))
            regrets = np.array([[by_delay[delay][seed] for delay in delays] for seed in seeds])
            half = (len(delays) + 1) // 2
            upper = _slopes(delays[half - 1 :], regrets[:, half - 1 :])
            lower = _slopes(delays[:half], regrets[:, :half])
            swept.setdefault(problem, {})[method] = Sweep(
                delays, regrets, bootstrap(_slopes(delays, regrets)), bootstrap(upper - lower)
            )
    return swept


def _slopes(delays: NDArray[np.float64], regrets: NDArray[np.float64]) -> NDArray[np.float64]:
    """By least squares, one for each row."""
    away = delays - delays.mean()
    slopes: NDArray[np.float64] = regrets @ away / (away @ away)
    return slopes
