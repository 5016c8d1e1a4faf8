"""The last asks on lists: answered points are confirmed while several may be the best."""

import numpy as np
import pytest
import torch
from bpe_cases import HORIZON, KERNEL, NOISY, make_noisy
from bpe_cases import LARGE_NOISE as NOISE
from bpe_cases import noisy_value as value
from bpe_cases import play_noisy as play
from cases import scattered, se
from oracle import kernel_function, posterior
from rivals import first_of_largest

import botorch_delay as bd
from botorch_delay.elimination.active_set import FiniteActiveSet
from botorch_delay.exceptions import InputError
from botorch_delay.gp.posterior import Posterior
from botorch_delay.optimizers import maximizer

POINTS = scattered(40)


def optimizer(share=0.5, **options):
    return make_noisy(bd.FiniteDomain(POINTS), share, **options)


def rule(opt, active):
    """The answered point to confirm next, or None where it is clear which is best."""
    k, X = kernel_function(KERNEL), POINTS.numpy()
    done = [t for t in opt.trials if t.value is not None]
    rows = np.array(sorted({t.index for t in done} & set(active)))
    if len(rows) < 2:
        return None
    y = np.array([t.value for t in done])
    mean, _, _ = posterior(k, X[[t.index for t in done]], y, NOISE, X[rows])
    asked = X[[t.index for t in opt.trials]]
    _, variance, _ = posterior(k, asked, np.zeros(len(asked)), NOISE, X[rows])
    deviation = np.sqrt(variance)
    best = mean.argmax()
    contested = mean + deviation >= mean[best] - deviation[best]
    running = np.isin(rows, [t.index for t in opt.pending])
    free = contested & ~running
    if contested.sum() < 2 or not free.any():
        return None
    return rows[first_of_largest(np.where(free, mean + deviation, -np.inf), 1.0)]


def test_the_last_asks_equal_a_dense_transcription():
    opt, followed, designed = play(optimizer(), HORIZON // 2), 0, 0
    for _ in range(HORIZON // 2):
        expected, before = rule(opt, opt.active_set.indices.tolist()), opt.round
        play(opt, 1)
        trial = opt.trials[-1]
        designed += trial.slot >= 0
        if expected is not None and trial.round == before and trial.slot < 0:
            assert trial.index == expected
            followed += 1
    assert followed >= 15
    assert designed >= 1  # the design goes on


def test_before_the_last_asks_the_rule_plays():
    plain, confirming = (
        [t.index for t in play(optimizer(share), HORIZON).trials] for share in (0.0, 0.5)
    )
    assert plain[: HORIZON // 2] == confirming[: HORIZON // 2]
    assert plain != confirming


def test_where_it_is_clear_which_point_is_best_the_rule_plays_on():
    asked = []
    for share in (0.0, 0.5):
        opt = optimizer(share, noise_var=1e-6)
        for number in range(HORIZON):
            trial = opt.ask()
            opt.tell(trial, torch.sin(5 * trial.x).sum().item())
            assert number < 3 or opt._maximizer.confirm() is None
        asked.append([t.index for t in opt.trials])
    assert asked[0] == asked[1]


def test_no_point_is_confirmed_while_a_trial_of_it_is_running():
    opt = optimizer(explore_fraction=1e-3)
    for trial in opt.ask(HORIZON // 2):
        opt.tell(trial, NOISY[trial.id].item())
    answered = {t.index for t in opt.trials}
    rows = [t.index for t in opt.ask(3)]
    assert len(set(rows)) == 3
    assert set(rows) <= answered


def test_learned_kernels_confirm_by_default_and_exact_answers_never():
    def repeats(**options):
        opt = bd.BPEDelayOptimizer(bd.FiniteDomain(POINTS), 28, **options)
        for _ in range(22):
            trial = opt.ask()
            opt.tell(trial, value(trial))
        before = {t.index for t in opt.trials}
        for _ in range(6):
            trial = opt.ask()
            opt.tell(trial, value(trial))
        return sum(t.index in before for t in opt.trials[22:])

    assert repeats() >= 4
    assert repeats(exact=True) == 0


@pytest.mark.parametrize("fraction", [0.0, 0.3])
def test_the_share_is_stored(fraction, tmp_path):
    opt = optimizer(fraction)
    play(opt, 50)
    opt.save(tmp_path / "study.db")
    again = bd.load(tmp_path / "study.db")
    assert [t.index for t in again.ask(6)] == [t.index for t in opt.ask(6)]
    assert again.state_dict()["config"] == opt.state_dict()["config"]


@pytest.mark.usefixtures("small_searches")
def test_on_a_box_of_lists():
    bounds = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.double)
    values = [number / 20 for number in range(21)]
    opt = bd.BPEDelayOptimizer(
        bd.BoxDomain(bounds, discrete_dims={0: values, 1: values}),
        30,
        covar_module=se(),
        noise_var=0.1,
        exploit=bd.Exploit(final_fraction=0.4),
    )
    for _ in range(18):
        trial = opt.ask()
        opt.tell(trial, value(trial))
    answered = torch.stack([t.x for t in opt.trials])
    later = opt.ask(4)
    for trial in later:
        if trial.slot < 0:
            assert bool((answered == trial.x).all(dim=1).any())
    assert sum(trial.slot < 0 for trial in later) >= 3
    assert len({tuple(t.x.tolist()) for t in later}) == 4


def test_nothing_can_be_confirmed_before_there_are_answers():
    box = bd.BoxDomain(torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.double))
    for domain in (box, bd.FiniteDomain(POINTS)):
        exploit = bd.Exploit(final_fraction=1.0)
        opt = bd.BPEDelayOptimizer(domain, 30, covar_module=se(), noise_var=0.1, exploit=exploit)
        for trial in opt.ask(4):
            opt.mark_failed(trial)
        assert len(opt.ask(6)) == 6
        opt.tell(opt.pending[0], 1.0)
        opt.ask(3)


def test_many_answers_on_a_box_are_looked_at_where_they_are_best(monkeypatch):
    box = bd.BoxDomain(torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.double))
    opt = bd.BPEDelayOptimizer(box, 40, covar_module=se(), noise_var=0.3, exploit=bd.UCB(4.0))
    play(opt, 30)
    chooser = opt._maximizer
    everything = chooser.confirm()
    monkeypatch.setattr(maximizer, "MOST_CONFIRMED", 8)
    seen = []
    variance = Posterior.variance
    monkeypatch.setattr(
        Posterior, "variance", lambda self, X: seen.append(len(X)) or variance(self, X)
    )
    assert chooser.confirm() == everything
    assert seen == [8]


def test_infeasible_points_are_not_confirmed():
    opt = play(optimizer(explore_fraction=1e-3), HORIZON // 2, lag=0)
    trial = opt.ask()
    row = trial.index
    while trial.index == row:  # it is asked again at most twice
        opt.mark_failed(trial)
        trial = opt.ask()
    assert row in {t.index for t in opt.trials[: HORIZON // 2]}
    assert row not in {opt.ask().index for _ in range(5)}


def test_eliminated_points_are_not_confirmed():
    chooser = play(optimizer(), HORIZON // 2)._maximizer
    left = torch.arange(len(POINTS))
    found = []
    while (row := chooser.confirm(FiniteActiveSet(bd.FiniteDomain(POINTS), left))) is not None:
        assert row in left
        found.append(row)
        left = left[left != row]
    assert len(set(found)) == len(found) >= 2


@pytest.mark.parametrize("share", [1.5, -0.1])
def test_bad_shares(share):
    with pytest.raises(InputError, match="between 0 and 1"):
        bd.Exploit(final_fraction=share)


def test_exact_answers_are_not_confirmed():
    with pytest.raises(InputError, match="exact evaluations"):
        optimizer(exact=True, noise_var=None)


def test_a_share_of_no_horizon():
    with pytest.raises(InputError, match="horizon"):
        bd.BPEDelayOptimizer(
            bd.FiniteDomain(POINTS),
            None,
            covar_module=KERNEL,
            noise_var=NOISE,
            rounds=bd.GeometricRounds(4, 1.5),
            exploit=bd.Exploit(final_fraction=0.2),
        )
