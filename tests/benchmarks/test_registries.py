import tomllib
from importlib import resources

from botorch_delay.benchmarks import DELAYS, METHODS, PROBLEMS
from botorch_delay.benchmarks.registries import mean_delays, split_of


def test_every_problem_is_for_development_or_for_testing():
    text = resources.files("botorch_delay.benchmarks").joinpath("splits.toml").read_text()
    splits = tomllib.loads(text)
    development, testing = (splits[key]["problems"] for key in ("development", "testing"))
    assert sorted(development + testing) == sorted(PROBLEMS)
    assert split_of("hpobench-vehicle") == "testing"
    assert split_of("branin-arms") == "development"
    assert split_of("mine") == "not listed"


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


def test_delays_that_differ_in_their_mean_alone():
    means = {f"poisson-{mean}": mean for mean in (10, 25, 50, 100, 200)}
    assert mean_delays() == {"none": 0.0} | means


def test_the_paper_has_one_function_of_each_kind():
    for name, redrawn in (("f1", "paper-0.8"), ("f2", "paper-1.0")):
        values = PROBLEMS[name](0).values
        assert bool((PROBLEMS[name](7).values == values).all())
        assert bool((PROBLEMS[redrawn](0).values == values).all())
        assert not bool((PROBLEMS[redrawn](7).values == values).all())


def test_methods_have_labels_of_their_own():
    assert len({method.label for method in METHODS.values()}) == len(METHODS)
