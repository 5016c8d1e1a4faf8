"""Random sequences of calls to every optimizer, against a plain ledger."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test
from test_every_optimizer import OPTIMIZERS, Machine

pytestmark = pytest.mark.reliability


def test_sequences_of_calls(scale, figures):
    counted = type("Counted", (Machine,), {"played": 0, "names": set()})
    run_state_machine_as_test(
        counted,
        settings=settings(max_examples=scale.sequences, stateful_step_count=30, deadline=None),
    )
    assert counted.played >= scale.sequences
    figures("State machine", sequences=counted.played, optimizers=len(OPTIMIZERS))
