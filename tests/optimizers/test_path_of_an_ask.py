"""How much of the package one has to read in order to follow an ask."""

import sys
from pathlib import Path

import pytest
import torch
from cases import normal

import botorch_delay as bd

PACKAGE = str(Path(bd.__file__).parent)
# Horizon and noise of the study, then the most functions and modules that an ask may pass through.
# Lower these limits where they allow it; do not raise them.
RULE = 60, 0.0, 99, 19
LAST_ASKS = 28, 0.3, 100, 22


def functions_of(call):
    """The package's functions that a call passes through, without comprehensions and lambdas."""
    passed = set()

    def note(frame, event, argument):
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(PACKAGE) and code.co_name[0] != "<":
            passed.add((code.co_filename, code.co_qualname))

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return passed


@pytest.mark.parametrize("study", [RULE, LAST_ASKS], ids=["rule", "last asks"])
def test_an_ask_on_a_box_with_a_learned_kernel_passes_few_functions(study):
    horizon, noise, most_functions, most_modules = study
    box = bd.BoxDomain(torch.tensor([[0.0] * 3, [1.0] * 3], dtype=torch.double))
    opt = bd.BPEDelayOptimizer(box, horizon, seed=0)
    for error in noise * normal(21 if noise else 20):
        trial = opt.ask()
        opt.tell(trial, float(error) - float((trial.x - 0.3).square().sum()))
    opt.ask()
    fitted = opt._fitting.fitted_to
    passed = functions_of(opt.ask)
    assert opt._fitting.fitted_to == fitted  # a refit would add functions of its own
    modules = {module for module, _ in passed}
    assert len(passed) <= most_functions, sorted(passed)
    assert len(modules) <= most_modules, sorted(modules)
