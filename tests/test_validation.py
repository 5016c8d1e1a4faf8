import math
import tomllib
from decimal import Decimal

import numpy as np
import pytest
import torch
from readme_blocks import ROOT

import botorch_delay as bd
from botorch_delay import validation
from botorch_delay.exceptions import InputError, InputTypeError, MissingExtraError

POINTS = torch.tensor([[0.0, 1.0], [2.0, 3.0]], dtype=torch.double)


@pytest.mark.parametrize("value", [np.timedelta64(5, "s"), np.array([5], "m8[ns]")])
def test_a_span_of_time_is_no_number(value):
    with pytest.raises(
        InputTypeError, match=r"y must be a number, got timedelta64\[n?s\]; convert"
    ):
        validation.real(value, "y")


@pytest.mark.parametrize(
    ("check", "value", "expected"),
    [
        (lambda v: validation.whole(v, "n", 1), 3.0, 3),
        (lambda v: validation.whole(v, "n", 1), np.int64(1), 1),
        (validation.seed, 2**63 - 1, 2**63 - 1),
        (lambda v: validation.flag(v, "tried"), np.False_, False),
        (lambda v: validation.real(v, "y"), torch.tensor(0.5), 0.5),
        (lambda v: validation.real(v, "y"), np.array(2.0), 2.0),
        (lambda v: validation.real(v, "y"), Decimal("1.5"), 1.5),
        (lambda v: validation.real(v, "y"), torch.tensor([0.5]), 0.5),
        (lambda v: validation.real(v, "y"), np.array([[2.0]]), 2.0),
        (lambda v: validation.positive(v, "y"), 1, 1.0),
        (lambda v: validation.nonnegative(v, "y"), 0, 0.0),
        (lambda v: validation.factor(v, "y"), 1, 1.0),
        (lambda v: validation.probability(v, "p"), 0.5, 0.5),
        (lambda v: validation.noise_variance(v, "noise_var", POINTS), 1e-4, 1e-4),
        (lambda v: validation.answer(v, POINTS), 3, 3.0),
    ],
)
def test_what_can_be_used_comes_back_as_a_plain_number(check, value, expected):
    checked = check(value)
    assert type(checked) is type(expected)
    assert checked == expected


@pytest.mark.parametrize(
    ("check", "value", "error", "message"),
    [
        (lambda v: validation.whole(v, "n", 1), 0, InputError, "n must be at least 1, got 0"),
        (lambda v: validation.whole(v, "n", 1), 3.5, InputTypeError, "whole number"),
        (lambda v: validation.whole(v, "n", 0), True, InputTypeError, "whole number"),
        (lambda v: validation.whole(v, "n", 0), torch.tensor(True), InputTypeError, "whole"),
        (validation.seed, 2**63, InputError, "at most 9223372036854775807"),
        (validation.seed, -1, InputError, "at least 0"),
        (lambda v: validation.real(v, "y"), math.nan, InputError, "finite, got nan"),
        (lambda v: validation.real(v, "y"), 10**400, InputError, "finite, got inf"),
        (lambda v: validation.real(v, "y"), Decimal("sNaN"), InputError, "finite, got nan"),
        (lambda v: validation.real(v, "y"), np.ma.masked, InputError, "a masked value"),
        (lambda v: validation.real(v, "y"), torch.ones(1, device="meta"), InputError, "got nan"),
        (lambda v: validation.real(v, "y"), "1", InputTypeError, "a number, got str '1'"),
        (lambda v: validation.real(v, "y"), [[1.0], [2, 3.0]], InputTypeError, "number, got list"),
        (lambda v: validation.real(v, "y"), torch.ones(2), InputError, "0-dim tensor"),
        (lambda v: validation.real(v, "y"), torch.tensor(1j), InputTypeError, "real"),
        (lambda v: validation.flag(v, "exact"), 1, InputTypeError, "True or False"),
        (lambda v: validation.positive(v, "y"), 0.0, InputError, "above 0"),
        (lambda v: validation.nonnegative(v, "y"), -1e-9, InputError, "at least 0"),
        (lambda v: validation.factor(v, "y"), 0.9, InputError, "at least 1"),
        (lambda v: validation.probability(v, "p"), 1.0, InputError, "strictly between"),
        (lambda v: validation.noise_variance(v, "s", POINTS.float()), 1e-30, InputError, "rescale"),
        (
            *(lambda v: validation.answer(v, POINTS.float()), 1e30, InputError),
            r"got 1e\+30\. Call mark_failed\(trial\) if .* rescale them",
        ),
        (
            lambda v: validation.answer(v, POINTS),
            math.inf,
            InputError,
            "finite, got inf. Call mark_failed",
        ),
        (lambda v: validation.answer(v, POINTS), "a", InputTypeError, "Pass one number"),
        (lambda v: validation.matrix(v, "X"), [[1.0]], InputTypeError, "a torch.Tensor, got list"),
        (lambda v: validation.matrix(v, "X"), torch.ones(1, 1).long(), InputTypeError, "double()"),
        (lambda v: validation.matrix(v, "X"), torch.ones(3), InputError, "n x d"),
        (lambda v: validation.matrix(v, "X"), torch.ones(0, 2), InputError, "at least one point"),
        (lambda v: validation.matrix(v, "X"), POINTS.log(), InputError, "row 0"),
        (lambda v: validation.column(v, "y", POINTS), torch.ones(2), InputTypeError, "float32"),
        (lambda v: validation.column(v, "y", POINTS), POINTS, InputError, "2 or 2 x 1"),
        (lambda v: validation.column(v, "y", POINTS), POINTS[:, 0].log(), InputError, "row 0 is"),
        (lambda v: validation.matches(v, "X", POINTS), POINTS.float(), InputTypeError, "dtype"),
        (lambda v: validation.matches(v, "X", POINTS), POINTS[:, :1], InputError, "2 columns"),
    ],
)
def test_what_cannot_be_used_says_what_was_expected(check, value, error, message):
    with pytest.raises(error, match=message):
        check(value)


def test_a_class_in_place_of_its_object_is_named():
    with pytest.raises(InputTypeError, match=r"got the class dict; call it: dict\(\.\.\.\)\."):
        validation.instance(dict, dict | None, "x", "a dict")
    with pytest.raises(InputTypeError, match=r"got the class dict\."):
        validation.instance(dict, str, "x", "a text")


def test_matrices_and_columns():
    assert validation.matrix(POINTS.clone().requires_grad_(True), "X").requires_grad is False
    assert validation.matrix(POINTS[:0], "X", empty=True).shape == (0, 2)
    assert validation.column(POINTS[:, :1], "y", POINTS).tolist() == [0.0, 2.0]
    validation.matches(POINTS[:1], "X", POINTS)
    assert math.copysign(1.0, validation.answer(-0.0, POINTS)) == 1.0


def test_a_package_that_is_missing_gives_a_hint(monkeypatch):
    validation.installed("torch", "Everything needs torch")
    monkeypatch.setattr(validation, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"needs Ray: pip install 'ray\[tune\]>=2.60'"):
        validation.installed("ray", "It needs Ray")


def test_what_to_install_is_what_the_package_declares():
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = {line for lines in declared["optional-dependencies"].values() for line in lines}
    assert set(validation.REQUIREMENTS.values()) <= extras


@pytest.mark.parametrize(
    "odd",
    [
        torch.eye(2, dtype=torch.double).to_sparse(),
        torch.empty(2, 2, dtype=torch.double, device="meta"),
    ],
    ids=["sparse", "meta"],
)
def test_tensors_without_plain_numbers_are_refused(odd):
    with pytest.raises(InputTypeError, match=r"points must be a .*tensor.*, got one o"):
        bd.FiniteDomain(odd)
