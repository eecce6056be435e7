"""What a model is to be compared with: simple ones, fitted on the same rows where those are at hand."""

from typing import Any

import numpy as np
from sklearn.dummy import DummyClassifier, DummyRegressor
from sklearn.linear_model import Ridge, RidgeClassifier
from sklearn.model_selection import cross_val_predict

from discernel.data import Source
from discernel.estimators import DiscernelClassifier, DiscernelRegressor, LearnedNystroem
from discernel.evaluation import Said, rows_of, say

ROWS = 100_000  # that baselines are fitted on at most
FOLDS = 5


def baselines(model: DiscernelClassifier | DiscernelRegressor) -> dict[str, Any]:
    """Return simple estimators of the same task by name."""
    count = model.transformer_._n_features_out
    features = LearnedNystroem(count, criterion=None, gamma="scale", random_state=0)
    if hasattr(model, "classes_"):
        head = model.head if isinstance(model.head, str) else "ridge"
        return {
            f"{count} random landmarks (Std Nyström)": DiscernelClassifier(feature_map=features, head=head),
            "ridge on the raw features": RidgeClassifier(),
            "the most frequent class": DummyClassifier(),
        }
    return {
        f"{count} random landmarks (Std Nyström)": DiscernelRegressor(feature_map=features),
        "ridge on the raw features": Ridge(),
        "the mean": DummyRegressor(),
    }


def compared(model: Any, source: Source, train: Source | None) -> tuple[str, list[tuple[str, Said]]]:
    """Return how baselines were fitted, in words, and what each of them says of the rows of `source`.

    They are fitted on `train`, or without it by cross-validation on the rows of `source` themselves, if those suffice.
    """
    if train is not None:
        x, y = rows_of(train, ROWS)
        how = f"Baselines are fitted on the training rows (at most {ROWS:,} of them) and scored on the same rows."
        return how, [(name, _fitted(each, x, y, source)) for name, each in baselines(model).items()]
    x, y = rows_of(source, ROWS)
    folds = folds_of(y, hasattr(model, "classes_") and y.ndim == 1)
    if folds < 2:
        why = "the rows scored are too few, or of too few classes, to cross-validate baselines on"
        return f"There are no baselines: the training rows were not at hand, and {why}.", []
    how = f"The training rows were not at hand: baselines are cross-validated, {folds} folds, on the rows scored."
    others = baselines(model).items()
    return how, [(name, Said(y, cross_val_predict(each, x, y, cv=folds), None)) for name, each in others]


def _fitted(baseline: Any, x: np.ndarray, y: np.ndarray, source: Source) -> Said:
    return say(baseline.fit(x, y), source)._replace(probabilities=None)


def folds_of(y: np.ndarray, stratified: bool) -> int:
    """Return a number of folds of which any one can be left out and two rows, if stratified of two classes, are left.

    Less than two where there is none. Folds that are stratified take the rows of each class in turn, so that two rows
    outside the largest class are never in one fold.

    Examples
    --------
    >>> folds_of(np.array(["a", "a", "a", "b", "b"]), True), folds_of(np.array(["a", "a", "a", "b"]), True)
    (3, 0)
    """
    most = int(np.unique(y, return_counts=True)[1].max()) if stratified else len(y)
    enough = len(y) - most > 1 if stratified else most > 2
    return min(FOLDS, most) if enough else 0
