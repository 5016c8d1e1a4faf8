"""Losses of real trainings, cross-validated on data sets that scikit-learn carries."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from botorch_delay import validation
from botorch_delay.benchmarks.problems import BoxProblem
from botorch_delay.domains.box import BoxDomain
from botorch_delay.domains.parameters import Float
from botorch_delay.domains.space import Space

Array = NDArray[np.float64]

FOLDS = 3
WORST = 10.0  # a larger loss, such as one that explodes, counts as this
CACHE_SIZE = 4096  # cached evaluations, of all trainings together


@dataclass(frozen=True, eq=False)
class Training:
    """The cross-validated loss of a model, as a function on a box.

    The lowest loss is the smallest that was found, by searches that closed in on the best of some
    thousand points, and by the methods that are compared. The highest loss and the spread are those
    over 400 or 600 Sobol points.
    """

    data: str  # scikit-learn's loader; inputs, and targets of regression, are standardised
    model: str  # an estimator, by its name behind ``sklearn``
    fixed: Mapping[str, Any]  # arguments that are not searched
    loss: Callable[[Any, Array, Array], float]  # of a fitted model on held-out inputs and targets
    columns: Mapping[str, Float]  # arguments that are searched
    lowest_loss: float
    highest_loss: float
    spread: float  # standard deviation of the loss over the box

    @lru_cache(maxsize=CACHE_SIZE)  # noqa: B019  # trainings live as long as the module
    def __call__(self, *values: float) -> float:
        """The mean loss over the folds, which are the same in every call."""
        from sklearn.model_selection import KFold

        module, _, name = self.model.partition(".")
        model = getattr(import_module(f"sklearn.{module}"), name)(
            **self.fixed, **dict(zip(self.columns, values, strict=True))
        )
        if hasattr(model, "random_state"):  # SVR takes none, and draws from the global generator
            model.random_state = 0
        X, y = _data(self.data)
        losses = []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # such as a lack of convergence, which the loss shows
            with np.errstate(all="ignore"):
                for train, held in KFold(FOLDS, shuffle=True, random_state=0).split(X):
                    try:
                        fitted = model.fit(X[train], y[train])
                        losses.append(self.loss(fitted, X[held], y[held]))
                    except (ValueError, FloatingPointError):  # weights that are not finite
                        losses.append(WORST)
        return float(np.nan_to_num(losses, nan=WORST).clip(max=WORST).mean())


def training_on_box(name: str, seed: int = 0, *, noise_share: float) -> BoxProblem:
    """A training's loss, negated, the same for every seed."""
    validation.installed("sklearn", "Losses of real trainings need scikit-learn")
    training = TRAININGS[name]

    def value(X: Tensor) -> Tensor:
        return X.new_tensor([-training(*row) for row in X.tolist()])

    domain, spread = Space(training.columns).domain, (-training.highest_loss, training.spread)
    assert isinstance(domain, BoxDomain)
    return BoxProblem(domain, value, -training.lowest_loss, noise_share, spread=spread)


@lru_cache
def _data(loader: str) -> tuple[Array, Array]:
    from sklearn import datasets

    X, y = getattr(datasets, f"load_{loader}")(return_X_y=True)
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    return X, (y - y.mean()) / y.std() if loader == "diabetes" else y


def _error(model: Any, X: Array, y: Array) -> float:
    return float((model.predict(X) != y).mean())


def _log_loss(model: Any, X: Array, y: Array) -> float:
    chosen = model.predict_proba(X)[np.arange(len(y)), y]
    return float(-np.log(chosen.clip(min=1e-15)).mean())


def _squared(model: Any, X: Array, y: Array) -> float:
    return float(np.square(model.predict(X) - y).mean())


TRAININGS: dict[str, Training] = {
    "svm": Training(
        "breast_cancer",
        "svm.SVC",
        {},
        _error,
        {"C": Float(1e-3, 1e4, log=True), "gamma": Float(1e-6, 10.0, log=True)},
        *(0.0210711, 0.3726, 0.1594),
    ),
    "sgd": Training(
        "breast_cancer",
        "linear_model.SGDClassifier",
        {"loss": "log_loss", "learning_rate": "constant", "max_iter": 20, "tol": None},
        _log_loss,
        {"alpha": Float(1e-8, 1.0, log=True), "eta0": Float(1e-5, 100.0, log=True)},
        *(0.0775757, 7.894, 1.099),
    ),
    "kernel-ridge": Training(
        "diabetes",
        "kernel_ridge.KernelRidge",
        {"kernel": "rbf"},
        _squared,
        {"alpha": Float(1e-8, 100.0, log=True), "gamma": Float(1e-5, 10.0, log=True)},
        *(0.48473, 10.0, 1.523),
    ),
    "svr": Training(
        "diabetes",
        "svm.SVR",
        {"max_iter": 20_000},
        _squared,
        {
            "C": Float(1e-3, 1e3, log=True),
            "gamma": Float(1e-5, 10.0, log=True),
            "epsilon": Float(1e-3, 2.0, log=True),
        },
        *(0.4766382, 2.134, 0.2332),
    ),
    "sgd-regression": Training(
        "diabetes",
        "linear_model.SGDRegressor",
        {"penalty": "elasticnet", "max_iter": 20, "tol": None},
        _squared,
        {
            "alpha": Float(1e-7, 10.0, log=True),
            "eta0": Float(1e-5, 1.0, log=True),
            "l1_ratio": Float(0.0, 1.0),
            "power_t": Float(0.0, 1.0),
        },
        *(0.502332, 10.0, 1.39),
    ),
}
