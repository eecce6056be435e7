"""Fitted estimators as ONNX models."""

import json
import os
from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from discernel.checkpoint import write_bytes
from discernel.estimators import (
    DCA,
    DiscernelClassifier,
    DiscernelRegressor,
    KernelDCA,
    KernelDiscriminantAnalysis,
    LearnedFastfood,
    LearnedFourier,
    LearnedNystroem,
)
from discernel.export.columns import features_of, input_names
from discernel.export.graph import Graph
from discernel.export.maps import basis
from discernel.feature_maps import Nystroem
from discernel.heads import LinearModel

OPSET, ML_OPSET, IR_VERSION = 17, 3, 8  # old enough for runtimes of 2022


def export_onnx(estimator: Any, path: str | os.PathLike) -> None:
    """Write a fitted estimator as an ONNX model, which needs neither discernel nor torch to run.

    Its input ``X`` (n×d, any n) has the precision that the estimator was trained in. One that was fitted on a table has
    an input for each of its columns instead, a vector of float64, text or whole numbers under the column's name (or
    ``label_column`` where an output is called ``label``; the metadata's ``inputs`` has them all). The outputs are
    ``label`` and ``probabilities`` of a classifier (n×L both for multi-label), ``values`` of a regressor, ``features``
    of a transformer; each is what `predict`, `predict_proba` and `transform` say, to rounding. The metadata has the
    classes, the names of the input features, the estimator and the version of discernel.

    Modules and scikit-learn heads are refused: torch.onnx.export and skl2onnx do those.

    Parameters
    ----------
    estimator : DiscernelClassifier, DiscernelRegressor, LearnedNystroem, LearnedFourier, LearnedFastfood, DCA, ...
        What to export, fitted.
    path : path
        The file to write.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> model = DiscernelClassifier(10, random_state=0).fit(*load_iris(return_X_y=True))
    >>> export_onnx(model, getfixture("tmp_path") / "iris.onnx")
    """
    try:
        import onnx
    except ImportError as error:
        raise ImportError("the export needs onnx: pip install 'discernel[onnx]'") from error
    if type(estimator) not in WRITERS:
        names = ", ".join(cls.__name__ for cls in WRITERS)
        raise TypeError(f"only {names} can be exported, not {type(estimator).__name__}")
    check_is_fitted(estimator)
    model = _model(estimator)
    onnx.checker.check_model(model, full_check=True)
    write_bytes(path, model.SerializeToString())


def _model(estimator) -> Any:
    from onnx import helper

    dtype = _dtype(estimator)
    graph = Graph(dtype)
    x, inputs = _inputs(graph, estimator)
    outputs = WRITERS[type(estimator)](graph, estimator, x)
    for name, (value, _, _) in outputs.items():
        graph.nodes.append(helper.make_node("Identity", [value], [name]))
    described = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(of)), ["n", *shape])
        for name, (_, of, shape) in outputs.items()
    ]
    content = helper.make_graph(graph.nodes, type(estimator).__name__, inputs, described, graph.constants)
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid("ai.onnx.ml", ML_OPSET)]
    model = helper.make_model(content, opset_imports=opsets, ir_version=IR_VERSION, producer_name="discernel")
    helper.set_model_props(model, _metadata(estimator))
    return model


def _inputs(graph: Graph, estimator: Any) -> tuple[str, list[Any]]:
    """Return the features, and the inputs that they come from: a matrix X, or the columns of a table."""
    from onnx import helper

    if hasattr(estimator, "preprocessing_"):
        return features_of(graph, estimator.preprocessing_)
    kind = helper.np_dtype_to_tensor_dtype(graph.dtype)
    return "X", [helper.make_tensor_value_info("X", kind, ["n", estimator.n_features_in_])]


def _metadata(estimator) -> dict[str, str]:
    from discernel import __version__

    facts = {"discernel": __version__, "estimator": type(estimator).__name__}
    for key, attribute in (("classes", "classes_"), ("feature_names", "feature_names_in_")):
        if hasattr(estimator, attribute):
            facts[key] = json.dumps(getattr(estimator, attribute).tolist())
    if hasattr(estimator, "preprocessing_"):
        facts["feature_names"] = json.dumps(estimator.preprocessing_.feature_names)
        facts["inputs"] = json.dumps(input_names(estimator.preprocessing_))
    return facts


def _dtype(estimator) -> np.dtype:
    """Return the precision of the map; discriminant analyses always have float64."""
    parameters = getattr(estimator, "transformer_", estimator).feature_map_.parameters()
    return next((p.numpy().dtype for p in parameters), np.dtype(np.float64))


# An output of an estimator: its name in the graph, its type and its shape after the number of rows.
Outputs = dict[str, tuple[str, Any, list[int]]]


def _classifier(graph: Graph, estimator: DiscernelClassifier, x: str) -> Outputs:
    count, head = len(estimator.classes_), _linear(estimator)
    shifted = LinearModel(head.weights, head.intercept - estimator._threshold)
    scores = _scores(graph, shifted, basis(graph, estimator.transformer_.feature_map_, x))
    tempered = graph.add("Mul", scores, graph.constant(estimator._temperature))
    if estimator._multilabel:
        label = graph.cast(graph.add("Greater", scores, graph.constant(0)), np.int64)
        probabilities = graph.add("Sigmoid", tempered)
        return {"label": (label, np.int64, [count]), "probabilities": (probabilities, graph.dtype, [count])}
    classes, kind = _class_constant(estimator.classes_)
    label = graph.add("Gather", graph.constant(classes, classes.dtype), graph.add("ArgMax", scores, axis=1, keepdims=0))
    probabilities = graph.add("Softmax", tempered, axis=1)
    return {"label": (label, kind, []), "probabilities": (probabilities, graph.dtype, [count])}


def _class_constant(classes: np.ndarray) -> tuple[np.ndarray, Any]:
    """Return the classes as ONNX has them, strings or numbers, and their type."""
    if classes.dtype.kind in "iu":
        return classes.astype(np.int64), np.int64
    if classes.dtype.kind in "bf":
        return classes, classes.dtype
    if not all(isinstance(name, str) for name in classes.tolist()):
        raise TypeError(f"classes must be numbers or strings to be exported, got {classes!r}")
    return classes.astype(object), object


def _regressor(graph: Graph, estimator: DiscernelRegressor, x: str) -> Outputs:
    head = _linear(estimator)
    values = _scores(graph, head, basis(graph, estimator.transformer_.feature_map_, x))
    if estimator._single:
        values = graph.add("Squeeze", values, graph.constant([1], np.int64))
    return {"values": (values, graph.dtype, [] if estimator._single else [len(head.intercept)])}


def _transformer(graph: Graph, estimator: LearnedNystroem | LearnedFourier | LearnedFastfood, x: str) -> Outputs:
    features = basis(graph, estimator.feature_map_, x)
    if isinstance(estimator.feature_map_, Nystroem):
        features = graph.add("MatMul", features, graph.constant(estimator.feature_map_.normalization()))
    return {"features": (features, graph.dtype, [estimator._n_features_out])}


def _discriminant(graph: Graph, estimator: DCA | KernelDCA, x: str) -> Outputs:
    centred = graph.add("Sub", basis(graph, estimator.feature_map_, x), graph.constant(estimator.mean_))
    components = graph.add("MatMul", centred, graph.constant(estimator.scalings_))
    return {"features": (components, graph.dtype, [estimator._n_features_out])}


WRITERS: dict[type, Callable[..., Outputs]] = {
    DiscernelClassifier: _classifier,
    DiscernelRegressor: _regressor,
    LearnedNystroem: _transformer,
    LearnedFourier: _transformer,
    LearnedFastfood: _transformer,
    DCA: _discriminant,
    KernelDCA: _discriminant,
    KernelDiscriminantAnalysis: _discriminant,
}


def _linear(estimator: DiscernelClassifier | DiscernelRegressor) -> LinearModel:
    if not isinstance(estimator.head_, LinearModel):
        name = type(estimator.head_).__name__
        raise TypeError(f"the head {name} cannot be exported: use a head with a name, or export transformer_ alone")
    return estimator.head_


def _scores(graph: Graph, head: LinearModel, features: str) -> str:
    return graph.add("Add", graph.add("MatMul", features, graph.constant(head.weights)), graph.constant(head.intercept))
