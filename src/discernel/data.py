"""Sources of data: rows and targets, in batches that the seed decides."""

import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from discernel import checks
from discernel.targets import Targets


class Batch(NamedTuple):
    """Rows of the data with their targets and weights."""

    x: Tensor
    targets: Tensor
    sample_weight: Tensor | None


class Source(ABC):
    """Rows of data with their targets and, optionally, weights; a subclass says how rows are fetched."""

    targets: Targets
    sample_weight: Tensor | None

    @abstractmethod
    def features(self, index) -> Tensor:
        """Return the features of the rows at `index`, an index tensor or a slice."""

    def _keep(self, targets: Targets, sample_weight: Tensor | None, n_rows: int, like: Tensor) -> None:
        """Check what goes with the rows of features, and put it where they are."""
        if len(checks.instance("targets", targets, Targets)) != n_rows:
            raise ValueError(f"targets must have {n_rows} rows, one for each row of x; got {len(targets)}")
        self.targets = targets.to(like)
        self.sample_weight = None if sample_weight is None else checks.weights(sample_weight, n_rows).to(like)

    def __len__(self) -> int:
        return len(self.targets)

    def rows(self, index) -> Batch:
        """Return the rows at `index`, an index tensor or a slice."""
        weight = None if self.sample_weight is None else self.sample_weight[index]
        return Batch(self.features(index), self.targets[index], weight)

    def batches(self, size: int, generator: torch.Generator | None = None, skip: int = 0) -> Iterator[Batch]:
        """Yield batches of rows.

        With a `generator`, exactly `size` rows each in an order drawn from it, the tail left out, from batch number
        `skip` on; without one, all rows in their own order, the last batch being the rest.
        """
        checks.positive_int("size", size)
        if generator is None or size >= len(self):
            for start in range(skip * size, len(self), size):
                yield self.rows(slice(start, start + size))
            return
        order = torch.randperm(len(self), generator=generator)
        for start in range(skip * size, len(self) - size + 1, size):
            yield self.rows(order[start : start + size])

    def fingerprint(self) -> int:
        """Return a checksum of a few rows, by which a checkpoint knows its data again."""
        rows = self.rows(torch.arange(64) * (len(self) - 1) // 63)
        return zlib.crc32(b"".join(part.cpu().numpy().tobytes() for part in rows if part is not None))


class ArraySource(Source):
    """Data in memory, or in a memory-mapped file.

    Parameters
    ----------
    x : Tensor (n, ...)
        One sample a row, float32 or float64; this decides the precision and the device of what is trained on it.
    targets : Targets
        What is to be predicted.
    sample_weight : Tensor (n,), optional
        How often each row counts.
    """

    def __init__(self, x: Tensor, targets: Targets, sample_weight: Tensor | None = None):
        checks.tensor("x", x)
        if x.ndim < 2 or 0 in x.shape:
            raise ValueError(f"x must have a row for each sample and at least one feature, got shape {tuple(x.shape)}")
        self.x = x
        self._keep(targets, sample_weight, len(x), x)

    def features(self, index) -> Tensor:
        """Return the rows at `index`; a slice is not copied."""
        return self.x[index]


class SparseSource(Source):
    """Data in a SciPy CSR matrix, of which only the rows of a batch are ever made dense.

    Parameters
    ----------
    x : scipy.sparse CSR matrix or array (n, d)
        One sample a row, float32 or float64.
    targets : Targets
        What is to be predicted.
    sample_weight : Tensor (n,), optional
        How often each row counts.
    device : torch.device or str
        Where batches are put.
    """

    def __init__(self, x: Any, targets: Targets, sample_weight: Tensor | None = None, device="cpu"):
        if not sparse.issparse(x) or x.format != "csr":
            raise TypeError(f"x must be a scipy.sparse CSR matrix or array, got {type(x).__name__}")
        checks.tensor("x", torch.from_numpy(np.require(x.data, requirements="W")))  # torch warns of read-only memory
        self.x, self.device = x, device
        self._keep(targets, sample_weight, x.shape[0], self.features(slice(0, 1)))

    def features(self, index) -> Tensor:
        """Return the rows at `index`, dense."""
        rows = self.x[index.numpy() if isinstance(index, Tensor) else index]
        return torch.from_numpy(rows.toarray()).to(self.device)
