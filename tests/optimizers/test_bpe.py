import math

import numpy as np
import pytest
import torch
from botorch.exceptions.warnings import InputDataWarning
from bpe_cases import NOISE, answer, make, value
from cases import KERNELS, normal, rows_of, scattered, se
from gpytorch.kernels import RBFKernel
from oracle import algorithm_1, greedy_design, kernel_function, posterior

import botorch_delay as bd
from botorch_delay.benchmarks import FiniteProblem, simulate
from botorch_delay.exceptions import (
    HorizonError,
    OutlierWarning,
)

# Algorithm 1


def test_the_whole_run_of_the_reference(finite):
    run = finite["run"]
    points = torch.tensor(finite["points"], dtype=torch.double).reshape(-1, 2)
    problem = FiniteProblem(points, torch.tensor(finite["f"], dtype=torch.double), 0.02)
    opt = bd.BPEDelayOptimizer.as_published(
        problem.domain,
        run["horizon"],
        covar_module=se(1.0),
        noise_var=4e-4,
        confidence=bd.FixedBeta(run["beta"]),
        delay=bd.SubExponentialDelay(10, 9, 1, paper_min=True),
        delta=run["delta"],
    )
    history = simulate(
        opt,
        problem,
        None,
        run["horizon"],
        delays=torch.tensor(run["delays"]),
        noise=torch.tensor(run["noise"], dtype=torch.double),
    )
    assert rows_of(history).tolist() == run["asked"]
    assert history.regret[-1].item() == pytest.approx(run["regret"], rel=1e-8)
    for record, expected in zip(opt.rounds, run["rounds"], strict=True):
        assert {key: getattr(record, key) for key in expected} == expected


CASES = {
    "se": ("se", bd.PoissonDelay(6.0)),
    "se-none": ("se", bd.NoDelay()),
    "matern12": ("matern12", bd.GeometricDelay(mean=4.0)),
    "matern32": ("matern32", bd.ConstantDelay(7)),
    "matern52-ard": ("matern52-ard", bd.PoissonDelay(3.0)),
    "linear": ("linear", bd.PoissonDelay(6.0)),
    "scaled": ("scaled", bd.GeometricDelay(mean=2.0)),
    "sum": ("sum", bd.PoissonDelay(6.0)),
}


# The plain form is half of the tight one, so two cases suffice for it alone.
BOUNDED = [(bound, case) for bound in ("beta", "tight") for case in CASES]
BOUNDED += [("plain", "se"), ("plain", "matern52-ard")]


@pytest.mark.parametrize(("bound", "case"), BOUNDED)
def test_as_published_is_algorithm_1_ask_for_ask(case, bound):
    (name, law), maximize = CASES[case], (len(case) + len(bound)) % 2 == 0
    kernel, horizon, delta, seed = KERNELS[name](), 50, 0.1, len(case)
    points = scattered(50, seed=seed)
    k = kernel_function(kernel)
    weights = normal(50, seed).numpy() * 0.3
    f = k(points.numpy(), points.numpy()) @ weights
    norm = math.sqrt(weights @ f)
    generator = torch.Generator().manual_seed(seed)
    delays = law.sample(horizon, generator)
    noise = 0.05 * normal(horizon, seed + 1)
    sign = 1.0 if maximize else -1.0

    def half_width(variance, z, sigma, rounds):
        if bound == "beta":
            return math.sqrt(2.0) * sigma
        tail = math.sqrt(2 * math.log(4 * rounds * len(points) / delta))
        plain = (norm + 0.05 / math.sqrt(NOISE) * tail) * sigma
        if bound == "plain":
            return plain
        size = np.linalg.norm(z, axis=0)
        bias = np.sqrt((variance - NOISE * size**2).clip(0))
        return np.minimum(plain, norm * bias + 0.05 * size * tail)

    confidence = bd.FixedBeta(2.0)
    if bound != "beta":
        confidence = bd.RKHSConfidence(norm, 0.05, tight=bound == "tight")
    asked, rounds = algorithm_1(
        k,
        points.numpy(),
        sign * f,
        horizon=horizon,
        wait=law.upper_bound(horizon, delta),
        delays=delays.numpy(),
        noise=sign * noise.numpy(),
        noise_var=NOISE,
        half_width=half_width,
    )
    opt = bd.BPEDelayOptimizer.as_published(
        bd.FiniteDomain(points),
        horizon,
        covar_module=kernel,
        noise_var=NOISE,
        confidence=confidence,
        delay=law,
        delta=delta,
        maximize=maximize,
    )
    problem = FiniteProblem(points, torch.from_numpy(f), 0.05)
    history = simulate(opt, problem, law, horizon, delays=delays, noise=noise)
    assert rows_of(history).tolist() == asked
    for record, expected in zip(opt.rounds, rounds, strict=True):
        assert {key: getattr(record, key) for key in expected} == expected
    regret = (f.max() - f[asked]) if maximize else (f[asked] - f.min())
    np.testing.assert_allclose(history.regret, regret.cumsum(), rtol=1e-10, atol=1e-12)


def test_without_delay_it_is_bpe():
    problem = FiniteProblem(scattered(60), normal(60), 0.05)
    histories = []
    for delay in (bd.NoDelay(), None):  # rounds of fixed length, rounds that close on arrival
        opt = bd.BPEDelayOptimizer(
            problem.domain, 100, covar_module=se(), noise_var=NOISE, delay=delay, exploit=None
        )
        histories.append(simulate(opt, problem, bd.NoDelay(), 100, seed=3))
        assert [r.length for r in opt.rounds] == bd.round_lengths(100, 0.0)[1]
    assert torch.equal(rows_of(histories[0]), rows_of(histories[1]))


# Rounds that close on arrival


def test_a_round_closes_in_the_ask_after_its_last_answer():
    opt = make()  # q_1 = 10
    trials = opt.ask(14)
    answer(opt, trials[10:])  # asked while waiting: no part of the round's evidence
    answer(opt, trials[:9])
    opt.ask()
    assert opt.rounds == []
    answer(opt, [trials[9]])
    assert opt.rounds == []  # only ask closes
    before = len(opt.active_set)
    assert opt.active_set.eliminated.tolist() == [0] * 60
    trial = opt.ask()
    (record,) = opt.rounds
    assert trial.round == 2
    assert (record.number, record.design_size, record.length) == (1, 10, 15)
    assert record.trial_ids == tuple(range(10))
    assert record.observed == 10
    assert (record.active_before, record.active_after) == (before, len(opt.active_set))
    assert record.multiplier == math.sqrt(6.0)
    assert record.delta is None
    assert record.hyperparameters["noise_var"] == NOISE
    assert trial.index in opt.active_set.indices
    assert (
        opt.active_set.eliminated == 0
    ).nonzero().flatten().tolist() == opt.active_set.indices.tolist()
    assert set(opt.active_set.eliminated.tolist()) <= {0, 1}


def test_bounds_use_exactly_the_first_q_design_points():
    opt = make(confidence=bd.FixedBeta(1.0))
    trials = opt.ask(13)
    answer(opt, trials)
    opt.ask()
    k, X = kernel_function(se()), torch.stack([t.x for t in trials[:10]]).numpy()
    y = np.array([value(t) for t in trials[:10]])
    mean, variance, _ = posterior(k, X, y, NOISE, opt.domain.points.numpy())
    sigma = np.sqrt(variance)
    keep = np.flatnonzero(mean + sigma >= (mean - sigma).max())
    assert opt.active_set.indices.tolist() == keep.tolist()
    assert len(keep) < 60


def test_every_pick_has_the_largest_variance_of_its_round():
    opt = make()
    for _ in range(3):
        answer(opt, opt.ask(20))
    k = kernel_function(se())
    for number in (1, 2):
        asked = [t.index for t in opt.trials if t.round == number]
        if number == 1:
            expected = greedy_design(k, opt.domain.points.numpy(), NOISE, len(asked))
            assert asked == expected


def test_asking_for_many_equals_asking_one_by_one():
    together, apart = make(), make()
    first = together.ask(25)
    second = [apart.ask() for _ in range(25)]
    assert [t.index for t in first] == [t.index for t in second]
    assert [t.id for t in first] == list(range(25))


def test_the_order_of_answers_makes_no_difference():
    runs = []
    for order in (1, -1):
        opt = make()
        for _ in range(4):
            answer(opt, opt.ask(20)[::order])
        runs.append([t.index for t in opt.trials])
    assert runs[0] == runs[1]


def test_the_last_round_closes_when_all_its_asks_are_settled():
    opt = make(horizon=30)
    while len(opt.trials) < 30:
        answer(opt, opt.ask(min(10, 30 - len(opt.trials)))[:-1])
        if len(opt.trials) < 30:
            answer(opt, opt.pending)
    closed = len(opt.rounds)
    assert len(opt.pending) == 1
    answer(opt, opt.pending)
    assert len(opt.rounds) == closed + 1
    assert sum(r.length for r in opt.rounds) == 30
    opt.finish()
    assert len(opt.rounds) == closed + 1


def test_finish_closes_with_what_has_arrived():
    opt = make()
    trials = opt.ask(12)
    answer(opt, trials[:4])
    opt.finish()
    (record,) = opt.rounds
    assert record.trial_ids == (0, 1, 2, 3)
    assert record.length == 12
    with pytest.raises(HorizonError, match="finished after 12 of 100"):
        opt.ask()
    answer(opt, trials[4:])  # late answers are still accepted; recommend() uses them
    assert len(opt.rounds) == 1
    assert opt.recommend().index in [t.index for t in trials]


def test_a_run_that_was_never_asked_can_be_finished():
    opt = make()
    opt.finish()
    assert opt.rounds == []


def test_asks_beyond_the_horizon_are_refused_and_nothing_is_lost():
    opt = make(horizon=6)
    trials = opt.ask(4)
    with pytest.raises(HorizonError, match="left: 2 of the horizon"):
        opt.ask(3)
    assert len(opt.trials) == 4
    trials += opt.ask(2)
    with pytest.raises(HorizonError, match=r"extend\(horizon\), to 7 at least"):
        opt.ask()
    answer(opt, trials)
    assert len(opt.rounds) >= 1


# Other data


def test_attached_results_count_where_all_data_count():
    opt = make()
    points = opt.domain.points
    opt.attach(points[7], 9.0)
    opt.attach(torch.tensor([[5.0, 5.0], [6.0, 6.0]]).double(), torch.zeros(2, 1).double())
    assert [result.index for result in opt.attached] == [7, None, None]
    assert opt.trials == []
    best = opt.recommend()
    assert best.index == 7
    assert best.mean == pytest.approx(9.0, rel=0.05)
    trials = opt.ask(10)
    plain = make().ask(10)
    assert [t.index for t in trials] == [t.index for t in plain]  # the design ignores them
    with pytest.warns(OutlierWarning, match="attached result 0, 9, lies far from all 8 other"):
        answer(opt, trials)
    opt.ask()
    assert opt.rounds[0].observed == 10


def test_results_from_elsewhere_alone_compare_every_point():
    opt = make()
    opt.attach(opt.domain.points[7] + 1e-6, 9.0)
    assert opt.recommend().index == 7


def test_the_recommendation_is_the_best_posterior_mean_over_answered_points():
    opt = make()
    answer(opt, opt.ask(30))
    best = opt.recommend()
    trials = opt.trials
    X = torch.stack([t.x for t in trials]).numpy()
    y = np.array([t.value for t in trials])
    mean, variance, _ = posterior(kernel_function(se()), X, y, NOISE, X)
    assert best.index == trials[int(mean.argmax())].index
    assert best.mean == pytest.approx(mean.max(), rel=1e-8)
    half = math.sqrt(6.0 * variance[mean.argmax()])
    assert best.upper - best.mean == pytest.approx(half, rel=1e-6)
    assert best.mean - best.lower == pytest.approx(half, rel=1e-6)
    assert "heuristic" in best.interval
    assert torch.equal(best.x, opt.domain.points[best.index])


def test_a_guaranteed_recommendation_uses_the_self_normalised_interval():
    opt = make(confidence=bd.RKHSConfidence(2.0, 0.1))
    answer(opt, opt.ask(15))
    best = opt.recommend()
    X = torch.stack([t.x for t in opt.trials])
    y = np.array([t.value for t in opt.trials])
    mean, variance, _ = posterior(kernel_function(se()), X.numpy(), y, NOISE, X.numpy())
    gain = bd.information_gain(se(), X, NOISE)
    factor = 2.0 + 0.1 / math.sqrt(NOISE) * math.sqrt(2 * (gain + math.log(10)))
    assert best.upper - best.mean == pytest.approx(
        factor * math.sqrt(variance[mean.argmax()]), rel=1e-6
    )
    assert "level 0.9" in best.interval


def test_known_noise_moves_the_posterior():
    opt = make()
    trials = opt.ask(2)
    opt.tell(trials[0], 1.0, noise_var=100.0)
    opt.tell(trials[1], 0.5, noise_var=1e-6)
    assert trials[0].noise_var == 100.0
    assert opt.recommend().index == trials[1].index


def test_minimising_mirrors_maximising():
    up, down = make(), make(maximize=False)
    for _ in range(4):
        for a, b in zip(up.ask(20), down.ask(20), strict=True):
            assert a.index == b.index
            up.tell(a, value(a))
            down.tell(b, -value(b))
    assert [r.active_after for r in up.rounds] == [r.active_after for r in down.rounds]
    a, b = up.recommend(), down.recommend()
    assert a.index == b.index
    assert (b.mean, b.lower, b.upper) == (-a.mean, -a.upper, -a.lower)


# A learned kernel


def test_rounds_are_judged_with_the_kernel_that_is_learned_last():
    opt = make(horizon=64, covar_module=None, noise_var=None)
    answer(opt, opt.ask(8))
    opt.ask()
    answer(opt, opt.ask(30))
    answer(opt, opt.pending)
    opt.ask()
    first, second = opt.rounds
    lengthscales = [r.hyperparameters["covar_module"]["lengthscale"] for r in (first, second)]
    assert len({tuple(scales) for scales in lengthscales}) == 2
    assert all(scales[0] != scales[1] for scales in lengthscales)  # not the prior's mode any more
    assert lengthscales[1] == list(opt.hyperparameters.lengthscale)
    assert not opt.guarantee.holds
    assert any("learned kernel proves nothing" in line for line in opt.guarantee.missing)
    best = opt.recommend()
    assert value(best) >= np.quantile([value(t) for t in opt.trials], 0.9)
    assert best.interval.startswith("the answer itself")  # as repeats agree
    assert best.lower == best.mean == best.upper == value(best)


def test_values_of_any_scale_lead_to_the_same_asks():
    runs = []
    for scale in (1.0, 2.0**40, 2.0**-40):  # powers of 2: no rounding
        opt = make(horizon=36, covar_module=None, noise_var=None)
        for _ in range(4):
            for trial in opt.ask(6):
                opt.tell(trial, scale * value(trial))
        runs.append([t.index for t in opt.trials])
    assert runs[0] == runs[1] == runs[2]
    assert opt.rounds[0].active_after > 5


@pytest.mark.parametrize("warp", ["half-rank", "none"])
def test_values_far_from_zero_do_not_mislead_the_first_round(warp):
    learned = bd.Learned(warp=warp)
    near, far = (make(horizon=36, covar_module=learned, noise_var=None) for _ in range(2))
    for opt, shift in ((near, 0.0), (far, 1e6)):
        for trial in opt.ask(6):
            opt.tell(trial, shift + 100 * value(trial))
        opt.ask()
    assert near.rounds[0].active_after == far.rounds[0].active_after
    if warp == "none":
        assert far.rounds[0].hyperparameters["offset"] == pytest.approx(1e6, rel=1e-3)


def test_too_few_answers_to_know_the_scale_eliminate_nothing():
    opt = make(horizon=36, covar_module=None, noise_var=None)
    trials = opt.ask(6)
    for trial in trials[:2]:
        opt.tell(trial, 1e6 * value(trial))
    for trial in trials[2:]:
        opt.mark_abandoned(trial)
    opt.ask()
    assert opt.rounds[0].observed == 2
    assert opt.rounds[0].active_after == 60


# What is claimed


def test_the_guarantee_names_what_it_rests_on():
    guaranteed = make(confidence=bd.RKHSConfidence(2.0, 0.1))
    assert guaranteed.guarantee.holds
    assert guaranteed.guarantee.missing == ()
    assert guaranteed.guarantee.delta == 0.1
    text = str(guaranteed.guarantee)
    for word in ("norm", "sub-Gaussian", "drawn afresh", "fails or is abandoned", "delays"):
        assert word in text
    assert not make().guarantee.holds
    assert "heuristic" in str(make().guarantee)
    published = make(
        confidence=bd.RKHSConfidence(2.0, 0.1),
        delay=bd.SubExponentialDelay(5.0, 9.0, 1.0, paper_min=True),
    )
    assert not published.guarantee.holds
    assert "minimum" in str(published.guarantee)


def test_a_run_without_room_for_a_second_design_point_says_what_plays():
    box = bd.BoxDomain(torch.tensor([[0.0], [1.0]], dtype=torch.double))
    short, long = (bd.BPEDelayOptimizer(box, horizon).guarantee for horizon in (200, 201))
    assert short.in_practice == (
        "One of the 200 asks is a design point; the others follow a rule: GP-BUCB, UCB(beta=2.0). "
        "The last 50 may serve the recommendation instead."
    )
    assert str(short).endswith(short.in_practice)
    assert long.in_practice == make(exploit=None).guarantee.in_practice == ""
    own = bd.BPEDelayOptimizer(box, 9, exploit=bd.ThompsonSampling()).guarantee.in_practice
    assert "ThompsonSampling" in own
    assert "recommendation" not in own


def test_the_union_is_over_active_points_or_as_printed_over_all():
    confidence = bd.RKHSConfidence(0.1, 0.01, tight=False)
    law = bd.NoDelay()
    options = {"covar_module": se(), "noise_var": 1e-4, "confidence": confidence, "delay": law}
    domain = bd.FiniteDomain(scattered(60))
    for make_one in (bd.BPEDelayOptimizer, bd.BPEDelayOptimizer.as_published):
        opt = make_one(domain, 100, **options)
        while len(opt.rounds) < 2:
            answer(opt, [opt.ask()])
        rounds = len(bd.round_lengths(100, 0.0)[0])
        for record in opt.rounds:
            printed = make_one is not bd.BPEDelayOptimizer
            n = 60 if printed else record.active_before
            expected = 0.1 + 0.01 / 1e-2 * math.sqrt(2 * math.log(4 * rounds * n / 0.1))
            assert record.multiplier == pytest.approx(expected, rel=1e-12)
            assert record.delta == pytest.approx(0.1 / (2 * rounds))
        assert opt.rounds[1].active_before < 60


def test_the_user_s_kernel_is_copied():
    kernel = se()
    opt = make(covar_module=kernel)
    kernel.lengthscale = 100.0
    assert [t.index for t in opt.ask(5)] == [t.index for t in make().ask(5)]
    assert kernel.raw_lengthscale.requires_grad


def test_single_precision_works():
    with pytest.warns(InputDataWarning, match="Double") as caught:
        domain = bd.FiniteDomain(scattered(60).float())
    kernel = RBFKernel()
    kernel.lengthscale = 0.4
    opt = bd.BPEDelayOptimizer(domain, 100, covar_module=kernel, noise_var=NOISE)
    for _ in range(5):
        answer(opt, opt.ask(20))
    assert len(caught) == 1
    assert opt.recommend().x.dtype == torch.float32
    assert len(opt.rounds) >= 2


@pytest.mark.parametrize("asked", [4, 5, 6])
def test_a_loaded_round_counts_attached_points_as_the_live_one_does(asked):
    points = torch.tensor([[0.0], [0.5], [1.0]], dtype=torch.double)
    opt = bd.BPEDelayOptimizer(bd.FiniteDomain(points), 20, exploit=None)
    opt.attach(points[1], 0.5)
    opt.ask(asked)
    again = bd.BPEDelayOptimizer(bd.FiniteDomain(points), 20, exploit=None)
    again.load_state_dict(opt.state_dict())
    asked = [[trial.index for trial in each.ask(4)] for each in (opt, again)]
    assert asked[0] == asked[1]


@pytest.mark.cuda
def test_on_cuda_it_asks_the_same_points():
    cpu = make()
    domain = bd.FiniteDomain(scattered(60).cuda())
    kernel = se().cuda()
    gpu = bd.BPEDelayOptimizer(domain, 100, covar_module=kernel, noise_var=NOISE, exploit=None)
    for _ in range(5):
        a, b = cpu.ask(20), gpu.ask(20)
        assert [t.index for t in a] == [t.index for t in b]
        assert b[0].x.device.type == "cuda"
        answer(cpu, a)
        for trial in b:
            gpu.tell(trial, value(trial))
    assert cpu.recommend().mean == pytest.approx(gpu.recommend().mean, rel=1e-8)
