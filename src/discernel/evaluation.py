"""What a fitted model says of a source of rows, and how right it is."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn import metrics

from discernel.data import Source
from discernel.estimators import DCA, DiscernelClassifier, DiscernelRegressor

ROWS = 2**14  # that are predicted at a time


class Said(NamedTuple):
    """Predictions, and the truth where the source has it."""

    y: np.ndarray
    predicted: np.ndarray
    probabilities: np.ndarray | None  # n×L, of a classifier


def batches(source: Source, advance: Callable[[int], None] = lambda rows: None) -> Iterator[np.ndarray]:
    """Yield the features of all rows of a source in their order, telling `advance` how many have been dealt with."""
    for batch in source.batches(ROWS):
        x = batch.x.cpu().numpy()
        yield x
        advance(len(x))


def rows_of(source: Source, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the features and targets of rows of a source, evenly spaced if there are more than `most`."""
    if len(source) <= most:
        return np.concatenate(list(batches(source))), source.targets.raw()
    index = torch.arange(most) * len(source) // most
    return source.features(index).cpu().numpy(), source.targets.raw(index)


def say(
    model: DiscernelClassifier | DiscernelRegressor, source: Source, advance: Callable[[int], None] = lambda rows: None
) -> Said:
    """Return what a model says of all rows of a source."""
    predicted, probabilities = [], []
    for x in batches(source, advance):
        predicted.append(model.predict(x))
        if hasattr(model, "predict_proba"):
            probabilities.append(model.predict_proba(x))
    both = np.concatenate(predicted), np.concatenate(probabilities) if probabilities else None
    return Said(source.targets.raw(), *both)


def scores(said: Said, classes: np.ndarray | None) -> dict[str, float]:
    """Return how right predictions are, the most telling score first; higher is better but for losses and errors.

    Parameters
    ----------
    said : Said
        The predictions.
    classes : ndarray or None
        Those of a classifier, to which the columns of the probabilities belong; None for regression.

    Examples
    --------
    >>> scores(Said(np.array([1.0, 2.0, 3.0]), np.array([1.0, 2.0, 4.0]), None), None)
    {'r2': 0.5, 'rmse': 0.577..., 'mae': 0.333...}
    """
    if classes is None:
        found = {"r2": metrics.r2_score(said.y, said.predicted)} if len(said.y) > 1 else {}  # one row has none
        found |= {
            "rmse": metrics.root_mean_squared_error(said.y, said.predicted),
            "mae": metrics.mean_absolute_error(said.y, said.predicted),
        }
    elif said.y.ndim == 2:
        found = {
            "f1_micro": metrics.f1_score(said.y, said.predicted, average="micro", zero_division=0.0),
            "f1_macro": metrics.f1_score(said.y, said.predicted, average="macro", zero_division=0.0),
            "subset_accuracy": metrics.accuracy_score(said.y, said.predicted),
        }
    else:
        found = _of_classes(said, classes)
    return {name: float(value) for name, value in found.items()}


def _of_classes(said: Said, classes: np.ndarray) -> dict[str, float]:
    present = np.unique(said.y)
    recalls = [np.mean(said.predicted[said.y == name] == name) for name in present]
    found = {
        "accuracy": metrics.accuracy_score(said.y, said.predicted),
        "balanced_accuracy": np.mean(recalls),
        "f1_macro": metrics.f1_score(said.y, said.predicted, average="macro", labels=present, zero_division=0.0),
    }
    if said.probabilities is not None and np.isin(present, classes).all():
        found["log_loss"] = metrics.log_loss(said.y, said.probabilities, labels=classes)
        if len(classes) == len(present) == 2:
            found["roc_auc"] = metrics.roc_auc_score(said.y == classes[1], said.probabilities[:, 1])
    return found


def plane(features: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return rows (n×2) in the two most discriminant directions of their features.

    Where there is but one, as for two classes or one number, the second is that of most variance in what it leaves; all
    zero if that is nothing but rounding.

    Examples
    --------
    >>> features = np.array([[0.0, 0.0], [0.0, 2.0], [1.0, 0.0], [1.0, 2.0]])
    >>> np.sign(plane(features, np.array([0, 0, 1, 1]))).prod(1)  # each corner in a quadrant of its own
    array([ 1., -1., -1.,  1.])
    """
    points = DCA().fit(features, y).transform(features)
    if points.shape[1] == 1:
        centred = features - features.mean(0)
        rest = centred - points @ (points.T @ centred) / (points.T @ points)
        rounding = 100 * np.finfo(rest.dtype).eps * np.linalg.norm(centred)
        second = DCA(1).fit(rest).transform(rest) if np.linalg.norm(rest) > rounding else np.zeros_like(points)
        points = np.c_[points, second]
    return points[:, :2]


def worst_confusions(counts: np.ndarray, classes: Any, top: int = 5) -> list[tuple[Any, Any, int, float]]:
    """Return the most frequent errors: true class, predicted class, how often, and the share of the true class.

    Examples
    --------
    >>> worst_confusions(np.array([[8, 2], [1, 9]]), ["a", "b"])
    [('a', 'b', 2, 0.2), ('b', 'a', 1, 0.1)]
    """
    errors = counts - np.diag(np.diag(counts))
    order = np.argsort(-errors, axis=None, kind="stable")[:top]
    cells = [divmod(int(cell), counts.shape[1]) for cell in order]
    return [
        (classes[i], classes[j], int(errors[i, j]), float(errors[i, j] / counts[i].sum()))
        for i, j in cells
        if errors[i, j]
    ]
