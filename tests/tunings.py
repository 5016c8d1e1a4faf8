"""Tunings of scikit-learn's models, by this library and by Optuna's TPE.

    python tests/tunings.py SEEDS

prints, for each model and number of workers, the mean recommended loss and the mean of all asks of
both, and counts in how many runs the recommended loss is lower, equal and higher. It needs
``pip install ".[bench]"``, and some four minutes a seed on one core.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import optuna
import torch
from numpy.typing import NDArray
from sklearn import datasets, ensemble, linear_model, neighbors, neural_network, svm, tree
from sklearn.model_selection import KFold, StratifiedKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import botorch_delay as bd
from botorch_delay import Choice, Float, Int
from botorch_delay.exceptions import OutlierWarning

ASKS, WORKERS, ROWS, FOLDS = 60, (4, 16), 400, 3
WORST = 1e9  # a loss that is not finite counts as this
SPREAD = 0.5  # of the logarithms of durations
VARIANCE = 5930.0  # of the targets of diabetes
CLASS, LOG, SQUARED = "accuracy", "neg_log_loss", "neg_mean_squared_error"


class Tuning(NamedTuple):
    """A model, the data by their loader's name, a score of scikit-learn's, what is searched."""

    model: Callable[..., Any]
    data: str
    scoring: str
    space: Mapping[str, Float | Int | Choice]
    fixed: Mapping[str, Any] = {}

    def loss(self, params: Mapping[str, Any]) -> float:
        """The cross-validated loss; squared errors as a share of the targets' variance."""
        X, y = rows_of(self.data)
        kind = KFold if self.data == "diabetes" else StratifiedKFold
        folds = kind(FOLDS, shuffle=True, random_state=0)
        model = self.model(**params, **self.fixed)
        if not self.model.__module__.startswith(("sklearn.tree", "sklearn.ensemble")):
            model = make_pipeline(StandardScaler(), model)
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            score = cross_val_score(model, X, y, cv=folds, scoring=self.scoring).mean()
        loss = 1.0 - score if self.scoring == CLASS else -score
        if self.scoring == SQUARED:
            loss /= VARIANCE
        return float(loss) if np.isfinite(loss) else WORST


@lru_cache
def rows_of(data: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Inputs and targets of at most ``ROWS`` rows, drawn at random."""
    X, y = getattr(datasets, f"load_{data}")(return_X_y=True)
    rows = np.random.default_rng(0).permutation(len(y))[:ROWS]
    return X[rows], y[rows]


SEED = {"random_state": 0}
WEIGHTS = Choice(["uniform", "distance"])
PENALTY, WIDTH = Float(1e-3, 1e3, log=True), Float(1e-5, 10.0, log=True)
KERNELS = ["rbf", "sigmoid", "poly"]
TREE = {"max_depth": Int(1, 20), "min_samples_leaf": Int(1, 40), "min_samples_split": Int(2, 60)}
FOREST = {
    "n_estimators": Int(5, 60),
    "max_depth": Int(1, 20),
    "min_samples_leaf": Int(1, 20),
    "max_features": Float(0.05, 1.0),
}
NETWORK = {
    "learning_rate_init": Float(1e-4, 1.0, log=True),
    "alpha": Float(1e-6, 10.0, log=True),
    "hidden_layer_sizes": Int(2, 64, log=True),
    "activation": Choice(["relu", "tanh"]),
}
TUNINGS = {
    "k-NN, digits": Tuning(
        neighbors.KNeighborsClassifier,
        *("digits", CLASS),
        {"n_neighbors": Int(1, 40), "p": Float(1.0, 5.0), "weights": WEIGHTS},
    ),
    "k-NN, diabetes": Tuning(
        neighbors.KNeighborsRegressor,
        *("diabetes", SQUARED),
        {"n_neighbors": Int(1, 60), "p": Float(1.0, 5.0), "weights": WEIGHTS},
    ),
    "SVM, cancer": Tuning(
        svm.SVC,
        *("breast_cancer", CLASS),
        {"C": PENALTY, "gamma": WIDTH, "kernel": Choice(KERNELS)},
    ),
    "SVM, digits": Tuning(svm.SVC, "digits", CLASS, {"C": PENALTY, "gamma": WIDTH}),
    "SVR, diabetes": Tuning(
        svm.SVR,
        *("diabetes", SQUARED),
        {
            "C": Float(1e-2, 1e4, log=True),
            "gamma": Float(1e-4, 10.0, log=True),
            "epsilon": Float(1e-2, 100.0, log=True),
            "kernel": Choice([*KERNELS, "linear"]),
        },
        {"max_iter": 20_000},
    ),
    "elastic net, diabetes": Tuning(
        linear_model.ElasticNet,
        *("diabetes", SQUARED),
        {"alpha": Float(1e-4, 10.0, log=True), "l1_ratio": Float(0.0, 1.0)},
    ),
    "logistic regression, cancer": Tuning(
        linear_model.LogisticRegression,
        *("breast_cancer", LOG),
        {"C": Float(1e-4, 1e3, log=True), "l1_ratio": Float(0.0, 1.0)},
        {"penalty": "elasticnet", "solver": "saga", "max_iter": 100, **SEED},
    ),
    "SGD, cancer": Tuning(
        linear_model.SGDClassifier,
        *("breast_cancer", CLASS),
        {
            "alpha": Float(1e-6, 0.1, log=True),
            "eta0": Float(1e-4, 10.0, log=True),
            "l1_ratio": Float(0.0, 1.0),
            "loss": Choice(["hinge", "log_loss", "modified_huber"]),
            "learning_rate": Choice(["constant", "invscaling", "adaptive", "optimal"]),
        },
        {"penalty": "elasticnet", "max_iter": 200, **SEED},
    ),
    "tree, diabetes": Tuning(
        tree.DecisionTreeRegressor,
        *("diabetes", SQUARED),
        {**TREE, "max_features": Float(0.1, 1.0)},
        SEED,
    ),
    "tree, digits": Tuning(
        tree.DecisionTreeClassifier,
        *("digits", CLASS),
        {**TREE, "criterion": Choice(["gini", "entropy"])},
        SEED,
    ),
    "forest, digits": Tuning(
        ensemble.RandomForestClassifier,
        *("digits", CLASS),
        {**FOREST, "bootstrap": Choice([True, False])},
        SEED,
    ),
    "extra trees, diabetes": Tuning(
        ensemble.ExtraTreesRegressor, "diabetes", SQUARED, FOREST, SEED
    ),
    "boosting, diabetes": Tuning(
        ensemble.GradientBoostingRegressor,
        *("diabetes", SQUARED),
        {
            "learning_rate": Float(1e-3, 1.0, log=True),
            "n_estimators": Int(5, 80),
            "max_depth": Int(1, 6),
            "subsample": Float(0.3, 1.0),
            "min_samples_leaf": Int(1, 30),
        },
        SEED,
    ),
    "boosting, cancer": Tuning(
        ensemble.GradientBoostingClassifier,
        *("breast_cancer", LOG),
        {
            "learning_rate": Float(1e-3, 1.0, log=True),
            "n_estimators": Int(5, 60),
            "max_depth": Int(1, 4),
            "subsample": Float(0.3, 1.0),
        },
        SEED,
    ),
    "network, cancer": Tuning(
        neural_network.MLPClassifier,
        *("breast_cancer", LOG),
        {**NETWORK, "batch_size": Choice([16, 32, 64, 128], ordered=True, log=True)},
        {"max_iter": 15, **SEED},
    ),
    "network, diabetes": Tuning(
        neural_network.MLPRegressor,
        *("diabetes", SQUARED),
        NETWORK,
        {"max_iter": 15, **SEED},
    ),
}


class Tpe:
    """Optuna's TPE with its constant liar, behind ``ask`` and ``tell``."""

    def __init__(self, tuning: Tuning, seed: int) -> None:
        sampler = optuna.samplers.TPESampler(seed=seed, constant_liar=True)
        self.study, self.space = optuna.create_study(sampler=sampler), tuning.space
        self.tell = self.study.tell

    def ask(self) -> optuna.Trial:
        """A trial with all parameters suggested."""
        trial = self.study.ask()
        for name, kind in self.space.items():
            if isinstance(kind, Choice):
                trial.suggest_categorical(name, list(kind.values))
            elif isinstance(kind, Int):
                trial.suggest_int(name, int(kind.low), int(kind.high), log=kind.log)
            else:
                trial.suggest_float(name, kind.low, kind.high, log=kind.log)
        return trial

    def recommend(self) -> optuna.trial.FrozenTrial:
        """The best trial."""
        return self.study.best_trial


def ours(tuning: Tuning, seed: int) -> bd.BPEDelayOptimizer:
    """This library's defaults."""
    return bd.BPEDelayOptimizer(bd.Space(tuning.space), horizon=ASKS, maximize=False, seed=seed)


def played(tuning: Tuning, optimizer: Any, seed: int, workers: int) -> tuple[float, list[float]]:
    """The loss at the recommended setting, and those of all trials, in the order of asks."""
    draws = np.random.default_rng(1000 + seed)
    running = [(draws.lognormal(sigma=SPREAD), n, optimizer.ask()) for n in range(workers)]
    losses = {}
    while running:
        ended, number, trial = running.pop(running.index(min(running, key=lambda r: r[:2])))
        losses[number] = tuning.loss(trial.params)
        optimizer.tell(trial, losses[number])
        if (asked := len(running) + len(losses)) < ASKS:
            running.append((ended + draws.lognormal(sigma=SPREAD), asked, optimizer.ask()))
    return tuning.loss(optimizer.recommend().params), [losses[n] for n in sorted(losses)]


def main(seeds: int) -> None:
    """Play all, and print a table."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", OutlierWarning)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    counts = [0, 0, 0]
    for name, tuning in TUNINGS.items():
        for workers in WORKERS:
            runs = [
                [played(tuning, make(tuning, s), s, workers) for make in (ours, Tpe)]
                for s in range(seeds)
            ]
            ends = np.array([[end for end, _ in pair] for pair in runs])
            means = np.array([[np.mean(losses) for _, losses in pair] for pair in runs])
            signs = np.sign(ends[:, 0] - ends[:, 1])
            counts = [n + int((signs == s).sum()) for n, s in zip(counts, (-1, 0, 1), strict=True)]
            figures = [*ends.mean(axis=0), *means.mean(axis=0)]
            print(f"{name}, {workers} workers:", *(f"{figure:.4g}" for figure in figures))
    print("lower, equal, higher than TPE's:", *counts)


if __name__ == "__main__":
    main(int(sys.argv[1]))
