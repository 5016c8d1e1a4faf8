"""Bounds and elimination on many candidates against the triangular solves they need."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from botorch_delay.confidence.bounds import (
    Confidence,
    Evidence,
    FixedBeta,
    HalfWidth,
    RKHSConfidence,
)
from botorch_delay.elimination.active_set import surviving
from botorch_delay.gp.factor import factorize
from botorch_delay.gp.kernels import covariance, prior_variance
from botorch_delay.gp.posterior import Data, Moments, Posterior
from speed.clocks import PeakMemory, fastest, interleaved
from speed.isolation import isolated
from speed.peers import NOISE_VAR, squared_exponential, uniform, wave
from speed.rows import (
    BYTES,
    VALUES_WITHIN,
    Check,
    Reach,
    Row,
    nothing_wrong,
    same_values,
)

CHUNKS = (128, 512, 2048, 8192, 32_768)
SAMPLE = 1000
# Most memory beyond the points: vectors of N numbers, and a fixed number of bytes.
VECTORS, FIXED = 32, 2**26

CONFIDENCES: dict[str, Confidence] = {
    "FixedBeta": FixedBeta(6.0),
    "tight RKHSConfidence": RKHSConfidence(norm_bound=2.0, noise_std=NOISE_VAR**0.5, tight=True),
}

TWICE = (CONFIDENCES["tight RKHSConfidence"],)  # uses the weights of answers: a second solve


def elimination(*, n_candidates: int, answered: int, repeats: int) -> list[Row]:
    """Bounds at every candidate and what they leave active.

    Each kind of bounds has a process of its own.

    Args:
        n_candidates: number of candidates, N.
        answered: number of answers, m.
        repeats: how often ours and the solves are timed.
    """
    rows = []
    for name, confidence in CONFIDENCES.items():
        found = isolated(
            eliminate_alone,
            confidence=name,
            n_candidates=n_candidates,
            answered=answered,
            repeats=repeats,
        )
        checks = tuple(Check(*check) for check in found["checks"])
        solves = "two triangular solves" if confidence in TWICE else "the triangular solve"
        rows += [
            Row(
                f"{name}, {answered} answers, {n_candidates:,} candidates",
                found["ours"][0],
                peer=found["solves"][0],
                cpu=found["ours"][1],
                peer_cpu=found["solves"][1],
                against=f"{solves}, {found['chunk']} columns at a time",
                reach=Reach(ratio=0.5),
                checks=checks,
                note=f"{found['left']:,} stay active",
            ),
            Row(
                f"{name}: peak memory",
                found["bytes"],
                unit=BYTES,
                peer=8.0 * answered * n_candidates,
                against="all right-hand sides at once, by their size",
                reach=Reach(most=8.0 * VECTORS * n_candidates + FIXED),
                checks=checks,
                note=f"bounded: {VECTORS} vectors of N and {FIXED // 2**20} MiB",
            ),
        ]
    return rows


def eliminate_alone(
    *, confidence: str, n_candidates: int, answered: int, repeats: int
) -> dict[str, Any]:
    """Times of elimination and of its solves, its peak memory, and checks at a sample."""
    rule = CONFIDENCES[confidence]
    points = uniform(n_candidates, 6)
    kernel = squared_exponential(0.5, points)
    rows = torch.randperm(n_candidates, generator=torch.Generator().manual_seed(1))[:answered]
    y = wave(points[rows])
    evidence = Data.single(points[rows], y, torch.full_like(y, NOISE_VAR))
    eliminate(kernel, evidence, points[:5000], rule)
    with PeakMemory() as memory:
        eliminate(kernel, evidence, points, rule)
    factor, _ = factorize(covariance(kernel, evidence.X, evidence.X), evidence.noise_var)
    chunks = [chunk for chunk in CHUNKS if chunk < 2 * n_candidates]
    right = {chunk: covariance(kernel, evidence.X, points[:chunk]) for chunk in chunks}
    twice, few = rule in TWICE, min(n_candidates, max(CHUNKS))
    chunk = fastest({chunk: partial(solves, factor, right[chunk], few, twice) for chunk in chunks})
    found = interleaved(
        {
            "ours": partial(eliminate, kernel, evidence, points, rule),
            "solves": partial(solves, factor, right[chunk], n_candidates, twice),
        },
        repeats,
    )
    posterior, lower, upper, stay = found["ours"].result
    part = slice(0, n_candidates, max(n_candidates // SAMPLE, 1))
    dense = _dense_posterior(kernel, evidence, points[part], posterior, part)
    half = width_of(rule, kernel, evidence, n_candidates).at(dense)
    cutoff = lower.max()
    clear = (dense.mean + half - cutoff).abs() > VALUES_WITHIN
    checks = (
        same_values("lower", lower[part], dense.mean - half),
        same_values("upper", upper[part], dense.mean + half),
        nothing_wrong("active", clear & (stay[part] != (dense.mean + half >= cutoff))),
    )
    return {
        "ours": (found["ours"].median, found["ours"].median_cpu),
        "solves": (found["solves"].median, found["solves"].median_cpu),
        "chunk": chunk,
        "bytes": memory.bytes,
        "left": int(stay.sum()),
        "checks": [dataclasses.astuple(check) for check in checks],
    }


def width_of(rule: Confidence, kernel: Kernel, evidence: Data, n: int) -> HalfWidth:
    """The half-width of the bounds for one of ten rounds, at ``n`` candidates."""
    return rule.fixed_design(Evidence(kernel, evidence, NOISE_VAR**-0.5, 0.1 / 20, n))


def eliminate(
    kernel: Kernel, evidence: Data, points: Tensor, rule: Confidence
) -> tuple[Moments, Tensor, Tensor, Tensor]:
    """What an optimizer does as it closes a round: the posterior, both bounds, and what stays."""
    width = width_of(rule, kernel, evidence, len(points))
    posterior = Posterior(kernel, evidence).at(points, weights=width.needs_weights)
    half = width.at(posterior)
    lower, upper = posterior.mean - half, posterior.mean + half
    return posterior, lower, upper, surviving(lower, upper)


def solves(factor: Tensor, right: Tensor, n: int, twice: bool) -> None:
    """Only the triangular solves: kernel values are given, the same for every chunk."""
    chunk = right.shape[1]
    for start in range(0, n, chunk):
        V = torch.linalg.solve_triangular(factor, right[:, : n - start], upper=False)
        if twice:
            torch.linalg.solve_triangular(factor.mT, V, upper=True)


def _dense_posterior(
    kernel: Kernel, evidence: Data, X: Tensor, like: Moments, part: slice
) -> Moments:
    """The posterior from its dense formulas, with the same allowances for rounding."""
    K = covariance(kernel, evidence.X, evidence.X) + torch.diag(evidence.noise_var)
    cross = covariance(kernel, evidence.X, X)
    z = torch.linalg.solve(K, cross)
    return Moments(
        mean=z.mT @ evidence.y,
        variance=(prior_variance(kernel, X) - (z * cross).sum(dim=0)).clamp_min(0.0),
        noise_norm=(z.square() * evidence.spread.unsqueeze(-1)).sum(dim=0).sqrt(),
        penalty=(z.square() * evidence.noise_var.unsqueeze(-1)).sum(dim=0),
        rounding=like.rounding[part],
        mean_rounding=like.mean_rounding[part],
    )
