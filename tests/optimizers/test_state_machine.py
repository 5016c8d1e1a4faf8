"""Hypothesis drives an optimizer against a plain ledger."""

from __future__ import annotations

import copy
import math
import tempfile
from pathlib import Path

import pytest
import torch
from cases import scattered, se
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from scale import repeats

import botorch_delay as bd
from botorch_delay.exceptions import BotorchDelayError, HorizonError, NoAnswerError, TrialError
from botorch_delay.history.trials import TrialState

pytestmark = pytest.mark.usefixtures("small_searches")

POINTS = scattered(12)
HORIZON = 40
LAWS = [None, None, bd.NoDelay(), bd.ConstantDelay(4)]
values = st.floats(-3, 3)


class Machine(RuleBasedStateMachine):
    """Every call is mirrored by a dict of plain entries."""

    @initialize(
        law=st.sampled_from(LAWS),
        maximize=st.booleans(),
        learned=st.sampled_from([False, False, False, True]),
        beta=st.sampled_from([0.05, 6.0]),
        played=st.sampled_from([None, 0.1, 1.0]),
        kappa=st.sampled_from([None, None, 1.5]),
    )
    def make(self, law, maximize, learned, beta, played, kappa):
        self.options = {"delay": law, "maximize": maximize, "confidence": bd.FixedBeta(beta)}
        if played is None:
            self.options["exploit"] = None
        elif law is None:
            self.options |= {"explore_fraction": played, "evidence": "round"}
        if law is None:
            self.options["rounds"] = bd.HorizonRounds(kappa)
        if not learned:
            self.options |= {"covar_module": se(), "noise_var": 0.01}
        self.opt = bd.BPEDelayOptimizer(bd.FiniteDomain(POINTS), HORIZON, **self.options)
        self.ledger: dict[int, dict[str, object]] = {}
        self.attached: list[float] = []
        self.active = len(POINTS)
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name) / "study.db"
        self.finished, self.horizon, self.failed = False, HORIZON, False

    def teardown(self):
        if hasattr(self, "folder"):
            self.folder.cleanup()

    def state(self):
        return str(self.opt.state_dict())

    def refused(self, call, error=BotorchDelayError):
        """A refused call changes nothing."""
        before = self.state()
        with pytest.raises(error):
            call()
        assert self.state() == before

    def pick(self, number, *states):
        ids = [i for i, entry in self.ledger.items() if entry["state"] in states]
        return ids[number % len(ids)] if ids else None

    @rule(n=st.integers(0, 7))
    def ask(self, n):
        left = self.horizon - len(self.ledger)
        if self.finished or n > left or left == 0:
            self.refused(lambda: self.opt.ask(n or None), HorizonError)
            return
        closed = len(self.opt.rounds)
        try:
            asked = self.opt.ask(n) if n else [self.opt.ask()]
        except bd.exceptions.EmptyDomainError:
            assert self.all_infeasible()
            return
        assert len(asked) == (n or 1)
        for trial in asked:
            assert trial.id == len(self.ledger)
            assert torch.equal(trial.x, POINTS[trial.index])
            assert trial.state is TrialState.RUNNING
            self.ledger[trial.id] = {"state": "running", "index": trial.index, "value": None}
        if len(self.opt.rounds) == closed:  # otherwise some were asked before it closed
            active = set(self.opt.active_set.indices.tolist())
            assert {t.index for t in asked} <= active

    def all_infeasible(self):
        """Three failures among the trials after the last answered one, at every point."""
        for index in range(len(POINTS)):
            entries = [e for e in self.ledger.values() if e["index"] == index]
            last = max((i for i, e in enumerate(entries) if e["value"] is not None), default=-1)
            if sum(e["state"] == "failed" for e in entries[last + 1 :]) < 3:
                return False
        return True

    @rule(number=st.integers(0, 100), y=values)
    def tell(self, number, y):
        trial_id = self.pick(number, "running", "abandoned")
        if trial_id is None:
            return
        self.opt.tell(trial_id, y)
        self.ledger[trial_id] |= {"state": "completed", "value": y}

    @rule(number=st.integers(0, 100))
    def fail(self, number):
        trial_id = self.pick(number, "running")
        if trial_id is None:
            return
        self.opt.mark_failed(self.opt.trials[trial_id], "crash")
        self.ledger[trial_id]["state"], self.failed = "failed", True

    @rule(number=st.integers(0, 100))
    def abandon(self, number):
        trial_id = self.pick(number, "running")
        if trial_id is None:
            return
        self.opt.mark_abandoned(trial_id)
        self.ledger[trial_id]["state"] = "abandoned"

    @rule(number=st.integers(0, 100), y=st.none() | values)
    def correct(self, number, y):
        trial_id = self.pick(number, "completed", "failed")
        if trial_id is None:
            return
        entry = self.ledger[trial_id]
        if y is None and entry["value"] is None:
            self.refused(lambda: self.opt.correct(trial_id, None), TrialError)
            return
        self.opt.correct(trial_id, y, "a slip")
        assert self.opt.trials[trial_id].corrections[-1].value == entry["value"]
        entry |= {"state": "failed" if y is None else "completed", "value": y}
        self.failed |= y is None

    @rule(number=st.integers(0, 100))
    def detach(self, number):
        if not self.opt.attached:
            self.refused(lambda: self.opt.detach(0))
            return
        place = number % len(self.attached)
        result = self.opt.attached[place]
        self.opt.detach(result.id, "of another batch")
        assert self.opt.detached[-1].value == self.attached.pop(place)
        self.refused(lambda: self.opt.detach(result.id))

    @precondition(lambda self: len(self.ledger) > 15)
    @rule(more=st.integers(0, 9))
    def extend(self, more):
        more = 0 if self.horizon > 2 * HORIZON else more
        if not more and not self.finished:
            self.refused(lambda: self.opt.extend(self.horizon))
            return
        self.horizon += more
        self.opt.extend(self.horizon)
        self.finished = False

    @rule(row=st.integers(0, 11), y=values, inside=st.booleans())
    def attach(self, row, y, inside):
        self.opt.attach(POINTS[row] + (0.0 if inside else 2.0), y)
        self.attached.append(y)

    @rule(number=st.integers(0, 100))
    def forge(self, number):
        """Trials that are answered, failed or unknown cannot be told."""
        settled = self.pick(number, "completed", "failed")
        if settled is not None:
            self.refused(lambda: self.opt.tell(settled, 1.0), TrialError)
            self.refused(lambda: self.opt.mark_failed(settled), TrialError)
            self.refused(lambda: self.opt.mark_abandoned(settled), TrialError)
        running = self.pick(number, "running")
        if running is not None:
            self.refused(lambda: self.opt.tell(running, math.nan))
        self.refused(lambda: self.opt.tell(len(self.ledger), 1.0), TrialError)

    @rule()
    def recommend(self):
        answered = [e for e in self.ledger.values() if e["value"] is not None]
        if not answered and not self.attached:
            self.refused(self.opt.recommend, NoAnswerError)
            return
        best = self.opt.recommend()
        assert best.lower <= best.mean <= best.upper
        assert math.isfinite(best.mean)
        assert torch.equal(best.x, POINTS[best.index])
        if answered and not self.attached:
            assert best.index in {e["index"] for e in answered}

    @rule()
    def save_and_load(self):
        self.opt.save(self.path)
        loaded, twin = bd.load(self.path), bd.load(self.path)
        assert str(loaded.state_dict()) == self.state()
        if not self.finished and len(self.ledger) < self.horizon and not self.all_infeasible():
            # Compare the next ask of two copies; the originals stay as they are.
            ahead = copy.deepcopy(self.opt).ask()
            assert twin.ask().index == ahead.index
        self.opt = loaded

    @rule()
    def move_to_a_fresh_optimizer(self):
        fresh = bd.BPEDelayOptimizer(bd.FiniteDomain(POINTS), HORIZON, **self.options)
        fresh.load_state_dict(self.opt.state_dict())
        assert str(fresh.state_dict()) == self.state()
        self.opt = fresh

    @precondition(lambda self: len(self.ledger) > 25)
    @rule()
    def finish(self):
        self.opt.finish()
        self.finished = True

    @invariant()
    def nothing_is_lost_or_counted_twice(self):
        if not hasattr(self, "opt"):
            return
        trials = self.opt.trials
        assert [t.id for t in trials] == list(self.ledger)
        for trial, entry in zip(trials, self.ledger.values(), strict=True):
            assert trial.state.value == entry["state"]
            assert trial.value == entry["value"]
            assert trial.index == entry["index"]
        assert [t.id for t in self.opt.pending] == [
            i for i, entry in self.ledger.items() if entry["state"] == "running"
        ]
        assert [a.value for a in self.opt.attached] == self.attached

    @invariant()
    def tries_are_counted_as_they_are(self):
        if not hasattr(self, "opt"):
            return
        counted, values = self.opt._feasibility, {}
        for place in [*self.opt.trials, *self.opt.attached]:
            if place.index is None:  # not in the domain
                continue
            if place.value is not None or place in self.opt.pending:
                values.setdefault(place.index, []).append(place.value)
        assert counted._tries == {key: len(found) for key, found in values.items()}
        assert counted._tries.total() == sum(map(len, values.values()))
        different = {key for key, found in values.items() if len({*found} - {None}) > 1}
        assert counted._differing == different

    @invariant()
    def a_round_that_waits_says_for_whom(self):
        if not hasattr(self, "opt") or self.options["delay"] is not None:
            return
        current = self.opt._rounds.open
        if current is None:
            return
        asked_all = len(current.slots) >= current.design_size
        if asked_all and not current.design_is_settled() and current.next_retry() is None:
            assert self.opt.stragglers

    @invariant()
    def rounds_are_sound(self):
        if not hasattr(self, "opt"):
            return
        used: set[int] = set()
        trials = self.opt.trials
        for number, record in enumerate(self.opt.rounds, start=1):
            assert record.number == number
            assert len(record.trial_ids) == record.observed <= record.length
            assert 1 <= record.active_after <= record.active_before
            for trial_id in record.trial_ids:
                assert trials[trial_id].round == number
                assert trials[trial_id].value is not None or trials[trial_id].corrections
                assert not trials[trial_id].came_back
            assert not used & set(record.trial_ids)
            used |= set(record.trial_ids)
        if not any("infeasible" in line for line in self.opt.guarantee.missing):
            assert len(self.opt.active_set) <= self.active  # active sets only shrink
            if not self.failed:  # an infeasible point may return
                self.active = len(self.opt.active_set)


@pytest.mark.filterwarnings("ignore::botorch_delay.exceptions.OutlierWarning")
class TestMachine(Machine.TestCase):
    settings = settings(max_examples=8, stateful_step_count=30, deadline=None)


@pytest.mark.heavy
@pytest.mark.filterwarnings("ignore::botorch_delay.exceptions.OutlierWarning")
class TestMachineAtLength(Machine.TestCase):
    settings = settings(max_examples=repeats(200, 5), stateful_step_count=80, deadline=None)
