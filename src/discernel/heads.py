"""Heads: linear models on learned features, fitted in passes over batches of them.

The ridge head is exact and takes one pass (`Moments.ridge`). Here are those with another convex loss.
"""

import math
import warnings
from collections.abc import Callable, Iterable, Iterator
from functools import reduce
from typing import NamedTuple

import numpy as np
import torch
from scipy.optimize import minimize, minimize_scalar
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor
from torch.nn import functional as F

from discernel import checks
from discernel.linalg import product, solve_psd, symmetric_product, unchanged
from discernel.resources import threads_for

HESSIANS = 2**26  # entries that are kept at a time
_ROWS = 512  # of which the rows of a product are a multiple
_SHARES = (0.0, 0.1, 0.25, 0.5, 0.75, 1.0)  # of a Newton step

Passes = Callable[[], Iterable[tuple[Tensor, Tensor, Tensor | None]]]


class LinearModel(NamedTuple):
    """Scores φ W + b."""

    weights: Tensor  # J×L
    intercept: Tensor  # L

    def scores(self, features: Tensor) -> Tensor:
        """Return φ W + b, n×L."""
        return product(features, self.weights.to(features), self.intercept.to(features))


def squared_hinge(scores: Tensor, targets: Tensor) -> Tensor:
    """Return Σ max(0, 1 − ys)² of each row, y = 1 for a target above 0 and −1 for 0: a linear SVM for each target."""
    return (1 - torch.where(targets > 0, scores, -scores)).clamp_min_(0).square().sum(1)


def softmax(scores: Tensor, targets: Tensor) -> Tensor:
    """Return the cross-entropy of each row."""
    return F.cross_entropy(scores, targets, reduction="none")


def logistic(scores: Tensor, targets: Tensor) -> Tensor:
    """Return the sum of the independent logistic losses of each row."""
    return F.binary_cross_entropy_with_logits(scores, targets, reduction="none").sum(1)


LOSSES = {"svm": squared_hinge, "softmax": softmax, "logistic": logistic}


def fit_linear(
    passes: Passes,
    loss: str,
    C: float = 1.0,
    tol: float | None = None,
    max_iter: int = 1000,
    total: Callable[[Tensor], Tensor] = unchanged,
) -> LinearModel:
    """Return the minimiser of ½‖W‖² + C Σᵢ wᵢ loss(φᵢW + b, yᵢ), as LinearSVC and LogisticRegression have it.

    The intercept is not penalised. Two classes have a column each, as more of them have; LogisticRegression has one
    then, which is their difference if its C is half as large. The squared hinge is minimised by Newton's method, whose
    every step is a ridge regression on the rows inside the margin; the others by L-BFGS.

    Parameters
    ----------
    passes : callable
        Starts a pass over the data: batches of features, targets (0/1) and weights or None.
    loss : {"svm", "softmax", "logistic"}
        Squared hinge of one class against the rest, cross-entropy, or independent logistic losses.
    C : float
        The weight of the loss against the penalty.
    tol : float, optional
        Stop when a step lowers the objective by less than this share of it; by default 1e-8 for Newton's method and
        1e-5 for L-BFGS.
    max_iter : int
        At most so many steps; each takes about one pass, or two of Newton's.
    total : callable
        Makes a sum over the rows of this process one over those of all processes.
    """
    checks.one_of("loss", loss, LOSSES)
    features, targets, _ = next(iter(passes()))
    with threads_for(features.numel() * targets.shape[1]):
        solve = _newton if loss == "svm" else _lbfgs
        w, converged = solve(passes, loss, C, tol, max_iter, total)
    if not converged:
        warnings.warn(f"the {loss} head has not converged in {max_iter} steps: raise alpha", ConvergenceWarning)
    return LinearModel(w[:-1], w[-1])


def _lbfgs(passes: Passes, loss: str, C: float, tol: float | None, max_iter: int, total) -> tuple[Tensor, bool]:
    """Return W over b, and whether it has converged."""
    features, targets, _ = next(iter(passes()))
    shape = features.shape[1] + 1, targets.shape[1]  # the last row is the intercept
    per_row = LOSSES[loss]

    def unpack(z: np.ndarray) -> Tensor:
        return torch.from_numpy(z).view(shape).to(features.device)

    def objective(z: np.ndarray) -> tuple[float, np.ndarray]:
        w = unpack(z)
        model = LinearModel(w[:-1], w[-1])
        sums = w.new_zeros(w.numel() + 1)  # the gradient, and the loss
        gradient = sums[:-1].view(shape)
        for features, targets, weight in passes():
            scores = model.scores(features).requires_grad_(True)
            losses = per_row(scores, targets)
            risk = C * (losses.sum() if weight is None else losses @ weight)
            (slope,) = torch.autograd.grad(risk, scores)
            sums[-1] += risk.item()
            gradient[:-1] += (slope.T.contiguous() @ features).T  # the layout that BLAS is several times quicker at
            gradient[-1] += slope.sum(0)
        *slopes, value = total(sums).split([model.weights.numel(), shape[1], 1])
        slopes[0] += model.weights.flatten()
        value = value.item() + 0.5 * model.weights.square().sum().item()
        return value, torch.cat(slopes).cpu().numpy()

    options = {"maxiter": max_iter, "maxfun": 2 * max_iter, "maxcor": 20, "ftol": tol or 1e-5, "gtol": 0.0}
    found = minimize(objective, np.zeros(shape[0] * shape[1]), jac=True, method="L-BFGS-B", options=options)
    return unpack(found.x), found.status != 1


def _newton(passes: Passes, loss: str, C: float, tol: float | None, max_iter: int, total) -> tuple[Tensor, bool]:
    """Return W over b of the squared hinge, and whether it has converged.

    The targets do not depend on each other: as many are taken at a time as their second derivatives fit into memory.
    """
    features, targets, _ = next(iter(passes()))
    some = max(1, HESSIANS // (features.shape[1] + 1) ** 2)
    groups = [slice(start, start + some) for start in range(0, targets.shape[1], some)]
    found = [_newton_of_some(passes, group, C, tol or 1e-8, max_iter, total) for group in groups]
    return torch.cat([w for w, _ in found], 1), all(converged for _, converged in found)


def _newton_of_some(passes: Passes, group: slice, C: float, tol: float, max_iter: int, total) -> tuple[Tensor, bool]:
    def rows() -> Iterator[tuple[Tensor, Tensor]]:
        """Yield (φ, 1) and the targets as ±1, both times the root of the weight."""
        for features, targets, weight in passes():
            root = features.new_ones(len(features), 1) if weight is None else weight.to(features)[:, None].sqrt()
            yield torch.cat([features * root, root], 1), torch.where(targets[:, group] > 0, root, -root)

    w, before, sums, last = _from_zero(rows(), C, total), None, None, math.inf
    for _ in range(max_iter):
        gradient, sums = _at(rows(), w, before, sums, total)
        gradient[:, :-1] -= w[:-1].T / (2 * C)
        step = torch.cat([_solve(h, g[:, None], C) for h, g in zip(sums, gradient, strict=True)], 1)
        before = w
        w, value = _along(rows(), w, step, C, total)
        if last - value <= tol * value:
            return w, True
        last = value
    return w, False


def _solve(sums: Tensor, gradient: Tensor, C: float) -> Tensor:
    """Return a Newton step; the intercept is not penalised."""
    hessian = sums.clone()
    hessian.diagonal()[:-1] += 1 / (2 * C)
    return solve_psd(hessian, gradient).x


def _pulled(pull: Tensor, phi: Tensor) -> Tensor:
    return (pull.T.contiguous() @ phi).double()  # the layout that BLAS is several times quicker at


def _from_zero(rows: Iterable[tuple[Tensor, Tensor]], C: float, total) -> Tensor:
    """Return the first step, from zero, where all rows are inside every margin: a ridge regression."""
    parts = ((symmetric_product(phi).double(), _pulled(signs, phi)) for phi, signs in rows)
    sums, gradient = reduce(lambda a, b: (a[0] + b[0], a[1] + b[1]), parts)
    return _solve(total(sums), total(gradient).T, C)


def _at(
    rows: Iterable[tuple[Tensor, Tensor]], w: Tensor, before: Tensor | None, sums: Tensor | None, total
) -> tuple[Tensor, Tensor]:
    """Return the pull of the rows inside each target's margin, Σ (y − φw)φ, and their Σ φφᵀ.

    Given the latter of weights `before`, only the rows that have come in or gone out since are looked at: fewer with
    every step.
    """
    gradient, changes = torch.zeros_like(w.T), w.new_zeros(w.shape[1], len(w), len(w))
    for phi, signs in rows:
        margin = signs - phi @ w.to(phi)
        inside = signs * margin > 0
        gradient += _pulled(torch.where(inside, margin, 0.0), phi)
        was = torch.zeros_like(inside) if before is None else signs * (signs - phi @ before.to(phi)) > 0
        room = torch.empty_like(phi)
        for change, come, gone in zip(changes, (inside & ~was).T, (was & ~inside).T, strict=True):
            change += _scatter_of(phi, come, room)
            change -= _scatter_of(phi, gone, room)
    return total(gradient), total(changes) if sums is None else sums + total(changes)


def _scatter_of(phi: Tensor, chosen: Tensor, room: Tensor) -> Tensor:
    """Return Σ φφᵀ of the chosen rows, gathered in `room`, with zeros up to a multiple of 512 rows.

    The products then are of few shapes: for each that it has not seen, oneDNN makes a program, and keeps it.
    """
    index = chosen.nonzero()[:, 0]
    rows = room[: -(-len(index) // _ROWS) * _ROWS]
    torch.index_select(phi, 0, index, out=rows[: len(index)])
    rows[len(index) :] = 0
    return symmetric_product(rows)


def _along(rows: Iterable[tuple[Tensor, Tensor]], w: Tensor, step: Tensor, C: float, total) -> tuple[Tensor, float]:
    """Return the best of some points on the way from `w` along each target's step, and the objective there."""
    shares = torch.tensor(_SHARES, dtype=torch.float64, device=w.device)
    points = w + shares[:, None, None] * step
    losses = w.new_zeros(len(shares), w.shape[1])
    for phi, signs in rows:
        scores, change = phi @ w.to(phi), phi @ step.to(phi)
        for loss, share in zip(losses, _SHARES, strict=True):
            # the weights are inside the squares
            loss += (signs.abs() - signs.sign() * (scores + share * change)).clamp_min_(0).square().sum(0)
    values = 0.5 * points[:, :-1].square().sum(1) + C * total(losses)
    best = values.argmin(0)
    column = torch.arange(w.shape[1], device=w.device)
    return points[best, :, column].T, values[best, column].sum().item()


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


def sum_of_variances(batches: Iterable[tuple[Tensor, Tensor, Tensor | None]], total=unchanged) -> float:
    """Return the total variance of features, Σ wᵢ‖φᵢ − φ̄‖²/Σ wᵢ, or one if they do not vary."""
    parts = []
    for features, _, weight in batches:
        features = features.double()
        w = features.new_ones(len(features)) if weight is None else weight.double()
        parts.append(torch.cat([w @ features, w @ features.square().sum(1, keepdim=True), w.sum()[None]]))
    *sums, squares, count = total(torch.stack(parts).sum(0))
    spread = (squares / count - (torch.stack(sums) / count).square().sum()).item()
    return spread if spread > 0 else 1.0
