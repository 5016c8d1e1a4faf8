"""Kernel values to full precision, and kernels as plain records.

GPyTorch computes squared distances by a matrix product, whose rounding error is about
``eps * ||x||^2``. The square root of this, 1e-8 in double, is the distance that a Matern kernel
sees between a point and itself, and it is larger than small noise variances. So common kernels are
evaluated from coordinate differences here (``_forward``), and all others by GPyTorch.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any

import torch
from botorch.models.transforms.input import InputTransform
from gpytorch.constraints import Interval, Positive
from gpytorch.kernels import (
    AdditiveKernel,
    AdditiveStructureKernel,
    ConstantKernel,
    Kernel,
    LinearKernel,
    MaternKernel,
    PeriodicKernel,
    PolynomialKernel,
    ProductKernel,
    RBFKernel,
    RQKernel,
    ScaleKernel,
)
from gpytorch.means import Mean
from linear_operator import to_dense
from torch import Tensor
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd

from botorch_delay import validation
from botorch_delay.exceptions import InputError, InputTypeError, StorageError

# Elements of one chunk of a covariance: on CUDA 32 MiB in double, on a CPU 2 MiB, which fits its
# cache.
CHUNK_ELEMENTS = 2**22
CACHE_ELEMENTS = 2**18
MOST_DIFFERENCES = 2**26  # on CUDA, coordinate differences in memory: 512 MiB in double
# Layers, in kernels with a feature network, whose output varies between calls in training mode.
_RANDOM_IN_TRAINING = (_DropoutNd, _NormBase)


class WithRoughness(Kernel):
    """``k(x, y)``, plus ``variance`` where x = y: a part of f that differs freely at each point."""

    def __init__(self, covar_module: Kernel, variance: float) -> None:
        super().__init__()
        self.base_kernel, self.variance = covar_module, variance

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **params: Any) -> Tensor:
        """Kernel values, ``n x m``, or ``n`` of pairs with ``diag``."""
        if diag:
            same = (x1 == x2).all(dim=-1).to(x1)
            return self.base_kernel(x1, x2, diag=True) + self.variance * same
        same = (x1.unsqueeze(-2) == x2.unsqueeze(-3)).all(dim=-1).to(x1)
        return covariance(self.base_kernel, x1, x2) + self.variance * same


class MaternSum(Kernel):
    """``(1 - share) k(x, y)``, plus ``share`` times the mean over groups of columns of ``k_g``.

    k is a Matern 5/2 kernel of all columns, and k_g one of the columns of a group alone. So f is a
    function of all columns plus one of each group: its main effects.

    Args:
        kernels: k, then each k_g, with ``active_dims``.
        share: the share of main effects in the variance, which is 1 in all.
    """

    def __init__(self, *kernels: MaternKernel, share: float) -> None:
        super().__init__()
        self.kernels, self.share = torch.nn.ModuleList(kernels), share

    @property
    def lengthscale(self) -> Tensor:
        """That of all columns, ``1 x d``."""
        return matern_parts(self)[0][1].lengthscale

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **params: Any) -> Tensor:
        """Kernel values, ``n x m``, or ``n`` of pairs with ``diag``."""
        if diag:
            return torch.stack([w * k(x1, x2, diag=True) for w, k in matern_parts(self)]).sum(dim=0)
        return reduce(torch.add, (w * covariance(k, x1, x2) for w, k in matern_parts(self)))


# g, n x m, and a part h of a kernel, with dh(x, y)/dy = g (x - y) / lengthscale^2 in its columns.
Pull = tuple[Tensor, MaternKernel]


def matern_sum(
    lengthscale: Tensor, share: float, groups: Sequence[Sequence[int]]
) -> MaternKernel | MaternSum:
    """A Matern 5/2 kernel with lengthscales, ``d``, and this share of main effects.

    Lengthscales of main effects are shorter by sqrt(G), for G groups of columns: the columns of one
    are then as far apart as all would be if each of them differed as much.
    """

    def matern(lengthscale: Tensor, columns: Sequence[int] | None = None) -> MaternKernel:
        kernel = MaternKernel(nu=2.5, ard_num_dims=len(lengthscale), active_dims=columns)
        # Without a transform the value is kept to the last bit.
        exact = Positive(transform=None, inv_transform=None)
        kernel.register_constraint("raw_lengthscale", exact)
        kernel.to(lengthscale).lengthscale = lengthscale
        return kernel

    whole, shorter = matern(lengthscale), lengthscale / math.sqrt(len(groups))
    if share == 0.0:
        return whole.requires_grad_(False).eval()
    effects = (matern(shorter[list(group)], group) for group in groups)
    return MaternSum(whole, *effects, share=share).requires_grad_(False).eval()


def matern_parts(covar_module: Kernel) -> list[tuple[float, Any]]:
    """The weights and kernels of a :class:`MaternSum`; of any other kernel, 1 and itself."""
    if not isinstance(covar_module, MaternSum):
        return [(1.0, covar_module)]
    whole, *effects = covar_module.kernels
    share = covar_module.share
    return [(1.0 - share, whole), *((share / len(effects), effect) for effect in effects)]


def rows_per_chunk(columns: int, like: Tensor) -> int:
    """How many rows of this many columns to compute at a time on the device of ``like``."""
    elements = CHUNK_ELEMENTS if like.is_cuda else CACHE_ELEMENTS
    return max(elements // max(columns, 1), 1)


def covariance(covar_module: Kernel, X1: Tensor, X2: Tensor) -> Tensor:
    """Kernel values, ``batch_shape x n x m``, between ``... x n x d`` and ``... x m x d``."""
    dims = covar_module.active_dims
    if dims is not None:
        X1, X2 = X1.index_select(-1, dims), X2.index_select(-1, dims)
    return _forward(covar_module, X1, X2)


def covariance_with_pulls(
    covar_module: Kernel, X1: Tensor, X2: Tensor
) -> tuple[Tensor, list[Pull]]:
    """Kernel values of a learned kernel, ``n x m``, and the pull of each of its parts."""
    total, pulls = X1.new_zeros(()), []
    for weight, part in matern_parts(covar_module):
        dims = part.active_dims
        Z1, Z2 = (X if dims is None else X.index_select(-1, dims) for X in (X1, X2))
        scaled = _distance(part, Z1, Z2, math.sqrt(5.0))
        decay = torch.exp(-scaled)
        pull = (1.0 + scaled).mul_(decay)
        # In place, since most of the time is memory traffic.
        values = scaled.square_().div_(3.0).mul_(decay).add_(pull)
        total = values if weight == 1.0 else total + weight * values
        pulls.append((pull.mul_(5.0 / 3.0 * weight), part))
    return total, pulls


def prior_variance(covar_module: Kernel, X: Tensor) -> Tensor:
    """``k(x, x)`` for every row: ``batch_shape x n x d`` to ``batch_shape x n``."""
    kind = type(covar_module)
    # Two dimensions mean no batch; ``batch_shape`` would take longer, as it looks for sub-kernels.
    if kind in (RBFKernel, MaternKernel) and covar_module.raw_lengthscale.dim() == 2:
        return X.new_ones(X.shape[:-1])
    if kind is MaternSum:
        return X.new_ones(X.shape[:-1])
    if kind is ScaleKernel and not covar_module.batch_shape:
        return covar_module.outputscale * prior_variance(covar_module.base_kernel, X)
    return covar_module(X, diag=True).clone()  # the kernel may keep what it returns


def check_kernel(covar_module: Any, like: Tensor) -> Kernel:
    """Check that a kernel can be used with points like ``like``, and return it."""
    validation.instance(covar_module, Kernel, "covar_module", "a gpytorch.kernels.Kernel")
    for name, parameter in covar_module.named_parameters():
        if parameter.dtype != like.dtype or parameter.device != like.device:
            raise InputTypeError(
                f"covar_module has {name} of {parameter.dtype} on {parameter.device}, the points "
                f"are {like.dtype} on {like.device}; convert it with "
                "covar_module.to(dtype=points.dtype, device=points.device)."
            )
    if covar_module.batch_shape:
        raise InputError(
            "covar_module must not have a batch shape, got "
            f"batch_shape={tuple(covar_module.batch_shape)}."
        )
    for part in covar_module.modules():
        if part.training and isinstance(part, _RANDOM_IN_TRAINING):
            raise InputError(
                f"covar_module has a {type(part).__name__} in training mode, whose values change "
                "from call to call; call covar_module.eval() first."
            )
        if isinstance(part, AdditiveStructureKernel):
            raise InputError(
                "covar_module has an AdditiveStructureKernel, which GPyTorch cannot evaluate at as "
                "many points as columns; add one kernel for each column, with active_dims."
            )
    try:
        with torch.no_grad():
            # All points: some kernels overflow far out. GPyTorch checks the column count here.
            prior = covar_module(like, diag=True)
            values = covariance(covar_module, like[:1], like[:1])
            kinds = {prior.dtype, values.dtype}
    except Exception as error:
        raise InputError(
            f"covar_module cannot be evaluated on points with {like.shape[-1]} columns: "
            f"{type(error).__name__}: {error}"
        ) from error
    if kinds != {like.dtype}:
        found = ", ".join(sorted(map(str, kinds)))
        raise InputTypeError(f"covar_module must give {like.dtype}, that of points, got {found}.")
    if values.shape != (1, 1) or not torch.isfinite(values).all():
        raise InputError(
            "covar_module must give one finite value per pair of points; at the first point it "
            f"gives {values.tolist()}."
        )
    if prior.shape != like.shape[:1] or not torch.allclose(prior[0], values, rtol=1e-3, atol=1e-12):
        raise InputError(
            "covar_module must give k(x, x) for every point with diag=True; it gives the shape "
            f"{tuple(prior.shape)} for {len(like)} points, and {prior.flatten()[:1].tolist()} at "
            f"the first, where k(x, x) is {values.item()}."
        )
    if not torch.isfinite(prior).all() or (prior < 0).any():
        bad = int((~torch.isfinite(prior) | (prior < 0)).nonzero()[0])
        raise InputError(
            f"covar_module must give every point a finite variance; at point {bad} it gives "
            f"{prior[bad].item()}."
        )
    return covar_module


def sees_differences(covar_module: Kernel, like: Tensor, column: int, numbers: Tensor) -> bool:
    """Whether points are the less alike, the further apart their numbers in a column are.

    A kernel of logarithms tells equal steps apart, and one of categories has no order.

    Args:
        covar_module: the kernel.
        like: ``n x d``, points; the first one gives the numbers of the other columns.
        column: the column that varies.
        numbers: three numbers for it, in equal steps; with fewer the answer is no.
    """
    if len(numbers) < 3:
        return False
    X = like[:1].repeat(3, 1)
    X[:, column] = numbers
    with torch.no_grad():
        K = covariance(covar_module, X, X)
    one, other, both = K[0, 1], K[1, 2], K[0, 2]
    return bool(torch.isclose(one, other, rtol=1e-5, atol=0.0) & (both < one * (1.0 - 1e-5)))


def check_prior(
    covar_module: Any, mean_module: Mean | None, X: Tensor, transform: InputTransform | None
) -> None:
    """Check that a kernel and a mean (None: a default) accept the points after a transform."""
    # Copies are evaluated as BoTorch will: in the dtype of the points, and in evaluation mode.
    if covar_module is None and mean_module is None:
        return
    if transform is not None:
        X = copy.deepcopy(transform).to(X).transform(X)
    if isinstance(covar_module, Kernel):
        covar_module = copy.deepcopy(covar_module).eval()
        if transform is not None:
            covar_module.to(X)
    if covar_module is not None:
        check_kernel(covar_module, X)
    if mean_module is None:
        return
    try:
        with torch.no_grad():
            copy.deepcopy(mean_module).to(X).eval()(X).expand(len(X))
    except Exception as error:
        raise InputError(
            f"mean_module must give one value for each of {len(X)} points with {X.shape[1]} "
            f"columns: {type(error).__name__}: {error}"
        ) from error


def _forward(kernel: Any, X1: Tensor, X2: Tensor) -> Tensor:
    """Kernel values, as from ``Kernel.forward``: ``active_dims`` are selected already."""
    if type(kernel) is MaternSum:  # ``batch_shape`` would look for sub-kernels
        return kernel.forward(X1, X2)
    kind = None if kernel.batch_shape else type(kernel)
    if kind is RBFKernel:
        return _distance(kernel, X1, X2).square().mul_(-0.5).exp_()
    if kind is MaternKernel:
        scaled = _distance(kernel, X1, X2, math.sqrt(2.0 * kernel.nu))
        decay = scaled.neg().exp_()
        if kernel.nu == 0.5:
            return decay
        polynomial = 1.0 + scaled
        if kernel.nu == 2.5:
            polynomial += scaled.square().div_(3.0)
        return polynomial.mul_(decay)
    if kind is LinearKernel:
        return (X1 * kernel.variance) @ X2.mT
    if kind is ScaleKernel:  # it has the active_dims of its base: already selected
        return kernel.outputscale * _forward(kernel.base_kernel, X1, X2)
    if kind is AdditiveKernel:
        return reduce(torch.add, (covariance(part, X1, X2) for part in kernel.kernels))
    if kind is ProductKernel:
        return reduce(torch.mul, (covariance(part, X1, X2) for part in kernel.kernels))
    n, m = X1.shape[-2], X2.shape[-2]
    if not n or not m:  # not every kernel accepts empty inputs
        batch = torch.broadcast_shapes(kernel.batch_shape, X1.shape[:-2], X2.shape[:-2])
        return X1.new_zeros(*batch, n, m)
    # A copy: callers work in place, and the kernel may keep what it returns.
    return to_dense(kernel.forward(X1, X2)).clone()


def _distance(kernel: Kernel, X1: Tensor, X2: Tensor, factor: float = 1.0) -> Tensor:
    """``factor`` times the distance in units of lengthscales, from coordinate differences."""
    per_unit = factor / kernel.lengthscale
    X1, X2 = X1 * per_unit, X2 * per_unit
    if X1.shape[-1] == 1:
        return (X1 - X2.mT).abs()
    if not X1.is_cuda:
        return torch.cdist(X1, X2, compute_mode="donot_use_mm_for_euclid_dist")
    # On CUDA cdist starts a block of threads for every pair, which takes up to 40 times as long as
    # the differences below.
    batch = torch.broadcast_shapes(X1.shape[:-2], X2.shape[:-2])
    if math.prod(batch) * X1.shape[-2] * X2.shape[-2] * X1.shape[-1] <= MOST_DIFFERENCES:
        return (X1.unsqueeze(-2) - X2.unsqueeze(-3)).norm(dim=-1)
    squares = X1.new_zeros(())
    for first, second in zip(X1.unbind(-1), X2.unbind(-1), strict=True):
        squares = squares + (first.unsqueeze(-1) - second.unsqueeze(-2)).square()
    return squares.clamp_min(torch.finfo(squares.dtype).tiny).sqrt()  # a finite slope at 0


# The kernels that a stored record may name; nothing else in it is looked up, imported or executed.
_KERNELS: dict[str, type[Kernel]] = {
    kernel.__name__: kernel
    for kernel in (
        *(RBFKernel, MaternKernel, RQKernel, PeriodicKernel),
        *(LinearKernel, PolynomialKernel, ConstantKernel),
        *(ScaleKernel, AdditiveKernel, ProductKernel),
    )
}
_ARGUMENTS = ("active_dims", "ard_num_dims", "nu", "power")


def describe_kernel(kernel: Kernel) -> dict[str, Any] | None:
    """A JSON-ready record from which :func:`build_kernel` makes an equal kernel.

    None if the kernel, or a part of it, is not on the fixed list. Priors and constraints are left
    out, since the hyperparameters are fixed.
    """
    kind = type(kernel)
    if kernel.batch_shape or _KERNELS.get(kind.__name__) is not kind:
        return None
    inner = [kernel.base_kernel] if kind is ScaleKernel else getattr(kernel, "kernels", [])
    parts = [describe_kernel(part) for part in inner]
    if None in parts:
        return None
    found = {name: getattr(kernel, name, None) for name in _ARGUMENTS}
    return {
        "class": kind.__name__,
        "parts": parts,
        "arguments": {
            name: value.tolist() if isinstance(value, Tensor) else value
            for name, value in found.items()
            if value is not None
        },
        "parameters": {
            name.removeprefix("raw_"): _value(parameter, constraint).tolist()
            for name, parameter, constraint in _own_parameters(kernel)
        },
    }


def build_kernel(record: Mapping[str, Any], like: Tensor) -> Kernel:
    """The kernel of a record, with the dtype and device of ``like``."""
    try:
        return _build(record).to(dtype=like.dtype, device=like.device).eval()
    except StorageError:
        raise
    except (LookupError, TypeError, ValueError, RuntimeError, AttributeError) as error:
        raise StorageError(
            f"The stored kernel cannot be rebuilt ({error}); pass covar_module to load."
        ) from error


def hyperparameters(kernel: Kernel) -> dict[str, Any]:
    """Every hyperparameter by name, as numbers and lists of numbers."""
    if isinstance(kernel, MaternSum):  # those of main effects follow
        return hyperparameters(kernel.kernels[0]) | {"share": kernel.share}
    found = kernel.named_parameters_and_constraints()
    return {
        name.replace("raw_", ""): _value(parameter, constraint).squeeze().tolist()
        for name, parameter, constraint in found
    }


def _value(parameter: Tensor, constraint: Interval | None) -> Tensor:
    """A hyperparameter, on the CPU."""
    value = parameter if constraint is None else constraint.transform(parameter)
    return value.detach().cpu()


def _own_parameters(kernel: Kernel) -> list[tuple[str, Tensor, Interval]]:
    """A kernel's own parameters and their constraints, without those of its sub-kernels."""
    return [each for each in kernel.named_parameters_and_constraints() if "." not in each[0]]


def _build(record: Mapping[str, Any]) -> Kernel:
    if record["class"] not in _KERNELS:
        raise StorageError(
            f"The stored kernel is a {record['class']!r}, which cannot be rebuilt; pass "
            "covar_module to load."
        )
    parts = [_build(part) for part in record["parts"]]
    kernel = _KERNELS[record["class"]](*parts, **record["arguments"]).double()
    own, stored = _own_parameters(kernel), record["parameters"]
    if {name.removeprefix("raw_") for name, _, _ in own} != set(stored):
        raise StorageError(f"The stored kernel has wrong parameters: {sorted(stored)}.")
    for name, parameter, constraint in own:
        value = torch.tensor(stored[name.removeprefix("raw_")], dtype=torch.double)
        allowed = bool(value.isfinite().all()) and constraint.check(value)
        if value.shape != parameter.shape or not allowed:
            raise StorageError(f"The stored kernel has an invalid {name}: {str(stored)[:80]}.")
        # Without a transform the value is kept to the last bit.
        kernel.register_constraint(name, Positive(transform=None, inv_transform=None))
        with torch.no_grad():
            parameter.copy_(value)
    return kernel
