"""Averaged answers that come and go: posteriors equal those of a fresh start to the last bit."""

import random
from dataclasses import replace
from fractions import Fraction

import pytest
import torch
from cases import scattered
from gpytorch.kernels import RBFKernel

import botorch_delay as bd
from botorch_delay.exceptions import NumericsWarning
from botorch_delay.gp.averages import Averages, _Point
from botorch_delay.gp.posterior import BLOCK, Data, Posterior
from botorch_delay.gp.surrogate import Surrogate
from botorch_delay.gp.warping import Warping
from botorch_delay.optimizers.pending import Hallucinate
from botorch_delay.optimizers.rules import UCB

BOUNDS = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.double)


def surrogate(noise_var=1e-2):
    kernel = RBFKernel().double()
    kernel.lengthscale = 0.3
    return Surrogate(kernel, noise_var, BOUNDS)


def anew(averages, judge, points):
    """A fresh object with the same answers, entered in their order."""
    fresh = Averages(judge, points)
    for key, point in sorted(averages._points.items(), key=lambda item: sorted(item[1].answers)):
        for source, (value, noise, _) in sorted(point.answers.items()):
            fresh.put(key, source, point.x, value, noise)
    return fresh


def play(averages, points, steps, seed):
    """Put and drop random answers, out of order and repeated; yields after each step."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.rand(steps, 4, generator=generator, dtype=torch.double).tolist()
    there, late = [], []
    for step, (kind, which, value, noise) in enumerate(drawn):
        if kind < 0.2:
            late.append(step)
        elif kind < 0.3 and late:
            source = late.pop(int(which * len(late)))
            there.append((source, source))
            averages.put(source, source, points[source], value, None)
        elif kind < 0.4 and there:
            key, source = there.pop(int(which * len(there)))
            averages.drop(key, source)
        elif kind < 0.5 and there:
            key = there[int(which * len(there))][0]
            there.append((key, step))
            averages.put(key, step, points[key], value, noise + 0.01)
        else:
            there.append((step, step))
            averages.put(step, step, points[step], value, None)
        yield step


def test_a_grown_factorization_is_that_of_the_beginning_to_the_last_bit():
    points, judge = scattered(600, 2), surrogate()
    averages, taken_over = Averages(judge, points[:10]), 0
    for number, source in enumerate((-4, -9, -2)):
        averages.put(-1 - number, source, points[-1 - number], 0.5, None)
    for step in play(averages, points, 500, seed=0):
        posterior = averages.anywhere
        taken_over += len(posterior._whole_blocks) > 0
        if step % 13 == 0:
            fresh = anew(averages, judge, points[:10]).anywhere
            assert not len(fresh._whole_blocks)
            for name in ("X", "y", "noise_var", "spread"):
                assert torch.equal(getattr(posterior.data, name), getattr(fresh.data, name)), name
            assert torch.equal(posterior.factor.matrix, fresh.factor.matrix)
            assert torch.equal(posterior.weights, fresh.weights)
    assert len(posterior) > 4 * BLOCK
    assert taken_over > 100
    data = posterior.data
    K = judge.covar_module(data.X).to_dense() + data.noise_var.diag()
    torch.testing.assert_close(
        posterior.factor.matrix, torch.linalg.cholesky(K), atol=1e-10, rtol=0
    )
    torch.testing.assert_close(posterior.weights, torch.linalg.solve(K, data.y))


def test_attached_results_come_first_so_that_a_new_trial_changes_the_end_alone():
    points, judge = scattered(2 * BLOCK, 2), surrogate()
    averages = Averages(judge, points[:10])
    for number in range(BLOCK + 20):
        averages.put(-1 - number, -1 - number, points[number], 0.1, None)
    assert len(averages.anywhere.factor) == BLOCK + 20
    averages.put(-90, 0, points[-1], 0.2, None)
    assert len(averages.anywhere._whole_blocks) == BLOCK
    assert torch.equal(averages.anywhere.data.X[-1], points[-1])


def test_a_point_that_is_answered_last_comes_last_whatever_was_asked_first():
    points, judge = scattered(2 * BLOCK, 2), surrogate()
    averages = Averages(judge, points[:10])
    for source in range(1, BLOCK + 20):
        averages.put(source, source, points[source], 0.1, None, order=source)
    assert len(averages.anywhere.factor) == BLOCK + 19
    averages.put(0, 0, points[0], 0.2, None, order=BLOCK + 20)
    assert len(averages.anywhere._whole_blocks) == BLOCK
    assert torch.equal(averages.anywhere.data.X[-1], points[0])
    averages.put(0, 0, points[0], 0.2, 0.5, order=0)  # told again, now with a noise variance
    assert torch.equal(averages.anywhere.data.X[0], points[0])
    averages.put(0, 0, points[0], 0.2, 0.5, order=BLOCK + 20)  # only its place in the order is new
    assert torch.equal(averages.anywhere.data.X[-1], points[0])


def test_a_rule_has_the_points_in_the_order_of_their_answers():
    opt = bd.BPEDelayOptimizer(bd.BoxDomain(BOUNDS), horizon=40, seed=0)
    asked = [opt.ask() for _ in range(5)]
    for trial in reversed(asked):
        opt.tell(trial, float(trial.x.sum()))
        opt.ask()
    model = opt._maximizer.model
    keys = [key for key, _ in model.answers.anywhere.labels]
    assert keys == [model.key(trial) for trial in reversed(asked)]


def test_nothing_is_taken_over_from_a_factorization_with_raised_noise():
    X = 1e-9 * scattered(3 * BLOCK, 2)  # points that nearly coincide
    judge = surrogate(1e-17)
    averages = Averages(judge, X[:1])
    for number in range(2 * BLOCK):
        averages.put(-1 - number, number, X[number], 0.1, None)
    with pytest.warns(NumericsWarning, match="noise was raised"):
        assert len(averages.anywhere.weights) == 2 * BLOCK
    assert float(averages.anywhere.noise_var.min()) > 1e-17
    averages.put(-1 - 2 * BLOCK, 2 * BLOCK, X[2 * BLOCK], 0.1, None)
    assert not len(averages.anywhere._whole_blocks)


def test_averages_are_those_of_the_answers_that_are_left():
    points, judge = scattered(5, 2), surrogate()
    averages = Averages(judge, points)
    for source in (0, 3, 1, -2):
        averages.put(source % 3, source, points[source % 3], float(source), None)
    before = averages.anywhere
    assert averages.at_candidates.keys == [0, 1]
    averages.put(0, 6, points[0], 9.0, 0.5)
    averages.put(0, 0, points[0], 7.0, 0.3)  # replaces an earlier answer
    averages.drop(1, 1)
    assert averages.size == 4
    answers = {0: [(7.0, 0.3), (3.0, 1e-2), (9.0, 0.5)], 1: [(-2.0, 1e-2)]}
    group = torch.tensor([key for key, values in answers.items() for _ in values])
    rows = torch.tensor([pair for values in answers.values() for pair in values]).double()
    expected = Data.averaged(points[group], rows[:, 0], rows[:, 1], group)
    found = averages.anywhere.data
    order = [1, 0]  # the attached result comes first
    for name in ("X", "y", "noise_var", "spread"):
        torch.testing.assert_close(getattr(found, name), getattr(expected, name)[order])
    moments = Posterior(judge.covar_module, expected).at(points)
    torch.testing.assert_close(averages.at_candidates.mean, moments.mean)
    torch.testing.assert_close(averages.at_candidates.variance, moments.variance)
    assert len(before) == 2
    for source in (0, 3, 6):
        averages.drop(0, source)
    assert averages.at_candidates.keys == [1]


@pytest.mark.parametrize("wide", [False, True])
def test_sums_are_those_of_fractions(wide):
    rng = random.Random(0)
    for _ in range(200):
        point, answers = _Point(BOUNDS[0]), []
        for source in range(rng.randrange(2, 7)):
            value, noise_var = rng.gauss(0.0, 1.0), 1e-4
            if wide:
                value *= 10.0 ** rng.uniform(-140.0, 140.0)
                noise_var = 10.0 ** rng.uniform(-12.0, 4.0)
            answers.append((Fraction(value), Fraction(1.0 / noise_var)))
            point.place(source, (value, noise_var, None))
        total = float(sum(precision for _, precision in answers))
        weighted = float(sum(value * precision for value, precision in answers))
        squares = float(sum(precision**2 for _, precision in answers))
        assert point.row == (weighted / total, 1.0 / total, squares / total / total)


def test_an_average_is_exact_in_any_order():
    rng = random.Random(0)
    answers = [(rng.gauss(0, 10 ** rng.uniform(-6, 6)), rng.uniform(1e-6, 1)) for _ in range(60)]
    y, noise = (torch.tensor(column, dtype=torch.double) for column in zip(*answers, strict=True))
    x, rows = torch.zeros(2).double(), torch.zeros(60, dtype=torch.long)
    data = Data.averaged(x.expand(60, 2), y, noise, rows)
    plain, mixed = Averages(surrogate(), BOUNDS), Averages(surrogate(), BOUNDS)
    for source, answer in enumerate(answers):
        plain.put(0, source, x, *answer)
        mixed.put(0, 100 + source, x, *answer)
    for source, answer in reversed([*enumerate(answers)]):
        mixed.put(0, source, x, *answer)
        assert len(mixed.anywhere) == 1
    for source in rng.sample(range(100, 160), 60):
        mixed.drop(0, source)
    assert mixed._points[0].row == plain._points[0].row
    expected = (data.y.item(), data.noise_var.item(), data.spread.item())
    assert plain._points[0].row == pytest.approx(expected, rel=1e-9)


def test_pending_points_are_entered_apart_only_where_there_are_any():
    domain = bd.FiniteDomain(scattered(60, 2))
    kernel = RBFKernel().double()
    opt = bd.AcquisitionOptimizer(
        domain,
        rule=UCB(2.0),
        pending=Hallucinate(),
        horizon=40,
        seed=0,
        covar_module=kernel,
        noise_var=0.1,
    )
    for _ in range(20):
        trial = opt.ask()
        assert not len(opt._maximizer.model.views[0].asked_points._at_candidates)
        opt.tell(trial, 0.5)
    waiting = [opt.ask() for _ in range(3)]
    assert len(opt._maximizer.model.views[0].asked_points._at_candidates) > 0
    expected = opt._maximizer.model.deviation
    for trial in waiting:
        opt.mark_abandoned(trial)
    assert bool((opt._maximizer.model.deviation >= expected).all())
    assert bool((opt._maximizer.model.deviation > expected).any())


def test_drawn_answers_leave_answers_as_they_are_and_give_one_posterior_everywhere():
    judge, points = surrogate(), scattered(30)
    told, asked = Averages(judge, points), Averages(judge, points)
    for source, value in enumerate((0.3, -1.0, 0.8)):
        told.put(source, source, points[source], value, None)
    for source in range(7):
        asked.put(source, source, points[source], None, None)
    before = asked.at_candidates.mean.clone(), asked.anywhere.data.y.clone()
    first, second = (
        asked.with_drawn_answers(told, torch.Generator().manual_seed(n)) for n in (0, 1)
    )
    assert torch.equal(first.anywhere.data.y[:3], told.anywhere.data.y)
    assert not (first.anywhere.data.y[3:] == second.anywhere.data.y[3:]).any()
    moments = first.anywhere.at(points)
    torch.testing.assert_close(first.at_candidates.mean, moments.mean, rtol=0.0, atol=1e-10)
    torch.testing.assert_close(first.at_candidates.variance, moments.variance)
    best = int(first.anywhere.data.y.argmax())
    assert torch.equal(first.best(1)[0], points[best])
    for kept, now in zip(before, (asked.at_candidates.mean, asked.anywhere.data.y), strict=True):
        assert torch.equal(kept, now)


def test_noise_too_small_to_be_inverted_is_averaged_all_the_same():
    point = _Point(torch.zeros(1))
    point.place(0, (1.0, 1e-320, None))
    point.place(1, (3.0, 1e-320, None))
    mean, noise_var, spread = point.row
    assert mean == 2.0
    assert noise_var < 1e-149
    assert spread == pytest.approx(0.5)


def test_without_values_variances_are_those_with_them():
    """The noise of a warped value depends on the value."""
    learned = replace(
        surrogate(), learned=True, warping=Warping((-1.0, 0.0, 1.0), (-3.0, 0.0, 0.5)), scale=0.7
    )
    points = scattered(4).double()
    with_values = Averages(learned, points)
    without = Averages(learned, points, values=False)
    for key, (value, noise_var) in enumerate([(-0.6, 0.01), (0.4, 0.01), (0.2, None)]):
        for averages in (with_values, without):
            averages.put(key, key, points[key], value, noise_var)
    assert with_values.anywhere.data.noise_var.equal(without.anywhere.data.noise_var)
    assert with_values.at_candidates.variance.equal(without.at_candidates.variance)
    assert not without.anywhere.data.y.any()
    assert len(with_values.anywhere.data.noise_var.unique()) == 3
