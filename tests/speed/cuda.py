"""The design on a CUDA device against the traffic that the plain form cannot do without."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from botorch_delay.design.greedy import GreedyDesign
from botorch_delay.gp.posterior import Data, Posterior
from speed.peers import NOISE_VAR, squared_exponential, uniform
from speed.rows import (
    BYTES,
    VALUES_WITHIN,
    Check,
    Reach,
    Row,
    same_picks,
    same_values,
)

SAMPLE = 1000
SINGLE_WITHIN = 1e-3  # of variances in single precision, where the prior's is 1
LIMITS = {torch.float64: 3.0, torch.float32: 2.0}  # seconds


def cuda(*, n_candidates: int, n_picks: int, n_small: int, repeats: int) -> list[Row]:
    """A design in six dimensions on the device, in double and single precision.

    Args:
        n_candidates: N.
        n_picks: n.
        n_small: candidates of the problem on which CPU and device are compared.
        repeats: of each design.
    """
    if not torch.cuda.is_available():
        return [Row("skipped: there is no CUDA device", None)]
    device = torch.device("cuda")
    moved = copy_rate(device)
    rows = []
    for dtype in LIMITS:
        rows += design_on(device, dtype, moved, n_candidates, n_picks, n_small, repeats)
    return rows


def design_on(
    device: torch.device,
    dtype: torch.dtype,
    rate: float,
    n_candidates: int,
    n_picks: int,
    n_small: int,
    repeats: int,
) -> list[Row]:
    """Time and memory of one design, and what was found right.

    Args:
        device: where.
        dtype: double or single precision.
        rate: bytes per second to and from the device's memory.
        n_candidates: N.
        n_picks: n.
        n_small: candidates of the problem on which CPU and device are compared.
        repeats: of the design.
    """
    points = uniform(n_candidates, 6).to(device, dtype)
    kernel = squared_exponential(0.5, points)
    _design(kernel, points, min(n_picks, 10))  # whatever a device does only once
    before = _held(device)
    seconds = []
    for _ in range(repeats):
        seconds.append(_timed(device, lambda: _design(kernel, points, n_picks)[0]))
    most = _held(device, peak=True) - before
    picks, variance = _design(kernel, points, n_picks)
    size = points.element_size()
    floor = 0.5 * n_picks**2 * n_candidates * size / rate
    holds = float(n_picks * n_candidates * size)
    name = str(dtype).removeprefix("torch.")
    median = statistics.median(seconds)
    checks = [_against_exact(points, picks, variance)]
    if dtype is torch.float64:
        checks += _against_cpu(device, n_small, min(n_picks, n_small // 4))
    work = f"{name}: design of {n_picks} points among {n_candidates:,}"
    return [
        Row(
            work,
            median,
            peer=floor,
            against=f"the floor: the factor's traffic at the measured {rate / 1e12:.3g} TB/s",
            reach=Reach(most=LIMITS[dtype]),
            checks=tuple(checks),
            note=f"{median / floor:.3g} times the floor",
        ),
        Row(
            f"{work}: peak memory",
            float(most),
            unit=BYTES,
            peer=holds,
            against="n x N numbers",
            reach=Reach(ratio=1.0 / 1.3),
            checks=tuple(checks),
        ),
    ]


def copy_rate(device: torch.device, n_bytes: int = 2**31, repeats: int = 10) -> float:
    """Bytes per second that a copy on the device reads and writes, the best of some."""
    source = torch.zeros(n_bytes // 8, dtype=torch.double, device=device)
    target = torch.empty_like(source)

    def copied() -> None:
        target.copy_(source)

    copied()
    return 2.0 * n_bytes / min(_timed(device, copied) for _ in range(repeats))


def _design(kernel: Kernel, points: Tensor, n: int) -> tuple[list[int], Tensor]:
    design = GreedyDesign(kernel, points, NOISE_VAR)
    return design.extend(n), design.variance


def _against_cpu(device: torch.device, n: int, n_picks: int) -> list[Check]:
    points = uniform(n, 6, seed=1)
    picks, variance = _design(squared_exponential(0.5, points), points, n_picks)
    there = points.to(device)
    picks_there, variance_there = _design(squared_exponential(0.5, there), there, n_picks)
    return [
        same_picks(f"picks on the CPU, {n:,} candidates", picks_there, picks),
        same_values("variances on the CPU", variance_there.cpu(), variance),
    ]


def _against_exact(points: Tensor, picks: list[int], variance: Tensor) -> Check:
    """Variances at a sample against a factorization of the same picks in double."""
    exact = points.double()
    n = len(points)
    y = exact.new_zeros(len(picks))
    rows = torch.tensor(picks, device=points.device)
    noise = torch.full_like(y, NOISE_VAR)
    part = slice(0, n, max(n // SAMPLE, 1))
    posterior = Posterior(
        squared_exponential(0.5, exact), Data.averaged(exact[rows], y, noise, rows)
    ).at(exact[part])
    within = VALUES_WITHIN if points.dtype is torch.float64 else SINGLE_WITHIN
    what = "variances of the same picks factorized in double"
    return same_values(what, variance[part].double(), posterior.variance, within)


def _timed(device: torch.device, work: Callable[[], Any]) -> float:
    """Seconds until the device is done."""
    _wait(device)
    begin = time.perf_counter()
    work()
    _wait(device)
    return time.perf_counter() - begin


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _held(device: torch.device, peak: bool = False) -> int:
    """Bytes of tensors on the device, now or at most since this was last asked for now."""
    if device.type != "cuda":
        return 0
    if peak:
        return torch.cuda.max_memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    return torch.cuda.memory_allocated(device)
