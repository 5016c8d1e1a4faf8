"""The searcher by itself, and on a real local cluster."""

import copy
import functools
import json
import logging
import math
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch
from cases import se
from readme_blocks import python_blocks

from botorch_delay.exceptions import InputError, NotSupportedError, StorageError
from botorch_delay.history.trials import TrialState

optuna = pytest.importorskip("optuna")
ray = pytest.importorskip("ray")
pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's own, from many places

from ray import cloudpickle, tune  # noqa: E402
from ray.tune.search import ConcurrencyLimiter, Searcher  # noqa: E402
from ray.tune.search.optuna import OptunaSearch  # noqa: E402

from botorch_delay.integrations.engine_run import Settings  # noqa: E402
from botorch_delay.integrations.optuna import DelaySampler  # noqa: E402
from botorch_delay.integrations.ray import DelaySearch, _TuneRun  # noqa: E402

QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "RAY_DISABLE_METRICS_COLLECTION": "1",
    "RAY_prestart_worker_first_driver": "0",  # they would import for seconds
    # A busy machine is no reason to kill a worker, or to give up starting one.
    "RAY_memory_monitor_refresh_ms": "0",
    "RAY_raylet_start_wait_time_s": "600",
}
SPACE = {
    "rate": tune.loguniform(1e-4, 1e-1),
    "net": {"width": tune.randint(1, 5), "act": tune.choice(["relu", "tanh"])},
    "epochs": 3,
}


FIXED = {"covar_module": se(0.3), "noise_var": 1e-4, "exploit": None}


def searcher(space=SPACE, num_samples=20, mode="min", **options):
    search = DelaySearch(metric="loss", mode=mode, **FIXED | options)
    assert search.set_search_properties(None, None, space, num_samples=num_samples)
    return search


def as_run(space):
    return _TuneRun(space, Settings(None, 0, {}), maximize=False)


def states(search):
    return [trial.state for trial in search.optimizer.trials]


# ------------------------------------------------------------------------------ spaces


def encoded(run, config):
    return run.domain.point(run.named(config))


def test_every_kind_of_space_is_converted():
    run = as_run(
        {
            "u": tune.uniform(-1, 1),
            "l": tune.loguniform(1e-4, 1),
            "q": tune.quniform(0, 0.5, 0.1),
            "ql": tune.qloguniform(1e-2, 1, 1e-2),
            "i": tune.randint(2, 5),
            "qi": tune.qrandint(5, 20, 5),
            "q1": tune.qrandint(0, 3, 1),
            "li": tune.lograndint(1, 9),
            "c": tune.choice(["a", None, (1, 2)]),
            "deep": {"list": [tune.uniform(0, 1), 7]},
            "fixed": "yes",
        }
    )
    domain = run.domain
    at = {name: number for number, name in enumerate(domain.names)}
    assert set(at) == {"u", "l", "q", "ql", "i", "qi", "q1", "li", "c", "deep/list/0"}
    lists = domain.discrete_dims
    assert lists[at["q"]] == [0.0, 0.1, 0.2, 0.3, 0.4, 0.5]
    assert len(lists[at["ql"]]) == 100
    assert lists[at["i"]] == [2.0, 3.0, 4.0]  # the upper end is exclusive
    assert lists[at["qi"]] == [5.0, 10.0, 15.0, 20.0]  # and here it is not
    assert lists[at["q1"]] == [0.0, 1.0, 2.0]
    assert lists[at["li"]] == list(range(1, 9))
    assert domain.log_dims == tuple(sorted(at[name] for name in ("l", "ql", "li")))
    assert domain.cat_dims == {at["c"]: [0.0, 1.0, 2.0]}
    x = domain.from_unit(torch.full((1, domain.dim), 0.99).double())[0]
    config = run.params(x)
    assert config["c"] == (1, 2)
    assert config["fixed"] == "yes"
    assert config["deep"]["list"][1] == 7
    assert type(config["i"]) is int
    assert torch.equal(encoded(run, config), x)
    assert torch.equal(encoded(run, {**config, "deep": {"list": [config["deep"]["list"][0]]}}), x)


def test_what_tune_itself_draws_is_what_the_space_allows():
    space = {"i": tune.randint(2, 5), "qi": tune.qrandint(5, 20, 5), "q1": tune.qrandint(0, 3, 1)}
    run = as_run(space)
    for seed in range(50):
        drawn = {name: domain.sample(random_state=seed) for name, domain in space.items()}
        encoded(run, drawn)  # raises for a value that it does not have


@pytest.mark.parametrize(
    ("space", "error", "message"),
    [
        ({"a": tune.grid_search([1, 2])}, NotSupportedError, "a: grid_search"),
        ({"n": {"a": tune.grid_search([1, 2])}}, NotSupportedError, "n/a: grid_search"),
        ({"a": tune.sample_from(lambda c: 1)}, NotSupportedError, "a: what sample_from draws"),
        ({"a": ("__fn_ph", "0123")}, NotSupportedError, "a: what sample_from draws"),
        ({"a": tune.randn(0, 1)}, NotSupportedError, "a: a distribution without bounds"),
        ({"a": tune.choice([1, tune.uniform(0, 1)])}, NotSupportedError, "a: spaces inside"),
        ({"a": tune.uniform(1, 0)}, InputError, "a: low must not be above high"),
        ({"a": tune.randint(3, 3)}, InputError, "a: low must not be above high"),
        ({"a": tune.choice([])}, InputError, "a: A choice needs"),
        ({"a/b": tune.uniform(0, 1), "a": {"b": tune.uniform(0, 1)}}, InputError, "called a/b"),
        ({"a": 3}, InputError, "nothing to search"),
        ({}, InputError, "nothing to search"),
    ],
)
def test_spaces_that_cannot_be_searched(space, error, message):
    search = DelaySearch("loss", "min")
    with pytest.raises(error, match=message):
        search.set_search_properties(None, None, space, num_samples=5)


# -------------------------------------------------------------------------- the searcher


def test_nothing_is_called_searcher():
    search = searcher()
    assert isinstance(search, Searcher)
    assert not hasattr(search, "searcher")  # Tune takes an object that has it for a wrapper


def test_configurations_are_tune_s_own_with_values():
    search = searcher()
    config = search.suggest("a")
    assert config["epochs"] == 3
    assert set(config) == set(SPACE)
    assert 1e-4 <= config["rate"] <= 1e-1
    assert config["net"]["width"] in (1, 2, 3, 4)
    assert config["net"]["act"] in ("relu", "tanh")
    assert search.suggest("a") == config  # asked twice, suggested once
    config["net"]["width"] = 99
    assert search.suggest("a")["net"]["width"] != 99
    assert len(search.optimizer.trials) == 1
    search = searcher({"x": tune.uniform(0, 1), "sizes": tune.choice([[8, 8]])})
    search.suggest("a")["sizes"].append(99)
    assert search.suggest("b")["sizes"] == [8, 8]


def test_three_ways_to_end():
    search = searcher()
    for name in "abcdef":
        search.suggest(name)
    search.on_trial_complete("a", {"loss": 0.5, "other": 1})
    search.on_trial_complete("b", error=True)
    search.on_trial_complete("c")
    search.on_trial_complete("d", {"loss": None})
    search.on_trial_complete("e", {"accuracy": 1.0})
    assert states(search) == [
        TrialState.COMPLETED,
        TrialState.FAILED,
        TrialState.ABANDONED,
        TrialState.ABANDONED,
        TrialState.ABANDONED,
        TrialState.RUNNING,
    ]
    assert search.optimizer.trials[0].value == 0.5


def test_repeated_and_unknown_trials_are_tolerated():
    search = searcher()
    for name in "abc":
        search.suggest(name)
    for _ in range(2):
        search.on_trial_complete("a", {"loss": 0.5})
        search.on_trial_complete("b", error=True)
        search.on_trial_complete("c")
        search.on_trial_complete("nobody")
        search.on_trial_complete("nobody", error=True)
        search.on_trial_complete("nobody", {"loss": 1.0})
        search.on_trial_complete("nobody", {"loss": 1.0, "config/rate": 77.0})
    search.on_trial_result("nobody", {"loss": 1.0})
    search.on_trial_complete("a", error=True)
    search.on_trial_complete("a", {"loss": 99.0})
    assert states(search) == [TrialState.COMPLETED, TrialState.FAILED, TrialState.ABANDONED]
    assert search.optimizer.trials[0].value == 0.5
    assert search.optimizer.attached == []


def test_late_results_are_used():
    search = searcher()
    points = {name: search.suggest(name) for name in "abc"}
    search.on_trial_complete("a", error=True)
    search.on_trial_complete("b")
    search.on_trial_complete("c", {"loss": 1.0})
    for _ in range(2):
        search.on_trial_complete("a", {"loss": 0.1})  # Tune ran the failed trial again
        search.on_trial_complete("b", {"loss": 0.2})
        search.on_trial_complete(  # and this one under another name
            "d", {"loss": 0.3, "config/rate": 0.01, "config/net/width": 2, "config/net/act": "tanh"}
        )
    assert states(search)[1:] == [TrialState.COMPLETED, TrialState.COMPLETED]
    assert [result.value for result in search.optimizer.attached] == [0.1, 0.3]
    params = search._run.params
    assert params(search.optimizer.attached[0].x) == points["a"]
    assert params(search.optimizer.attached[1].x)["net"] == {"width": 2, "act": "tanh"}


def test_a_domain_that_is_used_up_ends_the_search(caplog):
    search = searcher({"c": tune.choice([1, 2])}, num_samples=50)
    suggested = []
    for number in range(20):
        config = search.suggest(str(number))
        if config == Searcher.FINISHED:
            break
        suggested.append(config["c"])
        search.on_trial_complete(str(number), error=True)
    assert sorted(suggested) == [1, 1, 1, 2, 2, 2]  # each point three times
    assert search.suggest("more") == Searcher.FINISHED
    assert "failed 3 times" in caplog.text


def test_while_the_last_points_are_run_again_tune_is_told_to_ask_later():
    search = searcher({"c": tune.choice([1, 2])}, num_samples=50)
    for name in "abcd":  # both points, twice
        search.suggest(name)
        search.on_trial_complete(name, error=True)
    for name in "efg":
        search.suggest(name)
    for name in "ef":
        search.on_trial_complete(name, error=True)
    assert search.suggest("h") is None
    assert search.suggest("h") is None
    search.on_trial_complete("g", {"loss": 1.0})
    assert isinstance(search.suggest("h"), dict)


def test_points_to_evaluate_come_first():
    first = [
        {"rate": 0.01, "net": {"width": 2, "act": "tanh"}},
        {"rate": 0.02, "net/width": 3, "net/act": "relu", "epochs": 3},
    ]
    search = searcher(points_to_evaluate=first, num_samples=6)
    assert search.optimizer.horizon == 4
    assert search.suggest("a") == {"rate": 0.01, "net": {"width": 2, "act": "tanh"}, "epochs": 3}
    assert search.suggest("a")["rate"] == pytest.approx(0.01)
    assert search.suggest("b")["net"] == {"width": 3, "act": "relu"}
    search.suggest("c")
    assert len(search.optimizer.trials) == 1
    search.on_trial_complete("a", error=True)
    for _ in range(2):
        search.on_trial_complete("b", {"loss": 0.5})
    assert [result.value for result in search.optimizer.attached] == [0.5]
    assert search.recommend()["rate"] == pytest.approx(0.02)


@pytest.mark.parametrize(
    ("point", "message"),
    [
        ({"rate": 0.01}, "missing"),
        ({"rate": 0.5, "net": {"width": 2, "act": "tanh"}}, "rate must be a number"),
        ({"rate": 0.01, "net": {"width": 5, "act": "tanh"}}, "net/width must be"),
        ({"rate": 0.01, "net": {"width": 2, "act": "elu"}}, "net/act must be one of"),
    ],
)
def test_points_that_are_not_in_the_space(point, message):
    search = DelaySearch("loss", "min", points_to_evaluate=[point])
    with pytest.raises(InputError, match=message):
        search.set_search_properties(None, None, SPACE, num_samples=5)


def test_evaluated_points_are_attached_once(tmp_path, caplog):
    point = {"rate": 0.01, "net": {"width": 2, "act": "tanh"}}
    fresh = DelaySearch("loss", "min")
    fresh.add_evaluated_point(point, 0.5)
    pickled = cloudpickle.dumps(fresh)  # as Tuner does
    fresh.set_search_properties(None, None, SPACE, num_samples=5)
    fresh.suggest("a")
    fresh.save(str(tmp_path / "state"))
    restored = cloudpickle.loads(pickled)
    restored.set_search_properties(None, None, SPACE, num_samples=1)
    restored.restore(str(tmp_path / "state"))
    restored.add_evaluated_point({**point, "rate": 0.02, "epochs": 3}, 0.4)
    restored.add_evaluated_point(point, 0.1, error=True)
    restored.add_evaluated_point(point, 0.1, pruned=True)
    restored.add_evaluated_point({"rate": 0.01}, 0.1)
    assert "is not used" in caplog.text
    assert [result.value for result in restored.optimizer.attached] == [0.5, 0.4]
    assert restored.recommend()["rate"] == pytest.approx(0.02)


def test_no_end_is_planned_for_endless_samples():
    search = searcher({"x": tune.uniform(0, 1)}, num_samples=2**63 - 1)
    assert search.optimizer.horizon is None
    for number in range(10):
        x = search.suggest(str(number))["x"]
        search.on_trial_complete(str(number), {"loss": x})


@pytest.mark.parametrize(
    ("metric", "mode"), [(["a", "b"], ["min", "max"]), ("a", "best"), (3, "min")]
)
def test_there_is_one_objective(metric, mode):
    with pytest.raises(InputError, match="one objective"):
        DelaySearch(metric, mode)


def test_what_is_missing_is_said():
    search = DelaySearch()
    with pytest.raises(InputError, match="give Tuner a param_space"):
        search.suggest("a")
    with pytest.raises(InputError, match="metric and mode must be given"):
        search.set_search_properties(None, None, SPACE, num_samples=5)


def test_properties_of_tune_s_take_precedence_and_are_set_once():
    search = DelaySearch("loss", "min")
    assert search.set_search_properties("accuracy", "max", SPACE, num_samples=7, stop=None)
    assert (search.metric, search.mode) == ("accuracy", "max")
    assert search.optimizer.maximize
    assert not search.set_search_properties("loss", "min", SPACE, num_samples=7)
    assert search.metric == "accuracy"
    anonymous = DelaySearch(mode="min")
    anonymous.set_search_properties(None, None, SPACE)
    assert anonymous.metric == "_metric"  # what Tune calls a single returned number


def test_concurrency_is_limited_by_tune_s_own():
    limited = ConcurrencyLimiter(searcher(), max_concurrent=2)
    assert limited.suggest("a")
    assert limited.suggest("b")
    assert limited.suggest("c") is None
    limited.on_trial_complete("a", {"loss": 1.0})
    assert limited.suggest("c")


# --------------------------------------------------------------------- save and restore


def state_of_tune(trials):
    """The part of its state file that Tune itself writes, for running trials."""
    return json.dumps(
        {
            "trial_data": [
                tune.experiment.Trial("t", trial_id=t, stub=True).get_json_state() for t in trials
            ]
        }
    )


def restored_from(folder, known_first):
    """A restored searcher that knew its space before, or is told it afterwards."""
    restored = DelaySearch("loss", "min", **FIXED)
    if known_first:
        restored.set_search_properties(None, None, SPACE, num_samples=1)
    restored.restore_from_dir(str(folder))
    if not known_first:
        restored.set_search_properties(None, None, SPACE, num_samples=1)
    return restored


@pytest.mark.parametrize("known_first", [True, False])
def test_the_next_trial_takes_the_place_of_one_that_tune_lost(tmp_path, known_first):
    kept = searcher(num_samples=4)
    configs = [kept.suggest(trial) for trial in ("a", "b", "c")]
    kept.on_trial_complete("c", {"loss": 1.0})
    kept.save_to_dir(str(tmp_path), "2026-01-02")
    (tmp_path / "experiment_state-2026-01-01.json").write_text("{}")  # of an earlier session
    (tmp_path / "experiment_state-2026-01-02.json").write_text(state_of_tune("a"))
    restored = restored_from(tmp_path, known_first)
    assert restored.suggest("a") == configs[0]
    assert restored.suggest("d") == configs[1] != restored.suggest("e")
    assert restored.suggest("f") == Searcher.FINISHED
    restored.on_trial_complete("d", {"loss": 2.0})
    assert [trial.value for trial in restored.optimizer.trials] == [None, 2.0, 1.0, None]


@pytest.mark.parametrize("known_first", [True, False])
def test_how_a_trial_ended_may_be_in_the_state_of_tune_alone(tmp_path, known_first):
    kept = searcher(num_samples=5)
    for trial in "abcd":
        kept.suggest(trial)
    kept.save_to_dir(str(tmp_path), "2026-01-02")
    trials = [tune.experiment.Trial("t", trial_id=name, stub=True) for name in "abcd"]
    for trial, status in zip(trials, ("TERMINATED", "ERROR", "RUNNING", "TERMINATED"), strict=True):
        if trial.trial_id != "d":
            trial.update_last_result({"loss": 2.0, "trial_id": trial.trial_id})
        trial.set_status(status)
    state = json.dumps({"trial_data": [trial.get_json_state() for trial in trials]})
    (tmp_path / "experiment_state-2026-01-02.json").write_text(state)
    restored = restored_from(tmp_path, known_first)
    ends = [(trial.state, trial.value) for trial in restored.optimizer.trials]
    assert ends == [
        (TrialState.COMPLETED, 2.0),
        (TrialState.FAILED, None),
        (TrialState.RUNNING, None),
        (TrialState.ABANDONED, None),
    ]
    restored.on_trial_complete("c", {"loss": 1.0})
    assert restored.optimizer.trials[2].value == 1.0
    restored.save_to_dir(str(tmp_path), "2026-01-03")  # saved by the present session
    again = searcher()
    again.restore_from_dir(str(tmp_path))
    assert [trial.value for trial in again.optimizer.trials] == [2.0, None, 1.0, None]


def test_a_lost_point_to_evaluate_is_handed_on(tmp_path):
    points = [{"rate": r, "net": {"width": 2, "act": "tanh"}} for r in (0.01, 0.02, 0.03)]
    kept = searcher(points_to_evaluate=points)
    for trial in ("a", "b"):
        kept.suggest(trial)
    kept.save_to_dir(str(tmp_path), "2026-01-02")
    (tmp_path / "experiment_state-2026-01-02.json").write_text(state_of_tune("b"))
    restored = searcher(points_to_evaluate=points, num_samples=1)
    restored.restore_from_dir(str(tmp_path))
    rates = [restored.suggest(trial)["rate"] for trial in ("b", "c", "d")]
    assert rates == pytest.approx([0.02, 0.01, 0.03])


@pytest.mark.parametrize("text", [None, "", "{}", "[]", '{"trial_data": [1]}', '{"trial_data": 3}'])
def test_no_trial_is_lost_where_the_state_of_tune_cannot_be_read(tmp_path, text):
    kept = searcher()
    kept.suggest("a")
    kept.save_to_dir(str(tmp_path), "2026-01-02")
    if text is not None:
        (tmp_path / "experiment_state-2026-01-02.json").write_text(text)
    restored = searcher(num_samples=1)
    restored.restore_from_dir(str(tmp_path))
    assert restored.suggest("b") != kept.suggest("a")
    assert len(restored.optimizer.pending) == 2


@pytest.mark.parametrize("known_first", [True, False])
def test_what_was_stored_takes_precedence(tmp_path, known_first):
    space = {**SPACE, "data": object()}
    kept = searcher(space, num_samples=12, mode="max", seed=3)
    kept.suggest("a")
    kept.save(str(tmp_path / "state"))
    restored = DelaySearch(**FIXED)
    if known_first:
        restored.set_search_properties("loss", "max", space, num_samples=1)
    restored.restore(str(tmp_path / "state"))
    if not known_first:
        restored.set_search_properties("accuracy", "min", space, num_samples=1)
    assert (restored.metric, restored.mode) == ("loss", "max")
    assert restored.optimizer.horizon == 12
    assert restored.optimizer.state_dict()["config"] == kept.optimizer.state_dict()["config"]
    config, again = restored.suggest("a"), kept.suggest("a")
    assert type(config.pop("data")) is type(again.pop("data")) is object
    assert config == again


def test_the_file_is_json_and_holds_every_kind_of_trial(tmp_path):
    first = {"rate": 0.01, "net": {"width": 2, "act": "tanh"}}
    kept = searcher(points_to_evaluate=[first, {**first, "rate": 0.02}])
    for trial in "abcdef":
        kept.suggest(trial)
    kept.on_trial_complete("b", {"loss": 1.0})
    kept.on_trial_complete("c", {"loss": 2.0})
    kept.on_trial_complete("d", {"loss": math.nan})
    kept.on_trial_complete("e")
    kept.on_trial_complete("f", error=True)
    kept.add_evaluated_point(first, 3.0)
    kept.save(str(tmp_path / "state"))
    assert [path.name for path in tmp_path.iterdir()] == ["state"]  # nothing is left beside it
    trials = json.loads((tmp_path / "state").read_text())["trials"]
    assert [trial["value"] for trial in trials.values()] == [None, 1.0, 2.0, None, None, None, 3.0]
    restored = searcher(num_samples=1)
    restored.restore(str(tmp_path / "state"))
    assert restored.optimizer.state_dict()["events"] != []
    as_told = [(trial.x.tolist(), trial.state, trial.value) for trial in kept.optimizer.trials]
    assert [(t.x.tolist(), t.state, t.value) for t in restored.optimizer.trials] == as_told
    assert sorted(result.value for result in restored.optimizer.attached) == [1.0, 3.0]
    restored.save(str(tmp_path / "again"))
    assert (tmp_path / "again").read_bytes() == (tmp_path / "state").read_bytes()
    assert restored.suggest("g") == kept.suggest("g")


def test_what_came_before_the_space_is_kept_and_not_yet_written(tmp_path):
    points = [{"rate": r, "net": {"width": 2, "act": "tanh"}} for r in (0.01, 0.02)]
    fresh = DelaySearch("loss", "min", points_to_evaluate=points[:1], **FIXED)
    fresh.add_evaluated_point(points[1], 0.5)
    with pytest.raises(InputError, match="no search space"):
        fresh.save(str(tmp_path / "state"))
    assert list(tmp_path.iterdir()) == []
    fresh.set_search_properties(None, None, SPACE, num_samples=6)
    assert fresh.optimizer.horizon == 5
    fresh.save(str(tmp_path / "state"))
    waiting = DelaySearch(**FIXED)
    waiting.add_evaluated_point(points[1], 0.5)  # the file has this result too
    waiting.restore(str(tmp_path / "state"))
    waiting.set_search_properties(None, None, SPACE, num_samples=9)
    for search in (fresh, waiting):
        assert search.optimizer.horizon == 5
        assert [result.value for result in search.optimizer.attached] == [0.5]
        assert search.suggest("a")["rate"] == pytest.approx(0.01)
    unwritable = tmp_path / "none" / "state"
    with pytest.raises(StorageError, match="cannot be written"):
        fresh.save(str(unwritable))


def test_a_file_goes_on_waiting_until_the_space_is_known(tmp_path):
    kept = searcher(points_to_evaluate=[{"rate": 0.01, "net": {"width": 2, "act": "tanh"}}] * 2)
    for trial in "ab":
        kept.suggest(trial)
    kept.save(str(tmp_path / "state"))
    waiting = DelaySearch(**FIXED)
    waiting.restore(str(tmp_path / "state"))
    with pytest.raises(InputError, match=r"Tuner\.restore the same"):
        waiting.suggest("c")
    waiting.save(str(tmp_path / "again"))
    assert (tmp_path / "again").read_bytes() == (tmp_path / "state").read_bytes()


def kept_by(search):
    """Everything a searcher knows: the run itself, and copies of the rest."""
    return {n: v if n == "_run" else copy.copy(v) for n, v in vars(search).items()}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"space": {**SPACE, "rate": tune.loguniform(1e-4, 1)}}, "another search space or"),
        ({"noise_var": 1e-3}, "another search space or with other options"),
        ({"mode": "max"}, "written for mode='min', this searcher has mode='max'"),
        ({"metric": "accuracy"}, "written for metric='loss', this searcher has metric='accuracy'"),
    ],
)
@pytest.mark.parametrize("known_first", [True, False])
def test_a_file_of_another_run_is_refused(tmp_path, changes, message, known_first):
    kept = searcher()
    kept.suggest("a")
    kept.save(str(tmp_path / "state"))
    told = {"metric": "loss", "mode": "min", "space": SPACE, **FIXED} | changes
    space = told.pop("space")
    other = DelaySearch(**told)
    if known_first:
        other.set_search_properties(None, None, space, num_samples=7)
        other.suggest("b")
    elif "metric" not in changes and "mode" not in changes:  # those are compared at once
        other.restore(str(tmp_path / "state"))
    before = kept_by(other)
    refused = functools.partial(other.restore, str(tmp_path / "state"))
    if other._config is None and other._state.key is not None:
        refused = functools.partial(other.set_search_properties, None, None, space)
    with pytest.raises(StorageError, match=message):
        refused()
    assert kept_by(other) == before


def without(name):
    return lambda file: file.pop(name)


DAMAGE = {
    "no format": without("format"),
    "no key": without("key"),
    "no trials": without("trials"),
    "older": lambda file: file.update(format=1),
    "mode": lambda file: file.update(mode="best"),
    "no metric": lambda file: file.update(metric=None),
    "horizon": lambda file: file.update(horizon=0),
    "seed": lambda file: file.update(seed=-1),
    "trials": lambda file: file.update(trials=[1]),
    "number": lambda file: file["trials"]["a"].update(number=7),
    "state": lambda file: file["trials"]["a"].update(state="lost"),
    "value": lambda file: file["trials"]["a"].update(value=None),
    "columns": lambda file: file["trials"]["a"].update(x=[0.5]),
    "column": lambda file: file["trials"]["a"].update(x=[0.5, "a", 1]),
    "record": lambda file: file["trials"]["a"].update(record="ask"),
    "events": lambda file: file["trials"]["a"]["record"].update(events=[]),
    "points": lambda file: file.update(first=[[1.0]]),
    "anything else": lambda file: file.update(evaluated=[{}]),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_malformed_file_is_refused(tmp_path, damage):
    kept = searcher()
    kept.suggest("a")
    kept.on_trial_complete("a", {"loss": 1.0})
    path = tmp_path / "state"
    kept.save(str(path))
    file = json.loads(path.read_text())
    DAMAGE[damage](file)
    path.write_text(json.dumps(file))
    other = searcher()
    before = kept_by(other)
    with pytest.raises(StorageError):
        other.restore(str(path))
    assert kept_by(other) == before


@pytest.mark.parametrize("share", [None, 0.0, 0.5, 0.99])
def test_a_truncated_or_missing_file_is_refused(tmp_path, share):
    kept = searcher()
    kept.suggest("a")
    path = tmp_path / "state"
    kept.save(str(path))
    whole = path.read_bytes()
    path.unlink() if share is None else path.write_bytes(whole[: int(share * len(whole))])
    other = searcher()
    with pytest.raises(StorageError, match="cannot be read" if share is None else "malformed"):
        other.restore(str(path))
    assert other.optimizer.trials == []


def test_a_pickle_is_refused_unopened(tmp_path):
    (tmp_path / "state").write_bytes(cloudpickle.dumps(searcher().__getstate__()))
    with pytest.raises(StorageError, match="malformed"):
        searcher().restore(str(tmp_path / "state"))


# ------------------------------------------------------------------- by way of Optuna


def optuna_search(horizon, **spec):
    search = OptunaSearch(sampler=DelaySampler(horizon, seed=1))
    assert search.set_search_properties("loss", "min", SPACE, **spec)
    return search


def test_optuna_s_search_plays_the_sampler(tmp_path):
    search = optuna_search(12)
    sampler = DelaySampler(12, seed=1)
    study = optuna.create_study(sampler=sampler, direction="minimize")
    distributions = OptunaSearch.convert_search_space(SPACE)

    def suggestions(search, first, last):
        for number in range(first, last):
            config = search.suggest(f"t{number}")
            trial = study.ask(fixed_distributions=distributions)
            names = ("rate", "net/width", "net/act")
            assert (config["rate"], *config["net"].values()) == tuple(map(trial.params.get, names))
            if number % 4 == 2:
                search.on_trial_complete(f"t{number}", error=True)
                study.tell(trial, state=optuna.trial.TrialState.FAIL)
            elif number % 4:
                search.on_trial_complete(f"t{number}", {"loss": config["rate"]})
                study.tell(trial, config["rate"])

    suggestions(search, 0, 7)
    assert len(sampler.optimizer(study).trials) >= 6  # all but the first, before a space is known
    search.save(str(tmp_path / "state"))
    restored = OptunaSearch()
    restored.restore(str(tmp_path / "state"))
    suggestions(restored, 7, 12)


# ------------------------------------------------------------------------ a real cluster


@pytest.fixture(scope="module")
def cluster():
    """A local cluster with two workers."""
    # Not pytest's own folder: the paths of sockets must be short.
    folder = tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True)
    with pytest.MonkeyPatch.context() as patch, folder as place:
        for name, value in QUIET.items():
            patch.setenv(name, value)
        ray.init(
            num_cpus=2,
            num_gpus=1,  # Ray takes our word for it
            object_store_memory=80 * 2**20,
            include_dashboard=False,
            logging_level=logging.CRITICAL,
            log_to_driver=False,
            _temp_dir=place,
        )
        try:
            yield ray.get_runtime_context().gcs_address
        finally:
            ray.shutdown()


@pytest.fixture(autouse=True)
def ray_may_draw(request):
    """On a cluster Ray itself draws from Python's global generator."""
    state = random.getstate()
    yield
    if "cluster" in request.fixturenames:
        random.setstate(state)


@pytest.mark.usefixtures("cluster")
def test_the_readme_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    python = python_blocks("ray")
    assert len(python) >= 3
    samples = re.compile(r'(?<="num_samples": )\d+')
    assert sum(len(samples.findall(block)) for block in python) == 1
    namespace = {"__name__": "__main__"}  # as in a script: what it defines is sent by value
    for number, block in enumerate(python, start=1):
        block = samples.sub("1", block)  # trials take a second or two to start
        exec(compile(block, f"README.md, Ray block {number}", "exec"), namespace)
    assert namespace["results"].num_errors == 0
    assert len(namespace["results"]) == 1
    search = DelaySearch()
    search.set_search_properties("loss", "min", namespace["space"])
    search.restore_from_dir(str(namespace["shared"] / "wide"))
    assert len(search.optimizer.trials) == 1


def param_space(folder, **options):
    return {**SPACE, "folder": str(folder), **options}


def tuner(train, folder, search, num_samples, **options):
    return tune.Tuner(
        train,
        param_space=param_space(folder, **options),
        tune_config=tune.TuneConfig(
            metric="loss",
            mode="min",
            search_alg=search,
            num_samples=num_samples,
            max_concurrent_trials=2,
            reuse_actors=True,
        ),
        run_config=tune.RunConfig(name="run", storage_path=str(folder), verbose=0),
    )


def make_train():
    """A trainable that is sent to workers by value: they cannot import this module."""

    def kill_driver(driver, folder):
        # Ray copies its state and ours file by file. A kill in between leaves empty files, even of
        # Ray's, from which nothing can be restored, or files that disagree on the trials, of which
        # Ray then runs fewer. So stop the driver and look, and kill it only if all is there.
        import json
        import os
        import pathlib
        import signal

        from ray import cloudpickle

        def newest(pattern):
            return max(folder.glob(pattern))

        def is_whole():
            try:
                experiment = json.loads(newest("experiment_state-*").read_text())
                generator = cloudpickle.loads(newest("search_gen_state-*").read_bytes())
                trials = json.loads(newest("searcher-state-*").read_text())["trials"]
            except (EOFError, OSError, ValueError, cloudpickle.pickle.UnpicklingError):
                return False  # not there, or half written
            states = {past["state"] for past in trials.values()}
            known = {json.loads(data)["status"] for data, _ in experiment["trial_data"]}
            return (
                {"completed", "failed"} <= states  # else Ray would rerun the trial that raised
                and "ERROR" in known
                and len(experiment["trial_data"]) == generator["counter"] == len(trials)
                # Else its worker outlives the driver and takes a number of the restored run.
                and (folder.parent / "began-4").exists()
            )

        def has_stopped():
            stats = pathlib.Path("/proc", str(driver), "task").glob("*/stat")
            return all(stat.read_text().rpartition(")")[2].split()[0] == "T" for stat in stats)

        while True:
            if is_whole():
                os.kill(driver, signal.SIGSTOP)
                while not has_stopped():  # a thread first finishes its current write
                    pass
                if is_whole():
                    os.kill(driver, signal.SIGKILL)
                    return
                os.kill(driver, signal.SIGCONT)

    def train(config):
        import contextlib
        import itertools
        import math
        import os
        import pathlib
        import time

        from ray import tune

        for began in itertools.count(1):  # the trials are numbered as they begin
            with contextlib.suppress(FileExistsError):
                pathlib.Path(config["folder"], f"began-{began}").mkdir()
                break
        driver = pathlib.Path("/proc", str(config["driver"]))
        while began > config["interrupts"] and driver.exists():
            time.sleep(0.01)  # later trials begin after the kill, however long that takes
        if began == config.get("raises"):
            raise RuntimeError("out of memory")
        if began == config.get("dies"):
            os.kill(os.getpid(), 9)
        if began == config.get("interrupts"):
            kill_driver(config["driver"], pathlib.Path(config["folder"], "run"))
        loss = (math.log10(config["rate"]) + 2) ** 2 + config["net"]["width"]
        tune.report({"loss": math.nan if began == config.get("diverges") else loss})

    return train


DRIVER = """
import os, sys

sys.path[:0] = sys.argv[3:]
import ray
import test_ray

ray.init(address=sys.argv[2], log_to_driver=False)
search = test_ray.DelaySearch()
test_ray.tuner(
    test_ray.make_train(),
    sys.argv[1],
    search,
    6,
    **test_ray.MISHAPS,
    driver=os.getpid(),
).fit()
"""
MISHAPS = {"raises": 2, "interrupts": 3, "dies": 6, "diverges": 7}


def test_failures_and_a_kill_on_a_cluster(cluster, tmp_path):
    paths = [str(Path(__file__).parent), *sys.path]
    killed = subprocess.run(
        [sys.executable, "-c", DRIVER, str(tmp_path), cluster, *paths],
        env={**os.environ, **QUIET, "TUNE_GLOBAL_CHECKPOINT_S": "0"},
        capture_output=True,
        timeout=1200,
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()[-2000:]
    space = param_space(tmp_path, **MISHAPS, driver=None)
    kept = DelaySearch()
    kept.set_search_properties("loss", "min", space)
    kept.restore_from_dir(str(tmp_path / "run"))
    before = kept.optimizer.trials
    assert 0 < len(before) < 6
    answered = [t for t in before if t.state is TrialState.COMPLETED]
    assert answered
    restored = tune.Tuner.restore(str(tmp_path / "run"), make_train(), param_space=space)
    found = restored.fit()
    assert len(found) == 6
    search = restored._local_tuner._tune_config.search_alg
    trials = search.optimizer.trials
    assert search.optimizer.horizon == 6
    assert len(trials) == 6
    assert [t.x.tolist() for t in trials[: len(before)]] == [t.x.tolist() for t in before]
    assert [trials[t.id].value for t in answered] == [t.value for t in answered]
    assert found.num_errors == 2  # one raised, one died
    assert [t.state for t in trials].count(TrialState.FAILED) == 3  # and one diverged
    losses = [r.metrics["loss"] for r in found if not r.error]
    values = [t.value for t in trials if t.state is TrialState.COMPLETED]
    assert sorted(values) == sorted(value for value in losses if not math.isnan(value))
    configs = [search._run.params(trial.x) for trial in trials]
    by_point = {(c["rate"], str(c["net"])): t.value for c, t in zip(configs, trials, strict=True)}
    for result in found:
        if not result.error and not math.isnan(result.metrics["loss"]):
            point = result.config["rate"], str(result.config["net"])
            assert by_point[point] == result.metrics["loss"]
