"""Work in a process of its own, whose memory nothing else has touched.

Arguments and results travel as JSON; the function goes by its name.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import botorch_delay
from botorch_delay.exceptions import RunError

_START = "from speed.isolation import work; work()"


def isolated(function: Callable[..., Any], **arguments: Any) -> Any:
    """The result of a function of this package, called in a new process with as many threads.

    Args:
        function: a module's own function, which takes and returns what JSON can say.
        arguments: for it.

    Raises:
        RunError: if the process fails.
    """
    name = function.__module__, function.__qualname__
    order = json.dumps([*name, torch.get_num_threads(), arguments])
    roots = [str(Path(file).parents[1]) for file in (__file__, botorch_delay.__file__)]
    paths = [*roots, os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, "-c", _START],
        input=order,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        check=False,
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise RunError(f"{name[1]} failed in a process of its own: {last}")
    return json.loads(done.stdout)


def work() -> None:
    """What the new process does."""
    module, name, threads, arguments = json.loads(sys.stdin.read())
    torch.set_num_threads(threads)
    result = getattr(importlib.import_module(module), name)(**arguments)
    sys.stdout.write(json.dumps(result))
