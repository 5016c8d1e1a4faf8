import sys
from types import SimpleNamespace

import pytest
import torch

from botorch_delay.benchmarks import PROBLEMS
from botorch_delay.benchmarks.trainings import TRAININGS, training_on_box
from botorch_delay.exceptions import MissingExtraError

pytest.importorskip("sklearn.ensemble")  # imported here, for that draws random numbers


@pytest.mark.parametrize("name", TRAININGS)
def test_a_loss_on_its_box(name):
    exact, noisy = PROBLEMS[f"{name}-exact"](0), PROBLEMS[f"{name}-box"](3)
    x = exact.domain.from_unit(torch.full((1, exact.domain.dim), 0.5).double()).squeeze(0)
    point = SimpleNamespace(x=x, index=None)
    value = exact.evaluate_true(point)
    assert exact.lowest < value < exact.highest < 0.0
    assert noisy.evaluate_true(point) == value
    assert (exact.noise_std, exact.highest) == (0.0, noisy.highest)
    assert noisy.noise_std == pytest.approx(0.05 * TRAININGS[name].spread)


def test_the_loss_is_scikit_learn_s_own():
    from sklearn.datasets import load_breast_cancer
    from sklearn.model_selection import KFold, cross_val_score
    from sklearn.preprocessing import StandardScaler
    from sklearn.svm import SVC

    X, y = load_breast_cancer(return_X_y=True)
    folds = KFold(3, shuffle=True, random_state=0)
    scores = cross_val_score(
        SVC(C=2.0, gamma=0.01, random_state=0), StandardScaler().fit_transform(X), y, cv=folds
    )
    assert TRAININGS["svm"](2.0, 0.01) == pytest.approx(1 - scores.mean())


def test_a_loss_that_explodes_is_capped():
    assert TRAININGS["sgd-regression"](1e-7, 1.0, 0.0, 0.0) == 10.0


def test_without_scikit_learn_a_hint(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(MissingExtraError, match="pip install 'scikit-learn"):
        training_on_box("svm", noise_share=0.0)
