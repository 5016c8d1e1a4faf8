"""Errors and warnings of the library.

Every error derives from :class:`BotorchDelayError` and, where one fits, from the BoTorch
and the builtin error that a caller would already catch.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import warnings

import torch
from botorch.exceptions.errors import InputDataError, UnsupportedError
from botorch.exceptions.warnings import BotorchWarning


class BotorchDelayError(Exception):
    """Base class of every error that this library raises."""


class InputError(BotorchDelayError, InputDataError, ValueError):
    """An argument has a value that cannot be used."""


class InputTypeError(InputError, TypeError):
    """An argument has the wrong type, dtype or device."""


class TrialError(BotorchDelayError, LookupError, ValueError):
    """A trial is unknown, foreign, or in a state that does not allow the call."""


class HorizonError(BotorchDelayError, RuntimeError):
    """More asks than are planned, or an ask after ``finish()``."""


class NoAnswerError(BotorchDelayError, RuntimeError):
    """The call needs at least one answer, and there is none yet."""


class EmptyDomainError(BotorchDelayError, RuntimeError):
    """No point can be asked: none is feasible, or each failed too often, is running or is known."""


class ExhaustedDesignError(EmptyDomainError):
    """A design has nothing left to pick: every candidate is excluded."""


class NotSupportedError(BotorchDelayError, UnsupportedError, NotImplementedError):
    """The combination of options is not available."""


class RunError(BotorchDelayError, RuntimeError):
    """A run cannot go on, for instance because its workers keep dying."""


class StorageError(BotorchDelayError, ValueError):
    """A file or a state cannot be written, read or used."""


class NumericsError(BotorchDelayError, ArithmeticError):
    """A matrix is not positive definite, by more than rounding, or a rule's score is NaN."""


class MissingExtraError(BotorchDelayError, ImportError):
    """An optional dependency is not installed."""


class NumericsWarning(BotorchWarning, RuntimeWarning):
    """A computation went on with less accuracy than asked for."""


class RepeatedResultWarning(BotorchWarning, UserWarning):
    """A result was attached that had been attached before, with the same point and value."""


class OutlierWarning(BotorchWarning, UserWarning):
    """An answer may be a mistake, as others speak against it; it was accepted."""


class RefutedWarning(BotorchWarning, UserWarning):
    """The answers contradict the constants of a claim, so nothing is claimed any more."""


class FitWarning(BotorchWarning, RuntimeWarning):
    """Hyperparameters could not be fitted; the last good ones are kept."""


class FewerTrialsWarning(BotorchWarning, RuntimeWarning):
    """An ask for several trials could return only the first few."""


class ScaleWarning(BotorchWarning, UserWarning):
    """The numbers of a parameter span decades, and nothing says whether its logarithm matters."""


class KernelWarning(BotorchWarning, UserWarning):
    """A given kernel sees a column differently from how the domain declares it."""


class OutsideWarning(BotorchWarning, UserWarning):
    """A result was attached at a point outside of the domain."""


# Code between a user's line and a warning: this package, PyTorch's decorators, context managers.
_BETWEEN = (
    os.path.dirname(__file__) + os.sep,
    os.path.dirname(torch.__file__) + os.sep,
    contextlib.__file__,
    functools.__file__,
)


def warn(message: str, category: type[Warning]) -> None:
    """Warn with the location of the user's call, however deep in the package this is called."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_BETWEEN):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)
