import tomllib
from importlib import resources

import pytest

from botorch_delay import NoDelay
from botorch_delay.benchmarks import (
    StepClock,
    register_delay,
    register_method,
    register_problem,
)
from botorch_delay.benchmarks.methods import gp_bucb
from botorch_delay.benchmarks.players import Method
from botorch_delay.benchmarks.registries import DELAYS, METHODS, PROBLEMS
from botorch_delay.benchmarks.report import split_of
from botorch_delay.exceptions import InputError, InputTypeError


@pytest.mark.parametrize("registry", [PROBLEMS, DELAYS, METHODS])
def test_unknown_names_list_the_known_ones(registry):
    with pytest.raises(InputError) as refused:
        registry["nonsense"]
    assert "'nonsense'" in str(refused.value)
    assert all(name in str(refused.value) for name in registry)
    assert "nonsense" not in registry


def test_what_a_user_adds_is_there():
    register_delay("mine", StepClock(NoDelay()))
    register_method("mine", Method(gp_bucb, "GP-BUCB again"))
    register_problem("mine", PROBLEMS["se-0.02"])
    try:
        assert "mine" in PROBLEMS
        assert DELAYS["mine"].law is not None
        assert METHODS["mine"].label == "GP-BUCB again"
        with pytest.raises(InputError, match="already"):
            register_problem("mine", PROBLEMS["se-0.02"])
        assert split_of("mine") == "not listed"
    finally:
        for registry in (PROBLEMS, DELAYS, METHODS):
            registry.remove("mine")
    with pytest.raises(InputError, match="no problem 'mine'"):
        PROBLEMS.remove("mine")


@pytest.mark.parametrize("name", ["", "a/b", "a b", "a__b", ".a", "-a", None])
def test_names_that_could_be_no_file_s(name):
    with pytest.raises(InputError):
        register_problem(name, PROBLEMS["se-0.02"])


def test_what_is_registered_has_to_be_of_the_kind():
    with pytest.raises(InputTypeError):
        register_problem("mine", 3)
    with pytest.raises(InputTypeError):
        register_delay("mine", NoDelay())
    with pytest.raises(InputTypeError):
        register_method("mine", gp_bucb)


def test_every_problem_is_for_development_or_for_testing():
    text = resources.files("botorch_delay.benchmarks").joinpath("splits.toml").read_text()
    splits = tomllib.loads(text)
    development, testing = (splits[key]["problems"] for key in ("development", "testing"))
    assert sorted(development + testing) == sorted(PROBLEMS)
    assert split_of("hpobench-vehicle") == "testing"
    assert split_of("branin-arms") == "development"


def test_the_clocks():
    assert list(DELAYS) == [
        "none",
        "poisson-10",
        "poisson-25",
        "poisson-50",
        "poisson-100",
        "poisson-200",
        "geometric-20",
        "pareto-1.5",
        "grows-with-f",
        "lost-10",
        "failed-5",
        "workers-4",
        "workers-16",
    ]
    assert DELAYS["geometric-20"].law.mean == 20.0
    assert (DELAYS["lost-10"].lost, DELAYS["failed-5"].failed) == (0.1, 0.05)
    assert (DELAYS["workers-4"].workers, DELAYS["workers-16"].workers) == (4, 16)
