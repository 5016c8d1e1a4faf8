"""Options of the optimizer underneath an engine, and the optimizer kept in step with trials."""

import json
import math

import pytest
from gpytorch.kernels import RBFKernel

import botorch_delay as bd
from botorch_delay.domains.parameters import Choice, Float
from botorch_delay.domains.space import Space
from botorch_delay.exceptions import InputTypeError, NotSupportedError, StorageError
from botorch_delay.history.trials import TrialState
from botorch_delay.integrations.engine_run import EngineRun, Settings


def test_a_rule_repeats_no_pending_points_unless_that_is_said():
    quiet = bd.Exploit(bd.UCB(2.0), repeat_pending=False)
    assert Settings(10, 0, {}).options["exploit"] == bd.Exploit(repeat_pending=False)
    assert Settings(10, 0, {"exploit": quiet.rule}).options["exploit"] == quiet
    assert Settings(10, 0, {"exploit": bd.Exploit()}).options["exploit"] == bd.Exploit()
    assert Settings(10, 0, {"exploit": None}).options["exploit"] is None


def test_without_a_horizon_rounds_grow():
    rounds, box = bd.GeometricRounds(3, 1.5), bd.Space(x=bd.Float(0.0, 1.0)).domain

    def made(horizon, **options):
        return Settings(horizon, 0, options).make(box, True).state_dict()["config"]["rounds"]

    assert made(None) == made(None, rounds=bd.GeometricRounds(1, 2.0)) != made(10)
    assert made(None, rounds=rounds) == made(10, rounds=rounds) != made(None)


@pytest.mark.parametrize(
    "options",
    [
        {"covar_module": RBFKernel(ard_num_dims=3, active_dims=(0, 1, 4)), "noise_var": 0.1},
        {"rounds": bd.HorizonRounds(straggler_factor=3.0), "exploit": bd.Exploit()},
        {"delay": bd.NoDelay(), "exploit": None},
        {"covar_module": bd.Learned(warp="none"), "evidence": "all", "confidence": None},
    ],
)
def test_options_that_some_space_can_have_are_kept(options):
    assert options.items() <= Settings(10, 0, options).options.items()


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"beta": 6.0}, InputTypeError, "no option 'beta'"),
        ({"seed": 1}, InputTypeError, "no option 'seed'"),
        ({"exploit": bd.WithinBudget()}, NotSupportedError, "WithinBudget"),
        ({"exploit": 3}, InputTypeError, "exploit"),
        ({"exploit": bd.Exploit}, InputTypeError, r"must be an instance, such as Exploit\(\)"),
    ],
)
def test_bad_options(options, error, message):
    with pytest.raises(error, match=message):
        Settings(10, 0, options)


PLANE = {"x": Float(0.0, 1.0), "kind": Choice(["a", "b"])}
VARIATIONS = {
    "same": {},
    "name": {"name": "other"},
    "space": {"space": Space({**PLANE, "kind": Choice(["a", "c"])})},
    "settings": {"settings": Settings(9, 1, {})},
    "direction": {"maximize": True},
}


def make_run(name="study", space=None, settings=None, maximize=False):
    return EngineRun(name, space or Space(PLANE), settings or Settings(9, 0, {}), maximize)


@pytest.mark.parametrize("variation", VARIATIONS)
def test_a_record_counts_where_name_space_settings_and_direction_are_the_same(variation, caplog):
    record = json.loads(json.dumps(make_run().ask(7)))
    run = make_run(**VARIATIONS[variation])
    for _ in range(2):
        assert run.record_of(record, running=True) == (record if variation == "same" else None)
    assert len(caplog.records) == (variation != "same")
    assert run.record_of("nothing", running=True) is None


@pytest.mark.parametrize(
    "damage",
    [{"number": None}, {"x": None}, {"x": [0.5]}, {"x": ["a", "b"]}, {"x": [[0.0, 1.0]]}],
)
def test_a_malformed_record_is_refused(damage):
    run = make_run()
    record = run.ask(7)
    with pytest.raises(StorageError, match=r"record of trial .* is malformed"):
        run.record_of(record | damage, running=True)
    for name in record.keys() - {"run"}:
        with pytest.raises(StorageError, match=r"record of trial .* is malformed"):
            run.record_of({key: record[key] for key in record.keys() - {name}}, running=True)


def test_a_run_is_made_again_from_records_and_results(caplog):
    first, second = make_run(), make_run()
    records = [first.ask(number) for number in range(4)]
    done = [
        first.past_result(10, {"x": 1.5, "kind": "a", "more": 3}, 2.0),
        first.past_ask(records[0], TrialState.COMPLETED, 1.0, noise_var=0.25),
        first.past_ask(records[1], TrialState.COMPLETED, math.inf),
        first.past_ask(records[2], TrialState.ABANDONED),
        first.past_ask(records[3], TrialState.RUNNING),
    ]
    assert first.ended == {10, 0, 1}
    assert (
        first.past_result(11, {"x": 0.5}, 2.0)
        is first.past_result(12, {"x": 0.5, "kind": "z"}, 2.0)
        is None
    )
    assert "trial 11 is not used" in caplog.text
    for run in (first, second):
        run.take_in(done)
        trials = run.replica.optimizer.trials
        assert [t.state.value for t in trials] == ["completed", "failed", "abandoned", "running"]
        assert "finite" in trials[1].reason
        assert trials[0].noise_var == 0.25
        assert run.replica.optimizer.attached[0].x.tolist() == [1.5, 0.0]
    assert first.ask(20)["x"] == second.ask(20)["x"]


def test_trials_that_an_interrupted_call_had_read_are_read_again(monkeypatch):
    first, second = make_run(), make_run()
    records = [first.ask(number) for number in range(3)]

    def past():
        for number, record in enumerate(records):
            if number not in second.ended:
                yield second.past_ask(record, TrialState.COMPLETED, float(number))

    def interrupted(trials):
        list(trials)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(second.replica, "sync", interrupted)
        with pytest.raises(KeyboardInterrupt):
            second.take_in(past())
    second.take_in(past())
    assert [trial.value for trial in second.optimizer.trials] == [0.0, 1.0, 2.0]
