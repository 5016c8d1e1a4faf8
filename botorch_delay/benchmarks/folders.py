"""Folders of runs: each run in a file of its own, so that what was done is never lost."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import torch
from tqdm import tqdm

from botorch_delay.exceptions import InputError, MissingExtraError, RunError
from botorch_delay.workers import spawned_pool

T = TypeVar("T")


def write_whole(path: Path, text: str) -> None:
    """Write a file so that it is there in full or not at all."""
    part = path.with_name(path.name + ".part")
    part.write_text(text)
    part.replace(path)


def runs_folder(folder: Path) -> Path:
    """The folder of the runs in ``folder``, made if need be; a file can be written there.

    Raises:
        InputError: if it cannot be made or written.
    """
    runs = folder / "runs"
    try:
        runs.mkdir(parents=True, exist_ok=True)
        # Rights alone do not tell of a file system that is mounted read-only, or full.
        for place in (folder, runs):
            probe = place / f".probe-{os.getpid()}"
            probe.write_text("x")
            probe.unlink()
    except OSError as error:
        raise InputError(f"Cannot write to {folder}: {error.strerror}.") from error
    return runs


def play_all(
    jobs: Mapping[Path, tuple[Callable[..., T], tuple[Any, ...]]],
    as_text: Callable[[Path, T], str],
    *,
    total: int,
    workers: int,
    progress: bool,
) -> None:
    """Call functions in worker processes and write each result to its file when it is there.

    A single worker is this process itself; torch uses one thread meanwhile, as it does in others.

    Args:
        jobs: by file, a function and its arguments, which can be sent to another process if
            there is one.
        as_text: what is written, from file and result.
        total: jobs in all, with those that were done before.
        workers: processes, at least 1.
        progress: whether to show a progress bar.

    Raises:
        RunError: if a worker process dies; what was done is kept.
    """
    bar = tqdm(total=total, initial=total - len(jobs), unit="run", disable=not progress)
    with bar:
        if workers == 1:
            with _one_thread():
                for path, (call, args) in jobs.items():
                    write_whole(path, as_text(path, call(*args)))
                    bar.update()
            return
        if not jobs:
            return
        with spawned_pool(min(workers, len(jobs))) as pool:
            futures = {pool.submit(call, *args): path for path, (call, args) in jobs.items()}
            try:
                for future in as_completed(futures):
                    path = futures[future]
                    write_whole(path, as_text(path, future.result()))
                    bar.update()
            except BrokenProcessPool as error:
                raise RunError(
                    f"A worker process died: {error}. Every run that was done is kept; the same "
                    "command goes on from there."
                ) from error
            except BaseException:
                for future in futures:
                    future.cancel()
                raise


@contextmanager
def _one_thread() -> Iterator[None]:
    """As in a worker process, so that times can be compared."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def require_matplotlib() -> None:
    """That figures can be drawn, found out before the work starts.

    Raises:
        MissingExtraError: without Matplotlib.
    """
    if find_spec("matplotlib") is None:
        raise MissingExtraError("The figures need Matplotlib: pip install 'botorch-delay[plots]'.")


def versions(*names: str) -> str:
    """Packages and their versions, in one line; those that are not installed are left out.

    Args:
        names: of packages beside the library's own and the three that it rests on.
    """
    found = [f"{name} {installed(name)}" for name in _BASE]
    for name in names:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    return ", ".join(found)


_BASE = ("botorch-delay", "botorch", "gpytorch", "torch")


def installed(name: str) -> str:
    """The version of a package."""
    try:
        return version(name)
    except PackageNotFoundError:  # run from a source tree that is not installed
        return "of a source tree"
