"""Saved models: one safetensors file with a JSON header. Loading it runs nothing that is in it."""

import os
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from torch import Tensor

from discernel import checkpoint as files
from discernel.estimators.predictors import DiscernelClassifier, DiscernelRegressor, Predictor
from discernel.estimators.transformers import LearnedFourier, LearnedMap, LearnedNystroem
from discernel.feature_maps import FeatureMap, Nystroem, RandomFourier
from discernel.heads import LinearModel
from discernel.kernels import KERNELS, Kernel
from discernel.training import EpochRecord, Trainer

ESTIMATORS = {cls.__name__: cls for cls in (LearnedNystroem, LearnedFourier, DiscernelClassifier, DiscernelRegressor)}
OPTIONS = ("nu", "degree", "coef0")  # of kernels, besides gamma
# What a fit leaves behind besides the map and the head, all of it JSON.
FITTED = (
    "n_features_in_",
    "_n_features_out",
    "n_iter_",
    "alpha_",
    "_temperature",
    "_multilabel",
    "_threshold",
    "_single",
)


def save(estimator: LearnedMap | Predictor, path: str | os.PathLike) -> None:
    """Write a fitted estimator to one file, without pickle; `load` reads it again, with identical predictions.

    Whatever has no description but code (a module, a scikit-learn head) cannot be saved so: use joblib for those.
    """
    if type(estimator).__name__ not in ESTIMATORS:
        raise TypeError(f"only {', '.join(ESTIMATORS)} can be saved, not {type(estimator).__name__}; use joblib")
    arrays, meta = _describe(estimator)
    files.write(path, "model", arrays, meta)


def load(path: str | os.PathLike) -> Any:
    """Return the estimator that `save` wrote."""
    arrays, meta = files.read(path, "model")
    try:
        return _rebuild(arrays, meta)
    except (KeyError, TypeError, ValueError, RuntimeError, AttributeError) as error:
        raise files.FileError(f"{path} is damaged: {error!r}") from error


def _describe(estimator) -> tuple[dict[str, Tensor], dict[str, Any]]:
    if not hasattr(estimator, "n_features_in_"):
        raise ValueError(f"this {type(estimator).__name__} is not fitted yet: call fit before save")
    params = {name: _param(name, value) for name, value in estimator.get_params(deep=False).items()}
    fitted = {name: getattr(estimator, name) for name in FITTED if hasattr(estimator, name)}
    meta: dict[str, Any] = {"class": type(estimator).__name__, "params": params, "fitted": fitted}
    meta["history"] = [asdict(record) for record in estimator.history_]
    for name in ("classes_", "feature_names_in_"):
        if hasattr(estimator, name):
            values = getattr(estimator, name)
            meta[name] = {"dtype": values.dtype.str, "values": values.tolist()}
    if isinstance(estimator, LearnedMap):
        arrays = files.flatten("map", estimator.feature_map_.state_dict())
        meta["map"] = _describe_map(estimator.feature_map_)
        return arrays, meta
    if not isinstance(estimator.head_, LinearModel):
        raise TypeError(f"the head {type(estimator.head_).__name__} has no description but code; use joblib")
    arrays, meta["transformer"] = _describe(estimator.transformer_)
    return arrays | files.flatten("head", estimator.head_._asdict()), meta


def _rebuild(arrays: dict[str, Tensor], meta: dict[str, Any]):
    params = {name: _unparam(value) for name, value in meta["params"].items()}
    estimator = ESTIMATORS[meta["class"]](**params)
    for name, value in meta["fitted"].items():
        if name not in FITTED:
            raise ValueError(f"unknown attribute {name!r}")
        setattr(estimator, name, value)
    estimator.history_ = [EpochRecord(**record) for record in meta["history"]]
    for name in ("classes_", "feature_names_in_"):
        if name in meta:
            setattr(estimator, name, np.array(meta[name]["values"], dtype=meta[name]["dtype"]))
    if isinstance(estimator, LearnedMap):
        estimator.feature_map_ = _rebuild_map(files.branch("map", arrays), meta["map"]).requires_grad_(False)
        estimator._set_attributes(estimator.feature_map_)
    else:
        estimator.transformer_ = _rebuild(arrays, meta["transformer"])
        estimator.head_ = LinearModel(**files.branch("head", arrays))
    return estimator


def _param(name: str, value: Any) -> Any:
    if isinstance(value, Trainer):
        return {"trainer": asdict(value)}
    if isinstance(value, LearnedMap) and type(value).__name__ in ESTIMATORS:
        inner = {key: _param(key, v) for key, v in value.get_params(deep=False).items()}
        return {"estimator": type(value).__name__, "params": inner}
    if isinstance(value, Kernel):
        return {"kernel": _describe_kernel(value), "metric": value.metric.tolist()}
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, np.random.RandomState):
        return None
    if value is None or isinstance(value, bool | int | float | str | list | tuple | dict):
        return value
    raise TypeError(f"the parameter {name}={value!r} has no description but code; use joblib")


def _unparam(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    if "trainer" in value:
        return Trainer(**value["trainer"])
    if "estimator" in value:
        return ESTIMATORS[value["estimator"]](**{key: _unparam(v) for key, v in value["params"].items()})
    if "kernel" in value:
        return _rebuild_kernel(torch.tensor(value["metric"]), value["kernel"])
    return value


def _describe_kernel(kernel: Kernel) -> dict[str, Any]:
    names = {cls: name for name, cls in KERNELS.items()}
    if type(kernel) not in names:
        raise TypeError(f"the kernel {type(kernel).__name__} has no description but code; use joblib")
    options = {name: getattr(kernel, name) for name in OPTIONS if hasattr(kernel, name)}
    return {"name": names[type(kernel)], "options": options, "trainable": kernel.metric.requires_grad}


def _rebuild_kernel(metric: Tensor, description: dict[str, Any]) -> Kernel:
    if not set(description["options"]) <= set(OPTIONS):
        raise ValueError(f"unknown kernel options {description['options']}")
    kernel = KERNELS[description["name"]](torch.ones_like(metric), **description["options"])
    kernel.metric = torch.nn.Parameter(metric, requires_grad=bool(description["trainable"]))
    return kernel


def _describe_map(feature_map: FeatureMap) -> dict[str, Any]:
    if isinstance(feature_map, Nystroem):
        return {"class": "Nystroem", "kernel": _describe_kernel(feature_map.kernel), "rank": feature_map.rank}
    return {"class": "RandomFourier"}


def _rebuild_map(arrays: dict[str, Tensor], description: dict[str, Any]) -> FeatureMap:
    if description["class"] == "RandomFourier":
        return RandomFourier(arrays["frequencies"], arrays["phases"])
    kernel = _rebuild_kernel(arrays["kernel.metric"], description["kernel"])
    return Nystroem(arrays["landmarks"], kernel, description["rank"])
