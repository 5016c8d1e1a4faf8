import math

import numpy as np
import pytest
import torch
from botorch.optim import optimize_acqf
from cases import normal, scattered, se, sobol_points
from gpytorch.kernels import RQKernel
from oracle import kernel_function
from scale import some

import botorch_delay as bd
from botorch_delay.domains.devices import Seeded
from botorch_delay.exceptions import (
    EmptyDomainError,
    InputError,
    NoAnswerError,
    NotSupportedError,
    StorageError,
)

ONES = torch.ones(4, dtype=torch.double)
UNIT = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.double)
FIXED = {"covar_module": se(0.3), "noise_var": 1e-2}


def make(domain=None, horizon=40, **options):
    options = FIXED | {"exploit": None} | options  # only design points, unless a test sets exploit
    return bd.BPEDelayOptimizer(domain or bd.BoxDomain(UNIT), horizon, **options)


def value(x):
    return float(-4 * ((x - torch.tensor([0.3, 0.7]).double()) ** 2).sum())


def play(opt, asks, function=value, in_flight=3):
    running = []
    for _ in range(asks):
        running.append(opt.ask())
        if len(running) > in_flight:
            trial = running.pop(0)
            opt.tell(trial, function(trial.x))
    for trial in running:
        opt.tell(trial, function(trial.x))


def test_the_active_set_shrinks_around_the_best_point():
    opt = make(maximize=False, horizon=60)
    play(opt, 60, lambda x: -value(x))
    shares = [record.active_after for record in opt.rounds]
    assert len(shares) >= 3
    assert shares == sorted(shares, reverse=True)
    assert shares[-1] < 0.4
    best = torch.tensor([[0.3, 0.7]], dtype=torch.double)
    assert bool(opt.active_set.contains(best)[0])
    sample = opt.active_set.sample(200)
    assert bool(opt.active_set.contains(sample).all())
    volume, error = opt.active_set.volume()
    assert abs(volume - shares[-1]) < 5 * error + 0.03
    labels = opt.active_set.round_that_eliminated(sobol_points(opt.domain, 100, 5))
    assert set(labels.tolist()) <= set(range(len(shares) + 1))
    later = [t for t in opt.trials if t.round == 2]
    assert bool((labels >= 0).all())
    assert all(t.index is None and t.round == 2 for t in later)


@pytest.mark.usefixtures("small_searches")
def test_points_of_a_round_lie_in_its_active_set():
    opt = make(horizon=30)
    running = []
    for _ in range(30):
        trial = opt.ask()
        assert bool(opt.active_set.contains(trial.x.unsqueeze(0))[0])
        running.append(trial)
        if len(running) > 2:
            done = running.pop(0)
            opt.tell(done, value(done.x))


def test_a_box_eliminates_as_a_fine_grid_does():
    """On a dense grid, the round's own bounds leave the same active set."""
    opt = make(horizon=30, confidence=bd.RKHSConfidence(1.5, 0.1))
    play(opt, 30)
    axis = torch.linspace(0, 1, 41, dtype=torch.double)
    grid = torch.cartesian_prod(axis, axis)
    k = kernel_function(se(0.3))
    active = torch.ones(len(grid), dtype=torch.bool)
    for record, condition in zip(opt.rounds, opt._rounds.active.conditions, strict=True):
        lower, upper = condition.interval(grid)
        used = [opt.trials[i] for i in record.trial_ids]
        X = np.stack([t.x.numpy() for t in used])
        y = np.array([t.value for t in used])
        weights = np.linalg.solve(k(X, X) + 1e-2 * np.eye(len(X)), k(X, grid.numpy()))
        torch.testing.assert_close((lower + upper) / 2, torch.from_numpy(weights.T @ y))
        # The search finds the largest lower bound: no grid point has a larger one.
        assert record.cutoff >= lower[active].max().item() - 1e-6
        active &= upper >= record.cutoff
        assert record.multiplier == condition.width.multiplier
    assert torch.equal(opt.active_set.contains(grid), active)


@pytest.mark.usefixtures("small_searches")
@pytest.mark.parametrize("seed", some(range(8), 1))
@pytest.mark.parametrize("uniform", ["net", "trace"])
def test_valid_bounds_keep_the_maximiser(uniform, seed):
    centres, k = scattered(12, seed=seed), kernel_function(se(0.3))
    weights = normal(12, seed=seed).numpy()
    norm = math.sqrt(weights @ k(centres.numpy(), centres.numpy()) @ weights)
    noise = 0.1 * normal(60, seed=100 + seed)

    def f(X):
        return k(X.numpy(), centres.numpy()) @ weights

    confidence = bd.RKHSConfidence(norm, 0.1, uniform=uniform)
    opt = make(horizon=45, confidence=confidence, seed=seed)
    for n in range(45):
        trial = opt.ask()
        opt.tell(trial, float(f(trial.x.unsqueeze(0))[0] + noise[n]))
    axis = torch.linspace(0, 1, 60, dtype=torch.double)
    grid = torch.cartesian_prod(axis, axis)
    best = grid[int(f(grid).argmax())].unsqueeze(0)
    assert bool(opt.active_set.contains(best)[0])
    assert opt.guarantee.holds == (uniform != "trace")  # "trace" is a rate for linear kernels


@pytest.mark.usefixtures("small_searches")
def test_a_save_in_the_middle_of_a_round_changes_nothing(tmp_path):
    mixed = bd.BoxDomain(
        torch.tensor([[1e-3, 0.0, 0.0], [1.0, 2.0, 1.0]], dtype=torch.double),
        discrete_dims={1: [0, 1, 2]},
        log_dims=[0],
        constraints=[([1, 2], [-1.0, -1.0], -2.5)],
        feasible=_feasible,
    )
    for asks, options in ((16, {}), (9, {"covar_module": None, "noise_var": None})):
        whole, pieces = (make(mixed, asks, **options) for _ in range(2))
        path = tmp_path / f"{asks}.db"
        for number in range(asks):
            a, b = whole.ask(), pieces.ask()
            assert torch.equal(a.x, b.x), number
            for trial in whole.pending[:-2]:
                whole.tell(trial, float(trial.x.sum()))
                pieces.tell(trial.id, float(trial.x.sum()))
            if number in (5, 11):
                pieces.save(path)
                pieces = bd.load(path, feasible=_feasible)
        assert [r.active_after for r in whole.rounds] == [r.active_after for r in pieces.rounds]
        with pytest.raises(StorageError, match=r"bd\.load\(path, feasible="):
            bd.load(path)
        with pytest.raises(StorageError, match="feasible"):
            bd.load(path, feasible=lambda X: X[:, 2] > 0.5)


def _feasible(X):
    return X[:, 2] < 0.9


@pytest.mark.usefixtures("small_searches")
def test_rounds_that_were_tampered_with_are_refused():
    opt = make(horizon=30)
    play(opt, 20)
    state = opt.state_dict()
    number = next(n for n, event in enumerate(state["events"]) if event["kind"] == "closed")
    closed = state["events"][number]
    data = closed["data"]
    assert data["record"]["cutoff"] is not None
    changes = [{"cutoff": "x"}, {"cutoff": math.nan}, {"trial_ids": [999]}, {"trial_ids": [19]}]
    forged = [data | {"record": data["record"] | change} for change in changes]
    forged += [data | {"left": left} for left in ([], [[0.0, 0.0], [0.0, 0.0]], [[5.0, 5.0]])]
    for wrong in forged:
        events = [*state["events"]]
        events[number] = closed | {"data": wrong}
        with pytest.raises(StorageError, match="Stored event"):
            make(horizon=30).load_state_dict(state | {"events": events})


@pytest.mark.usefixtures("small_searches")
def test_nothing_is_factorized_while_a_state_is_loaded(monkeypatch):
    opt = make(horizon=30)
    play(opt, 28)
    assert len(opt.rounds) >= 2
    state, again = opt.state_dict(), make(horizon=30)

    def never(*_, **__):
        raise AssertionError("a matrix is factorized")

    for name in ("cholesky", "cholesky_ex", "eigh", "solve_triangular"):
        monkeypatch.setattr(torch.linalg, name, never)
    monkeypatch.setattr(torch, "cholesky_solve", never)
    again.load_state_dict(state)
    monkeypatch.undo()
    assert again.rounds == opt.rounds
    assert torch.equal(again.ask().x, opt.ask().x)


@pytest.mark.usefixtures("small_searches")
def test_all_answers_eliminate_on_a_box_where_a_learned_kernel_proves_nothing():
    norms = {"confidence": bd.RKHSConfidence(2.0, 0.1), "evidence": "all"}
    opt = make(horizon=24, covar_module=None, noise_var=None, **norms)
    play(opt, 24)
    assert len(opt.rounds) >= 2
    with pytest.raises(NotSupportedError, match="evidence='all' with proved bounds"):
        make(**norms)


def test_learned_kernels_with_categories_find_the_good_one():
    domain = bd.BoxDomain(
        torch.tensor([[0.0, 0.0], [1.0, 3.0]], dtype=torch.double), cat_dims={1: [0, 1, 2, 3]}
    )
    # The order of the categories means nothing: 0 and 3 are good, 1 and 2 are not.
    level = [1.0, -1.0, -1.0, 1.5]

    def f(x):
        return level[int(x[1])] - (x[0].item() - 0.4) ** 2

    opt = make(domain, 20, covar_module=None, noise_var=None)
    play(opt, 20, f)
    best = opt.recommend()
    assert best.x[1] == 3.0
    assert abs(best.x[0].item() - 0.4) < 0.3
    assert len(opt.rounds[-1].surrogate["covar_module"]["lengthscale"]) == 5


@pytest.mark.usefixtures("small_searches")
@pytest.mark.parametrize(("kind", "scale"), [("slope", 1e-9), ("constant", 1e9), ("outlier", 1e9)])
def test_odd_answers_are_survived(kind, scale):
    opt = make(horizon=8, covar_module=None, noise_var=None)
    for n in range(8):
        trial = opt.ask()
        y = {"slope": trial.x.sum().item(), "constant": 1.0, "outlier": 1e6 * (n == 5)}[kind]
        opt.tell(trial, scale * y)
    assert all(math.isfinite(r.multiplier) for r in opt.rounds)
    assert math.isfinite(opt.recommend().mean)
    assert opt.stopping_gap() >= 0.0


@pytest.mark.usefixtures("small_searches")
@pytest.mark.filterwarnings("ignore::botorch_delay.exceptions.NumericsWarning")
def test_many_asks_close_to_each_other_with_hardly_any_noise_are_survived():
    opt = bd.BPEDelayOptimizer.guaranteed(
        bd.BoxDomain(torch.tensor([[0.0], [1.0]], dtype=torch.double)),
        60,
        covar_module=se(0.1),
        noise_var=1e-14,
        norm_bound=2.0,
        noise_std=1e-7,
    )
    for _ in range(60):
        trial = opt.ask()
        opt.tell(trial, math.exp(-50.0 * (trial.x.item() - 0.4) ** 2))
    assert opt.recommend().x.item() == pytest.approx(0.4, abs=0.01)


@pytest.mark.usefixtures("small_searches")
def test_the_gap_falls_as_answers_come():
    opt = make(horizon=40)
    with pytest.raises(NoAnswerError):
        opt.stopping_gap()
    play(opt, 40)
    assert (opt.recommend().x - torch.tensor([0.3, 0.7])).abs().max() < 0.1
    gap = opt.stopping_gap()
    early = make(horizon=40)
    play(early, 8)
    assert 0 <= gap < early.stopping_gap()


def test_the_gap_on_a_set_is_that_of_the_bounds():
    opt = bd.BPEDelayOptimizer(bd.FiniteDomain(scattered(50)), 30, **FIXED)
    for _ in range(20):
        trial = opt.ask()
        opt.tell(trial, value(trial.x))
    rows = opt.active_set.indices
    X = np.stack([t.x.numpy() for t in opt.trials])
    y = np.array([t.value for t in opt.trials])
    from oracle import posterior

    mean, variance, _ = posterior(
        kernel_function(se(0.3)), X, y, 1e-2, opt.domain.points[rows].numpy()
    )
    half = math.sqrt(6.0) * np.sqrt(variance)
    assert opt.stopping_gap() == pytest.approx((mean + half).max() - (mean - half).max())


@pytest.mark.usefixtures("small_searches")
def test_max_variance_takes_the_active_set_of_a_box():
    opt = make(horizon=25)
    play(opt, 25)
    X = torch.stack([t.x for t in opt.trials[:5]])
    model = bd.DelayedGP(X, torch.zeros(5, 1).double(), noise_var=1e-2, covar_module=se(0.3))
    sigma = bd.MaxVariance(model, active_set=opt.active_set)
    starts = opt.active_set.sample(4).unsqueeze(1)

    with Seeded(0):  # BoTorch draws from the global generator
        x, _ = optimize_acqf(
            sigma,
            UNIT,
            q=1,
            num_restarts=4,
            batch_initial_conditions=starts,
            nonlinear_inequality_constraints=[(opt.active_set.margin, True)],
            options={"maxiter": 5, "batch_limit": 1},
        )
    assert bool(opt.active_set.contains(x)[0])
    assert sigma(x.unsqueeze(0)) >= sigma(starts).max() - 1e-6


@pytest.mark.usefixtures("small_searches")
def test_failures_on_a_box():
    opt = make(horizon=30)
    first = opt.ask()
    opt.mark_failed(first, "crashed")
    again = opt.ask()
    assert torch.equal(again.x, first.x)
    opt.mark_failed(again)
    third = opt.ask()
    opt.mark_failed(third)
    assert torch.equal(third.x, first.x)
    for _ in range(10):
        trial = opt.ask()
        assert not torch.equal(trial.x, first.x)
        opt.tell(trial, value(trial.x))
    assert not bool(opt.active_set.contains(first.x.unsqueeze(0))[0])


def test_a_box_of_lists_that_all_fail():
    domain = bd.BoxDomain(UNIT, discrete_dims={0: [0, 1]}, cat_dims={1: [0, 1]})
    opt = make(domain)
    for _ in range(12):
        opt.mark_failed(opt.ask(), "crashed")
    with pytest.raises(EmptyDomainError, match="Every point of the domain failed"):
        opt.ask()


@pytest.mark.usefixtures("small_searches")
def test_a_good_point_that_begins_to_fail_does_not_end_the_run(tmp_path):
    limits = torch.tensor([[0.0, 0.0], [2.0, 2.0]], dtype=torch.double)
    domain = bd.BoxDomain(limits, discrete_dims={0: [0, 1, 2]}, cat_dims={1: [0, 1, 2]})
    opt = make(domain, 80, noise_var=1e-4)
    for number in range(80):
        trial = opt.ask()
        if trial.x.tolist() == [1.0, 1.0] and opt.round >= 3:
            opt.mark_failed(trial, "crashed")
        else:
            opt.tell(trial, float(-(trial.x - 1).square().sum()))
        if number in (45, 60):
            opt.save(tmp_path / "study.db")
            loaded = bd.load(tmp_path / "study.db")
            assert torch.equal(loaded.active_set.sample(5), opt.active_set.sample(5))
            opt = loaded
    middle = torch.tensor([[1.0, 1.0]], dtype=torch.double)
    assert not bool(opt.active_set.contains(middle)[0])


def test_bounds_that_cannot_be_had_are_refused_at_once():
    with pytest.raises(NotSupportedError, match=r'RQKernel.*uniform="trace"'):
        make(covar_module=RQKernel().double(), confidence=bd.RKHSConfidence(1.0, 0.1))


@pytest.mark.usefixtures("small_searches")
def test_margins_of_single_points_and_malformed_ones():
    opt = make(horizon=20)
    play(opt, 20)
    X = opt.active_set.sample(4)
    torch.testing.assert_close(opt.active_set.margin(X[0]), opt.active_set.margin(X)[0])
    with pytest.raises(InputError):
        opt.active_set.margin(torch.zeros(2, 3, dtype=torch.double))


@pytest.mark.usefixtures("small_searches")
def test_index_methods_say_when_nothing_may_be_asked():
    domain = bd.BoxDomain(UNIT, discrete_dims={0: [0, 1]}, cat_dims={1: [0, 1]})
    opt = bd.AcquisitionOptimizer(domain, **FIXED)
    for _ in range(12):
        opt.mark_failed(opt.ask(), "crashed")
    with pytest.raises(EmptyDomainError, match="None of the"):
        opt.ask()


@pytest.mark.usefixtures("small_searches")
def test_random_search_on_a_thin_box_is_resumed(tmp_path):
    domain = bd.BoxDomain(
        torch.tensor([[0.0] * 3, [1.0] * 3], dtype=torch.double),
        constraints=[([0, 1, 2], [1.0] * 3, 1.0), ([0, 1, 2], [-1.0] * 3, -1.0001)],
    )
    whole, pieces = bd.RandomOptimizer(domain), bd.RandomOptimizer(domain)
    first = whole.ask(2)
    assert bool(domain.contains(torch.stack([t.x for t in first])).all())
    pieces.ask()
    pieces.save(tmp_path / "study.db")
    assert torch.equal(bd.load(tmp_path / "study.db").ask().x, first[1].x)


def test_a_test_of_feasibility_may_work_in_place():
    domain = bd.BoxDomain(UNIT, feasible=lambda X: X.mul_(2.0)[:, 0] < 1.0)
    opt = make(domain)
    X = torch.stack([t.x for t in opt.ask(5)])
    assert bool((X[:, 0] < 0.5).all())


def test_a_test_of_feasibility_that_nothing_passes():
    domain = bd.BoxDomain(UNIT, feasible=lambda X: torch.zeros(len(X), dtype=torch.bool))
    for made in (
        lambda: make(domain).ask(),
        lambda: bd.AcquisitionOptimizer(domain, **FIXED),
        lambda: bd.RandomOptimizer(domain).ask(),
    ):
        with pytest.raises(EmptyDomainError, match="No point of the box"):
            made()


def test_a_sample_has_at_least_one_point():
    with pytest.raises(InputError):
        make().active_set.sample(0)


def test_the_first_points_spread_to_the_boundary():
    opt = make()
    X = torch.stack([t.x for t in opt.ask(5)])[1:]  # the first point is arbitrary
    assert ((X == 0) | (X == 1)).any(dim=1).sum() >= 3
    assert len(torch.unique(X, dim=0)) == 4


@pytest.mark.usefixtures("small_searches")
@pytest.mark.parametrize("size", [1e-75, 1e140])
def test_values_beyond_single_precision_are_judged_too(size):
    box = bd.BoxDomain(torch.tensor([[0.0], [1.0]], dtype=torch.double))
    opt = bd.BPEDelayOptimizer(box, 4, covar_module=se(), noise_var=0.1, exploit=None)
    for _ in range(4):
        trial = opt.ask()
        opt.tell(trial, size * math.sin(3.0 * trial.x.item()))
    assert opt.rounds
    assert math.isfinite(opt.recommend().mean)


def test_the_last_answer_does_not_wait_for_a_sample_of_what_is_left(tmp_path):
    """Nothing searches the set left by the last round; sampling it in 12 columns takes seconds."""
    opt = bd.BPEDelayOptimizer(bd.BoxDomain(torch.stack([0 * ONES, ONES])), 16)
    play(opt, 16, lambda x: -float((x - 0.3).square().sum()))
    record = opt.rounds[-1]
    assert opt.active_set._pool is None
    volume, error = opt.active_set.volume()
    assert record.active_after == pytest.approx(max(volume, 1 / 4096), rel=0.5, abs=4 * error)
    opt.save(tmp_path / "study.db")
    again = bd.load(tmp_path / "study.db")
    assert again.rounds == opt.rounds
    for run in (opt, again):
        run.extend(20)
    assert torch.equal(opt.ask().x, again.ask().x)


@pytest.mark.usefixtures("small_searches")
@pytest.mark.parametrize("kernel", [FIXED, {}, {"covar_module": se(0.3), "exact": True}])
def test_bounds_from_all_answers_use_attached_results_too(kernel, tmp_path):
    X = sobol_points(bd.BoxDomain(UNIT), 40, seed=3)
    left = []
    for known in (0, 40):
        opt = bd.BPEDelayOptimizer(bd.BoxDomain(UNIT), 40, explore_fraction=0.2, **kernel)
        if known:
            opt.attach(X, [5.0 * value(x) for x in X])
        play(opt, 13, lambda x: 5.0 * value(x), in_flight=1)
        left.append(opt.rounds[0].active_after)
        opt.save(tmp_path / f"{known}.db")
        again = bd.load(tmp_path / f"{known}.db")
        probes = sobol_points(bd.BoxDomain(UNIT), 64, seed=9)
        assert torch.equal(again.active_set.contains(probes), opt.active_set.contains(probes))
        assert torch.allclose(again.ask().x, opt.ask().x, atol=1e-3)
        closed = [event for event in opt.state_dict()["events"] if event["kind"] == "closed"]
        assert [event["data"]["attached"] for event in closed] == [known > 0] * len(closed)
    assert left[1] < 0.7 * left[0]
