"""What every public function asks of its arguments: errors name the argument, what was expected and what came."""

import math
from collections.abc import Iterable
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor

CLEAN = "remove or impute them first"
RESCALE = "rescale the features, or lower gamma"


def instance(name: str, value: Any, kind: type) -> Any:
    """Return `value`; it must be an instance of `kind`, one of the package's public classes."""
    if not isinstance(value, kind):
        got = f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__
        raise TypeError(f"{name} must be a discernel.{kind.__name__}, got {got}")
    return value


def boolean(name: str, value: Any) -> bool:
    """Return `value`; it must be True or False."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, got {value!r}")
    return value


def number(name: str, value: Any) -> float:
    """Return `value` as a float; it must be a finite number."""
    if not math.isfinite(_real(name, value, "a number")):
        raise ValueError(f"{name} must be finite, got {value!r}")
    return float(value)


def positive(name: str, value: Any) -> float:
    """Return `value` as a float; it must be a finite number above zero."""
    if not 0 < _real(name, value, "a positive number") < math.inf:
        raise ValueError(f"{name} must be positive and finite, got {value!r}")
    return float(value)


def _real(name: str, value: Any, expected: str) -> float:
    if not isinstance(value, Real) or isinstance(value, bool):
        raise TypeError(f"{name} must be {expected}, got {value!r} ({type(value).__name__})")
    return float(value)


def integer(name: str, value: Any) -> int:
    """Return `value` as an int; it must be a whole number."""
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise TypeError(f"{name} must be a whole number, got {value!r} ({type(value).__name__})")
    return int(value)


def positive_int(name: str, value: Any) -> int:
    """Return `value` as an int; it must be a whole number of at least one."""
    if integer(name, value) < 1:
        raise ValueError(f"{name} must be at least 1, got {value}")
    return int(value)


def one_of(name: str, value: Any, options: Iterable[str]) -> str:
    """Return `value`; it must be one of the named options."""
    options = list(options)
    if value not in options:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, options))}; got {value!r}")
    return value


def matrix(
    name: str, value: Any, *, rows: int | None = None, columns: int | None = None, advice: str = CLEAN
) -> Tensor:
    """Return `value`; it must be a finite floating-point matrix, not empty, and of the shape asked for."""
    floating_matrix(name, value)
    tensor(name, value, advice)
    if value.shape[0] == 0 or value.shape[1] == 0:
        raise ValueError(f"{name} is empty: its shape is {tuple(value.shape)}")
    if rows is not None and value.shape[0] != rows:
        raise ValueError(f"{name} must have {rows} rows, got {value.shape[0]}")
    if columns is not None and value.shape[1] != columns:
        raise ValueError(f"{name} must have {columns} columns, got {value.shape[1]}")
    return value


def samples(name: str, value: Any, owner: str, like: Tensor, axis: int = 1) -> Tensor:
    """Return `value`; it must be a matrix of the features and dtype of the owner's. No entry of it is looked at.

    The owner has its features along `axis`.
    """
    floating_matrix(name, value)
    if value.shape[1] != like.shape[axis]:
        raise ValueError(f"{name} has {value.shape[1]} features but {owner} have {like.shape[axis]}")
    if value.dtype != like.dtype:
        raise TypeError(f"{name} must be {like.dtype} as {owner} are, got {value.dtype}; convert with .to")
    return value


def floating_matrix(name: str, value: Any) -> Tensor:
    """Return `value`; it must be a floating-point matrix. No entry of it is looked at."""
    if floating(name, value).ndim != 2:
        raise ValueError(f"{name} must have two dimensions (samples, columns), got shape {tuple(value.shape)}")
    return value


def floating(name: str, value: Any) -> Tensor:
    """Return `value`; it must be a floating-point tensor."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, got {type(value).__name__}; convert with torch.as_tensor")
    if not value.is_floating_point():
        raise TypeError(f"{name} must be floating point, got {value.dtype}; convert with .float() or .double()")
    return value


def tensor(name: str, value: Any, advice: str = CLEAN) -> Tensor:
    """Return `value`; it must be a finite floating-point tensor."""
    floating(name, value)
    # One pass, one scalar: a sum is finite unless an entry is not, or the sum overflows, which the second look settles.
    if not math.isfinite(value.detach().sum().item()) and not torch.isfinite(value).all():
        bad = int((~torch.isfinite(value)).sum())
        raise ValueError(f"{name} has {bad} entries that are NaN or infinite; {advice}")
    return value


def precise(name: str, value: Any) -> Tensor:
    """Return `value`; it must be a finite tensor of float32 or float64, which all that is trained has."""
    if floating(name, value).dtype not in (torch.float32, torch.float64):
        raise TypeError(f"{name} must be float32 or float64, got {value.dtype}; convert with .float()")
    return tensor(name, value)


def numbers(name: str, value: Any) -> Tensor:
    """Return `value` as a finite floating-point tensor; what is not a tensor yet becomes one of float64."""
    if not isinstance(value, Tensor):
        try:
            value = torch.tensor(value, dtype=torch.float64)
        except (TypeError, ValueError, RuntimeError) as error:
            raise TypeError(f"{name} must be made of numbers, got {value!r}") from error
    return tensor(name, value)


def weights(value: Any, rows: int) -> Tensor:
    """Return `value`; it must hold one finite, non-negative weight a row, not all of them zero."""
    tensor("sample_weight", value)
    if value.shape != (rows,):
        raise ValueError(f"sample_weight must have shape ({rows},), one weight a row; got {tuple(value.shape)}")
    if bool((value < 0).any()) or not bool((value > 0).any()):
        raise ValueError("sample_weight must be non-negative with at least one positive weight")
    return value
