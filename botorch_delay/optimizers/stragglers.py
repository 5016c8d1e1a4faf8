"""What a round waits for, and a rule by which it closes without its last design points.

*Rule.* Let D be the q_r design points of round r (without those that were given up), A those of
them that have been answered, s_D and s_A the largest posterior deviation over the active set given
either. The round closes once all of D have been asked and

    s_A <= kappa s_D,

at the first ask at which that is so; its bounds use exactly A. Both deviations follow from points
alone, with the surrogate's noise lambda^2 for every answer; infeasible points are not active.
Values that come later stay in the posterior of the rule that plays, in recommendations, and in
bounds from all answers.

*Assumptions.* Let H be all that was known when round r opened, xi the noise of its q_r design
evaluations, and Delta the steps at which they are answered, or fail.

1. Given H, the entries of xi are independent and sigma-sub-Gaussian with mean zero (fresh noise).
2. Given H, Delta and xi are independent: *jointly*, and *in steps*.
3. Which design points are asked when does not depend on xi, given H and Delta.

*Theorem.* Under these assumptions the maximiser is never eliminated with the probability that holds
without the rule, and the bounds on regret grow by at most kappa.

*Proof.* The active set X_r and D follow from H: D maximises deviations over X_r, which need no
value. By 3 the asks of design points follow from H and Delta, and so does A at every later ask, the
ask at which the rule closes the round, and A at that ask, for the rule compares s_A with s_D and
both are functions of X_r, D and A. So A is a function of H and Delta. Given (H, Delta) it is a
fixed set, and by 2 the noise of its answers has the law that it has given H. Lemma 1 therefore
holds at every x with A in place of D, with the same probability given (H, Delta), hence without:
the union over points, sides and rounds, and the number of rounds, are as before, since a round
still closes only after its q_r design points have been asked. The half-width at x is at most beta
s_A <= kappa beta s_D; a point that survives round r has regret at most 4 kappa beta s_D, kappa
times what the analysis charges an ask of round r + 1. The first round is charged as before, and no
round gets longer. QED

*What 2 and 3 ask for.* A delay that depends on the point, however adversarially, is a function of H
for the design points: it is allowed. A delay that depends on the value is not; nor is a straggler
that is given up, or a run that is stopped, because of values. In steps means: a step is an ask, and
asks are made while the rule plays points that depend on xi, as soon as some of A is answered. If
those asks come when workers become free, and a trial's duration depends on its point, then the
steps that a design point takes depend on the values of others although no duration depends on any:
2 fails. It holds where durations do not depend on the point, where asks come at times of their own,
as with patients or visitors, and where every ask is a design point (``exploit=None``). Which round
is open when such an ask is made does not matter: it fixes the set that the ask may choose from, and
neither the ask nor its value enters A or a bound of the round. Assumption 3 holds by construction
where no trial fails, or no rule plays: when a design point is asked follows from the number of asks
and from failures. With a regret budget it would follow from values, so that the two options exclude
each other.

Without the rule none of 2 and 3 is needed: the bounds use all of D, whatever comes when.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Sequence

import torch
from torch import Tensor

from botorch_delay.design.greedy import GreedyDesign
from botorch_delay.elimination.open_round import OpenRound, Outstanding, SlotState
from botorch_delay.history.empirical_delay import EmpiricalDelay
from botorch_delay.history.point_status import Feasibility
from botorch_delay.history.trials import Ledger
from botorch_delay.optimizers.forecasts import (
    Forecast,
    Straggler,
    describe_running,
    need_law,
    planned_asks,
)

logger = logging.getLogger(__name__)

# A trial that holds a round up is reported when it has been out this many times the longest wait.
LATE = 4


class EarlyClose:
    """Whether a round may close without its stragglers.

    Deviations come from the greedy design's own code: one design with all points is made when the
    round first waits, and one that grows with the answers, at O(N n) an answer.

    Args:
        factor: kappa, at least 1.
        points: of the finite set, ``N x d``.
    """

    def __init__(self, factor: float, points: Tensor) -> None:
        self._factor, self._points = factor, points
        self._round: OpenRound | None = None
        self._rows = points.new_empty(0, dtype=torch.long)
        self._dropped: set[int] = set()
        self._intended = 0.0
        self._design: GreedyDesign | None = None
        self._counted: set[int] = set()  # slots whose answers the design has
        self._allowed = False  # with those

    def allows(self, current: OpenRound, rows: Tensor) -> bool:
        """Whether the rule closes a round now.

        Args:
            current: the open round.
            rows: the active rows that may be asked, increasing.
        """
        first = current.slots[: current.design_size]
        answered = {n for n, slot in enumerate(first) if slot.state is SlotState.ANSWERED}
        if len(first) < current.design_size or not answered or not len(rows):
            return False
        dropped = {n for n, slot in enumerate(first) if slot.state is SlotState.DROPPED}
        same = current is self._round and dropped == self._dropped
        if not (same and torch.equal(rows, self._rows) and self._counted <= answered):
            self._round, self._rows, self._dropped, self._counted = current, rows, dropped, set()
            kept = [slot.key for n, slot in enumerate(first) if n not in dropped]
            self._intended = self._make_design(current, kept).largest
            self._design = self._make_design(current, [])
        elif answered == self._counted:
            return self._allowed  # nothing has changed since the last ask
        assert self._design is not None
        for number in sorted(answered - self._counted):
            self._add(self._design, first[number].key)
        self._counted = answered
        # Deviations are roots of variances; they agree up to ties and rounding.
        allowed = self._factor**2 * self._intended * (1.0 + 1e-7)
        self._allowed = self._design.largest <= allowed
        if not self._allowed:
            return False
        logger.info(
            "round %d closes without %d of its %d design points",
            current.number,
            len(first) - len(answered) - len(dropped),
            len(first),
        )
        return True

    def _make_design(self, current: OpenRound, keys: Sequence[int]) -> GreedyDesign:
        surrogate = current.surrogate
        candidates = surrogate.inputs(self._points[self._rows])
        design = GreedyDesign(surrogate.covar_module, candidates, surrogate.noise_var)
        for key in keys:
            self._add(design, key)
        return design

    def _add(self, design: GreedyDesign, key: int) -> None:
        """Count a point that is active."""
        position = int(torch.searchsorted(self._rows, key))
        if position < len(self._rows) and int(self._rows[position]) == key:
            design.add(position)


def holding(
    current: OpenRound, feasibility: Feasibility, ledger: Ledger, law: EmpiricalDelay | None
) -> list[Straggler]:
    """The running trials that keep a round from closing, longest wait first."""
    if not current.design_is_asked():
        return []
    ids = _waited_for(current.outstanding(), feasibility)
    return describe_running([ledger[i] for i in ids], len(ledger), law)


def _waited_for(outstanding: Outstanding, feasibility: Feasibility) -> list[int]:
    """Running trials, of design points and of points that are to be asked again."""
    held = (feasibility.running(key) for key in outstanding.held)
    return sorted({*outstanding.trials, *itertools.chain.from_iterable(held)})


def forecast(
    current: OpenRound,
    feasibility: Feasibility,
    ledger: Ledger,
    law: EmpiricalDelay | None,
    *,
    horizon: int | None,
    designed: int,
    fraction: float,
    budgeted: bool,
) -> Forecast:
    """When a round will close.

    Args:
        current: the round.
        feasibility: of points.
        ledger: all trials.
        law: the estimated law of delays; None without answers.
        horizon: T, or None.
        designed: design points asked so far, in all rounds.
        fraction: rho, the share of asks that are design points.
        budgeted: whether a budget decides when they are asked.

    Raises:
        NoAnswerError: if the round waits for answers and there is none to forecast from.
    """
    asks = len(ledger)
    left = None if horizon is None else horizon - asks
    if current.length is not None:
        exact = current.length - current.asks + 1
        return Forecast(current.number, (), (), left, None, exact)
    outstanding = current.outstanding()
    ids = _waited_for(outstanding, feasibility)
    new = max(current.design_size - len(current.slots), 0)
    to_ask = planned_asks(outstanding.again, new, designed, asks, fraction)
    need_law(law, [*ids, *to_ask])
    waited = tuple(describe_running([ledger[i] for i in ids], asks, law))
    return Forecast(current.number, waited, tuple(to_ask), left, law, earliest=budgeted and new > 0)


class WaitReport:
    """A line in the log when a trial holds a round up longer than any answer took so far."""

    def __init__(self) -> None:
        self._next: dict[int, int] = {}  # when a trial is next worth a line
        self._longest = 0  # wait for an answer, in asks
        self._answers = 0

    def answered(self, asks: int) -> None:
        """An answer came after so many asks."""
        self._longest = max(self._longest, asks)
        self._answers += 1

    def look(
        self, current: OpenRound, feasibility: Feasibility, ledger: Ledger
    ) -> Straggler | None:
        """The trial that was reported, if there was reason to."""
        usual = LATE * max(self._longest, current.design_size, 10)
        oldest = current.oldest_unsettled()
        trials = [] if oldest is None else current.slots[oldest].trials
        if not trials or len(ledger) - 1 - trials[0] < usual:
            return None
        waiting = holding(current, feasibility, ledger, None)
        if not waiting or waiting[0].asks < self._next.get(waiting[0].trial.id, usual):
            return None
        worst = waiting[0]
        self._next[worst.trial.id] = 2 * worst.asks
        sooner = ""
        if self._answers:
            law = EmpiricalDelay.from_trials(ledger.trials)
            worst = describe_running([worst.trial], len(ledger), law)[0]
            sooner = f" ({worst.sooner:.0%} of answers are estimated to take fewer)"
        logger.warning(
            "round %d waits for trial %d, asked %d asks ago%s; if it will not come back, call "
            "mark_abandoned(%d)",
            worst.trial.round,
            worst.trial.id,
            worst.asks,
            sooner,
            worst.trial.id,
        )
        return worst
