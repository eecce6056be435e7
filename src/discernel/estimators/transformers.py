"""Transformers: learned Nyström, Fourier and module features with scikit-learn's contract."""

import copy
import dataclasses
import warnings
from abc import abstractmethod
from collections.abc import Iterator
from typing import Any, NamedTuple

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
from discernel.estimators.progress import score_on, tracked, until_stale
from discernel.feature_maps import FeatureMap, ModuleMap, Nystroem, RandomFourier
from discernel.kernels import KERNELS, Kernel, make_kernel
from discernel.landmarks import INITS, choose_landmarks, distinct_rows
from discernel.targets import Targets
from discernel.training import Trainer

SAMPLE = 50_000  # rows that landmarks and gamma are chosen from
CHUNK = 2**22  # entries of features that are computed at a time
CRITERIA = ("di", "ls", "ce")
ROWS: dict[str, Any] = {"accept_sparse": "csr", "dtype": [np.float64, np.float32]}  # what `validate_data` asks for
TRAINING_ROWS = ROWS | {"ensure_min_samples": 2}


class Rows(NamedTuple):
    """Validated data, all parts of the same length."""

    X: Any
    y: Any  # as it was given
    targets: Targets
    weight: np.ndarray | None

    def take(self, index: np.ndarray) -> "Rows":
        """Return some of the rows."""
        targets = dataclasses.replace(self.targets, data=self.targets.data[torch.from_numpy(index)])
        y, weight = (None if part is None else part[index] for part in (self.y, self.weight))
        return Rows(self.X[index], y, targets, weight)

    def counted(self) -> "Rows":
        """Return the rows of positive weight."""
        if self.weight is None or self.weight.all():
            return self
        if not self.weight.any():
            raise ValueError("sample_weight must have at least one positive weight")
        return self.take(np.flatnonzero(self.weight))

    def source(self, device) -> Source:
        """Return them as what a map is trained on."""
        return make_source(self.X, self.targets, self.weight, device)


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
        self._check_parameters()
        if self._supervised:
            X, y = validate_data(self, X, y, multi_output=True, **TRAINING_ROWS)
            y = dense(y)
            targets = encode(y)
        else:
            X, y = validate_data(self, X, **TRAINING_ROWS), None
            targets = Targets.values(np.zeros(X.shape[0]))
        return self._train(Rows(X, y, targets, weights(X, sample_weight)).counted())

    def _check_parameters(self) -> None:
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

    def _train(self, rows: Rows, held_out: Rows | None = None, patience: int = 0, resume: bool = False):
        """Train on validated rows; with others held out, until those are no longer predicted better.

        If `resume`, go on from the map that the last fit has left here.
        """
        source = rows.source(self._device())
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        if resume:
            feature_map = copy.deepcopy(self.feature_map_)
            for name, parameter in feature_map.named_parameters():
                parameter.requires_grad_(name in self._trained)
        else:
            feature_map = self._start(source, rows.y, torch.Generator().manual_seed(seed))
        feature_map.to(source.features(slice(0, 1))).train()
        self._trained = [name for name, parameter in feature_map.named_parameters() if parameter.requires_grad]
        self.history_ = []
        if self.criterion is not None:
            trainer = Trainer() if self.trainer is None else self.trainer
            criterion = make_criterion(self.criterion, self.rho, rows.targets)
            validation = None if held_out is None else score_on(held_out.source(self._device()), source, self.rho)
            epochs = trainer.epochs(feature_map, criterion, source, seed=seed, validation=validation)
            epochs = epochs if held_out is None else until_stale(epochs, feature_map, patience)
            self.history_ = list(tracked(epochs, type(self).__name__) if self.verbose else epochs)
        self.n_iter_ = len(self.history_)
        self.feature_map_ = feature_map.cpu().eval().requires_grad_(False)
        self._set_attributes(self.feature_map_)
        return self

    def _set_attributes(self, feature_map: FeatureMap) -> None:
        self._n_features_out = feature_map(torch.zeros(1, self.n_features_in_, dtype=self._dtype())).shape[1]

    def _dtype(self) -> torch.dtype:
        return next((p.dtype for p in self.feature_map_.parameters()), torch.float32)

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
        return self._features(validate_data(self, X, reset=False, **ROWS))

    def _features(self, X) -> np.ndarray:
        """Return the features of validated rows."""
        out = np.empty((X.shape[0], self._n_features_out), dtype=X.dtype)
        feature_map, start = self._placed(), 0
        with torch.no_grad():
            for x in chunks(X, self):
                out[start : start + len(x)] = feature_map(x).cpu().numpy()
                start += len(x)
        return out

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.target_tags.required = self._supervised
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
        "rbf", "laplacian", "matern", "cauchy", "polynomial", "linear" or a `discernel.Kernel`, which brings its own
        gamma.
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

    def _check_parameters(self):
        super()._check_parameters()
        checks.positive_int("n_components", self.n_components)
        check_kernel(self.kernel, self.gamma, RULES)
        checks.one_of("init", self.init, INITS)

    def _start(self, source, y, generator):
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
        self.gamma_ = gamma_of(feature_map.kernel)


class LearnedFourier(LearnedMap):
    """Random Fourier features whose frequencies and phases are learned, by the Discriminant Information by default.

    Parameters
    ----------
    n_components : int
        The number of features, J.
    kernel : str or Kernel
        The shift-invariant kernel that the frequencies start from: "rbf", "laplacian", "matern", "cauchy" or a
        `discernel.Kernel`, which brings its own gamma.
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

    def _check_parameters(self):
        super()._check_parameters()
        checks.positive_int("n_components", self.n_components)
        check_kernel(self.kernel, self.gamma, [rule for rule in RULES if rule != "learn"])

    def _start(self, source, y, generator):
        x, weight, y = sample(source, y, generator)
        kernel = kernel_from_data(self.kernel, self.gamma, x, y, weight, generator)
        self.gamma_ = gamma_of(kernel)
        return RandomFourier.sample(kernel, x.shape[1], self.n_components, generator, x.dtype)

    def _set_attributes(self, feature_map):
        super()._set_attributes(feature_map)
        self.random_weights_ = feature_map.frequencies.numpy()
        self.random_offset_ = feature_map.phases.numpy()


class LearnedFeatures(LearnedMap):
    """Features of any torch Module, learned by the Discriminant Information by default.

    Parameters
    ----------
    module : torch.nn.Module, optional
        Maps a batch (n×d) to features (n×J). A copy of it is trained; it is left as it was. By default one layer of
        100 hyperbolic tangents.
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

    def _check_parameters(self):
        super()._check_parameters()
        if self.module is not None and not isinstance(self.module, nn.Module):
            raise TypeError(f"module must be a torch.nn.Module, got {type(self.module).__name__}")

    def _start(self, source, y, generator):
        if self.module is None:
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


def dense(y):
    """Return targets as an array, also where labels came as a sparse indicator matrix."""
    return y.toarray() if sp.issparse(y) else y


def weights(X, sample_weight) -> np.ndarray | None:
    """Return validated weights of the rows."""
    if sample_weight is None:
        return None
    return _check_sample_weight(sample_weight, X, dtype=X.dtype, ensure_non_negative=True)


def encode(y) -> Targets:
    """Return the targets that scikit-learn's `type_of_target` takes `y` for."""
    kind = type_of_target(y, input_name="y", raise_unknown=True)
    if kind in ("binary", "multiclass"):
        return Targets.classes(np.asarray(y).ravel())
    return Targets.labels(y) if kind == "multilabel-indicator" else Targets.values(y)


def make_source(X, targets: Targets, sample_weight: np.ndarray | None, device) -> Source:
    """Return the source of validated data."""
    weight = None if sample_weight is None else torch.from_numpy(sample_weight)
    if sp.issparse(X):
        return SparseSource(sp.csr_array(X), targets, weight, device)
    return ArraySource(as_tensor(X).to(device), targets, weight)


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
    return rows.x.cpu(), weight, None if y is None else y[index.numpy()]


def check_kernel(kernel, gamma, rules) -> None:
    """Refuse what is no kernel, and what is neither a rule for gamma nor a gamma."""
    if not isinstance(kernel, Kernel):
        checks.one_of("kernel", kernel, KERNELS)
    if isinstance(gamma, str):
        checks.one_of("gamma", gamma, rules)
    else:
        make_kernel("rbf", gamma)


def kernel_from_data(kernel, gamma, x: Tensor, y, weight: Tensor | None, generator: torch.Generator) -> Kernel:
    """Return the kernel with its gamma found by the rule, and trainable if that is to be learned."""
    if isinstance(kernel, Kernel):
        return copy.deepcopy(kernel)
    if not isinstance(gamma, str):
        return make_kernel(kernel, gamma)
    checks.one_of("gamma", gamma, RULES)
    if gamma == "cv" and (y is None or type_of_target(y) not in ("binary", "multiclass")):
        raise ValueError('gamma="cv" needs a class for each row in y; use "scale", "median" or a number')
    value = gamma_from_data("scale" if gamma == "learn" else gamma, x, y, weight, generator)
    if gamma == "learn":
        return make_kernel(kernel, torch.full((x.shape[1],), value, dtype=x.dtype), trainable=True)
    return make_kernel(kernel, value)


def gamma_of(kernel: Kernel) -> float | np.ndarray:
    """Return the gamma of a kernel as an attribute of an estimator."""
    gamma = kernel.gamma.numpy()
    return float(gamma) if gamma.ndim == 0 else gamma


def make_criterion(name: str, rho: float, targets: Targets) -> Criterion:
    """Return the criterion of this name for these targets."""
    if name == "ce" and targets.kind == "values":
        raise ValueError('criterion="ce" is for classes and labels; regression targets need "di" or "ls"')
    return CE(independent=targets.kind == "labels") if name == "ce" else {"di": DI, "ls": LS}[name](rho)
