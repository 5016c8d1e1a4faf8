"""Rounds that close without their last design points."""

import math
from dataclasses import replace

import pytest
import torch
from bpe_cases import NOISE, answer, make, state_of, value
from cases import generator, scattered, se
from scale import repeats
from test_coverage import DELTA, FEW, HORIZON, POINTS, coverage, upper_limit

import botorch_delay as bd
from botorch_delay.exceptions import InputError, NotSupportedError

FOREVER = 10_000
PLAYING = {"exploit": bd.UCB(4.0), "explore_fraction": 0.4, "evidence": "round"}


def largest(X, active, noise=NOISE):
    """The largest deviation over the active points given answers at X, by dense algebra."""
    kernel = se()
    K = kernel(X, X).to_dense() + noise * torch.eye(len(X), dtype=torch.double)
    k = kernel(X, active).to_dense()
    variance = kernel(active, diag=True) - (k * torch.linalg.solve(K, k)).sum(dim=0)
    return variance.detach().max().clamp_min(0.0).sqrt().item()


def due(opt, kappa):
    """Whether the open round is to close now, computed from the wording of the rule."""
    current = opt._rounds.open
    if current is None or len(current.slots) < current.design_size:
        return False
    points = opt.domain.points
    first = current.slots[: current.design_size]
    intended = [slot.key for slot in first]
    there = [slot.key for slot in first if opt.trials[slot.trial].value is not None]
    active = points[opt.active_set.indices]
    if len(there) == len(intended):
        return True
    if not there:
        return False
    return largest(points[there], active) <= kappa * largest(points[intended], active) * (1 + 1e-6)


@pytest.mark.parametrize("kappa", [3.0, 8.0])
@pytest.mark.parametrize("options", [{}, PLAYING])
def test_a_round_closes_as_soon_as_the_rule_says_and_not_before(kappa, options):
    steps = 110
    opt = make(horizon=120, rounds=bd.HorizonRounds(kappa), **options)
    g = generator(5)
    slow = torch.rand(steps, generator=g) < 0.15
    delays = torch.where(slow, FOREVER, torch.randint(12, (steps,), generator=g)).tolist()
    arrivals, early = [], 0
    for step in range(steps):
        for trial_id in [i for i, at in arrivals if at == step]:
            opt.tell(trial_id, value(opt.trials[trial_id]))
        expected, closed = due(opt, kappa), len(opt.rounds)
        trial = opt.ask()
        assert len(opt.rounds) == closed + expected, step
        arrivals.append((trial.id, trial.id + 1 + delays[trial.id]))
        if expected:
            record = opt.rounds[-1]
            early += record.observed < record.design_size
            assert all(opt.trials[i].value is not None for i in record.trial_ids)
            assert record.observed == len(record.trial_ids)
    assert early
    waits = make(horizon=120, **options)
    assert waits.guarantee.factor * kappa == pytest.approx(opt.guarantee.factor)


def test_it_is_off_by_default():
    opt = make()
    trials = opt.ask(10)
    answer(opt, trials[1:])
    opt.ask(60)
    assert opt.rounds == []


def close_without_the_first(kappa=3.0):
    opt = make(horizon=100, rounds=bd.HorizonRounds(kappa))
    lost, *others = opt.ask(10)
    answer(opt, others)
    opt.ask()
    return opt, lost


@pytest.mark.filterwarnings("ignore::botorch_delay.exceptions.OutlierWarning")
def test_late_answers_are_used_where_all_data_are():
    opt, lost = close_without_the_first()
    (record,) = opt.rounds
    assert lost.id not in record.trial_ids
    assert (record.design_size, record.observed) == (10, 9)
    assert lost in opt.pending
    opt.tell(lost, 9.0)
    assert opt.rounds == [record]
    assert opt.recommend().index == lost.index
    assert opt.recommend().count == 1


def test_a_round_waits_where_too_much_is_unknown():
    opt = make(horizon=100, rounds=bd.HorizonRounds(1.01))
    trials = opt.ask(10)
    answer(opt, trials[:2])
    opt.ask(5)
    assert opt.rounds == []


def test_a_decision_is_made_again_with_another_kernel():
    opt = make(horizon=100, rounds=bd.HorizonRounds(1.01))
    answer(opt, opt.ask(10)[:2])
    opt.ask(5)
    rounds, current = opt._rounds, opt._rounds.open
    assert not rounds.is_due(current)
    kernel = se()
    kernel.lengthscale = 1e-3  # so short that an answer says nothing about other points
    current.use(replace(current.surrogate, covar_module=kernel))
    assert rounds.is_due(current)


def test_nothing_closes_without_a_single_answer():
    opt = make(horizon=100, rounds=bd.HorizonRounds(1e6))
    opt.ask(40)
    assert opt.rounds == []


def test_design_points_that_were_given_up_are_no_longer_intended():
    opt = make(horizon=100, rounds=bd.HorizonRounds(1.0))
    trials = opt.ask(10)
    opt.mark_abandoned(trials[4])
    answer(opt, trials[:4] + trials[5:])
    opt.ask()
    assert len(opt.rounds) == 1


def test_a_file_goes_on_alike(tmp_path):
    opt = make(horizon=100, rounds=bd.HorizonRounds(6.0), **PLAYING)
    g = generator(2)
    for step in range(60):
        trial = opt.ask()
        if torch.rand((), generator=g) < 0.8:
            answer(opt, [trial])
        if step == 25:
            opt.save(tmp_path / "study.db")
            other = bd.load(tmp_path / "study.db")
            h = generator(2)
            h.set_state(g.get_state())
    for _ in range(34):
        trial = other.ask()
        if torch.rand((), generator=h) < 0.8:
            answer(other, [trial])
    assert [t.index for t in other.trials] == [t.index for t in opt.trials]
    assert other.rounds == opt.rounds
    assert any(r.observed < r.design_size for r in opt.rounds)
    with pytest.raises(bd.exceptions.StorageError, match="straggler_factor"):
        make(horizon=100, **PLAYING).load_state_dict(opt.state_dict())
    assert "straggler" in state_of(opt)


def test_the_guarantee_names_the_factor_and_what_it_takes():
    valid = {"confidence": bd.RKHSConfidence(2.0, 0.1)}
    plain = make(**valid).guarantee
    early = make(rounds=bd.HorizonRounds(1.5), **valid).guarantee
    assert plain.holds
    assert early.holds
    assert early.factor == pytest.approx(1.5 * plain.factor)
    assert any("jointly" in line for line in early.assumptions)
    assert not any("jointly" in line for line in plain.assumptions)
    assert any("on the values too" in line for line in plain.assumptions)
    assert not any("on the values too" in line for line in early.assumptions)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"exploit": bd.Exploit(repeat_pending=False)}, "repeat_pending"),
        ({"delay": bd.NoDelay()}, "do not wait"),
        (
            {"exploit": bd.WithinBudget(), "confidence": bd.RKHSConfidence(2.0, 0.1)},
            "all their design points",
        ),
    ],
)
def test_options_that_exclude_each_other(options, message):
    with pytest.raises(InputError, match=message):
        make(rounds=bd.HorizonRounds(2.0), **options)


@pytest.mark.parametrize(
    ("kappa", "message"), [(0.9, "at least 1"), (math.nan, "finite"), ("2", "number")]
)
def test_bad_factors(kappa, message):
    with pytest.raises(InputError, match=message):
        bd.HorizonRounds(kappa)


def test_a_box_is_refused():
    box = bd.BoxDomain(torch.tensor([[0.0], [1.0]], dtype=torch.double))
    with pytest.raises(NotSupportedError, match="straggler_factor"):
        bd.BPEDelayOptimizer(
            box, 30, covar_module=se(), noise_var=0.1, rounds=bd.HorizonRounds(2.0), exploit=None
        )


def test_a_learned_kernel_claims_nothing_and_works():
    opt = bd.BPEDelayOptimizer(
        bd.FiniteDomain(scattered(30)), 60, exploit=None, rounds=bd.HorizonRounds(5.0)
    )
    trials = opt.ask(8)
    answer(opt, trials[1:])
    opt.ask()
    assert opt.rounds[0].observed == 7
    assert not opt.guarantee.holds


def worst_for_the_best(opt, problem, seed):
    """The best tenth of the points are never answered, the rest soon."""
    rank = problem.values.argsort(descending=True).argsort()
    quick = bd.PoissonDelay(10.0).sample(HORIZON, generator(seed))
    slow = {int(row) for row in (rank < len(POINTS) // 10).nonzero()}
    return lambda trial: FOREVER if trial.index in slow else int(quick[trial.id])


def never_some(opt, problem, seed):
    """Every fourth design point is never answered."""
    quick = bd.PoissonDelay(10.0).sample(HORIZON, generator(seed))
    return lambda trial: FOREVER if trial.slot % 4 == 1 else int(quick[trial.id])


def play(opt, problem, delays_of, seed):
    """Like ``simulate``, with delays that may depend on the point asked."""
    delay_of = delays_of(opt, problem, seed)
    noise = torch.randn(HORIZON, dtype=torch.double, generator=generator(seed + 1))
    due = {}
    for step in range(HORIZON):
        for trial in due.pop(step, []):
            told = problem.values[trial.index] + problem.noise_std * noise[trial.id]
            opt.tell(trial, told.item())
        trial = opt.ask()
        due.setdefault(trial.id + 1 + delay_of(trial), []).append(trial)
    opt.finish()


OPTIONS = [
    {"rounds": bd.HorizonRounds(2.0)},
    {"rounds": bd.HorizonRounds(2.0), "exploit": bd.UCB(4.0), "explore_fraction": 0.3},
]


@pytest.mark.parametrize(
    ("delays_of", "options"),
    [(worst_for_the_best, OPTIONS[0]), (never_some, OPTIONS[1])],
    ids=["design", "exploit"],
)
def test_bounds_hold_without_the_stragglers(delays_of, options):
    early = []

    def run(opt, problem, seed):
        play(opt, problem, delays_of, seed)
        early.extend(r.observed < r.design_size for r in opt.rounds)

    result = coverage(FEW, tight=True, run=run, **options)
    assert result.failed <= DELTA
    assert result.lost <= DELTA
    assert sum(early) >= FEW
    assert coverage(FEW, tight=True, divide=5.0, run=run, **options).failed > upper_limit(FEW)


@pytest.mark.heavy
@pytest.mark.parametrize("delays_of", [worst_for_the_best, never_some])
@pytest.mark.parametrize("options", OPTIONS, ids=["design", "exploit"])
def test_a_hundred_functions_without_the_stragglers(delays_of, options, capsys):
    def run(opt, problem, seed):
        play(opt, problem, delays_of, seed)

    right = coverage(repeats(100, 4), tight=True, run=run, **options)
    with capsys.disabled():
        print(f"\n{delays_of.__name__}, {options}: {right}")
    assert right.failed <= DELTA
    assert right.lost <= DELTA
