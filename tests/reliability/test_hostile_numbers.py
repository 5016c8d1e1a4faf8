"""Problems at the edge of what floating point can tell apart."""

from __future__ import annotations

import math
import random
import warnings

import pytest
import torch
from botorch.exceptions.warnings import InputDataWarning
from cases import generator
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel

import botorch_delay as bd
from botorch_delay.exceptions import (
    EmptyDomainError,
    FitWarning,
    HorizonError,
    InputError,
    NumericsWarning,
    OutlierWarning,
    RefutedWarning,
)

pytestmark = pytest.mark.reliability


def uniform(rng, low, high):
    """A number whose logarithm is uniform."""
    return 10.0 ** rng.uniform(math.log10(low), math.log10(high))


def make_points(rng, seed, dtype):
    """A list of points, distinct in its dtype, and their spacing."""
    d = rng.choice([1, 1, 2, 3, 10, 50])
    n = rng.choice([1, 2, 3, 10, 40, 120])
    X = torch.rand(n, d, dtype=torch.double, generator=generator(seed))
    kind = rng.choice(["plain", "plain", "far", "close", "tiny"])
    if kind == "far":
        X = X * uniform(rng, 1e-3, 1e6) + uniform(rng, 1.0, 1e6) * rng.choice([-1, 0, 1])
    elif kind == "close":  # 1e-12 apart
        X = torch.cat([X, X[: max(n // 4, 1)] + 1e-12])
    elif kind == "tiny":
        X = X * 1e-9
    X = torch.unique(X.to(dtype), dim=0)
    spacing = float((X.amax(dim=0) - X.amin(dim=0)).max()) / max(len(X), 2) or 1.0
    return X, spacing


def make_kernel(rng, d, spacing, dtype):
    """A kernel whose lengthscales are 1e-6 to 1e6 of the spacing."""
    base = rng.choice([RBFKernel, MaternKernel])
    options = {} if base is RBFKernel else {"nu": rng.choice([0.5, 1.5, 2.5])}
    kernel = base(**options).to(dtype)
    scales = spacing * uniform(rng, 1e-6, 1e6)
    if rng.random() < 0.3 and d > 1:
        kernel = base(ard_num_dims=d, **options).to(dtype)
        scales = [spacing * uniform(rng, 1e-6, 1e6) for _ in range(d)]
    # Without GPyTorch's transform, which cannot express very small numbers in single precision.
    kernel.lengthscale = torch.tensor(scales, dtype=dtype)
    if rng.random() < 0.2:
        kernel = ScaleKernel(kernel).to(dtype)
        kernel.outputscale = uniform(rng, 1e-6, 1e6)
    return kernel


def make_values(rng, dtype):
    """A function from an answer's number to its value."""
    kind = rng.choice(["normal", "normal", "constant", "two", "wild", "offset"])
    size = uniform(rng, 1e-150, 1e150) if dtype is torch.double else uniform(rng, 1e-15, 1e15)
    if kind == "constant":
        return lambda: size
    if kind == "two":
        return lambda: rng.choice([0.0, size])
    if kind == "wild":  # every size at once
        return lambda: rng.choice([-1.0, 1.0]) * size ** rng.uniform(0.0, 1.0)
    if kind == "offset":
        return lambda: size * (1.0 + 1e-9 * rng.gauss(0.0, 1.0))
    return lambda: size * max(min(rng.gauss(0.0, 0.3), 1.0), -1.0)


def make(rng, seed):
    """An optimizer on such a problem."""
    dtype = torch.float32 if rng.random() < 0.2 else torch.double
    points, spacing = make_points(rng, seed, dtype)
    d = points.shape[1]
    domain = bd.FiniteDomain(points)
    on_box = rng.random() < 0.2 and d <= 2 and len(points) > 1  # more dimensions take long
    if on_box and bool((points.amax(dim=0) > points.amin(dim=0)).all()):
        domain = bd.BoxDomain(torch.stack([points.amin(dim=0), points.amax(dim=0)]))
    options = {"seed": seed, "maximize": rng.random() < 0.5}
    learned = rng.random() < 0.2
    if not learned:
        options["covar_module"] = make_kernel(rng, d, spacing, dtype)
        options["noise_var"] = uniform(rng, 1e-10, 1e3)
    horizon = rng.choice([1, 2, 3, 10, 15])
    method = rng.choice(["bpe", "bpe", "bpe", "published", "bucb", "thompson", "random", "queued"])
    if method == "published" and not learned and isinstance(domain, bd.FiniteDomain):
        return bd.BPEDelayOptimizer.as_published(
            domain,
            horizon,
            confidence=bd.RKHSConfidence(uniform(rng, 1e-6, 1e6), uniform(rng, 1e-6, 1e3)),
            delay=rng.choice([bd.NoDelay(), bd.PoissonDelay(3.0)]),
            **options,
        )
    if method in ("bpe", "published"):
        if not learned and rng.random() < 0.4:
            norm, noise = uniform(rng, 1e-6, 1e6), uniform(rng, 1e-6, 1e3)
            options["confidence"] = bd.RKHSConfidence(norm, noise)
        if rng.random() < 0.3:
            options["exploit"] = None
        return bd.BPEDelayOptimizer(domain, horizon, **options)
    if method == "thompson" and not learned:
        options["rule"] = bd.ThompsonSampling()
    if method == "random":
        return bd.RandomOptimizer(domain, horizon=horizon, **options)
    optimizer = bd.AcquisitionOptimizer(domain, horizon=horizon, **options)
    if method == "queued" and isinstance(domain, bd.FiniteDomain):
        return bd.QueuedOptimizer(optimizer)
    return optimizer


def play(rng, opt, value):
    """Until the horizon; everything that is handed out is a point and a number."""
    for _ in range(opt.horizon):
        try:
            trial = opt.ask()
        except EmptyDomainError:
            return
        assert bool(torch.isfinite(trial.x).all())
        assert bool(opt.domain.contains(trial.x.unsqueeze(0)))
        for late in opt.pending[: -rng.choice([1, 2, 4])]:
            if rng.random() < 0.05:
                opt.mark_failed(late)
            else:
                noise_var = uniform(rng, 1e-10, 1e3) if rng.random() < 0.1 else None
                opt.tell(late, value(), noise_var)
    with pytest.raises(HorizonError):
        opt.ask()
    for late in opt.pending:
        opt.tell(late, value())
    if any(trial.value is not None for trial in opt.trials):
        best = opt.recommend()
        assert math.isfinite(best.mean)
        assert best.lower <= best.mean <= best.upper
        assert bool(torch.isfinite(best.x).all())
        assert len(opt.active_set) > 0 if hasattr(opt, "active_set") and best.index else True


def trial_of_one(seed):
    """What a problem led to: the number of warnings that accuracy was lost."""
    rng = random.Random(seed)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        opt = make(rng, seed)
        play(rng, opt, make_values(rng, opt.domain.like.dtype))
    known = (NumericsWarning, InputDataWarning, FitWarning, OutlierWarning, RefutedWarning)
    assert all(issubclass(w.category, known) for w in caught), [str(w.message) for w in caught]
    return sum(issubclass(w.category, NumericsWarning) for w in caught)


def test_random_problems(scale, figures):
    warned = problems = 0
    failures = []
    for seed in range(scale.problems):
        try:
            count = trial_of_one(seed)
            assert count <= 1, f"{count} warnings"
            warned += count
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            failures.append(f"{seed}: {type(error).__name__}: {str(error)[:300]}")
        problems += 1
    assert failures == []
    figures("Hostile numbers", problems=problems, warnings_of_lost_accuracy=warned)


@pytest.mark.parametrize(
    ("what", "value"),
    [
        ("noise_var", 0.0),
        ("noise_var", 1e-300),
        ("noise_var", 1e300),
        ("noise_var", math.nan),
        ("y", 1e200),
        ("y", -1e200),
        ("y", math.inf),
        ("y", math.nan),
        ("points", math.nan),
        ("points", math.inf),
        ("horizon", 0),
        ("seed", -1),
    ],
)
def test_beyond_that_range_there_is_a_clear_error(what, value, figures):
    def make_and_tell():
        given = {"noise_var": 0.1, "horizon": 5, "seed": 0, "y": 0.5} | {what: value}
        points = torch.rand(5, 2, dtype=torch.double, generator=generator(0))
        if what == "points":
            points[2, 1] = value
        opt = bd.BPEDelayOptimizer(
            bd.FiniteDomain(points),
            given["horizon"],
            covar_module=RBFKernel().double(),
            noise_var=given["noise_var"],
            seed=given["seed"],
        )
        opt.tell(opt.ask(), given["y"])

    with pytest.raises(InputError, match=what):
        make_and_tell()
    figures("Hostile numbers", refused=1)
