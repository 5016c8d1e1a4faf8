"""The audit of a run: what happened that a claim may not survive, and what is claimed after it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

from botorch_delay.confidence.anytime import norm_at_least
from botorch_delay.confidence.bounds import RKHSConfidence
from botorch_delay.confidence.guarantee import Guarantee
from botorch_delay.elimination.open_round import OpenRound
from botorch_delay.elimination.rounds import Departure
from botorch_delay.exceptions import RefutedError
from botorch_delay.gp.surrogate import Surrogate
from botorch_delay.history.answers import Answers
from botorch_delay.history.trials import Ledger, Trial, TrialState
from botorch_delay.optimizers.budget import Budget
from botorch_delay.optimizers.claims import Incidents, claim
from botorch_delay.optimizers.config import BPEConfig
from botorch_delay.optimizers.round_sequence import RoundSequence

# Variances that differ by no more are the same: one may come from single precision.
ROUNDING = 1e-6
# The least norm that the answers allow is computed at each of the first answers, and then whenever
# they have grown by a tenth.
FIRST_TESTS, GROWTH_TO_TEST = 20, 1.1


@dataclass
class Audit:
    """Keeps what happened in a run as events are applied, and says what is claimed after it.

    Args:
        config: of the optimizer.
        ledger: the trials; read, never written.
        rounds: of the run.

    Attributes:
        incidents: what happened.
    """

    config: BPEConfig
    ledger: Ledger
    rounds: RoundSequence
    incidents: Incidents = field(default_factory=Incidents)

    def out_of_round(self) -> None:
        """Apply an ask that is not of the open round."""
        if self.config.proves:
            self.incidents = replace(self.incidents, out_of_round=self.incidents.out_of_round + 1)

    def settled(self, trial: Trial, *, finished: bool) -> None:
        """Apply that a trial was answered, failed or abandoned.

        Args:
            trial: in its new state.
            finished: whether the run was ended.
        """
        if not self.config.proves:
            return
        incidents, current, rule = self.incidents, self.rounds.of(trial), self.rounds.round_rule
        over = finished or len(self.ledger) == self.config.horizon
        taken = len(self.ledger) - 1 - trial.id
        slow = rule.wait is not None and taken > rule.wait and not trial.late
        failed = trial.state is TrialState.FAILED and not (over and taken == 0)
        first = current is not None and 0 <= trial.slot < current.design_size
        abandoned = trial.state is TrialState.ABANDONED and first and self.rounds.needs_all
        assert self.config.fixed is not None
        noisier = trial.noise_var is not None and trial.noise_var > self._largest_noise
        self.incidents = replace(
            incidents,
            failed=incidents.failed + failed,
            abandoned=incidents.abandoned + abandoned,
            beyond_bound=incidents.beyond_bound + slow,
            own_noise=incidents.own_noise or _is_other_noise(trial, self.config.fixed),
            noisier=incidents.noisier or noisier,
        )
        if self.rounds.open is not None and not over:
            self.rounds.open.departures |= self._departures(self.rounds.open, trial)

    def _departures(self, current: OpenRound, trial: Trial) -> set[Departure]:
        """How the settling of a trial makes the open round depart from the plan.

        Where evaluations are exact, another answer at a point, until the round closes, is as good
        as the one that was given up.
        """
        assert self.config.fixed is not None
        found, exact = set(), self.config.exact
        on_arrival = self.rounds.round_rule.on_arrival
        if on_arrival and not exact and current.gave_up():
            found.add(Departure.GIVEN_UP)
        if trial.round != current.number or trial.slot < 0:
            return found
        if not on_arrival and trial.state is TrialState.FAILED:
            found.add(Departure.SHORTENED)
        if not on_arrival and not exact and current.is_given_up(current.slots[trial.slot]):
            found.add(Departure.GIVEN_UP)
        first = not on_arrival or trial.slot < current.design_size
        if first and current.is_counted(trial) and _is_other_noise(trial, self.config.fixed):
            found.add(Departure.UNEVEN)
        return found

    @property
    def is_test_due(self) -> bool:
        """Whether the answers are to be held against the bound on the norm."""
        if not (self.config.proves and isinstance(self.config.confidence, RKHSConfidence)):
            return False
        count, tested = self.ledger.answer_count, self.incidents.tested
        return count > tested and not FIRST_TESTS < count < GROWTH_TO_TEST * tested

    def least_norm(self) -> float:
        """The least norm that the answers call for, without those that have too much noise."""
        config, confidence = self.config, self.config.confidence
        assert config.fixed is not None
        assert isinstance(confidence, RKHSConfidence)
        answered = self.ledger.answered()
        answers = Answers.of(config.domain, config.sign, answered)
        fits = ~(answers.noise_var > self._largest_noise)
        if not bool(fits.all()):
            answers = answers.at(fits.to(answers.X.device))
        if not len(answers):
            return 0.0
        kernel, asks = config.fixed.covar_module, answered[-1].id + 1
        return norm_at_least(kernel, answers, confidence.noise_std, asks, config.delta)

    def tested(self, norm: float, count: int) -> None:
        """Apply that so many answers have called for a norm."""
        if self.config.proves:
            self.incidents = replace(
                self.incidents, norm=max(self.incidents.norm, norm), tested=count
            )

    def guarantee(self, budget: Budget | None) -> Guarantee:
        """What is claimed for the configuration and the run so far, and why not more."""
        rounds, incidents, current = self.rounds, self.incidents, self.rounds.open
        departed: set[Departure] = set()
        departed.update(*(record.departures for record in rounds.records))
        if current is not None:
            departed |= current.departures
        if rounds.round_rule.wait is not None:  # those that are still running count as well
            limit = len(self.ledger) - 1 - rounds.round_rule.wait
            running = sum(trial.id < limit for trial in self.ledger.running())
            incidents = replace(incidents, beyond_bound=incidents.beyond_bound + running)
        waits, terms = None, None
        valid = self.config.proves and isinstance(self.config.confidence, RKHSConfidence)
        if budget is not None:
            waits = (budget.waiting, budget.waits)
            sizes = [record.design_size for record in rounds.records]
            if current is not None:
                sizes.append(min(len(current.slots), current.design_size))
            terms = budget.terms([record.half_width for record in rounds.records], sizes)
        elif valid and rounds.round_rule.on_arrival:
            waits = self._waits()
        return claim(
            self.config,
            resets=rounds.resets,
            incidents=incidents,
            departed=departed,
            waits=waits,
            budget=terms,
            refuted=budget is not None and budget.refuted,
        )

    def _waits(self) -> tuple[int, float]:
        """How many asks were made while rounds waited, and what they can have cost at most.

        Bounds of a round of half-widths h leave points of regret at most 4 h.
        """
        most = self._most_costly
        waits, cost = self.incidents.out_of_round, self.incidents.out_of_round * most
        for record in self.rounds.records:
            waits += record.waits
            cost += record.waits * most
            if record.half_width is not None:
                most = min(most, 4.0 * record.half_width)
        if self.rounds.open is not None:
            waits += self.rounds.open.waits
            cost += self.rounds.open.waits * most
        return waits, cost

    @cached_property
    def _most_costly(self) -> float:
        """What any ask can cost at most: functions of norm C differ by at most 2 C max sqrt(k)."""
        assert self.config.fixed is not None
        assert isinstance(self.config.confidence, RKHSConfidence)
        largest = self.rounds.active.largest_deviation(self.config.fixed.covar_module)
        return 2.0 * self.config.confidence.norm_bound * largest

    @property
    def _largest_noise(self) -> float:
        """The largest noise variance for which the bounds are proved."""
        confidence = self.config.confidence
        if not isinstance(confidence, RKHSConfidence):
            return float("inf")
        return confidence.noise_std**2 * (1.0 + ROUNDING)

    def certified(self, budget: Budget) -> float:
        """The bound on the regret of all asks so far.

        Raises:
            RefutedError: if the answers contradict the assumptions.
        """
        confidence = self.config.confidence
        assert isinstance(confidence, RKHSConfidence)
        if self.incidents.noisier:
            raise RefutedError(
                "No regret can be certified: an answer was told with a noise variance above "
                f"noise_std squared, {confidence.noise_std**2:g}. Make the optimizer with the "
                "largest scale of the noise."
            )
        if budget.refuted or self.incidents.norm > confidence.norm_bound:
            raise RefutedError(
                f"No regret can be certified: the answers contradict {confidence!r}; they need a "
                f"norm of at least {self.incidents.norm:.4g} at noise of that scale. Make the "
                "optimizer with a larger norm_bound or noise_std, or another kernel."
            )
        return budget.certified


def _is_other_noise(trial: Trial, surrogate: Surrogate) -> bool:
    """Whether an answer has its own noise variance, and not the surrogate's."""
    own = trial.noise_var
    return own is not None and abs(own / surrogate.noise_var - 1.0) > ROUNDING
