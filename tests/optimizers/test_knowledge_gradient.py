"""The knowledge gradient, and the last asks on a box, which it chooses."""

import math

import numpy as np
import pytest
import torch
from bpe_cases import HORIZON, KERNEL, NOISY, make_noisy
from bpe_cases import LARGE_NOISE as NOISE
from bpe_cases import noisy_value as value
from bpe_cases import play_noisy as play
from cases import scattered
from oracle import kernel_function, posterior

import botorch_delay as bd
from botorch_delay.optimizers import maximizer
from botorch_delay.optimizers.knowledge_gradient import knowledge_gradient

POINTS = scattered(40)
BOX = bd.BoxDomain(torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.double))


def optimizer(share=0.5, domain=BOX, **options):
    return make_noisy(domain, share, **options)


def expected_rises(opt, X, factor):
    """The expected rise of the best lower end by an answer at each point of X, solved anew."""
    k = kernel_function(KERNEL)
    done = [t for t in opt.trials if t.value is not None]
    asked = np.stack([t.x.numpy() for t in (*done, *opt.pending)])
    y = np.array([t.value for t in done])
    believed = posterior(k, asked[: len(done)], y, NOISE, asked[len(done) :])[0]
    y = np.concatenate([y, believed])

    def ends(data, values):
        mean, variance, _ = posterior(k, data, values, NOISE, X)
        return mean - factor * np.sqrt(variance)

    mean, variance, _ = posterior(k, asked, y, NOISE, X)
    z = np.linspace(-8.0, 8.0, 2001)
    weights, found = np.exp(-0.5 * z**2), []
    for x, there, spread in zip(X, mean, np.sqrt(variance + NOISE), strict=True):
        data = np.concatenate([asked, x[None]])
        # The ends change linearly with the answer.
        low, high = (ends(data, np.append(y, answer)) for answer in (there, there + spread))
        best = (low + z[:, None] * (high - low)).max(axis=1)
        found.append(np.average(best, weights=weights) - ends(asked, y).max())
    return np.array(found)


@pytest.mark.parametrize("factor", [0.0, 1.5])
@pytest.mark.parametrize("domain", [BOX, bd.FiniteDomain(POINTS)], ids=["box", "list"])
def test_it_equals_a_dense_transcription(domain, factor):
    opt = play(optimizer(0.0, domain), 20)
    assert len(opt.pending) == 4
    opt._maximizer.update()
    found = knowledge_gradient(opt._maximizer.model, POINTS, factor).numpy()
    expected = expected_rises(opt, POINTS.numpy(), factor)
    assert expected.max() > 0.01
    assert found == pytest.approx(expected, abs=0.03 * expected.max())
    assert found.min() > -1e-12


def test_what_nothing_is_learned_from_gains_nothing():
    """A point that is known well gains least; the less is known, the more there is to gain."""
    opt = optimizer(0.0)
    opt.attach(torch.full((400, 2), 0.5, dtype=torch.double), [1.0] * 400)
    opt._maximizer.update()
    X = torch.tensor([[0.5, 0.5], [0.52, 0.5], [0.9, 0.1]], dtype=torch.double)
    known, near, far = knowledge_gradient(opt._maximizer.model, X, 0.0).tolist()
    assert known < near < far


@pytest.mark.usefixtures("small_searches")
def test_the_last_asks_on_a_box_have_the_largest_of_those_that_are_compared(monkeypatch):
    seen = []

    def noted(model, X, factor):
        found = knowledge_gradient(model, X, factor)
        seen.append((X, found))
        return found

    monkeypatch.setattr(maximizer, "knowledge_gradient", noted)
    opt = play(optimizer(), HORIZON // 2)
    assert not seen
    for _ in range(HORIZON // 2):
        seen.clear()
        trial = opt.ask()
        if seen:
            ((X, found),) = seen
            assert torch.equal(X[found.argmax()], trial.x)
            answered = torch.stack([t.x for t in opt.trials if t.value is not None])
            answered = answered[opt.active_set.contains(answered)]
            assert all(bool((x == X).all(dim=1).any()) for x in answered)
        else:
            assert trial.slot >= 0  # the design goes on
        opt.tell(trial, value(trial))
    assert opt.rounds


@pytest.mark.usefixtures("small_searches")
def test_before_the_last_asks_on_a_box_the_rule_plays():
    plain, final = ([t.x for t in play(optimizer(share), 36).trials] for share in (0.0, 0.5))
    assert torch.equal(torch.stack(plain[:30]), torch.stack(final[:30]))
    assert not torch.equal(torch.stack(plain), torch.stack(final))


@pytest.mark.usefixtures("small_searches")
def test_by_default_it_chooses_on_boxes_with_noise_and_a_learned_kernel(monkeypatch):
    seen = []
    monkeypatch.setattr(
        maximizer,
        "knowledge_gradient",
        lambda *arguments: seen.append(1) or knowledge_gradient(*arguments),
    )

    def asks_by_it(domain=BOX, *, noise=True, **options):
        seen.clear()
        opt = bd.BPEDelayOptimizer(domain, 20, **options)
        for _ in range(20):
            trial = opt.ask()
            opt.tell(trial, value(trial) if noise else torch.sin(5 * trial.x).sum().item())
        return len(seen)

    assert 4 <= asks_by_it() <= 5  # a repeat may be among the last five
    assert asks_by_it(exploit=bd.Exploit(final_fraction=0.0)) == 0
    assert asks_by_it(covar_module=KERNEL, noise_var=NOISE) == 0
    assert asks_by_it(noise=False) == 0
    assert asks_by_it(noise=False, exact=True) == 0
    assert asks_by_it(bd.FiniteDomain(POINTS)) == 0


@pytest.mark.usefixtures("small_searches")
def test_points_that_may_not_be_asked_are_not_compared(monkeypatch):
    compared = []
    monkeypatch.setattr(
        maximizer,
        "knowledge_gradient",
        lambda model, X, factor: compared.append(X) or knowledge_gradient(model, X, factor),
    )
    corner = bd.BoxDomain(
        BOX.bounds, constraints=[(torch.tensor([0, 1]), torch.tensor([1.0, 1.0]), 0.8)]
    )
    once = bd.Exploit(repeat_pending=False, final_fraction=0.5)
    opt = play(optimizer(domain=corner, exploit=once), HORIZON // 2)
    running = opt.pending[0].x
    opt.attach(running, 0.5)  # it has an answer now
    opt.attach(torch.full((2,), 0.1, dtype=torch.double), 2.0)  # not in the domain
    for _ in range(8):
        opt.ask()
    assert compared
    for X in compared:
        assert bool((X.sum(dim=1) >= 0.8 - 1e-9).all())
        assert bool(opt.active_set.contains(X).all())
        assert not bool((running == X).all(dim=1).any())


@pytest.mark.usefixtures("small_searches")
def test_spaces_with_categories_steps_and_logarithms():
    space = bd.Space(
        kind=bd.Choice(["a", "b", "c"]), rate=bd.Float(1e-4, 1.0, log=True), size=bd.Int(1, 9)
    )
    opt = bd.BPEDelayOptimizer(space, 32, seed=1)
    for number in range(32):
        trial = opt.ask()
        params = trial.params
        loss = abs(math.log10(params["rate"]) + 2.0) + abs(params["size"] - 4) / 4
        opt.tell(trial, -loss - (params["kind"] == "b") + float(NOISY[number]))
    assert {trial.params["size"] for trial in opt.trials} <= set(range(1, 10))
    assert opt.recommend().params["kind"] != "b"


@pytest.mark.usefixtures("small_searches")
def test_a_loaded_study_ends_as_the_one_it_was_saved_from(tmp_path):
    opt = play(bd.BPEDelayOptimizer(BOX, 30), 26)
    opt.save(tmp_path / "study.db")
    again = bd.load(tmp_path / "study.db")
    for other, trial in zip(again.ask(4), opt.ask(4), strict=True):
        assert torch.equal(other.x, trial.x)
