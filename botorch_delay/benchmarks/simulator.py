"""Play an optimizer against a problem whose answers are delayed by steps."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import torch
from torch import Tensor

from botorch_delay import validation
from botorch_delay.benchmarks.clocks import NOISE_STREAM
from botorch_delay.benchmarks.problems import FiniteProblem
from botorch_delay.delays import DelayLaw, check_delays
from botorch_delay.exceptions import HorizonError, InputError, InputTypeError
from botorch_delay.optimizers.base import Optimizer


@dataclass(frozen=True, eq=False)
class History:
    """What was played.

    Attributes:
        index: row asked at each step, LongTensor ``steps``.
        value: the noisy value at each step, ``steps``.
        delay: the delay of each answer, in steps, ``steps``.
        regret: cumulative regret, charged when a point is asked, ``steps``.
        told: how many answers arrived by the end.
    """

    index: Tensor
    value: Tensor
    delay: Tensor
    regret: Tensor
    told: int


def simulate(
    optimizer: Optimizer,
    problem: FiniteProblem,
    delay: DelayLaw | None,
    steps: int,
    seed: int = 0,
    delays: Tensor | None = None,
    noise: Tensor | None = None,
) -> History:
    """Ask ``steps`` times and tell every answer when it is due.

    The answer of step s with delay tau is told before the decision of step ``s + tau + 1``.
    After the last step everything that has arrived by then is told and, if the horizon is
    used up, the run is finished.

    Args:
        optimizer: fresh, on the problem's points.
        problem: the truth.
        delay: the law of the delays; may be None if ``delays`` is given.
        steps: how many asks, at least 1.
        seed: of delays and noise; the same for every optimizer.
        delays: delays step for step instead of drawn ones, whole, ``steps``.
        noise: noise step for step, added to f, instead of drawn noise, ``steps``.

    Raises:
        InputError: if an argument is malformed, or the optimizer plays on other points.
        HorizonError: if the optimizer's horizon is shorter than ``steps``.
    """
    steps = validation.whole(steps, "steps", 1)
    seed = validation.seed(seed)
    horizon = optimizer.horizon
    left = steps if horizon is None else horizon - len(optimizer.trials)
    if steps > left:
        raise HorizonError(
            f"{steps} steps were requested and {left} of the optimizer's horizon of {horizon} are "
            "left."
        )
    points = problem.points
    if not torch.equal(optimizer.domain.like.cpu(), points.cpu()):
        raise InputError("The optimizer must be made on the problem's points, problem.domain.")
    if delays is not None:
        tau = check_delays(delays, steps)
    elif isinstance(delay, DelayLaw):
        tau = check_delays(delay.sample(steps, torch.Generator().manual_seed(seed)), steps)
    else:
        raise InputTypeError(f"delay must be a delay law, got {type(delay).__name__}.")
    if noise is None:
        generator = torch.Generator().manual_seed(seed ^ NOISE_STREAM)
        noise = problem.noise_std * torch.randn(steps, dtype=torch.double, generator=generator)
    elif not isinstance(noise, Tensor) or noise.shape != (steps,):
        got = tuple(noise.shape) if isinstance(noise, Tensor) else type(noise).__name__
        raise InputError(f"noise must be a tensor of shape {steps}, one per step, got {got}.")
    elif not torch.isfinite(noise).all():
        raise InputError("noise must be finite.")
    index = torch.empty(steps, dtype=torch.long)
    value = torch.empty(steps, dtype=torch.double)
    f = problem.values.double().cpu()
    arrivals: list[tuple[int, int, float]] = []  # (step after which it is known, id, value)
    told = 0
    for step in range(1, steps + 1):
        told += _tell_arrived(optimizer, arrivals, step - 1)
        trial = optimizer.ask()
        row = trial.index
        assert row is not None  # the domain is finite
        index[step - 1] = row
        value[step - 1] = f[row] + noise[step - 1]
        heapq.heappush(arrivals, (step + int(tau[step - 1]), trial.id, value[step - 1].item()))
    told += _tell_arrived(optimizer, arrivals, steps)
    if len(optimizer.trials) == horizon:
        optimizer.finish()
    regret = problem.regret(optimizer.maximize).double().cpu()[index].cumsum(0)
    return History(index=index, value=value, delay=tau.cpu(), regret=regret, told=told)


def _tell_arrived(optimizer: Optimizer, arrivals: list[tuple[int, int, float]], step: int) -> int:
    told = 0
    while arrivals and arrivals[0][0] <= step:
        _, trial_id, value = heapq.heappop(arrivals)
        optimizer.tell(trial_id, value)
        told += 1
    return told
