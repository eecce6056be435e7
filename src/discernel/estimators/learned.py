"""What the learned transformers share: validate, train, transform."""

import copy
import dataclasses
import itertools
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin, clone
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from discernel import checks
from discernel.criteria import CE, DI, LS, Criterion
from discernel.data import Source
from discernel.distributed import agreed
from discernel.estimators.cost import PILOT_ROWS, PILOT_STEPS, Cost, bytes_of_training, seconds_of_training
from discernel.estimators.inputs import TRAINING_ROWS, Rows, chunks, dense, encode, finite, unless_it_fails, weights
from discernel.estimators.progress import tracked
from discernel.estimators.sources import adopt, forget, training_targets, validated, weight_of
from discernel.feature_maps import FeatureMap, width
from discernel.profiled import Profiled
from discernel.run import moments_over
from discernel.targets import Targets
from discernel.training import Plan, Trainer

CRITERIA = ("di", "ls", "ce", "profiled_ce", "profiled_svm")


class LearnedMap(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """What the learned transformers share: validate, train, transform. A subclass says which map to start from."""

    # What every subclass's constructor has.
    rho: float
    criterion: str | None
    trainer: Trainer | None
    random_state: Any
    device: str | None
    verbose: bool

    @abstractmethod
    def _start(self, source: Source, generator: torch.Generator) -> FeatureMap:
        """Return the map that training starts from."""

    def fit(self, X, y=None, sample_weight=None):
        """Learn the features.

        Parameters
        ----------
        X : array, data frame, CSR matrix (n, d) or Source
            The data. What is trained has its precision: float32 takes half the time of float64. A `Source` has its own
            targets and weights, and may be larger than memory.
        y : array (n,) or (n, L), optional
            Classes, an indicator matrix of labels, or regression targets; not needed if ``criterion=None``. Whole
            numbers are classes, one for each row: standardise a regression target that has no others.
        sample_weight : array (n,), optional
            How often each row counts.
        """
        with unless_it_fails(self):
            return self._train(self._training_rows(X, y, sample_weight))

    def estimate(self, X, y=None, sample_weight=None) -> Cost:
        """Return the time and the memory that `fit` would take here; a few steps are timed, nothing is changed.

        Parameters
        ----------
        X, y, sample_weight
            What `fit` is to be called with.
        """
        pilot = clone(self).set_params(verbose=False)
        return pilot._pilot(pilot._training_rows(X, y, sample_weight))

    def _training_rows(self, X, y, sample_weight) -> Rows:
        """Return the rows to be trained on, having checked everything."""
        self._check_parameters()
        if isinstance(X, Source):
            targets = training_targets(X, y, sample_weight) if self._supervised else nothing(len(X))
            if targets.kind == "classes" and targets.n_targets < 2:
                raise ValueError(f"the source must have two or more classes to tell apart, got {targets.names}")
            adopt(self, X, reset=True)
            return Rows(X, None, targets, weight_of(X)).counted()
        forget(self)
        if self._supervised:
            X, y = validate_data(self, X, y, multi_output=True, **TRAINING_ROWS)
            y = dense(y)
            targets = encode(y)
        else:
            X, y = validate_data(self, X, **TRAINING_ROWS), None
            targets = nothing(X.shape[0])
        return Rows(X, y, targets, weights(X, sample_weight)).counted()

    def _check_parameters(self) -> None:
        if not (isinstance(self.rho, str) and self.rho == "auto"):
            checks.positive("rho", self.rho)
        if self.criterion is not None:
            checks.one_of("criterion", self.criterion, CRITERIA)
        if self.trainer is not None:
            checks.instance("trainer", self.trainer, Trainer)
        if self.device not in (None, "auto") and self._device() != torch.device(self.device):
            raise ValueError(f"device is {self.device!r}, but torch finds no GPU here; use device=None")

    @property
    def _supervised(self) -> bool:
        gamma = getattr(self, "gamma", None)
        return self.criterion is not None or (isinstance(gamma, str) and gamma == "cv")

    def _train(
        self,
        rows: Rows,
        resume: bool = False,
        trainer: Trainer | None = None,
        validation: Callable[[FeatureMap], float] | None = None,
        n_iter_no_change: int | None = None,
    ):
        """Train on validated rows, until a validation score, if there is one, no longer improves.

        If `resume`, go on from the map that the last fit has left here. A `trainer` is taken instead of its own.
        """
        source = rows.source(self._device())
        seed = agreed(int(check_random_state(self.random_state).randint(2**31 - 1)))
        if resume:
            feature_map = copy.deepcopy(self.feature_map_)
            for name, parameter in feature_map.named_parameters():
                parameter.requires_grad_(name in self._trained)
        else:
            feature_map = self._start(source, torch.Generator().manual_seed(seed))
        feature_map.to(source.features(slice(0, 1))).train()
        self._trained = [name for name, parameter in feature_map.named_parameters() if parameter.requires_grad]
        self.history_ = []
        if not resume or not isinstance(self.rho, str):
            self.rho_ = self._penalty(feature_map, source)
        if self.criterion is not None:
            trainer = trainer or self._trainer()
            criterion = make_criterion(self.criterion, self.rho_, rows.targets)
            plan = trainer.plan(len(source), width(feature_map, source.features(slice(0, 1))), criterion)
            if self.rho == "auto" and not isinstance(criterion, CE):
                criterion.rho = self.rho_ * plan.rows / len(source)  # of a batch  # pyrefly: ignore
            epochs = trainer.epochs(
                feature_map, criterion, source, seed=seed, validation=validation, n_iter_no_change=n_iter_no_change
            )
            if self.verbose:
                epochs = tracked(epochs, type(self).__name__, plan.epochs if trainer.schedule == "cosine" else None)
            self.history_ = list(epochs)
        self.n_iter_ = len(self.history_)
        self.feature_map_ = feature_map.cpu().eval().requires_grad_(False)
        self._set_attributes(self.feature_map_)
        return self

    def _pilot(self, rows: Rows) -> Cost:
        """Train a few steps on some of the rows; return what the whole training would take."""
        source, seed = (
            rows.source(self._device()),
            agreed(int(check_random_state(self.random_state).randint(2**31 - 1))),
        )
        began = time.perf_counter()
        row = source.features(slice(0, 1))
        n_components = width(self._start(source, torch.Generator().manual_seed(seed)).to(row), row)
        start = time.perf_counter() - began
        if self.criterion is None:
            self._train(rows.spread(PILOT_ROWS))
            return Cost(start, bytes_of_training(0, n_components, row.numel(), row.itemsize), None)
        plan = self._trainer().plan(len(source), n_components, make_criterion(self.criterion, 1.0, rows.targets))
        steps = dataclasses.replace(self._trainer(), max_epochs=PILOT_STEPS, batch_size=plan.rows)
        self._train(rows.spread(plan.rows), trainer=steps)
        memory = bytes_of_training(plan.rows, n_components, row.numel(), row.itemsize)
        return Cost(start + seconds_of_training(plan, self.history_), memory, plan)

    def _penalty(self, feature_map: FeatureMap, source: Source) -> float:
        """Return ρ, or the best for the features that training starts from, for all the rows."""
        if not isinstance(self.rho, str):
            return float(self.rho)
        gram = feature_map.gram()
        return moments_over(source, feature_map).best_rho(None if gram is None else gram.detach())

    def _trainer(self) -> Trainer:
        return Trainer() if self.trainer is None else self.trainer

    def _plan(self, targets: Targets) -> Callable[[int], Plan]:
        """Return how the map, as it now is, is trained on so many rows."""
        criterion = make_criterion(self.criterion or "di", self.rho_, targets)
        row = torch.zeros(1, self.n_features_in_, dtype=self._dtype())
        return partial(self._trainer().plan, n_components=width(self.feature_map_, row), criterion=criterion)

    @property
    def _complete(self) -> bool:
        """Whether the map has as many components as it was to have."""
        return True

    def _as_if_done(self, feature_map: FeatureMap) -> Self:
        """Return this transformer as if its training had ended with the map as it now is."""
        done = copy.copy(self)
        done.feature_map_ = copy.deepcopy(feature_map).cpu().eval().requires_grad_(False)
        done._set_attributes(done.feature_map_)
        return done

    def _set_attributes(self, feature_map: FeatureMap) -> None:
        self._n_features_out = feature_map(torch.zeros(1, self.n_features_in_, dtype=self._dtype())).shape[1]
        if self._n_features_out == 0:
            raise ValueError("no features are left, since the kernel is zero at all landmarks: choose another kernel")

    def _dtype(self) -> torch.dtype | None:
        """Return the precision of the map, or None for that of the rows where it keeps no numbers."""
        kept = itertools.chain(self.feature_map_.parameters(), self.feature_map_.buffers())
        return next((each.dtype for each in kept if each.is_floating_point()), None)

    def _device(self) -> torch.device:
        """Return where to compute: the CPU if a model has been brought to where there is no GPU."""
        try:
            device = torch.device("cuda" if self.device in (None, "auto") else self.device)
        except (RuntimeError, TypeError) as error:
            raise ValueError(f"device must be the name of a torch device, got {self.device!r}") from error
        return torch.device("cpu") if device.type == "cuda" and not torch.cuda.is_available() else device

    def _placed(self) -> FeatureMap:
        """Return the map where it is to compute; the fitted one stays on the CPU, where it can be kept and sent."""
        device = self._device()
        return self.feature_map_ if device.type == "cpu" else copy.deepcopy(self.feature_map_).to(device)

    def transform(self, X):
        """Return the features φ(X), n×J, in batches of bounded memory."""
        check_is_fitted(self)
        return self._features(validated(self, X))

    def _features(self, X) -> np.ndarray:
        """Return the features of validated rows."""
        out = np.empty((X.shape[0], self._n_features_out), dtype=X.dtype)
        feature_map, start = self._placed(), 0
        with torch.no_grad(), np.errstate(over="ignore"):  # of which `finite` tells
            for x in self._chunks(X):
                out[start : start + len(x)] = feature_map(x).cpu().numpy()
                start += len(x)
        out = X.everywhere(torch.from_numpy(out[:start])).numpy() if isinstance(X, Source) else out
        return finite("the features", out)

    def _chunks(self, X) -> Iterator[Tensor]:
        """Yield validated rows as tensors that the map takes, as many at a time as their features fit in memory."""
        return chunks(X, self._n_features_out, self._device(), self._dtype())

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.target_tags.required = self._supervised
        tags.target_tags.multi_output = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


def nothing(n_rows: int) -> Targets:
    """Return stand-ins for the targets of features that are not learned."""
    return Targets("values", torch.zeros(1, 1).expand(n_rows, 1), 1)


def make_criterion(name: str, rho: float, targets: Targets) -> Criterion:
    """Return the criterion of this name for these targets."""
    if name not in ("di", "ls") and targets.kind == "values":
        raise ValueError(f'criterion="{name}" is for classes and labels; regression targets need "di" or "ls"')
    labels = targets.kind == "labels"
    makers: dict[str, Callable[[], Criterion]] = {
        "di": lambda: DI(rho),
        "ls": lambda: LS(rho),
        "ce": lambda: CE(independent=labels),
        "profiled_ce": lambda: Profiled("logistic" if labels else "softmax", rho),
        "profiled_svm": lambda: Profiled("svm", rho),
    }
    return makers[name]()
