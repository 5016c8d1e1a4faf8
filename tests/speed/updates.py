"""Answers that are told one by one against models built anew."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from botorch_delay.gp.delayed_gp import DelayedGP
from speed.clocks import Timed, interleaved, timed
from speed.peers import (
    NOISE_VAR,
    botorch_at_its_best,
    single_task_gp,
    squared_exponential,
    uniform,
    wave,
)
from speed.rows import NUMBER, VALUES_WITHIN, Check, Reach, Row, same_values

Moments = tuple[Tensor, Tensor]


def answers(*, answered: int, pending: int, updates: int, told: int) -> list[Row]:
    """One more answer, until the model predicts at a point with it.

    Args:
        answered: answers beforehand, n.
        pending: points in flight, p, whose answers come in any order.
        updates: answers that are timed, one after the other; at most ``pending``.
        told: answers told to an empty model, which is then compared with one built anew.
    """
    X = uniform(answered + pending, 2)
    kernel = squared_exponential(0.2, X)
    Y = wave(X)
    order = torch.randperm(pending, generator=torch.Generator().manual_seed(1)) + answered
    at = uniform(1, 2, seed=2)
    with botorch_at_its_best():
        return [
            *_in_order(kernel, X, Y, answered, updates, at),
            *_out_of_order(kernel, X, Y, answered, order[:updates], at, counted=False),
            *_out_of_order(kernel, X, Y, answered, order[:updates], at, counted=True),
            _after_many(told, pending),
        ]


def _in_order(
    kernel: Kernel, X: Tensor, Y: Tensor, answered: int, updates: int, at: Tensor
) -> list[Row]:
    model = _delayed(kernel, X[:answered], Y[:answered])
    _moments(model, at)
    times: dict[str, list[Timed]] = {"ours": [], "anew": [], "botorch": []}
    alone: list[Timed] = []
    errors = []
    for n in range(answered, answered + updates):

        def update(n: int = n, model: DelayedGP = model) -> tuple[DelayedGP, Moments]:
            told = timed(lambda: model.with_answer(X[n], Y[n]))
            alone.append(told)
            return told.result, _moments(told.result, at)

        def anew(n: int = n) -> Moments:
            return _moments(_delayed(kernel, X[: n + 1], Y[: n + 1]), at)

        def botorch(n: int = n) -> Moments:
            return _moments(single_task_gp(kernel, X[: n + 1], Y[: n + 1]), at)

        found = _note(times, {"ours": update, "anew": anew, "botorch": botorch})
        model, moments = found["ours"]
        errors.append(max(_error(moments, found[peer]) for peer in ("anew", "botorch")))
    return _rows(f"an answer after {answered:,}, in order", times, alone, max(errors))


def _out_of_order(
    kernel: Kernel, X: Tensor, Y: Tensor, answered: int, order: Tensor, at: Tensor, counted: bool
) -> list[Row]:
    """With ``counted``, predictions include the variance that counts pending points."""
    predict = _fantasy if counted else _moments
    model = _delayed(kernel, X[:answered], Y[:answered], X[answered:])
    predict(model, at)
    times: dict[str, list[Timed]] = {"ours": [], "anew": [], "botorch": []}
    alone: list[Timed] = []
    errors = []
    for told in range(1, len(order) + 1):
        here = torch.cat([torch.arange(answered), order[:told]])
        left = torch.ones(len(X), dtype=torch.bool)
        left[here] = False
        new = int(order[told - 1])

        def update(new: int = new, model: DelayedGP = model) -> tuple[DelayedGP, Moments]:
            told = timed(lambda: model.with_answer(X[new], Y[new]))
            alone.append(told)
            return told.result, predict(told.result, at)

        def anew(here: Tensor = here, left: Tensor = left) -> Moments:
            return predict(_delayed(kernel, X[here], Y[here], X[left]), at)

        def botorch(here: Tensor = here) -> Moments:
            mean, variance = _moments(single_task_gp(kernel, X[here], Y[here]), at)
            if counted:
                _, variance = _moments(single_task_gp(kernel, X, torch.zeros_like(Y)), at)
            return mean, variance

        found = _note(times, {"ours": update, "anew": anew, "botorch": botorch})
        model, moments = found["ours"]
        errors.append(max(_error(moments, found[peer]) for peer in ("anew", "botorch")))
    work = f"an answer after {answered:,}, out of order, {len(X) - answered} pending"
    work += " and counted" if counted else ""
    return _rows(work, times, alone, max(errors))


def _after_many(told: int, pending: int) -> Row:
    """Answers told to an empty model, out of order, with points pending throughout."""
    X = uniform(told + pending, 2, seed=3)
    kernel, Y = squared_exponential(0.2, X), wave(X)
    at = uniform(200, 2, seed=4)
    model = _delayed(kernel, X[:0], Y[:0])
    waiting: list[int] = []
    generator = torch.Generator().manual_seed(5)
    for new in range(told + pending):
        model = model.with_pending(X[new])
        waiting.append(new)
        if new % 20 == 0:
            _fantasy(model, at[:1])  # so that its factors are there to be handed on
        if len(waiting) > pending:
            i = waiting.pop(int(torch.randint(len(waiting), (), generator=generator)))
            model = model.with_answer(X[i], Y[i])
    left = torch.zeros(len(X), dtype=torch.bool)
    left[waiting] = True
    rebuilt = _delayed(kernel, X[~left], Y[~left], X[left])
    botorch = single_task_gp(kernel, X[~left], Y[~left])
    error = max(
        _error(_fantasy(model, at), _fantasy(rebuilt, at)),
        _error(_moments(model, at), _moments(rebuilt, at)),
        _error(_moments(model, at), _moments(botorch, at)),
    )
    return Row(
        f"largest difference after {told:,} answers",
        error,
        unit=NUMBER,
        reach=Reach(most=VALUES_WITHIN),
        checks=(Check("means and variances", error, VALUES_WITHIN),),
        note="of means and variances, from a model built anew and from BoTorch's",
    )


def _rows(work: str, times: dict[str, list[Timed]], alone: list[Timed], error: float) -> list[Row]:
    checks = (Check("means and variances", error, VALUES_WITHIN),)
    told = Timed.joined(alone)
    joined = {name: Timed.joined(parts) for name, parts in times.items()}
    ours = joined["ours"]
    note = (
        f"to the prediction at one point; with_answer alone {1e3 * told.median:.3g} ms, "
        f"{1e3 * told.median_cpu:.3g} ms of processor time; the slowest update "
        f"{1e3 * max(ours.seconds):.3g} ms"
    )
    rows = [
        Row(
            f"{work}, and a prediction",
            ours.median,
            peer=joined[peer].median,
            against=against,
            cpu=ours.median_cpu,
            peer_cpu=joined[peer].median_cpu,
            checks=checks,
            note=note,
        )
        for peer, against in (("anew", "DelayedGP anew"), ("botorch", "SingleTaskGP anew"))
    ]
    # A model built anew factorizes at its first prediction: the time of a prediction alone, as
    # measured for ours, is subtracted from both.
    anew = joined["anew"]
    alone_row = Row(
        work,
        told.median,
        peer=max(anew.median - (ours.median - told.median), 0.0),
        against="DelayedGP anew",
        cpu=told.median_cpu,
        peer_cpu=max(anew.median_cpu - (ours.median_cpu - told.median_cpu), 0.0),
        reach=Reach(ratio=20.0),
        checks=checks,
        note="without the prediction",
    )
    return [alone_row, *rows]


def _note(times: dict[str, list[Timed]], work: dict[str, Callable[[], Any]]) -> dict[str, Any]:
    found = interleaved(work, 1)
    for name, one in found.items():
        times[name].append(one)
    return {name: one.result for name, one in found.items()}


def _delayed(kernel: Kernel, X: Tensor, Y: Tensor, pending: Tensor | None = None) -> DelayedGP:
    return DelayedGP(
        X, Y.unsqueeze(-1), noise_var=NOISE_VAR, covar_module=kernel, X_pending=pending
    )


def _moments(model: Any, at: Tensor) -> Moments:
    posterior = model.posterior(at)
    return posterior.mean, posterior.variance


def _fantasy(model: DelayedGP, at: Tensor) -> Moments:
    posterior = model.fantasy_posterior(at)
    return posterior.mean, posterior.variance


def _error(ours: Moments, theirs: Moments) -> float:
    return max(same_values("", a, b).error for a, b in zip(ours, theirs, strict=True))
