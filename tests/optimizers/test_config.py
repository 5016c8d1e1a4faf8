"""What optimizers are made with."""

import inspect
import json
import warnings
from dataclasses import fields

import pytest
import torch
from botorch.models.kernels import CategoricalKernel
from cases import scattered, se
from gpytorch.kernels import LinearKernel, MaternKernel

import botorch_delay as bd
from botorch_delay.exceptions import InputError, KernelWarning, StorageError
from botorch_delay.optimizers.config import BPEConfig

POINTS = scattered(30)
BOX = bd.BoxDomain(torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.double))
LISTS = bd.Space(kind=bd.Choice(["a", "b", "c"]), size=bd.Int(1, 9))
MIXED = bd.Space(kind=bd.Choice(["a", "b", "c"]), size=bd.Float(1.0, 9.0))
GIVEN = {"covar_module": se(), "noise_var": 0.01}
BOUNDS = {"confidence": bd.RKHSConfidence(1.0, 0.1)}


def finite():
    return bd.FiniteDomain(POINTS)


OPTIMIZERS = {
    "BPE": lambda: bd.BPEDelayOptimizer(finite(), 20, delay=bd.ConstantDelay(2), maximize=False),
    "BPE, learned": lambda: bd.BPEDelayOptimizer(BOX, None, rounds=bd.GeometricRounds(2, 2.0)),
    "BPE, rule": lambda: bd.BPEDelayOptimizer(
        finite(), 20, exploit=bd.Exploit(bd.ThompsonSampling(), repeat_pending=False), **GIVEN
    ),
    "published": lambda: bd.BPEDelayOptimizer.as_published(
        finite(), 20, delay=bd.PoissonDelay(2.0), **GIVEN, **BOUNDS
    ),
    "guaranteed": lambda: bd.BPEDelayOptimizer.guaranteed(
        finite(), 20, norm_bound=1.0, noise_std=0.1, **GIVEN
    ),
    "index": lambda: bd.AcquisitionOptimizer(
        finite(), rule=bd.UCB(2.0), pending=bd.Censor(-1.0), repeat_pending=False
    ),
    "threds": lambda: bd.ThreDSOptimizer(BOX, interval=(-1.0, 2.0), patience=3, **GIVEN, **BOUNDS),
    "random": lambda: bd.RandomOptimizer(finite(), horizon=9, covar_module=se(), exact=True),
    "queued": lambda: bd.QueuedOptimizer(bd.AcquisitionOptimizer(finite(), **GIVEN)),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_load_makes_the_optimizer_from_its_description(name, tmp_path):
    opt = OPTIMIZERS[name]()
    opt.save(tmp_path / "study.db")
    again = bd.load(tmp_path / "study.db")
    assert type(again) is type(opt)
    stored = opt.state_dict()["config"]
    assert json.loads(json.dumps(stored)) == stored
    assert again.state_dict()["config"] == stored


def test_a_config_has_the_arguments_of_the_constructor():
    names = {field.name for field in fields(BPEConfig)}
    taken = inspect.signature(bd.BPEDelayOptimizer).parameters.keys()
    assert names == {*taken, "as_published"}


def test_published_rounds_count_the_whole_domain_also_after_loading(tmp_path):
    opt = OPTIMIZERS["published"]()
    opt.save(tmp_path / "study.db")
    assert bd.load(tmp_path / "study.db")._config.as_published


def test_the_kernel_is_a_copy():
    kernel = se(0.4)
    opt = bd.BPEDelayOptimizer(finite(), 20, covar_module=kernel, noise_var=0.01)
    kernel.lengthscale = 3.0
    record = opt.state_dict()["config"]["covar_module"]
    assert record["hyperparameters"]["lengthscale"] == pytest.approx(0.4)


def test_defaults_depend_on_what_is_given():
    def shares(domain=None, horizon=20, **options):
        config = bd.BPEDelayOptimizer(domain or finite(), horizon, **options)._config
        return config.explore_fraction, config.evidence, config.final_fraction

    assert shares() == (0.005, "all", 0.2)
    assert shares(BOX) == (0.005, "all", 0.25)
    assert shares(BOX, exploit=bd.UCB(2.0)) == (0.005, "all", 0.0)
    assert shares(LISTS) == (0.005, "all", 0.2)
    assert shares(LISTS, exploit=bd.UCB(6.0)) == (0.005, "all", 0.2)
    assert shares(MIXED) == (0.005, "all", 0.25)
    assert shares(exact=True) == (0.005, "all", 0.0)
    assert shares(**GIVEN) == (0.005, "all", 0.0)
    assert shares(**GIVEN, **BOUNDS) == (0.005, "round", 0.0)
    assert shares(**GIVEN, **BOUNDS, exploit=bd.WithinBudget()) == (1.0, "round", 0.0)
    assert shares(exploit=None) == (1.0, "round", 0.0)
    assert shares(**GIVEN, delay=bd.NoDelay()) == (1.0, "round", 0.0)
    assert shares(horizon=None, rounds=bd.GeometricRounds(1, 2.0)) == (0.005, "all", 0.0)


def test_the_learned_rule_explores_more_on_lists_of_points_and_values():
    for domain, beta in ((finite(), 6.0), (LISTS, 6.0), (MIXED, 2.0), (BOX, 2.0)):
        assert bd.BPEDelayOptimizer(domain, 20)._config.rule == bd.UCB(beta)
    assert bd.BPEDelayOptimizer(BOX, 20, **GIVEN)._config.rule == bd.UCB(6.0)


def test_the_guaranteed_mode_claims_its_bound():
    options = GIVEN | {"norm_bound": 1.0, "noise_std": 0.1}
    on_set = bd.BPEDelayOptimizer.guaranteed(finite(), 200, **options)
    assert on_set.guarantee.holds
    assert on_set.guarantee.factor == 1.25
    assert on_set.certificate.regret == 0.0
    on_box = bd.BPEDelayOptimizer.guaranteed(BOX, 200, **options, maximize=False)
    assert on_box.guarantee.holds
    assert on_box.guarantee.factor == pytest.approx(10**0.5)
    assert not on_box.maximize
    with pytest.raises(InputError, match="pass covar_module"):
        bd.BPEDelayOptimizer.guaranteed(
            finite(), 20, covar_module=None, noise_var=None, norm_bound=1.0, noise_std=0.1
        )


def test_there_are_no_other_parts_to_load_with(tmp_path):
    bd.RandomOptimizer(finite()).save(tmp_path / "study.db")
    for make in (bd.load, lambda path, **parts: bd.editing(path, **parts).__enter__()):
        with pytest.raises(TypeError, match="'kernel'"):
            make(tmp_path / "study.db", kernel=se())


@pytest.mark.parametrize("name", ["explore_fraction", "covar_module", "confidence", "rounds"])
def test_a_state_of_another_configuration_is_refused(name):
    options = {
        "explore_fraction": 0.3,
        "covar_module": se(0.6),
        "confidence": bd.FixedBeta(2.0),
        "rounds": bd.GeometricRounds(2, 1.5),
    }
    stored = bd.BPEDelayOptimizer(finite(), 20, **GIVEN).state_dict()
    other = bd.BPEDelayOptimizer(finite(), 20, **GIVEN | {name: options[name]})
    with pytest.raises(StorageError, match=f"was made with {name}"):
        other.load_state_dict(stored)


class OfLogarithms(MaternKernel):
    def forward(self, x1, x2, **options):
        return super().forward(x1.log(), x2.log(), **options)


ENDS = torch.tensor([[1e-3], [1.0]], dtype=torch.double)
PER_OPTION = MaternKernel(active_dims=[0]) * CategoricalKernel(active_dims=[1])


@pytest.mark.parametrize(
    ("domain", "kernel", "said"),
    [
        (bd.BoxDomain(ENDS, log_dims=[0]), se(0.02), "the numbers of x0 without their logarithm. "),
        (bd.BoxDomain(ENDS, log_dims=[0]), OfLogarithms(), None),
        (bd.BoxDomain(ENDS, log_dims=[0]), LinearKernel(), None),
        (bd.BoxDomain(ENDS), se(0.02), None),
        (bd.FiniteDomain(ENDS, log_dims=[0]), se(), "the numbers of x0 without their logarithm. "),
        (MIXED, se(), "the options of kind as numbers, in order. "),
        (bd.Space(size=bd.Float(1, 9), kind=bd.Choice(["a", "b", "c"])), PER_OPTION, None),
        (bd.Space(size=bd.Float(1, 9), kind=bd.Choice(["a", "b"])), se(), None),
        (
            bd.Space.grid(rate=bd.Float(1, 9, log=True, round=1), kind=bd.Choice(list("abcd"))),
            se(2.0),
            "the numbers of rate without their logarithm and the options of kind as numbers, ",
        ),
    ],
)
def test_a_kernel_that_misses_logarithms_or_categories_is_told(domain, kernel, said):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", KernelWarning)
        bd.AcquisitionOptimizer(domain, covar_module=kernel.double(), noise_var=0.01)
    assert [warning.filename for warning in caught] == [__file__] * (said is not None)
    if said is not None:
        assert f"covar_module sees {said}" in str(caught[0].message)
