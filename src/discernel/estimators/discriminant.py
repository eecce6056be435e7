"""Discriminant analysis, linear and kernel, with scikit-learn's contract: one eigenproblem, in different subspaces."""

import dataclasses
import warnings
from abc import abstractmethod
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor, nn

from discernel import checks
from discernel.data import Source
from discernel.discriminant import (
    Components,
    discriminant_components,
    penalty,
    principal_components,
    whitening,
    within_class,
)
from discernel.estimators.gamma import gamma_of, kernel_from_data
from discernel.estimators.inputs import (
    ROWS,
    TRAINING_ROWS,
    chunks,
    dense,
    encode,
    make_source,
    sample,
    unless_it_fails,
    weights,
)
from discernel.estimators.subspace import NOTHING, Subspace
from discernel.feature_maps import FeatureMap, ModuleMap, Nystroem
from discernel.landmarks import INITS, choose_landmarks, distinct_rows
from discernel.run import moments_over
from discernel.targets import SCALINGS, Targets

EXACT_ROWS = 5000  # as many rows may all be landmarks: kernel matrix, scatter and their factors then take some 1.5 GB
GAMMA_RULES = ("scale", "median", "cv")


class DiscriminantAnalysis(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """What the discriminant analyses share. A subclass says in which subspace they look for components."""

    # What every subclass has.
    n_components: int | None
    rho: float
    scaling: str
    random_state: Any

    @abstractmethod
    def _subspace(self, source: Source, generator: torch.Generator) -> Subspace:
        """Return the subspace of these data."""

    def fit(self, X, y=None, sample_weight=None):
        """Find the components.

        Parameters
        ----------
        X : array, data frame or CSR matrix (n, d)
            The data.
        y : array (n,) or (n, L), optional
            Classes, an indicator matrix of labels, or regression targets. None: every sample is its own class. Whole
            numbers are classes, one for each row: standardise a regression target that has no others.
        sample_weight : array (n,), optional
            How often each row counts.
        """
        if isinstance(X, Source):
            raise TypeError(f"{type(self).__name__} takes arrays: give it the features that a learned map makes of X")
        with unless_it_fails(self):
            return self._find(*self._rows(X, y, sample_weight))

    def _find(self, X, y, weight):
        """Find the components of validated rows."""
        targets = Targets.values(np.zeros(X.shape[0])) if y is None else self._targets(y, weight)
        source = make_source(X, targets, weight, "cpu")
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        find = principal_components if y is None else discriminant_components
        with torch.no_grad():
            subspace = self._subspace(source, torch.Generator().manual_seed(seed))
            moments = moments_over(source, subspace)
            components = find(moments, self.rho)
            k = self._count(len(components.information))
            scalings = subspace.lift(self._scaled(components, moments.count)[:, :k])
            self._set_attributes(subspace.feature_map)
            self.mean_ = subspace.mean(moments.basis_mean).numpy()
        self.scalings_ = _signed(scalings.numpy())
        self.explained_discriminant_information_ = components.information[:k].numpy()
        self.discriminant_information_ = components.information.sum().item()
        self.__dict__.pop("classes_", None)  # of another fit
        if targets.kind == "classes":
            self.classes_ = targets.names
        return self

    def _set_attributes(self, feature_map: FeatureMap) -> None:
        self.feature_map_ = feature_map

    def _check_parameters(self) -> None:
        if self.n_components is not None:
            checks.positive_int("n_components", self.n_components)
        penalty(self.rho)
        checks.one_of("scaling", self.scaling, SCALINGS)

    def _rows(self, X, y, sample_weight):
        """Return validated rows, targets and weights, without the rows of weight zero."""
        self._check_parameters()
        if y is None:
            X = validate_data(self, X, **TRAINING_ROWS)
        else:
            X, y = validate_data(self, X, y, multi_output=True, **TRAINING_ROWS)
            y = dense(y)
        weight = weights(X, sample_weight)
        if weight is None:
            return X, y, None
        present = np.flatnonzero(weight)
        if len(present) == 0:
            raise ValueError("sample_weight must have at least one positive weight")
        return X[present], None if y is None else y[present], weight[present]

    def _targets(self, y, weight) -> Targets:
        if type_of_target(y, input_name="y", raise_unknown=True) in ("binary", "multiclass"):
            return Targets.classes(np.ravel(y), self.scaling, weight)
        targets = encode(y)
        if targets.kind == "values" or self.scaling == "indicator":
            return targets
        counts = y.T @ np.ones(len(y)) if weight is None else y.T @ weight.astype(np.float64)
        return dataclasses.replace(targets, scale=torch.from_numpy(np.where(counts > 0, counts, 1.0)).rsqrt())

    def _count(self, available: int) -> int:
        if available == 0:
            raise ValueError(NOTHING)
        if self.n_components is not None and self.n_components > available:
            warnings.warn(f"n_components is {self.n_components}, but there are {available}: using those")
        return available if self.n_components is None else min(self.n_components, available)

    def _scaled(self, components: Components, count: float) -> Tensor:
        return components.scalings

    def transform(self, X):
        """Return the components of the rows, n×k, in batches of bounded memory."""
        check_is_fitted(self)
        X = validate_data(self, X, reset=False, **ROWS)
        out, start = np.empty((X.shape[0], self._n_features_out), dtype=X.dtype), 0
        with torch.no_grad():
            for x in chunks(X, max(len(self.mean_), X.shape[1]), dtype=torch.float64):
                out[start : start + len(x)] = (self.feature_map_.basis(x).numpy() - self.mean_) @ self.scalings_
                start += len(x)
        return out

    @property
    def _n_features_out(self) -> int:
        return self.scalings_.shape[1]

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.target_tags.multi_output = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


class DCA(DiscriminantAnalysis):
    """Discriminant Component Analysis: PCA with targets, or LDA with a ridge.

    Finds the A (d×k) that maximises tr(AᵀS_B A) subject to Aᵀ(S̄ + ρI)A = I, eq. (DCA) of the paper, where S̄ is the
    scatter of the features and S_B = X̄ᵀY YᵀX̄ that between the classes. As ρ → 0 the components are LDA's; where every
    sample is its own class (``y=None``) they are PCA's, up to the lengths of the columns.

    After `LearnedNystroem`, this is Kernel DCA in the learned subspace.

    Parameters
    ----------
    n_components : int, optional
        The number of components, k. By default all that carry information: at most one less than the classes, one for
        each regression target or label, the rank of X if ``y=None``.
    rho : float
        The ridge penalty, absolute as in the paper: twice the rows feel it half as much. Zero gives LDA.
    scaling : {"unit", "indicator"}
        The columns of Y for classes and labels: of unit norm, by which S_B is Fisher's between-class scatter and all
        classes weigh the same; or raw indicators, as in the paper's experiments. Regression targets are taken as they
        are.

    Attributes
    ----------
    scalings_ : ndarray (d, k)
        A, the most informative component first; the components of x are ``(x − mean_)A``.
    mean_ : ndarray (d,)
        The mean of the training rows.
    explained_discriminant_information_ : ndarray (k,)
        The Discriminant Information of each component: of classes with unit columns, between zero and one.
    discriminant_information_ : float
        DI, their sum over all components, also those beyond `n_components`.
    classes_ : ndarray (L,)
        The classes, if y has classes.

    See Also
    --------
    KernelDCA : The same in the feature space of a kernel.

    Notes
    -----
    The moments take one pass over the data and O(n d²) time; if there are fewer rows than features, O(n² d). The
    components have sums of squares, not variances, of at most one over the training rows: where the scale matters to
    what comes after, let a StandardScaler come between.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> dca = DCA().fit(X, y)
    >>> dca.transform(X).shape
    (150, 2)
    >>> dca.explained_discriminant_information_.round(3)
    array([0.97 , 0.222])
    """

    random_state = 0  # nothing here is random

    def __init__(self, n_components=None, *, rho=1e-4, scaling="unit"):
        self.n_components = n_components
        self.rho = rho
        self.scaling = scaling

    def _subspace(self, source, generator):
        identity, n_features = ModuleMap(nn.Identity()), source.features(slice(0, 1)).shape[1]
        if len(source) >= n_features:
            return Subspace(identity)
        x = source.features(slice(None)).double()  # fewer rows than features: look in the span of the rows
        centre = x.mean(0)
        x = x - centre
        return Subspace(identity, x.T @ whitening(x @ x.T), centre)


class KernelDCA(DiscriminantAnalysis):
    """Kernel Discriminant Component Analysis: Kernel PCA with targets, exact or in a Nyström subspace.

    Finds the A (J×k) that maximises tr(AᵀḠᵀY YᵀḠA) subject to Aᵀ(ḠᵀḠ + ρB)A = I, eq. (KDI) of the paper, where
    G = k(X, X_r) and B = k(X_r, X_r). If the landmarks X_r are all training rows, this is eq. (KDCA). Where every
    sample is its own class (``y=None``) the components are those of Kernel PCA, up to the lengths of the columns.

    Parameters
    ----------
    n_components : int, optional
        The number of components, k. By default all that carry information: at most one less than the classes, one for
        each regression target or label, the rank of the kernel matrix if ``y=None``.
    kernel : str or Kernel
        "rbf", "laplacian", "matern", "cauchy", "polynomial", "linear" or a `discernel.Kernel`.
    gamma : float, array, "scale", "median" or "cv"
        The bandwidth, one number or one per feature, or a rule that finds one number: see `discernel.estimators.gamma`.
    rho : float
        The ridge penalty, absolute as in the paper: twice the rows feel it half as much. If all rows are landmarks
        nothing else keeps the components from fitting noise; the fewer the landmarks, the smaller it may be.
    n_landmarks : int, optional
        None: exact, all distinct training rows are landmarks, of which there may be 5000; O(n³) time and O(n²) memory.
        A number J: in the span of so many of them, in O(n J²) time and O(J²) memory besides the data.
    init : {"uniform", "kmeans", "leverage"}
        How `n_landmarks` are chosen.
    scaling : {"unit", "indicator"}
        The columns of Y for classes and labels: of unit norm, by which S_B is Fisher's between-class scatter and all
        classes weigh the same; or raw indicators, as in the paper's experiments. Regression targets are taken as they
        are.
    random_state : int, RandomState or None
        Decides the landmarks, and the rows that gamma is chosen by.

    Attributes
    ----------
    landmarks_ : ndarray (J, d)
        X_r.
    scalings_ : ndarray (J, k)
        A, the most informative component first; the components of x are ``(k(x, landmarks_) − mean_)A``.
    mean_ : ndarray (J,)
        The mean of ``k(x, landmarks_)`` over the training rows.
    explained_discriminant_information_ : ndarray (k,)
        The Discriminant Information of each component: of classes with unit columns, between zero and one.
    discriminant_information_ : float
        DI, their sum over all components, also those beyond `n_components`.
    classes_ : ndarray (L,)
        The classes, if y has classes.
    gamma_ : float or ndarray (d,)
        Gamma as given or found.

    See Also
    --------
    DCA : The same in the features themselves; after `LearnedNystroem`, in a learned subspace.
    KernelDiscriminantAnalysis : The same components, scaled as LDA's.

    Notes
    -----
    Computed in float64, whatever the precision of the data; float32 data give float32 components. These have sums of
    squares, not variances, of at most one over the training rows: where the scale matters to what comes after, let a
    StandardScaler come between.

    Examples
    --------
    >>> from sklearn.datasets import make_circles
    >>> X, y = make_circles(200, factor=0.5, noise=0.05, random_state=0)
    >>> DCA().fit(X, y).discriminant_information_ < 0.01  # no straight line tells the circles apart
    True
    >>> KernelDCA().fit(X, y).explained_discriminant_information_.round(2)
    array([0.97])
    """

    def __init__(
        self,
        n_components=None,
        *,
        kernel="rbf",
        gamma="scale",
        rho=0.1,
        n_landmarks=None,
        init="uniform",
        scaling="unit",
        random_state=None,
    ):
        self.n_components = n_components
        self.kernel = kernel
        self.gamma = gamma
        self.rho = rho
        self.n_landmarks = n_landmarks
        self.init = init
        self.scaling = scaling
        self.random_state = random_state

    def _check_parameters(self):
        super()._check_parameters()
        if self.n_landmarks is not None:
            checks.positive_int("n_landmarks", self.n_landmarks)
        checks.one_of("init", self.init, INITS)
        if isinstance(self.gamma, str):
            checks.one_of("gamma", self.gamma, GAMMA_RULES)

    def _subspace(self, source, generator):
        if self.n_landmarks is None and len(source) > EXACT_ROWS:
            raise ValueError(
                f"X has {len(source)} rows, and exact kernel components are for at most {EXACT_ROWS}; "
                "set n_landmarks, such as n_landmarks=1000, to find them in a subspace"
            )
        x, weight, y = sample(source, generator)
        kernel = kernel_from_data(self.kernel, self.gamma, x, y, weight, generator)
        feature_map = Nystroem(self._landmarks(x, weight, generator, kernel).double(), kernel).requires_grad_(False)
        return Subspace(feature_map, whitening(feature_map.gram()))

    def _set_attributes(self, feature_map):
        super()._set_attributes(feature_map)
        self.landmarks_ = feature_map.landmarks.numpy()
        self.gamma_ = gamma_of(feature_map.kernel)

    def _landmarks(self, x, weight, generator, kernel) -> Tensor:
        rows, _ = distinct_rows(x, weight)
        if self.n_landmarks is None:
            return x[rows]
        if self.n_landmarks > len(rows):
            warnings.warn(f"n_landmarks is {self.n_landmarks}, but there are {len(rows)} distinct rows: using those")
        return choose_landmarks(x, min(self.n_landmarks, len(rows)), self.init, generator, weight, kernel)


class KernelDiscriminantAnalysis(KernelDCA):
    """Kernel Discriminant Analysis: LDA in the feature space of a kernel.

    Finds the A (J×k) that maximises det(AᵀS_B A) / det(Aᵀ(S_W + ρB)A), where S_W and S_B are the within-class and the
    between-class scatter of G = k(X, X_r), and B = k(X_r, X_r): eq. (LDA) of the paper with a ridge. The components are
    those of `KernelDCA`, since S̄ = S_W + S_B, scaled as LDA's: with the within-class covariance (and its ridge) equal
    to the identity. So the nearest class mean is LDA's prediction for equal priors.

    Parameters
    ----------
    n_components : int, optional
        The number of components, k; by default one less than the classes.
    kernel, gamma, rho, n_landmarks, init, random_state
        As of `KernelDCA`. As ρ → 0 all rows of a class fall on one point, where the kernel can tell all rows apart.

    Attributes
    ----------
    landmarks_, scalings_, mean_, explained_discriminant_information_, discriminant_information_, classes_, gamma_
        As of `KernelDCA`. The ratio of the scatters is i/(1 − i) for a component of information i.

    See Also
    --------
    sklearn.discriminant_analysis.LinearDiscriminantAnalysis : What this is with a linear kernel, as ρ → 0.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from sklearn.neighbors import NearestCentroid
    >>> from sklearn.pipeline import make_pipeline
    >>> X, y = load_digits(return_X_y=True)
    >>> model = make_pipeline(KernelDiscriminantAnalysis(n_landmarks=300, random_state=0), NearestCentroid())
    >>> model.fit(X[:1200], y[:1200]).score(X[1200:], y[1200:]) > 0.95
    True
    """

    scaling = "unit"

    def __init__(
        self,
        n_components=None,
        *,
        kernel="rbf",
        gamma="scale",
        rho=0.1,
        n_landmarks=None,
        init="uniform",
        random_state=None,
    ):
        self.n_components = n_components
        self.kernel = kernel
        self.gamma = gamma
        self.rho = rho
        self.n_landmarks = n_landmarks
        self.init = init
        self.random_state = random_state

    def _rows(self, X, y, sample_weight):
        if y is None:
            raise ValueError(f"{type(self).__name__} requires y to be passed, but the target y is None")
        return super()._rows(X, y, sample_weight)

    def _targets(self, y, weight):
        check_classification_targets(y)
        if np.ndim(y) == 2 and y.shape[1] > 1:
            raise ValueError(f"y must have one class for each row, got shape {y.shape}; KernelDCA takes labels")
        return super()._targets(y, weight)

    def _scaled(self, components, count):
        return within_class(components) * count**0.5

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        tags.target_tags.multi_output = False
        return tags


def _signed(columns: np.ndarray) -> np.ndarray:
    """Return the columns, each with the sign that makes its entry of largest magnitude positive."""
    largest = np.take_along_axis(columns, np.abs(columns).argmax(0)[None], 0)
    return columns * np.where(largest < 0, -1.0, 1.0)
