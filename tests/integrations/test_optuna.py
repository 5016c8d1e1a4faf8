"""DelaySampler in one process."""

import contextlib
import copy
import math
import pickle
import threading
from datetime import datetime, timedelta

import optuna
import pytest
import torch
from cases import se
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.storages import JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState as Theirs

import botorch_delay as bd
from botorch_delay.exceptions import HorizonError, InputError, InputTypeError, NoAnswerError
from botorch_delay.integrations import optuna as plugin
from botorch_delay.integrations.engine_run import Settings
from botorch_delay.integrations.optuna import ATTRIBUTE, DelaySampler
from botorch_delay.optimizers import bpe, rule_model
from botorch_delay.optimizers import run as running

pytestmark = pytest.mark.usefixtures("small_searches")

PLANE = {"x": FloatDistribution(0.0, 1.0), "y": FloatDistribution(0.0, 1.0)}
MIXED = {
    "depth": IntDistribution(2, 10, step=2),
    "kind": CategoricalDistribution(["a", "b", None]),
    "rate": FloatDistribution(1e-4, 1.0, log=True),
    "size": IntDistribution(1, 64, log=True),
    "step": FloatDistribution(-1.0, 1.0, step=0.25),
}
# For tests that are not about fits: these would cost most of the time.
GIVEN = {"covar_module": se(), "noise_var": 1e-2}


@pytest.fixture(autouse=True)
def quiet():
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    yield
    optuna.logging.set_verbosity(before)


def journal(path):
    return JournalStorage(JournalFileBackend(str(path / "study.log")))


def make_study(sampler, storage=None, direction="minimize"):
    return optuna.create_study(storage=storage, sampler=sampler, direction=direction)


def height(params):
    return (params["x"] - 0.3) ** 2 + (params["y"] - 0.7) ** 2


def asked_points(study):
    return [tuple(t.system_attrs[ATTRIBUTE]["x"]) for t in study.trials]


# Processes that choose at the same moment


def test_workers_that_keep_choosing_the_same_do_not_do_so_for_ever(tmp_path, monkeypatch):
    grid = {"n": IntDistribution(0, 9), "x": FloatDistribution(0.0, 1.0, step=0.125)}
    storage = journal(tmp_path)

    def sampler():
        return DelaySampler(search_space=grid, **GIVEN)

    study = make_study(sampler(), storage)
    for _ in range(12):
        trial = study.ask(grid)
        study.tell(trial, (trial.params["n"] - 3) ** 2 + trial.params["x"])
    monkeypatch.setattr(plugin, "_asking_before", lambda *arguments: 0)  # neither saw the other
    both, claims = threading.Barrier(2), []
    write = storage.set_trial_system_attr

    def write_together(trial_id, key, value):
        with contextlib.suppress(threading.BrokenBarrierError):
            both.wait(timeout=60.0)  # both have chosen
        write(trial_id, key, value)
        claims.append(value["number"])
        with contextlib.suppress(threading.BrokenBarrierError):
            both.wait(timeout=60.0)  # both have written

    plain = optuna.load_study(
        study_name=study.study_name, storage=storage, sampler=optuna.samplers.RandomSampler()
    )
    trials = [plain.ask() for _ in range(2)]  # some versions choose a point here already
    monkeypatch.setattr(storage, "set_trial_system_attr", write_together)
    params = {}

    def work(trial):
        worker = optuna.load_study(study_name=study.study_name, storage=storage, sampler=sampler())
        frozen = worker.trials[trial.number]
        params[trial.number] = worker.sampler.sample_relative(worker, frozen, grid)

    threads = [threading.Thread(target=work, args=(trial,)) for trial in trials]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert params[12] != params[13]
    assert len(claims) == 4  # each of them chose a second time


def test_a_trial_whose_first_two_choices_are_taken_makes_a_third(monkeypatch):
    grid, storage = {"n": IntDistribution(0, 9)}, optuna.storages.InMemoryStorage()
    study = make_study(DelaySampler(search_space=grid, **GIVEN), storage)
    plain = optuna.load_study(
        study_name=study.study_name, storage=storage, sampler=optuna.samplers.RandomSampler()
    )
    mine, *rivals = (plain.ask() for _ in range(3))
    write, taken = storage.set_trial_system_attr, []

    def rival_is_first(trial_id, key, value):
        if rivals:
            rival = rivals.pop()
            taken.append(value["x"])
            write(rival._trial_id, ATTRIBUTE, dict(value, number=rival.number))
        write(trial_id, key, value)

    monkeypatch.setattr(storage, "set_trial_system_attr", rival_is_first)
    monkeypatch.setattr(plugin, "_asking_before", lambda *arguments: 0)
    point = study.sampler.sample_relative(study, study.trials[mine.number], grid)
    assert [float(point["n"])] not in taken
    assert len(taken) == 2
    assert taken[0] != taken[1]


def test_trials_that_never_ask_take_no_points_from_others():
    grid, storage = {"n": IntDistribution(0, 9)}, optuna.storages.InMemoryStorage()
    study = make_study(optuna.samplers.RandomSampler(), storage)
    for _ in range(4):
        study.ask()  # killed before its first parameter
    study.sampler = DelaySampler(search_space=grid)
    assert {study.ask(grid).params["n"] for _ in range(10)} == {*range(10)}


def test_brackets_of_hyperband_share_their_results(monkeypatch):
    propose, known = plugin._StudyRun.propose, []

    def counted(run, trial):
        params = propose(run, trial)
        known.append(len(run.ended))
        return params

    monkeypatch.setattr(plugin._StudyRun, "propose", counted)
    pruner = optuna.pruners.HyperbandPruner(1, 9, 3)
    study = optuna.create_study(sampler=DelaySampler(search_space=PLANE), pruner=pruner)

    def objective(trial):
        value = height({name: trial.suggest_float(name, 0, 1) for name in "xy"})
        trial.report(value, 1)
        if trial.should_prune():
            raise optuna.TrialPruned
        return value

    study.optimize(objective, 8)
    assert known == [*range(8)]


# Points


def test_every_kind_of_parameter_is_translated():
    domain = DelaySampler()._run(make_study(DelaySampler()), MIXED).domain
    assert domain.names == ("depth", "kind", "rate", "size", "step")
    assert domain.log_dims == (2, 3)
    assert domain.cat_dims == {1: [0.0, 1.0, 2.0]}
    assert domain.discrete_dims[0] == [2.0, 4.0, 6.0, 8.0, 10.0]
    assert domain.discrete_dims[4][0] == -1.0
    unit = torch.rand(200, 5, generator=torch.Generator().manual_seed(0), dtype=torch.double)
    for x in domain.from_unit(unit):
        params = domain.params(x)
        for name, distribution in MIXED.items():
            assert distribution._contains(distribution.to_internal_repr(params[name]))
        assert isinstance(params["depth"], int)
        assert isinstance(params["size"], int)


def test_results_of_wider_distributions_are_used_and_those_of_other_parameters_are_not(caplog):
    study = make_study(DelaySampler(search_space=MIXED))
    wide = {**MIXED, "rate": FloatDistribution(1e-4, 9.0, log=True)}
    other = {**MIXED, "kind": CategoricalDistribution(["a", "z"])}
    values = {"depth": 2, "kind": "a", "rate": 2.0, "size": 1, "step": 0.5}
    for distributions, params in (
        (wide, values),
        (other, {**values, "rate": 0.5, "kind": "z"}),
        ({"depth": MIXED["depth"]}, {"depth": 4}),
    ):
        study.add_trial(optuna.create_trial(params=params, distributions=distributions, value=1.0))
    (result,) = study.sampler.optimizer(study).attached
    assert result.x.tolist() == [2.0, 0.0, 2.0, 1.0, 0.5]
    assert "trial 1 is not used: kind must be one of" in caplog.text
    assert "trial 2 is not used" in caplog.text


def test_long_grids_are_searched_as_intervals_and_rounded():
    fine = {"n": IntDistribution(0, 10**6, step=5), "x": FloatDistribution(0.0, 1.0, step=1e-5)}
    study = make_study(DelaySampler(search_space=fine))
    for _ in range(4):
        trial = study.ask(fine)
        assert trial.params["n"] % 5 == 0
        study.tell(trial, trial.params["x"])
    optimizer = study.sampler.optimizer(study)
    assert optimizer.domain.discrete_dims == {}
    assert [trial.state for trial in optimizer.trials] == [bd.TrialState.COMPLETED] * 4


def test_the_search_space_is_there_before_the_first_result_and_is_a_copy():
    study = make_study(DelaySampler())
    first = study.ask(PLANE)
    assert study.trials[0].state is Theirs.RUNNING
    assert ATTRIBUTE not in study.trials[0].system_attrs  # the parameters were not known yet
    found = study.sampler.infer_relative_search_space(study, study.trials[0])
    assert found == PLANE
    found.clear()
    assert study.sampler.infer_relative_search_space(study, study.trials[0]) == PLANE
    second = study.ask(PLANE)
    assert ATTRIBUTE in study.trials[1].system_attrs
    study.tell(second, 1.0)
    study.tell(first, 0.5)
    optimizer = study.sampler.optimizer(study)
    assert [a.value for a in optimizer.attached] == [0.5]
    assert [t.value for t in optimizer.trials] == [1.0]
    given = DelaySampler(search_space=PLANE)
    given.infer_relative_search_space(study, study.trials[0]).clear()
    assert given.infer_relative_search_space(study, study.trials[0]) == PLANE


def test_conditional_parameters_are_sampled_on_their_own_and_need_no_space():
    def objective(trial):
        kind = trial.suggest_categorical("kind", ["line", "curve"])
        x = trial.suggest_float("x", 0, 1)
        if kind == "curve":
            return x * trial.suggest_float("bend", 0.1, 1.0, log=True)
        return x

    study = make_study(DelaySampler(seed=2, **GIVEN))
    study.optimize(objective, n_trials=12)
    kinds = {t.params["kind"] for t in study.trials}
    assert kinds == {"line", "curve"}
    assert set(study.sampler.infer_relative_search_space(study, study.trials[0])) == {"kind", "x"}
    assert all(0.1 <= t.params["bend"] <= 1.0 for t in study.trials if "bend" in t.params)
    assert study.sampler.recommend(study).keys() == {"kind", "x"}


# What is read from the storage


def test_added_enqueued_and_failed_trials_are_read_from_the_storage():
    assert "after_trial" not in vars(DelaySampler)
    study = make_study(DelaySampler(search_space=PLANE))
    study.add_trial(
        optuna.create_trial(params={"x": 0.1, "y": 0.2}, distributions=PLANE, value=4.0)
    )
    study.enqueue_trial({"x": 0.25, "y": 0.75})
    study.enqueue_trial({"x": 0.5})
    trials = [study.ask(PLANE) for _ in range(5)]
    assert trials[0].params == {"x": 0.25, "y": 0.75}
    assert trials[1].params["x"] == 0.5
    settle = study._storage.set_trial_state_values  # as another process does: no tell here
    settle(trials[0]._trial_id, Theirs.COMPLETE, [1.0])
    settle(trials[1]._trial_id, Theirs.COMPLETE, [2.0])
    settle(trials[2]._trial_id, Theirs.COMPLETE, [float("inf")])  # no number to learn from
    settle(trials[3]._trial_id, Theirs.FAIL)
    settle(trials[4]._trial_id, Theirs.COMPLETE, [3.0])
    optimizer = study.sampler.optimizer(study)
    assert [a.value for a in optimizer.attached] == [4.0, 1.0, 2.0]
    assert [t.state.value for t in optimizer.trials] == ["failed", "failed", "completed"]
    assert optimizer.trials[2].value == 3.0


def test_copied_trials_are_results_not_asks():
    study = make_study(DelaySampler(search_space=PLANE))
    for _ in range(3):
        trial = study.ask(PLANE)
        study.tell(trial, height(trial.params))
    other = make_study(DelaySampler(search_space=PLANE))
    other.add_trials(study.trials)
    assert len(other.sampler.optimizer(other).attached) == 3
    assert other.sampler.optimizer(other).trials == []


def test_a_sampler_with_other_arguments_begins_from_the_results(caplog):
    study = make_study(DelaySampler(search_space=PLANE))
    for _ in range(3):
        trial = study.ask(PLANE)
        study.tell(trial, height(trial.params))
    study.ask(PLANE)
    study.sampler = DelaySampler(30, seed=1, search_space=PLANE)
    assert len(study.sampler.optimizer(study).attached) == 3
    assert "give every worker the same arguments" in caplog.text


def test_a_change_of_the_search_space_keeps_the_results():
    study = make_study(DelaySampler())
    study.optimize(lambda t: t.suggest_float("x", 0, 1), n_trials=4)
    study.optimize(lambda t: t.suggest_float("x", 0, 1) + t.suggest_int("n", 0, 3), n_trials=4)
    optimizer = study.sampler.optimizer(study)
    assert len(optimizer.attached) + len([t for t in optimizer.trials if t.value is not None]) == 8


def test_a_restarted_process_goes_on_where_the_other_stopped(tmp_path):
    study = make_study(DelaySampler(search_space=PLANE), journal(tmp_path))
    other = optuna.load_study(
        study_name=study.study_name,
        storage=journal(tmp_path),
        sampler=DelaySampler(search_space=PLANE),
    )
    for number in range(12):
        asking = study if number % 2 else other
        if number == 7:
            asking.sampler = DelaySampler(search_space=PLANE)
        trial = asking.ask(PLANE)
        if number % 3 < 2:
            asking.tell(trial, height(trial.params))
    fresh = DelaySampler(search_space=PLANE)
    records = [s.optimizer(study).rounds for s in (study.sampler, fresh)]
    assert records[0] == records[1]
    assert len(records[0]) >= 1
    one, two = copy.copy(fresh), pickle.loads(pickle.dumps(fresh))
    assert one.recommend(study) == two.recommend(study) == study.sampler.recommend(study)


# Workers


def test_trials_that_ask_at_the_same_moment_get_different_points(tmp_path):
    for options in ({"horizon": 40, "exploit": None}, {}):
        storage = optuna.storages.InMemoryStorage()
        sampler = DelaySampler(search_space=PLANE, **options)
        study = make_study(sampler, storage)
        trials = [study.ask() for _ in range(6)]  # created, and nothing suggested yet
        order = [3, 0, 5, 1, 4, 2]
        got = {n: [trials[n].suggest_float(name, 0, 1) for name in "xy"] for n in order}
        alone = DelaySampler(**options)._run(study, PLANE).replica.optimizer.ask(6)
        if options:  # the design is dealt by trial number, whoever asks first
            assert [got[n] for n in range(6)] == [t.x.tolist() for t in alone]
        assert len({tuple(point) for point in got.values()}) == 6


def test_two_processes_that_do_not_see_each_other_s_point_do_not_both_keep_it(monkeypatch):
    """The second claims a point between the first one's reading and writing."""
    kinds = {"kind": CategoricalDistribution(list("abcdefgh"))}
    storage = optuna.storages.InMemoryStorage()
    study = make_study(DelaySampler(search_space=kinds), storage)
    rival = optuna.load_study(
        study_name=study.study_name, storage=storage, sampler=DelaySampler(search_space=kinds)
    )
    mine, theirs = study.ask(), rival.ask()
    write, raced = storage.set_trial_system_attr, []

    def slow_write(trial_id, key, value):
        if key == ATTRIBUTE and trial_id == mine._trial_id and not raced:
            raced.append(value["x"])
            forced = dict(value, number=theirs.number)
            write(theirs._trial_id, ATTRIBUTE, forced)
        write(trial_id, key, value)

    monkeypatch.setattr(storage, "set_trial_system_attr", slow_write)
    mine.suggest_categorical("kind", list("abcdefgh"))
    points = asked_points(study)
    assert raced == [list(points[1])]
    assert points[0] != points[1]


@pytest.mark.parametrize("options", [{}, {"explore_fraction": 0.5, "horizon": 60}])
def test_no_point_is_handed_to_two_running_trials(options):
    choices = list("abcdefgh")
    space = {"kind": CategoricalDistribution(choices), "n": IntDistribution(0, 2)}
    study = make_study(DelaySampler(search_space=space, **GIVEN, **options))
    running = []
    for _ in range(10):
        trial = study.ask(space)
        point = tuple(trial.params.values())
        assert point not in [tuple(t.params.values()) for t in running]
        running.append(trial)
        if len(running) == 6:
            done = running.pop(3)
            study.tell(done, choices.index(done.params["kind"]) + done.params["n"])


@pytest.mark.parametrize("fails", [(), ("b",)])
def test_where_workers_outnumber_points_each_chooses_once(fails, monkeypatch):
    small = {"kind": CategoricalDistribution(["a", "b"])}
    crowded = make_study(DelaySampler(search_space=small, **GIVEN))
    for _ in range(8):
        trial = crowded.ask(small)
        broken = trial.params["kind"] in fails
        crowded.tell(trial, None if broken else 1.0, Theirs.FAIL if broken else Theirs.COMPLETE)
    chosen, ask = [], plugin._StudyRun.ask
    monkeypatch.setattr(
        plugin._StudyRun,
        "ask",
        lambda run, *a, **kw: chosen.append(ask(run, *a, **kw)) or chosen[-1],
    )
    kinds = {crowded.ask(small).params["kind"] for _ in range(3 - len(fails))}
    assert kinds == {"a", "b"}.difference(fails)
    chosen.clear()
    for _ in range(3):
        crowded.ask(small)
    assert len(chosen) == 3


def test_threads_share_one_sampler(tmp_path):
    study = make_study(DelaySampler(search_space=PLANE, **GIVEN), journal(tmp_path))
    barrier = threading.Barrier(4, timeout=60)

    def objective(trial):
        if trial.number < 4:
            barrier.wait()  # four at once
        return height({name: trial.suggest_float(name, 0, 1) for name in "xy"})

    study.optimize(objective, n_trials=12, n_jobs=4)
    assert all(t.state is Theirs.COMPLETE for t in study.trials)
    assert len(set(asked_points(study))) == 12
    optimizer = study.sampler.optimizer(study)
    assert len(optimizer.trials) == 12
    study.ask(PLANE)  # reads every answer, whichever came last
    assert study.sampler.optimizer(study).round > 1


def test_stale_trials_are_freed_on_any_storage_and_may_come_late(tmp_path, monkeypatch):
    sampler = DelaySampler(30, search_space=PLANE, exploit=None, stale_after=100.0)
    study = make_study(sampler, journal(tmp_path))
    dead = study.ask(PLANE)
    silent = study.ask()  # its worker died before it had a point
    others = [study.ask(PLANE) for _ in range(8)]
    for trial in others:
        study.tell(trial, height(trial.params))
    assert sampler.optimizer(study).rounds == []
    assert sampler.optimizer(study).pending != []
    later = datetime.now() + timedelta(seconds=101)
    monkeypatch.setattr(plugin, "_now", lambda: later)
    for _ in range(2):
        trial = study.ask(PLANE)
        study.tell(trial, height(trial.params))
    optimizer = sampler.optimizer(study)
    assert optimizer.trials[0].state is bd.TrialState.ABANDONED
    assert len(optimizer.rounds) == 1  # the round no longer waited for it
    assert study.trials[1].state is Theirs.RUNNING
    assert silent.number == 1
    study.tell(dead, 0.25)
    optimizer = sampler.optimizer(study)
    assert optimizer.trials[0].value == 0.25
    assert optimizer.trials[0].came_back


@pytest.mark.filterwarnings("error::botorch_delay.exceptions.OutlierWarning")
@pytest.mark.parametrize("kernel", [GIVEN, {"covar_module": se(), "exact": True}])
def test_results_from_elsewhere_leave_every_process_the_same_set(kernel):
    options = {"search_space": PLANE, "explore_fraction": 0.2, **kernel}
    study = make_study(DelaySampler(60, **options))

    def add(*places):
        for x in places:
            params = {"x": x, "y": 1.0 - x}
            value = -1e4 if x == 1.0 else height(params)
            study.add_trial(optuna.create_trial(params=params, distributions=PLANE, value=value))

    add(0.1, 0.9)
    while not (study.sampler.optimizer(study).rounds if len(study.trials) > 2 else []):
        trial = study.ask(PLANE)
        study.tell(trial, height(trial.params))
    add(*torch.linspace(0.0, 1.0, 18).tolist())  # after a round has closed
    ours, other = (
        sampler.optimizer(study) for sampler in (study.sampler, DelaySampler(60, **options))
    )
    assert len(ours.attached) == len(other.attached) == 20
    assert ours.active_set.is_cut
    probes = torch.rand(500, 2, dtype=torch.double, generator=torch.Generator().manual_seed(0))
    assert torch.equal(ours.active_set.contains(probes), other.active_set.contains(probes))


@pytest.mark.parametrize("asks", [False, True])
def test_every_process_sees_a_stale_trial_that_failed_at_last_alike(monkeypatch, asks):
    """It counts as lost if the record of an ask says so."""
    sampler = DelaySampler(30, search_space=PLANE, exploit=None, stale_after=100.0)
    study = make_study(sampler)
    slow = study.ask(PLANE)
    with monkeypatch.context() as patch:
        patch.setattr(plugin, "_now", lambda: datetime.now() + timedelta(seconds=101))
        if asks:
            study.ask(PLANE)
        assert sampler.optimizer(study).trials[0].state is bd.TrialState.ABANDONED
    study.tell(slow, state=Theirs.FAIL)
    other = DelaySampler(30, search_space=PLANE, exploit=None, stale_after=100.0)
    expected = bd.TrialState.ABANDONED if asks else bd.TrialState.FAILED
    for each in (sampler, other):
        assert each.optimizer(study).trials[0].state is expected


def test_heartbeats_of_a_database_are_honoured(tmp_path, monkeypatch):
    url = f"sqlite:///{tmp_path / 'study.db'}"
    with pytest.warns(optuna.exceptions.ExperimentalWarning):
        storage = RDBStorage(url, heartbeat_interval=60, grace_period=120)
    study = make_study(DelaySampler(30, search_space=PLANE, exploit=None), storage)
    with pytest.warns(UserWarning, match="Heartbeat"):
        trial = study.ask(PLANE)
    assert len(study.sampler.optimizer(study).pending) == 1
    backend = type(study._storage)
    monkeypatch.setattr(backend, "_get_stale_trial_ids", lambda *args: [trial._trial_id])
    assert study.sampler.optimizer(study).pending == []
    storage.engine.dispose()


def test_a_retried_trial_brings_its_parameters_and_no_ask():
    study = make_study(DelaySampler(search_space=PLANE))
    first = study.ask(PLANE)
    study._storage.set_trial_state_values(first._trial_id, Theirs.FAIL)
    dead = study.trials[0]
    study.add_trial(  # as Optuna's callback for stale trials does
        optuna.create_trial(
            state=Theirs.WAITING,
            params=dead.params,
            distributions=dead.distributions,
            system_attrs={"failed_trial": 0, **dead.system_attrs},
        )
    )
    again = study.ask(PLANE)
    assert again.params == dead.params
    study.tell(again, 1.5)
    optimizer = study.sampler.optimizer(study)
    assert [t.state for t in optimizer.trials] == [bd.TrialState.FAILED]
    assert [a.value for a in optimizer.attached] == [1.5]


# Cost


def test_an_ask_costs_what_is_new_not_what_is_there(tmp_path, monkeypatch):
    """No optimizer is rebuilt, no trial is taken in twice, no fit is repeated."""
    study = make_study(optuna.samplers.RandomSampler(seed=0), journal(tmp_path))
    study.optimize(lambda t: height({n: t.suggest_float(n, 0, 1) for n in "xy"}), n_trials=80)
    made, fits, taken, attached, restarts = [], [], [], [], []

    def count(owner, name, calls):
        function = getattr(owner, name)

        def counted(*args, **kwargs):
            calls.append(1)
            return function(*args, **kwargs)

        monkeypatch.setattr(owner, name, counted)

    count(Settings, "make", made)
    count(running, "fit_surrogate", fits)
    count(bpe.BPEDelayOptimizer, "tell", taken)
    count(bpe.BPEDelayOptimizer, "attach", attached)
    count(rule_model.RuleModel, "restart", restarts)
    study.sampler = DelaySampler()
    study.optimize(lambda t: height({n: t.suggest_float(n, 0, 1) for n in "xy"}), n_trials=3)
    assert len(attached) == 80
    before = [len(calls) for calls in (made, fits, attached, restarts)]
    taken.clear()
    study.optimize(lambda t: height({n: t.suggest_float(n, 0, 1) for n in "xy"}), n_trials=10)
    assert [len(calls) for calls in (made, fits, attached, restarts)] == before
    assert len(made) == 1
    assert len(taken) == 10  # one per trial: its answer


# Errors


def test_several_objectives_are_refused():
    study = optuna.create_study(directions=["minimize", "maximize"], sampler=DelaySampler())
    with pytest.raises(InputError, match="one objective, and the study has 2"):
        study.optimize(lambda t: (t.suggest_float("x", 0, 1), 1.0), n_trials=1)
    for question in (study.sampler.optimizer, study.sampler.recommend, study.sampler.guarantee):
        with pytest.raises(InputError, match="one objective"):
            question(study)


def test_bad_arguments_are_refused_when_they_are_given():
    for arguments, message in (
        ({"horizon": 0}, "horizon must be at least 1"),
        ({"seed": -1}, "seed must be at least 0"),
        ({"stale_after": 0.0}, "stale_after must be above 0"),
        ({"search_space": {"x": (0, 1)}}, "search_space must map names to distributions"),
        (
            {"horizn": 9},
            r"no option 'horizn'\. Did you mean horizon\? It takes horizon, seed, ",
        ),
        ({"q": 9}, r"DelaySampler has no option 'q'\. It .* stale_after, and options of BPED"),
    ):
        with pytest.raises(InputError, match=message):
            DelaySampler(**arguments)
    assert issubclass(InputTypeError, TypeError)


def test_the_horizon_is_kept_and_nothing_is_lost():
    study = make_study(DelaySampler(3, search_space=PLANE))
    for _ in range(3):
        trial = study.ask(PLANE)
        study.tell(trial, height(trial.params))
    with pytest.raises(HorizonError, match="of the horizon, 3, have been asked for"):
        study.ask(PLANE)
    study.sampler = DelaySampler(search_space=PLANE)
    study.tell(study.ask(PLANE), 1.0)
    assert len(study.sampler.optimizer(study).attached) == 3
    assert study.sampler.recommend(study)


def test_questions_before_there_is_anything_to_say():
    study = make_study(DelaySampler())
    with pytest.raises(NoAnswerError, match="No trial of the study has parameters yet"):
        study.sampler.optimizer(study)
    study.ask(PLANE)
    with pytest.raises(NoAnswerError, match="No trial of this study has completed yet"):
        study.sampler.recommend(study)
    with pytest.raises(InputTypeError, match=r"study must be an optuna\.Study, got str"):
        study.sampler.recommend("study")


@pytest.mark.filterwarnings("ignore:Choices for a categorical distribution")  # lists
def test_a_recommendation_has_the_parameters_of_one_value():
    def objective(trial):
        kind, one = trial.suggest_categorical("kind", ["a", "b"]), trial.suggest_int("one", 1, 1)
        trial.suggest_categorical("sizes", [[8, 8]])
        if kind == "b":
            return 1.0 + trial.suggest_float("y", 0, 1) + trial.suggest_int("two", 2, 2)
        trial.suggest_float("w", 0.9 if trial.number == 15 else 0.0, 0.9)
        return trial.suggest_float("x", 0, 1) - one

    study = make_study(DelaySampler())
    study.optimize(objective, 16)
    expected = {"kind": "a", "one": 1, "sizes": [8, 8]}
    for tried in (False, True):
        assert study.sampler.recommend(study, tried=tried) == expected


def test_a_search_space_of_other_parameters_is_told(caplog):
    meant = {"rate": FloatDistribution(0, 1), "depth": FloatDistribution(0, 1)}
    study = make_study(DelaySampler(search_space=meant))
    study.optimize(
        lambda trial: trial.suggest_float("rate", 0, 1) + trial.suggest_float("dept", 0, 1), 12
    )
    assert caplog.text.count("No completed trial has depth of search_space") == 1
    other = make_study(DelaySampler(search_space=meant))
    other.optimize(lambda trial: trial.suggest_float("dept", 0, 1), 4)
    with pytest.raises(NoAnswerError, match="No completed trial has depth, rate of search_space"):
        other.sampler.recommend(other)


def test_conditional_parameters_may_be_in_the_search_space():
    def objective(trial):
        kind, rate = trial.suggest_categorical("kind", ["a", "b"]), trial.suggest_float("x", 0, 1)
        if kind == "b":
            return 1.0 + (rate - 0.3) ** 2 + (trial.suggest_float("y", 0, 1) - 0.9) ** 2
        return (rate - 0.6) ** 2

    space = {**PLANE, "kind": CategoricalDistribution(["a", "b"])}
    study = make_study(DelaySampler(search_space=space))
    study.optimize(objective, 16)
    trials = study.sampler.optimizer(study).trials
    assert [trial.value for trial in trials] == [trial.value for trial in study.trials]
    assert study.sampler.recommend(study)["kind"] == "a"


def test_what_was_evaluated_in_the_place_of_the_asked_values_is_a_result():
    def objective(trial):
        depth = trial.suggest_int("depth", 1, 8)
        return depth - trial.suggest_int("width", 8, 256 // depth) / 256

    space = {"depth": IntDistribution(1, 8), "width": IntDistribution(8, 256)}
    study = make_study(DelaySampler(search_space=space))
    study.optimize(objective, 12)
    optimizer = study.sampler.optimizer(study)
    values = {trial.value for trial in optimizer.trials} | {r.value for r in optimizer.attached}
    assert values - {None} == {trial.value for trial in study.trials}
    failed = [trial for trial in optimizer.trials if trial.state is bd.TrialState.FAILED]
    assert len(failed) == len(optimizer.attached) > 0
    assert failed[0].reason == "other values were evaluated"


def test_trials_without_any_parameter_of_the_search_space_are_not_failures():
    def objective(trial):
        if trial.suggest_categorical("model", ["svm", "forest"]) == "svm":
            return 1.0
        return 1.0 - 0.1 * trial.suggest_int("depth", 1, 4)

    study = make_study(DelaySampler(search_space={"depth": IntDistribution(1, 4)}, **GIVEN))
    study.optimize(objective, 24)
    optimizer = study.sampler.optimizer(study)
    without = sum("depth" not in trial.params for trial in study.trials)
    states = [trial.state for trial in optimizer.trials]
    assert states.count(bd.TrialState.ABANDONED) == without > 3
    assert bd.TrialState.FAILED not in states
    assert study.best_params == {"model": "forest", "depth": 4}


def test_a_pruned_point_is_not_asked_for_ever():
    def objective(trial):
        if trial.suggest_float("x", 0, 1) > 0.5:
            raise optuna.TrialPruned
        return -trial.params["x"] - trial.suggest_float("y", 0, 1)

    study = make_study(DelaySampler(search_space=PLANE))
    study.optimize(objective, 20)
    assert len(set(asked_points(study))) >= 18


def test_a_study_goes_on_where_every_point_was_pruned():
    def objective(trial):
        if trial.suggest_int("x", 0, 1) == trial.number % 2 or trial.number < 9:
            raise optuna.TrialPruned
        return 1.0

    study = make_study(DelaySampler(search_space={"x": IntDistribution(0, 1)}))
    study.optimize(objective, 24)
    assert len(study.trials) == 24


def test_a_parameter_that_cannot_be_translated_is_named():
    study = make_study(DelaySampler())
    study.optimize(lambda trial: float(trial.suggest_int("number", 0, 2**62)), 1)
    with pytest.raises(InputError, match="Parameter 'number': high must be at most"):
        study.optimize(lambda trial: float(trial.suggest_int("number", 0, 2**62)), 1)


def test_a_search_space_with_another_range_is_told(caplog):
    study = make_study(DelaySampler(search_space={"rate": FloatDistribution(-5, -1)}))
    study.optimize(lambda trial: trial.suggest_float("rate", 0.0, 0.1), 12)
    assert caplog.text.count("No completed trial has the range of rate that search_space") == 1


@pytest.mark.parametrize("key", ["constraints", "constraints:memory"])
def test_constraints_are_ignored_with_a_word(caplog, key):
    study = make_study(DelaySampler(search_space=PLANE))
    for _ in range(3):
        trial = study.ask(PLANE)
        study._storage.set_trial_system_attr(trial._trial_id, key, [1.0])
        study.tell(trial, height(trial.params))
    assert caplog.text.count("Optuna's constraints are ignored") == 1


def test_a_parameter_that_comes_later_is_told(caplog):
    study = make_study(DelaySampler())
    study.optimize(lambda trial: trial.suggest_float("x", 0, 1), 3)
    study.optimize(lambda t: t.suggest_float("x", 0, 1) + t.suggest_float("y", 0, 1), 3)
    assert caplog.text.count("Not all completed trials have y; TPE chooses each") == 1


def test_a_trial_whose_result_cannot_be_used_does_not_restrict_the_search_space():
    def diverges_first(trial):
        x = trial.suggest_float("x", 0, 1)
        return math.inf if trial.number == 0 else x + trial.suggest_float("y", 0, 1)

    study = make_study(DelaySampler())
    study.optimize(diverges_first, n_trials=5)
    assert study.sampler.recommend(study).keys() == {"x", "y"}


def test_results_without_a_parameter_in_common_are_told(caplog):
    study = make_study(DelaySampler())
    study.optimize(lambda trial: 1.0, n_trials=1)
    assert caplog.text == ""
    study.optimize(lambda trial: trial.suggest_float("x", 0, 1), n_trials=3)
    assert caplog.text.count("is in all completed trials, so TPE chooses each") == 1
    with pytest.raises(NoAnswerError, match="pass search_space to DelaySampler"):
        study.sampler.recommend(study)


@pytest.mark.parametrize("others", [0, 1])
def test_a_range_that_has_changed_is_told(caplog, others):
    def objective(high):
        def evaluate(trial):
            more = [trial.suggest_float(f"y{place}", 0, 1) for place in range(others)]
            return trial.suggest_float("x", 0, high) + sum(more)

        return evaluate

    study = make_study(DelaySampler())
    study.optimize(objective(1.0), n_trials=3)
    assert caplog.text == ""
    study.optimize(objective(2.0), n_trials=4)
    assert caplog.text.count("The completed trials have different ranges of x, each") == 1
    assert "in all completed trials" not in caplog.text


def test_a_value_that_is_no_number_is_told_without_calls_that_there_are_not(caplog):
    study = make_study(DelaySampler(search_space=PLANE))
    study.enqueue_trial({"x": 0.25, "y": 0.75})
    for _ in range(2):
        study.tell(study.ask(PLANE), float("inf"))
    (failed,) = study.sampler.optimizer(study).trials
    assert failed.reason == "y must be finite, got inf."
    assert "trial 0 is not used: y must be finite, got inf." in caplog.text
    assert "mark_failed" not in caplog.text
