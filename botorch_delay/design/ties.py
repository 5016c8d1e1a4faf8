"""The tie rule, by which CPU, CUDA and two formulas of the same thing ask the same points.

On symmetric grids many candidates share the largest score up to rounding, and which of them
comes out on top would depend on the order of additions. The lowest index wins among those that
are equal to the largest up to a relative 1e-8, or up to rounding in single precision.
"""

from __future__ import annotations

import torch
from torch import Tensor

TIE_TOLERANCE = 1e-8


def tie_tolerance(dtype: torch.dtype) -> float:
    """By how much, relative to the largest, tied scores may differ."""
    return max(TIE_TOLERANCE, 64.0 * torch.finfo(dtype).eps)


def largest_and_tied(scores: Tensor, scale: float = 0.0) -> tuple[Tensor, Tensor]:
    """The largest score, and which are tied with it: bool, ``n``. Never waits for a device.

    Args:
        scores: ``n``.
        scale: the size of what the scores are made of, where they may cancel.
    """
    top = scores.max()
    slack = tie_tolerance(scores.dtype) * top.abs().clamp_min(scale)
    return top, scores >= top - slack


def lowest_of_largest(scores: Tensor, scale: float = 0.0) -> int:
    """The lowest index whose score is the largest, ties included.

    Args:
        scores: ``n``.
        scale: the size of what the scores are made of, where they may cancel.
    """
    # argmax returns the first of equal entries: the lowest index among the ties.
    return int(largest_and_tied(scores, scale)[1].byte().argmax())
