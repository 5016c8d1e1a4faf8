"""The posterior of an answered design, against a factorization."""

from dataclasses import fields

import pytest
import torch
from cases import line
from gpytorch.kernels import MaternKernel

import botorch_delay as bd
from botorch_delay.design import greedy as design_module
from botorch_delay.design.greedy import GreedyDesign
from botorch_delay.elimination import search_space
from botorch_delay.gp.posterior import Evidence, posterior_at

NOISE = 4e-3


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(design_module, "BLOCK", 7)


def grid(side):
    return torch.cartesian_prod(line(side).flatten(), line(side).flatten())


def matern():
    kernel = MaternKernel(nu=2.5).double()
    kernel.lengthscale = 0.4
    return kernel.requires_grad_(False)


def answered(points, picks, noise_var=NOISE, seed=0):
    generator = torch.Generator().manual_seed(seed)
    y = torch.randn(len(picks), dtype=torch.double, generator=generator)
    group = torch.tensor(picks)
    return Evidence.grouped(points[group], y, torch.full_like(y, noise_var), group)


@pytest.mark.parametrize("weights", [False, True])
@pytest.mark.parametrize("n", [8, 60, 200])
def test_it_is_the_posterior_of_a_factorization(n, weights):
    points = grid(9)
    design = GreedyDesign(matern(), points, NOISE)
    picks = design.extend(n)
    evaluated = design.evaluated()
    design.extend(30)  # which folds, and must leave what was handed out as it is
    evidence = answered(points, picks)
    found = evaluated.posterior(evidence, weights=weights)
    expected = posterior_at(matern(), evidence, points, weights=weights)
    exact = {"mean", "variance", "prior", "noise_norm", "penalty"}
    for name in exact:
        torch.testing.assert_close(
            getattr(found, name), getattr(expected, name), rtol=1e-9, atol=1e-11
        )
    assert {f.name for f in fields(found)} - exact == {"rounding", "mean_rounding"}
    assert (found.rounding > 0).all()
    assert ((found.mean - expected.mean).abs() <= found.mean_rounding + 1e-15).all()


def test_other_answers_are_not_taken_for_those_of_the_design():
    points = grid(9)
    design = GreedyDesign(matern(), points, NOISE)
    picks = design.extend(40)
    evaluated = design.evaluated()
    assert evaluated.posterior(answered(points, picks), weights=False) is not None
    for evidence in (
        answered(points, picks[:-1]),
        answered(points, [*picks, picks[0]]),
        answered(points, picks, noise_var=2 * NOISE),
        answered(points + 1e-9, picks),
    ):
        assert evaluated.posterior(evidence, weights=False) is None


def test_no_covariance_no_posterior():
    design = GreedyDesign(matern(), grid(9), NOISE)
    design.extend(3)
    assert design.evaluated() is None


@pytest.mark.parametrize("exploit", [None, bd.UCB(4.5)])
@pytest.mark.parametrize("confidence", [bd.FixedBeta(6.0), bd.RKHSConfidence(2.0, NOISE**0.5)])
def test_a_run_with_many_points_eliminates_the_same(monkeypatch, exploit, confidence):
    def play(most):
        monkeypatch.setattr(search_space, "MAX_FACTORIZED", most)
        points = grid(7)
        opt = bd.BPEDelayOptimizer(
            bd.FiniteDomain(points),
            300,
            covar_module=matern(),
            noise_var=NOISE,
            confidence=confidence,
            exploit=exploit,
            explore_fraction=1.0 if exploit is None else 0.3,
        )
        generator = torch.Generator().manual_seed(1)
        waiting = []
        for _ in range(300):
            waiting.append(opt.ask())
            if len(waiting) > 5:
                trial = waiting.pop(0)
                noise = NOISE**0.5 * torch.randn((), generator=generator, dtype=torch.double)
                opt.tell(trial, torch.sin(5 * trial.x).sum() + noise)
        return opt

    quick, slow = play(0), play(10**9)
    assert len(quick.rounds) > 1
    assert torch.equal(quick.eliminated, slow.eliminated)
    for one, other in zip(quick.rounds, slow.rounds, strict=True):
        assert one.cutoff == pytest.approx(other.cutoff, abs=1e-8)
