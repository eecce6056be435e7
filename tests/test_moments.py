import subprocess
import sys
from functools import reduce
from operator import add

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import Ridge as SklearnRidge
from sklearn.metrics.pairwise import rbf_kernel
from sklearn.preprocessing import KernelCenterer

from discernel import RBF, Moments, Nystroem, RandomFourier, discriminant_information
from discernel.moments import EPS, RHO_GRID, ridge_fit, ridge_weights
from discernel.moments import centred as centred_rows
from tests.ranks import together


def rows(n, n_basis=4, n_targets=2, weighted=False, offset=0.0, seed=0, dtype=torch.float64):
    """Return a basis, targets that depend on it, and weights or None."""
    generator = torch.Generator().manual_seed(seed)
    basis = torch.randn(n, n_basis, generator=generator, dtype=dtype)
    mix = torch.randn(n_basis, n_targets, generator=generator, dtype=dtype)
    targets = basis @ mix + torch.randn(n, n_targets, generator=generator, dtype=dtype)
    weight = torch.rand(n, generator=generator, dtype=dtype) + 0.1 if weighted else None
    return basis + offset, targets + offset, weight


def take(data, index):
    return tuple(None if part is None else part[index] for part in data)


def assert_same(actual, expected, tolerance=1e-9):
    for name in ("count", "basis_mean", "target_mean", "scatter", "cross", "energy"):
        a, b = getattr(actual, name), getattr(expected, name)
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance, msg=lambda text, n=name: f"{n}: {text}")


@pytest.mark.parametrize("weighted", [False, True])
def test_the_moments_are_what_they_are_called(weighted):
    basis, targets, weight = rows(20, weighted=weighted)
    w = torch.ones(20, dtype=torch.float64) if weight is None else weight
    g, y = basis - w @ basis / w.sum(), targets - w @ targets / w.sum()
    expected = Moments(
        w.sum().item(),
        w @ basis / w.sum(),
        w @ targets / w.sum(),
        (g.T * w) @ g,
        (g.T * w) @ targets,
        (w @ y.square()).sum().item(),
    )
    assert_same(Moments.of(basis, targets, weight), expected)


def test_moments_are_in_float64():
    basis, targets, weight = rows(20, weighted=True, dtype=torch.float32)
    moments = Moments.of(basis, targets, weight)
    assert {t.dtype for t in vars(moments).values() if isinstance(t, torch.Tensor)} == {torch.float64}
    assert_same(moments, Moments.of(basis.double(), targets.double(), weight.double()))


# Adding


@st.composite
def splits(draw):
    """Return the indices of n rows in any order, cut anywhere into parts that are not empty."""
    n = draw(st.integers(2, 40))
    order = draw(st.permutations(range(n)))
    cuts = sorted(draw(st.sets(st.integers(1, n - 1))))
    return [order[start:stop] for start, stop in zip([0, *cuts], [*cuts, n], strict=True)]


@given(splits(), st.booleans(), st.sampled_from([0.0, 1e6]), st.integers(0, 1000), st.booleans())
@settings(max_examples=80, deadline=None)
def test_any_split_in_any_order_adds_up_to_the_whole(parts, weighted, offset, seed, backwards):
    data = rows(sum(map(len, parts)), weighted=weighted, offset=offset, seed=seed)
    moments = [Moments.of(*take(data, part)) for part in parts]
    total = reduce(lambda a, b: b + a, moments) if backwards else reduce(add, moments)
    assert_same(total, Moments.of(*data), 1e-7 if offset else 1e-11)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_common_offset_costs_no_digits(dtype):
    """Sums of squares less squared sums would have lost all of them."""
    basis, targets, _ = rows(1000, offset=1e6, dtype=dtype)
    expected = Moments.of((basis - 1e6).double(), (targets - 1e6).double())
    total = reduce(add, (Moments.of(basis[i::10], targets[i::10]) for i in range(10)))
    torch.testing.assert_close(total.scatter, expected.scatter, rtol=1e-8, atol=1e-6)
    torch.testing.assert_close(total.cross, expected.cross, rtol=1e-8, atol=1e-6)
    assert total.energy == pytest.approx(expected.energy, rel=1e-8)


def test_about_another_centre():
    basis, targets, weight = rows(20, weighted=True)
    g0, y0 = torch.ones(4).double(), torch.full((2,), -3.0).double()
    moments = Moments.of(basis, targets, weight).about(g0, y0)
    torch.testing.assert_close(moments.scatter, ((basis - g0).T * weight) @ (basis - g0))
    torch.testing.assert_close(moments.cross, ((basis - g0).T * weight) @ (targets - y0))
    assert moments.energy == pytest.approx((weight @ (targets - y0).square()).sum().item())


EMPTY = {
    "no rows": rows(0),
    "no rows, weighted": rows(0, weighted=True),
    "no weight": (*rows(3)[:2], torch.zeros(3).double()),
}


@pytest.mark.parametrize("empty", EMPTY.values(), ids=EMPTY.keys())
def test_rows_that_do_not_count_add_nothing(empty):
    whole, nothing = Moments.of(*rows(10)), Moments.of(*empty)
    assert nothing.count == 0
    assert_same(nothing + whole, whole)
    assert_same(whole + nothing, whole)
    assert (nothing + nothing).count == 0


# Reducing over processes

WORKER = """
import sys
from datetime import timedelta
import torch
import torch.distributed as dist
from discernel import Moments

folder, rank = sys.argv[1], int(sys.argv[2])
torch.set_num_threads(1)
dist.init_process_group("gloo", f"file://{folder}/meet", timedelta(seconds=30), world_size=2, rank=rank)

def total(tensor):
    dist.all_reduce(tensor)
    return tensor

cases = torch.load(f"{folder}/rows{rank}.pt")
torch.save([vars(Moments.of(*rows).reduce(total)) for rows in cases], f"{folder}/moments{rank}.pt")
dist.destroy_process_group()
"""
SPLIT = rows(50, weighted=True, offset=1e3)
SHARES = {"20 and 30 rows": 20, "49 rows and one": 49, "50 rows and none": 50}


@pytest.fixture(scope="module")
def reduced(tmp_path_factory):
    """Return for each split of the rows the moments that two processes have after the reduction."""
    folder = tmp_path_factory.mktemp("gloo")
    torch.save([take(SPLIT, slice(0, share)) for share in SHARES.values()], folder / "rows0.pt")
    torch.save([take(SPLIT, slice(share, None)) for share in SHARES.values()], folder / "rows1.pt")
    command = [sys.executable, "-c", WORKER, str(folder)]
    workers = [subprocess.Popen([*command, rank], stderr=subprocess.PIPE, text=True) for rank in ("0", "1")]
    try:
        errors = [worker.communicate(timeout=90)[1] for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
    assert [worker.returncode for worker in workers] == [0, 0], "".join(errors)
    here, there = ([Moments(**case) for case in torch.load(folder / f"moments{rank}.pt")] for rank in (0, 1))
    return dict(zip(SHARES, zip(here, there, strict=True), strict=True))


@pytest.mark.parametrize("case", SHARES)
def test_two_processes_reduce_to_the_moments_of_all_rows(case, reduced):
    here, there = reduced[case]
    assert_same(here, Moments.of(*SPLIT))
    for name, value in vars(here).items():
        assert torch.equal(torch.as_tensor(value), torch.as_tensor(getattr(there, name))), name  # to the bit


@pytest.mark.parametrize("cuts", [(20,), (49,), (50,), (10, 10), (13, 31)], ids=str)
@pytest.mark.parametrize("weighted", [False, True])
def test_ranks_reduce_to_the_moments_of_all_rows(cuts, weighted):
    data, edges = rows(50, weighted=weighted, offset=1e3), [0, *cuts, 50]

    def work(rank, total):
        return Moments.of(*take(data, slice(*edges[rank : rank + 2]))).reduce(total)

    for found in together(len(cuts) + 1, work):
        assert_same(found, Moments.of(*data), 1e-8)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("kind", ["plain", "gram", "few rows", "float32", "float32 gram"])
def test_ranks_fit_the_ridge_regression_of_all_rows(kind, weighted):
    single, few = "float32" in kind, kind == "few rows"
    n, n_basis = (700, 300) if single else (6 if few else 40, 8)
    *data, weight = rows(n, n_basis, weighted=weighted, offset=0.5, dtype=torch.float32 if single else torch.float64)
    gram = torch.diag(torch.linspace(1, 2, n_basis)).to(data[0].dtype) if "gram" in kind else None
    whole = ridge_fit(*data, 0.3, gram, weight)
    cut = [0, n // 3, n]

    def work(rank, total):
        part = take((*data, weight), slice(*cut[rank : rank + 2]))
        return ridge_fit(*part[:2], 0.3, gram, part[2], total=total)

    parts = together(2, work)
    assert [part.refined for part in (whole, *parts)] == [single] * 3
    assert torch.equal(parts[0].weights, parts[1].weights)
    tolerance = 1e-5 if single else 1e-9
    torch.testing.assert_close(parts[0].weights, whole.weights, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(
        torch.cat([part.residual for part in parts]), whole.residual, rtol=tolerance, atol=tolerance
    )
    for name in ("basis_mean", "target_mean"):
        there, here = getattr(parts[1].rows, name), getattr(whole.rows, name)
        torch.testing.assert_close(there, here, rtol=tolerance, atol=tolerance)
    assert parts[1].rows.count == pytest.approx(whole.rows.count)


def test_one_process_reduces_to_its_own_moments():
    moments = Moments.of(*rows(10, weighted=True))
    assert_same(moments.reduce(lambda tensor: tensor), moments)


# Rows about their mean


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("weighted", [False, True])
def test_centred_rows_have_no_mean(weighted, dtype):
    basis, targets, weight = rows(3000, weighted=weighted, offset=1e3, dtype=torch.float32)
    found = centred_rows(basis, targets, weight, dtype)
    root = torch.ones(3000).double() if weight is None else weight.double().sqrt()
    assert (found.basis.dtype, found.targets.dtype) == (dtype, torch.float64)
    assert found.count == pytest.approx(root.square().sum().item())
    assert (root @ found.basis.double()).abs().max() < (0.02 if dtype == torch.float32 else 1e-8)
    assert (root @ found.targets).abs().max() < 1e-8
    torch.testing.assert_close(
        found.basis.double() / root[:, None] + found.basis_mean, basis.double(), rtol=1e-6, atol=0
    )
    torch.testing.assert_close(found.targets / root[:, None] + found.target_mean, targets.double())


@pytest.mark.parametrize("with_gram", [False, True])
@pytest.mark.parametrize("n", [3, 30])
def test_few_rows_have_the_weights_of_the_larger_system(n, with_gram):
    basis, targets, weight = rows(n, weighted=True)
    gram = torch.diag(torch.arange(1.0, 5.0)).double() if with_gram else None
    centred = centred_rows(basis, targets, weight)
    system = centred.basis.T @ centred.basis + 0.3 * (torch.eye(4).double() if gram is None else gram)
    expected = torch.linalg.solve(system, centred.basis.T @ centred.targets)
    found = ridge_weights(centred, 0.3, gram)
    torch.testing.assert_close(found.x, expected)
    assert (found.method, found.rank) == ("cholesky", n if n < 4 and gram is None else 4)


# What follows from them


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
@pytest.mark.parametrize("rho", [1e-4, 1e-30])
def test_a_basis_that_varies_by_rounding_explains_nothing_however_large_the_weights(scale, rho):
    generator = torch.Generator().manual_seed(0)
    basis = 0.7 + EPS * torch.randint(-1, 2, (40, 12), generator=generator).double()
    targets = torch.randn(40, 1, generator=generator, dtype=torch.float64)
    ridge = Moments.of(basis, targets, torch.full((40,), scale).double()).ridge(rho)
    assert (ridge.predict(basis) - targets.mean()).abs().max() < 0.05


@pytest.mark.parametrize("spread", [1.0, 1e-6, 1e-10])
@pytest.mark.parametrize("scale", [1.0, 1e30])
def test_what_varies_by_more_than_rounding_is_explained(spread, scale):
    x = rows(40)[0]
    basis, weight = 1 + spread * x, torch.full((40,), scale).double()
    ridge = Moments.of(basis, x[:, :1] - 3, weight).ridge(1e-40)
    torch.testing.assert_close(ridge.predict(basis), x[:, :1] - 3, rtol=0, atol=1e-4)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("with_gram", [False, True])
@pytest.mark.parametrize("noise", [1e-3, 1.0, 30.0])
def test_best_rho_has_the_least_error_of_generalised_cross_validation(noise, with_gram, weighted):
    """The trace of the hat matrix, that of the intercept included, counts the degrees of freedom."""
    basis, targets, weight = rows(40, 12, weighted=weighted)
    targets = targets + noise * rows(40, seed=5)[1]
    gram = torch.diag(torch.linspace(0.01, 2, 12)).double() if with_gram else None
    w = torch.ones(40).double() if weight is None else weight
    g, y = (w.sqrt()[:, None] * (a - w @ a / w.sum()) for a in (basis, targets))
    penalty, scores = torch.eye(12).double() if gram is None else gram, {}
    for rho in RHO_GRID:
        hat = g @ torch.linalg.solve(g.T @ g + rho * penalty, g.T)
        freedom = 1 + hat.trace()
        scores[rho] = ((y - hat @ y).square().sum() / (1 - freedom / w.sum()) ** 2).item()
    moments = Moments.of(basis, targets, weight)
    assert moments.best_rho(gram) == min(scores, key=scores.get)
    assert moments.best_rho(gram, grid=(0.5,)) == 0.5


def test_best_rho_of_noise_is_large_and_of_a_perfect_fit_small():
    basis = rows(40, 12)[0]
    exact, noise = Moments.of(basis, basis[:, :2]), Moments.of(basis, rows(40, seed=9)[1])
    assert exact.best_rho() == min(RHO_GRID)
    assert noise.best_rho() > 1


def test_best_rho_of_moments_that_overflow_is_an_error():
    basis, targets, _ = rows(10)
    with pytest.raises(FloatingPointError, match=r"the moments overflowed.*rescale the features"):
        Moments.of(1e200 * basis, targets).best_rho()


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("rho", [1e-4, 1.0, 100.0])
def test_ridge_is_that_of_sklearn(rho, weighted):
    basis, targets, weight = rows(30, weighted=weighted, offset=5.0)
    ridge = Moments.of(basis, targets, weight).ridge(rho)
    reference = SklearnRidge(alpha=rho).fit(basis.numpy(), targets.numpy(), None if weight is None else weight.numpy())
    np.testing.assert_allclose(ridge.weights, reference.coef_.T, rtol=1e-8)
    np.testing.assert_allclose(ridge.intercept, reference.intercept_, rtol=1e-8)
    np.testing.assert_allclose(ridge.predict(basis), reference.predict(basis.numpy()), rtol=1e-8)
    assert (ridge.method, ridge.rank) == ("cholesky", 4)


def test_ridge_without_penalty_is_least_squares():
    basis, targets, _ = rows(30)
    basis = torch.cat([basis, basis[:, :2]], 1)  # the solution of least norm, where there are many
    ridge = Moments.of(basis, targets).ridge(0.0)
    g, y = basis - basis.mean(0), targets - targets.mean(0)
    torch.testing.assert_close(ridge.weights, torch.linalg.pinv(g) @ y)
    assert (ridge.method, ridge.rank) == ("eigh", 4)


@pytest.mark.parametrize("rho", [1e-3, 1.0])
def test_ridge_with_all_landmarks_is_kernel_ridge(rho):
    """With G = B = k(X, X): kernel ridge regression, its intercept free (a centred kernel and centred targets)."""
    x, targets, _ = rows(30)
    new = rows(7, seed=1)[0].numpy()
    k, k_new, y = rbf_kernel(x, gamma=0.5), rbf_kernel(new, x, gamma=0.5), targets.numpy()
    gram = torch.from_numpy(k)
    ridge = Moments.of(gram, targets).ridge(rho, gram)
    centre = KernelCenterer().fit(k)
    reference = KernelRidge(alpha=rho, kernel="precomputed").fit(centre.transform(k), y - y.mean(0))
    expected = reference.predict(centre.transform(k_new)) + y.mean(0)
    np.testing.assert_allclose(ridge.predict(torch.from_numpy(k_new)), expected, rtol=1e-7, atol=1e-9)


def test_predictions_in_float32_have_the_digits_of_float32():
    """The weights of a Nyström basis are large and cancel."""
    x = rows(200)[0].float() / 4
    kernel = (-0.05 * torch.cdist(x.double(), x[:60].double()).square()).exp()
    basis, gram, targets = kernel.float(), kernel[:60].float(), torch.sin(3 * x[:, :2])
    ridge = Moments.of(basis, targets).ridge(1e-4, gram)
    predictions = ridge.predict(basis)
    assert predictions.dtype == torch.float32
    torch.testing.assert_close(predictions.double(), ridge.predict(basis.double()), rtol=0, atol=1e-6)


@pytest.mark.parametrize("other", [0, 1], ids=["of the training rows", "of other rows"])
@pytest.mark.parametrize("weighted", [False, True])
def test_mse_follows_from_moments(weighted, other):
    ridge = Moments.of(*rows(30, weighted=weighted, offset=2.0)).ridge(0.1)
    basis, targets, weight = rows(40 if other else 30, weighted=weighted, offset=2.0, seed=other)
    errors = (ridge.predict(basis) - targets).square().sum(1)
    expected = errors.mean() if weight is None else weight @ errors / weight.sum()
    assert Moments.of(basis, targets, weight).mse(ridge) == pytest.approx(expected.item(), rel=1e-9)


def test_mse_of_a_perfect_fit_is_not_negative():
    basis = rows(30)[0]
    moments = Moments.of(basis, basis @ torch.ones(4, 1).double())
    assert 0 <= moments.mse(moments.ridge(1e-12)) < 1e-12


@pytest.mark.parametrize("with_gram", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("n", [30, 3])
def test_discriminant_information_follows_from_moments(n, weighted, with_gram):
    basis, targets, weight = rows(n, weighted=weighted)
    gram = torch.diag(torch.arange(1.0, 5.0)).double() if with_gram else None
    expected = discriminant_information(basis, targets, 0.3, gram, weight).item()
    assert Moments.of(basis, targets, weight).discriminant_information(0.3, gram) == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("with_gram", [False, True])
def test_discriminant_information_and_penalised_error_make_up_the_energy(with_gram):
    basis, targets, _ = rows(30)
    gram = torch.diag(torch.arange(1.0, 5.0)).double() if with_gram else None
    moments = Moments.of(basis, targets)
    ridge = moments.ridge(0.3, gram)
    penalty = 0.3 * (ridge.weights * (ridge.weights if gram is None else gram @ ridge.weights)).sum().item()
    least = moments.mse(ridge) * 30 + penalty
    assert moments.discriminant_information(0.3, gram) + least == pytest.approx(moments.energy, rel=1e-10)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("kind", "gamma"), [("nystroem", 8.0), ("nystroem", 2.0), ("fourier", 8.0), ("fourier", 0.5)])
def test_float32_sums_refined_in_float64_agree_with_float64_sums(kind, gamma, weighted):
    """In one step, or in several of them."""
    torch.manual_seed(0)
    x = torch.rand(900, 8)
    targets = torch.nn.functional.one_hot((x @ torch.randn(8, 4)).argmax(1)).float()
    weight = torch.rand(900) if weighted else None
    made = Nystroem(x[:300], RBF(gamma)) if kind == "nystroem" else RandomFourier.sample(RBF(gamma), 8, 300)
    with torch.no_grad():
        basis, gram = made.basis(x), made.gram()
    refined = ridge_fit(basis, targets, 1e-4, gram, weight)
    exact = ridge_fit(basis, targets, 1e-4, gram, weight, refine=False)
    assert refined.refined
    assert not exact.refined
    assert relative(refined.residual, exact.residual) < 3e-6
    assert relative(refined.weights, exact.weights) < 1e-4


@pytest.mark.parametrize("spoil", ["equal landmarks", "a smooth kernel"])
def test_float32_sums_are_given_up_where_they_are_not_enough(spoil):
    torch.manual_seed(0)
    x = torch.rand(900, 8)
    targets = (x[:, :2] > 0.5).float()
    landmarks = torch.cat([x[:150], x[:150]]) if spoil == "equal landmarks" else x[:300]
    made = Nystroem(landmarks, RBF(8.0 if spoil == "equal landmarks" else 0.05))
    with torch.no_grad():
        fit = ridge_fit(made.basis(x), targets, 1e-4, made.gram())
    assert not fit.refined


def test_float32_sums_are_only_tried_where_they_save_time():
    wide, targets, _ = rows(400, 256, dtype=torch.float32)
    assert ridge_fit(wide, targets, 1.0).refined
    assert not ridge_fit(wide.double(), targets, 1.0).refined
    assert not ridge_fit(wide, targets, 1.0, refine=False).refined
    assert not ridge_fit(wide[:, :255], targets, 1.0).refined
    assert not ridge_fit(wide[:256], targets[:256], 1.0).refined
    assert ridge_fit(wide[:257], targets[:257], 100.0).refined


def relative(actual, expected):
    return ((actual - expected).norm() / expected.norm()).item()
