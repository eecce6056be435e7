"""The regressor: features learned for one or many targets, and a head on them."""

import torch
from sklearn.base import RegressorMixin, is_regressor
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from discernel.estimators.inputs import Rows, unless_it_fails
from discernel.estimators.predictor import Predictor
from discernel.estimators.sources import truth
from discernel.heads import LinearModel
from discernel.targets import Targets


class DiscernelRegressor(RegressorMixin, Predictor):
    """A regressor on kernel features that are learned by the Discriminant Information.

    The targets are standardised for the training of the features, so that each counts the same; the ridge head is
    fitted to them as they are.

    Parameters
    ----------
    n_components : int
        The number of features, J.
    feature_map : {"auto", "nystroem", "fourier", "fastfood"} or a learned transformer
        What is learned; see `DiscernelClassifier`.
    head : "ridge" or a scikit-learn regressor
        The model on the features.
    gamma : float, array, "scale", "median" or "learn"
        See `LearnedNystroem`.
    rho : float or "auto"
        The ridge penalty of the criterion; by default the best in generalised cross-validation on the features that
        training starts from. It is what keeps the features from learning the noise of the targets.
    alpha : float, "gcv" or None
        The penalty of the ridge head; by default ρ.
    trainer : Trainer, optional
        How the features are trained; by default ``Trainer()``.
    early_stopping, validation_fraction, n_iter_no_change, warm_start
        As of `DiscernelClassifier`.
    random_state : int, RandomState or None
        Decides the landmarks or frequencies and the mini-batches.
    device : str, optional
        Where to train; "auto" or None takes a GPU if there is one.
    verbose : bool
        Show a progress bar.

    Attributes
    ----------
    n_outputs_ : int
        The number of targets.
    transformer_, head_, alpha_, history_, n_iter_
        As of `DiscernelClassifier`.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.linspace(0, 6, 200)[:, None]
    >>> model = DiscernelRegressor(n_components=20, random_state=0).fit(x, np.sin(x[:, 0]))
    >>> round(model.score(x, np.sin(x[:, 0])), 3)
    1.0
    """

    _heads = ("ridge",)
    _suits = staticmethod(is_regressor)
    _kinds = ("values",)

    def __init__(
        self,
        n_components=100,
        *,
        feature_map="auto",
        head="ridge",
        gamma="learn",
        rho="auto",
        alpha=None,
        trainer=None,
        early_stopping=False,
        validation_fraction=0.1,
        n_iter_no_change=10,
        warm_start=False,
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
        self.random_state = random_state
        self.device = device
        self.verbose = verbose

    def partial_fit(self, X, y, sample_weight=None):
        """Learn from one more batch of a stream; see `DiscernelClassifier.partial_fit`.

        Parameters
        ----------
        X : array, data frame or CSR matrix (n, d)
            The batch.
        y : array (n,) or (n, L)
            One or many targets.
        sample_weight : array (n,), optional
            How often each row counts.
        """
        with unless_it_fails(self):
            return self._go_on(X, y, sample_weight)

    def _declare(self, y, classes, begins):
        if begins:
            self._learn_targets(y)

    def _read(self, X, y, *, reset, rows):
        return validate_data(self, X, y, reset=reset, multi_output=True, y_numeric=True, **rows)

    def _learn_targets(self, y):
        self._single, self.n_outputs_ = y.ndim == 1, 1 if y.ndim == 1 else y.shape[1]

    def _targets(self, y):
        return self._known(Targets.values(y))

    def _known(self, targets):
        if targets.n_targets != self.n_outputs_:
            raise ValueError(f"y must have {self.n_outputs_} targets for each row, got {targets.n_targets}")
        return targets

    def _of_map(self, rows):
        values, centre, spread = _standard(rows)
        return rows._replace(y=None, targets=Targets.values((values - centre) / spread))

    def _fit_head(self, rows):
        if not isinstance(self.head, str):
            self.head_ = self._other_head(rows)
            return
        _, centre, spread = _standard(rows)
        model = self._ridge(self._of_map(rows).source(self.transformer_._device()))
        self.head_ = LinearModel(model.weights * spread, model.intercept * spread + centre)

    def score(self, X, y=None, sample_weight=None):
        """Return R² on rows and their targets, or on a `Source`, which has its own."""
        return super().score(X, *truth(X, y, sample_weight))

    def predict(self, X):
        """Return the predicted targets, (n,) or (n, L) as they were in `fit`."""
        check_is_fitted(self)
        if not isinstance(self.head_, LinearModel):
            return self._of_head("predict", X)
        scores = self._scores(self._validated(X))
        return scores[:, 0] if self._single else scores

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


def _standard(rows: Rows) -> tuple[Tensor, Tensor, Tensor]:
    """Return the values of the targets, their means and their standard deviations, one where they do not vary."""
    values = rows.targets.data.double()
    w = torch.ones(len(values)).double() if rows.weight is None else torch.from_numpy(rows.weight).double()
    centre = w @ values / w.sum()
    spread = (w @ (values - centre).square() / w.sum()).sqrt()
    spread[spread <= 1e-14 * values.abs().amax(0)] = 1.0  # rounding, not variation
    return values, centre, spread
