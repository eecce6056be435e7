"""What classifier and regressor share: a learned feature map, and a head on it."""

import copy
import dataclasses
import time
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin, clone
from sklearn.model_selection import train_test_split
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, has_fit_parameter

from discernel import checks
from discernel.data import Source
from discernel.distributed import agreed
from discernel.estimators.cost import PILOT_ROWS, WORKSPACE, Cost
from discernel.estimators.inputs import CHUNK, ROWS, TRAINING_ROWS, Rows, finite, unless_it_fails, weights
from discernel.estimators.learned import LearnedMap
from discernel.estimators.progress import spinning
from discernel.estimators.sources import adopt, check, forget, training_targets, validated, weight_of
from discernel.estimators.stream import Stream, next_trainer
from discernel.estimators.transformers import LearnedFastfood, LearnedFourier, LearnedNystroem
from discernel.feature_maps import FeatureMap
from discernel.heads import HESSIANS, LinearModel
from discernel.run import moments_over
from discernel.targets import Targets
from discernel.training import Trainer

KINDS: dict[str, Any] = {"nystroem": LearnedNystroem, "fourier": LearnedFourier, "fastfood": LearnedFastfood}
AUTO, USUAL, RIVAL = "auto", "nystroem", "fourier"  # "auto" decides between the two, by a trial on some of the rows
TRIAL_ROWS, TRIAL_COMPONENTS, TRIAL_EPOCHS = 10_000, 100, 20
TRIAL_GAIN = 0.05  # share of the error on held-out rows by which the rival has to be better
CACHE_BYTES = 2**31  # features kept for the passes of an iterative head; above that they are computed anew
HEAD_ROWS = 20_000  # that a head other than ridge is fitted on to be scored after an epoch


def kind_of(transformer: LearnedMap | None) -> str | None:
    """Return the name of a transformer's map, if it has one."""
    return next((name for name, each in KINDS.items() if type(transformer) is each), None)


class Predictor(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """What classifier and regressor share: a learned map, and a head on it."""

    _heads: tuple[str, ...]  # those with a name
    _suits: Callable[[Any], bool]  # whether an estimator can be the head
    _kinds: tuple[str, ...]  # of targets

    # What the subclasses say of their targets.
    @abstractmethod
    def _read(self, X, y, *, reset: bool, rows: dict[str, Any]) -> tuple[Any, np.ndarray]:
        """Return validated rows and targets; with `reset`, those that decide which features there are."""

    @abstractmethod
    def _learn_targets(self, y: np.ndarray) -> None:
        """Remember which targets there are."""

    @abstractmethod
    def _declare(self, y: np.ndarray, classes: Any, begins: bool) -> None:
        """Remember, if a stream begins, which targets there will be; refuse others later."""

    @abstractmethod
    def _targets(self, y: np.ndarray) -> Targets:
        """Return the targets, of which only those that there were in the fit are allowed."""

    @abstractmethod
    def _known(self, targets: Targets) -> Targets:
        """Return the targets of a source, if they are such as there were in the fit."""

    @abstractmethod
    def _fit_head(self, rows: Rows) -> None:
        """Fit the head on the features."""

    def fit(self, X, y=None, sample_weight=None, *, X_val=None, y_val=None, sample_weight_val=None):
        """Learn the features and the head.

        Parameters
        ----------
        X : array, data frame, CSR matrix (n, d) or Source
            The data; float32 takes half the time of float64. A `Source` has its own targets and weights, and may be
            larger than memory.
        y : array (n,) or (n, L)
            For a classifier the class of each row, or an indicator matrix of labels; for a regressor one or many
            targets.
        sample_weight : array (n,), optional
            How often each row counts.
        X_val, y_val, sample_weight_val : arrays or Source, optional
            Rows to stop by, in place of a share of `X`: as with ``early_stopping=True``, training stops when the
            head's score on them no longer improves. The head is fitted on `X` alone.
        """
        with unless_it_fails(self):
            rows = self._training_rows(X, y, sample_weight)
            held_out = self._held_out(X_val, y_val, sample_weight_val)
            for name in ("_stream", "n_samples_seen_"):  # of `partial_fit`
                self.__dict__.pop(name, None)
            return self._learn(rows, held_out, resume=self._warm)

    def estimate(self, X, y=None, sample_weight=None) -> Cost:
        """Return the time and the memory that `fit` would take here; a few steps are timed, nothing is changed.

        Where the map is to be chosen by a trial, that is made too.

        Parameters
        ----------
        X, y, sample_weight
            What `fit` is to be called with.

        Returns
        -------
        Cost
            With the fields `seconds`, `memory` (bytes beside the data) and `plan` (rows of a batch, steps of an epoch,
            epochs); printed, it is a sentence. Early stopping may end the training sooner.
        """
        pilot = clone(self).set_params(verbose=False)
        rows, seed = pilot._training_rows(X, y, sample_weight), pilot._seed()
        began = time.perf_counter()
        pilot.transformer_ = pilot._next_transformer(seed, pilot._decided(rows, seed))
        choosing = time.perf_counter() - began
        cost = pilot.transformer_._pilot(pilot._of_map(rows))
        n_rows = len(rows.targets)
        few = rows.spread(max(PILOT_ROWS, cost.plan.rows if cost.plan else 0))
        began = time.perf_counter()
        pilot._fit_head(few)
        per_row = (time.perf_counter() - began) / len(few.targets)
        seconds = choosing + cost.seconds + per_row * n_rows
        if cost.plan is not None and self.early_stopping:
            seconds += cost.plan.epochs * per_row * (n_rows if self.head == "ridge" else min(n_rows, HEAD_ROWS))
        return Cost(seconds, max(cost.memory, pilot._head_bytes(rows)), cost.plan)

    def _head_bytes(self, rows: Rows) -> int:
        """Return the memory of fitting the head: the features that it keeps, and a few matrices of their products."""
        n_rows, n_components, n_targets = len(rows.targets), self._n_features_out, rows.targets[:1].shape[1]
        kept = n_rows * n_components * rows.X.dtype.itemsize
        if isinstance(self.head, str):
            kept = kept if self.head != "ridge" and kept <= CACHE_BYTES else 0
            matrices = min(HESSIANS, n_targets * n_components**2) if self.head == "svm" else n_components**2
            kept += 3 * 8 * CHUNK + 4 * 8 * matrices  # of the SVM: what has changed, the sums before and after, a copy
        return kept + WORKSPACE

    def _training_rows(self, X, y, sample_weight) -> Rows:
        """Return the rows to be trained on, having checked everything and learned which targets there are."""
        self._check_parameters()
        if isinstance(X, Source):
            targets = training_targets(X, y, sample_weight)
            if targets.kind not in self._kinds:
                raise ValueError(
                    f"{type(self).__name__} needs {' or '.join(self._kinds)} to predict, but the source has "
                    f"{targets.kind}; TableSource has a `task`"
                )
            adopt(self, X, reset=not self._warm)
            self._learn_targets(np.asarray(targets.names) if targets.kind == "classes" else targets.raw(slice(0, 1)))
            return self._of_source(X)
        if not self._warm:
            forget(self)
        X, y = self._read(X, y, reset=not self._warm, rows=TRAINING_ROWS)
        self._learn_targets(y)
        return self._rows(X, y, sample_weight)

    def _go_on(self, X, y, sample_weight, classes=None):
        """Learn from a batch, and from the rows that are remembered of those before."""
        self._check_parameters()
        if self.early_stopping:
            raise ValueError("partial_fit holds no rows out: set early_stopping=False")
        if isinstance(X, Source):
            raise TypeError("partial_fit takes the arrays of a batch; a source is for fit, which reads it in batches")
        begins, fitted = not hasattr(self, "_stream"), hasattr(self, "transformer_")
        if fitted:
            self._check_continues(self._transformer(seed=0))
        X, y = self._read(X, y, reset=not fitted, rows=TRAINING_ROWS if begins else ROWS)
        self._declare(y, classes, begins)
        self._targets(y)  # raises an error if they are others than before
        stream = Stream(X, y, weights(X, sample_weight), len(y))
        stream = stream if begins else self._stream.joined(stream)
        rows = self._rows(stream.X, stream.y, stream.weight)
        resume, trainer = fitted and self.transformer_._complete, None
        if resume and not begins:
            trainer = next_trainer(self.transformer_._trainer(), stream, self.transformer_._plan(rows.targets))
        self._learn(rows, None, resume=resume, trainer=trainer, offset=0 if begins else stream.seen)
        plan = self.transformer_._plan(rows.targets)(len(rows.targets))
        stream = stream._replace(steps=stream.steps * resume + plan.steps * self.transformer_.n_iter_)
        self._stream = stream.remembered(len(y), np.random.default_rng([self._seed(), stream.seen]))
        self.n_samples_seen_ = stream.seen
        return self

    def _check_parameters(self) -> None:
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
        transformer = self._transformer(seed=0)
        transformer._check_parameters()
        if self._warm:
            self._check_continues(transformer)

    @property
    def _warm(self) -> bool:
        return self.warm_start and hasattr(self, "transformer_")

    def _rows(self, X, y: np.ndarray, sample_weight) -> Rows:
        """Return validated rows with their targets and weights, without those of weight zero."""
        return self._counted(Rows(X, y, self._targets(y), self._weights(X, y, sample_weight)))

    def _of_source(self, source: Source) -> Rows:
        """Return the rows of a source, without those of weight zero."""
        return self._counted(Rows(source, None, self._known(source.targets), self._source_weights(source)))

    def _counted(self, rows: Rows) -> Rows:
        weighted = rows.weight is not None
        if weighted and not isinstance(self.head, str) and not has_fit_parameter(self.head, "sample_weight"):
            raise TypeError(f"the head {type(self.head).__name__} takes no sample_weight: fit without weights")
        return rows.counted()

    def _weights(self, X, y: np.ndarray, sample_weight) -> np.ndarray | None:
        return weights(X, sample_weight)

    def _source_weights(self, source: Source) -> np.ndarray | None:
        return weight_of(source)

    def _held_out(self, X_val, y_val, sample_weight_val) -> Rows | None:
        """Return the validation set that was given, if it was."""
        if X_val is None and y_val is None:
            return None
        if isinstance(X_val, Source):
            training_targets(X_val, y_val, sample_weight_val)
            check(self, X_val)
            return self._of_source(X_val)
        if X_val is None or y_val is None:
            raise ValueError(f"{'X_val' if X_val is None else 'y_val'} is missing: a validation set needs both")
        X_val, y_val = self._read(X_val, y_val, reset=False, rows=ROWS)
        return self._rows(X_val, y_val, sample_weight_val)

    def _seed(self) -> int:
        return agreed(int(check_random_state(self.random_state).randint(2**31 - 1)))

    def _learn(
        self, rows: Rows, held_out: Rows | None, *, resume: bool, trainer: Trainer | None = None, offset: int = 0
    ):
        """Learn the features, then the head; the offset is to have other mini-batches in each of many calls."""
        seed, train = (self._seed() + offset) % (2**31 - 1), rows
        if held_out is None and self.early_stopping:
            train, held_out = self._split(rows, seed)
        self._fit_map(train, held_out, seed, resume, trainer)
        with spinning("fitting the head", shown=self.verbose):
            self._fit_head(rows)
        return self

    def _fit_map(
        self, rows: Rows, held_out: Rows | None, seed: int, resume: bool, trainer: Trainer | None = None
    ) -> None:
        """Learn the features, until rows that are held out are no longer predicted better."""
        kind = None if resume else self._decided(rows, seed)
        transformer, before = self._next_transformer(seed, kind), self.history_ if resume else []
        if resume:
            for name in (name for name in vars(self.transformer_) if name.endswith("_") or name == "_trained"):
                setattr(transformer, name, getattr(self.transformer_, name))

        validation = None if held_out is None else self._scorer(transformer, rows, held_out)
        patience = None if held_out is None else self.n_iter_no_change
        self.transformer_ = transformer._train(self._of_map(rows), resume, trainer, validation, patience)
        self.history_ = [*before, *(dataclasses.replace(r, epoch=r.epoch + len(before)) for r in transformer.history_)]
        self.n_iter_ = len(self.history_)

    def _decided(self, rows: Rows, seed: int) -> str | None:
        """Return which map to train if that is to be decided here: by a trial, if there are enough rows for one."""
        if self.feature_map != AUTO:
            return None
        if len(rows.targets) < TRIAL_ROWS:
            return USUAL
        few, order = rows.spread(TRIAL_ROWS), np.random.default_rng(seed).permutation(TRIAL_ROWS)
        if isinstance(few.X, Source):  # read them once
            few = few._replace(X=few.X.features(slice(None)).cpu().numpy())
        held_out, train = (few.take(np.sort(part)) for part in np.split(order, [TRIAL_ROWS // 5]))
        trainer = Trainer() if self.trainer is None else Trainer(**self.trainer.get_params())  # it keeps nothing
        epochs = TRIAL_EPOCHS if isinstance(trainer.max_epochs, str) else min(TRIAL_EPOCHS, trainer.max_epochs)
        trainer = dataclasses.replace(trainer, max_epochs=epochs)
        n_components = min(self.n_components, TRIAL_COMPONENTS)
        errors = {}
        with spinning("choosing the map", shown=self.verbose):
            for kind in (USUAL, RIVAL):
                trial = self._probe().set_params(feature_map=kind, n_components=n_components)
                trial.set_params(trainer=trainer, verbose=False)
                trial._fit_map(train, None, seed, resume=False)
                trial._fit_head(train)
                errors[kind] = 1 - trial.score(held_out.X, held_out.raw(), held_out.weight)
        return RIVAL if agreed(int(errors[RIVAL] < (1 - TRIAL_GAIN) * errors[USUAL])) else USUAL

    def _next_transformer(self, seed: int, kind: str | None = None) -> LearnedMap:
        """Return the transformer to be trained; it knows the features."""
        transformer = self._transformer(seed, kind)
        for name in ("n_features_in_", "feature_names_in_", "preprocessing_"):
            if hasattr(self, name):
                setattr(transformer, name, getattr(self, name))
        return transformer

    def _of_map(self, rows: Rows) -> Rows:
        """Return the rows with the targets that the features are learned for."""
        return rows

    def _scorer(self, transformer: LearnedMap, rows: Rows, held_out: Rows) -> Callable[[FeatureMap], float]:
        """Return the score on held-out rows of this estimator, as if the training of the map had ended."""
        few, probe = rows if self.head == "ridge" else rows.spread(HEAD_ROWS), self._probe()

        def score(feature_map: FeatureMap) -> float:
            probe.transformer_ = transformer._as_if_done(feature_map)
            probe._fit_head(few)
            return probe.score(held_out.X, held_out.raw(), held_out.weight)

        return score

    def _probe(self) -> Self:
        """Return a copy that may be fitted and scored on validated rows, which are plain arrays."""
        probe = copy.copy(self)
        probe.__dict__.pop("feature_names_in_", None)
        return probe

    def _split(self, rows: Rows, seed: int) -> tuple[Rows, Rows]:
        """Return the rows to train on and those to hold out, with the same share of each class."""
        share, codes = self.validation_fraction, rows.targets.data.cpu().numpy()
        strata = codes if rows.targets.kind == "classes" else None
        index = np.arange(len(rows.targets))
        try:
            train, rest = train_test_split(index, test_size=share, random_state=seed, stratify=strata)
        except ValueError as error:
            raise ValueError(
                f"early_stopping cannot hold out validation_fraction={share} of the rows: {error}"
            ) from error
        return rows.take(np.sort(train)), rows.take(np.sort(rest))  # in their order, as files are read

    def _transformer(self, seed: int, kind: str | None = None) -> LearnedMap:
        if not isinstance(self.feature_map, str):
            if not isinstance(self.feature_map, LearnedMap):
                name = type(self.feature_map).__name__
                names = ", ".join(map(repr, (AUTO, *KINDS)))
                raise TypeError(f"feature_map must be {names} or a learned transformer; got {name}")
            transformer = clone(self.feature_map)
            return transformer if transformer.random_state is not None else transformer.set_params(random_state=seed)
        if checks.one_of("feature_map", self.feature_map, (AUTO, *KINDS)) != AUTO:
            kind = self.feature_map
        elif kind is None:
            kind = kind_of(getattr(self, "transformer_", None)) or USUAL  # that of the last fit, to go on with it
        map_class = KINDS[kind]
        learn = isinstance(self.gamma, str) and self.gamma == "learn"
        gamma = "scale" if learn and map_class is not LearnedNystroem else self.gamma
        settings = {name: getattr(self, name) for name in ("rho", "trainer", "device", "verbose")}
        return map_class(self.n_components, gamma=gamma, random_state=seed, **settings)

    def _check_continues(self, transformer: LearnedMap) -> None:
        """Refuse to go on from a map of another kind or size."""
        for what, of in (
            ("feature map", lambda each: type(each).__name__),
            ("n_components", lambda each: getattr(each, "n_components", None)),
        ):
            here, there = of(transformer), of(self.transformer_)
            if here != there:
                raise ValueError(f"training goes on from the last fit, whose {what} is {there}, but now it is {here}")

    def _ridge(self, source: Source) -> LinearModel:
        """Fit the exact ridge head on the basis in one pass; its ρ that of the criterion unless `alpha` says."""
        feature_map = self.transformer_._placed()
        moments, gram = moments_over(source, feature_map), feature_map.gram()
        if self.alpha == "gcv":
            self.alpha_ = moments.best_rho(gram)
        else:
            self.alpha_ = float(self.transformer_.rho_ if self.alpha is None else self.alpha)
        ridge = moments.ridge(self.alpha_, gram)
        return LinearModel(ridge.weights.cpu(), ridge.intercept.cpu())

    def _other_head(self, rows: Rows) -> Any:
        """Return the scikit-learn head fitted on the features."""
        given = {} if rows.weight is None else {"sample_weight": rows.weight}
        return clone(self.head).fit(self.transformer_._features(rows.X), rows.raw(), **given)

    def _scores(self, X) -> np.ndarray:
        """Return the scores of a linear head; `X` is validated."""
        feature_map = self.transformer_._placed()
        with torch.no_grad():
            parts = [self.head_.scores(feature_map.basis(x)).cpu() for x in self.transformer_._chunks(X)]
        scores = torch.cat(parts)
        scores = X.everywhere(scores) if isinstance(X, Source) else scores
        with np.errstate(over="ignore"):  # of which `finite` tells
            return finite("the scores", scores.numpy().astype(X.dtype, copy=False))

    def _of_head(self, method: str, X) -> np.ndarray:
        """Return what a method of a scikit-learn head says of the rows."""
        return getattr(self.head_, method)(self.transformer_._features(self._validated(X)))

    def _validated(self, X):
        check_is_fitted(self)
        return validated(self, X)

    def transform(self, X):
        """Return the learned features φ(X), n×J."""
        X = self._validated(X)
        return self.transformer_._features(X)

    @property
    def _n_features_out(self) -> int:
        return self.transformer_._n_features_out

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags
