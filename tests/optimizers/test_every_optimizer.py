"""What holds for every optimizer: nothing is lost, refused calls change nothing, runs resume."""

from __future__ import annotations

import copy
import math
import tempfile
import warnings
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from botorch.acquisition import LogExpectedImprovement, UpperConfidenceBound
from botorch.acquisition.logei import qLogExpectedImprovement
from botorch.exceptions.warnings import InputDataWarning
from cases import plain, scattered, se
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from scale import some

import botorch_delay as bd
from botorch_delay.exceptions import (
    BotorchDelayError,
    EmptyDomainError,
    FewerTrialsWarning,
    HorizonError,
    InputTypeError,
    NoAnswerError,
    NumericsError,
    NumericsWarning,
    StorageError,
    TrialError,
)

pytestmark = pytest.mark.usefixtures("small_searches")

POINTS = scattered(12)
BOX = torch.tensor([[0.0, -1.0, 1e-3], [2.0, 1.0, 1e-1]], dtype=torch.double)
HORIZON = 60
FIXED = {"covar_module": se(), "noise_var": 0.02}


def index(**options):
    def make(maximize=True, horizon=HORIZON):
        given = FIXED | {"horizon": horizon, "maximize": maximize} | options
        return bd.AcquisitionOptimizer(bd.FiniteDomain(POINTS), **given)

    return make


def threds(maximize=True, horizon=HORIZON):
    return bd.ThreDSOptimizer(
        bd.FiniteDomain(POINTS),
        horizon=horizon,
        confidence=bd.FixedBeta(4.0),
        interval=(-2.0, 2.0),
        patience=4,
        maximize=maximize,
        **FIXED,
    )


def bpe(maximize=True, horizon=HORIZON):
    options = FIXED | {"maximize": maximize, "exploit": None}
    return bd.BPEDelayOptimizer(bd.FiniteDomain(POINTS), horizon, **options)


def search(domain):
    def make(maximize=True, horizon=HORIZON):
        return bd.RandomOptimizer(domain, horizon=horizon, maximize=maximize)

    return make


def wrapped(base):
    return lambda maximize=True, horizon=HORIZON: bd.QueuedOptimizer(base(maximize, horizon))


OPTIMIZERS = {
    "certifying": index(rule=bd.CertifyingUCB(2.0, 0.1)),
    "UCB, ignore": index(rule=bd.UCB(4.0), pending=bd.Ignore()),
    "UCB, hallucinate": index(rule=bd.UCB(4.0), pending=bd.Hallucinate()),
    "UCB, drawn": index(rule=bd.UCB(4.0), pending=bd.KrigingBeliever()),
    "UCB, censor": index(rule=bd.UCB(4.0), pending=bd.Censor(-3.0, 5, inflate=True)),
    "TS, hallucinate": index(rule=bd.ThompsonSampling(2.0)),
    "TS, censor": index(rule=bd.ThompsonSampling(), pending=bd.Censor(-3.0, max_delay=4)),
    "learned": index(covar_module=None, noise_var=None),
    "botorch": index(rule=bd.BotorchRule(UpperConfidenceBound, beta=4.0)),
    "threds": threds,
    "random set": search(bd.FiniteDomain(POINTS)),
    "random box": search(
        bd.BoxDomain(BOX, discrete_dims={0: [0, 1, 2]}, cat_dims={1: [-1, 1]}, log_dims=[2])
    ),
    "queued index": wrapped(index(rule=bd.UCB(4.0), pending=bd.Ignore())),
    "queued BPE": wrapped(bpe),
    "queued threds": wrapped(threds),
}


def mixed():
    return bd.BoxDomain(BOX, discrete_dims={0: [0, 1, 2]}, cat_dims={1: [-1, 1]}, log_dims=[2])


def on_box(**options):
    def make(maximize=True, horizon=HORIZON):
        given = FIXED | {"horizon": horizon, "maximize": maximize} | options
        return bd.AcquisitionOptimizer(mixed(), **given)

    return make


def threds_on_box(maximize=True, horizon=HORIZON):
    confidence, interval = bd.FixedBeta(4.0), (-2.0, 2.0)
    return bd.ThreDSOptimizer(
        bd.BoxDomain(BOX[:, :2]),
        horizon=horizon,
        confidence=confidence,
        interval=interval,
        maximize=maximize,
        **FIXED,
    )


def bpe_on_box(**options):
    def make(maximize=True, horizon=HORIZON):
        return bd.BPEDelayOptimizer(mixed(), horizon, maximize=maximize, **options)

    return make


def exploiting(**options):
    def make(maximize=True, horizon=HORIZON):
        given = FIXED | {"maximize": maximize} | options
        return bd.BPEDelayOptimizer(bd.FiniteDomain(POINTS), horizon, **given)

    return make


OPTIMIZERS |= {
    "BPE, few design points": exploiting(explore_fraction=0.3, evidence="round"),
    "BPE, all evidence": exploiting(
        explore_fraction=0.3, evidence="all", confidence=bd.RKHSConfidence(1.0, 0.2)
    ),
    "BPE, geometric, TS": exploiting(
        exploit=bd.ThompsonSampling(), rounds=bd.GeometricRounds(3, 1.5), explore_fraction=0.5
    ),
    "BPE, budget": exploiting(
        confidence=bd.RKHSConfidence(1.0, 0.2), exploit=bd.WithinBudget(factor=1.25)
    ),
    "BPE, delay law": exploiting(delay=bd.ConstantDelay(3)),
    "BPE, learned": exploiting(covar_module=None, noise_var=None, explore_fraction=0.3),
    "UCB, box": on_box(rule=bd.UCB(4.0)),
    "UCB, censor, box": on_box(rule=bd.UCB(4.0), pending=bd.Censor(-3.0, 5, inflate=True)),
    "TS, box": on_box(rule=bd.ThompsonSampling()),
    "learned, box": on_box(covar_module=None, noise_var=None),
    "botorch, box": on_box(rule=bd.BotorchRule(UpperConfidenceBound, beta=4.0)),
    "threds, box": threds_on_box,
    "BPE, box": bpe_on_box(**FIXED),
    "BPE, box, valid bounds": bpe_on_box(confidence=bd.RKHSConfidence(1.0, 0.2), **FIXED),
    "BPE, box, learned": bpe_on_box(),
}
# Learned kernels and boxes cost most: in tests that cover all optimizers, some of these run only
# with -m heavy.
SLOW = ["BPE, learned", "learned, box", "botorch, box", "UCB, censor, box", "TS, box"]
SLOW += ["BPE, box, valid bounds", "BPE, box, learned"]


def slow_ones_last(names):
    quick = [name for name in names if name not in SLOW]
    return some([*quick, *(name for name in names if name in SLOW)], len(quick))


values = st.floats(-3, 3)


class Machine(RuleBasedStateMachine):
    """Every call is mirrored by a dict of plain entries."""

    played = 0  # number of sequences run

    @initialize(name=st.sampled_from(sorted(OPTIMIZERS)), maximize=st.booleans())
    def make(self, name, maximize):
        type(self).played += 1
        self.fresh = lambda: OPTIMIZERS[name](maximize)
        self.opt = self.fresh()
        self.ledger: dict[int, list[object]] = {}
        self.attached: list[float] = []
        self.horizon = HORIZON
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name) / "study.db"

    def teardown(self):
        if hasattr(self, "folder"):
            self.folder.cleanup()

    def state(self, opt=None):
        return plain((opt or self.opt).state_dict())

    def following(self, opt):
        """The next ask, made by a copy: the optimizer itself stays as it is."""
        try:
            trial = copy.deepcopy(opt).ask()
        except (EmptyDomainError, HorizonError) as error:
            return str(error)
        return trial.index, trial.round, trial.slot, plain(trial.x)

    def refused(self, call, error=BotorchDelayError):
        before = self.state()
        with pytest.raises(error):
            call()
        assert self.state() == before

    def pick(self, number, *states):
        ids = [i for i, entry in self.ledger.items() if entry[0] in states]
        return ids[number % len(ids)] if ids else None

    @rule(n=st.integers(1, 6))
    def ask(self, n):
        if n > self.horizon - len(self.ledger):
            self.refused(lambda: self.opt.ask(n), HorizonError)
            return
        twin, before = copy.deepcopy(self.opt), len(self.ledger)
        self.ask_one_by_one(n)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FewerTrialsWarning)
            try:
                together = twin.ask(n)
            except EmptyDomainError:
                together = []
        assert [plain(t.x) for t in together] == [plain(t.x) for t in self.opt.trials[before:]]

    def ask_one_by_one(self, n):
        for _ in range(n):
            try:
                trial = self.opt.ask()
            except EmptyDomainError:
                assert "failed" in {entry[0] for entry in self.ledger.values()}
                return
            assert trial.id == len(self.ledger)
            assert bool(self.opt.domain.contains(trial.x.unsqueeze(0)))
            self.ledger[trial.id] = ["running", None]

    @rule(number=st.integers(0, 100), y=values, noisy=st.booleans())
    def tell(self, number, y, noisy):
        trial_id = self.pick(number, "running", "abandoned")
        if trial_id is not None:
            self.opt.tell(trial_id, y, noise_var=0.3 if noisy else None)
            self.ledger[trial_id] = ["completed", y]

    @rule(number=st.integers(0, 100))
    def fail(self, number):
        trial_id = self.pick(number, "running")
        if trial_id is not None:
            self.opt.mark_failed(trial_id, "crash")
            self.ledger[trial_id][0] = "failed"

    @rule(number=st.integers(0, 100))
    def abandon(self, number):
        trial_id = self.pick(number, "running")
        if trial_id is not None:
            self.opt.mark_abandoned(trial_id)
            self.ledger[trial_id][0] = "abandoned"

    @rule(number=st.integers(0, 100), y=st.none() | values)
    def correct(self, number, y):
        trial_id = self.pick(number, "completed", "failed")
        if trial_id is None or (y is None and self.ledger[trial_id][1] is None):
            return
        self.opt.correct(trial_id, y, "a slip")
        self.ledger[trial_id] = ["failed" if y is None else "completed", y]

    @precondition(lambda self: self.attached)
    @rule(number=st.integers(0, 100))
    def detach(self, number):
        place = number % len(self.attached)
        self.opt.detach(self.opt.attached[place])
        self.attached.pop(place)

    @precondition(lambda self: self.horizon == HORIZON)
    @rule(more=st.integers(1, 9))
    def extend(self, more):
        self.horizon += more
        self.opt.extend(self.horizon)

    @rule(outcomes=st.lists(st.tuples(st.integers(0, 9), values), max_size=5), data=st.data())
    def settle_in_any_order(self, outcomes, data):
        """The next ask and recommendation do not depend on the order of the answers."""
        running = [i for i, entry in self.ledger.items() if entry[0] == "running"]
        settled = dict(zip(running, outcomes, strict=False))
        shuffled = data.draw(st.permutations(list(settled)))
        twin = copy.deepcopy(self.opt)
        for opt, order in ((self.opt, list(settled)), (twin, shuffled)):
            for trial_id in order:
                kind, y = settled[trial_id]
                if kind == 0:
                    opt.mark_failed(trial_id)
                elif kind == 1:
                    opt.mark_abandoned(trial_id)
                else:
                    opt.tell(trial_id, y)
        for trial_id, (kind, y) in settled.items():
            state = {0: "failed", 1: "abandoned"}.get(kind, "completed")
            self.ledger[trial_id] = [state, y if state == "completed" else None]
        assert self.following(self.opt) == self.following(twin)
        if any(entry[1] is not None for entry in self.ledger.values()):
            ours, theirs = self.opt.recommend(), twin.recommend()
            assert torch.equal(ours.x, theirs.x)
            assert (ours.mean, ours.lower, ours.upper) == (theirs.mean, theirs.lower, theirs.upper)

    @rule(row=st.integers(0, 11), y=values, inside=st.booleans())
    def attach(self, row, y, inside):
        domain = self.opt.domain
        x = POINTS[row] if isinstance(domain, bd.FiniteDomain) else domain.bounds[1].clone()
        self.opt.attach(x + (0.0 if inside else 2.0), y)
        self.attached.append(y)

    @rule(which=st.integers(0, 100))
    def misuse(self, which):
        """A refused call changes nothing, not even what is asked next."""
        calls = [
            lambda: self.opt.ask(0),
            lambda: self.opt.ask(self.horizon + 1),
            lambda: self.opt.extend(self.horizon),
            lambda: self.opt.detach(len(self.attached) + 50),
            lambda: self.opt.correct(0, math.nan),
            lambda: self.opt.attach(self.opt.domain.bounds, torch.zeros(3).double()),
            lambda: self.opt.attach(self.opt.domain.bounds[0], math.inf),
            lambda: self.opt.attach(self.opt.domain.bounds[0, :-1], 1.0),
            lambda: self.opt.load_state_dict(self.opt.state_dict() | {"events": [{}]}),
            lambda: self.opt.save(self.folder.name),
            lambda: self.opt.mark_failed(0, reason=3),
            lambda: self.opt.tell(0, "much"),
            lambda: self.opt.tell(0, 1.0, noise_var=-1.0),
            lambda: self.opt.tell(0, 1e300),
        ]
        before = self.following(self.opt)
        self.refused(calls[which % len(calls)])
        assert self.following(self.opt) == before

    @rule(number=st.integers(0, 100))
    def forge(self, number):
        settled = self.pick(number, "completed", "failed")
        if settled is not None:
            self.refused(lambda: self.opt.tell(settled, 1.0), TrialError)
            self.refused(lambda: self.opt.mark_failed(settled), TrialError)
        running = self.pick(number, "running")
        if running is not None:
            self.refused(lambda: self.opt.tell(running, math.nan))
        self.refused(lambda: self.opt.tell(len(self.ledger), 1.0), TrialError)

    @rule()
    def recommend(self):
        answered = [entry for entry in self.ledger.values() if entry[1] is not None]
        if not answered and not self.attached:
            self.refused(self.opt.recommend, NoAnswerError)
            return
        best = self.opt.recommend()
        assert best.lower <= best.mean <= best.upper
        assert math.isfinite(best.mean)

    @rule()
    def save_and_load(self):
        self.opt.save(self.path)
        loaded, twin = bd.load(self.path), bd.load(self.path)
        assert self.state(loaded) == self.state()
        assert self.following(twin) == self.following(self.opt)
        self.opt = loaded

    @rule()
    def move_to_a_fresh_optimizer(self):
        fresh = self.fresh()
        fresh.load_state_dict(self.opt.state_dict())
        assert self.state(fresh) == self.state()
        self.opt = fresh

    @invariant()
    def nothing_is_lost_or_counted_twice(self):
        if not hasattr(self, "opt"):
            return
        trials = self.opt.trials
        assert [t.id for t in trials] == list(self.ledger)
        assert [[t.state.value, t.value] for t in trials] == list(self.ledger.values())
        assert [a.value for a in self.opt.attached] == self.attached
        assert [t.id for t in self.opt.pending] == [
            i for i, entry in self.ledger.items() if entry[0] == "running"
        ]


@pytest.mark.filterwarnings("ignore::botorch_delay.exceptions.OutlierWarning")
@pytest.mark.filterwarnings("ignore::botorch_delay.exceptions.RepeatedResultWarning")
class TestMachine(Machine.TestCase):
    settings = settings(max_examples=5, stateful_step_count=16, deadline=None)


def value(trial):
    return float(trial.x.sin().sum())


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_run_that_is_resumed_asks_what_one_in_one_piece_asks(name, tmp_path):
    maximize = len(name) % 2 == 0
    whole, pieces = OPTIMIZERS[name](maximize), OPTIMIZERS[name](maximize)
    for number in range(7 if name in SLOW or "box" in name else 8):  # a fit is made by then
        a, b = whole.ask(), pieces.ask()
        assert torch.equal(a.x, b.x), number
        for trial in whole.pending[:-2:2]:
            if trial.id % 7 == 3:
                whole.mark_failed(trial)
                pieces.mark_failed(trial.id)
            elif trial.id % 7 == 6:
                whole.mark_abandoned(trial)
                pieces.mark_abandoned(trial.id)
            else:
                whole.tell(trial, value(trial))
                pieces.tell(trial.id, value(trial))
        if number % 4 == 3:
            pieces.save(tmp_path / "study.db")
            pieces = bd.load(tmp_path / "study.db")
    ours, theirs = whole.recommend(), pieces.recommend()
    assert torch.equal(ours.x, theirs.x)
    assert ours.mean == theirs.mean


@pytest.mark.parametrize(
    "name", slow_ones_last([n for n in OPTIMIZERS if "box" in n or "learned" in n])
)
def test_resuming_after_results_from_elsewhere_changes_nothing(name, tmp_path):
    whole, pieces = OPTIMIZERS[name](), OPTIMIZERS[name]()
    low, high = whole.domain.bounds
    for number in range(7):
        a, b = whole.ask(), pieces.ask()
        assert torch.equal(a.x, b.x), number
        for trial in whole.pending[:-2]:
            whole.tell(trial, value(trial))
            pieces.tell(trial.id, value(trial))
        if number % 4 == 1:
            for opt in (whole, pieces):
                opt.attach(low + (high - low) * 0.1 * (number % 7), 0.1 * number)
        if number % 3 == 2:
            pieces.save(tmp_path / "study.db")
            pieces = bd.load(tmp_path / "study.db")


@pytest.mark.parametrize("name", slow_ones_last(OPTIMIZERS))
def test_minimising_is_maximising_the_negative(name):
    up, down = OPTIMIZERS[name](True), OPTIMIZERS[name](False)
    if "censor" in name:
        domain = down.domain
        pending = bd.Censor(3.0, 5, inflate=True)
        options = {"rule": bd.UCB(4.0), "pending": pending, **FIXED}
        if name.startswith("TS"):
            options |= {"rule": bd.ThompsonSampling(), "pending": bd.Censor(3.0, max_delay=4)}
        down = bd.AcquisitionOptimizer(domain, maximize=False, **options)
    for number in range(6 if "learned" in name else 4):
        a, b = up.ask(), down.ask()
        assert torch.equal(a.x, b.x), number
        for trial in up.pending[:-2]:
            up.tell(trial, value(trial))
            down.tell(trial.id, -value(trial))
    assert up.recommend().mean == pytest.approx(-down.recommend().mean)


@pytest.mark.parametrize("name", slow_ones_last([n for n in OPTIMIZERS if "BPE" not in n]))
def test_without_a_horizon_asks_go_on(name):
    opt = OPTIMIZERS[name](horizon=None)
    assert opt.horizon is None
    for _ in range(2):
        for trial in opt.ask(4):
            opt.tell(trial, value(trial))
    opt.finish()
    with pytest.raises(HorizonError, match="finished after 8 asks"):
        opt.ask()


@pytest.fixture(scope="module")
def untouched():
    """One of every optimizer, and its state as text."""
    made = {name: make() for name, make in OPTIMIZERS.items()}
    return {name: (opt, str(opt.state_dict())) for name, opt in made.items()}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_another_configuration_is_told_apart(name, untouched):
    opt = OPTIMIZERS[name]()
    opt.ask(3)
    state = opt.state_dict()
    with pytest.raises(StorageError, match="made with"):
        OPTIMIZERS[name](maximize=False).load_state_dict(state)
    _, own = untouched[name]
    for other, text in untouched.values():
        if text != own:
            with pytest.raises(StorageError):
                other.load_state_dict(state)
            assert other.trials == []


@pytest.mark.parametrize("name", slow_ones_last(OPTIMIZERS))
def test_events_that_were_tampered_with_are_refused(name):
    opt = OPTIMIZERS[name]()
    for trial in opt.ask(6):
        opt.tell(trial, value(trial))
    opt.ask()
    state, fresh, seen = opt.state_dict(), OPTIMIZERS[name](), set()
    for number, event in enumerate(state["events"]):
        if event["kind"] in seen:
            continue
        seen.add(event["kind"])
        wrong = [event | {key: "text"} for key in event if event[key] is not None]
        wrong += [event | {"trial": 10**9}, event | {"value": math.nan}, event | {"kind": "lost"}]
        wrong += [{key: event[key] for key in event if key != "kind"}, None, 7]
        wrong += [
            event | {"data": event["data"] | {key: [10**9]}}
            for key, before in event["data"].items()
            if not isinstance(before, list)
        ]
        for forged in wrong:
            events = [*state["events"][:number], forged, *state["events"][number + 1 :]]
            with pytest.raises(StorageError):
                fresh.load_state_dict(state | {"events": events})
    assert fresh.trials == []
    opt.load_state_dict(state)


@pytest.mark.parametrize("name", slow_ones_last(OPTIMIZERS))
def test_loading_decides_nothing(name, monkeypatch):
    opt = OPTIMIZERS[name]()
    for trial in opt.ask(5):
        opt.tell(trial, value(trial))
    for trial in opt.ask(3)[1:]:
        opt.tell(trial, value(trial))
    state, again = opt.state_dict(), OPTIMIZERS[name]()

    def never(*_, **__):
        raise AssertionError("something is decided")

    for kind in {type(again), type(getattr(again, "base", again))}:
        decisions = ("_decide_after_settled", "_fit_if_due")
        for method in ("_choose", *decisions, "_happen"):
            monkeypatch.setattr(kind, method, never)
    again.load_state_dict(state)
    monkeypatch.undo()
    assert plain(again.state_dict()) == plain(state)
    assert plain(again.ask().x) == plain(opt.ask().x)


def test_rules_that_cannot_be_rebuilt_are_passed_again(tmp_path):
    def factory(model, X_pending=None):
        return UpperConfidenceBound(model, beta=2.0)

    opt = index(rule=factory)()
    opt.ask(2)
    opt.save(tmp_path / "study.db")
    with pytest.raises(StorageError, match="pass rule to load"):
        bd.load(tmp_path / "study.db")
    assert len(bd.load(tmp_path / "study.db", rule=factory).pending) == 2
    with pytest.raises(StorageError, match=r"rule\.factory="):
        bd.load(tmp_path / "study.db", rule=LogExpectedImprovement)


def test_botorch_rules_are_rebuilt_with_their_options(tmp_path):
    for given in (qLogExpectedImprovement, bd.BotorchRule(UpperConfidenceBound, beta=3.0)):
        opt = index(rule=given)()
        for trial in opt.ask(3):
            opt.tell(trial, value(trial))
        opt.save(tmp_path / "study.db", overwrite=True)
        assert repr(bd.load(tmp_path / "study.db")._config.rule) == repr(opt._config.rule)
        assert bd.load(tmp_path / "study.db").ask().index == opt.ask().index


@pytest.mark.parametrize("name", slow_ones_last(OPTIMIZERS))
def test_a_state_is_a_snapshot(name):
    """Later calls, here or on another optimizer that loaded it, do not change it."""
    opt = OPTIMIZERS[name]()
    for trial in opt.ask(4):
        opt.tell(trial, value(trial))
    opt.ask()
    state, (one, other) = opt.state_dict(), (OPTIMIZERS[name](), OPTIMIZERS[name]())
    before = str(state)
    one.load_state_dict(state)
    other.load_state_dict(state)
    inside = opt.domain.bounds[0]
    for _ in range(2):
        a, b = one.ask(), other.ask()
        assert torch.equal(a.x, b.x)
        one.tell(a, value(a))
        other.tell(b, value(b))
    opt.attach(inside, 0.3)
    opt.ask()
    assert str(state) == before
    OPTIMIZERS[name]().load_state_dict(state)


@pytest.mark.parametrize(
    "option", [{"minimize": True}, {"direction": "minimize"}, {"maximise": False}]
)
@pytest.mark.parametrize(
    "kind", [bd.BPEDelayOptimizer, bd.AcquisitionOptimizer, bd.ThreDSOptimizer]
)
def test_the_words_of_others_for_minimising_are_explained(kind, option):
    (word,) = option
    with pytest.raises(InputTypeError, match=f"{kind.__name__} has no option '{word}'; pass maxi"):
        kind(bd.FiniteDomain(POINTS), 20, **option)


def test_asks_that_fail_midway_give_what_was_asked_before():
    opt = bd.RandomOptimizer(bd.FiniteDomain(POINTS[:1]))
    opt.mark_failed(opt.ask())
    expected = "2 of 5 trials were asked, ids 1 to 2, and no more: None of the 1"
    with pytest.warns(FewerTrialsWarning, match=expected) as heard:
        asked = opt.ask(5)
    assert heard[0].filename == __file__
    assert [trial.id for trial in asked] == [1, 2]
    assert asked == opt.pending
    for ask in (opt.ask, lambda: opt.ask(3)):
        with pytest.raises(EmptyDomainError, match="None of the 1 points"):
            ask()
    assert len(opt.trials) == 3


def test_any_error_midway_leaves_no_trial_that_nobody_was_given(monkeypatch):
    opt = threds()
    choose, fails = opt._choose, {2, 4}

    def now_and_then():
        if len(opt.trials) in fails:
            raise NumericsError("The covariance is not positive definite.")
        return choose()

    monkeypatch.setattr(opt, "_choose", now_and_then)
    with pytest.warns(FewerTrialsWarning, match="2 of 4 .* no more: The covariance is"):
        asked = opt.ask(4)
    assert asked == opt.pending
    with pytest.raises(NumericsError, match="positive definite"):
        opt.ask(4)
    fails.remove(2)
    with pytest.warns(FewerTrialsWarning, match="2 of 4 trials were asked, ids 2 to 3"):
        asked += opt.ask(4)
    assert asked == opt.pending


def test_a_recommendation_costs_what_the_distinct_points_cost(monkeypatch):
    sizes, eigenvalues = [], torch.linalg.eigvalsh

    def noted(matrix):
        sizes.append(len(matrix))
        return eigenvalues(matrix)

    monkeypatch.setattr(torch.linalg, "eigvalsh", noted)
    opt = exploiting(confidence=bd.RKHSConfidence(1.0, 0.2))()
    for trial in opt.ask(HORIZON):
        opt.tell(trial, value(trial))
    opt.attach(POINTS[:3], POINTS[:3, 0])
    opt.recommend()
    opt.stopping_gap()
    assert max(sizes) <= len(POINTS)


MODES = [lambda: torch.device("meta"), torch.inference_mode]


@pytest.mark.parametrize("name", slow_ones_last(OPTIMIZERS))
def test_the_caller_s_settings_of_pytorch_change_nothing(name):
    """No tensor lands on the default device, here "meta", which holds no numbers."""
    expected, others = OPTIMIZERS[name](), []
    for mode in MODES:
        with mode():
            made = OPTIMIZERS[name]()
            made.tell(trial := made.ask(), value(trial))
            others += [(made, mode), (copy.deepcopy(made), nullcontext)]
    expected.tell(trial := expected.ask(), value(trial))
    # A learned kernel is fitted to three answers.
    for _ in range(3 if "learned" in name else 1):
        expected.tell(trial := expected.ask(), value(trial))
        for opt, mode in others:
            with mode():
                opt.tell(asked := opt.ask(), value(asked))
                assert asked.x.tolist() == trial.x.tolist()
    said = expected.recommend().x.tolist()
    for opt, mode in others:
        with mode():
            assert opt.recommend().x.tolist() == said


@pytest.mark.parametrize(
    "make",
    [
        lambda domain: bd.AcquisitionOptimizer(domain, rule=qLogExpectedImprovement),
        lambda domain: bd.BPEDelayOptimizer(domain, horizon=20),
    ],
)
def test_domains_and_points_may_be_made_in_inference_mode(make, tmp_path):
    def space():
        return bd.Space(a=bd.Float(0.1, 1.0, log=True), c=bd.Choice(["x", "y", "z"]))

    with torch.inference_mode():
        inside, x = space(), torch.tensor([[0.5, 1.0]], dtype=torch.double)
    asked = []
    for domain in (space(), inside):
        opt = make(domain)
        opt.attach(x, x[:, 0])
        for _ in range(2):
            opt.tell(trial := opt.ask(), trial.x.sum())
        opt.save(tmp_path / "study.db", overwrite=True)
        with torch.inference_mode():
            loaded = bd.load(tmp_path / "study.db")
        asked.append([opt.ask().x.tolist(), opt.predict(x).mean.tolist()])
        assert loaded.ask().x.tolist() == asked[-1][0]
    assert asked[0] == asked[1]


def test_accuracy_that_is_lost_is_warned_of_once():
    with pytest.warns(InputDataWarning):
        domain = bd.FiniteDomain(POINTS.float())
    opt = bd.BPEDelayOptimizer(domain, 20, covar_module=se(50.0).float(), noise_var=1e-7)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(20):
            trial = opt.ask()
            opt.tell(trial, value(trial))
        opt.recommend()
    assert [w.category for w in caught] == [NumericsWarning]


@pytest.mark.parametrize("settled", [0, 4])
def test_a_loaded_run_breaks_ties_as_the_live_one_does(settled, tmp_path):
    """On a box with a symmetry, where the last bits of a posterior depend on its history."""
    opt = OPTIMIZERS["UCB, censor, box"](maximize=False)
    opt.tell(opt.ask(), 1.0 / 3.0)
    opt.recommend()
    opt.tell(opt.ask(6)[settled], 1.5)
    opt.save(tmp_path / "study.db")
    assert torch.equal(bd.load(tmp_path / "study.db").ask().x, opt.ask().x)
