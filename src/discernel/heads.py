"""Heads: linear models on learned features, fitted in passes over batches of them.

The ridge head is exact and takes one pass (`Moments.ridge`). Here are those with another convex loss.
"""

import math
import warnings
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
import torch
from scipy.optimize import minimize, minimize_scalar
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor
from torch.nn import functional as F

from discernel import checks
from discernel.linalg import threads_for

Passes = Callable[[], Iterable[tuple[Tensor, Tensor, Tensor | None]]]


class LinearModel(NamedTuple):
    """Scores φ W + b."""

    weights: Tensor  # J×L
    intercept: Tensor  # L

    def scores(self, features: Tensor) -> Tensor:
        """Return φ W + b, n×L."""
        return torch.addmm(self.intercept.to(features), features, self.weights.to(features))


def squared_hinge(scores: Tensor, targets: Tensor) -> Tensor:
    """Return Σ max(0, 1 − ys)² of each row with y = ±1 for a target of 1 or 0: a linear SVM for each target."""
    return (1 - (2 * targets - 1) * scores).clamp_min_(0).square().sum(1)


def softmax(scores: Tensor, targets: Tensor) -> Tensor:
    """Return the cross-entropy of each row."""
    return F.cross_entropy(scores, targets, reduction="none")


def logistic(scores: Tensor, targets: Tensor) -> Tensor:
    """Return the sum of the independent logistic losses of each row."""
    return F.binary_cross_entropy_with_logits(scores, targets, reduction="none").sum(1)


LOSSES = {"svm": squared_hinge, "softmax": softmax, "logistic": logistic}


def fit_linear(passes: Passes, loss: str, C: float = 1.0, tol: float = 1e-5, max_iter: int = 1000) -> LinearModel:
    """Return the minimiser of ½‖W‖² + C Σᵢ wᵢ loss(φᵢW + b, yᵢ), as LinearSVC and LogisticRegression have it.

    By L-BFGS on all the rows. The intercept is not penalised. Two classes have a column each, as more of them have;
    LogisticRegression has one then, which is their difference if its C is half as large. (Preconditioning by the
    scatter was tried: it takes more passes, since the loss is flat on most rows.)

    Parameters
    ----------
    passes : callable
        Starts a pass over the data: batches of features, targets (0/1) and weights or None.
    loss : {"svm", "softmax", "logistic"}
        Squared hinge of one class against the rest, cross-entropy, or independent logistic losses.
    C : float
        The weight of the loss against the penalty.
    tol : float
        Stop when a step lowers the objective by less than this share of it.
    max_iter : int
        At most so many steps; each takes about one pass.
    """
    per_row = LOSSES[checks.one_of("loss", loss, LOSSES)]
    features, targets, _ = next(iter(passes()))
    shape = features.shape[1] + 1, targets.shape[1]  # the last row is the intercept

    def unpack(z: np.ndarray) -> Tensor:
        return torch.from_numpy(z).view(shape).to(features.device)

    def objective(z: np.ndarray) -> tuple[float, np.ndarray]:
        w = unpack(z)
        model = LinearModel(w[:-1], w[-1])
        value, gradient = 0.5 * model.weights.square().sum().item(), torch.zeros_like(w)
        gradient[:-1] = model.weights
        for features, targets, weight in passes():
            scores = model.scores(features).requires_grad_(True)
            losses = per_row(scores, targets)
            total = C * (losses.sum() if weight is None else losses @ weight)
            (slope,) = torch.autograd.grad(total, scores)
            value += total.item()
            gradient[:-1] += (slope.T.contiguous() @ features).T  # the layout that BLAS is several times quicker at
            gradient[-1] += slope.sum(0)
        return value, gradient.flatten().cpu().numpy()

    options = {"maxiter": max_iter, "maxfun": 2 * max_iter, "maxcor": 20, "ftol": tol, "gtol": 0.0}
    with threads_for(features.numel() * shape[1]):
        found = minimize(objective, np.zeros(shape[0] * shape[1]), jac=True, method="L-BFGS-B", options=options)
    if found.status == 1:
        warnings.warn(f"the {loss} head has not converged in {max_iter} steps: raise alpha", ConvergenceWarning)
    w = unpack(found.x)
    return LinearModel(w[:-1], w[-1])


def temperature(scores: Tensor, targets: Tensor, sample_weight: Tensor | None, independent: bool = False) -> float:
    """Return the t > 0 for which softmax(t·scores), or sigmoid(t·scores), gives the targets the greatest likelihood.

    The rows are those that the scores were trained on, which they may separate perfectly: then no t is large enough.
    So a class of N rows counts as having been seen N + 1 times, and missed once (Platt 1999).
    """
    scores, targets = scores.double(), targets.double()
    weight = scores.new_ones(len(scores)) if sample_weight is None else sample_weight.double()
    count = weight @ targets
    hit = (count + 1) / (count + 2)
    if independent:
        miss = 1 / (weight.sum() - count + 2)
        targets = targets * hit + (1 - targets) * miss
    else:
        own = (targets * hit).sum(1, keepdim=True)
        targets = targets * own + (1 - targets) * (1 - own) / (targets.shape[1] - 1)
    loss = logistic if independent else softmax

    def risk(log_t: float) -> float:
        return (loss(scores * math.exp(log_t), targets) @ weight).item()

    return math.exp(minimize_scalar(risk, bounds=(-7.0, 7.0), method="bounded", options={"xatol": 1e-10}).x)


def sum_of_variances(batches: Iterable[tuple[Tensor, Tensor, Tensor | None]]) -> float:
    """Return the total variance of features, Σ wᵢ‖φᵢ − φ̄‖²/Σ wᵢ, or one if they do not vary."""
    count, total, squares = 0.0, torch.zeros(()), 0.0
    for features, _, weight in batches:
        features = features.double()
        w = features.new_ones(len(features)) if weight is None else weight.double()
        count, total = count + w.sum().item(), total.to(features) + w @ features
        squares += (w @ features.square().sum(1)).item()
    spread = squares / count - (total / count).square().sum().item()
    return spread if spread > 0 else 1.0
