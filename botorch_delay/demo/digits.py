"""The objective of the demo: a classifier of scikit-learn's images of digits.

It never imports PyTorch, so that worker processes start quickly and stay small.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

HELD_OUT = 0.5
FOLDS = 2
LANDMARKS = 200  # components of the Nystroem approximation of the RBF kernel
TOLERANCE, STEPS = 1e-6, 2000  # where the solver of the ridge regression stops
GUESSING = 0.9  # the error of predicting 0.1 for every digit; larger ones are cut to this

Array = NDArray[Any]


@dataclass(frozen=True)
class Classifier:
    """Squared error of kernel ridge regression, cross-validated on half of the digits.

    Ten outputs say which digit an image is. Grey values are raised to a power, images are blurred,
    and their principal components partly whitened and scaled to a spread of 1. An RBF kernel and
    ridge regression follow; the smaller the penalty, the longer it takes. Nothing is random.
    """

    seed: int  # of the split into digits for tuning and held-out digits
    slowness: float = 1.0  # duration of a call as a multiple of its computing time, at least 1

    def __call__(self, **settings: float) -> float:
        """Mean loss over the folds, after a pause: the call takes ``slowness`` times as long."""
        begin = time.perf_counter()
        loss, seconds = self.evaluate(settings)
        time.sleep(max(self.slowness * seconds - (time.perf_counter() - begin), 0.0))
        return loss

    def evaluate(self, settings: Mapping[str, float]) -> tuple[float, float]:
        """Mean loss over the folds, and the processor time that it took, in seconds."""
        images, labels, _, _ = _digits(self.seed)
        begin = time.thread_time()
        losses = [
            _loss(settings, images[fold], labels[fold], images[rest], labels[rest])
            for fold, rest in _folds(len(images))
        ]
        return float(np.mean(losses)), time.thread_time() - begin

    def held_out(self, settings: Mapping[str, float]) -> float:
        """Mean loss on the held-out digits, over classifiers trained on one fold each."""
        images, labels, *held = _digits(self.seed)
        folds = _folds(len(images))
        return float(np.mean([_loss(settings, images[i], labels[i], *held) for i, _ in folds]))


def _loss(settings: Mapping[str, float], images: Array, labels: Array, *test: Array) -> float:
    """Mean squared error on test images and labels after training, at most ``GUESSING``."""
    from sklearn.kernel_approximation import Nystroem
    from sklearn.linear_model import Ridge
    from sklearn.pipeline import make_pipeline
    from threadpoolctl import threadpool_limits

    gamma = 0.5 / settings["lengthscale"] ** 2
    classifier = make_pipeline(
        Nystroem(gamma=gamma, n_components=LANDMARKS, random_state=0),
        Ridge(alpha=settings["penalty"], solver="lsqr", tol=TOLERANCE, max_iter=STEPS),
    )
    outputs = np.eye(10)
    with warnings.catch_warnings(), threadpool_limits(1):
        warnings.simplefilter("ignore")  # warnings about nearly equal landmarks
        images, shown = _components(settings, images, test[0])
        found = classifier.fit(images, outputs[labels]).predict(shown)
    return min(float(np.square(found - outputs[test[1]]).sum(axis=1).mean()), GUESSING)


def _components(settings: Mapping[str, float], *images: Array) -> list[Array]:
    """Each set in the principal components of the first, where that has total variance 1."""
    from scipy.ndimage import gaussian_filter

    blur, whitening = settings["blur"], settings["whitening"]
    seen = [
        gaussian_filter(pixels.reshape(-1, 8, 8) ** settings["power"], (0, blur, blur)).reshape(
            len(pixels), -1
        )
        for pixels in images
    ]
    mean = seen[0].mean(axis=0)
    variances, directions = np.linalg.eigh(np.cov(seen[0].T))
    variances = variances.clip(min=1e-6 * variances.max())
    scales = variances ** (-whitening / 2) / np.sqrt((variances ** (1 - whitening)).sum())
    return [(pixels - mean) @ directions * scales for pixels in seen]


def _folds(count: int) -> list[tuple[Array, Array]]:
    from sklearn.model_selection import KFold

    return list(KFold(FOLDS, shuffle=True, random_state=0).split(np.arange(count)))


@lru_cache(maxsize=2)
def _digits(seed: int) -> tuple[Array, Array, Array, Array]:
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    images, labels = load_digits(return_X_y=True)
    train, held, train_labels, held_labels = train_test_split(
        images / 16.0, labels, test_size=HELD_OUT, random_state=seed, stratify=labels
    )
    return train, train_labels, held, held_labels
