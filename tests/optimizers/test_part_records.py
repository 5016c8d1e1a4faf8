"""Parts are described as records, and rebuilt from them."""

import json
import math
from dataclasses import dataclass
from functools import cached_property

import pytest
import torch
from botorch.acquisition import UpperConfidenceBound
from cases import scattered, se, with_values
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel

import botorch_delay as bd
from botorch_delay.exceptions import StorageError
from botorch_delay.optimizers import part_records
from botorch_delay.optimizers.part_records import build_part, describe_part

POINTS = scattered(12)
KNOWN = bd.Hyperparameters([0.3, 0.2], 0.01)
PARTS = [
    bd.FixedBeta(4.0),
    bd.RKHSConfidence(2.0, 0.1, tight=False, uniform="trace"),
    bd.NoDelay(),
    bd.ConstantDelay(3),
    bd.PoissonDelay(4.0),
    bd.GeometricDelay(2.0),
    bd.SubExponentialDelay(mean=1.0, xi=2.0, b=0.5, paper_min=True),
    bd.UCB(2.0),
    bd.CertifyingUCB(2.0, 0.1, 0.05),
    bd.ThompsonSampling(1.5),
    bd.Exploit(bd.UCB(2.0), repeat_pending=False, final_fraction=0.3),
    bd.WithinBudget(bd.BotorchRule(UpperConfidenceBound, beta=4.0), 1.5),
    bd.Ignore(),
    bd.Hallucinate(),
    bd.KrigingBeliever(),
    bd.Censor(-1.0, 4, inflate=True),
    KNOWN,
    bd.Learned(KNOWN),
    bd.HorizonRounds(2.0),
    bd.GeometricRounds(3, 1.5),
]


@pytest.mark.parametrize("part", PARTS, ids=repr)
def test_a_part_comes_back_from_json(part):
    record = describe_part(part)
    again = build_part(json.loads(json.dumps(record)), "part", POINTS)
    assert type(again) is type(part)
    assert repr(again) == repr(part)
    assert describe_part(again) == record


def test_every_part_that_is_listed_is_tried_here():
    assert {type(part) for part in PARTS} == set(part_records._REBUILT.values())


class Doubtful(bd.UCB):
    """A user's own rule, which caches what it has computed."""

    @cached_property
    def root(self):
        return math.sqrt(self.beta)


@dataclass(frozen=True, slots=True)
class Slotted(Doubtful):
    other: float = 0.0


class Borrowed(Doubtful):
    def __init__(self, known):
        super().__init__(known.beta)
        object.__setattr__(self, "known", known)


@pytest.mark.parametrize("part", [Doubtful(2.0), Slotted(2.0, 3.0), Borrowed(bd.UCB(2.0))])
def test_a_part_of_one_s_own_is_known_by_what_it_was_made_with(part):
    before = json.dumps(describe_part(part))
    _ = part.root  # computed once, and kept
    assert json.dumps(describe_part(part)) == before
    assert describe_part(Slotted(2.0, 4.0)) != describe_part(Slotted(2.0, 3.0))
    assert describe_part(Borrowed(bd.UCB(2.0))) != describe_part(Borrowed(bd.FixedBeta(2.0)))


def test_a_study_with_a_rule_of_one_s_own_is_saved_again_and_goes_on(tmp_path):
    path, options = tmp_path / "study.db", {"covar_module": se(), "noise_var": 1e-2}
    opt = bd.AcquisitionOptimizer(bd.FiniteDomain(POINTS), rule=Doubtful(2.0), **options)
    for number in range(3):
        opt.tell(opt.ask(), float(number))
        opt.save(path)
    again = bd.load(path, rule=Doubtful(2.0))
    assert again.ask().index == opt.ask().index


@pytest.mark.parametrize("value", [None, True, 3, 0.25, "all"])
def test_plain_values_are_their_own_records(value):
    assert describe_part(value) is value
    assert build_part(value, "value", POINTS) is value


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_kernel_comes_back_with_its_values(dtype):
    kernel = ScaleKernel(with_values(MaternKernel(nu=1.5), lengthscale=0.3)).to(dtype)
    points = POINTS.to(dtype)
    record = json.loads(json.dumps(describe_part(kernel, points)))
    again = build_part(record, "covar_module", points)
    assert torch.equal(again(points).to_dense(), kernel(points).to_dense())


class Own(RBFKernel):
    pass


class Slow(bd.PoissonDelay):
    def __repr__(self):
        return "Slow()"


@pytest.mark.parametrize(
    ("part", "name"),
    [
        (Own(), "covar_module"),
        (Slow(2.0), "delay"),
        (bd.BotorchRule(lambda model: UpperConfidenceBound(model, beta=1.0)), "rule"),
    ],
)
def test_a_part_of_the_users_own_has_to_be_passed_again(part, name):
    record = describe_part(part, scattered(12).float())
    with pytest.raises(StorageError, match=f"pass {name} to load"):
        build_part(record, name, POINTS)
    assert build_part(record, name, POINTS, {name: part}) is part


def test_a_rule_is_replaced_inside_what_plays_it():
    mine = bd.BotorchRule(lambda model: UpperConfidenceBound(model, beta=1.0))
    record = describe_part(bd.Exploit(mine, repeat_pending=False))
    again = build_part(record, "exploit", POINTS, {"rule": mine})
    assert again == bd.Exploit(mine, repeat_pending=False)


@pytest.mark.parametrize(
    "record",
    [
        {},
        {"class": "UCB", "arguments": {"beta": -1.0}},
        {"class": "UCB", "arguments": {"gamma": 1.0}},
        {"class": "UCB", "arguments": 3},
        {"class": "BotorchRule", "factory": "os.system", "options": {}},
        {"class": "RBFKernel", "structure": {"class": "RBFKernel"}},
    ],
)
def test_malformed_records(record):
    with pytest.raises(StorageError):
        build_part(record, "part", POINTS)


def test_what_changes_with_a_kernel_is_seen():
    assert describe_part(se(0.3), POINTS) != describe_part(se(0.4), POINTS)
