"""Certificates equal a dense formula and hold against adversaries, whoever chose the points."""

import copy
import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch
from botorch.acquisition.logei import qLogNoisyExpectedImprovement
from cases import generator, scattered, se
from oracle import kernel_function

import botorch_delay as bd
from botorch_delay.confidence import anytime
from botorch_delay.confidence.anytime import Ellipsoids, noise_energy
from botorch_delay.exceptions import InputError, NotSupportedError
from botorch_delay.gp.kernels import covariance
from botorch_delay.history.answers import Answers
from botorch_delay.runner import run

POINTS, KERNEL, STD, DELTA = scattered(120, seed=8), se(0.25), 0.1, 0.1
GIVEN = {"covar_module": KERNEL, "noise_var": STD**2}


def function(seed, norm=2.0):
    """Function values on POINTS, of the given RKHS norm, with a steep maximum."""
    g = generator(seed)
    centres = POINTS[torch.randperm(len(POINTS), generator=g)[:10]]
    weights = torch.randn(10, generator=g, dtype=torch.double)
    weights = weights / (weights @ covariance(KERNEL, centres, centres) @ weights).sqrt()
    return norm * (covariance(KERNEL, POINTS, centres) @ weights).detach()


def choosers(norm, std=STD):
    """Makers of optimizers of every kind, for an RKHS norm and a noise scale."""
    valid = bd.RKHSConfidence(norm, std)
    return {
        "UCB": lambda: index(bd.UCB(6.0)),
        "certifying": lambda: index(bd.CertifyingUCB(norm, std, DELTA)),
        "Thompson": lambda: index(bd.ThompsonSampling()),
        "ignoring": lambda: index(bd.UCB(2.0), pending=bd.Ignore()),
        "acquisition": lambda: index(bd.BotorchRule(qLogNoisyExpectedImprovement)),
        "random": lambda: bd.RandomOptimizer(bd.FiniteDomain(POINTS), **GIVEN),
        "queued": lambda: bd.QueuedOptimizer(index(bd.UCB(6.0))),
        "rounds": lambda: bd.BPEDelayOptimizer(
            bd.FiniteDomain(POINTS), 60, **GIVEN, confidence=valid, exploit=None
        ),
        "guaranteed": lambda: bd.BPEDelayOptimizer.guaranteed(
            bd.FiniteDomain(POINTS), 60, **GIVEN, norm_bound=norm, noise_std=std
        ),
    }


NAMES = tuple(choosers(1.0))
ASKS = {"acquisition": 15}  # fewer asks, as it is slow


def index(rule, **options):
    return bd.AcquisitionOptimizer(
        bd.FiniteDomain(POINTS), horizon=60, **GIVEN, rule=rule, **options
    )


def play(opt, f, seed, asks=60):
    """Ask and tell with noise of two values, or normal noise for odd seeds; returns the regret.

    Answers that favour the best point come late, or never when asked at every third step.
    """
    g, best, regret, due = generator(seed), int(f.argmax()), [], []
    for step in range(asks):
        for entry in [entry for entry in due if entry[0] <= step]:
            due.remove(entry)
            opt.tell(entry[1], entry[2])
        trial = opt.ask()
        noise = STD * (2.0 * torch.randint(2, (), generator=g).item() - 1.0)
        if seed % 2:
            noise = STD * torch.randn((), generator=g).item()
        regret.append(float(f[best] - f[trial.index]))
        helps = (noise > 0.0) is (trial.index == best)
        if not helps or step % 3:
            due.append((step + (15 if helps else 0), trial, float(f[trial.index]) + noise))
    return regret


def groups_of(trials):
    """Groups of 1, 1, 2, 4, ... asks of each point, with the size planned for each group."""
    groups, counts = {}, {}
    for trial in trials:
        number = counts.get(trial.index, 0)
        counts[trial.index] = number + 1
        place = 0
        while number >= 2**place:
            place += 1
        size = 2 ** (place - 1) if place else 1
        groups.setdefault((trial.index, place), (size, []))[1].append(trial)
    return list(groups.values())


def accounts(trials):
    """The answers that count, and the bound on their noise energy: singly, then in groups."""
    told = [trial for trial in trials if trial.value is not None]
    known_by = max(trial.told_step for trial in told)
    yield told, noise_energy(known_by, DELTA / 2.0) * STD**2
    groups = groups_of(trials)
    whole = [
        trials
        for size, trials in groups
        if len(trials) == size and all(trial.value is not None for trial in trials)
    ]
    known_by = max(trial.told_step for group in whole for trial in group)
    begun = sum(group[0].id < known_by for _, group in groups)
    scatter = sum(len(group) * np.var([trial.value for trial in group]) for group in whole)
    told = [trial for group in whole for trial in group]
    yield told, noise_energy(begun, DELTA / 2.0) * STD**2 + scatter


def dense(opt, C, ridges, rival):
    """An upper bound on T f(rival) less the sum of f over all T asks."""
    k, X = kernel_function(KERNEL), POINTS.numpy()
    asked = X[[trial.index for trial in opt.trials]]
    L = np.vstack([asked, X[rival : rival + 1]])
    weights = np.append(-np.ones(len(asked)), len(asked))
    found = []
    for told, energy in accounts(opt.trials):
        S, y = X[[trial.index for trial in told]], np.array([trial.value for trial in told])
        for a in ridges:
            inverse = np.linalg.inv(k(S, S) + a * np.eye(len(S)))
            mean = k(L, S) @ inverse @ y
            cov = k(L, L) - k(L, S) @ inverse @ k(S, L)
            b = math.sqrt(C**2 + energy / a - y @ inverse @ y)
            found.append(weights @ mean + b * math.sqrt(max(weights @ cov @ weights, 0.0)))
    return min(found)


def test_it_is_the_dense_formula():
    f, C, asks = function(3), 2.5, 20
    opt = index(bd.UCB(4.0))
    play(opt, f, 3, asks)
    certificate = opt.certify(C, STD, DELTA)
    ridges = [(ridge * STD) ** 2 for ridge in anytime.RIDGES]
    expected = max(dense(opt, C, ridges, rival) for rival in range(len(POINTS)))
    assert certificate.regret == pytest.approx(expected, rel=1e-5)
    assert certificate.answers < certificate.asks == asks
    assert 0.0 < certificate.gap < certificate.regret


def test_a_value_in_the_place_of_a_failure_counts_from_its_correction_on(monkeypatch):
    begun, made = [], Ellipsoids.__init__

    def noted(self, kernel, answers, scale, n, delta, groups=None):
        begun.append(n)
        made(self, kernel, answers, scale, n, delta, groups)

    monkeypatch.setattr(Ellipsoids, "__init__", noted)
    opt = index(bd.UCB(4.0))
    first, second = opt.ask(2)
    opt.mark_failed(first)
    opt.tell(second, 0.1)
    opt.ask(20)
    opt.correct(first, 0.3)
    assert (first.known_step, second.known_step) == (22, 2)
    assert opt.certify(2.0, STD).answers == 2
    assert begun[0] == 22
    assert opt.certify(2.0, STD, asks=10).answers == 1  # the certificate after 10 asks
    opt.ask()
    opt.correct(first, None)
    opt.correct(second, None)
    opt.correct(second, 0.2)
    assert (first.known_step, second.known_step) == (None, 2)


def test_before_an_answer_no_recommended_point_is_spoken_of():
    opt = index(bd.UCB(4.0))
    assert "recommended" not in str(opt.certify(1.0, STD))
    play(opt, function(3), 3, 2)
    assert ", the recommended point is within" in str(opt.certify(1.0, STD))


def test_a_refutation_says_which_norm_is_needed_only_where_that_is_known():
    opt = index(bd.UCB(4.0))
    play(opt, function(3), 3, 30)
    refuted = opt.certify(0.1, STD)
    assert (
        f"norm_bound is 0.1, and the answers need one of at least {refuted.norm_at_least:.4g}"
        in (str(refuted))
    )
    crossed = str(replace(refuted, norm_at_least=0.09))
    assert "norm_bound is 0.1, and no function of that norm fits the answers" in crossed
    assert "0.09" not in crossed


def test_a_norm_that_the_audit_has_refuted_is_not_certified_again(tmp_path):
    opt = bd.BPEDelayOptimizer(
        *(bd.FiniteDomain(scattered(400)), 200),
        **GIVEN,
        confidence=bd.RKHSConfidence(1.0, STD),
        exploit=None,
    )
    for trial in opt.ask(8):
        opt.tell(trial, 0.6 * (-1) ** trial.id)
    unread = copy.deepcopy(opt)
    assert opt.certificate.refuted
    for each in (opt, unread):
        last = each.ask(180)[-1]
        each.tell(last, 0.0)
    now = opt.certify(1.0, STD, DELTA / 2.0)
    assert not now.refuted
    kept = opt.certificate
    assert (kept.regret, kept.gap, kept.refuted) == (math.inf, math.inf, True)
    assert kept.norm_at_least == opt.guarantee.norm_at_least > 1.0 >= now.norm_at_least
    assert kept.delta == opt.guarantee.delta
    opt.save(tmp_path / "study.db")
    assert bd.load(tmp_path / "study.db").certificate == kept == unread.certificate


def test_no_single_ridge_is_better_and_more_of_them_gain_little(monkeypatch):
    opt = index(bd.UCB(4.0))
    play(opt, function(3), 3, 30)
    every = opt.certify(2.5, STD).regret
    for ridges in ((0.5,), (1.0,), (8.0,)):
        monkeypatch.setattr(anytime, "RIDGES", ridges)
        assert opt.certify(2.5, STD).regret >= every - 1e-9
    monkeypatch.setattr(anytime, "RIDGES", tuple(2.0 ** (i / 4) for i in range(-8, 30)))
    assert 0.95 * every <= opt.certify(2.5, STD).regret <= every + 1e-9


@pytest.mark.parametrize("name", NAMES)
def test_no_certificate_is_exceeded_whoever_chose_the_points(name):
    f = function(NAMES.index(name))
    opt = choosers(2.0)[name]()
    asks = ASKS.get(name, 60)
    regret = sum(play(opt, f, 0, asks))
    certificate = opt.certify(2.0, STD, DELTA)
    assert regret <= certificate.regret < 4.0 * asks
    assert float(f.max() - f[opt.recommend().index]) <= certificate.gap
    assert certificate.norm_at_least <= 2.0
    assert f"the regret of the {asks} asks so far is at most {certificate.regret:.4g}" in str(
        certificate
    )


def test_asks_that_tell_nothing_do_not_loosen_what_is_known():
    opt = index(bd.UCB(4.0))
    play(opt, function(4), 4, 30)
    before = opt.certify(2.0, STD)
    opt.ask(20)
    after = opt.certify(2.0, STD)
    assert (after.gap, after.norm_at_least) == (before.gap, before.norm_at_least)
    assert after.recommended == before.recommended == tuple(opt.recommend().x.tolist())
    assert after.regret > before.regret


def test_what_is_asked_for_the_certificate_lowers_it_where_the_norm_is_too_large():
    f, regrets = function(5), {}
    for name in ("UCB", "certifying"):
        opt = choosers(3.0)[name]()
        play(opt, f, 5)
        regrets[name] = opt.certify(3.0, STD, DELTA)
    assert regrets["certifying"].gap < regrets["UCB"].gap


def test_the_past_is_what_was_said_then():
    opt, f = index(bd.UCB(4.0)), function(1)
    play(opt, f, 1, 25)
    then = opt.certify(2.0, STD)
    late = [trial for trial in opt.trials if trial.value is None]
    for trial in [*late, *opt.ask(5)]:
        opt.tell(trial, float(f[trial.index]))
    past = opt.certify(2.0, STD, asks=25)
    assert past.regret == pytest.approx(then.regret) != opt.certify(2.0, STD).regret
    assert (past.answers, past.norm_at_least) == (then.answers, pytest.approx(then.norm_at_least))


def test_reading_changes_nothing_and_a_loaded_run_says_the_same(tmp_path):
    opt = choosers(2.0)["guaranteed"]()
    play(opt, function(2), 2, 30)
    first = opt.certificate
    assert opt.certificate == first
    assert first.delta == DELTA / 2.0
    assert opt.certify(2.0, STD) == first  # with the delta of the certificate
    opt.attach(POINTS[0], 5.0)  # attached results are left out
    assert opt.certificate.regret == first.regret
    opt.save(tmp_path / "study.db")
    assert bd.load(tmp_path / "study.db").certificate == opt.certificate


def test_repeats_of_a_point_make_certificates_tighter(monkeypatch):
    f, g = function(3), generator(7)
    opt = bd.AcquisitionOptimizer(bd.FiniteDomain(POINTS[:5]), **GIVEN, rule=bd.UCB(4.0))
    for _ in range(300):
        trial = opt.ask()
        noise = STD * torch.randn((), generator=g, dtype=torch.double).item()
        opt.tell(trial, float(f[trial.index]) + noise)
    grouped = opt.certify(2.5, STD, DELTA).regret
    monkeypatch.setattr(
        "botorch_delay.optimizers.certificate.doubling_groups",
        lambda points: (torch.arange(len(points)), torch.ones_like(points)),
    )
    assert grouped < 0.8 * opt.certify(2.5, STD, DELTA).regret


def test_the_rule_plays_the_bound_of_certificates():
    f, C = function(3), 2.5
    opt = index(bd.CertifyingUCB(C, STD, DELTA))
    play(opt, f, 3, 59)
    told = [trial for trial in opt.trials if trial.value is not None]
    groups = groups_of(opt.trials)
    points = len({trial.index for trial in opt.trials})
    k, X = kernel_function(KERNEL), POINTS.numpy()
    rows = np.array(sorted({trial.index for trial in told}))
    S = X[rows]
    found = [[trial.value for trial in told if trial.index == row] for row in rows]
    y, counts = np.array([np.mean(v) for v in found]), np.array([len(v) for v in found])
    P = X[[trial.index for trial in opt.trials]]
    bounds = []
    for ridge in anytime.PLAYED_RIDGES:
        a = (ridge * STD) ** 2
        inverse = np.linalg.inv(k(S, S) + np.diag(a / counts))
        added = [noise_energy(n, DELTA / 2.0) - n for n in (len(groups), len(opt.trials))]
        energy = points + sum(added) / 2.0
        b = math.sqrt(C**2 + energy * STD**2 / a - y @ inverse @ y)
        pending = np.linalg.inv(k(P, P) + a * np.eye(len(P)))
        variance = 1.0 - np.einsum("ij,ik,kj->j", k(P, X), pending, k(P, X))
        bounds.append(k(X, S) @ inverse @ y + b * np.sqrt(variance))
    assert opt.ask().index == int(np.min(bounds, axis=0).argmax())


def test_minimising_is_the_same():
    f, seen = function(4), []
    for sign in (1.0, -1.0):
        opt = index(bd.CertifyingUCB(2.0, STD), maximize=sign > 0)
        for _ in range(20):
            trial = opt.ask()
            opt.tell(trial, sign * float(f[trial.index]))
        seen.append((opt.certificate.regret, opt.certificate.gap))
    assert seen[0] == pytest.approx(seen[1])


def test_before_an_answer_the_norm_alone_bounds_it():
    opt = choosers(2.0)["guaranteed"]()
    assert opt.certificate.regret == 0.0
    assert opt.certificate.gap == math.inf
    trial = opt.ask()
    k = covariance(KERNEL, POINTS[trial.index : trial.index + 1], POINTS)[0].detach()
    assert opt.certificate.regret == pytest.approx(2.0 * float((2.0 - 2.0 * k).max().sqrt()))


def test_what_has_no_certificate_says_why():
    with pytest.raises(NotSupportedError, match="certify\\(norm_bound, noise_std\\)"):
        _ = index(bd.UCB(2.0)).certificate
    with pytest.raises(NotSupportedError, match="covar_module="):
        bd.BPEDelayOptimizer(bd.FiniteDomain(POINTS), 20).certify(1.0, 0.1)
    with pytest.raises(InputError, match="norm_bound"):
        index(bd.UCB(2.0)).certify(0.0, 0.1)
    with pytest.raises(InputError, match="pass covar_module and noise_var"):
        bd.AcquisitionOptimizer(bd.FiniteDomain(POINTS), rule=bd.CertifyingUCB(1.0, 0.1))
    box = bd.BoxDomain(torch.tensor([[0.0] * 4, [1.0] * 4], dtype=torch.double))
    wide = bd.AcquisitionOptimizer(box, **GIVEN, rule=bd.CertifyingUCB(1.0, 0.1))
    with pytest.raises(NotSupportedError, match="3 columns at most"):
        _ = wide.certificate


@pytest.mark.parametrize("dim", [1, 2])
def test_on_a_box_it_is_above_that_of_any_list_in_it(dim):
    box = bd.BoxDomain(torch.tensor([[0.0] * dim, [1.0] * dim], dtype=torch.double))
    opt = bd.AcquisitionOptimizer(box, **GIVEN, rule=bd.CertifyingUCB(2.0, STD))
    for _ in range(12):
        trial = opt.ask()
        opt.tell(trial, float(torch.exp(-8.0 * (trial.x - 0.4).square().sum())))
    certificate = opt.certificate
    listed = bd.AcquisitionOptimizer(
        bd.FiniteDomain(torch.cat([scattered(2000, dim), torch.stack([t.x for t in opt.trials])])),
        **GIVEN,
        rule=bd.UCB(1.0),
    )
    rows = listed.domain.find(torch.stack([t.x for t in opt.trials])).tolist()
    answers = Answers.of(box, 1.0, opt.trials)
    ellipsoids = Ellipsoids(KERNEL, answers, STD, 12, 0.05)
    X = listed.domain.points
    at = ellipsoids.bounds(X, 2.0, X[rows], torch.ones(12, dtype=torch.double))[1]
    assert float(at.max()) <= certificate.regret <= 1.05 * float(at.max())


def test_a_learned_kernel_has_a_heuristic_that_says_so():
    opt = bd.BPEDelayOptimizer(bd.FiniteDomain(POINTS), 20, seed=0)
    f = function(2)
    for _ in range(12):
        trial = opt.ask()
        opt.tell(trial, float(f[trial.index]))
    certificate = opt.certificate
    assert not certificate.proved
    assert str(certificate).startswith("A heuristic")
    assert 0.0 <= certificate.gap < float(f.max() - f.min()) * 3
    assert certificate.regret == math.inf


def test_a_run_ends_when_the_recommended_point_is_good_enough():
    f = function(6)
    opt = choosers(2.0)["certifying"]()

    def objective(x):
        return float(f[int((POINTS - x).norm(dim=1).argmin())])

    with ThreadPoolExecutor(1) as pool:
        report = run(opt, objective, pool, 60, 1, until_gap=1.0, progress=False)
    assert report.certificate is not None
    assert report.certificate.gap <= 1.0
    assert len(opt.trials) == len(report.evaluations) < 60
    assert float(f.max() - f[opt.recommend().index]) <= report.certificate.gap
    assert report.certificate == opt.certificate
    with ThreadPoolExecutor(1) as pool:  # it is good enough before anything is asked
        again = run(opt, objective, pool, 60, 1, until_gap=1.0, progress=False)
    assert not again.evaluations
    assert again.certificate == report.certificate
    with ThreadPoolExecutor(1) as pool, pytest.raises(NotSupportedError, match="norm bound"):
        run(index(bd.UCB(1.0)), objective, pool, 5, 1, until_gap=1.0, progress=False)


def test_a_run_goes_on_where_answers_in_flight_take_back_that_it_is_good_enough(monkeypatch):
    gaps, real = iter([9.0, 0.5, 9.0, 9.0, 0.5, 0.5]), bd.AcquisitionOptimizer.certificate.fget
    monkeypatch.setattr(
        bd.AcquisitionOptimizer,
        "certificate",
        property(lambda opt: replace(real(opt), gap=next(gaps))),
    )
    opt = choosers(2.0)["certifying"]()
    with ThreadPoolExecutor(1) as pool:
        report = run(opt, lambda x: float(x.sum()), pool, 60, 1, until_gap=1.0, progress=False)
    assert report.certificate.gap == 0.5
    assert len(opt.trials) == 3
