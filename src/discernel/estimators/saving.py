"""Saved models: one safetensors file with a JSON header. Loading it runs nothing that is in it."""

import json
import os
import platform
import warnings
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import sklearn
import torch
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from discernel import checkpoint as files
from discernel import checks
from discernel.estimators.classifier import DiscernelClassifier
from discernel.estimators.discriminant import DCA, DiscriminantAnalysis, KernelDCA, KernelDiscriminantAnalysis
from discernel.estimators.learned import LearnedMap
from discernel.estimators.predictor import Predictor
from discernel.estimators.regressor import DiscernelRegressor
from discernel.estimators.transformers import LearnedFastfood, LearnedFourier, LearnedNystroem
from discernel.feature_maps import Fastfood, FeatureMap, ModuleMap, Nystroem, RandomFourier
from discernel.heads import LinearModel
from discernel.kernels import KERNELS, Kernel
from discernel.preprocessing import Preprocessing
from discernel.run import EpochRecord
from discernel.training import Trainer

ESTIMATORS: dict[str, Any] = {
    cls.__name__: cls
    for cls in (
        LearnedNystroem,
        LearnedFourier,
        LearnedFastfood,
        DiscernelClassifier,
        DiscernelRegressor,
        DCA,
        KernelDCA,
        KernelDiscriminantAnalysis,
    )
}
SAMPLED: dict[str, Any] = {"RandomFourier": RandomFourier, "Fastfood": Fastfood}  # made of what they hold
OPTIONS = ("nu", "degree", "coef0")  # of kernels, besides gamma
# What a fit leaves behind besides the map and the head: plain values, arrays, and arrays of names.
VALUES = {
    "n_features_in_": int,
    "n_iter_": int,
    "n_outputs_": int,
    "n_samples_seen_": int,
    "alpha_": float,
    "rho_": float,
    "discriminant_information_": float,
    "_temperature": float,
    "_threshold": float,
    "_multilabel": bool,
    "_single": bool,
    "_trained": list,
}
ARRAYS = ("gamma_", "normalization_", "scalings_", "mean_", "explained_discriminant_information_")
NAMES = ("classes_", "feature_names_in_", "target_names_")
METHODS = ("transform", "predict", "decision_function", "predict_proba")


def save(estimator: LearnedMap | Predictor | DiscriminantAnalysis, path: str | os.PathLike) -> None:
    """Write a fitted estimator to one file, without pickle; `load` reads it again, with identical predictions.

    Whatever has no description but code (a module, a scikit-learn head) cannot be saved so: use joblib for those. A
    RandomState as `random_state` is not kept, nor are the rows that `partial_fit` remembers.

    Examples
    --------
    >>> x, path = np.linspace(0, 6, 100)[:, None], getfixture("tmp_path") / "model.safetensors"
    >>> model = DiscernelRegressor(10, random_state=0).fit(x, np.sin(x[:, 0]))
    >>> save(model, path)
    >>> bool((load(path).predict(x) == model.predict(x)).all())
    True
    """
    arrays, meta = _describe(estimator)
    # Files keep rows together. The layout of a matrix decides how its products are rounded, so it is kept as well.
    columns = [name for name, array in arrays.items() if array.ndim == 2 and not array.is_contiguous()]
    meta |= {"columns": columns, "versions": _versions()}
    files.write(path, "model", arrays | {name: arrays[name].T for name in columns}, meta)


def inspect(path: str | os.PathLike) -> dict[str, Any]:
    """Return what the header of a saved model says, without rebuilding it.

    Among it are its class and parameters, the names of its classes and features, what is known of each epoch of its
    training, and the versions of the libraries that wrote it.
    """
    arrays, meta = files.read(path, "model")
    return meta | {"arrays": {name: [str(a.dtype).removeprefix("torch."), *a.shape] for name, a in arrays.items()}}


def _versions() -> dict[str, str]:
    from discernel import __version__

    libraries = {"numpy": np.__version__, "scikit-learn": sklearn.__version__, "torch": str(torch.__version__)}
    return {"discernel": __version__, "python": platform.python_version()} | libraries


def load(path: str | os.PathLike) -> Any:
    """Return the estimator that `save` wrote.

    Nothing that is in the file is run. A file that is damaged, or of another kind, is refused by a `FileError`.

    Examples
    --------
    >>> path = getfixture("tmp_path") / "model.safetensors"
    >>> save(DCA().fit(np.eye(4), [0, 0, 1, 1]), path)
    >>> load(path)
    DCA()
    """
    arrays, meta = files.read(path, "model")
    try:
        for name in (name for name in arrays if not name.endswith("permutation")):  # which are integers
            checks.tensor(name, arrays[name])
        estimator = _rebuild(arrays | {name: arrays[name].T for name in meta["columns"]}, meta)
        _try(estimator)
    except Exception as error:  # whatever is wrong, it is wrong with the file
        raise files.FileError(f"{path} is damaged{_unless(meta)}: {error!r}") from error
    return estimator


def _unless(meta: Mapping[str, Any]) -> str:
    """Return what else may be wrong with a file: that another version of the library wrote it."""
    from discernel import __version__

    versions = meta.get("versions")
    writer = versions.get("discernel") if isinstance(versions, dict) else None
    if writer in (None, __version__):
        return ""
    return f", unless it is for another version: discernel {writer} wrote it, this is {__version__}"


def _try(estimator) -> None:
    """Let a model say something of a row of zeros, for which all its parts must fit together."""
    row = np.zeros((1, estimator.n_features_in_))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the columns have no names
        for method in METHODS:
            if hasattr(estimator, method):
                getattr(estimator, method)(row)


def _check_width(estimator, width: int) -> None:
    """Refuse a number of input features that is not that of the arrays, before anything of that size is made."""
    if estimator.n_features_in_ != width:
        raise ValueError(f"n_features_in_ is {estimator.n_features_in_}, but the arrays are for {width} features")


def _describe(estimator) -> tuple[dict[str, Tensor], dict[str, Any]]:
    if type(estimator) not in ESTIMATORS.values():
        raise TypeError(f"only {', '.join(ESTIMATORS)} can be saved, not {type(estimator).__name__}; use joblib")
    check_is_fitted(estimator)
    meta: dict[str, Any] = {
        "class": type(estimator).__name__,
        "params": {name: _param(name, value) for name, value in estimator.get_params(deep=False).items()},
        "values": {name: getattr(estimator, name) for name in VALUES if hasattr(estimator, name)},
        "names": {name: _names(name, getattr(estimator, name)) for name in NAMES if hasattr(estimator, name)},
        "history": [asdict(record) for record in getattr(estimator, "history_", [])],
    }
    if hasattr(estimator, "preprocessing_"):
        meta["preprocessing"] = json.loads(estimator.preprocessing_.to_json())
    arrays = {
        name: torch.as_tensor(np.asarray(getattr(estimator, name))) for name in ARRAYS if hasattr(estimator, name)
    }
    if not isinstance(estimator, Predictor):
        meta["map"] = _describe_map(estimator.feature_map_)
        return arrays | files.flatten("map", estimator.feature_map_.state_dict()), meta
    if not isinstance(estimator.head_, LinearModel):
        raise TypeError(f"the head {type(estimator.head_).__name__} has no description but code; use joblib")
    inner, meta["transformer"] = _describe(estimator.transformer_)
    return files.flatten("transformer", inner) | files.flatten("head", estimator.head_._asdict()), meta


def _rebuild(arrays: Mapping[str, Tensor], meta: Mapping[str, Any]):
    estimator = ESTIMATORS[meta["class"]](**{name: _unparam(value) for name, value in meta["params"].items()})
    for name, value in meta["values"].items():
        if type(value) is not VALUES[name]:
            raise TypeError(f"{name} must be of type {VALUES[name].__name__}, got {value!r}")
        if VALUES[name] is float:
            checks.number(name, value)
        setattr(estimator, name, value)
    for name, value in meta["names"].items():
        if name not in NAMES:
            raise ValueError(f"unknown attribute {name!r}")
        setattr(estimator, name, _unnames(value))
    if "preprocessing" in meta:
        estimator.preprocessing_ = Preprocessing.from_json(json.dumps(meta["preprocessing"]))
        _check_width(estimator, len(estimator.preprocessing_.feature_names))
    for name in ARRAYS:
        if name in arrays:
            setattr(estimator, name, arrays[name].numpy() if arrays[name].ndim else arrays[name].item())
    if not isinstance(estimator, DiscriminantAnalysis):
        estimator.history_ = [EpochRecord(**record) for record in meta["history"]]
    if isinstance(estimator, DiscriminantAnalysis | LearnedMap):
        feature_map, width = _rebuild_map(arrays, meta["map"])
        _check_width(estimator, width)
        estimator.feature_map_ = feature_map
        estimator._set_attributes(feature_map)
        return estimator
    estimator.transformer_ = _rebuild(files.branch("transformer", arrays), meta["transformer"])
    _check_width(estimator, estimator.transformer_.n_features_in_)
    estimator.head_ = LinearModel(**files.branch("head", arrays))
    columns = estimator.head_.weights.shape[1]
    if len(getattr(estimator, "classes_", range(columns))) != columns:
        raise ValueError(f"there are {len(estimator.classes_)} classes, but the head has {columns}")
    return estimator


def _param(name: str, value: Any) -> Any:
    """Return a parameter as JSON; what is not JSON by itself is a dictionary that says what it is."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.ndarray | np.generic | Tensor):
        return value.tolist()
    if isinstance(value, list | tuple):
        return [_param(name, item) for item in value]
    if isinstance(value, dict):
        return {"dict": [[_param(name, key), _param(name, item)] for key, item in value.items()]}
    if isinstance(value, Trainer):
        return {"trainer": asdict(value)}
    if type(value) in ESTIMATORS.values():
        inner = {key: _param(key, item) for key, item in value.get_params(deep=False).items()}
        return {"estimator": type(value).__name__, "params": inner}
    if isinstance(value, Kernel):
        return {"kernel": _describe_kernel(value), "metric": value.metric.tolist()}
    if isinstance(value, np.random.RandomState):
        return None
    raise TypeError(f"the parameter {name}, a {type(value).__name__}, has no description but code; use joblib")


def _unparam(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    if "dict" in value:
        return {key: _unparam(item) for key, item in value["dict"]}
    if "trainer" in value:
        return Trainer(**value["trainer"])
    if "estimator" in value:
        return ESTIMATORS[value["estimator"]](**{key: _unparam(item) for key, item in value["params"].items()})
    return _rebuild_kernel(torch.tensor(value["metric"], dtype=torch.float64), value["kernel"])


def _names(name: str, values: np.ndarray) -> dict[str, Any]:
    """Return class or feature names as JSON."""
    entries = values.tolist()
    if not all(isinstance(entry, bool | int | float | str) for entry in entries):
        raise TypeError(f"{name} must hold numbers or strings to be saved, not {values.dtype}; use joblib")
    return {"dtype": "str" if values.dtype.kind == "U" else values.dtype.str, "values": entries}


def _unnames(names: Mapping[str, Any]) -> np.ndarray:
    dtype = np.dtype(names["dtype"])
    if dtype.kind not in "biufUO" or (dtype.kind == "U" and dtype.itemsize):
        raise TypeError(f"names cannot be of type {dtype}")
    return np.array(names["values"], dtype=dtype)


def _describe_kernel(kernel: Kernel) -> dict[str, Any]:
    names = {cls: name for name, cls in KERNELS.items()}
    if type(kernel) not in names:
        raise TypeError(f"the kernel {type(kernel).__name__} has no description but code; use joblib")
    options = {name: getattr(kernel, name) for name in OPTIONS if hasattr(kernel, name)}
    return {"name": names[type(kernel)], "options": options, "trainable": kernel.metric.requires_grad}


def _rebuild_kernel(metric: Tensor, description: Mapping[str, Any]) -> Kernel:
    if not set(description["options"]) <= set(OPTIONS):
        raise ValueError(f"unknown kernel options {description['options']}")
    kernel = KERNELS[description["name"]](torch.ones_like(metric), **description["options"])
    kernel.metric = nn.Parameter(metric, requires_grad=bool(description["trainable"]))
    return kernel


def _describe_map(feature_map: FeatureMap) -> dict[str, Any]:
    if isinstance(feature_map, Nystroem):
        return {"class": "Nystroem", "kernel": _describe_kernel(feature_map.kernel), "rank": feature_map.rank}
    return {"class": type(feature_map).__name__ if type(feature_map) in SAMPLED.values() else "Identity"}


def _rebuild_map(arrays: Mapping[str, Tensor], description: Mapping[str, Any]) -> tuple[FeatureMap, int]:
    """Return the map and the number of its input features."""
    state = files.branch("map", arrays)
    if description["class"] == "Identity":
        return ModuleMap(nn.Identity()).eval(), len(arrays["mean_"])
    if description["class"] in SAMPLED:
        width = len(state["frequencies"]) if "frequencies" in state else state["signs"].shape[1]
        return SAMPLED[description["class"]](**state).eval().requires_grad_(False), width
    kernel = _rebuild_kernel(state["kernel.metric"], description["kernel"])
    feature_map = Nystroem(state["landmarks"], kernel, description["rank"]).eval().requires_grad_(False)
    if "normalization_" in arrays:  # eigenvectors have no sign of their own: another machine may find other ones
        feature_map._cached = [p.detach().clone() for p in feature_map.parameters()], arrays["normalization_"]
    return feature_map, feature_map.landmarks.shape[1]
