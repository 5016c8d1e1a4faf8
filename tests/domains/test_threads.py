"""How many threads of the CPU compute during an ask, and random numbers of a thread's own."""

import pytest
import torch
from threadpoolctl import threadpool_info, threadpool_limits

import botorch_delay as bd
from botorch_delay.domains import finite
from botorch_delay.domains.devices import Seeded
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


DRAWS = {
    "rand": lambda like: torch.rand(2, 3),
    "randint": lambda like: torch.randint(5, (4,)),
    "like": lambda like: torch.rand_like(like) + torch.randn_like(like),
    "in place": lambda like: like.clone().exponential_(),
    "from tensors": lambda like: torch.normal(like, like) + torch.bernoulli(like),
    "Gamma": lambda like: torch.distributions.Gamma(like, like).sample(),
    "Sobol": lambda like: torch.quasirandom.SobolEngine(2, scramble=True).draw(3),
    "without a generator": lambda like: torch.rand(2, generator=None),
}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_seeded_functions_draw_as_if_the_process_were_seeded(draw):
    like = torch.full((7,), 0.5)
    with torch.random.fork_rng():
        torch.manual_seed(3)
        expected = draw(like), draw(like)
        before = torch.get_rng_state()
        with Seeded(3):
            assert torch.equal(draw(like), expected[0])
            assert torch.equal(draw(like), expected[1])
        assert torch.equal(torch.get_rng_state(), before)


def test_a_generator_that_is_given_is_used():
    def drawn():
        return torch.rand(3, generator=torch.Generator().manual_seed(1))

    expected = drawn()
    with Seeded(3):
        assert torch.equal(drawn(), expected)
