"""What `discernel plot` draws."""

from pathlib import Path
from typing import Any

import numpy as np

from discernel import plots
from discernel.checkpoint import whole
from discernel.data import Source
from discernel.estimators import feature_importance
from discernel.evaluation import plane, rows_of, say

SAMPLE = 3000  # dots of a picture


def draw(picture: str, estimator: Any, source: Any, out: Path, image: tuple[int, int] | None) -> None:
    """Draw a picture of an estimator into a file."""
    try:
        import matplotlib as mpl
    except ImportError as error:
        raise ImportError("drawing needs matplotlib: pip install 'discernel[plots]'") from error
    mpl.use("agg")
    import matplotlib.pyplot as plt

    figure = plt.figure(figsize=(6.4, 4.8), layout="constrained")
    if picture == "landmarks":
        _landmarks(figure, estimator, image)
    elif picture == "training":
        _training(figure.subplots(), estimator)
    else:
        {"importance": _importance, "components": _components, "confusion": _confusion}[picture](
            figure.subplots(), estimator, source
        )
    with whole(out) as temporary:
        figure.savefig(temporary, dpi=150, format=out.suffix[1:])
    plt.close(figure)


def _training(ax: Any, estimator: Any) -> None:
    if not getattr(estimator, "history_", []):
        raise ValueError("the model was not trained in epochs: there is no training to draw")
    plots.training_curve(ax, estimator.history_)


def _landmarks(figure: Any, estimator: Any, image: tuple[int, int] | None) -> None:
    transformer = getattr(estimator, "transformer_", estimator)
    if not hasattr(transformer, "components_"):
        raise ValueError("the model has no landmarks to draw")
    landmarks = transformer.components_
    if image is None:
        plots.landmark_profiles(figure.subplots(), landmarks, names_of(estimator))
        return
    if image[0] * image[1] != landmarks.shape[1]:
        raise ValueError(f"--image {image[0]}x{image[1]} does not make {landmarks.shape[1]} features")
    columns = min(10, len(landmarks))
    rows = min(10, -(-len(landmarks) // columns))
    plots.landmark_images(figure.subplots(rows, columns, squeeze=False), landmarks, image)


def names_of(estimator: Any) -> list[str] | None:
    """Return the names of the input features, if they have any."""
    if hasattr(estimator, "preprocessing_"):
        return estimator.preprocessing_.feature_names
    return list(getattr(estimator, "feature_names_in_", [])) or None


def _importance(ax: Any, estimator: Any, source: Source) -> None:
    plots.importance(ax, feature_importance(estimator, rows_of(source, SAMPLE)[0]), names_of(estimator))


def _components(ax: Any, estimator: Any, source: Source) -> None:
    x, y = rows_of(source, SAMPLE)
    if y.ndim > 1:
        raise ValueError("the components of several targets cannot be told apart by colours")
    told = y
    if source.targets.kind == "values":  # which, if they are whole, would be taken for classes
        told = (y - y.mean()) / (y.std() or 1.0)
    plots.components(ax, plane(estimator.transform(x), told), y)


def _confusion(ax: Any, estimator: Any, source: Source) -> None:
    from sklearn.metrics import confusion_matrix

    if not hasattr(estimator, "classes_") or source.targets.names is None:
        raise ValueError("only a classifier of one class a row has a confusion matrix")
    said = say(estimator, source)
    classes = np.union1d(estimator.classes_, np.unique(said.y))
    plots.confusion_matrix(ax, confusion_matrix(said.y, said.predicted, labels=classes), list(classes))
