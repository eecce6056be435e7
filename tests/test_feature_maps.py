import copy
import math

import pytest
import torch
from sklearn import kernel_approximation as sk
from torch import nn

from discernel import RBF, Cauchy, Laplacian, Matern, ModuleMap, Nystroem, Polynomial, RandomFourier
from discernel.feature_maps import rms


def exact(value):
    return torch.tensor(value, dtype=torch.float64)


def data(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def fourier(dtype=torch.float64, seed=0, n_components=7):
    return RandomFourier.sample(RBF(0.3), 3, n_components, torch.Generator().manual_seed(seed)).to(dtype)


MAPS = {
    "nystroem": lambda dtype=torch.float64, seed=0: Nystroem(
        data(7, 3, seed=seed, dtype=dtype), RBF([0.3, 0.5, 0.7], trainable=True)
    ),
    "fourier": fourier,
    "module": lambda dtype=torch.float64, seed=0: ModuleMap(nn.Sequential(nn.Linear(3, 7), nn.Tanh()).to(dtype)),
}


@pytest.mark.parametrize("kernel", [RBF, Laplacian, Matern, Cauchy, lambda gamma: Polynomial(gamma, degree=2)])
def test_nystroem_is_exact_on_its_landmarks(kernel):
    z = data(8, 4)
    nystroem = Nystroem(z, kernel(exact(0.2)))
    phi = nystroem(z)
    torch.testing.assert_close(phi @ phi.T, nystroem.kernel(z, z), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(nystroem.gram(), nystroem.kernel(z, z))
    torch.testing.assert_close(nystroem.basis(data(5, 4, seed=1)), nystroem.kernel(data(5, 4, seed=1), z))


@pytest.mark.parametrize(
    ("kernel", "name", "options"),
    [
        (RBF(exact(0.3)), "rbf", {"gamma": 0.3}),
        (Laplacian(exact(0.3)), "laplacian", {"gamma": 0.3}),
        (Polynomial(exact(0.3), 3, 1.0), "poly", {"gamma": 0.3, "degree": 3, "coef0": 1.0}),
    ],
    ids=["rbf", "laplacian", "polynomial"],
)
def test_nystroem_approximates_the_kernel_as_sklearn_does(kernel, name, options):
    x = data(60, 4)
    reference = sk.Nystroem(name, n_components=12, random_state=0, **options).fit(x.numpy())
    phi = Nystroem(torch.from_numpy(reference.components_), kernel)(x)
    expected = torch.from_numpy(reference.transform(x.numpy()))
    torch.testing.assert_close(phi @ phi.T, expected @ expected.T, rtol=1e-8, atol=1e-8)


def test_gamma_given_as_a_number_is_exact_in_float64():
    assert Nystroem(data(5, 2), RBF(0.1)).kernel.gamma.item() == pytest.approx(0.1, rel=1e-15)


def test_nystroem_leaves_the_callers_kernel_and_landmarks_alone():
    kernel, z = RBF(0.1, trainable=True), data(5, 2)
    dtype = kernel.metric.dtype
    nystroem = Nystroem(z, kernel)
    with torch.no_grad():
        for parameter in nystroem.parameters():
            parameter.add_(1.0)
    assert kernel.metric.dtype == dtype
    assert kernel.gamma.item() == pytest.approx(0.1)
    torch.testing.assert_close(z, data(5, 2))


@pytest.mark.parametrize("rank", [1, 4, 10])
def test_rank_keeps_the_largest_eigenvalues(rank):
    z = data(10, 3)
    nystroem = Nystroem(z, RBF(exact(0.5)), rank=rank)
    u, s, vh = torch.linalg.svd(nystroem.kernel(z, z))
    phi = nystroem(z)
    assert phi.shape == (10, rank)
    assert nystroem.basis(z).shape == nystroem.gram().shape == (10, 10)
    torch.testing.assert_close(phi @ phi.T, (u[:, :rank] * s[:rank]) @ vh[:rank])
    torch.testing.assert_close(phi.T @ phi, s[:rank].diag())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rank", [None, 5, 9])
def test_duplicated_landmarks_add_nothing(rank, dtype):
    z, x = data(6, 3, dtype=dtype), data(20, 3, seed=1, dtype=dtype)
    with torch.no_grad():
        phi = Nystroem(torch.cat([z, z[:4]]), RBF(0.5), rank)(x)
        once = Nystroem(z, RBF(0.5))(x)
    assert phi.shape == (20, min(rank or 6, 6))
    assert phi.isfinite().all()
    if rank != 5:
        torch.testing.assert_close(phi @ phi.T, once @ once.T)


@pytest.mark.parametrize("gamma", [1e-1, 1e-3, 1e-5])
def test_float32_features_approximate_the_kernel_though_the_gram_is_singular_to_rounding(gamma):
    x = data(300, 10, dtype=torch.float32)
    with torch.no_grad():
        phi, precise = (Nystroem(x[:150].to(dtype), RBF(gamma))(x.to(dtype)) for dtype in (x.dtype, torch.float64))
    torch.testing.assert_close((phi @ phi.T).double(), precise @ precise.T, rtol=0, atol=2e-3)


def adam(**options):
    def step(nystroem):
        optimizer = torch.optim.Adam(nystroem.parameters(), lr=0.5, **options)
        nystroem.basis(data(5, 3)).sum().backward()
        optimizer.step()

    return step


CHANGES = {
    "adam": adam(foreach=False),
    "foreach adam": adam(foreach=True),
    "fused adam": adam(fused=True),  # torch does not count this as a change of the parameter's version
    "load_state_dict": lambda nystroem: nystroem.load_state_dict(MAPS["nystroem"](seed=5).state_dict()),
    "dtype": lambda nystroem: nystroem.float().double(),
    "new parameter": lambda nystroem: setattr(nystroem, "landmarks", nn.Parameter(data(9, 3, seed=4))),
    "data": lambda nystroem: nystroem.landmarks.data.mul_(2.0),
}


@pytest.mark.parametrize("change", CHANGES)
def test_nystroem_features_follow_its_parameters(change):
    nystroem, x = MAPS["nystroem"](), data(6, 3, seed=2)
    with torch.no_grad():
        before = nystroem(x)
        torch.testing.assert_close(nystroem(x), before, rtol=0, atol=0)
    CHANGES[change](nystroem)
    with torch.no_grad():
        fresh = Nystroem(nystroem.landmarks, copy.deepcopy(nystroem.kernel))
        torch.testing.assert_close(nystroem(x), fresh(x))


def test_normalization_is_kept_while_nothing_changes():
    nystroem = MAPS["nystroem"]()
    with torch.no_grad():
        assert nystroem.normalization() is nystroem.normalization()


def test_a_frozen_map_used_in_inference_mode_can_be_differentiated_afterwards():
    nystroem, x = MAPS["nystroem"]().requires_grad_(False), data(4, 3).requires_grad_()
    with torch.inference_mode():
        nystroem(x)
    nystroem(x).sum().backward()
    assert x.grad is not None


@pytest.mark.parametrize("rank", [None, 3])
@pytest.mark.parametrize("name", ["landmarks", "kernel.metric"])
def test_gradient_of_a_rotation_invariant_loss_agrees_with_finite_differences(name, rank):
    nystroem, x = Nystroem(data(6, 3), RBF(exact([0.3, 0.5, 0.7]), trainable=True), rank), data(9, 3, seed=1)
    mixed = data(9, 9, seed=2)
    parameter = dict(nystroem.named_parameters())[name]
    direction = data(*parameter.shape, seed=3)

    def loss():
        phi = nystroem(x)
        return (phi @ phi.T * mixed).sum()

    def loss_at(step):
        with torch.no_grad():
            parameter.add_(direction, alpha=step)
            value = loss()
            parameter.sub_(direction, alpha=step)
        return value

    loss().backward()
    numeric = (loss_at(1e-5) - loss_at(-1e-5)) / 2e-5
    torch.testing.assert_close((parameter.grad * direction).sum(), numeric, rtol=1e-6, atol=1e-6)


def test_gradient_by_x_agrees_with_finite_differences():
    nystroem = MAPS["nystroem"]()
    assert torch.autograd.gradcheck(nystroem, data(4, 3, seed=1).requires_grad_())


def test_fourier_is_its_formula():
    w, b, x = data(3, 5), data(5, seed=1), data(4, 3, seed=2)
    torch.testing.assert_close(RandomFourier(w, b)(x), math.sqrt(2 / 5) * torch.cos(x @ w + b))


def test_fourier_of_sklearns_weights_is_sklearns_map():
    x = data(10, 3)
    reference = sk.RBFSampler(gamma=0.4, n_components=20, random_state=0).fit(x.numpy())
    same = RandomFourier(torch.from_numpy(reference.random_weights_), torch.from_numpy(reference.random_offset_))
    torch.testing.assert_close(same(x), torch.from_numpy(reference.transform(x.numpy())))


def test_sampled_frequencies_are_distributed_as_sklearns():
    ours = RandomFourier.sample(RBF(0.4), 3, 20_000, torch.Generator().manual_seed(0)).double()
    reference = sk.RBFSampler(gamma=0.4, n_components=20_000, random_state=0).fit(data(2, 3).numpy())
    theirs = torch.from_numpy(reference.random_weights_)
    levels = exact([0.05, 0.25, 0.5, 0.75, 0.95])
    torch.testing.assert_close(
        ours.frequencies.flatten().quantile(levels), theirs.flatten().quantile(levels), atol=0.03, rtol=0
    )
    torch.testing.assert_close(ours.phases.quantile(levels), 2 * math.pi * levels, atol=0.1, rtol=0)


@pytest.mark.parametrize("kernel", [RBF, Laplacian, Cauchy, Matern])
@pytest.mark.parametrize("gamma", [0.4, [0.2, 0.4, 0.8]])
def test_fourier_approximates_its_kernel(kernel, gamma):
    kernel, x = kernel(exact(gamma)), data(6, 3)
    phi = RandomFourier.sample(kernel, 3, 40_000, torch.Generator().manual_seed(0)).double()(x)
    torch.testing.assert_close(phi @ phi.T, kernel(x, x), rtol=0, atol=5 / math.sqrt(40_000))


def test_the_generator_decides_the_fourier_map():
    first, same, other = fourier(seed=1), fourier(seed=1), fourier(seed=2)
    assert torch.equal(first.frequencies, same.frequencies)
    assert torch.equal(first.phases, same.phases)
    assert not torch.equal(first.frequencies, other.frequencies)


def test_module_map_is_its_module():
    module = nn.Linear(3, 2)
    feature_map, x = ModuleMap(module), data(4, 3, dtype=torch.float32)
    assert torch.equal(feature_map(x), module(x))
    assert torch.equal(feature_map.basis(x), module(x))
    assert feature_map.gram() is None
    assert feature_map.scales() == {
        "module.weight": pytest.approx(module.weight.square().mean().sqrt().item()),
        "module.bias": pytest.approx(module.bias.square().mean().sqrt().item()),
    }


def test_nystroem_scales_ignore_a_shift_and_follow_the_units():
    z = data(30, 3)
    scale = Nystroem(z, RBF(0.5)).scales()["landmarks"]
    assert scale == pytest.approx(3 * (z - z.mean(0)).square().mean().sqrt().item())
    assert Nystroem(z + 1000, RBF(0.5)).scales()["landmarks"] == pytest.approx(scale)
    assert Nystroem(1000 * z, RBF(0.5)).scales()["landmarks"] == pytest.approx(1000 * scale)
    assert Nystroem(z, RBF(0.25)).scales()["kernel.metric"] == pytest.approx(0.5)


def test_scales_are_never_zero():
    assert Nystroem(data(1, 3), RBF(0.5)).scales()["landmarks"] > 0
    assert Nystroem(torch.zeros(1, 3), RBF(0.5)).scales()["landmarks"] > 0
    assert rms(torch.zeros(3)) == 1.0


def test_fourier_scales_are_the_size_of_the_frequencies_and_a_radian():
    feature_map = fourier()
    size = feature_map.frequencies.square().mean().sqrt().item()
    assert feature_map.scales() == {"frequencies": pytest.approx(size), "phases": 1.0}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", MAPS)
def test_features_have_the_precision_of_the_data(name, dtype):
    feature_map, x = MAPS[name](dtype), data(4, 3, dtype=dtype)
    gram = feature_map.gram()
    assert feature_map(x).dtype == feature_map.basis(x).dtype == dtype
    assert gram is None or gram.dtype == dtype


@pytest.mark.parametrize("name", MAPS)
def test_state_dict_carries_the_map(name):
    first, second, x = MAPS[name](seed=0), MAPS[name](seed=1), data(4, 3)
    assert not torch.equal(first(x), second(x))
    second.load_state_dict(first.state_dict())
    assert torch.equal(first(x), second(x))
    assert torch.equal(first(x), copy.deepcopy(first)(x))
