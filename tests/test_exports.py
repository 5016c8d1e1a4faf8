import ast
import importlib
import logging
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import botorch_delay as bd

PACKAGE = Path(bd.__file__).parent

CONTRACT = """
ActiveSet BPEDelayOptimizer ConstantDelay DelayedGP FiniteActiveSet FiniteDomain FixedBeta
GeometricDelay Certificate CertifyingUCB Exploit Learned WithinBudget
GeometricRounds Guarantee MaxVariance NoDelay PoissonDelay RKHSConfidence Recommendation
RoundRecord Straggler SubExponentialDelay Trial TrialState Confidence DelayLaw effective_dimension
AcquisitionOptimizer BotorchRule BoxDomain Censor FantasyUpperConfidenceBound Hallucinate
HorizonRounds KrigingBeliever
Hyperparameters Ignore Optimizer Pending QueuedOptimizer RandomOptimizer Rule ThompsonSampling
ThreDSOptimizer UCB editing greedy_max_variance information_gain load rkhs_bounds round_lengths
exceptions benchmarks EmpiricalDelay Forecast Prediction Replicates Space Float Int Choice
Constants Evidence HalfWidth RuleModel Attached BoxActiveSet Correction Domain
"""


def test_the_public_names():
    assert sorted(bd.__all__) == sorted(CONTRACT.split())
    for name in bd.__all__:
        assert hasattr(bd, name)
        assert getattr(bd, name).__doc__


def test_other_names_are_refused_and_all_are_listed():
    assert set(bd.__all__) <= set(dir(bd))
    with pytest.raises(AttributeError, match="'botorch_delay' has no attribute 'Annealing'"):
        _ = bd.Annealing


WORKER = """
import math, sys
from botorch_delay.demo import digits
from botorch_delay.workers import evaluate, start_worker
start_worker()
done = evaluate(math.hypot, 3, {"x": 3.0}, "names")
assert done.value is None and "TypeError" in done.error and done.trial_id == 3
done = evaluate(lambda x, y: x * y, 4, {"x": 2.0, "y": 1.5}, "names")
assert done.value == 3.0 and done.started <= done.finished and not done.error
assert evaluate(lambda point: point["x"], 5, {"x": 2.0}, "dict").value == 2.0
assert "torch" not in sys.modules and "scipy" not in sys.modules and "sklearn" not in sys.modules
done = evaluate(lambda x: x.sum(), 6, [2.0, 1.5], "float64")
import torch
assert done.value == 3.5 and torch.get_num_threads() == 1
torch.set_num_threads(2)
start_worker()
assert torch.get_num_threads() == 1
"""

PROGRAM = """
import logging, torch, gpytorch, botorch
state, dtype, root = torch.get_rng_state(), torch.get_default_dtype(), list(logging.root.handlers)
known = set(sys.modules)
import botorch_delay as bd
loaded = set(sys.modules) - known
assert not [name for name in loaded if name.startswith("botorch_delay.")], loaded
assert not [name for name in loaded if name.split(".")[0] in ("botorch", "scipy", "tqdm")], loaded
bd.BPEDelayOptimizer
ours = "benchmarks cli demo executors integrations plotting runner study workers"
ours = [f"botorch_delay.{name}" for name in ours.split()]
others = "ax dask distributed matplotlib optuna pandas pebble ray scipy.stats sklearn"
for name in [*ours, *others.split()]:
    assert name not in sys.modules or name in known, name
# Symbolic shapes come with sympy: half a second of one ask, with the first kernel of kernels.
bounds = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.double)
opt = bd.BPEDelayOptimizer(bd.BoxDomain(bounds), 12, seed=0)
for _ in range(12):
    trial = opt.ask()
    opt.tell(trial, -float((trial.x - 0.3).square().sum()))
opt.recommend(), opt.guarantee
assert len(opt.rounds) > 1
assert "sympy" not in sys.modules
import botorch_delay.integrations
for name in bd.__all__:
    getattr(bd, name)
from botorch_delay import *
benchmarks.paper_problem, UCB(6.0)
assert torch.equal(state, torch.get_rng_state())
assert dtype == torch.get_default_dtype()
assert root == logging.root.handlers
for name in ("pandas", "matplotlib", "sklearn", "pebble", "optuna", "ray", "ax", "distributed"):
    assert name not in sys.modules or name in known, name
"""


def test_worker_processes_and_programs_load_only_what_they_use():
    """A worker loads PyTorch only for tensors, and computes in one thread.

    Importing the library loads nothing before it is used, and changes nothing global.
    """
    # One process for both, as PyTorch takes seconds to load.
    forget = "for name in [*sys.modules]:\n    if name.startswith('botorch_delay'):\n"
    forget += "        del sys.modules[name]\n"
    two_threads = {**os.environ, "OMP_NUM_THREADS": "2"}
    code = WORKER + forget + PROGRAM
    subprocess.run([sys.executable, "-c", code], env=two_threads, check=True)


def test_the_package_can_be_imported_from_a_zip_file(tmp_path):
    with zipfile.ZipFile(tmp_path / "wheel.zip", "w") as wheel:
        for path in PACKAGE.glob("__init__.py*"):
            wheel.write(path, f"botorch_delay/{path.name}")
    code = f"import sys; sys.path.insert(0, {str(tmp_path / 'wheel.zip')!r}); import botorch_delay"
    code += "; assert 'zip' in botorch_delay.__file__ and botorch_delay.__all__"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_logger_is_a_module_s_own():
    for name in logging.root.manager.loggerDict:
        if name.startswith("botorch_delay"):
            assert logging.getLogger(name).handlers == []


def test_nothing_prints_and_nothing_pickles_data():
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                if called == "print":
                    assert path.name == "cli.py", path
                forbidden = {"pickle.loads", "pickle.load", "torch.load", "eval", "exec"}
                assert called.removeprefix("cloud") not in forbidden


def test_the_page_for_maintainers_names_what_there_is():
    """The rooms and their central types exist as the package's docstring says."""
    rooms = re.findall(r"^\* (.*?)(?=^\* |^The path)", bd.__doc__, flags=re.M | re.S)
    assert len(rooms) == 8
    for text in rooms:
        room = re.findall(r"``([a-z_]+)``", text)[0]
        modules = re.findall(r"``([a-z_]+)\.([A-Za-z_]+)``", text)
        assert modules
        for module, name in modules:
            people = room == "integrations"
            if people and module in ("engine_run", "simulator"):
                path = {"engine_run": "integrations", "simulator": "benchmarks"}[module]
                path = f"{path}.{module}"
            else:
                path = module if people else f"{room}.{module}"
            assert hasattr(importlib.import_module(f"botorch_delay.{path}"), name), (path, name)
    named = set(re.findall(r"``([A-Z]\w+)``", bd.__doc__.split("The path of an answer")[1]))
    assert named <= set(re.findall(r"\.(\w+)``", bd.__doc__)) | {"Averages"}
