"""Sources of data: rows and targets, in batches that the seed decides."""

import zlib
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from discernel import checks
from discernel.targets import Targets


class Batch(NamedTuple):
    """Rows of the data with their targets and weights."""

    x: Tensor
    targets: Tensor
    sample_weight: Tensor | None


class ArraySource:
    """Data in memory.

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
        if len(targets) != len(x):
            raise ValueError(f"targets must have {len(x)} rows, one for each row of x; got {len(targets)}")
        self.x = x
        self.targets = targets.to(x)
        self.sample_weight = None if sample_weight is None else checks.weights(sample_weight, len(x)).to(x)

    def __len__(self) -> int:
        return len(self.x)

    def rows(self, index) -> Batch:
        """Return the rows at `index`, an index tensor or a slice."""
        weight = None if self.sample_weight is None else self.sample_weight[index]
        return Batch(self.x[index], self.targets[index], weight)

    def batches(self, size: int, generator: torch.Generator | None = None, skip: int = 0) -> Iterator[Batch]:
        """Yield batches of rows.

        With a `generator`, exactly `size` rows each in an order drawn from it, the tail left out, from batch number
        `skip` on; without one, all rows in their own order, the last batch being the rest.
        """
        if generator is None:
            for start in range(0, len(self), size):
                yield self.rows(slice(start, start + size))
            return
        order = torch.randperm(len(self), generator=generator).to(self.x.device)
        for start in range(skip * size, len(self) - size + 1, size):
            yield self.rows(order[start : start + size])

    def fingerprint(self) -> int:
        """Return a checksum of a few rows, by which a checkpoint knows its data again."""
        rows = self.rows(torch.linspace(0, len(self) - 1, 64, device=self.x.device).long())
        return zlib.crc32(b"".join(part.cpu().numpy().tobytes() for part in rows if part is not None))
