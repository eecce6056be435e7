"""Heads against the formulas and scikit-learn's models of the same objective."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_iris, make_classification
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.linear_model import Ridge as SklearnRidge
from sklearn.multioutput import MultiOutputClassifier
from sklearn.svm import LinearSVC
from torch.nn import functional as F

from discernel import (
    ArraySource,
    DiscernelClassifier,
    DiscernelRegressor,
    Moments,
    Targets,
    Trainer,
    heads,
    moments_over,
)
from discernel.heads import LOSSES, LinearModel, fit_linear, sum_of_variances, temperature
from discernel.linalg import symmetric_product

X, Y = make_classification(300, 8, n_informative=5, n_classes=3, class_sep=0.7, random_state=0)
FEATURES, TARGETS = torch.from_numpy(X), Targets.classes(Y).to(torch.from_numpy(X))[:]
LABELS = np.column_stack([Y == 0, X[:, 0] > 0]).astype(int)
WEIGHT = torch.arange(300).double() % 3 + 1
IRIS = load_iris(return_X_y=True)


def passes(features=FEATURES, targets=TARGETS, weight=None, size=70):
    """Return what starts a pass over the data in uneven batches."""
    split = [part.split(size) for part in (features, targets)]
    weights = [None] * len(split[0]) if weight is None else weight.split(size)
    return lambda: zip(*split, weights, strict=True)


def objective(model, loss, C, targets=TARGETS, weight=None):
    losses = LOSSES[loss](model.scores(FEATURES), targets)
    return 0.5 * model.weights.square().sum() + C * (losses if weight is None else losses * weight).sum()


def fitted(reference, *data, **options):
    reference.fit(*data, **options)
    return LinearModel(torch.from_numpy(reference.coef_.T), torch.from_numpy(reference.intercept_))


@pytest.mark.parametrize("C", [0.01, 1.0, 100.0])
@pytest.mark.parametrize("weight", [None, WEIGHT], ids=["equal", "weighted"])
def test_svm_is_linear_svc(C, weight):
    ours = fit_linear(passes(weight=weight), "svm", C)
    svc = LinearSVC(C=C, dual=False, intercept_scaling=1e3, tol=1e-10, max_iter=100_000)  # hardly penalises it
    theirs = fitted(svc, X, Y, sample_weight=None if weight is None else weight.numpy())
    expected = objective(theirs, "svm", C, weight=weight)
    torch.testing.assert_close(objective(ours, "svm", C, weight=weight), expected, rtol=1e-5, atol=0)
    assert (ours.scores(FEATURES).argmax(1) == theirs.scores(FEATURES).argmax(1)).double().mean() > 0.99


def test_the_products_of_an_svm_are_of_few_shapes(monkeypatch):
    """Of as many shapes as there are steps and classes, oneDNN would keep a program each."""
    expected, shapes = fit_linear(passes(size=300), "svm"), set()

    def product(rows):
        shapes.add(len(rows))
        return symmetric_product(rows)

    monkeypatch.setattr(heads, "symmetric_product", product)
    monkeypatch.setattr(heads, "_ROWS", 64)
    found = fit_linear(passes(size=300), "svm")
    assert len(shapes) > 2
    assert shapes <= {0, 64, 128, 192, 256, 300}
    torch.testing.assert_close(found.weights, expected.weights)


@pytest.mark.parametrize("C", [0.01, 1.0, 100.0])
@pytest.mark.parametrize("weight", [None, WEIGHT], ids=["equal", "weighted"])
def test_softmax_is_logistic_regression(C, weight):
    ours = fit_linear(passes(weight=weight), "softmax", C, tol=1e-10)
    reference = LogisticRegression(C=C, tol=1e-10, max_iter=10_000)
    theirs = fitted(reference, X, Y, sample_weight=None if weight is None else weight.numpy())
    expected = objective(theirs, "softmax", C, weight=weight)
    torch.testing.assert_close(objective(ours, "softmax", C, weight=weight), expected, rtol=1e-6, atol=0)
    np.testing.assert_allclose(ours.scores(FEATURES).softmax(1), reference.predict_proba(X), atol=1e-3)


def test_two_classes_are_logistic_regression_of_half_the_c():
    y = Y > 0
    ours = fit_linear(passes(targets=Targets.classes(y).to(FEATURES)[:]), "softmax", C=1.0, tol=1e-12)
    reference = LogisticRegression(C=2.0, tol=1e-10, max_iter=10_000).fit(X, y)
    np.testing.assert_allclose(ours.scores(FEATURES).softmax(1), reference.predict_proba(X), atol=1e-4)


def test_logistic_is_one_logistic_regression_for_each_label():
    targets = torch.from_numpy(LABELS).double()
    ours = fit_linear(passes(targets=targets), "logistic", C=1.0, tol=1e-12)
    reference = MultiOutputClassifier(LogisticRegression(tol=1e-10, max_iter=10_000)).fit(X, LABELS)
    expected = np.column_stack([p[:, 1] for p in reference.predict_proba(X)])
    np.testing.assert_allclose(ours.scores(FEATURES).sigmoid(), expected, atol=1e-4)


@pytest.mark.parametrize("loss", LOSSES)
def test_batches_and_precision_do_not_matter(loss):
    whole = fit_linear(passes(size=300), loss, tol=1e-12).scores(FEATURES)
    torch.testing.assert_close(fit_linear(passes(size=7), loss, tol=1e-12).scores(FEATURES), whole, rtol=0, atol=1e-3)
    halves = fit_linear(passes(FEATURES.float(), TARGETS.float()), loss)
    torch.testing.assert_close(halves.scores(FEATURES), whole, rtol=0, atol=0.05)


@pytest.mark.parametrize("loss", LOSSES)
def test_integer_weights_are_repeated_rows(loss):
    index = torch.arange(300).repeat_interleave(WEIGHT.long())
    repeated = fit_linear(passes(FEATURES[index], TARGETS[index]), loss, tol=1e-12)
    weighted = fit_linear(passes(weight=WEIGHT), loss, tol=1e-12)
    torch.testing.assert_close(weighted.scores(FEATURES), repeated.scores(FEATURES), rtol=0, atol=1e-3)


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        ("svm", (1 - 2.0) ** 2 * 0 + (1 + 0.5) ** 2),  # 2.0 for the class that it is, 0.5 for one that it is not
        ("softmax", float(np.log(1 + np.exp(-1.5)))),
        ("logistic", float(np.log1p(np.exp(-2.0)) + np.log1p(np.exp(0.5)))),
    ],
)
def test_losses(loss, expected):
    value = LOSSES[loss](torch.tensor([[2.0, 0.5]]), torch.tensor([[1.0, 0.0]]))
    torch.testing.assert_close(value, torch.tensor([expected]))


def test_too_few_steps_are_told():
    with pytest.warns(ConvergenceWarning, match="the softmax head has not converged in 3 steps"):
        fit_linear(passes(), "softmax", C=100.0, max_iter=3)
    with pytest.raises(ValueError, match="loss must be one of"):
        fit_linear(passes(), "hinge")


# the ridge head


@pytest.mark.parametrize("alpha", [None, 0.5, "gcv"])
@pytest.mark.parametrize("feature_map", ["nystroem", "fourier"])
def test_the_ridge_head_is_ridge_regression_on_the_features(feature_map, alpha):
    x, y = IRIS
    trainer = Trainer(max_epochs=3)
    settings = {"alpha": alpha, "trainer": trainer, "rho": 1e-3, "random_state": 0}
    model = DiscernelClassifier(8, feature_map=feature_map, head="ridge", **settings)
    model.fit(x, y)
    feature_map = model.transformer_.feature_map_
    source = ArraySource(torch.from_numpy(x), Targets.classes(y))
    moments, gram = moments_over(source, feature_map), feature_map.gram()
    assert model.alpha_ == {None: 1e-3, "gcv": moments.best_rho(gram)}.get(alpha, alpha)
    expected = moments.ridge(model.alpha_, gram)
    torch.testing.assert_close(model.head_.weights, expected.weights)
    torch.testing.assert_close(model.head_.intercept, expected.intercept)
    reference = SklearnRidge(model.alpha_).fit(model.transform(x), np.eye(3)[y])
    np.testing.assert_allclose(model.decision_function(x), reference.predict(model.transform(x)), atol=1e-5)


def test_the_ridge_head_has_the_penalty_of_the_given_map():
    x, y = IRIS
    model = DiscernelRegressor(8, trainer=Trainer(max_epochs=2), rho=0.3, random_state=0).fit(x, y)
    same = DiscernelRegressor(feature_map=model.transformer_).fit(x, y)
    assert same.alpha_ == 0.3
    np.testing.assert_allclose(same.predict(x), model.predict(x))


def test_a_linear_model_has_the_precision_of_the_features():
    ridge = Moments.of(FEATURES, TARGETS).ridge(1.0)
    model = LinearModel(ridge.weights, ridge.intercept)
    assert model.scores(FEATURES.float()).dtype == torch.float32
    torch.testing.assert_close(model.scores(FEATURES), ridge.predict(FEATURES))


# probabilities


def test_temperature_recovers_that_of_the_truth():
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(20_000, 4, generator=generator)
    classes = torch.multinomial(logits.softmax(1), 1, generator=generator).squeeze(1)
    assert temperature(logits / 5, F.one_hot(classes), None) == pytest.approx(5, rel=0.05)
    labels = torch.bernoulli(logits.sigmoid(), generator=generator)
    assert temperature(logits / 5, labels, None, independent=True) == pytest.approx(5, rel=0.05)


@pytest.mark.parametrize("independent", [False, True])
def test_temperature_of_separated_scores_grows_with_the_rows(independent):
    found = [temperature(3 * y, y, None, independent) for y in (torch.eye(3).repeat(n, 1) for n in (5, 50, 500))]
    assert found == sorted(found)
    assert found[-1] < 10


@pytest.mark.parametrize("independent", [False, True])
def test_temperature_knows_weights_as_repeated_rows(independent):
    index = torch.arange(300).repeat_interleave(WEIGHT.long())
    repeated = temperature(FEATURES[index, :3], TARGETS[index], None, independent)
    assert temperature(FEATURES[:, :3], TARGETS, WEIGHT, independent) == pytest.approx(repeated)


def test_sum_of_variances():
    assert sum_of_variances(passes()()) == pytest.approx(X.var(0).sum())
    index = torch.arange(300).repeat_interleave(WEIGHT.long())
    assert sum_of_variances(passes(weight=WEIGHT)()) == pytest.approx(X[index].var(0).sum())
    assert sum_of_variances(passes(torch.ones(300, 2))()) == 1.0
