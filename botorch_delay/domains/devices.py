"""From the CPU to a device without waiting for it.

Memory that is not pinned is copied to the driver before a call returns, so that the original may
change at once. The other way this does not hold: a copy from a device to the CPU waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def moved(X: Tensor, device: torch.device) -> Tensor:
    """A tensor on a device."""
    return X.to(device, non_blocking=X.device.type == "cpu")


def sent(X: Any, like: Tensor) -> Tensor:
    """A tensor, or numbers or lists of them, in the precision and on the device of another."""
    X = X if isinstance(X, Tensor) else torch.tensor(X, dtype=like.dtype)
    return X.to(like, non_blocking=X.device.type == "cpu")


def sent_rows(rows: Sequence[int], like: Tensor) -> Tensor:
    """Rows as a LongTensor on the device of a tensor."""
    return moved(torch.tensor(rows, dtype=torch.long), like.device)
