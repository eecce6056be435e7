import pytest
import scipy.linalg
import torch

from discernel.hadamard import hadamard, power_of_two


def columns(*shape, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=dtype)


@pytest.mark.parametrize("size", [1, 2, 4, 16, 32, 256, 512, 4096])
def test_it_is_the_product_with_the_hadamard_matrix(size):
    x = columns(size, 3)
    expected = torch.from_numpy(scipy.linalg.hadamard(size)).double() @ x / size**0.5
    torch.testing.assert_close(hadamard(x), expected)


def test_it_is_its_own_inverse_and_keeps_lengths():
    x = columns(2, 64, 5, dtype=torch.float32)
    torch.testing.assert_close(hadamard(hadamard(x)), x)
    torch.testing.assert_close(hadamard(x).norm(dim=1), x.norm(dim=1))


def test_leading_dimensions_are_separate_transforms():
    x = columns(3, 32, 4)
    torch.testing.assert_close(hadamard(x), torch.stack([hadamard(part) for part in x]))


def test_columns_may_lie_anyhow_in_memory():
    x = columns(5, 32)
    torch.testing.assert_close(hadamard(x.T), hadamard(x.T.contiguous()))


def test_the_gradient_is_the_same_transform():
    x, cotangent = columns(64, 3).requires_grad_(), columns(64, 3).flip(0)
    (gradient,) = torch.autograd.grad(hadamard(x), x, cotangent)
    torch.testing.assert_close(gradient, hadamard(cotangent))
    assert torch.autograd.gradcheck(hadamard, columns(8, 2).requires_grad_())
    assert torch.autograd.gradgradcheck(hadamard, columns(8, 2).requires_grad_())


@pytest.mark.parametrize("size", [3, 12, 784])
def test_other_sizes_are_refused(size):
    with pytest.raises(ValueError, match=f"a power of two of rows, got {size}; pad"):
        hadamard(columns(size, 1))


def test_power_of_two():
    assert [power_of_two(n) for n in (1, 2, 3, 4, 5, 784, 1024)] == [1, 2, 4, 4, 8, 1024, 1024]
