"""Transformers: learned Nyström, Fourier and module features with scikit-learn's contract."""

import copy
import dataclasses
import warnings
from abc import abstractmethod
from collections.abc import Iterator
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import type_of_target
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data
from torch import Tensor, nn

from discernel import checks
from discernel.criteria import CE, DI, LS, Criterion
from discernel.data import ArraySource, Source, SparseSource
from discernel.estimators.gamma import RULES, gamma_from_data
from discernel.estimators.progress import tracked
from discernel.feature_maps import FeatureMap, ModuleMap, Nystroem, RandomFourier
from discernel.kernels import Kernel, make_kernel
from discernel.landmarks import INITS, choose_landmarks, distinct_rows
from discernel.targets import Targets
from discernel.training import Trainer

SAMPLE = 50_000  # rows that landmarks and gamma are chosen from
CHUNK = 2**22  # entries of features that are computed at a time


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
    def _start(self, source: Source, y, generator: torch.Generator) -> FeatureMap:
        """Return the map that training starts from."""

    def fit(self, X, y=None, sample_weight=None):
        """Learn the features.

        Parameters
        ----------
        X : array, data frame or CSR matrix (n, d)
            The data. What is trained has its precision: float32 takes half the time of float64.
        y : array (n,) or (n, L), optional
            Classes, an indicator matrix of labels, or regression targets; not needed if ``criterion=None``.
        sample_weight : array (n,), optional
            How often each row counts.
        """
        X = validate_data(self, X, accept_sparse="csr", dtype=[np.float64, np.float32], ensure_min_samples=2)
        if self.criterion is None:
            targets = Targets.values(np.zeros(X.shape[0]))
        elif y is None:
            name = type(self).__name__
            raise ValueError(f"{name} requires y to be passed, but the target y is None; or set criterion=None")
        else:
            targets = encode(y)
        return self._fit(X, targets, sample_weight, y)

    def _fit(self, X, targets: Targets, sample_weight=None, y=None, validation=None):
        """Train on validated data; `validation(map)` scores an epoch."""
        source = make_source(X, targets, sample_weight, self._device())
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        feature_map = self._start(source, y, torch.Generator().manual_seed(seed))
        feature_map.to(source.features(slice(0, 1)))
        self.history_ = []
        if self.criterion is not None:
            trainer = Trainer() if self.trainer is None else self.trainer
            criterion = make_criterion(self.criterion, self.rho, targets)
            epochs = trainer.epochs(feature_map, criterion, source, seed=seed, validation=validation)
            for record in tracked(epochs, type(self).__name__) if self.verbose else epochs:
                self.history_.append(record)
        self.n_iter_ = len(self.history_)
        self.feature_map_ = feature_map.cpu().requires_grad_(False)
        self._set_attributes(self.feature_map_)
        return self

    def _set_attributes(self, feature_map: FeatureMap) -> None:
        self._n_features_out = feature_map(torch.zeros(1, self.n_features_in_, dtype=self._dtype())).shape[1]

    def _dtype(self) -> torch.dtype:
        return next(iter(self.feature_map_.parameters())).dtype

    def _device(self) -> torch.device:
        if self.device in (None, "auto"):
            return torch.device("cuda" if torch.cuda.is_available() else "cpu")
        return torch.device(self.device)

    def transform(self, X):
        """Return the features φ(X), n×J, in batches of bounded memory."""
        check_is_fitted(self)
        X = validate_data(self, X, reset=False, accept_sparse="csr", dtype=[np.float64, np.float32])
        out = np.empty((X.shape[0], self._n_features_out), dtype=X.dtype)
        feature_map, start = self.feature_map_.to(self._device()), 0
        with torch.no_grad():
            for x in chunks(X, self):
                out[start : start + len(x)] = feature_map(x).cpu().numpy()
                start += len(x)
        return out

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.target_tags.required = self.criterion is not None
        tags.target_tags.multi_output = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


class LearnedNystroem(LearnedMap):
    """Nyström features whose landmarks are learned, by maximising the Discriminant Information by default.

    Parameters
    ----------
    n_components : int
        The number of landmarks, J; fewer if the data have fewer distinct rows.
    kernel : str or Kernel
        "rbf", "laplacian", "matern", "cauchy", "polynomial", "linear" or a `discernel.Kernel`.
    gamma : float, array, "scale", "median", "cv" or "learn"
        The bandwidth, one number or one per feature; a rule that finds one number; or "learn": one per feature, started
        from "scale" and trained with the landmarks (see `gamma_`). See `discernel.estimators.gamma`.
    rho : float
        The ridge penalty of the criterion.
    criterion : {"di", "ls", "ce"} or None
        What the landmarks are trained by; None trains nothing: scikit-learn's Nystroem, or with ``init="kmeans"``
        k-means Nyström.
    init : {"uniform", "kmeans"}
        Where the landmarks start.
    trainer : Trainer, optional
        How they are trained; by default ``Trainer()``.
    random_state : int, RandomState or None
        Decides the landmarks and the mini-batches.
    device : str, optional
        Where to train and transform; "auto" or None takes a GPU if there is one.
    verbose : bool
        Show a progress bar.

    Attributes
    ----------
    components_ : ndarray (J, d)
        The landmarks.
    normalization_ : ndarray (J, k)
        U Σ^(-1/2) of their kernel matrix; φ(x) = k(x, components_) @ normalization_.
    gamma_ : float or ndarray (d,)
        Gamma as found or learned; if learned, large where a feature matters.
    history_ : list of EpochRecord
        What is known of each epoch.
    n_iter_ : int
        The number of epochs.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> X, y = load_digits(return_X_y=True)
    >>> LearnedNystroem(n_components=20, random_state=0).fit_transform(X / 16, y).shape
    (1797, 20)
    """

    def __init__(
        self,
        n_components=100,
        *,
        kernel="rbf",
        gamma="learn",
        rho=1e-4,
        criterion="di",
        init="uniform",
        trainer=None,
        random_state=None,
        device=None,
        verbose=False,
    ):
        self.n_components = n_components
        self.kernel = kernel
        self.gamma = gamma
        self.rho = rho
        self.criterion = criterion
        self.init = init
        self.trainer = trainer
        self.random_state = random_state
        self.device = device
        self.verbose = verbose

    def _start(self, source, y, generator):
        checks.positive_int("n_components", self.n_components)
        checks.one_of("init", self.init, INITS)
        x, weight, y = sample(source, y, generator)
        kernel = kernel_from_data(self.kernel, self.gamma, x, y, weight, generator)
        n_distinct = len(distinct_rows(x, weight)[0])
        if self.n_components > n_distinct:
            warnings.warn(f"n_components is {self.n_components}, but there are {n_distinct} distinct rows: using those")
        count = min(self.n_components, n_distinct)
        return Nystroem(choose_landmarks(x, count, self.init, generator, weight), kernel)

    def _set_attributes(self, feature_map):
        super()._set_attributes(feature_map)
        self.components_ = feature_map.landmarks.numpy()
        self.normalization_ = feature_map.normalization().numpy()
        gamma = feature_map.kernel.gamma.numpy()
        self.gamma_ = float(gamma) if gamma.ndim == 0 else gamma


class LearnedFourier(LearnedMap):
    """Random Fourier features whose frequencies and phases are learned, by the Discriminant Information by default.

    Parameters
    ----------
    n_components : int
        The number of features, J.
    kernel : str or Kernel
        The shift-invariant kernel that the frequencies start from: "rbf", "laplacian", "matern", "cauchy" or a Kernel.
    gamma : float, array, "scale", "median" or "cv"
        Its bandwidth. ("learn" is for Nyström: trained frequencies carry their own metric.)
    rho : float
        The ridge penalty of the criterion.
    criterion : {"di", "ls", "ce"} or None
        What the frequencies are trained by; None trains nothing: scikit-learn's RBFSampler.
    trainer : Trainer, optional
        How they are trained; by default ``Trainer()``.
    random_state : int, RandomState or None
        Decides the frequencies and the mini-batches.
    device : str, optional
        Where to train and transform; "auto" or None takes a GPU if there is one.
    verbose : bool
        Show a progress bar.

    Attributes
    ----------
    random_weights_ : ndarray (d, J)
        The frequencies.
    random_offset_ : ndarray (J,)
        The phases.
    gamma_ : float or ndarray (d,)
        The bandwidth that the frequencies started from.
    history_ : list of EpochRecord
        What is known of each epoch.
    n_iter_ : int
        The number of epochs.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> X, y = load_digits(return_X_y=True)
    >>> LearnedFourier(n_components=20, random_state=0).fit_transform(X / 16, y).shape
    (1797, 20)
    """

    def __init__(
        self,
        n_components=100,
        *,
        kernel="rbf",
        gamma="scale",
        rho=1e-4,
        criterion="di",
        trainer=None,
        random_state=None,
        device=None,
        verbose=False,
    ):
        self.n_components = n_components
        self.kernel = kernel
        self.gamma = gamma
        self.rho = rho
        self.criterion = criterion
        self.trainer = trainer
        self.random_state = random_state
        self.device = device
        self.verbose = verbose

    def _start(self, source, y, generator):
        checks.positive_int("n_components", self.n_components)
        x, weight, y = sample(source, y, generator)
        kernel = kernel_from_data(self.kernel, self.gamma, x, y, weight, generator)
        gamma = kernel.gamma.numpy()
        self.gamma_ = float(gamma) if gamma.ndim == 0 else gamma
        return RandomFourier.sample(kernel, x.shape[1], self.n_components, generator, x.dtype)

    def _set_attributes(self, feature_map):
        super()._set_attributes(feature_map)
        self.random_weights_ = feature_map.frequencies.numpy()
        self.random_offset_ = feature_map.phases.numpy()


class LearnedFeatures(LearnedMap):
    """Features of any torch Module, learned by the Discriminant Information by default.

    Parameters
    ----------
    module : torch.nn.Module
        Maps a batch (n×d) to features (n×J). A copy of it is trained; it is left as it was.
    rho, criterion, trainer, random_state, device, verbose
        As for `LearnedNystroem`. What a module draws itself (dropout) does not follow `random_state`.

    Attributes
    ----------
    feature_map_ : FeatureMap
        The trained map.
    history_ : list of EpochRecord
        What is known of each epoch.
    n_iter_ : int
        The number of epochs.
    """

    def __init__(
        self, module=None, *, rho=1e-4, criterion="di", trainer=None, random_state=None, device=None, verbose=False
    ):
        self.module = module
        self.rho = rho
        self.criterion = criterion
        self.trainer = trainer
        self.random_state = random_state
        self.device = device
        self.verbose = verbose

    def _start(self, source, y, generator):
        if self.module is None:  # something to start with: one hidden layer of 100
            n_features = source.features(slice(0, 1)).shape[1]
            layer: Any = nn.utils.skip_init(nn.Linear, n_features, 100)
            nn.init.kaiming_uniform_(layer.weight, 5**0.5, generator=generator)
            nn.init.zeros_(layer.bias)
            return ModuleMap(nn.Sequential(layer, nn.Tanh()))
        return ModuleMap(copy.deepcopy(self.module))


def chunks(X, transformer: LearnedMap) -> Iterator[Tensor]:
    """Yield validated rows as tensors, as many at a time as their features take a bounded memory."""
    device, dtype = transformer._device(), transformer._dtype()
    step = max(1, CHUNK // transformer._n_features_out)
    for start in range(0, X.shape[0], step):
        rows = X[start : start + step]
        yield as_tensor(rows.toarray() if sp.issparse(rows) else rows).to(device, dtype)


def encode(y) -> Targets:
    """Return the targets that scikit-learn's `type_of_target` takes `y` for."""
    kind = type_of_target(y, input_name="y")
    if kind in ("binary", "multiclass"):
        return Targets.classes(np.asarray(y).ravel())
    return Targets.labels(y) if kind == "multilabel-indicator" else Targets.values(y)


def make_source(X, targets: Targets, sample_weight, device) -> Source:
    """Return the source of validated data; rows of weight zero are left out."""
    if sample_weight is not None:
        sample_weight = _check_sample_weight(sample_weight, X, dtype=X.dtype, ensure_non_negative=True)
        present = np.flatnonzero(sample_weight)
        if len(present) < X.shape[0]:
            if len(present) == 0:
                raise ValueError("sample_weight must have at least one positive weight")
            X, sample_weight = X[present], sample_weight[present]
            targets = dataclasses.replace(targets, data=targets.data[torch.from_numpy(present)])
        sample_weight = torch.from_numpy(sample_weight)
    if sp.issparse(X):
        return SparseSource(sp.csr_array(X), targets, sample_weight, device)
    return ArraySource(as_tensor(X).to(device), targets, sample_weight)


def as_tensor(X: np.ndarray) -> Tensor:
    """Return a tensor of the same memory where the strides allow it; it is never written to."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        return torch.from_numpy(X if all(s > 0 for s in X.strides) else X.copy())


def sample(source: Source, y, generator: torch.Generator) -> tuple[Tensor, Tensor | None, Any]:
    """Return all rows, or a random choice of 50000, with their weights and raw targets, on the CPU."""
    index = torch.arange(len(source))
    if len(source) > SAMPLE:
        index = torch.randperm(len(source), generator=generator)[:SAMPLE].sort().values
    rows = source.rows(index)
    weight = None if rows.sample_weight is None else rows.sample_weight.cpu()
    y = None if y is None or len(y) != len(source) else np.asarray(y)[index.numpy()]
    return rows.x.cpu(), weight, y


def kernel_from_data(kernel, gamma, x: Tensor, y, weight: Tensor | None, generator: torch.Generator) -> Kernel:
    """Return the kernel with its gamma found by the rule, and trainable if that is to be learned."""
    if isinstance(kernel, Kernel):
        return copy.deepcopy(kernel)
    if not isinstance(gamma, str):
        return make_kernel(kernel, torch.as_tensor(gamma, dtype=x.dtype))
    checks.one_of("gamma", gamma, RULES)
    if gamma == "cv" and y is None:
        raise ValueError('gamma="cv" needs class labels y; use "scale", "median" or a number')
    value = gamma_from_data("scale" if gamma == "learn" else gamma, x, y, weight, generator)
    if gamma == "learn":
        return make_kernel(kernel, torch.full((x.shape[1],), value, dtype=x.dtype), trainable=True)
    return make_kernel(kernel, torch.tensor(value, dtype=x.dtype))


def make_criterion(name: str, rho: float, targets: Targets) -> Criterion:
    """Return the criterion of this name for these targets."""
    checks.one_of("criterion", name, ("di", "ls", "ce"))
    if name == "ce":
        if targets.kind == "values":
            raise ValueError('criterion="ce" is for classes and labels; regression targets need "di" or "ls"')
        return CE(independent=targets.kind == "labels")
    return {"di": DI, "ls": LS}[name](rho)
