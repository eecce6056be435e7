"""The criteria that kernel maps are trained by: Discriminant Information (DI), and the paper's baselines LS and CE.

A criterion meets a feature map in three tensors: the basis G (n×J), the targets Y (n×L) and the gram B (J×J, or None
for the identity). It knows nothing else of the map.
"""

import copy
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from discernel import checks
from discernel.closed_form import ClosedForm, as_written
from discernel.linalg import double_product, outer_product, unchanged, unwhitened
from discernel.moments import Fit, Moments, Ridge, Total, ridge_fit


def discriminant_information(
    basis: Tensor,
    targets: Tensor,
    rho: float = 1e-4,
    gram: Tensor | None = None,
    sample_weight: Tensor | None = None,
) -> Tensor:
    """Return the Discriminant Information of a basis about targets, a differentiable scalar.

    DI(G, Y; ρ, B) = tr((ḠᵀḠ + ρB)⁺ ḠᵀY YᵀḠ), where the bar centres over the rows. With `gram` None, B = I and this is
    eq. (DI) and (RFDI) of the paper; with G = k(X, X_r) and B = k(X_r, X_r) it is eq. (KDI) and (NysDI).

    With the ridge weights W = (ḠᵀḠ + ρB)⁺ḠᵀY and the residual R = Ȳ − ḠW, the derivatives are ∂DI/∂G = 2RWᵀ and
    ∂DI/∂B = −ρWWᵀ (the envelope theorem): none passes through the solve. All four tensors may require gradients.
    0 ≤ DI ≤ ‖Ȳ‖², and ‖Ȳ‖² − DI is the least regularised squared error of a linear model on the basis.

    Parameters
    ----------
    basis : Tensor (n, J)
        Features of the samples, one row each.
    targets : Tensor (n, L)
        Class indicators, labels or regression targets, one row each.
    rho : float
        The ridge penalty, absolute as in the paper: twice the rows have twice the scatter and feel it half as much.
    gram : Tensor (J, J), optional
        The penalty matrix B, positive semi-definite.
    sample_weight : Tensor (n,), optional
        How often each row counts.

    Returns
    -------
    Tensor
        A scalar in the dtype of `basis`; it is computed in float64.

    Examples
    --------
    >>> basis = torch.tensor([[0.0], [0.0], [1.0], [1.0]])
    >>> targets = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    >>> round(discriminant_information(basis, targets, rho=1e-9).item(), 6)  # separates the classes: all of ‖Ȳ‖² = 2
    2.0
    """
    rho = checks.positive("rho", rho)
    checks.matrix("basis", basis)
    checks.matrix("targets", targets, rows=len(basis))
    if gram is not None:
        checks.matrix("gram", gram, rows=basis.shape[1], columns=basis.shape[1])
    if sample_weight is not None:
        checks.weights(sample_weight, rows=len(basis))
    return _at_optimum(basis, targets, rho, gram, sample_weight, ridge_fit(basis, targets, rho, gram, sample_weight))


def _at_optimum(basis, targets, rho, gram, sample_weight, fit: Fit, ranks: int = 1, graph: bool = True) -> Any:
    value = torch.vdot(fit.rows.targets.T.flatten(), fit.fits.T.flatten())  # ⟨Ȳ, ḠW⟩ = ⟨W, ḠᵀY⟩
    at = fit.weights, fit.residual, rho / ranks, fit.rows[1:]  # not the basis, a copy that is not to be kept
    return (_Envelope.apply if graph else _Envelope.with_pull_back)(basis, targets, gram, sample_weight, value, *at)


class _Envelope(ClosedForm):
    """A value at weights W, with the derivatives that it has where W is the best, or held fixed: 2RWᵀ and −ρWWᵀ."""

    @staticmethod
    def forward(ctx, basis, targets, gram, sample_weight, value, weights, residual, rho, about):
        ctx.rho, ctx.about = rho, about
        ctx.save_for_backward(basis, targets, gram, sample_weight, weights, residual)
        return value.to(basis.dtype)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, scale):  # pyrefly: ignore
        basis, targets, gram, sample_weight, weights, residual = ctx.saved_tensors
        by_basis = by_targets = by_gram = by_weight = None
        root = None if sample_weight is None else sample_weight.double().sqrt()[:, None]
        if ctx.needs_input_grad[0]:
            w = weights.to(basis.dtype)
            weighted = residual if root is None else root * residual
            by_basis = outer_product(weighted.to(basis.dtype), w.T * (2 * scale))
        if ctx.needs_input_grad[1]:
            fit = ctx.about[0] - residual
            by_targets = (2 * scale * (fit if root is None else root * fit)).to(targets.dtype)
        if ctx.needs_input_grad[2]:
            w = weights.to(gram.dtype)
            by_gram = outer_product(w * (-ctx.rho * scale), w.T)
        if ctx.needs_input_grad[3]:  # ‖ȳᵢ‖² − ‖rᵢ‖²: a row counts for what it has explained
            _, basis_mean, target_mean, _ = ctx.about
            y, fit = targets.double() - target_mean, (basis.double() - basis_mean) @ weights
            by_weight = (scale * (y.square() - (y - fit).square()).sum(1)).to(sample_weight.dtype)
        return by_basis, by_targets, by_gram, by_weight, *[None] * 5


def _explained(basis, targets, rho, gram, sample_weight, weights: Tensor, intercept: Tensor, energy=0.0) -> Tensor:
    """Return the energy less Σ‖gW + b − y‖² + ρ tr(WᵀBW) at given weights; only basis and gram have derivatives."""
    residual = targets - intercept - double_product(basis.detach(), weights)
    if sample_weight is not None:
        sample_weight = sample_weight.detach()
        residual *= sample_weight.double().sqrt()[:, None]
    penalised = weights if gram is None else double_product(gram.detach(), weights)
    value = energy - residual.square().sum() - rho * (weights * penalised).sum()
    return _Envelope.apply(basis, None, gram, sample_weight, value, weights, residual, rho, None)  # pyrefly: ignore


class Criterion(nn.Module):
    """What a feature map is trained to maximise or minimise.

    Called with ``(basis, targets, gram, sample_weight)`` of a mini-batch it returns a scalar. A criterion with
    parameters of its own makes them in `prepare`; one that looks at all of the data does so in `refresh`.

    Where several processes have parts of a batch, each returns its share: the values, and the gradients by every
    parameter, add up to those of the whole batch. `total` adds up a tensor over the processes, of which `ranks` exist.
    """

    higher_is_better: ClassVar[bool]  # the "plateau" schedule takes values to be positive
    total: Total = staticmethod(unchanged)
    ranks: int = 1

    @abstractmethod
    def forward(
        self, basis: Tensor, targets: Tensor, gram: Tensor | None = None, sample_weight: Tensor | None = None
    ) -> Tensor:
        """Return the value of the criterion on a mini-batch."""

    def backward(
        self, basis: Tensor, targets: Tensor, gram: Tensor | None = None, sample_weight: Tensor | None = None
    ) -> Tensor:
        """Return the value, having added its gradients to the `grad` of the arguments and of its own parameters.

        The arguments are leaves, so `forward` must not change them in place.
        """
        value = self(basis, targets, gram, sample_weight)
        value.backward()
        return value.detach()

    def _mean(self, losses: Tensor, sample_weight: Tensor | None) -> Tensor:
        """Return this process's share of the weighted mean over the batch."""
        weight = torch.ones_like(losses) if sample_weight is None else sample_weight.to(losses)
        return weight @ losses / self.total(weight.sum())

    def prepare(self, basis: Tensor, targets: Tensor) -> None:
        """Make the parameters, if any, for a basis and targets like these; called once, before training."""

    def refresh(self, moments: Callable[[], Moments], gram: Tensor | None) -> None:
        """Look at all the data, at the start of each epoch; `moments()` makes one pass over it."""

    def of_parts(self, parts: int, weight: Tensor, moments: Callable[[], Moments], gram: Tensor | None) -> "Criterion":
        """Return the criterion of each of the parts that a batch is too large to be taken without.

        As with processes, values and gradients add up to those of the batch. The rows of the batch weigh `weight`;
        `moments()` makes one pass over it.
        """
        raise NotImplementedError(f"{type(self).__name__} needs the whole of a batch at once: lower batch_size")

    def _of_parts(self, parts: int, weight: Tensor) -> Self:
        """Return this criterion for parts of a batch, if it is a mean over the rows."""
        part = copy.copy(self)
        part.total, part.ranks = lambda _: weight, parts * self.ranks
        return part


class DI(Criterion):
    """Discriminant Information of each mini-batch: Algorithms 1 and 2 of the paper.

    Examples
    --------
    >>> x = torch.tensor([[0.0], [0.0], [1.0], [1.0]])
    >>> DI(rho=1.0)(x, x).item()  # ‖Ȳ‖² = 1 times the share 1/(1 + ρ) that ridge regression explains
    0.5
    """

    higher_is_better = True
    refine: Tensor  # whether float32 sums are tried: not for the rest of an epoch in which they were not enough

    def __init__(self, rho: float = 1e-4):
        super().__init__()
        self.rho = checks.positive("rho", rho)
        self.register_buffer("refine", torch.ones((), dtype=torch.bool))

    def refresh(self, moments, gram):
        """Try float32 sums again."""
        self.refine.fill_(True)

    def forward(self, basis, targets, gram=None, sample_weight=None):
        """Return DI, the sum over the rows of the batch as in the paper."""
        return self._at_optimum(basis, targets, gram, sample_weight)

    def backward(self, basis, targets, gram=None, sample_weight=None):
        """Return DI, with its gradients in closed form."""
        if not as_written(self, DI):
            return super().backward(basis, targets, gram, sample_weight)
        value, pull_back = self._at_optimum(basis, targets, gram, sample_weight, graph=False)
        pull_back(1.0)  # no tensor has to be made for it
        return value.detach()

    def _at_optimum(self, basis, targets, gram, sample_weight, graph=True):
        refine = bool(self.refine)
        fit = ridge_fit(basis, targets, self.rho, gram, sample_weight, refine, self.total)
        if fit.refined != refine:
            self.refine.fill_(fit.refined)
        return _at_optimum(basis, targets, self.rho, gram, sample_weight, fit, self.ranks, graph)

    def of_parts(self, parts, weight, moments, gram):
        """Solve for the weights of the batch, at which a part has its share of the value and of the gradient."""
        whole = moments()
        return _Explained(whole.ridge(self.rho, gram), whole.target_mean, self.rho / (parts * self.ranks))


class _Explained(Criterion):
    """What given weights W, b explain, Σ‖y − ȳ‖² − ‖gW + b − y‖² less ρ tr(WᵀBW): DI at the best, with its gradient."""

    higher_is_better = True

    def __init__(self, ridge: Ridge, target_mean: Tensor, rho: float):
        super().__init__()
        self.ridge, self.target_mean, self.rho = ridge, target_mean, rho

    def forward(self, basis, targets, gram=None, sample_weight=None):
        energy = (targets - self.target_mean).square().sum(1)
        energy = energy.sum() if sample_weight is None else sample_weight.double() @ energy
        at = self.ridge.weights, self.ridge.intercept, energy
        return _explained(basis, targets, self.rho, gram, sample_weight, *at)


class PrivacyDI(Criterion):
    """DI(utility) − λ·DI(sensitive): features that tell one thing and hide another (Kung 2017).

    The first `n_utility` columns of the targets are what the features should tell, the others what they should not, as
    far as a linear model on them can. Both are shares of what there is to tell, from 0 to 1, so that λ = 1 trades one
    for the other whatever the number of classes. The value is the share that is told plus λ times the share that is
    hidden, which differs from the above by the constant λ and is never negative.

    Parameters
    ----------
    n_utility : int
        How many columns of the targets are to be told.
    penalty : float
        λ, at least zero, which gives DI.
    rho : float
        The ridge penalty of both.

    Examples
    --------
    >>> basis = torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
    >>> tells_both = PrivacyDI(n_utility=1, rho=1e-9)
    >>> round(tells_both(basis, basis).item(), 6), round(tells_both(basis[:, :1], basis).item(), 6)
    (1.0, 2.0)
    """

    higher_is_better = True

    def __init__(self, n_utility: int, penalty: float = 1.0, rho: float = 1e-4):
        super().__init__()
        self.n_utility = checks.positive_int("n_utility", n_utility)
        self.penalty = checks.number("penalty", penalty)
        if self.penalty < 0:
            raise ValueError(f"penalty must not be negative, got {penalty!r}")
        self.rho = checks.positive("rho", rho)

    def prepare(self, basis, targets):
        """Check that there is something to hide."""
        if targets.shape[1] <= self.n_utility:
            raise ValueError(f"targets must have more columns than n_utility, {self.n_utility}; got {targets.shape[1]}")

    def forward(self, basis, targets, gram=None, sample_weight=None):
        """Return the share of the utility that is told, plus λ times the share of what is sensitive that is not."""
        utility, sensitive = (
            self._share(basis, part.contiguous(), gram, sample_weight)
            for part in (targets[:, : self.n_utility], targets[:, self.n_utility :])
        )
        return utility + self.penalty * (1 / self.ranks - sensitive)

    def _share(self, basis: Tensor, targets: Tensor, gram: Tensor | None, sample_weight: Tensor | None) -> Tensor:
        """Return DI/‖Ȳ‖², or zero where the targets of the batch do not vary."""
        fit = ridge_fit(basis, targets, self.rho, gram, sample_weight, total=self.total)
        energy = self.total(fit.rows.targets.double().square().sum()).to(basis.dtype)
        found = _at_optimum(basis, targets, self.rho, gram, sample_weight, fit, self.ranks)
        return found / torch.where(energy > 0, energy, 1.0)


class LS(Criterion):
    """Least squares, the paper's baseline after Si et al. 2016: ridge weights and map are trained in turns.

    The weights W, b are the ridge solution on **all training rows**, found anew **at the start of each epoch**; within
    the epoch they are held fixed and every mini-batch gives one gradient step on the map for the ridge loss
    ‖GW + 1bᵀ − Y‖²/n_b + (ρ/N) tr(WᵀBW), a batch's share of the loss of the whole. (Weights solved on the same
    mini-batch would give, by the envelope theorem, exactly the gradient of DI.)

    Examples
    --------
    >>> x, criterion = torch.tensor([[0.0], [0.0], [1.0], [1.0]]), LS(rho=1.0)
    >>> criterion.prepare(x, x)
    >>> criterion.refresh(lambda: Moments.of(x, x), gram=None)
    >>> criterion(x, x).item()  # (‖Ȳ‖² − DI)/n
    0.125
    """

    higher_is_better = False
    weights: Tensor
    intercept: Tensor
    count: Tensor

    def __init__(self, rho: float = 1e-4):
        super().__init__()
        self.rho = checks.positive("rho", rho)

    def prepare(self, basis, targets):
        """Make room for the weights; they are solved for in `refresh`."""
        double = {"dtype": torch.float64}
        self.register_buffer("weights", basis.new_zeros(basis.shape[1], targets.shape[1], **double))
        self.register_buffer("intercept", basis.new_zeros(targets.shape[1], **double))
        self.register_buffer("count", basis.new_ones((), **double))

    def refresh(self, moments, gram):
        """Solve for the weights on all the data."""
        everything = moments()
        ridge = everything.ridge(self.rho, gram)
        self.weights.copy_(ridge.weights)
        self.intercept.copy_(ridge.intercept)
        self.count.fill_(everything.count)

    def forward(self, basis, targets, gram=None, sample_weight=None):
        """Return the ridge loss per row at the weights of the last refresh."""
        weight = self.count.new_tensor(len(targets)) if sample_weight is None else sample_weight.double().sum()
        batch = self.total(weight).item()
        rho = self.rho * batch / (self.count.item() * self.ranks)
        return _explained(basis, targets, rho, gram, sample_weight, self.weights, self.intercept) / -batch

    def of_parts(self, parts, weight, moments, gram):
        """Return the same, as the share of a part."""
        return self._of_parts(parts, weight)


class CE(Criterion):
    """Softmax cross-entropy of a linear layer that is trained jointly with the map, the paper's second baseline.

    Where the basis has a gram, the layer is one on the whitened basis, which is the Nyström features up to a rotation:
    on the raw kernel columns it is so ill-conditioned that the map hardly gets trained.
    With `independent`, the targets are independent labels and the loss is the sum of their logistic losses.

    Examples
    --------
    >>> criterion, basis = CE(), torch.rand(4, 3)
    >>> criterion.prepare(basis, torch.eye(4))
    >>> criterion(basis, torch.eye(4)).item()  # log 4: the layer starts at zero
    1.386...
    """

    higher_is_better = False

    def __init__(self, independent: bool = False):
        super().__init__()
        self.independent = checks.boolean("independent", independent)

    def prepare(self, basis, targets):
        """Start the linear layer at zero."""
        self.weights = nn.Parameter(basis.new_zeros(basis.shape[1], targets.shape[1]))
        self.bias = nn.Parameter(basis.new_zeros(targets.shape[1]))

    def forward(self, basis, targets, gram=None, sample_weight=None):
        """Return the mean cross-entropy of a row."""
        weights = self.weights if gram is None else unwhitened(self.weights, gram)
        logits = torch.addmm(self.bias, basis, weights)
        if self.independent:
            losses = F.binary_cross_entropy_with_logits(logits, targets, reduction="none").sum(1)
        else:
            losses = F.cross_entropy(logits, targets, reduction="none")
        return self._mean(losses, sample_weight)

    def of_parts(self, parts, weight, moments, gram):
        """Return the same, as the share of a part."""
        return self._of_parts(parts, weight)
