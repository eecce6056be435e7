"""Estimators on sources: the models that arrays give, whatever the rows are kept in."""

import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import torch
from scipy import sparse
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LinearRegression, LogisticRegression
from typer.testing import CliRunner

from discernel import (
    ArraySource,
    DiscernelClassifier,
    DiscernelRegressor,
    LearnedFeatures,
    LearnedFourier,
    LearnedNystroem,
    SparseSource,
    TableSource,
    Targets,
    Trainer,
    data,
    load,
    readers,
    save,
    tables,
)
from discernel.cli import app
from discernel.estimators import gamma, inputs
from experiments import datasets

ROWS = 600
RNG = np.random.default_rng(0)
FRAME = pd.DataFrame(
    {
        "a": RNG.normal(size=ROWS).round(3),
        "b": RNG.normal(size=ROWS).round(3),
        "colour": RNG.choice(["red", "green", "blue"], ROWS),
        "weight": RNG.integers(0, 3, ROWS).astype(float),
    }
)
FRAME["kind"] = np.where(FRAME.a * FRAME.b > 0.2, "up", np.where(FRAME.a > 0, "down", "flat"))
FRAME["value"] = np.sin(3 * FRAME.a) + (FRAME.colour == "red") + 1e4
FEATURES = ["a", "b", "colour"]
ARROW = pa.Table.from_pandas(FRAME, preserve_index=False)
FAST = Trainer(max_epochs=3, batch_size=100)


def parquet(folder):
    pq.write_table(ARROW, folder / "a.parquet", row_group_size=100)
    return folder / "a.parquet"


def csv(folder):
    pyarrow.csv.write_csv(ARROW, folder / "a.csv")
    return folder / "a.csv"


KINDS = {
    "pandas": lambda folder: FRAME,
    "polars": lambda folder: pl.from_arrow(ARROW),
    "Parquet": parquet,
    "CSV": csv,
}


def table(kind, folder, target="kind", **options):
    return TableSource(KINDS[kind](folder), target, features=FEATURES, **options)


def arrays(target="kind"):
    return table("pandas", None).rows(slice(None)).x.numpy(), FRAME[target].to_numpy()


X, Y = arrays()


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Let files of 600 rows be larger than memory, and read in several loads."""
    for module, name, value in (
        (data, "LOAD", 600),
        (data, "BLOCKS", 10),
        (data, "MIN_ROWS", 1),
        (tables, "IN_MEMORY", 500),
        (readers, "ROWS", 64),
        (inputs, "CHUNK", 1000),
        (inputs, "SAMPLE", 300),
    ):
        monkeypatch.setattr(module, name, value)


def classifier(**options):
    return DiscernelClassifier(**({"n_components": 10, "trainer": FAST, "random_state": 0} | options))


def regressor(**options):
    return DiscernelRegressor(**({"n_components": 10, "trainer": FAST, "random_state": 0} | options))


def same_classifier(model, other):
    np.testing.assert_array_equal(model.classes_, other.classes_)
    np.testing.assert_array_equal(model.transform(X), other.transform(X))
    np.testing.assert_array_equal(model.predict_proba(X), other.predict_proba(X))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", [{}, {"feature_map": "fourier", "head": "svm"}], ids=["nystroem", "fourier"])
def test_a_classifier_is_the_same_from_all_kinds_of_table(kind, options, tmp_path):
    source = table(kind, tmp_path)
    assert source.streams == (kind in ("Parquet", "CSV"))
    model = classifier(**options).fit(source)
    same_classifier(model, classifier(**options).fit(X, Y))
    assert model.preprocessing_ == source.preprocessing
    assert model.transformer_.preprocessing_ == source.preprocessing
    assert (model.n_features_in_, model.n_iter_) == (5, 3)


def test_memory_mapped_and_sparse_sources(tmp_path):
    np.save(tmp_path / "x.npy", X)
    expected = classifier().fit(X, Y)
    mapped = ArraySource(np.load(tmp_path / "x.npy", mmap_mode="r"), Targets.classes(Y))
    assert mapped.streams
    for source in (mapped, SparseSource(sparse.csr_array(X), Targets.classes(Y))):
        model = classifier().fit(source)
        same_classifier(model, expected)
        assert not hasattr(model, "preprocessing_")
        np.testing.assert_array_equal(model.predict(source), expected.predict(X))
        assert model.score(source) == expected.score(X, Y)


@pytest.mark.parametrize(
    "options",
    [
        {"head": "softmax"},
        {"head": "ridge", "alpha": "gcv"},
        {"gamma": "median"},
        {"gamma": "cv"},
        {"feature_map": LearnedNystroem(10, init="kmeans", trainer=FAST)},
        {"feature_map": "fastfood"},
        {"early_stopping": True, "n_iter_no_change": 1, "trainer": Trainer(max_epochs=20, batch_size=100)},
        {"class_weight": "balanced"},
        {"class_weight": {"up": 3.0, "flat": 0.5, "down": 1.0}},
        {"head": LogisticRegression()},
    ],
    ids=str,
)
@pytest.mark.parametrize("weight", [None, "weight"])
def test_every_setting_gives_the_model_that_arrays_give(options, weight, tmp_path, monkeypatch):
    monkeypatch.setattr(gamma, "CV_COMPONENTS", 20)
    model = classifier(**options).fit(table("Parquet", tmp_path, weight=weight))
    given = None if weight is None else FRAME.weight.to_numpy()
    same_classifier(model, classifier(**options).fit(X, Y, given))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("options", "target", "weight"),
    [
        ({}, "value", None),
        ({}, "value", "weight"),
        ({}, ["value", "weight"], None),
        ({"head": LinearRegression()}, "value", None),
        ({"early_stopping": True}, "value", None),
    ],
    ids=["one", "weighted", "two", "other head", "early stopping"],
)
def test_a_regressor_is_the_same_from_all_kinds_of_table(kind, options, target, weight, tmp_path):
    model = regressor(**options).fit(source := table(kind, tmp_path, target, weight=weight))
    given = None if weight is None else FRAME.weight.to_numpy()
    other = regressor(**options).fit(X, FRAME[target].to_numpy(), given)
    np.testing.assert_array_equal(model.predict(X), other.predict(X))
    assert model.predict(source).shape == FRAME[target].shape
    assert model.score(source) == pytest.approx(other.score(X, FRAME[target].to_numpy(), given), rel=1e-9)


@pytest.mark.parametrize(
    "make",
    [LearnedNystroem, LearnedFourier, lambda **options: LearnedFeatures(**options)],
    ids=["nystroem", "fourier", "module"],
)
def test_transformers(make, tmp_path):
    source = table("Parquet", tmp_path)
    transformer, other = (make(trainer=FAST, random_state=0) for _ in range(2))
    np.testing.assert_array_equal(transformer.fit_transform(source), other.fit(X, Y).transform(X))
    unlearned = make(criterion=None, random_state=0).fit(table("Parquet", tmp_path, target=None))
    np.testing.assert_array_equal(unlearned.transform(X), make(criterion=None, random_state=0).fit(X).transform(X))


def test_labels(tmp_path):
    frame = FRAME.assign(first=FRAME.a > 0, second=FRAME.b > 0.3)
    source = TableSource(frame, ["first", "second"], features=FEATURES)
    y = frame[["first", "second"]].to_numpy(int)
    for options in ({}, {"head": "svm"}, {"head": RandomForestClassifier(random_state=0)}):
        model, other = classifier(**options).fit(source), classifier(**options).fit(X, y)
        np.testing.assert_array_equal(model.predict(source), other.predict(X))
        assert model.predict(source).dtype == other.predict(X).dtype
        assert model.score(source) == other.score(X, y)


@pytest.mark.parametrize("kind", KINDS)
def test_tables_are_predicted_as_they_are(kind, tmp_path):
    """Raw rows go through the model's preprocessing: columns by name, without the target."""
    model = classifier().fit(table("Parquet", tmp_path))
    new = KINDS[kind](tmp_path)
    for method in ("predict", "predict_proba", "decision_function", "transform"):
        expected = getattr(model, method)(X)
        np.testing.assert_array_equal(getattr(model, method)(new), expected)
        np.testing.assert_array_equal(getattr(model, method)(str(new) if hasattr(new, "exists") else new), expected)
        np.testing.assert_array_equal(getattr(model, method)(table(kind, tmp_path)), expected)
    np.testing.assert_array_equal(model.transformer_.transform(new), model.transform(X))
    assert model.score(new, Y) == model.score(X, Y) == model.score(table(kind, tmp_path))


def test_new_rows_are_treated_as_the_training_rows_were(tmp_path):
    model = classifier().fit(table("Parquet", tmp_path))
    new = FRAME[:5].assign(a=FRAME.a[:5] + 1, colour=["pink", "red", "red", "blue", "red"])
    np.testing.assert_array_equal(model.predict_proba(new), model.predict_proba(model.preprocessing_.transform(new)))
    with pytest.raises(ValueError, match=r"the columns \['colour'\] of the training data are missing"):
        model.predict(new.drop(columns="colour"))
    with pytest.raises(ValueError, match=r"not preprocessed as the training data were.*preprocessing_"):
        model.predict(TableSource(new, "kind", features=FEATURES))
    assert len(model.predict(TableSource(new, preprocessing=model.preprocessing_))) == 5


def test_scores_by_the_names_of_classes(tmp_path):
    model = classifier().fit(table("Parquet", tmp_path))
    few = FRAME[FRAME.kind != "down"]
    test = TableSource(few, "kind", preprocessing=model.preprocessing_)
    assert test.targets.n_targets == 2
    assert model.score(test) == (model.predict(few) == few.kind).mean()
    weighted = TableSource(few, "kind", weight="weight", preprocessing=model.preprocessing_)
    assert model.score(weighted) == model.score(few, few.kind, few.weight)


def test_a_validation_set_may_be_a_source(tmp_path):
    settings = {"trainer": Trainer(max_epochs=20, batch_size=100), "n_iter_no_change": 2}
    train, rest = FRAME[:400], FRAME[400:]
    source = TableSource(train, "kind", features=FEATURES)
    held_out = TableSource(rest[rest.kind != "flat"], "kind", preprocessing=source.preprocessing)
    model = classifier(**settings).fit(source, X_val=held_out)
    x, x_val = (source.preprocessing.transform(each) for each in (train, rest[rest.kind != "flat"]))
    y_val = rest.kind[rest.kind != "flat"].to_numpy()
    other = classifier(**settings).fit(x, train.kind.to_numpy(), X_val=x_val, y_val=y_val)
    same_classifier(model, other)
    assert [r.validation_score for r in model.history_] == [r.validation_score for r in other.history_]


@pytest.mark.parametrize("head", ["ridge", "svm", "softmax"])
def test_scaled_targets_are_for_the_features_alone(head):
    x = torch.randn(300, 3, generator=torch.Generator().manual_seed(0))
    y = (x[:, 0] > 1).long().numpy() + (x[:, 1] > 0.8).numpy()
    fits = {}
    for scaling in ("indicator", "unit"):
        features = LearnedNystroem(20, criterion=None, random_state=0)  # so that only the head could differ
        model = DiscernelClassifier(feature_map=features, head=head)
        fits[scaling] = model.fit(ArraySource(x, Targets.classes(y, scaling=scaling))).decision_function(x.numpy())
    np.testing.assert_array_equal(fits["unit"], fits["indicator"])


def test_warm_start_goes_on(tmp_path):
    source = table("Parquet", tmp_path)
    model, other = classifier(warm_start=True).fit(source).fit(source), classifier(warm_start=True).fit(X, Y).fit(X, Y)
    same_classifier(model, other)
    assert model.n_iter_ == 6
    with pytest.raises(ValueError, match="not preprocessed as the training data were"):
        model.fit(TableSource(FRAME[:300], "kind", features=FEATURES))


def test_a_fit_on_arrays_forgets_the_table(tmp_path):
    model = classifier().fit(table("Parquet", tmp_path)).fit(X, Y)
    assert not hasattr(model, "preprocessing_")
    assert not hasattr(model.transformer_, "preprocessing_")
    frame = FRAME[["a", "b"]]
    assert list(model.fit(frame, Y).feature_names_in_) == ["a", "b"]
    assert not hasattr(model.fit(table("Parquet", tmp_path)), "feature_names_in_")
    transformer = LearnedNystroem(10, trainer=FAST).fit(table("Parquet", tmp_path)).fit(X, Y)
    assert not hasattr(transformer, "preprocessing_")


@pytest.mark.parametrize("make", [classifier, regressor], ids=["classifier", "regressor"])
def test_a_saved_model_keeps_its_preprocessing(make, tmp_path):
    model = make().fit(table("Parquet", tmp_path, "kind" if make is classifier else "value"))
    save(model, tmp_path / "model.safetensors")
    again = load(tmp_path / "model.safetensors")
    assert again.preprocessing_ == model.preprocessing_
    np.testing.assert_array_equal(again.predict(FRAME), model.predict(FRAME))
    np.testing.assert_array_equal(again.predict(csv(tmp_path)), model.predict(X))
    save(model.transformer_, tmp_path / "map.safetensors")
    np.testing.assert_array_equal(load(tmp_path / "map.safetensors").transform(FRAME), model.transform(X))


BAD = {
    "targets twice": (lambda: classifier().fit(table("pandas", None), Y), "a source has its own targets and weights"),
    "weights twice": (
        lambda: LearnedNystroem().fit(table("pandas", None), sample_weight=np.ones(ROWS)),
        "a source has its own targets and weights",
    ),
    "nothing to predict": (lambda: classifier().fit(table("pandas", None, None)), "the source has no targets"),
    "nothing to learn by": (lambda: LearnedFourier().fit(table("pandas", None, None)), "the source has no targets"),
    "nothing to score": (
        lambda: classifier().fit(X, Y).score(TableSource(pd.DataFrame(X).rename(columns=str), scaling="none")),
        "the source has no targets",
    ),
    "values to classify": (
        lambda: classifier().fit(table("pandas", None, "value")),
        "DiscernelClassifier needs classes or labels to predict, but the source has values.*task",
    ),
    "classes to regress": (
        lambda: regressor().fit(table("pandas", None)),
        "DiscernelRegressor needs values to predict, but the source has classes",
    ),
    "other width": (
        lambda: classifier().fit(X[:, :3], Y).predict(ArraySource(X, Targets.classes(Y))),
        "the source has 5 features, but DiscernelClassifier was fitted on 3",
    ),
    "images": (
        lambda: LearnedFeatures().fit(ArraySource(torch.zeros(9, 2, 2), Targets.classes(np.arange(9) % 2))),
        "a vector for each row",
    ),
    "no targets to score": (lambda: classifier().fit(X, Y).score(X), "score needs y, or a source"),
    "head without weights": (
        lambda: classifier(head=__import__("sklearn.neighbors").neighbors.KNeighborsClassifier()).fit(
            table("pandas", None, weight="weight")
        ),
        "takes no sample_weight",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_is_refused(case):
    fail, match = BAD[case]
    with pytest.raises((ValueError, TypeError), match=match):
        fail()


def test_paths_are_for_models_of_tables(tmp_path):
    model = classifier().fit(X, Y)
    with pytest.raises(ValueError, match="the model was fitted on arrays and knows no columns"):
        model.predict(str(parquet(tmp_path)))


def test_a_draw_from_very_many_rows(monkeypatch):
    monkeypatch.setattr(inputs, "PERMUTED", 100)
    drawn = inputs.draw(10**9, 500, torch.Generator().manual_seed(0))
    assert len(drawn.unique()) == 500
    assert 0.4e9 < drawn.double().mean() < 0.6e9
    assert torch.equal(drawn, inputs.draw(10**9, 500, torch.Generator().manual_seed(0)))
    assert sorted(inputs.draw(100, 100, torch.Generator()).tolist()) == list(range(100))


def test_the_page_on_large_data_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[1] / "docs" / "large_data.md").read_text()
    names = {}
    for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(block, names)
    assert float(capsys.readouterr().out) > 0.95
    assert len(names["model"].predict("new.csv")) == 1000


@pytest.mark.slow
def test_covtype_from_parquet_by_one_command_is_covtype_from_arrays(tmp_path, monkeypatch):
    monkeypatch.undo()  # the real sizes: CovType is not kept in memory
    covtype = datasets.load("covtype")  # before the folder changes: the data directory may be a relative path
    monkeypatch.chdir(tmp_path)
    names = [f"x{i}" for i in range(54)]
    for name, x, y in (
        ("train.parquet", covtype.x_train, covtype.y_train),
        ("test.parquet", covtype.x_test, covtype.y_test),
    ):
        pq.write_table(pa.table(dict(zip(names, x.T, strict=True)) | {"class": y}), name)
    fit = ["fit", "train.parquet", "-t", "class", "--scaling", "none", "-J", "100", "--map", "fourier", "--epochs", "3"]
    assert CliRunner().invoke(app, [*fit, "--quiet"]).exit_code == 0
    model = load("model.safetensors")
    settings = {"n_components": 100, "feature_map": "fourier", "trainer": Trainer(max_epochs=3), "random_state": 0}
    other = DiscernelClassifier(**settings).fit(covtype.x_train, covtype.y_train)
    np.testing.assert_array_equal(model.predict_proba(covtype.x_test), other.predict_proba(covtype.x_test))
    told = CliRunner().invoke(app, ["evaluate", "model.safetensors", "test.parquet", "--json"]).output
    accuracy = json.loads(told)["scores"]["accuracy"]
    assert accuracy == pytest.approx(other.score(covtype.x_test, covtype.y_test), rel=1e-12)
    assert accuracy > 0.75
