"""Choosing the bandwidth γ from the data."""

import numpy as np
import torch
from sklearn.kernel_approximation import Nystroem as RandomNystroem
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.svm import LinearSVC
from torch import Tensor

from discernel.landmarks import distinct_rows

RULES = ("scale", "median", "cv", "learn")
MEDIAN_SAMPLES = 1000
CV_GRID = 2.0 ** np.arange(-4, 5)  # times the "scale" rule's
CV_COMPONENTS = 1000
CV_SAMPLES = 10_000


def gamma_from_data(rule: str, x: Tensor, y, sample_weight: Tensor | None, generator: torch.Generator) -> float:
    """Return γ by a rule.

    Parameters
    ----------
    rule : {"scale", "median", "cv"}
        "scale": 1/(d·Var X), scikit-learn's. "median": 1/(the median squared distance of 1000 rows). "cv": the paper's
        protocol, the best of a grid about "scale" in 3-fold cross-validation of a linear SVM on random Nyström
        features, up to 1000 of them, on at most 10000 rows; the weights of these enter the SVM, not its score.
    x : Tensor (n, d)
        The data.
    y : array (n,)
        Class labels, used by "cv" only.
    sample_weight : Tensor (n,), optional
        How often each row counts.
    generator : torch.Generator
        The source of randomness.
    """
    if rule == "median":
        rows, weight = distinct_rows(x, sample_weight)
        pairs = rows[torch.multinomial(weight, 2 * MEDIAN_SAMPLES, replacement=True, generator=generator)]
        a, b = x[pairs.to(x.device)].double().chunk(2)
        distance = (a - b).square().sum(1).median().item()
        if distance > 0:
            return 1.0 / distance
    scale = _scale(x, sample_weight)
    if rule != "cv":
        return scale
    rows = torch.randperm(len(x), generator=generator)[:CV_SAMPLES].numpy()
    components = min(CV_COMPONENTS, len(rows) // 2)
    seed = int(torch.randint(2**31 - 1, (), generator=generator))
    model = make_pipeline(RandomNystroem(n_components=components, random_state=seed), LinearSVC(dual=False, tol=1e-2))
    search = GridSearchCV(model, {"nystroem__gamma": scale * CV_GRID}, cv=3, refit=False)
    weight = {} if sample_weight is None else {"linearsvc__sample_weight": sample_weight.cpu().numpy()[rows]}
    search.fit(x.cpu().numpy()[rows], np.asarray(y)[rows], **weight)
    return float(search.best_params_["nystroem__gamma"])


def _scale(x: Tensor, sample_weight: Tensor | None) -> float:
    """1/(d·Var X) of all entries, or 1/d where they do not vary."""
    weight = (torch.ones(len(x)) if sample_weight is None else sample_weight).double().to(x.device)
    weight = weight / weight.sum()
    x = x.double() - x[0, 0].double()  # equal entries are then zero, exactly
    variance = (weight @ (x - (weight @ x).mean()).square()).mean().item()
    return 1.0 / (x.shape[1] * variance) if variance > 0 else 1.0 / x.shape[1]
