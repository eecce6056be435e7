import resource
import sys

import numpy as np
import pytest
import torch
from sklearn.gaussian_process.kernels import Matern as SklearnMatern
from sklearn.metrics import pairwise

from discernel import RBF, Cauchy, Laplacian, Linear, Matern, Polynomial, RandomFourier, make_kernel
from discernel.closed_form import by_graph
from discernel.distances import squared_distances
from discernel.kernels import KERNELS

STATIONARY = {
    "rbf": RBF,
    "matern-1/2": lambda gamma=1.0, **options: Matern(gamma, 0.5, **options),
    "matern-3/2": lambda gamma=1.0, **options: Matern(gamma, 1.5, **options),
    "matern-5/2": lambda gamma=1.0, **options: Matern(gamma, 2.5, **options),
    "cauchy": Cauchy,
    "laplacian": Laplacian,
}
ALL = STATIONARY | {
    "polynomial": lambda gamma=1.0, **options: Polynomial(gamma, 3, 0.5, **options),
    "linear": Linear,
}
GAMMAS = {"one": 0.7, "per-feature": [0.2, 0.7, 1.3]}
stationary = pytest.mark.parametrize("make", STATIONARY.values(), ids=STATIONARY.keys())
every_kernel = pytest.mark.parametrize("make", ALL.values(), ids=ALL.keys())
every_gamma = pytest.mark.parametrize("gamma", GAMMAS.values(), ids=GAMMAS.keys())


def random(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def tensor(gamma):
    return torch.tensor(gamma, dtype=torch.float64)


def formula(name, gamma, x, z):
    """Return the kernel of this name, pair by pair in float64."""
    difference, gamma = x.double()[:, None] - z.double(), torch.as_tensor(gamma).double()
    d2 = (gamma * difference.square()).sum(-1)
    r = (2 * d2).sqrt()  # over the length scale: γ = 1/(2ℓ²)
    inner = (gamma * x.double()[:, None] * z.double()).sum(-1)
    return {
        "rbf": (-d2).exp(),
        "matern-1/2": (-r).exp(),
        "matern-3/2": (1 + 3**0.5 * r) * (-(3**0.5) * r).exp(),
        "matern-5/2": (1 + 5**0.5 * r + 5 * r**2 / 3) * (-(5**0.5) * r).exp(),
        "cauchy": 1 / (1 + d2),
        "laplacian": (-(gamma * difference.abs()).sum(-1)).exp(),
        "polynomial": (inner + 0.5) ** 3,
        "linear": inner,
    }[name]


# Values


@every_gamma
@pytest.mark.parametrize("name", ALL)
def test_a_kernel_is_its_formula(name, gamma):
    x, z = random(6, 3), random(4, 3, seed=1)
    torch.testing.assert_close(ALL[name](tensor(gamma))(x, z), formula(name, gamma, x, z))
    torch.testing.assert_close(ALL[name](tensor(gamma))(z, z), formula(name, gamma, z, z))


@pytest.mark.parametrize("name", ALL)
def test_float64_data_have_the_digits_of_float64(name):
    """Also where gamma is given as a Python number."""
    x, z = random(6, 3), random(4, 3, seed=1)
    torch.testing.assert_close(ALL[name](0.7)(x, z), formula(name, tensor(0.7), x, z), rtol=1e-11, atol=0)


@pytest.mark.parametrize("name", ALL)
def test_float32_data_have_the_digits_of_float32(name):
    x, z = random(50, 3).float(), random(40, 3, seed=1).float()
    expected = formula(name, 0.7, x, z)
    tolerance = {"rtol": 0, "atol": 2e-6 * expected.abs().max().item()}
    torch.testing.assert_close(ALL[name](0.7)(x, z).double(), expected, **tolerance)


@pytest.mark.parametrize("of_gamma", [None, torch.float32, torch.float64])
@every_gamma
@every_kernel
def test_the_dtype_is_that_of_the_data(make, gamma, of_gamma):
    kernel = make(gamma if of_gamma is None else torch.tensor(gamma, dtype=of_gamma))
    for dtype in (torch.float32, torch.float64):
        assert kernel(random(6, 3, dtype=dtype), random(4, 3, dtype=dtype)).dtype == dtype


def as_numpy(kernel, x, z):
    return kernel(x, z).numpy()


def test_parity_with_sklearn():
    x, z, g = random(6, 3), random(4, 3, seed=1), tensor(0.7)
    parity = {
        "rbf": (RBF(g), pairwise.rbf_kernel(x, z, gamma=0.7)),
        "laplacian": (Laplacian(g), pairwise.laplacian_kernel(x, z, gamma=0.7)),
        "polynomial": (Polynomial(g, 4, 2.0), pairwise.polynomial_kernel(x, z, degree=4, gamma=0.7, coef0=2.0)),
        "linear": (Linear(tensor(1.0)), pairwise.linear_kernel(x, z)),
    }
    for name, (kernel, expected) in parity.items():
        np.testing.assert_allclose(as_numpy(kernel, x, z), expected, rtol=1e-12, err_msg=name)


@every_gamma
@pytest.mark.parametrize("nu", [0.5, 1.5, 2.5])
def test_matern_is_that_of_sklearn(nu, gamma):
    """With γ = 1/(2ℓ²)."""
    x, z = random(6, 3), random(4, 3, seed=1)
    reference = SklearnMatern(length_scale=1 / np.sqrt(2 * np.array(gamma)), nu=nu)
    np.testing.assert_allclose(as_numpy(Matern(tensor(gamma), nu), x, z), reference(x.numpy(), z.numpy()), rtol=1e-10)


@every_kernel
def test_a_gram_is_symmetric_and_positive_semi_definite(make):
    x = random(30, 3)
    gram = make(tensor(0.7))(x, x)
    torch.testing.assert_close(gram, gram.T)
    values = torch.linalg.eigvalsh(gram)
    assert values[0] > -1e-12 * values[-1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@stationary
def test_a_stationary_kernel_is_one_at_coincident_points(make, dtype):
    x = random(30, 3, dtype=dtype)
    assert torch.equal(make(0.7)(x, x).diagonal(), torch.ones(30, dtype=dtype))


@stationary
def test_a_stationary_kernel_does_not_feel_an_offset_in_float32(make):
    """Years, or temperatures in Kelvin, differ by little beside what they have in common."""
    x, z = 0.2 * random(30, 5).float() + 1000, 0.2 * random(20, 5, seed=1).float() + 1000
    expected = make(10.0)(x.double() - 1000, z.double() - 1000)
    torch.testing.assert_close(make(10.0)(x, z).double(), expected, rtol=0, atol=1e-5)


def test_kernels_by_name():
    x, z = random(6, 3).float(), random(4, 3).float()
    for name, kind in KERNELS.items():
        kernel = make_kernel(name, 2.0)
        assert type(kernel) is kind
        torch.testing.assert_close(kernel(x, z), kind(2.0)(x, z))
    assert make_kernel("matern", 1.0, nu=2.5).nu == 2.5
    kernel = RBF(3.0)
    assert make_kernel(kernel, 5.0) is kernel


@every_gamma
@every_kernel
def test_gamma_can_be_read_back(make, gamma):
    torch.testing.assert_close(make(gamma).gamma, torch.tensor(gamma), check_dtype=False)


@pytest.mark.parametrize("gamma", [0.0, -1.0, [1.0, -1.0], [[1.0]], [], float("nan"), float("inf")])
def test_gamma_must_be_positive(gamma):
    with pytest.raises(ValueError, match="gamma"):
        RBF(gamma)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: RBF()(random(2, 3), random(2, 4)), "x has 3 features but the landmarks have 4"),
        (lambda: RBF([1.0, 2.0])(random(2, 3), random(2, 3)), "gamma has 2 values but the data have 3 features"),
        (lambda: Matern(nu=1.0), "nu must be 0.5, 1.5 or 2.5; got 1.0"),
        (lambda: Polynomial(degree=0), "degree must be at least 1, got 0"),
        (lambda: Polynomial(coef0=-1), "coef0 must not be negative"),
        (lambda: make_kernel("gaussian"), "kernel must be one of 'rbf', .*; got 'gaussian'"),
    ],
)
def test_errors_say_what_was_expected(call, message):
    with pytest.raises(ValueError, match=message):
        call()


# Derivatives


@every_gamma
@every_kernel
def test_derivatives(make, gamma):
    """By the data, the landmarks and the metric; and by landmarks on both sides, as in the gram."""
    kernel = make(tensor(gamma), trainable=True)
    x, z = random(6, 3).requires_grad_(), random(4, 3, seed=1).requires_grad_()

    def value(x, z, metric):
        return torch.func.functional_call(kernel, {"metric": metric}, (x, z))

    assert torch.autograd.gradcheck(value, (x, z, kernel.metric))
    off_diagonal = 1 - torch.eye(4)  # Matérn-1/2 and Laplacian have a kink at coincident points
    assert torch.autograd.gradcheck(lambda z, metric: value(z, z, metric) * off_diagonal, (z, kernel.metric))


@every_kernel
def test_what_needs_no_derivative_gets_none(make):
    x, z = random(6, 3).requires_grad_(), random(4, 3, seed=1).requires_grad_()
    kernel = make(tensor(0.7), trainable=True)
    every = torch.autograd.grad(kernel(x, z).square().sum(), (x, z, kernel.metric))
    alone = (
        (x, kernel.requires_grad_(False)(x, z.detach())),
        (z, kernel(x.detach(), z)),
        (kernel.metric, kernel.requires_grad_(True)(x.detach(), z.detach())),
    )
    for (one, value), expected in zip(alone, every, strict=True):
        torch.testing.assert_close(torch.autograd.grad(value.square().sum(), one)[0], expected)


def by_both(kernel, pair, x, z):
    """Return k(x, z), k(z, z) and the gradients of a sum over both, by the rows and by the metric."""
    x, z, kernel.metric.grad = x.clone().requires_grad_(), z.clone().requires_grad_(), None
    k, gram, pull_back = pair(kernel, x, z)
    pull_back(random(*k.shape, seed=2).to(k), random(*gram.shape, seed=3).to(k))
    return k.detach(), gram.detach(), x.grad, z.grad, kernel.metric.grad


@every_gamma
@every_kernel
def test_a_kernel_and_its_gram_at_once_are_those_one_by_one(make, gamma):
    kernel, x, z = make(tensor(gamma), trainable=True), random(60, 3), random(40, 3, seed=1)
    at_once = by_both(kernel, type(kernel).with_pull_back, x, z)
    one_by_one = by_both(kernel, lambda k, x, z: by_graph(k(x, z), k(z, z)), x, z)
    for found, expected in zip(at_once, one_by_one, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    with pytest.raises(ValueError, match="x has 2 features"):
        kernel.with_pull_back(x[:, :2], z)


SCALES = {"wide": (0.3, 0.7), "narrow": (1.0, 30.0), "in tiny units": (1e12, 0.7e-24)}  # of the data, and gamma


@pytest.mark.parametrize(("scale", "gamma"), SCALES.values(), ids=SCALES.keys())
@pytest.mark.parametrize("per_feature", [False, True])
def test_the_gradients_of_a_gaussian_kernel_are_those_of_the_formula(scale, gamma, per_feature):
    """In float32, of so many landmarks that their own kernel matrix is computed in parts too."""
    x = scale * (random(1500, 3).float() + torch.tensor([5.0, -1.0, 0.0]))
    gammas = torch.tensor([1.0, 0.5, 2.0] if per_feature else 1.0) * gamma
    found = by_both(RBF(gammas, trainable=True), RBF.with_pull_back, x, x[:400])
    metric = gammas.double().sqrt().requires_grad_()
    exact_x, exact_z = (part.double().requires_grad_() for part in (x, x[:400]))
    k, gram = (formula("rbf", metric.square(), a, exact_z) for a in (exact_x, exact_z))
    value = (random(*k.shape, seed=2).float() * k).sum() + (random(*gram.shape, seed=3).float() * gram).sum()
    expected = k, gram, *torch.autograd.grad(value, (exact_x, exact_z, metric))
    for a, b in zip(found, expected, strict=True):
        assert a.isfinite().all()
        assert (a.double() - b).norm() < 1e-3 * b.norm()


def test_other_formulas_than_the_gaussian_are_trained_as_they_are():
    """What inherits from it and changes it is not taken for it."""

    class Half(RBF):
        def formula(self, x, z):
            return super().formula(x, z) / 2

    x, z = random(6, 3), random(4, 3, seed=1)
    for found in (Half(0.7)(x, z), *Half(0.7).with_pull_back(x, z)[:1], Half(0.7)(x, x)[:, :4]):
        assert found.max() <= 0.5
    torch.testing.assert_close(RBF(1.0).formula(x, z), RBF(1.0)(x, z))


@every_kernel
def test_gamma_is_trained_only_when_asked(make):
    assert not make(0.7).metric.requires_grad
    assert make(0.7, trainable=True).metric.requires_grad


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@every_kernel
def test_coincident_points_have_a_finite_derivative(make, dtype):
    z = random(5, 3, dtype=dtype)
    for x in (z, z[:1].expand(5, 3), torch.zeros(5, 3, dtype=dtype), z + torch.finfo(dtype).eps):
        x, z, kernel = x.clone().requires_grad_(), z.clone().requires_grad_(), make(0.7, trainable=True)
        gradients = torch.autograd.grad(kernel(x, z).sum() + kernel(x, x).sum(), (x, z, kernel.metric))
        assert all(torch.isfinite(gradient).all() for gradient in gradients)


@stationary
def test_coincident_points_do_not_push_each_other(make):
    x = random(1, 3).expand(4, 3).clone().requires_grad_()
    kernel = make(tensor(0.7), trainable=True)
    for gradient in torch.autograd.grad(kernel(x, x).sum(), (x, kernel.metric)):
        torch.testing.assert_close(gradient, torch.zeros_like(gradient))


# Distances


def direct(x, z):
    return (x.double()[:, None] - z.double()).square().sum(-1)


def near(points, distance=1e-4):
    """Return points this far off, as float32 has them."""
    return points + distance * random(*points.shape, seed=9).float()


CLOUDS = {
    "at an offset": 1e3 + random(60, 5).float(),
    "spread wide": 1e3 * torch.rand(60, 5, generator=torch.Generator().manual_seed(0)),
    "in two far clusters": random(60, 5).float() + 1e3 * (torch.arange(60) % 2)[:, None],
    "one of them far": torch.cat([random(59, 5).float(), torch.full((1, 5), 1e4)]),
    "ordinary": random(60, 5).float(),
}


@pytest.mark.parametrize("z", CLOUDS.values(), ids=CLOUDS.keys())
def test_small_distances_are_accurate_in_float32(z):
    x = near(z)
    expected = direct(x, z)
    torch.testing.assert_close(squared_distances(x, z).double(), expected, rtol=1e-4, atol=0)


@pytest.mark.parametrize("gamma", [0.1, 1.0])
@pytest.mark.parametrize("z", CLOUDS.values(), ids=CLOUDS.keys())
def test_a_gaussian_kernel_is_accurate_in_float32(z, gamma):
    x = torch.cat([near(z), z])
    found = RBF(gamma)(x, z)
    assert found.max() <= 1
    torch.testing.assert_close(found.double(), (-gamma * direct(x, z)).exp(), rtol=0, atol=5e-5)


@pytest.mark.parametrize(("dtype", "atol"), [(torch.float32, 1e-6), (torch.float64, 1e-14)])
def test_it_is_accurate_to_rounding_where_distances_are_not_put_right(dtype, atol):
    z = CLOUDS["ordinary"].to(dtype)
    x = torch.cat([near(z), z])
    torch.testing.assert_close(RBF(0.1)(x, z).double(), (-0.1 * direct(x, z)).exp(), rtol=0, atol=atol)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("z", CLOUDS.values(), ids=CLOUDS.keys())
def test_coincident_points_have_distance_zero(z, dtype):
    z = z.to(dtype)
    assert torch.equal(squared_distances(z, z).diagonal(), torch.zeros(len(z), dtype=dtype))
    assert squared_distances(z[::2], z).min() >= 0


def test_distances_in_float64():
    x, z = random(20, 7), random(30, 7, seed=1)
    torch.testing.assert_close(squared_distances(x, z), direct(x, z), rtol=1e-12, atol=0)


def test_derivatives_of_distances():
    x, z = random(5, 3).requires_grad_(), random(4, 3, seed=1).requires_grad_()
    assert torch.autograd.gradcheck(squared_distances, (x, z))
    assert torch.autograd.gradcheck(lambda x: squared_distances(x, x), x)


def test_many_close_pairs_are_computed_in_chunks():
    z = random(3000, 2000).float() + 1e3 * torch.eye(2000)[torch.arange(3000) % 2]  # so that half the pairs are close
    some = torch.arange(0, 3000, 500)
    actual = squared_distances(z[:10], z)[:, some].double()
    torch.testing.assert_close(actual, direct(z[:10], z[some]), rtol=1e-5, atol=0)


def peak_memory():
    """Return the most bytes that this process has held so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


@every_kernel
def test_memory_is_that_of_the_matrices(make):
    """An array of all differences would take 3.2 GB here, or six times that with its derivatives."""
    x, z = random(1000, 800, dtype=torch.float32), random(1000, 800, seed=1, dtype=torch.float32)
    x[::2, 0] += 300  # two clusters: half of the pairs take the way of the close ones
    z[::2, 0] += 300
    z.requires_grad_()
    before = peak_memory()
    make(1e-4, trainable=True)(x, z).sum().backward()
    assert peak_memory() - before < 300e6


# Frequencies


@every_gamma
@stationary
def test_fourier_features_average_to_the_kernel(make, gamma):
    """φ(x)ᵀφ(z) is a mean of J terms of variance at most one: its standard error is below 1/√J = 0.0022."""
    kernel, generator = make(tensor(gamma)), torch.Generator().manual_seed(0)
    x = 0.7 * random(6, 3)
    phi = RandomFourier.sample(kernel, 3, 200_000, generator).double()(x).detach()
    torch.testing.assert_close(phi @ phi.T, kernel(x, x), rtol=0, atol=5 / 200_000**0.5)


@stationary
def test_frequencies_come_from_the_generator(make):
    a, b, c = (make(0.7).frequencies(3, 50, torch.Generator().manual_seed(seed)) for seed in (0, 0, 1))
    assert a.shape == (3, 50)
    assert torch.equal(a, b)
    assert not torch.equal(a, c)
    assert torch.isfinite(a).all()


@stationary
def test_frequencies_scale_with_the_metric(make):
    one, two = (make(tensor(g)) for g in ([1.0, 1.0, 1.0], [1.0, 2.0, 3.0]))
    w, scaled = (kernel.frequencies(3, 50, torch.Generator().manual_seed(0)) for kernel in (one, two))
    torch.testing.assert_close(scaled, w * two.metric.detach()[:, None], check_dtype=False)


@pytest.mark.parametrize("kernel", [Linear(), Polynomial()])
def test_other_kernels_have_no_frequencies(kernel):
    with pytest.raises(ValueError, match="shift-invariant"):
        RandomFourier.sample(kernel, 3, 10)


@pytest.mark.parametrize("name", KERNELS)
def test_no_rows_have_an_empty_kernel_matrix(name):
    x, z = torch.rand(0, 3, requires_grad=True), torch.rand(4, 3, requires_grad=True)
    kernel = make_kernel(name)
    kernel.metric.requires_grad_()
    out = kernel(x, z)
    out.sum().backward()
    assert out.shape == (0, 4)
    assert not z.grad.any()
    assert not kernel.metric.grad.any()
