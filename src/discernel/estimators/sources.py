"""Sources and tables where scikit-learn has arrays: what `fit` takes from them, and what `predict` accepts."""

import os
from typing import Any

import numpy as np
from sklearn.utils.validation import validate_data

from discernel.data import Source
from discernel.estimators.inputs import ROWS
from discernel.tables import TableSource
from discernel.targets import Targets


def adopt(estimator: Any, source: Source, reset: bool) -> None:
    """Let an estimator know the features of a source; unless `reset`, those must be the ones it knows already."""
    if source.features(slice(0, 1)).ndim != 2:
        raise ValueError("a source for an estimator must have a vector for each row")
    if not reset:
        check(estimator, source)
        return
    forget(estimator)
    estimator.__dict__.pop("feature_names_in_", None)
    estimator.n_features_in_ = source.width
    if source.preprocessing is not None:
        estimator.preprocessing_ = source.preprocessing


def forget(estimator: Any) -> None:
    """Drop what an earlier fit on a table has left."""
    estimator.__dict__.pop("preprocessing_", None)


def check(estimator: Any, source: Source) -> None:
    """Refuse a source whose features are not those that an estimator was fitted on."""
    if source.width != estimator.n_features_in_:
        raise ValueError(
            f"the source has {source.width} features, but {type(estimator).__name__} was fitted on "
            f"{estimator.n_features_in_}"
        )
    known = getattr(estimator, "preprocessing_", None)
    if known is not None and source.preprocessing not in (None, known):
        raise ValueError(
            "the table was not preprocessed as the training data were: give TableSource the model's own, "
            "preprocessing=model.preprocessing_"
        )


def validated(estimator: Any, X: Any) -> Any:
    """Return rows to predict: arrays as scikit-learn validates them, or a source.

    A path, a data frame or an Arrow table goes through the preprocessing of an estimator that was fitted on a table.
    """
    path = isinstance(X, str | os.PathLike)
    if path and not hasattr(estimator, "preprocessing_"):
        raise ValueError(f"{X} is a path, but the model was fitted on arrays and knows no columns: fit a TableSource")
    if (path or hasattr(X, "__arrow_c_stream__")) and hasattr(estimator, "preprocessing_"):
        X = TableSource(X, preprocessing=estimator.preprocessing_)
    if not isinstance(X, Source):
        return validate_data(estimator, X, reset=False, **ROWS)
    check(estimator, X)
    return X


def training_targets(source: Source, y: Any, sample_weight: Any) -> Targets:
    """Return the targets of a source, which has its own and its own weights."""
    if y is not None or sample_weight is not None:
        raise ValueError("a source has its own targets and weights: give no y and no sample_weight with it")
    if not source.has_targets:
        raise ValueError("the source has no targets: name the column, TableSource(..., target=...)")
    return source.targets


def weight_of(source: Source) -> np.ndarray | None:
    """Return the weights of a source's rows as an array."""
    return None if source.sample_weight is None else source.sample_weight.cpu().numpy()


def truth(X: Any, y: Any, sample_weight: Any) -> tuple[Any, Any]:
    """Return the targets and weights to score by: those given, or those of a source."""
    if y is not None:
        return y, sample_weight
    if not isinstance(X, Source):
        raise ValueError("score needs y, or a source, which has its own targets")
    return training_targets(X, None, sample_weight).raw(), weight_of(X)
