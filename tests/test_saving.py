"""Saved models: what comes back is what was saved, and nothing else is let in."""

import json
import pickle

import joblib
import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from sklearn.datasets import load_iris
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from torch import nn

import discernel
from discernel import (
    RBF,
    DiscernelClassifier,
    DiscernelRegressor,
    LearnedFastfood,
    LearnedFeatures,
    LearnedFourier,
    LearnedNystroem,
    Matern,
    Polynomial,
    Trainer,
    load,
    save,
)
from discernel import estimators as public
from discernel.checkpoint import FileError, write
from discernel.estimators.saving import METHODS

X, Y = load_iris(return_X_y=True)
LABELS = np.column_stack([Y == 0, Y > 0])
SHORT = {"trainer": Trainer(max_epochs=2), "random_state": 0}
NYSTROEM = LearnedNystroem(5, kernel=Matern(0.3, nu=2.5), criterion="ls", init="kmeans", **SHORT)


class Wave(RBF):
    """A kernel that is known by its code alone."""


MODELS = {
    **{
        f"{head} {feature_map}": (DiscernelClassifier(5, head=head, feature_map=feature_map, **SHORT), Y)
        for head in ("ridge", "svm", "softmax")
        for feature_map in ("nystroem", "fourier", "fastfood")
    },
    "two classes": (DiscernelClassifier(5, **SHORT), np.where(Y > 0, "yes", "no")),
    "classes of objects": (DiscernelClassifier(5, **SHORT), np.array(["a", "bc", "d"], dtype=object)[Y]),
    "classes of booleans": (DiscernelClassifier(5, **SHORT), Y > 0),
    "labels": (DiscernelClassifier(5, head="softmax", **SHORT), LABELS),
    "class weights": (DiscernelClassifier(5, class_weight={0: 1.0, np.int64(1): 2.0, 2: np.float32(3)}, **SHORT), Y),
    "settings": (
        DiscernelClassifier(
            5,
            head="ridge",
            gamma=np.full(4, 0.2),
            alpha="gcv",
            early_stopping=True,
            validation_fraction=0.2,
            warm_start=True,
            **SHORT,
        ),
        Y,
    ),
    "a given map": (DiscernelClassifier(feature_map=NYSTROEM), Y),
    "regressor": (DiscernelRegressor(5, **SHORT), Y),
    "regressor fourier": (DiscernelRegressor(5, feature_map="fourier", alpha=0.1, **SHORT), Y),
    "many targets": (DiscernelRegressor(5, **SHORT), X[:, :2] * 100),
    "LearnedNystroem": (NYSTROEM, Y),
    "untrained": (LearnedNystroem(5, criterion=None, gamma="median", random_state=0), Y),
    "polynomial": (LearnedNystroem(5, kernel=Polynomial(0.1, 2, 0.5), **SHORT), Y),
    "learned kernel": (LearnedNystroem(5, kernel=RBF([0.1, 0.2, 0.3, 0.4], trainable=True), **SHORT), Y),
    "LearnedFourier": (LearnedFourier(5, kernel="cauchy", **SHORT), Y),
    "LearnedFourier gamma": (LearnedFourier(5, gamma=[0.1, 0.2, 0.3, 0.4], **SHORT), Y),
    "LearnedFastfood": (LearnedFastfood(11, **SHORT), Y),
    "DCA": (public.DCA(2), Y),
    "KernelDCA": (public.KernelDCA(n_landmarks=10, random_state=0), X[:, 0]),
    "KernelDiscriminantAnalysis": (public.KernelDiscriminantAnalysis(gamma=0.1), Y.astype(str)),
}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.safetensors"


def said(model, x=X):
    return {name: getattr(model, name)(x) for name in METHODS if hasattr(model, name)}


def plain(value):
    """Return attributes in a form that can be compared."""
    if hasattr(value, "get_params"):
        return type(value), plain(value.get_params(deep=False))
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, nn.Module):
        return {name: plain(part) for name, part in value.state_dict().items()}
    if isinstance(value, np.ndarray | np.generic | torch.Tensor):
        return value.tolist()
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value


def through_pickle(model, path):
    path.write_bytes(pickle.dumps(model))
    return pickle.loads(path.read_bytes())


def through_joblib(model, path):
    joblib.dump(model, path)
    return joblib.load(path)


@pytest.mark.parametrize("case", MODELS)
@pytest.mark.parametrize("container", [through_pickle, through_joblib])
def test_other_containers_give_back_the_same_too(case, container, path):
    model, y = MODELS[case]
    expected = said(model.fit(X, y))
    for name, value in said(container(model, path)).items():
        np.testing.assert_array_equal(value, expected[name])


@pytest.mark.parametrize("case", MODELS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_what_comes_back_is_what_was_saved(case, dtype, path):
    model, y = MODELS[case]
    x = X.astype(dtype)
    model.fit(x, y)
    save(model, path)
    back = load(path)
    for name, value in said(model, x).items():
        again = getattr(back, name)(x)
        np.testing.assert_array_equal(again, value)
        assert again.dtype == value.dtype
    assert type(back) is type(model)
    assert plain(back.get_params(deep=False)) == plain(model.get_params(deep=False))
    assert set(vars(back)) == set(vars(model))
    for name in ("classes_", "history_", "n_iter_", "alpha_", "gamma_", "components_", "scalings_", "n_features_in_"):
        assert plain(getattr(back, name, None)) == plain(getattr(model, name, None)), name
    if hasattr(model, "classes_"):
        assert back.classes_.dtype.kind == model.classes_.dtype.kind


@pytest.mark.parametrize("case", ["ridge nystroem", "class weights", "a given map", "regressor", "LearnedFourier"])
def test_what_comes_back_can_be_fitted_saved_and_trained_further(case, path):
    model, y = MODELS[case]
    save(model.fit(X, y), path)
    content = path.read_bytes()
    back = load(path)
    save(back, path)
    assert path.read_bytes() == content
    for name, value in said(load(path).fit(X, y)).items():
        np.testing.assert_allclose(value, said(model)[name], atol=1e-9)
    if hasattr(model, "warm_start"):
        warm = load(path).set_params(warm_start=True).fit(X, y)
        expected = model.set_params(warm_start=True).fit(X, y)
        model.set_params(warm_start=False)
        np.testing.assert_allclose(warm.transform(X), expected.transform(X), atol=1e-9)


def test_feature_names_are_kept(path):
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(X, columns=["a", "b", "c", "d"])
    save(DiscernelClassifier(5, **SHORT).fit(frame, Y), path)
    back = load(path)
    assert list(back.feature_names_in_) == list(back.transformer_.feature_names_in_) == ["a", "b", "c", "d"]
    back.predict(frame)
    with pytest.raises(ValueError, match="feature names should match"):
        back.predict(frame[["b", "a", "c", "d"]])


def test_a_random_state_is_not_kept_but_the_model_is(path):
    model = LearnedNystroem(5, trainer=Trainer(max_epochs=1), random_state=np.random.RandomState(0)).fit(X, Y)
    save(model, path)
    assert load(path).random_state is None
    np.testing.assert_array_equal(load(path).transform(X), model.transform(X))


def test_the_signs_of_eigenvectors_come_from_the_file(path):
    model = LearnedNystroem(5, **SHORT).fit(X, Y)
    params, normalization = model.feature_map_._cached
    model.feature_map_._cached = params, -normalization  # as another machine might have found
    model.normalization_ = -model.normalization_
    save(model, path)
    np.testing.assert_array_equal(load(path).transform(X), model.transform(X))


def test_the_header_tells_what_a_model_is(path):
    save(DiscernelClassifier(5, **SHORT).fit(X, np.array(["a", "b", "c"])[Y]), path)
    header = public.inspect(path)
    assert header["class"] == "DiscernelClassifier"
    assert header["params"]["n_components"] == 5
    assert header["names"]["classes_"]["values"] == ["a", "b", "c"]
    assert len(header["history"]) == 2
    assert set(header["versions"]) == {"discernel", "python", "numpy", "scikit-learn", "torch"}
    assert header["arrays"]["transformer.map.landmarks"] == ["float64", 5, 4]


# what cannot be saved


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (LearnedFeatures(nn.Linear(4, 2), **SHORT), "only .* can be saved, not LearnedFeatures; use joblib"),
        (
            DiscernelClassifier(feature_map=LearnedFeatures(**SHORT)),
            "feature_map, a LearnedFeatures, has no .*; use joblib",
        ),
        (
            DiscernelClassifier(5, head=LogisticRegression(), **SHORT),
            "head, a LogisticRegression, has no .*; use joblib",
        ),
        (LearnedNystroem(5, kernel=Wave(0.3), **SHORT), "kernel Wave has no description but code; use joblib"),
        (LogisticRegression(max_iter=1000), "only .* can be saved, not LogisticRegression; use joblib"),
    ],
)
def test_what_is_known_by_its_code_alone_is_refused(model, message, path):
    model.fit(X, Y)
    with pytest.raises(TypeError, match=message):
        save(model, path)
    assert not path.exists()


def test_classes_have_to_be_numbers_or_strings(path):
    days = np.array(["2026-01-01", "2026-01-02", "2026-01-03"], dtype="datetime64[D]")
    model = DiscernelClassifier(5, **SHORT).fit(X, Y)
    model.classes_ = days
    with pytest.raises(TypeError, match=r"classes_ must hold numbers or strings.*datetime64.*use joblib"):
        save(model, path)


@pytest.mark.parametrize("model", [LearnedNystroem(), DiscernelClassifier(), public.DCA()])
def test_what_is_not_fitted_is_refused(model, path):
    with pytest.raises(NotFittedError, match="not fitted"):
        save(model, path)


# what cannot be loaded


@pytest.mark.parametrize("content", [b"", b"hello", b"\x00" * 100, b"PK\x03\x04" + b"x" * 50, b"\xff" * 8])
def test_other_files_are_refused(content, path):
    path.write_bytes(content)
    with pytest.raises(FileError, match="damaged or not a discernel file"):
        load(path)


def test_files_of_others_are_refused(path):
    save_file({"a": torch.ones(2)}, path)
    with pytest.raises(FileError, match="discernel did not write it"):
        load(path)
    write(path, "checkpoint", {"a": torch.ones(2)}, {})
    with pytest.raises(FileError, match="holds a checkpoint, not a model"):
        load(path)
    with pytest.raises(FileNotFoundError):
        load(path.with_name("nothing"))


def rewritten(path, old, new):
    """Change the header of a file, whatever that does to its length."""
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    ours = header["__metadata__"]["discernel"]
    assert old in ours
    header["__metadata__"]["discernel"] = ours.replace(old, new, 1)
    header = json.dumps(header).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + content[8 + size :])


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"class": "DiscernelClassifier"', '"class": "Popen"'),
        ('"n_features_in_": 4', '"n_features_in_": 5'),
        ('"n_features_in_": 4', '"n_features_in_": 1000000000000000'),
        ('"n_features_in_": 4', '"n_features_in_": "4"'),
        ('"_temperature": ', '"_temperature": NaN, "alpha_": '),
        ('"_temperature"', '"__class__"'),
        ('"_temperature": ', '"_temperature": null, "alpha_": '),
        ('"classes_"', '"fit"'),
        ('"dtype": "str"', '"dtype": "<U100000000"'),
        ('"dtype": "str"', '"dtype": "M8[s]"'),
        ('["no", "yes"]', '["no"]'),
        ('"name": "rbf"', '"name": "os.system"'),
        ('"options": {}', '"options": {"trainable": true}'),
        ('"history": [', '"history": [{"epoch": 1}, '),
        ('"max_epochs": 2', '"max_epochs": -2'),
        ('"trainer": {"', '"kernel": {"'),
        ('"params": {', '"params": {"fit": 1, '),
        ('"columns": ["', '"columns": ["nothing", "'),
    ],
)
def test_a_header_that_does_not_fit_is_refused(old, new, path):
    model, y = MODELS["two classes"]
    save(model.fit(X, y), path)
    rewritten(path, old, new)
    with pytest.raises(FileError, match="is damaged"):
        load(path)


def test_a_file_of_another_version_is_called_that(path):
    model, y = MODELS["two classes"]
    save(model.fit(X, y), path)
    rewritten(path, f'"discernel": "{discernel.__version__}"', '"discernel": "99.0"')
    np.testing.assert_array_equal(load(path).predict(X), model.predict(X))
    rewritten(path, '"params": {', '"params": {"new_in_99": 1, ')
    with pytest.raises(FileError, match=f"discernel 99.0 wrote it, this is {discernel.__version__}: .*new_in_99"):
        load(path)


def test_numbers_that_are_none_are_refused(path):
    model, y = MODELS["regressor"]
    save(model.fit(X, y), path)
    content = bytearray(path.read_bytes())
    content[-8:] = np.array([np.nan]).tobytes()
    path.write_bytes(content)
    with pytest.raises(FileError, match="NaN"):
        load(path)


@pytest.mark.parametrize("case", ["two classes", "LearnedFourier", "KernelDCA"])
def test_damage_is_noticed_or_does_no_harm(case, path):
    model, y = MODELS[case]
    save(model.fit(X, y), path)
    content, generator = path.read_bytes(), np.random.default_rng(0)
    header = int.from_bytes(content[:8], "little") + 8
    loaded = 0
    for attempt in range(300):
        damaged = bytearray(content)
        where = generator.integers(len(content) if attempt % 4 == 0 else header)
        if attempt % 3 == 0:
            damaged[where] = generator.integers(256)
        elif attempt % 3 == 1:
            damaged[where] = generator.choice(list(b'0123456789"{}[],:.-e '))
        else:
            del damaged[where : where + generator.integers(1, 9)]
        path.write_bytes(damaged)
        try:
            back = load(path)
        except FileError:
            continue
        assert said(back).keys() == said(model).keys()
        loaded += 1
    assert 0 < loaded < 100
