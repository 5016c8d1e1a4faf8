"""Boxes: bounds, lists of values, and known constraints."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from scipy.optimize import linprog
from torch import Tensor

from botorch_delay import validation
from botorch_delay.domains.columns import Columns, are_feasible
from botorch_delay.domains.devices import sobol_engine
from botorch_delay.domains.domain import Domain, Encoding
from botorch_delay.exceptions import BotorchDelayError, InputError, InputTypeError

_PROBES = 64  # points at which the results of ``feasible`` are stored, to recognise it

# Indices, coefficients, right-hand side.
Constraint = tuple[Tensor | Sequence[int], Tensor | Sequence[float], float]


class BoxDomain(Domain):
    """A box, some of whose columns may be restricted to lists of values.

    Args:
        bounds: ``2 x d``: lower ends, upper ends; floating, lower below upper, with finite widths.
        discrete_dims: for each column that takes only some numbers the list of these, as in
            ``botorch.optim.optimize_acqf_mixed_alternating``.
        cat_dims: the same for columns whose numbers only name categories; in a learned kernel all
            categories of a column are equally far apart.
        constraints: known linear constraints in BoTorch's ``inequality_constraints`` form, each
            ``(indices, coefficients, rhs)`` for ``sum coefficients * x[indices] >= rhs``.
        feasible: tells which points may be asked, ``n x d`` to a bool tensor ``n``.
        names: of the columns; x0, x1, ... if None. A :class:`Space` passes its :class:`Columns`;
            then ``feasible`` is a test of a dict of parameters.
        log_dims: columns with positive bounds in which points are drawn uniformly in the logarithm,
            and which a learned kernel sees as logarithms.

    Attributes:
        lists: values of each discrete or categorical column, increasing, by column.
        discrete_dims, cat_dims, constraints, feasible: as above.
        is_constrained: whether there are constraints, or a test of feasibility.

    Example:
        >>> bounds = torch.tensor([[1e-5, 16.0], [1e-1, 256.0]], dtype=torch.double)
        >>> box = BoxDomain(bounds, discrete_dims={1: [16, 64, 256]}, log_dims=[0])
        >>> X = box.from_unit(torch.tensor([[0.5, 0.9]], dtype=torch.double))
        >>> X.round(decimals=6).tolist()
        [[0.001, 256.0]]
    """

    count: None = None

    def __init__(
        self,
        bounds: Tensor,
        discrete_dims: Mapping[int, Sequence[float]] | None = None,
        cat_dims: Mapping[int, Sequence[float]] | None = None,
        *,
        constraints: Iterable[Constraint] | None = None,
        feasible: Callable[[Any], Any] | None = None,
        names: Sequence[str] | Columns | None = None,
        log_dims: Sequence[int] = (),
    ) -> None:
        bounds = validation.matrix(bounds, "bounds").clone(memory_format=torch.contiguous_format)
        if bounds.shape[0] != 2:
            raise InputError(
                "bounds must be 2 x d, a row of lower and a row of upper ends, got "
                f"{tuple(bounds.shape)}; bounds.T turns columns into rows."
            )
        super().__init__(bounds, bounds, names=names, log_dims=log_dims)
        for dim, (low, high) in enumerate(bounds.T.tolist()):
            if not low < high:
                raise InputError(
                    f"The lower bound must be below the upper one; column {dim} "
                    f"({self.names[dim]}) has {low} and {high}."
                )
        self.check_logarithms(bounds, "bounds")
        discrete = self._check_values(discrete_dims, "discrete_dims")
        categories = self._check_values(cat_dims, "cat_dims")
        if both := discrete.keys() & categories.keys():
            raise InputError(f"Column {min(both)} is in discrete_dims and in cat_dims; choose one.")
        self.discrete_dims = {dim: values.tolist() for dim, values in discrete.items()}
        self.cat_dims = {dim: values.tolist() for dim, values in categories.items()}
        self.lists = discrete | categories
        self.encoding = self._encode(categories)
        self._unit = Encoding(self.log_dims, bounds=self.bounds)
        expected = "a list of (indices, coefficients, rhs)"
        validation.instance(constraints, Iterable | None, "constraints", expected)
        self.constraints = [self._check_constraint(c) for c in constraints or ()]
        validation.instance(feasible, Callable | None, "feasible", "a function of points")
        if feasible is not None and self.columns.named:  # a partial, so that it can be pickled
            feasible = partial(are_feasible, self.columns, feasible)
        self.feasible: Callable[[Tensor], Tensor] | None = feasible
        self.is_constrained = bool(self.constraints) or feasible is not None
        self._check_not_empty()

    def _check_values(self, lists: Any, name: str) -> dict[int, Tensor]:
        if lists is None:
            return {}
        validation.instance(
            lists, Mapping, name, "a dict of values by column, such as {1: [16, 32]}"
        )
        checked = {}
        for dim, listed in lists.items():
            dim = validation.whole(dim, f"each column of {name}", 0, self.dim - 1)
            validation.instance(listed, Iterable, f"{name}[{dim}]", "a list of numbers", but=str)
            numbers = [validation.real(v, f"each value in {name}[{dim}]") for v in listed]
            # In the dtype of the bounds, with which they are compared.
            values = self.bounds.new_tensor(numbers).unique()
            if not len(values):
                raise InputError(f"{name}[{dim}] must have at least one value.")
            low, high = self.bounds[:, dim].tolist()
            if values[0] < low or values[-1] > high:
                raise InputError(
                    f"{name}[{dim}] must lie within its bounds {low} and {high}, got "
                    f"{values.tolist()}."
                )
            checked[dim] = values
        return checked

    def _check_constraint(self, constraint: Any) -> tuple[Tensor, Tensor, float]:
        form = "(indices, coefficients, rhs), for sum coefficients * x[indices] >= rhs"
        try:
            indices, coefficients, rhs = constraint
            each = [validation.whole(i, "an index", -(2**53)) for i in indices]
            columns = torch.tensor(each, dtype=torch.long, device=self.bounds.device)
            numbers = [validation.real(factor, "a coefficient") for factor in coefficients]
            factors = self.bounds.new_tensor(numbers)
        except (TypeError, ValueError, RuntimeError) as error:
            text = str(error).rstrip(".")
            raise InputTypeError(f"Each of constraints must be {form}: {text}.") from error
        if columns.shape != factors.shape or not len(columns):
            raise InputError(
                f"Each of constraints must be {form}, with as many indices as coefficients; got "
                f"{tuple(columns.shape)} and {tuple(factors.shape)}."
            )
        if int(columns.min()) < 0 or int(columns.max()) >= self.dim:
            raise InputError(f"A constraint names a column outside 0 to {self.dim - 1}.")
        if not bool(torch.isfinite(factors).all()) or not bool(factors.any()):  # after rounding
            raise InputError("The coefficients of a constraint must be finite and not all 0.")
        return columns, factors, validation.real(rhs, "rhs of a constraint")

    def _check_not_empty(self) -> None:
        if not self.constraints:
            return
        A = np.zeros((len(self.constraints), self.dim))
        for row, (columns, factors, _) in zip(A, self.constraints, strict=True):
            np.add.at(row, columns.cpu().numpy(), factors.double().cpu().numpy())
        low, high = self.bounds.double().cpu().numpy()
        rhs = np.array([c[2] for c in self.constraints])
        found = linprog(
            np.zeros(self.dim), A_ub=-A, b_ub=-rhs, bounds=list(zip(low, high, strict=True))
        )
        if found.status == 2:
            raise InputError("The constraints leave nothing of the box; relax one of them.")

    def slack(self, X: Tensor) -> Tensor:
        """By how much points, ``n x d``, satisfy the constraints and ``feasible``: ``n``.

        The smallest slack of the linear constraints, each in units of its range over the box;
        ``-inf`` where ``feasible`` says no; ``inf`` if there is neither.
        """
        validation.rows(X, "X", self.bounds)
        result = X.new_full(X.shape[:1], torch.inf)
        width = self.bounds[1] - self.bounds[0]
        values = self.columns.rounded(X) if self.constraints else X
        for columns, factors, rhs in self.constraints:
            span = (factors.abs() * width[columns]).sum()
            result = torch.minimum(result, (values[:, columns] @ factors - rhs) / span)
        if self.feasible is not None:
            result = result.masked_fill(~self._passes(X), -torch.inf)
        return result

    def _passes(self, X: Tensor) -> Tensor:
        assert self.feasible is not None
        try:
            passes = self.feasible(X.clone())  # a copy: it may work in place
        except BotorchDelayError:
            raise
        except Exception as error:
            given = f"points, n x {self.dim}"
            if self.columns.named:
                given = f"a dict with the parameters {', '.join(self.columns.parameters)}"
            raise InputError(
                f"feasible raised {type(error).__name__}: {error}. It is called with {given}."
            ) from error
        is_tensor = isinstance(passes, Tensor)
        if not is_tensor or passes.shape != X.shape[:1] or passes.dtype != torch.bool:
            got = type(passes).__name__
            if is_tensor:
                got = f"{tuple(passes.shape)} of {passes.dtype}"
            raise InputTypeError(
                f"feasible must return a bool tensor with an entry per point, {len(X)}; got {got}. "
                "For a margin, return margin >= 0."
            )
        return passes.to(X.device)

    def from_unit(self, U: Tensor) -> Tensor:
        """Points of the unit cube (``n x d``) mapped to bounds and lists.

        Uniform points stay uniform: in the logarithm for columns of ``log_dims``, over the values
        of a list. With both, each value gets the part of the logarithmic scale nearest to it.
        """
        X = self._unit.origin + U * self._unit.width
        for dim in self.log_dims:
            X[:, dim].exp_()
        X = X.clamp(*self.bounds)  # against rounding; the ends of the cube are the ends of the box
        X = X.where(U > 0.0, self.bounds[0]).where(U < 1.0, self.bounds[1])
        for dim, values in self.lists.items():
            if dim in self.log_dims:
                cell = torch.bucketize(U[:, dim].contiguous(), _log_edges(values))
            else:
                cell = (U[:, dim] * len(values)).long().clamp(0, len(values) - 1)
            X[:, dim] = values[cell]
        return X

    def to_unit(self, X: Tensor) -> Tensor:
        """The inverse of :meth:`from_unit` in columns without a list: ``n x d``."""
        return self._unit(X)

    def moved_inwards(self, X: Tensor, margin: float) -> Tensor:
        moved = self.from_unit(margin + (1.0 - 2.0 * margin) * self.to_unit(X))
        for dim in self.lists:
            moved[:, dim] = X[:, dim]
        return moved.where(self.holds(moved).unsqueeze(1), X)

    def contains(self, X: Tensor) -> Tensor:
        validation.rows(X, "X", self.bounds)
        return self.holds(X)

    def nearest(self, X: Tensor) -> Tensor:
        """The nearest points within bounds and lists; constraints are ignored."""
        found = X.clamp(*self.bounds)
        for dim, values in self.lists.items():
            found[:, dim] = values[(X[:, dim, None] - values).abs().argmin(dim=1)]
        return found

    def holds(self, X: Tensor) -> Tensor:
        """:meth:`contains` without checks of shape, dtype and device."""
        low, high = self.bounds
        inside = torch.minimum(X - low, high - X).amin(dim=1) >= 0.0
        for dim, values in self.lists.items():
            inside &= torch.isin(X[:, dim], values)
        if self.is_constrained:
            inside &= self.slack(X) >= 0.0
        return inside

    def allowed(self, column: int) -> Tensor | None:
        return self.lists.get(column)

    def describe(self) -> dict[str, Any]:
        return super().describe() | {
            "discrete_dims": {str(dim): v for dim, v in self.discrete_dims.items()},
            "cat_dims": {str(dim): v for dim, v in self.cat_dims.items()},
            "constraints": [[c.tolist(), f.tolist(), rhs] for c, f, rhs in self.constraints],
            "feasible": None if self.feasible is None else list(self._feasible_probes),
        }

    @cached_property
    def _feasible_probes(self) -> list[bool]:
        """Results of ``feasible`` at ``_PROBES`` points, to recognise it; kept, it may be slow."""
        unit = sobol_engine(self.dim, 0).draw(_PROBES, dtype=torch.double)
        return self._passes(self.from_unit(unit.to(self.bounds))).tolist()

    def __repr__(self) -> str:
        return f"BoxDomain({self.dim} columns, {self.bounds.dtype}, {self.bounds.device})"


def points_of_grid(domain: Domain, side: int) -> Tensor:
    """Feasible centres of a grid on a box, ``side`` per column: ``n x d``; all points of a set."""
    if not isinstance(domain, BoxDomain):
        return domain.like
    steps = (torch.arange(side, dtype=torch.double) + 0.5) / side
    unit = torch.cartesian_prod(*[steps] * domain.dim).reshape(-1, domain.dim)
    points = torch.unique(domain.from_unit(unit.to(domain.bounds)), dim=0)
    return points[domain.contains(points)]


def _log_edges(values: Tensor) -> Tensor:
    """Ends of the cells of increasing values on a logarithmic scale, in the unit interval.

    Cells at the ends reach as far outward as inward, so that a geometric list has equal cells.
    """
    logs = values.log()
    if len(logs) == 1:
        return logs[:0]
    middles = (logs[1:] + logs[:-1]) / 2.0
    low, high = 2.0 * logs[0] - middles[0], 2.0 * logs[-1] - middles[-1]
    return (middles - low) / (high - low)
