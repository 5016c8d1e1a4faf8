import json
import multiprocessing
import os
import random
import shutil
import signal
import sqlite3
import threading
from contextlib import closing
from itertools import cycle
from pathlib import Path

import pytest
import torch
from botorch.exceptions.warnings import InputDataWarning
from cases import KERNELS, line, plain, record, scattered, se, with_values
from forked import forked
from gpytorch.kernels import CosineKernel, MaternKernel, RBFKernel, ScaleKernel

import botorch_delay as bd
from botorch_delay.exceptions import InputError, InputTypeError, StorageError
from botorch_delay.history import sqlite
from botorch_delay.history.events import Event

LAWS = [
    None,
    bd.NoDelay(),
    bd.ConstantDelay(3),
    bd.PoissonDelay(2.5),
    bd.GeometricDelay(mean=1.5),
    bd.SubExponentialDelay(2.0, 1.0, 0.5, paper_min=True),
]
CONFIDENCES = [None, bd.FixedBeta(2.0), bd.RKHSConfidence(1.5, 0.1, tight=False)]


POINTS = bd.FiniteDomain(scattered(9))
GIVEN = {"covar_module": se(), "noise_var": 0.1}


def make(horizon=60, seed=0, kernel="se", **options):
    domain = bd.FiniteDomain(scattered(40, seed=seed))
    options = {"covar_module": KERNELS[kernel](), "noise_var": 1e-2, "exploit": None} | options
    return bd.BPEDelayOptimizer(domain, horizon, **options)


def value(trial):
    return float(trial.x.sin().sum())


def play(opt, asks, rng):
    """Asks, with answers, failures, abandonment and late answers in between."""
    for _ in range(asks):
        opt.ask()
        for trial in opt.trials[::-1]:
            if rng.random() > 0.5 or trial.state not in (
                bd.TrialState.RUNNING,
                bd.TrialState.ABANDONED,
            ):
                continue
            kind = rng.random()
            if trial.state is bd.TrialState.ABANDONED or kind < 0.7:
                opt.tell(trial, value(trial), noise_var=0.02 if rng.random() < 0.2 else None)
            elif kind < 0.85:
                opt.mark_failed(trial, "crashed")
            else:
                opt.mark_abandoned(trial)
        if rng.random() < 0.1:
            opt.attach(opt.domain.points[:2] + 0.1, torch.zeros(2).double())


def same(one, other):
    """Equal states, to the last bit."""
    assert plain(one.state_dict()) == plain(other.state_dict())
    assert torch.equal(one.active_set.eliminated, other.active_set.eliminated)
    assert one.rounds == other.rounds


def goes_on_alike(one, other, asks=15):
    """The same answers lead to the same asks and the same rounds."""
    for _ in range(asks):
        if len(one.trials) == one.horizon:
            break
        a, b = one.ask(), other.ask()
        assert a.index == b.index
        assert (a.round, a.slot) == (b.round, b.slot)
        for trial in one.pending[::2]:
            one.tell(trial.id, value(trial))
            other.tell(trial.id, value(trial))
    assert [r.trial_ids for r in one.rounds] == [r.trial_ids for r in other.rounds]
    assert torch.equal(one.active_set.indices, other.active_set.indices)


@pytest.mark.parametrize(
    ("law", "confidence"), [*zip(LAWS, cycle(CONFIDENCES), strict=False)], ids=repr
)
def test_a_loaded_optimizer_goes_on_bit_for_bit(tmp_path, law, confidence):
    rng = random.Random(f"{law}{confidence}")
    kernel, maximize = rng.choice(list(KERNELS)), rng.random() < 0.5
    opt = make(kernel=kernel, delay=law, confidence=confidence, maximize=maximize)
    play(opt, rng.randint(0, 45), rng)
    path = tmp_path / "study.db"
    opt.save(path)
    loaded = bd.load(path)
    same(opt, loaded)
    goes_on_alike(opt, loaded)


@pytest.mark.parametrize("asks", [0, 9])
def test_a_learned_kernel_goes_on_bit_for_bit(tmp_path, asks):
    opt = make(covar_module=None, noise_var=None)
    play(opt, asks, random.Random(asks))
    opt.save(tmp_path / "study.db")
    loaded = bd.load(tmp_path / "study.db")
    same(opt, loaded)
    goes_on_alike(opt, loaded, asks=8)
    if opt.recommend().index is not None:
        assert opt.recommend().mean == loaded.recommend().mean


def test_as_published_and_finished_runs_are_restored(tmp_path):
    opt = bd.BPEDelayOptimizer.as_published(
        bd.FiniteDomain(scattered(30)),
        40,
        covar_module=se(),
        noise_var=0.01,
        confidence=bd.RKHSConfidence(1.0, 0.1),
        delay=bd.PoissonDelay(2.0),
        seed=5,
    )
    play(opt, 20, random.Random(1))
    opt.save(tmp_path / "study.db")
    goes_on_alike(opt, bd.load(tmp_path / "study.db"))
    opt.finish()
    opt.save(tmp_path / "study.db")
    loaded = bd.load(tmp_path / "study.db")
    same(opt, loaded)
    with pytest.raises(bd.exceptions.HorizonError):
        loaded.ask()


def test_single_precision_is_restored(tmp_path):
    with pytest.warns(InputDataWarning, match="Double"):
        domain = bd.FiniteDomain(scattered(20).float())
    opt = bd.BPEDelayOptimizer(domain, 30, covar_module=se().float(), noise_var=0.1)
    play(opt, 12, random.Random(0))
    opt.save(tmp_path / "study.db")
    with pytest.warns(InputDataWarning, match="Double"):
        loaded = bd.load(tmp_path / "study.db")
    same(opt, loaded)
    goes_on_alike(opt, loaded)


def test_states_move_between_optimizers_made_alike():
    opt, other = make(), make()
    play(opt, 20, random.Random(3))
    other.load_state_dict(opt.state_dict())
    same(opt, other)
    goes_on_alike(opt, other)


def test_times_and_reasons_survive(tmp_path):
    opt = make()
    opt.mark_failed(opt.ask(), "exploded: 100 %")
    opt.tell(opt.ask(), 0.5)
    opt.save(tmp_path / "s.db")
    for own, stored in zip(opt.trials, bd.load(tmp_path / "s.db").trials, strict=True):
        assert record(own) == record(stored)


# What a file is


def rows(path, query):
    with closing(sqlite3.connect(path)) as db:
        return db.execute(query).fetchall()


def test_anyone_can_read_it_with_sql(tmp_path):
    opt, path = make(), tmp_path / "study.db"
    asked = opt.ask(8)
    for trial in asked:
        opt.tell(trial, value(trial))
    opt.ask()
    opt.attach(asked[0].x, 0.5)
    opt.save(path)
    best = rows(path, "SELECT id, value, x FROM trials ORDER BY value DESC LIMIT 1")[0]
    top = max(asked, key=value)
    assert best[:2] == (top.id, value(top))
    assert json.loads(best[2]) == top.x.tolist()
    states = rows(path, "SELECT state, count(*) FROM trials GROUP BY state ORDER BY state")
    assert states == [("completed", 8), ("running", 1)]
    assert rows(path, "SELECT value FROM events WHERE kind = 'attached'") == [(0.5,)]
    query = "SELECT json_extract(data, '$.record.length') FROM events WHERE kind = 'closed'"
    assert rows(path, query) == [(opt.rounds[0].length,)]


def test_a_view_shows_what_became_of_a_trial_last(tmp_path):
    opt, path = make(), tmp_path / "study.db"
    late, failed = opt.ask(2)
    opt.mark_abandoned(late)
    opt.mark_failed(failed, "crashed")
    opt.tell(late, 0.5, noise_var=0.25)
    opt.save(path)
    query = "SELECT id, state, value, noise_var, reason, asked_at, told_at FROM trials"
    expected = [
        (t.id, t.state.value, t.value, t.noise_var, t.reason or None, t.asked_at, t.told_at)
        for t in opt.trials
    ]
    assert rows(path, query) == expected


def test_one_more_answer_costs_one_row(tmp_path, monkeypatch):
    opt, path = make(), tmp_path / "study.db"
    play(opt, 20, random.Random(2))
    opt.save(path)
    statements = []
    connect = sqlite._connect

    def traced(uri):
        db = connect(uri)
        db.set_trace_callback(statements.append)
        return db

    trial = opt.pending[0]
    opt.tell(trial, 0.1)
    monkeypatch.setattr(sqlite, "_connect", traced)
    opt.save(path)
    monkeypatch.undo()
    written = [s for s in statements if s.startswith(("INSERT", "DELETE", "UPDATE", "REPLACE"))]
    assert [s.split()[0] for s in written] == ["INSERT"]
    assert all(" events " in s for s in written)
    same(opt, bd.load(path))


def test_saving_again_reads_the_last_event_and_what_is_new_alone(tmp_path, monkeypatch):
    opt, path = make(), tmp_path / "study.db"
    play(opt, 30, random.Random(2))
    opt.ask(2)
    opt.save(path)
    written, row = [], Event.row
    monkeypatch.setattr(Event, "row", lambda event: written.append(event) or row(event))
    for loaded in (False, True):
        study = bd.load(path) if loaded else opt
        study.tell(study.pending[0], 0.1)
        study.save(path)
        assert len(written) == 2
        written.clear()


def test_saving_at_every_step_equals_saving_at_the_end(tmp_path):
    opt, rng = make(), random.Random(4)
    for _ in range(25):
        play(opt, 1, rng)
        opt.save(tmp_path / "often.db")
    opt.save(tmp_path / "once.db")
    events = "(SELECT number, kind, time, trial, value, data FROM events)"
    for table in (events, "meta", "arrays", "trials"):
        query = f"SELECT * FROM {table}"
        assert rows(tmp_path / "often.db", query) == rows(tmp_path / "once.db", query)
    same(bd.load(tmp_path / "often.db"), bd.load(tmp_path / "once.db"))


def test_another_study_is_not_overwritten_by_accident(tmp_path):
    path = tmp_path / "study.db"
    opt, other = make(), make()
    play(opt, 5, random.Random(0))
    play(other, 6, random.Random(1))
    opt.save(path)
    with pytest.raises(StorageError, match="overwrite=True"):
        other.save(path)
    same(opt, bd.load(path))
    fork = bd.load(path)
    opt.ask()
    opt.save(path)
    fork.ask()
    with pytest.raises(StorageError, match="another continuation"):
        fork.save(path)
    other.save(path, overwrite=True)
    same(other, bd.load(path))


def test_studies_without_events_are_told_apart_by_their_points(tmp_path):
    path, points = tmp_path / "study.db", line(9)
    bd.RandomOptimizer(bd.FiniteDomain(points)).save(path)
    bd.RandomOptimizer(bd.FiniteDomain(points)).save(path)
    with pytest.raises(StorageError, match="another study"):
        bd.RandomOptimizer(bd.FiniteDomain(points + 1.0)).save(path)


def test_a_file_of_an_earlier_state_is_known_by_its_contents(tmp_path):
    path, opt, rng = tmp_path / "study.db", make(), random.Random(9)
    play(opt, 20, rng)
    opt.save(path)
    play(opt, 20, rng)
    moved = make()
    moved.load_state_dict(opt.state_dict())
    moved.save(path)
    same(moved, bd.load(path))


def test_an_interrupted_save_leaves_the_last_state(tmp_path, monkeypatch):
    opt, path = make(), tmp_path / "study.db"
    play(opt, 10, random.Random(0))
    opt.save(path)
    before = bd.load(path)
    play(opt, 5, random.Random(1))

    def interrupted(db, key, value):
        raise KeyboardInterrupt

    opt.notes["last"] = 1  # notes are written after the events
    monkeypatch.setattr(sqlite, "_write_meta", interrupted)
    with pytest.raises(KeyboardInterrupt):
        opt.save(path)
    same(before, bd.load(path))
    monkeypatch.undo()
    opt.save(path)
    same(opt, bd.load(path))


# Parts that a file cannot rebuild


class Linear2(bd.DelayLaw):
    mean = 2.0

    def sample(self, n, generator=None):
        return torch.full((n,), 2)

    def quantile(self, p):
        return 2.0

    def __repr__(self):
        return "Linear2()"


def test_custom_parts_are_passed_again_and_checked(tmp_path):
    path = tmp_path / "study.db"
    kernel = CosineKernel().double()
    opt = make(covar_module=kernel, delay=Linear2())
    play(opt, 8, random.Random(0))
    opt.save(path)
    with pytest.raises(StorageError, match=r"CosineKernel.*pass covar_module"):
        bd.load(path)
    with pytest.raises(StorageError, match=r"Linear2.*pass delay"):
        bd.load(path, covar_module=kernel)
    loaded = bd.load(path, covar_module=kernel, delay=Linear2())
    goes_on_alike(opt, loaded)
    other = CosineKernel().double()
    other.period_length = 3.0
    with pytest.raises(StorageError, match=r"covar_module(\.[\w\[\]]+)?="):
        bd.load(path, covar_module=other, delay=Linear2())
    with pytest.raises(StorageError, match=r"delay\.class="):
        bd.load(path, covar_module=kernel, delay=bd.NoDelay())
    bd.AcquisitionOptimizer(opt.domain).save(tmp_path / "learned.db")
    with pytest.raises(StorageError, match="learns its kernel; do not pass covar_module"):
        bd.load(tmp_path / "learned.db", covar_module=kernel)
    rounds = tmp_path / "rounds.db"
    bd.BPEDelayOptimizer(opt.domain, 20).save(rounds)
    with pytest.raises(StorageError, match="made without delay; do not pass delay to load"):
        bd.load(rounds, delay=bd.NoDelay())
    with pytest.raises(StorageError, match="cannot be used with confidence as given: confidence m"):
        bd.load(rounds, confidence=5)
    with pytest.raises(StorageError, match="do not pass feasible"):
        bd.load(rounds, feasible=lambda X: X[:, 0] > 0.0)


class Plain(bd.DelayLaw):
    """A law without a representation of its own."""

    def __init__(self, mean):
        self.steps = mean

    @property
    def mean(self):
        return self.steps

    def sample(self, n, generator):
        return torch.full((n,), int(self.steps))

    def quantile(self, p):
        return self.steps


def test_a_custom_law_needs_no_representation(tmp_path):
    opt, path = make(delay=Plain(3.0)), tmp_path / "study.db"
    play(opt, 8, random.Random(0))
    opt.save(path)
    goes_on_alike(opt, bd.load(path, delay=Plain(3.0)))
    with pytest.raises(StorageError, match=r"delay\.steps=3\.0, .* delay\.steps=4\.0"):
        bd.load(path, delay=Plain(4.0))


def test_kernels_are_told_apart_by_every_hyperparameter(tmp_path):
    grid = torch.cartesian_prod(*[torch.linspace(0, 1, 10).double()] * 2)

    def kernel(first):
        return with_values(RBFKernel(ard_num_dims=2), lengthscale=[first, 0.3])

    opt = bd.BPEDelayOptimizer(bd.FiniteDomain(grid), 30, covar_module=kernel(0.3), noise_var=1e-3)
    opt.save(tmp_path / "study.db")
    with pytest.raises(StorageError, match=r"covar_module(\.[\w\[\]]+)?="):
        bd.load(tmp_path / "study.db", covar_module=kernel(9.0))


def test_kernels_are_told_apart_by_their_structure(tmp_path):
    def scaled(base):
        return ScaleKernel(base).double()

    opt = make(covar_module=scaled(RBFKernel()))
    opt.save(tmp_path / "study.db")
    bd.load(tmp_path / "study.db", covar_module=scaled(RBFKernel()))
    for base in (MaternKernel(nu=0.5), RBFKernel(active_dims=(0,))):
        with pytest.raises(StorageError, match=r"covar_module\.parts\[0\]"):
            bd.load(tmp_path / "study.db", covar_module=scaled(base))


def test_notes_are_a_change_like_any_other(tmp_path):
    opt, path = make(), tmp_path / "study.db"
    opt.save(path)
    one, two = bd.load(path), bd.load(path)
    one.notes["who"] = ["Ada", 1]
    one.save(path)
    assert bd.load(path).notes == {"who": ["Ada", 1]}
    two.ask()
    with pytest.raises(StorageError, match="another continuation"):
        two.save(path)
    for notes in ({"a": {1}}, {"a": float("nan")}, [1], {1: "b"}, {"a": [{None: 1}]}):
        one.notes = notes
        with pytest.raises(StorageError, match="JSON-ready"):
            one.state_dict()
        trial = one.ask()
        with pytest.raises(StorageError, match="JSON-ready"):
            one.save(path)
        stored = bd.load(path)  # all else is there
        assert len(stored.trials) == trial.id + 1
        assert stored.notes == {"who": ["Ada", 1]}


def test_a_state_shares_nothing_with_the_optimizers_that_load_it():
    opt, other = make(), make()
    opt.notes["list"] = [1]
    opt.ask(3)
    state = opt.state_dict()
    other.load_state_dict(state)
    before = str(state)
    other.notes["list"].append(2)
    for _ in range(20):
        trial = other.ask()
        other.tell(trial, value(trial))
        for earlier in other.pending:
            other.tell(earlier, value(earlier))
    assert other.rounds
    assert str(state) == before
    assert opt.notes == {"list": [1]}


def save_and_die(path, when):
    opt = make()
    if when == "later":
        opt.ask()
        opt.save(path)
    opt.ask(3)
    opt.notes["long"] = "x" * 5_000_000  # more than the cache holds: pages go to the file early
    write = sqlite._write

    def killed(db, *rest, **options):
        db.execute("PRAGMA cache_size = 10")
        write(db, *rest, **options)
        os.kill(os.getpid(), signal.SIGKILL)  # before the commit, with pages in the file

    sqlite._write = killed
    opt.save(path)


@pytest.mark.parametrize("when", ["first", "later"])
def test_a_kill_inside_a_commit_leaves_the_last_state(tmp_path, when):
    path = tmp_path / "study.db"
    with forked(save_and_die, path, when) as (process, _):
        process.join()
    assert process.exitcode == -signal.SIGKILL
    assert (tmp_path / "study.db-journal").stat().st_size > 0
    if when == "later":
        assert len(bd.load(path).trials) == 1
        return
    assert not sqlite.holds_study(path)
    with pytest.raises(StorageError, match="not a study"):
        bd.load(path)
    opt = make()
    opt.ask()
    opt.save(path)  # uncommitted leftovers do not hinder a save
    same(opt, bd.load(path))


def test_finishing_is_a_change_like_any_other(tmp_path):
    opt, path = make(), tmp_path / "study.db"
    opt.tell(opt.ask(), 1.0)
    opt.save(path)
    other = bd.load(path)
    opt.finish()
    opt.save(path)
    other.ask()
    with pytest.raises(StorageError, match="another continuation"):
        other.save(path)
    assert len(bd.load(path).rounds) == 1


def test_a_state_that_turns_out_to_be_broken_changes_nothing():
    opt, target = make(), make()
    opt.ask(3)
    state = opt.state_dict()
    state["events"][2]["data"]["slot"] = 7
    target.ask(2)
    before = str(target.state_dict())
    with pytest.raises(StorageError, match="impossible slot"):
        target.load_state_dict(state)
    assert str(target.state_dict()) == before


def test_a_part_passed_for_a_stored_one_must_equal_it(tmp_path):
    path = tmp_path / "study.db"
    make().save(path)
    bd.load(path, covar_module=se())
    with pytest.raises(StorageError, match=r"covar_module(\.[\w\[\]]+)?="):
        bd.load(path, covar_module=se(0.5))
    with pytest.raises(StorageError, match=r"confidence\.beta="):
        bd.load(path, confidence=bd.FixedBeta(3.0))


@pytest.mark.parametrize(
    ("made", "unused"),
    [
        (lambda: bd.RandomOptimizer(POINTS), ("confidence", "delay", "rule", "feasible")),
        (lambda: bd.AcquisitionOptimizer(POINTS, **GIVEN), ("confidence", "delay", "feasible")),
        (
            lambda: bd.QueuedOptimizer(bd.AcquisitionOptimizer(POINTS, **GIVEN)),
            ("confidence", "delay", "feasible"),
        ),
        (
            lambda: bd.ThreDSOptimizer(POINTS, **GIVEN, confidence=bd.RKHSConfidence(1.0, 0.1)),
            ("delay", "rule", "feasible"),
        ),
        (
            lambda: bd.BPEDelayOptimizer(POINTS, 9, **GIVEN, exploit=None),
            ("rule", "feasible"),
        ),
        (
            lambda: bd.RandomOptimizer(
                bd.Space.grid(rule=bd.Int(1, 5), feasible=lambda params: params["rule"] > 2)
            ),
            ("rule", "feasible"),
        ),
    ],
)
def test_a_part_that_the_study_does_not_have_is_refused(made, unused, tmp_path):
    path = tmp_path / "study.db"
    made().save(path)
    passed = {
        "confidence": bd.FixedBeta(3.0),
        "delay": bd.NoDelay(),
        "rule": bd.UCB(2.0),
        "feasible": lambda given: given,
    }
    for name in unused:
        with pytest.raises(StorageError, match=f"study has no {name}; do not pass {name} to load"):
            bd.load(path, **{name: passed[name]})
        with pytest.raises(StorageError, match=name), bd.editing(path, **{name: passed[name]}):
            pass


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"horizon": 59}, "horizon="),
        ({"seed": 1}, r"points\[0\]\[0\]="),
        ({"noise_var": 0.02}, "noise_var="),
        ({"delta": 0.2}, "delta="),
        ({"maximize": False}, "maximize="),
        ({"kernel": "matern12"}, "covar_module"),
        ({"delay": bd.NoDelay()}, "delay="),
        ({"confidence": bd.FixedBeta(2.0)}, r"confidence\.beta="),
        ({"covar_module": None, "noise_var": None}, "covar_module.class="),
    ],
)
def test_a_state_of_another_configuration_is_refused(change, message):
    opt, other = make(), make(**change)
    play(opt, 5, random.Random(0))
    other.ask()
    before = str(other.state_dict())
    with pytest.raises(StorageError, match=message):
        other.load_state_dict(opt.state_dict())
    assert str(other.state_dict()) == before


# What else a file may be


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    opt, path = make(), tmp_path_factory.mktemp("stored") / "study.db"
    play(opt, 25, random.Random(6))
    opt.save(path)
    return path


@pytest.fixture
def stored(original, tmp_path):
    return shutil.copy(original, tmp_path / "study.db")


def test_files_that_are_none(tmp_path, stored):
    with pytest.raises(StorageError, match="no such file"):
        bd.load(tmp_path / "missing.db")
    with pytest.raises(StorageError, match="it is not a file"):
        bd.load(tmp_path)
    text = tmp_path / "notes.txt"
    text.write_text("not a database " * 100)
    with pytest.raises(StorageError, match="not a study"):
        bd.load(text)
    with pytest.raises(StorageError, match="not a study"):
        make().save(text)
    assert text.read_text().startswith("not a database")
    empty = tmp_path / "empty.db"
    empty.touch()
    with pytest.raises(StorageError, match="not a study"):
        bd.load(empty)
    foreign = tmp_path / "foreign.db"
    with closing(sqlite3.connect(foreign)) as db:
        db.execute("CREATE TABLE mine (x)")
        db.commit()
    for call in (bd.load, make().save):
        with pytest.raises(StorageError, match="not a study"):
            call(foreign)
    with pytest.raises(StorageError, match="folder"):
        make().save(tmp_path / "nowhere" / "study.db")
    newer = tmp_path / "newer.db"
    newer.write_bytes(stored.read_bytes())
    with closing(sqlite3.connect(newer)) as db:
        db.execute("PRAGMA user_version = 99")
    with pytest.raises(StorageError, match="newer"):
        bd.load(newer)
    with closing(sqlite3.connect(newer)) as db:
        db.execute("PRAGMA user_version = 3")
    with pytest.raises(StorageError, match="has format 3; this version"):
        bd.load(newer)


def test_truncated_files(stored):
    whole = stored.read_bytes()
    for share in (0.1, 0.3, 0.5, 0.7, 0.9, 0.99):
        stored.write_bytes(whole[: int(share * len(whole))])
        with pytest.raises(StorageError):
            bd.load(stored)


def test_what_is_wrong_with_a_file_is_not_put_down_to_the_study(stored):
    opt = bd.load(stored)
    with closing(sqlite3.connect(stored)) as db:
        db.execute("UPDATE meta SET value = substr(value, 1, 20) WHERE key = 'config'")
        db.commit()
    said = []
    for call in (bd.load, opt.save, lambda path: bd.editing(path).__enter__()):
        with pytest.raises(StorageError, match=r"Cannot read .*, it is damaged") as raised:
            call(stored)
        said.append(str(raised.value))
    assert len(set(said)) == 1


def test_flipped_bytes_never_do_more_than_an_error(stored):
    whole, rng, said = bytearray(stored.read_bytes()), random.Random(0), []
    for _ in range(40):
        damaged = bytearray(whole)
        for _ in range(rng.randint(1, 4)):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        stored.write_bytes(bytes(damaged))
        try:
            bd.load(stored)
        except StorageError as error:
            said.append(str(error))
    assert not [message for message in said if "\\n" in message]  # SQLite's errors have line breaks


def data_of(kind, path, value):
    """SQL that changes the data of one event of a kind."""
    first = f"(SELECT min(number) FROM events WHERE kind = '{kind}' AND number > 4)"
    return f"UPDATE events SET data = json_set(data, '$.{path}', {value}) WHERE number = {first}"


CHANGES = [
    data_of("asked", "point", "9999"),
    data_of("asked", "point", "'one'"),
    data_of("asked", "point", "-1"),
    data_of("asked", "x", "json('[1.0]')"),
    data_of("asked", "x", "'x'"),
    data_of("asked", "x", "json('[0.5, 0.5]')"),
    data_of("asked", "round", "0"),
    data_of("asked", "round", "99"),
    data_of("asked", "slot", "1000"),
    data_of("asked", "slot", "-3"),
    data_of("failed", "reason", "7"),
    data_of("completed", "noise_var", "-1.0"),
    data_of("completed", "noise_var", "'much'"),
    data_of("closed", "record", "json('{}')"),
    data_of("closed", "record", "3"),
    data_of("closed", "record.number", "7"),
    data_of("closed", "record.trial_ids", "json('[999]')"),
    data_of("closed", "record.departures", "json('[\"gone\"]')"),
    data_of("closed", "left", "json('[999]')"),
    data_of("closed", "left", "json('[0, 0]')"),
    data_of("closed", "left", "7"),
    data_of("closed", "last", "1"),
    data_of("attached", "x", "json('[1.0]')"),
    "UPDATE events SET data = replace(data, '[', '[NaN, ') WHERE kind = 'asked'",
    f"UPDATE events SET data = '[1{'0' * 400}, 0.0]' WHERE number = 3",
    "UPDATE events SET data = '{' WHERE number = 3",
    "UPDATE events SET data = '[]' WHERE number = 3",
    "UPDATE events SET data = CAST(data AS BLOB) WHERE number = 3",
    f"UPDATE events SET kind = '{'x' * 100_000}' WHERE number = 3",
    "UPDATE events SET kind = 'lost' WHERE number = 3",
    "UPDATE events SET kind = 'accepted' WHERE number = 1",
    "UPDATE events SET kind = 'asked' WHERE kind = 'completed'",
    "UPDATE events SET kind = 'finished' WHERE kind = 'closed'",
    "UPDATE events SET value = 'much' WHERE kind = 'completed'",
    "UPDATE events SET value = 9e999 WHERE kind = 'completed'",
    "UPDATE events SET value = NULL WHERE kind = 'completed'",
    "UPDATE events SET value = 1.0 WHERE kind = 'asked'",
    "UPDATE events SET trial = 9999 WHERE kind = 'completed'",
    "UPDATE events SET trial = trial + 1 WHERE kind = 'asked'",
    "UPDATE events SET trial = -1 WHERE kind = 'failed'",
    "UPDATE events SET trial = 0 WHERE kind = 'completed'",
    "UPDATE events SET trial = NULL WHERE kind = 'asked'",
    "UPDATE events SET time = 'then' WHERE number = 3",
    "UPDATE events SET number = number + 1000 WHERE number > 20",
    "DELETE FROM events WHERE number = 3",
    "DELETE FROM events WHERE number = 1",
    "DELETE FROM events WHERE kind = 'closed'",
    "DELETE FROM meta WHERE key = 'config'",
    "DELETE FROM meta WHERE key = 'notes'",
    "UPDATE meta SET value = CAST('{}' AS BLOB) WHERE key = 'notes'",
    "UPDATE meta SET value = '{' WHERE key = 'config'",
    "UPDATE meta SET value = '{}' WHERE key = 'config'",
    "UPDATE meta SET value = '[]' WHERE key = 'config'",
    "UPDATE meta SET value = json_remove(value, '$.covar_module.structure') WHERE key = 'config'",
    "UPDATE meta SET value = json_set(value, '$.covar_module', 5) WHERE key = 'config'",
    "UPDATE meta SET value = json_set(value, '$.covar_module.structure.class', "
    "'ScaleKernel', '$.covar_module.structure.parts', json('[]')) WHERE key = 'config'",
    "UPDATE meta SET value = '\"Unknown\"' WHERE key = 'optimizer'",
    "UPDATE meta SET value = replace(value, '\"horizon\": 60', '\"horizon\": 1e9')",
    "UPDATE meta SET value = replace(value, '\"horizon\": 60', '\"horizon\": 5')",
    "UPDATE meta SET value = replace(value, 'RBFKernel', 'CosineKernel')",
    "UPDATE arrays SET shape = '[1000000000000, 2]' WHERE name = 'points'",
    "UPDATE arrays SET shape = '[-1, -80]' WHERE name = 'points'",
    "UPDATE arrays SET dtype = 'object' WHERE name = 'points'",
    "UPDATE arrays SET data = 'text' WHERE name = 'points'",
    "UPDATE arrays SET data = zeroblob(640) WHERE name = 'points'",
    "DELETE FROM arrays WHERE name = 'points'",
    "CREATE TRIGGER t AFTER INSERT ON events BEGIN DELETE FROM events; END",
    "CREATE VIEW v AS SELECT * FROM trials",
    "CREATE TABLE extra (x)",
    "DROP VIEW trials",
]


@pytest.mark.parametrize("statement", CHANGES)
def test_valid_sqlite_with_wrong_contents(stored, statement):
    with closing(sqlite3.connect(stored)) as db:
        db.execute(statement)
        db.commit()
    with pytest.raises(StorageError) as caught:
        bd.load(stored)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("name", ["t", "meta", "sqlite_autoindex_t"])
def test_a_trigger_is_never_run(stored, name):
    opt = bd.load(stored)
    with closing(sqlite3.connect(stored)) as db:
        db.execute("CREATE TRIGGER a AFTER INSERT ON events BEGIN DELETE FROM events; END")
        db.execute("PRAGMA writable_schema = ON")  # reserved names cannot be created directly
        text = f"CREATE TRIGGER {name} AFTER INSERT ON events BEGIN DELETE FROM events; END"
        db.execute("UPDATE sqlite_master SET name = ?, sql = ? WHERE name = 'a'", (name, text))
        db.commit()
    opt.ask()
    with pytest.raises(StorageError, match="schema"):
        opt.save(stored)
    assert rows(stored, "SELECT count(*) FROM trials") == [(25,)]


def test_statistics_of_sqlite_do_no_harm(stored):
    with closing(sqlite3.connect(stored)) as db:
        db.execute("ANALYZE")
        db.commit()
        assert db.execute("SELECT count(*) FROM sqlite_stat1").fetchone()[0] > 0
    with bd.editing(stored) as opt:
        opt.ask()
    same(opt, bd.load(stored))
    with closing(sqlite3.connect(stored)) as db:
        db.execute("PRAGMA writable_schema = ON")
        db.execute(
            "UPDATE sqlite_master SET sql = 'CREATE TABLE sqlite_stat1(tbl,idx,stat,more)'"
            " WHERE name = 'sqlite_stat1'"
        )
        db.commit()
    with pytest.raises(StorageError, match="differs in 'sqlite_stat1'"):
        bd.load(stored)


@pytest.mark.parametrize(
    "broken", [None, [], {"format": "1"}, {"format": 99}, {"format": 1}, {"format": -3}]
)
def test_malformed_states(broken):
    with pytest.raises(StorageError):
        make().load_state_dict(broken)


@pytest.mark.parametrize("name", ["round", "slot", "point"])
def test_whole_numbers_that_no_run_comes_to(stored, name):
    opt = bd.load(stored)
    state = opt.state_dict()
    asked = next(event for event in state["events"] if event["kind"] == "asked")
    asked["data"][name] = 10**30
    with pytest.raises(StorageError):
        opt.load_state_dict(state)


def test_a_locked_file_says_so(stored, monkeypatch):
    monkeypatch.setattr(sqlite, "BUSY_SECONDS", 0.05)
    opt = bd.load(stored)
    opt.ask()
    with closing(sqlite3.connect(stored, isolation_level=None)) as db:
        db.execute("BEGIN EXCLUSIVE")
        with pytest.raises(StorageError, match="locked by another process"):
            opt.save(stored)
    opt.save(stored)
    same(opt, bd.load(stored))


@pytest.mark.parametrize("path", ["circle/study.db", "nul\0.db", 300 * "long"])
def test_a_path_that_names_no_file_is_one_error(tmp_path, path):
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    opt = bd.RandomOptimizer(bd.Space(a=bd.Float(0, 1)))
    for call in (opt.save, bd.load):
        with pytest.raises(StorageError, match=r"cannot name a file|does not exist|no such file"):
            call(tmp_path / path)


def test_saving_from_another_thread(stored):
    opt = bd.load(stored)
    opt.ask()
    thread = threading.Thread(target=opt.save, args=(stored,))
    thread.start()
    thread.join()
    same(opt, bd.load(stored))


def test_load_checks_the_device(stored):
    with pytest.raises(InputError, match="device="):
        bd.load(stored, device="no such device")
    for call in (bd.load, make().save):
        with pytest.raises(InputTypeError, match="path"):
            call(None)


def test_whoever_edits_a_file_does_not_wait_for_itself(tmp_path):
    path, other = tmp_path / "study.db", tmp_path / "other.db"
    opt = make()
    opt.ask(2)
    opt.save(path)
    with bd.editing(path) as edited:
        edited.tell(0, 1.0)
        edited.save(other)
        with pytest.raises(StorageError, match="is saved when the editing block ends"):
            edited.save(path)
        with pytest.raises(StorageError, match="already being"), bd.editing(path):
            pass
    assert bd.load(path).trials[0].value == 1.0
    with pytest.raises(InputError, match="overwrite must be True or False"):
        opt.save(path, overwrite="no")
    with pytest.raises(InputError, match="feasible must be a function"):
        bd.load(path, feasible="x")
    with (
        pytest.raises(InputError, match="feasible must be a function"),
        bd.editing(path, feasible=3),
    ):
        pass


def killed_while_in_use(path):
    """A process that is killed while it uses a file; one that it has forked goes on."""
    with sqlite.in_use(path, None):
        worker = os.fork()
        if worker == 0:
            signal.pause()
        print(worker, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_file_is_free_once_its_run_is_killed_whatever_it_has_forked(tmp_path):
    path = tmp_path / "study.db"
    with forked(killed_while_in_use, path) as (process, printed):
        worker = int(printed.readline())
        process.join()
        try:
            with sqlite.in_use(path, None):
                pass
        finally:
            os.kill(worker, signal.SIGKILL)


@pytest.mark.usefixtures("no_waits_for_locks")
@pytest.mark.parametrize("parent", [None, "the program that started this one"])
def test_a_file_that_another_run_uses_is_told(tmp_path, monkeypatch, parent):
    monkeypatch.setattr(multiprocessing, "parent_process", lambda: parent)
    path = tmp_path / "study.db"
    with closing(sqlite3.connect(f"{path}.lock", isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with (
            pytest.raises(StorageError, match=r"Another run uses .*study\.db") as caught,
            sqlite.in_use(path, None),
        ):
            pass
    assert ('if __name__ == "__main__"' in str(caught.value)) == (parent is not None)


def test_a_file_that_cannot_be_locked_is_told(stored):
    path = stored.parent / "other.db"
    Path(f"{path}.lock").mkdir()
    with (
        pytest.raises(StorageError, match=r"^Cannot lock .*unable to open"),
        sqlite.in_use(path, None),
    ):
        pass
    with sqlite.in_use(stored.parent / "nowhere" / "study.db", None):
        pass  # reported only when the file is written
    Path(f"{stored}.lock").write_text("12345\n", encoding="utf-8")  # a file of another program
    with pytest.raises(
        StorageError, match=r"\.lock, which says whether a run uses .* move it away"
    ):
        bd.load(stored).save(stored)
    with pytest.raises(StorageError, match="move it away"), bd.editing(stored):
        pass
    with (
        pytest.raises(StorageError, match=r"^Cannot lock .*not a database"),
        sqlite.in_use(stored, None),
    ):
        pass
