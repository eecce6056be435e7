"""The ONNX export: onnxruntime says what the estimator says."""

import json
import subprocess
import sys
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import numpy as np
import pytest
from sklearn.datasets import load_iris
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from torch import nn

import discernel
from discernel import (
    DCA,
    RBF,
    Cauchy,
    DiscernelClassifier,
    DiscernelRegressor,
    KernelDCA,
    KernelDiscriminantAnalysis,
    Laplacian,
    LearnedFastfood,
    LearnedFeatures,
    LearnedFourier,
    LearnedNystroem,
    Linear,
    Matern,
    Polynomial,
    Preprocessing,
    TableSource,
    Trainer,
    export_onnx,
)

pytest.importorskip("onnx")
runtime = pytest.importorskip("onnxruntime")

X, Y = load_iris(return_X_y=True)
X = (X - X.mean(0)) / X.std(0)
SHORT = {"trainer": Trainer(max_epochs=1), "random_state": 0}
KERNELS = {
    "rbf": RBF(0.5),
    "metric": RBF([0.5, 1.0, 2.0, 0.1], trainable=True),
    "laplacian": Laplacian(0.5),
    "matern 0.5": Matern(0.5, nu=0.5),
    "matern 1.5": Matern(0.5, nu=1.5),
    "matern 2.5": Matern(0.5, nu=2.5),
    "cauchy": Cauchy(0.5),
    "polynomial": Polynomial(0.25, degree=2, coef0=0.5),
    "linear": Linear(0.5),
}
MAPS = {
    f"nystroem {name}": LearnedNystroem(3 if name == "linear" else 6, kernel=kernel, **SHORT)
    for name, kernel in KERNELS.items()
} | {f"fourier {name}": LearnedFourier(6, kernel=name, **SHORT) for name in ("rbf", "laplacian", "matern", "cauchy")}
MAPS["fastfood"] = LearnedFastfood(6, **SHORT)
TASKS = {
    "two classes": np.array(["no", "yes"])[(Y > 0).astype(int)],
    "classes": np.array(["setosa", "versicolor", "virginicä"])[Y],
    "labels": np.column_stack([Y == 0, Y > 0, X[:, 0] > 0]).astype(int),
}
TOLERANCE = {np.float64: 1e-9, np.float32: 1e-5}

each_map = pytest.mark.parametrize("feature_map", MAPS.values(), ids=MAPS)
each_dtype = pytest.mark.parametrize("dtype", [np.float64, np.float32])


def served(estimator, path, x):
    """Return the outputs of the exported model by name."""
    export_onnx(estimator, path)
    session = runtime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, {"X": x}), strict=True))


def agree(here, there, dtype):
    assert here.shape == there.shape
    assert here.dtype == there.dtype == dtype
    np.testing.assert_allclose(there, here, rtol=0, atol=TOLERANCE[dtype] * max(1, np.abs(here).max()))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.onnx"


@each_map
@each_dtype
@pytest.mark.parametrize("head", ["ridge", "svm", "softmax"])
@pytest.mark.parametrize("task", TASKS)
def test_classifiers_agree(feature_map, dtype, head, task, path):
    x = X.astype(dtype)
    model = DiscernelClassifier(feature_map=feature_map, head=head, rho=0.1, alpha=0.1).fit(x, TASKS[task])
    there = served(model, path, x)
    np.testing.assert_array_equal(there["label"], model.predict(x))
    agree(model.predict_proba(x), there["probabilities"], dtype)


@each_map
@each_dtype
@pytest.mark.parametrize("targets", [X[:, 0], X[:, :2] @ [[1.0, 100.0], [2.0, -50.0]]], ids=["one", "two"])
def test_regressors_agree(feature_map, dtype, targets, path):
    x = X.astype(dtype)
    model = DiscernelRegressor(feature_map=feature_map, alpha=0.1).fit(x, targets)
    agree(model.predict(x), served(model, path, x)["values"], dtype)


@each_map
@each_dtype
def test_features_agree(feature_map, dtype, path):
    x = X.astype(dtype)
    agree(feature_map.fit(x, Y).transform(x), served(feature_map, path, x)["features"], dtype)


@pytest.mark.parametrize(
    "model", [DCA(2), KernelDCA(n_landmarks=10, random_state=0), KernelDiscriminantAnalysis(kernel="laplacian")]
)
def test_components_agree(model, path):
    agree(model.fit(X, Y).transform(X), served(model, path, X)["features"], np.float64)


def test_close_points_far_from_zero_keep_their_distances(path):
    x = (1000 + np.random.default_rng(0).normal(size=(50, 3))).astype(np.float32)
    model = LearnedNystroem(5, kernel=Matern(1.0, nu=0.5), criterion=None, random_state=0).fit(x)
    agree(model.transform(x), served(model, path, x)["features"], np.float32)


@each_dtype
@pytest.mark.parametrize("kernel", ["rbf", "laplacian", "matern 0.5", "matern 1.5", "matern 2.5", "cauchy"])
def test_the_farthest_rows_are_like_no_landmark(kernel, dtype, path):
    model = LearnedNystroem(5, kernel=KERNELS[kernel], criterion=None, random_state=0).fit(X.astype(dtype))
    far = np.full((2, 4), np.sqrt(np.finfo(dtype).max) * 10, dtype)
    agree(model.transform(far), served(model, path, far)["features"], dtype)


@pytest.mark.parametrize("rows", [0, 1, 7])
def test_any_number_of_rows_will_do(rows, path):
    model = DiscernelClassifier(5, feature_map=MAPS["nystroem laplacian"]).fit(X, Y)
    there = served(model, path, X[:rows])
    assert there["label"].shape == (rows,)
    assert there["probabilities"].shape == (rows, 3)


@pytest.mark.parametrize("classes", [[3, 1, 2], [True, False, True], [1.0, 2.0, 4.0], ["a", "<b>", "c"]])
def test_labels_have_the_type_of_the_classes(classes, path):
    y = np.array(classes)[Y]
    model = DiscernelClassifier(5, **SHORT).fit(X, y)
    label = served(model, path, X)["label"]
    np.testing.assert_array_equal(label, model.predict(X))
    assert label.dtype.kind == {"U": "O"}.get(y.dtype.kind, y.dtype.kind)


def test_the_metadata_say_what_it_is(path):
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(X, columns=["a", "b", "c", "d"])
    export_onnx(DiscernelClassifier(5, **SHORT).fit(frame, TASKS["classes"]), path)
    model = runtime.InferenceSession(path).get_modelmeta()
    facts = model.custom_metadata_map
    assert (model.producer_name, facts["discernel"]) == ("discernel", discernel.__version__)
    assert facts["estimator"] == "DiscernelClassifier"
    assert json.loads(facts["classes"]) == ["setosa", "versicolor", "virginicä"]
    assert json.loads(facts["feature_names"]) == ["a", "b", "c", "d"]


def test_columns_of_a_table_are_inputs(path):
    pd = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "label": rng.normal(1e6, 10, 60),  # as an output is called
            "size": np.where(rng.random(60) < 0.1, np.nan, rng.normal(size=60)),
            "colour": rng.choice(["red", "blue", "grün"], 60),
            "shape": rng.choice(["round", None], 60, p=[0.8, 0.2]),
            "floor": rng.integers(-1, 3, 60),
            "new": rng.random(60) < 0.5,
            "old": rng.random(60) < 0.5,
        }
    )
    preprocessing = Preprocessing.fit(frame, scaling="standard", missing="impute", categorical=["floor", "new"])
    x, y = preprocessing.transform(frame), rng.choice(["a", "b"], 60)
    model = DiscernelClassifier(5, **SHORT)
    model.fit(x, y).preprocessing_ = preprocessing
    export_onnx(model, path)
    session = runtime.InferenceSession(path)
    frame.loc[0, "colour"], frame.loc[1, "floor"] = "never seen", 99
    kinds = {
        "tensor(double)": np.float64,
        "tensor(string)": object,
        "tensor(int64)": np.int64,
        "tensor(bool)": np.bool_,
    }
    columns = json.loads(session.get_modelmeta().custom_metadata_map["inputs"])
    assert columns["label"] == "label_column"
    types = {each.name: kinds[each.type] for each in session.get_inputs()}
    inputs = {name: frame[column].to_numpy().astype(types[name]) for column, name in columns.items()}
    inputs["shape"] = frame["shape"].fillna("").to_numpy(object)
    label, probabilities = session.run(["label", "probabilities"], inputs)
    x = preprocessing.transform(frame)
    np.testing.assert_array_equal(label, model.predict(x))
    agree(model.predict_proba(x), probabilities, np.float32)


@pytest.mark.parametrize(
    "columns",
    [
        ["", "_column", "c", "d"],  # of a CSV file whose index has no name
        ["label", "label_column", "/constant_0", "constant_0"],
        ["rows", "landmark", "row", "unsqueeze_0"],
    ],
)
def test_columns_may_have_any_name(columns, path):
    pd = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    frame = pd.DataFrame(X, columns=columns).assign(species=TASKS["classes"])
    source = TableSource(frame, target="species", features=columns)
    model = DiscernelClassifier(feature_map=MAPS["nystroem laplacian"]).fit(source)
    export_onnx(model, path)
    session = runtime.InferenceSession(path)
    inputs = json.loads(session.get_modelmeta().custom_metadata_map["inputs"])
    assert list(inputs) == columns
    there = session.run(["probabilities"], {name: frame[column].to_numpy() for column, name in inputs.items()})[0]
    agree(model.predict_proba(frame), there, np.float32)


class Wave(RBF):
    """A kernel that is known by its code alone."""


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (LearnedFeatures(nn.Linear(4, 2), **SHORT), "only .* can be exported, not LearnedFeatures"),
        (DiscernelClassifier(feature_map=LearnedFeatures(**SHORT)), r"ModuleMap cannot be exported: use torch.onnx"),
        (DiscernelClassifier(5, head=LogisticRegression(), **SHORT), "head LogisticRegression cannot be exported"),
        (LearnedNystroem(5, kernel=Wave(0.3), **SHORT), "kernel Wave cannot be exported"),
        (LogisticRegression(max_iter=1000), "only .* can be exported, not LogisticRegression"),
    ],
)
def test_what_is_known_by_its_code_alone_is_refused(model, message, path):
    model.fit(X, Y)
    with pytest.raises(TypeError, match=message):
        export_onnx(model, path)
    assert not path.exists()


def test_what_is_not_fitted_is_refused(path):
    with pytest.raises(NotFittedError):
        export_onnx(DiscernelClassifier(), path)


def test_classes_have_to_be_numbers_or_strings(path):
    model = DiscernelClassifier(5, **SHORT).fit(X, Y)
    model.classes_ = np.array([None, 1, "a"], dtype=object)
    with pytest.raises(TypeError, match="classes must be numbers or strings"):
        export_onnx(model, path)


def test_without_onnx_it_says_what_to_install(monkeypatch, path):
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(ImportError, match=r"pip install 'discernel\[onnx\]'"):
        export_onnx(DiscernelClassifier(), path)


SERVING = """
import sys
sys.modules.update(discernel=None, torch=None, sklearn=None, onnx=None)
sys.path.insert(0, sys.argv[1])
import serve_onnx
server = serve_onnx.server(sys.argv[2], 0)
print(server.server_port, flush=True)
server.serve_forever()
"""


def test_the_example_serves_without_discernel(path):
    model = DiscernelClassifier(5, **SHORT).fit(X, TASKS["classes"])
    export_onnx(model, path)
    examples = Path(__file__).parent.parent / "examples"
    command = [sys.executable, "-c", SERVING, str(examples), str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            address = f"http://127.0.0.1:{int(process.stdout.readline())}"
            with urlopen(address, json.dumps({"X": X.tolist()}).encode()) as response:
                said = json.load(response)
            with pytest.raises(HTTPError, match="400") as refused:
                urlopen(address, b'{"X": [[1, 2]]}')
            assert "INVALID_ARGUMENT" in refused.value.read().decode()
            refused.value.close()
        finally:
            process.terminate()
    assert said["label"] == model.predict(X).tolist()
    np.testing.assert_allclose(said["probabilities"], model.predict_proba(X), atol=1e-9)
