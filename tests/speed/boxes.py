"""Designs on a box against BoTorch's search for each point."""

from __future__ import annotations

import torch
from botorch.acquisition.analytic import PosteriorStandardDeviation
from botorch.optim.optimize import optimize_acqf
from torch import Tensor

from botorch_delay.domains.box import BoxDomain
from botorch_delay.domains.devices import Seeded
from botorch_delay.optimizers.bpe import BPEDelayOptimizer
from speed.clocks import interleaved
from speed.peers import (
    NOISE_VAR,
    botorch_at_its_best,
    single_task_gp,
    squared_exponential,
)
from speed.rows import Check, Reach, Row

DIM = 6
RESTARTS, RAW_SAMPLES = 10, 512
# A pick's deviation is at least this share of the largest that the peer finds.
SHARE = 0.98


def against_optimize_acqf(*, n_picks: int, every: int, repeats: int) -> list[Row]:
    """A design on the unit box in six dimensions against ``optimize_acqf`` for every pick.

    The peer is timed at the middle of every ``every`` picks, given our picks so far, and scaled
    to all picks.

    Args:
        n_picks: n.
        every: picks per timed one.
        repeats: how often each is timed.
    """
    bounds = torch.tensor([[0.0], [1.0]], dtype=torch.double).expand(2, DIM).contiguous()
    kernel = squared_exponential(0.5, bounds)
    some = range(max(every // 2, 1), n_picks, every)

    def ours() -> Tensor:
        opt = BPEDelayOptimizer(
            BoxDomain(bounds),
            n_picks**2,  # so long that all are design points of round 1
            covar_module=kernel,
            noise_var=NOISE_VAR,
            exploit=None,
        )
        return torch.stack([opt.ask().x for _ in range(n_picks)])

    picks = ours()

    def deviation(k: int) -> PosteriorStandardDeviation:
        return PosteriorStandardDeviation(single_task_gp(kernel, picks[:k], picks.new_zeros(k)))

    def searched() -> list[Tensor]:
        return [
            optimize_acqf(
                deviation(k), bounds, q=1, num_restarts=RESTARTS, raw_samples=RAW_SAMPLES
            )[0]
            for k in some
        ]

    # BoTorch draws its restarts from the global generator.
    with botorch_at_its_best(), Seeded(0):
        with torch.enable_grad():
            found = interleaved({"ours": ours, "botorch": searched}, repeats)
        shares = [
            float(deviation(k)(picks[k : k + 1].unsqueeze(0)) / deviation(k)(best.unsqueeze(0)))
            for k, best in zip(some, found["botorch"].result, strict=True)
        ]
    scale = n_picks / len(some)
    again = float((found["ours"].result - picks).abs().max())
    return [
        Row(
            f"design of {n_picks} points on a box in {DIM} columns",
            found["ours"].median,
            peer=scale * found["botorch"].median,
            cpu=found["ours"].median_cpu,
            peer_cpu=scale * found["botorch"].median_cpu,
            against=f"optimize_acqf, {RESTARTS} restarts, {RAW_SAMPLES} raw samples",
            reach=Reach(ratio=10.0),
            checks=(
                Check(f"deviation short of {SHARE:.0%}", max(SHARE - min(shares), 0.0)),
                Check("the same points again", again),
            ),
            note=f"least deviation {min(shares):.4f} of what the peer finds, at {len(some)} picks, "
            f"which were timed and scaled to {n_picks}",
        )
    ]
