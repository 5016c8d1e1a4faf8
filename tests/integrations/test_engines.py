"""What every engine must do: ask as the optimizer itself would, and go on after a restart."""

import contextlib
import importlib
import math
import sys

import pytest
from cases import se

import botorch_delay as bd
from botorch_delay.exceptions import (
    InputError,
    InputTypeError,
    MissingExtraError,
    NoAnswerError,
    NotSupportedError,
)
from botorch_delay.history.trials import TrialState

ENGINES = ["ax", "optuna", "ray"]
for engine in ENGINES:  # some draw from global generators as they are imported
    with contextlib.suppress(MissingExtraError):
        importlib.import_module(f"botorch_delay.integrations.{engine}")
NAMES = ("kind", "n", "x")
FIXED = {"covar_module": se(0.3), "noise_var": 1e-4}


def loss(params):
    """Rounded to nine decimals, as Ax keeps no more."""
    return round((params["x"] - 0.3) ** 2 + params["n"] / 9 + (params["kind"] == "a"), 9)


class Optuna:
    """A study in memory."""

    def __init__(self, path, horizon=None, **options):
        import optuna
        from optuna import distributions

        from botorch_delay.integrations.optuna import DelaySampler

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.states = optuna.trial.TrialState
        self.space = {
            "kind": distributions.CategoricalDistribution(["a", "b", "c"]),
            "n": distributions.IntDistribution(1, 4),
            "x": distributions.FloatDistribution(0.0, 1.0),
        }
        self.sampler = lambda: DelaySampler(horizon, search_space=self.space, **options)
        self.study = optuna.create_study(sampler=self.sampler())
        self.create = optuna.create_trial

    def ask(self):
        trial = self.study.ask(self.space)
        return trial.number, trial.params

    def tell(self, number, value):
        if math.isfinite(value):
            self.study.tell(number, value)
        else:  # Optuna's own check lets infinite values pass
            trial = self.study.trials[number]
            settle = self.study._storage.set_trial_state_values
            settle(trial._trial_id, self.states.COMPLETE, [value])

    def fail(self, number):
        self.study.tell(number, state=self.states.FAIL)

    def stop(self, number):
        self.study.tell(number, state=self.states.PRUNED)

    def attach(self, params, value):
        trial = self.create(params=params, distributions=self.space, value=value)
        self.study.add_trial(trial)

    def restart(self):
        self.study.sampler = self.sampler()

    def recommend(self, **options):
        return self.study.sampler.recommend(self.study, **options)

    @property
    def optimizer(self):
        return self.study.sampler.optimizer(self.study)

    @property
    def guarantee(self):
        return self.study.sampler.guarantee(self.study)


class Ax:
    """A client, saved as JSON and read again: with ten decimals of every answer."""

    def __init__(self, path, **options):
        from ax.api.client import Client
        from ax.api.configs import ChoiceParameterConfig, RangeParameterConfig
        from ax.generation_strategy.generation_strategy import GenerationStrategy

        from botorch_delay.integrations.ax import DelayGenerationNode

        kinds = {"values": ["a", "b", "c"], "is_ordered": False}
        self.path, self.client = str(path / "client.json"), Client()
        self.client.configure_experiment(
            [
                ChoiceParameterConfig(name="kind", parameter_type="str", **kinds),
                RangeParameterConfig(name="n", parameter_type="int", bounds=(1, 4)),
                RangeParameterConfig(name="x", parameter_type="float", bounds=(0.0, 1.0)),
            ]
        )
        self.client.configure_optimization(objective="-loss")
        nodes = [DelayGenerationNode(**options)]
        self.client.set_generation_strategy(GenerationStrategy(nodes=nodes))

    @property
    def node(self):
        return self.client._generation_strategy.current_node

    def ask(self):
        ((number, params),) = self.client.get_next_trials(max_trials=1).items()
        return number, params

    def tell(self, number, value):
        self.client.complete_trial(number, raw_data={"loss": value})

    def fail(self, number):
        self.client.mark_trial_failed(number)

    def stop(self, number):
        self.client.attach_data(number, raw_data={"loss": 0.1})
        self.client.mark_trial_early_stopped(number)

    def attach(self, params, value):
        self.tell(self.client.attach_trial(params), value)

    def restart(self):
        self.client.save_to_json_file(self.path)
        self.client = type(self.client).load_from_json_file(self.path)

    def recommend(self, **options):
        return self.node.recommend(**options)

    optimizer = property(lambda self: self.node.optimizer)
    guarantee = property(lambda self: self.node.guarantee)


class Ray:
    """A searcher without a cluster, saved and restored as Tune does it."""

    def __init__(self, path, horizon=2**63 - 1, **options):
        from ray import tune

        from botorch_delay.integrations.ray import DelaySearch

        self.path, self.count = str(path), 0
        kind = tune.choice(["a", "b", "c"])
        self.space = {"kind": kind, "n": tune.randint(1, 5), "x": tune.uniform(0.0, 1.0)}
        self.make = lambda: DelaySearch("loss", "min", **options)
        self.search = self.make()
        self.search.set_search_properties(None, None, self.space, num_samples=horizon)

    def ask(self):
        self.count += 1
        return str(self.count), self.search.suggest(str(self.count))

    def tell(self, number, value):
        self.search.on_trial_complete(number, {"loss": value})

    def fail(self, number):
        self.search.on_trial_complete(number, error=True)

    def attach(self, params, value):
        self.search.add_evaluated_point(params, value)

    def restart(self):
        self.search.save_to_dir(self.path, "session")
        self.search = self.make()
        self.search.set_search_properties(None, None, self.space, num_samples=1)
        self.search.restore_from_dir(self.path)

    def recommend(self, **options):
        return self.search.recommend(**options)

    optimizer = property(lambda self: self.search.optimizer)
    guarantee = property(lambda self: self.search.guarantee)


@pytest.fixture(params=ENGINES)
def make(request, tmp_path):
    """Makes an engine, given options of the optimizer; it minimises ``loss``."""
    pytest.importorskip(request.param)
    kind = {"ax": Ax, "optuna": Optuna, "ray": Ray}[request.param]
    return lambda **options: kind(tmp_path, **options)


@pytest.mark.parametrize("engine", ENGINES)
def test_an_engine_that_is_not_installed_is_named(monkeypatch, engine):
    name = f"botorch_delay.integrations.{engine}"
    monkeypatch.delitem(sys.modules, name, raising=False)
    for module in [engine, *(m for m in sys.modules if m.startswith(f"{engine}."))]:
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=rf"pip install '{engine}"):
        importlib.import_module(name)


@pytest.mark.parametrize(
    "options",
    [{}, {"horizon": 9, "seed": 3}, {"horizon": 9, "exploit": None, **FIXED}],
    ids=["endless", "horizon", "design"],
)
def test_it_asks_what_the_optimizer_asks(make, options):
    engine = make(**options)
    core, running = None, []
    for turn in range(9):
        number, params = engine.ask()
        if core is None:
            rest = {"exploit": bd.Exploit(repeat_pending=False), **options}
            if "horizon" not in options:
                rest |= {"horizon": None, "rounds": bd.GeometricRounds(1, 2.0)}
            core = bd.BPEDelayOptimizer(engine.optimizer.domain, maximize=False, **rest)
        trial = core.ask()
        assert engine.optimizer.trials[-1].x.tolist() == trial.x.tolist()
        assert (params["n"], params["x"]) == tuple(trial.x[1:].tolist())
        assert tuple(params) == NAMES
        running.append((number, params, trial))
        if turn % 3 == 2:  # answers out of order; one trial fails, one is never answered
            for place, (done, asked, own) in enumerate(reversed(running[1:])):
                if turn == 5 and place == 0:
                    engine.fail(done)
                    core.mark_failed(own)
                else:
                    engine.tell(done, loss(asked))
                    core.tell(own, loss(asked))
            del running[1:]
    assert [r.trial_ids for r in engine.optimizer.rounds] == [r.trial_ids for r in core.rounds]
    assert [t.state for t in engine.optimizer.trials] == [t.state for t in core.trials]
    for options in ({}, {"tried": True}):
        best = core.recommend(**options).x
        recommended = engine.recommend(**options)
        assert (recommended["n"], recommended["x"]) == tuple(best[1:].tolist())


@pytest.mark.parametrize(
    ("turns", "options"),
    [
        (9, {}),
        (14, {"explore_fraction": 1.0, "rounds": bd.GeometricRounds(2, 1.5), **FIXED}),
    ],
    ids=["default", "rounds"],
)
def test_a_restarted_run_goes_on_as_if_nothing_had_happened(make, turns, options):
    asked = []
    for restarts in (False, True):
        engine = make(**options)
        points, running = [], []
        for turn in range(turns):
            number, params = engine.ask()
            points.append(params)
            running.append((number, params))
            if len(running) == 3:
                done, params = running.pop(turn % 3)
                if turn % 7 == 4:
                    engine.fail(done)
                else:
                    engine.tell(done, loss(params))
            if restarts and turn in (4, 10):
                engine.restart()
        asked.append((points, [(r.length, r.trial_ids) for r in engine.optimizer.rounds]))
    (points, rounds), (again, rounds_again) = asked
    assert rounds == rounds_again
    assert rounds
    for one, other in zip(points, again, strict=True):
        # Ax keeps ten decimals of an answer.
        assert one == (pytest.approx(other, abs=1e-5) if isinstance(engine, Ax) else other)


def test_answers_that_are_no_numbers_are_failures(make):
    engine = make(horizon=9)
    numbers = [engine.ask()[0] for _ in range(3)]
    engine.tell(numbers[0], math.inf)
    engine.tell(numbers[1], 0.5)
    states = [trial.state for trial in engine.optimizer.trials]
    assert states == [TrialState.FAILED, TrialState.COMPLETED, TrialState.RUNNING]
    assert "finite" in engine.optimizer.trials[0].reason


def test_a_point_that_failed_is_asked_again_twice(make):
    engine = make(horizon=9, exploit=None, **FIXED)
    points = []
    for _ in range(4):
        number, params = engine.ask()
        points.append(params)
        engine.fail(number)
    assert points[0] == points[1] == points[2] != points[3]


def test_results_of_others_are_used_and_are_no_asks(make):
    engine = make(horizon=9)
    best = {"kind": "b", "n": 1, "x": 0.3}
    engine.attach(best, 0.0)
    engine.tell(engine.ask()[0], 3.0)
    engine.restart()
    assert [result.value for result in engine.optimizer.attached] == [0.0]
    assert [trial.value for trial in engine.optimizer.trials] == [3.0]
    assert engine.recommend() == best


def test_what_is_claimed_is_said_until_a_trial_is_stopped_early(make):
    bounds = bd.RKHSConfidence(norm_bound=2.0, noise_std=0.01)
    engine = make(horizon=9, confidence=bounds, **FIXED)
    number, _ = engine.ask()
    assert engine.guarantee.holds
    if not hasattr(engine, "stop"):
        pytest.skip("this engine does not say which trials were stopped")
    engine.stop(number)
    assert not engine.guarantee.holds
    assert "stopped early" in str(engine.guarantee)
    assert engine.optimizer.trials[0].state is not TrialState.RUNNING


def test_before_any_answer_nothing_is_recommended(make):
    engine = make(horizon=9)
    engine.ask()
    with pytest.raises(NoAnswerError):
        engine.recommend()


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"beta": 6.0}, InputTypeError, "no option 'beta'"),
        ({"maximize": True}, InputTypeError, "no option 'maximize'. The study's own direction"),
        ({"explore_fraction": 2}, InputError, "explore_fraction must be above 0 and at most 1"),
        ({"covar_module": 5}, InputTypeError, "covar_module"),
        ({"confidence": 5}, InputTypeError, "confidence must be a Confidence"),
        ({"rounds": 5}, InputTypeError, "rounds must be HorizonRounds"),
        ({"exact": 1}, InputTypeError, "exact must be True or False"),
        ({"exploit": bd.WithinBudget(factor=1.25)}, NotSupportedError, "WithinBudget"),
    ],
)
def test_options_that_there_are_not(make, options, error, message):
    with pytest.raises(error, match=message):
        make(**options)
