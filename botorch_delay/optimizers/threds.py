"""GP-ThreDS: a threshold closes in on the maximum while the domain shrinks to where f exceeds it.

Source: Salgia, Vakili & Zhao (2021). The algorithm keeps an interval [a, b] for max f and, in
epochs, a list of regions, nodes of a binary tree over the domain. In an epoch the threshold is
the middle tau of the interval and every region is searched in turn for descendants (nodes a
few levels below) where f exceeds it:

* ask where the upper confidence bound from this search's own answers is largest, among the
  points of the region whose descendant has not been accepted yet;
* accept the descendant of the point with the largest lower bound when that exceeds tau, or
  when ``patience`` answers have come since the last acceptance;
* the region is done when no upper bound reaches ``tau - slack``.

The accepted nodes are the regions of the next epoch, where a = tau - slack and the slack is
halved; if there is none, both ends move down by half the length of the interval, and regions
and slack stay. This is the search of the authors' own experiments, in which one test for all
descendants replaces the random walk on the tree that their analysis uses. The tree splits a set
of points at the median, along the widest side.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from botorch_delay import validation
from botorch_delay.confidence.bounds import DEFAULT_DELTA, Confidence
from botorch_delay.confidence.guarantee import Guarantee
from botorch_delay.design.ascent import lowest_of_largest, lowest_tied
from botorch_delay.domains.devices import generator_for, moved
from botorch_delay.domains.domain import Domain
from botorch_delay.domains.space import Space, as_domain
from botorch_delay.elimination.box_active_set import spread_points
from botorch_delay.exceptions import StorageError
from botorch_delay.gp.kernels import prior_variance
from botorch_delay.history.events import Event
from botorch_delay.history.trials import Suggestion, Trial
from botorch_delay.optimizers.base import Optimizer
from botorch_delay.optimizers.config import ThreDSConfig

# The slack of the first epoch, by which decisions may err, as a share of the first interval.
SLACK = 0.2
MAX_LEVELS = 4  # from a region to its descendants: the number of columns, up to this
BOX_POINTS = 4096  # points that stand for a box


@dataclass
class _Search:
    """The state of the algorithm, with values to be maximised; nodes of the tree are numbers."""

    a: float
    b: float
    slack: float  # by which decisions may err
    epoch: int = 1
    regions: list[int] = field(default_factory=lambda: [1])
    place: int = 0  # index of the region that is searched
    found: list[int] = field(default_factory=list)  # accepted nodes of the regions done
    accepted: list[int] = field(default_factory=list)  # accepted nodes of this region
    start: int = 0  # the first ask of the search of this region
    mark: int = 0  # how many answers the search had at the last acceptance
    begin: int = 0  # the first ask of this epoch


class ThreDSOptimizer(Optimizer):
    """GP-ThreDS, Threshold Domain Shrinking (Salgia, Vakili & Zhao 2021).

    It is made for answers without delay: it decides with what has arrived, and asks the same point
    again until something does; answers that come after their search has ended are used by
    ``recommend`` only. On a box it works on 4,096 Sobol points, drawn by ``seed``. Arguments not
    listed here are those of :class:`AcquisitionOptimizer`; kernel and noise are given.

    Args:
        confidence: gives the multiplier on sigma, from all answers of a search.
        interval: where max f (min f if ``maximize`` is False) is known to lie; if None, which needs
            ``RKHSConfidence``, plus and minus ``norm_bound * sqrt(max k(x, x))``.
        patience: answers after which a descendant is accepted although nothing is certain.
        delta: failure probability of the bounds of one search.
    """

    def __init__(
        self,
        domain: Domain | Space,
        horizon: int | None = None,
        *,
        covar_module: Kernel,
        noise_var: float,
        confidence: Confidence,
        interval: tuple[float, float] | None = None,
        patience: int = 50,
        delta: float = DEFAULT_DELTA,
        seed: int = 0,
        maximize: bool = True,
    ) -> None:
        domain = as_domain(domain)
        config = ThreDSConfig(
            *(domain, horizon, covar_module, noise_var, False, seed),
            maximize=maximize,
            confidence=confidence,
            delta=delta,
            interval=interval,
            patience=patience,
        )
        super().__init__(config)
        assert config.fixed is not None
        self._config: ThreDSConfig = config
        self._points = domain.like
        if domain.count is None:
            spread = spread_points(domain, BOX_POINTS, generator_for(config.seed, 0))
            self._points = torch.unique(spread, dim=0)
        self._on_host = self._points.cpu()  # copied once, for decisions made on the CPU
        ends = config.interval
        if ends is None:
            assert config.confidence.constants is not None
            prior = prior_variance(config.fixed.covar_module, self._points)
            largest = config.confidence.constants.norm_bound * prior.max().item() ** 0.5
            ends = -largest, largest
        self._ends = ends
        self._levels = min(domain.dim, MAX_LEVELS)
        self._nodes: dict[int, Tensor] = {1: torch.arange(len(self._points))}
        self._start()

    def _start(self) -> None:
        super()._start()
        low, high = sorted(self._config.sign * end for end in self._ends)
        self._search = _Search(low, high, SLACK * (high - low))

    @property
    def guarantee(self) -> Guarantee:
        missing = (
            "GP-ThreDS is analysed for answers without delay, and for a random walk on the tree "
            "with a test that differs from that of its authors' experiments, which is used here.",
            *self._config.confidence.missing,
        )
        return Guarantee(False, self._config.delta, self._config.confidence.assumptions, missing)

    def _choose(self) -> Suggestion:
        while True:
            search = self._search
            candidates = self._candidates()
            if not len(candidates):
                self._happen("searched")
                continue
            answered = self._answered()
            if not answered:
                index = self._middle(candidates)
                break
            judged = self._judgement(self._config.answers(answered))
            posterior, half = judged.intervals(self._points[candidates])
            lower, upper = posterior.mean - half, posterior.mean + half
            safe, hopeful = lowest_tied(lower), lowest_tied(upper)
            # In one tensor, so that a device is waited for once.
            parts = upper.max().unsqueeze(0), lower[safe], candidates[safe], candidates[hopeful]
            largest, reached, best, index = torch.cat([part.double() for part in parts]).tolist()
            threshold = (search.a + search.b) / 2.0
            if largest < threshold - search.slack:
                self._happen("searched")
            elif reached > threshold or len(answered) - search.mark >= self._config.patience:
                self._happen("accepted", data={"node": self._descendant_of(int(best))})
            else:
                index = int(index)
                break
        place = self._on_host[index] if self._domain.count is None else index
        return Suggestion(place, search.epoch, len(self._ledger) - search.start)

    def _answered(self) -> list[Trial]:
        """The answered trials of the search of this region."""
        trials = self._ledger.trials[self._search.start :]
        return [trial for trial in trials if trial.value is not None]

    def _candidates(self) -> Tensor:
        """Rows of the region that may be asked, without the accepted descendants."""
        search, keys = self._search, self._feasibility.unavailable()
        if len(keys) == len(self._points):
            raise self._feasibility.nothing_to_ask()
        if self._domain.count is None:  # keys are not rows: find the rows of their points
            points = map(self._feasibility.keys.point, keys)
            found = [(self._on_host == x).all(dim=1).nonzero().flatten() for x in points]
            keys = [int(row) for rows in found for row in rows]
        out = [torch.tensor(keys, dtype=torch.long), *map(self._rows, search.accepted)]
        rows = self._rows(search.regions[search.place]).sort().values
        return moved(rows[~torch.isin(rows, torch.cat(out))], self._points.device)

    def _middle(self, rows: Tensor) -> int:
        """The candidate nearest to the middle of the region's bounding box."""
        points = self._points[rows]
        middle = (points.amin(dim=0) + points.amax(dim=0)) / 2.0
        distance = (points - middle).square().sum(dim=-1)
        return int(rows[lowest_of_largest(-distance, float(distance.max()))])

    def _end_region(self) -> None:
        search = self._search
        search.found += search.accepted
        search.accepted, search.start, search.mark = [], len(self._ledger), 0
        search.place += 1
        if search.place < len(search.regions):
            return
        threshold = (search.a + search.b) / 2.0
        search.epoch += 1
        if search.found:
            search.a, search.slack = threshold - search.slack, search.slack / 2.0
            search.regions = search.found
        elif search.begin == len(self._ledger):  # no point of the regions may be asked: start over
            search.regions = [1]
        else:
            shift = (search.b - search.a) / 2.0
            search.a, search.b = search.a - shift, search.b - shift
        search.found, search.place, search.begin = [], 0, len(self._ledger)

    def _descendant_of(self, row: int) -> int:
        """The node some levels below the region that holds a row."""
        node = self._search.regions[self._search.place]
        for _ in range(self._levels):
            if len(self._rows(node)) > 1:
                node = 2 * node + int(row not in self._rows(2 * node))
        return node

    def _rows(self, node: int) -> Tensor:
        """Rows of a node of the tree: the root is 1, the halves of i are 2 i and 2 i + 1."""
        if node not in self._nodes:
            rows = self._rows(node // 2)
            points = self._on_host[rows]
            sides = points.amax(dim=0) - points.amin(dim=0)
            order = points[:, int(sides.argmax())].argsort(stable=True)
            half = (len(rows) + 1) // 2
            self._nodes[node // 2 * 2] = rows[order[:half]].sort().values
            self._nodes[node // 2 * 2 + 1] = rows[order[half:]].sort().values
        return self._nodes[node]

    def _apply_decided(self, event: Event) -> None:
        if event.kind == "searched":
            self._end_region()
        elif event.kind == "accepted":
            node = validation.whole(event.data["node"], "node", 1)
            path = [node >> shift for shift in range(1, node.bit_length())]
            if any(len(self._rows(parent)) < 2 for parent in reversed(path)):
                raise StorageError(f"{node} is not a node of the tree.")
            self._search.accepted.append(node)
            self._search.mark = len(self._answered())
        else:
            super()._apply_decided(event)
