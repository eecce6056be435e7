"""Bad calls at the doors that users come through: estimators, tables, files and the command line."""

import re

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.linear_model import LinearRegression
from typer.testing import CliRunner

from discernel import (
    DCA,
    DiscernelClassifier,
    DiscernelRegressor,
    KernelDCA,
    LearnedFastfood,
    LearnedFeatures,
    LearnedFourier,
    LearnedNystroem,
    Preprocessing,
    TableSource,
    Trainer,
    load,
    save,
)
from discernel.cli import app

RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 3))
Y = np.arange(40) % 2
FRAME = pd.DataFrame(X, columns=["a", "b", "c"]).assign(kind=np.array(["u", "v"])[Y], weight=1.0)
SHORT = {"trainer": Trainer(max_epochs=1), "random_state": 0}


def classifier(**options):
    return DiscernelClassifier(4, **SHORT | options)


def fitted(**options):
    return classifier(**options).fit(X, Y)


def spoiled(value):
    x = X.copy()
    x[3, 1] = value
    return x


def stream(**options):
    return classifier(**options).partial_fit(X, Y, classes=[0, 1])


ESTIMATORS = {
    "components zero": (lambda: DiscernelClassifier(0).fit(X, Y), "n_components must be at least 1, got 0"),
    "components a fraction": (lambda: LearnedFourier(2.5).fit(X, Y), "n_components must be a whole number, got 2.5"),
    "feature map unknown": (
        lambda: classifier(feature_map="rff").fit(X, Y),
        "feature_map must be one of 'auto', 'nystroem'",
    ),
    "feature map a class": (lambda: classifier(feature_map=LearnedFourier).fit(X, Y), "or a learned transformer; got"),
    "head unknown": (lambda: classifier(head="tree").fit(X, Y), "head must be one of 'ridge', 'svm'"),
    "head a regressor": (lambda: classifier(head=LinearRegression()).fit(X, Y), "or a scikit-learn classifier, got"),
    "gamma negative": (lambda: classifier(gamma=-1.0).fit(X, Y), "gamma must be a positive number"),
    "gamma unknown": (lambda: classifier(gamma="auto").fit(X, Y), "gamma must be one of 'scale', 'median', 'cv'"),
    "gamma learned by Fourier": (lambda: LearnedFourier(gamma="learn").fit(X, Y), "gamma must be one of 'scale'"),
    "gamma of other features": (
        lambda: LearnedFastfood(gamma=[1.0, 2.0]).fit(X, Y),
        "gamma has 2 values .* 3 features",
    ),
    "rho zero": (lambda: classifier(rho=0.0).fit(X, Y), "rho must be positive and finite, got 0.0"),
    "alpha a word": (lambda: classifier(alpha="best").fit(X, Y), "alpha must be "),
    "kernel unknown": (lambda: LearnedNystroem(kernel="gauss").fit(X, Y), "kernel must be one of 'rbf'"),
    "kernel dot product": (
        lambda: LearnedFourier(kernel="linear").fit(X, Y),
        "must be shift-invariant.*use Nystroem",
    ),
    "criterion unknown": (lambda: LearnedNystroem(criterion="mse").fit(X, Y), "criterion must be one of 'di', 'ls'"),
    "criterion ce": (
        lambda: LearnedNystroem(4, criterion="ce").fit(X, X[:, 0]),
        '"ce" is for classes and labels',
    ),
    "init unknown": (lambda: LearnedNystroem(init="grid").fit(X, Y), "init must be one of 'uniform', 'kmeans'"),
    "trainer a dict": (
        lambda: classifier(trainer={"max_epochs": 1}).fit(X, Y),
        "trainer must be a discernel.Train",
    ),
    "device unknown": (lambda: classifier(device="abacus").fit(X, Y), "device must be the name of a torch device"),
    "module a function": (lambda: LearnedFeatures(len).fit(X, Y), "module must be a torch.nn.Module, got"),
    "stopping a word": (
        lambda: classifier(early_stopping="yes").fit(X, Y),
        "early_stopping must be True or False",
    ),
    "share of 2": (
        lambda: classifier(validation_fraction=2.0).fit(X, Y),
        "validation_fraction must be between 0",
    ),
    "patience": (lambda: classifier(n_iter_no_change=0).fit(X, Y), "n_iter_no_change must be at least 1"),
    "too few to hold out": (
        lambda: classifier(early_stopping=True, validation_fraction=0.01).fit(X[:6], Y[:6]),
        "early_stopping cannot hold out validation_fraction=0.01",
    ),
    "X NaN": (lambda: classifier().fit(spoiled(np.nan), Y), "Input X contains NaN"),
    "X infinite": (lambda: classifier().fit(spoiled(np.inf), Y), "Input X contains infinity"),
    "X text": (lambda: classifier().fit([["a", "b"]] * 4, [0, 1, 0, 1]), "could not convert string to float"),
    "X a vector": (lambda: classifier().fit(X[:, 0], Y), "Expected 2D array, got 1D array"),
    "X of bfloat16": (lambda: classifier().fit(torch.ones(4, 2).bfloat16(), [0, 1, 0, 1]), "BFloat16"),
    "X complex": (lambda: classifier().fit(X + 1j, Y), "Complex data not supported"),
    "X without columns": (lambda: classifier().fit(X[:, :0], Y), "0 feature"),
    "X of one row": (lambda: classifier().fit(X[:1], Y[:1]), "minimum of 2 is required"),
    "y too short": (lambda: classifier().fit(X, Y[:5]), "inconsistent numbers of samples"),
    "y missing": (lambda: classifier().fit(X, None), "requires y to be passed"),
    "y NaN": (lambda: classifier().fit(X, np.where(Y, np.nan, 0.0)), "Input y contains NaN"),
    "y of one class": (lambda: classifier().fit(X, Y * 0), "y must have at least two classes to tell apart, got one"),
    "y of numbers": (lambda: classifier().fit(X, X[:, 0]), "Unknown label type: continuous"),
    "y of text for regression": (lambda: DiscernelRegressor(4).fit(X, FRAME["kind"]), "could not convert string"),
    "weights too few": (lambda: classifier().fit(X, Y, np.ones(5)), "sample_weight.shape == .*5"),
    "weights negative": (lambda: classifier().fit(X, Y, -np.ones(40)), "[Nn]egative values in.*sample_weight"),
    "weights NaN": (lambda: classifier().fit(X, Y, np.full(40, np.nan)), "sample_weight contains NaN"),
    "weights zero": (lambda: classifier().fit(X, Y, np.zeros(40)), "weight.* must .*at least one"),
    "weights of validation": (
        lambda: classifier().fit(X, Y, X_val=X, y_val=Y, sample_weight_val=np.ones(3)),
        "sample_weight.shape == .*3",
    ),
    "half a validation set": (lambda: classifier().fit(X, Y, X_val=X), "y_val is missing: a validation set needs both"),
    "validation of new classes": (lambda: classifier().fit(X, Y, X_val=X, y_val=Y + 5), r"classes \[5, 6\].*not among"),
    "not fitted": (lambda: classifier().predict(X), "is not fitted yet"),
    "fewer features": (lambda: fitted().predict(X[:, :2]), "X has 2 features, but .* is expecting 3"),
    "more features": (lambda: fitted().transform(np.hstack([X, X])), "X has 6 features, but .* is expecting 3"),
    "other names": (
        lambda: classifier().fit(FRAME[["a", "b"]], Y).predict(FRAME[["a", "c"]]),
        "feature names should match",
    ),
    "names in another order": (
        lambda: classifier().fit(FRAME[["a", "b"]], Y).predict(FRAME[["b", "a"]]),
        "must be in the same order",
    ),
    "NaN to predict": (lambda: fitted().predict(spoiled(np.nan)), "Input X contains NaN"),
    "stream of what": (
        lambda: classifier().partial_fit(X, Y),
        "classes, all that may ever come, must be given",
    ),
    "stream of new classes": (lambda: stream().partial_fit(X, Y + 1), r"classes \[2\], which are not among the known"),
    "stream of other classes": (lambda: stream().partial_fit(X, Y, classes=[0, 1, 2]), r"were declared as \[0, 1\]"),
    "stream of other features": (lambda: stream().partial_fit(X[:, :2], Y), "X has 2 features, but"),
    "stream that holds out": (lambda: stream(early_stopping=True), "holds no rows out: set early_stopping=False"),
    "stream of other components": (lambda: stream().set_params(n_components=9).partial_fit(X, Y), "n_components is 4"),
    "warm start of another map": (
        lambda: fitted(warm_start=True).set_params(feature_map="fourier").fit(X, Y),
        "whose feature map is LearnedNystroem",
    ),
    "components of DCA": (lambda: DCA(n_components=0).fit(X, Y), "n_components must be"),
    "landmarks of KernelDCA": (lambda: KernelDCA(n_landmarks=0).fit(X, Y), "n_landmarks must be at least 1"),
}

TABLES = {
    "no such file": (lambda: TableSource("nowhere.csv"), "there is no file or folder 'nowhere.csv'"),
    "target unknown": (lambda: TableSource(FRAME, target="price"), r"there is no column 'price'; there are \['a'"),
    "target among the features": (
        lambda: TableSource(FRAME, target="kind", features=["a", "kind"]),
        "targets or weights and features too: that is target leakage",
    ),
    "weight among the features": (
        lambda: TableSource(FRAME, target="kind", weight="weight", features=["a", "weight"]),
        "that is target leakage",
    ),
    "target twice": (lambda: TableSource(FRAME, target=["a", "a"]), "must be different columns"),
    "features a word": (lambda: TableSource(FRAME, target="kind", features="a"), "features must be a list of columns"),
    "feature unknown": (lambda: TableSource(FRAME, target="kind", features=["z"]), r"there are no columns \['z'\]"),
    "task unknown": (lambda: TableSource(FRAME, target="kind", task="guess"), "task must be one of 'auto'"),
    "text for regression": (lambda: TableSource(FRAME, target="kind", task="regression"), "regression needs numbers"),
    "no rows": (lambda: TableSource(FRAME[:0], target="kind"), "the table has no rows"),
    "missing values": (lambda: TableSource(FRAME.assign(a=np.nan), target="kind"), "missing values: .*impute"),
    "an array": (lambda: TableSource(X), "arrays are for ArraySource"),
    "preprocessing not ours": (lambda: Preprocessing.from_json("{}"), "this is not the JSON of a Preprocessing"),
    "column gone": (lambda: Preprocessing.fit(FRAME).transform(FRAME[["a"]]), "of the training data are missing"),
    "model not there": (lambda: load("nowhere.safetensors"), "there is no file 'nowhere.safetensors'"),
    "head of another library": (
        lambda: save(classifier(head=_tree()).fit(X, Y), "model"),
        "no description but code; use joblib",
    ),
}

COMMANDS = {
    "no table": (["fit", "nowhere.csv", "-t", "kind"], 1, "there is no file or folder 'nowhere.csv'"),
    "no target": (["fit", "t.csv"], 2, "--target"),
    "target unknown": (["fit", "t.csv", "-t", "price"], 1, "there is no column 'price'; there are"),
    "target among the features": (["fit", "t.csv", "-t", "kind", "--features", "a,kind"], 1, "that is target leakage"),
    "nothing to resume": (
        ["fit", "t.csv", "-t", "kind", "--resume"],
        1,
        "nothing to resume: .*without --resume",
    ),
    "no folder": (["fit", "t.csv", "-t", "kind", "-o", "no/m.safetensors"], 1, "does not exist: make it first"),
    "components zero": (["fit", "t.csv", "-t", "kind", "-J", "0"], 1, "n_components must be at least 1"),
    "head unknown": (["fit", "t.csv", "-t", "kind", "--head", "tree"], 2, "'tree' is not one of"),
    "head of regression": (["fit", "t.csv", "-t", "a", "--head", "svm"], 1, "regression has the ridge head alone"),
    "no model": (["predict", "nowhere.safetensors", "t.csv"], 1, "there is no file 'nowhere.safetensors'"),
    "not a model": (["predict", "t.csv", "t.csv"], 1, "t.csv is damaged or not a discernel file"),
    "no such command": (["predcit"], 2, "No such command"),
}


def _tree():
    from sklearn.tree import DecisionTreeClassifier

    return DecisionTreeClassifier()


@pytest.mark.parametrize("case", ESTIMATORS)
def test_estimators_refuse(case):
    call, message = ESTIMATORS[case]
    with pytest.raises((ValueError, TypeError), match=message):
        call()


@pytest.mark.parametrize("case", TABLES)
def test_tables_and_files_refuse(case, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    call, message = TABLES[case]
    with pytest.raises((ValueError, TypeError, OSError), match=message):
        call()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("case", COMMANDS)
def test_the_command_line_refuses_in_one_sentence(case, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    FRAME.to_csv("t.csv", index=False)
    arguments, code, message = COMMANDS[case]
    result = CliRunner().invoke(app, arguments, env={"COLUMNS": "200"})
    assert result.exit_code == code
    assert re.search(message, " ".join(result.output.split()))
    assert "Traceback" not in result.output
    assert [path.name for path in tmp_path.iterdir()] == ["t.csv"]


def test_there_are_many():
    assert len(ESTIMATORS) + len(TABLES) + len(COMMANDS) >= 60
