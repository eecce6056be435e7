"""Choosing the bandwidth γ from the data."""

import copy
import math
from typing import Any

import numpy as np
import torch
from sklearn.kernel_approximation import Nystroem as RandomNystroem
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.svm import LinearSVC
from sklearn.utils.multiclass import type_of_target
from torch import Tensor

from discernel import checks
from discernel.bandwidth import median_gamma, scale_gamma
from discernel.kernels import KERNELS, Kernel, kernel_named, make_kernel
from discernel.landmarks import distinct_rows

RULES = ("scale", "median", "cv", "learn")
MEDIAN_SAMPLES = 1000
CV_GRID = 2.0 ** np.arange(-4, 5)  # times the "scale" rule's
CV_COMPONENTS = 1000
CV_SAMPLES = 10_000
CV_KERNELS: dict[str, dict[str, Any]] = {  # of scikit-learn's; the radial ones are its RBF, which γ means the same for
    "laplacian": {"kernel": "laplacian"},
    "polynomial": {"kernel": "polynomial"},
    "linear": {"kernel": "polynomial", "degree": 1, "coef0": 0},
}


def gamma_from_data(
    rule: str, x: Tensor, y, sample_weight: Tensor | None, generator: torch.Generator, kernel: str = "rbf"
) -> float:
    """Return γ by a rule, which gives the same kernel when all features are multiplied by one number.

    Parameters
    ----------
    rule : {"scale", "median", "cv"}
        "scale": 1/(d·Var X), scikit-learn's. "median": 1/(the median squared distance of 1000 pairs of rows). "cv": the
        paper's protocol, the best of a grid about "scale" in 3-fold cross-validation of a linear SVM on random Nyström
        features, up to 1000 of them, on at most 10000 rows; the weights of these enter the SVM, not its score.
        The Laplacian kernel has no squares: 1/(d·√Var X), and 1/(the median of ‖x − z‖₁). Features of a Matérn or a
        Cauchy kernel are cross-validated as those of RBF, whose γ means the same; all others as their own.
    x : Tensor (n, d)
        The data.
    y : array (n,)
        Class labels, used by "cv" only.
    sample_weight : Tensor (n,), optional
        How often each row counts.
    generator : torch.Generator
        The source of randomness.
    kernel : str
        The name of the kernel.
    """
    power = kernel_named(kernel).power
    if rule == "median":
        rows, weight = distinct_rows(x, sample_weight)
        pairs = rows[torch.multinomial(weight, 2 * MEDIAN_SAMPLES, replacement=True, generator=generator)]
        return median_gamma(x, pairs, sample_weight, power)
    scale = scale_gamma(x, sample_weight, power)
    if rule != "cv":
        return scale
    rows = torch.randperm(len(x), generator=generator)[:CV_SAMPLES].numpy()
    components = min(CV_COMPONENTS, len(rows) // 2)
    seed = int(torch.randint(2**31 - 1, (), generator=generator))
    features = RandomNystroem(n_components=components, random_state=seed, **CV_KERNELS.get(kernel, {}))
    model = make_pipeline(features, LinearSVC(dual=False, tol=1e-2))
    search = GridSearchCV(model, {"nystroem__gamma": scale * CV_GRID}, cv=3, refit=False)
    weight = {} if sample_weight is None else {"linearsvc__sample_weight": sample_weight.cpu().numpy()[rows]}
    search.fit(x.cpu().numpy()[rows], np.asarray(y)[rows], **weight)
    return float(search.best_params_["nystroem__gamma"])


def check_kernel(kernel, gamma, rules) -> None:
    """Refuse what is no kernel, and what is neither a rule for gamma nor a gamma."""
    if not isinstance(kernel, Kernel):
        checks.one_of("kernel", kernel, KERNELS)
    if isinstance(gamma, str):
        checks.one_of("gamma", gamma, rules)
    else:
        make_kernel("rbf", gamma)


def kernel_from_data(
    kernel, gamma, x: Tensor, y, weight: Tensor | None, generator: torch.Generator, n_components: int = 1
) -> Kernel:
    """Return the kernel with its gamma found by the rule, and trainable if that is to be learned.

    A metric that is learned starts from "scale", times √J/5 if that is more than one: the more landmarks there are,
    the narrower may each of them look.
    """
    if isinstance(kernel, Kernel):
        return copy.deepcopy(kernel)
    if not isinstance(gamma, str):
        return make_kernel(kernel, gamma)
    checks.one_of("gamma", gamma, RULES)
    if gamma == "cv" and (y is None or type_of_target(y) not in ("binary", "multiclass")):
        raise ValueError('gamma="cv" needs a class for each row in y; use "scale", "median" or a number')
    value = gamma_from_data("scale" if gamma == "learn" else gamma, x, y, weight, generator, kernel)
    if gamma == "learn":
        value *= max(1.0, math.sqrt(n_components) / 5)
        return make_kernel(kernel, torch.full((x.shape[1],), value, dtype=torch.float64), trainable=True)
    return make_kernel(kernel, value)


def gamma_of(kernel: Kernel) -> float | np.ndarray:
    """Return the gamma of a kernel as an attribute of an estimator."""
    gamma = copy.deepcopy(kernel).double().gamma.numpy()  # the square of a float32 number may be none
    return float(gamma) if gamma.ndim == 0 else gamma
