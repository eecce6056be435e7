"""What classifier and regressor share: a learned feature map, and a head on it."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin, clone
from sklearn.model_selection import train_test_split
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, has_fit_parameter, validate_data

from discernel import checks
from discernel.data import Source
from discernel.estimators.inputs import ROWS, Rows
from discernel.estimators.learned import LearnedMap
from discernel.estimators.transformers import LearnedFastfood, LearnedFourier, LearnedNystroem
from discernel.heads import LinearModel
from discernel.training import moments_over

KINDS: dict[str, Any] = {"nystroem": LearnedNystroem, "fourier": LearnedFourier, "fastfood": LearnedFastfood}


class Predictor(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """What classifier and regressor share: a learned map, and a head on it."""

    _heads: tuple[str, ...]  # those with a name
    _suits: Callable[[Any], bool]  # whether an estimator can be the head

    def _check_parameters(self, weighted: bool) -> None:
        checks.boolean("early_stopping", self.early_stopping)
        checks.boolean("warm_start", self.warm_start)
        checks.positive_int("n_iter_no_change", self.n_iter_no_change)
        if not 0 < checks.number("validation_fraction", self.validation_fraction) < 1:
            raise ValueError(f"validation_fraction must be between 0 and 1, got {self.validation_fraction!r}")
        if isinstance(self.head, str):
            checks.one_of("head", self.head, self._heads)
            if isinstance(self.alpha, str) and self.head == "ridge":
                checks.one_of("alpha", self.alpha, ("gcv",))
            elif self.alpha is not None:
                checks.positive("alpha", self.alpha)
        elif isinstance(self.head, type) or not hasattr(self.head, "fit") or not self._suits(self.head):
            kind = self._suits.__name__.removeprefix("is_")
            raise TypeError(f"head must be one of {self._heads} or a scikit-learn {kind}, got {self.head!r}")
        elif weighted and not has_fit_parameter(self.head, "sample_weight"):
            raise TypeError(f"the head {type(self.head).__name__} takes no sample_weight: fit without weights")
        transformer = self._transformer(seed=0)
        transformer._check_parameters()
        if self._warm:
            self._check_continues(transformer)

    @property
    def _warm(self) -> bool:
        return self.warm_start and hasattr(self, "transformer_")

    def _fit_map(self, rows: Rows) -> None:
        """Learn the features of validated rows."""
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        transformer = self._transformer(seed)
        warm, before = self._warm, self.history_ if self._warm else []
        if warm:
            for name in (name for name in vars(self.transformer_) if name.endswith("_") or name == "_trained"):
                setattr(transformer, name, getattr(self.transformer_, name))
        for name in ("n_features_in_", "feature_names_in_"):
            if hasattr(self, name):
                setattr(transformer, name, getattr(self, name))
        rows, held_out = self._split(rows, seed) if self.early_stopping else (rows, None)
        self.transformer_ = transformer._train(rows, held_out, self.n_iter_no_change, resume=warm)
        self.history_ = [*before, *(dataclasses.replace(r, epoch=r.epoch + len(before)) for r in transformer.history_)]
        self.n_iter_ = len(self.history_)

    def _split(self, rows: Rows, seed: int) -> tuple[Rows, Rows]:
        """Return the rows to train on and those to hold out, with the same share of each class."""
        share, strata = self.validation_fraction, rows.y if rows.targets.kind == "classes" else None
        index = np.arange(len(rows.targets))
        try:
            train, rest = train_test_split(index, test_size=share, random_state=seed, stratify=strata)
        except ValueError as error:
            raise ValueError(
                f"early_stopping cannot hold out validation_fraction={share} of the rows: {error}"
            ) from error
        return rows.take(train), rows.take(rest)

    def _transformer(self, seed: int) -> LearnedMap:
        if not isinstance(self.feature_map, str):
            if not isinstance(self.feature_map, LearnedMap):
                name = type(self.feature_map).__name__
                names = ", ".join(map(repr, KINDS))
                raise TypeError(f"feature_map must be {names} or a learned transformer; got {name}")
            transformer = clone(self.feature_map)
            return transformer if transformer.random_state is not None else transformer.set_params(random_state=seed)
        kind = KINDS[checks.one_of("feature_map", self.feature_map, KINDS)]
        learn = isinstance(self.gamma, str) and self.gamma == "learn"
        gamma = "scale" if learn and kind is not LearnedNystroem else self.gamma
        settings = {name: getattr(self, name) for name in ("rho", "trainer", "device", "verbose")}
        return kind(self.n_components, gamma=gamma, random_state=seed, **settings)

    def _check_continues(self, transformer: LearnedMap) -> None:
        """Refuse to go on from a map of another kind or size."""
        for what, of in (
            ("feature map", lambda each: type(each).__name__),
            ("n_components", lambda each: getattr(each, "n_components", None)),
        ):
            here, there = of(transformer), of(self.transformer_)
            if here != there:
                raise ValueError(f"warm_start goes on from the last fit, whose {what} is {there}, but now it is {here}")

    def _ridge(self, source: Source) -> LinearModel:
        """Fit the exact ridge head on the basis in one pass; its ρ that of the criterion unless `alpha` says."""
        feature_map = self.transformer_._placed()
        moments, gram = moments_over(source, feature_map), feature_map.gram()
        if self.alpha == "gcv":
            self.alpha_ = moments.best_rho(gram)
        else:
            self.alpha_ = float(self.transformer_.rho if self.alpha is None else self.alpha)
        ridge = moments.ridge(self.alpha_, gram)
        return LinearModel(ridge.weights.cpu(), ridge.intercept.cpu())

    def _fit_head(self, rows: Rows) -> Any:
        """Return the scikit-learn head fitted on the features."""
        given = {} if rows.weight is None else {"sample_weight": rows.weight}
        return clone(self.head).fit(self.transformer_._features(rows.X), rows.y, **given)

    def _scores(self, X) -> np.ndarray:
        """Return the scores of a linear head; `X` is validated."""
        feature_map = self.transformer_._placed()
        with torch.no_grad():
            parts = [self.head_.scores(feature_map.basis(x)).cpu() for x in self.transformer_._chunks(X)]
        return torch.cat(parts).numpy().astype(X.dtype, copy=False)

    def _of_head(self, method: str, X) -> np.ndarray:
        """Return what a method of a scikit-learn head says of the rows."""
        return getattr(self.head_, method)(self.transformer_._features(self._validated(X)))

    def _validated(self, X):
        check_is_fitted(self)
        return validate_data(self, X, reset=False, **ROWS)

    def transform(self, X):
        """Return the learned features φ(X), n×J."""
        return self.transformer_._features(self._validated(X))

    @property
    def _n_features_out(self) -> int:
        return self.transformer_._n_features_out

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags
