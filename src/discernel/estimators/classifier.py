"""The classifier: features learned for classes or labels, and a head on them."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from sklearn.base import ClassifierMixin, is_classifier
from sklearn.utils import get_tags
from sklearn.utils.class_weight import compute_class_weight, compute_sample_weight
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data

from discernel.data import Source
from discernel.estimators.inputs import dense, unless_it_fails, weights
from discernel.estimators.predictor import CACHE_BYTES, Predictor
from discernel.estimators.sources import truth, weight_of
from discernel.heads import LinearModel, fit_linear, sum_of_variances, temperature
from discernel.targets import Targets

PENALTIES = {"svm": 0.1, "softmax": 0.01}
CALIBRATION_ROWS = 20_000


def if_head_has(method: str) -> Callable:
    """Let a method exist where the head has it; all heads with a name have."""

    def check(estimator: Predictor) -> bool:
        return isinstance(estimator.head, str) or hasattr(getattr(estimator, "head_", estimator.head), method)

    return available_if(check)


class DiscernelClassifier(ClassifierMixin, Predictor):
    """A classifier on kernel features that are learned by the Discriminant Information.

    Parameters
    ----------
    n_components : int
        The number of features, J.
    feature_map : {"auto", "nystroem", "fourier", "fastfood"} or a learned transformer
        What is learned. "auto" is "nystroem", unless a trial shows "fourier" to be better: with 10000 rows or more,
        both are trained on so many of them, 100 features for 20 epochs, and "fourier" is taken if it makes less than
        95% of the other's errors on a fifth that is held out. A transformer (`LearnedNystroem`, ...) brings its own
        settings; `n_components`, `gamma`, `rho`, `trainer`, `device` and `verbose` are for the names.
    head : {"svm", "ridge", "softmax"} or a scikit-learn classifier
        The model on the features: linear SVMs with a squared hinge, one class against the rest, as in the paper; least
        squares to the class indicators, exact, from one pass, the quickest; softmax regression; or any classifier.
    gamma : float, array, "scale", "median", "cv" or "learn"
        See `LearnedNystroem`; for "fourier" and "fastfood", whose frequencies carry their own metric, "learn" is
        "scale".
    rho : float or "auto"
        The ridge penalty of the criterion; see `LearnedNystroem`.
    alpha : float, "gcv" or None
        The penalty of the head: ρ of "ridge", by default that of the criterion, or chosen by generalised
        cross-validation ("gcv", which does not see that the features were learned from the same rows); 1/C of "svm"
        and "softmax" in units of the total variance of the features (which learning may make much smaller than one),
        by default 0.1 and 0.01. For the absolute C of the paper, give ``head=LinearSVC(C=1)``.
    trainer : Trainer, optional
        How the features are trained; by default ``Trainer()``.
    early_stopping : bool
        Hold out some of the rows, and stop when the head's own score on them, as `score` gives it, no longer improves.
        The best features are kept (of equally good ones the last), and the head is fitted on all rows. For the score
        the head is fitted after each epoch: "ridge" in one pass, others on at most 20000 rows. A validation set of
        your own can be given to `fit`, which then stops by it.
    validation_fraction : float
        The share of the rows that `early_stopping` holds out.
    n_iter_no_change : int
        For how many epochs the score may fail to improve before `early_stopping` stops.
    warm_start : bool
        Train on from the features of the last `fit`, instead of from new ones.
    class_weight : dict or "balanced", optional
        Weights of the classes, multiplied with the weights of the samples.
    random_state : int, RandomState or None
        Decides the landmarks or frequencies and the mini-batches.
    device : str, optional
        Where to train; "auto" or None takes a GPU if there is one.
    verbose : bool
        Show a progress bar.

    Attributes
    ----------
    classes_ : ndarray (L,)
        The classes.
    transformer_ : LearnedMap
        The learned features.
    head_ : LinearModel or a scikit-learn classifier
        The head. A `LinearModel` is linear in the map's basis, so that predicting takes two products.
    alpha_ : float
        The penalty of the head.
    history_ : list of EpochRecord
        What is known of each epoch; with `early_stopping` or a validation set also ``validation_score``, the score of
        the head on the rows held out.
    n_iter_ : int
        The number of epochs.
    n_samples_seen_ : int
        The number of rows given to `partial_fit`, if that is what has been called.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from sklearn.model_selection import train_test_split
    >>> X, y = load_digits(return_X_y=True)
    >>> X_train, X_test, y_train, y_test = train_test_split(X / 16, y, random_state=0)
    >>> model = DiscernelClassifier(n_components=50, random_state=0).fit(X_train, y_train)
    >>> model.score(X_test, y_test) > 0.97
    True
    """

    _heads = ("ridge", "svm", "softmax")
    _suits = staticmethod(is_classifier)
    _kinds = ("classes", "labels")

    def __init__(
        self,
        n_components=100,
        *,
        feature_map="auto",
        head="svm",
        gamma="learn",
        rho=1e-4,
        alpha=None,
        trainer=None,
        early_stopping=False,
        validation_fraction=0.1,
        n_iter_no_change=10,
        warm_start=False,
        class_weight=None,
        random_state=None,
        device=None,
        verbose=False,
    ):
        self.n_components = n_components
        self.feature_map = feature_map
        self.head = head
        self.gamma = gamma
        self.rho = rho
        self.alpha = alpha
        self.trainer = trainer
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
        self.warm_start = warm_start
        self.class_weight = class_weight
        self.random_state = random_state
        self.device = device
        self.verbose = verbose

    def partial_fit(self, X, y, classes=None, sample_weight=None):
        """Learn from one more batch of a stream.

        The first call is `fit` on its batch. A later one takes the batch together with the rows that are remembered of
        the stream (a uniform sample of all that have come, at most 20000), trains the features on from where they are,
        and fits the head anew. It takes the steps that `fit` would take on all rows so far, less those taken already,
        but at least an epoch, at a learning rate that falls with the root of their number. So nothing is forgotten,
        and in the end a stream is learned about as well as by `fit` (`benchmarks/stream.py`). A batch of ten rows costs
        about as much as one of a thousand.

        Rows that were given to `fit` are not remembered: after it, or after `load`, the features go on from where they
        are, but the head knows the rows of the stream alone. Pickle and joblib keep what is remembered, `save` does
        not.

        Parameters
        ----------
        X : array, data frame or CSR matrix (n, d)
            The batch. If the first has fewer distinct rows than there are to be landmarks, later calls start anew until
            there are enough.
        y : array (n,) or (n, L)
            The class of each row, or an indicator matrix of labels.
        classes : array (L,)
            All classes that may ever come; needed at the first call, unless `y` has labels or `fit` has seen them.
        sample_weight : array (n,), optional
            How often each row counts.
        """
        with unless_it_fails(self):
            return self._go_on(X, y, sample_weight, classes)

    def _declare(self, y, classes, begins):
        if begins and y.ndim == 2:
            self._learn_targets(y)
        elif begins and classes is not None:
            self._learn_targets(column_or_1d(classes))
        elif begins and not hasattr(self, "transformer_"):
            raise ValueError("classes, all that may ever come, must be given at the first call of partial_fit")
        elif classes is not None and not np.array_equal(np.unique(classes), self.classes_):
            raise ValueError(f"classes were declared as {self.classes_.tolist()}; now they are {list(classes)}")

    def _read(self, X, y, *, reset, rows):
        X, y = validate_data(self, X, y, reset=reset, multi_output=True, **rows)
        y = dense(y)
        check_classification_targets(y)
        return X, y if type_of_target(y) == "multilabel-indicator" else column_or_1d(y, warn=True)

    def _learn_targets(self, y):
        self.classes_: Any = np.arange(y.shape[1]) if y.ndim == 2 else Targets.classes(y).names
        self._multilabel = y.ndim == 2

    def _targets(self, y):
        self._check_labels(y.shape[1] if y.ndim == 2 else 0)
        return Targets.labels(y) if self._multilabel else Targets.classes(y, names=self.classes_)

    def _known(self, targets):
        self._check_labels(targets.n_targets if targets.kind == "labels" else 0)
        return targets if self._multilabel else targets.among(self.classes_)

    def _check_labels(self, here: int) -> None:
        there = len(self.classes_) if self._multilabel else 0
        if here != there:
            kinds = (f"an indicator matrix of {n} labels" if n else "one class for each row" for n in (there, here))
            raise ValueError("y must be {}, as it was before; got {}".format(*kinds))

    def _fit_head(self, rows):
        if not isinstance(self.head, str):
            self.head_ = self._other_head(rows)
            return
        rows = rows._replace(targets=dataclasses.replace(rows.targets, scale=None))  # that is for the features alone
        source = rows.source(self.transformer_._device())
        self._threshold = 0.5 if self._multilabel and self.head == "ridge" else 0.0  # between a label's 0 and 1
        self.head_ = self._ridge(source) if self.head == "ridge" else self._iterative(source)
        self._temperature = 1.0 if self.head == "softmax" else self._calibrate(source)

    def _weights(self, X, y, sample_weight) -> np.ndarray | None:
        weight = weights(X, sample_weight)
        if self.class_weight is None:
            return weight
        by_class = compute_sample_weight(self._weight_of_classes(np.unique(y)), y).astype(X.dtype)
        return by_class if weight is None else by_class * weight

    def _weight_of_classes(self, names: np.ndarray) -> Any:
        """Return `class_weight` for these of the classes: those that a dictionary does not name weigh one."""
        if self._multilabel or not isinstance(self.class_weight, dict):
            return self.class_weight
        every = compute_class_weight(self.class_weight, classes=self.classes_, y=self.classes_)
        known = dict(zip(self.classes_.tolist(), every, strict=True))
        return {name: known[name] for name in names.tolist()}

    def _source_weights(self, source):
        targets = source.targets
        if self.class_weight is None or targets.kind != "classes":
            return self._weights(source, None if self.class_weight is None else targets.raw(), weight_of(source))
        by_code = self._weight_of_classes(targets.names)
        if isinstance(by_code, dict):
            by_code = {code: by_code[name] for code, name in enumerate(targets.names.tolist())}
        by_class = compute_sample_weight(by_code, targets.data.cpu().numpy()).astype(source.dtype)
        return by_class if source.sample_weight is None else by_class * weight_of(source)

    def _iterative(self, source: Source) -> LinearModel:
        """Fit an SVM or softmax head on φ, and return it as a model that is linear in the basis."""
        feature_map = self.transformer_._placed()
        self.alpha_ = float(PENALTIES[self.head] if self.alpha is None else self.alpha)
        loss = "logistic" if self.head == "softmax" and self._multilabel else self.head
        width = self.transformer_._n_features_out
        rows = max(1, 2**22 // width)

        def passes():
            for batch in source.batches(rows):
                with torch.no_grad():  # and not around the yield: whoever takes the batch wants gradients
                    features = feature_map(batch.x)
                yield features, batch.targets, batch.sample_weight

        fits = len(source) * width * source.dtype.itemsize <= CACHE_BYTES
        kept = list(passes()) if fits else None
        again = passes if kept is None else lambda: kept
        variance = sum_of_variances(again(), source.total)
        model = fit_linear(again, loss, C=1 / (self.alpha_ * variance), total=source.total)
        turn = getattr(feature_map, "normalization", None)
        turned = model.weights if turn is None else turn().double() @ model.weights
        return LinearModel(turned.cpu(), model.intercept.cpu())

    def _calibrate(self, source: Source) -> float:
        """Return the temperature of the probabilities, found on (at most 20000 of) the training rows."""
        count = min(len(source), CALIBRATION_ROWS)
        batch = source.rows(torch.arange(count) * len(source) // count)
        with torch.no_grad():
            scores = self.head_.scores(self.transformer_._placed().basis(batch.x)) - self._threshold
        return temperature(scores, batch.targets, batch.sample_weight, independent=self._multilabel)

    def score(self, X, y=None, sample_weight=None):
        """Return the accuracy on rows and their classes, or on a `Source`, which has its own."""
        return super().score(X, *truth(X, y, sample_weight))

    @if_head_has("decision_function")
    def decision_function(self, X):
        """Return the scores of the classes, n×L; for two classes, (n,), positive for the second."""
        check_is_fitted(self)
        if not isinstance(self.head_, LinearModel):
            return self._in_columns(self._of_head("decision_function", X), -np.inf)
        scores = self._scores(self._validated(X)) - self._threshold
        return scores if self._multilabel or len(self.classes_) > 2 else scores[:, 1] - scores[:, 0]

    def _in_columns(self, values: Any, absent: float) -> Any:
        """Return what a scikit-learn head says of the classes in its rows with a column for each of `classes_`."""
        here = getattr(self.head_, "classes_", None)
        if self._multilabel or here is None or len(here) == len(self.classes_):
            return values
        values = np.stack([-values, values], 1) if values.ndim == 1 else values
        out = np.full((len(values), len(self.classes_)), absent, dtype=values.dtype)
        out[:, np.searchsorted(self.classes_, here)] = values
        return out

    def predict(self, X):
        """Return the class of each row, or the indicator matrix of its labels."""
        check_is_fitted(self)
        if not isinstance(self.head_, LinearModel):
            return self._of_head("predict", X)
        scores = self.decision_function(X)
        if self._multilabel:
            return (scores > 0).astype(int)
        return self.classes_[(scores > 0).astype(int) if scores.ndim == 1 else scores.argmax(1)]

    @if_head_has("predict_proba")
    def predict_proba(self, X):
        """Return the probabilities of the classes, n×L.

        Those of a softmax (for labels, a sigmoid) of the scores times a temperature. It is one for the "softmax" head;
        for the others it has the greatest likelihood on the training rows, with Platt's correction for their having
        been trained on. For held-out calibration wrap the classifier in CalibratedClassifierCV.
        """
        check_is_fitted(self)
        if not isinstance(self.head_, LinearModel):
            return self._in_columns(self._of_head("predict_proba", X), 0.0)
        scores = self._temperature * torch.from_numpy(self._scores(self._validated(X)) - self._threshold)
        return (torch.sigmoid(scores) if self._multilabel else torch.softmax(scores, 1)).numpy()

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        if not isinstance(self.head, str):
            of_head = get_tags(self.head).classifier_tags
            tags.classifier_tags.multi_label = of_head is not None and of_head.multi_label
        return tags
