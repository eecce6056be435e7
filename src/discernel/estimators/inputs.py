"""Validated input: rows, targets and weights as scikit-learn's checks leave them, and as what a map is trained on."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
import torch
from sklearn.utils.multiclass import type_of_target
from sklearn.utils.validation import _check_sample_weight
from torch import Tensor

from discernel.data import ArraySource, Source, SparseSource, View, as_tensor
from discernel.distributed import sharded
from discernel.targets import Targets

SAMPLE = 50_000  # rows that landmarks and gamma are chosen from
PERMUTED = 2**24  # rows that all of them are permuted to draw some
CHUNK = 2**20  # entries of features that are computed at a time: few enough for the cache
ROWS: dict[str, Any] = {"accept_sparse": "csr", "dtype": [np.float64, np.float32]}  # what `validate_data` asks for
TRAINING_ROWS = ROWS | {"ensure_min_samples": 2}


class Rows(NamedTuple):
    """Validated data, all parts of the same length."""

    X: Any  # or a source
    y: Any  # as it was given; None with a source
    targets: Targets
    weight: np.ndarray | None

    def take(self, index: np.ndarray) -> "Rows":
        """Return some of the rows."""
        some = torch.from_numpy(index)
        X = View(self.X, some) if isinstance(self.X, Source) else self.X[index]
        y, weight = (None if part is None else part[index] for part in (self.y, self.weight))
        return Rows(X, y, self.targets.take(some), weight)

    def raw(self) -> np.ndarray:
        """Return y as it was given."""
        return self.targets.raw() if self.y is None else self.y

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


@contextmanager
def unless_it_fails(estimator: Any) -> Iterator[None]:
    """Change an estimator only if nothing goes wrong: what is refused or interrupted leaves it as it was."""
    before = dict(vars(estimator))
    try:
        yield
    except BaseException:
        vars(estimator).clear()
        vars(estimator).update(before)
        raise


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
    if isinstance(X, Source):
        return View(X, targets=targets, sample_weight=weight, device=device)
    if sp.issparse(X):
        return SparseSource(sp.csr_array(X), targets, weight, device)
    return ArraySource(as_tensor(X).to(device), targets, weight)


def sample(source: Source, generator: torch.Generator) -> tuple[Tensor, Tensor | None, np.ndarray | None]:
    """Return all rows, or a random choice of 50000, with their weights and, if they have such, classes; on the CPU."""
    index = torch.arange(min(len(source), SAMPLE))
    if len(source) > SAMPLE:
        index = draw(len(source), SAMPLE, generator).sort().values
    rows = source.rows(index)
    weight = None if rows.sample_weight is None else rows.sample_weight.cpu()
    return rows.x.cpu(), weight, source.targets.raw(index) if source.targets.kind == "classes" else None


def draw(n_rows: int, count: int, generator: torch.Generator) -> Tensor:
    """Return the numbers of so many different rows of many more, drawn at random."""
    if n_rows <= PERMUTED:
        return torch.randperm(n_rows, generator=generator)[:count]
    drawn = torch.randint(n_rows, (2 * count,), generator=generator).unique()  # hardly a row comes twice
    return drawn[torch.randperm(len(drawn), generator=generator)[:count]]


def finite(what: str, values: np.ndarray) -> np.ndarray:
    """Return what a fitted model makes of rows; refuse rows so far from those of training that numbers overflow."""
    with np.errstate(over="ignore", invalid="ignore"):
        quick = np.isfinite(values.sum())
    if not quick and not np.isfinite(values).all():
        bad = int((~np.isfinite(values)).any(1).sum())
        raise ValueError(f"{what} of {bad} rows overflow in {values.dtype}: rescale the features, or use float64")
    return values


def chunks(X, width: int, device: Any = None, dtype: torch.dtype | None = None) -> Iterator[Tensor]:
    """Yield validated rows as tensors, as many at a time as a matrix of this width takes a bounded memory."""
    step = max(1, CHUNK // width)
    if isinstance(X, Source):
        yield from (batch.x.to(device, dtype) for batch in X.batches(step))
        return
    for start in range(0, X.shape[0], step):
        rows = X[start : start + step]
        yield as_tensor(rows.toarray() if sp.issparse(rows) else rows).to(device, dtype)
