"""Learning from a stream: what is remembered of it, how far it is trained, and that it ends about where `fit` does."""

import dataclasses
import pickle
from functools import partial

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.datasets import load_digits, load_iris
from sklearn.linear_model import LogisticRegression
from sklearn.linear_model import Ridge as SklearnRidge

from discernel import DI, DiscernelClassifier, DiscernelRegressor, LearnedFeatures, LearnedNystroem, Trainer, load, save
from discernel.estimators import stream as streams
from discernel.estimators.stream import Stream, next_trainer

X, Y = load_iris(return_X_y=True)
X = (X - X.mean(0)) / X.std(0)
ORDER = np.random.default_rng(0).permutation(150)
X, Y = X[ORDER], Y[ORDER]
Z = np.column_stack([np.sin(X[:, 0]) + X[:, 1], X[:, 2] * X[:, 3]])
LABELS = np.column_stack([Y == 0, Y > 0, X[:, 0] > 0]).astype(int)
CLASSES = [0, 1, 2]


def small(estimator=DiscernelClassifier, **params):
    return estimator(**{"n_components": 5, "trainer": Trainer(max_epochs=3), "random_state": 0} | params)


def streamed(model, y=Y, batches=3, first=None, **options):
    """Return the model after a stream; `options` are arrays of which each batch gets its rows."""
    first = {"classes": CLASSES} if first is None and y.ndim == 1 and isinstance(model, DiscernelClassifier) else {}
    for index in np.array_split(np.arange(len(X)), batches):
        model.partial_fit(X[index], y[index], **first, **{name: rows[index] for name, rows in options.items()})
        first = {}
    return model


# how well


@pytest.mark.parametrize("feature_map", ["nystroem", "fourier"])
def test_a_stream_ends_about_where_fit_does(feature_map):
    x, y = load_digits(return_X_y=True)
    x = (x / 16).astype(np.float32)
    model = DiscernelClassifier(50, feature_map=feature_map, random_state=0)
    whole = clone(model).fit(x[:1200], y[:1200]).score(x[1200:], y[1200:])
    for order in (np.arange(1200), np.argsort(y[:1200], kind="stable")):
        learner, accuracies = clone(model), []
        for batch in np.array_split(order, 12):
            learner.partial_fit(x[batch], y[batch], classes=np.arange(10))
            accuracies.append(learner.score(x[1200:], y[1200:]))
        assert accuracies[-1] > whole - 0.03
        assert accuracies[-1] > accuracies[0]


CASES = {
    "ridge": (small(head="ridge"), Y),
    "svm": (small(head="svm"), Y),
    "softmax": (small(head="softmax", feature_map="fourier"), Y),
    "any head": (small(head=LogisticRegression()), Y),
    "balanced": (small(class_weight="balanced"), Y),
    "labels": (small(), LABELS),
    "module": (small(feature_map=LearnedFeatures(trainer=Trainer(max_epochs=3))), Y),
    "untrained": (small(feature_map=LearnedNystroem(5, criterion=None)), Y),
    "one target": (small(DiscernelRegressor), Z[:, 0]),
    "many targets": (small(DiscernelRegressor), Z),
    "any regressor": (small(DiscernelRegressor, head=SklearnRidge(0.1)), Z),
}
each_case = pytest.mark.parametrize("case", CASES)


@each_case
def test_the_first_call_is_fit(case):
    model, y = CASES[case]
    expected, model = clone(model).fit(X, y).predict(X), streamed(clone(model), y, batches=1)
    np.testing.assert_array_equal(model.predict(X), expected)
    assert model.n_samples_seen_ == 150


@each_case
def test_a_stream_is_learned_by_every_head_and_the_same_seed_gives_the_same_bits(case):
    model, y = CASES[case]
    model, again = (streamed(clone(model), y) for _ in range(2))
    assert model.score(X, y) > 0.7
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    assert model.n_samples_seen_ == 150
    assert model.n_iter_ == len(model.history_)
    assert [record.epoch for record in model.history_] == list(range(1, model.n_iter_ + 1))


def test_the_head_knows_all_rows_and_the_features_go_on():
    model = small(head="ridge", alpha=0.1).partial_fit(X[:75], Y[:75], classes=CLASSES)
    before = model.transformer_.components_.copy()
    model.partial_fit(X[75:], Y[75:])
    moved = np.abs(model.transformer_.components_ - before).max()
    assert 0 < moved < 1
    head = SklearnRidge(0.1).fit(model.transform(X), np.eye(3)[Y])
    np.testing.assert_allclose(model.decision_function(X), head.predict(model.transform(X)), atol=1e-6)


# what is remembered


def test_what_is_remembered_is_a_uniform_sample(monkeypatch):
    monkeypatch.setattr(streams, "MEMORY", 20)
    generator, counts, repetitions = np.random.default_rng(0), np.zeros(60), 3000
    for _ in range(repetitions):
        stream = None
        for rows in np.split(np.arange(60), [10, 15, 50]):
            batch = Stream(rows[:, None].astype(float), rows, None, len(rows))
            stream = (batch if stream is None else stream.joined(batch)).remembered(len(rows), generator)
        assert len(np.unique(stream.y)) == 20
        assert stream.seen == 60
        np.testing.assert_array_equal(stream.X[:, 0], stream.y)
        counts[stream.y] += 1
    expected = repetitions / 3
    assert np.abs(counts - expected).max() < 5 * np.sqrt(expected * 2 / 3)


@pytest.mark.parametrize("weight", [None, np.arange(150) % 3 + 1.0], ids=["plain", "weighted"])
def test_little_is_remembered_of_much(monkeypatch, weight):
    monkeypatch.setattr(streams, "MEMORY", 40)
    options = {} if weight is None else {"sample_weight": weight}
    model = streamed(small(), batches=5, **options)
    assert model._stream.X.shape == (40, 4)
    assert model.n_samples_seen_ == 150
    assert model.score(X, Y) > 0.8
    if weight is not None:
        remembered = [int(np.flatnonzero((row == X).all(1))[0]) for row in model._stream.X]
        np.testing.assert_array_equal(model._stream.weight, weight[remembered])


def test_a_buffer_may_be_used_again():
    model, buffer, labels = small(), np.empty((50, 4)), np.empty(50, int)
    for index in np.array_split(np.arange(150), 3):
        buffer[:], labels[:] = X[index], Y[index]
        model.partial_fit(buffer, labels, classes=CLASSES)
    np.testing.assert_array_equal(model.decision_function(X), streamed(small()).decision_function(X))


def test_the_container_of_a_batch_does_not_matter():
    expected = streamed(small()).decision_function(X)
    kinds = [sparse.csr_array, pd.DataFrame, np.asfortranarray]
    for first, second, third in (kinds, kinds[1:] + kinds[:1]):
        model = small()
        for kind, index in zip((first, second, third), np.array_split(np.arange(150), 3), strict=True):
            x = kind(X[index])
            model.partial_fit(x, Y[index], classes=CLASSES)
        np.testing.assert_allclose(model.decision_function(X), expected, atol=1e-9)
    assert not sparse.issparse(model._stream.X)


def test_the_precision_is_that_of_the_first_batch():
    model = small().partial_fit(X[:50].astype(np.float32), Y[:50], classes=CLASSES).partial_fit(X[50:], Y[50:])
    assert model.transformer_.components_.dtype == np.float32
    assert model._stream.X.dtype == np.float32


def test_weights_of_one_are_none():
    expected = streamed(small()).decision_function(X)
    model = small().partial_fit(X[:50], Y[:50], classes=CLASSES)
    model.partial_fit(X[50:100], Y[50:100], sample_weight=np.ones(50)).partial_fit(X[100:], Y[100:])
    np.testing.assert_allclose(model.decision_function(X), expected, atol=1e-9)


def test_rows_of_weight_zero_do_not_count():
    weight = (np.arange(150) % 2).astype(float)
    model = streamed(small(head="ridge"), sample_weight=weight)
    assert model.n_samples_seen_ == 150
    head = SklearnRidge(1e-4).fit(model.transform(X[1::2]), np.eye(3)[Y[1::2]])
    np.testing.assert_allclose(model.decision_function(X), head.predict(model.transform(X)), atol=1e-5)


# how far it is trained


def plan(trainer, rows):
    return trainer.plan(rows, 100, DI())


def test_training_goes_as_far_as_fit_would_on_all_rows_so_far():
    trainer, taken = Trainer(), 0
    for seen in range(500, 10_001, 500):
        stream = Stream(np.empty((seen, 1)), np.empty(seen), None, seen, taken)
        following = next_trainer(trainer, stream, partial(plan, trainer))
        assert following.max_epochs >= 1
        taken += following.max_epochs * plan(trainer, seen).steps
    whole = plan(trainer, 10_000)
    assert taken == pytest.approx(whole.steps * whole.epochs, rel=0.05)


def test_later_steps_are_few_and_small():
    trainer = Trainer(learning_rate=0.2)
    stream = Stream(np.empty((20_500, 1)), np.empty(20_500), None, 10**6, 3000)
    following = next_trainer(trainer, stream, partial(plan, trainer))
    assert following.max_epochs == 1
    assert following.learning_rate == pytest.approx(0.2 * 0.1)
    early = next_trainer(trainer, stream._replace(steps=20), partial(plan, trainer))
    assert early.learning_rate == 0.2
    assert dataclasses.replace(following, max_epochs="auto", learning_rate=0.2) == trainer


def test_landmarks_start_anew_until_there_are_enough():
    with pytest.warns(UserWarning, match="n_components is 30, but there are 10 distinct rows"):
        model = small(n_components=30).partial_fit(X[:10], Y[:10], classes=CLASSES)
    model.partial_fit(X[10:80], Y[10:80])
    assert model.transformer_.components_.shape == (30, 4)
    before = model.n_iter_
    assert model.partial_fit(X[80:], Y[80:]).n_iter_ > before


def test_a_single_row_is_a_batch():
    model = streamed(small(), batches=3)
    model.partial_fit(X[:1], Y[:1])
    assert model.n_samples_seen_ == 151


# classes


def test_a_batch_may_lack_classes():
    order = np.argsort(Y, kind="stable")
    model = small()
    for batch in np.array_split(order, 3):
        model.partial_fit(X[batch], Y[batch], classes=[2, 0, 1])
    assert list(model.classes_) == CLASSES
    assert model.score(X, Y) > 0.8
    assert model.predict_proba(X).shape == (150, 3)


@pytest.mark.parametrize(
    ("y", "options", "message"),
    [
        (Y, {}, "classes, all that may ever come, must be given at the first call of partial_fit"),
        (Y, {"classes": [0, 1]}, r"y has the classes \[2\], which are not among the known ones, \[0, 1\]"),
        (np.zeros(150), {"classes": [0]}, "at least two classes"),
        (Z, {"classes": CLASSES}, "Unknown label type"),
    ],
)
def test_a_first_call_that_is_refused(y, options, message):
    model = small()
    with pytest.raises(ValueError, match=message):
        model.partial_fit(X, y, **options)
    model.partial_fit(X[:, :3], Y, classes=CLASSES)  # and another one is the first


@pytest.mark.parametrize(
    ("x", "y", "options", "message"),
    [
        (X, Y + 1, {}, r"y has the classes \[3\], which are not among the known ones, \[0, 1, 2\]"),
        (X, Y, {"classes": [0, 1, 2, 3]}, r"classes were declared as \[0, 1, 2\]; now they are \[0, 1, 2, 3\]"),
        (X, LABELS, {}, "y must be one class for each row, as it was before; got an indicator matrix of 3 labels"),
        (X[:, :2], Y, {}, "X has 2 features, but DiscernelClassifier is expecting 4"),
    ],
)
def test_a_later_call_that_is_refused_changes_nothing(x, y, options, message):
    model = small().partial_fit(X[:100], Y[:100], classes=CLASSES)
    with pytest.raises(ValueError, match=message):
        model.partial_fit(x, y, **options)
    model.partial_fit(X[100:], Y[100:])
    expected = small().partial_fit(X[:100], Y[:100], classes=CLASSES).partial_fit(X[100:], Y[100:])
    np.testing.assert_array_equal(model.decision_function(X), expected.decision_function(X))


def test_a_call_that_is_refused_after_fit_changes_nothing():
    model = small().fit(X, Y)
    expected = model.predict(X)
    with pytest.raises(ValueError, match=r"y has the classes \[2\]"):
        model.partial_fit(X, Y, classes=[0, 1])
    assert model.classes_.tolist() == CLASSES
    np.testing.assert_array_equal(model.predict(X), expected)
    regressor = small(DiscernelRegressor).fit(X, Z)
    with pytest.raises(ValueError, match="NaN"):
        regressor.fit(X, np.full(150, np.nan))
    assert regressor.predict(X).shape == (150, 2)


def test_the_columns_of_a_head_that_has_not_seen_all_classes():
    some = Y != 1
    model = small(head=LogisticRegression()).partial_fit(X[some], Y[some], classes=CLASSES)
    probabilities, scores = model.predict_proba(X), model.decision_function(X)
    assert probabilities.shape == scores.shape == (150, 3)
    assert not probabilities[:, 1].any()
    np.testing.assert_array_equal(model.classes_[probabilities.argmax(1)], model.predict(X))
    np.testing.assert_array_equal(model.classes_[scores.argmax(1)], model.predict(X))


def test_weights_of_classes_that_a_batch_lacks():
    model = small(class_weight={1: 5.0})
    some = Y != 1
    model.partial_fit(X[some], Y[some], classes=CLASSES)
    expected = small().partial_fit(X[some], Y[some], classes=CLASSES)
    np.testing.assert_allclose(model.decision_function(X), expected.decision_function(X), rtol=1e-9)
    with pytest.raises(ValueError, match="are not in class_weight"):  # a name that is nobody's
        small(class_weight={7: 5.0}).fit(X, Y)


def test_one_target_may_come_as_a_column():
    model = small(DiscernelRegressor).partial_fit(X[:50], Z[:50, 0]).partial_fit(X[50:], Z[50:, :1])
    assert model.predict(X).shape == (150,)


def test_other_numbers_of_targets_are_refused():
    with pytest.raises(ValueError, match="y must have 2 targets for each row, got 1"):
        small(DiscernelRegressor).partial_fit(X, Z).partial_fit(X, Z[:, 0])
    with pytest.raises(ValueError, match=r"y must be an indicator matrix of 3 labels, .* got .* 2 labels"):
        small().partial_fit(X, LABELS).partial_fit(X, LABELS[:, :2])


# with the other methods


def test_other_ways_to_go_on_are_refused():
    with pytest.raises(ValueError, match="partial_fit holds no rows out: set early_stopping=False"):
        small(early_stopping=True).partial_fit(X, Y, classes=CLASSES)
    model = streamed(small())
    with pytest.raises(ValueError, match="whose n_components is 5, but now it is 6"):
        model.set_params(n_components=6).partial_fit(X, Y)


def test_after_fit_the_features_go_on():
    fitted = small().fit(X, Y)
    warm = clone(fitted).set_params(warm_start=True).fit(X, Y)
    expected = warm.fit(X[:100], Y[:100]).decision_function(X)
    np.testing.assert_array_equal(fitted.partial_fit(X[:100], Y[:100]).decision_function(X), expected)
    assert fitted.n_samples_seen_ == 100
    assert fitted.partial_fit(X[100:], Y[100:]).n_samples_seen_ == 150
    assert list(small().fit(X, Y).partial_fit(X, Y, classes=[0, 1, 2, 3]).classes_) == [0, 1, 2, 3]


def test_fit_begins_again():
    model = streamed(small()).fit(X, Y)
    np.testing.assert_array_equal(model.decision_function(X), small().fit(X, Y).decision_function(X))
    assert not hasattr(model, "n_samples_seen_")


def test_a_pickle_goes_on_and_a_saved_model_predicts(tmp_path):
    model = small().partial_fit(X[:100], Y[:100], classes=CLASSES)
    again = pickle.loads(pickle.dumps(model))
    save(model, tmp_path / "model.safetensors")
    saved = load(tmp_path / "model.safetensors")
    np.testing.assert_array_equal(saved.predict_proba(X), model.predict_proba(X))
    assert saved.n_samples_seen_ == 100
    assert saved.partial_fit(X[100:], Y[100:]).n_samples_seen_ == 50
    expected = model.partial_fit(X[100:], Y[100:]).decision_function(X)
    np.testing.assert_array_equal(again.partial_fit(X[100:], Y[100:]).decision_function(X), expected)
