"""Feature maps φ: what a linear model is fitted on, and what a criterion trains.

A map has `forward(x)` = φ(x) for heads and users, `basis(x)` = the G that criteria differentiate and `gram()` = the B
that goes with it, or None for the identity. A linear model on φ(x) and one on the basis span the same functions.
"""

import copy
import math
from abc import abstractmethod

import torch
from torch import Tensor, nn

from discernel import checks
from discernel.kernels import Kernel, StationaryKernel
from discernel.linalg import inverse_sqrt


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

    def scales(self) -> dict[str, float]:
        """Return the natural size of each parameter by name, in which relative learning rates are measured."""
        return {name: rms(parameter) for name, parameter in self.named_parameters()}


def rms(parameter: Tensor) -> float:
    """Return the root mean square of the entries, or one if they are all zero."""
    return parameter.detach().double().square().mean().sqrt().item() or 1.0


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

    Examples
    --------
    >>> from discernel.kernels import RBF
    >>> x = torch.tensor([[0.0], [1.0], [2.0]])
    >>> phi = Nystroem(x, RBF(1.0))(x)
    >>> (phi @ phi.T)[0, 1].item()  # exp(-1): exact on the landmarks
    0.36787...
    """

    def __init__(self, landmarks: Tensor, kernel: Kernel, rank: int | None = None):
        super().__init__()
        checks.matrix("landmarks", landmarks)
        checks.instance("kernel", kernel, Kernel).check_features(landmarks.shape[1])
        if rank is not None and checks.positive_int("rank", rank) > len(landmarks):
            raise ValueError(f"rank must be at most the number of landmarks, {len(landmarks)}; got {rank}")
        self.landmarks = nn.Parameter(landmarks.detach().clone())
        self.kernel = copy.deepcopy(kernel).to(landmarks)
        self.rank = rank
        self._cached: tuple[list[Tensor], Tensor] | None = None

    def basis(self, x: Tensor) -> Tensor:
        """Return G = k(x, X_r)."""
        return self.kernel(x, self.landmarks)

    def gram(self) -> Tensor:
        """Return B = k(X_r, X_r)."""
        return self.kernel(self.landmarks, self.landmarks)

    def normalization(self) -> Tensor:
        """Return U Σ^(-1/2), J×k. It is kept until a parameter changes, except while gradients are recorded."""
        if torch.is_grad_enabled() and any(p.requires_grad for p in self.parameters()):
            return inverse_sqrt(self.gram(), self.rank)
        # By value: fused optimisers do not count the versions of what they change.
        now = [p.detach() for p in self.parameters()]
        if self._cached is None or not all(map(_identical, self._cached[0], now)):
            with torch.inference_mode(False), torch.no_grad():
                self._cached = [p.clone() for p in now], inverse_sqrt(self.gram(), self.rank)
        return self._cached[1]

    def forward(self, x: Tensor) -> Tensor:
        """Return φ(x), n×k."""
        return self.basis(x) @ self.normalization()

    def scales(self) -> dict[str, float]:
        """Return three standard deviations of the landmarks, or the kernel's width where they do not differ.

        Shifting the data leaves both alone.
        """
        spread = 3 * self.landmarks.detach().double().std(0, correction=0).square().mean().sqrt().item()
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
    ) -> "RandomFourier":
        """Return a map whose features approximate `kernel`: E φ(x)ᵀφ(z) = k(x, z)."""
        checks.instance("kernel", kernel, Kernel)
        if not isinstance(kernel, StationaryKernel):
            name = type(kernel).__name__
            raise ValueError(f"kernel must be shift-invariant to have Fourier features; {name} is not: use Nystroem")
        checks.positive_int("n_features", n_features)
        checks.positive_int("n_components", n_components)
        frequencies = kernel.frequencies(n_features, n_components, generator, dtype)
        phases = torch.rand(n_components, generator=generator, dtype=frequencies.dtype) * (2 * math.pi)
        return cls(frequencies, phases.to(frequencies.device))

    def forward(self, x: Tensor) -> Tensor:
        """Return φ(x), n×J."""
        checks.samples("x", x, "the frequencies", self.frequencies.T)
        return torch.addmm(self.phases, x, self.frequencies).cos() * math.sqrt(2 / len(self.phases))

    def scales(self) -> dict[str, float]:
        """Return the size of the frequencies, and one radian for the phases."""
        return super().scales() | {"phases": 1.0}


class ModuleMap(FeatureMap):
    """Any torch Module whose output has a row of features per sample, as a feature map."""

    def __init__(self, module: nn.Module):
        super().__init__()
        if not isinstance(module, nn.Module):
            raise TypeError(f"module must be a torch.nn.Module, got {type(module).__name__}")
        self.module = module

    def forward(self, x: Tensor) -> Tensor:
        """Return module(x)."""
        return self.module(x)
