"""Problems, noise, delays and results from elsewhere that are as bad as the assumptions allow.

The problems are built against BPE-Delay's own first rounds: a function on the edge of the norm
ball whose maximiser lies where the first design knows least, and whose value at a design point is
almost as good (a decoy); two-valued noise, as large as its scale allows; delays that hold back the
answers that favour the maximiser, where a mode allows that.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from cases import generator, scattered, se, with_values
from gpytorch.kernels import Kernel, LinearKernel, MaternKernel
from torch import Generator, Tensor

import botorch_delay as bd
from botorch_delay.gp.kernels import covariance

HORIZON, DELTA, NORM = 100, 0.1, 2.0
LATE = 25  # asks
NEVER = 10**6
# With exact evaluations, once every point that may be the maximiser has been asked, only points
# known to be worse are left to ask. Their regret is not bounded, and need not be.
ALL_KNOWN = (
    "every active point is infeasible or its exact value is known already, so points that bounds "
    "had eliminated are asked."
)


@dataclass(frozen=True)
class Space:
    """Points, a kernel, the scale of the noise, and the surrogate's noise variance."""

    points: Tensor
    kernel: Kernel
    noise_std: float = 0.2
    noise_var: float = 0.04


def _matern() -> Kernel:
    return with_values(MaternKernel(nu=0.5), lengthscale=0.5)


def _linear(d: int) -> Space:
    points = 2.0 * scattered(80, d, seed=d) - 1.0
    return Space(points, with_values(LinearKernel(), variance=1.0 / d))


def _twins() -> Tensor:
    """Every point has another at a distance of 1e-6."""
    points = scattered(40, seed=3)
    shift = torch.tensor([1e-6, 0.0], dtype=torch.double)
    return torch.cat([points, points + shift])


SPACES = {
    "se": Space(scattered(80), se(0.25)),
    "matern12": Space(scattered(80, seed=1), _matern()),
    "linear5": _linear(5),
    "linear10": _linear(10),
    "se-twins": Space(_twins(), se(0.25)),
    "matern12-twins": Space(_twins(), _matern()),
    "se-tiny": Space(scattered(80, seed=2), se(0.3), 1e-5, 1e-10),
    "matern12-tiny": Space(scattered(80, seed=5), _matern(), 1e-5, 1e-10),
    "linear5-tiny": Space(_linear(5).points, _linear(5).kernel, 1e-5, 1e-10),
    "se-twins-tiny": Space(_twins(), se(0.3), 1e-5, 1e-10),
    "se-other-noise": Space(scattered(80, seed=4), se(0.25), 0.2, 0.2**2 / 9.0),
}


def _pick(n: int, g: Generator) -> int:
    return int(torch.randint(n, (), generator=g))


@dataclass(frozen=True)
class Combination:
    """A function sum_i w_i k(., c_i) in the RKHS of the kernel."""

    centres: Tensor
    weights: Tensor

    def __add__(self, other: Combination) -> Combination:
        return Combination(
            torch.cat([self.centres, other.centres]), torch.cat([self.weights, other.weights])
        )

    def times(self, factor: float | Tensor) -> Combination:
        return Combination(self.centres, factor * self.weights)

    def square(self, kernel: Kernel) -> tuple[Tensor, Tensor]:
        """The squared RKHS norm, and how much rounding may have taken from it."""
        K, w = covariance(kernel, self.centres, self.centres).detach(), self.weights
        eps = torch.finfo(K.dtype).eps
        return w @ K @ w, 4 * len(w) * eps * (w.abs() @ K.abs() @ w.abs())

    def of_norm(self, norm: float, kernel: Kernel) -> Combination:
        """A multiple with the given norm; rounding may leave it slightly below, never above."""
        square, rounding = self.square(kernel)
        return self.times(norm / (square + rounding).sqrt())

    def values(self, space: Space) -> Tensor:
        return covariance(space.kernel, space.points, self.centres).detach() @ self.weights


def _bump(space: Space, row: int) -> Combination:
    """The kernel centred at a point, scaled to norm 1."""
    one = torch.ones(1, dtype=torch.double)
    return Combination(space.points[row : row + 1], one).of_norm(1.0, space.kernel)


def _hidden(space: Space, design: Tensor) -> Combination:
    """A function of norm 1 that the design cannot see, with its maximum where it knows least.

    The kernel at the point of largest posterior deviation, less its regression on the design.
    Where rounding would blur its norm, only the first half of the design is used, and so on.
    """
    while True:
        X = space.points[design]
        K = covariance(space.kernel, X, X).detach() + space.noise_var * torch.eye(len(X)).double()
        k = covariance(space.kernel, X, space.points).detach()
        weights = torch.linalg.solve(K, k)
        prior = space.kernel(space.points, diag=True).detach()
        best = int((prior - (k * weights).sum(dim=0)).argmax())
        top = Combination(space.points[best : best + 1], torch.ones(1, dtype=torch.double))
        top = top + Combination(X, -weights[:, best])
        square, rounding = top.square(space.kernel)
        if rounding < 1e-7 * square or not len(design):
            return top.of_norm(1.0, space.kernel)
        design = design[: len(design) // 2]


def hidden(space: Space, design: Tensor, g: Generator) -> Combination:
    """A function of which the design sees hardly anything but noise."""
    return _hidden(space, design)


def bump(space: Space, design: Tensor, g: Generator) -> Combination:
    """The kernel centred at the point of which the design knows least."""
    return _bump(space, int(_hidden(space, design).values(space).argmax()))


def decoy(space: Space, design: Tensor, g: Generator) -> Combination:
    """The hidden function, and a bump at a design point that is almost as high as the maximum.

    Where there is hardly any noise, only bounds of full width keep the maximiser.
    """
    lure = _bump(space, int(design[_pick(len(design), g)]))
    return _outshone(space, _hidden(space, design), lure)


def crowd(space: Space, design: Tensor, g: Generator) -> Combination:
    """The hidden function, and bumps of random heights at all design points."""
    weights = torch.randn(len(design), generator=g, dtype=torch.double)
    lures = Combination(space.points[design], weights).of_norm(1.0, space.kernel)
    return _outshone(space, _hidden(space, design), lures)


def _outshone(space: Space, top: Combination, lure: Combination) -> Combination:
    """The sum of both, with the lure scaled as far as the maximiser stays where it is."""
    high, low = top.values(space), lure.values(space)
    best = int(high.argmax())
    rises = low - low[best]
    steep = rises > 1e-9
    share = torch.tensor(1.0)
    if steep.any():
        share = ((high[best] - high[steep]) / rises[steep]).min().clamp(max=30.0)
    return top + lure.times((1.0 - 1e-6) * share)


def dipole(space: Space, design: Tensor, g: Generator) -> Combination:
    """The kernel at a point that the design knows little of, less that at its nearest neighbour."""
    row = int(_hidden(space, design).values(space).argmax())
    nearest = int((space.points - space.points[row]).norm(dim=1).topk(2, largest=False).indices[1])
    return _bump(space, row) + _bump(space, nearest).times(-1.0)


def mixture(space: Space, design: Tensor, g: Generator) -> Combination:
    """A random combination of kernels at random points, regardless of the design."""
    rows = torch.randperm(len(space.points), generator=g)[:20]
    return Combination(space.points[rows], torch.randn(20, generator=g, dtype=torch.double))


Function = Callable[[Space, Tensor, Generator], Combination]
FUNCTIONS: tuple[Function, ...] = (decoy, hidden, crowd, dipole, decoy, mixture, bump)


@dataclass(frozen=True)
class Answer:
    """What an adversary sees of an evaluation when it sets its delay."""

    trial: bd.Trial
    f: Tensor  # at all points, to be maximised
    noise: float

    @property
    def is_best(self) -> bool:
        return self.trial.index == int(self.f.argmax())

    @property
    def value(self) -> float:
        return float(self.f[self.trial.index]) + self.noise


Delay = Callable[[Answer], int]


def against_the_best(answer: Answer) -> int:
    """Answers that favour the maximiser come late: its own good noise, and others' bad noise."""
    return LATE if (answer.noise > 0) is answer.is_best else 0


def large_values_late(answer: Answer) -> int:
    return LATE if answer.value > float(answer.f.mean()) else 1


def best_late(answer: Answer) -> int:
    return LATE if answer.is_best else 2


def design_late(answer: Answer) -> int:
    return LATE // 2 if answer.trial.slot >= 0 else 0


def best_never(answer: Answer) -> int:
    return NEVER if answer.is_best else 3


def good_points_never(answer: Answer) -> int:
    """No answer for the best tenth of all points."""
    return NEVER if answer.f[answer.trial.index] >= answer.f.quantile(0.9) else 2


def some_of_the_design_never(answer: Answer) -> int:
    return NEVER if answer.trial.slot % 4 == 1 else 5


# For modes whose claim allows delays that depend on values and noise, or on points only.
ON_VALUES = (against_the_best, best_late, large_values_late, design_late)
ON_POINTS = (best_never, good_points_never, best_late, some_of_the_design_never)


Failure = Callable[[Answer, int], bool]  # given how often the point was asked before


def some_points_at_first(answer: Answer, before: int) -> bool:
    """The first trial of the maximiser, and of every third point of the domain."""
    row = answer.trial.index or 0
    return before == 0 and (answer.is_best or row % 3 == 0)


def bad_values_at_first(answer: Answer, before: int) -> bool:
    return before == 0 and answer.value < float(answer.f.quantile(0.3))


def all_that_speaks_for_the_best(answer: Answer, before: int) -> bool:
    return (answer.noise > 0) is answer.is_best


@dataclass(frozen=True)
class Mode:
    """A way to use BPE-Delay, and what its claim allows an adversary.

    Attributes:
        options: constructor options; each run takes one of them.
        delays: the delays that the claim allows; unused where a delay law is given.
        law: the law of independent delays.
        as_published: whether ``BPEDelayOptimizer.as_published`` makes the optimizer.
        attached: results from elsewhere: "biased" where the bounds do not use them, "fair"
            where they do.
        stops: whether an early end of the run may depend on values.
        failure: which trials come back without a value: they fail or, where the problem allows it,
            are abandoned and answered later.
        only_certified: whether ``certificate`` is all that is claimed under these failures.
    """

    options: tuple[dict[str, Any], ...] = ({},)
    delays: tuple[Delay, ...] = ON_VALUES
    law: bd.DelayLaw | None = None
    as_published: bool = False
    attached: str = "biased"
    stops: bool = True
    failure: Failure | None = None
    only_certified: bool = False


@dataclass(frozen=True, eq=False)
class Problem:
    """A function on the edge of the norm ball, and all that an adversary decides about its run."""

    mode: Mode
    options: dict[str, Any]
    space: Space
    f: Tensor  # to be maximised
    delay: Delay
    seed: int
    name: str

    @property
    def exact(self) -> bool:
        return self.options.get("exact", False)

    @property
    def may_abandon(self) -> bool:
        """Not with exact evaluations: there an abandoned design point is not asked again."""
        return not self.exact

    @property
    def sign(self) -> float:
        return 1.0 if self.options.get("maximize", True) else -1.0

    def optimizer(self, divide: float = 1.0) -> bd.BPEDelayOptimizer:
        """An optimizer with the right constants, or with both divided by ``divide``."""
        space, mode = self.space, self.mode
        options = dict(self.options)
        # Exact evaluations satisfy the assumption with any noise scale above zero.
        scale = 1e-9 if self.exact else space.noise_std
        constants = NORM / divide, scale / divide
        confidence = bd.RKHSConfidence(*constants, options.pop("tight", True))
        if options.get("exploit") == "certifying":
            options["exploit"] = bd.WithinBudget(bd.CertifyingUCB(*constants, DELTA / 2.0))
        given = {"covar_module": space.kernel, "confidence": confidence, "delta": DELTA}
        if not self.exact:
            given["noise_var"] = space.noise_var
        if mode.law is not None:
            given["delay"] = mode.law
        make = bd.BPEDelayOptimizer.as_published if mode.as_published else bd.BPEDelayOptimizer
        return make(bd.FiniteDomain(space.points), HORIZON, **(given | options))


def make_problem(
    mode: Mode, seed: int, name: str | None = None, function: Function | None = None
) -> Problem:
    """A combination of space, function and delay; 308 consecutive seeds give each one once.

    Args:
        mode: the mode to play.
        seed: fixes the problem and the run.
        name: of the space; by default it follows from the seed.
        function: builds the objective; by default it follows from the seed.
    """
    g = generator(seed)
    name = name or tuple(SPACES)[seed % len(SPACES)]
    function = function or FUNCTIONS[seed % len(FUNCTIONS)]
    delay = mode.delays[seed % len(mode.delays)]
    options = mode.options[_pick(len(mode.options), g)]
    space = SPACES[name]
    # The function is hidden from the design of the first round, or of the first two.
    schedule, fraction = options.get("rounds", bd.HorizonRounds()), options.get("explore_fraction")
    size = schedule.design_size(1, 1, HORIZON, fraction or 1.0)
    if _pick(2, g):
        size = schedule.design_size(2, size, HORIZON, fraction or 1.0)
    noise_var = 1e-8 if options.get("exact") else space.noise_var
    design = bd.greedy_max_variance(space.kernel, space.points, noise_var, size)
    f = function(space, design, g).of_norm(NORM, space.kernel).values(space)
    how = "the law" if mode.law is not None else delay.__name__
    title = f"{name}, {function.__name__}, {how}, {options}, seed {seed}"
    return Problem(mode, options, space, f, delay, seed, title)


@dataclass
class Outcome:
    """What happened in a run.

    Attributes:
        lost: whether the maximiser was eliminated.
        exceeded: whether the regret was above the certified regret at any look.
        refuted: whether the certificate was refused because the answers contradict the constants.
        returned: whether the guarantee held again after it had ended.
        missing: the reasons why the guarantee did not hold at the end.
        eliminated: the number of points eliminated at the end.
    """

    lost: bool = False
    exceeded: bool = False
    refuted: bool = False
    returned: bool = False
    missing: tuple[str, ...] = ()
    eliminated: int = 0


class _Run:
    """One run; noise, save, attached results and early stop follow from the problem's seed."""

    def __init__(self, problem: Problem, folder: Path, divide: float) -> None:
        self.problem, self.mode, self.f = problem, problem.mode, problem.f
        self.opt = problem.optimizer(divide)
        self.best = int(self.f.argmax())
        self.g = g = generator(10_000 + problem.seed)
        scale = 0.0 if problem.exact else problem.space.noise_std
        self.noise = scale * (2.0 * torch.randint(2, (HORIZON,), generator=g).double() - 1.0)
        law = self.mode.law
        self.delays = None if law is None else law.sample(HORIZON, g).tolist()
        self.saved = HORIZON // 5 + _pick(HORIZON // 2, g)
        self.folder = folder if _pick(3, g) == 0 else None
        self.attached = _pick(HORIZON // 2, g) if _pick(2, g) else None
        self.stops = self.mode.stops and _pick(4, g) == 0  # stops as soon as it looks bad
        self.divide = divide
        self.due: dict[int, list[tuple[int, float]]] = {}
        self.failing: set[int] = set()
        self.outcome, self.closed, self.regret = Outcome(), 0, 0.0
        self.held, self.looks = True, 0

    def play(self) -> Outcome:
        for step in range(HORIZON):
            if step == self.saved:
                self.opt = _stored(self.opt, self.problem, self.folder, self.divide)
            if step == self.attached:
                _attach(self.opt, self.problem, self.g)
            looks_bad = [self.tell(*one, step) for one in self.due.pop(step, [])]
            if self.stops and step > HORIZON // 2 and any(looks_bad):
                break
            if self.problem.exact and _nothing_is_left(self.opt):
                break
            self.ask(step)
        if not self.stops:
            for number, value in itertools.chain(*(self.due[step] for step in sorted(self.due))):
                self.opt.tell(number, self.problem.sign * value)
                self.look()
        self.opt.finish()
        self.look(closed=True)
        return self.finished()

    def ask(self, step: int) -> None:
        trial = self.opt.ask()
        self.regret += float(self.f[self.best] - self.f[trial.index])
        self.look()
        answer = Answer(trial, self.f, float(self.noise[trial.id]))
        if self.mode.failure is not None:
            before = sum(other.index == trial.index for other in self.opt.trials) - 1
            if self.mode.failure(answer, before):
                self.failing.add(trial.id)
        law = self.delays
        delay = self.problem.delay(answer) if law is None else int(law[trial.id])
        self.due.setdefault(step + 1 + delay, []).append((trial.id, answer.value))

    def tell(self, number: int, value: float, step: int) -> bool:
        """Answer a trial or let it fail; returns whether the maximiser looks bad now."""
        if number in self.failing:
            self.failing.remove(number)
            if not self.problem.may_abandon or _pick(2, self.g):
                self.opt.mark_failed(number)
            else:
                self.opt.mark_abandoned(number)
                self.due.setdefault(step + LATE, []).append((number, value))
            return False
        self.opt.tell(number, self.problem.sign * value)
        self.look()
        return self.opt.trials[number].index == self.best and value < self.f[self.best]

    def look(self, closed: bool = False) -> None:
        """Record whether a claim that should hold at all times has been broken."""
        if closed or len(self.opt.rounds) > self.closed:
            self.closed = len(self.opt.rounds)
            self.outcome.lost |= self.best not in self.opt.active_set.indices
        held = self.opt.guarantee.holds
        self.outcome.returned |= held and not self.held
        self.held = held
        self.looks += 1
        if closed or self.looks % 10 == 0:
            certificate = self.opt.certificate
            self.outcome.exceeded |= self.regret > certificate.regret + 1e-9
            self.outcome.refuted |= certificate.refuted

    def finished(self) -> Outcome:
        if self.mode.only_certified:
            return replace(self.outcome, lost=False)
        missing = self.opt.guarantee.missing
        if self.problem.exact and _nothing_is_left(self.opt):
            missing = tuple(line for line in missing if line != ALL_KNOWN)
        self.outcome.missing = missing
        self.outcome.eliminated = len(self.f) - len(self.opt.active_set.indices)
        return self.outcome


def play(problem: Problem, folder: Path, divide: float = 1.0) -> Outcome:
    """Play a whole run, saved and loaded once on the way, with constants divided by ``divide``."""
    return _Run(problem, folder, divide).play()


def _nothing_is_left(opt: bd.BPEDelayOptimizer) -> bool:
    """Whether every point that may be the maximiser has been asked."""
    seen = {trial.index for trial in opt.trials} | {result.index for result in opt.attached}
    return seen.issuperset(opt.active_set.indices.tolist())


def _stored(
    opt: bd.BPEDelayOptimizer, problem: Problem, folder: Path | None, divide: float
) -> bd.BPEDelayOptimizer:
    """The optimizer restored from a file or, without a folder, from its state."""
    if folder is None:
        other = problem.optimizer(divide)
        other.load_state_dict(opt.state_dict())
        return other
    path = folder / "study.db"
    opt.save(path, overwrite=True)
    loaded = bd.load(path)
    assert isinstance(loaded, bd.BPEDelayOptimizer)
    return loaded


def _attach(opt: bd.BPEDelayOptimizer, problem: Problem, g: Generator) -> None:
    """Attach results that speak against the maximiser, as far as the claim allows it."""
    f, best = problem.f, int(problem.f.argmax())
    second = int(f.topk(2).indices[1])
    rows = torch.tensor([best, second])
    values = f[rows].clone()
    if problem.mode.attached == "biased":
        values += torch.tensor([-5.0, 5.0]) * NORM
    elif not problem.exact:
        signs = 2.0 * torch.randint(2, (2,), generator=g).double() - 1.0
        values += problem.space.noise_std * signs
    opt.attach(problem.space.points[rows], problem.sign * values)


UCB = bd.UCB(4.0)
_RULE, _DOWN = {"exploit": UCB}, {"maximize": False}
MODES = {
    "as published": Mode(law=bd.PoissonDelay(6.0), as_published=True),
    "delay law": Mode((_RULE,), law=bd.PoissonDelay(6.0)),
    "on arrival": Mode(({"exploit": None},)),
    "rule outside the design": Mode(
        (
            _RULE | {"explore_fraction": 0.3},
            {"explore_fraction": 0.3, "exploit": bd.Exploit(UCB, final_fraction=0.2)},
            {"explore_fraction": 0.3, "exploit": bd.Exploit(UCB, repeat_pending=False)},
        )
    ),
    "all answers": Mode(
        (_RULE | {"explore_fraction": 0.3, "evidence": "all"},),
        delays=ON_POINTS,
        attached="fair",
    ),
    "regret budget": Mode(
        (
            {"exploit": bd.WithinBudget(factor=1.25)},
            {"exploit": bd.WithinBudget(UCB, 2.0)},
            {"exploit": "certifying"},
        )
    ),
    "without stragglers": Mode(
        (
            {"rounds": bd.HorizonRounds(2.0), "exploit": None},
            {"rounds": bd.HorizonRounds(2.0), "explore_fraction": 0.3} | _RULE,
        ),
        delays=ON_POINTS,
        stops=False,
    ),
    "exact": Mode(
        (
            {"exact": True, "explore_fraction": 0.5} | _RULE,
            {"exact": True, "exploit": None},
        ),
        attached="fair",
    ),
    "geometric rounds, minimised": Mode(
        (
            {"rounds": bd.GeometricRounds(4, 2.0), "explore_fraction": 0.5, **_DOWN} | _RULE,
            {"rounds": bd.GeometricRounds(6, 1.5), "exploit": None, "tight": False, **_DOWN},
        )
    ),
    "on arrival, failures": Mode(
        ({"exploit": None},),
        delays=(best_late, design_late),
        stops=False,
        failure=some_points_at_first,
    ),
    "exact, failures": Mode(
        ({"exact": True, "explore_fraction": 0.5} | _RULE,),
        attached="fair",
        failure=bad_values_at_first,
    ),
    "regret budget, missing answers": Mode(
        ({"exploit": bd.WithinBudget(factor=1.25)},),
        failure=all_that_speaks_for_the_best,
        only_certified=True,
    ),
}
