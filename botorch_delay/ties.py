"""The tie rule, by which CPU, CUDA and two formulas of the same thing ask the same points.

On symmetric grids many candidates share the largest score up to rounding, and which of them
comes out on top would depend on the order of additions. The lowest index wins among those that
are equal to the largest up to a relative 1e-8, or up to rounding in single precision.
"""

from __future__ import annotations

import torch
from torch import Tensor

TIE_TOLERANCE = 1e-8


def lowest_of_largest(scores: Tensor, scale: float = 0.0) -> int:
    """The lowest index whose score is the largest, ties included.

    Args:
        scores: ``n``.
        scale: the size of what the scores are made of, where they may cancel.
    """
    top = scores.max()
    tolerance = max(TIE_TOLERANCE, 64.0 * torch.finfo(scores.dtype).eps)
    slack = tolerance * top.abs().clamp_min(scale)
    # argmax returns the first of equal entries: the lowest index among the ties.
    return int((scores >= top - slack).byte().argmax())
