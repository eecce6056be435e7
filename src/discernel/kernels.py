"""Kernels, each a formula, and for the shift-invariant ones the spectral density that their frequencies come from.

`gamma` is one number or one per feature, fixed or (``trainable=True``) a metric that is learned with the map. It means
the same for all radial kernels: γ = 1/(2ℓ²) of a length scale ℓ, so that Matérn tends to RBF as ν grows.
"""

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from discernel import checks
from discernel.closed_form import as_written, by_graph
from discernel.distances import gaussian, gaussian_with_pull_back, no_nan, squared_distances


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

    def with_pull_back(self, x: Tensor, z: Tensor) -> tuple[Any, ...]:
        """Return k(x, z) and k(z, z) as leaves, and their `PullBack`."""
        return by_graph(self(x, z), self(z, z))

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
        return gaussian(x, z, self.metric.to(z.dtype))

    def with_pull_back(self, x, z):
        """Return k(x, z) and k(z, z), which share what is done with `z`, and their derivatives in closed form."""
        if not as_written(self, RBF):
            return super().with_pull_back(x, z)
        self.check_rows(x, z)
        return gaussian_with_pull_back(x, z, self.metric.to(z.dtype))

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
        return no_nan(torch.cdist(x, z, p=1)).neg().exp()

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
