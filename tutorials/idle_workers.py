"""Draw tutorials/idle_workers.png: the same trials in batches, and asked as workers come free.

Usage, from the root of a clone: python tutorials/idle_workers.py [FILE]

The clock is simulated. 24 trials take log-normal times with a median of an hour and a standard
deviation of the logarithm of 0.7; the i-th trial takes as long in either panel.
"""

import heapq
import sys
from pathlib import Path

import matplotlib
import torch

matplotlib.use("Agg")
import matplotlib.pyplot as plt

WORKERS, TRIALS, SPREAD, SEED = 4, 24, 0.7, 0

Bar = tuple[int, float, float]  # worker, start, hours


def in_batches(hours: list[float]) -> list[Bar]:
    """As many trials as there are workers begin together, once all of the last batch are done."""
    bars, clock = [], 0.0
    for first in range(0, TRIALS, WORKERS):
        batch = hours[first : first + WORKERS]
        bars += [(worker, clock, taken) for worker, taken in enumerate(batch)]
        clock += max(batch)
    return bars


def one_by_one(hours: list[float]) -> list[Bar]:
    """Each trial begins as soon as a worker is free."""
    free = [(0.0, worker) for worker in range(WORKERS)]
    bars = []
    for taken in hours:
        clock, worker = heapq.heappop(free)
        bars.append((worker, clock, taken))
        heapq.heappush(free, (clock + taken, worker))
    return bars


def durations() -> list[float]:
    """How many hours each trial takes."""
    generator = torch.Generator().manual_seed(SEED)
    return (SPREAD * torch.randn(TRIALS, dtype=torch.double, generator=generator)).exp().tolist()


def end_of(bars: list[Bar]) -> float:
    """When the last trial is done."""
    return max(start + length for _, start, length in bars)


def busy_share(bars: list[Bar]) -> float:
    """The share of the time until then that workers are busy."""
    return sum(length for *_, length in bars) / (WORKERS * end_of(bars))


def main(path: Path) -> None:
    """Draw both panels on one time axis."""
    hours = durations()
    panels = {
        "Before: wait for the whole batch, then ask for four": (in_batches(hours), "#D55E00"),
        "After: tell each result, ask for the next point": (one_by_one(hours), "#0072B2"),
    }
    figure, axes = plt.subplots(2, sharex=True, figsize=(9, 3.8), layout="constrained")
    for ax, (title, (bars, colour)) in zip(axes, panels.items(), strict=True):
        workers, starts, lengths = zip(*bars, strict=True)
        end, busy = end_of(bars), busy_share(bars)
        ax.barh(range(WORKERS), end, height=0.75, color="0.9", label="idle")
        drawn = {"height": 0.75, "edgecolor": "white", "linewidth": 1.0}
        ax.barh(workers, lengths, left=starts, color=colour, **drawn)
        ax.set_title(f"{title}: {end:.1f} hours, workers busy {busy:.0%} of the time", loc="left")
        ax.set_yticks(range(WORKERS), [f"worker {1 + worker}" for worker in range(WORKERS)])
        ax.invert_yaxis()
        ax.tick_params(axis="y", length=0)
        for side in ("top", "right", "left"):
            ax.spines[side].set_visible(False)
    axes[0].tick_params(axis="x", length=0)
    axes[0].spines["bottom"].set_visible(False)
    axes[1].set_xlabel("hours (grey: a worker waits)")
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_suffix(".png"))
