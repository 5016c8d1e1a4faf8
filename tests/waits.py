"""How often each ask and each tell of every mode waits for a device, by place.

    python tests/waits.py [MODE ...]

prints a table, with the places of typical asks below it, of the modes whose names hold one of the
words. Run where the package can be imported, with ``tests`` on the path.
"""

from __future__ import annotations

import statistics
import sys
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from botorch.acquisition import UpperConfidenceBound
from cases import scattered, se
from objectives import quadratic

import botorch_delay as bd

if TYPE_CHECKING:  # at run time it would replace a real device in autograd
    from simulated_cuda import Record

IN_FLIGHT = 4


def points(n: int = 300) -> bd.FiniteDomain:
    return bd.FiniteDomain(scattered(n, 3).cuda())


def box() -> bd.BoxDomain:
    return bd.BoxDomain(torch.tensor([[0.0] * 3, [1.0] * 3], dtype=torch.double).cuda())


def given(**options: Any) -> dict[str, Any]:
    return {"covar_module": se().cuda(), "noise_var": 1e-2, **options}


@dataclass(frozen=True)
class Mode:
    """How an optimizer is made, and how often it may wait.

    Attributes:
        make: the optimizer.
        ask: most waits of a typical ask.
        most: most waits of any ask: where all is rebuilt, a round ends or a kernel is learned.
        tell: most waits of any tell.
        attached: results attached at first, so that not every other ask learns a kernel.
    """

    make: Callable[[], bd.Optimizer]
    ask: int = 4
    most: int = 30
    tell: int = 1
    attached: int = 0


BOUNDS = bd.RKHSConfidence(2.0, 0.1)
MODES = {
    "set, rule, kernel given": Mode(lambda: bd.AcquisitionOptimizer(points(), **given())),
    "set, rounds, kernel given": Mode(lambda: bd.BPEDelayOptimizer(points(), 60, **given())),
    # A round's design takes in what was attached before it, one result at a time.
    "set, rounds, kernel learned": Mode(
        lambda: bd.BPEDelayOptimizer(points(), 60), ask=5, most=90, attached=30
    ),
    "set, Algorithm 1": Mode(
        lambda: bd.BPEDelayOptimizer.as_published(
            points(), 60, **given(confidence=BOUNDS, delay=bd.PoissonDelay(2.0))
        ),
    ),
    "set, regret budget": Mode(
        lambda: bd.BPEDelayOptimizer.guaranteed(
            points(), 60, **given(norm_bound=2.0, noise_std=0.1)
        ),
    ),
    "set, Thompson samples": Mode(
        lambda: bd.AcquisitionOptimizer(points(), **given(rule=bd.ThompsonSampling()))
    ),
    "set, BoTorch's function": Mode(
        lambda: bd.AcquisitionOptimizer(
            points(), **given(rule=bd.BotorchRule(UpperConfidenceBound, beta=4.0))
        ),
        ask=25,  # a BoTorch model is rebuilt and checked
    ),
    "set, thresholds": Mode(lambda: bd.ThreDSOptimizer(points(), **given(confidence=BOUNDS))),
    "set, queued": Mode(lambda: bd.QueuedOptimizer(bd.AcquisitionOptimizer(points(), **given()))),
    "set, random": Mode(lambda: bd.RandomOptimizer(points())),
    "box, rule, kernel given": Mode(lambda: bd.AcquisitionOptimizer(box(), **given()), 20),
    "box, rounds, kernel given": Mode(
        lambda: bd.BPEDelayOptimizer(box(), 60, **given()), ask=20, most=65
    ),
    "box, rule, kernel learned": Mode(
        lambda: bd.AcquisitionOptimizer(box()), ask=20, most=45, attached=30
    ),
    # How many steps an ascent takes depends on rounding, which differs between CPUs.
    "box, rounds, kernel learned": Mode(
        lambda: bd.BPEDelayOptimizer(box(), 60), ask=24, most=90, attached=30
    ),
    "box, Thompson samples": Mode(
        lambda: bd.AcquisitionOptimizer(box(), **given(rule=bd.ThompsonSampling())),
        ask=20,
    ),
    "box, thresholds": Mode(lambda: bd.ThreDSOptimizer(box(), **given(confidence=BOUNDS))),
    "box, random": Mode(lambda: bd.RandomOptimizer(box())),
}


@dataclass
class Waits:
    """How often one run waited for the device.

    Attributes:
        asks: waits of each ask.
        tells: waits of each tell.
        places: where asks of the second half waited that waited no more often than the median.
    """

    asks: list[int]
    tells: list[int]
    places: Counter[tuple[str, str, str]]

    @property
    def typical(self) -> float:
        """The median of the second half of the asks."""
        return statistics.median(self.asks[len(self.asks) // 2 :])

    def table(self) -> str:
        """Where typical asks wait, the most frequent place first."""
        return "\n".join(f"{n:6} {' '.join(place)}" for place, n in self.places.most_common())


def played(mode: Mode, gpu: Record, n: int) -> Waits:
    """A run of ``n`` asks on the simulated device, with some trials always in flight."""
    optimizer, running = mode.make(), []
    if mode.attached:
        X = scattered(mode.attached, 3)
        optimizer.attach(X.cuda(), torch.tensor([quadratic(x) for x in X]).to(X).cuda())
    asks, tells, seen = [], [], []
    for _ in range(n):
        gpu.clear()
        running.append(optimizer.ask())
        asks.append(gpu.count())
        seen.append(gpu.waits.copy())
        if len(running) > IN_FLIGHT:
            trial = running.pop(0)
            value = quadratic(trial.x.cpu())
            gpu.clear()
            optimizer.tell(trial, value)
            tells.append(gpu.count())
    waits = Waits(asks, tells, Counter())
    for number in range(n // 2, n):
        if asks[number] <= waits.typical:
            waits.places.update(seen[number])
    return waits


def main(words: list[str]) -> None:
    """Print the tables."""
    from simulated_cuda import simulated_cuda

    warnings.simplefilter("ignore")
    found = {}
    with simulated_cuda() as gpu:
        for name, mode in MODES.items():
            if not words or any(word in name for word in words):
                found[name] = played(mode, gpu, 30)
    print("| mode | ask, typical | ask, most | tell, most |\n|---|---|---|---|")
    for name, waits in found.items():
        print(f"| {name} | {waits.typical:g} | {max(waits.asks)} | {max(waits.tells)} |")
    for name, waits in found.items():
        print(f"\n{name}, where typical asks wait:\n{waits.table()}")


if __name__ == "__main__":
    main(sys.argv[1:])
