"""A study that begins with the hyperparameters of another."""

import json

import pytest
import torch
from cases import scattered, se

import botorch_delay as bd
from botorch_delay.exceptions import InputError, InputTypeError, NotSupportedError
from botorch_delay.optimizers.part_records import build_part, describe_part

pytestmark = pytest.mark.usefixtures("small_searches")

POINTS = scattered(80)
OPTIMIZERS = [
    lambda domain, **options: bd.BPEDelayOptimizer(domain, 40, **options),
    bd.AcquisitionOptimizer,
]


def value(x):
    return 3.0 + torch.sin(9.0 * x).sum().item()


def play(opt, asks):
    for _ in range(asks):
        trial = opt.ask()
        opt.tell(trial, value(trial.x))
    return opt


@pytest.mark.parametrize("make", OPTIMIZERS)
def test_from_one_study_to_the_next_and_through_a_file(make, tmp_path):
    first = play(make(bd.FiniteDomain(POINTS)), 20)
    learned = first.hyperparameters
    assert len(learned.lengthscale) == 2
    second = make(bd.FiniteDomain(POINTS), covar_module=bd.Learned(learned))
    assert second.hyperparameters.lengthscale == pytest.approx(learned.lengthscale)
    cold = make(bd.FiniteDomain(POINTS))
    assert cold.hyperparameters.lengthscale != pytest.approx(learned.lengthscale)
    play(second, 4)
    second.save(tmp_path / "study.db")
    loaded = bd.load(tmp_path / "study.db")
    assert loaded.hyperparameters == second.hyperparameters
    assert [t.index for t in loaded.ask(5)] == [t.index for t in second.ask(5)]


def test_hyperparameters_are_values_that_can_be_keys():
    given = bd.Hyperparameters([0.3, 0.2], 0.01)
    assert given == bd.Hyperparameters((0.3, 0.2), 0.01)
    assert given != bd.Hyperparameters((0.3, 0.1), 0.01)
    assert len({given, bd.Hyperparameters((0.3, 0.2), 0.01)}) == 1
    record = describe_part(given)
    assert json.loads(json.dumps(record)) == record  # survives a file
    assert build_part(record, "warm_start", POINTS) == given


@pytest.mark.parametrize("make", OPTIMIZERS)
def test_a_state_in_memory_knows_its_warm_start(make):
    given = bd.Hyperparameters([0.3, 0.2], 0.01)
    opt, other = (make(bd.FiniteDomain(POINTS), covar_module=bd.Learned(given)) for _ in range(2))
    other.load_state_dict(opt.state_dict())
    stored = opt.state_dict()
    stored["config"] = json.loads(json.dumps(stored["config"]))
    other.load_state_dict(stored)


@pytest.mark.parametrize("make", OPTIMIZERS)
def test_bad_input(make):
    domain = bd.FiniteDomain(POINTS)
    with pytest.raises(InputTypeError, match=r"opt\.hyperparameters"):
        bd.Learned(make(domain))
    with pytest.raises(InputError, match=r"1 lengthscales.*2 encoded columns"):
        make(domain, covar_module=bd.Learned(bd.Hyperparameters([0.3], 0.01)))
    with pytest.raises(InputError, match="noise_var was given without covar_module"):
        make(domain, covar_module=bd.Learned(), noise_var=0.01)
    with pytest.raises(InputError, match="lengthscale"):
        bd.Hyperparameters([0.3, -1.0], 0.01)
    with pytest.raises(NotSupportedError, match="were given, not learned"):
        _ = make(domain, covar_module=se(), noise_var=0.01).hyperparameters
