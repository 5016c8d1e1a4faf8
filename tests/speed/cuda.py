"""Designs, asks and elimination on a CUDA device, against BoTorch there and the memory's speed.

    python tests/speed/run.py --case cuda

takes a few minutes on one device. The floor of a design is the traffic that its plain form cannot
do without: the rows of all picks so far are read once per pick.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from botorch.acquisition.analytic import UpperConfidenceBound
from botorch.optim.optimize import optimize_acqf
from gpytorch.kernels import Kernel
from torch import Tensor

from botorch_delay.design.greedy import GreedyDesign
from botorch_delay.domains.box import BoxDomain
from botorch_delay.domains.devices import Seeded
from botorch_delay.domains.finite import FiniteDomain
from botorch_delay.gp.factor import factorize
from botorch_delay.gp.kernels import covariance
from botorch_delay.gp.posterior import Data, Posterior
from botorch_delay.optimizers.acquisition_optimizer import AcquisitionOptimizer
from botorch_delay.optimizers.bpe import BPEDelayOptimizer
from botorch_delay.optimizers.rules import UCB
from speed.bounds import CONFIDENCES, TWICE, eliminate, solves, width_of
from speed.designs import BATCH_SIZES, agreed, botorch_pick
from speed.loops import BETA
from speed.peers import (
    NOISE_VAR,
    botorch_at_its_best,
    single_task_gp,
    squared_exponential,
    uniform,
    wave,
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

SAMPLE = 1000
RATE_BYTES = 2**31  # copied to measure the memory's bandwidth
SINGLE_WITHIN = 1e-3  # tolerance of single-precision variances, with a prior of 1
LIMITS = {torch.float64: 3.0, torch.float32: 2.0}  # most seconds of the largest design


def cuda(
    *,
    n_candidates: int,
    n_middle: int,
    n_small: int,
    n_picks: int,
    answered: int,
    steps: int,
    repeats: int,
) -> list[Row]:
    """Designs in six dimensions in double and single precision, asks, and elimination.

    Args:
        n_candidates: candidates of the largest design and of elimination, N.
        n_middle: candidates of a smaller design, on which CPU and device are compared.
        n_small: candidates of the smallest design, and of asks.
        n_picks: picks of a design, n.
        answered: answers before the asks, and before elimination.
        steps: asks that are timed.
        repeats: how often each design is timed.
    """
    if not torch.cuda.is_available():
        return [Row("skipped: there is no CUDA device", None)]
    device = torch.device("cuda")
    rate = copy_rate(device)
    rows = []
    for n in (n_small, n_middle, n_candidates):
        compared = min(n_middle, n)
        for dtype in LIMITS:
            found = design_on(device, dtype, rate, n, n_picks, compared, repeats)
            judged = n == n_candidates
            rows += found if judged else [replace(row, reach=None) for row in found]
        rows.append(against_botorch_on(device, n, n_picks))
    rows.append(index_method_on(device, n_small, answered, steps))
    rows.append(design_asks_on(device, n_small, steps))
    rows += [elimination_on(device, name, n_candidates, answered, repeats) for name in CONFIDENCES]
    for n in (n_small, n_middle, n_candidates // 5):
        rows += learned_points_on(device, n, answered, steps)
    for known in (answered // 5, answered, 4 * answered):
        rows += learned_box_on(device, known, steps)
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
        device: where to run.
        dtype: double or single precision.
        rate: bytes per second to and from the device's memory.
        n_candidates: number of candidates, N.
        n_picks: number of picks, n.
        n_small: candidates of the problem on which CPU and device are compared.
        repeats: how often the design is timed.
    """
    points = uniform(n_candidates, 6).to(device, dtype)
    kernel = squared_exponential(0.5, points)
    _design(kernel, points, min(n_picks, 10))  # warm-up
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


def against_botorch_on(device: torch.device, n: int, n_picks: int) -> Row:
    """The design against BoTorch's loop on the device; three picks of the loop are timed."""
    points = uniform(n, 6).to(device)
    kernel = squared_exponential(0.5, points)
    seconds = _timed(device, lambda: _design(kernel, points, n_picks))
    picks, _ = _design(kernel, points, n_picks)
    some = sorted({max(n_picks * share // 4, 1) for share in (1, 2, 3)})
    theirs, chosen = [], []
    with botorch_at_its_best():
        for k in some:
            pick = partial(botorch_pick, kernel, points, picks[:k], BATCH_SIZES[-1])
            x = pick()
            theirs.append(_timed(device, pick))
            chosen.append(agreed(kernel, points, picks, k, x))
    return Row(
        f"design of {n_picks} points among {n:,}",
        seconds,
        peer=n_picks * statistics.fmean(theirs),
        against=f"BoTorch's loop on the device, max_batch_size={BATCH_SIZES[-1]}",
        checks=(same_picks("picks", chosen, [picks[k] for k in some]),),
        note=f"{len(some)} picks of the peer were timed and scaled to {n_picks}",
    )


def index_method_on(device: torch.device, n: int, answered: int, steps: int) -> Row:
    """An ask and a tell of GP-BUCB against a BoTorch model built anew that scores every arm."""
    points = uniform(n, 2).to(device)
    kernel, values = squared_exponential(0.1, points), wave(points).tolist()
    told, rest = list(range(0, n, max(n // answered, 1))), []
    opt = AcquisitionOptimizer(
        FiniteDomain(points), covar_module=kernel, noise_var=NOISE_VAR, rule=UCB(BETA)
    )
    opt.attach(points[told], points.new_tensor([values[row] for row in told]))
    opt._maximizer.update()
    ours, theirs, wrong = [], [], 0

    def ask_and_tell() -> None:
        trial = opt.ask()
        assert trial.index is not None
        opt.tell(trial, values[trial.index])
        rest.append(trial.index)

    def scored() -> Tensor:
        rows = told + rest
        y = points.new_tensor([values[row] for row in rows])
        model = single_task_gp(kernel, points[rows], y)
        return UpperConfidenceBound(model, beta=BETA)(points.unsqueeze(1))

    with botorch_at_its_best():
        for _ in range(steps):
            scores = scored()
            theirs.append(_timed(device, lambda: scored().argmax().item()))
            ours.append(_timed(device, ask_and_tell))
            slack = VALUES_WITHIN * max(scores.abs().max().item(), 1.0)
            wrong += scores[rest[-1]].item() < scores.max().item() - slack
    return Row(
        f"ask and tell after {len(told):,} answers on {n:,} points",
        statistics.median(ours),
        peer=statistics.median(theirs),
        against="SingleTaskGP built anew, UpperConfidenceBound of all arms, on the device",
        checks=(Check("picks", float(wrong)),),
    )


def design_asks_on(device: torch.device, n: int, steps: int) -> Row:
    """The ask of a design point."""
    points = uniform(n, 2).to(device)
    given = {"covar_module": squared_exponential(0.1, points), "noise_var": NOISE_VAR}
    opt = BPEDelayOptimizer(FiniteDomain(points), steps**2, exploit=None, **given)
    found = [_timed(device, opt.ask) for _ in range(steps)]
    picks = _design(given["covar_module"], points, steps)[0]
    asked = [trial.index for trial in opt.trials if trial.index is not None]
    return Row(
        f"ask of a design point on {n:,} points",
        statistics.median(found),
        checks=(same_picks("picks made at once", asked, picks),),
    )


def elimination_on(device: torch.device, name: str, n: int, answered: int, repeats: int) -> Row:
    """Bounds at every candidate and what they leave active, against the solves that they need."""
    rule = CONFIDENCES[name]
    here = uniform(n, 6)
    rows = slice(0, n, max(n // answered, 1))
    part = slice(0, n, max(n // SAMPLE, 1))
    points = here.to(device)
    kernel = squared_exponential(0.5, points)
    evidence = Data.single(
        points[rows], wave(points[rows]), torch.full_like(points[rows, 0], NOISE_VAR)
    )
    eliminate(kernel, evidence, points[:5000], rule)  # warm-up
    ours = [
        _timed(device, lambda: eliminate(kernel, evidence, points, rule)) for _ in range(repeats)
    ]
    _, lower, upper, _ = eliminate(kernel, evidence, points, rule)
    factor, _ = factorize(covariance(kernel, evidence.X, evidence.X), evidence.noise_var)
    right = covariance(kernel, evidence.X, points[: BATCH_SIZES[-1]])
    theirs = _timed(device, lambda: solves(factor, right, n, rule in TWICE))
    known = Data.single(here[rows], wave(here[rows]), torch.full_like(here[rows, 0], NOISE_VAR))
    kernel = squared_exponential(0.5, here)
    bounds = width_of(rule, kernel, known, n)
    moments = Posterior(kernel, known).at(here[part], weights=bounds.needs_weights)
    half = bounds.at(moments)
    return Row(
        f"{name}, {len(known)} answers, {n:,} candidates",
        statistics.median(ours),
        peer=theirs,
        against="the triangular solves alone, on the device",
        checks=(
            same_values("lower, on the CPU", lower[part].cpu(), moments.mean - half),
            same_values("upper, on the CPU", upper[part].cpu(), moments.mean + half),
        ),
    )


def learned_points_on(device: torch.device, n: int, answered: int, steps: int) -> list[Row]:
    """Asks on a set of points with a learned kernel, against the CPU."""
    points = uniform(n, 4)
    told = slice(0, n, max(n // answered, 1))
    here, there = (
        asks_on(FiniteDomain(points.to(on)), points[told], steps) for on in ("cpu", device)
    )
    work = f"learned, {len(points[told])} answers on {n:,} points in 4 columns"
    return _against_the_cpu(work, here, there)


def learned_box_on(device: torch.device, answered: int, steps: int) -> list[Row]:
    """Asks on a box with a learned kernel, against ``optimize_acqf`` there and against the CPU."""
    X = uniform(answered, 4)
    known, values = X.to(device), bowl(X).to(device)
    bounds = torch.stack([known.new_zeros(4), known.new_ones(4)])

    def searched() -> Tensor:
        model = single_task_gp(squared_exponential(0.5, known), known, values)
        function = UpperConfidenceBound(model, beta=BETA)
        return optimize_acqf(function, bounds, q=1, num_restarts=10, raw_samples=512)[0]

    here, there = (asks_on(BoxDomain(bounds.to(on)), X, steps) for on in ("cpu", device))
    with botorch_at_its_best(), Seeded(0), torch.enable_grad():
        searched()
        theirs = _timed(device, searched)
    work = f"learned box, {answered} answers in 4 columns"
    against = "optimize_acqf on the device, no fit"
    row = Row(f"{work}: ask", there[1], peer=theirs, against=against)
    return [row, *_against_the_cpu(work, here, there)]


def bowl(X: Tensor) -> Tensor:
    return -(X - 0.3).square().sum(dim=1)


def asks_on(domain: BoxDomain | FiniteDomain, X: Tensor, steps: int) -> tuple[float, float]:
    """Seconds of an ask that fits, and the median of others, on the domain's device."""
    on = domain.device
    opt = AcquisitionOptimizer(domain)
    opt.attach(X.to(on), bowl(X).to(on))
    first = _timed(on, opt.ask)
    return first, statistics.median(_timed(on, opt.ask) for _ in range(steps))


def _against_the_cpu(work: str, here: tuple[float, float], there: tuple[float, float]) -> list[Row]:
    names = ("ask that fits", "ask")
    return [
        Row(f"{work}: {name}", ours, peer=theirs, against="the same on the CPU")
        for name, ours, theirs in zip(names, there, here, strict=True)
    ]


def copy_rate(device: torch.device, repeats: int = 10) -> float:
    """Bytes per second that a copy on the device reads and writes, the best of some."""
    n_bytes = RATE_BYTES
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
    rows = torch.tensor(picks)
    y = torch.zeros(len(picks), dtype=torch.double)
    data = Data.averaged(exact[rows].cpu(), y, torch.full_like(y, NOISE_VAR), rows)
    part = slice(0, n, max(n // SAMPLE, 1))
    kernel = squared_exponential(0.5, exact)
    posterior = Posterior(kernel, data.to(exact, inputs=lambda X: X)).at(exact[part])
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
