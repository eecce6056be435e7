"""`feature_map="auto"`: landmarks, unless frequencies do better in a trial on some of the rows."""

import warnings

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression

from discernel import (
    DiscernelClassifier,
    DiscernelRegressor,
    LearnedFourier,
    LearnedNystroem,
    TableSource,
    Trainer,
)
from discernel.estimators import predictor

ROWS = 400


@pytest.fixture(autouse=True)
def _trial(monkeypatch):
    monkeypatch.setattr(predictor, "TRIAL_ROWS", ROWS)


def waves(n_rows=ROWS, dtype=np.float64):
    """A class that repeats along one direction: a few frequencies tell it, twenty narrow landmarks do not."""
    x = np.random.default_rng(0).random((n_rows, 2))
    return x.astype(dtype), (np.cos(15 * x.sum(1)) > 0).astype(int)


def islands(n_rows=ROWS):
    """Four clusters: four landmarks tell them."""
    random = np.random.default_rng(0)
    y = random.integers(4, size=n_rows)
    return random.normal(size=(4, 5))[y] + 0.8 * random.normal(size=(n_rows, 5)), y % 2


def model(**settings):
    return DiscernelClassifier(20, **{"gamma": 100.0, "random_state": 0} | settings)


def test_frequencies_are_taken_where_they_are_better():
    x, y = waves(2 * ROWS)
    chosen = model().fit(x[:ROWS], y[:ROWS])
    assert type(chosen.transformer_) is LearnedFourier
    other = model(feature_map="nystroem").fit(x[:ROWS], y[:ROWS])
    assert chosen.score(x[ROWS:], y[ROWS:]) > 0.05 + other.score(x[ROWS:], y[ROWS:])


def test_landmarks_are_taken_elsewhere():
    assert type(DiscernelClassifier(20, random_state=0).fit(*islands()).transformer_) is LearnedNystroem


def test_the_chosen_map_is_trained_as_if_it_had_been_asked_for():
    x, y = waves()
    asked = model(feature_map="fourier").fit(x, y)
    np.testing.assert_array_equal(model().fit(x, y).decision_function(x), asked.decision_function(x))


def test_there_is_no_trial_of_few_rows_nor_where_a_map_is_asked_for(monkeypatch):
    def never(*args, **kwargs):
        raise AssertionError("there was a trial")

    monkeypatch.setattr(DiscernelClassifier, "score", never)
    x, y = waves()
    assert type(model().fit(x[1:], y[1:]).transformer_) is LearnedNystroem
    model(feature_map="fourier").fit(x, y)
    model(feature_map=LearnedFourier(5, random_state=0)).fit(x, y)
    with pytest.raises(AssertionError, match="trial"):
        model().fit(x, y)


def test_frequencies_must_make_a_twentieth_less_errors(monkeypatch):
    x, y = waves()
    scores = {LearnedNystroem: 0.9, LearnedFourier: 0.904}
    monkeypatch.setattr(DiscernelClassifier, "score", lambda self, *rows: scores[type(self.transformer_)])
    assert type(model().fit(x, y).transformer_) is LearnedNystroem
    scores[LearnedFourier] = 0.906
    assert type(model().fit(x, y).transformer_) is LearnedFourier


def test_the_trial_is_on_rows_that_are_held_out_of_its_fit_and_brief(monkeypatch):
    seen, score = [], DiscernelClassifier.score

    def spy(self, x, y, weight):
        seen.append((len(x), len(self.history_), self.n_components, self.transformer_.n_components))
        return score(self, x, y, weight)

    monkeypatch.setattr(DiscernelClassifier, "score", spy)
    monkeypatch.setattr(predictor, "TRIAL_COMPONENTS", 7)
    chosen = model().fit(*waves(3 * ROWS))
    assert seen == [(ROWS // 5, 20, 7, 7)] * 2
    assert (chosen.n_components, chosen.feature_map, chosen.trainer) == (20, "auto", None)
    model(trainer=Trainer(max_epochs=3)).fit(*waves())
    assert seen[-1][1] == 3


@pytest.mark.parametrize("container", ["csr", "frame", "table", "float32"])
def test_the_container_does_not_matter(container, tmp_path):
    x, y = waves(dtype=np.float32)
    expected = model().fit(x, y)
    rows, targets = x, y
    if container == "csr":
        rows = sp.csr_array(x)
    elif container != "float32":
        rows = pd.DataFrame(x, columns=["a", "b"])
    if container == "table":
        rows.assign(kind=y.astype(str)).to_parquet(tmp_path / "rows.parquet", row_group_size=90)
        rows, targets = TableSource(tmp_path / "rows.parquet", "kind", scaling="none"), None
    found = model().fit(rows, targets)
    assert type(found.transformer_) is LearnedFourier
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a frame has names, an array has none
        np.testing.assert_allclose(found.decision_function(x), expected.decision_function(x), atol=2e-2)


def test_training_goes_on_with_the_map_that_was_chosen():
    x, y = waves()
    warm = model(warm_start=True).fit(x, y)
    assert type(warm.fit(x[:100], y[:100]).transformer_) is LearnedFourier
    stream = model().partial_fit(x, y, classes=[0, 1])
    assert type(stream.partial_fit(x[:50], y[:50]).transformer_) is LearnedFourier
    assert type(clone(warm).fit(x[:100], y[:100]).transformer_) is LearnedNystroem


def test_a_class_of_one_row_and_weights_and_other_heads_are_no_obstacle():
    x, y = waves()
    y[7] = 2
    assert type(model(head=LogisticRegression(C=1e3, max_iter=1000)).fit(x, y).transformer_) is LearnedFourier
    assert set(model().fit(x, y).predict(x)) <= {0, 1, 2}
    assert type(model().fit(x, y, sample_weight=np.linspace(1, 2, ROWS)).transformer_) is LearnedFourier
    assert type(model(early_stopping=True).fit(*waves(2 * ROWS)).transformer_) is LearnedFourier


def test_regressors_choose_by_their_own_score():
    x, _ = waves()
    y = np.cos(15 * x.sum(1))
    chosen = DiscernelRegressor(20, gamma=100.0, rho=1e-3, random_state=0).fit(x, y)
    assert type(chosen.transformer_) is LearnedFourier


def test_an_estimate_is_of_the_map_that_will_be_chosen_and_has_the_time_of_the_trial(monkeypatch):
    x, y = waves()
    asked = []
    monkeypatch.setattr(
        LearnedFourier, "_pilot", lambda self, rows, old=LearnedFourier._pilot: asked.append(1) or old(self, rows)
    )
    chosen = model()
    chosen.estimate(x, y)
    assert asked == [1]
    assert not hasattr(chosen, "transformer_")
