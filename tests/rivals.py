"""Naive dense transcriptions of the other methods: every posterior is solved anew.

Time is counted as in the simulator: the answer of ask s (from 0) with delay tau is known to
every ask after ``s + tau``.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable

import numpy as np
from oracle import Array, KernelFunction, posterior

TIE = 1e-8


def first_of_largest(scores: Array, scale: float = 0.0) -> int:
    """The tie rule: the lowest index whose score equals the largest up to rounding."""
    top = scores.max()
    return int(np.flatnonzero(scores >= top - TIE * max(abs(top), scale))[0])


def index_method(
    k: KernelFunction,
    points: Array,
    f: Array,
    *,
    asks: int,
    delays: Array,
    noise: Array,
    noise_var: float,
    pending: str,
    factor: float = 0.0,
    path: Callable[[int], tuple[Array, Array]] | None = None,
    worst: float = 0.0,
    max_delay: int | None = None,
    inflate: bool = False,
) -> list[int]:
    """UCB with ``factor`` times the deviation, or Thompson sampling with prior paths.

    ``path(n)`` gives for ask n a prior path at all points, and one standard normal number for
    each point.
    """
    asked: list[int] = []
    widths: list[float] = []
    scale = max(math.sqrt(k(x[None], x[None])[0, 0]) for x in points)
    for t in range(asks):
        known = [s for s in range(t) if s + delays[s] < t]
        values = {s: f[asked[s]] + noise[s] for s in known}
        if pending == "censor":
            late = [s for s in known if max_delay is not None and delays[s] > max_delay]
            values = {s: values[s] if s in known and s not in late else worst for s in range(t)}
        X = points[[asked[s] for s in values]]
        mean, variance, _ = posterior(k, X, np.array(list(values.values())), noise_var, points)
        everything = range(t) if pending == "hallucinate" else values
        places = [asked[s] for s in everything]
        _, variance, _ = posterior(k, points[places], np.zeros(len(places)), noise_var, points)
        sigma = np.sqrt(variance.clip(0))
        if path is None:
            scores = mean + (factor + sum(widths)) * sigma
        else:
            prior, normal = path(t)
            distinct = sorted(set(places))
            counts = np.array([places.count(i) for i in distinct])
            residual = prior[distinct] + np.sqrt(noise_var / counts) * normal[distinct]
            smooth, _, _ = posterior(k, points[distinct], residual, noise_var / counts, points)
            scores = mean + factor * (prior - smooth)
        asked.append(first_of_largest(scores, scale))
        if inflate:
            assert max_delay is not None
            widths = [*widths, sigma[asked[-1]]][-max_delay:]
    return asked


def threds(
    k: KernelFunction,
    points: Array,
    f: Array,
    *,
    asks: int,
    delays: Array,
    noise: Array,
    noise_var: float,
    half_width: Callable[[Array, Array], Array],
    interval: tuple[float, float],
    patience: int,
) -> list[int]:
    """GP-ThreDS with one test for all descendants. ``half_width(X, sigma)`` gives the bounds."""
    levels = min(points.shape[1], 4)

    def split(rows: list[int]) -> tuple[list[int], list[int]]:
        box = points[rows]
        column = int((box.max(axis=0) - box.min(axis=0)).argmax())
        ordered = sorted(rows, key=lambda i: (points[i, column], i))
        half = (len(rows) + 1) // 2
        return sorted(ordered[:half]), sorted(ordered[half:])

    def descend(region: list[int], row: int) -> list[int]:
        for _ in range(levels):
            if len(region) > 1:
                left, right = split(region)
                region = left if row in left else right
        return region

    a, b = interval
    regions, slack = [list(range(len(points)))], 0.2 * (b - a)
    asked: list[int] = []
    while True:
        found: list[list[int]] = []
        tau = (a + b) / 2
        for region in regions:
            mine: list[int] = []
            mark = 0
            accepted: list[list[int]] = []
            while True:
                left = [i for i in region if not any(i in node for node in accepted)]
                t = len(asked)
                if not left:
                    break
                seen = [s for s in mine if s + delays[s] < t]
                if not seen:
                    middle = (points[left].min(axis=0) + points[left].max(axis=0)) / 2
                    distance = ((points[left] - middle) ** 2).sum(axis=1)
                    choice = left[first_of_largest(-distance, distance.max())]
                else:
                    X = points[[asked[s] for s in seen]]
                    y = np.array([f[asked[s]] + noise[s] for s in seen])
                    mean, variance, _ = posterior(k, X, y, noise_var, points[left])
                    half = half_width(X, np.sqrt(variance.clip(0)))
                    best = first_of_largest(mean - half)
                    if (mean + half).max() < tau - slack:
                        break
                    if (mean - half)[best] > tau or len(seen) - mark >= patience:
                        accepted.append(descend(region, left[best]))
                        mark = len(seen)
                        continue
                    choice = left[first_of_largest(mean + half)]
                if t == asks:
                    return asked
                asked.append(choice)
                mine.append(t)
            found += accepted
        if found:
            a, regions = tau - slack, found
            slack /= 2
        else:
            shift = (b - a) / 2
            a, b = a - shift, b - shift


def queued(
    base_ask: Callable[[], int],
    base_tell: Callable[[float], None],
    f: Array,
    *,
    asks: int,
    delays: Array,
    noise: Array,
) -> list[int]:
    """QPM-D: queues of answers by arm; the base waits while the queue of its arm is empty."""
    queues: list[deque[float]] = [deque() for _ in f]
    asked: list[int] = []
    arm = base_ask()
    for t in range(asks):
        arrived = [s for s in range(t) if s + delays[s] == t - 1]
        for s in arrived:
            queues[asked[s]].append(f[asked[s]] + noise[s])
        while queues[arm]:
            base_tell(queues[arm].popleft())
            arm = base_ask()
        asked.append(arm)
    return asked
