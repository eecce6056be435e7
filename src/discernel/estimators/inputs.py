"""Validated input: rows, targets and weights as scikit-learn's checks leave them, and as what a map is trained on."""

import dataclasses
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
import torch
from sklearn.utils.multiclass import type_of_target
from sklearn.utils.validation import _check_sample_weight
from torch import Tensor

from discernel.data import ArraySource, Source, SparseSource
from discernel.distributed import sharded
from discernel.targets import Targets

SAMPLE = 50_000  # rows that landmarks and gamma are chosen from
CHUNK = 2**22  # entries of features that are computed at a time
ROWS: dict[str, Any] = {"accept_sparse": "csr", "dtype": [np.float64, np.float32]}  # what `validate_data` asks for
TRAINING_ROWS = ROWS | {"ensure_min_samples": 2}


class Rows(NamedTuple):
    """Validated data, all parts of the same length."""

    X: Any
    y: Any  # as it was given
    targets: Targets
    weight: np.ndarray | None

    def take(self, index: np.ndarray) -> "Rows":
        """Return some of the rows."""
        targets = dataclasses.replace(self.targets, data=self.targets.data[torch.from_numpy(index)])
        y, weight = (None if part is None else part[index] for part in (self.y, self.weight))
        return Rows(self.X[index], y, targets, weight)

    def spread(self, count: int) -> "Rows":
        """Return so many of the rows, evenly spaced, or all if there are fewer."""
        n_rows = len(self.targets)
        return self if n_rows <= count else self.take(np.arange(count) * n_rows // count)

    def counted(self) -> "Rows":
        """Return the rows of positive weight."""
        if self.weight is None or self.weight.all():
            return self
        if not self.weight.any():
            raise ValueError("sample_weight must have at least one positive weight")
        return self.take(np.flatnonzero(self.weight))

    def source(self, device) -> Source:
        """Return them as what a map is trained on."""
        return sharded(make_source(self.X, self.targets, self.weight, device))


def dense(y):
    """Return targets as an array, also where labels came as a sparse indicator matrix."""
    return y.toarray() if sp.issparse(y) else y


def weights(X, sample_weight) -> np.ndarray | None:
    """Return validated weights of the rows."""
    if sample_weight is None:
        return None
    return _check_sample_weight(sample_weight, X, dtype=X.dtype, ensure_non_negative=True)


def encode(y) -> Targets:
    """Return the targets that scikit-learn's `type_of_target` takes `y` for."""
    kind = type_of_target(y, input_name="y", raise_unknown=True)
    if kind in ("binary", "multiclass"):
        return Targets.classes(np.asarray(y).ravel())
    return Targets.labels(y) if kind == "multilabel-indicator" else Targets.values(y)


def make_source(X, targets: Targets, sample_weight: np.ndarray | None, device) -> Source:
    """Return the source of validated data."""
    weight = None if sample_weight is None else torch.from_numpy(sample_weight)
    if sp.issparse(X):
        return SparseSource(sp.csr_array(X), targets, weight, device)
    return ArraySource(as_tensor(X).to(device), targets, weight)


def as_tensor(X: np.ndarray) -> Tensor:
    """Return a tensor of the same memory where the strides allow it; it is never written to."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        return torch.from_numpy(X if all(s > 0 for s in X.strides) else X.copy())


def sample(source: Source, y, generator: torch.Generator) -> tuple[Tensor, Tensor | None, Any]:
    """Return all rows, or a random choice of 50000, with their weights and raw targets, on the CPU."""
    index = torch.arange(len(source))
    if len(source) > SAMPLE:
        index = torch.randperm(len(source), generator=generator)[:SAMPLE].sort().values
    rows = source.rows(index)
    weight = None if rows.sample_weight is None else rows.sample_weight.cpu()
    return rows.x.cpu(), weight, None if y is None else y[index.numpy()]


def chunks(X, width: int, device: Any = None, dtype: torch.dtype | None = None) -> Iterator[Tensor]:
    """Yield validated rows as tensors, as many at a time as a matrix of this width takes a bounded memory."""
    step = max(1, CHUNK // width)
    for start in range(0, X.shape[0], step):
        rows = X[start : start + step]
        yield as_tensor(rows.toarray() if sp.issparse(rows) else rows).to(device, dtype)
