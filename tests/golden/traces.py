"""Scripted runs of every optimizer, call by call, and the traces of what they return.

A case is an optimizer and a fixed sequence of calls; its trace is what these calls returned.
Only public names are used, so that a trace can outlive the code that it was made with. An
option that may move one day is set in one function, under "Options".
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from botorch.acquisition import UpperConfidenceBound
from botorch.acquisition.logei import qLogNoisyExpectedImprovement
from botorch.exceptions.warnings import InputDataWarning
from cases import line, scattered, se, sobol_points, with_values
from gpytorch.kernels import Kernel, MaternKernel, RBFKernel, ScaleKernel

import botorch_delay as bd
from botorch_delay.exceptions import (
    BotorchDelayError,
    EmptyDomainError,
    FewerTrialsWarning,
    NumericsWarning,
    RepeatedResultWarning,
)

ASKS = 40  # asks of a case, also its horizon
FEW_ASKS = 18  # of the slow cases: a box, or a learned kernel
NOISE_VAR = 2.5e-3  # record.py --nudge changes it
DEVICE = "cpu"  # record.py --device changes it
OUR_WARNINGS = (FewerTrialsWarning, NumericsWarning, RepeatedResultWarning, InputDataWarning)

Make = Callable[[bool], bd.Optimizer]
Script = Callable[["Play"], None]


@dataclass(frozen=True)
class Case:
    """An optimizer and the calls that are made.

    Attributes:
        make: builds the optimizer, given whether it maximises.
        script: the calls.
        maximize: whether large values are good.
        asks: how many asks the script may make.
        tolerance: largest difference of two numbers, relative to the larger one.
    """

    make: Make
    script: Script
    maximize: bool
    asks: int
    tolerance: float


# ---- What is optimised.

CENTRES = ((0.2, 0.3, 0.9), (0.75, 0.65, 1.4), (0.5, 0.1, -0.8))  # norm 1.55 for se(0.4)
NORM, NOISE_STD = 1.6, 0.05


def objective(domain: Any, x: torch.Tensor) -> float:
    """A function of norm 1.55 on the unit square, and a slope along all other columns."""
    low, high = domain.bounds.double()
    u = ((x.double() - low) / (high - low)).tolist() if isinstance(domain, bd.BoxDomain) else x
    first, second, *others = [*map(float, u), 0.0][: max(len(u), 2)]
    bumps = (
        weight * math.exp(-((first - a) ** 2 + (second - b) ** 2) / (2 * 0.4**2))
        for a, b, weight in CENTRES
    )
    return sum(bumps) - 0.3 * sum(others)


class Play:
    """Makes calls of an optimizer and records its trace."""

    def __init__(self, case: Case, nudge: float = 0.0) -> None:
        self.opt = case.make(case.maximize)
        self.asks = case.asks
        self.sign = (1.0 if case.maximize else -1.0) * (1.0 + nudge)
        self.asked: list[list[Any]] = []
        self.looks: list[dict[str, Any]] = []
        domain = self.opt.domain
        self.probes = sobol_points(domain, 128, 7) if isinstance(domain, bd.BoxDomain) else None

    def ask(self, n: int | None = None) -> list[bd.Trial]:
        """Ask; an empty list where no point is left."""
        try:
            asked = self.opt.ask() if n is None else self.opt.ask(n)
        except EmptyDomainError as error:
            self.asked.append([type(error).__name__])
            return []
        trials = [asked] if isinstance(asked, bd.Trial) else asked
        self.asked += [[where(t), t.round, t.slot] for t in trials]
        return trials

    def value(self, trial: bd.Trial) -> float:
        """The answer of a trial, with noise that depends on its number."""
        noise = 0.0 if self.opt.exact else NOISE_STD * math.sin(12.9898 * trial.id + 1.0)
        return self.sign * (objective(self.opt.domain, trial.x) + noise)

    def tell(self, trial: bd.Trial, noise_var: float | None = None) -> None:
        """Answer a trial."""
        self.opt.tell(trial, self.value(trial), noise_var=noise_var)

    def attach(self) -> None:
        """Hand over two results for points of the domain, one of them twice, and one outside."""
        opt, (low, high) = self.opt, self.opt.domain.bounds
        inside = self.probes[:2] if self.probes is not None else opt.domain.points[[2, -1]]
        values = [self.sign * objective(opt.domain, x) for x in inside]
        opt.attach(inside, inside.new_tensor(values))
        opt.attach(inside[0], values[0])
        outside = high + 0.1 * (high - low)
        opt.attach(outside, self.sign * objective(opt.domain, outside))

    def look(self) -> None:
        """Record what the optimizer recommends, guarantees and has eliminated."""
        opt = self.opt
        guarantee = opt.guarantee
        seen: dict[str, Any] = {
            "asks": len(opt.trials),
            "pending": [t.id for t in opt.pending],
            "recommend": attempt(lambda: recommended(opt)),
            "stopping_gap": attempt(opt.stopping_gap),
            "guarantee": {
                "holds": guarantee.holds,
                "factor": guarantee.factor,
                "missing": list(guarantee.missing),
                "assumptions": list(guarantee.assumptions),
                "extra_asks": guarantee.extra_asks,
                "norm_at_least": guarantee.norm_at_least,
            },
        }
        if isinstance(opt, bd.BPEDelayOptimizer):
            seen["rounds"] = [closed(record) for record in opt.rounds]
            seen["certified_regret"] = attempt(lambda: certified(opt))
            if self.probes is None:
                seen["active"] = opt.active_set.indices.tolist()
            else:
                inside = opt.active_set.contains(self.probes)
                seen["active_probes"] = int(inside.sum())
        self.looks.append(seen)

    @property
    def trace(self) -> dict[str, Any]:
        """The whole trace, JSON-ready."""
        return {"asked": self.asked, "looks": self.looks}


def play(case: Case, nudge: float = 0.0) -> dict[str, Any]:
    """The trace of a case.

    Args:
        case: the case to play.
        nudge: relative change of the answers and noise variances.
    """
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        played = Play(case, nudge)
        case.script(played)
    for warning in heard:
        if not issubclass(warning.category, OUR_WARNINGS):
            warnings.warn_explicit(
                warning.message, warning.category, warning.filename, warning.lineno
            )
    ours = {w.category.__name__ for w in heard if issubclass(w.category, OUR_WARNINGS)}
    return played.trace | {"warnings": sorted(ours)}


def where(point: Any) -> Any:
    """A point of a set by its index, one of a box by its coordinates."""
    return point.x.tolist() if point.index is None else point.index


def attempt(call: Callable[[], Any]) -> Any:
    """What a call returns, or the name of the error that it raises."""
    try:
        return call()
    except BotorchDelayError as error:
        return type(error).__name__


def recommended(opt: bd.Optimizer) -> dict[str, Any]:
    best = opt.recommend()
    return {"where": where(best), "mean": best.mean, "lower": best.lower, "upper": best.upper}


def certified(opt: bd.Optimizer) -> float | str:
    certificate = opt.certificate
    if not certificate.proved:
        return "NotSupportedError"
    return "RefutedError" if certificate.refuted else certificate.regret


def closed(record: bd.RoundRecord) -> dict[str, Any]:
    return {
        "design_size": record.design_size,
        "length": record.length,
        "observed": record.observed,
        "active_before": record.active_before,
        "active_after": record.active_after,
        "multiplier": record.multiplier,
        "delta": record.delta,
        "cutoff": record.cutoff,
        "trial_ids": list(record.trial_ids),
    }


# ---- Sequences of calls.


def steady(run: Play) -> None:
    """Three in flight, answered in order; all are answered at the end."""
    running: list[bd.Trial] = []
    for number in range(run.asks):
        running += run.ask()
        if len(running) > 3:
            run.tell(running.pop(0))
        if number == run.asks // 2:
            run.look()
    for trial in running:
        run.tell(trial)
    run.look()


def prompt(run: Play) -> None:
    """No delay: every trial is answered before the next ask."""
    for number in range(run.asks):
        for trial in run.ask():
            run.tell(trial)
        if number == run.asks // 2:
            run.look()
    run.look()


def batches(run: Play) -> None:
    """Five at a time, answered last first; the last of each batch comes with the next one."""
    late: list[bd.Trial] = []
    while len(run.asked) < run.asks:
        trials = run.ask(min(5, run.asks - len(run.asked)))
        for trial in [*reversed(trials[:-1]), *late]:
            run.tell(trial)
        late = trials[-1:]
        if len(run.asked) == run.asks // 2 // 5 * 5:
            run.look()
    run.opt.finish()
    run.look()


def unruly(run: Play, noisy: bool = True, failures: bool = True) -> None:
    """Answers out of order, failures, trials that come back late, results from elsewhere.

    Args:
        run: the optimizer to call.
        noisy: whether some answers have a noise variance of their own.
        failures: whether some trials fail, or are abandoned.
    """
    due: list[tuple[int, int, str, bd.Trial]] = []
    turn, looked = 0, False
    while len(run.asked) < run.asks:
        together = min(3, run.asks - len(run.asked)) if turn % 6 == 3 else None
        trials = run.ask(together)
        if not trials:
            break
        for trial in trials:
            fate = "tell"
            if failures and trial.id % 11 == 4:
                fate = "fail"
            elif failures and trial.id % 13 == 6:
                fate = "abandon"
            elif noisy and trial.id % 10 == 9:
                fate = "tell noisy"
            due.append((turn + (5 * trial.id + 3) % 7, -trial.id, fate, trial))
        due.sort(key=lambda entry: entry[:2])
        while due and due[0][0] <= turn:
            _, _, fate, trial = due.pop(0)
            settle(run, fate, trial)
            if fate == "abandon":
                due.append((turn + 9, -trial.id, "tell", trial))
        if turn == 7:
            run.attach()
        if len(run.asked) > run.asks // 2 and not looked:
            run.look()
            looked = True
        turn += 1
    for _, _, fate, trial in due[:-2]:
        settle(run, fate, trial)
    run.look()
    run.opt.finish()
    for _, _, fate, trial in due[-2:]:
        settle(run, fate, trial)
    run.look()


def settle(run: Play, fate: str, trial: bd.Trial) -> None:
    if fate == "fail":
        run.opt.mark_failed(trial, "it crashed")
    elif fate == "abandon":
        run.opt.mark_abandoned(trial.id)
    else:
        run.tell(trial, noise_var=0.05 if fate == "tell noisy" else None)


def without_noise(run: Play) -> None:
    """As ``unruly``, for optimizers whose evaluations are exact."""
    unruly(run, noisy=False)


def jumbled(run: Play) -> None:
    """As ``unruly``, but every trial is answered, with the usual noise."""
    unruly(run, noisy=False, failures=False)


def ended_early(run: Play) -> None:
    """Finished at three quarters of the horizon, with trials in flight that are answered later."""
    running: list[bd.Trial] = []
    for _ in range(run.asks * 3 // 4):
        running += run.ask()
        if len(running) > 4:
            run.tell(running.pop(len(run.asked) % 2))
    run.look()
    run.opt.finish()
    run.look()
    for trial in running[::-1]:
        run.tell(trial)
    run.look()


def never_back(run: Play) -> None:
    """Every seventh trial stays out until the end; halfway two are abandoned, so rounds go on."""
    running: list[bd.Trial] = []
    for number in range(run.asks):
        for trial in run.ask():
            if trial.id % 7 != 5:
                running.append(trial)
        if len(running) > 2:
            run.tell(running.pop(0))
        if number == run.asks // 2:
            run.look()
            for trial in run.opt.pending[:2]:
                run.opt.mark_abandoned(trial)
    for trial in run.opt.pending:
        run.tell(trial)
    run.look()


def crashing(run: Play) -> None:
    """Half of the points crash whenever they are asked, until none may be asked any more."""
    for number in range(run.asks):
        trials = run.ask()
        if not trials:
            break
        for trial in trials:
            if number > 12 or trial.index % 2:
                run.opt.mark_failed(trial)
            else:
                run.tell(trial)
        if number == 8:
            run.look()
    run.look()


# ---- Domains.

SQUARE = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.double)


def points(n: int = 40) -> bd.FiniteDomain:
    return bd.FiniteDomain(scattered(n).to(DEVICE))


def grid() -> bd.FiniteDomain:
    """7 x 7 points with many ties."""
    axis = torch.linspace(0, 1, 7, dtype=torch.double)
    return bd.FiniteDomain(torch.cartesian_prod(axis, axis).to(DEVICE))


def on_a_line() -> bd.FiniteDomain:
    return bd.FiniteDomain(line(33).to(DEVICE))


def single_precision() -> bd.FiniteDomain:
    return bd.FiniteDomain(scattered(40).float().to(DEVICE))


def square() -> bd.BoxDomain:
    return bd.BoxDomain(SQUARE.to(DEVICE))


def mixed() -> bd.BoxDomain:
    """A logarithmic column, a list of numbers, and categories."""
    bounds = torch.tensor([[1e-3, -1.0, 0.0], [1e-1, 1.0, 2.0]], dtype=torch.double)
    return bd.BoxDomain(
        bounds.to(DEVICE), discrete_dims={1: [-1, 0, 1]}, cat_dims={2: [0, 1, 2]}, log_dims=[0]
    )


def lists() -> bd.BoxDomain:
    """Lists of numbers and a category alone: climbs can only end at listed values."""
    bounds = torch.tensor([[1.0, 0.0, 0.0], [64.0, 1.0, 2.0]], dtype=torch.double)
    values = {0: [2**n for n in range(7)], 1: [0.1 * n for n in range(11)]}
    return bd.BoxDomain(
        bounds.to(DEVICE), discrete_dims=values, cat_dims={2: [0, 1, 2]}, log_dims=[0]
    )


def constrained() -> bd.BoxDomain:
    """A linear constraint and one of the user's own."""
    bounds = torch.tensor([[0.0, 0.0, 0.0], [1.0, 1.0, 2.0]], dtype=torch.double)
    sums = (torch.tensor([0, 1]), torch.tensor([-1.0, -1.0], dtype=torch.double), -1.5)
    return bd.BoxDomain(
        bounds.to(DEVICE), discrete_dims={2: [0, 1, 2]}, constraints=[sums], feasible=_outside
    )


def _outside(X: torch.Tensor) -> torch.Tensor:
    return (X[:, 0] - 0.5).abs() + (X[:, 1] - 0.5).abs() >= 0.1


# ---- Options: each set in one place.


def given(kernel: Kernel | None = None, noise_var: float | None = None) -> dict[str, Any]:
    """A kernel and noise variance that are given."""
    noise_var = NOISE_VAR if noise_var is None else noise_var
    kernel = se() if kernel is None else kernel
    return {"covar_module": kernel.to(DEVICE), "noise_var": noise_var}


def learned(warm_start: bd.Hyperparameters | None = None) -> dict[str, Any]:
    return {"covar_module": bd.Learned(warm_start), "noise_var": None}


def exact() -> dict[str, Any]:
    return {"covar_module": se().to(DEVICE), "noise_var": None, "exact": True}


def exploit(
    rule: Any, *, repeat_pending: bool = True, final_fraction: float | None = None
) -> dict[str, Any]:
    """The rule for asks that are not design points."""
    return {"exploit": bd.Exploit(rule, repeat_pending, final_fraction)}


def within_budget(factor: float) -> dict[str, Any]:
    return {"exploit": bd.WithinBudget(factor=factor)}


def leaving_stragglers(factor: float) -> dict[str, Any]:
    return {"rounds": bd.HorizonRounds(straggler_factor=factor)}


def pending(treatment: bd.Pending, *, repeat_pending: bool = True) -> dict[str, Any]:
    """How an index method treats trials in flight."""
    return {"pending": treatment, "repeat_pending": repeat_pending}


DESIGN_ONLY = {"exploit": None}
TIGHT = bd.RKHSConfidence(NORM, NOISE_STD)
PLAIN = bd.RKHSConfidence(NORM, NOISE_STD, tight=False)
KNOWN = bd.Hyperparameters([0.3, 0.6], 0.02)


def posterior_bound(model: Any, X_pending: torch.Tensor | None = None) -> UpperConfidenceBound:
    return UpperConfidenceBound(model, beta=2.0)


# ---- Makers.

Parts = Callable[[], Mapping[str, Any]] | Mapping[str, Any]


def _merged(parts: Sequence[Parts]) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for part in parts:
        options |= part() if callable(part) else part
    return options


def bpe(
    domain: Callable[[], Any], *parts: Parts, horizon: int | None = ASKS, **options: Any
) -> Make:
    def make(maximize: bool) -> bd.Optimizer:
        merged = _merged(parts) | options
        return bd.BPEDelayOptimizer(domain(), horizon, maximize=maximize, **merged)

    return make


def published(domain: Callable[[], Any], *parts: Parts, **options: Any) -> Make:
    def make(maximize: bool) -> bd.Optimizer:
        merged = _merged(parts) | options
        return bd.BPEDelayOptimizer.as_published(domain(), ASKS, maximize=maximize, **merged)

    return make


def index(domain: Callable[[], Any], *parts: Parts, **options: Any) -> Make:
    def make(maximize: bool) -> bd.Optimizer:
        merged = {"horizon": ASKS} | _merged(parts) | options
        return bd.AcquisitionOptimizer(domain(), maximize=maximize, **merged)

    return make


def threds(domain: Callable[[], Any], *parts: Parts, **options: Any) -> Make:
    def make(maximize: bool) -> bd.Optimizer:
        merged = _merged(parts) | options
        return bd.ThreDSOptimizer(domain(), horizon=ASKS, maximize=maximize, **merged)

    return make


def at_random(domain: Callable[[], Any], **options: Any) -> Make:
    return lambda maximize: bd.RandomOptimizer(domain(), maximize=maximize, **options)


def queued(base: Make) -> Make:
    return lambda maximize: bd.QueuedOptimizer(base(maximize))


# ---- Cases.

CASES: dict[str, Case] = {}
UP, DOWN = True, False


# Tolerances. Climbs on a box and fits of hyperparameters stop short of the exact maximum: with
# both at work, answers that change by 1e-12 move points by 1e-3.
CLOSE, LOOSE, ROUGH = 1e-6, 1e-4, 1e-2


def _add(
    name: str,
    make: Make,
    script: Script,
    maximize: bool = UP,
    *,
    asks: int = ASKS,
    tolerance: float = CLOSE,
) -> None:
    assert name not in CASES
    CASES[name] = Case(make, script, maximize, asks, tolerance)


def _add_loose(
    name: str,
    make: Make,
    script: Script,
    maximize: bool = UP,
    *,
    asks: int = FEW_ASKS,
    tolerance: float = LOOSE,
) -> None:
    """Add a case on a box, or with a learned kernel."""
    _add(name, make, script, maximize, asks=asks, tolerance=tolerance)


def _add_rough(name: str, make: Make, script: Script, maximize: bool = UP, **options: Any) -> None:
    """Add a case on a box with a learned kernel."""
    _add_loose(name, make, script, maximize, tolerance=ROUGH, **options)


FIXED = bd.FixedBeta(6.0)
RARE = {"explore_fraction": 0.3}

# Algorithm 1, and rounds of fixed length.
_add("published", published(points, given, confidence=FIXED, delay=bd.PoissonDelay(3.0)), steady)
_add(
    "published, tight bounds",
    published(points, given, confidence=TIGHT, delay=bd.ConstantDelay(4)),
    steady,
)
_add(
    "published, no delay",
    published(grid, given, confidence=PLAIN, delay=bd.NoDelay(), delta=0.05),
    prompt,
    DOWN,
)
_add(
    "published, failures",
    published(points, given, confidence=TIGHT, delay=bd.GeometricDelay(mean=1.0)),
    unruly,
    DOWN,
)
_add("delay law, UCB", bpe(points, given, delay=bd.ConstantDelay(3)), unruly)
_add(
    "delay law, design only",
    bpe(
        points,
        given,
        DESIGN_ONLY,
        confidence=TIGHT,
        delay=bd.SubExponentialDelay(mean=1.0, xi=1.0, b=0.2),
    ),
    batches,
)

# Rounds that close on arrival, nothing but design points.
_add("arrival, heuristic", bpe(points, given, DESIGN_ONLY), steady)
_add("arrival, ties", bpe(grid, given, DESIGN_ONLY), prompt, DOWN)
_add("arrival, tight", bpe(points, given, DESIGN_ONLY, confidence=TIGHT), jumbled)
_add("arrival, plain", bpe(points, given, DESIGN_ONLY, confidence=PLAIN), unruly, DOWN)
_add("arrival, waits", bpe(points, given, DESIGN_ONLY, confidence=TIGHT), never_back)
_add("arrival, ended early", bpe(points, given, DESIGN_ONLY, confidence=TIGHT), ended_early)
_add(
    "arrival, Matern",
    bpe(
        on_a_line,
        lambda: given(
            with_values(
                ScaleKernel(with_values(MaternKernel(nu=2.5), lengthscale=0.3)), outputscale=2.0
            )
        ),
        DESIGN_ONLY,
        confidence=bd.RKHSConfidence(0.4, NOISE_STD),
    ),
    batches,
)
_add(
    "arrival, two lengthscales",
    bpe(
        grid,
        lambda: given(with_values(RBFKernel(ard_num_dims=2), lengthscale=[0.2, 0.7])),
        DESIGN_ONLY,
        delta=0.2,
    ),
    unruly,
)
_add("arrival, 4,200 points", bpe(lambda: points(4200), given, DESIGN_ONLY), batches, asks=20)
_add(
    "geometric",
    bpe(points, given, DESIGN_ONLY, rounds=bd.GeometricRounds(4, 1.5), confidence=TIGHT),
    jumbled,
)
_add(
    "geometric, no horizon",
    bpe(
        points,
        given,
        DESIGN_ONLY,
        rounds=bd.GeometricRounds(3, 2.0),
        confidence=TIGHT,
        horizon=None,
    ),
    ended_early,
    DOWN,
)
_add(
    "geometric, no horizon, UCB",
    bpe(points, given, RARE, rounds=bd.GeometricRounds(1, 2.0), horizon=None),
    unruly,
)
_add("small set that crashes", bpe(lambda: points(6), given, RARE), crashing)

# Rules beside the design.
_add("defaults, given kernel", bpe(points, given), unruly)
_add("defaults, minimise", bpe(grid, given), steady, DOWN)
_add("UCB, round", bpe(points, given, RARE, evidence="round"), unruly)
_add("UCB, all", bpe(points, given, RARE, evidence="all"), steady, DOWN)
_add("UCB, valid, round", bpe(points, given, RARE, confidence=TIGHT, evidence="round"), jumbled)
_add("UCB, valid, all", bpe(points, given, RARE, confidence=TIGHT, evidence="all"), steady)
_add(
    "UCB, plain, all",
    bpe(points, given, RARE, confidence=PLAIN, evidence="all"),
    unruly,
    DOWN,
)
_add(
    "TS, geometric",
    bpe(
        points,
        given,
        exploit(bd.ThompsonSampling()),
        explore_fraction=0.5,
        rounds=bd.GeometricRounds(3, 1.5),
    ),
    steady,
)
_add(
    "TS, wide",
    bpe(points, given, RARE, exploit(bd.ThompsonSampling(2.0)), confidence=TIGHT, seed=3),
    unruly,
    DOWN,
)
_add(
    "BoTorch UCB",
    bpe(points, given, RARE, exploit(bd.BotorchRule(UpperConfidenceBound, beta=4.0))),
    unruly,
)
_add(
    "BoTorch qLogNEI",
    bpe(points, given, RARE, exploit(qLogNoisyExpectedImprovement)),
    steady,
    DOWN,
    asks=20,
)
_add("budget", bpe(points, given, within_budget(1.25), confidence=TIGHT), steady)
_add("budget, design first", bpe(points, given, within_budget(1.0), confidence=TIGHT), jumbled)
_add("budget, minimise", bpe(grid, given, within_budget(2.0), confidence=PLAIN), unruly, DOWN)
_add(
    "budget, refuted",
    bpe(points, given, within_budget(1.5), confidence=bd.RKHSConfidence(0.2, 0.05)),
    prompt,
)
_add(
    "stragglers, design only",
    bpe(points, given, DESIGN_ONLY, leaving_stragglers(1.5), confidence=TIGHT),
    jumbled,
)
_add(
    "stragglers, UCB",
    bpe(points, given, RARE, leaving_stragglers(2.0), confidence=PLAIN),
    unruly,
    DOWN,
)
_add(
    "stragglers, heuristic",
    bpe(points, given, DESIGN_ONLY, leaving_stragglers(1.2)),
    never_back,
)
_add("exact", bpe(lambda: points(60), exact), without_noise)
_add("exact, valid", bpe(lambda: points(60), exact, RARE, confidence=TIGHT), steady, DOWN)
_add(
    "no repeats in flight",
    bpe(points, given, exploit(bd.UCB(4.0), repeat_pending=False), explore_fraction=0.5),
    unruly,
)
_add(
    "no repeats in flight, valid",
    bpe(points, given, RARE, exploit(bd.UCB(4.0), repeat_pending=False), confidence=TIGHT),
    batches,
    DOWN,
)
_add("confirm", bpe(points, given, RARE, exploit(bd.UCB(6.0), final_fraction=0.5)), jumbled)
_add(
    "single precision",
    bpe(single_precision, lambda: given(se().float()), RARE, confidence=TIGHT),
    steady,
    tolerance=LOOSE,
)

# Learned kernels.
_add_loose("learned", bpe(points, learned, horizon=FEW_ASKS), unruly)
_add_loose("learned, design only", bpe(points, learned, DESIGN_ONLY, horizon=FEW_ASKS), steady)
_add_loose(
    "learned, warm start",
    bpe(points, lambda: learned(KNOWN), RARE, horizon=FEW_ASKS),
    batches,
    DOWN,
)

_add_loose(
    "learned, exact",
    bpe(points, lambda: learned() | {"exact": True}, horizon=40),
    prompt,
    asks=40,
)

# Boxes.
_add_loose("box, defaults", bpe(square, given, horizon=24), unruly, asks=24)
_add_loose("box, design only", bpe(square, given, DESIGN_ONLY, horizon=30), steady, DOWN, asks=30)
for uniform in ("net", "trace"):
    valid = bd.RKHSConfidence(NORM, NOISE_STD, uniform=uniform)
    _add_loose(
        f"box, {uniform}",
        bpe(square, given, DESIGN_ONLY, confidence=valid, horizon=30),
        steady,
        asks=30,
    )
_add_loose(
    "box, net, plain, UCB",
    bpe(square, given, RARE, confidence=PLAIN, horizon=30),
    unruly,
    DOWN,
    asks=30,
)
_add_loose("box, mixed", bpe(mixed, lambda: given(se(0.6)), RARE, horizon=24), steady, asks=24)
_add_loose(
    "box, constrained",
    bpe(constrained, lambda: given(se(0.5)), DESIGN_ONLY, horizon=24),
    jumbled,
    asks=24,
)
_add_loose(
    "box, delay law",
    bpe(square, given, delay=bd.ConstantDelay(2), horizon=24, seed=5),
    batches,
    asks=24,
)
_add_loose(
    "box, TS",
    bpe(square, given, RARE, exploit(bd.ThompsonSampling()), horizon=FEW_ASKS),
    steady,
    DOWN,
)
_add_loose(
    "box, last asks",
    bpe(square, given, RARE, exploit(bd.UCB(4.0), final_fraction=0.5), horizon=FEW_ASKS),
    jumbled,
)
_add_rough("box, learned", bpe(square, learned, horizon=FEW_ASKS), prompt, asks=5)
_add_rough("box, learned, design only", bpe(square, learned, DESIGN_ONLY, horizon=FEW_ASKS), steady)
_add_rough("box, learned, lists", bpe(lists, learned, RARE, horizon=FEW_ASKS), unruly, DOWN)

# Index methods: every rule with every way to take what is in flight.
CENSOR = bd.Censor(-1.5, max_delay=4)
CENSOR_DOWN = bd.Censor(1.5, max_delay=4)
for label, rule in (
    ("UCB", bd.UCB(4.0)),
    ("TS", bd.ThompsonSampling(2.0)),
    ("BoTorch", bd.BotorchRule(UpperConfidenceBound, beta=4.0)),
):
    _add(
        f"{label}, ignore",
        index(points, given, pending(bd.Ignore()), rule=rule),
        unruly,
        asks=30,
    )
    _add(
        f"{label}, hallucinate",
        index(points, given, pending(bd.Hallucinate()), rule=rule),
        unruly,
        DOWN,
    )
    _add(f"{label}, censor", index(points, given, pending(CENSOR_DOWN), rule=rule), unruly, DOWN)
_add(
    "UCB, censor, inflate",
    index(points, given, pending(bd.Censor(-1.5, 4, inflate=True)), rule=bd.UCB(4.0)),
    batches,
)
_add(
    "qLogNEI, hallucinate",
    index(points, given, rule=qLogNoisyExpectedImprovement),
    batches,
    asks=15,
)
_add("a function's rule", index(grid, given, pending(bd.Ignore()), rule=posterior_bound), jumbled)
_add(
    "TS, 5,100 points",
    index(lambda: points(5100), given, rule=bd.ThompsonSampling()),
    steady,
    asks=15,
)
_add("index, exact", index(points, exact, rule=bd.UCB(4.0)), without_noise, asks=30)
_add(
    "index, no repeats in flight",
    index(points, given, pending(bd.Hallucinate(), repeat_pending=False), rule=bd.UCB(0.5)),
    jumbled,
)
_add("index, defaults", index(points, given), prompt, DOWN)
_add_loose("index, learned", index(points, learned), unruly)
_add_loose("index, learned, censor", index(points, learned, pending(CENSOR)), steady)
_add_loose("index, box, UCB", index(mixed, lambda: given(se(0.6)), rule=bd.UCB(4.0)), unruly)
_add_loose(
    "index, box, censor", index(square, given, pending(CENSOR_DOWN), rule=bd.UCB(4.0)), steady, DOWN
)
_add_loose(
    "index, box, TS",
    index(square, given, rule=bd.ThompsonSampling(), seed=2),
    steady,
)
_add_loose(
    "index, box, BoTorch",
    index(constrained, given, rule=bd.BotorchRule(UpperConfidenceBound, beta=4.0)),
    unruly,
    DOWN,
)
_add_rough("index, box, learned", index(square, learned), prompt, asks=5)
_add_rough("index, box, learned, lists", index(lists, learned), batches)
_add_rough("index, box, learned, options", index(mixed, learned), prompt, asks=20)

# The others.
INTERVAL = {"interval": (-2.0, 2.0)}
_add("threds", threds(points, given, INTERVAL, confidence=bd.FixedBeta(4.0), patience=4), steady)
_add("threds, valid", threds(grid, given, confidence=TIGHT, patience=3), unruly, DOWN)
_add(
    "threds, box",
    threds(square, given, INTERVAL, confidence=bd.FixedBeta(4.0), patience=3),
    jumbled,
)
_add_loose("random set", at_random(points, seed=4), unruly)
_add_rough("random box", at_random(mixed), unruly, DOWN, asks=24)
_add("queued index", queued(index(points, given, pending(bd.Ignore()), rule=bd.UCB(4.0))), unruly)
_add("queued BPE", queued(bpe(points, given, DESIGN_ONLY)), jumbled, DOWN)
_add(
    "queued threds",
    queued(threds(points, given, INTERVAL, confidence=bd.FixedBeta(4.0), patience=4)),
    steady,
)
