"""Finite nets of a box, in the distance that a kernel defines.

d_k(x, x')^2 = k(x, x) - 2 k(x, x') + k(x', x') is the squared distance of two points' features. A
function of RKHS norm C is C-Lipschitz in d_k, and the posterior deviation is 1-Lipschitz.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from gpytorch.kernels import (
    AdditiveKernel,
    ConstantKernel,
    Kernel,
    LinearKernel,
    MaternKernel,
    ProductKernel,
    RBFKernel,
    ScaleKernel,
)
from torch import Tensor

from botorch_delay.exceptions import NotSupportedError
from botorch_delay.gp.kernels import MaternSum, matern_parts

# Factor by which distances are raised, so that rounding makes none too small.
_UPWARDS = 1.0 + 1e-12

MAX_CELLS = 200_000  # of a box, after which ``largest_on_box`` returns the bound it has

# Grid scales are searched between 2^_FINEST and 1, by _STEPS bisections of the exponent: to a
# relative precision of about 1e-10.
_FINEST = -200.0
_STEPS = 40


@dataclass(frozen=True)
class Net:
    """A finite set that has a point near every point of a box."""

    eps: float  # the largest distance d_k of a point of the box from the net
    log_size: float  # natural logarithm of its number of points, which itself may overflow


def largest_prior_deviation(covar_module: Kernel, bounds: Tensor) -> float:
    """An upper bound on ``sqrt(k(x, x))`` over a box, for the kernels of :func:`nets`."""
    box = _plain(bounds)
    return _measure(covar_module, torch.zeros_like(box[0]), box)[1]


def nets(
    covar_module: Kernel, bounds: Tensor, discrete: Mapping[int, int], radii: Sequence[float]
) -> list[Net]:
    """For each radius a net of at most that radius: the centres of the cells of a grid.

    Cells are about equally long in every column in the kernel's distance, which takes about the
    fewest cells. ``discrete`` has the number of values of each column with a list; if that is at
    most the number of cells, the net has these values. Kernels are squared exponential, Matern,
    linear or constant, or multiples, sums or products of these; else :class:`NotSupportedError`.
    """
    box = _plain(bounds)
    half = 0.5 * (box[1] - box[0])
    eps = torch.tensor(radii, dtype=torch.double).unsqueeze(-1)
    values = torch.full_like(half, math.inf)
    for column, number in discrete.items():
        values[column] = number

    def distance(sides: Tensor) -> Tensor:
        return _measure(covar_module, sides, box)[0]

    def along(share: Tensor) -> Tensor:  # the length of each column alone: r x d to r x d
        return distance(torch.diag_embed(share * half))

    def grid(scale: Tensor) -> tuple[Tensor, Tensor]:  # r x 1 to counts r x d and radii r x 1
        cells = (1.0 / (scale * share)).ceil().clamp_min(1.0)
        own = values <= cells
        sides = torch.where(own, 0.0, half / cells)
        return torch.where(own, values, cells), distance(sides).unsqueeze(-1)

    # The share of a column's half-side that alone is eps long; above 1 if the whole is shorter.
    full = along(torch.ones(len(eps), len(half), dtype=torch.double))
    share = _largest(lambda s: along(s) <= eps, torch.zeros_like(full))
    share = torch.where(full <= eps, eps / full, share)
    scale = _largest(lambda s: grid(s)[1] <= eps, torch.zeros_like(eps))
    counts, radius = grid(scale)
    sizes = counts.log().sum(dim=-1)
    return [Net(r, n) for r, n in zip(radius.flatten().tolist(), sizes.tolist(), strict=True)]


@torch.no_grad()
def largest_on_box(
    value: Callable[[Tensor], Tensor],
    slope: float,
    covar_module: Kernel,
    bounds: Tensor,
    tolerance: float,
) -> float:
    """An upper bound on the supremum over a box of a function g, by branch and bound.

    ``g(x) <= value(z) + slope d_k(x, z)`` must hold for all x and z of the box; ``value`` need be
    neither g nor Lipschitz. In a cell g is at most the value at the centre plus ``slope`` times the
    kernel's distance of the farthest corner; cells that may hold larger values are halved.

    The bound exceeds the largest value found at a centre by at most the share ``tolerance`` of it,
    or by more if that would take over ``MAX_CELLS`` cells. Kernels are those of :func:`nets`, and
    values are in double precision.
    """
    box = _plain(bounds)
    centres, half = box.mean(dim=0, keepdim=True), 0.5 * (box[1] - box[0]).unsqueeze(0)
    best, settled, looked = -math.inf, -math.inf, 0
    while True:
        found = value(centres).to(box)
        ends = found + slope * _measure(covar_module, half, box)[0]
        best = max(best, float(found.max()))
        enough = best + tolerance * abs(best)
        kept = ends > enough
        settled = max(settled, float(ends[~kept].max())) if not bool(kept.all()) else settled
        looked += len(ends)
        if not bool(kept.any()) or looked + 2 * int(kept.sum()) > MAX_CELLS:
            return max([settled, *ends[kept].tolist()])
        centres, half = centres[kept], half[kept]
        # Halve each cell along the column in which it is longest in the kernel's distance.
        alone = _measure(covar_module, torch.diag_embed(half), box)[0]
        step = torch.nn.functional.one_hot(alone.argmax(dim=1), half.shape[1]) * 0.5 * half
        centres = torch.cat([centres - step, centres + step])
        half = (half - step).repeat(2, 1)


def _largest(fits: Callable[[Tensor], Tensor], like: Tensor) -> Tensor:
    """The largest scales up to 1 that fit; every scale below a fitting one must fit, too."""
    low, high = torch.full_like(like, _FINEST), like
    low = torch.where(fits(torch.ones_like(like)), high, low)
    for _ in range(_STEPS):
        middle = 0.5 * (low + high)
        good = fits(torch.exp2(middle))
        low, high = torch.where(good, middle, low), torch.where(good, high, middle)
    return torch.exp2(low)


def _plain(value: Tensor) -> Tensor:
    """The same in double precision on the CPU: few numbers, whose rounding must not matter."""
    return value.detach().to(device="cpu", dtype=torch.double)


def _measure(kernel: Kernel, half: Tensor, box: Tensor) -> tuple[Tensor, float]:
    """Bounds on d_k for half-sides of cells (``... x d`` to ``...``), and on ``sqrt(k(x, x))``."""
    dims = kernel.active_dims
    if dims is not None:
        half, box = half[..., dims.cpu()], box[..., dims.cpu()]
    return _measure_selected(kernel, half, box)


def _measure_selected(kernel: Any, half: Tensor, box: Tensor) -> tuple[Tensor, float]:
    """The same after ``active_dims`` have been applied, as in a kernel's ``forward``."""
    if isinstance(kernel, MaternSum):  # ``batch_shape`` would look for sub-kernels
        squares = [w * _measure(k, half, box)[0].square() for w, k in matern_parts(kernel)]
        return _UPWARDS * torch.stack(squares).sum(dim=0).sqrt(), _UPWARDS
    kind = None if kernel.batch_shape else type(kernel)
    if kind is RBFKernel:
        return _stationary(-torch.expm1(-0.5 * _radius(kernel, half).square()))
    if kind is MaternKernel:
        return _stationary(_matern_drop(kernel.nu, _radius(kernel, half)))
    if kind is LinearKernel:
        root = _plain(kernel.variance).flatten().sqrt()
        corner = torch.linalg.vector_norm(box.abs().amax(dim=0) * root).item()
        return _UPWARDS * torch.linalg.vector_norm(half * root, dim=-1), _UPWARDS * corner
    if kind is ConstantKernel:
        return half.new_zeros(half.shape[:-1]), _UPWARDS * math.sqrt(kernel.constant.item())
    if kind is ScaleKernel:
        scale = _UPWARDS * math.sqrt(kernel.outputscale.item())
        distance, top = _measure_selected(kernel.base_kernel, half, box)
        return scale * distance, scale * top
    if kind not in (AdditiveKernel, ProductKernel):
        raise NotSupportedError(
            f"How fast a {type(kernel).__name__} varies over a box is not known. Use an RBF, "
            "Matern, linear or constant kernel, or such kernels scaled, added or multiplied; a "
            'FiniteDomain; or, for rounds alone, RKHSConfidence(..., uniform="trace").'
        )
    (distance, top), *others = (_measure(part, half, box) for part in kernel.kernels)
    for other, bound in others:
        if kind is AdditiveKernel:
            distance, top = torch.hypot(distance, other), math.hypot(top, bound)
        else:  # its features are products of features: change one factor after the other
            distance, top = bound * distance + top * other, top * bound
        distance, top = _UPWARDS * distance, _UPWARDS * top
    return distance, top


def _radius(kernel: Kernel, half: Tensor) -> Tensor:
    """Euclidean length in units of the lengthscales, ``... x d`` to ``...``."""
    return torch.linalg.vector_norm(half / _plain(kernel.lengthscale).flatten(), dim=-1)


def _matern_drop(nu: float, radius: Tensor) -> Tensor:
    """``1 - k`` of a Matern kernel at a distance in lengthscales, without cancellation."""
    scaled = math.sqrt(2.0 * nu) * radius
    if nu == 0.5:
        return -torch.expm1(-scaled)
    # The integral of -k', an incomplete gamma function.
    second = torch.special.gammainc(torch.full_like(scaled, 2.0), scaled)
    if nu == 1.5:
        return second
    third = torch.special.gammainc(torch.full_like(scaled, 3.0), scaled)
    return (second + 2.0 * third) / 3.0


def _stationary(drop: Tensor) -> tuple[Tensor, float]:
    """The distance if k has fallen by ``drop`` at the corner, and ``sqrt(k(x, x))``, which is 1."""
    return _UPWARDS * (2.0 * drop).sqrt(), 1.0
