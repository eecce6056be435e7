"""The fast Walsh–Hadamard transform: a rotation by all signs at once, for d log d additions and no d×d matrix."""

import torch
from torch import Tensor

_RADIX = 16  # sixteen points at a time are one small matrix product: a few times quicker than sixteen butterflies


def hadamard(x: Tensor) -> Tensor:
    """Return Hx for the columns of `x`, where H (d×d) is the Walsh–Hadamard matrix over √d, in O(d log d) a column.

    H is symmetric and its own inverse, so the gradient is the same transform of the gradient; nothing is kept for it.

    Parameters
    ----------
    x : Tensor (..., d, n)
        Columns to transform; d must be a power of two (pad with zeros).

    Examples
    --------
    >>> hadamard(torch.tensor([[1.0], [0.0], [0.0], [0.0]])).T
    tensor([[0.5000, 0.5000, 0.5000, 0.5000]])
    """
    size, count = x.shape[-2:]
    if size != power_of_two(size):
        raise ValueError(f"the Hadamard transform needs a power of two of rows, got {size}; pad them with zeros")
    out, done = x, 1
    while done < size:
        radix = min(_RADIX, size // done)
        out = torch.matmul(_matrix(radix, x), out.reshape(-1, radix, done * count))
        done *= radix
    return out.reshape(x.shape)


def power_of_two(size: int) -> int:
    """Return the least power of two that is at least `size`."""
    return 1 << (size - 1).bit_length()


def _matrix(size: int, like: Tensor) -> Tensor:
    """Return the orthonormal Hadamard matrix of a small size (Sylvester's construction)."""
    matrix = like.new_ones(1, 1)
    while len(matrix) < size:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    return matrix / size**0.5
