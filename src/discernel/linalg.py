"""The linear algebra of kernel learning: products, a solve that never fails, an inverse square root.

It is done by whichever library is the quickest at it. Solutions are in float64, whatever the precision of the data:
the scatter of float32 kernel features is often too ill-conditioned for float32, while its Cholesky factor in float64
agrees with the pseudo-inverse to 1e-4 or better. A factor in float32 (`single_solver`) is for where a residual in
float64 shows that it was enough.
"""

import logging
import math
from collections.abc import Callable
from functools import cache, reduce
from typing import Literal, NamedTuple

import numpy as np
import torch
from scipy.linalg import blas, lapack
from torch import Tensor
from torch.autograd import forward_ad

from discernel.resources import LARGE, alone, by_one_thread, chunk_rows, empty, in_parts, single_threaded

_BLOCK = 128  # columns
_TILE = 512  # rows
_SHIFT = 3e-6  # of a unit diagonal: what rounding does to float32 sums of products
_OVERSAMPLED, _POWER = 10, 2  # columns beyond the rank, and power iterations, of a random projection
_TINY, _LARGE = 2**18, 2**22  # multiplications from which numpy's products, and oneDNN's, are quicker than torch's
_SYRK = {dtype: blas.get_blas_funcs("syrk", dtype=str(dtype)[6:]) for dtype in (torch.float32, torch.float64)}
_POSV = lapack.get_lapack_funcs("posv", dtype="float64")
_SYGST = lapack.get_lapack_funcs("sygst", dtype="float64")

logger = logging.getLogger(__name__)


def unchanged(tensor: Tensor) -> Tensor:
    """Return the tensor: the sum over all processes where there is one."""
    return tensor


class Solution(NamedTuple):
    """A solution of a positive semi-definite system, and what it took to find it."""

    x: Tensor
    method: str  # "cholesky", or "eigh" where the matrix was singular to rounding
    rank: int  # how many eigenvalues were kept; the size of the matrix for "cholesky"


def product(a: Tensor, b: Tensor, bias: Tensor | None = None, out: Tensor | None = None) -> Tensor:
    """Return ab, plus `bias` in every row, by the library that is the quickest.

    That is oneDNN for large float32 products where the processor has AVX-512, and numpy's BLAS for others that are not
    tiny, in a step that one thread does. torch's own are MKL's, which leaves half of such a processor unused if it is
    not Intel's.
    """
    work = a.numel() * b.shape[1]
    if work >= _TINY and a.dtype == b.dtype and not _recorded(a, b, bias):
        if work >= _LARGE and _wide(a):
            return _wide_product(a, b, bias, out)
        if alone() and out is None and a.dtype in _SYRK and a.device.type == "cpu" and _in_line(a) and _in_line(b):
            found = _numpy_product(a, b)
            return found if bias is None else found.add_(bias)
    return torch.mm(a, b, out=out) if bias is None else torch.addmm(bias, a, b, out=out)


def _wide_product(a: Tensor, b: Tensor, bias: Tensor | None, out: Tensor | None) -> Tensor:
    if not a.is_contiguous() and len(a) > b.shape[1] and bias is None and out is None:
        return product(b.T, a.T).T  # of the left one a copy is made: of the smaller one rather
    b = b if _in_line(b) else b.contiguous()  # other layouts take a thousand times longer
    found = torch.ops.mkldnn._linear_pointwise(a, b.T, bias, "none", [], "")
    return found if out is None else out.copy_(found)


def _numpy_product(a: Tensor, b: Tensor) -> Tensor:
    with np.errstate(all="ignore"):  # what overflows is noticed later
        return torch.from_numpy(by_one_thread(np.matmul, a.numpy(force=True), b.numpy(force=True)))


def _in_line(a: Tensor) -> bool:
    """Return whether the rows, or the columns, follow each other in memory."""
    return a.is_contiguous() or a.T.is_contiguous()


def outer_product(a: Tensor, b: Tensor) -> Tensor:
    """Return ab of a tall and a wide matrix, as `empty` does."""
    shape = len(a), b.shape[1]
    if math.prod(shape) * a.dtype.itemsize < LARGE:
        return product(a, b)
    return torch.mm(a, b, out=empty(shape, a))


def _recorded(*tensors: Tensor | None) -> bool:
    """Return whether what is done is to be differentiated, in whichever way, compiled or exported."""
    traced = torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None
    traced = traced or forward_ad._current_level >= 0 or torch._C._are_functorch_transforms_active()
    return traced or (torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors))


def _wide(a: Tensor) -> bool:
    """Return whether oneDNN is to multiply this matrix."""
    return a.dtype == torch.float32 and a.device.type == "cpu" and _has_wide_products()


@cache
def _has_wide_products() -> bool:
    ready = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    return ready and torch.backends.cpu.get_cpu_capability().startswith("AVX512")


def trigonometric(name: Literal["cos", "sin"], a: Tensor, out: Tensor) -> Tensor:
    """Return cos(a) or sin(a) in `out`; of float32 by numpy, which is quicker on one thread."""
    if a.dtype == torch.float32 and single_threaded(a):
        with np.errstate(all="ignore"):
            getattr(np, name)(a.numpy(), out=out.numpy())
        return out
    return getattr(torch, name)(a, out=out)


def symmetric_product(a: Tensor, lower: bool = False) -> Tensor:
    """Return aᵀa, of which only what is on and below the diagonal is computed: about half the work.

    If `lower`, what is above is left undefined. torch has no such product: on one thread it is that of scipy's BLAS, on
    more it is put together of other products, with whose threads those of another library would compete; and so it is
    where these are the quicker ones.
    """
    if single_threaded(a) and not _wide(a) and a.dtype in _SYRK and a.is_contiguous() and not a.requires_grad:
        out = _syrk(a)
    elif a.shape[1] <= _BLOCK:
        return product(a.T, a)
    else:
        out = empty((a.shape[1], a.shape[1]), a)
        _fill_lower(out, _in_columns(a))
    return out if lower else out.tril_().add_(out.tril(-1).T)


def _syrk(a: Tensor) -> Tensor:
    """Return the lower half of aᵀa, by scipy's BLAS."""
    return torch.from_numpy(by_one_thread(_SYRK[a.dtype], 1.0, a.numpy().T).T)


def columns_like(a: Tensor) -> Tensor:
    """Return a new matrix like `a`; where oneDNN multiplies it, column after column, or each product would copy it."""
    return empty(a.T.shape, a).T if _wide(a) else empty(a.shape, a)


def minus(a: Tensor, row: Tensor, out: Tensor) -> Tensor:
    """Return a − row in `out`, some rows at a time: another layout is four times slower to write all at once."""
    for rows, part in in_parts(len(a) if out.is_contiguous() else _TILE, a, out):
        torch.sub(rows, row, out=part)
    return out


def _in_columns(a: Tensor) -> Tensor:
    """Return `a`, or a copy of it that is laid out as oneDNN wants it."""
    if _recorded(a) or not _wide(a) or a.T.is_contiguous():
        return a
    out = columns_like(a)
    for rows, part in in_parts(_TILE, a, out):
        part.copy_(rows)
    return out


def _fill_lower(out: Tensor, a: Tensor) -> None:
    width = a.shape[1]
    if width > 4 * _BLOCK:  # large products are the quicker ones
        half = width // 2
        product(a[:, half:].T, a[:, :half], out=out[half:, :half])
        _fill_lower(out[:half, :half], a[:, :half])
        _fill_lower(out[half:, half:], a[:, half:])
        return
    for start in range(0, width, _BLOCK):
        stop = min(start + _BLOCK, width)
        product(a[:, start:stop].T, a[:, :stop], out=out[start:stop, :stop])


def cutoff(a: Tensor, largest: Tensor) -> Tensor:
    """Return the size below which an eigenvalue of `a` is rounding error: J · eps · (its largest)."""
    return a.shape[0] * torch.finfo(a.dtype).eps * largest


def finite(a: Tensor, what: str, advice: str) -> Tensor:
    """Return `a`, of which no entry may have overflowed."""
    if not bool(torch.isfinite(a).all()):
        raise FloatingPointError(f"{what} overflowed or hold NaN: {advice}")
    return a


def solve_psd(a: Tensor, b: Tensor) -> Solution:
    """Return a⁺b for a symmetric positive semi-definite `a`, of which only what is not above the diagonal is looked at.

    By Cholesky where the pivots show that `a` is safely regular, else by eigenvalues, of which those at or below
    ``J · eps · λ_max`` are dropped, as `torch.linalg.pinv` does (which would keep large negative ones,
    though they are rounding).

    Examples
    --------
    >>> a = torch.tensor([[2.0, 2.0], [2.0, 2.0]])  # two equal landmarks
    >>> solve_psd(a, torch.tensor([[1.0], [1.0]])).x.squeeze()
    tensor([0.2500, 0.2500], dtype=torch.float64)
    """
    a, b = a.double(), b.double()
    x, pivot = _by_cholesky(a, b)
    if pivot * pivot > cutoff(a, a.diagonal().sum()):
        return Solution(x, "cholesky", len(a))
    a = finite(a.tril(), "the moments", "rescale the features, or lower the learning rate")
    values, vectors = torch.linalg.eigh(a)
    keep = values > cutoff(a, values[-1])
    values, vectors = values[keep], vectors[:, keep]
    logger.debug("singular system: kept %d of %d eigenvalues", len(values), len(a))
    return Solution(vectors @ ((vectors.T @ b) / values[:, None]), "eigh", len(values))


def _by_cholesky(a: Tensor, b: Tensor) -> tuple[Tensor, float]:
    """Return a⁻¹b and the least diagonal entry of the factor of `a`, NaN if there is none."""
    if single_threaded(a) and not _recorded(a, b):
        factor, x, failed = by_one_thread(_POSV, a.numpy().T, b.numpy(), lower=0)
        return torch.from_numpy(x), math.nan if failed else factor.diagonal().min().item()
    factor, failed = torch.linalg.cholesky_ex(a)
    return torch.cholesky_solve(b, factor), math.nan if failed else factor.diagonal().amin().item()


def single_solver(a: Tensor) -> Callable[[Tensor], Tensor] | None:
    """Return an approximate b ↦ a⁻¹b of float64 `b` by a float32 factor of `a`, which it overwrites.

    Only what is on and below the diagonal of `a` is looked at.
    None if `a`, scaled to a unit diagonal, is singular to the rounding of float32 sums.
    """
    scale = a.diagonal().clamp_min(torch.finfo(a.dtype).tiny).rsqrt()
    a.mul_(scale).mul_(scale[:, None]).diagonal().add_(_SHIFT)
    info = torch.empty((), dtype=torch.int32, device=a.device)
    factor, failed = torch.linalg.cholesky_ex(a, out=(empty(a.shape, a).T, info))
    if failed or not bool(factor.diagonal().amin().square() > 10 * _SHIFT):
        return None

    def solve(b: Tensor) -> Tensor:  # not by `cholesky_solve`, which copies the factor
        half = torch.linalg.solve_triangular(factor, (b * scale[:, None]).to(a.dtype), upper=False)
        return torch.linalg.solve_triangular(factor.mT, half, upper=True).double() * scale[:, None]

    return solve


def double_product(a: Tensor, b: Tensor) -> Tensor:
    """Return the product of `a` and a thin float64 matrix, column after column, with no float64 copy of all of `a`."""
    if a.dtype == torch.float64:
        return product(b.T, a.T).T
    by_columns = a.stride(0) < a.stride(1)  # it is laid out column after column
    lines = a.T if by_columns else a
    size = chunk_rows(lines.shape[1])
    double = empty((min(size, len(lines)), lines.shape[1]), a, torch.float64)
    if by_columns:
        parts = in_parts(size, lines, b)
        return reduce(Tensor.add_, (product(y.T, double[: len(part)].copy_(part)) for part, y in parts)).T
    parts = [product(b.T, double[: len(part)].copy_(part).T) for (part,) in in_parts(size, lines)]
    return (parts[0] if len(parts) == 1 else torch.cat(parts, 1)).T


def inverse_sqrt(a: Tensor, rank: int | None = None) -> Tensor:
    """Return U Σ^(-1/2), J×k, where U Σ Uᵀ is the compact eigendecomposition of the best rank-k approximation of `a`.

    Eigenvalues at or below ``J · eps · λ_max`` (eps of float64) are dropped, so k may be less than `rank`.
    The largest come first. The derivative holds the rotation U fixed: it is that of the symmetric root a^(-1/2),
    which exists also where eigenvalues coincide, and is exact for a loss
    that a rotation of the features leaves alone.
    """
    return _InverseSqrt.apply(a, rank)  # pyrefly: ignore


def randomized_inverse_sqrt(a: Tensor, rank: int | None) -> Tensor:
    """Return about what ``inverse_sqrt(a, rank)`` does, in O(J²k) where that takes O(J³) (Li et al. 2015).

    `a` is projected onto the range Q of a few of its products with a random matrix, always the same one (Halko,
    Martinsson & Tropp 2011), and the k largest eigenvalues of QᵀaQ are found. The derivative holds Q fixed too.
    """
    columns = len(a) if rank is None else rank + _OVERSAMPLED
    if columns >= len(a):
        return inverse_sqrt(a, rank)
    with torch.no_grad():
        q = torch.randn(len(a), columns, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).to(a.device)
        for _ in range(_POWER + 1):
            q = torch.linalg.qr(a.double() @ q).Q
    return (q @ inverse_sqrt(q.T @ a.double() @ q, rank)).to(a.dtype)


def whitened(basis: Tensor, gram: Tensor) -> Tensor:
    """Return G L⁻ᵀ with L Lᵀ = B: the Nyström features up to a rotation, at the cost of a Cholesky factor."""
    return torch.linalg.solve_triangular(safe_cholesky(gram).to(basis.dtype).mT, basis, upper=True, left=False)


def unwhitened(weights: Tensor, gram: Tensor) -> Tensor:
    """Return L⁻ᵀV: the weights on a basis that do what V does on the whitened one, without whitening its rows.

    Its derivative holds fixed what is added to B against rounding.
    """
    return _Unwhitened.apply(weights, gram)  # pyrefly: ignore


def safe_cholesky(gram: Tensor) -> Tensor:
    """Return L of L Lᵀ = B + εI in float64, where ε = J·eps (of its dtype) times the mean diagonal is its rounding."""
    b = gram.to(torch.float64, copy=True)
    b.diagonal().add_(len(b) * torch.finfo(gram.dtype).eps * b.diagonal().mean())
    return torch.linalg.cholesky_ex(b).L


class _Unwhitened(torch.autograd.Function):
    @staticmethod
    def forward(ctx, weights: Tensor, gram: Tensor) -> Tensor:
        factor = safe_cholesky(gram)
        ctx.save_for_backward(weights, factor)
        return torch.linalg.solve_triangular(factor.mT, weights.double(), upper=True).to(weights.dtype)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad: Tensor):  # pyrefly: ignore
        weights, factor = ctx.saved_tensors
        by_weights = torch.linalg.solve_triangular(factor, grad.double(), upper=False)
        by_gram = None
        if ctx.needs_input_grad[1]:
            # With dL = L Φ(L⁻¹ dB L⁻ᵀ), where Φ halves the diagonal and drops what is above it: −L⁻ᵀ Φ(V ∂Vᵀ) L⁻¹,
            # of which the symmetric half is what varies.
            by_gram = _between(factor, weights.double(), by_weights, weights.dtype).mul_(-0.5)
        return by_weights.to(weights.dtype), by_gram


def _between(factor: Tensor, u: Tensor, v: Tensor, dtype: torch.dtype) -> Tensor:
    """Return L⁻ᵀSL⁻¹, where S is symmetric and on and below the diagonal as uvᵀ.

    torch has no such solve; that of scipy's LAPACK, which is used on one thread, does half the work of two others. It
    is of U⁻ᵀAU⁻¹ with an upper U, which are PLP and PSP: P turns the order of rows round.
    """
    if single_threaded(factor):
        a, upper = empty(factor.shape, factor), empty(factor.shape, factor).T
        torch.mm(v.flip(0), u.flip(0).T, out=a)
        np.copyto(upper.numpy(), factor.numpy()[::-1, ::-1])
        found, _ = by_one_thread(_SYGST, a.numpy().T, upper.numpy(), overwrite_a=1)
        out = torch.from_numpy(found.T).to(dtype).tril_()
        return out.add_(out.tril(-1).T).flip(0, 1)
    inner = (u @ v.T).tril_()
    inner.diagonal().mul_(0.5)
    half = torch.linalg.solve_triangular(factor.mT, inner, upper=True)
    whole = torch.linalg.solve_triangular(factor, half, upper=False, left=False).to(dtype)
    return whole + whole.mT


class _InverseSqrt(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a: Tensor, rank: int | None) -> Tensor:
        b = a.double()
        finite(b, "the kernel values of the landmarks", "rescale the features, or lower gamma")
        values, vectors = torch.linalg.eigh((b + b.T) / 2)  # a float32 kernel matrix is not quite symmetric
        values, vectors = values.flip(0), vectors.flip(1)
        k = int((values > cutoff(b, values[0])).sum())
        k = k if rank is None else min(k, rank)
        ctx.save_for_backward(values, vectors)
        ctx.k, ctx.dtype = k, a.dtype
        return (vectors[:, :k] / values[:k].sqrt()).to(a.dtype)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad: Tensor):  # pyrefly: ignore
        values, vectors = ctx.saved_tensors
        k = ctx.k
        # Divided differences of f(λ) = λ^(-1/2) on the kept eigenvalues and 0 on the dropped ones (Daleckii–Krein).
        f = torch.zeros_like(values)
        f[:k] = values[:k].rsqrt()
        gap = values[:, None] - values
        quotient = torch.where(gap == 0, 0.0, (f[:, None] - f) / torch.where(gap == 0, 1.0, gap))
        root = values[:k].sqrt()
        quotient[:k, :k] = -1 / (root[:, None] * root * (root[:, None] + root))
        inner = vectors.T @ grad.double() @ vectors[:, :k].T @ vectors
        inner = quotient * (inner + inner.T) / 2
        return (vectors @ inner @ vectors.T).to(ctx.dtype), None
