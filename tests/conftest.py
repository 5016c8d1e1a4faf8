"""Settings of every test, and the reference numbers."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import scale

if TYPE_CHECKING:
    from simulated_cuda import Record

# The problems are small; more threads would only wait for each other on a busy machine. Set before
# NumPy is imported, and for the processes that tests start.
os.environ["OMP_NUM_THREADS"] = "1"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--scale",
        choices=["full", "small"],
        default="full",
        help="how much -m heavy and -m reliability do: in full each takes the better part of an "
        "hour",
    )
    parser.addoption(
        "--simulated-cuda",
        action="store_true",
        help="play the tests marked cuda, and no others, on a device simulated on the CPU",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """With -n, give each process adjacent tests, so that they share what fixtures have made."""
    if config.getoption("numprocesses", None) and config.option.dist == "no":
        config.option.dist = "worksteal"


def pytest_configure(config: pytest.Config) -> None:
    scale.small = config.getoption("--scale") == "small"
    if config.getoption("numprocesses", None):
        return  # the workers run the tests: this process need not spend seconds on imports
    import torch
    from hypothesis import settings

    settings.register_profile(
        "tests", derandomize=True, deadline=None, print_blob=True, max_examples=50
    )
    settings.load_profile("tests")
    torch.set_num_threads(1)
    if config.getoption("--simulated-cuda"):
        import simulated_cuda  # noqa: F401  # must come before autograd counts the devices


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    import torch

    if config.getoption("--simulated-cuda"):
        # Deselect the others: autograd now has a device thread, which forked processes cannot have.
        others = [item for item in items if "cuda" not in item.keywords]
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if "cuda" in item.keywords]
    elif not torch.cuda.is_available():
        for item in items:
            if "cuda" in item.keywords:
                item.add_marker(pytest.mark.skip(reason="no CUDA device; try --simulated-cuda"))


@pytest.fixture(autouse=True)
def device(request: pytest.FixtureRequest) -> Iterator[Record | None]:
    """The simulated device, or None without --simulated-cuda."""
    if not request.config.getoption("--simulated-cuda"):
        yield None
        return
    from simulated_cuda import simulated_cuda

    with simulated_cuda() as gpu:
        yield gpu


@pytest.fixture(autouse=True)
def global_random_state_is_left_alone(device: Record | None) -> Iterator[None]:
    """No call may draw from a global generator."""
    from cases import global_random_state

    before = global_random_state()
    yield
    assert global_random_state() == before


@pytest.fixture
def small_searches() -> Iterator[None]:
    """Search boxes with few points and steps: for tests that compare runs with each other.

    What such runs ask is less good. All else, and whether two runs are equal, is as at full size.
    """
    from botorch_delay.design import box
    from botorch_delay.elimination import box_active_set
    from botorch_delay.optimizers import maximizer

    sizes = {
        box: {"STARTS": 32, "STEPS": 6, "POLISHED": 8},
        box_active_set: {"POOL": 512, "STARTS": 16},
        maximizer: {"BOX_POOL": 256, "MOST_CLIMBS": 16, "STEPS": 4},
    }
    sample_set = box_active_set.sample_set

    def sampled(*arguments: Any, particles: int, **options: Any) -> Any:
        return sample_set(*arguments, particles=min(particles, 512), **options)

    with pytest.MonkeyPatch.context() as patch:  # one of its own, which no test undoes
        for module, numbers in sizes.items():
            for name, number in numbers.items():
                patch.setattr(module, name, number)
        patch.setattr(box_active_set, "sample_set", sampled)
        yield


@pytest.fixture
def no_waits_for_locks() -> Iterator[None]:
    """Give up at once where a file is locked, rather than after a second."""
    connect = sqlite3.connect

    def impatient(*arguments: Any, timeout: float = 0.0, **options: Any) -> sqlite3.Connection:
        return connect(*arguments, timeout=0.0, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sqlite3, "connect", impatient)
        yield


@pytest.fixture(scope="session")
def finite() -> dict[str, Any]:
    """Reference numbers of another implementation."""
    path = Path(__file__).parent / "data" / "finite.json"
    return json.loads(path.read_text())
