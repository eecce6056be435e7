"""Kernels, each a formula, and for the shift-invariant ones the spectral density that their frequencies come from.

`gamma` is one number or one per feature, fixed or (``trainable=True``) a metric that is learned with the map. It means
the same for all radial kernels: γ = 1/(2ℓ²) of a length scale ℓ, so that Matérn tends to RBF as ν grows.
"""

import math
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from functools import reduce
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from discernel import checks
from discernel.linalg import chunk_rows, empty, in_parts, product

_WIDE = 64.0  # squared norms of rows in the metric of a kernel, up to which sums over them may be multiplied out


class Kernel(nn.Module):
    """A positive definite function k(x, z) of the rows of two matrices, differentiable in both.

    The inputs are multiplied by `metric`, a number or one per feature, before the formula is applied. Gamma is a power
    of its size, so that no constraint is needed in training: the square, unless the subclass has another `power`.
    """

    power: ClassVar[int] = 2  # p: γ multiplies what grows as this power of the units of the data

    def __init__(self, gamma: float | Sequence[float] | Tensor = 1.0, *, trainable: bool = False):
        super().__init__()
        values = checks.numbers("gamma", gamma)
        if values.ndim > 1 or values.numel() == 0 or not bool((values > 0).all()):
            raise ValueError(f"gamma must be a positive number, or one per feature; got {gamma!r}")
        self.metric = nn.Parameter(values.detach() ** (1 / self.power), requires_grad=trainable)

    @property
    def gamma(self) -> Tensor:
        """Gamma as it now is, a number or one per feature."""
        return self.metric.detach().abs() ** self.power

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        """Return k(x, z), a matrix with a row for each row of `x` and a column for each row of `z`."""
        self.check_rows(x, z)
        metric, origin = self.metric.to(z.dtype), self.origin(z)
        scaled = (z - origin) * metric
        return self.formula(scaled if x is z else (x - origin).mul_(metric), scaled)

    def with_gram(self, x: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        """Return k(x, z) and k(z, z)."""
        return self(x, z), self(z, z)

    def check_rows(self, x: Tensor, z: Tensor) -> None:
        """Refuse rows that differ in their number of features, or have another than gamma."""
        checks.samples("x", x, "the landmarks", checks.floating_matrix("z", z))
        self.check_features(z.shape[1])

    def check_features(self, n_features: int) -> None:
        """Refuse data whose number of features is not that of gamma."""
        if self.metric.ndim and len(self.metric) != n_features:
            raise ValueError(f"gamma has {len(self.metric)} values but the data have {n_features} features")

    def origin(self, z: Tensor) -> Tensor | float:
        """Return a point that the inputs may be taken about without changing the kernel."""
        return 0.0

    @abstractmethod
    def formula(self, x: Tensor, z: Tensor) -> Tensor:
        """Return the kernel for γ = 1."""


class StationaryKernel(Kernel):
    """A kernel of x − z: by Bochner's theorem the Fourier transform of a spectral density."""

    radial: ClassVar[bool] = True  # a function of ‖x − z‖ alone, and so a mixture of Gaussian kernels

    def origin(self, z: Tensor) -> Tensor:
        """Return the mean of the landmarks: a common offset would cost digits."""
        return z.detach().mean(0)

    def frequencies(
        self,
        n_features: int,
        n_components: int,
        generator: torch.Generator | None = None,
        dtype: torch.dtype | None = None,
        orthogonal: bool = False,
    ) -> Tensor:
        """Return frequencies W (d×J), columns sampled from the spectral density: E cos(wᵀ(x − z)) = k(x, z).

        With `orthogonal`, every d of them have orthogonal directions, uniform on the sphere, and the lengths of
        independent ones (Yu et al. 2016): the mean is the same, the variance less. Only for radial kernels.
        """
        self.check_features(n_features)
        metric = self.metric.detach().to(dtype or torch.get_default_dtype())
        raw = torch.empty(n_components, n_features, dtype=metric.dtype, device="cpu")
        raw = self.sample_spectrum(raw, generator)
        if orthogonal:
            self.check_radial("orthogonal frequencies")
            raw = raw.norm(dim=1, keepdim=True) * _orthogonal_rows(n_components, n_features, generator).to(raw)
        return (raw.to(metric.device) * metric).T.contiguous()

    def lengths(self, n_features: int, n_components: int, generator: torch.Generator | None = None) -> Tensor:
        """Return the lengths of `n_components` frequencies for γ = 1 in float64, without keeping the frequencies."""
        rows = max(1, 2**20 // n_features)
        sizes = [min(rows, n_components - start) for start in range(0, n_components, rows)]
        draws = (torch.empty(size, n_features, dtype=torch.float64) for size in sizes)
        return torch.cat([self.sample_spectrum(draw, generator).norm(dim=1) for draw in draws])

    def check_radial(self, purpose: str) -> None:
        """Refuse a purpose for which frequencies must have no preferred direction."""
        if not self.radial:
            name = type(self).__name__
            raise ValueError(f"{purpose} need a radial kernel, a function of ‖x − z‖ such as RBF; {name} is not")

    @abstractmethod
    def sample_spectrum(self, out: Tensor, generator: torch.Generator | None) -> Tensor:
        """Fill the rows of `out` with frequencies for γ = 1, and return it."""


class RBF(StationaryKernel):
    """The Gaussian kernel, exp(−γ‖x − z‖²).

    Examples
    --------
    >>> RBF(0.5)(torch.zeros(1, 2), torch.ones(1, 2))
    tensor([[0.3679]])
    """

    def formula(self, x, z):
        """Return exp(−‖x − z‖²)."""
        return squared_distances(x, z).neg().exp()

    def forward(self, x, z):
        """Return k(x, z) by the formula, with derivatives in closed form."""
        if type(self) is not RBF:
            return super().forward(x, z)
        self.check_rows(x, z)
        k, gram = _Gaussian.apply(None if x is z else x, z, self.metric.to(z.dtype), x is z)  # pyrefly: ignore
        return gram if x is z else k

    def with_gram(self, x, z):
        """Return k(x, z) and k(z, z), which share what is done with `z`."""
        if type(self) is not RBF:
            return super().with_gram(x, z)
        self.check_rows(x, z)
        return _Gaussian.apply(x, z, self.metric.to(z.dtype), True)  # pyrefly: ignore

    def sample_spectrum(self, out, generator):
        """N(0, 2) in every direction."""
        return out.normal_(generator=generator).mul_(math.sqrt(2))


class Matern(StationaryKernel):
    """The Matérn kernel of smoothness ν ∈ {1/2, 3/2, 5/2}: a polynomial in a = √(2ν)‖x − z‖/ℓ times exp(−a).

    Examples
    --------
    >>> Matern(0.5, nu=0.5)(torch.zeros(1, 2), torch.ones(1, 2))
    tensor([[0.2431]])
    """

    def __init__(self, gamma=1.0, nu: float = 1.5, *, trainable: bool = False):
        super().__init__(gamma, trainable=trainable)
        if nu not in (0.5, 1.5, 2.5):
            raise ValueError(f"nu must be 0.5, 1.5 or 2.5; got {nu!r}")
        self.nu = float(nu)

    def formula(self, x, z):
        """Return exp(−a), (1 + a)exp(−a) or (1 + a + a²/3)exp(−a), where a² = 4ν‖x − z‖² since ℓ² = 1/2."""
        a2 = (squared_distances(x, z) * (4 * self.nu)).clamp_max(1e8)  # beyond, a·exp(−a) is zero, and not ∞·0
        a = a2.clamp_min(torch.finfo(a2.dtype).tiny).sqrt()  # a kink, or 0/0, at coincident points: derivative 0 there
        if self.nu == 0.5:
            return a.neg().exp()
        return ((1 + a) if self.nu == 1.5 else (1 + a + a2 / 3)) * a.neg().exp()

    def sample_spectrum(self, out, generator):
        """Student's t with 2ν degrees of freedom: N(0, 2) over √(χ²/2ν)."""
        chi2 = out.new_empty(len(out), round(2 * self.nu)).normal_(generator=generator).square_().mean(1, keepdim=True)
        return out.normal_(generator=generator).mul_((2 / chi2).sqrt())


class Cauchy(StationaryKernel):
    """The Cauchy (rational quadratic) kernel, 1/(1 + γ‖x − z‖²).

    Examples
    --------
    >>> Cauchy(2.0)(torch.zeros(1, 2), torch.ones(1, 2))
    tensor([[0.2000]])
    """

    def formula(self, x, z):
        """Return 1/(1 + ‖x − z‖²)."""
        return (1 + squared_distances(x, z)).reciprocal()

    def sample_spectrum(self, out, generator):
        """N(0, 2t) with t exponential: a mixture of Gaussian kernels."""
        t = out.new_empty(len(out), 1).exponential_(generator=generator)
        return out.normal_(generator=generator).mul_((2 * t).sqrt())


class Laplacian(StationaryKernel):
    """The Laplacian kernel, exp(−γ‖x − z‖₁).

    Examples
    --------
    >>> Laplacian(0.5)(torch.zeros(1, 2), torch.ones(1, 2))
    tensor([[0.3679]])
    """

    radial = False
    power = 1

    def formula(self, x, z):
        """Return exp(−‖x − z‖₁)."""
        return _no_nan(torch.cdist(x, z, p=1)).neg().exp()

    def sample_spectrum(self, out, generator):
        """Cauchy in each feature."""
        return out.cauchy_(generator=generator)


class Polynomial(Kernel):
    """The polynomial kernel, (γ⟨x, z⟩ + coef0)^degree.

    Examples
    --------
    >>> Polynomial(degree=2, coef0=3)(torch.zeros(1, 2), torch.ones(1, 2))
    tensor([[9.]])
    """

    def __init__(self, gamma=1.0, degree: int = 3, coef0: float = 1.0, *, trainable: bool = False):
        super().__init__(gamma, trainable=trainable)
        self.degree = checks.positive_int("degree", degree)
        self.coef0 = checks.number("coef0", coef0)
        if self.coef0 < 0:
            raise ValueError(f"coef0 must not be negative, or the kernel is not positive definite; got {coef0!r}")

    def formula(self, x, z):
        """Return (⟨x, z⟩ + coef0)^degree."""
        return (x @ z.T + self.coef0) ** self.degree


class Linear(Kernel):
    """The linear kernel, γ⟨x, z⟩.

    Examples
    --------
    >>> Linear()(torch.zeros(1, 2), torch.ones(1, 2))
    tensor([[0.]])
    """

    def formula(self, x, z):
        """Return ⟨x, z⟩."""
        return x @ z.T


KERNELS: dict[str, type[Kernel]] = {
    "rbf": RBF,
    "laplacian": Laplacian,
    "matern": Matern,
    "cauchy": Cauchy,
    "polynomial": Polynomial,
    "linear": Linear,
}


def make_kernel(kernel: str | Kernel, gamma: float | Sequence[float] | Tensor = 1.0, **options) -> Kernel:
    """Return `kernel` if it is one, else the kernel of that name with this gamma.

    Examples
    --------
    >>> make_kernel("cauchy", 2.0)(torch.zeros(1, 2), torch.ones(1, 2))
    tensor([[0.2000]])
    """
    if isinstance(kernel, Kernel):
        return kernel
    return kernel_named(kernel)(gamma, **options)


def kernel_named(name: str) -> type[Kernel]:
    """Return the class of the kernels of this name."""
    return KERNELS[checks.one_of("kernel", name, KERNELS)]


def _orthogonal_rows(n_rows: int, n_features: int, generator: torch.Generator | None) -> Tensor:
    """Return unit rows, uniform on the sphere and orthogonal within every `n_features` of them."""
    blocks = -(-n_rows // n_features)
    normal = torch.empty(blocks, n_features, n_features, dtype=torch.float64).normal_(generator=generator)
    q, r = torch.linalg.qr(normal)
    q = q * r.diagonal(dim1=-2, dim2=-1).sign()[:, None]  # makes it uniform: Householder's signs are not
    return q.reshape(-1, n_features)[:n_rows]


def squared_distances(x: Tensor, z: Tensor) -> Tensor:
    """Return ‖xᵢ − zⱼ‖² for all pairs of rows, by one matrix product; differentiable, by one more for each argument.

    Where the product form would cancel (distances far below the norms), the pairs are computed directly, so small
    distances are accurate to a relative 1e-4 in float32 and coincident points have distance zero.
    """
    return _SquaredDistances.apply(x, z)  # pyrefly: ignore


class _SquaredDistances(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, z):
        origin = z.mean(0)
        ctx.save_for_backward(x - origin, z - origin)
        out = empty((len(x), len(z)), x)
        for _ in _distances(x, z, out, origin):
            pass
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):  # pyrefly: ignore
        x, z = ctx.saved_tensors
        weights = (part for (part,) in in_parts(chunk_rows(*z.shape), grad))
        for_x, for_z = ctx.needs_input_grad
        found = _weighted(x, z, weights, for_x, for_z)
        return found.from_x.mul_(2) if for_x else None, _to_z(found, z).mul_(-2) if for_z else None


class _Gaussian(torch.autograd.Function):
    """exp(−‖m∘(x − z)‖²) of the rows of x and z if there is an x, and of those of z if `gram`.

    A few rows at a time, so that all but the products happens in the cache. With P the derivative by the exponents,
    a = m∘x and b = m∘z, about an origin, the derivative by zⱼ is 2m∘Dⱼ with Dⱼ = Σᵢ Pᵢⱼ(aᵢ − bⱼ), and that by m is
    2Σⱼ zⱼ∘Dⱼ − 2Σᵢ xᵢ∘Σⱼ Pᵢⱼ(aᵢ − bⱼ). Multiplied out, the last sum takes no product of matrices beyond that of D; it
    cancels where the kernel is narrow beside the rows, and is not done there.
    """

    @staticmethod
    def forward(ctx, x, z, metric, gram):
        origin = z.mean(0)
        near = (z - origin).mul_(metric)
        rows = k = b = None
        if x is not None:
            rows, k = torch.sub(x, origin, out=empty(x.shape, x)).mul_(metric), empty((len(x), len(z)), x)
            for part in _distances(rows, near, k, enough=16.0):  # an error of some eps does exp no harm
                part.neg_().exp_()
        if gram:  # of close landmarks it is to stay positive semi-definite
            b = empty((len(z), len(z)), z)
            for part in _distances(near, near, b):
                part.neg_().exp_()
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, z, metric, origin, rows, near, k, b)
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


def _distances(
    x: Tensor, z: Tensor, distances: Tensor, origin: Tensor | None = None, enough: float = 0.0
) -> Iterator[Tensor]:
    """Fill in the squared distances, by products of the rows about `origin`; yield a few rows of them at a time.

    They err by the eps of the squares that cancel. Where these are more than `enough`, what is left of them is computed
    directly if it is little.
    """
    about = z if origin is None else z - origin
    z2, turned = _squared_norms(about)[:, 0], about.T * -2
    little = enough - z2.amax()
    size = chunk_rows(*z.shape)
    for part, (rows, out) in enumerate(in_parts(size, x, distances)):
        centred = rows if origin is None else rows - origin
        x2 = _squared_norms(centred)
        product(centred, turned, z2, out).add_(x2)
        if bool((x2 <= little).all()):
            out.clamp_min_(0)
        else:
            _cancelled(rows, z, out, x2, z2, part * size if x is z else None)
        if x is z:
            out.diagonal(part * size).zero_()
        yield out


def _cancelled(x: Tensor, z: Tensor, distances: Tensor, x2: Tensor, z2: Tensor, diagonal: int | None) -> None:
    """Put the squared distances right that are so small that they have cancelled; those on the diagonal are known."""
    rounding = 2**17 * torch.finfo(z.dtype).eps
    if diagonal is not None:
        distances.diagonal(diagonal).fill_(math.inf)
    # Also where squares overflow (∞ > ∞ is false). A row is looked at only if its nearest point may have cancelled.
    clear = distances.amin(1, keepdim=True) > rounding * (x2 + z2.amax())
    if bool(clear.all()):
        return
    near = (~clear[:, 0]).nonzero()[:, 0]
    found = ~(distances[near] > rounding * x2[near] + rounding * z2)
    for i, j in (pairs.unbind(1) for pairs in found.nonzero().split(max(1, 2**22 // x.shape[1]))):
        i = near[i]
        distances[i, j] = _no_nan((x[i] - z[j]).square_().sum(1))


def _squared_norms(a: Tensor) -> Tensor:
    return torch.linalg.vector_norm(a, dim=1, keepdim=True).square_()  # in one pass, without a copy


def _no_nan(distances: Tensor) -> Tensor:
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
    return (z.T * sums.of_z).sub_(sums.moved).neg_().T
