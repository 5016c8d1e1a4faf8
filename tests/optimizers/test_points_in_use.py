"""With very many answers the learned posterior uses a chosen subset of the points."""

import pytest
import torch
from cases import generator, se

import botorch_delay as bd
from botorch_delay.gp import subset
from botorch_delay.gp import surrogate as surrogates
from botorch_delay.gp.subset import representative
from botorch_delay.history.events import Event
from botorch_delay.optimizers import rule_model, run

pytestmark = pytest.mark.usefixtures("small_searches")

BOX = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.double)
MOST, EVERY = 12, 6


@pytest.fixture(autouse=True)
def few(monkeypatch):
    monkeypatch.setattr(rule_model, "MOST_POINTS", MOST)
    monkeypatch.setattr(rule_model, "RENEWED_EVERY", EVERY)
    monkeypatch.setattr(run, "GROWTH_TO_REFIT", 100.0)  # a single fit, as fits take longest
    choose = rule_model.representative
    monkeypatch.setattr(rule_model, "representative", lambda X, y: choose(X, y, MOST))


def f(x):
    return -float((x - 0.4).square().sum())


def make():
    opt = bd.BPEDelayOptimizer(bd.BoxDomain(BOX), 200, seed=3)
    X = torch.rand(40, 2, generator=generator(0), dtype=torch.double)
    opt.attach(X, torch.tensor([f(x) for x in X], dtype=torch.double))
    return opt


def counted(opt):
    model = opt._maximizer.model
    return len(model.answers.keys), len(model.views[0].asked_points.keys)


def test_as_many_points_count_however_many_answers_there_are():
    opt = make()
    for _ in range(EVERY + 5):
        pending = opt.ask(3)
        answers, asked = counted(opt)
        assert answers < MOST + EVERY + 3
        assert asked <= answers + len(opt.pending)
        for trial in pending[:2]:
            opt.tell(trial, f(trial.x))
    results = [*opt.attached, *(trial for trial in opt.trials if trial.value is not None)]
    best = max(results, key=lambda result: result.value)
    assert torch.equal(best.x, opt._maximizer.model.answers.best(1)[0])


def test_a_run_that_was_resumed_asks_the_same_point():
    opt = make()
    for _ in range(EVERY + 2):
        first, _ = opt.ask(2)
        opt.tell(first, f(first.x))
    other = bd.BPEDelayOptimizer(bd.BoxDomain(BOX), 200, seed=3)
    other.load_state_dict(opt.state_dict())
    for _ in range(3):
        ours, theirs = opt.ask(), other.ask()
        assert torch.allclose(ours.x, theirs.x, rtol=0.0, atol=1e-8)
        opt.tell(ours, f(ours.x))
        other.tell(theirs, f(theirs.x))
    assert counted(opt) == counted(other)


@pytest.mark.parametrize("attach", [False, True])
def test_points_asked_or_attached_again_after_a_choice_do_not_change_it(tmp_path, attach):
    opt = bd.BPEDelayOptimizer(bd.BoxDomain(BOX), 200, seed=3)
    X = torch.rand(40, 2, generator=generator(0), dtype=torch.double)
    noise = 0.05 * torch.randn(40, generator=generator(1), dtype=torch.double)
    opt.attach(X, -(X - 0.4).square().sum(dim=1) + noise)
    asked = opt.ask(2)
    assert any((trial.x == X).all(dim=1).any() for trial in asked)  # the best is asked again
    if attach:
        opt.attach(X[-1], f(X[-1]))
    opt.save(tmp_path / "run.db")
    again = bd.load(tmp_path / "run.db")
    assert [trial.x.tolist() for trial in again.ask(3)] == [t.x.tolist() for t in opt.ask(3)]


def test_a_point_that_was_left_out_counts_with_all_its_answers_when_it_is_asked_again():
    opt = make()
    opt.ask()
    opt.ask()
    model = opt._maximizer.model
    key = min(model._left_out)
    (before,) = [result for result in opt.attached if model.key(result) == key]
    assert key not in model.answers.keys
    point = {"x": before.x.tolist(), "point": None, "round": 1, "slot": -1}
    opt._apply(Event("asked", 0.0, len(opt.trials), data=point))
    assert key in model.answers.keys
    assert key in model.views[0].asked_points.keys
    sizes = counted(opt)
    model.behind = True
    opt.ask()
    assert counted(opt) == (sizes[0], sizes[1] + 1)


def test_a_given_kernel_leaves_nothing_out():

    opt = bd.BPEDelayOptimizer(
        bd.BoxDomain(BOX), 50, covar_module=se(), noise_var=1e-2, explore_fraction=0.005
    )
    X = torch.rand(30, 2, generator=generator(0), dtype=torch.double)
    opt.attach(X, X.sum(dim=1))
    opt.ask(2)
    assert counted(opt)[0] == 30


def test_a_recommendation_is_made_of_as_many_points(monkeypatch):
    opt = make()
    monkeypatch.setattr(surrogates, "MOST_POINTS", 20)
    monkeypatch.setattr(surrogates, "representative", lambda X, y: representative(X, y, 20))
    found = opt.recommend()
    best = max(opt.attached, key=lambda result: result.value)
    assert (found.x - best.x).norm() < 0.2


def test_the_luckiest_of_very_many_noisy_answers_is_not_recommended(monkeypatch):
    """All answers count when points are ranked, also those that the posterior leaves out."""
    monkeypatch.setattr(surrogates, "MOST_POINTS", 60)
    monkeypatch.setattr(subset, "MOST_POINTS", 60)
    monkeypatch.setattr(surrogates, "representative", lambda X, y: representative(X, y, 60))
    X = torch.rand(500, 2, generator=generator(1), dtype=torch.double)
    noise = 0.4 * torch.randn(500, generator=generator(2), dtype=torch.double)
    opt = bd.BPEDelayOptimizer(bd.BoxDomain(BOX), 600, seed=3)
    opt.attach(X, torch.tensor([f(x) for x in X], dtype=torch.double) + noise)
    found = opt.recommend()
    assert f(found.x) > -0.05
    assert abs(found.mean - f(found.x)) < 0.2
    assert found.lower < f(found.x) < found.upper


ARMS, KNOWN, KEPT = 300, 60, 40


def make_table(monkeypatch, pool, device="cpu", **options):
    """A study of a list, ``pool`` points of it scored, with more answers than the model keeps."""
    monkeypatch.setattr(rule_model, "MAX_FOLDED", 0)
    monkeypatch.setattr(rule_model, "TABLE_POOL", pool)
    monkeypatch.setattr(rule_model, "MOST_POINTS", KEPT)
    monkeypatch.setattr(rule_model, "representative", lambda X, y: representative(X, y, KEPT))
    points = torch.rand(ARMS, 2, generator=generator(5), dtype=torch.double)
    opt = bd.BPEDelayOptimizer(bd.FiniteDomain(points.to(device)), 400, seed=3, **options)
    answered = points[:KNOWN]
    y = torch.tensor([f(x) for x in answered], dtype=torch.double)
    opt.attach(answered.to(device), y.to(device))
    return opt


@pytest.mark.parametrize("exact", [False, True])
def test_of_a_large_table_the_arms_that_may_be_best_are_asked_as_of_all(monkeypatch, exact):
    asked, models = [], []
    for pool in (60, ARMS):
        opt = make_table(monkeypatch, pool, exact=exact)
        asked.append([])
        for _ in range(EVERY + 2):
            trial, _ = opt.ask(2)
            opt.tell(trial, f(trial.x))
            asked[-1].append(trial.index)
        models.append(opt._maximizer.model)
    assert asked[0] == asked[1]
    few, whole = models
    assert whole.pool is None
    values = torch.tensor([f(x) for x in opt.domain.points])
    rest = torch.ones(ARMS, dtype=torch.bool).index_fill(0, few.pool, False)
    rest[[*range(KNOWN), *asked[0]]] = False
    assert values[rest].max() < values[few.pool].topk(20).values.min()
    assert bool((few.pool < KNOWN).any()) != exact  # exact answers need no repeats


def test_a_run_on_a_large_table_that_was_resumed_asks_the_same_arms(monkeypatch):
    opt = make_table(monkeypatch, 30)
    for _ in range(EVERY + 2):
        first, _ = opt.ask(2)
        opt.tell(first, f(first.x))
    other = bd.BPEDelayOptimizer(opt.domain, 400, seed=3)
    other.load_state_dict(opt.state_dict())
    assert [opt.ask().index for _ in range(3)] == [other.ask().index for _ in range(3)]
    assert torch.equal(opt._maximizer.model.pool, other._maximizer.model.pool)


@pytest.mark.cuda
def test_cuda_asks_the_same_arms_of_a_large_table(monkeypatch):
    asked = []
    for device in ("cpu", "cuda"):
        opt = make_table(monkeypatch, 30, device=device)
        asked.append([])
        for _ in range(EVERY + 2):
            trial, _ = opt.ask(2)
            opt.tell(trial, f(trial.x.cpu()))
            asked[-1].append(trial.index)
        assert opt._maximizer.model.pool.device.type == device
    assert asked[0] == asked[1]


def test_where_no_arm_of_the_pool_may_be_asked_others_are(monkeypatch):
    opt = make_table(monkeypatch, 3, exploit=bd.Exploit(repeat_pending=False))
    design, first = opt.ask(2)
    pool = opt._maximizer.model.pool.tolist()
    allowed = opt._maximizer._allowed(None)[1].nonzero().flatten().tolist()
    assert allowed == sorted(set(pool) - {first.index})
    design, *asked = [trial.index for trial in [design, first, *opt.ask(4)]]  # all of them pending
    assert design not in pool
    assert sorted(asked[:3]) == pool
    assert not set(asked[3:]) & set(pool)
