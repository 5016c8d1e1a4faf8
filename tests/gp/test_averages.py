"""Averaged answers in order: their factorization grows, and is that of the beginning bit by bit."""

import pytest
import torch
from cases import scattered
from gpytorch.kernels import RBFKernel

import botorch_delay as bd
from botorch_delay.exceptions import NumericsWarning
from botorch_delay.gp.averages import BLOCK, Averages
from botorch_delay.gp.surrogate import Surrogate
from botorch_delay.optimizers.rules import UCB, Hallucinate

BOUNDS = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.double)


def surrogate(noise_var=1e-2):
    kernel = RBFKernel().double()
    kernel.lengthscale = 0.3
    return Surrogate.fixed(kernel, noise_var, BOUNDS)


def anew(averages, judge, points):
    """The same answers entered into something new, in their order."""
    fresh = Averages(judge, points)
    for _, key in averages._order:
        for source, (value, noise) in sorted(averages._members[key].items()):
            fresh.put(key, source, averages.point(key), value, noise)
    return fresh


def play(averages, points, steps, seed):
    """Random answers, out of order, repeated, taken back; yields after each."""
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
    points, judge = scattered(400, 2), surrogate()
    averages, taken_over = Averages(judge, points[:10]), 0
    for number, source in enumerate((-4, -9, -2)):
        averages.put(-1 - number, source, points[-1 - number], 0.5, None)
    for step in play(averages, points, 300, seed=0):
        ordered = averages.ordered
        taken_over += len(ordered._known) > 0
        if step % 7 == 0:
            fresh = anew(averages, judge, points[:10]).ordered
            assert not len(fresh._known)
            for name in ("points", "values", "noise_var", "_factor", "weights"):
                assert torch.equal(getattr(ordered, name), getattr(fresh, name)), name
    assert len(ordered) > 4 * BLOCK
    assert taken_over > 100
    K = judge.covar_module(ordered.points).to_dense() + ordered.noise_var.diag()
    torch.testing.assert_close(ordered._factor, torch.linalg.cholesky(K), atol=1e-10, rtol=0)
    torch.testing.assert_close(ordered.weights, torch.linalg.solve(K, ordered.values))


def test_attached_results_come_first_so_that_a_new_trial_changes_the_end_alone():
    points, judge = scattered(100, 2), surrogate()
    averages = Averages(judge, points[:10])
    for number in range(80):
        averages.put(-1 - number, -1 - number, points[number], 0.1, None)
    assert len(averages.ordered._factor) == 80
    averages.put(-81, 0, points[80], 0.2, None)
    assert len(averages.ordered._known) == 80 // BLOCK * BLOCK
    assert torch.equal(averages.ordered.points[-1], judge.inputs(points[80:81])[0])


def test_nothing_is_taken_over_from_a_factorization_with_raised_noise():
    X = 1e-9 * scattered(3 * BLOCK, 2)  # all but one point
    judge = surrogate(1e-17)
    averages = Averages(judge, X[:1])
    for number in range(2 * BLOCK):
        averages.put(-1 - number, number, X[number], 0.1, None)
    with pytest.warns(NumericsWarning, match="noise was raised"):
        assert len(averages.ordered.weights) == 2 * BLOCK
    averages.put(-1 - 2 * BLOCK, 2 * BLOCK, X[2 * BLOCK], 0.1, None)
    assert not len(averages.ordered._known)


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
        assert not len(opt._played._design.posterior)
        opt.tell(trial, 0.5)
    waiting = [opt.ask() for _ in range(3)]
    assert len(opt._played._design.posterior) > 0
    expected = opt._played.deviation
    for trial in waiting:
        opt.mark_abandoned(trial)
    opt._played.flush()
    assert bool((opt._played.deviation >= expected).all())
    assert bool((opt._played.deviation > expected).any())
