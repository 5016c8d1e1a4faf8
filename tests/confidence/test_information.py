import math

import numpy as np
import pytest
import torch
from cases import KERNELS, scattered, se
from oracle import kernel_function

import botorch_delay as bd
from botorch_delay.exceptions import InputError


def test_figures_of_the_reference(finite):
    X = torch.tensor(finite["points"], dtype=torch.double).reshape(-1, 2)[finite["design"]]
    gain = bd.information_gain(se(1.0), X, 4e-4)
    dimension = bd.effective_dimension(se(1.0), X, 4e-4)
    assert gain == pytest.approx(finite["information_gain"], rel=1e-10)
    assert dimension == pytest.approx(finite["effective_dimension"], rel=1e-10)


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("noise_var", [1.0, 1e-2, 1e-6])
def test_both_equal_the_written_out_formulas(name, noise_var):
    kernel, X = KERNELS[name](), scattered(30)
    K = kernel_function(kernel)(X.numpy(), X.numpy())
    _, logdet = np.linalg.slogdet(np.eye(30) + K / noise_var)
    trace = np.trace(np.linalg.solve(K + noise_var * np.eye(30), K))
    gain = bd.information_gain(kernel, X, noise_var)
    dimension = bd.effective_dimension(kernel, X, noise_var)
    assert gain == pytest.approx(0.5 * logdet, rel=1e-8)
    assert dimension == pytest.approx(trace, rel=1e-6)
    assert dimension <= 2 * gain


def test_the_paper_s_inequality_is_false():
    X = torch.zeros(1, 1, dtype=torch.double)
    assert bd.effective_dimension(se(), X, 1.0) == pytest.approx(0.5)
    assert bd.information_gain(se(), X, 1.0) == pytest.approx(0.5 * math.log(2))
    assert bd.effective_dimension(se(), X, 1.0) > bd.information_gain(se(), X, 1.0)


def test_bad_arguments():
    with pytest.raises(InputError, match="above 0"):
        bd.information_gain(se(), scattered(3), 0.0)
    with pytest.raises(InputError, match="n x d"):
        bd.effective_dimension(se(), torch.zeros(3).double(), 1.0)
