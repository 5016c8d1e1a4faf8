"""No certificate is exceeded: nine ways to choose points, and functions that hide from each.

f has exactly the norm that is claimed, and is hidden from a first design. The noise is Gaussian,
takes two equally likely values, or two of which the one that matters is rare, all at the edge of
their sub-Gaussian scale. Answers that favour the maximiser come late or never. After the run f is
replaced by another function of the same norm with the same answers, whose maximum lies where they
tell least: the proof is about the noise alone, so certificates must hold for that function as well.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable

import pytest
import torch
from adversaries import FUNCTIONS, NORM, Space
from botorch.acquisition.analytic import LogExpectedImprovement
from cases import generator, scattered, se, with_values
from gpytorch.kernels import MaternKernel
from torch import Generator, Tensor

import botorch_delay as bd
from botorch_delay.gp.kernels import covariance
from botorch_delay.optimizers.base import Optimizer

pytestmark = pytest.mark.reliability

N, ASKS, LATE, DELTA = 40, 60, 15, 0.1
# Skewed noise: the probability of the rare value, and the distance between the two values at which
# the sub-Gaussian scale is 1 (Kearns and Saul 1998).
RARE = 0.1
APART = math.sqrt(2.0 * math.log(1.0 / RARE - 1.0) / (1.0 - 2.0 * RARE))


def space_of(seed: int) -> Space:
    """A space with one of two kernels, and with little noise or much."""
    kernel = with_values(MaternKernel(nu=0.5), lengthscale=0.5) if seed % 2 else se(0.25)
    std = 0.3 if seed // 2 % 2 else 0.1
    return Space(scattered(N, seed=seed), kernel, std, std**2)


def index(space: Space, rule: bd.Rule, **options: bd.Ignore) -> Optimizer:
    return bd.AcquisitionOptimizer(
        bd.FiniteDomain(space.points),
        horizon=ASKS,
        covar_module=space.kernel,
        noise_var=space.noise_var,
        rule=rule,
        **options,
    )


def _given(space: Space, tight: bool = True) -> dict:
    valid = bd.RKHSConfidence(NORM, space.noise_std, tight)
    return {
        "covar_module": space.kernel,
        "noise_var": space.noise_var,
        "confidence": valid,
        "delta": DELTA,
    }


def rounds(space: Space, **options: object) -> Optimizer:
    given = _given(space) | options
    return bd.BPEDelayOptimizer(bd.FiniteDomain(space.points), ASKS, **given)


def published(space: Space) -> Optimizer:
    return bd.BPEDelayOptimizer.as_published(
        bd.FiniteDomain(space.points), ASKS, **_given(space, False), delay=bd.ConstantDelay(LATE)
    )


def threds(space: Space) -> Optimizer:
    given = _given(space) | {"interval": (-NORM, NORM)}
    return bd.ThreDSOptimizer(bd.FiniteDomain(space.points), horizon=ASKS, **given)


def at_random(space: Space) -> Optimizer:
    """Random asks beside attached results, on which no certificate rests."""
    opt = bd.RandomOptimizer(
        bd.FiniteDomain(space.points),
        horizon=ASKS,
        covar_module=space.kernel,
        noise_var=space.noise_var,
    )
    opt.attach(space.points[:5], torch.full((5,), -5.0 * NORM, dtype=torch.double))
    return opt


CHOOSERS: dict[str, Callable[[Space], Optimizer]] = {
    "Algorithm 1": published,
    "rounds on arrival, tight bounds": lambda space: rounds(space, exploit=None),
    "regret budget": lambda space: rounds(space, exploit=bd.WithinBudget(factor=1.25)),
    "guaranteed": lambda space: bd.BPEDelayOptimizer.guaranteed(
        bd.FiniteDomain(space.points),
        ASKS,
        covar_module=space.kernel,
        noise_var=space.noise_var,
        norm_bound=NORM,
        noise_std=space.noise_std,
        delta=DELTA,
    ),
    "GP-BUCB": lambda space: index(space, bd.UCB(6.0)),
    "Thompson sampling": lambda space: index(space, bd.ThompsonSampling(), pending=bd.Ignore()),
    "LogEI": lambda space: index(
        space, bd.BotorchRule(LogExpectedImprovement), pending=bd.Ignore()
    ),
    "GP-ThreDS": threds,
    "random, with attached results": at_random,
}
ELIMINATE = tuple(CHOOSERS)[:4]  # these eliminate, by bounds that keep the maximiser
# Delays of these follow their law; those of all others may depend on anything.
BY_LAW = ("Algorithm 1",)


def noise(seed: int, is_best: bool, g: Generator) -> float:
    """Noise of mean 0 and scale 1; if skewed, values that favour the maximiser are rare."""
    if seed % 3 == 0:
        return float(torch.randn((), generator=g))
    rare = float(torch.rand((), generator=g)) < (RARE if seed % 3 == 1 else 0.5)
    if seed % 3 == 2:
        return 1.0 if rare else -1.0
    return (1.0 if is_best else -1.0) * APART * (float(rare) - RARE)


def arrival(seed: int, step: int, helps: bool, by_law: bool) -> int | None:
    """The delay of an answer in steps; None if it never comes."""
    if by_law:
        return LATE
    if seed % 4 == 0:  # in batches
        return 20 - step % 20
    return (None if step % 3 == 0 else LATE) if helps else 0


class Attack:
    """One run: certificates that failed for the function played, and for the one that hid."""

    def __init__(self, name: str, seed: int) -> None:
        self.name, self.seed, self.space = name, seed, space_of(seed)
        g = generator(seed)
        design = bd.greedy_max_variance(
            self.space.kernel, self.space.points, self.space.noise_var, 8
        )
        f = FUNCTIONS[seed % len(FUNCTIONS)](self.space, design, g)
        self.f = f.of_norm(NORM, self.space.kernel).values(self.space)
        self.best = int(self.f.argmax())
        points = self.space.points
        self.K = covariance(self.space.kernel, points, points).detach()
        self.opt, self.generator = CHOOSERS[name](self.space), g
        self.found: Counter[str] = Counter()
        self.closest = 0.0  # regret as a share of its certificate

    def play(self) -> Counter[str]:
        due: dict[int, list[tuple[bd.Trial, float]]] = {}
        for step in range(ASKS):
            for trial, value in due.pop(step, []):
                self.opt.tell(trial, value)
            if step % 15 == 0:
                self.look()
            trial = self.opt.ask()
            is_best = trial.index == self.best
            e = self.space.noise_std * noise(self.seed, is_best, self.generator)
            delay = arrival(self.seed, step, (e > 0.0) is is_best, self.name in BY_LAW)
            if delay is not None:
                answer = float(self.f[trial.index]) + e
                due.setdefault(step + 1 + delay, []).append((trial, answer))
        self.look()
        if self.name in ELIMINATE:
            kept = bool(self.opt.active_set.contains(self.space.points[[self.best]]).all())
            self.found["lost"] = int(not kept)
        return self.found

    def look(self) -> None:
        """Check certificates with the right constants, and with constants that are too small."""
        std, both = self.space.noise_std, (self.f, self.hidden())
        right = self.opt.certify(NORM, std, DELTA)
        share = max(self.share(right, f) for f in both)
        self.closest = max(self.closest, share)
        self.found["exceeded"] |= share > 1.0
        self.found["refuted"] |= right.refuted
        small = self.opt.certify(NORM / 3.0, std / 3.0, DELTA)
        self.found["wrong"] |= small.refuted or any(self.share(small, f) > 1.0 for f in both)
        self.found["norm / 3"] |= self.share(self.opt.certify(NORM / 3.0, std, DELTA), both[1]) > 1

    def share(self, certificate: bd.Certificate, f: Tensor) -> float:
        """The larger of regret and gap as a share of its certificate, with room for rounding."""
        rows = [trial.index for trial in self.opt.trials]
        regret = float(len(rows) * f.max() - f[rows].sum())
        gap = 0.0
        if certificate.recommended is not None:
            x = torch.tensor(certificate.recommended, dtype=torch.double)
            gap = float(f.max() - f[(self.space.points - x).norm(dim=1).argmin()])
        return max(regret / (certificate.regret + 1e-6), gap / (min(certificate.gap, 1e9) + 1e-6))

    def hidden(self) -> Tensor:
        """The function of this norm with these answers that has the largest value at some point."""
        told = [trial.index for trial in self.opt.trials if trial.value is not None]
        rows = torch.tensor(sorted(set(told)), dtype=torch.long)
        inner = self.K[rows][:, rows] + 1e-9 * torch.eye(len(rows), dtype=torch.double)
        inverse = torch.linalg.inv(inner)
        seen = self.K.new_zeros(N).index_copy(0, rows, inverse @ self.f[rows])
        unseen = torch.eye(N, dtype=torch.double)  # a column for each candidate maximiser
        unseen[rows] -= inverse @ self.K[rows]
        a = (unseen * (self.K @ unseen)).sum(dim=0).clamp_min(1e-12)
        b = seen @ self.K @ unseen
        left = (NORM**2 - seen @ self.K @ seen).clamp_min(0.0)
        size = ((b.square() + a * left).sqrt() - b) / a  # |seen + size unseen| = NORM
        functions = self.K @ (seen.unsqueeze(-1) + size * unseen)
        return functions[:, functions.diagonal().argmax()]


def test_what_hides_has_the_norm_and_gives_the_same_answers():
    attack = Attack("GP-BUCB", 1)  # with a kernel whose matrix can be inverted
    attack.play()
    hidden, told = attack.hidden(), [t.index for t in attack.opt.trials if t.value is not None]
    norm = (hidden @ torch.linalg.solve(attack.K, hidden)).sqrt()
    assert norm.item() == pytest.approx(NORM, rel=1e-6)
    assert torch.allclose(hidden[told], attack.f[told], atol=1e-6)
    assert hidden.max() > attack.f.max()


@pytest.mark.filterwarnings("ignore::botorch_delay.exceptions.OutlierWarning")
@pytest.mark.parametrize("name", CHOOSERS)
def test_no_certificate_is_exceeded(name, scale, figures):
    total: Counter[str] = Counter()
    closest = 0.0
    for seed in range(scale.attacks):
        attack = Attack(name, seed)
        total.update(attack.play())
        closest = max(closest, attack.closest)
    figures(
        f"Certificates, {name}",
        runs=scale.attacks,
        exceeded=total["exceeded"],
        refuted=total["refuted"],
        maximisers_lost=total["lost"],
        largest_share_of_a_certificate=closest,
        of_constants_over_3_exceeded_or_refuted=total["wrong"],
        of_norm_over_3_exceeded=total["norm / 3"],
    )
    assert total["exceeded"] == total["refuted"] == total["lost"] == 0
    assert total["wrong"] >= 0.5 * scale.attacks
