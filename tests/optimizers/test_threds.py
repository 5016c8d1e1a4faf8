import math

import numpy as np
import pytest
import torch
from cases import KERNELS, generator, normal, rows_of, scattered, se
from oracle import kernel_function
from rivals import threds
from scale import some

import botorch_delay as bd
from botorch_delay.benchmarks import FiniteProblem, paper_problem, simulate
from botorch_delay.exceptions import (
    EmptyDomainError,
    InputError,
    InputTypeError,
)
from botorch_delay.optimizers import threds as module

NOISE = 0.02


def make(n=40, **options):
    options = {
        "covar_module": se(),
        "noise_var": NOISE,
        "confidence": bd.FixedBeta(4.0),
        "interval": (-2.0, 2.0),
    } | options
    return bd.ThreDSOptimizer(bd.FiniteDomain(scattered(n)), **options)


@pytest.mark.parametrize("seed", some(range(20), 3))
def test_asks_equal_a_dense_transcription(seed):
    mean_delay = 0 if seed % 3 == 1 else 5
    kernel = KERNELS[sorted(KERNELS)[seed % len(KERNELS)]]().requires_grad_(False)
    asks, sign = 60, -1.0 if seed % 3 == 2 else 1.0
    points, f = scattered(40, seed=seed), normal(40, seed=seed)
    noise = 0.1 * normal(asks, seed=100 + seed)
    delays = torch.poisson(torch.full((asks,), float(mean_delay)), generator=generator(seed))
    k = kernel_function(kernel)
    if seed % 2:
        confidence = bd.FixedBeta(4.0)

        def half_width(X, sigma):
            return 2.0 * sigma
    else:
        confidence = bd.RKHSConfidence(1.2, 0.1)

        def half_width(X, sigma):
            gain = 0.5 * np.linalg.slogdet(np.eye(len(X)) + k(X, X) / NOISE)[1]
            return (1.2 + 0.1 / math.sqrt(NOISE) * math.sqrt(2 * (gain + math.log(10)))) * sigma

    interval = (-1.0, 2.5)
    opt = bd.ThreDSOptimizer(
        bd.FiniteDomain(points),
        covar_module=kernel,
        noise_var=NOISE,
        confidence=confidence,
        interval=tuple(sorted(sign * end for end in interval)),
        patience=8,
        maximize=sign > 0,
    )
    problem = FiniteProblem(points, sign * f, 0.1)
    played = simulate(opt, problem, None, asks, delays=delays.long(), noise=sign * noise)
    expected = threds(
        k,
        points.numpy(),
        f.numpy(),
        asks=asks,
        delays=delays.numpy(),
        noise=noise.numpy(),
        noise_var=NOISE,
        half_width=half_width,
        interval=interval,
        patience=8,
    )
    assert rows_of(played).tolist() == expected
    if not mean_delay:
        assert opt.trials[-1].round > 1  # decisions were made, not only asks


def test_the_domain_shrinks_towards_the_maximiser():
    problem = paper_problem(1.0, seed=1, side=16)
    opt = bd.ThreDSOptimizer(
        problem.domain,
        covar_module=problem.covar_module,
        noise_var=4e-4,
        confidence=bd.FixedBeta(6.0),
        interval=(-3.0, 3.0),
    )
    history = simulate(opt, problem, bd.NoDelay(), steps=800, seed=0)
    late = [trial for trial in opt.trials if trial.round == opt.trials[-1].round]
    rows = torch.tensor([trial.index for trial in late]).unique()
    assert len(rows) < 10
    assert (problem.highest - problem.values[rows]).min() < 0.05
    low, high = opt._search.a, opt._search.b
    assert low - 0.05 <= problem.values.max().item() <= high + 0.05
    assert history.regret[-1] - history.regret[560] < 0.1 * history.regret[560]
    assert [trial.round for trial in opt.trials] == sorted(trial.round for trial in opt.trials)
    assert not opt.guarantee.holds


def test_the_norm_bound_gives_the_first_interval():
    opt = make(interval=None, confidence=bd.RKHSConfidence(3.0, 0.1))
    assert (opt._search.a, opt._search.b) == (-3.0, 3.0)


def test_failures_do_not_stop_it():
    opt = make(n=6, patience=3)
    for number in range(60):
        try:
            trial = opt.ask()
        except EmptyDomainError:
            break
        if trial.index == 2:
            opt.tell(trial, 0.3 + 0.01 * number)
        else:
            opt.mark_failed(trial)
    assert opt.trials[-1].index == 2
    only = make(n=2)
    for _ in range(6):
        only.mark_failed(only.ask())
    with pytest.raises(EmptyDomainError, match="None of the 2 points"):
        only.ask()


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"covar_module": None}, InputError, "needs covar_module and noise_var"),
        ({"confidence": 2.0}, InputTypeError, "FixedBeta"),
        ({"interval": None}, InputError, "interval must be given"),
        ({"interval": 3.0}, InputTypeError, "two numbers"),
        ({"interval": (1.0, 1.0)}, InputError, "must increase"),
        ({"interval": (0.0, math.inf)}, InputError, "finite"),
        ({"patience": 0}, InputError, "at least 1"),
        ({"delta": 1.0}, InputError, "between 0 and 1"),
    ],
)
def test_bad_arguments(change, error, message):
    with pytest.raises(error, match=message):
        make(**change)


UNIT = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.double)


def on_a_box(asks=0):
    options = {"covar_module": se(), "noise_var": NOISE, "confidence": bd.FixedBeta(4.0)}
    opt = bd.ThreDSOptimizer(bd.BoxDomain(UNIT), interval=(-2.0, 2.0), patience=4, **options)
    for _ in range(asks):
        trial = opt.ask()
        opt.tell(trial, -(trial.x - 0.3).square().sum().item())
    return opt


def test_points_are_copied_to_the_host_together(monkeypatch):
    """One by one, each of thousands of copies would wait for the device."""
    copies, copy_to_host = [], torch.Tensor.cpu

    def noted(tensor):
        copies.append(tuple(tensor.shape))
        return copy_to_host(tensor)

    few, many = on_a_box(5).state_dict(), on_a_box(40).state_dict()
    loaded = on_a_box()
    monkeypatch.setattr(torch.Tensor, "cpu", noted)
    make(n=300)
    on_a_box()
    assert copies.count((2,)) == 0
    counts = []
    for state in (few, many):
        copies.clear()
        loaded.load_state_dict(state)
        counts.append(sum(len(shape) > 1 for shape in copies))  # a trial's point is on the host
    assert counts[0] == counts[1]


def test_on_a_box_a_point_that_the_spread_lacks_closes_no_other(monkeypatch):
    opt = on_a_box()
    for _ in range(3):
        opt.mark_failed(opt.ask())
    opt.ask()  # another point: this one is infeasible
    spread = module.spread_points
    monkeypatch.setattr(module, "spread_points", lambda *a: spread(*a) * (1.0 - 1e-15))
    again = on_a_box()
    again.load_state_dict(opt.state_dict())  # as if logarithms were rounded otherwise
    assert again._feasibility.unavailable()
    assert len(again._candidates()) == len(again._points)


def test_on_a_box_failures_count_by_point_also_after_loading():
    opt = on_a_box(10)
    trial = opt.ask()
    opt.mark_failed(trial)
    again = on_a_box()
    again.load_state_dict(opt.state_dict())
    asked = []
    for other in (opt, again):
        for _ in range(2):
            assert torch.equal(other.ask().x, trial.x)
            other.mark_failed(other.trials[-1])
        asked.append([other.ask().x.tolist() for _ in range(3)])
        assert trial.x.tolist() not in asked[-1]
    assert asked[0] == asked[1]


def on_device(domain, kernel):
    options = {"noise_var": NOISE, "confidence": bd.FixedBeta(4.0), "interval": (-2.0, 2.0)}
    return bd.ThreDSOptimizer(domain, covar_module=kernel, patience=4, **options)


@pytest.mark.cuda
def test_on_cuda_it_asks_the_same_points():
    points = scattered(60)
    cpu = on_device(bd.FiniteDomain(points), se())
    cuda = on_device(bd.FiniteDomain(points.cuda()), se().cuda())
    for _ in range(12):
        trials = cpu.ask(), cuda.ask()
        assert trials[0].index == trials[1].index
        assert trials[1].x.device.type == "cuda"
        for opt, trial in zip((cpu, cuda), trials, strict=True):
            opt.tell(trial, -(points[trial.index] - 0.3).square().sum().item())


@pytest.mark.cuda
def test_on_cuda_a_box_goes_on_where_it_was():
    opt, again = (on_device(bd.BoxDomain(UNIT.cuda()), se().cuda()) for _ in range(2))
    for _ in range(12):
        trial = opt.ask()
        opt.tell(trial, -(trial.x - 0.3).square().sum().item())
    opt.mark_failed(opt.ask())
    again.load_state_dict(opt.state_dict())
    assert [t.x.tolist() for t in again.ask(2)] == [t.x.tolist() for t in opt.ask(2)]
