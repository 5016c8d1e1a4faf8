"""The knowledge gradient, and the last asks of a run, which it chooses."""

import math

import numpy as np
import pytest
import torch
from bpe_cases import play as play_late
from cases import normal, scattered, se
from oracle import kernel_function, posterior
from rivals import first_of_largest

import botorch_delay as bd
from botorch_delay.exceptions import InputError
from botorch_delay.optimizers import knowledge_gradient
from botorch_delay.optimizers.knowledge_gradient import KnowledgeGradient

NOISE = 0.3
POINTS = scattered(40)
KERNEL = se()
HORIZON = 60
NOISY = 0.5 * normal(HORIZON, seed=1)
BOX = bd.BoxDomain(torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.double))


def value(trial):
    return torch.sin(5 * trial.x).sum().item() + NOISY[trial.id].item()


def play(opt, asks, lag=4):
    return play_late(opt, asks, lag, value)


def by(rule, domain=None, **options):
    domain = bd.FiniteDomain(POINTS) if domain is None else domain
    options = {"covar_module": KERNEL, "noise_var": NOISE} | options
    return bd.AcquisitionOptimizer(domain, rule=rule, **options)


NODES = np.linspace(-6.0, 6.0, 49)


def expected_rises(opt, beta, X, z=NODES, *, without=None):
    """By how much an answer at each point of ``X`` raises the best lower end, solved anew.

    A trial may be left out.
    """
    k = kernel_function(KERNEL)
    done = [t for t in opt.trials if t.value is not None]
    pending = [t for t in opt.pending if t.id != without]
    asked = np.stack([t.x.numpy() for t in (*done, *pending)])
    told, y = asked[: len(done)], np.array([t.value for t in done])
    believed = posterior(k, told, y, NOISE, asked[len(done) :])[0]
    y = np.concatenate([y, believed])

    def ends(data, values, points):
        mean, variance, _ = posterior(k, data, values, NOISE, points)
        return mean - math.sqrt(beta) * np.sqrt(variance)

    now, weights = ends(asked, y, asked).max(), np.exp(-0.5 * z**2)
    found = []
    for x in X:
        mean, variance, _ = posterior(k, asked, y, NOISE, x[None])
        data = np.concatenate([asked, x[None]])
        # The ends change linearly with the answer.
        low, high = (
            ends(data, np.append(y, mean + step * math.sqrt(variance[0] + NOISE)), data)
            for step in (0.0, 1.0)
        )
        after = (low + z[:, None] * (high - low)).max(axis=1)
        found.append(np.average(after, weights=weights) - now)
    return np.array(found)


@pytest.mark.parametrize("beta", [0.0, 6.0])
def test_the_score_equals_a_dense_transcription(beta):
    opt = play(by(KnowledgeGradient(beta)), 10)
    assert len(opt.pending) == 4
    scores = opt._maximizer.rule.score(opt._maximizer.model).numpy()
    same = expected_rises(opt, beta, POINTS.numpy())
    assert scores == pytest.approx(same, abs=1e-9)
    fine = expected_rises(opt, beta, POINTS.numpy(), np.linspace(-8.0, 8.0, 2001))
    assert np.abs(scores - fine).max() < 0.02 * np.ptp(fine)
    assert opt.ask().index == first_of_largest(scores)


def test_where_it_climbs_on_a_box_the_score_is_the_same():
    opt = play(by(KnowledgeGradient(), BOX), 14)
    X = scattered(6, seed=2)
    found = opt._maximizer.rule.function(opt._maximizer.model, X)(X)
    assert found.numpy() == pytest.approx(expected_rises(opt, 6.0, X.numpy()), abs=1e-9)


def test_climbs_with_a_learned_kernel_do_not_gain_by_deviation_alone():
    opt = play(bd.BPEDelayOptimizer(BOX, HORIZON), 30)
    model, rule = opt._maximizer.model, KnowledgeGradient()
    start = torch.stack(model.answers.best(1))
    corner = torch.ones_like(start)
    with torch.no_grad():
        from_best, from_there = (rule.function(model, X)(corner) for X in (start, corner))
    assert float(from_best) < float(from_there)


def test_of_many_candidates_those_that_may_be_good_are_scored(monkeypatch):
    opt = play(by(KnowledgeGradient()), 20)
    model = opt._maximizer.model
    everything = KnowledgeGradient().score(model)
    monkeypatch.setattr(knowledge_gradient, "MOST_CANDIDATES", 8)
    bound = model.mean + math.sqrt(2.0) * model.deviation
    order = bound.argsort(descending=True)
    scores = KnowledgeGradient().score(model)
    torch.testing.assert_close(scores[order[:8]], everything[order[:8]])
    assert bool((scores[order[8:]] < 0).all())
    assert bool((scores[order[8:]].diff() <= 0).all())


def test_before_any_answer_it_can_be_asked():
    for domain in (None, BOX):
        assert len(by(KnowledgeGradient(), domain).ask(6)) == 6


def test_news_of_a_point_is_worth_more_where_less_is_known():
    """Two good points with the same mean: the one with fewer answers is asked."""
    X = torch.tensor([[0.0, 0.0], [5.0, 5.0], [10.0, 10.0]], dtype=torch.double)
    opt = by(KnowledgeGradient(0.0), bd.FiniteDomain(X))
    opt.attach(X[[0, 0, 0, 0, 0, 1]], [1.0] * 5 + [1.0 + NOISE - NOISE / 5])
    mean = opt.predict(X).mean
    assert float(mean[0]) == pytest.approx(float(mean[1]), abs=0.1)
    assert opt.ask().index == 1


@pytest.mark.parametrize("beta", [-1.0, float("nan"), "6"])
def test_bad_betas(beta):
    with pytest.raises((InputError, TypeError), match="beta"):
        KnowledgeGradient(beta)


# The last asks of BPE-Delay on a box


def on_box(share=0.5, **options):
    options = {
        "covar_module": KERNEL,
        "noise_var": NOISE,
        "exploit": bd.Exploit(final_fraction=share),
        "explore_fraction": 0.1,
    } | options
    return bd.BPEDelayOptimizer(BOX, HORIZON, **options)


def test_the_last_asks_on_a_box_are_chosen_by_it():
    opt, followed, designed = play(on_box(), HORIZON // 2), 0, 0
    for _ in range(10):
        chooser = opt._maximizer
        chooser.update(opt._rounds.active)
        best = float(KnowledgeGradient().score(chooser.model).max())
        before = opt.round
        trial = opt.ask()
        designed += trial.slot >= 0
        if trial.round == before and trial.slot < 0:
            (rise,) = expected_rises(opt, 6.0, trial.x[None].numpy(), without=trial.id)
            assert rise >= best - 1e-9
            followed += 1
        opt.tell(trial, value(trial))
    assert followed >= 5


def test_before_the_last_asks_on_a_box_the_rule_plays():
    plain, final = ([t.x for t in play(on_box(share), 36).trials] for share in (0.0, 0.5))
    assert torch.equal(torch.stack(plain[:30]), torch.stack(final[:30]))
    assert not torch.equal(torch.stack(plain), torch.stack(final))


def test_it_is_played_by_default_on_boxes_with_noise_and_a_learned_kernel(monkeypatch):
    seen = []
    score = KnowledgeGradient.score
    monkeypatch.setattr(
        KnowledgeGradient, "score", lambda self, model: seen.append(1) or score(self, model)
    )

    def asks_by_it(domain=BOX, *, noise=True, **options):
        seen.clear()
        opt = bd.BPEDelayOptimizer(domain, 30, **options)
        for _ in range(30):
            trial = opt.ask()
            opt.tell(trial, value(trial) if noise else torch.sin(5 * trial.x).sum().item())
        return len(seen)

    assert 5 <= asks_by_it() <= 6  # a repeat may be among the last six
    assert asks_by_it(exploit=bd.Exploit(final_fraction=0.0)) == 0
    assert asks_by_it(covar_module=KERNEL, noise_var=NOISE) == 0
    assert asks_by_it(noise=False) == 0
    assert asks_by_it(noise=False, exact=True) == 0
    assert asks_by_it(bd.FiniteDomain(POINTS)) == 0


def test_a_rule_of_its_own_is_stored(tmp_path):
    opt = play(by(KnowledgeGradient(2.0), BOX), 10)
    opt.save(tmp_path / "study.db")
    again = bd.load(tmp_path / "study.db")
    assert again._config.rule == KnowledgeGradient(2.0)
    assert torch.equal(again.ask().x, opt.ask().x)


def test_a_loaded_study_ends_as_the_one_it_was_saved_from(tmp_path):
    opt = play(bd.BPEDelayOptimizer(BOX, 30), 26)
    opt.save(tmp_path / "study.db")
    again = bd.load(tmp_path / "study.db")
    for other, trial in zip(again.ask(4), opt.ask(4), strict=True):
        assert torch.equal(other.x, trial.x)
