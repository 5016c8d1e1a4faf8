"""Peak memory of designs, posteriors on candidates and bounds, against the stated formulas."""

from itertools import pairwise

import pytest
import torch
from cases import scattered, se
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from botorch_delay.design import greedy
from botorch_delay.gp.candidate_covariance import BLOCK
from botorch_delay.gp.candidates import CandidatePosterior
from botorch_delay.gp.kernels import CACHE_ELEMENTS
from botorch_delay.gp.posterior import Data, Posterior

DOUBLE = 8
DIM = 3
# Allowed beyond the formulas, in vectors of N numbers: copies of the points, sums, masks.
VECTORS = 4 * DIM + 16


class Allocations(TorchDispatchMode):
    """Tracks the memory of all tensors that are made inside.

    Attributes:
        largest: size of the largest tensor, in double-precision numbers.
        most: largest total of all tensors at once, in the same unit.
    """

    def __init__(self):
        super().__init__()
        self.largest = self.most = 0.0
        self._known = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, torch.Tensor):
                storage = leaf.untyped_storage()
                if storage._cdata not in self._known:
                    self._known[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
                    self.largest = max(self.largest, storage.nbytes() / DOUBLE)
        self._known = {key: it for key, it in self._known.items() if not it[0].expired()}
        held = sum(n for _, n in self._known.values())
        self.most = max(self.most, held / DOUBLE)
        return out


def design(n, picks):
    """As a CUDA device makes it: of many candidates no other device keeps rows."""
    points = scattered(n, DIM)
    with Allocations() as found:
        greedy.GreedyDesign(se(), points, 1e-2).extend(picks)
    return found


@pytest.mark.parametrize("picks", [50, 150])
def test_a_design_on_a_device_holds_its_rows_in_blocks(picks, monkeypatch):
    monkeypatch.setattr(greedy, "MAX_FOLDED", 10**9)
    n = 3_000
    found = design(n, picks)
    blocks = -(-picks // BLOCK)
    assert found.largest == BLOCK * n
    assert BLOCK * blocks * n < found.most < (BLOCK * blocks + VECTORS) * n


def test_a_design_on_the_cpu_holds_vectors_and_a_shortlist():
    n, picks = 40_000, 30
    found = design(n, picks)
    assert found.most < VECTORS * n + 2 * picks * greedy.SHORTLIST_MAX


def answers(points, m):
    return {row: (points[row], 0.5, 1e-2) for row in range(m)}


@pytest.mark.parametrize("at_once", [True, False])
def test_a_posterior_on_candidates_holds_rows_of_its_answers(at_once):
    n, m = 8_000, 130
    points = scattered(n, DIM)
    with Allocations() as found:
        posterior = CandidatePosterior(se(), points, as_rows=True)
        batches = [(0, m)] if at_once else pairwise([*range(0, m, 5), m])
        for start, end in batches:
            posterior.update(dict(list(answers(points, end).items())[start:]))
    room = m if at_once else 2 * m
    pieces = 3 * CACHE_ELEMENTS
    assert m * n <= found.largest <= room * n
    # One buffer is copied to a larger one while it grows.
    assert found.most <= 1.5 * room * n + VECTORS * n + pieces


@pytest.mark.parametrize("weights", [False, True])
def test_bounds_hold_pieces_and_a_few_vectors(weights, monkeypatch):
    n, m = 20_000, 200
    points = scattered(n, DIM)
    data = Data.single(points[:m], points[:m, 0], torch.full((m,), 1e-2).to(points))
    posterior = Posterior(se(), data)
    with Allocations() as found:
        posterior.at(points, weights=weights)
    assert m * n > 10 * CACHE_ELEMENTS
    assert found.largest <= max(CACHE_ELEMENTS, 7 * n)
    assert found.most <= 4 * CACHE_ELEMENTS + VECTORS * n + 4 * m * m
