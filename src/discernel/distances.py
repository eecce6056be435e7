"""Distances between rows and the Gaussian kernel of them, with derivatives in closed form.

Each is one matrix product, and one more for each argument that a derivative is asked for by; what else there is to do
happens in the cache, a few rows at a time.
"""

import math
from collections.abc import Iterable, Iterator
from functools import reduce
from typing import Any, NamedTuple

import torch
from torch import Tensor

from discernel.closed_form import ClosedForm
from discernel.linalg import product
from discernel.resources import chunk_rows, empty, in_parts

_LOG2E = math.log2(math.e)  # exp is exp2 of as many times more, which takes a quarter of the time
_ENOUGH = 16.0  # squared norms, in the metric of a kernel, up to which it does exp no harm that they cancel
_WIDE = 64.0  # squared norms, in the same metric, up to which sums over rows may be multiplied out


def squared_distances(x: Tensor, z: Tensor) -> Tensor:
    """Return ‖xᵢ − zⱼ‖² for all pairs of rows, by one matrix product; differentiable, by one more for each argument.

    Where the product form would cancel (distances far below the norms), the pairs are computed directly, so small
    distances are accurate to a relative 1e-4 in float32 and coincident points have distance zero.
    """
    return _SquaredDistances.apply(x, z)  # pyrefly: ignore


def gaussian(x: Tensor, z: Tensor, metric: Tensor) -> Tensor:
    """Return exp(−‖m∘(x − z)‖²) of the rows of x and z."""
    same = x is z
    return _Gaussian.apply(None if same else x, z, metric, same)[same]  # pyrefly: ignore


def gaussian_with_pull_back(x: Tensor, z: Tensor, metric: Tensor) -> tuple[Any, ...]:
    """Return those of x and z, and those of z, as leaves, and their `PullBack`."""
    return _Gaussian.with_pull_back(x, z, metric, True)


class _SquaredDistances(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, z):
        origin, out = z.mean(0), empty((len(x), len(z)), x)
        ctx.save_for_backward(x - origin, z - origin)
        for part in _negated_distances(x, _points(z, origin), out):
            part.abs_()
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):  # pyrefly: ignore
        x, z = ctx.saved_tensors
        weights = (part for (part,) in in_parts(chunk_rows(*z.shape), grad))
        for_x, for_z = ctx.needs_input_grad
        found = _weighted(x, z, weights, for_x, for_z)
        return found.from_x.mul_(2) if for_x else None, _to_z(found, z).mul_(-2) if for_z else None


class _Gaussian(ClosedForm):
    """The kernel, if there are rows x, and the gram, if it is wanted, which share what is done with z.

    With P the derivative by the exponents,
    a = m∘x and b = m∘z, about an origin, the derivative by zⱼ is 2m∘Dⱼ with Dⱼ = Σᵢ Pᵢⱼ(aᵢ − bⱼ), and that by m is
    2Σⱼ zⱼ∘Dⱼ − 2Σᵢ xᵢ∘Σⱼ Pᵢⱼ(aᵢ − bⱼ). Multiplied out, the last sum takes no product of matrices beyond that of D; it
    cancels where the kernel is narrow beside the rows, and is not done there.
    """

    @staticmethod
    def forward(ctx, x, z, metric, gram):
        origin = z.mean(0)
        near = _points((z - origin).mul_(metric), unit=_LOG2E)
        rows = k = b = None
        if x is not None:
            rows, k = torch.sub(x, origin, out=empty(x.shape, x)).mul_(metric), empty((len(x), len(z)), x)
            for part in _negated_distances(rows, near, k, _ENOUGH):
                part.exp2_()
        if gram:  # of close landmarks it is to stay positive semi-definite
            b = empty((len(z), len(z)), z)
            for part in _negated_distances(near.rows, near, b):
                part.exp2_()
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, z, metric, origin, rows, near.rows, k, b)
        return k, b

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, by_k, by_b):  # pyrefly: ignore
        x, z, metric, origin, rows, near, k, b = ctx.saved_tensors
        size, (for_x, for_z, for_metric, _) = chunk_rows(*z.shape), ctx.needs_input_grad
        by_x = by_z = by_metric = None
        to_z, from_x, any_z = [], 0.0, for_z or for_metric
        if by_k is not None:
            weights = (g * part for g, part in in_parts(size, by_k, k))
            wide = for_metric and all(bool((_squared_norms(a) <= _WIDE).all()) for a in (rows, near))
            found = _weighted(rows, near, weights, for_x or (for_metric and not wide), any_z, wide)
            if any_z:
                to_z.append(_to_z(found, near))
            if for_x:
                by_x = found.from_x * (-2 * metric)
            if for_metric:
                points = torch.sub(x, origin, out=empty(x.shape, x))
                if wide:
                    from_x = found.of_x @ points.mul_(rows) - ((z - origin).T * found.moved).sum(1)
                else:
                    from_x = points.mul_(found.from_x).sum(0)
        if by_b is not None and any_z:
            weights = ((g + h).mul_(part) for g, h, part in in_parts(size, by_b, by_b.T, b))
            to_z.append(_to_z(_weighted(near, near, weights, False, True), near))
        if to_z and for_metric:
            by_metric = (((z - origin) * sum(to_z)).sum(0) - from_x).mul_(2)
            by_metric = by_metric if metric.ndim else by_metric.sum()
        if to_z and for_z:
            by_z = reduce(torch.add, to_z).mul_(2 * metric)
        return by_x, by_z, by_metric, None


class _Points(NamedTuple):
    """The rows that distances are to, and what these are made of: products about the origin."""

    rows: Tensor  # z, J×d
    origin: Tensor | None
    unit: float  # u
    squares: Tensor  # ‖zⱼ‖², J
    largest: float  # max ‖zⱼ‖²
    bias: Tensor  # −u‖zⱼ‖²
    turned: Tensor  # 2uzᵀ, d×J


def _points(z: Tensor, origin: Tensor | None = None, unit: float = 1.0) -> _Points:
    about = z if origin is None else z - origin
    squares = _squared_norms(about)[:, 0]
    return _Points(z, origin, unit, squares, squares.amax().item(), squares * -unit, about.T * (2 * unit))


def _negated_distances(x: Tensor, z: _Points, out: Tensor, enough: float = 0.0) -> Iterator[Tensor]:
    """Fill in −u‖xᵢ − zⱼ‖², by products of the rows; yield a few rows of them at a time.

    They err by the eps of the squares that cancel. Where these are more than `enough`, what is left of them is computed
    directly if it is little.
    """
    size, same = chunk_rows(*z.rows.shape), x is z.rows
    for part, (rows, found) in enumerate(in_parts(size, x, out)):
        centred = rows if z.origin is None else rows - z.origin
        x2 = z.squares[part * size :][: len(rows), None] if same else _squared_norms(centred)
        largest = z.largest + (z.largest if same or not len(rows) else x2.amax().item())
        torch.sub(product(centred, z.turned, z.bias), x2, alpha=z.unit, out=found)
        if largest <= enough:
            found.clamp_max_(0)
        elif same:
            diagonal = found.diagonal(part * size)
            diagonal.fill_(-math.inf)
            _cancelled(rows, z, found, x2, largest)
            diagonal.zero_()
        else:
            _cancelled(rows, z, found, x2, largest)
        yield found


def _cancelled(x: Tensor, z: _Points, found: Tensor, x2: Tensor, largest: float) -> None:
    """Put the distances right that are so small that they have cancelled."""
    rounding = -(2**17) * torch.finfo(x.dtype).eps * z.unit
    # Also where squares overflow (−∞ < −∞ is false). A row is looked at only if its nearest point may have cancelled.
    if not len(x) or found.amax().item() < rounding * largest:
        return
    near = (found.amax(1) < rounding * (x2[:, 0] + z.largest)).logical_not_().nonzero()[:, 0]
    close = ~(found[near] < rounding * x2[near] + rounding * z.squares)
    for i, j in (pairs.unbind(1) for pairs in close.nonzero().split(max(1, 2**22 // x.shape[1]))):
        i = near[i]
        found[i, j] = no_nan((x[i] - z.rows[j]).square_().sum(1)).mul_(-z.unit)


def _squared_norms(a: Tensor) -> Tensor:
    return torch.linalg.vector_norm(a, dim=1, keepdim=True).square_()  # in one pass, without a copy


def no_nan(distances: Tensor) -> Tensor:
    """Return distances, which may be infinite; they are NaN where the points themselves were."""
    if bool(distances.isnan().any()):
        raise FloatingPointError(
            f"the kernel overflows in {distances.dtype}: rescale the features, lower gamma, or use float64"
        )
    return distances


class _Sums(NamedTuple):
    """Sums over pairs of rows x and z with weights P; those that were not asked for are empty."""

    of_x: Tensor  # Σⱼ Pᵢⱼ, n
    of_z: Tensor  # Σᵢ Pᵢⱼ, J
    moved: Tensor  # Σᵢ xᵢPᵢⱼ, d×J
    from_x: Tensor  # Σⱼ Pᵢⱼ(xᵢ − zⱼ), n×d


def _weighted(x: Tensor, z: Tensor, weights: Iterable[Tensor], for_x: bool, for_z: bool, of_x: bool = False) -> _Sums:
    """Return the sums that derivatives by x and z are made of, of weights that come a few rows at a time."""
    sums_of_x, from_x, sums = [], [], ()
    for (rows,), p in zip(in_parts(chunk_rows(*z.shape), x), weights, strict=True):
        if for_x or of_x:
            sums_of_x.append(p.sum(1))
        if for_x:
            from_x.append((rows * sums_of_x[-1][:, None]).sub_(product(p, z)))
        if for_z:
            part = p.sum(0), product(rows.T, p)
            sums = tuple(map(Tensor.add_, sums, part)) if sums else part
    of_z, moved = sums or (x.new_empty(0), x.new_empty(0))
    return _Sums(_joined(sums_of_x, x), of_z, moved, _joined(from_x, x))


def _joined(parts: list[Tensor], like: Tensor) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts) if parts else like.new_empty(0)


def _to_z(sums: _Sums, z: Tensor) -> Tensor:
    """Return Σᵢ Pᵢⱼ(xᵢ − zⱼ), J×d."""
    return torch.addcmul(sums.moved, z.T, sums.of_z, value=-1).T
