"""The same seed asks the same, in any process; nobody else's random numbers change."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from cases import global_random_state
from test_every_optimizer import OPTIMIZERS, value

import botorch_delay as bd

pytestmark = pytest.mark.reliability
FOLDER = Path(__file__).parent
ASKS = 15

SCRIPT = """
import json, sys, torch
torch.set_num_threads(1)
import test_determinism
print(json.dumps({name: test_determinism.asked(name) for name in sys.argv[1:]}))
"""


def asked(name):
    """What a run asks, to the last bit, and what it recommends."""
    opt, points = OPTIMIZERS[name](), []
    for _ in range(ASKS):
        trial = opt.ask()
        points.append([trial.index, [x.hex() for x in trial.x.tolist()]])
        for late in opt.pending[:-3]:
            opt.tell(late, value(late))
    best = opt.recommend()
    return [points, best.mean.hex(), best.lower.hex(), best.upper.hex()]


def in_another_process(names):
    paths = [FOLDER, FOLDER.parent, FOLDER.parent / "optimizers", Path(bd.__file__).parents[1]]
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *names],
        capture_output=True,
        text=True,
        env={
            **os.environ,
            "PYTHONHASHSEED": "1",  # by default Python draws one for each process
            "PYTHONPATH": os.pathsep.join(map(str, paths)),
        },
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout)


def test_two_processes_ask_the_same(scale, figures):
    names = list(OPTIMIZERS)[:: scale.every]
    other = in_another_process(names)
    for name in names:
        assert asked(name) == other[name], name
    figures("Two processes, same seed", optimizers=len(names), asks_compared=ASKS * len(names))


def test_no_call_touches_a_generator_that_is_shared(scale, figures, tmp_path):
    calls = 0
    for name, make in list(OPTIMIZERS.items())[:: scale.every]:
        opt, path = make(), tmp_path / f"{len(name)}-{calls}.db"
        first = opt.ask()
        for call in (
            opt.ask,
            lambda opt=opt, first=first: opt.tell(first, 0.5),
            lambda opt=opt: opt.mark_failed(opt.ask()),
            lambda opt=opt: opt.mark_abandoned(opt.ask()),
            lambda opt=opt: opt.attach(opt.domain.bounds[0], 0.1),
            lambda opt=opt: opt.ask(3),
            lambda opt=opt: [opt.tell(trial, value(trial)) for trial in opt.pending],
            opt.ask,
            opt.recommend,
            opt.stopping_gap,
            opt.state_dict,
            lambda opt=opt, path=path: opt.save(path),
            lambda path=path: bd.load(path).ask(),
            opt.finish,
        ):
            before = global_random_state()
            call()
            assert global_random_state() == before, name
            calls += 1
    figures("Shared random state untouched", calls=calls)


def test_the_state_that_is_compared_moves_with_every_draw():
    import random

    import numpy as np

    for draw in (lambda: torch.rand(1), np.random.rand, random.random):
        states = torch.get_rng_state(), np.random.get_state(), random.getstate()
        before = global_random_state()
        draw()
        assert global_random_state() != before
        torch.set_rng_state(states[0])
        np.random.set_state(states[1])
        random.setstate(states[2])
