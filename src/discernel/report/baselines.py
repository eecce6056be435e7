"""What a model is to be compared with: simple ones, fitted on the same rows where those are at hand."""

from collections.abc import Iterator
from typing import Any

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


def compared(model: Any, source: Source, train: Source | None) -> Iterator[tuple[str, Said]]:
    """Yield what each baseline says of the rows of `source`.

    Fitted on `train`, or without it by cross-validation on the rows of `source` themselves.
    """
    if train is not None:
        x, y = rows_of(train, ROWS)
        for name, baseline in baselines(model).items():
            yield name, say(baseline.fit(x, y), source)._replace(probabilities=None)
        return
    x, y = rows_of(source, ROWS)
    for name, baseline in baselines(model).items():
        yield name, Said(y, cross_val_predict(baseline, x, y, cv=min(FOLDS, len(x))), None)
