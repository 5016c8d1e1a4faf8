"""A rule by which a round closes without its last design points (stragglers).

*Rule.* Let D be the q_r design points of round r (without those that were given up), A those of
them that have been answered, and s_D and s_A the largest posterior deviation over the active set
given D and given A. The round closes once all of D have been asked and

    s_A <= kappa s_D,

at the first ask at which that is so; its bounds use exactly A. Both deviations depend on points
alone, with the surrogate's noise lambda^2 for every answer; infeasible points are not active.
Answers that come later still enter the posterior of the rule, recommendations, and bounds from
all answers.

*Assumptions.* Let H be all that was known when round r opened, xi the noise of its q_r design
evaluations, and Delta the steps at which they are answered, or fail.

1. Given H, the entries of xi are independent and sigma-sub-Gaussian with mean zero (fresh noise).
2. Given H, Delta and xi are independent: *jointly*, and *in steps*.
3. Which design points are asked when does not depend on xi, given H and Delta.

*Theorem.* Under these assumptions the maximiser is never eliminated, with the same probability as
without the rule, and the bounds on regret grow by a factor of at most kappa.

*Proof.* The active set X_r and D are functions of H: D maximises deviations over X_r, which need no
value. By 3 the steps at which design points are asked are functions of H and Delta; so is A at
every later ask, and so is the ask at which the rule closes the round, as s_A and s_D are functions
of X_r, D and A. So A at that ask is a function of H and Delta. Given (H, Delta) it is a fixed set,
and by 2 the noise of its answers has the law that it has given H. Lemma 1 therefore holds at every
x with A in place of D, with the same probability given (H, Delta), hence also unconditionally: the
union over points, sides and rounds, and the number of rounds, are as before, since a round still
closes only after its q_r design points have been asked. The half-width at x is at most
beta s_A <= kappa beta s_D; a point that survives round r has regret at most 4 kappa beta s_D, kappa
times what the analysis charges an ask of round r + 1. The first round is charged as before, and no
round gets longer. QED

*What 2 and 3 mean.* Delays may depend on the points, however adversarially: given H the design
points are fixed. They may not depend on values, and no straggler may be given up, nor the run
stopped, because of values. "In steps" matters because a step is an ask, and the points that a rule
chooses depend on xi as soon as some of A is answered. If asks come when workers become free, and
durations depend on the points, then the steps that a design point takes depend on the values of
others, and 2 fails. It holds where durations do not depend on the point, where asks come at times
set from outside, as with patients or visitors, and where every ask is a design point
(``exploit=None``). Which round is open when a rule's point is asked does not matter: the round only
fixes the set to choose from, and neither that ask nor its value enters A or a bound of the round.
Assumption 3 holds by construction where no trial fails, or there is no rule: the step at which a
design point is asked depends only on the number of asks and on failures. With a regret budget it
would depend on values, so that the two options exclude each other.

Without the rule 2 and 3 are not needed: the bounds use all of D, whenever its answers come.
"""

from __future__ import annotations

import torch
from torch import Tensor

from botorch_delay.domains.domain import Domain
from botorch_delay.elimination.open_round import OpenRound, SlotState
from botorch_delay.gp.surrogate import Surrogate
from botorch_delay.history.answers import Answers


class EarlyClose:
    """Whether a round may close without its stragglers; the factor is kappa."""

    def __init__(self, factor: float, domain: Domain) -> None:
        self._factor, self._domain = factor, domain
        # The last decision, and what it was made from: while that stays the same it is reused.
        self._seen: tuple[Surrogate, list[int], list[int], Tensor] | None = None
        self._allowed = False

    def allows(self, current: OpenRound, rows: Tensor) -> bool:
        """Whether the round may close now; ``rows`` are the active rows that are feasible."""
        first = current.slots[: current.design_size]
        answered = [slot.key for slot in first if slot.state is SlotState.ANSWERED]
        kept = [slot.key for slot in first if slot.state is not SlotState.DROPPED]
        if not answered or not len(rows):
            return False
        seen, self._seen = self._seen, (current.surrogate, answered, kept, rows)
        if seen is not None and seen[:3] == self._seen[:3] and torch.equal(seen[3], rows):
            return self._allowed
        intended = self._largest_deviation(current, kept, rows)
        allowed = self._factor * intended * (1.0 + 1e-7)  # equal deviations differ by rounding
        self._allowed = self._largest_deviation(current, answered, rows) <= allowed
        return self._allowed

    def _largest_deviation(self, current: OpenRound, keys: list[int], rows: Tensor) -> float:
        """The largest deviation over ``rows``, given answers at the ``keys`` among these."""
        picks = torch.tensor(keys)
        picks = picks[torch.isin(picks, rows.cpu())]
        data = current.surrogate.data(Answers.without_values(self._domain, picks))
        posterior = current.surrogate.posterior(data)
        return float(posterior.at(self._domain.like[rows]).deviation.max())
