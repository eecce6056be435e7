"""What is not built in: a kernel, a feature map and a criterion of one's own. The site shows these very lines."""

import math

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

from discernel import (
    DI,
    ArraySource,
    Criterion,
    DiscernelClassifier,
    FeatureMap,
    Kernel,
    LearnedFeatures,
    LearnedNystroem,
    Nystroem,
    RandomFourier,
    Targets,
    Trainer,
    export_onnx,
    save,
)
from discernel.distances import squared_distances
from discernel.kernels import StationaryKernel
from discernel.moments import Moments

X, Y = load_digits(return_X_y=True)
X = (X / 16).astype(np.float32)
SHORT = Trainer(max_epochs=5)


class InverseMultiquadric(Kernel):
    """1/√(1 + γ‖x − z‖²)."""

    def formula(self, x, z):
        """Return the kernel for γ = 1."""
        return (1 + squared_distances(x, z)).rsqrt()


class Sech(StationaryKernel):
    """∏ᵢ 1/cosh(√γ (xᵢ − zᵢ)), which is its own Fourier transform but for the scale."""

    radial = False

    def formula(self, x, z):
        """Return the kernel for γ = 1."""
        return (x[:, None, :] - z).cosh().reciprocal().prod(2)

    def sample_spectrum(self, out, generator):
        """The hyperbolic secant distribution in each feature: (2/π) log tan(πu/2) of a uniform u."""
        uniform = out.uniform_(1e-6, 1 - 1e-6, generator=generator)
        return uniform.mul_(math.pi / 2).tan_().log_().mul_(2 / math.pi)


class Sigmoids(FeatureMap):
    """φ(x) = σ(xW + b): a layer of a neural network, whose last layer DI solves for."""

    def __init__(self, n_features, n_components, generator=None):
        super().__init__()
        weights = torch.randn(n_features, n_components, generator=generator) / math.sqrt(n_features)
        self.weights = nn.Parameter(weights)
        self.bias = nn.Parameter(torch.zeros(n_components))

    def forward(self, x):
        """Return the features, n×J."""
        return torch.sigmoid(torch.addmm(self.bias, x, self.weights))


class Alignment(Criterion):
    """Centred kernel-target alignment ⟨K̄, ȲȲᵀ⟩ / (‖K̄‖ ‖ȲȲᵀ‖) of the features' kernel K = GGᵀ (Cortes et al. 2012)."""

    higher_is_better = True

    def forward(self, basis, targets, gram=None, sample_weight=None):
        """Return the alignment of a mini-batch."""
        if gram is not None or sample_weight is not None:
            raise ValueError("Alignment is for maps without a gram, and rows without weights")
        g, y = basis - basis.mean(0), targets - targets.mean(0)
        return (g.T @ y).square().sum() / ((g.T @ g).norm() * (y.T @ y).norm())


# a kernel


def test_a_kernel_is_a_formula():
    x = torch.rand(5, 3, dtype=torch.float64)
    kernel = InverseMultiquadric(2.0)
    expected = 1 / (1 + 2 * torch.cdist(x, x).square()).sqrt()
    torch.testing.assert_close(kernel(x, x), expected)
    assert torch.linalg.eigvalsh(kernel(x, x)).min() > 0


def test_a_kernel_trains_landmarks_and_its_own_metric():
    features = LearnedNystroem(20, kernel=InverseMultiquadric(0.1, trainable=True), trainer=SHORT, random_state=0)
    model = DiscernelClassifier(feature_map=features).fit(X[:1200], Y[:1200])
    assert model.score(X[1200:], Y[1200:]) > 0.85
    assert model.transformer_.history_[-1].criterion > model.transformer_.history_[0].criterion
    assert model.transformer_.gamma_ != pytest.approx(0.1)


def test_a_spectrum_gives_fourier_features():
    kernel, x = Sech(0.5), torch.rand(4, 3, dtype=torch.float64)
    fourier = RandomFourier.sample(kernel, 3, 200_000, torch.Generator().manual_seed(0), dtype=torch.float64)
    phi = fourier(x)
    torch.testing.assert_close(phi @ phi.T, kernel(x, x), atol=0.02, rtol=0)


def test_what_has_no_description_is_refused_with_a_way_out(tmp_path):
    features = LearnedNystroem(5, kernel=InverseMultiquadric(0.1), trainer=SHORT, random_state=0).fit(X, Y)
    with pytest.raises(TypeError, match="no description but code; use joblib"):
        save(features, tmp_path / "model.safetensors")
    with pytest.raises(TypeError, match="InverseMultiquadric"):
        export_onnx(features, tmp_path / "model.onnx")


# a feature map


def trained(feature_map, criterion, n=1200):
    source = ArraySource(torch.from_numpy(X[:n]), Targets.classes(Y[:n]))
    return list(Trainer(max_epochs=10).epochs(feature_map, criterion, source))


def accuracy(feature_map, n=1200):
    """Return the test accuracy of a ridge regression on the features."""
    train, test = (torch.from_numpy(part) for part in (X[:n], X[n:]))
    with torch.no_grad():
        targets = Targets.classes(Y[:n])[:].double()
        ridge = Moments.of(feature_map.basis(train), targets).ridge(1e-4, feature_map.gram())
        said = ridge.predict(feature_map.basis(test)).argmax(1)
    return (said.numpy() == Y[n:]).mean()


def test_a_feature_map_is_trained_by_any_criterion():
    feature_map = Sigmoids(64, 50, torch.Generator().manual_seed(0))
    before = accuracy(feature_map)
    history = trained(feature_map, DI())
    assert history[-1].criterion > history[0].criterion
    assert accuracy(feature_map) > max(before, 0.9)


def test_a_module_is_a_feature_map_in_an_estimator():
    module = nn.Sequential(nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 20))
    features = LearnedFeatures(module, trainer=Trainer(max_epochs=20), random_state=0)
    model = DiscernelClassifier(feature_map=features).fit(X[:1200], Y[:1200])
    assert model.score(X[1200:], Y[1200:]) > 0.9


# a criterion


def test_a_criterion_is_a_function_of_basis_and_targets():
    y = torch.eye(3)[torch.arange(12) % 3]
    assert Alignment()(y, y).item() == pytest.approx(1)
    assert 0 <= Alignment()(torch.rand(12, 5), y).item() < 1


def test_a_criterion_trains_any_map_without_a_gram():
    feature_map = Sigmoids(64, 50, torch.Generator().manual_seed(0))
    history = trained(feature_map, Alignment())
    assert history[-1].criterion > 1.2 * history[0].criterion
    with pytest.raises(ValueError, match="maps without a gram"):
        trained(Nystroem(torch.from_numpy(X[:10]), InverseMultiquadric(0.1)), Alignment())
