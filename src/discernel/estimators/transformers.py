"""Transformers: learned Nyström, Fourier, Fastfood and module features with scikit-learn's contract."""

import copy
import warnings
from typing import Any

import torch
from torch import Tensor, nn

from discernel import checks
from discernel.estimators.gamma import RULES, check_kernel, gamma_of, kernel_from_data
from discernel.estimators.inputs import sample
from discernel.estimators.learned import LearnedMap
from discernel.feature_maps import Fastfood, ModuleMap, Nystroem, RandomFourier
from discernel.kernels import Kernel
from discernel.landmarks import INITS, choose_landmarks, distinct_rows


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
        from "scale" (times √J/5 if J > 25) and trained with the landmarks (see `gamma_`). See
        `discernel.estimators.gamma`.
    rho : float or "auto"
        The ridge penalty of the criterion, absolute as in the paper; or that which is best for all the rows in
        generalised cross-validation on the features that training starts from, of which a mini-batch takes its share.
    criterion : {"di", "ls", "ce", "profiled_ce", "profiled_svm"} or None
        What the landmarks are trained by; None trains nothing: scikit-learn's Nystroem, or with ``init="kmeans"``
        k-means Nyström.
    init : {"uniform", "kmeans", "leverage"}
        Where the landmarks start; see `choose_landmarks`.
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
        U Σ^(-1/2) of their kernel matrix; ``φ(x) = k(x, components_) @ normalization_``.
    gamma_ : float or ndarray (d,)
        Gamma as found or learned; if learned, large where a feature matters.
    rho_ : float
        The ridge penalty.
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

    def _start(self, source, generator):
        x, weight, y = sample(source, generator)
        n_distinct = len(distinct_rows(x, weight)[0])
        if self.n_components > n_distinct:
            warnings.warn(f"n_components is {self.n_components}, but there are {n_distinct} distinct rows: using those")
        count = min(self.n_components, n_distinct)
        kernel = kernel_from_data(self.kernel, self.gamma, x, y, weight, generator, count)
        return Nystroem(choose_landmarks(x, count, self.init, generator, weight, kernel), kernel)

    @property
    def _complete(self):
        return len(self.components_) == self.n_components

    def _set_attributes(self, feature_map):
        super()._set_attributes(feature_map)
        self.components_ = feature_map.landmarks.numpy()
        self.normalization_ = feature_map.normalization().numpy()
        self.gamma_ = gamma_of(feature_map.kernel)


class SpectralMap(LearnedMap):
    """What the maps share that start from the spectral density of a shift-invariant kernel."""

    _map: Any  # the feature map, which can be sampled

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

    def _start(self, source, generator):
        x, weight, y = sample(source, generator)
        kernel = kernel_from_data(self.kernel, self.gamma, x, y, weight, generator)
        _check_angles(x, kernel)
        self.gamma_ = gamma_of(kernel)
        return self._map.sample(kernel, x.shape[1], self.n_components, generator, x.dtype)


def _check_angles(x: Tensor, kernel: Kernel) -> None:
    """Refuse a bandwidth at which the angles of Fourier features are so large that rounding decides their cosines."""
    kernel.check_features(x.shape[1])
    angle = (x[:1000].double() * kernel.metric.detach().double()).norm(dim=1).median().item()
    if angle * torch.finfo(x.dtype).eps > 0.25:
        raise ValueError(
            f"gamma is too large for these features in {x.dtype}: rescale them, lower gamma or use float64"
        )


class LearnedFourier(SpectralMap):
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
    rho : float or "auto"
        The ridge penalty of the criterion, absolute as in the paper; or that which is best for all the rows in
        generalised cross-validation on the features that training starts from, of which a mini-batch takes its share.
    criterion : {"di", "ls", "ce", "profiled_ce", "profiled_svm"} or None
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
    rho_ : float
        The ridge penalty.
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

    _map = RandomFourier

    def _set_attributes(self, feature_map):
        super()._set_attributes(feature_map)
        self.random_weights_ = feature_map.frequencies.numpy()
        self.random_offset_ = feature_map.phases.numpy()


class LearnedFastfood(SpectralMap):
    """Fourier features at O(J log d) a sample, the diagonals of whose transform are learned, by DI by default.

    The frequencies are products of Hadamard transforms and trained diagonals (see `discernel.Fastfood`): where d is in
    the thousands, this takes a fraction of the time and of the memory of `LearnedFourier`, for somewhat less accuracy
    with as many features.

    Parameters
    ----------
    n_components : int
        The number of features, J; a multiple of d, rounded up to a power of two, wastes nothing.
    kernel : str or Kernel
        The radial kernel that the frequencies start from: "rbf", "matern", "cauchy" or a `discernel.Kernel`, which
        brings its own gamma.
    gamma, rho, criterion, trainer, random_state, device, verbose
        As for `LearnedFourier`.

    Attributes
    ----------
    feature_map_ : Fastfood
        The trained map.
    gamma_ : float or ndarray (d,)
        The bandwidth that the frequencies started from.
    rho_ : float
        The ridge penalty.
    history_ : list of EpochRecord
        What is known of each epoch.
    n_iter_ : int
        The number of epochs.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> X, y = load_digits(return_X_y=True)
    >>> LearnedFastfood(n_components=64, random_state=0).fit_transform(X / 16, y).shape
    (1797, 64)
    """

    _map = Fastfood


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
    rho_ : float
        The ridge penalty.
    history_ : list of EpochRecord
        What is known of each epoch.
    n_iter_ : int
        The number of epochs.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> LearnedFeatures(nn.Sequential(nn.Linear(4, 8), nn.Tanh()), random_state=0).fit_transform(X, y).shape
    (150, 8)
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

    def _start(self, source, generator):
        if self.module is None:
            n_features = source.features(slice(0, 1)).shape[1]
            layer: Any = nn.utils.skip_init(nn.Linear, n_features, 100)
            nn.init.kaiming_uniform_(layer.weight, 5**0.5, generator=generator)
            nn.init.zeros_(layer.bias)
            return ModuleMap(nn.Sequential(layer, nn.Tanh()))
        return ModuleMap(copy.deepcopy(self.module))
