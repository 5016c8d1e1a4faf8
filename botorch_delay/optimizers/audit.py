"""What BPE-Delay claims for a configuration and its run so far, and why it claims no more.

A claim may fail because of the configuration, because of what a round did (kept in its record as a
``Departure``), or because of something that happened outside rounds, which is kept here.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gpytorch.kernels import Kernel

from botorch_delay import validation
from botorch_delay.confidence.anytime import Ellipsoids
from botorch_delay.confidence.guarantee import Guarantee
from botorch_delay.delays import SubExponentialDelay
from botorch_delay.domains.devices import sent
from botorch_delay.elimination.rounds import Departure
from botorch_delay.history.point_status import MAX_FAILURES
from botorch_delay.history.trials import Attached, Ledger, Trial, TrialObserver, TrialState
from botorch_delay.optimizers.budget import Budget
from botorch_delay.optimizers.certificate import Certificate, has_other_noise, is_noisier
from botorch_delay.optimizers.config import BPEConfig
from botorch_delay.optimizers.round_sequence import RoundSequence

# The smallest RKHS norm consistent with the answers is computed after each of the first FIRST_TESTS
# answers, then whenever their number has grown by this factor, since its cost is cubic.
FIRST_TESTS, GROWTH_TO_TEST = 20, 1.1

_NO_STRAGGLERS = (
    "rounds close without stragglers once deviations are at most {:g} times the intended ones: at "
    "which steps a round's design points are answered or fail does not depend on their noise, "
    "jointly, given all that was known when the round opened; delays may depend on the points, but "
    "where asks wait for free workers while a rule chooses them, durations may not; no design "
    "point is given up before its round closes"
)
_KEPT = "the maximiser is still never eliminated"
_FALSE_ROUND = (
    "a trial or an attached result was corrected after a round had closed with what was first "
    "reported: what the round eliminated rests on false evidence, and is not taken back"
)
_FALSE_PRICE = "asks were priced against the budget with a value that was corrected later"
_FALSE_ALARM = (
    "the answers contradicted norm_bound and noise_std before one was corrected, and a claim that "
    "has ended does not come back"
)


class Audit(TrialObserver):
    """Records what happened in a run with valid bounds, and states what can still be claimed."""

    def __init__(
        self, config: BPEConfig, ledger: Ledger, rounds: RoundSequence, budget: Budget | None
    ) -> None:
        self._config, self._ledger = config, ledger
        self._rounds, self._budget = rounds, budget
        self._constants = config.confidence.constants if config.proves else None
        self._kernel = config.fixed and copy.deepcopy(config.fixed.covar_module).cpu()
        self._noise_var = config.fixed.noise_var if config.fixed else math.nan
        self.failed = 0  # failed trials, except one that is the last ask of the run
        self.abandoned = 0  # abandoned design points whose answers the regret bound needs
        self.beyond_bound = 0  # trials that took longer than u_T
        self.amended = 0  # corrections, and detached results if bounds use attached ones
        self.norm = 0.0  # largest norm that the answers required since the last correction
        self.tested = 0  # the number of answers when that norm was last computed
        self.own_noise = False  # whether an answer has a noise variance other than noise_var
        self.noisier = False  # whether an answer has a noise variance above noise_std squared
        self._broken: dict[str, None] = {}  # reasons why the claim has ended, in order

    def settled(self, trial: Trial) -> None:
        current, failed = self._rounds.of(trial), trial.state is TrialState.FAILED
        taken = len(self._ledger) - 1 - trial.id
        self.failed += failed and not (self._is_over and taken == 0)
        if trial.state is TrialState.ABANDONED and self._rounds.needs_all:
            self.abandoned += current is not None and 0 <= trial.slot < current.design_size
        self.beyond_bound += taken > self._longest_wait and not trial.came_back
        self._note_noise(trial)
        self._note_departures(trial)

    def attached(self, result: Attached) -> None:
        if self._config.evidence == "all":
            self._note_noise(result)

    def corrected(self, trial: Trial, before: TrialState) -> None:
        answered, step = before is TrialState.COMPLETED, trial.told_step
        assert step is not None
        self.amended += 1
        if self._is_closed_on(step, trial.id if answered else None):
            self._broken[_FALSE_ROUND] = None
        if self._budget is not None and answered and step < len(self._ledger):
            self._broken[_FALSE_PRICE] = None
        if self._refutation(contradicted=False):
            self._broken[_FALSE_ALARM] = None
        self.norm, self.tested = 0.0, 0
        self.failed += trial.state is TrialState.FAILED
        self._note_departures(trial)

    def detached(self, result: Attached) -> None:
        if self._config.evidence == "all":
            self.amended += 1
            if self._is_closed_on(result.told_step):
                self._broken[_FALSE_ROUND] = None

    def extended(self, before: int | None) -> None:
        asks = len(self._ledger)
        if asks or self._rounds.open is not None:
            why = (
                f"the run was finished after {asks} asks and went on: its last round was cut short"
                if before == self._config.horizon
                else f"the horizon of {before} was extended after {asks} asks: rounds, their "
                "shares of delta and u_T follow from it, and the bound is proved only for a "
                "horizon that is known from the first ask"
            )
            self._broken[f"{why}; what was claimed then covers those {asks} asks"] = None

    @property
    def _longest_wait(self) -> float:
        """u_T, which follows from the horizon; infinite without a delay law."""
        wait = self._rounds.round_rule.wait
        return math.inf if wait is None else wait

    @property
    def _is_over(self) -> bool:
        """Whether no ask follows."""
        return self._rounds.open is None or len(self._ledger) == self._config.horizon

    def _is_closed_on(self, step: int, trial_id: int | None = None) -> bool:
        """Whether a closed round may have used what was told after ``step`` asks."""
        # Records name only answers; a failure may have let a round close without its trial.
        if trial_id is not None and self._config.evidence == "round":
            return any(trial_id in record.trial_ids for record in self._rounds.records)
        return step <= self._rounds.closed_at

    def _note_departures(self, trial: Trial) -> None:
        """Note how the end of a trial makes the open round depart from the plan."""
        current, exact = self._rounds.open, self._config.exact
        if current is None or self._is_over:
            return
        found, on_arrival = current.departures, self._rounds.round_rule.on_arrival
        # With exact evaluations another answer at the point may still come before the round closes.
        if on_arrival and not exact and current.gave_up():
            found.add(Departure.GIVEN_UP)
        if trial.round != current.number or trial.slot < 0:
            return
        if not on_arrival and trial.state is TrialState.FAILED:
            found.add(Departure.SHORTENED)
        if not on_arrival and not exact and current.is_given_up(current.slots[trial.slot]):
            found.add(Departure.GIVEN_UP)
        first = not on_arrival or trial.slot < current.design_size
        if first and current.is_counted(trial) and has_other_noise(trial, self._noise_var):
            found.add(Departure.UNEVEN)

    def _note_noise(self, result: Trial | Attached) -> None:
        constants = self._constants
        self.own_noise |= has_other_noise(result, self._noise_var)
        self.noisier |= constants is not None and is_noisier(result, constants.noise_std)

    def test(self) -> dict[str, Any] | None:
        """The smallest RKHS norm consistent with the answers, as event data; None if not due."""
        config, constants = self._config, self._constants
        count, tested = self._ledger.answer_count, self.tested
        grown = count > tested and not FIRST_TESTS < count < GROWTH_TO_TEST * tested
        if not grown or constants is None:
            return None
        assert self._kernel is not None
        answered, scale = self._ledger.answered(), constants.noise_std
        answers = config.answers([trial for trial in answered if not is_noisier(trial, scale)])
        begun = max(trial.known_step or 0 for trial in answered)
        parts = self._kernel, answers, scale, begun, config.delta
        return {"norm": Ellipsoids(*parts).norm_at_least, "answers": count}

    def take_test(self, data: Mapping[str, Any]) -> None:
        """Apply the result of :meth:`test`."""
        self.norm = max(self.norm, validation.real(data["norm"], "norm"))
        self.tested = validation.whole(data["answers"], "answers", 0)

    def certificate(self, found: Certificate) -> Certificate:
        """The certificate, void if answers since the last correction required a larger norm."""
        if self._constants is None or found.refuted or self.norm <= found.norm_bound:
            return found
        norm, delta = self.norm, self._config.delta  # as in guarantee
        void = replace(found, regret=math.inf, gap=math.inf, refuted=True)
        return replace(void, norm_at_least=norm, delta=delta)

    def guarantee(self) -> Guarantee:
        """The regret bound of Theorem 1 and what comes on top of it, or why it is not claimed."""
        config, budget, terms = self._config, self._budget, None
        assumptions = self._assumptions()
        departed = self._departed
        missing = [*config.confidence.missing, *self._configuration()]
        told = self._refutation(Departure.CONTRADICTED in departed)
        if not missing:
            told += self._what_happened(departed, refuted=bool(told))
        missing += told
        factor = config.fraction**-0.5 * (config.rounds.straggler_factor or 1.0)
        if config.geometric is not None:
            factor *= _geometric_factor(config.geometric.growth)
        extra, cost = 0, None
        if budget is not None:
            terms = budget.terms()
            factor, extra, cost = terms.factor, budget.extra_asks, terms.extra_cost
            useless = ""
            if terms.plan > 0.0:  # there is more than one point
                useless = f": a factor of {terms.trivial / terms.plan:.3g} or more says nothing"
            assumptions.append(
                f"the regret bound is {terms.bound:.6g} (B = {terms.plan:.6g}, BPE-Delay's plan on "
                "the whole set), plus W, what asks cost while a round waits or a point is asked "
                f"again ({terms.extra_cost:.6g} so far), plus E, what rounds on the active set "
                f"come to beyond the plan ({terms.excess:.6g} so far). Any asks cost at most "
                f"{terms.trivial:.6g}{useless}. certificate needs none of B, W and E, and holds "
                "whatever delays, failures and missing answers depend on"
            )
        elif self._constants is not None and self._rounds.round_rule.on_arrival:
            extra, cost = self._extra_asks()
        return Guarantee(
            holds=not missing,
            delta=config.delta,
            assumptions=tuple(assumptions),
            missing=tuple(missing),
            factor=factor,
            extra_asks=extra,
            extra_cost=cost,
            norm_at_least=None if self._constants is None else self.norm,
            budget=terms,
            in_practice=self._in_practice(),
        )

    def _in_practice(self) -> str:
        """The rule that decides the run, if the horizon leaves room for one design point only."""
        config, asks = self._config, self._config.horizon
        if asks is None or config.fraction * (asks - 1) >= 1.0:
            return ""
        if config.rule is None or config.budget_factor is not None:
            return ""
        rule, made = config.rule.method(config.pending), repr(config.rule)
        rule = rule if made in rule else f"{rule}, {made}"
        last = round(config.final_fraction * asks)
        end = f" The last {last} may serve the recommendation instead." if last else ""
        return f"One of the {asks} asks is a design point; the others follow a rule: {rule}.{end}"

    def _extra_asks(self) -> tuple[int, float]:
        """How many asks were made while rounds waited, and what they can have cost at most."""
        assert self._config.fixed is not None
        assert self._constants is not None
        largest = self._rounds.active.largest_prior_deviation(self._config.fixed.covar_module)
        most = 2.0 * self._constants.norm_bound * largest  # the widest range of such an f
        asks, cost = 0, 0.0
        rounds: list[tuple[int, float | None]] = [(self._rounds.out_of_round, None)]
        rounds += [(record.extra_asks, record.half_width) for record in self._rounds.records]
        if self._rounds.open is not None:
            rounds.append((self._rounds.open.extra_asks, None))
        for count, half_width in rounds:
            asks += count
            cost += count * most
            if half_width is not None:  # what survives has at most this regret
                most = min(most, 4.0 * half_width)
        return asks, cost

    def _assumptions(self) -> list[str]:
        """What the claim rests on, for users to judge; :meth:`guarantee` adds a budget's terms."""
        config, again = self._config, ""
        exploits = config.exploit is not None and not config.exact
        fails, lost = "fails or is abandoned", "fail or are given up"
        if exploits:
            fails, lost = "is abandoned", "are given up"
        if self.failed or self.abandoned:
            again = (
                f" (so far {self.failed} failed, and {self.abandoned} design points were "
                "abandoned before they were answered: a timeout that depends on the value voids "
                "the claim)"
            )
        assumptions = [
            "the kernel is right",
            *config.confidence.assumptions,
            f"whether a trial {fails} does not depend on noise, its own or that of others, given "
            f"the points{again}",
            "no trial fails: with a rule outside the design, failures could change which design "
            "points follow"
            if exploits
            else f"the maximiser never fails {MAX_FAILURES} times without an answer in between, "
            "after which a point counts as infeasible",
            f"asks that {lost}, and those that are made while their points are asked again, come "
            "on top of the regret bound",
        ]
        if self.amended:
            assumptions.append(
                f"every correction (so far {self.amended}) says what the evaluation gave: a result "
                "that is withdrawn, or replaced by another evaluation, because of its value voids "
                "the claim"
            )
        if config.proves and config.evidence == "all":
            attached = config.answers(self._ledger.attached)
            if not bool(config.domain.contains(sent(attached.X, config.domain.like)).all()):
                assumptions.append(
                    "attached results outside the domain count as well: the norm bound is one for "
                    "the domain together with their points"
                )
        if self.own_noise:
            assumptions.append(
                "the noise variances that answers were told with do not depend on them"
            )
        if config.domain.count is None:
            assumptions.append(
                "the search for the largest deviation on the box finds at least a constant share "
                "of it, which enters the regret bound as a factor; elimination does not rest on "
                "it"
            )
        assumptions += [*_of_delays(config), *_of_rounds(config)]
        if config.proves and config.confidence.constants is None:
            assumptions.append(
                f"the bounds of {config.confidence!r} hold as stated: they have no norm bound "
                "and no noise scale that the answers could contradict"
            )
        return assumptions

    def _configuration(self) -> list[str]:
        """Why the configuration does not support the claim."""
        config, resets = self._config, self._rounds.resets > 0
        confidence, delay, kernel = config.confidence, config.delay, config.covar_module
        missing = []
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
        if resets:
            missing.append(
                "every active point is infeasible or its exact value is known already, so points "
                "that bounds had eliminated are asked."
                if config.exact
                else "every active point turned out to be infeasible, so that points had to be "
                "taken back that bounds had eliminated."
            )
        if delay is not None and config.exploit is not None and not config.repeat_pending:
            missing.append(
                "with repeat_pending=False values may decide how many design points fit into a "
                "round of fixed length; leave out delay, or repeat_pending."
            )
        if config.domain.count is not None or not isinstance(kernel, Kernel) or confidence.missing:
            return missing
        if not confidence.holds_on_box:
            missing.append(
                f"{type(confidence).__name__} does not say that its bounds hold at every point of "
                "a box: holds_on_box is False."
            )
        elif lacks := confidence.missing_on_box(kernel):
            missing.append(f"{lacks}." if self._broken else f"{lacks}; {_KEPT}.")
        return missing

    @property
    def is_refuted(self) -> bool:
        """Whether the answers contradict the constants of the bounds."""
        return bool(self._refutation(Departure.CONTRADICTED in self._departed))

    @property
    def _departed(self) -> set[Departure]:
        """How rounds departed from the plan, the open one included."""
        departed = {entry for record in self._rounds.records for entry in record.departures}
        return departed | (set() if self._rounds.open is None else self._rounds.open.departures)

    def _refutation(self, contradicted: bool) -> list[str]:
        """Whether the answers contradict the constants of the bounds, and how."""
        constants = self._constants
        if constants is not None and self.norm > constants.norm_bound:
            return [
                f"these answers need a norm of at least {self.norm:.4g} at noise of scale "
                f"{constants.noise_std:g}, and contradict norm_bound = {constants.norm_bound:g}: "
                "it or noise_std is too small, or the kernel is wrong."
            ]
        contradicted |= self._budget is not None and bool(self._budget.bounds.refuted)
        if contradicted and not self.noisier:
            return [
                "the answers contradict norm_bound and noise_std: no function of that norm fits."
            ]
        return []

    def _what_happened(self, departed: set[Departure], *, refuted: bool) -> list[str]:
        """Which events of the run end the claim although the bounds are valid."""
        config, budgeted = self._config, self._budget is not None
        kept = budgeted and not refuted and not self.noisier
        certified = "; certificate still holds" if kept else ""
        missing = [f"{reason}{certified}." for reason in self._broken]
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
        if self.failed > 0 and config.exploit is not None and not config.exact:
            missing.append(
                "a trial failed while a rule chooses asks outside the design: where the rule asked "
                "may have changed which design points followed; use exploit=None where trials fail"
                f"{certified}."
            )
        also = "" if missing or refuted else certified or f"; {_KEPT}"
        wide = f"its round may leave more regret than the bound charges{also}"
        unless = ", if it was not given up because of its value" if also and not budgeted else ""
        reasons = {
            Departure.GIVEN_UP: f"a design point was given up: {wide}{unless}.",
            Departure.UNEVEN: f"a design point has a noise variance other than noise_var: {wide}.",
            Departure.SHORTENED: f"a failure took an ask from a round of fixed length: {wide}.",
            Departure.UNANSWERED: "a round closed before all its design points were answered: "
            f"{wide}.",
        }
        missing += [sentence for departure, sentence in reasons.items() if departure in departed]
        limit = len(self._ledger) - 1 - self._longest_wait  # running trials count too
        beyond = self.beyond_bound + sum(trial.id < limit for trial in self._ledger.running())
        if beyond:
            missing.append(
                f"{beyond} trial{'s' * (beyond > 1)} took longer than u_T, and by the delay law "
                f"even one does so with probability at most {config.delta / 2.0:g}: {wide}."
            )
        return missing


def _geometric_factor(growth: float) -> float:
    """The factor on the worst-case form of Theorem 1's bound, without round 1, if q_r = g q_{r-1}.

    That form charges h(q_{r-1}) for each ask of round r. h(q) = min(D, c sqrt(Gamma(q) / q)) is
    decreasing and sqrt(q) h(q) increasing, so that it comes to at least T h(T) in total. Here a
    round is charged q_r h(q_{r-1}) <= h(T) sqrt(T) sqrt(g q_r), and
    sum sqrt(q_r) <= sqrt(T) sqrt(2 sqrt(g) / (sqrt(g) - 1)) by Cauchy-Schwarz, for the last round,
    wherever it is cut, and the geometric series of the rounds before it.
    """
    root = math.sqrt(growth)
    return math.sqrt(2.0 * growth * root / (root - 1.0))


def _of_delays(config: BPEConfig) -> list[str]:
    """What delays may depend on; this follows from which answers the bounds use."""
    found = []
    if config.exact:
        found.append(
            "evaluations are exact, so that bounds from all answers hold whatever points, delays "
            "and failures depend on; a point that has been asked is not asked again, the best "
            "included"
        )
    elif config.proves_from_all:
        found.append(
            "half of the bounds' share of delta is for the self-normalised bound from all answers, "
            "so that Theorem 1's bound is that for delta / 2: delays, failures and attached "
            "results do not depend on the noise given the point, and "
            "every attached result is an evaluation of its own, attached once"
        )
    elif config.delay is None and config.rounds.straggler_factor is None:
        found.append(
            "delays may depend on the points; on the values too as long as no trial fails or is "
            "abandoned"
        )
    if config.delay is not None:
        given = "" if config.exact else ", and do not depend on the noise given the point"
        found.append(f"delays are independent, with the law {config.delay!r}{given}")
        found.append(
            "finish() is called at a moment that does not depend on values, if design points of "
            "the last round are still running then"
        )
    return found


def _of_rounds(config: BPEConfig) -> list[str]:
    """How the regret bound counts asks made while rounds wait, and what its factor multiplies."""
    assumptions = []
    if config.fraction < 1.0 or config.geometric is not None:
        assumptions.append(
            "the factor, up to rounds of whole asks, is on the worst-case form of the regret "
            "bound, which has the maximal information gain in place of the deviations that "
            "designs leave: smaller designs may leave more of them than in proportion, and the "
            "bound with the deviations themselves, times the factor, may be exceeded"
        )
    if config.delay is None:
        assumptions.append(
            "asks that are made while a round waits for its last design points come on top of "
            "Theorem 1's bound: every one of them is waited for, however long it takes"
            if config.rounds.straggler_factor is None
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
    if config.rounds.straggler_factor is not None and not config.exact:
        assumptions.append(_NO_STRAGGLERS.format(config.rounds.straggler_factor))
    return assumptions
