"""Early stopping by the score of the estimator's own head, on rows held out or given."""

import numpy as np
import pandas as pd
import pytest
import sklearn
import torch
from sklearn.base import clone
from sklearn.datasets import load_iris
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.linear_model import Ridge as SklearnRidge
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import discernel.estimators.predictor
from discernel import DI, RBF, ArraySource, DiscernelClassifier, DiscernelRegressor, Nystroem, Targets, Trainer

X, Y = load_iris(return_X_y=True)
X = (X - X.mean(0)) / X.std(0)
Z = np.column_stack([np.sin(X[:, 0]) + X[:, 1], X[:, 2] * X[:, 3]])
LABELS = np.column_stack([Y == 0, Y > 0, X[:, 0] > 0]).astype(int)
TRAIN, REST = train_test_split(np.arange(150), test_size=0.3, random_state=0, stratify=Y)


def noisy(n_rows):
    generator = np.random.default_rng(n_rows)
    x = generator.normal(size=(n_rows, 3))
    return x, np.sin(2 * x[:, 0]) + 0.5 * generator.normal(size=n_rows)


def learner_of_noise(max_epochs, **params):
    """Return a model that learns noise if it is let; its epochs do not depend on how many there may be."""
    trainer = Trainer(max_epochs=max_epochs, schedule="plateau", patience=1000, learning_rate=0.04)
    return DiscernelRegressor(20, trainer=trainer, random_state=0, n_iter_no_change=4, **params)


def stopped(max_epochs, **params):
    params = {"early_stopping": True, "validation_fraction": 0.3} | params
    return learner_of_noise(max_epochs, **params).fit(*noisy(200))


def short(estimator=DiscernelClassifier, epochs=1, **params):
    return estimator(10, trainer=Trainer(max_epochs=epochs), random_state=0, **params)


def scores(model):
    return [record.validation_score for record in model.history_]


# rows held out


def test_early_stopping_keeps_the_best_map():
    model = stopped(60)
    best = int(np.argmax(scores(model))) + 1
    assert model.n_iter_ == best + 4 < 60
    shorter = stopped(best)  # ends with the best epoch
    np.testing.assert_array_equal(shorter.transformer_.components_, model.transformer_.components_)
    np.testing.assert_array_equal(shorter.head_.weights, model.head_.weights)
    assert model.score(*noisy(1000)) > stopped(60, early_stopping=False).score(*noisy(1000))


def run(scores, seen=None, **options):
    """Train a map that gets these scores; return the epochs that there were and the map as it then is."""
    x = torch.from_numpy(X)
    feature_map, given = Nystroem(x[::20].clone(), RBF(0.5)), iter(scores)

    def score(trained):
        if seen is not None:
            seen.append(trained.landmarks.detach().clone())
        return next(given)

    trainer = Trainer(max_epochs=6, schedule="plateau", patience=100, learning_rate=0.04)
    records = trainer.epochs(feature_map, DI(), ArraySource(x, Targets.classes(Y)), validation=score, **options)
    return [(record.epoch, record.validation_score) for record in records], feature_map.landmarks.detach()


SCORES = [0.5, 0.9, 0.9, 0.8, 0.7, 1.0]


def test_of_equally_good_maps_the_last_is_kept():
    seen = []
    epochs, landmarks = run(SCORES, seen, n_iter_no_change=3)
    assert epochs == list(enumerate(SCORES[:5], start=1))
    assert torch.equal(landmarks, seen[2])
    assert not torch.equal(seen[2], seen[1])
    epochs, landmarks = run(SCORES, seen := [], n_iter_no_change=4)
    assert len(epochs) == 6
    assert torch.equal(landmarks, seen[5])
    assert torch.equal(run(SCORES)[1], landmarks)  # a score alone stops nothing


@pytest.mark.parametrize("after", [1, 3, 4])
def test_a_resumed_run_stops_where_an_undisturbed_one_does(tmp_path, after):
    expected = run(SCORES, n_iter_no_change=3)
    options = {"n_iter_no_change": 3, "checkpoint": tmp_path / "run.safetensors"}
    with pytest.raises(RuntimeError):  # no more scores: StopIteration in a generator
        run(SCORES[:after], **options)
    for rest in (SCORES[after:], []):  # and again, when it has stopped
        found = run(rest, **options)
        assert found[0] == expected[0]
        assert torch.equal(found[1], expected[1])


def test_a_run_that_goes_on_without_stopping_ends_with_its_last_map(tmp_path):
    checkpoint = tmp_path / "run.safetensors"
    with pytest.raises(RuntimeError):
        run(SCORES[:4], n_iter_no_change=3, checkpoint=checkpoint)
    seen = []
    epochs, landmarks = run([0.1, 0.1], seen, checkpoint=checkpoint)
    assert len(epochs) == 6
    assert torch.equal(landmarks, seen[-1])


def test_no_change_is_of_a_score():
    with pytest.raises(ValueError, match="give validation too"):
        Trainer().epochs(Nystroem(torch.rand(3, 4), RBF(1.0)), DI(), None, n_iter_no_change=3)


def test_the_validation_score_of_a_regressor_is_that_of_its_head_on_rows_held_out():
    x, y = noisy(200)
    model = stopped(1)
    seed = int(np.random.RandomState(0).randint(2**31 - 1))
    train, rest = train_test_split(np.arange(200), test_size=0.3, random_state=seed)
    phi = model.transform(x)
    ridge = SklearnRidge(model.alpha_).fit(phi[train], y[train])
    assert scores(model) == [pytest.approx(ridge.score(phi[rest], y[rest]), abs=1e-4)]
    assert scores(stopped(1, early_stopping=False)) == [None]


@pytest.mark.parametrize("y", [Y, LABELS], ids=["classes", "labels"])
def test_early_stopping_of_a_classifier(y):
    model = short(epochs=5, early_stopping=True, n_iter_no_change=1).fit(X, y)
    assert model.score(X, y) > 0.8
    assert None not in scores(model)
    again = clone(model).fit(X, y)
    np.testing.assert_array_equal(again.decision_function(X), model.decision_function(X))


# rows given


@pytest.mark.parametrize("y", [Y, LABELS], ids=["classes", "labels"])
@pytest.mark.parametrize("head", ["ridge", "svm", "softmax", RandomForestClassifier(5, random_state=0)], ids=str)
def test_the_score_is_that_of_the_classifiers_own_head(head, y):
    model = short(head=head).fit(X[TRAIN], y[TRAIN], X_val=X[REST], y_val=y[REST])
    assert scores(model) == [model.score(X[REST], y[REST])]


@pytest.mark.parametrize("y", [Z, Z[:, 0]], ids=["many", "one"])
@pytest.mark.parametrize("head", ["ridge", SklearnRidge(0.1)], ids=str)
def test_the_score_is_that_of_the_regressors_own_head(head, y):
    model = short(DiscernelRegressor, head=head).fit(X[TRAIN], y[TRAIN], X_val=X[REST], y_val=y[REST])
    assert scores(model) == [model.score(X[REST], y[REST])]


def test_given_rows_stop_the_training_and_are_not_trained_on():
    (x, y), (x_val, y_val) = noisy(200), noisy(100)
    model = learner_of_noise(60).fit(x, y, X_val=x_val, y_val=y_val)
    assert model.n_iter_ == int(np.argmax(scores(model))) + 5 < 60
    plain = learner_of_noise(60).fit(x, y)
    assert [r.criterion for r in model.history_] == [r.criterion for r in plain.history_[: model.n_iter_]]
    assert model.score(x_val, y_val) == max(scores(model))  # also the head is that of the training rows


def test_they_take_the_place_of_a_share_of_the_rows():
    given = {"X_val": X[REST], "y_val": Y[REST]}
    expected = short(epochs=3).fit(X[TRAIN], Y[TRAIN], **given)
    model = short(epochs=3, early_stopping=True).fit(X[TRAIN], Y[TRAIN], **given)
    np.testing.assert_array_equal(model.decision_function(X), expected.decision_function(X))


def test_their_integer_weights_are_repeated_rows():
    weight = np.random.default_rng(0).integers(0, 4, len(REST))
    model = short(epochs=3)
    weighted = scores(model.fit(X[TRAIN], Y[TRAIN], X_val=X[REST], y_val=Y[REST], sample_weight_val=weight))
    again = REST.repeat(weight)
    assert weighted == pytest.approx(scores(model.fit(X[TRAIN], Y[TRAIN], X_val=X[again], y_val=Y[again])))


def test_many_rows_are_too_many_for_a_head_that_takes_passes(monkeypatch):
    monkeypatch.setattr(discernel.estimators.predictor, "HEAD_ROWS", 20)
    given = {"X_val": X[REST], "y_val": Y[REST]}
    ridge = short(head="ridge").fit(X[TRAIN], Y[TRAIN], **given)
    assert scores(ridge) == [ridge.score(X[REST], Y[REST])]
    other = short(head=LogisticRegression()).fit(X[TRAIN], Y[TRAIN], **given)
    some = TRAIN[np.arange(20) * len(TRAIN) // 20]
    head = LogisticRegression().fit(other.transform(X[some]), Y[some])
    assert scores(other) == [head.score(other.transform(X[REST]), Y[REST])]


def test_frames_and_pipelines():
    frame = pd.DataFrame(X, columns=list("abcd"))
    model = short(head=LogisticRegression())
    with sklearn.config_context(enable_metadata_routing=True):
        model.set_fit_request(X_val=True, y_val=True)
        pipeline = make_pipeline(StandardScaler().set_output(transform="pandas"), model, transform_input=["X_val"])
        pipeline.fit(frame.iloc[TRAIN], Y[TRAIN], X_val=frame.iloc[REST], y_val=Y[REST])
    assert scores(pipeline[-1]) == [pipeline.score(frame.iloc[REST], Y[REST])]


@pytest.mark.parametrize(
    ("estimator", "given", "message"),
    [
        (DiscernelClassifier, {"X_val": X}, "y_val is missing: a validation set needs both"),
        (DiscernelClassifier, {"y_val": Y}, "X_val is missing: a validation set needs both"),
        (
            DiscernelClassifier,
            {"X_val": X[:, :2], "y_val": Y},
            "X has 2 features, but DiscernelClassifier",
        ),
        (DiscernelClassifier, {"X_val": X, "y_val": Y[:9]}, "inconsistent numbers of samples"),
        (DiscernelClassifier, {"X_val": X, "y_val": Y + 1}, r"y has the classes \[3\], which are not among"),
        (DiscernelClassifier, {"X_val": X, "y_val": LABELS}, "y must be one class for each row, .* got an indicator"),
        (DiscernelRegressor, {"X_val": X, "y_val": Z}, "y must have 1 targets for each row, got 2"),
    ],
)
def test_rows_that_do_not_fit_are_refused(estimator, given, message):
    with pytest.raises(ValueError, match=message):
        short(estimator).fit(X, Y, **given)
