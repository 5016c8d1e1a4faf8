"""Asks under a regret budget: regret stays certified, and BPE-Delay plays what it refuses."""

import itertools
import math
from dataclasses import replace

import pytest
import torch
from cases import generator, scattered, se
from gpytorch.kernels import RBFKernel
from scale import repeats, some

import botorch_delay as bd
from botorch_delay.benchmarks import FiniteProblem, simulate
from botorch_delay.exceptions import InputError, NotSupportedError
from botorch_delay.gp.kernels import covariance
from botorch_delay.optimizers import budget

POINTS = scattered(200, seed=8)
KERNEL, NOISE = se(0.25), 0.1
HORIZON, DELTA = 150, 0.1


def random_problem(seed):
    g = generator(seed)
    centres = POINTS[torch.randperm(200, generator=g)[:20]]
    weights = torch.randn(20, generator=g, dtype=torch.double)
    f = covariance(KERNEL, POINTS, centres) @ weights
    norm = (weights @ covariance(KERNEL, centres, centres) @ weights).sqrt().item()
    return FiniteProblem(POINTS, f, NOISE), norm


def optimizer(problem, norm, factor=1.25, divide=1.0, **options):
    given = {
        "covar_module": KERNEL,
        "noise_var": NOISE**2,
        "confidence": bd.RKHSConfidence(norm / divide, NOISE / divide),
        "exploit": bd.WithinBudget(factor=factor),
        "delta": DELTA,
    }
    return bd.BPEDelayOptimizer(problem.domain, HORIZON, **(given | options))


def test_bounds_are_made_anew_from_what_is_right():
    problem, norm = random_problem(0)
    right, wrong = (optimizer(problem, norm) for _ in range(2))
    for opt in (right, wrong):
        for trial in opt.ask(4):
            opt.tell(trial, problem.values[trial.index].item() + 0.1 * (opt is wrong))
    assert not torch.allclose(wrong._budget.bounds.upper, right._budget.bounds.upper)
    for trial in wrong.trials:
        wrong.correct(trial, problem.values[trial.index].item())
    torch.testing.assert_close(wrong._budget.bounds.upper, right._budget.bounds.upper)


def slots(opt):
    return [min(trial.slot, 0) for trial in opt.trials]


@pytest.mark.parametrize(
    ("factor", "delay", "seed"),
    [(1.0, bd.PoissonDelay(12.0), 1), (1.25, bd.NoDelay(), 1)],
)
def test_what_is_certified_holds(factor, delay, seed):
    problem, norm = random_problem(seed)
    opt = optimizer(problem, norm, factor)
    history = simulate(opt, problem, delay, HORIZON, seed=seed)
    assert history.regret[-1].item() <= opt.certificate.regret
    assert int(problem.values.argmax()) in opt.active_set.indices
    assert not opt._budget.bounds.refuted
    assert opt.certificate.regret <= factor * opt._budget.bound + opt._budget.extra_cost + 1e-9


def test_with_constants_five_times_too_small_nothing_is_certified():
    broken = 0
    for seed in range(2):
        problem, norm = random_problem(seed)
        opt = optimizer(problem, norm, 1.25, divide=5.0)
        history = simulate(opt, problem, bd.PoissonDelay(5.0), HORIZON, seed=seed)
        lost = int(problem.values.argmax()) not in opt.active_set.indices
        broken += (
            lost or opt._budget.bounds.refuted or history.regret[-1].item() > opt.certificate.regret
        )
    assert broken == 2


def test_where_the_budget_says_no_bpe_delay_plays():
    problem, norm = random_problem(0)
    opt = optimizer(problem, norm, 1.0)
    simulate(opt, problem, bd.PoissonDelay(30.0), HORIZON, seed=1)
    kinds = slots(opt)
    assert kinds[0] == 0  # a design point: nothing is certified yet
    design = [t.index for t in opt.trials if t.slot >= 0 and t.round == 1]
    alone = bd.greedy_max_variance(KERNEL, POINTS, NOISE**2, len(design)).tolist()
    assert design == alone
    assert -1 in kinds
    problem, norm = random_problem(1)
    waiting = optimizer(problem, norm, 1.0)
    waiting.ask(HORIZON)  # no answer ever comes
    assert slots(waiting).count(-2) > 50
    assert waiting._budget.extra_cost > 0.0


def test_every_price_is_what_the_documentation_says():
    problem, norm = random_problem(2)
    opt = optimizer(problem, norm, 1.25)
    noise = NOISE * torch.randn(HORIZON, generator=generator(3), dtype=torch.double)
    for _ in range(60):
        trial = opt.ask()
        bounds = opt._budget.bounds
        if trial.slot == -1:
            gap = bounds.upper.max() - bounds.lower[trial.index]
            expected = min(opt._budget._rates[0], gap.item())
            assert opt._budget.price(trial.index) == pytest.approx(expected)
        bills = [opt._budget.price(asked.index) for asked in opt.trials]
        spent = opt._budget._asks @ opt._budget._bills()
        assert spent.item() == pytest.approx(sum(bills))
        opt.tell(trial, problem.values[trial.index].item() + noise[trial.id].item())
    assert opt._budget.bound <= opt._budget.trivial
    claimed = opt.guarantee
    assert "vacuous" not in str(claimed).partition("\n")[0]
    dear = replace(claimed.budget, extra_cost=claimed.budget.trivial)
    dear = replace(claimed, budget=dear)
    assert (
        f"(vacuous: no asks can cost more than {dear.budget.trivial:.6g})"
        in str(dear).partition("\n")[0]
    )


@pytest.mark.parametrize(("factor", "maximize"), [(1.0, True), (1.25, False)])
def test_a_run_resumed_goes_on_as_it_would_have(factor, maximize, tmp_path):
    problem, norm = random_problem(4)
    sign = 1.0 if maximize else -1.0
    opt = optimizer(problem, norm, factor, maximize=maximize)

    def go(opt, asks):
        waiting = list(opt.pending)
        for _ in range(asks):
            waiting.append(opt.ask())
            if len(waiting) > 5:
                trial = waiting.pop(0)
                opt.tell(trial, sign * problem.values[trial.index].item())

    go(opt, 30)
    opt.mark_failed(opt.pending[0])
    opt.mark_abandoned(opt.pending[0])
    opt.save(tmp_path / "study.db")
    loaded = bd.load(tmp_path / "study.db")
    assert loaded.certificate.regret == opt.certificate.regret
    assert loaded.guarantee == opt.guarantee
    go(opt, 12)
    go(loaded, 12)
    assert [(t.index, t.slot) for t in opt.trials] == [(t.index, t.slot) for t in loaded.trials]
    assert loaded.certificate.regret == pytest.approx(opt.certificate.regret)
    opt.save(tmp_path / "study.db")


def test_a_budget_that_was_tampered_with_is_refused():
    problem, norm = random_problem(4)
    opt = optimizer(problem, norm)
    opt.tell(opt.ask(), 0.3)
    state = opt.state_dict()
    number = next(n for n, event in enumerate(state["events"]) if event["kind"] == "asked")
    asked = state["events"][number]
    for price in ("much", None, math.nan, [1.0]):
        forged = asked | {"data": asked["data"] | {"price": price}}
        events = [*state["events"][:number], forged, *state["events"][number + 1 :]]
        with pytest.raises(bd.exceptions.StorageError, match="Stored event"):
            optimizer(problem, norm).load_state_dict(state | {"events": events})


def test_reading_and_saving_change_nothing():
    problem, norm = random_problem(1)
    quiet, watched = (optimizer(problem, norm, 1.05) for _ in range(2))
    noise = NOISE * torch.randn(HORIZON, generator=generator(3), dtype=torch.double)
    waiting = []
    for _ in range(16):
        pair = quiet.ask(), watched.ask()
        assert pair[0].index == pair[1].index
        waiting.append(pair)
        if len(waiting) > 4:
            for opt, trial in zip((quiet, watched), waiting.pop(0), strict=True):
                opt.tell(trial, problem.values[trial.index].item() + noise[trial.id].item())
        _ = watched.certificate.regret, watched.active_set, watched.guarantee
        watched.state_dict()
    assert quiet.certificate.regret == watched.certificate.regret


def test_a_point_that_cannot_be_asked_eliminates_nobody():
    problem, norm = random_problem(6)
    domain = bd.FiniteDomain(POINTS[:12])
    opt = bd.BPEDelayOptimizer(
        domain,
        HORIZON,
        covar_module=KERNEL,
        noise_var=1e-4,
        confidence=bd.RKHSConfidence(norm, 0.01),
        exploit=bd.WithinBudget(factor=1.5),
    )
    best = int(problem.values[:12].argmax())
    answered = False
    for _ in range(100):
        trial = opt.ask()
        if trial.index == best and answered:
            opt.mark_failed(trial)
        else:
            answered |= trial.index == best
            opt.tell(trial, problem.values[trial.index].item())
        assert len(opt.active_set.indices) > 0


@pytest.mark.filterwarnings("ignore::botorch.exceptions.warnings.InputDataWarning")
@pytest.mark.filterwarnings("ignore::botorch_delay.exceptions.NumericsWarning")
@pytest.mark.parametrize("std", some([1e-5, 1e-3], 1))
def test_single_precision_and_tiny_noise_give_no_nan(std):
    points = POINTS[:60].float()
    kernel = se(0.25).float()
    f = covariance(KERNEL, POINTS[:60], POINTS[:1]).squeeze(1)
    opt = bd.BPEDelayOptimizer(
        bd.FiniteDomain(points),
        HORIZON,
        covar_module=kernel,
        noise_var=1e-4,
        confidence=bd.RKHSConfidence(1.0, std),
        exploit=bd.WithinBudget(factor=1.25),
    )
    regret = 0.0
    for trial in (opt.ask() for _ in range(120)):
        regret += (f.max() - f[trial.index]).item()
        opt.tell(trial, f[trial.index].item())
    assert regret <= opt.certificate.regret < 120.0
    assert opt.guarantee.holds
    other = bd.BPEDelayOptimizer(
        bd.FiniteDomain(points),
        HORIZON,
        covar_module=kernel,
        noise_var=1e-4,
        confidence=bd.RKHSConfidence(1.0, std),
        exploit=bd.WithinBudget(factor=1.25),
    )
    other.load_state_dict(opt.state_dict())
    assert other.certificate.regret == opt.certificate.regret


def test_what_was_not_planned_is_said():
    problem, norm = random_problem(0)
    opt = optimizer(problem, norm, 1.0)
    trial = opt.ask()
    while trial.slot != 0:
        opt.tell(trial, problem.values[trial.index].item())
        trial = opt.ask()
    for _ in range(3):
        assert "was given up:" not in str(opt.guarantee)
        opt.mark_abandoned(trial)
        trial = opt.ask()
    assert "was given up:" in str(opt.guarantee)
    assert "certificate still holds." in str(opt.guarantee)
    opt = optimizer(problem, norm)
    opt.tell(opt.ask(), 0.1, noise_var=0.5)
    assert "above noise_std squared" in str(opt.guarantee)


def test_the_guarantee_says_what_it_costs():
    problem, norm = random_problem(4)
    guarantee = optimizer(problem, norm, 1.5).guarantee
    assert guarantee.holds
    assert guarantee.factor == 1.5
    assert "1.5 times the regret bound" in str(guarantee)
    assert "Any asks cost at most" in str(guarantee)
    opt = optimizer(problem, 1e-3)
    for trial in opt.ask(5):
        opt.tell(trial, 40.0)
    opt.ask()
    assert "contradict" in str(opt.guarantee)
    assert len(opt.active_set.indices) >= 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"confidence": bd.FixedBeta(6.0)}, "RKHSConfidence"),
        ({"covar_module": None, "noise_var": None}, "covar_module"),
        ({"exact": True, "noise_var": None}, "exact"),
        ({"delay": bd.NoDelay()}, "leave out"),
        ({"evidence": "all"}, "evidence and explore_fraction"),
        ({"explore_fraction": 0.5}, "explore_fraction"),
        ({"rounds": bd.GeometricRounds(4, 2.0)}, "leave out"),
    ],
)
def test_bad_arguments(change, message):
    problem, norm = random_problem(0)
    with pytest.raises(InputError, match=message):
        optimizer(problem, norm, **change)
    with pytest.raises(InputError, match="at least 1"):
        bd.WithinBudget(factor=0.9)
    box = bd.BoxDomain(torch.tensor([[0.0], [1.0]], dtype=torch.double))
    options = {"covar_module": se(), "noise_var": 0.01, "confidence": bd.RKHSConfidence(1.0, 0.1)}
    with pytest.raises(NotSupportedError, match="FiniteDomain"):
        bd.BPEDelayOptimizer(box, 20, exploit=bd.WithinBudget(factor=1.5), **options)


@pytest.mark.heavy
def test_three_hundred_runs_under_adversarial_delays(capsys):
    """Delays depend on the point, on whether it is a design point, and on the value itself."""

    def late_if(bad):
        return lambda trial, y, f: 40 if bad(trial, y, f) else 0

    adversaries = {
        "best points": late_if(lambda trial, y, f: f[trial.index] > 0.5 * f.max()),
        "design points": late_if(lambda trial, y, f: trial.slot >= 0),
        "large values": late_if(lambda trial, y, f: y > f.mean()),
        "positive noise": late_if(lambda trial, y, f: y > f[trial.index]),
        "never the best": lambda trial, y, f: 10**6 if f[trial.index] > 0.9 * f.max() else 3,
    }
    lines, runs = [], repeats(30, 1)
    for (name, delay), factor in itertools.product(adversaries.items(), (1.0, 1.5)):
        lost = uncertified = 0
        for seed in range(runs):
            problem, norm = random_problem(seed)
            opt = optimizer(problem, norm, factor)
            g, due, regret = generator(1000 + seed), [], 0.0
            for number in range(HORIZON):
                for entry in [e for e in due if e[0] < number]:
                    due.remove(entry)
                    opt.tell(entry[1], entry[2])
                trial = opt.ask()
                f = problem.values
                regret += (f.max() - f[trial.index]).item()
                noise = NOISE * torch.randn((), generator=g, dtype=torch.double).item()
                y = f[trial.index].item() + noise
                due.append((number + delay(trial, y, f), trial, y))
            lost += int(problem.values.argmax()) not in opt.active_set.indices
            uncertified += regret > opt.certificate.regret
        lines.append(f"{name}, F = {factor}: maximiser lost {lost}, not certified {uncertified}")
        assert lost + uncertified <= runs * DELTA
    with capsys.disabled():
        print("\n" + "\n".join(lines))


class Own(bd.Confidence):
    """A user's own bounds, with constants."""

    missing, assumptions = (), ()

    def __init__(self, norm):
        self._known = bd.RKHSConfidence(norm, NOISE)

    @property
    def constants(self):
        return self._known.constants

    def fixed_design(self, evidence):
        return self._known.fixed_design(evidence)

    def adaptive(self, evidence):
        return self._known.adaptive(evidence)


def test_bounds_of_a_user_s_own_claim_nothing_on_a_box_unless_they_say_so():
    box = bd.BoxDomain(torch.tensor([[0.0], [1.0]], dtype=torch.double))
    opt = bd.BPEDelayOptimizer(
        box, 20, covar_module=se(), noise_var=NOISE**2, confidence=Own(1.0), exploit=None
    )
    assert not opt.guarantee.holds
    assert any("Own does not say" in line for line in opt.guarantee.missing)


def test_bounds_of_a_user_s_own_have_a_budget_where_they_name_their_constants():
    problem, norm = random_problem(0)
    both = [optimizer(problem, norm), optimizer(problem, norm, confidence=Own(norm))]
    for opt in both:
        for _ in range(12):
            trial = opt.ask()
            opt.tell(trial, problem.values[trial.index].item())
    known, own = both
    assert [t.index for t in own.trials] == [t.index for t in known.trials]
    assert own.certificate.regret == known.certificate.regret > 0.0
    assert own.guarantee.norm_at_least == known.guarantee.norm_at_least


def test_a_run_of_one_ask_can_be_extended():
    points = torch.linspace(0.0, 1.0, 5, dtype=torch.double).unsqueeze(-1)

    def make():
        confidence, rule = bd.RKHSConfidence(1.0, 0.1), bd.WithinBudget()
        options = {"covar_module": RBFKernel().double(), "noise_var": 0.01}
        domain = bd.FiniteDomain(points)
        return bd.BPEDelayOptimizer(domain, 1, confidence=confidence, exploit=rule, **options)

    opt, other = make(), make()
    opt.tell(opt.ask(), 1.0)
    opt.extend(2)
    other.load_state_dict(opt.state_dict())
    assert other.ask().index == opt.ask().index


def test_an_extension_that_is_interrupted_leaves_the_run_as_it_was(monkeypatch):
    opt, other = (optimizer(*random_problem(0)) for _ in range(2))
    for _ in range(5):
        opt.tell(opt.ask(), 0.0)

    def pressed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(budget, "greedy_max_variance", pressed)
        with pytest.raises(KeyboardInterrupt):
            opt.extend(HORIZON + 50)
    other.load_state_dict(opt.state_dict())
    assert opt.horizon == HORIZON
    assert opt.guarantee == other.guarantee
    assert [t.index for t in opt.ask(20)] == [t.index for t in other.ask(20)]
