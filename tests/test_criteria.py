import copy
import math
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
import scipy.linalg
import torch
from sklearn.linear_model import Ridge

from discernel import (
    CE,
    DI,
    LS,
    RBF,
    Moments,
    Nystroem,
    PrivacyDI,
    RandomFourier,
    Targets,
    choose_landmarks,
    discriminant_information,
)
from experiments.datasets import load
from tests.ranks import together

RHO = 0.3


def problem(n=20, n_basis=5, n_targets=3, weighted=False, with_gram=False, seed=0):
    """Return basis, targets, gram or None and weights or None, in float64, for `discriminant_information`."""
    generator = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)  # noqa: E731
    basis, targets, factor = draw(n, n_basis) + 1, draw(n, n_targets) + 1, draw(n_basis, n_basis + 2)
    weight = torch.rand(n, generator=generator, dtype=torch.float64) + 0.5
    return basis, targets, factor @ factor.T if with_gram else None, weight if weighted else None


def di(basis, targets, gram=None, weight=None, rho=RHO):
    return discriminant_information(basis, targets, rho, gram, weight)


def formula(basis, targets, gram=None, rho=RHO):
    """Return DI by the pseudo-inverse in float64; its derivative holds W fixed, at which DI is stationary.

    (Autograd through `pinv` is no reference: it is off by orders of magnitude where the matrix is ill-conditioned.)
    """
    g, y = basis.double() - basis.double().mean(0), targets.double() - targets.double().mean(0)
    b = torch.eye(g.shape[1], dtype=g.dtype) if gram is None else gram.double()
    with torch.no_grad():
        w = torch.linalg.pinv(g.T @ g + rho * b, hermitian=True) @ (g.T @ y)
    return y.square().sum() - (y - g @ w).square().sum() - rho * (w * (b @ w)).sum()


def value_and_gradients(function, *tensors):
    """Return function(*tensors) and its derivative by each of the tensors; None stands for itself."""
    leaves = [None if t is None else t.detach().requires_grad_() for t in tensors]
    value = function(*leaves)
    return value.detach(), torch.autograd.grad(value, [leaf for leaf in leaves if leaf is not None])


def relative_error(actual, expected):
    return ((actual.double() - expected.double()).norm() / expected.double().norm()).item()


def centred(a):
    return a - a.mean(0)


def cloud(n=40, d=3, seed=0):
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def classes(n=40, n_classes=4, scaling="indicator"):
    return Targets.classes(np.arange(n) % n_classes, scaling).to(torch.zeros((), dtype=torch.float64))[:]


# The paper's identities


@pytest.mark.parametrize("rho", [1e-4, 1.0, 100.0])
def test_energy_less_the_least_regularised_error(rho):
    """MRLSE = ‖Ȳ‖² − DI, the ridge problem being solved by scikit-learn."""
    basis, targets, *_ = problem()
    model = Ridge(alpha=rho).fit(basis.numpy(), targets.numpy())
    errors = model.predict(basis.numpy()) - targets.numpy()
    least = (errors**2).sum() + rho * (model.coef_**2).sum()
    assert di(basis, targets, rho=rho).item() == pytest.approx(centred(targets).square().sum().item() - least)


def test_no_weights_do_better_than_the_least_regularised_error():
    basis, targets, gram, _ = problem(with_gram=True)
    g, y = centred(basis), centred(targets)
    best = Moments.of(basis, targets).ridge(RHO, gram).weights
    least = (y.square().sum() - di(basis, targets, gram)).item()
    for step in (0.0, 1e-3, 0.1):
        w = best + step * cloud(*best.shape, seed=1)
        loss = ((y - g @ w).square().sum() + RHO * (w * (gram @ w)).sum()).item()
        assert loss == pytest.approx(least) if step == 0 else loss > least


@pytest.mark.parametrize("n", [40, 8])
@pytest.mark.parametrize("steps", [0, 3])
def test_kdi_is_di_of_the_nystroem_features(n, steps):
    """At the start, and after the landmarks and the metric have been trained by the optimiser that the trainer uses."""
    x, targets = cloud(n), classes(n)
    feature_map = Nystroem(x[:6], RBF(torch.tensor(0.5, dtype=torch.float64), trainable=True))
    optimizer = torch.optim.Adam(feature_map.parameters(), lr=0.1, maximize=True, fused=True)
    with torch.no_grad():
        feature_map(x)
    for _ in range(steps):
        optimizer.zero_grad()
        di(feature_map.basis(x), targets, feature_map.gram()).backward()
        optimizer.step()
    with torch.no_grad():
        kdi = di(feature_map.basis(x), targets, feature_map.gram())
        torch.testing.assert_close(di(feature_map(x), targets), kdi)


def test_kdi_and_di_of_the_nystroem_features_have_one_gradient():
    x, targets = cloud(), classes()
    feature_map = Nystroem(x[:6], RBF(torch.tensor(0.5, dtype=torch.float64), trainable=True))
    parameters = tuple(feature_map.parameters())
    by_basis = torch.autograd.grad(di(feature_map.basis(x), targets, feature_map.gram()), parameters)
    by_features = torch.autograd.grad(di(feature_map(x), targets), parameters)
    torch.testing.assert_close(by_basis, by_features)


def greatest_sum_of_eigenvalues(a, b):
    """Return the maximum of tr(WᵀaW) subject to WᵀbW = I over the range of b."""
    values, vectors = scipy.linalg.eigh(b)
    vectors = vectors[:, values > 1e-12 * values[-1]]
    return scipy.linalg.eigh(vectors.T @ a @ vectors, vectors.T @ b @ vectors, eigvals_only=True).sum()


@pytest.mark.parametrize("rho", [1e-2, 1.0])
def test_all_samples_as_landmarks_give_kdca(rho):
    """Eq. (KDCA): max tr(AᵀK_bA) subject to Aᵀ(K̄² + ρK̄)A = I."""
    x, y = cloud(), classes()
    k = RBF(torch.tensor(0.5, dtype=torch.float64))(x, x).detach()
    k_bar = centred(centred(k).T)
    k_b = k_bar @ y @ y.T @ k_bar
    optimum = greatest_sum_of_eigenvalues(k_b.numpy(), (k_bar @ k_bar + rho * k_bar).numpy())
    assert di(k, y, k, rho=rho).item() == pytest.approx(optimum, rel=1e-8)


@pytest.mark.parametrize("rho", [1e-2, 1.0])
def test_it_is_the_optimum_of_dca(rho):
    """Eq. (DCA) and (alt_DI): max tr(WᵀS_BW) subject to Wᵀ(S̄ + ρI)W = I."""
    g, y = centred(cloud()), classes()
    optimum = greatest_sum_of_eigenvalues((g.T @ y @ y.T @ g).numpy(), (g.T @ g).numpy() + rho * np.eye(3))
    assert di(g, y, rho=rho).item() == pytest.approx(optimum, rel=1e-8)


@pytest.mark.parametrize("duplicate", [False, True])
def test_no_penalty_and_unit_columns_give_lda(duplicate):
    """tr(S̄⁺S_B), the scatters summed class by class."""
    x, labels = cloud(), classes().argmax(1)
    x = torch.cat([x, x[:, :1]], 1) if duplicate else x
    means = {int(c): x[labels == c].mean(0) for c in labels.unique()}
    between = sum(int((labels == c).sum()) * torch.outer(m - x.mean(0), m - x.mean(0)) for c, m in means.items())
    within = sum(centred(x[labels == c]).T @ centred(x[labels == c]) for c in means)
    expected = torch.trace(torch.linalg.pinv(between + within, hermitian=True) @ between).item()
    assert di(x, classes(scaling="unit"), rho=1e-9).item() == pytest.approx(expected, rel=1e-8)


def test_every_sample_a_class_of_its_own_gives_pca():
    """Σ λ/(λ + ρ), with the eigenvalues of the scatter."""
    x = cloud()
    values = torch.linalg.eigvalsh(centred(x).T @ centred(x))
    expected = (values / (values + RHO)).sum()
    torch.testing.assert_close(di(x, torch.eye(len(x), dtype=x.dtype)), expected)


CASES = [
    pytest.param(n, weighted, with_gram, id=f"n={n}{'-weighted' * weighted}{'-gram' * with_gram}")
    for n in (8, 3)  # more and fewer rows than the five columns of the basis
    for weighted in (False, True)
    for with_gram in (False, True)
]


@pytest.mark.parametrize("by_backward", [False, True])
def test_the_gradient_by_the_gram_has_its_precision(by_backward):
    basis, targets, gram, _ = problem(200, 5, 3, with_gram=True)
    basis = basis.half()
    targets, gram = 0.02 * targets.float(), gram.float().requires_grad_()
    exact = gram.detach().double().requires_grad_()
    di(basis.double(), targets.double(), exact, rho=1e-4).backward()
    if by_backward:
        DI(1e-4).backward(basis.requires_grad_(), targets, gram)
    else:
        di(basis, targets, gram, rho=1e-4).backward()
    assert (gram.grad - exact.grad).norm() < 1e-2 * exact.grad.norm()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("n", "weighted", "with_gram"), CASES)
def test_it_lies_between_zero_and_the_energy_and_falls_with_rho(n, weighted, with_gram, dtype):
    basis, targets, gram, weight = (None if t is None else t.to(dtype) for t in problem(n, 5, 3, weighted, with_gram))
    values = [di(basis, targets, gram, weight, rho).item() for rho in (1e-9, 1e-4, 1e-2, 1.0, 100.0, 1e9)]
    energy = Moments.of(basis, targets, weight).energy
    assert values[0] <= energy * (1 + 1e-6)
    assert 0 <= values[-1] < 1e-5
    assert all(more >= less for more, less in pairwise(values))
    assert all(more > less for more, less in pairwise(values[2:]))
    if n < 5 and not with_gram:  # as many columns as rows fit anything
        assert values[0] == pytest.approx(energy, rel=1e-6)


@pytest.mark.parametrize(("n", "weighted", "with_gram"), CASES)
def test_invariances(n, weighted, with_gram):
    basis, targets, gram, weight = problem(n, 5, 3, weighted, with_gram)
    expected = di(basis, targets, gram, weight)
    q, order = torch.linalg.qr(cloud(5, 5)).Q, torch.randperm(n)
    rotated = None if gram is None else q.T @ gram @ q
    same = {
        "shifted features": di(basis + cloud(1, 5), targets, gram, weight),
        "rotated features": di(basis @ q, targets, rotated, weight),
        "shifted targets": di(basis, targets + cloud(1, 3), gram, weight),
        "rotated targets": di(basis, targets @ q[:3, :3].svd().U, gram, weight),
        "another order": di(basis[order], targets[order], gram, None if weight is None else weight[order]),
        "other units": di(10 * basis, targets, gram, weight, rho=100 * RHO),
    }
    for name, value in same.items():
        assert value.item() == pytest.approx(expected.item(), rel=1e-10), name


@pytest.mark.parametrize("weighted", [False, True])
def test_twice_the_rows_feel_half_the_penalty(weighted):
    basis, targets, _, weight = problem(weighted=weighted)
    twice = di(
        basis.repeat(2, 1), targets.repeat(2, 1), weight=None if weight is None else weight.repeat(2), rho=2 * RHO
    )
    torch.testing.assert_close(twice, 2 * di(basis, targets, weight=weight))


@pytest.mark.parametrize("criterion", ["DI", "LS", "CE"])
@pytest.mark.parametrize("n", [20, 3])
def test_integer_weights_are_repeated_rows(n, criterion):
    """In the value and in the derivative, which a repeated row has once for each time."""
    basis, targets, gram, _ = problem(n, with_gram=True)
    counts = torch.arange(n) % 3
    index = torch.repeat_interleave(torch.arange(n), counts)
    function = {"DI": DI, "LS": LS, "CE": CE}[criterion]()
    function.prepare(basis, targets)
    function.refresh(lambda: Moments.of(basis, targets), gram)
    value, (gradient,) = value_and_gradients(lambda g: function(g, targets, gram, counts.double()), basis)
    repeated, (expected,) = value_and_gradients(lambda g: function(g[index], targets[index], gram), basis)
    torch.testing.assert_close(value, repeated)
    torch.testing.assert_close(gradient, expected)


# Derivatives


@pytest.mark.parametrize(("n", "weighted", "with_gram"), CASES)
def test_derivatives(n, weighted, with_gram):
    """By basis, targets, gram (kept symmetric) and weights."""
    tensors = [t if t is None else t.requires_grad_() for t in problem(n, 5, 3, weighted, with_gram)]

    def symmetric(basis, targets, gram, weight):
        return di(basis, targets, None if gram is None else (gram + gram.T) / 2, weight)

    assert torch.autograd.gradcheck(symmetric, tensors)


def test_a_weight_of_zero_has_a_derivative():
    basis, targets, _, weight = problem(weighted=True)
    weight[0] = 0
    (by_weight,) = value_and_gradients(lambda w: di(basis, targets, weight=w), weight)[1]
    step = torch.zeros_like(weight)
    step[0] = 1e-6
    expected = (di(basis, targets, weight=weight + step) - di(basis, targets, weight=weight)) / 1e-6
    assert by_weight[0].item() == pytest.approx(expected.item(), rel=1e-4)


def test_the_derivative_is_scaled_by_what_follows():
    basis, targets, gram, weight = problem(weighted=True, with_gram=True)
    once = value_and_gradients(di, basis, targets, gram, weight)[1]
    thrice = value_and_gradients(lambda *tensors: -3 * di(*tensors), basis, targets, gram, weight)[1]
    torch.testing.assert_close(thrice, tuple(-3 * gradient for gradient in once))


def test_the_dtype_is_that_of_the_basis():
    basis, targets, gram, weight = problem(weighted=True, with_gram=True)
    value, gradients = value_and_gradients(di, basis.float(), targets, gram.float(), weight)
    assert value.dtype == torch.float32
    assert [gradient.dtype for gradient in gradients] == [torch.float32, torch.float64, torch.float32, torch.float64]


# float32


@cache
def sample(name, n=4000):
    """Return rows of a data set and their targets, in float32."""
    data = load(name)
    return torch.from_numpy(data.x_train[:n].copy()), Targets.classes(data.y_train[:n])[:]


def features(name, kind, n_components, gamma):
    """Return rows, their targets and a map of random landmarks or frequencies, in float32."""
    x, targets = sample(name)
    generator = torch.Generator().manual_seed(0)
    if kind == "nystroem":
        return x, targets, Nystroem(choose_landmarks(x, n_components, generator=generator), RBF(gamma))
    return x, targets, RandomFourier.sample(RBF(gamma), x.shape[1], n_components, generator)


def check_float32(name, kind, n_components, gamma):
    """DI of float32 features is the float64 formula's; training in float32 follows the gradient of float64.

    The rounding of the float32 kernel itself moves the gradient, by 3e-3 at the worst (smooth kernels, J large).
    """
    x, targets, feature_map = features(name, kind, n_components, gamma)
    with torch.no_grad():
        basis, gram = feature_map.basis(x), feature_map.gram()
    value, gradients = value_and_gradients(lambda g, b: di(g, targets, b, rho=1e-4), basis, gram)
    expected, references = value_and_gradients(lambda g, b: formula(g, targets, b, rho=1e-4), basis, gram)
    assert value.item() == pytest.approx(expected.item(), rel=1e-5)
    for gradient, reference in zip(gradients, references, strict=True):
        assert relative_error(gradient, reference) < 1e-3

    exact = copy.deepcopy(feature_map).double()
    value = di(feature_map.basis(x), targets, feature_map.gram(), rho=1e-4)
    expected = formula(exact.basis(x.double()), targets, exact.gram(), rho=1e-4)
    assert value.item() == pytest.approx(expected.item(), rel=1e-5)
    value.backward()
    expected.backward()
    for (parameter, p), (_, q) in zip(feature_map.named_parameters(), exact.named_parameters(), strict=True):
        if p.requires_grad:
            assert relative_error(p.grad, q.grad) < 1e-2, parameter


@pytest.mark.parametrize("kind", ["nystroem", "fourier"])
@pytest.mark.parametrize("gamma", [0.01, 0.5])
@pytest.mark.parametrize("n_components", [100, 500])
def test_float32_agrees_with_float64_on_digits(n_components, gamma, kind):
    check_float32("digits", kind, n_components, gamma)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["nystroem", "fourier"])
@pytest.mark.parametrize("n_components", [100, 500, 2000])
@pytest.mark.parametrize(("name", "gamma"), [("letter", 4.0), ("mnist", 0.02), ("covtype", 10.0)])
def test_float32_agrees_with_float64_on_the_data_of_the_paper(name, gamma, n_components, kind):
    check_float32(name, kind, n_components, gamma)


# Singular problems


def kernel_problem(landmarks, n=30):
    kernel, x = RBF(torch.tensor(0.5, dtype=torch.float64)), cloud(n)
    with torch.no_grad():
        return kernel(x, landmarks), classes(30)[:n], kernel(landmarks, landmarks)


def constant_features(constant=1.0):
    basis, targets, *_ = problem()
    basis[:, 1:3] = constant
    return basis, targets, None


def constant_target():
    basis, targets, *_ = problem()
    targets[:, 1] = 7.0
    return basis, targets, None


SINGULAR = {
    "duplicate landmarks": kernel_problem(cloud(5, seed=1).repeat(2, 1)),
    "all landmarks equal": kernel_problem(cloud(1, seed=1).repeat(6, 1)),
    "many duplicate landmarks": kernel_problem(cloud(100, seed=1).repeat(2, 1)),
    "duplicate landmarks, few rows": kernel_problem(cloud(5, seed=1).repeat(2, 1), n=4),
    "fewer rows than landmarks": kernel_problem(cloud(12, seed=1), n=5),
    "one row": problem(1)[:3],
    "one row, one column": problem(1, n_basis=1)[:3],
    "one row, with gram": kernel_problem(cloud(4, seed=1), n=1),
    "equal rows": (torch.ones(6, 4).double(), classes(6), None),
    "constant features": constant_features(),
    "large constant features": constant_features(1e6),
    "constant target": constant_target(),
    "zero basis": (torch.zeros(6, 4).double(), classes(6), None),
    "zero basis and gram": (torch.zeros(6, 4).double(), classes(6), torch.zeros(4, 4).double()),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("basis", "targets", "gram"), SINGULAR.values(), ids=SINGULAR.keys())
def test_singular_problems_have_the_value_and_derivative_of_the_pseudo_inverse(basis, targets, gram, dtype):
    tensors = [None if t is None else t.to(dtype) for t in (basis, targets, gram)]
    value, gradients = value_and_gradients(lambda g, y, b: di(g, y, b, rho=1e-4), *tensors)
    expected, references = value_and_gradients(lambda g, y, b: formula(g, y, b, rho=1e-4), *tensors)
    assert value.item() == pytest.approx(expected.item(), rel=1e-5, abs=1e-6)
    for gradient, reference in zip(gradients, references, strict=True):
        size = reference.abs().max().item()
        torch.testing.assert_close(gradient, reference, rtol=1e-3, atol=1e-3 * size + 1e-6)


def test_duplicate_landmarks_add_nothing():
    landmarks = cloud(5, seed=1)
    once, twice = kernel_problem(landmarks), kernel_problem(landmarks.repeat(2, 1))
    torch.testing.assert_close(di(*twice, rho=1e-4), di(*once, rho=1e-4))


# Arguments


@pytest.mark.parametrize("rho", [0.0, -1.0, math.inf, math.nan])
@pytest.mark.parametrize("make", [DI, LS, lambda rho: di(*problem()[:2], rho=rho)])
def test_rho_must_be_positive(make, rho):
    with pytest.raises(ValueError, match="rho must be positive and finite"):
        make(rho)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"basis": torch.ones(20)}, "basis must have two dimensions"),
        ({"targets": torch.ones(19, 3)}, "targets must have 20 rows, got 19"),
        ({"targets": torch.full((20, 3), math.nan)}, "targets has 60 entries that are NaN or infinite"),
        ({"gram": torch.eye(4)}, "gram must have 5 rows, got 4"),
        ({"sample_weight": torch.ones(20, 1)}, r"sample_weight must have shape \(20,\)"),
        ({"sample_weight": -torch.ones(20)}, "sample_weight must be non-negative"),
        ({"sample_weight": torch.zeros(20)}, "at least one positive weight"),
    ],
)
def test_errors_say_what_was_expected(change, message):
    basis, targets, *_ = problem()
    with pytest.raises(ValueError, match=message):
        discriminant_information(**{"basis": basis, "targets": targets} | change)


# The criteria


def prepared(criterion, basis, targets, gram=None, weight=None):
    """Return the criterion, refreshed on these rows."""
    criterion.prepare(basis, targets)
    criterion.refresh(lambda: Moments.of(basis, targets, weight), gram)
    return criterion


def test_which_way_is_better():
    assert [DI.higher_is_better, LS.higher_is_better, CE.higher_is_better] == [True, False, False]


@pytest.mark.parametrize(("n", "weighted", "with_gram"), CASES)
def test_di_is_the_function(n, weighted, with_gram):
    tensors = problem(n, 5, 3, weighted, with_gram)
    assert DI(RHO)(*tensors).item() == di(*tensors).item()


@pytest.mark.parametrize(("n", "weighted", "with_gram"), CASES)
def test_ls_with_weights_of_the_same_batch_has_the_gradient_of_di(n, weighted, with_gram):
    """n · LS = MRLSE = ‖Ȳ‖² − DI there, and by the envelope theorem so are the derivatives."""
    basis, targets, gram, weight = problem(n, 5, 3, weighted, with_gram)
    count = n if weight is None else weight.sum().item()
    ls = prepared(LS(RHO), basis, targets, gram, weight)
    loss, of_ls = value_and_gradients(lambda g, b: count * ls(g, targets, b, weight), basis, gram)
    value, of_di = value_and_gradients(lambda g, b: -di(g, targets, b, weight), basis, gram)
    assert loss.item() == pytest.approx(Moments.of(basis, targets, weight).energy + value.item())
    torch.testing.assert_close(of_ls, of_di)


@pytest.mark.parametrize("gamma", [0.01, 0.5])
@pytest.mark.parametrize("kind", ["nystroem", "fourier"])
def test_ls_with_weights_of_the_same_batch_has_the_gradient_of_di_in_float32(kind, gamma):
    """The weights of a Nyström basis are large and cancel: in float32 their residual would be noise."""
    x, targets, feature_map = features("digits", kind, 500, gamma)
    parameters = [p for p in feature_map.parameters() if p.requires_grad]
    ls = prepared(LS(1e-4), feature_map.basis(x).detach(), targets, feature_map.gram())
    of_ls = torch.autograd.grad(-len(x) * ls(feature_map.basis(x), targets, feature_map.gram()), parameters)
    of_di = torch.autograd.grad(di(feature_map.basis(x), targets, feature_map.gram(), rho=1e-4), parameters)
    for actual, expected in zip(of_ls, of_di, strict=True):
        assert relative_error(actual, expected) < 1e-3


@pytest.mark.parametrize("with_gram", [False, True])
def test_ls_holds_the_weights_of_all_rows_until_it_is_refreshed(with_gram):
    basis, targets, gram, _ = problem(60, with_gram=with_gram)
    ls = prepared(LS(RHO), basis, targets, gram)
    ridge = Moments.of(basis, targets).ridge(RHO, gram)
    penalty = RHO / 60 * (ridge.weights * (ridge.weights if gram is None else gram @ ridge.weights)).sum()
    for batch in (slice(0, 60), slice(0, 20), slice(50, 60)):
        errors = (ridge.predict(basis[batch]) - targets[batch]).square().sum(1).mean()
        torch.testing.assert_close(ls(basis[batch], targets[batch], gram), errors + penalty)
    shares = [ls(basis[i::3], targets[i::3], gram) for i in range(3)]
    torch.testing.assert_close(sum(shares) / 3, ls(basis, targets, gram))  # batches share the loss of the whole
    ls.refresh(lambda: Moments.of(basis[:20], targets[:20]), gram)
    torch.testing.assert_close(ls.weights, Moments.of(basis[:20], targets[:20]).ridge(RHO, gram).weights)


def test_ls_has_no_parameters_but_a_state():
    basis, targets, *_ = problem()
    ls = prepared(LS(), basis, targets)
    assert not list(ls.parameters())
    fresh = LS()
    fresh.prepare(basis, targets)
    fresh.load_state_dict(ls.state_dict())
    assert fresh(basis, targets).item() == ls(basis, targets).item()


def test_ce_is_the_softmax_cross_entropy():
    basis, weights, bias = cloud(40, 5), cloud(5, 4, seed=1), cloud(1, 4, seed=2)[0]
    targets = classes()
    ce = prepared(CE(), basis, targets)
    assert ce(basis, targets).item() == pytest.approx(math.log(4))  # it starts at zero weights
    ce.load_state_dict({"weights": weights, "bias": bias})
    logits = basis @ weights + bias
    expected = (logits.logsumexp(1) - (logits * targets).sum(1)).mean()
    torch.testing.assert_close(ce(basis, targets), expected)


def test_ce_of_independent_labels_is_the_sum_of_logistic_losses():
    basis, weights, bias = cloud(40, 5), cloud(5, 3, seed=1), cloud(1, 3, seed=2)[0]
    targets = (cloud(40, 3, seed=3) > 0).double()
    ce = prepared(CE(independent=True), basis, targets)
    assert ce(basis, targets).item() == pytest.approx(3 * math.log(2))
    ce.load_state_dict({"weights": weights, "bias": bias})
    signs = 2 * targets - 1
    expected = (1 + (-signs * (basis @ weights + bias)).exp()).log().sum(1).mean()
    torch.testing.assert_close(ce(basis, targets), expected)


@pytest.mark.parametrize("independent", [False, True])
def test_derivatives_of_ce(independent):
    basis, targets, weight = cloud(10, 5), classes(10), cloud(10, 1).square()[:, 0]
    ce = prepared(CE(independent), basis, targets)

    def loss(basis, weights, bias, weight):
        return torch.func.functional_call(ce, {"weights": weights, "bias": bias}, (basis, targets, None, weight))

    tensors = [t.requires_grad_() for t in (basis, cloud(5, 4), cloud(1, 4)[0], weight)]
    assert torch.autograd.gradcheck(loss, tensors)


def test_ce_trains_its_own_weights():
    basis, targets = cloud(40, 5), classes()
    ce = prepared(CE(), basis, targets)
    optimizer = torch.optim.Adam(ce.parameters(), lr=0.1)
    for _ in range(50):
        optimizer.zero_grad()
        ce(basis, targets).backward()
        optimizer.step()
    assert ce(basis, targets).item() < 0.95 * math.log(4)


def test_di_tries_float32_sums_again_in_each_epoch():
    torch.manual_seed(0)
    x = torch.rand(900, 8)
    smooth, targets = Nystroem(x[:300], RBF(0.05)), (x[:, :2] > 0.5).float()
    criterion = DI()
    criterion(smooth.basis(x), targets, smooth.gram())
    assert not criterion.refine
    criterion.refresh(lambda: None, None)
    assert criterion.refine


def test_the_penalty_is_the_papers_unless_another_is_given():
    basis, targets, *_ = problem()
    assert discriminant_information(basis, targets).item() == di(basis, targets, rho=1e-4).item()
    assert DI()(basis, targets).item() == DI(1e-4)(basis, targets).item()
    assert (LS().rho, PrivacyDI(1).rho, PrivacyDI(1).penalty) == (1e-4, 1e-4, 1.0)


# Over several ranks

SHARED = {"DI": lambda: DI(RHO), "LS": lambda: LS(RHO), "CE": CE, "PrivacyDI": lambda: PrivacyDI(1, 0.7, RHO)}


@pytest.mark.parametrize("with_gram", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", SHARED)
def test_the_shares_of_ranks_add_up_to_the_criterion_of_all_rows(name, weighted, with_gram):
    """In the value, in the derivative by the gram, and in those by the rows that a rank has."""
    basis, targets, gram, weight = problem(20, weighted=weighted, with_gram=with_gram)
    gram = torch.eye(5).double() if gram is None else gram
    targets = targets.abs() if name == "CE" else targets
    edges = [0, 13, 13, 20]  # the second has no rows

    def shares(rows, **shared):
        criterion = prepared(SHARED[name](), basis, targets, gram, weight)
        vars(criterion).update(shared)
        part = None if weight is None else weight[rows]
        return value_and_gradients(lambda g, b: criterion(g, targets[rows], b, part), basis[rows], gram)

    whole, (by_basis, by_gram) = shares(slice(0, 20))
    found = together(3, lambda rank, total: shares(slice(*edges[rank : rank + 2]), total=total, ranks=3))
    torch.testing.assert_close(sum(value for value, _ in found), whole)
    torch.testing.assert_close(torch.cat([gradients[0] for _, gradients in found]), by_basis)
    torch.testing.assert_close(sum(gradients[1] for _, gradients in found), by_gram)


@pytest.mark.parametrize("n_components", [20, 300])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_features_that_explain_next_to_nothing_have_an_accurate_value(n_components, dtype):
    generator = torch.Generator().manual_seed(0)
    basis = 1e-8 * torch.randn(1000, n_components, generator=generator, dtype=dtype)
    targets = torch.randn(1000, 3, generator=generator, dtype=dtype)
    expected = Moments.of(basis, targets).discriminant_information(1.0)
    assert discriminant_information(basis, targets, 1.0).item() == pytest.approx(expected, rel=1e-6)
