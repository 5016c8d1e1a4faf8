import logging
import sys
from pathlib import Path

import pytest
import torch
from small_problems import arms, box

from botorch_delay import BoxDomain
from botorch_delay.benchmarks import METHODS, BoxProblem, FiniteProblem, peers
from botorch_delay.benchmarks.peers import SERVER, Parameter, ServedSampler, python_of, search_space
from botorch_delay.benchmarks.simulator import DELAYS
from botorch_delay.exceptions import (
    InputError,
    MissingExtraError,
    NoAnswerError,
    NotSupportedError,
    RunError,
)

# A peer of the standard library alone, which says what it was told.
STUB = f"""
import os, sys
from importlib.util import module_from_spec, spec_from_file_location
spec = spec_from_file_location("peer_server", {str(SERVER)!r})
server = module_from_spec(spec)
spec.loader.exec_module(server)

class Stub:
    def __init__(self, parameters, **told):
        print("what a library prints is no answer")
        self.parameters, self.told, self.answers = parameters, told, []
    def suggest(self):
        if -7.0 in self.answers:
            raise ValueError(f"told {{self.told}}, {{sorted(self.parameters)}}, {{self.answers}}")
        if len(self.answers) == 3:
            print("out of memory", file=sys.stderr, flush=True)
            os._exit(1)
        return {{name: high for name, (low, high, log, levels) in self.parameters.items()}}
    def report(self, number, y):
        self.answers.append(y)

server.PEERS["stub"] = Stub
server.serve()
"""


@pytest.fixture
def stub(tmp_path, monkeypatch):
    """Makes a sampler of the stub."""
    (tmp_path / "stub.py").write_text(STUB)
    monkeypatch.setattr(peers, "SERVER", tmp_path / "stub.py")
    return lambda problem: ServedSampler("stub", "json", problem, DELAYS["none"], 8, 5)


def test_a_peer_in_another_process_is_asked_and_told(stub):
    first, second = stub(box()), stub(arms())
    assert first.ask().x.tolist() == [1.0, 9.0, 2.0, 3.0]
    assert second.ask().index == len(arms().points) - 1
    first.tell(0, -2.5)
    first.tell(first.ask().id, -7.0)
    with pytest.raises(RunError, match=r"'seed': 5, 'steps': 8, 'exact': False.*\[-2.5, -7.0\]"):
        first.ask()
    assert second.ask().id == 1  # a run that failed leaves the others as they are


def test_a_process_ends_with_its_sampler(stub):
    sampler = stub(box())
    process = sampler._process
    assert process.poll() is None
    del sampler
    assert process.poll() == 0


def test_a_process_that_died_is_an_error_of_its_run(stub):
    sampler = stub(box())
    for number in range(3):
        sampler.tell(sampler.ask().id, float(number))
    with pytest.raises(RunError, match=r"died: (?s:.)*out of memory"):
        sampler.ask()
    assert stub(box()).ask().id == 0


def test_the_python_of_a_peer(monkeypatch):
    assert python_of("json", "A test needs json") == sys.executable
    monkeypatch.setattr("botorch_delay.validation.find_spec", lambda name: None)
    variable = "BOTORCH_DELAY_PYTHON_VIZIER"
    with pytest.raises(MissingExtraError, match=rf"pip install 'google-vizier.*{variable}"):
        python_of("vizier", "A test needs vizier")
    for wrong in (sys.executable + "-not-there", "/bin/false"):
        monkeypatch.setenv(variable, wrong)
        with pytest.raises(InputError, match=f"{variable} must name a Python that has vizier"):
            python_of("vizier", "A test needs vizier")
    monkeypatch.setenv("BOTORCH_DELAY_PYTHON_JSON", sys.executable)
    assert python_of("json", "A test needs json") == sys.executable


def test_the_served_peers_are_registered():
    served = {name: method for name, method in METHODS.items() if method.served}
    assert set(served) == {"smac", "smac-black-box", "hebo", "deephyper", "vizier"}
    text = Path(SERVER).read_text()
    for name, method in served.items():
        assert f'"{name}": ' in text
        assert f"{method.package}" in text


def tpe(problem, name="tpe"):
    return METHODS[name].make(problem, DELAYS["none"], 8, 0)


def test_the_parameters_of_a_grid_are_the_numbers_of_its_values():
    parameters, point_of = search_space(arms().domain)
    assert parameters == {
        "a": Parameter(0, 2, levels="integer"),
        "b": Parameter(0, 2, levels="integer"),
        "c": Parameter(0, 1, levels="category"),
    }
    x, index = point_of({"a": 1, "b": 2, "c": 0})
    assert x.tolist() == [1.0, 100.0, 0.0]
    assert torch.equal(arms().points[index], x)


def test_the_parameters_of_a_box_are_its_columns():
    parameters, point_of = search_space(box().domain)
    assert parameters == {
        "x": Parameter(0.0, 1.0),
        "n": Parameter(0, 2, levels="integer"),
        "kind": Parameter(0, 2, levels="category"),
        "y": Parameter(0.0, 3.0, log=False),
    }
    x, index = point_of({"x": 0.25, "n": 1, "kind": 2, "y": 1.5})
    assert (x.tolist(), index) == ([0.25, 3.0, 2.0, 1.5], None)
    decades = BoxDomain(
        torch.tensor([[1e-4], [1.0]], dtype=torch.double), log_dims=[0], names=["rate"]
    )
    assert search_space(decades)[0] == {"rate": Parameter(1e-4, 1.0, log=True)}


def test_the_model_recommends_from_the_same_answers():
    pytest.importorskip("optuna")
    problem = arms()
    own, by_model = tpe(problem), tpe(problem, "tpe-by-model")
    for number in range(8):
        points = own.ask(), by_model.ask()
        assert points[0].index == points[1].index
        # The best answer by far is an outlier, which the model does not believe.
        y = 50.0 if number == 0 else problem.evaluate_true(points[0])
        own.tell(number, y)
        by_model.tell(number, y)
    assert own.recommend().index == own._asked[0].index
    assert by_model.recommend().mean < 50.0


def test_optuna_s_trials_on_a_grid_are_the_arms():
    pytest.importorskip("optuna")
    problem = arms()
    sampler = tpe(problem)
    for number in range(30):
        point = sampler.ask()
        trial = sampler._trials[number]
        assert torch.equal(problem.points[point.index], point.x)
        a, b, c = (trial.params[name] for name in "abc")
        assert point.x.tolist() == [a, [1, 10, 100][b], c]
        sampler.tell(number, problem.evaluate_true(point))
    best = max(range(30), key=lambda n: problem.evaluate_true(sampler._asked[n]))
    own = sampler.recommend()
    assert problem.evaluate_true(own) == problem.evaluate_true(sampler._asked[best])


def test_elsewhere_the_nearest_arm_is_asked():
    pytest.importorskip("optuna")
    points = torch.rand(40, 2, generator=torch.Generator().manual_seed(0)).double()
    points = points * torch.tensor([10.0, 0.1])
    problem = FiniteProblem(points, points[:, 0], 0.1)
    sampler = tpe(problem)
    low, high = problem.domain.bounds
    for number in range(20):
        point = sampler.ask()
        suggested = torch.tensor([sampler._trials[number].params[n] for n in ("x0", "x1")])
        distance = ((points - suggested) / (high - low)).norm(dim=1)
        assert int(distance.argmin()) == point.index


def test_optuna_gets_no_constraints():
    pytest.importorskip("optuna")
    domain = BoxDomain(
        torch.tensor([[0.0], [1.0]]).double(), constraints=[([0], [1.0], 0.5)], names=["x"]
    )
    problem = BoxProblem(domain, lambda X: X[:, 0], 1.0, 0.1)
    with pytest.raises(NotSupportedError):
        tpe(problem)


def test_without_optuna_a_hint(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "optuna", None)
    with pytest.raises(MissingExtraError, match="pip install 'optuna"):
        tpe(arms())


def test_optuna_s_log_is_left_as_it_was(caplog):
    pytest.importorskip("optuna")
    before = logging.root.manager.disable
    sampler = tpe(arms())
    with pytest.raises(NoAnswerError):
        sampler.recommend()
    sampler.tell(sampler.ask().id, 1.0)
    assert caplog.messages == []
    assert logging.root.manager.disable == before


def asked_of_botorch(problem, steps=9):
    loop = METHODS["botorch"].make(problem, DELAYS["workers-4"], steps, 3)
    trials = [loop.ask() for _ in range(2)]
    for number in range(2, steps):
        loop.tell(number - 2, problem.evaluate_true(trials[number - 2]))
        trials.append(loop.ask())
    return loop, trials


def test_botorch_s_loop_asks_what_the_box_allows_and_recommends_by_its_model(monkeypatch):
    bounds = torch.tensor([[1e-3, 0.0, 1.0], [1.0, 2.0, 9.0]], dtype=torch.double)
    domain = BoxDomain(bounds, log_dims=[0], discrete_dims={2: [1.0, 4.0, 9.0]})
    best = torch.tensor([-1.0, 1.0, 4.0], dtype=torch.double)

    def value(X):
        X = torch.stack([X[:, 0].log10(), X[:, 1], X[:, 2]], dim=1)
        return -(X - best).square().sum(dim=1)

    pending = []
    made = peers.qLogNoisyExpectedImprovement

    def spy(*args, X_pending=None, **options):
        pending.append(0 if X_pending is None else len(X_pending))
        return made(*args, X_pending=X_pending, **options)

    monkeypatch.setattr(peers, "qLogNoisyExpectedImprovement", spy)
    loop, trials = asked_of_botorch(BoxProblem(domain, value, 0.0, 0.0), steps=10)
    points = torch.stack([trial.x for trial in trials])
    assert bool(domain.contains(points).all())
    assert points[:8, 0].median() < 0.2  # the initial design is uniform in the logarithm
    assert pending == [1, 1]  # after 2 (d + 1) = 8 asks, two running before each tell
    regret = -value(points[:-2])
    assert -float(value(loop.recommend().x.unsqueeze(0))) <= regret.sort().values[1]


def test_botorch_s_loop_asks_arms():
    problem = arms()
    _, trials = asked_of_botorch(problem)
    assert all(torch.equal(problem.domain.points[trial.index], trial.x) for trial in trials)
    with pytest.raises(NoAnswerError):
        METHODS["botorch"].make(problem, DELAYS["none"], 4, 0).recommend()
