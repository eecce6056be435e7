"""Discriminant analysis as one generalised eigenproblem: LDA, DCA, KDCA and KDA, and PCA where samples are classes.

Components A (J×k) maximise tr(AᵀS_B A) subject to Aᵀ(S̄ + ρB)A = I, where S̄ = ḠᵀḠ is the scatter of a basis and
S_B = ḠᵀY YᵀḠ what of it the targets explain: eq. (DCA) of the paper with B = I, eq. (KDI) with a gram, (KDCA) with
landmarks = X. Their Discriminant Information, one value each, sums to DI.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from discernel import checks
from discernel.linalg import cutoff, inverse_sqrt
from discernel.moments import Moments, regularised


class Components(NamedTuple):
    """The components of a discriminant analysis, the most informative first."""

    scalings: Tensor  # A, J×k: the components of rows g are (g − mean)A
    information: Tensor  # k, the diagonal of AᵀS_B A; sums to DI


def discriminant_components(moments: Moments, rho: float, gram: Tensor | None = None) -> Components:
    """Return the A that maximises tr(AᵀS_B A) subject to Aᵀ(S̄ + ρB)A = I, all its columns that carry information.

    S_B has only as many columns as there are targets, so no J×J eigenproblem is needed: with T of TᵀS̄T + ρTᵀBT = I, a
    triangular factor, A = TU, where TᵀḠᵀY = U s Vᵀ is a singular value decomposition, J×L, and the information is s².
    Of L classes at most L − 1 columns are left: centred indicators are dependent.

    Parameters
    ----------
    moments : Moments
        Of the basis and the targets.
    rho : float
        The ridge penalty, absolute as in the paper; zero is allowed, and gives LDA.
    gram : Tensor (J, J), optional
        The penalty matrix B, positive semi-definite; None for the identity. Where it is ill-conditioned, as kernel
        matrices are, the scatter has lost what a small ρ would show: take ``basis @ whitening(gram)`` and no gram.

    Returns
    -------
    Components
        In float64. Information at or below ``J · eps · ‖Ȳ‖²`` is rounding and left out.

    Examples
    --------
    >>> basis = torch.tensor([[0.0, 1.0], [0.0, -1.0], [1.0, 1.0], [1.0, -1.0]])
    >>> targets = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    >>> components = discriminant_components(Moments.of(basis, targets), rho=1e-9)
    >>> components.scalings.abs()  # the first feature is all there is to know
    tensor([[1.],
            [0.]], dtype=torch.float64)
    >>> components.information  # all of ‖Ȳ‖²
    tensor([2.0000], dtype=torch.float64)
    """
    root = whitening(regularised(moments.scatter, penalty(rho), gram))
    left, values, _ = torch.linalg.svd(root.T @ moments.cross, full_matrices=False)
    information = values.square()
    k = int((information > cutoff(moments.scatter, information.new_tensor(moments.energy))).sum())
    return Components(root @ left[:, :k], information[:k])


def principal_components(moments: Moments, rho: float) -> Components:
    """Return the components where every sample is its own class, S_B = S̄: those of PCA, scaled by 1/√(λ + ρ).

    With λ the eigenvalues of S̄ the information is λ/(λ + ρ), all of it near one if ρ is small: so this is found from
    the eigenvalues of S̄ itself, which tell the components apart, and the targets are not looked at. There is no gram:
    whiten the basis by it first, as scatters relative to an ill-conditioned gram have hardly a digit.

    Examples
    --------
    >>> basis = torch.tensor([[-3.0, 0.0], [3.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    >>> principal_components(Moments.of(basis, basis), rho=2.0).information  # 18/(18 + 2) and 2/(2 + 2)
    tensor([0.9000, 0.5000], dtype=torch.float64)
    """
    rho = penalty(rho)
    values, vectors = torch.linalg.eigh(_finite(moments.scatter))
    values, vectors = values.flip(0), vectors.flip(1)
    k = int((values > cutoff(moments.scatter, values[0])).sum())
    values, vectors = values[:k], vectors[:, :k]
    return Components(vectors / (values + rho).sqrt(), values / (values + rho))


def within_class(components: Components) -> Tensor:
    """Return A scaled to Aᵀ(S_W + ρB)A = I, LDA's constraint, in place of Aᵀ(S̄ + ρB)A = I.

    This is for unit-norm class indicators, where S̄ = S_W + S_B and so Aᵀ(S_W + ρB)A = 1 − information. Where classes
    have no spread at all, that is rounding and taken for ``J · eps``.
    """
    floor = cutoff(components.scalings, components.information.new_ones(()))
    return components.scalings / (1 - components.information).clamp_min(floor).sqrt()


def whitening(a: Tensor) -> Tensor:
    """Return T (J×r) with TᵀaT = I and TTᵀ = a⁺, for a positive semi-definite `a`.

    The inverse of the Cholesky factor where the pivots show that `a` is safely regular, else by eigenvalues, of which
    those at or below ``J · eps · λ_max`` are dropped: the rule of `discernel.linalg.solve_psd`.
    """
    a = _finite(a.double())
    factor, failed = torch.linalg.cholesky_ex(a)
    if failed or bool((factor.diagonal().square() <= cutoff(a, torch.linalg.matrix_norm(a))).any()):
        return inverse_sqrt(a)
    identity = torch.eye(len(a), dtype=a.dtype, device=a.device)
    return torch.linalg.solve_triangular(factor, identity, upper=False).T


def penalty(rho: float) -> float:
    """Return ρ as a float; it must be a finite number, not below zero."""
    if checks.number("rho", rho) < 0:
        raise ValueError(f"rho must not be negative, got {rho!r}")
    return float(rho)


def _finite(a: Tensor) -> Tensor:
    if not bool(torch.isfinite(a).all()):
        raise FloatingPointError("the moments overflowed: rescale the features")
    return a
