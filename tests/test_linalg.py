import logging
import math
from contextlib import nullcontext

import pytest
import torch
from torch.autograd import forward_ad

from discernel.linalg import (
    _BLOCK,
    cutoff,
    double_product,
    inverse_sqrt,
    product,
    randomized_inverse_sqrt,
    safe_cholesky,
    single_solver,
    solve_psd,
    symmetric_product,
    trigonometric,
    unwhitened,
    whitened,
)
from discernel.resources import threads_for


def random(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def with_spectrum(*values):
    """Return a symmetric matrix with these eigenvalues and random eigenvectors."""
    q = torch.linalg.qr(random(len(values), len(values))).Q
    return (q * torch.tensor(values, dtype=torch.float64)) @ q.T


def psd(rank, size=8):
    factor = random(rank, size)
    return factor.T @ factor


def duplicated(size=6):
    """Return the gram of `size` landmarks, each of them twice."""
    x = random(size, 3).repeat(2, 1)
    return (-torch.cdist(x, x).square()).exp()


SINGULAR = {
    "rank 3": (psd(3), 3),
    "rank 1": (psd(1), 1),
    "duplicate columns": (duplicated(6), 6),
    "many duplicate columns": (duplicated(120), 120),
    "tiny": (1e-30 * psd(3), 3),
    "huge": (1e30 * psd(3), 3),
    "zero": (torch.zeros(5, 5, dtype=torch.float64), 0),
    "one zero": (torch.zeros(1, 1, dtype=torch.float64), 0),
}
REGULAR = {
    "square": psd(8),
    "well conditioned": psd(50),
    "condition 1e10": with_spectrum(1.0, 1e-2, 1e-5, 1e-10),
    "number": torch.full((1, 1), 3.0, dtype=torch.float64),
    "tiny": 1e-30 * psd(50),
    "huge": 1e30 * psd(50),
}


@pytest.fixture(params=[1, 2, 3])
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


# The product

LAYOUTS = {
    "rows": lambda a: a,
    "columns": lambda a: a.T.contiguous().T,
    "part of the rows": lambda a: torch.cat([a, a], 1)[:, : a.shape[1]],
    "part of the columns": lambda a: torch.cat([a, a]).T.contiguous().T[: len(a)],
    "every second row": lambda a: a.repeat_interleave(2, 0)[::2],
    "every second column": lambda a: a.repeat_interleave(2, 1)[:, ::2],
}


SHAPES = (3, 4, 5), (130, 70, 50), (130, 210, 170)  # tiny, not so, large


@pytest.fixture(params=["torch", "numpy", "oneDNN"])
def library(request, monkeypatch):
    """Whose products are taken, of matrices that are large enough."""
    monkeypatch.setattr("discernel.linalg._has_wide_products", lambda: request.param == "oneDNN")
    with threads_for(1) if request.param == "numpy" else nullcontext():
        yield request.param


@pytest.mark.parametrize("left", LAYOUTS)
@pytest.mark.parametrize("right", LAYOUTS)
def test_a_product_is_the_product_whatever_the_layout_and_the_library(left, right, library):
    a, b = LAYOUTS[left](random(130, 210, dtype=torch.float32)), LAYOUTS[right](random(210, 170, dtype=torch.float32))
    bias, out = random(170, dtype=torch.float32), torch.full((130, 340), torch.nan)[:, ::2]
    expected = a.double() @ b.double()
    torch.testing.assert_close(product(a, b).double(), expected, rtol=0, atol=1e-4)
    found = product(a, b, bias, out)
    assert found is out
    torch.testing.assert_close(found.double(), expected + bias, rtol=0, atol=1e-4)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")  # by torch's jvp
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_product_has_derivatives(shape, dtype, library):
    n, k, m = shape
    a, b = random(n, k, dtype=dtype), random(k, m, seed=1, dtype=dtype).requires_grad_()
    product(a, b).sum().backward()
    torch.testing.assert_close(b.grad, a.sum(0)[:, None].expand_as(b), rtol=1e-4, atol=1e-4)
    bias = torch.zeros(m, dtype=dtype, requires_grad=True)
    product(a, b.detach(), bias).sum().backward()
    assert bias.grad.tolist() == [n] * m
    b, along = b.detach(), random(n, k, seed=2, dtype=dtype)
    _, found = torch.func.jvp(lambda a: product(a, b), (a,), (along,))
    torch.testing.assert_close(found, along @ b, rtol=1e-4, atol=1e-4)
    with forward_ad.dual_level():
        found = forward_ad.unpack_dual(product(forward_ad.make_dual(a, along), b)).tangent
    torch.testing.assert_close(found, along @ b, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(torch.func.vmap(lambda b: product(a, b))(torch.stack([b, 2 * b]))[1], 2 * a @ b)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_product_by_other_libraries_is_a_tensor_like_others(shape, dtype, library):
    n, k, m = shape
    a, b, bias = random(n, k, dtype=dtype), random(k, m, seed=1, dtype=dtype), random(m, seed=2, dtype=dtype)
    for found, expected in ((product(a, b), a @ b), (product(a, b, bias), a @ b + bias)):
        assert found.dtype == dtype
        assert not found.requires_grad
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    with pytest.raises(RuntimeError, match="dtype"):
        product(a, b.half())
    negated = torch._neg_view(a)  # which numpy does not know
    torch.testing.assert_close(product(negated, b), -a @ b, rtol=1e-4, atol=1e-4)
    overflowing = torch.full_like(a, torch.finfo(dtype).max)
    assert product(overflowing, b.abs() + 1).isinf().all()  # and no warning


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rows", [1, 7, 300])
@pytest.mark.parametrize("width", [1, 5, _BLOCK, 2 * _BLOCK, 2 * _BLOCK + 1, 3 * _BLOCK, 3 * _BLOCK + 17])
def test_symmetric_product_is_the_product(width, rows, dtype):
    a = random(rows, width, dtype=dtype)
    out = symmetric_product(a)
    assert out.dtype == dtype
    rounding = rows * torch.finfo(dtype).eps * max(1.0, a.square().sum(0).max().item())
    torch.testing.assert_close(out.double(), a.double().T @ a.double(), rtol=0, atol=rounding)
    torch.testing.assert_close(out, out.T, rtol=0, atol=rounding)
    assert torch.equal(symmetric_product(a, lower=True).tril(), out.tril())


def test_symmetric_product_takes_any_layout():
    a = random(500, 450)
    torch.testing.assert_close(symmetric_product(a.T), a @ a.T)
    torch.testing.assert_close(symmetric_product(a[::2, ::1]), a[::2].T @ a[::2])


def test_a_product_that_is_exported_has_common_operations_only():
    class Layer(torch.nn.Module):
        def forward(self, a, b):
            return product(a, b)

    a, b = random(130, 210, dtype=torch.float32), random(210, 170, dtype=torch.float32)
    nodes = torch.export.export(Layer(), (a, b)).graph.nodes
    assert [str(node.target) for node in nodes if node.op == "call_function"] == ["aten.mm.default"]


# The solve


@pytest.mark.parametrize("a", REGULAR.values(), ids=REGULAR.keys())
def test_a_regular_system_is_solved_by_cholesky(a):
    b = random(len(a), 3, seed=1)
    x, method, rank = solve_psd(a, b)
    assert (method, rank) == ("cholesky", len(a))
    torch.testing.assert_close(x, torch.linalg.pinv(a, hermitian=True) @ b, rtol=1e-5, atol=0)
    torch.testing.assert_close(a @ x, b, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("a", "true_rank"), SINGULAR.values(), ids=SINGULAR.keys())
def test_a_singular_system_is_solved_by_the_pseudo_inverse(a, true_rank):
    b = random(len(a), 3, seed=1)
    x, method, rank = solve_psd(a, b)
    assert (method, rank) == ("eigh", true_rank)
    expected = torch.linalg.pinv(a, hermitian=True) @ b
    torch.testing.assert_close(x, expected, rtol=1e-6, atol=1e-9 * expected.abs().max().item())


@pytest.mark.parametrize("a", [psd(50), duplicated(6)], ids=["regular", "singular"])
def test_what_is_above_the_diagonal_is_not_looked_at(a):
    b = random(len(a), 3, seed=1)
    spoilt = a.tril() + torch.full_like(a, torch.nan).triu(1)
    found, expected = solve_psd(spoilt, b), solve_psd(a, b)
    assert found[1:] == expected[1:]
    torch.testing.assert_close(found.x, expected.x)


def test_eigenvalues_at_rounding_size_are_dropped():
    """Cholesky runs through such a matrix without complaint; its answer is rounding error divided by rounding error."""
    a, b = with_spectrum(1.0, 1.0, 1e-17, 1e-17), random(4, 2)
    solution = solve_psd(a, b)
    assert (solution.method, solution.rank) == ("eigh", 2)
    torch.testing.assert_close(solution.x, torch.linalg.pinv(a, hermitian=True) @ b)


def test_slightly_negative_eigenvalues_are_dropped():
    solution = solve_psd(with_spectrum(1.0, 0.5, -1e-16), random(3, 2))
    assert (solution.method, solution.rank) == ("eigh", 2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_solution_is_in_float64(dtype):
    solution = solve_psd(psd(50).to(dtype), random(8, 2, dtype=dtype))
    assert solution.x.dtype == torch.float64


def test_cutoff_is_that_of_pinv():
    a = psd(4)
    assert cutoff(a, torch.tensor(2.0)).item() == 8 * 2.0**-52 * 2.0


def test_dropped_eigenvalues_are_logged(caplog):
    caplog.set_level(logging.DEBUG, logger="discernel")
    solve_psd(psd(50), random(8, 1))
    assert not caplog.records
    solve_psd(psd(3), random(8, 1))
    assert [record.getMessage() for record in caplog.records] == ["singular system: kept 3 of 8 eigenvalues"]
    assert caplog.records[0].levelno == logging.DEBUG


@pytest.mark.parametrize("where", [(0, 0), (3, 1), (7, 7)])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_matrix_that_is_not_finite_is_an_error(bad, where):
    a = psd(50)
    a[where] = bad
    with pytest.raises(FloatingPointError, match="rescale the features, or lower the learning rate"):
        solve_psd(a, random(8, 1))


# The inverse square root


@pytest.mark.parametrize("a", [*REGULAR.values(), *(a for a, _ in SINGULAR.values())])
def test_inverse_sqrt_squared_is_the_pseudo_inverse(a):
    root = inverse_sqrt(a)
    expected = torch.linalg.pinv(a, hermitian=True)
    torch.testing.assert_close(root @ root.T, expected, rtol=1e-5, atol=1e-9 * expected.abs().max().item())


@pytest.mark.parametrize(("a", "rank"), SINGULAR.values(), ids=SINGULAR.keys())
def test_inverse_sqrt_has_a_column_for_each_eigenvalue_kept(a, rank):
    assert inverse_sqrt(a).shape == (len(a), rank)


@pytest.mark.parametrize("rank", [1, 2, 4, 9])
def test_inverse_sqrt_keeps_the_largest_eigenvalues(rank):
    a = with_spectrum(5.0, 4.0, 2.0, 1.0, 0.0)
    kept = torch.tensor([5.0, 4.0, 2.0, 1.0], dtype=torch.float64)[:rank]
    root = inverse_sqrt(a, rank)
    assert root.shape == (5, len(kept))
    torch.testing.assert_close(root.T @ a @ root, torch.eye(len(kept), dtype=a.dtype))
    torch.testing.assert_close(root.square().sum(0), 1 / kept)  # in this order


def test_inverse_sqrt_keeps_the_dtype():
    assert inverse_sqrt(psd(50).float()).dtype == torch.float32


def inverse(factor, rank=None):
    """Return the pseudo-inverse of the best rank-k approximation of factor·factorᵀ, by way of its root."""
    root = inverse_sqrt(factor @ factor.T, rank)
    return root @ root.T


@pytest.mark.parametrize("rank", [None, 1, 3, 5])
def test_derivative_of_the_inverse(rank):
    assert torch.autograd.gradcheck(lambda factor: inverse(factor, rank), random(5, 7).requires_grad_())


@pytest.mark.parametrize("rank", [None, 2])
def test_derivative_for_losses_that_a_rotation_leaves_alone(rank):
    """The singular values, the row norms and the angles of the features are such losses."""
    g, target = random(9, 5), random(9, 2, seed=2)

    def loss(factor):
        phi = g @ inverse_sqrt(factor @ factor.T, rank)
        fit = phi @ torch.linalg.solve(phi.T @ phi + torch.eye(phi.shape[1], dtype=phi.dtype), phi.T @ target)
        return torch.stack([torch.linalg.matrix_norm(phi, "nuc"), phi.norm(dim=1).prod(), (fit * target).sum()])

    assert torch.autograd.gradcheck(loss, random(5, 7).requires_grad_())


def test_derivative_with_dropped_eigenvalues():
    """Along matrices of one rank, the derivative is that of the pseudo-inverse."""
    assert torch.autograd.gradcheck(inverse, random(6, 3).requires_grad_(), atol=1e-4)


@pytest.mark.parametrize("spectrum", [(1.0, 1.0, 1.0, 1.0), (3.0, 3.0, 1.0, 1.0), (2.0, 2.0, 0.0, 0.0)])
def test_equal_eigenvalues_have_a_derivative(spectrum):
    a = with_spectrum(*spectrum).requires_grad_()
    root = inverse_sqrt(a)
    (actual,) = torch.autograd.grad((root @ root.T).trace(), a)
    inverse = torch.linalg.pinv(a.detach(), hermitian=True)
    torch.testing.assert_close(actual, -inverse @ inverse)  # of tr(a⁻¹), in the space that is kept


def test_a_rank_between_equal_eigenvalues_has_a_finite_derivative():
    a = torch.eye(4, dtype=torch.float64, requires_grad=True)
    inverse_sqrt(a, 2).sum().backward()
    assert torch.isfinite(a.grad).all()


def spectrum(values, seed=0):
    """Return a positive semi-definite matrix with these eigenvalues."""
    draw = torch.randn(len(values), len(values), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    q = torch.linalg.qr(draw).Q
    return (q * values) @ q.T


def test_a_random_projection_finds_all_of_a_matrix_of_low_rank():
    a = spectrum(torch.cat([torch.linspace(1, 5, 8), torch.zeros(72)]).double())
    root, exact = randomized_inverse_sqrt(a, 8), inverse_sqrt(a, 8)
    torch.testing.assert_close(root @ root.T, exact @ exact.T)


def test_a_random_projection_finds_the_largest_eigenvalues_nearly():
    a = spectrum(0.8 ** torch.arange(100, dtype=torch.float64))
    best = inverse_sqrt(a, 10)
    root = randomized_inverse_sqrt(a, 10)
    assert root.shape == best.shape
    errors = [torch.linalg.matrix_norm(a - a @ (r @ r.T) @ a) for r in (best, root)]
    assert errors[0] <= errors[1] * (1 + 1e-12)
    assert errors[1] <= 1.001 * errors[0]


def test_a_random_projection_is_the_same_every_time_and_leaves_the_global_state_alone():
    a, state = psd(60), torch.get_rng_state()
    assert torch.equal(randomized_inverse_sqrt(a, 5), randomized_inverse_sqrt(a, 5))
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("rank", [1, 45, 50, 60, 70, None])
@pytest.mark.parametrize("true_rank", [50, 60])
def test_a_random_projection_has_the_rank_that_is_asked_for_if_the_matrix_has(rank, true_rank):
    root = randomized_inverse_sqrt(psd(true_rank, 60) + (true_rank == 60) * torch.eye(60).double(), rank)
    assert root.shape == (60, true_rank if rank is None else min(rank, true_rank))


def test_a_random_projection_keeps_the_dtype():
    assert randomized_inverse_sqrt(psd(50, 60).float(), 5).dtype == torch.float32


def test_kernel_values_that_are_not_finite_are_named():
    a = psd(8)
    a[2, 1] = float("nan")
    with pytest.raises(FloatingPointError, match=r"^the kernel values of the landmarks overflowed.*or lower gamma$"):
        inverse_sqrt(a)


@pytest.mark.parametrize("upper", [1e-3, 1.0])
def test_inverse_sqrt_of_a_matrix_that_is_not_quite_symmetric_is_that_of_its_mean(upper):
    a = psd(50)
    skew = upper * torch.triu(torch.ones(8, 8, dtype=a.dtype), 1)
    root, expected = inverse_sqrt(a + skew), inverse_sqrt(a + (skew + skew.T) / 2)
    torch.testing.assert_close(root @ root.T, expected @ expected.T)


# Factors


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_safe_factor_is_that_of_the_matrix_and_its_rounding(dtype):
    b = (7 * psd(50)).to(dtype)
    noise = 8 * torch.finfo(dtype).eps * b.double().diagonal().mean()
    factor = safe_cholesky(b)
    assert factor.dtype == torch.float64
    torch.testing.assert_close(factor @ factor.T - b.double(), noise * torch.eye(8).double(), rtol=1e-3, atol=1e-12)


def test_equal_landmarks_have_a_safe_factor():
    assert torch.isfinite(safe_cholesky(duplicated(6).float())).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_whitened_rows_have_the_nystroem_products(dtype):
    gram, basis = psd(50).to(dtype), random(5, 8, dtype=dtype)
    found = whitened(basis, gram)
    assert found.dtype == dtype
    expected = basis.double() @ torch.linalg.inv(gram.double()) @ basis.double().T
    torch.testing.assert_close((found @ found.T).double(), expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_unwhitened_weights_do_what_weights_on_whitened_rows_do(dtype):
    basis, gram, weights = random(5, 8, dtype=dtype), psd(50).to(dtype), random(8, 2, seed=1, dtype=dtype)
    found = unwhitened(weights, gram)
    assert found.dtype == dtype
    torch.testing.assert_close(basis @ found, whitened(basis, gram) @ weights, rtol=1e-4, atol=1e-4)


def difference_quotients_agree_with_the_derivatives_of_unwhitened():
    factor, weights = random(50, 8).requires_grad_(), random(8, 2, seed=1).requires_grad_()
    return torch.autograd.gradcheck(lambda f, w: unwhitened(w, f.T @ f), (factor, weights))


def test_unwhitened_weights_have_the_derivatives_of_finite_differences():
    assert difference_quotients_agree_with_the_derivatives_of_unwhitened()


def test_so_they_have_on_two_threads(two_threads):
    assert difference_quotients_agree_with_the_derivatives_of_unwhitened()


def test_a_single_precision_solver_is_nearly_right_and_looks_below_the_diagonal_only():
    a, b = psd(50) * 1e-12, random(8, 3)
    spoilt = a.float().tril() + torch.full((8, 8), torch.nan).triu(1)
    x = single_solver(spoilt)(b)
    assert x.dtype == torch.float64
    torch.testing.assert_close(x, torch.linalg.solve(a, b), rtol=1e-2, atol=1e-4 * x.abs().max().item())


@pytest.mark.parametrize("a", [psd(3), duplicated(6), torch.zeros(3, 3), -torch.eye(3)])
def test_there_is_no_single_precision_solver_of_a_singular_matrix(a):
    assert single_solver(a.float()) is None


@pytest.mark.parametrize("by_columns", [False, True])
@pytest.mark.parametrize("rows", [1, 7, 23])
def test_a_double_product_has_the_digits_of_float64(rows, by_columns, threads, monkeypatch):
    monkeypatch.setattr("discernel.linalg.chunk_rows", lambda *_: 7)
    a, b = random(rows, 19, dtype=torch.float32), random(19, 2)
    a = a.T.contiguous().T if by_columns else a
    torch.testing.assert_close(double_product(a, b), a.double() @ b, rtol=1e-13, atol=1e-13)


def test_what_has_overflowed_gives_no_warning_of_another_library(threads):
    bad = torch.tensor([[math.inf, -math.inf], [math.nan, 1.0]])
    assert trigonometric("cos", bad, torch.empty_like(bad)).isnan().tolist() == [[True, True], [True, False]]
    assert double_product(bad, torch.ones(2, 1, dtype=torch.float64)).isnan().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ["cos", "sin"])
def test_a_cosine_is_that_of_float64_to_rounding(name, dtype, threads):
    a = 1e5 * random(30, 40, dtype=dtype)
    expected, eps = getattr(torch, name)(a.double()), torch.finfo(dtype).eps
    out = torch.empty_like(a)
    torch.testing.assert_close(trigonometric(name, a, out).double(), expected, rtol=0, atol=2 * eps)
