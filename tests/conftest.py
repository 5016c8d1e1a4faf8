"""Settings of every test, and the reference numbers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import scale
import torch
from cases import global_random_state
from hypothesis import settings
from simulated_cuda import Record, simulated_cuda

settings.register_profile("tests", derandomize=True, deadline=None, print_blob=True)
settings.load_profile("tests")

# The problems are small; more threads would only wait for each other on a busy machine.
torch.set_num_threads(1)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--scale",
        choices=["full", "small"],
        default="full",
        help="how much -m heavy and -m reliability do: in full each takes the better part of an "
        "hour",
    )


def pytest_configure(config: pytest.Config) -> None:
    scale.small = config.getoption("--scale") == "small"


@pytest.fixture(autouse=True)
def device(request: pytest.FixtureRequest) -> Iterator[Record | None]:
    """Tests marked ``cuda`` run on a device: on a simulated one where there is no other."""
    if "cuda" not in request.keywords or torch.cuda.is_available():
        yield None
        return
    with simulated_cuda() as gpu:
        yield gpu


@pytest.fixture(autouse=True)
def global_random_state_is_left_alone(device: Record | None) -> Iterator[None]:
    """No call may draw from a global generator."""
    before = global_random_state()
    yield
    assert global_random_state() == before


@pytest.fixture(scope="session")
def finite() -> dict[str, Any]:
    """Reference numbers of another implementation."""
    path = Path(__file__).parent / "data" / "finite.json"
    return json.loads(path.read_text())
