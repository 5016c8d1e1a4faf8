"""What plays a problem: the optimizers of this library, and those of others."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec

from botorch_delay.benchmarks.clocks import Clock
from botorch_delay.benchmarks.problems import Point, Problem
from botorch_delay.domains.finite import FiniteDomain
from botorch_delay.exceptions import MissingExtraError, NoAnswerError
from botorch_delay.optimizers import Optimizer

OWN = "own"
OURS = "ours"


class Player(ABC):
    """Asks, is told, recommends. Asks are numbered from 0."""

    @abstractmethod
    def ask(self) -> Point:
        """The next point; of a finite domain with its row as ``index``."""

    @abstractmethod
    def tell(self, number: int, value: float) -> None:
        """The answer of an ask."""

    @abstractmethod
    def fail(self, number: int) -> None:
        """An ask failed."""

    @abstractmethod
    def recommend(self) -> dict[str, Point]:
        """The points recommended, by whom; none before the first answer.

        ``"own"`` is the method's own recommendation; ``"ours"`` what this library recommends
        from the same answers, where that is another one.
        """


class LibraryPlayer(Player):
    """An optimizer of this library.

    Args:
        optimizer: fresh.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer

    def ask(self) -> Point:
        """The point of the optimizer's next trial."""
        trial = self.optimizer.ask()
        return Point(trial.x, trial.index)

    def tell(self, number: int, value: float) -> None:
        """The answer of a trial."""
        self.optimizer.tell(number, value)

    def fail(self, number: int) -> None:
        """Mark a trial failed."""
        self.optimizer.mark_failed(number)

    def recommend(self) -> dict[str, Point]:
        """The optimizer's recommendation among answered points."""
        try:
            best = self.optimizer.recommend()
        except NoAnswerError:
            return {}
        return {OWN: Point(best.x, best.index)}


MakePlayer = Callable[[Problem, Clock, int, int], Player]


@dataclass(frozen=True)
class Method:
    """A way to play a problem.

    Attributes:
        make: a player for a problem, a clock, a number of asks and a seed.
        label: what it is, in words, for reports.
        instant: the player is told every answer at once, whatever the clock says: an oracle.
        needs_kernel: it cannot learn a kernel.
        needs_norm: it has to be told the RKHS norm of f.
        needs_law: it has to be told the law of the delays.
        needs_set: it cannot play on a box.
        package: that has to be installed for it; empty if none.
        guarantee: where its regret is guaranteed to be at most F times BPE-Delay's own bound, the
            option that sets F, and F.
    """

    make: MakePlayer
    label: str
    instant: bool = False
    needs_kernel: bool = False
    needs_norm: bool = False
    needs_law: bool = False
    needs_set: bool = False
    package: str = ""
    guarantee: tuple[str, float] | None = None

    def require(self) -> None:
        """That its package is installed, found out before the work starts.

        Raises:
            MissingExtraError: if it is not.
        """
        if self.package and find_spec(self.package) is None:
            raise MissingExtraError(
                f"{self.label} needs {self.package}: pip install 'botorch-delay[bench]'."
            )

    def applies(self, problem: Problem, clock: Clock) -> bool:
        """Whether it can play this problem with this clock."""
        return not (
            (self.needs_kernel and problem.covar_module is None)
            or (self.needs_norm and getattr(problem, "norm", None) is None)
            or (self.needs_law and clock.law is None)
            or (self.needs_set and not isinstance(problem.domain, FiniteDomain))
        )
