"""The domain as BPE-Delay plays on it: what is active, what a round may ask, what survives it.

A state is what the closed rounds have left: a tensor of active rows on a finite set, a region
on a box. States are never changed, so that a round is judged in full before anything moves.
"""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from botorch_delay.confidence.bounds import Confidence, scaled_gain, side_delta
from botorch_delay.design.ascent import snapped, stretched
from botorch_delay.design.box import BoxDesign, corners
from botorch_delay.design.greedy import GreedyDesign
from botorch_delay.domains.box import BoxDomain
from botorch_delay.domains.finite import Domain, FiniteDomain, PointKeys
from botorch_delay.domains.generators import generator_for
from botorch_delay.elimination.active_set import ActiveSet, surviving
from botorch_delay.elimination.box_active_set import BoxActiveSet, Condition, Region
from botorch_delay.elimination.open_round import Candidates, Design, Known
from botorch_delay.elimination.rounds import RoundRecord
from botorch_delay.exceptions import NumericsError, StorageError
from botorch_delay.gp.posterior import Evidence, PointwisePosterior
from botorch_delay.gp.surrogate import Surrogate
from botorch_delay.history.answers import Answers
from botorch_delay.history.events import finite, whole
from botorch_delay.history.point_status import row_of
from botorch_delay.history.trials import Attached, Choice, Trial

logger = logging.getLogger(__name__)

State = TypeVar("State")
# Up to so many distinct points a round is judged by a factorization, whatever else is at hand: its
# bounds then are the same to the last bit wherever they are computed again.
MAX_FACTORIZED = 512


@dataclass(frozen=True)
class Elimination(Generic[State]):
    """What the bounds of a round do.

    Attributes:
        state: what survives.
        cutoff: the largest lower bound, in units of the values, to be maximised; None if there is
            none.
        multiplier: the factor on sigma in the bounds.
        half_width: the largest half-width over what may be asked; None on a box, and where bounds
            contradict each other.
        contradicted: whether no upper bound reaches the cut-off.
    """

    state: State
    cutoff: float | None
    multiplier: float
    half_width: float | None = None
    contradicted: bool = False


class Arena(ABC, Generic[State]):
    """What differs between a finite set and a box.

    Args:
        confidence: the bounds.
        delta: failure probability of the guarantee.
        sign: -1 where the user minimises.
    """

    def __init__(self, confidence: Confidence, delta: float, sign: float) -> None:
        self._confidence = confidence
        self._delta = delta
        self._sign = sign

    @property
    def delta(self) -> float:
        """Failure probability of which half is the bounds'."""
        return self._delta

    @abstractmethod
    def everything(self) -> State:
        """The state before the first round."""

    @abstractmethod
    def key(self, trial: Trial) -> int:
        """The key of a trial's point."""

    @abstractmethod
    def keys_of(self, results: Sequence[Attached]) -> list[int]:
        """The keys of results from elsewhere that lie in the domain."""

    @abstractmethod
    def choice(self, key: int, number: int, slot: int) -> Choice:
        """The point with a key, to be asked in a round for a slot."""

    @abstractmethod
    def candidates(self, state: State, number: int) -> Candidates:
        """The points that round ``number`` may ask."""

    @abstractmethod
    def without(self, state: State, infeasible: Sequence[int]) -> State:
        """A state without the points of some keys."""

    @abstractmethod
    def is_empty(self, state: State) -> bool:
        """Whether nothing may be asked."""

    @abstractmethod
    def size(self, state: State) -> float:
        """How many points, or which share of the box."""

    @abstractmethod
    def judge(
        self,
        number: int,
        state: State,
        surrogate: Surrogate,
        evidence: Evidence,
        rounds: int,
        union: int,
        starts: Tensor,
        others: Evidence | None = None,
        known: Known | None = None,
    ) -> Elimination[State]:
        """What survives a round.

        Args:
            number: of the round.
            state: what may be asked.
            surrogate: that judges.
            evidence: the round's answers.
            rounds: R, over which delta is divided.
            union: over how many points of a finite set the bounds hold at once.
            starts: the points that were answered, ``n x d``: where a search on a box begins.
            others: all answers there are, asked with earlier values in view, whose own bounds
                count as well; delta is then split evenly.
            known: a quicker way to the posterior of the round's answers, if there is one.

        Raises:
            NumericsError: if a bound is not finite.
        """

    @abstractmethod
    def multiplier(
        self, surrogate: Surrogate, evidence: Evidence, rounds: int, union: int
    ) -> float:
        """The factor on sigma where nothing is judged."""

    @abstractmethod
    def left(self, before: State, after: State) -> list[Any]:
        """What is to be kept of the end of a round beside its record, JSON-ready."""

    @abstractmethod
    def restored(
        self,
        before: State,
        left: Any,
        record: RoundRecord,
        answers: Answers,
        surrogate: Surrogate,
        rounds: int,
    ) -> State:
        """The state that a round left; no bounds are computed before they are needed.

        Args:
            before: the state when the round opened.
            left: what :meth:`left` gave.
            record: of the round.
            answers: that its bounds use.
            surrogate: that judged it.
            rounds: R, over which delta is divided.

        Raises:
            StorageError: if what is stored is malformed.
        """


class FiniteArena(Arena[Tensor]):
    """A finite set: states are LongTensors of active rows, increasing.

    Args:
        domain: the set.
        confidence: the bounds.
        delta: failure probability of the guarantee.
        sign: -1 where the user minimises.
    """

    def __init__(
        self, domain: FiniteDomain, confidence: Confidence, delta: float, sign: float
    ) -> None:
        super().__init__(confidence, delta, sign)
        self.domain = self._domain = domain

    def everything(self) -> Tensor:
        """Every row."""
        return torch.arange(len(self._domain), device=self._domain.points.device)

    def key(self, trial: Trial) -> int:
        """Its row."""
        return row_of(trial)

    def keys_of(self, results: Sequence[Attached]) -> list[int]:
        """Their rows."""
        return [result.index for result in results if result.index is not None]

    def choice(self, key: int, number: int, slot: int) -> Choice:
        """The row."""
        return Choice(index=key, round=number, slot=slot)

    def candidates(self, state: Tensor, number: int) -> Candidates:
        """The active rows."""
        return _Rows(self._domain.points, state)

    def without(self, state: Tensor, infeasible: Sequence[int]) -> Tensor:
        """The rows but these."""
        if not infeasible:
            return state
        return state[~torch.isin(state, torch.tensor(infeasible, device=state.device))]

    def is_empty(self, state: Tensor) -> bool:
        """Whether there is no row."""
        return not len(state)

    def size(self, state: Tensor) -> int:
        """How many rows."""
        return len(state)

    def active_set(self, state: Tensor) -> ActiveSet:
        """The public view."""
        return ActiveSet(self._domain, state)

    def judge(
        self,
        number: int,
        state: Tensor,
        surrogate: Surrogate,
        evidence: Evidence,
        rounds: int,
        union: int,
        starts: Tensor,
        others: Evidence | None = None,
        known: Known | None = None,
    ) -> Elimination[Tensor]:
        """Rows whose upper bound reaches the largest lower bound (Algorithm 1, the last line)."""
        ratio = surrogate.noise_ratio(evidence)
        points = self._domain.points[state]
        delta = self._delta if others is None else self._delta / 2.0
        side = side_delta(delta, rounds, union)
        weights = self._confidence.needs_weights
        quick = known if len(evidence.y) > MAX_FACTORIZED else None
        posterior = None if quick is None else quick(evidence, state, weights)
        if posterior is None:
            posterior = surrogate.posterior(evidence, points, weights=weights)
        half = self._confidence.half_width(posterior, ratio, side)
        lower, upper = posterior.mean - half, posterior.mean + half
        if others is not None:
            posterior = surrogate.posterior(others, points)
            half, _ = self._confidence.all_data(
                posterior,
                surrogate.noise_ratio(others),
                scaled_gain(surrogate.covar_module, others),
                # Half of delta / 2 for all rounds; the bound holds at all times at once.
                delta / 2.0,
            )
            lower = torch.maximum(lower, posterior.mean - half)
            upper = torch.minimum(upper, posterior.mean + half)
        if not (torch.isfinite(lower).all() and torch.isfinite(upper).all()):
            raise NumericsError(
                f"The bounds of round {number} are not finite; check the scale of values "
                "and noise against the kernel's."
            )
        kept = surviving(lower, upper)
        contradicted = not bool(kept.any())
        if contradicted:  # only where two kinds of bounds contradict each other
            logger.warning(
                "round %d: the largest lower bound, %.6g, is above every upper bound, the largest "
                "of which is %.6g: norm_bound or noise_std is too small, or the kernel is wrong; "
                "the points with the largest bounds stay",
                number,
                lower.max().item(),
                upper.max().item(),
            )
            kept = (upper == upper.max()) | (lower == lower.max())
        return Elimination(
            state[kept],
            lower.max().item(),
            self._confidence.multiplier(ratio, side),
            None if contradicted else 0.5 * (upper - lower).max().item(),
            contradicted,
        )

    def multiplier(
        self, surrogate: Surrogate, evidence: Evidence, rounds: int, union: int
    ) -> float:
        """As in the bounds."""
        side = side_delta(self._delta, rounds, union)
        return self._confidence.multiplier(surrogate.noise_ratio(evidence), side)

    def left(self, before: Tensor, after: Tensor) -> list[int]:
        """The eliminated rows."""
        rows: list[int] = before[~torch.isin(before, after)].tolist()
        return rows

    def restored(
        self,
        before: Tensor,
        left: Any,
        record: RoundRecord,
        answers: Answers,
        surrogate: Surrogate,
        rounds: int,
    ) -> Tensor:
        """The rows that were not eliminated."""
        out = torch.tensor([whole(row) for row in left], dtype=torch.long, device=before.device)
        after = before[~torch.isin(before, out)]
        if not len(after) or len(after) + len(out) != len(before):
            raise StorageError(f"round {record.number} eliminates points that were not active.")
        return after


class BoxArena(Arena[Region]):
    """A box: states are regions. Points get keys in the order in which they are first met.

    Args:
        domain: the box.
        confidence: the bounds.
        delta: failure probability of the guarantee.
        sign: -1 where the user minimises.
        seed: of the pools.
    """

    def __init__(
        self, domain: BoxDomain, confidence: Confidence, delta: float, sign: float, seed: int
    ) -> None:
        super().__init__(confidence, delta, sign)
        self._domain = domain
        self._seed = seed
        self._keys = PointKeys()

    def everything(self) -> Region:
        """The box."""
        return Region(self._domain, seed=self._seed)

    def key_of(self, x: Tensor) -> int:
        """The key of a point (``d``), a new one if it is met for the first time."""
        return self._keys.of(x)

    def point(self, key: int) -> Tensor:
        """The point with a key, ``d``."""
        return self._keys.points[key]

    def key(self, trial: Trial) -> int:
        """The key of its point."""
        return self.key_of(trial.x)

    def keys_of(self, results: Sequence[Attached]) -> list[int]:
        """The keys of their points."""
        inside = (r.x for r in results if bool(self._domain.contains(r.x.unsqueeze(0))))
        return [self.key_of(x) for x in inside]

    def choice(self, key: int, number: int, slot: int) -> Choice:
        """The point."""
        return Choice(index=None, round=number, slot=slot, x=self._keys.points[key])

    def candidates(self, state: Region, number: int) -> Candidates:
        """The region."""
        return _BoxPoints(self, state, number)

    def without(self, state: Region, infeasible: Sequence[int]) -> Region:
        """The region without these points."""
        points = [self._keys.points[key] for key in infeasible]
        return state.without(torch.stack(points) if points else self._domain.bounds[:0])

    def is_empty(self, state: Region) -> bool:
        """Whether nothing of its pool is left: only where all columns have lists of values."""
        return not bool(state.contains(state.pool.points).any())

    def check(self, surrogate: Surrogate | None) -> None:
        """Find out before the first ask what would stop the first round from being judged.

        Args:
            surrogate: kernel and noise, if they are given.

        Raises:
            InputError: if the confidence lacks a constant.
            NotSupportedError: if the kernel allows no such bounds on a box.
            EmptyDomainError: if nothing of the box may be asked.
        """
        if surrogate is not None:
            evidence = surrogate.evidence(Answers.of([], self._sign, self._domain.bounds))
            _ = Condition(
                surrogate, evidence, self._domain, self._confidence, 1, self._delta
            ).bounds
        if self._domain.constraints or self._domain.feasible is not None:
            _ = self.everything().pool

    def size(self, state: Region) -> float:
        """The share of the box."""
        return state.pool.volume

    def active_set(self, state: Region, infeasible: Sequence[int]) -> BoxActiveSet:
        """The public view."""
        return BoxActiveSet(self.without(state, infeasible))

    def judge(
        self,
        number: int,
        state: Region,
        surrogate: Surrogate,
        evidence: Evidence,
        rounds: int,
        union: int,
        starts: Tensor,
        others: Evidence | None = None,
        known: Known | None = None,
    ) -> Elimination[Region]:
        """The region where the round's upper bound reaches its largest lower bound."""
        condition = Condition(
            surrogate, evidence, self._domain, self._confidence, rounds, self._delta
        )
        region, cutoff = state.cut(condition, starts)
        if not math.isfinite(cutoff):  # not as a tensor, which would be in single precision
            raise NumericsError(
                f"The bounds of round {number} are not finite; check the scale of values "
                "and noise against the kernel's."
            )
        return Elimination(region, cutoff, condition.bounds.multiplier)

    def multiplier(
        self, surrogate: Surrogate, evidence: Evidence, rounds: int, union: int
    ) -> float:
        """As in the bounds."""
        condition = Condition(
            surrogate, evidence, self._domain, self._confidence, rounds, self._delta
        )
        return condition.bounds.multiplier

    def left(self, before: Region, after: Region) -> list[list[float]]:
        """A point that is known to be inside."""
        return [] if after.anchors is None else after.anchors.tolist()

    def restored(
        self,
        before: Region,
        left: Any,
        record: RoundRecord,
        answers: Answers,
        surrogate: Surrogate,
        rounds: int,
    ) -> Region:
        """The region with one more condition, where there is a cut-off."""
        if record.cutoff is None:
            return before
        anchor = self._domain.bounds.new_tensor([[finite(value) for value in x] for x in left])
        if anchor.shape != (1, self._domain.dim) or not bool(self._domain.contains(anchor)[0]):
            raise StorageError("the active set has no point that is known to be in it.")
        if bool(answers.y.isnan().any()):
            raise StorageError(f"round {record.number} uses trials without answer.")
        surrogate = surrogate.standardized(answers.y)
        condition = Condition(
            surrogate,
            surrogate.evidence(answers),
            self._domain,
            self._confidence,
            rounds,
            self._delta,
            self._sign * finite(record.cutoff),
        )
        return Region(self._domain, (*before.conditions, condition), anchor, self._seed)


def make_arena(
    domain: Domain, confidence: Confidence, delta: float, sign: float, seed: int
) -> FiniteArena | BoxArena:
    """The arena of a domain."""
    if isinstance(domain, BoxDomain):
        return BoxArena(domain, confidence, delta, sign, seed)
    assert isinstance(domain, FiniteDomain)
    return FiniteArena(domain, confidence, delta, sign)


class _Rows:
    """The active rows of a finite set."""

    def __init__(self, points: Tensor, active: Tensor) -> None:
        self._points = points
        self._active = active

    def key(self, trial: Trial) -> int:
        return row_of(trial)

    def contains(self, key: int) -> bool:
        position = self.position(key)
        return position < len(self._active) and int(self._active[position]) == key

    def design(self, surrogate: Surrogate, picks: Iterable[int], closed: Iterable[int]) -> Design:
        candidates = surrogate.inputs(self._points[self._active])
        design = GreedyDesign(
            surrogate.covar_module, candidates, surrogate.noise_var, map(self.position, picks)
        )
        for key in closed:
            design.exclude(self.position(key))
        return _RowsDesign(self, design, self._active)

    def position(self, key: int) -> int:
        return int(torch.searchsorted(self._active, key))


class _RowsDesign:
    """A design over positions, by rows of the domain."""

    def __init__(self, rows: _Rows, design: GreedyDesign, active: Tensor) -> None:
        self._rows = rows
        self._design = design
        self._active = active

    def next(self) -> int:
        return int(self._active[self._design.next()])

    def add(self, key: int) -> None:
        self._design.add(self._rows.position(key))

    def exclude(self, key: int, excluded: bool = True) -> None:
        self._design.exclude(self._rows.position(key), excluded)

    def evaluated(self) -> Known | None:
        made = self._design.evaluated()
        if made is None:
            return None
        active = self._active

        def posterior(evidence: Evidence, rows: Tensor, weights: bool) -> PointwisePosterior | None:
            whole = made.posterior(evidence, weights=weights)
            return None if whole is None else whole.at(torch.searchsorted(active, rows))

        return posterior


class _BoxPoints:
    """The points of a region."""

    def __init__(self, arena: BoxArena, region: Region, number: int) -> None:
        self._arena = arena
        self._region = region
        self._number = number

    def key(self, trial: Trial) -> int:
        return self._arena.key(trial)

    def contains(self, key: int) -> bool:
        return True  # every point of the round was asked inside

    def design(self, surrogate: Surrogate, picks: Iterable[int], closed: Iterable[int]) -> Design:
        region = self._region
        if surrogate.learned:
            # Nothing is claimed, and a box has most of its deviation in its corners, which tell
            # least about the rest: spread points serve better than the largest deviation.
            made = _BoxRoundDesign(
                self._arena,
                BoxDesign(
                    surrogate,
                    region.domain,
                    region.pool.points[region.contains(region.pool.points)],
                    region.contains,
                    seed=0,
                    refine=False,
                ),
            )
            return _prepared(made, picks, closed)
        generator = generator_for(self._arena._seed, self._number, torch.device("cpu"))
        sample = region.pool.points[region.contains(region.pool.points)]
        pool = torch.cat([corners(region.domain), snapped(region.domain, sample, generator)])
        pool = torch.cat([sample, pool[region.contains(pool)]])
        inside = region.contains if region.conditions else None
        curved = region.conditions or region.domain.constraints or region.domain.feasible
        if curved:
            pool = torch.cat([pool, stretched(sample, region.contains, generator)])
        seed = self._arena._seed + self._number
        made = _BoxRoundDesign(self._arena, BoxDesign(surrogate, region.domain, pool, inside, seed))
        return _prepared(made, picks, closed)


def _prepared(
    design: _BoxRoundDesign, picks: Iterable[int], closed: Iterable[int]
) -> _BoxRoundDesign:
    design.extend(picks)
    for key in closed:
        design.exclude(key)
    return design


class _BoxRoundDesign:
    """A design over points, by their keys."""

    def __init__(self, arena: BoxArena, design: BoxDesign) -> None:
        self._arena = arena
        self._design = design

    def next(self) -> int:
        return self._arena.key_of(self._design.next())

    def add(self, key: int) -> None:
        self._design.add(key, self._arena.point(key))

    def extend(self, keys: Iterable[int]) -> None:
        self._design.extend([(key, self._arena.point(key)) for key in keys])

    def exclude(self, key: int, excluded: bool = True) -> None:
        self._design.exclude(key, self._arena.point(key), excluded)

    def evaluated(self) -> None:
        return None
