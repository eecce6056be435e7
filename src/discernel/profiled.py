"""Criteria without a closed form: the loss of the best linear model on the features, found anew for every mini-batch.

Discriminant Information is such a criterion: ‖Ȳ‖² − DI is the least regularised squared error of a linear model. For
another convex loss the best model is not a formula but the end of an inner minimisation. By the envelope theorem the
gradient by the features is then that of the loss with the best model held fixed, exactly as in DI: nothing is
differentiated through the inner steps, however many there were.
"""

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor

from discernel import checks, heads
from discernel.criteria import Criterion
from discernel.discriminant import whitening
from discernel.linalg import symmetric_product, whitened


def squares(scores: Tensor, targets: Tensor) -> Tensor:
    """Return the squared error of each row."""
    return (scores - targets).square().sum(1)


LOSSES = heads.LOSSES | {"squares": squares}
CURVATURES = {"softmax": 0.5, "logistic": 0.25, "svm": 2.0, "squares": 2.0}  # no second derivative is larger


class Profiled(Criterion):
    """The least regularised loss of a linear model on the features, minimised over the model for every mini-batch.

    V(G, Y; ρ, B) = min over W, b of Σᵢ wᵢ loss(gᵢW + b, yᵢ) + ρ tr(WᵀBW), divided by Σ wᵢ. With the minimiser held
    fixed the derivatives are exact (the envelope theorem).

    Parameters
    ----------
    loss : {"softmax", "logistic", "svm", "squares"}
        Cross-entropy of classes; logistic losses of labels; squared hinges, one class against the rest; squared
        errors, whose V is (‖Ȳ‖² − DI)/n, for which `DI` is far quicker.
    rho : float
        The penalty, absolute as that of DI. A loss that is zero where the batch is separated has no gradient left
        there, so it wants a larger one than DI.
    tol : float
        The inner minimisation stops when a step lowers the loss by less than this share of it.
    max_iter : int
        Or after so many steps.

    Examples
    --------
    >>> basis, targets = torch.tensor([[0.0], [0.0], [1.0], [1.0]]), torch.tensor([[0.0], [0.0], [1.0], [1.0]])
    >>> Profiled("squares", rho=1.0)(basis, targets)  # (‖Ȳ‖² − DI)/4 = (1 − 1/2)/4
    tensor(0.1250)
    """

    higher_is_better = False

    def __init__(self, loss: str = "softmax", rho: float = 1e-1, tol: float = 1e-6, max_iter: int = 200):
        super().__init__()
        self.loss = checks.one_of("loss", loss, LOSSES)
        self.rho = checks.positive("rho", rho)
        self.tol = checks.positive("tol", tol)
        self.max_iter = checks.positive_int("max_iter", max_iter)

    def forward(self, basis, targets, gram=None, sample_weight=None):
        """Return the least loss, as a mean over the rows."""
        features = (basis if gram is None else whitened(basis, gram)).double()
        targets = targets.double()
        weight = features.new_ones(len(features)) if sample_weight is None else sample_weight.double()
        with torch.no_grad():
            model = self._best(features, targets, weight)
        losses = LOSSES[self.loss](torch.addmm(model[-1], features, model[:-1]), targets)
        penalty = self.rho / self.ranks * model[:-1].square().sum()
        return ((losses @ weight + penalty) / self.total(weight.sum())).to(basis.dtype)

    def _best(self, features: Tensor, targets: Tensor, weight: Tensor) -> Tensor:
        """Return the W over b that minimises the loss, by L-BFGS.

        In coordinates in which the bound on the curvature, c Σwᵢgᵢgᵢᵀ + 2ρI, is the identity: that takes half or a
        third of the steps. (A start from the model of the batch before was tried: it saves none.)
        """
        rows = torch.cat([features, features.new_ones(len(features), 1)], 1)  # the last weight is the intercept
        bound = CURVATURES[self.loss] * self.total(symmetric_product(rows * weight.sqrt()[:, None]))
        bound.diagonal()[:-1] += 2 * self.rho
        turn = whitening(bound)
        rows, shape = rows @ turn, (turn.shape[1], targets.shape[1])

        def objective(z: np.ndarray) -> tuple[float, np.ndarray]:
            model = torch.from_numpy(z).view(shape).to(rows)
            scores = (rows @ model).requires_grad_()
            with torch.enable_grad():
                loss = LOSSES[self.loss](scores, targets) @ weight
            (slope,) = torch.autograd.grad(loss, scores)
            sums = self.total(torch.cat([(slope.T.contiguous() @ rows).T.flatten(), loss.detach()[None]])).cpu()
            weights = turn[:-1] @ model
            gradient = sums[:-1] + 2 * self.rho * (turn[:-1].T @ weights).flatten().cpu()
            return sums[-1].item() + self.rho * weights.square().sum().item(), gradient.numpy()

        options = {"maxiter": self.max_iter, "maxfun": 2 * self.max_iter, "maxcor": 20, "ftol": self.tol, "gtol": 0.0}
        found = minimize(objective, np.zeros(shape[0] * shape[1]), jac=True, method="L-BFGS-B", options=options)
        return turn @ torch.from_numpy(found.x).view(shape).to(rows)
