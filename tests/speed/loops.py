"""Asks and tells of whole optimizers, early in a run and late."""

from __future__ import annotations

import gc
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from botorch.acquisition.analytic import UpperConfidenceBound
from gpytorch.kernels import Kernel
from torch import Tensor

from botorch_delay.benchmarks import FiniteProblem, paper_problem
from botorch_delay.confidence.bounds import FixedBeta
from botorch_delay.gp.posterior import Data, Posterior
from botorch_delay.history.trials import Trial
from botorch_delay.optimizers.acquisition_optimizer import AcquisitionOptimizer
from botorch_delay.optimizers.base import Optimizer
from botorch_delay.optimizers.bpe import BPEDelayOptimizer
from botorch_delay.optimizers.pending import Hallucinate
from botorch_delay.optimizers.random import RandomOptimizer
from botorch_delay.optimizers.rules import UCB
from speed.clocks import Timed, fastest, interleaved, percentile, resident
from speed.isolation import isolated
from speed.peers import (
    NOISE_VAR,
    botorch_at_its_best,
    plain_design,
    single_task_gp,
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

LENGTHSCALE = 0.8
BETA = 6.0
ELIMINATES, KEEPS_ALL = BETA, 1e8
# The most that an ask may leave behind, in bytes: the record of a trial and its answer. A row of
# one number per candidate would be twenty times as much.
RECORD = 1e3


@dataclass
class Asks:
    """Times of each ask, ``steps`` long, in seconds.

    Attributes:
        wall: time by the wall clock.
        cpu: processor time of this thread.
        collected: the part of it that Python's garbage collector took.
    """

    wall: Tensor
    cpu: Tensor
    collected: Tensor

    @classmethod
    def empty(cls, steps: int) -> Asks:
        """Zeros for ``steps`` asks."""
        return cls(*torch.zeros(3, steps, dtype=torch.double))

    @classmethod
    def quickest(cls, runs: Sequence[Sequence[Sequence[float]]]) -> Asks:
        """For each ask, the times of the run in which it took least processor time.

        Every run asks the same, garbage collection included; what takes long in only one of
        them was the machine.
        """
        times = torch.tensor(runs, dtype=torch.double)
        best = times[:, 1].argmin(dim=0)
        return cls(*times[best, :, torch.arange(times.shape[2])].T)


def long_horizon(*, side: int, horizon: int, delay: int, checked: int, repeats: int) -> list[Row]:
    """Every ask of a long run, with elimination and without.

    For each ask the quickest run counts. Memory grows with the records of trials, whoever
    chooses the points; comparing with random search of the same length shows what else grows.
    Each run has a process of its own.

    Args:
        side: the candidates are the paper's grid, ``side x side``.
        horizon: number of asks, T.
        delay: delay of every answer, in steps.
        checked: picks of each round that are compared with the plain form's.
        repeats: how often each run is played.
    """
    rows = []
    later = horizon - horizon // 2
    records = isolated(records_alone, side=side, horizon=horizon, delay=delay)
    variants = (
        (ELIMINATES, False, "eliminating"),
        (KEEPS_ALL, False, "nothing eliminated"),
        (KEEPS_ALL, True, "exploiting, nothing eliminated"),
    )
    for beta, exploit, variant in variants:
        runs = [
            isolated(
                play_alone,
                side=side,
                horizon=horizon,
                delay=delay,
                beta=beta,
                exploit=exploit,
                checked=0 if repeat else checked,
            )
            for repeat in range(repeats)
        ]
        found, asks = runs[0], Asks.quickest([run["asks"] for run in runs])
        last = slice(horizon - max(horizon // 10, 1), horizon)
        summaries = {
            "all asks": summary(asks, slice(0, horizon)),
            "last tenth": summary(asks, last),
        }
        checks = (
            Check("first picks of each round", found["differ"]),
            Check(
                "variance short of the largest at a round's last pick",
                found["short"],
                VALUES_WITHIN,
            ),
        )
        for part, times in summaries.items():
            for what, limit in (("median", 3e-3), ("p99", 10e-3), ("worst", 100e-3)):
                wall, cpu = times[what]
                rows.append(
                    Row(
                        f"{variant}, {part}: {what}",
                        wall,
                        cpu=cpu,
                        reach=Reach(most=limit),
                        checks=checks,
                        note=times["slowest"] if what == "worst" else "",
                    )
                )
        half, end = found["memory"]
        rows.append(
            Row(
                f"{variant}: memory that an ask of the second half adds",
                max(end - half, 0) / later,
                unit=BYTES,
                peer=max(records[1] - records[0], 0) / later,
                against="random search, the records of its trials",
                reach=Reach(most=RECORD),
                checks=checks,
                note=f"{half / 1e6:.0f} MB at half, {end / 1e6:.0f} MB at the end; rounds of "
                f"{found['rounds']} asks, {found['active']:,} points active after the last; "
                f"{found['seconds']:.0f} s in all",
            )
        )
    return rows


def play_alone(
    *, side: int, horizon: int, delay: int, beta: float, exploit: bool, checked: int
) -> dict[str, Any]:
    """One run: times of its asks, its memory, and what was found wrong with its picks.

    ``checked = 0`` checks none.
    """
    problem = paper_problem(LENGTHSCALE, side=side)
    opt = _optimizer(problem, horizon, beta, exploit)
    begin = time.perf_counter()
    asks = Asks.empty(horizon)
    memory = _memory(play(opt, problem, horizon, delay, asks), horizon)
    seconds = time.perf_counter() - begin
    differ, short = wrong_picks(opt, problem, checked) if checked else (0, 0.0)
    return {
        "asks": [asks.wall.tolist(), asks.cpu.tolist(), asks.collected.tolist()],
        "memory": memory,
        "seconds": seconds,
        "rounds": ", ".join(str(record.length) for record in opt.rounds),
        "active": int((opt.active_set.eliminated == 0).sum()),
        "differ": differ,
        "short": short,
    }


def records_alone(*, side: int, horizon: int, delay: int) -> tuple[int, int]:
    """Memory of random search at half and at the end, in bytes."""
    problem = paper_problem(LENGTHSCALE, side=side)
    opt = RandomOptimizer(problem.domain, horizon=horizon)
    asks = Asks.empty(horizon)
    return _memory(play(opt, problem, horizon, delay, asks), horizon)


def _memory(played: Iterable[int], horizon: int) -> tuple[int, int]:
    """What a run adds to the process's memory, at half and at the end, in bytes."""
    before = resident()
    added = {step: resident() - before for step in played if step in (horizon // 2, horizon)}
    return added[horizon // 2], added[horizon]


def play(
    opt: Optimizer, problem: FiniteProblem, steps: int, delay: int, asks: Asks
) -> Iterator[int]:
    """Ask and tell with constant delay; yields the number of asks made, and notes their times."""
    generator = torch.Generator().manual_seed(0)
    noise = problem.noise_std * torch.randn(steps, dtype=torch.double, generator=generator)
    waiting: deque[Trial] = deque()
    with collector() as collected:
        for step in range(steps):
            if len(waiting) > delay:
                _answer(opt, problem, waiting.popleft(), noise)
            collected[0] = 0.0
            wall, cpu = time.perf_counter(), time.thread_time()
            trial = opt.ask()
            asks.cpu[step] = time.thread_time() - cpu
            asks.wall[step] = time.perf_counter() - wall
            asks.collected[step] = collected[0]
            waiting.append(trial)
            yield step + 1
    while waiting:
        _answer(opt, problem, waiting.popleft(), noise)


@contextmanager
def collector() -> Iterator[list[float]]:
    """Adds the seconds that Python's garbage collector takes to the one entry of a list."""
    spent, began = [0.0], 0.0

    def note(phase: str, info: dict[str, int]) -> None:
        nonlocal began
        if phase == "start":
            began = time.perf_counter()
        else:
            spent[0] += time.perf_counter() - began

    gc.callbacks.append(note)
    try:
        yield spent
    finally:
        gc.callbacks.remove(note)


def summary(asks: Asks, part: slice) -> dict[str, Any]:
    """Mean, median, 99th percentile and worst of some asks, by the wall and in processor time.

    Also ``slowest``, in words: which ask took longest by the wall, counted from 1, and why.
    """
    both = asks.wall[part].tolist(), asks.cpu[part].tolist()
    measures: dict[str, Callable[[list[float]], float]] = {
        "mean": statistics.fmean,
        "median": statistics.median,
        "p99": partial(percentile, share=0.99),
        "worst": max,
    }
    found = {name: (measure(both[0]), measure(both[1])) for name, measure in measures.items()}
    slowest = part.start + int(asks.wall[part].argmax())
    collected = 1e3 * asks.collected[slowest].item()
    note = f"ask {slowest + 1:,}, {collected:.3g} ms of it Python's garbage collection"
    return {**found, "slowest": note}


def wrong_picks(opt: BPEDelayOptimizer, problem: FiniteProblem, checked: int) -> tuple[int, float]:
    """What is wrong with the picks of each round.

    Returns:
        How many of the first ``checked`` picks of a round are not the plain form's, and by how
        much the variance at a round's last pick falls short of the largest.
    """
    kernel = problem.covar_module
    assert kernel is not None
    picks: dict[int, list[int]] = {}
    for trial in opt.trials:
        assert trial.index is not None
        if trial.slot < 0:
            continue
        picks.setdefault(trial.round, []).append(trial.index)
    differ, short = 0.0, 0.0
    for number, made in picks.items():
        active = (
            ((opt.active_set.eliminated == 0) | (opt.active_set.eliminated >= number))
            .nonzero()
            .flatten()
        )
        points = problem.points[active]
        first = made[:checked]
        plain, _ = plain_design(kernel, points, problem.noise_var, len(first))
        differ += same_picks("", first, active[plain].tolist()).error
        if len(made) > 1:
            variance = _variance(kernel, problem, made[:-1], points)
            at_pick = variance[int(torch.searchsorted(active, made[-1]))]
            short = max(short, (variance.max() - at_pick).item())
    return int(differ), short


def ready_ask(*, side: int, steps: int, delay: int) -> list[Row]:
    """An ask of a design point, of a design that goes on.

    Args:
        side: the candidates are the paper's grid, ``side x side``.
        steps: asks.
        delay: delay of every answer, in steps.
    """
    problem = paper_problem(LENGTHSCALE, side=side)
    opt = _optimizer(problem, 40 * steps, KEEPS_ALL, exploit=False)
    asks = Asks.empty(steps)
    for _ in play(opt, problem, steps, delay, asks):
        pass
    differ, short = wrong_picks(opt, problem, steps)
    found = summary(asks, slice(0, steps))
    return [
        Row(
            "ask of a design point: mean",
            found["mean"][0],
            cpu=found["mean"][1],
            reach=Reach(most=2e-3),
            checks=(
                Check("picks", differ),
                Check("variance short of the largest", short, VALUES_WITHIN),
            ),
            note=f"median {1e3 * found['median'][1]:.3g} ms of processor time, p99 "
            f"{1e3 * found['p99'][1]:.3g} ms",
        )
    ]


def index_method(*, side: int, answered: int, steps: int) -> list[Row]:
    """An ask and a tell of GP-BUCB against a BoTorch model built anew that scores every arm.

    Args:
        side: the arms are the paper's grid, ``side x side``.
        answered: answers beforehand, at distinct arms.
        steps: asks and tells that are timed.
    """
    problem = paper_problem(LENGTHSCALE, side=side)
    kernel = problem.covar_module
    assert kernel is not None
    generator = torch.Generator().manual_seed(0)
    rows = torch.randperm(len(problem.points), generator=generator)[:answered].tolist()
    noise = torch.randn(answered + steps, dtype=torch.double, generator=generator)
    y = (problem.values[rows] + problem.noise_std * noise[:answered]).tolist()
    opt = AcquisitionOptimizer(
        problem.domain,
        covar_module=kernel,
        noise_var=NOISE_VAR,
        rule=UCB(BETA),
        pending=Hallucinate(),
    )
    opt.attach(problem.points[rows], torch.tensor(y, dtype=torch.double))
    opt._maximizer.update()
    times: list[dict[str, Timed]] = []
    wrong = 0
    with botorch_at_its_best():
        data = torch.tensor(rows), torch.tensor(y, dtype=torch.double)
        scorers = {"one batch": _scores_batch, "one joint posterior": _scores_jointly}
        best = fastest({name: partial(f, kernel, problem, *data) for name, f in scorers.items()}, 2)
        for step in range(steps):
            data = torch.tensor(rows), torch.tensor(y, dtype=torch.double)

            def ask_and_tell(step: int = step) -> Trial:
                trial = opt.ask()
                assert trial.index is not None
                value = problem.values[trial.index] + problem.noise_std * noise[answered + step]
                opt.tell(trial, value)
                return trial

            found = interleaved(
                {"ours": ask_and_tell, "peer": partial(scorers[best], kernel, problem, *data)}, 1
            )
            times.append(found)
            trial, scores = found["ours"].result, found["peer"].result
            slack = VALUES_WITHIN * scores.abs().max().clamp_min(1.0)
            wrong += int(scores[trial.index] < scores.max() - slack)
            rows.append(trial.index)
            y.append(trial.value)
        mean, deviation = opt._maximizer.model.mean, opt._maximizer.model.deviation
        values = torch.tensor(y, dtype=torch.double)
        model = single_task_gp(kernel, problem.points[rows], values)
        posterior = model.posterior(problem.points.unsqueeze(1))
    ours, theirs = (Timed.joined(found[who] for found in times) for who in ("ours", "peer"))
    return [
        Row(
            f"ask and tell after {answered:,} answers",
            ours.median,
            peer=theirs.median,
            cpu=ours.median_cpu,
            peer_cpu=theirs.median_cpu,
            against=f"SingleTaskGP built anew, UpperConfidenceBound of all arms in {best}",
            reach=Reach(ratio=30.0),
            note=f"{len(set(rows)) - answered} of {steps} asks at arms without an answer",
            checks=(
                Check("picks", wrong),
                same_values("means", mean, posterior.mean.flatten()),
                same_values("variances", deviation.square(), posterior.variance.flatten()),
            ),
        )
    ]


def _scores_batch(kernel: Kernel, problem: FiniteProblem, rows: Tensor, y: Tensor) -> Tensor:
    model = single_task_gp(kernel, problem.points[rows], y)
    return UpperConfidenceBound(model, beta=BETA)(problem.points.unsqueeze(1))


def _scores_jointly(kernel: Kernel, problem: FiniteProblem, rows: Tensor, y: Tensor) -> Tensor:
    posterior = single_task_gp(kernel, problem.points[rows], y).posterior(problem.points)
    return (posterior.mean + BETA**0.5 * posterior.variance.sqrt()).squeeze(-1)


def _optimizer(
    problem: FiniteProblem, horizon: int, beta: float, exploit: bool
) -> BPEDelayOptimizer:
    other: dict[str, Any] = {} if exploit else {"exploit": None}
    return BPEDelayOptimizer(
        problem.domain,
        horizon,
        covar_module=problem.covar_module,
        noise_var=NOISE_VAR,
        confidence=FixedBeta(beta),
        **other,
    )


def _answer(opt: Optimizer, problem: FiniteProblem, trial: Trial, noise: Tensor) -> None:
    assert trial.index is not None
    opt.tell(trial, (problem.values[trial.index] + noise[trial.id]).item())


def _variance(kernel: Kernel, problem: FiniteProblem, picks: Iterable[int], at: Tensor) -> Tensor:
    """Posterior variance given all picks, from one factorization over the distinct ones."""
    rows = torch.tensor(list(picks))
    y = problem.values.new_zeros(len(rows))
    noise = torch.full_like(y, problem.noise_var)
    evidence = Data.averaged(problem.points[rows], y, noise, rows)
    return Posterior(kernel, evidence).at(at).variance
