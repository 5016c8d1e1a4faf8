"""The rounds of a run: the active set, the open round, and the records of closed ones."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from botorch_delay import validation
from botorch_delay.domains.devices import sent
from botorch_delay.elimination.active_set import ActiveSet, RoundAnswers, RoundBounds
from botorch_delay.elimination.box_active_set import whole_set
from botorch_delay.elimination.closing import close_round
from botorch_delay.elimination.open_round import NO_SLOT, WAITING_SLOT, OpenRound, Outstanding
from botorch_delay.elimination.rounds import Departure, RoundRecord
from botorch_delay.exceptions import EmptyDomainError, NoAnswerError, StorageError
from botorch_delay.gp.surrogate import MANY_ANSWERS, Surrogate
from botorch_delay.history.answers import Answers
from botorch_delay.history.empirical_delay import EmpiricalDelay
from botorch_delay.history.events import Event
from botorch_delay.history.point_status import MAX_FAILURES, Feasibility
from botorch_delay.history.trials import Attached, Ledger, Trial, TrialObserver
from botorch_delay.optimizers.config import BPEConfig
from botorch_delay.optimizers.early_close import EarlyClose
from botorch_delay.optimizers.forecasts import Forecast, Straggler, describe_running, planned_asks
from botorch_delay.optimizers.run import Fitting

logger = logging.getLogger(__name__)

# The most slots to reserve below one that was asked elsewhere: more than any run needs, and few
# enough that a damaged event does not cost hours.
FURTHEST_SLOT = 10_000
# The rule respects what a learned kernel has eliminated until answers have grown by this factor
# since the first elimination: by then the kernel is a different one.
GROWTH_TO_OUTDATE = 2


class RoundSequence(TrialObserver):
    """The rounds of a run.

    Decisions are returned as the data of an event; the ``apply_`` methods make them take effect,
    here and when the event is replayed.
    """

    def __init__(
        self, config: BPEConfig, ledger: Ledger, fitting: Fitting, feasibility: Feasibility
    ) -> None:
        self._config, self._ledger, self._fitting = config, ledger, fitting
        self._feasibility = feasibility
        self.round_rule = config.round_rule()
        self.active: ActiveSet = whole_set(config.domain, config.seed, feasibility.keys)
        self.open: OpenRound | None = None  # None before the first ask and after the last round
        # Whether the run is shared with processes that learn of attached results at other times.
        # Designs then leave these out, and so do bounds on a box, which each process recomputes.
        self.is_shared = False
        self.records: list[RoundRecord] = []  # of the closed rounds
        self.resets = 0  # how often no active point could be asked
        self.designed = 0  # design points asked, in all rounds
        self.out_of_round = 0  # asks made elsewhere for a round that had closed here
        self.closed_at = -1  # how many asks had been made when the last round closed
        # How many answers and attached results there were when a round first eliminated points.
        self._eliminated_at: int | None = None
        # The active set that close() found, until its event is applied; a replay derives it anew.
        self._next_active: ActiveSet | None = None
        factor = config.rounds.straggler_factor
        self._early = None if factor is None else EarlyClose(factor, config.domain)

    def __str__(self) -> str:
        """A line on the stage of the run and the share of the domain that can still be best."""
        count = self._config.domain.count
        share = f"{self.feasible.size:.0f} of {count} points"
        if count is None:
            left = self.records[-1].active_after if self.records else 1.0
            share = f"{left:.1%} of the box" if left >= 0.001 else "less than 0.1% of the box"
        stage = f"rounds: {len(self.records)}, all closed" if self.records else "no round has begun"
        if self.open is not None:
            number, planned = self.open.number, self.round_rule.count
            stage = f"round {number}" + (f" of about {max(planned, number)}" if planned else "")
        found = f"{stage}; {share} can still be the best"
        if self.open is None or not self.is_outdated:
            return found
        return f"{found}, as far as the last round could tell; later answers may say otherwise"

    @property
    def needs_all(self) -> bool:
        """Whether the regret bound needs the answer of every design point of a round."""
        waits = self.round_rule.on_arrival and self._early is None
        return self._config.proves_by_rounds and waits

    @property
    def feasible(self) -> ActiveSet:
        """The active set without infeasible points."""
        return self.active.without(self._feasibility.infeasible())

    def of(self, trial: Trial) -> OpenRound | None:
        """The open round, if a trial is of it; one asked elsewhere may be of an earlier round."""
        return self.open if self.open is not None and trial.round == self.open.number else None

    def is_due(self, current: OpenRound) -> bool:
        """Whether the open round closes before the next point is chosen."""
        if current.length is not None:
            return current.asks >= current.length
        if current.design_is_settled():
            return True
        if self._early is None or not current.design_is_asked():
            return False
        rows = self.feasible.rows
        assert rows is not None
        return self._early.allows(current, rows)

    @property
    def is_outdated(self) -> bool:
        """Whether later answers speak against what a learned kernel has eliminated.

        They do once there are twice as many as when points were first eliminated, or while the best
        one in the domain is at an eliminated point.
        """
        values = self._ledger.values
        if not self._config.learned or self._eliminated_at is None or not values:
            return False
        many = len(values) >= GROWTH_TO_OUTDATE * self._eliminated_at
        return many or _best_is_eliminated(self._ledger, self._config.sign, self.active)

    def is_held(self, current: OpenRound) -> bool:
        """Whether the next design point waits because a trial of it is running."""
        if self._config.repeat_pending:
            return False
        key = current.next_key()
        return key is not None and bool(self._feasibility.running(key))

    def stragglers(self, law: EmpiricalDelay | None) -> list[Straggler]:
        """The running trials that keep the open round from closing, longest wait first."""
        current = self.open
        if current is None or not self.round_rule.on_arrival or not current.design_is_asked():
            return []
        return self._running(current.outstanding(), law)

    def forecast(self, law: EmpiricalDelay | None) -> Forecast | None:
        """When the open round will close; None if none is open that closes on arrival."""
        current, asks, horizon = self.open, len(self._ledger), self._config.horizon
        if current is None or not self.round_rule.on_arrival:
            return None
        left = None if horizon is None else horizon - asks
        outstanding = current.outstanding()
        new = max(current.design_size - len(current.slots), 0)
        to_ask = planned_asks(outstanding.again, new, self.designed, asks, self._config.fraction)
        waited = self._running(outstanding, law)
        if law is None and (waited or to_ask):
            raise NoAnswerError("There is no answer yet to forecast from.")
        earliest = self._config.budget_factor is not None and new > 0
        return Forecast(current.number, tuple(waited), tuple(to_ask), left, law, earliest)

    def _running(self, outstanding: Outstanding, law: EmpiricalDelay | None) -> list[Straggler]:
        """The running trials that a round waits for: of its slots, or of points to be repeated."""
        held = {trial for key in outstanding.held for trial in self._feasibility.running(key)}
        trials = [self._ledger[trial] for trial in sorted(held.union(outstanding.trials))]
        return describe_running(trials, len(self._ledger), law)

    def bounds(self, number: int) -> RoundBounds:
        """The delta of a round's bounds, the number of points they cover, and how they are made."""
        config, rows = self._config, self.active.rows
        delta = config.delta / 2.0  # the other half is for the delays, with a law or without
        if config.budget_factor is not None or config.proves_from_all:
            # Halved again, for the bounds of the budget or those from all answers: never for both.
            delta /= 2.0
        points = None if rows is None else len(config.domain.like if config.as_published else rows)
        of_round = delta / self.round_rule.delta_divisor(number)
        valid, sign = config.proves, config.sign
        return RoundBounds(number, config.confidence, of_round, delta, points, valid, sign)

    def close(self, current: OpenRound, *, last: bool) -> dict[str, Any]:
        """Close the open round: its record and what it eliminates, as the data of an event.

        With valid bounds, the last round is judged by its own answers only if it ends as planned.
        """
        if not last and not self.round_rule.on_arrival and current.outstanding().trials:
            current.departures.add(Departure.UNANSWERED)
        if not last and current.gave_up():
            current.departures.add(Departure.GIVEN_UP)
        answers = self._answers(current)
        if last and self._config.proves_by_rounds and not self._ends_as_planned(current):
            answers = replace(answers, trial_ids=(), fixed=self._config.answers(()))
        infeasible, bounds = self._feasibility.infeasible(), self.bounds(current.number)
        parts = current, answers, self.active, infeasible, bounds
        record, self._next_active = close_round(*parts, last=last)
        logger.info(
            "round %d closed after %d asks: %d answers used, %.6g active before, %.6g after",
            record.number,
            record.length,
            record.observed,
            record.active_before,
            record.active_after,
        )
        left, attached = self._next_active.difference_from(self.active), self._uses_attached
        return {"record": record.describe(), "left": left, "last": last, "attached": attached}

    def reset(self, current: OpenRound) -> dict[str, Any]:
        """The decision to go on with every feasible point, as the data of an event.

        Points of exactly known value stay active, unasked; EmptyDomainError if no others are left.
        """
        infeasible, known = self._feasibility.infeasible(), self._feasibility.known()
        left = self.active.restored(infeasible, current.number)
        if left.is_empty:
            raise EmptyDomainError(
                f"Every point of the domain failed {MAX_FAILURES} times and can be asked no more; "
                "see the reasons in opt.trials."
            )
        if known and left.without(sorted(known)).is_empty:
            raise self._feasibility.nothing_to_ask()
        if not known:
            logger.warning(
                "round %d: every active point is infeasible; going on with all feasible points of "
                "the domain",
                current.number,
            )
        return {"whole": self.feasible.is_empty}

    def apply_opened(self) -> None:
        """Open a round: the first, or one after an extension."""
        self.open = self._new_round()

    def extended(self, before: int | None) -> None:
        self.round_rule = self._config.round_rule()  # an open round keeps its size and its length

    def apply_close(self, current: OpenRound, data: Mapping[str, Any]) -> None:
        """Close a round as it was decided, here or elsewhere."""
        active, self._next_active = self._next_active, None
        record, last = RoundRecord.read(data["record"]), validation.flag(data["last"], "last")
        pooled = validation.flag(data.get("attached", False), "attached")
        known = all(trial_id < len(self._ledger) for trial_id in record.trial_ids)
        whole_design = last or record.design_size == current.design_size
        if record.number != current.number or not (known and whole_design):
            raise StorageError(f"round {record.number} cannot have closed like this.")
        config = self._config

        def judged() -> tuple[Surrogate, Answers, RoundBounds]:
            attached = self._ledger.attached if pooled else []
            used = [self._ledger[trial_id] for trial_id in record.trial_ids]
            answers = config.answers([*used, *attached])
            surrogate = config.fixed or Surrogate.rebuild(record.surrogate or {}, config.domain)
            return surrogate.standardized(answers.y), answers, self.bounds(record.number)

        if active is None:
            active = self.active.after_record(record, data["left"], judged)
        self.active = active
        if record.cutoff is not None and self._eliminated_at is None:
            self._eliminated_at = len(self._ledger.values)
        self.records.append(record)
        self.closed_at = len(self._ledger)
        self.open = None if last else self._new_round()

    def apply_reset(self, current: OpenRound, *, whole: bool) -> None:
        """Design the open round on every feasible point; ``whole``: all become active again."""
        left = self.active.restored(self._feasibility.infeasible(), current.number)
        if whole:
            self.active = left
        self.resets += 1
        current.restart(left)

    def asked(self, trial: Trial, data: Mapping[str, Any]) -> None:
        current, key = self.of(trial), self._feasibility.key(trial)
        if current is None:  # asked elsewhere, while its round was open
            if trial.round > len(self.records):
                raise StorageError(
                    f"trial {trial.id} is of round {trial.round}, which is not open."
                )
            self.out_of_round += 1
            self.designed += trial.slot >= 0
        else:
            if trial.slot >= 0 and not current.admits(trial.slot, key):
                raise StorageError(f"trial {trial.id} has an impossible slot, {trial.slot}.")
            self.designed += trial.slot >= 0 and not current.is_served(trial.slot)
            current.take(trial, key)
        self._update_status(key)

    def settled(self, trial: Trial) -> None:
        current = self.of(trial)
        if current is not None:
            current.settle(trial)
        # Answers that arrive after their round has closed count for the rule, and with
        # evidence="all" for the bounds of later rounds; the decisions of their own round stay.
        self._update_status(self._feasibility.key(trial))

    def attached(self, result: Attached) -> None:
        self._update_status(self._feasibility.key(result))

    detached = attached

    def is_news(self, event: Event, *, finished: bool) -> bool:
        """Whether an event of an ask made elsewhere has yet to happen here."""
        if event.kind == "opened":
            return self.open is None and not finished
        return self.open is not None and (
            event.kind != "closed" or event.data["record"]["number"] == self.open.number
        )

    def design_point_before(self, asked: Mapping[str, Any]) -> dict[str, Any] | None:
        """The design point to reserve, as the data of an event, if an ask made elsewhere skips one.

        The trial of the skipped point is not known yet, or was never made. None if none is skipped.
        """
        current, slot = self.open, asked["slot"]
        if current is None or asked["round"] != current.number:
            return None
        if not len(current.slots) < slot <= len(current.slots) + FURTHEST_SLOT:
            return None
        key = current.next_key()
        if key is None:
            return None
        return {"x": self._feasibility.point(key).tolist(), "point": key if key >= 0 else None}

    def placed(self, asked: Mapping[str, Any], *, finished: bool) -> dict[str, Any]:
        """The data of an ask made elsewhere, with its round and slot here.

        By now its round may have closed, or its slot may have gone to another trial.
        """
        current, number, slot = self.open, asked["round"], asked["slot"]
        key = self.active.key_of(sent(asked["x"], self.active.domain.like))
        data = dict(asked) | {"point": key if key >= 0 else None}
        if current is None:
            if not finished:
                raise StorageError("The ask that opened the first round is missing.")
            # It was asked elsewhere at the same time as the last ask.
            return data | {"round": len(self.records), "slot": NO_SLOT}
        if number < current.number or (number == current.number and slot < 0):
            return data
        fits = number == current.number and current.admits(slot, key)
        # One that does not fit counts as asked while the round waits.
        return data | {"round": current.number, "slot": slot if fits else WAITING_SLOT}

    def _ends_as_planned(self, current: OpenRound) -> bool:
        """Whether the number of design points of the last round cannot depend on values.

        It may depend on them if the run was ended early, or if values decide when a design point is
        asked: Lemma 1 covers such a round only if its design is complete.
        """
        config, on_arrival = self._config, self.round_rule.on_arrival
        if on_arrival and current.design_is_settled():
            return True
        # With a delay law Algorithm 1 itself leaves late answers out, independent of their noise.
        arrived = not (on_arrival and current.outstanding().trials)
        ended = arrived and len(self._ledger) == config.horizon
        return ended and config.repeat_pending and config.budget_factor is None

    @property
    def _uses_attached(self) -> bool:
        """Whether bounds use attached results as well."""
        alone = self.is_shared and self.active.rows is None
        return self._config.merges and not alone and bool(self._ledger.attached)

    def _answers(self, current: OpenRound) -> RoundAnswers:
        """The answers by which the open round is judged if it closes now."""
        config, ledger = self._config, self._ledger
        if config.merges:
            ids = tuple(trial.id for trial in ledger.answered())
            used = ledger.results() if self._uses_attached else ledger.answered()
            return RoundAnswers(ids, config.answers(used))
        size = current.design_size if self.round_rule.on_arrival else None
        ids = tuple(current.answered(size))
        answers = config.answers([ledger[trial_id] for trial_id in ids])
        everything = config.answers(ledger.results()) if config.proves_from_all else None
        return RoundAnswers(ids, answers, everything, current.design)

    def _new_round(self) -> OpenRound:
        number = len(self.records) + 1
        # The last round before an extension may have had no design points.
        previous = max(self.records[-1].design_size, 1) if self.records else 1
        size = self.round_rule.design_size(number, previous)
        length = self.round_rule.length(size, len(self._ledger))
        statuses = {key: self._feasibility.status(key) for key in self._feasibility.unavailable()}
        # Attached results count in the design only if the kernel is learned: with a given one,
        # claims rest on the design's own points. At most MANY_ANSWERS, to bound a design's time.
        attached = self._ledger.attached if self._config.learned and not self.is_shared else []
        keys = [self._feasibility.key(result) for result in attached]
        return OpenRound(
            number,
            size,
            length,
            self._fitting.surrogate,
            self.active,
            statuses,
            needs_all=self.needs_all,
            attached=tuple(keys[:: len(keys) // MANY_ANSWERS + 1]),
        )

    def _update_status(self, key: int) -> None:
        if self.open is not None and (self._config.exact or key in self._feasibility.suspects):
            self.open.set_status(key, self._feasibility.status(key))


def _best_is_eliminated(ledger: Ledger, sign: float, active: ActiveSet) -> bool:
    """Whether the point of the domain's best result is eliminated; ``sign`` is -1 to minimise."""
    domain = active.domain
    for result in sorted(ledger.results(), key=lambda each: -sign * (each.value or 0.0)):
        X = sent(result.point.unsqueeze(0), domain.like)
        # Attached results may lie outside the domain.
        if isinstance(result, Trial) or bool(domain.contains(X)):
            return bool(active.round_that_eliminated(X) > 0)
    return False
