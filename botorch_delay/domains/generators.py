"""Random generators of their own, so that no global one is touched."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


def generator_for(seed: int, number: int, device: torch.device) -> torch.Generator:
    """A generator for one ask: the same for a seed and an ask, whatever came before.

    Args:
        seed: of the optimizer.
        number: of the ask.
        device: where it draws.
    """
    mixed = (seed * 0x9E3779B97F4A7C15 + number * 0xBF58476D1CE4E5B9 + 1) % 2**63
    return torch.Generator(device=device).manual_seed(mixed)


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Seeds the global generators of the CPU and of a device, and restores them at the end.

    For libraries that draw from them. Other devices' generators are left alone.
    """
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        torch.default_generator.manual_seed(seed)
        if devices:
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        yield
