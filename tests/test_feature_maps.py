import copy
import math

import pytest
import scipy.linalg
import torch
from sklearn import kernel_approximation as sk
from torch import nn

from discernel import (
    RBF,
    Cauchy,
    Fastfood,
    Laplacian,
    Matern,
    ModuleMap,
    Nystroem,
    Polynomial,
    RandomFourier,
    discriminant_information,
    distances,
    feature_maps,
    linalg,
)
from discernel.feature_maps import rms


def exact(value):
    return torch.tensor(value, dtype=torch.float64)


def data(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def fourier(dtype=torch.float64, seed=0, n_components=7):
    return RandomFourier.sample(RBF(0.3), 3, n_components, torch.Generator().manual_seed(seed)).to(dtype)


def fastfood(n_features, n_components, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return Fastfood.sample(RBF(0.3), n_features, n_components, generator, torch.float64)


MAPS = {
    "nystroem": lambda dtype=torch.float64, seed=0: Nystroem(
        data(7, 3, seed=seed, dtype=dtype), RBF([0.3, 0.5, 0.7], trainable=True)
    ),
    "fourier": fourier,
    "fastfood": lambda dtype=torch.float64, seed=0: fastfood(3, 7, seed).to(dtype),
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


RADIAL = [RBF, Cauchy, Matern]
SAMPLERS = {
    "fastfood": Fastfood.sample,
    "orthogonal": lambda *arguments: RandomFourier.sample(*arguments, orthogonal=True),
    "independent": RandomFourier.sample,
}


def approximations(sampler, kernel, x, n_components, repeats):
    """Return estimates of the kernel matrix, one for each of as many draws of the map."""
    generator = torch.Generator().manual_seed(0)
    draws = (SAMPLERS[sampler](kernel, x.shape[1], n_components, generator, x.dtype)(x) for _ in range(repeats))
    return torch.stack([(phi @ phi.T).detach() for phi in draws])


@pytest.mark.parametrize("sampler", ["fastfood", "orthogonal"])
@pytest.mark.parametrize("kernel", RADIAL)
@pytest.mark.parametrize("gamma", [0.2, [0.05, 0.2, 0.1, 0.1, 0.3]])
def test_structured_frequencies_are_unbiased(sampler, kernel, gamma):
    kernel, x = kernel(exact(gamma)), data(5, 5)
    estimates = approximations(sampler, kernel, x, 20, repeats=500)
    error = estimates.mean(0) - kernel(x, x)
    assert ((error / estimates.std(0)).abs() * math.sqrt(500) < 4.5).all()


@pytest.mark.parametrize(("sampler", "ratio"), [("fastfood", 1.3), ("orthogonal", 0.8)])
def test_the_error_of_structured_frequencies_against_that_of_independent_ones(sampler, ratio):
    kernel, x = RBF(exact(0.4 / 128)), data(10, 128)
    errors = {
        name: (approximations(name, kernel, x, 256, repeats=100) - kernel(x, x)).square().mean()
        for name in (sampler, "independent")
    }
    assert errors[sampler] < ratio * errors["independent"]


def test_orthogonal_frequencies_are_orthogonal_within_each_block_and_as_long_as_others():
    draws = [
        RBF(exact(0.5)).frequencies(8, 8000, torch.Generator().manual_seed(0), exact(0).dtype, orthogonal=orthogonal)
        for orthogonal in (True, False)
    ]
    gram = draws[0][:, :8].T @ draws[0][:, :8]
    torch.testing.assert_close(gram, gram.diagonal().diag(), rtol=0, atol=1e-12)
    torch.testing.assert_close(draws[0].norm(dim=0), draws[1].norm(dim=0))


@pytest.mark.parametrize(("n_features", "n_components"), [(1, 3), (5, 8), (8, 20), (33, 40)])
def test_fastfood_is_its_formula(n_features, n_components):
    feature_map, x = fastfood(n_features, n_components), data(6, n_features)
    size = feature_map.gains.shape[1]
    h = torch.from_numpy(scipy.linalg.hadamard(size)).double() / math.sqrt(size)
    blocks = [
        h @ gains.diag() @ torch.eye(size).double()[permutation] @ h[:, :n_features] @ signs.diag()
        for signs, gains, permutation in zip(feature_map.signs, feature_map.gains, feature_map.permutation, strict=True)
    ]
    v = feature_map.scaling[:, None] * torch.cat(blocks)[:n_components]
    torch.testing.assert_close(feature_map(x), math.sqrt(2 / n_components) * torch.cos(x @ v.T + feature_map.phases))
    torch.testing.assert_close(feature_map.dense().frequencies, v.T)
    torch.testing.assert_close(feature_map.dense()(x), feature_map(x))


def test_fastfood_has_no_matrix_of_features_by_components():
    sizes = {name: value.numel() for name, value in fastfood(500, 4096).state_dict().items()}
    assert sizes == {"signs": 4000, "gains": 4096, "scaling": 4096, "phases": 4096, "permutation": 4096}


def test_gradients_of_fastfood_agree_with_finite_differences():
    feature_map, x = fastfood(3, 6), data(4, 3).requires_grad_()
    names = list(dict(feature_map.named_parameters()))

    def features(x, *values):
        return torch.func.functional_call(feature_map, dict(zip(names, values, strict=True)), x)

    assert torch.autograd.gradcheck(features, (x, *(p.detach().requires_grad_() for p in feature_map.parameters())))


@pytest.mark.parametrize("sampler", ["fastfood", "orthogonal"])
def test_structured_frequencies_want_a_radial_kernel(sampler):
    with pytest.raises(ValueError, match=r"radial kernel.*Laplacian is not"):
        SAMPLERS[sampler](Laplacian(1.0), 3, 5)
    with pytest.raises(ValueError, match="shift-invariant"):
        SAMPLERS[sampler](Polynomial(1.0), 3, 5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"signs": data(3, 3)}, "gains must have 3 rows"),
        ({"gains": data(2, 5)}, "gains must have 4 columns"),
        ({"scaling": data(4)}, "scaling must have from 5 to 8 entries"),
        ({"phases": data(4)}, "vectors of one length"),
        ({"permutation": torch.zeros(2, 4).long()}, "a permutation of 0..3"),
    ],
)
def test_fastfood_wants_parts_that_fit(change, message):
    parts = dict(fastfood(3, 7).state_dict())
    with pytest.raises(ValueError, match=message):
        Fastfood(**parts | change)


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
    assert scale == pytest.approx(1.5 * (z - z.mean(0)).square().mean().sqrt().item())
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


# More Nyström.


def test_an_ensemble_is_the_mean_of_its_experts():
    z, x = data(9, 3), data(20, 3, seed=1)
    ensemble = Nystroem(z, RBF(0.3), experts=3)(x)
    experts = [Nystroem(part, RBF(0.3))(x) for part in z.split(3)]
    torch.testing.assert_close(ensemble @ ensemble.T, sum(phi @ phi.T for phi in experts) / 3)


def test_the_features_of_an_ensemble_and_its_basis_have_one_kernel():
    nystroem, x = Nystroem(data(11, 3), RBF(0.3), experts=4), data(20, 3, seed=1)
    phi, basis = nystroem(x), nystroem.basis(x)
    torch.testing.assert_close(phi @ phi.T, basis @ torch.linalg.solve(nystroem.gram(), basis.T))


def test_an_ensemble_has_the_information_of_its_features():
    ensemble, x, y = Nystroem(data(8, 3), RBF(0.3), experts=2), data(30, 3, seed=1), data(30, 2, seed=2)
    found = discriminant_information(ensemble.basis(x), y, 0.1, ensemble.gram())
    torch.testing.assert_close(found, discriminant_information(ensemble(x), y, 0.1))
    (gradient,) = torch.autograd.grad(found, ensemble.landmarks)
    assert gradient.abs().min() > 0


def test_a_randomized_map_is_nearly_the_best_of_its_rank():
    z, x = data(200, 3), data(50, 3, seed=1)
    exact, found = (Nystroem(z, RBF(0.3), 30, randomized=randomized)(x) for randomized in (False, True))
    assert found.shape == exact.shape
    assert (found @ found.T - exact @ exact.T).norm() < 1e-3 * (exact @ exact.T).norm()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"experts": 0}, "experts must be at least 1, got 0"),
        ({"experts": 8}, "experts must be at most the number of landmarks, 7; got 8"),
        ({"experts": 2, "rank": 4}, "rank must be at most the number of landmarks of an expert, 3; got 4"),
        ({"randomized": True}, "randomized=True is for finding a few of the eigenvalues: set rank"),
    ],
)
def test_bad_nystroem_settings_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Nystroem(data(7, 3), RBF(0.3), **options)


# A few rows at a time


@pytest.mark.parametrize("kernel", [RBF, Cauchy])
@pytest.mark.parametrize("kind", ["nystroem", "fourier"])
def test_rows_worked_on_a_few_at_a_time_are_as_all_at_once(kind, kernel, monkeypatch):
    """The basis, the criterion on it, and its derivatives by the rows and by every parameter."""
    x, targets = data(50, 3).requires_grad_(), data(50, 2, seed=1)
    made = RandomFourier.sample(kernel(0.5), 3, 8, torch.Generator().manual_seed(0), torch.float64)
    made = Nystroem(data(8, 3, seed=2), kernel(0.5, trainable=True)) if kind == "nystroem" else made

    def found():
        basis, gram = made.basis(x), made.gram()
        value = discriminant_information(basis, targets, 0.3, gram)
        return basis, value, *torch.autograd.grad(value, [x, *made.parameters()])

    whole = found()
    for module in (feature_maps, distances, linalg):
        monkeypatch.setattr(module, "chunk_rows", lambda *_: 7)
    torch.testing.assert_close(found(), whole)
