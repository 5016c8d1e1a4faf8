"""Points that are evaluated more than once, and those that never are."""

import math

import pytest
import torch
from bpe_cases import NOISE, answer, make
from cases import generator, line, normal, scattered, se

import botorch_delay as bd
from botorch_delay.benchmarks import FiniteProblem, simulate
from botorch_delay.exceptions import EmptyDomainError, InputError, StorageError

BOX = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.double)


def f(trial):
    return value_at(trial.x)


def value_at(x):
    return math.sin(5 * x.sum().item())


def work(opt, asks, in_flight=4, seed=0):
    """Ask ``asks`` times with ``in_flight`` trials running; a random one of them ends."""
    g = generator(seed)
    running = []
    for _ in range(asks):
        while len(running) >= in_flight:
            done = running.pop(int(torch.randint(len(running), (), generator=g)))
            opt.tell(done, f(done))
        running.append(opt.ask())
    for trial in running:
        opt.tell(trial, f(trial))


def index(domain, **options):
    return bd.AcquisitionOptimizer(domain, **({"rule": bd.UCB(4.0)} | options))


def bpe(domain, **options):
    return bd.BPEDelayOptimizer(domain, 40, **options)


def search(domain, **options):
    return bd.RandomOptimizer(domain, **options)


# Counted


def test_each_distinct_point_has_its_answers_counted():
    opt = make()
    a, b, c = opt.ask(3)
    opt.tell(a, 1.0)
    opt.tell(b, 2.0)
    opt.attach(a.x, 2.0)
    opt.attach(a.x, 6.0)
    elsewhere = torch.tensor([9.0, 9.0], dtype=torch.double)
    opt.attach(elsewhere, 5.0)
    opt.mark_failed(c)
    d = opt.ask()
    first, second, third, fourth = opt.replicates()
    assert torch.equal(first.x, a.x)
    assert (first.index, first.count, first.pending, first.mean) == (a.index, 3, 0, 3.0)
    assert first.standard_error == pytest.approx(math.sqrt(7.0 / 3.0))
    assert (second.index, second.count, second.standard_error) == (b.index, 1, None)
    assert (third.index, third.count, third.mean) == (None, 1, 5.0)
    assert (fourth.index, fourth.count, fourth.pending, fourth.mean) == (d.index, 0, 1, None)
    assert make().replicates() == []


def test_a_recommendation_says_how_often_its_point_was_evaluated():
    opt = make(n=4, horizon=60)
    for _ in range(20):
        answer(opt, [opt.ask()])
    best = opt.recommend()
    assert best.count == sum(t.index == best.index for t in opt.trials) > 1
    opt.attach(opt.domain.points[best.index], best.mean)
    assert opt.recommend().count == best.count + 1


def test_averages_recommend_what_single_answers_would():
    opt = make(n=6, horizon=60)
    for number in range(40):
        trial = opt.ask()
        opt.tell(trial, normal(40)[number].item(), noise_var=0.5 + number % 3)
    found = opt.predict(opt.domain.points).mean
    X = torch.stack([t.x for t in opt.trials])
    y = torch.tensor([t.value for t in opt.trials], dtype=torch.double)
    D = torch.diag(torch.tensor([t.noise_var for t in opt.trials], dtype=torch.double))
    K = se()(X, X).to_dense() + D
    k = se()(X, opt.domain.points).to_dense()
    mean = (k.mT @ torch.linalg.solve(K, y)).detach()
    torch.testing.assert_close(found, mean)


# Planned


def test_a_design_repeats_a_point_only_where_noise_warrants_it():
    repeats = {}
    for noise in (1e-4, 0.3):
        opt = make(n=30, horizon=900, noise_var=noise)  # q_1 = 30
        X, picks = opt.domain.points, [t.index for t in opt.ask(30)]
        repeats[noise] = len(picks) - len(set(picks))
        for k, pick in enumerate(picks):
            before = picks[:k].count(pick)
            if before:  # a repeat: no variance exceeds that of n answers
                K = se()(X[picks[:k]], X[picks[:k]]).to_dense()
                cross = se()(X[picks[:k]], X).to_dense()
                K = K + noise * torch.eye(k, dtype=torch.double)
                variance = 1.0 - (cross * torch.linalg.solve(K, cross)).sum(dim=0)
                assert variance.max().item() <= noise / before
    assert repeats[1e-4] < repeats[0.3]


# While a point is pending


@pytest.mark.parametrize("make_one", [index, bpe], ids=["index", "bpe"])
def test_pending_points_are_repeated_only_if_asked_for(make_one):
    domain = bd.FiniteDomain(line(25))
    shares = {}
    for repeat in (True, False):
        options = {"repeat_pending": repeat}
        if make_one is bpe:
            options = {"exploit": bd.Exploit(repeat_pending=repeat)}
        opt = make_one(domain, covar_module=se(), noise_var=0.05, **options)
        repeats = 0
        for number in range(40):
            pending = {t.index for t in opt.pending}
            trial = opt.ask()
            repeats += trial.slot < 0 and trial.index in pending
            if make_one is index:
                repeats += trial.index in pending
            if number >= 10:
                opt.tell(number - 10, f(opt.trials[number - 10]))
        shares[repeat] = repeats / 40
    assert shares[True] > 0.1
    if make_one is index:
        assert shares[False] == 0.0
    else:  # all active points may be pending
        assert shares[False] < shares[True]


def test_where_every_point_is_pending_one_of_them_is_asked():
    opt = index(bd.FiniteDomain(line(3)), covar_module=se(), noise_var=0.1, repeat_pending=False)
    trials = opt.ask(5)
    assert len({t.index for t in trials[:3]}) == 3
    opt.mark_abandoned(trials[3])
    opt.tell(trials[3], 0.3)  # late
    answered = [t for t in trials if t.index == trials[0].index]
    for trial in answered:
        if trial.value is None:
            opt.tell(trial, 0.1)
    assert opt.ask().index == trials[0].index


def test_without_repeats_an_optimizer_that_ignores_pending_points_moves_on():
    opt = index(
        bd.FiniteDomain(line(20)),
        covar_module=se(),
        noise_var=0.1,
        pending=bd.Ignore(),
        repeat_pending=False,
    )
    assert len({t.index for t in opt.ask(10)}) == 10


# Exact evaluations

MAKERS = {
    "index": index,
    "thompson": lambda d, **o: index(d, rule=bd.ThompsonSampling(), **o),
    "ignore": lambda d, **o: index(d, pending=bd.Ignore(), **o),
    "bpe": bpe,
    "design only": lambda d, **o: bpe(d, exploit=None, **o),
    "random": search,
}


@pytest.mark.parametrize("given", [True, False], ids=["given", "learned"])
@pytest.mark.parametrize("name", MAKERS)
def test_exact_evaluations_are_never_repeated(name, given):
    n = 30 if given else 14
    points = scattered(n)
    options = {"covar_module": se()} if given else {}
    opt = MAKERS[name](bd.FiniteDomain(points), exact=True, **options)
    assert opt.exact
    opt.attach(points[3], value_at(points[3]))
    work(opt, n - 1)
    assert sorted(t.index for t in opt.trials) == [i for i in range(n) if i != 3]
    values = torch.tensor([value_at(x) for x in points])
    best = opt.recommend()
    assert best.index == int(values.argmax())
    assert best.count == 1
    assert best.mean == pytest.approx(values.max().item(), abs=5e-3)
    with pytest.raises(EmptyDomainError, match="exact"):
        opt.ask()
    assert all(entry.count == 1 for entry in opt.replicates())


@pytest.mark.usefixtures("small_searches")
@pytest.mark.parametrize("name", ["index", "bpe", "design only"])
def test_on_a_box_of_lists_each_combination_is_asked_once(name):
    box = bd.BoxDomain(BOX, discrete_dims={0: [0.0, 0.5, 1.0], 1: [0.0, 0.3, 0.6, 1.0]})
    opt = MAKERS[name](box, exact=True, covar_module=se())
    work(opt, 12, in_flight=3)
    assert len({tuple(t.x.tolist()) for t in opt.trials}) == 12
    with pytest.raises(EmptyDomainError, match="exact"):
        opt.ask()


def test_what_was_given_up_or_failed_may_come_again():
    opt = index(bd.FiniteDomain(line(3)), exact=True, covar_module=se())
    a, b, c = opt.ask(3)
    with pytest.raises(EmptyDomainError):
        opt.ask()
    opt.mark_abandoned(b)
    again = opt.ask()
    assert again.index == b.index
    opt.mark_failed(again)
    last = opt.ask()
    assert last.index == b.index
    opt.tell(b, 0.3)  # late: now it has an exact value
    opt.mark_failed(last)
    with pytest.raises(EmptyDomainError):
        opt.ask()
    opt.tell(a, 0.1)
    opt.tell(c, 0.2)
    assert opt.recommend().index == b.index


@pytest.mark.parametrize("name", MAKERS)
def test_a_file_goes_on_alike(name, tmp_path):
    opt = MAKERS[name](bd.FiniteDomain(scattered(30)), exact=True, covar_module=se())
    work(opt, 12)
    opt.attach(opt.domain.points[opt.ask().index], 0.1)
    opt.save(tmp_path / "study.db")
    other = bd.load(tmp_path / "study.db")
    assert other.exact
    for each in (opt, other):
        work(each, 10, seed=3)
    assert [t.index for t in other.trials] == [t.index for t in opt.trials]
    plain = MAKERS[name](bd.FiniteDomain(scattered(30)), covar_module=se(), noise_var=NOISE)
    with pytest.raises(StorageError):
        plain.load_state_dict(opt.state_dict())


def test_bounds_from_exact_evaluations_hold_and_the_maximiser_stays():
    points, kernel = scattered(150, seed=4), se(0.3)
    for seed in range(2):
        g = generator(seed)
        centres = points[torch.randperm(150, generator=g)[:20]]
        weights = torch.randn(20, dtype=torch.double, generator=g)
        values = (kernel(points, centres).to_dense() @ weights).detach()
        K = kernel(centres, centres).to_dense()
        norm = (weights @ K @ weights).detach().sqrt().item()
        problem = FiniteProblem(points, values, 0.0)
        opt = bd.BPEDelayOptimizer(
            problem.domain,
            100,
            covar_module=kernel,
            exact=True,
            confidence=bd.RKHSConfidence(norm, 1e-9),
            explore_fraction=0.5,
        )
        assert opt.guarantee.holds
        simulate(opt, problem, bd.PoissonDelay(5.0), 60, seed=seed)
        assert int(values.argmax()) in opt.active_set.indices
        assert len(opt.active_set) < 75
        assert len({t.index for t in opt.trials}) == 60


@pytest.mark.parametrize(
    "build",
    [
        lambda: index(bd.FiniteDomain(line(5)), exact=True, covar_module=se(), noise_var=0.1),
        lambda: index(bd.FiniteDomain(line(5)), exact="yes"),
        lambda: index(bd.FiniteDomain(line(5)), repeat_pending=None),
        lambda: bpe(bd.FiniteDomain(line(5)), exact=True, evidence="round"),
        lambda: bd.Exploit(repeat_pending=1),
        lambda: bd.QueuedOptimizer(search(bd.FiniteDomain(line(5)), exact=True)),
    ],
)
def test_options_that_contradict_each_other(build):
    with pytest.raises(InputError):
        build()


def test_an_exact_answer_has_no_noise():
    opt = index(bd.FiniteDomain(line(5)), exact=True)
    trial = opt.ask()
    with pytest.raises(InputError, match="exact"):
        opt.tell(trial, 0.1, noise_var=0.1)
    opt.tell(trial, 0.1)
