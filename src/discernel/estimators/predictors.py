"""Classifier and regressor: a learned feature map and a linear head in one estimator."""

from typing import Any

import numpy as np
import torch
from sklearn.base import (
    BaseEstimator,
    ClassifierMixin,
    ClassNamePrefixFeaturesOutMixin,
    RegressorMixin,
    TransformerMixin,
    clone,
)
from sklearn.utils import check_random_state
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, column_or_1d, validate_data

from discernel import checks
from discernel.data import Source
from discernel.estimators.transformers import LearnedFourier, LearnedMap, LearnedNystroem, chunks, make_source
from discernel.heads import LinearModel, fit_linear, sum_of_variances, temperature
from discernel.targets import Targets
from discernel.training import moments_over

HEADS = ("ridge", "svm", "softmax")
PENALTIES = {"svm": 0.1, "softmax": 0.01}
CACHE_BYTES = 2**31  # features kept for the passes of an iterative head; above that they are computed anew
CALIBRATION_ROWS = 20_000


class Predictor(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """What classifier and regressor share: a learned map, and a head on it."""

    def _fit_map(self, X, targets: Targets, weight, y) -> None:
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        transformer = self._transformer(seed)
        transformer.n_features_in_ = self.n_features_in_
        self.transformer_ = transformer._fit(X, targets, weight, y)
        self.history_, self.n_iter_ = transformer.history_, transformer.n_iter_

    def _transformer(self, seed: int) -> LearnedMap:
        if not isinstance(self.feature_map, str):
            if not isinstance(self.feature_map, LearnedMap):
                name = type(self.feature_map).__name__
                raise TypeError(f"feature_map must be 'nystroem', 'fourier' or a learned transformer; got {name}")
            return clone(self.feature_map)
        kinds = {"nystroem": LearnedNystroem, "fourier": LearnedFourier}
        kind = kinds[checks.one_of("feature_map", self.feature_map, kinds)]
        learn = isinstance(self.gamma, str) and self.gamma == "learn"
        gamma = "scale" if learn and kind is LearnedFourier else self.gamma
        settings = {name: getattr(self, name) for name in ("rho", "trainer", "device", "verbose")}
        return kind(self.n_components, gamma=gamma, random_state=seed, **settings)

    def _ridge(self, source: Source) -> LinearModel:
        """Fit the exact ridge head on the basis in one pass; its ρ that of the criterion unless `alpha` says."""
        feature_map = self.transformer_.feature_map_
        moments, gram = moments_over(source, feature_map), feature_map.gram()
        if self.alpha == "gcv":
            self.alpha_ = moments.best_rho(gram)
        else:
            self.alpha_ = self.rho if self.alpha is None else checks.positive("alpha", self.alpha)
        ridge = moments.ridge(self.alpha_, gram)
        return LinearModel(ridge.weights, ridge.intercept)

    def _scores(self, X) -> np.ndarray:
        """Return the scores of a linear head; `X` is validated."""
        transformer = self.transformer_
        feature_map = transformer.feature_map_.to(transformer._device())
        with torch.no_grad():
            parts = [self.head_.scores(feature_map.basis(x)).cpu() for x in chunks(X, transformer)]
        return torch.cat(parts).numpy().astype(X.dtype, copy=False)

    def _validated(self, X):
        check_is_fitted(self)
        return validate_data(self, X, reset=False, accept_sparse="csr", dtype=[np.float64, np.float32])

    def transform(self, X):
        """Return the learned features φ(X), n×J."""
        return self.transformer_.transform(self._validated(X))

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags


class DiscernelClassifier(ClassifierMixin, Predictor):
    """A classifier on kernel features that are learned by the Discriminant Information.

    Parameters
    ----------
    n_components : int
        The number of features, J.
    feature_map : {"nystroem", "fourier"} or a learned transformer
        What is learned. A transformer (`LearnedNystroem`, ...) brings its own settings; `n_components`, `gamma`,
        `rho` and `trainer` are for the names.
    head : {"ridge", "svm", "softmax"} or a scikit-learn classifier
        The model on the features: least squares to the class indicators, exact, from one pass; linear SVMs with a
        squared hinge, one class against the rest, as in the paper; softmax regression; or any classifier.
    gamma : float, array, "scale", "median", "cv" or "learn"
        See `LearnedNystroem`; for "fourier", whose frequencies carry their own metric, "learn" is "scale".
    rho : float
        The ridge penalty of the criterion.
    alpha : float, "gcv" or None
        The penalty of the head: ρ of "ridge", by default that of the criterion, or chosen by generalised
        cross-validation ("gcv", which does not see that the features were learned from the same rows); 1/C of "svm"
        and "softmax" in units of the total variance of the features (which learning may make much smaller than one),
        by default 0.1 and 0.01. For the absolute C of the paper, give ``head=LinearSVC(C=1)``.
    trainer : Trainer, optional
        How the features are trained; by default ``Trainer()``.
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
        What is known of each epoch.
    n_iter_ : int
        The number of epochs.

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

    def __init__(
        self,
        n_components=100,
        *,
        feature_map="nystroem",
        head="ridge",
        gamma="learn",
        rho=1e-4,
        alpha=None,
        trainer=None,
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
        self.class_weight = class_weight
        self.random_state = random_state
        self.device = device
        self.verbose = verbose

    def fit(self, X, y, sample_weight=None):
        """Learn the features and the head.

        Parameters
        ----------
        X : array, data frame or CSR matrix (n, d)
            The data; float32 takes half the time of float64.
        y : array (n,) or (n, L)
            A class for each sample, or an indicator matrix of labels.
        sample_weight : array (n,), optional
            How often each row counts.
        """
        if isinstance(self.head, str):
            checks.one_of("head", self.head, HEADS)
        X, y = validate_data(
            self, X, y, accept_sparse="csr", dtype=[np.float64, np.float32], multi_output=True, ensure_min_samples=2
        )
        check_classification_targets(y)
        self._multilabel = type_of_target(y) == "multilabel-indicator"
        y = y if self._multilabel else column_or_1d(y, warn=True)
        targets = Targets.labels(y) if self._multilabel else Targets.classes(y)
        self.classes_: Any = np.arange(y.shape[1]) if self._multilabel else targets.names
        self._threshold = 0.5 if self._multilabel and self.head == "ridge" else 0.0  # between a label's 0 and 1
        weight = self._weights(X, y, sample_weight)
        self._fit_map(X, targets, weight, y)
        if not isinstance(self.head, str):
            given = {} if weight is None else {"sample_weight": weight}
            self.head_ = clone(self.head).fit(self.transformer_.transform(X), y, **given)
            return self
        source = make_source(X, targets, weight, self.transformer_._device())
        self.head_ = self._ridge(source) if self.head == "ridge" else self._iterative(source, targets)
        self._calibrate(source)
        return self

    def _weights(self, X, y, sample_weight):
        weight = None if sample_weight is None else _check_sample_weight(sample_weight, X, dtype=X.dtype)
        if self.class_weight is None:
            return weight
        by_class = compute_sample_weight(self.class_weight, y).astype(X.dtype)
        return by_class if weight is None else by_class * weight

    def _iterative(self, source: Source, targets: Targets) -> LinearModel:
        """Fit an SVM or softmax head on φ, and return it as a model that is linear in the basis."""
        feature_map = self.transformer_.feature_map_
        self.alpha_ = PENALTIES[self.head] if self.alpha is None else checks.positive("alpha", self.alpha)
        loss = "logistic" if self.head == "softmax" and targets.kind == "labels" else self.head
        width = self.transformer_._n_features_out
        rows = max(1, 2**22 // width)

        def passes():
            with torch.no_grad():
                for batch in source.batches(rows):
                    yield feature_map(batch.x), batch.targets, batch.sample_weight

        fits = len(source) * width * 8 <= CACHE_BYTES
        kept = list(passes()) if fits else None
        again = passes if kept is None else lambda: kept
        variance = sum_of_variances(again())
        model = fit_linear(again, loss, C=1 / (self.alpha_ * variance))
        turn = getattr(feature_map, "normalization", None)
        return model if turn is None else LinearModel(turn().double() @ model.weights, model.intercept)

    def _calibrate(self, source: Source) -> None:
        """Find the temperature of the probabilities on (at most 20000 of) the training rows."""
        count = min(len(source), CALIBRATION_ROWS)
        batch = source.rows(torch.arange(count) * len(source) // count)
        with torch.no_grad():
            scores = self.head_.scores(self.transformer_.feature_map_.basis(batch.x)) - self._threshold
        self._temperature = temperature(scores, batch.targets, batch.sample_weight, independent=self._multilabel)

    def decision_function(self, X):
        """Return the scores of the classes, n×L; for two classes, (n,), positive for the second."""
        X = self._validated(X)
        if not isinstance(self.head_, LinearModel):
            return self.head_.decision_function(self.transformer_.transform(X))
        scores = self._scores(X) - self._threshold
        return scores if self._multilabel or len(self.classes_) > 2 else scores[:, 1] - scores[:, 0]

    def predict(self, X):
        """Return the class of each row, or the indicator matrix of its labels."""
        check_is_fitted(self)
        if not isinstance(self.head_, LinearModel):
            return self.head_.predict(self.transform(X))
        scores = self.decision_function(X)
        if self._multilabel:
            return (scores > 0).astype(int)
        return self.classes_[(scores > 0).astype(int) if scores.ndim == 1 else scores.argmax(1)]

    def predict_proba(self, X):
        """Return the probabilities of the classes, n×L.

        Those of a softmax (for labels, a sigmoid) of the scores times a temperature, which is the one of greatest
        likelihood on the training rows. For held-out calibration wrap the classifier in CalibratedClassifierCV.
        """
        check_is_fitted(self)
        if not isinstance(self.head_, LinearModel):
            return self.head_.predict_proba(self.transform(X))
        scores = self._temperature * torch.from_numpy(self._scores(self._validated(X)) - self._threshold)
        return (torch.sigmoid(scores) if self._multilabel else torch.softmax(scores, 1)).numpy()

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        return tags


class DiscernelRegressor(RegressorMixin, Predictor):
    """A regressor on kernel features that are learned by the Discriminant Information.

    The targets are standardised for the training of the features, so that each counts the same; the ridge head is
    fitted to them as they are.

    Parameters
    ----------
    n_components : int
        The number of features, J.
    feature_map : {"nystroem", "fourier"} or a learned transformer
        What is learned; see `DiscernelClassifier`.
    head : "ridge" or a scikit-learn regressor
        The model on the features.
    gamma : float, array, "scale", "median" or "learn"
        See `LearnedNystroem`.
    rho : float
        The ridge penalty of the criterion.
    alpha : float, "gcv" or None
        The penalty of the ridge head; by default ρ.
    trainer : Trainer, optional
        How the features are trained; by default ``Trainer()``.
    random_state : int, RandomState or None
        Decides the landmarks or frequencies and the mini-batches.
    device : str, optional
        Where to train; "auto" or None takes a GPU if there is one.
    verbose : bool
        Show a progress bar.

    Attributes
    ----------
    transformer_, head_, alpha_, history_, n_iter_
        As of `DiscernelClassifier`.

    Examples
    --------
    >>> x = np.linspace(0, 6, 200)[:, None]
    >>> model = DiscernelRegressor(n_components=20, random_state=0).fit(x, np.sin(x[:, 0]))
    >>> round(model.score(x, np.sin(x[:, 0])), 3)
    1.0
    """

    def __init__(
        self,
        n_components=100,
        *,
        feature_map="nystroem",
        head="ridge",
        gamma="learn",
        rho=1e-4,
        alpha=None,
        trainer=None,
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
        self.random_state = random_state
        self.device = device
        self.verbose = verbose

    def fit(self, X, y, sample_weight=None):
        """Learn the features and the head.

        Parameters
        ----------
        X : array, data frame or CSR matrix (n, d)
            The data; float32 takes half the time of float64.
        y : array (n,) or (n, L)
            One or many targets.
        sample_weight : array (n,), optional
            How often each row counts.
        """
        if isinstance(self.head, str):
            checks.one_of("head", self.head, ("ridge",))
        X, y = validate_data(
            self, X, y, accept_sparse="csr", dtype=[np.float64, np.float32], multi_output=True, y_numeric=True
        )
        weight = None if sample_weight is None else _check_sample_weight(sample_weight, X, dtype=X.dtype)
        self._single = y.ndim == 1
        y = y.reshape(len(y), -1).astype(X.dtype)
        centre = np.average(y, axis=0, weights=weight)
        spread = np.sqrt(np.average((y - centre) ** 2, axis=0, weights=weight))
        self._fit_map(X, Targets.values((y - centre) / np.where(spread > 0, spread, 1)), weight, None)
        if isinstance(self.head, str):
            self.head_ = self._ridge(make_source(X, Targets.values(y), weight, self.transformer_._device()))
        else:
            given = {} if weight is None else {"sample_weight": weight}
            self.head_ = clone(self.head).fit(self.transformer_.transform(X), y[:, 0] if self._single else y, **given)
        return self

    def predict(self, X):
        """Return the predicted targets, (n,) or (n, L) as they were in `fit`."""
        X = self._validated(X)
        if not isinstance(self.head_, LinearModel):
            return self.head_.predict(self.transformer_.transform(X))
        scores = self._scores(X)
        return scores[:, 0] if self._single else scores

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags
