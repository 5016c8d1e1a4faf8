"""What BPE-Delay claims of a configuration and its run so far, and why not more.

What may end a claim: what a configuration lacks; what a round did, which its record keeps
(``Departure``); and what no record shows, which is kept here. :meth:`Audit.guarantee` words it all.
"""

from __future__ import annotations

import math
from functools import cached_property

from gpytorch.kernels import Kernel

from botorch_delay.confidence.anytime import norm_at_least
from botorch_delay.confidence.guarantee import BudgetTerms, Guarantee
from botorch_delay.delays import SubExponentialDelay
from botorch_delay.elimination.open_round import OpenRound
from botorch_delay.elimination.rounds import Departure
from botorch_delay.exceptions import NotSupportedError, RefutedError
from botorch_delay.history.point_status import MAX_FAILURES
from botorch_delay.history.trials import Answers, Ledger, Trial, TrialState
from botorch_delay.optimizers.budget import Budget
from botorch_delay.optimizers.config import BPEConfig
from botorch_delay.optimizers.round_sequence import RoundSequence

# Variances that differ by no more are the same: one may come from single precision.
ROUNDING = 1e-6
# The least norm that the answers allow is computed at each of the first answers, and then whenever
# they have grown by a tenth.
FIRST_TESTS, GROWTH_TO_TEST = 20, 1.1

_NO_STRAGGLERS = (
    "rounds close without stragglers once deviations are at most {:g} times the intended ones: at "
    "which steps a round's design points are answered or fail does not depend on their noise, "
    "jointly, given all that was known when the round opened; delays may depend on the points, but "
    "where asks wait for free workers while a rule plays, durations may not; no design point is "
    "given up before its round closes"
)
_KEPT = "the maximiser is never eliminated all the same"


class Audit:
    """Keeps what happened in a run as events are applied, and says what is claimed after it.

    Args:
        config: of the optimizer.
        ledger: the trials; read, never written.
        rounds: of the run.
        budget: for asks that are not BPE-Delay's own; None without one.

    Attributes:
        failed: trials that failed, but for the last one of a run.
        abandoned: design points that were abandoned before they were answered, where a regret
            bound needs their answers: they are asked again.
        beyond_bound: trials that took longer than u_T, in asks.
        own_noise: whether an answer was told with a noise variance other than the surrogate's.
        noisier: whether one was above the square of the noise scale that the bounds rest on.
        norm: the largest norm that the answers have called for.
        tested: to how many answers it was last computed.
    """

    def __init__(
        self, config: BPEConfig, ledger: Ledger, rounds: RoundSequence, budget: Budget | None
    ) -> None:
        self._config, self._ledger = config, ledger
        self._rounds, self._budget = rounds, budget
        known = config.confidence.constants
        self._constants = known if config.proves else None  # they are held against the answers
        self._largest_noise = math.inf if known is None else known.noise_std**2 * (1.0 + ROUNDING)
        wait = rounds.round_rule.wait
        self._longest_wait = math.inf if wait is None else wait
        self.failed = self.abandoned = self.beyond_bound = self.tested = 0
        self.own_noise = self.noisier = False
        self.norm = 0.0

    def settled(self, trial: Trial, *, finished: bool) -> None:
        """Apply that a trial was answered, failed or abandoned.

        Args:
            trial: in its new state.
            finished: whether the run was ended.
        """
        if not self._config.proves:
            return
        current, failed = self._rounds.of(trial), trial.state is TrialState.FAILED
        over = finished or len(self._ledger) == self._config.horizon
        taken = len(self._ledger) - 1 - trial.id
        self.failed += failed and not (over and taken == 0)
        if trial.state is TrialState.ABANDONED and self._rounds.needs_all:
            self.abandoned += current is not None and 0 <= trial.slot < current.design_size
        self.beyond_bound += taken > self._longest_wait and not trial.late
        self.own_noise |= self._has_other_noise(trial)
        self.noisier |= trial.noise_var is not None and trial.noise_var > self._largest_noise
        if self._rounds.open is not None and not over:
            self._rounds.open.departures |= self._departures(self._rounds.open, trial)

    def _departures(self, current: OpenRound, trial: Trial) -> set[Departure]:
        """How the settling of a trial makes the open round depart from the plan.

        Where evaluations are exact, another answer at a point, until the round closes, is as good
        as the one that was given up.
        """
        found, exact = set(), self._config.exact
        on_arrival = self._rounds.round_rule.on_arrival
        if on_arrival and not exact and current.gave_up():
            found.add(Departure.GIVEN_UP)
        if trial.round != current.number or trial.slot < 0:
            return found
        if not on_arrival and trial.state is TrialState.FAILED:
            found.add(Departure.SHORTENED)
        if not on_arrival and not exact and current.is_given_up(current.slots[trial.slot]):
            found.add(Departure.GIVEN_UP)
        first = not on_arrival or trial.slot < current.design_size
        if first and current.is_counted(trial) and self._has_other_noise(trial):
            found.add(Departure.UNEVEN)
        return found

    def _has_other_noise(self, trial: Trial) -> bool:
        """Whether an answer has its own noise variance, and not the surrogate's."""
        own, surrogate = trial.noise_var, self._config.fixed
        assert surrogate is not None
        return own is not None and abs(own / surrogate.noise_var - 1.0) > ROUNDING

    @property
    def is_test_due(self) -> bool:
        """Whether the answers are to be held against the bound on the norm."""
        count, tested = self._ledger.answer_count, self.tested
        grown = count > tested and not FIRST_TESTS < count < GROWTH_TO_TEST * tested
        return grown and self._constants is not None

    def least_norm(self) -> float:
        """The least norm that the answers call for, without those that have too much noise."""
        config, answered = self._config, self._ledger.answered()
        assert config.fixed is not None
        assert self._constants is not None
        answers = Answers.of(config.domain, config.sign, answered)
        fits = ~(answers.noise_var > self._largest_noise)
        if not bool(fits.all()):
            answers = answers.at(fits.to(answers.X.device))
        if not len(answers):
            return 0.0
        kernel, asks = config.fixed.covar_module, answered[-1].id + 1
        return norm_at_least(kernel, answers, self._constants.noise_std, asks, config.delta)

    def take_test(self, norm: float, count: int) -> None:
        """Apply that so many answers have called for a norm."""
        if self._config.proves:
            self.norm, self.tested = max(self.norm, norm), count

    @property
    def certified_regret(self) -> float:
        """The bound on the regret of all asks so far.

        Raises:
            NotSupportedError: without a budget.
            RefutedError: if the answers contradict the assumptions.
        """
        constants, budget = self._constants, self._budget
        if constants is None or budget is None:
            raise NotSupportedError("Regret is certified with exploit=WithinBudget() alone.")
        if self.noisier:
            raise RefutedError(
                "No regret can be certified: an answer was told with a noise variance above "
                f"noise_std squared, {constants.noise_std**2:g}. Make the optimizer with the "
                "largest scale of the noise."
            )
        if budget.refuted or self.norm > constants.norm_bound:
            raise RefutedError(
                "No regret can be certified: the answers contradict "
                f"{self._config.confidence!r}; they need a norm of at least {self.norm:.4g} at "
                "noise of that scale. Make the optimizer with a larger norm_bound or noise_std, or "
                "another kernel."
            )
        return budget.certified

    def guarantee(self) -> Guarantee:
        """The regret bound of Theorem 1 and what comes on top of it, or what is missing for it."""
        config, terms, assumptions = self._config, self._budget_terms(), self._assumptions()
        departed = {entry for record in self._rounds.records for entry in record.departures}
        if self._rounds.open is not None:
            departed |= self._rounds.open.departures
        missing = [*config.confidence.missing, *self._configuration()]
        told = self._refutation(Departure.CONTRADICTED in departed) if config.proves else []
        if not missing:
            told += self._what_happened(departed, refuted=bool(told))
        missing += told
        factor = config.fraction**-0.5 * (config.straggler_factor or 1.0)
        if config.geometric is not None:
            factor *= _geometric_factor(config.geometric.growth)
        waits, cost = 0, None
        if terms is not None and self._budget is not None:
            factor, waits, cost = terms.factor, self._budget.waiting, terms.waits
            assumptions.append(_budget_bound(terms))
        elif self._constants is not None and self._rounds.round_rule.on_arrival:
            waits, cost = self._waits()
        return Guarantee(
            holds=not missing,
            delta=config.delta,
            assumptions=tuple(assumptions),
            missing=tuple(missing),
            factor=factor,
            waits=waits,
            waits_cost=cost,
            norm_at_least=None if self._constants is None else self.norm,
            budget=terms,
        )

    def _budget_terms(self) -> BudgetTerms | None:
        if self._budget is None:
            return None
        records, current = self._rounds.records, self._rounds.open
        sizes = [record.design_size for record in records]
        if current is not None:
            sizes.append(min(len(current.slots), current.design_size))
        return self._budget.terms([record.half_width for record in records], sizes)

    def _waits(self) -> tuple[int, float]:
        """How many asks were made while rounds waited, and what they can have cost at most.

        Bounds of a round of half-widths h leave points of regret at most 4 h.
        """
        most = self._most_costly
        waits = self._rounds.out_of_round
        cost = waits * most
        for record in self._rounds.records:
            waits += record.waits
            cost += record.waits * most
            if record.half_width is not None:
                most = min(most, 4.0 * record.half_width)
        if self._rounds.open is not None:
            waits += self._rounds.open.waits
            cost += self._rounds.open.waits * most
        return waits, cost

    @cached_property
    def _most_costly(self) -> float:
        """What any ask can cost at most: functions of norm C differ by at most 2 C max sqrt(k)."""
        assert self._config.fixed is not None
        assert self._constants is not None
        largest = self._rounds.active.largest_deviation(self._config.fixed.covar_module)
        return 2.0 * self._constants.norm_bound * largest

    def _configuration(self) -> list[str]:
        """What a configuration lacks for the claim."""
        config, missing = self._config, []
        confidence, delay, kernel = config.confidence, config.delay, config.covar_module
        if config.learned:
            missing.append(
                "kernel and noise are learned from the answers, and a learned kernel proves "
                "nothing; pass covar_module and noise_var."
            )
        if isinstance(delay, SubExponentialDelay) and delay.paper_min:
            missing.append(
                "the delay bound with the paper's minimum is exceeded far more often than "
                "promised; use paper_min=False."
            )
        if self._rounds.resets:
            missing.append(
                "every active point has its exact value already or is infeasible, so that points "
                "are asked that bounds had eliminated."
                if config.exact
                else "every active point turned out to be infeasible, so that points had to be "
                "taken back that bounds had eliminated."
            )
        if delay is not None and config.exploit is not None and not config.repeat_pending:
            missing.append(
                "with repeat_pending=False values may decide how many design points a round of "
                "fixed length has; leave out delay, or repeat_pending."
            )
        if not config.finite and isinstance(kernel, Kernel):
            lacks = confidence.missing_on_box(kernel)
            missing += [f"{lacks}; {_KEPT}."] if lacks else []
        return missing

    def _refutation(self, contradicted: bool) -> list[str]:
        """What the answers say against the constants of the bounds."""
        constants = self._constants
        if constants is not None and self.norm > constants.norm_bound:
            return [
                f"these answers need a norm of at least {self.norm:.4g} at noise of scale "
                f"{constants.noise_std:g}, and contradict norm_bound = {constants.norm_bound:g}: "
                "it or noise_std is too small, or the kernel is wrong."
            ]
        contradicted |= self._budget is not None and self._budget.refuted
        if contradicted and not self.noisier:
            return [
                "the answers contradict norm_bound and noise_std: no function of that norm fits."
            ]
        return []

    def _what_happened(self, departed: set[Departure], *, refuted: bool) -> list[str]:
        """Why valid bounds do not carry the claim any more."""
        config, budgeted, missing = self._config, self._budget is not None, []
        kept = budgeted and not refuted and not self.noisier
        certified = "; certified_regret holds all the same" if kept else ""
        if self.noisier:
            missing.append(
                "an answer was told with a noise variance above noise_std squared, on which the "
                "bounds rest; make the optimizer with the largest scale of the noise."
            )
        if self.own_noise and config.evidence == "all":
            missing.append(
                "an answer was told with a noise variance other than noise_var, and bounds from "
                'all answers are proved for one that all of them share; use evidence="round".'
            )
        if self.failed and config.exploit is not None and not config.exact:
            missing.append(
                "a trial failed while a rule plays outside the design: where the rule asked may "
                "have changed which design points followed; use exploit=None where trials fail"
                f"{certified}."
            )
        also = ""
        if not missing and not refuted:
            also = certified or f"; {_KEPT}"
        wide = f"its round may leave more regret than the bound charges{also}"
        unless = ", if it was not given up because of its value" if also and not budgeted else ""
        for departure, sentence in {
            Departure.GIVEN_UP: f"a design point was given up: {wide}{unless}.",
            Departure.UNEVEN: f"a design point has a noise variance other than noise_var: {wide}.",
            Departure.SHORTENED: f"a failure took an ask from a round of fixed length: {wide}.",
            Departure.UNANSWERED: "a round closed before all its design points were answered: "
            f"{wide}.",
        }.items():
            if departure in departed:
                missing.append(sentence)
        limit = len(self._ledger) - 1 - self._longest_wait  # those still running count as well
        beyond = self.beyond_bound + sum(trial.id < limit for trial in self._ledger.running())
        if beyond:
            missing.append(
                f"{beyond} trials took longer than u_T, and by the delay law even one "
                f"does so with probability at most {config.delta / 2.0:g}: {wide}."
            )
        return missing

    def _assumptions(self) -> list[str]:
        """What the claim rests on, for the user to judge."""
        config, again = self._config, ""
        if self.failed or self.abandoned:
            again = (
                f" (so far {self.failed} failed, and {self.abandoned} design points were "
                "abandoned before they were answered: a timeout that depends on the value voids "
                "the claim)"
            )
        assumptions = [
            "the kernel is right",
            *config.confidence.assumptions,
            "whether a trial fails or is abandoned does not depend on noise, its own or that of "
            f"others, given the points{again}; the maximiser never fails {MAX_FAILURES} times "
            "without an answer in between, after which a point counts as infeasible; asks that "
            "fail or are given up, and those that are made while their points are asked again, "
            "come on top of the regret bound",
        ]
        if self.own_noise:
            assumptions.append(
                "the noise variances that answers were told with do not depend on them"
            )
        if not config.finite:
            assumptions.append(
                "the search for the largest deviation on the box finds at least a constant share "
                "of it, which enters the regret bound as a factor; elimination does not rest on it"
            )
        if config.exploit is not None and not config.exact:
            assumptions.append(
                "no trial fails: with a rule outside the design, failures could change which "
                "design points follow"
            )
        assumptions += _of_delays(config)
        if config.delay is None:
            assumptions.append(
                "asks that are made while a round waits for its last design points come on top of "
                "Theorem 1's bound: it is waited for every one of them, for as long as it takes"
                if config.straggler_factor is None
                else "asks that are made while a round waits come on top of the regret bound"
            )
        if config.geometric is not None:
            first = math.ceil(config.geometric.first / config.fraction)
            first = min(first, config.horizon or first)
            assumptions.append(
                f"rounds grow by the factor {config.geometric.growth:g}: each has its own share "
                f"of delta in the regret bound, and the first {first} asks come on top of it, at "
                "the most that an ask can cost"
            )
        if config.straggler_factor is not None and not config.exact:
            assumptions.append(_NO_STRAGGLERS.format(config.straggler_factor))
        if config.proves and self._constants is None:
            assumptions.append(
                f"the bounds of {config.confidence!r} hold as they say: it is a class of your own, "
                "and neither its constants nor the noise of answers are held against the answers"
            )
        return assumptions


def _of_delays(config: BPEConfig) -> list[str]:
    """What delays may depend on, which the answers that bounds use decide."""
    if config.exact:
        return [
            "evaluations are exact, so that bounds from all answers hold whatever points, delays "
            "and failures depend on; a point that has been asked is not asked again, the best "
            "included"
        ]
    if config.evidence == "all":
        return [
            "half of the bounds' share of delta is for the self-normalised bound from all answers, "
            "so that Theorem 1's bound is that for delta / 2: delays, failures and attached "
            "results do not depend on the noise given the point, and "
            "every attached result is an evaluation of its own, attached once"
        ]
    if config.delay is not None:
        return [
            f"delays are independent, with the law {config.delay!r}, and do not depend on the "
            "noise given the point"
        ]
    if config.straggler_factor is None:
        return [
            "delays may depend on the points; on the values too as long as no trial fails or is "
            "abandoned"
        ]
    return []


def _budget_bound(budget: BudgetTerms) -> str:
    """What the regret bound consists of, where there is a budget."""
    return (
        f"the regret bound is {budget.bound:.6g} (B = {budget.plan:.6g}, BPE-Delay's plan on "
        "the whole set), plus W, what asks cost while a round waits or a point is asked again "
        f"({budget.waits:.6g} so far), plus E, what rounds on the active set come to beyond "
        f"the plan ({budget.excess:.6g} so far). Any asks cost at most {budget.trivial:.6g}: a "
        f"factor of {budget.vacuous_from:.3g} or more says nothing. certified_regret needs "
        "none of B, W and E, and holds whatever delays, failures and missing answers depend on"
    )


def _geometric_factor(growth: float) -> float:
    """Against Theorem 1 where all asks are design points, q_r = g q_{r-1}, after the first round.

    Theorem 1 charges a round q_r c / sqrt(q_{r-1}) = c sqrt(T). Here that is c sqrt(g q_r), and
    sum sqrt(q_r) <= sqrt(T) sqrt(2 sqrt(g) / (sqrt(g) - 1)) by Cauchy-Schwarz: the last round,
    cut anywhere, and the geometric series before it.
    """
    root = math.sqrt(growth)
    return math.sqrt(2.0 * growth * root / (root - 1.0))
