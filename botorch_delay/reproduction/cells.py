"""What is played: functions, methods, delays and repeats."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from botorch_delay.benchmarks import FiniteProblem, paper_problem, simulate
from botorch_delay.confidence.bounds import FixedBeta
from botorch_delay.delays import DelayLaw, NoDelay, PoissonDelay, SubExponentialDelay
from botorch_delay.optimizers import AcquisitionOptimizer, BPEDelayOptimizer, Optimizer
from botorch_delay.optimizers.rules import UCB, Censor, Hallucinate, Ignore, Pending

NOISE_STD = 0.02
BETA = 6.0
XI, B = 9.0, 1.0
DELTA = 0.1
FUNCTIONS = {"f1": 0.8, "f2": 1.0}  # lengthscales

BPE_DELAY = "BPE-Delay"
BPE_DELAY_PRINTED = "BPE-Delay (psi as printed)"
BPE = "BPE"
SDF = "GP-UCB-SDF"
SDF_SHIFTED = "GP-UCB-SDF (values from the worst)"
BUCB = "GP-BUCB"
UCB_ARRIVED = "GP-UCB on what has arrived"


@dataclass(frozen=True)
class Setting:
    """The size of the experiment; the defaults are the paper's.

    Attributes:
        side: points per axis of the grid.
        horizon: T.
        repeats: independent experiments.
        delays: means of the Poisson delays, the first of them 0.
        redraw: draw f1 and f2 anew in every repeat; the paper has one of each.
    """

    side: int = 50
    horizon: int = 1000
    repeats: int = 10
    delays: tuple[int, ...] = (0, 25, 50)
    redraw: bool = False

    @classmethod
    def quick(cls, redraw: bool = False) -> Setting:
        """A small version of everything, to see that it runs."""
        return cls(side=25, horizon=300, repeats=3, redraw=redraw)


@dataclass(frozen=True)
class Cell:
    """One run."""

    function: str
    method: str
    delay: int
    repeat: int

    @property
    def name(self) -> str:
        """A name that can be a file's."""
        method = "".join(c if c.isalnum() else "-" for c in self.method)
        return f"{self.function}_{method}_{self.delay}_{self.repeat}"


Make = Callable[[FiniteProblem, int, int], Optimizer]


def law_for(delay: int, *, printed: bool = False) -> DelayLaw:
    """What BPE-Delay is told of delays with this mean."""
    if delay == 0:
        return NoDelay()
    return SubExponentialDelay(delay, XI, B, paper_min=printed)


def _bpe(law: Callable[[int], DelayLaw]) -> Make:
    def make(problem: FiniteProblem, horizon: int, delay: int) -> Optimizer:
        assert problem.covar_module is not None
        return BPEDelayOptimizer.as_published(
            problem.domain,
            horizon,
            covar_module=problem.covar_module,
            noise_var=NOISE_STD**2,
            confidence=FixedBeta(BETA),
            delay=law(delay),
            delta=DELTA,
        )

    return make


def _ucb(pending: Callable[[FiniteProblem], Pending]) -> Make:
    def make(problem: FiniteProblem, horizon: int, delay: int) -> Optimizer:
        return AcquisitionOptimizer(
            problem.domain,
            horizon=horizon,
            covar_module=problem.covar_module,
            noise_var=NOISE_STD**2,
            rule=UCB(BETA),
            pending=pending(problem),
        )

    return make


METHODS: dict[str, Make] = {
    BPE_DELAY: _bpe(law_for),
    BPE_DELAY_PRINTED: _bpe(lambda delay: law_for(delay, printed=True)),
    BPE: _bpe(lambda delay: NoDelay()),
    SDF: _ucb(lambda problem: Censor(problem.values.min().item())),
    SDF_SHIFTED: _ucb(lambda problem: Censor(problem.values.min().item())),
    BUCB: _ucb(lambda problem: Hallucinate()),
    UCB_ARRIVED: _ucb(lambda problem: Ignore()),
}


def cells(setting: Setting) -> list[Cell]:
    """Every run of the experiment, repeat by repeat."""
    return [
        Cell(function, method, delay, repeat)
        for repeat in range(setting.repeats)
        for function in FUNCTIONS
        for delay in setting.delays
        for method in METHODS
    ]


def problem_of(setting: Setting, function: str, repeat: int) -> FiniteProblem:
    """The function of a repeat."""
    seed = repeat if setting.redraw else 0
    return paper_problem(FUNCTIONS[function], seed, side=setting.side, noise_std=NOISE_STD)


def play(setting: Setting, cell: Cell) -> list[float]:
    """Cumulative regret after each ask. Noise and delays are the same for every method."""
    problem = problem_of(setting, cell.function, cell.repeat)
    if cell.method == SDF_SHIFTED:
        problem = FiniteProblem(
            problem.points,
            problem.values - problem.values.min(),
            problem.noise_std,
            covar_module=problem.covar_module,
        )
    optimizer = METHODS[cell.method](problem, setting.horizon, cell.delay)
    law = PoissonDelay(cell.delay) if cell.delay else NoDelay()
    history = simulate(optimizer, problem, law, setting.horizon, seed=cell.repeat)
    return history.regret.tolist()
