"""How many threads of the CPU compute during an ask, whatever the machine has."""

import pytest
import torch
from threadpoolctl import threadpool_info, threadpool_limits

import botorch_delay as bd
from botorch_delay.domains import finite
from botorch_delay.gp import hyperparameters


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    with threadpool_limits(limits=2, user_api="blas"):
        yield
    torch.set_num_threads(before)


class Watched(bd.UCB):
    def score(self, model):
        self.seen.append(torch.get_num_threads())
        return super().score(model)


def asked(domain):
    rule = Watched(4.0)
    object.__setattr__(rule, "seen", [])
    opt = bd.AcquisitionOptimizer(domain, rule=rule, seed=0)
    for _ in range(4):
        opt.tell(trial := opt.ask(), float(trial.x.sum()))
    return rule.seen


def test_an_ask_computes_on_one_thread(two_threads):
    box = bd.BoxDomain(torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.double))
    assert set(asked(box)) == {1}
    assert torch.get_num_threads() == 2


def test_many_points_are_worth_several_threads(two_threads, monkeypatch):
    points = bd.FiniteDomain(torch.linspace(0, 1, 20, dtype=torch.double)[:, None])
    assert set(asked(points)) == {1}
    monkeypatch.setattr(finite, "MOST_ON_ONE_THREAD", 19)
    assert set(asked(bd.FiniteDomain(points.points))) == {2}


def test_a_fit_computes_on_one_thread(two_threads, monkeypatch):
    def counts():
        return {info["num_threads"] for info in threadpool_info() if info["user_api"] == "blas"}

    def minimize(*args, **options):
        seen.update(counts())
        return real(*args, **options)

    seen, real = set(), hyperparameters.minimize
    monkeypatch.setattr(hyperparameters, "minimize", minimize)
    box = bd.BoxDomain(torch.tensor([[0.0], [1.0]], dtype=torch.double))
    asked(box)
    assert seen == {1}
    assert counts() == {2}
