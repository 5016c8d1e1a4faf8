"""What the data say about each sentence of the paper's section 6."""

from __future__ import annotations

import csv
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from botorch_delay.exceptions import InputError
from botorch_delay.reproduction.cells import (
    BPE,
    BPE_DELAY,
    BPE_DELAY_PRINTED,
    BUCB,
    FUNCTIONS,
    SDF,
    SDF_SHIFTED,
    UCB_ARRIVED,
)

COLUMNS = (
    "function",
    "lengthscale",
    "points",
    "noise_std",
    "xi",
    "b",
    "method",
    "delay",
    "repeat",
    "step",
    "regret",
)
LEVEL = 0.90
MARGIN = 0.25

Curves = dict[tuple[str, str, int], NDArray[np.float64]]


@dataclass(frozen=True)
class Verdict:
    """A sentence, how it is judged, what was measured.

    Attributes:
        sentence: what is said.
        criterion: when it holds.
        measured: the figures.
        holds: whether it does; None where the interval does not decide.
    """

    sentence: str
    criterion: str
    measured: str
    holds: bool | None

    @property
    def word(self) -> str:
        """The verdict in words."""
        return {True: "holds", False: "does not hold", None: "not decided"}[self.holds]


def read_curves(path: Path) -> tuple[list[int], Curves]:
    """Steps, and cumulative regret (``repeats x steps``) by function, method and delay.

    Raises:
        InputError: if the file is not such a table.
    """
    found: dict[tuple[str, str, int], dict[tuple[int, int], float]] = defaultdict(dict)
    try:
        with path.open(newline="") as stream:
            for row in csv.DictReader(stream):
                key = (row["function"], row["method"], int(row["delay"]))
                found[key][int(row["repeat"]), int(row["step"])] = float(row["regret"])
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path} is no table of regrets: {error!r}.") from error
    repeats = sorted({repeat for entries in found.values() for repeat, _ in entries})
    steps = sorted({step for entries in found.values() for _, step in entries})
    if any(len(entries) != len(repeats) * len(steps) for entries in found.values()) or not found:
        raise InputError(f"{path} is not complete: some run lacks a step.")
    return steps, {
        key: np.array([[entries[repeat, step] for step in steps] for repeat in repeats])
        for key, entries in found.items()
    }


# What section 6 says of its experiments, and the values of a column that make it so.
_SETUP = (
    ("The objective functions have lengthscales 0.8 and 1.0.", "lengthscale", {0.8, 1.0}),
    ("The learner can choose from 2500 points.", "points", {2500.0}),
    ("The noise has standard deviation 0.02.", "noise_std", {0.02}),
    ("The delays are Poisson with means 0, 25 and 50.", "delay", {0.0, 25.0, 50.0}),
    ("psi uses xi = 9.", "xi", {9.0}),
    ("psi uses b = 1.", "b", {1.0}),
    ("The curves are the average of 10 independent experiments.", "repeat", set(range(10))),
)


def judge_setup(path: Path) -> list[Verdict]:
    """Whether the experiment was set up as the paper says, from the table alone.

    Raises:
        InputError: if the file is not such a table.
    """
    found: dict[str, set[float]] = {column: set() for _, column, _ in _SETUP}
    try:
        with path.open(newline="") as stream:
            for row in csv.DictReader(stream):
                for column, values in found.items():
                    values.add(float(row[column]))
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path} is no table of regrets: {error!r}.") from error
    return [
        Verdict(
            sentence,
            f"{column} takes these values",
            ", ".join(f"{value:g}" for value in sorted(found[column])),
            found[column] == expected,
        )
        for sentence, column, expected in _SETUP
    ]


def judge(path: Path) -> list[Verdict]:
    """A verdict on each sentence that can fail, from the table alone."""
    _, curves = read_curves(path)
    final = {key: runs[:, -1] for key, runs in curves.items()}
    delays = sorted({delay for _, _, delay in final})
    middle, longest = delays[1], delays[-1]
    verdicts = []
    for method in (BPE_DELAY, BPE_DELAY_PRINTED):
        for rival in (SDF, SDF_SHIFTED):
            verdicts.append(
                _less(
                    final,
                    method,
                    rival,
                    longest,
                    f"Figure 2: a significant improvement of {method} over {rival} on both "
                    "functions",
                )
            )
    for method in (BPE_DELAY, BPE_DELAY_PRINTED):
        verdicts.append(_linear(final, method, delays))
    for method in (SDF, SDF_SHIFTED):
        verdicts.append(_jumps(final, method, middle))
    for method in (BPE_DELAY, BPE_DELAY_PRINTED):
        verdicts.append(
            _less(
                final,
                method,
                BPE,
                longest,
                f"Figure 5: {method} performs better than BPE in a delayed setting",
            )
        )
    for rival in (BUCB, UCB_ARRIVED):
        verdicts.append(
            _less(
                final,
                BPE_DELAY,
                rival,
                longest,
                f"Not in the paper: {BPE_DELAY} has less regret than {rival}",
            )
        )
    return verdicts


def interval(differences: NDArray[np.float64]) -> tuple[float, float, float]:
    """Mean of paired differences and its t interval; one alone decides nothing."""
    mean = float(differences.mean())
    if len(differences) < 2:
        return mean, -np.inf, np.inf
    error = float(differences.std(ddof=1)) / len(differences) ** 0.5
    if not error:
        return mean, mean, mean
    low, high = stats.t.interval(LEVEL, len(differences) - 1, loc=mean, scale=error)
    return mean, float(low), float(high)


def _less(final: Curves, method: str, rival: str, delay: int, sentence: str) -> Verdict:
    """That a method has less final regret than a rival, on every function."""
    parts: list[str] = []
    outcomes: list[bool | None] = []
    for function in FUNCTIONS:
        ours, theirs = final[function, method, delay], final[function, rival, delay]
        mean, low, high = interval(theirs - ours)
        parts.append(
            f"{function}: {ours.mean():.0f} against {theirs.mean():.0f}, difference "
            f"{mean:+.0f} [{low:+.0f}, {high:+.0f}]"
        )
        outcomes.append(True if low > 0 else False if high < 0 else None)
    criterion = (
        f"at mean delay {delay} the {LEVEL:.0%} interval of the paired difference is above 0"
    )
    return Verdict(f"{sentence} (mean delay {delay}).", criterion, "; ".join(parts), _all(outcomes))


def _all(outcomes: list[bool | None]) -> bool | None:
    return False if False in outcomes else None if None in outcomes else True


def _linear(final: Curves, method: str, delays: list[int]) -> Verdict:
    """That the excess over no delay grows about in proportion to the delay, or less."""
    zero, middle, longest = delays[0], delays[1], delays[-1]
    parts: list[str] = []
    outcomes: list[bool | None] = []
    for function in FUNCTIONS:
        base = final[function, method, zero]
        first = final[function, method, middle] - base
        last = final[function, method, longest] - base
        mean, low, high = interval(last - first * longest / middle)
        parts.append(
            f"{function}: excess {first.mean():.0f} at {middle}, {last.mean():.0f} at {longest}; "
            f"above proportion by {mean:+.0f} [{low:+.0f}, {high:+.0f}]"
        )
        margin = MARGIN * max(float(last.mean()), 0.0)
        outcomes.append(True if high <= margin else False if low > margin else None)
    return Verdict(
        f"Figure 3: {method} shows an excess in regret linear in the expected delay.",
        f"excess({longest}) is more than {longest / middle:g} excess({middle}) by at most "
        f"{MARGIN:.0%} of itself: the {LEVEL:.0%} interval lies below that, or above",
        "; ".join(parts),
        _all(outcomes),
    )


def _jumps(final: Curves, method: str, delay: int) -> Verdict:
    """That a method's regret jumps at a moderate delay."""
    parts: list[str] = []
    outcomes: list[bool | None] = []
    for function in FUNCTIONS:
        before, after = final[function, method, 0].mean(), final[function, method, delay].mean()
        ours = final[function, BPE_DELAY, delay].mean() / final[function, BPE_DELAY, 0].mean()
        parts.append(
            f"{function}: {before:.0f} to {after:.0f}, a factor of {after / before:.1f} "
            f"({BPE_DELAY}: {ours:.1f})"
        )
        outcomes.append(bool(after >= 2 * before and after / before > ours))
    return Verdict(
        f"Figure 4: {method} shows a dramatic jump in regret even with a moderate delay.",
        f"from no delay to mean delay {delay} regret at least doubles, and grows by a larger "
        f"factor than {BPE_DELAY}'s",
        "; ".join(parts),
        all(outcomes),
    )
