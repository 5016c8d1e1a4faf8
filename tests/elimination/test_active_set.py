from dataclasses import replace

import pytest
import torch
from cases import scattered, se
from hypothesis import given
from hypothesis import strategies as st

from botorch_delay import BoxDomain, BPEDelayOptimizer, FiniteActiveSet, FiniteDomain
from botorch_delay.confidence.bounds import FixedBeta, HalfWidth
from botorch_delay.elimination import box_active_set
from botorch_delay.elimination.active_set import RoundBounds, surviving
from botorch_delay.exceptions import InputError
from botorch_delay.gp.posterior import Data, Posterior
from botorch_delay.gp.surrogate import Surrogate


@given(intervals=st.lists(st.tuples(st.floats(-5, 5), st.floats(0, 3)), min_size=1, max_size=30))
def test_the_rule_is_algorithm_1_s(intervals):
    mean, half = torch.tensor(intervals, dtype=torch.double).unbind(dim=1)
    lower, upper = mean - half, mean + half
    keep = surviving(lower, upper)
    for x in range(len(intervals)):
        assert keep[x] == all(upper[x] >= lower[z] for z in range(len(intervals)))
    assert keep.any()


def test_active_sets_know_their_points():
    domain = FiniteDomain(scattered(20))
    active = FiniteActiveSet(domain, torch.tensor([2, 5, 11]))
    assert len(active) == 3
    assert active.indices.tolist() == [2, 5, 11]
    assert torch.equal(active.points, domain.points[[2, 5, 11]])
    X = torch.cat([domain.points[[5, 6]], scattered(1, seed=9)])
    assert active.contains(X).tolist() == [True, False, False]
    assert active.contains(X[:0]).tolist() == []
    active.indices[0] = 7  # a copy
    assert active.indices.tolist() == [2, 5, 11]


@pytest.mark.parametrize(
    "rows",
    [[0], torch.tensor([4]), torch.tensor([1, 1]), torch.tensor([1, 0]), torch.tensor([0.0])],
)
def test_rows_that_are_none_of_the_set_are_refused(rows):
    with pytest.raises(InputError, match="from 0 to 3, increasing and without"):
        FiniteActiveSet(FiniteDomain(scattered(4)), rows)


def test_rows_are_copied():
    rows = torch.tensor([1, 2])
    active = FiniteActiveSet(FiniteDomain(scattered(4)), rows).after(1)
    rows.zero_()
    assert active.indices.tolist() == [1, 2]
    assert active.eliminated.tolist() == [1, 0, 0, 1]


def test_contains_checks_its_argument():
    active = FiniteActiveSet(FiniteDomain(scattered(4)), torch.arange(4))
    with pytest.raises(InputError, match="columns"):
        active.contains(torch.zeros(1, 3).double())
    with pytest.raises(InputError, match="float32"):
        active.contains(torch.zeros(1, 2))


def test_points_outside_of_a_finite_set_were_never_eliminated():
    first = FiniteActiveSet(FiniteDomain(scattered(3)), torch.tensor([0, 1])).after(1)
    active = first.only(first.rows[:1]).after(2)
    X = torch.cat([active.domain.points, torch.full((1, 2), 9.0).double()])
    assert active.round_that_eliminated(X).tolist() == [0, 2, 1, 0]
    assert active.contains(X).tolist() == [True, False, False, False]


@pytest.mark.parametrize("X", [torch.zeros(2), torch.zeros(1, 3), torch.zeros(1, 2).float()])
def test_only_points_of_the_domain_s_kind_have_a_round_that_eliminated_them(X):
    X = X if X.shape == (1, 2) else X.double()
    box = BoxDomain(torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.double))
    for active in (FiniteActiveSet(FiniteDomain(scattered(3))), box_active_set.BoxActiveSet(box)):
        with pytest.raises(InputError, match="X must have"):
            active.round_that_eliminated(X)


def test_a_round_of_a_learned_kernel_is_judged_by_few_of_many_answers(monkeypatch):
    monkeypatch.setattr(box_active_set, "MOST_EVIDENCE", 5)
    box = BoxDomain(torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.double))
    whole, X = box_active_set.BoxActiveSet(box), scattered(9, 2)
    bounds = RoundBounds(1, FixedBeta(6.0), 0.1, 0.1, None, valid=False, sign=1.0)
    evidence = Data.single(X, X[:, 0], torch.full_like(X[:, 0], 0.01))
    known = Surrogate(se(), 0.01, box.bounds)
    learned = replace(known, learned=True, inputs=box.encoding)
    judged = [whole._condition(each, evidence, bounds) for each in (known, learned)]
    assert [len(condition.posterior) for condition in judged] == [9, 5]
    assert judged[1].posterior.data.y.max() == evidence.y.max()
    active = [
        box_active_set.BoxActiveSet(box)._cut(condition, box.bounds[:1]) for condition in judged
    ]
    assert [len(each.pool.points) for each in active] == [4096, 2048]


def test_samples_of_a_box_are_smaller_with_many_answers(monkeypatch):
    monkeypatch.setattr(box_active_set, "MANY_ANSWERS", 3)
    box = BoxDomain(torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.double))

    def sampled(n):
        X = scattered(n, 2)
        posterior = Posterior(se(), Data.single(X, X[:, 0], torch.full_like(X[:, 0], 0.01)))
        condition = box_active_set.Condition(1, posterior, lambda: HalfWidth(1.0), cutoff=-9.0)
        return len(box_active_set.BoxActiveSet(box)._cut(condition, box.bounds[:1]).pool.points)

    assert [sampled(3), sampled(4)] == [4096, 2048]


def test_the_margin_can_be_optimised_before_anything_restricts_the_box():
    box = BoxDomain(torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.double))
    X = torch.tensor([[0.2, 0.7]], dtype=torch.double, requires_grad=True)
    margin = BPEDelayOptimizer(box, 30).active_set.margin(X)
    assert margin.tolist() == [1.0]
    assert not torch.autograd.grad(margin.sum(), X)[0].any()
