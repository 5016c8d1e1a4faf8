"""Certificates: bounds on the regret of a run so far, and on the gap of its recommendation.

:mod:`botorch_delay.confidence.anytime` proves that f is in ellipsoids ``||f - mu||_V <= b``, one
for each ridge a and each of two ways to count the noise of the answers: by single asks, with n the
number of asks, and by groups of asks, with n the number of groups and w the scatter of answers
within them. Each way has ``delta / 2``, so all hold with probability 1 - delta, whatever was asked,
however late answers came and whichever are missing. With ``n_i`` asks at x_i, T in all,

    regret = max_x [T f(x) - sum_i n_i f(x_i)],

a maximum of linear functionals l_x of f. In the ellipsoid e each is at most
``l_x(mu_e) + b_e sqrt(l_x l_x' sigma_e^2)``; the root is the posterior deviation of ``l_x(f)``.

*Theorem.* With probability 1 - delta, at all times at once,
``regret <= max_x min_e [l_x(mu_e) + b_e sqrt(l_x l_x' sigma_e^2)]``, the maximum over all x with
``U(x) >= max L`` for the bounds U, L of all ellipsoids. *Proof.* By (iii) and (iv) there,
``|l(f) - l(mu_e)| <= ||f - mu_e|| ||l||*``: l is the inner product with its representer, whose
squared norm is l l' applied to the reproducing kernel sigma_e^2(., .). That is so for every l and e
on one event, so the minimum over e and the maximum over x cost no probability. The maximiser
x* has ``U(x*) >= f(x*) >= f(z) >= L(z)`` for all z, so it is among those x. QED

The gap of a point r is bounded in the same way, with a single ask, at r. Answers with a noise scale
above s are left out of both counts: the supermartingales there are products over the other noises.

n counts the asks (or groups) begun when the last answer in use came, see *Order* there: asks made
after it do not widen the bounds.

With all ridges instead of a few, the bound by one way of counting is the exact maximum of the
functional: f has two convex quadratic constraints, on its norm and on the noise, and a is the ratio
of their Lagrange multipliers. Multipliers that mix both ways, and sums of the bounds of single
asks, may give a few hundredths less in short runs, and are not tried.

On a box each x of a cell around z has ``f(x) <= f(z) + C d_k(x, z)``, so that ``T C`` times the
cell's radius in the kernel's distance is added to the bound at z; cells are halved until the
largest of these sums is at most a share ``SLACK`` above the largest bound at a centre.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from botorch_delay.confidence.anytime import Ellipsoids, doubling_groups
from botorch_delay.confidence.bounds import Constants
from botorch_delay.confidence.nets import largest_on_box
from botorch_delay.domains.domain import Domain
from botorch_delay.elimination.active_set import surviving
from botorch_delay.exceptions import NotSupportedError
from botorch_delay.gp.posterior import Data
from botorch_delay.gp.surrogate import Surrogate
from botorch_delay.history.answers import Answers
from botorch_delay.history.trials import Attached, Trial

# Noise variances with a smaller relative difference are equal: one may be in single precision.
ROUNDING = 1e-6
# Boxes with more columns than this need too many cells.
MAX_COLUMNS = 3
# The radius of cells may raise the bound on a box by at most this share.
SLACK = 0.01
# Of the heuristic with a learned kernel: candidates at which f is sampled, and posterior samples.
CANDIDATES, SAMPLES = 512, 4096


@dataclass(frozen=True)
class Certificate:
    """What is certified about a run so far.

    Attributes:
        regret: a bound on the cumulative regret of the asks, with probability ``1 - delta`` at all
            times at once, in units of the values; inf where nothing is certified.
        gap: on the same event, a bound on how far f at the recommended point is below its largest
            value (above its smallest, where small values are good); inf before an answer.
        refuted: whether the present answers contradict the assumptions; then nothing is certified.
            Only BPE-Delay's ``certificate`` under valid bounds remembers earlier contradictions; a
            later certificate is right if the assumptions are.
        norm_at_least: a lower bound on the RKHS norm of f, by the answers; ``refuted`` may hold
            even where it is below ``norm_bound``.
        delta: probability with which any of these bounds may fail.
        recommended: the point that ``gap`` is for; None before an answer, and for past asks.
        norm_bound: C, the assumed bound on the RKHS norm of f.
        noise_std: s, the assumed sub-Gaussian scale of the noise.
        asks: how many asks it covers.
        answers: how many answers it uses.
        proved: whether the bounds are proved; with a learned kernel ``gap`` is a heuristic.
        assumptions: what it rests on; to be judged by the user.
        made: how it was computed, in words.
    """

    regret: float
    gap: float
    refuted: bool
    norm_at_least: float
    delta: float
    recommended: tuple[float, ...] | None
    norm_bound: float
    noise_std: float
    asks: int
    answers: int
    proved: bool
    assumptions: tuple[str, ...]
    made: str

    def __str__(self) -> str:
        sure = f"with probability {1.0 - self.delta:g}"
        if not self.proved:
            head = f"A heuristic, {sure} under the learned kernel: "
            head += f"the recommended point is within {self.gap:.4g} of the best. It assumes:"
        elif self.refuted:
            needed = "no function of that norm fits the answers"
            if self.norm_at_least > self.norm_bound:
                needed = f"the answers need one of at least {self.norm_at_least:.4g}"
            head = f"Nothing is certified: norm_bound is {self.norm_bound:.4g}, and {needed}. "
            head += "It assumed:"
        else:
            gap = f", the recommended point is within {self.gap:.4g} of the best"
            head = (
                f"Certified {sure}: the regret of the {self.asks} asks so far is at most "
                f"{self.regret:.4g}{'' if self.recommended is None else gap}. "
                f"The answers need a norm of at least {self.norm_at_least:.4g}; "
                f"norm_bound is {self.norm_bound:.4g}. It assumes:"
            )
        return "\n".join([head, *(f"- {line}" for line in self.assumptions), f"Made {self.made}."])


def certify(
    domain: Domain,
    kernel: Kernel,
    trials: Sequence[Trial],
    recommended: Tensor | None,
    constants: Constants,
    delta: float,
    *,
    sign: float,
) -> Certificate:
    """The certificate of ``trials``, all asks from the first on; the kernel takes points unencoded.

    NotSupportedError on a box of over ``MAX_COLUMNS`` columns, or without a known Lipschitz bound.
    """
    if domain.count is None and domain.dim > MAX_COLUMNS:
        raise NotSupportedError(
            f"Certificates on a box need a net of points, feasible in {MAX_COLUMNS} columns at "
            f"most; the box has {domain.dim}. Use a FiniteDomain, such as space.grid(...)."
        )
    told = [trial for trial in trials if trial.value is not None]
    used = [trial for trial in told if not is_noisier(trial, constants.noise_std)]
    everything = Answers.of(domain, sign, trials)
    both = _ellipsoids(kernel, trials, everything, constants.noise_std, delta)
    norm, bound = max(each.norm_at_least for each in both), constants.norm_bound
    rivals, refuted, where = None, norm > bound, "cells of the box"
    if domain.count is not None:
        ends = [each.bounds(domain.like, bound) for each in both]
        lower = torch.maximum(*(low for low, _ in ends))
        upper = torch.minimum(*(high for _, high in ends))
        rivals = domain.on_cpu[surviving(lower, upper)]
        refuted |= bool((lower > upper).any()) or not len(rivals)
        where = f"{len(rivals)} of {domain.count} points"

    def excess(asked: Tensor, counts: Tensor) -> float:
        """A bound on ``max_x sum_i counts_i (f(x) - f(asked_i))``, at least 0."""

        def at(X: Tensor) -> Tensor:
            return torch.minimum(*(each.bounds(X, bound, asked, counts)[1] for each in both))

        if rivals is not None:
            return max(float(at(rivals).max()), 0.0)
        slope = bound * float(counts.sum())
        return max(largest_on_box(at, slope, kernel, domain.bounds, SLACK), 0.0)

    regret = gap = math.inf
    if not refuted:
        asked, counts = torch.unique(everything.X, dim=0, return_counts=True)
        regret = excess(asked, counts.double()) if len(trials) else 0.0
        if recommended is not None:
            gap = excess(recommended.unsqueeze(0), torch.ones(1).to(recommended))
    where_recommended = None if recommended is None else tuple(recommended.tolist())
    return Certificate(
        *(regret, gap, refuted, norm, delta, where_recommended),
        *(bound, constants.noise_std, len(trials), len(used)),
        proved=True,
        assumptions=_assumptions(constants, len(told) - len(used), trials),
        made=f"from {len(used)} answers to {len(trials)} asks, without attached results: "
        f"{'the smallest bound over all ridges' if len(used) else 'the bound by the norm alone'}"
        f", at its maximum over {where}",
    )


def _ellipsoids(
    kernel: Kernel, trials: Sequence[Trial], asked: Answers, noise_std: float, delta: float
) -> list[Ellipsoids]:
    """Bounds from single answers and from groups, with half of delta each, given all asks."""
    groups, sizes = doubling_groups(asked.group)
    used = [t.value is not None and not is_noisier(t, noise_std) for t in trials]
    known = torch.tensor(used, dtype=torch.bool)
    complete = known & (groups.bincount(known.long(), len(trials))[groups] == sizes)
    scale = noise_std * (1.0 + ROUNDING)  # covers every answer that is not noisier
    found = []
    for rows, sets in ((known, torch.arange(len(trials))), (complete, groups)):
        kept = rows.nonzero().flatten().tolist()
        asks = max((trials[row].known_step or 0 for row in kept), default=0)
        begun = len(sets[:asks].unique())
        found.append(Ellipsoids(kernel, asked.at(rows), scale, begun, delta / 2.0, sets[rows]))
    return found


def is_noisier(result: Trial | Attached, noise_std: float) -> bool:
    """Whether an answer was told with a noise variance above ``noise_std`` squared."""
    return result.noise_var is not None and result.noise_var > noise_std**2 * (1.0 + ROUNDING)


def has_other_noise(result: Trial | Attached, noise_var: float) -> bool:
    """Whether an answer was told with a noise variance other than ``noise_var``."""
    return result.noise_var is not None and abs(result.noise_var / noise_var - 1.0) > ROUNDING


def _assumptions(constants: Constants, noisier: int, trials: Sequence[Trial]) -> tuple[str, ...]:
    assumptions = [
        f"the kernel is right, and the RKHS norm of f is at most {constants.norm_bound:g}",
        f"noise is sub-Gaussian of scale {constants.noise_std:g} given all that came before, the "
        "ask's own point included; delays, failures and which answers are missing may depend on "
        "anything",
    ]
    if noisier:
        assumptions.append(
            f"whether an answer was told with more noise ({noisier} so far, left out here) does "
            "not depend on its noise, given all that came before"
        )
    if corrected := sum(bool(trial.corrections) for trial in trials):
        assumptions.append(
            f"every correction (so far of {corrected} trials) says what the evaluation gave"
        )
    return tuple(assumptions)


@torch.no_grad()
def plausible(
    surrogate: Surrogate,
    data: Data,
    candidates: Tensor,
    recommended: Tensor,
    delta: float,
    counts: tuple[int, int],
) -> Certificate:
    """A heuristic certificate under a learned kernel, an (eps, delta) rule as in Wilson (2024).

    ``gap`` is the 1 - delta quantile, over posterior samples, of ``max_x f(x) - f(r)``, with x
    among the ``candidates`` (``N x d``) with the largest upper bounds and r the point
    ``recommended``; ``counts`` are the numbers of asks and answers.
    """
    posterior = surrogate.posterior(data)
    moments = posterior.at(candidates)
    upper = moments.mean + 3.0 * moments.deviation
    best = upper.topk(min(CANDIDATES, len(upper))).indices
    places = torch.cat([recommended.unsqueeze(0), candidates[best]])
    samples = posterior.samples(places, SAMPLES, torch.Generator().manual_seed(0))
    f = surrogate.warping.inverse(samples)
    gap = float((f.amax(dim=1) - f[:, 0]).quantile(1.0 - delta)) if surrogate.scaled else math.inf
    asks, answers = counts
    return Certificate(
        *(math.inf, gap, False, 0.0, delta, tuple(recommended.tolist())),
        *(math.inf, math.inf, asks, answers),
        proved=False,
        assumptions=(
            "the learned kernel, noise and warping are right, which nothing proves",
            "f is a draw of the Gaussian process that was learned",
        ),
        made=f"from {SAMPLES} samples of the posterior at {len(best)} points",
    )
