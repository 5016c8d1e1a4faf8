"""Study files that somebody has damaged or forged; see fuzzing.py."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import botorch_delay as bd

pytestmark = pytest.mark.reliability
FOLDER = Path(__file__).parent


def test_mutated_files_are_refused_or_load(tmp_path, scale, figures):
    paths = [FOLDER.parent, FOLDER.parent / "optimizers", Path(bd.__file__).parents[1]]
    done = subprocess.run(
        [sys.executable, str(FOLDER / "fuzzing.py"), str(tmp_path), str(scale.mutations), "0"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))},
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["problems"] == []
    assert found["mutations"] == scale.mutations
    assert 2 * found["valid"] >= scale.mutations
    assert found["megabytes"] <= 256
    figures(
        "Hostile study files",
        mutations=found["mutations"],
        valid_SQLite_among_them=found["valid"],
        refused=found["refused"],
        harmless=found["loaded"],
        seconds_at_most=found["slowest"],
        times_a_whole_study=found["times"],
        megabytes_more=found["megabytes"],
    )
