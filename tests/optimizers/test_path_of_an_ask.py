"""How much of the package a reader has to know who follows an ask."""

import sys
from pathlib import Path

import torch

import botorch_delay as bd

PACKAGE = str(Path(bd.__file__).parent)
# They may fall, and are not to grow.
MOST_FUNCTIONS, MOST_MODULES = 99, 19


def functions_of(call):
    """The functions of the package that a call passes, but for comprehensions."""
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


def test_an_ask_on_a_box_with_a_learned_kernel_passes_few_functions():
    box = bd.BoxDomain(torch.tensor([[0.0] * 3, [1.0] * 3], dtype=torch.double))
    opt = bd.BPEDelayOptimizer(box, horizon=60, seed=0)
    for _ in range(20):
        trial = opt.ask()
        opt.tell(trial, -float((trial.x - 0.3).square().sum()))
    opt.ask()
    fitted = opt._fitting.fitted_to
    passed = functions_of(opt.ask)
    assert opt._fitting.fitted_to == fitted  # a fit is another matter
    modules = {module for module, _ in passed}
    assert len(passed) <= MOST_FUNCTIONS, sorted(passed)
    assert len(modules) <= MOST_MODULES, sorted(modules)
