import warnings

import torch
from botorch.exceptions.warnings import InputDataWarning
from gpytorch.kernels import RBFKernel

import botorch_delay as bd
from botorch_delay.exceptions import FitWarning, NumericsWarning
from botorch_delay.gp import fitting


def test_warnings_name_the_user_s_line_however_deep_they_are_given(monkeypatch, tmp_path):
    monkeypatch.setattr(fitting._Search, "best", lambda *args: None)
    path = tmp_path / "study.db"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        box = bd.BoxDomain(torch.tensor([[0.0], [1.0]]))  # in single precision
        for options in ({"noise_var": 1e-8, "covar_module": RBFKernel()}, {}):
            opt = bd.BPEDelayOptimizer(box, 10, **options)
            for _ in range(6):
                with torch.no_grad():
                    trial = opt.ask()
                opt.tell(trial, float(trial.x))
        opt.save(path)
        bd.load(path)
    assert {NumericsWarning, FitWarning, InputDataWarning} == {each.category for each in caught}
    assert {each.filename for each in caught} == {__file__}
