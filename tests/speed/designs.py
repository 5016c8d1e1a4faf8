"""Greedy designs against BoTorch's loop, and against one row of all candidates per pick."""

from __future__ import annotations

import statistics
from functools import partial
from typing import Any

import torch
from botorch.acquisition.analytic import PosteriorStandardDeviation
from botorch.models import SingleTaskGP
from botorch.optim.optimize import optimize_acqf_discrete
from gpytorch.kernels import Kernel
from torch import Tensor

from botorch_delay.design.greedy import GreedyDesign, greedy_max_variance
from speed.clocks import PeakMemory, fastest, interleaved, timed
from speed.isolation import isolated
from speed.peers import (
    NOISE_VAR,
    botorch_at_its_best,
    plain_design,
    single_task_gp,
    squared_exponential,
    uniform,
)
from speed.rows import (
    BYTES,
    VALUES_WITHIN,
    Check,
    Reach,
    Row,
    same_picks,
    same_values,
)

BATCH_SIZES = (128, 512, 2048, 8192, 32_768)
SAMPLE = 1000  # candidates at which values are compared


def against_botorch(*, n_candidates: int, n_picks: int, every: int, repeats: int) -> list[Row]:
    """A design in the unit square against a model that is rebuilt and maximised per pick.

    BoTorch's loop is timed at the middle of every ``every`` picks, given our picks so far, and
    scaled to all picks; there it must choose what ours chose.

    Args:
        n_candidates: number of candidates, N.
        n_picks: number of picks, n.
        every: picks per timed one.
        repeats: how often each is timed.
    """
    points = uniform(n_candidates, 2)
    kernel = squared_exponential(0.1, points)
    picks = greedy_max_variance(kernel, points, NOISE_VAR, n_picks).tolist()
    some = range(max(every // 2, 1), n_picks, every)
    middle = picks[: max(n_picks // 2, 1)]
    with botorch_at_its_best():
        sizes = [size for size in BATCH_SIZES if size < 2 * n_candidates]
        batch = fastest(
            {size: partial(botorch_pick, kernel, points, middle, size) for size in sizes}, 2
        )

        def botorch_loop() -> list[Tensor]:
            return [botorch_pick(kernel, points, picks[:k], batch) for k in some]

        found = interleaved(
            {
                "ours": partial(greedy_max_variance, kernel, points, NOISE_VAR, n_picks),
                "botorch": botorch_loop,
            },
            repeats,
        )
        chosen = [
            agreed(kernel, points, picks, k, x)
            for k, x in zip(some, found["botorch"].result, strict=True)
        ]
        model = single_task_gp(kernel, points[picks], points.new_zeros(n_picks))
        theirs = model.posterior(points).variance.squeeze(-1)
    variance = GreedyDesign(kernel, points, NOISE_VAR, picks).variance
    share = n_picks / len(some)
    return [
        Row(
            f"design of {n_picks} points among {n_candidates:,}",
            found["ours"].median,
            peer=share * found["botorch"].median,
            cpu=found["ours"].median_cpu,
            peer_cpu=share * found["botorch"].median_cpu,
            against=f"BoTorch's loop, max_batch_size={batch}",
            reach=Reach(ratio=60.0),
            checks=(
                same_picks("picks", chosen, [picks[k] for k in some]),
                same_picks("picks again", found["ours"].result.tolist(), picks),
                same_values("variances", variance, theirs),
            ),
            note=f"{len(some)} picks of the peer were timed and scaled to {n_picks}",
        )
    ]


def _botorch_model(kernel: Kernel, points: Tensor, picks: list[int]) -> SingleTaskGP:
    return single_task_gp(kernel, points[picks], points.new_zeros(len(picks)))


def botorch_pick(kernel: Kernel, points: Tensor, picks: list[int], batch: int) -> Tensor:
    """The next point of BoTorch's loop, ``1 x d``."""
    deviation = PosteriorStandardDeviation(_botorch_model(kernel, points, picks))
    return optimize_acqf_discrete(deviation, q=1, choices=points, max_batch_size=batch)[0]


def agreed(kernel: Kernel, points: Tensor, picks: list[int], k: int, x: Tensor) -> int:
    """Our k-th pick where BoTorch's point has the same variance up to a tie, else BoTorch's."""
    theirs = int((points == x).all(dim=1).byte().argmax())
    pair = points[[picks[k], theirs]]
    ours, best = _botorch_model(kernel, points, picks[:k]).posterior(pair).variance.flatten()
    return picks[k] if bool(ours >= (1.0 - 2.0 * VALUES_WITHIN) * best) else theirs


def against_plain(*, n_candidates: int, n_picks: int, repeats: int) -> list[Row]:
    """A design in six dimensions against the plain form, in time and memory.

    Each run has a process of its own.

    Args:
        n_candidates: number of candidates, N.
        n_picks: number of picks, n.
        repeats: how often each is timed.
    """
    runs: dict[bool, list[dict[str, Any]]] = {False: [], True: []}
    for turn in range(repeats):
        for plain in (False, True) if turn % 2 == 0 else (True, False):
            runs[plain].append(
                isolated(design_alone, n_candidates=n_candidates, n_picks=n_picks, plain=plain)
            )

    def median(plain: bool, what: str) -> float:
        return statistics.median(run[what] for run in runs[plain])

    ours, theirs = runs[False][-1], runs[True][-1]
    checks: tuple[Check, ...] = (
        same_picks("picks", ours["picks"], theirs["picks"]),
        same_values(
            "variances",
            torch.tensor(ours["variance"], dtype=torch.double),
            torch.tensor(theirs["variance"], dtype=torch.double),
        ),
    )
    work = f"design of {n_picks} points among {n_candidates:,}"
    peer = "one row of N per pick"
    return [
        Row(
            work,
            median(False, "seconds"),
            peer=median(True, "seconds"),
            against=peer,
            reach=Reach(ratio=5.0, stretch=10.0),
            cpu=median(False, "cpu"),
            peer_cpu=median(True, "cpu"),
            checks=checks,
        ),
        Row(
            f"{work}: peak memory",
            median(False, "bytes"),
            unit=BYTES,
            peer=median(True, "bytes"),
            against=peer,
            reach=Reach(ratio=4.0),
            checks=checks,
            note="above what the points take",
        ),
    ]


def design_alone(*, n_candidates: int, n_picks: int, plain: bool) -> dict[str, Any]:
    """One design: seconds, bytes at the peak, picks, and variances at a sample of candidates."""
    points = uniform(n_candidates, 6)
    kernel = squared_exponential(0.5, points)
    _design(kernel, points[:5000], 2, plain)  # warm-up: whatever a process does only once
    with PeakMemory() as memory:
        made = timed(partial(_design, kernel, points, n_picks, plain))
    picks, grown = made.result
    variance = grown.variance if isinstance(grown, GreedyDesign) else grown
    return {
        "seconds": made.median,
        "cpu": made.median_cpu,
        "bytes": memory.bytes,
        "picks": picks,
        "variance": variance[:: max(n_candidates // SAMPLE, 1)].tolist(),
    }


def _design(
    kernel: Kernel, points: Tensor, n: int, plain: bool
) -> tuple[list[int], GreedyDesign | Tensor]:
    if plain:
        return plain_design(kernel, points, NOISE_VAR, n)
    design = GreedyDesign(kernel, points, NOISE_VAR)
    return design.extend(n), design
