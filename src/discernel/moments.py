"""Moments: the sums over samples from which the criterion, the ridge solution and its errors all follow."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import torch
from torch import Tensor

from discernel.linalg import (
    Solution,
    columns_like,
    double_product,
    finite,
    minus,
    product,
    safe_cholesky,
    single_solver,
    solve_psd,
    symmetric_product,
    unchanged,
)
from discernel.resources import empty

RHO_GRID = tuple(10.0**e for e in range(-6, 4))
REFINE_COMPONENTS = 256  # below, float64 costs no more
REFINE_STEPS = 4
REFINED = 1e-13  # share of the value that may be missing in the energy norm: gradients then agree to about 1e-5
NOISE = 100.0  # times the rounding of the basis: what varies less is not told from it
EPS = torch.finfo(torch.float64).eps

Total = Callable[[Tensor], Tensor]  # completes a sum over some of the rows to one over all


class Centred(NamedTuple):
    """Rows about their weighted mean, each scaled by the root of its weight, in float64 (or the basis in float32)."""

    basis: Tensor  # √w (G − mean), n×J
    targets: Tensor  # √w (Y − mean), n×L, column after column: the layout that BLAS is quick at
    basis_mean: Tensor  # J
    target_mean: Tensor  # L
    count: float  # Σ w, or n


def centred(
    basis: Tensor,
    targets: Tensor,
    sample_weight: Tensor | None = None,
    dtype: torch.dtype = torch.float64,
    total: Total = unchanged,
) -> Centred:
    """Return the centred rows of which all moments are plain products, the basis in this dtype.

    The means are those of the rows of all processes, over which `total` adds up.
    """
    g = basis.detach()
    if g.dtype != dtype:
        g = empty(g.shape, g, dtype).copy_(g)
    y = targets.detach().T.to(torch.float64, copy=True, memory_format=torch.contiguous_format).T
    w = None if sample_weight is None else sample_weight.detach().double()
    g_sum, y_sum = _summed(g, w).double(), _summed(y, w)
    count = float(len(g))
    if w is not None or total is not unchanged:
        weight = y.new_full((1,), count) if w is None else w.sum()[None]
        g_sum, y_sum, weight = total(torch.cat([g_sum, y_sum, weight])).split([g.shape[1], y.shape[1], 1])
        count = weight.item()
    n = count or 1.0
    g_mean, y_mean = g_sum / n, y_sum / n  # divided last: the mean of whole numbers that are equal is exact
    g = minus(g, g_mean.to(dtype), columns_like(g) if basis.dtype == dtype else g)
    y -= y_mean
    if dtype != torch.float64:  # the mean's own rounding is the same for all rows, and adds up
        g -= (total(_summed(g, w)) / n).to(dtype)
    if w is not None:
        root = w.sqrt()[:, None]
        g *= root.to(dtype)
        y *= root
    return Centred(g, y, g_mean, y_mean, count)


def _summed(rows: Tensor, weight: Tensor | None) -> Tensor:
    return rows.sum(0) if weight is None else weight.to(rows.dtype) @ rows


@dataclass(frozen=True)
class Ridge:
    """The minimiser of ‖GW + 1bᵀ − Y‖² + ρ tr(WᵀBW), eq. (RR) of the paper, and what the solver did to find it.

    Examples
    --------
    >>> x = torch.tensor([[0.0], [1.0], [2.0]])
    >>> ridge = Moments.of(x, 2 * x + 1).ridge(1e-9)
    >>> ridge.predict(torch.tensor([[10.0]]))
    tensor([[21.0000]])
    """

    weights: Tensor  # W, J×L
    intercept: Tensor  # b, L
    method: str  # "cholesky" or "eigh"
    rank: int  # eigenvalues kept

    def predict(self, basis: Tensor) -> Tensor:
        """Return GW + 1bᵀ in the precision of `basis`."""
        return torch.addmm(self.intercept, basis.double(), self.weights).to(basis.dtype)


def regularised(scatter: Tensor, rho: float, gram: Tensor | None = None) -> Tensor:
    """Return ḠᵀḠ + ρB, with B = I where `gram` is None."""
    return regularised_(scatter.clone(), rho, gram)


def regularised_(scatter: Tensor, rho: float, gram: Tensor | None = None) -> Tensor:
    """Return the same, in place of the scatter."""
    if gram is not None:
        return scatter.add_(gram.detach(), alpha=rho)
    scatter.diagonal().add_(rho)
    return scatter


@dataclass(frozen=True)
class Moments:
    """First and centred second moments of a basis G (n×J) and targets Y (n×L), in float64.

    The moments of two sets of rows add up to those of both, in any order and to rounding; so one value serves a
    mini-batch, a stream over a file and many machines.

    Examples
    --------
    >>> x = torch.tensor([[0.0], [1.0], [2.0], [3.0]])
    >>> moments = Moments.of(x[:2], x[:2]) + Moments.of(x[2:], x[2:])
    >>> moments.count, moments.energy
    (4.0, 5.0)
    """

    count: float  # n, or Σ weights
    basis_mean: Tensor  # J
    target_mean: Tensor  # L
    scatter: Tensor  # ḠᵀḠ, J×J
    cross: Tensor  # ḠᵀY = ḠᵀȲ, J×L
    energy: float  # ‖Ȳ‖²

    @classmethod
    def of(cls, basis: Tensor, targets: Tensor, sample_weight: Tensor | None = None) -> Self:
        """Return the moments of one batch of rows, each counted `sample_weight` times."""
        return cls.of_centred(centred(basis, targets, sample_weight))

    @classmethod
    def of_centred(cls, rows: Centred) -> Self:
        """Return the moments of rows that are centred already."""
        return cls(
            rows.count,
            rows.basis_mean,
            rows.target_mean,
            symmetric_product(rows.basis),
            _cross(rows),
            rows.targets.square().sum().item(),
        )

    def about(self, basis_mean: Tensor, target_mean: Tensor) -> Self:
        """Return the same moments taken about another centre (Chan, Golub & LeVeque 1979)."""
        g, y = self.basis_mean - basis_mean, self.target_mean - target_mean
        return type(self)(
            self.count,
            basis_mean,
            target_mean,
            torch.addr(self.scatter, g, g, alpha=self.count),
            torch.addr(self.cross, g, y, alpha=self.count),
            self.energy + self.count * (y @ y).item(),
        )

    def __add__(self, other: Self) -> Self:
        share = other.count / ((self.count + other.count) or 1.0)
        basis_mean = torch.lerp(self.basis_mean, other.basis_mean, share)
        target_mean = torch.lerp(self.target_mean, other.target_mean, share)
        a, b = self.about(basis_mean, target_mean), other.about(basis_mean, target_mean)
        return type(self)(
            a.count + b.count, basis_mean, target_mean, a.scatter + b.scatter, a.cross + b.cross, a.energy + b.energy
        )

    def reduce(self, total: Callable[[Tensor], Tensor]) -> Self:
        """Return the moments of the rows of all processes; `total` returns the sum of a tensor over them.

        A process without rows takes part with a count of zero.
        """
        weighted = torch.cat([self.basis_mean, self.target_mean, self.basis_mean.new_ones(1)]) * self.count
        *means, count = total(weighted).split([len(self.basis_mean), len(self.target_mean), 1])
        here = self.about(*(mean / count for mean in means))
        energy = total(count.new_tensor([here.energy])).item()
        return type(self)(
            count.item(), here.basis_mean, here.target_mean, total(here.scatter), total(here.cross), energy
        )

    def ridge(self, rho: float, gram: Tensor | None = None) -> Ridge:
        """Return the ridge regression of the targets on the basis, W = (ḠᵀḠ + ρB)⁺ḠᵀY, with its free intercept.

        GW + b cancels where the rows differ little from their mean. What W adds to the error by that is penalised too,
        NOISE² times over: a basis that varies by rounding only explains nothing, however much the rows weigh.
        """
        penalised = regularised(self.scatter, rho, gram)
        penalised.diagonal().add_(self.basis_mean.square(), alpha=self.count * (NOISE * EPS) ** 2)
        weights, method, rank = solve_psd(penalised, self.cross)
        return Ridge(weights, self.target_mean - self.basis_mean @ weights, method, rank)

    def best_rho(self, gram: Tensor | None = None, grid: Sequence[float] = RHO_GRID) -> float:
        """Return the ρ of the grid with the least generalised cross-validation error, from the moments alone.

        GCV(ρ) = RSS(ρ)/n / (1 − df(ρ)/n)², where df(ρ) = 1 + Σ λ/(λ + ρ) are the degrees of freedom of the ridge
        regression, and λ the eigenvalues of the scatter relative to the gram (Golub, Heath & Wahba 1979).
        """
        scatter, cross = self.scatter, self.cross
        if gram is not None:
            factor = safe_cholesky(gram.detach())
            half = torch.linalg.solve_triangular(factor, scatter, upper=False)
            scatter = torch.linalg.solve_triangular(factor, half.T, upper=False)
            cross = torch.linalg.solve_triangular(factor, cross, upper=False)
        finite(scatter, "the moments", "rescale the features")
        values, vectors = torch.linalg.eigh((scatter + scatter.T) / 2)
        values, power = values.clamp_min(0), (vectors.T @ cross).square().sum(1)
        scores = {}
        for rho in grid:
            residual = self.energy - (power * (values + 2 * rho) / (values + rho).square()).sum().item()
            freedom = 1 + (values / (values + rho)).sum().item()
            scores[rho] = residual / max(1 - freedom / self.count, 1e-9) ** 2
        return min(scores, key=scores.__getitem__)

    def discriminant_information(self, rho: float, gram: Tensor | None = None) -> float:
        """Return DI = ⟨W, ḠᵀY⟩ (eq. DI; with `gram` eq. KDI) of all the rows."""
        return (self.ridge(rho, gram).weights * self.cross).sum().item()

    def mse(self, ridge: Ridge) -> float:
        """Return ‖GW + 1bᵀ − Y‖²/n of these rows, summed over the targets, for a model of any rows."""
        w = ridge.weights
        bias = self.target_mean - self.basis_mean @ w - ridge.intercept
        residual = self.energy - 2 * (w * self.cross).sum().item() + (w * (self.scatter @ w)).sum().item()
        return max(residual, 0.0) / self.count + (bias @ bias).item()


class Fit(NamedTuple):
    """The ridge regression of a batch on itself, with what its value and its gradients are made of."""

    weights: Tensor  # W, J×L
    fits: Tensor  # ḠW of the rows that this process has, n×L
    rows: Centred
    refined: bool  # whether float32 sums were enough

    @property
    def residual(self) -> Tensor:
        """Ȳ − ḠW, n×L."""
        return self.rows.targets - self.fits


def ridge_fit(
    basis: Tensor,
    targets: Tensor,
    rho: float,
    gram: Tensor | None = None,
    sample_weight: Tensor | None = None,
    refine: bool = True,
    total: Total = unchanged,
) -> Fit:
    """Return the ridge regression of a batch on itself, in float64; over several processes, of all their rows.

    Where the basis is a large float32 one and `refine`, the scatter is summed and factored in float32, and the solution
    refined in float64, if it can be: half the time, with the same accuracy.
    """
    few = total is unchanged and len(basis) <= basis.shape[1]
    if refine and basis.dtype == torch.float32 and basis.shape[1] >= REFINE_COMPONENTS and not few:
        rows = centred(basis, targets, sample_weight, torch.float32, total)
        found = _refined(rows, rho, gram, total)
        if found is not None:
            return Fit(*found, rows, True)
    rows = centred(basis, targets, sample_weight, total=total)
    weights = ridge_weights(rows, rho, gram, total).x
    return Fit(weights, double_product(rows.basis, weights), rows, False)


def _cross(rows: Centred) -> Tensor:
    """Return ḠᵀȲ in float64."""
    return double_product(rows.basis.T, rows.targets)


def _refined(rows: Centred, rho: float, gram: Tensor | None, total: Total) -> tuple[Tensor, Tensor] | None:
    """Return W and ḠW by float32 sums and float64 residuals, or None where the system is too close to singular."""
    penalty = None if gram is None else gram.detach()
    solve = single_solver(regularised_(total(symmetric_product(rows.basis, lower=True)), rho, penalty))
    if solve is None:
        return None
    cross = total(product(rows.basis.T, rows.targets.float())).double()
    weights = solve(cross)
    value = before = (weights * cross).sum().item()
    for _ in range(REFINE_STEPS):
        fits = double_product(rows.basis, weights)
        penalised = weights if penalty is None else double_product(penalty, weights)
        residual = total(double_product(rows.basis.T, rows.targets - fits)) - rho * penalised
        step = solve(residual)
        weights = weights + step
        error = (step * residual).sum().item()  # of the value, before this step, which lowers it as the last one did
        if error * error <= REFINED * before * value:
            return weights, fits + product(rows.basis, step.float())
        if not error <= 0.1 * before:
            return None
        before = error
    return None


def ridge_weights(rows: Centred, rho: float, gram: Tensor | None = None, total: Total = unchanged) -> Solution:
    """Return W = (ḠᵀḠ + ρB)⁺ḠᵀY of centred rows; by the n×n system Ḡᵀ(ḠḠᵀ + ρI)⁻¹Ȳ where that is the smaller one."""
    n, n_components = rows.basis.shape
    if gram is None and n < n_components and total is unchanged:
        dual = solve_psd(regularised_(symmetric_product(rows.basis.T, lower=True), rho), rows.targets)
        return dual._replace(x=rows.basis.T @ dual.x)
    penalised = regularised_(total(symmetric_product(rows.basis, lower=True)), rho, gram)
    return solve_psd(penalised, total(_cross(rows)))
