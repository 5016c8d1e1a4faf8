"""The generation node for Ax, and acquisition functions through Ax's factories.

Ax pins BoTorch to a release, so these run in an environment of their own.
"""

import copy
import math
import random
from contextlib import contextmanager

import numpy as np
import pytest
import torch

pytest.importorskip("ax")

from ax.adapter.registry import Generators
from ax.api.client import Client
from ax.api.configs import ChoiceParameterConfig, RangeParameterConfig
from ax.core.arm import Arm
from ax.core.data import Data, DataRow
from ax.core.experiment import Experiment
from ax.core.parameter import ChoiceParameter, FixedParameter, ParameterType, RangeParameter
from ax.core.parameter_constraint import ParameterConstraint
from ax.core.search_space import SearchSpace
from ax.exceptions.core import DataRequiredError
from ax.exceptions.generation_strategy import GenerationStrategyCompleted
from ax.generation_strategy.generation_node import GenerationNode
from ax.generation_strategy.generation_strategy import GenerationStrategy
from ax.generation_strategy.generator_spec import GeneratorSpec
from ax.generation_strategy.transition_criterion import MinTrials
from cases import se
from gpytorch.kernels import RBFKernel
from readme_blocks import python_blocks

import botorch_delay as bd
from botorch_delay.exceptions import InputError, NotSupportedError, StorageError
from botorch_delay.history.point_status import PRUNED
from botorch_delay.history.trials import TrialState
from botorch_delay.integrations import ax as plugin
from botorch_delay.integrations.ax import DelayGenerationNode

pytestmark = pytest.mark.filterwarnings("ignore::ax.exceptions.core.AxWarning")

MIXED = [
    RangeParameterConfig(name="lr", parameter_type="float", bounds=(1e-4, 1e-1), scaling="log"),
    RangeParameterConfig(name="width", parameter_type="int", bounds=(1, 8)),
    ChoiceParameterConfig(name="act", parameter_type="str", values=["a", "b", "c"]),
]
LINE = [RangeParameterConfig(name="x", parameter_type="float", bounds=(0.0, 1.0))]


def loss(values):
    """Smallest at a rate of 0.01, in steps of 1/512, which Ax's files keep to the last bit.

    Other values are rounded to nine decimals, and read back with errors of an ulp.
    """
    if "x" in values:
        return round((values["x"] - 0.3) ** 2 * 512 / 7) / 512
    size = (math.log10(values["lr"]) + 2.0) ** 2 / 7.0 + values["width"] / 9.0
    return round((size + (values["act"] == "a")) * 512) / 512


def make_client(node, parameters=MIXED, objective="-loss", **configuration):
    client = Client()
    client.configure_experiment(parameters=parameters, **configuration)
    client.configure_optimization(objective=objective)
    client.set_generation_strategy(GenerationStrategy(nodes=[node]))
    return client


def node_of(client):
    return client._generation_strategy.current_node


def arms(client):
    return [trial.arms[0].parameters for trial in client._experiment.trials.values()]


def complete(client, index):
    client.complete_trial(index, raw_data={"loss": loss(arms(client)[index])})


def reloaded(client, tmp_path):
    path = str(tmp_path / "client.json")
    client.save_to_json_file(path)
    return Client.load_from_json_file(path)


def play(client, turns, first=0, abandon=True):
    """Ask for two, answer one that was asked some turns ago; now and then something else."""
    for turn in range(first, first + turns):
        asked = sorted(client.get_next_trials(max_trials=2))
        if turn % 5 == 1:
            client.mark_trial_failed(asked[0], failed_reason="out of memory")
        elif turn % 5 == 3 and abandon:
            client.mark_trial_abandoned(asked[0])
        elif turn % 7 == 2:
            client.attach_data(asked[0], raw_data={"loss": 0.1})
            client.mark_trial_early_stopped(asked[0])
        else:
            complete(client, asked[0])
        late = 2 * turn - 3
        if late > 0:
            complete(client, late)
    return arms(client)


@contextmanager
def random_state_is_kept():
    """Ax's own generators draw from the global ones."""
    states = np.random.get_state(), random.getstate()
    with torch.random.fork_rng():
        yield
    np.random.set_state(states[0])
    random.setstate(states[1])


# The whole algorithm


def test_running_and_abandoned_trials_are_pending_and_failed_ones_are_not():
    client = make_client(DelayGenerationNode(horizon=40))
    client.get_next_trials(max_trials=6)
    complete(client, 0)
    client.mark_trial_abandoned(1)
    client.mark_trial_failed(2, failed_reason="out of memory")
    client.attach_data(3, raw_data={"loss": 0.1})
    client.mark_trial_early_stopped(3)
    client._experiment.trials[4].mark_stale(unsafe=True)
    (index,) = client.get_next_trials(max_trials=1)
    opt = node_of(client).optimizer
    assert [trial.id for trial in opt.pending] == [1, 5, index]
    states = [trial.state for trial in opt.trials]
    assert states[0] is TrialState.COMPLETED
    assert states[2] is TrialState.FAILED
    assert states[3:5] == [TrialState.FAILED, TrialState.ABANDONED]
    assert opt.trials[3].value is None
    assert opt.trials[3].reason == PRUNED
    assert opt.trials[2].reason == "out of memory"
    assert opt.trials[0].value == loss(arms(client)[0])


def test_corrected_data_count_at_once(tmp_path):
    client = make_client(DelayGenerationNode(horizon=40))
    client.get_next_trials(max_trials=3)
    for index, value in enumerate([0.25, 0.5, 4.0]):
        client.complete_trial(index, raw_data={"loss": value})
    node = node_of(client)
    assert node.recommend(tried=True) == arms(client)[0]
    client.attach_data(2, raw_data={"loss": (0.125, 0.0)})
    client.get_next_trials(max_trials=1)
    assert [trial.value for trial in node.optimizer.trials] == [0.25, 0.5, 0.125, None]
    assert node.recommend(tried=True) == arms(client)[2]
    again = node_of(reloaded(client, tmp_path))
    assert [trial.value for trial in again.optimizer.trials] == [0.25, 0.5, 0.125, None]
    optimizer = node.optimizer
    client.get_next_trials(max_trials=1)
    assert node.optimizer is optimizer  # nothing has changed since


def test_a_correction_that_cannot_be_used_leaves_the_node_usable():
    client = make_client(DelayGenerationNode(horizon=40))
    client.get_next_trials(max_trials=3)
    for index, value in enumerate([0.25, 0.5, 4.0]):
        client.complete_trial(index, raw_data={"loss": value})
    client.get_next_trials(max_trials=1)
    client.attach_data(0, raw_data={"loss": math.nan})
    client.get_next_trials(max_trials=1)
    assert [trial.value for trial in node_of(client).optimizer.trials[:3]] == [0.25, 0.5, 4.0]


def test_a_new_horizon_counts_further_arms():
    client = make_client(DelayGenerationNode(horizon=2))
    for index in client.get_next_trials(max_trials=4):
        complete(client, index)
    client.set_generation_strategy(GenerationStrategy(nodes=[DelayGenerationNode(horizon=5)]))
    assert [len(client.get_next_trials(max_trials=4)) for _ in range(2)] == [4, 1]


@pytest.mark.parametrize("ended", ["stopped early", "without data"])
def test_arms_whose_trials_ended_without_an_answer_are_not_suggested_again_and_again(ended):
    client, asked = make_client(DelayGenerationNode(), LINE), []
    for _ in range(16):
        (index,) = client.get_next_trials(max_trials=1)
        asked.append(arms(client)[index]["x"])
        data = {"loss": -asked[-1]}  # better the larger x is
        if asked[-1] < 0.6:
            client.complete_trial(index, raw_data=data)
        elif ended == "stopped early":
            client.attach_data(index, raw_data=data)
            client.mark_trial_early_stopped(index)
        else:
            client._experiment.trials[index].mark_completed()
    assert len(set(asked)) == len(asked)


def test_an_arm_that_failed_is_suggested_again_twice_and_an_abandoned_one_is_not():
    kernel = {"covar_module": se(0.3), "noise_var": 1e-4}
    client = make_client(DelayGenerationNode(horizon=9, exploit=None, **kernel), LINE)
    (first,) = client.get_next_trials(max_trials=1)
    for _ in range(2):
        client.mark_trial_failed(first)
        (again,) = client.get_next_trials(max_trials=1)
        assert arms(client)[again] == arms(client)[first]
        first = again
    client.mark_trial_failed(first)
    (other,) = client.get_next_trials(max_trials=1)
    assert arms(client)[other] != arms(client)[first]
    client.mark_trial_abandoned(other)
    for index in client.get_next_trials(max_trials=3):
        assert arms(client)[index] != arms(client)[other]


def test_pending_arms_are_not_suggested_again():
    def answer(index):
        client.complete_trial(
            index, raw_data={"loss": 3.0 * (arms(client)[index]["x"] - 1) ** 2 - 5.0}
        )

    # So much noise and so little exploration that the rule would repeat the best place, 1.
    places = RangeParameterConfig(name="x", parameter_type="int", bounds=(0, 3))
    options = {"covar_module": se(1.0), "noise_var": 1.0, "exploit": bd.UCB(1e-4)}
    client = make_client(DelayGenerationNode(horizon=30, **options), [places])
    for index in client.get_next_trials(max_trials=4):
        answer(index)
    suggested = client.get_next_trials(max_trials=3)
    assert len({values["x"] for values in suggested.values()}) == 3
    (best,) = (index for index, values in suggested.items() if values["x"] == 1)
    client.mark_trial_abandoned(best)
    for index in set(suggested) - {best}:
        answer(index)
    for _ in range(2):
        for index, values in client.get_next_trials(max_trials=2).items():
            assert values["x"] != 1
            answer(index)


def test_data_that_come_late_and_data_that_say_nothing(tmp_path):
    client = make_client(DelayGenerationNode(horizon=40))
    client.get_next_trials(max_trials=4)
    client.complete_trial(0, raw_data={"time": 3.0})
    client.complete_trial(1, raw_data={"loss": (0.25, 0.5)})
    client.complete_trial(2, raw_data={"loss": (0.125, 0.0)})
    client.complete_trial(3, raw_data={"loss": math.inf})
    trials = node_of(client).optimizer.trials
    assert [t.state.value for t in trials] == ["running", "completed", "completed", "failed"]
    assert [t.noise_var for t in trials] == [None, 0.25, None, None]
    assert "finite" in trials[3].reason
    client.get_next_trials(max_trials=1)
    client.attach_data(0, raw_data={"loss": 0.75})
    for one in (client, reloaded(client, tmp_path)):
        assert node_of(one).optimizer.trials[0].value == 0.75


def test_results_of_others_are_used_and_no_part_of_the_horizon(tmp_path):
    client = make_client(DelayGenerationNode(horizon=3))
    best = {"lr": 0.01, "width": 1, "act": "b"}
    complete(client, client.attach_trial(best))
    failed = client.attach_trial({"lr": 0.02, "width": 1, "act": "b"})
    client.mark_trial_failed(failed)
    batch = client._experiment.new_batch_trial()
    others = [Arm({"lr": 0.03, "width": width, "act": "c"}) for width in (3, 4)]
    batch.add_arms_and_weights(arms=others)
    batch.mark_running(no_runner_required=True)
    client.get_next_trials(max_trials=1)
    node = node_of(client)
    assert len(node.optimizer.attached) == 1
    assert node.recommend() == best
    rows = [
        DataRow(batch.index, arm.name, "loss", "loss", loss(arm.parameters), math.nan)
        for arm in batch.arms
    ]
    client._experiment.attach_data(Data(rows))
    batch.mark_completed()
    complete(client, client.attach_trial({"lr": 0.05, "width": 2, "act": "c"}))
    client.get_next_trials(max_trials=1)
    again = reloaded(client, tmp_path)
    assert len(node_of(again).optimizer.attached) == len(node.optimizer.attached) == 4
    assert client.get_next_trials(max_trials=1) == again.get_next_trials(max_trials=1)
    known = client.attach_trial({"lr": 0.06, "width": 2, "act": "c"})
    client.complete_trial(known, raw_data={"loss": (0.25, 0.5)})
    assert node_of(client).optimizer.attached[-1].noise_var == 0.25


def test_after_another_node(tmp_path):
    first = GenerationNode(
        name="Sobol",
        generator_specs=[GeneratorSpec(Generators.SOBOL, generator_kwargs={"seed": 1})],
        transition_criteria=[MinTrials(threshold=3, transition_to="BPE-Delay")],
    )
    client = Client()
    client.configure_experiment(parameters=MIXED)
    client.configure_optimization(objective="-loss")
    nodes = [first, DelayGenerationNode(horizon=5)]
    client.set_generation_strategy(GenerationStrategy(nodes=nodes))
    with random_state_is_kept():
        for _ in range(5):
            (index,) = client.get_next_trials(max_trials=1)
            complete(client, index)
    opt = node_of(client).optimizer
    assert (len(opt.attached), len(opt.trials)) == (3, 2)
    again = reloaded(client, tmp_path)
    assert client.get_next_trials(max_trials=1) == again.get_next_trials(max_trials=1)


def test_arms_that_no_trial_was_made_of_are_forgotten():
    client = make_client(DelayGenerationNode(horizon=5))
    strategy, experiment = client._generation_strategy, client._experiment
    strategy.gen(experiment=experiment, num_trials=2)
    runs = strategy.gen(experiment=experiment, num_trials=2)
    experiment.new_trial(runs[0][0])
    late = runs[1][0]
    strategy.gen(experiment=experiment)
    assert len(node_of(client).optimizer.trials) == 2
    for trial in (experiment.new_trial(late), experiment.trials[0]):
        trial.mark_running(no_runner_required=True)
    complete(client, 1)
    client.get_next_trials(max_trials=1)
    assert len(node_of(client).optimizer.trials) == 3
    values = [trial.value for trial in node_of(client).optimizer.trials]
    assert loss(arms(client)[1]) in values


@pytest.mark.parametrize("kept", [0, 1, 2])
def test_arms_rest_on_nothing_that_was_dropped(tmp_path, kept):
    # The first arm opened the round; whichever arm becomes a trial, the run goes on.
    client = make_client(DelayGenerationNode(horizon=9))
    strategy, experiment = client._generation_strategy, client._experiment
    runs = strategy.gen(experiment=experiment, num_trials=3)
    experiment.new_trial(runs[kept][0]).mark_running(no_runner_required=True)
    again = reloaded(client, tmp_path)
    for one in (client, again):
        one.get_next_trials(max_trials=2)
        complete(one, 0)
    assert client.get_next_trials(max_trials=2) == again.get_next_trials(max_trials=2)
    assert len(node_of(client).optimizer.trials) == 5


def test_the_horizon_ends_the_strategy(tmp_path):
    client = make_client(DelayGenerationNode(horizon=5))
    assert len(client.get_next_trials(max_trials=3)) == 3
    assert len(client.get_next_trials(max_trials=3)) == 2
    for one in (client, reloaded(client, tmp_path)):
        with pytest.raises(GenerationStrategyCompleted, match="horizon"):
            one.get_next_trials(max_trials=1)


def test_where_everything_fails_data_are_awaited_and_then_it_ends():
    switch = ChoiceParameterConfig(
        name="s", parameter_type="str", values=["on", "off"], is_ordered=False
    )
    kernel = {"covar_module": se(0.3), "noise_var": 1e-4, "exploit": None}
    client = make_client(DelayGenerationNode(horizon=30, **kernel), [switch])
    for _ in range(2):
        for index in client.get_next_trials(max_trials=2):
            client.mark_trial_failed(index)
    client.get_next_trials(max_trials=3)
    for index in (4, 5):
        client.mark_trial_failed(index)
    with pytest.raises(DataRequiredError, match="failed 3 times"):
        client.get_next_trials(max_trials=1)
    client.mark_trial_failed(6)
    with pytest.raises(GenerationStrategyCompleted, match="failed 3 times"):
        client.get_next_trials(max_trials=1)


def test_a_copy_begins_with_what_it_meets():
    client = make_client(DelayGenerationNode(horizon=9))
    play(client, 2)
    fresh = Client()
    fresh.configure_experiment(parameters=MIXED)
    fresh.configure_optimization(objective="-loss")
    fresh.set_generation_strategy(client._generation_strategy.clone_reset())
    fresh.get_next_trials(max_trials=1)
    fresh.complete_trial(0, raw_data={"loss": 9.0})
    assert [trial.value for trial in node_of(fresh).optimizer.trials] == [9.0]
    same = copy.deepcopy(client)
    assert same.get_next_trials(max_trials=1) == client.get_next_trials(max_trials=1)


# Options, and what cannot be done


def test_every_option_is_saved(tmp_path):
    options = {
        "covar_module": se(0.25),
        "noise_var": 1e-3,
        "confidence": bd.RKHSConfidence(norm_bound=2.0, noise_std=0.03),
        "delta": 0.05,
        "rounds": bd.GeometricRounds(4, 1.5),
        "exploit": bd.ThompsonSampling(2.0),
        "explore_fraction": 0.5,
        "evidence": "round",
        "seed": 11,
        "horizon": 30,
        "name": "mine",
    }
    client = make_client(DelayGenerationNode(**options), LINE, objective="loss")
    play(client, 2)
    again = reloaded(client, tmp_path)
    one, other = (node_of(c).optimizer for c in (client, again))
    assert one.state_dict()["config"] == other.state_dict()["config"]
    assert other.maximize
    assert str(one.guarantee) == str(other.guarantee)
    assert node_of(again).name == "mine"


def test_what_cannot_be_saved_says_so(tmp_path):
    class Own(RBFKernel):
        pass

    kernel = Own().double()
    client = make_client(DelayGenerationNode(covar_module=kernel, noise_var=1e-3, horizon=5), LINE)
    client.get_next_trials(max_trials=1)
    with pytest.raises(StorageError, match="covar_module, a Own, cannot be saved"):
        reloaded(client, tmp_path)


def test_what_ax_can_and_the_node_cannot(tmp_path):
    node = DelayGenerationNode(horizon=5)
    with pytest.raises(InputError, match="no experiment yet"):
        node.recommend()
    client = make_client(node, objective="-loss, acc")
    with pytest.raises(NotSupportedError, match="One metric"):
        client.get_next_trials(max_trials=1)
    client = make_client(DelayGenerationNode(horizon=5))
    client.configure_optimization(objective="-loss", outcome_constraints=["time <= 3"])
    with pytest.raises(NotSupportedError, match="Outcome constraints"):
        client.get_next_trials(max_trials=1)
    client = make_client(DelayGenerationNode(horizon=5))
    with pytest.raises(NotSupportedError, match="FixedParameter"):
        client.get_next_trials(max_trials=1, fixed_parameters={"width": 3})
    with pytest.raises(NotSupportedError, match="one arm"):
        client._generation_strategy.gen(experiment=client._experiment, n=2)
    experiment = Experiment(search_space=client._experiment.search_space)
    with pytest.raises(InputError, match="no objective"):
        GenerationStrategy(nodes=[DelayGenerationNode()]).gen(experiment=experiment)


@pytest.mark.parametrize("change", ["objective", "node"])
def test_another_goal_begins_with_the_results_so_far(tmp_path, caplog, change):
    client = make_client(DelayGenerationNode(horizon=20))
    client.get_next_trials(max_trials=3)
    complete(client, 0)
    client.get_next_trials(max_trials=1)
    if change == "objective":
        client.configure_optimization(objective="loss")
    else:
        nodes = [DelayGenerationNode("other", horizon=20)]
        client.set_generation_strategy(GenerationStrategy(nodes=nodes))
    again = reloaded(client, tmp_path)
    for one in (client, again):
        one.get_next_trials(max_trials=1)
        opt = node_of(one).optimizer
        assert opt.maximize is (change == "objective")
        assert [a.value for a in opt.attached] == [loss(arms(client)[0])]
        assert len(opt.trials) == 1
        complete(one, 1)
        assert len(node_of(one).optimizer.attached) == 2
    assert "runs for another search space or with other arguments" in caplog.text
    assert client.get_next_trials(max_trials=2) == again.get_next_trials(max_trials=2)


# Search spaces


def number(name, low, high, kind=ParameterType.FLOAT, **options):
    return RangeParameter(name, kind, low, high, **options)


def test_search_spaces_become_boxes():
    space = plugin._translate(
        SearchSpace(
            [
                number("rate", 1e-5, 1e-1, log_scale=True),
                number("depth", 1, 6, ParameterType.INT),
                number("units", 1, 4096, ParameterType.INT, log_scale=True),
                number("drop", 0.0, 0.5, digits=2),
                ChoiceParameter(
                    "batch", ParameterType.INT, [16, 32, 64, 128], is_ordered=True, log_scale=True
                ),
                ChoiceParameter("act", ParameterType.STRING, ["a", "b", "c"], is_ordered=False),
                ChoiceParameter("size", ParameterType.STRING, ["s", "m", "l"], is_ordered=True),
                ChoiceParameter("flag", ParameterType.BOOL, [True, False]),
                FixedParameter("epochs", ParameterType.INT, 3),
            ],
            parameter_constraints=[ParameterConstraint(inequality="drop + 0.1*depth <= 0.6")],
        )
    )
    domain = space.domain
    at = {name: i for i, name in enumerate(domain.names)}
    assert "epochs" not in at
    assert domain.log_dims == (at["rate"], at["units"], at["batch"])
    assert set(domain.cat_dims) == {at["act"]}
    assert domain.discrete_dims[at["batch"]] == [16, 32, 64, 128]
    assert domain.discrete_dims[at["size"]] == [0, 1, 2]
    assert domain.discrete_dims[at["depth"]] == [1, 2, 3, 4, 5, 6]
    generator = torch.Generator().manual_seed(0)
    unit = torch.rand(200, domain.dim, dtype=torch.double, generator=generator)
    X = domain.from_unit(unit)
    inside = domain.contains(X)
    assert 0 < inside.sum() < 200
    for x, allowed in zip(X, inside.tolist(), strict=True):
        values = domain.params(x)
        assert domain.params(domain.point(values)) == values
        assert type(values["units"]) is int
        assert values["epochs"] == 3
        slack = 0.6 - values["drop"] - 0.1 * values["depth"]
        assert abs(slack) < 0.006 or allowed == (slack > 0)


def test_asked_arms_satisfy_the_constraints():
    parameters = [
        RangeParameterConfig(name=name, parameter_type="float", bounds=(0.0, 1.0)) for name in "ab"
    ]
    client = make_client(
        DelayGenerationNode(horizon=20), parameters, parameter_constraints=["a + b <= 0.5"]
    )
    for values in client.get_next_trials(max_trials=12).values():
        assert values["a"] + values["b"] <= 0.5


@pytest.mark.parametrize(
    ("parameter", "message"),
    [
        (number("x", 0.1, 0.9, logit_scale=True), "logit"),
        (number("x", 0.1, 0.9, is_fidelity=True, target_value=0.9), "fidelity"),
        (
            ChoiceParameter(
                "x",
                ParameterType.STRING,
                ["a", "b"],
                is_ordered=False,
                sort_values=False,
                is_task=True,
                target_value="a",
            ),
            "task",
        ),
    ],
)
def test_parameters_that_have_no_column(parameter, message):
    with pytest.raises(NotSupportedError, match=f"'x' is .*{message}"):
        plugin._translate(SearchSpace([parameter]))


def test_constraints_that_cannot_be_searched():
    a, b = number("a", 0.0, 1.0), number("b", 1, 5000, ParameterType.INT)
    with pytest.raises(NotSupportedError, match="equality"):
        plugin._translate(SearchSpace([a, b], [ParameterConstraint(equality="a + b == 3")]))


# Acquisition functions through Ax's own factories


def modular(acquisition, options):
    """Four Sobol arms, then a GP of Ax's with an acquisition function of ours."""
    sobol = GeneratorSpec(Generators.SOBOL, generator_kwargs={"seed": 1})
    spec = GeneratorSpec(
        Generators.BOTORCH_MODULAR,
        generator_kwargs={"botorch_acqf_class": acquisition, "botorch_acqf_options": options},
    )
    client = Client(random_seed=0)
    client.configure_experiment(parameters=LINE)
    client.configure_optimization(objective="-loss")
    nodes = [
        GenerationNode(
            name="Sobol",
            generator_specs=[sobol],
            transition_criteria=[MinTrials(threshold=4, transition_to="GP")],
        ),
        GenerationNode(name="GP", generator_specs=[spec]),
    ]
    client.set_generation_strategy(GenerationStrategy(nodes=nodes))
    for index in client.get_next_trials(max_trials=4):
        complete(client, index)
    return client


@pytest.mark.filterwarnings("ignore::botorch.exceptions.warnings.BotorchWarning")
@pytest.mark.filterwarnings("ignore::linear_operator.utils.warnings.NumericalWarning")
@pytest.mark.parametrize(
    ("acquisition", "options"),
    [(bd.MaxVariance, {}), (bd.FantasyUpperConfidenceBound, {"beta": 1e-4})],
)
def test_ax_s_own_gp_with_our_acquisition_functions(tmp_path, acquisition, options):
    with random_state_is_kept():
        client = modular(acquisition, options)
        again = reloaded(client, tmp_path)
        asked, others = [], []
        for _ in range(3):  # one after the other, all of them pending
            asked += client.get_next_trials(max_trials=1).values()
            others += again.get_next_trials(max_trials=1).values()
        used = node_of(client)._fitted_adapter.generator
    assert used._botorch_acqf_class is acquisition
    assert node_of(again)._fitted_adapter.generator._botorch_acqf_class is acquisition
    X = torch.tensor([[values["x"]] for values in asked], dtype=torch.double)
    Z = torch.tensor([[values["x"]] for values in others], dtype=torch.double)
    torch.testing.assert_close(X, Z, rtol=0, atol=1e-3)
    if acquisition is bd.MaxVariance:
        assert torch.pdist(X).min() > 0.05  # pending points count
    else:
        best = min(arms(client)[:4], key=loss)
        assert abs(X[0].item() - best["x"]) < 0.3  # it minimises


def test_the_readme_s_example_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (example,) = python_blocks("ax")
    namespace = {"__name__": "readme"}
    with random_state_is_kept():
        exec(compile(example, "README.md", "exec"), namespace)
    assert namespace["best"]["act"] in ("relu", "tanh", "gelu")
    assert len(namespace["client"]._experiment.trials) == 14
