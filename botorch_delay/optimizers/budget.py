"""A regret budget: any rule may choose asks as long as it pays for the regret that it risks.

Let B be BPE-Delay's own regret bound for its plan on the whole set, without any wait: q_r asks in
round r, each charged at most

    rate_1 = D = C max d_k,    rate_{r+1} = min(rate_r, 4 max_x h_r(x)),

where d_k is the distance of two points in the kernel's metric, and h_r the half-width from the
greedy design of q_r points on the whole set: both are known before the first ask. Bounds U, L from
all answers (:class:`CandidateEllipsoids`) hold at all times at once, with a probability of
1 - delta / 4. An ask at x is billed min(D, max U - L(x)), a bound on its regret, and every bill is
computed anew when the bounds tighten. The rule's point is asked if

    bills so far + its bill + what BPE-Delay may still cost - W <= F B;

otherwise the next design point of BPE-Delay is asked, or, while its round waits for answers, the
rule's point. W is the sum of the bills of the *extra* asks, *as priced when they were asked*: those
that did not pass the test, but were made because a round waited, and those of points that had
failed or been given up before. (``RoundRecord.extra_asks`` also counts asks that passed the test
while a round waited.)

*Theorem.* With probability ``1 - delta / 2``, whatever the delays, the regret after T asks is at
most ``max(F B, B') + W + E``. B' is B with the bounds' smaller share of delta. W is at most D u_T
for each round, if delays obey u_T and no trial fails or is given up: the delay is paid once, not F
times. E sums over rounds the amount by which 4 times the actual half-widths exceeds the rate above,
times the asks charged at that rate: the rates suppose the whole set and an answer to every design
point. The sum of all bills at present prices bounds the regret without B, W or E; the bound of
``certificate`` is usually smaller (:mod:`botorch_delay.optimizers.certificate`). The theorem is
vacuous where F B >= D T, as any T asks cost at most D T.

W keeps the prices at which the test above subtracted it. At present prices it would be smaller, but
the theorem is not proved with that smaller sum in its place.

*Proof.* The ellipsoid's bounds have the share delta / 4, those of the rounds delta / 4. On the
event that all bounds hold, every bill dominates the regret of its ask at all later times. Let t be
the last ask that passed the test; if there is none, the run is BPE-Delay's own. The regret of asks
1 to t is at most bills so far + bill. Of the later asks, those that are not extra continue
BPE-Delay's rounds in order, at most T - t of them, and cost at most what was reserved, plus E; the
extra ones cost what W counts, and W before t was subtracted in the test. Together F B + W + E. QED

In round r + 1 every point that is left has regret at most 4 max h_r: its own interval and that of
the maximiser overlap, and neither is wider than 2 max h_r.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from botorch_delay import validation
from botorch_delay.confidence.anytime import CandidateEllipsoids
from botorch_delay.confidence.bounds import Evidence
from botorch_delay.confidence.guarantee import BudgetTerms
from botorch_delay.design.greedy import greedy_max_variance
from botorch_delay.elimination.active_set import surviving
from botorch_delay.gp.kernels import covariance, prior_variance, rows_per_chunk
from botorch_delay.history.answers import Answers
from botorch_delay.history.point_status import row_of
from botorch_delay.history.trials import Ledger, Trial, TrialObserver, TrialState
from botorch_delay.optimizers.config import BPEConfig
from botorch_delay.optimizers.round_sequence import RoundSequence


class Budget(TrialObserver):
    """The most that the asks so far can have cost, and which asks the budget still allows."""

    def __init__(self, config: BPEConfig, ledger: Ledger, rounds: RoundSequence) -> None:
        constants = config.confidence.constants
        assert constants is not None
        assert config.fixed is not None
        assert config.budget_factor is not None
        self._config, self._factor = config, config.budget_factor
        self._ledger, self._rounds = ledger, rounds
        self._surrogate, self._constants = config.fixed, constants
        widest = _widest(config.fixed.covar_module, config.domain.like)
        self._largest = constants.norm_bound * widest
        self.extra_cost, self.extra_asks = 0.0, 0  # W so far, and how many asks it counts
        self._asks = torch.zeros_like(config.domain.like[:, 0], dtype=torch.double)
        self._plan()
        self._restart()

    def _plan(self) -> None:
        """Compute the plan for the present horizon; an error leaves the old plan in place."""
        assert self._config.horizon is not None
        rounds, horizon = self._rounds, self._config.horizon
        begun = [record.design_size for record in rounds.records]
        if rounds.open is not None:
            begun.append(rounds.open.design_size)
        sizes = self._config.round_rule().sizes(begun)
        full, rates = self._both_rates(sizes)
        self._horizon, self._sizes, self._rates = horizon, sizes, rates
        self.bound = _charge(self._sizes, full, 0, self._horizon)  # B
        self.own_bound = _charge(self._sizes, self._rates, 0, self._horizon)  # B'
        self.trivial = self._largest * self._horizon  # D T, the most that any T asks can cost

    def extended(self, before: int | None) -> None:
        self._plan()

    def corrected(self, trial: Trial, before: TrialState) -> None:
        self._restart()

    def _restart(self) -> None:
        """Compute the bounds from scratch, from the answers in the order of their asks."""
        kernel, points = self._surrogate.covar_module, self._config.domain.like
        delta = self._config.delta / 4.0
        self._bounds = CandidateEllipsoids(kernel, points, *self._constants, delta)
        self._told: list[tuple[int, float, int]] = []  # answers not yet in the bounds
        for trial in self._ledger.answered():
            self.settled(trial)

    @property
    def bounds(self) -> CandidateEllipsoids:
        """Bounds on f at every point, from all answers in the order in which they came."""
        for row, y, ask in self._told:
            self._bounds.tell(row, y, ask)
        self._told = []
        return self._bounds

    def terms(self) -> BudgetTerms:
        """The terms of the claim, with what has been spent so far."""
        records, current = self._rounds.records, self._rounds.open
        sizes = [record.design_size for record in records]  # design points asked, at most q_r
        if current is not None:
            sizes.append(min(len(current.slots), current.design_size))
        excess, rate = 0.0, self._rates[0]
        for record, size, planned in zip(records, sizes[1:], self._rates[1:], strict=False):
            if record.half_width is not None:
                rate = min(rate, 4.0 * record.half_width)
            excess += size * max(rate - planned, 0.0)
        bound = max(self._factor * self.bound, self.own_bound)
        return BudgetTerms(self._factor, self.bound, bound, self.extra_cost, excess, self.trivial)

    def asked(self, trial: Trial, data: Mapping[str, Any]) -> None:
        price = validation.real(data["price"], "price")
        self._asks[row_of(trial)] += 1.0
        if validation.flag(data["extra"], "extra"):
            self.extra_asks += 1
            self.extra_cost += price

    def settled(self, trial: Trial) -> None:
        if trial.value is not None:
            value = self._config.sign * trial.value
            self._told.append((row_of(trial), value, trial.known_step or 0))

    def active(self, rows: Tensor) -> Tensor:
        """Which rows of a LongTensor may be the best of them; all if the bounds exclude each."""
        if not len(rows):
            return rows
        upper, lower = self.bounds.upper[rows], self.bounds.lower[rows]
        kept = rows[surviving(lower, upper)]
        return kept if len(kept) else rows

    def affords(self, row: int, number: int, done: int) -> bool:
        """Whether an ask of ``row`` fits, with ``done`` design points of round ``number`` asked."""
        bills = self._bills()
        totals = [self._asks @ bills, bills[row], self.bounds.refuted]
        spent, price, refuted = torch.stack(totals).tolist()
        if refuted:
            return False
        left = self._horizon - len(self._ledger) - 1
        sizes = [*self._sizes[number - 1 : -1], 2 * self._horizon]
        future = _charge(sizes, self._rates[number - 1 :], done, left)
        return bool(spent + price + future - self.extra_cost <= self._factor * self.bound)

    def price(self, row: int) -> float:
        """The bill of an ask of a point: a bound on its regret."""
        return float(self._bills()[row])

    def _bills(self) -> Tensor:
        """The bill of an ask at each point, ``N``; bills only fall, as the bounds tighten."""
        gaps = self.bounds.upper.max() - self.bounds.lower
        return gaps.clamp(0.0, self._largest)

    def _both_rates(self, sizes: Sequence[int]) -> tuple[list[float], list[float]]:
        """The rate of each round, with the bounds' full share of delta and with half of it."""
        surrogate, points = self._surrogate, self._config.domain.like
        full, own = [self._largest], [self._largest]
        share = self._rounds.bounds(1).delta  # the same in every round
        kernel, noise_var = surrogate.covar_module, surrogate.noise_var
        longest = max([1, *sizes[:-1]])  # a round may have had no design points
        design = greedy_max_variance(kernel, points, noise_var, longest).cpu()
        for size in sizes[:-1]:
            data = surrogate.data(Answers.without_values(self._config.domain, design[:size]))
            moments = surrogate.posterior(data).at(points, weights=True)
            for rates, delta in ((full, 2.0 * share), (own, share)):
                evidence = Evidence.under(surrogate, data, delta, len(points))
                width = self._config.confidence.fixed_design(evidence).at(moments)
                rates.append(min(rates[-1], 4.0 * float(width.max())))
        return full, own


def _widest(kernel: Kernel, points: Tensor) -> float:
    """The largest distance between two points in the kernel's metric: d_k^2 = k - 2 k' + k''."""
    prior, largest = prior_variance(kernel, points), 0.0
    if bool((prior == prior[0]).all()) and len(points) > 20_000:
        return float(2.0 * prior[0].sqrt())  # the triangle inequality, instead of all pairs
    rows = rows_per_chunk(len(points), points)
    for X, own in zip(points.split(rows), prior.split(rows), strict=True):
        square = own.unsqueeze(1) + prior - 2.0 * covariance(kernel, X, points)
        largest = max(largest, float(square.max()))
    return math.sqrt(largest)


def _charge(sizes: list[int], rates: list[float], done: int, asks: int) -> float:
    """The most that ``asks`` asks can cost in these rounds, after ``done`` of the first one."""
    total, start, end = 0.0, 0, done + asks
    for size, rate in zip(sizes, rates, strict=True):
        first, last = max(start, done), min(start + size, end)
        total += max(last - first, 0) * rate
        start += size
    return total
