"""Feature maps φ: what a linear model is fitted on, and what a criterion trains.

A map has `forward(x)` = φ(x) for heads and users, `basis(x)` = the G that criteria differentiate and `gram()` = the B
that goes with it, or None for the identity. A linear model on φ(x) and one on the basis span the same functions.
"""

import copy
import math
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from discernel import checks
from discernel.closed_form import ClosedForm, as_written, by_graph
from discernel.hadamard import hadamard, power_of_two
from discernel.kernels import Kernel, StationaryKernel
from discernel.linalg import inverse_sqrt, product, randomized_inverse_sqrt, trigonometric
from discernel.resources import chunk_rows, empty, in_parts


class FeatureMap(nn.Module):
    """A trainable map from samples (n×d) to features (n×J)."""

    @abstractmethod
    def forward(self, x: Tensor) -> Tensor:
        """Return the features φ(x)."""

    def basis(self, x: Tensor) -> Tensor:
        """Return G, what criteria are functions of; φ(x) unless the map has something cheaper of the same span."""
        return self(x)

    def gram(self) -> Tensor | None:
        """Return B, the penalty matrix of the basis; None for the identity."""
        return None

    def with_pull_back(self, x: Tensor) -> tuple[Any, ...]:
        """Return basis and gram as leaves, and their `PullBack`, for a step of training.

        They are computed at once, and without a graph, if the map can do it.
        """
        return by_graph(self.basis(x), self.gram())

    def scales(self) -> dict[str, float]:
        """Return the natural size of each parameter by name, in which relative learning rates are measured."""
        return {name: rms(parameter) for name, parameter in self.named_parameters()}

    def affine(self) -> tuple[nn.Parameter, nn.Parameter] | None:
        """Return W and b of a map that is a function of xW + b; relative steps are then about the mean of the data."""
        return None


@contextmanager
def at_rest(feature_map: FeatureMap) -> Iterator[None]:
    """Have a map not learn from rows that are merely shown to it: no gradients, its modules in evaluation mode."""
    modes = [(module, module.training) for module in feature_map.modules()]
    feature_map.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, training in modes:
            module.training = training


def width(feature_map: FeatureMap, row: Tensor) -> int:
    """Return the number of columns of the basis."""
    with at_rest(feature_map):
        return feature_map.basis(row).shape[1]


def rms(parameter: Tensor) -> float:
    """Return the root mean square of the entries, or one if they are all zero."""
    return parameter.detach().double().square().mean().sqrt().item() or 1.0


def _diagonal(blocks: list[Tensor]) -> Tensor:
    return blocks[0] if len(blocks) == 1 else torch.block_diag(*blocks)


def _identical(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and a.device == b.device and torch.equal(a, b)


class Nystroem(FeatureMap):
    """The Nyström map of trainable landmarks X_r: φ(x) = Σ^(-1/2) Uᵀ k(X_r, x), where UΣUᵀ = k(X_r, X_r).

    Parameters
    ----------
    landmarks : Tensor (J, d)
        The representative points to start from; see `discernel.landmarks`.
    kernel : Kernel
        The kernel; a trainable one is trained with the landmarks.
    rank : int, optional
        Keep this many of the largest eigenvalues in φ (paper, section 3.2). Those at or below J·eps·λ_max (float64)
        are dropped in any case: they are rounding. The basis and its gram always have J columns.
    experts : int
        Cut the landmarks into so many parts, each of which approximates the kernel; the map is that of the mean of the
        approximations (ensemble Nyström, Kumar, Mohri & Talwalkar 2009). The gram has a block for each: it takes
        O(J³/m²) instead of O(J³).
    randomized : bool
        Find the eigenvalues that `rank` keeps approximately, by a random projection: O(J²k) (Li et al. 2015).

    Examples
    --------
    >>> from discernel.kernels import RBF
    >>> x = torch.tensor([[0.0], [1.0], [2.0]])
    >>> phi = Nystroem(x, RBF(1.0))(x)
    >>> (phi @ phi.T)[0, 1].item()  # exp(-1): exact on the landmarks
    0.36787...
    """

    def __init__(
        self,
        landmarks: Tensor,
        kernel: Kernel,
        rank: int | None = None,
        *,
        experts: int = 1,
        randomized: bool = False,
    ):
        super().__init__()
        checks.matrix("landmarks", landmarks)
        checks.instance("kernel", kernel, Kernel).check_features(landmarks.shape[1])
        if checks.positive_int("experts", experts) > len(landmarks):
            raise ValueError(f"experts must be at most the number of landmarks, {len(landmarks)}; got {experts}")
        each = len(landmarks) // experts
        if rank is not None and checks.positive_int("rank", rank) > each:
            whose = "landmarks of an expert" if experts > 1 else "landmarks"
            raise ValueError(f"rank must be at most the number of {whose}, {each}; got {rank}")
        if checks.boolean("randomized", randomized) and rank is None:
            raise ValueError("randomized=True is for finding a few of the eigenvalues: set rank")
        self.landmarks = nn.Parameter(landmarks.detach().clone())
        self.kernel = copy.deepcopy(kernel).to(landmarks)
        self.rank, self.experts, self.randomized = rank, experts, randomized
        self._cached: tuple[list[Tensor], Tensor] | None = None

    def basis(self, x: Tensor) -> Tensor:
        """Return G = k(x, X_r)."""
        return self.kernel(x, self.landmarks)

    def gram(self) -> Tensor:
        """Return B = k(X_r, X_r); of m experts the blocks m·k(X_e, X_e)."""
        return _diagonal(self._grams())

    def with_pull_back(self, x: Tensor) -> tuple[Any, ...]:
        """Return k(x, X_r) and B, which a kernel may compute at once, and their `PullBack`."""
        if self.experts > 1 or not as_written(self, Nystroem):
            return super().with_pull_back(x)
        return self.kernel.with_pull_back(x, self.landmarks)

    def _grams(self) -> list[Tensor]:
        if self.experts == 1:
            return [self.kernel(self.landmarks, self.landmarks)]
        return [self.experts * self.kernel(part, part) for part in self.landmarks.tensor_split(self.experts)]

    def _roots(self) -> Tensor:
        root = randomized_inverse_sqrt if self.randomized else inverse_sqrt
        return _diagonal([root(gram, self.rank) for gram in self._grams()])

    def normalization(self) -> Tensor:
        """Return U Σ^(-1/2), J×k. It is kept until a parameter changes, except while gradients are recorded."""
        if torch.is_grad_enabled() and any(p.requires_grad for p in self.parameters()):
            return self._roots()
        # By value: fused optimisers do not count the versions of what they change.
        now = [p.detach() for p in self.parameters()]
        if self._cached is None or not all(map(_identical, self._cached[0], now)):
            with torch.inference_mode(False), torch.no_grad():
                self._cached = [p.clone() for p in now], self._roots()
        return self._cached[1]

    def forward(self, x: Tensor) -> Tensor:
        """Return φ(x), n×k."""
        return product(self.basis(x), self.normalization())

    def scales(self) -> dict[str, float]:
        """Return 1.5 standard deviations of the landmarks, or the kernel's width where they do not differ.

        Shifting the data leaves both alone.
        """
        spread = 1.5 * self.landmarks.detach().double().std(0, correction=0).square().mean().sqrt().item()
        return super().scales() | {"landmarks": spread or 1 / rms(self.kernel.metric)}


class RandomFourier(FeatureMap):
    """The random Fourier map of trainable frequencies W and phases b: φ(x) = √(2/J) cos(xW + b).

    Parameters
    ----------
    frequencies : Tensor (d, J)
        The frequencies to start from.
    phases : Tensor (J,)
        The phases to start from.

    Examples
    --------
    >>> from discernel.kernels import RBF
    >>> fourier = RandomFourier.sample(RBF(0.5), n_features=2, n_components=100_000, generator=torch.Generator())
    >>> phi = fourier(torch.tensor([[0.0, 0.0], [1.0, 1.0]]))
    >>> round((phi[0] @ phi[1]).item(), 1)  # near exp(-0.5 * 2) = 0.37
    0.4
    """

    def __init__(self, frequencies: Tensor, phases: Tensor):
        super().__init__()
        checks.matrix("frequencies", frequencies)
        checks.tensor("phases", phases)
        if phases.shape != (frequencies.shape[1],):
            raise ValueError(f"phases must have shape ({frequencies.shape[1]},), got {tuple(phases.shape)}")
        self.frequencies = nn.Parameter(frequencies.detach().clone())
        self.phases = nn.Parameter(phases.detach().clone())

    @classmethod
    def sample(
        cls,
        kernel: Kernel,
        n_features: int,
        n_components: int,
        generator: torch.Generator | None = None,
        dtype: torch.dtype | None = None,
        orthogonal: bool = False,
    ) -> "RandomFourier":
        """Return a map whose features approximate `kernel`: E φ(x)ᵀφ(z) = k(x, z).

        With `orthogonal` frequencies, for radial kernels, the approximation varies less (see
        `StationaryKernel.frequencies`).
        """
        kernel = _spectral(kernel, n_features, n_components)
        checks.boolean("orthogonal", orthogonal)
        frequencies = kernel.frequencies(n_features, n_components, generator, dtype, orthogonal)
        return cls(frequencies, _phases(n_components, generator, frequencies))

    def forward(self, x: Tensor) -> Tensor:
        """Return φ(x), n×J."""
        checks.samples("x", x, "the frequencies", self.frequencies, axis=0)
        if not torch.is_grad_enabled():  # the angles need not be kept
            return product(x, self.frequencies, self.phases).cos_().mul_(math.sqrt(2 / len(self.phases)))
        return _Cosine.apply(x, self.frequencies, self.phases)  # pyrefly: ignore

    def with_pull_back(self, x: Tensor) -> tuple[Any, ...]:
        """Return φ(x) as a leaf, no gram, and their `PullBack`."""
        if not as_written(self, RandomFourier):
            return super().with_pull_back(x)
        checks.samples("x", x, "the frequencies", self.frequencies, axis=0)
        basis, pull_back = _Cosine.with_pull_back(x, self.frequencies, self.phases)
        return basis, None, lambda by_basis, _: pull_back(by_basis)

    def scales(self) -> dict[str, float]:
        """Return the size of the frequencies, and one radian for the phases."""
        return super().scales() | {"phases": 1.0}

    def affine(self) -> tuple[nn.Parameter, nn.Parameter]:
        """Return the frequencies and the phases."""
        return self.frequencies, self.phases


class Fastfood(FeatureMap):
    """Fourier features whose frequencies are products of diagonal and Hadamard matrices (Le, Sarlós & Smola 2013).

    φ(x) = √(2/J) cos(Vx + b), where V stacks blocks S H G Π H B of d'×d', d' = d padded to a power of two: H is the
    orthonormal Hadamard transform, Π a fixed permutation, and the diagonals S, G, B and the phases are trained
    (Yang et al. 2015). It takes O(J log d) a sample and O(J) parameters, where `RandomFourier` takes O(Jd) of both.

    Parameters
    ----------
    signs : Tensor (m, d)
        B, of which there are m blocks: what each feature is multiplied by.
    gains : Tensor (m, d')
        G.
    scaling : Tensor (J,)
        S, with (m − 1)d' < J ≤ md': features beyond J are left out.
    phases : Tensor (J,)
        The phases b.
    permutation : Tensor (m, d') of integers
        Π: a permutation of 0..d'−1 for each block.

    Examples
    --------
    >>> from discernel.kernels import RBF
    >>> fastfood = Fastfood.sample(RBF(0.5), n_features=2, n_components=100_000, generator=torch.Generator())
    >>> phi = fastfood(torch.tensor([[0.0, 0.0], [1.0, 1.0]]))
    >>> round((phi[0] @ phi[1]).item(), 1)  # near exp(-0.5 * 2) = 0.37
    0.4
    """

    permutation: Tensor

    def __init__(self, signs: Tensor, gains: Tensor, scaling: Tensor, phases: Tensor, permutation: Tensor):
        super().__init__()
        blocks, n_features = checks.matrix("signs", signs).shape
        size = power_of_two(n_features)
        checks.matrix("gains", gains, rows=blocks, columns=size)
        if not (blocks - 1) * size < checks.tensor("scaling", scaling).numel() <= blocks * size:
            raise ValueError(f"scaling must have from {(blocks - 1) * size + 1} to {blocks * size} entries")
        if checks.tensor("phases", phases).shape != scaling.shape or scaling.ndim != 1:
            raise ValueError(f"scaling and phases must be vectors of one length, got {scaling.shape}, {phases.shape}")
        if not torch.equal(permutation.sort(1).values, torch.arange(size).to(permutation).expand(blocks, size)):
            raise ValueError(f"permutation must hold a permutation of 0..{size - 1} for each of the {blocks} blocks")
        self.signs, self.gains, self.scaling, self.phases = (
            nn.Parameter(value.detach().clone()) for value in (signs, gains, scaling, phases)
        )
        self.register_buffer("permutation", permutation.clone())

    @classmethod
    def sample(
        cls,
        kernel: Kernel,
        n_features: int,
        n_components: int,
        generator: torch.Generator | None = None,
        dtype: torch.dtype | None = None,
    ) -> "Fastfood":
        """Return a map whose features approximate a radial `kernel`: E φ(x)ᵀφ(z) = k(x, z), exactly.

        Each row of V has a uniform direction and the length of an independent frequency. The rows of a block share
        their randomness, which makes the squared error about a fifth larger than that of as many independent ones. A
        bandwidth for each feature goes into B.
        """
        kernel = _spectral(kernel, n_features, n_components)
        kernel.check_radial("Fastfood features")
        kernel.check_features(n_features)
        metric = kernel.metric.detach().to(dtype or torch.get_default_dtype())
        size = power_of_two(n_features)
        blocks = -(-n_components // size)
        coins = torch.randint(2, (blocks, n_features), generator=generator).to(metric) * 2 - 1
        gains = torch.empty(blocks, size, dtype=torch.float64).normal_(generator=generator)
        spread = gains.square().mean(1).sqrt().repeat_interleave(size)[:n_components]  # a row of HGΠH has this length
        scaling = kernel.lengths(size, n_components, generator) / spread
        permutation = torch.stack([torch.randperm(size, generator=generator) for _ in range(blocks)])
        phases = _phases(n_components, generator, metric)
        return cls(coins * metric, gains.to(metric), scaling.to(metric), phases, permutation.to(metric.device))

    def forward(self, x: Tensor) -> Tensor:
        """Return φ(x), n×J."""
        return torch.addcmul(self.phases, self._projected(x), self.scaling).cos() * math.sqrt(2 / len(self.phases))

    def dense(self) -> RandomFourier:
        """Return the same map with its frequencies as one matrix, d×J."""
        identity = torch.eye(self.signs.shape[1], dtype=self.signs.dtype, device=self.signs.device)
        with torch.no_grad():
            return RandomFourier(self._projected(identity) * self.scaling, self.phases)

    def _projected(self, x: Tensor) -> Tensor:
        """Return H G Π H B x for each row, n×J."""
        checks.samples("x", x, "the signs", self.signs)
        blocks, size = self.gains.shape
        # m×d'×n, samples last: so the transforms are wide products and permuting moves whole rows.
        padded = nn.functional.pad(x.T.contiguous() * self.signs[:, :, None], (0, 0, 0, size - x.shape[1]))
        mixed = hadamard(padded).flatten(0, 1)
        order = (self.permutation + size * torch.arange(blocks, device=x.device)[:, None]).flatten()
        turned = hadamard(mixed[order].view(blocks, size, -1) * self.gains[:, :, None])
        return turned.flatten(0, 1)[: len(self.scaling)].T.contiguous()

    def scales(self) -> dict[str, float]:
        """Return the size of the diagonals, and one radian for the phases."""
        return super().scales() | {"phases": 1.0}


def _spectral(kernel: Kernel, n_features: int, n_components: int) -> StationaryKernel:
    """Return the kernel; it must have a spectral density that frequencies can be sampled from."""
    checks.instance("kernel", kernel, Kernel)
    if not isinstance(kernel, StationaryKernel):
        name = type(kernel).__name__
        raise ValueError(f"kernel must be shift-invariant to have Fourier features; {name} is not: use Nystroem")
    checks.positive_int("n_features", n_features)
    checks.positive_int("n_components", n_components)
    return kernel


def _phases(n_components: int, generator: torch.Generator | None, like: Tensor) -> Tensor:
    return torch.rand(n_components, generator=generator, dtype=like.dtype).to(like.device) * (2 * math.pi)


class _Cosine(ClosedForm):
    """√(2/J) cos(xW + b), a few rows at a time, so that all but the products happens in the cache."""

    @staticmethod
    def forward(ctx, x, frequencies, phases):
        shape = len(x), len(phases)
        out, sines = empty(shape, x), empty(shape, x)
        ctx.save_for_backward(x, frequencies, sines)
        ctx.scale = math.sqrt(2 / len(phases))
        for rows, part, sine in in_parts(chunk_rows(*frequencies.shape[::-1]), x, out, sines):
            angles = product(rows, frequencies, phases)
            trigonometric("cos", angles, part).mul_(ctx.scale)
            trigonometric("sin", angles, sine)
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):  # pyrefly: ignore
        x, frequencies, sines = ctx.saved_tensors
        by_x, sums, size = [], (), chunk_rows(*frequencies.shape[::-1])
        by_angles = empty((min(size, len(x)), sines.shape[1]), x)
        for rows, sine, slope in in_parts(size, x, sines, grad):
            by_angle = torch.mul(sine, slope, out=by_angles[: len(rows)])
            part = product(rows.T, by_angle), by_angle.sum(0)
            sums = tuple(map(Tensor.add_, sums, part)) if sums else part
            if ctx.needs_input_grad[0]:
                by_x.append(product(by_angle, frequencies.T))
        by_x = torch.cat(by_x).mul_(-ctx.scale) if by_x else None
        return by_x, *(total.mul_(-ctx.scale) for total in sums)


class ModuleMap(FeatureMap):
    """Any torch Module whose output has a row of features per sample, as a feature map.

    Examples
    --------
    >>> ModuleMap(nn.Sequential(nn.Linear(3, 5), nn.Tanh())).basis(torch.rand(2, 3)).shape
    torch.Size([2, 5])
    """

    def __init__(self, module: nn.Module):
        super().__init__()
        if not isinstance(module, nn.Module):
            raise TypeError(f"module must be a torch.nn.Module, got {type(module).__name__}")
        self.module = module

    def forward(self, x: Tensor) -> Tensor:
        """Return module(x)."""
        return self.module(x)
