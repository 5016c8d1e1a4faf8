"""Ties between scores, and climbs to maxima on a box.

*Ties.* On symmetric grids many candidates share the largest score up to rounding. Among all within
a relative 1e-8 of the largest (in single precision, within rounding) the lowest index wins. So CPU,
CUDA and two formulas for the same quantity ask the same points.

*Climbs* go from many starts at once. Columns without a list of values follow the gradient, in units
of the box's sides (on a logarithmic scale in ``log_dims``). Each start has its own step length,
from the curvature along its last move (Barzilai and Borwein, 1988). Once a move of a start has led
out of the allowed set, random directions are added to its gradient, so that it slides along the
edge. Columns with a list of values are redrawn now and then, one at a time. A move is accepted only
if it stays in the set and gains: no start ever gets worse.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from botorch_delay.domains.box import BoxDomain
from botorch_delay.domains.devices import moved, sent
from botorch_delay.domains.domain import Domain
from botorch_delay.gp.kernels import Pull, covariance, covariance_with_pulls
from botorch_delay.gp.posterior import Posterior
from botorch_delay.gp.surrogate import Surrogate

TIE_TOLERANCE = 1e-8
FIRST_STEP = 0.1  # of a climb, in sides of the box
LARGEST_GROWTH = 3.0  # largest factor by which a step grows after a gain
SMALLEST_STEP = 1e-6  # climbs end once all steps are shorter, in sides
# Under a learned kernel the deviation uses all design points up to LOCAL_ABOVE. With more it uses
# the LOCAL_POINTS nearest to the starts of climbs: that costs regret, but keeps solves fast.
LOCAL_ABOVE = 1024
LOCAL_POINTS = 512
# Climbs also start around this many of the best answered points, and stay within this share of each
# side from their start, except in columns with a list of values.
LEADERS, LOCAL_REACH = 8, 0.1
# A variance up to this share of the prior variance counts as constant, with slope 0.
FLOOR = 1e-12


def tie_tolerance(dtype: torch.dtype) -> float:
    """By how much, relative to the largest score, tied scores may differ."""
    return max(TIE_TOLERANCE, 64.0 * torch.finfo(dtype).eps)


def lowest_of_largest(scores: Tensor, scale: float = 0.0) -> int:
    """The lowest index among the scores that are tied with the largest.

    ``scale`` is the size of the terms of which scores are sums, if these may cancel.
    """
    return int(lowest_tied(scores, scale))


def lowest_tied(scores: Tensor, scale: float = 0.0) -> Tensor:
    """As :func:`lowest_of_largest`, but a LongTensor of shape 1: no device is waited for."""
    top = scores.max()
    slack = tie_tolerance(scores.dtype) * top.abs().clamp_min(scale)
    # argmax returns the first of equal entries: the lowest index among the ties.
    return (scores >= top - slack).byte().argmax().unsqueeze(0)


def maximize(
    function: Callable[[Tensor], Tensor],
    domain: Domain,
    starts: Tensor,
    *,
    generator: torch.Generator,
    steps: int = 30,
    inside: Callable[[Tensor], Tensor] | None = None,
    reach: float = 1.0,
    enough: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Climb from every start: the points reached, ``n x d``, and their values, ``n``.

    ``function``, ``n x d`` to ``n``, is differentiable in the columns without a list of values.
    Points stay in the box, and where ``inside`` (``n x d`` to bool ``n``) holds, as it must at the
    starts. In a column without a list they stay within ``reach``, a share of the side, of their
    start. If no column has a list and ``enough`` is above 0, climbs end early once no next step is
    predicted, by the slopes, to exceed the best value by more than ``enough``.
    """
    assert isinstance(domain, BoxDomain)
    ascent = _Ascent(function, domain, starts, generator, inside, reach)
    redraws = bool(domain.lists)
    for number in range(steps):
        if redraws and (number % 3 == 2 or len(domain.lists) == domain.dim):
            proposal = redraw(domain, ascent.X, generator)
            ascent.take(domain.to_unit(proposal), proposal)
            continue
        if not ascent.climb(0.0 if redraws else enough):
            break
        if number % 8 == 7 and not redraws and bool((ascent.step < SMALLEST_STEP).all()):
            break
    return ascent.X, ascent.values


class _Ascent:
    """Climbs so far: the points ``X`` reached, their ``values``, and the next ``step`` of each."""

    def __init__(
        self,
        function: Callable[[Tensor], Tensor],
        domain: BoxDomain,
        starts: Tensor,
        generator: torch.Generator,
        inside: Callable[[Tensor], Tensor] | None,
        reach: float,
    ) -> None:
        self._function, self._domain, self._inside = function, domain, inside
        self._generator = generator
        self.X, self._V = starts.clone(), domain.to_unit(starts)
        self._lowest = (self._V - reach).clamp_min(0.0)
        self._highest = (self._V + reach).clamp_max(1.0)
        self._listed: Tensor | None = None  # columns with lists of values, bool d
        if domain.lists:
            listed = [dim in domain.lists for dim in range(domain.dim)]
            self._listed = moved(torch.tensor(listed), starts.device)
        self.values, self._slope = self._evaluate(self.X)
        self.step = torch.full_like(self.values, FIRST_STEP)
        self._blocked = torch.zeros_like(self.values, dtype=torch.bool)
        self._any_blocked = False
        self._edged = domain.is_constrained or inside is not None

    def climb(self, enough: float) -> bool:
        """Try a step along the gradient from every point; False if it promises too little gain."""
        V, slope, step, tiny = self._V, self._slope, self.step, torch.finfo(self.values.dtype).tiny
        direction = slope / slope.abs().amax(dim=1, keepdim=True).clamp_min(tiny)
        moved = (V + step.unsqueeze(1) * direction).clamp(self._lowest, self._highest)
        blocked, looks = self._blocked, []
        if self._edged and not self._any_blocked:
            looks.append(blocked.any())
        if enough:
            promised = self.values + (slope * (moved - V)).sum(dim=1)
            looks.append(promised.max() > self.values.max() + enough)
        seen = torch.stack(looks).tolist() if looks else []  # a device is waited for once
        if enough and not seen.pop():
            return False
        self._any_blocked |= any(seen)
        if self._any_blocked:
            drawn = torch.randn(V.shape, generator=self._generator, dtype=torch.double)
            mixed = direction + sent(drawn, V)
            if self._listed is not None:
                mixed = mixed.masked_fill(self._listed, 0.0)
            direction = torch.where(blocked.unsqueeze(1), mixed, direction)
            moved = (V + step.unsqueeze(1) * direction).clamp(self._lowest, self._highest)
        proposal = self._domain.from_unit(moved)
        if self._listed is not None:
            proposal = torch.where(self._listed, self.X, proposal)
        better, allowed, found_slope = self.take(moved, proposal)
        move, bend = moved - V, slope - found_slope
        bent = (move * bend).sum(dim=1)
        to_top = move.square().sum(dim=1) / bent.clamp_min(tiny)
        longest = LARGEST_GROWTH * step
        size = torch.where(bent > 0.0, to_top * self._slope.abs().amax(dim=1), longest)
        # Along an edge most directions fail, so the step shrinks slowly there.
        shorter = torch.where(blocked, 0.8 * step, size.clamp(0.1 * step, 0.5 * step))
        self.step = torch.where(better, torch.minimum(size, longest), shorter)
        self._blocked = blocked | ~allowed
        return True

    def take(self, moved: Tensor, proposal: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Accept the moves that gain; return which do, which are allowed, and the slopes found."""
        # Proposals are within bounds and lists of values by construction.
        allowed = torch.ones_like(self._blocked)
        if self._domain.is_constrained:
            allowed = self._domain.slack(proposal) >= 0.0
        if self._inside is not None:
            allowed = allowed & self._inside(proposal)
        found, found_slope = self._evaluate(proposal)
        better = allowed & (found > self.values)
        taken = better.unsqueeze(1)
        self._V = torch.where(taken, moved, self._V)
        self.X = torch.where(taken, proposal, self.X)
        self._slope = torch.where(taken, found_slope, self._slope)
        self.values = torch.where(better, found, self.values)
        return better, allowed, found_slope

    def _evaluate(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Values, and slopes in units of the sides; 0 in columns with a list of values."""
        if isinstance(self._function, BoundClimb):
            with torch.no_grad():
                values, gradient = self._function.with_slope(X)
        else:
            with torch.enable_grad():
                X = X.detach().requires_grad_(True)
                values = self._function(X)
                gradient = torch.zeros_like(X)
                if values.requires_grad:  # perhaps through a parameter, and not through X
                    (gradient,) = torch.autograd.grad(values.sum(), X, materialize_grads=True)
        low, high = self._domain.bounds
        side = (high - low).expand_as(X).clone()
        for dim in self._domain.log_dims:
            side[:, dim] = X[:, dim].detach() * (high[dim].log() - low[dim].log())
        slope = (gradient * side).nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
        if self._listed is not None:
            slope.masked_fill_(self._listed, 0.0)
        return values.detach().nan_to_num(nan=-torch.inf), slope


class BoundClimb:
    """``mu + factor * min(sigma, cap)`` under a learned kernel, with its slope in closed form.

    Mu comes from ``answers``, at least one, and sigma from ``design``, of which only the points
    nearest to the starts count if there are very many. The cap of a climb is sigma at its start (a
    row of ``starts``, ``n x d``), or infinite if ``capped`` is False.
    """

    def __init__(
        self,
        surrogate: Surrogate,
        answers: Posterior,
        design: Posterior,
        factor: float,
        starts: Tensor,
        *,
        capped: bool = True,
    ) -> None:
        kernel, inputs = surrogate.covar_module, surrogate.inputs(starts)
        if len(design) > LOCAL_ABOVE:
            nearness = covariance(kernel, design.data.X, inputs).amax(dim=1)
            rows = nearness.topk(LOCAL_POINTS).indices.sort().values
            design = Posterior(kernel, design.data.at(rows))
        self._surrogate, self._answers, self._design = surrogate, answers, design
        self._factor = factor
        self.cap = inputs.new_full((len(inputs),), torch.inf)
        if capped:
            self.cap, _ = self._deviation(covariance(kernel, design.data.X, inputs))

    def __call__(self, X: Tensor) -> Tensor:
        return self.with_slope(X)[0]

    def with_slope(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Values, ``n``, and slopes, ``n x d``, which are 0 in columns of categories."""
        answers, design, factor = self._answers, self._design, self._factor
        kernel, inputs = self._surrogate.covar_module, self._surrogate.inputs(X)
        seen, pulls = covariance_with_pulls(kernel, answers.data.X, inputs)  # m x n
        shared = design is answers
        asked, pushes = seen, pulls
        if not shared:
            asked, pushes = covariance_with_pulls(kernel, design.data.X, inputs)
        deviation, white = self._deviation(asked)
        mean = answers.weights @ seen
        # At the cap itself half of sigma's slope counts, as in torch.minimum.
        share = 0.5 * ((deviation < self.cap).to(X) + (deviation <= self.cap).to(X))
        share = share * (deviation.square() > FLOOR)
        push = design.factor.solve_transposed(white).mul_(factor * share / deviation)
        pull = answers.weights.unsqueeze(-1)
        if shared:
            slope = self._gather(pull - push, pulls, answers, inputs)
        else:
            slope = self._gather(pull, pulls, answers, inputs)
            slope -= self._gather(push, pushes, design, inputs)
        values = mean + factor * torch.minimum(deviation, self.cap)
        return values, self._surrogate.inputs.slope(slope, X)

    def _deviation(self, cross: Tensor) -> tuple[Tensor, Tensor]:
        """Sigma, given covariances with the design, ``m x n``, and the whitened covariances."""
        white = self._design.factor.solve(cross)
        variance = 1.0 - white.square().sum(dim=0)
        return variance.clamp_min(FLOOR).sqrt(), white

    def _gather(
        self, weights: Tensor, pulls: Sequence[Pull], posterior: Posterior, inputs: Tensor
    ) -> Tensor:
        """``sum_j weight_j dk(z_j, x)/dx``, ``n x e``, for weights ``m x n`` or ``m x 1``."""
        slope = torch.zeros_like(inputs)
        for pull, kernel in pulls:
            pull, Z, x = pull.mul_(weights), posterior.data.X, inputs
            if (columns := kernel.active_dims) is not None:
                Z, x = Z[:, columns], x[:, columns]
            away = (pull.T @ Z - pull.sum(dim=0).unsqueeze(-1) * x) / kernel.lengthscale.square()
            slope = slope + away if columns is None else slope.index_add_(1, columns, away)
        return slope


def nearby(
    domain: Domain, X: Tensor, around: int, reach: float, generator: torch.Generator
) -> Tensor:
    """Points of a box around ``X`` (``n x d``), on all scales up to about ``reach`` of a side.

    There are ``around`` per point, less those that the domain does not allow. Columns with lists do
    not change; if every column has one, results are ``X`` and points that differ in one column.
    """
    assert isinstance(domain, BoxDomain)
    X = X.repeat_interleave(around, dim=0)
    drawn = torch.randn(len(X), domain.dim + 1, generator=generator, dtype=torch.double).to(X)
    X, drawn = sent(torch.cat([X, drawn], dim=1), domain.bounds).tensor_split([domain.dim], dim=1)
    distance = reach * 10.0 ** -drawn[:, :1].abs()
    found = domain.from_unit((domain.to_unit(X) + distance * drawn[:, 1:]).clamp(0.0, 1.0))
    for dim in domain.lists:
        found[:, dim] = X[:, dim]
    if domain.is_discrete:
        stays = torch.arange(len(X), device=X.device).remainder(around) == 0
        found = torch.where(stays.unsqueeze(1), X, redraw(domain, X, generator))
    return found[domain.holds(found)]


def snapped(domain: BoxDomain, X: Tensor, generator: torch.Generator) -> Tensor:
    """The points ``X``, each column moved to its nearer bound with probability one half.

    The deviation of a posterior is often largest on the boundary, which uniform points never
    reach. Columns with a list of values stay as they are.
    """
    low, high = domain.bounds
    nearer = torch.where(X - low < high - X, low, high)
    coin = sent(torch.rand(X.shape, generator=generator, dtype=torch.double), X) < 0.5
    for dim in domain.lists:
        coin[:, dim] = False
    return torch.where(coin, nearer, X)


def stretched(X: Tensor, inside: Callable[[Tensor], Tensor], generator: torch.Generator) -> Tensor:
    """Points inside a set, ``n x d``, each moved away from a random other one, up to the edge."""
    other = X[moved(torch.randperm(len(X), generator=generator), X.device)]
    direction = X - other
    low, high = torch.zeros_like(X[:, :1]), torch.ones_like(X[:, :1])
    for _ in range(4):  # double the distance until outside the set; then bisect
        high = torch.where(inside(X + high * direction).unsqueeze(1), 2.0 * high, high)
    for _ in range(14):
        middle = (low + high) / 2.0
        within = inside(X + middle * direction).unsqueeze(1)
        low, high = torch.where(within, middle, low), torch.where(within, high, middle)
    return X + low * direction


def with_other_options(domain: Domain, X: Tensor, generator: torch.Generator) -> Tensor:
    """Points of a box (``n x d``), and copies with one category drawn anew where that is allowed.

    Climbs should start from all of them: a learned deviation counts only up to its value at the
    start (:class:`BoundClimb`), so that a climb itself gains nothing from a more uncertain option.
    """
    assert isinstance(domain, BoxDomain)
    other = redraw(domain, X, generator, sorted(domain.cat_dims))
    return torch.cat([X, other[domain.holds(other)]])


def new_options(domain: Domain, asked: Tensor, dims: Sequence[int]) -> dict[int, Tensor]:
    """The values of categorical columns ``dims`` that no row of ``asked``, ``n x d``, has."""
    assert isinstance(domain, BoxDomain)
    unseen = {}
    for dim in dims:
        options = domain.lists[dim]
        unseen[dim] = options[~torch.isin(options, sent(asked[:, dim], options))]
    return {dim: options for dim, options in unseen.items() if len(options)}


def with_options(domain: Domain, x: Tensor, options: Mapping[int, Tensor]) -> Tensor:
    """Copies of a point of a box (``d``), ``m x d``, each with one of the options of some column.

    Those that the box does not hold are left out.
    """
    assert isinstance(domain, BoxDomain)
    copies = []
    for dim, values in options.items():
        copies.append(x.repeat(len(values), 1))
        copies[-1][:, dim] = values
    X = torch.cat(copies)
    return X[domain.holds(X)]


def redraw(
    domain: BoxDomain, X: Tensor, generator: torch.Generator, columns: Sequence[int] | None = None
) -> Tensor:
    """The points (``n x d``), each with one of ``columns`` (default: all with lists) drawn anew.

    Categories are drawn uniformly. Ordered values are drawn at a log-uniform distance in the list:
    small and large changes are about equally frequent.
    """
    columns, redrawn = sorted(domain.lists) if columns is None else columns, X.clone()
    which = torch.randint(len(columns), (len(X),), generator=generator)
    drawn = torch.rand(2, len(X), generator=generator, dtype=torch.double)
    share, side = sent(drawn, X).double()
    which = moved(which, X.device)
    for number, dim in enumerate(columns):
        values = domain.lists[dim]
        if dim in domain.cat_dims:
            row = (share * len(values)).long()
        else:
            here = torch.searchsorted(values, X[:, dim].contiguous())
            away = (len(values) ** share).long()  # from 1 to len(values) - 1
            row = torch.where(side < 0.5, here - away, here + away)
        row = row.clamp(0, len(values) - 1)
        redrawn[:, dim] = torch.where(which == number, values[row], X[:, dim])
    return redrawn
