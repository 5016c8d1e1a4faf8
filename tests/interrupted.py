"""Commands that are killed in the middle of their work."""

import os
import signal
import subprocess
from collections.abc import Callable, Sequence


def kill_once(command: Sequence[str], reached: Callable[[], bool]) -> None:
    """Begin a command in a process group of its own, and kill the group at some point."""
    process = subprocess.Popen(command, stderr=subprocess.PIPE, start_new_session=True)
    assert process.stderr is not None
    while not reached():
        assert process.stderr.read(80), "it ended too soon"  # some progress
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
