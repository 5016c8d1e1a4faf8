import math

import pytest
import torch
from cases import generator, se
from scipy import stats

import botorch_delay as bd
from botorch_delay.delays import check_delays
from botorch_delay.exceptions import (
    BotorchDelayError,
    InputError,
    InputTypeError,
    NotSupportedError,
)

LAWS = [
    bd.NoDelay(),
    bd.ConstantDelay(5),
    bd.PoissonDelay(0.0),
    bd.PoissonDelay(3.5),
    bd.PoissonDelay(50.0),
    bd.GeometricDelay(mean=0.0),
    bd.GeometricDelay(mean=0.7),
    bd.GeometricDelay(mean=20.0),
]


def survival(law: bd.DelayLaw, u: int) -> float:
    """P(tau > u) by scipy or by hand."""
    if isinstance(law, bd.PoissonDelay):
        return float(stats.poisson.sf(u, law.mean))
    if isinstance(law, bd.GeometricDelay) and law.mean > 0:
        return float(stats.geom.sf(u + 1, 1 / (1 + law.mean)))
    return float(u < law.mean)


@pytest.mark.parametrize("law", LAWS, ids=repr)
@pytest.mark.parametrize("horizon", [1, 300, 100_000])
@pytest.mark.parametrize("delta", [0.5, 0.1, 1e-6, 1e-14])
def test_upper_bound_is_the_smallest_that_keeps_the_promise(law, horizon, delta):
    u = law.upper_bound(horizon, delta)
    assert u == int(u) >= 0
    assert horizon * survival(law, int(u)) <= delta / 2 * (1 + 1e-9)
    if u > 0:
        assert horizon * survival(law, int(u) - 1) > delta / 2


@pytest.mark.parametrize("law", LAWS, ids=repr)
@pytest.mark.parametrize("p", [0.01, 0.5, 0.9, 0.999])
def test_quantile_is_the_smallest_that_reaches_p(law, p):
    u = int(law.quantile(p))
    assert 1 - survival(law, u) >= p - 1e-12
    if u > 0:
        assert 1 - survival(law, u - 1) < p


@pytest.mark.parametrize("law", LAWS, ids=repr)
def test_samples_follow_the_law_and_the_generator(law):
    n = 20_000
    sample = law.sample(n, generator(1))
    assert sample.dtype == torch.int64
    assert sample.shape == (n,)
    assert sample.min() >= 0
    assert torch.equal(sample, law.sample(n, generator(1)))
    deviation = sample.double().std().item() / math.sqrt(n)
    assert abs(sample.double().mean().item() - law.mean) <= 4 * deviation + 1e-12
    for u in (0, int(law.mean), int(2 * law.mean)):
        share = (sample > u).double().mean().item()
        expected = survival(law, u)
        assert abs(share - expected) <= 4 * math.sqrt(expected * (1 - expected) / n) + 1e-12


def test_figures_of_the_reference(finite):
    given = finite["upper_bound"]
    arguments = {key: given[key] for key in ("mean", "xi", "b")}
    ours = bd.SubExponentialDelay(**arguments).upper_bound(given["horizon"], given["delta"])
    paper = bd.SubExponentialDelay(**arguments, paper_min=True)
    assert ours == pytest.approx(given["default_max"], rel=1e-12)
    assert paper.upper_bound(given["horizon"], given["delta"]) == pytest.approx(
        given["paper_min"], rel=1e-12
    )
    assert bd.PoissonDelay(50.0).upper_bound(1000, 0.1) == 80


def test_the_paper_s_minimum_fails_and_the_maximum_holds():
    # 4,000 runs, T = 1000, delta = 0.1: at most 5 % of runs may have a delay above the bound.
    delays = bd.PoissonDelay(50.0).sample(4_000 * 1_000, generator(7)).reshape(4_000, 1_000)
    worst = delays.max(dim=1).values.double()
    shares = {}
    for paper_min in (False, True):
        law = bd.SubExponentialDelay(50.0, xi=9.0, b=1.0, paper_min=paper_min)
        shares[paper_min] = (worst > law.upper_bound(1000, 0.1)).double().mean().item()
    exact = (worst > bd.PoissonDelay(50.0).upper_bound(1000, 0.1)).double().mean().item()
    assert shares[False] <= 0.05
    assert shares[True] > 0.9
    assert exact <= 0.05


def test_a_family_cannot_be_sampled():
    law = bd.SubExponentialDelay(5.0, xi=2.0, b=1.0)
    with pytest.raises(NotSupportedError, match="family"):
        law.sample(3, generator(0))
    with pytest.raises(NotSupportedError, match="upper_bound"):
        law.quantile(0.5)


@pytest.mark.parametrize(
    "make",
    [
        lambda: bd.ConstantDelay(-1),
        lambda: bd.ConstantDelay(2.5),
        lambda: bd.ConstantDelay(math.inf),
        lambda: bd.PoissonDelay(-1.0),
        lambda: bd.PoissonDelay(math.nan),
        lambda: bd.GeometricDelay(mean=math.inf),
        lambda: bd.GeometricDelay(mean=1e300),
        lambda: bd.SubExponentialDelay(mean=1.0, xi=1e300, b=1.0),
        lambda: bd.SubExponentialDelay(mean=1.0, xi=1.0, b=1e300),
        lambda: bd.PoissonDelay(1e16),
        lambda: bd.SubExponentialDelay(-1.0, 9.0, 1.0),
        lambda: bd.SubExponentialDelay(1.0, 0.0, 1.0),
        lambda: bd.SubExponentialDelay(1.0, 9.0, math.nan),
        lambda: bd.PoissonDelay("5"),
        lambda: bd.PoissonDelay(5.0).upper_bound(0, 0.1),
        lambda: bd.PoissonDelay(5.0).upper_bound(10.5, 0.1),
        lambda: bd.PoissonDelay(5.0).upper_bound(10, 1.0),
        lambda: bd.PoissonDelay(5.0).quantile(0.0),
        lambda: bd.SubExponentialDelay(1.0, 9.0, 1.0).upper_bound(0, 0.1),
        lambda: bd.ConstantDelay(5).sample(3, None),
        lambda: bd.PoissonDelay(5.0).sample(3, None),
        lambda: bd.GeometricDelay(5.0).sample(3, None),
    ],
)
def test_bad_arguments(make):
    with pytest.raises(BotorchDelayError):
        make()


def test_a_law_known_by_its_quantile_promises_no_more_than_it_can():
    class Uniform(bd.DelayLaw):
        mean = 4.5

        def sample(self, n, generator):
            return torch.randint(10, (n,), generator=generator)

        def quantile(self, p):
            return float(math.ceil(10 * p) - 1)

    assert Uniform().upper_bound(100, 0.1) == 9
    with pytest.raises(InputError, match="larger delta"):
        Uniform().upper_bound(10**6, 1e-12)


def test_a_law_that_lacks_its_quantile_says_what_to_define():
    class Unfinished(bd.DelayLaw):
        mean = 4.5

    with pytest.raises(NotSupportedError, match="has no quantile; define quantile, or upper_bound"):
        Unfinished().upper_bound(100, 0.1)


def test_a_bound_that_is_no_number_of_steps_is_refused():
    class Forgetful(bd.DelayLaw):
        mean = 1.0

        def upper_bound(self, horizon, delta):
            pass

    points = bd.FiniteDomain(torch.eye(3, dtype=torch.double))
    options = {"covar_module": se(), "noise_var": 1e-2, "confidence": bd.FixedBeta(2.0)}
    with pytest.raises(InputTypeError, match=r"Forgetful.upper_bound must be a number, got None"):
        bd.BPEDelayOptimizer.as_published(points, 20, delay=Forgetful(), **options)


def test_a_promise_far_below_the_resolution_of_the_tail_is_kept():
    u = bd.PoissonDelay(20.0).upper_bound(1000, 1e-14)
    assert 1000 * stats.poisson.sf(u, 20.0) <= 0.5e-14
    assert 1000 * stats.poisson.sf(u - 1, 20.0) > 0.5e-14


def test_given_delays_are_checked():
    assert check_delays(torch.tensor([0.0, 3.0]), 2).tolist() == [0, 3]
    for bad in ([-1, 2], [0.5, 1.0], [math.inf, 0.0], [math.nan, 0.0]):
        with pytest.raises(InputError, match="number 1"):
            check_delays(torch.tensor(bad), 2)
    with pytest.raises(InputError, match="numbers, got str"):
        check_delays("soon", 2)
    with pytest.raises(InputError, match=r"shape \(3,\), got \(2,\)"):
        check_delays(torch.tensor([1, 2]), 3)


@pytest.mark.parametrize("law", [bd.PoissonDelay(2.0**53), bd.GeometricDelay(2.0**53)])
def test_the_longest_mean_gives_whole_delays(law):
    sample = law.sample(100, generator(0))
    assert sample.dtype == torch.int64
    assert int(sample.min()) >= 0
    assert abs(law.quantile(0.5) / law.mean - 0.85) < 0.16
