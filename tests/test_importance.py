"""The importance of input features: closed forms, and what it must not depend on."""

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import torch
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression

from discernel import (
    DCA,
    RBF,
    DiscernelClassifier,
    DiscernelRegressor,
    KernelDCA,
    LearnedFeatures,
    LearnedFourier,
    LearnedNystroem,
    Linear,
    TableSource,
    Trainer,
    feature_importance,
)

X, Y = load_iris(return_X_y=True)
SHORT = {"trainer": Trainer(max_epochs=1), "random_state": 0}
MODELS = [
    DiscernelClassifier(5, **SHORT),
    DiscernelClassifier(5, feature_map="fourier", head="svm", **SHORT),
    DiscernelClassifier(5, head=LogisticRegression(), **SHORT),
    DiscernelRegressor(5, **SHORT),
    LearnedNystroem(5, **SHORT),
    LearnedFourier(5, **SHORT),
    LearnedFeatures(**SHORT),
    DCA(),
    KernelDCA(n_landmarks=5, random_state=0),
]


def test_of_a_linear_function_it_is_weight_times_spread():
    weights = np.array([3.0, -1.0, 0.0, 0.5])
    features = LearnedNystroem(4, kernel=Linear(1.0), criterion=None, random_state=0)
    model = DiscernelRegressor(feature_map=features, alpha=1e-9).fit(X, X @ weights)
    expected = np.abs(weights) * X.std(0)
    np.testing.assert_allclose(feature_importance(model, X, max_rows=200), expected / expected.sum(), atol=1e-6)


def test_of_components_it_is_that_of_their_directions():
    model = DCA(2).fit(X, Y)
    expected = np.sqrt(np.square(model.scalings_).mean(1)) * X.std(0)
    np.testing.assert_allclose(feature_importance(model, X), expected / expected.sum(), atol=1e-12)


def test_it_agrees_with_finite_differences():
    model = DiscernelClassifier(5, **SHORT).fit(X, Y)
    slopes = []
    for i in range(4):
        step = np.zeros(4)
        step[i] = 1e-5
        slopes.append((model.decision_function(X + step) - model.decision_function(X - step)) / 2e-5)
    expected = np.sqrt(np.square(slopes).mean((1, 2))) * X.std(0)
    np.testing.assert_allclose(feature_importance(model, X), expected / expected.sum(), atol=1e-7)


def test_the_units_of_the_features_do_not_matter():
    scale = np.array([1.0, 1000.0, 0.01, 1.0])
    here = LearnedNystroem(5, kernel=RBF(np.ones(4)), **SHORT).fit(X, Y)
    there = LearnedNystroem(5, kernel=RBF(scale**-2), **SHORT).fit(X, Y)
    there.feature_map_.landmarks.copy_(here.feature_map_.landmarks * torch.from_numpy(scale))
    np.testing.assert_allclose(feature_importance(there, X * scale), feature_importance(here, X), atol=1e-6)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: str(model)[:40])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_every_estimator_has_it(model, dtype):
    x = np.c_[X, np.ones(len(X))].astype(dtype)
    shares = feature_importance(model.fit(x, Y), x, max_rows=50)
    assert shares.sum() == pytest.approx(1)
    assert (shares >= 0).all()
    assert shares[4] == 0  # what does not vary does not matter
    np.testing.assert_allclose(feature_importance(model, sp.csr_array(x), max_rows=50), shares, atol=1e-6)


def test_of_a_model_of_a_table_it_is_that_of_its_own_features(tmp_path):
    frame = pd.DataFrame({"small": X[:, 0], "large": 1000 * X[:, 1], "kind": np.where(X[:, 2] > 4, "a", "b")})
    frame["y"] = frame.small + frame.large / 1000 + X[:, 3]
    source = TableSource(frame, "y")
    model = DiscernelRegressor(5, **SHORT).fit(source)
    expected = feature_importance(model, source.preprocessing.transform(frame), max_rows=50)
    frame.to_csv(tmp_path / "a.csv", index=False)
    for table in (source, frame, tmp_path / "a.csv"):
        np.testing.assert_array_equal(feature_importance(model, table, max_rows=50), expected)
    assert len(expected) == len(model.preprocessing_.feature_names)
    assert expected.min() > 0.01  # whatever the units


def test_where_nothing_matters_it_is_zero():
    model = LearnedNystroem(5, criterion=None, random_state=0).fit(X)
    assert not feature_importance(model, np.ones((3, 4))).any()


def test_bad_arguments_are_refused():
    model = DCA().fit(X, Y)
    with pytest.raises(ValueError, match="max_rows must be at least 1"):
        feature_importance(model, X, max_rows=0)
    with pytest.raises(ValueError, match="features"):
        feature_importance(model, X[:, :2])
